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
"""Which derivatives can be nonzero: a boolean sparse matrix and its parts."""

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from tfp_diag.internal import arguments
from tfp_diag.internal.text_table import as_html
from tfp_diag.sparsity.dependency import Csr
from tfp_diag.sparsity.drawing import draw_pattern

# The default of the shapes, which `__post_init__` replaces.
_ONE_PART: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class SparsityPattern:
  """Says which entries of a Jacobian or Hessian can be nonzero.

  Entry `(i, j)` of `matrix` is True if, for some input, output coordinate `i`
  can depend on input coordinate `j` (Jacobian), or the mixed second derivative
  of `i` and `j` can be nonzero (Hessian). An entry that is False is zero for
  every input. The coordinates are those of one sample: the entries of the
  events of all parts, parts in order, each event flattened row by row.

  The pattern of the Hessian of a log density is its conditional-independence
  graph: `x_i` and `x_j` are independent given all others where `(i, j)` is
  False. `print(pattern)` summarizes it, `pattern.spy()` draws it.

  A pattern is a value: the matrix is copied at construction and not to be
  changed afterwards, and two patterns are equal if their contents are.

  Attributes:
    matrix: `scipy.sparse.csr_matrix` of bool, outputs x inputs, in canonical
      form: sorted indices, no duplicates, every stored entry True. At
      construction any SciPy sparse matrix or two-dimensional array will do;
      what is stored and not zero counts as True, also if duplicates of it would
      sum to zero.
    row_shapes: `tuple` of event shapes (tuples of int), one for each part of
      the output; their sizes add up to the number of rows. Default: one part,
      a vector.
    column_shapes: Likewise, for the parts of the input and the columns.
    fallback_ops: `tuple` of `str`: op types without a rule, taken as dense.
    notes: `tuple` of `str`: what else a user should know about how the pattern
      was found.

  #### Examples

  ```python
  import numpy as np

  pattern = SparsityPattern(
    np.array([[2, 1, 0], [1, 2, 1], [0, 1, 2]]), column_shapes=((2,), ())
  )
  assert pattern.shape == (3, 3)
  assert pattern.nnz == 7
  assert pattern.matrix.dtype == bool
  ```
  """

  matrix: Csr
  row_shapes: tuple[tuple[int, ...], ...] = _ONE_PART
  column_shapes: tuple[tuple[int, ...], ...] = _ONE_PART
  fallback_ops: tuple[str, ...] = ()
  notes: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    """Brings the fields into their canonical form, or raises."""
    # The class is frozen; this is the one place that may set its fields.
    put = object.__setattr__
    put(self, 'matrix', _canonical_matrix(self.matrix))
    rows, columns = self.matrix.shape
    put(self, 'row_shapes', _shapes(self.row_shapes, rows, 'row'))
    put(self, 'column_shapes', _shapes(self.column_shapes, columns, 'column'))
    put(self, 'fallback_ops', _strings(self.fallback_ops, 'fallback_ops'))
    put(self, 'notes', _strings(self.notes, 'notes'))

  @property
  def shape(self) -> tuple[int, int]:
    """The number of rows (outputs) and of columns (inputs), as a tuple."""
    return self.matrix.shape

  @property
  def nnz(self) -> int:
    """The number of entries that can be nonzero."""
    return int(self.matrix.nnz)

  @property
  def num_coordinates(self) -> int:
    """The number of input coordinates, that is of columns."""
    return self.matrix.shape[1]

  def spy(self, ax: Any = None, coloring: Any = None) -> Any:
    """Draws the pattern with matplotlib.

    Up to some hundred coordinates each nonzero is a cell; beyond, a dot stands
    for a block of entries, stronger where more of them are nonzero, and no
    block with a nonzero is left blank. Thin lines and ticks mark where parts
    begin.

    Args:
      ax: matplotlib axes to draw on. Default: those of a new figure. The legend
        stands to the right of the axes: a figure of several finds room for it
        with `plt.subplots(..., layout='compressed')`.
      coloring: `Coloring` of the columns, as `color_diagonal(pattern)` returns
        it: nonzeros then have the color of their column. Up to seven colors
        come with a legend, more with a color bar. Where columns of several
        colors share a dot, it has one of these colors, taken at random.

    Returns:
      ax: The matplotlib axes.

    Raises:
      ImportError: If matplotlib is not installed; it comes with
        `pip install 'tfp-diag[plot]'`.
      ValueError: If `coloring` does not have one color for each column.
    """
    return draw_pattern(self, ax=ax, coloring=coloring)

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, SparsityPattern):
      return NotImplemented
    return (
      self.shape == other.shape
      and self.row_shapes == other.row_shapes
      and self.column_shapes == other.column_shapes
      and self.fallback_ops == other.fallback_ops
      and self.notes == other.notes
      and np.array_equal(self.matrix.indptr, other.matrix.indptr)
      and np.array_equal(self.matrix.indices, other.matrix.indices)
    )

  def __hash__(self) -> int:
    return hash(
      (
        self.matrix.indptr.astype(np.int64).tobytes(),
        self.matrix.indices.astype(np.int64).tobytes(),
        self.row_shapes,
        self.column_shapes,
        self.fallback_ops,
        self.notes,
      )
    )

  def __str__(self) -> str:
    rows, columns = self.shape
    lines = [f'{rows} x {columns}, {self.nnz} nonzeros ({self._percentage()})']
    if self.row_shapes != ((rows,),) or self.column_shapes != ((columns,),):
      if self.row_shapes == self.column_shapes:
        lines.append(f'  parts: {_join(self.row_shapes)}')
      else:
        lines.append(f'  parts of the rows: {_join(self.row_shapes)}')
        lines.append(f'  parts of the columns: {_join(self.column_shapes)}')
    if self.fallback_ops:
      lines.append(
        f'  dense, as what they depend on is not known: '
        f'{_join(self.fallback_ops)}'
      )
    lines.extend(f'  {note}' for note in self.notes)
    return '\n'.join(lines)

  def __repr__(self) -> str:
    rows, columns = self.shape
    return f'<SparsityPattern shape=({rows}, {columns}) nnz={self.nnz}>'

  def _repr_html_(self) -> str:
    return as_html(str(self))

  def _percentage(self) -> str:
    """The share of nonzeros, as in '0.3 %'."""
    cells = math.prod(self.shape)
    share = 100 * self.nnz / cells if cells else 0.0
    # Two digits make 1e+02 of a hundred.
    return f'{share:.2g} %' if share < 99.5 else f'{share:.3g} %'


def as_pattern(pattern: Any, name: str = 'pattern') -> SparsityPattern:
  """Converts a matrix to a `SparsityPattern`, and returns a pattern as it is.

  Args:
    pattern: `SparsityPattern` or matrix.
    name: Python str, the name of the argument.

  Returns:
    `SparsityPattern`.

  Raises:
    ValueError: if it is neither, or an entry is not finite.
  """
  if isinstance(pattern, SparsityPattern):
    return pattern
  return SparsityPattern(as_matrix(pattern, name))


def as_matrix(matrix: Any, name: str) -> Any:
  """Checks that `matrix` is a SciPy or NumPy matrix of bools or numbers."""
  if not scipy.sparse.issparse(matrix):
    try:
      matrix = np.asarray(matrix)
    except ValueError as e:
      raise ValueError(
        f'`{name}` is {arguments.shown(matrix)}, which cannot be converted to '
        'a matrix. Give a SciPy sparse matrix or a two-dimensional array.'
      ) from e
  if matrix.ndim != 2:
    raise ValueError(
      f'`{name}` has shape {matrix.shape}; a pattern has two dimensions, '
      'outputs x inputs. Give a SciPy sparse matrix or a two-dimensional array.'
    )
  if not (matrix.dtype == bool or np.issubdtype(matrix.dtype, np.number)):
    raise ValueError(
      f'`{name}` has dtype {matrix.dtype}; the entries of a pattern are bool, '
      'or numbers of which the nonzero ones count. Convert it to bool.'
    )
  # NaN is not zero, but says nothing of a derivative.
  arguments.check_known_finite(
    name, matrix.tocoo().data if scipy.sparse.issparse(matrix) else matrix
  )
  return matrix


def _canonical_matrix(matrix: Any) -> Csr:
  """Returns `matrix` as a new, canonical boolean CSR matrix."""
  matrix = as_matrix(matrix, 'matrix')
  # To bool first: what is stored twice must not cancel when it is summed. This
  # is also the copy that keeps the pattern from changing with its argument.
  csr = scipy.sparse.csr_matrix(matrix.astype(bool))
  csr.check_format(full_check=True)
  csr.sum_duplicates()
  csr.eliminate_zeros()
  return csr


def _shapes(shapes: Any, size: int, what: str) -> tuple[tuple[int, ...], ...]:
  """Returns part shapes as tuples of int, after a check against `size`."""
  if shapes is None:
    return ((size,),)
  try:
    canonical = tuple(
      tuple(operator.index(dim) for dim in shape) for shape in shapes
    )
  except TypeError as e:
    raise ValueError(
      f'`{what}_shapes` is {shapes!r}; it lists one event shape for each part, '
      'each a tuple of ints, as in ((3,), (2, 4), ()).'
    ) from e
  sizes = [math.prod(shape) for shape in canonical]
  if min((d for shape in canonical for d in shape), default=0) < 0 or (
    sum(sizes) != size
  ):
    raise ValueError(
      f'`{what}_shapes` is {canonical!r}, in all {sum(sizes)} coordinates, but '
      f'`matrix` has {size} {what}s. The sizes of the parts are not negative '
      f'and add up to the number of {what}s.'
    )
  return canonical


def _strings(strings: Any, name: str) -> tuple[str, ...]:
  """Returns `strings` as a tuple, after a check that it holds strings."""
  if isinstance(strings, str) or not (
    isinstance(strings, Iterable) and all(isinstance(s, str) for s in strings)
  ):
    raise ValueError(
      f'`{name}` is {strings!r}; it is a tuple of strings. Put a single string '
      'into a tuple of one.'
    )
  return tuple(strings)


def _join(items: Sequence, most: int = 6) -> str:
  """Lists the first few of `items` and counts the rest."""
  listed = ', '.join(str(item) for item in items[:most])
  rest = len(items) - most
  return f'{listed} and {rest} more' if rest > 0 else listed
