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
"""Whether a few rows of data can stand for all.

A likelihood works on each row of a data set in the same way: whichever two rows
are exchanged, the same paths lead through its ops. If this is so, what holds
for the paths through few rows holds for those through all, and a search among
paths need not look at 100,000 rows.

Let one size N be that of the rows. An axis of that size numbers the rows: an
element of a tensor with such an axis belongs to a row, and is told from others
of this row by its class, its place along the other axes. Elements of other
tensors are shared. The rows are alike if each flow of the tape leads

- from an element of a row to elements of the same row, and to shared ones;
- from a shared element to shared ones, or to the elements of a class;
- from the elements of a class in each row alike.

Then the flows commute with each permutation of the rows. By induction over the
tape, two elements of given classes, in one row or in two, are connected by no
path, one, or more than one, however many other rows there are, as long as there
are two. What is asked of paths, in `frontiers` for example, is about two
elements and what they share, so a few rows answer it. There are more of them
than the most groups that a frontier may have: no axis of rows can be such a
group.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.frontiers import MAX_ROWS
from tfp_diag.sparsity.structure import Arrow, Pair, Structure
from tfp_diag.sparsity.tape import Loop, Step, Tape
from tfp_diag.sparsity.value import Value, places
from tfp_diag.sparsity.walk import Walked

# How many rows stand for all.
_FEW = MAX_ROWS + 3
# Fewer elements, or rows, than this are looked at as they are.
_MANY_ELEMENTS = 50_000
_MANY_ROWS = 4 * _FEW


class FewRows(NamedTuple):
  """A function on few rows of its data, or as it is.

  Attributes:
    walked: `Walked`. Values without rows are those of the whole function.
    steps: dict from each `Step` of the whole function to that on few rows; it
      is empty if the function is taken as it is.
    values: likewise, from the `Value`s of the whole function.
  """

  walked: Walked
  steps: Mapping
  values: Mapping

  @property
  def wholes(self) -> dict:
    """From each step on few rows to that of the whole function."""
    return {few: whole for whole, few in self.steps.items()}

  def some(self, steps: Collection) -> set:
    """The steps on few rows that are some steps of the whole function."""
    return {self.steps.get(step, step) for step in steps}


def on_few_rows(walked: Walked) -> FewRows:
  """The function on few rows of its data, if it treats all rows alike.

  Args:
    walked: `Walked`.

  Returns:
    `FewRows`.
  """
  as_it_is = FewRows(walked, {}, {})
  size = _number_of_rows(walked)
  if size is None:
    return as_it_is
  try:
    return _Reduction(walked, size).reduced()
  except _NotAlikeError:
    return as_it_is


def _number_of_rows(walked: Walked) -> int | None:
  """The size of an axis that may number rows, or None."""
  steps = walked.tape.steps
  if any(isinstance(step, Loop) for step in steps):
    return None
  known = {size for v in walked.inputs for size in v.shape or ()}
  totals: dict[int, int] = {}
  for value in {y for step in steps for y in step.outputs}:
    for size in set(value.shape or ()) - known:
      totals[size] = totals.get(size, 0) + value.rows
  sizes = [size for size in totals if size >= _MANY_ROWS]
  size = max(sizes, key=lambda size: totals[size], default=None)
  return None if size is None or totals[size] < _MANY_ELEMENTS else size


class _NotAlikeError(Exception):
  """Some rows are treated in another way, or it is not known."""


class _Layout:
  """Which row each of some elements belongs to, and its class in there.

  Attributes:
    bound: int array [rows, classes], the elements that belong to rows.
    row: int array, the row of each element, and -1 if it is shared.
    kind: int array, its class; that of a shared element means nothing.
  """

  def __init__(self, bound: np.ndarray, size: int) -> None:
    self.bound = bound
    short = np.int32 if size < 2**31 else np.int64
    self.row = np.full(size, -1, short)
    self.kind = np.zeros(size, short)
    rows, kinds = bound.shape
    self.row[bound] = np.arange(rows)[:, np.newaxis]
    self.kind[bound] = np.arange(kinds)
    if np.count_nonzero(self.row >= 0) != bound.size:
      raise _NotAlikeError
    self._kept = self.row < _FEW
    self._place = np.cumsum(self._kept) - 1

  def __len__(self) -> int:
    return len(self.row)

  @property
  def num_few(self) -> int:
    """How many elements there are on few rows."""
    return int(np.count_nonzero(self._kept))

  def check(self, targets: np.ndarray, other: '_Layout') -> None:
    """Raises if elements of rows do not lead alike to those of the other.

    Args:
      targets: int array, an element of the other layout for each element of
        this one, or -1.
      other: `_Layout`.
    """
    shared = targets[self.row < 0]
    if np.any(other.row[shared[shared >= 0]] >= 0):
      raise _NotAlikeError
    found = targets[self.bound]
    is_same = np.all(found == found[:1], axis=0)
    same = found[0, is_same]
    if np.any(other.row[same[same >= 0]] >= 0):
      raise _NotAlikeError
    found = found if not is_same.any() else found[:, ~is_same]
    rows = np.arange(len(found))[:, np.newaxis]
    if found.size and (
      found.min() < 0
      or np.any(other.row[found] != rows)
      or np.any(other.kind[found] != other.kind[found[:1]])
    ):
      raise _NotAlikeError

  def few(self, targets: np.ndarray, other: '_Layout') -> np.ndarray:
    """The targets, as in `check`, of the elements on few rows."""
    return _at(other._place, targets[self._kept])

  def collected(self, segment: np.ndarray, size: int) -> '_Layout':
    """The layout of the segments of these elements.

    A segment belongs to a row if it holds elements of no other.
    """
    found = segment[self.bound]
    found = found[:, np.any(found != found[:1], axis=0)]
    if found.size and found.min() < 0:
      raise _NotAlikeError
    _, first = np.unique(found[0], return_index=True)
    return _Layout(found[:, first], size)

  def gathered(self, index: np.ndarray) -> '_Layout':
    """The layout of copies of these elements: each belongs to its row."""
    row = _at(self.row, index)
    copies = np.flatnonzero(row >= 0)
    order = np.lexsort((self.kind[index[copies]], row[copies]))
    if len(copies) % len(self.bound):
      raise _NotAlikeError
    return _Layout(copies[order].reshape(len(self.bound), -1), len(index))


class _Reduction:
  """One reduction to few rows."""

  def __init__(self, walked: Walked, size: int) -> None:
    self._walked = walked
    self._size = size
    self._layouts: dict[tuple, _Layout] = {}
    self._few: dict[Value, Value] = {}

  def reduced(self) -> FewRows:
    """As `on_few_rows`; raises if the rows are not alike."""
    steps = {step: self._step(step) for step in self._walked.tape.steps}
    outputs = [self._value(y) for y in self._walked.outputs]
    walked = dataclasses.replace(
      self._walked, tape=Tape(steps.values()), outputs=outputs
    )
    return FewRows(walked, steps, self._few)

  def _step(self, step: Step) -> Step:
    structure = step.structure
    if step.cancelled is not None:
      raise _NotAlikeError  # Not in all rows.
    arrows = tuple(
      Arrow(
        arrow.output,
        arrow.inputs,
        self._flow(
          arrow.flow,
          self._layout([step.inputs[k] for k in arrow.inputs]),
          self._layout([step.outputs[arrow.output]]),
        ),
      )
      for arrow in structure.arrows
    )
    return dataclasses.replace(
      step,
      inputs=tuple(map(self._value, step.inputs)),
      outputs=tuple(map(self._value, step.outputs)),
      structure=Structure(
        arrows,
        structure.curved,
        tuple(self._pair(step, pair) for pair in structure.pairs),
      ),
    )

  def _pair(self, step: Step, pair: Pair) -> Pair:
    before = [
      self._layout([step.inputs[k] for k in which]) for which, _ in pair.sides
    ]
    if pair.output is not None:
      after = self._layout([step.outputs[pair.output]])
    else:
      after = self._after(pair.left, before[0])
      if not after.bound.size:
        # The elements of the left side are shared; those of the other side
        # decide, if they belong to rows.
        after = self._after(pair.right, before[1])
    left, right = (
      self._flow(flow, layout, after)
      for (_, flow), layout in zip(pair.sides, before)
    )
    return dataclasses.replace(pair, left=left, right=right)

  def _after(self, flow: Flow, layout: _Layout) -> _Layout:
    """The layout of the results of a flow, of which nothing else is known."""
    for kind, data in _stages(flow):
      if kind == 'collect':
        layout = layout.collected(*data)
      else:
        layout = layout.gathered(data)
    return layout

  def _flow(self, flow: Flow, before: _Layout, after: _Layout) -> Flow:
    """A flow on few rows."""
    if not flow.stages and before is after:
      return Flow.identity(after.num_few)
    stages, layout = [], before
    found = _stages(flow) or [('gather', np.arange(flow.columns))]
    for place, (kind, data) in enumerate(found):
      is_last = place == len(found) - 1
      if kind == 'collect':
        segment, size = data
        end = after if is_last else layout.collected(segment, size)
        layout.check(segment, end)
        stages.append((kind, (layout.few(segment, end), end.num_few)))
      else:
        end = after if is_last else layout.gathered(data)
        end.check(data, layout)
        stages.append((kind, end.few(data, layout)))
      layout = end
    return Flow(after.num_few, before.num_few, tuple(stages))

  def _layout(self, values: Sequence[Value]) -> _Layout:
    """The layout of the elements of some values, one after the other."""
    key = tuple(v.shape for v in values)
    found = self._layouts.get(key)
    if found is None:
      bound = [p.start + self._rows_of(value) for value, p in places(values)]
      size = sum(value.rows for value in values)
      found = _Layout(np.concatenate(bound, axis=1), size)
      self._layouts[key] = found
    return found

  def _rows_of(self, value: Value) -> np.ndarray:
    """The elements of a value that belong to rows, [rows, classes]."""
    shape = value.shape
    if shape is None:
      raise _NotAlikeError
    axes = [axis for axis, size in enumerate(shape) if size == self._size]
    if len(axes) > 1:
      raise _NotAlikeError
    if not axes:
      return np.zeros((self._size, 0), np.int64)
    elements = np.arange(value.rows).reshape(shape)
    return np.moveaxis(elements, axes[0], 0).reshape(self._size, -1)

  def _value(self, value: Value) -> Value:
    if value.shape is None or self._size not in value.shape:
      return value
    if value not in self._few:
      shape = tuple(_FEW if n == self._size else n for n in value.shape)
      self._few[value] = Value(shape, value.dtype, value.depends)
    return self._few[value]


def _stages(flow: Flow) -> list:
  """The stages of a flow; a matrix is a copy for each entry, and their sums."""
  stages = []
  for kind, data in flow.stages:
    if kind == 'matrix':
      stages.append(('gather', data.indices))
      stages.append(('collect', (data.row_of_entry, data.rows)))
    else:
      stages.append((kind, data))
  return stages


def _at(array: np.ndarray, index: np.ndarray) -> np.ndarray:
  """The entries of an int array at some positions, and -1 at -1."""
  if not len(array):
    return np.full(index.shape, -1)
  return np.where(index >= 0, array[index], -1)
