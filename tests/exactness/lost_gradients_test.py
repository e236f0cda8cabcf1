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
"""Where TensorFlow loses a second derivative, nobody gets zeros for it."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import draw
from tests.oracles import (
  hessian_by_copies,
  jacobian_by_copies,
  jacobian_diagonal,
)
from tfp_diag.diagonal.linear_map import MissingGradientError


def resized(x):
  images = tf.cast(tf.reshape(x, [-1, 2, 3, 1]), tf.float32)
  return tf.cast(tf.reshape(tf.image.resize(images, [3, 2]), [-1, 6]), x.dtype)


def quantized(x):
  y = tf.cast(tf.roll(x, 1, -1) * x, tf.float32)
  y = tf.quantization.fake_quant_with_min_max_args(y, -1.0, 1.0)
  return tf.cast(y, x.dtype)


def pooled(x):
  images = tf.reshape(tf.sin(x), [-1, 2, 3, 1])
  return tf.reshape(tf.nn.max_pool2d(images, 2, 1, 'SAME'), [-1, 6])


def sparse_sum(x):
  def sparse(indices, values):
    return tf.SparseTensor([[i] for i in indices], values, [6])

  y = tf.sparse.add(sparse([0, 2, 4], x[0, :3]), sparse([1, 2, 5], x[0, 3:]))
  return tf.sparse.to_dense(y)[tf.newaxis]


def read_twice(x):
  items = tf.TensorArray(x.dtype, 6).unstack(tf.transpose(x))
  items = tf.ensure_shape(items.gather([0, 1, 1, 3, 5, 4]), [6, None])
  return tf.transpose(items)


def overwritten(x):
  items = tf.TensorArray(x.dtype, 6).scatter(
    [0, 1, 1, 3, 5, 4], tf.transpose(x)
  )
  return tf.transpose(tf.ensure_shape(items.stack(), [6, None]))


LOST = {f.__name__: f for f in (resized, quantized, pooled, sparse_sum)}
SECOND = {
  'hessian': lambda fn, x: tfp_diag.diag_hessian(
    lambda x: tf.reduce_sum(tf.tanh(fn(x)), -1), x, sample_shape=x.shape[:1]
  ),
  'third': lambda fn, x: tfp_diag.unmixed_derivatives(
    lambda x: tf.reduce_sum(tf.tanh(fn(x)), -1), x
  ),
  'gauss_newton': lambda fn, x: tfp_diag.diag_gauss_newton(
    fn, x, sample_shape=x.shape[:1]
  ),
  'forward': lambda fn, x: tfp_diag.diag_jacobian(
    x, sample_shape=x.shape[:1], fn=fn, mode='forward'
  ),
}


@pytest.mark.parametrize('kind', SECOND)
@pytest.mark.parametrize('name', LOST)
def test_what_is_lost_is_refused(name, kind):
  x = draw(1, 6)
  with pytest.raises(MissingGradientError, match='no right derivative of'):
    SECOND[kind](LOST[name], x)


@pytest.mark.parametrize('name', LOST)
def test_first_derivatives_are_right(name):
  x = draw(1 if name == 'sparse_sum' else 3, 6)
  expected = jacobian_diagonal(LOST[name], x)
  _, diag = tfp_diag.diag_jacobian(x, sample_shape=x.shape[:1], fn=LOST[name])
  np.testing.assert_allclose(tf.reshape(diag, x.shape), expected, rtol=1e-6)
  plan = tfp_diag.plan_diag_jacobian(LOST[name], x, sample_shape=x.shape[:1])
  _, diag = plan(x)
  np.testing.assert_allclose(tf.reshape(diag, x.shape), expected, rtol=1e-6)


@pytest.mark.parametrize('kind', ['jacobian', *SECOND])
@pytest.mark.parametrize('fn', [read_twice, overwritten])
def test_an_item_that_is_there_twice_is_refused(fn, kind):
  # TensorFlow takes one of the two cotangents of the item, or one for both.
  with pytest.raises(
    MissingGradientError, match=r'TensorList.* does not say so'
  ):
    {'jacobian': first, **SECOND}[kind](fn, draw(2, 6))


_K = tf.constant(0.4, tf.float64)
# TensorFlow says that these are constants, or has no derivative by an input.
WITHOUT_DERIVATIVE = {
  'one_hot': lambda x: tf.one_hot(0, 6, on_value=x[0, 0], dtype=x.dtype) * x,
  'hsv_to_rgb': lambda x: tf.reshape(
    tf.image.hsv_to_rgb(tf.reshape(tf.sigmoid(x), [-1, 2, 3])), [-1, 6]
  ),
  'range': lambda x: x * tf.range(x[0, 0], x[0, 0] + 5.5, 1.0),
  'linspace': lambda x: x * tf.raw_ops.LinSpace(start=x[0, 0], stop=_K, num=6),
  'betainc': lambda x: tf.math.betainc(tf.exp(x), 2.0 + 0.0 * x, _K + 0.0 * x),
  'zeta': lambda x: tf.math.zeta(2.0 + x**2, 1.0 + x**2),
  'polygamma': lambda x: tf.math.polygamma(1.0 + x**2, 2.0 + 0.0 * x),
  'truncated_normal': lambda x: tf.raw_ops.ParameterizedTruncatedNormal(
    shape=[1, 6],
    means=x[0],
    stdevs=1.0 + 0.0 * x[0],
    minvals=-3.0 + 0.0 * x[0],
    maxvals=3.0 + 0.0 * x[0],
  ),
  'pad': lambda x: tf.pad(x[:, 1:], [[0, 0], [0, 1]], constant_values=x[0, 1]),
  'diag': lambda x: tf.reduce_sum(
    tf.linalg.diag(x[:, 1:], k=1, padding_value=x[0, 1]), 1
  ),
  'diag_part': lambda x: tf.reduce_sum(
    tf.linalg.diag_part(
      x[:, :, tf.newaxis] * x[:, tf.newaxis],
      k=(-1, 0),
      padding_value=x[0, 0],
    ),
    1,
  ),
  'batch_norm': lambda x: tf.reshape(
    tf.compat.v1.nn.fused_batch_norm(
      tf.reshape(tf.cast(x, tf.float32), [-1, 2, 3, 1]),
      [1.0],
      [0.0],
      tf.cast(x[0, :1], tf.float32),
      tf.cast(x[0, 1:2], tf.float32),
      is_training=False,
    )[0],
    [-1, 6],
  ),
  'in a branch': lambda x: tf.cond(
    x[0, 0] > 0,
    lambda: tf.math.zeta(2.0 + x**2, 1.0 + x**2),
    lambda: x * tf.reduce_sum(tf.math.zeta(2.0 + x**2, 1.0 + x**2)),
  ),
}


@pytest.mark.parametrize(
  'fn', WITHOUT_DERIVATIVE.values(), ids=WITHOUT_DERIVATIVE
)
def test_what_counts_as_a_constant_is_refused(fn):
  with pytest.raises(MissingGradientError, match='no right derivative of'):
    first(fn, draw(1, 6))


@pytest.mark.parametrize('in_graph', [False, True])
@pytest.mark.parametrize('name', ['numpy', 'zeta', 'item'])
def test_by_a_variable_too(name, in_graph):
  v = tf.Variable([0.5, 0.7, 0.9], dtype=tf.float64)

  def fn():
    if name == 'numpy':
      return v**2 + tf.numpy_function(lambda a: 2 * a, [v + 0.0], tf.float64)
    if name == 'zeta':
      return tf.math.zeta(2.0 + v**2, 1.0 + v**2)
    return tf.TensorArray(v.dtype, 3).unstack(v * 1.0).gather([0, 0, 2]) * v

  def diagonal():
    return tfp_diag.diag_jacobian([v], fn=fn)[1]

  def hessian():
    return tfp_diag.diag_hessian(lambda: tf.reduce_sum(fn()), [v])[2]

  for call in (diagonal, hessian):
    with pytest.raises(MissingGradientError):
      tf.function(call, autograph=False)() if in_graph else call()


def test_constants_of_these_ops_are_not_refused():
  def fn(x):
    one = tf.one_hot([0, 5, 1, 2, 4, 3], 6, dtype=x.dtype)
    a, b = tf.broadcast_to(_K + one[0], tf.shape(x)), 2.0 + tf.zeros_like(x)
    by_x = tf.math.betainc(a, b, tf.sigmoid(x))
    padded = tf.pad(x[:, 1:], [[0, 0], [0, 1]], constant_values=_K)
    padded *= tf.linalg.diag_part(tf.linalg.diag(x, padding_value=_K))
    by_x += tf.math.polygamma(b, 2.0 + x**2)
    return x @ one + by_x + tf.math.zeta(b, 2.0 + x**2) + padded

  x = draw(2, 6)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    diag = first(fn, x)[1]
  np.testing.assert_allclose(
    tf.reshape(diag, x.shape), jacobian_by_copies(fn, x), rtol=1e-10
  )


def first(fn, x):
  return tfp_diag.diag_jacobian(x, sample_shape=x.shape[:1], fn=fn)


@pytest.mark.parametrize('order', [[0, 2, 1, 3, 5, 4], [5, 1, 3]])
def test_items_that_differ_are_not_refused(order):
  def fn(x):
    items = tf.TensorArray(x.dtype, 6).unstack(tf.transpose(x**2))
    chosen = tf.ensure_shape(items.gather(order), [len(order), None])
    items = tf.TensorArray(x.dtype, 6).scatter(order, chosen * chosen[::-1])
    return tf.transpose(tf.ensure_shape(items.stack(), [6, None]))

  x = draw(3, 6)
  expected = jacobian_by_copies(fn, x)
  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=x.shape[:1])
  assert plan.num_passes == 2
  for diag in (first(fn, x)[1], plan(x)[1]):
    np.testing.assert_allclose(tf.reshape(diag, x.shape), expected, rtol=1e-10)


def test_what_does_not_reach_them_is_not_refused():
  x = draw(2, 6)
  # Linear in what is resized: no second derivative leads through its gradient.
  _, _, diag = tfp_diag.diag_hessian(
    lambda x: tf.reduce_sum(resized(x), -1) + tf.reduce_sum(x**3, -1), x
  )
  np.testing.assert_allclose(diag, 6 * x, rtol=1e-6)


def test_pools_of_another_shape_are_differentiated():
  x = draw(2, 9)

  def fn(x):
    images = tf.reshape(tf.sin(x), [-1, 3, 3, 1])
    pools = tf.nn.max_pool2d(images, 2, 1, 'VALID')
    return tf.reduce_sum(tf.tanh(pools), [1, 2, 3])

  # Which pixel is the largest of each window, without a pool.
  y = np.sin(x).reshape(2, 3, 3)
  expected = np.zeros_like(y)
  for b, i, j in np.ndindex(2, 2, 2):
    window = y[b, i : i + 2, j : j + 2]
    a, c = np.unravel_index(window.argmax(), (2, 2))
    u, t = x.numpy().reshape(2, 3, 3)[b, i + a, j + c], np.tanh(window.max())
    slope = 1 - t**2
    expected[b, i + a, j + c] += slope * (-2 * t * np.cos(u) ** 2 - np.sin(u))
  np.testing.assert_allclose(
    tfp_diag.diag_hessian(fn, x)[2], expected.reshape(2, 9), rtol=1e-10
  )


def _scaled(x):
  _, variance = tf.nn.moments(tf.sin(x), [-1], keepdims=True)
  return x * variance


HELD = {
  'moments': lambda x: tf.nn.moments(x, [-1])[1],
  'in a function': tf.function(lambda x: tf.reduce_sum(_scaled(x), -1)),
}
NOT_HELD = {
  'reduce_variance': lambda x: tf.math.reduce_variance(x, -1),
  'of data': lambda x: (
    tf.reduce_sum(x**2, -1)
    * tf.nn.moments(tf.constant([1.0, 2], x.dtype), [0])[1]
  ),
  'of data in a function': tf.function(
    lambda x: (
      tf.reduce_sum(x**2, -1)
      * tf.nn.moments(tf.constant([1.0, 2], x.dtype), [0])[1]
    )
  ),
  'of another': lambda x: tf.reduce_sum(
    tf.math.squared_difference(
      x**2, tf.stop_gradient(tf.reduce_mean(x, -1, keepdims=True))
    ),
    -1,
  ),
}


@pytest.mark.parametrize('name', HELD)
def test_a_mean_that_is_held_constant_is_told(name):
  x = draw(3, 4)
  expected = hessian_by_copies(HELD[name], x)
  with pytest.warns(RuntimeWarning, match=r'the variance of `tf.nn.moments`'):
    _, _, diag = tfp_diag.diag_hessian(HELD[name], x)
  # As TensorFlow has it.
  np.testing.assert_allclose(diag, expected, rtol=1e-8)
  with pytest.warns(RuntimeWarning, match=r'the variance of `tf.nn.moments`'):
    plan = tfp_diag.plan_diag_hessian(HELD[name], x)
  assert 'tf.math.reduce_variance' in str(plan)


WHOLE = {
  'hessian': lambda fn, x: tfp_diag.hessian(fn, x, sample_shape=[3]),
  'LazyHessian.diag': lambda fn, x: tfp_diag.LazyHessian(fn, x, [3]).diag(),
  'LazyHessian.matvec': lambda fn, x: tfp_diag.LazyHessian(fn, x, [3]).matvec(
    x
  ),
  'stochastic_diag_hessian': lambda fn, x: tfp_diag.stochastic_diag_hessian(
    fn, x, 2, 1
  ),
  'schedule': lambda fn, x: tfp_diag.diag_hessian(
    fn, x, schedule='while_loop', mode='reverse_over_reverse'
  ),
}


def _cross_entropy(labels):
  return lambda x: tf.nn.softmax_cross_entropy_with_logits(labels(x), x)


@pytest.mark.parametrize('in_graph', [False, True])
def test_labels_that_are_held_constant_are_told(in_graph):
  x = draw(3, 4)
  fn = _cross_entropy(tf.nn.softmax)
  run = lambda x: tfp_diag.diag_hessian(fn, x)[2]  # noqa: E731
  run = tf.function(run, autograph=False) if in_graph else run
  with pytest.warns(RuntimeWarning, match='the labels of a cross entropy'):
    diag = run(x)
  np.testing.assert_allclose(diag, hessian_by_copies(fn, x), rtol=1e-8)


@pytest.mark.parametrize(
  'labels',
  [
    lambda x: tf.stop_gradient(tf.nn.softmax(x)),
    lambda x: tf.one_hot(tf.argmax(x, -1), 4, dtype=x.dtype),
    lambda x: tf.ones_like(x) / 4.0,
  ],
  ids=['stopped', 'hard', 'constant'],
)
def test_labels_without_a_derivative_are_not(labels):
  x, fn = draw(3, 4), _cross_entropy(labels)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    _, _, diag = tfp_diag.diag_hessian(fn, x)
  p = tf.nn.softmax(x)
  np.testing.assert_allclose(diag, p * (1 - p), rtol=1e-10)


@pytest.mark.parametrize('way', WHOLE)
def test_it_is_told_whatever_is_asked_for(way):
  tfp_diag.clear_cache()
  with pytest.warns(RuntimeWarning, match=r'the variance of `tf.nn.moments`'):
    WHOLE[way](HELD['moments'], draw(3, 4))


@pytest.mark.parametrize('name', NOT_HELD)
def test_nothing_else_is_told(name):
  x = draw(3, 4)
  plan = tfp_diag.plan_diag_hessian(NOT_HELD[name], x)
  assert 'moments' not in str(plan)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    tfp_diag.hessian(NOT_HELD[name], x, sample_shape=[3])


def test_first_derivatives_through_moments_are_exact():
  x = draw(3, 4)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = tfp_diag.diag_gauss_newton(_scaled, x, sample_shape=[3])
  y = np.sin(x)
  centered = y - y.mean(1, keepdims=True)
  matrices = np.einsum('si,sj->sij', x, centered * np.cos(x) * 2 / 4) + y.var(
    1
  )[:, None, None] * np.eye(4)
  np.testing.assert_allclose(found.diag, (matrices**2).sum(1), rtol=1e-9)
