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
"""Processes of their own, and their limits."""

import pytest

from benchmarks.contest import contest, one_answer
from benchmarks.processes import Limits, Servers

CASE = ['chain', [4, 2]]


@pytest.fixture(scope='module')
def servers():
  with Servers() as servers:
    yield servers


def test_a_contest(servers):
  seen = []
  tools = ['one gradient', 'tfp_diag, graph', 'batch_jacobian, graph']
  results = contest(
    servers,
    CASE,
    tools,
    Limits(seconds=120.0, gib=8.0),
    rounds=2,
    seen=lambda tool, result: seen.append((tool, result)),
  )
  assert sorted(tool for tool, _ in seen) == sorted(tools)
  for tool, result in seen:
    assert result is results[tool]
    assert result['status'] == 'ready', result
    assert len(result['seconds']) == 2
    assert min(result['seconds']) <= result['median_s'] <= 1.0
    assert result['memory_gib'] < 8.0
  assert results['tfp_diag, graph']['relative_error'] < 1e-5
  assert results['tfp_diag, graph']['passes'] == 1


def test_limits(servers):
  arguments = {'case': CASE, 'tool': 'tfp_diag, graph'}
  late = one_answer(servers, 'race', arguments, Limits(seconds=0.01))
  assert late == {'status': 'too slow', 'reason': 'no answer within 0.01 s'}
  large = one_answer(
    servers, 'race', arguments, Limits(seconds=120.0, gib=0.001)
  )
  assert large['status'] == 'too much memory'


def test_what_fails_says_why(servers):
  arguments = {'case': ['chain', [4, 'many']], 'tool': 'tfp_diag, graph'}
  failed = one_answer(servers, 'race', arguments, Limits(seconds=120.0))
  assert failed['status'] == 'failed'
  assert failed['reason'].startswith('TypeError: ')
