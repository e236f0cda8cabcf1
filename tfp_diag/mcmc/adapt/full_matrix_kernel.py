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
"""What the kernels that learn a full matrix share."""

import typing

import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.mcmc.kernels.arguments import (
  as_parts,
  check_target,
  is_list_like,
  log_prob_at,
)
from tfp_diag.mcmc.kernels.langevin_kernel import TargetKernel
from tfp_diag.mcmc.kernels.parameterized_kernel import Argument, Results
from tfp_diag.mcmc.kernels.preconditioned_mala import PreconditionedMALA
from tfp_diag.mcmc.kernels.sharding import gather_over_shards
from tfp_diag.mcmc.kernels.vector_layout import VectorLayout


class FullMatrixKernel(TargetKernel[Results]):
  """MALA over a state as one vector, preconditioned by a matrix of all of it.

  The results of a subclass have the fields `inner_results`, `factor` and
  `step`.
  """

  # That of the inner kernel; a subclass may take it as an argument.
  discretization: typing.Any = 'euler'

  def __init__(self, parameters):
    """Checks what all of them take.

    Args:
      parameters: As for `ParameterizedKernel`.

    Raises:
      TypeError: as for `TargetKernel`, or if `step_size` is a list.
      ValueError: as for `TargetKernel`.
    """
    super().__init__(parameters)
    if is_list_like(self.step_size):
      raise TypeError(
        '`step_size` is a list, but a full matrix scales all parts together; '
        'pass one step size.'
      )

  num_adaptation_steps = Argument('Until which step the matrix changes.')

  def experimental_with_shard_axes(self, shard_axis_names):
    """Refuses a sharded state: the matrix is over all of its members.

    Args:
      shard_axis_names: Structure of `str`s or Nones.

    Returns:
      This kernel, if all members are None.

    Raises:
      ValueError: if a member of the state is sharded.
    """
    if any(tf.nest.flatten(shard_axis_names)):
      raise ValueError(
        f'`shard_axis_names` is {shard_axis_names}, but '
        f'{type(self).__name__} learns a matrix over all members of the state, '
        'and no device holds all of a sharded one. Shard the chains instead, '
        'or use `DiagonalPreconditionerAdaptation` around a PreconditionedMALA.'
      )
    return self

  def _start(self, init_state):
    """The results of the inner kernel, and the identity of shape [d, d]."""
    parts = as_parts(init_state)
    arguments.check_takes('target_log_prob_fn', self.target_log_prob_fn, parts)
    target_log_prob = log_prob_at(self.target_log_prob_fn, parts)
    check_target(target_log_prob, parts)
    chain_ndims = target_log_prob.shape.rank
    layout = VectorLayout(init_state, chain_ndims)
    factor = tf.eye(layout.size, dtype=layout.dtype)
    return self._kernel(layout, factor).bootstrap_results(
      layout.join(init_state)
    ), factor

  def _step(self, current_state, inner_results, factor, seed):
    """A step of the inner kernel.

    Returns the next state in its structure, the same as one Tensor of shape
    [chain shape..., d], and the results of the inner kernel.
    """
    chain_ndims = inner_results.log_accept_ratio.shape.rank
    chain_shape = inner_results.log_accept_ratio.shape
    for i, x in enumerate(as_parts(current_state)):
      if not x.shape[:chain_ndims].is_compatible_with(chain_shape):
        raise ValueError(
          f'Part {i} of the state has shape {x.shape}, but '
          f'`previous_kernel_results` are of chains of shape {chain_shape}; '
          'pass the state that was returned with them.'
        )
    layout = VectorLayout(current_state, chain_ndims)
    vector, inner_results = self._kernel(layout, factor).one_step(
      layout.join(current_state), inner_results, seed=seed
    )
    return layout.split(vector), vector, inner_results

  def _pooling(self, rows):
    """What returns `rows()`, one per chain, from all replicas there are.

    Args:
      rows: Callable without arguments that returns a Tensor [chains, ...].

    Returns:
      A callable for the branch in which the matrix is learned: replicas cannot
      wait for each other there, so that they have done so before.
    """
    if not self.experimental_chain_axis_names:
      return rows
    pooled = gather_over_shards(rows())
    return lambda: pooled

  def _kernel(self, layout, factor):
    return PreconditionedMALA(
      layout.of_vector(self.target_log_prob_fn),
      self.step_size,
      tf.linalg.LinearOperatorFullMatrix(factor),
      discretization=self.discretization,
      experimental_chain_axis_names=self.experimental_chain_axis_names,
    )
