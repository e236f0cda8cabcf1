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
"""What the walker knows about a tensor."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.evaluation import array_of
from tfp_diag.sparsity.registry import (
  CannotSay,
  OpFailed,
  facts,
  find_bounds,
)


class Value:
  """A tensor of the traced function, as the walker sees it.

  It is one of three: it depends on xs, with a derivative (`depends`); it is
  constant, and evaluated when a rule asks for it (`is_known`); or it is neither
  (random numbers, variables that may be assigned later, comparisons and
  integers computed from xs): nothing is known, and it has no derivative.

  Attributes:
    shape: `tuple` of int, or None where the graph does not know it.
    dtype: `tf.DType`.
    depends: `bool`.
    varies: None if it does not change with the number of samples; else True, or
      a bool array of the elements that do. Such a value can only be a shape.
    is_size: whether, if it varies, its elements are known as `Sizes`, so that a
      shape may be made of them.
    is_uniform: whether it varies only in its shape, and is one number
      throughout.
    repeats: the axes along which it is constant, if it varies only in their
      sizes: one more sample has what the others have. `None` if it does not.
    source: how it is computed, where it is not known or varies: a `tuple` of an
      instruction, its inputs, and the number of the output; or None.
    zeros: if it depends on xs: a bool array of the flattened elements that are
      zero for all xs; None if none are seen.
  """

  __slots__ = (
    '_bounds',
    '_compute',
    '_parents',
    '_ramp',
    '_reads',
    '_result',
    'depends',
    'dtype',
    'is_size',
    'is_uniform',
    'repeats',
    'shape',
    'source',
    'varies',
    'zeros',
  )

  def __init__(
    self,
    shape: tuple | None,
    dtype: tf.DType,
    depends: bool = False,
    compute: Callable | None = None,
    parents: tuple = (),
    reads: Any = None,
  ) -> None:
    self.varies: Any = None
    self.repeats: tuple | None = None
    self.is_size = self.is_uniform = False
    if reads is None:
      reads = next((p._reads for p in parents if p._reads is not None), None)
    self._reads = reads
    self.shape = shape
    self.dtype = dtype
    self.depends = depends
    self._compute: Any = compute
    self._parents = parents
    self._result = None
    self._bounds = None
    self._ramp: Any = False
    self.source: tuple | None = None
    self.zeros: np.ndarray | None = None

  @classmethod
  def constant(cls, tensor: Any) -> 'Value':
    """A known value, from an eager tensor or array."""
    shape = tuple(int(d) for d in tensor.shape)
    value = cls(shape, tf.as_dtype(tensor.dtype))
    value._result = tensor
    return value

  @classmethod
  def computed(
    cls,
    shape: tuple | None,
    dtype: tf.DType,
    compute: Callable,
    parents: Sequence,
  ) -> 'Value':
    """What is computed from constants; its value is unknown if one of them is.

    Args:
      shape: As for the constructor.
      dtype: Likewise.
      compute: Callable of the values of the parents.
      parents: List of `Value`.
    """
    if not all(parent.is_known for parent in parents):
      return cls(shape, dtype)
    return cls(shape, dtype, compute=compute, parents=tuple(parents))

  @property
  def known_shape(self) -> tuple:
    """The shape; raises a ValueError if it is not known."""
    if self.shape is None:
      raise ValueError('The shape of this tensor is not known.')
    return self.shape

  @property
  def size(self) -> int | None:
    """The number of elements; None where the shape is not known."""
    if self.shape is None:
      return None
    return math.prod(self.shape)

  @property
  def rows(self) -> int:
    """The number of rows of its dependency: one if the shape is not known."""
    return 1 if self.shape is None else math.prod(self.shape)

  @property
  def is_known(self) -> bool:
    """Whether it can be evaluated."""
    return self._result is not None or self._compute is not None

  @property
  def is_captured(self) -> bool:
    """Whether it is computed from what the function closes over."""
    return self._reads is not None

  def tensor(self, even_varying: bool = False, only_zeros: bool = False) -> Any:
    """The eager tensor or array; raises CannotSay where it is not known.

    Args:
      even_varying: Whether a value that was computed from the number of samples
        is allowed, as for a shape.
      only_zeros: Whether the caller uses only the places of its zeros.
    """
    if not self.is_known:
      raise CannotSay('a value that is not constant')
    if self.varies is not None and not even_varying:
      raise CannotSay('a value that depends on the number of samples')
    if self._reads is not None:
      self._reads.add(self, only_zeros)
    # Depth first with a stack of its own: chains of constants, as in unrolled
    # loops, are longer than Python's recursion limit.
    stack = [self]
    while stack:
      value = stack[-1]
      if value._result is not None:
        stack.pop()
        continue
      pending = [p for p in value._parents if p._result is None]
      if pending:
        for parent in pending:
          if not parent.is_known:
            raise CannotSay('a value that is not constant')
        stack.extend(pending)
        continue
      value._result = value._compute(*[p._result for p in value._parents])
      if value._reads is None:
        value._compute, value._parents = None, ()
      if value.shape is None and value.dtype != tf.variant:
        value.shape = tuple(int(d) for d in value._result.shape)
      stack.pop()
    return self._result

  def recipe(self) -> 'Recipe':
    """How to compute it once more, from other captured constants.

    Returns:
      `Recipe`.
    """
    # As in `tensor`: chains are long, and what is used twice is one step.
    places, steps, stack = {}, [], [self]
    while stack:
      value = stack[-1]
      pending = [p for p in value._sources() if p not in places]
      if value in places or not pending:
        stack.pop()
      if value not in places and not pending:
        places[value] = len(steps)
        steps.append(value._step(tuple(places[p] for p in value._sources())))
      stack.extend(pending)
    return Recipe(tuple(steps))

  def _sources(self) -> tuple:
    """The values that it is computed from, if these may change later."""
    return () if self._reads is None else self._parents

  def _step(self, parents: tuple) -> 'RecipeStep':
    if self._reads is None:
      tensor = self.tensor(even_varying=True)
      return RecipeStep(lambda: tensor, ())
    return RecipeStep(self._compute, parents)

  def value(
    self, even_varying: bool = False, only_zeros: bool = False
  ) -> np.ndarray:
    """The NumPy array; raises CannotSay where it is not known."""
    return array_of(self.tensor(even_varying, only_zeros))

  def bounds(self) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of its elements.

    Returns:
      low, high: Arrays of doubles that broadcast to the shape; infinite where
        nothing is known.
    """
    if self._bounds is None:
      self._bounds = self._find_bounds()
    return self._bounds

  def ramp(self) -> 'Ramp | None':
    """Bounds that grow with the number of the sample; None if not seen.

    The place of a number for each sample is often made of the number of the
    sample and of something else: `tf.stack([tf.range(size), labels], axis=1)`,
    or `labels + 4 * tf.range(size)`. Where the number of samples is open, it is
    not known. But how far it can be from b, or 4 b, is the same for each sample
    b.
    """
    if self._ramp is False:
      self._ramp = self._find_ramp()
    return self._ramp

  def _find_ramp(self) -> 'Ramp | None':
    # Integers of fewer bits overflow in batches that are not large.
    if self.dtype not in (tf.int32, tf.int64) or self.source is None:
      return None
    instruction, inputs, _ = self.source
    find = facts(instruction.type).ramp
    if find is None:
      return None
    try:
      if self.shape is None:
        self.tensor(even_varying=True)
      ramp = find(instruction, inputs, self.shape) if self.size else None
    except (CannotSay, OpFailed, RecursionError, ValueError):
      return None
    if ramp is None:
      return None
    # What may overflow may be anything.
    fits = np.maximum(abs(ramp.low), abs(ramp.high)) < 2.0**31
    low, high = (
      np.where(fits, ramp.low, -np.inf),
      np.where(fits, ramp.high, np.inf),
    )
    return Ramp(ramp.count, ramp.step, low, high)

  def ends_for_any_number(self) -> tuple[np.ndarray, np.ndarray]:
    """As `bounds`, also for one number throughout, however often."""
    if self.varies is not None and self.is_uniform and self.size:
      number = np.array(self.value(even_varying=True).flat[0], np.float64)
      return number, number
    return self.bounds()

  def limit(self, low: Any, high: Any) -> None:
    """Says what the bounds are, of which no op tells."""
    self._bounds = np.asarray(low, np.float64), np.asarray(high, np.float64)

  def _find_bounds(self) -> tuple[np.ndarray, np.ndarray]:
    anywhere = _BOOLEAN if self.dtype == tf.bool else _ANYWHERE
    if self.dtype.is_complex:
      return anywhere
    try:
      if self.is_known and self.varies is None:
        array = np.asarray(self.value(), np.float64)
        low, high = array, array
      elif self.source is None:
        return anywhere
      else:
        instruction, inputs, output = self.source
        find = find_bounds(instruction.type)
        if find is None or self._is_resized(instruction):
          return anywhere
        with np.errstate(invalid='ignore'):
          ends = find(instruction, inputs, output)
        low, high = (np.asarray(end, np.float64) for end in ends)
    except (CannotSay, OpFailed, RecursionError, TypeError, ValueError):
      return anywhere
    if np.isnan(low).any() or np.isnan(high).any():
      return anywhere
    return low, high

  def _is_resized(self, instruction: Any) -> bool:
    """Whether more samples give more elements, of which nothing is known."""
    return self.varies is not None and bool(
      instruction.varying_sizes_of_result().any()
    )


class Ramp(NamedTuple):
  """Bounds of integers that grow with the number of the sample.

  The elements, in order, are blocks of one size. Element j of block b is from
  `step[j] * b + low[j]` to `step[j] * b + high[j]`, for any number of samples.

  Attributes:
    count: `int`, the number of blocks.
    step: Array of doubles, flat; none is negative.
    low: Likewise, -inf where nothing is known.
    high: Likewise, inf where nothing is known.
  """

  count: int
  step: np.ndarray
  low: np.ndarray
  high: np.ndarray

  @property
  def is_count(self) -> bool:
    """Whether it is 0, 1, 2, ... for any number of samples."""
    return [*map(list, self[1:])] == [[1], [0], [0]]

  @property
  def is_exact(self) -> bool:
    """Whether the bounds are the numbers themselves."""
    return np.array_equal(self.low, self.high)


class Sizes(NamedTuple):
  """Integers that are multiples of powers of the numbers of samples.

  Attributes:
    factors: int array.
    powers: int array with one more axis, of an entry for each sample dimension.
  """

  factors: np.ndarray
  powers: np.ndarray

  def times(self, numbers: Sequence[int]) -> np.ndarray:
    """What they are for some numbers of samples."""
    powers = np.array(numbers, np.int64) ** self.powers
    return self.factors * powers.prod(axis=-1)

  def flat(self) -> 'Sizes':
    """The same in a vector."""
    shape = self.factors.size, self.powers.shape[-1]
    return Sizes(self.factors.reshape(-1), self.powers.reshape(shape))

  def broadcast_to(self, shape: tuple) -> 'Sizes':
    """The same, broadcast to a shape."""
    powers = np.broadcast_to(self.powers, (*shape, self.powers.shape[-1]))
    return Sizes(np.broadcast_to(self.factors, shape), powers)


class RecipeStep(NamedTuple):
  """One step of a `Recipe`.

  Attributes:
    compute: Callable that takes the results of the steps `parents`, and returns
      that of this one; None if it is captured.
    parents: `tuple` of int.
    captured: The Tensor that it is, if the function closes over it, or None.
  """

  compute: Callable | None
  parents: tuple
  captured: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
  """How a constant is computed from what a function closes over.

  Attributes:
    steps: `tuple` of `RecipeStep`, each after those that it needs; the last one
      is the constant.
  """

  steps: tuple

  def captures(self) -> list:
    """The captured Tensors that it is computed from."""
    return [s.captured for s in self.steps if s.captured is not None]

  def replaced(self, replace: Callable) -> Any:
    """The value, with `replace(tensor)` in place of what is captured."""
    results = []
    for step in self.steps:
      if step.captured is not None:
        results.append(replace(step.captured))
      else:
        results.append(step.compute(*[results[k] for k in step.parents]))
    return results[-1]


_ANYWHERE = np.full((), -np.inf), np.full((), np.inf)
_BOOLEAN = np.zeros(()), np.ones(())


class Captured(Value):
  """A constant that a function closes over; its value may change later.

  Attributes:
    outside: The eager Tensor.
  """

  __slots__ = ('outside',)

  def __init__(self, tensor: Any, reads: Any) -> None:
    shape = tuple(int(d) for d in tensor.shape)
    super().__init__(shape, tensor.dtype, compute=lambda: tensor, reads=reads)
    self.outside = tensor

  def _step(self, parents: tuple) -> RecipeStep:
    return RecipeStep(None, parents, self.outside)


class TensorList:
  """The content of a TensorList: what `tf.while_loop` and `tf.scan` fill.

  Attributes:
    items: `tuple`; each is a `Value`, a pair (`Value`, i) that stands for its
      entry i along the first axis, or None for an item that has not been set,
      which is zero.
  """

  __slots__ = ('items',)

  def __init__(self, items: Iterable) -> None:
    self.items = tuple(items)


class ListSummary(TensorList):
  """A TensorList in a loop of unknown length: what any of its items can be.

  Attributes:
    length: int, or None if unknown.
    item: `Value` that stands for each item, or None if none has been set.
  """

  __slots__ = ('item', 'length')

  def __init__(self, length: int | None, item: Value | None) -> None:
    super().__init__(() if item is None else (item,))
    self.length = length
    self.item = item


class Optional(TensorList):
  """Some tensors, or nothing: how gradients of branches pass values on."""

  __slots__ = ()


def places(values: Iterable[Value]) -> Iterator[tuple[Value, slice]]:
  """Some values, each with its place among the elements of all of them."""
  stop = 0
  for value in values:
    start, stop = stop, stop + value.rows
    yield value, slice(start, stop)
