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
"""Tables of a run, in Markdown."""

from benchmarks.tools import GRADIENT, OWN_SAMPLER, SAMPLERS, TFP_DIAG, TOOLS

__all__ = [
  'best',
  'compare',
  'losses',
  'number_of',
  'of_cases',
  'of_row',
  'of_samplers',
  'table_of',
  'time_of',
  'times_of',
]

# The competitors, each with the best of its ways.
FAMILIES = ('TFP', 'TensorFlow', 'JAX', 'asdex', 'torch')

# Beyond these the choice, or the library, is called slow.
MOST_OF_OWN = 1.3
MOST_OF_PEERS = 1.3

_WORDS = {
  'ready': 'not timed',
  'too slow': 'too slow',
  'too much memory': 'too much memory',
  'wrong': 'wrong',
  'missing': 'missing',
  'skipped': '',
  'failed': 'failed',
}


def best(row, family):
  """The fastest tool of a family on a row.

  Args:
    row: Dict, a row of the group 'cases'.
    family: Python str, a `family` of `tools.TOOLS`.

  Returns:
    `(name, seconds)`; where none has a time, `(None, why)`.
  """
  cells = [
    (name, cell)
    for name, cell in row['tools'].items()
    if name in TOOLS and TOOLS[name].family == family
  ]
  timed = [
    (cell['median_s'], name) for name, cell in cells if 'median_s' in cell
  ]
  if timed:
    seconds, name = min(timed)
    return name, seconds
  statuses = [cell['status'] for _, cell in cells]
  worst = [s for s in _WORDS if s in statuses]
  return None, _WORDS[worst[0]] if worst else ''


def compare(row):
  """What a row says of tfp_diag.

  Returns:
    Dict with 'seconds', 'gradients' (as many take the same time), 'passes',
    'of_own' (its time over that of the best of its modes and schedules),
    'own' (which that is), and for each family its time over tfp_diag's, or a
    str that says why there is none.
  """
  own = row['tools'].get(TFP_DIAG, {})
  result = {'passes': own.get('passes'), 'seconds': own.get('median_s')}
  if result['seconds'] is None:
    return result
  gradient = row['tools'].get(GRADIENT, {}).get('median_s')
  if gradient:
    result['gradients'] = result['seconds'] / gradient
  name, seconds = best(row, 'choice')
  if name is not None:
    result['own'] = name if seconds < result['seconds'] else TFP_DIAG
    result['of_own'] = result['seconds'] / min(seconds, result['seconds'])
  for family in FAMILIES:
    name, seconds = best(row, family)
    result[family] = seconds / result['seconds'] if name else seconds
  return result


def of_cases(data):
  """How many times longer the others take than tfp_diag, by case."""
  head = ['case', 'passes', 'tfp_diag', 'gradients', *FAMILIES, "'auto'"]
  rows = []
  for name, row in _main_rows(data):
    found = compare(row)
    if found['seconds'] is None:
      cell = row['tools'].get(TFP_DIAG, {'status': 'missing'})
      rows.append([name, '', cell['status'], *[''] * (len(head) - 3)])
      continue
    rows.append(
      [
        name,
        f'{found["passes"]:,}' if found['passes'] is not None else '',
        time_of(found['seconds']),
        number_of(found.get('gradients')),
        *[times_of(found[family]) for family in FAMILIES],
        times_of(found.get('of_own', '')),
      ]
    )
  return table_of(head, rows)


def of_row(name, row):
  """Every tool on one case."""
  head = ['tool', 'time', 'spread', 'over tfp_diag', 'first', 'memory']
  rows = []
  own = row['tools'].get(TFP_DIAG, {}).get('median_s')
  for tool, cell in row['tools'].items():
    if 'median_s' not in cell:
      reason = cell.get('reason', '').replace('|', '/')[:80]
      rows.append([tool, f'{cell["status"]}: {reason}', *[''] * 4])
      continue
    seconds = cell['seconds']
    spread = (max(seconds) - min(seconds)) / cell['median_s']
    rows.append(
      [
        tool,
        time_of(cell['median_s']),
        f'{100 * spread:.0f} %' if len(seconds) > 1 else 'once',
        times_of(cell['median_s'] / own) if own else '',
        time_of(cell['plan_s'] + cell['first_call_s']),
        f'{1024 * cell["memory_gib"]:,.0f} MiB',
      ]
    )
  return f'### {name}\n\n{table_of(head, rows)}'


def of_samplers(data):
  """The time of a step of all chains, by sampler."""
  names = list(SAMPLERS)
  rows = []
  for target, row in data.get('samplers', {}).items():
    cells = [row['tools'].get(name, {}) for name in names]
    rows.append(
      [
        target,
        *[
          time_of(cell['median_s'])
          if 'median_s' in cell
          else cell.get('status', '')
          for cell in cells
        ],
      ]
    )
  return table_of(['target', *names], rows)


def losses(data):
  """Sentences: where 'auto' is a bad choice, and where others are faster."""
  sentences = []
  for name, row in _main_rows(data):
    found = compare(row)
    if found.get('of_own', 1) > MOST_OF_OWN:
      sentences.append(
        f"{name}: 'auto' takes {found['of_own']:.2f} times as long as "
        f'{found["own"]}.'
      )
    for family in FAMILIES:
      limit = 1 if family in ('TFP', 'TensorFlow') else 1 / MOST_OF_PEERS
      ratio = found.get(family)
      if isinstance(ratio, float) and ratio < limit:
        sentences.append(
          f'{name}: {best(row, family)[0]} is {1 / ratio:.2f} times as fast.'
        )
      elif isinstance(ratio, float) and ratio < 1 and row['structured']:
        sentences.append(
          f'{name}: {best(row, family)[0]} is ahead, by {1 / ratio:.2f}, '
          'although there is structure.'
        )
    far = found.get('TFP')
    if row['structured'] and isinstance(far, float) and far < 10:
      if found.get('gradients', 7) > 6:
        sentences.append(f'{name}: only {far:.1f} times as fast as TFP.')
  for target, row in data.get('samplers', {}).items():
    own = row['tools'].get(OWN_SAMPLER, {}).get('median_s')
    for sampler, cell in row['tools'].items():
      volatile = 'volatility' in sampler
      seconds = cell.get('median_s')
      if own and seconds and not volatile and seconds < own / MOST_OF_PEERS:
        sentences.append(
          f'{target}: a step of {sampler} takes {seconds / own:.2f} of ours.'
        )
  return sentences


def _main_rows(data):
  return [
    (name, row)
    for name, row in data.get('cases', {}).items()
    if 'cases' in row['series']
  ]


def table_of(head, rows):
  """A table of which all columns but the first hold numbers."""
  rule = ['---'] + ['---:'] * (len(head) - 1)
  return '\n'.join(f'| {" | ".join(row)} |' for row in (head, rule, *rows))


def time_of(seconds):
  """Two digits and a unit."""
  for unit, size in (('s', 1.0), ('ms', 1e-3)):
    if seconds >= size:
      return f'{number_of(seconds / size)} {unit}'
  return f'{number_of(seconds / 1e-6)} µs'


def times_of(ratio):
  """A ratio, or why there is none."""
  return ratio if isinstance(ratio, str) else f'{number_of(ratio)} ×'


def number_of(value):
  """Two digits, and no exponent."""
  if value is None:
    return ''
  if value >= 100:
    digits = len(str(int(value))) - 2
    return f'{round(value, -digits):,.0f}'
  return (
    f'{value:.0f}'
    if value >= 9.95
    else f'{value:.1f}'
    if value >= 0.095
    else f'{value:.2g}'
  )
