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
"""Tests the ops that move elements against differences."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

import tfp_diag
from tfp_diag.sparsity import jacobian_sparsity
from tfp_diag.sparsity.rules import data_movement

raw = tf.raw_ops

# (op type, function, shapes)
CASES = [
  (
    'BatchToSpace',
    lambda x: raw.BatchToSpace(input=x, crops=[[0, 0], [0, 1]], block_size=2),
    [(4, 1, 2, 2)],
  ),
  (
    'BatchToSpaceND',
    lambda x: tf.batch_to_space(x, [2], [[0, 1]]),
    [(4, 2, 1)],
  ),
  ('BroadcastTo', lambda x: tf.broadcast_to(x, [2, 3]), [(3,)]),
  ('BroadcastTo', lambda x: tf.broadcast_to(x, [0, 3]), [(3,)]),
  (
    'Concat',
    lambda x, y: raw.Concat(concat_dim=1, values=[x, y]),
    [(2, 3), (2, 1)],
  ),
  ('ConcatV2', lambda x, y: tf.concat([x, y, x], 0), [(2, 3), (1, 3)]),
  (
    'ConcatV2',
    lambda x: tf.concat([x, tf.zeros([2, 2], tf.float64)], 1),
    [(2, 1)],
  ),
  ('ConcatV2', lambda x, y: tf.concat([x, y], 0), [(0,), (1,)]),
  (
    'ConjugateTranspose',
    lambda x: tf.math.imag(
      raw.ConjugateTranspose(x=tf.complex(x, x), perm=[1, 0])
    ),
    [(2, 3)],
  ),
  ('DepthToSpace', lambda x: tf.nn.depth_to_space(x, 2), [(1, 2, 1, 8)]),
  ('Diag', lambda x: raw.Diag(diagonal=x), [(3,)]),
  ('DiagPart', lambda x: raw.DiagPart(input=x), [(2, 3, 2, 3)]),
  (
    'DynamicPartition',
    lambda x: tf.dynamic_partition(x, [0, 1, 0, 2], 3),
    [(4, 2)],
  ),
  ('ExpandDims', lambda x: tf.expand_dims(x, -1), [(2, 3)]),
  (
    'ExtractImagePatches',
    lambda x: tf.image.extract_patches(
      x, [1, 2, 2, 1], [1, 1, 2, 1], [1, 1, 1, 1], 'SAME'
    ),
    [(1, 3, 4, 2)],
  ),
  ('Fill', lambda x: tf.fill([2, 3], x), [()]),
  ('MatrixBandPart', lambda x: tf.linalg.band_part(x, 1, 0), [(2, 3, 4)]),
  ('MatrixDiag', lambda x: raw.MatrixDiag(diagonal=x), [(2, 3)]),
  ('MatrixDiagPart', lambda x: raw.MatrixDiagPart(input=x), [(2, 3, 4)]),
  (
    'MatrixDiagPartV2',
    lambda x, p: raw.MatrixDiagPartV2(input=x, k=[-1, 1], padding_value=p),
    [(2, 3, 4), ()],
  ),
  (
    'MatrixDiagPartV3',
    lambda x: tf.linalg.diag_part(x, k=(-1, 0)),
    [(3, 4)],
  ),
  (
    'MatrixDiagV2',
    lambda x, p: raw.MatrixDiagV2(
      diagonal=x, k=1, num_rows=-1, num_cols=-1, padding_value=p
    ),
    [(2, 3), ()],
  ),
  ('MatrixDiagV3', lambda x: tf.linalg.diag(x, k=-1), [(2, 3)]),
  (
    'MatrixSetDiag',
    lambda x, d: raw.MatrixSetDiag(input=x, diagonal=d),
    [(2, 3, 4), (2, 3)],
  ),
  (
    'MatrixSetDiagV2',
    lambda x, d: raw.MatrixSetDiagV2(input=x, diagonal=d, k=1),
    [(3, 4), (3,)],
  ),
  (
    'MatrixSetDiagV3',
    lambda x, d: tf.linalg.set_diag(x, d, k=-1),
    [(3, 4), (2,)],
  ),
  ('MirrorPad', lambda x: tf.pad(x, [[1, 2]], 'REFLECT'), [(4,)]),
  ('MirrorPad', lambda x: tf.pad(x, [[0, 0], [2, 1]], 'SYMMETRIC'), [(2, 3)]),
  (
    'MirrorPadGrad',
    lambda x: raw.MirrorPadGrad(input=x, paddings=[[1, 2]], mode='REFLECT'),
    [(7,)],
  ),
  (
    'MirrorPadGrad',
    lambda x: raw.MirrorPadGrad(
      input=x, paddings=[[0, 0], [2, 1]], mode='SYMMETRIC'
    ),
    [(2, 6)],
  ),
  ('OneHot', lambda a, b: tf.one_hot([0, 2], 3, a, b), [(), ()]),
  ('Pack', lambda x, y: tf.stack([x, y, x], 1), [(2, 3), (2, 3)]),
  ('Pad', lambda x: raw.Pad(input=x, paddings=[[1, 0], [0, 2]]), [(2, 3)]),
  (
    'PadV2',
    lambda x, c: raw.PadV2(input=x, paddings=[[1, 2]], constant_values=c),
    [(3,), ()],
  ),
  ('Reshape', lambda x: tf.reshape(x, [3, -1]), [(2, 3)]),
  ('Reshape', lambda x: tf.reshape(x, [0, 5]), [(5, 0)]),
  (
    'ResizeNearestNeighbor',
    lambda x: tf.image.resize(x, [3, 4], method='nearest'),
    [(1, 2, 3, 1)],
  ),
  (
    'ReverseSequence',
    lambda x: tf.reverse_sequence(x, [1, 3], seq_axis=1),
    [(2, 4)],
  ),
  ('ReverseV2', lambda x: tf.reverse(x, [1]), [(2, 3)]),
  ('Roll', lambda x: tf.roll(x, 2, 0), [(5,)]),
  ('Slice', lambda x: tf.slice(x, [1, 0], [1, 2]), [(2, 3)]),
  (
    'SpaceToBatch',
    lambda x: raw.SpaceToBatch(
      input=x, paddings=[[0, 0], [1, 0]], block_size=2
    ),
    [(1, 2, 3, 1)],
  ),
  (
    'SpaceToBatchND',
    lambda x: tf.space_to_batch(x, [2], [[1, 0]]),
    [(2, 3, 1)],
  ),
  ('SpaceToDepth', lambda x: tf.nn.space_to_depth(x, 2), [(1, 2, 4, 1)]),
  ('Split', lambda x: tf.split(x, 3, 1)[1:], [(2, 6)]),
  ('SplitV', lambda x: tf.split(x, [1, 0, 3], 0), [(4, 2)]),
  ('Squeeze', lambda x: tf.squeeze(x, 1), [(2, 1, 3)]),
  ('StridedSlice', lambda x: x[::-2, tf.newaxis, 1], [(5, 3)]),
  (
    'StridedSliceGrad',
    lambda x: raw.StridedSliceGrad(
      shape=[5], begin=[4], end=[0], strides=[-2], dy=x
    ),
    [(2,)],
  ),
  (
    'TensorStridedSliceUpdate',
    lambda x, v: raw.TensorStridedSliceUpdate(
      input=x, begin=[1], end=[4], strides=[2], value=v
    ),
    [(5,), (2,)],
  ),
  ('Tile', lambda x: tf.tile(x, [2, 3]), [(2, 1)]),
  ('Transpose', lambda x: tf.transpose(x, [2, 0, 1]), [(2, 3, 4)]),
  ('Transpose', lambda x: tf.transpose(x), [(1, 0)]),
  ('Unpack', lambda x: tf.unstack(x, axis=1)[1:], [(2, 3)]),
]


@pytest.mark.parametrize(
  'op_type, fn, shapes', CASES, ids=[case[0] for case in CASES]
)
def test_against_differences(op_type, fn, shapes, check_rule):
  check_rule(op_type, fn, *shapes)


def test_every_op_type_is_in_a_test(op_types_of):
  of_xla = {'XlaDynamicUpdateSlice'}  # Below.
  assert op_types_of(data_movement) == {case[0] for case in CASES} | of_xla


def test_compositions(check_rule):
  def shuffled(x, y):
    z = tf.concat([tf.transpose(x), tf.reshape(y, [3, 1])], 1)
    return tf.roll(z, 1, 0)[::2] * z[1:]

  check_rule(None, shuffled, (2, 3), (3,))


@pytest.mark.parametrize('begin', [0, 2])
def test_a_slice_is_differentiated_under_xla(begin):
  """Its gradient is an op of its own there, with no kernel elsewhere."""
  x = np.random.default_rng(1).normal(size=[2, 6])
  patterns = []

  def score(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = tf.reduce_sum(tf.sin(tf.slice(x, [0, begin], [2, 3])))
    return tape.gradient(y, x) * x

  @tf.function(jit_compile=True, autograph=False)
  def diagonal(x):
    patterns.append(jacobian_sparsity(score, x, [2]))
    return tfp_diag.diag_jacobian(x, fn=score, sample_shape=[2])[1][0]

  found = diagonal(tf.constant(x))

  inside = (np.arange(6) >= begin) & (np.arange(6) < begin + 3)
  expected = np.where(inside, np.cos(x) - x * np.sin(x), 0.0)
  np.testing.assert_allclose(found, expected, atol=1e-12)
  np.testing.assert_array_equal(patterns[0].matrix.toarray(), np.eye(6))


@pytest.mark.parametrize('begin, place', [(1, 1), (5, 3), (-2, 0)])
def test_a_piece_is_written_as_xla_does(begin, place):
  """At the nearest place where it fits; both inputs depend on `xs`."""
  patterns = []

  def written(x):
    return gen_xla_ops.xla_dynamic_update_slice(x, x[:3], [begin])

  @tf.function(jit_compile=True, autograph=False)
  def run(x):
    patterns.append(jacobian_sparsity(written, x))
    return written(x)

  source = run(tf.range(6.0)).numpy().astype(int)

  expected = np.arange(6)
  expected[place : place + 3] = np.arange(3)
  np.testing.assert_array_equal(source, expected)
  np.testing.assert_array_equal(
    patterns[0].matrix.toarray(), np.eye(6)[expected]
  )
