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
"""What is zero for all inputs has no part in derivatives of a product."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_diagonal, jacobian_diagonal
from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity

N = 6
NEAR = np.abs(np.subtract.outer(np.arange(N), np.arange(N))) == 1
BAND = NEAR | np.eye(N, dtype=bool)


def pairs(x):
  return tf.sin(x[..., tf.newaxis] * x[..., tf.newaxis, :] + 1.0)


def masked(x):
  return tf.constant(NEAR, x.dtype) * pairs(x)


def applied(weights, x):
  return tf.reduce_sum(weights * tf.exp(x[..., tf.newaxis, :]), -1)


WITH_ZEROS = {
  'product': masked,
  'where': lambda x: tf.where(NEAR, pairs(x), 0.0),
  'zeros like': lambda x: tf.where(NEAR, pairs(x), tf.zeros_like(pairs(x))),
  'band': lambda x: tf.linalg.band_part(pairs(x), 1, 1),
  'sine': lambda x: tf.sin(masked(x)),
  'square': lambda x: tf.square(masked(x)),
  'power': lambda x: masked(x) ** 3,
  'times a number': lambda x: -2.0 * masked(x),
  'times a vector': lambda x: masked(x) * x[..., tf.newaxis] * x[..., None, :],
  'over a vector': lambda x: masked(x) / (1.0 + x[..., tf.newaxis] ** 2),
  'sum': lambda x: masked(x) + tf.tanh(masked(x)),
  'turned': lambda x: tf.linalg.matrix_transpose(masked(x)),
  'cast': lambda x: tf.cast(tf.cast(masked(x), tf.float64), x.dtype),
  'padded': lambda x: tf.pad(
    tf.gather(masked(x), range(N - 1), axis=-1),
    [[0, 0]] * (len(x.shape)) + [[0, 1]],
  ),
  'rows': lambda x: tf.stack(tf.unstack(masked(x), axis=-2), -2),
  'joined': lambda x: tf.concat(tf.split(masked(x), 3, -1), -1),
  'blocks': lambda x: tf.reduce_sum(
    masked(x)[..., tf.newaxis] * tf.ones([4], x.dtype), -1
  ),
  'over the number of samples': lambda x: (
    masked(x) / tf.cast(tf.size(x[..., :1]), x.dtype)
  ),
  'product of matrices': lambda x: tf.linalg.matmul(
    masked(x), tf.linalg.diag(x)
  ),
}
MAY_DIFFER = {
  'cosine': lambda x: tf.cos(masked(x)),
  'added': lambda x: masked(x) + 0.5,
  'where': lambda x: tf.where(NEAR, pairs(x), 0.5),
  'quotient': lambda x: 1.0 / (1.0 + masked(x)),
  'of the sum': lambda x: tf.reduce_sum(masked(x), -1, keepdims=True),
  'padded': lambda x: tf.pad(
    masked(x)[..., 1:], [[0, 0]] * len(x.shape) + [[1, 0]], constant_values=1.0
  ),
}


def pattern_of(factor, shape):
  return jacobian_sparsity(
    lambda x: applied(factor(x), x),
    tf.TensorSpec(shape),
    sample_shape=shape[:-1] or None,
  ).matrix.toarray()


@pytest.mark.parametrize('shape', [(N,), (2, N), (None, N)])
@pytest.mark.parametrize('factor', WITH_ZEROS.values(), ids=WITH_ZEROS)
def test_zeros_are_passed_on(factor, shape):
  pattern = pattern_of(factor, shape)
  assert not (pattern & ~BAND).any()
  assert pattern[NEAR].sum() >= 2 * N - 3


@pytest.mark.parametrize('factor', MAY_DIFFER.values(), ids=MAY_DIFFER)
def test_what_is_not_zero_at_zero_counts(factor):
  assert (pattern_of(factor, (N,)) >= ~np.eye(N, dtype=bool)).all()


def test_a_constant_that_may_change():
  """It is zero in this call."""
  offset = tf.zeros([])
  pattern = pattern_of(lambda x: masked(x) + offset, (N,))
  assert (pattern >= ~np.eye(N, dtype=bool)).all()


@pytest.mark.parametrize(
  'contracted', [tf.linalg.matvec, lambda a, b: tf.einsum('ij,j->i', a, b)]
)
def test_a_factor_of_sums_of_products(contracted):
  pattern = jacobian_sparsity(
    lambda x: contracted(masked(x), tf.exp(x)), tf.TensorSpec([N])
  )
  np.testing.assert_array_equal(pattern.matrix.toarray(), BAND)


def test_the_numerator_of_a_quotient():
  pattern = hessian_sparsity(
    lambda x: tf.reduce_sum(masked(x) / (3.0 + pairs(x))), tf.TensorSpec([N])
  )
  np.testing.assert_array_equal(pattern.matrix.toarray(), BAND)


@pytest.mark.parametrize('jit_compile', [False, True])
def test_diagonals(jit_compile):
  """Power flow: what no line connects has no part in it."""
  x = tf.constant(np.random.default_rng(2).standard_normal((3, N)))

  def flow(x):
    lines = masked(x) * (1.0 + x[..., tf.newaxis] * x[..., tf.newaxis, :])
    return applied(tf.sin(lines), x)

  def energy(x):
    return tf.reduce_sum(flow(x), -1)

  @tf.function(jit_compile=jit_compile)
  def diagonals(x):
    _, (jacobian,) = tfp_diag.diag_jacobian(xs=x, fn=flow, sample_shape=[3])
    _, _, hessian = tfp_diag.diag_hessian(energy, x, sample_shape=[3])
    return jacobian, hessian

  expected = jacobian_diagonal(flow, x), hessian_diagonal(energy, x)
  for got, each in zip(diagonals(x), expected):
    np.testing.assert_allclose(got, each, rtol=1e-10, atol=1e-12)
