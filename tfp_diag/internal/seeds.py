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
"""The seeds that functions take."""

import contextlib
import numbers
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments


def as_seed(seed: Any) -> tf.Tensor | None:
  """Converts a seed to a Tensor; equal seeds give equal Tensors.

  `tfp.random.sanitize_seed` takes the same seeds. But each time it is called in
  a process it gives another result for the same integer, so that no run could
  be repeated or resumed.

  Args:
    seed: None; or a Python int, which stands for the pair of its lower and
      upper 32 bits: 7 is (7, 0); or an int32 Tensor of shape [2].

  Returns:
    int32 Tensor of shape [2], or None for None.

  Raises:
    ValueError: if it is something else.
  """
  if seed is None:
    return None
  if isinstance(seed, numbers.Integral) and not isinstance(seed, bool):
    words = np.array([int(seed) & (2**64 - 1)], '<u8').view('<i4')
    return tf.constant(words.astype(np.int32))
  # Strings, bools and fractions could be cast, but are not valid.
  if not isinstance(seed, (bool, str, type, tf.RaggedTensor)):
    with contextlib.suppress(TypeError, ValueError):
      pair = tf.convert_to_tensor(seed)
      is_pair = pair.dtype.is_integer and pair.shape.is_compatible_with([2])
      if is_pair and _is_of_32_bits(pair):
        return tf.cast(pair, tf.int32)
  raise ValueError(
    f'`seed` is {arguments.shown(seed)}, but must be an integer, a pair of '
    'integers (an int32 Tensor of shape [2]), or None for another one each '
    'time.'
  )


def _is_of_32_bits(pair: tf.Tensor) -> bool:
  """Whether signed or unsigned words of 32 bits hold it, if that is known."""
  known = tf.get_static_value(pair)
  if known is None:
    return True
  return bool(np.all((known >= -(2**31)) & (known < 2**32)))


def some_seed(seed: Any) -> tf.Tensor:
  """As `as_seed`, but None gives a new random seed each time.

  These are the same again after `tf.random.set_seed`, but under XLA.
  """
  found = as_seed(seed)
  if found is None:
    return tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
  return found
