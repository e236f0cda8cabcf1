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
"""The one place that differentiates functions: linear maps, one per mode.

A function is evaluated once. What comes back is its value and a linear map
that can be applied to any number of seeds, in any schedule, without
evaluating the function again:

* reverse mode applies the transposed Jacobian, `seed -> J^T seed`, with the
  persistent tape that recorded the evaluation, or with `tf.gradients`;
* forward mode applies the Jacobian, `seed -> J seed`. The vector-Jacobian
  product `u -> J^T u` is written once, for a placeholder `u`; it is linear
  in `u`, so its own transpose is the Jacobian, whatever `u` is, and whatever
  of the evaluation only `u` needed is pruned from the graph.

`tf.autodiff.ForwardAccumulator` is not used: it evaluates the function anew
for each seed, knows nothing of what was computed before it was opened, and in
graphs fails on loops and on functions that are called twice. Transposing twice
gives the same numbers and works on all of these; what XLA makes of it is faster
too, since all seeds share one evaluation.

Under a persistent tape TensorFlow puts each loop and each branch into a
function, and builds the gradients of that function whether or not anybody asks
for them, which takes most of the time of a trace. `tf.gradients` does without,
but adds outputs to calls, loops and branches that are in the graph already. A
tape of the caller has recorded them as they were, and XLA cannot compile what
that makes of passes in a loop. So an eager call, which traces its function each
time, has no tapes where the graph is its own; what may be recorded or compiled
by others has.

A map has parts on both sides. For a diagonal, part `i` of the outputs has the
shape of part `i` of the inputs, and a pass stays within the parts it seeds; for
a whole Jacobian the two sides are whatever the function takes and returns.
"""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Any, Protocol

import tensorflow as tf

from tfp_diag.sparsity.expansion import expand, simplify
from tfp_diag.sparsity.graph import (
  Graph,
  beside,
  function_graph,
  function_names,
)
from tfp_diag.sparsity.own_gradients import own_gradients
from tfp_diag.sparsity.registry import facts

try:
  from tensorflow.python.ops import control_flow_util

  _in_xla_context: Any = control_flow_util.GraphOrParentsInXlaContext
except (ImportError, AttributeError):  # Another version of TensorFlow.
  _in_xla_context = None

try:
  from tensorflow.python.eager import record

  _could_record: Any = record.could_possibly_record
except (ImportError, AttributeError):  # Another version of TensorFlow.
  _could_record = None


class MissingGradientError(LookupError):
  """An op of the function has no derivative, or not as many as needed."""

  # AutoGraph keeps the type of an error only if it has this constructor.
  __init__ = Exception.__init__


class NeedsTapesError(ValueError):
  """A custom gradient has a shape that tapes do not mind.

  So may be one by an argument that nobody differentiates by.
  """

  __init__ = Exception.__init__


class Linear(Protocol):
  """What gives the image of a seed: all that a sweep asks for."""

  def apply(
    self,
    members: Sequence[int],
    seeds: Sequence,
  ) -> list:
    """As `LinearMap.apply`; of several diagonals, one after the other."""
    ...

  def connects(self, members: Sequence[int]) -> bool:
    """As `LinearMap.connects`."""
    ...


class LinearMap:
  """A Jacobian (forward) or its transpose (reverse), ready to be applied.

  Attributes:
    targets: List of Tensors: in reverse mode the outputs, in forward mode
      `J^T u`.
  """

  def __init__(
    self, gradient: Callable, targets: Sequence, sources: Sequence
  ) -> None:
    self._gradient = gradient
    self.targets = targets
    self._sources = sources

  def apply(
    self,
    members: Sequence[int],
    seeds: Sequence,
    results: Sequence[int] | None = None,
  ) -> list:
    """One pass.

    Args:
      members: Python list of the numbers of the parts that are seeded: of the
        outputs in reverse mode, of the inputs in forward mode. The others count
        as seeded with zeros.
      seeds: List of Tensors, one per member, of the shape of that part.
      results: Python list of the numbers of the parts on the other side that
        are computed. Default: `members`.

    Returns:
      List of Tensors of the shapes of the parts in `results`; `None` for a part
      that no path connects with a member.
    """
    results = members if results is None else results
    sources = [self._sources[i] for i in results]
    if all(s is not None and _is_empty(s) for s in sources):
      # Of no samples, say. TensorFlow (2.21) may divide by the size when it
      # optimizes what its gradients make of them, which ends the process.
      return [tf.zeros_like(s) for s in sources]
    return self._gradient([self.targets[i] for i in members], sources, seeds)

  def images(self, seeds: Sequence) -> list:
    """One pass with seeds for all parts, and results for all others."""
    members, results = range(len(self.targets)), range(len(self._sources))
    return self.apply(list(members), seeds, list(results))

  def connects(self, members: Sequence[int]) -> bool:
    """Whether a pass over `members` gives a Tensor for at least one of them.

    Args:
      members: As for `apply`.

    Returns:
      Python bool.
    """
    found = []

    def probe():
      seeded = [i for i in members if self.targets[i] is not None]
      seeds = [tf.ones_like(self.targets[i]) for i in seeded]
      found.extend(self.apply(seeded, seeds, members))

    # Traced aside and never called.
    tf.function(probe, autograph=False).get_concrete_function()
    return any(r is not None for r in found)

  def of_ones(self) -> list:
    """One pass seeded with ones at all outputs: the gradient of their sum."""
    return self._gradient(
      self.targets, self._sources, [tf.ones_like(t) for t in self.targets]
    )

  def between(
    self, targets: Sequence, sources: Sequence, held: Sequence = ()
  ) -> 'LinearMap':
    """The map between other Tensors of the same evaluation of the function.

    Args:
      targets: List of Tensors that the function computed on the way.
      sources: List of such Tensors that they depend on.
      held: List of such Tensors that count as constants, though the sources
        may reach them. Only while a graph is built.

    Returns:
      `LinearMap`, of the transposed Jacobian of `targets` by `sources` if this
      one is in reverse mode.
    """
    if not held:
      return LinearMap(self._gradient, targets, sources)
    return LinearMap(
      _of_connected(
        lambda targets, sources, seeds: tf.gradients(
          targets, sources, grad_ys=seeds, stop_gradients=held
        )
      ),
      targets,
      sources,
    )

  def transposed(self) -> 'LinearMap':
    """The map in the other direction, from the same evaluation of the function.

    Of a map in reverse mode it is the one in forward mode, in which `apply` is
    seeded at the inputs. An op may have a gradient that cannot be
    differentiated by its cotangent: then `apply` raises `MissingGradientError`,
    or returns None where this map does not.

    Returns:
      `LinearMap`.

    Raises:
      MissingGradientError: If TensorFlow has no right derivative of a gradient
        by its cotangent.
    """
    is_of_graph = self._gradient is _graph_gradient and not may_be_recorded()
    tapes = [] if is_of_graph else _new_tapes(1)
    with _recording(tapes):
      # TensorFlow divides by cotangents, or takes their logarithms, in places.
      placeholders = [tf.ones_like(t) for t in self.targets]
      for tape in tapes:
        tape.watch(placeholders)
      with recorded_ops() as ops:
        transposed = self._gradient(self.targets, self._sources, placeholders)
    gradient = _gradient_by(tapes, 0)
    _check_paths(ops, gradient, placeholders, transposed)
    return LinearMap(gradient, transposed, placeholders)


def _is_empty(x: Any) -> bool:
  return x.shape.rank is not None and 0 in x.shape.as_list()


def _check_recording() -> None:
  """Raises if tapes record nothing here: every derivative would be zero."""
  # Not among the ops of the function.
  with tf.Graph().as_default(), tf.GradientTape() as tape:
    x = tf.zeros([])
    tape.watch(x)
    y = tf.identity(x)
    recorded = tape.gradient(y, x) is not None
  if not recorded:
    raise RuntimeError(
      'Nothing can be differentiated here: `tf.init_scope` keeps tapes from '
      'recording. Call this outside of it.'
    )


@dataclasses.dataclass(eq=False)
class Evaluation:
  """A function, called once, and the derivatives of what it has computed.

  Attributes:
    result: What the function has returned.
    order: Python int, how often it will be differentiated.
    graph: `Graph`: the ops that it has added, between its parts and the Tensors
      that are differentiated.
    op_types: Set of the types of the ops, also of those within functions.
    tapes: List of tapes that have recorded it, one for each time; empty where
      its graph is differentiated without.
    is_without_xla: Whether XLA is known not to compile its graph.
  """

  result: Any
  graph: Graph
  order: int
  tapes: Sequence = ()
  op_types: Set[str] = frozenset()
  is_without_xla: bool = False

  @property
  def loop_type(self) -> str | None:
    """The type of a loop, or None if there is none."""
    return next((t for t in sorted(self.op_types) if facts(t).is_loop), None)

  def obstacle(self, is_asked: bool = False) -> str | None:
    """The type of a loop that pfor cannot vectorize here, or None.

    The gradient of a loop carries lists of Tensors, on which the code that pfor
    makes fails when XLA compiles it, and not before. A second derivative has
    ops on such lists that pfor does not know.

    Args:
      is_asked: Whether the caller has asked for pfor, and answers for it that
        XLA does not compile this graph later, from somewhere else.
    """
    is_safe = self.is_without_xla or (is_asked and not _is_seen_by_xla())
    return None if is_safe and self.order == 1 else self.loop_type

  @property
  def precision(self) -> tf.DType:
    """The least precise dtype that it computes in."""
    tensors = [
      *self.graph.xs,
      *(y for op in self.graph.ops for y in op.outputs),
    ]
    dtypes = [t.dtype.base_dtype for t in tensors if t.dtype.is_floating]
    return min(dtypes, key=lambda dtype: dtype.size)

  @property
  def xs(self) -> list:
    """The parts: Tensors that nothing else reads, or Variables."""
    return list(self.graph.xs)

  @property
  def ys(self) -> list:
    """The Tensors that are differentiated."""
    return list(self.graph.ys)

  def recorded(self) -> contextlib.AbstractContextManager:
    """Lets ops that are added belong to the function: its tapes record them."""
    return _recording(self.tapes)

  def written_out(self, places: Collection[int]) -> 'Evaluation':
    """The same function, of which some ops are written out with more ops.

    Args:
      places: Collection of Python int, the indices of these ops in `graph.ops`.

    Returns:
      `Evaluation`.

    Raises:
      CannotSay: If an op cannot be repeated.
    """
    with self.recorded():
      graph = expand(self.graph, places)
    return dataclasses.replace(self, graph=graph)

  def simplified(self) -> 'Evaluation | None':
    """The same function without calls and equal ops; None if it has none.

    Raises:
      CannotSay: If an op of them cannot be repeated.
    """
    results = [
      r for r in tf.nest.flatten(self.result) if isinstance(r, tf.Tensor)
    ]
    with self.recorded():
      found = simplify(self.graph, results)
    if found is None:
      return None
    graph, latest = found
    result = tf.nest.map_structure(
      lambda r: latest(r) if isinstance(r, tf.Tensor) else r, self.result
    )
    return dataclasses.replace(self, result=result, graph=graph)

  def check_passes(self, num_passes: Any) -> None:
    """Refuses several passes of a Jacobian if an op's gradient is good for one.

    Args:
      num_passes: Python int, or scalar Tensor for a number that is not known.

    Raises:
      MissingGradientError: If there is such an op.
    """
    once = {t for t in self.op_types if facts(t).num_derivatives == 1}
    if not once or (isinstance(num_passes, int) and num_passes <= 1):
      return
    backward = set()

    def one_pass():
      with recorded_ops() as ops:
        self.jacobian().of_ones()
      backward.update(ops)

    # Traced aside and never called.
    tf.function(one_pass, autograph=False).get_concrete_function()
    # Another gradient may stand for that of the op.
    if once & backward:
      raise MissingGradientError(
        '`fn` calls `tf.py_function`, whose gradient TensorFlow can compute '
        'once each time, and this derivative takes more than one pass. Write '
        'that part of `fn` with TensorFlow ops, or give it a gradient with '
        '`tf.custom_gradient`.'
      )

  def jacobian(self) -> LinearMap:
    """The transposed Jacobian of `ys` by `xs`."""
    return LinearMap(_gradient_by(self.tapes, 0), self.ys, self.xs)

  @property
  def _sources(self) -> list:
    """The parts, as what is differentiated by in a graph inside of this one.

    Which may have taken a Variable in by itself.
    """
    if self.tapes:
      return self.xs
    return [_at_hand(x, self.graph.graph) for x in self.xs]

  def hessian(self, check_gradient: Callable | None = None) -> tuple:
    """The gradient and the Hessian of the value, which is the only one of `ys`.

    Args:
      check_gradient: Python callable that may raise; takes the gradient while
        it is still None for a part without a path.

    Returns:
      gradient: List of Tensors shaped as `xs`; zeros for a part without a path.
      hessian: `LinearMap`, the transposed Jacobian of the gradient.

    Raises:
      MissingGradientError: If an op has no derivative, or if TensorFlow would
        take its gradient for a constant.
    """
    with _recording(self.tapes[1:]), recorded_ops() as backward:
      gradient = self.jacobian().of_ones()
      if check_gradient is not None:
        check_gradient(gradient)
      gradient = [
        tf.zeros_like(x) if g is None else g for x, g in zip(self.xs, gradient)
      ]
    second = _gradient_by(self.tapes, 1)
    _check_paths(backward, second, self.xs, gradient)
    if any(
      facts(op_type).num_derivatives == 1
      for op_type in self.op_types & set(backward)
    ):
      raise MissingGradientError(
        '`fn` calls `tf.py_function`, whose gradient TensorFlow takes for a '
        'constant. Write that part of `fn` with TensorFlow ops.'
      )
    return gradient, LinearMap(second, gradient, self.xs)

  def hessian_between(self, tensors: Sequence) -> LinearMap:
    """The Hessian of the value, the only one of `ys`, by other Tensors.

    Args:
      tensors: List of Tensors that the function computed on the way.

    Returns:
      `LinearMap` in reverse mode, from the gradient by `tensors` to `tensors`.
    """
    first, second = (_gradient_by(self.tapes, k) for k in range(2))
    with _recording(self.tapes[1:]):
      adjoints = LinearMap(first, self.ys, tensors).of_ones()
    return LinearMap(second, adjoints, tensors)

  def derivative_of(
    self, compute: Callable, tensors: Sequence | None = None
  ) -> tuple:
    """The transposed Jacobian of what is computed from a Hessian.

    Args:
      compute: Python callable without arguments; returns a list with a Tensor
        or None for each part.
      tensors: List of Tensors that the function computed on the way, by which
        it is differentiated. Default: `xs`.

    Returns:
      results: What `compute` has returned.
      linear_map: `LinearMap`.
    """
    with _recording(self.tapes[2:]):
      results = compute()
    sources = self._sources if tensors is None else tensors
    return results, LinearMap(_gradient_by(self.tapes, 2), results, sources)


def _check_paths(
  ops: Any, gradient: Callable, xs: Sequence, ys: Sequence
) -> None:
  """Refuses a path that TensorFlow loses, as one through NumPy.

  Args:
    ops: What `recorded_ops` has yielded.
    gradient: Callable that differentiates them.
    xs: List of Tensors or `tf.Variable`s.
    ys: List of Tensors, None among them.

  Raises:
    MissingGradientError: if there is one.
  """
  known = [facts(op_type) for op_type in ops]
  if not any(k.num_derivatives == 0 or k.lost_inputs for k in known):
    return
  given = {x.ref() for x in xs if not isinstance(x, tf.Variable)}
  given |= _from_before(ops.operations)
  if not _may_lose_a_path(ops.operations, given):
    return
  op = _op_on_a_dead_path(ops.operations, gradient, xs, ys)
  if op is None:
    return
  if facts(op.type).num_derivatives == 0:
    raise MissingGradientError(
      f'`fn` calls `tf.numpy_function` (op {op.name!r}), through which no '
      'derivative leads: TensorFlow would take the result for a constant. '
      'Write that part with TensorFlow ops, give it a gradient with '
      '`tf.custom_gradient`, or say with `tf.stop_gradient` that it is a '
      'constant.'
    )
  raise MissingGradientError(
    f'`fn` cannot be differentiated as often as this derivative needs: '
    f'TensorFlow has no right derivative of {op.type} (op {op.name!r}), and '
    'does not say so. Write that part with other ops, for example as a product '
    'with a matrix, or give it a gradient with `tf.custom_gradient`. If `fn` '
    'does not call it, but TensorFlow does for a gradient, then first '
    'derivatives in reverse mode are right.'
  )


def _lost_inputs(op: tf.Operation) -> Sequence[int]:
  """The numbers of inputs by which TensorFlow loses the derivative of an op."""
  known = facts(op.type)
  if known.num_derivatives == 0:
    return range(len(op.inputs))
  return () if known.lost_inputs is None else known.lost_inputs(op)


def _from_before(ops: Sequence) -> set:
  """What some ops take from others or from outside, but for constants."""
  own = {
    y.ref()
    for op in ops
    if not facts(op.type).is_placeholder  # Of a Variable that is read, say.
    for y in op.outputs
  }
  taken = {x.ref(): x.op.type for op in ops for x in op.inputs}
  return {
    ref
    for ref, op_type in taken.items()
    if ref not in own and not facts(op_type).is_constant
  }


def _may_lose_a_path(ops: Sequence, reached: set) -> bool:
  """Whether an op loses derivatives by what may depend on some Tensors."""
  for op in ops:
    takes = [x.ref() in reached for x in op.inputs]
    if not any(takes):
      continue
    reached.update(y.ref() for y in op.outputs)
    if any(takes[k] for k in _lost_inputs(op)):
      return True
    for name in function_names(op):
      body, is_loop = function_graph(op.graph, name), facts(op.type).is_loop
      # Before them stands what says which function is called.
      given = takes[-len(body.inputs) :] if body.inputs else []
      inner = {x.ref() for x, is_in in zip(body.inputs, given) if is_in}
      if is_loop or len(given) < len(body.inputs):
        inner = {x.ref() for x in body.inputs}
      if _may_lose_a_path(body.get_operations(), inner):
        return True
  return False


def _op_on_a_dead_path(
  ops: Sequence, gradient: Callable, sources: Sequence, targets: Sequence
) -> tf.Operation | None:
  """An op without derivatives between two lists of Tensors, in functions too.

  What a loop changes counts as depending on the sources as soon as one of the
  values that it starts with does.
  """

  def leads(targets, sources):
    targets = [t for t in targets if t is not None and is_followed(t)]
    seeds = [tf.zeros_like(t) for t in targets]
    try:
      return any(g is not None for g in gradient(targets, sources, seeds))
    except TypeError:
      # A gradient that does not know TensorFlow's slices: there is a path.
      return True

  def is_followed(tensor):
    # Lists of Tensors are variants.
    return tensor.dtype.is_floating or tensor.dtype == tf.variant

  for op in ops:
    known, names = facts(op.type), function_names(op)
    lost = range(len(op.inputs)) if names else _lost_inputs(op)
    if not lost:
      continue
    starts = [
      k in lost and leads([x], sources) for k, x in enumerate(op.inputs)
    ]
    ends = [
      k
      for k, y in enumerate(op.outputs)
      if is_followed(y) and leads(targets, [y])
    ]
    if not any(starts) or not ends:
      continue
    if not names:
      return op
    for name in names:
      graph = function_graph(op.graph, name)
      # Before them stands what says which function is called.
      given = starts[len(starts) - len(graph.inputs) :]
      inner = [
        x
        for x, is_start in zip(graph.inputs, given)
        if is_followed(x) and (is_start or known.is_loop)
      ]
      with beside(graph):
        found = _op_on_a_dead_path(
          graph.get_operations(),
          _of_connected(tf.gradients),
          inner,
          [graph.outputs[k] for k in ends if k < len(graph.outputs)],
        )
      if found is not None:
        return found
  return None


def evaluate(
  call: Callable, outputs: Callable, xs: Sequence, order: int
) -> Evaluation:
  """Calls a function: the only place where one is called.

  Args:
    call: Python callable, list of parts to what the function returns.
    outputs: Python callable, what it returned and the parts to the list of
      Tensors that are differentiated.
    xs: List of Tensors or `tf.Variable`s.
    order: Python int, how often it will be differentiated.

  Returns:
    `Evaluation`. Derivatives are partial: a function that closes over a Tensor
    of `xs`, or gets one Tensor as two parts, is differentiated by each part
    alone.
  """
  _check_recording()
  is_within_another = may_be_recorded()  # Or a tape of the caller is around it.
  xs = [x if isinstance(x, tf.Variable) else tf.identity(x) for x in xs]
  graph = tf.compat.v1.get_default_graph()
  is_without_xla = graph is _own.graph and not is_within_another
  needs_tapes = not is_without_xla or _own.needs_tapes
  tapes = _new_tapes(order) if needs_tapes else []
  with _recording(tapes, xs), recorded_ops() as ops:
    result = call(xs)
    ys = outputs(result, xs)
  made = Graph(
    graph,
    tuple(xs),
    tuple(ys),
    ops.operations,
    tf.get_current_name_scope(),
  )
  _check_paths(ops, _gradient_by(tapes, 0), xs, ys)
  return Evaluation(result, made, order, tapes, ops, is_without_xla)


class _OwnGraph(threading.local):
  """A graph of this thread that XLA does not compile, or None.

  Attributes:
    graph: that graph.
    needs_tapes: Whether tapes are used there nevertheless.
  """

  graph: Any = None
  needs_tapes: bool = False


_own = _OwnGraph()


def again_with_tapes(function: Callable) -> Callable:
  """Calls a function once more, with tapes, if it does not work without them.

  Args:
    function: Python callable that evaluates functions.

  Returns:
    Python callable.
  """

  @functools.wraps(function)
  def wrapper(*args, **kwargs):
    try:
      return function(*args, **kwargs)
    except NeedsTapesError:
      if _own.needs_tapes:
        raise
    _own.needs_tapes = True
    try:
      return function(*args, **kwargs)
    finally:
      _own.needs_tapes = False

  return wrapper


@contextlib.contextmanager
def without_xla(is_known: bool) -> Iterator[None]:
  """Says whether XLA is known not to compile the graph that is being built."""
  before = _own.graph
  if is_known:
    _own.graph = tf.compat.v1.get_default_graph()
  try:
    yield
  finally:
    _own.graph = before


def may_be_recorded() -> bool:
  """Whether a tape or an accumulator of the caller may record what is called.

  TensorFlow cannot differentiate the loops that pfor makes of loops. There is
  no public way to ask.
  """
  return _could_record is None or _could_record()


def _is_seen_by_xla() -> bool:
  """Whether XLA compiles the graph that is being built, or it cannot be told.

  TensorFlow marks it while it traces a function with `jit_compile=True`, and
  tells its own gradients of loops by that mark; there is no public way.
  """
  if _in_xla_context is None:
    return True
  return _in_xla_context(tf.compat.v1.get_default_graph())


def and_what_it_reads(fn: Callable, *args: Any) -> tuple:
  """What a function returns, and the `tf.Variable`s that it reads."""
  with tf.GradientTape() as tape:
    result = fn(*args)
  return result, tape.watched_variables()


@contextlib.contextmanager
def _recording(tapes: Sequence, watched: Any = ()) -> Iterator[None]:
  """Lets tapes record, the one that differentiates last around the others."""
  with contextlib.ExitStack() as stack:
    for tape in reversed(tapes):
      stack.enter_context(tape)
      tape.watch(watched)
    yield


def under_tapes(call: Callable, count: int) -> Callable:
  """Lets tapes record what a function does with its parts.

  TensorFlow gives a `tf.function` that is called under tapes further results.

  Args:
    call: Python callable that takes a list of parts.
    count: How many tapes, as an `Evaluation` may have.

  Returns:
    Python callable that does the same.
  """

  def recorded(xs):
    with _recording(_new_tapes(count), xs):
      return call(xs)

  return recorded


def evaluation_of_graph(result: Any, ys: Sequence, xs: Sequence) -> Evaluation:
  """An `Evaluation` of Tensors that a graph has computed from `xs` already.

  Args:
    result: What the caller passed.
    ys: List of Tensors of the graph that is being built, one per part.
    xs: List of Tensors of that graph, or `tf.Variable`s.

  Returns:
    `Evaluation`, of which only `jacobian()` works.
  """
  graph = Graph(tf.compat.v1.get_default_graph(), tuple(xs), tuple(ys), ())
  return Evaluation(result, graph, 1)


def linearize(fn: Callable, xs: Sequence) -> LinearMap:
  """The transposed Jacobian of what a function of our own computes.

  Args:
    fn: Python callable without arguments; returns a list of Tensors.
    xs: List of Tensors.

  Returns:
    `LinearMap`.
  """
  tapes = _new_tapes(1)
  with _recording(tapes, xs):
    ys = fn()
  return LinearMap(_gradient_by(tapes, 0), ys, xs)


def linear_map_of_graph(ys: Sequence, xs: Sequence) -> LinearMap:
  """The transposed Jacobian of Tensors of the graph that is being built."""
  return LinearMap(_graph_gradient, ys, xs)


def gradient_graph(graph: Graph) -> Graph:
  """The gradient of the only one of `ys`, as a function of the same parts.

  Args:
    graph: `Graph`, to which the ops are added.

  Returns:
    `Graph`, without results for parts that have no path to the value.
  """

  def gradient():
    found = linear_map_of_graph(graph.ys, graph.xs).of_ones()
    return [g for g in found if g is not None]

  return graph.extended(gradient)


def plain_gradient(graph: Graph) -> tuple[Graph, tuple]:
  """As `gradient_graph`, as a tape that the caller has opened has it.

  By TensorFlow's own gradients alone.

  Args:
    graph: `Graph`, to which the ops are added.

  Returns:
    gradient: `Graph` of the gradient by some parts.
    parts: tuple of the numbers of these; by the others there is none.

  Raises:
    MissingGradientError: If it has none; whatever the code of a custom gradient
      raises is the cause.
  """
  (value,) = graph.ys
  parts = []

  def gradient():
    # Seeded as TensorFlow does it.
    seed = tf.ones(tf.shape(value), value.dtype)
    found = tf.gradients(value, list(graph.xs), grad_ys=seed)
    parts.extend(k for k, g in enumerate(found) if g is not None)
    return [tf.convert_to_tensor(found[k]) for k in parts]

  try:
    return graph.extended(gradient), tuple(parts)
  except Exception as e:
    raise MissingGradientError(str(e)) from e


def parts_at_hand(ys: Sequence, xs: Sequence) -> list | None:
  """The Tensors by which parts are in the graph that is being built.

  A loop, a branch or a function takes Tensors from around it in as others.

  Args:
    ys: List of Tensors.
    xs: List of Tensors or `tf.Variable`s.

  Returns:
    List of Tensors, and `tf.Variable`s as they are; None if `ys` may be
    computed from `xs` in other graphs, too.
  """
  graph = tf.compat.v1.get_default_graph()
  if any(y.graph is not graph for y in ys):
    return None
  found, outside = [], []
  for x in xs:
    is_inside = isinstance(x, tf.Variable) or (
      tf.is_symbolic_tensor(x) and x.graph is graph
    )
    if not is_inside:
      outside.append(x)
      x = _taken_in(x, graph)
      if x is None:
        return None
    found.append(x)
  if not outside:
    return found
  others = [
    outer
    for outer, _ in _captures(graph)
    if tf.is_symbolic_tensor(outer) and not any(outer is x for x in outside)
  ]
  if any(outer.dtype == tf.variant for outer in others):
    # Lists of Tensors: of what is not seen from outside.
    return None
  followed = [o for o in others if o.dtype.is_floating or o.dtype.is_complex]
  derivatives = linear_map_of_graph(followed, outside).of_ones()
  return None if any(d is not None for d in derivatives) else found


def _at_hand(x: Any, graph: tf.Graph) -> Any:
  """The Tensor by which a Variable is in a graph; other parts as they are.

  A graph inside of that one may have taken the Variable in, too, as another
  Tensor, which does not lead to what was computed before.
  """
  if not isinstance(x, tf.Variable):
    return x
  inner = _taken_in(x.handle, graph)
  return x if inner is None else inner


def _captures(graph: tf.Graph) -> list:
  """Pairs of a Tensor from outside and what stands for it in a graph."""
  return list(getattr(graph, 'captures', ()))


def _taken_in(tensor: tf.Tensor, graph: tf.Graph) -> tf.Tensor | None:
  """What stands for a Tensor from outside in a graph, if it is read there."""
  found = (inner for outer, inner in _captures(graph) if outer is tensor)
  return next(found, None)


@contextlib.contextmanager
def recorded_ops() -> Iterator[Any]:
  """Collects the ops that are added to the graph meanwhile.

  Yields:
    A set of the types of all of them, also within functions, whose
    `operations` are those of the graph itself, in order. Filled on exit.
  """
  types = _OpTypes()
  graph = tf.compat.v1.get_default_graph()
  before = len(graph.get_operations())
  yield types
  types.operations = tuple(graph.get_operations()[before:])
  types.update(op.type for op in types.operations)
  if any(
    attr.HasField('func')
    for op in types.operations
    for attr in op.node_def.attr.values()
  ):
    # A loop that is differentiated under two tapes ends up inside a call.
    for function in graph.as_graph_def().library.function:
      types.update(node.op for node in function.node_def)


class _OpTypes(set):
  """Types of ops; `operations` are those that are in the graph itself."""

  operations = ()


def _new_tapes(count: int) -> list:
  return [
    tf.GradientTape(persistent=True, watch_accessed_variables=False)
    for _ in range(count)
  ]


def _gradient_by(tapes: Sequence, k: int) -> Callable:
  """What differentiates by one of some tapes, or by the graph without tapes."""
  if not tapes:
    return _graph_gradient
  return _of_connected(
    lambda targets, sources, seeds: tapes[k].gradient(
      targets, sources, output_gradients=seeds
    )
  )


def _of_connected(gradient: Callable) -> Callable:
  """Lets `gradient` meet None targets, sparse results and missing gradients."""

  def wrapped(targets, sources, seeds):
    pairs = [(t, s) for t, s in zip(targets, seeds) if t is not None]
    if not pairs:
      return [None] * len(sources)
    targets, seeds = zip(*pairs)
    try:
      with own_gradients:
        result = gradient(list(targets), list(sources), list(seeds))
    except (LookupError, NotImplementedError) as e:
      raise MissingGradientError(
        '`fn` cannot be differentiated as often as this derivative needs: '
        f'{e}. Write that part of `fn` with other operations, or give it a '
        'derivative with `tf.custom_gradient`.'
      ) from e
    except ValueError as e:
      if 'calculated input gradient' not in str(e):
        raise
      raise NeedsTapesError(str(e)) from e
    # A gather has a gradient of type `tf.IndexedSlices`.
    return [None if g is None else tf.convert_to_tensor(g) for g in result]

  return wrapped


_graph_gradient = _of_connected(
  lambda targets, sources, seeds: tf.gradients(
    targets, [_at_hand(x, targets[0].graph) for x in sources], grad_ys=seeds
  )
)
