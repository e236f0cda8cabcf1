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
"""What all tests share."""

import gc
import os
import typing

# Before TensorFlow is imported: its start-up messages would drown a failure.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import pytest

from tests.preferred_ways import prefer_sweeps, without_sweeps
from tests.short_stacks import keep_short_stacks
from tfp_diag import clear_cache
from tfp_diag.sparsity import registry

# Graphs are many small objects, which Python looks through for garbage after
# every 700 of them by default: a tenth of the time of these tests.
gc.set_threshold(20_000, 20, 20)
keep_short_stacks()

# Those that take longest start first, so that no worker ends alone with one.
_SLOWEST = [
  'notebooks_test.py',
  'main_test.py',
  'mcmc/run/windowed_adaptive_mala_test.py',
  'mcmc/kernels/many_devices_test.py',
  'mcmc/kernels/kernel_laws_test.py',
  'mcmc/run/sample_many_devices_test.py',
  'mcmc/adapt/diagonal_preconditioner_adaptation_test.py',
  'mcmc/kernels/tfp_composition_test.py',
  'mcmc/kernels/local_hessian_preconditioner_test.py',
  'mcmc/kernels/preconditioned_mala_test.py',
]


def pytest_collection_modifyitems(items):
  def place(item):
    path = item.path.as_posix()
    for i, name in enumerate(_SLOWEST):
      if path.endswith(f'/tests/{name}'):
        return i
    return len(_SLOWEST)

  items.sort(key=place)


# A change is judged by what it does, not by which programs were drawn; what is
# new is looked for in runs with --fuzz-seconds. Programs of this seed have all
# steps in them.
FUZZ_SEED = 20261317


class Fuzz(typing.NamedTuple):
  """Which random programs are tried, and for how long."""

  seed: int
  seconds: float | None


def pytest_addoption(parser):
  group = parser.getgroup('random programs')
  group.addoption(
    '--fuzz-seed',
    type=int,
    help=f'default: {FUZZ_SEED}, or a new one with --fuzz-seconds',
  )
  group.addoption(
    '--fuzz-seconds', type=float, help='how long; default: 200 programs'
  )


def pytest_configure(config):
  # Workers are handed the options of the process that starts them.
  option = config.option
  if option.fuzz_seed is None:
    new = int(np.random.SeedSequence().entropy % 2**32)
    option.fuzz_seed = FUZZ_SEED if option.fuzz_seconds is None else new


def pytest_report_header(config):
  return f'random programs: --fuzz-seed {config.option.fuzz_seed}'


@pytest.fixture
def fuzz(request):
  option = request.config.option
  return Fuzz(option.fuzz_seed, option.fuzz_seconds)


@pytest.fixture(autouse=True)
def no_patched_graph_is_remembered(request):
  """What a test patches is traced anew, and forgotten with the patch."""
  if 'monkeypatch' not in request.fixturenames:
    yield
    return
  clear_cache()
  yield
  clear_cache()


@pytest.fixture
def no_rule_left_behind():
  """Forgets the rules that a test registers."""
  tables = registry._RULES, registry._EXPANSIONS, registry._FACTS
  before = [dict(table) for table in tables]
  yield
  for table, known in zip(tables, before):
    table.clear()
    table.update(known)


@pytest.fixture(name='without_sweeps')
def fixture_without_sweeps(monkeypatch):
  """See `preferred_ways`."""
  without_sweeps(monkeypatch)


@pytest.fixture
def prefers_sweeps(monkeypatch):
  """See `preferred_ways`."""
  prefer_sweeps(monkeypatch)
