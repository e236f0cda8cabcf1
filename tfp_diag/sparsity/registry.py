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
"""What is known of op types: a rule, and plain facts."""

import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.internal.warn import warn

_RULES = {}
_EXPANSIONS = {}
_FACTS = {}
_BOUNDS = {}
_REPORTED = set()


class CannotSay(Exception):
  """Raised by a rule for an op that it does not cover.

  The op is then treated as dense: each output depends on every input.

  #### Examples

  ```python
  from tfp_diag.sparsity import CannotSay, Flow, Structure, register_rule


  @register_rule('MyShift')
  def _my_shift(op):
    size = op.inputs[0].size
    if op.attr('periodic'):
      raise CannotSay
    # Each output is the input before it, and the first one is constant.
    return Structure.linear({0: Flow.gather(np.arange(-1, size - 1), size)})
  ```
  """


class OpFailed(Exception):
  """Raised where an op cannot be executed on the values that it would get."""


class Squares(enum.Enum):
  """How the squared derivatives of an op act on a cotangent.

  Attributes:
    SAME: As the derivatives: these are 0 or 1.
    OPERANDS: As the derivatives, with the other operand squared. The op is a
      sum of products of two operands; no two products have both the result and
      a factor in common.
    ALONE: Each input element reaches at most one result; its derivative may be
      any number.
    INVERSE: As the inverse of the matrix in the first input, with its elements
      squared. The op solves a linear system whose right-hand side is its second
      input. By one entry of the matrix alone it is curved, too.
  """

  SAME = 'same'
  OPERANDS = 'operands'
  ALONE = 'alone'
  INVERSE = 'inverse'


@dataclasses.dataclass(frozen=True)
class OpFacts:
  """What holds for every op of a type, beside its rule.

  Attributes:
    shape_inputs: Numbers of the inputs that only give a shape.
    measured_inputs: Numbers of the inputs of which it only reads the shape.
    index_inputs: Numbers of the inputs of integers that TensorFlow's gradient
      passes on as Tensors. It may read the values of others, such as an axis,
      while it builds a graph.
    elementwise: Which derivatives of an elementwise op vanish, as in the table
      of `rules.elementwise`; None for other ops.
    orders_in_range: Up to which order the derivatives of an elementwise op fit
      into single precision wherever the first one does; 1 if nothing is known.
    slopes: For an elementwise op of one argument: a function of that and of a
      number, which returns its derivatives of order 1 up to that number, each
      with the precision of the argument. None: TensorFlow differentiates.
    factor: For an elementwise op: a function of a `tf.Operation` and the number
      of an input, which returns what the op multiplies that input by: a number,
      or a Tensor that broadcasts to the result.
    bends: Whether it is linear in pieces, and bends between them. Where that is
      cannot be told by running it.
    selects: Numbers of inputs of an elementwise op. Where its derivative by one
      of these is zero, TensorFlow's gradient is zero for any cotangent, also
      for one that is not finite.
    is_pure: Whether it has no side effects, and the same result each time.
      Reading a variable counts as pure.
    is_same_everywhere: Whether XLA and each device compute the same, but for
      rounding. Random numbers of one seed are others there.
    passes_on: Whether it passes on values of any kind, also tensor lists.
    num_derivatives: How often TensorFlow can differentiate it. From then on
      TensorFlow takes the result as constant, without an error. None if there
      is no limit.
    lost_inputs: A function of a `tf.Operation` that returns the numbers of some
      inputs. With respect to these TensorFlow takes the result as constant, or
      differentiates it wrongly, without an error.
    held: A function of a `tf.Operation`, and of a list of bools that tells
      which of its inputs depend on xs, or None. Returns a pair of phrases, or
      None. The first names what TensorFlow holds constant in the op though it
      depends on the inputs. The second names something to use instead. First
      derivatives are right nevertheless, others are not.
    needs_xla: A function of a `tf.Operation` that tells whether it needs XLA,
      since otherwise TensorFlow lacks a kernel for it on some devices.
    is_for_any_dtype: Whether its rule holds for integers and bools, too.
    is_identity: Whether its result is its only input, whatever else it does.
    adds_up: Whether its result is the sum of all its inputs.
    is_sum: Whether its result has sums over some axes of its first input.
    is_call: Whether it calls a function once.
    is_loop: Whether it calls a function repeatedly.
    read: For an op that reads a variable and does nothing else: a function of
      the `tf.Operation`, the `tf.Variable` and the other inputs that reads the
      variable again.
    is_constant: Whether its result is an attribute of the op.
    is_placeholder: Whether it stands for a Tensor that is given from outside.
    follows_gradient: Whether its rule allows for a custom gradient of the op.
    ends_custom_gradient: Whether it is the last op of a function with a
      `tf.custom_gradient`, if it has a gradient of its own.
    is_slice: Whether it cuts slices out of its input.
    vectorizes: Whether pfor can vectorize its gradient under XLA.
    moved_inputs: Numbers of inputs whose elements it moves, and does nothing
      else; the other inputs say where to. A `slice` is a range of numbers. Of
      integers, it may add some up.
    only_copies: Whether it has one such input, and each element of its results
      is an element of that.
    is_difference: Whether it is a function of the difference of its two inputs.
    axes: Where the axes of the first input are in the result of an op that only
      copies: 'aligned', as by broadcasting; or 'in order', but for axes of size
      one that are new or gone. None: somewhere else.
    separate_axes: A function of a `tf.Operation`: the number of leading axes of
      its inputs and of its result along which it does the same to each entry,
      whatever the others are. An elementwise op has such axes only.
    is_same_for_all_sizes: Whether what it computes from shapes is the same for
      any number of samples.
    ramp: A function of an instruction, its inputs and the shape of its result:
      the `Ramp` of that. Raises `CannotSay`, or returns None, if it sees none.
    sizes: A function of a `tf.Operation` and of its inputs as `Sizes`: the
      result as such, or None if it is not one for any number of samples.
    on_integers: A NumPy function that does the same with integers and bools.
    written_out: A function of a `tf.Operation` and of the Tensors that replace
      its inputs. It computes the first result by simpler ops, with the
      normalizer, or the `products`, as a Tensor of its own.
    written_out_but_for: Numbers of inputs that must be constant for that.
    linear_in: Tuples of numbers of inputs. The op is a linear map of the inputs
      in a tuple together, zero where these are, and TensorFlow differentiates
      it as one.
    squares: How its squared derivatives are computed: a `Squares`, or a
      function of a `tf.Operation` that returns one or None. None if they cannot
      be. Elementwise ops, and inputs in `moved_inputs`, do not need it.
    products: Of an op that adds up products of its two inputs: a function of a
      `tf.Operation`, the shapes of its result and inputs, and the most products
      to list. Three int arrays, the places of the result and of both factors of
      each one; None if it does not say.
  """

  shape_inputs: tuple[int, ...] = ()
  measured_inputs: tuple[int, ...] | slice = ()
  index_inputs: tuple[int, ...] = ()
  elementwise: str | None = None
  orders_in_range: int = 1
  slopes: Callable | None = None
  factor: Callable | None = None
  bends: bool = False
  selects: tuple[int, ...] = ()
  is_pure: bool = True
  is_same_everywhere: bool = True
  passes_on: bool = False
  num_derivatives: int | None = None
  lost_inputs: Callable | None = None
  held: Callable | None = None
  needs_xla: Callable | None = None
  is_for_any_dtype: bool = False
  is_identity: bool = False
  adds_up: bool = False
  is_sum: bool = False
  is_call: bool = False
  is_loop: bool = False
  read: Callable | None = None
  is_constant: bool = False
  is_placeholder: bool = False
  follows_gradient: bool = False
  ends_custom_gradient: bool = False
  is_slice: bool = False
  vectorizes: bool = True
  moved_inputs: tuple[int, ...] | slice = ()
  only_copies: bool = False
  is_difference: bool = False
  axes: Literal['aligned', 'in order'] | None = None
  separate_axes: Callable | None = None
  is_same_for_all_sizes: bool = False
  ramp: Callable | None = None
  sizes: Callable | None = None
  on_integers: Callable | None = None
  written_out: Callable | None = None
  written_out_but_for: tuple[int, ...] = ()
  linear_in: tuple[tuple[int, ...], ...] = ()
  squares: 'Squares | Callable | None' = None
  products: Callable | None = None

  def moved(self, num_inputs: int) -> Sequence[int]:
    """The numbers in `moved_inputs`, for an op with `num_inputs` inputs."""
    return _numbers(self.moved_inputs, num_inputs)

  def measured(self, num_inputs: int) -> Sequence[int]:
    """Likewise those in `measured_inputs`."""
    return _numbers(self.measured_inputs, num_inputs)


def _numbers(which: tuple | slice, num_inputs: int) -> Sequence[int]:
  return range(num_inputs)[which] if isinstance(which, slice) else which


_NOTHING_KNOWN = OpFacts()


def facts(op_type: str) -> OpFacts:
  """The `OpFacts` of an op type; the defaults if none are registered."""
  return _FACTS.get(op_type, _NOTHING_KNOWN)


def elementwise_pairs(op_type: str, used: Collection[int]) -> list | None:
  """The pairs of arguments of an op by which it has second derivatives.

  Args:
    op_type: `str`.
    used: the numbers of the arguments that are not constant.

  Returns:
    list of pairs of numbers, or None if the op is not elementwise.
  """
  known = facts(op_type).elementwise
  if known is None:
    return None
  classes, *crosses = known.split(',')
  pairs = [(k, k) for k, letter in enumerate(classes) if letter == 'c']
  pairs += [tuple(map(int, cross)) for cross in crosses]
  return [(a, b) for a, b in pairs if a in used and b in used]


def register_facts(*op_types: str, **known: Any) -> None:
  """Registers facts about some op types, with or without a rule.

  Args:
    *op_types: Types of TensorFlow ops.
    **known: Attributes of `OpFacts`.

  Raises:
    TypeError: If there is no such fact.
    ValueError: If another value of a fact is registered for one of them.
  """
  _check_facts(known)
  stated = {t: dataclasses.replace(facts(t), **known) for t in op_types}
  for op_type in op_types:
    for name, value in known.items():
      before = getattr(facts(op_type), name)
      if before not in (value, getattr(_NOTHING_KNOWN, name)):
        raise ValueError(
          f'`{name}` of the op type {op_type!r} is {before!r} already, got '
          f'{value!r}. A fact is registered once: change it there.'
        )
  _FACTS.update(stated)


def register_rule(*op_types: str, **known: Any) -> Callable:
  """Decorates a rule: which derivatives of some types of ops can be nonzero.

  A rule is a pure function of one argument, the op as the walker sees it:

  * `op.type`, `op.name`; `op.attr(name)`, an attribute of the op;
  * `op.inputs[i]` with `shape` (tuple of int), `size`, `dtype`, `depends` (it
    can change with xs, and has a derivative) and `value()`, the NumPy array of
    an input that is constant;
  * `op.outputs[i]` with `shape`, `size` and `dtype`.

  It returns a `Structure`: the pattern of the op's Jacobian as `Flow`s, and
  which second derivatives there are. It is called only if some input depends on
  xs and all shapes are known. Inputs that do not depend on xs may be left in or
  out. If it raises `CannotSay`, as `value()` does where the input is not a
  known constant, the op is taken as dense, as if it had no rule: that is slow,
  but never wrong. If it raises another error, the op is taken as dense as well,
  with a note and one warning. A rule that misses entries gives wrong numbers;
  `validate_args=True` finds that.

  Args:
    *op_types: `str`s: types of TensorFlow ops, as in `tf.Operation.type`.
    **known: Facts about them that are not the default: `shape_inputs=(1,)`, the
      numbers of the inputs that only give a shape; `is_pure=False`, if they
      have side effects, or another result each time; `num_derivatives=1`, how
      often TensorFlow can differentiate them, if not without limit;
      `is_for_any_dtype=True`, if the rule holds for integers and bools, too;
      `is_same_for_all_sizes=True`, if what they compute from shapes is the same
      for any number of samples; `vectorizes=False`, if pfor cannot vectorize
      their gradient under XLA; `linear_in=((0, 1),)`, tuples of inputs of which
      they are a linear map together. Other facts are of use to TensorFlow's own
      ops only; an error lists them. Whether an op is affine, with one matrix
      for all samples, is found by running it.

  Returns:
    A decorator that registers a function and returns it unchanged. It warns if
    TensorFlow has no op of such a type: the rule has no effect then, unless the
    op is loaded later.

  Raises:
    ValueError: If an op type has a rule already, or no op type is given; if
      another value of a fact is registered for it.
    TypeError: If there is no such fact.

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
  return _registrar(_RULES, op_types, known)


def register_expansion(*op_types: str, **known: Any) -> Callable:
  """Decorates a function that walks an op in its own way.

  Unlike a rule it does not describe derivatives, but computes what the walker
  knows of the outputs, and can walk other ops for that. This is for function
  calls, branches, loops, tensor lists, and ops whose value is known though
  their inputs are not.

  Args:
    *op_types: `str`s: types of TensorFlow ops.
    **known: As for `register_rule`.

  Returns:
    A decorator for functions `(walker, scope, instruction, inputs) -> outputs`,
    where inputs and outputs are lists of `Value` or `TensorList`.
  """
  return _registrar(_EXPANSIONS, op_types, known)


def register_bounds(*op_types: str) -> Callable:
  """Decorates a function that returns bounds of the results of an op.

  It raises `CannotSay` where it knows none.

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


def find_bounds(op_type: str) -> Callable | None:
  """The function that returns bounds of the results of an op, or None."""
  return _BOUNDS.get(op_type)


def is_news(op_type: str, error: Exception) -> bool:
  """Whether this error of a rule is new; notes that it has occurred."""
  fault = op_type, find_rule(op_type), str(error)
  before = len(_REPORTED)
  _REPORTED.add(fault)
  return len(_REPORTED) > before


def find_rule(op_type: str) -> Callable | None:
  """The rule of an op type, or None."""
  return _RULES.get(op_type)


def has_rule(op_type: str) -> bool:
  """Whether something says what an op depends on."""
  return not (find_rule(op_type) is None and find_expansion(op_type) is None)


def find_expansion(op_type: str) -> Callable | None:
  """The expansion of an op type, or None."""
  return _EXPANSIONS.get(op_type)


def _registrar(table: dict, op_types: tuple, known: dict) -> Callable:
  if not op_types or not all(isinstance(t, str) and t for t in op_types):
    raise ValueError(
      'register_rule takes the op types as strings, got '
      f"{op_types!r}. Write it as register_rule('OpType')."
    )
  _check_facts(known)

  def decorate(function):
    arguments.check_callable('rule', function, 'a function of an op')
    for op_type in op_types:
      if op_type in _RULES or op_type in _EXPANSIONS:
        raise ValueError(
          f'The op type {op_type!r} has a rule already. An op type has one '
          'rule: change that one.'
        )
    register_facts(*op_types, **known)
    # Those of this package may be for another version of TensorFlow.
    if not _is_of_this_package(function):
      _warn_if_unknown(op_types)
    table.update(dict.fromkeys(op_types, function))
    return function

  return decorate


def _check_facts(known: dict) -> None:
  names = [field.name for field in dataclasses.fields(OpFacts)]
  for name in known:
    arguments.check_known(name, names, 'is not one of the facts about op types')


def _is_of_this_package(function: Callable) -> bool:
  module = getattr(function, '__module__', None) or ''
  return module.split('.')[0] == __name__.split('.')[0]


def _warn_if_unknown(op_types: Sequence[str]) -> None:
  """Warns of what is no op, and does not raise: it may be loaded later."""
  for op_type in op_types:
    if not _is_loaded(op_type):
      meant = arguments.did_you_mean(op_type, dir(tf.raw_ops), 3)
      warn(
        f'`register_rule` was given the op type {op_type!r}, but TensorFlow '
        f'has no such op, so that the rule has no effect.{meant} The type of '
        'an op is its `tf.Operation.type`. If it is a custom op, load its '
        'library first.',
        UserWarning,
      )


def _is_loaded(op_type: str) -> bool:
  """Whether TensorFlow has an op of that type, as far as it tells."""
  if hasattr(tf.raw_ops, op_type):
    return True
  look_up = getattr(_empty_graph(), 'op_def_for_type', None)
  if look_up is None:  # Earlier versions of TensorFlow do not tell.
    return True
  try:
    look_up(op_type)
  except (RuntimeError, tf.errors.OpError):
    return False
  return True


@functools.cache
def _empty_graph() -> tf.Graph:
  return tf.Graph()
