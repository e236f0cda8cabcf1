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
"""A traced graph, read once: its ops in order, and what is known in a call."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.graph import function_graph, has_named_gradient
from tfp_diag.sparsity.registry import facts
from tfp_diag.sparsity.value import ListSummary, Optional, TensorList, Value


class Instruction:
  """The static facts of one op; to get them from TensorFlow is slow.

  Attributes:
    op: `tf.Operation`.
    at_hand: The `tf.Operation` of the graph at hand that it stands for, perhaps
      itself; None if that is not known.
    has_all_samples: `bool`: whether it is walked on the sizes at hand.
    type: `str`.
    name: `str`.
    inputs: `tuple` of names of tensors.
    outputs: `tuple` of names of tensors.
    shapes: `tuple`: the shapes of the outputs, None where not fully known.
    dtypes: `tuple` of `tf.DType`.
    has_named_gradient: `bool`: whether another gradient replaces the one of the
      op's type.
    is_stateful: `bool`.
  """

  def __init__(self, op: tf.Operation, at_hand: Callable | None) -> None:
    self.op = op
    self.at_hand = op if at_hand is None else at_hand(op)
    self.has_all_samples = at_hand is None
    self.type: str = op.type
    self.name: str = op.name
    self.inputs = tuple(t.name for t in op.inputs)
    self.outputs = tuple(t.name for t in op.outputs)
    self.shapes = tuple(
      tuple(t.shape.as_list()) if t.shape.is_fully_defined() else None
      for t in op.outputs
    )
    self.dtypes = tuple(t.dtype for t in op.outputs)
    self.has_named_gradient = has_named_gradient(op)
    self.is_stateful: bool = op.op_def.is_stateful

  @property
  def has_replaced_gradient(self) -> bool:
    """Whether the op has a gradient that no rule knows of.

    `IdentityN` with one is what `tf.custom_gradient` makes, and has a rule; a
    function call with one has the gradient of the function.
    """
    known = facts(self.type)
    return self.has_named_gradient and not known.follows_gradient

  def varying_sizes(self, number: int) -> np.ndarray:
    """Which sizes of an input change with the number of samples.

    Args:
      number: `int`, that of the input.

    Returns:
      bool array with an entry for each axis; of one entry, without an axis, if
      not even the number of axes is known.
    """
    at_hand = None if self.at_hand is None else self.at_hand.inputs[number]
    return self._varying(self.op.inputs[number], at_hand)

  def varying_sizes_of_result(self, number: int = 0) -> np.ndarray:
    """As `varying_sizes`, of an output."""
    at_hand = None if self.at_hand is None else self.at_hand.outputs[number]
    return self._varying(self.op.outputs[number], at_hand)

  def is_compared(self, number: int) -> bool:
    """Whether the shape of an output was compared with that at hand."""
    if self.at_hand is None or self.at_hand is self.op:
      return False
    return self.at_hand.outputs[number].shape.is_fully_defined()

  def _varying(self, tensor: tf.Tensor, at_hand: Any) -> np.ndarray:
    shape = tensor.shape
    if shape.rank is None:
      return np.array(not self.has_all_samples)
    if self.has_all_samples:
      return np.zeros(shape.rank, bool)
    if at_hand is None or at_hand.shape.rank != shape.rank:
      return np.ones(shape.rank, bool)
    sizes = zip(shape.as_list(), at_hand.shape.as_list())
    return np.array([a is None or a != b for a, b in sizes], bool)

  def varies_along(self, number: int, axes: Any) -> bool:
    """Whether one of some sizes changes with the number of samples.

    Args:
      number: `int`, that of the input.
      axes: `int` or `slice`, which of its axes.

    Returns:
      `bool`.
    """
    varies = self.varying_sizes(number)
    return bool(np.any(varies[axes] if varies.ndim else varies))


class Program:
  """The ops of one `FuncGraph`, each read once.

  Args:
    graph: the graph.
    at_hand: function of a `tf.Operation` that returns the one of the graph at
      hand that it stands for, or None. None if all samples at hand are walked.

  Attributes:
    graph: the graph.
    inputs: names of the tensors that the graph takes; None for the handle of
      a variable that is an argument of a function while it is traced.
    outputs: names of the tensors that it returns.
  """

  def __init__(self, graph: Any, at_hand: Callable | None = None) -> None:
    self.graph = graph
    self._at_hand = at_hand
    self.inputs = tuple(
      t.name if tf.is_symbolic_tensor(t) else None
      for t in getattr(graph, 'inputs', ())
    )
    self.outputs = tuple(t.name for t in getattr(graph, 'outputs', ()))
    self._instructions = {}
    self._orders = {}
    self._captures = {}

  def order(self, names: Sequence[str]) -> list[Instruction]:
    """The instructions that some tensors depend on, inputs first."""
    if names not in self._orders:
      self._orders[names] = self._sorted(names)
    return self._orders[names]

  def instruction(self, op_name: str) -> Instruction:
    """The instruction of an op."""
    if op_name not in self._instructions:
      op = self.graph.get_operation_by_name(op_name)
      self._instructions[op_name] = Instruction(op, self._at_hand)
    return self._instructions[op_name]

  def captures(self) -> dict:
    """dict: name of an inner tensor -> the outer tensor that it stands for."""
    # The gradient of a custom function can add captures to a graph that was
    # read before.
    captures = getattr(self.graph, 'captures', ())
    if len(captures) != len(self._captures):
      self._captures = {inner.name: outer for outer, inner in captures}
    return self._captures

  def call(self, name: str) -> Any:
    """The graph of a function that an op of this graph calls."""
    return function_graph(self.graph, name)

  def _sorted(self, names: Sequence[str]) -> list:
    done, order = set(), []
    stack = [_op_name(name) for name in reversed(names)]
    while stack:
      name = stack[-1]
      if name in done:
        stack.pop()
        continue
      instruction = self.instruction(name)
      pending = [
        producer
        for producer in map(_op_name, instruction.inputs)
        if producer not in done
      ]
      if pending:
        stack.extend(reversed(pending))
        continue
      stack.pop()
      done.add(name)
      order.append(instruction)
    return order


def _op_name(tensor_name: str) -> str:
  return tensor_name.rsplit(':', 1)[0]


class Scope:
  """One call of a graph: the values of its tensors by name."""

  def __init__(self, program: Program, values: dict, caller: Any) -> None:
    self.program = program
    self.values = values
    self.caller = caller

  def copy(self) -> 'Scope':
    """A copy in which more can be walked without a change of this scope."""
    return Scope(self.program, dict(self.values), self.caller)

  def without_dependence(self) -> 'Scope':
    """A copy in which nothing depends on xs; constants stay constants."""
    return Scope(
      self.program,
      {name: _independent_copy(value) for name, value in self.values.items()},
      self.caller and self.caller.without_dependence(),
    )


def _independent_copy(value: Any) -> Any:
  if isinstance(value, ListSummary):
    item = value.item and _independent_copy(value.item)
    return ListSummary(value.length, item)
  if isinstance(value, Optional):
    return Optional(map(_independent_copy, value.items))
  if isinstance(value, TensorList):
    return TensorList(
      (_independent_copy(item[0]), item[1])
      if isinstance(item, tuple)
      else item and _independent_copy(item)
      for item in value.items
    )
  return Value(value.shape, value.dtype) if value.depends else value
