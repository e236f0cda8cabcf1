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
"""The recipe for "the diagonal of the Hessian in TensorFlow 2", set right.

The recipe takes the gradient of the loss by each variable, and then, with a
persistent tape, the gradient of that gradient by the same variable. A gradient
of a Tensor is the gradient of its sum, so what it returns are the sums of the
rows of each variable's block of the Hessian. They are the diagonal only where
the block is diagonal.
"""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfp_diag


def recipe(loss_fn, variables):
  with tf.GradientTape(persistent=True) as outer:
    with tf.GradientTape() as inner:
      loss = loss_fn()
    gradients = inner.gradient(loss, variables)
  return [outer.gradient(g, v) for g, v in zip(gradients, variables)]


def test_the_numbers_of_the_docstring():
  x = tf.Variable([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])

  def value():
    return tf.reduce_sum(tf.reduce_prod(x, axis=-1) + tf.reduce_sum(x**3, -1))

  (row_sums,) = recipe(value, [x])
  np.testing.assert_allclose(row_sums, [[6, 8.5, 13.5], [8, 8, 8]])
  _, _, (diag,) = tfp_diag.diag_hessian(value, [x])
  np.testing.assert_allclose(diag, [[3, 6, 12], [6, 6, 6]])


@pytest.fixture
def network():
  tf_keras.utils.set_random_seed(3)
  model = tf_keras.Sequential(
    [
      tf_keras.layers.Dense(4, activation='tanh'),
      tf_keras.layers.Dense(3),
    ]
  )
  x, y = tf.random.normal([20, 5]), tf.random.uniform([20], 0, 3, tf.int32)
  model(x)

  def loss():
    return tf.reduce_mean(
      tf_keras.losses.sparse_categorical_crossentropy(
        y, model(x), from_logits=True
      )
    )

  return model.trainable_variables, loss


def test_on_a_network(network):
  variables, loss = network
  _, _, diag = tfp_diag.diag_hessian(loss, variables)
  blocks = tfp_diag.hessian(loss, variables)
  row_sums = recipe(loss, variables)
  for i, (v, d, r) in enumerate(zip(variables, diag, row_sums)):
    assert d.shape == v.shape
    n = int(np.prod(v.shape))
    block = np.reshape(blocks[i][i], [n, n])
    np.testing.assert_allclose(np.ravel(d), np.diag(block), atol=1e-6)
    # What the recipe computes, and that it is something else.
    np.testing.assert_allclose(np.ravel(r), block.sum(axis=1), atol=1e-6)
    assert np.abs(np.ravel(r) - np.diag(block)).max() > 0.01


def test_against_second_differences(network):
  variables, loss = network
  _, _, diag = tfp_diag.diag_hessian(loss, variables)
  kernel, h = variables[0], 0.05
  values = []
  for step in (h, -h, -h):
    kernel.assign_add(step * np.eye(20)[7].reshape(5, 4))
    values.append(float(loss()))
  second = (values[0] - 2 * values[1] + values[2]) / h**2
  np.testing.assert_allclose(np.ravel(diag[0])[7], second, rtol=0.05)


def test_they_agree_where_nothing_is_coupled():
  w = tf.Variable([1.0, 2.0, 3.0])
  (row_sums,) = recipe(lambda: tf.reduce_sum(w**4), [w])
  _, _, (diag,) = tfp_diag.diag_hessian(lambda: tf.reduce_sum(w**4), [w])
  np.testing.assert_allclose(row_sums, [12, 48, 108])
  np.testing.assert_allclose(diag, [12, 48, 108])


def test_none_becomes_zero():
  # A bias without curvature: the recipe returns None for it.
  w, b = tf.Variable([1.0, 2.0]), tf.Variable(0.5)

  def loss():
    return tf.reduce_sum(w**2) + b

  assert recipe(loss, [w, b])[1] is None
  _, _, diag = tfp_diag.diag_hessian(loss, [w, b])
  np.testing.assert_array_equal(diag[1], 0)
  np.testing.assert_allclose(diag[0], [2, 2])


@pytest.mark.parametrize('parallel_iterations', [1, 7, 100])
def test_in_chunks_of_any_size(network, parallel_iterations):
  # 39 weights; memory is that of so many gradients.
  variables, loss = network
  _, _, expected = tfp_diag.diag_hessian(loss, variables)
  _, _, diag = tfp_diag.diag_hessian(
    loss, variables, parallel_iterations=parallel_iterations
  )
  for d, e in zip(diag, expected):
    np.testing.assert_allclose(d, e, atol=1e-6)
