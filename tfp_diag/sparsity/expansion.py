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
from collections.abc import Collection, Sequence

from tfp_diag.sparsity.evaluation import repeat_op
from tfp_diag.sparsity.graph import Graph
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
      if op.op_def.is_stateful:
        raise CannotSay(f'{op.type} may give something else the next time')
      results = repeat_op(op, [latest(tensor) for tensor in op.inputs])
    else:
      continue
    written.update((y.ref(), new) for y, new in zip(op.outputs, results))
  return [latest(tensor) for tensor in targets]
