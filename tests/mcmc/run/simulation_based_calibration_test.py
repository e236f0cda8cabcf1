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
"""Simulation-based calibration on eight schools.

For parameters drawn from the prior and data drawn given them, the rank of the
parameters among draws from the posterior is uniform. The data sets are the
chains: hundreds of posteriors are sampled side by side.

All seeds are fixed. The least of the p-values, times their number, is compared
with 1e-5; the control must fall below.

Reference: Sean Talts, Michael Betancourt, Daniel Simpson, Aki Vehtari and
Andrew Gelman (2018). Validating Bayesian inference algorithms with
simulation-based calibration. arXiv:1804.06788, algorithm 2.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import (
  DiagonalPreconditionerAdaptation,
  LocalHessianPreconditioner,
  MetropolisAdjustedLangevinTrajectories,
  PreconditionedMALA,
)

tfd = tfp.distributions

_LEVEL = 1e-5
_NUM_DATA_SETS = 640
_NUM_DRAWS = 31
_THIN = {'fisher_divergence': 40, 'local_hessian': 40, 'trajectories': 8}
_NUM_ADAPTATION_STEPS = 400
# The standard errors of the eight schools (Rubin, 1981).
_SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def _prior():
  return tfd.Normal(0.0, 10.0), tfd.Normal(2.0, 0.7)


def _simulate(seed):
  """Parameters from the prior, and data given them."""
  rng = np.random.default_rng(seed)
  mean = 10.0 * rng.normal(size=_NUM_DATA_SETS)
  log_scale = 2.0 + 0.7 * rng.normal(size=_NUM_DATA_SETS)
  noise = rng.normal(size=[_NUM_DATA_SETS, 8])
  effects = mean[:, np.newaxis] + np.exp(log_scale)[:, np.newaxis] * noise
  data = effects + _SIGMA * rng.normal(size=effects.shape)
  return mean, log_scale, effects, data


def _log_prob(data, sigma, mean, log_scale, effects):
  """Of one posterior per data set, over the effects themselves."""
  of_mean, of_log_scale = _prior()
  of_effects = tfd.Normal(mean[:, tf.newaxis], tf.exp(log_scale)[:, tf.newaxis])
  return (
    of_mean.log_prob(mean)
    + of_log_scale.log_prob(log_scale)
    + tf.reduce_sum(of_effects.log_prob(effects), -1)
    + tf.reduce_sum(tfd.Normal(effects, sigma).log_prob(data), -1)
  )


def _log_prob_of_noise(data, sigma, mean, log_scale, noise):
  """The same over what the effects are made of, independent in the prior."""
  of_mean, of_log_scale = _prior()
  effects = mean[:, tf.newaxis] + tf.exp(log_scale)[:, tf.newaxis] * noise
  return (
    of_mean.log_prob(mean)
    + of_log_scale.log_prob(log_scale)
    - 0.5 * tf.reduce_sum(noise**2, -1)
    + tf.reduce_sum(tfd.Normal(effects, sigma).log_prob(data), -1)
  )


def _sampler(kind):
  """A compiled function from a start, data and σ to the draws."""
  is_local = kind == 'local_hessian'
  posterior = _log_prob if is_local else _log_prob_of_noise

  @tf.function(jit_compile=True)
  def draw(start, data, sigma):
    def log_prob(*parts):
      return posterior(data, sigma, *parts)

    if is_local:
      kernel = PreconditionedMALA(
        log_prob, 0.3, LocalHessianPreconditioner(1e-3)
      )
    elif kind == 'trajectories':
      kernel = MetropolisAdjustedLangevinTrajectories(
        log_prob, 0.3, 2.0, 0.8, preconditioner=[6.0, 0.6, 1.0]
      )
    else:
      kernel = DiagonalPreconditionerAdaptation(
        PreconditionedMALA(log_prob, 0.3),
        _NUM_ADAPTATION_STEPS // 2,
        'fisher_divergence',
      )
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
      kernel,
      _NUM_ADAPTATION_STEPS,
      target_accept_prob=0.8 if kind == 'trajectories' else 0.574,
      decay_rate=0.6,
    )
    mean, log_scale, effects = tfp.mcmc.sample_chain(
      _NUM_DRAWS,
      start,
      kernel=kernel,
      num_burnin_steps=_NUM_ADAPTATION_STEPS,
      num_steps_between_results=_THIN[kind] - 1,
      trace_fn=None,
      seed=(4, 5),
    )
    if not is_local:
      effects = mean[..., tf.newaxis] + (
        tf.exp(log_scale)[..., tf.newaxis] * effects
      )
    return mean, log_scale, effects

  return draw


def _p_value(draw, truth, data, sigma):
  # A start that knows nothing of the truth: another draw from the prior.
  mean, log_scale, effects, _ = _simulate(8)
  noise = (effects - mean[:, np.newaxis]) / np.exp(log_scale)[:, np.newaxis]
  # In either space these are places that the chains soon leave.
  start = [tf.constant(x, tf.float32) for x in (mean, log_scale, noise)]
  draws = draw(
    start, tf.constant(data, tf.float32), tf.constant(sigma, tf.float32)
  )
  p_values = []
  for own, others in zip(
    _statistics(*truth), _statistics(*(x.numpy() for x in draws))
  ):
    rank = np.sum(others < own, 0)
    counts = np.bincount(rank // 4, minlength=(_NUM_DRAWS + 1) // 4)
    p_values.append(scipy.stats.chisquare(counts).pvalue)
  return len(p_values) * min(p_values)


def _statistics(mean, log_scale, effects):
  return mean, log_scale, effects[..., 0], effects[..., 4], effects.mean(-1)


@pytest.mark.parametrize('kind', _THIN)
def test_ranks_are_uniform(kind):
  *truth, data = _simulate(7)
  truth = [x.astype(np.float32) for x in truth]
  draw = _sampler(kind)
  assert _p_value(draw, truth, data, _SIGMA) > _LEVEL
  # The control: data that are said to be more precise than they are.
  assert _p_value(draw, truth, data, 0.6 * _SIGMA) < _LEVEL
