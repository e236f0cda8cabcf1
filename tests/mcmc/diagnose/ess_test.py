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
"""Effective sample sizes against closed forms, arviz and definitions."""

import collections

import arviz as az
import numpy as np
import pytest
import scipy.signal
import tensorflow as tf

from tfp_diag.mcmc import ess

BACKENDS = ['arviz', 'tfp']
KINDS = ['bulk', 'tail', 'mean', 'sd']


def ar1(coefficient, shape, seed=0):
  """A stationary AR(1) with unit variance; the draws are the first axis."""
  noise = np.random.default_rng(seed).normal(size=shape)
  noise[1:] *= np.sqrt(1 - coefficient**2)
  return scipy.signal.lfilter([1.0], [1.0, -coefficient], noise, axis=0)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('coefficient', [-0.5, 0.0, 0.5, 0.9])
def test_autoregression(coefficient, backend):
  """The estimates vary by 4 per cent at most from seed to seed."""
  draws = ar1(coefficient, [4000, 16])
  # The integrated autocorrelation time of x is (1 + a) / (1 - a), and that of
  # x**2 is the same with a**2.
  for kind, a in (('mean', coefficient), ('sd', coefficient**2)):
    expected = draws.size * (1 - a) / (1 + a)
    found = ess(draws, kind=kind, backend=backend)
    np.testing.assert_allclose(found, expected, rtol=0.2)
  # Ranks of normal draws are normal.
  np.testing.assert_allclose(
    ess(draws, backend=backend), ess(draws, kind='mean'), rtol=0.02
  )


def test_many_short_chains_are_not_flattered():
  """64 chains of 100 draws, twenty times: the mean varies by 2 per cent."""
  draws = ar1(0.95, [100, 64, 20])
  expected = 6400 * 0.05 / 1.95
  found = ess(draws, kind='mean', backend='tfp')
  np.testing.assert_allclose(np.mean(found), expected, rtol=0.15)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', [(4, 2), (5, 8), (6, 3), (101, 4), (64, 40)])
def test_both_ways_agree(kind, shape):
  rng = np.random.default_rng(1)
  coefficients = (-0.9, -0.3, 0.0, 0.6, 0.99)
  columns = [ar1(a, shape, seed=3) for a in coefficients]
  # Heavy tails, ties, two values, chains apart.
  columns += [rng.standard_cauchy(shape), np.round(columns[3])]
  columns += [columns[3] > 0.0, columns[2] + np.arange(shape[1])]
  draws = np.stack(columns, axis=-1)
  np.testing.assert_allclose(
    ess(draws, kind=kind, backend='tfp'),
    ess(draws, kind=kind, backend='arviz'),
    rtol=1e-9,
  )


@pytest.mark.parametrize('kind', KINDS)
def test_arviz_is_asked_where_it_is_installed(kind):
  draws = ar1(0.6, [50, 4], seed=2)
  expected = az.ess(draws.T, method=kind, prob=_tail(kind))
  assert ess(draws, kind=kind) == expected
  assert ess(draws, kind=kind, backend='arviz') == expected


def _tail(kind):
  return (0.05, 0.95) if kind == 'tail' else None


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


@pytest.mark.parametrize('backend', BACKENDS)
def test_one_chain(backend):
  draws = ar1(0.5, [4000])
  found = ess(draws, chain_ndims=0, backend=backend)
  np.testing.assert_allclose(found, 4000 / 3, rtol=0.2)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('kind', KINDS)
def test_what_cannot_be_judged_is_nan(kind, backend):
  draws = np.stack([ar1(0.5, [20, 4], seed=i) for i in range(4)], axis=-1)
  draws[..., 0] = 0.1
  draws[3, 2, 1] = np.nan
  draws[3, 2, 2] = np.inf
  found = ess(draws, kind=kind, backend=backend)
  np.testing.assert_array_equal(np.isnan(found), [True, True, True, False])
  assert np.all(np.isnan(ess(draws[:3], kind=kind, backend=backend)))


def test_many_parameters_are_done_in_groups(monkeypatch):
  draws = ar1(0.5, [40, 4, 7], seed=6)
  expected = ess(draws, backend='tfp')
  monkeypatch.setattr(
    'tfp_diag.mcmc.diagnose.convergence._NUMBERS_AT_A_TIME', 500
  )
  np.testing.assert_allclose(ess(draws, backend='tfp'), expected, rtol=1e-9)


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'kind': 'best'}, "`kind` is 'best'.*'bulk', 'tail', 'mean', 'sd'"),
    ({'backend': 'stan'}, "`backend` is 'stan'.*'auto', 'arviz', 'tfp'"),
    ({'chain_ndims': 2}, r'shape \[10, 4\].*2 for the chains'),
  ],
)
def test_errors(kwargs, match):
  with pytest.raises(ValueError, match=match):
    ess(np.ones([10, 4]), **kwargs)
