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
"""A picture of a plan: its pattern, the colors, and the names of the parts."""

import pathlib

import numpy as np

from tfp_diag.internal.atomic_write import atomic_write

# At 200 dots per inch so many coordinates have a pixel and a half. Up to twice
# as many get more dots; beyond, dots for several entries had better be seen.
_DPI, _MOST_AT_DPI = 200, 480
# Names that are closer than this share of the picture stand in one place.
_LEAST_DISTANCE = 0.12


def draw_plan(path, plan, part_names):
  """Draws the pattern of a plan with one pixel or more for each entry.

  Beyond 960 coordinates a dot stands for several entries, and the title
  says so.

  Args:
    path: Python `str`; its suffix decides the format.
    plan: A `tfp_diag.Plan`.
    part_names: List of `str`, one for each part that is not empty.
  """
  from matplotlib.backends import backend_agg
  from matplotlib.figure import Figure

  finer = plan.num_coordinates / _MOST_AT_DPI
  dpi = _DPI * (max(1.0, finer) if finer <= 2.0 else 1.0)
  figure = Figure(figsize=(6.4, 5.2), layout='constrained', dpi=dpi)
  backend_agg.FigureCanvasAgg(figure)
  axes = plan.pattern.spy(figure.subplots(), coloring=plan.coloring)
  what = ('coordinate',) * 2
  if plan.kind == 'jacobian':
    what = ('input coordinate', 'output coordinate')
  if len(part_names) == 1:
    what = [f'{text} of {part_names[0]}' for text in what]
  else:
    _name_parts(axes, plan.event_shapes, part_names)
  axes.set_xlabel(what[0])
  axes.set_ylabel(what[1])
  passes = 'pass' if plan.num_passes == 1 else 'passes'
  figure.suptitle(
    f'Diagonal {plan.kind.title()}: {plan.num_passes:,} {passes}, {plan.how}',
    fontsize='large',
  )
  suffix = pathlib.Path(path).suffix[1:].lower()
  with atomic_write(path) as file:
    figure.savefig(file, format=suffix, dpi='figure', bbox_inches='tight')


def _name_parts(axes, event_shapes, names):
  """Writes the names of the parts above their columns and beside their rows."""
  sizes = [int(np.prod(shape)) for shape in event_shapes]
  sizes = np.array([size for size in sizes if size])
  centers = np.cumsum(sizes) - 0.5 * sizes - 0.5
  places = []
  for name, center in zip(names, centers):
    if places and center - places[-1][0] < _LEAST_DISTANCE * sum(sizes):
      places[-1] = places[-1][0], f'{places[-1][1]}, {name}'
    else:
      places.append((center, name))
  centers, names = map(list, zip(*places))
  # A name that may be long, of a short part at the border, stays inside.
  beside = [0.3 * _LEAST_DISTANCE * sum(sizes) > center for center in centers]
  for secondary, is_left in (
    (axes.secondary_xaxis('top'), 'ha'),
    (axes.secondary_yaxis('right'), 'va'),
  ):
    axis = secondary.xaxis if is_left == 'ha' else secondary.yaxis
    axis.set_ticks(centers, names)
    secondary.tick_params(length=0, labelsize='small', pad=2)
    for label, at_border in zip(axis.get_ticklabels(), beside):
      if at_border:
        label.set(**{is_left: 'left' if is_left == 'ha' else 'top'})
  axes.set_title(axes.get_title(), fontsize='medium', pad=18)
  legend = axes.get_legend()
  if legend is not None:
    legend.set_bbox_to_anchor((1.14, 1.0), axes.transAxes)
