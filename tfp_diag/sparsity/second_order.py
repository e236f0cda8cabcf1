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
"""Which pairs of coordinates have a mixed second derivative."""

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from tfp_diag.sparsity.budget import check_entries, fits
from tfp_diag.sparsity.dependency import Csr, Dependency, ranges, totals
from tfp_diag.sparsity.groups import Groups

# Whenever this many pairs have been gathered, duplicates are removed.
_WAITING = 20_000_000

# The base of the number that encodes a pair of columns.
_BASE = np.int64(2**31)

# The most elementary operations that the exact expansion of groups may take.
_MAX_WORK = 4_000_000_000

# How many of the largest cliques are searched for smaller ones within them.
_MAX_LARGEST = 16


class SecondOrder:
  """Gathers the pattern of a Hessian while the walker goes through the ops.

  Each op adds, for each element of its output that matters, the pairs of
  coordinates whose second derivative it can make nonzero. The same pair is
  kept once, the same clique (all pairs of some coordinates) is written out
  once.

  A clique over n coordinates has n^2 pairs. The pairs of large groups are
  written out at the very end. Where that would take too much memory or time,
  groups that are connected by pairs are merged into one. This gives a superset,
  and `notes` says so.

  Attributes:
    groups: `Groups`, what the columns of the pairs stand for.
    notes: list of `str`, sentences for the user.
  """

  def __init__(self, groups: Groups) -> None:
    self.notes = []
    self.groups = groups
    self._waiting = []
    self._num_waiting = 0

  def add(self, left: Dependency, right: Dependency) -> None:
    """Adds all pairs of a column in a row of `left` and one in that of `right`.

    Args:
      left: `Dependency`.
      right: `Dependency` with as many rows.
    """
    useful = np.flatnonzero((left.counts > 0) & (right.counts > 0))
    if not len(useful):
      return
    same = left is right
    left = self.groups.settle(left.gather(useful))
    right = left if same else self.groups.settle(right.gather(useful))
    if same:
      first, _ = left.distinct_rows()
    else:
      together = Dependency(
        totals(left.counts + right.counts),
        _interleaved(left, right, self.groups.columns),
      )
      first, _ = together.distinct_rows()
    if len(first) < left.rows:
      left, right = left.gather(first), right.gather(first)
    # In pieces, to bound the memory.
    work = np.cumsum(left.counts.astype(np.int64) * right.counts)
    cuts = np.searchsorted(work, np.arange(_WAITING, work[-1], _WAITING))
    for rows in np.split(np.arange(left.rows), cuts):
      if len(rows):
        self._add_pairs(left.gather(rows), right.gather(rows))

  def finish(self) -> Csr:
    """The symmetric pattern over coordinates, as a `scipy.sparse` CSR."""
    self._merge()
    n = self.groups.num_coordinates
    if not self._waiting:
      return scipy.sparse.csr_matrix((n, n), dtype=bool)
    i, j = np.divmod(self._waiting[0], _BASE)
    plain = (i < n) & (j < n)
    matrix = _matrix(i[plain], j[plain], n, n)
    if not plain.all():
      matrix = matrix + self._expanded(i[~plain], j[~plain])
    matrix = (matrix + matrix.T).tocsr()
    matrix.sort_indices()
    return matrix

  def _add_pairs(self, left: Dependency, right: Dependency) -> None:
    # Most rows have as many columns as many others: those go together.
    kinds = left.counts * _BASE + right.counts
    for kind in np.unique(kinds):
      rows = np.flatnonzero(kinds == kind)
      i, j = (
        side.indices[side.indptr[rows, None] + np.arange(count)]
        for side, count in zip((left, right), divmod(kind, _BASE))
      )
      i, j = i[:, :, None].astype(np.int64), j[:, None, :]
      keys = np.minimum(i, j) * _BASE + np.maximum(i, j)
      self._waiting.append(keys.reshape(-1))
      self._num_waiting += keys.size
    if self._num_waiting > _WAITING:
      self._merge()

  def _merge(self) -> None:
    if len(self._waiting):
      keys = np.concatenate(self._waiting)
      keys.sort()
      keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
      self._waiting = [keys]
    # Merged pairs do not count, or many of them would be merged on every call.
    self._num_waiting = 0

  def _expanded(
    self, i: np.ndarray, j: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """The matrix of the pairs of coordinates that pairs of groups stand for."""
    n = self.groups.num_coordinates
    used, place = np.unique(np.concatenate([i, j]), return_inverse=True)
    members = self.groups.members(used.astype(np.int32))
    i, j = _without_subsets(members, place[: len(i)], place[len(i) :], n)
    sizes = members.counts.astype(np.int64)
    half = np.minimum(np.bincount(i, sizes[j], minlength=len(used)), n)
    work = float(sizes[j].sum() + (sizes * half).sum())
    if fits(half.sum()) and work <= _MAX_WORK and fits(min(work, float(n) * n)):
      expansion = members.to_matrix(n)
      pairs = _matrix(i, j, len(used), len(used))
      return (expansion.T.tocsr() @ (pairs @ expansion)).tocsr()
    return self._merged_cliques(members, i, j)

  def _merged_cliques(
    self, members: Dependency, i: np.ndarray, j: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """A cheap superset: all coordinates that pairs connect are one clique."""
    n = self.groups.num_coordinates
    # Nodes: the used columns, then the coordinates.
    rows = np.concatenate([i, members.row_of_entry])
    columns = np.concatenate([j, members.rows + members.indices])
    size = members.rows + n
    graph = _matrix(rows, columns, size, size)
    _, label = csgraph.connected_components(graph, directed=False)
    label = label[members.rows :]
    touched = np.unique(members.indices)
    _, label, sizes = np.unique(
      label[touched], return_inverse=True, return_counts=True
    )
    total = int((sizes.astype(np.int64) ** 2).sum())
    check_entries(total)
    self.notes.append(
      'Large overlapping groups of coordinates were merged to bound the work '
      'of detection: the pattern may have more nonzeros than need be.'
    )
    clique = _matrix(label, touched, len(sizes), n)
    return (clique.T.tocsr() @ clique).tocsr()


def _without_subsets(
  members: Dependency, i: np.ndarray, j: np.ndarray, num_coordinates: int
) -> tuple[np.ndarray, np.ndarray]:
  """Drops pairs that a large clique covers: prefixes of a scan, for example."""
  sizes = members.counts
  kept = np.ones(len(i), bool)
  cliques = np.flatnonzero(i == j)
  cliques = cliques[np.argsort(-sizes[i[cliques]], kind='stable')]
  for clique in cliques[:_MAX_LARGEST]:
    if not kept[clique]:
      continue
    inside = np.zeros(num_coordinates, bool)
    inside[members.indices[slice(*members.indptr[i[clique] :][:2])]] = True
    count = totals(inside[members.indices])
    covered = np.diff(count[members.indptr]) == sizes
    kept &= ~(covered[i] & covered[j])
    kept[clique] = True
  return i[kept], j[kept]


def _matrix(i: np.ndarray, j: np.ndarray, rows: int, columns: int) -> Csr:
  return scipy.sparse.coo_matrix(
    (np.ones(len(i), bool), (i, j)), shape=(rows, columns)
  ).tocsr()


def _interleaved(
  left: Dependency, right: Dependency, columns: int
) -> np.ndarray:
  """Row by row, the columns of `left`, then those of `right` + `columns`."""
  counts = np.stack([left.counts, right.counts], 1).reshape(-1)
  starts = np.stack(
    [left.indptr[:-1], left.entries + right.indptr[:-1]], 1
  ).reshape(-1)
  entries = np.concatenate(
    [left.indices.astype(np.int64), right.indices.astype(np.int64) + columns]
  )
  return entries[ranges(starts, counts)]
