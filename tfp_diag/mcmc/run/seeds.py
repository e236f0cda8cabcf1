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
"""What the `seed` of a driver means."""

import contextlib
import numbers

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = ['as_seed']


def as_seed(seed):
  """The seed of a run, the same one for equal arguments, call after call.

  Not by `tfp.random.sanitize_seed` for a number, which gives another seed each
  time it is called in one process: nothing could be repeated or resumed.

  Args:
    seed: None; or a Python `int`, which stands for the pair of its lower and
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
  # Words and booleans would be cast, too.
  if not isinstance(seed, (bool, str)):
    with contextlib.suppress(TypeError, ValueError):
      pair = tfp.random.sanitize_seed(seed)
      if pair.shape.is_compatible_with([2]):
        return pair
  raise ValueError(
    f'`seed` is {seed!r}, but must be an integer, a pair of integers (an int32 '
    'Tensor of shape [2]), or None for another one each time.'
  )
