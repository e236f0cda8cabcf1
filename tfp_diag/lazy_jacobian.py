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
"""A Jacobian of which only the looked-at rows and columns are computed."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.diag_jacobian import diag_jacobian
from tfp_diag.diagonal.linear_map import Evaluation, LinearMap
from tfp_diag.internal import batching, nest
from tfp_diag.internal.batching import SampleShape
from tfp_diag.internal.problem import Problem
from tfp_diag.lazy_matrix import LazyMatrix
from tfp_diag.plan import Plan
from tfp_diag.plan_diag_jacobian import plan_diag_jacobian
from tfp_diag.sparsity.budget import NoStructureError

__all__ = ['LazyJacobian']


class LazyJacobian(LazyMatrix):
  """The Jacobian of `fn` at `xs`, computed where it is looked at.

  A matrix of shape `sample_shape + [num_rows, num_columns]`: one row for each
  coordinate of the outputs, one column for each coordinate of `xs`, parts in
  order, each event flattened row by row. Nothing is computed when it is made.
  `J[i]` costs one vector-Jacobian product, `J[:, j]` one Jacobian-vector
  product, a submatrix as many as its shorter side has rows or columns that are
  not known yet; `J.diag()` as many as a plan needs. All samples share a pass.
  A row in which a column is not finite gets a pass besides, in a loop.
  What was computed is remembered, so that a second look costs nothing;
  `J.num_passes` counts.

  What was computed outside of a tape is a constant inside of it. To
  differentiate the Jacobian, make it inside of the tape, or use
  `tfp_diag.jacobian`.

  Call `J.clear_cache()` after `tf.Variable`s have changed. In a `tf.function`
  indices are static, and what is remembered belongs to that function.

  #### Examples

  ```python
  x = tf.constant([1.0, 2.0, 3.0])
  J = LazyJacobian(lambda x: tf.concat([x**2, [x[0] * x[1] * x[2]]], 0), x)
  J.shape
  # ==> [4, 3]
  J[3]
  # ==> [6., 3., 2.]
  J[-1, :2]  # Known already.
  # ==> [6., 3.]
  J.num_passes
  # ==> 1
  J[:, 0]  # A column.
  # ==> [2., 0., 0., 6.]
  J.num_passes
  # ==> 2
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
      fn: Python callable of the parts of `xs`, as for `tfp_diag.jacobian`.
      xs: Tensor, or structure of Tensors, of shape `sample_shape + event_shape`
        and of one floating dtype, with static event shapes; or `tf.Variable`s.
      sample_shape: The leading shape that all inputs and outputs share, whose
        entries are independent samples. Default: `()`, no samples, as the
        shape of the matrix follows from it.
      chunk_size: Python int, how many of the passes of one access are
        vectorized together. 1 is a plain loop, None all of them. What
        `parallel_iterations` is for `tfp_diag.diag_jacobian`.

    Raises:
      ValueError: if an argument is not valid; at the first access, if samples
        mix or an event shape is not static.
      TypeError: if a part is not floating; at the first access, if dtypes
        differ.
    """
    problem = Problem(fn, xs, () if sample_shape is None else sample_shape)
    super().__init__(problem, is_symmetric=False, chunk_size=chunk_size)

  def _derivative(self, evaluation: Evaluation) -> LinearMap:
    return evaluation.jacobian()

  def _diagonal(self, plan: Plan | None) -> tuple[tf.Tensor, int]:
    problem = self._problem
    if problem.is_closure:
      raise ValueError(
        'The outputs of a function of `tf.Variable`s cannot be paired with '
        'them through a plan. Write it as a function of Tensors.'
      )
    rank = self._rank
    shapes = tuple(tuple(p.shape[rank:]) for p in problem.parts)
    if plan is not None and plan.event_shapes == shapes:
      return self._diagonal_of_parts(plan)
    fn = functools.partial(
      _flat_call,
      problem.fn,
      problem.pack(['.'] * len(problem.parts)),
      [p.shape[rank:].as_list() for p in problem.parts],
      rank,
    )
    x = batching.joined(problem.parts, rank)
    x = tf.ensure_shape(x, [*self._sample_shape, self._num_columns])
    if plan is None:
      # Else each coordinate gets a pass.
      with contextlib.suppress(NoStructureError):
        plan = plan_diag_jacobian(fn, x, self._sample_shape)
    _, diag = diag_jacobian(
      x, fn=fn, sample_shape=self._sample_shape, plan=plan
    )
    return diag[0], self._num_columns if plan is None else plan.num_passes

  def _diagonal_of_parts(self, plan: Plan) -> tuple[tf.Tensor, int]:
    """By a plan for the parts as they are, and not for one vector."""
    problem = self._problem

    def fn(*parts):
      packed = problem.pack(list(parts))
      return nest.flatten(nest.call_traceable(problem.fn, packed))

    _, diag = diag_jacobian(
      problem.parts, fn=fn, sample_shape=self._sample_shape, plan=plan
    )
    return batching.joined(diag, self._rank), plan.num_passes


def _flat_call(
  fn: Callable, structure: Any, event_shapes: list, rank: int, x: tf.Tensor
) -> tf.Tensor:
  """`fn` from one vector per sample to one vector per sample.

  Args:
    fn: Python callable.
    structure: The state, with anything for parts.
    event_shapes: List of lists of int, of the parts.
    rank: Python int, the number of sample dimensions.
    x: Tensor of shape `sample_shape + [n]`.

  Returns:
    Tensor of shape `sample_shape + [m]`.
  """
  parts = batching.separated(x, event_shapes)
  ys = nest.flatten(nest.call_traceable(fn, nest.pack_as(structure, parts)))
  return batching.joined(ys, rank)
