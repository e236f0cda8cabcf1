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
"""The file of a run: one JSON object, complete at every moment."""

import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform

from tfp_diag.internal.atomic_write import atomic_write

__all__ = ['Results', 'about', 'in_json']

PACKAGES = (
  'tfp-diag',
  'tensorflow',
  'tensorflow-probability',
  'tf-keras',
  'jax',
  'asdex',
  'folx',
  'blackjax',
  'numpyro',
  'nutpie',
  'torch',
  'numpy',
)


class Results:
  """Cells by group, row and tool, written after each.

  The groups are 'cases' and 'structures', rows by the name of a case, and
  'samplers' and 'zoo', rows by the name of a target or a model. A row is a dict
  that says what it is, with its cells under 'tools'.
  """

  def __init__(self, path=None, go_on=True):
    self._path = path and pathlib.Path(path)
    self.data = {'about': about() | {'wall_s': 0}}
    if go_on and self._path and self._path.exists():
      before = json.loads(self._path.read_text(encoding='utf-8'))
      # Of several runs, the versions of the last.
      self.data = before | self.data
      self.data['about']['wall_s'] = before['about'].get('wall_s', 0)

  def row(self, group, name, **what):
    """A row, made if there is none."""
    row = self.data.setdefault(group, {}).setdefault(name, {'tools': {}})
    row.update(what)
    return row

  def has(self, group, name, tool):
    """Whether a cell is there."""
    return tool in self.data.get(group, {}).get(name, {}).get('tools', {})

  def add_seconds(self, seconds):
    """Adds to the time that the file has taken."""
    self.data['about']['wall_s'] += round(seconds)
    self.write()

  def put(self, group, name, tool, result):
    """Keeps a cell."""
    self.row(group, name)['tools'][tool] = result
    self.write()

  def write(self):
    """Writes beside the file and moves: it is whole or the one before."""
    if self._path is None:
      return
    with atomic_write(self._path) as file:
      file.write((json.dumps(self.data, indent=1) + '\n').encode())


def about():
  """Versions, machine and date."""
  return {
    'date': datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    'python': platform.python_version(),
    'versions': {name: _version(name) for name in PACKAGES},
    'machine': {
      'system': platform.system(),
      'architecture': platform.machine(),
      'cores': _cores(),
      'memory_gib': _memory_gib(),
    },
  }


def in_json(figures):
  """The same with None for NaN and infinities, which JSON does not have."""
  if isinstance(figures, dict):
    return {key: in_json(value) for key, value in figures.items()}
  if isinstance(figures, list):
    return [in_json(value) for value in figures]
  if isinstance(figures, float) and not math.isfinite(figures):
    return None
  return figures


def _version(name):
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None


def _cores():
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count()


def _memory_gib():
  if 'SC_PHYS_PAGES' not in os.sysconf_names:
    return None
  total = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  return round(total / 2**30)
