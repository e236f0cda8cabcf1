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

import os

# Before TensorFlow is imported: its start-up messages would drown a failure.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import pytest

from tfp_diag.sparsity import registry


@pytest.fixture
def no_rule_left_behind():
  """Forgets the rules that a test registers."""
  tables = registry._RULES, registry._EXPANSIONS, registry._FACTS
  before = [dict(table) for table in tables]
  yield
  for table, known in zip(tables, before):
    table.clear()
    table.update(known)
