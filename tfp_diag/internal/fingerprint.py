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
"""Tells whether a function is the one that it was.

Two functions are the same if they share their code and everything that the code
can see: closure, defaults, globals, imported modules, and the objects in these,
each the same one with the same content. Numbers, strings, arrays and containers
are compared by content. Of an object, or its class, those attributes count that
any of the code names; all of them, if code looks names up by itself (`getattr`,
`vars`, `__dict__`).

What is not seen: what objects of TensorFlow, Keras and other libraries hold but
for what is named (a layer that is added to a `keras.Sequential`), the items of
containers of more than `_MAX_ITEMS`, what lies behind `_MAX_OBJECTS` others.
These are told apart by identity alone.
"""

import array
import collections
import dis
import functools
import hashlib
import inspect
import sys
import types

import numpy as np

__all__ = ['fingerprint']

# Containers up to this many items are compared by content, longer by identity.
_MAX_ITEMS = 1000
# How many objects, functions and containers are looked into.
_MAX_OBJECTS = 5000
# How deep they lie at most.
_MAX_DEPTH = 50
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
# But these are plain containers.
_NOT_LIBRARIES = ('scipy.sparse',)
# Code that names one of these may look at any attribute.
_LOOK_UP = {'getattr', 'vars', 'dir', '__dict__', 'attrgetter', '__getattr__'}
# What TensorFlow keeps in the objects of its users.
_TRACKING = ('_self_', '_keras_api', '_obj_reference_counts')

# Methods that Keras and TensorFlow call.
_CALLED_BY_LIBRARIES = {'call', 'build'}

_SEQUENCES = (tuple, list, collections.deque, array.array)


def fingerprint(fn, seen):
  """What a graph of `fn` would hold on to, as a hashable value.

  Args:
    fn: Python callable.
    seen: List, to which the objects that are named by their `id` are added.

  Returns:
    Hashable.
  """
  names, before = set(), None
  # Behind what is named there may be code that names more.
  while names != before:
    before = set(names)
    reader = _Reader([], before, None, hashes=False)
    reader.value(fn, 0)
    names |= reader.names
  reader = _Reader(seen, names, None if names & _LOOK_UP else names)
  return reader.value(fn, 0)


class _Reader:
  """Reads what can be seen from a function, each object once."""

  def __init__(self, seen, known, attributes, hashes=True):
    """Starts to read.

    Args:
      seen: List, see `fingerprint`.
      known: Set of str, all names that are known to be read.
      attributes: Set of str, the attributes that count, or None for all.
      hashes: Python bool, whether arrays are read; not needed for the names.
    """
    self.names = set()
    self._seen = seen
    self._known = known
    self._attributes = attributes
    self._hashes = hashes
    self._places = {}

  def value(self, value, depth):
    """Anything, as a hashable value."""
    if value is None or isinstance(
      value, (bool, int, float, complex, str, bytes)
    ):
      return (type(value).__name__, repr(value))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
      return _array(value) if self._hashes else None
    place = self._places.get(id(value))
    if place is not None:
      return ('seen', place)
    self._seen.append(value)
    self._places[id(value)] = len(self._places)
    if len(self._places) > _MAX_OBJECTS or depth > _MAX_DEPTH:
      return ('object', id(value))
    return self._content(value, depth + 1)

  def _content(self, value, depth):
    if isinstance(value, types.FunctionType):
      return self._function(value, depth)
    if isinstance(value, functools.partial):
      parts = (value.func, value.args, value.keywords)
      return self._all('partial', parts, depth)
    if isinstance(value, types.MethodType):
      return self._all('method', (value.__func__, value.__self__), depth)
    if isinstance(value, (staticmethod, classmethod)):
      return self._all(type(value).__name__, (value.__func__,), depth)
    if isinstance(value, property):
      return self._all('property', (value.fget,), depth)
    if isinstance(value, np.ndarray):
      return self._all(('array', value.shape), value.ravel().tolist(), depth)
    if isinstance(value, _SEQUENCES) and len(value) <= _MAX_ITEMS:
      return self._all(type(value).__name__, value, depth)
    if isinstance(value, (set, frozenset)) and len(value) <= _MAX_ITEMS:
      items = sorted(value, key=lambda item: (type(item).__name__, repr(item)))
      return self._all(type(value).__name__, items, depth)
    if (
      isinstance(value, (dict, types.MappingProxyType))
      and len(value) <= _MAX_ITEMS
    ):
      items = [x for item in list(value.items()) for x in item]
      return self._all(type(value).__name__, items, depth)
    if isinstance(value, types.ModuleType):
      return self._module(value, depth)
    # Of a `tf.function`; of `functools.lru_cache` and proxies. To look in this
    # way runs no code of the object.
    for name in ('python_function', '__wrapped__'):
      if inspect.getattr_static(value, name, None) is not None:
        inner = getattr(value, name)
        return self._all(('object', id(value)), (inner,), depth)
    return self._object(value, depth)

  def _all(self, kind, values, depth):
    return (kind, tuple(self.value(v, depth) for v in values))

  def _function(self, fn, depth):
    """A Python function: its code and what the code can see."""
    code = ('code', id(fn.__code__))
    self._seen.append(fn.__code__)
    read, written, imported = _names(fn.__code__)
    visible = []
    # A library may have made a function that sees what it was given, but its
    # globals are its own.
    if not _is_library(fn.__module__):
      self.names.update(read)
      visible += [fn.__globals__[n] for n in read if n in fn.__globals__]
      visible += [sys.modules[m] for m in imported if m in sys.modules]
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
      # What a function writes, a call counter say, is not an input of it.
      if name not in written:
        try:
          visible.append(cell.cell_contents)
        except ValueError:  # The cell is still empty.
          visible.append(None)
    visible.extend(fn.__defaults__ or ())
    visible.extend((fn.__kwdefaults__ or {}).values())
    return self._all(code, visible, depth)

  def _module(self, module, depth):
    if _is_library(module.__name__):
      return ('object', id(module))
    # Only what is named: a module has much that nobody reads.
    return self._attributes_of(vars(module), self._known, depth)

  def _object(self, obj, depth):
    """An object, or a class: itself, and those of its attributes that count."""
    itself = ('object', id(obj))
    owner = obj if isinstance(obj, type) else type(obj)
    parts = [itself]
    if _is_library(owner.__module__):
      if not isinstance(obj, type):
        parts.append(self._attributes_of(_state(obj), self._known, depth))
      return tuple(parts)
    names, bases = self._attributes, _bases(owner)
    if len(bases) < len(owner.__mro__) - 1:
      # What a library keeps in it for itself is much.
      names = self._known
    if not isinstance(obj, type):
      parts.append(self._attributes_of(_state(obj), names, depth))
    # What a method is found in, and what `super()` finds.
    for base in bases:
      found = {k: v for k, v in vars(base).items() if k not in _OF_EVERY_CLASS}
      if names is None:
        parts.append(self._attributes_of(found, None, depth))
      else:
        # Operators are named by nobody.
        operators = {name for name in found if name.startswith('__')}
        named = names | operators | _CALLED_BY_LIBRARIES
        parts.append(self._attributes_of(found, named, depth))
    return tuple(parts)

  def _attributes_of(self, attributes, names, depth):
    return tuple(
      (name, self.value(value, depth))
      for name, value in sorted(attributes.items())
      if names is None or name in names
    )


# What says nothing about a class, or is seen elsewhere.
_OF_EVERY_CLASS = (
  '__dict__',
  '__doc__',
  '__module__',
  '__weakref__',
  '_abc_impl',
)


def _bases(owner):
  """The classes that a class is made of, without those of libraries."""
  return [base for base in owner.__mro__ if not _is_library(base.__module__)]


def _state(obj):
  """What an object holds: its dictionary and its slots."""
  state = {
    name: value
    for name, value in list(getattr(obj, '__dict__', {}).items())
    if isinstance(name, str) and not name.startswith(_TRACKING)
  }
  for base in type(obj).__mro__:
    for name, slot in vars(base).items():
      if isinstance(slot, types.MemberDescriptorType):
        state[name] = getattr(obj, name, None)
  return state


def _array(value):
  # Costs no more than the copy that TensorFlow makes of an array it is given.
  content = hashlib.blake2b(np.ascontiguousarray(value)).digest()
  if isinstance(value, np.ma.MaskedArray):
    content += hashlib.blake2b(np.ma.getmaskarray(value)).digest()
  return ('array', value.shape, value.dtype.str, content)


def _is_library(module):
  return (
    isinstance(module, str)
    and module.partition('.')[0] in _LIBRARIES
    and not module.startswith(_NOT_LIBRARIES)
  )


@functools.lru_cache(maxsize=4096)
def _names(code):
  """The names that a code object, and those inside it, look up and assign.

  Args:
    code: A code object.

  Returns:
    read: Tuple of str, sorted: globals, attributes and what is imported.
    written: Frozenset of str: variables of enclosing scopes that are assigned.
    imported: Tuple of str: modules.
  """
  read, written, imported = set(), set(), set()
  for instruction in dis.get_instructions(code):
    name, value = instruction.opname, instruction.argval
    if name in ('STORE_DEREF', 'STORE_GLOBAL'):
      written.add(value)
    elif name == 'IMPORT_NAME':
      imported.add(value)
    elif isinstance(value, str) and name not in ('STORE_ATTR', 'LOAD_CONST'):
      read.add(value)
  for const in code.co_consts:
    if isinstance(const, types.CodeType):
      inner_read, inner_written, inner_imported = _names(const)
      read.update(inner_read)
      written.update(inner_written)
      imported.update(inner_imported)
  # A variable of its own is not one that it sees.
  written.difference_update(code.co_cellvars)
  read -= written
  return tuple(sorted(read)), frozenset(written), tuple(sorted(imported))
