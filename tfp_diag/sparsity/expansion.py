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

import tensorflow as tf

from tfp_diag.sparsity.evaluation import repeat_op
from tfp_diag.sparsity.registry import CannotSay

__all__ = ['can_expand', 'expand']


def can_expand(ops):
  """Whether there is anything to write out.

  Args:
    ops: list of `tf.Operation`.

  Returns:
    `bool`.
  """
  return any(op.type in _EXPANSIONS for op in ops)


def expand(ops, targets):
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
    if op.type in _EXPANSIONS:
      (logits,) = op.inputs
      results = [_EXPANSIONS[op.type](latest(logits))]
    elif any(tensor.ref() in written for tensor in op.inputs):
      if op.op_def.is_stateful:
        raise CannotSay(f'{op.type} may give something else the next time')
      results = repeat_op(op, [latest(tensor) for tensor in op.inputs])
    else:
      continue
    written.update((y.ref(), new) for y, new in zip(op.outputs, results))
  return [latest(tensor) for tensor in targets]


def _exp(logits):
  """Logits less their maximum, and exponentials of that."""
  most = tf.reduce_max(logits, axis=-1, keepdims=True)
  shifted = logits - tf.stop_gradient(most)
  return shifted, tf.exp(shifted)


def _softmax(logits):
  _, exp = _exp(logits)
  return exp / tf.reduce_sum(exp, axis=-1, keepdims=True)


def _log_softmax(logits):
  shifted, exp = _exp(logits)
  return shifted - tf.math.log(tf.reduce_sum(exp, axis=-1, keepdims=True))


_EXPANSIONS = {'LogSoftmax': _log_softmax, 'Softmax': _softmax}
