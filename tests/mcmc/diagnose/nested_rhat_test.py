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
"""Nested R-hat against its definition, closed forms and arviz-stats."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.mcmc import nested_rhat


def definition(draws):
  """Margossian et al. (2024) for draws [draw, superchain, chain]."""
  num_draws, num_groups, size = draws.shape
  means, within = [], []
  for k in range(num_groups):
    chains = [draws[:, k, m] for m in range(size)]
    chain_means = [np.mean(x) for x in chains]
    means.append(np.mean(chain_means))
    between_chains = np.var(chain_means, ddof=1) if size > 1 else 0.0
    in_chain = [np.var(x, ddof=1) if num_draws > 1 else 0.0 for x in chains]
    within.append(between_chains + np.mean(in_chain))
  return np.sqrt(1.0 + np.var(means, ddof=1) / np.mean(within))


@pytest.mark.parametrize('shape', [(1, 4, 8), (10, 4, 8), (7, 5, 1), (3, 2, 2)])
def test_definition(shape):
  rng = np.random.default_rng(0)
  draws = rng.normal(size=[*shape, 2, 2]) + rng.normal(size=[shape[1], 1, 2, 2])
  found = nested_rhat(draws, shape[1], chain_ndims=2)
  assert found.shape == (2, 2)
  for i in np.ndindex(2, 2):
    expected = definition(draws[(..., *i)])
    np.testing.assert_allclose(found[i], expected, rtol=1e-9)
  # The same chains along one axis.
  flat = draws.reshape([shape[0], -1, 2, 2])
  np.testing.assert_array_equal(nested_rhat(flat, shape[1]), found)


def test_arviz_stats():
  draws = np.random.default_rng(1).normal(size=[20, 6])
  draws[:, :2] += 1.0
  # `array_stats.rhat_nested(draws, [0, 0, 1, 1, 2, 2], method='identity',
  # chain_axis=1, draw_axis=0)` of arviz-stats 0.8.0.
  expected = 1.2199594667949791
  np.testing.assert_allclose(nested_rhat(draws, 3), expected, rtol=1e-9)


def test_one_independent_draw_of_each_chain():
  """Its square is 1 + 1 / M on average; 256 values: 12 % are five errors."""
  draws = np.random.default_rng(2).normal(size=[1, 16, 8, 256])
  squares = nested_rhat(draws, 16, chain_ndims=2) ** 2
  expected = 1.0 + 1.0 / 8
  np.testing.assert_allclose(np.mean(squares - 1), expected - 1, rtol=0.12)


def test_groups_that_have_not_met():
  rng = np.random.default_rng(3)
  draws = 0.1 * rng.normal(size=[5, 4, 32]) + np.arange(4.0)[:, np.newaxis]
  assert nested_rhat(draws, 4, chain_ndims=2) > 5.0
  draws = rng.normal(size=[5, 4, 32])
  assert nested_rhat(draws, 4, chain_ndims=2) < 1.02


def test_structures_and_constants():
  found = nested_rhat(
    [tf.ones([3, 4]), tf.range(12.0)[:4] * tf.ones([3, 4])], 4
  )
  assert np.isnan(found[0]) and found[1] == np.inf
  # Numbers whose means are rounded, and whose squares are zero.
  for unit in (1.0, 1e-200):
    same = np.full([10, 6], 0.1 * unit)
    assert np.isnan(nested_rhat(same, 2))
    frozen = unit * np.tile(np.repeat([0.1, 0.3, 0.7], 3), [10, 1])
    assert nested_rhat(frozen, 3) == np.inf


@pytest.mark.parametrize(
  ('shape', 'num_superchains', 'match'),
  [
    ([5, 8], 3, r'is 3, but.*divide the number of chains, 8'),
    ([5, 8], 1, 'at least two'),
    ([1, 8], 8, 'Pass fewer'),
    ([5], 2, r'shape \[5\].*1 for the chains'),
  ],
)
def test_errors(shape, num_superchains, match):
  with pytest.raises(ValueError, match=match):
    nested_rhat(np.ones(shape), num_superchains)
