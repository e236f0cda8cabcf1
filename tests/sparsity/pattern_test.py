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
"""Tests for tfp_diag.sparsity.pattern."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from tfp_diag.sparsity.pattern import SparsityPattern

_FORMATS = ('bsr', 'coo', 'csc', 'csr', 'dia', 'dok', 'lil')


_MAKERS = [getattr(scipy.sparse, f'{form}_matrix') for form in _FORMATS]


def _assert_canonical(matrix):
  assert isinstance(matrix, scipy.sparse.csr_matrix)
  assert matrix.dtype == bool
  assert np.all(matrix.data)
  for row in range(matrix.shape[0]):
    columns = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
    assert np.all(np.diff(columns) > 0)


@given(
  st.integers(0, 6),
  st.integers(0, 6),
  st.sampled_from([bool, np.int8, np.float32, np.float64, np.complex64]),
  st.sampled_from(_FORMATS),
  st.booleans(),
  st.integers(0, 2**32 - 1),
)
@settings(max_examples=200, deadline=None)
def test_any_matrix_becomes_canonical(rows, columns, dtype, form, array, seed):
  rng = np.random.default_rng(seed)
  dense = (rng.integers(-1, 2, size=[rows, columns])).astype(dtype)
  kind = scipy.sparse.coo_array if array else scipy.sparse.coo_matrix
  pattern = SparsityPattern(kind(dense).asformat(form))
  _assert_canonical(pattern.matrix)
  np.testing.assert_array_equal(pattern.matrix.toarray(), dense != 0)
  assert pattern == SparsityPattern(dense)
  assert hash(pattern) == hash(SparsityPattern(dense))
  assert pattern.shape == (rows, columns)
  assert pattern.num_coordinates == columns
  assert pattern.nnz == np.count_nonzero(dense)


def test_duplicates_count_even_where_they_cancel():
  matrix = scipy.sparse.coo_matrix(
    ([1.0, -1.0, 0.0, 2.0, 2.0], ([0, 0, 1, 1, 1], [1, 1, 1, 2, 0])),
    shape=(2, 3),
  )
  pattern = SparsityPattern(matrix)
  _assert_canonical(pattern.matrix)
  expected = [[False, True, False], [True, False, True]]
  assert pattern.matrix.toarray().tolist() == expected


@pytest.mark.parametrize('dtype', [bool, np.float64])
def test_a_csr_matrix_that_is_not_canonical_becomes_so(dtype):
  # Row 0: unsorted; row 1: a duplicate and an explicit zero.
  matrix = scipy.sparse.csr_matrix(
    (np.array([1, 2, 3, -3, 0], dtype), [2, 0, 1, 1, 2], [0, 2, 5]),
    shape=(2, 3),
  )
  pattern = SparsityPattern(matrix)
  _assert_canonical(pattern.matrix)
  expected = [[True, False, True], [False, True, False]]
  assert pattern.matrix.toarray().tolist() == expected
  assert matrix.indices.tolist() == [2, 0, 1, 1, 2]  # As it was.


@pytest.mark.parametrize('form', [np.asarray, *_MAKERS])
@pytest.mark.parametrize('entry', [np.nan, np.inf])
def test_what_is_not_finite_is_refused(form, entry):
  with pytest.raises(ValueError, match='`matrix` has entries that are not'):
    SparsityPattern(form([[entry, 0.0]]))


def test_is_a_value():
  matrix = scipy.sparse.csr_matrix(np.eye(3, dtype=bool))
  pattern = SparsityPattern(matrix)
  matrix.data[:] = False
  matrix.indices[:] = 0
  assert pattern == SparsityPattern(np.eye(3))
  with pytest.raises(dataclasses.FrozenInstanceError):
    pattern.notes = ('changed',)


def test_differs_where_a_field_differs():
  shapes = ((1,), (2,))
  patterns = [
    SparsityPattern(np.eye(3)),
    SparsityPattern(np.ones([3, 3])),
    SparsityPattern(np.eye(3)[::-1]),
    SparsityPattern(np.eye(3, 4)),
    SparsityPattern(np.eye(3), row_shapes=shapes),
    SparsityPattern(np.eye(3), column_shapes=shapes),
    SparsityPattern(np.eye(3), fallback_ops=('Foo',)),
    SparsityPattern(np.eye(3), notes=('Foo',)),
  ]
  for i, first in enumerate(patterns):
    for j, second in enumerate(patterns):
      assert (first == second) == (i == j)
  assert patterns[0] != 'a pattern'


def test_default_shapes_are_vectors():
  pattern = SparsityPattern(np.ones([2, 3]))
  assert pattern.row_shapes == ((2,),)
  assert pattern.column_shapes == ((3,),)


def test_shapes_become_tuples_of_int():
  pattern = SparsityPattern(
    np.ones([2, 7]),
    row_shapes=[[np.int64(2)], (0, 5)],
    column_shapes=((2, 3), ()),
    fallback_ops=['Foo'],
  )
  assert pattern.row_shapes == ((2,), (0, 5))
  assert pattern.column_shapes == ((2, 3), ())
  assert pattern.fallback_ops == ('Foo',)
  hash(pattern)


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'matrix': np.ones([3])}, r'shape \(3,\).*two dimensions'),
    ({'matrix': np.ones([1, 2, 3])}, 'two dimensions'),
    ({'matrix': [['a', 'b']]}, 'dtype'),
    ({'matrix': None}, 'two dimensions'),
    ({'row_shapes': (3,)}, '`row_shapes` is.*one event shape for each part'),
    ({'column_shapes': ((None,),)}, '`column_shapes` is.*tuple of ints'),
    ({'row_shapes': ((2,), (2,))}, 'in all 4 coordinates.*3 rows'),
    ({'column_shapes': ((2,),)}, 'in all 2 coordinates.*4 columns'),
    ({'column_shapes': ()}, 'in all 0 coordinates.*4 columns'),
    ({'row_shapes': ((-1, -3),)}, 'not negative'),
    ({'notes': 'one note'}, '`notes`.*tuple of strings'),
    ({'fallback_ops': (3,)}, '`fallback_ops`.*tuple of strings'),
  ],
)
def test_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    SparsityPattern(**{'matrix': np.ones([3, 4]), **arguments})


def test_refuses_a_corrupt_matrix():
  matrix = scipy.sparse.csr_matrix(np.eye(3))
  matrix.indices[1] = 17
  with pytest.raises(ValueError):
    SparsityPattern(matrix)


def test_reads_well():
  chain = scipy.sparse.diags([1.0] * 3, [-1, 0, 1], (1000, 1000))
  assert str(SparsityPattern(chain)) == ('1000 x 1000, 2998 nonzeros (0.3 %)')
  assert str(SparsityPattern(np.zeros([0, 0]))) == '0 x 0, 0 nonzeros (0 %)'
  full = np.ones([20, 20])
  assert str(SparsityPattern(full)) == '20 x 20, 400 nonzeros (100 %)'
  full[0, 1] = 0
  assert str(SparsityPattern(full)) == '20 x 20, 399 nonzeros (99.8 %)'
  lines = str(
    SparsityPattern(
      np.eye(3),
      row_shapes=((), (2,)),
      column_shapes=((), (2,)),
      fallback_ops=('Foo', 'Bar'),
      notes=('The loop was unrolled.',),
    )
  ).splitlines()
  assert lines == [
    '3 x 3, 3 nonzeros (33 %)',
    '  parts: (), (2,)',
    '  dense, as what they depend on is not known: Foo, Bar',
    '  The loop was unrolled.',
  ]
  text = str(SparsityPattern(np.eye(10), row_shapes=((),) * 10))
  assert '  parts of the rows: (), (), (), (), (), () and 4 more\n' in text
  assert text.endswith('  parts of the columns: (10,)')
