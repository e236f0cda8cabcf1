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
"""The exact trace of a flow's Jacobian, for `tfp.bijectors.FFJORD`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.diag_jacobian import diag_jacobian
from tfp_diag.internal import arguments, batching
from tfp_diag.internal.not_converted import not_converted

__all__ = ['at_time', 'check_state', 'trace_jacobian_exact']


@not_converted
def trace_jacobian_exact(
  ode_fn: Callable, state_shape: Any, dtype: Any, *, event_ndims: int = 1
) -> Callable:
  """Adds the exact trace of its Jacobian to the derivative of a state.

  Pass it as `trace_augmentation_fn` to `tfp.bijectors.FFJORD`. Unlike
  `tfp.bijectors.ffjord.trace_jacobian_exact` it looks for structure in
  `ode_fn`: if its Jacobian is sparse, the trace costs a few passes instead of
  one for each coordinate. It takes batches of any rank. If the solver runs
  eagerly, the derivative is compiled once.

  Args:
    ode_fn: Python callable, `ode_fn(time, state, **conditions)`: the derivative
      of the state with respect to time. Each sample is independent.
    state_shape: The shape of the state, `sample_shape + event_shape`.
    dtype: The floating dtype of the state.
    event_ndims: Python int, how many dimensions of the state, the last ones,
      belong to one sample. To set it, use `functools.partial`.

  Returns:
    Python callable, `augmented(time, (state, log_det), **conditions)`: returns
    the derivative and the diagonal of its Jacobian, both shaped as the state.
    FFJORD adds the diagonal up.

  Raises:
    ValueError: if `state_shape` is not a shape, or `event_ndims` not a number
      of its dimensions; when the result is called, if the state has fewer
      dimensions, if `ode_fn` returns another shape or dtype, or, as
      `tfp_diag.sparsity.SampleMixingError`, if it mixes samples.
    TypeError: if `ode_fn` cannot be called, or `dtype` is not floating; when
      the result is called, if `ode_fn` does not take the time and the state, or
      returns no Tensor.

  #### Examples

  ```python
  augmented = trace_jacobian_exact(
    lambda time, x: time * x**3 + tf.roll(x, 1, axis=-1), [2], tf.float32
  )
  state = tf.constant([1.0, 2.0])
  velocity, diagonal = augmented(0.5, (state, tf.zeros([2])))
  diagonal  # 3 t x^2
  # ==> [1.5, 6.0]
  ```

  #### References

  [1]: Will Grathwohl, Ricky T. Q. Chen, Jesse Bettencourt, Ilya Sutskever and
       David Duvenaud (2018). FFJORD: free-form continuous dynamics for scalable
       reversible generative models. Equation 2.
       https://doi.org/10.48550/arXiv.1810.01367
  """
  arguments.check_callable(
    'ode_fn', ode_fn, 'a function of time and state, `lambda t, x: -x` say'
  )
  event_ndims = arguments.as_count(
    'event_ndims',
    event_ndims,
    0,
    'how many dimensions of the state belong to a sample',
  )
  check_state(state_shape, dtype)
  rank = _rank(state_shape)
  if rank is not None:
    _check_rank(rank, state_shape, event_ndims)

  @not_converted
  def augmented_ode_fn(time, state_log_det, **conditions):
    state = tf.convert_to_tensor(state_log_det[0])
    _check_rank(state.shape.rank, state.shape, event_ndims)
    rank = state.shape.rank - event_ndims
    fn = at_time(ode_fn, time, state, conditions)
    ys, diag = diag_jacobian(xs=state, fn=fn, sample_shape=state.shape[:rank])
    return ys[0], diag[0]

  return augmented_ode_fn


def check_state(state_shape: Any, dtype: Any) -> None:
  """Refuses what is not the shape and the dtype of a state.

  Args:
    state_shape: What was given as its shape; its rank may be unknown.
    dtype: What was given as its dtype.

  Raises:
    TypeError: if the dtype is not floating.
    ValueError: if the shape is not a valid one.
  """
  try:
    found = None if dtype is None else tf.as_dtype(dtype)
  except TypeError:
    found = None
  if found is None or not found.is_floating:
    raise TypeError(
      f'`dtype` is {arguments.shown(dtype)}, but must be the floating dtype of '
      'the state, such as `tf.float32`.'
    )
  if state_shape is None:
    raise ValueError(
      '`state_shape` is None, but the shape of the state is needed, a '
      '`tf.TensorShape`, a list or a vector.'
    )
  _rank(state_shape)


def _rank(state_shape: Any) -> int | None:
  if isinstance(state_shape, tf.TensorShape) and state_shape.rank is None:
    return None
  return len(batching.sample_sizes(state_shape, 'state_shape'))


def _check_rank(rank: int, state_shape: Any, event_ndims: int) -> None:
  if event_ndims > rank:
    raise ValueError(
      f'The state has shape {state_shape}, but `event_ndims` is '
      f'{event_ndims}. Pass how many of its dimensions belong to a sample.'
    )


def at_time(
  ode_fn: Callable, time: Any, state: tf.Tensor, conditions: dict
) -> Callable:
  """Makes `ode_fn` a function of the state alone, at one time.

  The time, and NumPy arrays in the conditions, become Tensors. An eager call
  takes Tensors as inputs of one compiled graph, but Python numbers and arrays
  as constants, so that each new one would be compiled again.

  Args:
    ode_fn: Python callable, `ode_fn(time, state, **conditions)`.
    time: Scalar Tensor or Python number.
    state: Tensor, whose dtype a Python number gets as the time.
    conditions: Dict of structures of Tensors, arrays and Python values.

  Returns:
    Python callable, a Tensor of the shape of the state to a Tensor of the same
    shape and dtype.

  Raises:
    TypeError: if `ode_fn` cannot be called with these arguments.
  """
  time = tf.convert_to_tensor(time, dtype_hint=state.dtype)
  conditions = tf.nest.map_structure(
    lambda leaf: (
      tf.convert_to_tensor(np.asarray(leaf))
      if isinstance(leaf, (np.ndarray, np.generic))
      else leaf
    ),
    conditions,
  )
  arguments.check_takes(
    'ode_fn', ode_fn, [time, state], conditions, 'the time and the state'
  )

  def of_state(x):
    velocity = ode_fn(time, x, **conditions)
    if velocity is None or tf.nest.is_nested(velocity):
      raise TypeError(
        f'`ode_fn` returned a {type(velocity).__name__}; one Tensor of the '
        f'shape {x.shape} of the state is needed. Does it return its result?'
      )
    velocity = arguments.as_tensor(
      'What `ode_fn` returned', velocity, dtype_hint=x.dtype
    )
    if velocity.dtype != x.dtype or not velocity.shape.is_compatible_with(
      x.shape
    ):
      raise ValueError(
        f'`ode_fn` returned a Tensor of shape {velocity.shape} and dtype '
        f'{velocity.dtype.name}, but the derivative of a state has its shape, '
        f'{x.shape}, and its dtype, {x.dtype.name}.'
      )
    return velocity

  return of_state
