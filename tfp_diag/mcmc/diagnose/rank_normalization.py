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
"""Draws as normal scores of their ranks."""

import numpy as np
import scipy.special
import scipy.stats

__all__ = ['folded', 'normal_scores', 'split_chains']


def split_chains(draws):
  """Makes two chains of each: its first and its second half.

  Of an odd number of draws the one in the middle is left out.

  Args:
    draws: Array [draw, chain, parameter].

  Returns:
    Array [draw // 2, 2 * chain, parameter].
  """
  half = len(draws) // 2
  return np.concatenate([draws[:half], draws[len(draws) - half :]], axis=1)


def normal_scores(draws):
  """Replaces draws by normal quantiles of their ranks over all chains.

  Vehtari et al. (2021), equation (14), with average ranks for ties.

  Args:
    draws: Array [draw, chain, parameter].

  Returns:
    float64 array of the same shape.
  """
  flat = draws.reshape([-1, draws.shape[-1]])
  ranks = scipy.stats.rankdata(flat, axis=0)
  scores = scipy.special.ndtri((ranks - 0.375) / (len(flat) + 0.25))
  return scores.reshape(draws.shape)


def folded(draws):
  """Distances from the median: what shows where scales differ.

  Args:
    draws: Array [draw, chain, parameter].

  Returns:
    Array of the same shape.
  """
  return np.abs(draws - np.median(draws, axis=(0, 1)))
