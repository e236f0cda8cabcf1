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
"""Function calls, branches, loops: ops that are made of other ops."""

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.registry import CannotSay, register_expansion
from tfp_diag.sparsity.structure import Arrow, Structure
from tfp_diag.sparsity.tape import Loop, Step, Tape
from tfp_diag.sparsity.value import TensorList, Value

# A loop is unrolled, which is exact, up to so many ops that depend on xs.
_MAX_UNROLLED_STEPS = 20_000

# Turns of a loop in which nothing depends on xs are cheap, but not free.
_MAX_TURNS = 100_000


@register_expansion('PartitionedCall', 'StatefulPartitionedCall')
def _call(walker, scope, instruction, inputs):
  name = instruction.op.get_attr('f').name
  return walker.call(scope.program.call(name), inputs, scope)


@register_expansion('If', 'StatelessIf')
def _if(walker, scope, instruction, inputs):
  names = [
    instruction.op.get_attr(branch).name
    for branch in ('else_branch', 'then_branch')
  ]
  return _branch(walker, scope, instruction, names, inputs)


@register_expansion('Case', 'StatelessCase')
def _case(walker, scope, instruction, inputs):
  names = [f.name for f in instruction.op.get_attr('branches')]
  return _branch(walker, scope, instruction, names, inputs)


def _branch(walker, scope, instruction, names, inputs):
  """The branch that is taken, where that is known, else all, joined."""
  which, *rest = inputs
  try:
    chosen = _branch_number(which, len(names))
  except CannotSay:
    results = [
      walker.call(scope.program.call(name), rest, scope) for name in names
    ]
    return [
      _join(walker, instruction, alternatives) for alternatives in zip(*results)
    ]
  return walker.call(scope.program.call(names[chosen]), rest, scope)


def _branch_number(which, count):
  value = which.value()
  if value.dtype == bool:
    return int(value)
  # tf.switch_case runs the last branch for a number out of range.
  return int(value) if 0 <= value < count else count - 1


def _join(walker, instruction, alternatives):
  """A value that is one of several."""
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
    walker.add_step(
      instruction.type, instruction.name, alternatives, [joined], structure
    )
  return joined


def _join_lists(walker, instruction, alternatives):
  if not all(isinstance(value, TensorList) for value in alternatives):
    raise CannotSay('a list whose content is not known')
  if len({len(value.items) for value in alternatives}) != 1:
    raise CannotSay('a list whose length is not known')
  items = []
  for choices in zip(*(value.items for value in alternatives)):
    if all(choice is choices[0] for choice in choices):
      items.append(choices[0])
    elif any(choice is None or isinstance(choice, tuple) for choice in choices):
      raise CannotSay('a list that is filled in some branches only')
    else:
      items.append(_join(walker, instruction, choices))
  return TensorList(items)


@register_expansion('While', 'StatelessWhile')
def _while(walker, scope, instruction, inputs):
  """Unrolls a loop if it is known when it ends, and soon; else joins turns."""
  test = scope.program.call(instruction.op.get_attr('cond').name)
  body = scope.program.call(instruction.op.get_attr('body').name)
  start = len(walker.tape.steps)
  values = inputs
  for _ in range(_MAX_TURNS):
    (goes_on,) = walker.call(test, values, scope)
    try:
      if not goes_on.value():
        return values
    except CannotSay:
      break
    values = walker.call(body, values, scope)
    if len(walker.tape.steps) > start + _MAX_UNROLLED_STEPS:
      break
  del walker.tape.steps[start:]
  return _fixed_point(walker, scope, body, inputs)


def _fixed_point(walker, scope, body, inputs):
  """All turns in one: a loop variable is anything that it ever is."""
  if any(isinstance(value, TensorList) for value in inputs):
    raise CannotSay('a tensor list in a loop of unknown length')
  inside = Tape()
  depends = [value.depends for value in inputs]
  shapes = [value.shape for value in inputs]
  constant = [False] * len(inputs)
  while True:
    variables = [
      value if constant[k] else Value(shapes[k], value.dtype, depends[k])
      for k, value in enumerate(inputs)
    ]
    inside.steps.clear()
    with walker.writing_to(inside):
      after = walker.call(body, variables, scope)
    if any(isinstance(value, TensorList) for value in after):
      raise CannotSay('a tensor list in a loop of unknown length')
    old = list(depends), list(shapes), list(constant)
    for k, (variable, value) in enumerate(zip(variables, after)):
      constant[k] = constant[k] or value is variable
      depends[k] = depends[k] or value.depends
      if value.shape != shapes[k]:
        shapes[k] = None
    if (depends, shapes, constant) == old:
      break
  results = [
    value if constant[k] else Value(shapes[k], value.dtype, depends[k])
    for k, value in enumerate(inputs)
  ]
  carried = []
  for k, variable in enumerate(variables):
    if depends[k] and not constant[k]:
      initial = _as_rows(walker.tape, inputs[k], variable)
      carried.append(
        (initial, variable, _as_rows(inside, after[k], variable), results[k])
      )
  if carried:
    walker.tape.steps.append(Loop(tuple(carried), inside))
  return results


def _as_rows(tape, value, variable):
  """A loop variable's value, as one row if its shape changes between turns."""
  if not value.depends or value.rows == variable.rows:
    return value
  united = Value(None, value.dtype, True)
  structure = Structure.linear({0: Flow.dense(1, value.rows)})
  tape.steps.append(Step('While', 'while', (value,), (united,), structure))
  return united


@register_expansion(
  'Identity', 'PreventGradient', 'Snapshot', 'EnsureShape', 'CheckNumerics'
)
def _identity(walker, scope, instruction, inputs):
  """The same value: no step at all, so that lists and constants pass, too."""
  del walker, scope, instruction
  return inputs[:1]


@register_expansion('ReadVariableOp')
def _read_variable(walker, scope, instruction, inputs):
  """A variable: part of xs, or unknown.

  The present value must not be used: zeros in a freshly initialized weight
  matrix are not zeros after training, but the pattern would stay.
  """
  del walker, scope
  content = getattr(inputs[0], 'content', None)
  if content is not None:
    return [content]
  return [Value(instruction.shapes[0], instruction.dtypes[0])]
