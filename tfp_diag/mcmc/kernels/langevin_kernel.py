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
"""The arguments of a Langevin kernel, calibrated or not."""

import typing
from typing import Literal

import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.mcmc.kernels.arguments import check_known_step_size, is_list_like
from tfp_diag.mcmc.kernels.local_hessian_preconditioner import (
  LocalHessianPreconditioner,
)
from tfp_diag.mcmc.kernels.parameterized_kernel import (
  Argument,
  ParameterizedKernel,
  Results,
  check_axis_name,
)
from tfp_diag.mcmc.kernels.preconditioner import check_entry

Discretization = Literal['euler', 'exponential']
DISCRETIZATIONS = typing.get_args(Discretization)

_DENSITY = (
  'a function of the state that returns the log density of each chain, like '
  '`lambda x: -tf.reduce_sum(x**2, axis=-1)`'
)


class TargetKernel(ParameterizedKernel[Results]):
  """The arguments that all kernels with a target have."""

  def __init__(self, parameters):
    """Checks them.

    Args:
      parameters: As for `ParameterizedKernel`.

    Raises:
      TypeError: if one of them is not what it must be.
      ValueError: if the step size is known not to be positive and finite.
    """
    super().__init__(parameters)
    arguments.check_callable(
      'target_log_prob_fn', self.target_log_prob_fn, _DENSITY
    )
    check_known_step_size(self.step_size)
    check_axis_name(
      'experimental_chain_axis_names', self.experimental_chain_axis_names
    )

  target_log_prob_fn = Argument('The target log density.')
  step_size = Argument('The step size of the first step.')
  experimental_chain_axis_names = Argument(
    'Over which axis the chains are spread.'
  )


class ScaledKernel(TargetKernel[Results]):
  """Further arguments, of the kernels that are given their scale."""

  def __init__(self, parameters):
    """Checks them.

    Args:
      parameters: As for `ParameterizedKernel`.

    Raises:
      TypeError: if one of them is not what it must be.
      ValueError: as for `TargetKernel`, or if both the state and the chains are
        spread.
    """
    super().__init__(parameters)
    _check_preconditioner(self.preconditioner)
    arguments.check_flag('validate_args', self.validate_args)
    shard_axis_names = tf.nest.flatten(self.experimental_shard_axis_names)
    for name in shard_axis_names:
      check_axis_name('experimental_shard_axis_names', name)
    if self.experimental_chain_axis_names and any(shard_axis_names):
      raise ValueError(
        'Both `experimental_shard_axis_names` and '
        '`experimental_chain_axis_names` are given, but a strategy has one '
        'axis of replicas: spread the members of the state over it, or the '
        'chains.'
      )

  preconditioner = Argument('The constant scale, or None.')
  validate_args = Argument('Whether run-time checks are made.')
  experimental_shard_axis_names = Argument(
    'How the members of the state are sharded.'
  )

  def experimental_with_shard_axes(self, shard_axis_names):
    """A copy of this kernel for a state that is sharded in this way."""
    return self.copy(experimental_shard_axis_names=shard_axis_names)


def _check_preconditioner(preconditioner):
  """Refuses what is the scale of no state."""
  if not is_list_like(preconditioner):
    check_entry(preconditioner)
    return
  for i, entry in enumerate(preconditioner):
    check_entry(entry)
    changing = position_dependence(entry)
    if changing is not None:
      raise TypeError(
        f'`preconditioner` is a list whose entry {i} {changing}. Pass one such '
        'object for all parts, instead of the list, or constant scales.'
      )


class LangevinKernel(ScaledKernel[Results]):
  """The arguments that a proposal and its calibrated kernel share."""

  def __init__(self, parameters):
    """Checks them.

    Args:
      parameters: As for `ParameterizedKernel`.

    Raises:
      TypeError: if one of them is not what it must be.
      ValueError: as for `ScaledKernel`, or if both `preconditioner` and
        `volatility_fn` are given, or `discretization` is not a valid choice or
        does not go with the scale.
    """
    preconditioner = parameters['preconditioner']
    if is_function(preconditioner) and parameters['volatility_fn'] is None:
      # The third argument of TFP's Langevin kernels.
      parameters |= {'preconditioner': None, 'volatility_fn': preconditioner}
    super().__init__(parameters)
    if self.volatility_fn is not None:
      arguments.check_callable(
        'volatility_fn',
        self.volatility_fn,
        'a function of the state that returns standard deviations, or None',
      )
      if self.preconditioner is not None:
        raise ValueError(
          'Both `preconditioner` and `volatility_fn` are given; pass a '
          'constant scale as `preconditioner`, or multiply it into what '
          '`volatility_fn` returns.'
        )
    _check_discretization(
      self.discretization, self.preconditioner, self.volatility_fn
    )
    arguments.check_chunk('parallel_iterations', self.parallel_iterations)

  volatility_fn = Argument('The position-dependent scale, or None.')
  discretization = Argument('How the dynamics is discretized.')
  parallel_iterations = Argument(
    'How many coordinates are differentiated together.'
  )


def _check_discretization(discretization, preconditioner, volatility_fn):
  arguments.check_choice('discretization', discretization, DISCRETIZATIONS)
  is_local = isinstance(preconditioner, LocalHessianPreconditioner)
  if discretization != 'euler' and (is_local or volatility_fn is not None):
    changing = 'the `preconditioner`' if is_local else '`volatility_fn`'
    raise ValueError(
      "`discretization='exponential'` is for a constant scale, but "
      f"{changing} makes it depend on the position; use 'euler'."
    )


def is_function(preconditioner):
  """Whether it is a function of the position, which is a `volatility_fn`.

  Args:
    preconditioner: What was given.

  Returns:
    Python `bool`.
  """
  return callable(preconditioner) and not isinstance(
    preconditioner,
    (type, tf.linalg.LinearOperator, LocalHessianPreconditioner),
  )


def position_dependence(preconditioner):
  """How a preconditioner depends on the position.

  Args:
    preconditioner: What was given.

  Returns:
    A phrase that follows on its name; None if it is the same everywhere.
  """
  if isinstance(preconditioner, LocalHessianPreconditioner):
    return (
      'is a LocalHessianPreconditioner, whose scale depends on the position'
    )
  if is_function(preconditioner):
    return (
      f'is {arguments.shown(preconditioner)}, whose scale is a function of the '
      'position'
    )
  return None
