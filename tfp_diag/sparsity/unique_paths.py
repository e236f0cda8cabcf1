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
"""Which coordinates reach the curved ops of a function on single paths.

The Hessian of a function is a sum over its curved ops (see `curvature`), and
its diagonal is

    sum over pairs of arguments (a, b), elements i:  w_i (J_a)_ij (J_b)_ij

An entry of `J_a` is a sum over paths from coordinate j to element i, of the
products of the local derivatives on the way. Where there is one path, its
square is the product of the squared derivatives: then the terms with `a = b` of
all ops together take one reverse sweep through the function, in which each
local derivative is squared. Where j does not reach both `a_i` and `b_i`, the
term is zero.

Where paths part and meet again, there may be an earlier tensor, the frontier,
through which all of them go. Then the sweep starts anew from there, for one
term (see `frontiers`) or for all terms after it (see `joint_frontiers`).
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_diag.sparsity.frontiers import Frontier, Frontiers, Term
from tfp_diag.sparsity.joint_frontiers import JointFrontier, JointFrontiers
from tfp_diag.sparsity.multisets import MANY, Multisets
from tfp_diag.sparsity.paths import Paths, kind_of_squares, op_of
from tfp_diag.sparsity.registry import elementwise_pairs
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.traits import FixedMatrices
from tfp_diag.sparsity.value import Value, places
from tfp_diag.sparsity.walk import Walked

# The most sweeps; coordinates of further classes take passes.
_MAX_SWEEPS = 8
# An op may be left out that leaves more coordinates to passes than this, or
# whose frontiers take more.
_MOST_LEFT = 4


class Sweep(NamedTuple):
  """One reverse sweep, valid for some coordinates.

  Attributes:
    coordinates: bool array over the coordinates of one sample.
    left_out: frozenset of the `Term`s that it omits.
    frontiers: tuple of `Frontier`, which replace these terms.
    joints: tuple of `JointFrontier`, likewise.
  """

  coordinates: np.ndarray
  left_out: frozenset
  frontiers: tuple
  joints: tuple

  @property
  def stand_ins(self) -> tuple:
    """The frontiers that replace the terms that are left out."""
    return self.frontiers + self.joints


class Sweeps(NamedTuple):
  """How the diagonal of a Hessian comes from reverse sweeps.

  Attributes:
    walked: `Walked`.
    squares: tuple of the `Term`s that are squares.
    sweeps: tuple of `Sweep`.
    left_over: bool array over the coordinates of one sample that need passes.
    reasons: tuple of (label of an op, number of coordinates): the ops because
      of which coordinates are `left_over`.
    rest: frozenset of the curved ops, as `Step`s, whose second derivatives the
      sweeps leave out.
    reaches: Callable that takes a bool array over the coordinates of one
      sample, and a `Value` or `Term`. Tells whether any of them reaches it.
    gives_third: Callable that takes a `Frontier`. Tells whether third
      derivatives go through it, too: if it is of a square, and each element
      of a link by rows leads to these on single paths.
  """

  walked: Walked
  squares: tuple
  sweeps: tuple
  left_over: np.ndarray
  reasons: tuple
  rest: frozenset
  reaches: Callable
  gives_third: Callable

  def only(self, sweeps: Sequence[Sweep]) -> 'Sweeps':
    """The same with some of the sweeps; other coordinates are left over."""
    done = np.zeros(len(self.left_over), bool)
    for one in sweeps:
      done |= one.coordinates
    reasons = dict(self.reasons)
    for one in self.sweeps:
      if not np.all(done[one.coordinates]):
        for label in dict.fromkeys(f.label for f in one.stand_ins):
          reasons[label] = reasons.get(label, 0) + int(one.coordinates.sum())
    return self._replace(
      sweeps=tuple(sweeps), left_over=~done, reasons=tuple(reasons.items())
    )

  def joined(self) -> 'Sweeps':
    """Joins sweeps that can be one, and omits terms that are not needed."""
    joined = []
    for one in self.sweeps:
      for number, other in enumerate(joined):
        if self._are_apart(one, other) and self._are_apart(other, one):
          both = dict.fromkeys(other.stand_ins + one.stand_ins)
          coordinates = one.coordinates | other.coordinates
          joined[number] = _sweep(coordinates, list(both), self.squares)
          break
      else:
        joined.append(one)
    if self.left_over.any() or len(joined) > 1:
      joined = list(map(self._without_the_unreached, joined))
    return self._replace(sweeps=tuple(joined))

  def _are_apart(self, one: Sweep, other: Sweep) -> bool:
    """Whether `one` does not reach what is different in the `other` sweep."""
    # By frontier, not by value: two at the same value can be for different
    # terms.
    more = {f.value for f in set(other.stand_ins).difference(one.stand_ins)}
    more |= other.left_out - one.left_out
    return not any(self.reaches(one.coordinates, what) for what in more)

  def _without_the_unreached(self, one: Sweep) -> Sweep:
    """The sweep without the terms that its coordinates do not reach."""
    more = [t for t in self.squares if not self.reaches(one.coordinates, t)]
    return one._replace(left_out=one.left_out.union(more))


def find_sweeps(
  paths: Paths,
  is_joint: bool = False,
  num_passes: float = np.inf,
  matrices: FixedMatrices | None = None,
  leaves_ops: bool = False,
) -> Sweeps:
  """Looks for the coordinates that need no pass.

  Args:
    paths: `Paths` of a function with one scalar per sample, walked with second
      derivatives.
    is_joint: whether one frontier may replace all curved ops after it.
    num_passes: how many passes can be saved; the more, the longer it may take.
    matrices: `FixedMatrices`, where products with the squares of some may take
      the place of paths; else None.
    leaves_ops: whether to leave out curved ops for which many coordinates need
      passes, so that all other ops have sweeps.

  Returns:
    `Sweeps`.

  Raises:
    PatternTooDenseError: If the multisets have too many entries.
  """
  return _Finder(paths, is_joint, num_passes, matrices, leaves_ops).find()


class _Finder:
  """The search for sweeps."""

  def __init__(
    self,
    paths: Paths,
    is_joint: bool,
    num_passes: float,
    matrices: FixedMatrices | None,
    leaves_ops: bool,
  ) -> None:
    walked = paths.walked
    self._paths = paths
    self._is_joint = is_joint
    self._leaves_ops = leaves_ops
    self._walked = walked
    self._steps = walked.tape.steps
    self._size = sum(v.rows for v in walked.inputs)
    self._sets = paths.sets
    self._numbers = paths.numbers
    self._reach = {}
    self._frontiers = Frontiers(paths, num_passes, matrices)
    self._alive = walked.tape.alive(walked.outputs)

  def find(self) -> Sweeps:
    """As `find_sweeps`."""
    self._squares, troubles, reasons = [], [], {}
    self._rest = set()
    left_over = np.zeros(self._size, bool)
    for step in self._steps:
      if not self._is_alive(step):
        continue
      terms = self._terms(step)
      if terms is None:
        if self._paths.is_solution(step):
          self._squares.append(Term(step, (0,), (0,)))
        troubles.append((step, None, self._entangled(step)))
        continue
      self._squares += [term for term in terms if term.is_square]
      for term in terms:
        bad = self._bad(term)
        if bad.any():
          troubles.append((step, term, bad))
    found = []
    if self._is_joint:
      joints = JointFrontiers(self._paths, self._frontiers, self._alive)
      found += joints.of([(step, bad) for step, _, bad in troubles])
    for step, term, bad in troubles:
      if term is None:
        self._leave(left_over, reasons, step, bad)
    for step, term, bad in troubles:
      bad = bad & ~left_over
      if term is not None and bad.any():
        for frontier, covered in self._frontiers.of(term, bad):
          work = sum(link.cost for link in frontier.links)
          if self._leaves_ops and work > _MOST_LEFT:
            continue
          found.append((frontier, covered))
          bad &= ~covered
        self._leave(left_over, reasons, step, bad)
    if self._frontiers.is_late:
      reasons['what there was no time to look at'] = 0
    rest = frozenset(self._rest)
    self._squares = [t for t in self._squares if t.step not in rest]
    found = [each for each in found if rest.isdisjoint(_steps_of(each[0]))]
    sweeps, left_over = self._classes(found, left_over)
    return Sweeps(
      self._walked,
      tuple(self._squares),
      sweeps,
      left_over,
      tuple(reasons.items()),
      rest,
      self._reaches,
      self._gives_third,
    )

  def _leave(
    self, left_over: np.ndarray, reasons: dict, step: Any, bad: np.ndarray
  ) -> None:
    """Leaves some coordinates to passes, or the op that is the reason."""
    new = self._of_one_sample(bad & ~left_over)
    if self._leaves_ops and new.sum() > _MOST_LEFT:
      self._rest.add(step)
      return
    left_over |= bad
    if new.any():
      label = 'a loop' if isinstance(step, Loop) else step.label
      reasons[label] = reasons.get(label, 0) + int(new.sum())

  def _is_alive(self, step: Any) -> bool:
    masks = [self._alive.get(y) for y in step.outputs]
    return any(mask is not None and mask.any() for mask in masks)

  def _terms(self, step: Any) -> list | None:
    """The second derivatives of a step as `Term`s; None if it has others."""
    if isinstance(step, Loop):
      return None
    structure = step.structure
    if not structure.curved and not structure.pairs:
      return []
    if self._paths.is_solution(step):
      return None
    if step.own_gradient is not None and op_of(step, self._walked):
      groups = [arrow.inputs for arrow in structure.arrows]
      return [
        Term(step, *each)
        for each in itertools.combinations_with_replacement(groups, 2)
      ]
    used = [k for k, value in enumerate(step.inputs) if value.depends]
    pairs = elementwise_pairs(step.op_type, used)
    kinds = {kind_of_squares(step, k, self._walked) for k in used}
    if pairs is None or kinds != {'elementwise'}:
      return None if not self._is_bilinear(step) else []
    arguments = {}
    for k in used:
      arguments.setdefault(step.inputs[k], []).append(k)
    groups = [tuple(which) for which in arguments.values()]
    return [
      Term(step, left, right)
      for a, left in enumerate(groups)
      for right in groups[a:]
      if any(
        (k in left and m in right) or (k in right and m in left)
        for k, m in pairs
      )
    ]

  def _is_bilinear(self, step: Step) -> bool:
    """Whether an op has no unmixed second derivative by any coordinate."""
    if step.structure.curved:
      return False
    return not self._entangled(step).any()

  def _entangled(self, step: Any) -> np.ndarray:
    """As `Paths.entangled`."""
    return self._paths.entangled(step, self._alive)

  def _curved(self, step: Any) -> list[tuple]:
    """As `Paths.curved`, in a list."""
    return list(
      self._paths.curved(step, self._alive, self._sets, self._numbers)
    )

  def _bad(self, term: Term) -> np.ndarray:
    """The coordinates for which a term is neither one square nor zero."""
    mask = self._alive[term.step.outputs[0]]
    sides = self._frontiers.rows(term).of(self._sets, self._numbers, mask)
    if term.is_square:
      return self._sets.members(sides[0], MANY)
    return self._sets.common(*sides)

  def _reached(self, term: Term) -> np.ndarray:
    """The coordinates that a term depends on, as a bool array."""
    sides = self._frontiers.rows(term).of(self._sets, self._numbers)
    return self._sets.members(np.concatenate(sides))

  def _in_front_of(self, frontier: Frontier | JointFrontier) -> np.ndarray:
    """The coordinates that reach the terms that a frontier replaces."""
    if isinstance(frontier, Frontier):
      return self._reached(frontier.term)
    sides = [s for step in frontier.steps for s in self._curved(step)]
    return self._sets.members(
      np.concatenate([side for s in sides for side in s])
    )

  def _classes(self, found: list, left_over: np.ndarray) -> tuple:
    """One sweep for each class of coordinates that have the same frontiers.

    Args:
      found: list of (frontier, bool array of the coordinates that it covers).
      left_over: bool array over the coordinates of all samples.

    Returns:
      sweeps: tuple of `Sweep`.
      left_over: bool array over the coordinates of one sample.
    """
    table = np.stack(
      [covered for _, covered in found] or [np.zeros(self._size, bool)]
    )
    folded = np.stack([self._of_one_sample(row) for row in table])
    left_over = self._of_one_sample(left_over)
    # A coordinate must be covered in all samples where it reaches the terms.
    for (frontier, covered), row in zip(found, folded):
      free = covered | ~self._in_front_of(frontier)
      left_over |= row & ~self._of_one_sample(free, np.all)
    kinds, place = _distinct_columns(folded[:, ~left_over])
    rest = np.flatnonzero(~left_over)
    counts = np.bincount(place, minlength=kinds.shape[1])
    sweeps = []
    for rank, k in enumerate(np.argsort(-counts, kind='stable')):
      coordinates = np.zeros(len(left_over), bool)
      coordinates[rest[place == k]] = True
      if rank >= _MAX_SWEEPS:
        left_over |= coordinates
        continue
      frontiers = [f for (f, _), has in zip(found, kinds[:, k]) if has]
      sweeps.append(_sweep(coordinates, frontiers, self._squares))
    return tuple(sweeps), left_over

  def _reaches(self, coordinates: np.ndarray, what: Value | Term) -> bool:
    """Whether some coordinates of one sample reach a value, or a term."""
    if what not in self._reach:
      found = (
        self._reached(what)
        if isinstance(what, Term)
        else self._sets.members(self._numbers[what])
      )
      self._reach[what] = self._of_one_sample(found)
    return bool(self._reach[what][coordinates].any())

  def _gives_third(self, frontier: Frontier) -> bool:
    """As `Sweeps.gives_third`."""
    term = frontier.term
    rows = term.step.inputs[term.left[0]]
    is_whole = rows.known_shape == term.step.outputs[0].known_shape
    if not term.is_square or not is_whole:
      return False
    for link in frontier.links:
      if link.value.zeros is not None:
        return False  # As in `JointFrontiers`.
      if link.is_by_rows and not self._leads_on_single_paths(link.value, rows):
        return False
      rows = link.value
    return True

  def _leads_on_single_paths(self, value: Value, rows: Value) -> bool:
    """Whether rows have unmixed second derivatives by a value in a sweep."""
    inside = self._frontiers.between(value, rows)
    sets = Multisets(value.rows)
    numbers = {value: sets.singletons(value.rows)}
    self._paths.spread(sets, numbers, inside, held=value)
    for step in inside:
      if isinstance(step, Loop):
        return False
      terms = self._terms(step)
      for sides in self._paths.curved(step, self._alive, sets, numbers):
        if len(sides) == 2:
          bad = sets.common(*sides)
        else:
          bad = terms is None or sets.members(sides[0], MANY)
        if np.any(bad):
          return False
    return True

  def _of_one_sample(
    self, mask: np.ndarray, join: Callable = np.any
  ) -> np.ndarray:
    """Whether something holds for a coordinate in any sample, or in all."""
    num_samples = self._walked.num_samples
    return np.concatenate(
      [
        join(mask[place].reshape(num_samples, -1), axis=0)
        for _, place in places(self._walked.inputs)
      ]
    )


def _steps_of(frontier: Frontier | JointFrontier) -> tuple:
  """The curved ops of which a frontier replaces terms."""
  if isinstance(frontier, Frontier):
    return (frontier.term.step,)
  return frontier.steps


def _distinct_columns(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The distinct columns of a bool array, and which one each column is."""
  place = np.zeros(table.shape[1], np.int64)
  for row in table:  # NumPy compares whole columns, which takes much longer.
    _, place = np.unique(2 * place + row, return_inverse=True)
  _, some, place = np.unique(place, return_index=True, return_inverse=True)
  return table[:, some], place


def _sweep(
  coordinates: np.ndarray, frontiers: Sequence, squares: Sequence
) -> Sweep:
  """The sweep of some coordinates that have the same frontiers."""
  single = [f for f in frontiers if isinstance(f, Frontier)]
  joints = [f for f in frontiers if isinstance(f, JointFrontier)]
  behind = {step for joint in joints for step in joint.steps}
  left_out = [f.term for f in single]
  left_out += [term for term in squares if term.step in behind]
  return Sweep(coordinates, frozenset(left_out), tuple(single), tuple(joints))
