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

import math

import numpy as np
import tensorflow as tf

from tfp_diag.internal import basis, passes
from tfp_diag.internal import schedule as schedule_lib
from tfp_diag.sparsity.cuts import Cuts
from tfp_diag.sparsity.expansion import expand
from tfp_diag.sparsity.recognition import find_again
from tfp_diag.sparsity.registry import CannotSay
from tfp_diag.split import Split

__all__ = ['JacobianSplit']


class JacobianSplit(Split):
  """A Jacobian as the sum of what has few colors and of products.

  See `sparsity.cuts` for the formula and its terms. The colors are those of the
  Jacobian while the values of the cuts are held.
  """

  Found = Cuts
  how = 'around cuts'

  @property
  def num_passes(self):
    """As `Split.num_passes`."""
    count = self.num_colors + 2 * self.found.num_rows
    for product in self.found.products:
      # A pass carries a basis vector for each sample.
      per_matrix = math.ceil(
        min(product.width, self.colors.size) / max(self.num_samples, 1)
      )
      count += (len(product.bases) + len(product.outers)) * per_matrix
    return count

  @property
  def note(self):
    """As `Split.note`."""
    pieces = [
      (len(self.found.few), 'by rows and columns'),
      (len(self.found.products), 'by the matrices around it'),
    ]
    listed = ', '.join(f'{count} {how}' for count, how in pieces if count)
    return f'The Jacobian is cut at values on the way: {listed}.'

  def diagonal(self, called, recipe):
    """As `Split.diagonal`."""
    ops, xs, rank = called.ops, called.xs, called.rank
    derivative = called.derivative
    if self.found.is_expanded:
      try:
        ops, derivative = _expanded(ops, derivative, xs)
      except CannotSay:
        return None
    ops = find_again(self.found.signature, ops, xs)
    if ops is None:
      return None
    few = [ops[k].outputs[0] for k in self.found.few]
    num_rows = [s.shape[rank:].num_elements() for s in few]
    if None in num_rows or sum(num_rows) != self.found.num_rows:
      return None
    call = _Call(
      derivative, xs, rank, [ops[k].outputs[0] for k in self.found.held]
    )
    colors = recipe.colored(self.colors, xs, rank)
    diag = schedule_lib.diagonal(
      call.between(derivative.targets, xs),
      colors,
      xs,
      'auto',
      recipe.chunk_size,
    )
    for s, count in zip(few, num_rows):
      diag = schedule_lib.add_up(
        call.rows_and_columns(s), diag, count, recipe.chunk_size
      )
    for product in self.found.products:
      diag = [diag[0] + call.product(*_tensors(product, ops, xs))]
    return [tf.ensure_shape(d, x.shape) for d, x in zip(diag, xs)]


def _expanded(ops, derivative, xs):
  """The ops of a function and more, and its derivative through these.

  Args:
    ops: List of `tf.Operation`s.
    derivative: A `passes.LinearMap` in reverse mode.
    xs: List of Tensors, the parts.

  Returns:
    ops: List of `tf.Operation`s.
    derivative: A `passes.LinearMap` in reverse mode.

  Raises:
    CannotSay: If an op cannot be repeated.
  """
  with passes.recorded_ops() as more:
    targets = expand(ops, derivative.targets)
  derivative = passes.linear_map_of_graph(targets, xs, 'reverse')
  return [*ops, *more.operations], derivative


def _tensors(product, ops, xs):
  """The held value, its bases and its outer values."""

  def results(numbers):
    return [xs[0] if k == -1 else ops[k].outputs[0] for k in numbers]

  (held,) = results([product.held])
  return held, results(product.bases), results(product.outers)


class _Call:
  """One call of a function, in which some values are held."""

  def __init__(self, derivative, xs, rank, held):
    self._derivative = derivative
    self._xs = xs
    self._rank = rank
    self._held = held

  def between(self, targets, sources, also=()):
    """The reverse `passes.LinearMap` while all other values are held.

    Args:
      targets: List of Tensors.
      sources: List of Tensors.
      also: List of Tensors that are held as well.

    Returns:
      `passes.LinearMap`.
    """
    ends = {t.ref() for t in (*targets, *sources)}
    held = [t for t in (*self._held, *also) if t.ref() not in ends]
    return self._derivative.between(targets, sources, held)

  def rows_and_columns(self, s):
    """A function of k: column k of `C_s` times row k of `S_s`."""
    everything = list(range(len(self._xs)))
    rows = self._derivative.between([s], self._xs)
    columns = self.between(self._derivative.targets, [s]).transposed()
    event_shape = s.shape[self._rank :]
    places = np.arange(event_shape.num_elements()).reshape(event_shape)

    def one_pass(k):
      unit = tf.cast(tf.equal(places, k), s.dtype)
      unit = tf.broadcast_to(unit, tf.shape(s))
      return [
        None if c is None or r is None else c * r
        for c, r in zip(
          columns.apply([0], [unit], everything),
          rows.apply([0], [unit], everything),
        )
      ]

    return one_pass

  def product(self, s, bases, outers):
    """The diagonal of the sum of `diag(d) W diag(w) A`; shaped as xs."""
    x = self._xs[0]
    # The basis vectors are those of the smaller side of the matrices.
    by_row = _is_smaller(s, x, self._rank)
    inner = [self._derivative.between([a], [x]) for a in bases]
    # As the slopes hold all other outer values, this does not.
    outer = [self.between([u], [s]) for u in outers]
    if by_row:
      inner = [self._images(m, a) for m, a in zip(inner, bases)]
      outer = [self._images(m.transposed(), s) for m in outer]
    else:
      inner = [self._images(m.transposed(), x) for m in inner]
      outer = [self._images(m, u) for m, u in zip(outer, outers)]
    weights = [
      tf.reshape(
        tf.cast(self._elementwise(s, a, bases), x.dtype),
        [-1, _size(s, self._rank)],
      )
      for a in bases
    ]
    total = tf.zeros_like(x)
    for u, of_u in zip(outers, outer):
      slope = self._elementwise(self._derivative.targets[0], u, outers)
      flat = tf.add_n(
        [
          tf.matmul(w, of_u * of_a, transpose_b=not by_row)
          for w, of_a in zip(weights, inner)
        ]
      )
      total += tf.cast(slope, x.dtype) * tf.reshape(flat, tf.shape(x))
    return total

  def _elementwise(self, target, source, also):
    """The derivative of one Tensor by another, element by element."""
    ones = tf.ones_like(target)
    return self.between([target], [source], also).apply([0], [ones])[0]

  def _images(self, linear_map, tensor):
    """What a map of one part makes of each basis vector, see `basis`."""

    def apply(seeds):
      (image,) = linear_map.apply([0], seeds)
      return image

    return basis.images_of_basis(apply, [tensor], self._rank, self._xs[0].dtype)


def _size(x, rank):
  """The number of elements per sample."""
  size = x.shape[rank:].num_elements()
  return tf.reduce_prod(tf.shape(x)[rank:]) if size is None else size


def _is_smaller(a, b, rank):
  """Whether one Tensor is known to have fewer elements per sample."""
  sizes = [t.shape[rank:].num_elements() for t in (a, b)]
  return None not in sizes and sizes[0] < sizes[1]
