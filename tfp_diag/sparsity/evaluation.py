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

import contextlib
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.graph import attributes_of, function_names
from tfp_diag.sparsity.registry import CannotSay, OpFailed, facts


def array_of(tensor: Any) -> np.ndarray:
  """The array of an eager Tensor; NumPy refuses single numbers of bfloat16."""
  return np.asarray(tensor.numpy() if hasattr(tensor, 'numpy') else tensor)


def run_op(
  op: tf.Operation, inputs: Sequence, bound: Callable | None = None
) -> list:
  """Executes a stateless op eagerly, or in a session where nothing is eager.

  Args:
    op: `tf.Operation` of a graph; its type and attributes are used.
    inputs: list of eager tensors or NumPy arrays, in the op's order.
    bound: `bound_op(op)`, if it has been made already.

  Returns:
    list of eager tensors or NumPy arrays.

  Raises:
    CannotSay: If the op cannot be executed by itself.
    OpFailed: If the execution failed.
  """
  known = facts(op.type)
  if known.is_constant:
    return [tf.make_ndarray(op.get_attr('value'))]
  if known.on_integers is not None:
    arrays = [np.asarray(value) for value in inputs]
    if all(array.dtype.kind in 'bi' for array in arrays):
      return [np.asarray(known.on_integers(*arrays))]
  try:
    # Small integer work: an accelerator would only add transfers.
    with tf.init_scope():
      if tf.executing_eagerly():
        with tf.device('CPU:0'):
          return repeat_op(op, inputs) if bound is None else bound(inputs)
    # Under a graph of TensorFlow 1.
    with tf.Graph().as_default(), tf.device('CPU:0'):
      with tf.compat.v1.Session() as session:
        return session.run(repeat_op(op, inputs))
  except (tf.errors.OpError, TypeError, ValueError) as error:
    raise OpFailed(f'{op.type} failed: {error}') from error


def inferred_shapes(op: tf.Operation, values: Sequence) -> list:
  """The shapes of the outputs as TensorFlow infers them from known inputs.

  A graph does not know how many elements `tf.boolean_mask` keeps, nor the
  shapes of all later ops. The walker knows the constants, so it can find the
  shapes: the op is repeated in a graph of its own, with constants where the
  values are known, and placeholders of the known shape elsewhere.

  Args:
    op: `tf.Operation`.
    values: list of `Value`, one per input of the op.

  Returns:
    list: a `tuple` of int per output, or None where it is still not known.
  """
  if (
    facts(op.type).elementwise is not None
    and len(op.outputs) == 1
    and all(value.shape is not None for value in values)
  ):
    # A graph for each op takes as long as all the rest of a walk.
    with contextlib.suppress(ValueError):
      return [np.broadcast_shapes(*(value.shape for value in values))]
  try:
    # Values first: within the graph nothing can be evaluated.
    known = [_known_number(value) for value in values]
    # Kept: a loop has the same ops many times, written out or not.
    key = (
      op.type,
      *attributes_of(op),
      *function_names(op),
      *((value.dtype, value.shape) for value in values),
      *(str(x.shape) for x, value in zip(op.inputs, values) if not value.shape),
      *(None if n is None else (n.shape, n.tobytes()) for n in known),
    )
    found = _INFERRED.setdefault(op.graph, {})
    if key not in found:
      found[key] = _inferred(op, values, known)
  except (CannotSay, OpFailed, tf.errors.OpError, TypeError, ValueError):
    # A rule that needs the shape raises an error of its own.
    return [None] * len(op.outputs)
  return found[key]


_INFERRED = weakref.WeakKeyDictionary()


def _inferred(op: tf.Operation, values: Sequence, known: Sequence) -> list:
  with tf.Graph().as_default():
    results = repeat_op(
      op,
      [
        _placeholder(value, given) if number is None else tf.constant(number)
        for value, number, given in zip(values, known, op.inputs)
      ],
    )
  return [
    tuple(y.shape.as_list()) if y.shape.is_fully_defined() else None
    for y in results
  ]


def _known_number(value: Any) -> np.ndarray | None:
  """The array of a constant that can determine a shape, or None."""
  if value.dtype in (tf.variant, tf.resource):
    raise CannotSay('a tensor that is not a number')
  if value.is_known and (value.dtype.is_integer or value.shape is None):
    array = value.value(even_varying=True)
    return array if value.varies is None or value.is_size else None
  return None


def _placeholder(value: Any, given: Any) -> tf.Tensor:
  shape = given.shape if value.shape is None else value.shape
  return tf.compat.v1.placeholder(value.dtype, shape)


def repeat_op(op: tf.Operation, inputs: Sequence) -> list:
  """Executes an op once more, on other inputs, in the current context.

  Args:
    op: `tf.Operation`; its type and attributes are used.
    inputs: list of Tensors or NumPy arrays, in the op's order.

  Returns:
    list of Tensors.

  Raises:
    CannotSay: If the op cannot be executed by itself.
  """
  return bound_op(op)(inputs)


def bound_op(op: tf.Operation) -> Callable:
  """The op of a graph as a function of its inputs.

  Args:
    op: `tf.Operation`; its type and attributes are used.

  Returns:
    Callable that takes a list of Tensors or NumPy arrays, and returns a list of
    Tensors.

  Raises:
    CannotSay: If the op cannot be executed by itself.
  """
  function = getattr(tf.raw_ops, op.type, None)
  if function is None:
    raise CannotSay(f'{op.type} cannot be executed by itself')
  definition = op.op_def
  names, attrs = _parameters(op.type, definition)
  attrs = {name: op.get_attr(attr) for attr, name in attrs.items()}
  allowed = {a.name: a.allowed_values.list.type for a in definition.attr}
  counts = []
  for argument in definition.input_arg:
    count = None
    if argument.number_attr:
      count = op.get_attr(argument.number_attr)
    elif argument.type_list_attr:
      count = len(op.get_attr(argument.type_list_attr))
    dtypes = (
      [argument.type] if argument.type else allowed.get(argument.type_attr, ())
    )
    counts.append((names[argument.name], count, list(dtypes)))

  def call(inputs):
    arguments, rest = dict(attrs), list(inputs)
    for name, count, dtypes in counts:
      number = 1 if count is None else count
      tensors = [_as_tensor(x, dtypes) for x in rest[:number]]
      arguments[name] = tensors[0] if count is None else tensors
      rest = rest[number:]
    result = function(**arguments)
    return tf.nest.flatten(result)  # One output may be a list.

  return call


def _as_tensor(x: Any, dtypes: Sequence) -> Any:
  """An array as a Tensor of its own dtype, or of one that the op can take.

  An op would cast it to the default of an attribute: the doubles of a range to
  integers.
  """
  if tf.is_tensor(x):
    return x
  x = np.asarray(x)
  dtype = tf.as_dtype(x.dtype)
  if dtypes and dtype.as_datatype_enum not in dtypes:
    return x if len(dtypes) > 1 else tf.convert_to_tensor(x, dtypes[0])
  return tf.convert_to_tensor(x)


# In Python some arguments have other names than in the op's definition.
_RENAMED = {
  'dim': 'axis',
  'e': 'y',
  'input': 'condition',
  'reduction_indices': 'axis',
  'split_dim': 'axis',
  'squeeze_dims': 'axis',
  't': 'x',
}

_PARAMETERS = {}


def _parameters(op_type: str, op_def: Any) -> tuple[list, dict]:
  """Python's names for the inputs and for the attributes of an op."""
  if op_type not in _PARAMETERS:
    signature = inspect.signature(getattr(tf.raw_ops, op_type)).parameters
    inferred = set()
    for argument in op_def.input_arg:
      inferred |= {
        argument.type_attr,
        argument.number_attr,
        argument.type_list_attr,
      }
    inputs = {a.name: a.name for a in op_def.input_arg}
    attrs = {
      a.name: a.name
      for a in op_def.attr
      if a.name not in inferred or a.name in signature
    }
    for names in (inputs, attrs):
      for name in names:
        if name not in signature:
          names[name] = _RENAMED.get(name)
          if names[name] not in signature:
            raise CannotSay(f'{op_type} has no argument {name}')
    _PARAMETERS[op_type] = inputs, attrs
  return _PARAMETERS[op_type]
