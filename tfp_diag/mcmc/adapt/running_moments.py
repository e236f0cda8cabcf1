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
"""Means and variances of a stream of draws, pooled over chains."""

import functools
import typing

import tensorflow as tf

from tfp_diag.internal import batching
from tfp_diag.mcmc.kernels.sharding import gather_over_shards


class RunningMoments(typing.NamedTuple):
  """What is known of some quantities after a number of draws.

  `means` and `sums_of_squares` are lists with one entry per quantity, each of
  them a list with one Tensor per part, of the event shape of the part.

  Attributes:
    count: Scalar Tensor: the number of draws, over steps and chains.
    means: The averages.
    sums_of_squares: Σ (value - mean)².
  """

  count: typing.Any
  means: typing.Any
  sums_of_squares: typing.Any

  def variances(self):
    """The unbiased sample variances, in the structure of `means`."""
    scale = tf.maximum(self.count - 1.0, 1.0)
    return tf.nest.map_structure(lambda s: s / scale, self.sums_of_squares)


def no_moments(values, chain_ndims):
  """The moments before the first draw.

  Args:
    values: List of quantities, each a list of Tensors with one per part.
    chain_ndims: Python `int`, the number of leading chain axes.

  Returns:
    A `RunningMoments`.
  """

  def zeros(x):
    zero = tf.zeros(tf.shape(x)[chain_ndims:], x.dtype)
    return tf.ensure_shape(zero, x.shape[chain_ndims:])

  return RunningMoments(
    count=tf.zeros([], tf.nest.flatten(values)[0].dtype),
    means=tf.nest.map_structure(zeros, values),
    sums_of_squares=tf.nest.map_structure(zeros, values),
  )


def moments_of(values, chain_ndims):
  """The moments of one draw of each chain.

  A chain in which some value is not finite does not count: one that started at
  a bad point must not spoil what the others share.

  Args:
    values: As for `no_moments`.
    chain_ndims: Python `int`, the number of leading chain axes.

  Returns:
    A `RunningMoments`.
  """
  counts = _counts(values, chain_ndims)
  count = tf.reduce_sum(tf.cast(counts, tf.nest.flatten(values)[0].dtype))
  chain_axes = list(range(chain_ndims))

  def total(x):
    mask = batching.with_axes(counts, x.shape.rank - chain_ndims)
    return tf.reduce_sum(tf.where(mask, x, tf.zeros_like(x)), chain_axes)

  means = tf.nest.map_structure(
    lambda x: total(x) / tf.maximum(count, 1.0), values
  )
  return RunningMoments(
    count,
    means,
    tf.nest.map_structure(
      lambda x, mean: total(tf.square(x - mean)), values, means
    ),
  )


def merge_moments(a, b):
  """The moments of all draws, from those of two sets, by the formula of [1].

  Args:
    a: A `RunningMoments`.
    b: A `RunningMoments`.

  Returns:
    A `RunningMoments`. With no draws in `b`, `a`.

  #### References

  [1]: Tony Chan, Gene Golub and Randall LeVeque (1983). Algorithms for
       computing the sample variance: analysis and recommendations. _The
       American Statistician_ 37(3), eq. 2.1.
       https://doi.org/10.1080/00031305.1983.10483115
  """
  count = a.count + b.count
  share = b.count / tf.maximum(count, 1.0)
  return RunningMoments(
    count,
    tf.nest.map_structure(
      lambda m, other: m + share * (other - m), a.means, b.means
    ),
    tf.nest.map_structure(
      lambda s, other_s, m, other: (
        s + other_s + a.count * share * tf.square(other - m)
      ),
      a.sums_of_squares,
      b.sums_of_squares,
      a.means,
      b.means,
    ),
  )


def pool_moments(moments):
  """The moments of the draws of all replicas of a strategy.

  Args:
    moments: A `RunningMoments`, of this replica's.

  Returns:
    A `RunningMoments`, bit for bit the same on all replicas.
  """
  # All in one message, and merged by each replica in the same order.
  parts = tf.nest.flatten(moments)
  row = tf.concat([tf.reshape(x, [-1]) for x in parts], 0)
  rows = gather_over_shards(row[tf.newaxis])

  def unpack(row):
    pieces = tf.split(row, [tf.size(x) for x in parts])
    pieces = [
      tf.ensure_shape(tf.reshape(p, tf.shape(x)), x.shape)
      for p, x in zip(pieces, parts)
    ]
    return tf.nest.pack_sequence_as(moments, pieces)

  pooled = unpack(rows[0])
  context = tf.distribute.get_replica_context()
  for i in range(1, context.num_replicas_in_sync):
    pooled = merge_moments(pooled, unpack(rows[i]))
  return pooled


def _counts(values, chain_ndims):
  """Whether all values of a chain are finite, of the chain shape."""
  finite = [
    tf.reduce_all(
      tf.math.is_finite(x), axis=list(range(chain_ndims, x.shape.rank))
    )
    for x in tf.nest.flatten(values)
  ]
  return functools.reduce(tf.logical_and, finite)
