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

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.constant_hessian import ConstantHessian
from tfp_diag.diagonal.hessian_terms import HessianTerms
from tfp_diag.diagonal.jacobian_terms import JacobianTerms
from tfp_diag.diagonal.linear_map import Evaluation, gradient_graph
from tfp_diag.diagonal.squared_sweeps import SquaredSweeps
from tfp_diag.diagonal.terms import Terms
from tfp_diag.internal.problem import GaussNewtonProblem, Problem
from tfp_diag.sparsity import budget
from tfp_diag.sparsity.analysis import Analysis, analyze
from tfp_diag.sparsity.coloring import color_diagonal
from tfp_diag.sparsity.expansion import expand, expandable, inline
from tfp_diag.sparsity.graph import Graph, trace
from tfp_diag.sparsity.pattern import SparsityPattern
from tfp_diag.sparsity.registry import CannotSay, facts
from tfp_diag.sparsity.tape import Loop
from tfp_diag.sparsity.unique_paths import Sweep, Sweeps

__all__ = [
  'Decision',
  'Mode',
  'Proposal',
  'Request',
  'Schedule',
  'decide',
  'refuse_mixing',
]

Mode = Literal['auto', 'forward', 'reverse']
Schedule = sweep.Schedule

# The cost model, in passes: what one vector-Jacobian product of the derivative
# costs, for all samples. Measured with `python -m benchmarks.run`.
# A pass through the curved ops alone, one after the other.
_TERM_PASS = 1.5
# A row of the Jacobian of one value on the way. A pass adds up what leads to a
# normalizer again, the row does not.
_ROW = 0.95
# A row and a column for an element that is held, and a pass for what is left.
_HELD_PASS = 2.0
# A column of the matrix of a linear map, if a pass carries one per sample; so
# many samples are reckoned with at least, and so many if nobody knows.
_COLUMN = 1.0
_SAMPLES_AT_LEAST = 4
_SAMPLES_IF_OPEN = 32
# The tangents of all arguments of curved ops for one coordinate.
_TANGENT = 0.9
# What a product of matrices costs by itself, whoever fills them.
_PRODUCT = 0.5
# A reverse sweep with squared derivatives, with all that it needs; and a pass
# from a term to its frontier, for the work that lies between.
_SWEEP = 1.05
_VJP = 0.5
# A product with the Hessian by a joint frontier, likewise; and what sweeps may
# cost without a look for joint frontiers.
_PRODUCT_BEHIND = 1.0
_FEW_SWEEPS = 2.0
# With more passes than samples times this, samples do not share them.
_MAX_SHARED = 8
# Up to so many passes are written out; see `sweep`.
_FEW = sweep.MAX_UNROLLED
# Even where passes are few, so few coordinates are looked at op by op.
_SMALL = 64
# Where a value has more elements for each sample, to look for other ways beside
# a single sweep takes longer than they can save.
_LARGE = 100_000
# Of so many coordinates of a single sample even a few passes are vectorized: it
# fills two threads, and what the passes hold stays in the caches.
_VECTORIZED_ALONE = (800, 250_000)
# So many nonzeros a pattern may have that nobody has asked for.
_MAX_UNASKED = 4_000_000
# So many entries a table of paths may have.
_MOST_PATHS = 50_000_000
# What the passes of one chunk may hold at a time, unless the caller says else.
# More than the caches hold made dense Hessians on a CPU up to 2.5 times slower;
# a GPU is filled only by more.
_MEMORY = {'CPU': 1 << 26, 'GPU': 1 << 30}
# A pass holds the Tensors of the function, and as many of its derivatives.
_TENSORS_PER_PASS = 3


class Request(NamedTuple):
  """What a caller asks for.

  Attributes:
    mode: `Mode`.
    schedule: `Schedule`.
    chunk_size: Python int, how many passes run together; None: as many as fit
      into `memory_limit`.
    memory_limit: Number of bytes, or None.
    plan: `Plan` to follow, or None.
    validate: Python bool, whether to check at run time.
    pattern: `SparsityPattern` that the caller knows to hold, or None.
    is_asked: Whether the caller asked for the structure itself, and is to be
      told what stands in its way.
    only_passes: Whether the derivative may not be taken apart.
    is_dense: Whether a pass runs for each coordinate, whatever can be seen.
  """

  mode: Mode = 'auto'
  schedule: Schedule = 'auto'
  chunk_size: int | None = 10
  memory_limit: int | None = None
  plan: Any = None
  validate: bool = False
  pattern: SparsityPattern | None = None
  is_asked: bool = False
  only_passes: bool = False
  is_dense: bool = False


class Proposal(NamedTuple):
  """One way to a diagonal.

  Attributes:
    name: Python str.
    num_passes: Python int.
    cost: Python float, in passes.
    terms: `Terms`, or None for passes alone.
    note: A sentence for `str(plan)`, or None.
  """

  name: str
  num_passes: int
  cost: float
  terms: Terms | None = None
  note: str | None = None


class Decision(NamedTuple):
  """What is done.

  Attributes:
    evaluation: `Evaluation` that is differentiated: the one that was given, or
      the same function without calls of functions.
    colors: int32 array, one color per coordinate, or None: one each.
    pattern: `SparsityPattern`, or None where there is none.
    mode: 'forward' or 'reverse', or 'auto' where it is still to be tried.
    schedule: `Schedule`.
    chunk_size: Python int.
    proposals: Tuple of `Proposal`, the one that is followed first.
    notes: Tuple of sentences.
    num_samples: Python int: for how many samples passes are reckoned.
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

  @property
  def terms(self) -> Terms | None:
    """How the derivative is taken apart, or None for passes."""
    return self.proposals[0].terms if self.proposals else None


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
  rank = problem.rank_of(evaluation.ys)
  plan = request.plan
  retrace = _retrace(problem)
  analysis, seen, notes = _analysis(problem, evaluation, rank, request, retrace)
  chunk_size = request.chunk_size
  if plan is not None:
    chunk_size = plan.chunk_size
  pattern = request.pattern
  colors = None
  if plan is not None:
    pattern, colors = plan.pattern, plan.colors
    if seen is not None:
      plan.check_pattern(seen)
    elif plan.needs_analysis(evaluation.graph) and not plan.is_of(
      evaluation.graph
    ):
      pattern = colors = None
      warnings.warn(
        f'`plan` takes {_passes(plan.num_passes)}, but whether it fits cannot '
        'be seen from this function at these shapes; a pass runs for each '
        'coordinate instead. Plan again for these.',
        RuntimeWarning,
        stacklevel=2,
      )
  elif pattern is None:
    pattern = seen
  n = sum(x.shape[rank:].num_elements() or 0 for x in evaluation.xs)
  # A gradient that clips its cotangent, say, is no matrix: its transpose, and
  # what is made of pieces of it, are other numbers than those of a pass.
  is_linear = analysis is None or analysis.walked.tape.has_linear_gradients
  if not is_linear:
    notes += (_NOT_LINEAR,)
    # With `validate` the two modes are compared.
    if request.mode == 'forward' and not request.validate:
      notes += (_NOT_FORWARD,)
      if not request.is_asked:
        warnings.warn(
          f'{_NOT_LINEAR} {_NOT_FORWARD}', RuntimeWarning, stacklevel=2
        )
      request = request._replace(mode='reverse')
  is_told = problem.has_sample_shape or request.validate
  # A plan has notes.
  is_told |= request.is_asked or plan is not None
  is_curvature = problem.kind == 'hessian' and not isinstance(
    problem, GaussNewtonProblem
  )
  if is_curvature and analysis is not None:
    held = _held(analysis)
    if held is not None:
      notes += (held,)
      if not request.is_asked and plan is None:
        warnings.warn(held, RuntimeWarning, stacklevel=2)
  samples = evaluation.xs[0].shape[:rank].num_elements()
  may_mix = _NOT_SEEN in notes if analysis is None else analysis.may_mix
  if may_mix and not is_told and samples != 1:
    warnings.warn(_MAY_MIX, RuntimeWarning, stacklevel=2)
  if analysis is not None and not analysis.walked.num_samples:
    # Of no sample there is nothing to take apart.
    analysis = None
  dense = Decision(
    evaluation,
    None,
    None,
    request.mode,
    request.schedule,
    chunk_size or 10,
    notes=notes,
  )
  if pattern is None and (analysis is None or problem.kind == 'jacobian'):
    return dense
  if colors is None and pattern is not None:
    colors = color_diagonal(pattern).colors
  num_passes = n if colors is None else sweep.num_colors(colors)
  proposals = [Proposal('passes', num_passes, float(num_passes))]
  asks_for_terms = (
    request.mode in ('auto', 'reverse') and not request.only_passes
  )
  asks_for_terms &= is_linear
  if plan is not None and request.schedule == 'auto':
    asks_for_terms &= plan.uses_terms
  elif request.schedule != 'auto':
    asks_for_terms = False
  whole = evaluation
  planned = plan.how if plan is not None and plan.uses_terms else None
  if analysis is not None and asks_for_terms and num_passes > 1:
    try:
      inlined = _inlined(problem, evaluation, retrace)
    except (CannotSay, budget.PatternTooDenseError) as e:
      inlined, notes = None, (*notes, _NOT_INLINED.format(reason=e))
    except Exception as e:
      inlined, notes = None, (*notes, _fault(e, 'Another way'))
    # Terms are ops of this graph, not of functions that it calls.
    analysis, evaluation, retrace = inlined or (analysis, evaluation, retrace)
    if problem.kind == 'hessian' and num_passes > _SWEEP:
      try:
        proposals += _swept(
          problem, analysis, evaluation, pattern, retrace, num_passes
        )
      except Exception as e:
        # A fault of ours: the other ways remain.
        notes += (_fault(e, 'Another way'),)
    least = min(p.cost for p in proposals)
    is_found = any(
      p.name == planned and p.terms.max_order >= problem.order
      for p in proposals
      if p.terms is not None
    )
    if pattern is not None and colors is not None and not is_found:
      try:
        proposals += _proposals(
          problem, analysis, evaluation, colors, samples, retrace, least
        )
      except Exception as e:
        notes += (_fault(e, 'Another way'),)
    proposals = [
      p
      for p in proposals
      if p.terms is None or p.terms.max_order >= problem.order
    ]
  if pattern is None and len(proposals) == 1:
    return dense
  proposals.sort(key=lambda p: (p.name != planned, p.cost))
  num_samples = _SAMPLES_IF_OPEN if samples is None else samples
  # A plan promises nothing of third derivatives.
  is_promised = plan is not None and plan.uses_terms and problem.order < 3
  if is_promised and request.schedule == 'auto':
    _compare_with_plan(plan, proposals[0], num_samples)
  mode, schedule = request.mode, request.schedule
  if plan is not None:
    mode = plan.choose_mode(mode)
    schedule = plan.schedule if schedule == 'auto' else schedule
  if not is_linear and request.mode != 'forward':
    mode = 'reverse'
  if proposals[0].terms is not None or problem.order == 3:
    mode = 'reverse'
  elif schedule == 'auto':
    schedule = _schedule(analysis, num_passes, n, samples)
  if proposals[0].terms is None:
    evaluation = whole
  if chunk_size is None:
    chunk_size = _chunk_size(evaluation, num_passes, request.memory_limit)
  return Decision(
    evaluation=evaluation,
    colors=colors,
    pattern=pattern,
    mode=mode,
    schedule=schedule,
    chunk_size=chunk_size,
    proposals=tuple(proposals),
    notes=notes,
    num_samples=num_samples,
  )


_NOT_LINEAR = (
  'A `tf.custom_gradient` is not seen to be linear in its cotangent, so that '
  'passes are neither transposed nor taken apart.'
)
_NOT_SEEN = (
  'What `fn` does with any number of samples cannot be seen: a pass runs for '
  'each coordinate.'
)
_MAY_MIX = (
  'Whether `fn` mixes samples cannot be seen, for an op of it hides what its '
  'results depend on; samples are taken for independent, and if they are not, '
  'the diagonal is wrong. Pass `validate_args=True` to check that, or '
  '`sample_shape`, which says so.'
)
_NOT_INLINED = (
  '`fn` calls a function that cannot be written out op by op, so that the '
  'derivative is not taken apart: {reason}.'
)
_NOT_FORWARD = (
  'Reverse instead of forward mode: a gradient is not linear in its cotangent.'
)


def refuse_mixing(problem: Problem, graph: Graph | None = None) -> None:
  """Raises if a function is seen to make one sample depend on another.

  What cannot be read is given the benefit of the doubt.

  Args:
    problem: `Problem`.
    graph: `Graph` of it; None to call the function aside.

  Raises:
    SampleMixingError: If samples mix; names the op where they first do.
  """
  if graph is None:
    graph = trace(problem.call, problem.outputs, problem.parts)
  rank = problem.rank_of(graph.ys)
  if rank:
    with contextlib.suppress(budget.UnknownShapeError):
      analyze(graph, rank, _retrace(problem))


def _compare_with_plan(plan: Any, best: Proposal, num_samples: int) -> None:
  """Warns if what runs is not what the plan has promised."""
  is_same = best.name == plan.ways[0].name
  if is_same and (
    best.num_passes <= plan.num_passes or num_samples < plan.num_samples
  ):
    return
  warnings.warn(
    f'`plan` takes {_passes(plan.num_passes)}, {plan.how}, which cannot be '
    f'done with this function at these shapes; {best.num_passes} run instead '
    f'({best.name}). Plan again for these.',
    RuntimeWarning,
    stacklevel=2,
  )


def _analysis(
  problem: Problem,
  evaluation: Evaluation,
  rank: int,
  request: Request,
  retrace: Callable | None,
) -> tuple[Analysis | None, SparsityPattern | None, tuple]:
  """What the graph at hand is seen to be, its pattern, and notes."""
  plan, graph = request.plan, evaluation.graph
  is_hessian = problem.kind == 'hessian'
  if plan is not None and not plan.needs_analysis(graph):
    return None, None, ()
  if request.pattern is not None or request.is_dense:
    return None, None, ()
  # The weights of a network have little structure, and are very many.
  is_planned = request.is_asked or plan is not None
  has_pattern = is_planned or not graph.has_variables
  if not has_pattern and not is_hessian:
    return None, None, ()
  n = sum(x.shape[rank:].num_elements() or 0 for x in evaluation.xs)
  limit = budget.DEFAULT if is_planned else max(_MAX_UNASKED, 32 * n)
  analysis = pattern = None
  notes = ()
  try:
    with budget.at_most(limit):
      analysis = analyze(graph, rank, retrace, is_hessian)
      linear = problem.linear_ops(evaluation.result)
      if analysis is not None and linear:
        analysis = analysis.linear_up_to(linear)
      is_same = plan is not None and plan.is_of(graph)
      if analysis is not None and has_pattern and not is_same:
        pattern = analysis.pattern
  except budget.UnknownShapeError:
    if request.is_asked:
      raise
    return None, None, (_NOT_SEEN,)
  except budget.PatternTooDenseError as e:
    if request.is_asked:
      raise
    if plan is not None:
      raise ValueError(
        '`plan` was made for another function: the derivative of this one has '
        f'too many entries for it. {e} Plan again.'
      ) from e
    notes = (str(e),)
  except (ValueError, tf.errors.OpError):
    # Mixed samples, above all: a refusal.
    raise
  except Exception as e:
    # A fault of the analysis must not cost the derivative.
    if request.is_asked:
      raise
    return None, None, (_fault(e, 'A pass for each coordinate'),)
  if analysis is None and request.is_asked:
    raise budget.NoStructureError(
      '`fn` does not do the same with every number of samples, as far as can '
      'be seen: a size, an index or a branch is computed from that number. '
      'Pass `xs` of a static and smaller sample shape.'
    )
  if analysis is None:
    notes += (_NOT_SEEN,)
  return analysis, pattern, notes


def _held(analysis: Analysis) -> str | None:
  """A note of what TensorFlow wrongly holds constant in second derivatives."""
  for step in analysis.walked.tape.steps:
    held = None if isinstance(step, Loop) else facts(step.op_type).held
    if held and step.op is not None and (found := held(step.op)):
      what, instead = found
      return (
        f'TensorFlow holds {what} constant (op {step.op_name!r}): the second '
        'derivatives are those of TensorFlow, and lack what depends on it. '
        f'{instead} has the exact ones.'
      )
  return None


def _passes(number: int) -> str:
  return f'{number} pass' if number == 1 else f'{number} passes'


def _fault(error: Exception, instead: str) -> str:
  """Warns of an error that is not the user's, and returns a note."""
  note = f'The structure could not be read ({type(error).__name__}: {error}).'
  warnings.warn(
    f'{note} {instead} runs instead. This is a fault of tfp_diag: please '
    'report the function.',
    RuntimeWarning,
    stacklevel=2,
  )
  return note


def _retrace(problem: Problem) -> Callable | None:
  """Calls the function once more, on parts of other shapes, or None."""
  if problem.fn is None or problem.is_closure:
    return None
  known = {}

  def retrace(shapes):
    key = tuple(shapes)
    if key not in known:
      known[key] = trace(problem.call, problem.outputs, problem.parts, shapes)
    return known[key]

  return retrace


def _proposals(
  problem: Problem,
  analysis: Analysis,
  evaluation: Evaluation,
  colors: np.ndarray,
  samples: int | None,
  retrace: Callable | None,
  least: float,
) -> list[Proposal]:
  """The ways that take the derivative apart, where others cost so much."""
  # A column costs less than a pass, as if there were a few samples at least.
  columns = max(samples or _SAMPLES_IF_OPEN, _SAMPLES_AT_LEAST)
  found = _around_cuts(problem, analysis, evaluation, columns, retrace)
  k = sweep.num_colors(colors)
  if samples and k <= _MAX_SHARED * samples:
    if _is_quadratic(problem, analysis, evaluation, retrace):
      terms = ConstantHessian(colors, samples)
      found.append(
        Proposal(
          'once for all samples',
          terms.num_passes,
          float(terms.num_passes),
          terms,
          terms.note,
        )
      )
  if least <= _SWEEP and analysis.num_elements > _LARGE:
    return found
  is_few = sweep.num_colors(colors) <= _FEW
  if is_few and colors.size > _SMALL and not analysis.has_curved_sums:
    return found
  curved_ops, pattern = analysis.curvature
  if curved_ops is None:
    return found
  own = color_diagonal(pattern).colors
  terms = HessianTerms(curved_ops, own, columns)
  found.append(_op_by_op(terms, 'op by op'))
  if terms.is_by_coordinate:
    tangents = HessianTerms(curved_ops.all_as_rest(), own, columns)
    found.append(_op_by_op(tangents, 'by tangents'))
  return found


def _is_quadratic(
  problem: Problem,
  analysis: Analysis,
  evaluation: Evaluation,
  retrace: Callable | None,
) -> bool:
  """Whether the Hessian is seen to be a constant, the same for all samples."""
  if analysis.is_quadratic:
    return True
  if (
    evaluation.graph.has_variables
    or problem.linear_ops(evaluation.result)
    or not analysis.has_own_gradient_alone
  ):
    return False
  # What a custom gradient does is seen where it is called: in the gradient.
  rank = problem.rank_of(evaluation.ys)
  more = retrace and (lambda shapes: gradient_graph(retrace(shapes)))
  try:
    found = analyze(gradient_graph(evaluation.graph), rank, more)
  except (LookupError, ValueError):
    # Derivatives that TensorFlow does not have, or entries that are too many.
    return False
  return found is not None and found.is_affine


def _swept(
  problem: Problem,
  analysis: Analysis,
  evaluation: Evaluation,
  pattern: SparsityPattern | None,
  retrace: Callable | None,
  num_passes: int,
) -> list[Proposal]:
  """Reverse sweeps with squared derivatives, and passes for the rest."""
  written_out = _written_out(problem, analysis, evaluation, retrace)
  # What a fused normalizer couples is followed through its parts.
  analysis, evaluation = written_out or (analysis, evaluation)
  found = []
  with budget.at_most(_MOST_PATHS):
    for sweeps in analysis.sweeps(num_passes):
      found += _sweeps(problem, sweeps, evaluation, pattern)
      if found and min(p.cost for p in found) < _FEW_SWEEPS:
        break
  return sorted(found, key=lambda p: p.cost)[:1]


def _sweeps(
  problem: Problem,
  sweeps: Sweeps,
  evaluation: Evaluation,
  pattern: SparsityPattern | None,
) -> list[Proposal]:
  """Those of the sweeps that cost less than passes would."""
  kept = [s for s in sweeps.sweeps if _cost_of_sweep(s) < s.coordinates.sum()]
  if problem.order == 3:
    # A frontier says nothing about third derivatives.
    kept = [s for s in kept if not s.frontiers and not s.joints]
  sweeps = sweeps.only(kept).joined()
  if not kept:
    return []
  left = np.flatnonzero(sweeps.left_over)
  colors = np.full(sweeps.left_over.size, -1, np.int32)
  colors[left] = np.arange(left.size)
  if pattern is not None:
    colors[left] = color_diagonal(pattern.matrix[left][:, left]).colors
  terms = SquaredSweeps(sweeps, colors, evaluation)
  cost = sum(map(_cost_of_sweep, sweeps.sweeps)) + sweep.num_colors(colors)
  return [Proposal('squared sweeps', terms.num_passes, cost, terms, terms.note)]


def _cost_of_sweep(one: Sweep) -> float:
  links = [link for frontier in one.frontiers for link in frontier.links]
  return (
    _SWEEP
    + sum(
      (2 if link.is_by_rows else 3) * _VJP * link.num_passes * link.work
      for link in links
    )
    + sum(
      _PRODUCT_BEHIND * joint.num_passes * joint.work for joint in one.joints
    )
  )


def _op_by_op(terms: HessianTerms, name: str) -> Proposal:
  ops = terms.found
  cost = _ROW * ops.num_rows
  if ops.rest:
    each = _TANGENT if terms.is_by_coordinate else _TERM_PASS
    # Rows leave few colors, and the passes over these are ordinary ones.
    cost += sweep.num_colors(terms.colors) * (1.0 if ops.few else each)
  if ops.fixed:
    cost += _PRODUCT + _COLUMN * (terms.colors.size / terms.num_samples) * 0.25
    if terms.is_one_product:
      cost = min(cost, 0.9)
  return Proposal(name, terms.num_passes, cost, terms, terms.note)


def _around_cuts(
  problem: Problem,
  analysis: Analysis,
  evaluation: Evaluation,
  columns: int,
  retrace: Callable | None,
) -> list[Proposal]:
  if problem.kind == 'hessian':
    return []
  written_out = _written_out(problem, analysis, evaluation, retrace)
  # With normalizers written out they can be held.
  analysis, expanded = written_out or (analysis, None)
  found = []
  for cuts, pattern in analysis.cuts():
    colors = color_diagonal(pattern).colors
    terms = JacobianTerms(cuts, colors, columns, expanded)
    cost = _HELD_PASS * terms.num_passes
    found.append(
      Proposal('around cuts', terms.num_passes, cost, terms, terms.note)
    )
  return found


def _inlined(
  problem: Problem, evaluation: Evaluation, retrace: Callable | None
) -> tuple[Analysis, Evaluation, Callable | None] | None:
  """The same function without calls of functions; None if it has none."""
  inlined = evaluation.inlined()
  if inlined is None:
    return None

  def retrace_inlined(shapes):
    assert retrace is not None
    graph = retrace(shapes)
    found = inline(graph)
    return graph if found is None else found[0]

  more = None if retrace is None else functools.cache(retrace_inlined)
  rank = problem.rank_of(inlined.ys)
  found = analyze(inlined.graph, rank, more, problem.kind == 'hessian')
  if found is None:
    return None
  linear = problem.linear_ops(inlined.result)
  found = found.linear_up_to(linear) if linear else found
  return found, inlined, more


def _written_out(
  problem: Problem,
  analysis: Analysis,
  evaluation: Evaluation,
  retrace: Callable | None,
) -> tuple[Analysis, Evaluation] | None:
  """The same function, with more ops in place of some, or None."""
  places = expandable(analysis.walked, evaluation.graph)
  if not places or problem.linear_ops(evaluation.result):
    return None
  try:
    expanded = evaluation.written_out(places)
    more = retrace and (lambda shapes: expand(retrace(shapes), places))
    rank = problem.rank_of(evaluation.ys)
    is_hessian = problem.kind == 'hessian'
    found = analyze(expanded.graph, rank, more, is_hessian)
  except CannotSay:
    return None
  return found and (found, expanded)


def _schedule(
  analysis: Analysis | None, num_passes: int, size: int, samples: int | None
) -> Schedule:
  """The order in which the passes run over so many coordinates."""
  low, high = _VECTORIZED_ALONE
  if (
    num_passes > 1
    and samples == 1
    and low <= size <= high
    and analysis is not None
    and analysis.shares_by_vectorizing
  ):
    return 'pfor'
  return 'unrolled' if num_passes <= _FEW else 'pfor'


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
