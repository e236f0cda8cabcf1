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
"""A function that computes the gradient of another one: of its potential.

A score is written as `tape.gradient(log_prob(x), x)`. Its Jacobian is a
Hessian, whose diagonal may cost less than that of any other Jacobian: by sweeps
with squared derivatives, or op by op. Whether a Tensor is a gradient is seen
from the graph: where the gradient of a value on the way is built once more, its
ops are the ops that the function has made, one by one. What the function makes
of it, coordinate by coordinate, such as a step of Langevin dynamics, is
differentiated by the chain rule.
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.linear_map import (
  Evaluation,
  MissingGradientError,
  NeedsTapesError,
  evaluate,
  plain_gradient,
  recorded_ops,
)
from tfp_diag.diagonal.reading import Reading
from tfp_diag.diagonal.terms import Call, Terms
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.budget import NoStructureError
from tfp_diag.sparsity.coloring import color_diagonal
from tfp_diag.sparsity.evaluation import array_of, run_op
from tfp_diag.sparsity.expansion import (
  Kept,
  gradient_to_repeat,
  inlined,
  is_function_of_inputs,
  needed_ops,
  ops_between,
  repeated,
)
from tfp_diag.sparsity.graph import (
  Graph,
  attributes_of,
  function_names,
  has_named_gradient,
  has_own_gradient,
)
from tfp_diag.sparsity.registry import CannotSay, OpFailed, facts
from tfp_diag.sparsity.samples import SampleMixingError

# Ends the name of a way to a Jacobian that is one to a Hessian.
AS_A_HESSIAN = ', as a Hessian'
# So many values on the way are tried: the first that nothing is computed from.
_MOST_TRIED = 4
# Constants of so many elements are computed, to see that they are equal; larger
# ones are equal to themselves.
_MOST_ELEMENTS = 10_000


class Potential(NamedTuple):
  """A value of which a function computes the gradient.

  Attributes:
    graph: `Graph` of the function, with calls written out.
    value: Tensor of it, one number for each sample.
    gradient: tuple of the Tensors that are its derivatives by the parts.
  """

  graph: Graph
  value: tf.Tensor
  gradient: tuple

  @property
  def behind(self) -> Graph:
    """The function of xs and of the gradient, as if that were given."""
    xs = (*self.graph.xs, *self.gradient)
    return dataclasses.replace(self.graph, xs=xs)

  @property
  def before(self) -> Graph:
    """The function that computes the value."""
    return dataclasses.replace(self.graph, ys=(self.value,))


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
  shape = graph.xs[0].shape
  candidates = _candidates(graph.ops, graph.xs, shape, rank)
  kept = Kept(
    lambda body: _candidates(body.get_operations(), body.inputs, shape, rank)
  )
  count = len(graph.ys)
  both = dataclasses.replace(graph, ys=(*graph.ys, *candidates))
  both = inlined(both, kept) or both
  own = dataclasses.replace(both, ys=both.ys[:count])
  for value in [*both.ys[count:], *kept.found][:_MOST_TRIED]:
    values = _of_samples(value, shape[:rank])
    before = dataclasses.replace(both, ys=(value,))
    if values is None or not _may_be_differentiated(before):
      continue
    with contextlib.suppress(MissingGradientError):
      gradient = _equals(own, plain_gradient(before))
      if None not in gradient:
        return _summed(own, values, tuple(gradient), rank)
  return None


def _may_be_differentiated(graph: Graph) -> bool:
  """Whether that adds ops that compute the gradient, and do nothing else.

  A gradient of a loop adds results to the loop, see `linear_map`; what a custom
  gradient does, or one of Python code, would run.
  """
  for op in ops_between(graph, graph.ys):
    if function_names(op) or op.op_def.is_stateful:
      return False
    if has_own_gradient(op):
      try:
        gradient_to_repeat(op)
      except CannotSay:
        return False
  return True


def _summed(
  graph: Graph, values: tf.Tensor, gradient: tuple, rank: int
) -> Potential:
  """The potential, of the values whose sum it is."""
  axes = list(range(rank, values.shape.rank))
  with graph.graph.as_default(), recorded_ops() as ops:
    value = tf.reduce_sum(values, axes) if axes else values
  graph = dataclasses.replace(graph, ops=(*graph.ops, *ops.operations))
  return Potential(graph, value, gradient)


def _candidates(
  ops: Sequence, xs: Sequence, shape: tf.TensorShape, rank: int
) -> list:
  """Values that some ops compute, and from which they compute no others.

  Args:
    ops: List of `tf.Operation`.
    xs: List of Tensors.
    shape: That of a part of the state.
    rank: Python int, the number of sample dimensions.

  Returns:
    List of Tensors that may have a value for each sample, or be a sum of these.
  """
  reached, used, found = {x.ref() for x in xs}, set(), []
  for op in ops:
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


def _may_have_samples(y: tf.Tensor, shape: tf.TensorShape, rank: int) -> bool:
  """Whether it may have a value for each sample, or be a sum over samples."""
  k = y.shape.rank
  if k is None or not (k == 0 or rank <= k <= max(rank, shape.rank - 1)):
    return False
  return y.shape.is_compatible_with(shape[:k])


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


def _equals(graph: Graph, other: Graph) -> list:
  """Tensors of a function that are seen to be equal to the `ys` of another one.

  They are computed by the same ops, from the same Tensors. The order in which
  Tensors are added up does not count, nor does what has to run before an op.

  Args:
    graph: `Graph`.
    other: `Graph` that has its ops, and more.

  Returns:
    List with a Tensor, the first on the way to the `ys` of `graph`, or None for
    each.
  """
  tokens, found = _Tokens(other), {}
  for op in ops_between(graph, graph.ys):
    for y in op.outputs:
      found.setdefault(tokens.of(y), y)
  return [found.get(tokens.of(y)) for y in other.ys]


class _Tokens:
  """Numbers for Tensors, equal where these are seen to be equal."""

  def __init__(self, graph: Graph) -> None:
    self._numbers, self._tokens, self._arrays = {}, {}, {}
    self._terms = {}
    # TensorFlow makes small ones `Const`, but they may change.
    captures = getattr(graph.graph, 'captures', ())
    captured = {inner.ref() for _, inner in captures}
    for op in graph.ops:
      if not any(y.ref() in captured for y in op.outputs):
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
    if has_named_gradient(op):
      return
    arrays = self._computed(op)
    if arrays is None and known.is_constant:
      return
    if arrays is not None:
      for y, array in zip(op.outputs, arrays):
        self._arrays[y.ref()] = array
        content = array.dtype.name, array.shape, array.tobytes()
        self._tokens[y.ref()] = self._number(content)
    elif _changes_nothing(op):
      self._tokens[op.outputs[0].ref()] = self.of(op.inputs[0])
    elif known.adds_up:
      terms = collections.Counter()
      for x in op.inputs:
        terms.update(self._terms.get(self.of(x), {self.of(x): 1}))
      token = self._number(frozenset(terms.items()))
      self._tokens[op.outputs[0].ref()] = token
      self._terms[token] = terms
    elif is_function_of_inputs(op):
      inputs = tuple(map(self.of, op.inputs))
      # Others say what runs before, and where; not what is computed.
      attributes = [a for a in attributes_of(op) if not a[0].startswith('_')]
      key = op.type, tuple(attributes), inputs
      for k, y in enumerate(op.outputs):
        self._tokens[y.ref()] = self._number((*key, k))

  def _computed(self, op: tf.Operation) -> list | None:
    """The results of an op of constants, if they are small."""
    sizes = [y.shape.num_elements() or 0 for y in op.outputs]
    is_array = all(y.dtype.is_numpy_compatible for y in op.outputs)
    if max(sizes, default=0) > _MOST_ELEMENTS or not is_array:
      return None
    if facts(op.type).is_constant:
      array = tf.make_ndarray(op.get_attr('value'))
      return [array] if array.dtype != object else None
    arrays = [self._arrays.get(x.ref()) for x in op.inputs]
    if not op.inputs or not is_function_of_inputs(op):
      return None
    if any(a is None for a in arrays):
      if _read(op):
        return None
      arrays = [tf.get_static_value(y) for y in op.outputs]  # Of shapes.
      return None if any(a is None for a in arrays) else arrays
    try:
      return [array_of(t) for t in run_op(op, arrays)]
    except (CannotSay, OpFailed):
      return None


def _changes_nothing(op: tf.Operation) -> bool:
  """Whether the result is the first input: gradients sum over no axes, say."""
  known = facts(op.type)
  if known.is_identity:
    return True
  if not (known.is_sum or (known.only_copies and known.axes is not None)):
    return False
  before, after = op.inputs[0].shape, op.outputs[0].shape
  return before.is_fully_defined() and before == after


class OfPotential:
  """The diagonal of what is computed from a gradient, by that of a Hessian.

  Each result depends on the entry of the gradient at its own place alone: the
  derivative by that, times the diagonal of the Hessian, is added to the
  derivatives while the gradient is held.

  Attributes:
    terms: `Terms` of the Hessian.
    evaluation: `Evaluation` of the potential.
    behind: `Evaluation` of the function of xs and of the gradient.
    colors: int32 array, one per coordinate, of what does not go through the
      gradient; None if nothing does.
  """

  max_order = 1

  def __init__(
    self,
    terms: Terms,
    evaluation: Evaluation,
    behind: Evaluation,
    colors: np.ndarray | None,
  ) -> None:
    self.terms = terms
    self.evaluation = evaluation
    self.behind = behind
    self.colors = colors
    self.how = f'{terms.how}{AS_A_HESSIAN}'
    # What is multiplied by zero may be infinite.
    given = behind.xs[len(behind.ys) :]
    is_alone = all(y is g for y, g in zip(behind.ys, given))
    self.may_leak = terms.may_leak or not is_alone

  @property
  def num_passes(self) -> int:
    """As `Terms.num_passes`."""
    own = 0 if self.colors is None else sweep.num_colors(self.colors)
    return self.terms.num_passes + own

  @property
  def note(self) -> str:
    """As `Terms.note`."""
    what = 'is' if self.colors is None else 'is computed from'
    return f'`fn` {what} a gradient, which has a Hessian. {self.terms.note}'

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
    count = len(diag)
    xs, gradient = self.behind.xs[:count], self.behind.xs[count:]
    jacobian = self.behind.jacobian()
    by_gradient = jacobian.between(jacobian.targets, gradient)
    diag = [
      tf.zeros_like(d) if slope is None else slope * d
      for slope, d in zip(by_gradient.of_ones(), diag)
    ]
    if self.colors is None:
      return diag
    rest = sweep.diagonal(
      jacobian.between(jacobian.targets, xs),
      sweep.Colors.of(self.colors, call.xs, call.rank),
      call.xs,
      'auto',
      call.chunk_size,
      self.behind.loop_type,
    )
    return [d + r for d, r in zip(diag, rest)]


class AsHessian(NamedTuple):
  """What is known of a function that computes a gradient.

  Attributes:
    hessian: `Reading` of the potential.
    behind, colors: As in `OfPotential`.
  """

  hessian: Reading
  behind: Evaluation
  colors: np.ndarray | None

  def of(self, terms: Terms, evaluation: Evaluation) -> OfPotential:
    """The terms of the Jacobian, from those of the Hessian."""
    return OfPotential(terms, evaluation, self.behind, self.colors)


def as_hessian(reading: Reading) -> AsHessian | None:
  """Reads a potential of a function, if it computes the gradient of one.

  Args:
    reading: `Reading` of a function whose Jacobian is asked for.

  Returns:
    `AsHessian`; None if there is no potential, if it is not seen that each
    result depends on the gradient at its own place alone, or if nothing can be
    said about one of both.
  """
  if reading.evaluation.graph.has_variables:
    return None
  parts = _Parts(reading)
  try:
    before, more, analysis = parts.alone(lambda found: found.before, 2)
    behind, _, rest = parts.alone(lambda found: found.behind, 1)
    if analysis is None or rest is None:
      return None
    problem = HessianProblem(reading.problem.fn, reading.problem.xs)
    hessian = Reading(problem, before, more, analysis)
    hessian = hessian.simplified() or hessian
    matrix = rest.pattern.matrix
  except _NOTHING_TO_SAY:
    return None
  n = matrix.shape[0]
  by_xs, by_gradient = matrix[:, :n], matrix[:, n:].tocoo()
  if np.any(by_gradient.row != by_gradient.col):
    return None
  colors = color_diagonal(by_xs).colors if by_xs.nnz else None
  return AsHessian(hessian, behind, colors)


# As of an op that cannot be repeated, or of another structure for some samples.
_NOTHING_TO_SAY = (
  CannotSay,
  MissingGradientError,
  NeedsTapesError,
  NoStructureError,
  SampleMixingError,
)


class _Parts:
  """The functions before a gradient and behind it, each by itself."""

  def __init__(self, reading: Reading) -> None:
    self._reading = reading
    self._potentials: dict = {}

  def alone(self, part: Callable, order: int) -> tuple:
    """One of them.

    Args:
      part: Callable that takes a `Potential` and returns a `Graph`.
      order: Python int, how often it will be differentiated.

    Returns:
      evaluation: `Evaluation` of it.
      retrace: As in `Reading`.
      analysis: `Analysis`, or None if nothing can be said.
    """
    graph = part(self._potential(None))
    evaluation = evaluate(
      lambda xs: repeated(graph, xs, graph.ys),
      lambda ys, _: ys,
      graph.xs,
      order,
    )
    evaluation.graph = _with_given(graph, evaluation.graph)
    count, retrace = len(self._reading.evaluation.xs), self._reading.retrace

    @functools.cache
    def retraced(shapes):
      return _repeated(part(self._potential(shapes[:count])))

    more = None if retrace is None else lambda shapes: retraced(tuple(shapes))
    rank = self._reading.rank
    return evaluation, more, analyze(evaluation.graph, rank, more, order == 2)

  def _potential(self, shapes: tuple | None) -> Potential:
    """That of the graph at hand, or of parts of other shapes."""
    if shapes not in self._potentials:
      graph = self._reading.evaluation.graph
      if shapes is not None:
        assert self._reading.retrace is not None
        graph = self._reading.retrace(shapes)
      found = find_potential(graph, self._reading.rank)
      if found is None:
        raise CannotSay('no gradient of a value')
      self._potentials[shapes] = found
    return self._potentials[shapes]


def _repeated(graph: Graph) -> Graph:
  """The ops between xs and ys once more, as `evaluate` adds them."""
  with graph.graph.as_default():
    xs = list(map(tf.identity, graph.xs))
    with recorded_ops() as ops:
      ys = repeated(graph, xs, graph.ys)
  again = dataclasses.replace(
    graph, xs=tuple(xs), ys=tuple(ys), ops=ops.operations
  )
  return _with_given(graph, again)


def _with_given(graph: Graph, again: Graph) -> Graph:
  """Ops that were repeated, after those from which they take constants."""
  needed = needed_ops(graph.ops, graph.ys, graph.xs)
  needed.difference_update(ops_between(graph, graph.ys))
  given = [op for op in graph.ops if op in needed]
  return dataclasses.replace(again, ops=(*given, *again.ops), reads=graph.reads)
