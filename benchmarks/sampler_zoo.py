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
"""Samplers on a zoo of posteriors: what an effective draw costs, and is worth.

    python -m benchmarks.sampler_zoo [--json FILE] [--model NAME]
      [--sampler NAME] [--seeds N] [--limit SECONDS] [--quick]

Every sampler runs on every posterior as it comes, with nothing tuned by hand,
in a process of its own. A run goes on with the cells that the file of an
earlier one has, which is written after each; beside it are put a table
(`.md`) and a picture (`.png`). Samplers whose package is not installed are
reported as missing (`pip install '.[benchmarks]'`), and tried again next time.
"""

import argparse
import pathlib
import sys
import time

import tqdm

from benchmarks import zoo_figures
from benchmarks.processes import Limits, Servers
from benchmarks.results import Results, in_json
from benchmarks.sampler_targets import MOST_GIB, QUICK
from benchmarks.zoo_contestants import SAMPLERS, SIZES
from benchmarks.zoo_models import ZOO

__all__ = ['run']

GROUP = 'zoo'


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.sampler_zoo',
    description='Compares samplers on a zoo of posteriors.',
  )
  parser.add_argument(
    '--json',
    metavar='FILE',
    help='keep all figures, each cell as soon as it is there, and put a table '
    'and a picture beside it; cells of an earlier run stay',
  )
  for what, names in (('model', ZOO), ('sampler', SAMPLERS)):
    parser.add_argument(
      f'--{what}',
      metavar='NAME',
      action='append',
      choices=list(names),
      help='one of %(choices)s; may be repeated',
    )
  parser.add_argument(
    '--seeds', type=int, default=3, help='runs of each (%(default)s)'
  )
  parser.add_argument(
    '--limit',
    type=float,
    default=120.0,
    metavar='SECONDS',
    help='how long a run may take; after as long, no other seed is begun '
    '(%(default)s)',
  )
  parser.add_argument(
    '--quick', action='store_true', help='tiny sizes: does it all work?'
  )
  parser.add_argument(
    '--again', action='store_true', help='also the cells that are there'
  )
  options = parser.parse_args(words)
  results = Results(options.json)
  run(
    results,
    options.model,
    options.sampler,
    options.seeds,
    options.limit,
    options.quick,
    options.again,
  )
  # Neither is needed to measure.
  from benchmarks import zoo_report

  print('', zoo_report.table(results.data[GROUP]), sep='\n')
  if options.json:
    for path in zoo_report.write(results.data, pathlib.Path(options.json)):
      print(f'written: {path}')
  return 0


def run(
  results,
  models=None,
  samplers=None,
  seeds=3,
  limit=120.0,
  quick=False,
  again=False,
):
  """Measures the cells that are not there, with a bar on standard error.

  Args:
    results: `Results` that keep the cells.
    models: List of names of `ZOO`, or None for all.
    samplers: List of names of `SAMPLERS`, or None for all.
    seeds: Python int, how many runs of each.
    limit: Seconds that a run may take.
    quick: Python bool, whether to use tiny sizes.
    again: Python bool, whether to measure what is there.
  """
  cells = [
    (model, sampler)
    for model in models or ZOO
    for sampler in samplers or SAMPLERS
  ]
  rows = results.data.setdefault(GROUP, {})
  cells = [
    (model, sampler)
    for model, sampler in cells
    if again
    or not _is_there(
      rows.get(model, {'tools': {}})['tools'].get(sampler), seeds, limit, quick
    )
  ]
  with Servers() as servers:
    bar = tqdm.tqdm(cells, disable=None, unit='cell')
    for model, sampler in bar:
      bar.set_description(f'{model}, {sampler}')
      begin = time.monotonic()
      what, cell = _cell(servers, model, sampler, seeds, limit, quick)
      results.row(GROUP, model, **what)
      results.put(GROUP, model, sampler, in_json(cell))
      results.add_seconds(time.monotonic() - begin)
      bar.write(f'{model}, {sampler}: {_line(cell)}')
      sys.stdout.flush()


def _is_there(cell, seeds, limit, quick):
  if cell is None or cell['status'] == 'missing' or cell['quick'] != quick:
    return False
  if len(cell['runs']) < min(seeds, cell['seeds']):
    return cell['limit'] >= limit
  return cell['seeds'] >= seeds


def _cell(servers, model, sampler, seeds, limit, quick):
  """What is known of the model, and the figures of a sampler on it."""
  sizes = SIZES[sampler]
  if quick:
    sizes = QUICK | {'chains': min(QUICK['chains'], sizes['chains'])}
  cell = {
    'sizes': sizes,
    'quick': quick,
    'limit': limit,
    'seeds': seeds,
    'runs': [],
  }
  process = servers.start(
    'tensorflow',
    'zoo',
    {'sampler': sampler, 'model': model, 'sizes': sizes},
    Limits(limit, MOST_GIB),
  )
  begin = time.monotonic()
  what = {}
  try:
    answer = process.answer()
    if answer['status'] == 'ready':
      what = {key: answer[key] for key in ('title', 'size')}
    for seed in range(seeds):
      if answer.get('status', 'ready') != 'ready':
        break
      if cell['runs'] and time.monotonic() - begin > limit:
        break
      answer = process.answer((31, seed))
      if 'seconds' in answer:
        cell['runs'].append(answer)
  finally:
    process.close()
  # What has run once is known, though other seeds may not be.
  done = bool(cell['runs']) and answer.get('status') != 'failed'
  cell['status'] = 'ready' if done else answer['status']
  if 'reason' in answer:
    cell['reason'] = answer['reason']
  if cell['runs']:
    cell |= zoo_figures.of_runs(cell['runs'])
  return what, cell


def _line(cell):
  if 'r_hat' not in cell:
    return f'{cell["status"]}: {cell["reason"]}'
  per_draw = cell['gradients_per_draw']
  return (
    f'R-hat {cell["r_hat"]:.3f}, {cell["ess_bulk"]:.0f} effective draws, '
    f'{per_draw["with_warmup"]:.3g} gradients each, '
    f'{cell["seconds"]:.3g} s of {len(cell["runs"])} runs'
  )


if __name__ == '__main__':
  sys.exit(main())
