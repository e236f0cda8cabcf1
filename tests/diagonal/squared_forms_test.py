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
"""Squared derivatives of ops: a sweep with them gives the diagonal."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.sparsity import registry
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.graph import trace

SAMPLES = 2
RNG = np.random.default_rng(5)
SEEN = set()


def constant(*shape):
  return tf.constant(RNG.normal(size=shape) / 2.0)


def shaped(x, *shape):
  return tf.reshape(x, [SAMPLES, *shape])


def halves(x, first, second):
  """Two Tensors of some shapes, of different coordinates."""
  size = int(np.prod(first))
  return shaped(x[:, :size], *first), shaped(x[:, size:], *second)


def each(fn):
  """Of each sample by itself: for ops that take no batch."""
  return lambda x: tf.stack([fn(sample) for sample in tf.unstack(x)])


def columns(fn):
  """For ops on the first axis."""
  return lambda x: tf.transpose(fn(tf.transpose(x)))


M23, M24, M32, M34, M43 = (
  constant(*shape) for shape in [(2, 3), (2, 4), (3, 2), (3, 4), (4, 3)]
)
SYSTEM = 4.0 * tf.eye(4, dtype=tf.float64) + M43 @ M34
BATCH = constant(3, 2, 4)
KERNEL = constant(2, 2, 2, 3)
DEPTHWISE = constant(2, 2, 2, 2)
BACK = constant(3, 2, 1, 2)
CUBE = constant(2, 2, 2, 2, 1)
IMAGE = constant(1, 4, 4, 2)
VOLUME = constant(1, 3, 3, 3, 1)
PICKED = [2, 0, 2, 2, 3]
ROWS = tf.sparse.from_dense(np.array([[1.5, 0, -0.5, 0], [0, 2.0, 0.7, 0]]))
ROWS_T = tf.sparse.transpose(ROWS)
TWICE = tf.SparseTensor(
  [[0, 1], [0, 1], [1, 2]], tf.constant([0.4, 0.9, 1.5], tf.float64), [2, 4]
)
RAW = tf.raw_ops

# By what they do: names of forms, how many coordinates, and the function.
MOVED = {
  'reshape': (6, lambda x: shaped(x, 3, 2)),
  'transpose': (6, lambda x: tf.transpose(shaped(x, 3, 2), [0, 2, 1])),
  'conjugate transpose': (
    6,
    lambda x: RAW.ConjugateTranspose(x=shaped(x, 3, 2), perm=[0, 2, 1]),
  ),
  'tile': (3, lambda x: tf.tile(x, [1, 3])),
  'broadcast': (3, lambda x: tf.broadcast_to(x[:, None], [SAMPLES, 4, 3])),
  'concat': (4, lambda x: tf.concat([x[:, 2:], M23, x[:, :2], x], 1)),
  'stack': (4, lambda x: tf.stack([x, x[:, ::-1]], 2)),
  'unstack': (4, lambda x: tf.unstack(x, axis=1)[1:] + [x[:, 0]]),
  'split': (4, lambda x: tf.split(x, 2, 1)[0] * tf.split(M24, 2, 1)[1]),
  'split in parts': (4, lambda x: tf.split(x, [1, 3], 1)[1]),
  'slice': (4, lambda x: tf.slice(x, [0, 1], [SAMPLES, 2])),
  'strided slice': (6, lambda x: x[:, -1:0:-2, None]),
  'gradient of a slice': (
    2,
    lambda x: RAW.StridedSliceGrad(
      shape=[SAMPLES, 5], begin=[0, 0], end=[2, 4], strides=[1, 2], dy=x
    ),
  ),
  'assigned to a slice': (
    6,
    lambda x: RAW.TensorStridedSliceUpdate(
      input=x[:, :4], begin=[0, 1], end=[2, 3], strides=[1, 1], value=x[:, 4:]
    ),
  ),
  'pad': (3, lambda x: RAW.Pad(input=x, paddings=[[0, 0], [1, 2]])),
  'pad with a number': (
    3,
    lambda x: tf.pad(x, [[0, 0], [1, 2]], 'CONSTANT', 0.5),
  ),
  'reflect': (4, lambda x: tf.pad(x, [[0, 0], [2, 3]], 'REFLECT')),
  'mirror': (4, lambda x: tf.pad(x, [[0, 0], [2, 3]], 'SYMMETRIC')),
  'reverse': (4, lambda x: tf.reverse(x, [1])),
  'roll': (4, lambda x: tf.roll(x, 1, 1)),
  'reverse sequences': (4, lambda x: tf.reverse_sequence(x, [2, 3], 1, 0)),
  'expand': (3, lambda x: RAW.ExpandDims(input=x, axis=1)),
  'squeeze': (3, lambda x: tf.squeeze(shaped(x, 1, 3), 1)),
  'diagonal matrix': (3, tf.linalg.diag),
  'diagonal of a matrix': (9, lambda x: tf.linalg.diag_part(shaped(x, 3, 3))),
  'set diagonal': (
    12,
    lambda x: tf.linalg.set_diag(*halves(x, [3, 3], [3])),
  ),
  'band': (9, lambda x: tf.linalg.band_part(shaped(x, 3, 3), 1, 0)),
  'space to depth': (16, lambda x: tf.nn.space_to_depth(shaped(x, 4, 4, 1), 2)),
  'depth to space': (16, lambda x: tf.nn.depth_to_space(shaped(x, 2, 2, 4), 2)),
  'space to batch': (
    4,
    each(
      lambda s: tf.space_to_batch(
        tf.reshape(s, [1, 2, 2, 1]), [2, 1], [[0, 0], [0, 0]]
      )
    ),
  ),
  'batch to space': (
    4,
    each(
      lambda s: tf.batch_to_space(
        tf.reshape(s, [4, 1, 1, 1]), [2, 2], [[0, 0], [0, 0]]
      )
    ),
  ),
  'patches': (
    9,
    lambda x: tf.image.extract_patches(
      shaped(x, 3, 3, 1), [1, 2, 2, 1], [1] * 4, [1] * 4, 'VALID'
    ),
  ),
  'fill': (1, each(lambda s: tf.fill([3], s[0]))),
  'gather': (4, lambda x: tf.gather(x, PICKED, axis=1)),
  'partition': (
    4,
    columns(
      lambda x: tf.concat(tf.dynamic_partition(x, [1, 0, 1, 0], 2), 0)[:3]
    ),
  ),
  'old diagonal matrix': (3, each(lambda s: RAW.Diag(diagonal=s))),
  'old diagonal': (
    9,
    each(lambda s: RAW.DiagPart(input=tf.reshape(s, [3, 3]))),
  ),
}
LARGEST = {
  'sorted': (5, tf.sort),
  'largest': (5, lambda x: tf.math.top_k(x, 3)[0]),
  'largest of windows': (
    9,
    lambda x: tf.nn.max_pool2d(shaped(x, 3, 3, 1), 2, 1, 'VALID'),
  ),
  'maximum': (6, lambda x: tf.reduce_max(shaped(x, 2, 3), 1)),
  'minimum': (6, lambda x: tf.reduce_min(x, 1, keepdims=True)),
  'median': (5, lambda x: RAW.NthElement(input=x, n=2)),
  'largest of segments': (
    5,
    columns(lambda x: tf.math.segment_max(x, [0, 0, 1, 1, 1])),
  ),
  'least of segments': (
    5,
    columns(lambda x: tf.math.segment_min(x, [0, 0, 0, 1, 1])),
  ),
  'largest, unsorted': (
    5,
    columns(lambda x: tf.math.unsorted_segment_max(x, [1, -1, 1, 1, 0], 2)),
  ),
  'least, unsorted': (
    5,
    columns(lambda x: tf.math.unsorted_segment_min(x, [1, 0, 1, 1, 0], 2)),
  ),
  'scatter the largest': (
    6,
    columns(lambda x: tf.tensor_scatter_nd_max(x[:3], [[0], [2], [0]], x[3:])),
  ),
  'scatter the least': (
    6,
    columns(lambda x: tf.tensor_scatter_nd_min(x[:3], [[0], [2], [0]], x[3:])),
  ),
}
SUMMED = {
  'sum': (6, lambda x: tf.reduce_sum(shaped(x, 2, 3), 1)),
  'sum of all': (6, lambda x: tf.reduce_sum(x, 1, keepdims=True)),
  'mean': (6, lambda x: tf.reduce_mean(shaped(x, 2, 3), 2)),
  'cumulative': (4, lambda x: tf.cumsum(x, 1)),
  'exclusive': (4, lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True)),
  'several': (6, lambda x: tf.add_n([x[:, :2], x[:, 2:4], x[:, 4:]])),
  'bias': (3, each(lambda s: tf.nn.bias_add(IMAGE[..., :1] + s[:1], s[1:2]))),
  'bias of channels': (
    8,
    each(
      lambda s: tf.nn.bias_add(
        tf.reshape(s[:6], [1, 2, 3]), s[6:], data_format='NC..'
      )
    ),
  ),
  'segments': (4, columns(lambda x: tf.math.segment_sum(x, [0, 0, 2, 2]))),
  'means': (4, columns(lambda x: tf.math.segment_mean(x, [0, 0, 1, 2]))),
  'segments of slices': (
    4,
    columns(lambda x: tf.sparse.segment_sum(x, [2, 0, 1, 2], [0, 0, 1, 1])),
  ),
  'of so many segments': (
    4,
    columns(
      lambda x: tf.sparse.segment_sum(
        x, [2, 3, 0, 1], [0, 0, 1, 1], num_segments=3
      )
    ),
  ),
  'mean of slices': (
    4,
    columns(lambda x: tf.sparse.segment_mean(x, [2, 3, 0, 1], [0, 0, 1, 1])),
  ),
  'mean of so many': (
    4,
    columns(
      lambda x: tf.sparse.segment_mean(
        x, [2, 3, 0, 1], [0, 0, 0, 1], num_segments=3
      )
    ),
  ),
  'sum by a root': (
    4,
    columns(lambda x: tf.sparse.segment_sqrt_n(x, [2, 3, 0, 1], [0, 0, 1, 1])),
  ),
  'sum by a root of so many': (
    4,
    columns(
      lambda x: tf.sparse.segment_sqrt_n(
        x, [2, 3, 0, 1], [0, 0, 0, 1], num_segments=3
      )
    ),
  ),
  'unsorted': (
    4,
    columns(lambda x: tf.math.unsorted_segment_sum(x, [1, -1, 1, 0], 3)),
  ),
  'scatter': (
    4,
    columns(lambda x: tf.scatter_nd([[0], [2], [0], [0]], x, [3, SAMPLES])),
  ),
  'scatter and add': (
    6,
    columns(lambda x: tf.tensor_scatter_nd_add(x[:3], [[0], [2], [0]], x[3:])),
  ),
}
MULTIPLIED = {
  'matrix': (4, lambda x: tf.matmul(x, M43)),
  'triangular system': (
    4,
    columns(lambda x: tf.linalg.triangular_solve(SYSTEM, x)),
  ),
  'system': (
    4,
    lambda x: tf.linalg.solve(
      tf.broadcast_to(SYSTEM, [tf.shape(x)[0], 4, 4]), x[..., tf.newaxis]
    ),
  ),
  'transposed matrix': (4, lambda x: tf.matmul(x, M34, transpose_b=True)),
  'from the left': (4, columns(lambda x: tf.matmul(M34, x))),
  'transposed from the left': (
    4,
    columns(lambda x: tf.matmul(M43, x, transpose_a=True)),
  ),
  'transposed itself': (
    4,
    columns(lambda x: tf.transpose(tf.matmul(x, M43, transpose_a=True))),
  ),
  'both': (12, lambda x: tf.matmul(*halves(x, [2, 3], [3, 2]))),
  'first transposed': (
    12,
    lambda x: tf.matmul(*halves(x, [3, 2], [3, 2]), transpose_a=True),
  ),
  'second transposed': (
    12,
    lambda x: tf.matmul(*halves(x, [2, 3], [2, 3]), adjoint_b=True),
  ),
  'of one sample': (
    12,
    each(
      lambda s: tf.matmul(
        tf.reshape(s[:6], [3, 2]),
        tf.reshape(s[6:], [2, 3]),
        transpose_a=True,
        transpose_b=True,
      )
    ),
  ),
  'broadcast constant': (
    4,
    lambda x: tf.matmul(shaped(x, 1, 2, 2), BATCH),
  ),
  'broadcast both': (
    14,
    lambda x: tf.matmul(*halves(x, [1, 1, 2], [3, 2, 2])),
  ),
  'einsum': (6, lambda x: tf.einsum('bij,jk->bik', shaped(x, 2, 3), M34)),
  'einsum with an ellipsis': (
    6,
    lambda x: tf.einsum('...ij,jk->...ik', shaped(x, 2, 3), M34),
  ),
  'ellipsis of both': (
    9,
    lambda x: tf.einsum(
      '...i,...i->...', shaped(x[:, :6], 2, 3), x[:, tf.newaxis, 6:]
    ),
  ),
  'einsum of both': (
    12,
    lambda x: tf.einsum('bij,bkj->bki', *halves(x, [2, 3], [2, 3])),
  ),
  'outer product': (5, lambda x: tf.einsum('bi,bj->bij', x[:, :2], x[:, 2:])),
  'inner product': (
    12,
    lambda x: tf.einsum('bij,bij->b', *halves(x, [2, 3], [2, 3])),
  ),
  'convolution of images': (
    18,
    lambda x: tf.nn.conv2d(shaped(x, 3, 3, 2), KERNEL, [1, 2], 'SAME'),
  ),
  'padded': (
    18,
    lambda x: tf.nn.conv2d(
      shaped(x, 3, 3, 2), KERNEL, 1, [[0, 0], [1, 0], [0, 2], [0, 0]]
    ),
  ),
  'kernel': (
    8,
    each(lambda s: tf.nn.conv2d(IMAGE, tf.reshape(s, [2, 2, 2, 1]), 1, 'SAME')),
  ),
  'image and kernel': (
    12,
    each(
      lambda s: tf.nn.conv2d(
        tf.reshape(s[:8], [1, 4, 2, 1]),
        tf.reshape(s[8:], [2, 2, 1, 1]),
        1,
        'SAME',
      )
    ),
  ),
  'volume': (
    8,
    each(
      lambda s: tf.nn.conv3d(
        VOLUME, tf.reshape(s, [2, 2, 2, 1, 1]), [1] * 5, 'VALID'
      )
    ),
  ),
  'depthwise': (
    18,
    lambda x: tf.nn.depthwise_conv2d(
      shaped(x, 3, 3, 2), DEPTHWISE, [1] * 4, 'VALID'
    ),
  ),
  'depthwise kernel': (
    16,
    each(
      lambda s: tf.nn.depthwise_conv2d(
        IMAGE, tf.reshape(s, [2, 2, 2, 2]), [1] * 4, 'SAME'
      )
    ),
  ),
  'transposed convolution': (
    8,
    lambda x: tf.nn.conv2d_transpose(
      shaped(x, 2, 2, 2), BACK, [SAMPLES, 4, 2, 1], [2, 1], 'SAME'
    ),
  ),
  'back by a kernel': (
    8,
    each(
      lambda s: tf.nn.conv2d_transpose(
        IMAGE, tf.reshape(s, [2, 2, 1, 2]), [1, 4, 4, 1], 1, 'SAME'
      )
    ),
  ),
  'back from a volume': (
    8,
    lambda x: tf.nn.conv3d_transpose(
      shaped(x, 2, 2, 2, 1), CUBE, [SAMPLES, 3, 3, 3, 2], 1, 'VALID'
    ),
  ),
  'back from each channel': (
    16,
    lambda x: tf.nn.depthwise_conv2d_backprop_input(
      [SAMPLES, 3, 3, 2], DEPTHWISE, shaped(x, 2, 2, 4), [1] * 4, 'VALID'
    ),
  ),
  'sparse': (4, columns(lambda x: tf.sparse.sparse_dense_matmul(ROWS, x))),
  'dense by sparse': (4, lambda x: tf.sparse.sparse_dense_matmul(x, ROWS_T)),
  'sparse and turned': (
    2,
    columns(lambda x: tf.sparse.sparse_dense_matmul(ROWS, x, adjoint_a=True)),
  ),
}
# Of these a sweep cannot be right for all.
UNFIT = {
  # Two results have an element in common.
  'means with a slice in common': (
    3,
    columns(lambda x: tf.sparse.segment_mean(x, [0, 1, 0, 2], [0, 0, 1, 1])),
  ),
  # Of one operand, or with a label that is summed alone: products add up.
  'einsum of one': (9, lambda x: tf.einsum('bii->bi', shaped(x, 3, 3))),
  'summed alone': (4, lambda x: tf.einsum('bj,ij->b', x, M34)),
  'summed both': (5, lambda x: tf.einsum('bi,bj->b', x[:, :2], x[:, 2:])),
  'sparse with duplicates': (
    4,
    columns(lambda x: tf.sparse.sparse_dense_matmul(TWICE, x)),
  ),
  'prefix products': (4, lambda x: tf.math.cumprod(x, 1)),
  'averages': (
    4,
    lambda x: tf.nn.avg_pool1d(x[..., None], 2, 1, 'VALID'),
  ),
}
# Of numbers between 0.2 and 0.9.
UNARY = [
  *(tf.abs, tf.acos, tf.asinh, tf.atan, tf.cosh, tf.exp, tf.math.digamma),
  *(tf.math.erf, tf.math.expm1, tf.math.lgamma, tf.math.log, tf.math.log1p),
  *(tf.math.ndtri, tf.math.reciprocal, tf.math.rsqrt, tf.nn.elu, tf.nn.relu),
  *(tf.nn.selu, tf.nn.leaky_relu, tf.math.softplus, tf.sigmoid),
  *(tf.square, tf.sqrt, tf.tan, tf.tanh, tf.negative, tf.floor),
]
BINARY = [
  *(tf.add, tf.subtract, tf.multiply, tf.divide, tf.pow, tf.atan2, tf.maximum),
  *(tf.minimum, tf.math.squared_difference, tf.math.xlogy, tf.math.xlog1py),
  *(tf.math.divide_no_nan, tf.math.multiply_no_nan, tf.math.floormod),
  lambda x, y: tf.where([[True], [False]], x, y),
]
ELEMENTWISE = {
  **{f'{k}': (2, fn) for k, fn in enumerate(UNARY)},
  # The one argument is broadcast against the other.
  **{
    f'of two {k}': (3, lambda x, fn=fn: fn(x[:, :1, None], x[:, None, 1:]))
    for k, fn in enumerate(BINARY)
  },
  'once more': (2, lambda x: x * x),
  'with a constant': (2, lambda x: M24[:, :1] / (1.0 + x)),
}
FAMILIES = {
  'elementwise': ELEMENTWISE,
  'moved': MOVED,
  'largest': LARGEST,
  'summed': SUMMED,
  'multiplied': MULTIPLIED,
  'unfit': UNFIT,
}


def side_by_side(forms):
  """Waves of all forms, each of coordinates of its own, added up.

  Returns:
    fn: Function of all coordinates, and of one more that shifts all waves.
    starts: array of int, where those of each form begin; and their number.
  """
  starts = np.cumsum([0, *(size for size, _ in forms.values())])

  def values(x):
    made = [
      form(x[:, start : start + size])
      for start, (size, form) in zip(starts, forms.values())
    ]
    flat = [tf.reshape(y, [SAMPLES, -1]) for y in tf.nest.flatten(made)]
    return tf.concat(flat, 1)

  shape = values(tf.zeros([SAMPLES, starts[-1]], tf.float64)).shape
  phase, weight = constant(*shape), constant(*shape)

  def fn(x):
    y = tf.ensure_shape(values(x), shape)
    return tf.reduce_sum(weight * tf.sin(phase + y + x[:, -1:]), 1)

  return fn, starts


def dense_diagonal(fn, x, starts, order=2):
  """By tapes; coordinates of different forms meet the last one alone."""
  result = np.zeros(x.shape)

  @tf.function(autograph=False)
  def derivative(seed):
    def along(k):
      with tf.GradientTape() as tape:
        tape.watch(x)
        value = along(k - 1) if k else fn(x)
      found = tape.gradient(value, x, seed if k else None)
      return tf.convert_to_tensor(found)

    return along(order - 1)

  seeds = [
    starts[:-1][np.diff(starts) > k] + k for k in range(np.diff(starts).max())
  ]
  for places in [*seeds, [-1]]:
    seed = np.zeros(x.shape)
    seed[:, places] = 1.0
    result[:, places] = derivative(tf.constant(seed)).numpy()[:, places]
  return result


def compare(fn, x, starts, names):
  """Raises with the names of the forms that are wrong; the plan.

  In a graph, where nothing is compared with a pass.
  """
  plan = tfp_diag.plan_diag_hessian(fn, x)
  got = tf.function(lambda x: plan(x)[2])(x).numpy()
  want = dense_diagonal(fn, x, starts)
  assert np.isfinite(want).all()
  wrong = [
    name
    for name, a, b in zip(
      [*names, 'the last'],
      np.split(got, starts[1:], 1),
      np.split(want, starts[1:], 1),
    )
    if not np.allclose(a, b, rtol=1e-9, atol=1e-11)
  ]
  assert not wrong
  return plan


def traced(fn, *shape):
  spec = tf.TensorSpec(shape, tf.float64)
  graph = trace(lambda parts: fn(parts[0]), lambda y, _: [y], [spec])
  SEEN.update(op.type for op in graph.ops)
  return graph


def swept_everywhere(fn, *shape):
  """The coordinates of the sweep that squares all derivatives."""
  graph = traced(fn, *shape)
  found = next(analyze(graph, 1, None, is_hessian=True).sweeps())
  result = np.zeros(len(found.left_over), bool)
  for one in found.sweeps:
    if not one.frontiers:
      result |= one.coordinates
  return result


@pytest.mark.parametrize('family', FAMILIES)
def test_forms(family, prefers_sweeps):
  forms = FAMILIES[family]
  fn, starts = side_by_side(forms)
  x = tf.constant(RNG.uniform(0.2, 0.9, [SAMPLES, starts[-1] + 1]))
  plan = compare(fn, x, starts, forms)
  assert plan.ways[0].name == 'squared sweeps'
  squared = np.split(swept_everywhere(fn, *x.shape), starts[1:])
  odd = [
    name
    for name, mask in zip(forms, squared[:-1])
    if mask.all() == (family == 'unfit')
  ]
  assert not odd


@pytest.mark.parametrize('how', ['eager', 'xla'])
def test_where_elements_are_equal(how, prefers_sweeps):
  # For these XLA has no kernel.
  missing = {'median', 'largest of segments', 'least of segments'}
  forms = {
    name: form
    for name, form in LARGEST.items()
    if how != 'xla' or name not in missing
  }
  fn, starts = side_by_side(forms)
  x = RNG.uniform(0.2, 0.9, [SAMPLES, starts[-1] + 1])
  x[1] = RNG.choice([0.3, 0.6], len(x[1]))
  x = tf.constant(x)

  def third(x):
    return tfp_diag.unmixed_derivatives(fn, x)

  if how == 'xla':
    third = tf.function(third, jit_compile=True)
  found = third(x)
  for order, got in ((2, found.second), (3, found.third)):
    want = dense_diagonal(fn, x, starts, order)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


# Op types of squared forms that are not tried here, and why.
NOT_TRIED = {
  'no kernel, or another name of one that is tried': {
    *('BatchMatMul', 'BatchMatMulV3', 'BatchToSpace', 'Concat', 'SparseMatMul'),
    *('MatrixDiag', 'MatrixDiagPart', 'MatrixDiagPartV2', 'MatrixDiagV2'),
    *('MatrixSetDiag', 'MatrixSetDiagV2', 'SpaceToBatch', 'SegmentSum'),
  },
  'no gradient, or no second one': {'OneHot', 'ResizeNearestNeighbor'},
  'of integers': {'ConcatOffset'},
  'rounds': {'Cast'},
  'of variables': {'ResourceGather', 'ResourceGatherNd'},
}


def test_every_op_type_with_squares_is_tried():
  for forms in (MOVED, LARGEST, SUMMED, MULTIPLIED):
    fn, starts = side_by_side(forms)
    traced(fn, SAMPLES, starts[-1] + 1)
  known = {
    op_type
    for op_type, facts in registry._FACTS.items()
    if facts.squares is not None or facts.moved_inputs != ()
  }
  assert known - SEEN - set.union(*NOT_TRIED.values()) == set()
