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
"""The diagonal of a dense Jacobian that is cut where that is cheap."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import basis, sweep
from tfp_diag.diagonal.linear_map import Evaluation, Linear, LinearMap
from tfp_diag.diagonal.returning_paths import ReturningPaths
from tfp_diag.diagonal.terms import Call
from tfp_diag.internal import batching
from tfp_diag.sparsity.cuts import Cuts, Product


@dataclasses.dataclass(frozen=True, eq=False)
class JacobianTerms:
  """A Jacobian as the sum of what has few colors and of products.

  See `sparsity.cuts` for the formula and its terms.

  Attributes:
    found: `Cuts` of the graph at hand.
    colors: int32 array, one color per coordinate: those of the Jacobian while
      the values of the cuts are held.
    num_samples: Python int, the number of samples.
    levels: Tuple, as in `sparsity.returning.Returning`: where derivatives are
      left out of that Jacobian; may be empty.
    evaluation: `Evaluation` of the same function with its normalizers written
      out, to which the ops belong; None if they belong to the one at hand.
  """

  found: Cuts
  colors: np.ndarray
  num_samples: int
  levels: tuple = ()
  evaluation: Evaluation | None = None

  max_order = 1
  may_leak = False

  @property
  def is_cut(self) -> bool:
    """Whether values are held."""
    return bool(self.found.few or self.found.products)

  @property
  def how(self) -> str:
    """As `Terms.how`."""
    return 'around cuts' if self.is_cut else 'on returning paths'

  @property
  def num_passes(self) -> int:
    """As `Terms.num_passes`."""
    count = sweep.num_colors(self.colors) + 2 * self.found.num_rows
    return count + self.num_columns

  @property
  def num_columns(self) -> int:
    """How many of them are products with one of the matrices around a cut."""
    count = 0
    for product in self.found.products:
      # A pass carries a basis vector for each sample.
      per_matrix = math.ceil(product.num_rows / max(self.num_samples, 1))
      starts = max(len(product.starts), 1)
      count += (len(product.bases) * starts + len(product.outers)) * per_matrix
    return count

  @property
  def note(self) -> str:
    """As `Terms.note`."""
    pieces = [
      (len(self.found.few), 'by rows and columns'),
      (len(self.found.products), 'by the matrices around it'),
    ]
    listed = ', '.join(f'{count} {how}' for count, how in pieces if count)
    sentences = []
    if listed:
      sentences.append(f'The Jacobian is cut at values on the way: {listed}.')
    if count := sum(map(len, self.levels)):
      sentences.append(
        'Only paths from a coordinate to its own result count: derivatives of '
        f'{count} op{"s" * (count != 1)} are left out.'
      )
    return ' '.join(sentences)

  def diagonal(self, call: Call) -> list:
    """As `Terms.diagonal`."""
    xs, rank = call.xs, call.rank
    derivative = call.derivative
    if self.evaluation is not None:
      derivative = self.evaluation.jacobian()
    within = _Call(derivative, xs, rank, self.found)
    diag = sweep.diagonal(
      within.left(self.levels),
      sweep.Colors.of(self.colors, xs, rank),
      xs,
      'auto',
      call.chunk_size,
      call.evaluation.loop_type,
    )
    for k, size in enumerate(self.found.rows):
      value, rows, columns = within.rows_and_columns(k)
      diag = plus_products(diag, value, rows, columns, size, call)
    for product in self.found.products:
      diag = [d + within.product(i, product) for i, d in enumerate(diag)]
    return [batching.with_shape(d, x.shape) for d, x in zip(diag, xs)]


class _Call:
  """One call of a function, in which some values are held."""

  def __init__(
    self, derivative: LinearMap, xs: Sequence, rank: int, found: Cuts
  ) -> None:
    self._derivative = derivative
    self._targets = derivative.targets
    self._xs = xs
    self._rank = rank
    self._few = [result.tensor(xs) for result in found.few]
    self._held = [result.tensor(xs) for result in found.held]

  def left(self, levels: tuple) -> Linear:
    """What is left of the Jacobian while all values are held."""
    if levels:
      return ReturningPaths(self._derivative, self._xs, levels, self._held)
    return self.between(self._targets, self._xs, self._held)

  def between(
    self, targets: Sequence, sources: Sequence, held: Sequence
  ) -> LinearMap:
    """The reverse `LinearMap` while some values are held.

    Args:
      targets: List of Tensors.
      sources: List of Tensors.
      held: List of Tensors. A target or source among them is not held.

    Returns:
      `LinearMap`.
    """
    ends = {t.ref() for t in (*targets, *sources)}
    held = [t for t in held if t.ref() not in ends]
    return self._derivative.between(targets, sources, held)

  def rows_and_columns(self, k: int) -> tuple:
    """The maps from the parts to a value with few elements, and on from it.

    Args:
      k: Python int, the number of the value.

    Returns:
      value: Tensor.
      rows: `LinearMap` in reverse mode, of `S_s`.
      columns: `LinearMap` in reverse mode, of `C_s`.
    """
    s = self._few[k]
    rows = self._derivative.between([s], self._xs)
    return s, rows, self.between(self._targets, [s], self._few)

  def product(self, part: int, product: Product) -> tf.Tensor:
    """The diagonal of the sum of `diag(d) W diag(w) A diag(e)`, as a part."""
    x, y = self._xs[part], self._targets[part]
    if x.shape.num_elements() == 0:  # It has no basis vectors.
      return tf.zeros_like(x)
    s = product.held.tensor(self._xs)
    bases = [base.tensor(self._xs) for base in product.bases]
    outers = [outer.tensor(self._xs) for outer in product.outers]
    starts = [u.tensor(self._xs) for k, u in product.starts if k == part] or [x]
    # The basis vectors are those of the smaller side of the matrices.
    by_row = _is_smaller(s, x, self._rank)
    inner, outer = [], []
    for a in bases:
      slope = _slope(self.between([s], [a], [*self._few, *bases]))
      if slope is None:
        continue
      weights = tf.reshape(
        tf.cast(slope, x.dtype), [-1, basis.num_elements(s, self._rank)]
      )
      # What starts by itself is held where others do.
      is_start = any(a is start for start in starts)
      for start in [a] if is_start else starts:
        matrix = self.between([a], [start], [*self._few, *starts])
        if not matrix.connects([0]):
          continue
        ends = (matrix, a) if by_row else (matrix.transposed(), start)
        before = None
        if start is not x:
          before = _slope(self.between([start], [x], self._few))
        inner.append((weights, self._images(*ends), before))
    for u in outers:
      slope = _slope(self.between([y], [u], [*self._held, *outers]))
      if slope is None:
        continue
      # As the slopes hold all other outer values, this does not.
      matrix = self.between([u], [s], self._held)
      ends = (matrix.transposed(), s) if by_row else (matrix, u)
      outer.append((tf.cast(slope, x.dtype), self._images(*ends)))
    total = tf.zeros_like(x)
    for (slope, of_u), (w, of_a, before) in itertools.product(outer, inner):
      flat = tf.matmul(w, of_u * of_a, transpose_b=not by_row)
      found = slope * tf.reshape(flat, tf.shape(x))
      total += found if before is None else found * tf.cast(before, x.dtype)
    return total

  def _images(self, linear_map: LinearMap, tensor: tf.Tensor) -> tf.Tensor:
    """What a map of one part makes of each basis vector, see `basis`."""

    def apply(seeds):
      (image,) = linear_map.images(seeds)
      return image

    return basis.images_of_basis(apply, [tensor], self._rank, self._xs[0].dtype)


def plus_products(
  diag: list,
  value: tf.Tensor,
  rows: LinearMap,
  columns: LinearMap,
  size: int,
  call: Call,
) -> list:
  """Adds to a diagonal that of the product of the derivatives at a value.

  Args:
    diag: List of Tensors shaped as the parts.
    value: Tensor of shape `sample_shape + event_shape`.
    rows: `LinearMap` in reverse mode, of the value by the parts.
    columns: `LinearMap` in reverse mode, of the results by the value.
    size: Python int, how many elements an event of the value has.
    call: `Call`.

  Returns:
    List as `diag`.
  """
  columns = columns.transposed()

  def one_pass(k):
    unit = basis.basis_vector(k, value, call.rank, size)
    products = zip(diag, columns.images([unit]), rows.images([unit]))
    return [
      # A loop has to know the shape.
      None if c is None or r is None else batching.with_shape(c * r, d.shape)
      for d, c, r in products
    ]

  return sweep.add_up(
    one_pass, diag, size, call.chunk_size, call.evaluation.loop_type
  )


def _slope(linear_map: LinearMap) -> tf.Tensor:
  """The derivative of one Tensor by another, element by element."""
  (slope,) = linear_map.of_ones()
  return slope


def _is_smaller(a: tf.Tensor, b: tf.Tensor, rank: int) -> bool:
  """Whether one Tensor is known to have fewer elements per sample."""
  sizes = [t.shape[rank:].num_elements() for t in (a, b)]
  return None not in sizes and sizes[0] < sizes[1]
