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
"""Multisets of coordinates, each of which is stored once.

Each element of a tensor has a multiset of the coordinates that reach it: a
coordinate is in it as often as there are paths, once or 'many' times (two or
more). A function treats the rows of a data set alike, so many elements have the
same multiset. It is stored once, and elements refer to it by its number:
100,000 rows of a regression on 100 coefficients cost 100 entries, not ten
million. Multisets are compared by 64-bit hashes. Any two of a million multisets
have the same hash with a probability of 3 in 100 million.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable

import numpy as np
import scipy.sparse

from tfp_diag.sparsity.budget import check_entries
from tfp_diag.sparsity.dependency import (
  Csr,
  Dependency,
  distinct_keys,
  is_rising,
  ranges,
  scramble,
  totals,
)
from tfp_diag.sparsity.flow import Flow

# The number of the empty multiset.
EMPTY = 0
# The multiplicity that stands for two or more.
MANY = 2


class Multisets:
  """A table of distinct multisets; elements refer to its rows by number."""

  def __init__(self, num_coordinates: int) -> None:
    """Starts with the empty multiset, and one for each single coordinate.

    Args:
      num_coordinates: `int`.
    """
    self.num_coordinates = num_coordinates
    sizes = np.ones(num_coordinates + 1, np.int64)
    sizes[EMPTY] = 0
    self._rows = _Rows.of(
      sizes, np.arange(num_coordinates), np.ones(num_coordinates, np.int8)
    )
    self._room = [_Growing(part) for part in self._rows.parts]
    self._known = []
    self._sums = {}
    self._mixed = _Growing(np.zeros(1, np.uint64))

  @property
  def table(self) -> Csr:
    """Multisets by coordinates: the multiplicities, 1 or `MANY`."""
    rows = self._rows
    return scipy.sparse.csr_matrix(
      (rows.often, rows.members, np.append(rows.starts, len(rows.members))),
      shape=(self._size, self.num_coordinates),
    )

  @property
  def _size(self) -> int:
    return len(self._rows.sizes)

  def _append(self, rows: '_Rows') -> None:
    """Adds multisets to the table, without a copy of those in it."""
    first = len(self._rows.members)
    later = dataclasses.replace(rows, starts=first + rows.starts)
    for room, part in zip(self._room, later.parts):
      room.extend(part)
    self._rows = _Rows(*(room.values for room in self._room))

  def singletons(self, count: int, start: int = 0) -> np.ndarray:
    """The numbers of the multisets of single coordinates, from `start` on."""
    return np.arange(1 + start, 1 + start + count)

  def apply(self, flow: Flow, numbers: np.ndarray) -> np.ndarray:
    """The multisets of the outputs of a flow, from those of its inputs."""
    for kind, data in flow.stages:
      if kind == 'gather':
        numbers = _picked(numbers, data)
      elif kind == 'collect':
        numbers = self._collected(numbers, *data)
      else:
        numbers = self._united(
          data.indptr.astype(np.int64), numbers[data.indices]
        )
    return numbers

  def plus(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Element by element the sum of two multisets."""
    key = id(left), id(right)
    known = self._sums.get(key)
    if known is None:
      known = left, right, self._plus(left, right)
      self._sums[key] = known
    return known[2]

  def total(self, terms: Iterable[np.ndarray]) -> np.ndarray:
    """Element by element the sum of several multisets.

    They are not added one by one: partial sums would be multisets, too.

    Args:
      terms: int arrays of one length, one at least. If empty multisets are most
        of each, they take little memory together.

    Returns:
      int array.
    """
    terms = iter(terms)
    total = next(terms)
    pair = next(terms, None)
    if pair is None:
      return total
    third = next(terms, None)
    if third is None:
      return self.plus(total, pair)
    places, numbers = [], []
    for term in itertools.chain([total, pair, third], terms):
      places.append(np.flatnonzero(term))
      numbers.append(term[places[-1]])
    return self._collected(
      np.concatenate(numbers), np.concatenate(places), len(total)
    )

  def _plus(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    if not right.any():
      return left
    if not left.any():
      return right
    pairs, inverse = self.pairs(left, right)
    sizes = np.full(len(pairs), 2)
    return self._added(sizes, pairs.reshape(-1))[inverse]

  def pairs(
    self, left: np.ndarray, right: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of two int arrays, and which one each element is.

    Args:
      left, right: int arrays of one length, numbers of multisets.

    Returns:
      pairs: int array [number of pairs, 2].
      place: int array, the row of `pairs` that each element is.
    """
    if is_rising(left) or is_rising(right):  # No pair occurs twice.
      return np.stack([left, right], 1), np.arange(len(left))
    one, i = self.distinct(left)
    other, j = self.distinct(right)
    if len(one) == 1 or len(other) == 1:
      return np.stack(np.broadcast_arrays(one, other), 1), i + j
    keys, count = i * len(other) + j, len(one) * len(other)
    if count <= 8 * len(keys):
      distinct, place = _distinct_small(keys, count)
    else:
      some, place = distinct_keys(keys)
      distinct = keys[some]
    i, j = np.divmod(distinct, len(other))
    return np.stack([one[i], other[j]], 1), place

  def often(self, numbers: np.ndarray) -> np.ndarray:
    """The same members, each of them many times."""
    return self.plus(numbers, numbers)

  def support(self, numbers: np.ndarray) -> np.ndarray:
    """The same members, each of them once."""
    first, inverse = self.distinct(numbers)
    rows = self._rows.at(first)
    rows = dataclasses.replace(rows, often=np.ones_like(rows.often))
    return self._interned(rows)[inverse]

  def members(self, numbers: np.ndarray, at_least: int = 1) -> np.ndarray:
    """The coordinates in any of some multisets, as a bool array.

    Args:
      numbers: int array.
      at_least: how often a coordinate has to be in one of them.

    Returns:
      bool array, one per coordinate.
    """
    rows = self._rows.at(self.distinct(numbers)[0])
    found = np.zeros(self.num_coordinates, bool)
    found[rows.members[rows.often >= at_least]] = True
    return found

  def sizes(self, numbers: np.ndarray) -> np.ndarray:
    """How many distinct members some multisets have, an int array."""
    return self._rows.sizes[numbers]

  def entries(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The members of some multisets, one after the other.

    Args:
      numbers: int array.

    Returns:
      place: int array, which one of `numbers` each entry belongs to.
      member: int array, the coordinate.
    """
    rows = self._rows.at(numbers)
    return rows.place, rows.members

  def dependency(self, numbers: np.ndarray) -> Dependency:
    """The members of some multisets as rows."""
    rows = self._rows.at(numbers)
    indptr = np.append(rows.starts, len(rows.members))
    return Dependency(indptr.astype(np.int32), rows.members.astype(np.int32))

  def common(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The coordinates that are in both multisets of any pair, a bool array."""
    found = np.zeros(self.num_coordinates, bool)
    pairs, _ = self.pairs(left, right)
    pairs = pairs[(pairs != EMPTY).all(1)]
    if len(pairs):
      check_entries(int(self.sizes(pairs).sum()))
      one, other = (
        rows.place * self.num_coordinates + rows.members
        for rows in map(self._rows.at, pairs.T)
      )
      both = np.intersect1d(one, other, assume_unique=True)
      found[both % self.num_coordinates] = True
    return found

  def within(self, numbers: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Each multiset, reduced to the coordinates where a bool array is True."""
    first, inverse = self.distinct(numbers)
    rows = self._rows.at(first)
    stays = kept[rows.members]
    sizes = np.bincount(rows.place[stays], minlength=len(first))
    reduced = _Rows.of(sizes, rows.members[stays], rows.often[stays])
    return self._interned(reduced)[inverse]

  def _collected(
    self, numbers: np.ndarray, segment: np.ndarray, count: int
  ) -> np.ndarray:
    kept = (segment >= 0) & (numbers != EMPTY)
    if not kept.all():
      numbers, segment = numbers[kept], segment[kept]
    if np.any(segment[1:] < segment[:-1]):
      # NumPy has a radix sort for short integers, which is ten times as fast.
      short = np.uint16 if count <= 2**16 else segment.dtype
      order = np.argsort(segment.astype(short), kind='stable')
      numbers, segment = numbers[order], segment[order]
    indptr = totals(np.bincount(segment, minlength=count))
    return self._united(indptr, numbers)

  def _united(self, indptr: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The sum of the multisets of each run `numbers[indptr[k]:indptr[k+1]]`."""
    # Runs of the same numbers, in any order, have the same sum.
    mixed = self._mixed
    mixed.extend(scramble(np.arange(len(mixed.values), self._size)))
    sums = totals(mixed.values[numbers])
    keys = sums[indptr[1:]] - sums[indptr[:-1]]
    some, place = distinct_keys(keys)
    starts, sizes = indptr[some], np.diff(indptr)[some]
    return self._added(sizes, numbers[ranges(starts, sizes)])[place]

  def _added(self, sizes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The sum of the multisets of each run of `sizes[k]` numbers."""
    result = np.full(len(sizes), EMPTY)
    run = np.repeat(np.arange(len(sizes)), sizes)
    if not numbers.all():  # Of the empty one there is nothing to add.
      run, numbers = run[numbers != EMPTY], numbers[numbers != EMPTY]
      sizes = np.bincount(run, minlength=len(sizes))
    if np.any(sizes == 1):
      is_alone = (sizes == 1)[run]
      result[run[is_alone]] = numbers[is_alone]
      run, numbers = run[~is_alone], numbers[~is_alone]
    if not len(run):
      return result
    once = np.ones(len(run), np.int8)
    run, numbers, often = _counted(run, numbers, once, self._size)
    check_entries(int(self.sizes(numbers).sum()))
    if numbers.max() <= self.num_coordinates:
      members = numbers - 1
    else:
      added = self._rows.at(numbers)
      place = added.place
      often = np.minimum(often[place] * added.often, MANY)
      run, members, often = _counted(
        run[place], added.members, often, self.num_coordinates
      )
    sizes = np.bincount(run, minlength=len(sizes))
    rows = np.flatnonzero(sizes)
    result[rows] = self._interned(_Rows.of(sizes[rows], members, often))
    return result

  def distinct(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers, and which one each is."""
    if is_rising(numbers):
      return numbers, np.arange(len(numbers))
    if len(numbers) < self._size // 8:
      some, place = distinct_keys(numbers)
      return numbers[some], place
    return _distinct_small(numbers, self._size)

  def _interned(self, rows: '_Rows') -> np.ndarray:
    """The numbers of some multisets, which are stored if they are new."""
    result = np.full(len(rows.sizes), EMPTY)
    single = np.flatnonzero(rows.sizes == 1)
    single = single[rows.often[rows.starts[single]] == 1]
    result[single] = rows.members[rows.starts[single]] + 1
    rest = rows.sizes > 0
    rest[single] = False
    rest = np.flatnonzero(rest)
    if not len(rest):
      return result
    keys = rows.keys[rest]
    some, place = distinct_keys(keys)
    keys = keys[some]
    numbers = np.zeros(len(keys), np.int64)
    for known, known_numbers in self._known:
      at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
      numbers = np.where(known[at] == keys, known_numbers[at], numbers)
    new = np.flatnonzero(numbers == 0)
    if len(new):
      numbers[new] = self._size + np.arange(len(new))
      self._append(rows.at(rest[some[new]]))
      self._remember(keys[new], numbers[new])
    result[rest] = numbers[place]
    return result

  def _remember(self, keys: np.ndarray, numbers: np.ndarray) -> None:
    """Adds sorted keys to lists, each at most half as long as the last."""
    while self._known and len(self._known[-1][0]) < 2 * len(keys):
      known, known_numbers = self._known.pop()
      keys = np.concatenate([known, keys])
      numbers = np.concatenate([known_numbers, numbers])
      order = np.argsort(keys, kind='stable')
      keys, numbers = keys[order], numbers[order]
    self._known.append((keys, numbers))


class _Growing:
  """An array to which others are added; its room doubles as it is used up."""

  def __init__(self, values: np.ndarray) -> None:
    self._room = values
    self.values = values

  def extend(self, more: np.ndarray) -> None:
    """Adds an array at the end."""
    before, size = len(self.values), len(self.values) + len(more)
    if size > len(self._room):
      self._room = np.empty(2 * size, self.values.dtype)
      self._room[:before] = self.values
    self._room[before:size] = more
    self.values = self._room[:size]


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
  """Some multisets, as the rows of a sparse matrix.

  It is not one of SciPy, whose checks would take most of the time if there are
  few rows.

  Attributes:
    sizes: int array, how many distinct members each multiset has.
    starts: int array, the position of the first member of each multiset.
    members: int array, the members of all multisets, sorted in each.
    often: int8 array, the multiplicity of each of these members.
  """

  sizes: np.ndarray
  starts: np.ndarray
  members: np.ndarray
  often: np.ndarray

  @classmethod
  def of(
    cls, sizes: np.ndarray, members: np.ndarray, often: np.ndarray
  ) -> '_Rows':
    """Multisets one after the other."""
    return cls(sizes, np.cumsum(sizes) - sizes, members, often)

  @property
  def parts(self) -> tuple[np.ndarray, ...]:
    """The arrays, in the order of the attributes."""
    return self.sizes, self.starts, self.members, self.often

  @functools.cached_property
  def place(self) -> np.ndarray:
    """The multiset that each member belongs to."""
    return np.repeat(np.arange(len(self.sizes)), self.sizes)

  @property
  def keys(self) -> np.ndarray:
    """A hash of each multiset, of its members and their multiplicities."""
    sums = totals(scramble(self.members * 4 + self.often))
    starts = self.starts
    return sums[starts + self.sizes] - sums[starts]

  def at(self, numbers: np.ndarray) -> '_Rows':
    """The multisets at some positions, which may repeat."""
    sizes = self.sizes[numbers]
    place = ranges(self.starts[numbers], sizes)
    return _Rows.of(sizes, self.members[place], self.often[place])


def _counted(
  run: np.ndarray, members: np.ndarray, often: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The multiplicity of each member, less than `size`, in each run."""
  bits = int(size).bit_length()
  keys = (run << bits | members) << 1 | (often > 1)
  if np.any(keys[1:] < keys[:-1]):
    keys.sort()
  pairs = keys >> 1
  is_new = np.ones(len(keys), bool)
  np.not_equal(pairs[1:], pairs[:-1], out=is_new[1:])
  first = np.flatnonzero(is_new)
  last = np.append(first[1:], len(keys)) - 1
  is_many = (last > first) | (keys[last] & 1 == 1)
  pairs = pairs[first]
  often = np.where(is_many, MANY, 1).astype(np.int8)
  return pairs >> bits, pairs & ((1 << bits) - 1), often


def _distinct_small(
  numbers: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
  """As `np.unique` with the inverse, for numbers less than `size`."""
  occurs = np.zeros(size, bool)
  occurs[numbers] = True
  distinct = np.flatnonzero(occurs)
  place = np.zeros(size, np.int64)
  place[distinct] = np.arange(len(distinct))
  return distinct, place[numbers]


def _picked(numbers: np.ndarray, index: np.ndarray) -> np.ndarray:
  if not len(numbers):
    return np.zeros(len(index), np.int64)
  return np.where(index >= 0, numbers[index], EMPTY)
