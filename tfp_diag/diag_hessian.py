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
"""The exact diagonal of a Hessian."""

from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from tfp_diag.diagonal.request import Mode, Request, Schedule
from tfp_diag.internal import arguments
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.plan import Plan, run_request

__all__ = ['HessianMode', 'diag_hessian']

HessianMode = Literal['auto', 'forward_over_reverse', 'reverse_over_reverse']

# The gradient is always in reverse mode; 'forward' and 'reverse' are the modes
# in which it is differentiated once more.
MODES: dict[HessianMode, Mode] = {
  'auto': 'auto',
  'forward_over_reverse': 'forward',
  'reverse_over_reverse': 'reverse',
}


@not_converted
def diag_hessian(
  fn: Callable,
  xs: Any,
  sample_shape: SampleShape | None = None,
  *,
  plan: Plan | None = None,
  mode: HessianMode = 'auto',
  schedule: Schedule = 'auto',
  parallel_iterations: int = 10,
  validate_args: bool = False,
  name: str | None = None,
) -> tuple[tf.Tensor, Any, Any]:
  r"""Computes value, gradient and the exact diagonal of the Hessian of `fn`.

  The diagonal is $\partial^2 f / \partial x_i^2$ for each coordinate $i$. An
  eager call traces `fn` and takes some milliseconds, as for
  `tfp_diag.diag_jacobian`. In a loop put the call into a `tf.function`, or call
  `plan(xs)`.

  Args:
    fn: Python callable that returns one scalar per sample, a Tensor of shape
      `sample_shape`. Called as `fn(x)` with a Tensor or a namedtuple, `fn(*xs)`
      with a list or tuple of parts, `fn(**xs)` with a dict; without arguments
      if all parts are `tf.Variable`s and it needs none. Made of TensorFlow ops.
      What it closes over is constant, even if that is `xs`; but a function of
      no arguments, or of any number, may read `tf.Variable`s of `xs` itself.
    xs: Tensor, or list, tuple, dict or namedtuple of Tensors of shape
      `sample_shape + event_shape_i`, of a floating dtype each; or
      `tf.Variable`s.
    sample_shape: The leading shape that all parts share, whose entries are
      independent samples. Default: the shape of what `fn` returns.
    plan: What `tfp_diag.plan_diag_hessian` returned for this function and these
      event shapes. It is checked as by `tfp_diag.diag_jacobian`. Default:
      `None`, the call makes its own plan; parts that are `tf.Variable`s then
      get a pass for each coordinate.
    mode: 'forward_over_reverse' (Jacobian-vector products of the gradient),
      'reverse_over_reverse' (vector-Jacobian products of it) or 'auto', which
      is the second or what `plan` says. They give the same numbers.
    schedule: 'unrolled', 'pfor', 'while_loop' or 'auto', as in
      `tfp_diag.diag_jacobian`. Only 'auto' uses ways that take fewer passes
      than there are colors: sweeps with squared derivatives, and curvature that
      is added up op by op.
    parallel_iterations: Python int, how many passes run together, which is
      called `chunk_size` where whole matrices are made. A plan has its own.
    validate_args: Python bool. Whether to check at run time that `sample_shape`
      leads every part, that samples do not mix, that the colors fit the
      function, that forward mode agrees with reverse mode, and that what is
      cheaper than passes agrees with passes at random coordinates of each
      sample. XLA has no assertions: there nothing is checked.
    name: Python str, name of the ops. Default: `'diag_hessian'`.

  Returns:
    value: Tensor of shape `sample_shape`, what `fn` returned.
    gradient: Structure of `xs`, of its shapes and dtypes: the gradient, from
      the same computation as `value`.
    diag: Structure of `xs`, of its shapes and dtypes: the second derivative
      with respect to each coordinate. Zero for a part that `fn` does not use;
      if that is a `tf.Variable` that `fn` was to read itself, there is a
      `UserWarning`.
      It can be differentiated by a tape around the call.

  Raises:
    ValueError: if `fn` does not return one scalar per sample, or if an
      argument is not valid, for example the `plan` of another function. The
      message says which argument, and what to do.
    tfp_diag.sparsity.SampleMixingError: a ValueError, if the value of one
      sample depends on another one. The message names the op.
    TypeError: if a part of `xs` is not floating; if `fn` needs the value of a
      Tensor in Python (NumPy, `.numpy()`, `float()`).
    LookupError: if an op of `fn` has no second derivative in TensorFlow.
    tf.errors.InvalidArgumentError: with `validate_args`, if a check fails.

  #### Examples

  ```python
  x = tf.constant([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])  # Two samples.
  value, gradient, diag = diag_hessian(
    lambda x: tf.reduce_prod(x, axis=-1) + tf.reduce_sum(x**3, axis=-1), x
  )
  diag
  # ==> [[3., 6., 12.], [6., 6., 6.]]
  ```

  #### What a gradient of a gradient is not

  `tape.gradient(tape.gradient(value, x), x)` is the sum of each *row* of the
  Hessian. That is the diagonal only if all other entries are zero. In the
  example above it gives `[[6., 8.5, 13.5], [8., 8., 8.]]`.
  """
  with arguments.op_scope(name, 'diag_hessian'):
    arguments.check_choice('mode', mode, tuple(MODES))
    request = Request.of_call(
      MODES[mode], schedule, parallel_iterations, validate_args, plan
    )
    problem = HessianProblem(fn, xs, sample_shape)
    found = run_request(problem, request, sample_shape)
    (value,) = found.result
    return value, problem.pack(found.gradient), problem.pack(found.diag)
