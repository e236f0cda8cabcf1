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
import inspect

import tensorflow as tf

from tfp_diag.internal import arguments

__all__ = [
  'call_fn',
  'call_traceable',
  'check_takes',
  'flatten',
  'pack_as',
  'structure',
  'takes_variables',
]


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
  """Raises a TypeError if `call_fn` cannot give `fn` the state.

  Args:
    name: Python str, the argument that the function is.
    fn: Python callable.
    xs: The state.
    what: Python str, what it is given.
  """

  def given(*args, **kwargs):
    return args, kwargs

  args, kwargs = call_fn(given, xs)
  arguments.check_takes(name, fn, args, kwargs, what)


def call_traceable(fn, xs):
  """Calls `fn` as `call_fn` does, converted by AutoGraph where it has to be.

  Args:
    fn: Python callable. May branch in Python on the value of a Tensor.
    xs: The state.

  Returns:
    What `fn` returns.

  Raises:
    TypeError: if `fn` needs the value of a Tensor in Python.
  """
  try:
    return _call_converted(fn, xs)
  except (AttributeError, NotImplementedError, TypeError, ValueError) as e:
    # TensorFlow has no type of its own for these.
    if not any(hint in str(e) for hint in _NEEDS_VALUES):
      raise
    raise TypeError(
      '`fn` needs the value of a Tensor in Python: it calls NumPy, `.numpy()`, '
      '`float()` or the like. What leaves TensorFlow is a constant to every '
      'derivative. Write that part of `fn` with TensorFlow ops, or take it out '
      'of `fn` if it does not depend on `xs`. (TensorFlow says: '
      f'{arguments.reason(e)})'
    ) from e


_NEEDS_VALUES = (
  'SymbolicTensor',
  'Cannot convert a symbolic',
  'numpy() is only available when eager',
  'can only be converted to Python scalars',
)


def _call_converted(fn, xs):
  try:
    return call_fn(fn, xs)
  except tf.errors.OperatorNotAllowedInGraphError:
    # Converts `fn` where it is called: unlike `fn`, which may be a method
    # or a partial, `call_fn` is a plain function.
    return tf.autograph.to_graph(call_fn)(fn, xs)


def structure(xs):
  """A hashable value that tells structures apart, whatever the parts are."""
  return repr(pack_as(xs, ['.'] * len(flatten(xs))))


def takes_variables(fn, parts):
  """Whether `fn()` computes from the Variables `parts` what it returns."""
  if not all(isinstance(p, tf.Variable) for p in parts):
    return False
  try:
    inspect.signature(fn).bind()
  except (TypeError, ValueError):  # A builtin may have no signature.
    return False
  return True
