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
"""How one diagonal is computed: each way proposes itself, the cheapest wins."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import proposals, sweep
from tfp_diag.diagonal.linear_map import Evaluation
from tfp_diag.diagonal.proposals import Proposal
from tfp_diag.diagonal.reading import Reading, fault, held_constant, read
from tfp_diag.diagonal.request import Mode, Request, Schedule
from tfp_diag.diagonal.terms import Terms
from tfp_diag.internal.problem import Problem
from tfp_diag.internal.warn import warn
from tfp_diag.sparsity import budget
from tfp_diag.sparsity.coloring import color_diagonal
from tfp_diag.sparsity.pattern import SparsityPattern
from tfp_diag.sparsity.registry import CannotSay

# Of so many coordinates of a single sample even a few passes are vectorized: it
# fills two threads, and what the passes hold stays in the caches.
_VECTORIZED_ALONE = (800, 250_000)
# Of third derivatives, the function's ops times the passes: more than that is a
# loop. Written out, an op becomes five, and XLA takes a minute for 13,000.
_MOST_OPS_OF_THIRD = 1500
# What the passes of one chunk may hold at a time, unless the caller says else.
# More than the caches hold made dense Hessians on a CPU up to 2.5 times slower;
# a GPU is filled only by more.
_MEMORY = {'CPU': 1 << 26, 'GPU': 1 << 30}
# A pass holds the Tensors of the function, and as many of its derivatives.
_TENSORS_PER_PASS = 3


class Decision(NamedTuple):
  """What is done.

  Attributes:
    evaluation: `Evaluation` that is differentiated: the one that was given, or
      the same function without calls of functions and equal ops.
    colors: int32 array, one color per coordinate, or None: one each.
    pattern: `SparsityPattern`, or None where it was not found.
    mode: 'forward' or 'reverse', or 'auto' where it is still to be tried.
    schedule: `Schedule`.
    chunk_size: Python int.
    proposals: Tuple of `Proposal`, the one that is followed first.
    notes: Tuple of sentences.
    num_samples: Python int: for how many samples passes are reckoned.
    is_linear: Python bool: whether passes are seen to be linear in their seeds.
    obstacle: What pfor cannot vectorize, or None.
  """

  evaluation: Evaluation
  colors: np.ndarray | None
  pattern: SparsityPattern | None
  mode: Mode
  schedule: Schedule
  chunk_size: int
  proposals: tuple = ()
  notes: tuple = ()
  num_samples: int = 1
  is_linear: bool = True
  obstacle: str | None = None

  @property
  def terms(self) -> Terms | None:
    """How the derivative is taken apart, or None for passes."""
    return self.proposals[0].terms if self.proposals else None

  def colors_of(self, xs: Sequence, rank: int) -> sweep.Colors:
    """The colors of the parts of a state; see `sweep.Colors.of`."""
    colors = sweep.Colors.of(self.colors, xs, rank)
    return colors if self.is_linear else colors.with_signs(None)


def decide(
  problem: Problem, evaluation: Evaluation, request: Request
) -> Decision:
  """Decides how the diagonal of a function is computed.

  Args:
    problem: `Problem`.
    evaluation: `Evaluation` of it.
    request: `Request`.

  Returns:
    `Decision`.

  Raises:
    SampleMixingError: If one sample depends on another.
    ValueError: If the structure was asked for, and cannot be had; if a plan
      does not fit.
  """
  plan = request.plan
  reading = read(problem, evaluation, request)
  pattern, colors = _pattern(reading, request)
  notes = reading.notes + _cautions(reading, request)
  is_linear = reading.has_linear_gradients
  if request.mode == 'forward' and not _may_be_forward(reading, request):
    request = request._replace(mode='reverse')
  samples = reading.num_samples
  if samples == 0:  # There is nothing to take apart.
    reading = reading._replace(analysis=None)
  chunk_size = request.chunk_size if plan is None else plan.chunk_size
  dense = Decision(
    evaluation=evaluation,
    colors=None,
    pattern=None,
    mode=request.mode,
    schedule=request.schedule,
    chunk_size=chunk_size or 10,
    notes=notes,
    is_linear=is_linear,
    obstacle=_obstacle(evaluation, request, request.mode),
  )
  num_passes = reading.num_coordinates
  if pattern is not None:
    colors = color_diagonal(pattern).colors if colors is None else colors
    num_passes = sweep.num_colors(colors)
  elif reading.analysis is None or problem.kind == 'jacobian':
    return dense
  ways = [proposals.passes(num_passes)]
  planned = plan.how if plan is not None and plan.uses_terms else None
  if num_passes > 1 and is_linear and _asks_for_terms(request):
    reading, more, faults = _other_ways(
      reading, pattern, colors, num_passes, planned
    )
    ways += more
    notes += faults
    is_found = planned in {way.name for way in ways}
    if planned and not is_found and reading.pattern is not None:
      # What is seen here may have less structure than the plan allows for.
      pattern, colors = reading.pattern, color_diagonal(reading.pattern).colors
      num_passes = sweep.num_colors(colors)
      ways[0] = proposals.passes(num_passes)
  if pattern is None and len(ways) == 1:
    return dense
  ways.sort(key=lambda way: (way.name != planned, way.cost))
  num_samples = proposals.SAMPLES_IF_OPEN if samples is None else samples
  # A plan promises nothing of third derivatives.
  is_auto = request.schedule == 'auto'
  if planned and problem.order < 3 and is_auto and samples != 0:
    _compare_with_plan(plan, ways[0], num_samples)
  mode, schedule = request.mode, request.schedule
  if plan is not None:
    mode = plan.choose_mode(mode)
    schedule = plan.schedule if schedule == 'auto' else schedule
  if not is_linear and request.mode != 'forward':
    mode = 'reverse'
  if ways[0].terms is not None or problem.order == 3:
    mode = 'reverse'
    if ways[0].terms is None and schedule == 'auto':
      schedule = _schedule_of_third(evaluation, num_passes)
  elif schedule == 'auto':
    schedule = _schedule(reading, num_passes)
  obstacle = _obstacle(evaluation, request, mode)
  if schedule == 'pfor' and obstacle is not None and request.is_asked:
    # Else the first call would warn of it.
    schedule = 'while_loop'
    notes += (NOT_VECTORIZED.format(reason=f'the op {obstacle}'),)
  if ways[0].terms is not None:
    # Terms are ops of this one.
    evaluation = reading.evaluation
  if chunk_size is None:
    chunk_size = _chunk_size(evaluation, num_passes, request.memory_limit)
  return Decision(
    evaluation=evaluation,
    colors=colors,
    pattern=pattern,
    mode=mode,
    schedule=schedule,
    chunk_size=chunk_size,
    proposals=tuple(ways),
    notes=notes,
    num_samples=num_samples,
    is_linear=is_linear,
    obstacle=obstacle,
  )


def _pattern(
  reading: Reading, request: Request
) -> tuple[SparsityPattern | None, np.ndarray | None]:
  """The pattern that is followed, and the colors of the plan, if one fits."""
  plan, seen = request.plan, reading.pattern
  if plan is None:
    return (seen if request.pattern is None else request.pattern), None
  graph = reading.evaluation.graph
  if seen is not None:
    plan.check_pattern(seen)
  elif plan.needs_analysis(graph) and not plan.is_of(graph):
    warn(
      f'`plan` takes {_passes(plan.num_passes)}, but whether it fits cannot '
      'be seen from this function at these shapes; a pass runs for each '
      'coordinate instead. Plan again for these.',
      RuntimeWarning,
    )
    return None, None
  return plan.pattern, plan.colors


def _cautions(reading: Reading, request: Request) -> tuple:
  """Notes of what a caller should know of the numbers, who is warned of it."""
  is_planned = request.is_asked or request.plan is not None
  notes = ()
  if not reading.has_linear_gradients:
    notes += (_NOT_LINEAR,)
    if request.mode == 'forward' and not _may_be_forward(reading, request):
      notes += (_NOT_FORWARD,)
      if not request.is_asked:
        warn(f'{_NOT_LINEAR} {_NOT_FORWARD}', RuntimeWarning)
  held = held_constant(reading.problem, reading.evaluation.graph)
  if held is not None:
    notes += (held,)
    if request.plan is None:
      warn(held, RuntimeWarning)
  # A plan has notes.
  is_told = is_planned or request.validate or reading.problem.has_sample_shape
  if reading.may_mix and not is_told and reading.num_samples != 1:
    warn(_MAY_MIX, RuntimeWarning)
  return notes


def _may_be_forward(reading: Reading, request: Request) -> bool:
  """Whether the other mode has the same numbers, or is compared with it."""
  return reading.has_linear_gradients or request.validate


_NOT_LINEAR = (
  'A `tf.custom_gradient` is not seen to be linear in its cotangent, so that '
  'passes are neither transposed nor taken apart.'
)
_NOT_FORWARD = (
  'Reverse instead of forward mode: a gradient is not linear in its cotangent.'
)
NOT_VECTORIZED = (
  'pfor cannot vectorize {reason}: passes run in a while_loop, one at a time.'
)
_MAY_MIX = (
  'Whether `fn` mixes samples cannot be seen, for an op of it hides what its '
  'results depend on; samples are taken for independent, and if they are not, '
  'the diagonal is wrong. Pass `validate_args=True` to check that, or '
  '`sample_shape`, which says so.'
)


def _asks_for_terms(request: Request) -> bool:
  """Whether the derivative may be taken apart."""
  if request.mode == 'forward' or request.only_passes:
    return False
  if request.schedule != 'auto':
    return False
  return request.plan is None or request.plan.uses_terms


def _other_ways(
  reading: Reading,
  pattern: SparsityPattern | None,
  colors: np.ndarray | None,
  num_passes: int,
  planned: str | None,
) -> tuple[Reading, list[Proposal], tuple]:
  """What may be cheaper than passes; a fault in one way leaves the others.

  Args:
    reading: `Reading` that has an analysis, or of which nothing is proposed.
    pattern: `SparsityPattern`, or None.
    colors: int32 array, one per coordinate; None without a pattern.
    num_passes: Python int, what passes alone take.
    planned: The name of the way that a plan says; None without one.

  Returns:
    reading: `Reading` of the same function, to whose ops the proposals belong.
    ways: List of `Proposal`.
    notes: Tuple of sentences about ways that could not be looked for.
  """
  problem, notes, as_it_is = reading.problem, (), reading
  if reading.analysis is None:
    return reading, [], notes
  try:
    # Terms are ops of this graph, not of functions that it calls.
    reading = reading.simplified() or reading
  except (CannotSay, budget.PatternTooDenseError) as e:
    notes += (_NOT_SIMPLIFIED.format(reason=e),)
  except Exception as e:
    notes += (fault(e, 'Another way'),)
  found = []
  if problem.kind == 'hessian':
    try:
      found += proposals.by_sweeps(reading, pattern, num_passes, planned)
    except Exception as e:
      # A fault of ours: the other ways remain.
      notes += (fault(e, 'Another way'),)
  is_found = any(
    way.name == planned and way.terms.max_order >= problem.order
    for way in found
  )
  if colors is not None and not is_found:
    # What a plan says is done, whatever else would cost less here.
    costs = [] if planned else [num_passes, *(way.cost for way in found)]
    least = min(costs, default=math.inf)
    try:
      found += proposals.taken_apart(reading, colors, least)
      if problem.kind == 'jacobian':
        if not planned:
          least = min([least, *(way.cost for way in found)])
        found += proposals.of_potentials(
          as_it_is, pattern, colors, least, planned
        )
    except Exception as e:
      notes += (fault(e, 'Another way'),)
  ways = [way for way in found if way.terms.max_order >= problem.order]
  return reading, ways, notes


_NOT_SIMPLIFIED = (
  '`fn` calls a function that cannot be written out op by op, so that the '
  'derivative is not taken apart: {reason}.'
)


def _compare_with_plan(plan: Any, best: Proposal, num_samples: int) -> None:
  """Warns if what runs is not what the plan has promised, and costs more."""
  promised = plan.ways[0]
  if best.terms is None and best.cost <= promised.cost:
    return
  is_same = best.name == promised.name
  if is_same and (
    best.num_passes <= plan.num_passes or num_samples < plan.num_samples
  ):
    return
  warn(
    f'`plan` takes {_passes(plan.num_passes)}, {plan.how}, which cannot be '
    f'done with this function at these shapes; {best.num_passes} run instead '
    f'({best.name}). Plan again for these.',
    RuntimeWarning,
  )


def _passes(number: int) -> str:
  return f'{number} pass' if number == 1 else f'{number} passes'


def _schedule(reading: Reading, num_passes: int) -> Schedule:
  """The order in which the passes run."""
  low, high = _VECTORIZED_ALONE
  if (
    num_passes > 1
    and reading.num_samples == 1
    and low <= reading.num_coordinates <= high
    and reading.analysis is not None
    and reading.analysis.shares_by_vectorizing
  ):
    return 'pfor'
  return 'unrolled' if num_passes <= sweep.MAX_UNROLLED else 'pfor'


def _schedule_of_third(evaluation: Evaluation, num_passes: int) -> Schedule:
  """The order in which passes for third derivatives run."""
  is_few = 1 < num_passes <= sweep.MAX_UNROLLED
  is_long = len(evaluation.graph.ops) * num_passes > _MOST_OPS_OF_THIRD
  return 'while_loop' if is_few and is_long else 'auto'


def _obstacle(
  evaluation: Evaluation, request: Request, mode: Mode
) -> str | None:
  """What pfor cannot vectorize in passes of a mode, or None."""
  if mode == 'forward':
    # A gradient of a gradient.
    return evaluation.loop_type
  is_asked = request.schedule == 'pfor'
  found = evaluation.obstacle(is_asked)
  if found is None or is_asked or evaluation.obstacle(is_asked=True):
    return found
  return (
    f'{found} where XLA may compile it or a tape record it '
    "(`schedule='pfor'` if they do not)"
  )


def _chunk_size(
  evaluation: Evaluation, num_passes: int, memory_limit: int | None
) -> int:
  """How many passes fit into the memory limit."""
  if num_passes <= 1:
    return 1
  if memory_limit is None:
    device = 'GPU' if tf.config.list_physical_devices('GPU') else 'CPU'
    memory_limit = _MEMORY[device]
  sizes = [
    np.prod([d or 1 for d in t.shape.as_list()], dtype=float) * t.dtype.size
    for op in evaluation.graph.ops
    for t in op.outputs
    if t.shape.rank is not None and t.dtype.is_floating
  ]
  of_pass = max(1, int(_TENSORS_PER_PASS * sum(sizes)))
  return int(np.clip(memory_limit // of_pass, 1, num_passes))
