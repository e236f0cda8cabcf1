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
"""The matrix of a linear map that is the same for all samples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import local, sweep
from tfp_diag.diagonal.linear_map import LinearMap
from tfp_diag.diagonal.vectorize import vectorized_map
from tfp_diag.internal import batching
from tfp_diag.sparsity import traits


def basis_vector(k: Any, tensor: tf.Tensor, rank: int, size: int) -> tf.Tensor:
  """One for element k of each sample of a Tensor, zero for all others.

  Args:
    k: Python int or scalar integer Tensor.
    tensor: Tensor of shape `sample_shape + event_shape`.
    rank: Python int, the number of sample dimensions.
    size: Python int, how many elements an event has: the graph may not know.

  Returns:
    Tensor of the shape and dtype of `tensor`.
  """
  one_hot = tf.one_hot(k, size, dtype=tensor.dtype)
  event = tf.reshape(one_hot, tf.shape(tensor)[rank:])
  return tf.broadcast_to(event, tf.shape(tensor))


def images_of_basis(
  apply: Callable, tensors: Sequence, rank: int, dtype: tf.DType
) -> tf.Tensor:
  """What a linear map makes of each basis vector.

  The basis vectors are the seeds of different samples, so that one pass gives
  as many images as there are samples.

  Args:
    apply: Python callable, a list of seeds, shaped as `tensors`, to a Tensor of
      shape `sample_shape + some_shape`. It is linear, and maps each sample in
      the same way.
    tensors: List of Tensors of shapes `sample_shape + event_shape_i`, as which
      the seeds are shaped; each element of an event is a basis vector.
    rank: Python int, the number of sample dimensions.
    dtype: `tf.DType` of the result.

  Returns:
    Tensor of shape `[number of basis vectors, size of some_shape]`.
  """
  sample_shape = tf.shape(tensors[0])[:rank]
  num_samples = tensors[0].shape[:rank].num_elements()
  if num_samples is None:
    num_samples = tf.reduce_prod(sample_shape)
  sample = tf.reshape(tf.range(num_samples), sample_shape)

  def some_images(k):
    seeds, start = [], k * num_samples
    for tensor in tensors:
      event_shape = tf.shape(tensor)[rank:]
      size = tf.reduce_prod(event_shape)
      coordinate = tf.reshape(tf.range(size), event_shape)
      here = batching.with_axes(sample, tensor.shape.rank - rank) + start
      seeds.append(tf.cast(tf.equal(coordinate, here), tensor.dtype))
      start -= size
    images = tf.cast(apply(seeds), dtype)
    size = tf.reduce_prod(tf.shape(images)[rank:])
    return tf.reshape(images, [num_samples, size])

  total = tf.add_n([tf.reduce_prod(tf.shape(t)[rank:]) for t in tensors])
  static = [t.shape[rank:].num_elements() for t in tensors]
  if isinstance(num_samples, int) and num_samples and None not in static:
    count = -(-sum(static) // num_samples)
    if count <= sweep.MAX_UNROLLED:
      images = tf.concat([some_images(k) for k in range(count)], axis=0)
      return images[:total]
  count = -(-total // tf.maximum(num_samples, 1))
  images = sweep.vectorized_or_loop(
    lambda: vectorized_map(some_images, tf.range(count)),
    lambda: tf.map_fn(some_images, tf.range(count), fn_output_signature=dtype),
  )
  shape = tf.shape(images)
  images = tf.reshape(images, [shape[0] * shape[1], shape[2]])
  # Without a sample there is no seed, and nothing that depends on its image.
  missing = tf.maximum(total - shape[0] * shape[1], 0)
  paddings: Any = [[0, missing], [0, 0]]
  return tf.pad(images, paddings)[:total]


def columns(
  derivative: LinearMap,
  tensors: Sequence,
  xs: Sequence,
  rank: int,
  axes: Sequence[int],
) -> list:
  """The transposed matrices of the linear maps from some Tensors to others.

  All of them by the same passes.

  Args:
    derivative: `LinearMap` of the function in which they are computed.
    tensors: List of Tensors, each the same linear function of `xs` for each
      sample.
    xs: List of Tensors.
    rank: Python int, the number of sample dimensions.
    axes: List of Python ints, where these begin in each of `tensors`.

  Returns:
    List of Tensors of shape `[number of coordinates, elements per sample]`.
  """
  forward = derivative.between(tensors, xs).transposed()
  sizes = [
    num_elements(samples_first(tensor, rank, axis), rank)
    for tensor, axis in zip(tensors, axes)
  ]
  dtype = local.widest(tensors)

  def apply(seeds):
    rows = []
    for image, axis, size in zip(forward.images(seeds), axes, sizes):
      image = samples_first(image, rank, axis)
      shape = tf.concat([tf.shape(image)[:rank], [size]], axis=0)
      rows.append(tf.cast(tf.reshape(image, shape), dtype))
    return tf.concat(rows, axis=-1)

  found = images_of_basis(apply, xs, rank, dtype)
  pieces = tf.split(found, sizes, axis=1)
  return [tf.cast(piece, t.dtype) for piece, t in zip(pieces, tensors)]


def num_elements(x: tf.Tensor, rank: int) -> Any:
  """The number of elements per sample."""
  size = x.shape[rank:].num_elements()
  return tf.reduce_prod(tf.shape(x)[rank:]) if size is None else size


def samples_first(
  tensor: tf.Tensor, rank: int, axis: int, is_back: bool = False
) -> tf.Tensor:
  """A Tensor whose sample dimensions are moved to the front, or back again.

  Args:
    tensor: Tensor.
    rank: Python int, the number of sample dimensions.
    axis: Python int, where they begin.
    is_back: Python bool, whether they are at the front, and move to `axis`.

  Returns:
    Tensor.
  """
  if not axis:
    return tensor
  order = traits.samples_first(axis, rank, tensor.shape.rank)
  return tf.transpose(tensor, np.argsort(order) if is_back else order)
