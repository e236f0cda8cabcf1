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
"""Passes through a Gauss-Newton matrix: forward to the residuals, and back."""

from collections.abc import Sequence

import tensorflow as tf

from tfp_diag.diagonal.blocks import jacobian_blocks
from tfp_diag.diagonal.linear_map import Evaluation, LinearMap
from tfp_diag.internal import batching


class GaussNewtonPasses:
  """`v -> J^T diag(w) J v`; stands for a `LinearMap`.

  The Hessian of `w (r - c)^2 / 2` at `c = r` is the same, but its derivative is
  not: an outer tape holds c.
  """

  def __init__(
    self,
    derivative: LinearMap,
    residuals: Sequence,
    weights: Sequence,
    xs: Sequence,
  ) -> None:
    """Prepares the passes.

    Args:
      derivative: `LinearMap` of the evaluation of the residuals.
      residuals: List of Tensors.
      weights: List of Tensors that broadcast to these, or None for ones.
      xs: List of Tensors, the parts.
    """
    self._weights = weights
    self._back = derivative.between(residuals, xs)
    self._forward = self._back.transposed()

  def connects(self, members: Sequence[int]) -> bool:
    """As `LinearMap.connects`."""
    return True

  def apply(
    self,
    members: Sequence[int],
    seeds: Sequence,
    results: Sequence[int] | None = None,
  ) -> list:
    """As `LinearMap.apply`."""
    results = members if results is None else results
    tangents = self._forward.apply(
      members, seeds, list(range(len(self._weights)))
    )
    used = [k for k, t in enumerate(tangents) if t is not None]
    cotangents = [
      tangents[k]
      if self._weights[k] is None
      else tangents[k] * tf.stop_gradient(self._weights[k])
      for k in used
    ]
    return self._back.apply(used, cotangents, results)


def diagonal_by_rows(
  derivative: LinearMap,
  residuals: Sequence,
  weights: Sequence,
  evaluation: Evaluation,
  rank: int,
  chunk_size: int | None,
) -> list:
  """The diagonal by a pass for each residual, in reverse mode alone.

  Where a gradient is not linear in its cotangent there is no other way.

  Args:
    derivative: As for `GaussNewtonPasses`.
    residuals: List of Tensors.
    weights: List of Tensors or None.
    evaluation: `Evaluation` of the residuals.
    rank: Python int, the number of sample dimensions.
    chunk_size: Python int, how many passes run together, or None.

  Returns:
    List of Tensors shaped as the parts.
  """
  xs = evaluation.xs
  back = derivative.between(residuals, xs)
  blocks = jacobian_blocks(back, evaluation, rank, 'reverse', chunk_size)
  diag = [tf.zeros_like(x) for x in xs]
  for row, r, weight in zip(blocks, residuals, weights):
    for k, (x, block) in enumerate(zip(xs, row)):
      if block is None:
        continue
      weighted = block
      if weight is not None:
        weight_of_r = tf.broadcast_to(tf.stop_gradient(weight), tf.shape(r))
        weighted *= batching.with_axes(weight_of_r, x.shape.rank - rank)
      # The weight first: a square alone may be out of range.
      diag[k] += tf.reduce_sum(
        weighted * block, list(range(rank, r.shape.rank))
      )
  return diag
