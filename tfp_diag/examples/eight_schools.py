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
"""Eight schools: the effect of coaching on test scores."""

import functools
import math

import numpy as np
import tensorflow as tf

from tfp_diag.examples.pieces import start_of_parts
from tfp_diag.examples.target import Target

__all__ = ['eight_schools', 'eight_schools_centered']

# Estimated effects and their standard errors, in points of the SAT-V.
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
STANDARD_ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

# mu ~ N(0, 5²), tau ~ half-Cauchy(5).
PRIOR_SCALE = 5.0

_NAMES = ('mu', 'tau', *(f'theta[{j}]' for j in range(EFFECTS.size)))

_SOURCE = (
  'Rubin (1981), "Estimation in parallel randomized experiments", table 1, '
  'with mu ~ N(0, 5²) and tau ~ half-Cauchy(5). Given tau the posterior of mu '
  'and theta is normal; the reference integrates over log tau with the '
  'trapezoidal rule.'
)


def eight_schools():
  """The non-centered form: theta = mu + tau · z.

  The state is [mu, log tau, z] with event shapes [], [], [8].

  Returns:
    A `Target` with exact means, standard deviations and marginal densities.
  """
  return Target(
    name='eight_schools',
    description='Eight schools (Rubin 1981), non-centered: 10 coordinates.',
    target_log_prob_fn=_non_centered_log_prob,
    to_parameters=_non_centered_parameters,
    **_known(),
  )


def eight_schools_centered():
  """The centered form, whose posterior is a funnel: the state holds theta.

  The state is [mu, log tau, theta] with event shapes [], [], [8].

  Returns:
    A `Target` with the same parameters and reference as `eight_schools`.
  """
  return Target(
    name='eight_schools_centered',
    description='Eight schools, centered: the same posterior with a funnel.',
    target_log_prob_fn=_centered_log_prob,
    to_parameters=_centered_parameters,
    **_known(),
  )


def _non_centered_log_prob(mu, log_tau, z):
  theta = mu[..., tf.newaxis] + tf.exp(log_tau)[..., tf.newaxis] * z
  return (
    _log_prior(mu, log_tau)
    + tf.reduce_sum(_normal_log_prob(z), axis=-1)
    + _log_likelihood(theta)
  )


def _centered_log_prob(mu, log_tau, theta):
  log_tau_column = log_tau[..., tf.newaxis]
  z = (theta - mu[..., tf.newaxis]) * tf.exp(-log_tau_column)
  return (
    _log_prior(mu, log_tau)
    + tf.reduce_sum(_normal_log_prob(z) - log_tau_column, axis=-1)
    + _log_likelihood(theta)
  )


def _log_prior(mu, log_tau):
  # The half-Cauchy density of tau, times d tau / d log tau. In terms of
  # u = log(tau / 5): log(2 / pi) + u - log(1 + e^2u).
  u = log_tau - math.log(PRIOR_SCALE)
  return (
    _normal_log_prob(mu / PRIOR_SCALE)
    - math.log(PRIOR_SCALE)
    + math.log(2.0 / math.pi)
    + u
    - tf.math.softplus(2.0 * u)
  )


def _log_likelihood(theta):
  effects = tf.constant(EFFECTS, theta.dtype)
  errors = tf.constant(STANDARD_ERRORS, theta.dtype)
  return tf.reduce_sum(
    _normal_log_prob((effects - theta) / errors) - tf.math.log(errors), axis=-1
  )


def _normal_log_prob(z):
  return -0.5 * tf.square(z) - 0.5 * math.log(2.0 * math.pi)


def _non_centered_parameters(state):
  mu, log_tau, z = state
  tau = tf.exp(log_tau)
  theta = mu[..., tf.newaxis] + tau[..., tf.newaxis] * z
  return _named(mu, tau, theta)


def _centered_parameters(state):
  mu, log_tau, theta = state
  return _named(mu, tf.exp(log_tau), theta)


def _named(mu, tau, theta):
  parts = [mu, tau, *tf.unstack(theta, axis=-1)]
  return dict(zip(_NAMES, parts))


def _known():
  means, sds = _reference_moments()
  return {
    'init': functools.partial(start_of_parts, [[], [], [EFFECTS.size]]),
    'parameter_names': _NAMES,
    'reference_mean': means,
    'reference_sd': sds,
    'marginal_pdf': {
      name: functools.partial(_marginal_pdf, i) for i, name in enumerate(_NAMES)
    },
    'reference': _SOURCE,
  }


def _conditional_moments(tau):
  """Moments of (mu, theta) given tau, and the log density of log tau.

  With y_j ~ N(mu, errors_j² + tau²), everything is conjugate.

  Args:
    tau: Positive float64 array [k].

  Returns:
    Means [k, 9] and variances [k, 9] of mu, theta_1 .. theta_8, and the log
    posterior density [k] of log tau up to a constant.
  """
  tau = tau[:, np.newaxis]
  marginal_variance = STANDARD_ERRORS**2 + tau**2
  precision = np.sum(1.0 / marginal_variance, 1) + PRIOR_SCALE**-2
  mu_mean = np.sum(EFFECTS / marginal_variance, 1) / precision
  mu_variance = 1.0 / precision

  # theta_j = mu + shrinkage_j (y_j - mu) + noise, given mu.
  shrinkage = tau**2 / marginal_variance
  theta_mean = shrinkage * EFFECTS + (1.0 - shrinkage) * mu_mean[:, np.newaxis]
  theta_variance = (
    shrinkage * STANDARD_ERRORS**2
    + (1.0 - shrinkage) ** 2 * mu_variance[:, np.newaxis]
  )

  # p(y | tau) = p(y | mu, tau) p(mu) / p(mu | y, tau), at mu = its mean.
  residuals = EFFECTS - mu_mean[:, np.newaxis]
  log_evidence = (
    -0.5 * np.sum(residuals**2 / marginal_variance, 1)
    - 0.5 * np.sum(np.log(marginal_variance), 1)
    - 0.5 * mu_mean**2 / PRIOR_SCALE**2
    + 0.5 * np.log(mu_variance)
  )
  u = np.log(tau[:, 0] / PRIOR_SCALE)
  return (
    np.concatenate([mu_mean[:, np.newaxis], theta_mean], axis=1),
    np.concatenate([mu_variance[:, np.newaxis], theta_variance], axis=1),
    log_evidence + u - np.logaddexp(0.0, 2.0 * u),
  )


@functools.cache
def _quadrature():
  """Nodes of tau, their posterior weights, moments, and the log constant.

  The integrand is smooth and decays exponentially on both sides of log tau, so
  that the trapezoidal rule converges geometrically.
  """
  log_tau, spacing = np.linspace(-24.0, 12.0, 3601, retstep=True)
  means, variances, log_density = _conditional_moments(np.exp(log_tau))
  peak = np.max(log_density)
  weights = np.exp(log_density - peak)
  total = np.sum(weights)
  log_constant = peak + math.log(total * spacing)
  return np.exp(log_tau), weights / total, means, variances, log_constant


def _reference_moments():
  tau, weights, means, variances, _ = _quadrature()
  first = weights @ means
  second = weights @ (variances + means**2)
  tau_mean = weights @ tau
  tau_sd = math.sqrt(weights @ (tau - tau_mean) ** 2)
  sds = np.sqrt(second - first**2)
  return (
    np.concatenate([first[:1], [tau_mean], first[1:]]),
    np.concatenate([sds[:1], [tau_sd], sds[1:]]),
  )


def _marginal_pdf(index, values):
  """The marginal posterior density of the parameter `_NAMES[index]`."""
  _, weights, means, variances, log_constant = _quadrature()
  values = np.asarray(values, np.float64)
  if _NAMES[index] == 'tau':
    flat = values.reshape(-1)
    positive = np.where(flat > 0.0, flat, 1.0)
    log_density = _conditional_moments(positive)[2] - log_constant
    density = np.where(flat > 0.0, np.exp(log_density) / positive, 0.0)
    return density.reshape(values.shape)
  column = 0 if index == 0 else index - 1
  mean, variance = means[:, column], variances[:, column]
  z2 = (values[..., np.newaxis] - mean) ** 2 / variance
  return np.exp(-0.5 * z2) / np.sqrt(2.0 * np.pi * variance) @ weights
