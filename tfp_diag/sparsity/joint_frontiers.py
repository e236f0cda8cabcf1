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
"""Tensors after which all curved ops are differentiated together.

A likelihood is often a long formula of each row's predictor, in which paths
part and meet again many times. Instead of a frontier for each of its terms (see
`frontiers`) it can have one for all: a tensor F such that

1. each coordinate j has at most one path to each element e of F,
2. j reaches the curved ops after F through F alone,
3. no two elements of F that j reaches have a mixed second derivative.

Then the curved ops after F together add the sum over e of `A_ej^2 H_ee`, with
the derivative A of F with respect to xs, and the Hessian H of the function's
value with respect to F. The sweep goes on from F with the diagonal of H. That
is one product of H with ones if no two elements of F have a mixed second
derivative; otherwise one for each group of elements that have none.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_diag.sparsity.frontiers import MAX_ROWS, Frontiers
from tfp_diag.sparsity.multisets import EMPTY, MANY, Multisets
from tfp_diag.sparsity.paths import Paths
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.value import Value


class JointFrontier(NamedTuple):
  """A tensor after which all curved ops are differentiated together.

  Attributes:
    value: `Value`.
    label: how messages name the op that computes it.
    steps: tuple of the curved steps after it, each a `Step` or a `Loop`.
    shape: tuple of int: the sizes of the last axes of the value. Each element
      of these axes is a group with a product of its own; empty if there is one
      group.
    work: `float`: the fraction of the work of the function that comes after it.
  """

  value: Value
  label: str
  steps: tuple
  shape: tuple
  work: float

  @property
  def num_passes(self) -> int:
    """How many products with the Hessian it takes."""
    return int(np.prod(self.shape))

  @property
  def cost(self) -> float:
    """The work of all of its products; that of the function is one."""
    return self.num_passes * self.work


class JointFrontiers:
  """The search for joint frontiers."""

  def __init__(self, paths: Paths, frontiers: Frontiers, alive: dict) -> None:
    self._paths = paths
    self._frontiers = frontiers
    self._alive = alive
    self._steps = paths.walked.tape.steps
    self._seen = {}

  def of(self, troubles: Sequence) -> list[tuple]:
    """Finds joint frontiers for coordinates without single paths.

    Args:
      troubles: pairs of a curved `Step` or `Loop`, and a bool array over
        coordinates: those without single paths to it. The arrays are changed:
        those that are covered become False.

    Returns:
      list of: a `JointFrontier`, and the coordinates that it covers.
    """
    found = []
    self._search(troubles, found)
    # Others that reach the same steps are covered, too, where they can share a
    # sweep then: otherwise they would need one of their own.
    self._search(self._bystanders(found), found, may_meet=False)
    return [(joint, covered) for joint, covered in found if covered.any()]

  def _search(
    self, troubles: Sequence, found: list, may_meet: bool = True
  ) -> None:
    """Adds joint frontiers to the list of those that were found.

    Args:
      troubles: As for `of`.
      found: list of a `JointFrontier`, and the coordinates that it covers.
      may_meet: whether a coordinate may reach one frontier, and be covered by
        another one, for the same steps. That takes a sweep for each of them.
    """
    steps = self._steps
    for most in (1, MAX_ROWS):
      for value, tensor in self._frontiers.candidates(steps):
        inside = self._frontiers.descendants(value, steps)
        asked = self._asked(value, troubles, inside)
        if not asked.any():
          continue
        if not self._frontiers.affords(inside):
          return
        key = value, asked.tobytes()
        if key not in self._seen:
          self._seen[key] = self._at(value, tensor, asked, inside)
        joint, covered = self._seen[key]
        if joint is None or joint.num_passes > most:
          continue
        if not may_meet and not self._saves_a_sweep(joint, found):
          continue
        covered = covered.copy()
        for other, known in found:
          # What is covered twice would be counted twice.
          shared = set(other.steps).intersection(joint.steps)
          if len(shared) == len(other.steps):
            known &= ~covered
          elif shared:
            covered &= ~known
        for step, bad in troubles:
          if step in joint.steps:
            bad &= ~covered
        found.append((joint, covered))

  def _saves_a_sweep(self, joint: JointFrontier, found: Sequence) -> bool:
    """Whether a joint frontier beside others costs less than a sweep."""
    if joint.cost >= 1.0:
      return False
    # What another one covers for the same steps must not reach it.
    reached = self._paths.sets.members(self._paths.numbers[joint.value])
    return not any(
      other.value is not joint.value
      and not set(other.steps).isdisjoint(joint.steps)
      and np.any(reached & covered)
      for other, covered in found
    )

  def _bystanders(self, found: Sequence) -> list[tuple]:
    """Pairs of a step after joint frontiers, and uncovered coordinates."""
    covered_at = {}
    for joint, covered in found:
      for step in joint.steps:
        covered_at.setdefault(step, []).append(covered)
    sets, numbers = self._paths.sets, self._paths.numbers
    bystanders = []
    for step, covered in covered_at.items():
      sides = self._curved(step, sets, numbers)
      reached = sets.members(
        np.concatenate([s for each in sides for s in each])
      )
      bystanders.append((step, reached & ~np.any(covered, axis=0)))
    return bystanders

  def _asked(
    self, value: Value, troubles: Sequence, inside: Sequence
  ) -> np.ndarray:
    """The coordinates in `troubles` that have single paths to a value."""
    sets, numbers = self._paths.sets, self._paths.numbers[value]
    behind = set(inside)
    asked = np.zeros(sets.num_coordinates, bool)
    for step, bad in troubles:
      if step in behind:
        asked |= bad
    if asked.any():
      asked &= sets.members(numbers) & ~sets.members(numbers, MANY)
    return asked

  def _at(
    self, value: Value, tensor: object, asked: np.ndarray, inside: Sequence
  ) -> tuple:
    """The joint frontier at a value, or None; and the coordinates it covers."""
    if value.zeros is not None:
      # Factors that are zero for all xs have mixed derivatives all the same.
      return None, asked
    frontiers, main = self._frontiers, self._paths.sets
    behind = {value, *(y for step in inside for y in step.outputs)}
    beside = {v: n for v, n in self._paths.numbers.items() if v not in behind}
    self._paths.spread(main, beside, inside, held=value, counts=False)
    covered = asked.copy()
    for step in inside:
      for side in self._curved(step, main, beside):
        covered &= ~main.members(np.concatenate(side))
    some = frontiers.some_elements(value)
    if some is not None:
      # Coordinates that meet here meet among all elements, too.
      sets, united, _ = self._together(value, inside, some)
      numbers = main.support(main.within(self._paths.numbers[value], covered))
      covered &= ~frontiers.meeting(sets, united, numbers)
    if not covered.any():
      return None, covered
    sets, united, curved = self._together(value, inside)
    shape = frontiers.colors(sets, united, value, tensor)
    if shape is None or not curved:
      return None, covered
    numbers = main.support(main.within(self._paths.numbers[value], covered))
    covered &= ~frontiers.meeting(sets, united, numbers)
    label = next(step.label for step in self._steps if value in step.outputs)
    joint = JointFrontier(value, label, curved, shape, frontiers.share(inside))
    return joint if covered.any() else None, covered

  def _together(
    self, value: Value, inside: Sequence, some: np.ndarray | None = None
  ) -> tuple:
    """The elements of a value that can have mixed second derivatives.

    Args:
      value: `Value`.
      inside: the steps that depend on it.
      some: bool array: the elements that count; None: all.

    Returns:
      sets: `Multisets` of the elements of the value.
      united: int array, numbers of multisets. Elements of the same multiset can
        have mixed second derivatives.
      curved: tuple of the steps by which they can.
    """
    sets = Multisets(value.rows)
    start = sets.singletons(value.rows)
    reach = {value: start if some is None else np.where(some, start, EMPTY)}
    self._paths.spread(sets, reach, inside, held=value, counts=False)
    rows, curved = [np.zeros(0, np.int64)], {}
    for step in inside:
      for sides in self._curved(step, sets, reach):
        # A product with what does not depend on the value is linear in it.
        met = np.all([side != EMPTY for side in sides], axis=0)
        if met.any():
          curved[step] = True
          sides = [side[met] for side in sides]
          rows.append(sets.plus(*sides) if len(sides) == 2 else sides[0])
    return sets, sets.distinct(np.concatenate(rows))[0], tuple(curved)

  def _curved(self, step: Step | Loop, sets: Multisets, numbers: dict) -> list:
    """As `Paths.curved`; nothing for a loop without inputs in `numbers`."""
    if isinstance(step, Loop) and not any(v in numbers for v in step.inputs):
      return []
    return list(self._paths.curved(step, self._alive, sets, numbers))
