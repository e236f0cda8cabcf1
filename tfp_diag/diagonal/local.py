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
"""Derivatives of single ops of a function that has been evaluated."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfp_diag.diagonal import linear_map
from tfp_diag.diagonal.linear_map import LinearMap
from tfp_diag.sparsity.evaluation import repeat_op
from tfp_diag.sparsity.registry import facts
from tfp_diag.sparsity.tape import Step


def local_hessian(
  op: tf.Operation,
  groups: Sequence,
  arguments: Sequence,
  adjoints: Sequence,
) -> LinearMap:
  """The second derivatives of an op by some arguments, as a linear map.

  Args:
    op: `tf.Operation`.
    groups: Tuples of Python ints, the numbers of the inputs that an argument
      stands for.
    arguments: List of Tensors, the values of these.
    adjoints: List of Tensors or None: by which the outputs are weighted.

  Returns:
    A `LinearMap`, of a symmetric matrix.
  """
  # The derivative by this argument alone, not by what it was computed from.
  arguments = [tf.identity(argument) for argument in arguments]

  def weighted():
    outputs = _repeated(op, groups, arguments)
    return [
      tf.add_n(
        [
          tf.reduce_sum(adjoint * output)
          for adjoint, output in zip(adjoints, outputs)
          if adjoint is not None
        ]
      )
    ]

  def gradient():
    gradient = linear_map.linearize(weighted, arguments).of_ones()
    return [
      tf.zeros_like(a) if g is None else g for a, g in zip(arguments, gradient)
    ]

  return linear_map.linearize(gradient, arguments)


def local_jacobian(
  op: tf.Operation, groups: Sequence, arguments: Sequence
) -> LinearMap:
  """The transposed Jacobian of an op by some arguments.

  Args:
    op: `tf.Operation`.
    groups: As for `local_hessian`.
    arguments: As for `local_hessian`.

  Returns:
    A `LinearMap`.
  """
  arguments = [tf.identity(argument) for argument in arguments]
  return linear_map.linearize(
    lambda: _repeated(op, groups, arguments), arguments
  )


def slopes(
  op: tf.Operation, group: tuple, argument: tf.Tensor, order: int
) -> list:
  """The derivatives of an elementwise op by one argument.

  Args:
    op: `tf.Operation`.
    group: Tuple of Python ints, the inputs that the argument stands for.
    argument: Tensor of the shape of the op's result.
    order: Python int, the highest order.

  Returns:
    List of a Tensor for each order from 1 on; None if it vanishes.
  """
  known = facts(op.type).slopes
  # The first derivative is that of the passes, with which ways are compared.
  if known is not None and order > 1:
    return known(argument, order)
  argument = tf.identity(argument)
  found = []

  def of_order(k):
    if k == 0:
      return _repeated(op, [group], [argument])
    return linear_map.linearize(lambda: of_order(k - 1), [argument]).of_ones()

  for k in range(1, order + 1):
    # A constant has no derivative.
    is_zero = found and found[-1] is None
    found.append(None if is_zero else of_order(k)[0])
  return found


def factor(op: tf.Operation, group: tuple) -> Any:
  """What an elementwise op multiplies an argument by.

  Args:
    op: `tf.Operation`.
    group: Tuple of Python ints, the inputs that the argument stands for.

  Returns:
    A number, or a Tensor that broadcasts to the result; None if not known.
  """
  known = facts(op.type).factor
  if known is None or len(group) != 1:
    return None
  return known(op, group[0])


def slopes_of_own_gradient(
  step: Step, op: tf.Operation, groups: Sequence
) -> list:
  """As `slopes`, for an op with a `tf.custom_gradient`, from that gradient.

  Args:
    step: `tape.Step` with `own_gradient`.
    op: `tf.Operation` of it, in the graph that is being built.
    groups: Tuples of one Python int, the inputs by which it is differentiated,
      one after the other.

  Returns:
    List of a Tensor for each order from 1 on; None if it vanishes.
  """
  # One argument may be computed from another one.
  held = [op.inputs[k] for arrow in step.structure.arrows for k in arrow.inputs]
  whole = linear_map.linear_map_of_graph(op.outputs, op.inputs)
  found, last = [], op.outputs[0]
  for (k,) in groups:
    if last is not None:
      (last,) = whole.between([last], [op.inputs[k]], held).of_ones()
    found.append(last)
  return found


def _repeated(
  op: tf.Operation, groups: Sequence, arguments: Sequence
) -> Sequence:
  # Arguments may be more precise than the op; the rest then is so, too.
  dtypes = {
    op.inputs[k].dtype: argument.dtype
    for numbers, argument in zip(groups, arguments)
    for k in numbers
  }
  inputs = [
    tf.cast(x, dtypes[x.dtype]) if x.dtype in dtypes else x for x in op.inputs
  ]
  for numbers, argument in zip(groups, arguments):
    for k in numbers:
      inputs[k] = argument
  return repeat_op(op, inputs)


def add(total: Sequence, update: Sequence) -> list:
  """Two lists of Tensors or None, added up."""
  return [
    t if u is None else (u if t is None else t + u)
    for t, u in zip(total, update)
  ]


def wide(x: tf.Tensor) -> tf.Tensor:
  """In double precision, whose range holds the cubes of all single ones."""
  return tf.cast(x, tf.float64)


def widest(tensors: Sequence) -> tf.DType:
  """The most precise dtype that one of some Tensors has."""
  return max((t.dtype for t in tensors), key=lambda dtype: dtype.size)
