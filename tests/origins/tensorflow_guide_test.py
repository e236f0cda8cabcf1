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
"""TensorFlow's guide to advanced autodiff, its part on Jacobians, retold.

The same layers and sizes as in the guide: a dense layer of 10 units on a batch
of 7 with 5 features; a Newton step on its loss; batch Jacobians of shape
[7, 6, 5], and their misuse.
"""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfp_diag


@pytest.fixture(autouse=True)
def fixed_weights():
  tf_keras.utils.set_random_seed(1)


def test_scalar_source():
  x = tf.linspace(-10.0, 10.0, 200 + 1)
  delta = tf.Variable(0.0)
  dy_dx = tfp_diag.jacobian(lambda: tf.nn.sigmoid(x + delta), delta)
  assert dy_dx.shape == [201]
  s = 1 / (1 + np.exp(-x.numpy().astype(np.float64)))
  np.testing.assert_allclose(dy_dx, s * (1 - s), atol=1e-6)


def test_tensor_source():
  x = tf.random.normal([7, 5])
  layer = tf_keras.layers.Dense(10, activation=tf.nn.relu)
  y = layer(x)
  assert layer.kernel.shape == [5, 10]
  j = tfp_diag.jacobian(lambda: layer(x), layer.kernel)
  assert j.shape == [7, 10, 5, 10]
  # d y[b, u] / d kernel[i, v] is x[b, i] where u = v and the unit is on.
  on = (y.numpy() > 0).astype(np.float32)
  expected = np.einsum('bu,bi,uv->buiv', on, x, np.eye(10))
  np.testing.assert_allclose(j, expected, atol=1e-6)
  # The sum over the target is the gradient.
  with tf.GradientTape() as tape:
    y = layer(x)
  g = tape.gradient(y, layer.kernel)
  np.testing.assert_allclose(tf.reduce_sum(j, [0, 1]), g, atol=1e-5)


def network():
  layers = [
    tf_keras.layers.Dense(8, activation=tf.nn.tanh),
    tf_keras.layers.Dense(6, activation=tf.nn.tanh),
  ]
  x = tf.random.normal([7, 5])

  def loss():
    return tf.reduce_mean(layers[1](layers[0](x)) ** 2)

  loss()
  return layers, loss


def test_hessian_of_a_layer():
  layers, loss = network()
  kernel = layers[0].kernel
  hessian = tfp_diag.hessian(loss, kernel)
  assert hessian.shape == [5, 8, 5, 8]
  matrix = tf.reshape(hessian, [40, 40]).numpy()
  np.testing.assert_allclose(matrix, matrix.T, atol=1e-6)
  _, _, diag = tfp_diag.diag_hessian(loss, [kernel])
  np.testing.assert_allclose(np.diag(matrix), np.ravel(diag[0]), atol=1e-6)
  # Central differences of the gradient in direction 0.
  h = 1e-2
  gradients = []
  for step in (h, -2 * h, h):
    kernel.assign_add(step * np.eye(40)[0].reshape(5, 8))
    with tf.GradientTape() as tape:
      value = loss()
    gradients.append(tape.gradient(value, kernel))
  slope = (gradients[0] - gradients[1]) / (2 * h)
  np.testing.assert_allclose(matrix[0], np.ravel(slope), atol=2e-4)


def test_newton_step():
  layers, loss = network()
  kernel = layers[0].kernel
  with tf.GradientTape() as tape:
    before = loss()
  g = tf.reshape(tape.gradient(before, kernel), [40, 1])
  matrix = tf.reshape(tfp_diag.hessian(loss, kernel), [40, 40])
  # Damped as in the guide, and enough to make it positive here.
  damped = matrix + tf.eye(40) * 1e-1
  kernel.assign_sub(tf.reshape(tf.linalg.solve(damped, g), [5, 8]))
  assert loss() < before


@pytest.mark.parametrize('in_graph', [False, True])
def test_batch_jacobian(in_graph):
  x = tf.random.normal([7, 5])
  layer1 = tf_keras.layers.Dense(8, activation=tf.nn.elu)
  layer2 = tf_keras.layers.Dense(6, activation=tf.nn.elu)
  fn = lambda x: layer2(layer1(x))  # noqa: E731 (as short as in the guide)
  fn(x)

  def batch_jacobian(x):
    return tfp_diag.jacobian(fn, x, sample_shape=[7])

  if in_graph:
    batch_jacobian = tf.function(batch_jacobian, autograph=False)
  jb = batch_jacobian(x)
  assert jb.shape == [7, 6, 5]
  # The whole Jacobian has the same numbers, among zeros.
  j = tfp_diag.jacobian(fn, x)
  assert j.shape == [7, 6, 7, 5]
  np.testing.assert_allclose(tf.einsum('bibj->bij', j), jb, atol=1e-6)
  j = j.numpy()
  j[np.arange(7), :, np.arange(7)] = 0
  np.testing.assert_array_equal(j, np.zeros_like(j))


def test_misused_batch_jacobian_is_refused():
  # The guide: batch normalization mixes the batch, so that `batch_jacobian` has
  # the expected shape, and contents of unclear meaning.
  x = tf.random.normal([7, 5])
  layers = [
    tf_keras.layers.Dense(8, activation=tf.nn.elu),
    tf_keras.layers.BatchNormalization(),
    tf_keras.layers.Dense(6, activation=tf.nn.elu),
  ]

  def fn(x, training):
    for layer in layers:
      normalizes = isinstance(layer, tf_keras.layers.BatchNormalization)
      x = layer(x, training=training) if normalizes else layer(x)
    return x

  fn(x, training=True)
  with pytest.raises(ValueError, match=r'mixes samples: \w+ \(op '):
    tfp_diag.jacobian(lambda x: fn(x, training=True), x, sample_shape=[7])
  # Without samples it is right: samples do depend on each other.
  j = tfp_diag.jacobian(lambda x: fn(x, training=True), x)
  assert j.shape == [7, 6, 7, 5]
  assert np.abs(j.numpy()[0, :, 1]).max() > 1e-4
  # In inference it does not mix.
  jb = tfp_diag.jacobian(lambda x: fn(x, training=False), x, sample_shape=[7])
  assert jb.shape == [7, 6, 5]


def test_unconnected_and_several_sources():
  # `tape.jacobian` returns None for these; zeros here, or an error.
  x, y = tf.Variable(2.0), tf.Variable([1.0, 3.0])
  jac = tfp_diag.jacobian(lambda: x * tf.ones([3]), {'x': x, 'y': y})
  np.testing.assert_array_equal(jac['x'], [1, 1, 1])
  np.testing.assert_array_equal(jac['y'], np.zeros([3, 2]))
  with pytest.raises(ValueError, match='does not depend on part 1'):
    tfp_diag.jacobian(lambda: x * tf.ones([3]), [x, y], strict=True)


def test_no_zeros_without_a_word_outside_the_tape():
  # tensorflow#45234: a second `batch_jacobian`, made outside the tape of the
  # first, is zero. A function of a function has no outside.
  x = tf.constant([[1.0, 2.0]])
  second = tfp_diag.jacobian(
    lambda x: tfp_diag.jacobian(lambda x: x**3, x, [1]), x, [1]
  )
  assert second.shape == [1, 2, 2, 2]
  np.testing.assert_allclose(second[0, 0, 0], [6, 0])
  np.testing.assert_allclose(second[0, 1, 1], [0, 12])
