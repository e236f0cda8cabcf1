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
"""Which derivatives of a function lie on paths that return.

An entry `dy_i / dx_i` of the diagonal is a sum over the paths from coordinate i
to result i. Say that such a path returns. A derivative of one op, of element e
of its result by element k of an argument, lies on a path that returns if and
only if one coordinate is among those on which k depends and those of the
results that e reaches. All others can be left out: the diagonal stays as it is,
and what is left of the Jacobian may have few colors. In the forces of particles

    y_i = sum over j of phi(x_i - x_j)

element (i, j) of the difference reaches result i alone, and is derived by x_i,
and by x_j where i = j: what was dense has one color for each dimension.

A derivative is left out where a product with a bool array does it: with the
cotangent of the result of an op, with that of an argument, or with the other
factor, where an op adds up products. What these cannot tell apart is kept.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity import budget
from tfp_diag.sparsity.dependency import Csr, Dependency
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.registry import facts
from tfp_diag.sparsity.structure import Arrow, Structure
from tfp_diag.sparsity.tape import Loop, Step, Tape
from tfp_diag.sparsity.traits import Facts
from tfp_diag.sparsity.value import Value, places

# So many derivatives of one op are looked at; of one with more all are kept.
_MOST_ENTRIES = 4_000_000
# So many coordinates are compared for them.
_MOST_COMPARED = 20_000_000


class Argument(NamedTuple):
  """An argument of an op, and by which of its elements the op is derived.

  The arrays are of the shape of an event, or None for ones.

  Attributes:
    inputs: `tuple` of int, the numbers of the inputs that are this argument.
    of_result: bool array, over the elements of the result.
    of_argument: bool array, over those of the argument.
    factor: int, the number of the input with which it is multiplied.
    of_factor: bool array, over the elements of that input; of its whole shape
      where it is the same for all samples.
  """

  inputs: tuple
  of_result: np.ndarray | None
  of_argument: np.ndarray | None
  factor: int = -1
  of_factor: np.ndarray | None = None


class Part(NamedTuple):
  """An op of which some derivatives are left out.

  Attributes:
    op: `tf.Operation` of the graph at hand.
    arguments: `tuple` of `Argument`: those by which it is derived at all.
  """

  op: tf.Operation
  arguments: tuple


class Returning(NamedTuple):
  """The derivatives that lie on paths that return.

  Attributes:
    levels: `tuple` of tuples of `Part`, from the results back to xs: a part
      depends on parts of later levels only.
    tape: `Tape` of what is left of the function.
  """

  levels: tuple
  tape: Tape


def find_returning(tape: Tape, facts_of_values: Facts) -> Returning | None:
  """Looks for derivatives that no entry of the diagonal needs.

  Args:
    tape: `Tape` of a function, or of what is left of it while some values are
      held.
    facts_of_values: `Facts` of its values; its outputs have the shapes of the
      parts of xs.

  Returns:
    `Returning`, or None if nothing can be left out.

  Raises:
    PatternTooDenseError: If dependencies have too many entries.
  """
  if any(isinstance(step, Loop) for step in tape.steps):
    return None
  return _Finder(tape, facts_of_values).find()


class _Finder:
  """The search in one function."""

  def __init__(self, tape: Tape, facts_of_values: Facts) -> None:
    self._walked = walked = facts_of_values.walked
    self._tape = tape
    self._facts = facts_of_values
    size = sum(v.rows for v in walked.inputs)
    self._before, self._after = (_Sets(size) for _ in range(2))
    for sets, values in (
      (self._before, walked.inputs),
      (self._after, walked.outputs),
    ):
      for value, place in places(values):
        sets.add(value, Dependency.identity(value.rows, place.start))

  def find(self) -> Returning | None:
    """As `find_returning`."""
    steps = self._tape.steps
    self._tape.forward(self._before.of, self._before.groups)
    found, kept = {}, []
    for step in reversed(steps):
      part, step_kept = self._reduced(step)
      if part is not None:
        found[step] = part
      kept.append(step_kept)
      self._after.pull(step_kept)
    if not found or not self._leave_out_the_cancelled(found):
      return None
    return Returning(self._levels(found), Tape(reversed(kept)))

  def _leave_out_the_cancelled(self, found: dict) -> bool:
    """Whether what cancels can be left out: one side of it alone may be now."""
    for step in self._tape.steps:
      if step.cancelled is None:
        continue
      part = found.get(step) or self._whole(step)
      if part is None:
        return False
      kept = ~step.cancelled
      arguments = [
        a._replace(
          of_result=kept if a.of_result is None else kept & a.of_result
        )
        for a in part.arguments
      ]
      found[step] = part._replace(arguments=tuple(arguments))
    return True

  def _whole(self, step: Step) -> Part | None:
    """A step of which nothing is left out, if that can be."""
    op = self._walked.at_hand(step.op)
    if op is None or len(step.outputs) > 1:
      return None
    return Part(op, tuple(Argument(k, None, None) for k in _arguments(step)))

  def _levels(self, found: dict) -> tuple:
    """The parts, in an order in which cotangents are known."""
    depth, levels = {}, {}
    for step in self._tape.steps:
      below = max((depth.get(v, 0) for v in step.inputs), default=0)
      if step in found:
        levels.setdefault(below, []).append(found[step])
        below += 1
      depth.update((y, below) for y in step.outputs)
    return tuple(tuple(levels[k]) for k in sorted(levels, reverse=True))

  def _reduced(self, step: Step) -> tuple[Part | None, Step]:
    """A step without the derivatives that are not needed, and how."""
    whole = self._whole(step)
    result = step.outputs[0]
    if (
      whole is None
      or step.is_fallback
      or step.own_gradient is not None
      or not result.dtype.is_floating
      or result not in self._facts.leading
      or result not in self._after.of
    ):
      return None, step
    arguments, arrows, is_less = [], [], False
    for inputs, value in _arguments(step).items():
      own = [a for a in step.structure.arrows if set(a.inputs) & set(inputs)]
      if any(len(a.inputs) > 1 for a in own):
        return None, step
      argument, flow = self._argument(step, value, inputs, own)
      if flow is None:
        arguments.append(Argument(inputs, None, None))
        arrows += own
        continue
      is_less = True
      if argument is not None:
        arguments.append(argument)
        arrows.append(Arrow(0, (inputs[0],), flow))
    if not is_less:
      return None, step
    less = dataclasses.replace(step, structure=Structure(tuple(arrows)))
    return whole._replace(arguments=tuple(arguments)), less

  def _argument(
    self, step: Step, value: Value, inputs: tuple, arrows: Sequence
  ) -> tuple[Argument | None, Flow | None]:
    """By which elements a result is derived by an argument, if not by all.

    Returns:
      argument: `Argument`; None if by none.
      flow: `Flow` of these; None if all derivatives are kept.
    """
    if not arrows or value not in self._facts.leading:
      return None, None
    with contextlib.suppress(budget.PatternTooDenseError):
      with budget.at_most(_MOST_ENTRIES):
        return self._less(step, value, inputs, arrows)
    return None, None

  def _less(
    self, step: Step, value: Value, inputs: tuple, arrows: Sequence
  ) -> tuple[Argument | None, Flow | None]:
    """As `_argument`; may find that there is too much to look at."""
    result, entries = step.outputs[0], _entries(step, inputs, arrows)
    if entries is None:
      return None, None
    rows, columns, weights = entries
    returns, is_zero = self._meet(result, rows, value, columns)
    # What is zero anyway is no reason for a mask, but goes where there is one.
    if np.all(returns | is_zero):
      return None, None
    of_result, kept = self._mask(result, rows, returns)
    of_argument, kept_columns = self._mask(value, columns, returns)
    kept &= kept_columns
    argument = Argument(inputs, of_result, of_argument)
    if weights is not None:
      factor = 1 - inputs[0]
      found = self._of_factor(step, factor, weights, returns)
      if found is None:
        return None, None
      of_factor, kept_weights = found
      kept &= kept_weights
      argument = argument._replace(factor=factor, of_factor=of_factor)
    if kept.all():
      return None, None
    flow = Flow.pairs(rows[kept], columns[kept], result.rows, value.rows)
    return (argument if kept.any() else None), flow

  def _of_factor(
    self, step: Step, number: int, places: np.ndarray, needed: np.ndarray
  ) -> tuple | None:
    """As `_mask`, of an input that is a factor; None if it cannot be masked."""
    factor, rank = step.inputs[number], self._walked.sample_rank
    op = self._walked.at_hand(step.op)
    assert op is not None
    shape, at_hand = factor.known_shape, op.inputs[number].shape
    if factor.depends:
      has_samples = factor in self._facts.leading
    elif at_hand.is_fully_defined() and tuple(at_hand) == shape:
      mask = np.zeros(factor.rows, bool)
      mask[places[needed]] = True
      return mask.reshape(shape), mask[places]
    else:
      # There may be other samples at hand than were walked.
      has_samples = (
        shape[:rank] == self._walked.sample_shape
        and at_hand.rank is not None
        and tuple(at_hand[rank:]) == shape[rank:]
      )
    return self._mask(factor, places, needed) if has_samples else None

  def _mask(
    self, value: Value, places: np.ndarray, needed: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Which elements of a value are needed in any sample.

    Args:
      value: `Value` whose leading axes are the samples.
      places: int array, the place in it that each derivative has.
      needed: bool array, which derivatives are needed.

    Returns:
      mask: bool array over an event.
      kept: bool array, the derivatives that it keeps.
    """
    mask = np.zeros(value.rows, bool)
    mask[places[needed]] = True
    event_shape = value.known_shape[self._walked.sample_rank :]
    mask = mask.reshape(self._walked.num_samples, *event_shape)
    of_event = np.any(mask, axis=0)
    return of_event, np.broadcast_to(of_event, mask.shape).ravel()[places]

  def _meet(
    self, result: Value, rows: np.ndarray, value: Value, columns: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Whether each derivative lies on a path that returns, and on none."""
    reached, of_row = self._after.distinct(result)
    known, of_column = self._before.distinct(value)
    width = known.shape[0]
    pairs, place = np.unique(
      of_row[rows].astype(np.int64) * width + of_column[columns],
      return_inverse=True,
    )
    first, second = np.divmod(pairs, width)
    returns = _have_common(reached, first, known, second)
    is_zero = (_counts(reached) == 0)[first] | (_counts(known) == 0)[second]
    return returns[place], is_zero[place]


def _entries(step: Step, inputs: tuple, arrows: Sequence) -> tuple | None:
  """The derivatives of an op by an argument that can be nonzero.

  Args:
    step: `Step`.
    inputs: tuple of int, the inputs that are the argument.
    arrows: list of their `Arrow`s.

  Returns:
    Three int arrays: the place in the result and in the argument that each one
    has; and in the other factor, of an op that adds up products, else None.
    None if it does not say.
  """
  flow = arrows[0].flow.to_dependency()
  for arrow in arrows[1:]:
    flow = flow.union(arrow.flow.to_dependency())
  rows, columns = flow.row_of_entry, flow.indices
  find = facts(step.op_type).products
  if find is None:
    return rows, columns, None
  shapes = [v.known_shape for v in (step.outputs[0], *step.inputs)]
  found = find(step.op, shapes, _MOST_ENTRIES)
  if found is None:
    return None
  (number,) = inputs
  results, *factors = found
  # Where the other factor is known to be zero there is no derivative.
  width = step.inputs[number].rows
  known = np.isin(results * width + factors[number], rows * width + columns)
  return results[known], factors[number][known], factors[1 - number][known]


def _arguments(step: Step) -> dict:
  """The inputs that depend on xs, as tuples of numbers, and their values.

  The same value twice is one argument, but for an op that adds up products:
  each factor has derivatives of its own.
  """
  found = {}
  for k, value in enumerate(step.inputs):
    if value.depends:
      key = k if facts(step.op_type).products else value
      found.setdefault(key, []).append(k)
  return {tuple(inputs): step.inputs[inputs[0]] for inputs in found.values()}


def _have_common(
  left: Csr, first: np.ndarray, right: Csr, second: np.ndarray
) -> np.ndarray:
  """Whether some pairs of sets, which are rows of two matrices, intersect."""
  work = _counts(left)[first].sum() + _counts(right)[second].sum()
  if work <= _MOST_COMPARED:
    return _counts(left[first].multiply(right[second]).tocsr()) > 0
  if max(left.shape[0], right.shape[0]) * left.shape[1] > _MOST_COMPARED:
    raise budget.PatternTooDenseError('Too many elements reach too many.')
  # As a product of matrices: exact, for the counts are small.
  left, right = (m.astype(np.float32).toarray() for m in (left, right))
  return (left @ right.T)[first, second] > 0


def _counts(sets: Csr) -> np.ndarray:
  return np.diff(sets.indptr)


class _Sets:
  """For values, the coordinates on which their elements depend, or reach."""

  def __init__(self, size: int) -> None:
    self.groups = Groups(size)
    self.of: dict = {}
    self._distinct: dict = {}
    self._size = size

  def add(self, value: Value, dependency: Dependency) -> None:
    """Adds to what is known of a value."""
    known = self.of.get(value)
    self.of[value] = dependency if known is None else known.union(dependency)

  def pull(self, step: Step) -> None:
    """Adds what the arguments of a step reach through it."""
    settle = self.groups.settle
    for arrow in step.structure.arrows:
      reached = self.of.get(step.outputs[arrow.output])
      if reached is None:
        continue
      pulled = arrow.flow.transpose().apply(reached, settle)
      for value, place in places(step.inputs[k] for k in arrow.inputs):
        if value.depends:
          self.add(value, pulled.gather(np.r_[place]))

  def distinct(self, value: Value) -> tuple[Csr, np.ndarray]:
    """The distinct sets of a value, and which one each element has."""
    if value not in self._distinct:
      dependency = self.of.get(value, Dependency.empty(value.rows))
      first, inverse = dependency.distinct_rows()
      sets = self.groups.expand(dependency.gather(first))
      self._distinct[value] = sets.to_matrix(self._size), inverse
    return self._distinct[value]
