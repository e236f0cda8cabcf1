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
"""Loops: unrolled if known to end soon; otherwise all iterations are joined."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.registry import CannotSay, register_expansion
from tfp_diag.sparsity.rules.tensor_lists import summarize
from tfp_diag.sparsity.structure import Structure
from tfp_diag.sparsity.tape import Loop, Step, Tape
from tfp_diag.sparsity.value import ListSummary, TensorList, Value

# A loop is unrolled, which is exact, up to this many ops that depend on xs.
_MAX_UNROLLED_STEPS = 20_000


@register_expansion('While', 'StatelessWhile', passes_on=True, is_loop=True)
def _while(walker, scope, instruction, inputs):
  """Unrolls a loop if it is known to end soon; else joins all iterations."""
  test = scope.program.call(instruction.op.get_attr('cond').name)
  body = scope.program.call(instruction.op.get_attr('body').name)
  turn = walker.program(body)
  start = len(walker.tape.steps)
  values = inputs
  while True:
    (goes_on,) = walker.call(test, values, scope)
    if goes_on.depends:
      raise CannotSay('a loop whose end depends on xs')
    try:
      if not goes_on.value():
        return values
    except CannotSay:
      break
    values = walker.call(body, values, scope)
    walker.loop_budget -= len(turn.order(turn.outputs))
    if (
      walker.loop_budget < 0
      or len(walker.tape.steps) > start + _MAX_UNROLLED_STEPS
    ):
      break
  del walker.tape.steps[start:]
  return _fixed_point(walker, scope, instruction, (test, body), inputs)


def _fixed_point(walker, scope, instruction, functions, inputs):
  """Joins all iterations: a loop variable may be what it is in any of them."""
  test, body = functions
  inputs = [
    summarize(walker, instruction, value)
    if isinstance(value, TensorList)
    else value
    for value in inputs
  ]
  inside = Tape()
  # Starts with what is known before the loop, and widens until an iteration
  # adds nothing.
  kinds = [_Kind.of(value) for value in inputs]
  while True:
    variables = [
      kind.anything() if kind.varies else value
      for kind, value in zip(kinds, inputs)
    ]
    inside.steps.clear()
    with walker.writing_to(inside):
      after = walker.call(body, variables, scope)
    wider = [
      kind.joined(variable, value)
      for kind, variable, value in zip(kinds, variables, after)
    ]
    if wider == kinds:
      break
    kinds = wider
  results = [
    kind.anything() if kind.varies else value
    for kind, value in zip(kinds, inputs)
  ]
  carried = []
  for kind, *states in zip(kinds, inputs, variables, after, results):
    if kind.varies and kind.depends:
      initial, variable, nxt, result = map(_content, states)
      if initial is None:
        initial = Value(variable.shape, variable.dtype)
      carried.append(
        (
          _as_rows(walker.tape, initial, variable),
          variable,
          _as_rows(inside, nxt, variable),
          result,
        )
      )
  with walker.writing_to(Tape()):
    (goes_on,) = walker.call(test, variables, scope)
  if goes_on.depends:
    raise CannotSay('a loop whose end depends on xs')
  if carried:
    walker.tape.steps.append(Loop(tuple(carried), inside))
  return results


@dataclasses.dataclass(frozen=True)
class _Kind:
  """What is known of a loop variable in every iteration.

  Attributes:
    varies: Whether an iteration can change it.
    depends: Whether it depends on xs.
    dtype: Its dtype, or that of the items of a list; None if none has been set.
    shape: Its shape, or that of the items of a list; None if it changes.
    is_list: `bool`.
    length: The length of a list, if known.
  """

  varies: bool
  depends: bool
  dtype: tf.DType | None
  shape: tuple | None
  is_list: bool
  length: int | None

  @classmethod
  def of(cls, value, varies=True):
    """The kind of a value."""
    content = _content(value)
    return cls(
      varies=varies,
      depends=content is not None and content.depends,
      dtype=content and content.dtype,
      shape=content and content.shape,
      is_list=isinstance(value, ListSummary),
      length=getattr(value, 'length', None),
    )

  def anything(self):
    """A value of which this is all that is known."""
    content = None
    if self.dtype is not None:
      content = Value(self.shape, self.dtype, self.depends)
    return ListSummary(self.length, content) if self.is_list else content

  def joined(self, variable, after):
    """The kind that covers the variable before and after an iteration."""
    if after is variable:
      return dataclasses.replace(self, varies=False)
    new = _Kind.of(after)
    if new.is_list != self.is_list:
      raise CannotSay('a loop variable that is a list in some iterations')
    if self.dtype is None:
      return dataclasses.replace(
        new, length=self.length if self.length == new.length else None
      )
    return _Kind(
      varies=True,
      depends=self.depends or new.depends,
      dtype=self.dtype,
      shape=self.shape if self.shape == new.shape else None,
      is_list=self.is_list,
      length=self.length if self.length == new.length else None,
    )


def _content(value) -> Any:
  """What can depend on xs: the value, or any item of a list."""
  return value.item if isinstance(value, ListSummary) else value


def _as_rows(tape, value, variable):
  """A value of a loop variable; as one row, if the variable changes shape."""
  if not value.depends or value.rows == variable.rows:
    return value
  united = Value(None, value.dtype, True)
  structure = Structure.linear({0: Flow.dense(1, value.rows)})
  tape.steps.append(Step('While', 'while', (value,), (united,), structure))
  return united
