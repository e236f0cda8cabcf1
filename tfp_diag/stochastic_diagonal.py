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
"""What the stochastic estimators of diagonals return, and what they check."""

from typing import Any, Literal, NamedTuple

import tensorflow as tf

from tfp_diag.diagonal import blocks, evaluate, probes, sweep
from tfp_diag.diagonal.probes import Seed
from tfp_diag.diagonal.reading import NOT_LINEAR_PRODUCT, caution_of_whole
from tfp_diag.internal import arguments
from tfp_diag.internal.problem import Problem
from tfp_diag.internal.seeds import some_seed
from tfp_diag.internal.warn import warn
from tfp_diag.plan import Plan, check_plan

__all__ = ['Method', 'StochasticDiagonal', 'estimate_diagonal']

Method = Literal['hutchinson', 'xdiag']
METHODS = ('hutchinson', 'xdiag')
_FEWEST_COORDINATES = 16


class StochasticDiagonal(NamedTuple):
  """An estimate of a diagonal.

  Attributes:
    estimate: Structure of the state: the mean over probes.
    standard_error: Structure of the state: the standard error of each entry of
      `estimate`. Not a number after a single probe.
    num_passes: Scalar int32 Tensor, how many passes were computed.

  #### Examples

  ```python
  found = tfp_diag.stochastic_diag_hessian(
    lambda x: tf.reduce_sum(x, axis=-1) ** 3,
    tf.constant([[1.0, 2.0]]),
    num_probes=100,
    seed=[0, 1],
  )
  error = abs(found.estimate - 18.0)  # Both entries of the diagonal are 18.
  bool(tf.reduce_all(error < 4.0 * found.standard_error))  # ==> True
  ```
  """

  estimate: Any
  standard_error: Any
  num_passes: Any


def estimate_diagonal(
  problem: Problem,
  num_probes: int,
  seed: Seed,
  plan: Plan | None,
  method: Method,
  tolerance: float | None,
  chunk_size: int,
) -> StochasticDiagonal:
  """Estimates the diagonal of the Jacobian, or of the Hessian.

  Args:
    problem: `Problem`; what is differentiated is shaped as its parts.
    num_probes: Python int, how many probes are drawn at most.
    seed: As in `seeds.some_seed`: two integers, one, or None for a new seed.
    plan: `tfp_diag.Plan` or None.
    method: 'hutchinson' or 'xdiag'.
    tolerance: Python float, not negative, or None to use all probes.
    chunk_size: Python int, how many passes are vectorized together.

  Returns:
    `StochasticDiagonal`.

  Raises:
    ValueError: if an argument is not valid, or samples mix.
    TypeError: if `plan` is not a plan; if parts have several dtypes under
      'xdiag'.
  """
  arguments.check_choice('method', method, METHODS)
  num_probes = arguments.as_count(
    'num_probes',
    num_probes,
    1,
    'how many random vectors are used, an integer of at least 1; standard '
    'errors need 2',
  )
  chunk_size = arguments.check_chunk('chunk_size', chunk_size)
  seed = some_seed(seed)
  if tolerance is not None:
    arguments.check_number(
      'tolerance',
      tolerance,
      'a relative error, not negative, or None to use all probes',
      lambda x: x >= 0.0,
    )
    # The value in a graph is not known yet; errors are in double precision.
    known = arguments.static_value(tolerance)
    tolerance = (
      tf.cast(known, tf.float64) if tf.is_tensor(known) else float(known)
    )
  if method == 'xdiag' and (plan is not None or tolerance is not None):
    raise ValueError(
      "`method='xdiag'` uses all its probes together, without colors: leave "
      "out `plan` and `tolerance`, or pass `method='hutchinson'`."
    )
  check_plan(plan, problem, is_exact=False)
  kind = problem.kind

  def body(evaluation, seed):
    is_linear = caution_of_whole(problem, evaluation.graph)
    if not is_linear:
      warn(NOT_LINEAR_PRODUCT, RuntimeWarning)
    parts, rank = evaluation.xs, problem.rank_of(evaluation.ys)
    if kind == 'hessian':
      linear_map = evaluation.hessian(problem.check_gradient)[1]
    else:
      linear_map = evaluation.jacobian()
    obstacle = evaluation.loop_type
    if method == 'xdiag':
      _check_xdiag(parts, rank, num_probes)
      forward = linear_map
      if kind == 'jacobian':
        forward = blocks.forward_map(linear_map, parts, parts, is_linear)
      result = probes.exchangeable(
        linear_map, forward, parts, rank, num_probes, seed, obstacle
      )
    else:
      colors = None
      if plan is not None:
        colors = sweep.Colors.of(plan.colors, parts, plan.sample_rank).parts
      result = probes.average(
        linear_map,
        parts,
        rank,
        colors,
        probes.Probes(num_probes, seed, tolerance),
        chunk_size,
        obstacle,
      )
    estimate, error, num_passes = result
    return problem.pack(estimate), problem.pack(error), num_passes

  return StochasticDiagonal(
    *evaluate.run(
      problem,
      ('stochastic', num_probes, plan, method, tolerance, chunk_size),
      body,
      [seed],
    )
  )


def _check_xdiag(parts: list, rank: int, num_probes: int) -> None:
  dtypes = sorted({p.dtype.name for p in parts})
  if len(dtypes) > 1:
    raise TypeError(
      f"The parts of `xs` have the dtypes {dtypes}; `method='xdiag'` needs "
      "one. Cast them, or pass `method='hutchinson'`."
    )
  sizes = [p.shape[rank:].num_elements() for p in parts]
  if None in sizes:
    return
  # Few signs are too often linearly dependent, and then the estimate is biased.
  if sum(sizes) < _FEWEST_COORDINATES or 2 * num_probes > sum(sizes):
    raise ValueError(
      f'`num_probes` is {num_probes} for {sum(sizes)} coordinates. '
      "`method='xdiag'` takes two passes for each probe, so at most half as "
      'many probes as there are coordinates make sense, and it needs at least '
      f'{_FEWEST_COORDINATES} coordinates. `tfp_diag.diag_jacobian` and '
      '`tfp_diag.diag_hessian` are exact by one pass for each.'
    )
