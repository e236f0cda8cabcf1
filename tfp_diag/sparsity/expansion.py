# Copyright 2026 The tfp_diag Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
# ============================================================================
"""Writes out ops that compute with a normalizer, so that it can be held."""

import dataclasses
from collections.abc import Callable, Collection, Sequence

import tensorflow as tf

from tfp_diag.sparsity.evaluation import bound_op, repeat_op
from tfp_diag.sparsity.graph import Graph, gradient_of, has_own_gradient
from tfp_diag.sparsity.registry import CannotSay, facts
from tfp_diag.sparsity.tape import Loop
from tfp_diag.sparsity.walk import Walked

__all__ = ['expand', 'expandable']


def expandable(walked: Walked, graph: Graph) -> list[int]:
  """Which ops of a function can be written out with more ops.

  Args:
    walked: `Walked`.
    graph: `Graph` at hand.

  Returns:
    list of int: places in `graph.ops`.
  """
  found = set()
  for step in walked.tape.steps:
    if isinstance(step, Loop):
      continue
    known = facts(step.op_type)
    if known.written_out is not None and not any(
      step.inputs[k].depends for k in known.written_out_but_for
    ):
      found.add(walked.at_hand(step.op))
  return [place for place, op in enumerate(graph.ops) if op in found]


def expand(graph: Graph, places: Collection[int]) -> Graph:
  """Repeats what follows some ops, with these ops written out.

  Args:
    graph: `Graph`, to which ops are added.
    places: of the ops in `graph.ops` that are written out.

  Returns:
    `Graph` of the same function: values are the same up to rounding.

  Raises:
    CannotSay: If an op cannot be repeated.
  """
  with graph.graph.as_default():
    before = len(graph.graph.get_operations())
    ys = _repeated(graph.ops, places, graph.ys)
    more = graph.graph.get_operations()[before:]
  return dataclasses.replace(graph, ys=tuple(ys), ops=(*graph.ops, *more))


def _repeated(
  ops: Sequence, places: Collection[int], targets: Sequence
) -> list:
  written = {}

  def latest(tensor):
    return written.get(tensor.ref(), tensor)

  for place, op in enumerate(ops):
    if place in places:
      write_out = facts(op.type).written_out
      assert write_out is not None
      results = [write_out(op, *map(latest, op.inputs))]
    elif any(tensor.ref() in written for tensor in op.inputs):
      results = _repeat(op, latest)
    else:
      continue
    written.update((y.ref(), new) for y, new in zip(op.outputs, results))
  return [latest(tensor) for tensor in targets]


def _repeat(op: tf.Operation, latest: Callable) -> Sequence:
  """Executes an op on what its inputs are now."""
  if op.op_def.is_stateful:
    raise CannotSay(f'{op.type} may give something else the next time')
  if has_own_gradient(op):
    return _repeat_with_gradient(op, latest)
  if facts(op.type).is_constant:
    return [tf.constant(tf.make_ndarray(op.get_attr('value')))]
  return repeat_op(op, [latest(tensor) for tensor in op.inputs])


def _repeat_with_gradient(op: tf.Operation, latest: Callable) -> Sequence:
  """The same of an op whose gradient is its own, which is repeated as well."""
  try:
    gradient = gradient_of(op)
  except Exception as error:  # The user's code; whatever it raises.
    raise CannotSay(f'the gradient cannot be traced: {error}') from error
  graph = gradient.graph
  for inner in graph.get_operations():
    known = facts(inner.type)
    if inner.op_def.is_stateful or any(
      attr.HasField('func') for attr in inner.node_def.attr.values()
    ):
      raise CannotSay(f'{inner.type} of a gradient cannot be repeated')
    if not (known.is_placeholder or known.is_constant):
      bound_op(inner)

  @tf.custom_gradient
  def identities(*tensors):
    def gradient_function(*cotangents):
      written = {
        t.ref(): cotangent
        for t, cotangent in zip(gradient.cotangents, cotangents)
      }

      def of(tensor):
        if tensor.ref() not in written:
          captures = ((o, i) for o, i in graph.captures if i is tensor)
          outer, _ = next(captures, (tensor, None))
          written[tensor.ref()] = latest(outer)
        return written[tensor.ref()]

      for inner in graph.get_operations():
        if not facts(inner.type).is_placeholder:
          results = _repeat(inner, of)
          written.update(
            (y.ref(), new) for y, new in zip(inner.outputs, results)
          )
      return [None if r is None else of(r) for r in gradient.results]

    # Others than the arguments, by which alone there is a gradient.
    return list(map(tf.identity, tensors)), gradient_function

  return identities(*map(latest, op.inputs))
