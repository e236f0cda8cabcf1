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
"""From a start to the typical set, by steps of a diagonal Newton method."""

import typing

import tensorflow as tf

from tfp_diag.unmixed_derivatives import unmixed_derivatives

__all__ = ['NewtonStarts', 'newton_starts']

# A curvature is never taken for less, in units of the largest of its chain.
_LEAST_CURVATURE = 1e-4
# By how much a step may be too long, in units of the size of the typical set.
_FIRST_RADIUS = 0.5
# Where a step that is exact for a Gaussian ends, in the same units.
_END = 0.95


class NewtonStarts(typing.NamedTuple):
  """Where the chains are after the steps.

  Attributes:
    state: Tensor of shape [chains, d].
    curvature: Tensor of shape [chains, d], positive: |∂²log p / ∂x_i²|, but not
      less than a small share of the largest of the chain; ones where it is not
      known. Taken where the last step began: of chains that have arrived, that
      is where they are.
    num_steps: int32 scalar Tensor, how many steps were made.
  """

  state: typing.Any
  curvature: typing.Any
  num_steps: typing.Any


def newton_starts(target_log_prob_fn, state, max_num_steps=200):
  """Moves chains towards the typical set, and stops when they are there.

  With the gradient g and the diagonal of the Hessian h of the log density, a
  chain moves by g / |h|, coordinate by coordinate, but no farther than a radius
  that shrinks when the density falls and grows when it does not. For a Gaussian
  with independent coordinates the sum of g² / |h| is chi-squared with d degrees
  of freedom where its draws are: a step ends there, and a chain for which it is
  d or less has arrived, and stays. It does not go on to the mode, where nothing
  is drawn, nor into the neck of a funnel.

  Args:
    target_log_prob_fn: Python callable of a Tensor [chains, d] that returns one
      value per chain.
    state: Tensor of shape [chains, d], where the chains start.
    max_num_steps: Python `int`.

  Returns:
    `NewtonStarts`.
  """
  size = tf.cast(state.shape[-1], state.dtype)

  def step(i, x, radius, _, curvature):
    log_prob, [gradient], [second] = unmixed_derivatives(
      target_log_prob_fn, [x], order=2
    )[:3]
    curvature = _positive(second)
    squared = tf.reduce_sum(tf.square(gradient) / curvature, axis=-1)
    # Also where nothing is finite: such a chain cannot be helped.
    has_arrived = ~(squared > size)
    # What is left to go, in units of the size of the typical set.
    left = tf.sqrt(tf.maximum(squared / size, 1.0))[:, tf.newaxis]
    share = tf.minimum(radius / left, 1.0 - _END / left)
    proposal = x + share * gradient / curvature
    is_better = target_log_prob_fn(proposal) >= log_prob
    moves = is_better & ~has_arrived
    x = tf.where(moves[:, tf.newaxis], proposal, x)
    radius *= tf.where(is_better[:, tf.newaxis], tf.cast(2.0, x.dtype), 0.25)
    return i + 1, x, radius, has_arrived, curvature

  num_chains = state.shape[0]
  num_steps, state, _, _, curvature = tf.while_loop(
    lambda i, x, radius, has_arrived, _: ~tf.reduce_all(has_arrived),
    step,
    (
      tf.constant(0),
      state,
      tf.fill([num_chains, 1], tf.cast(_FIRST_RADIUS, state.dtype)),
      tf.zeros([num_chains], tf.bool),
      tf.ones_like(state),
    ),
    maximum_iterations=max_num_steps,
  )
  return NewtonStarts(state, curvature, num_steps)


def _positive(second):
  """The soft absolute values of second derivatives.

  Ones where there are none, as for a Laplace distribution, or an infinite one:
  then nothing is known of the scale.
  """
  largest = tf.reduce_max(tf.abs(second), axis=-1, keepdims=True)
  found = tf.sqrt(tf.square(second) + tf.square(_LEAST_CURVATURE * largest))
  return tf.where(
    tf.math.is_finite(found) & (found > 0.0), found, tf.ones_like(found)
  )
