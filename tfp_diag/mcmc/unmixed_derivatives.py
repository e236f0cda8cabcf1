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

from tfp_diag import planning
from tfp_diag.internal import (
  batching,
  compiled,
  evaluate,
  nest,
  passes,
  schedule,
)

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
  recipe_for = planning.recipe_maker(
    'hessian', fn, list(parts), None, 'auto', parallel_iterations
  )

  def body(*parts):
    parts = list(parts)
    derivatives = _Derivatives(fn, parts)
    # The second and the third derivatives are two copies of the parts, so that
    # one sweep over the colors fills both.
    both = schedule.diagonal(
      derivatives,
      _colors(recipe_for(parts, sample_rank), parts, sample_rank),
      parts * 2,
      'auto',
      parallel_iterations,
      derivatives.obstacle(),
    )
    return both[: len(parts)], both[len(parts) :]

  if not tf.executing_eagerly():
    return body(*parts)
  key = ('unmixed_derivatives', len(parts), sample_rank, parallel_iterations)
  return compiled.call(key, [fn], body, list(parts))


def _colors(recipe, parts, sample_rank):
  """The colors of the Hessian, for the parts and once more for the parts."""
  event_shapes = batching.event_shapes(parts, sample_rank)
  if recipe.colors is None:
    colors = schedule.one_color_each(event_shapes, parts, sample_rank)
  else:
    colors = schedule.Colors.from_vector(recipe.colors, event_shapes)
  signs = None if colors.signs is None else list(colors.signs) * 2
  return schedule.Colors(list(colors.parts) * 2, colors.num_colors, signs)


class _Derivatives:
  """Stands where `schedule.diagonal` expects a `passes.LinearMap`."""

  def __init__(self, fn, parts):
    self._fn = fn
    self._parts = parts

  def obstacle(self):
    """The type of an op that pfor would fail on too late, or None."""
    with passes.recorded_ops() as ops:
      self._gradient(self._copies())
    return evaluate.loop_among(ops)

  def connects(self, members):
    """As `passes.LinearMap.connects`."""
    del members  # A log density without curvature is too rare to look for.
    return True

  def apply(self, members, seeds):
    """Both passes of a color, as `passes.LinearMap.apply`."""
    num_parts = len(self._parts)
    # Where colors are dynamic, each copy of a part comes by itself.
    wanted = sorted({i % num_parts for i in members})
    seed_of = {i % num_parts: seed for i, seed in zip(members, seeds)}
    seeds = [seed_of[i] for i in wanted]
    parts = self._copies()

    def hessian_pass():
      _, hessian = passes.linearize(
        lambda: (None, self._gradient(parts)), parts, 'reverse'
      )
      products = hessian.apply(wanted, seeds)
      ys = [None] * num_parts
      for i, product in zip(wanted, products):
        ys[i] = product
      return products, ys

    second, derivative = passes.linearize(hessian_pass, parts, 'reverse')
    third = derivative.apply(wanted, seeds)
    # One more factor of the sign, which `diagonal` takes out again.
    third = [None if t is None else s * t for s, t in zip(seeds, third)]
    of_part = dict(zip(wanted, zip(second, third)))
    return [of_part[i % num_parts][i // num_parts] for i in members]

  def _gradient(self, parts):
    def value():
      return nest.call_traceable(self._fn, parts)

    return passes.value_and_gradient(value, parts)[1]

  def _copies(self):
    # A TFP bijector remembers by identity what it computed before the tapes.
    return [tf.identity(x) for x in self._parts]
