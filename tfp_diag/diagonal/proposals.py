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
"""The ways to a diagonal, each with its estimated cost."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.constant_hessian import ConstantHessian
from tfp_diag.diagonal.hessian_terms import HessianTerms
from tfp_diag.diagonal.jacobian_terms import JacobianTerms
from tfp_diag.diagonal.linear_map import Evaluation
from tfp_diag.diagonal.potential import (
  AS_A_HESSIAN,
  as_a_hessian,
  as_hessians,
)
from tfp_diag.diagonal.reading import Reading
from tfp_diag.diagonal.squared_sweeps import SquaredSweeps
from tfp_diag.diagonal.terms import Terms
from tfp_diag.sparsity import budget
from tfp_diag.sparsity.coloring import color_diagonal
from tfp_diag.sparsity.pattern import SparsityPattern
from tfp_diag.sparsity.tape import all_steps
from tfp_diag.sparsity.traits import SAMPLES_AT_LEAST
from tfp_diag.sparsity.unique_paths import Sweep, Sweeps

# The cost model, in passes: what one vector-Jacobian product of the derivative
# costs, for all samples. Measured with `python -m benchmarks.run`.
# A pass through the curved ops alone, one after the other.
_TERM_PASS = 1.5
# A row of the Jacobian of one value on the way. A pass adds up what leads to a
# normalizer again, the row does not.
_ROW = 0.95
# A row and a column for an element that is held, and a pass for what is left.
_HELD_PASS = 2.0
# A product with the matrix on one side of a cut.
_SIDE = 0.4
# A pass that leaves out what does not return.
_RETURNING_PASS = 1.2
# A column of the matrix of a linear map, if a pass carries one per sample; so
# many samples are reckoned with if nobody knows.
_COLUMN = 1.0
SAMPLES_IF_OPEN = 32
# The tangents of all arguments of curved ops for one coordinate, and what the
# second derivatives of these ops add.
_TANGENT = 0.4
_CURVATURE = 0.5
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
# What a curved op must save, for each is traced by itself; and, for each row of
# the Jacobian of a value on the way, an op of the function, which is traced
# again for it.
_TRACE = 0.006
_TRACE_OF_ROW = 0.001
# A function of more curved ops, such as a loop that Python has run, takes many
# seconds to be taken apart: a little that is saved does not pay for that.
_MANY_OPS, _TRACE_OF_MANY = 16, 1.25
# With more passes than samples times this, samples do not share them.
_MAX_SHARED = 8
# Even where passes are few, so few coordinates are looked at op by op.
_SMALL = 64
# Where a value has more elements for each sample, to look for other ways beside
# a single sweep takes longer than they can save.
_LARGE = 100_000
# So many entries a table of paths may have.
_MOST_PATHS = 50_000_000


# What a Jacobian has to cost so that a potential is looked for, how many passes
# it has to take for each of many curved ops, and what may be left of the cost.
_LEAST_OF_POTENTIAL, _PASSES_OF_OP, _LEFT_BY_POTENTIAL = 2.5, 4, 0.8


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


def passes(num_passes: int) -> Proposal:
  """A pass for each color, which any function can have."""
  return Proposal('passes', num_passes, float(num_passes))


def by_sweeps(
  reading: Reading,
  pattern: SparsityPattern | None,
  num_passes: int,
  planned: str | None = None,
) -> list[Proposal]:
  """Reverse sweeps with squared derivatives, and passes for the rest.

  Args:
    reading: `Reading` of a function whose Hessian is asked for.
    pattern: `SparsityPattern`, or None.
    num_passes: Python int, what passes alone would take.
    planned: The name of the way that a plan says: if it is this one, it is
      proposed even where it costs more than passes; None without one.

  Returns:
    List of `Proposal`, of at most one.
  """
  is_planned = planned == SquaredSweeps.how
  if num_passes <= _SWEEP and not is_planned:
    return []
  reading = reading.written_out() or reading
  found = []
  with budget.at_most(_MOST_PATHS):
    assert reading.analysis is not None
    samples = reading.num_samples or SAMPLES_IF_OPEN
    for sweeps in reading.analysis.sweeps(num_passes, samples):
      found += _sweeps(reading, sweeps, pattern, is_planned)
      if found and min(p.cost for p in found) < _FEW_SWEEPS:
        break
  if not is_planned:
    trace = _TRACE * _num_curved(reading)
    found = [p for p in found if p.cost + trace < num_passes]
  return sorted(found, key=lambda p: p.cost)[:1]


def _num_curved(reading: Reading) -> int:
  """The ops that are curved in what they depend on."""
  assert reading.analysis is not None
  steps = all_steps(reading.analysis.walked.tape)
  return sum(1 for step in steps if step.structure.curved)


def _sweeps(
  reading: Reading,
  sweeps: Sweeps,
  pattern: SparsityPattern | None,
  is_planned: bool,
) -> Iterator[Proposal]:
  """Those of the sweeps that cost less than passes would, or are planned."""
  kept = [s for s in sweeps.sweeps if _cost_of_sweep(s) < s.coordinates.sum()]
  if is_planned and not kept:
    kept = list(sweeps.sweeps)
  if reading.problem.order == 3:
    kept = [s for s in kept if all(map(sweeps.gives_third, s.frontiers))]
  if not kept or (sweeps.rest and reading.problem.order == 3):
    return
  sweeps = sweeps.only(kept).joined()
  left = np.flatnonzero(sweeps.left_over)
  colors = np.full(sweeps.left_over.size, -1, np.int32)
  colors[left] = np.arange(left.size)
  if pattern is not None:
    colors[left] = color_diagonal(pattern.matrix[left][:, left]).colors
  matrices = {k for s in sweeps.sweeps for k in _links(s) if k.mapped}
  count = sum(link.matrix_passes for link in matrices)
  cost = sum(map(_cost_of_sweep, sweeps.sweeps)) + sweep.num_colors(colors)
  rest = None
  if sweeps.rest:
    rest = _left_out(reading, sweeps)
    if rest is None:
      return
    cost += _cost_op_by_op(rest, reading.num_samples)
  terms = SquaredSweeps(sweeps, colors, reading.evaluation, count, rest)
  yield _of_terms(SquaredSweeps.how, terms, cost)


def _left_out(reading: Reading, sweeps: Sweeps) -> HessianTerms | None:
  """The curved ops that sweeps leave out; None if they have no such terms."""
  assert reading.analysis is not None
  try:
    ops, pattern = reading.analysis.curvature_of(sweeps.rest)
  except budget.PatternTooDenseError:
    return None
  if ops is None:
    return None
  samples = reading.num_samples or SAMPLES_IF_OPEN
  return HessianTerms(ops, color_diagonal(pattern).colors, samples)


def _cost_of_sweep(one: Sweep) -> float:
  return (
    _SWEEP
    + sum(_VJP * link.cost for link in _links(one))
    + sum(_PRODUCT_BEHIND * joint.cost for joint in one.joints)
  )


def _links(one: Sweep) -> list:
  """The links of all frontiers; terms share the same fixed matrix."""
  links = [link for frontier in one.frontiers for link in frontier.links]
  shared = dict.fromkeys(k for k in links if k.mapped)
  return [*(k for k in links if not k.mapped), *shared]


def taken_apart(
  reading: Reading, colors: np.ndarray, least: float
) -> Iterator[Proposal]:
  """The ways that take a derivative apart op by op, or share what is constant.

  Args:
    reading: `Reading`.
    colors: int32 array, one per coordinate.
    least: Python float, what the cheapest other way costs.

  Yields:
    `Proposal`s.
  """
  analysis, samples = reading.analysis, reading.num_samples
  assert analysis is not None
  columns = samples or SAMPLES_IF_OPEN
  if reading.problem.kind == 'jacobian':
    yield from _of_jacobian(reading, max(columns, SAMPLES_AT_LEAST))
  k = sweep.num_colors(colors)
  if samples and k <= _MAX_SHARED * samples and reading.is_quadratic:
    terms = ConstantHessian(colors, samples)
    yield _of_terms('once for all samples', terms, terms.num_passes)
  if least <= _SWEEP and analysis.num_elements > _LARGE:
    return
  is_few = k <= sweep.MAX_UNROLLED
  if is_few and colors.size > _SMALL and not analysis.has_curved_sums:
    return
  curved_ops, pattern = analysis.curvature
  if curved_ops is None:
    return
  own = color_diagonal(pattern).colors
  found = {'op by op': HessianTerms(curved_ops, own, columns)}
  if found['op by op'].is_by_coordinate:
    rest = curved_ops.all_as_rest()
    found['by tangents'] = HessianTerms(rest, own, columns)
  num_ops = len(reading.evaluation.graph.ops)
  for name, terms in found.items():
    cost = _cost_op_by_op(terms, samples)
    if curved_ops.number > _MANY_OPS:
      cost *= _TRACE_OF_MANY
    trace = _TRACE * curved_ops.number if is_few else 0.0
    trace += _TRACE_OF_ROW * terms.found.num_rows * num_ops
    # What costs less by so little is not worth a long trace.
    if cost + trace < least or not trace:
      yield _of_terms(name, terms, cost)


def of_potentials(
  reading: Reading,
  pattern: SparsityPattern | None,
  colors: np.ndarray,
  least: float,
  planned: str | None = None,
) -> Iterator[Proposal]:
  """The ways of Hessians, if a function is seen to compute gradients.

  Args:
    reading: `Reading` of a function whose Jacobian is asked for.
    pattern: `SparsityPattern`, or None.
    colors: int32 array, one per coordinate.
    least: Python float, what the cheapest other way costs.
    planned: As for `by_sweeps`.

  Yields:
    `Proposal`s.
  """
  is_looked_for = least >= _LEAST_OF_POTENTIAL
  if planned is not None:
    is_looked_for = planned.endswith(AS_A_HESSIAN)
  found = as_hessians(reading) if is_looked_for else None
  if found is None:
    return
  share = found.share_behind
  most = math.inf if planned is not None else _LEFT_BY_POTENTIAL * least
  each = [
    _of_hessian(
      hessian,
      *_of_parts(reading, pattern, colors, potential.parts),
      least,
      planned,
    )
    for hessian, potential in zip(found.hessians, found.potentials)
  ]
  for ways in itertools.product(*each):
    terms = found.of([way.terms for way in ways if way.terms])
    num_passes = sum(way.num_passes for way in ways)
    cost = sum(way.cost for way in ways)
    cost += share * (terms.num_passes - num_passes)
    cost += (1.0 - share) * found.behind.cuts.num_rows  # A row is one of all.
    if cost < most:
      name = as_a_hessian(way.name for way in ways)
      yield _of_terms(name, terms, cost)


def _of_parts(
  reading: Reading,
  pattern: SparsityPattern | None,
  colors: np.ndarray,
  parts: Sequence,
) -> tuple[SparsityPattern | None, np.ndarray]:
  """The pattern and the colors of some of the parts of a function."""
  xs, rank = reading.evaluation.xs, reading.rank
  starts = np.cumsum([0, *(x.shape[rank:].num_elements() for x in xs)])
  own = np.concatenate([np.arange(*starts[i : i + 2]) for i in parts])
  colors = np.unique(colors[own], return_inverse=True)[1].astype(colors.dtype)
  if pattern is not None:
    shapes = tuple(pattern.column_shapes[i] for i in parts)
    pattern = SparsityPattern(pattern.matrix[own][:, own], shapes, shapes)
  return pattern, colors


def _of_hessian(
  hessian: Reading,
  pattern: SparsityPattern | None,
  colors: np.ndarray,
  least: float,
  planned: str | None,
) -> list[Proposal]:
  """The ways to the Hessian of a potential; see `of_potentials`."""
  num_passes = sweep.num_colors(colors)
  is_long = _num_curved(hessian) > max(_MANY_OPS, num_passes / _PASSES_OF_OP)
  if planned is None and is_long:
    return []
  how = SquaredSweeps.how
  is_planned = planned is not None and how in planned
  ways = by_sweeps(hessian, pattern, num_passes, how if is_planned else planned)
  if planned is None:
    least = min([least, *(way.cost for way in ways)])
  return [*ways, *taken_apart(hessian, colors, least)]


def _cost_op_by_op(terms: HessianTerms, samples: int | None) -> float:
  """The cost, for as few samples as may be if their number is not known."""
  ops = terms.found
  cost = _ROW * ops.num_rows
  if ops.rest:
    each = _TERM_PASS
    if terms.is_by_coordinate:
      each = _TANGENT + _CURVATURE * ops.share_of_rest
    # Rows leave few colors, and the passes over these are ordinary ones.
    cost += sweep.num_colors(terms.colors) * (1.0 if ops.few else each)
  if ops.fixed:
    columns = terms.colors.size / max(samples or 0, SAMPLES_AT_LEAST)
    cost += _PRODUCT + _COLUMN * columns * 0.25
    if terms.is_one_product:
      cost = min(cost, 0.9)
  return cost


def _of_jacobian(reading: Reading, columns: int) -> Iterator[Proposal]:
  """The ways that hold values, or leave out what does not return, or both."""
  expanded: Evaluation | None = None
  if written_out := reading.written_out():
    # With normalizers written out they can be held.
    reading, expanded = written_out, written_out.evaluation
  assert reading.analysis is not None
  is_loop = reading.evaluation.loop_type is not None
  for cuts, pattern, levels in reading.analysis.cuts():
    colors = color_diagonal(pattern).colors
    if levels and is_loop and sweep.num_colors(colors) > sweep.MAX_UNROLLED:
      # They would run one at a time.
      continue
    terms = JacobianTerms(cuts, colors, columns, levels, expanded)
    sides = terms.num_columns
    each = _HELD_PASS if terms.is_cut else _RETURNING_PASS
    cost = each * (terms.num_passes - sides) + _SIDE * sides
    yield _of_terms(terms.how, terms, cost)


def _of_terms(name: str, terms: Terms, cost: float) -> Proposal:
  return Proposal(name, terms.num_passes, float(cost), terms, terms.note)
