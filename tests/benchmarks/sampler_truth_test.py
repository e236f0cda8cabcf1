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
"""The table of truths, its arguments, and a target that needs no gym."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from benchmarks import sampler_truth, truth_cases

_SD = np.array([0.5, 2.0])


def _truth(mean=(1.0, -3.0)):
  """A normal in two dimensions, whose truth can be said wrongly."""
  center = tf.constant([1.0, -3.0])
  return truth_cases.Truth(
    num_coordinates=2,
    dtype=tf.float32,
    log_prob=lambda x: -0.5 * tf.reduce_sum(((x - center) / _SD) ** 2, -1),
    statistics=lambda x: x,
    names=['x[0]', 'x[1]'],
    mean=np.array(mean),
    mean_error=np.zeros(2),
    sd=_SD,
    sd_error=np.zeros(2),
  )


@pytest.fixture
def tiny(monkeypatch):
  """The benchmark with one target, of which `load` knows the truth."""
  case = truth_cases.Case('Normal', jit_compile=False)
  monkeypatch.setattr(sampler_truth, 'CASES', {'tiny': case})
  monkeypatch.setattr(sampler_truth, 'NUM_DRAWS', 200)
  monkeypatch.setattr(sampler_truth, 'load', lambda case: _truth())


@pytest.mark.parametrize(
  ('shift', 'holds'), [(0.0, True), (0.02, False)], ids=['true', 'shifted']
)
def test_compare(shift, holds):
  """z is that of the shift: 0.02 in units of 0.5 / √(400 · 64) = 0.0031."""
  noise = np.random.default_rng(1).normal(size=[400, 64, 2])
  draws = noise * _SD + [1.0 + shift, -3.0]
  found = sampler_truth.compare(draws, _truth())
  assert found['holds'] is holds
  assert found['r_hat'] < 1.01
  np.testing.assert_allclose(found['min_ess'], 400 * 64, rtol=0.1)
  assert found['z_sd'] < found['most_z']
  if not holds:
    assert found['worst_mean'] == 'x[0]'
    np.testing.assert_allclose(found['z_mean'], 6.4, atol=2.5)
  # What is known only so well excuses as much.
  vague = dataclasses.replace(_truth(), mean_error=np.array([1.0, 1.0]))
  assert sampler_truth.compare(draws, vague)['z_mean'] < 0.1


def test_chains_that_disagree_do_not_hold():
  # Their error is large, so that z is small: it takes R-hat to tell.
  noise = np.random.default_rng(1).normal(size=[400, 64, 2])
  center = [1.0, -3.0] + 3.0 * noise[0]
  found = sampler_truth.compare(noise * _SD + center, _truth())
  assert found['z_mean'] < found['most_z']
  assert found['r_hat'] > 1.5 and found['holds'] is False


def test_wrong_spread_is_seen():
  noise = np.random.default_rng(1).normal(size=[400, 64, 2])
  found = sampler_truth.compare(1.1 * noise * _SD + [1.0, -3.0], _truth())
  assert found['z_sd'] > 10.0 and found['holds'] is False


def test_the_rule_is_corrected_for_the_number_of_statistics():
  """As often as one normal number is beyond 4, one of all is beyond it."""
  rate = 2.0 * scipy.stats.norm.sf(4.0)
  for k in (1, 100):
    each = 2.0 * scipy.stats.t.sf(sampler_truth.most_z(k), 63)
    np.testing.assert_allclose(2 * k * each, rate)
  assert 4.3 < sampler_truth.most_z(1) < sampler_truth.most_z(100) < 6.0


def test_run_prints_a_table_and_keeps_figures(tiny, capsys, tmp_path):
  file = tmp_path / 'truth.json'
  assert sampler_truth.main(['--json', str(file), '--seeds', '2']) == 0
  header, row, *_ = capsys.readouterr().out.splitlines()
  assert header.split()[:4] == ['target', 'seed', 'd', 'scale']
  assert row.startswith('tiny ') and row.endswith('holds')
  # Columns are below their names.
  for name in ('z_mean', 'r_hat', 'min_ess', 'seconds'):
    end = header.index(name) + len(name)
    assert row[end - 1].isdigit() and row[end : end + 1] == ' '
  with open(file, encoding='utf-8') as f:
    figures = json.load(f)['truth']['tiny']
  assert figures['holds'] and figures['num_draws'] == 200
  assert [r['seed'] for r in figures['runs']] == [1, 2]
  assert figures['runs'][0]['z_mean'] != figures['runs'][1]['z_mean']


def test_quick_is_a_tenth_and_judges_nothing(tiny, capsys):
  assert sampler_truth.main(['--quick', '--target', 'tiny']) == 0
  assert 'Too few draws to judge by' in capsys.readouterr().out


def test_a_target_that_fails_is_named(tiny, monkeypatch, capsys):
  monkeypatch.setattr(sampler_truth, 'load', lambda case: _truth((1.0, 0.0)))
  assert sampler_truth.main([]) == 1
  assert 'fall short: tiny' in capsys.readouterr().out


def test_an_unknown_target_is_refused(capsys):
  with pytest.raises(SystemExit):
    sampler_truth.main(['--target', 'best'])
  assert "invalid choice: 'best'" in capsys.readouterr().err


def test_without_the_gym_the_way_out_is_said(monkeypatch):
  for name in list(sys.modules):
    if name.split('.')[0] == 'inference_gym':
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, 'inference_gym', None)
  with pytest.raises(SystemExit, match='pip install'):
    sampler_truth.run(['banana'])


def test_brownian_motion_by_quadrature():
  """Beside SciPy's densities at the same nodes, with dense matrices."""
  observed = np.array([0.3, np.nan, -0.2, 0.4])
  nodes = np.linspace(-12.5, 12.5, 30)
  mean, sd = truth_cases.brownian_motion_moments(observed, len(nodes))
  walk = np.minimum.outer(np.arange(1, 5), np.arange(1, 5))
  seen = np.eye(4)[[0, 2, 3]]
  data = observed[[0, 2, 3]]
  total, first, second = 0.0, np.zeros(6), np.zeros(6)
  for log_a in nodes:
    for log_b in nodes:
      prior, noise = np.exp(2 * log_a) * walk, np.exp(2 * log_b) * np.eye(3)
      covariance = seen @ prior @ seen.T + noise
      weight = scipy.stats.multivariate_normal(cov=covariance).pdf(data)
      weight *= scipy.stats.norm.pdf([log_a, log_b], scale=2.0).prod()
      gain = prior @ seen.T @ np.linalg.inv(covariance)
      locs = gain @ data
      spread = np.diag(prior - gain @ seen @ prior)
      scales = np.exp([log_a, log_b])
      total += weight
      first += weight * np.array([scales[0], *locs, scales[1]])
      second += weight * np.array(
        [scales[0] ** 2, *(locs**2 + spread), scales[1] ** 2]
      )
  np.testing.assert_allclose(mean, first / total, rtol=1e-6)
  expected = np.sqrt(second / total - (first / total) ** 2)
  np.testing.assert_allclose(sd, expected, rtol=1e-5)
