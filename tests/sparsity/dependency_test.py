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
"""Tests dependencies against dense boolean matrices."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from tfp_diag.sparsity import budget, dependency, flow, groups
from tfp_diag.sparsity.dependency import Dependency

COLUMNS = 7


@st.composite
def matrices(draw, rows=None):
  rows = draw(st.integers(0, 9)) if rows is None else rows
  seed = draw(st.integers(0, 10**6))
  density = draw(st.sampled_from([0.0, 0.2, 0.7]))
  return np.random.default_rng(seed).random((rows, COLUMNS)) < density


@pytest.fixture(params=[4000, 0], ids=['numpy', 'scipy'], autouse=True)
def _both_ways(request, monkeypatch):
  monkeypatch.setattr(dependency, '_SMALL', request.param)


def dense(found, columns=COLUMNS):
  # Canonical: sorted, distinct.
  for e in range(found.rows):
    row = found.indices[found.indptr[e] : found.indptr[e + 1]]
    assert (np.diff(row) > 0).all()
  return found.to_matrix(columns).toarray()


SETTINGS = settings(max_examples=60, deadline=None)


@given(matrices(), st.data())
@SETTINGS
def test_gather_and_where(matrix, data):
  d = Dependency.from_matrix(matrix)
  np.testing.assert_array_equal(dense(d), matrix)
  low = 0 if not d.rows else -1
  index = np.array(
    data.draw(st.lists(st.integers(-1, max(d.rows - 1, -1)), max_size=12)), int
  )
  del low
  padded = np.vstack([matrix, np.zeros((1, COLUMNS), bool)])
  np.testing.assert_array_equal(dense(d.gather(index)), padded[index])
  alive = np.array(
    data.draw(st.lists(st.booleans(), min_size=d.rows, max_size=d.rows)), bool
  )
  np.testing.assert_array_equal(dense(d.where(alive)), matrix & alive[:, None])


@given(matrices(), st.data())
@SETTINGS
def test_collect(matrix, data):
  d = Dependency.from_matrix(matrix)
  count = data.draw(st.integers(1, 4))
  segment = np.array(
    data.draw(
      st.lists(st.integers(-1, count - 1), min_size=d.rows, max_size=d.rows)
    ),
    int,
  )
  expected = np.zeros((count, COLUMNS), bool)
  for e, s in enumerate(segment):
    if s >= 0:
      expected[s] |= matrix[e]
  np.testing.assert_array_equal(dense(d.collect(segment, count)), expected)


@given(st.integers(0, 6), st.data())
@SETTINGS
def test_union_concat_multiply_transpose(rows, data):
  a, b = data.draw(matrices(rows)), data.draw(matrices(rows))
  da, db = Dependency.from_matrix(a), Dependency.from_matrix(b)
  np.testing.assert_array_equal(dense(da.union(db)), a | b)
  np.testing.assert_array_equal(
    dense(Dependency.concat([da, db, da])), np.vstack([a, b, a])
  )
  left = data.draw(matrices())[:, :rows]
  product = da.multiply(Dependency.from_matrix(left)) if rows <= 7 else None
  np.testing.assert_array_equal(
    dense(product), (left.astype(int) @ a.astype(int)) > 0
  )
  np.testing.assert_array_equal(dense(da.transpose(COLUMNS), rows), a.T)


@given(matrices())
@SETTINGS
def test_distinct_rows(matrix):
  d = Dependency.from_matrix(np.vstack([matrix, matrix]))
  first, inverse = d.distinct_rows()
  assert len(first) == len(np.unique(matrix, axis=0))
  np.testing.assert_array_equal(
    dense(d.gather(first[inverse])), np.vstack([matrix, matrix])
  )


def test_stored_zeros_do_not_count():
  stored = scipy.sparse.csr_matrix(
    (np.array([1.0, 0.0]), [0, 1], [0, 2]), shape=(1, 2)
  )
  assert stored.nnz == 2
  assert Dependency.from_matrix(stored).entries == 1


@given(matrices(), st.data())
@SETTINGS
def test_flows(matrix, data):
  # Forward, backward and turned, all against the matrix of the flow.
  d = Dependency.from_matrix(matrix)
  n = d.rows
  count = data.draw(st.integers(1, 4))
  rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
  collect = flow.Flow.collect(rng.integers(-1, count, n), count)
  gather = flow.Flow.gather(rng.integers(-1, count, 5), count)
  last = flow.Flow.matrix(rng.random((3, 5)) < 0.4)
  for each in (collect, collect.then(gather), collect.then(gather).then(last)):
    full = each.to_dependency().to_matrix(n).toarray()
    np.testing.assert_array_equal(
      dense(each.apply(d)), (full.astype(int) @ matrix.astype(int)) > 0
    )
    alive = rng.random(each.rows) < 0.5
    np.testing.assert_array_equal(each.pull(alive), full[alive].any(0))
    turned = each.transpose().to_dependency().to_matrix(each.rows).toarray()
    np.testing.assert_array_equal(turned, full.T)


def test_flows_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match='3 outputs'):
    flow.Flow.identity(3).then(flow.Flow.identity(4))


def test_groups_stand_for_their_coordinates():
  n = 300
  columns = groups.Groups(n)
  rng = np.random.default_rng(0)
  matrix = rng.random((40, n)) < rng.choice([0.01, 0.5], (40, 1))
  matrix[7] = matrix[8] = matrix[9]
  settled = columns.settle(Dependency.from_matrix(matrix))
  assert settled.entries < matrix.sum() / 10
  assert columns.columns <= n + 38
  np.testing.assert_array_equal(dense(columns.expand(settled), n), matrix)
  # Groups of groups.
  union = columns.settle(settled.collect(np.arange(40) // 20, 2))
  np.testing.assert_array_equal(
    dense(columns.expand(union), n), [matrix[:20].any(0), matrix[20:].any(0)]
  )


def test_what_cannot_be_written_down_is_refused():
  columns = groups.Groups(100_000)
  wide = columns.settle(
    Dependency.identity(100_000).collect(np.zeros(100_000, int), 1)
  )
  many = wide.gather(np.zeros(100_000, int))
  assert many.entries == 100_000
  with pytest.raises(budget.PatternTooDenseError, match='sample shape'):
    columns.expand(many)


@pytest.mark.parametrize('top', [0, 1 << 40, 3 << 62])
@pytest.mark.parametrize('count', [1, 5, 1000])
def test_distinct_keys_that_differ_in_low_bits(top, count):
  keys = np.random.default_rng(count).integers(0, count, count)
  keys = keys.astype(np.uint64) + np.uint64(top)
  some, place = dependency.distinct_keys(keys)
  expected, inverse = np.unique(keys, return_inverse=True)
  np.testing.assert_array_equal(keys[some], expected)
  np.testing.assert_array_equal(place, inverse)
