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
"""Tables and pictures of a small run made by hand."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

from benchmarks import report, tables
from benchmarks.tools import GRADIENT, OWN_SAMPLER, TFP_DIAG


def cell(seconds, **more):
  return {
    'status': 'ready',
    'median_s': seconds,
    'seconds': [0.9 * seconds, seconds, 1.3 * seconds],
    'plan_s': 0.5,
    'first_call_s': 1.0,
    'memory_gib': 0.25,
    **more,
  }


def row(n, series, structured=True, **tools):
  return {
    'n': n,
    'batch': 2,
    'kind': 'hessian',
    'structured': structured,
    'series': series,
    'tools': tools,
  }


ABOUT = {
  'date': '2026-01-02',
  'python': '3.11.1',
  'wall_s': 1500,
  'versions': {'tensorflow': '2.16.1', 'jax': None},
  'machine': {
    'system': 'Linux',
    'architecture': 'x86_64',
    'cores': 2,
    'memory_gib': 8,
  },
}

DATA = {
  'about': ABOUT,
  'cases': {
    'chain n = 10': row(
      10,
      ['cases', 'chain'],
      **{
        GRADIENT: cell(1e-6),
        TFP_DIAG: cell(3e-6, passes=2),
        'tfp_diag, forward, unrolled': cell(2e-6),
        'tfp_diag, reverse, pfor': cell(9e-6),
        'TFP diag_jacobian, XLA': cell(456e-6),
        'TFP diag_jacobian, graph': cell(8e-3),
        'batch_jacobian, XLA': {'status': 'wrong', 'reason': 'relative | 2'},
        'JAX vmap(hessian)': cell(1.5e-6),
        'asdex': {'status': 'missing', 'reason': 'no module'},
      },
    ),
    'chain n = 100': row(100, ['chain'], **{TFP_DIAG: cell(5e-6, passes=2)}),
    'dense': row(
      7, ['cases'], False, **{TFP_DIAG: {'status': 'too slow', 'reason': ''}}
    ),
  },
  'structures': {
    'chain n = 10': row(
      10, ['chain'], **{TFP_DIAG: {'detection_s': 1.0, 'coloring_s': 0.5}}
    )
  },
  'samplers': {
    f'normal d = {d}': row(
      d,
      ['steps'],
      **{OWN_SAMPLER: cell(d * 1e-6), 'blackjax MALA': cell(2e-7)},
    )
    for d in (3, 30)
  },
}


def test_the_table_compares():
  header, _, chain, dense = tables.of_cases(DATA).splitlines()
  columns = [c.strip() for c in header.strip('|').split('|')]
  values = [c.strip() for c in chain.strip('|').split('|')]
  assert dict(zip(columns, values)) == {
    'case': 'chain n = 10',
    'passes': '2',
    'tfp_diag': '3.0 µs',
    'gradients': '3.0',
    'TFP': '150 ×',
    'TensorFlow': 'wrong',
    'JAX': '0.5 ×',
    'asdex': 'missing',
    'torch': '',
    "'auto'": '1.5 ×',
  }
  assert '| dense |  | too slow |' in dense
  assert len(dense.split('|')) == len(header.split('|'))


def test_what_falls_short_is_said():
  said = tables.losses(DATA)
  assert said == [
    "chain n = 10: 'auto' takes 1.50 times as long as "
    'tfp_diag, forward, unrolled.',
    'chain n = 10: JAX vmap(hessian) is 2.00 times as fast.',
    'normal d = 3: a step of blackjax MALA takes 0.07 of ours.',
    'normal d = 30: a step of blackjax MALA takes 0.01 of ours.',
  ]


@pytest.mark.parametrize(
  'tool', ['JAX vmap(hessian)', 'TFP diag_jacobian, XLA']
)
def test_ahead_of_all_is_not_said(tool):
  tools = {GRADIENT: cell(1e-6), TFP_DIAG: cell(3e-6), tool: cell(31e-6)}
  data = {'cases': {'a': row(4, ['cases'], **tools)}}
  assert tables.losses(data) == []
  # A TensorFlow way may be no faster at all, a peer with structure neither.
  data['cases']['a']['tools'][tool] = cell(2.9e-6)
  assert len(tables.losses(data)) == 1


def test_every_cell_is_in_the_long_table():
  name = 'chain n = 10'
  text = tables.of_row(name, DATA['cases'][name])
  assert '| TFP diag_jacobian, XLA | 460 µs | 40 % | 150 × | 1.5 s |' in text
  assert 'wrong: relative / 2' in text
  assert text.count('\n') == 3 + len(DATA['cases'][name]['tools'])


def test_the_report_of_a_file(tmp_path, capsys):
  file = tmp_path / 'results.json'
  file.write_text(json.dumps(DATA))
  readme = tmp_path / 'README.md'
  readme.write_text(f'before\n{report.BEGIN}\nold\n{report.END}\nafter\n')
  folder = tmp_path / 'pictures'
  words = [str(file), '--all', '--write', str(readme)]
  assert report.main([*words, '--pictures', str(folder)]) == 0
  printed = capsys.readouterr().out
  assert (
    '2026-01-02, 2 cores (x86_64), 8 GiB, 25 minutes; Python 3.11.1' in printed
  )
  assert '### chain n = 100' in printed
  begin, *table, end, after = readme.read_text().splitlines()[1:]
  assert (begin, end, after) == (report.BEGIN, report.END, 'after')
  assert '\n'.join(table) == tables.of_cases(DATA)
  drawn = {path.name for path in folder.iterdir()}
  assert drawn == {
    'time_by_size.png',
    'memory_by_size.png',
    'structure_by_size.png',
    'sampler_steps.png',
  }
  for path in folder.iterdir():
    assert np.ptp(plt.imread(path)) > 0.5


def test_a_file_without_the_comments_is_refused(tmp_path):
  file = tmp_path / 'README.md'
  file.write_text('nothing')
  with pytest.raises(ValueError, match='has 0 places'):
    report.write_between(file, 'table')
  assert file.read_text() == 'nothing'
