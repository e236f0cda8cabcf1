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
"""Walks a traced function and writes down which of its ops depend on xs."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.internal.warn import warn
from tfp_diag.sparsity import registry
from tfp_diag.sparsity.evaluation import inferred_shapes, run_op
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.op_view import OpView
from tfp_diag.sparsity.program import Instruction, Program, Scope
from tfp_diag.sparsity.registry import CannotSay, OpFailed
from tfp_diag.sparsity.sizes import Scaling
from tfp_diag.sparsity.structure import Arrow, Structure
from tfp_diag.sparsity.tape import Step, Tape
from tfp_diag.sparsity.twin import Twin
from tfp_diag.sparsity.value import Captured, TensorList, Value
from tfp_diag.sparsity.zeros import note_zeros


class Walker:
  """Turns graphs into a `Tape`: one rule per op, nested functions inlined.

  What does not depend on xs never reaches the tape: it is evaluated when a
  rule asks for its value. An op without a rule, or whose rule raises
  `CannotSay`, is taken as dense and recorded in `fallbacks`.

  Attributes:
    tape: `Tape` being written.
    second_order: `bool`: whether second derivatives are needed.
    by_value: `bool`: whether an output depends on an input if its value does,
      even where the derivative vanishes. This is for cotangents: a gradient
      that the user wrote may end in `tf.stop_gradient`.
    loop_budget: int: how many more ops unrolled loops may have, in all.
    fallbacks: `dict` from the labels of ops that were taken as dense to True,
      in order.
    has_failures: `bool`: whether an op failed when it was executed: perhaps the
      function does not work on inputs of these shapes.
    notes: `dict` from sentences for the user to True, in order.
    variables: `dict` from `id` of a captured resource handle to the `Value`
      that reading it gives, for variables that are part of xs.
    graph: `Graph` that is walked.
    integers: `set` of the integers that rules have read.
    scaling: `Scaling`: what sizes are for other numbers of samples.
    has_varying: `bool`: whether a rule has asked for a value that was computed
      from the number of samples, and did not get it.
    shapeless: The first op with a result of unknown shape, for messages; None
      if all shapes are known.
    is_settled: `bool`: whether a value was found to be the same for all numbers
      of samples from `least_samples` on.
  """

  def __init__(
    self,
    graph: Any,
    second_order: bool = True,
    twin: Twin | None = None,
    put_in: Sequence[int] = (),
    least_samples: int = 1,
  ) -> None:
    self.graph = graph
    self.tape = Tape()
    self.second_order = second_order
    self.has_varying = False
    self.integers: set[int] = set()
    self.shapeless: str | None = None
    self.is_settled = False
    self._twin = twin
    self._put_in = put_in
    self._least_samples = least_samples
    self.scaling = Scaling(put_in, twin and twin.sizes[: len(put_in)])
    self._op_at_hand = None
    if twin is not None:
      self._op_at_hand = twin.op_at_hand.get
    elif put_in:
      self._op_at_hand = lambda op: op
    self.by_value = False
    self.loop_budget = _LOOP_BUDGET
    self.fallbacks = {}
    self.has_failures = False
    self.notes = {}
    self.variables = {}
    self._programs = {}
    self._structures = {}

  def walk(self, inputs: Sequence) -> list:
    """Walks the ops that the function has added to its graph.

    Args:
      inputs: list of `Value`, one per part.

    Returns:
      list of `Value`, one per result.
    """
    graph = self.graph
    program = self.program(graph.graph, graph.ops)
    known = {}
    for x, value in zip(graph.xs, inputs):
      if isinstance(x, tf.Variable):
        self.variables[id(x.handle)] = value
      else:
        known[x.name] = value
    scope = Scope(program, known, None)
    names = tuple(y.name for y in graph.ys)
    self.evaluate(scope, names)
    return [scope.values[name] for name in names]

  def call(
    self, graph: Any, inputs: Sequence, caller: Scope | None = None
  ) -> list:
    """Walks the graph of a function that is called.

    Args:
      graph: `FuncGraph`.
      inputs: list of `Value` or `TensorList`: what its first inputs are.
      caller: `Scope` from which it is called, or None.

    Returns:
      list of `Value` or `TensorList`, one per output of the graph.
    """
    program = self.program(graph)
    # The gradient of a custom function can add captures to a graph that was
    # read before: those are looked up in the caller's scope.
    scope = Scope(program, dict(zip(program.inputs, inputs)), caller)
    self.evaluate(scope, program.outputs)
    return [scope.values[name] for name in program.outputs]

  def evaluate(self, scope: Scope, names: Sequence[str]) -> None:
    """Walks the ops that some tensors of a scope depend on."""
    values = scope.values
    for instruction in scope.program.order(names):
      if all(name in values for name in instruction.outputs):
        continue
      outputs = self._execute(scope, instruction)
      values.update(zip(instruction.outputs, outputs))
      if self.shapeless is None and any(map(_has_no_shape, outputs)):
        self.shapeless = (
          f'{instruction.type} (op {self.name_of(instruction)!r})'
        )

  def program(self, graph: Any, ops: Sequence | None = None) -> Program:
    """The `Program` of a graph.

    Args:
      graph: `FuncGraph`.
      ops: the ops that the function has added to it. Default: all.

    Returns:
      `Program`.
    """
    # The program keeps the graph alive, so that no other graph gets its id.
    if id(graph) not in self._programs:
      self._programs[id(graph)] = Program(graph, self._op_at_hand)
      self._note_side_effects(graph.get_operations() if ops is None else ops)
    return self._programs[id(graph)]

  @contextlib.contextmanager
  def writing_to(
    self,
    tape: Tape,
    second_order: bool | None = None,
    by_value: bool | None = None,
  ) -> Iterator[Tape]:
    """A context in which steps go to another tape.

    Args:
      tape: `Tape`.
      second_order: As the attribute. Default: no change.
      by_value: As the attribute. Default: no change.

    Yields:
      `tape`.
    """
    before = self.tape, self.second_order, self.by_value
    self.tape = tape
    if second_order is not None:
      self.second_order = second_order
    if by_value is not None:
      self.by_value = by_value
    try:
      yield tape
    finally:
      self.tape, self.second_order, self.by_value = before

  def add_step(
    self,
    instruction: Instruction,
    inputs: Sequence,
    outputs: Sequence,
    structure: Structure,
    name: str | None = None,
    **more: Any,
  ) -> None:
    """Appends a step, after checking that the structure fits the shapes.

    Args:
      instruction: `Instruction` of the op.
      inputs: List of `Value`.
      outputs: Likewise.
      structure: `Structure`.
      name: The name of the op for messages. Default: its own.
      **more: Further fields of the `Step`.
    """
    step = Step(
      instruction.type,
      name or instruction.name,
      tuple(inputs),
      tuple(outputs),
      structure,
      **more,
    )
    _check_structure(step)
    self.tape.steps.append(step)

  def name_of(self, instruction: Instruction) -> str:
    """The name of an op for messages: that in the scope of the call."""
    return instruction.name.removeprefix(f'{self.graph.scope}/')

  def _execute(self, scope: Scope, instruction: Instruction) -> list:
    known = registry.facts(instruction.type)
    is_captured = (
      known.is_constant and instruction.outputs[0] in scope.program.captures()
    )
    if known.is_placeholder or is_captured:
      return [self._captured(scope, instruction)]
    inputs = [scope.values[name] for name in instruction.inputs]
    if instruction.has_replaced_gradient:
      return self._dense(instruction, _flat(inputs))
    expansion = registry.find_expansion(instruction.type)
    if self.by_value and not (known.passes_on or known.is_for_any_dtype):
      # An integer or a bool may depend on cotangents.
      if any(map(_is_index, _flat(inputs))):
        return self._dense(instruction, _flat(inputs))
    if expansion is not None:
      try:
        return expansion(self, scope, instruction, inputs)
      except Exception as error:
        self._remember(instruction, error)
        return self._dense(instruction, _flat(inputs))
    inputs = _flat(inputs)
    if not any(value.depends for value in inputs):
      return self._independent(instruction, inputs)
    return self._by_rule(instruction, inputs)

  def _by_rule(self, instruction: Instruction, inputs: Sequence) -> list:
    """The outputs of an op that has a rule, or should have one."""
    is_known = self._are_known(instruction, inputs)
    if any(map(_is_opaque, instruction.dtypes)):
      return self._dense(instruction, inputs)
    if not any(map(self._counts, instruction.dtypes)):
      return _unknown(instruction, inputs)
    rule = registry.find_rule(instruction.type)
    if rule is None:
      return self._dense(instruction, inputs)
    if not is_known:
      self.has_varying = True
      return self._dense(instruction, inputs)
    # Kept for other iterations of a loop, and other calls of the function.
    key = (
      id(instruction),
      self.by_value,
      tuple((value.shape, value.depends) for value in inputs),
    )
    known = self._structures.get(key)
    if known is None:
      try:
        view = OpView(instruction, inputs, self.by_value, self._refused)
        structure = _pruned(rule(view), inputs)
        self.integers |= view.integers
        if self.by_value:
          structure = _completed(structure, inputs, view.outputs)
        _check_structure(
          Step(view.type, view.name, tuple(inputs), view.outputs, structure)
        )
      except Exception as error:  # A bug in one rule, whoever wrote it.
        self._remember(instruction, error)
        return self._dense(instruction, inputs)
      known = structure, [value.shape for value in view.outputs]
      if not view.asked_for_values:
        self._structures[key] = known
    structure, shapes = known
    outputs = [
      Value(
        shape,
        dtype,
        depends=self._counts(dtype)
        and any(arrow.output == k for arrow in structure.arrows),
      )
      for k, (shape, dtype) in enumerate(zip(shapes, instruction.dtypes))
    ]
    if any(value.depends for value in outputs):
      step = Step(
        instruction.type,
        self.name_of(instruction),
        tuple(inputs),
        tuple(outputs),
        structure,
        op=instruction.op,
      )
      self.tape.steps.append(step)
      note_zeros(step)
    return _with_source(instruction, inputs, outputs)

  def _are_known(self, instruction: Instruction, inputs: Sequence) -> bool:
    """Whether what varies among the inputs is known for any size of batch."""
    try:
      return self.scaling.are_known(inputs)
    except Exception as error:  # A bug in what says how an op computes sizes.
      self._remember(instruction, error)
      return False

  def _counts(self, dtype: tf.DType) -> bool:
    """Whether tensors of a dtype can depend on xs; see `by_value`."""
    return _is_differentiable(dtype) or (
      self.by_value and not _is_opaque(dtype)
    )

  def _refused(self) -> None:
    """Notes that a rule asked for a value that varies with the samples."""
    self.has_varying = True

  def _remember(self, instruction: Instruction, error: Exception) -> None:
    """Notes why an op is taken as dense."""
    self.has_failures |= isinstance(error, registry.OpFailed)
    if isinstance(error, (registry.CannotSay, registry.OpFailed)):
      return
    note = (
      f'The rule for {instruction.type} raised {type(error).__name__}: {error} '
      f'The op {self.name_of(instruction)!r} was taken as dense.'
    )
    self.notes[note] = True
    if registry.is_news(instruction.type, error):
      warn(note, RuntimeWarning)

  def _dense(self, instruction: Instruction, inputs: Sequence) -> list:
    """Every output depends on all that any input depends on."""
    if not any(value.depends for value in inputs):
      return self._independent(instruction, inputs)
    outputs = [
      Value(shape, dtype, depends=self._counts(dtype) or _is_opaque(dtype))
      for shape, dtype in zip(_shapes(instruction, inputs), instruction.dtypes)
    ]
    used = tuple(k for k, value in enumerate(inputs) if value.depends)
    size = sum(inputs[k].rows for k in used)
    which = [k for k, value in enumerate(outputs) if value.depends]
    if which:
      structure = Structure(
        tuple(Arrow(k, used, Flow.dense(outputs[k].rows, size)) for k in which),
        curved=tuple(which),
      )
      name = self.name_of(instruction)
      self.fallbacks[f'{instruction.type} (op {name!r})'] = True
      self.add_step(
        instruction, inputs, outputs, structure, name, is_fallback=True
      )
    return _with_source(instruction, inputs, outputs)

  def _captured(self, scope: Scope, instruction: Instruction) -> Any:
    """The value of a placeholder or constant for a captured Tensor."""
    unknown = Value(instruction.shapes[0], instruction.dtypes[0])
    outer = scope.program.captures().get(instruction.outputs[0])
    if outer is None:
      return unknown
    if not tf.is_symbolic_tensor(outer):
      if outer.dtype == tf.resource:
        seed = self.variables.get(id(outer))
        return Variable(seed) if seed is not None else unknown
      return unknown if _is_opaque(outer.dtype) else self._constant(outer)
    caller = scope.caller
    while caller is not None:
      if caller.program.graph is outer.graph:
        self.evaluate(caller, (outer.name,))
        return caller.values[outer.name]
      caller = caller.caller
    # A tensor of a graph around the whole function.
    static = tf.get_static_value(outer)
    return unknown if static is None else Value.constant(np.asarray(static))

  def _constant(self, tensor: Any) -> Any:
    """A constant that the function closes over."""
    reads = self.graph.reads
    if reads.is_allowed:
      return Captured(tensor, reads)
    return Value(tuple(int(d) for d in tensor.shape), tensor.dtype)

  def _independent(self, instruction: Instruction, inputs: Sequence) -> list:
    """The outputs of an op none of whose inputs depends on xs."""
    outputs = _independent(instruction, inputs)
    if any(v.shape is None and not v.is_known for v in outputs):
      self._are_known(instruction, inputs)
      for value, shape in zip(outputs, _shapes(instruction, inputs)):
        value.shape = shape
    varying = self._varying_parts(instruction, inputs)
    if any(varies is not None for varies in varying):
      for value, varies in zip(outputs, varying):
        value.varies = varies
      outputs[0].is_uniform = self._is_uniform(instruction, inputs)
      outputs[0].repeats = _repeats(instruction, inputs)
      _with_source(instruction, inputs, outputs)
      for value in outputs:
        self.is_settled |= _settle(value)
    return outputs

  def least_size(self, value: Value, size: int) -> int:
    """The least that a size of a tensor can be that varies with the samples.

    Args:
      value: `Value` of the tensor.
      size: `int`, the size that the numbers of samples have given that were put
        in. They divide no integer of the graph: what they divide is of all
        samples.
    """
    is_of_all = any(size % n == 0 for n in self._put_in)
    return self._least_samples if value.depends and is_of_all else 0

  def _varying_parts(self, instruction: Instruction, inputs: Sequence) -> list:
    """Which elements of constants are computed from the number of samples.

    Args:
      instruction: Instruction.
      inputs: list of `Value`.

    Returns:
      list with the attribute `varies` of each output, see `Value`.
    """
    known, number = registry.facts(instruction.type), len(instruction.outputs)
    if known.is_constant:
      is_same = self._twin is None or (
        _place(instruction) not in self._twin.varying
      )
      return [None if is_same else True]
    if known.is_same_for_all_sizes or all(v.varies is None for v in inputs):
      return [None] * number
    moved = known.moved(len(inputs))
    if (
      any(v.varies is True for v in inputs)
      or any(
        v.varies is not None and k not in moved for k, v in enumerate(inputs)
      )
      or not all(v.is_known for v in inputs)
    ):
      return [True] * number
    feeds = []
    for k, value in enumerate(inputs):
      array = np.asarray(value.tensor(even_varying=True))
      if k in moved:
        array = np.zeros(array.shape, np.int32)
        if value.varies is not None:
          array = value.varies.astype(np.int32)
      feeds.append(array)
    try:
      masks = run_op(instruction.op, feeds)
    except (registry.CannotSay, registry.OpFailed):
      return [True] * number
    masks = [np.asarray(mask) != 0 for mask in masks]
    return [mask if mask.any() else None for mask in masks]

  def _is_uniform(self, instruction: Instruction, inputs: Sequence) -> bool:
    """Whether a varying result is one number for any number of samples."""
    known = registry.facts(instruction.type)
    if known.is_constant:
      return self._twin is not None and (
        _place(instruction) in self._twin.uniform
      )
    if known.elementwise is not None:
      return all(map(_is_one_number, inputs))
    return known.only_copies and all(
      _is_one_number(inputs[k]) for k in known.moved(len(inputs))
    )

  def _note_side_effects(self, ops: Sequence) -> None:
    for op in ops:
      if op.op_def.is_stateful and not registry.facts(op.type).is_pure:
        self.notes[
          f'{op.type} (op {op.name!r}) changes or reads state outside of the '
          'function: the function may not be the same when it is called again.'
        ] = True


def _repeats(instruction: Instruction, inputs: Sequence) -> tuple | None:
  """The axes along which a varying result is constant; see `Value.repeats`.

  Args:
    instruction: `Instruction`.
    inputs: list of `Value`.

  Returns:
    tuple of int, all axes that may vary; None unless it is constant along them
    for any number of samples.
  """
  known = registry.facts(instruction.type)
  result = instruction.varying_sizes_of_result()
  is_of_known_rank = result.ndim > 0
  if not is_of_known_rank or not (known.elementwise or known.axes):
    return None
  sources = (
    range(len(inputs)) if known.elementwise else known.moved(len(inputs))
  )
  for k in sources:
    sizes = _sizes(inputs[k], instruction.op.inputs[k].shape)
    if sizes is None or None in sizes:
      return None
    if known.axes == 'in order':
      after = instruction.op.outputs[0].shape.as_list()
      after = [_MANY if v else n for n, v in zip(after, result)]
      # Two of them may change places, and what is between them with them.
      if sizes.count(_MANY) > 1 or None in after:
        return None
      if [n for n in sizes if n != 1] != [n for n in after if n != 1]:
        return None
    else:
      if len(sizes) > len(result):
        return None
      aligned = result[len(result) - len(sizes) :]
      if any(v and n not in (1, _MANY) for n, v in zip(sizes, aligned)):
        return None
  return tuple(int(axis) for axis in np.flatnonzero(result))


# Stands for the size of an axis along which a value is constant.
_MANY = -1


def _sizes(value: Value, static: tf.TensorShape) -> list | None:
  """The sizes of a constant, `_MANY` where it repeats; None if not known."""
  if value.depends or not value.is_known:
    return None
  if value.varies is None:
    # Not evaluated: what the function closes over is not read for that.
    shape = static if value.shape is None else tf.TensorShape(value.shape)
    return shape.as_list() if shape.is_fully_defined() else None
  if value.repeats is None or static.rank is None:
    return None
  return [
    _MANY if axis in value.repeats else n
    for axis, n in enumerate(static.as_list())
  ]


def _settle(value: Value) -> bool:
  """Looks whether what seems to vary is the same for any number of samples.

  `tf.vectorized_map` computes whether there is more than one sample and more
  than one column to choose between two orders of axes.
  """
  is_discrete = value.dtype.is_integer or value.dtype.is_bool
  if value.varies is None or not is_discrete:
    return False
  low, high = value.bounds()
  is_fixed = np.isfinite(low) & (low == high)
  if not is_fixed.any():
    return False
  varies = np.broadcast_to(value.varies, value.known_shape) & ~is_fixed
  value.varies = varies if varies.any() else None
  return True


def _place(instruction: Instruction) -> tuple:
  """How a `Twin` names a constant."""
  return id(instruction.op.graph), instruction.outputs[0]


def _is_one_number(value: Value) -> bool:
  """Whether all elements are the same, for any number of samples."""
  if value.is_uniform or value.varies is not None or not value.is_known:
    return value.is_uniform
  try:
    array = value.value()
  except (CannotSay, OpFailed):
    return False
  return bool(array.size and np.all(array == array.flat[0]))


class Variable(Value):
  """The handle of a variable that is part of xs.

  Attributes:
    content: `Value` that reading it gives.
  """

  __slots__ = ('content',)

  def __init__(self, content: Value) -> None:
    super().__init__((), tf.resource)
    self.content = content


# The most ops that unrolled loops may have: to walk an op takes about ten
# microseconds, also where nothing depends on xs.
_LOOP_BUDGET = 150_000


def _independent(instruction: Instruction, inputs: Sequence) -> list:
  """The outputs of an op none of whose inputs depends on xs."""
  specs = list(zip(instruction.shapes, instruction.dtypes))
  if (
    instruction.is_stateful
    or not registry.facts(instruction.type).is_same_everywhere
    or not all(value.is_known for value in inputs)
    or len(inputs) != len(instruction.inputs)  # Of lists of Tensors.
  ):
    return _unknown(instruction, inputs)
  op = instruction.op
  if len(specs) == 1:
    ((shape, dtype),) = specs
    compute = lambda *tensors: run_op(op, tensors)[0]  # noqa: E731 (a closure)
    return [Value(shape, dtype, compute=compute, parents=tuple(inputs))]
  together = Value(
    None, tf.variant, compute=lambda *t: run_op(op, t), parents=tuple(inputs)
  )
  return [
    Value(shape, dtype, compute=lambda t, k=k: t[k], parents=(together,))
    for k, (shape, dtype) in enumerate(specs)
  ]


def _unknown(instruction: Instruction, inputs: Sequence) -> list:
  """Outputs of unknown value; shapes, and perhaps bounds, are known."""
  outputs = [
    Value(shape, dtype)
    for shape, dtype in zip(_shapes(instruction, inputs), instruction.dtypes)
  ]
  return _with_source(instruction, inputs, outputs)


def _with_source(
  instruction: Instruction, inputs: Sequence, outputs: list
) -> list:
  """Sets the `source` of each output; returns the outputs."""
  for k, value in enumerate(outputs):
    value.source = instruction, inputs, k
  return outputs


def _shapes(instruction: Instruction, inputs: Sequence) -> Sequence:
  """The shapes of the outputs; the walker may know what the graph does not."""
  if None not in instruction.shapes or len(inputs) != len(instruction.inputs):
    return instruction.shapes
  if any(map(_is_opaque, instruction.dtypes)):
    return instruction.shapes
  return inferred_shapes(instruction.op, inputs)


def _flat(inputs: Sequence) -> list:
  """The values, with tensor lists replaced by the values in them."""
  flat = []
  for value in inputs:
    if isinstance(value, TensorList):
      # The items of a list may be lists, as those that branches pass on.
      flat += _flat(
        [
          item[0] if isinstance(item, tuple) else item
          for item in value.items
          if item is not None
        ]
      )
    else:
      # An op that reads a variable of xs depends on its content.
      flat.append(getattr(value, 'content', value))
  return flat


def _is_differentiable(dtype: tf.DType) -> bool:
  return dtype.is_floating or dtype.is_complex


def _has_no_shape(value: Any) -> bool:
  """Whether it depends on xs, and its shape is not known."""
  return isinstance(value, Value) and value.depends and value.shape is None


def _is_opaque(dtype: tf.DType) -> bool:
  return dtype in (tf.variant, tf.resource)


def _is_index(value: Value) -> bool:
  """Whether a value depends on xs, but its dtype has no derivatives."""
  return (
    value.depends
    and not _is_differentiable(value.dtype)
    and not _is_opaque(value.dtype)
  )


def _completed(
  structure: Structure, inputs: Sequence, outputs: Sequence
) -> Structure:
  """Adds what a rule leaves out because its derivative vanishes."""
  named = {(a.output, k) for a in structure.arrows for k in a.inputs}
  missing = tuple(
    Arrow(output, (k,), Flow.dense(spec.rows, value.rows))
    for output, spec in enumerate(outputs)
    for k, value in enumerate(inputs)
    if value.depends and (output, k) not in named
  )
  return Structure(structure.arrows + missing)


def _pruned(structure: Structure, inputs: Sequence) -> Structure:
  """Leaves out arrows and pairs of inputs that do not depend on xs."""
  arrows = tuple(
    arrow
    for arrow in structure.arrows
    if any(inputs[k].depends for k in arrow.inputs)
  )
  pairs = tuple(
    pair
    for pair in structure.pairs
    if all(any(inputs[k].depends for k in which) for which, _ in pair.sides)
  )
  if len(arrows) == len(structure.arrows) and len(pairs) == len(
    structure.pairs
  ):
    return structure
  return Structure(arrows, structure.curved, pairs)


def _check_structure(step: Step) -> None:
  def check(flow, which, rows):
    size = sum(step.inputs[k].rows for k in which)
    if flow.columns != size or (rows is not None and flow.rows != rows):
      raise ValueError(
        f'The rule for {step.label} returned a flow of shape '
        f'{(flow.rows, flow.columns)} where {(rows, size)} elements '
        '(outputs, inputs) were expected.'
      )

  for arrow in step.structure.arrows:
    check(arrow.flow, arrow.inputs, step.outputs[arrow.output].rows)
  for pair in step.structure.pairs:
    rows = None if pair.output is None else step.outputs[pair.output].rows
    for which, flow in pair.sides:
      check(flow, which, rows)
