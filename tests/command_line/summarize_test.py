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
"""Means, errors and verdicts against processes with known answers."""

import numpy as np
import pytest

from tfp_diag.command_line.summarize import Summary, summarize


def ar1(coefficient, shape, seed=0):
  """A stationary AR(1) with unit variance, shape [draws, chains]."""
  noise = np.random.default_rng(seed).normal(size=shape)
  draws = [noise[0]]
  for step in noise[1:]:
    draws.append(coefficient * draws[-1] + np.sqrt(1 - coefficient**2) * step)
  return np.array(draws, np.float32)


@pytest.mark.parametrize('coefficient', [0.0, 0.5, 0.9])
def test_ess_of_an_autoregression(coefficient):
  draws = ar1(coefficient, [4000, 16])
  summary = summarize({'x': draws})
  # The integrated autocorrelation time is (1 + a) / (1 - a).
  expected = draws.size * (1 - coefficient) / (1 + coefficient)
  # The estimate varies by some 3 % from seed to seed.
  assert summary.ess[0] == pytest.approx(expected, rel=0.15)
  assert summary.mcse[0] == pytest.approx(
    summary.sd[0] / np.sqrt(summary.ess[0])
  )
  assert summary.mean[0] == pytest.approx(np.mean(draws, dtype=np.float64))
  # Five standard errors.
  assert abs(summary.mean[0]) < 5 * np.sqrt(1 / expected)
  assert summary.sd[0] == pytest.approx(1, abs=0.1)
  assert summary.r_hat[0] < 1.01
  assert not summary.complaints(['x'])


def test_many_parameters_keep_their_order():
  draws = {f'x{i}': i + ar1(0.1, [50, 4], seed=i) for i in range(11)}
  summary = summarize(draws)
  for field in summary:
    assert field.shape == (11,)
  np.testing.assert_allclose(
    summary.mean, [np.mean(d, dtype=np.float64) for d in draws.values()]
  )


def test_chains_at_different_places_are_noticed():
  draws = ar1(0.0, [4000, 16])
  draws[:, 0] += 3.0
  complaints = summarize({'x': draws}).complaints(['x'])
  assert 'R-hat is 1.01 or more for x, at worst' in complaints[0]


def test_r_hat_against_its_definition():
  draws = ar1(0.3, [40, 3]) + np.array([0.0, 0.5, 2.0])
  halves = np.concatenate([draws[:20], draws[20:]], axis=1)
  within = np.mean(np.var(halves, axis=0, ddof=1))
  between = np.var(np.mean(halves, axis=0), ddof=1)
  # Gelman and Rubin (1992) with their correction for few chains.
  m, n = 6, 20
  variance = (n - 1) / n * within + between
  expected = np.sqrt((m + 1) / m * variance / within - (n - 1) / (m * n))
  assert summarize({'x': draws}).r_hat[0] == pytest.approx(expected)


def test_a_drift_is_noticed():
  draws = ar1(0.0, [4000, 16])
  draws[2000:] += 1.0
  complaints = summarize({'x': draws}).complaints(['x'])
  assert 'the chains do not agree yet' in complaints[0]


def test_few_effective_draws_are_noticed():
  draws = ar1(0.0, [20, 4])
  complaints = summarize({'x': draws}).complaints(['x'])
  assert any('less than 400 for x' in text for text in complaints)


def test_a_parameter_that_never_moves_is_noticed():
  draws = {'x': ar1(0.0, [4000, 16]), 'y': np.ones([4000, 16], np.float32)}
  (complaint,) = summarize(draws).complaints(['x', 'y'])
  assert complaint.startswith('y never moved')


def test_long_lists_are_cut():
  values = np.full([7], 2.0)
  summary = Summary(values, values, values, 1000 * values, values)
  (complaint,) = summary.complaints(list('abcdefg'))
  assert 'for a, b, c, d, e and 2 more, at worst 2.000 for a' in complaint
