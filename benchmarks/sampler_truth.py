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
"""Draws beside the truth, for targets of inference-gym.

    python -m benchmarks.sampler_truth [--quick] [--target NAME] [--seeds N]
      [--json FILE]

Each target is sampled by `sample_posterior` with default options: 64 chains
that start uniformly on (-2, 2) in the unconstrained space, where the density is
finite. The error of an average over the draws comes from the spread of the
chains' own averages (the chains are independent), and is combined with the
standard error of the truth. A run holds if the means and the standard
deviations of all k statistics are right and no R-hat reaches 1.01. Right is
what is within 4 errors, corrected for 2 k of them (Bonferroni) and for errors
that come from 64 chains (Student's t): runs of a sampler without a fault fail
once in 16,000. Exit status 1 if a run fails.

Errors of standard deviations by the delta method are too small where tails are
heavy.
"""

import argparse
import sys
import time
import warnings

import numpy as np
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.results import Results
from benchmarks.truth_cases import CASES, load
from tfp_diag import mcmc

__all__ = ['compare', 'most_z', 'run']

tfd = tfp.distributions

NUM_CHAINS = 64
NUM_DRAWS = 1000
MOST_R_HAT = 1.01
# Of one normal number, beyond 4.
RATE = 2.0 * scipy.stats.norm.sf(4.0)

COLUMNS = (
  ('target', '{:22s}'),
  ('seed', '{:>4d}'),
  ('d', '{:>4d}'),
  ('scale', '{:>9s}'),
  ('z_mean', '{:>7.2f}'),
  ('z_sd', '{:>7.2f}'),
  ('most_z', '{:>7.2f}'),
  ('r_hat', '{:>7.3f}'),
  ('min_ess', '{:>8.0f}'),
  ('gradients', '{:>10.2g}'),
  ('seconds', '{:>8.1f}'),
)


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.sampler_truth',
    description='Compares draws with the truth of inference-gym.',
  )
  parser.add_argument(
    '--quick',
    action='store_true',
    help='a tenth of the draws: judges nothing but that it all works',
  )
  parser.add_argument(
    '--target',
    metavar='NAME',
    action='append',
    choices=sorted(CASES),
    help='one of %(choices)s; may be repeated',
  )
  parser.add_argument(
    '--seeds', type=int, default=3, help='runs of each (%(default)s)'
  )
  parser.add_argument(
    '--json',
    metavar='FILE',
    help='keep all figures, each run as soon as it is there; the targets of '
    'an earlier run that are not sampled now stay',
  )
  options = parser.parse_args(words)
  rows = run(
    options.target, options.quick, options.seeds, Results(options.json)
  )
  if options.quick:
    print('\nToo few draws to judge by.')
    return 0
  failed = [name for name, row in rows.items() if not row['holds']]
  print(f'\n{len(rows) - len(failed)} targets hold')
  if failed:
    print(f'fall short: {", ".join(failed)}')
  return 1 if failed else 0


def run(names=None, quick=False, seeds=3, results=None):
  """Samples the targets, and prints a line about each run.

  Args:
    names: List of names of `CASES`, or None for all.
    quick: Python `bool`: a tenth of the draws.
    seeds: Python `int`, how many runs.
    results: `Results` that keep each run, or None.

  Returns:
    Dict of the rows of the targets: 'runs', and whether all of them hold.
  """
  results = results or Results()
  rows = {}
  print(heading(), flush=True)
  for name in names or CASES:
    case = CASES[name]
    try:
      truth = load(case)
    except ModuleNotFoundError as error:
      raise SystemExit(
        f'{error}. The targets are those of inference-gym: pip install '
        "'.[benchmarks]'"
      ) from error
    runs = []
    num_draws = NUM_DRAWS // 10 if quick else NUM_DRAWS
    for seed in range(1, seeds + 1):
      begin = time.perf_counter()
      draws, found = _sample(case, truth, num_draws, seed)
      runs.append(
        {
          'target': name,
          'seed': seed,
          'd': truth.num_coordinates,
          'scale': found.warm_up.scale.kind,
          **compare(draws, truth),
          'gradients': NUM_CHAINS
          * (found.num_gradients + found.num_gradients_warmup),
          'seconds': time.perf_counter() - begin,
        }
      )
      print(line(runs[-1]), flush=True)
      rows[name] = {
        'runs': runs,
        'holds': len(runs) == seeds and all(r['holds'] for r in runs),
        'quick': quick,
        'num_chains': NUM_CHAINS,
        'num_draws': num_draws,
        'note': case.note,
      }
      results.data.setdefault('truth', {})[name] = rows[name]
      results.add_seconds(runs[-1]['seconds'])
    if case.note:
      print(f'  {case.note}', flush=True)
  return rows


def _sample(case, truth, num_draws, seed):
  """Draws of the statistics, [draws, chains, k], and what was found."""
  near_zero = tfd.Sample(
    tfd.Uniform(tf.constant(-2.0, truth.dtype), 2.0), truth.num_coordinates
  )
  # Drawn again where the density overflows, as for a model.
  start = tfp.experimental.mcmc.retry_init(
    near_zero.sample,
    target_fn=tf.function(truth.log_prob, autograph=False),
    sample_shape=[NUM_CHAINS],
    seed=(seed, 0),
  )
  with warnings.catch_warnings():
    # What is wrong is in the table.
    warnings.simplefilter('ignore', UserWarning)
    found = mcmc.sample_posterior(
      truth.log_prob,
      num_draws,
      init=start,
      seed=seed,
      jit_compile=case.jit_compile,
    )
  statistics = tf.function(truth.statistics, autograph=False)
  values = [statistics(tf.constant(draw)).numpy() for draw in found.draws]
  return np.array(values, np.float64), found


def most_z(num_statistics):
  """How many errors a mean or a standard deviation may be off."""
  each = RATE / (2 * num_statistics)
  return float(scipy.stats.t.isf(each / 2, NUM_CHAINS - 1))


def compare(draws, truth):
  """Draws beside what is known.

  Args:
    draws: Array [draws, chains, k] of the statistics.
    truth: A `Truth`.

  Returns:
    Dict with the largest z of the means and of the standard deviations, where
    they are, how large they may be, the largest R-hat, the smallest effective
    sample size, and whether the run holds.
  """
  draws = np.asarray(draws, np.float64)
  mean, mcse = _average(draws)
  z_mean = np.abs(mean - truth.mean) / np.hypot(mcse, truth.mean_error)
  # The second moment about the true mean; its root by the delta method.
  square, square_mcse = _average((draws - truth.mean) ** 2)
  sd = np.sqrt(square)
  z_sd = np.abs(sd - truth.sd) / np.hypot(
    0.5 * square_mcse / sd, truth.sd_error
  )
  r_hat = float(np.max(mcmc.rhat(draws)))
  most = most_z(len(truth.names))
  is_right = np.max(z_mean) < most and np.max(z_sd) < most
  return {
    'z_mean': float(np.max(z_mean)),
    'worst_mean': truth.names[int(np.argmax(z_mean))],
    'z_mean_rms': float(np.sqrt(np.mean(z_mean**2))),
    'z_sd': float(np.max(z_sd)),
    'worst_sd': truth.names[int(np.argmax(z_sd))],
    'most_z': most,
    'r_hat': r_hat,
    'min_ess': float(np.min(mcmc.ess(draws))),
    'holds': bool(is_right and r_hat < MOST_R_HAT),
  }


def _average(values):
  """Over draws and chains, and its error from the averages of the chains."""
  of_chains = values.mean(0)
  error = of_chains.std(0, ddof=1) / np.sqrt(of_chains.shape[0])
  return of_chains.mean(0), error


def heading():
  words = [
    template.replace('d}', 's}').format(name)
    if 'f}' not in template and 'g}' not in template
    else '{:>{}s}'.format(name, template.split('>')[1].split('.')[0])
    for name, template in COLUMNS
  ]
  return ' '.join(words)


def line(row):
  words = [template.format(row[name]) for name, template in COLUMNS]
  words.append('holds' if row['holds'] else 'FAILS')
  return ' '.join(words)


if __name__ == '__main__':
  sys.exit(main())
