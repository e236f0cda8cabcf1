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
"""Sweeps through the solution of a linear system with a fixed matrix."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import hessian_by_copies, unmixed_diagonals

tfd = tfp.distributions
SAMPLES, SIZE = 3, 24
RNG = np.random.default_rng(23)
TIMES = np.linspace(0.0, 1.0, SIZE)
COVARIANCE = np.exp(-np.abs(TIMES[:, np.newaxis] - TIMES) / 0.2)
SCALE = tf.constant(np.linalg.cholesky(COVARIANCE + 0.01 * np.eye(SIZE)))
GENERAL = tf.constant(RNG.normal(size=[SIZE, SIZE]) / 5.0 + 2.0 * np.eye(SIZE))
COUNTS = tf.constant(RNG.poisson(2.0, SIZE).astype(np.float64))
X = tf.constant(RNG.normal(size=[SAMPLES, SIZE]))


def total(x):
  return tf.reduce_sum(x, axis=-1)


def likelihood(x):
  return total(tfd.Poisson(log_rate=x).log_prob(COUNTS))


def solved(x, solve=tf.linalg.triangular_solve, matrix=SCALE, **options):
  if solve is tf.linalg.solve:
    # Which broadcasts nothing.
    shape = tf.concat([tf.shape(x)[:-1], tf.shape(matrix)[-2:]], 0)
    matrix = tf.broadcast_to(matrix, shape)
  return solve(matrix, x[..., tf.newaxis], **options)[..., 0]


def copula(x):
  """Gaussian, with Student-t margins."""
  margin = tfd.StudentT(tf.constant(5.0, x.dtype), 0.0, 1.0)
  z = tfd.Normal(tf.constant(0.0, x.dtype), 1.0).quantile(
    tfd.Logistic(tf.constant(0.0, x.dtype), 1.0).cdf(x)
  )
  return total(margin.log_prob(x)) - 0.5 * total(solved(z) ** 2)


ONE_SWEEP = {
  'a prior of exp': lambda x: (
    tfd.MultivariateNormalTriL(tf.zeros_like(SCALE[0]), SCALE).log_prob(
      tf.exp(x)
    )
    + likelihood(x)
  ),
  'upper': lambda x: total(
    tf.cos(solved(x, matrix=tf.transpose(SCALE), lower=False))
  ),
  'adjoint': lambda x: total(tf.cos(solved(x, adjoint=True))),
  'a matrix': lambda x: total(tf.cos(solved(x, tf.linalg.solve, GENERAL))),
  'its adjoint': lambda x: total(
    tf.cos(solved(x, tf.linalg.solve, GENERAL, adjoint=True))
  ),
  'a copula': copula,
}


def close(found, expected, rtol=1e-9):
  np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-10)


@pytest.mark.parametrize('name', ONE_SWEEP)
def test_one_sweep(name):
  fn = ONE_SWEEP[name]
  plan = tfp_diag.plan_diag_hessian(fn, X)
  assert (plan.num_passes, plan.how) == (1, 'squared sweeps'), plan
  close(plan(X)[2], hessian_by_copies(fn, X))
  found = tfp_diag.unmixed_derivatives(fn, X, order=3)
  second, third = unmixed_diagonals(fn, X)
  close(found.second, second)
  close(found.third, third)


def test_one_matrix_for_each_sample():
  matrices = [SCALE, 2.0 * SCALE, tf.linalg.band_part(GENERAL, -1, 0)]

  def fn(x, matrix):
    return total(tf.cos(solved(x, matrix=matrix)))

  found = tfp_diag.diag_hessian(lambda x: fn(x, tf.stack(matrices)), X)[2]
  for k, matrix in enumerate(matrices):
    want = hessian_by_copies(lambda x, m=matrix: fn(x, m), X[k : k + 1])
    close(found[k : k + 1], want)


def test_one_matrix_for_many_right_hand_sides():
  """The right-hand side is broadcast, and its columns are added up."""

  def fn(x):
    columns = tf.sinh(x)[..., tf.newaxis] * tf.constant([1.0, -2.0], x.dtype)
    z = tf.linalg.triangular_solve(
      tf.stack([SCALE, GENERAL])[:, tf.newaxis], columns
    )
    return -0.25 * tf.reduce_sum(z**4, axis=[0, 2, 3])

  plan = tfp_diag.plan_diag_hessian(fn, X)
  assert (plan.num_passes, plan.how) == (1, 'squared sweeps'), plan
  close(plan(X)[2], hessian_by_copies(fn, X))


@pytest.mark.parametrize('jit_compile', [False, True])
def test_in_graphs_in_single_precision(jit_compile):
  scale = tf.cast(SCALE, tf.float32)

  def fn(x):
    return total(tf.sin(solved(tf.sinh(x), matrix=tf.cast(scale, x.dtype))))

  compiled = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2], jit_compile=jit_compile
  )
  want = hessian_by_copies(fn, X)
  most = np.abs(want).max()
  for batch in (1, 2, 3):
    found = compiled(tf.cast(X[:batch], tf.float32)).numpy()
    assert np.abs(found - want[:batch]).max() < 1e-4 * most


def test_a_matrix_that_depends_on_x_is_no_fixed_one():
  def fn(x):
    scale = SCALE * tf.exp(x[..., :1, tf.newaxis] / 5.0)
    return total(tf.cos(solved(x, matrix=scale)))

  close(tfp_diag.diag_hessian(fn, X)[2], hessian_by_copies(fn, X))
