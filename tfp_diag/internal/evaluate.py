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
"""One body for all regimes: evaluate once, apply the linear map, add up."""

import contextlib
import functools
from typing import Any, NamedTuple

from tfp_diag.internal import batching, nest, passes, validation
from tfp_diag.internal import schedule as schedule_lib

__all__ = [
  'Called',
  'Recipe',
  'align',
  'hessian_diagonal',
  'jacobian_diagonal',
  'loop_among',
]

# Gradients of these ops carry lists of Tensors, on which the code that pfor
# makes fails when XLA compiles it, and not before.
_LOOPS = ('While', 'StatelessWhile')


class Recipe(NamedTuple):
  """Which seeds are used, and in what order.

  Attributes:
    colors: int32 vector, one color per coordinate (parts in order), or None:
      each coordinate has a color of its own.
    schedule: One of `schedule.SCHEDULES`.
    chunk_size: Python int, how many passes run together.
    event_shapes: List of the event shapes that the colors are for; None: those
      of the state.
    split: `Split`, a cheaper way to a diagonal than passes, or None.
  """

  colors: Any = None
  schedule: str = 'auto'
  chunk_size: int = 10
  event_shapes: Any = None
  split: Any = None

  def colored(self, colors, xs, rank):
    """Some colors as those of the parts of a state.

    Args:
      colors: int32 vector, one color per coordinate.
      xs: List of Tensors.
      rank: Python int, the number of sample dimensions.

    Returns:
      `schedule.Colors`.

    Raises:
      ValueError: If a part has fewer dimensions than `rank`.
    """
    # Raises if there are too few dimensions, with a plan as well.
    shapes = batching.event_shapes(xs, rank)
    # A plan knows the shapes also where those of the state are dynamic.
    shapes = self.event_shapes or shapes
    return schedule_lib.Colors.from_vector(colors, shapes)


class Called(NamedTuple):
  """A function that was called just now, for a `Recipe.split`.

  Attributes:
    ops: List of `tf.Operation`s: what was added to the graph since, in order;
      more may follow those of the function. Empty in eager mode.
    outputs: What is returned beside the diagonal.
    derivative: A `passes.LinearMap`.
    xs: List of Tensors, the parts.
    rank: Python int, the number of sample dimensions.
    again: Callable, other parts to their `passes.LinearMap` in reverse mode.
  """

  ops: list
  outputs: Any
  derivative: Any
  xs: list
  rank: int
  again: Any


def jacobian_diagonal(fn, ys, xs, mode, recipe_for, rank, validate=False):
  """The diagonal of the Jacobian of `ys = fn(*xs)`.

  Args:
    fn: Python callable, or None if `ys` are Tensors of the current graph.
    ys: Tensor or list of Tensors; ignored if there is `fn`.
    xs: List of Tensors.
    mode: 'forward', 'reverse' or 'auto'.
    recipe_for: Callable, `xs` and the number of sample dimensions to a
      `Recipe`.
    rank: Python int, the number of sample dimensions.
    validate: Python bool, whether to check at run time.

  Returns:
    ys: List of Tensors.
    diag: List of Tensors shaped as `xs`.
  """

  def linear_map(mode, xs):
    if fn is None:
      outputs, targets = align(ys, xs)
      return outputs, passes.linear_map_of_graph(targets, xs, mode)
    return passes.linearize(
      lambda: align(nest.call_traceable(fn, xs), xs), xs, mode
    )

  return _run(linear_map, xs, mode, recipe_for, lambda _: rank, validate)


def hessian_diagonal(fn, xs, mode, recipe_for, rank, validate=False):
  """The value, the gradient and the diagonal of the Hessian of `fn()`.

  Args:
    fn: Python callable of one argument, `xs`; one scalar per sample.
    xs: List of Tensors or Variables.
    mode: 'forward', 'reverse' or 'auto'.
    recipe_for: Callable, `xs` and the number of sample dimensions to a
      `Recipe`.
    rank: Python int, the number of sample dimensions; None: that of the value.
    validate: Python bool, whether to check at run time.

  Returns:
    value: Tensor.
    gradient: List of Tensors shaped as `xs`.
    diag: List of Tensors shaped as `xs`.
  """

  def linear_map(mode, xs):
    def value_and_gradient():
      value, gradient = passes.value_and_gradient(lambda: fn(xs), xs)
      batching.check_value(value, xs, rank)
      return (value, gradient), gradient

    return passes.linearize(value_and_gradient, xs, mode)

  (value, gradient), diag = _run(
    linear_map,
    xs,
    mode,
    recipe_for,
    lambda outputs: outputs[0].shape.rank,
    validate,
  )
  return value, gradient, diag


def align(ys, xs):
  """Pairs what a function returned with the parts of its state.

  Args:
    ys: Tensor or list of Tensors.
    xs: List of Tensors.

  Returns:
    ys: List of Tensors.
    aligned: List of Tensors shaped as `xs`: what the diagonal is taken of.
  """
  ys = list(ys) if isinstance(ys, (list, tuple)) else [ys]
  if len(ys) not in (1, len(xs)):
    raise ValueError(
      f'There are {len(ys)} parts of `ys` but {len(xs)} of `xs`. The diagonal '
      'needs one y for each part of `xs`, or a single y for all of them.'
    )
  every = ys * len(xs) if len(ys) == 1 else ys
  return ys, [
    batching.broadcast_to_part(y, x, i)
    for i, (y, x) in enumerate(zip(every, xs))
  ]


def _run(linear_map, xs, mode, recipe_for, rank_of, validate):
  """Evaluates, then runs the schedule.

  Args:
    linear_map: Callable, mode and `xs` to `(outputs, passes.LinearMap)`.
    xs: List of Tensors or Variables.
    mode: 'forward', 'reverse' or 'auto'.
    recipe_for: Callable, `xs` and the number of sample dimensions to a
      `Recipe`.
    rank_of: Callable, `outputs` to the number of sample dimensions.
    validate: Python bool.

  Returns:
    outputs: What `linear_map` returned.
    diag: List of Tensors shaped as `xs`.
  """

  def again(xs):
    return linear_map('reverse', xs)[1]

  # Reverse mode differentiates once less.
  mode = 'reverse' if mode == 'auto' else mode
  with passes.recorded_ops() as ops:
    outputs, derivative = linear_map(mode, xs)
  rank = rank_of(outputs)
  recipe = recipe_for(xs, rank)
  if recipe.colors is None:
    event_shapes = batching.event_shapes(xs, rank)
    colors = schedule_lib.one_color_each(event_shapes, xs, rank)
  else:
    colors = recipe.colored(recipe.colors, xs, rank)
  diag = None
  if recipe.split is not None and mode == 'reverse':
    # An op may have a gradient that cannot be transposed: the passes need none.
    with contextlib.suppress(passes.MissingGradientError):
      diag = recipe.split.diagonal(
        Called(ops.operations, outputs, derivative, xs, rank, again), recipe
      )
  if diag is None:
    diag = schedule_lib.diagonal(
      derivative,
      colors,
      xs,
      recipe.schedule,
      recipe.chunk_size,
      loop_among(ops),
    )
  if validate:
    compare = None
    if mode == 'forward':
      compare = functools.partial(again, xs)
    validation.check(diag, derivative, compare, colors, xs, rank, recipe)
  return outputs, diag


def loop_among(ops):
  """The type of a loop, which pfor leaves to XLA to fail on, or None.

  Args:
    ops: Set of op types, as `passes.recorded_ops` collects them.

  Returns:
    Python str or None.
  """
  return next((op for op in _LOOPS if op in ops), None)
