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
"""Integers that are known for any number of samples: sizes, and counts.

Of sizes see `Sizes`. Indices that count the samples, 0, 1, 2, ..., and what is
added to them, or stands beside them, have bounds in each sample: a `Ramp`.
"""

import functools

import numpy as np

from tfp_diag.sparsity.registry import CannotSay, register_facts
from tfp_diag.sparsity.value import Ramp, Sizes


def _product(op, left, right):
  """A product of sizes is a size."""
  return Sizes(left.factors * right.factors, left.powers + right.powers)


def _product_of_all(op, sizes, axes):
  """So is the product along some axes."""
  keep, axes = op.get_attr('keep_dims'), tuple(axes.factors.reshape(-1))
  axes = tuple(axis % sizes.factors.ndim for axis in axes)
  return Sizes(
    sizes.factors.prod(axes, keepdims=keep),
    sizes.powers.sum(axes, keepdims=keep),
  )


def _sum(op, *sizes):
  """`n + n`, and `n + 0`; `n + 1` has another value than what this gives."""
  return functools.reduce(_added_sizes, sizes)


def _difference(op, left, right):
  """`3 * n - n`."""
  return _added_sizes(left, Sizes(-right.factors, right.powers))


def _added_sizes(left, right):
  is_zero = left.factors[..., np.newaxis] == 0
  powers = np.where(is_zero, right.powers, left.powers)
  return Sizes(left.factors + right.factors, powers)


def _sum_of_all(op, sizes, axes):
  """The sum of a vector of sizes."""
  return _reduced(_added_sizes, op, sizes, axes)


def _reduced(combine, op, sizes, axes):
  """What a function of two makes of all sizes in a vector."""
  if sizes.factors.ndim != 1 or not sizes.factors.size or not axes.factors.size:
    return None
  parts = [Sizes(*part) for part in zip(sizes.factors, sizes.powers)]
  found = parts[0]
  for part in parts[1:]:
    found = found and combine(found, part)
  if found is None or not op.get_attr('keep_dims'):
    return found
  return Sizes(found.factors[np.newaxis], found.powers[np.newaxis])


def _with_sign(op, sizes):
  """`-n`, and `abs(n)`."""
  sign = np.negative if op.type == 'Neg' else np.abs
  return Sizes(sign(sizes.factors), sizes.powers)


def _quotient(op, left, right):
  """`4 * n // 2`, but not `n // 2`."""
  if np.any(right.factors == 0) or np.any(left.factors % right.factors):
    return None
  powers = left.powers - right.powers
  return (
    None if np.any(powers < 0) else Sizes(left.factors // right.factors, powers)
  )


def _rest(op, left, right):
  """`4 * n % 2`, which is zero."""
  exact = _quotient(op, left, right)
  return exact and Sizes(0 * exact.factors, exact.powers)


def _extreme(op, left, right):
  """The greater, or the lesser, of `n` and one, but not of `n` and two.

  There is one sample at least: of none, no derivative is wrong.
  """
  left_is_more = _is_more(left, right)
  if not np.all(left_is_more | _is_more(right, left)):
    return None
  take_left = left_is_more == (op.type in ('Max', 'Maximum'))
  return _where(take_left, left, right)


def _extreme_of_all(op, sizes, axes):
  """The greatest, or the least, of the sizes in a vector."""
  return _reduced(functools.partial(_extreme, op), op, sizes, axes)


def _is_more(left, right):
  """Whether it is not less, for any numbers of samples."""
  is_more = (left.factors >= right.factors) & (right.factors >= 0)
  return is_more & np.all(left.powers >= right.powers, axis=-1)


def _chosen_sizes(op, flag, left, right):
  """Sizes that are chosen by what does not depend on them."""
  return _where(flag.factors != 0, left, right)


def _where(flag, left, right):
  return Sizes(
    np.where(flag, left.factors, right.factors),
    np.where(flag[..., np.newaxis], left.powers, right.powers),
  )


def _broadcast_sizes(op, left, right):
  """A common shape; two sizes that may differ must be equal, or one is one."""
  rank = max(len(left.factors), len(right.factors))
  left, right = (_with_rank(part, rank) for part in (left, right))
  is_one = (left.factors == 1) & ~left.powers.any(-1)
  result = _where(is_one, right, left)
  is_one |= (right.factors == 1) & ~right.powers.any(-1)
  is_equal = (left.factors == right.factors) & np.all(
    left.powers == right.powers, axis=-1
  )
  return result if np.all(is_one | is_equal) else None


def _stitched(op, *parts):
  """Sizes that are put in places: how a gradient finds the shape of a sum."""
  half = len(parts) // 2
  places = np.concatenate([part.factors.reshape(-1) for part in parts[:half]])
  sizes = [part.flat() for part in parts[half:]]
  factors, powers = (np.concatenate(part) for part in zip(*sizes))
  if len(places) != len(factors):
    return None
  # Of two in one place the last one stays.
  order = np.full(places.max(initial=-1) + 1, -1)
  order[places] = np.arange(len(places))
  return None if -1 in order else Sizes(factors[order], powers[order])


def _with_rank(sizes, rank):
  missing = rank - len(sizes.factors)
  return Sizes(
    np.pad(sizes.factors, (missing, 0), constant_values=1),
    np.pad(sizes.powers, ((missing, 0), (0, 0))),
  )


for _op_types, _sizes in {
  ('Mul',): _product,
  ('Prod',): _product_of_all,
  ('Sum',): _sum_of_all,
  ('Abs', 'Neg'): _with_sign,
  ('FloorMod', 'Mod', 'TruncateMod'): _rest,
  ('Add', 'AddN', 'AddV2'): _sum,
  ('Sub',): _difference,
  ('Div', 'FloorDiv', 'TruncateDiv'): _quotient,
  ('Max', 'Min'): _extreme_of_all,
  ('Maximum', 'Minimum'): _extreme,
  ('SelectV2',): _chosen_sizes,
  ('BroadcastArgs',): _broadcast_sizes,
  ('DynamicStitch',): _stitched,
}.items():
  register_facts(*_op_types, sizes=_sizes)


def _line(instruction, inputs, shape):
  """`range(a, b, c)`, where `a` and `c` are the same for any number."""
  start, _, step = (value.bounds() for value in inputs)
  if start[0] != start[1] or step[0] != step[1] or step[0] <= 0:
    return None
  return Ramp(shape[0], *(np.reshape(e, [1]) for e in (step[0], *start)))


def _chosen(instruction, inputs, shape):
  """`where(n > 1, range(n), 0)`: how `tf.vectorized_map` picks its elements."""
  flag, count, zero = inputs
  ramp = count.ramp()
  if ramp is None or not ramp.is_count or not _is(zero, 0):
    return None
  if flag.source is None or flag.source[0].type != 'Greater':
    return None
  number, one = flag.source[1]
  if not _is(one, 1) or not number.is_known:
    return None
  is_its = np.array_equal(number.value(even_varying=True), ramp.count)
  return ramp if is_its else None


def _as_before(instruction, inputs, shape):
  """The same elements in the same order."""
  return inputs[0].ramp()


def _reshaped(instruction, inputs, shape):
  """The same, unless the number of samples decides how they are grouped."""
  sizes = inputs[1].value(even_varying=True)
  varies = np.zeros_like(sizes, bool)
  if inputs[1].varies is not None:
    varies[:] = inputs[1].varies
  is_open = varies | (sizes < 0)
  return None if is_open[1:].any() else inputs[0].ramp()


def _with_new_axes(instruction, inputs, shape):
  """`x[:, tf.newaxis]`."""
  read = instruction.op.get_attr
  steps = inputs[3].value()
  whole = read('begin_mask') & read('end_mask')
  kept = whole | read('new_axis_mask') | read('ellipsis_mask')
  if read('shrink_axis_mask') or kept + 1 != 1 << len(steps):
    return None
  return inputs[0].ramp() if np.all(steps == 1) else None


def _broadcast(instruction, inputs, shape):
  """Each number several times, for the same sample."""
  return _blockwise(lambda part: part, inputs[:1], shape)


def _tiled(instruction, inputs, shape):
  """The same by `tile`."""
  first, *_ = times = inputs[1].value()
  if first != 1:
    return None
  return _blockwise(lambda part: np.tile(part, times), inputs[:1])


def _stacked(instruction, inputs, shape):
  """`stack(parts, axis=-1)`."""
  axis = instruction.op.get_attr('axis') % len(shape)
  return _blockwise(_stack, inputs) if axis == len(shape) - 1 > 0 else None


def _stack(*parts):
  return np.stack(parts, axis=-1)


def _turned(instruction, inputs, shape):
  """`transpose(stack(vectors))`: how `tf.gather_nd` makes columns."""
  source = inputs[0].source
  if source is None or source[0].type != 'Pack' or not _is(inputs[1], [1, 0]):
    return None
  is_first = source[0].op.get_attr('axis') in (0, -2)
  return _blockwise(_stack, source[1]) if is_first else None


def _joined(instruction, inputs, shape):
  """`concat(parts, axis=-1)`."""
  *parts, axis = inputs
  if int(axis.value()) % len(shape) != len(shape) - 1 or len(shape) == 1:
    return None
  return _blockwise(lambda *parts: np.concatenate(parts, axis=-1), parts)


def _added(instruction, inputs, shape):
  """The sum of both."""
  return _blockwise(np.add, inputs, shape)


def _not_less(instruction, inputs, shape):
  """`maximum(numbers, 0)`, which the gradient of segments takes of these."""
  for value, other in (inputs, inputs[::-1]):
    ramp = value.ramp()
    if ramp is None or value.shape != shape:
      continue
    _, most = other.ends_for_any_number()
    if np.min(ramp.low) >= np.max(most):
      return ramp
  return None


def _multiplied(instruction, inputs, shape):
  """A multiple: one factor is a positive integer."""
  count, (left, right) = _blocks(inputs, shape)
  if right[0].any():
    left, right = right, left
  step, times, most = right
  # If no step is larger than the last one, integers do not overflow between.
  if step.any() or np.any(times != most) or times.min() < 1:
    return None
  return Ramp(count, *((part * times).reshape(-1) for part in left))


def _blockwise(combine, values, shape=None):
  """The ramp of what is done to each block alike.

  Args:
    combine: Function of arrays, one per value, of the elements of a block.
    values: List of `Value`.
    shape: tuple of int to which they are broadcast before, or None.

  Returns:
    `Ramp`.
  """
  count, parts = _blocks(values, shape)
  return Ramp(count, *(combine(*part).reshape(-1) for part in zip(*parts)))


def _blocks(values, shape=None):
  """The number of blocks, and for each value the step and bounds in a block."""
  ramps = [value.ramp() for value in values]
  counts = {ramp.count for ramp in ramps if ramp is not None}
  if len(counts) != 1:
    raise CannotSay('what does not grow with the number of the sample')
  [count] = counts
  blocks = []
  for value, ramp in zip(values, ramps):
    result = value.shape if shape is None else shape
    rows, rest = divmod(result[0], count)
    has_rows = len(value.shape) == len(result) and value.shape[0] == result[0]
    if rest or not (has_rows or ramp is None):
      raise CannotSay('blocks along another axis')
    if ramp is not None:
      parts = [part.reshape(rows, *value.shape[1:]) for part in ramp[1:]]
    else:
      low, high = value.ends_for_any_number()
      parts = [0.0, *((low.min(), high.max()) if has_rows else (low, high))]
    blocks.append([np.broadcast_to(p, (rows, *result[1:])) for p in parts])
  return count, blocks


def _is(value, number):
  """Whether a value is this number."""
  try:
    return np.array_equal(value.value(), number)
  except CannotSay:
    return False


for _op_types, _ramp in {
  ('Range',): _line,
  ('SelectV2',): _chosen,
  ('Cast', 'ExpandDims', 'Identity', 'Squeeze'): _as_before,
  ('Reshape',): _reshaped,
  ('StridedSlice',): _with_new_axes,
  ('BroadcastTo',): _broadcast,
  ('Tile',): _tiled,
  ('Pack',): _stacked,
  ('Transpose',): _turned,
  ('ConcatV2',): _joined,
  ('Add', 'AddV2'): _added,
  ('Maximum',): _not_less,
  ('Mul',): _multiplied,
}.items():
  register_facts(*_op_types, ramp=_ramp)
