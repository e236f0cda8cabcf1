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
"""A function that is the gradient of another one: of its potential.

A score is written as `tape.gradient(log_prob(x), x)`. Its Jacobian is a
Hessian, whose diagonal may cost less than that of any other Jacobian: by sweeps
with squared derivatives, or op by op. Whether a function is a gradient is seen
from its graph: where the gradient of a value on the way is built once more, its
ops are the ops that the function has made, one by one.
"""

import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal.linear_map import (
  Evaluation,
  MissingGradientError,
  evaluate,
  gradient_graph,
  recorded_ops,
)
from tfp_diag.diagonal.reading import Reading
from tfp_diag.diagonal.terms import Call, Terms
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.evaluation import repeat_op, run_op
from tfp_diag.sparsity.expansion import (
  inlined,
  needed_ops,
  ops_between,
  repeated,
)
from tfp_diag.sparsity.graph import (
  Graph,
  attributes_of,
  function_names,
  has_own_gradient,
)
from tfp_diag.sparsity.registry import CannotSay, OpFailed, facts

# So many values on the way are tried: the first that nothing is computed from.
_MOST_TRIED = 3
# Constants with so many elements are computed, to see that they are equal.
_MOST_ELEMENTS = 10_000


class Potential(NamedTuple):
  """A value of which a function is the gradient, but for factors.

  Attributes:
    graph: `Graph` of the function, with calls written out.
    value: Tensor of it; the sum over its axes that are not of samples is meant.
    factors: tuple with a list for each part: numbers, and Tensors that do not
      depend on xs, with which the gradient is multiplied.
  """

  graph: Graph
  value: tf.Tensor
  factors: tuple

  def repeated(self, xs: Sequence, rank: int) -> tf.Tensor:
    """Computes the value once more, for other Tensors in place of xs."""
    (value,) = repeated(self.graph, xs, [self.value])
    axes = range(rank, value.shape.rank)
    return tf.reduce_sum(value, list(axes)) if axes else value

  def graph_of(self, xs: Sequence, value: tf.Tensor, ops: Sequence) -> Graph:
    """The `Graph` of the value, as it was repeated by some ops."""
    targets = [self.value]
    needed = needed_ops(self.graph.ops, targets)
    needed -= {*ops_between(self.graph, targets)}
    given = [op for op in self.graph.ops if op in needed]
    return dataclasses.replace(
      self.graph, xs=tuple(xs), ys=(value,), ops=(*given, *ops)
    )


def find_potential(graph: Graph, rank: int) -> Potential | None:
  """Looks for a potential of a function among the values that it computes.

  Args:
    graph: `Graph`, to which ops are added.
    rank: Python int, the number of sample dimensions.

  Returns:
    `Potential`, or None.

  Raises:
    CannotSay: If an op of a function that it calls cannot be repeated.
  """
  for value in _candidates(graph, rank)[:_MOST_TRIED]:
    both = dataclasses.replace(graph, ys=(*graph.ys, value))
    both = inlined(both) or both
    *ys, value = both.ys
    values = _of_samples(value, both.xs[0].shape[:rank])
    if values is None or any(map(function_names, ops_between(both, [value]))):
      # A gradient of a loop would add results to it; see `linear_map`.
      continue
    peeled = [_peeled(both, y) for y in ys]
    with contextlib.suppress(MissingGradientError):
      found = gradient_graph(
        dataclasses.replace(both, ys=(value,)), is_plain=True
      )
      if len(found.ys) == len(ys) and _are_equal(
        found, zip(found.ys, [y for y, _ in peeled])
      ):
        factors = tuple(factors for _, factors in peeled)
        return Potential(both, values, factors)
  return None


def _candidates(graph: Graph, rank: int) -> list:
  """Values from which the function computes no others."""
  shape = graph.xs[0].shape.as_list()
  reached, used, found = {x.ref() for x in graph.xs}, set(), []
  for op in graph.ops:
    taken = {x.ref() for x in _read(op)} & reached
    results = [y for y in op.outputs if y.dtype.is_floating]
    if taken and results:
      reached.update(y.ref() for y in results)
      used |= taken
      found += [y for y in results if _may_have_samples(y, shape, rank)]
  return [y for y in found if y.ref() not in used]


def _read(op: tf.Operation) -> list:
  """The inputs of an op of which it reads more than the shape."""
  measured = facts(op.type).measured(len(op.inputs))
  return [x for k, x in enumerate(op.inputs) if k not in measured]


def _may_have_samples(y: tf.Tensor, shape: list, rank: int) -> bool:
  """Whether it has a value for each sample, or is a sum over the samples."""
  k = y.shape.rank
  if k is None or not (k == 0 or rank <= k <= max(rank, len(shape) - 1)):
    return False
  return y.shape.as_list() == shape[:k]


def _of_samples(value: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor | None:
  """The terms of a sum over the samples; other values as they are."""
  if value.shape.rank >= shape.rank:
    return value
  while facts(value.op.type).is_identity:
    value = value.op.inputs[0]
  if not facts(value.op.type).is_sum:
    return None
  terms = value.op.inputs[0]
  is_same = terms.shape.rank == shape.rank and terms.shape.is_compatible_with(
    shape
  )
  return terms if is_same else None


def _peeled(graph: Graph, y: tf.Tensor) -> tuple[tf.Tensor, list]:
  """A Tensor of which another one is a multiple, but for a constant.

  Args:
    graph: `Graph`.
    y: Tensor of it.

  Returns:
    tensor: Tensor.
    factors: List of numbers and Tensors that do not depend on xs.
  """
  varying = {x.ref() for x in graph.xs}
  for op in ops_between(graph, [y]):
    varying.update(z.ref() for z in op.outputs)
  factors = []
  while True:
    op, known = y.op, facts(y.op.type)
    # Sizes that are read off xs say where to, at most.
    places = [
      k
      for k, x in enumerate(op.inputs)
      if x.ref() in varying and not x.dtype.is_integer
    ]
    if len(places) != 1 or y.ref() not in varying:
      return y, factors
    (k,) = places
    # What is broadcast from the shape of a part to that shape stays as it is.
    is_broadcast = known.only_copies and known.axes == 'aligned'
    if known.factor is not None:
      factors.append(known.factor(op, k))
    elif known.elementwise is not None and (k,) in known.linear_in:
      inputs = list(op.inputs)
      inputs[k] = tf.ones([], y.dtype)
      (factor,) = repeat_op(op, inputs)
      factors.append(factor)
    elif not (known.is_identity or is_broadcast):
      return y, factors
    y = op.inputs[k]


def _are_equal(graph: Graph, pairs: Iterable) -> bool:
  """Whether Tensors are computed by the same ops, from the same Tensors.

  The order in which Tensors are added up does not count, nor does what has to
  run before an op.
  """
  tokens = _Tokens(graph)
  return all(tokens.of(a) == tokens.of(b) for a, b in pairs)


class _Tokens:
  """Numbers for Tensors, equal where these are seen to be equal."""

  def __init__(self, graph: Graph) -> None:
    self._numbers, self._tokens, self._arrays = {}, {}, {}
    self._terms = {}
    self._captured = {
      inner.ref() for _, inner in getattr(graph.graph, 'captures', ())
    }
    for op in graph.ops:
      self._add(op)

  def of(self, tensor: tf.Tensor) -> int:
    ref = tensor.ref()
    if ref not in self._tokens:
      self._tokens[ref] = self._number(ref)
    return self._tokens[ref]

  def _number(self, key: Any) -> int:
    return self._numbers.setdefault(key, len(self._numbers))

  def _add(self, op: tf.Operation) -> None:
    known = facts(op.type)
    if any(y.ref() in self._captured for y in op.outputs):
      return
    arrays = self._computed(op)
    if arrays is not None:
      for y, array in zip(op.outputs, arrays):
        self._arrays[y.ref()] = array
        content = array.dtype.str, array.shape, array.tobytes()
        self._tokens[y.ref()] = self._number(content)
    elif known.is_identity:
      self._tokens[op.outputs[0].ref()] = self.of(op.inputs[0])
    elif known.adds_up:
      terms = collections.Counter()
      for x in op.inputs:
        terms.update(self._terms.get(self.of(x), [self.of(x)]))
      token = self._number(frozenset(terms.items()))
      self._tokens[op.outputs[0].ref()] = token
      self._terms[token] = list(terms.elements())
    elif _is_function_of_inputs(op):
      inputs = tuple(map(self.of, op.inputs))
      # Others say what runs before, and where; not what is computed.
      attributes = [a for a in attributes_of(op) if not a[0].startswith('_')]
      key = op.type, tuple(attributes), inputs
      for k, y in enumerate(op.outputs):
        self._tokens[y.ref()] = self._number((*key, k))

  def _computed(self, op: tf.Operation) -> list | None:
    """The results of an op of constants, if they are small."""
    if facts(op.type).is_constant:
      array = tf.make_ndarray(op.get_attr('value'))
      return [array] if array.dtype != object else None
    arrays = [self._arrays.get(x.ref()) for x in op.inputs]
    if not arrays or any(a is None for a in arrays):
      return None
    sizes = [y.shape.num_elements() for y in op.outputs]
    is_small = all(n is not None and n <= _MOST_ELEMENTS for n in sizes)
    if not is_small or not _is_function_of_inputs(op):
      return None
    try:
      return [np.asarray(result) for result in run_op(op, arrays)]
    except (CannotSay, OpFailed):
      return None


def _is_function_of_inputs(op: tf.Operation) -> bool:
  """Whether another op of its kind on equal inputs has equal results."""
  known = facts(op.type)
  if known.is_placeholder or not known.is_pure or function_names(op):
    return False
  # A gradient of its own is what Python made of it.
  return not op.op_def.is_stateful and not has_own_gradient(op)


class OfPotential:
  """The diagonal of a Jacobian as that of the Hessian of a potential.

  Attributes:
    terms: `Terms` of the Hessian.
    evaluation: `Evaluation` of the potential.
    factors: As in `Potential`.
  """

  max_order = 1

  def __init__(
    self, terms: Terms, evaluation: Evaluation, factors: tuple
  ) -> None:
    self.terms = terms
    self.evaluation = evaluation
    self.factors = factors
    self.how = f'{terms.how}, as a Hessian'
    self.may_leak = terms.may_leak
    self.num_passes = terms.num_passes
    self.note = f'`fn` is a gradient: its Jacobian is a Hessian. {terms.note}'

  def diagonal(self, call: Call) -> list:
    """As `Terms.diagonal`."""
    _, hessian = self.evaluation.hessian()
    diag = self.terms.diagonal(
      call._replace(
        evaluation=self.evaluation,
        derivative=hessian,
        xs=self.evaluation.xs,
        order=2,
      )
    )
    return [
      math.prod(factors, start=d) for d, factors in zip(diag, self.factors)
    ]


def as_hessian(reading: Reading) -> tuple[Reading, tuple] | None:
  """Reads a potential of a function, if it has one.

  Args:
    reading: `Reading` of a function whose Jacobian is asked for.

  Returns:
    hessian: `Reading` of the potential.
    factors: As in `Potential`.
    None if there is no potential, or nothing can be said about it.
  """
  rank, graph, retrace = reading.rank, reading.evaluation.graph, reading.retrace
  if graph.has_variables:
    return None

  def retraced(shapes):
    assert retrace is not None
    found = find_potential(graph := retrace(shapes), rank)
    if found is None:
      raise CannotSay('no gradient, with this number of samples')
    with graph.graph.as_default(), recorded_ops() as ops:
      xs = list(map(tf.identity, graph.xs))
      value = found.repeated(xs, rank)
    # Not the identities: see `evaluate`.
    return found.graph_of(xs, value, ops.operations[len(xs) :])

  try:
    found = find_potential(graph, rank)
    if found is None:
      return None
    evaluation = evaluate(
      lambda xs: found.repeated(xs, rank),
      lambda value, _: [value],
      reading.evaluation.xs,
      2,
    )
    evaluation.graph = found.graph_of(
      evaluation.xs, evaluation.ys[0], evaluation.graph.ops
    )
    more = None if retrace is None else functools.cache(retraced)
    analysis = analyze(evaluation.graph, rank, more, is_hessian=True)
  except (CannotSay, MissingGradientError, ValueError):
    return None
  if analysis is None:
    return None
  problem = HessianProblem(reading.problem.fn, reading.problem.xs)
  return Reading(problem, evaluation, more, analysis), found.factors
