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
"""Whether a function does something else on another number of samples."""

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.registry import facts

__all__ = ['depends_on_batch']

# The attributes that say no more than that.
_SHAPE_ATTRIBUTES = ('_output_shapes', 'output_shapes', 'shape')


def depends_on_batch(one, other):
  """Compares two graphs of a function, traced on other numbers of samples.

  What is different but for shapes is a coefficient, an index or a branch, which
  other samples may not have. A shape may be computed from shapes.

  Args:
    one, other: `FuncGraph`s.

  Returns:
    `bool`: whether anything is different that is not known to be a shape.
  """
  captured = zip(one.external_captures, other.external_captures)
  if len(one.external_captures) != len(other.external_captures) or any(
    a is not b for a, b in captured
  ):
    return True
  return _differing_values(one, other, ()) is None


def _differing_values(one, other, given):
  """The names of the Tensors of `one` that `other` has with other values.

  Args:
    one, other: `FuncGraph`s.
    given: numbers of the inputs of `one` that have other values.

  Returns:
    set of `str`: they are integers. None if anything else is different.
  """
  differ = {one.inputs[k].name for k in given}
  ops, others = one.get_operations(), other.get_operations()
  if len(ops) != len(others):
    return None
  twin = {}
  for a, b in zip(ops, others):
    inputs = [twin.get(t.name) for t in a.inputs]
    if a.type != b.type or inputs != [t.name for t in b.inputs]:
      return None
    twin.update({s.name: t.name for s, t in zip(a.outputs, b.outputs)})
    known = facts(a.type)
    if known.is_constant:
      if not _same_constant(a.node_def.attr['value'], b.node_def.attr['value']):
        differ.add(a.outputs[0].name)
      continue
    if known.is_placeholder and not a.inputs:
      continue
    differing = _outputs(one, other, a, b, differ)
    if differing is None or any(t.dtype.is_floating for t in differing):
      return None
    differ.update(t.name for t in differing)
  return differ


def _same_constant(a, b):
  """Whether constants are the same, or one number in different shapes."""
  if a == b:
    return True
  a, b = tf.make_ndarray(a.tensor), tf.make_ndarray(b.tensor)
  if not a.size or not b.size or a.dtype != b.dtype:
    return False
  return bool(np.all(a == a.flat[0]) and np.all(b == a.flat[0]))


def _outputs(one, other, a, b, differ):
  """Which outputs of an op have other values; None if it is another op."""
  functions, ours, theirs = [], a.node_def.attr, b.node_def.attr
  if ours.keys() != theirs.keys():
    return None
  for name in ours:
    if ours[name].HasField('func'):
      functions.append((ours[name].func.name, theirs[name].func.name))
    elif ours[name].list.func:
      pairs = zip(ours[name].list.func, theirs[name].list.func)
      functions += [(f.name, g.name) for f, g in pairs]
    elif name not in _SHAPE_ATTRIBUTES and ours[name] != theirs[name]:
      return None
  used = [
    k
    for k, t in enumerate(a.inputs)
    if t.name in differ and k not in facts(a.type).shape_inputs
  ]
  if not functions:
    return list(a.outputs) if used else []
  return _results(one, other, a, functions, used)


def _results(one, other, op, functions, used):
  """Which results of functions that an op calls have other values, or None.

  Args:
    one, other: `FuncGraph`s.
    op: `tf.Operation` of `one`.
    functions: list of pairs of names of functions, of `one` and of `other`.
    used: numbers of the inputs of the op that have other values.

  Returns:
    list of Tensors, outputs of the op; or None if anything else is different.
  """
  found, is_loop = set(), facts(op.type).is_loop
  for name, twin in functions:
    bodies = one._get_function(name).graph, other._get_function(twin).graph
    # A branch is not given the condition.
    first = len(op.inputs) - len(bodies[0].inputs)
    given = {k - first for k in used if k >= first}
    while True:
      differing = _differing_values(*bodies, given)
      if differing is None:
        return None
      results = {
        k for k, t in enumerate(bodies[0].outputs) if t.name in differing
      }
      if not is_loop or results <= given:
        break
      given |= results
    decides = any(k < first for k in used)
    if is_loop and name == op.node_def.attr['cond'].func.name:
      decides = bool(results)
    if decides:
      return list(op.outputs)
    found |= results
  return [op.outputs[k] for k in sorted(found)]
