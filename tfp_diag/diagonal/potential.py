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
of it, coordinate by coordinate, such as a step of Langevin dynamics or the sum
of two scores, is differentiated by the chain rule. A norm of the score, or
another value with few elements, is held meanwhile, see `sparsity.cuts`.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.jacobian_terms import plus_products
from tfp_diag.diagonal.linear_map import (
  Evaluation,
  MissingGradientError,
  NeedsTapesError,
  evaluate,
  linear_map_of_graph,
  plain_gradient,
)
from tfp_diag.diagonal.reading import Reading
from tfp_diag.diagonal.terms import Call, Terms
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.budget import NoStructureError
from tfp_diag.sparsity.coloring import color_diagonal
from tfp_diag.sparsity.cuts import NO_CUTS, Cuts, find_few
from tfp_diag.sparsity.evaluation import array_of, run_op
from tfp_diag.sparsity.expansion import (
  Kept,
  gradient_to_repeat,
  is_function_of_inputs,
  needed_ops,
  ops_between,
  repeated,
  simplify,
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
from tfp_diag.sparsity.traits import Facts

# Ends the name of a way to a Jacobian that is one to a Hessian.
AS_A_HESSIAN = ', as a Hessian'
# So many values on the way are tried, while their ops are not more than so many
# times those of the function.
_MOST_TRIED = 8
_MOST_OPS = 4
# Constants of so many elements are computed, to see that they are equal; larger
# ones are equal to themselves.
_MOST_ELEMENTS = 10_000
_MOST_ZEROS = 1_000_000
# A sum that is multiplied by another one is one of so many products.
_MOST_TERMS = 16
# What is behind the gradients may take so many passes; else values are held.
_LEFT_TO_HOLD = 2


class Potential(NamedTuple):
  """A value of which a function computes the gradient.

  Attributes:
    value: Tensor of the function, one number for each sample.
    parts: tuple of the numbers of the parts on which it depends.
    gradient: tuple of the Tensors that are its derivatives by these; None where
      the function does not compute one, or there is none.
  """

  value: tf.Tensor
  parts: tuple
  gradient: tuple


class Potentials(NamedTuple):
  """A function, and the values of which it computes the gradients.

  Attributes:
    graph: `Graph` of it, without calls of functions and equal ops.
    found: tuple of `Potential`.
  """

  graph: Graph
  found: tuple

  @property
  def refs(self) -> list:
    """The gradients; a Tensor that is one by two parts is there once."""
    gradients = (g for one in self.found for g in one.gradient)
    return list(dict.fromkeys(g.ref() for g in gradients if g is not None))

  @property
  def given(self) -> list:
    """As `refs`, the Tensors."""
    return [ref.deref() for ref in self.refs]

  def behind(self, held: Sequence = ()) -> Graph:
    """The function of xs and of the gradients, as if these were given.

    Args:
      held: List of the places of other values that are given, too: pairs of the
        numbers of an op and of its result.
    """
    held = [self.graph.computing[k].outputs[number] for k, number in held]
    xs = (*self.graph.xs, *self.given, *held)
    return dataclasses.replace(self.graph, xs=xs)

  def few(self, facts: Facts) -> tuple[Cuts, list]:
    """What has few elements, and is on the way, but not before the gradients.

    Args:
      facts: `Facts` of the function.

    Returns:
      cuts: `Cuts` at these values.
      places: List of their places, as `behind` takes them.
    """
    ops = ops_between(self.behind(), self.graph.ys)
    cuts = find_few(facts, set(ops))
    places = {op: k for k, op in enumerate(self.graph.computing)}
    return cuts, [(places[s.op], s.number) for s in cuts.few]

  def before(self, k: int) -> Graph:
    """The function that computes value `k`, of its parts."""
    xs = tuple(self.graph.xs[i] for i in self.found[k].parts)
    return dataclasses.replace(self.graph, xs=xs, ys=(self.found[k].value,))


def find_potentials(graph: Graph, rank: int) -> Potentials:
  """Looks for potentials of a function among the values that it computes.

  Args:
    graph: `Graph`, to which ops are added.
    rank: Python int, the number of sample dimensions.

  Returns:
    `Potentials`.

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
  both, _ = simplify(both, kept=kept) or (both, None)
  graph = dataclasses.replace(both, ys=both.ys[:count])
  on_the_way = _Tokens(graph)
  room, found = _MOST_OPS * len(graph.ops), []
  for value in [*both.ys[count:], *kept.found][:_MOST_TRIED]:
    ops = ops_between(graph, [value])
    room -= len(ops)
    if room < 0 or not _may_be_differentiated(ops):
      continue
    read = {x.ref() for op in ops for x in op.inputs}
    parts = tuple(i for i, x in enumerate(graph.xs) if x.ref() in read)
    xs = tuple(graph.xs[i] for i in parts)
    before = dataclasses.replace(graph, xs=xs, ys=(value,))
    with contextlib.suppress(MissingGradientError):
      slopes, by_parts = plain_gradient(before)
      known = dict(zip(by_parts, on_the_way.equal(slopes)))
      gradient = tuple(known.get(k) for k in range(len(parts)))
      if not _are_new(gradient, found):
        continue
      graph, values = _of_each_sample(graph, value, shape[:rank])
      if values is None:
        continue
      found.append(Potential(values, parts, gradient))
      if not _reads_more(Potentials(graph, tuple(found))):
        break
  return Potentials(graph, tuple(found))


def _are_new(gradient: Sequence, found: Sequence) -> bool:
  """Whether there are Tensors, and none is of the gradient of another value."""
  new = {g.ref() for g in gradient if g is not None}
  known = {g.ref() for one in found for g in one.gradient if g is not None}
  return bool(new) and new.isdisjoint(known)


def _reads_more(potentials: Potentials) -> bool:
  """Whether the function reads its xs if the gradients are given."""
  graph = potentials.graph
  ops = needed_ops(graph.ops, graph.ys, potentials.given)
  read = {t.ref() for t in (*graph.ys, *(x for op in ops for x in op.inputs))}
  return any(x.ref() in read for x in graph.xs)


def _may_be_differentiated(ops: Sequence) -> bool:
  """Whether that adds ops that compute the gradient, and do nothing else.

  A gradient of a loop adds results to the loop, see `linear_map`; what a custom
  gradient does, or one of Python code, would run.
  """
  for op in ops:
    if function_names(op) or op.op_def.is_stateful:
      return False
    if has_own_gradient(op):
      try:
        gradient_to_repeat(op)
      except CannotSay:
        return False
  return True


def _of_each_sample(
  graph: Graph, value: tf.Tensor, shape: tf.TensorShape
) -> tuple[Graph, tf.Tensor | None]:
  """The values of the samples, with whose sum a value has the same gradient.

  What is computed from all samples has to be linear in values of single ones:
  these are multiplied by its derivatives.

  Args:
    graph: `Graph`, to which ops are added.
    value: Tensor of it.
    shape: `tf.TensorShape`, of the samples.

  Returns:
    graph: `Graph` with these ops.
    values: Tensor, one number for each sample; None if it is not linear.
  """
  rank = shape.rank
  needed, parts, is_sum = {value.ref()}, [], True
  for op in reversed(ops_between(graph, [value])):
    for y in op.outputs:
      if y.ref() in needed and y.shape.rank is not None and y.shape.rank < rank:
        is_sum &= facts(op.type).is_identity or facts(op.type).is_sum
        needed.update(x.ref() for x in op.inputs)
      elif y.ref() in needed and y.dtype.is_floating:
        parts.append(y)
  parts += [x for x in graph.xs if x.ref() in needed]
  is_of_samples = all(
    p.shape.rank is not None and p.shape[:rank].is_compatible_with(shape)
    for p in parts
  )
  if not is_of_samples or len({p.dtype for p in parts}) != 1:
    return graph, None

  def factors_and_values():
    factors, terms = [], parts
    if not is_sum:
      whole = linear_map_of_graph([value], parts)
      found = whole.between([value], parts, held=parts).of_ones()
      factors = [f for f in found if f is not None]
      terms = [f * p for f, p in zip(found, parts) if f is not None]
    sums = [tf.reduce_sum(t, list(range(rank, t.shape.rank))) for t in terms]
    return [*factors, tf.add_n(sums)]

  extended = graph.extended(factors_and_values)
  *factors, values = extended.ys
  reached = _dependent(extended)
  is_linear = not any(f.ref() in reached for f in factors)
  graph = dataclasses.replace(extended, ys=graph.ys)
  return graph, values if is_linear else None


def _dependent(graph: Graph) -> set:
  """References to the Tensors that depend on the values of xs."""
  reached = {x.ref() for x in graph.xs}
  for op in graph.ops:
    if any(x.ref() in reached for x in _read(op)):
      reached.update(y.ref() for y in op.outputs)
  return reached


def _candidates(
  ops: Sequence, xs: Sequence, shape: tf.TensorShape, rank: int
) -> list:
  """Values that some ops compute, those first that may rather be potentials.

  These are the last ones: of which nothing is computed, or no other value, as
  where a score is multiplied by its value.

  Args:
    ops: List of `tf.Operation`.
    xs: List of Tensors.
    shape: That of a part of the state.
    rank: Python int, the number of sample dimensions.

  Returns:
    List of Tensors that may have a value for each sample, or be a sum of these.
  """
  reached, found = {x.ref() for x in xs}, []
  read, read_by_values = set(), set()
  for op in ops:
    taken = {x.ref() for x in _read(op)} & reached
    results = [y for y in op.outputs if y.dtype.is_floating]
    if taken and results:
      reached.update(y.ref() for y in results)
      values = [y for y in results if _may_have_samples(y, shape, rank)]
      found += values
      read |= taken
      read_by_values |= taken if values else set()
  inner = [y for y in reversed(found) if y.ref() in read_by_values]
  last = [y for y in found if y.ref() not in read_by_values]
  return sorted(last, key=lambda y: y.ref() in read) + inner


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


class _Tokens:
  """Numbers for Tensors, equal where these are seen to be equal.

  They are computed by the same ops, from the same Tensors. The order in which
  Tensors are added up does not count, nor does what has to run before an op.
  """

  def __init__(self, graph: Graph) -> None:
    self._numbers, self._tokens = {}, {}
    # Of tokens: what they add up, and what they are if they are constants.
    self._terms, self._constants = {}, {}
    self._add(graph, 0)
    self._known, self._on_the_way = len(graph.ops), {}
    for op in ops_between(graph, graph.ys):
      for y in op.outputs:
        self._on_the_way.setdefault(self.of(y), y)

  def equal(self, other: Graph) -> list:
    """Tensors on the way to ys that are seen to be those of another function.

    Args:
      other: `Graph` that has the ops of this one first, and more.

    Returns:
      List with the first such Tensor, or None, for each of the `ys` of the
      other one.
    """
    self._add(other, self._known)
    return [self._on_the_way.get(self.of(y)) for y in other.ys]

  def of(self, tensor: tf.Tensor) -> int:
    ref = tensor.ref()
    if ref not in self._tokens:
      self._tokens[ref] = self._number(ref)
    return self._tokens[ref]

  def _number(self, key: Any) -> int:
    return self._numbers.setdefault(key, len(self._numbers))

  def _add(self, graph: Graph, start: int) -> None:
    # TensorFlow makes small ones `Const`, but they may change.
    captures = getattr(graph.graph, 'captures', ())
    captured = {inner.ref() for _, inner in captures}
    for op in graph.ops[start:]:
      if not any(y.ref() in captured for y in op.outputs):
        self._add_op(op)

  def _add_op(self, op: tf.Operation) -> None:
    known = facts(op.type)
    if has_named_gradient(op):
      return
    arrays = self._computed(op)
    if arrays is None and known.is_constant:
      return
    if arrays is not None:
      for y, array in zip(op.outputs, arrays):
        self._tokens[y.ref()] = self._constant(array)
    elif _changes_nothing(op):
      self._tokens[op.outputs[0].ref()] = self.of(op.inputs[0])
    elif _only_broadcasts(op):
      self._add_results(op, ('broadcast',), (1,))
    elif known.adds_up:
      terms = collections.Counter()
      for x in op.inputs:
        terms.update(self._terms_of(x))
      self._tokens[op.outputs[0].ref()] = self._sum(terms)
    elif is_function_of_inputs(op):
      # Others say what runs before, and where; not what is computed.
      attributes = [a for a in attributes_of(op) if not a[0].startswith('_')]
      self._add_results(op, (op.type, *attributes), known.shape_inputs)

  def _add_results(
    self, op: tf.Operation, key: tuple, shape_inputs: tuple
  ) -> None:
    """Tokens of what an op computes.

    What is linear in a sum is the sum of what it makes of the terms: what a
    function computes twice has two gradients, and what is merged has their sum.

    Args:
      op: `tf.Operation`.
      key: What says, beside the inputs, what it computes.
      shape_inputs: Numbers of the inputs that only give shapes: those of the
        results count, if they are known.
    """
    if all(y.shape.is_fully_defined() for y in op.outputs) and _is_numeric(op):
      key = (*key, *(tuple(y.shape) for y in op.outputs if shape_inputs))
    else:
      shape_inputs = ()
    known = facts(op.type)
    linear = {t[0] for t in known.linear_in if len(t) == 1}
    if known.only_copies:
      linear.update(known.moved(len(op.inputs)))
    whole = [{self.of(x): 1} for x in op.inputs]
    choices = [
      self._terms_of(x) if k in linear else whole[k]
      for k, x in enumerate(op.inputs)
    ]
    if math.prod(map(len, choices)) > _MOST_TERMS:
      choices = whole
    sums = [{} for _ in op.outputs]
    for chosen in itertools.product(*(c.items() for c in choices)):
      tokens, times = zip(*chosen) if chosen else ((), ())
      # Of a sum with a constant, that one's part is constant, too.
      arrays = self._run(op, [self._constants.get(token) for token in tokens])
      kept = tuple(t for k, t in enumerate(tokens) if k not in shape_inputs)
      for number, terms in enumerate(sums):
        if arrays is None:
          token = self._number((*key, number, kept))
        else:
          token = self._constant(arrays[number])
        terms[token] = terms.get(token, 0) + math.prod(times)
    for y, terms in zip(op.outputs, sums):
      self._tokens[y.ref()] = self._sum(terms)

  def _constant(self, array: np.ndarray) -> int:
    """The token of a constant: equal ones have equal elements."""
    token = self._number((array.dtype.name, array.shape, array.tobytes()))
    self._constants[token] = array
    return token

  def _sum(self, terms: Mapping) -> int:
    """The token of a sum of others, each as often as it is counted."""
    if list(terms.values()) == [1]:
      return next(iter(terms))
    token = self._number(frozenset(terms.items()))
    self._terms[token] = terms
    return token

  def _terms_of(self, tensor: tf.Tensor) -> Mapping:
    token = self.of(tensor)
    return self._terms.get(token, {token: 1})

  def _computed(self, op: tf.Operation) -> list | None:
    """The results of an op of constants, if they are small."""
    if not _is_small(op):
      return None
    if facts(op.type).is_constant:
      array = tf.make_ndarray(op.get_attr('value'))
      return [array] if array.dtype != object else None
    arrays = [self._constants.get(self.of(x)) for x in op.inputs]
    if not op.inputs or not is_function_of_inputs(op):
      return None
    if any(a is None for a in arrays):
      if _read(op):
        return None
      known = [tf.get_static_value(y) for y in op.outputs]  # Of shapes.
      if all(a is not None for a in known):
        return known
      # TensorFlow's own function knows one such op, not that for many Tensors.
      arrays = [
        _zeros(x) if a is None else a for x, a in zip(op.inputs, arrays)
      ]
    return self._run(op, arrays)

  def _run(self, op: tf.Operation, arrays: Sequence) -> list | None:
    """The results of an op, if its inputs are known, and these are small."""
    if not arrays or any(a is None for a in arrays) or not _is_small(op):
      return None
    try:
      return [array_of(t) for t in run_op(op, arrays)]
    except (CannotSay, OpFailed):
      return None


def _is_numeric(op: tf.Operation) -> bool:
  """Whether all results are arrays, rather than lists or handles."""
  return all(y.dtype.is_numpy_compatible for y in op.outputs)


def _is_small(op: tf.Operation) -> bool:
  """Whether all results are arrays of few elements, as far as is known."""
  sizes = [y.shape.num_elements() or 0 for y in op.outputs]
  return _is_numeric(op) and max(sizes, default=0) <= _MOST_ELEMENTS


def _zeros(x: tf.Tensor) -> np.ndarray | None:
  """Zeros that stand for a Tensor of which only the shape is read, or None."""
  size = x.shape.num_elements()
  if size is None or size > _MOST_ZEROS or not x.dtype.is_numpy_compatible:
    return None
  if x.dtype == tf.string:
    return None
  shape = [n or 0 for n in x.shape.as_list()]
  return np.zeros(shape, x.dtype.as_numpy_dtype)


def _changes_nothing(op: tf.Operation) -> bool:
  """Whether the result is the first input: gradients sum over no axes, say."""
  known = facts(op.type)
  if known.is_identity:
    return True
  if not (known.is_sum or (known.only_copies and known.axes is not None)):
    return False
  before, after = op.inputs[0].shape, op.outputs[0].shape
  return before.is_fully_defined() and before == after


def _only_broadcasts(op: tf.Operation) -> bool:
  """Whether the result is the first input, broadcast: gradients also tile."""
  known = facts(op.type)
  if not (known.only_copies and known.axes == 'aligned'):
    return False
  before, after = op.inputs[0].shape, op.outputs[0].shape
  if not (before.is_fully_defined() and after.is_fully_defined()):
    return False
  ends = zip(reversed(before), reversed(after))
  return before.rank <= after.rank and all(m in (1, n) for m, n in ends)


class Half(NamedTuple):
  """One of the two derivatives that a chain rule multiplies: a Hessian's.

  Attributes:
    potential: `Potential`, with its gradient as `behind` has it.
    terms: `Terms` of the Hessian.
    evaluation: `Evaluation` of the potential.
  """

  potential: Potential
  terms: Terms
  evaluation: Evaluation


class Behind(NamedTuple):
  """A function of xs and of gradients, as if these were given.

  Attributes:
    evaluation: `Evaluation` of it; it also takes what is held.
    colors: int32 array, one per coordinate, of what does not go through the
      gradients or through what is held; None if nothing does.
    used: List of Python ints, the numbers of the potentials that count; None if
      a result is not seen to depend on the gradients at its own place alone.
    cuts: `Cuts`: the values with few elements that are held meanwhile.
  """

  evaluation: Evaluation
  colors: np.ndarray | None
  used: list | None
  cuts: Cuts

  @property
  def num_passes(self) -> float:
    """How many passes it takes beside the Hessians."""
    if self.used is None:
      return math.inf
    own = 0 if self.colors is None else sweep.num_colors(self.colors)
    return own + 2 * self.cuts.num_rows


class OfPotentials:
  """The diagonal of what is computed from gradients, by those of Hessians.

  Each result depends on the entries of the gradients at its own place alone:
  the derivative by these, times the diagonals of the Hessians, is added to the
  derivatives while the gradients are held.

  Attributes:
    halves: List of `Half`.
    behind: `Behind`.
    whole: `Evaluation` of the function, to which the cuts belong.
  """

  max_order = 1

  def __init__(
    self,
    halves: Sequence[Half],
    behind: Behind,
    whole: Evaluation,
  ) -> None:
    self.halves = halves
    self.behind = behind
    self.whole = whole
    given = {id(g) for half in halves for g in half.potential.gradient}
    # What is multiplied by zero may be infinite.
    self.may_leak = not given.issuperset(map(id, behind.evaluation.ys)) or any(
      half.terms.may_leak for half in halves
    )

  @property
  def how(self) -> str:
    """As `Terms.how`."""
    return as_a_hessian(half.terms.how for half in self.halves)

  @property
  def num_passes(self) -> int:
    """As `Terms.num_passes`."""
    own = self.behind.num_passes
    return int(own) + sum(half.terms.num_passes for half in self.halves)

  @property
  def note(self) -> str:
    """As `Terms.note`."""
    number, few = len(self.halves), len(self.behind.cuts.few)
    what = 'a gradient, which has a Hessian'
    if number > 1:
      what = f'{number} gradients, which have Hessians'
    is_one = number == 1 and not self.behind.num_passes
    how = 'is' if is_one else 'is computed from'
    notes = dict.fromkeys(half.terms.note for half in self.halves)
    cut = f'It is cut at values on the way: {few} by rows and columns.'
    return ' '.join([f'`fn` {how} {what}.', *notes, *[cut] * bool(few)])

  def diagonal(self, call: Call) -> list:
    """As `Terms.diagonal`."""
    behind, colors, _, cuts = self.behind
    xs = behind.xs[: len(call.xs)]
    jacobian = behind.jacobian()
    diag = [tf.zeros_like(x) for x in xs]
    if colors is not None:
      diag = sweep.diagonal(
        jacobian.between(jacobian.targets, xs),
        sweep.Colors.of(colors, call.xs, call.rank),
        call.xs,
        'auto',
        call.chunk_size,
        behind.loop_type,
      )
    for potential, terms, evaluation in self.halves:
      _, hessian = evaluation.hessian()
      own = call._replace(
        evaluation=evaluation, derivative=hessian, xs=evaluation.xs, order=2
      )
      _, parts, gradient = potential
      for i, g, second in zip(parts, gradient, terms.diagonal(own)):
        if g is not None:
          # Of its own part alone: it may be the gradient by another one, too.
          (slope,) = jacobian.between([jacobian.targets[i]], [g]).of_ones()
          diag[i] = diag[i] if slope is None else diag[i] + slope * second
    xs = self.whole.xs
    held = behind.xs[len(behind.xs) - len(cuts.few) :]
    for few, copy, size in zip(cuts.few, held, cuts.rows):
      s = few.tensor(xs)
      rows = self.whole.jacobian().between([s], xs)
      # While the gradients are held.
      columns = jacobian.between(jacobian.targets, [copy])
      diag = plus_products(diag, s, rows, columns, size, call)
    return diag


def as_a_hessian(ways: Iterable[str]) -> str:
  """The name of a way to a Jacobian, from those to some Hessians."""
  return ' and '.join(dict.fromkeys(ways)) + AS_A_HESSIAN


class AsHessians(NamedTuple):
  """What is known of a function that computes gradients.

  Attributes:
    hessians: List of a `Reading` of each potential.
    potentials: List of each, as in `Half`.
    behind, whole: As in `OfPotentials`.
  """

  hessians: list
  potentials: list
  behind: Behind
  whole: Evaluation

  @property
  def share_behind(self) -> float:
    """A pass of what is behind the gradients, as a part of one of all."""
    behind, whole = (
      len(ops_between(each.graph, each.ys))
      for each in (self.behind.evaluation, self.whole)
    )
    return behind / whole

  def of(self, ways: Sequence[Terms]) -> OfPotentials:
    """The terms of the Jacobian, from those of the Hessians."""
    evaluations = [hessian.evaluation for hessian in self.hessians]
    halves = zip(self.potentials, ways, evaluations, strict=True)
    halves = [Half(*half) for half in halves]
    return OfPotentials(halves, self.behind, self.whole)


def as_hessians(reading: Reading) -> AsHessians | None:
  """Reads the potentials of a function, if it computes gradients.

  Args:
    reading: `Reading` of a function whose Jacobian is asked for.

  Returns:
    `AsHessians`; None if there is no potential, if it is not seen that each
    result depends on the gradients at its own place alone, or if nothing can be
    said about one of these functions.
  """
  if reading.evaluation.graph.has_variables:
    return None
  functions = _Parts(reading)
  try:
    potentials = functions.potentials
    if not potentials.found:
      return None
    behind = _behind(functions)
    if behind.num_passes > _LEFT_TO_HOLD:
      few = potentials.few(functions.facts)
      ways = [behind, *[_behind(functions, *few)] * bool(few[1])]
      behind = min(ways, key=lambda way: way.num_passes)
    if not behind.used:
      return None
    hessians = [functions.hessian(k) for k in behind.used]
  except _NOTHING_TO_SAY:
    return None
  if None in hessians:
    return None
  xs, count = behind.evaluation.xs, len(behind.evaluation.ys)
  new = dict(zip(potentials.refs, xs[count:]))
  found = [
    one._replace(
      gradient=tuple(None if g is None else new[g.ref()] for g in one.gradient)
    )
    for one in (potentials.found[k] for k in behind.used)
  ]
  whole = dataclasses.replace(reading.evaluation, graph=potentials.graph)
  return AsHessians(hessians, found, behind, whole)


def _behind(
  functions: '_Parts', cuts: Cuts = NO_CUTS, held: Sequence = ()
) -> Behind:
  """Reads what is behind the gradients.

  Args:
    functions: `_Parts`.
    cuts: `Cuts` at values that are held.
    held: List of their places, as `Potentials.behind` takes them.

  Returns:
    `Behind`.
  """
  potentials = functions.potentials
  take = functools.partial(Potentials.behind, held=held)
  evaluation, _, analysis = functions.alone(take, 1)
  if analysis is None:
    raise CannotSay('what is made of the gradients')
  matrix, count = analysis.pattern.matrix, len(evaluation.ys)
  by_xs = matrix[:, : matrix.shape[0]]
  colors = color_diagonal(by_xs).colors if by_xs.nnz else None
  sizes = [math.prod(shape) for shape in analysis.pattern.column_shapes]
  starts = np.cumsum([0, *sizes])
  columns = {ref: count + k for k, ref in enumerate(potentials.refs)}
  first, last = starts[[count, count + len(columns)]]
  used, missing = [], matrix[:, first:last].nnz
  for k, (_, parts, gradient) in enumerate(potentials.found):
    own = 0
    for i, g in zip(parts, gradient):
      if g is not None:
        at, to = (
          starts[p] + np.arange(sizes[i]) for p in (i, columns[g.ref()])
        )
        own += np.count_nonzero(matrix[at, to])
    if own:
      used.append(k)
    missing -= own
  return Behind(evaluation, colors, None if missing else used, cuts)


# As of an op that cannot be repeated, or of another structure for some samples.
_NOTHING_TO_SAY = (
  CannotSay,
  MissingGradientError,
  NeedsTapesError,
  NoStructureError,
  SampleMixingError,
)


class _Parts:
  """The functions before some gradients and behind them, each by itself."""

  def __init__(self, reading: Reading) -> None:
    self._reading = reading
    self._potentials: dict = {}

  @property
  def potentials(self) -> Potentials:
    """Those of the graph at hand."""
    return self._of(None)

  @property
  def facts(self) -> Facts:
    """What is known of the values of the whole function."""
    whole = self.potentials.graph
    more = self._reading.retrace and (lambda shapes: self._of(shapes).graph)
    analysis = analyze(whole, self._reading.rank, more)
    if analysis is None:
      raise CannotSay('the values of the function')
    return analysis.facts

  def hessian(self, k: int) -> Reading | None:
    """What is read of a potential, or None if nothing can be said."""
    before, more, analysis = self.alone(lambda found: found.before(k), 2)
    if analysis is None:
      return None
    problem = self._reading.problem
    problem = HessianProblem(problem.fn, problem.xs)
    found = Reading(problem, before, more, analysis)
    return found.simplified() or found

  def alone(self, part: Callable, order: int) -> tuple:
    """One of the functions.

    Args:
      part: Callable that takes `Potentials` and returns a `Graph`.
      order: Python int, how often it will be differentiated.

    Returns:
      evaluation: `Evaluation` of it.
      retrace: As in `Reading`.
      analysis: `Analysis`, or None if nothing can be said.
    """
    graph = part(self.potentials)
    evaluation = evaluate(
      lambda xs: repeated(graph, xs, graph.ys),
      lambda ys, _: ys,
      graph.xs,
      order,
    )
    evaluation.graph = _with_given(graph, evaluation.graph)
    rank, retrace = self._reading.rank, self._reading.retrace

    @functools.cache
    def retraced(shapes):
      known = {x.ref(): shape for x, shape in zip(graph.xs, shapes)}
      # The function may have parts that this one does not have.
      of_parts = (
        known.get(x.ref(), (*shapes[0][:rank], *x.shape[rank:]))
        for x in self.potentials.graph.xs
      )
      return _repeated(part(self._of([*of_parts])))

    more = None if retrace is None else lambda shapes: retraced(tuple(shapes))
    return evaluation, more, analyze(evaluation.graph, rank, more, order == 2)

  def _of(self, shapes: Sequence | None) -> Potentials:
    """Those of the graph at hand, or of parts of other shapes."""
    shapes = shapes and tuple(shapes)
    if shapes not in self._potentials:
      graph, rank = self._reading.evaluation.graph, self._reading.rank
      if shapes is None:
        with self._reading.evaluation.recorded():
          found = find_potentials(graph, rank)
      else:
        assert self._reading.retrace is not None
        found = find_potentials(self._reading.retrace(shapes), rank)
      if shapes is not None and len(found.found) != len(self.potentials.found):
        raise CannotSay('other potentials with another number of samples')
      self._potentials[shapes] = found
    return self._potentials[shapes]


def _repeated(graph: Graph) -> Graph:
  """The ops between xs and ys once more, as `evaluate` adds them."""
  with graph.graph.as_default():
    xs = tuple(map(tf.identity, graph.xs))
  again = dataclasses.replace(graph, xs=xs, ops=())
  again = again.extended(lambda: repeated(graph, xs, graph.ys))
  return _with_given(graph, again)


def _with_given(graph: Graph, again: Graph) -> Graph:
  """Ops that were repeated, after those from which they take constants."""
  needed = needed_ops(graph.ops, graph.ys, graph.xs)
  needed.difference_update(ops_between(graph, graph.ys))
  given = [op for op in graph.ops if op in needed]
  return dataclasses.replace(again, ops=(*given, *again.ops), reads=graph.reads)
