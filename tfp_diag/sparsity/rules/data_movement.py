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
"""Ops that move elements without changing them."""

import itertools

import numpy as np

from tfp_diag.sparsity.flow import Flow, by_segments
from tfp_diag.sparsity.registry import (
  CannotSay,
  OpFailed,
  facts,
  register_facts,
  register_rule,
)
from tfp_diag.sparsity.structure import Arrow, Structure

# Which inputs hold the elements that are moved; the others say where to.
DATA_INPUTS = {
  **dict.fromkeys(
    """
    BatchToSpace BatchToSpaceND BroadcastTo ConjugateTranspose DepthToSpace Diag
    DiagPart DynamicPartition ExpandDims ExtractImagePatches MatrixBandPart
    MatrixDiag MatrixDiagPart MirrorPad Pad Reshape ResizeNearestNeighbor
    ReverseSequence ReverseV2 Roll Slice SpaceToBatch SpaceToBatchND
    SpaceToDepth SplitV Squeeze StridedSlice Tile Transpose Unpack
    """.split(),
    (0,),
  ),
  'Concat': slice(1, None),
  'ConcatV2': slice(0, -1),
  'Fill': (1,),
  'MatrixDiagPartV2': (0, 2),
  'MatrixDiagPartV3': (0, 2),
  'MatrixDiagV2': (0, 4),
  'MatrixDiagV3': (0, 4),
  'MatrixSetDiag': (0, 1),
  'MatrixSetDiagV2': (0, 1),
  'MatrixSetDiagV3': (0, 1),
  'OneHot': (2, 3),
  'Pack': slice(None),
  'PadV2': (0, 2),
  'Split': (1,),
  'StridedSliceGrad': (4,),
  'TensorStridedSliceUpdate': (0, 4),
}

register_facts('BroadcastTo', 'Reshape', 'Tile', shape_inputs=(1,))
register_facts('Fill', 'StridedSliceGrad', shape_inputs=(0,))
register_facts(
  *"""
  BroadcastTo ExpandDims Fill Reshape Slice Split SplitV Squeeze StridedSlice
  Tile Transpose
  """.split(),
  only_copies=True,
)
register_facts(
  *('BroadcastTo', 'ExpandDims', 'Reshape', 'Squeeze', 'Transpose'),
  linear_in=((0,),),
)
register_facts('BroadcastTo', 'Tile', axes='aligned')
register_facts('ExpandDims', 'Reshape', 'Squeeze', axes='in order')
register_facts('Slice', 'Split', 'SplitV', 'StridedSlice', is_slice=True)


# Axes of the first input between which positions count. If one of them is that
# of the samples, such an op does something else to each sample.
_RELATED_AXES = {
  'Diag': slice(None),
  'DiagPart': slice(None),
  'MatrixBandPart': slice(-2, None),
  'MatrixDiag': slice(-1, None),
  'MatrixDiagPart': slice(-2, None),
  'MatrixDiagPartV2': slice(-2, None),
  'MatrixDiagPartV3': slice(-2, None),
  'MatrixDiagV2': slice(-1, None),
  'MatrixDiagV3': slice(-1, None),
  'MatrixSetDiag': slice(-2, None),
  'MatrixSetDiagV2': slice(-2, None),
  'MatrixSetDiagV3': slice(-2, None),
}


@register_rule(*DATA_INPUTS)
def _movement(op):
  """Each element comes from one place, or is a constant; see `movement`."""
  data = tuple(facts(op.type).moved(len(op.inputs)))
  related = _RELATED_AXES.get(op.type)
  if related is not None and op.inputs[0].varies_along(related):
    op.refuse()
    raise CannotSay('a diagonal along an axis of samples')
  try:
    return movement(op, data)
  except CannotSay:
    if op.type not in _SLICES or op.inputs[1].depends:
      raise
  return _SLICES[op.type](op)


def _slice_somewhere(op):
  """A slice that begins at one of several places: the union over all of them.

  Two elements of four, from place 0 or 1, have the Jacobian
  `[[1, 1, 0, 0], [0, 1, 1, 0]]`.
  """
  shape, output_shape = op.inputs[0].shape, op.outputs[0].shape
  low, high = _ends(op.inputs[1], len(shape))
  flow = Flow.identity(op.inputs[0].size)
  outer = 1
  for axis, (size, result) in enumerate(zip(shape, output_shape)):
    first = int(max(low[axis], 0))
    last = int(min(high[axis], size - result))
    inner = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    step = _window_somewhere((outer, size, inner), result, first, last)
    flow = flow.then(step)
    outer *= result
  return Structure.linear({0: flow})


def _window_somewhere(shape, result, first, last):
  """A slice of the middle axis of three that begins between two places."""
  outer, size, inner = shape
  count = max(last - first + 1, 0)
  o, i = np.arange(outer)[:, None, None], np.arange(inner)
  if outer * result * count * inner > _MAX_ENTRIES:
    # Too large to list: every output depends on all places between the two.
    inside = (np.arange(size) >= first) & (np.arange(size) < last + result)
    line = o * inner + i
    index = np.broadcast_to(line, (outer, result, inner))
    return by_segments(
      np.where(inside[:, None], line, -1), index, outer * inner
    )
  after, window = np.divmod(np.arange(result * count), max(count, 1))
  before = after + window + first
  return Flow.pairs(
    (o * result + after[:, None]) * inner + i,
    (o * size + before[:, None]) * inner + i,
    outer * result * inner,
    outer * size * inner,
  )


def _strided_slice_somewhere(op):
  """The same where an axis is dropped, as in `x[:, i]`: run for every i.

  Of `[2, 3]` with i from 1 to 2 the Jacobian is
  `[[0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1]]`.
  """
  params, begin, end, strides = op.inputs
  (output,) = op.outputs
  places = np.arange(1, params.size + 1).reshape(params.shape)
  low, high = _ends(begin, begin.size)
  steps = strides.value()
  shrinks = op.attr('shrink_axis_mask')
  longest = max(params.shape, default=0)
  choices = []
  for axis in range(begin.size):
    if low[axis] == high[axis]:
      choices.append([int(low[axis])])
    elif shrinks >> axis & 1:
      first = low[axis] if np.isfinite(low[axis]) else 0
      first, last = max(first, -longest), min(high[axis], longest - 1)
      choices.append(range(int(first), int(last) + 1))
    else:
      raise CannotSay('a slice of unknown place and length')
  count = int(np.prod([len(choice) for choice in choices], dtype=np.int64))
  if count > _MAX_CHOICES:
    raise CannotSay('a slice of too many possible places')
  low_end, high_end = _ends(end, begin.size)
  is_known = low_end == high_end
  needs_no_end = shrinks | op.attr('end_mask')
  lengths = {
    axis: _length_of_slice(op, axis, steps)
    for axis in range(begin.size)
    if not (is_known[axis] or needs_no_end >> axis & 1)
  }
  arrows = []
  for chosen in itertools.product(*choices):
    stop = [
      b + 1 if shrinks >> axis & 1 else low_end[axis] if is_known[axis] else 0
      for axis, b in enumerate(chosen)
    ]
    for axis, length in lengths.items():
      first = chosen[axis]
      if op.attr('begin_mask') >> axis & 1:
        first = 0
      elif first < 0:
        first += params.shape[axis]
      stop[axis] = first + length * steps[axis]
    try:
      (moved,) = op.run(
        [places, *(np.array(v, steps.dtype) for v in (chosen, stop)), steps]
      )
    except OpFailed:
      continue
    flow = Flow.gather(moved.reshape(-1).astype(np.int64) - 1, params.size)
    arrows.append(Arrow(0, (0,), flow))
  if not arrows or any(a.flow.rows != output.size for a in arrows):
    raise CannotSay('a slice that is out of range at all places')
  return Structure(tuple(arrows))


def _length_of_slice(op, axis, steps):
  """How many places a slice takes of an axis, where its end is not known."""
  others = op.attr('ellipsis_mask') | op.attr('new_axis_mask')
  if others or steps[axis] < 0:
    raise CannotSay('a slice of unknown length')
  before = op.attr('shrink_axis_mask') & ((1 << axis) - 1)
  return op.outputs[0].shape[axis - before.bit_count()]


def _ends(value, size):
  return [np.broadcast_to(end, [size]) for end in value.bounds()]


_SLICES = {
  'Slice': _slice_somewhere,
  'StridedSlice': _strided_slice_somewhere,
}

# A strided slice is run at no more than this many places.
_MAX_CHOICES = 256

# A slice at an unknown place is listed up to this many entries.
_MAX_ENTRIES = 2_000_000


def movement(op, data):
  """Runs an op on the numbers of places, and sees where each number goes.

  `Transpose` of `[2, 3]` sends the places 1 to 6 to 1, 4, 2, 5, 3, 6; zero
  stands for an element that comes from nowhere, as in padding.

  Args:
    op: The op as a rule sees it.
    data: `tuple` of int: the inputs whose elements are moved.

  Returns:
    `Structure`.
  """
  feeds = [None] * len(op.inputs)
  start = 1
  for k, value in enumerate(op.inputs):
    if k in data:
      places = np.arange(start, start + value.size, dtype=np.int64)
      feeds[k] = places.reshape(value.shape)
      start += value.size
    elif value.depends:
      raise CannotSay('where the elements go depends on xs')
    else:
      feeds[k] = value.value()
  try:
    results = op.run(feeds)
  except OpFailed:
    # There may be no kernel for integers; doubles hold these exactly.
    for k in data:
      feeds[k] = feeds[k].astype(np.float64)
    results = op.run(feeds)
  return Structure(
    tuple(
      Arrow(
        k, data, Flow.gather(moved.reshape(-1).astype(np.int64) - 1, start - 1)
      )
      for k, moved in enumerate(results)
    )
  )


@register_rule('XlaDynamicUpdateSlice')
def _update_slice(op):
  """A piece written into a Tensor: the gradient of `tf.slice` under XLA.

  It has no kernel outside XLA. A place too near to the end is moved back.
  """
  into, piece, begin = op.inputs
  first = np.clip(begin.value(), 0, np.subtract(into.shape, piece.shape))
  places = np.arange(into.size).reshape(into.shape)
  window = tuple(slice(b, b + n) for b, n in zip(first, piece.shape))
  places[window] = into.size + np.arange(piece.size).reshape(piece.shape)
  flow = Flow.gather(places.reshape(-1), into.size + piece.size)
  return Structure((Arrow(0, (0, 1), flow),))


@register_rule('MirrorPadGrad')
def _mirror_pad_grad(op):
  """The transpose of `MirrorPad`: each output sums the copies of an element.

  Two elements, mirrored to `[1, 0, 1, 0]`, have the gradient rows
  `[0, 1, 0, 1]` and `[1, 0, 1, 0]`.
  """
  (output,) = op.outputs
  mode = op.attr('mode').decode().lower()
  if mode not in ('reflect', 'symmetric'):
    raise CannotSay(f'the mode {mode}')
  places = np.arange(output.size).reshape(output.shape)
  copies = np.pad(places, op.inputs[1].value(), mode)
  return Structure.linear({0: Flow.collect(copies, output.size)})


for _op_type, _data in DATA_INPUTS.items():
  register_facts(_op_type, moved_inputs=_data)
register_facts('Cast', 'GatherV2', moved_inputs=(0,))
register_facts('Gather', 'GatherNd', 'GatherV2', index_inputs=(1,))
register_facts('ResourceGather', 'ResourceGatherNd', index_inputs=(1,))
register_facts('Cast', 'OneHot', index_inputs=(0,))
# Which axes are summed over depends on which sizes are one.
register_facts('BroadcastGradientArgs', is_same_for_all_sizes=True)
