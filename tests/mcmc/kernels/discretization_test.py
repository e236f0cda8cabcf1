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
"""The step that is exact for a Gaussian whose covariance is the scale's."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfp_diag.mcmc import (
  LocalHessianPreconditioner,
  PreconditionedMALA,
  UncalibratedPreconditionedLangevin,
)

_STEP = 0.7
_FACTOR = np.array([[1.0, 0.0, 0.0], [0.5, 0.3, 0.0], [-0.2, 0.8, 2.0]])
_COVARIANCE = _FACTOR @ _FACTOR.T
_MEAN = np.array([1.0, -2.0, 0.5])


def _gaussian(x):
  shifted = x - tf.constant(_MEAN, x.dtype)
  precision = tf.constant(np.linalg.inv(_COVARIANCE), x.dtype)
  return -0.5 * tf.einsum('...i,ij,...j->...', shifted, precision, shifted)


def _quartic(x):
  return -0.25 * tf.reduce_sum(x**4, -1) + tf.reduce_sum(tf.sin(x), -1)


def _step(target, preconditioner, x, **kwargs):
  kernel = PreconditionedMALA(
    target,
    tf.constant(_STEP, tf.float64),
    preconditioner,
    discretization='exponential',
    **kwargs,
  )
  x = tf.constant(x)
  return kernel.one_step(x, kernel.bootstrap_results(x), seed=(3, 4))[1]


def _starts(num_chains):
  return np.random.default_rng(0).normal(size=[num_chains, 3])


def test_a_gaussian_of_that_covariance_accepts_every_proposal():
  factor = tf.linalg.LinearOperatorLowerTriangular(tf.constant(_FACTOR))
  results = _step(_gaussian, factor, _starts(50))
  np.testing.assert_allclose(results.log_accept_ratio, 0.0, atol=1e-10)
  # The control: of another covariance, it does not.
  results = _step(_gaussian, None, _starts(50))
  assert np.std(results.log_accept_ratio) > 0.1


@pytest.mark.parametrize('scale', ['none', 'diagonal', 'factor'])
def test_density_of_the_proposal(scale):
  matrix = {
    'none': np.eye(3),
    'diagonal': np.diag([0.5, 1.0, 2.0]),
    'factor': _FACTOR,
  }[scale]
  preconditioner = {
    'none': None,
    'diagonal': np.array([0.5, 1.0, 2.0]),
    'factor': tf.linalg.LinearOperatorFullMatrix(tf.constant(_FACTOR)),
  }[scale]
  x = _starts(20)
  results = _step(_quartic, preconditioner, x)
  y = results.proposed_state.numpy()

  covariance = matrix @ matrix.T
  root = np.exp(-0.5 * _STEP)

  def log_q(a, b):
    """Of moving from a to b."""
    gradient = -(a**3) + np.cos(a)
    mean = a + (1.0 - root) * covariance @ gradient
    law = scipy.stats.multivariate_normal(mean, (1.0 - root**2) * covariance)
    return law.logpdf(b)

  expected = [
    float(_quartic(b) - _quartic(a)) + log_q(b, a) - log_q(a, b)
    for a, b in zip(x, y)
  ]
  np.testing.assert_allclose(results.log_accept_ratio, expected, rtol=1e-8)


def test_noise_has_the_variance_of_that_time():
  # False alarms: 1e-6, for a variance of 60,000 normal draws.
  x = np.tile(_MEAN, [60_000, 1])
  factor = tf.linalg.LinearOperatorLowerTriangular(tf.constant(_FACTOR))
  moved = _step(_gaussian, factor, x).proposed_state - x
  whitened = np.linalg.solve(_FACTOR, moved.numpy().T)
  ratio = np.mean(whitened**2, axis=1) / (1.0 - np.exp(-_STEP))
  assert np.all(np.abs(ratio - 1.0) < 5.2 * np.sqrt(2.0 / 60_000))


@pytest.mark.parametrize(
  'kernel', [PreconditionedMALA, UncalibratedPreconditionedLangevin]
)
def test_what_does_not_fit_is_refused(kernel):
  made = kernel(_quartic, 0.1, discretization='exponential')
  assert made.copy().discretization == 'exponential'
  assert kernel(_quartic, 0.1).discretization == 'euler'
  with pytest.raises(ValueError, match="can be one of 'euler', 'exponential'"):
    kernel(_quartic, 0.1, discretization='heun')
  with pytest.raises(ValueError, match='`volatility_fn` makes it depend'):
    kernel(
      _quartic, 0.1, volatility_fn=tf.ones_like, discretization='exponential'
    )
  with pytest.raises(ValueError, match='the `preconditioner` makes it depend'):
    kernel(
      _quartic,
      0.1,
      LocalHessianPreconditioner(),
      discretization='exponential',
    )


def test_coordinates_that_are_mixed_have_one_step_size():
  factor = tf.linalg.LinearOperatorFullMatrix(tf.constant(_FACTOR))
  x = tf.constant(_starts(4))
  steps = tf.constant([0.1, 0.2, 0.3], tf.float64)
  kernel = PreconditionedMALA(
    _quartic, steps, factor, discretization='exponential'
  )
  with pytest.raises(ValueError, match='the coordinates move together'):
    kernel.bootstrap_results(x)
  for other in (
    kernel.copy(step_size=tf.fill([4, 1], steps[0])),
    kernel.copy(preconditioner=None),
    kernel.copy(discretization='euler'),
  ):
    other.one_step(x, other.bootstrap_results(x), seed=(1, 2))
