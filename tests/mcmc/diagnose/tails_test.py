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
"""Tails against those of arviz-stats, and what is said of known ones."""

import numpy as np
import pytest
import scipy.stats

from tfp_diag.mcmc import summarize
from tfp_diag.mcmc.diagnose.tails import Tails, heavy_tails_notes, pareto_k


# Of `pareto_khat` in arviz-stats 0.8, with r_eff=1; in 0.3 it is private.
@pytest.mark.parametrize(
  ('df', 'expected'),
  [
    (1, 1.031717183794353),
    (3, 0.4167253087945203),
    (30, -0.07069360058452866),
  ],
)
def test_the_index_of_arviz_stats(df, expected):
  draws = np.random.default_rng(df).standard_t(df, [500, 4])
  count = int(3.0 * np.sqrt(draws.size))
  np.testing.assert_allclose(pareto_k(draws.ravel(), count), expected, 1e-6)


def test_what_has_no_tail():
  assert np.isnan(pareto_k(np.ones(1000), 90))
  assert np.isnan(pareto_k(np.r_[np.zeros(900), np.full(100, np.inf)], 90))


@pytest.mark.parametrize('family', ['norm', 'logistic', 'expon', 'laplace'])
def test_tails_with_all_moments_are_silent(family):
  """No alarm in 40 parameters; nor in 400 of a measurement."""
  draws = getattr(scipy.stats, family).rvs(size=[640, 8, 40], random_state=1)
  assert summarize(draws).notes == ()


def test_gammas_are_silent():
  rng = np.random.default_rng(2)
  draws = {str(a): rng.gamma(a, size=[1000, 16, 5]) for a in (0.1, 0.5, 3.0)}
  assert summarize(draws).notes == ()


def test_heavy_tails_are_named():
  """Of t with three degrees of freedom the sd has no standard error."""
  rng = np.random.default_rng(3)
  draws = {
    'normal': rng.normal(size=[1000, 16]),
    't3': rng.standard_t(3, size=[1000, 16]),
    'cauchy': rng.standard_cauchy(size=[1000, 16]),
  }
  found = summarize(draws)
  assert found.warnings == ()
  mean, sd = found.notes
  assert mean.startswith('The MCSE of the mean and of the sd cannot be trusted')
  assert 'for cauchy: ' in mean
  assert sd.startswith('The MCSE of the sd cannot be trusted for t3: tails are')
  assert f'NOTE: {sd}' in str(found)


def test_many_names_are_cut():
  tails = Tails(np.linspace(0.6, 0.9, 9), np.full(9, 0.05))
  (note,) = heavy_tails_notes(tuple('abcdefghi'), tails)
  assert (
    'for i, h, g, f, e and others: tails are heavy (Pareto k up to 0.90'
    in (note)
  )
  assert heavy_tails_notes(('a',), Tails(*np.full([2, 1], np.nan))) == []
