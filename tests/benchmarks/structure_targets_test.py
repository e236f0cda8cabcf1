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
"""The benchmark of structure works, at sizes that measure nothing."""

import sys

import pytest

from benchmarks import structure_targets, worker

RATIOS = ('gradients', 'times faster than the best other')


def answers(job, arguments):
  return getattr(worker, job)(**arguments)


@pytest.mark.parametrize('name', ['hierarchical', 'phi4'])
def test_a_contestant_is_checked_and_timed(name):
  case = {'hierarchical': [3, 8, 2], 'phi4': [4, 2]}[name]
  job = answers('race', {'case': [name, case], 'tool': 'tfp_diag'})
  ready = next(job)
  assert ready['status'] == 'ready', ready
  assert ready['relative_error'] < 1e-5
  assert job.send(3)['seconds'] > 0


def test_a_wrong_contestant_is_reported(monkeypatch):
  class Wrong:
    framework, packages, result = 'tensorflow', (), 'diagonal'

    def make(self, case):
      return lambda x, count: 1.01 * x

  monkeypatch.setitem(worker.TOOLS, 'wrong', Wrong())
  job = answers('race', {'case': ['chain', [4]], 'tool': 'wrong'})
  assert next(job)['status'] == 'wrong'


def test_a_missing_contestant_is_reported(monkeypatch):
  monkeypatch.setitem(sys.modules, 'jax', None)
  arguments = {'case': ['chain', [4]], 'tool': 'JAX vmap(hessian)'}
  assert next(answers('race', arguments))['status'] == 'missing'


def test_the_report_judges_every_target(monkeypatch, capsys):
  fast = {'status': 'ready', 'seconds_until_ready': 1.0}

  def contest(servers, case, peers, limits, rounds):
    slow = {'status': 'too slow', 'reason': 'no answer'}
    return {
      peer: fast | {'median_s': 0.01 if peer in structure_targets.OURS else 0.1}
      if peer != 'JAX vmap(hessian)'
      else slow
      for peer in peers
    }

  def one_answer(servers, job, arguments, limits):
    return next(answers(job, arguments))

  monkeypatch.setattr(structure_targets, 'contest', contest)
  monkeypatch.setattr(structure_targets, 'one_answer', one_answer)
  report = structure_targets.run(quick=True)
  printed = capsys.readouterr().out
  assert 'too slow: no answer' in printed
  judged = [
    (target['what'].split(': ')[-1], target['value'], target['holds'])
    for target in report['targets']
  ]
  assert len(judged) == 12
  structures = report['structures']
  assert structures['chain_1e6']['nonzeros'] == 3 * 2000 - 2
  assert structures['chain_1e6']['passes'] == 2
  assert structures['model']['passes'] == 2
  assert structures['model']['coordinates'] == 10
  assert [j for j in judged if j[0] in RATIOS] == [
    ('gradients', pytest.approx(0.1), True),
    ('gradients', pytest.approx(0.1), True),
    ('times faster than the best other', pytest.approx(10), False),
    ('times faster than the best other', pytest.approx(10), False),
    ('times faster than the best other', pytest.approx(10), True),
  ]
