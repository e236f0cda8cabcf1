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
"""Convolutions, pooling and other layers of neural networks."""

import dataclasses

import numpy as np

from tfp_diag.sparsity.flow import Flow, by_segments
from tfp_diag.sparsity.registry import (
  CannotSay,
  Squares,
  register_facts,
  register_rule,
)
from tfp_diag.sparsity.structure import Arrow, Pair, Structure

# Images with more pixels are not resized pixel by pixel to find the pattern.
_MAX_PIXELS = 2048
# The zeros of a filter are looked at if the others make so few pairs.
_MOST_PAIRS = 1_000_000
# Their second input is the shape of the filter.
_FILTER_GRADIENTS = (
  'Conv2DBackpropFilter',
  'Conv3DBackpropFilterV2',
  'DepthwiseConv2dNativeBackpropFilter',
)


@dataclasses.dataclass(frozen=True)
class Images:
  """A batch of images, volumes or series: where its axes are.

  Attributes:
    shape: `tuple` of int.
    channel: The axis of the channels.
  """

  shape: tuple
  channel: int

  @property
  def space(self):
    """The spatial axes."""
    return [a for a in range(1, len(self.shape)) if a != self.channel]

  @property
  def size(self):
    """The number of elements."""
    return int(np.prod(self.shape, dtype=np.int64))

  def number(self, groups):
    """Numbers the combinations of batch, position and group of channels.

    Args:
      groups: Python int, the number of groups of channels.

    Returns:
      int array of shape `shape`: the number of each element.
    """
    per_group = self.shape[self.channel] // groups
    number = np.zeros([1] * len(self.shape), np.int64)
    for axis in [0, *self.space, self.channel]:
      count = groups if axis == self.channel else self.shape[axis]
      place = np.arange(self.shape[axis])
      if axis == self.channel:
        place = place // max(per_group, 1)
      shape = [-1 if a == axis else 1 for a in range(len(self.shape))]
      number = number * count + place.reshape(shape)
    return np.broadcast_to(number, self.shape)


def _images(op, shape):
  layout = _attr(op, 'data_format', b'NHWC').decode()
  if layout not in ('NHWC', 'NCHW', 'NDHWC', 'NCDHW'):
    raise CannotSay(f'the layout {layout}')
  return Images(tuple(int(d) for d in shape), layout.index('C'))


def _attr(op, name, default):
  try:
    return op.attr(name)
  except ValueError:
    return default


def _windows(op, images, results, kernel, groups):
  """The flow from images to the results of a window that slides over them.

  Every output depends on the positions in its window, in all channels of its
  group.
  """
  flow = Flow.collect(
    images.number(groups), _positions(images) * images.shape[0] * groups
  )
  outer, space = images.shape[0], [images.shape[a] for a in images.space]
  read = _read_places(op, images, results, kernel)
  for k, (axis, places) in enumerate(zip(images.space, read)):
    inner = int(np.prod(space[k + 1 :], dtype=np.int64)) * groups
    flow = flow.then(_slide(outer, images.shape[axis], inner, places))
    outer *= results.shape[axis]
  return flow.then(Flow.gather(results.number(groups), flow.rows))


def _read_places(op, images, results, kernel):
  """Which places a window reads, along each axis.

  Returns:
    list of int arrays [result, place in the window]: places in the image, some
    outside of it.
  """
  strides = op.attr('strides')
  dilations = _attr(op, 'dilations', None) or [1] * len(images.shape)
  padding = op.attr('padding').decode()
  explicit = _attr(op, 'explicit_paddings', None)
  found = []
  for width, axis in zip(kernel, images.space):
    before = 0
    if padding == 'SAME':
      reach = dilations[axis] * (width - 1) + 1
      missing = (results.shape[axis] - 1) * strides[axis] + reach
      before = max(missing - images.shape[axis], 0) // 2
    elif padding == 'EXPLICIT' and explicit is not None:
      before = explicit[2 * axis]
    start = np.arange(results.shape[axis])[:, None] * strides[axis] - before
    found.append(start + np.arange(width) * dilations[axis])
  return found


def _by_filter(op, images, results, kernel, groups):
  """As `_windows`, without the zeros of a constant filter; None if it has none.

  A filter that is zero outside of a cross reads no corners, and one that is a
  diagonal matrix in each place mixes no channels.
  """
  filters = op.inputs[1]
  if filters.depends or op.type in _FILTER_GRADIENTS:
    return None
  try:
    taps = np.argwhere(filters.nonzero())
  except CannotSay:
    return None
  number = images.shape[0] * _positions(results) * len(taps)
  if len(taps) == filters.size or number > _MOST_PAIRS:
    return None
  # Each of these broadcasts to [batch, results along each axis, taps].
  rank = len(kernel) + 2
  batch = np.arange(images.shape[0]).reshape([-1] + [1] * (rank - 1))
  before, after = [batch] * rank, [batch] * rank
  inside = np.ones([1] * rank, bool)
  read = _read_places(op, images, results, kernel)
  for k, (axis, places) in enumerate(zip(images.space, read)):
    shape = [1] * rank
    shape[k + 1] = len(places)
    after[axis] = np.arange(len(places)).reshape(shape)
    shape[-1] = len(taps)
    before[axis] = places[:, taps[:, k]].reshape(shape)
    inside = inside & (before[axis] >= 0)
    inside = inside & (before[axis] < images.shape[axis])
  per_group, last = filters.shape[-2:]
  if op.type.startswith('Depthwise'):
    before[images.channel] = taps[:, -2]
    after[results.channel] = taps[:, -2] * last + taps[:, -1]
  else:
    group = taps[:, -1] // max(last // groups, 1)
    before[images.channel] = group * per_group + taps[:, -2]
    after[results.channel] = taps[:, -1]
  *after, inside = np.broadcast_arrays(*after, inside)
  before = np.broadcast_arrays(*before, inside)[:-1]
  return Flow.pairs(
    np.ravel_multi_index([a[inside] for a in after], results.shape),
    np.ravel_multi_index([b[inside] for b in before], images.shape),
    int(np.prod(results.shape)),
    int(np.prod(images.shape)),
  )


def _slide(outer, size, inner, places):
  """A window that slides along one axis of `[outer, size, inner]`."""
  result_size, width = places.shape
  after, before = np.repeat(np.arange(result_size), width), places.reshape(-1)
  inside = (before >= 0) & (before < size)
  after, before = after[inside], before[inside]
  o = np.arange(outer)[:, None, None]
  i = np.arange(inner)
  shape = (outer, len(after), inner)
  return Flow.pairs(
    np.broadcast_to((o * result_size + after[:, None]) * inner + i, shape),
    np.broadcast_to((o * size + before[:, None]) * inner + i, shape),
    outer * result_size * inner,
    outer * size * inner,
  )


def _positions(images):
  return int(np.prod([images.shape[a] for a in images.space], dtype=np.int64))


@dataclasses.dataclass(frozen=True)
class Convolution:
  """The flows between images, filter and results of a convolution.

  Attributes:
    images: `Flow` from images to results.
    filters: `Flow` from the filter to results.
    images_to_filters: `Flow` from images to the filter.
    results_to_filters: `Flow` from results to the filter.
    filters_to_images: `Flow` from the filter to images.
  """

  images: Flow
  filters: Flow
  images_to_filters: Flow
  results_to_filters: Flow
  filters_to_images: Flow


def _convolution(op, image_shape, filter_shape, result_shape):
  images, results = _images(op, image_shape), _images(op, result_shape)
  filter_shape = tuple(int(d) for d in filter_shape)
  *kernel, per_group, last = filter_shape
  depthwise = op.type.startswith('Depthwise')
  channels = images.shape[images.channel]
  groups = channels if depthwise else max(channels // max(per_group, 1), 1)
  places = np.arange(int(np.prod(filter_shape))).reshape(filter_shape)
  # For each element of the filter: its channel of the result, and of the image
  # (within a group, or all of a depthwise one).
  if depthwise:
    to_result = places % (per_group * last)
    to_group = places // last % per_group
  else:
    to_result = places % last
    to_group = to_result // max(last // groups, 1)
  result_channel = _channel_of(results)
  num_results = results.shape[results.channel]
  filters = by_segments(to_result, result_channel, num_results)
  image_group = _channel_of(images) // max(channels // groups, 1)
  flow = _by_filter(op, images, results, kernel, groups)
  return Convolution(
    images=flow or _windows(op, images, results, kernel, groups),
    filters=filters,
    images_to_filters=by_segments(image_group, to_group, groups),
    results_to_filters=filters.transpose(),
    filters_to_images=by_segments(to_group, image_group, groups),
  )


def _filter_shape(op):
  """The shape of the filter, whose windows are as large for any batch."""
  filters = op.inputs[1]
  if filters.varies_along(slice(None)):
    op.refuse()
    raise CannotSay('a filter whose size changes with the number of samples')
  return filters.shape


def _channel_of(images):
  shape = [1] * len(images.shape)
  shape[images.channel] = -1
  channel = np.arange(images.shape[images.channel]).reshape(shape)
  return np.broadcast_to(channel, images.shape).reshape(-1)


def _bilinear(op, flows):
  """The structure of an op that is linear in each of two arguments.

  Mixed second derivatives are between the elements of both on which the same
  output depends.
  """
  flows = {k: flow for k, flow in flows.items() if op.inputs[k].depends}
  pairs = ()
  if len(flows) == 2:
    (i, left), (j, right) = flows.items()
    pairs = (Pair((i,), left, (j,), right, output=0),)
  return Structure.linear(flows, pairs=pairs)


def _has_groups(op):
  axis = op.get_attr('data_format').index(b'C')
  return op.inputs[0].shape[axis] != op.inputs[1].shape[-2]


register_facts('Conv2D', 'Conv3D', needs_xla=_has_groups)


@register_rule(
  'Conv2D', 'Conv3D', 'DepthwiseConv2dNative', squares=Squares.OPERANDS
)
def _convolve(op):
  """Each output depends on its window, and on the filter of its channel.

  A window of 3 over a series of 4, without padding, has the Jacobian
  `[[1, 1, 1, 0], [0, 1, 1, 1]]`.
  """
  image_shape, result_shape = op.inputs[0].shape, op.outputs[0].shape
  found = _convolution(op, image_shape, _filter_shape(op), result_shape)
  return _bilinear(op, {0: found.images, 1: found.filters})


@register_rule(
  'Conv2DBackpropInput',
  'Conv3DBackpropInputV2',
  'DepthwiseConv2dNativeBackpropInput',
  squares=Squares.OPERANDS,
)
def _convolve_back(op):
  """The transpose of a convolution, from results to images."""
  image_shape, result_shape = op.outputs[0].shape, op.inputs[2].shape
  found = _convolution(op, image_shape, _filter_shape(op), result_shape)
  return _bilinear(
    op, {1: found.filters_to_images, 2: found.images.transpose()}
  )


@register_rule(*_FILTER_GRADIENTS)
def _filter_gradient(op):
  """An element depends on its channels of images and results."""
  images, _, results = op.inputs
  found = _convolution(op, images.shape, op.outputs[0].shape, results.shape)
  return _bilinear(
    op, {0: found.images_to_filters, 2: found.results_to_filters}
  )


def _pool(op, image_shape, result_shape):
  images, results = _images(op, image_shape), _images(op, result_shape)
  sizes = op.attr('ksize')
  if sizes[0] != 1 or sizes[images.channel] != 1:
    raise CannotSay('windows over the batch or the channels')
  kernel = [sizes[a] for a in images.space]
  return _windows(op, images, results, kernel, images.shape[images.channel])


@register_rule('AvgPool', 'AvgPool3D', 'MaxPool', 'MaxPool3D')
def _pooled(op):
  """Each output depends on its window and channel; linear almost everywhere."""
  return Structure.linear(
    {0: _pool(op, op.inputs[0].shape, op.outputs[0].shape)}
  )


@register_rule('AvgPoolGrad', 'AvgPool3DGrad')
def _average_pool_gradient(op):
  """The transpose of the average."""
  flow = _pool(op, op.outputs[0].shape, op.inputs[1].shape)
  return Structure.linear({1: flow.transpose()})


def _overwritten(op):
  """The number of the cotangent, if the derivative by it may be wrong.

  If the cotangent of MaxPoolGradGrad has the shape of its result, the kernel
  writes the result over the cotangent, and reads the cotangent afterwards
  (TensorFlow 2.21, in graphs).
  """
  image, result = op.inputs[0].shape, op.inputs[1].shape
  return (2,) if image.is_compatible_with(result) else ()


register_facts('MaxPool', 'MaxPool3D', bends=True)
# TensorFlow has no MaxPool3D in double precision, which sweeps take.
register_facts('MaxPool', squares=Squares.SAME)
register_facts('MaxPoolGrad', lost_inputs=_overwritten)


@register_rule('MaxPoolGrad', 'MaxPool3DGrad')
def _max_pool_gradient(op):
  """The transpose of the maximum, which is linear in the cotangent only."""
  flow = _pool(op, op.inputs[0].shape, op.inputs[2].shape)
  return Structure.linear({2: flow.transpose()})


register_facts(
  *('ResizeBicubicGrad', 'ResizeBilinearGrad', 'ScaleAndTranslateGrad'),
  measured_inputs=(1,),
)


@register_rule('ResizeBicubic', 'ResizeBilinear')
def _resized(op):
  """Each output is a mean of some pixels of its channel; linear.

  A series of 2, resized to 3 with its ends in place, has the Jacobian
  `[[1, 0], [1, 1], [0, 1]]`. The op is run on each pixel alone.
  """
  batch, height, width, channels = op.inputs[0].shape
  pixels, results = height * width, op.outputs[0].size // max(batch, 1)
  results //= max(channels, 1)
  if pixels > _MAX_PIXELS:
    raise CannotSay('images of many pixels')
  each = np.eye(pixels, dtype=np.float32).reshape(pixels, height, width, 1)
  (weights,) = op.run([each, op.inputs[1].value()])
  before, after = np.nonzero(weights.reshape(pixels, -1))
  b, c = np.arange(batch)[:, None, None], np.arange(channels)
  return Structure.linear(
    {
      0: Flow.pairs(
        (b * results + after[:, None]) * channels + c,
        (b * pixels + before[:, None]) * channels + c,
        op.outputs[0].size,
        op.inputs[0].size,
      )
    }
  )


@register_rule('BiasAdd', squares=Squares.SAME)
def _bias_add(op):
  """A number is added to each channel."""
  value, bias = op.inputs
  index = _bias_channel(op, value.shape)
  return Structure.linear(
    {0: Flow.identity(value.size), 1: Flow.gather(index, bias.size)}
  )


@register_rule('BiasAddGrad')
def _bias_add_gradient(op):
  """The sums over all but the channels."""
  index = _bias_channel(op, op.inputs[0].shape)
  return Structure.linear({0: Flow.collect(index, op.outputs[0].size)})


def _bias_channel(op, shape):
  first = _attr(op, 'data_format', b'NHWC').startswith(b'NC')
  return _channel_of(Images(tuple(shape), 1 if first else len(shape) - 1))


@register_rule('FusedBatchNorm', 'FusedBatchNormV2', 'FusedBatchNormV3')
def _batch_norm(op):
  """In training an output depends on its whole channel, across the batch."""
  images = _images(op, op.inputs[0].shape)
  channels = images.shape[images.channel]
  channel = _channel_of(images)
  spread = Flow.gather(channel, channels)
  flow = Flow.identity(images.size)
  if op.attr('is_training'):
    flow = by_segments(channel, channel, channels)
  arrows = [Arrow(0, (0,), flow)]
  arrows += [Arrow(0, (k,), spread) for k in range(1, 5) if op.inputs[k].size]
  if op.attr('is_training'):
    united = Flow.collect(channel, channels)
    arrows += [Arrow(k, (0,), united) for k in range(1, 5)]
  return Structure(
    tuple(arrows), curved=tuple(dict.fromkeys(a.output for a in arrows))
  )
