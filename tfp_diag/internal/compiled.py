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
"""Eager calls run as compiled graphs, one per function and kind of call.

An eager call is traced into a `tf.function` once and found again at the next
call with the same function. "The same" is decided by what a graph would hold on
to: two functions are the same if they share their code and everything that the
code can see (closure, defaults, the globals it names) is the same object, or an
equal number, string or small array. A lambda that is written anew in each
iteration of a loop is therefore traced once, and a Python number that changes
between calls is not baked in by mistake.
"""

import collections
import dis
import functools
import types

import numpy as np
import tensorflow as tf

__all__ = ['call', 'fingerprint']

# How many functions are kept; the least recently used is dropped first.
_MAX_FUNCTIONS = 256
# How deep functions that functions refer to are looked into.
_MAX_DEPTH = 4
# Arrays up to this many bytes are compared by content, larger by identity.
_MAX_ARRAY_BYTES = 1 << 16

_cache = collections.OrderedDict()


class _Entry:
  """The graphs of a body, or the knowledge that it cannot become one."""

  def __init__(self, seen):
    # Keeps alive what the key names by its `id`.
    self.seen = seen
    self.graphs = {}
    self.traceable = True

  def __call__(self, body, args):
    if not self.traceable:
      return body(*args)
    # Not the `tf.function` itself: it would warn of retracing when several of
    # these, which all have the same name, are traced.
    specs = tuple(tf.TensorSpec(a.shape, a.dtype) for a in args)
    if specs not in self.graphs:
      try:
        graph = tf.function(body, autograph=False).get_concrete_function(*specs)
      except Exception as e:
        if not _needs_values(e):
          raise
        self.traceable = False
        return body(*args)
      self.graphs[specs] = graph
    return self.graphs[specs](*args)


def call(key, fns, body, args):
  """Calls `body(*args)` as a graph that is remembered under `key` and `fns`.

  If a function cannot be traced, because it needs the values of its arguments
  in Python, `body` runs eagerly instead.

  Args:
    key: Hashable, what else than `fns` decides what `body` does.
    fns: List of Python callables that `body` calls.
    body: Python callable, Tensors to a structure of Tensors.
    args: List of Tensors.

  Returns:
    What `body` returns.
  """
  if tf.config.functions_run_eagerly():
    return body(*args)
  seen = []
  key = (key, tuple(fingerprint(fn, seen) for fn in fns))
  entry = _cache.pop(key, None) or _Entry(seen)
  _cache[key] = entry
  while len(_cache) > _MAX_FUNCTIONS:
    _cache.popitem(last=False)
  return entry(body, args)


def _needs_values(error):
  """Whether tracing failed because a symbolic Tensor has no value."""
  if isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
    return True
  # TensorFlow has no type of its own for these.
  return isinstance(
    error, (AttributeError, NotImplementedError, TypeError)
  ) and any(
    hint in str(error)
    for hint in (
      "has no attribute 'numpy'",
      'Cannot convert a symbolic',
      'numpy() is only available when eager',
    )
  )


def fingerprint(fn, seen, depth=0):
  """What a graph of `fn` would hold on to, as a hashable value.

  Args:
    fn: Python callable.
    seen: List, to which the objects that are named by their `id` are added.
    depth: Python int, how many functions deep this one lies.

  Returns:
    Hashable.
  """
  if isinstance(fn, functools.partial):
    return (
      'partial',
      fingerprint(fn.func, seen, depth),
      tuple(_value(a, seen, depth) for a in fn.args),
      tuple(
        (k, _value(v, seen, depth)) for k, v in sorted(fn.keywords.items())
      ),
    )
  if isinstance(fn, types.MethodType):
    return (
      'method',
      fingerprint(fn.__func__, seen, depth),
      _instance(fn.__self__, seen, depth),
    )
  if hasattr(fn, 'python_function'):  # A `tf.function`.
    return ('tf.function', id(fn), fingerprint(fn.python_function, seen, depth))
  if isinstance(fn, types.FunctionType):
    return _function(fn, seen, depth)
  return _instance(fn, seen, depth)


def _function(fn, seen, depth):
  """A Python function: its code and what the code can see."""
  seen.append(fn.__code__)
  if depth >= _MAX_DEPTH:
    seen.append(fn)
    return id(fn)
  read, written = _names(fn.__code__)
  visible = [fn.__globals__[n] for n in read if n in fn.__globals__]
  for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
    # What a function writes, a call counter say, is not an input of it.
    if name not in written:
      try:
        visible.append(cell.cell_contents)
      except ValueError:  # The cell is still empty.
        visible.append(None)
  visible.extend(fn.__defaults__ or ())
  visible.extend((fn.__kwdefaults__ or {}).values())
  return (
    'function',
    id(fn.__code__),
    tuple(_value(v, seen, depth + 1) for v in visible),
  )


@functools.lru_cache(maxsize=1024)
def _names(code):
  """The names that a code object, and those inside it, look up and assign."""
  read, written = set(code.co_names), set()
  for instruction in dis.get_instructions(code):
    if instruction.opname in ('STORE_DEREF', 'STORE_GLOBAL'):
      written.add(instruction.argval)
  for const in code.co_consts:
    if isinstance(const, types.CodeType):
      inner_read, inner_written = _names(const)
      read.update(inner_read)
      written.update(inner_written)
  return tuple(sorted(read - written)), frozenset(written)


def _value(value, seen, depth):
  """Something that a function can see."""
  if value is None or isinstance(
    value, (bool, int, float, complex, str, bytes)
  ):
    return (type(value).__name__, repr(value))
  if (
    isinstance(value, (tuple, list)) and len(value) <= 64 and depth < _MAX_DEPTH
  ):
    return (
      type(value).__name__,
      tuple(_value(v, seen, depth + 1) for v in value),
    )
  if isinstance(value, (np.ndarray, np.generic)):
    if value.nbytes <= _MAX_ARRAY_BYTES and value.dtype != object:
      return ('array', value.shape, value.dtype.str, value.tobytes())
  elif isinstance(
    value, (types.FunctionType, types.MethodType, functools.partial)
  ):
    if not (getattr(value, '__module__', None) or '').startswith(_LIBRARIES):
      return fingerprint(value, seen, depth)
  seen.append(value)
  return id(value)


# Functions of these do not change between two calls.
_LIBRARIES = ('tensorflow', 'keras', 'tf_keras', 'numpy', 'scipy', 'tfp_diag')


def _instance(obj, seen, depth):
  """An object that is called, or whose method is: itself, and its numbers."""
  seen.append(obj)
  if type(obj).__module__.startswith(_LIBRARIES):
    return ('object', id(obj))
  attributes = getattr(obj, '__dict__', {})
  numbers = tuple(
    (k, _value(v, seen, depth))
    for k, v in sorted(attributes.items(), key=lambda kv: str(kv[0]))
    if isinstance(v, (bool, int, float, complex, str))
  )
  return ('object', id(obj), numbers)
