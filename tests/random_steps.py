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
"""The steps that random programs are made of.

A step takes one or two values, Tensors of shape [samples, size], and a
generator of random numbers from which its constants come, and makes another
such value.
"""

import numpy as np
import tensorflow as tf

MAX_SIZE = 24


def last_axis(rng):
  """Of a Tensor [samples, size], counted from either end."""
  return (1, -1)[rng.integers(2)]


def resized(x, size):
  """The first entries of `x`, again from the start if there are too few."""
  old = x.shape[1]
  return x if old == size else tf.gather(x, np.arange(size) % old, axis=1)


def as_matrices(x, rng):
  """[samples, size] as [samples, p, q], less what does not fit."""
  rows = int(rng.integers(1, min(x.shape[1], 6) + 1))
  columns = x.shape[1] // rows
  return tf.reshape(x[:, : rows * columns], [-1, rows, columns])


def flat(x):
  return tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])


def sparse_matrix(rng, rows, columns):
  matrix = rng.normal(size=[rows, columns]) / 2
  return matrix * (rng.uniform(size=[rows, columns]) < 0.25)


# One value to one value.

SMOOTH = (
  lambda x: tf.sin(x),
  lambda x: tf.tanh(x),
  lambda x: tf.sigmoid(x),
  lambda x: tf.atan(x),
  lambda x: tf.math.erf(x),
  lambda x: tf.nn.softplus(x),
  lambda x: tf.nn.gelu(x),
  lambda x: tf.exp(-(x**2)),
  lambda x: tf.math.log1p(x**2),
  lambda x: tf.sqrt(1 + x * x),
  lambda x: 1 / (2 + tf.cos(x)),
  lambda x: tf.math.lgamma(1.5 + tf.sigmoid(x)),
  lambda x: tf.pow(1.0 + tf.sigmoid(x), 2.5),
)
ROUGH = (
  lambda x: tf.abs(x),
  lambda x: tf.nn.relu(x),
  lambda x: tf.nn.elu(x),
  lambda x: tf.floor(x),
  lambda x: tf.sign(x),
  lambda x: tf.clip_by_value(x, -0.5, 0.5),
  lambda x: tf.cast(x > 0, x.dtype),
  lambda x: tf.math.floormod(x, 0.7),
)


def elementwise(x, rng):
  return SMOOTH[rng.integers(len(SMOOTH))](x)


def rough(x, rng):
  return ROUGH[rng.integers(len(ROUGH))](x)


def affine(x, rng):
  scale = rng.normal(size=x.shape[1]) * rng.integers(0, 2, x.shape[1])
  return x * scale + rng.normal(size=x.shape[1])


def slice_of(x, rng):
  start, stop = sorted(rng.integers(0, x.shape[1], 2))
  step = int(rng.integers(1, 4))
  return x[:, start : stop + 1 : step]


def backward_slice(x, rng):
  return x[:, :: -int(rng.integers(1, 3))]


def gather(x, rng):
  indices = rng.integers(0, x.shape[1], rng.integers(1, MAX_SIZE))
  return tf.gather(x, indices, axis=1)


def gather_nd(x, rng):
  columns = rng.integers(0, x.shape[1], rng.integers(1, 9))
  return tf.transpose(tf.gather_nd(tf.transpose(x), columns[:, np.newaxis]))


def scatter(x, rng):
  size = x.shape[1] + int(rng.integers(0, 5))
  places = rng.permutation(size)[: x.shape[1]].astype(np.int32)
  shape = tf.stack([size, tf.shape(x)[0]])
  scattered = tf.scatter_nd(places[:, np.newaxis], tf.transpose(x), shape)
  return tf.transpose(scattered)


def update(x, rng):
  places = rng.permutation(x.shape[1])[: rng.integers(1, x.shape[1] + 1)]
  new = tf.sin(tf.gather(x, places[::-1].copy(), axis=1))
  columns = tf.transpose(x)
  columns = tf.tensor_scatter_nd_update(
    columns, places[:, np.newaxis], tf.transpose(new)
  )
  return tf.transpose(columns)


def reverse(x, rng):
  return tf.reverse(x, [last_axis(rng)])


def roll(x, rng):
  return tf.roll(x, int(rng.integers(-3, 4)), axis=last_axis(rng))


def tile(x, rng):
  return tf.tile(x, [1, 2])


def repeat(x, rng):
  return tf.repeat(x, rng.integers(0, 3, x.shape[1] - 1).tolist() + [1], axis=1)


def pad(x, rng):
  mode = ('CONSTANT', 'REFLECT', 'SYMMETRIC')[rng.integers(3)]
  most = min(3, x.shape[1] - (mode == 'REFLECT'))
  before, after = (int(k) for k in rng.integers(0, most + 1, 2))
  return tf.pad(x, [[0, 0], [before, after]], mode=mode)


def transpose(x, rng):
  return flat(tf.transpose(as_matrices(x, rng), [0, 2, 1]))


def diagonal_parts(x, rng):
  matrices = as_matrices(x, rng)
  which = rng.integers(4)
  if which == 0:
    return tf.linalg.diag_part(matrices)
  if which == 1:
    return flat(tf.linalg.band_part(matrices, 1, 0))
  if which == 2:
    return flat(tf.linalg.diag(x[:, :6]))
  size = min(matrices.shape[1:])
  return flat(tf.linalg.set_diag(matrices, tf.cos(x[:, :size])))


def split(x, rng):
  size = x.shape[1] // 2
  if not size:
    return x
  left, right = tf.split(x[:, : 2 * size], 2, axis=last_axis(rng))
  return left * tf.sin(right)


def stack(x, rng):
  return flat(tf.stack(tf.unstack(as_matrices(x, rng), axis=1)[::-1], axis=2))


def matmul(x, rng):
  return x @ sparse_matrix(rng, x.shape[1], rng.integers(1, MAX_SIZE))


def layer(x, rng):
  """Dense, and of one, a few or many elements."""
  size = int(rng.choice([1, 3, 20]))
  hidden = x @ (rng.normal(size=[x.shape[1], size]) / np.sqrt(x.shape[1]))
  return elementwise(hidden + rng.normal(size=size), rng)


def einsum(x, rng):
  matrices = as_matrices(x, rng)
  constant = sparse_matrix(rng, matrices.shape[2], rng.integers(1, 6))
  return flat(tf.einsum('bij,jk->bki', matrices, constant))


def gram(x, rng):
  matrices = as_matrices(x, rng)
  return flat(tf.matmul(matrices, matrices, transpose_a=True))[:, :MAX_SIZE]


def convolution(x, rng):
  kernel = sparse_matrix(rng, 3, 4)[:, np.newaxis, :2]
  padding = ('SAME', 'VALID')[rng.integers(2)] if x.shape[1] > 2 else 'SAME'
  stride = int(rng.integers(1, 3))
  return flat(tf.nn.conv1d(x[..., tf.newaxis], kernel, stride, padding))


def solve(x, rng):
  size = x.shape[1]
  matrix = np.tril(sparse_matrix(rng, size, size) / 4, -1) + np.eye(size)
  return tf.linalg.triangular_solve(
    tf.constant(matrix), x[..., tf.newaxis], lower=True
  )[..., 0]


def cumulative(x, rng):
  exclusive, backward = (bool(k) for k in rng.integers(0, 2, 2))
  if rng.integers(3):
    axis = last_axis(rng)
    return tf.cumsum(x, axis=axis, exclusive=exclusive, reverse=backward) / 4
  x = tf.sin(x) + 1.1
  return tf.math.cumprod(x, axis=1, exclusive=exclusive, reverse=backward)


REDUCTIONS = (
  lambda x, axis: tf.reduce_sum(x, axis),
  lambda x, axis: tf.reduce_mean(x, axis),
  lambda x, axis: tf.reduce_max(x, axis),
  lambda x, axis: tf.reduce_min(x, axis),
  lambda x, axis: tf.reduce_logsumexp(x, axis),
  lambda x, axis: tf.math.reduce_variance(x, axis),
  lambda x, axis: tf.reduce_prod(tf.sin(x) + 1.1, axis=axis),
  lambda x, axis: tf.norm(tf.concat([x, tf.ones_like(x)], axis), axis=axis),
)


def reduction(x, rng):
  matrices = as_matrices(x, rng)
  axis = int(rng.choice([1, 2, -1, -2]))
  return REDUCTIONS[rng.integers(len(REDUCTIONS))](matrices, axis=axis)


def total(x, rng):
  return tf.reduce_sum(x, axis=last_axis(rng), keepdims=True) / x.shape[1]


def softmax(x, rng):
  is_log = rng.integers(2) == 0
  x = as_matrices(x, rng)
  return flat(tf.nn.log_softmax(x) if is_log else tf.nn.softmax(x))


def segments(x, rng):
  number = int(rng.integers(1, x.shape[1] + 1))
  ids = rng.integers(0, number, x.shape[1])
  columns = tf.transpose(x)
  if rng.integers(2):
    found = tf.math.unsorted_segment_sum(columns, ids, number)
  else:
    # Each segment has a member; graphs cannot tell how many there are.
    ids = np.arange(x.shape[1]) * number // x.shape[1]
    found = tf.math.segment_sum(columns, ids)
  return tf.ensure_shape(tf.transpose(found), [None, number])


def custom_gradient(x, rng):
  @tf.custom_gradient
  def log_cosh(x):
    return tf.math.log(
      tf.cosh(tf.tanh(x))
    ), lambda dy: dy * tf.tanh(tf.tanh(x)) * (1 - tf.tanh(x) ** 2)

  return log_cosh(x)


def scaled_gradient(x, rng):
  @tf.custom_gradient
  def scaled(x):
    return tf.identity(x), lambda dy: 0.5 * dy

  return scaled(x)


def stop_gradient(x, rng):
  return x * tf.stop_gradient(tf.roll(tf.sin(x), 1, axis=1))


def scan(x, rng):
  coefficient = rng.uniform(-0.9, 0.9)
  nonlinear = bool(rng.integers(2))

  def step(state, new):
    previous = tf.sin(state) if nonlinear else state
    return coefficient * previous + new

  return tf.transpose(tf.scan(step, tf.transpose(x[:, :5])))


def while_loop(x, rng):
  shift = int(rng.integers(-1, 2))
  (_, x) = tf.while_loop(
    lambda i, _: i < 2,
    lambda i, x: (i + 1, tf.tanh(x + tf.roll(x, shift, axis=1))),
    (0, x),
  )
  return x


def map_fn(x, rng):
  def one(row):
    return tf.sin(row) * row[..., :1]

  return flat(tf.map_fn(one, as_matrices(x, rng)))


def branches(x, rng):
  return tf.cond(
    tf.reduce_sum(x) > rng.normal(),
    lambda: tf.sin(x),
    lambda: tf.roll(x, 1, axis=1) * 0.5,
  )


def call(x, rng):
  shift = int(rng.integers(1, 3))

  @tf.function(autograph=False)
  def inner(x):
    return tf.sin(x) * tf.roll(x, shift, axis=1)

  return inner(tf.tanh(x))


def recompute(x, rng):
  return tf.recompute_grad(lambda x: tf.sin(x) * x[:, :1])(tf.tanh(x))


def sort(x, rng):
  return tf.sort(x, axis=1)


def own_indices(x, rng):
  indices = tf.argsort(tf.stop_gradient(x), axis=1)
  return tf.gather(x, indices, axis=1, batch_dims=1)[:, :4]


# Layers that are used twice, behind themselves.


def weights(rng, rows, columns):
  return rng.normal(size=[rows, columns]) / np.sqrt(rows)


def held_layer(x, rng):
  size = int(rng.choice([2, x.shape[1], 10]))
  s = elementwise(x @ weights(rng, x.shape[1], size), rng)
  t = s @ weights(rng, size, size)
  which = rng.integers(5)
  if which == 0:
    return t + s
  if which == 1:
    return tf.tanh(t - 0.5 * s)
  if which == 2:
    return tf.sigmoid(t) * s
  if which == 3:
    return tf.sin(s) + t @ weights(rng, size, size)
  return s + tf.tanh(t + s) @ weights(rng, size, size)


def residual(x, rng):
  s = tf.tanh(x @ weights(rng, x.shape[1], x.shape[1]))
  return x + s @ weights(rng, x.shape[1], x.shape[1])


# What is made of the batch size.


def batch_factor(x, rng):
  """A number that grows with the batch, or one for each sample."""
  size = tf.cast(tf.shape(x)[0], x.dtype)
  which = rng.integers(14)
  if which == 0:
    return x / size
  if which == 1:
    return x * tf.reduce_sum(tf.ones(tf.shape(x)[:1], x.dtype)) / 4
  if which == 2:
    return tf.sin(x) * tf.cumsum(tf.ones_like(x[:, :1]), axis=0) / 3
  if which == 3:
    weights = tf.linspace(tf.constant(0.5, x.dtype), 1.5, tf.shape(x)[0])
    return x * weights[:, tf.newaxis]
  if which == 4:
    late = tf.range(tf.shape(x)[0])[:, tf.newaxis] > 1
    return tf.where(late, tf.roll(x, 1, axis=1), tf.sin(x))
  if which == 5:
    return x * tf.cast(tf.size(x), x.dtype) / (4 * x.shape[1])
  if which < 10:
    return larger(x, rng)
  return placed(x, rng)


def larger(x, rng):
  """Another structure in a batch of more than seven."""
  one = tf.ones_like(x[:, 0])
  count = (
    lambda: tf.reduce_sum(one),
    lambda: tf.cumsum(one)[:, tf.newaxis],
    lambda: tf.norm(one) ** 2,
    lambda: tf.cast(tf.raw_ops.Shape(input=x)[0], x.dtype),
    lambda: tf.cast(tf.raw_ops.Size(input=one), x.dtype),
    lambda: tf.linalg.matvec([one], one)[0],
    lambda: tf.reduce_sum(tf.raw_ops.OnesLike(x=one)),
    lambda: tf.cast(tf.argmax(tf.cumsum(one)) + 1, x.dtype),
  )[rng.integers(8)]()
  return tf.where(count > 7, x * tf.cumsum(x, axis=1) / 4, tf.sin(x))


def placed(x, rng):
  """What depends on where a sample stands, or on how many copies there are."""
  size, length = tf.shape(x)[0], x.shape[1]
  ones = tf.ones_like(x[:, 0], tf.int32)
  return (
    lambda: tf.cumsum(tf.linalg.band_part(x, rng.integers(4), -1), axis=1),
    lambda: tf.cumsum(x, axis=1) * tf.linalg.band_part(x, -1, 2),
    lambda: tf.repeat(x, size, axis=1)[:, :length] * x,
    lambda: tf.reverse(tf.tile(x, [1, size]), [1])[:, :length] + x,
    lambda: (
      x
      * tf.gather(x, tf.range(size) % length, axis=1, batch_dims=1)[
        :, tf.newaxis
      ]
    ),
    lambda: tf.sin(tf.roll(x, ones, ones)) + x,
    lambda: tf.pad(x, [[0, 0], [size, 0]])[:, :length] + tf.sin(x),
    lambda: tf.transpose(tf.reshape(tf.transpose(x), [length, size])) ** 2,
    lambda: (
      tf.reshape(tf.sin(tf.reshape(tf.transpose(x), [-1])), [length, -1])[:1][
        0
      ][:, tf.newaxis]
      * x
    ),
  )[rng.integers(9)]()


# What else than its arguments a program sees: a `World`.


class World:
  """The Tensors that a program closes over, and state of Python."""

  def __init__(self, tensors, seed):
    self.tensors = tensors
    self.change(seed)

  def change(self, seed):
    rng = np.random.default_rng(seed)
    self.array = rng.uniform(-1.5, 1.5, MAX_SIZE)
    self.numbers = [int(k) for k in rng.integers(0, 4, 3)]
    self.table = {'power': int(rng.integers(1, 4))}
    self.batch = tf.constant(rng.normal(size=[3, MAX_SIZE]))


def of_the_outside(x, rng, world):
  """A factor that is made of what a function closes over."""
  outer = world.tensors[rng.integers(len(world.tensors))]
  return x * tf.cos(resized(outer, x.shape[1]))


def of_python_state(x, rng, world):
  size = x.shape[1]
  which = rng.integers(4)
  if which == 0:
    return tf.sin(x) * world.array[:size]
  if which == 1:
    return x + tf.sin(tf.roll(x, world.numbers[-1], axis=1))
  if which == 2:
    return tf.tanh(x) ** world.table['power']
  return (
    tf.tanh(x @ tf.transpose(world.batch[:, :size])) @ world.batch[:, :size]
  )


OF_THE_WORLD = (of_the_outside, of_python_state)
LAYERS = (held_layer, residual, batch_factor)
UNARY = (
  *LAYERS,
  *OF_THE_WORLD,
  elementwise,
  rough,
  affine,
  slice_of,
  backward_slice,
  gather,
  gather_nd,
  scatter,
  update,
  reverse,
  roll,
  tile,
  repeat,
  pad,
  transpose,
  diagonal_parts,
  split,
  stack,
  matmul,
  layer,
  einsum,
  gram,
  convolution,
  solve,
  cumulative,
  reduction,
  total,
  softmax,
  segments,
  custom_gradient,
  scaled_gradient,
  stop_gradient,
  scan,
  while_loop,
  map_fn,
  branches,
  call,
  recompute,
  sort,
  own_indices,
)
# Of degree two in what they are given.
QUADRATIC = (stop_gradient, gram, split)


# Two values to one value.


def mask(x, y, rng):
  return tf.where(rng.integers(0, 2, x.shape[1]) > 0, x, y)


def choice(x, y, rng):
  return tf.where(x > 0.1, tf.sin(x), y)


def choice_of_other(x, y, rng):
  return tf.where(y > 0.1, tf.zeros_like(x), tf.cos(x))


PAIRS = (
  lambda x, y: x + y,
  lambda x, y: x - 2 * y,
  lambda x, y: x / (1 + y * y),
  lambda x, y: tf.math.divide_no_nan(x, 2 + tf.sin(y)),
  lambda x, y: tf.atan2(x, 2 + tf.sin(y)),
  lambda x, y: tf.math.xlogy(tf.sin(x), 2 + tf.sin(y)),
  lambda x, y: tf.maximum(x, y),
  lambda x, y: tf.minimum(x, y),
  lambda x, y: tf.pow(2 + tf.sin(x), tf.sin(y)),
  lambda x, y: tf.add_n([x, y, tf.sin(x)]),
)


def pair(x, y, rng):
  return PAIRS[rng.integers(len(PAIRS))](x, y)


def product(x, y, rng):
  return x * y


def squared_difference(x, y, rng):
  return tf.math.squared_difference(x, y)


def concat(x, y, rng):
  return tf.concat([x, y[:, : rng.integers(1, 5)]], axis=1)


def first_of_other(x, y, rng):
  """Broadcasts: one entry of `y` meets every entry of `x`."""
  return x + tf.sin(y[:, :1])


def batch_matmul(x, y, rng):
  rows = int(rng.integers(1, min(x.shape[1], 4) + 1))
  columns = x.shape[1] // rows
  left = tf.reshape(x[:, : rows * columns], [-1, rows, columns])
  right = tf.reshape(y[:, : rows * columns], [-1, columns, rows])
  return flat(tf.matmul(left, right))


def dynamic_stitch(x, y, rng):
  half = x.shape[1] // 2
  order = rng.permutation(2 * half).astype(np.int32)
  if not half:
    return x
  pieces = [tf.transpose(x[:, :half]), tf.transpose(y[:, :half])]
  return tf.transpose(tf.dynamic_stitch([order[:half], order[half:]], pieces))


BINARY = (
  mask,
  choice,
  choice_of_other,
  pair,
  product,
  squared_difference,
  concat,
  first_of_other,
  batch_matmul,
  dynamic_stitch,
)
QUADRATIC += (product, squared_difference, batch_matmul)
STEPS = UNARY + BINARY
# Neither their loops nor their shapes are what XLA compiles.
NOT_COMPILED = (scan, while_loop, map_fn, branches, segments, recompute, call)
