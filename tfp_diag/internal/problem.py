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
"""A function, its state and its sample shape: what every entry point checks."""

import tensorflow as tf

from tfp_diag.internal import arguments, batching, compiled, nest

__all__ = ['Problem']


class Problem:
  """A function with the state at which it is differentiated.

  Attributes:
    fn: Python callable.
    xs: The state, as the caller gave it; only its structure matters.
    parts: List of Tensors or Variables.
    rank: Python int, the number of sample dimensions, or None.
    is_closure: Whether `fn` takes no arguments and reads the Variables `parts`.
  """

  def __init__(self, fn, xs, sample_shape):
    arguments.check_callable('fn', fn)
    self.fn = fn
    self.xs = xs
    self.parts = batching.convert_parts(nest.flatten(xs))
    self.rank = None
    if sample_shape is not None:
      batching.check_sample_shape(self.parts, sample_shape)
      self.rank = batching.sample_rank(sample_shape)
    self.is_closure = nest.takes_variables(fn, self.parts)

  def pack(self, parts):
    """Puts one entry per part into the structure of the state."""
    return nest.pack_as(self.xs, parts)

  def value(self, parts):
    """What `fn` returns for the Tensors or Variables `parts`."""
    return nest.call_traceable(
      self.fn, [] if self.is_closure else self.pack(parts)
    )

  def run(self, key, body, extra=(), extra_specs=None):
    """Calls `body(parts, *extra)`; in eager mode as a graph that is remembered.

    Args:
      key: Tuple, what else than `fn`, the structure of the state and the number
        of sample dimensions decides what `body` does.
      body: Python callable of a list of parts and of `extra`, to a structure
        of Tensors.
      extra: List of Tensors.
      extra_specs: List of `tf.TensorSpec`s of `extra`. Default: their own.

    Returns:
      What `body` returns.
    """
    count = 0 if self.is_closure else len(self.parts)
    tensors = [*self.parts[:count], *extra]
    tensors = [tf.convert_to_tensor(t) for t in tensors]

    def flat_body(*tensors):
      parts = list(tensors[:count]) if count else self.parts
      return body(parts, *tensors[count:])

    if not tf.executing_eagerly():
      return flat_body(*tensors)
    if extra_specs is None:
      extra_specs = [tf.TensorSpec(e.shape, e.dtype) for e in tensors[count:]]
    return compiled.call(
      (*key, nest.structure(self.xs), self.rank),
      [self.fn, *self.parts] if self.is_closure else [self.fn],
      flat_body,
      tensors,
      specs=[
        *(tf.TensorSpec(t.shape, t.dtype) for t in tensors[:count]),
        *extra_specs,
      ],
    )
