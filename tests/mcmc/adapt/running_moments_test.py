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
"""Streaming moments against NumPy on all draws at once."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.mcmc.adapt.running_moments import (
  merge_moments,
  moments_of,
  no_moments,
)


def _stream(draws, chain_ndims):
  """`draws`: arrays [steps, *chains, *event], one list per quantity."""
  first = [[tf.constant(x[0]) for x in quantity] for quantity in draws]
  moments = no_moments(first, chain_ndims)
  for t in range(len(draws[0][0])):
    step = [[tf.constant(x[t]) for x in quantity] for quantity in draws]
    moments = merge_moments(moments, moments_of(step, chain_ndims))
  return moments


@pytest.mark.parametrize('chains', [[], [7], [3, 2]])
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_pools_steps_and_chains(chains, dtype):
  rng = np.random.default_rng(0)
  # Far from zero, where a sum of squares would lose all digits in float32.
  draws = [
    [
      (offset + rng.normal(size=[30, *chains, *event])).astype(dtype)
      for event in ([], [4], [2, 3])
    ]
    for offset in (0.0, 1e3)
  ]
  moments = _stream(draws, len(chains))
  assert moments.count == 30 * np.prod(chains, dtype=int)
  rtol = 1e-10 if dtype == np.float64 else 1e-3
  axes = tuple(range(1 + len(chains)))
  for mean, variance, x in zip(
    tf.nest.flatten(moments.means),
    tf.nest.flatten(moments.variances()),
    tf.nest.flatten(draws),
  ):
    assert mean.dtype == dtype
    x = x.astype(np.float64)
    np.testing.assert_allclose(mean, x.mean(axes), rtol=rtol, atol=rtol)
    np.testing.assert_allclose(variance, x.var(axes, ddof=1), rtol=rtol)


def test_a_chain_that_is_not_finite_does_not_count():
  x = np.random.default_rng(1).normal(size=[5, 4, 3])
  g = -x
  x[2, 1, 0] = np.nan
  g[3, 2, 1] = np.inf
  moments = _stream([[x], [g]], 1)
  good = np.ones([5, 4], bool)
  good[2, 1] = good[3, 2] = False
  assert moments.count == 18
  for [mean], [variance], y in zip(moments.means, moments.variances(), (x, g)):
    np.testing.assert_allclose(mean, y[good].mean(0))
    np.testing.assert_allclose(variance, y[good].var(0, ddof=1))


def test_no_draws():
  moments = no_moments([[tf.ones([6, 2])]], 1)
  bad = merge_moments(moments, moments_of([[tf.fill([6, 2], np.nan)]], 1))
  for m in (moments, bad):
    assert m.count == 0.0
    assert not np.any(m.means[0][0]) and not np.any(m.variances()[0][0])
