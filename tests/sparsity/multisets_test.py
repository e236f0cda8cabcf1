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
"""Multisets of coordinates, against Python's counters."""

from collections import Counter

import numpy as np
import pytest

from tfp_diag.sparsity import budget
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.multisets import EMPTY, MANY, Multisets

N = 7


class Model:
  """The same multisets twice: by numbers, and as counters."""

  def __init__(self, seed):
    self.rng = np.random.default_rng(seed)
    self.sets = Multisets(N)
    self.numbers = self.sets.singletons(N)
    self.counters = [Counter([k]) for k in range(N)]

  def __len__(self):
    return len(self.counters)

  def set_to(self, numbers, counters):
    self.numbers, self.counters = numbers, [capped(c) for c in counters]
    self.check()

  def check(self):
    assert_are(self.sets, self.numbers, self.counters)

  def selection(self, size):
    """Elements, or none, by their places."""
    return self.rng.integers(-1, len(self), size)

  def picked(self, index):
    return [Counter() if k < 0 else self.counters[k] for k in index]


def capped(counter):
  return Counter({k: min(n, MANY) for k, n in counter.items()})


def total(counters):
  result = Counter()
  for counter in counters:
    result.update(counter)
  return capped(result)


def assert_are(sets, numbers, counters):
  """Rows of the table are the counters, and equal ones have one number."""
  table = sets.table.toarray()
  np.testing.assert_array_equal(
    table[numbers], [[c[k] for k in range(N)] for c in counters]
  )
  assert len(np.unique(table, axis=0)) == len(table)


def gathered(model):
  index = model.selection(9)
  flow = Flow.gather(index, len(model))
  model.set_to(model.sets.apply(flow, model.numbers), model.picked(index))


def collected(model):
  segment = model.rng.integers(-1, 6, len(model))
  flow = Flow.collect(segment, 6)
  sums = [
    total(c for c, s in zip(model.counters, segment) if s == row)
    for row in range(6)
  ]
  model.set_to(model.sets.apply(flow, model.numbers), sums)


def multiplied(model):
  matrix = model.rng.uniform(size=[8, len(model)]) < 0.3
  sums = [
    total(c for c, is_in in zip(model.counters, row) if is_in) for row in matrix
  ]
  model.set_to(model.sets.apply(Flow.matrix(matrix), model.numbers), sums)


def in_stages(model):
  index = model.selection(10)
  segment = model.rng.integers(-1, 4, 10)
  back = model.rng.integers(-1, 4, 6)
  flow = Flow.gather(index, len(model))
  flow = flow.then(Flow.collect(segment, 4)).then(Flow.gather(back, 4))
  picked = model.picked(index)
  sums = [
    total(c for c, s in zip(picked, segment) if s == row != -1) for row in back
  ]
  model.set_to(model.sets.apply(flow, model.numbers), sums)


def added(model):
  index = model.selection(len(model))
  other = model.sets.apply(Flow.gather(index, len(model)), model.numbers)
  sums = [total(pair) for pair in zip(model.counters, model.picked(index))]
  model.set_to(model.sets.plus(model.numbers, other), sums)


def added_together(model):
  index = [model.selection(len(model)) for _ in range(model.rng.integers(1, 6))]
  terms = [
    model.sets.apply(Flow.gather(i, len(model)), model.numbers) for i in index
  ]
  sums = [total(each) for each in zip(*map(model.picked, index))]
  model.set_to(model.sets.total(terms), sums)


def made_many(model):
  doubled = [total([c, c]) for c in model.counters]
  model.set_to(model.sets.often(model.numbers), doubled)


def without_some(model):
  kept = model.rng.uniform(size=N) < 0.8
  left = [
    Counter({k: n for k, n in c.items() if kept[k]}) for c in model.counters
  ]
  model.set_to(model.sets.within(model.numbers, kept), left)


def made_single(model):
  once = [Counter(set(c)) for c in model.counters]
  model.set_to(model.sets.support(model.numbers), once)


METHODS = [
  gathered,
  collected,
  multiplied,
  in_stages,
  added,
  added_together,
  made_many,
  without_some,
  made_single,
]


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('seed', range(3))
def test_one_method(method, seed):
  model = Model(seed)
  added(model)
  method(model)


@pytest.mark.parametrize('seed', range(40))
def test_methods_one_after_the_other(seed):
  model = Model(seed)
  for method in model.rng.choice(METHODS, 8):
    method(model)


@pytest.mark.parametrize('seed', range(20))
def test_members(seed):
  model = Model(seed)
  for method in model.rng.choice(METHODS[:6], 3):
    method(model)
    some = model.rng.integers(0, len(model), 3)
    for at_least in (1, MANY):
      expected = [
        any(model.counters[e][k] >= at_least for e in some) for k in range(N)
      ]
      found = model.sets.members(model.numbers[some], at_least)
      np.testing.assert_array_equal(found, expected)
      assert found.dtype == bool


@pytest.mark.parametrize('seed', range(20))
def test_common(seed):
  model = Model(seed)
  for method in model.rng.choice(METHODS[:6], 3):
    method(model)
    left, right = model.rng.integers(0, len(model), [2, 4])
    both = [model.counters[a] & model.counters[b] for a, b in zip(left, right)]
    expected = [any(c[k] for c in both) for k in range(N)]
    numbers = model.numbers[left], model.numbers[right]
    np.testing.assert_array_equal(model.sets.common(*numbers), expected)


def test_a_new_table_has_the_empty_one_and_each_coordinate():
  sets = Multisets(3)
  np.testing.assert_array_equal(
    sets.table.toarray(), [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
  )
  np.testing.assert_array_equal(sets.singletons(2, 1), [2, 3])
  assert EMPTY == 0


def test_nothing_has_no_members():
  sets = Multisets(3)
  nothing = np.zeros(0, np.int64)
  assert not sets.members(nothing).any()
  assert not sets.common(nothing, nothing).any()
  assert sets.apply(Flow.gather([-1, -1], 0), nothing).tolist() == [0, 0]
  assert sets.apply(Flow.collect([], 2), nothing).tolist() == [0, 0]


def test_equal_multisets_have_one_number_however_they_are_made():
  sets = Multisets(4)
  one, two, three, four = sets.singletons(4)
  pairs = sets.plus(np.array([one, three]), np.array([two, four]))
  (whole,) = sets.apply(Flow.collect([0, 0], 1), pairs)
  size = sets.table.shape[0]
  odd = sets.plus(np.array([one, two]), np.array([three, four]))
  (again,) = sets.apply(Flow.matrix(np.ones([1, 2], bool)), odd)
  assert whole == again
  # Beside the two pairs nothing is new.
  assert sets.table.shape[0] == size + 2


def test_partial_sums_are_not_kept():
  sets = Multisets(12)
  total = sets.total(np.roll(sets.singletons(12), k) for k in range(6))
  assert sets.sizes(total).tolist() == [6] * 12
  assert sets.table.shape[0] == 1 + 12 + 12


def test_what_is_in_the_table_is_not_copied_for_what_is_added():
  sets = Multisets(100)
  numbers, tables = sets.singletons(100), set()
  for k in range(1, 60):
    numbers = sets.plus(numbers, np.roll(sets.singletons(100), k))
    tables.add(sets.table.data.__array_interface__['data'])
  assert sets.sizes(numbers).tolist() == [60] * 100
  assert len(tables) <= 20


def test_one_coordinate_is_its_singleton_again():
  sets = Multisets(3)
  pair = sets.plus(sets.singletons(1, 0), sets.singletons(1, 2))
  kept = np.array([False, False, True])
  assert sets.within(pair, kept).tolist() == sets.singletons(1, 2).tolist()
  assert sets.within(pair, ~kept).tolist() == sets.singletons(1, 0).tolist()
  assert sets.within(pair, np.zeros(3, bool)).tolist() == [EMPTY]


def test_twice_is_many_and_stays_many():
  sets = Multisets(2)
  once = sets.singletons(2)
  twice = sets.plus(once, once)
  assert (twice != once).all()
  np.testing.assert_array_equal(sets.plus(twice, once), twice)
  np.testing.assert_array_equal(sets.often(twice), twice)
  np.testing.assert_array_equal(sets.table[twice].toarray(), MANY * np.eye(2))


def test_rows_that_are_alike_are_written_once():
  sets = Multisets(100)
  rows = 5000
  index = np.tile(np.arange(100), rows)
  segment = np.repeat(np.arange(rows), 100)
  flow = Flow.gather(index, 100).then(Flow.collect(segment, rows))
  numbers = sets.apply(flow, sets.singletons(100))
  assert len(np.unique(numbers)) == 1
  assert sets.table.nnz == 200


@pytest.mark.parametrize('method', ['apply', 'common'])
def test_too_many_entries_are_refused(method):
  sets = Multisets(50)
  halves = sets.apply(Flow.collect(np.arange(50) // 25, 2), sets.singletons(50))
  with budget.at_most(40), pytest.raises(budget.PatternTooDenseError):
    if method == 'apply':
      sets.apply(Flow.dense(1, 2), halves)
    else:
      sets.common(halves, halves)
  # What was known still is.
  assert sets.members(halves).all()


@pytest.mark.parametrize(
  'left, right',
  [
    ([3, 1, 3, 2, 1], [2, 2, 2, 2, 2]),
    ([2, 2, 2, 2, 2], [3, 1, 3, 2, 1]),
    ([4, 4, 4], [2, 2, 2]),
    ([1, 2, 4], [3, 3, 1]),
    ([3, 3, 1], [1, 2, 4]),
    ([2, 1, 2, 1, 2], [3, 4, 3, 3, 3]),
    ([], []),
  ],
)
def test_distinct_pairs(left, right):
  left, right = np.array(left, np.int64), np.array(right, np.int64)
  pairs, place = Multisets(5).pairs(left, right)
  np.testing.assert_array_equal(pairs[place], np.stack([left, right], 1))
  assert len({*map(tuple, pairs.tolist())}) == len(pairs)
