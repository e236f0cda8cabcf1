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
"""R-hat against its definition, and what it must notice."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfp_diag.mcmc import rhat


def definition(draws):
  """Vehtari et al. (2021) for draws [draw, chain], value by value."""
  half = len(draws) // 2
  chains = [*draws[:half].T, *draws[-half:].T]

  def r_hat(values):
    ranks = scipy.stats.rankdata(np.ravel(values))
    scores = scipy.stats.norm.ppf((ranks - 3 / 8) / (len(ranks) + 1 / 4))
    scores = scores.reshape([len(chains), half])
    within = np.mean([np.var(x, ddof=1) for x in scores])
    between = half * np.var([np.mean(x) for x in scores], ddof=1)
    total = (half - 1) / half * within + between / half
    return np.sqrt(total / within)

  middle = np.median(chains)
  return max(r_hat(chains), r_hat([np.abs(x - middle) for x in chains]))


@pytest.mark.parametrize('shape', [(4, 2), (7, 3), (50, 5), (51, 40)])
def test_definition(shape):
  rng = np.random.default_rng(0)
  shifts = rng.normal(size=[1, shape[1], 3]) * [0.0, 0.5, 2.0]
  draws = rng.normal(size=[*shape, 3]) + shifts
  # Ties, and infinite variance.
  draws = np.concatenate(
    [draws, np.round(draws), rng.standard_cauchy([*shape, 1])], axis=-1
  )
  expected = [definition(draws[..., i]) for i in range(draws.shape[-1])]
  np.testing.assert_allclose(rhat(draws), expected, rtol=1e-9)


def test_what_it_must_notice():
  draws = np.random.default_rng(2).normal(size=[1000, 8, 5])
  draws[:, 0, 1] += 1.0  # A chain elsewhere.
  draws[500:, :, 2] += 1.0  # A drift.
  draws[:, 0, 3] *= 3.0  # A chain that is wider, which plain R-hat misses.
  draws[:, 0, 4] = draws[0, 0, 4]  # A chain that never moved.
  found = rhat(draws)
  np.testing.assert_array_equal(found > 1.01, [False, True, True, True, True])


def test_chains_that_never_moved():
  draws = np.random.default_rng(3).normal(size=[20, 4, 5])
  draws[..., 0] = 0.1
  draws[..., 1] = [0.1, 0.2, 0.3, 0.4]
  draws[3, 2, 2] = np.nan
  draws[..., 3] = [0.1, 0.2, np.nan, 0.4]
  found = rhat(draws)
  assert np.isnan(found[[0, 2, 3]]).all() and np.isfinite(found[4])
  assert found[1] == np.inf


def test_too_little_to_compare():
  draws = np.random.default_rng(4).normal(size=[20, 4])
  assert np.isnan(rhat(draws[:3]))
  assert np.isnan(rhat(draws[:, :1]))


def test_two_values():
  """Distances from the median are all the same; the places are not."""
  draws = np.random.default_rng(6).permuted(
    np.tile([0.0, 1.0], [4, 20]), axis=1
  )
  assert np.isfinite(rhat(draws.T))
  apart = np.repeat([0.0, 1.0], 4)[np.newaxis] + np.zeros([40, 1])
  apart[0] = 1.0 - apart[0]
  assert rhat(apart) > 2.0


def test_structures():
  draws = np.random.default_rng(5).normal(size=[30, 2, 3, 4])
  found = rhat({'a': tf.constant(draws), 'b': [draws[..., 0]]}, chain_ndims=2)
  flat = draws.reshape([30, 6, 4])
  np.testing.assert_allclose(found['a'], rhat(flat), rtol=1e-9)
  np.testing.assert_allclose(found['b'][0], rhat(flat[..., 0]), rtol=1e-9)
  # The last chain axis as an event: other numbers, and more of them.
  assert rhat(draws).shape == (3, 4)
