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
"""How the parts of a state lie in one vector per chain."""

import functools

import tensorflow as tf

from tfp_diag.internal import batching, nest
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.mcmc.kernels.arguments import as_parts, given_as, named


class VectorLayout:
  """Joins the parts of a state into one vector per chain, and back."""

  def __init__(self, state, chain_ndims):
    """Takes the layout of a state.

    Args:
      state: Tensor or list of Tensors, the parts, of static event shapes and
        one dtype.
      chain_ndims: Python `int`, the number of leading chain axes.

    Raises:
      ValueError: if an event shape is not static.
    """
    self._state = state
    self._event_shapes = [x.shape[chain_ndims:] for x in as_parts(state)]
    for i, shape in enumerate(self._event_shapes):
      if not shape.is_fully_defined():
        raise ValueError(
          f'Part {i} of the state has the event shape {shape}, but the size of '
          'the matrix must be known; use `tf.ensure_shape`.'
        )
    self._chain_ndims = chain_ndims

  @property
  def size(self):
    """The number of coordinates of all parts."""
    return sum(shape.num_elements() for shape in self._event_shapes)

  @property
  def dtype(self):
    """That of the first part."""
    return as_parts(self._state)[0].dtype

  def join(self, state):
    """The state as one Tensor of shape [chain shape..., size]."""
    return batching.joined(as_parts(state), self._chain_ndims)

  def split(self, vector):
    """The parts of a Tensor [any shape..., size], as the state has them."""
    parts = batching.separated(
      vector, [shape.as_list() for shape in self._event_shapes]
    )
    # What has no elements depends on none: XLA (TensorFlow 2.21) ends the
    # process where derivatives pass through it.
    parts = [
      x if shape.num_elements() else tf.stop_gradient(x)
      for x, shape in zip(parts, self._event_shapes)
    ]
    return tf.nest.pack_sequence_as(self._state, parts)

  def of_vector(self, target_log_prob_fn):
    """A log density of the parts as one of the vector.

    Args:
      target_log_prob_fn: Callable of the parts.

    Returns:
      Callable of the vector.
    """
    return named(
      functools.partial(_log_prob_of_vector, target_log_prob_fn, self),
      given_as(target_log_prob_fn),
    )


@not_converted
def _log_prob_of_vector(target_log_prob_fn, layout, vector):
  parts = as_parts(layout.split(vector))
  return nest.call_as_caller(
    target_log_prob_fn, parts, given_as(target_log_prob_fn)
  )
