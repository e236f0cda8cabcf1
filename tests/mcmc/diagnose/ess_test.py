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
"""Effective sample sizes against closed forms and their definition."""

import collections
import warnings

import numpy as np
import pytest
import scipy.signal
import scipy.stats
import tensorflow as tf
from arviz_stats.base.array import array_stats

from tfp_diag.mcmc import ess
from tfp_diag.mcmc.diagnose import convergence

KINDS = ['bulk', 'tail', 'mean', 'sd']


def ar1(coefficient, shape, seed=0):
  """A stationary AR(1) with unit variance; the draws are the first axis."""
  noise = np.random.default_rng(seed).normal(size=shape)
  noise[1:] *= np.sqrt(1 - coefficient**2)
  return scipy.signal.lfilter([1.0], [1.0, -coefficient], noise, axis=0)


@pytest.mark.parametrize('coefficient', [-0.5, 0.0, 0.5, 0.9])
def test_autoregression(coefficient):
  """The estimates vary by 4 per cent at most from seed to seed."""
  draws = ar1(coefficient, [4000, 16])
  # The integrated autocorrelation time of x is (1 + a) / (1 - a), and that of
  # x**2 is the same with a**2.
  for kind, a in (('mean', coefficient), ('sd', coefficient**2)):
    expected = draws.size * (1 - a) / (1 + a)
    found = ess(draws, kind=kind)
    np.testing.assert_allclose(found, expected, rtol=0.2)
  # Ranks of normal draws are normal.
  np.testing.assert_allclose(ess(draws), ess(draws, kind='mean'), rtol=0.02)


def test_many_short_chains_are_not_flattered():
  """64 chains of 100 draws, twenty times: the mean varies by 2 per cent."""
  draws = ar1(0.95, [100, 64, 20])
  expected = 6400 * 0.05 / 1.95
  found = ess(draws, kind='mean')
  np.testing.assert_allclose(np.mean(found), expected, rtol=0.15)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', [(4, 2), (5, 8), (6, 3), (101, 4), (64, 40)])
def test_definition(kind, shape):
  rng = np.random.default_rng(1)
  coefficients = (-0.9, -0.3, 0.0, 0.6, 0.99)
  columns = [ar1(a, shape, seed=3) for a in coefficients]
  # Heavy tails, ties, two values, chains apart, numbers that are small.
  columns += [rng.standard_cauchy(shape), np.round(columns[3])]
  columns += [1.0 * (columns[3] > 0.0), columns[2] + np.arange(shape[1])]
  columns += [1e-100 * columns[3]]
  draws = np.stack(columns, axis=-1)
  expected = [definition(column, kind) for column in columns[:-1]]
  np.testing.assert_allclose(
    ess(draws, kind=kind), [*expected, expected[3]], rtol=1e-9
  )


def definition(draws, kind):
  """Vehtari et al. (2021) for draws [draw, chain]."""
  if kind == 'tail':
    below = [draws <= np.quantile(draws, q) for q in (0.05, 0.95)]
    return min(of_chains(halves(1.0 * x)) for x in below)
  if kind == 'sd':
    draws = (draws - np.mean(draws)) ** 2
  chains = halves(draws)
  if kind == 'bulk':
    ranks = scipy.stats.rankdata(chains).reshape(chains.shape)
    chains = scipy.stats.norm.ppf((ranks - 3 / 8) / (ranks.size + 1 / 4))
  return of_chains(chains)


def halves(draws):
  half = len(draws) // 2
  return np.array([*draws[:half].T, *draws[-half:].T])


def of_chains(chains):
  """Equation (10); the truncation is Geyer's (1992), the bound Stan's."""
  if np.ptp(chains) == 0:
    return chains.size
  num_draws = chains.shape[1]
  means = np.mean(chains, axis=1)
  centered = chains - means[:, np.newaxis]
  products = [np.correlate(x, x, 'full')[num_draws - 1 :] for x in centered]
  covariance = np.mean(products, axis=0) / num_draws
  within = covariance[0] * num_draws / (num_draws - 1)
  total = covariance[0] + np.var(means, ddof=1)
  correlation = 1 - (within - covariance) / total
  correlation[0] = 1.0
  # Pairs of lags count as long as they are positive, and none for more than
  # the one before.
  time, least, lag = -1.0, np.inf, 0
  while lag < num_draws - 4 and sum(correlation[lag : lag + 2]) > 0:
    least = min(least, sum(correlation[lag : lag + 2]))
    time += 2 * least
    lag += 2
  time += max(correlation[lag], 0.0)
  return chains.size / max(time, 1 / np.log10(chains.size))


def test_structures_and_chain_axes():
  State = collections.namedtuple('State', ['a', 'b'])
  x, y = ar1(0.5, [60, 2, 3], seed=4), ar1(0.2, [60, 2, 3, 2, 2], seed=5)
  found = ess(State(tf.constant(x, tf.float32), {'y': [y]}), chain_ndims=2)
  assert isinstance(found, State)
  assert found.a.shape == () and found.a.dtype == np.float64
  np.testing.assert_allclose(found.a, ess(x.reshape([60, 6])), rtol=1e-4)
  assert found.b['y'][0].shape == (2, 2)
  np.testing.assert_allclose(
    found.b['y'][0][1, 0], ess(y[..., 1, 0].reshape([60, 6])), rtol=1e-9
  )


def test_one_chain():
  draws = ar1(0.5, [4000])
  found = ess(draws, chain_ndims=0)
  np.testing.assert_allclose(found, 4000 / 3, rtol=0.2)


@pytest.mark.parametrize('kind', KINDS)
def test_what_cannot_be_judged_is_nan(kind):
  draws = np.stack([ar1(0.5, [20, 4], seed=i) for i in range(4)], axis=-1)
  draws[..., 0] = 0.1
  draws[3, 2, 1] = np.nan
  draws[3, 2, 2] = np.inf
  found = ess(draws, kind=kind)
  np.testing.assert_array_equal(np.isnan(found), [True, True, True, False])
  assert np.all(np.isnan(ess(draws[:3], kind=kind)))


def test_many_parameters_are_done_in_groups(monkeypatch):
  draws = ar1(0.5, [40, 4, 7], seed=6)
  expected = ess(draws)
  monkeypatch.setattr(
    'tfp_diag.mcmc.diagnose.convergence._NUMBERS_AT_A_TIME', 500
  )
  np.testing.assert_allclose(ess(draws), expected, rtol=1e-9)


def test_each_parameter_counts_alone():
  draws = ar1(0.5, [40, 4, 7], seed=6)
  draws[0, 0, 2] = np.nan
  kinds = ('r_hat', *KINDS)
  of_each = [convergence.convergence(draws[..., [i]], kinds) for i in range(7)]
  found = convergence.convergence(draws, kinds)
  for kind in kinds:
    np.testing.assert_array_equal(
      found[kind], np.concatenate([each[kind] for each in of_each])
    )
    alone = convergence.convergence(draws, [kind])
    np.testing.assert_array_equal(alone[kind], found[kind])


@pytest.mark.parametrize('num_draws', [40, 41])
def test_scores_are_those_of_arviz_stats(num_draws):
  """Also where draws are equal, as after rejected proposals."""
  draws = ar1(0.7, [num_draws, 4, 3], seed=9)
  draws[3:9, 1] = draws[2, 1]
  draws[..., 1] = np.round(draws[..., 1])
  draws[..., 2] = np.exp(draws[..., 2].astype(np.float32))
  axes = {'chain_axis': 1, 'draw_axis': 0}
  found = convergence.convergence(draws, ('r_hat', 'bulk'))
  np.testing.assert_allclose(
    found['r_hat'], array_stats.rhat(draws, method='rank', **axes), rtol=1e-12
  )
  np.testing.assert_allclose(
    found['bulk'], array_stats.ess(draws, method='bulk', **axes), rtol=1e-12
  )


def test_warnings_are_shown_afterwards_as_before():
  """arviz-stats switches them off; in several threads at once, for good."""
  before = list(warnings.filters)
  draws = ar1(0.5, [500, 64, 16], seed=7)
  convergence.convergence(draws, ('bulk', 'tail', 'r_hat'))
  assert warnings.filters == before


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'kind': 'best'}, "`kind` is 'best'.*'bulk', 'tail', 'mean', 'sd'"),
    ({'chain_ndims': 2}, r'shape \[10, 4\].*2 for the chains'),
  ],
)
def test_errors(kwargs, match):
  with pytest.raises(ValueError, match=match):
    ess(np.ones([10, 4]), **kwargs)
