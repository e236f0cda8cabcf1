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
"""Traces a function to a graph."""

import tensorflow as tf

from tfp_diag.internal import nest

__all__ = ['trace']


def trace(fn, xs, shapes):
  """Traces `fn` on parts of given shapes.

  Args:
    fn: Python callable, called as `nest.call_fn` does; without arguments if all
      parts of `xs` are `tf.Variable`s and it takes none.
    xs: The state: any structure of tensors, arrays, `tf.TensorSpec`s,
      variables.
    shapes: list of shapes (tuples of int), one per part.

  Returns:
    graph: The `FuncGraph`; its first inputs are the parts, in order, unless
      `variables` says otherwise.
    variables: list of the variables that `fn` closes over instead of taking
      them as arguments, or None.
  """
  parts = nest.flatten(xs)
  if nest.takes_variables(fn, parts):
    # What is differentiated is not an argument; shapes cannot be changed.
    function = tf.function(lambda: _as_tensors(fn()), autograph=False)
    return _concrete(function, fn, lambda f: lambda: _as_tensors(f())), parts

  def with_parts(f):
    def call(*tensors):
      return _as_tensors(nest.call_fn(f, nest.pack_as(xs, tensors)))

    return call

  specs = [
    tf.TensorSpec(shape, dtype_of(part)) for shape, part in zip(shapes, parts)
  ]
  function = tf.function(with_parts(fn), autograph=False)
  return _concrete(function, fn, with_parts, *specs), None


def dtype_of(part):
  """The dtype of a tensor, array, spec or variable."""
  if hasattr(part, 'dtype'):
    return tf.as_dtype(part.dtype)
  return tf.convert_to_tensor(part).dtype


def shape_of(part):
  """The static shape of a tensor, array, spec or variable, as a list."""
  if not hasattr(part, 'shape'):
    part = tf.convert_to_tensor(part)
  return tf.TensorShape(part.shape).as_list()


def _concrete(function, fn, wrap, *specs):
  try:
    return function.get_concrete_function(*specs).graph
  except tf.errors.OperatorNotAllowedInGraphError:
    # Python control flow on tensors, which works in eager mode.
    converted = tf.autograph.to_graph(fn)
    function = tf.function(wrap(converted), autograph=False)
    return function.get_concrete_function(*specs).graph


def _as_tensors(ys):
  """The parts of what a function returns; IndexedSlices become tensors."""
  parts = tf.nest.flatten(ys)
  if any(part is None for part in parts):
    raise ValueError(
      f'fn must return tensors, got {ys!r}. Return zeros for a part that does '
      'not depend on xs.'
    )
  return [tf.convert_to_tensor(part) for part in parts]
