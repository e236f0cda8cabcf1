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
"""Tensors through which all paths of some coordinates to a curved op go.

Where the paths from a coordinate j to an element i of a curved op part and meet
again (see `unique_paths`), there may be an earlier tensor F, the frontier,
through which all of them go. If

1. each coordinate j has at most one path to each element e of F,
2. for each j and i, at most one e lies on paths from j to i,

then the product of entries `(J_a)_ij (J_b)_ij` is `A_ej^2 (C_a)_ie (C_b)_ie`
with this e. Here `A` is the derivative of F with respect to xs, and `C_a`,
`C_b` are those of the arguments of the op with respect to F. The sweep goes on
from F with `p_e = sum_i w_i (C_a)_ie (C_b)_ie`. If

3. each e reaches only one i,

then p is the product of two reverse passes from the op to F, seeded with w and
with ones. If not, there are two passes for each group of elements i that share
no e. Or if

4. each i depends on only one e,

then p is one reverse pass, seeded with w times the tangent of b for ones at F.
If not, there is one for each group of elements e that share no i.

Where only condition 1 fails, the sum over e of `p_e A_ej^2` is a term itself,
of the elements of F with the weights p. A further frontier is looked for. Where
there is none, F may be a fixed linear map of xs, the same for all samples, as
the predictor of a regression in centered effects. Its matrix is A, and one
product with the squared matrix gives the sum.
"""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfp_diag.sparsity import registry
from tfp_diag.sparsity.flow import Flow, block_of, broadcast, to_some
from tfp_diag.sparsity.multisets import EMPTY, MANY, Multisets
from tfp_diag.sparsity.paths import Paths, op_of, tensors_at_hand
from tfp_diag.sparsity.registry import Squares
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.traits import FixedMatrices
from tfp_diag.sparsity.value import Value, places

# The most groups of rows or elements for a frontier: each takes passes.
MAX_ROWS = 64
# Frontiers with at most this many groups are looked for before those with more,
# and a chain instead of one of them has to cost less.
_FEW_PASSES = 4
# The search for frontiers looks at this many elements, a few seconds' work, or
# at 20 times those of the function if that is more. An op counts `_STEP` more.
_EFFORT = 20_000_000
_STEP = 5_000
# If fewer passes than this can be saved, the search is shorter in proportion.
_MANY_PASSES = 16
# The most frontiers in a chain.
_MAX_LINKS = 3
# So many elements of a value are looked at before all of them, if these are so
# many times more.
_SOME = 256
_MANY_TIMES = 20


class Term(NamedTuple):
  """The second derivatives of an elementwise op by two of its arguments.

  Attributes:
    step: `tape.Step`.
    left: tuple of int: the numbers of the inputs that are the first argument.
    right: likewise, the second argument; equal to `left` for a square.
  """

  step: Step
  left: tuple
  right: tuple

  @property
  def is_square(self) -> bool:
    """Whether both arguments are the same."""
    return self.left == self.right


class Link(NamedTuple):
  """A tensor through which all paths of some coordinates to a term go.

  Attributes:
    value: `Value`.
    is_by_rows: whether passes are by condition 3 of the module; else by 4.
    shape: tuple of int: the sizes of the last axes of the term (by rows) or of
      the value. Each element of these axes is a group with passes of its own;
      empty if there is one group.
    work: `float`: the fraction of the work of the function that lies between
      the value and the term.
    mapped: `Value` that is the term, and a fixed linear map of the value: one
      product with the squared matrix takes the place of passes. Else None.
    matrix_passes: how many passes give that matrix.
    axis: where the axes of the samples begin in its result.
  """

  value: Value
  is_by_rows: bool
  shape: tuple
  work: float
  mapped: Value | None = None
  matrix_passes: int = 0
  axis: int = 0

  @property
  def num_passes(self) -> int:
    """How many groups have passes of their own."""
    return math.prod(self.shape)

  @property
  def cost(self) -> float:
    """The work of all of its passes; that of the function is one."""
    if self.mapped is not None:
      return self.work
    return (2 if self.is_by_rows else 3) * self.num_passes * self.work


class Frontier(NamedTuple):
  """A tensor to which the paths of some coordinates are single.

  Attributes:
    term: `Term` that is computed from there.
    links: tuple of `Link`, from the term towards xs; the last is the frontier.
  """

  term: Term
  links: tuple

  @property
  def value(self) -> Value:
    """The tensor from which the sweep goes on."""
    return self.links[-1].value

  @property
  def label(self) -> str:
    """How messages name the curved op."""
    return self.term.step.label

  @property
  def is_through_matrix(self) -> bool:
    """Whether a fixed matrix takes the place of single paths."""
    return self.links[-1].mapped is not None


class Rows(NamedTuple):
  """Two tensors that are multiplied element by element, in rows.

  Attributes:
    sides: pair of (`Value`, `Flow` to the rows); the flow is None if the rows
      are the elements of the value.
    shape: tuple of int, of the rows.
    tensor: A Tensor of the graph at hand with one element per row.
  """

  sides: tuple
  shape: tuple
  tensor: Any

  @property
  def size(self) -> int:
    """How many rows there are."""
    return math.prod(self.shape)

  def of(
    self, sets: Multisets, numbers: dict, mask: Any = slice(None)
  ) -> list[np.ndarray]:
    """The multisets of the two elements of each row, as two int arrays."""
    found = []
    for value, flow in self.sides:
      known = numbers.get(value)
      if known is None:
        known = np.zeros(value.rows, np.int64)
      found.append((known if flow is None else sets.apply(flow, known))[mask])
    return found


class Frontiers:
  """The search for frontiers."""

  def __init__(
    self,
    paths: Paths,
    num_passes: float,
    matrices: FixedMatrices | None = None,
  ) -> None:
    walked = paths.walked
    self._matrices = matrices
    self._mapped = set()
    self._walked = walked
    self._steps = walked.tape.steps
    self._sets = paths.sets
    self._numbers = paths.numbers
    self._spread = paths.spread
    self._wholes = paths.wholes
    self._total = self._work_of(self._steps)
    effort = max(_EFFORT, 20 * self._total)
    self._effort = effort * min(num_passes / _MANY_PASSES, 1.0)
    self._tensors = dict(tensors_at_hand(walked))
    # Derivatives by these do not cancel where those by xs do.
    for step in self._steps:
      if not isinstance(step, Loop):
        for value in step.copies:
          self._tensors.pop(value, None)
    self._places = {
      y: place for place, step in enumerate(self._steps) for y in step.outputs
    }
    self._known: dict[Value, np.ndarray] = {}

  @property
  def is_late(self) -> bool:
    """Whether the search was stopped because it took too long."""
    return self._effort <= 0

  def rows(self, term: Term) -> Rows:
    """The `Rows` of a term: its two arguments."""
    step = term.step
    op = op_of(step, self._walked)
    assert op is not None
    shape = step.outputs[0].known_shape
    arguments = [step.inputs[which[0]] for which in (term.left, term.right)]
    if registry.facts(step.op_type).elementwise or step.own_gradient:
      # Not as the op's arrows: where the other argument is zero they are
      # missing, but derivatives of the argument by itself are not zero.
      flows = [broadcast(v.known_shape, shape) for v in arguments]
    else:
      of_inputs = {a.inputs: a.flow for a in step.structure.arrows}
      flows = [of_inputs[which[:1]] for which in (term.left, term.right)]
    if step.cancelled is not None:
      # These rows are left out of what is added up, too.
      kept = np.broadcast_to(~step.cancelled, shape).reshape(-1)
      flows = [to_some(flow, kept) for flow in flows]
    return Rows(tuple(zip(arguments, flows)), shape, op.outputs[0])

  def of(self, term: Term, bad: np.ndarray) -> list[tuple]:
    """Finds frontiers for coordinates without single paths to a term.

    Args:
      term: `Term`.
      bad: bool array over coordinates.

    Returns:
      list of: a `Frontier`, and the coordinates that it covers.
    """
    place = self._steps.index(term.step)
    between = self._ancestors(term.step.inputs, place)
    return [
      (Frontier(term, links), covered)
      for covered, links in self._covers(self.rows(term), bad, between, 1)
    ]

  def _covers(
    self, rows: Rows, bad: np.ndarray, between: Sequence, depth: int
  ) -> list[tuple]:
    """Finds chains of links for some coordinates.

    Args:
      rows: `Rows` of a term.
      bad: bool array over coordinates.
      between: the steps that the term depends on.
      depth: the length of the chain, including the link that is looked for.

    Returns:
      list of: the coordinates that are covered, and a tuple of `Link`s.
    """
    # Those with single paths are no trouble, and yet can share a matrix.
    free = ~bad if depth == 1 else np.zeros_like(bad)
    found, bad = [], bad.copy()
    looked_at: dict[tuple, tuple] = {}
    # What a chain has to cost less than, for each coordinate.
    least = np.full(len(bad), np.inf)
    # First cheap links, then those that need a further one, then costly ones.
    kinds = ((True, 1), (False, 1), (True, _FEW_PASSES), (True, MAX_ROWS))
    for is_once, most in kinds:
      if most == MAX_ROWS and self._matrices is not None:
        for part, links in self._through_matrices(rows, bad, free, between):
          found.append((part, links))
          bad &= ~part
      parts = zip(self._walked.inputs, self._walked.graph.xs)
      for value, tensor in itertools.chain(self.candidates(between), parts):
        if not bad.any():
          return found
        reached, many = self._reaching(value)
        asked = bad & reached & (~many if is_once else many)
        # A further link with as many elements as rows is no progress.
        if not asked.any() or not (is_once or value.rows != rows.size):
          continue
        key = value, asked.tobytes()
        if key not in looked_at:
          inside = self.descendants(value, between)
          if not self.affords(inside):
            return found
          looked_at[key] = self._link(value, tensor, rows, asked, inside)
        covered, link = looked_at[key]
        if link is None:
          continue
        if link.num_passes > most:
          if is_once and link.num_passes <= _FEW_PASSES:
            least[covered] = np.minimum(least[covered], link.cost)
          continue
        if is_once:
          found.append((covered, (link,)))
          bad &= ~covered
        elif depth < _MAX_LINKS:
          ends = ((value, None), (value, None))
          inner = Rows(ends, value.known_shape, tensor)
          steps = self._ancestors([value], len(self._steps))
          for part, links in self._covers(inner, covered, steps, depth + 1):
            chain = (link, *links)
            part = part & (sum(each.cost for each in chain) < least)
            if part.any():
              found.append((part, chain))
              bad &= ~part
    return found

  def _reaching(self, value: Value) -> np.ndarray:
    """The coordinates on which a value depends, and those with many paths."""
    known = self._known.get(value)
    if known is None:
      numbers = self._numbers[value]
      found = [self._sets.members(numbers, often) for often in (1, MANY)]
      # The search asks for each term anew; bits are an eighth of the bytes.
      known = self._known[value] = np.packbits(found, axis=-1)
    count = self._sets.num_coordinates
    return np.unpackbits(known, axis=-1, count=count).view(bool)

  def _through_matrices(
    self, rows: Rows, bad: np.ndarray, free: np.ndarray, between: Sequence
  ) -> Iterator[tuple]:
    """Finds fixed linear maps of parts of xs from which a term is computed.

    Args:
      rows: `Rows` of the term.
      bad: bool array over coordinates.
      free: likewise: those that may be covered, too.
      between: the steps that the term depends on.

    Yields:
      The coordinates that are covered, and a pair of `Link`s.
    """
    assert self._matrices is not None
    bad, free = bad.copy(), free.copy()
    # One matrix rather than two: not of a value and of its negative, and those
    # of other terms first.
    rescaled = {
      step.outputs[0]
      for step in between
      if _has_one_argument(step) and self._matrices.is_fixed(step.outputs[0])
    }
    candidates = sorted(
      self.candidates(between), key=lambda pair: pair[0] not in self._mapped
    )
    for value, tensor in candidates:
      reached, _ = self._reaching(value)
      if value in rescaled or not np.any(bad & reached):
        continue
      axis = self._matrices.axis(value)
      if axis is None:
        continue
      inside = self.descendants(value, between)
      if not self.affords(inside):
        return
      asked = (bad | free) & reached
      covered, link = self._link(value, tensor, rows, asked, inside)
      if link is None or link.num_passes > _FEW_PASSES:
        continue
      for part, place in places(self._walked.inputs):
        here = np.zeros_like(covered)
        here[place] = covered[place]
        if not np.any(bad & here) or not self._matrices.fits(value, part):
          continue
        of_map = self.share(self.between(part, value))
        work = self._matrices.work(value, part, self._total, of_map)
        count = self._matrices.num_passes(part)
        last = Link(part, False, (), work, value, count, axis)
        self._mapped.add(value)
        yield here, (link, last)
        bad &= ~here
        free &= ~here

  def affords(self, inside: Sequence) -> bool:
    """Whether the search may look at some steps, which are counted."""
    self._effort -= sum(
      _STEP + sum(y.rows for y in step.outputs) for step in inside
    )
    return self._effort > 0

  def share(self, inside: Sequence) -> float:
    """About which fraction of the work of the function some steps do."""
    return self._work_of(inside) / self._total

  def _work_of(self, steps: Sequence) -> float:
    return sum(_work(self._wholes.get(step, step)) for step in steps)

  def _link(
    self,
    value: Value,
    tensor: Any,
    rows: Rows,
    asked: np.ndarray,
    inside: Sequence,
  ) -> tuple:
    """Checks whether a value can be a frontier.

    Args:
      value: `Value`.
      tensor: The Tensor of the graph at hand that it is.
      rows: `Rows` of the term.
      asked: bool array over coordinates.
      inside: the steps between the value and the term.

    Returns:
      covered: bool array: the coordinates for which it can be.
      link: `Link`, or None if it cannot be.
    """
    numbers = self._sets.within(self._numbers[value], asked)
    numbers = self._sets.support(numbers)
    ways = [self._by_rows(value, rows, numbers, asked, inside)]
    if ways[0] is None or ways[0][1].num_passes > 1:
      ways.append(self._by_columns(value, tensor, rows, numbers, asked, inside))
    ways = [way for way in ways if way is not None]
    if not ways:
      return asked, None
    covered, link = min(ways, key=lambda way: (-way[0].sum(), way[1].cost))
    covered = covered & ~self._reached_beside(value, rows, inside)
    return covered, link if covered.any() else None

  def _by_rows(
    self,
    value: Value,
    rows: Rows,
    numbers: np.ndarray,
    asked: np.ndarray,
    inside: Sequence,
  ) -> tuple | None:
    """Whether blocks of elements of a value reach few rows, none in common.

    Returns:
      The coordinates that reach at most one element of each block, and a
      `Link`; or None.
    """
    shape = value.known_shape
    for rank in range(len(shape), -1, -1):
      blocks = math.prod(shape[:rank])
      if blocks > rows.size:
        continue
      block = block_of(value.rows, blocks)
      united = self._sets.apply(Flow.collect(block, blocks), numbers)
      covered = asked & ~self._sets.members(united, MANY)
      if not covered.any():
        # Of larger blocks a coordinate reaches no fewer elements.
        return None
      row_shape = self._rows_of_blocks(value, block, rank, rows, inside)
      if row_shape is not None:
        return covered, Link(value, True, row_shape, self.share(inside))
    return None

  def _rows_of_blocks(
    self,
    value: Value,
    block: np.ndarray,
    rank: int,
    rows: Rows,
    inside: Sequence,
  ) -> tuple | None:
    """The shape of the rows that depend on one block of a value.

    It is None if a row depends on several blocks, if a block has too many rows,
    or if rows and blocks are not in the same order.
    """
    blocks = math.prod(value.known_shape[:rank])
    sets = Multisets(blocks)
    numbers = {value: 1 + block}
    self._spread(sets, numbers, inside, held=value, counts=False)
    united = sets.plus(*rows.of(sets, numbers))
    sizes = sets.sizes(united)
    if sizes.max(initial=0) > 1:
      return None
    block_of_row = np.full(rows.size, -1)
    block_of_row[sizes == 1] = sets.entries(united[sizes == 1])[1]
    reached = block_of_row >= 0
    if np.bincount(block_of_row[reached]).max(initial=0) <= 1:
      return ()
    shape = rows.shape[rank:]
    in_order = np.arange(rows.size) // max(math.prod(shape), 1)
    if (
      rows.shape[:rank] != value.known_shape[:rank]
      or not _has_last(rows.tensor, shape)
      or math.prod(shape) > MAX_ROWS
      or np.any(reached & (block_of_row != in_order))
    ):
      return None
    return shape

  def _by_columns(
    self,
    value: Value,
    tensor: Any,
    rows: Rows,
    numbers: np.ndarray,
    asked: np.ndarray,
    inside: Sequence,
  ) -> tuple | None:
    """Whether each row depends on few elements of a value.

    Returns:
      The coordinates that reach at most one of the elements of each row, and a
      `Link`; or None.
    """
    covered = asked
    for some in (self.some_elements(value), np.ones(value.rows, bool)):
      if some is None:
        continue
      sets = Multisets(value.rows)
      start = np.where(some, sets.singletons(value.rows), EMPTY)
      reach = {value: start}
      self._spread(sets, reach, inside, held=value, counts=False)
      united = sets.plus(*rows.of(sets, reach))
      covered = covered & ~self.meeting(sets, united, numbers)
      if not covered.any():
        return None
    shape = self.colors(sets, united, value, tensor)
    if shape is None:
      return None
    return covered, Link(value, False, shape, self.share(inside))

  @staticmethod
  def some_elements(value: Value) -> np.ndarray | None:
    """A few elements of a large value; None if it is small.

    Coordinates that meet in them meet among all elements. So most values that
    are no frontier are seen not to be one without looking at all elements.

    Args:
      value: `Value`.

    Returns:
      bool array, or None.
    """
    if value.rows < _MANY_TIMES * _SOME:
      return None
    return np.arange(value.rows) < _SOME

  def meeting(
    self, sets: Multisets, united: np.ndarray, numbers: np.ndarray
  ) -> np.ndarray:
    """The coordinates that reach two elements of a value in one multiset.

    Args:
      sets: `Multisets` of the elements of the value.
      united: int array, numbers of some of these multisets.
      numbers: int array: the multiset of coordinates of each element.

    Returns:
      bool array over coordinates.
    """
    united, _ = sets.distinct(united)
    united = united[sets.sizes(united) > 1]
    row, element = sets.entries(united)
    flow = Flow.pairs(row, element, len(united), sets.num_coordinates)
    return self._sets.members(self._sets.apply(flow, numbers), MANY)

  @staticmethod
  def colors(
    sets: Multisets, united: np.ndarray, value: Value, tensor: Any
  ) -> tuple | None:
    """The last axes of a value that tell elements of one multiset apart.

    Args:
      sets: `Multisets` of the elements of the value.
      united: int array, numbers of some of these multisets.
      value: `Value`.
      tensor: The Tensor of the graph at hand that it is.

    Returns:
      tuple of int, the sizes of these axes; None if they have too many
      elements.
    """
    united, _ = sets.distinct(united)
    sizes = sets.sizes(united)
    most = sizes.max(initial=0)
    if most > MAX_ROWS:
      return None
    row, element = sets.entries(united[sizes > 1])
    for rank in range(len(value.known_shape), -1, -1):
      shape = value.known_shape[rank:]
      count = math.prod(shape)
      if count > MAX_ROWS:
        return None
      # The elements in a row must have different colors.
      key = np.sort(row * count + element % max(count, 1))
      if count >= most and np.all(key[1:] != key[:-1]):
        return shape if _has_last(tensor, shape) else None
    return None

  def _reached_beside(
    self, value: Value, rows: Rows, inside: Sequence
  ) -> np.ndarray:
    """The coordinates that reach a term on paths that avoid a value."""
    after = {value, *(y for step in inside for y in step.outputs)}
    numbers = {v: n for v, n in self._numbers.items() if v not in after}
    self._spread(self._sets, numbers, inside, held=value, counts=False)
    return self._sets.members(np.concatenate(rows.of(self._sets, numbers)))

  def between(self, start: Value, end: Value) -> list:
    """The steps on the way from one value to another one."""
    steps = self._ancestors([end], len(self._steps))
    return self.descendants(start, steps)

  def _ancestors(self, values: Sequence, place: int) -> list:
    """The steps before a position that some values depend on, in order."""
    wanted = {v for v in values if v.depends}
    found = []
    for step in reversed(self._steps[:place]):
      if any(y in wanted for y in step.outputs):
        found.append(step)
        wanted.update(v for v in step.inputs if v.depends)
    return found[::-1]

  def descendants(self, value: Value, steps: Sequence) -> list:
    """Of some steps, those that depend on a value."""
    reached, found = {value}, []
    made = self._places.get(value, -1)
    first = bisect.bisect(steps, made, key=lambda s: self._places[s.outputs[0]])
    for step in steps[first:]:
      if not reached.isdisjoint(step.inputs):
        found.append(step)
        reached.update(step.outputs)
    return found

  def candidates(self, between: Sequence) -> Iterator[tuple]:
    """The values that some steps compute and their Tensors, the last first."""
    for step in reversed(between):
      for value in step.outputs:
        tensor = self._tensors.get(value)
        is_known = value in self._numbers and value.shape is not None
        # Passes between complex numbers would be other ones.
        is_known = is_known and not value.dtype.is_complex
        if is_known and tensor is not None:
          yield value, tensor


def _has_last(tensor: Any, shape: tuple) -> bool:
  """Whether a Tensor, or a part, is known to have these last axes."""
  if not shape:
    return True
  rank = tensor.shape.rank
  return rank is not None and tensor.shape[rank - len(shape) :] == list(shape)


def _has_one_argument(step: Any) -> bool:
  """Whether an elementwise op has one argument, of its own shape."""
  if isinstance(step, Loop) or not registry.facts(step.op_type).elementwise:
    return False
  arguments = {value for value in step.inputs if value.depends}
  return [v.known_shape for v in arguments] == [step.outputs[0].known_shape]


def _work(step: Any) -> float:
  """About how long an op takes, compared with others of its function."""
  if isinstance(step, Loop):
    return sum(map(_work, step.body.steps))
  sizes = [v.rows for v in (*step.inputs, *step.outputs) if v.rows]
  squares = registry.facts(step.op_type).squares
  if isinstance(squares, Squares) and squares is Squares.OPERANDS:
    # For a product of matrices: a quarter of the number of multiplications.
    return math.sqrt(math.prod(float(size) for size in sizes)) / 4
  return float(max(sizes, default=0))
