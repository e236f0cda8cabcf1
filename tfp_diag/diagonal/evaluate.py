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
"""From a problem to a diagonal: one way for all regimes.

Problem -> Evaluation (its Graph) -> Decision -> passes or terms -> diagonal
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_diag.diagonal import checks, graphs, linear_map, sweep
from tfp_diag.diagonal.blocks import finite_where_possible
from tfp_diag.diagonal.decide import Decision, decide
from tfp_diag.diagonal.gauss_newton import GaussNewtonPasses, diagonal_by_rows
from tfp_diag.diagonal.linear_map import Evaluation, Linear, LinearMap
from tfp_diag.diagonal.request import Request, Schedule
from tfp_diag.diagonal.terms import Call
from tfp_diag.diagonal.third_order import passes_of
from tfp_diag.internal import arguments, nest
from tfp_diag.internal.problem import GaussNewtonProblem, Problem
from tfp_diag.internal.warn import warn


@linear_map.again_with_tapes
def run(
  problem: Problem,
  key: tuple,
  body: Callable,
  extra: Sequence = (),
  extra_specs: Sequence | None = None,
  jit_compile: bool = False,
  accept: Callable | None = None,
) -> Any:
  """Evaluates the function of a problem, and calls `body` with the result.

  An eager call runs `body` as a compiled graph, which `graphs.call` remembers.
  While a graph is built, `body` adds its ops to that graph.

  Args:
    problem: `Problem`.
    key: Hashable: what decides, besides the problem, which ops `body` makes.
      Calls of equal keys and equal functions share a graph.
    body: Python callable, `(evaluation, *extra)` to a structure of Tensors.
    extra: List of Tensors.
    extra_specs: List of `tf.TensorSpec`s of `extra`. Default: their own.
    jit_compile: Python bool, whether an eager call is compiled with XLA.
    accept: See `graphs.call`.

  Returns:
    What `body` returns.
  """
  extra = [tf.convert_to_tensor(e) for e in extra]
  problem.check_values()
  if not tf.executing_eagerly():
    return body(evaluate(problem, problem.parts), *extra)
  count = 0 if problem.is_closure else len(problem.parts)
  parts = [tf.convert_to_tensor(p) for p in problem.parts[:count]]
  if extra_specs is None:
    extra_specs = [tf.TensorSpec(e.shape, e.dtype) for e in extra]
  specs = [*(tf.TensorSpec(p.shape, p.dtype) for p in parts), *extra_specs]

  def evaluated(*tensors):
    return evaluate(problem, list(tensors[:count]) or problem.parts)

  return graphs.call(
    (
      type(problem).__name__,
      nest.skeleton(problem.xs),
      problem.rank,
      problem.promised,
      *key,
    ),
    evaluated,
    lambda evaluation, *tensors: body(evaluation, *tensors[count:]),
    [*parts, *extra],
    specs,
    jit_compile,
    accept,
  )


def evaluate(problem: Problem, parts: Sequence) -> Evaluation:
  """Calls the function of a problem, in the graph that is being built."""

  def call(parts):
    if not problem.may_read_nothing:
      return problem.call(parts)
    result, variables = linear_map.and_what_it_reads(problem.call, parts)
    problem.check_read(variables)
    return result

  return linear_map.evaluate(
    call,
    problem.outputs,
    [
      p
      if isinstance(p, tf.Variable) and problem.is_closure
      else tf.convert_to_tensor(p)
      for p in parts
    ],
    problem.order,
  )


class Diagonal(NamedTuple):
  """What `run_diagonal` returns.

  Attributes:
    result: List of what the function returned; of one entry if that was neither
      a list nor a tuple.
    gradient: List of Tensors shaped as the parts; empty for a Jacobian.
    diag: List of Tensors shaped as the parts.
    third: List of Tensors shaped as the parts, the unmixed third derivatives;
      empty where they are not asked for.
    num_passes: How many passes ran for that: `int`, or scalar Tensor.
  """

  result: Any
  gradient: list
  diag: list
  third: list
  num_passes: Any


def run_diagonal(
  problem: Problem, request: Request, jit_compile: bool = False
) -> Diagonal:
  """The diagonal of the Jacobian, or of the Hessian, of a function.

  In eager mode a way that is cheaper than passes is compared with them once,
  when it is compiled, at a random coordinate of each sample.

  Args:
    problem: `Problem`.
    request: `Request`.
    jit_compile: Python bool, whether an eager call is compiled with XLA.

  Returns:
    `Diagonal`.
  """
  problem.check_values()
  if not tf.executing_eagerly():
    evaluation = evaluate(problem, problem.parts)
    found, _ = diagonal(problem, evaluation, request)
    return found._replace(result=_as_list(found.result))

  def body(evaluation, is_first):
    found, deviation = diagonal(problem, evaluation, request, is_first)
    return (_as_list(found.result), *found[1:]), deviation

  try:
    with checks.plain_errors():
      result = run(
        problem,
        ('diagonal', request),
        body,
        jit_compile=jit_compile,
        accept=lambda result: checks.is_small(result[1]),
      )
  except tf.errors.UnimplementedError as e:
    # A kernel has no such broadcast of one axis more, as of six: of `sqrtm`.
    if request.schedule != 'auto':
      raise
    warn(
      f'What was compiled cannot run ({arguments.reason(e)}); one pass at a '
      "time runs instead. Pass `schedule='while_loop'` to choose that "
      'yourself.',
      RuntimeWarning,
    )
    one_by_one = request._replace(schedule='while_loop')
    return run_diagonal(problem, one_by_one, jit_compile)
  if result is not None:
    return Diagonal(*result[0])
  warn(
    'A way that was found to be cheaper than passes differs from them by more '
    'than rounding usually explains; the passes run instead. If it does so in '
    'float64, too, this is a fault of tfp_diag: please report the function.',
    RuntimeWarning,
  )
  passes = request._replace(only_passes=True)
  return run_diagonal(problem, passes, jit_compile)


def _as_list(result: Any) -> list:
  return list(result) if isinstance(result, (list, tuple)) else [result]


def diagonal(
  problem: Problem,
  evaluation: Evaluation,
  request: Request,
  is_first: tf.Tensor | None = None,
) -> tuple:
  """As `run_diagonal`, for a function that has been evaluated.

  Args:
    problem: `Problem`.
    evaluation: `Evaluation` of it.
    request: `Request`.
    is_first: Scalar bool Tensor: whether to compare with passes.

  Returns:
    found: `Diagonal`.
    deviation: List of scalar Tensors, how far the comparison is off, in units
      of the largest entry; empty where there is nothing to compare.
  """
  decision = decide(problem, evaluation, request)
  evaluation = decision.evaluation
  gradient = []
  if problem.kind == 'hessian':
    gradient, derivative = evaluation.hessian(problem.check_gradient)
  else:
    derivative = evaluation.jacobian()
  rank, xs = problem.rank_of(evaluation.ys), evaluation.xs
  passes = passes_of(evaluation, derivative, problem.order)
  if isinstance(problem, GaussNewtonProblem):
    residuals, weights = problem.weighted(evaluation.result, xs)
    if not decision.is_linear:
      size = decision.chunk_size
      diag = diagonal_by_rows(
        derivative, residuals, weights, evaluation, rank, size
      )
      sizes = [r.shape[rank:].num_elements() for r in residuals]
      num_passes = None if None in sizes else sum(sizes)
      return Diagonal(evaluation.result, gradient, diag, [], num_passes), []
    passes = GaussNewtonPasses(derivative, residuals, weights, xs)
  diag, deviation = None, []
  if decision.terms is not None:
    num_passes = decision.terms.num_passes
    diag = by_terms(decision, derivative, problem)
    if diag is not None and decision.terms.may_leak:
      diag = _without_leaks(diag, decision, passes, problem)
  if diag is None:
    colors = decision.colors_of(xs, rank)
    num_passes = colors.num_colors
    if problem.kind == 'jacobian':
      evaluation.check_passes(num_passes)
    diag = _by_passes(decision, passes, problem, colors)
  elif is_first is not None:
    deviation = tf.cond(
      is_first,
      lambda: checks.deviation_at_one(diag, passes, evaluation, rank),
      lambda: [tf.zeros([], d.dtype) for d in diag],
    )
    # A caller who differentiates the diagonal does not go through the branch.
    deviation = [tf.stop_gradient(d) for d in deviation]
  if request.validate:
    checks.check_sample_shape(xs, problem.promised)
    checks.check(diag, passes, decision, xs, rank, request.plan)
  second, third = diag[: len(xs)], diag[len(xs) :]
  found = Diagonal(evaluation.result, gradient, second, third, num_passes)
  return found, deviation


def by_terms(
  decision: Decision, derivative: LinearMap, problem: Problem
) -> list | None:
  """The diagonal, or None, with a warning, if the passes have to do it.

  The one place where terms are evaluated.

  Args:
    decision: `Decision` that has terms.
    derivative: `LinearMap` in reverse mode, whose diagonal is asked for.
    problem: `Problem`; its order says which derivatives are asked for.

  Returns:
    List as `Terms.diagonal` returns it, or None.
  """
  terms, evaluation = decision.terms, decision.evaluation
  assert terms is not None
  call = Call(
    evaluation,
    derivative,
    evaluation.xs,
    problem.rank_of(evaluation.ys),
    decision.chunk_size,
    problem.order,
  )
  try:
    return terms.diagonal(call)
  except Exception as e:
    # An op may have a gradient that cannot be transposed: passes need none.
    warn(
      f'What was found to be cheaper than passes ({terms.how}) fails '
      f'({type(e).__name__}: {arguments.reason(e)}); ordinary '
      'passes run instead.',
      RuntimeWarning,
    )
    return None


def _by_passes(
  decision: Decision,
  derivative: Linear,
  problem: Problem,
  colors: sweep.Colors,
) -> list:

  def sweep_over(linear_map: Linear, schedule: Schedule = decision.schedule):
    return sweep.diagonal(
      linear_map,
      colors,
      decision.evaluation.xs,
      schedule,
      decision.chunk_size,
      decision.obstacle,
      max(problem.order - 1, 1),
    )

  if decision.mode != 'forward':
    return sweep_over(derivative)
  assert isinstance(derivative, LinearMap)
  diag = sweep_over(derivative.transposed())
  schedule: Schedule = 'unrolled' if _is_short(colors) else decision.schedule
  return finite_where_possible(
    diag, lambda: sweep_over(derivative, schedule), is_constant=False
  )


def _without_leaks(
  diag: list, decision: Decision, passes: Linear, problem: Problem
) -> list:
  """A diagonal by terms; where one is not finite, by passes.

  A loop, which is traced once.
  """
  evaluation = decision.evaluation
  colors = decision.colors_of(evaluation.xs, problem.rank_of(evaluation.ys))
  decision = decision._replace(
    mode='reverse', schedule='while_loop', chunk_size=1
  )
  return finite_where_possible(
    diag, lambda: _by_passes(decision, passes, problem, colors)
  )


def _is_short(colors: sweep.Colors) -> bool:
  """Whether passes are written out: XLA differentiates no loop in a branch."""
  return colors.is_static and colors.num_colors <= _MAX_IN_BRANCH


# More passes written out in a branch take too long to compile.
_MAX_IN_BRANCH = 40
