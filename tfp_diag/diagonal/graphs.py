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
"""Eager calls: traced each time, and compiled once for each graph.

Python runs in each eager call, as in all of eager TensorFlow: what a function
sees of the world when it is called is what it computes. So it is traced each
time. What is remembered is remembered by the digest of the graph that comes
out; if that is known, the rest of the trace is left out, and the compiled
derivative runs on the Tensors and Variables that the function closes over now.
"""

import collections
import contextlib
import hashlib
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal.linear_map import (
  Evaluation,
  may_be_recorded,
  without_xla,
)
from tfp_diag.internal import nest
from tfp_diag.sparsity.expansion import (
  check_only_reads,
  execute,
  needed_ops,
)
from tfp_diag.sparsity.graph import Graph, Reads, all_ops
from tfp_diag.sparsity.registry import CannotSay, facts
from tfp_diag.sparsity.value import Recipe

try:
  # The only way to options of the functions that run in one thread.
  from tensorflow.python.eager import context as eager_context

  _OPTIONS: Any = eager_context.FunctionCallOptions
except (AttributeError, ImportError):  # Another version of TensorFlow.
  _OPTIONS = None

# What all remembered graphs may hold together.
MAX_BYTES = 256 << 20
# An op in a graph, with what TensorFlow keeps about it in Python and in C++.
_BYTES_PER_OP = 20_000
# A function may close over another constant at each call, whose zeros or
# indices are structure. After so many of them their values count as unknown.
_MAX_VARIANTS = 4

_lock = threading.RLock()
_cache: collections.OrderedDict = collections.OrderedDict()


def clear_cache() -> None:
  """Forgets the graphs of all eager calls.

  Eager calls remember the compiled derivatives of functions, and samplers the
  compiled steps of their kernels. Together these hold a bounded number of
  bytes, and the least recently used are dropped first. Call this to free the
  memory, for example after a benchmark.

  #### Examples

  ```python
  import tensorflow as tf
  import tfp_diag

  tfp_diag.diag_jacobian(tf.ones([3]), fn=tf.sin)
  tfp_diag.clear_cache()  # The next call compiles again.
  ```
  """
  with _lock:
    _cache.clear()


def call(
  key: tuple,
  evaluate: Callable[..., Evaluation],
  body: Callable,
  tensors: Sequence,
  specs: Sequence | None = None,
  jit_compile: bool = False,
  accept: Callable | None = None,
) -> Any:
  """Calls `body(evaluate(*tensors), *tensors)` as a compiled graph.

  Args:
    key: Hashable: what else than the function and the shapes decides what
      `body` does.
    evaluate: Python callable of Tensors; calls the function.
    body: Python callable of an `Evaluation` and Tensors to a structure of
      Tensors.
    tensors: List of Tensors.
    specs: List of `tf.TensorSpec`s of them, with a size of None where one graph
      shall serve all sizes. Default: their own.
    jit_compile: Python bool, whether to compile with XLA.
    accept: Python callable, what `body` returned to whether the graph is worth
      to be remembered. If given, `body` takes one Tensor more, a bool: whether
      this is the first time that the graph runs.

  Returns:
    What `body` returns; None if it was not accepted.
  """
  if specs is None:
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in tensors]
  if accept is not None:
    specs = [*specs, tf.TensorSpec([], tf.bool)]
  # Else nothing is done to its graph but to run it.
  is_watched = jit_compile or may_be_recorded()
  present = _Call((key, *specs, jit_compile))

  def traced(*tensors):
    with without_xla(not is_watched):
      evaluation = evaluate(*tensors)
    present.full_key = present.full_key, _result_key(evaluation)
    if evaluation.loop_type is not None:
      present.full_key = present.full_key, is_watched
    present.look_up(evaluation.graph)
    return body(evaluation, *tensors)

  try:
    graph = concrete(traced, specs, jit_compile)
  except _Known as known:
    more = [] if accept is None else [tf.constant(False)]
    return known.entry([*tensors, *more], present)
  entry = _Entry(graph, present)
  if accept is not None:
    result = entry([*tensors, tf.constant(True)], present)
    if not accept(result):
      return None
  else:
    result = entry(tensors, present)
  _remember(present.full_key, entry)
  return result


def compiled(
  key: tuple,
  name: str,
  body: Callable,
  specs: Sequence,
  jit_compile: bool = False,
  source: Graph | None = None,
) -> Callable:
  """A function as a compiled graph, for any number of calls.

  It is traced now, and never again: what it closes over is read as it is now.

  Args:
    key: Hashable: what else than the graph decides what `body` returns, such as
      its structure.
    name: Python `str`, the name of the graph.
    body: Python callable of Tensors to a structure of Tensors.
    specs: List of `tf.TensorSpec`s of the Tensors.
    jit_compile: Python bool, whether to compile with XLA.
    source: `Graph` of the only function of a user that `body` calls, from
      `TracedOnce.graph`, where `key` decides all else: a graph that is known is
      then not traced again.

  Returns:
    Python callable of a list of Tensors, whose results no tape records.
  """
  present = _Call((key, name, *specs, jit_compile))

  def traced(*tensors):
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    result = body(*tensors)
    if source is None:
      present.look_up(
        Graph(
          graph,
          tensors,
          tuple(tf.nest.flatten(result)),
          tuple(graph.get_operations()[before:]),
          depth=0,  # Nothing differentiates it.
        )
      )
    return result

  traced.__name__ = name
  try:
    with contextlib.ExitStack() as noted:
      if source is not None:
        reads = Reads()
        present.look_up(source, reads)
        noted.enter_context(reads.of_all())
      graph = concrete(traced, specs, jit_compile)
    entry = _Entry(graph, present)
    if source is None or entry.may_serve_others:
      _remember(present.full_key, entry)
  except _Known as known:
    entry = known.entry

  def run(tensors):
    # What is made of the results is not for a tape of the caller, which would
    # keep all that leads to them.
    with tf.init_scope():
      return entry(tensors, present)

  return run


class TracedOnce:
  """A function that is called once for each kind of arguments.

  Graphs made later repeat the ops of that trace, and those of the functions
  that it calls. So a derivative is one of plain ops. XLA takes what the
  gradient of a call of a function closes over for a constant of the program,
  and compiles anew for each value of it.
  """

  def __init__(self, fn: Callable) -> None:
    """Initializes it; nothing is traced yet.

    Args:
      fn: Python callable of Tensors to a Tensor, which closes over no Tensor of
        a graph. What else it closes over is read when it is traced.
    """
    self._fn = fn
    self._functions: dict = {}

  def __call__(self, *tensors: tf.Tensor) -> tf.Tensor:
    """What the function returns."""
    function, may_repeat = self._traced(tensors)
    if tf.executing_eagerly():
      return function(*tensors)
    return _repeated(function, tensors) if may_repeat else self._fn(*tensors)

  def graph(self, tensors: Sequence) -> Graph | None:
    """The graph of which others repeat the ops.

    Args:
      tensors: List of Tensors of the kind of the arguments.

    Returns:
      `Graph`; None if the function is called again for each of them, or cannot
      be traced.
    """
    try:
      function, may_repeat = self._traced(tensors)
    except Exception:  # The user's code: it raises again where it is needed.
      return None
    if not may_repeat:
      return None
    graph = function.graph
    result = graph.structured_outputs
    needed = needed_ops(graph.get_operations(), [result])
    return Graph(
      graph,
      tuple(graph.inputs[: len(tensors)]),
      (result,),
      tuple(op for op in graph.get_operations() if op in needed),
    )

  def _traced(self, tensors: Sequence) -> tuple:
    key = tuple((x.dtype, x.shape.rank and tuple(x.shape)) for x in tensors)
    if key not in self._functions:
      with tf.init_scope():
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in tensors]
        function = concrete(self._fn, specs)
      # Outside: gradients are traced for it, and may have tapes of their own.
      self._functions[key] = function, _may_repeat(function, specs)
    return self._functions[key]


def _may_repeat(function: Any, specs: Sequence) -> bool:
  """Whether its ops can stand for a call of the function."""
  with tf.__internal__.FuncGraph('aside').as_default():
    try:
      check_only_reads(function.graph)
      _repeated(
        function, [tf.compat.v1.placeholder(s.dtype, s.shape) for s in specs]
      )
    except CannotSay:
      return False
  return True


def _repeated(function: Any, tensors: Sequence) -> tf.Tensor:
  """What a function returns, by its ops."""
  inputs = [*tensors, *function.captured_inputs]
  # A gradient adds to `graph.outputs` what it needs.
  [y] = execute(function.graph, inputs, [function.graph.structured_outputs])
  return y


def _result_key(evaluation: Evaluation) -> Hashable:
  """What tells what a function returns from what another one does.

  Both have the same ops, but may return other Tensors of them, in another
  structure.
  """
  graph = evaluation.graph
  ops = graph.ops
  places = {
    id(getattr(x, 'handle', x)): (kind, k)
    for kind, tensors in (('capture', graph.digest.captures), ('x', graph.xs))
    for k, x in enumerate(tensors)
  }

  def place(x):
    if isinstance(x, (type(None), bool, int, float, str)):
      return type(x), repr(x)
    if isinstance(x, (np.ndarray, np.generic)):
      return x.dtype.str, x.shape, x.tobytes()
    x = getattr(x, 'handle', x)  # Of a Variable.
    if id(x) in places:
      return places[id(x)]
    if tf.is_symbolic_tensor(x) and x.op in ops:
      return ops.index(x.op), x.value_index
    return object()  # As no other one.

  leaves = tf.nest.flatten(evaluation.result, expand_composites=True)
  return nest.skeleton(evaluation.result), tuple(map(place, leaves))


class _Known(Exception):
  """Ends a trace: its graph is known."""

  def __init__(self, entry: Any) -> None:
    super().__init__()
    self.entry = entry


class _Call:
  """One eager call.

  Attributes:
    full_key: Hashable: what its graph is remembered by.
    captures: List of Tensors and handles that the function closes over.
    pinned: See `Digest`.
    variables: List of the handles of the parts that are Variables.
    watched: List of `tf.Variable`s that the function has read.
    reads: `Reads` of its graph.
  """

  def __init__(self, key: Any) -> None:
    self.full_key = key

  def look_up(self, graph: Graph, reads: Reads | None = None) -> None:
    """Leaves the trace if its graph is known.

    Args:
      graph: `Graph` that tells it from others.
      reads: `Reads` of what is made from it. Default: those of the graph.
    """
    digest = graph.digest
    self.full_key = self.full_key, digest.key
    self.captures = digest.captures
    self.pinned = digest.pinned
    self.variables = [x.handle for x in graph.xs if isinstance(x, tf.Variable)]
    self.watched = list(graph.graph.variables)
    self.reads = graph.reads if reads is None else reads
    with _lock:
      entries = list(_cache.get(self.full_key, ()))
      if entries:
        _cache.move_to_end(self.full_key)
    for entry in entries:
      if entry.fits(self.captures):
        raise _Known(entry)
    self.reads.is_allowed = len(entries) < _MAX_VARIANTS


class _Condition:
  """A constant of which the structure has used the value."""

  def __init__(self, recipe: Recipe, only_zeros: bool, places: dict) -> None:
    self._recipe = recipe
    self._only_zeros = only_zeros
    self._places = {id(c): places[id(c)] for c in recipe.captures()}
    # These are known to fit; they are not kept alive.
    self._seen = {places[id(c)]: weakref.ref(c) for c in recipe.captures()}
    self._content = self._of(lambda tensor: tensor)

  def holds(self, captures: Sequence) -> bool:
    """Whether the structure holds for other captures."""
    if all(ref() is captures[k] for k, ref in self._seen.items()):
      return True
    return self._content == self._of(
      lambda tensor: captures[self._places[id(tensor)]]
    )

  def _of(self, replace: Callable) -> bytes | None:
    with tf.init_scope():
      return _content(self._recipe.replaced(replace), self._only_zeros)


def _content(tensor: Any, only_zeros: bool) -> bytes:
  array = np.asarray(tensor)
  if only_zeros:
    array = array != 0
  data = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16)
  return data.digest()


class _Entry:
  """A compiled graph, and which of its captures the next call replaces.

  Attributes:
    may_serve_others: Whether it depends on no other captures than those that
      the next call replaces, and on each of these.
    num_bytes: About how many bytes the graph takes.
  """

  def __init__(self, graph: Any, present: _Call) -> None:
    self._graph = graph
    self._slots = _slots(graph, present)
    # A tape watches the Variables of each call, not those of the first one.
    graph.set_variables([])
    self._pinned = {k: weakref.ref(present.captures[k]) for k in present.pinned}
    places = {id(c): k for k, c in enumerate(present.captures)}
    recipes = [
      (value.recipe(), only_zeros)
      for value, only_zeros in present.reads.seen.items()
    ]
    self._conditions = [
      _Condition(recipe, only_zeros, places)
      for recipe, only_zeros in recipes
      if all(id(c) in places for c in recipe.captures())
    ]
    # A capture that is missing is in the graph as the constant that it was.
    replaced = {slot and slot[1] for slot, _ in self._slots}
    self.may_serve_others = len(recipes) == len(
      self._conditions
    ) and replaced == set(range(len(present.captures)))
    self.num_bytes = _num_bytes(graph)

  def fits(self, captures: Sequence) -> bool:
    """Whether its structure holds for a function with these captures."""
    return all(
      seen() is captures[k] for k, seen in self._pinned.items()
    ) and all(c.holds(captures) for c in self._conditions)

  def __call__(self, tensors: Sequence, present: _Call) -> Any:
    new = {
      'x': present.variables,
      'capture': present.captures,
    }
    captured = [
      own if slot is None else new[slot[0]][slot[1]]
      for slot, own in self._slots
    ]
    for variable in present.watched:
      variable.value()  # A tape around the call watches it from now on.
    # There is no public way to call a function with other captures.
    return self._graph._call_flat(list(tensors), captured)


def _slots(graph: Any, present: _Call) -> list:
  """For each capture of a graph where the next call has it, and itself."""
  places = {id(h): ('x', k) for k, h in enumerate(present.variables)}
  for k, c in enumerate(present.captures):
    places.setdefault(id(c), ('capture', k))
  slots = []
  for tensor in graph.captured_inputs:
    slot = places.get(id(tensor))
    # TensorFlow's graph keeps the captures of the first call; this does not.
    slots.append((slot, tensor if slot is None else None))
  return slots


def _num_bytes(graph: Any) -> int:
  total = 0
  for op in all_ops(graph.graph, graph.graph.get_operations()):
    total += _BYTES_PER_OP
    if facts(op.type).is_constant:
      total += (op.outputs[0].shape.num_elements() or 0) * op.outputs[
        0
      ].dtype.size
  return total


def concrete(
  traced: Callable, specs: Sequence, jit_compile: bool = False
) -> Any:
  """Traces what calls a user's function.

  Args:
    traced: Python callable of Tensors.
    specs: List of `tf.TensorSpec`s of them.
    jit_compile: Python bool, whether to compile with XLA.

  Returns:
    A concrete function.

  Raises:
    TypeError: If the function needs the value of a Tensor in Python.
  """
  function = tf.function(
    traced, autograph=False, jit_compile=jit_compile or None
  )
  return function.get_concrete_function(*specs)


@contextlib.contextmanager
def unoptimized() -> Iterator[None]:
  """Runs functions of this thread as they were traced, where TensorFlow can.

  What runs once does not pay for an optimizer of graphs, which takes most of
  the time of such a run.
  `tf.config.optimizer` can switch it off, too; but it does so for all threads,
  and every function that has run before is optimized again afterwards.
  """
  if _OPTIONS is None:
    yield
    return
  context: Any = eager_context.context()
  options = context.function_call_options
  config = tf.compat.v1.ConfigProto()
  config.ParseFromString(options.config_proto_serialized)
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  context.function_call_options = _OPTIONS(options.executor_type, config)
  try:
    yield
  finally:
    context.function_call_options = options


def _remember(key: Any, entry: _Entry) -> None:
  with _lock:
    entries = _cache.setdefault(key, [])
    entries.append(entry)
    del entries[: -_MAX_VARIANTS - 1]
    _cache.move_to_end(key)
    total = sum(e.num_bytes for entries in _cache.values() for e in entries)
    while total > MAX_BYTES and len(_cache) > 1:
      _, dropped = _cache.popitem(last=False)
      total -= sum(e.num_bytes for e in dropped)
