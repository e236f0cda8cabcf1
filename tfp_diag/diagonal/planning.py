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
"""Plans: a decision, tried once, as a value."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import checks, evaluate, graphs, sweep
from tfp_diag.diagonal.decide import NOT_VECTORIZED, decide
from tfp_diag.diagonal.linear_map import (
  LinearMap,
  again_with_tapes,
  without_xla,
)
from tfp_diag.diagonal.request import Mode, Request
from tfp_diag.internal import arguments
from tfp_diag.internal.problem import Problem
from tfp_diag.sparsity.walk import known_sample_shape

# A function of so many ops may be a loop that Python has written out.
_MOST_OPS_OF_FORWARD = 250


class Trial:
  """A function, traced once, with what was decided about it.

  Attributes:
    evaluation: `Evaluation`.
    decision: `Decision`.
    rank: Python int, the number of sample dimensions.
    notes: List of sentences.
  """

  def __init__(self, problem: Problem, request: Request) -> None:
    self.notes = []
    self._problem = problem
    self._request = request

  def trace(self, *tensors: Any) -> Any:
    """Decides, and returns what can be compared where there are values."""
    problem = self._problem
    self.evaluation = evaluate.evaluate(problem, list(tensors) or problem.parts)
    self.rank = problem.rank_of(self.evaluation.ys)
    decision = decide(problem, self.evaluation, self._request)
    evaluation = decision.evaluation
    self.notes += decision.notes
    self.decision = decision
    if problem.kind == 'hessian':
      _, derivative = evaluation.hessian()
    else:
      derivative = evaluation.jacobian()
    if decision.terms is not None:
      diag = evaluate.by_terms(decision, derivative, problem)
      if diag is None:
        return None
      return checks.deviation_at_one(diag, derivative, evaluation, self.rank)
    if decision.mode == 'reverse' or not self._tries_forward():
      self._set_mode('reverse')
      self._try_to_vectorize(derivative)
      return []
    self._set_mode('forward')
    return _compared(derivative, self.evaluation.xs, self._refuse_forward)

  def _try_to_vectorize(self, derivative: LinearMap) -> None:
    """Finds out whether pfor can vectorize loops, as it can most of them."""
    decision, xs = self.decision, self.evaluation.xs
    if decision.schedule != 'pfor' or self.evaluation.loop_type is None:
      return
    colors = decision.colors_of(xs, self.rank)
    reason = sweep.why_not_vectorized(derivative, colors, xs)
    if reason is not None:
      self.notes.append(NOT_VECTORIZED.format(reason=reason))
      self.decision = decision._replace(schedule='while_loop')

  def judge(self, results: Any) -> bool:
    """Draws the conclusions from the values of what `trace` returned."""
    if self.decision.terms is not None:
      return checks.is_small(results)
    if self.decision.mode == 'forward' and results:
      (forward, size), (reverse, other) = tf.nest.map_structure(float, results)
      if not np.isfinite(forward) or not np.isfinite(reverse):
        self._refuse_forward(
          'it could not be checked, the derivative is not finite at this point'
        )
      else:
        limit = max(checks.tolerance(x.dtype) for x in self.evaluation.xs)
        if abs(forward - reverse) > limit * max(size, other):
          self._refuse_forward(
            'the two disagree, some gradient is not linear in its cotangent'
          )
    return True

  def judge_failure(self, error: Exception) -> None:
    """Draws the conclusions where there are no values, but an error."""
    if self.decision.mode == 'forward':
      self._refuse_forward(_failure(error))
      return
    self.notes.append(f'This could not be tried: {_failure(error)}.')
    if isinstance(error, tf.errors.UnimplementedError):
      # A kernel knows no broadcast of so many axes as vectorized passes have.
      passes = [p for p in self.decision.proposals if p.terms is None]
      self.decision = self.decision._replace(
        schedule='while_loop', proposals=tuple(passes), mode='reverse'
      )

  def _tries_forward(self) -> bool:
    """Whether forward mode would pay, or was asked for.

    A few forward passes over a gradient are cheaper than reverse ones: they
    share all that does not depend on the seed. One pass shares nothing, and for
    many, vectorized, reverse mode is cheaper. So it is through loops, also
    those that Python has written out, where one transposition more also takes
    long to trace: a minute for a state-space model. A Jacobian gains nothing
    that would pay for the reverse passes in a branch.
    """
    if self.decision.mode == 'forward':
      return True
    num_passes = self.decision.proposals[0].num_passes
    if self._problem.kind == 'jacobian':
      return False
    if not 1 < num_passes <= sweep.MAX_UNROLLED:
      return False
    is_long = len(self.evaluation.graph.ops) > _MOST_OPS_OF_FORWARD
    return self.evaluation.loop_type is None and not is_long

  def _set_mode(self, mode: Mode) -> None:
    self.decision = self.decision._replace(mode=mode)

  def _refuse_forward(self, reason: str) -> None:
    self.notes.append(f'Reverse instead of forward mode: {reason}.')
    self._set_mode('reverse')


@again_with_tapes
def try_out(
  problem: Problem, request: Request, is_without_xla: bool = False
) -> Trial:
  """Decides how a diagonal is computed, and tries what can be tried.

  Forward mode transposes the vector-Jacobian product. Where a gradient is not
  linear in its cotangent, one that clips it say, that is another map; so the
  two are compared on one random pair. What is cheaper than passes is compared
  with them at a random coordinate of each sample.

  Args:
    problem: `Problem`; where its parts have no values, normal ones are drawn.
    request: `Request`.
    is_without_xla: Python bool, whether XLA will not compile what is planned.

  Returns:
    `Trial`.
  """
  problem.check_shapes_are_meant()
  trial = Trial(problem, request)

  def trace(*tensors):
    with without_xla(is_without_xla):
      return trial.trace(*tensors)

  parts = [] if problem.is_closure else problem.parts
  specs = [tf.TensorSpec(p.shape, p.dtype) for p in parts]
  if not tf.executing_eagerly():
    graph = tf.__internal__.FuncGraph('plan')
    with graph.as_default():
      trace(*(tf.compat.v1.placeholder(s.dtype, s.shape) for s in specs))
    if trial.decision.mode == 'forward':
      trial._refuse_forward('it cannot be checked while a graph is built')
    return trial
  traced = graphs.concrete(trace, specs)
  results = traced.structured_outputs
  try:
    if results:
      graph, rank = trial.evaluation.graph, trial.rank
      sample = [known_sample_shape(graph, p.shape[:rank]) for p in parts]
      # Parts at equal points are not like others: what they differ by is zero.
      rng = np.random.default_rng(0)
      values = [_value(*each, rng) for each in zip(parts, sample)]
      with graphs.unoptimized():
        results = traced(*values)
  except tf.errors.OpError as e:  # Any op of the function may have raised.
    trial.judge_failure(e)
    return trial
  if results is not None and trial.judge(results):
    return trial
  passes = request._replace(only_passes=True)
  again = try_out(problem, passes, is_without_xla)
  again.notes.append(
    'A cheaper way than passes was found, and failed when it was tried.'
    if results is None
    else 'A cheaper way than passes was tried, and differs from them by more '
    'than rounding usually explains. If it does so in float64, too, this is a '
    'fault of tfp_diag.'
  )
  return again


def _value(
  part: Any, sample_shape: Sequence, rng: np.random.Generator
) -> tf.Tensor:
  if not isinstance(part, tf.TensorSpec):
    return tf.convert_to_tensor(part)
  shape = [*sample_shape, *part.shape[len(sample_shape) :]]
  sizes = [2 if size is None else size for size in shape]
  return tf.cast(rng.standard_normal(sizes), part.dtype)


def _compared(
  derivative: LinearMap, xs: Sequence, refuse: Callable
) -> Sequence:
  """The inner products of both modes with a random pair, and their sizes."""
  # The same pair for every number of samples that is not known.
  u, v = (
    [
      tf.random.stateless_normal(tf.shape(x), (k, i), dtype=x.dtype)
      for i, x in enumerate(xs)
    ]
    for k in range(2)
  )
  try:
    forward = derivative.transposed()
    return _product(forward, v, u), _product(derivative, u, v)
  except Exception as e:  # Any op of the function may have raised.
    refuse(_failure(e))
    return []


def _failure(error: Exception) -> str:
  return f'it fails ({type(error).__name__}: {arguments.reason(error)})'


def _product(
  linear_map: LinearMap, seeds: Sequence, others: Sequence
) -> tuple[tf.Tensor, tf.Tensor]:
  """The inner product of one pass with `others`, and the size of its terms."""
  results = linear_map.images(seeds)
  terms = [
    tf.cast(r, tf.float64) * tf.cast(o, tf.float64)
    for r, o in zip(results, others)
    if r is not None
  ]
  zero = tf.zeros([], tf.float64)
  return (
    sum([tf.reduce_sum(t) for t in terms], zero),
    sum([tf.reduce_sum(tf.abs(t)) for t in terms], zero),
  )
