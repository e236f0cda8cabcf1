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
"""The formulas of the estimators, and where they have nothing to say."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.mcmc.adapt.diagonal_estimators import (
  ESTIMATORS,
  estimate_variances,
  quantities_of,
)
from tfp_diag.mcmc.adapt.running_moments import moments_of

_RNG = np.random.default_rng(0)
_DRAWS = {
  'state': _RNG.normal(3.0, [0.1, 1.0, 10.0], size=[2000, 3]),
  'gradient': _RNG.normal(0.5, [9.0, 2.0, 0.3], size=[2000, 3]),
  'curvature': _RNG.normal([120.0, 3.0, 0.05], 0.01, size=[2000, 3]),
}
_IN_USE = np.array([0.01, 2.0, 30.0])


def _estimate(estimator, draws, in_use=_IN_USE):
  values = [[tf.constant(draws[q])] for q in quantities_of(estimator)]
  moments = moments_of(values, 1)
  [result] = estimate_variances(estimator, moments, [tf.constant(in_use)])
  return result.numpy()


def _expected(estimator, draws):
  var_x = np.var(draws['state'], 0, ddof=1)
  g = draws['gradient']
  return {
    'variance': var_x,
    'fisher': 1.0 / np.mean(g**2, 0),
    'fisher_divergence': np.sqrt(var_x / np.var(g, 0, ddof=1)),
    'hessian': np.sqrt(var_x / draws['curvature'].mean(0)),
  }[estimator]


@pytest.mark.parametrize('estimator', ESTIMATORS)
def test_formulas(estimator):
  expected = _expected(estimator, _DRAWS)
  # 2000 draws against 10 for what is in use.
  expected = expected ** (200 / 201) * _IN_USE ** (1 / 201)
  np.testing.assert_allclose(_estimate(estimator, _DRAWS), expected, rtol=1e-3)
  assert np.max(np.abs(np.log(expected / _IN_USE))) > 0.2


@pytest.mark.parametrize('estimator', ESTIMATORS)
def test_few_draws_stay_near_what_is_in_use(estimator):
  few = {k: v[:10] for k, v in _DRAWS.items()}
  # Half way, in logarithms.
  np.testing.assert_allclose(
    _estimate(estimator, few),
    np.sqrt(_IN_USE * _expected(estimator, few)),
    rtol=0.06,
  )


@pytest.mark.parametrize('estimator', ESTIMATORS)
@pytest.mark.parametrize('num_draws', [0, 1, 50])
def test_keeps_what_is_in_use_where_nothing_is_known(estimator, num_draws):
  stuck = {k: np.ones([num_draws, 3]) for k in _DRAWS}
  stuck['gradient'] *= 0.0
  np.testing.assert_array_equal(_estimate(estimator, stuck), _IN_USE)


@pytest.mark.parametrize('curvature', [-5.0, 0.0, 1e-3])
def test_too_small_a_curvature_leaves_the_variance(curvature):
  draws = dict(_DRAWS, curvature=np.full([2000, 3], curvature))
  smaller = curvature < 1.0 / np.var(_DRAWS['state'], 0)
  np.testing.assert_allclose(
    _estimate('hessian', draws)[smaller],
    _estimate('variance', draws)[smaller],
    rtol=1e-12,
  )
  assert smaller[0] and smaller[1]


def test_does_not_depend_on_units():
  units = np.array([1e6, 1e-3, 7.0])
  scaled = {
    'state': _DRAWS['state'] * units,
    'gradient': _DRAWS['gradient'] / units,
    'curvature': _DRAWS['curvature'] / units**2,
  }
  for estimator in ESTIMATORS:
    np.testing.assert_allclose(
      _estimate(estimator, scaled, _IN_USE * units**2),
      _estimate(estimator, _DRAWS) * units**2,
      rtol=1e-9,
    )


def test_refuses_an_unknown_estimator():
  with pytest.raises(ValueError, match=r"'best'.*'fisher_divergence'"):
    quantities_of('best')
