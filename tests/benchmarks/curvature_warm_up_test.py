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
"""Warm-ups with and without curvature are compared, at a size for tests."""

import json

from benchmarks import curvature_warm_up


def test_both_are_measured(tmp_path, capsys):
  path = tmp_path / 'found.json'
  words = ['--quick', '--seeds', '1', '--json', str(path)]
  assert curvature_warm_up.main(words) == 0
  [row] = json.loads(path.read_text())['curvature'].values()
  first, second = row['tools'].values()
  # The first windows without a scale are full trajectories of tiny steps.
  assert first['gradients_per_draw'] < second['gradients_per_draw']
  table = capsys.readouterr().out
  assert f'{first["gradients_warmup"]:,.0f}' in table
  assert table.count('\n| logistic') == 1
