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
"""The rules by op type."""

__all__ = [
  'CannotSay',
  'OpFailed',
  'find_bounds',
  'find_expansion',
  'find_rule',
  'register_bounds',
  'register_expansion',
  'register_rule',
]

_RULES = {}
_EXPANSIONS = {}
_BOUNDS = {}


class CannotSay(Exception):
  """Raised by a rule that knows nothing about this op: it is taken as dense."""


class OpFailed(Exception):
  """Raised where an op cannot be executed on the values that it would get."""


def register_rule(*op_types):
  """Decorates a rule: what is known about the derivatives of some op types.

  A rule is a pure function of one argument, the op as the walker sees it:

  * `op.type`, `op.name`; `op.attr(name)`, an attribute of the op;
  * `op.inputs[i]` with `shape` (tuple of int), `size`, `dtype`, `depends` (it
    can change with xs, and has a derivative) and `value()`, the NumPy array of
    an input that is constant;
  * `op.outputs[i]` with `shape`, `size` and `dtype`.

  It returns a `Structure`: the form of the op's Jacobian by `Flow`s, and what
  has second derivatives. It is asked only if some input depends on xs and all
  shapes are known. Inputs that do not depend on xs may be left in or out. If it
  raises `CannotSay`, as `value()` does where nothing constant is known, the op
  is taken as dense, as if it had no rule: that is slow, but never wrong.

  Args:
    *op_types: `str`s: types of TensorFlow ops, as in `tf.Operation.type`.

  Returns:
    A decorator that registers a function and returns it unchanged.

  Raises:
    ValueError: If an op type has a rule already, or none is given.

  #### Examples

  A custom op whose output `[n]` is the sorted input `[n]`, each element
  depending on all, without second derivatives:

  ```python
  from tfp_diag.sparsity import Flow, Structure, register_rule


  @register_rule('MySort')
  def _my_sort(op):
    return Structure.linear(
      {0: Flow.dense(op.outputs[0].size, op.inputs[0].size)}
    )
  ```
  """
  return _registrar(_RULES, op_types)


def register_expansion(*op_types):
  """Decorates a function that says what an op is made of.

  Unlike a rule it does not describe derivatives, but rewrites the op for the
  walker: function calls, branches, loops, tensor lists, and ops whose value is
  known though their inputs are not.

  Args:
    *op_types: `str`s: types of TensorFlow ops.

  Returns:
    A decorator for functions `(walker, scope, op, inputs) -> outputs`, where
    inputs and outputs are what the walker knows of tensors.
  """
  return _registrar(_EXPANSIONS, op_types)


def register_bounds(*op_types):
  """Decorates a function that says between which numbers results lie.

  It raises `CannotSay` where it does not know.

  Args:
    *op_types: `str`s: types of TensorFlow ops.

  Returns:
    A decorator for functions `(instruction, inputs, k) -> (low, high)`: of
    output `k`, arrays that broadcast to its shape; `inputs` have `bounds()`.
  """

  def decorate(function):
    _BOUNDS.update(dict.fromkeys(op_types, function))
    return function

  return decorate


def find_bounds(op_type):
  """What says between which numbers the results of an op lie, or None."""
  return _BOUNDS.get(op_type)


def find_rule(op_type):
  """The rule of an op type, or None."""
  return _RULES.get(op_type)


def find_expansion(op_type):
  """The expansion of an op type, or None."""
  return _EXPANSIONS.get(op_type)


def _registrar(table, op_types):
  if not op_types or not all(isinstance(t, str) for t in op_types):
    raise ValueError(
      'register_rule takes the op types as strings, got '
      f"{op_types!r}. Write it as register_rule('OpType')."
    )

  def decorate(function):
    for op_type in op_types:
      if op_type in _RULES or op_type in _EXPANSIONS:
        raise ValueError(
          f'The op type {op_type!r} has a rule already. An op type has one '
          'rule: change that one.'
        )
      table[op_type] = function
    return function

  return decorate
