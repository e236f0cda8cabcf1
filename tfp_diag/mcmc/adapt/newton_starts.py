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
    curvature: Tensor of shape [chains, d], positive: |∂²log p / ∂x_i²| there,
      but not less than a small share of the largest of the chain; ones where it
      is not known.
    second: Tensor of shape [chains, d], ∂²log p / ∂x_i² there.
    num_steps: int32 scalar Tensor, at how many points the derivatives were
      taken.
  """

  state: typing.Any
  curvature: typing.Any
  second: typing.Any
  num_steps: typing.Any


class _Point(typing.NamedTuple):
  """Where the chains are, and what is known of the log density there."""

  state: typing.Any
  log_prob: typing.Any
  gradient: typing.Any
  second: typing.Any


def newton_starts(target_log_prob_fn, state, max_num_steps):
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
    max_num_steps: Python `int` or int32 scalar Tensor, positive. With 1 the
      chains stay where they are.

  Returns:
    `NewtonStarts`.
  """
  size = tf.cast(state.shape[-1], state.dtype)

  def step(i, point, proposal, radius, _):
    log_prob, [gradient], [second] = unmixed_derivatives(
      target_log_prob_fn, [proposal], order=2, sample_shape=proposal.shape[:1]
    )[:3]
    is_first = tf.equal(i, 0)
    # Beyond what a dtype can hold, gradients are none before values are.
    is_usable = tf.reduce_all(tf.math.is_finite(gradient), axis=-1)
    is_better = is_first | (is_usable & (log_prob >= point.log_prob))
    point = _Point(
      *(
        tf.where(is_better if x.shape.rank == 1 else is_better[:, None], y, x)
        for x, y in zip(point, (proposal, log_prob, gradient, second))
      )
    )
    factor = tf.where(is_better, tf.cast(2.0, state.dtype), 0.25)
    radius *= tf.where(is_first, tf.ones_like(factor), factor)[:, tf.newaxis]
    curvature = _positive(point.second)
    squared = tf.reduce_sum(tf.square(point.gradient) / curvature, axis=-1)
    # Also where nothing is finite: such a chain cannot be helped.
    has_arrived = ~(squared > size)
    # What is left to go, in units of the size of the typical set.
    left = tf.sqrt(tf.maximum(squared / size, 1.0))[:, tf.newaxis]
    share = tf.minimum(radius / left, 1.0 - _END / left)
    moved = point.state + share * point.gradient / curvature
    proposal = tf.where(has_arrived[:, tf.newaxis], point.state, moved)
    return i + 1, point, proposal, radius, has_arrived

  zeros = tf.zeros_like(state)
  num_steps, point, *_ = tf.while_loop(
    lambda i, point, proposal, radius, has_arrived: ~tf.reduce_all(has_arrived),
    step,
    (
      tf.constant(0),
      _Point(state, zeros[:, 0], zeros, zeros),
      state,
      tf.fill([state.shape[0], 1], tf.cast(_FIRST_RADIUS, state.dtype)),
      tf.zeros([state.shape[0]], tf.bool),
    ),
    maximum_iterations=max_num_steps,
  )
  return NewtonStarts(
    point.state, _positive(point.second), point.second, num_steps
  )


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
