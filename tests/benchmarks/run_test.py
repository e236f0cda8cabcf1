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
"""One command: which cells are measured, and which are not."""

import contextlib
import json

import pytest

from benchmarks import run
from benchmarks.processes import Limits
from benchmarks.results import Results
from benchmarks.tools import TFP_DIAG, TOOLS


@pytest.fixture
def measured(monkeypatch):
  """Cells by case, with processes that take no time."""
  cells = []

  def contest(servers, case, tools, limits, rounds, seen):
    for tool in tools:
      cells.append((case[0], *case[1], tool))
      slow = tool.startswith('torch')
      status = 'too slow' if slow else 'ready'
      seen(tool, {'status': status, 'reason': '', 'median_s': 1e-6})

  def one_answer(servers, job, arguments, limits, framework):
    cells.append((job, *arguments['case'][1], arguments['tool']))
    return {'status': 'ready', 'detection_s': 1.0, 'coloring_s': 1.0}

  monkeypatch.setattr(run, 'contest', contest)
  monkeypatch.setattr(run, 'one_answer', one_answer)
  monkeypatch.setattr(run, 'Servers', contextlib.nullcontext)
  return cells


def test_one_command(measured, tmp_path):
  file = tmp_path / 'results.json'
  assert run.main(['--quick', '--json', str(file)]) == 0
  data = json.loads(file.read_text())
  assert set(data) == {'about', 'cases', 'structures', 'samplers'}
  chain = data['cases']['chain n = 1,000']
  # Once as a case with every tool, once as a member of a series.
  assert chain['series'] == ['cases', 'chain']
  assert set(chain['tools']) == set(TOOLS)
  assert len([c for c in measured if c[:2] == ('chain', 1000)]) == len(TOOLS)
  # A second run goes on with the first, which was complete.
  count = len(measured)
  assert run.main(['--quick', '--json', str(file)]) == 0
  assert len(measured) == count
  # What is missing is measured.
  del data['cases']['chain n = 1,000']['tools'][TFP_DIAG]
  file.write_text(json.dumps(data))
  assert run.main(['--quick', '--json', str(file)]) == 0
  assert measured[count:] == [('chain', 1000, TFP_DIAG)]


def test_cases_and_tools_can_be_chosen(measured):
  words = ['--quick', '--case', 'hierarchical', '--tool', 'asdex']
  assert run.main(words) == 0
  assert measured == [('hierarchical', 20, 100, 4, 'asdex')]


def test_a_whole_name_is_one_tool(measured):
  words = ['--quick', '--case', 'chain n = 1,000', '--tool', 'tfp_diag']
  assert run.main(words) == 0
  assert measured == [
    ('chain', 1000, 'tfp_diag'),
    ('structure', 1000, 'tfp_diag'),
  ]


def test_sizes_can_be_chosen(measured):
  assert run.main(['--sizes', '7,70', '--tool', 'JAX vmap']) == 0
  assert measured == [
    ('chain', 7, 'JAX vmap(hessian)'),
    ('chain', 70, 'JAX vmap(hessian)'),
  ]


def test_hopeless_cells_are_not_tried(measured):
  results = Results()
  run.run(
    results,
    quick=False,
    cases=['chain'],
    tools=['JAX vmap(hessian)', 'torch vmap(hessian)'],
    sizes=None,
    limits=Limits(seconds=1.0, gib=4.0),
    rounds=1,
  )
  cells = {name: row['tools'] for name, row in results.data['cases'].items()}
  # n^2 floats are 37 GiB.
  large = cells['chain n = 100,000']['JAX vmap(hessian)']
  assert large['status'] == 'too much memory'
  assert large['reason'] == 'a matrix of 37 GiB'
  # It was too slow for ten already, and is tried no more.
  assert cells['chain n = 1,000']['torch vmap(hessian)'] == {
    'status': 'too slow',
    'reason': 'as for chain n = 10',
  }
  assert ('chain', 1000, 'torch vmap(hessian)') not in measured
  assert ('chain', 1000, 'JAX vmap(hessian)') in measured
