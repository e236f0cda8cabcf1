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
"""Indices that count the samples: 0, 1, 2, ..., for any number of samples.

Other values that are computed from the number of samples count as unknown. Of
these indices only the number is needed, and sizes count as known.
"""

import numpy as np

from tfp_diag.sparsity.registry import CannotSay, register_facts


def _range(inputs):
  """`range(n)`."""
  start, _, step = inputs
  return _is(start, 0) and _is(step, 1)


def _chosen(inputs):
  """`where(n > 1, range(n), 0)`: how `tf.vectorized_map` picks its elements."""
  flag, count, zero = inputs
  if not count.is_count or not _is(zero, 0):
    return False
  if flag.source is None or flag.source[0].type != 'Greater':
    return False
  number, one = flag.source[1]
  if not _is(one, 1) or not number.is_known or not count.is_known:
    return False
  size = count.value(even_varying=True).size
  return np.array_equal(number.value(even_varying=True), size)


def _is(value, number):
  """Whether a value is this number."""
  try:
    return np.array_equal(value.value(), number)
  except CannotSay:
    return False


register_facts('Range', counts=_range)
register_facts('SelectV2', counts=_chosen)
register_facts(
  *('Cast', 'Identity'),
  counts=lambda inputs: inputs[0].is_count and inputs[0].dtype.is_integer,
  columns=lambda instruction, inputs, shape: inputs[0].columns(),
)


def _stacked(instruction, inputs, shape):
  """`stack(vectors, axis=1)`."""
  is_last = instruction.op.get_attr('axis') in (1, -1)
  return list(inputs) if is_last else None


def _joined(instruction, inputs, shape):
  """`concat(matrices, axis=1)`."""
  *parts, axis = inputs
  if not (_is(axis, 1) or _is(axis, -1)):
    return None
  columns = []
  for part in parts:
    found = part.columns()
    if found is None and (part.shape is None or part.shape[1] != 1):
      return None
    columns += found or [part]
  return columns


def _as_column(moves_nothing):
  """A vector with an axis more, if an op is seen to add no more than that."""

  def columns(instruction, inputs, shape):
    # With one row it is not seen which axis is new.
    is_one = inputs[0].shape == shape[:1] and shape[1] == 1 and shape[0] > 1
    return (
      [inputs[0]] if is_one and moves_nothing(instruction, inputs) else None
    )

  return columns


def _is_new_axis(instruction, inputs):
  """`x[:, tf.newaxis]`."""
  read = instruction.op.get_attr
  is_whole = read('begin_mask') & read('end_mask') & 1
  try:
    return bool(
      is_whole and read('new_axis_mask') == 2 and inputs[3].value()[0] == 1
    )
  except CannotSay:
    return False


register_facts('Pack', columns=_stacked)
register_facts('ConcatV2', columns=_joined)
register_facts('Reshape', columns=_as_column(lambda instruction, inputs: True))
register_facts(
  'ExpandDims',
  columns=_as_column(lambda _, inputs: _is(inputs[1], 1) or _is(inputs[1], -1)),
)
register_facts('StridedSlice', columns=_as_column(_is_new_axis))
