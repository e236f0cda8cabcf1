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
"""R-hat and effective sample sizes, through arviz or through TFP."""

import importlib.util
from typing import Literal, get_args

import numpy as np
import scipy.fft
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.internal import arguments
from tfp_diag.mcmc.diagnose.arviz_module import arviz_module
from tfp_diag.mcmc.diagnose.rank_normalization import (
  folded,
  normal_scores,
  split_chains,
)

__all__ = [
  'BACKENDS',
  'ESS_KINDS',
  'LEAST_DRAWS',
  'Backend',
  'EssKind',
  'convergence',
  'in_groups',
]

Backend = Literal['auto', 'arviz', 'tfp']
EssKind = Literal['bulk', 'tail', 'mean', 'sd']
BACKENDS = get_args(Backend)
ESS_KINDS = get_args(EssKind)

# Both halves of a chain need a variance.
LEAST_DRAWS = 4
_TAIL = (0.05, 0.95)

# 32 MiB of draws; the Fourier transforms take four times as much.
_NUMBERS_AT_A_TIME = 2**22


def convergence(draws, kind, backend):
  """R-hat or an effective sample size of every parameter.

  Args:
    draws: Array [draw, chain, parameter].
    kind: Python `str`: 'r_hat' or one of `ESS_KINDS`.
    backend: Python `str`, one of `BACKENDS`: who computes. 'auto' is arviz
      where it is installed.

  Returns:
    float64 array [parameter]. NaN if there are fewer than four draws, if one of
    them is not finite, if all are the same, or for R-hat of a single chain. If
    no chain moved, but they are at different places, R-hat is infinite and the
    effective sample size is NaN.

  Raises:
    ValueError: if `backend` is none of them.
    ImportError: if `backend` is 'arviz' and it is not installed.
  """
  compute = _backend(backend)
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
        found[usable] = compute(some[..., usable], kind)
    values.append(found)
  return np.concatenate(values)


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


def _backend(backend):
  arguments.check_choice('backend', backend, BACKENDS)
  if backend == 'auto':
    backend = 'tfp' if importlib.util.find_spec('arviz') is None else 'arviz'
  return {'arviz': _by_arviz, 'tfp': _by_tfp}[backend]


def _by_arviz(draws, kind):
  arviz = arviz_module("`backend='arviz'` needs")
  columns = [
    np.ascontiguousarray(column.T) for column in np.moveaxis(draws, -1, 0)
  ]
  if kind == 'r_hat':
    return [float(arviz.rhat(column, method='rank')) for column in columns]
  prob = {'prob': _TAIL} if kind == 'tail' else {}
  return [float(arviz.ess(column, method=kind, **prob)) for column in columns]


def _by_tfp(draws, kind):
  """What Vehtari et al. (2021) define, for all parameters at once."""
  if kind == 'r_hat':
    halves = split_chains(draws)
    bulk = _r_hat(normal_scores(halves))
    return np.maximum(bulk, _r_hat(normal_scores(folded(halves))))
  if kind == 'bulk':
    return _ess(normal_scores(split_chains(draws)))
  if kind == 'tail':
    quantiles = np.quantile(draws, _TAIL, axis=(0, 1))
    below = [(draws <= q).astype(np.float64) for q in quantiles]
    return np.minimum(*(_ess(split_chains(x)) for x in below))
  if kind == 'sd':
    draws = (draws - np.mean(draws, axis=(0, 1))) ** 2
  return _ess(split_chains(draws))


def _r_hat(draws):
  """Vehtari et al. (2021), equation (4)."""
  num_draws, num_chains, _ = draws.shape
  ratio = tfp.mcmc.potential_scale_reduction(tf.constant(draws)).numpy()
  # TFP returns the square, with the correction of Brooks and Gelman (1998) for
  # the number of chains, which the thresholds for R-hat do not know.
  ratio += (num_draws - 1) / (num_draws * num_chains)
  return np.sqrt(ratio * num_chains / (num_chains + 1))


def _ess(draws):
  """Vehtari et al. (2021), equation (10); the truncation is Geyer's (1992).

  Not `tfp.mcmc.effective_sample_size`: it weights the share of the variance
  that is between the chains, too, by how many pairs of draws have a lag, and
  that is a quarter too much for 64 chains of 100 draws whose autocorrelation
  is 0.95.
  """
  num_draws, num_chains, _ = draws.shape
  covariance = _mean_autocovariance(draws)
  within = covariance[0] * num_draws / (num_draws - 1)
  total = covariance[0] + np.var(np.mean(draws, axis=0), axis=0, ddof=1)
  moves = np.ptp(draws, axis=(0, 1)) > 0
  correlation = 1 - (within - covariance) / np.where(moves, total, 1)
  correlation[0] = 1

  # Of a reversible chain, neighbors have positive and falling sums. What comes
  # after the first pair that has not is noise, as are the last lags.
  num_pairs = max(1, -(-(num_draws - 2) // 2))
  pairs = correlation[: 2 * num_pairs : 2] + correlation[1 : 2 * num_pairs : 2]
  positive = np.cumprod(pairs[:-1] > 0, axis=0)
  falling = np.minimum.accumulate(pairs[:-1], axis=0)
  last = 2 * np.sum(positive, axis=0, dtype=np.int64)
  after = np.take_along_axis(correlation, last[np.newaxis], axis=0)[0]
  time = 2 * np.sum(falling * positive, axis=0) - 1 + np.maximum(after, 0)

  # Antithetic draws may be worth more than there are, but not without limit:
  # the bound is Stan's. All count where nothing varies.
  size = num_draws * num_chains
  return np.where(moves, size / np.maximum(time, 1 / np.log10(size)), size)


def _mean_autocovariance(draws):
  """Averages over the chains, [lag, parameter], with a divisor for all lags."""
  num_draws = len(draws)
  length = scipy.fft.next_fast_len(2 * num_draws, real=True)
  spectrum = scipy.fft.rfft(draws - np.mean(draws, axis=0), length, axis=0)
  power = np.mean(spectrum.real**2 + spectrum.imag**2, axis=1)
  return scipy.fft.irfft(power, length, axis=0)[:num_draws] / num_draws
