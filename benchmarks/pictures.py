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
"""Pictures of a run: how time and memory grow."""

import pathlib

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt

from benchmarks.tools import GRADIENT, SAMPLERS, TFP_DIAG

__all__ = ['draw']

# Okabe and Ito (2008): distinct for the color-blind, too; with a marker each.
_STYLES = {
  GRADIENT: ('0.55', '', ':'),
  TFP_DIAG: ('#D55E00', 'o', '-'),
  'tfp_diag, no plan': ('#D55E00', 'o', '--'),
  'TFP diag_jacobian, XLA': ('#0072B2', 's', '-'),
  'batch_jacobian, XLA': ('#56B4E9', 'D', '-'),
  'JAX vmap(hessian)': ('#009E73', '^', '-'),
  'JAX map(jvp(grad))': ('#000000', 'v', '-'),
  'asdex': ('#CC79A7', 'P', '-'),
  'torch vmap(hessian)': ('#E69F00', 'X', '-'),
}

_SAMPLER_STYLES = dict(
  zip(
    SAMPLERS,
    (
      ('#D55E00', 'o', '-'),
      ('#0072B2', 's', '-'),
      ('#56B4E9', 'D', '-'),
      ('#009E73', '^', '-'),
      ('#CC79A7', 'P', '-'),
      ('#D55E00', 'o', '--'),
      ('#0072B2', 's', '--'),
    ),
  )
)

_TITLES = {
  'chain': 'chain',
  'lattice': 'φ⁴ lattice',
  'hierarchical': 'hierarchical, with gathers',
  'dense': 'logistic regression (dense)',
}


def draw(data, folder):
  """Draws what a run has.

  Args:
    data: Dict, the object of a file of `benchmarks.run`.
    folder: Path of a folder, made if there is none.

  Returns:
    List of paths of the files written.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  growth = [name for name in _TITLES if _members(data, 'cases', name)]
  drawn = []
  if growth:
    for what, label in (
      ('time', 'seconds of a diagonal'),
      ('memory', 'GiB beyond the start'),
    ):
      figure, axes = _panels(len(growth))
      for ax, series in zip(axes, growth):
        _lines(ax, _members(data, 'cases', series), 'n', what, _STYLES)
        ax.set(title=_TITLES[series], xlabel='coordinates')
      axes[0].set_ylabel(label)
      drawn.append(_save(figure, folder / f'{what}_by_size.png', _STYLES))
  batch = _members(data, 'cases', 'batch')
  if batch:
    figure, (ax,) = _panels(1)
    _lines(ax, batch, 'batch', 'time', _STYLES)
    ax.set(title='Gaussian of 3 coordinates', xlabel='samples')
    ax.set_ylabel('seconds of all diagonals')
    drawn.append(_save(figure, folder / 'time_by_batch.png', _STYLES))
  structures = [n for n in _TITLES if _members(data, 'structures', n)]
  if structures:
    figure, axes = _panels(len(structures))
    for ax, series in zip(axes, structures):
      _lines(ax, _members(data, 'structures', series), 'n', 'found', _STYLES)
      ax.set(title=_TITLES[series], xlabel='coordinates')
    axes[0].set_ylabel('seconds of detection and coloring')
    drawn.append(_save(figure, folder / 'structure_by_size.png', _STYLES))
  samplers = list(data.get('samplers', {}).values())
  if samplers:
    drawn.append(_draw_samplers(samplers, folder / 'sampler_steps.png'))
  return drawn


def _draw_samplers(rows, path):
  """Two panels: by dimension and by chains, at the commonest other number."""

  def commonest(key):
    values = [row[key] for row in rows]
    return max(sorted(set(values)), key=values.count)

  figure, axes = _panels(2)
  for ax, key, other, label in zip(
    axes,
    ('n', 'batch'),
    ('batch', 'n'),
    ('coordinates, {} chains', 'chains, {} coordinates'),
  ):
    fixed = commonest(other)
    chosen = [row for row in rows if row[other] == fixed]
    chosen.sort(key=lambda row: row[key])
    _lines(ax, chosen, key, 'time', _SAMPLER_STYLES)
    ax.set(title='standard normal', xlabel=label.format(fixed))
  axes[0].set_ylabel('seconds of a step of all chains')
  return _save(figure, path, _SAMPLER_STYLES)


def _members(data, group, series):
  """The rows of a series, by size."""
  rows = [
    row for row in data.get(group, {}).values() if series in row['series']
  ]
  return sorted(rows, key=lambda row: row['n'] * row['batch'])


def _panels(count):
  width = 3.4 * count if count > 1 else 5.0
  figure = plt.figure(figsize=(width, 4.0), layout='constrained')
  return figure, figure.subplots(1, count, sharey=True, squeeze=False)[0]


def _lines(ax, rows, key, what, styles):
  """One line for each tool that has anything."""
  for tool, (color, marker, line) in styles.items():
    points = [
      (row[key], _value(row['tools'][tool], what))
      for row in rows
      if tool in row['tools']
    ]
    points = [(x, y) for x, y in points if y]
    if points:
      ax.plot(
        *zip(*points),
        line,
        color=color,
        marker=marker,
        markersize=5,
        markerfacecolor='white' if line == '--' else color,
        linewidth=2.5 if tool.startswith('tfp_diag') else 1.3,
        zorder=3 if tool.startswith('tfp_diag') else 2,
        label=tool,
      )
  ax.set(xscale='log', yscale='log')
  ax.grid(alpha=0.25)
  ax.spines[['top', 'right']].set_visible(False)


def _value(cell, what):
  if what == 'found':
    return cell.get('detection_s', 0) + cell.get('coloring_s', 0)
  if 'median_s' not in cell:
    return None
  return cell['median_s'] if what == 'time' else cell['memory_gib']


def _save(figure, path, styles):
  """Writes a figure, with one legend beneath all panels."""
  handles = {}
  for ax in figure.axes:
    for handle, label in zip(*ax.get_legend_handles_labels()):
      handles.setdefault(label, handle)
  labels = [label for label in styles if label in handles]
  figure.legend(
    [handles[label] for label in labels],
    labels,
    loc='outside lower center',
    ncols=max(2, len(figure.axes)),
    frameon=False,
  )
  figure.savefig(path, dpi=130)
  plt.close(figure)
  return path
