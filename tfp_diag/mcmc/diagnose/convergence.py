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
"""R-hat and effective sample sizes of many parameters, by arviz-stats."""

from typing import Literal, get_args

import numpy as np

EssKind = Literal['bulk', 'tail', 'mean', 'sd']
ESS_KINDS = get_args(EssKind)

# Both halves of a chain need a variance.
LEAST_DRAWS = 4
_TAIL = (0.05, 0.95)

# 32 MiB of draws; the Fourier transforms take four times as much.
_NUMBERS_AT_A_TIME = 2**22


def convergence(draws, kind):
  """R-hat or an effective sample size of every parameter.

  Args:
    draws: Array [draw, chain, parameter].
    kind: Python `str`: 'r_hat' or one of `ESS_KINDS`.

  Returns:
    float64 array [parameter]. NaN if there are fewer than four draws, if one of
    them is not finite, if all are the same, or for R-hat of a single chain. If
    no chain moved, but they are at different places, R-hat is infinite and the
    effective sample size is NaN.
  """
  num_draws, num_chains, _ = draws.shape
  is_possible = num_draws >= LEAST_DRAWS and (kind != 'r_hat' or num_chains > 1)
  values = []
  for some in in_groups(draws):
    found = np.full([some.shape[-1]], np.nan)
    if is_possible:
      is_finite = np.all(np.isfinite(some), axis=(0, 1))
      moved = np.any(some != some[:1], axis=(0, 1))
      if kind == 'r_hat':
        differs = np.any(some != some[:, :1], axis=(0, 1))
        found[is_finite & ~moved & differs] = np.inf
      usable = is_finite & moved
      if np.any(usable):
        found[usable] = _by_arviz_stats(some[..., usable], kind)
    values.append(found)
  return np.concatenate(values)


def of_events(values, kind):
  """As `convergence`, of an array [draw, chain, event...]: one of the event."""
  flat = values.reshape([*values.shape[:2], -1])
  return convergence(flat, kind).reshape(values.shape[2:])


def in_groups(draws):
  """Yields some parameters at a time, in float64: bounds the memory.

  Args:
    draws: Array [draw, chain, parameter].

  Yields:
    Arrays [draw, chain, some of the parameters], one at least.
  """
  num_draws, num_chains, num_parameters = draws.shape
  size = max(1, _NUMBERS_AT_A_TIME // max(1, num_draws * num_chains))
  for i in range(0, max(1, num_parameters), size):
    yield draws[:, :, i : i + size].astype(np.float64)


def _by_arviz_stats(draws, kind):
  """What Vehtari et al. (2021) define, for draws that are finite and moved."""
  # It loads pandas and xarray where they are: half a second.
  from arviz_stats.base.array import array_stats

  if kind in ('mean', 'sd'):
    # What varies by less than 1e-15 is constant for arviz-stats.
    draws = draws - np.mean(draws, axis=(0, 1))
    draws = draws / np.max(np.abs(draws), axis=(0, 1))
  if kind == 'sd':
    # Its releases before 0.6 mean something else by 'sd'.
    draws, kind = draws**2, 'mean'
  chains = np.ascontiguousarray(np.transpose(draws, [2, 1, 0]))
  # Scores may be constant within half-chains.
  with np.errstate(divide='ignore', invalid='ignore'):
    if kind == 'r_hat':
      return array_stats.rhat(chains, method='rank', chain_axis=1, draw_axis=2)
    prob = _TAIL if kind == 'tail' else None
    return array_stats.ess(
      chains, method=kind, prob=prob, chain_axis=1, draw_axis=2
    )
