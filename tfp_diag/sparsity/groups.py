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
"""Large sets of coordinates, stored once and referred to by one number."""

import numpy as np

from tfp_diag.sparsity.budget import check_entries
from tfp_diag.sparsity.dependency import Dependency, totals

# A union of more coordinates than this becomes a group: one column that stands
# for all of them. A softmax over n coordinates then costs n entries and not
# n^2, and a dense function is told from a sparse one without n^2 memory.
_LARGE = 64


class Groups:
  """The columns of dependencies: coordinates, then groups of coordinates.

  Columns below `num_coordinates` are coordinates. Each later one is a group,
  which stands for a set of coordinates; replacing it by them is exact.

  Attributes:
    num_coordinates: int.
    apart: `bool`: whether the coordinates are samples, and ops without a rule
      are taken to keep them apart.
  """

  def __init__(self, num_coordinates: int, apart: bool = False) -> None:
    self.num_coordinates = num_coordinates
    self.apart = apart
    self._chunks = []
    self._starts = [num_coordinates]

  @property
  def columns(self) -> int:
    """The number of columns so far."""
    return self._starts[-1]

  def settle(self, dependency: Dependency) -> Dependency:
    """The same dependency, with its large rows replaced by groups."""
    if dependency.entries <= _LARGE:
      return dependency
    large = np.flatnonzero(dependency.counts > _LARGE)
    if not len(large):
      return dependency
    members = dependency.gather(large)
    first, inverse = members.distinct_rows()
    members = self.expand(members.gather(first))
    start = self.columns
    self._chunks.append(members)
    self._starts.append(start + members.rows)
    rows = np.arange(dependency.rows)
    rows[large] = dependency.rows + inverse
    groups = Dependency.identity(members.rows, start)
    return Dependency.concat([dependency, groups]).gather(rows)

  def expand(self, dependency: Dependency) -> Dependency:
    """The same dependency, with each group replaced by its coordinates."""
    grouped = dependency.indices >= self.num_coordinates
    if not grouped.any():
      return dependency
    row = dependency.row_of_entry
    used, column = np.unique(dependency.indices[grouped], return_inverse=True)
    members = self.members(used)
    check_entries(members.counts[column].sum(dtype=np.int64))
    plain = _select(dependency, row, ~grouped, dependency.indices[~grouped])
    by_group = _select(dependency, row, grouped, column)
    return (
      plain.union(members.multiply(by_group))
      if plain.entries
      else (members.multiply(by_group))
    )

  def counts(self, dependency: Dependency) -> np.ndarray:
    """On how many coordinates each row depends; some may count twice."""
    used = np.unique(dependency.indices)
    sizes = np.zeros(int(used.max(initial=-1)) + 1, np.int64)
    sizes[used] = self.members(used).counts
    total = totals(sizes[dependency.indices])
    return np.diff(total[dependency.indptr])

  def members(self, columns: np.ndarray) -> Dependency:
    """The coordinates of each of some columns (sorted), as a Dependency."""
    pieces = []
    split = np.searchsorted(columns, self._starts)
    if split[0]:
      pieces.append(Dependency.from_columns(columns[: split[0]]))
    for k, chunk in enumerate(self._chunks):
      if split[k + 1] > split[k]:
        wanted = columns[split[k] : split[k + 1]] - self._starts[k]
        pieces.append(chunk.gather(wanted))
    return Dependency.concat(pieces) if pieces else Dependency.empty(0)


def _select(
  dependency: Dependency, row: np.ndarray, kept: np.ndarray, columns: np.ndarray
) -> Dependency:
  indptr = totals(np.bincount(row[kept], minlength=dependency.rows))
  return Dependency(indptr.astype(np.int32), np.asarray(columns, np.int32))
