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

import typing

import tensorflow as tf

__all__ = ['RunningMoments', 'no_moments', 'update_moments']


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


def update_moments(moments, values, chain_ndims):
  """Adds one draw of each chain, by the pairwise formula of [1].

  A chain in which some value is not finite does not count: one that started at
  a bad point must not spoil what the others share.

  Args:
    moments: A `RunningMoments`.
    values: As for `no_moments`.
    chain_ndims: Python `int`, the number of leading chain axes.

  Returns:
    A `RunningMoments`.

  #### References

  [1]: Tony Chan, Gene Golub and Randall LeVeque (1983). Algorithms for
       computing the sample variance: analysis and recommendations. _The
       American Statistician_ 37(3), eq. 2.1.
  """
  counts = _counts(values, chain_ndims)
  added = tf.reduce_sum(tf.cast(counts, moments.count.dtype))
  count = moments.count + added
  chain_axes = list(range(chain_ndims))

  def update(mean, sum_of_squares, value):
    event_ndims = value.shape.rank - chain_ndims
    mask = counts[(..., *[tf.newaxis] * event_ndims)]

    def total(x):
      return tf.reduce_sum(tf.where(mask, x, tf.zeros_like(x)), chain_axes)

    own_mean = total(value) / tf.maximum(added, 1.0)
    shift = own_mean - mean
    share = added / tf.maximum(count, 1.0)
    return (
      mean + share * shift,
      sum_of_squares
      + total(tf.square(value - own_mean))
      + moments.count * share * tf.square(shift),
    )

  pairs = [
    [update(*part) for part in zip(*quantity)]
    for quantity in zip(moments.means, moments.sums_of_squares, values)
  ]
  means, sums_of_squares = (
    [[pair[i] for pair in quantity] for quantity in pairs] for i in range(2)
  )
  return RunningMoments(count, means, sums_of_squares)


def _counts(values, chain_ndims):
  """Whether all values of a chain are finite, of the chain shape."""
  finite = [
    tf.reduce_all(
      tf.math.is_finite(x), axis=list(range(chain_ndims, x.shape.rank))
    )
    for x in tf.nest.flatten(values)
  ]
  result = finite[0]
  for f in finite[1:]:
    result &= f
  return result
