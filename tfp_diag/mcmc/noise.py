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
"""Random numbers that are the same in eager mode, in a graph and under XLA.

With equal seeds, `tf.random.stateless_normal` and `stateless_uniform` draw
other floating point numbers under XLA than outside, so that a chain could not
be reproduced across them. The integers of the Philox generator do agree: all
numbers here are made from those.
"""

import tensorflow as tf

__all__ = ['split_seed', 'standard_normal', 'step_seed', 'uniform']


def split_seed(seed, num):
  """Independent seeds from one.

  Args:
    seed: int32 Tensor of shape [2].
    num: Python `int`.

  Returns:
    List of `num` int32 Tensors of shape [2].
  """
  return tf.unstack(tf.random.split(seed, num=num, alg='philox'), num=num)


def step_seed(seed, step):
  """The seed of one step of a run.

  It depends on the run's seed and the number of the step, and on no step
  before, so that a run can be cut and resumed anywhere.

  Args:
    seed: int32 Tensor of shape [2].
    step: int32 scalar Tensor.

  Returns:
    int32 Tensor of shape [2].
  """
  return tf.random.fold_in(seed, step, alg='philox')


def standard_normal(shape, seed, dtype):
  """Draws from N(0, 1).

  Args:
    shape: int32 Tensor or list.
    seed: int32 Tensor of shape [2].
    dtype: A floating point `tf.DType`.

  Returns:
    Tensor of that shape and dtype. Magnitudes end at 5.4 in float32 and at 8.2
    in float64, where the probability of more is 2⁻²⁴ and 2⁻⁵³ or less.
  """
  u = _symmetric_uniform(shape, seed, dtype)
  # The quantile of the lower tail, which has the resolution that the upper one
  # would lose, mirrored.
  quantile = tf.math.ndtri(0.5 * (1.0 - tf.abs(u)))
  return tf.cast(-tf.sign(u) * quantile, dtype)


def uniform(shape, seed, dtype):
  """Draws from the uniform distribution on (0, 1), ends excluded.

  Args:
    shape: int32 Tensor or list.
    seed: int32 Tensor of shape [2].
    dtype: A floating point `tf.DType`.

  Returns:
    Tensor of that shape and dtype, float32 at least.
  """
  return tf.abs(_symmetric_uniform(shape, seed, dtype))


def _symmetric_uniform(shape, seed, dtype):
  """Odd multiples of 2⁻²⁴ (2⁻⁵³ in float64) in (-1, 1), all of them exact."""
  if dtype == tf.float64:
    integer, drop, spacing, dtype = tf.int64, 11, 2.0**-52, tf.float64
  else:
    integer, drop, spacing, dtype = tf.int32, 8, 2.0**-23, tf.float32
  bits = tf.random.stateless_uniform(
    shape, seed, minval=None, maxval=None, dtype=integer, alg='philox'
  )
  steps = tf.bitwise.right_shift(bits, tf.constant(drop, integer))
  return (tf.cast(steps, dtype) + 0.5) * spacing
