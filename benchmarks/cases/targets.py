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
"""Densities to sample from, started in equilibrium."""

import numpy as np

from benchmarks.cases.case import Case

__all__ = ['standard_normal']


def standard_normal(d=100, chains=64):
  """The start of a case is a draw from it, so every later state is one, too."""

  def log_prob(ops, x, scale):
    return -0.5 * scale * ops.sum(x**2, 1)

  name = f'standard normal d = {d:,}, {chains:,} chains'
  return Case(name, chains, (d,), log_prob, np.ones_like, kind='target')
