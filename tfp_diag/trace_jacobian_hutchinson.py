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
"""An estimate of the trace of a flow's Jacobian, for FFJORD."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.diagonal import blocks, evaluate, probes
from tfp_diag.diagonal.probes import Seed
from tfp_diag.internal import arguments, batching
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import JacobianProblem
from tfp_diag.internal.seeds import some_seed
from tfp_diag.trace_jacobian_exact import at_time, check_state

__all__ = ['trace_jacobian_hutchinson']


@not_converted
def trace_jacobian_hutchinson(
  ode_fn: Callable,
  state_shape: Any,
  dtype: Any,
  *,
  num_probes: int = 1,
  num_samples: int | None = None,
  seed: Seed = (0, 0),
) -> Callable:
  """Adds an estimate of the trace of its Jacobian to a derivative of a state.

  Pass it as `trace_augmentation_fn` to `tfp.bijectors.FFJORD`, with its options
  by `functools.partial`. The probes are random signs. They have the least
  variance of all probes with independent entries [1], and are exact for a
  diagonal Jacobian. They come from a stateless seed, and stay the same along a
  whole solution, as FFJORD requires. In training, use a new seed for each step.
  A model that was trained with estimates can be evaluated with
  `tfp_diag.trace_jacobian_exact`.

  Args:
    ode_fn: Python callable, `ode_fn(time, state, **conditions)`: the derivative
      of the state with respect to time. Each sample is independent.
    state_shape: The shape of the state, a `tf.TensorShape`, list or vector.
    dtype: The dtype of the state.
    num_probes: Python int, over how many probes the estimate is averaged. Each
      costs one pass.
    num_samples: The same, by the name that it has in
      `tfp.bijectors.ffjord.trace_jacobian_hutchinson`.
    seed: An integer, or two of them, a stateless seed; a Tensor may change
      between calls of a `tf.function`. None draws one for this call. Default:
      `(0, 0)`, the same probes in each call.

  Returns:
    Python callable, `augmented(time, (state, log_det), **conditions)`: returns
    the derivative and, shaped as the state, an unbiased estimate of the
    diagonal of its Jacobian. FFJORD adds it up.

  Raises:
    ValueError: if `state_shape`, the number of probes or `seed` is not valid;
      in `augmented`, if the state has another shape or dtype.
    TypeError: if `ode_fn` cannot be called, or `dtype` is not floating.

  #### Examples

  If coordinates do not interact, one probe is exact:

  ```python
  augmented = trace_jacobian_hutchinson(
    lambda time, x: time * x**3, [2], tf.float32, seed=[0, 1]
  )
  state = tf.constant([1.0, 2.0])
  velocity, diagonal = augmented(0.5, (state, tf.zeros([2])))
  diagonal
  # ==> [1.5, 6.0]
  ```

  #### References

  [1]: Michael F. Hutchinson (1990). A stochastic estimator of the trace of the
       influence matrix for Laplacian smoothing splines. _Communications in
       Statistics - Simulation and Computation_ 19(2).
       https://doi.org/10.1080/03610919008812866
  """
  arguments.check_callable(
    'ode_fn', ode_fn, 'a function of time and state, `lambda t, x: -x` say'
  )
  name = 'num_probes' if num_samples is None else 'num_samples'
  if num_samples is not None:
    if num_probes != 1:
      raise ValueError(
        '`num_samples` and `num_probes` are given, which mean the same; pass '
        'one of them.'
      )
    num_probes = num_samples
  num_probes = arguments.as_count(
    name, num_probes, 1, 'over how many probes the estimate is averaged'
  )
  (signs,) = probes.signs(
    some_seed(seed), 0, num_probes, [_zeros(state_shape, dtype)]
  )

  @not_converted
  def augmented_ode_fn(time, state_log_det, **conditions):
    state = tf.convert_to_tensor(state_log_det[0])
    # A state that broadcasts against the probes would get a wrong diagonal.
    shape = signs.shape[1:]
    if state.dtype != signs.dtype or not state.shape.is_compatible_with(shape):
      raise ValueError(
        f'The state has shape {state.shape} and dtype {state.dtype.name}, but '
        f'`state_shape` is {shape} and `dtype` is {signs.dtype.name}. Pass '
        'those of the state.'
      )

    def body(evaluation, signs):
      linear_map = evaluation.jacobian()

      def one_pass(k):
        sign = tf.gather(signs, k)
        (product,) = linear_map.apply([0], [sign])
        return [tf.zeros_like(sign) if product is None else sign * product]

      (estimates,) = blocks.stacked(
        one_pass,
        evaluation.xs,
        num_probes,
        None,
        evaluation.loop_type,
      )
      return evaluation.result, tf.reduce_mean(estimates, axis=0)

    problem = JacobianProblem(at_time(ode_fn, time, state, conditions), [state])
    key = ('trace_jacobian_hutchinson', num_probes)
    return evaluate.run(problem, key, body, [signs])

  return augmented_ode_fn


def _zeros(state_shape: Any, dtype: Any) -> tf.Tensor:
  """A state of that shape and dtype, if these are a shape and a dtype."""
  check_state(state_shape, dtype)
  # Here its rank must be known.
  batching.sample_sizes(state_shape, 'state_shape')
  if isinstance(state_shape, (list, tuple, tf.TensorShape)) and any(
    size is None for size in state_shape
  ):
    raise ValueError(
      f'`state_shape` is {arguments.shown(state_shape)}, but the probes need '
      'each size. Pass a vector like `tf.shape(state)` where one is not known '
      'while the graph is built.'
    )
  return tf.zeros(state_shape, dtype)
