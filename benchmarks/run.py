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
"""Every case with every tool.

    python -m benchmarks.run --json benchmarks/results.json

Each cell, a tool on a case, runs in a process of its own with a limit of time
and of memory, on the same input. Its result is compared with a closed form in
float64 first: a wrong one is reported as wrong, not as fast. Then the tools of
a case are timed in turn, many evaluations inside one compiled loop; the table
has the median. A tool that is not installed is reported as missing
(`pip install '.[benchmarks]'`).

The file is written after each cell, and a run that finds one goes on with it.
`python -m benchmarks.report FILE` makes tables and pictures of it.
"""

import argparse
import dataclasses
import sys
import time

import tqdm

from benchmarks import suite
from benchmarks.cases import make_case
from benchmarks.contest import contest, one_answer
from benchmarks.processes import Limits, Servers
from benchmarks.results import Results
from benchmarks.tools import SAMPLERS, TOOLS

__all__ = ['main', 'run']

# As many numbers take minutes to compute.
MOST_WORK = 2e10


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.run', description=__doc__.splitlines()[0]
  )
  parser.add_argument(
    '--case',
    action='append',
    help='only cases, or series of them, with this in their name',
  )
  parser.add_argument(
    '--tool',
    action='append',
    help='only this tool, or those with this in their name',
  )
  parser.add_argument('--quick', action='store_true', help='small sizes')
  parser.add_argument('--json', metavar='FILE', help='keep all figures')
  parser.add_argument(
    '--fresh', action='store_true', help='measure again what FILE has'
  )
  parser.add_argument(
    '--sizes', metavar='N,N,…', help='numbers of coordinates of the chains'
  )
  parser.add_argument(
    '--seconds',
    type=float,
    metavar='S',
    help='limit of a cell until its first result; 20, quick 10',
  )
  parser.add_argument(
    '--gib',
    type=float,
    default=4.0,
    metavar='G',
    help='limit of the memory of a cell',
  )
  parser.add_argument(
    '--rounds',
    type=int,
    default=5,
    metavar='R',
    help='how often each cell is timed',
  )
  options = parser.parse_args(words)
  results = Results(options.json, go_on=not options.fresh)
  seconds = options.seconds or (10.0 if options.quick else 20.0)
  begin = time.monotonic()
  run(
    results,
    quick=options.quick,
    cases=options.case,
    tools=options.tool,
    sizes=options.sizes and [int(n) for n in options.sizes.split(',')],
    limits=Limits(seconds, options.gib),
    rounds=options.rounds,
  )
  results.add_seconds(time.monotonic() - begin)
  return 0


def run(results, quick, cases, tools, sizes, limits, rounds):
  """Measures what `results` does not have yet.

  Args:
    results: `Results`, filled on the way.
    quick: Python bool, whether to use small sizes.
    cases: List of str, or None for all: parts of names of cases or series.
    tools: List of str, or None for all: parts of names of tools.
    sizes: List of int, or None: numbers of coordinates of a chain, in place of
      all cases.
    limits: `Limits` of each cell.
    rounds: Python int, how often each cell is timed.
  """
  jobs = [
    job
    for job in _jobs(quick, sizes)
    if _wanted(job.series, cases) or _wanted(make_case(job.case).name, cases)
  ]
  cells = {
    (job.group, make_case(job.case).name, tool)
    for job in jobs
    for tool in _missing(results, job, tools)
  }
  with Servers() as servers, tqdm.tqdm(total=len(cells), unit='cell') as bar:
    for job in jobs:
      # Looked up only now: a row may belong to two jobs.
      left = _missing(results, job, tools)
      _measure(results, servers, bar, job, left, limits, rounds)


@dataclasses.dataclass(frozen=True)
class _Job:
  """The cells of one row: a case, with the tools that it meets."""

  group: str
  series: str
  case: list
  tools: list


def _jobs(quick, sizes):
  """All rows of a run."""
  if sizes:
    chains = [['chain', [n]] for n in sizes]
    return [_Job('cases', 'chain', c, suite.SERIES_TOOLS) for c in chains]
  cases = suite.QUICK_CASES if quick else suite.CASES
  series = suite.QUICK_SERIES if quick else suite.SERIES
  structures = suite.QUICK_STRUCTURES if quick else suite.STRUCTURES
  targets = suite.QUICK_TARGETS if quick else suite.TARGETS
  jobs = [_Job('cases', 'cases', case, list(TOOLS)) for case in cases]
  for name, members in series.items():
    jobs += [_Job('cases', name, case, suite.SERIES_TOOLS) for case in members]
  for name, members in structures.items():
    tools = ['tfp_diag', 'asdex']
    jobs += [_Job('structures', name, case, tools) for case in members]
  jobs += [_Job('samplers', 'steps', case, list(SAMPLERS)) for case in targets]
  return jobs


def _missing(results, job, tools):
  """The tools of a row that are wanted and not measured yet."""
  name = make_case(job.case).name
  return [
    tool
    for tool in job.tools
    if _chosen(tool, tools) and not results.has(job.group, name, tool)
  ]


def _wanted(name, parts):
  return parts is None or any(part in name for part in parts)


def _chosen(tool, parts):
  """Whether a tool is wanted: a whole name means that tool alone."""
  whole = parts is not None and tool in parts
  parts = parts and [p for p in parts if p not in TOOLS and p not in SAMPLERS]
  return whole or _wanted(tool, parts)


def _measure(results, servers, bar, job, tools, limits, rounds):
  """Some cells of one row."""
  case = make_case(job.case)
  row = results.row(
    job.group,
    case.name,
    case=job.case,
    kind=case.kind,
    n=case.num_coordinates,
    batch=case.batch,
    structured=case.structured,
  )
  row.setdefault('series', [])
  if job.series not in row['series']:
    row['series'].append(job.series)
  bar.set_description(case.name[:40])

  def seen(tool, result):
    results.put(job.group, case.name, tool, result)
    bar.update()

  tried = []
  for tool in tools:
    hopeless = _hopeless(results, job, case, tool, limits)
    if hopeless:
      seen(tool, hopeless)
    else:
      tried.append(tool)
  if job.group == 'structures':
    for tool in tried:
      seen(tool, _structure(servers, job.case, tool, limits))
  elif tried:
    contest(servers, job.case, tried, limits, rounds, seen)


def _structure(servers, case, tool, limits):
  """Detection and coloring in a process of its own."""
  framework = {'tfp_diag': 'tensorflow', 'asdex': 'jax'}[tool]
  arguments = {'case': case, 'tool': tool}
  return one_answer(servers, 'structure', arguments, limits, framework)


def _hopeless(results, job, case, tool, limits):
  """The result of a cell that need not be tried, or None.

  It would hold a matrix that does not fit, or has failed at a smaller size.
  """
  if job.group == 'cases':
    gib = TOOLS[tool].entries(case) * 4 / 2**30
    if gib > limits.gib:
      return {
        'status': 'too much memory',
        'reason': f'a matrix of {gib:,.0f} GiB',
      }
    work = case.num_coordinates**2 * case.batch
    if TOOLS[tool].family not in suite.STRUCTURED and work > MOST_WORK:
      return {
        'status': 'too slow',
        'reason': f'a pass per coordinate, {work:.0e} numbers',
      }
  if job.series == 'cases':
    return None
  size = case.num_coordinates * case.batch
  for name, row in results.data[job.group].items():
    before = row['tools'].get(tool, {}).get('status')
    if (
      job.series in row['series']
      and row['n'] * row['batch'] < size
      and before in ('too slow', 'too much memory')
    ):
      return {'status': before, 'reason': f'as for {name}'}
  return None


if __name__ == '__main__':
  sys.exit(main())
