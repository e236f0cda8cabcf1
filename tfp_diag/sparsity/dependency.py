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
"""Which coordinates each element of a tensor depends on."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from tfp_diag.sparsity.budget import check_entries

# `scipy.sparse.csr_matrix`; SciPy does not say of which types its fields are.
Csr = Any

# Below this many entries sorting keys in NumPy is faster than building SciPy
# matrices; above it SciPy's linear-time merge wins.
_SMALL = 4000


@dataclasses.dataclass(frozen=True, eq=False)
class Dependency:
  """An immutable boolean matrix: elements of a tensor by coordinates.

  Row `e` lists the coordinates that element `e` of the flattened tensor
  depends on. The storage is that of a compressed sparse row matrix without its
  data: the columns of row `e` are `indices[indptr[e]:indptr[e + 1]]`, sorted
  and distinct. The number of columns is not stored. No method loops over rows
  in Python.

  Attributes:
    indptr: int32 array `[rows + 1]`.
    indices: int32 array `[number of entries]`.
  """

  indptr: np.ndarray
  indices: np.ndarray

  @classmethod
  def empty(cls, rows: int) -> 'Dependency':
    """`rows` elements that depend on nothing."""
    return cls(np.zeros(rows + 1, np.int32), np.zeros(0, np.int32))

  @classmethod
  def identity(cls, rows: int, offset: int = 0) -> 'Dependency':
    """`rows` elements: element `e` is the coordinate `offset + e`."""
    return cls(
      np.arange(rows + 1, dtype=np.int32),
      np.arange(offset, offset + rows, dtype=np.int32),
    )

  @classmethod
  def from_columns(cls, columns: np.ndarray) -> 'Dependency':
    """One coordinate per element, given as an int array `[rows]`."""
    columns = np.asarray(columns, np.int32)
    return cls(np.arange(len(columns) + 1, dtype=np.int32), columns)

  @classmethod
  def from_matrix(cls, matrix: Any) -> 'Dependency':
    """From a matrix of SciPy or NumPy: its nonzero entries."""
    matrix = scipy.sparse.csr_matrix(matrix, dtype=bool, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return cls(matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32))

  @classmethod
  def concat(cls, dependencies: Sequence) -> 'Dependency':
    """The rows of all of them, in order."""
    if len(dependencies) == 1:
      return dependencies[0]
    starts = np.cumsum([0] + [d.entries for d in dependencies])
    return cls(
      np.concatenate(
        [np.zeros(1, np.int32)]
        + [
          d.indptr[1:] + np.int32(s)
          for d, s in zip(dependencies, starts, strict=False)
        ]
      ),
      np.concatenate([d.indices for d in dependencies]),
    )

  @property
  def rows(self) -> int:
    """The number of elements."""
    return len(self.indptr) - 1

  @property
  def entries(self) -> int:
    """The number of (element, coordinate) pairs."""
    return len(self.indices)

  @property
  def counts(self) -> np.ndarray:
    """How many coordinates each element depends on."""
    return np.diff(self.indptr)

  @property
  def row_of_entry(self) -> np.ndarray:
    """The element that each entry belongs to."""
    return np.repeat(np.arange(self.rows), self.counts)

  def gather(self, index: np.ndarray) -> 'Dependency':
    """The rows `index`, in that order; -1 stands for an empty row."""
    if not self.entries:
      return Dependency.empty(len(index))
    missing = index < 0
    starts = self.indptr[index]
    counts = self.indptr[index + 1] - starts
    if missing.any():
      counts = np.where(missing, 0, counts)
    indptr = totals(counts)
    check_entries(indptr[-1])
    source = ranges(starts, counts)
    return Dependency(indptr.astype(np.int32), self.indices[source])

  def where(self, alive: np.ndarray) -> 'Dependency':
    """The same rows, emptied where the bool array `alive` is False."""
    if alive.all():
      return self
    return self.gather(np.where(alive, np.arange(self.rows), -1))

  def collect(self, segment: np.ndarray, count: int) -> 'Dependency':
    """The union of the rows of each segment.

    Args:
      segment: Int array `[rows]`: the segment of each row, -1 for none.
      count: The number of segments.

    Returns:
      A `Dependency` of `count` rows.
    """
    if not self.entries:
      return Dependency.empty(count)
    if count == 1 and segment.min() >= 0:
      indices = _distinct(self.indices)
      return Dependency(np.array([0, len(indices)], np.int32), indices)
    if self.entries < _SMALL:
      row = segment[self.row_of_entry]
      kept = row >= 0
      return _from_keys(row[kept], self.indices[kept], count)
    kept = np.flatnonzero(segment >= 0)
    order = kept[np.argsort(segment[kept], kind='stable')]
    indptr = totals(np.bincount(segment[kept], minlength=count))
    return self.multiply(
      Dependency(indptr.astype(np.int32), order.astype(np.int32))
    )

  def multiply(self, matrix: 'Dependency') -> 'Dependency':
    """The boolean product `matrix @ self`; `matrix` is a Dependency, too."""
    width = int(self.indices.max()) + 1 if self.entries else 1
    # The sum is an upper bound; rows that overlap leave far fewer entries.
    check_entries(self.counts[matrix.indices].sum(dtype=np.int64) // 8)
    product = matrix.to_matrix(self.rows) @ self.to_matrix(width)
    product.sort_indices()
    return Dependency(product.indptr, product.indices)

  def union(self, other: 'Dependency') -> 'Dependency':
    """Row by row, the coordinates of either."""
    if self is other or not other.entries:
      return self
    if not self.entries:
      return other
    if np.array_equal(self.indptr, other.indptr) and np.array_equal(
      self.indices, other.indices
    ):
      return self
    if self.entries + other.entries < _SMALL:
      return _from_keys(
        np.concatenate([self.row_of_entry, other.row_of_entry]),
        np.concatenate([self.indices, other.indices]),
        self.rows,
      )
    width = int(max(self.indices.max(), other.indices.max())) + 1
    joined = self.to_matrix(width) + other.to_matrix(width)
    return Dependency(joined.indptr, joined.indices)

  def transpose(self, columns: int) -> 'Dependency':
    """Coordinates by elements; `columns` is the number of coordinates."""
    turned = self.to_matrix(columns).T.tocsr()
    turned.sort_indices()
    return Dependency(turned.indptr, turned.indices)

  def distinct_rows(self) -> tuple[np.ndarray, np.ndarray]:
    """One representative of each distinct row, and each row's representative.

    Returns:
      first: Int array: rows such that no two are equal and every row equals
        one of them.
      inverse: Int array `[rows]`: row `e` equals row `first[inverse[e]]`.
    """
    everything = np.arange(self.rows)
    if self.rows < 2:
      return everything, everything
    with np.errstate(over='ignore'):
      sums = totals(scramble(self.indices))
      key = sums[self.indptr[1:]] - sums[self.indptr[:-1]]
    first, inverse = distinct_keys(key)
    if len(first) == self.rows:
      return everything, everything
    # Different rows hardly ever have the same key; then no rows are united.
    again = self.gather(first[inverse])
    if np.array_equal(again.indptr, self.indptr) and np.array_equal(
      again.indices, self.indices
    ):
      return first, inverse
    return everything, everything

  def to_matrix(self, columns: int) -> Csr:
    """As a `scipy.sparse.csr_matrix` of booleans with `columns` columns."""
    matrix = scipy.sparse.csr_matrix(
      (np.ones(self.entries, bool), self.indices, self.indptr),
      shape=(self.rows, columns),
    )
    matrix.has_sorted_indices = True
    matrix.has_canonical_format = True
    return matrix


def _distinct(indices: np.ndarray) -> np.ndarray:
  """The sorted distinct entries of a non-negative int array."""
  top = int(indices.max()) + 1
  if top < 8 * len(indices):
    mask = np.zeros(top, bool)
    mask[indices] = True
    return np.flatnonzero(mask).astype(np.int32)
  return np.unique(indices)


def _from_keys(row: np.ndarray, column: np.ndarray, rows: int) -> Dependency:
  """A Dependency from unsorted (row, column) pairs that may repeat."""
  if not len(column):
    return Dependency.empty(rows)
  width = int(column.max()) + 1
  key = row.astype(np.int64) * width + column
  key.sort()
  key = key[np.concatenate([[True], key[1:] != key[:-1]])]
  row, column = np.divmod(key, width)
  indptr = totals(np.bincount(row, minlength=rows)).astype(np.int32)
  return Dependency(indptr, column.astype(np.int32))


def totals(numbers: np.ndarray) -> np.ndarray:
  """What some numbers add up to before each of them, and after the last one."""
  sums = np.cumsum(numbers)
  return np.concatenate([np.zeros(1, sums.dtype), sums])


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """Ranges of consecutive ints, one after another, by start and length.

  For the starts 7 and 2 and the counts 2 and 3 that is 7, 8, 2, 3, 4.
  """
  ends = np.cumsum(counts)
  return np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())


def is_rising(numbers: np.ndarray) -> bool:
  """Whether each number is larger than the one before."""
  return bool(np.all(numbers[1:] > numbers[:-1]))


def distinct_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Finds the distinct keys, as `np.unique` does with index and inverse.

  NumPy sorts numbers several times as fast as it finds their order. So each key
  gets its position into its low bits, and the keys are sorted.

  Args:
    keys: int array, nonnegative.

  Returns:
    some: int array: `keys[some]` are the distinct keys in ascending order.
    place: int array: `keys` is `keys[some][place]`.
  """
  if is_rising(keys):
    return np.arange(len(keys)), np.arange(len(keys))
  keys = keys.astype(np.uint64)
  bits = np.uint64((len(keys) - 1).bit_length())
  free = np.uint64(64 - max(int(keys.max()).bit_length(), 1))
  low = (np.uint64(1) << bits) - np.uint64(1)
  packed = (keys << free) & ~low
  packed |= np.arange(len(keys), dtype=np.uint64)
  packed.sort()
  order = (packed & low).astype(np.int64)
  ordered = keys[order]
  if np.any(ordered[1:] < ordered[:-1]):  # Some differ in the low bits alone.
    order = np.argsort(keys, kind='stable')
    ordered = keys[order]
  is_new = np.ones(len(keys), bool)
  np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
  place = np.empty(len(keys), np.int64)
  place[order] = np.cumsum(is_new) - 1
  return order[is_new], place


def scramble(numbers: np.ndarray) -> np.ndarray:
  """Spreads numbers over 64 bits (the finalizer of splitmix64)."""
  z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
  z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return z ^ (z >> np.uint64(31))
