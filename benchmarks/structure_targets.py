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
"""What structure saves, beside its targets.

    python -m benchmarks.structure_targets [--quick] [--json FILE]

Every contestant runs in a process of its own, is checked against a diagonal in
closed form (float64), and is then timed in turn with the others: the median of
several rounds, each of many evaluations inside one compiled loop. The other
processes wait meanwhile. A contestant whose framework is not installed is
reported as missing (`pip install '.[benchmarks]'`), one that is not ready in
time as too slow, one that is wrong as wrong. Exit status 1 if a target fails.
"""

import argparse
import json
import sys

from benchmarks.cases import make_case
from benchmarks.contest import contest, one_answer
from benchmarks.goals import at_least, at_most, sentence
from benchmarks.processes import Limits, Servers
from benchmarks.tools import GRADIENT, TFP_DIAG

__all__ = ['run']

OURS = [
  TFP_DIAG,
  'tfp_diag, value + gradient + diagonal',
  'tfp_diag, no plan',
]
OTHERS = [
  'TFP diag_jacobian, graph',
  'TFP diag_jacobian, XLA',
  'batch_jacobian, XLA',
  'JAX vmap(hessian)',
  'JAX vmap(jvp(grad))',
]
PEERS = [GRADIENT, *OURS, *OTHERS]

# Bounds of the ratios: to one gradient, and of the fastest other contestant.
RACES = {
  'chain_1e6': {
    'case': ['chain', [1_000_000]],
    'quick': ['chain', [2_000]],
    'peers': [GRADIENT, *OURS],
    'most_gradients': 6,
  },
  'hierarchical': {
    'case': ['hierarchical', [200, 1000, 32]],
    'quick': ['hierarchical', [5, 20, 3]],
    'peers': PEERS,
    'most_gradients': 6,
    'least_speedup': 20,
  },
  'phi4': {
    'case': ['phi4', [64, 4]],
    'quick': ['phi4', [4, 2]],
    'peers': PEERS,
    'passes': 2,
    'least_speedup': 20,
  },
  'stochastic_volatility': {
    'case': ['stochastic_volatility', [5000, 4]],
    'quick': ['stochastic_volatility', [20, 2]],
    'peers': PEERS,
    'passes': 2,
    'least_speedup': 1,
  },
}

STRUCTURES = {
  'chain_1e6': {
    'case': ['chain', [1_000_000]],
    'quick': ['chain', [2_000]],
    'most_seconds': 60,
    'most_gib': 8,
  },
  'chain_1e5': {
    'case': ['chain', [100_000]],
    'quick': ['chain', [1_000]],
    'most_seconds': 6,
    'most_gib': 2,
  },
}

MODEL = {'effects': 98, 'quick': 8, 'most_seconds': 1.0}


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.structure_targets',
    description='Measures what structure saves, beside its targets.',
  )
  parser.add_argument(
    '--quick', action='store_true', help='tiny sizes: does it all work?'
  )
  parser.add_argument(
    '--only',
    metavar='NAME',
    action='append',
    choices=sorted({*RACES, *STRUCTURES, 'model'}),
    help='one of %(choices)s; may be repeated',
  )
  parser.add_argument(
    '--limit',
    type=float,
    default=300.0,
    metavar='SECONDS',
    help='how long a contestant may take to be ready (%(default)s)',
  )
  parser.add_argument('--rounds', type=int, default=9, help='(%(default)s)')
  parser.add_argument('--json', metavar='FILE', help='keep all figures')
  options = parser.parse_args(words)
  report = run(options.quick, options.only, options.limit, options.rounds)
  if options.json:
    with open(options.json, 'w', encoding='utf-8') as file:
      json.dump(report, file, indent=2)
  if options.quick:
    print('\nTiny sizes say nothing about the targets.')
    return 0
  failed = [t for t in report['targets'] if not t['holds']]
  print(f'\n{len(report["targets"]) - len(failed)} targets hold')
  for target in failed:
    print(sentence(target))
  return 1 if failed else 0


def run(quick=False, only=None, limit=300.0, rounds=9):
  """Measures everything, and prints it on the way.

  Args:
    quick: Python bool, whether to use tiny sizes.
    only: List of names, or None for all.
    limit: Seconds that a contestant may take to be ready.
    rounds: Python int, how often each contestant is timed.

  Returns:
    Dict with lists 'structures', 'races' and 'targets'.
  """
  report = {'structures': {}, 'races': {}, 'targets': []}
  size = 'quick' if quick else 'case'

  def wanted(names):
    return [name for name in names if only is None or name in only]

  limits = Limits(seconds=limit, gib=16.0)
  with Servers() as servers:
    for name in wanted(STRUCTURES):
      _run_structure(report, servers, name, STRUCTURES[name], size, limits)
    if only is None or 'model' in only:
      _run_model(report, servers, quick, limits)
    for name in wanted(RACES):
      _run_race(report, servers, name, RACES[name], size, limits, rounds)
  return report


def _run_structure(report, servers, name, target, size, limits):
  case = target[size]
  title = make_case(case).name
  found = one_answer(servers, 'structure', {'case': case}, limits)
  report['structures'][name] = found
  print(f'\nDetection and coloring: {title}', flush=True)
  if 'detection_s' not in found:
    print(f'  {found["status"]}: {found["reason"]}')
  else:
    print(
      f'  {found["detection_s"]:.2f} s + {found["coloring_s"]:.2f} s, '
      f'{found["passes"]} passes, peak {found["peak_gib"]:.2f} GiB '
      f'({found["peak_gib_before"]:.2f} GiB before)'
    )
  seconds = found.get('detection_s', limits.seconds) + found.get(
    'coloring_s', 0
  )
  _judge(
    report,
    at_most(f'{title}: seconds to color', seconds, target['most_seconds']),
  )
  memory = found.get('peak_gib', float('inf'))
  _judge(report, at_most(f'{title}: GiB', memory, target['most_gib']))


def _run_model(report, servers, quick, limits):
  effects = MODEL['quick' if quick else 'effects']
  found = one_answer(servers, 'plan_model', {'num_effects': effects}, limits)
  report['structures']['model'] = found
  title = f'TFP model of {effects + 2} coordinates'
  print(f'\nPlan: {title}', flush=True)
  if 'first_s' not in found:
    print(f'  {found["status"]}: {found["reason"]}')
  else:
    print(
      f'  first {found["first_s"]:.2f} s '
      f'({found["first_cpu_s"]:.2f} s of CPU), '
      f'later {found["later_s"]:.2f} s ({found["later_cpu_s"]:.2f} s of CPU), '
      f'{found["passes"]} passes'
    )
  seconds = found.get('first_s', limits.seconds)
  _judge(
    report,
    at_most(f'{title}: seconds to plan', seconds, MODEL['most_seconds']),
  )


def _run_race(report, servers, name, target, size, limits, rounds):
  case = target[size]
  title = make_case(case).name
  print(f'\nDiagonal Hessian: {title}', flush=True)
  if 'passes' in target:
    found = one_answer(servers, 'structure', {'case': case}, limits)
    passes = found.get('passes', float('inf'))
    _judge(report, at_most(f'{title}: passes', passes, target['passes']))
  results = contest(servers, case, target['peers'], limits, rounds)
  report['races'][name] = results
  gradient = results[GRADIENT].get('median_s')
  for peer, result in results.items():
    print('  ' + _line(peer, result, gradient))
  ours = results[TFP_DIAG].get('median_s', float('inf'))
  if 'most_gradients' in target:
    in_gradients = ours / gradient if gradient else float('inf')
    _judge(
      report,
      at_most(f'{title}: gradients', in_gradients, target['most_gradients']),
    )
  if 'least_speedup' in target:
    others = [
      results[p]['median_s'] for p in OTHERS if 'median_s' in results[p]
    ]
    if others:
      _judge(
        report,
        at_least(
          f'{title}: times faster than the best other',
          min(others) / ours,
          target['least_speedup'],
        ),
      )
    else:
      print('  no other contestant is left to compare with')


def _line(peer, result, gradient):
  words = f'{peer:40s}'
  if 'median_s' not in result:
    return f'{words}{result["status"]}: {result["reason"]}'
  words += f'{1e3 * result["median_s"]:10.4f} ms'
  if gradient:
    words += f'{result["median_s"] / gradient:10.1f} gradients'
  return words + f'   ready in {result["seconds_until_ready"]:.1f} s'


def _judge(report, goal):
  report['targets'].append(goal)
  print(f'  {sentence(goal)}', flush=True)


if __name__ == '__main__':
  sys.exit(main())
