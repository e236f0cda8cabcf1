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
"""The unmixed second and third derivatives of a log density, color by color.

Coordinates i and j of one color of a diagonal Hessian have ∂_i ∂_j f = 0
everywhere, hence ∂_i ∂_j ∂_k f = 0 for every k. With the seed s of that color,

    (∇(sᵀ∇f))_i = s_i ∂_ii f     and     (∇(sᵀ∇(sᵀ∇f)))_i = s_i² ∂_iii f

at its coordinates: the colors that serve the Hessian serve the third
derivatives, and a color costs one pass for each of the two.
"""

import tensorflow as tf

from tfp_diag.diagonal import evaluate, sweep
from tfp_diag.diagonal.decide import Request, decide
from tfp_diag.internal.problem import HessianProblem

__all__ = ['unmixed_derivatives']


@tf.autograph.experimental.do_not_convert
def unmixed_derivatives(fn, parts, sample_rank, parallel_iterations):
  """∂_ii and ∂_iii of a scalar-per-sample function.

  Args:
    fn: Python callable of the parts, one scalar per sample.
    parts: List of floating Tensors of one leading sample shape.
    sample_rank: Python `int`, the number of sample dimensions.
    parallel_iterations: Python `int`: how many colors run together, if there
      are too many to be written out one by one.

  Returns:
    second: List of Tensors shaped as the parts: ∂_ii.
    third: List of Tensors shaped as the parts: ∂_iii.
  """
  problem = _ThirdOrder(fn, list(parts))
  problem.rank = sample_rank

  def body(evaluation):
    parts = evaluation.xs
    request = Request(chunk_size=parallel_iterations, only_passes=True)
    colors = sweep.Colors.of(
      decide(problem, evaluation, request).colors, parts, sample_rank
    )
    signs = None if colors.signs is None else list(colors.signs) * 2
    # The second and the third derivatives are two copies of the parts, so that
    # one sweep over the colors fills both.
    both = sweep.diagonal(
      _Derivatives(evaluation),
      sweep.Colors(list(colors.parts) * 2, colors.num_colors, signs),
      parts * 2,
      'auto',
      parallel_iterations,
      evaluate.loop_among(evaluation),
    )
    return both[: len(parts)], both[len(parts) :]

  return evaluate.run(
    problem, ('unmixed_derivatives', parallel_iterations), body
  )


class _ThirdOrder(HessianProblem):
  """Differentiated three times."""

  order = 3


class _Derivatives:
  """Stands where `sweep.diagonal` expects a `LinearMap`."""

  def __init__(self, evaluation):
    self._evaluation = evaluation
    _, self._hessian = evaluation.hessian()

  def connects(self, members):
    """As `LinearMap.connects`."""
    del members  # A log density without curvature is too rare to look for.
    return True

  def apply(self, members, seeds):
    """Both passes of a color, as `LinearMap.apply`."""
    num_parts = len(self._evaluation.xs)
    # Where colors are dynamic, each copy of a part comes by itself.
    wanted = sorted({i % num_parts for i in members})
    seed_of = {i % num_parts: seed for i, seed in zip(members, seeds)}
    seeds = [seed_of[i] for i in wanted]
    second, derivative = self._evaluation.derivative_of(
      lambda: self._hessian.apply(wanted, seeds)
    )
    third = derivative.apply(list(range(len(wanted))), seeds, wanted)
    # One more factor of the sign, which `diagonal` takes out again.
    third = [None if t is None else s * t for s, t in zip(seeds, third)]
    of_part = dict(zip(wanted, zip(second, third)))
    return [of_part[i % num_parts][i // num_parts] for i in members]
