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
"""Table and picture of the zoo of samplers."""

import math
import statistics

import matplotlib

matplotlib.use('Agg')

from matplotlib import pyplot as plt

from benchmarks.zoo_figures import CONVERGED

__all__ = ['table', 'write']

# Okabe and Ito's colors, which most people can tell apart.
STYLES = {
  'ours auto': ('#D55E00', 'o'),
  'ours MALA': ('#E69F00', 'o'),
  'TFP NUTS': ('#0072B2', 's'),
  'TFP SNAPER HMC': ('#56B4E9', 's'),
  'numpyro NUTS': ('#009E73', '^'),
  'blackjax NUTS': ('#000000', 'D'),
  'nutpie NUTS': ('#CC79A7', 'v'),
}
# In the picture; the file of results has the names above.
LABELS = {
  'ours auto': 'sample_posterior',
  'ours MALA': 'windowed_adaptive_mala',
}

# Standard errors that a mean may be off in the median of the seeds.
_MOST_OFF = 10.0
MARKS = f"""† R-hat is above {CONVERGED} in some run: effective sample sizes say
little. ‡ Means or standard deviations are more than {_MOST_OFF:.0f} standard
errors off. – No answer in time.
"""

# Those that are compiled once for all seeds, as ours are.
BEST = ('numpyro NUTS', 'blackjax NUTS')

HEAD = (
  'posterior',
  'sampler',
  'chains × draws',
  'R-hat',
  'bulk ESS',
  'tail ESS',
  'ESS of squares',
  'gradients/draw',
  'without warm-up',
  'ms/draw',
  'without warm-up',
  'compilation',
  'z of means',
  'z of sds',
)
NOTES = f"""
Medians over seeds, but the largest R-hat, of the worst coordinate. A draw is an
effective one, by the least bulk ESS of the coordinates, or ESS of their
squares, if that is less; gradients are those of all chains, warm-up
included or not. ESS means little where R-hat, in bold, is beyond {CONVERGED}.
TFP's samplers and ours move 64 chains at once; the NUTS of numpyro, blackjax
and nutpie have the 4 they are usually run with, vectorized but for nutpie's,
which calls Python for each gradient of one chain. None is tuned by hand.
Seconds are without compilation, where more than one seed was run; without warm-
up they are measured for numpyro and blackjax, and for the others the share of
their gradients. z is the largest distance from the truth, over all coordinates,
in Monte Carlo standard errors: 3 is usual for a hundred coordinates; empty
where the truth is not known.
"""


def table(rows):
  """The figures of all cells, in Markdown, and what they are.

  Args:
    rows: Dict, the group 'zoo' of a file of results.

  Returns:
    Python str.
  """
  lines = [_line(HEAD), _line(['---'] * 2 + ['---:'] * (len(HEAD) - 2))]
  for name, row in rows.items():
    for sampler in STYLES:
      if sampler in row['tools']:
        title = f'{row.get("title", name)}, d = {row.get("size", "?")}'
        lines.append(_line([title, sampler, *_cells(row['tools'][sampler])]))
  parts = [
    by_posterior(rows),
    by_posterior(rows, 'seconds'),
    ratios(rows),
    ratios(rows, 'seconds'),
    beside_the_better(rows),
  ]
  return '\n'.join(lines) + '\n' + '\n'.join([NOTES, *filter(None, parts)])


def by_posterior(rows, what='gradients'):
  """What an effective draw costs, warm-up included, a column per sampler.

  Args:
    rows: Dict, the group 'zoo' of a file of results.
    what: Python str, 'gradients' or 'seconds'; of those the milliseconds.

  Returns:
    Python str, a table in Markdown; cells are marked as `MARKS` says.
  """
  unit = 1e3 if what == 'seconds' else 1.0
  head = 'ms' if what == 'seconds' else what
  samplers = [s for s in STYLES if any(s in r['tools'] for r in rows.values())]
  lines = [_line([f'{head}/draw', *samplers])]
  lines.append(_line(['---'] + ['---:'] * len(samplers)))
  for name, row in rows.items():
    cells = [_marked(row['tools'].get(s), what, unit) for s in samplers]
    lines.append(_line([row.get('title', name), *cells]))
  return '\n'.join([*lines, '', MARKS])


def _marked(cell, what, unit):
  if not cell or not cell['runs']:
    return '–'
  number = _number(cell[f'{what}_per_draw']['with_warmup'], unit)
  if (cell['r_hat'] or math.inf) > CONVERGED:
    return f'{number} †'
  off = max(cell.get('z_mean') or 0.0, cell.get('z_sd') or 0.0)
  return f'{number} ‡' if off > _MOST_OFF else number


def ratios(rows, what='gradients', ours='ours auto'):
  """What an effective draw costs over what it costs each other sampler.

  Posteriors count on which both have converged, R-hat up to `CONVERGED`.

  Args:
    rows: Dict, the group 'zoo' of a file of results.
    what: Python str, 'gradients' or 'seconds'.
    ours: Python str, the name of a sampler.

  Returns:
    Python str, a table in Markdown: the median and the most, with warm-up and
    without.
  """
  kinds = ('with_warmup', 'without_warmup')
  head = [f'{what}, {ours} over', 'posteriors', 'with warm-up, median', 'most']
  head += ['without, median', 'most']
  lines = []
  for sampler in STYLES:
    pairs = [
      [row['tools'].get(name, {}) for name in (ours, sampler)]
      for row in rows.values()
    ]
    pairs = [
      [cell[f'{what}_per_draw'] for cell in pair]
      for pair in pairs
      if all((c.get('r_hat') or math.inf) <= CONVERGED for c in pair)
    ]
    if sampler == ours or not pairs:
      continue
    words = [sampler, str(len(pairs))]
    for kind in kinds:
      found = [mine[kind] / theirs[kind] for mine, theirs in pairs]
      words += [f'{statistics.median(found):.2f}', f'{max(found):.2f}']
    lines.append(_line(words))
  if not lines:
    return ''
  return '\n'.join([_line(head), _line(['---'] + ['---:'] * 5), *lines]) + '\n'


def beside_the_better(rows, others=BEST, ours='ours auto'):
  """Seconds per effective draw over those of the faster one of some others.

  Also on posteriors on which that has not converged.

  Args:
    rows: Dict, the group 'zoo' of a file of results.
    others: Tuple of names of samplers.
    ours: Python str, the name of a sampler.

  Returns:
    Python str, a sentence; empty where there is nothing to compare.
  """
  found = {}
  for name, row in rows.items():
    mine, *theirs = (
      row['tools'].get(s, {}).get('seconds_per_draw', {}).get('with_warmup')
      for s in (ours, *others)
    )
    theirs = [t for t in theirs if t]
    if mine and theirs:
      found[name] = mine / min(theirs)
  if not found:
    return ''
  worst = max(found, key=found.__getitem__)
  return (
    f'Seconds of {ours}, warm-up included, over those of the faster one of '
    f'{" and ".join(others)}, on {len(found)} posteriors: '
    f'{statistics.median(found.values()):.2f} in the median, '
    f'{found[worst]:.2f} at most ({worst}).\n'
  )


def write(data, path):
  """Writes table and picture beside a file of results.

  Args:
    data: Dict, the object of the file.
    path: Path of the file.

  Returns:
    List of paths.
  """
  about = data['about']
  versions = ', '.join(f'{k} {v}' for k, v in about['versions'].items() if v)
  text = (
    f'# Samplers on a zoo of posteriors\n\n{table(data["zoo"])}\n'
    f'{about["date"]}, {about["machine"]["cores"]} cores; {versions}.\n'
  )
  path.with_suffix('.md').write_text(text, encoding='utf-8')
  drawn = [path.with_suffix('.md')]
  if any(
    'r_hat' in c for r in data['zoo'].values() for c in r['tools'].values()
  ):
    drawn.append(_draw(data['zoo'], path.with_suffix('.png')))
  return drawn


def _cells(cell):
  sizes = cell['sizes']
  shape = f'{sizes["chains"]} × {sizes["draws"]:,}'
  if not cell['runs']:
    reason = cell.get('reason', '').replace('|', '/')[:60]
    return [shape, f'{cell["status"]}: {reason}', *[''] * (len(HEAD) - 4)]
  r_hat = cell['r_hat']
  gradients, seconds = cell['gradients_per_draw'], cell['seconds_per_draw']
  r_hat = math.inf if r_hat is None else r_hat
  return [
    shape,
    f'{r_hat:.3f}' if r_hat <= CONVERGED else f'**{r_hat:.2f}**',
    *[f'{cell[f"ess_{kind}"]:,.0f}' for kind in ('bulk', 'tail', 'squares')],
    _number(gradients['with_warmup']),
    _number(gradients['without_warmup']),
    _number(seconds['with_warmup'], 1e3),
    _number(seconds['without_warmup'], 1e3),
    '' if cell['compile_s'] is None else f'{cell["compile_s"]:.0f} s',
    *[_number(cell[key]) if key in cell else '' for key in ('z_mean', 'z_sd')],
  ]


def _line(words):
  return '| ' + ' | '.join(words) + ' |'


def _number(value, unit=1.0):
  """Two digits, and no exponent; JSON has no infinity."""
  if value is None or math.isinf(value):
    return '∞'
  value *= unit
  if value >= 100:
    digits = len(str(int(value))) - 2
    return f'{round(value, -digits):,.0f}'
  return f'{value:.2g}'


def _draw(rows, path):
  """Gradients per effective draw, with warm-up and without, by posterior."""
  names = [n for n in rows if any(c['runs'] for c in rows[n]['tools'].values())]
  figure, axes = plt.subplots(
    1,
    2,
    figsize=(11.0, 1.6 + 0.46 * len(names)),
    sharex=True,
    sharey=True,
    layout='constrained',
  )
  for ax, which, title in zip(
    axes,
    ('with_warmup', 'without_warmup'),
    ('with warm-up', 'without warm-up'),
  ):
    for k, (sampler, (color, marker)) in enumerate(STYLES.items()):
      for y, name in enumerate(names):
        cell = rows[name]['tools'].get(sampler, {'runs': []})
        if not cell['runs'] or not cell['gradients_per_draw'][which]:
          continue
        is_good = cell['r_hat'] is not None and cell['r_hat'] <= CONVERGED
        ax.plot(
          cell['gradients_per_draw'][which],
          # One above the other, the first one on top.
          y + 0.11 * (k - (len(STYLES) - 1) / 2),
          marker=marker,
          color=color,
          markerfacecolor=color if is_good else 'white',
          markersize=7 if sampler.startswith('ours') else 5.5,
          linestyle='',
        )
    for y in range(1, len(names)):
      ax.axhline(y - 0.5, color='0.9', linewidth=0.8, zorder=0)
    ax.set(xscale='log', title=title, xlabel='gradients per effective draw')
    ax.grid(axis='x', alpha=0.25)
    ax.spines[['top', 'right']].set_visible(False)
  axes[0].set_yticks(
    range(len(names)),
    [f'{rows[n].get("title", n)} ({rows[n].get("size", "?")})' for n in names],
  )
  axes[0].set_ylim(len(names) - 0.5, -0.5)
  seen = {s for n in names for s, c in rows[n]['tools'].items() if c['runs']}
  handles = [
    plt.Line2D(
      [],
      [],
      color=color,
      marker=marker,
      linestyle='',
      label=LABELS.get(sampler, sampler),
    )
    for sampler, (color, marker) in STYLES.items()
    if sampler in seen
  ]
  hollow = plt.Line2D(
    [],
    [],
    color='0.3',
    marker='o',
    markerfacecolor='white',
    linestyle='',
    label=f'R-hat beyond {CONVERGED}',
  )
  figure.legend(
    handles=[*handles, hollow],
    loc='outside lower center',
    ncols=4,
    frameon=False,
  )
  figure.savefig(path, dpi=130)
  plt.close(figure)
  return path
