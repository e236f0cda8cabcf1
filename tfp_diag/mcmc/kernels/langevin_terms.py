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
"""What a Langevin step needs to know at a point."""

import functools
import typing

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.diag_jacobian import diag_jacobian
from tfp_diag.internal import arguments, batching
from tfp_diag.mcmc.kernels.arguments import (
  check_gradients,
  check_target,
  is_list_like,
  log_prob_at,
  number_of_parts,
)


class LangevinTerms(typing.NamedTuple):
  r"""What a Langevin step with a `volatility_fn` needs to know at a point.

  In kernel results each field is a list with one Tensor per part, of the part's
  shape.

  Attributes:
    gradient: The gradient of the target log density.
    volatility: $s(x)$, a standard deviation.
    volatility_gradient: $\partial_i s_i(x)$.

  #### Examples

  ```python
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    step_size=0.5,
    volatility_fn=lambda x: 1.0 + x**2,
  )
  results = kernel.bootstrap_results(tf.constant([[1.0, 2.0]]))
  terms = results.accepted_results.grads_target_log_prob
  terms.volatility  # ==> [[[2., 5.]]]
  terms.volatility_gradient  # ==> [[[2., 4.]]]
  ```
  """

  gradient: typing.Any
  volatility: typing.Any
  volatility_gradient: typing.Any


def evaluate(target_log_prob_fn, volatility_fn, parts, parallel_iterations):
  """Evaluates the target, and the volatility if there is one, at a point.

  Args:
    target_log_prob_fn: Callable of the parts.
    volatility_fn: As for `PreconditionedMALA`.
    parts: List of Tensors, the state.
    parallel_iterations: Python `int`, for `diag_jacobian`.

  Returns:
    target_log_prob: Tensor of the chain shape.
    terms: The gradient, a list with one Tensor per part; with a volatility, a
      `LangevinTerms` of such lists.
  """
  # A copy, because a TFP bijector remembers by identity what it computed
  # outside the gradient's view.
  target_log_prob, gradients = tfp.math.value_and_gradient(
    lambda *parts: log_prob_at(target_log_prob_fn, parts),
    [tf.identity(x) for x in parts],
  )
  check_target(target_log_prob, parts)
  check_gradients(gradients)
  gradients = like_parts(parts, map(tf.convert_to_tensor, gradients))
  if volatility_fn is None:
    return target_log_prob, gradients
  volatilities, volatility_gradients = diag_jacobian(
    xs=parts,
    sample_shape=_shape(target_log_prob),
    fn=functools.partial(_volatility_of_parts, volatility_fn),
    parallel_iterations=parallel_iterations,
  )
  return target_log_prob, LangevinTerms(
    gradient=gradients,
    volatility=like_parts(parts, volatilities),
    volatility_gradient=like_parts(parts, volatility_gradients),
  )


def _volatility_of_parts(volatility_fn, *parts):
  """`volatility_fn` from parts to as many values of their shape."""
  arguments.check_takes('volatility_fn', volatility_fn, parts)
  values = volatility_fn(*parts)
  values = list(values) if is_list_like(values) else [values]
  if len(values) == 1:
    values *= len(parts)
  if len(values) != len(parts):
    raise ValueError(
      f'`volatility_fn` returned {len(values)} values for a state of '
      f'{number_of_parts(parts)}; return one per part, or one for all of them.'
    )
  return [
    _volatility_of_part(v, x, i) for i, (v, x) in enumerate(zip(values, parts))
  ]


def _volatility_of_part(value, part, index):
  if value is None or (tf.is_tensor(value) and value.dtype != part.dtype):
    given = 'None' if value is None else value.dtype.name
    raise TypeError(
      f'`volatility_fn` returned {given} for part {index} of the state, which '
      f'is {part.dtype.name}; return standard deviations in that dtype.'
    )
  volatility = arguments.as_tensor(
    f'What `volatility_fn` returned for part {index} of the state',
    value,
    part.dtype,
  )
  if not batching.broadcasts_to(volatility.shape, part.shape):
    raise ValueError(
      f'`volatility_fn` returned a Tensor of shape {volatility.shape}, which '
      f'does not broadcast to part {index} of the state, which has shape '
      f'{part.shape}; return one standard deviation per coordinate.'
    )
  return tf.broadcast_to(volatility, _shape(part))


def like_parts(parts, tensors):
  """Tensors of which the graph knows the shapes of parts, for loops."""
  tensors = list(tensors)
  for x, y in zip(parts, tensors):
    y.set_shape(x.shape)
  return tensors


def per_part(terms):
  """Regroups what `evaluate` returned.

  Args:
    terms: List of gradients, or a `LangevinTerms` of lists.

  Returns:
    List with one entry per part: a gradient, or a `LangevinTerms` of Tensors.
  """
  if isinstance(terms, LangevinTerms):
    return [LangevinTerms(*part) for part in zip(*terms)]
  return list(terms)


def is_usable(terms, part, axes):
  """Whether a step can be taken from, or accepted at, a point.

  Args:
    terms: What was evaluated there for that part, from `per_part`.
    part: Tensor, the part.
    axes: Its `event_axes`.

  Returns:
    bool Tensor of the chain shape: all is finite and the volatility positive.
  """
  tensors = terms if isinstance(terms, LangevinTerms) else [terms]
  usable = tf.reduce_all(tf.math.is_finite(part), axis=axes)
  for tensor in tensors:
    usable &= tf.reduce_all(tf.math.is_finite(tensor), axis=axes)
  if isinstance(terms, LangevinTerms):
    usable &= tf.reduce_all(terms.volatility > 0.0, axis=axes)
  return usable


def event_axes(part, target_log_prob):
  """The axes of a part that are not chains.

  Args:
    part: Tensor of known rank.
    target_log_prob: Tensor of the chain shape.

  Returns:
    List of Python `int`s.
  """
  return list(range(target_log_prob.shape.rank, part.shape.rank))


def _shape(x):
  """The shape as a list if it is known, else as a Tensor."""
  return x.shape.as_list() if x.shape.is_fully_defined() else tf.shape(x)
