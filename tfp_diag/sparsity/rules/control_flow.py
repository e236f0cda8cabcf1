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
"""Function calls, branches, variables: ops that are made of other ops."""

from typing import Any

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.registry import (
  CannotSay,
  register_expansion,
  register_facts,
)
from tfp_diag.sparsity.structure import Arrow, Structure
from tfp_diag.sparsity.value import ListSummary, Optional, TensorList, Value


@register_expansion(
  'PartitionedCall',
  'StatefulPartitionedCall',
  is_call=True,
  passes_on=True,
  follows_gradient=True,
)
def _call(walker, scope, instruction, inputs):
  name = instruction.op.get_attr('f').name
  return walker.call(scope.program.call(name), inputs, scope)


@register_expansion('If', 'StatelessIf', passes_on=True)
def _if(walker, scope, instruction, inputs):
  names = [
    instruction.op.get_attr(branch).name
    for branch in ('else_branch', 'then_branch')
  ]
  return _branch(walker, scope, instruction, names, inputs)


@register_expansion('Case', 'StatelessCase', passes_on=True)
def _case(walker, scope, instruction, inputs):
  names = [f.name for f in instruction.op.get_attr('branches')]
  return _branch(walker, scope, instruction, names, inputs)


def _branch(walker, scope, instruction, names, inputs):
  """The outputs of the branch that is taken; if unknown, of all, joined."""
  which, *rest = inputs
  if which.depends:
    raise CannotSay('a branch that is chosen by a value that depends on xs')
  try:
    chosen = _branch_number(which, len(names))
  except CannotSay:
    results = [
      walker.call(scope.program.call(name), rest, scope) for name in names
    ]
    return [
      join(walker, instruction, alternatives) for alternatives in zip(*results)
    ]
  return walker.call(scope.program.call(names[chosen]), rest, scope)


def _branch_number(which, count):
  value = which.value()
  if value.dtype == bool:
    return int(value)
  # tf.switch_case runs the last branch for a number out of range.
  return int(value) if 0 <= value < count else count - 1


def join(walker, instruction, alternatives) -> Any:
  """A value that can be any of several alternatives."""
  first = alternatives[0]
  if all(value is first for value in alternatives):
    return first
  if any(isinstance(value, TensorList) for value in alternatives):
    return _join_lists(walker, instruction, alternatives)
  shapes = {value.shape for value in alternatives}
  shape = shapes.pop() if len(shapes) == 1 else None
  joined = Value(shape, first.dtype, any(v.depends for v in alternatives))
  if joined.depends:
    flows = [
      Flow.identity(joined.rows)
      if value.rows == joined.rows
      else Flow.dense(joined.rows, value.rows)
      for value in alternatives
    ]
    structure = Structure(
      tuple(
        Arrow(0, (k,), flow)
        for k, flow in enumerate(flows)
        if alternatives[k].depends
      )
    )
    walker.add_step(instruction, alternatives, [joined], structure)
  return joined


def _join_lists(walker, instruction, alternatives):
  if not all(isinstance(value, TensorList) for value in alternatives):
    raise CannotSay('a list whose content is not known')
  if all(isinstance(value, Optional) for value in alternatives):
    # Empty ones are never read.
    alternatives = [value for value in alternatives if value.items]
    items = zip(*(value.items for value in alternatives))
    return Optional(join(walker, instruction, each) for each in items)
  if any(isinstance(value, ListSummary) for value in alternatives):
    return _join_summaries(walker, instruction, alternatives)
  if len({len(value.items) for value in alternatives}) != 1:
    raise CannotSay('a list whose length is not known')
  items = []
  for choices in zip(*(value.items for value in alternatives)):
    if all(choice is choices[0] for choice in choices):
      items.append(choices[0])
    elif any(choice is None or isinstance(choice, tuple) for choice in choices):
      raise CannotSay('a list that is filled in some branches only')
    else:
      items.append(join(walker, instruction, choices))
  return TensorList(items)


def _join_summaries(walker, instruction, alternatives):
  if not all(isinstance(value, ListSummary) for value in alternatives):
    raise CannotSay('a list of which only a summary is known')
  items = [value.item for value in alternatives if value.item is not None]
  lengths = {value.length for value in alternatives}
  return ListSummary(
    lengths.pop() if len(lengths) == 1 else None,
    join(walker, instruction, items) if items else None,
  )


@register_expansion(
  *('Identity', 'PlaceholderWithDefault', 'PreventGradient', 'Snapshot'),
  *('EnsureShape', 'CheckNumerics'),
  passes_on=True,
)
def _identity(walker, scope, instruction, inputs):
  """The same value, without a step; it may be a list or a constant, too."""
  value, shape = inputs[0], instruction.shapes[0]
  if isinstance(value, Value) and value.shape is None and shape is not None:
    if value.depends:
      raise CannotSay('a value whose shape was not known so far')
    if not value.is_known:
      return [Value(shape, value.dtype)]
  return [value]


register_facts(
  'Identity', 'Snapshot', 'EnsureShape', 'CheckNumerics', is_identity=True
)


@register_expansion('OptionalFromValue', 'OptionalNone')
def _optional(walker, scope, instruction, inputs):
  """Values that a branch computes for its gradient."""
  return [Optional(inputs)]


@register_expansion('OptionalGetValue')
def _get_optional(walker, scope, instruction, inputs):
  """The values; what is empty is not read."""
  if not isinstance(inputs[0], Optional):
    raise CannotSay('a variant whose content is not known')
  if len(inputs[0].items) != len(instruction.outputs):
    raise CannotSay('an optional without the values')
  return inputs[0].items


@register_expansion('ReadVariableOp', read=lambda _, v: v.read_value())
def _read_variable(walker, scope, instruction, inputs):
  """A variable: part of xs, or unknown.

  The present value must not be used: zeros in a freshly initialized weight
  matrix are not zeros after training, but the pattern would stay.
  """
  content = getattr(inputs[0], 'content', None)
  if content is not None:
    return [content]
  return [Value(instruction.shapes[0], instruction.dtypes[0])]
