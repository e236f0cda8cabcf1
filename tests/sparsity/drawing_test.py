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
"""Tests for tfp_diag.sparsity.drawing, by way of `SparsityPattern.spy`."""

import sys

import matplotlib

matplotlib.use('Agg')  # Before pyplot is imported: there may be no display.

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from tfp_diag.sparsity.coloring import Coloring, color_diagonal
from tfp_diag.sparsity.pattern import SparsityPattern


@pytest.fixture(autouse=True)
def _close_figures():
  yield
  plt.close('all')


def _image(ax):
  (image,) = ax.get_images()
  return np.asarray(image.get_array()), image.get_extent()


def _chain(n):
  return SparsityPattern(scipy.sparse.diags([1.0] * 3, [-1, 0, 1], (n, n)))


def _legend(ax):
  return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize('n', [1, 2, 3, 30, 200])
def test_draws_each_nonzero_in_the_color_of_its_column(n):
  pattern = _chain(n)
  coloring = color_diagonal(pattern)
  ax = pattern.spy(coloring=coloring)
  image, extent = _image(ax)
  assert image.shape == (n, n, 4)
  # Pixel (i, j) lies around the point (j, i).
  assert tuple(extent) == (-0.5, n - 0.5, n - 0.5, -0.5)
  np.testing.assert_array_equal(image[:, :, 3], pattern.matrix.toarray())
  patches = ax.get_legend().get_patches()
  for i, j in zip(*pattern.matrix.nonzero()):
    expected = patches[coloring.colors[j]].get_facecolor()
    np.testing.assert_allclose(image[i, j], expected)


@given(
  st.integers(1, 900),
  st.integers(1, 900),
  st.integers(0, 50),
  st.integers(0, 2**32 - 1),
)
@settings(max_examples=25, deadline=None)
def test_no_nonzero_is_lost_and_no_dot_is_invented(rows, columns, nnz, seed):
  rng = np.random.default_rng(seed)
  dense = np.zeros([rows, columns], bool)
  dense[rng.integers(rows, size=nnz), rng.integers(columns, size=nnz)] = True
  ax = SparsityPattern(dense).spy()
  if nnz:
    image, (left, right, bottom, top) = _image(ax)
    height = (bottom - top) / image.shape[0]
    width = (right - left) / image.shape[1]
    expected = np.zeros(image.shape[:2], bool)
    for i, j in np.argwhere(dense):
      expected[int((i + 0.5) // height), int((j + 0.5) // width)] = True
    np.testing.assert_array_equal(image[:, :, 3] > 0, expected)
    # Visible: clearly darker than the white of the paper.
    assert np.all(image[expected][:, :3].min(axis=-1) < 0.75)
  else:
    assert not ax.get_images()
  plt.close('all')


def test_a_long_chain_is_a_visible_line_of_both_colors():
  n = 10**5
  pattern = _chain(n)
  ax = pattern.spy(coloring=color_diagonal(pattern))
  image, _ = _image(ax)
  bins = image.shape[0]
  assert 50 < bins < 400
  assert np.all(image[np.arange(bins), np.arange(bins), 3] == 1)
  off_band = np.abs(np.subtract.outer(range(bins), range(bins))) > 1
  assert np.all(image[off_band][:, 3] == 0)
  # On the paper: every row of pixels that the line crosses has ink of it.
  ax.figure.canvas.draw()
  paper = np.asarray(ax.figure.canvas.buffer_rgba())[::-1, :, :3]
  corners = ax.transData.transform([[0, n], [n, 0]]).astype(int)
  (left, bottom), (right, top) = corners
  inside = paper[bottom + 4 : top - 4, left + 4 : right - 4]
  assert np.all(np.any(inside < 220, axis=(1, 2)))
  assert np.mean(np.any(inside < 250, axis=2)) < 0.05
  diagonal = image[np.arange(bins), np.arange(bins), :3]
  assert len(np.unique(diagonal.round(3), axis=0)) >= 2
  assert 'a dot' in ax.get_title()


def test_a_dot_has_the_color_of_one_of_its_columns():
  n = 3000
  rng = np.random.default_rng(1)
  matrix = scipy.sparse.coo_matrix(
    (np.ones(4000), rng.integers(n, size=[2, 4000])), shape=(n, n)
  )
  pattern = SparsityPattern(matrix)
  coloring = Coloring(np.arange(n) * 3 // n)  # Three bands of columns.
  ax = pattern.spy(coloring=coloring)
  image, _ = _image(ax)
  width = image.shape[1]
  patches = ax.get_legend().get_patches()
  size = int(-(-n // width))
  for pixel in range(width):
    columns = np.arange(pixel * size, min((pixel + 1) * size, n))
    if len(columns) == 0 or len(set(coloring.colors[columns])) > 1:
      continue
    hue = np.array(patches[coloring.colors[columns[0]]].get_facecolor()[:3])
    inked = image[:, pixel][image[:, pixel, 3] > 0, :3]
    # Mixed with white: all on the line from white to the color.
    strength = (1 - inked) @ (1 - hue) / ((1 - hue) @ (1 - hue))
    np.testing.assert_allclose(
      inked, 1 - strength[:, np.newaxis] * (1 - hue), atol=1e-9
    )
    assert np.all((strength > 0.29) & (strength < 1.001))


def test_title_and_legend_say_the_numbers():
  arrowhead = np.eye(30)
  arrowhead[0] = arrowhead[:, 0] = 1
  pattern = SparsityPattern(arrowhead)
  ax = pattern.spy(coloring=color_diagonal(pattern))
  assert ax.get_title() == '30 x 30, 88 nonzero, 2 colors'
  assert _legend(ax) == ['0: 29', '1: 1']
  assert ax.get_aspect() == 1.0
  ax = pattern.spy()
  assert ax.get_title() == '30 x 30, 88 nonzero'
  assert ax.get_legend() is None


def test_many_colors_come_with_a_color_bar():
  pattern = SparsityPattern(np.ones([9, 9]))
  ax = pattern.spy(coloring=color_diagonal(pattern))
  assert ax.get_legend() is None
  image, _ = _image(ax)
  assert len(np.unique(image[0], axis=0)) == 9
  (bar,) = [other for other in ax.figure.axes if other is not ax]
  assert bar.get_ylabel() == 'color of the column'


def test_palette_is_told_apart_with_red_green_blindness():
  # What a protanope and a deuteranope see of linear sRGB: the projections of
  # Viénot, Brettel and Mollon (1999), as matrices.
  pattern = SparsityPattern(np.ones([7, 7]))
  ax = pattern.spy(coloring=color_diagonal(pattern))
  patches = ax.get_legend().get_patches()
  rgb = np.array([patch.get_facecolor()[:3] for patch in patches])
  assert len(rgb) == 7
  linear = rgb**2.2
  for simulation in (
    [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1]],
    [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.0223, 0.0223, 1]],
  ):
    seen = np.clip(linear @ np.transpose(simulation), 0, 1) ** (1 / 2.2)
    distances = np.linalg.norm(seen[:, np.newaxis] - seen, axis=-1)
    assert np.min(distances[~np.eye(7, dtype=bool)]) > 0.1
    # A red and a green that this test would not let pass.
    red, green = np.array([[0.55, 0.34, 0.29], [0.36, 0.40, 0.28]]) ** 2.2
    seen = np.array(simulation) @ (red - green)
    assert np.linalg.norm(seen) < 0.1


def test_marks_where_parts_begin():
  shapes = ((), (), (2, 4))
  pattern = SparsityPattern(
    np.eye(10), row_shapes=((10,),), column_shapes=shapes
  )
  ax = pattern.spy()
  assert ax.get_xticks(minor=True).tolist() == [0.5, 1.5]
  assert ax.get_yticks(minor=True).tolist() == []
  lines = [line.get_xdata()[0] for line in ax.get_lines()]
  assert lines == [0.5, 1.5]
  # Below the nonzeros, which they must not hide.
  (image,) = ax.get_images()
  assert all(line.get_zorder() < image.get_zorder() for line in ax.get_lines())


@pytest.mark.parametrize('shape', [(0, 0), (0, 4), (4, 0), (4, 4), (1, 500)])
def test_draws_what_is_empty_or_long(shape):
  ax = SparsityPattern(np.zeros(shape)).spy()
  ax.figure.canvas.draw()
  assert ax.get_title().startswith(f'{shape[0]} x {shape[1]}, 0 nonzero')
  if shape[0] == shape[1]:
    pattern = SparsityPattern(np.zeros(shape))
    pattern.spy(coloring=color_diagonal(pattern)).figure.canvas.draw()


def test_draws_on_given_axes():
  _, axes = plt.subplots(1, 2)
  assert _chain(5).spy(ax=axes[1]) is axes[1]
  assert len(axes[1].get_images()) == 1
  assert len(axes[0].get_images()) == 0


def test_names_the_extra_where_matplotlib_is_missing(monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  monkeypatch.setitem(sys.modules, 'matplotlib.pyplot', None)
  with pytest.raises(ImportError, match=r"pip install 'tfp-diag\[plot\]'"):
    _chain(3).spy()


def test_refuses_a_coloring_that_does_not_fit():
  with pytest.raises(ValueError, match=r'2 coordinates.*3 columns'):
    _chain(3).spy(coloring=Coloring([0, 1]))
