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
"""Products of matrices, and other sums of products (`tf.einsum`)."""

import functools
import math

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.registry import CannotSay, Squares, register_rule
from tfp_diag.sparsity.structure import Pair, Structure

# Zeros of a constant factor are exploited up to this many products.
_MAX_PRODUCTS = 20_000_000


def _register(labels_of, squares, *op_types):
  """Registers sums of products, whose labels a function finds."""

  def products(op, shapes, most):
    """The fact `products`."""
    operands, result = labels_of(op.get_attr, [len(s) for s in shapes[1:]])
    if len(operands) != 2 or len(set(result)) < len(result):
      return None
    axes = [*map(_Axes, (result, *operands), shapes)]
    sizes = {
      label: size for a in axes for label, size in zip(a.labels, a.shape)
    }
    if any(a.is_empty for a in axes) or math.prod(sizes.values()) > most:
      return None
    return [
      np.broadcast_to(
        _spread(a.places, a.labels, list(sizes)), list(sizes.values())
      ).ravel()
      for a in axes
    ]

  def written_out(op, *factors):
    operands, result = labels_of(op.get_attr, [x.shape.rank for x in factors])
    return _multiplied(factors, operands, result)

  @register_rule(
    *op_types,
    linear_in=((0,), (1,)),
    squares=squares,
    products=products,
    written_out=written_out,
  )
  def contraction(op):
    ranks = [len(value.shape) for value in op.inputs]
    return _contraction(op, *labels_of(op.attr, ranks))


def _labels_of_matmul(attr, ranks):
  """The labels of two matrices, each of them possibly transposed."""
  return _matrix_labels(ranks, (attr('transpose_a'), attr('transpose_b')))


def _labels_of_batch_matmul(attr, ranks):
  """The same, with broadcasting over the leading dimensions."""
  return _matrix_labels(ranks, (attr('adj_x'), attr('adj_y')))


def _labels_of_einsum(attr, ranks):
  return _labels(attr('equation'), ranks)


def _squares_of_einsum(op):
  """None if products that share a result and a factor are added up."""
  ranks = [x.shape.rank for x in op.inputs]
  if len(ranks) != 2 or None in ranks:
    return None
  operands, result = _labels(op.get_attr('equation'), ranks)
  one, other = map(set, operands)
  # TensorFlow adds up no axis of `...`, where one element may serve for all.
  return Squares.OPERANDS if one ^ other <= set(result) else None


_register(_labels_of_matmul, Squares.OPERANDS, 'MatMul', 'SparseMatMul')
_register(
  _labels_of_batch_matmul,
  Squares.OPERANDS,
  *('BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3'),
)
_register(_labels_of_einsum, _squares_of_einsum, 'Einsum')


def _labels(equation, ranks):
  """The labels of the operands of an equation, and those of its result.

  For `b...i,ij->b...j` and tensors of the ranks 4 and 2 these are
  `[['b', -2, -1, 'i'], ['i', 'j']]` and `['b', -2, -1, 'j']`.
  """
  left, right = equation.decode().replace(' ', '').split('->')
  operands = left.split(',')
  dots = max(
    rank - len(labels.replace('...', ''))
    for labels, rank in zip(operands, ranks)
  )
  result = len(right.replace('...', '')) + dots
  return [*map(_with_dots, operands, ranks)], _with_dots(right, result)


def _with_dots(labels, rank):
  """A list of labels, with numbers for the dimensions that `...` covers."""
  if '...' not in labels:
    return list(labels)
  before, after = labels.split('...')
  count = rank - len(before) - len(after)
  # Counted from the right, as broadcasting does.
  return [*before, *range(-count, 0), *after]


def _matrix_labels(ranks, turned):
  labels = []
  for rank, ends, turn in zip(ranks, ('ik', 'kj'), turned):
    labels.append([*range(2 - rank, 0), *(ends[::-1] if turn else ends)])
  return labels, [*range(2 - max(ranks), 0), 'i', 'j']


def _contraction(op, operands, result):
  """The structure of a sum of products of one or two tensors.

  `ij,j->i` of a constant matrix and a vector has a Jacobian with the pattern of
  the matrix. If both tensors depend on xs, two elements have a mixed second
  derivative if they agree in all labels that the tensors share.
  """
  if len(operands) > 2 or len(set(result)) < len(result):
    raise CannotSay('more than two operands, or a repeated label in the result')
  sizes = dict(zip(result, op.outputs[0].shape))
  for labels, value in zip(operands, op.inputs):
    for label, size in zip(labels, value.shape):
      sizes[label] = max(sizes.get(label, 1), size)
  axes = [
    _Axes(labels, value.shape) for labels, value in zip(operands, op.inputs)
  ]
  flows = {}
  for k, value in enumerate(op.inputs):
    if not value.depends:
      continue
    other = 1 - k if len(operands) == 2 else None
    flow = None
    if other is not None:
      flow = _with_zeros(op, sizes, axes[k], axes[other], result, k)
    flows[k] = _summed(axes[k], result, sizes) if flow is None else flow
  pairs = ()
  if len(flows) == 2:
    shared = [label for label in axes[0].labels if label in axes[1].labels]
    meet = [_summed(each, shared, sizes) for each in axes]
    pairs = (Pair((0,), meet[0], (1,), meet[1]),)
  return Structure.linear(flows, pairs=pairs)


def _multiplied(factors, operands, result):
  """A sum of products of two tensors, by a tensor of its products.

  An axis of size one that only one of them has is left out before, so that a
  vector is the same as a row and as a column of it: a tensor that is both
  factors is one argument then.
  """
  known, aligned = {}, []
  one, other = map(set, operands)
  labels = {
    label
    for axes, x in zip(operands, factors)
    for label, size in zip(axes, x.shape)
    if size != 1 or label in one & other
  }
  kept = [label for label in result if label in labels]
  summed = sorted(labels.difference(result), key=str)
  for axes, x in zip(operands, factors):
    key = x.ref(), tuple(label for label in axes if label in labels)
    if key not in known:
      known[key] = _with_axes(x, axes, kept + summed)
    aligned.append(known[key])
  total = tf.multiply(*aligned)
  if summed:
    total = tf.reduce_sum(total, range(-len(summed), 0))
  for axis, label in enumerate(result):
    if label not in labels:
      total = tf.expand_dims(total, axis)
  return total


def _with_axes(x, labels, order):
  """A tensor with one axis for each of some labels, in their order."""
  kept = [label for label in labels if label in order]
  distinct = list(dict.fromkeys(kept))
  if len(kept) < len(labels):  # Without numbers it would leave out any.
    others = [k for k, label in enumerate(labels) if label not in order]
    x = tf.squeeze(x, others)
  if len(distinct) < len(kept):  # Only the diagonal counts.
    names = [chr(ord('a') + distinct.index(label)) for label in kept]
    x = tf.einsum(f'{"".join(names)}->{"".join(sorted(set(names)))}', x)
  found = [label for label in order if label in distinct]
  x = tf.transpose(x, [distinct.index(label) for label in found])
  for axis, label in enumerate(order):
    if label not in distinct:
      x = tf.expand_dims(x, axis)
  return x


class _Axes:
  """A tensor with labeled axes, each label once, without axes of size 1.

  Attributes:
    labels: list.
    shape: list of int, the size of each label.
    places: int array of shape `shape`, positions in the flattened tensor. If a
      label occurs twice, only the diagonal is in it.
    size: The number of elements of the tensor.
    is_empty: bool.
  """

  def __init__(self, labels, shape):
    self.size = int(np.prod(shape, dtype=np.int64))
    strides = np.cumprod([1, *shape[:0:-1]], dtype=np.int64)[::-1]
    steps, sizes = {}, {}
    for label, size, stride in zip(labels, shape, strides):
      # A dimension of size 1 needs no label.
      if size != 1:
        steps[label] = steps.get(label, 0) + int(stride)
        sizes[label] = size
    self.labels = list(steps)
    self.shape = [sizes[label] for label in steps]
    self._steps = steps
    self.is_empty = 0 in shape
    if self.is_empty:
      self.labels, self.shape = [], [0]

  @functools.cached_property
  def places(self):
    """See the attributes; computed when needed, as it may be large."""
    if self.is_empty:
      return np.zeros(0, np.int64)
    places = np.zeros(self.shape, np.int64)
    for axis, label in enumerate(self.labels):
      step = np.arange(self.shape[axis]) * self._steps[label]
      places += step.reshape(
        [-1 if a == axis else 1 for a in range(len(self.labels))]
      )
    return places


def _number(labels, sizes, at):
  """Numbers the combinations of indices of some labels, on the axes `at`.

  Returns:
    number: int array that broadcasts over the axes `at`.
    count: int, how many combinations there are.
  """
  number = np.zeros([1] * len(at), np.int64)
  count = 1
  for label in reversed(labels):
    if label in at:
      shape = [sizes[label] if a == label else 1 for a in at]
      number = number + np.arange(sizes[label]).reshape(shape) * count
    count *= sizes[label]
  return number, count


def _summed(axes, result, sizes):
  """The flow that unites elements along all labels that `result` lacks."""
  total = int(np.prod([sizes[label] for label in result], dtype=np.int64))
  if axes.is_empty:
    return Flow.none(total, axes.size)
  kept = [label for label in result if label in axes.labels]
  number, count = _number(kept, sizes, axes.labels)
  segment = np.full(axes.size, -1)
  segment[axes.places.reshape(-1)] = np.broadcast_to(
    number, axes.places.shape
  ).reshape(-1)
  return _repeated(Flow.collect(segment, count), kept, result, sizes)


def _with_zeros(op, sizes, axes, factor_axes, result, k):
  """The flow, if the other factor has zeros, or None."""
  labels = list(dict.fromkeys([*axes.labels, *factor_axes.labels]))
  products = float(np.prod([sizes[label] for label in labels]))
  # Before the value is read: it would be compared in each later call.
  if products > _MAX_PRODUCTS or axes.is_empty or factor_axes.is_empty:
    return None
  try:
    nonzero = op.inputs[1 - k].nonzero().reshape(-1)
  except CannotSay:
    return None
  if nonzero.all():
    return None
  shape = [sizes[label] for label in labels]
  kept = np.broadcast_to(
    _spread(nonzero[factor_axes.places], factor_axes.labels, labels), shape
  )
  source = np.broadcast_to(_spread(axes.places, axes.labels, labels), shape)
  covered = [label for label in result if label in labels]
  number, count = _number(covered, sizes, labels)
  target = np.broadcast_to(number, shape)
  flow = Flow.pairs(target[kept], source[kept], count, axes.size)
  return _repeated(flow, covered, result, sizes)


def _repeated(flow, labels, result, sizes):
  """A flow to the axes of some labels, repeated along the others."""
  if labels == result:
    return flow
  number, _ = _number(labels, sizes, result)
  number = np.broadcast_to(number, [sizes[label] for label in result])
  return flow.then(Flow.gather(number, flow.rows))


def _spread(array, labels, all_labels):
  """An array with axes for all labels, in order."""
  order = [labels.index(label) for label in all_labels if label in labels]
  array = array.transpose(order)
  shape = iter(array.shape)
  return array.reshape(
    [next(shape) if label in labels else 1 for label in all_labels]
  )
