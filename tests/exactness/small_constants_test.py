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
"""Small Tensors that a function closes over, others at each call.

TensorFlow captures Tensors of up to 128 elements as constants whose values can
be read while a graph is built, and which are inputs of it nevertheless.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import draw
from tests.oracles import hessian_diagonal, jacobian_diagonal
from tfp_diag.diagonal import graphs
from tfp_diag.sparsity import graph as graph_module

X = draw(4, 4, seed=0)
W = draw(4, 4, seed=1)


def loop(z, a):
  def body(k, y):
    return k + 1, y + tf.cond(k > 0, lambda: tf.sin(a * y), lambda: a * y)

  return tf.while_loop(lambda k, _: k < 2, body, (0, z), maximum_iterations=2)[
    1
  ]


def with_own_gradient(z, a):
  @tf.custom_gradient
  def sine(z):
    return tf.sin(a * z), lambda dy: dy * a * tf.cos(a * z)

  return sine(z)


def with_gradient_of_the_first(z, a):
  @tf.custom_gradient
  def sine(z):
    return tf.sin(a[0] * z), lambda dy: dy * a[0] * tf.cos(a[0] * z)

  return sine(z)


def called(z, a):
  @tf.function
  def inner(z):
    return tf.reduce_sum(z**2 * W, tf.cast(a, tf.int32))

  return inner(z) * z


# Functions of a Tensor and of what is captured, and two values of that.
FUNCTIONS = {
  'a factor': (lambda z, a: tf.sin(a * z), [[1.0, 2.0], [0.5, -1.0]]),
  'an exponent': (lambda z, a: tf.abs(z) ** a, [2.0, 3.0]),
  'a threshold': (lambda z, a: tf.where(z > a, z**2, z), [-0.2, 0.3]),
  'a sum': (lambda z, a: z * tf.reduce_sum(z**2 * W, a), [0, 1]),
  'a product': (lambda z, a: z * tf.reduce_prod(z + 3.0 * W, a), [0, 1]),
  'a maximum': (lambda z, a: z * tf.reduce_max(z + 3.0 * W, a), [[0], [1]]),
  'sums along a cast axis': (
    lambda z, a: z * tf.reduce_sum(z**2 * W, tf.cast(a, tf.int64)),
    [0, 1],
  ),
  'gathered along an axis': (
    lambda z, a: z * tf.gather(z * W, [2, 1, 0, 3], axis=a),
    [0, 1],
  ),
  'gathered': (
    lambda z, a: z * tf.gather(z * W, a),
    [[0, 1, 2, 3], [3, 1, 0, 0]],
  ),
  'joined': (
    lambda z, a: (
      z * tf.reshape(tf.concat([2.0 * z[:, :2], z[:, 2:] ** 2], a), [4, 4])
    ),
    [0, 1],
  ),
  'a slice': (
    lambda z, a: z * tf.pad(tf.slice(z * W, a, [2, 2]), [[1, 1], [1, 1]]),
    [[0, 0], [1, 2]],
  ),
  'split': (
    lambda z, a: z * tf.concat(tf.split(z * W, a, 0)[::-1], 0),
    [[1, 3], [3, 1]],
  ),
  'tiled': (
    lambda z, a: z * tf.reshape(tf.tile(z[:2] ** 2, a), [4, 4]),
    [[2, 1], [1, 2]],
  ),
  'segments': (
    lambda z, a: z * tf.gather(tf.math.segment_sum(z**2, a), [0, 1, 1, 0]),
    [[0, 0, 1, 1], [0, 1, 1, 1]],
  ),
  'labels': (
    lambda z, a: z**2 * tf.one_hot(a, 4, dtype=z.dtype),
    [[0, 1, 2, 3], [3, 1, 0, 0]],
  ),
  'a loop': (loop, [0.5, -2.0]),
  'a gradient of its own': (with_own_gradient, [0.5, -2.0]),
  'one that closes over more': (
    lambda z, a: with_own_gradient(z, a[0]),
    [[0.5] * 100, [-2.0] * 100],
  ),
  'one that closes over more itself': (
    with_gradient_of_the_first,
    [[0.5] * 100, [-2.0] * 100],
  ),
  'a function that it calls': (called, [0, 1]),
  'an axis cast in one': (called, [0.0, 1.0]),
}


def captured(value):
  """A Tensor of the dtype of X, or of integers; of four columns for a list."""
  if isinstance(value, list) and isinstance(value[0], float):
    return tf.constant(value * 2, X.dtype)
  return tf.constant(value, X.dtype if isinstance(value, float) else None)


def functions(name):
  """The function, with one value captured and with the other."""
  fn, values = FUNCTIONS[name]

  def of(a):
    return lambda z: fn(z, a)

  return [of(captured(value)) for value in values]


@pytest.mark.parametrize('name', FUNCTIONS)
def test_eager_calls_see_what_is_captured_now(name):
  tfp_diag.clear_cache()
  for fn in functions(name):
    _, [diag] = tfp_diag.diag_jacobian(X, fn=fn)
    np.testing.assert_allclose(diag, jacobian_diagonal(fn, X), rtol=1e-9)


# One of each kind: what is captured is looked at where a graph is traced.
@pytest.mark.parametrize(
  'name',
  [
    'an exponent',
    'a threshold',
    'a sum',
    'gathered',
    'segments',
    'a loop',
    'one that closes over more',
    'an axis cast in one',
  ],
)
def test_eager_hessians_see_what_is_captured_now(name):
  tfp_diag.clear_cache()
  for fn in functions(name):

    def log_prob(z, fn=fn):
      return tf.reduce_sum(tf.sin(fn(z)))

    diag = tfp_diag.diag_hessian(log_prob, X)[-1]
    np.testing.assert_allclose(
      diag, hessian_diagonal(log_prob, X), rtol=1e-9, atol=1e-12
    )


def errors_of_a_known_graph(name):
  """Of gradients by a remembered graph, with one value and with the other."""
  tfp_diag.clear_cache()
  errors = []
  for fn in functions(name):

    def total(z, fn=fn):
      return tf.reduce_sum(tf.sin(fn(z)))

    once = graphs.TracedOnce(total)
    run = graphs.compiled(
      (),
      'test',
      lambda z, once=once: tf.gradients(once(z), z)[0],
      [tf.TensorSpec(X.shape, X.dtype)],
      source=once.graph([X]),
    )
    with tf.GradientTape() as tape:
      tape.watch(X)
      y = total(X)
    errors.append(np.max(np.abs(run([X]) - tape.gradient(y, X))))
  return errors


@pytest.mark.parametrize('name', FUNCTIONS)
def test_graphs_are_known_with_what_is_captured_now(name):
  assert max(errors_of_a_known_graph(name)) < 1e-12


@pytest.mark.parametrize('name', ['a sum', 'sums along a cast axis'])
def test_an_axis_that_is_taken_for_any_other(name, monkeypatch):
  """The negative control."""
  monkeypatch.setattr(graph_module, '_may_be_read', lambda *_: False)
  right, wrong = errors_of_a_known_graph(name)
  assert right < 1e-12
  assert wrong > 0.1


def test_numbers_and_indices_are_not_traced_again():
  tfp_diag.clear_cache()
  traces = []

  def run(factor, indices):
    factor, indices = tf.constant(factor, X.dtype), tf.constant(indices)
    data = tf.constant(W)
    once = graphs.TracedOnce(
      lambda z: tf.reduce_sum(factor * z**2 * tf.gather(data, indices))
    )

    def body(z):
      traces.append(factor)
      return tf.gradients(once(z), z)[0]

    return graphs.compiled(
      (),
      'test',
      body,
      [tf.TensorSpec(X.shape, X.dtype)],
      source=once.graph([X]),
    )([X])

  for factor, indices in [(1.0, [0, 1, 2, 3]), (2.0, [3, 3, 1, 0])]:
    np.testing.assert_allclose(
      run(factor, indices), 2.0 * factor * X * tf.gather(W, indices), rtol=1e-12
    )
  assert len(traces) == 1
