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
"""Targets against numerical integration and closed forms."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from tfp_diag.examples import Target, eight_schools, targets
from tfp_diag.examples.funnel import funnel

_NAMES = list(targets.TARGETS)


def _as_list(state):
  return state if isinstance(state, list) else [state]


def test_registry():
  assert {
    'eight_schools',
    'eight_schools_centered',
    'funnel',
    'banana',
  } <= set(_NAMES)
  for name in _NAMES:
    target = targets.get(name)
    assert isinstance(target, Target)
    assert target.name == name
    assert target.description
    assert target.reference
  with pytest.raises(
    ValueError, match=r"no target named 'nine_schools'.*funnel"
  ):
    targets.get('nine_schools')


@pytest.mark.parametrize('name', _NAMES)
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_shapes_of_a_target(name, dtype):
  target = targets.get(name)
  state = target.init(6, (0, 1), dtype=dtype)
  parts = _as_list(state)
  assert all(x.dtype == dtype for x in parts)
  log_prob = target.target_log_prob_fn(*parts)
  assert log_prob.dtype == dtype
  assert log_prob.shape == [6]
  assert len(set(log_prob.numpy())) == 6

  # Any leading shape: draws and chains, or none at all.
  folded = [tf.reshape(x, [2, 3, *x.shape[1:]]) for x in parts]
  np.testing.assert_allclose(
    np.ravel(target.target_log_prob_fn(*folded)), log_prob, rtol=1e-5
  )
  single = [x[0] for x in parts]
  np.testing.assert_allclose(
    target.target_log_prob_fn(*single), log_prob[0], rtol=1e-5
  )
  folded_state = folded if isinstance(state, list) else folded[0]
  values = target.to_parameters(folded_state)
  assert tuple(values) == target.parameter_names
  assert all(x.shape == [2, 3] and x.dtype == dtype for x in values.values())
  count = len(target.parameter_names)
  # As everywhere in Python, the first one is number 0.
  assert not any('[1]' in n for n in values) or any('[0]' in n for n in values)
  assert target.reference_mean.shape == (count,)
  assert target.reference_sd.shape == (count,)

  again = _as_list(target.init(6, (0, 1), dtype=dtype))
  other = _as_list(target.init(6, (0, 2), dtype=dtype))
  for x, same, different in zip(parts, again, other):
    np.testing.assert_array_equal(x, same)
    assert not np.any(x == different)


@pytest.mark.parametrize('name', _NAMES)
def test_marginals_have_the_reference_moments(name):
  # By trapezoids in log |x|, which reach the heavy tails, on either side of
  # zero, where the density of tau jumps and that of the funnel has a cusp.
  target = targets.get(name)
  u = np.linspace(-18.0, 9.0, 1000)
  for i, parameter in enumerate(target.parameter_names):
    if parameter not in target.marginal_pdf:
      continue
    mean, sd = target.reference_mean[i], target.reference_sd[i]
    x = sd * np.exp(u) * np.array([[-1.0], [1.0]])
    weight = target.marginal_pdf[parameter](x) * np.abs(x)

    def integral(values, weight=weight):
      return np.sum(scipy.integrate.trapezoid(values * weight, u))

    np.testing.assert_allclose(integral(1.0), 1.0, rtol=1e-4)
    np.testing.assert_allclose(integral(x), mean, rtol=1e-4, atol=1e-4 * sd)
    np.testing.assert_allclose(integral((x - mean) ** 2), sd**2, rtol=1e-3)


# Eight schools.


def _joint_log_prob(mu, tau, theta):
  """The model as its authors write it, in SciPy; no Jacobian."""
  norm = scipy.stats.norm.logpdf
  return (
    norm(mu, 0.0, 5.0)
    + scipy.stats.halfcauchy.logpdf(tau, scale=5.0)
    + np.sum(norm(theta, mu, tau))
    + np.sum(
      norm(
        [28, 8, -3, 7, -1, 1, 18, 12], theta, [15, 10, 16, 11, 9, 11, 10, 18]
      )
    )
  )


def test_eight_schools_is_the_model():
  rng = np.random.default_rng(0)
  for _ in range(5):
    mu, log_tau, z = rng.normal(), rng.normal(), rng.normal(size=8)
    tau = math.exp(log_tau)
    theta = mu + tau * z
    joint = _joint_log_prob(mu, tau, theta)
    # d tau = tau d log tau; d theta = tau⁸ dz.
    centered = targets.get('eight_schools_centered')
    actual = centered.target_log_prob_fn(
      *[tf.constant(x, tf.float64) for x in (mu, log_tau, theta)]
    )
    np.testing.assert_allclose(actual, joint + log_tau, rtol=1e-10)
    non_centered = targets.get('eight_schools')
    state = [tf.constant(x, tf.float64) for x in (mu, log_tau, z)]
    actual = non_centered.target_log_prob_fn(*state)
    np.testing.assert_allclose(actual, joint + 9.0 * log_tau, rtol=1e-10)
    values = non_centered.to_parameters(state)
    np.testing.assert_allclose(
      list(values.values()), [mu, tau, *theta], rtol=1e-12
    )


def _scipy_reference():
  """Means and standard deviations by nested adaptive quadrature.

  theta_j is integrated out of N(y_j; theta_j, σ_j²) N(theta_j; mu, tau²) as
  N(y_j; mu, σ_j² + tau²); mu and tau are integrated numerically.
  """
  y, errors = eight_schools.EFFECTS, eight_schools.STANDARD_ERRORS
  mu, mu_step = np.linspace(-30.0, 40.0, 1401, retstep=True)

  def moments_given(tau):
    variance = errors**2 + tau**2
    log_density = scipy.stats.norm.logpdf(mu, 0.0, 5.0) + np.sum(
      scipy.stats.norm.logpdf(y[:, np.newaxis], mu, np.sqrt(variance)[:, None]),
      axis=0,
    )
    density = np.exp(log_density) * mu_step
    prior = scipy.stats.halfcauchy.pdf(tau, scale=5.0)
    # theta_j given mu and tau.
    weight = tau**2 / variance
    theta = weight * y + (1.0 - weight) * mu[:, np.newaxis]
    spread = weight * errors**2
    values = [
      np.ones_like(mu)[:, None],
      mu[:, None],
      mu[:, None] ** 2,
      theta,
      theta**2 + spread,
    ]
    out = prior * density @ np.concatenate(values, axis=1)
    return np.concatenate([out, [tau * out[0], tau**2 * out[0]]])

  def substituted(u):
    tau = math.exp(u)
    return 1e12 * tau * moments_given(tau)

  total, _ = scipy.integrate.quad_vec(
    substituted, -16.0, 10.0, epsrel=1e-9, epsabs=0.0, norm='max'
  )
  total /= total[0]
  mean = np.concatenate([total[1:2], total[19:20], total[3:11]])
  square = np.concatenate([total[2:3], total[20:21], total[11:19]])
  return mean, np.sqrt(square - mean**2)


def test_eight_schools_reference_is_scipys():
  mean, sd = _scipy_reference()
  for name in ('eight_schools', 'eight_schools_centered'):
    target = targets.get(name)
    np.testing.assert_allclose(target.reference_mean, mean, rtol=1e-5)
    np.testing.assert_allclose(target.reference_sd, sd, rtol=1e-4)


def test_eight_schools_reference_is_what_others_report():
  # Long Stan runs of this model: mu 4.4 ± 3.3, tau 3.6 ± 3.2, theta[0] 6.2.
  target = targets.get('eight_schools')
  np.testing.assert_allclose(
    target.reference_mean[:3], [4.4, 3.6, 6.2], atol=0.1
  )
  np.testing.assert_allclose(target.reference_sd[:2], [3.3, 3.2], atol=0.1)


def test_tau_has_no_density_below_zero():
  pdf = targets.get('eight_schools').marginal_pdf['tau']
  values = pdf(np.array([[-1.0, 0.0], [0.5, 2.0]]))
  assert np.all(values[0] == 0.0)
  assert np.all(values[1] > 0.05)


# Funnel and banana.


def test_funnel_is_the_product_of_its_conditionals():
  rng = np.random.default_rng(0)
  v, x = rng.normal(size=4), rng.normal(size=[4, 9])
  expected = scipy.stats.norm.logpdf(v, 0.0, 3.0) + np.sum(
    scipy.stats.norm.logpdf(x, 0.0, np.exp(v / 2.0)[:, np.newaxis]), -1
  )
  actual = targets.get('funnel').target_log_prob_fn(
    tf.constant(v), tf.constant(x)
  )
  np.testing.assert_allclose(actual, expected, rtol=1e-10)
  assert targets.get('funnel').reference_sd[1] == math.exp(2.25)


def test_banana_is_the_product_of_its_conditionals():
  x = np.random.default_rng(0).normal(size=[4, 2]) * 5.0
  expected = scipy.stats.norm.logpdf(x[:, 0], 0.0, 10.0) + (
    scipy.stats.norm.logpdf(x[:, 1], 0.03 * (100.0 - x[:, 0] ** 2), 1.0)
  )
  actual = targets.get('banana').target_log_prob_fn(tf.constant(x))
  np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize('num_leaves', [2.5, 0])
def test_a_funnel_has_a_number_of_leaves(num_leaves):
  with pytest.raises(ValueError, match=r'`num_leaves` is .*a positive integer'):
    funnel(num_leaves)
