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
"""Programs for other machines are written; their figures are in the docs."""

import gzip
import json
import pathlib

import numpy as np
import tensorflow as tf

from benchmarks import gpu_tables, xla_programs

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_programs_are_written(tmp_path, monkeypatch):
  # The documented command turns it off for its own process.
  enabled = tf.config.experimental.tensor_float_32_execution_enabled()
  try:
    xla_programs.main([str(tmp_path), '--quick', '--only', 'phi4'])
  finally:
    tf.config.experimental.enable_tensor_float_32_execution(enabled)
  index = json.loads((tmp_path / 'programs.json').read_text())
  assert [about['tool'] for about in index['programs'].values()] == [
    'one gradient',
    'tfp_diag',
  ]
  for name in index['programs']:
    hlo = gzip.decompress((tmp_path / f'{name}.hlo.gz').read_bytes())
    assert b'while' in hlo
    # What the program takes after the state and the count: nothing here.
    assert np.load(tmp_path / f'{name}.npz').files == []


def test_the_figures_of_the_docs_are_those_measured():
  data = json.loads((ROOT / 'benchmarks/gpu.json').read_text())
  page = (ROOT / 'docs/pages/benchmarks.md').read_text(encoding='utf-8')
  for table in (
    gpu_tables.of_diagonals,
    gpu_tables.of_steps,
    gpu_tables.of_posteriors,
  ):
    assert table(data) in page
