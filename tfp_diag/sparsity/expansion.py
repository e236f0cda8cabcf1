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
"""Writes out ops that compute with a normalizer, so that it can be held."""

from collections.abc import Sequence

from tfp_diag.sparsity.evaluation import repeat_op
from tfp_diag.sparsity.registry import CannotSay, facts

__all__ = ['can_expand', 'expand']


def can_expand(ops: Sequence) -> bool:
  """Whether there is anything to write out.

  Args:
    ops: list of `tf.Operation`.

  Returns:
    `bool`.
  """
  return any(facts(op.type).written_out for op in ops)


def expand(ops: Sequence, targets: Sequence) -> list:
  """Repeats what follows a softmax, with the softmax written out.

  Args:
    ops: list of `tf.Operation`: those of a function, in order.
    targets: list of Tensors, of which some are their results.

  Returns:
    list of Tensors of the same values, up to rounding.

  Raises:
    CannotSay: If an op cannot be repeated.
  """
  written = {}

  def latest(tensor):
    return written.get(tensor.ref(), tensor)

  for op in ops:
    write_out = facts(op.type).written_out
    if write_out is not None:
      results = [write_out(*map(latest, op.inputs))]
    elif any(tensor.ref() in written for tensor in op.inputs):
      if op.op_def.is_stateful:
        raise CannotSay(f'{op.type} may give something else the next time')
      results = repeat_op(op, [latest(tensor) for tensor in op.inputs])
    else:
      continue
    written.update((y.ref(), new) for y, new in zip(op.outputs, results))
  return [latest(tensor) for tensor in targets]
