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
"""The exponential integrator as algebra, against densities of SciPy."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfp_diag.mcmc.kernels import langevin
from tfp_diag.mcmc.kernels.preconditioner import as_factors

_RNG = np.random.default_rng(40)
_LOWER = np.tril(_RNG.normal(size=[3, 3])) + 2.0 * np.eye(3)
_PRECISION = np.linalg.inv(_LOWER @ _LOWER.T)
_MEAN = np.array([1.0, -2.0, 0.5])
_STEP = 0.7

_SCALES = {
  'none': (None, np.eye(3)),
  'diagonal': (np.array([0.5, 1.7, 0.9]), np.diag([0.5, 1.7, 0.9])),
  'cholesky': (tf.linalg.LinearOperatorLowerTriangular(_LOWER), _LOWER),
}


def _gaussian_gradient(x):
  return -(x - _MEAN) @ _PRECISION


def _quartic_gradient(x):
  return _gaussian_gradient(x) - x**3


def _step(preconditioner, gradient, step=_STEP, seed=1):
  """Starts, ends, the noise, and log q(x | y) - log q(y | x)."""
  rng = np.random.default_rng(seed)
  x, noise = tf.constant(rng.normal(size=[2, 20, 3]))
  [factor] = as_factors(preconditioner, [x], [1])
  law = langevin.ExponentialScale(factor)
  root = tf.sqrt(tf.constant(step, tf.float64))
  terms = gradient(x)
  whitened = law.whiten(terms, root)
  y = law.propose(x, terms, whitened, noise, root)
  after = gradient(y)
  correction = law.correction(
    (terms, after), (whitened, law.whiten(after, root)), noise, root, [1]
  )
  return x.numpy(), y.numpy(), noise.numpy(), correction.numpy()


def _log_q(start, end, scale, gradient, step):
  """Of the Ornstein-Uhlenbeck process over the time `step`."""
  mean = start + (1 - np.exp(-step / 2)) * scale @ scale.T @ gradient(start)
  covariance = (1 - np.exp(-step)) * scale @ scale.T
  return scipy.stats.multivariate_normal.logpdf(end, mean, covariance)


@pytest.mark.parametrize('step', [0.01, 0.7, 30.0])
@pytest.mark.parametrize('scale', _SCALES)
def test_correction_is_that_of_the_densities(scale, step):
  preconditioner, matrix = _SCALES[scale]
  x, y, noise, correction = _step(preconditioner, _quartic_gradient, step)
  for start, end, z, actual in zip(x, y, noise, correction):
    there = _log_q(start, end, matrix, _quartic_gradient, step)
    back = _log_q(end, start, matrix, _quartic_gradient, step)
    np.testing.assert_allclose(actual, back - there, rtol=1e-9, atol=1e-9)
    # The end is drawn from the density that is claimed.
    drift = matrix @ matrix.T @ _quartic_gradient(start)
    mean = start + (1 - np.exp(-step / 2)) * drift
    expected = mean + np.sqrt(1 - np.exp(-step)) * matrix @ z
    np.testing.assert_allclose(end, expected, rtol=1e-12)


@pytest.mark.parametrize('step', [0.1, 3.0])
def test_a_gaussian_is_left_invariant(step):
  preconditioner, _ = _SCALES['cholesky']
  x, y, _, correction = _step(preconditioner, _gaussian_gradient, step)

  def log_prob(v):
    return -0.5 * np.sum((v - _MEAN) @ _PRECISION * (v - _MEAN), axis=-1)

  log_ratio = log_prob(y) - log_prob(x) + correction
  np.testing.assert_allclose(log_ratio, 0.0, atol=1e-10)
  # With another scale it is not.
  x, y, _, correction = _step(0.7, _gaussian_gradient, step)
  log_ratio = log_prob(y) - log_prob(x) + correction
  assert np.max(np.abs(log_ratio)) > 1e-3


def test_short_steps_are_those_of_euler():
  rng = np.random.default_rng(2)
  x, noise = tf.constant(rng.normal(size=[2, 5, 3]))
  differences = []
  for step in (1e-2, 1e-4):
    root = tf.sqrt(tf.constant(step, tf.float64))
    [factor] = as_factors(_SCALES['diagonal'][0], [x], [1])
    ends = []
    for law in (langevin.ConstantScale, langevin.ExponentialScale):
      law = law(factor)
      terms = _quartic_gradient(x)
      whitened = law.whiten(terms, root)
      ends.append(law.propose(x, terms, whitened, noise, root))
    differences.append(np.max(np.abs(ends[0] - ends[1])))
  # The noises differ by O(τ^1.5), the drifts by O(τ²).
  assert differences[1] < 2e-3 * differences[0]


def test_endless_time_forgets_the_start():
  """Not a NaN where a step size adapter has run away."""
  preconditioner, _ = _SCALES['cholesky']
  _, y, noise, correction = _step(preconditioner, _gaussian_gradient, np.inf)
  np.testing.assert_allclose(y, _MEAN + noise @ _LOWER.T, rtol=1e-12)
  assert np.all(np.isfinite(correction))
