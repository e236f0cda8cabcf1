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
"""Sample shapes and event shapes, static where they are known."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments

SampleShape = (
  tf.TensorShape | Sequence[int | None] | int | tf.Tensor | np.ndarray | None
)


def with_shape(x: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
  """Sets the static shape of a Tensor, where TensorFlow has lost it.

  `tf.ensure_shape` would be checked at run time, and tangents do not pass
  through it in a graph (TensorFlow 2.21).
  """
  x = tf.identity(x)
  x.set_shape(shape)
  return x


def with_axes(x: tf.Tensor, count: int) -> tf.Tensor:
  """Adds axes of size one at the end, as to a Tensor of the sample shape."""
  index: Any = (..., *[tf.newaxis] * count)
  return x[index]


def sum_to(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
  """The sum of `x` over the axes along which `like` was broadcast to it."""
  if not like.shape.is_fully_defined() or x.shape.rank is None:
    # A size that is not known may be one.
    before, after = tf.shape(x), tf.shape(like)
    axes = tf.raw_ops.BroadcastGradientArgs(s0=before, s1=after).r1
    return tf.reshape(tf.reduce_sum(x, axes), after)
  missing = x.shape.rank - like.shape.rank
  if missing:
    x = tf.reduce_sum(x, axis=list(range(missing)))
  axes = [
    axis
    for axis, (size, own) in enumerate(zip(x.shape, like.shape))
    if own == 1 and size != 1
  ]
  return tf.reduce_sum(x, axis=axes, keepdims=True) if axes else x


def joined(parts, rank):
  """Parts as one Tensor, `sample_shape + [n]`, their events flattened.

  Args:
    parts: List of Tensors of shape `sample_shape + event_shape_i`.
    rank: Python int, the number of sample dimensions.
  """
  flat = []
  for part in parts:
    size = part.shape[rank:].num_elements()
    if size is None:
      size = tf.reduce_prod(tf.shape(part)[rank:])
    shape = tf.concat([tf.shape(part)[:rank], [size]], 0)
    flat.append(tf.reshape(part, shape))
  return tf.concat(flat, -1)


def separated(x, event_shapes):
  """The parts that `joined` has joined.

  Args:
    x: Tensor of shape `sample_shape + [n]`.
    event_shapes: List of lists of int, of the parts.

  Returns:
    List of Tensors.
  """
  sizes = [tf.TensorShape(shape).num_elements() for shape in event_shapes]
  parts = []
  for piece, event_shape in zip(tf.split(x, sizes, axis=-1), event_shapes):
    shape = tf.concat(
      [tf.shape(piece)[:-1], tf.constant(event_shape, tf.int32)], 0
    )
    static_shape = piece.shape[:-1].concatenate(event_shape)
    parts.append(tf.ensure_shape(tf.reshape(piece, shape), static_shape))
  return parts


def broadcasts_to(shape: tf.TensorShape, target: tf.TensorShape) -> bool:
  """Whether Tensors of a shape broadcast to another shape, as far as known."""
  try:
    joint = tf.broadcast_static_shape(shape, target)
  except ValueError:
    return False
  return joint.is_compatible_with(target)


def check_distinct(variables: list) -> None:
  """Raises a ValueError if two parts are the same `tf.Variable`."""
  handles = [id(v.handle) for v in variables]
  for i, handle in enumerate(handles):
    first = handles.index(handle)
    if first < i:
      raise ValueError(
        f'Parts {first} and {i} of `xs` are the same `tf.Variable`, '
        f'{variables[i].name!r}. A function that reads Variables cannot tell '
        'them apart: pass it once.'
      )


def convert_parts(parts, what='xs') -> list:
  """Converts the parts of a state to floating Tensors.

  Args:
    parts: List of Tensors, `tf.Variable`s, `tf.TensorSpec`s, NumPy arrays or
      Python numbers.
    what: Python str. The argument's name, for the error.

  Returns:
    List of Tensors. A `tf.Variable` or `tf.TensorSpec` stays as it is; a
    variable of Keras is replaced by its `tf.Variable`.

  Raises:
    TypeError: if a part is not floating.
    ValueError: if there is no part, or the rank of one is unknown.
  """
  parts = [_unwrapped(p) for p in parts]
  parts = [
    p
    if isinstance(p, (tf.Variable, tf.TensorSpec))
    else arguments.as_tensor(
      # Python numbers become float32, and arrays keep their dtype.
      f'Part {i} of `{what}`',
      p,
      dtype_hint=None if hasattr(p, 'dtype') else tf.float32,
    )
    for i, p in enumerate(parts)
  ]
  check_parts(parts, what)
  return parts


def _unwrapped(part):
  """The `tf.Variable` inside a variable of Keras 3; else the part itself."""
  value = getattr(part, 'value', None)
  return value if isinstance(value, tf.Variable) else part


def check_parts(parts, what='xs'):
  """Raises if the parts are not floating, or their rank is not known.

  Args:
    parts: List of Tensors, `tf.Variable`s or `tf.TensorSpec`s.
    what: Python str. The argument's name, for the error.

  Raises:
    TypeError: if a part is not floating.
    ValueError: if there is no part, or the rank of one is unknown.
  """
  if not parts:
    raise ValueError(f'`{what}` has no part; at least one Tensor is needed.')
  for i, p in enumerate(parts):
    if not p.dtype.is_floating:
      raise TypeError(
        f'Part {i} of `{what}` has dtype {p.dtype.name}; a derivative needs a '
        'floating dtype. Cast it, or pass it to `fn` through a closure.'
      )
    if p.shape.rank is None:
      raise ValueError(
        f'Part {i} of `{what}` has an unknown rank, so its sample and event '
        'dimensions cannot be told apart. Give it one with `tf.ensure_shape`; '
        'the sizes may stay unknown.'
      )


def sample_sizes(sample_shape, name='sample_shape'):
  """The sizes of the dimensions of `sample_shape`.

  Args:
    sample_shape: `None` (no dimensions), a `tf.TensorShape`, a list or tuple of
      sizes, an integer, or an integer vector (a Tensor or an array).
    name: Python str, the name of the argument.

  Returns:
    List with an int for each dimension, or None where the size is not known.

  Raises:
    ValueError: if it is not a shape, or its rank is unknown.
  """
  if sample_shape is None:
    return []
  if isinstance(sample_shape, tf.TensorShape):
    sizes = None if sample_shape.rank is None else sample_shape.as_list()
  elif isinstance(sample_shape, (list, tuple)):
    sizes = [_static_size(s, sample_shape, name) for s in sample_shape]
  else:
    sizes = _sizes_of_vector(sample_shape, name)
  if sizes is None:
    raise ValueError(
      f'`{name}` is {sample_shape}, whose number of dimensions is not '
      'known while the graph is built. Pass a list of sizes, or a vector of '
      'static length; the sizes themselves may be unknown.'
    )
  if any(s is not None and s < 0 for s in sizes):
    raise _no_shape(sample_shape, name)
  return sizes


def sample_rank(sample_shape):
  """The number of dimensions of `sample_shape`.

  Args:
    sample_shape: As in `sample_sizes`.

  Returns:
    Python int.

  Raises:
    ValueError: if the number is not known statically.
  """
  return len(sample_sizes(sample_shape))


def _static_size(size, sample_shape, name):
  if tf.is_tensor(size):
    size = tf.get_static_value(size)
  try:
    if isinstance(size, bool):
      raise TypeError
    return None if size is None else operator.index(size)
  except TypeError as e:
    raise _no_shape(sample_shape, name) from e


def _sizes_of_vector(sample_shape, name):
  try:
    vector = tf.convert_to_tensor(sample_shape)
  except (TypeError, ValueError) as e:
    raise _no_shape(sample_shape, name) from e
  if not vector.dtype.is_integer or (vector.shape.rank or 0) > 1:
    raise _no_shape(sample_shape, name)
  static = tf.get_static_value(vector)
  if static is not None:
    return [int(s) for s in np.ravel(static)]
  if vector.shape.rank is None or not vector.shape.is_fully_defined():
    return None
  return [None] * vector.shape.num_elements()


def _no_shape(sample_shape, name):
  return ValueError(
    f'`{name}` is {arguments.shown(sample_shape)}, which is no shape. Pass a '
    'list of sizes like [3, 5], an integer vector like `tf.shape(value)`, or '
    'None.'
  )


def event_shapes(xs, rank):
  """The event shapes of `xs`.

  Args:
    xs: List of Tensors of known rank.
    rank: Python int, the number of sample dimensions.

  Returns:
    List of `tf.TensorShape`s.

  Raises:
    ValueError: if a part has fewer than `rank` dimensions.
  """
  for i, x in enumerate(xs):
    if x.shape.rank < rank:
      raise ValueError(
        f'Part {i} of `xs` has shape {x.shape}, but `sample_shape`, the sample '
        f'shape, has {rank} dimensions and every part starts with it. Pass the '
        'shape that the parts share, or None if nothing is shared.'
      )
  return [x.shape[rank:] for x in xs]


def check_sample_shape(xs, sample_shape):
  """Raises a ValueError if a part's shape cannot begin with `sample_shape`.

  Args:
    xs: List of Tensors.
    sample_shape: As in `sample_sizes`.
  """
  given = tf.TensorShape(sample_sizes(sample_shape))
  rank = given.rank
  for i, x in enumerate(xs):
    event_shapes([x], rank)
    if not given.is_compatible_with(x.shape[:rank]):
      raise ValueError(
        f'`sample_shape` is {given}, but part {i} of `xs` has shape {x.shape}, '
        f'which starts with {x.shape[:rank]}. Every part has the shape '
        '`sample_shape + event_shape`.'
      )


def broadcast_to_part(y, x, index, name=None):
  """Broadcasts `y` to the shape of the part `x`, if that is possible.

  Args:
    y: Tensor, or what converts to one.
    x: Tensor.
    index: Python int, the number of the part, for the error.
    name: Python str, the name of the function that returned `y`, or None.

  Returns:
    Tensor of the shape and dtype of `x`.

  Raises:
    TypeError: if `y` is not floating.
    ValueError: if `y` is None, or its static shape does not broadcast to that
      of `x`.
  """
  what = f'Part {index} of `ys`'
  if name is not None:
    what += f', which `{name}` has returned,'
  if y is None:
    raise ValueError(
      f'{what} is None; a Tensor that broadcasts to the shape {x.shape} of '
      f'part {index} of `xs` is needed. Does `{name or "fn"}` return?'
    )
  y = arguments.as_tensor(what, y, dtype_hint=x.dtype)
  if not y.dtype.is_floating:
    raise TypeError(
      f'{what} has dtype {y.dtype.name}; a derivative needs a floating dtype. '
      'Return that part in another way, or cast it.'
    )
  if not broadcasts_to(y.shape, x.shape):
    raise ValueError(
      f'{what} has shape {y.shape}, which does not broadcast to the shape '
      f'{x.shape} of part {index} of `xs`. A diagonal pairs each coordinate of '
      '`xs` with one of `ys`: return one value per coordinate.'
    )
  if y.dtype != x.dtype:
    y = tf.cast(y, x.dtype)
  if y.shape.is_fully_defined() and y.shape == x.shape:
    return y
  return tf.broadcast_to(y, tf.shape(x))


def check_value(value, xs, rank, name='fn'):
  """Raises a ValueError if `value` is not one scalar per sample.

  Args:
    value: Tensor, what the function returned.
    xs: List of Tensors.
    rank: Python int, the number of sample dimensions, or None if any is valid.
    name: Python str, the name of the argument that is the function.
  """
  if value.shape.rank is None or not value.dtype.is_floating:
    raise ValueError(
      f'`{name}` returned {value} of dtype {value.dtype.name}; one floating '
      'scalar per sample is needed, '
      'in a Tensor of known rank.'
    )
  if rank is not None and value.shape.rank != rank:
    raise ValueError(
      f'`{name}` returned a value of shape {value.shape}, but `sample_shape` '
      f'has {rank} dimensions, and a Hessian needs one scalar per sample. Sum '
      'over the event dimensions, or pass the right `sample_shape`.'
    )
  for i, x in enumerate(xs):
    rank = value.shape.rank
    if x.shape.rank < rank or not value.shape.is_compatible_with(
      x.shape[:rank]
    ):
      raise ValueError(
        f'`{name}` returned a value of shape {value.shape}, which does not '
        f'lead the shape {x.shape} of part {i} of `xs`. A Hessian needs one '
        'scalar per sample: sum over the event dimensions.'
      )


def align(ys, xs, name=None):
  """Pairs what a function returned with the parts of its state.

  Args:
    ys: Tensor or list of Tensors. A single one is used for every part.
    xs: List of Tensors.
    name: Python str, the name of the function that returned `ys`, or None.

  Returns:
    List of Tensors, one per part, of the shape and dtype of the part.
  """
  ys = list(ys) if isinstance(ys, (list, tuple)) else [ys]
  if len(ys) not in (1, len(xs)):
    raise ValueError(
      f'There are {len(ys)} parts of `ys` but {len(xs)} of `xs`. The diagonal '
      'needs one y for each part of `xs`, or a single y for all of them.'
    )
  every = ys * len(xs) if len(ys) == 1 else ys
  return [
    broadcast_to_part(y, x, i, name) for i, (y, x) in enumerate(zip(every, xs))
  ]


def checked_value(value, name='fn'):
  """Converts what a function returned to a Tensor.

  Args:
    value: What the function returned.
    name: Python str, the name of the argument that is the function.

  Returns:
    Tensor.

  Raises:
    TypeError: if it cannot be converted.
    ValueError: if it is None, or a list, tuple or dict.
  """
  if value is None:
    raise ValueError(
      f'`{name}` returned None; one floating scalar per sample is needed. Does '
      'it return its result?'
    )
  if isinstance(value, (list, tuple, dict)):
    raise ValueError(
      f'`{name}` returned a {type(value).__name__}; one Tensor with one '
      'floating scalar per sample is needed. Return only that one.'
    )
  return arguments.as_tensor(f'What `{name}` returned', value)


def checked_outputs(ys, xs, rank, name='fn'):
  """The outputs of a function as a list of Tensors that can be differentiated.

  Args:
    ys: List: the parts of what the function returned.
    xs: List of Tensors, the parts of its state.
    rank: Python int, the number of sample dimensions.
    name: Python str, the name of the argument that is the function.

  Returns:
    List of Tensors.
  """
  parts = ys
  if not parts or any(y is None for y in parts):
    raise ValueError(
      f'`{name}` returned {ys}; a Tensor or a structure of Tensors is needed. '
      'Does it return its result?'
    )
  parts = [
    arguments.as_tensor(f'Output {i} of `{name}`', y, dtype_hint=xs[0].dtype)
    for i, y in enumerate(parts)
  ]
  for i, y in enumerate(parts):
    if not y.dtype.is_floating:
      raise TypeError(
        f'Output {i} of `{name}` has dtype {y.dtype.name}; a derivative needs '
        'a floating dtype. Cast it, or do not return it.'
      )
    samples = xs[0].shape[:rank]
    if (
      y.shape.rank is None
      or y.shape.rank < rank
      or not y.shape[:rank].is_compatible_with(samples)
    ):
      raise ValueError(
        f'Output {i} of `{name}` has shape {y.shape}, which does not start '
        f'with the sample shape {samples} of `xs`. Every output has the shape '
        '`sample_shape + event_shape`; pass the `sample_shape` that it has.'
      )
  return parts
