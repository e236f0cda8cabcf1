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
"""Files that grow are `.npy` files at any length."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.mcmc.run.rows import FileRows, MemoryRows

SHAPES = {'scalar': (), 'vector': (3,), 'matrix': (2, 5), 'empty': (4, 0)}
DTYPES = ['bool', 'int32', 'int64', 'float32', 'float64']


def rows_of(path, shape, dtype):
  return FileRows([str(path)], [tf.TensorSpec(shape, dtype)])


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('shape', list(SHAPES.values()), ids=list(SHAPES))
def test_numpy_reads_what_was_announced(tmp_path, shape, dtype):
  path = tmp_path / 'rows.npy'
  values = np.arange(7 * int(np.prod(shape))).reshape(7, *shape) % 5
  values = values.astype(dtype)
  rows = rows_of(path, shape, dtype)
  rows.create()
  assert np.load(path).shape == (0, *shape)
  for first, end in ((0, 4), (4, 4), (4, 7)):
    rows.write(first, [values[first:end]])
    rows.announce(end)
    found = np.load(path)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values[:end])
    # A process that knows nothing of the first one.
    (found,) = rows_of(path, shape, dtype).read(end)
    np.testing.assert_array_equal(found, values[:end])
    assert not found.flags.writeable


def test_rows_that_do_not_count_are_overwritten(tmp_path):
  rows = rows_of(tmp_path / 'rows.npy', (2,), 'float32')
  rows.create()
  rows.write(0, [np.ones([5, 2], np.float32)])
  rows.write(3, [np.full([4, 2], 2.0, np.float32)])
  (found,) = rows.read(7)
  np.testing.assert_array_equal(found[:, 0], [1, 1, 1, 2, 2, 2, 2])


@pytest.mark.parametrize('num_rows', [10**9, 10**18])
def test_the_header_has_room(tmp_path, num_rows):
  path = tmp_path / 'rows.npy'
  rows = rows_of(path, (2,), 'float32')
  rows.create()
  rows.write(0, [np.ones([1, 2], np.float32)])
  rows.announce(num_rows)
  with open(path, 'rb') as file:
    assert np.lib.format.read_magic(file) == (1, 0)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    assert (shape, dtype) == ((num_rows, 2), np.float32)
    np.testing.assert_array_equal(np.frombuffer(file.read(), dtype), [1, 1])


def test_memory_takes_what_is_appended():
  rows = MemoryRows([tf.TensorSpec([2], 'float32')], 5)
  rows.append([np.ones([3, 2])], 3, None)
  rows.append([np.zeros([0, 2])], 3, None)
  rows.append([np.full([2, 2], 2.0)], 5, None)
  (found,) = rows.read(5)
  np.testing.assert_array_equal(found[:, 0], [1, 1, 1, 2, 2])
  (found,) = rows.read(3)
  assert found.shape == (3, 2)
