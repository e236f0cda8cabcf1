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
"""Coloring: which coordinates of a diagonal can share a pass."""

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from tfp_diag.internal.text_table import as_html
from tfp_diag.sparsity.dependency import Csr, totals
from tfp_diag.sparsity.greedy import color_greedily, rank_within
from tfp_diag.sparsity.pattern import as_pattern


@dataclasses.dataclass(frozen=True, eq=False)
class Coloring:
  """One color per coordinate; coordinates of one color share a pass.

  Attributes:
    colors: int32 array, shape `[n]`, read-only: the color of each coordinate.
      The colors that occur are 0, ..., `num_colors - 1`, without a gap.
    num_colors: Python `int`, from `colors`: how many colors there are, and so
      how many passes a diagonal takes.

  Raises:
    ValueError: if `colors` is not a vector of integers that go up from 0
      without a gap.

  #### Examples

  ```python
  coloring = Coloring([0, 1, 0, 0])
  coloring.num_colors  # ==> 2
  print(coloring)
  # 2 colors for 4 coordinates (of each color: 3, 1)
  ```
  """

  colors: np.ndarray
  num_colors: int = dataclasses.field(init=False)

  def __post_init__(self) -> None:
    """Brings `colors` into its canonical form, and counts the colors."""
    colors = _color_array(self.colors)
    counts = np.bincount(colors)
    if not np.all(counts):
      missing = int(np.argmin(counts))
      raise ValueError(
        f'`colors` goes up to {len(counts) - 1} but does not use {missing}, '
        'which would be a pass for nothing. Number the colors from 0 without '
        'a gap.'
      )
    # The class is frozen; this is the one place that may set its fields.
    colors = colors.astype(np.int32)  # A copy, which nobody else can change.
    colors.flags.writeable = False
    object.__setattr__(self, 'colors', colors)
    object.__setattr__(self, 'num_colors', len(counts))

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, Coloring):
      return NotImplemented
    return np.array_equal(self.colors, other.colors)

  def __hash__(self) -> int:
    return hash(self.colors.tobytes())

  def __repr__(self) -> str:
    return (
      f'<Coloring num_colors={self.num_colors} '
      f'num_coordinates={len(self.colors)}>'
    )

  def _repr_html_(self) -> str:
    return as_html(str(self))

  def __str__(self) -> str:
    sizes = np.bincount(self.colors)
    classes = ', '.join(str(size) for size in sizes[:8])
    if self.num_colors > 8:
      classes += f' and {self.num_colors - 8} more'
    line = (
      f'{self.num_colors} color{"" if self.num_colors == 1 else "s"} for '
      f'{len(self.colors)} coordinate{"" if len(self.colors) == 1 else "s"}'
    )
    return f'{line} (of each color: {classes})' if classes else line


def color_diagonal(pattern: Any) -> Coloring:
  """Colors coordinates so that each color gives its diagonal in one pass.

  One pass multiplies the matrix, or its transpose, with a seed that is nonzero
  on the coordinates of one color. It gives their diagonal entries exactly if no
  two of them, `i` and `j`, have `(i, j)` or `(j, i)` in the pattern. So the
  colors are a distance-1 coloring of the undirected graph of the off-diagonal
  nonzeros, which is much less than recovering the whole matrix takes (distance
  2): an arrowhead matrix has 2 colors, not n.

  Each connected component is colored by itself. A complete component takes as
  many colors as it has coordinates, a bipartite one (every chain, tree and
  even-sized or open grid) takes 2, and both are found without a search. The
  others are colored greedily, in natural, largest-first, smallest-last and
  most-saturated order, and in equal arcs around a ring, until a clique proves
  that no coloring has fewer colors; of several equally good colorings the
  earliest is kept. The number of colors is the smallest possible for complete
  and bipartite components and for rings that are numbered in their order and in
  which all up to some distance interact, and at most one more than the
  degeneracy of the graph in general. The time is about linear in the number of
  nonzeros.

  Args:
    pattern: `SparsityPattern`, or anything that one can be made from: a SciPy
      sparse matrix or a two-dimensional array of bool or numbers. Square. The
      diagonal itself does not matter.

  Returns:
    coloring: `Coloring`. Its colors are ordered by size: color 0 has the most
      coordinates.

  Raises:
    ValueError: If the pattern is not a square matrix.

  #### Examples

  ```python
  import numpy as np
  import scipy.sparse

  ones = np.ones(1000)
  chain = scipy.sparse.diags([ones, ones, ones], [-1, 0, 1], (1000, 1000))
  coloring = color_diagonal(chain)
  assert coloring.num_colors == 2
  assert coloring.colors[:4].tolist() == [0, 1, 0, 1]
  ```

  #### References

  [1]: Thomas F. Coleman and Jorge J. Moré. Estimation of sparse Jacobian
       matrices and graph coloring problems. _SIAM Journal on Numerical
       Analysis_, 20(1):187-209, 1983. (Largest-first and smallest-last
       order.)
       https://doi.org/10.1137/0720013

  [2]: Daniel Brélaz. New methods to color the vertices of a graph.
       _Communications of the ACM_, 22(4):251-256, 1979. (The saturation
       degree; exact for bipartite graphs.)
       https://doi.org/10.1145/359094.359101
  """
  matrix = _square_matrix(pattern)
  n = matrix.shape[0]
  if matrix.nnz == n**2:  # Empty, or full.
    return Coloring(np.arange(n, dtype=np.int32))
  graph = _interference_graph(matrix)

  _, labels = csgraph.connected_components(graph, directed=False)
  degrees = np.diff(graph.indptr)
  sizes = np.bincount(labels)
  complete = np.bincount(labels, weights=degrees) == sizes * (sizes - 1.0)

  # A complete component, also a single coordinate, needs one color for each of
  # its coordinates.
  colors = rank_within(labels, sizes)
  # No coloring of the whole graph has fewer colors than this.
  floor = int(np.max(sizes, where=complete, initial=1))
  if not np.all(complete):
    parity, bipartite = _two_color(graph, labels)
    in_pair = (bipartite & ~complete)[labels]
    colors[in_pair] = parity[in_pair]
    floor = max(floor, 2)
    searched = ~(bipartite | complete)
    if np.any(searched):
      nodes = np.flatnonzero(searched[labels])
      # A graph without a two-coloring has an odd cycle, which takes three.
      colors[nodes] = color_greedily(graph, labels, nodes, max(floor, 3))[nodes]

  largest_first = np.argsort(-np.bincount(colors), kind='stable')
  return Coloring(np.argsort(largest_first)[colors])


def check_diagonal_coloring(pattern: Any, colors: Any) -> None:
  """Raises an error if two coordinates of one color interact.

  This is the definition, written as a loop over the nonzeros. It is slow, and
  meant for tests and for colorings that you make yourself.

  Args:
    pattern: As for `color_diagonal`.
    colors: `Coloring`, or an int array of shape `[n]`: one color per
      coordinate.

  Raises:
    ValueError: If some `(i, j)`, `i != j`, is in the pattern and `i` and `j`
      have the same color; the message names both. Also if `pattern` is not
      square or `colors` does not have one nonnegative int for each coordinate.

  #### Examples

  ```python
  import numpy as np

  arrowhead = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 1]])
  check_diagonal_coloring(arrowhead, [0, 1, 1])
  ```
  """
  matrix = _square_matrix(pattern)
  if isinstance(colors, Coloring):
    colors = colors.colors
  colors = _color_array(colors)
  if len(colors) != matrix.shape[0]:
    raise ValueError(
      f'`colors` has {len(colors)} entries, but `pattern` has '
      f'{matrix.shape[0]} coordinates. Give one color for each coordinate.'
    )
  for i in range(matrix.shape[0]):
    for j in matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]]:
      if i != j and colors[i] == colors[j]:
        raise ValueError(
          f'Coordinates {i} and {j} both have color {colors[i]}, but '
          f'({i}, {j}) is in the pattern: in one pass they would add up. Give '
          'them different colors.'
        )


def _square_matrix(pattern: Any) -> Csr:
  """Returns the CSR matrix of `pattern`, after a check that it is square."""
  pattern = as_pattern(pattern)
  rows, columns = pattern.shape
  if rows != columns:
    raise ValueError(
      f'`pattern` is {rows} x {columns}; a diagonal needs as many outputs as '
      'inputs. Color the pattern of a function whose result has the shape of '
      'its argument, or of a Hessian.'
    )
  return pattern.matrix


def _color_array(colors: Any) -> np.ndarray:
  """Returns `colors` as an array, after a check of its shape and values."""
  try:
    colors = np.asarray(colors)
  except ValueError as e:
    raise ValueError(
      f'`colors` is {colors!r}, which cannot be converted to a vector. Give a '
      'nonnegative int for each coordinate.'
    ) from e
  if colors.size == 0:  # A list without entries has no integer dtype.
    colors = colors.astype(np.int32)
  if (
    colors.ndim != 1
    or not np.issubdtype(colors.dtype, np.integer)
    or np.any(colors < 0)
  ):
    raise ValueError(
      f'`colors` has shape {colors.shape} and dtype {colors.dtype}; it is a '
      'vector of nonnegative ints, one for each coordinate.'
    )
  return colors


def _interference_graph(
  matrix: Csr,
) -> Csr:
  """The symmetrized off-diagonal pattern, as a canonical CSR matrix."""
  either = (matrix + matrix.T).tocsr()
  off_diagonal = either.indices != _rows(either)
  kept = totals(off_diagonal)
  return scipy.sparse.csr_matrix(
    (
      either.data[off_diagonal],
      either.indices[off_diagonal],
      kept[either.indptr].astype(either.indptr.dtype),
    ),
    shape=either.shape,
  )


def _rows(graph: Csr) -> np.ndarray:
  """The row of each stored entry of a CSR matrix."""
  rows = np.arange(graph.shape[0], dtype=graph.indices.dtype)
  return np.repeat(rows, np.diff(graph.indptr))


def _two_color(graph: Csr, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Colors by the parity of the distance from one node of each component.

  Args:
    graph: Interference graph, CSR, n x n.
    labels: int array, `[n]`: the component of each node.

  Returns:
    parity: int array, `[n]`.
    bipartite: bool array, one per component: whether `parity` colors it.
  """
  n = graph.shape[0]
  # A further node, joined to the first node of each component, turns a search
  # per component into a single one.
  _, first_nodes = np.unique(labels, return_index=True)
  rooted = scipy.sparse.csr_matrix(
    (
      np.ones(graph.nnz + len(first_nodes), bool),
      np.concatenate([graph.indices, first_nodes]),
      np.append(graph.indptr, graph.nnz + len(first_nodes)),
    ),
    shape=(n + 1, n + 1),
  )
  order, parents = csgraph.breadth_first_order(rooted, n, directed=True)
  parity = [1] * (n + 1)
  for node, parent in zip(order[1:].tolist(), parents[order[1:]].tolist()):
    parity[node] = 1 - parity[parent]
  parity = np.array(parity[:n], np.int32)

  rows = _rows(graph)
  clashing = parity[rows] == parity[graph.indices]
  bipartite = np.ones(len(first_nodes), bool)
  bipartite[labels[rows[clashing]]] = False
  return parity, bipartite
