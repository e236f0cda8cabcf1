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
"""Where the chains start, after a check of the log density there."""

import tensorflow as tf

from tfp_diag.command_line.input_error import InputError, one_line
from tfp_diag.mcmc.run.unconstrained_target import dtype_that_works


def starting_points(target, num_chains, seed):
  """The starting points of all chains, at which the log density is finite.

  A chain whose own start has no finite log density starts where the first
  chain does.

  Args:
    target: A `tfp_diag.examples.Target`.
    num_chains: Python `int`.
    seed: Pair of integers, a stateless seed.

  Returns:
    List of Tensors [num_chains, ...event], the parts of the state, of the dtype
    of `target.init`.

  Raises:
    InputError: if the log density cannot be computed, has the wrong type or
      shape, or is not finite at the start of the first chain.
  """
  parts = tf.nest.flatten(target.init(num_chains, seed))
  log_prob = _evaluate(target, parts)
  what = f'The log density {target.name}'
  shapes = ' and '.join(str(part.shape.as_list()) for part in parts)
  if log_prob.dtype != parts[0].dtype:
    raise InputError(
      f'{what} returned {log_prob.dtype.name} for a state of '
      f'{parts[0].dtype.name} and must keep the type.'
    )
  if log_prob.shape.as_list() != [num_chains]:
    raise InputError(
      f'{what} returned shape {log_prob.shape.as_list()} for a state of shape '
      f'{shapes} and must return one value for each of the {num_chains} chains '
      'along the first axis: sum over the other axes only, for example with '
      'axis=-1.'
    )
  if not bool(tf.math.is_finite(log_prob[0])):
    raise InputError(
      f'{what} is {float(log_prob[0])} at the start and must be finite there.'
    )
  usable = tf.math.is_finite(log_prob)
  return [_first_where_not(usable, part) for part in parts]


def _evaluate(target, parts):
  try:
    return tf.convert_to_tensor(target.target_log_prob_fn(*parts))
  except Exception as e:
    shapes = ' and '.join(str(part.shape.as_list()) for part in parts)
    other = dtype_that_works(target.target_log_prob_fn, parts)
    dtypes = ''
    if other is not None:
      dtype = parts[0].dtype.name
      dtypes = (
        f' The state is {dtype}, and with {other.name} it works: cast its '
        f'constants to {dtype}, or the state.'
      )
    raise InputError(
      f'The log density {target.name} failed on a state of shape {shapes} with '
      f'{one_line(e)}{dtypes}'
    ) from e


def _first_where_not(usable, part):
  mask = tf.reshape(usable, [-1] + [1] * (part.shape.rank - 1))
  return tf.where(mask, part, part[:1])
