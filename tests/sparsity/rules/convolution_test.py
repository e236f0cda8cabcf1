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
"""Tests windows over space against differences."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity.detect import jacobian_sparsity
from tfp_diag.sparsity.rules import convolution
from tfp_diag.sparsity.samples import SampleMixingError

raw = tf.raw_ops
BY_CASES = {'exact': False, 'exact_second': False}
# Ops with float32 kernels only, linear: a long step makes up for it.
FLOAT32 = {'step': 0.05, 'second': False, 'exact': False}
STRIDES = [1, 1, 2, 1]
ONES = [1, 1, 1, 1]


def with_zeros(*shape):
  """A filter of which half is zero."""
  values = np.random.default_rng(0).permutation(np.arange(np.prod(shape)))
  return tf.constant(np.where(values % 2, values, 0.0).reshape(shape))


CASES = [
  (
    'ResizeBilinear',
    lambda x: tf.image.resize(x, [3, 5]),
    [(2, 2, 3, 2)],
    FLOAT32,
  ),
  (
    'ResizeBicubic',
    lambda x: tf.image.resize(x, [3, 2], method='bicubic'),
    [(1, 2, 3, 1)],
    FLOAT32,
  ),
  (
    'Conv2D',
    lambda x, f: tf.nn.conv2d(x, f, STRIDES, 'SAME'),
    [(1, 2, 3, 2), (2, 2, 2, 1)],
    BY_CASES,
  ),
  (
    'Conv2D',
    lambda x: tf.nn.conv2d(
      x, tf.ones([2, 2, 1, 2], tf.float64), 1, [[0, 0], [1, 0], [0, 2], [0, 0]]
    ),
    [(2, 2, 2, 1)],
    {},
  ),
  # Filters with zeros.
  (
    'Conv2D',
    lambda x: tf.nn.conv2d(x, with_zeros(3, 2, 2, 3), 1, 'SAME', None, [1, 2]),
    [(2, 3, 4, 2)],
    {},
  ),
  (
    'Conv2D',
    lambda x: tf.nn.conv1d(x, with_zeros(3, 1, 4), 2, 'VALID'),
    [(2, 7, 2)],
    {},
  ),
  (
    'Conv3D',
    lambda x: tf.nn.conv3d(x, with_zeros(2, 3, 1, 1, 2), ONES + [1], 'SAME'),
    [(1, 2, 3, 2, 1)],
    {},
  ),
  (
    'DepthwiseConv2dNative',
    lambda x: tf.nn.depthwise_conv2d(
      x, with_zeros(3, 2, 2, 2), [1, 2, 2, 1], 'SAME'
    ),
    [(2, 3, 4, 2)],
    {},
  ),
  (
    'Conv2DBackpropInput',
    lambda x: tf.nn.conv2d_transpose(
      x, with_zeros(3, 2, 2, 3), [1, 4, 6, 2], 2, 'SAME'
    ),
    [(1, 2, 3, 3)],
    {},
  ),
  # Two groups of channels; a series is an image of height 1.
  (
    'Conv2D',
    lambda x, f: tf.nn.conv1d(x, f, 1, 'VALID', dilations=2),
    [(1, 4, 4), (2, 4, 1)],
    BY_CASES,
  ),
  (
    'Conv3D',
    lambda x, f: tf.nn.conv3d(x, f, [1, 1, 1, 2, 1], 'SAME'),
    [(1, 2, 1, 3, 1), (2, 1, 2, 1, 1)],
    BY_CASES,
  ),
  (
    'DepthwiseConv2dNative',
    lambda x, f: tf.nn.depthwise_conv2d(x, f, ONES, 'SAME'),
    [(1, 2, 2, 2), (2, 1, 2, 2)],
    BY_CASES,
  ),
  (
    'Conv2DBackpropInput',
    lambda f, y: raw.Conv2DBackpropInput(
      input_sizes=[1, 2, 3, 2],
      filter=f,
      out_backprop=y,
      strides=STRIDES,
      padding='SAME',
    ),
    [(2, 2, 2, 1), (1, 2, 2, 1)],
    BY_CASES,
  ),
  (
    'Conv2DBackpropFilter',
    lambda x, y: raw.Conv2DBackpropFilter(
      input=x,
      filter_sizes=[2, 2, 2, 1],
      out_backprop=y,
      strides=STRIDES,
      padding='SAME',
    ),
    [(1, 2, 3, 2), (1, 2, 2, 1)],
    BY_CASES,
  ),
  (
    'Conv3DBackpropInputV2',
    lambda f, y: raw.Conv3DBackpropInputV2(
      input_sizes=[1, 2, 1, 2, 1],
      filter=f,
      out_backprop=y,
      strides=[1] * 5,
      padding='SAME',
    ),
    [(2, 1, 2, 1, 1), (1, 2, 1, 2, 1)],
    BY_CASES,
  ),
  (
    'Conv3DBackpropFilterV2',
    lambda x, y: raw.Conv3DBackpropFilterV2(
      input=x,
      filter_sizes=[2, 1, 2, 1, 1],
      out_backprop=y,
      strides=[1] * 5,
      padding='SAME',
    ),
    [(1, 2, 1, 2, 1), (1, 2, 1, 2, 1)],
    BY_CASES,
  ),
  (
    'DepthwiseConv2dNativeBackpropInput',
    lambda f, y: raw.DepthwiseConv2dNativeBackpropInput(
      input_sizes=[1, 2, 2, 2],
      filter=f,
      out_backprop=y,
      strides=ONES,
      padding='SAME',
    ),
    [(2, 1, 2, 1), (1, 2, 2, 2)],
    BY_CASES,
  ),
  (
    'DepthwiseConv2dNativeBackpropFilter',
    lambda x, y: raw.DepthwiseConv2dNativeBackpropFilter(
      input=x,
      filter_sizes=[2, 1, 2, 1],
      out_backprop=y,
      strides=ONES,
      padding='SAME',
    ),
    [(1, 2, 2, 2), (1, 2, 2, 2)],
    BY_CASES,
  ),
  (
    'AvgPool',
    lambda x: tf.nn.avg_pool2d(x, [1, 2], [1, 2], 'SAME'),
    [(1, 2, 3, 2)],
    {},
  ),
  (
    'AvgPool3D',
    lambda x: tf.nn.avg_pool3d(tf.cast(x, tf.float32), 2, 1, 'VALID'),
    [(1, 2, 2, 3, 1)],
    FLOAT32,
  ),
  (
    'MaxPool',
    lambda x: tf.nn.max_pool2d(x, 2, 1, 'SAME'),
    [(1, 2, 3, 1)],
    BY_CASES,
  ),
  (
    'MaxPool3D',
    lambda x: tf.nn.max_pool3d(tf.cast(x, tf.float32), 2, 1, 'VALID'),
    [(1, 2, 2, 3, 1)],
    FLOAT32,
  ),
  (
    'AvgPoolGrad',
    lambda y: raw.AvgPoolGrad(
      orig_input_shape=[1, 2, 3, 2],
      grad=y,
      ksize=[1, 1, 2, 1],
      strides=[1, 1, 2, 1],
      padding='SAME',
    ),
    [(1, 2, 2, 2)],
    {},
  ),
  (
    'AvgPool3DGrad',
    lambda y: raw.AvgPool3DGrad(
      orig_input_shape=[1, 2, 2, 3, 1],
      grad=tf.cast(y, tf.float32),
      ksize=[1, 2, 2, 2, 1],
      strides=[1] * 5,
      padding='VALID',
    ),
    [(1, 1, 1, 2, 1)],
    FLOAT32,
  ),
  (
    'MaxPoolGrad',
    lambda y: raw.MaxPoolGrad(
      orig_input=tf.reshape(tf.range(6.0, dtype=tf.float64), [1, 2, 3, 1]),
      orig_output=tf.constant([[[[4.0], [5.0]]]], tf.float64),
      grad=y,
      ksize=[1, 2, 2, 1],
      strides=ONES,
      padding='VALID',
    ),
    [(1, 1, 2, 1)],
    BY_CASES,
  ),
  ('BiasAdd', tf.nn.bias_add, [(2, 2, 3), (3,)], {}),
  ('BiasAddGrad', lambda x: raw.BiasAddGrad(out_backprop=x), [(2, 2, 3)], {}),
]


@pytest.mark.parametrize(
  'op_type, fn, shapes, options', CASES, ids=[case[0] for case in CASES]
)
def test_against_differences(op_type, fn, shapes, options, check_rule):
  check_rule(op_type, fn, *shapes, **options)


# Tested one by one: not for doubles.
OTHERS = {
  'FusedBatchNorm',
  'FusedBatchNormV2',
  'FusedBatchNormV3',
  'MaxPool3DGrad',
}


def test_every_op_type_is_in_a_test(op_types_of):
  assert op_types_of(convolution) == {case[0] for case in CASES} | OTHERS


def test_the_gradient_of_pooled_volumes():
  def gradient(y):
    return raw.MaxPool3DGrad(
      orig_input=tf.zeros([1, 1, 1, 3, 1]),
      orig_output=tf.zeros([1, 1, 1, 2, 1]),
      grad=y,
      ksize=[1, 1, 1, 2, 1],
      strides=[1] * 5,
      padding='VALID',
    )

  pattern = jacobian_sparsity(gradient, tf.TensorSpec([1, 1, 1, 2, 1]))
  assert pattern.matrix.toarray().tolist() == [
    [True, False],
    [True, True],
    [False, True],
  ]


@pytest.mark.parametrize('version', ['', 'V2', 'V3'])
def test_batch_normalization(version):
  def normalized(x, training):
    return getattr(raw, f'FusedBatchNorm{version}')(
      x=x,
      scale=[1.0, 2.0],
      offset=[0.0, 0.0],
      mean=[] if training else [0.0, 0.0],
      variance=[] if training else [1.0, 1.0],
      is_training=training,
    ).y

  spec = tf.TensorSpec([5, 1, 3, 2])
  pattern = jacobian_sparsity(lambda x: normalized(x, False), spec, [5])
  assert pattern.nnz == 6
  with pytest.raises(SampleMixingError, match='FusedBatchNorm'):
    jacobian_sparsity(lambda x: normalized(x, True), spec, [5])
  whole = jacobian_sparsity(lambda x: normalized(x, True), spec)
  assert whole.nnz == 2 * 15**2
