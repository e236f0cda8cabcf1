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
call with the same function, as `fingerprint` decides by what a graph would hold
on to. A lambda that is written anew in each iteration of a loop is therefore
traced once, and a Python number that changes between calls is not baked in by
mistake.
"""

import collections

import tensorflow as tf

from tfp_diag.internal.fingerprint import fingerprint

__all__ = ['call']

# How many functions are kept; the least recently used is dropped first.
_MAX_FUNCTIONS = 256

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
