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
"""What the exact diagonal of the Hessian saves in a warm-up.

    python -m benchmarks.curvature_warm_up [--json FILE] [--seeds N] [--quick]

`sample_posterior` with and without `use_curvature`, after warm-ups of different
lengths: the gradients of the warm-up, a diagonal of the Hessian counted as two,
and those of an effective draw after it, which tell how good a kernel it has
found. The effective sample size is the least of the coordinates and of their
squares, the median over the seeds.
"""

import argparse
import itertools
import sys
import warnings

import numpy as np
import tensorflow as tf
import tqdm

import tfp_diag
from benchmarks.results import Results
from benchmarks.zoo_models import make_model
from tfp_diag.mcmc import ess, rhat

__all__ = ['run']

GROUP = 'curvature'
NUM_CHAINS = 64
NUM_DRAWS = 300
LENGTHS = (50, 100, 200, 400)


def unscaled_logistic_regression(num_rows=500, num_columns=30):
  """Columns of units that differ, up to a factor of 10⁴."""
  rng = np.random.default_rng(7)
  units = np.geomspace(0.01, 100.0, num_columns)
  columns = rng.standard_normal((num_rows, num_columns)) * units
  weights = 0.7 * rng.standard_normal(num_columns) / units
  labels = rng.random(num_rows) < 1.0 / (1.0 + np.exp(-columns @ weights))
  x, y = columns.T.astype(np.float32), labels.astype(np.float32)
  precision = np.float32((units / 3.0) ** 2)

  def log_prob(weights):
    logits = weights @ x
    fit = y * logits - tf.math.softplus(logits)
    prior = 0.5 * weights**2 * precision
    return tf.reduce_sum(fit, -1) - tf.reduce_sum(prior, -1)

  init = tf.random.stateless_uniform(
    [NUM_CHAINS, num_columns], [1, 2], -2.0, 2.0
  )
  return log_prob, {'init': init}


def of_zoo(name):
  model = make_model(name)
  return model.joint, model.pins


MODELS = {
  'logistic regression, columns of different units': (
    unscaled_logistic_regression
  ),
  'logistic regression': lambda: of_zoo('logistic_regression'),
  'Poisson mixed model': lambda: of_zoo('poisson_mixed_model'),
  'stochastic volatility': lambda: of_zoo('stochastic_volatility'),
  'Brownian motion': lambda: of_zoo('brownian_motion'),
}


def run(results, seeds=3, quick=False):
  """Measures the cells that are not there, with a bar on standard error.

  Args:
    results: `Results` that keep the cells.
    seeds: Python int, how many runs of each.
    quick: Python bool, whether to use tiny sizes.
  """
  lengths, num_draws = ((20,), 20) if quick else (LENGTHS, NUM_DRAWS)
  names = list(MODELS)[:1] if quick else MODELS
  cells = [
    (name, f'{length} steps, {label}', length, label == 'curvature')
    for name, length, label in itertools.product(
      names, lengths, ('curvature', 'none')
    )
  ]
  for name, tool, length, use_curvature in tqdm.tqdm(cells, disable=None):
    if not results.has(GROUP, name, tool):
      found = [
        _measure(MODELS[name], length, num_draws, use_curvature, seed)
        for seed in range(seeds)
      ]
      cell = {k: float(np.median([f[k] for f in found])) for k in found[0]}
      results.put(GROUP, name, tool, cell)


def _measure(make, length, num_draws, use_curvature, seed):
  target, arguments = make()
  with warnings.catch_warnings():
    # Short warm-ups do not converge, which is what is measured.
    warnings.simplefilter('ignore')
    found = tfp_diag.mcmc.sample_posterior(
      target,
      num_draws,
      num_chains=NUM_CHAINS,
      num_warmup_steps=length,
      num_steps_between_results=0,
      use_curvature=use_curvature,
      seed=seed,
      **arguments,
    )
  draws = np.concatenate(
    [
      np.asarray(x).reshape(num_draws, NUM_CHAINS, -1)
      for x in tf.nest.flatten(found.draws)
    ],
    axis=-1,
  )
  squares = np.square(draws - draws.mean(axis=(0, 1)))
  size = min(ess(draws).min(), ess(squares).min())
  return {
    'gradients_warmup': found.num_gradients_warmup,
    'gradients_per_draw': NUM_CHAINS * found.num_gradients / size,
    'r_hat': np.max(rhat(draws)),
  }


def table(rows):
  """A table in Markdown."""
  lines = [
    '| model | steps | warm-up, curvature | none | '
    'effective draw, curvature | none |',
    '|---|---:|---:|---:|---:|---:|',
  ]
  for name, row in rows.items():
    tools = row['tools']
    for tool, cell in tools.items():
      length, label = tool.split(' steps, ')
      other = tools.get(f'{length} steps, none')
      if label == 'curvature' and other:
        numbers = [
          f'{c[key]:,.0f}'
          for key in ('gradients_warmup', 'gradients_per_draw')
          for c in (cell, other)
        ]
        lines.append(f'| {name} | {length} | ' + ' | '.join(numbers) + ' |')
  return '\n'.join(lines)


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.curvature_warm_up',
    description='Warm-ups with and without the diagonal of the Hessian.',
  )
  parser.add_argument('--json', metavar='FILE', help='keep all figures')
  parser.add_argument(
    '--seeds', type=int, default=3, help='runs of each (%(default)s)'
  )
  parser.add_argument('--quick', action='store_true', help='tiny sizes')
  options = parser.parse_args(words)
  results = Results(options.json)
  run(results, options.seeds, options.quick)
  print('', table(results.data[GROUP]), sep='\n')
  return 0


if __name__ == '__main__':
  sys.exit(main())
