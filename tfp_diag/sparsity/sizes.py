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
"""Sizes that grow with the numbers of samples, each as a multiple of them.

A graph that is walked on few samples stands for any number of them. So a size
that it computes must be known for any number, too. `1 + num_samples // 100` is
one on few samples, and two on a hundred: it is no size of which one can tell.
`tf.size(x) // num_samples` is. Sizes are followed from op to op as what they
are: an integer times powers of the numbers of samples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.evaluation import inferred_shapes, run_op
from tfp_diag.sparsity.graph import constant
from tfp_diag.sparsity.registry import CannotSay, OpFailed, facts
from tfp_diag.sparsity.value import Sizes, TensorList, Value

# More integers than that are no sizes.
_MOST_SIZES = 64

# Numbers of samples for which shapes are inferred once more: a prime, and one
# that has many divisors, larger than what slices and paddings have for ends.
_MANY = (16_777_259, 12_252_240)
# The same for several numbers, which are multiplied.
_SEVERAL = (10_007, 10_080)


class Scaling:
  """What becomes of sizes if there are other numbers of samples.

  Args:
    numbers: the numbers of samples that were put in: primes.
    at_hand: the numbers of samples of the graph at hand, if these are known.

  Attributes:
    found: list of what the sizes are that were asked for, in order. It is the
      same for all numbers, unless one was taken for a multiple that is not.
    integers: set of these sizes, for the numbers that were put in.
  """

  def __init__(
    self, numbers: Sequence[int], at_hand: Sequence[int] | None = None
  ) -> None:
    self._numbers = tuple(numbers)
    self._at_hand = at_hand
    self._sizes: dict = {}
    self._regular: set = set()
    self._irregular: set = set()
    self.found: list = []
    self.integers: set[int] = set()

  def are_known(self, values: Sequence) -> bool:
    """Whether values that vary are sizes, or have at least shapes made of them.

    Sets the attribute `is_size` of those that are.

    Args:
      values: list of `Value`.

    Returns:
      `bool`.
    """
    varying = [value for value in values if value.varies is not None]
    for value in varying:
      # One sample alone is no multiple of anything.
      value.is_size = not self._numbers or self.sizes(value) is not None
    return all(value.is_size or self.has_sizes(value) for value in varying)

  def sizes(self, value: Value) -> Sizes | None:
    """The elements of a value as sizes; None if they are not known as such."""
    if value not in self._sizes:
      try:
        found = self._find_sizes(value)
      except (CannotSay, OpFailed, RecursionError, ValueError):
        found = None
      if found is not None and value.varies is not None:
        self.found.append([part.tolist() for part in found])
        self.integers.update(found.times(self._numbers).reshape(-1).tolist())
      self._sizes[value] = found
    return self._sizes[value]

  def has_sizes(self, value: Value) -> bool:
    """Whether the shape of a value is known for any number of samples."""
    if value in self._irregular:
      return False
    seen, stack = set(), [value]
    while stack:
      part = stack.pop()
      if part in seen or part in self._regular:
        continue
      seen.add(part)
      try:
        stack += self._needed(part)
      except (CannotSay, OpFailed, RecursionError, ValueError):
        self._irregular |= {part, value}
        return False
    self._regular |= seen
    return True

  def _find_sizes(self, value: Value) -> Sizes | None:
    # Integers of fewer bits overflow in batches that are not large.
    if value.varies is not None and value.dtype not in (tf.int32, tf.int64):
      return None
    if not (value.dtype.is_integer or value.dtype.is_bool):
      return None
    if not value.is_known or (value.size or 0) > _MOST_SIZES:
      return None
    array = np.asarray(value.value(even_varying=True), np.int64)
    if value.varies is None:
      return self._powers(array, False)
    if value.source is None:
      return None
    sizes = self._computed(array, *value.source)
    if sizes is None or not np.array_equal(sizes.times(self._numbers), array):
      return None
    # Zero is no multiple of anything.
    is_zero = sizes.factors[..., np.newaxis] == 0
    return Sizes(sizes.factors, np.where(is_zero, 0, sizes.powers))

  def _computed(
    self, array: np.ndarray, instruction: Any, inputs: Sequence, output: int
  ) -> Sizes | None:
    """What an op makes of sizes."""
    known = facts(instruction.type)
    if known.is_constant:
      return self._of_constant(array, instruction.at_hand)
    if known.measured(len(inputs)):
      return self._measured(array, instruction, inputs, output)
    if known.moved(len(inputs)):
      return self._moved(instruction, inputs, output)
    if known.sizes is None:
      return None
    found = [self.sizes(part) for part in inputs]
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
      return None
    if known.elementwise is not None:
      parts = [part.broadcast_to(array.shape) for part in parts]
    return known.sizes(instruction.op, *parts)

  def _powers(self, array: np.ndarray, varies: Any) -> Sizes:
    """Integers as sizes: those that vary are taken apart into factors."""
    factors = array.astype(np.int64)
    powers = np.zeros((*array.shape, len(self._numbers)), np.int64)
    for k, number in enumerate(self._numbers):
      divides = varies & (factors != 0) & (factors % number == 0)
      factors = np.where(divides, factors // number, factors)
      powers[..., k] = divides
    return Sizes(factors, powers)

  def _of_constant(self, few: np.ndarray, at_hand: Any) -> Sizes | None:
    """What is a multiple of few samples is the same one of those at hand."""
    if self._at_hand is None or at_hand is None:
      return None
    many = constant(at_hand)
    sizes = self._powers(few, True)
    is_same = few.shape == many.shape and np.array_equal(
      sizes.times(self._at_hand), many
    )
    return sizes if is_same else None

  def _measured(
    self, array: np.ndarray, instruction: Any, inputs: Sequence, output: int
  ) -> Sizes | None:
    """The sizes of a tensor, or the number of its elements."""
    number = output if len(inputs) > 1 else 0
    value = inputs[number]
    if isinstance(value, TensorList) or not self.has_sizes(value):
      return None
    shape = np.array(value.known_shape, np.int64)
    sizes = self._powers(shape, instruction.varying_sizes(number))
    if array.ndim:
      return sizes
    return Sizes(sizes.factors.prod(), sizes.powers.sum(0))

  def _moved(
    self, instruction: Any, inputs: Sequence, output: int
  ) -> Sizes | None:
    """Elements of some sizes, and zeros."""
    data = facts(instruction.type).moved(len(inputs))
    zero = Sizes(np.zeros(1, np.int64), np.zeros([1, len(self._numbers)], int))
    feeds, parts, start = [], [zero], 1
    for k, value in enumerate(inputs):
      if k not in data:
        feeds.append(value.value())
        continue
      part = self.sizes(value)
      if part is None:
        return None
      stop = start + part.factors.size
      feeds.append(np.arange(start, stop).reshape(part.factors.shape))
      parts.append(part.flat())
      start = stop
    factors, powers = (np.concatenate(part) for part in zip(*parts))
    places = np.asarray(run_op(instruction.op, feeds)[output])
    return Sizes(factors[places], powers[places])

  def _needed(self, value: Value) -> list:
    """What else must have sizes that the shape of a value is known.

    Raises:
      CannotSay: If it is not known whatever these are.
    """
    if value.source is None:
      # Of xs, and of lists and loops, two numbers of samples are compared.
      if value.depends or value.varies is None:
        return []
      raise CannotSay('a shape of which nothing is known')
    instruction, inputs, output = value.source
    if instruction.is_compared(output):
      return []
    if not instruction.varying_sizes_of_result(output).any():
      return []
    known = facts(instruction.type)
    tensors = [v for v in inputs if isinstance(v, Value)]
    for k in known.shape_inputs:
      if self.sizes(inputs[k]) is None:
        raise CannotSay('a shape that is not made of sizes')
    if known.elementwise is None and not known.shape_inputs:
      self._check_inferred(instruction, inputs, value, output)
    return tensors

  def _check_inferred(
    self, instruction: Any, inputs: Sequence, value: Value, output: int
  ) -> None:
    """Raises CannotSay unless TensorFlow infers sizes for many samples, too."""
    if value.shape is None:
      value.tensor(even_varying=True)
    shape = np.array(value.known_shape, np.int64)
    varies = instruction.varying_sizes_of_result(output)
    after = self._powers(shape, varies)
    many = _MANY if len(self._numbers) == 1 else _SEVERAL
    for shift in range(2):
      numbers = [many[(k + shift) % 2] for k in range(len(self._numbers))]
      scaled = [
        self._scaled(part, instruction.varying_sizes(k), numbers)
        for k, part in enumerate(inputs)
      ]
      inferred = inferred_shapes(instruction.op, scaled)[output]
      if inferred != tuple(after.times(numbers).tolist()):
        raise CannotSay('a shape that is another one for more samples')

  def _scaled(self, value: Any, varies: Any, numbers: Sequence[int]) -> Value:
    """What an input is for other numbers of samples."""
    if isinstance(value, TensorList):
      raise CannotSay('a list of Tensors')
    sizes = self.sizes(value)
    if sizes is not None:
      dtype = value.dtype
      array = sizes.times(numbers)
      if np.any(array > dtype.max):
        raise CannotSay('a number that is too large')
      return Value.constant(array.astype(dtype.as_numpy_dtype))
    if value.shape is None:
      value.tensor(even_varying=True)
    shape = self._powers(np.array(value.known_shape, np.int64), varies)
    return Value(tuple(shape.times(numbers).tolist()), value.dtype)
