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
"""Gradients that TensorFlow lacks, or that are not numbers where they could be.

TensorFlow (2.21 and before) differentiates `x**n` to `n * x**(n - 1)`, whatever
`n` is: the third derivative of `x**2` is `0 * x**-1`, which is not a number at
zero. In the gradients of `tf.math.segment_mean`, `segment_max` and the like it
divides by the number of elements of a segment, which may be 0: nothing comes of
it until that is differentiated again. There is no public way to replace the
gradient of an op on a tape. So while this package differentiates, TensorFlow's
own functions for these ops are given ones that know constant whole exponents
and empty segments. Where TensorFlow keeps them elsewhere, its own stay.

Under XLA the gradient of a slice is an op which has none itself: functions with
`tf.slice`, and third derivatives of ones with `tf.concat`, would have no
diagonal there. Likewise for `tf.sparse.segment_sum` anywhere.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.internal import batching
from tfp_diag.sparsity.registry import facts
from tfp_diag.sparsity.replaced import Replaced

# Whose gradient divides by a number of elements.
_SEGMENTS = (
  *('SegmentMax', 'SegmentMean', 'SegmentMin'),
  *('UnsortedSegmentMax', 'UnsortedSegmentMin'),
)

try:
  from tensorflow.python.framework.ops import _gradient_registry

  _TABLE: Any = _gradient_registry._registry
  _ORIGINAL: dict[str, Callable] = {
    op_type: _TABLE[op_type]['type'] for op_type in ('Pow', *_SEGMENTS)
  }
except (AttributeError, ImportError, KeyError):  # Another TensorFlow.
  _TABLE = None


def _gradient_of_power(op: tf.Operation, cotangent: tf.Tensor) -> tuple:
  """By the base and by the exponent, as TensorFlow's own."""
  exponents = _whole_exponents(op)
  if exponents is None:
    return _ORIGINAL['Pow'](op, cotangent)
  base = op.inputs[0]
  if not exponents.any():
    slope = tf.zeros_like(cotangent)
  elif (exponents == 1).all():
    slope = cotangent
  elif (exponents == 2).all():
    slope = cotangent * (2.0 * base)
  else:
    factor = tf.constant(exponents, base.dtype)
    lower = tf.constant(np.maximum(exponents - 1.0, 0.0), base.dtype)
    slope = cotangent * (factor * tf.pow(base, lower))
  by_base = batching.sum_to(slope, base) if exponents.ndim else slope
  if _is_constant(op, 1):
    return by_base, None
  return by_base, _ORIGINAL['Pow'](op, cotangent)[1]


def _is_constant(op: Any, k: int) -> bool:
  """Whether nobody asks for the derivative by an input."""
  if hasattr(op, 'skip_input_indices'):  # On a tape.
    return k in (op.skip_input_indices or ())
  return facts(op.inputs[k].op.type).is_constant


def _whole_exponents(op: tf.Operation) -> np.ndarray | None:
  """The exponents if they are constants of 0, 1, 2, ..., or None."""
  exponent = op.inputs[1]
  if not exponent.dtype.is_floating or _may_change(exponent):
    return None
  value = tf.get_static_value(exponent)
  if value is None:
    return None
  value = np.asarray(value, np.float64)
  is_whole = np.isfinite(value) & (value >= 0) & (value == np.floor(value))
  return value if is_whole.all() else None


def _may_change(tensor: tf.Tensor) -> bool:
  """Whether it is computed from what a function captures.

  In the next call of the graph that is another one.
  """
  if not tf.is_symbolic_tensor(tensor):
    return False
  captured = {id(x) for x in getattr(tensor.graph, 'inputs', ())}
  waiting, seen = [tensor], set()
  while waiting:
    x = waiting.pop()
    if id(x) in captured:
      return True
    if x.op not in seen:
      seen.add(x.op)
      waiting += x.op.inputs
  return False


def _gradient_of_filled(op_type: str) -> Callable:
  """TensorFlow's own, by the results of segments that are not empty."""

  def gradient(op, cotangent):
    ids = op.inputs[1]
    ones = tf.ones_like(ids, tf.float32)
    if op_type.startswith('Unsorted'):
      counts = tf.math.unsorted_segment_sum(ones, ids, op.inputs[2])
    else:
      counts = tf.math.segment_sum(ones, ids)
    trailing = tf.ones([tf.rank(cotangent) - 1], tf.int32)
    counts = tf.reshape(counts, tf.concat([[-1], trailing], 0))
    return _ORIGINAL[op_type](
      op, tf.where(counts > 0, cotangent, tf.zeros_like(cotangent))
    )

  return gradient


def _gradient_of_update(op: tf.Operation, cotangent: tf.Tensor) -> tuple:
  """By the Tensor that a piece was written into, and by the piece."""
  _, piece, begin = op.inputs
  size = tf.shape(piece, out_type=begin.dtype)
  written = tf.slice(cotangent, begin, size)
  after = tf.shape(cotangent, out_type=begin.dtype) - begin - size
  # Not a product: the cotangent may be infinite.
  kept = tf.pad(
    tf.zeros_like(written, tf.bool),
    tf.stack([begin, after], axis=-1),
    constant_values=True,
  )
  return tf.where(kept, cotangent, tf.zeros_like(cotangent)), written, None


def _gradient_of_segments(name: str) -> Callable:
  """By the cotangent of `SparseSegmentSum`, say: the op itself."""
  segments = getattr(tf.raw_ops, name)

  def gradient(op, cotangent, _=None):
    before, indices, segment_ids, _ = op.inputs
    if len(op.outputs) > 1:  # Only of slices that are there.
      indices = tf.searchsorted(op.outputs[1], indices)
    by_cotangent = segments(
      data=cotangent,
      indices=indices,
      segment_ids=segment_ids,
      num_segments=tf.shape(before)[0],
    )
    return by_cotangent, None, None, None

  return gradient


_MISSING = {
  'XlaDynamicUpdateSlice': _gradient_of_update,
  **{
    f'{name}{suffix}': _gradient_of_segments(f'{name}WithNumSegments')
    for name in ('SparseSegmentSum', 'SparseSegmentMean', 'SparseSegmentSqrtN')
    for suffix in ('Grad', 'GradV2')
  },
}
for _op_type, _gradient in _MISSING.items():
  with contextlib.suppress(KeyError):  # A later TensorFlow may have one.
    tf.RegisterGradient(_op_type)(_gradient)

# Entered wherever something is differentiated.
own_gradients: Any = contextlib.nullcontext()
if _TABLE is not None:
  _own: dict[str, Callable] = {
    'Pow': _gradient_of_power,
    **{op_type: _gradient_of_filled(op_type) for op_type in _SEGMENTS},
  }
  own_gradients = Replaced(
    _TABLE,
    {
      op_type: lambda entry, own=own: {**entry, 'type': own}
      for op_type, own in _own.items()
    },
  )
