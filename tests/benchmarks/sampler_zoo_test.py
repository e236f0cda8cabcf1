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
"""The zoo of samplers works, at sizes that measure nothing."""

import json
import types

import numpy as np
import pytest

import tfp_diag
from benchmarks import (
  sampler_jobs,
  sampler_zoo,
  zoo_contestants,
  zoo_figures,
  zoo_report,
)
from benchmarks.sampler_contestants import Drawn
from benchmarks.sampler_targets import QUICK
from benchmarks.zoo_models import make_model
from benchmarks.zoo_truth import Moments


def _drawn(shift=0.0, seed=1, **changed):
  noise = np.random.default_rng(seed).normal(size=[200, 8, 2])
  draws = noise * [10.0, 2.0] + shift
  drawn = Drawn(draws.astype(np.float32), 0.8, 1000, 4000)
  return drawn._replace(**changed)


TRUTH = Moments(np.zeros(2), np.array([10.0, 2.0]))


def test_figures_of_independent_draws():
  found = zoo_figures.of_run(_drawn(), make_model('banana'), TRUTH, 2.0)
  assert found['r_hat'] < 1.02
  for kind in ('bulk', 'squares'):
    np.testing.assert_allclose(found[f'ess_{kind}'], 1600.0, rtol=0.2)
  assert found['z_mean'] < 4.0 and found['z_sd'] < 4.0
  # A share of the gradients, unless the sampler says it.
  np.testing.assert_allclose(found['seconds_warmup'], 2.0 * 1000 / 5000)
  told = zoo_figures.of_run(
    _drawn(seconds_warmup=1.5), make_model('banana'), None, 2.0
  )
  assert told['seconds_warmup'] == 1.5 and 'z_mean' not in told


def test_wrong_draws_are_far_from_the_truth():
  # Half a standard deviation, of 1600 draws: 20 standard errors.
  found = zoo_figures.of_run(
    _drawn(shift=[0.0, 1.0]), make_model('banana'), TRUTH, 2.0
  )
  np.testing.assert_allclose(found['z_mean'], 20.0, atol=5.0)
  wide = TRUTH._replace(sd=np.array([10.0, 3.0]))
  found = zoo_figures.of_run(_drawn(), make_model('banana'), wide, 2.0)
  assert found['z_sd'] > 10.0


def test_draws_that_do_not_move_are_the_worst():
  stuck = _drawn(draws=np.ones([200, 8, 2], np.float32))
  found = zoo_figures.of_run(stuck, make_model('banana'), TRUTH, 2.0)
  assert found['ess_bulk'] == 0.0 and found['r_hat'] == float('inf')
  found = zoo_figures.of_runs([found, found])
  assert found['gradients_per_draw']['with_warmup'] == float('inf')


def test_medians_of_runs():
  def run(gradients, seconds, ess):
    return {
      'r_hat': 1.0 + 1.0 / ess,
      'ess_bulk': 2.0 * ess,
      'ess_squares': ess,
      'gradients_warmup': 100.0,
      'gradients': gradients,
      'seconds_warmup': 0.1 * seconds,
      'seconds': seconds,
    }

  runs = [run(900.0, 30.0, 100.0), run(900.0, 1.0, 50.0), run(900.0, 1.0, 10.0)]
  found = zoo_figures.of_runs(runs)
  assert found['r_hat'] == 1.1 and found['ess_bulk'] == 100.0
  np.testing.assert_allclose(found['compile_s'], 29.0)
  assert found['gradients_per_draw'] == {
    'with_warmup': 20.0,
    'without_warmup': 18.0,
    'least': 10.0,
    'most': 100.0,
  }
  # Of the two that did not compile.
  per_draw = found['seconds_per_draw']
  np.testing.assert_allclose(per_draw['with_warmup'], (0.02 + 0.1) / 2)
  np.testing.assert_allclose(per_draw['without_warmup'], 0.9 * 0.06)
  assert zoo_figures.of_runs(runs[:1])['compile_s'] is None


@pytest.mark.usefixtures('without_xla')
@pytest.mark.parametrize(
  'sampler, model, title, size',
  [
    ('ours MALA', 'eight_schools_centered', 'eight schools, centered', 10),
    ('TFP SNAPER HMC', 'banana', 'banana', 2),
  ],
)
def test_a_sampler_is_measured(sampler, model, title, size):
  job = sampler_jobs.zoo(sampler, model, QUICK)
  assert next(job) == {
    'status': 'ready',
    'title': title,
    'size': size,
  }
  answer = job.send([31, 0])
  assert answer['seconds'] > 0 and answer['z_mean'] > 0
  if sampler == 'ours MALA':
    assert answer['gradients'] == QUICK['chains'] * QUICK['draws']
    assert answer['gradients_warmup'] == QUICK['chains'] * QUICK['adaptation']


def test_ours_auto_counts_the_gradients_of_all_chains(monkeypatch):
  def sample_posterior(joint, num_draws, *, num_chains, seed, **pins):
    assert 'treatment_effects' in pins and seed == (31, 2)
    return types.SimpleNamespace(
      draws={'x': np.zeros([num_draws, num_chains, 10])},
      num_gradients_warmup=30,
      num_gradients=np.full([num_chains], 40),
    )

  name = 'sample_posterior'
  monkeypatch.setattr(tfp_diag.mcmc, name, sample_posterior, raising=False)
  sample = zoo_contestants.ours_auto(make_model('eight_schools'), QUICK)
  drawn = sample((31, 2))
  assert drawn.draws.shape == (QUICK['draws'], QUICK['chains'], 10)
  assert drawn.gradients_warmup == 30 * QUICK['chains']
  assert drawn.gradients == 40 * QUICK['chains']


def test_what_is_not_installed_is_missing(monkeypatch):
  def missing(model, sizes):
    raise ImportError('no such package')

  monkeypatch.setitem(zoo_contestants.SAMPLERS, 'TFP NUTS', missing)
  [answer] = sampler_jobs.zoo('TFP NUTS', 'banana', QUICK)
  assert answer == {'status': 'missing', 'reason': 'no such package'}


@pytest.fixture
def told(monkeypatch):
  """Processes that answer at once; a list of what was started."""
  started = []

  class Process:
    def __init__(self, sampler):
      self._sampler = sampler

    def answer(self, seed=None):
      if self._sampler == 'ours auto':
        return {'status': 'missing', 'reason': 'not there'}
      if seed is None:
        return {'status': 'ready', 'title': 'A banana', 'size': 2}
      if self._sampler == 'TFP NUTS' and seed[1] == 1:
        return {'status': 'too slow', 'reason': 'no answer'}
      if self._sampler == 'blackjax NUTS':
        return {'status': 'too slow', 'reason': 'no answer'}
      drawn = _drawn(seed=seed[1])
      return zoo_figures.of_run(drawn, make_model('banana'), TRUTH, 2.0)

    def close(self):
      pass

  class Servers:
    def __enter__(self):
      return self

    def __exit__(self, *_):
      pass

    def start(self, framework, job, arguments, limits):
      started.append(arguments['sampler'])
      return Process(arguments['sampler'])

  monkeypatch.setattr(sampler_zoo, 'Servers', Servers)
  return started


def test_cells_are_kept_and_a_run_goes_on(told, tmp_path, capsys):
  file = tmp_path / 'zoo.json'
  words = ['--json', str(file), '--model', 'banana']
  assert sampler_zoo.main([*words, '--sampler', 'TFP NUTS']) == 0
  assert told == ['TFP NUTS']
  assert sampler_zoo.main(words) == 0
  assert len(told) == len(zoo_contestants.SAMPLERS)
  # What was missing is tried again, and more seeds and time are given.
  del told[:]
  assert sampler_zoo.main(words) == 0
  assert told == ['ours auto']
  del told[:]
  assert sampler_zoo.main([*words, '--limit', '200']) == 0
  assert told == ['ours auto', 'TFP NUTS', 'blackjax NUTS']
  del told[:]
  # Those were too slow.
  assert sampler_zoo.main([*words, '--seeds', '4']) == 0
  assert set(told) == {*zoo_contestants.SAMPLERS} - {
    'TFP NUTS',
    'blackjax NUTS',
  }
  cells = json.loads(file.read_text())['zoo']['banana']['tools']
  assert cells['TFP NUTS']['status'] == 'ready'
  assert [len(cells[s]['runs']) for s in ('TFP NUTS', 'numpyro NUTS')] == [1, 4]
  table = file.with_suffix('.md').read_text()
  assert 'A banana, d = 2 | blackjax NUTS | 4 × 1,000 | too slow' in table
  assert 'missing: not there' in table
  assert file.with_suffix('.png').stat().st_size > 10_000
  assert table.partition('Medians')[0].count('\n| ') == 2 + len(
    zoo_contestants.SAMPLERS
  )


def test_every_sampler_has_a_size_and_a_style():
  names = set(zoo_contestants.SAMPLERS)
  assert names == set(zoo_contestants.SIZES) == set(zoo_report.STYLES)


def test_ratios_are_of_runs_that_converged():
  def row(r_hat, mine, theirs):
    def cell(r_hat, number):
      per_draw = {'with_warmup': number, 'without_warmup': 2.0 * number}
      return {'r_hat': r_hat, 'gradients_per_draw': per_draw}

    tools = {'ours auto': cell(1.0, mine), 'TFP NUTS': cell(r_hat, theirs)}
    return {'tools': tools}

  rows = {
    'a': row(1.01, 1.0, 4.0),
    'b': row(1.05, 3.0, 4.0),
    'stuck': row(1.06, 9.0, 1.0),
    'failed': row(None, 9.0, 1.0),
  }
  *_, last = zoo_report.ratios(rows).splitlines()
  assert last == '| TFP NUTS | 2 | 0.50 | 0.75 | 0.50 | 0.75 |'


def test_seconds_are_beside_the_better_one_of_others():
  def row(*numbers):
    names = ('ours auto', 'numpyro NUTS', 'blackjax NUTS')
    return {
      'tools': {
        name: {'seconds_per_draw': {'with_warmup': number}} if number else {}
        for name, number in zip(names, numbers)
      }
    }

  rows = {
    'a': row(1.0, 4.0, 2.0),
    'b': row(3.0, None, 4.0),
    'c': row(1.0, 1.0, 2.0),
    'failed': row(1.0, None, None),
  }
  said = zoo_report.beside_the_better(rows)
  assert 'on 3 posteriors: 0.75 in the median, 1.00 at most (c).' in said
  assert not zoo_report.beside_the_better({'failed': rows['failed']})
