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
"""`tf.vectorized_map`, with an op that it gets wrong put right.

Where TensorFlow (2.21 and before) vectorizes `tf.roll`, it adds one to the axis
for the new axis in front, also to a negative one: -1 becomes 0, and it is the
passes that are rolled. The gradient of `tf.roll(x, 1, axis=-1)` is such an op,
and the result is wrong without an error.

There is no public way to say how an op is vectorized, nor to replace the
gradient of one on a tape. So while `vectorized_map` runs, TensorFlow's own
function for the op is given a counted axis. Where TensorFlow keeps these
functions elsewhere, an op that may roll along a negative axis is refused.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.diagonal.replaced import Replaced

try:
  from tensorflow.python.ops.parallel_for.pfor import (
    _pfor_converter_registry,
  )

  _REGISTRY: Any = _pfor_converter_registry
except ImportError:  # Another version of TensorFlow.
  _REGISTRY = None

__all__ = ['vectorized_map']


def vectorized_map(fn: Callable, elems: Any) -> Any:
  """As `tf.vectorized_map`, without a loop to fall back on.

  Args:
    fn: Python callable of an element.
    elems: Tensor or structure of Tensors, unpacked along the first axis.

  Returns:
    What `tf.vectorized_map` returns.

  Raises:
    NotImplementedError: if `fn` rolls along an axis that may be negative, and
      this version of TensorFlow cannot be told how.
  """
  if _REGISTRY is None or 'Roll' not in _REGISTRY:
    return tf.vectorized_map(
      _without_negative_rolls(fn), elems, fallback_to_while_loop=False
    )
  with _COUNTED_ROLLS:
    return tf.vectorized_map(fn, elems, fallback_to_while_loop=False)


# While it is entered, the axes of rolls are counted from the front.
_COUNTED_ROLLS = Replaced(
  _REGISTRY,
  'Roll',
  lambda convert: lambda pfor_input: convert(_CountedAxis(pfor_input)),
)


class _CountedAxis:
  """What pfor knows of a `Roll`, with axes counted from the front."""

  def __init__(self, pfor_input: Any) -> None:
    self._pfor_input = pfor_input

  def unstacked_input(self, index: int) -> Any:
    """An input that is the same for all elements; here only the axis is."""
    axis = self._pfor_input.unstacked_input(index)
    rolled = self._pfor_input.op.inputs[0]
    rank = tf.cast(tf.rank(self._pfor_input.stacked_input(0)) - 1, axis.dtype)
    if rolled.shape.rank is not None:
      rank = tf.constant(rolled.shape.rank, axis.dtype)
    return tf.where(axis < 0, axis + rank, axis)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._pfor_input, name)


def _without_negative_rolls(fn: Callable) -> Callable:
  """The same function, but it raises where it rolls along a negative axis."""

  def checked(element):
    result = fn(element)
    for op in tf.compat.v1.get_default_graph().get_operations():
      if op.type == 'Roll':
        axis = tf.get_static_value(op.inputs[2])
        if axis is None or (axis < 0).any():
          raise NotImplementedError(
            'No vectorization defined for Roll along a negative axis'
          )
    return result

  return checked
