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
"""The diagonal of a Hessian by reverse sweeps with squared derivatives.

Beside the adjoint of each tensor goes `q`, the derivative of second order of
the value by each of its elements, where the other elements are held:

    v = phi(a), elementwise:  q(a) = phi'^2 q(v) + phi'' adjoint(v)
    v = A a, linear:          q(a_j) = sum_i A_ij^2 q(v_i)
    a is used twice:          the contributions add up

`sparsity.unique_paths` says for which coordinates that is exact, and where the
sweep has to start anew from a frontier.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import local, sweep
from tfp_diag.diagonal.linear_map import Evaluation
from tfp_diag.diagonal.terms import Call
from tfp_diag.sparsity.registry import Squares
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.unique_paths import (
  Frontier,
  Link,
  Sweep,
  Sweeps,
  Term,
  kind_of_squares,
  tensors_at_hand,
)
from tfp_diag.sparsity.value import Value

__all__ = ['SquaredSweeps']


@dataclasses.dataclass(frozen=True, eq=False)
class SquaredSweeps:
  """A Hessian whose diagonal takes a sweep for each class of coordinates.

  Attributes:
    found: `Sweeps` of the graph at hand.
    colors: int32 array, one per coordinate: the colors of those that are left
      over, and -1 for the others.
    evaluation: `Evaluation` to which the ops of `found` belong.
  """

  found: Sweeps
  colors: np.ndarray
  evaluation: Evaluation

  how = 'squared sweeps'

  @property
  def num_sweeps(self) -> int:
    """How many reverse sweeps there are."""
    return len(self.found.sweeps)

  @property
  def num_passes(self) -> int:
    """As `Terms.num_passes`."""
    return self.num_sweeps + sweep.num_colors(self.colors)

  @property
  def note(self) -> str:
    """As `Terms.note`."""
    sweeps = f'{self.num_sweeps} sweep{"s" * (self.num_sweeps != 1)}'
    sentences = [f'{sweeps} with squared derivatives.']
    frontiers = [f for s in self.found.sweeps for f in s.frontiers]
    if frontiers:
      names = dict.fromkeys(f.term.step.label for f in frontiers)
      sentences.append(
        'Paths that part and meet again are followed from where they part, for '
        f'{_listed(names)}.'
      )
    left = int(self.found.left_over.sum())
    if left:
      count = sweep.num_colors(self.colors)
      why = _listed([label for label, _ in self.found.reasons])
      sentences.append(
        f'{left} coordinate{"s" * (left != 1)} left over to {count} '
        f'pass{"es" * (count != 1)}: many paths to {why}.'
      )
    return ' '.join(sentences)

  def diagonal(self, call: Call) -> list:
    """As `Terms.diagonal`."""
    xs, rank = call.xs, call.rank
    walk = _Walk(call, self.evaluation, self.found)
    total = [tf.zeros_like(x) for x in xs]
    for one in self.found.sweeps:
      masks = _split(one.coordinates, xs, rank)
      diag = walk.swept(one, [bool(mask.any()) for mask in masks])
      for k, (mask, d) in enumerate(zip(masks, diag)):
        if d is not None and mask.any():
          d = tf.reshape(tf.cast(d, total[k].dtype), tf.shape(xs[k]))
          # Not a product: what is not wanted may be infinite.
          total[k] = d if mask.all() else tf.where(mask, d, total[k])
    if self.found.left_over.any():
      rest = sweep.diagonal(
        call.derivative,
        sweep.Colors.of(self.colors, xs, rank),
        xs,
        'auto',
        call.chunk_size,
      )
      masks = _split(self.found.left_over, xs, rank)
      total = [tf.where(*each) for each in zip(masks, rest, total)]
    return [tf.ensure_shape(d, x.shape) for d, x in zip(total, xs)]


class _Walk:
  """The ops of one call, from the value back to xs."""

  def __init__(self, call: Call, evaluation: Evaluation, found: Sweeps) -> None:
    self._call = call
    self._found = found
    self._walked = found.walked
    (self._value,) = evaluation.ys
    frontiers = [f for one in found.sweeps for f in one.frontiers]
    terms = [*found.squares, *(f.term for f in frontiers)]
    ops = list(dict.fromkeys(self._op(term.step) for term in terms))
    outputs = [op.outputs[0] for op in ops]
    adjoints = call.derivative.between([self._value], outputs).apply(
      [0], [tf.ones_like(self._value)], list(range(len(outputs)))
    )
    self._adjoints = dict(zip(ops, adjoints))
    self._tensors = dict(zip(self._walked.inputs, call.xs))
    self._tensors.update(tensors_at_hand(self._walked))

  def swept(self, one: Sweep, wanted: Sequence[bool]) -> list:
    """Contributions to the parts, of which some are wanted; None for none."""
    needed = {v for v, w in zip(self._walked.inputs, wanted) if w}
    steps = []
    for step in self._walked.tape.steps:
      if any(v in needed for v in step.inputs):
        needed.update(y for y in step.outputs if y.depends)
        steps.append(step)
    found = {}
    for frontier in one.frontiers:
      _add(found, frontier.value, self._from_frontier(frontier))
    squares = {}
    for term in self._found.squares:
      if term not in one.left_out:
        squares.setdefault(term.step, []).append(term)
    for step in reversed(steps):
      if isinstance(step, Loop):
        continue
      for term in squares.get(step, ()):
        value = step.inputs[term.left[0]]
        weight = self._weight(term)
        if value in needed and weight is not None:
          tensor = self._op(step).inputs[term.left[0]]
          _add(found, value, local.sum_to(weight, tensor))
      cotangents = [_sum(found, y) for y in step.outputs]
      if any(q is not None for q in cotangents):
        for value, q in self._through(step, cotangents, needed):
          _add(found, value, q)
    return [
      _sum(found, v) if w else None for v, w in zip(self._walked.inputs, wanted)
    ]

  def _op(self, step: Step) -> tf.Operation:
    op = self._walked.at_hand(step.op)
    if op is None:
      raise LookupError(f'{step.label} is not in the graph at hand')
    return op

  @functools.lru_cache(None)  # noqa: B019 (as long as this object)
  def _weight(self, term: Term) -> tf.Tensor | None:
    """The second derivative of an op, times its adjoint, of its own shape."""
    op = self._op(term.step)
    adjoint = self._adjoints[op]
    if adjoint is None:
      return None
    groups = list(dict.fromkeys([term.left, term.right]))
    arguments = [_broadcast(op, group) for group in groups]
    hessian = local.local_hessian(op, groups, arguments, [adjoint])
    (weight,) = hessian.apply(
      [0], [tf.ones_like(arguments[0])], [len(groups) - 1]
    )
    return weight

  def _from_frontier(self, frontier: Frontier) -> tf.Tensor | None:
    """The second derivatives of a term by the elements of the frontier."""
    term = frontier.term
    op = self._op(term.step)
    weight = self._weight(term)
    if weight is None:
      return None
    if not term.is_square:
      weight *= 2
    ends = [op.inputs[which[0]] for which in (term.left, term.right)]
    for link in frontier.links:
      weight = self._linked(link, ends, weight)
      ends = [self._tensors[link.value]] * 2
    return weight

  def _linked(self, link: Link, ends: Sequence, weight: tf.Tensor) -> tf.Tensor:
    """The sum of `w_i (C_a)_ie (C_b)_ie` over i, for each element e.

    Args:
      link: `Link`, whose value has the elements e.
      ends: Pair of Tensors, a and b.
      weight: Tensor, of the shape to which they are broadcast.

    Returns:
      Tensor of the shape of the link's value.
    """
    start = self._tensors[link.value]
    a, b = ends
    from_a, from_b = (
      self._call.derivative.between([end], [start]) for end in ends
    )

    def by_rows(mask):
      left = from_a.apply([0], [local.sum_to(weight * mask, a)], [0])
      ones = tf.ones_like(weight)
      right = from_b.apply([0], [local.sum_to(ones * mask, b)], [0])
      return left[0], right[0]

    def by_columns(mask):
      forward = from_b.transposed()
      (tangent,) = forward.apply([0], [tf.ones_like(start) * mask], [0])
      if tangent is None:
        return None, None
      seed = local.sum_to(weight * tangent, a)
      return from_a.apply([0], [seed], [0])[0], mask

    def one_pass(k):
      mask = tf.ones([], weight.dtype)
      if link.shape:
        mask = tf.one_hot(k, link.num_passes, dtype=weight.dtype)
        mask = tf.reshape(mask, link.shape)
      left, right = (by_rows if link.is_by_rows else by_columns)(mask)
      return [None if left is None or right is None else left * right]

    return sweep.add_up(
      one_pass, [tf.zeros_like(start)], link.num_passes, self._call.chunk_size
    )[0]

  def _through(self, step: Step, cotangents: list, needed: set) -> list:
    """What the squared derivatives of an op make of `q` of its outputs."""
    inputs = {}
    for k, value in enumerate(step.inputs):
      kind = kind_of_squares(step, k, self._walked)
      if value in needed and value.depends and kind is not None:
        inputs.setdefault(value, (kind, []))[1].append(k)
    result = []
    for value, (kind, which) in inputs.items():
      if kind == 'elementwise':
        result.append((value, self._elementwise(step, which, cotangents[0])))
        continue
      result += [
        (value, self._linear(step, kind, k, cotangents)) for k in which
      ]
    return [(value, q) for value, q in result if q is not None]

  def _elementwise(
    self, step: Step, which: Sequence, q: tf.Tensor
  ) -> tf.Tensor | None:
    op = self._op(step)
    group = tuple(which)
    argument = _broadcast(op, group)
    (slope,) = local.local_jacobian(op, [group], [argument]).apply(
      [0], [tf.ones_like(op.outputs[0])], [0]
    )
    if slope is None:
      return None
    squared = slope * (slope * tf.cast(q, slope.dtype))
    return local.sum_to(squared, op.inputs[group[0]])

  def _linear(
    self, step: Step, kind: Squares, k: int, cotangents: list
  ) -> tf.Tensor | None:
    op = self._op(step)
    outputs = [i for i, q in enumerate(cotangents) if q is not None]
    seeds = [cotangents[i] for i in outputs]
    if op.inputs[k].dtype == tf.resource:
      # A variable that is read in parts.
      variable = self._tensors[step.inputs[k]]
      linear = self._call.derivative.between(list(op.outputs), [variable])
      return linear.apply(outputs, seeds, [0])[0]
    groups = [(k,)]
    arguments = [op.inputs[k]]
    if kind is Squares.OPERANDS:
      others = [
        (i,)
        for i, tensor in enumerate(op.inputs)
        if i != k and tensor.dtype.is_floating
      ]
      groups += others
      arguments += [tf.square(op.inputs[i]) for (i,) in others]
    linear = local.local_jacobian(op, groups, arguments)
    (result,) = linear.apply(outputs, seeds, [0])
    if kind is Squares.ALONE and result is not None:
      ones = [tf.ones_like(op.outputs[i]) for i in outputs]
      result *= linear.apply(outputs, ones, [0])[0]
    return result


def _broadcast(op: tf.Operation, group: Sequence) -> tf.Tensor:
  return tf.broadcast_to(op.inputs[group[0]], tf.shape(op.outputs[0]))


def _add(found: dict, value: Value, q: Any) -> None:
  if q is not None:
    found.setdefault(value, []).append(q)


def _sum(found: dict, value: Value) -> tf.Tensor | None:
  pieces = found.get(value)
  if not pieces:
    return None
  return pieces[0] if len(pieces) == 1 else tf.add_n(pieces)


def _split(mask: np.ndarray, xs: Sequence, rank: int) -> list:
  """A bool array over coordinates as one for the event of each part."""
  pieces, start = [], 0
  for x in xs:
    shape = x.shape[rank:]
    size = shape.num_elements()
    pieces.append(mask[start : start + size].reshape(shape))
    start += size
  return pieces


def _listed(labels: Iterable) -> str:
  labels = list(dict.fromkeys(labels))
  shown = ', '.join(labels[:3])
  more = len(labels) - 3
  return f'{shown} and {more} more' if more > 0 else shown
