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
"""What can be read from the graph that is differentiated."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfp_diag.diagonal.linear_map import (
  Evaluation,
  gradient_graph,
  under_tapes,
)
from tfp_diag.diagonal.request import Request
from tfp_diag.internal.problem import GaussNewtonProblem, Problem
from tfp_diag.internal.warn import warn
from tfp_diag.sparsity import budget
from tfp_diag.sparsity.analysis import Analysis, analyze
from tfp_diag.sparsity.expansion import (
  expand,
  expandable,
  needed_ops,
  simplify,
)
from tfp_diag.sparsity.graph import (
  Graph,
  function_graph,
  function_names,
  has_own_gradient,
  trace,
)
from tfp_diag.sparsity.pattern import SparsityPattern
from tfp_diag.sparsity.registry import CannotSay, facts

# Of ops without a derivative, such as `tf.stop_gradient`; see `OpFacts`.
_STEPS = 'z'
# So many nonzeros a pattern may have that nobody has asked for.
_MAX_UNASKED = 4_000_000


class Reading(NamedTuple):
  """A function that has been evaluated, and what its graph is seen to be.

  Attributes:
    problem: `Problem`.
    evaluation: `Evaluation` of it.
    retrace: Callable, the `Graph` of the function on parts of other shapes; or
      None.
    analysis: `Analysis`, or None if nothing can be said.
    pattern: `SparsityPattern` of the graph, or None where it was not asked for
      or has too many entries.
    notes: Tuple of sentences about what could not be read.
  """

  problem: Problem
  evaluation: Evaluation
  retrace: Callable | None
  analysis: Analysis | None = None
  pattern: SparsityPattern | None = None
  notes: tuple = ()

  @property
  def rank(self) -> int:
    """The number of sample dimensions."""
    return self.problem.rank_of(self.evaluation.ys)

  @property
  def num_samples(self) -> int | None:
    """How many samples there are; None if it is not known."""
    return self.evaluation.xs[0].shape[: self.rank].num_elements()

  @property
  def num_coordinates(self) -> int:
    """The coordinates of one sample."""
    rank = self.rank
    return sum(x.shape[rank:].num_elements() or 0 for x in self.evaluation.xs)

  @property
  def may_mix(self) -> bool:
    """Whether samples are independent only if an unknown op keeps them so."""
    if self.analysis is None:
      return _NOT_SEEN in self.notes
    return self.analysis.may_mix

  @property
  def has_linear_gradients(self) -> bool:
    """Whether all gradients are seen to be linear in their cotangents.

    One that clips its cotangent, say, is no matrix: its transpose, and what is
    made of pieces of it, are other numbers than those of a pass.
    """
    return _has_linear_gradients(self.evaluation.graph, self.analysis)

  @property
  def is_quadratic(self) -> bool:
    """Whether the Hessian is seen to be one constant for all samples."""
    problem, graph, retrace = self.problem, self.evaluation.graph, self.retrace
    assert self.analysis is not None
    if self.analysis.is_quadratic:
      return True
    if (
      graph.has_variables
      or problem.linear_ops(self.evaluation.result)
      or not self.analysis.has_own_gradient_alone
    ):
      return False
    # What a custom gradient does is seen where it is called: in the gradient.
    more = retrace and (lambda shapes: gradient_graph(retrace(shapes)))
    try:
      found = analyze(gradient_graph(graph), self.rank, more)
    except (LookupError, ValueError):
      # Derivatives that TensorFlow does not have, or too many entries.
      return False
    return found is not None and found.is_affine

  def simplified(self) -> 'Reading | None':
    """The same function without calls of functions and equal ops, or None.

    None if it has none, or if nothing can be said about it without them.

    Raises:
      CannotSay: If an op of them cannot be repeated.
      PatternTooDenseError: If the pattern has too many entries.
    """
    simplified, retrace = self.evaluation.simplified(), self.retrace
    if simplified is None:
      return None

    @functools.cache
    def retrace_simplified(shapes):
      assert retrace is not None
      graph = retrace(shapes)
      found = simplify(graph)
      return graph if found is None else found[0]

    more = retrace and (lambda shapes: retrace_simplified(tuple(shapes)))
    found = analyze(
      simplified.graph, self.rank, more, self.problem.kind == 'hessian'
    )
    if found is None:
      return None
    linear = self.problem.linear_ops(simplified.result)
    found = found.linear_up_to(linear) if linear else found
    return self._replace(evaluation=simplified, analysis=found, retrace=more)

  def written_out(self) -> 'Reading | None':
    """The same function, with more ops in place of some, or None.

    What a fused normalizer couples can be followed through its parts, and so
    can what meets in a sum of products.
    """
    assert self.analysis is not None
    walked, graph = self.analysis.walked, self.evaluation.graph
    if self.problem.linear_ops(self.evaluation.result):
      return None
    normalizers = expandable(walked, graph)
    places = expandable(walked, graph, self.analysis.meeting)
    found = self._with_more(places)
    if found is None and normalizers != places:
      # An op after such a sum may be one that cannot be repeated.
      found = self._with_more(normalizers)
    return found

  def _with_more(self, places: Sequence) -> 'Reading | None':
    """The same function with more ops in place of those at some places."""
    evaluation, retrace = self.evaluation, self.retrace
    if not places:
      return None
    try:
      expanded = evaluation.written_out(places)
      more = retrace and (lambda shapes: expand(retrace(shapes), places))
      is_hessian = self.problem.kind == 'hessian'
      found = analyze(expanded.graph, self.rank, more, is_hessian)
    except CannotSay:
      return None
    return found and self._replace(evaluation=expanded, analysis=found)


def read(problem: Problem, evaluation: Evaluation, request: Request) -> Reading:
  """Reads the graph of a function, as far as the request asks for it.

  Args:
    problem: `Problem`.
    evaluation: `Evaluation` of it.
    request: `Request`.

  Returns:
    `Reading`.

  Raises:
    SampleMixingError: If one sample depends on another.
    ValueError: If the structure was asked for, and cannot be had; if a plan is
      of a function with less structure.
  """
  plan, graph = request.plan, evaluation.graph
  is_hessian = problem.kind == 'hessian'
  retrace = _retrace(problem, len(evaluation.tapes))
  reading = Reading(problem, evaluation, retrace)
  if plan is not None and not plan.needs_analysis(graph):
    return reading
  if request.pattern is not None or request.is_dense:
    return reading
  # The weights of a network have little structure, and are very many.
  is_planned = request.is_asked or plan is not None
  has_pattern = is_planned or not graph.has_variables
  if not has_pattern and not is_hessian:
    return reading
  limit = max(_MAX_UNASKED, 32 * reading.num_coordinates)
  analysis = pattern = None
  notes = ()
  try:
    with budget.at_most(budget.DEFAULT if is_planned else limit):
      analysis = analyze(graph, reading.rank, reading.retrace, is_hessian)
      linear = problem.linear_ops(evaluation.result)
      if analysis is not None and linear:
        analysis = analysis.linear_up_to(linear)
      is_same = plan is not None and plan.is_of(graph)
      if analysis is not None and has_pattern and not is_same:
        pattern = analysis.pattern
  except budget.UnknownShapeError:
    if request.is_asked:
      raise
    return reading._replace(notes=(_NOT_SEEN,))
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
    return reading._replace(notes=(fault(e, 'A pass for each coordinate'),))
  if analysis is None and request.is_asked:
    raise budget.NoStructureError(
      '`fn` does not do the same with every number of samples, as far as can '
      'be seen: a size, an index or a branch is computed from that number. '
      'Pass `xs` of a static and smaller sample shape.'
    )
  if analysis is None:
    notes += (_NOT_SEEN,)
  return reading._replace(analysis=analysis, pattern=pattern, notes=notes)


NOT_LINEAR_PRODUCT = (
  'A `tf.custom_gradient` in `fn` is not seen to be linear in its cotangent: '
  'what its passes give for other vectors than unit vectors is no product with '
  'the matrix that has their rows.'
)
_NOT_SEEN = (
  'What `fn` does with any number of samples cannot be seen: a pass runs for '
  'each coordinate.'
)


def fault(error: Exception, instead: str) -> str:
  """Warns of an error that is not the user's, and returns a note."""
  note = f'The structure could not be read ({type(error).__name__}: {error}).'
  warn(
    f'{note} {instead} runs instead. This is a fault of tfp_diag: please '
    'report the function.',
    RuntimeWarning,
  )
  return note


def _has_linear_gradients(graph: Graph, analysis: Analysis | None) -> bool:
  if analysis is not None:
    return analysis.walked.tape.has_linear_gradients
  return not any(has_own_gradient(op) for op, _ in _ops_between(graph))


def has_linear_gradients(problem: Problem, graph: Graph) -> bool:
  """As `Reading.has_linear_gradients`, where nothing else is read."""
  if _has_linear_gradients(graph, None):
    return True
  try:
    analysis = analyze(graph, problem.rank_of(graph.ys), _retrace(problem))
  except (budget.UnknownShapeError, budget.PatternTooDenseError):
    return False
  except (ValueError, tf.errors.OpError):
    raise
  except Exception as e:
    fault(e, 'Reverse mode')
    return False
  return analysis is not None and _has_linear_gradients(graph, analysis)


def held_constant(problem: Problem, graph: Graph) -> str | None:
  """A note of what TensorFlow holds constant in second derivatives, or None."""
  if problem.kind != 'hessian' or isinstance(problem, GaussNewtonProblem):
    return None
  for op, takes in _ops_between(graph):
    held = facts(op.type).held
    if held and (found := held(op, takes)):
      what, instead = found
      return (
        f'TensorFlow holds {what} constant (op {op.name!r}): the second '
        'derivatives are those of TensorFlow, and lack what depends on it. '
        f'{instead} has the exact ones.'
      )
  return None


def _ops_between(graph: Graph) -> Iterator[tuple]:
  """The ops between xs and ys, also those of functions that are called.

  With each goes a list of bools: which of its inputs depend on xs; None if it
  is not known.
  """
  needed = needed_ops(graph.ops, graph.ys)
  reached = None
  if not graph.has_variables:  # They are read anywhere.
    reached = {x.ref() for x in graph.xs}
  ops = [op for op in graph.ops if op in needed]
  return _dependent_ops(graph.graph, ops, reached)


def _dependent_ops(
  graph: tf.Graph, ops: Sequence, reached: set | None
) -> Iterator[tuple]:
  """Ops that depend on some Tensors; with None, all ops that take any."""
  for op in ops:
    takes = [reached is None or x.ref() in reached for x in op.inputs]
    if not any(takes):
      continue
    yield op, takes if reached is not None else None
    if reached is not None and facts(op.type).elementwise != _STEPS:
      reached.update(
        y.ref()
        for y in op.outputs
        if not (y.dtype.is_integer or y.dtype.is_bool)
      )
    for name in function_names(op):
      body = function_graph(graph, name)
      inner = None
      if reached is not None and facts(op.type).is_call:
        inner = {x.ref() for x, is_taken in zip(body.inputs, takes) if is_taken}
      yield from _dependent_ops(body, body.get_operations(), inner)


def caution_of_whole(problem: Problem, graph: Graph) -> bool:
  """Refuses or warns where a matrix is not what its caller takes it for.

  Args:
    problem: `Problem`.
    graph: `Graph` of it.

  Returns:
    As `has_linear_gradients`: else it is no matrix, but a collection of rows.

  Raises:
    SampleMixingError: If samples mix; names the op where they first do.
  """
  refuse_mixing(problem, graph)
  held = held_constant(problem, graph)
  if held is not None:
    warn(held, RuntimeWarning)
  return has_linear_gradients(problem, graph)


# Graphs that were not refused, by their digests. A sampler asks for each run.
_unmixed: collections.OrderedDict = collections.OrderedDict()
_MOST_UNMIXED = 1000


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
    graph = dataclasses.replace(graph, depth=problem.order)
  rank, retrace = problem.rank_of(graph.ys), _retrace(problem)
  if not rank:
    return
  key = rank, retrace is None, graph.digest.key
  if key in _unmixed:
    return
  try:
    analyze(graph, rank, retrace)
  except budget.UnknownShapeError:
    pass
  except (ValueError, tf.errors.OpError):
    raise
  except Exception as e:
    fault(e, 'A function of which it is not known whether it mixes samples')
    return
  # Else other constants may be indices that mix, or other sizes.
  if not graph.reads.seen and all(x.shape.is_fully_defined() for x in graph.xs):
    _unmixed[key] = None
    while len(_unmixed) > _MOST_UNMIXED:
      _unmixed.popitem(last=False)


def _retrace(problem: Problem, num_tapes: int = 0) -> Callable | None:
  """Calls the function once more, on parts of other shapes, or None."""
  if problem.fn is None or problem.is_closure:
    return None
  known = {}
  call = under_tapes(problem.call, num_tapes)

  def retrace(shapes):
    key = tuple(shapes)
    if key not in known:
      known[key] = trace(call, problem.outputs, problem.parts, shapes)
    return known[key]

  return retrace
