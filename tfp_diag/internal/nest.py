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
"""States: a Tensor, or a list, tuple, dict or namedtuple of parts."""

import collections.abc
import contextlib
import inspect

import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.internal.not_converted import converted_for_caller


def flatten(xs):
  """The parts of a state, as a list."""
  return tf.nest.flatten(xs)


def pack_as(structure, parts):
  """Puts `parts` into the structure of a state."""
  return tf.nest.pack_sequence_as(structure, list(parts))


def call_fn(fn, xs):
  """Calls `fn` with a state, in the manner of `tfp.mcmc`.

  A list or tuple is spread over the positional arguments, a dict over the
  keyword arguments; a Tensor, or a namedtuple, is the only argument.

  Args:
    fn: Python callable.
    xs: The state.

  Returns:
    What `fn` returns.
  """
  if isinstance(xs, collections.abc.Mapping):
    return fn(**xs)
  is_namedtuple = isinstance(xs, tuple) and hasattr(xs, '_fields')
  if isinstance(xs, (list, tuple)) and not is_namedtuple:
    return fn(*xs)
  return fn(xs)


def check_takes(name, fn, xs, what='the parts of `xs`'):
  """Raises a TypeError if `call_fn` cannot call `fn` with the state.

  Args:
    name: Python str, the name of the argument that is the function.
    fn: Python callable.
    xs: The state.
    what: Python str, what the arguments of `fn` are, for the message.
  """

  def given(*args, **kwargs):
    return args, kwargs

  if isinstance(xs, collections.abc.Mapping):
    for key in xs:
      if not isinstance(key, str):
        raise TypeError(
          f'A key of the dict that has {what} is {arguments.shown(key)}, but '
          f'keys are the names of arguments of `{name}`. Take strings.'
        )
  args, kwargs = call_fn(given, xs)
  arguments.check_takes(name, fn, args, kwargs, what)


def call_traceable(fn, xs, name='fn'):
  """Calls `fn` as `call_fn` does, converted by AutoGraph if necessary.

  Args:
    fn: Python callable. May branch in Python on the value of a Tensor.
    xs: The state.
    name: Python str, the name of the argument that `fn` is.

  Returns:
    What `fn` returns.

  Raises:
    TypeError: if `fn` needs the value of a Tensor in Python.
  """
  with _in_words(name):
    return _call_converted(fn, xs)


def call_as_caller(fn, xs, name):
  """As `call_traceable`; at once where the caller of the library has AutoGraph.

  What `fn` does before a branch on a Tensor is not done twice there.
  """
  converted = converted_for_caller(call_fn)
  with _in_words(name):
    return _call_converted(fn, xs) if converted is None else converted(fn, xs)


@contextlib.contextmanager
def _in_words(name):
  try:
    yield
  except (AttributeError, NotImplementedError, TypeError, ValueError) as e:
    # TensorFlow has no error type of its own for this.
    hints = _METHODS if isinstance(e, AttributeError) else _NEEDS_VALUES
    is_said = str(e).startswith(f'`{name}` needs the value')
    if is_said or not any(hint in str(e) for hint in hints):
      raise
    raise TypeError(
      f'`{name}` needs the value of a Tensor in Python: it calls NumPy, '
      '`.numpy()`, `float()` or the like. What leaves TensorFlow is a constant '
      f'to every derivative. Write that part of `{name}` with TensorFlow ops, '
      f'or take it out of `{name}` if it depends on no argument. (TensorFlow '
      f'says: {arguments.reason(e)})'
    ) from e


_NEEDS_VALUES = (
  'SymbolicTensor',
  'Cannot convert a symbolic',
  'numpy() is only available when eager',
  'can only be converted to Python scalars',
)
_METHODS = tuple(
  f"has no attribute '{method}'" for method in ('numpy', 'item', 'tolist')
)


def _call_converted(fn, xs):
  try:
    return call_fn(fn, xs)
  except TypeError as e:
    is_for_autograph = isinstance(
      e, tf.errors.OperatorNotAllowedInGraphError
    ) or any(hint in str(e) for hint in _CONVERTED)
    if not is_for_autograph:
      raise
  # Converts `fn` where it is called: unlike `fn`, which may be a method or a
  # partial, `call_fn` is a plain function.
  return tf.autograph.to_graph(call_fn)(fn, xs)


# What TensorFlow says of `range` and of `len`, which AutoGraph has for Tensors.
_CONVERTED = (
  "'SymbolicTensor' object cannot be interpreted as an integer",
  'len is not well defined for a symbolic Tensor',
)


def structure(xs):
  """A str that is equal for states of equal structure, whatever the parts."""
  return repr(pack_as(xs, ['.'] * len(flatten(xs))))


def skeleton(xs):
  """What is equal for structures that are made of the very same types.

  Args:
    xs: A structure.

  Returns:
    Hashable; None for what is no structure.
  """
  if isinstance(xs, collections.abc.Mapping):
    items = tuple((key, skeleton(value)) for key, value in xs.items())
    return type(xs), items
  if isinstance(xs, (list, tuple)):
    return type(xs), tuple(map(skeleton, xs))
  if tf.nest.is_nested(xs):
    return type(xs), structure(xs)
  # Of several Tensors, such as a sparse one.
  return None if tf.is_tensor(xs) else type(xs)


def takes_variables(fn, parts):
  """Whether all parts are Variables, and `fn` can be called as `fn()`."""
  return all(isinstance(p, tf.Variable) for p in parts) and _binds(fn)


def takes_any_number(fn, xs):
  """Whether `call_fn` can call `fn` with any number of parts."""
  wanted = inspect.Parameter.VAR_POSITIONAL
  if isinstance(xs, collections.abc.Mapping):
    wanted = inspect.Parameter.VAR_KEYWORD
  parameters = inspect.signature(fn).parameters.values()
  return any(p.kind == wanted for p in parameters)


def may_take(fn, xs):
  """Whether `call_fn` can call `fn` with the state."""
  return call_fn(lambda *args, **kwargs: _binds(fn, *args, **kwargs), xs)


def _binds(fn, *args, **kwargs):
  try:
    inspect.signature(fn).bind(*args, **kwargs)
  except (TypeError, ValueError):  # A builtin may have no signature.
    return False
  return True
