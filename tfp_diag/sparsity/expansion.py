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
"""Replaces ops by simpler ones.

Calls of functions, ops with a normalizer and some sums of products are written
out, and what is computed twice is computed once.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from tfp_diag.sparsity.evaluation import bound_op, repeat_op
from tfp_diag.sparsity.graph import (
  Gradient,
  Graph,
  all_ops,
  attributes_of,
  function_graph,
  function_names,
  gradient_of,
  has_named_gradient,
  has_own_gradient,
)
from tfp_diag.sparsity.registry import CannotSay, facts
from tfp_diag.sparsity.tape import Loop
from tfp_diag.sparsity.walk import Walked


def expandable(
  walked: Walked, graph: Graph, meeting: Collection = ()
) -> list[int]:
  """Which ops of a function can be written out as several simpler ops.

  Args:
    walked: `Walked`.
    graph: `Graph` at hand.
    meeting: the steps that are sums of products to write out; no others are.

  Returns:
    list of int: their positions in `graph.computing`.
  """
  found = set()
  for step in walked.tape.steps:
    if isinstance(step, Loop):
      continue
    known = facts(step.op_type)
    if known.written_out is None or any(
      step.inputs[k].depends for k in known.written_out_but_for
    ):
      continue
    if known.products is None or step in meeting:
      found.add(walked.at_hand(step.op))
  return [place for place, op in enumerate(graph.computing) if op in found]


def expand(graph: Graph, places: Collection[int]) -> Graph:
  """Writes out some ops, and repeats the ops that depend on them.

  Args:
    graph: `Graph`, to which ops are added.
    places: the positions in `graph.computing` of those that are written out.

  Returns:
    `Graph` of the same function: values are the same up to rounding.

  Raises:
    CannotSay: If an op cannot be repeated.
  """
  chosen = {graph.computing[place] for place in places}

  def write_out(op, latest):
    known = facts(op.type).written_out
    assert known is not None
    return [known(op, *map(latest, op.inputs))]

  return _rewritten(graph, chosen, write_out)[0]


class Kept:
  """Tensors of functions that are computed though their results do without.

  Attributes:
    choose: Callable that takes the `FuncGraph` of a function that is called,
      and returns a list of Tensors of it.
    found: List of the Tensors of the graph that calls, in their place.
  """

  def __init__(self, choose: Callable) -> None:
    self.choose = choose
    self.found = []


def simplify(
  graph: Graph, more: Sequence = (), kept: Kept | None = None
) -> tuple[Graph, Callable[[tf.Tensor], tf.Tensor]] | None:
  """Writes out calls of functions, and lets no op do again what one has done.

  A derivative is split at ops of the graph that is differentiated. Ops in the
  graph of a function that it calls cannot be used; and through a product that
  is computed twice, one path would not know of the other.

  Args:
    graph: `Graph`, to which ops are added.
    more: Tensors beside `graph.ys` that the function has returned.
    kept: `Kept`, or None. Default: nothing but results is kept.

  Returns:
    `Graph` of the same function, and a callable that takes a Tensor of `graph`
    and returns the one that replaces it; None if nothing is to be done.

  Raises:
    CannotSay: If an op of a function that it calls cannot be repeated.
  """
  found = _inlined(graph, more, kept)
  inner, latest = found or (graph, lambda tensor: tensor)
  inside = kept.found if kept else []
  try:
    merged = _merged(inner, [*map(latest, more), *inside])
  except CannotSay:
    return found
  if merged is None:
    return found
  inside[:] = map(merged[1], inside)
  return merged[0], lambda tensor: merged[1](latest(tensor))


def _inlined(
  graph: Graph, more: Sequence, kept: Kept | None = None
) -> tuple[Graph, Callable] | None:
  """`simplify`, for calls of functions."""
  calls = _calls(graph)
  if not calls:
    return None
  _check_writes_nothing(graph)
  parts = {id(x.handle): x for x in graph.xs if isinstance(x, tf.Variable)}
  return _rewritten(
    graph, calls, lambda op, latest: _body(op, latest, parts, kept), more
  )


def _merged(graph: Graph, more: Sequence) -> tuple[Graph, Callable] | None:
  """`simplify`, for ops that do the same to the same Tensors."""
  if graph.has_variables:
    return None  # They are read anywhere, and watched.
  first, same = {}, {}

  def number(tensor):
    return same.get(tensor.ref(), tensor).ref()

  # TensorFlow takes small ones as `Const`, but they are not the same for the
  # next call that has this graph.
  captured = {i.ref() for _, i in getattr(graph.graph, 'captures', ())}
  targets = [*graph.ys, *more]
  needed, again = needed_ops(graph.ops, targets), set()
  for op in graph.ops:
    if op not in needed:
      continue
    is_captured = any(y.ref() in captured for y in op.outputs)
    is_same = is_function_of_inputs(op) or facts(op.type).read is not None
    if is_captured or op.control_inputs or not is_same:
      continue
    key = op.type, attributes_of(op), tuple(map(number, op.inputs))
    before = first.setdefault(key, op)
    if before is not op:
      again.add(op)
      same.update((y.ref(), x) for y, x in zip(op.outputs, before.outputs))
  # Equal constants are equal inputs, and stay as they are.
  between = ops_between(graph, targets)
  again.intersection_update(between)
  reached = {x.ref() for op in between for x in (*graph.xs, *op.outputs)}
  if not any(_joins(op) or _spreads(op, reached) for op in again):
    return None
  if any(facts(op.type).read is not None for op in first.values()):
    _check_writes_nothing(graph)
  return _rewritten(
    graph,
    again,
    lambda op, latest: [latest(same[y.ref()]) for y in op.outputs],
    more,
  )


def is_function_of_inputs(op: tf.Operation) -> bool:
  """Whether another op of its kind on equal inputs has equal results."""
  known = facts(op.type)
  return not (
    op.op_def.is_stateful
    or known.is_placeholder
    or not known.is_pure
    or function_names(op)
    or has_named_gradient(op)
  )


def _joins(op: tf.Operation) -> bool:
  """Whether each of its results may depend on several elements of an input."""
  known = facts(op.type)
  return known.elementwise is None and not known.moved(len(op.inputs))


def _spreads(op: tf.Operation, reached: Collection) -> bool:
  """Whether several of its results may depend on one element that counts."""

  def size(tensor):
    # An axis of unknown size is that of the samples, in each of them.
    rank = tensor.shape.rank
    return None if rank is None else math.prod(n or 1 for n in tensor.shape)

  sizes = [size(x) for x in op.inputs if x.ref() in reached]
  return any(
    after is not None and before is not None and before < after
    for before in sizes
    for after in map(size, op.outputs)
  )


def _calls(graph: Graph) -> set[tf.Operation]:
  """The calls between xs and ys."""
  ops = ops_between(graph, graph.ys)
  if graph.has_variables:  # They are read anywhere.
    ops = needed_ops(graph.ops, graph.ys)
  return {op for op in ops if facts(op.type).is_call}


def repeated(graph: Graph, xs: Sequence, targets: Sequence) -> list:
  """Computes some Tensors once more, for other Tensors in place of xs.

  Args:
    graph: `Graph`; the ops are added to the graph that is being built.
    xs: List of Tensors.
    targets: List of Tensors of `graph`.

  Returns:
    List of Tensors.

  Raises:
    CannotSay: If an op cannot be repeated.
  """
  written = {x.ref(): new for x, new in zip(graph.xs, xs)}

  def latest(tensor):
    return written.get(tensor.ref(), tensor)

  for op in ops_between(graph, targets):
    results = _repeat(op, latest)
    written.update((y.ref(), new) for y, new in zip(op.outputs, results))
  return list(map(latest, targets))


def ops_between(graph: Graph, targets: Sequence) -> list[tf.Operation]:
  """The ops that depend on xs, and on which some Tensors depend, in order."""
  needed = needed_ops(graph.ops, targets, graph.xs)
  reached, found = {x.ref() for x in graph.xs}, []
  for op in graph.ops:
    if op in needed and any(x.ref() in reached for x in op.inputs):
      reached.update(y.ref() for y in op.outputs)
      found.append(op)
  return found


def needed_ops(
  ops: Sequence, targets: Sequence, given: Sequence = ()
) -> set[tf.Operation]:
  """Those of some ops, in order, that some Tensors depend on.

  Args:
    ops: list of `tf.Operation`.
    targets: list of Tensors.
    given: list of Tensors whose ops do not count.
  """
  known = {x.ref() for x in given}
  missing, found = {t.ref() for t in targets} - known, set()
  for op in reversed(ops):
    if any(y.ref() in missing for y in op.outputs):
      found.add(op)
      missing.update({x.ref() for x in op.inputs} - known)
  return found


def _check_writes_nothing(graph: Graph) -> None:
  """Raises CannotSay if a variable may change, since it is read once more."""
  for op in all_ops(graph.graph, graph.ops):
    known = facts(op.type)
    takes = any(x.dtype == tf.resource for x in op.inputs)
    is_harmless = known.read is not None or known.passes_on
    if takes and not is_harmless and not function_names(op):
      raise CannotSay(f'{op.type} may change a variable')


def check_only_reads(function: Any) -> None:
  """Raises CannotSay if calling a function may do more than return results.

  Args:
    function: `tf.Graph` of the function.
  """
  for op in function.get_operations():
    known = facts(op.type)
    if known.is_call:
      for name in function_names(op):
        check_only_reads(function_graph(function, name))
    elif op.op_def.is_stateful and known.read is None:
      raise CannotSay(f'{op.type} has a state')


def _rewritten(
  graph: Graph,
  chosen: Collection[tf.Operation],
  rewrite: Callable,
  more: Sequence = (),
) -> tuple[Graph, Callable]:
  """Replaces some ops, and repeats the ops that depend on them.

  Args:
    graph: `Graph`, to which ops are added.
    chosen: the ops to replace.
    rewrite: Callable that takes one of them, and a callable from a Tensor to
      the one that replaces it. Returns a list of Tensors, the new results.
    more: Tensors beside `graph.ys` that are needed.

  Returns:
    The new `Graph`, and a callable from a Tensor to the one that replaces it.
  """
  written = {}

  def latest(tensor):
    return written.get(tensor.ref(), tensor)

  needed = needed_ops(graph.ops, [*graph.ys, *more])

  def repeat():
    for op in graph.ops:
      if op in chosen:
        results = rewrite(op, latest)
      elif op in needed and any(x.ref() in written for x in op.inputs):
        results = _repeat(op, latest)
      else:
        continue
      written.update((y.ref(), new) for y, new in zip(op.outputs, results))
    return map(latest, graph.ys)

  return graph.extended(repeat), latest


def _body(
  op: tf.Operation, latest: Callable, parts: dict | None, kept: Kept | None
) -> Sequence:
  """Executes the ops of a function instead of a call of it."""
  (name,) = function_names(op)
  function = function_graph(op.graph, name)
  inputs, outputs = list(map(latest, op.inputs)), list(function.outputs)
  more = [] if kept is None else kept.choose(function)
  results = execute(function, inputs, [*outputs, *more], parts, kept)
  if kept is not None:
    kept.found += results[len(outputs) :]
  return results[: len(outputs)]


def execute(
  function: Any,
  inputs: Sequence,
  outputs: Sequence,
  parts: dict | None = None,
  kept: Kept | None = None,
) -> list:
  """Executes the ops on which some results of a function depend.

  Args:
    function: `tf.Graph` of the function.
    inputs: list of Tensors, those that it has captured last.
    outputs: list of Tensors of that graph.
    parts: dict: the `id` of a handle -> the `tf.Variable` that is a part.
      Default: there is none.
    kept: `Kept` of the functions that are called. Default: nothing is kept.

  Returns:
    list of Tensors, the outputs.

  Raises:
    CannotSay: If an op cannot be repeated.
  """
  written = {
    inner.ref(): outer for inner, outer in zip(function.inputs, inputs)
  }

  def within(tensor):
    return written[tensor.ref()]

  needed = needed_ops(function.get_operations(), outputs)
  for inner in function.get_operations():
    known = facts(inner.type)
    if inner not in needed or known.is_placeholder:
      continue
    if any(y.ref() in written for y in inner.outputs):
      continue  # What was captured: TensorFlow takes small Tensors as `Const`.
    if known.needs_xla is not None and known.needs_xla(inner):
      raise CannotSay(f'{inner.type} may need the compiler of the function')
    if known.is_call:
      results = _body(inner, within, parts, kept)
    elif known.read is not None:
      handle, *rest = map(within, inner.inputs)
      variable = parts.get(id(_from_outside(handle))) if parts else None
      if variable is None:
        results = repeat_op(inner, [handle, *rest])
      else:
        # A tape watches the Variable, not a Tensor that stands for its handle.
        results = [known.read(inner, variable, *rest)]
    else:
      results = _repeat(inner, within)
    written.update((y.ref(), new) for y, new in zip(inner.outputs, results))
  return list(map(within, outputs))


def _from_outside(tensor: tf.Tensor) -> tf.Tensor:
  """The eager Tensor that a Tensor of a graph stands for."""
  while tensor.graph is not None and facts(tensor.op.type).is_placeholder:
    outer = [o for o, i in tensor.graph.captures if i is tensor]
    if not outer:
      break
    (tensor,) = outer
    if isinstance(tensor, tf.__internal__.EagerTensor):
      return tensor
  raise CannotSay('it is not known which variable is read')


def _repeat(
  op: tf.Operation, latest: Callable, in_gradient: bool = False
) -> Sequence:
  """Executes an op on the Tensors that replace its inputs."""
  if op.op_def.is_stateful:
    raise CannotSay(f'{op.type} may give something else the next time')
  if function_names(op):
    raise CannotSay(f'{op.type} runs functions')
  if has_own_gradient(op):
    # Second derivatives are traced when they are asked for, as TensorFlow does.
    gradient = None if in_gradient else gradient_to_repeat(op)
    return _repeat_with_gradient(op, gradient, latest)
  if facts(op.type).is_constant:
    return [tf.constant(tf.make_ndarray(op.get_attr('value')))]
  inputs = [latest(tensor) for tensor in op.inputs]
  results = repeat_op(op, inputs)
  if all(map(_same_shape, inputs, op.inputs)):
    # That of a result may have been told: `tf.vectorized_map` does so.
    for y, new in zip(op.outputs, results):
      new.set_shape(y.shape)
  return results


def _same_shape(x: tf.Tensor, y: tf.Tensor) -> bool:
  """Whether as much is known of the shapes of two Tensors."""
  # Shapes of unknown rank are not equal to others, nor to each other.
  return str(x.shape) == str(y.shape)


def gradient_to_repeat(op: tf.Operation) -> Gradient:
  """The traced gradient of an op with a gradient of its own.

  Args:
    op: `tf.Operation`.

  Returns:
    `Gradient`, whose ops do nothing but compute.

  Raises:
    CannotSay: If an op in it cannot be repeated.
  """
  try:
    gradient = gradient_of(op)
  except Exception as error:  # The user's code; whatever it raises.
    raise CannotSay(f'the gradient cannot be traced: {error}') from error
  for inner in gradient.graph.get_operations():
    known = facts(inner.type)
    if inner.op_def.is_stateful or any(
      attr.HasField('func') for attr in inner.node_def.attr.values()
    ):
      raise CannotSay(f'{inner.type} of a gradient cannot be repeated')
    if not (known.is_placeholder or known.is_constant):
      bound_op(inner)
  return gradient


def _repeat_with_gradient(
  op: tf.Operation, gradient: Any, latest: Callable
) -> Sequence:
  """Executes an op with a gradient of its own, which is repeated, too."""

  @tf.custom_gradient
  def identities(*tensors):
    def gradient_function(*cotangents):
      traced = gradient or gradient_of(op)
      written = {
        t.ref(): cotangent
        for t, cotangent in zip(traced.cotangents, cotangents)
      }

      captured = {i.ref(): outer for outer, i in traced.graph.captures}

      def of(tensor):
        if tensor.ref() not in written:
          outer = captured.get(tensor.ref(), tensor)
          is_symbolic = tf.is_symbolic_tensor(outer)
          written[tensor.ref()] = latest(outer) if is_symbolic else outer
        return written[tensor.ref()]

      for inner in traced.graph.get_operations():
        # TensorFlow captures small Tensors as `Const`.
        is_given = any(y.ref() in captured for y in inner.outputs)
        if not (is_given or facts(inner.type).is_placeholder):
          results = _repeat(inner, of, in_gradient=True)
          written.update(
            (y.ref(), new) for y, new in zip(inner.outputs, results)
          )
      return [None if r is None else of(r) for r in traced.results]

    # Copies: the results must be other Tensors than the arguments.
    return list(map(tf.identity, tensors)), gradient_function

  return identities(*map(latest, op.inputs))
