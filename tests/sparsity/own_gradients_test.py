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
"""Powers at zero and empty segments, where TensorFlow's derivatives are NaN."""

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import dense_jacobian, hessian_diagonal
from tests.pairs import parametrize_pairs
from tfp_diag import (
  diag_gauss_newton,
  diag_hessian,
  diag_jacobian,
  plan_diag_hessian,
  unmixed_derivatives,
)
from tfp_diag.diagonal import linear_map
from tfp_diag.sparsity import own_gradients

REGIMES = ('eager', 'function', 'xla')
X = np.array([[0.0, 1.5], [-2.0, 0.0]])


POWERS = range(6)


def by_hand(order):
  """Derivatives of each power at X, side by side."""
  found = [
    np.prod(n - np.arange(order)) * X ** max(n - order, 0) for n in POWERS
  ]
  return np.concatenate(found, 1)


def run(regime, fn, x):
  if regime == 'eager':
    return fn(x)
  function = tf.function(
    fn, autograph=False, jit_compile=regime == 'xla' or None
  )
  return function(x)


@pytest.mark.parametrize('regime', REGIMES)
def test_derivatives_at_zero(regime):
  """Each power of coordinates of its own."""

  def powers(x):
    columns = tf.split(x, len(POWERS), -1)
    raised = [part ** float(n) for part, n in zip(columns, POWERS)]
    return tf.reduce_sum(tf.concat(raised, -1), -1)

  def fn(x):
    return powers(x) + tf.reduce_sum(x**2, -1) ** 2

  x = np.tile(X, len(POWERS))
  # The square of the sum of squares, on top.
  square = np.sum(x**2, -1, keepdims=True)
  found = run(regime, lambda x: unmixed_derivatives(fn, x), tf.constant(x))
  second = by_hand(2) + 4 * square + 8 * x**2
  np.testing.assert_allclose(found.gradient, by_hand(1) + 4 * square * x)
  np.testing.assert_allclose(found.second, second, atol=1e-12)
  np.testing.assert_allclose(found.third, by_hand(3) + 24 * x, atol=1e-12)
  alone = run(regime, lambda x: diag_hessian(powers, x)[2], tf.constant(x))
  np.testing.assert_allclose(alone, by_hand(2))


@pytest.mark.parametrize('regime', REGIMES)
def test_several_exponents(regime):
  def fn(x):
    powers = tf.constant([0.0, 1.0, 2.0, 3.0], x.dtype)
    return tf.reduce_sum(x[..., tf.newaxis] ** powers, [-2, -1])

  found = run(regime, lambda x: unmixed_derivatives(fn, x), tf.constant(X))
  np.testing.assert_allclose(found.gradient, 1 + 2 * X + 3 * X**2)
  np.testing.assert_allclose(found.second, 2 + 6 * X)
  np.testing.assert_allclose(found.third, np.full_like(X, 6.0))


def test_exponents_that_are_not_whole_or_not_constant():
  x = tf.constant([[0.5, 2.0]], tf.float64)
  for exponent in (2.5, -2.0, 0.5):
    third = unmixed_derivatives(
      lambda x, n=exponent: tf.reduce_sum(x**n, -1), x
    ).third
    factor = exponent * (exponent - 1) * (exponent - 2)
    np.testing.assert_allclose(third, factor * x ** (exponent - 3))
  # By the exponent, and by a base that is broadcast.
  n = tf.constant([[3.0, 2.0]], tf.float64)
  base = tf.constant([[2.0]], tf.float64)
  found = unmixed_derivatives(lambda b, n: tf.reduce_sum(b**n, -1), [base, n])
  np.testing.assert_allclose(found.third[0], [[6.0]], atol=1e-12)
  np.testing.assert_allclose(found.third[1], np.log(2.0) ** 3 * 2.0**n)


def test_exponents_that_are_made_of_what_is_closed_over():
  """The next call has the same graph."""
  x = tf.constant([[1.5, 0.5]], tf.float64)
  for n in (2.0, 3.0):
    last = tf.constant([n], tf.float64)

    def fn(x, last=last):
      powers = tf.concat([tf.constant([0.0, 1.0], tf.float64), last], 0)
      return tf.reduce_sum(x[..., tf.newaxis] ** powers, -1)

    _, (found,) = diag_jacobian(x, fn=fn)
    np.testing.assert_allclose(found, 1.0 + n * x ** (n - 1.0))


def test_means_of_complex_segments():
  x = tf.constant([1.0, 2.0, 3.0])

  def fn(x):
    means = tf.math.segment_mean(tf.cast(x, tf.complex64), [0, 0, 1])
    return tf.reduce_sum(tf.abs(means) ** 2)

  np.testing.assert_allclose(diag_hessian(fn, x)[2], [0.5, 0.5, 2.0], rtol=1e-5)


def test_a_watched_constant_exponent_has_its_gradient():
  @tf.function(autograph=False)
  def by_exponent(x):
    n = tf.constant(2.0, tf.float64)
    derivative = linear_map.linearize(lambda: [tf.pow(x, n)], [n])
    return derivative.of_ones()[0]

  np.testing.assert_allclose(
    by_exponent(tf.constant(3.0, tf.float64)), 9.0 * np.log(3.0)
  )


def test_only_while_this_package_differentiates():
  before = own_gradients._TABLE['Pow']
  unmixed_derivatives(lambda x: tf.reduce_sum(x**2, -1), tf.constant(X))
  assert own_gradients._TABLE['Pow'] is before
  with own_gradients.own_gradients, own_gradients.own_gradients:
    assert own_gradients._TABLE['Pow'] is not before
  assert own_gradients._TABLE['Pow'] is before


def test_tensorflow_alone_has_none():
  """When TensorFlow has mended this, `own_gradients` knows no powers."""
  x = tf.constant(0.0)
  with tf.GradientTape() as third:
    third.watch(x)
    with tf.GradientTape() as second:
      second.watch(x)
      with tf.GradientTape() as first:
        first.watch(x)
        y = x**2
      slope = first.gradient(y, x)
    curvature = second.gradient(slope, x)
  assert np.isnan(third.gradient(curvature, x))


@parametrize_pairs(
  op_and_scale=[
    (tf.sparse.segment_sum, [1, 1, 1]),
    (tf.sparse.segment_mean, [2, 1, 3]),
    (tf.sparse.segment_sqrt_n, [2**0.5, 1, 3**0.5]),
  ],
  is_sparse=[False, True],
  samples=[2, None],
)
def test_second_derivatives_of_sparse_segments(
  op_and_scale, is_sparse, samples
):
  op, scale = op_and_scale
  numbers, segments = [3, 0, 3, 4, 1, 4], [0, 0, 1, 2, 2, 2]
  matrix = np.zeros([3, 6])
  np.add.at(matrix, (segments, numbers), 1.0)
  matrix /= np.array(scale)[:, np.newaxis]

  def fn(x):
    rows = tf.transpose(x)
    found = op(rows, numbers, segments, sparse_gradient=is_sparse)
    return tf.reduce_sum(tf.exp(found), 0)

  x = np.random.default_rng(0).normal(size=[2, 6])
  plan = plan_diag_hessian(fn, tf.TensorSpec([samples, 6], tf.float64))
  np.testing.assert_allclose(
    plan(tf.constant(x))[2], np.exp(x @ matrix.T) @ matrix**2
  )
  assert plan.num_passes <= 2


@pytest.mark.parametrize('is_sorted', [True, False])
def test_tangents_through_empty_segments(is_sorted):
  """Of means and extremes, each times a number of its own."""

  def segments(x, ids):
    for name in ('mean', 'max', 'min'):
      if is_sorted:
        yield getattr(tf.math, f'segment_{name}')(x, ids)
      else:
        unsorted = getattr(tf.math, f'unsorted_segment_{name}')
        yield unsorted(x, ids, max(ids) + 1)

  def residuals(x, ids=(0, 0, 2, 2), weights=(1.0, 0.0, 1.0)):
    found = [
      k * tf.sin(values) * tf.constant(weights, x.dtype)
      for k, values in enumerate(segments(x**2, ids), 1)
    ]
    return tf.concat(found, 0) * tf.reduce_sum(x)

  def full(x):
    return residuals(x, (0, 0, 1, 1), (1.0, 1.0))

  x = tf.constant([1.5, -1.0, 0.5, 2.0], tf.float64)
  np.testing.assert_allclose(
    diag_gauss_newton(residuals, x).diag,
    tf.reduce_sum(dense_jacobian(full, x) ** 2, 0),
  )
  *_, found = diag_hessian(
    lambda x: tf.reduce_sum(residuals(x)), x, mode='forward_over_reverse'
  )
  np.testing.assert_allclose(found, hessian_diagonal(full, x))
