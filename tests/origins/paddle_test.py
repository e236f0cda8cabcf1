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
"""What `paddle.autograd.jacobian` and `hessian` document, with tfp_diag.

Paddle's views are lazy: shapes are known without computing, and indexing
computes the rows that are needed, once. Its matrices are [M, N], and with a
batch axis [B, M, N]. The expected numbers are written out by hand.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag

X1 = tf.constant([1.0, 2.0, 3.0])
X2 = tf.constant([4.0, 5.0, 6.0])


def test_sum_of_two_inputs():
  # jacobian(x1 + x2, (x1, x2)) is a pair of matrices of shape [3, 3].
  by_1 = tfp_diag.LazyJacobian(lambda x1: x1 + X2, X1)
  by_2 = tfp_diag.LazyJacobian(lambda x2: X1 + x2, X2)
  assert by_1.shape == by_2.shape == [3, 3]
  assert by_1.num_passes == by_2.num_passes == 0
  np.testing.assert_array_equal(by_1[:], np.eye(3))
  np.testing.assert_array_equal(by_2[:, :], np.eye(3))
  # As one matrix, the inputs side by side.
  both = tfp_diag.LazyJacobian(lambda x1, x2: x1 + x2, (X1, X2))
  assert both.shape == [3, 6]
  np.testing.assert_array_equal(both[1], [0, 1, 0, 0, 1, 0])
  assert both.num_passes == 1


def test_rows_are_computed_when_first_indexed():
  batch = tf.constant(np.arange(30.0).reshape(5, 6))
  # Squares of neighbours' sums: row i has 2 (x_i + x_i+1) at i and i + 1.
  j = tfp_diag.LazyJacobian(
    lambda x: (x + tf.roll(x, -1, axis=1)) ** 2, batch, [5]
  )
  assert j.shape == [5, 6, 6]
  rows = j[:, 1:4, :]
  assert j.num_passes == 3
  assert rows.shape == [5, 3, 6]
  x = batch.numpy()
  expected = np.zeros([5, 3, 6])
  for i in (1, 2, 3):
    expected[:, i - 1, i] = expected[:, i - 1, i + 1] = 2 * (
      x[:, i] + x[:, i + 1]
    )
  np.testing.assert_allclose(rows, expected)
  j[:, 2, :]
  j[:, 1:3]
  assert j.num_passes == 3
  j[:, 0:2]
  assert j.num_passes == 4


@pytest.mark.parametrize(
  'key', [0, -1, slice(1, 3), slice(None), (1, 2), (slice(None), 0)]
)
def test_documented_indices(key):
  x = tf.constant([1.0, 2.0, 3.0])
  dense = np.array([[2.0, 1, 0], [0, 3, 2], [3, 0, 1]])  # x_i x_i+1, cyclic.
  j = tfp_diag.LazyJacobian(lambda x: x * tf.roll(x, -1, 0), x)
  np.testing.assert_array_equal(j[key], dense[key])


def test_what_paddle_lacks():
  j = tfp_diag.LazyJacobian(lambda x: x**2, tf.constant([1.0, 2.0, 3.0]))
  # Slices are clamped, columns cost one pass, and there is a diagonal.
  np.testing.assert_array_equal(j[1:99], [[0, 4, 0], [0, 0, 6]])
  assert j.num_passes == 2
  j.clear_cache()
  np.testing.assert_array_equal(j[..., 1], [0, 4, 0])
  assert j.num_passes == 3
  np.testing.assert_array_equal(j.diag(), [2, 4, 6])
  assert j.num_passes == 4


def test_hessian():
  # hessian(sum(x^2), x) is 2 I; with a batch axis, one for each sample.
  h = tfp_diag.LazyHessian(lambda x: tf.reduce_sum(x**2), X1)
  assert h.shape == [3, 3]
  np.testing.assert_array_equal(h[:], 2 * np.eye(3))
  batch = tf.stack([X1, X2])
  h = tfp_diag.LazyHessian(lambda x: tf.reduce_sum(x**3, 1), batch, [2])
  assert h.shape == [2, 3, 3]
  np.testing.assert_array_equal(h[:, 0], [[6, 0, 0], [24, 0, 0]])
  assert h.num_passes == 1


def test_several_inputs_give_blocks():
  # hessian(y, (x1, x2)) is a pair of pairs.
  blocks = tfp_diag.hessian(lambda x1, x2: tf.reduce_sum(x1**2 * x2), (X1, X2))
  np.testing.assert_array_equal(blocks[0][0], np.diag([8.0, 10, 12]))
  np.testing.assert_array_equal(blocks[0][1], np.diag([2.0, 4, 6]))
  np.testing.assert_array_equal(blocks[1][0], np.diag([2.0, 4, 6]))
  np.testing.assert_array_equal(blocks[1][1], np.zeros([3, 3]))
