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
"""Sizes that are computed from the number of samples, which is not known.

Those that are the same multiple of it for any number have structure; others may
be one thing on few samples and another one on many.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import draw, same
from tests.oracles import gradient_of
from tfp_diag.sparsity import SampleMixingError

N = 4
SPEC = tf.TensorSpec([None, N], tf.float64)
MANY = 120


def batch(x):
  return tf.shape(x)[0]


# Each is one on few samples, and most are two on many.


def floored(x):
  return 1 + batch(x) // 100


def rounded_up(x):
  return (batch(x) + 99) // 100


def floored_as_floats(x):
  return 1 + tf.cast(tf.floor(tf.cast(batch(x), tf.float32) / 100.0), tf.int32)


def chosen(x):
  return tf.where(batch(x) > 50, 2, 1)


def chosen_by_a_branch(x):
  return tf.cond(batch(x) > 50, lambda: 2, lambda: 1)


def steps_of_a_range(x):
  return tf.size(tf.range(0, batch(x), 100))


def found_places(x):
  return 1 + tf.size(tf.where(tf.range(batch(x)) >= 100))


def at_most(x):
  return 3 - (batch(x) + tf.minimum(batch(x), 100)) // batch(x)


def of_a_slice(x):
  return 3 - 2 * tf.shape(x[:100])[0] // batch(x)


def of_a_slice_of_ones(x):
  return 3 - 2 * tf.size(tf.ones([batch(x)])[:100]) // batch(x)


def strided(x):
  return 2 - tf.size(tf.ones([199 * batch(x)])[::100]) // batch(x) // 2


def number_of_classes(x):
  return 1 + tf.size(tf.unique(tf.range(batch(x)) // 100)[0]) // 2


def bits(x):
  return 1 + tf.bitwise.right_shift(batch(x), 6)


def even_padding(x):
  return 2 - batch(x) % 2


def of_a_pool(x):
  image = x[tf.newaxis, :, :, tf.newaxis]
  pooled = tf.nn.max_pool2d(image, 1, [100, 1], 'SAME')
  return tf.shape(pooled)[1]


def of_a_mask(x):
  kept = tf.boolean_mask(x, tf.range(batch(x)) < 100)
  return 3 - 2 * tf.shape(kept)[0] // batch(x)


def of_found_rows(x):
  rows = tf.gather(x, tf.range(tf.minimum(batch(x), 100)))
  return 3 - 2 * tf.shape(rows)[0] // batch(x)


def of_the_largest(x):
  values = tf.math.top_k(x[:, 0], tf.minimum(batch(x), 100))[0]
  return 3 - 2 * tf.size(values) // batch(x)


def of_a_diagonal(x):
  diagonal = tf.linalg.diag_part(tf.tile(x[:, :1], [1, 100]))
  return 3 - 2 * tf.size(diagonal) // batch(x)


def beside_a_zero(x):
  """One, which a filled zero must not be taken for."""
  pair = tf.maximum(tf.pad([batch(x)], [[1, 0]]), 1)
  one = tf.reduce_prod(pair[tf.newaxis], 0)[0]
  return (batch(x) + 99 * one) // 100 // one


def chosen_by_rows(x):
  size = batch(x)
  rows = [[size, size], [1, 1]]
  one = tf.compat.v1.where([False, True], [[1, 1], [size, size]], rows)[1, 0]
  return 1 + one // size * (size // 100)


def of_hidden_columns(x):
  """There are 21, which a number of samples may divide."""
  columns = tf.concat([tf.tile(x, [1, 5]), x[:, :1]], axis=1)
  columns = tf.reshape(columns, [batch(x), -1])
  return 1 + tf.minimum(tf.shape(columns)[1] // batch(x), 1)


def of_few_bits(x):
  """Twice a hundred and twenty is no number of eight bits."""
  twice = tf.cast(tf.cast(2 * batch(x), tf.int8), tf.int32)
  return tf.minimum(3 - twice // batch(x), 2)


IRREGULAR = (
  floored,
  rounded_up,
  floored_as_floats,
  chosen,
  chosen_by_a_branch,
  steps_of_a_range,
  found_places,
  at_most,
  of_a_slice,
  of_a_slice_of_ones,
  strided,
  number_of_classes,
  bits,
  even_padding,
  of_a_pool,
  of_a_mask,
  of_found_rows,
  of_the_largest,
  of_a_diagonal,
  beside_a_zero,
  chosen_by_rows,
  of_hidden_columns,
  of_few_bits,
)


# Each is one for any number of samples.


def elements_of_a_row(x):
  return tf.size(x) // (N * batch(x))


def from_a_shape(x):
  return tf.reduce_prod(tf.shape(x)) // batch(x) // tf.shape(x)[1]


def at_least(x):
  return tf.maximum(batch(x), 1) // batch(x)


def doubled(x):
  return (batch(x) + batch(x)) // (2 * batch(x))


def of_all_ones(x):
  return tf.size(tf.ones([3 * batch(x), 2])) // (6 * batch(x))


def of_a_range(x):
  return tf.size(tf.range(batch(x))) // batch(x)


def of_a_common_shape(x):
  shape = tf.broadcast_dynamic_shape(tf.shape(x), [1, N])
  return shape[0] // batch(x)


def of_whole_slices(x):
  return tf.shape(x[:, 1:])[0] // tf.shape(tf.ones_like(x)[:, ::2])[0]


def in_long_integers(x):
  size = tf.shape(x, out_type=tf.int64)
  return tf.cast(size[0] * size[1] // (size[0] * N), tf.int32)


def by_negative_numbers(x):
  return -(-tf.size(x) // N) // tf.abs(-batch(x))


def as_a_sum(x):
  return tf.reduce_sum(tf.shape(x)[:1]) // batch(x) + tf.size(x) % batch(x)


def by_zero(x):
  return 1 + 0 * batch(x)


def of_a_shape_but_for_a_column(x):
  shape = tf.shape(x) - [0, 1]
  return tf.reduce_prod(shape) // ((N - 1) * batch(x))


def beside_filled_zeros(x):
  return tf.pad([batch(x)], [[1, 0]])[1] // batch(x)


REGULAR = (
  elements_of_a_row,
  from_a_shape,
  at_least,
  doubled,
  of_all_ones,
  of_a_range,
  of_a_common_shape,
  of_whole_slices,
  in_long_integers,
  by_negative_numbers,
  as_a_sum,
  by_zero,
  of_a_shape_but_for_a_column,
  beside_filled_zeros,
)


def repeated(size):
  """Each coordinate some times; what is beyond the first four is left out."""

  def fn(x):
    times = tf.tile(x[:, :, tf.newaxis], [1, 1, size(x)])
    return x * tf.reshape(times, [batch(x), -1])[:, :N]

  return fn


def spread(size):
  """The same by ones, whose shape is computed."""

  def fn(x):
    times = x[:, :, tf.newaxis] * tf.ones([1, size(x)], x.dtype)
    return x * tf.reshape(times, [tf.shape(x)[0], -1])[:, :N]

  return fn


def prefix(size):
  """The sum of the first coordinates."""
  return lambda x: x * tf.reduce_sum(x[:, : size(x)], axis=1, keepdims=True)


def sliced(size):
  def fn(x):
    first = tf.slice(x, [0, 0], tf.stack([-1, tf.minimum(size(x), 2)]))
    return x * tf.reduce_sum(first, axis=1, keepdims=True)

  return fn


def largest(size):
  """Of three multiples of each coordinate."""

  def fn(x):
    multiples = x[:, :, tf.newaxis] * tf.constant([1.0, 2.0, 3.0], x.dtype)
    largest = tf.math.top_k(multiples, size(x))[0]
    return x * tf.reshape(largest, [batch(x), -1])[:, :N]

  return fn


def groups(size):
  """Several samples in a group, each times the next one in it."""

  def fn(x):
    grouped = tf.reshape(x, [-1, size(x), N])
    return tf.reshape(grouped * tf.roll(grouped, 1, axis=1), [-1, N])

  return fn


def rows(size):
  """The same by places of rows."""

  def fn(x):
    number, times = batch(x), size(x)
    places = tf.reshape(tf.range(number * times), [number, times])
    found = tf.gather(tf.tile(x, [times, 1]), places)
    return x * tf.reduce_sum(found, axis=1)

  return fn


def by_coordinates(fn, x):
  """The diagonal of a function that treats samples alone, each of them."""
  columns = [
    gradient_of(lambda x, k=k: fn(x)[..., k])(x)[..., k] for k in range(N)
  ]
  return tf.stack(columns, axis=-1)


def in_a_graph(plan):
  return tf.function(lambda x: plan(x)[1][0], input_signature=[SPEC])


def without_a_plan(fn, x):
  def diag(x):
    return tfp_diag.diag_jacobian(x, fn=fn, sample_shape=tf.shape(x)[:1])[1][0]

  return tf.function(diag, input_signature=[SPEC])(x)


# Each size in one body, and each body with some of them.
CASES = [
  *((repeated, size) for size in IRREGULAR),
  *((spread, size) for size in IRREGULAR[::6]),
  *((prefix, floored), (sliced, steps_of_a_range), (largest, floored)),
]


@pytest.mark.parametrize(('body', 'size'), CASES)
def test_a_size_that_is_another_one_of_many_samples(body, size):
  """A graph is not probed: what few samples show is not what many do."""
  fn = body(size)
  plan = tfp_diag.plan_diag_jacobian(fn, SPEC, sample_shape=[None])
  assert plan.num_passes == N
  x = draw(MANY, N, seed=1)
  same(in_a_graph(plan)(x), by_coordinates(fn, x))


@pytest.mark.parametrize('size', IRREGULAR[::8], ids=lambda f: f.__name__)
def test_the_same_without_a_plan(size):
  x = draw(MANY, N, seed=1)
  fn = repeated(size)
  same(without_a_plan(fn, x), by_coordinates(fn, x))


@pytest.mark.parametrize('size', REGULAR, ids=lambda f: f.__name__)
def test_a_size_that_is_a_multiple_of_any_number(size):
  fn, x = repeated(size), draw(MANY, N, seed=2)
  plan = tfp_diag.plan_diag_jacobian(fn, SPEC, sample_shape=[None])
  assert plan.num_passes == 1
  same(in_a_graph(plan)(x), 2.0 * x)


@pytest.mark.parametrize('body, size', [(groups, strided), (rows, floored)])
def test_it_is_said_that_samples_may_mix(body, size):
  fn = body(size)
  plan = tfp_diag.plan_diag_jacobian(fn, SPEC, sample_shape=[None])
  assert 'may mix samples' in str(plan)
  # Where numbers are at hand, it is seen.
  x = draw(MANY, N, seed=3)
  with pytest.raises(SampleMixingError):
    tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[MANY])


def test_an_event_that_the_numbers_of_samples_divide():
  """Of 21 columns, which no shape in the graph says."""

  def fn(x):
    columns = tf.concat([tf.tile(x, [1, 5]), x[:, :1]], axis=1)
    columns = tf.reshape(columns, [batch(x), -1])
    ones = tf.ones([1, tf.shape(columns)[1]], x.dtype)
    return (columns * ones)[:, :N] * x

  plan = tfp_diag.plan_diag_jacobian(fn, SPEC, sample_shape=[None])
  assert plan.num_passes == 1
  x = draw(MANY, N, seed=5)
  same(in_a_graph(plan)(x), 2.0 * x)


@pytest.mark.parametrize('rows, columns', [(11, 4), (35, 30), (1155, 4)])
def test_event_sizes_that_small_primes_divide(rows, columns):
  """`tf.vectorized_map` turns axes about, and then no shape is known."""
  rng = np.random.default_rng(rows)
  data = tf.constant(rng.standard_normal([rows, columns]))

  def log_prob(x):
    return -tf.reduce_sum(tf.nn.softplus(tf.linalg.matvec(data, x)))

  def fn(x):
    return tf.vectorized_map(log_prob, x)

  spec = tf.TensorSpec([None, columns], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, spec, sample_shape=[None])
  assert plan.num_passes == 1
  diagonal = tf.function(lambda x: plan(x)[2], input_signature=[spec])
  for number in (1, 2, 6):  # A single sample is another case of its own.
    x = draw(number, columns, seed=number)
    slope = tf.sigmoid(x @ tf.transpose(data))
    same(diagonal(x), -(slope * (1 - slope)) @ data**2)


def test_two_numbers_that_are_not_known():
  """Each sample dimension has a multiple of its own."""
  spec = tf.TensorSpec([None, None, N], tf.float64)

  def fn(size):
    def repeated(x):
      times = tf.tile(x[..., tf.newaxis], [1, 1, 1, size(tf.shape(x))])
      shape = tf.concat([tf.shape(x)[:2], [-1]], axis=0)
      return x * tf.reshape(times, shape)[..., :N]

    return repeated

  def passes(size):
    samples = [None, None]
    plan = tfp_diag.plan_diag_jacobian(fn(size), spec, sample_shape=samples)
    x = draw(60, 2, N, seed=4)
    got = tf.function(lambda x: plan(x)[1][0], input_signature=[spec])(x)
    same(got, by_coordinates(fn(size), x))
    return plan.num_passes

  assert passes(lambda s: s[0] * s[1] * N // (s[1] * N) // s[0]) == 1
  assert passes(lambda s: 1 + s[0] // (30 * s[1])) == N
  assert passes(lambda s: 1 + tf.reduce_prod(s[:2]) // 100) == N
