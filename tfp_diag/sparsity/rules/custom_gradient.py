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
"""Functions with `tf.custom_gradient`: the structure of the user's gradient.

In a graph such a function ends in an `IdentityN` of its results and arguments,
with a gradient of its own. That gradient need not have the structure of the
function, so it is traced, and walked like any other graph. Its map from
cotangents of the results to cotangents of the arguments is the transpose of the
Jacobian. How it depends on the arguments gives the second derivatives.
"""

import numpy as np

from tfp_diag.sparsity.dependency import Dependency
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.graph import gradient_of
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.program import Scope
from tfp_diag.sparsity.registry import CannotSay, facts, register_expansion
from tfp_diag.sparsity.structure import Arrow, Pair, Structure
from tfp_diag.sparsity.tape import Loop, Tape, on_themselves
from tfp_diag.sparsity.value import TensorList, Value, places


@register_expansion(
  'IdentityN',
  passes_on=True,
  follows_gradient=True,
  ends_custom_gradient=True,
)
def _identity_n(walker, scope, instruction, inputs):
  """The inputs; with a custom gradient, outputs of the structure that it has.

  For `y = f(x)` elementwise, with the gradient `dy * g(x)`, the Jacobian is
  diagonal, and so is the second derivative.
  """
  if not instruction.has_named_gradient or walker.by_value:
    return inputs
  if not any(isinstance(v, TensorList) or v.depends for v in inputs):
    return inputs
  if any(isinstance(v, TensorList) or v.shape is None for v in inputs):
    raise CannotSay('inputs whose shape is not known')
  try:
    gradient = gradient_of(instruction.op)
  except Exception as error:  # The user's code; whatever it raises.
    raise CannotSay(f'the gradient cannot be traced: {error}') from error
  arrows, steps = _jacobian(walker, scope, inputs, gradient)
  pairs, extra = [], []
  if walker.second_order:
    for k, after in _gradients_of_inputs(walker, scope, inputs, gradient):
      whole = Flow.identity(inputs[k].rows)
      place = len(inputs) + len(extra)
      extra.append(after)
      pairs.append(Pair((k,), whole, (place,), whole))
  outputs = [
    Value(v.shape, v.dtype, any(a.output == k for a in arrows))
    for k, v in enumerate(inputs)
  ]
  is_linear = all(map(_is_linear_map, steps))
  is_elementwise = is_linear and _is_elementwise(
    walker.tape, inputs, arrows, extra
  )
  if any(value.depends for value in outputs):
    walker.add_step(
      instruction,
      (*inputs, *extra),
      outputs,
      Structure(tuple(arrows), pairs=tuple(pairs)),
      own_gradient=instruction.op if is_elementwise else None,
      has_linear_gradient=is_linear,
    )
  return outputs


def _gradient_scope(walker, scope, gradient, cotangents):
  """The `Scope` of the traced gradient, called from the graph of its op."""
  program = walker.program(gradient.graph)
  names = [t.name for t in gradient.cotangents]
  return Scope(program, dict(zip(names, cotangents)), scope)


def _jacobian(walker, scope, inputs, gradient):
  """The Jacobian: the transpose of the map from cotangents to gradients.

  Returns:
    arrows: list of `Arrow`.
    steps: list of the steps from the cotangents to the gradients.
  """
  tape = Tape()
  cotangents = [
    Value(value.shape, cotangent.dtype, depends=True)
    for value, cotangent in zip(inputs, gradient.cotangents)
  ]
  # By value: what the gradient computes counts, not its own derivatives.
  with walker.writing_to(tape, second_order=False, by_value=True):
    scope = _gradient_scope(
      walker, scope.without_dependence(), gradient, cotangents
    )
    after = _evaluated(walker, scope, inputs, gradient.results)
  if tape.has_fallback:
    # This op is then dense, too, and samples are still taken not to mix.
    raise CannotSay('an op of the gradient has no rule')
  seeds, groups = on_themselves(cotangents)
  found = tape.run(seeds, [value for _, value in after], groups)
  arrows = []
  for k, value in after:
    if not value.depends:
      if _is_zero(value):
        continue
      raise CannotSay('a gradient that does not use its cotangent')
    # Elements of the input by cotangents, transposed: outputs by inputs.
    turned = groups.expand(found[value]).transpose(groups.num_coordinates)
    for output, (_, place) in enumerate(places(cotangents)):
      part = turned.gather(np.r_[place])
      if part.entries:
        flow = Flow(part.rows, value.rows, (('matrix', part),))
        arrows.append(Arrow(output, (k,), flow))
  return arrows, tape.steps


def _is_linear_map(step):
  """Whether a step is linear in what varies, and zero where that is zero."""
  if isinstance(step, Loop) or step.is_fallback:
    return False
  varying = {k for k, value in enumerate(step.inputs) if value.depends}
  together = [set(t) for t in facts(step.op_type).linear_in if varying <= {*t}]
  values = [*step.outputs, *(step.inputs[k] for k in varying)]
  if together and all(v.dtype.is_floating for v in values):
    others = min(together, key=len) - varying
  elif step.is_linear:
    # It moves numbers, or adds them up: there may be others among them.
    others = {k for k, v in enumerate(step.inputs) if v.dtype.is_floating}
  else:
    return False
  return all(_is_zero(step.inputs[k]) for k in others - varying)


def _is_zero(value):
  """Whether a value is known to be zero, all of it."""
  if isinstance(value, TensorList):
    return False
  try:
    return not np.any(value.value(value.is_uniform, only_zeros=True))
  except CannotSay:
    return False


def _is_elementwise(tape, inputs, arrows, slopes):
  """Whether the first output is a function of some inputs, element by element.

  Args:
    tape: `Tape`, on which the slopes are.
    inputs: list of `Value`.
    arrows: list of `Arrow`.
    slopes: list of `Value`: the gradients by the inputs that have arrows, for
      some cotangents, if they change with xs.

  Returns:
    `bool`.
  """
  if not arrows or any(arrow.output for arrow in arrows):
    return False
  arguments = [inputs[k] for arrow in arrows for k in arrow.inputs]
  return (
    len(set(arguments)) == len(arguments)
    # An argument of another shape would be broadcast.
    and all(argument.shape == inputs[0].shape for argument in arguments)
    and all(
      _is_diagonal(arrow.flow.to_dependency(), argument)
      for arrow, argument in zip(arrows, arguments)
    )
    and all(_is_function_of(tape, slope, arguments) for slope in slopes)
  )


def _is_function_of(tape, slope, arguments):
  """Whether each element depends only on the same element of some values."""
  missing, between = {slope}, []
  for step in reversed(tape.steps):
    made = missing.intersection(step.outputs)
    if not made:
      continue
    if isinstance(step, Loop):
      return False
    missing -= made
    between.append(step)
    for arrow in step.structure.arrows:
      if step.outputs[arrow.output] in made:
        missing.update(step.inputs[i] for i in arrow.inputs)
    missing = {v for v in missing if v.depends and v not in arguments}
    if not missing:
      break
  if missing:
    # It depends on xs in another way.
    return False
  part = Tape(reversed(between))
  rows = arguments[0].rows
  groups = Groups(rows)
  seeds = {argument: Dependency.identity(rows) for argument in arguments}
  found = part.run(seeds, [slope], groups)[slope]
  return _is_diagonal(groups.expand(found), arguments[0])


def _is_diagonal(dependency, argument):
  """Whether each row depends at most on its own element of a value."""
  return dependency.rows == argument.rows and np.array_equal(
    dependency.indices, dependency.row_of_entry
  )


def _gradients_of_inputs(walker, scope, inputs, gradient):
  """Pairs (input, gradient) for the gradients that change with xs."""
  # In a scope of its own: what the gradient needs is walked for its first
  # derivatives only, but may be needed for more elsewhere.
  cotangents = [
    Value(value.shape, cotangent.dtype)
    for value, cotangent in zip(inputs, gradient.cotangents)
  ]
  scope = _gradient_scope(walker, scope.copy(), gradient, cotangents)
  with walker.writing_to(walker.tape, second_order=False):
    after = _evaluated(walker, scope, inputs, gradient.results)
  return [(k, value) for k, value in after if value.depends]


def _evaluated(walker, scope, inputs, gradients):
  """List of (input, value of its gradient), where there is one."""
  pairs = [
    (k, gradients[k].name)
    for k, value in enumerate(inputs)
    if value.depends and gradients[k] is not None
  ]
  walker.evaluate(scope, tuple(name for _, name in pairs))
  result = [(k, scope.values[name]) for k, name in pairs]
  for k, value in result:
    if isinstance(value, TensorList) or value.shape != inputs[k].shape:
      raise CannotSay('a gradient of unknown shape')
  return result
