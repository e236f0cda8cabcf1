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
"""The benchmark of the samplers works, at sizes that measure nothing."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import sampler_jobs, sampler_targets
from benchmarks.processes import Servers
from benchmarks.results import in_json
from benchmarks.sampler_models import MODELS, make_model
from tfp_diag.mcmc.run.unconstrained_target import target_of_model

SIZES = {
  'eight_schools': 10,
  'brownian_motion': 32,
  'stochastic_volatility': 103,
  'item_response': 131,
  'gaussian_rotated': 100,
  'gaussian_aligned': 100,
  'logistic_regression': 25,
}


@pytest.mark.parametrize('name', MODELS)
def test_models_are_finite_and_of_the_stated_size(name):
  model = make_model(name)
  target = target_of_model(model.joint, model.pins, None, [3], (1, 2))
  assert sum(x[0].shape.num_elements() for x in target.start) == SIZES[name]
  log_prob = target.log_prob_fn(*target.start)
  assert log_prob.shape == [3] and np.all(np.isfinite(log_prob))
  # Chains do not mix.
  alone = target.log_prob_fn(*(x[1:2] for x in target.start))
  np.testing.assert_allclose(alone, log_prob[1:2], rtol=1e-4)


@pytest.mark.parametrize('name', MODELS)
def test_both_ways_to_write_a_model_are_the_same_density(name):
  model = make_model(name)
  pinned = model.joint
  if model.pins:
    pinned = pinned.experimental_pin(**model.pins)
  shapes = tf.nest.flatten(pinned.event_shape)
  ends = np.cumsum([s.num_elements() for s in shapes])[:-1]
  rng = np.random.default_rng(12)
  of_tfp, of_vector = [], []
  for _ in range(3):
    x = rng.uniform(-0.5, 0.5, model.size)
    # Each constraint is of one coordinate.
    log_det, values = 0.0, x
    if model.constrained is not None:
      values = model.constrained(np, x)
      slope = model.constrained(np, x + 1e-6) - values
      log_det = np.sum(np.log(slope / 1e-6))
    parts = [
      tf.constant(piece.reshape(s), tf.float32)
      for piece, s in zip(np.split(values, ends), shapes)
    ]
    of_tfp.append(float(pinned.unnormalized_log_prob(*parts)) + log_det)
    of_vector.append(model.log_prob(np, x))
  np.testing.assert_allclose(
    np.diff(of_vector), np.diff(of_tfp), rtol=1e-4, atol=1e-2
  )


def test_axes_of_the_rotated_gaussian_are_principal():
  model = make_model('gaussian_rotated')
  draws = model.joint.sample(4000, seed=(1, 2))
  x = tf.nest.flatten(draws)[0].numpy() @ model.axes
  aligned = tf.nest.flatten(
    make_model('gaussian_aligned').joint.sample(4000, seed=(3, 4))
  )[0]
  # Six standard errors of a ratio of variances.
  ratio = np.var(x, axis=0) / np.var(aligned, axis=0)
  np.testing.assert_allclose(ratio, 1.0, atol=6 * np.sqrt(4 / 4000))
  correlation = np.corrcoef(x, rowvar=False) - np.eye(100)
  assert np.max(np.abs(correlation)) < 6 / np.sqrt(4000)


@pytest.mark.usefixtures('without_xla')
@pytest.mark.parametrize('contestant', ['tfp_diag', 'TFP MALA'])
def test_a_sampler_is_measured(contestant):
  job = sampler_jobs.efficiency(
    contestant,
    'logistic_regression',
    sampler_targets.QUICK,
    sampler_targets.DIAGONAL if contestant == 'tfp_diag' else {},
  )
  assert next(job)['status'] == 'ready'
  answer = job.send([1, 2])
  assert answer['seconds'] > 0 and 0 < answer['acceptance'] <= 1
  np.testing.assert_allclose(
    answer['min_ess_per_second'], answer['min_ess'] / answer['seconds']
  )


@pytest.mark.parametrize(
  'name',
  [
    'tfp_diag constant',
    'tfp_diag trajectory',
    'trajectory by hand',
    'trajectory by hand, our noise',
  ],
)
def test_a_step_is_timed(name, request):
  if name != 'tfp_diag constant':
    request.getfixturevalue('without_xla')
  job = sampler_jobs.step_time(name)
  assert next(job) == {'status': 'ready'}
  assert job.send(1)['seconds'] > 0


@pytest.mark.usefixtures('without_xla')
def test_a_step_of_a_local_hessian_is_timed():
  [(case, _)] = sampler_targets.QUICK_LOCAL_HESSIAN.values()
  job = sampler_jobs.step_time('local Hessian', case=case)
  assert next(job) == {'status': 'ready'}
  assert job.send(1)['seconds'] > 0


def test_a_missing_contestant_is_reported(monkeypatch):
  monkeypatch.setitem(sys.modules, 'blackjax', None)
  answer = next(sampler_jobs.step_time('blackjax constant'))
  assert answer['status'] == 'missing'


@pytest.mark.usefixtures('without_xla')
def test_gradients_to_low_error():
  sizes = {'coordinates': 3, 'chains': 8, 'adaptation': 100, 'draws': 400}
  [answer] = sampler_jobs.low_error(sizes, sampler_targets.DIAGONAL)
  # Independent draws have an error of one over their number.
  assert 30 < answer['gradients'] < 300
  assert answer['final_error'] < 0.01
  sizes['draws'] = 20
  [answer] = sampler_jobs.low_error(sizes, sampler_targets.DIAGONAL)
  assert answer['gradients'] == float('inf')


@pytest.fixture
def told(monkeypatch):
  """Processes that answer what they are told to: ours is the faster one."""
  answers = {
    'step_time': [{'status': 'ready'}, {'seconds': 0.01}],
    'efficiency': [
      {'status': 'ready', 'step_size': None},
      {
        'seconds': 2.0,
        'min_ess': 100.0,
        'min_ess_per_second': 50.0,
        'max_rhat': 1.0,
      },
    ],
    'funnel': [{'status': 'ready', 'z_mean': 1.0, 'z_sd': 2.0, 'rhat': 1.0}],
    'low_error': [{'status': 'ready', 'gradients': 200}],
  }

  class Contestants:
    def __init__(self, servers, limit):
      self._jobs = {}

    def __enter__(self):
      return self

    def __exit__(self, *_):
      pass

    def names(self):
      return list(self._jobs)

    def start(self, name, job, arguments):
      self._jobs[name] = job
      return dict(answers[job][0])

    def ask(self, name, question):
      slow = 40.0 if name.startswith('TFP') else 1.0
      answer = dict(answers[self._jobs[name]][1])
      if 'min_ess_per_second' in answer:
        answer['min_ess_per_second'] /= slow
      answer['seconds'] *= slow
      return answer

  monkeypatch.setattr(sampler_targets, '_Contestants', Contestants)


def test_the_report_judges_every_target(told, monkeypatch, capsys):
  rows = sampler_targets.run(quick=True)
  holds = {t['what']: t['holds'] for r in rows.values() for t in r['targets']}
  assert len(holds) == 2 + 2 + 3 + 1 + 2 * len(MODELS) + 2 + 1
  # The constant scale was told to do as well as the local one.
  failing = [what for what, held in holds.items() if not held]
  assert failing == ['funnel, constant scale: fails, in MCSEs or R-hat']
  monkeypatch.setattr(sampler_targets, 'run', lambda *_: rows)
  assert sampler_targets.main([]) == 1
  assert sampler_targets.main(['--quick']) == 0
  assert 'FAILS' in capsys.readouterr().out


def test_each_row_is_kept_beside_those_before(told, tmp_path):
  file = tmp_path / 'samplers.json'
  words = ['--quick', '--json', str(file), '--row']
  assert sampler_targets.main([*words, 'funnel']) == 0
  sampler_targets.main(
    [*words, 'efficiency', '--model', 'item_response', '--row', 'low_error']
  )
  kept = json.loads(file.read_text(), parse_constant=pytest.fail)
  assert set(kept['samplers']) == {'funnel', 'item_response', 'low_error'}
  assert kept['samplers']['low_error']['tools']['Euler']['gradients'] == 200
  assert kept['samplers']['funnel']['targets'][0]['value'] == 2.0
  assert kept['about']['versions']['tensorflow'] == tf.__version__


def test_what_json_lacks_is_null():
  figures = {'a': [float('nan'), 1.0], 'b': float('inf'), 'c': 'x', 'd': True}
  assert in_json(figures) == {
    'a': [None, 1.0],
    'b': None,
    'c': 'x',
    'd': True,
  }


def test_a_process_that_fails_says_why():
  with (
    Servers() as servers,
    sampler_targets._Contestants(servers, 60.0) as contestants,
  ):
    answer = contestants.start('none', 'step_time', {'contestant': 'none'})
    assert contestants.names() == []
  assert answer['status'] == 'failed'
  assert "KeyError: 'none'" in answer['reason']
