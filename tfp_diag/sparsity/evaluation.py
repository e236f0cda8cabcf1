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
"""Runs single ops of a traced function on known values."""

import functools
import inspect

import tensorflow as tf

from tfp_diag.sparsity.registry import CannotSay

__all__ = ['run_op']


def run_op(op, inputs):
  """Executes a stateless op eagerly.

  Args:
    op: `tf.Operation` of a graph; its type and attributes are used.
    inputs: list of eager tensors or NumPy arrays, in the op's order.

  Returns:
    list of eager tensors.

  Raises:
    CannotSay: If the op cannot be executed by itself.
  """
  if op.type == 'Const':
    return [tf.make_ndarray(op.get_attr('value'))]
  function = getattr(tf.raw_ops, op.type, None)
  if function is None:
    raise CannotSay(f'{op.type} cannot be executed by itself')
  arguments = {}
  names = _parameters(op.type)
  rest = list(inputs)
  for argument in op.op_def.input_arg:
    if argument.number_attr:
      count = op.get_attr(argument.number_attr)
    elif argument.type_list_attr:
      count = len(op.get_attr(argument.type_list_attr))
    else:
      arguments[argument.name] = rest.pop(0)
      continue
    arguments[argument.name], rest = rest[:count], rest[count:]
  for attr in op.op_def.attr:
    if attr.name in names:
      arguments[attr.name] = op.get_attr(attr.name)
  try:
    # Small integer work: an accelerator would only add transfers.
    with tf.init_scope(), tf.device('CPU:0'):
      result = function(**arguments)
  except (tf.errors.OpError, TypeError, ValueError) as error:
    raise CannotSay(f'{op.type} failed: {error}') from error
  if isinstance(result, (list, tuple)):
    return list(result)
  return [result]


@functools.cache
def _parameters(op_type):
  return frozenset(inspect.signature(getattr(tf.raw_ops, op_type)).parameters)
