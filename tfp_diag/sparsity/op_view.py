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
"""An op as a rule sees it."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tfp_diag.sparsity.evaluation import array_of, inferred_shapes, run_op
from tfp_diag.sparsity.program import Instruction
from tfp_diag.sparsity.registry import CannotSay, facts
from tfp_diag.sparsity.value import Ramp, Value

# A constant of at most so many integers may hold shifts, paddings or sizes.
MAX_INTEGERS = 64
# A constant of at most so many numbers is looked at for zeros, of fewer if they
# are compared in each later call.
_MAX_ZEROS = 1_000_000
_MAX_CAPTURED = 65_536
# The same of integers that a rule reads, which are computed: most are indices.
_MAX_DISTANCES = 16


class OpView:
  """An op as a rule sees it; see `register_rule`."""

  def __init__(
    self,
    instruction: Instruction,
    inputs: Sequence,
    by_value: bool = False,
    refused: Callable | None = None,
  ) -> None:
    self.instruction = instruction
    self._refused = refused
    self.by_value = by_value
    self.type = instruction.type
    self.name = instruction.name
    self.asked_for_values = False
    self.integers: set[int] = set()
    self.inputs = tuple(
      InputView(self, k, value) for k, value in enumerate(inputs)
    )
    self.outputs = tuple(
      Value(shape, dtype)
      for shape, dtype in zip(self._output_shapes(inputs), instruction.dtypes)
    )

  def _output_shapes(self, inputs: Sequence) -> Sequence:
    """The shapes of the outputs, also where the graph does not know them."""
    if any(value.shape is None for value in inputs if value.depends):
      raise CannotSay('a shape that is not known')
    shapes = self.instruction.shapes
    if all(shape is not None for shape in shapes):
      return shapes
    self.asked_for_values = True
    inferred = inferred_shapes(self.instruction.op, inputs)
    if all(shape is not None for shape in inferred):
      return inferred
    if any(value.varies is not None and not value.is_size for value in inputs):
      self.refuse()
      raise CannotSay('a shape that another number of samples may change')
    # Run the op on zeros: of ops that have a rule, the shapes do not depend on
    # the values of differentiable inputs.
    feeds = [
      np.zeros(value.shape, value.dtype.as_numpy_dtype)
      if value.depends
      else value.tensor(even_varying=True)
      for value in inputs
    ]
    results = run_op(self.instruction.op, feeds)
    return [tuple(result.shape) for result in results]

  def refuse(self) -> None:
    """Notes that a value depends on the number of samples."""
    if self._refused is not None:
      self._refused()

  def attr(self, name: str) -> Any:
    """An attribute of the op."""
    return self.instruction.op.get_attr(name)

  def run(self, inputs: Sequence) -> list:
    """Executes the op on other inputs; returns a list of NumPy arrays."""
    return [array_of(t) for t in run_op(self.instruction.op, inputs)]


class InputView:
  """An input as a rule sees it; see `register_rule`."""

  def __init__(self, view: OpView, number: int, value: Value) -> None:
    self._view = view
    self._number = number
    self._value = value
    self.depends = value.depends
    self.dtype = value.dtype

  @property
  def shape(self) -> tuple | None:
    """Tuple of int, or None if unknown."""
    if self._value.shape is None and self._value.is_known:
      return self._value.value(even_varying=True).shape
    return self._value.shape

  @property
  def size(self) -> int:
    """Number of elements."""
    shape = self.shape
    if shape is None:
      raise CannotSay('a shape that is not known')
    return prod(shape)

  def ramp(self) -> Ramp | None:
    """Bounds that grow with the number of the sample; see `Value.ramp`."""
    self._view.asked_for_values = True
    ramp = self._value.ramp()
    if ramp is not None:
      self._note_integers(np.unique(ramp.step))
      self._note_integers(np.unique(ramp.low[ramp.low == ramp.high]))
    return ramp

  def varies_along(self, axes: int | slice) -> bool:
    """Whether one of some sizes changes with the number of samples."""
    value = self._value
    if value.is_known and not value.depends and value.varies is None:
      return False  # It is computed from nothing that does.
    return self._view.instruction.varies_along(self._number, axes)

  def zeros_may_be_read(self) -> bool:
    """Whether a rule that needs no values may look for zeros all the same.

    A number alone has none that help. What the number of samples decides would
    be refused; what the function closes over is compared in each later call.
    """
    value = self._value
    if value.depends:
      return value.zeros is not None
    varies = value.varies is not None and value.repeats is None
    if not value.is_known or varies:
      return False
    most = _MAX_CAPTURED if value.is_captured else _MAX_ZEROS
    return value.size is not None and 1 < value.size <= most

  def value(self) -> np.ndarray:
    """The NumPy array; raises CannotSay where it is not constant."""
    return self._read(only_zeros=False)

  def nonzero(self) -> np.ndarray:
    """Where it may differ from zero; raises CannotSay if nothing is known."""
    if not self._value.depends:
      return self._read(only_zeros=True) != 0
    if self._value.zeros is None:
      raise CannotSay('a value that is not constant')
    self._view.asked_for_values = True
    return ~self._value.zeros.reshape(self.shape)

  def _read(self, only_zeros: bool) -> np.ndarray:
    self._view.asked_for_values = True
    known = facts(self._view.type)
    # Element by element, one number does the same to any number of samples.
    is_allowed = (
      (self._number in known.shape_inputs and self._value.is_size)
      or (self._value.is_uniform and known.elementwise is not None)
      or self._is_of_each_sample(known)
    )
    if self._value.varies is not None and not is_allowed:
      self._view.refuse()
    array = self._value.value(even_varying=is_allowed, only_zeros=only_zeros)
    if self.dtype.is_integer and self._value.varies is None:
      self._note_integers(array)
    return array

  def _is_of_each_sample(self, known: Any) -> bool:
    """Whether samples meet equal parts of the value, each its own."""
    repeats = self._value.repeats
    if repeats is None:
      return False
    if known.elementwise is not None:
      return True
    if known.separate_axes is None:
      return False
    count = known.separate_axes(self._view.instruction.op)
    return all(axis < count for axis in repeats)

  def _note_integers(self, array: np.ndarray) -> None:
    if array.size <= _MAX_DISTANCES:
      self._view.integers.update(abs(int(k)) for k in array.flat)

  def bounds(self) -> tuple[np.ndarray, np.ndarray]:
    """Arrays: the lower and upper bounds of the elements."""
    self._view.asked_for_values = True
    return self._value.bounds()
