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
"""Tests for tfp_diag.sparsity.coloring."""

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from tfp_diag.sparsity import greedy
from tfp_diag.sparsity.coloring import (
  Coloring,
  check_diagonal_coloring,
  color_diagonal,
)
from tfp_diag.sparsity.pattern import SparsityPattern


def _band(n, half_width):
  offsets = range(-half_width, half_width + 1)
  return scipy.sparse.diags([1.0] * len(offsets), offsets, (n, n)).tocsr()


def _ring(n):
  """The matrix of a periodic chain."""
  shift = scipy.sparse.csr_matrix(np.roll(np.eye(n), 1, axis=1))
  return scipy.sparse.eye(n) + shift + shift.T


def _sum_over_axes(*chains):
  """The matrix of a grid with the given chain along each axis."""
  total = 0
  for axis in range(len(chains)):
    term = scipy.sparse.eye(1)
    for k, chain in enumerate(chains):
      factor = chain if k == axis else scipy.sparse.eye(chain.shape[0])
      term = scipy.sparse.kron(term, factor)
    total = total + term
  return total


def _with_hubs(rest, num_hubs):
  """Couples `num_hubs` further coordinates to each other and to all others."""
  n = rest.shape[0]
  edge = scipy.sparse.csr_matrix(np.ones([num_hubs, n]))
  corner = np.ones([num_hubs, num_hubs])
  return scipy.sparse.bmat([[corner, edge], [edge.T, rest]]).tocsr()


def _brusselator(size):
  grid = _sum_over_axes(_ring(size), _ring(size))
  sites = scipy.sparse.eye(size**2)
  return scipy.sparse.bmat([[grid, sites], [sites, grid]])


def _blocks(num_blocks, size):
  return scipy.sparse.kron(scipy.sparse.eye(num_blocks), np.ones([size, size]))


_KNOWN = {
  'empty': (scipy.sparse.csr_matrix((0, 0)), 0),
  'one': (np.ones([1, 1]), 1),
  'one, zero': (np.zeros([1, 1]), 1),
  'zero': (np.zeros([5, 5]), 1),
  'diagonal': (scipy.sparse.eye(17), 1),
  'tridiagonal': (_band(100, 1), 2),
  'tridiagonal, without its diagonal': (_band(9, 1) - scipy.sparse.eye(9), 2),
  'tridiagonal, upper half': (scipy.sparse.triu(_band(9, 1)), 2),
  **{f'band {b}': (_band(50, b), b + 1) for b in range(8)},
  'band as wide as the matrix': (_band(4, 3), 4),
  'grid 8 x 8': (_sum_over_axes(_band(8, 1), _band(8, 1)), 2),
  'grid 7 x 9': (_sum_over_axes(_band(7, 1), _band(9, 1)), 2),
  'grid 64 x 64, periodic': (_sum_over_axes(_ring(64), _ring(64)), 2),
  'grid 5 x 6, periodic': (_sum_over_axes(_ring(5), _ring(6)), 3),
  '3-D 7-point': (_sum_over_axes(_band(6, 1), _band(5, 1), _band(4, 1)), 2),
  'arrowhead': (_with_hubs(scipy.sparse.eye(99), 1), 2),
  'arrowhead, point last': (_with_hubs(np.eye(99), 1)[::-1, ::-1], 2),
  **{f'blocks of {k}': (_blocks(12, k), k) for k in (1, 2, 3, 7)},
  'dense': (np.ones([40, 40]), 40),
  'dense, strictly lower': (np.tril(np.ones([40, 40]), -1), 40),
  'Brusselator 2 x 32 x 32, periodic': (_brusselator(32), 2),
  **{f'ring of {n}': (_ring(n), 2 + n % 2) for n in range(4, 12)},
  **{
    f'wheel of {n}': (_with_hubs(_ring(n), 1), 3 + n % 2) for n in (4, 5, 8, 9)
  },
  'hierarchical normal': (_with_hubs(scipy.sparse.eye(200), 3), 4),
  'chain with 3 hyperparameters': (_with_hubs(_band(60, 1), 3), 5),
  'bipartite, complete': (np.kron([[0, 1], [1, 0]], np.ones([6, 6])), 2),
  'one dense pair of coordinates missing': (
    np.ones([9, 9]) - np.eye(9)[[1, 0, *range(2, 9)]] * (np.arange(9) < 2),
    8,
  ),
}


@pytest.mark.parametrize('name', _KNOWN)
def test_color_counts_known_in_closed_form(name):
  matrix, num_colors = _KNOWN[name]
  coloring = color_diagonal(matrix)
  assert coloring.num_colors == num_colors
  check_diagonal_coloring(matrix, coloring)


@pytest.mark.parametrize(
  'name',
  [
    name
    for name in _KNOWN
    # Here the numbering decides: no fast algorithm is exact for all graphs.
    if not name.startswith(('band', 'grid 5 x 6'))
    or name == 'band as wide as the matrix'
  ],
)
def test_color_counts_do_not_depend_on_the_numbering(name):
  matrix, num_colors = _KNOWN[name]
  matrix = scipy.sparse.csr_matrix(matrix)
  for seed in range(5):
    order = np.random.default_rng(seed).permutation(matrix.shape[0])
    shuffled = matrix[order][:, order]
    coloring = color_diagonal(shuffled)
    assert coloring.num_colors == num_colors
    check_diagonal_coloring(shuffled, coloring)


def test_components_do_not_add_up_their_colors():
  parts = [
    np.ones([4, 4]),
    _ring(7).toarray(),
    _band(30, 1).toarray(),
    _with_hubs(_ring(5), 1).toarray(),
    np.zeros([3, 3]),
  ]
  matrix = scipy.sparse.block_diag(parts, format='csr')
  order = np.random.default_rng(0).permutation(matrix.shape[0])
  matrix = matrix[order][:, order]
  coloring = color_diagonal(matrix)
  assert coloring.num_colors == 4
  check_diagonal_coloring(matrix, coloring)


@pytest.mark.parametrize(
  'matrix, num_colors',
  [
    (_band(10**6, 1), 2),
    (_blocks(10**5, 3), 3),
    (np.ones([2000, 2000], bool), 2000),
    (_with_hubs(_band(10**5, 1), 3), 5),
  ],
  ids=['chain', 'cliques', 'dense', 'state space model'],
)
def test_large(matrix, num_colors):
  coloring = color_diagonal(matrix)
  assert coloring.num_colors == num_colors
  # The validator's condition, vectorized.
  entries = scipy.sparse.coo_matrix(matrix)
  off_diagonal = entries.row != entries.col
  colors = coloring.colors
  assert np.all(
    colors[entries.row[off_diagonal]] != colors[entries.col[off_diagonal]]
  )


def _matrices(max_size=12):
  """Random square 0-1 matrices, symmetric or not, of any density."""

  @st.composite
  def draw_matrix(draw):
    n = draw(st.integers(0, max_size))
    density = draw(st.sampled_from([0.02, 0.1, 0.2, 0.5, 0.9]))
    symmetric = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    matrix = rng.random([n, n]) < density
    return matrix | matrix.T if symmetric else matrix

  return draw_matrix()


@given(_matrices(max_size=40))
@settings(max_examples=200, deadline=None)
def test_random_patterns_pass_the_validator(matrix):
  coloring = color_diagonal(matrix)
  check_diagonal_coloring(matrix, coloring)
  assert coloring.colors.shape == (matrix.shape[0],)
  sizes = np.bincount(coloring.colors, minlength=0)
  assert len(sizes) == coloring.num_colors
  assert np.all(sizes > 0)
  assert np.all(np.diff(sizes) <= 0)


@given(_matrices(max_size=25), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_seeds_of_the_colors_recover_the_diagonal(matrix, seed):
  rng = np.random.default_rng(seed)
  n = matrix.shape[0]
  values = rng.normal(size=[n, n]) * matrix
  signs = rng.choice([-1.0, 1.0], size=n)
  coloring = color_diagonal(matrix)
  for product in (lambda v: values @ v, lambda v: values.T @ v):
    diagonal = np.zeros(n)
    for color in range(coloring.num_colors):
      members = coloring.colors == color
      diagonal += np.where(members, signs * product(signs * members), 0.0)
    np.testing.assert_array_equal(diagonal, np.diag(values))


def _chromatic_number(adjacent):
  """By trying all colorings."""
  n = len(adjacent)
  for num_colors in range(n + 1):
    for colors in itertools.product(range(num_colors), repeat=n):
      if not any(
        adjacent[i][j] and colors[i] == colors[j]
        for i in range(n)
        for j in range(i)
      ):
        return num_colors


def _degeneracy(adjacent):
  """The largest smallest degree met while removing nodes of smallest degree."""
  left = set(range(len(adjacent)))
  largest = 0
  while left:
    degree = {i: sum(adjacent[i][j] for j in left) for i in left}
    node = min(left, key=degree.get)
    largest = max(largest, degree[node])
    left.remove(node)
  return largest


@given(_matrices(max_size=6))
@settings(max_examples=150, deadline=None)
def test_is_exact_for_up_to_six_coordinates(matrix):
  # Among graphs of at most six nodes none defeats all of the four orders.
  adjacent = (matrix | matrix.T) & ~np.eye(len(matrix), dtype=bool)
  expected = _chromatic_number(adjacent.tolist())
  assert color_diagonal(matrix).num_colors == expected


@given(_matrices(max_size=40))
@settings(max_examples=100, deadline=None)
def test_at_most_one_color_more_than_the_degeneracy(matrix):
  adjacent = (matrix | matrix.T) & ~np.eye(len(matrix), dtype=bool)
  bound = _degeneracy(adjacent.tolist()) + 1
  assert color_diagonal(matrix).num_colors <= bound


@given(_matrices(max_size=15), st.data())
@settings(max_examples=100, deadline=None)
def test_validator_fails_on_a_broken_coloring(matrix, data):
  pairs = [(i, j) for i, j in np.argwhere(matrix).tolist() if i != j]
  colors = color_diagonal(matrix).colors.copy()
  if not pairs:
    check_diagonal_coloring(matrix, np.zeros_like(colors))
    return
  i, j = data.draw(st.sampled_from(pairs))
  # A color of its own for this pair, so that it is the only one that clashes.
  colors[[i, j]] = colors.max() + 1
  with pytest.raises(ValueError, match='both have color') as e:
    check_diagonal_coloring(matrix, colors)
  first, second = sorted([i, j])
  assert f'Coordinates {first} and {second} ' in str(
    e.value
  ) or f'Coordinates {second} and {first} ' in str(e.value)


def test_accepts_patterns_sparse_and_dense_matrices():
  matrix = _band(6, 1)
  expected = color_diagonal(SparsityPattern(matrix))
  assert color_diagonal(matrix) == expected
  assert color_diagonal(matrix.tocoo()) == expected
  assert color_diagonal(matrix.toarray()) == expected
  check_diagonal_coloring(SparsityPattern(matrix), expected)
  check_diagonal_coloring(matrix, expected.colors.tolist())


def test_is_deterministic_and_leaves_its_argument_alone():
  matrix = scipy.sparse.random(300, 300, 0.02, random_state=3, format='csr')
  before = matrix.copy()
  assert color_diagonal(matrix) == color_diagonal(matrix)
  assert (matrix != before).nnz == 0


def test_coloring_is_a_value():
  colors = np.array([0, 1, 0, 2])
  coloring = Coloring(colors)
  colors[0] = 1
  assert coloring.colors.tolist() == [0, 1, 0, 2]
  assert coloring.colors.dtype == np.int32
  assert coloring.num_colors == 3
  same = Coloring([0, 1, 0, 2])
  assert coloring == same
  assert hash(coloring) == hash(same)
  assert coloring != Coloring([0, 1, 0, 1])
  assert coloring != 'a coloring'
  with pytest.raises(ValueError, match='read-only'):
    coloring.colors[0] = 1


def test_coloring_reads_well():
  text = str(Coloring([0, 0, 0, 1]))
  assert text == '2 colors for 4 coordinates (of each color: 3, 1)'
  assert str(Coloring([0])) == '1 color for 1 coordinate (of each color: 1)'
  assert str(Coloring([])) == '0 colors for 0 coordinates'
  assert 'and 2 more' in str(Coloring(np.arange(10)))


@pytest.mark.parametrize(
  'colors, message',
  [
    ([0, -1], 'nonnegative'),
    ([0.0, 1.0], 'float64'),
    ([[0, 1]], 'shape'),
    ([0, 2], 'does not use 1'),
  ],
)
def test_coloring_refuses(colors, message):
  with pytest.raises(ValueError, match=message):
    Coloring(colors)


def test_refuses_what_is_not_square():
  with pytest.raises(ValueError, match='3 x 5'):
    color_diagonal(np.ones([3, 5]))
  with pytest.raises(ValueError, match='3 x 5'):
    check_diagonal_coloring(np.ones([3, 5]), [0, 1, 2])
  with pytest.raises(ValueError, match='two dimensions'):
    color_diagonal(np.ones([3]))


def test_validator_refuses_colors_that_do_not_fit():
  with pytest.raises(ValueError, match=r'2 entries.*3 coordinates'):
    check_diagonal_coloring(np.eye(3), [0, 0])
  with pytest.raises(ValueError, match='nonnegative'):
    check_diagonal_coloring(np.eye(3), [0, -1, 0])


@pytest.mark.parametrize('seed', range(6))
def test_nodes_of_a_block_are_colored_as_one_by_one(seed, monkeypatch):
  rng = np.random.default_rng(seed)
  size = int(rng.integers(20, 60))
  monkeypatch.setattr(greedy, '_BLOCK', int(rng.integers(1, 20)))
  matrix = rng.uniform(size=[size, size]) < rng.uniform(0.05, 0.4)
  matrix = np.triu(matrix, 1) | np.triu(matrix, 1).T
  order = rng.permutation(size)
  wanted = np.full(size, -1)
  for node in order:
    taken = wanted[matrix[node]]
    wanted[node] = next(c for c in range(size) if c not in taken)
  graph = scipy.sparse.csr_matrix(matrix)
  np.testing.assert_array_equal(greedy._color_in_order(graph, order), wanted)


@pytest.mark.parametrize(
  'n, reach', [(100, 20), (128, 6), (200, 8), (256, 10), (13, 2), (9, 4)]
)
def test_rings_of_any_reach_take_the_fewest_colors(n, reach):
  """An arc has reach + 1 nodes or more, and the longest one a color for each.

  Fewer colors there are not: of one color there are at most n // (reach + 1).
  """
  shifts = [np.roll(np.eye(n), d, axis=1) for d in range(-reach, reach + 1)]
  ring = np.sum(shifts, axis=0)
  want = -(-n // (n // (reach + 1)))
  # A second component, of another size, whose coordinates lie between.
  pair = scipy.sparse.block_diag([ring, _ring(7)]).tocsr()
  mixed = np.random.default_rng(0).permutation(n + 7)
  mixed[mixed < n] = np.arange(n)
  for matrix in (ring, pair, pair[mixed][:, mixed]):
    coloring = color_diagonal(matrix)
    check_diagonal_coloring(matrix, coloring)
    assert coloring.num_colors == want
