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
"""Recognizes the ops of a function when it is traced again."""

from tfp_diag.sparsity.registry import facts
from tfp_diag.sparsity.tape import Loop

__all__ = ['find_again', 'numbered_ops', 'own_ops', 'signature']


def numbered_ops(tape, traced):
  """The ops of a function that is not too intricate to take apart.

  Args:
    tape: `Tape` of the function.
    traced: `detect.Traced`.

  Returns:
    ops: list of `tf.Operation`, without constants.
    number: dict: name of an op -> its place in `ops`.
    Or None, if an op is not known, is not one of the function's own graph, or
    computes with complex numbers, whose derivatives are conjugated.
  """
  for step in tape.steps:
    if isinstance(step, Loop) or step.is_fallback:
      return None
    if any(v.dtype.is_complex for v in (*step.inputs, *step.outputs)):
      return None
  ops = own_ops(traced.graph.get_operations())
  if any(map(_is_call, ops)):
    return None
  number = {op.name: k for k, op in enumerate(ops)}
  # The same op twice, or an op that a rule has made up.
  names = [step.op_name for step in tape.steps]
  if len(set(names)) < len(names) or not number.keys() >= set(names):
    return None
  return ops, number


def own_ops(ops):
  """Without constants: what is captured depends on where one traces."""
  return [
    op
    for op in ops
    if op.outputs
    and not facts(op.type).is_constant
    and not facts(op.type).is_placeholder
  ]


def signature(ops, xs, numbers=None):
  """By which a function is recognized when it is traced again.

  Args:
    ops: list of `tf.Operation`, as `own_ops` returns them.
    xs: list of Tensors, what the function takes.
    numbers: the numbers of the ops that count, or None for all; what follows
      the last of them may differ from call to call.

  Returns:
    `tuple` of `str`, one per op: its type, and where its inputs come from.
  """
  names = {x.name: f'x{i}' for i, x in enumerate(xs)}
  result = []
  if numbers is not None:
    ops = ops[: max(numbers, default=-1) + 1]
  for k, op in enumerate(ops):
    inputs = ' '.join(names.get(t.name, '-') for t in op.inputs)
    result.append(f'{op.type}({inputs})')
    names.update({t.name: f'{k}:{i}' for i, t in enumerate(op.outputs)})
  return tuple(result)


def find_again(known, ops, xs):
  """The ops of a function that was traced again, or None if it is another.

  Args:
    known: `tuple` of `str`, the `signature` that it had before.
    ops: list of `tf.Operation`: what was added to the graph, in order; more may
      follow those of the function.
    xs: list of Tensors, what the function takes.

  Returns:
    list of `tf.Operation`, one for each entry of `known`; or None.
  """
  ops = own_ops(ops)[: len(known)]
  return ops if signature(ops, xs) == known else None


def _is_call(op):
  """Whether an op runs a function, or has a gradient that is not its type's."""
  if facts(op.type).follows_gradient:
    return True
  return any(a.type in ('func', 'list(func)') for a in op.op_def.attr)
