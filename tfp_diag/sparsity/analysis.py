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
"""What is known about a function from its graph; each result is kept."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import scipy.sparse

from tfp_diag.sparsity.budget import PatternTooDenseError, UnknownShapeError
from tfp_diag.sparsity.curvature import (
  CurvedOps,
  find_curved_ops,
  has_curved_slices,
  has_curved_sums,
  has_own_gradient_alone,
  is_quadratic_form,
  without,
)
from tfp_diag.sparsity.cuts import NO_CUTS, Cuts, find_cuts
from tfp_diag.sparsity.dependency import Csr, Dependency
from tfp_diag.sparsity.few_rows import FewRows, on_few_rows
from tfp_diag.sparsity.graph import Graph
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.paths import Paths
from tfp_diag.sparsity.pattern import SparsityPattern
from tfp_diag.sparsity.registry import facts
from tfp_diag.sparsity.returning import find_returning
from tfp_diag.sparsity.samples import (
  SampleMixingError,
  are_alone,
  are_in_place,
  check_samples,
)
from tfp_diag.sparsity.second_order import SecondOrder
from tfp_diag.sparsity.tape import Loop, Step, Tape, on_themselves
from tfp_diag.sparsity.traits import Facts, FixedMatrices
from tfp_diag.sparsity.unique_paths import Sweeps, find_sweeps
from tfp_diag.sparsity.walk import Walked, walk


def analyze(
  graph: Graph,
  rank: int,
  retrace: Callable | None = None,
  is_hessian: bool = False,
) -> 'Analysis | None':
  """Walks a graph, on a few samples if these can stand for all.

  Args:
    graph: `Graph`.
    rank: int, the number of sample dimensions.
    retrace: Callable that takes the shapes of the parts, and returns the
      `Graph` of the same function on such parts; or None. See `walk`.
    is_hessian: Whether the Hessian is analyzed, not the Jacobian.

  Returns:
    `Analysis`, or None if nothing can be said about the function.

  Raises:
    SampleMixingError: If one sample depends on another. Names the op.
    ValueError: If an event shape is not known.
  """
  try:
    found = _analyzed(graph, rank, retrace, is_hessian)
  except UnknownShapeError:
    _refuse_mixing_of_few(graph, rank, retrace)
    raise
  if found is None or found.may_mix:
    _refuse_mixing_of_few(graph, rank, retrace)
  return found


def _analyzed(
  graph: Graph, rank: int, retrace: Callable | None, is_hessian: bool
) -> 'Analysis | None':
  for way in walk(graph, rank, retrace, is_hessian):
    walked = way()
    if walked is None:
      continue
    if walked.single is not None and not are_alone(walked, walked.single):
      continue
    # A value that is computed from the number of samples counts as unknown;
    # that alone can look like mixing.
    is_last = walked.graph is graph and not graph.is_open(rank)
    try:
      may_mix = check_samples(walked)
    except SampleMixingError:
      if walked.is_certain or is_last:
        raise
      continue
    if walked.varying_sizes and not are_in_place(walked):
      continue
    if graph.is_open(rank) and not walked.outputs_have_samples:
      continue
    if walked.is_certain or walked.graph is graph:
      return Analysis(walked, is_hessian, may_mix)
  return None


# Sizes to try where the number of samples, or an event size, is not known.
_FEW, _SIZE = 3, 4


def _refuse_mixing_of_few(
  graph: Graph, rank: int, retrace: Callable | None
) -> None:
  """Raises if samples mix once unknown sizes are replaced by small ones."""
  shapes = [tuple(x.shape.as_list()) for x in graph.xs]
  filled = [
    tuple(
      (_FEW if axis < rank else _SIZE) if size is None else size
      for axis, size in enumerate(shape)
    )
    for shape in shapes
  ]
  if retrace is None or filled == shapes:
    return
  try:
    few = retrace(filled)
  except Exception:  # The user's code; it may need its own sizes.
    return
  with contextlib.suppress(UnknownShapeError, PatternTooDenseError):
    _analyzed(few, rank, None, False)


class Analysis:
  """A function that has been walked, and what follows from its tape.

  Attributes:
    walked: `Walked`.
    may_mix: `bool`: whether samples are independent only if ops without a rule
      do not mix them.
  """

  def __init__(self, walked: Walked, is_hessian: bool, may_mix: bool) -> None:
    self.walked = walked
    self._is_hessian = is_hessian
    self.may_mix = may_mix

  def linear_up_to(self, ops: Collection) -> 'Analysis':
    """The same function, taken as linear up to some ops.

    Args:
      ops: `tf.Operation`s of the graph at hand. They, and all ops that they
        depend on, count as linear.

    Returns:
      `Analysis`.
    """
    linear, before = set(), set()
    for step in reversed(self.walked.tape.steps):
      is_last = not isinstance(step, Loop) and (
        self.walked.at_hand(step.op) in ops
      )
      if is_last or any(y in before for y in step.outputs):
        linear.add(step)
        before.update(v for v in step.inputs if v.depends)
    tape = without(self.walked.tape, linear)
    walked = dataclasses.replace(self.walked, tape=tape)
    return Analysis(walked, self._is_hessian, self.may_mix)

  @functools.cached_property
  def pattern(self) -> SparsityPattern:
    """The pattern over the coordinates of one sample."""
    self._counts = {}
    if not self._is_hessian:
      return self._pattern_of(self.walked.tape, self._counts)
    counts = {}
    pattern = self._pattern_of(self._few.walked.tape, counts)
    # What is asked of the counts is the same for all rows: most, and the mean.
    self._counts.update(counts)
    self._counts.update(
      (whole, counts[few])
      for whole, few in self._few.values.items()
      if few in counts
    )
    return pattern

  @functools.cached_property
  def facts(self) -> Facts:
    """The `Facts` about its values."""

    def counts():
      self.pattern  # noqa: B018 (counts on the way)
      return self._counts

    return Facts(self.walked, counts)

  @property
  def num_elements(self) -> int:
    """The number of elements per sample of the largest value."""
    sizes = [y.rows for step in self.walked.tape.steps for y in step.outputs]
    return max(sizes, default=0) // max(self.walked.num_samples, 1)

  @property
  def shares_by_vectorizing(self) -> bool:
    """Whether even a few passes should be vectorized."""
    return self._is_hessian and has_curved_slices(self.walked.tape)

  @property
  def has_curved_sums(self) -> bool:
    """Whether terms may be cheaper than even a few passes."""
    return self._is_hessian and has_curved_sums(self.walked)

  @functools.cached_property
  def is_quadratic(self) -> bool:
    """Whether the Hessian is a constant, the same for all samples."""
    return self._is_hessian and is_quadratic_form(self.facts)

  @property
  def has_own_gradient_alone(self) -> bool:
    """As `curvature.has_own_gradient_alone`; False for a Jacobian."""
    return self._is_hessian and has_own_gradient_alone(self.facts)

  @property
  def is_affine(self) -> bool:
    """Whether the function is affine, with one matrix for all samples."""
    return not self._is_hessian and all(
      self.facts.is_uniform(y) for y in self.walked.outputs if y.depends
    )

  @functools.cached_property
  def curvature(self) -> tuple[CurvedOps | None, SparsityPattern | None]:
    """Which part of a Hessian is cheaper than its pattern says.

    Returns:
      curved_ops: `CurvedOps`, or None.
      pattern: `SparsityPattern` of the second derivatives of `curved_ops.rest`,
        or None.
    """
    return self.curvature_of(None)

  def curvature_of(
    self, steps: Collection | None
  ) -> tuple[CurvedOps | None, SparsityPattern | None]:
    """As `curvature`, of some of the steps on which `Sweeps` are found."""
    if not self._is_hessian or self.walked.graph.has_variables:
      return None, None
    wholes, tape = self._few.wholes, self._few.walked.tape
    some = None if steps is None else {wholes.get(s, s) for s in steps}
    curved_ops = find_curved_ops(self.facts, some)
    if curved_ops is None:
      return None, None
    others = self._few.some(curved_ops.cheap_steps)
    if steps is not None:
      others |= set(tape.steps).difference(steps)
    if not others:
      return curved_ops, self.pattern
    return curved_ops, self._pattern_of(without(tape, others))

  @functools.cached_property
  def _few(self) -> FewRows:
    return on_few_rows(self.walked)

  @functools.cached_property
  def paths(self) -> Paths:
    """How many paths lead from each coordinate to each element."""
    return Paths(self._few.walked, self._few.wholes)

  @functools.cached_property
  def meeting(self) -> set[Step]:
    """The sums of products in which some coordinate meets itself.

    Those of a Hessian, with no more products than elements: written out, they
    take no more room than they do.
    """
    candidates = {
      step for step in self.walked.tape.steps if _is_short_sum(step)
    }
    if not self._is_hessian or not candidates:
      return set()
    try:
      paths = self.paths
    except PatternTooDenseError:
      return set()
    alive = paths.walked.tape.alive(paths.walked.outputs)
    few = self._few.steps
    return {
      step
      for step in candidates
      if paths.entangled(few.get(step, step), alive).any()
    }

  def sweeps(
    self, num_passes: float = np.inf, num_samples: int = 1
  ) -> Iterator[Sweeps]:
    """The coordinates whose diagonal entries come from reverse sweeps.

    Args:
      num_passes: how many passes sweeps can save at most; with more of them the
        search may take longer.
      num_samples: of a call, about.

    Yields:
      `Sweeps`, first with a frontier for each term, then with joint ones, then
      with products with the squares of fixed matrices; at last of some of the
      curved ops, so that these leave few coordinates over.
    """
    if not self._is_hessian or not self.walked.num_samples:
      return
    with contextlib.suppress(PatternTooDenseError):
      for is_joint in (False, True):
        yield find_sweeps(self.paths, is_joint, num_passes)
      if self.walked.graph.has_variables:
        return
      wholes = {few: whole for whole, few in self._few.values.items()}
      matrices = FixedMatrices(self.facts, wholes, num_samples)
      if any(map(matrices.is_fixed, self.paths.many())):
        yield find_sweeps(self.paths, False, num_passes, matrices)
      else:
        matrices = None
      some = find_sweeps(
        self.paths, False, num_passes, matrices, leaves_ops=True
      )
      if some.rest:
        yield some

  def cuts(self) -> Iterator[tuple[Cuts, SparsityPattern, tuple]]:
    """Where a Jacobian can be cut so that its diagonal is cheap.

    Yields:
      cuts: `Cuts`.
      pattern: `SparsityPattern` of the Jacobian while the values are held.
      levels: as in `Returning`: where derivatives are left out of that; else
        empty.
    """
    if self._is_hessian or self.walked.graph.has_variables:
      return
    for cuts in (NO_CUTS, *find_cuts(self.facts)):
      # As if the results of these steps were constant.
      held = {y for step in cuts.held_steps for y in step.outputs}
      tape = Tape(
        step if isinstance(step, Loop) else step.holding(held)
        for step in self.walked.tape.steps
        if step not in cuts.held_steps
      )
      if cuts is not NO_CUTS:
        yield cuts, self._pattern_of(tape), ()
      with contextlib.suppress(PatternTooDenseError):
        if found := find_returning(tape, self.facts):
          yield cuts, self._pattern_of(found.tape), found.levels

  def _pattern_of(
    self, tape: Tape, counts: dict | None = None
  ) -> SparsityPattern:
    """The pattern of a tape, over the coordinates of one sample."""
    walked = self.walked
    rank = walked.sample_rank
    rows = walked.inputs if self._is_hessian else walked.outputs
    if not self._is_hessian:
      matrix, notes = _jacobian(tape, walked, counts)
    elif any(isinstance(step, Loop) for step in tape.steps):
      matrix, notes = _hessian(tape, walked, counts)
    else:
      matrix, notes = _hessian_by_paths(tape, self.paths, counts)
    if self.may_mix:
      notes = [
        *notes,
        'Ops without a rule may mix samples; they were taken not to, as the '
        'sample shape promises.',
      ]
    return SparsityPattern(
      matrix=_folded(
        matrix,
        _places([v.shape for v in rows], walked),
        _places([v.shape for v in walked.inputs], walked),
      ),
      row_shapes=tuple(v.shape[rank:] for v in rows),
      column_shapes=tuple(v.shape[rank:] for v in walked.inputs),
      fallback_ops=walked.fallbacks,
      notes=(*walked.notes, *notes),
    )


def _is_short_sum(step: Step | Loop) -> bool:
  """Whether both factors of a sum of products depend on xs, and it is short.

  No tensor of its products is larger than the largest one that is there.
  """
  if isinstance(step, Loop) or step.is_fallback:
    return False
  find = facts(step.op_type).products
  if find is None or not all(value.depends for value in step.inputs):
    return False
  values = (step.outputs[0], *step.inputs)
  if len({value.dtype for value in values}) > 1 or values[0].dtype.is_complex:
    return False
  most = max(value.rows for value in values)
  return find(step.op, [v.known_shape for v in values], most) is not None


def _jacobian(
  tape: Tape, walked: Walked, counts: dict | None
) -> tuple[Csr, list]:
  seeds, groups = on_themselves(walked.inputs)
  outputs = walked.outputs
  found = tape.run(seeds, outputs, groups, counts=counts)
  rows = [found[y] if y.depends else Dependency.empty(y.rows) for y in outputs]
  joined = groups.expand(Dependency.concat(rows))
  return joined.to_matrix(groups.num_coordinates), []


def _hessian(
  tape: Tape, walked: Walked, counts: dict | None
) -> tuple[Csr, list]:
  """The pattern of a Hessian, by the dependencies of each element.

  This works for loops, too.
  """
  seeds, groups = on_themselves(walked.inputs)
  second_order = SecondOrder(groups)
  (value,) = walked.outputs
  if value.depends:
    alive = tape.alive([value])
    tape.run(seeds, walked.outputs, groups, alive, second_order, counts)
  return second_order.finish(), second_order.notes


def _hessian_by_paths(
  tape: Tape, paths: Paths, counts: dict | None
) -> tuple[Csr, list]:
  """As `_hessian`, but elements with equal dependencies are treated once."""
  sets, (value,) = paths.sets, paths.walked.outputs
  second_order = SecondOrder(Groups(sets.num_coordinates))
  if value.depends:
    alive = tape.alive([value])
    for step in tape.steps:
      for left, right in paths.meetings(step, alive):
        second_order.add(left, right)
  if counts is not None:
    for known, numbers in paths.numbers.items():
      counts[known] = sets.sizes(numbers)
  return second_order.finish(), second_order.notes


def _places(shapes: Sequence, walked: Walked) -> tuple[np.ndarray, int]:
  """For each element of all samples, its coordinate in one sample.

  Args:
    shapes: list of the shapes of values.
    walked: `Walked`.

  Returns:
    places: int array.
    size: int, the number of coordinates of one sample.
  """
  places, start = [np.zeros(0, np.int64)], 0
  for shape in shapes:
    size = int(np.prod(shape[walked.sample_rank :], dtype=np.int64))
    places.append(np.tile(np.arange(start, start + size), walked.num_samples))
    start += size
  return np.concatenate(places), start


def _folded(matrix: Csr, row_place: tuple, column_place: tuple) -> Csr:
  """The pattern of one sample: the union of the blocks of all samples."""
  rows, num_rows = row_place
  columns, num_columns = column_place
  if matrix.shape == (num_rows, num_columns):
    return matrix
  entries = matrix.tocoo()
  return scipy.sparse.coo_matrix(
    (entries.data, (rows[entries.row], columns[entries.col])),
    shape=(num_rows, num_columns),
  ).tocsr()
