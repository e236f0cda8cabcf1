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
"""Statistical laws that a wrong drift or a wrong ratio cannot satisfy.

All seeds are fixed. Each p-value is compared with 1e-6, so that a correct
kernel with new seeds fails one of these tests once in some 20,000 runs.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfp_diag.examples import gaussian
from tfp_diag.mcmc import (
  LangevinTerms,
  PreconditionedMALA,
)
from tfp_diag.mcmc.kernels import (
  langevin,
  langevin_terms,
  uncalibrated_preconditioned_langevin,
)

_LEVEL = 1e-6
_NUM_DRAWS = 60_000


# One step from exact draws leaves the target as it is.


class _Gaussian3:
  """The dense 3-D normal, with a volatility that mixes coordinates."""

  _target = gaussian.three_dimensional()
  _cholesky = np.linalg.cholesky(_target.covariance())
  step_size = 1.6
  log_prob = _target.log_prob

  @staticmethod
  def volatility(x):
    return 0.8 + 0.5 * tf.tanh(x + 0.5 * tf.roll(x, 1, axis=-1))

  def exact(self, noise):
    return noise @ self._cholesky.T

  def standardize(self, x):
    return np.linalg.solve(self._cholesky, x.T).T


class _Banana:
  """A bent normal, on scales of order one."""

  step_size = 0.5

  @staticmethod
  def log_prob(x):
    bent = x[..., 1] + 0.5 * (tf.square(x[..., 0]) - 1.0)
    return -0.5 * tf.square(x[..., 0]) - 0.5 * tf.square(bent)

  @staticmethod
  def volatility(x):
    first = 1.0 / (0.7 + 0.2 * tf.square(x[..., 0]))
    return tf.stack([first, 1.0 + 0.3 * tf.sin(x[..., 1])], -1)

  def exact(self, noise):
    bend = 0.5 * (noise[:, 0] ** 2 - 1.0)
    return np.stack([noise[:, 0], noise[:, 1] - bend], -1)

  def standardize(self, x):
    return np.stack([x[:, 0], x[:, 1] + 0.5 * (x[:, 0] ** 2 - 1.0)], -1)


def _p_value(target, dtype, chains, **kwargs):
  """The smallest p-value of the statistics after one step from exact draws."""
  num_dims = 3 if isinstance(target, _Gaussian3) else 2
  noise = np.random.default_rng(11).normal(size=[_NUM_DRAWS, num_dims])
  state = tf.constant(target.exact(noise).reshape(*chains, num_dims), dtype)
  kernel = PreconditionedMALA(target.log_prob, target.step_size, **kwargs)

  @tf.function
  def step(state):
    return kernel.one_step(state, kernel.bootstrap_results(state), seed=(3, 9))

  moved, results = step(state)
  accepted = results.is_accepted.numpy().mean()
  assert 0.2 < accepted < 0.9, accepted
  z = target.standardize(moved.numpy().astype(np.float64).reshape(-1, num_dims))
  # Coordinates, a direction across them, and the radius.
  tests = [scipy.stats.kstest(column, 'norm') for column in z.T]
  tests.append(scipy.stats.kstest(z.sum(-1) / np.sqrt(num_dims), 'norm'))
  chi2 = scipy.stats.chi2(num_dims)
  tests.append(scipy.stats.kstest((z**2).sum(-1), chi2.cdf))
  return min(t.pvalue for t in tests)


_CHAINS = {
  1: [_NUM_DRAWS],
  2: [_NUM_DRAWS // 200, 200],
  3: [2, _NUM_DRAWS // 200, 100],
}


@pytest.mark.parametrize('target', [_Gaussian3(), _Banana()])
@pytest.mark.parametrize(
  ('rank', 'dtype'), [(1, tf.float32), (2, tf.float64), (3, tf.float32)]
)
def test_one_step_leaves_the_target_invariant(target, rank, dtype):
  p = _p_value(target, dtype, _CHAINS[rank], volatility_fn=target.volatility)
  assert p > _LEVEL


@pytest.mark.parametrize('rank', [1, 2])
def test_one_step_with_a_constant_scale_leaves_the_target_invariant(rank):
  target = _Gaussian3()
  factor = tf.linalg.LinearOperatorLowerTriangular(
    tf.constant(target._cholesky, tf.float32)
  )
  p = _p_value(target, tf.float32, _CHAINS[rank], preconditioner=factor)
  assert p > _LEVEL


def test_catches_a_dropped_log_scale_ratio(monkeypatch):
  right = langevin.Volatility.correction

  def wrong(self, terms, whitened, noise, root, axes):
    ratio = tf.math.log(terms[0].volatility / terms[1].volatility)
    correction = right(self, terms, whitened, noise, root, axes)
    return correction - tf.reduce_sum(ratio, axes)

  monkeypatch.setattr(langevin.Volatility, 'correction', wrong)
  target = _Banana()
  p = _p_value(target, tf.float64, _CHAINS[1], volatility_fn=target.volatility)
  assert p < _LEVEL


def test_catches_the_gradient_of_another_chain(monkeypatch):
  calls = []

  def wrong(*args):
    # At the proposal only, as when a cache is gathered with a wrong index.
    calls.append(args)
    log_prob, terms = langevin_terms.evaluate(*args)
    if len(calls) == 2:
      terms = terms._replace(
        gradient=[tf.roll(g, 1, axis=0) for g in terms.gradient]
      )
    return log_prob, terms

  monkeypatch.setattr(uncalibrated_preconditioned_langevin, 'evaluate', wrong)
  target = _Banana()
  p = _p_value(target, tf.float64, _CHAINS[1], volatility_fn=target.volatility)
  assert len(calls) == 2
  assert p < _LEVEL


def test_catches_a_wrong_term_in_the_reverse_density(monkeypatch):
  right = langevin.Volatility.correction

  def wrong(self, terms, whitened, noise, root, axes):
    # The way back without the derivative of the volatility.
    back = whitened[1] - root * terms[1].volatility_gradient
    return right(self, terms, (whitened[0], back), noise, root, axes)

  monkeypatch.setattr(langevin.Volatility, 'correction', wrong)
  target = _Banana()
  p = _p_value(target, tf.float64, _CHAINS[1], volatility_fn=target.volatility)
  assert p < _LEVEL


# How the log acceptance ratio shrinks with the step size.


def _log_ratios(step_size, drift_factor=1.0):
  """From exact draws of N(0, 1), with s(x) = 1 + ½ sin x, in one dimension.

  Args:
    step_size: τ.
    drift_factor: How much of the term s ∂s the (consistent) drift contains.

  Returns:
    log a of the draws, and E[s'²].
  """
  rng = np.random.default_rng(7)
  x = tf.constant(rng.normal(size=[200_000, 1]))
  z = tf.constant(rng.normal(size=x.shape))
  root = tf.sqrt(tf.constant(step_size, tf.float64))

  def terms(x):
    return LangevinTerms(
      gradient=-x,
      volatility=1.0 + 0.5 * tf.sin(x),
      volatility_gradient=drift_factor * 0.5 * tf.cos(x),
    )

  law = langevin.Volatility()
  before = terms(x)
  whitened = law.whiten(before, root)
  y = law.propose(x, before, whitened, z, root)
  after = terms(y)
  correction = law.correction(
    (before, after), (whitened, law.whiten(after, root)), z, root, [1]
  )
  log_prob_change = 0.5 * tf.reduce_sum(x**2 - y**2, -1)
  # E[cos²x] = (1 + e⁻²) / 2 for a standard normal x.
  return log_prob_change + correction, 0.25 * 0.5 * (1.0 + np.exp(-2.0))


@pytest.mark.parametrize(('drift_factor', 'law'), [(1, 6), (0, 10), (2, 10)])
def test_variance_of_the_log_ratio(drift_factor, law):
  # The standard error of the variance is below 1 per cent here, and so is the
  # next order in the step size.
  step_size = 1e-4
  log_ratio, mean_square_slope = _log_ratios(step_size, drift_factor)
  constant = np.var(log_ratio) / (step_size * mean_square_slope)
  np.testing.assert_allclose(constant, law, rtol=0.05)


def test_kernel_has_the_variance_of_the_exact_drift():
  step_size = 1e-4
  x = tf.constant(np.random.default_rng(8).normal(size=[200_000, 1]))
  kernel = PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, -1),
    step_size,
    volatility_fn=lambda x: 1.0 + 0.5 * tf.sin(x),
  )
  results = kernel.one_step(x, kernel.bootstrap_results(x), seed=(1, 2))[1]
  mean_square_slope = _log_ratios(step_size)[1]
  constant = np.var(results.log_accept_ratio) / (step_size * mean_square_slope)
  np.testing.assert_allclose(constant, 6.0, rtol=0.05)


def _slope(gradient_factor):
  """Of log std(log a) over log τ, for a constant scale."""

  @tf.custom_gradient
  def log_prob(x):
    value = -tf.reduce_sum(tf.math.log(tf.cosh(x)), -1)

    def gradient(upstream):
      return -gradient_factor * upstream[..., tf.newaxis] * tf.tanh(x)

    return value, gradient

  # Exact draws of the density ∝ 1 / cosh x.
  u = np.random.default_rng(9).uniform(size=[50_000, 2])
  x = tf.constant(np.arcsinh(np.tan(np.pi * (u - 0.5))))
  step_sizes = np.array([0.003, 0.01, 0.03])
  deviations = []
  for step_size in step_sizes:
    kernel = PreconditionedMALA(log_prob, step_size, preconditioner=[1.3])
    results = kernel.one_step(x, kernel.bootstrap_results(x), seed=(1, 2))[1]
    deviations.append(np.std(results.log_accept_ratio))
  return np.polyfit(np.log(step_sizes), np.log(deviations), 1)[0]


def test_constant_scale_has_errors_of_order_three_halves():
  np.testing.assert_allclose(_slope(1.0), 1.5, atol=0.05)


def test_a_wrong_gradient_has_errors_of_lower_order():
  assert _slope(0.9) < 1.0
