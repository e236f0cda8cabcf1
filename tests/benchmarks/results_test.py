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
"""The file of a run."""

import json

import pytest

from benchmarks.results import Results, about


def test_it_is_written_after_each_cell_and_read_again(tmp_path):
  path = tmp_path / 'results.json'
  results = Results(path)
  results.row('cases', 'chain', n=4, series=['cases'])
  results.put('cases', 'chain', 'tfp_diag', {'median_s': 1.0})
  assert json.loads(path.read_text())['cases']['chain'] == {
    'tools': {'tfp_diag': {'median_s': 1.0}},
    'n': 4,
    'series': ['cases'],
  }
  results.put('cases', 'chain', 'asdex', {'status': 'missing'})
  again = Results(path)
  assert again.has('cases', 'chain', 'asdex')
  assert again.has('cases', 'chain', 'tfp_diag')
  assert not again.has('cases', 'chain', 'torch')
  assert not again.has('samplers', 'chain', 'asdex')
  assert not Results(path, go_on=False).has('cases', 'chain', 'asdex')


def test_a_failed_write_leaves_the_file_before(tmp_path):
  path = tmp_path / 'results.json'
  results = Results(path)
  results.put('cases', 'chain', 'tfp_diag', {'median_s': 1.0})
  before = path.read_text()
  with pytest.raises(TypeError):
    results.put('cases', 'chain', 'tfp_diag', {'median_s': object()})
  assert path.read_text() == before
  assert [file.name for file in tmp_path.iterdir()] == ['results.json']


def test_the_time_of_all_runs_is_added_up(tmp_path):
  for _ in range(2):
    Results(tmp_path / 'results.json').add_seconds(30.4)
  data = json.loads((tmp_path / 'results.json').read_text())
  assert data['about']['wall_s'] == 60


def test_it_works_without_a_file():
  results = Results()
  results.put('cases', 'chain', 'tfp_diag', {})
  assert results.has('cases', 'chain', 'tfp_diag')


def test_the_machine_is_described_by_what_counts():
  found = about()
  assert found['machine']['cores'] >= 1
  assert found['versions']['tensorflow'].count('.') == 2
  assert set(found) == {'date', 'python', 'versions', 'machine'}
