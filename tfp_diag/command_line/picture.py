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
"""A picture of draws: marginals beside traces."""

import importlib.util
import pathlib

import numpy as np

from tfp_diag.command_line.input_error import InputError
from tfp_diag.command_line.output_files import check_output_file
from tfp_diag.internal.atomic_write import atomic_write

# Some of those that matplotlib knows, whose import takes a second.
ENDINGS = ('png', 'pdf', 'svg', 'eps', 'ps', 'jpg', 'jpeg', 'tif', 'webp')

MOST_PARAMETERS = 10
MOST_CHAINS = 4
MOST_POINTS = 400
NUM_BINS = 60

DRAWS_COLOR = '#9ecae1'
EXACT_COLOR = '#b2182b'
CHAIN_COLORS = ('#08519c', '#e6850d', '#31a354', '#756bb1')


def check_outputs(options):
  """Raises an `InputError` if what --save or --plot ask for could not be made.

  Args:
    options: The options of a command, with the files that these two name.

  Raises:
    InputError: if matplotlib is missing, an ending is not known, or a file
      cannot be written.
  """
  if options.save is not None:
    check_output_file('--save', options.save, ['npz'])
  if options.plot is None:
    return
  if importlib.util.find_spec('matplotlib') is None:
    raise InputError('--plot needs matplotlib: pip install matplotlib.')
  check_output_file('--plot', options.plot, ENDINGS)


def draw_picture(path, title, parameters, marginal_pdf, summary):
  """Draws the marginals and traces of up to ten parameters.

  Of more than ten parameters those with the largest R-hat are shown.

  Args:
    path: Python `str`; its suffix decides the format.
    title: Python `str`.
    parameters: Mapping from names to arrays [draws, chains].
    marginal_pdf: Mapping from some of the names to their exact density.
    summary: The `tfp_diag.mcmc.Summary` of the parameters.
  """
  from matplotlib.backends import backend_agg
  from matplotlib.figure import Figure

  names = _chosen_names(list(parameters), summary.r_hat)
  columns = 1 if len(names) <= 4 else 2
  rows = -(-len(names) // columns)
  figure = Figure(figsize=(5.6 * columns, 1.45 * rows + 0.9))
  backend_agg.FigureCanvasAgg(figure)
  figure.set_layout_engine('constrained')
  axes = figure.subplots(
    rows,
    2 * columns,
    squeeze=False,
    gridspec_kw={'width_ratios': [1.0, 1.6] * columns},
  )
  for i, name in enumerate(names):
    row, column = i % rows, 2 * (i // rows)
    marginal, trace = axes[row, column : column + 2]
    _draw_marginal(marginal, name, parameters[name], marginal_pdf.get(name))
    _draw_trace(trace, parameters[name])
  for unused in range(len(names), rows * columns):
    for axis in axes[unused % rows, 2 * (unused // rows) :]:
      axis.set_axis_off()
  num_chains = min(MOST_CHAINS, next(iter(parameters.values())).shape[1])
  for column in range(columns):
    last = min(rows, len(names) - column * rows) - 1
    for trace in axes[:last, 2 * column + 1]:
      trace.set_xticklabels([])
    axes[last, 2 * column + 1].set_xlabel('draw', fontsize=9)
    axes[0, 2 * column].set_title('marginal', fontsize=9)
    axes[0, 2 * column + 1].set_title(f'{num_chains} chains', fontsize=9)
  if len(names) < len(parameters):
    title += f' (the {len(names)} largest R-hat of {len(parameters)})'
  figure.suptitle(title, fontsize=11)
  _add_legend(figure, axes[0, 0])
  suffix = pathlib.Path(path).suffix[1:].lower()
  with atomic_write(path) as file:
    figure.savefig(file, format=suffix, dpi=200)


def _chosen_names(names, r_hat):
  if len(names) <= MOST_PARAMETERS:
    return names
  worst_first = np.argsort(-np.nan_to_num(r_hat, nan=np.inf), kind='stable')
  return [names[i] for i in worst_first[:MOST_PARAMETERS]]


def _draw_marginal(axis, name, draws, pdf):
  """A histogram of all draws, and the exact density over it."""
  low, high = np.quantile(draws, [0.002, 0.998])
  if not low < high:
    low, high = low - 0.5, high + 0.5
  edges = np.linspace(low, high, NUM_BINS + 1)
  counts, _ = np.histogram(draws, edges)
  # Over all draws, those outside the picture included: so that the area
  # compares with the exact density.
  density = counts / (draws.size * np.diff(edges))
  axis.stairs(density, edges, fill=True, color=DRAWS_COLOR, label='draws')
  if pdf is not None:
    x = np.linspace(low, high, 400)
    axis.plot(x, pdf(x), color=EXACT_COLOR, linewidth=1.2, label='exact')
  axis.set_xlim(low, high)
  axis.set_ylim(bottom=0.0)
  axis.set_yticks([])
  axis.locator_params(axis='x', nbins=5)
  axis.set_ylabel(name, rotation=0, ha='right', va='center', fontsize=10)
  axis.tick_params(labelsize=7)
  axis.spines[['left', 'right', 'top']].set_visible(False)


def _draw_trace(axis, draws):
  """A few chains, thinned so that their lines stay apart."""
  stride = max(1, len(draws) // MOST_POINTS)
  steps = np.arange(0, len(draws), stride)
  for chain in range(min(MOST_CHAINS, draws.shape[1])):
    axis.plot(
      steps,
      draws[steps, chain],
      color=CHAIN_COLORS[chain],
      linewidth=0.5,
      alpha=0.8,
    )
  axis.set_xlim(0, len(draws))
  axis.locator_params(axis='x', nbins=5)
  axis.locator_params(axis='y', nbins=4)
  axis.tick_params(labelsize=7)
  axis.spines[['right', 'top']].set_visible(False)


def _add_legend(figure, axis):
  handles, labels = axis.get_legend_handles_labels()
  figure.legend(
    handles,
    labels,
    loc='outside lower center',
    ncols=len(labels),
    frameon=False,
    fontsize=9,
  )
