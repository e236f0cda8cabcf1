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
"""A Hessian of which only the looked-at rows are computed."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.diag_hessian import diag_hessian
from tfp_diag.diagonal.linear_map import Evaluation, LinearMap
from tfp_diag.internal import batching, nest
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.lazy_matrix import LazyMatrix
from tfp_diag.plan import Plan
from tfp_diag.plan_diag_hessian import plan_diag_hessian
from tfp_diag.sparsity.budget import NoStructureError

__all__ = ['LazyHessian']


class LazyHessian(LazyMatrix):
  """The Hessian of `fn` at `xs`, computed where it is looked at.

  A matrix of shape `sample_shape + [n, n]` over the coordinates of `xs`, parts
  in order, each event flattened row by row. Used as `tfp_diag.LazyJacobian`,
  which says what is remembered. A column is a row here, so `H[:, j]` costs
  nothing after `H[j]`, and `matvec` and `rmatvec` are the same.

  #### Examples

  ```python
  x = tf.constant([1.0, 2.0, 3.0])
  H = LazyHessian(lambda x: tf.reduce_prod(x) + tf.reduce_sum(x**3), x)
  H[0]
  # ==> [6., 3., 2.]
  H[:, 0]
  # ==> [6., 3., 2.]
  H.num_passes
  # ==> 1
  H.matvec([1.0, 0.0, 1.0])
  # ==> [8., 4., 20.]
  ```
  """

  def __init__(
    self,
    fn: Callable,
    xs: Any,
    sample_shape: SampleShape | None = (),
    *,
    chunk_size: int | None = None,
  ) -> None:
    """Makes the view; computes nothing.

    Args:
      fn: Python callable of the parts of `xs`, or without arguments, as for
        `tfp_diag.hessian`; returns one scalar per sample.
      xs: Tensor, or structure of Tensors, of shape `sample_shape + event_shape`
        and of one floating dtype, with static event shapes; or `tf.Variable`s.
      sample_shape: The leading shape that all parts share, whose entries are
        independent samples. Default: `()`, no samples, as the shape of the
        matrix follows from it.
      chunk_size: Python int, how many of the passes of one access are
        vectorized together. 1 is a plain loop, None all of them. What
        `parallel_iterations` is for `tfp_diag.diag_jacobian`.

    Raises:
      ValueError: if an argument is not valid; at the first access, if `fn` does
        not return one scalar per sample, or samples mix.
      TypeError: if a part is not floating; at the first access, if dtypes
        differ.
    """
    problem = HessianProblem(
      fn, xs, () if sample_shape is None else sample_shape
    )
    super().__init__(problem, is_symmetric=True, chunk_size=chunk_size)

  def _derivative(self, evaluation: Evaluation) -> LinearMap:
    return evaluation.hessian()[1]

  def _diagonal(self, plan: Plan | None) -> tuple[tf.Tensor, int]:
    problem = self._problem
    fn, xs = problem.fn, problem.pack(problem.parts)
    if plan is None:
      # Else each coordinate gets a pass.
      with contextlib.suppress(NoStructureError):
        plan = plan_diag_hessian(fn, xs, self._sample_shape)
    _, _, diag = diag_hessian(fn, xs, self._sample_shape, plan=plan)
    num_passes = self._num_columns if plan is None else plan.num_passes
    return batching.joined(nest.flatten(diag), self._rank), num_passes
