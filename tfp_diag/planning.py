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
"""From a function to a plan: pattern, colors, mode, schedule, chunk."""

import collections
import dataclasses
import warnings

import numpy as np
import tensorflow as tf

from tfp_diag.hessian_split import HessianSplit
from tfp_diag.internal import (
  arguments,
  batching,
  evaluate,
  mode_check,
  nest,
  passes,
)
from tfp_diag.internal import schedule as schedule_lib
from tfp_diag.internal.fingerprint import fingerprint
from tfp_diag.jacobian_split import JacobianSplit
from tfp_diag.plan import Plan, mode_name
from tfp_diag.quadratic_split import QuadraticSplit
from tfp_diag.sparsity import budget
from tfp_diag.sparsity import detect as detect_lib
from tfp_diag.sparsity.coloring import color_diagonal
from tfp_diag.sparsity.pattern import SparsityPattern
from tfp_diag.sparsity.samples import SampleMixingError

__all__ = ['check_plan', 'make_plan', 'recipe_maker']

# What the passes of one chunk may hold at a time, unless the caller says else.
# More than the caches hold made dense Hessians on a CPU up to 2.5 times slower;
# a GPU is filled only by more.
_DEFAULT_MEMORY = {'CPU': 1 << 26, 'GPU': 1 << 30}
# A pass holds the Tensors of the function, and as many of its derivatives.
_TENSORS_PER_PASS = 3
# Looking for structure costs some tens of milliseconds, once per function and
# shapes. An eager call with fewer coordinates than this runs them all instead.
MIN_EAGER_COORDINATES = 16

_MAX_RECIPES = 64

# A column of the matrix of a linear map costs a fraction of a pass, as if there
# were at least so many samples.
_ASSUMED_SAMPLES_AT_LEAST = 4
# A cut takes a pass for what is left, and two for an element that is held.
_MIN_PASSES_TO_CUT = 6
# A batch whose size is not known is rarely small.
_ASSUMED_SAMPLES = 32
# Even where passes are few, so few coordinates are looked at op by op: a small
# quadratic form is one product.
_MAX_TO_LOOK_TWICE = 64
# With more samples per color than this, a quadratic form is evaluated on a few
# samples and broadcast.
_MIN_SAMPLES_PER_PASS = 2

# Of so many coordinates of a single sample even a few passes may be vectorized.
_VECTORIZED_ALONE = (800, 250_000)

# So many nonzeros a pattern may have that nobody has asked for.
_MAX_UNASKED = 4_000_000
_recipes = collections.OrderedDict()


def make_plan(
  kind, fn, xs, sample_shape, mode, schedule, memory_limit, jit_compile, pattern
):
  """Plans a diagonal.

  Args:
    kind: 'jacobian' or 'hessian'.
    fn: Python callable.
    xs: The state: Tensors, Variables, arrays or `tf.TensorSpec`s.
    sample_shape: The leading shape that all parts share, or None: for a
      'hessian' that of the value, else none.
    mode: 'forward', 'reverse' or 'auto'.
    schedule: One of `schedule.SCHEDULES`.
    memory_limit: Number of bytes, or None.
    jit_compile: Python bool.
    pattern: `SparsityPattern` or square matrix, or None to find it.

  Returns:
    `Plan`.
  """
  arguments.check_callable('fn', fn)
  arguments.check_choice('schedule', schedule, schedule_lib.SCHEDULES)
  if memory_limit is not None and memory_limit <= 0:
    raise ValueError(
      f'`memory_limit` is {memory_limit}; it is a positive number of bytes, or '
      'None for 64 MiB, or 1 GiB where there is a GPU.'
    )
  parts = batching.convert_parts(nest.flatten(xs))
  xs = nest.pack_as(xs, parts)
  sample_rank = None
  if sample_shape is not None or kind == 'jacobian':
    sample_rank = batching.sample_rank(sample_shape)
    batching.check_sample_shape(parts, sample_shape)
  detection = None
  if pattern is None:
    detection = _detection(kind, fn, xs, sample_rank)
    pattern = detection.pattern()
  else:
    pattern = _given_pattern(pattern, parts, sample_rank)
  colors = color_diagonal(pattern).colors
  num_passes = schedule_lib.num_colors(colors)
  sample_rank = parts[0].shape.rank - len(pattern.column_shapes[0])
  split = None
  if detection and mode in ('auto', 'reverse') and schedule == 'auto':
    split = _split(detection, colors, parts, sample_rank)
  if schedule == 'auto':
    few = num_passes <= schedule_lib.MAX_UNROLLED
    if detection and _vectorizes_few(detection, colors, parts, sample_rank):
      few = num_passes == 1
    schedule = 'unrolled' if few else 'pfor'
  notes = [split.note] if split else _structure_notes(pattern, num_passes)
  graph, op_types = _traced(fn, xs)
  if split is not None:
    mode = 'reverse'
  elif mode == 'auto':
    mode, note = _choose_mode(kind, fn, xs, num_passes, op_types)
    notes += note
  elif mode == 'forward':
    disagreement = mode_check.forward_obstacle(kind, fn, xs)
    if disagreement:
      notes.append(f'Reverse instead of forward mode: {disagreement}.')
      mode = 'reverse'
  return Plan(
    kind=kind,
    colors=colors,
    pattern=pattern,
    mode=mode_name(kind, mode),
    schedule=schedule,
    chunk_size=_chunk_size(graph, num_passes, memory_limit),
    sample_rank=sample_rank,
    event_shapes=tuple(tuple(s) for s in pattern.column_shapes),
    notes=tuple(notes),
    fn=fn,
    jit_compile=jit_compile,
    split=split,
  )


def check_plan(plan, kind, parts, sample_rank):
  """Raises if `plan` is none, or was made for something else.

  Args:
    plan: What a caller passed.
    kind: 'jacobian' or 'hessian'.
    parts: List of Tensors.
    sample_rank: Python int, or None if the plan says it.
  """
  if not isinstance(plan, Plan):
    raise TypeError(
      f'`plan` is {plan!r}, which is no plan. Pass what '
      f'`tfp_diag.plan_diag_{kind}` or `tfp_diag.load_plan` returned, or None.'
    )
  plan.check(kind, parts, sample_rank)


def recipe_maker(kind, fn, xs, plan, schedule, chunk_size):
  """Returns a function that makes the recipe of one call.

  Args:
    kind: 'jacobian' or 'hessian'.
    fn: Python callable, or None.
    xs: The state, of which only the structure matters.
    plan: `Plan`, or None to look for structure where that pays.
    schedule: One of `schedule.SCHEDULES`.
    chunk_size: Python int, how many passes run together without a plan.

  Returns:
    Callable, list of parts and number of sample dimensions to an
    `evaluate.Recipe`.
  """
  fewest = MIN_EAGER_COORDINATES if tf.executing_eagerly() else 2

  def recipe_for(parts, rank):
    if plan is not None:
      return plan.recipe(schedule)
    recipe = evaluate.Recipe(schedule=schedule, chunk_size=chunk_size)
    # Variables of a network have little structure and very many coordinates.
    if fn is None or any(isinstance(p, tf.Variable) for p in parts):
      return recipe
    shapes = batching.event_shapes(parts, rank)
    if not all(s.is_fully_defined() for s in shapes):
      return recipe
    if sum(s.num_elements() for s in shapes) < fewest:
      return recipe
    found = _remembered(kind, fn, nest.pack_as(xs, parts), rank)
    if found is None:
      return recipe
    if schedule == 'auto':
      recipe = recipe._replace(schedule=found.schedule, split=found.split)
    if found.colors is None:
      return recipe
    return recipe._replace(colors=found.colors)

  return recipe_for


def _remembered(kind, fn, xs, sample_rank):
  """The structure of a function at the shapes of `xs`.

  Whatever stands in the way of a pattern leaves one color for each coordinate,
  which is always right.

  Returns:
    `evaluate.Recipe`, with `colors` of None without structure; or None.
  """
  specs = [tf.TensorSpec(x.shape, x.dtype) for x in nest.flatten(xs)]
  seen = []
  key = (
    kind,
    fingerprint(fn, seen),
    nest.structure(xs),
    tuple(specs),
    sample_rank,
  )
  if key in _recipes:
    _recipes.move_to_end(key)
    found = _recipes[key][0]
  else:
    found = _found(kind, fn, nest.pack_as(xs, specs), sample_rank)
    # A function that sees Tensors of a graph ends with that graph.
    if not any(tf.is_symbolic_tensor(s) for s in seen):
      _recipes[key] = (found, seen)
      while len(_recipes) > _MAX_RECIPES:
        _recipes.popitem(last=False)
  return found


def _found(kind, fn, specs, sample_rank):
  """What to do with a function, or None where there is no pattern."""
  parts = nest.flatten(specs)
  shapes = batching.event_shapes(parts, sample_rank)
  num_coordinates = sum(s.num_elements() for s in shapes)
  try:
    # Nobody asked for a pattern: one that fills up is not worth the wait.
    with budget.at_most(max(_MAX_UNASKED, 32 * num_coordinates)):
      detection = _detection(kind, fn, specs, sample_rank)
      colors = color_diagonal(detection.pattern()).colors
      num_passes = schedule_lib.num_colors(colors)
      split = _split(detection, colors, parts, sample_rank)
      vectorizes = _vectorizes_few(detection, colors, parts, sample_rank)
  except SampleMixingError as e:
    warnings.warn(
      f'{e} The derivative is taken as if samples did not mix.',
      RuntimeWarning,
      stacklevel=2,
    )
    return None
  except Exception:
    # `fn` may need a graph that is being built, a fixed batch, or eager mode.
    # What is wrong with it comes up again where it is differentiated.
    return None
  return evaluate.Recipe(
    colors=colors if num_passes < colors.size else None,
    schedule='pfor' if vectorizes and num_passes > 1 else 'auto',
    split=split,
  )


def _vectorizes_few(detection, colors, parts, sample_rank):
  """Whether even a few passes should be vectorized.

  On a CPU, of a single sample that is large enough to be worth two threads, and
  small enough for what the passes hold to stay in the caches. The samples of a
  batch are spread over the threads anyhow.
  """
  low, high = _VECTORIZED_ALONE
  return (
    parts[0].shape[:sample_rank].num_elements() == 1
    and low <= colors.size <= high
    and detection.shares_by_vectorizing
  )


def _split(detection, colors, parts, sample_rank):
  """A cheaper way than the passes, or None.

  In this order: a Jacobian that cuts halve; a quadratic form on a few of many
  samples; a Hessian that is one product; a quadratic form on all samples; a
  Hessian op by op, if that is less than the passes.

  Args:
    detection: `detect.Detection`.
    colors: int32 array, the colors of its pattern.
    parts: List of Tensors or specs.
    sample_rank: Python int.

  Returns:
    `Split` or None.
  """
  num_passes = schedule_lib.num_colors(colors)
  if num_passes <= 1:
    return None
  known = parts[0].shape[:sample_rank].num_elements()
  # Columns of a matrix cost less than a pass.
  num_samples = max(known or _ASSUMED_SAMPLES, _ASSUMED_SAMPLES_AT_LEAST)
  split = _around_cuts(detection, num_samples, num_passes)
  if split is not None:
    return split
  quadratic = None
  form = detection.quadratic() if known is not None and known > 1 else None
  if form is not None:
    quadratic = QuadraticSplit(form, colors, known)
    if form.any_batch and known > _MIN_SAMPLES_PER_PASS * num_passes:
      return quadratic
  is_few = num_passes <= schedule_lib.MAX_UNROLLED
  is_small = colors.size <= _MAX_TO_LOOK_TWICE
  split = None
  if not is_few or is_small or detection.has_curved_sums:
    split = _op_by_op(detection, num_samples)
  if split is not None and split.is_one_product:
    return split
  if quadratic is not None or split is None:
    return quadratic
  if is_few:
    # A pass adds up over a normalizer again, its rows do not.
    is_less = split.found.few and split.num_passes <= num_passes
    return split if is_less else None
  if 2 * split.num_passes <= num_passes:
    return split
  if split.is_by_coordinate:
    # The tangents of all arguments come along.
    return dataclasses.replace(split, found=split.found.all_as_rest())
  return None


def _around_cuts(detection, num_samples, num_passes):
  """A `JacobianSplit` that takes at most half of the passes, or None."""
  if num_passes < _MIN_PASSES_TO_CUT:
    return None
  expanded = detection.expanded()
  for cuts, pattern in (expanded or detection).cuts():
    colors = color_diagonal(pattern).colors
    cuts = dataclasses.replace(cuts, is_expanded=expanded is not None)
    split = JacobianSplit(cuts, colors, num_samples)
    if 2 * split.num_passes <= num_passes:
      return split
  return None


def _op_by_op(detection, num_samples):
  curved_ops, pattern = detection.curvature()
  if curved_ops is None:
    return None
  colors = color_diagonal(pattern).colors
  return HessianSplit(curved_ops, colors, num_samples)


def _detection(kind, fn, xs, sample_rank):
  """Of the pattern whose rows and columns are both the coordinates of `xs`."""
  if kind == 'hessian':
    return detect_lib.Detection(kind, fn, xs, sample_rank)

  def aligned(*parts):
    return evaluate.align(nest.call_traceable(fn, parts), parts)[1]

  return detect_lib.Detection(kind, aligned, list(xs), sample_rank)


def _given_pattern(pattern, parts, sample_rank):
  """A caller's pattern, with the event shapes of the parts.

  Args:
    pattern: `SparsityPattern` or matrix.
    parts: List of Tensors or specs.
    sample_rank: Python int, or None: the fewest sample dimensions that fit.

  Returns:
    `SparsityPattern`.
  """
  if not isinstance(pattern, SparsityPattern):
    pattern = SparsityPattern(pattern)
  ranks = [sample_rank]
  if sample_rank is None:
    ranks = range(min(p.shape.rank for p in parts) + 1)
  for rank in ranks:
    shapes = batching.event_shapes(parts, rank)
    if all(s.is_fully_defined() for s in shapes):
      n = sum(s.num_elements() for s in shapes)
      if pattern.shape == (n, n):
        shapes = tuple(tuple(s) for s in shapes)
        return dataclasses.replace(
          pattern, row_shapes=shapes, column_shapes=shapes
        )
  raise ValueError(
    f'`pattern` has shape {pattern.shape}, but `xs` have the shapes '
    f'{[str(p.shape) for p in parts]}. A pattern has a row and a column for '
    'each coordinate of one sample; name the `sample_shape`.'
  )


def _structure_notes(pattern, num_passes):
  """What blocked a cheaper plan."""
  notes = list(pattern.notes)
  n = pattern.num_coordinates
  if num_passes > 1 and pattern.fallback_ops:
    ops = ', '.join(pattern.fallback_ops[:5])
    more = len(pattern.fallback_ops) - 5
    notes.append(
      f'No rule says what {ops}{f" and {more} more" if more > 0 else ""} '
      'depends on, so everything was assumed. Write that part with other ops, '
      'or add a rule with `tfp_diag.sparsity.register_rule`.'
    )
  elif n > 1 and num_passes == n:
    notes.append(
      'Every coordinate meets every other one, so each needs a pass of its own.'
    )
  return notes


def _choose_mode(kind, fn, xs, num_passes, op_types):
  """The mode, and notes on it.

  A few forward passes are cheaper than reverse ones: they share all that does
  not depend on the seed. For many of a Hessian, vectorized, reverse mode is
  cheaper. So it is through loops, where one transposition more also takes long
  to trace: a minute for a state-space model.
  """
  is_many = num_passes > schedule_lib.MAX_UNROLLED
  if num_passes == 0 or (is_many and kind == 'hessian'):
    return 'reverse', []
  if evaluate.loop_among(op_types) is not None:
    return 'reverse', []
  obstacle = mode_check.forward_obstacle(kind, fn, xs)
  if obstacle:
    return 'reverse', [f'Reverse instead of forward mode: {obstacle}.']
  return 'forward', []


def _chunk_size(graph, num_passes, memory_limit):
  """How many passes fit into the memory limit."""
  if num_passes <= 1:
    return 1
  if memory_limit is None:
    device = 'GPU' if tf.config.list_physical_devices('GPU') else 'CPU'
    memory_limit = _DEFAULT_MEMORY[device]
  return int(np.clip(memory_limit // _bytes_of_pass(graph), 1, num_passes))


def _bytes_of_pass(graph):
  """An estimate of what one pass holds, from the Tensors of the function."""
  sizes = [
    np.prod([d or 1 for d in t.shape.as_list()], dtype=float) * t.dtype.size
    for op in graph.get_operations()
    for t in op.outputs
    if t.shape.rank is not None and t.dtype.is_floating
  ]
  return max(1, int(_TENSORS_PER_PASS * sum(sizes)))


def _traced(fn, xs):
  """The graph of `fn`, and the types of all ops that it runs."""
  specs = [tf.TensorSpec(x.shape, x.dtype) for x in nest.flatten(xs)]
  if nest.takes_variables(fn, nest.flatten(xs)):
    xs, specs = [], []
  types = set()

  def body(*parts):
    with passes.recorded_ops() as ops:
      result = nest.call_traceable(fn, nest.pack_as(xs, parts))
    types.update(ops)
    return result

  function = tf.function(body, autograph=False)
  return function.get_concrete_function(*specs).graph, types
