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
"""What a run of a sampler is worth, and several runs together."""

import statistics

import numpy as np

from tfp_diag import mcmc

__all__ = ['CONVERGED', 'of_run', 'of_runs']

# The largest R-hat of draws whose effective sample size means something.
CONVERGED = 1.05


def of_run(drawn, model, truth, seconds):
  """Figures of one run.

  Args:
    drawn: A `Drawn`.
    model: A `Model`.
    truth: `Moments`, or None where they are not known.
    seconds: Python float, of the whole run.

  Returns:
    Dict of floats: the worst of all coordinates.
  """
  draws = drawn.draws
  if model.axes is not None:
    # What has not moved along an axis hides in coordinates that mix them.
    draws = draws @ model.axes
  summary = mcmc.summarize(draws)
  squares = np.square(draws - summary.mean)
  total = drawn.gradients_warmup + drawn.gradients
  seconds_warmup = drawn.seconds_warmup
  if seconds_warmup is None:
    seconds_warmup = seconds * drawn.gradients_warmup / total
  return {
    'r_hat': float(np.max(np.nan_to_num(summary.r_hat, nan=np.inf))),
    'ess_bulk': _least(summary.ess_bulk),
    'ess_tail': _least(summary.ess_tail),
    'ess_squares': _least(mcmc.ess(squares, kind='mean')),
    'acceptance': drawn.acceptance,
    'gradients_warmup': float(drawn.gradients_warmup),
    'gradients': float(drawn.gradients),
    'seconds_warmup': seconds_warmup,
    'seconds': seconds,
    **_errors(summary, truth),
  }


def _least(sizes):
  return float(np.min(np.nan_to_num(sizes)))


def _errors(summary, truth):
  """Distances from the truth in Monte Carlo standard errors."""
  if truth is None:
    return {}
  z_mean = (summary.mean - truth.mean) / np.hypot(
    summary.mcse_mean, truth.mean_error
  )
  z_sd = (summary.sd - truth.sd) / np.hypot(summary.mcse_sd, truth.sd_error)
  z_sd = z_sd[np.isfinite(truth.sd)]
  return {
    'z_mean': _largest(z_mean),
    'z_mean_rms': float(np.sqrt(np.mean(z_mean**2))),
    'z_sd': _largest(z_sd),
    'z_sd_rms': float(np.sqrt(np.mean(z_sd**2))),
  }


def _largest(z):
  # NaN is what did not move.
  return float(np.max(np.nan_to_num(np.abs(z), nan=np.inf)))


def of_runs(runs):
  """Medians over seeds.

  The first run compiles: of its time, what it takes beyond what its gradients
  take in the other runs is compilation.

  Args:
    runs: List of the dicts of `of_run`.

  Returns:
    Dict with the medians of their figures, but the largest R-hat; 'compile_s'
    (None of a single run, whose seconds compilation is a part of); gradients
    and seconds per effective draw, 'with_warmup' and 'without_warmup'.
  """
  timed = runs[1:] or runs
  found = {
    key: statistics.median(run[key] for run in runs)
    for key in runs[0]
    if not key.startswith('seconds')
  }
  for key in ('seconds', 'seconds_warmup'):
    found[key] = statistics.median(run[key] for run in timed)
  # One seed that fails is a failure.
  found['r_hat'] = max(run['r_hat'] for run in runs)
  found['compile_s'] = None
  if len(runs) > 1:
    pace = statistics.median(run['seconds'] / _gradients(run) for run in timed)
    seconds = runs[0]['seconds'] - pace * _gradients(runs[0])
    found['compile_s'] = max(0.0, seconds)
  for what, of_these in (('gradients', runs), ('seconds', timed)):
    whole, without = [], []
    for run in of_these:
      warmup, rest = run[f'{what}_warmup'], run[what]
      if what == 'seconds':
        rest -= warmup  # Seconds are those of the whole run.
      size = min(run['ess_bulk'], run['ess_squares'])
      whole.append(_over(warmup + rest, size))
      without.append(_over(rest, size))
    found[f'{what}_per_draw'] = {
      'with_warmup': statistics.median(whole),
      'without_warmup': statistics.median(without),
      'least': min(whole),
      'most': max(whole),
    }
  return found


def _gradients(run):
  return run['gradients_warmup'] + run['gradients']


def _over(a, b):
  return a / b if b > 0 else float('inf')
