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
"""What README.md shows runs, and what it names is there."""

import pathlib
import re

import pytest

from tests import written_examples

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def test_the_example_runs_and_prints_what_it_says():
  (block,) = written_examples.blocks(README, 'python')
  assert written_examples.run([block], {}) == 1


def test_the_two_commands_are_there_once():
  lines = ''.join(written_examples.blocks(README, 'sh')).splitlines()
  for ending in ('python -m tfp_diag', 'pytest'):
    pattern = rf"pip install '\.\[\w+\]' && {ending}"
    assert sum(re.fullmatch(pattern, line) is not None for line in lines) == 1


def test_the_figures_are_those_of_the_notebook():
  said = re.search(r'\s(\d+) gradients .*? and (\d+)\s', README, re.DOTALL)
  notebook = ROOT / 'notebooks' / '07_where_curvature_pays.ipynb'
  costs = re.findall(
    r'draw: +([\d.]+) \(warm-up\) \+ ([\d.]+)',
    notebook.read_text(encoding='utf-8'),
  )
  found = [round(sum(map(float, parts))) for parts in costs[:2]]
  assert [int(number) for number in said.groups()] == found


def test_it_stays_short():
  assert len(README.splitlines()) <= 90


@pytest.mark.parametrize('target', re.findall(r'\]\(([^)]+)\)', README))
def test_links_lead_to_files(target):
  assert (ROOT / target).exists()
