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

Where paths part and meet again, there may be a tensor F in front of that, the
frontier, through which all of them go. If

1. each coordinate j has one path at most to each element e of F,
2. for each j and i, one e at most lies on paths from j to i,

then the product of entries is `A_ej^2 (C_a)_ie (C_b)_ie`, with the one e and
the derivatives `C` by the elements of F; the sweep goes on from F with
`p_e = sum_i w_i (C_a)_ie (C_b)_ie`. If

3. each e reaches one i only,

that is the product of two reverse passes from the op to F, seeded with w and
with ones; otherwise of two for each group of elements i that share no e.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_diag.sparsity import registry
from tfp_diag.sparsity.budget import PatternTooDenseError
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.multisets import EMPTY, MANY, Multisets, distinct_pairs
from tfp_diag.sparsity.registry import Squares
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.value import Value
from tfp_diag.sparsity.walk import Walked

__all__ = [
  'Frontier',
  'Sweep',
  'Sweeps',
  'Term',
  'find_sweeps',
  'kind_of_squares',
]

# A frontier takes two passes for each of so many rows at most.
_MAX_ROWS = 64
# So many classes of coordinates have a sweep of their own at most.
_MAX_SWEEPS = 8


class Term(NamedTuple):
  """The second derivatives of an elementwise op by two of its arguments.

  Attributes:
    step: `tape.Step`.
    left: tuple of the numbers of the inputs that are the one argument.
    right: likewise, of the other; the same tuple for a square.
  """

  step: Step
  left: tuple
  right: tuple

  @property
  def is_square(self) -> bool:
    """Whether both arguments are the same."""
    return self.left == self.right


class Frontier(NamedTuple):
  """A tensor through which all paths of some coordinates to a term go.

  Attributes:
    term: `Term`.
    value: `Value`.
    row_shape: tuple of int: the last axes of the op's result, whose elements
      depend on the same elements of the frontier; empty if no two do.
    work: `float`: the part of the work of the function that lies between.
  """

  term: Term
  value: Value
  row_shape: tuple
  work: float

  @property
  def num_rows(self) -> int:
    """How many pairs of passes it takes."""
    return math.prod(self.row_shape)


class Sweep(NamedTuple):
  """One reverse sweep, right for some coordinates.

  Attributes:
    coordinates: bool array over the coordinates of one sample.
    left_out: frozenset of the `Term`s that are not squared in it.
    frontiers: tuple of `Frontier`, which stand for these.
  """

  coordinates: np.ndarray
  left_out: frozenset
  frontiers: tuple


class Sweeps(NamedTuple):
  """How the diagonal of a Hessian comes from reverse sweeps.

  Attributes:
    walked: `Walked`.
    squares: tuple of the `Term`s that are squares.
    sweeps: tuple of `Sweep`.
    left_over: bool array over the coordinates of one sample that need passes.
    reasons: tuple of (label of an op, number of coordinates): where the paths
      of the `left_over` part.
  """

  walked: Walked
  squares: tuple
  sweeps: tuple
  left_over: np.ndarray
  reasons: tuple

  def only(self, sweeps: Sequence[Sweep]) -> 'Sweeps':
    """With some of the sweeps; what the others are for is left over."""
    done = np.zeros(len(self.left_over), bool)
    for one in sweeps:
      done |= one.coordinates
    reasons = dict(self.reasons)
    for one in self.sweeps:
      if not np.all(done[one.coordinates]):
        for term in one.left_out:
          reasons.setdefault(term.step.label, 0)
          reasons[term.step.label] += int(one.coordinates.sum())
    return self._replace(
      sweeps=tuple(sweeps), left_over=~done, reasons=tuple(reasons.items())
    )


def find_sweeps(walked: Walked) -> Sweeps | None:
  """Looks for the coordinates that need no pass.

  Args:
    walked: `Walked`, with second derivatives, of a scalar per sample.

  Returns:
    `Sweeps`, or None if there are none for want of memory.
  """
  try:
    return _Finder(walked).find()
  except PatternTooDenseError:
    return None


def kind_of_squares(step: Step, number: int, walked: Walked) -> Any:
  """How the squares of the derivatives of an op by an input are had.

  Args:
    step: `Step`.
    number: `int`, of the input.
    walked: `Walked`.

  Returns:
    'elementwise', a `Squares`, or None.
  """
  op = walked.at_hand(step.op)
  if op is None or step.is_fallback or not _is_plain(step, op):
    return None
  known = registry.facts(step.op_type)
  if known.elementwise is not None:
    return 'elementwise'
  squares = known.squares
  if squares is not None and not isinstance(squares, Squares):
    squares = squares(op)
  if squares is not None:
    return squares
  moved = known.moved_inputs
  moved = range(len(op.inputs))[moved] if isinstance(moved, slice) else moved
  return Squares.SAME if number in moved else None


def _is_plain(step: Step, op: Any) -> bool:
  """Whether the values are those of the op, and real numbers."""
  if len(step.inputs) != len(op.inputs):
    return False
  values = (*step.inputs, *step.outputs)
  return all(v.shape is not None for v in values) and not any(
    v.dtype.is_complex for v in values
  )


class _Finder:
  """Multiplicities of the values of a function, and what follows."""

  def __init__(self, walked: Walked) -> None:
    self._walked = walked
    self._steps = walked.tape.steps
    self._size = sum(v.rows for v in walked.inputs)
    self._sets = Multisets(self._size)
    self._seeds, start = {}, 0
    for value in walked.inputs:
      self._seeds[value] = self._sets.singletons(value.rows, start)
      start += value.rows
    self._alive = {v: np.ones(v.rows, bool) for v in walked.outputs}
    walked.tape.backward(self._alive)

  def find(self) -> Sweeps:
    """As `find_sweeps`."""
    self._numbers = self._spread(self._sets, dict(self._seeds), self._steps)
    squares, troubles, reasons = [], [], {}
    left_over = np.zeros(self._size, bool)
    for place, step in enumerate(self._steps):
      if not self._is_alive(step):
        continue
      terms = self._terms(step)
      if terms is None:
        self._leave(left_over, reasons, step, self._entangled(step))
        continue
      for term in terms:
        squares += [term] if term.is_square else []
        bad = self._bad(term)
        if bad.any():
          troubles.append((place, term, bad))
    found = []
    for place, term, bad in troubles:
      bad = bad & ~left_over
      for covered, frontier in self._frontiers(place, term, bad):
        found.append((frontier, covered))
        bad &= ~covered
      self._leave(left_over, reasons, term.step, bad)
    sweeps, left_over = self._classes(found, left_over)
    return Sweeps(
      self._walked,
      tuple(squares),
      sweeps,
      left_over,
      tuple(reasons.items()),
    )

  def _leave(
    self, left_over: np.ndarray, reasons: dict, step: Any, bad: np.ndarray
  ) -> None:
    """Leaves some coordinates to passes, and says because of what."""
    new = self._of_one_sample(bad & ~left_over)
    left_over |= bad
    if new.any():
      label = 'a loop' if isinstance(step, Loop) else step.label
      reasons[label] = reasons.get(label, 0) + int(new.sum())

  def _spread(
    self,
    sets: Multisets,
    numbers: dict,
    steps: Sequence,
    held: Value | None = None,
    counts: bool = True,
  ) -> dict:
    """The multisets of all values, from those of some.

    Args:
      sets: `Multisets`.
      numbers: dict from `Value` to int array; added to.
      steps: those to go through.
      held: `Value` that counts as constant, or None.
      counts: whether ops without squares count as many paths.

    Returns:
      dict from `Value` to int array.
    """
    for step in steps:
      if not any(value in numbers for value in step.inputs):
        continue
      if isinstance(step, Loop):
        self._spread_loop(sets, numbers, step)
        continue
      results = {}
      for arrow, flow in _distinct_arrows(step):
        output = step.outputs[arrow.output]
        inputs = [step.inputs[k] for k in arrow.inputs]
        if not output.depends or not any(v in numbers for v in inputs):
          continue
        before = [
          numbers[v] if v in numbers else np.zeros(v.rows, np.int64)
          for v in inputs
        ]
        after = sets.apply(
          flow, before[0] if len(before) == 1 else np.concatenate(before)
        )
        if counts and any(
          kind_of_squares(step, k, self._walked) is None for k in arrow.inputs
        ):
          after = sets.often(after)
        known = results.get(output)
        results[output] = after if known is None else sets.plus(known, after)
      for output, after in results.items():
        if output is not held:
          numbers[output] = after
    return numbers

  def _spread_loop(self, sets: Multisets, numbers: dict, loop: Loop) -> None:
    known = [numbers[v] for v in dict.fromkeys(loop.inputs) if v in numbers]
    everything = np.unique(np.concatenate(known))
    flow = Flow.dense(1, len(everything))
    (united,) = sets.often(sets.apply(flow, everything))
    for value in loop.outputs:
      if value.depends:
        numbers[value] = np.full(value.rows, united)

  def _is_alive(self, step: Any) -> bool:
    masks = [self._alive.get(y) for y in step.outputs]
    return any(mask is not None and mask.any() for mask in masks)

  def _terms(self, step: Any) -> list | None:
    """The second derivatives of a step; None if it has others than these."""
    if isinstance(step, Loop):
      return None
    structure = step.structure
    if not structure.curved and not structure.pairs:
      return []
    used = [k for k, value in enumerate(step.inputs) if value.depends]
    kinds = {kind_of_squares(step, k, self._walked) for k in used}
    if kinds != {'elementwise'}:
      return None if not self._is_bilinear(step) else []
    arguments = {}
    for k in used:
      arguments.setdefault(step.inputs[k], []).append(k)
    groups = [tuple(which) for which in arguments.values()]
    classes, *crosses = registry.facts(step.op_type).elementwise.split(',')
    pairs = [(k, k) for k, letter in enumerate(classes) if letter == 'c']
    pairs += [tuple(map(int, cross)) for cross in crosses]
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
    """Whether no coordinate has a second derivative in an op."""
    if step.structure.curved:
      return False
    return not self._entangled(step).any()

  def _entangled(self, step: Any) -> np.ndarray:
    """The coordinates that meet themselves in an op that is not elementwise."""
    found = np.zeros(self._size, bool)
    if isinstance(step, Loop):
      for value in step.inputs:
        if value in self._numbers:
          found |= self._sets.members(self._numbers[value])
      return found
    for k in step.structure.curved:
      number = self._numbers.get(step.outputs[k])
      mask = self._alive.get(step.outputs[k])
      if number is not None and mask is not None:
        found |= self._sets.members(number[mask])
    for pair in step.structure.pairs:
      sides = []
      for which, flow in (
        (pair.left_inputs, pair.left),
        (pair.right_inputs, pair.right),
      ):
        before = [
          self._numbers.get(v, np.zeros(v.rows, np.int64))
          for v in (step.inputs[k] for k in which)
        ]
        sides.append(self._sets.apply(flow, np.concatenate(before)))
      found |= self._sets.common(*sides)
    return found

  def _bad(self, term: Term) -> np.ndarray:
    """The coordinates for which a term is not one square, or zero."""
    mask = self._alive[term.step.outputs[0]]
    sides = self._sides(self._sets, self._numbers, term, mask)
    if term.is_square:
      return self._sets.members(sides[0], MANY)
    return self._sets.common(*sides)

  def _reached(self, term: Term) -> np.ndarray:
    """The coordinates that a term depends on, as a bool array."""
    sides = self._sides(self._sets, self._numbers, term)
    return self._sets.members(np.concatenate(sides))

  def _sides(
    self, sets: Multisets, numbers: dict, term: Term, mask: Any = slice(None)
  ) -> list[np.ndarray]:
    """The multisets of the two arguments of the elements of an op."""
    step = term.step
    sides = []
    for which in (term.left, term.right):
      flow = next(
        a.flow for a in step.structure.arrows if a.inputs == (which[0],)
      )
      value = step.inputs[which[0]]
      if value in numbers:
        sides.append(sets.apply(flow, numbers[value])[mask])
      else:
        sides.append(np.zeros(flow.rows, np.int64)[mask])
    return sides

  def _frontiers(
    self, place: int, term: Term, bad: np.ndarray
  ) -> Iterator[tuple]:
    """Where the paths of some coordinates to a term are still single.

    Args:
      place: of the step among all of them.
      term: `Term`.
      bad: bool array over coordinates.

    Yields:
      The coordinates that are covered, and `Frontier`.
    """
    bad = bad.copy()
    between = self._ancestors(place)
    for value in self._candidates(between):
      if not bad.any():
        return
      numbers = self._numbers[value]
      once = bad & self._sets.members(numbers)
      once &= ~self._sets.members(numbers, MANY)
      if not once.any():
        continue
      found = self._tried(value, term, once, between)
      if found is not None:
        yield found
        bad &= ~found[0]

  def _tried(
    self, value: Value, term: Term, once: np.ndarray, between: Sequence
  ) -> tuple | None:
    """Whether a value is a frontier for some coordinates, and for which."""
    shape = value.shape
    numbers = self._sets.within(self._numbers[value], once)
    rows = term.step.outputs[0].rows
    for rank in range(len(shape), -1, -1):
      blocks = math.prod(shape[:rank])
      if blocks > rows:
        continue
      block = np.arange(value.rows) // max(value.rows // max(blocks, 1), 1)
      united = self._sets.apply(Flow.collect(block, blocks), numbers)
      covered = once & ~self._sets.members(united, MANY)
      if not covered.any():
        # Larger blocks hold no fewer.
        return None
      inside = self._descendants(value, between)
      rows_of = self._rows_of_blocks(value, block, blocks, rank, term, inside)
      if rows_of is None:
        continue
      beside = self._reached_beside(value, term, inside)
      covered &= ~beside
      if not covered.any():
        return None
      work = sum(map(_work, inside)) / sum(map(_work, self._steps))
      return covered, Frontier(term, value, rows_of, work)
    return None

  def _rows_of_blocks(
    self,
    value: Value,
    block: np.ndarray,
    blocks: int,
    rank: int,
    term: Term,
    inside: Sequence,
  ) -> tuple | None:
    """The shape of the elements of a term that depend on one block of a value.

    None if one depends on several blocks; or if there are many, or not in
    order.
    """
    sets = Multisets(blocks)
    try:
      numbers = self._spread(
        sets, {value: 1 + block}, inside, held=value, counts=False
      )
    except PatternTooDenseError:
      return None
    sides = self._sides(sets, numbers, term)
    pairs, inverse = distinct_pairs(*sides)
    sizes = [len(_members(sets, pair)) for pair in pairs]
    if max(sizes, default=0) > 1:
      return None
    of_pair = [next(iter(_members(sets, pair)), -1) for pair in pairs]
    block_of_row = np.asarray(of_pair, np.int64)[inverse]
    reached = block_of_row >= 0
    if np.bincount(block_of_row[reached]).max(initial=0) <= 1:
      return ()
    output = term.step.outputs[0]
    shape = output.shape[rank:]
    op = self._walked.at_hand(term.step.op)
    in_order = np.arange(output.rows) // math.prod(shape)
    if (
      output.shape[:rank] != value.shape[:rank]
      or op is None
      or op.outputs[0].shape[rank:] != list(shape)
      or math.prod(shape) > _MAX_ROWS
      or np.any(reached & (block_of_row != in_order))
    ):
      return None
    return shape

  def _reached_beside(
    self, value: Value, term: Term, inside: Sequence
  ) -> np.ndarray:
    """The coordinates that reach a term on other ways than through a value."""
    after = {value, *(y for step in inside for y in step.outputs)}
    numbers = {v: n for v, n in self._numbers.items() if v not in after}
    self._spread(self._sets, numbers, inside, held=value, counts=False)
    found = np.zeros(self._size, bool)
    for side in self._sides(self._sets, numbers, term):
      found |= self._sets.members(side)
    return found

  def _ancestors(self, place: int) -> list:
    """The steps that lead to a step, in order, without it."""
    wanted = {v for v in self._steps[place].inputs if v.depends}
    found = []
    for step in reversed(self._steps[:place]):
      if any(y in wanted for y in step.outputs):
        found.append(step)
        wanted.update(v for v in step.inputs if v.depends)
    return found[::-1]

  def _descendants(self, value: Value, steps: Sequence) -> list:
    """Of some steps, those that depend on a value."""
    reached, found = {value}, []
    for step in steps:
      if any(v in reached for v in step.inputs):
        found.append(step)
        reached.update(step.outputs)
    return found

  def _candidates(self, between: Sequence) -> Iterator[Value]:
    """Values on the way to a term, the last ones first."""
    for step in reversed(between):
      if isinstance(step, Loop) or self._walked.at_hand(step.op) is None:
        continue
      yield from (y for y in step.outputs if y in self._numbers)
    yield from self._walked.inputs

  def _classes(self, found: list, left_over: np.ndarray) -> tuple:
    """Sweeps for the coordinates that have the same frontiers."""
    table = np.stack(
      [covered for _, covered in found] or [np.zeros(self._size, bool)]
    )
    folded = np.stack([self._of_one_sample(row) for row in table])
    left_over = self._of_one_sample(left_over)
    # What is covered in some samples must be covered in all that matter.
    for (frontier, covered), row in zip(found, folded):
      free = covered | ~self._reached(frontier.term)
      left_over |= row & ~self._of_one_sample(free, np.all)
    kinds, place = np.unique(folded[:, ~left_over], axis=1, return_inverse=True)
    place = place.reshape(-1)
    rest = np.flatnonzero(~left_over)
    counts = np.bincount(place, minlength=kinds.shape[1])
    sweeps = []
    for rank, k in enumerate(np.argsort(-counts, kind='stable')):
      coordinates = np.zeros(len(left_over), bool)
      coordinates[rest[place == k]] = True
      if rank >= _MAX_SWEEPS:
        left_over |= coordinates
        continue
      frontiers = [
        frontier for (frontier, _), has in zip(found, kinds[:, k]) if has
      ]
      sweeps.append(
        Sweep(
          coordinates,
          frozenset(f.term for f in frontiers),
          tuple(frontiers),
        )
      )
    return tuple(sweeps), left_over

  def _of_one_sample(
    self, mask: np.ndarray, join: Callable = np.any
  ) -> np.ndarray:
    """Whether something holds for a coordinate in any sample, or in all."""
    pieces, start = [], 0
    for value in self._walked.inputs:
      piece = mask[start : start + value.rows]
      start += value.rows
      pieces.append(join(piece.reshape(self._walked.num_samples, -1), axis=0))
    return np.concatenate(pieces)


def _members(sets: Multisets, pair: Collection[int]) -> set:
  table = sets.table
  return {
    int(k)
    for number in pair
    if number != EMPTY
    for k in table.indices[table.indptr[number] : table.indptr[number + 1]]
  }


def _distinct_arrows(step: Step) -> list[tuple]:
  """The arrows with their flows; an argument that is there twice is one.

  Of an elementwise op: `x * x` has one derivative by x.
  """
  is_elementwise = registry.facts(step.op_type).elementwise is not None
  seen, found = set(), []
  for arrow in step.structure.arrows:
    if is_elementwise and not step.is_fallback:
      key = arrow.output, step.inputs[arrow.inputs[0]]
      if key in seen:
        continue
      seen.add(key)
    found.append((arrow, arrow.flow))
  return found


def _work(step: Any) -> float:
  """About how long an op takes, next to others of its function."""
  if isinstance(step, Loop):
    return sum(map(_work, step.body.steps))
  sizes = [v.rows for v in (*step.inputs, *step.outputs) if v.rows]
  squares = registry.facts(step.op_type).squares
  if isinstance(squares, Squares) and squares is Squares.OPERANDS:
    # Of a product of matrices: how many products of numbers.
    return math.sqrt(math.prod(float(size) for size in sizes)) / 4
  return float(max(sizes, default=0))
