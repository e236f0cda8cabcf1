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
"""The diagonal of a Hessian, op by op where that is cheaper than passes."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import basis, local, sweep
from tfp_diag.diagonal.linear_map import LinearMap
from tfp_diag.diagonal.terms import Call
from tfp_diag.internal import batching
from tfp_diag.sparsity.curvature import CurvedOps
from tfp_diag.sparsity.evaluation import repeat_op
from tfp_diag.sparsity.registry import elementwise_pairs, facts


@dataclasses.dataclass(frozen=True, eq=False)
class HessianTerms:
  """A Hessian as the sum of what is cheap to have and of what has few colors.

  See `sparsity.curvature` for the formula and its terms.

  Attributes:
    found: `CurvedOps` of the graph at hand.
    colors: int32 array, one color per coordinate: those of the Hessian of the
      `rest` of the curved ops.
    num_samples: Python int, the number of samples.
  """

  found: CurvedOps
  colors: np.ndarray
  num_samples: int

  how = 'op by op'
  max_order = 2

  @property
  def num_colors(self) -> int:
    """How many colors there are."""
    return sweep.num_colors(self.colors)

  @property
  def num_passes(self) -> int:
    """As `Terms.num_passes`."""
    # For each row two reverse passes: as much as a product with the Hessian.
    count = self.found.num_rows
    if self.found.rest:
      count += self.num_colors
    if self.found.fixed or self.bases:
      # A pass carries a basis vector for each sample.
      count += math.ceil(self.colors.size / max(self.num_samples, 1))
    return count

  @property
  def is_one_product(self) -> bool:
    """Whether one product of matrices gives the diagonal for all samples."""
    ops = self.found
    return not ops.few and not ops.rest and all(term[-1] for term in ops.fixed)

  @property
  def note(self) -> str:
    """As `Terms.note`."""
    ops = self.found
    pieces = [
      (len({k for k, *_ in ops.fixed}), 'by the matrix of its argument'),
      (len({k for k, *_ in ops.few}), 'by the rows of its argument'),
      (
        len(ops.rest),
        'by coordinate' if self.is_by_coordinate else 'by color',
      ),
    ]
    listed = ', '.join(f'{count} {how}' for count, how in pieces if count)
    return f'The curvature is added up op by op: {listed}.'

  @property
  def is_by_coordinate(self) -> bool:
    """Whether each coordinate of the rest has a pass of its own.

    A pass then computes only the tangents of the arguments of curved ops.
    """
    return self.found.samples_lead and bool(
      np.all(np.bincount(self.colors) == 1)
    )

  @property
  def may_leak(self) -> bool:
    """As `Terms.may_leak`."""
    return bool(self.found.rest) and self.is_by_coordinate

  @property
  def bases(self) -> tuple:
    """The Tensors at which passes start; empty for passes by color."""
    return self.found.bases if self.is_by_coordinate else ()

  def diagonal(self, call: Call) -> list:
    """As `Terms.diagonal`."""
    xs, rank = call.xs, call.rank
    (value,) = call.evaluation.ys
    found = self.found
    selects = any(facts(t).selects for t in call.evaluation.op_types)
    within = _Call(value, call.derivative, xs, found, self.bases, selects)
    diag = [tf.zeros_like(x) for x in xs]
    if found.rest:
      diag = sweep.diagonal(
        _Rest(within, found.rest, self.is_by_coordinate, self.bases),
        sweep.Colors.of(self.colors, xs, rank),
        xs,
        'auto',
        call.chunk_size,
        call.evaluation.loop_type,
      )
    # What is left of terms that cancel is not rounded as they are.
    diag = [local.wide(d) for d in diag]
    for op, left, right, axes, same in found.fixed:
      diag = local.add(diag, within.fixed(op, left, right, axes, same))
    for op, left, right, rows in found.few:
      diag = local.add(diag, within.few(op, left, right, rows))
    return [
      batching.with_shape(tf.cast(d, x.dtype), x.shape)
      for d, x in zip(diag, xs)
    ]


class _Call:
  """One call of a function, and derivatives between the Tensors in it."""

  def __init__(
    self,
    value: tf.Tensor,
    derivative: LinearMap,
    xs: Sequence,
    found: CurvedOps,
    bases: Sequence,
    selects: bool,
  ) -> None:
    self._value = value
    self._selects = selects
    self._derivative = derivative
    self._xs = xs
    ops = dict.fromkeys(op for op, *_ in found.rest + found.fixed + found.few)
    # All in one pass: each takes as long to trace.
    outputs = [y for op in ops for y in op.outputs]
    adjoints = derivative.between([value], outputs).images(
      [tf.ones_like(value)]
    )
    self._adjoints = {y.ref(): a for y, a in zip(outputs, adjoints)}
    # Fixed maps that have columns, and where the samples' axes begin.
    self._maps = {base.ref(): 0 for base in bases}
    for op, left, right, axes, _ in found.fixed:
      if elementwise_pairs(op.type, [left, right]) is not None:
        for k, axis in zip((left, right), axes):
          self._maps[op.inputs[k].ref()] = axis

  def adjoints(self, op: tf.Operation) -> list:
    """The derivative of the value by each output of an op, or None."""
    return [self._adjoints[y.ref()] for y in op.outputs]

  def sum_over_event(self, x: tf.Tensor) -> tf.Tensor:
    """The sum over all axes after those of the samples."""
    return tf.reduce_sum(
      x, axis=list(range(self._value.shape.rank, x.shape.rank))
    )

  def times(self, weight: Any, tangent: Any) -> tf.Tensor:
    """The product; zero where a tangent is, if an op of the function selects.

    Its weight may be infinite there, where `tf.where` selects another value.
    """
    if self._selects:
      return tf.math.multiply_no_nan(weight, tangent)
    return weight * tangent

  def times_samples(self, factors: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """A Tensor of the sample shape times one that has event axes, too."""
    count = x.shape.rank - self._value.shape.rank
    return batching.with_axes(factors, count) * x

  def reverse(self, tensors: Sequence) -> LinearMap:
    """The `LinearMap` from some tensors back to xs."""
    return self._derivative.between(tensors, self._xs)

  def from_bases(self, tensors: Sequence, bases: Sequence) -> LinearMap:
    """The `LinearMap` from some tensors back to bases, and then to xs.

    What leads through a base does not count among the derivatives by xs.
    """
    sources = [*bases, *self._xs]
    return self._derivative.between(tensors, sources, held=bases)

  def fixed(
    self, op: tf.Operation, left: int, right: int, axes: tuple, same: bool
  ) -> list:
    """The diagonal of A^T diag(w) B: the same A and B for all samples."""
    is_elementwise = elementwise_pairs(op.type, [left, right]) is not None
    if is_elementwise:
      weight, find = self.weight(op, left, right), self._elementwise_products
    else:
      (weight,), find = self.adjoints(op), self._products
    if weight is None:
      return [None] * len(self._xs)
    products, size = find(op, left, right, axes)
    weight = basis.samples_first(weight, self._value.shape.rank, axes[-1])
    rows = tf.reshape(weight, [-1, tf.shape(products)[1]])
    if self._selects:
      is_used = tf.reduce_any(tf.not_equal(products, 0), axis=0)
      rows = tf.where(is_used, rows, tf.zeros_like(rows))
    flat = tf.matmul(rows[:1] if same else rows, products, transpose_b=True)
    flat *= size
    if same:
      shape = [tf.shape(rows)[0], tf.shape(products)[0]]
      flat = tf.broadcast_to(flat, shape)
    return [
      tf.reshape(piece, tf.shape(x))
      for piece, x in zip(
        tf.split(local.wide(flat), self._sizes(), axis=1), self._xs
      )
    ]

  def _elementwise_products(
    self, op: tf.Operation, left: int, right: int, axes: tuple
  ) -> tuple:
    """As `_products`, of an elementwise op; once where both are the same."""
    # Products alone may leave the range of their dtype, though they would not
    # with their weights.
    columns, size = _scaled(self._columns[op.inputs[left].ref()])
    if left == right:
      return size[:, tf.newaxis] * tf.square(columns), size
    return 2.0 * columns * self._columns[op.inputs[right].ref()], size

  def _products(
    self, op: tf.Operation, left: int, right: int, axes: tuple
  ) -> tuple:
    """What an op that is linear in two arguments makes of their columns.

    Args:
      op: `tf.Operation`.
      left, right: Python ints, the arguments: fixed linear maps of xs.
      axes: Where the samples' axes of these begin, and of the result.

    Returns:
      Tensor of shape `[number of coordinates, elements of the result per
      sample]`: twice the result for the columns of both, those of one argument
      divided by their largest entries; and these entries.
    """
    forward = self.reverse([op.inputs[left], op.inputs[right]]).transposed()
    rank = self._value.shape.rank

    def apply(seeds):
      inputs = list(op.inputs)
      samples = tf.shape(seeds[0])[:rank]
      flat = tf.concat([samples, [-1]], axis=0)
      sizes = []
      images = forward.images(seeds)
      for k, image, axis in zip((left, right), images, axes):
        image = basis.samples_first(image, rank, axis)
        rows, size = _scaled(tf.reshape(image, [tf.reduce_prod(samples), -1]))
        rows = tf.reshape(rows, tf.shape(image))
        inputs[k] = basis.samples_first(rows, rank, axis, is_back=True)
        sizes.append(tf.reshape(size, flat))
      (result,) = repeat_op(op, inputs)
      result = basis.samples_first(result, rank, axes[-1])
      return tf.concat([tf.reshape(result, flat), *sizes], axis=-1)

    found = basis.images_of_basis(apply, self._xs, rank, op.outputs[0].dtype)
    products, of_left, of_right = tf.split(found, [-1, 1, 1], axis=1)
    return 2.0 * of_left * products, of_right[:, 0]

  def few(self, op: tf.Operation, left: int, right: int, rows: int) -> list:
    """The diagonal of J_a^T diag(w) J_b, one row of J_b after the other."""
    weight = self.weight(op, left, right)
    total = [None] * len(self._xs)
    if weight is None:
      return total
    a, b = op.inputs[left], op.inputs[right]
    for row in range(rows):
      unit = basis.basis_vector(row, b, self._value.shape.rank, rows)
      of_a = batching.sum_to(weight * unit, a)
      products = zip(self._vjp(a, of_a), self._vjp(b, unit))
      factor = 1.0 if left == right else 2.0
      total = local.add(
        total,
        [
          None
          if g is None or h is None
          else factor * local.wide(g) * local.wide(h)
          for g, h in products
        ],
      )
    return total

  def _vjp(self, tensor: tf.Tensor, seed: tf.Tensor) -> list:
    return self.reverse([tensor]).images([seed])

  def weight(self, op: tf.Operation, left: int, right: int) -> tf.Tensor | None:
    """The second derivative of an elementwise op, times its adjoint, or None.

    Args:
      op: `tf.Operation`.
      left, right: Python ints, the arguments it is differentiated by.

    Returns:
      Tensor of the shape of the op's output.
    """
    (adjoint,) = self.adjoints(op)
    if adjoint is None:
      return None
    which = sorted({left, right})
    shape = tf.shape(op.outputs[0])
    arguments = [tf.broadcast_to(op.inputs[i], shape) for i in which]
    groups = [(i,) for i in which]
    hessian = local.local_hessian(op, groups, arguments, [adjoint])
    return hessian.apply(
      [which.index(left)],
      [tf.ones_like(arguments[0])],
      [which.index(right)],
    )[0]

  def columns_by_part(self, tensor: tf.Tensor) -> list:
    """The transposed matrix of a fixed linear map, split by the parts of xs."""
    return tf.split(self._columns[tensor.ref()], self._sizes())

  def along(
    self, columns: Sequence, seeds: Sequence, tensor: tf.Tensor
  ) -> tf.Tensor:
    """The derivative of a fixed linear map along seeds that samples share.

    Args:
      columns: List of those of some parts, as `columns_by_part` returns them.
      seeds: List of Tensors shaped as these parts.
      tensor: Tensor, the result of the map.

    Returns:
      Tensor of the shape of `tensor`.
    """
    products = []
    for matrix, seed in zip(columns, seeds):
      flat = tf.reshape(tf.cast(seed, matrix.dtype), [-1, tf.shape(matrix)[0]])
      # Of none if there is no sample.
      one = tf.reduce_sum(flat[:1], axis=0, keepdims=True)
      products.append(tf.matmul(one, matrix))
    result = tf.reshape(tf.add_n(products), self._event_shape(tensor))
    return tf.broadcast_to(result, tf.shape(tensor))

  @functools.cached_property
  def _columns(self) -> dict:
    """The transposed matrices of fixed maps of `xs`, all by the same passes.

    Tensors of shape `[number of coordinates, elements per sample]`, by
    references to the results of the maps.
    """
    matrices = basis.columns(
      self._derivative,
      [ref.deref() for ref in self._maps],
      self._xs,
      self._value.shape.rank,
      list(self._maps.values()),
    )
    return dict(zip(self._maps, matrices))

  def _sizes(self) -> list:
    """The number of coordinates of each part."""
    return [tf.reduce_prod(self._event_shape(x)) for x in self._xs]

  def _event_shape(self, x: tf.Tensor) -> tf.Tensor:
    return tf.shape(x)[self._value.shape.rank :]


def _scaled(columns: tf.Tensor) -> tuple:
  """Rows of a matrix divided by their largest entries, and these."""
  size = tf.reduce_max(tf.abs(columns), axis=1)
  is_size = (size > 0) & tf.math.is_finite(size)
  size = tf.where(is_size, size, tf.ones_like(size))
  return columns / size[:, tf.newaxis], size


class _Rest:
  """The Hessian of some of the ops; stands for a `LinearMap`."""

  def __init__(
    self,
    call: _Call,
    ops: Sequence,
    is_by_coordinate: bool,
    bases: Sequence,
  ) -> None:
    """Prepares what is the same for all passes.

    Args:
      call: `_Call`.
      ops: List of pairs: `tf.Operation`, numbers of the arguments that count.
      is_by_coordinate: Python bool, whether every pass is for one coordinate,
        the same for all samples.
      bases: List of Tensors, see `CurvedOps`; empty if passes are for colors.
    """
    self._call = call
    self._tensors = []
    places = {}
    for op, used in ops:
      for tensor in (op.inputs[i] for i in used):
        if places.setdefault(tensor.ref(), len(places)) == len(self._tensors):
          self._tensors.append(tensor)
    self._all = list(range(len(self._tensors)))
    self._reverse = call.reverse(self._tensors)
    self._bases = bases
    self._columns = [call.columns_by_part(base) for base in bases]
    self._forward = call.from_bases(self._tensors, bases).transposed()
    self._terms = [
      _Term(call, op, used, [places[op.inputs[i].ref()] for i in used])
      for op, used in ops
    ]
    self._terms = [t for t in self._terms if t.is_connected]
    self._is_by_coordinate = is_by_coordinate

  def connects(self, members: Sequence[int]) -> bool:
    """As `LinearMap.connects`."""
    return bool(self._terms)

  def apply(
    self,
    members: Sequence[int],
    seeds: Sequence,
    results: Sequence[int] | None = None,
  ) -> list:
    """As `LinearMap.apply`."""
    results = members if results is None else results
    if not self._terms:
      return [None] * len(results)
    tangents = [
      # In a loop the shape may be lost.
      None if t is None else batching.with_shape(t, tensor.shape)
      for t, tensor in zip(self._tangents(members, seeds), self._tensors)
    ]
    cotangents: list = [None] * len(tangents)
    for term in self._terms:
      for i, product in term.products(tangents):
        [cotangents[i]] = local.add([cotangents[i]], [product])
    used = [i for i, c in enumerate(cotangents) if c is not None]
    if self._is_by_coordinate:
      used = [i for i in used if tangents[i] is not None]
    if not used:
      return [None] * len(results)
    if self._is_by_coordinate:
      pieces = [
        self._call.sum_over_event(self._call.times(cotangents[i], tangents[i]))
        for i in used
      ]
      curvature = tf.add_n([local.wide(piece) for piece in pieces])
      return [
        self._call.times_samples(tf.cast(curvature, seed.dtype), seed)
        for seed in seeds
      ]
    return self._reverse.apply(used, [cotangents[i] for i in used], results)

  def _tangents(self, members: Sequence[int], seeds: Sequence) -> list:
    """Of the arguments of the curved ops; None where no path leads to one."""
    of_bases = [
      self._call.along([columns[i] for i in members], seeds, base)
      for base, columns in zip(self._bases, self._columns)
    ]
    first = len(of_bases)
    places = [*range(first), *(first + i for i in members)]
    return self._forward.apply(places, [*of_bases, *seeds], self._all)


class _Term:
  """The second derivatives of one op, between its arguments."""

  def __init__(
    self, call: _Call, op: tf.Operation, used: Sequence[int], places: Sequence
  ) -> None:
    self._places = places
    self._weights, self._hessian = [], None
    adjoints = call.adjoints(op)
    self.is_connected = any(adjoint is not None for adjoint in adjoints)
    if not self.is_connected:
      return
    pairs = elementwise_pairs(op.type, used)
    if pairs is None:
      arguments = [op.inputs[i] for i in used]
      groups = [(i,) for i in used]
      self._hessian = local.local_hessian(op, groups, arguments, adjoints)
      return
    # What is the same for all passes is computed once.
    for a, b in pairs:
      weight = call.weight(op, a, b)
      left, right = used.index(a), used.index(b)
      self._weights.append((left, right, weight))
      if a != b:
        self._weights.append((right, left, weight))
    self._arguments = [op.inputs[i] for i in used]

  def products(self, tangents: Sequence) -> list:
    """The cotangents of the arguments: pairs of place and Tensor."""
    tangents = [tangents[i] for i in self._places]
    if self._hessian is None:
      return [
        (
          self._places[left],
          batching.sum_to(weight * tangents[right], self._arguments[left]),
        )
        for left, right, weight in self._weights
        if tangents[right] is not None
      ]
    used = [k for k, t in enumerate(tangents) if t is not None]
    if not used:
      return []
    products = self._hessian.apply(
      used, [tangents[k] for k in used], list(range(len(tangents)))
    )
    return list(zip(self._places, products))
