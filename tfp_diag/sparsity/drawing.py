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
"""The picture of a sparsity pattern."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Okabe and Ito's palette, which can be told apart with every common form of
# color vision, without its yellow, which is hard to see on white paper.
_PALETTE = (
  '#0072b2',
  '#e69f00',
  '#009e73',
  '#cc79a7',
  '#56b4e9',
  '#d55e00',
  '#000000',
)
_PLAIN = '#1f3b57'  # The color of all nonzeros if there is no coloring.
_MOST_GAPS = 48  # Up to this many coordinates, cells are drawn with gaps.
_MOST_BOUNDARIES = 64  # More lines would be a gray area.
_MOST_STRETCH = 8  # A matrix longer than this is not drawn to scale.


def draw_pattern(pattern: Any, ax: Any = None, coloring: Any = None) -> Any:
  """Draws a pattern, and the colors of its columns, with matplotlib.

  Args:
    pattern: `SparsityPattern`.
    ax: matplotlib axes to draw on. Default: those of a new figure.
    coloring: `Coloring` of the columns, or `None`.

  Returns:
    ax: The axes.

  Raises:
    ImportError: If matplotlib is not installed.
    TypeError: If `ax` is not an `Axes`, or `coloring` is not a `Coloring`.
    ValueError: If `coloring` does not have one color for each column.
  """
  try:
    import matplotlib.pyplot as plt
  except ImportError as e:
    raise ImportError(
      'Drawing a pattern needs matplotlib, which is not installed. Install it '
      "with `pip install 'tfp-diag[plot]'`."
    ) from e
  if ax is not None and not hasattr(ax, 'imshow'):
    raise TypeError(
      f'`ax` is {ax!r}; it is an `Axes` of matplotlib, or None for new ones.'
    )
  if coloring is not None and not hasattr(coloring, 'colors'):
    raise TypeError(
      f'`coloring` is {coloring!r}; give what `color_diagonal(pattern)` '
      'returns, or None.'
    )
  if coloring is not None and len(coloring.colors) != pattern.shape[1]:
    raise ValueError(
      f'`coloring` is for {len(coloring.colors)} coordinates, but the pattern '
      f'has {pattern.shape[1]} columns. Give the coloring of this pattern, '
      '`color_diagonal(pattern)`.'
    )
  if ax is None:
    _, ax = plt.subplots(figsize=(6.4, 5.6), layout='compressed')

  rows, columns = pattern.shape
  bins = _bin_sizes(ax, pattern.shape)
  if pattern.nnz:
    ax.imshow(
      _image(pattern, coloring, bins),
      extent=(
        -0.5,
        -(-columns // bins[1]) * bins[1] - 0.5,
        -(-rows // bins[0]) * bins[0] - 0.5,
        -0.5,
      ),
      interpolation='nearest',
      zorder=2,  # Above the lines between parts, which would hide dots.
    )
  # Some room around small cells: the frame would hide those at the border.
  room = [0.015 * size * (size > _MOST_GAPS) for size in pattern.shape]
  ax.set_xlim(-0.5 - room[1], max(columns, 1) - 0.5 + room[1])
  ax.set_ylim(max(rows, 1) - 0.5 + room[0], -0.5 - room[0])
  ax.set_aspect('equal' if _is_to_scale(pattern.shape) else 'auto')

  _mark_parts(ax.xaxis, ax.axvline, pattern.column_shapes)
  _mark_parts(ax.yaxis, ax.axhline, pattern.row_shapes)
  if max(rows, columns) <= _MOST_GAPS:
    _separate_cells(ax, pattern.shape)
  if coloring is not None and coloring.num_colors:
    _explain_colors(ax, coloring)
  ax.set_xlabel('input coordinate')
  ax.set_ylabel('output coordinate')
  ax.set_title(_title(pattern, coloring, bins), fontsize='medium')
  return ax


def _bin_sizes(ax: Any, shape: tuple[int, int]) -> tuple:
  """How many rows, and how many columns, share a dot."""
  extent = ax.get_window_extent()
  pixels = max(96, int(min(extent.width, extent.height)))

  def bin_size(size):
    # Where not every entry has a pixel and a half, a dot has three: lines of
    # single pixels hardly show.
    return 1 if 3 * size <= 2 * pixels else -(-3 * size // pixels)

  # Whole numbers, and the same for both, so that equal blocks look equal.
  if _is_to_scale(shape):
    return (bin_size(max(shape)),) * 2
  return tuple(bin_size(size) for size in shape)


def _is_to_scale(shape: tuple[int, int]) -> bool:
  return max(shape) <= _MOST_STRETCH * min(shape)


def _image(pattern: Any, coloring: Any, bins: tuple[int, int]) -> np.ndarray:
  """The RGBA image of the pattern, one pixel for each bin."""
  height, width = (-(-size // bin_) for size, bin_ in zip(pattern.shape, bins))
  entries = pattern.matrix.tocoo()
  pixels = (entries.row // bins[0]).astype(np.int64) * width
  pixels += entries.col // bins[1]
  counts = np.bincount(pixels, minlength=height * width)

  # If several colors share a pixel, it shows one of them, drawn at random. So
  # they appear in proportion, and all of them are in the legend.
  shuffled = np.random.default_rng(0).permutation(len(pixels))
  colors = np.zeros(height * width, np.int64)
  if coloring is not None:
    colors[pixels[shuffled]] = coloring.colors[entries.col[shuffled]]
  image = _rgba(coloring)[colors]

  # On a log scale, and with a minimal strength, a single nonzero among 10^5 is
  # still seen beside a dense block.
  if counts.max() > 1:
    strength = 0.3 + 0.7 * np.log(np.maximum(counts, 1)) / np.log(counts.max())
    image[:, :3] = 1 - strength[:, np.newaxis] * (1 - image[:, :3])
  image[counts == 0] = 0  # Transparent.
  return image.reshape([height, width, 4])


def _rgba(coloring: Any) -> np.ndarray:
  """The RGBA color of each color of `coloring`, as an array."""
  import matplotlib as mpl

  if coloring is None:
    return mpl.colors.to_rgba_array([_PLAIN])
  if coloring.num_colors <= len(_PALETTE):
    return mpl.colors.to_rgba_array(_PALETTE)
  return _color_map()(np.linspace(0, 1, coloring.num_colors))


def _color_map() -> Any:
  """Viridis without its light end, which is hard to see on white paper."""
  import matplotlib as mpl

  viridis = mpl.colormaps['viridis'](np.linspace(0, 0.9, 256))
  return mpl.colors.ListedColormap(viridis)


def _mark_parts(axis: Any, draw_line: Callable, shapes: Sequence) -> None:
  """Draws lines and unlabeled ticks between parts."""
  import matplotlib as mpl

  axis.set_major_locator(
    mpl.ticker.MaxNLocator('auto', integer=True, min_n_ticks=1)
  )
  sizes = np.array([np.prod(shape, dtype=np.int64) for shape in shapes])
  begins = np.unique((np.cumsum(sizes) - sizes)[sizes > 0])
  if 2 <= len(begins) <= _MOST_BOUNDARIES:
    boundaries = begins[1:] - 0.5
    for boundary in boundaries:
      draw_line(boundary, color='0.6', linewidth=0.6, zorder=1)
    axis.set_ticks(boundaries, minor=True)
    axis.set_tick_params(which='minor', length=8, width=0.6, color='0.4')


def _separate_cells(ax: Any, shape: tuple[int, int]) -> None:
  """Puts white lines between cells and a light gray below them."""
  rows, columns = shape
  ax.set_facecolor('0.94')
  style = {'color': 'white', 'linewidth': 24 / (12 + max(shape)), 'zorder': 3}
  ax.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, **style)
  ax.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, **style)


def _explain_colors(ax: Any, coloring: Any) -> None:
  """Adds a legend for few colors, a color bar for many."""
  import matplotlib as mpl

  if coloring.num_colors > len(_PALETTE):
    scale = mpl.colors.Normalize(0, coloring.num_colors - 1)
    ax.figure.colorbar(
      mpl.cm.ScalarMappable(scale, _color_map()),
      ax=ax,
      label='color of the column',
      ticks=mpl.ticker.MaxNLocator('auto', integer=True),
    )
    return
  sizes = np.bincount(coloring.colors)
  ax.legend(
    handles=[
      mpl.patches.Patch(color=_PALETTE[color], label=f'{color}: {size:,}')
      for color, size in enumerate(sizes)
    ],
    title='color: columns',
    loc='upper left',
    bbox_to_anchor=(1.01, 1.0),
    frameon=False,
  )


def _title(pattern: Any, coloring: Any, bins: tuple[int, int]) -> str:
  """Size, nonzeros, colors and, if binned, what a dot means."""
  title = (
    f'{pattern.shape[0]:,} x {pattern.shape[1]:,}, {pattern.nnz:,} nonzero'
  )
  if coloring is not None:
    plural = '' if coloring.num_colors == 1 else 's'
    title += f', {coloring.num_colors:,} color{plural}'
  if max(bins) > 1:
    title += f'\n(a dot: {bins[0]:,} x {bins[1]:,} entries)'
  return title
