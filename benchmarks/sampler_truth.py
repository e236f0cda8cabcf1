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

    python -m benchmarks.sampler_truth [--quick] [--target NAME] [--json FILE]

Each target is sampled with 64 chains of preconditioned MALA, started at random,
whose step size and preconditioner adapt and are then frozen. The error of an
average over the draws comes from the spread of the chains' own averages (the
chains are independent), and is combined with the standard error of the truth. A
target holds if all of its means are within 4 such errors, and no split R-hat
exceeds 1.1. Exit status 1 if a target fails.

The z of the standard deviations is shown, but judges nothing: their errors are
those of a normal, and some of these densities have heavy tails.
"""

import argparse
import dataclasses
import sys
import time

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks.results import Results
from benchmarks.truth_cases import CASES, load
from tfp_diag import mcmc

__all__ = ['compare', 'run']

NUM_CHAINS = 64
MOST_Z = 4.0
MOST_R_HAT = 1.1

# The share of the adaptation after which the scale stays, as in
# `windowed_adaptive_mala`.
SHARE_FOR_SCALE = 0.75

COLUMNS = (
  ('target', '{:22s}'),
  ('preconditioner', '{:28s}'),
  ('d', '{:>4d}'),
  ('z_mean', '{:>7.2f}'),
  ('z_sd', '{:>7.2f}'),
  ('r_hat', '{:>7.3f}'),
  ('acceptance', '{:>11.3f}'),
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
    help='a tenth of the steps: judges nothing but that it all works',
  )
  parser.add_argument(
    '--target',
    metavar='NAME',
    action='append',
    choices=sorted(CASES),
    help='one of %(choices)s; may be repeated',
  )
  parser.add_argument('--seed', type=int, default=1, help='(%(default)s)')
  parser.add_argument(
    '--json',
    metavar='FILE',
    help='keep all figures, each target as soon as it is there; the targets of '
    'an earlier run that are not sampled now stay',
  )
  options = parser.parse_args(words)
  rows = run(options.target, options.quick, options.seed, Results(options.json))
  if options.quick:
    print('\nToo few steps to judge by.')
    return 0
  failed = [row['target'] for row in rows if not row['holds']]
  print(f'\n{len(rows) - len(failed)} targets hold')
  if failed:
    print(f'fall short: {", ".join(failed)}')
  return 1 if failed else 0


def run(names=None, quick=False, seed=1, results=None):
  """Samples the targets, and prints a line about each.

  Args:
    names: List of names of `CASES`, or None for all.
    quick: Python `bool`: a tenth of the steps.
    seed: Python `int`.
    results: `Results` that keep each target, or None.

  Returns:
    List of dicts, one of each target.
  """
  results = results or Results()
  rows = []
  print(heading(), flush=True)
  for name in names or CASES:
    case = CASES[name]
    if quick:
      case = dataclasses.replace(
        case,
        num_adaptation_steps=case.num_adaptation_steps // 10,
        num_steps=case.num_steps // 10,
        thin=max(1, case.thin // 10),
      )
    try:
      truth = load(case)
    except ModuleNotFoundError as error:
      raise SystemExit(
        f'{error}. The targets are those of inference-gym: pip install '
        "'.[benchmarks]'"
      ) from error
    begin = time.perf_counter()
    draws, acceptance = _sample(case, truth, seed)
    seconds = time.perf_counter() - begin
    row = {
      'target': name,
      'preconditioner': _name_of(case.preconditioner),
      'd': truth.num_coordinates,
      **compare(draws, truth),
      'acceptance': float(acceptance),
      'gradients': NUM_CHAINS * (case.num_adaptation_steps + case.num_steps),
      'seconds': seconds,
      'seed': seed,
      'quick': quick,
      'num_chains': NUM_CHAINS,
      'thin': case.thin,
      'num_adaptation_steps': case.num_adaptation_steps,
      'num_steps': case.num_steps,
      'note': case.note,
    }
    rows.append(row)
    results.data.setdefault('truth', {})[name] = row
    results.add_seconds(time.perf_counter() - begin)
    print(line(row), flush=True)
    if case.note:
      print(f'  {case.note}', flush=True)
  return rows


def _sample(case, truth, seed):
  """Draws of the statistics, [draws, chains, k], and the mean acceptance."""
  start = tf.random.stateless_uniform(
    [NUM_CHAINS, truth.num_coordinates],
    (seed, 0),
    -case.start,
    case.start,
    truth.dtype,
  )

  def trace(_, results):
    ratio = _core(results).log_accept_ratio
    return tf.reduce_mean(tf.exp(tf.minimum(ratio, 0.0)))

  found = mcmc.sample(
    _kernel(case, truth),
    start,
    case.num_steps // case.thin,
    num_burnin_steps=case.num_adaptation_steps,
    num_steps_between_results=case.thin - 1,
    trace_fn=trace,
    seed=seed,
    jit_compile=case.jit_compile,
  )
  statistics = tf.function(truth.statistics, autograph=False)
  values = [statistics(tf.constant(draw)).numpy() for draw in found.draws]
  return np.array(values, np.float64), np.mean(found.trace)


def _kernel(case, truth):
  """A kernel whose step size and preconditioner adapt."""
  # A tenth of what suits a standard normal (Roberts and Rosenthal, 1998).
  step_size = tf.constant(
    0.3 * truth.num_coordinates ** (-1.0 / 3.0), truth.dtype
  )
  num_steps = case.num_adaptation_steps
  num_scale_steps = int(SHARE_FOR_SCALE * num_steps)
  if case.preconditioner == 'full_fisher_divergence':
    kernel = mcmc.FisherDivergenceMALA(
      truth.log_prob,
      step_size,
      num_scale_steps,
      discretization=case.discretization,
    )
  elif isinstance(case.preconditioner, str):
    kernel = mcmc.DiagonalPreconditionerAdaptation(
      mcmc.PreconditionedMALA(
        truth.log_prob, step_size, discretization=case.discretization
      ),
      num_scale_steps,
      case.preconditioner,
    )
  else:
    kernel = mcmc.PreconditionedMALA(
      truth.log_prob,
      step_size,
      case.preconditioner,
      discretization=case.discretization,
    )
  return tfp.mcmc.DualAveragingStepSizeAdaptation(
    kernel,
    num_steps,
    target_accept_prob=tf.constant(case.target_accept_prob, truth.dtype),
    decay_rate=tf.constant(0.6, truth.dtype),
  )


def _core(results):
  while hasattr(results, 'inner_results'):
    results = results.inner_results
  return results


def compare(draws, truth):
  """Draws beside what is known.

  Args:
    draws: Array [draws, chains, k] of the statistics.
    truth: A `Truth`.

  Returns:
    Dict with the largest z of the means and of the standard deviations, where
    they are, the largest split R-hat, the smallest effective sample size, and
    whether the target holds.
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
  r_hat = mcmc.rhat(draws)
  ess = mcmc.ess(draws)
  z_max, r_hat_max = np.max(z_mean), np.max(r_hat)
  return {
    'z_mean': float(z_max),
    'worst_mean': truth.names[int(np.argmax(z_mean))],
    'z_mean_rms': float(np.sqrt(np.mean(z_mean**2))),
    'z_sd': float(np.max(z_sd)),
    'worst_sd': truth.names[int(np.argmax(z_sd))],
    'r_hat': float(r_hat_max),
    'min_ess': float(np.min(ess)),
    'holds': bool(z_max < MOST_Z and r_hat_max < MOST_R_HAT),
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


def _name_of(preconditioner):
  if isinstance(preconditioner, str):
    return preconditioner
  return type(preconditioner).__name__


if __name__ == '__main__':
  sys.exit(main())
