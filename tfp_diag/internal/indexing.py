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
"""Indices of a matrix with sample dimensions in front, as NumPy reads them."""

import operator

import numpy as np
import tensorflow as tf


def normalize(key, rank):
  """Writes an index as one int or slice per dimension.

  Args:
    key: The index, as `__getitem__` gets it: an int, a slice, an Ellipsis, or a
      tuple of these.
    rank: Python int, the number of dimensions.

  Returns:
    List of `rank` Python ints or slices.

  Raises:
    IndexError: if `key` is not a valid index of `rank` dimensions.
  """
  key = key if isinstance(key, tuple) else (key,)
  key = [k if isinstance(k, slice) or k is Ellipsis else _int(k) for k in key]
  holes = [i for i, k in enumerate(key) if k is Ellipsis]
  if len(holes) > 1:
    raise IndexError('An index can have only one Ellipsis (`...`).')
  if not holes:
    holes = [len(key)]
    key.append(Ellipsis)
  missing = rank - (len(key) - 1)
  if missing < 0:
    raise IndexError(
      f'Too many indices, `key` has {len(key) - 1}, but there are {rank} '
      'dimensions, the sample dimensions and those of the matrix.'
    )
  hole = holes[0]
  return [*key[:hole], *[slice(None)] * missing, *key[hole + 1 :]]


def positions(index, size, what):
  """The positions that an int or slice stands for.

  Args:
    index: Python int or slice.
    size: Python int, the size of the dimension.
    what: Python str, the name of the dimension, for the error.

  Returns:
    `range`.

  Raises:
    IndexError: if an int is out of range.
  """
  if isinstance(index, slice):
    return range(size)[index]
  if not -size <= index < size:
    raise IndexError(
      f'Index {index} is out of range: there are {size} {what}, counted from '
      '0, or backwards from -1.'
    )
  start = index % size
  return range(start, start + 1)


def select(tensor, axis, index, what='samples'):
  """Applies an int or slice to one dimension, and keeps the dimension.

  Args:
    tensor: Tensor.
    axis: Python int, not negative.
    index: Python int or slice.
    what: Python str, the name of the dimension, for the error.

  Returns:
    Tensor of the same rank.
  """
  if isinstance(index, slice) and index == slice(None):
    return tensor
  size = tensor.shape[axis]
  before = (slice(None),) * axis
  if size is None:
    if not isinstance(index, slice):
      # The last one ends at None: -1 + 1 would be the beginning.
      index = slice(index, None if index == -1 else index + 1)
    return tensor[(*before, index)]
  chosen = positions(index, size, what)
  if chosen.step == 1:
    return tensor[(*before, slice(chosen.start, chosen.stop))]
  return tf.gather(tensor, tf.constant(list(chosen), tf.int32), axis=axis)


def _int(index):
  """Converts an index to an int; raises an IndexError for others, and bools."""
  try:
    if isinstance(index, (bool, np.bool_)):
      raise TypeError
    return operator.index(index)
  except TypeError as e:
    raise IndexError(
      f'{index!r} cannot be an index here. Use integers that are known while a '
      'graph is built, slices and an Ellipsis; `to_dense()` takes any index.'
    ) from e
