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
"""What a `seed` means, everywhere."""

import contextlib
import numbers
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments

__all__ = ['as_seed', 'check_seed', 'some_seed']


def as_seed(seed: Any) -> tf.Tensor | None:
  """The seed of a run, the same one for equal arguments, call after call.

  It takes what `tfp.random.sanitize_seed` takes. But that gives another seed
  for a number each time it is called in one process: nothing could be repeated
  or resumed.

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
  # Words, booleans and fractions would be cast, too.
  if not isinstance(seed, (bool, str, type, tf.RaggedTensor)):
    with contextlib.suppress(TypeError, ValueError):
      pair = tf.convert_to_tensor(seed)
      if pair.dtype.is_integer and pair.shape.is_compatible_with([2]):
        return tf.cast(pair, tf.int32)
  raise ValueError(
    f'`seed` is {arguments.shown(seed)}, but must be an integer, a pair of '
    'integers (an int32 Tensor of shape [2]), or None for another one each '
    'time.'
  )


def check_seed(seed: Any) -> None:
  """Raises a ValueError if `as_seed` does not take it."""
  as_seed(seed)


def some_seed(seed: Any) -> tf.Tensor:
  """`as_seed`, and another one each time for None."""
  found = as_seed(seed)
  if found is None:
    drawn = np.random.SeedSequence().generate_state(2).view(np.int32)
    return tf.constant(drawn)
  return found
