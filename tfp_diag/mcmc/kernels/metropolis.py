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
"""The decision of Metropolis and Hastings, chain by chain."""

import numpy as np
import tensorflow as tf

from tfp_diag.internal import batching
from tfp_diag.mcmc.kernels.noise import uniform
from tfp_diag.mcmc.kernels.sharding import chain_shard


def at_start(results, init_state):
  """The fields of kernel results that `accept` sets, before the first step.

  Args:
    results: `UncalibratedPreconditionedLangevinResults` of the start.
    init_state: Structure of Tensors, the start.

  Returns:
    Dict of the fields, without `proposed_results`.
  """
  log_prob = results.target_log_prob
  return dict(
    accepted_results=results._replace(seed=[]),
    is_accepted=tf.ones_like(log_prob, tf.bool),
    log_accept_ratio=tf.zeros_like(log_prob),
    proposed_state=tf.nest.map_structure(tf.convert_to_tensor, init_state),
  )


def accept(current, proposed, correction, seed, chain_axis_names):
  """Takes the proposal, or stays, chain by chain.

  Args:
    current: Pair of a state, a structure of Tensors, and the
      `UncalibratedPreconditionedLangevinResults` there.
    proposed: As `current`, of the proposal.
    correction: As for `_log_accept_ratio`.
    seed: int32 Tensor of shape [2].
    chain_axis_names: The name of the chain axis, if that is spread, or None.

  Returns:
    state: The state that stays.
    fields: Dict of the fields of kernel results that say how it came to be.
  """
  state, results = current
  proposed_state, proposed_results = proposed
  log_ratio = _log_accept_ratio(
    results.target_log_prob, proposed_results.target_log_prob, correction
  )
  is_accepted = _decide(log_ratio, seed, chain_axis_names)
  return _choose(is_accepted, proposed_state, state), dict(
    accepted_results=_choose_results(is_accepted, proposed_results, results),
    is_accepted=is_accepted,
    log_accept_ratio=log_ratio,
    proposed_state=proposed_state,
    proposed_results=proposed_results,
  )


def _log_accept_ratio(before, after, correction):
  """The log of the ratio whose minimum with one is the probability.

  Args:
    before: Tensor of the chain shape: the log density of the state x.
    after: As `before`, of the proposal x'.
    correction: As `before`: log q(x | x') - log q(x' | x), for the density q of
      a proposal.

  Returns:
    Tensor of the chain shape, -inf where something is not finite.
  """
  ratio = after - before + correction
  # NaN compares false with everything, but adapters average this value; and
  # plus infinity comes from a density that is broken, not from a good point.
  minus_inf = tf.constant(-np.inf, ratio.dtype)
  return tf.where(tf.math.is_finite(ratio), ratio, minus_inf)


def _decide(log_ratio, seed, chain_axis_names):
  """Whether each chain accepts.

  Args:
    log_ratio: Tensor of the chain shape.
    seed: int32 Tensor of shape [2].
    chain_axis_names: The name of the chain axis, if that is spread, or None.

  Returns:
    bool Tensor of the chain shape.
  """
  threshold = uniform(
    tf.shape(log_ratio), seed, log_ratio.dtype, chain_shard(chain_axis_names)
  )
  return tf.math.log(threshold) < tf.cast(log_ratio, threshold.dtype)


def _choose(is_accepted, proposed, current):
  """The proposal where it is accepted, and the current state elsewhere.

  Args:
    is_accepted: bool Tensor of the chain shape.
    proposed: Structure of Tensors whose leading shape is the chain shape.
    current: As `proposed`.

  Returns:
    Structure of Tensors, as `proposed`.
  """

  def choose_part(p, c):
    event_ndims = p.shape.rank - is_accepted.shape.rank
    return tf.where(batching.with_axes(is_accepted, event_ndims), p, c)

  return tf.nest.map_structure(choose_part, proposed, current)


def _choose_results(is_accepted, proposed, current):
  """The `UncalibratedPreconditionedLangevinResults` of the state that stays.

  The step size and the preconditioner are those of `current`. The field `seed`
  is empty: the state of each chain may come from another step.
  """

  def without_settings(results):
    return results._replace(step_size=[], preconditioner=[], seed=[])

  chosen = _choose(
    is_accepted, without_settings(proposed), without_settings(current)
  )
  return chosen._replace(
    step_size=current.step_size, preconditioner=current.preconditioner
  )
