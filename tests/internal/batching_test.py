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
"""Shapes: what is known, what fits, and what the errors say."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.internal import batching


@pytest.mark.parametrize(
  'sample_shape, sizes',
  [
    (None, []),
    ([], []),
    (5, [5]),
    (np.int32(5), [5]),
    ([3, 5], [3, 5]),
    ((3, None), [3, None]),
    ([tf.constant(3), np.int64(5)], [3, 5]),
    (np.array([3, 5]), [3, 5]),
    (tf.constant([3, 5]), [3, 5]),
    (tf.TensorShape([3, None]), [3, None]),
    (tf.TensorShape([]), []),
  ],
  ids=repr,
)
def test_sample_sizes(sample_shape, sizes):
  assert batching.sample_sizes(sample_shape) == sizes
  assert batching.sample_rank(sample_shape) == len(sizes)


def test_sizes_of_a_graph():
  @tf.function(input_signature=[tf.TensorSpec([None, 2])], autograph=False)
  def check(x):
    assert batching.sample_sizes(tf.shape(x) + 1) == [None, None]
    assert batching.sample_sizes([tf.shape(x)[0] + 1, 2]) == [None, 2]
    assert batching.sample_sizes(tf.constant([3, 2])) == [3, 2]
    return x

  check(tf.ones([3, 2]))


@pytest.mark.parametrize(
  'sample_shape', [[-1], [1.5], 2.5, 'all', [[1]], ['a'], [True, 2], [True], {}]
)
def test_what_is_no_shape(sample_shape):
  with pytest.raises(ValueError, match=r'`sample_shape` is .* no shape'):
    batching.sample_sizes(sample_shape)


@pytest.mark.parametrize('spec', [tf.TensorSpec([None], tf.int32), None])
def test_an_unknown_number_of_dimensions(spec):
  def check(shape):
    with pytest.raises(ValueError, match='number of dimensions is not'):
      batching.sample_rank(shape)
    return 0

  if spec is None:
    check(tf.TensorShape(None))
  else:
    tf.function(check, [spec], autograph=False).get_concrete_function()


def test_parts_are_converted():
  variable = tf.Variable([1.0])
  parts = batching.convert_parts(
    [variable, 1, np.ones([2]), [1.0, 2.0], tf.ones([], tf.bfloat16)]
  )
  assert parts[0] is variable
  assert [p.dtype.name for p in parts] == [
    *('float32', 'float32', 'float64', 'float32', 'bfloat16')
  ]


@pytest.mark.parametrize('dtype', [tf.int32, tf.bool, tf.complex64])
def test_parts_that_are_not_floating(dtype):
  with pytest.raises(TypeError, match=f'Part 1 of `xs` has dtype {dtype.name}'):
    batching.convert_parts([1.0, tf.zeros([2], dtype)])


def test_no_parts():
  with pytest.raises(ValueError, match='`state` has no part'):
    batching.convert_parts([], 'state')


def test_event_shapes():
  xs = [tf.ones([3, 5]), tf.ones([3, 5, 2, 0])]
  assert batching.event_shapes(xs, 0) == [[3, 5], [3, 5, 2, 0]]
  assert batching.event_shapes(xs, 2) == [[], [2, 0]]
  with pytest.raises(ValueError, match='Part 0 of `xs` has shape'):
    batching.event_shapes(xs, 3)


@pytest.mark.parametrize('fits', [None, [], 3, [3], [3, 5], [None, 5]])
def test_sample_shapes_that_lead(fits):
  batching.check_sample_shape([tf.ones([3, 5]), tf.ones([3, 5, 2])], fits)


@pytest.mark.parametrize(
  'other, part', [([5], 0), ([3, 5], 1), ([None, 5], 1), ([3, 4, 2], 0)]
)
def test_sample_shapes_that_do_not_lead(other, part):
  xs = [tf.ones([3, 5]), tf.ones([3, 4])]
  with pytest.raises(ValueError, match=f'art {part} of `xs` has shape'):
    batching.check_sample_shape(xs, other)


@pytest.mark.parametrize(
  'y_shape, dynamic',
  [([2, 3], False), ([3], False), ([], False), ([2, 1], True), ([1, 1], True)],
)
def test_broadcasting(y_shape, dynamic):
  values = np.random.default_rng(0).normal(size=y_shape)

  def broadcast(y, x):
    return batching.broadcast_to_part(y, x, 0)

  spec = tf.TensorSpec([None, None] if dynamic else [2, 3], tf.float32)
  y_spec = tf.TensorSpec([None] * len(y_shape), tf.float64)
  result = tf.function(broadcast, [y_spec, spec], autograph=False)(
    values, tf.zeros([2, 3])
  )
  np.testing.assert_allclose(result, np.broadcast_to(values, [2, 3]), rtol=1e-6)
  assert result.dtype == tf.float32


@pytest.mark.parametrize('y_shape', [[2], [3, 3], [1, 2, 3], [2, 3, 1]])
def test_what_does_not_broadcast(y_shape):
  with pytest.raises(ValueError, match=r'Part 4 of `ys`.*part 4 of `xs`'):
    batching.broadcast_to_part(tf.ones(y_shape), tf.ones([2, 3]), 4)


def test_values():
  xs = [tf.ones([3, 5]), tf.ones([3])]
  batching.check_value(tf.ones([3]), xs, None)
  batching.check_value(tf.ones([3]), xs, 1)
  batching.check_value(tf.ones([]), xs, 0)
  for value, rank, sentence in [
    (tf.ones([3]), 0, 'has 0 dimensions'),
    (tf.ones([5]), None, 'does not lead'),
    (tf.ones([3, 5]), None, 'part 1'),
    (tf.ones([3], tf.int32), None, 'one floating scalar'),
  ]:
    with pytest.raises(ValueError, match=sentence):
      batching.check_value(value, xs, rank)
