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
"""How many paths lead from the coordinates to the values of a function."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity import registry
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.multisets import MANY, Multisets
from tfp_diag.sparsity.registry import Squares
from tfp_diag.sparsity.structure import Pair
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.value import Value, places
from tfp_diag.sparsity.walk import Walked


class Paths:
  """How many paths lead from each coordinate to each element of each value.

  Attributes:
    walked: `Walked`.
    sets: `Multisets` of all coordinates of all samples.
    numbers: dict from `Value` to int array: the multiset of each element.
    wholes: dict from each step to that of the whole function, if this is one on
      few rows of its data; else empty.
  """

  def __init__(self, walked: Walked, wholes: Mapping | None = None) -> None:
    self.walked = walked
    self.wholes = wholes or {}
    self.sets = Multisets(sum(v.rows for v in walked.inputs))
    self.numbers = {
      value: self.sets.singletons(value.rows, place.start)
      for value, place in places(walked.inputs)
    }
    self.spread(self.sets, self.numbers, walked.tape.steps)

  def spread(
    self,
    sets: Multisets,
    numbers: dict,
    steps: Sequence,
    held: Value | None = None,
    counts: bool = True,
  ) -> dict:
    """Finds the multisets of the values that depend on some values.

    Args:
      sets: `Multisets`.
      numbers: dict from `Value` to int array; added to.
      steps: those to go through.
      held: `Value` that keeps the multisets that it has in `numbers`, if any;
        or None.
      counts: whether an op counts as many paths if the squares of its
        derivatives cannot be computed; see `kind_of_squares`.

    Returns:
      dict from `Value` to int array.
    """
    for step in steps:
      if not any(value in numbers for value in step.inputs):
        continue
      if isinstance(step, Loop):
        self._spread_loop(sets, numbers, step)
        continue
      terms = {}
      for arrow in _distinct_arrows(step):
        output = step.outputs[arrow.output]
        inputs = [step.inputs[k] for k in arrow.inputs]
        if output.depends and any(v in numbers for v in inputs):
          terms.setdefault(output, []).append(arrow)

      def reached(arrow, step=step):
        before = [_numbers_of(step.inputs[k], numbers) for k in arrow.inputs]
        after = sets.apply(
          arrow.flow, before[0] if len(before) == 1 else np.concatenate(before)
        )
        if counts and any(
          kind_of_squares(step, k, self.walked) is None for k in arrow.inputs
        ):
          after = sets.often(after)
        return after

      results = {
        output: sets.total(map(reached, arrows))
        for output, arrows in terms.items()
      }
      for output, after in results.items():
        if output is not held:
          numbers[output] = after
    return numbers

  def many(self) -> Iterator[Value]:
    """The values to which several paths lead from a coordinate."""
    for value, numbers in self.numbers.items():
      if self.sets.members(numbers, MANY).any():
        yield value

  def meetings(self, step: Step, alive: dict) -> Iterator[tuple]:
    """The pairs of coordinates by which an op can have second derivatives.

    Args:
      step: `Step`.
      alive: dict from `Value` to bool array: the elements that matter.

    Yields:
      Two `Dependency`s. Each coordinate in a row of the first one can have a
      second derivative with each one in the same row of the second.
    """
    for sides in self.curved(step, alive, self.sets, self.numbers):
      if len(sides) == 1:
        rows = self.sets.dependency(self.sets.distinct(*sides)[0])
        yield rows, rows
      else:
        pairs, _ = self.sets.pairs(*sides)
        yield tuple(self.sets.dependency(side) for side in pairs.T)

  def entangled(self, step: Step | Loop, alive: dict) -> np.ndarray:
    """The coordinates by which an op can have an unmixed second derivative.

    Args:
      step: `Step` or `Loop`.
      alive: dict from `Value` to bool array: the elements that matter.

    Returns:
      bool array over coordinates.
    """
    sets, numbers = self.sets, self.numbers
    found = np.zeros(sets.num_coordinates, bool)
    if isinstance(step, Step) and self.is_solution(step):
      # By one entry of the matrix alone that is a term with a square.
      mask = alive[step.outputs[0]]
      for pair in step.structure.pairs:
        left, right = self._sides(step, pair, sets, numbers, mask)
        if pair.left_inputs == pair.right_inputs:
          found |= sets.members(left, MANY)
        else:
          found |= sets.common(left, right)
      return found
    for sides in self.curved(step, alive, sets, numbers):
      one = len(sides) == 1
      found |= (sets.members if one else sets.common)(*sides)
    return found

  def is_solution(self, step: Step | Loop) -> bool:
    """Whether an op solves a linear system whose matrix depends on xs."""
    return (
      not isinstance(step, Loop)
      and step.inputs[0].depends
      and kind_of_squares(step, 0, self.walked) is Squares.INVERSE
    )

  def curved(
    self, step: Step | Loop, alive: dict, sets: Multisets, numbers: dict
  ) -> Iterator[tuple]:
    """The multisets between which an op can have second derivatives.

    Args:
      step: `Step` or `Loop`.
      alive: dict from `Value` to bool array: the elements that matter.
      sets: `Multisets`.
      numbers: dict from `Value` to int array, as `spread` returns it.

    Yields:
      tuple of one or two int arrays, numbers of multisets. One: there can be
      second derivatives between all members of each multiset. Two: between the
      members of a multiset of the first array and those of the multiset at the
      same position of the second.
    """
    if isinstance(step, Loop):
      known = [_numbers_of(v, numbers) for v in step.inputs if v.depends]
      everything, _ = sets.distinct(np.concatenate(known))
      united = sets.apply(Flow.dense(1, len(everything)), everything)
      yield (united,)
      return
    masks = [alive.get(y) for y in step.outputs]
    if all(mask is None or not mask.any() for mask in masks):
      return
    for k in step.structure.curved:
      if masks[k] is not None:
        rows = _numbers_of(step.outputs[k], numbers)[masks[k]]
        yield (rows,)
    for pair in step.structure.pairs:
      if pair.output is not None and masks[pair.output] is None:
        continue
      mask = slice(None) if pair.output is None else masks[pair.output]
      yield self._sides(step, pair, sets, numbers, mask)

  @staticmethod
  def _sides(
    step: Step, pair: Pair, sets: Multisets, numbers: dict, mask: Any
  ) -> tuple:
    """The multisets of the two sides of a pair, those in a mask."""
    sides = []
    for which, flow in pair.sides:
      before = [_numbers_of(step.inputs[k], numbers) for k in which]
      sides.append(sets.apply(flow, np.concatenate(before))[mask])
    return tuple(sides)

  def _spread_loop(self, sets: Multisets, numbers: dict, loop: Loop) -> None:
    known = [numbers[v] for v in dict.fromkeys(loop.inputs) if v in numbers]
    everything, _ = sets.distinct(np.concatenate(known))
    flow = Flow.dense(1, len(everything))
    (united,) = sets.often(sets.apply(flow, everything))
    for value in loop.outputs:
      if value.depends:
        numbers[value] = np.full(value.rows, united)


def _numbers_of(value: Value, numbers: dict) -> np.ndarray:
  known = numbers.get(value)
  return np.zeros(value.rows, np.int64) if known is None else known


def kind_of_squares(step: Step, number: int, walked: Walked) -> Any:
  """How the squared derivatives of an op by an input are computed.

  Args:
    step: `Step`.
    number: `int`, of the input.
    walked: `Walked`.

  Returns:
    'elementwise', a `Squares`, or None if they cannot be computed.
  """
  op = op_of(step, walked)
  if op is None:
    return None
  if step.own_gradient is not None:
    is_argument = any(number in a.inputs for a in step.structure.arrows)
    return 'elementwise' if is_argument else None
  if step.is_fallback or not _is_plain(step, op):
    return None
  known = registry.facts(step.op_type)
  if known.elementwise is not None:
    return 'elementwise'
  squares = known.squares
  if squares is not None and not isinstance(squares, Squares):
    squares = squares(op)
  if squares is not None:
    return squares
  return Squares.SAME if number in known.moved(len(op.inputs)) else None


def tensors_at_hand(walked: Walked) -> Iterator[tuple]:
  """The values of a function that are Tensors of the graph at hand.

  Args:
    walked: `Walked`.

  Yields:
    Pairs of a `Value` and its Tensor, without the parts.
  """
  for step in walked.tape.steps:
    if isinstance(step, Loop):
      continue
    op = op_of(step, walked)
    if op is not None and len(op.outputs) == len(step.outputs):
      yield from zip(step.outputs, op.outputs)


def op_of(step: Step, walked: Walked) -> tf.Operation | None:
  """The op of the graph at hand with the outputs of a step, or None."""
  own = step.own_gradient
  return walked.at_hand(step.op if own is None else own)


def _is_plain(step: Step, op: Any) -> bool:
  """Whether a step has the inputs of the op, real and of known shape."""
  if len(step.inputs) != len(op.inputs):
    return False
  values = (*step.inputs, *step.outputs)
  return all(v.shape is not None for v in values) and not any(
    v.dtype.is_complex for v in values
  )


def _distinct_arrows(step: Step) -> list:
  """The arrows of a step; equal ones of an elementwise op are one.

  `x * x` has one derivative with respect to x, so one arrow is enough. In
  `where(c, x, x)` the flows of the two arguments differ: both are kept.
  """
  is_elementwise = registry.facts(step.op_type).elementwise is not None
  seen, found = {}, []
  for arrow in step.structure.arrows:
    if is_elementwise and not step.is_fallback:
      key = arrow.output, step.inputs[arrow.inputs[0]]
      if any(_is_same(arrow.flow, flow) for flow in seen.get(key, ())):
        continue
      seen.setdefault(key, []).append(arrow.flow)
    found.append(arrow)
  return found


def _is_same(flow: Flow, other: Flow) -> bool:
  """Whether two flows are known to be the same."""
  if flow is other:
    return True
  if flow.columns != other.columns or len(flow.stages) != len(other.stages):
    return False
  return all(
    kind == also == 'gather' and np.array_equal(index, places)
    for (kind, index), (also, places) in zip(flow.stages, other.stages)
  )
