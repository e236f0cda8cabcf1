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
"""The acceptance ratio as algebra: laws that hold to rounding error."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import (
  LangevinTerms,
  PreconditionedMALA,
  UncalibratedPreconditionedLangevin,
)
from tfp_diag.mcmc.kernels import langevin
from tfp_diag.mcmc.kernels.langevin_terms import per_part

# A target that is neither Gaussian nor separable, over two parts of 2 and 3
# coordinates: log π(v) = -½ vᵀ A v - ¼ Σ v⁴.
_RNG = np.random.default_rng(20)
_A = np.eye(5) + 0.2 * np.ones([5, 5])
_LOWER = np.tril(_RNG.normal(size=[3, 3])) + 2.0 * np.eye(3)
_SCALE_2 = np.array([0.5, 1.7])
_SCALE_3 = np.array([0.8, 1.1, 2.3])
# A volatility in which every coordinate sees every other one.
_C = _RNG.normal(size=[5, 5])
_STEP = 0.3


def _log_prob(u, w):
  v = tf.concat([u, w], -1)
  quadratic = tf.einsum('...i,ij,...j->...', v, tf.constant(_A, v.dtype), v)
  return -0.5 * quadratic - 0.25 * tf.reduce_sum(v**4, -1)


def _volatility(u, w):
  v = tf.concat([u, w], -1)
  s = 0.8 + 0.3 * tf.sin(tf.linalg.matvec(tf.constant(_C, v.dtype), v))
  return [s[..., :2], s[..., 2:]]


def _np_log_prob(v):
  return -0.5 * v @ _A @ v - 0.25 * np.sum(v**4)


def _np_gradient(v):
  return -_A @ v - v**3


def _np_log_q(start, end, scale_fn):
  """log N(end; start + drift, τ S Sᵀ), scale_fn(v) -> S, ½ div S Sᵀ."""
  scale, half_divergence = scale_fn(start)
  covariance = scale @ scale.T
  drift = _STEP * (0.5 * covariance @ _np_gradient(start) + half_divergence)
  return scipy.stats.multivariate_normal.logpdf(
    end, start + drift, _STEP * covariance
  )


def _constant(matrix):
  return lambda v: (matrix, np.zeros(5))


def _np_volatility(v):
  phase = _C @ v
  s = 0.8 + 0.3 * np.sin(phase)
  return np.diag(s), s * 0.3 * np.cos(phase) * np.diag(_C)


def _block(a, b):
  out = np.zeros([5, 5])
  out[:2, :2], out[2:, 2:] = a, b
  return out


_CASES = {
  'none': ({}, _constant(np.eye(5))),
  'one scale': ({'preconditioner': 0.7}, _constant(0.7 * np.eye(5))),
  'diagonal': (
    {'preconditioner': [_SCALE_2, _SCALE_3]},
    _constant(np.diag(np.concatenate([_SCALE_2, _SCALE_3]))),
  ),
  'cholesky': (
    {
      'preconditioner': [
        _SCALE_2,
        tf.linalg.LinearOperatorLowerTriangular(_LOWER),
      ]
    },
    _constant(_block(np.diag(_SCALE_2), _LOWER)),
  ),
  'low rank': (
    {
      'preconditioner': [
        None,
        tf.linalg.LinearOperatorLowRankUpdate(
          tf.linalg.LinearOperatorDiag(_SCALE_3), _LOWER[:, :1]
        ),
      ]
    },
    _constant(
      _block(np.eye(2), np.diag(_SCALE_3) + _LOWER[:, :1] @ _LOWER[:, :1].T)
    ),
  ),
  'volatility': ({'volatility_fn': _volatility}, _np_volatility),
}


def _pairs(kwargs, num=20, start=1):
  """Steps of the kernel: where they start, end, and their log ratio."""
  kernel = PreconditionedMALA(_log_prob, _STEP, **kwargs)
  rng = np.random.default_rng(start)
  state = [tf.constant(rng.normal(size=[num, k])) for k in (2, 3)]
  results = kernel.one_step(
    state, kernel.bootstrap_results(state), seed=(3, 4)
  )[1]
  start = np.concatenate([x.numpy() for x in state], -1)
  end = np.concatenate([x.numpy() for x in results.proposed_state], -1)
  return start, end, results.log_accept_ratio.numpy()


@pytest.mark.parametrize('case', _CASES)
def test_detailed_balance(case):
  kwargs, scale_fn = _CASES[case]
  start, end, log_ratio = _pairs(kwargs)
  for x, y, actual in zip(start, end, log_ratio):
    there = _np_log_prob(x) + _np_log_q(x, y, scale_fn)
    back = _np_log_prob(y) + _np_log_q(y, x, scale_fn)
    np.testing.assert_allclose(actual, back - there, rtol=1e-10, atol=1e-10)
    # π(x) q(x, y) a(x, y) = π(y) q(y, x) a(y, x), the other a from the oracle.
    np.testing.assert_allclose(
      there + min(0.0, actual), back + min(0.0, there - back), rtol=1e-10
    )


@pytest.mark.parametrize('case', _CASES)
def test_proposal_has_the_stated_mean_and_scale(case):
  """What is left of a step without the oracle's drift and scale is noise.

  The noise of a seed is the same from wherever the step starts, to rounding
  error, and N(0, 1). False alarms: 1e-6 each.
  """
  kwargs, scale_fn = _CASES[case]
  noise = [[], []]
  for i in range(2):
    start, end, _ = _pairs(kwargs, num=500, start=i)
    for x, y in zip(start, end):
      scale, half_divergence = scale_fn(x)
      drift = 0.5 * scale @ scale.T @ _np_gradient(x) + half_divergence
      step = np.linalg.solve(scale, y - x - _STEP * drift)
      noise[i].append(step / np.sqrt(_STEP))
  np.testing.assert_allclose(noise[0], noise[1], rtol=1e-8, atol=1e-10)
  assert scipy.stats.kstest(np.ravel(noise[0]), 'norm').pvalue > 1e-6


def test_detailed_balance_sees_a_missing_term():
  def without_divergence(v):
    return _np_volatility(v)[0], np.zeros(5)

  start, end, log_ratio = _pairs({'volatility_fn': _volatility})
  wrong = [
    _np_log_prob(y)
    + _np_log_q(y, x, without_divergence)
    - _np_log_prob(x)
    - _np_log_q(x, y, without_divergence)
    for x, y in zip(start, end)
  ]
  assert np.min(np.abs(wrong - log_ratio)) > 1e-4


def test_correction_is_antisymmetric():
  rng = np.random.default_rng(3)
  x, noise = tf.constant(rng.normal(size=[2, 7, 4]))
  terms = [
    LangevinTerms(
      gradient=tf.constant(rng.normal(size=[7, 4])),
      volatility=tf.constant(rng.uniform(0.5, 2.0, size=[7, 4])),
      volatility_gradient=tf.constant(rng.normal(size=[7, 4])),
    )
    for _ in range(2)
  ]
  root = tf.constant(0.6, tf.float64)
  law = langevin.Volatility()
  whitened = [law.whiten(t, root) for t in terms]
  y = law.propose(x, terms[0], whitened[0], noise, root)
  # The noise that leads back.
  other = (x - y) / (root * terms[1].volatility) - whitened[1]
  there = law.correction(terms, whitened, noise, root, [1])
  back = law.correction(terms[::-1], whitened[::-1], other, root, [1])
  np.testing.assert_allclose(there, -back, rtol=1e-12)


def test_constant_volatility_is_a_constant_scale():
  state = [tf.constant(_RNG.normal(size=[6, k])) for k in (2, 3)]
  steps = []
  for kwargs in (
    {'preconditioner': [_SCALE_2, _SCALE_3]},
    {'volatility_fn': lambda u, w: [tf.constant(_SCALE_2), _SCALE_3]},
  ):
    kernel = PreconditionedMALA(_log_prob, _STEP, **kwargs)
    results = kernel.bootstrap_results(state)
    results = kernel.one_step(state, results, seed=(1, 1))[1]
    steps.append((results.proposed_state, results.log_accept_ratio))
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), *steps
  )


def test_constant_scale_is_the_rescaled_target():
  state = [tf.constant(_RNG.normal(size=[6, k])) for k in (2, 3)]
  scales = [_SCALE_2, _SCALE_3]
  kernel = PreconditionedMALA(_log_prob, _STEP, scales)
  rescaled = PreconditionedMALA(
    lambda u, w: _log_prob(u * scales[0], w * scales[1]), _STEP
  )
  x, results = state, kernel.bootstrap_results(state)
  z = [part / s for part, s in zip(state, scales)]
  rescaled_results = rescaled.bootstrap_results(z)
  for i in range(5):
    x, results = kernel.one_step(x, results, seed=(i, 0))
    z, rescaled_results = rescaled.one_step(z, rescaled_results, seed=(i, 0))
    for part, rescaled_part, s in zip(x, z, scales):
      np.testing.assert_allclose(part, rescaled_part * s, rtol=1e-10)
    np.testing.assert_allclose(
      results.log_accept_ratio, rescaled_results.log_accept_ratio, rtol=1e-9
    )


def test_log_ratio_is_the_energy_error_of_one_leapfrog_step():
  start, end, log_ratio = _pairs({})
  epsilon = np.sqrt(_STEP)
  for x, y, actual in zip(start, end, log_ratio):
    # Which momentum carries x to y, by leapfrog with unit mass.
    momentum = (y - x) / epsilon - 0.5 * epsilon * _np_gradient(x)
    half_way = momentum + 0.5 * epsilon * _np_gradient(x)
    np.testing.assert_allclose(x + epsilon * half_way, y, rtol=1e-12)
    final = half_way + 0.5 * epsilon * _np_gradient(y)
    energy_error = (0.5 * final @ final - _np_log_prob(y)) - (
      0.5 * momentum @ momentum - _np_log_prob(x)
    )
    np.testing.assert_allclose(actual, -energy_error, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize('constant', [True, False])
def test_agrees_with_tfp_for_chains_of_rank_one(constant):
  """TFP's correction at TFP's proposals, which only differ in their noise."""

  def volatility(u, w):
    if constant:
      return [0.7 * tf.ones_like(u), 1.3 * tf.ones_like(w)]
    return _volatility(u, w)

  state = [tf.constant(_RNG.normal(size=[8, k])) for k in (2, 3)]
  upstream = tfp.mcmc.UncalibratedLangevin(
    _log_prob, tf.constant(_STEP, tf.float64), volatility_fn=volatility
  )
  before = upstream.bootstrap_results(state)
  proposal, after = upstream.one_step(state, before, seed=(5, 6))

  if constant:
    ours = UncalibratedPreconditionedLangevin(_log_prob, _STEP, [0.7, 1.3])
  else:
    ours = UncalibratedPreconditionedLangevin(
      _log_prob, _STEP, volatility_fn=volatility
    )
  terms = [
    per_part(ours.bootstrap_results(x).grads_target_log_prob)
    for x in (state, proposal)
  ]
  root = tf.constant(np.sqrt(_STEP))
  actual = 0.0
  for dynamics, x, y, tx, ty in zip(
    ours._dynamics(state, before.target_log_prob), state, proposal, *terms
  ):
    whitened = dynamics.whiten(tx, root), dynamics.whiten(ty, root)
    # What is proposed without noise, and how far a unit of it leads.
    zero = tf.zeros_like(x)
    still = dynamics.propose(x, tx, whitened[0], zero, root)
    unit = dynamics.propose(x, tx, whitened[0], zero + 1.0, root) - still
    noise = (y - still) / unit
    actual += dynamics.correction((tx, ty), whitened, noise, root, [1])
  np.testing.assert_allclose(
    actual, after.log_acceptance_correction, rtol=1e-9, atol=1e-10
  )
