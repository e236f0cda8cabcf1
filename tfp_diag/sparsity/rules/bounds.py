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
"""Bounds of the elements of a tensor that hold for every xs.

An index that is computed, as by `tf.argmax`, is not known. But often it is
known to lie in a range, and elements outside of the range are never selected.
The bounds come from interval arithmetic, element by element. They ignore NaN:
an index that is computed from NaN is out of range.
"""

import numpy as np

from tfp_diag.sparsity.evaluation import run_op
from tfp_diag.sparsity.registry import CannotSay, facts, register_bounds
from tfp_diag.sparsity.rules.data_movement import DATA_INPUTS


@register_bounds('ArgMax', 'ArgMin')
def _place(instruction, inputs, output):
  """A position along an axis: for the last axis of `[2, 3]` it is 0, 1 or 2."""
  return 0, _length(instruction, inputs, int(inputs[1].value())) - 1


@register_bounds('TopKV2')
def _places_of_largest(instruction, inputs, output):
  """The values have the bounds of the inputs; indices are on the last axis."""
  if output == 1:
    return 0, _length(instruction, inputs, -1) - 1
  low, high = inputs[0].bounds()
  return np.min(low), np.max(high)


@register_bounds('LowerBound', 'UpperBound')
def _sorted_place(instruction, inputs, output):
  """A position before, between or after the elements: `tf.searchsorted`."""
  return 0, _length(instruction, inputs, -1)


@register_bounds('Bucketize')
def _bucket(instruction, inputs, output):
  """One bucket more than boundaries."""
  return 0, len(instruction.op.get_attr('boundaries'))


@register_bounds('Multinomial', 'StatelessMultinomial')
def _class(instruction, inputs, output):
  """One of the classes."""
  return 0, _length(instruction, inputs, -1) - 1


@register_bounds(
  'RandomUniformInt', 'StatelessRandomUniformInt', 'StatelessRandomUniformIntV2'
)
def _drawn(instruction, inputs, output):
  """From the lower end to below the upper end."""
  return inputs[-2].bounds()[0], inputs[-1].bounds()[1] - 1


@register_bounds('FloorMod')
def _floor_mod(instruction, inputs, output):
  """From 0 to below the divisor."""
  return 0, _largest_rest(instruction, inputs)


@register_bounds('Mod', 'TruncateMod')
def _truncate_mod(instruction, inputs, output):
  """Less than the divisor, with the sign of the dividend."""
  most = _largest_rest(instruction, inputs)
  return np.where(inputs[0].bounds()[0] >= 0, 0, -most), most


@register_bounds('Cast')
def _cast(instruction, inputs, output):
  """A cast to integers rounds towards zero; one to floats may round.

  One to bool tells what is not zero; NaN is not.
  """
  low, high = inputs[0].bounds()
  if instruction.dtypes[0].is_bool:
    is_exact = inputs[0].dtype.is_integer
    return (low > 0) | (high < 0), (low != 0) | (high != 0) | (not is_exact)
  if not instruction.dtypes[0].is_integer:
    return _rounded(instruction, low, high)
  return _in_range(
    instruction, *(np.sign(end) * np.floor(np.abs(end)) for end in (low, high))
  )


@register_bounds(
  'Ceil', 'ClipByValue', 'Floor', 'Maximum', 'Minimum', 'Rint', 'Round'
)
def _monotone(instruction, inputs, output):
  """Between the results for the lower and the upper ends."""
  function = _MONOTONE[instruction.type]
  return tuple(
    function(*ends) for ends in zip(*(value.bounds() for value in inputs))
  )


_MONOTONE = {
  'Ceil': np.ceil,
  'ClipByValue': lambda x, low, high: np.minimum(np.maximum(x, low), high),
  'Floor': np.floor,
  'Maximum': np.maximum,
  'Minimum': np.minimum,
  'Rint': np.rint,
  'Round': np.rint,
}


@register_bounds('Abs', 'Neg')
def _sign_changed(instruction, inputs, output):
  """The negated bounds for `Neg`; for `Abs`, distances from zero."""
  low, high = inputs[0].bounds()
  if instruction.type == 'Neg':
    return _in_range(instruction, -high, -low)
  least = np.minimum(np.abs(low), np.abs(high))
  least = np.where((low <= 0) & (high >= 0), 0, least)
  most = np.maximum(np.abs(low), np.abs(high))
  return _in_range(instruction, least, most)


@register_bounds('SelectV2')
def _selected(instruction, inputs, output):
  """The bounds of both alternatives together."""
  left, right = inputs[1].bounds(), inputs[2].bounds()
  return np.minimum(left[0], right[0]), np.maximum(left[1], right[1])


@register_bounds(
  'Equal', 'Greater', 'GreaterEqual', 'Less', 'LessEqual', 'NotEqual'
)
def _compared(instruction, inputs, output):
  """From whether it holds for all integers in bounds to whether for any."""
  if not inputs[0].dtype.is_integer:
    raise CannotSay('numbers that may be NaN')
  return _COMPARED[instruction.type](inputs[0].bounds(), inputs[1].bounds())


def _less(left, right):
  return left[1] < right[0], left[0] < right[1]


def _equal(left, right):
  is_one_number = (left[0] == left[1]) & (right[0] == right[1])
  may_be = (left[0] <= right[1]) & (right[0] <= left[1])
  return is_one_number & may_be, may_be


def _negated(compare):
  def negated(left, right):
    low, high = compare(left, right)
    return ~high, ~low

  return negated


def _exchanged(compare):
  return lambda left, right: compare(right, left)


_COMPARED = {
  'Equal': _equal,
  'Greater': _exchanged(_less),
  'GreaterEqual': _negated(_less),
  'Less': _less,
  'LessEqual': _negated(_exchanged(_less)),
  'NotEqual': _negated(_equal),
}


@register_bounds('Add', 'AddV2', 'Mul', 'Sub')
def _between_ends(instruction, inputs, output):
  """The least and the greatest of the results for all pairs of ends."""
  function = _ARITHMETIC[instruction.type]
  left, right = inputs[0].bounds(), inputs[1].bounds()
  results = [function(a, b) for a in left for b in right]
  low, high = np.minimum.reduce(results), np.maximum.reduce(results)
  if instruction.dtypes[0].is_integer:
    return _in_range(instruction, low, high)
  return _rounded(instruction, low, high)


_ARITHMETIC = {
  'Add': np.add,
  'AddV2': np.add,
  'Mul': np.multiply,
  'Sub': np.subtract,
}


def _in_range(instruction, low, high):
  """The same bounds; raises CannotSay if integers may overflow."""
  dtype = instruction.dtypes[0]
  if dtype.is_integer:
    least, most = max(dtype.min, -(2**53)), min(dtype.max, 2**53)
    if np.min(low) < least or np.max(high) > most:
      raise CannotSay('numbers out of range')
  return low, high


def _rounded(instruction, low, high):
  """Widens bounds to integers that are exact: rounding does not pass them."""
  low, high = np.floor(low), np.ceil(high)
  limit = 2.0**24 if instruction.dtypes[0].size >= 4 else 2.0**8
  if np.max(np.abs([np.min(low), np.max(high)])) > limit:
    raise CannotSay('numbers that may be rounded')
  return low, high


@register_bounds(*DATA_INPUTS)
def _moved(instruction, inputs, output):
  """The bounds are moved as the elements are."""
  data = facts(instruction.type).moved(len(inputs))
  return tuple(
    run_op(
      instruction.op,
      [
        _spread(value, end) if k in data else value.value()
        for k, value in enumerate(inputs)
      ],
    )[output]
    for end in (0, 1)
  )


def _spread(value, end):
  if value.shape is None:
    raise CannotSay('a shape that is not known')
  return np.array(np.broadcast_to(value.bounds()[end], value.shape), np.float64)


def _length(instruction, inputs, axis):
  """How long the first input is along an axis, for any number of samples."""
  if inputs[0].shape is None:
    raise CannotSay('a shape that is not known')
  if instruction.varies_along(0, axis):
    raise CannotSay('a size that changes with the number of samples')
  return inputs[0].shape[axis]


def _largest_rest(instruction, inputs):
  """The largest rest of a division by a positive number."""
  low, high = inputs[1].bounds()
  if np.min(low) <= 0:
    raise CannotSay('a divisor that may be negative')
  return high - 1 if instruction.dtypes[0].is_integer else high
