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
"""What the samplers are worth, beside their targets.

    python -m benchmarks.sampler_targets [--quick] [--row ROW] [--json FILE]

Every contestant runs in a process of its own and is timed in turn with the
others, while those wait; compilation and what a sampler is tuned for by hand
are not timed, adaptation is. A contestant whose framework is not installed is
reported as missing (`pip install '.[benchmarks]'`), one that is not ready in
time as too slow. Exit status 1 if a target fails.
"""

import argparse
import statistics
import sys
import time

import tqdm

from benchmarks.goals import at_least, at_most, print_table, sentence
from benchmarks.processes import Limits, Servers
from benchmarks.results import Results, in_json

__all__ = ['ROWS', 'run']

FULL = {
  'chains': 64,
  'draws': 2000,
  'adaptation': 1000,
  # Of TFP's MALA, which adapts nothing, but takes longer to arrive.
  'burnin': 3000,
  'thinning': 5,
  'tuning': 500,
}
# A draw of these takes many gradients.
FULL_TREES = FULL | {'draws': 300, 'adaptation': 500}
QUICK = {
  'chains': 8,
  'draws': 20,
  'adaptation': 40,
  'burnin': 20,
  'thinning': 2,
  'tuning': 8,
}

# For each model the best of our preconditioners, and how much faster than TFP's
# MALA the sampler has to be: at least as fast, or three times on a model whose
# scales differ.
DENSE = {
  'preconditioner': 'full_fisher_divergence',
  'discretization': 'exponential',
}
DIAGONAL = {
  'preconditioner': 'fisher_divergence',
  'discretization': 'exponential',
}
EFFICIENCY = {
  'eight_schools': (DENSE, 1.0),
  'brownian_motion': (DENSE, 3.0),
  'stochastic_volatility': (DENSE, 3.0),
  'item_response': (DENSE, 1.0),
  'gaussian_rotated': (DENSE, 3.0),
  'gaussian_aligned': (DIAGONAL, 3.0),
  'logistic_regression': (DENSE, 1.0),
}
# A step with a local Hessian, in steps with a constant scale, at most.
LOCAL_HESSIAN = {
  'logistic_regression': (['logistic_regression', [25, 100, 1000]], 3.0),
  'softmax_regression': (['softmax_regression', [20, 10, 500, 16]], 3.0),
  'mixture': (['mixture', [5, 500, 16]], 6.0),
  'network_weights': (['network_weights', [4, 8, 64, 16]], 6.0),
  'classifier_weights': (['classifier_weights', [8, 16, 128, 16]], 6.0),
  'deep_network_weights': (
    ['deep_network_weights', [8, 16, 16, 128, 16]],
    6.0,
  ),
}
QUICK_LOCAL_HESSIAN = {
  'classifier_weights': (['classifier_weights', [2, 4, 16, 4, 3]], 6.0),
}
# The largest R-hat of 64 chains whose ESS means something.
CONVERGED = 1.05
BESIDE = ['TFP NUTS', 'TFP HMC', 'numpyro NUTS']

PUBLISHED = {'MALA': 760, 'NUTS': 2193, 'MAMS': 449}

# Those that are not of TensorFlow, by the first word of their names.
FRAMEWORKS = {'blackjax': 'jax', 'numpyro': 'jax'}
# The memory that a contestant may take.
MOST_GIB = 8.0


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.sampler_targets',
    description='Measures what the samplers are worth, beside their targets.',
  )
  parser.add_argument(
    '--quick', action='store_true', help='tiny sizes: does it all work?'
  )
  parser.add_argument(
    '--row',
    metavar='ROW',
    action='append',
    choices=list(ROWS),
    help='one of %(choices)s; may be repeated',
  )
  parser.add_argument(
    '--model',
    metavar='MODEL',
    action='append',
    choices=list(EFFICIENCY),
    help='of the row "efficiency", one of %(choices)s; may be repeated',
  )
  parser.add_argument(
    '--limit',
    type=float,
    default=150.0,
    metavar='SECONDS',
    help='how long a contestant may take to answer (%(default)s)',
  )
  parser.add_argument(
    '--rounds',
    type=int,
    default=2,
    help='how often each is timed at least (%(default)s)',
  )
  parser.add_argument(
    '--json',
    metavar='FILE',
    help='keep all figures, each row as soon as it is there; the rows of an '
    'earlier run that are not measured now stay',
  )
  options = parser.parse_args(words)
  rows = run(
    options.quick,
    options.row,
    options.model,
    options.limit,
    options.rounds,
    Results(options.json),
  )
  targets = [target for row in rows.values() for target in row['targets']]
  print_table(targets)
  if options.quick:
    print('\nTiny sizes say nothing about the targets.')
    return 0
  return 0 if all(t['holds'] for t in targets) else 1


def run(
  quick=False, rows=None, models=None, limit=150.0, rounds=2, results=None
):
  """Runs some rows of the table, with a bar on standard error.

  Args:
    quick: Python bool, whether to use tiny sizes.
    rows: List of names, or None for all.
    models: List of names, the models of the row 'efficiency', or None for all.
    limit: Seconds that a contestant may take to answer.
    rounds: Python int, how often each contestant is timed.
    results: `Results` that keep each row, or None.

  Returns:
    Dict of the rows, each with 'tools', a dict of the figures of each
    contestant, and 'targets', a list of dicts.
  """
  results = results or Results()
  steps = []
  for name in ROWS if rows is None else rows:
    if name == 'efficiency':
      steps += [(name, {'model': m}) for m in models or EFFICIENCY]
    else:
      steps.append((name, {}))
  measured = {}
  with Servers() as servers:
    bar = tqdm.tqdm(steps, disable=None, unit='row')
    for kind, what in bar:
      name = what.get('model', kind)
      bar.set_description(name)
      begin = time.monotonic()
      with _Contestants(servers, limit) as contestants:
        figures, targets = ROWS[kind](contestants, quick, rounds, **what)
      measured[name] = {'tools': figures, 'targets': targets}
      results.row('samplers', name, **in_json(measured[name]))
      results.add_seconds(time.monotonic() - begin)
      bar.write(f'\n{name}')
      for contestant, figure in figures.items():
        bar.write(f'  {contestant:38s} {_line(figure)}')
      for target in targets:
        bar.write(f'  {sentence(target)}')
      sys.stdout.flush()
  return measured


def _step_time(contestants, quick, rounds):
  """Seconds of a step of 1000 chains in 100 dimensions."""
  from_quick = ['tfp_diag constant', 'TFP constant', 'blackjax constant']
  figures = _timed_in_turn(contestants, from_quick, quick, max(rounds, 9))
  ours = figures['tfp_diag constant']
  return figures, [
    at_most(
      'a step, constant scale, in steps of TFP MALA',
      _ratio(ours, figures['TFP constant'], 'least_s'),
      0.8,
    ),
    at_most(
      'a step, constant scale, in steps of blackjax MALA',
      _ratio(ours, figures['blackjax constant'], 'least_s'),
      1.2,
    ),
  ]


def _trajectory(contestants, quick, rounds):
  """Seconds of a trajectory of 16 steps, beside one written by hand."""
  ours, *others = [
    'tfp_diag trajectory',
    'trajectory by hand',
    'trajectory by hand, our noise',
  ]
  figures = _timed_in_turn(contestants, [ours, *others], quick, max(rounds, 9))
  return figures, [
    at_most(
      f'a trajectory, over a {name}',
      _ratio(figures[ours], figures[name], 'least_s'),
      1.2,
    )
    for name in others
  ]


def _volatility(contestants, quick, rounds):
  """The same with an elementwise volatility."""
  names = [
    'tfp_diag constant',
    'tfp_diag elementwise',
    'TFP elementwise',
    'tfp_diag elementwise, graph',
    'TFP elementwise, graph',
  ]
  figures = _timed_in_turn(contestants, names, quick, max(rounds, 9))
  ours = figures['tfp_diag elementwise']
  return figures, [
    at_most(
      'a step, elementwise volatility, in steps of constant scale',
      _ratio(ours, figures['tfp_diag constant'], 'least_s'),
      1.5,
    ),
    at_least(
      'times faster than TFP MALA with that volatility, XLA',
      _ratio(figures['TFP elementwise'], ours, 'least_s'),
      2.0,
    ),
    at_least(
      'times faster than TFP MALA with that volatility, in a graph',
      _ratio(
        figures['TFP elementwise, graph'],
        figures['tfp_diag elementwise, graph'],
        'least_s',
      ),
      10.0,
    ),
  ]


def _local_hessian(contestants, quick, rounds):
  """The same with a scale from the Hessian at hand, on several models."""
  figures, targets = {}, []
  models = QUICK_LOCAL_HESSIAN if quick else LOCAL_HESSIAN
  for model, (case, bound) in models.items():
    names = {f'{way}, {model}': way for way in ('constant', 'local Hessian')}
    found = _timed_in_turn(
      contestants, names, quick, max(rounds, 9), {'case': case}
    )
    constant, local = (found[name] for name in names)
    ratio = _ratio(local, constant, 'least_s')
    targets.append(
      at_most(f'{model}: a local Hessian, in constant steps', ratio, bound)
    )
    figures |= found
  return figures, targets


def _efficiency(contestants, quick, rounds, model):
  """Effective draws per second, adaptation included."""
  options, bound = EFFICIENCY[model]
  figures = {}
  for name in ('tfp_diag', 'TFP MALA', *BESIDE):
    if quick:
      sizes = QUICK
    else:
      sizes = FULL_TREES if name in BESIDE else FULL
    arguments = {
      'contestant': name,
      'model': model,
      'sizes': sizes,
      'options': options if name == 'tfp_diag' else {},
    }
    figures[name] = contestants.start(name, 'efficiency', arguments)
  runs = {name: [] for name in contestants.names()}
  for i in range(1 if quick else rounds):
    for name in contestants.names():
      if i and name in BESIDE:
        continue  # Shown, but no target depends on them.
      answer = contestants.ask(name, (11, i))
      if 'seconds' in answer:
        runs[name].append(answer)
      else:
        figures[name] = answer
  for name, answers in runs.items():
    for key in answers[0] if answers else ():
      figures[name][key] = statistics.median(a[key] for a in answers)
  figures['tfp_diag'] |= {k: str(v) for k, v in options.items()}
  ratio = _ratio(figures['tfp_diag'], figures['TFP MALA'], 'min_ess_per_second')
  targets = [
    at_least(f'{model}: times the least ESS/s of TFP MALA', ratio, bound)
  ]
  # An ESS of chains that have not converged estimates nothing.
  targets.append(
    at_most(
      f'{model}: largest R-hat of ours',
      figures['tfp_diag'].get('max_rhat', float('nan')),
      CONVERGED,
    )
  )
  return figures, targets


def _funnel(contestants, quick, rounds):
  """The log scale of Neal's funnel."""
  del rounds  # The seed is fixed.
  sizes = QUICK if quick else FULL | {'draws': 10_000, 'adaptation': 2_000}
  figures = {}
  for preconditioner in ('local Hessian', 'fisher_divergence'):
    figures[preconditioner] = contestants.start(
      preconditioner,
      'funnel',
      {'preconditioner': preconditioner, 'sizes': sizes},
    )
  local, constant = figures.values()
  worst = [
    max(f.get('z_mean', 1e9), f.get('z_sd', 1e9)) for f in (local, constant)
  ]
  return figures, [
    at_most('funnel, local Hessian: MCSEs from the truth', worst[0], 3.0),
    # A small error of a chain that saw a part of it only counts as failed too.
    at_least(
      'funnel, constant scale: fails, in MCSEs or R-hat',
      max(worst[1], 3.0 * (constant.get('rhat', 0.0) > 1.05)),
      3.0,
    ),
  ]


def _low_error(contestants, quick, rounds):
  """Gradients until the error of the second moments is low."""
  del rounds  # The seed is fixed.
  sizes = {'coordinates': 100} | (QUICK if quick else FULL)
  sizes['draws'] = 20 if quick else 5_000
  figures = {}
  for name, options in {
    'exponential': DIAGONAL,
    'Euler': DIAGONAL | {'discretization': 'euler'},
  }.items():
    figures[name] = contestants.start(
      name, 'low_error', {'sizes': sizes, 'options': options}
    )
  for name, gradients in PUBLISHED.items():
    figures[f'{name}, published'] = {'gradients': gradients}
  value = figures['exponential'].get('gradients', float('inf'))
  return figures, [at_most('gradients to b² < 0.01', value, 450)]


ROWS = {
  'step_time': _step_time,
  'trajectory': _trajectory,
  'volatility': _volatility,
  'local_hessian': _local_hessian,
  'efficiency': _efficiency,
  'funnel': _funnel,
  'low_error': _low_error,
}


def _timed_in_turn(contestants, names, quick, rounds, options=None):
  """Seconds of one step of each, the least and the median of some rounds.

  Args:
    contestants: `_Contestants`.
    names: List of names of `STEPS`, or dict from other names to those.
    quick: Python bool, whether to take hardly any steps.
    rounds: Python int.
    options: Dict of further arguments of all of them, or None.

  Returns:
    Dict of the figures of each.
  """
  figures = {}
  for name in names:
    contestant = names[name] if isinstance(names, dict) else name
    arguments = {'contestant': contestant, **(options or {})}
    figures[name] = contestants.start(name, 'step_time', arguments)
  ready = [name for name in contestants.names() if name in figures]
  counts, seconds = {}, {name: [] for name in ready}
  for _ in range(1 if quick else rounds):
    for name in [n for n in ready if n in contestants.names()]:
      if name not in counts:
        # One of them takes a hundred times as long as another.
        once = contestants.ask(name, 2).get('seconds', 1.0) / 2
        counts[name] = max(2, min(1000, round(0.5 / once)))
      answer = contestants.ask(name, 2 if quick else counts[name])
      if 'seconds' in answer:
        seconds[name].append(answer['seconds'] / (2 if quick else counts[name]))
      else:
        figures[name] = answer
  for name, values in seconds.items():
    if values:
      figures[name] |= {
        # What else the machine does only adds to it.
        'least_s': min(values),
        'median_s': statistics.median(values),
        'seconds': values,
      }
  return figures


class _Contestants:
  """The processes of a row, as long as they answer."""

  def __init__(self, servers, limit):
    self._servers = servers
    self._limits = Limits(limit, MOST_GIB)
    self._processes = {}

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self._processes.values():
      process.close()

  def names(self):
    """Those that are ready, and have not failed since."""
    return list(self._processes)

  def start(self, name, job, arguments):
    """Starts one, and returns its first answer."""
    framework = FRAMEWORKS.get(name.split()[0], 'tensorflow')
    self._processes[name] = self._servers.start(
      framework, job, arguments, self._limits
    )
    return self._answer(name)

  def ask(self, name, question):
    """Sends a question, and returns the answer."""
    return self._answer(name, question)

  def _answer(self, name, question=None):
    answer = self._processes[name].answer(question)
    if answer.get('status', 'ready') != 'ready':
      self._processes.pop(name).close()
    return answer


def _ratio(a, b, key):
  """NaN where one of them has no figure."""
  if key not in a or not b.get(key):
    return float('nan')
  return a[key] / b[key]


def _line(figure):
  if 'reason' in figure:
    return f'{figure["status"]}: {figure["reason"]}'
  shown = {k: v for k, v in figure.items() if k not in ('status', 'seconds')}
  return '  '.join(
    f'{k} {v:.4g}' if isinstance(v, float) else f'{k} {v}'
    for k, v in shown.items()
    if v is not None
  )


if __name__ == '__main__':
  sys.exit(main())
