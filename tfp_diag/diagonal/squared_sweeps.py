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
sweep has to start anew from a frontier. `c`, the derivative of third order, can
go along, but for most frontiers of one term:

    c(a) = phi'^3 c(v) + 3 phi' phi'' q(v) + phi''' adjoint(v)
    c(a_j) = sum_i A_ij^3 c(v_i)
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import basis, local, sweep
from tfp_diag.diagonal.hessian_terms import HessianTerms
from tfp_diag.diagonal.linear_map import Evaluation, LinearMap
from tfp_diag.diagonal.terms import Call
from tfp_diag.diagonal.third_order import passes_of
from tfp_diag.internal import batching
from tfp_diag.sparsity.evaluation import repeat_op
from tfp_diag.sparsity.flow import reaches_all
from tfp_diag.sparsity.frontiers import Frontier, Link, Term
from tfp_diag.sparsity.joint_frontiers import JointFrontier
from tfp_diag.sparsity.paths import kind_of_squares, op_of, tensors_at_hand
from tfp_diag.sparsity.registry import Squares, facts
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.unique_paths import Sweep, Sweeps
from tfp_diag.sparsity.value import Value

# The least number of single precision that is not flushed to zero.
_LEAST = 2.0**-126


@dataclasses.dataclass(frozen=True, eq=False)
class SquaredSweeps:
  """A Hessian whose diagonal takes a sweep for each class of coordinates.

  Attributes:
    found: `Sweeps` of the graph at hand; for third derivatives with such
      frontiers alone that `Sweeps.gives_third`.
    colors: int32 array, one per coordinate: the colors of those that are left
      over, and -1 for the others.
    evaluation: `Evaluation` to which the ops of `found` belong.
    matrix_passes: How many passes give the fixed matrices of `found`.
    rest: `HessianTerms` of the curved ops that the sweeps leave out, or None.
  """

  found: Sweeps
  colors: np.ndarray
  evaluation: Evaluation
  matrix_passes: int = 0
  rest: HessianTerms | None = None

  how = 'squared sweeps'

  @property
  def max_order(self) -> int:
    """As `Terms.max_order`."""
    return 3 if self.rest is None else self.rest.max_order

  @property
  def may_leak(self) -> bool:
    """As `Terms.may_leak`."""
    return self.rest is not None and self.rest.may_leak

  @property
  def num_sweeps(self) -> int:
    """How many reverse sweeps there are."""
    return len(self.found.sweeps)

  @property
  def num_passes(self) -> int:
    """As `Terms.num_passes`."""
    colors = sweep.num_colors(self.colors)
    rest = 0 if self.rest is None else self.rest.num_passes
    return self.num_sweeps + self.matrix_passes + colors + rest

  @property
  def note(self) -> str:
    """As `Terms.note`."""
    sweeps = f'{self.num_sweeps} sweep{"s" * (self.num_sweeps != 1)}'
    sentences = [f'{sweeps} with squared derivatives.']
    frontiers = [f for s in self.found.sweeps for f in s.frontiers]
    if names := [f.label for f in frontiers if not f.is_through_matrix]:
      sentences.append(
        f'Several paths lead from a coordinate to {_listed(names)}: they are '
        'added up to where they split, and squared from there.'
      )
    if names := [f.label for f in frontiers if f.is_through_matrix]:
      sentences.append(
        f'Several paths lead from a coordinate to {_listed(names)} through a '
        'fixed linear map, whose matrix is computed and squared '
        f'({self.matrix_passes} pass{"es" * (self.matrix_passes != 1)}).'
      )
    joints = [j for s in self.found.sweeps for j in s.joints]
    if joints:
      products = sum(joint.num_passes for joint in joints)
      sentences.append(
        f'What follows {_listed(joint.label for joint in joints)} is '
        f'differentiated as a whole: {products} product'
        f'{"s" * (products != 1)} with its Hessian.'
      )
    left = int(self.found.left_over.sum())
    if left:
      count = sweep.num_colors(self.colors)
      why = _listed([label for label, _ in self.found.reasons])
      sentences.append(
        f'{left} coordinate{"s" * (left != 1)} left over to {count} '
        f'pass{"es" * (count != 1)}: '
        + (f'many paths to {why}.' if why else 'a sweep would save nothing.')
      )
    if self.rest is not None:
      labels = _listed(step.label for step in self.found.rest)
      sentences.append(f'Many paths lead to {labels}. {self.rest.note}')
    return ' '.join(sentences)

  def diagonal(self, call: Call) -> list:
    """As `Terms.diagonal`."""
    xs, order = call.xs, call.order
    shapes = batching.event_shapes(xs, call.rank)
    walk = _Walk(call, self.evaluation, self.found)
    total = [tf.zeros_like(x) for x in xs] * (order - 1)
    for one in self.found.sweeps:
      masks = sweep.split(one.coordinates, shapes)
      found = walk.swept(one, [bool(mask.any()) for mask in masks], order)
      for k, (mask, derivatives) in enumerate(zip(masks, found)):
        for place, d in zip(range(k, len(total), len(xs)), derivatives):
          if d is not None and mask.any():
            d = tf.reshape(tf.cast(d, xs[k].dtype), tf.shape(xs[k]))
            # Not a product: what is not wanted may be infinite.
            total[place] = d if mask.all() else tf.where(mask, d, total[place])
    if self.rest is not None:
      rest = self.rest.diagonal(call._replace(evaluation=self.evaluation))
      total = local.add(total, rest)
    if self.found.left_over.any():
      rest = sweep.diagonal(
        passes_of(call.evaluation, call.derivative, order),
        sweep.Colors.of(self.colors, xs, call.rank),
        xs,
        'auto',
        call.chunk_size,
        call.evaluation.loop_type,
        num_diagonals=order - 1,
      )
      masks = sweep.split(self.found.left_over, shapes) * (order - 1)
      total = [tf.where(*each) for each in zip(masks, rest, total)]
    return [
      batching.with_shape(d, x.shape)
      for d, x in zip(total, itertools.cycle(xs))
    ]


class _Walk:
  """The ops of one call, from the value back to xs."""

  def __init__(self, call: Call, evaluation: Evaluation, found: Sweeps) -> None:
    self._call = call
    self._evaluation = evaluation
    self._found = found
    self._walked = found.walked
    (value,) = evaluation.ys
    frontiers = [f for one in found.sweeps for f in one.frontiers]
    terms = [*found.squares, *(f.term for f in frontiers)]
    self._curved = {(term.step, term.left) for term in found.squares}
    ops = list(dict.fromkeys(self._op(term.step) for term in terms))
    outputs = [op.outputs[0] for op in ops]
    adjoints = call.derivative.between([value], outputs).images(
      [tf.ones_like(value)]
    )
    self._adjoints = dict(zip(ops, adjoints))
    self._tensors = dict(zip(self._walked.inputs, call.xs))
    self._tensors.update(tensors_at_hand(self._walked))
    self._makers = {
      y: step for step in self._walked.tape.steps for y in step.outputs
    }
    self._matrices = {}
    self._ends = {}
    self._slopes_of = {}

  def swept(
    self, one: Sweep, wanted: Sequence[bool], order: int
  ) -> list[tuple]:
    """What the sweep brings to the parts, of which some are wanted.

    Args:
      one: `Sweep`.
      wanted: For each part whether it is.
      order: 2, or 3 for derivatives of second and third order.

    Returns:
      List of tuples of a Tensor or None, for each order.
    """
    starts = [v for v, w in zip(self._walked.inputs, wanted) if w]
    found = _Sums(order)
    for value, derivatives in self._from_frontiers(one.frontiers, order):
      found.add(value, derivatives)
    for joint in one.joints:
      found.add(joint.value, self._from_joint_frontier(joint, order))
    adjoints = {
      (term.step, term.left): self._adjoints[self._op(term.step)]
      for term in self._found.squares
      if term not in one.left_out
    }
    self._descend(starts, adjoints, found)
    return [
      found.of(v) if w else (None,) * (order - 1)
      for v, w in zip(self._walked.inputs, wanted)
    ]

  def _descend(
    self,
    starts: Sequence[Value],
    adjoints: dict,
    found: '_Sums',
    lowest: int = 2,
  ) -> None:
    """Goes through the function from its end, and adds to what is found.

    Args:
      starts: The `Value`s by which derivatives are asked for.
      adjoints: dict from curved ops, a step and the inputs that are its
        argument, to a Tensor or None.
      found: `_Sums`.
      lowest: The power of derivatives of ops for the first order in `found`.
    """
    reach = self._descendants(starts)
    for step in reversed(self._walked.tape.steps):
      if isinstance(step, Loop) or reach.isdisjoint(step.outputs):
        continue
      after = [found.of(y) for y in step.outputs]
      for value, kind, group in self._groups(step):
        if value not in reach:
          continue
        if kind == 'elementwise':
          adjoint = adjoints.get((step, group))
          brought = self._elementwise(step, group, adjoint, after[0], lowest)
          found.add(value, brought)
        else:
          for k in group:
            adjoint = adjoints.get((step, (k,)))
            if kind is Squares.INVERSE and k == 0:
              op = self._op(step)
              found.add(value, _by_matrix(op, adjoint, after[0], lowest))
            else:
              found.add(value, self._linear(step, kind, k, after, lowest))

  def _groups(self, step: Step) -> list[tuple]:
    """The arguments of an op: the value, its kind, and which inputs it is."""
    found = {}
    for k, value in enumerate(step.inputs):
      kind = kind_of_squares(step, k, self._walked)
      if value.depends and kind is not None:
        found.setdefault(value, (kind, []))[1].append(k)
    return [
      (value, kind, tuple(which)) for value, (kind, which) in found.items()
    ]

  def _op(self, step: Step) -> tf.Operation:
    op = op_of(step, self._walked)
    if op is None:
      raise LookupError(f'{step.label} is not in the graph of this call')
    return op

  def _weights(self, term: Term, order: int) -> list | None:
    """The derivatives of an op from the second on, times its adjoint.

    Args:
      term: `Term`; a square, if the order is 3.
      order: 2, or 3 for derivatives of second and third order.

    Returns:
      List of Tensors of the shape of the op, or of None; None without any.
    """
    found = self._all_weights(term, order)
    if found is None or term.step.cancelled is None:
      return found
    kept = tf.constant(~term.step.cancelled, tf.float64)
    return [None if d is None else d * kept for d in found]

  def _all_weights(self, term: Term, order: int) -> list | None:
    """As `_weights`, also where derivatives cancel."""
    op = self._op(term.step)
    adjoint = self._adjoints[op]
    if adjoint is None:
      return None
    if term.is_square:
      _, *higher = self._slopes(term.step, term.left, order)
      found = [
        None if d is None else local.wide(d) * local.wide(adjoint)
        for d in higher
      ]
      return None if all(d is None for d in found) else found
    groups = [term.left, term.right]
    if term.step.own_gradient is not None:
      # Nothing says that what the user wrote is symmetric.
      mixed = [
        local.wide(found[1]) * local.wide(adjoint)
        for found in (
          local.slopes_of_own_gradient(term.step, op, each)
          for each in (groups, groups[::-1])
        )
        if found[1] is not None
      ]
      return [tf.add_n(mixed)] if mixed else None
    arguments = [local.wide(_broadcast(op, group)) for group in groups]
    hessian = local.local_hessian(op, groups, arguments, [local.wide(adjoint)])
    (weight,) = hessian.apply([0], [tf.ones_like(arguments[0])], [1])
    return None if weight is None else [2 * weight]

  def _known_slopes(self, step: Step, group: tuple, order: int) -> list:
    """As `_slopes`, once for each graph: products are built in loops, too."""
    key = tf.compat.v1.get_default_graph(), step, group, order
    if key not in self._slopes_of:
      self._slopes_of[key] = self._slopes(step, group, order)
    return self._slopes_of[key]

  def _slopes(self, step: Step, group: tuple, order: int) -> list:
    """The derivatives of an elementwise op by an argument, of its own shape.

    Args:
      step: `Step` of the op.
      group: Tuple of the numbers of the inputs that the argument stands for.
      order: Python int, the highest order.

    Returns:
      List of a Tensor for each order from 1 on, or None if it vanishes; the
      first may be a number, or a Tensor that broadcasts.
    """
    op = self._op(step)
    factor = None if step.own_gradient else local.factor(op, group)
    if factor is not None:
      return [factor] + [None] * (order - 1)
    if step.own_gradient is not None:
      return local.slopes_of_own_gradient(step, op, [group] * order)
    argument = _broadcast(op, group)
    is_single = argument.dtype == tf.float32
    in_range = facts(step.op_type).orders_in_range if is_single else 1
    if order > in_range:
      # A second derivative can be too small for a number of single precision.
      argument = local.wide(argument)
    return local.slopes(op, group, argument, order)

  def _from_frontiers(
    self, frontiers: Sequence[Frontier], order: int
  ) -> Iterator[tuple]:
    """The derivatives of terms by the elements of their frontiers.

    Where the weights of several terms come to the same tensor, the rest of the
    way is gone once for their sum.

    Args:
      frontiers: Those of one sweep.
      order: 2, or 3 for derivatives of second and third order.

    Yields:
      Pairs of the `Value` that is the frontier, and a list of a Tensor or None
      for each order.
    """
    waiting = {}

    def wait(values, ends, shape, weights, links, cancelled=None):
      is_one = values[0] is values[1] and values[0].known_shape == shape
      if is_one and links[0].mapped is None:
        value, weights = self._moved(values[0], weights, links[0].value)
        if value is not values[0]:
          values, ends = [value] * 2, [self._tensors[value]] * 2
      self._ends.update(zip((end.ref() for end in ends), values))
      which = None if cancelled is None else cancelled.tobytes()
      key = *(end.ref() for end in ends), which, links
      if key in waiting:
        weights = local.add(waiting[key][1], weights)
      waiting[key] = cancelled, weights

    for frontier in frontiers:
      term, step = frontier.term, frontier.term.step
      weights = self._weights(term, order)
      if weights is not None:
        ends = [which[0] for which in (term.left, term.right)]
        wait(
          [step.inputs[k] for k in ends],
          [self._op(step).inputs[k] for k in ends],
          step.outputs[0].known_shape,
          weights,
          # What is the same for all terms.
          tuple(link._replace(work=0.0) for link in frontier.links),
          step.cancelled,
        )
    while waiting:
      key = max(waiting, key=lambda key: len(key[-1]))
      *ends, _, (link, *links) = key
      ends = [end.deref() for end in ends]
      cancelled, weights = waiting.pop(key)
      kept = 1.0 if cancelled is None else ~cancelled
      if link.mapped is not None:
        weights = self._through_matrix(link, ends[0], weights)
      elif order == 3:
        weights = self._linked_in_third(link, ends[0], kept, weights)
      else:
        weights = [self._linked(link, ends, kept, *weights)]
      if links:
        values, tensor = [link.value] * 2, self._tensors[link.value]
        shape = link.value.known_shape
        wait(values, [tensor] * 2, shape, weights, tuple(links))
      else:
        yield link.value, weights

  def _moved(
    self, value: Value, weights: list, frontier: Value
  ) -> tuple[Value, list]:
    """Weights of the powers of a value, as those of an earlier one.

    If each element depends on the frontier through that element of one argument
    of an elementwise op, then its derivatives by the frontier are those of the
    argument times the slope of the op.

    Args:
      value: `Value`.
      weights: List of Tensors of its shape, or of None, for each order.
      frontier: `Value`.

    Returns:
      The earliest value of this kind, and its weights.
    """
    reach = self._descendants([frontier])
    while value is not frontier:
      step = self._makers.get(value)
      if not isinstance(step, Step):
        break
      through = {v for v in step.inputs if v in reach}
      groups = [each for each in self._groups(step) if each[0] in through]
      if len(through) != 1 or len(groups) != 1:
        break
      ((argument, kind, group),) = groups
      is_same = argument.known_shape == value.known_shape
      is_same &= step.cancelled is None and all(
        reaches_all(arrow.flow)
        for arrow in step.structure.arrows
        if not set(group).isdisjoint(arrow.inputs)
      )
      if kind != 'elementwise' or not is_same or argument not in self._tensors:
        break
      moved = self._elementwise(step, group, None, tuple(weights))
      if all(weight is None for weight in moved):
        break
      value, weights = argument, moved
    return value, weights

  def _descendants(self, values: Sequence[Value]) -> set:
    """Some values, and what depends on them."""
    found = set(values)
    for step in self._walked.tape.steps:
      if any(v in found for v in step.inputs):
        found.update(y for y in step.outputs if y.depends)
    return found

  def _through_matrix(
    self, link: Link, result: tf.Tensor, weights: Sequence
  ) -> list:
    """The sums of `w_e A_ej^2`, of `w_e A_ej^3`, by the coordinates of a part.

    Args:
      link: `Link` whose value is the part.
      result: Tensor, A times the part, the same A for all samples.
      weights: List of Tensors of its shape, or of None, for each order.

    Returns:
      List of Tensors of the shape of the part, for each order.
    """
    part = self._tensors[link.value]
    key = result.ref(), part.ref()
    if key not in self._matrices:
      (columns,) = basis.columns(
        self._call.derivative, [result], [part], self._call.rank, [link.axis]
      )
      self._matrices[key] = local.wide(columns)
    columns = self._matrices[key]
    found = []
    for power, weight in enumerate(weights, start=2):
      if weight is not None:
        weight = basis.samples_first(weight, self._call.rank, link.axis)
        flat = tf.reshape(local.wide(weight), [-1, tf.shape(columns)[1]])
        flat = tf.matmul(flat, _times(columns, power), transpose_b=True)
        weight = tf.reshape(flat, tf.shape(part))
      found.append(weight)
    return found

  def _linked_in_third(
    self, link: Link, rows: tf.Tensor, kept: Any, weights: Sequence
  ) -> list:
    """Second and third derivatives of weighted powers of rows, by elements.

    With the derivatives a1 and a2 of a row by an element on which it depends,
    they are the sums over the rows of w2 a1^2, and of w3 a1^3 + 3 w2 a1 a2. By
    rows, each element leads to one row of each group: then sums are products of
    sums. By columns, each row depends on one element of each group: then
    derivatives by that element are those along the group.

    Args:
      link: `Link` of a `Frontier` that `Sweeps.gives_third`.
      rows: Tensor.
      kept: As for `_linked`.
      weights: Pair of Tensors of its shape, w2 and w3, or of None.

    Returns:
      Pair of Tensors of the shape of the link's value.
    """
    start = self._tensors[link.value]
    reverse = self._call.derivative.between([rows], [start])
    three = tf.constant(3.0, tf.float64)

    def by_start(linear, *factors):
      seed = _product(*factors)
      if seed is None:
        return None
      (result,) = linear.images([tf.cast(seed, rows.dtype)])
      return None if result is None else local.wide(result)

    def by_rows(mask):
      ones = tf.ones_like(rows) * mask * tf.cast(kept, rows.dtype)
      first, *weighted = (
        by_start(reverse, local.wide(ones), w)
        for w in (tf.ones([], tf.float64), *weights)
      )
      second = self._second_of_rows(rows, link.value, ones)
      return [
        _product(weighted[0], first),
        local.add(
          [_product(weighted[1], first, first)],
          [_product(weighted[0], second, three)],
        )[0],
      ]

    def by_columns(mask):
      def along():
        ones = tf.ones_like(start) * mask
        return reverse.transposed().images([ones])

      (tangent,), derivative = self._evaluation.derivative_of(along, [start])
      if tangent is None:
        return [None, None]
      tangent, (w2, w3) = local.wide(tangent), weights
      square = by_start(reverse, w2, tangent)
      cube = by_start(reverse, w3, tangent, tangent)
      bend = by_start(derivative, w2, tangent, three)
      found = [square, local.add([cube], [bend])[0]]
      return [None if d is None else d * local.wide(mask) for d in found]

    def one_pass(k):
      mask = _mask(link.shape, k, rows.dtype)
      return by_rows(mask) if link.is_by_rows else by_columns(mask)

    return self._added_up(one_pass, [start] * 2, link)

  def _second_of_rows(
    self, rows: tf.Tensor, start: Value, weights: tf.Tensor
  ) -> tf.Tensor | None:
    """Unmixed second derivatives of a weighted sum of rows: a sweep by itself.

    Args:
      rows: Tensor that the function computed on the way.
      start: `Value` by whose elements, which lead there on single paths.
      weights: Tensor shaped as `rows`.

    Returns:
      Tensor of the shape of `start`, or None.
    """
    squares = self._found.squares
    outputs = [self._op(term.step).outputs[0] for term in squares]
    adjoints = self._call.derivative.between([rows], outputs).images([weights])
    keys = [(term.step, term.left) for term in squares]
    found = _Sums(2)
    self._descend([start], dict(zip(keys, adjoints)), found)
    return found.of(start)[0]

  def _from_joint_frontier(self, joint: JointFrontier, order: int) -> list:
    """The unmixed derivatives of the value by the elements of a tensor.

    Elements of one group have no mixed second derivatives, hence no mixed third
    ones: those of their products with the Hessian are unmixed.

    Args:
      joint: `JointFrontier`.
      order: 2, or 3 for derivatives of second and third order.

    Returns:
      List of Tensors of the shape of the tensor, for each order.
    """
    tensor = self._tensors[joint.value]
    hessian = self._evaluation.hessian_between([tensor])
    # Of the size of the tensor: then products have room where adjoints have.
    size = tf.stop_gradient(tf.abs(tensor))
    is_size = (size > _LEAST) & tf.math.is_finite(size)
    size = tf.where(is_size, size, tf.ones_like(size))

    def one_pass(k):
      mask = _mask(joint.shape, k, tensor.dtype)

      def product():
        return hessian.images([size * mask])

      if order == 2:
        products = product()
      else:
        products, derivative = self._evaluation.derivative_of(product, [tensor])
        products += derivative.images([tf.ones_like(tensor) * mask])
      return [
        None if p is None else local.wide(p * mask) / local.wide(size)
        for p in products
      ]

    return self._added_up(one_pass, [tensor] * (order - 1), joint)

  def _linked(
    self, link: Link, ends: Sequence, kept: Any, weight: tf.Tensor
  ) -> tf.Tensor:
    """The sum of `w_i (C_a)_ie (C_b)_ie` over i, for each element e.

    Args:
      link: `Link`, whose value has the elements e.
      ends: Pair of Tensors, a and b.
      kept: Bool array of an event, which rows i are added up: elsewhere the
        weight is zero. Or 1.0 for all.
      weight: Tensor, of the shape to which they are broadcast.

    Returns:
      Tensor of the shape of the link's value.
    """
    start = self._tensors[link.value]
    a, b = ends

    def image(end, seed):
      return self._image(link.value, end, batching.sum_to(seed, end))

    def by_rows(mask):
      ones = tf.ones_like(weight) * tf.cast(kept, weight.dtype)
      return image(a, weight * mask), image(b, ones * mask)

    def by_columns(mask):
      forward = self._call.derivative.between([b], [start]).transposed()
      seed = tf.ones_like(start) * tf.cast(mask, start.dtype)
      (tangent,) = forward.images([seed])
      if tangent is None:
        return None, None
      return image(a, weight * local.wide(tangent)), mask

    def one_pass(k):
      mask = _mask(link.shape, k, tf.float64)
      left, right = (by_rows if link.is_by_rows else by_columns)(mask)
      if left is None or right is None:
        return [None]
      return [local.wide(left) * local.wide(right)]

    return self._added_up(one_pass, [start], link)[0]

  def _image(
    self, value: Value, end: tf.Tensor, seed: tf.Tensor
  ) -> tf.Tensor | None:
    """A vector-Jacobian product, op by op where all have such derivatives.

    Its square is subtracted from sums of squares that were computed so, and of
    which it may leave little: `w g^2 - (w g)^2` for a weight of one. In single
    precision TensorFlow's product differs by more than that.

    Args:
      value: `Value` by which derivatives are asked for.
      end: Tensor, the other end.
      seed: Tensor of its shape, in double precision.

    Returns:
      Tensor of the shape of `value`, or None if nothing leads there.
    """
    end_value = self._ends[end.ref()]
    if end.dtype != tf.float64 and self._has_slopes(value, end_value):
      found = _Sums(2)
      found.add(end_value, [seed])
      self._descend([value], {}, found, lowest=1)
      return found.of(value)[0]
    between = self._call.derivative.between([end], [self._tensors[value]])
    return between.images([tf.cast(seed, end.dtype)])[0]

  def _has_slopes(self, start: Value, end: Value) -> bool:
    """Whether derivatives of all ops between are known by themselves."""
    reach, needed = self._descendants([start]), {end}
    for step in reversed(self._walked.tape.steps):
      if needed.isdisjoint(step.outputs):
        continue
      through = {v for v in step.inputs if v in reach}
      needed |= through
      if isinstance(step, Loop) or op_of(step, self._walked) is None:
        return False
      # Not by value: one may be the matrix of a system and its right side.
      if any(
        value in through and kind_of_squares(step, k, self._walked) is None
        for k, value in enumerate(step.inputs)
      ):
        return False
    return True

  def _added_up(
    self, one_pass: Callable, likes: Sequence, link: Link | JointFrontier
  ) -> list:
    """The sums of what the passes of a link give, shaped as some Tensors."""
    return sweep.add_up(
      one_pass,
      [tf.zeros_like(local.wide(like)) for like in likes],
      link.num_passes,
      self._call.chunk_size,
      self._evaluation.loop_type,
    )

  def _elementwise(
    self,
    step: Step,
    group: tuple,
    adjoint: tf.Tensor | None,
    after: tuple,
    lowest: int = 2,
  ) -> list:
    """The derivatives by an argument of an op, from those by its result."""
    op = self._op(step)
    if adjoint is None and all(d is None for d in after):
      return []
    is_curved = (step, group) in self._curved
    # The same numbers for all that are compared.
    order = self._call.order if is_curved else 1
    first, *higher = self._known_slopes(step, group, order)
    results = []
    for power, d in enumerate(after, start=lowest):
      terms = []
      if d is not None and first is not None:
        terms.append(_passed_on(step, group, first, power, d))
      if adjoint is not None and higher[power - 2] is not None:
        terms.append(local.wide(higher[power - 2]) * local.wide(adjoint))
      q = after[0]
      if power == 3 and q is not None and is_curved:
        if first is not None and higher[0] is not None:
          terms.append(3 * local.wide(first) * local.wide(higher[0]) * q)
      if not terms:
        results.append(None)
        continue
      total = tf.add_n(terms)
      if step.cancelled is not None:
        # Not a choice: what is NaN there is seen.
        total *= tf.constant(~step.cancelled, tf.float64)
      results.append(batching.sum_to(total, op.inputs[group[0]]))
    return results

  def _linear(
    self,
    step: Step,
    kind: Squares,
    k: int,
    after: Sequence[tuple],
    lowest: int,
  ) -> list:
    """The derivatives by an input of a linear op, from those by its results."""
    op = self._op(step)
    results = []
    for power, cotangents in enumerate(zip(*after), start=lowest):
      outputs = [i for i, d in enumerate(cotangents) if d is not None]
      if not outputs:
        results.append(None)
        continue
      seeds = [cotangents[i] for i in outputs]
      if kind is Squares.INVERSE:
        results.append(_by_inverse(op, power, *seeds))
        continue
      linear = self._power_of(op, step.inputs[k], kind, k, power)
      if op.inputs[k].dtype == tf.resource:
        seeds = [
          tf.cast(s, op.outputs[i].dtype) for i, s in zip(outputs, seeds)
        ]
      (result,) = linear.apply(outputs, seeds, [0])
      if kind is Squares.ALONE and result is not None and power > 1:
        ones = [tf.ones_like(seed) for seed in seeds]
        (slope,) = linear.apply(outputs, ones, [0])
        result *= _times(slope, power - 1)
      results.append(result)
    return results

  def _power_of(
    self, op: tf.Operation, value: Value, kind: Squares, k: int, power: int
  ) -> LinearMap:
    """The op by one of its inputs, with powers of what it is multiplied by."""
    if op.inputs[k].dtype == tf.resource:
      # A variable that is read in parts.
      variable = self._tensors[value]
      return self._call.derivative.between(list(op.outputs), [variable])
    groups = [(k,)]
    arguments = [local.wide(op.inputs[k])]
    if kind is Squares.OPERANDS:
      others = [
        i
        for i, tensor in enumerate(op.inputs)
        if i != k and tensor.dtype.is_floating
      ]
      groups += [(i,) for i in others]
      arguments += [_times(local.wide(op.inputs[i]), power) for i in others]
    return local.local_jacobian(op, groups, arguments)


def _by_inverse(op: tf.Operation, power: int, seed: tf.Tensor) -> tf.Tensor:
  """A derivative by the right-hand side of a system that an op solves."""
  found = tf.matmul(
    _times(_inverse(op), power), local.wide(seed), transpose_a=True
  )
  return batching.sum_to(found, op.inputs[1])


def _by_matrix(
  op: tf.Operation, adjoint: tf.Tensor | None, after: tuple, lowest: int
) -> list:
  """The derivatives by each entry of the matrix of a system by itself.

  With the inverse D of the matrix A, and the solution z, those of z_k by A_ij
  are -D_ki z_j, 2 D_ki D_ji z_j and -6 D_ki D_ji^2 z_j.
  """
  if adjoint is None and all(d is None for d in after):
    return []
  turned = tf.linalg.matrix_transpose(_inverse(op))
  solution = local.wide(op.outputs[0])

  def along(power, d):
    """The sum over k of `D_ki^power z_j^power d_k`."""
    before = tf.matmul(_times(turned, power), local.wide(d))
    return tf.matmul(before, _times(solution, power), transpose_b=True)

  results = []
  for power, d in enumerate(after, start=lowest):
    terms = []
    if d is not None:
      terms.append((-1.0) ** power * along(power, d))
    if adjoint is not None:
      factor = 2.0 * turned if power == 2 else -6.0 * turned**2
      terms.append(factor * along(1, adjoint))
    if power == 3 and after[0] is not None:
      terms.append(-6.0 * turned * along(2, after[0]))
    results.append(_entries(op, tf.add_n(terms)) if terms else None)
  return results


def _entries(op: tf.Operation, found: tf.Tensor) -> tf.Tensor:
  """What belongs to the entries that an op reads, from those that it uses."""
  if op.get_attr('adjoint'):
    found = tf.linalg.matrix_transpose(found)
  if 'lower' in op.node_def.attr:
    ends = (-1, 0) if op.get_attr('lower') else (0, -1)
    found = tf.linalg.band_part(found, *ends)
  return batching.sum_to(found, op.inputs[0])


def _inverse(op: tf.Operation) -> tf.Tensor:
  """The inverse of the matrix of the system that an op solves."""
  matrix, right = op.inputs
  unit = tf.eye(tf.shape(right)[-2], dtype=tf.float64)
  matrix = local.wide(matrix)
  unit = tf.broadcast_to(
    unit, tf.concat([tf.shape(matrix)[:-2], tf.shape(unit)], 0)
  )
  return repeat_op(op, [matrix, unit])[0]


class _Sums:
  """Derivatives by values, of all orders from 2 on, as they add up."""

  def __init__(self, order: int) -> None:
    self._order = order
    self._pieces = {}

  def add(self, value: Value, derivatives: Sequence) -> None:
    """Adds to each order a Tensor or None."""
    pieces = self._pieces.setdefault(
      value, [[] for _ in range(self._order - 1)]
    )
    for piece, d in zip(pieces, derivatives):
      if d is not None:
        piece.append(local.wide(d))

  def of(self, value: Value) -> tuple:
    """The sum for each order, a Tensor or None."""
    pieces = self._pieces.get(value, [[]] * (self._order - 1))
    return tuple(tf.add_n(piece) if piece else None for piece in pieces)


def _mask(shape: tuple, number: int, dtype: tf.DType) -> tf.Tensor:
  """One for one element of a shape; ones if it is empty."""
  if not shape:
    return tf.ones([], dtype)
  mask = tf.one_hot(number, math.prod(shape), dtype=dtype)
  return tf.reshape(mask, shape)


def _product(*factors: tf.Tensor | None) -> tf.Tensor | None:
  """The product; None if a factor is, which stands for zero."""
  known = [x for x in factors if x is not None]
  if len(known) < len(factors):
    return None
  return math.prod(known[1:], start=known[0])


def _times(x: tf.Tensor, power: int) -> tf.Tensor:
  """A small power."""
  return math.prod([x] * (power - 1), start=x)


def _passed_on(
  step: Step, group: tuple, slope: Any, power: int, d: tf.Tensor
) -> tf.Tensor:
  """A derivative by the result of an op, times a power of its slope."""
  if isinstance(slope, float):
    return d if slope**power == 1.0 else slope**power * d
  slope = local.wide(slope)
  for _ in range(power):  # The power itself may be too large for a number.
    d = slope * d
  if set(group) <= set(facts(step.op_type).selects):
    # As TensorFlow's gradient: what is not selected may be infinite.
    d = tf.where(tf.equal(slope, 0), tf.zeros_like(d), d)
  return d


def _broadcast(op: tf.Operation, group: Sequence) -> tf.Tensor:
  return tf.broadcast_to(op.inputs[group[0]], tf.shape(op.outputs[0]))


def _listed(labels: Iterable) -> str:
  labels = list(dict.fromkeys(labels))
  shown = ', '.join(labels[:3])
  more = len(labels) - 3
  return f'{shown} and {more} more' if more > 0 else shown
