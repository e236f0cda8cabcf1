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
"""What is known of the zoo's posteriors, against other integrals."""

import json

import numpy as np
import pytest
import scipy.stats

from benchmarks import zoo_truth
from benchmarks.zoo_models import ZOO, make_model


@pytest.mark.parametrize('centered', [True, False])
def test_effects_by_a_sum_over_a_grid(centered):
  normal = scipy.stats.norm.logpdf
  mean, log_sd, value = np.meshgrid(
    np.linspace(-9.0, 10.0, 140),
    np.linspace(-4.0, 5.0, 120),
    np.linspace(-8.0, 8.0, 400),
    indexing='ij',
    sparse=True,
  )
  if centered:
    effect, prior = value, normal(value, mean, np.exp(log_sd))
  else:
    effect, prior = mean + np.exp(log_sd) * value, normal(value)
  log_prob = normal(mean, 0.0, 2.0) + normal(log_sd, 0.5, 0.8) + prior
  weight = np.exp(log_prob + normal(1.5, effect, 0.7))
  weight /= np.sum(weight)
  found = zoo_truth.normal_effects_moments(
    [1.5], [0.7], 2.0, (0.5, 0.8), centered
  )
  for i, x in enumerate((mean, log_sd, value)):
    expected = np.sum(weight * x)
    sd = np.sqrt(np.sum(weight * (x - expected) ** 2))
    np.testing.assert_allclose(found.mean[i], expected, atol=2e-3)
    np.testing.assert_allclose(found.sd[i], sd, rtol=2e-3)


@pytest.mark.parametrize('name', ['banana', 'funnel', 'gaussian_rotated'])
def test_closed_forms_are_those_of_draws_of_the_joint(name):
  model = make_model(name)
  draws = model.joint.sample(20_000, seed=(1, 2))
  parts = [np.asarray(x, np.float64) for x in draws]
  x = np.concatenate([p.reshape(20_000, -1) for p in parts], axis=1)
  if model.axes is not None:
    x = x @ model.axes
  truth = zoo_truth.truth_of(name)
  known = np.isfinite(truth.sd)
  x, mean, sd = x[:, known], truth.mean[known], truth.sd[known]
  # Six standard errors; that of the square of a square, of the banana, is
  # larger than a normal's.
  z = (np.mean(x, axis=0) - mean) / (sd / np.sqrt(20_000))
  assert np.max(np.abs(z)) < 6.0
  fourth = np.mean((x - mean) ** 4, axis=0)
  error = np.sqrt((fourth - sd**4) / 20_000) / (2.0 * sd)
  assert np.max(np.abs(np.std(x, axis=0) - sd) / error) < 6.0


@pytest.mark.parametrize('name', sorted(set(ZOO) - {'item_response'}))
def test_truths_have_one_entry_for_each_coordinate(name):
  truth = zoo_truth.truth_of(name)
  size = make_model(name).size
  assert truth.mean.shape == truth.sd.shape == (size,)
  assert np.all(np.isfinite(truth.mean))


def test_what_is_not_known_is_none(tmp_path):
  file = tmp_path / 'truth.json'
  assert zoo_truth.truth_of('cox_process', file) is None
  file.write_text(json.dumps({'moments': {}}))
  assert zoo_truth.truth_of('cox_process', file) is None
  moments = {'mean': [1.0], 'sd': [2.0], 'mean_error': [0.1], 'sd_error': [0.2]}
  file.write_text(json.dumps({'moments': {'cox_process': moments}}))
  found = zoo_truth.truth_of('cox_process', file)
  assert (found.mean, found.sd_error) == ([1.0], [0.2])
