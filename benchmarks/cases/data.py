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
"""What cases are made of: rounded data, features of rows, sums by group."""

import numpy as np

__all__ = ['features', 'rounded', 'sums_by_group']


def rounded(values):
  """Numbers of float32, held in float64: the same ones for every tool."""
  return np.asarray(values, np.float32).astype(np.float64)


def features(rng, num_rows, num_inputs):
  """Rows of features, each of a length of about one."""
  normal = rng.standard_normal((num_rows, num_inputs))
  return rounded(normal / np.sqrt(num_inputs))


def sums_by_group(values, group, num_groups):
  """Sums over the last axis of what belongs to each group."""
  rows = values.reshape(-1, group.size)
  sums = [np.bincount(group, row, num_groups) for row in rows]
  return np.reshape(sums, (*values.shape[:-1], num_groups))
