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
"""A function as a graph: what is analyzed, differentiated and recognized.

A function is called once while a graph is built. Structure is found from the
ops that it added to that graph, and from nothing else. Their digest tells
whether it is the same function as before, whatever Python has changed since.
"""

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from tfp_diag.sparsity.registry import facts

# How many levels of gradients of custom gradients are read: two for a Hessian,
# and two more for tapes around it.
MAX_DEPTH = 4

# Begins what a `Reader` yields for a custom gradient that cannot be traced.
NO_GRADIENT = 'no gradient'
# Where the graphs that are made note what they read; see `Reads.of_all`.
_all_reads: contextvars.ContextVar = contextvars.ContextVar(
  'all_reads', default=None
)
# Attributes that are only names, or repeat the shapes; and, of an op with a
# gradient that is read, the name of that.
_NAMES = frozenset(
  ['_class', '_output_shapes', '_user_specified_name', 'output_shapes']
)
_GRADIENT = '_gradient_op_type'


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
  """A function, called once.

  Attributes:
    graph: The `tf.Graph` to which it has added its ops.
    xs: `tuple` of Tensors of that graph, or of `tf.Variable`s: its parts.
    ys: `tuple` of Tensors: the outputs that are differentiated.
    ops: `tuple` of `tf.Operation`: what it has added, in order.
    scope: `str`: the name scope in which it was called.
    reads: `Reads`: the constants whose values its structure depends on.
    depth: How many times it may be differentiated: custom gradients of as many
      orders tell it from other graphs. Each takes longer to trace.
  """

  graph: Any
  xs: tuple
  ys: tuple
  ops: tuple
  scope: str = ''
  reads: 'Reads' = dataclasses.field(default_factory=lambda: Reads())
  depth: int = MAX_DEPTH

  @property
  def has_variables(self) -> bool:
    """Whether the parts are `tf.Variable`s, which the function closes over."""
    return any(isinstance(x, tf.Variable) for x in self.xs)

  def is_open(self, rank: int) -> bool:
    """Whether some number of samples is not known."""
    return not self.xs[0].shape[:rank].is_fully_defined()

  @functools.cached_property
  def computing(self) -> tuple:
    """The ops but for constants: as many for any number of samples."""
    return tuple(op for op in self.ops if not is_constant(op))

  def extended(self, compute: Callable) -> 'Graph':
    """The graph with more ops, which a callable adds, and its results as ys."""
    with self.graph.as_default():
      before = len(self.graph.get_operations())
      ys = tuple(compute())
      added = self.graph.get_operations()[before:]
    return dataclasses.replace(self, ys=ys, ops=(*self.ops, *added))

  @functools.cached_property
  def digest(self) -> 'Digest':
    """What tells this graph from others; see `Digest`."""
    return _Hasher(self).digest()


def trace(
  call: Callable,
  outputs: Callable,
  parts: Sequence,
  shapes: Sequence | None = None,
) -> Graph:
  """Calls a function in a new graph, which is read and never run.

  Args:
    call: Python callable that takes the list of parts, and returns what the
      function returns.
    outputs: Python callable that takes what the function returned and the list
      of parts, and returns the list of Tensors that are differentiated.
    parts: List of Tensors, `tf.TensorSpec`s or `tf.Variable`s.
    shapes: List of the shapes in which they are passed. Default: their own.

  Returns:
    `Graph`.
  """
  graph = tf.__internal__.FuncGraph('aside')
  # Loops and branches of a `tf.function` copy their results, others do not. To
  # trace them as in the graph at hand there is no public way.
  graph._add_control_dependencies = getattr(
    tf.compat.v1.get_default_graph(), '_add_control_dependencies', False
  )
  with graph.as_default():
    xs = [
      p
      if isinstance(p, tf.Variable)
      else tf.identity(
        tf.compat.v1.placeholder(p.dtype, p.shape if s is None else s)
      )
      for p, s in zip(parts, shapes or [None] * len(parts))
    ]
  made = Graph(graph, tuple(xs), (), ())
  return made.extended(lambda: outputs(call(xs), xs))


class Digest(NamedTuple):
  """What a function does, without names.

  Attributes:
    key: `bytes`: a hash of types, attributes, constants, wiring, shapes, bodies
      of functions, and traced custom gradients; and of the values of small
      captured Tensors that a gradient may read.
    captures: `list` of what the function takes from outside beside xs, in the
      order of first use: Tensors and handles of Variables. Two graphs with
      equal keys do the same with the captures at the same positions.
    pinned: `frozenset` of the positions of captures that custom gradients read.
      A tape around a graph calls the Python code of such a gradient once more,
      and this code reads what it closed over when the graph was built.
  """

  key: bytes
  captures: list
  pinned: frozenset = frozenset()


class Gradient(NamedTuple):
  """A custom gradient, traced in a graph of its own.

  Attributes:
    graph: The `FuncGraph` of it.
    cotangents: `list` of Tensors of that graph, one per output of the op.
    results: `list` of Tensors or None, one per input of the op.
  """

  graph: Any
  cotangents: list
  results: list


class Node(NamedTuple):
  """One op, without names.

  Attributes:
    op: `tf.Operation`.
    inputs: `tuple` of the token of each input; see `Reader`.
    attributes: `tuple` of (name, bytes).
    shapes: `tuple` of the static shapes of the outputs.
    constants: `tuple` of the values, as bytes, of those inputs that are small
      captured Tensors and that a gradient may read.
  """

  op: Any
  inputs: tuple
  attributes: tuple
  shapes: tuple
  constants: tuple


class Reader:
  """Reads graphs op by op, with the functions that they call and the gradients.

  A token stands for a Tensor, independent of names.
  """

  def __init__(self, outside: Callable, fills: bool = True) -> None:
    """Says what stands for Tensors from outside of a graph.

    Args:
      outside: Callable that takes a Tensor which ops read from elsewhere, and
        whether a custom gradient reads it; returns its token.
      fills: Whether constants that are filled with one number are read as the
        ops that they are, or else as one `Node` without inputs.
    """
    self._outside = outside
    self._fills = fills

  def read(self, graph: Graph) -> Iterator[Node | tuple]:
    """Reads a graph.

    Args:
      graph: `Graph`.

    Yields:
      `Node` for each op but for those that stand for captured Tensors; after it
      what the functions and the gradient are that belong to it. Tuples, equal
      for what is equal, say where one of these begins, and with which tokens it
      ends.
    """
    tokens = {
      x.name: ('x', i)
      for i, x in enumerate(graph.xs)
      if not isinstance(x, tf.Variable)
    }
    depth = MAX_DEPTH - graph.depth
    yield from self._read(
      graph.graph, graph.ops, graph.ys, tokens, self._outside, depth, {}
    )

  def _read(
    self,
    graph: tf.Graph,
    ops: Sequence,
    results: Sequence,
    tokens: dict,
    outside: Callable,
    depth: int,
    constants: dict[str, bytes],
  ) -> Iterator[Node | tuple]:
    constants = {**constants, **_captured_constants(graph)}
    left_out = set() if self._fills else set(_parts_of_fills(ops, results))
    for node in _nodes(graph, ops, tokens, outside, constants, left_out):
      yield node
      is_call = facts(node.op.type).is_call
      for name in function_names(node.op):
        body = function_graph(graph, name)
        # Only calls are written out, so that what is in them sees a constant.
        passed = zip(body.inputs, node.op.inputs if is_call else ())
        within = {
          i.name: constants[x.name] for i, x in passed if x.name in constants
        }
        inner = {t.name: ('in', k) for k, t in enumerate(body.inputs)}
        yield 'function', len(inner)
        # A gradient adds to the outputs of a function what it needs.
        outputs = body.outputs[: len(node.op.outputs) if is_call else None]
        yield from self._read(
          body,
          body.get_operations(),
          outputs,
          inner,
          self._outside,
          depth,
          within,
        )
      if depth < MAX_DEPTH and has_own_gradient(node.op):
        yield from self._read_gradient(node.op, tokens, outside, depth)
    yield ([None if r is None else tokens.get(r.name) for r in results],)

  def _read_gradient(
    self, op: tf.Operation, tokens: dict, outside: Callable, depth: int
  ) -> Iterator[Node | tuple]:
    try:
      gradient = gradient_of(op)
    except Exception as e:  # The user's code; whatever it raises.
      # It will raise again where it is differentiated.
      yield NO_GRADIENT, type(e).__name__
      return
    yield ('gradient',)

    def beyond(tensor, is_in_gradient=True):
      if tf.is_symbolic_tensor(tensor):
        return tokens.get(tensor.name) or outside(tensor)
      return outside(tensor, True)

    yield from self._read(
      gradient.graph,
      gradient.graph.get_operations(),
      gradient.results,
      {t.name: ('dy', k) for k, t in enumerate(gradient.cotangents)},
      beyond,
      depth + 1,
      {},
    )


def _nodes(
  graph: tf.Graph,
  ops: Sequence,
  tokens: dict,
  outside: Callable,
  constants: dict[str, bytes],
  left_out: Collection,
) -> Iterator[Node]:
  """Reads ops one by one; adds the tokens of what they read and return."""
  captured = {i.name: o for o, i in getattr(graph, 'captures', ())}

  def is_captured(op):
    return bool(op.outputs) and op.outputs[0].name in captured

  def token(tensor):
    if tensor.name not in tokens:
      tokens[tensor.name] = outside(captured.get(tensor.name, tensor))
    return tokens[tensor.name]

  # Of all before one is read: a loop may read what was added to it later.
  ops = [op for op in ops if op not in left_out]
  own = (op for op in ops if not is_captured(op))
  for number, op in enumerate(own):
    tokens['^' + op.name] = ('^', number)
    for k, tensor in enumerate(op.outputs):
      tokens.setdefault(tensor.name, (number, k))
  for op in ops:
    if is_captured(op):
      token(op.outputs[0])
      continue
    inputs = [token(x) for x in op.inputs if x.op not in left_out]
    # A set: TensorFlow lists it in another order in the next trace.
    inputs += sorted(
      tokens.get('^' + before.name, ('^',)) for before in op.control_inputs
    )
    read = [
      constants[tensor.name]
      for k, tensor in enumerate(op.inputs)
      if tensor.name in constants and _may_be_read(op, k)
    ]
    shapes = tuple(_static_shape(t) for t in op.outputs)
    yield Node(op, tuple(inputs), attributes_of(op), shapes, tuple(read))


def is_fill(op: tf.Operation) -> bool:
  """Whether the result of an op is one constant number in a constant shape."""
  known = facts(op.type)
  shapes = [y.shape for y in op.outputs]
  if not (
    known.only_copies and len(shapes) == 1 and shapes[0].is_fully_defined()
  ):
    return False
  ranks = [op.inputs[k].shape.rank for k in known.moved(len(op.inputs))]
  return ranks == [0] and all(facts(x.op.type).is_constant for x in op.inputs)


def is_constant(op: tf.Operation) -> bool:
  """Whether an op is a constant or a fill, as TensorFlow makes large ones."""
  return facts(op.type).is_constant or is_fill(op)


def constant(op: tf.Operation) -> np.ndarray:
  """The value of such an op; that of a fill takes no room."""
  if not is_fill(op):
    return tf.make_ndarray(op.get_attr('value'))
  (k,) = facts(op.type).moved(len(op.inputs))
  shape: Any = op.outputs[0].shape
  return np.broadcast_to(constant(op.inputs[k].op), shape)


def _parts_of_fills(ops: Sequence, results: Sequence) -> Iterator[tf.Operation]:
  """The constants that only fills read."""
  fills = set(filter(is_fill, ops))
  read = {y.op for y in results if y is not None}
  for part in {x.op for fill in fills for x in fill.inputs} - read:
    (y,) = part.outputs
    if fills.issuperset(y.consumers()) and not part.control_inputs:
      yield part


def attributes_of(op: tf.Operation) -> tuple:
  """What an op is told beside its inputs: its device, and its attributes.

  Args:
    op: `tf.Operation`.

  Returns:
    tuple of (name, bytes), without names and without functions.
  """
  attrs, names = op.node_def.attr, _NAMES
  if facts(op.type).follows_gradient:
    names = names | {_GRADIENT}
  return ('device', op.device.encode()), *(
    (name, attrs[name].SerializeToString(deterministic=True))
    for name in sorted(attrs)
    if not _functions(attrs[name]) and name not in names
  )


def function_names(op: tf.Operation) -> list[str]:
  """The names of the functions that an op calls."""
  attrs = op.node_def.attr
  return [name for key in sorted(attrs) for name in _functions(attrs[key])]


def all_ops(
  graph: tf.Graph, ops: Sequence, seen: set | None = None
) -> Iterator[tf.Operation]:
  """Some ops of a graph, and those of the functions that they call, each once.

  Args:
    graph: `tf.Graph`.
    ops: List of `tf.Operation` of it.
    seen: Names of functions that are left out; others are added.

  Yields:
    `tf.Operation`.
  """
  seen = set() if seen is None else seen
  for op in ops:
    yield op
    for name in {*function_names(op)} - seen:
      seen.add(name)
      body = function_graph(graph, name)
      yield from all_ops(body, body.get_operations(), seen)


def _functions(attribute: Any) -> list[str]:
  kind = attribute.WhichOneof('value')
  if kind == 'func':
    return [attribute.func.name]
  return [f.name for f in attribute.list.func] if kind == 'list' else []


def function_graph(graph: tf.Graph, name: str) -> Any:
  """The graph of a function that an op of a graph calls.

  The gradients of custom functions are in the graph that was traced. TensorFlow
  has no public way to get it from the name of a function, so private ones are
  used, here and nowhere else.

  Args:
    graph: `tf.Graph`.
    name: `str`.

  Returns:
    `FuncGraph`.
  """
  function = graph._get_function(name)
  while function is None:
    # If a tape wraps a loop or a branch, the outer graph knows the function.
    graph = graph.outer_graph
    function = graph._get_function(name)
  if not hasattr(function, 'graph'):
    # A function of TensorFlow 1, as in the loops of `tf.nn.ctc_loss`.
    function.graph = function_def_to_graph.function_def_to_graph(
      function.definition
    )
  return function.graph


def has_own_gradient(op: tf.Operation) -> bool:
  """Whether an op ends a function with a `tf.custom_gradient`."""
  return facts(op.type).ends_custom_gradient and has_named_gradient(op)


def has_named_gradient(op: tf.Operation) -> bool:
  """Whether an op has another gradient than those of its type."""
  try:
    op.get_attr(_GRADIENT)
  except ValueError:
    return False
  return True


@contextlib.contextmanager
def beside(graph: tf.Graph) -> Iterator[Any]:
  """A context in which new ops can read a graph, but go to another one.

  Args:
    graph: `tf.Graph` that is read.

  Yields:
    `FuncGraph` to which new ops are added.
  """
  with graph.as_default():
    aside = tf.__internal__.FuncGraph('gradient')
  with aside.as_default():
    yield aside


def gradient_of(op: tf.Operation) -> Gradient:
  """Traces the gradient of an op in another graph; its own does not change.

  Not where tapes do not record: the gradient may have one of its own.

  Args:
    op: `tf.Operation`.

  Returns:
    `Gradient`. Of a Tensor that is several inputs the first one has all of it.
  """
  # Kept on the graph, so that it lives as long.
  known = getattr(op.graph, '_tfp_diag_gradients', None)
  if known is None:
    known = op.graph._tfp_diag_gradients = {}
  if op.name not in known:
    first = {x.ref(): k for k, x in reversed(list(enumerate(op.inputs)))}
    with beside(op.graph) as graph:
      cotangents = [
        tf.compat.v1.placeholder(y.dtype, y.shape) for y in op.outputs
      ]
      # For each input that is the same Tensor this is what they have in all.
      found = tf.gradients(
        list(op.outputs),
        list(op.inputs),
        grad_ys=cotangents,
        stop_gradients=list(op.inputs),
      )
      results = [
        None if r is None or first[x.ref()] < k else tf.convert_to_tensor(r)
        for k, (x, r) in enumerate(zip(op.inputs, found))
      ]
    known[op.name] = Gradient(graph, cotangents, results)
  return known[op.name]


class _Hasher:
  """Computes the digest of a graph, with the functions that it calls."""

  def __init__(self, graph: Graph) -> None:
    self._graph = graph
    self._hash = hashlib.blake2b(digest_size=32)
    self._captures = []
    self._places = {}
    self._pinned = set()

  def digest(self) -> Digest:
    for i, x in enumerate(self._graph.xs):
      if isinstance(x, tf.Variable):
        self._places[id(x.handle)] = ('x', i)
      self._add(_static_shape(x), x.dtype.name)
    for found in Reader(self._outside).read(self._graph):
      if not isinstance(found, Node):
        self._add(*found)
        continue
      self._add(found.op.type, found.inputs, found.shapes)
      for value in found.constants:
        self._hash.update(value)
      for name, value in found.attributes:
        self._hash.update(name.encode())
        self._hash.update(value)
    return Digest(self._hash.digest(), self._captures, frozenset(self._pinned))

  def _add(self, *items: Any) -> None:
    self._hash.update(repr(items).encode())

  def _outside(self, tensor: tf.Tensor, is_in_gradient: bool = False) -> Any:
    """The token of a Tensor or a handle that the function closes over."""
    if id(tensor) not in self._places:
      self._places[id(tensor)] = ('capture', len(self._captures))
      self._captures.append(tensor)
    place = self._places[id(tensor)]
    self._add(place, tensor.dtype.name, _static_shape(tensor))
    if is_in_gradient and place[0] == 'capture':
      self._pinned.add(place[1])
    return place


def _captured_constants(graph: tf.Graph) -> dict[str, bytes]:
  """Small captured Tensors, which TensorFlow makes a `Const` and an input."""
  return {
    i.name: i.op.node_def.attr['value'].SerializeToString(deterministic=True)
    for _, i in getattr(graph, 'captures', ())
    if facts(i.op.type).is_constant
  }


def _may_be_read(op: tf.Operation, k: int) -> bool:
  """Whether graphs of gradients may depend on the value of a constant input.

  Functions that build such graphs read axes, sizes and the like, and what these
  are computed from, where they can: other values make other graphs.
  """
  known, is_integer = facts(op.type), op.inputs[k].dtype.is_integer
  if function_names(op):
    return is_integer and not known.is_call
  if any(y.dtype.is_integer for y in op.outputs):
    return True
  return is_integer and k not in known.index_inputs


def _static_shape(tensor: tf.Tensor) -> tuple | None:
  shape = tensor.shape
  return None if shape.rank is None else tuple(shape.as_list())


class Reads:
  """The captured constants whose values the structure of a function depends on.

  Attributes:
    is_allowed: `bool`: whether values of captured constants may be read.
    seen: dict from each `Value` that was read to whether only the places of its
      zeros were.
  """

  def __init__(self) -> None:
    self._all: Reads | None = _all_reads.get()
    self.is_allowed = self._all is None or self._all.is_allowed
    self.seen: dict[Any, bool] = {}

  @contextlib.contextmanager
  def of_all(self) -> Iterator[None]:
    """Notes here, too, what is read for the graphs that are made meanwhile."""
    token = _all_reads.set(self)
    try:
      yield
    finally:
      _all_reads.reset(token)

  def add(self, value: Any, only_zeros: bool) -> None:
    """Notes that a `Value` was read, or only which of its elements are zero."""
    self.seen[value] = self.seen.get(value, True) and only_zeros
    if self._all is not None:
      self._all.add(value, only_zeros)

  def update(self, other: 'Reads') -> None:
    """Adds what was read for another graph of the function."""
    for value, only_zeros in other.seen.items():
      self.add(value, only_zeros)
