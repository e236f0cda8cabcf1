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
"""Exact second and third derivatives with respect to each coordinate."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tfp_diag.diagonal.request import Request, Schedule
from tfp_diag.internal import arguments
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import HessianProblem, ThirdOrderProblem
from tfp_diag.plan import Plan, run_request

__all__ = ['UnmixedDerivatives', 'unmixed_derivatives']


class UnmixedDerivatives(NamedTuple):
  r"""A function and its derivatives with respect to each coordinate alone.

  Attributes:
    value: Tensor of the sample shape, what the function returned.
    gradient: Structure of the state: $\partial f / \partial x_j$.
    second: Structure of the state: $\partial^2 f / \partial x_j^2$, the
      diagonal of the Hessian.
    third: Structure of the state: $\partial^3 f / \partial x_j^3$. None with
      `order=2`.

  #### Examples

  ```python
  found = tfp_diag.unmixed_derivatives(
    lambda x: tf.reduce_sum(x**4, axis=-1), tf.constant([1.0, 2.0])
  )
  found.second  # ==> [12., 48.]
  found.third  # ==> [24., 48.]
  ```
  """

  value: Any
  gradient: Any
  second: Any
  third: Any


@not_converted
def unmixed_derivatives(
  fn: Callable,
  xs: Any,
  order: Literal[2, 3] = 3,
  sample_shape: SampleShape | None = None,
  *,
  plan: Plan | None = None,
  schedule: Schedule = 'auto',
  parallel_iterations: int = 10,
  validate_args: bool = False,
  name: str | None = None,
) -> UnmixedDerivatives:
  r"""Computes value, gradient, and second and third derivatives of `fn`.

  The derivatives are *unmixed*: $\partial^2 f / \partial x_j^2$ and
  $\partial^3 f / \partial x_j^3$, with respect to each coordinate alone. A
  sampler whose scale follows the curvature needs them for its drift.

  Coordinates that share a pass in `tfp_diag.diag_hessian` share it here: if
  $\partial^2 f / \partial x_j \partial x_k$ is zero everywhere, then so are its
  derivatives. A pass gives the second derivatives of one color and, by one more
  reverse sweep [1], the third ones. `fn` is called once in each trace. An eager
  call traces `fn`, as in `diag_hessian`.

  When not: without structure each coordinate has a color of its own, and third
  derivatives take a pass for each of them. Curvature that is added up op by op,
  as with `order=2`, gives no third derivatives.

  Args:
    fn: Python callable that returns one scalar per sample, a Tensor of shape
      `sample_shape`; called as in `tfp_diag.diag_hessian`. Of TensorFlow ops.
      What it closes over is constant, even if that is `xs`.
    xs: Tensor, or list, tuple, dict or namedtuple of Tensors of shape
      `sample_shape + event_shape_i`, of a floating dtype each; or
      `tf.Variable`s.
    order: 2 or 3, the highest derivative that is computed.
    sample_shape: The leading shape that all parts share, whose entries are
      independent samples. Default: the shape of what `fn` returns.
    plan: What `tfp_diag.plan_diag_hessian` returned for this function and these
      event shapes. It is checked as by `diag_hessian`. With `order=3` its
      colors, schedule and chunk size are used, but not its mode: the passes are
      reverse ones. Default: `None`, the call makes its own plan.
    schedule: 'unrolled', 'pfor', 'while_loop' or 'auto', as in
      `tfp_diag.diag_jacobian`.
    parallel_iterations: Python int, how many passes run together, which is
      called `chunk_size` where whole matrices are made. A plan has its own.
    validate_args: Python bool. Checks at run time, as in `diag_hessian`, that
      `sample_shape` leads every part, that samples do not mix, and that the
      colors fit the function; for second and third derivatives. XLA has no
      assertions: there nothing is checked.
    name: Python str, name of the ops. Default: `'unmixed_derivatives'`.

  Returns:
    `UnmixedDerivatives`, a namedtuple `(value, gradient, second, third)`.
    `value` is what `fn` returned, a Tensor of shape `sample_shape`. The others
    are structures of `xs`, of its shapes and dtypes; `third` is None with
    `order=2`. Zero for a part that `fn` does not use. They can be
    differentiated by a tape around the call.

  Raises:
    ValueError: if `order` is neither 2 nor 3, if `fn` does not return one
      scalar per sample, or if an argument is not valid, for example the `plan`
      of another function. The message says which argument, and what to do.
    tfp_diag.sparsity.SampleMixingError: a ValueError, if the value of one
      sample depends on another one. The message names the op.
    TypeError: if a part of `xs` is not floating; if `fn` needs the value of a
      Tensor in Python (NumPy, `.numpy()`, `float()`); if `plan` is not a plan.
    LookupError: if an op of `fn` cannot be differentiated `order` times in
      TensorFlow.
    tf.errors.InvalidArgumentError: with `validate_args`, if a check fails.

  #### Examples

  In a chain only neighbors interact, so two passes are enough for any length.

  ```python
  x = tf.constant([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])  # Two samples.
  value, gradient, second, third = unmixed_derivatives(
    lambda x: tf.reduce_sum(x[..., 1:] ** 2 * x[..., :-1] ** 3, axis=-1), x
  )
  second
  # ==> [[3., 24.25, 2.], [6., 8., 2.]]
  third
  # ==> [[6., 24., 0.], [6., 6., 0.]]
  ```

  #### References

  [1]: Andreas Griewank and Andrea Walther (2008). _Evaluating Derivatives:
       Principles and Techniques of Algorithmic Differentiation_, second
       edition. SIAM. Chapter 5 (repeating and extending reverse), chapter 8
       (coloring), and chapter 13 on higher derivatives.
       https://doi.org/10.1137/1.9780898717761
  """
  with arguments.op_scope(name, 'unmixed_derivatives'):
    _check_order(order)
    request = Request.of_call(
      'auto', schedule, parallel_iterations, validate_args, plan
    )
    problem_type = ThirdOrderProblem if order == 3 else HessianProblem
    problem = problem_type(fn, xs, sample_shape)
    found = run_request(problem, request, sample_shape)
    (value,) = found.result
    return UnmixedDerivatives(
      value,
      problem.pack(found.gradient),
      problem.pack(found.diag),
      problem.pack(found.third) if order == 3 else None,
    )


def _check_order(order: Any) -> None:
  is_bool = isinstance(order, bool)
  if is_bool or not isinstance(order, int) or order not in (2, 3):
    raise ValueError(
      f'`order` is {order!r}; it can be 2, for the diagonal of the Hessian, or '
      '3, for third derivatives besides. For the gradient alone use '
      '`tf.GradientTape`.'
    )
