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

import json
import pathlib
import re

import pytest

from benchmarks import tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def blocks(language):
  return re.findall(rf'^```{language}\n(.*?)^```', README, re.DOTALL | re.M)


@pytest.mark.parametrize('number', range(len(blocks('python'))))
def test_python_blocks_run_and_print_what_they_say(number, capsys):
  block = blocks('python')[number]
  exec(compile(block, 'README.md', 'exec'), {})
  # What stands below the printing of a plan.
  said = re.findall(r'^# (.*)\n', block.partition('print(plan)\n')[2], re.M)
  if said:
    assert capsys.readouterr().out.splitlines() == said


def test_the_table_is_that_of_the_run():
  file = ROOT / 'benchmarks' / 'results.json'
  data = json.loads(file.read_text(encoding='utf-8'))
  assert tables.of_cases(data).strip() in README


def test_the_two_commands_are_there_once():
  lines = ''.join(blocks('sh')).splitlines()
  for ending in ('python -m tfp_diag', 'pytest'):
    pattern = rf"pip install '\.\[\w+\]' && {ending}"
    assert sum(re.fullmatch(pattern, line) is not None for line in lines) == 1


def test_the_extras_exist():
  setup = (ROOT / 'setup.py').read_text(encoding='utf-8')
  for extra in re.findall(r"'\.\[(\w+)\]'", README):
    assert f"'{extra}': " in setup


def test_the_files_exist():
  table = README[README.index('## Map of the files') :]
  for cell in re.findall(r'^\| ([^|]+) \|', table, re.M):
    folder = ROOT
    for name in re.findall('`([^`]+)`', cell):
      # Those that follow are beside the first.
      path = ROOT / name if '/' in name else folder / name
      assert path.exists(), name
      folder = path.parent


def test_the_tests_that_are_named_exist():
  table = README[README.index('## What it has of its neighbors') :]
  table = table[: table.index('## Measured')]
  for cell in re.findall(r'\| ([^|]+) \|$', table, re.M)[1:]:
    for name in re.findall('`([^`]+)`', cell):
      assert (ROOT / 'tests' / name).exists(), name
