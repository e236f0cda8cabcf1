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
"""Ops whose value is known from the shapes of their inputs."""

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.registry import register_expansion, register_facts
from tfp_diag.sparsity.value import ListSummary, TensorList, Value

register_facts('Const', is_constant=True)
register_facts('Placeholder', is_placeholder=True)
register_facts(
  *('OnesLike', 'Rank', 'Shape', 'ShapeN', 'Size', 'ZerosLike'),
  measured_inputs=slice(None),
)
# Not moved, but added up: what varies or is bounded is found in the same way.
register_facts('ConcatOffset', moved_inputs=slice(1, None))


@register_expansion('Shape', 'ShapeN')
def _shapes(walker, scope, instruction, inputs):
  """The shape of each input, also of what depends on xs."""
  dtype = instruction.dtypes[0]
  results = []
  for k, value in enumerate(inputs):
    result = _from_shape(value, lambda shape: np.array(shape), dtype)
    varies = instruction.varying_sizes(k)
    if varies.any():
      result.varies = varies if varies.ndim else True
      if isinstance(value, Value) and value.shape is not None and varies.ndim:
        least = [walker.least_size(value, n) for n in value.shape]
        result.limit(
          np.where(varies, least, value.shape),
          np.where(varies, np.inf, value.shape),
        )
    result.source = instruction, inputs, k
    results.append(result)
  return results


@register_expansion('Rank')
def _rank(walker, scope, instruction, inputs):
  """The number of dimensions."""
  return [_from_shape(inputs[0], len, instruction.dtypes[0])]


@register_expansion('Size')
def _size(walker, scope, instruction, inputs):
  """The number of elements."""
  result = _from_shape(inputs[0], np.prod, instruction.dtypes[0])
  if instruction.varying_sizes(0).any():
    result.varies = True
  result.source = instruction, inputs, 0
  return [result]


def _from_shape(value, function, dtype):
  dtype = dtype.as_numpy_dtype
  if not isinstance(value, Value):
    return Value(None, tf.as_dtype(dtype))
  if value.shape is not None:
    return Value.constant(np.asarray(function(value.shape), dtype))
  return Value.computed(
    None,
    tf.as_dtype(dtype),
    lambda tensor: np.asarray(function(tensor.shape), dtype),
    [value],
  )


@register_expansion('OnesLike', 'ZerosLike')
def _filled(walker, scope, instruction, inputs):
  """Ones or zeros, known as such."""
  value, dtype = inputs[0], instruction.dtypes[0]
  number = int(instruction.type == 'OnesLike')
  if isinstance(value, ListSummary):
    return [ListSummary(value.length, None)]
  if isinstance(value, TensorList):
    return [TensorList((None,) * len(value.items))]
  if dtype == tf.variant or value.shape is None:
    return [Value(instruction.shapes[0], dtype)]
  filled = Value(
    value.shape,
    dtype,
    compute=lambda: np.full(value.shape, number, dtype.as_numpy_dtype),
  )
  if instruction.varying_sizes(0).any():
    filled.varies = filled.is_uniform = True
    filled.source = instruction, inputs, 0
  return [filled]
