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
"""The unmixed second and third derivatives of a function, color by color.

Coordinates j and k of one color of a diagonal Hessian have ∂_j ∂_k f = 0
everywhere, hence ∂_j ∂_k ∂_l f = 0 for every l. With the seed s of that color,

    (∇(sᵀ∇f))_j = s_j ∂_jj f     and     (∇(sᵀ∇(sᵀ∇f)))_j = s_j² ∂_jjj f

at its coordinates: the colors that serve the Hessian serve the third
derivatives, and a pass of a color gives both.
"""

from collections.abc import Sequence

from tfp_diag.diagonal.linear_map import Evaluation, Linear, LinearMap


def passes_of(evaluation: Evaluation, hessian: LinearMap, order: int) -> Linear:
  """What passes go through: the Hessian, or second and third derivatives.

  Args:
    evaluation: `Evaluation`.
    hessian: `LinearMap` in reverse mode, from `evaluation.hessian`.
    order: Python int, 2 or 3.

  Returns:
    `Linear`, with `order - 1` diagonals.
  """
  return ThirdOrder(evaluation, hessian) if order == 3 else hessian


class ThirdOrder:
  """Second and third derivatives along a seed; stands for a `LinearMap`."""

  def __init__(self, evaluation: Evaluation, hessian: LinearMap) -> None:
    """Prepares the passes.

    Args:
      evaluation: `Evaluation`, to be differentiated three times.
      hessian: `LinearMap` in reverse mode, from `evaluation.hessian`.
    """
    self._evaluation = evaluation
    self._hessian = hessian

  def connects(self, members: Sequence[int]) -> bool:
    """As `LinearMap.connects`; what has no second derivative has no third."""
    return self._hessian.connects(members)

  def apply(self, members: Sequence[int], seeds: Sequence) -> list:
    """One pass.

    Args:
      members: List of the numbers of the parts that are seeded.
      seeds: List of Tensors, one per member.

    Returns:
      List with a Tensor, or None, for each member: the Hessian times the seed.
      After these as many: the seed times the derivative of the Hessian along
      it, times the seed. So both are a diagonal times the seed.
    """
    second, derivative = self._evaluation.derivative_of(
      lambda: self._hessian.apply(members, seeds)
    )
    third = derivative.apply(list(range(len(members))), seeds, members)
    third = [None if t is None else s * t for s, t in zip(seeds, third)]
    return second + third
