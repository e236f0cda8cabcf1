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
numbers here are made from those. Philox counts its blocks of 128 bits, so that
a device can draw its slice of what one device would draw, without the rest.
"""

import numpy as np
import tensorflow as tf

_PHILOX = tf.random.Algorithm.PHILOX.value
# At least as many numbers as any processor's vector has.
_VECTOR = 16


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


def standard_normal(shape, seed, dtype, shard=None):
  """Draws from N(0, 1).

  Args:
    shape: int32 Tensor or list.
    seed: int32 Tensor of shape [2], from `split_seed` or the like: two seeds
      that differ in any bit are independent.
    dtype: A floating point `tf.DType`.
    shard: None; or an integer scalar Tensor k, for the k-th of the equal slices
      of which a larger Tensor consists along its first axis. Bit for bit what
      the larger draw has there.

  Returns:
    Tensor of that shape and dtype. Magnitudes end at 5.4 in float32 and at 8.2
    in float64, where the probability of more is 2⁻²⁴ and 2⁻⁵³ or less.
  """

  def quantile(u):
    # That of the lower tail, which has the resolution that the upper one would
    # lose, mirrored.
    return -tf.sign(u) * tf.math.ndtri(0.5 * (1.0 - tf.abs(u)))

  return tf.cast(_draw(shape, seed, dtype, shard, quantile), dtype)


def uniform(shape, seed, dtype, shard=None):
  """Draws from the uniform distribution on (0, 1), ends excluded.

  Args:
    shape: int32 Tensor or list.
    seed: int32 Tensor of shape [2], as for `standard_normal`.
    dtype: A floating point `tf.DType`.
    shard: As for `standard_normal`.

  Returns:
    Tensor of that shape and dtype, float32 at least.
  """
  return _draw(shape, seed, dtype, shard, tf.abs)


def _draw(shape, seed, dtype, shard, transform):
  """A function of odd multiples of 2⁻²⁴ (float64: 2⁻⁵³) in (-1, 1), exact."""
  if dtype == tf.float64:
    integer, drop, spacing, dtype = tf.int64, 11, 2.0**-52, tf.float64
  else:
    integer, drop, spacing, dtype = tf.int32, 8, 2.0**-23, tf.float32
  shape = tf.convert_to_tensor(shape, tf.int32)
  static_shape = tf.get_static_value(shape)
  if static_shape is None:
    num = tf.reduce_prod(shape)
  else:
    num = int(np.prod(static_shape))
  bits, start = _bits(num, seed, integer, shard)
  steps = tf.bitwise.right_shift(bits, tf.constant(drop, integer))
  values = transform((tf.cast(steps, dtype) + 0.5) * spacing)
  return tf.reshape(tf.slice(values, [start], [num]), shape)


def _bits(num, seed, integer, shard):
  """Random integers, and the place of the first one that is needed."""
  per_block = 128 // (8 * integer.size)
  wanted, start = num, 0
  if shard is not None:
    offset = tf.cast(shard, tf.int64) * tf.cast(num, tf.int64)
    block, start = offset // per_block, tf.cast(offset % per_block, tf.int32)
    wanted = num + per_block - 1
  else:
    block = tf.zeros([], tf.int64)
  bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
    # Whole vectors of the processor: what is left over at an end would go
    # through scalar instructions, which round functions in another way.
    shape=[-(-wanted // _VECTOR) * _VECTOR],
    key=tf.reshape(tf.bitcast(seed, tf.uint64), [1]),
    counter=tf.bitcast(tf.stack([block, tf.zeros([], tf.int64)]), tf.uint64),
    alg=_PHILOX,
    dtype=integer,
  )
  return bits, start
