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
"""Tensors behind which all that is curved is differentiated together.

A likelihood is often a long formula of each row's predictor, in which paths
part and meet again many times. Instead of a frontier for each of its terms (see
`frontiers`) it can have one for all: a tensor F such that

1. each coordinate j has one path at most to each element e of F,
2. whatever is curved behind F is reached by j through F alone,
3. no two elements of F that j reaches meet in the second derivatives behind F.

Then all that is behind F adds `A_ej^2 H_ee`, with the Hessian H of the value by
the elements of F, and the sweep goes on from F with the diagonal of H. That is
a product of H with ones, if no two elements meet at all; otherwise with the
ones of each of some groups that keep apart what meets.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfp_diag.sparsity.frontiers import MAX_ROWS, Frontiers
from tfp_diag.sparsity.multisets import MANY, Multisets
from tfp_diag.sparsity.paths import Paths
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.value import Value

__all__ = ['JointFrontier', 'JointFrontiers']


class JointFrontier(NamedTuple):
  """A tensor behind which all that is curved is differentiated together.

  Attributes:
    value: `Value`.
    label: how messages name the op that computes it.
    steps: tuple of what is curved behind it, each a `Step` or a `Loop`.
    shape: tuple of int: the last axes of the value, whose elements have a
      product each; empty if one is enough.
    work: `float`: the part of the work of the function that lies behind.
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


class JointFrontiers:
  """The search for joint frontiers."""

  def __init__(self, paths: Paths, frontiers: Frontiers, alive: dict) -> None:
    self._paths = paths
    self._frontiers = frontiers
    self._alive = alive
    self._steps = paths.walked.tape.steps

  def of(self, troubles: Sequence) -> list[tuple]:
    """Where the paths of some coordinates to what is curved are single.

    Args:
      troubles: pairs of a `Step` or `Loop` that is curved, and a bool array:
        the coordinates that have many paths to it, or meet in it. Those that
        are covered are taken out.

    Returns:
      list of: a `JointFrontier`, and the coordinates that it covers.
    """
    found = []
    self._search(troubles, found)
    # Else what is left out for some had a sweep of its own for the others.
    self._search(self._bystanders(found), found)
    return [(joint, covered) for joint, covered in found if covered.any()]

  def _search(self, troubles: Sequence, found: list) -> None:
    """Adds joint frontiers to those that were found."""
    steps = self._steps
    for most in (1, MAX_ROWS):
      for value, tensor in self._frontiers.candidates(steps):
        inside = self._frontiers.descendants(value, steps)
        asked = self._asked(value, troubles, inside)
        if not asked.any():
          continue
        if not self._frontiers.affords(inside):
          return
        joint, covered = self._at(value, tensor, asked, inside)
        if joint is None or joint.num_passes > most:
          continue
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

  def _bystanders(self, found: Sequence) -> list[tuple]:
    """What is curved behind joint frontiers, and who reaches it beside them."""
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
    """The coordinates in trouble that have single paths to a value."""
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
    """The joint frontier at a value, or None; and which of the asked it has."""
    spread, frontiers = self._paths.spread, self._frontiers
    main = self._paths.sets
    sets = Multisets(value.rows)
    reach = {value: sets.singletons(value.rows)}
    spread(sets, reach, inside, held=value, counts=False)
    behind = {value, *(y for step in inside for y in step.outputs)}
    beside = {v: n for v, n in self._paths.numbers.items() if v not in behind}
    spread(main, beside, inside, held=value, counts=False)
    rows, curved, covered = [], {}, asked.copy()
    for step in inside:
      for sides in self._curved(step, sets, reach):
        curved[step] = True
        rows.append(sets.plus(*sides) if len(sides) == 2 else sides[0])
      for side in self._curved(step, main, beside):
        covered &= ~main.members(np.concatenate(side))
    if not rows or not covered.any():
      return None, covered
    united, _ = sets.distinct(np.concatenate(rows))
    shape = frontiers.colors(sets, united, value, tensor)
    if shape is None:
      return None, covered
    numbers = main.support(main.within(self._paths.numbers[value], covered))
    covered &= ~frontiers.meeting(sets, united, numbers)
    label = next(step.label for step in self._steps if value in step.outputs)
    joint = JointFrontier(
      value, label, tuple(curved), shape, frontiers.share(inside)
    )
    return joint if covered.any() else None, covered

  def _curved(self, step: Step | Loop, sets: Multisets, numbers: dict) -> list:
    """As `Paths.curved`; nothing of a loop that none of the numbers reach."""
    if isinstance(step, Loop) and not any(v in numbers for v in step.inputs):
      return []
    return list(self._paths.curved(step, self._alive, sets, numbers))
