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
"""Where the rows of a run are kept: in memory, or in files that grow.

A store has columns, one per part of the state and of the trace. It does not
know how many of its rows count. Its owner does, who counts a row once it has
been written, and overwrites what was not counted.
"""

import io
import os

import numpy as np


class MemoryRows:
  """Rows in memory, which is touched as it is needed."""

  def __init__(self, row_specs, num_rows):
    """Makes room.

    Args:
      row_specs: List of `tf.TensorSpec`s of one row.
      num_rows: Python `int`, how many there will be at most.
    """
    self._columns = [
      np.empty([num_rows, *spec.shape], spec.dtype.as_numpy_dtype)
      for spec in row_specs
    ]

  def append(self, rows, num_rows, progress):
    """Adds the rows of a block.

    Args:
      rows: List of arrays, one per column.
      num_rows: Python `int`, how many rows there are with these.
      progress: Ignored: what is in memory ends with the process.
    """
    del progress
    for column, new in zip(self._columns, rows):
      column[num_rows - len(new) : num_rows] = new

  def read(self, num_rows):
    """The first rows of all columns."""
    return [column[:num_rows] for column in self._columns]


class FileRows:
  """Rows in `.npy` files, one for each column, that grow at their end.

  The format allows for it: NumPy pads the header, so that the number of rows
  can be changed in its place. The files are complete `.npy` files after each
  `announce`.
  """

  def __init__(self, paths, row_specs):
    """Remembers the files; `create` or earlier runs make them.

    Args:
      paths: List of Python `str`s.
      row_specs: List of `tf.TensorSpec`s of one row.
    """
    self._columns = [
      (path, tuple(spec.shape), np.dtype(spec.dtype.as_numpy_dtype))
      for path, spec in zip(paths, row_specs)
    ]

  def create(self):
    """Makes files without rows; of any that are there, no row counts.

    These are never empty in between, so that who reads them finds a header.
    """
    for path, *column in self._columns:
      with open(path, 'r+b' if os.path.exists(path) else 'wb') as file:
        file.write(_header(0, *column))

  def write(self, first, rows):
    """Writes rows from the index `first` on, through to the disk."""
    for (path, shape, dtype), new in zip(self._columns, rows):
      with open(path, 'r+b') as file:
        start = len(_header(0, shape, dtype))
        file.seek(start + first * _row_bytes(shape, dtype))
        file.write(as_bytes(new))
        file.flush()
        os.fsync(file.fileno())

  def announce(self, num_rows):
    """Writes into the files how many of their rows count."""
    for path, *column in self._columns:
      with open(path, 'r+b') as file:
        file.write(_header(num_rows, *column))

  def read(self, num_rows):
    """The first rows of all columns, as read-only `np.memmap`s.

    Raises:
      ValueError: if a file is too short for these.
      OSError: if a file cannot be opened.
    """
    columns = []
    for path, shape, dtype in self._columns:
      start = len(_header(0, shape, dtype))
      needed = start + num_rows * _row_bytes(shape, dtype)
      if os.path.getsize(path) < needed:
        raise ValueError(f'{path!r} is shorter than the {needed:,} bytes of it')
      if needed == start:  # Nothing cannot be mapped.
        column = np.empty([num_rows, *shape], dtype)
        column.flags.writeable = False
      else:
        column = np.memmap(path, dtype, 'r', start, (num_rows, *shape))
      columns.append(column)
    return columns


def as_bytes(array):
  """The contents of an array as a buffer, without a copy where possible."""
  return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _header(num_rows, shape, dtype):
  """The header of a `.npy` file, equally long for any number of rows."""
  file = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    file,
    {
      'descr': np.lib.format.dtype_to_descr(dtype),
      'fortran_order': False,
      'shape': (num_rows, *shape),
    },
  )
  return file.getvalue()


def _row_bytes(shape, dtype):
  return dtype.itemsize * int(np.prod(shape, dtype=np.int64))
