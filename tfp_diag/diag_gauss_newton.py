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
"""The exact diagonal of a Gauss-Newton matrix."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.request import Request, Schedule
from tfp_diag.internal import arguments
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import GaussNewtonProblem
from tfp_diag.plan import Plan, make_plan, run_request

__all__ = [
  'GaussNewtonDiagonal',
  'diag_gauss_newton',
  'plan_diag_gauss_newton',
]


class GaussNewtonDiagonal(NamedTuple):
  """What `diag_gauss_newton` returns.

  Attributes:
    residuals: What `residual_fn` has returned.
    diag: Structure of the state: the diagonal of the Gauss-Newton matrix.

  #### Examples

  ```python
  x = tf.constant([1.0, 2.0])
  found = tfp_diag.diag_gauss_newton(lambda x: x**2, x)
  found.residuals  # ==> [1., 4.]
  found.diag  # The squares of 2 x.  ==> [4., 16.]
  ```
  """

  residuals: Any
  diag: Any


@not_converted
def diag_gauss_newton(
  residual_fn: Callable,
  xs: Any,
  weights: Any = None,
  sample_shape: SampleShape = (),
  *,
  plan: Plan | None = None,
  schedule: Schedule = 'auto',
  parallel_iterations: int = 10,
  validate_args: bool = False,
  name: str | None = None,
) -> GaussNewtonDiagonal:
  r"""Computes the exact diagonal of a Gauss-Newton matrix.

  With residuals $r$, their Jacobian $J$ and weights $w$ this is the diagonal of

  $$ J^\top \operatorname{diag}(w) \, J , $$

  the Gauss-Newton approximation to the Hessian of $\frac{1}{2} \sum_i w_i
  r_i^2$ [1]. It is also the diagonal of a Fisher information [2]: for normal
  observations take their means as residuals, and one over their variances as
  weights; for another exponential family take the natural parameters as
  residuals, and the variance functions as weights.

  It is computed like the diagonal of a Hessian by `tfp_diag.diag_hessian`. If
  each coordinate reaches a residual on one path, one reverse sweep with squared
  derivatives is enough. This holds for the coefficients of a regression, and
  for the weights of a network with one hidden layer. Print the plan of
  `plan_diag_gauss_newton` to see what runs.

  Args:
    residual_fn: Python callable, called as `fn` of `tfp_diag.diag_hessian`.
      Returns a Tensor, or a structure of Tensors, of shapes
      `sample_shape + [...]`.
    xs: Tensor, or list, tuple, dict or namedtuple of Tensors of shape
      `sample_shape + event_shape_i`, of a floating dtype; or `tf.Variable`s.
    weights: Tensor of the shape of the residuals, or one that broadcasts to it;
      a structure of Tensors for several residuals. Negative weights are fine:
      the diagonal may then be negative. Weights that are not finite are refused
      where their values are known. They are constant, even if they depend on
      `xs`. Default: ones.
    sample_shape: The leading shape that all parts share, whose entries are
      independent samples. Default: `()`: the rows of a data set, which
      residuals have in front, are no samples.
    plan: What `plan_diag_gauss_newton` returned for this function and these
      event shapes. Default: the plan of this call.
    schedule: 'unrolled', 'pfor', 'while_loop' or 'auto', as in
      `tfp_diag.diag_jacobian`.
    parallel_iterations: Python int, how many passes run together, which is
      called `chunk_size` where whole matrices are made.
    validate_args: Python bool, as in `tfp_diag.diag_hessian`.
    name: Python str, name of the ops. Default: `'diag_gauss_newton'`.

  Returns:
    `GaussNewtonDiagonal`, a namedtuple `(residuals, diag)`: what `residual_fn`
    returned, and the diagonal in the structure of `xs`, of its shapes and
    dtypes.

  Raises:
    ValueError: if the shapes of the residuals do not start with
      `sample_shape`; if `weights` or `plan` do not fit.
    TypeError: if a dtype is not valid.
    tfp_diag.sparsity.SampleMixingError: a ValueError, if a residual of one
      sample depends on another sample.

  #### Examples

  A regression: the diagonal of `X^T diag(w) X` in one sweep.

  ```python
  data = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
  residuals, diag = diag_gauss_newton(
    lambda beta: tf.linalg.matvec(data, beta) - [1.0, 2.0, 3.0],
    tf.constant([0.5, 0.5]),
    weights=[1.0, 0.5, 2.0],
  )
  diag
  # ==> [55.5, 84.]
  ```

  #### References

  [1]: Jorge Nocedal and Stephen J. Wright (2006). _Numerical Optimization_,
       second edition. Springer. Section 10.3, equation 10.24.
       https://doi.org/10.1007/978-0-387-40065-5

  [2]: James Martens (2020). New Insights and Perspectives on the Natural
       Gradient Method. _Journal of Machine Learning Research_ 21(146).
       https://doi.org/10.48550/arXiv.1412.1193
  """
  with arguments.op_scope(name, 'diag_gauss_newton'):
    request = Request.of_call(
      'reverse', schedule, parallel_iterations, validate_args, plan
    )
    problem = GaussNewtonProblem(residual_fn, xs, sample_shape, weights)
    found = run_request(problem, request, sample_shape)
    return GaussNewtonDiagonal(
      problem.packed_result(found.result), problem.pack(found.diag)
    )


@not_converted
def plan_diag_gauss_newton(
  residual_fn: Callable,
  xs: Any,
  weights: Any = None,
  sample_shape: SampleShape = (),
  *,
  schedule: Schedule = 'auto',
  memory_limit: int | None = None,
  jit_compile: bool = False,
) -> Plan:
  """Finds the structure of residuals; see `diag_gauss_newton`.

  Args:
    residual_fn: As for `diag_gauss_newton`.
    xs: As for `diag_gauss_newton`, or `tf.TensorSpec`s.
    weights: As for `diag_gauss_newton`.
    sample_shape: As for `diag_gauss_newton`; None for a size that is not known.
    schedule: As for `diag_gauss_newton`.
    memory_limit: Number of bytes that the passes that run together may hold.
      Default: what suits the device.
    jit_compile: Python bool, whether eager calls with the plan are compiled
      with XLA.

  Returns:
    `tfp_diag.Plan`, to be printed, and passed on as `plan=`.

  Raises:
    ValueError: as `diag_gauss_newton`, and if the structure cannot be read.

  #### Examples

  ```python
  data = tf.ones([100, 20])
  plan = plan_diag_gauss_newton(
    lambda beta: tf.math.sigmoid(tf.linalg.matvec(data, beta)), tf.ones([20])
  )
  plan.num_passes
  # ==> 1
  ```
  """
  arguments.check_choice('schedule', schedule, sweep.SCHEDULES)
  return make_plan(
    GaussNewtonProblem(residual_fn, xs, sample_shape, weights),
    Request('reverse', schedule, memory_limit=memory_limit),
    jit_compile,
  )
