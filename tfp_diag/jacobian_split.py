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
import math

import numpy as np
import tensorflow as tf

from tfp_diag.internal import basis, passes
from tfp_diag.internal import schedule as schedule_lib
from tfp_diag.sparsity.cuts import Cuts, Product
from tfp_diag.sparsity.expansion import expand
from tfp_diag.sparsity.recognition import find_again
from tfp_diag.sparsity.registry import CannotSay

__all__ = ['JacobianSplit']


@dataclasses.dataclass(frozen=True, eq=False)
class JacobianSplit:
  """A Jacobian as the sum of what has few colors and of products.

  See `sparsity.cuts` for the formula and its terms.

  Attributes:
    cuts: `Cuts`.
    colors: int32 array, one color per coordinate, for the Jacobian while the
      values of the cuts are held.
    signs: Array of +1 and -1, one per coordinate, or None for +1.
    num_samples: Python int, the number of samples it was made for; any other
      will do.
  """

  cuts: Cuts
  colors: np.ndarray
  signs: np.ndarray | None
  num_samples: int

  @property
  def num_passes(self):
    """What a diagonal costs, in passes through the function."""
    count = int(self.colors.max(initial=-1)) + 1 + 2 * self.cuts.num_rows
    for product in self.cuts.products:
      # The basis vectors take the places of the samples.
      per_matrix = math.ceil(
        min(product.width, self.colors.size) / max(self.num_samples, 1)
      )
      count += (len(product.bases) + len(product.outers)) * per_matrix
    return count

  @property
  def note(self):
    """A sentence for `str(plan)`."""
    pieces = [
      (len(self.cuts.few), 'by rows and columns'),
      (len(self.cuts.products), 'by the matrices around it'),
    ]
    listed = ', '.join(f'{count} {how}' for count, how in pieces if count)
    return f'The Jacobian is cut at values on the way: {listed}.'

  def to_meta(self):
    """What `from_meta` needs beside the arrays, as values of JSON."""
    return {**dataclasses.asdict(self.cuts), 'num_samples': self.num_samples}

  @classmethod
  def from_meta(cls, meta, colors, signs):
    """The split of which `to_meta` gave `meta`; raises if it is none."""
    cuts = Cuts(
      signature=tuple(meta['signature']),
      few=tuple(map(int, meta['few'])),
      num_rows=int(meta['num_rows']),
      is_expanded=bool(meta['is_expanded']),
      products=tuple(
        Product(
          held=int(product['held']),
          bases=tuple(map(int, product['bases'])),
          outers=tuple(map(int, product['outers'])),
          width=int(product['width']),
        )
        for product in meta['products']
      ),
    )
    numbers = [*cuts.held]
    for product in cuts.products:
      numbers += [*product.outers, *(b for b in product.bases if b != -1)]
    if not all(0 <= k < len(cuts.signature) for k in numbers):
      raise ValueError('`split` names an op that is not there')
    return cls(cuts, colors, signs, int(meta['num_samples']))

  def diagonal(self, called, recipe):
    """The diagonal of the Jacobian of a function that was called just now.

    Args:
      called: `evaluate.Called`, in reverse mode.
      recipe: `evaluate.Recipe`: the chunk size, and the event shapes.

    Returns:
      List of Tensors shaped as `xs`, or None if the ops are not those that the
      split was made for.
    """
    ops, xs, rank = called.ops, called.xs, called.rank
    derivative = called.derivative
    if self.cuts.is_expanded:
      try:
        ops, derivative = _expanded(ops, derivative, xs)
      except CannotSay:
        return None
    ops = find_again(self.cuts.signature, ops, xs)
    if ops is None:
      return None
    few = [ops[k].outputs[0] for k in self.cuts.few]
    num_rows = [s.shape[rank:].num_elements() for s in few]
    if None in num_rows or sum(num_rows) != self.cuts.num_rows:
      return None
    call = _Call(
      derivative, xs, rank, [ops[k].outputs[0] for k in self.cuts.held]
    )
    colors = recipe.colored(self.colors, self.signs, xs, rank)
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
    for product in self.cuts.products:
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
