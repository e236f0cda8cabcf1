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
code can see (closure, defaults, the globals and attributes it names) is the
same object, or an equal number, string, array, or container of these. A lambda
that is written anew in each iteration of a loop is therefore traced once, and a
Python number that changes between calls is not baked in by mistake.

What is not seen: attributes reached by a computed name (`getattr`), what lies
more than `_MAX_DEPTH` steps away, and containers of more than `_MAX_ITEMS`
items. These are told apart by identity alone.
"""

import collections
import dis
import functools
import hashlib
import inspect
import types

import numpy as np
import tensorflow as tf

__all__ = ['call', 'fingerprint']

# How many functions are kept; the least recently used is dropped first.
_MAX_FUNCTIONS = 256
# How many steps from a function to what it refers to are followed.
_MAX_DEPTH = 6
# Containers up to this many items are compared by content, longer by identity.
_MAX_ITEMS = 1000
# What these define does not change between two calls.
_LIBRARIES = (
  'builtins',
  'tensorflow',
  'tensorflow_probability',
  'keras',
  'tf_keras',
  'numpy',
  'scipy',
  'tfp_diag',
)

_cache = collections.OrderedDict()


class _Entry:
  """The graphs of a body, or the knowledge that it cannot become one."""

  def __init__(self, seen, jit_compile):
    # Keeps alive what the key names by its `id`.
    self.seen = seen
    self.jit_compile = jit_compile
    self.graphs = {}
    self.traceable = True

  def will_run_python(self, specs):
    """Whether `body` itself will be called, to be traced or eagerly."""
    return not self.traceable or specs not in self.graphs

  def __call__(self, body, args, specs):
    if not self.traceable:
      return body(*args)
    # Not the `tf.function` itself: it would warn of retracing when several of
    # these, which all have the same name, are traced.
    if specs not in self.graphs:
      try:
        function = tf.function(
          body, autograph=False, jit_compile=self.jit_compile or None
        )
        graph = function.get_concrete_function(*specs)
      except Exception as e:
        if not _needs_values(e):
          raise
        self.traceable = False
        return body(*args)
      self.graphs[specs] = graph
    return self.graphs[specs](*args)


def call(key, fns, body, args, jit_compile=False, specs=None):
  """Calls `body(*args)` as a graph that is remembered under `key` and `fns`.

  If a function cannot be traced, because it needs the values of its arguments
  in Python, `body` runs eagerly instead.

  Args:
    key: Hashable, what else than `fns` decides what `body` does.
    fns: List of Python callables that `body` calls.
    body: Python callable, Tensors to a structure of Tensors.
    args: List of Tensors.
    jit_compile: Python bool, whether to compile with XLA.
    specs: List of `tf.TensorSpec`s of `args`, with a size of None where one
      graph shall serve all sizes. Default: a graph for each size.

  Returns:
    What `body` returns.
  """
  if tf.config.functions_run_eagerly():
    return body(*args)

  def full_key(seen):
    return (key, tuple(fingerprint(fn, seen) for fn in fns))

  if specs is None:
    specs = [tf.TensorSpec(a.shape, a.dtype) for a in args]
  specs = tuple(specs)
  seen = []
  before = full_key(seen)
  entry = _cache.pop(before, None) or _Entry(seen, jit_compile)
  _remember(before, entry)
  runs_python = entry.will_run_python(specs)
  result = entry(body, args, specs)
  if runs_python:
    # What the functions themselves change, a list of calls say, is not an input
    # of them: they are found under what it is now, too.
    _remember(full_key(entry.seen), entry)
  return result


def _remember(key, entry):
  _cache[key] = entry
  _cache.move_to_end(key)
  while len(_cache) > _MAX_FUNCTIONS:
    _cache.popitem(last=False)


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
      "'SymbolicTensor'",
      'Cannot convert a symbolic',
      'numpy() is only available when eager',
    )
  )


def fingerprint(fn, seen, depth=0):
  """What a graph of `fn` would hold on to, as a hashable value.

  Args:
    fn: Python callable.
    seen: List, to which the objects that are named by their `id` are added.
    depth: Python int, how many steps from the first function this one lies.

  Returns:
    Hashable.
  """
  if isinstance(fn, functools.partial):
    return (
      'partial',
      fingerprint(fn.func, seen, depth),
      _value(fn.args, (), seen, depth),
      _value(fn.keywords, (), seen, depth),
    )
  if isinstance(fn, types.MethodType):
    return ('method', _method(fn.__func__, fn.__self__, seen, depth))
  if hasattr(fn, 'python_function'):  # A `tf.function`.
    return (_by_id(fn, seen), fingerprint(fn.python_function, seen, depth))
  if isinstance(fn, types.FunctionType):
    return _function(fn, seen, depth)
  return _value(fn, (), seen, depth)


def _by_id(obj, seen):
  seen.append(obj)
  return ('object', id(obj))


def _is_library(obj):
  module = getattr(obj, '__module__', None)
  return isinstance(module, str) and _of_library(module)


def _of_library(module):
  return module.partition('.')[0] in _LIBRARIES


def _method(function, obj, seen, depth):
  """A function that is given `obj` first: both, and what it reads of `obj`."""
  if not isinstance(function, types.FunctionType) or _is_library(function):
    return _by_id(obj, seen)
  names, _ = _names(function.__code__)
  return (
    _function(function, seen, depth),
    _object(obj, names, seen, depth + 1),
  )


def _function(fn, seen, depth):
  """A Python function: its code and what the code can see."""
  if depth >= _MAX_DEPTH:
    return _by_id(fn, seen)
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
    _by_id(fn.__code__, seen),
    tuple(_value(v, read, seen, depth + 1) for v in visible),
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
  # A variable of its own is not one that it sees.
  written.difference_update(code.co_cellvars)
  return tuple(sorted(read - written)), frozenset(written)


def _value(value, names, seen, depth):
  """Something that code can see, of which it reads the attributes `names`."""
  if value is None or isinstance(
    value, (bool, int, float, complex, str, bytes)
  ):
    return (type(value).__name__, repr(value))
  if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
    # Costs no more than the copy that TensorFlow makes of an array it is given.
    content = hashlib.blake2b(np.ascontiguousarray(value)).digest()
    return ('array', value.shape, value.dtype.str, content)
  if depth >= _MAX_DEPTH:
    return _by_id(value, seen)
  if isinstance(value, (tuple, list)) and len(value) <= _MAX_ITEMS:
    return (
      type(value).__name__,
      tuple(_value(v, names, seen, depth + 1) for v in value),
    )
  if isinstance(value, dict) and len(value) <= _MAX_ITEMS:
    return (
      'dict',
      tuple(
        (_value(k, (), seen, depth + 1), _value(v, names, seen, depth + 1))
        for k, v in value.items()
      ),
    )
  if isinstance(
    value, (types.FunctionType, types.MethodType, functools.partial)
  ):
    if not _is_library(value):
      return fingerprint(value, seen, depth)
  return _object(value, names, seen, depth)


# What is read of an object that is called. Keras calls the second.
_CALLED_BY_CALL = ('__call__', 'call')


def _object(obj, names, seen, depth):
  """An object, or a module: itself, and those of its attributes in `names`."""
  module = obj.__name__ if isinstance(obj, types.ModuleType) else None
  owner = obj if isinstance(obj, type) else type(obj)
  if depth >= _MAX_DEPTH or _of_library(module or owner.__module__):
    return _by_id(obj, seen)
  attributes = []
  for name in (*names, *_CALLED_BY_CALL):
    # Does not run the code of properties.
    found = inspect.getattr_static(obj, name, None)
    if isinstance(found, types.MemberDescriptorType):  # In `__slots__`.
      found = getattr(obj, name, None)
    if isinstance(found, property):
      found = found.fget
    if found is None:
      continue
    if isinstance(found, types.FunctionType) and module is None:
      attributes.append((name, _method(found, obj, seen, depth + 1)))
    else:
      attributes.append((name, _value(found, names, seen, depth + 1)))
  return (_by_id(obj, seen), tuple(attributes))
