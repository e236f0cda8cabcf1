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
"""Two exact tests of a kernel as a part of Bayesian inference, for every kind.

Both are for a conjugate normal: θ ~ N(0, Σ₀), y | θ ~ N(θ, Σ). There is a data
set per chain, so that thousands of them run side by side.

All seeds are fixed. P-values are compared with 1e-6, so that a correct kernel
with new seeds fails once in more than 10,000 runs of this file; each control
must fall below.
"""

import functools
import types

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfp_diag.mcmc import MetropolisAdjustedLangevinTrajectories
from tfp_diag.mcmc.kernels import langevin

_LEVEL = 1e-6
_NUM_CHAINS = 6000
_PRIOR = np.array([[1.0, 0.5, 0.0], [0.5, 1.5, -0.4], [0.0, -0.4, 0.8]])
_NOISE = np.diag([0.5, 1.0, 2.0]) ** 2
_STEP_SIZE = 0.9
_TRAJECTORIES = 'trajectories'


class _Model:
  """The log density of (θ, y), with the data in a variable."""

  def __init__(self, prior_factor=1.0):
    """`prior_factor` is one, or how much too wide the prior is."""
    self.data = tf.Variable(tf.zeros([_NUM_CHAINS, 3], tf.float64))
    self._prior = np.linalg.inv(prior_factor * _PRIOR)
    self._noise = np.linalg.inv(_NOISE)

  def log_prob(self, theta):
    # Some calls come with a few chains, when adaptation learns; others with
    # one or two, when a pattern is detected.
    data = self.data[: theta.shape[0]]
    residual = data - theta
    return -0.5 * (
      tf.einsum('ci,ij,cj->c', theta, tf.constant(self._prior), theta)
      + tf.einsum('ci,ij,cj->c', residual, tf.constant(self._noise), residual)
    )


@functools.cache
def _model(prior_factor=1.0):
  """Of every test the same one, so that a kernel adapts to it once."""
  return _Model(prior_factor)


def _kernel(laws, kind, model):
  # Adaptation sees data of its own, whichever test comes first.
  rng = np.random.default_rng(30)
  model.data.assign(_draw_data(rng, _draw_prior(rng)))
  if kind == _TRAJECTORIES:
    kernel = _trajectories(model)
    return types.SimpleNamespace(kernel=kernel, start=kernel.bootstrap_results)
  return laws.make_kernel(
    kind, step_size=_STEP_SIZE, log_prob=model.log_prob, draw=_to_prior
  )


def _trajectories(model):
  """Of two to four steps, with a matrix that fits neither prior nor data."""
  factor = tf.constant(np.linalg.cholesky(_PRIOR + 0.3 * np.eye(3)))
  return MetropolisAdjustedLangevinTrajectories(
    model.log_prob,
    tf.constant(0.6, tf.float64),
    integration_time=1.8,
    damping=0.8,
    preconditioner=tf.linalg.LinearOperatorLowerTriangular(factor),
    jitter=0.4,
  )


def _to_prior(noise):
  return noise @ np.linalg.cholesky(_PRIOR).T


def _draw_prior(rng):
  return rng.multivariate_normal(np.zeros(3), _PRIOR, size=_NUM_CHAINS)


def _draw_data(rng, theta):
  return theta + rng.normal(size=theta.shape) @ np.sqrt(_NOISE)


# Gandy and Scott (2020): a rank that is uniform at any length of the chain.


def _rank_p_value(laws, kind, model, num_states=5):
  """Of the ranks of a prior draw within a chain through it.

  A prior draw is put at a random position of a chain. From there, the chain
  runs forward to its end and, as the kernel is reversible, by the same kernel
  backward to its beginning. If the kernel leaves the posterior invariant and is
  reversible, all states are exchangeable with the prior draw as far as its rank
  goes, which is uniform: with no error from the length of the chain.

  Reference: Axel Gandy and James Scott (2020). Unit testing for MCMC and other
  Monte Carlo methods. arXiv:2001.06465, section 3.
  """
  rng = np.random.default_rng(31)
  theta = _draw_prior(rng)
  data = _draw_data(rng, theta)
  made = _kernel(laws, kind, model)
  model.data.assign(data)
  before = rng.integers(num_states, size=_NUM_CHAINS)

  def run(seed):
    state = tf.constant(theta)
    results = made.start(state)
    states = []
    for i in range(num_states - 1):
      state, results = made.kernel.one_step(state, results, seed=(seed, i))
      states.append(state.numpy())
    return np.array(states)

  forward, backward = run(1), run(2)
  # Which of the states belong to the chain of that length.
  age = np.arange(1, num_states)[:, np.newaxis]
  in_chain = np.concatenate([age <= num_states - 1 - before, age <= before])
  states = np.concatenate([forward, backward])
  p_values = []
  for statistic in _STATISTICS:
    own, others = statistic(theta, data), statistic(states, data)
    less = np.sum(in_chain & (others < own), 0)
    # A rejection leaves ties, which are broken at random.
    ties = np.sum(in_chain & (others == own), 0)
    rank = less + rng.integers(ties + 1)
    counts = np.bincount(rank, minlength=num_states)
    p_values.append(scipy.stats.chisquare(counts).pvalue)
  return len(_STATISTICS) * min(p_values)


_STATISTICS = [
  lambda theta, data: theta[..., 0],
  lambda theta, data: theta[..., 1],
  lambda theta, data: theta[..., 2],
  lambda theta, data: np.sum(theta**2, -1),
  lambda theta, data: np.sum((theta - data) ** 2 / np.diag(_NOISE), -1),
]


def test_rank_within_the_chain_is_uniform(laws, kind):
  assert _rank_p_value(laws, kind, _model()) > _LEVEL


def test_rank_within_a_chain_of_trajectories_is_uniform(laws):
  """By the flip of the velocity, whose draws are new, they are reversible."""
  assert _rank_p_value(laws, _TRAJECTORIES, _model()) > _LEVEL
  assert _rank_p_value(laws, _TRAJECTORIES, _model(prior_factor=2.0)) < _LEVEL


def test_rank_sees_another_prior(laws, local_kind):
  # Of the other kinds it sees a wrong correction, below.
  assert _rank_p_value(laws, local_kind, _model(prior_factor=2.0)) < _LEVEL


# Geweke (2004): the joint distribution, by two simulators.


def _joint_p_value(laws, kind, model, num_rounds=10):
  """Of θ and y after some rounds of transitions and new data.

  From an exact draw of the joint density, each round moves θ by one step of the
  kernel for the data at hand, and draws new data given θ. If the kernel leaves
  every posterior invariant, θ keeps its prior and y its marginal density. The
  chains are independent, so that this is a test of identical, independent
  draws.

  Reference: John Geweke (2004). Getting it right: joint distribution tests of
  posterior simulators. Journal of the American Statistical Association 99(467).
  """
  rng = np.random.default_rng(32)
  theta = _draw_prior(rng)
  data = _draw_data(rng, theta)
  made = _kernel(laws, kind, model)
  state = tf.constant(theta)
  for i in range(num_rounds):
    model.data.assign(data)
    state, results = made.kernel.one_step(state, made.start(state), seed=(i, 4))
    data = _draw_data(rng, state.numpy())
  assert np.mean(laws.core(results).is_accepted) > 0.05
  tests = []
  for values, covariance in (
    (state.numpy(), _PRIOR),
    (data, _PRIOR + _NOISE),
  ):
    z = np.linalg.solve(np.linalg.cholesky(covariance), values.T)
    tests += [scipy.stats.kstest(row, 'norm') for row in z]
    tests.append(scipy.stats.kstest(np.sum(z**2, 0), scipy.stats.chi2(3).cdf))
  return len(tests) * min(t.pvalue for t in tests)


def test_joint_distribution_stays(laws, kind):
  assert _joint_p_value(laws, kind, _model()) > _LEVEL


def test_joint_distribution_of_trajectories_stays(laws):
  assert _joint_p_value(laws, _TRAJECTORIES, _model()) > _LEVEL
  assert _joint_p_value(laws, _TRAJECTORIES, _model(prior_factor=2.0)) < _LEVEL


def test_joint_distribution_sees_another_prior(laws, local_kind):
  assert _joint_p_value(laws, local_kind, _model(prior_factor=2.0)) < _LEVEL


@pytest.mark.parametrize('test', ['rank', 'joint'])
def test_both_see_a_dropped_log_scale_ratio(laws, test, monkeypatch):
  right = langevin.Volatility.correction

  def wrong(self, terms, whitened, noise, root, axes):
    ratio = tf.math.log(terms[0].volatility / terms[1].volatility)
    correction = right(self, terms, whitened, noise, root, axes)
    return correction - tf.reduce_sum(ratio, axes)

  monkeypatch.setattr(langevin.Volatility, 'correction', wrong)
  p_value = {'rank': _rank_p_value, 'joint': _joint_p_value}[test]
  assert p_value(laws, 'volatility', _model()) < _LEVEL


@pytest.mark.parametrize('test', ['rank', 'joint'])
def test_both_see_a_wrong_correction(laws, corrected_kind, test, monkeypatch):
  def spoiled(right):
    return lambda *args: -3.0 * right(*args)

  for law in (langevin.ConstantScale, langevin.ExponentialScale):
    monkeypatch.setattr(law, 'correction', spoiled(law.correction))
  p_value = {'rank': _rank_p_value, 'joint': _joint_p_value}[test]
  assert p_value(laws, corrected_kind, _model()) < _LEVEL
