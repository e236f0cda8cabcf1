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
import scipy.special

EssKind = Literal['bulk', 'tail', 'mean', 'sd']
ESS_KINDS = get_args(EssKind)

# Both halves of a chain need a variance.
LEAST_DRAWS = 4
_TAIL = (0.05, 0.95)

# Standard errors that are added.
_LASTING = {'lasting': 2.0, 'lasting_at_least': -2.0}
# They compare chains.
OF_SEVERAL = ('r_hat', *_LASTING)

# 32 MiB of draws; the Fourier transforms take four times as much.
_NUMBERS_AT_A_TIME = 2**22


def convergence(draws, kinds):
  """R-hat and effective sample sizes of every parameter.

  Args:
    draws: Array [draw, chain, parameter].
    kinds: Sequence of Python `str`s: 'r_hat', 'lasting', 'lasting_at_least',
      or some of `ESS_KINDS`. 'lasting' is how large R-hat at most stays in
      longer chains: of what the first and the second halves of chains have in
      common.

  Returns:
    Dict from each of them to a float64 array [parameter]. NaN if there are
    fewer than four draws, if one of them is not finite, if all are the same, or
    for R-hat of a single chain. If no chain moved, but they are at different
    places, R-hat is infinite and the effective sample sizes are NaN.
  """
  num_draws, num_chains, _ = draws.shape
  values = {kind: [] for kind in kinds}
  possible = [k for k in kinds if k not in OF_SEVERAL or num_chains > 1]
  for some in in_groups(draws):
    found = {kind: np.full([some.shape[-1]], np.nan) for kind in kinds}
    if num_draws >= LEAST_DRAWS and possible:
      is_finite = np.all(np.isfinite(some), axis=(0, 1))
      moved = np.any(some != some[:1], axis=(0, 1))
      if 'r_hat' in possible:
        differs = np.any(some != some[:, :1], axis=(0, 1))
        found['r_hat'][is_finite & ~moved & differs] = np.inf
      usable = is_finite & moved
      if np.any(usable):
        for kind, value in _by_arviz_stats(some[..., usable], possible).items():
          found[kind][usable] = value
    for kind, value in found.items():
      values[kind].append(value)
  return {kind: np.concatenate(value) for kind, value in values.items()}


def of_events(values, kind):
  """As `convergence`, of an array [draw, chain, event...]: one of the event."""
  flat = values.reshape([*values.shape[:2], -1])
  return convergence(flat, [kind])[kind].reshape(values.shape[2:])


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


def _by_arviz_stats(draws, kinds):
  """What Vehtari et al. (2021) define, for draws that are finite and moved.

  Rank-normalized scores are made here: for R-hat and the bulk together, where
  arviz-stats would make those of the draws twice.
  """
  # It loads pandas and xarray where they are: half a second.
  from arviz_stats.base.array import array_stats

  def r_hat(chains):
    return array_stats.rhat(chains, method='split', chain_axis=1, draw_axis=2)

  def ess(chains, method='mean', prob=None):
    return array_stats.ess(
      chains, method=method, prob=prob, chain_axis=1, draw_axis=2
    )

  found = {}
  chains = np.ascontiguousarray(np.transpose(draws, [2, 1, 0]))
  # Scores may be constant within half-chains.
  with np.errstate(divide='ignore', invalid='ignore'):
    if {*OF_SEVERAL, 'bulk'} & set(kinds):
      halves = _without_middle(chains)
      scores = _scores(halves)
    if 'bulk' in kinds:
      found['bulk'] = ess(scores)
    if set(OF_SEVERAL) & set(kinds):
      median = np.median(halves, axis=(1, 2), keepdims=True)
      folded = _scores(np.abs(halves - median))
    # Distances from the median may all be the same, the places not.
    if 'r_hat' in kinds:
      found['r_hat'] = np.fmax(r_hat(scores), r_hat(folded))
    for kind in _LASTING.keys() & set(kinds):
      found[kind] = np.fmax(
        *(_lasting(x, _LASTING[kind]) for x in (scores, folded))
      )
    if 'tail' in kinds:
      found['tail'] = ess(chains, 'tail', _TAIL)
    if 'mean' in kinds or 'sd' in kinds:
      # What varies by less than 1e-15 is constant for arviz-stats.
      centered = chains - np.mean(chains, axis=(1, 2), keepdims=True)
      centered /= np.max(np.abs(centered), axis=(1, 2), keepdims=True)
    if 'mean' in kinds:
      found['mean'] = ess(centered)
    if 'sd' in kinds:
      # Releases of arviz-stats before 0.6 mean something else by 'sd'.
      found['sd'] = ess(centered**2)
  return found


def _lasting(chains, num_errors):
  """What R-hat comes to by what lasts, some standard errors up.

  Means of halves of chains vary while chains are short, those of one chain
  independently of each other but for a few draws where they meet. What chains
  disagree on both have in common.

  Args:
    chains: Array [parameter, chain, draw].
    num_errors: Python `float`.

  Returns:
    Array [parameter].
  """
  halves = np.stack(np.split(chains, 2, axis=-1))
  means = np.mean(halves, axis=-1)
  means -= np.mean(means, axis=-1, keepdims=True)
  within = np.mean(np.var(halves, axis=-1, ddof=1), axis=(0, 2))
  common = means[0] * means[1]
  error = np.std(common, axis=-1) / np.sqrt(common.shape[-1])
  between = np.mean(common, axis=-1) + num_errors * error
  return np.sqrt(1.0 + np.maximum(between, 0.0) / within)


def _without_middle(chains):
  """What the halves of chains [parameter, chain, draw] have together."""
  half, is_odd = divmod(chains.shape[-1], 2)
  return np.delete(chains, half, axis=-1) if is_odd else chains


def _scores(chains):
  """Rank-normalized draws [parameter, chain, draw] (Vehtari et al., 2021, 14).

  As `scipy.stats.rankdata` and `norm.ppf` would make them, in a third of the
  time: what is equal has one score, whatever its order, so that the sorting
  need not be stable.
  """
  scores = np.empty_like(chains)
  for some, out in zip(chains, scores.reshape([len(chains), -1])):
    values = some.ravel()
    order = np.argsort(values)
    values = values[order]
    first = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    counts = np.diff(first, append=values.size)
    ranks = first + 0.5 * (counts + 1)
    quantiles = (ranks - 0.375) / (values.size + 0.25)
    out[order] = np.repeat(scipy.special.ndtri(quantiles), counts)
  return scores
