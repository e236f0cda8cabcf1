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
"""Gathers, scatters and sums over segments: places given by indices."""

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.flow import Flow, by_segments
from tfp_diag.sparsity.registry import (
  CannotSay,
  Squares,
  register_facts,
  register_rule,
)
from tfp_diag.sparsity.rules.data_movement import movement
from tfp_diag.sparsity.structure import Arrow, Structure


@register_rule('GatherV2')
def _gather(op):
  """Moves slices along an axis; if an index is unknown, it may be any slice.

  Gathering 1, 1 from 3 elements has the Jacobian `[[0, 1, 0], [0, 1, 0]]`. The
  indices 0, 1, 2, ... of all slices, as in `tf.vectorized_map`, change nothing,
  for any number of samples.
  """
  params, indices, axis = op.inputs
  if not op.attr('batch_dims'):
    ramp, axis_size = indices.ramp(), params.shape[int(axis.value())]
    if ramp is not None and ramp.is_count and ramp.count == axis_size:
      return Structure.linear({0: Flow.identity(params.size)})
    if int(axis.value()) == 0:
      return _gather_nd(op)
  try:
    return movement(op, (0,))
  except CannotSay:
    pass
  axis = int(axis.value()) % len(params.shape)
  batch_dims = _batch_dims(op.attr('batch_dims'), len(indices.shape))
  outer, inner = params.shape[:axis], params.shape[axis + 1 :]
  rows = int(np.prod(outer + inner, dtype=np.int64))
  place = np.arange(rows).reshape(*outer, 1, *inner)
  low, high = indices.bounds()
  along = np.arange(params.shape[axis]).reshape(-1, *(1 for _ in inner))
  inside = (along >= np.min(low, initial=np.inf)) & (
    along <= np.max(high, initial=-np.inf)
  )
  segment = np.where(inside, place, -1)
  picked = (1,) * (len(indices.shape) - batch_dims)
  index = np.broadcast_to(
    place.reshape((*outer, *picked, *inner)), op.outputs[0].shape
  )
  return Structure.linear({0: by_segments(segment, index, rows)})


def _batch_dims(number, rank):
  """How many leading axes count as batches; less than none from the last on."""
  return number + rank if number < 0 else number


@register_rule('Gather', 'GatherNd')
def _gather_nd(op):
  """Moves slices; if an index is unknown, it may be any slice."""
  params, indices = op.inputs[:2]
  has_columns = op.type == 'GatherNd'
  depth = indices.shape[-1] if has_columns else 1
  pairs = _of_each_sample(indices, params, params.shape, depth)
  if pairs is None:
    try:
      return movement(op, (0,))
    except CannotSay:
      pairs = _slice_by_slice(indices, params.shape, depth)
  if pairs is not None:
    return Structure.linear(
      {0: Flow.pairs(*pairs, op.outputs[0].size, params.size)}
    )
  segment, inner = _box(indices, params.shape, depth, has_columns)
  index = np.arange(op.outputs[0].size) % max(inner, 1)
  return Structure.linear({0: by_segments(segment, index, inner)})


# The most pairs of elements that are listed for slices at unknown places.
_MAX_PAIRS = 1_000_000


def _slice_by_slice(indices, shape, depth):
  """Which elements of a tensor each element of the slices may be.

  Each slice has bounds of its own. This helps if one column of the indices, for
  example the number of the sample, is known.

  Returns:
    Two int arrays, the elements of the slices and those of the tensor; None if
    these are too many pairs, or no fewer than by `_box`.
  """
  if not indices.size:
    return None
  low, high = (
    np.broadcast_to(end, indices.shape).reshape(-1, depth)
    for end in indices.bounds()
  )
  low, high = _inside(low, high, shape)
  counts = np.maximum(high - low + 1, 0)
  union = np.maximum(high.max(0) - low.min(0) + 1, 0)
  if counts.prod(1).sum() >= len(counts) * union.prod():
    return None
  return _pairs(low, counts, shape)


def _of_each_sample(indices, tensor, shape, depth):
  """The same where the indices lead each sample to slices of its own.

  This holds for any number of samples: with m slices of each sample, the first
  column of what sample b has is seen to lie from m b to m b + m - 1.

  Args:
    indices: `InputView`.
    tensor: `InputView` of a tensor that has the samples along its first axis.
    shape: tuple of int, of the tensor that the slices are of.
    depth: int, the number of columns of the indices.

  Returns:
    As `_slice_by_slice`; None also if that is not seen.
  """
  ramp = indices.ramp()
  if ramp is None or not tensor.varies_along(0) or not indices.size:
    return None
  many, rest = divmod(shape[0], ramp.count)
  if rest or len(ramp.step) % depth:
    return None
  step, low, high = (part.reshape(-1, depth) for part in ramp[1:])
  first_inside = (step[:, 0] == many) & (low[:, 0] >= 0) & (high[:, 0] < many)
  if not first_inside.all() or step[:, 1:].any():
    return None
  start = np.arange(ramp.count).reshape(-1, 1, 1) * step
  low, high = ((start + end).reshape(-1, depth) for end in (low, high))
  low, high = _inside(low, high, shape)
  return _pairs(low, np.maximum(high - low + 1, 0), shape)


def _inside(low, high, shape):
  sizes = np.array(shape[: low.shape[1]], np.int64)
  return (
    np.maximum(low, 0).astype(float),
    np.minimum(high, sizes - 1).astype(float),
  )


def _pairs(low, counts, shape):
  """All elements of boxes of slices; None if these are too many."""
  depth = low.shape[1]
  sizes = shape[:depth]
  inner = int(np.prod(shape[depth:], dtype=np.int64))
  if counts.prod(1).sum() * inner > _MAX_PAIRS:
    return None
  low, counts = low.astype(np.int64), counts.astype(np.int64)
  of_row = counts.prod(1)
  row = np.repeat(np.arange(len(counts)), of_row)
  rest = np.arange(len(row)) - np.repeat(np.cumsum(of_row) - of_row, of_row)
  place, stride = np.zeros(len(row), np.int64), 1
  for axis in reversed(range(depth)):
    place += (low[row, axis] + rest % counts[row, axis]) * stride
    rest //= counts[row, axis]
    stride *= sizes[axis]
  within = np.arange(inner)
  return (
    (row[:, np.newaxis] * inner + within).reshape(-1),
    (place[:, np.newaxis] * inner + within).reshape(-1),
  )


def _box(indices, shape, depth, has_columns=True):
  """Which slices of a tensor of some shape unknown indices may point to.

  Returns:
    places: int array: for each element of the tensor, its position in its
      slice; -1 if no index points to that slice.
    inner: int, the number of elements of a slice.
  """
  low, high = indices.bounds()
  inner = int(np.prod(shape[depth:], dtype=np.int64))
  inside = np.ones([1] * depth, bool)
  for axis in range(depth):
    ends = []
    for end in (low, high):
      of_axis = np.broadcast_to(end, indices.shape)
      ends.append(of_axis[..., axis] if has_columns else of_axis)
    place = np.arange(shape[axis])
    reached = (place >= ends[0].min(initial=np.inf)) & (
      place <= ends[1].max(initial=-np.inf)
    )
    inside = inside & reached.reshape(
      [-1 if a == axis else 1 for a in range(depth)]
    )
  places = np.where(inside.reshape(-1, 1), np.arange(inner), -1)
  return places.reshape(-1), inner


@register_rule('ResourceGather', 'ResourceGatherNd', squares=Squares.SAME)
def _gather_from_variable(op):
  """The same for a variable that is part of xs: its content is the input."""
  params, indices = op.inputs
  index = indices.value()
  places = np.arange(params.size).reshape(params.shape)
  if op.type == 'ResourceGatherNd':
    index = places[tuple(np.moveaxis(index, -1, 0))]
  elif op.attr('batch_dims') == 0:
    index = places[index]
  else:
    raise CannotSay('batches of indices')
  return Structure.linear({0: Flow.gather(index, params.size)})


def _gather_again(op, variable, indices):
  if op.get_attr('batch_dims'):
    raise CannotSay('batches of indices')
  return variable.sparse_read(indices)


register_facts('ResourceGather', read=_gather_again)
register_facts('ResourceGatherNd', read=lambda _, v, i: v.gather_nd(i))


register_facts(
  'GatherV2',
  # Of an unknown rank all axes may be those of slices.
  separate_axes=lambda op: max(
    _batch_dims(op.get_attr('batch_dims'), op.inputs[1].shape.rank or 0), 0
  ),
)


@register_rule('Select')
def _select(op):
  """Picks elements, or whole slices, by a condition."""
  try:
    return movement(op, (1, 2))
  except CannotSay:
    each = Flow.identity(op.outputs[0].size)
    return Structure.linear({1: each, 2: each})


@register_rule('DynamicStitch', 'ParallelDynamicStitch')
def _stitch(op):
  """Moves slices to given places.

  Where two slices go to the same place the last one stays, but the gradient
  goes to both: `[0, 0]` of two elements has the Jacobian `[[1, 1]]`.
  """
  (output,) = op.outputs
  half = len(op.inputs) // 2
  arrows = []
  for k in range(half):
    place = op.inputs[k].value().reshape(-1)
    inner = op.inputs[half + k].size // max(len(place), 1)
    target = place[:, None].astype(np.int64) * inner + np.arange(inner)
    flow = Flow.collect(target, output.size)
    arrows.append(Arrow(0, (half + k,), flow))
  return Structure(tuple(arrows))


@register_rule('TensorScatterUpdate')
def _scatter_update(op):
  """The tensor, with the updates in some places.

  Where two updates go to the same place one of them stays, but the gradient
  goes to both: updates of place 0, twice, have the Jacobian `[[1, 1], [0, 0]]`.
  """
  (output,) = op.outputs
  kept = np.arange(output.size)
  tensor, indices, given = op.inputs
  updates = _updates(indices, given, output, tensor)
  depth = indices.shape[-1]
  if _of_each_sample(indices, tensor, output.shape, depth) is None:
    try:
      target = _targets(indices, given, output)
      kept[target[target >= 0]] = -1
    except CannotSay:
      pass
  return Structure.linear({0: Flow.gather(kept, output.size), 2: updates})


@register_rule('ScatterNd', squares=Squares.SAME)
def _scatter(op):
  """The updates, summed where several go to the same place."""
  (output,) = op.outputs
  indices, given, _ = op.inputs
  return Structure.linear({1: _updates(indices, given, output, given)})


register_facts('TensorScatterAdd', squares=Squares.SAME)


@register_rule(
  *('ScatterNdNonAliasingAdd', 'TensorScatterAdd', 'TensorScatterMax'),
  *('TensorScatterMin', 'TensorScatterSub'),
)
def _scatter_add(op):
  """The tensor and the updates; linear, also where several go to one place."""
  (output,) = op.outputs
  tensor, indices, given = op.inputs
  updates = _updates(indices, given, output, tensor)
  return Structure.linear({0: Flow.identity(output.size), 2: updates})


def _updates(indices, updates, output, of_samples):
  """The flow that moves updates to their places, or to all possible ones.

  `of_samples` has the samples along its first axis, if there are any.
  """
  pairs = _of_each_sample(indices, of_samples, output.shape, indices.shape[-1])
  if pairs is None:
    try:
      return Flow.collect(_targets(indices, updates, output), output.size)
    except CannotSay:
      pairs = _slice_by_slice(indices, output.shape, indices.shape[-1])
  if pairs is not None:
    given, places = pairs
    return Flow.pairs(places, given, output.size, updates.size)
  places, inner = _box(indices, output.shape, indices.shape[-1])
  within = np.arange(updates.size) % max(inner, 1)
  return by_segments(within, places, inner)


def _targets(indices, updates, output):
  """The place of each element of the updates, flat; -1 if it has none."""
  index = indices.value()
  depth = index.shape[-1]
  places = np.arange(output.size).reshape(output.shape)
  limits = np.array(output.shape[:depth])
  inside = ((index >= 0) & (index < limits)).all(-1)
  if not output.size or not updates.size:
    return np.full(updates.size, -1)
  # Some devices skip indices that are out of range.
  safe = np.where(inside[..., None], index, 0)
  target = places[tuple(np.moveaxis(safe, -1, 0))]
  inside = inside.reshape(inside.shape + (1,) * (target.ndim - inside.ndim))
  return np.where(inside, target, -1).reshape(-1)


@register_rule(
  *('SegmentSum', 'SegmentMean', 'SegmentMax', 'SegmentMin'),
  *('UnsortedSegmentSum', 'UnsortedSegmentMax', 'UnsortedSegmentMin'),
)
def _linear_segments(op):
  """Each slice goes to the output of its segment; linear."""
  return Structure.linear({0: _segments(op)})


register_facts('SegmentSum', 'UnsortedSegmentSum', squares=Squares.SAME)
register_facts('SegmentMean', squares=Squares.ALONE)


register_facts(
  *('SegmentMax', 'SegmentMin', 'TensorScatterMax', 'TensorScatterMin'),
  *('UnsortedSegmentMax', 'UnsortedSegmentMin'),
  bends=True,
  # Those that are equal share the derivative.
  squares=Squares.ALONE,
)


def _is_once(op):
  """Whether no slice is there twice, as far as is known."""
  indices = tf.get_static_value(op.inputs[1])
  is_once = indices is not None and len(np.unique(indices)) == len(indices)
  return Squares.ALONE if is_once else None


@register_rule(
  *('SparseSegmentSum', 'SparseSegmentSumWithNumSegments'),
  squares=Squares.SAME,
)
@register_rule(
  *('SparseSegmentMean', 'SparseSegmentMeanWithNumSegments'),
  *('SparseSegmentSqrtN', 'SparseSegmentSqrtNWithNumSegments'),
  squares=_is_once,
)
def _linear_segments_of_slices(op):
  """Slices of some numbers go to the outputs of their segments; linear."""
  data, indices, segments = op.inputs[:3]
  return _slices_to_slices(op, data, indices, segments)


@register_rule(
  *('SparseSegmentSumGrad', 'SparseSegmentMeanGrad', 'SparseSegmentSqrtNGrad')
)
def _slices_of_segments(op):
  """The transpose."""
  cotangent, indices, segments, _ = op.inputs
  return _slices_to_slices(op, cotangent, segments, indices)


def _slices_to_slices(op, data, sources, targets):
  (output,) = op.outputs
  width = int(np.prod(data.shape[1:], dtype=np.int64))
  source, target = (
    numbers.value()[:, None].astype(np.int64) * width + np.arange(width)
    for numbers in (sources, targets)
  )
  slices = Flow.gather(source, data.size)
  return Structure.linear({0: slices.then(Flow.collect(target, output.size))})


@register_rule('SegmentProd', 'UnsortedSegmentProd')
def _curved_segments(op):
  """Each output is the product of the slices of its segment."""
  return Structure.nonlinear({0: _segments(op)})


def _segments(op):
  (output,) = op.outputs
  data, numbers = op.inputs[:2]
  pairs = _of_each_sample(numbers, data, output.shape, 1)
  if pairs is not None:
    given, places = pairs
    return Flow.pairs(places, given, output.size, data.size)
  segment = numbers.value().reshape(-1)
  inner = data.size // max(len(segment), 1)
  target = segment[:, None].astype(np.int64) * inner + np.arange(inner)
  # Some devices skip segments that are out of range.
  target[(target < 0) | (target >= output.size)] = -1
  return Flow.collect(target, output.size)


@register_rule('SparseTensorDenseMatMul', squares=Squares.OPERANDS)
def _sparse_matmul(op):
  """The product of a constant sparse matrix and a dense one; linear.

  Repeated entries of the sparse matrix add up.
  """
  indices, values, _, dense = op.inputs
  (output,) = op.outputs
  if values.depends:
    raise CannotSay('a sparse matrix that depends on xs')
  row, column = np.transpose(indices.value())
  if op.attr('adjoint_a'):
    row, column = column, row
  places = np.arange(dense.size).reshape(dense.shape)
  if op.attr('adjoint_b'):
    places = places.T
  width = places.shape[1]
  each = np.arange(width)
  products = Flow.gather(places[column], dense.size)
  flow = products.then(Flow.collect(row[:, None] * width + each, output.size))
  return Structure((Arrow(0, (3,), flow),))
