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
"""A few samples stand for many only where they do what many do.

Whether the batch is small enough to be walked whole is no question here: all
batches count as large.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import copy_of, draw, hessian, jacobian, same
from tests.oracles import hessian_diagonal, jacobian_diagonal
from tfp_diag.sparsity import SampleMixingError, walk
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.graph import trace

B, N = 29, 9


@pytest.fixture(autouse=True)
def fixture_all_batches_are_large(monkeypatch):
  monkeypatch.setattr(walk, '_FEW_ELEMENTS', 0)


def neighbors(x):
  return tf.square(x) * tf.roll(x, 1, axis=-1)


def before(x):
  return tf.cumsum(tf.square(x), axis=1) * x


def where_large(size, x):
  """Another structure where some size is large."""
  return tf.where(tf.cast(size, tf.float64) > 20.0, before(x), tf.square(x))


@tf.function(input_signature=[tf.TensorSpec([None, None], tf.float64)])
def called(x):
  return where_large(tf.shape(x)[0], x)


def by_a_loop(x):
  """A turn for each sample; from the tenth on another one."""
  turns = tf.reduce_sum(tf.ones_like(x[:, 0]))

  def turn(k, y):
    return k + 1.0, tf.where(k > 10.0, 0.1 * before(y), tf.sin(y))

  first = tf.zeros([], x.dtype)
  return tf.while_loop(lambda k, _: k < turns, turn, [first, x])[1]


# Constants whose shape is that of the batch, and what is computed from them.
NUMBERS = {
  'sum of ones': lambda x: where_large(tf.reduce_sum(tf.ones_like(x[:, 0])), x),
  'sum of filled': lambda x: where_large(
    tf.reduce_sum(tf.fill(x.shape[:1], tf.constant(1.0, x.dtype))), x
  ),
  'mean of squares': lambda x: where_large(
    tf.norm(np.full(x.shape[0], 4.0 / np.sqrt(N))) * 2.0, x
  ),
  'numbers of samples': lambda x: where_large(
    tf.cumsum(tf.ones_like(x[:, :1]), axis=0) + 10.0, x
  ),
  'products of ones': lambda x: where_large(
    tf.matmul(tf.ones_like(x), tf.ones_like(x), transpose_a=True)[0, 0], x
  ),
  'place of the last': lambda x: where_large(
    tf.shape(tf.where(tf.ones_like(x[:, 0]) > 0.0))[0], x
  ),
  'raw shape': lambda x: where_large(tf.raw_ops.Shape(input=x)[0], x),
  'raw shapes': lambda x: where_large(tf.raw_ops.ShapeN(input=[x, x])[1][0], x),
  'raw size': lambda x: where_large(tf.raw_ops.Size(input=x) // N, x),
  'raw ones': lambda x: where_large(
    tf.reduce_sum(tf.raw_ops.OnesLike(x=x)) / N, x
  ),
  'raw zeros': lambda x: where_large(
    tf.reduce_sum(tf.cos(tf.raw_ops.ZerosLike(x=x))) / N, x
  ),
  'function': called,
  'loop': by_a_loop,
  'shift': lambda x: tf.square(
    tf.roll(x, *[tf.ones_like(x[:, 0], tf.int32)] * 2)
  ),
}

# Ops that treat samples alike only if there are two.
PLACES = {
  'band': lambda x: tf.cumsum(tf.linalg.band_part(x, 0, 0), axis=1) * x,
  'wide band': lambda x: (
    tf.cumsum(tf.linalg.band_part(x, 4, -1) * x, axis=1) * x
  ),
  'copies': lambda x: tf.repeat(x, tf.shape(x)[0], axis=1)[:, :N] * x,
  'copies in turn': lambda x: (
    tf.reverse(tf.tile(x**2, [1, tf.shape(x)[0]]), [1])[:, :N] * x
  ),
  'filter': lambda x: (
    x
    * tf.nn.conv1d(
      x[:, :, tf.newaxis],
      tf.ones_like(x[:, 0])[:, tf.newaxis, tf.newaxis],
      1,
      'SAME',
    )[:, :, 0]
  ),
}


def diagonal_element(x):
  return tf.square(x) + tf.linalg.diag_part(x)[:, tf.newaxis] * x


def set_diagonal(x):
  ones = tf.ones_like(x[:, 0])
  return before(tf.linalg.set_diag(x, ones)) + x


def column_of_the_largest(x):
  largest = tf.argmax(tf.transpose(x)[0])
  return x * tf.gather(x, largest, axis=1)[:, tf.newaxis]


# With 40 coordinates, of which TensorFlow fills constants of 1,000 elements.
WIDE = {
  'sum of many ones': lambda x: where_large(
    tf.reduce_sum(tf.ones_like(x)) / x.shape[1], x
  ),
  'another condition': lambda x: tf.where(
    tf.fill(x.shape, tf.constant(x.shape[0] > 20)), before(x), tf.square(x)
  ),
  'places among many': lambda x: where_large(
    tf.cumsum(tf.ones(x.shape, x.dtype), axis=0) + 10.0, x
  ),
  'diagonal element': diagonal_element,
  'set diagonal': set_diagonal,
  'column of the largest': column_of_the_largest,
}


@pytest.mark.parametrize('name', [*NUMBERS, *PLACES])
def test_what_the_number_of_samples_changes(name):
  """In a graph, where nothing is compared with passes."""
  fn = {**NUMBERS, **PLACES}[name]
  x = draw(B, N)
  same(jacobian('function', fn, x), jacobian_diagonal(fn, copy_of(x)))


@pytest.mark.parametrize('name', list(WIDE))
def test_places_in_wide_batches(name):
  fn = WIDE[name]
  x = draw(B, 40)
  same(jacobian('function', fn, x), jacobian_diagonal(fn, copy_of(x)))


@pytest.mark.parametrize(
  'name', ['sum of ones', 'raw size', 'filter', 'band', 'loop']
)
@pytest.mark.parametrize('way', ['function', 'plan'])
def test_hessians_and_other_ways(way, name):
  fn = {**NUMBERS, **PLACES}[name]
  x = draw(B, N, seed=1)

  def log_prob(x):
    return tf.reduce_sum(fn(x), axis=-1)

  same(hessian(way, log_prob, x), hessian_diagonal(log_prob, copy_of(x)))


def other_samples(x):
  """From the tenth on, each sample is multiplied by the one before."""
  number = tf.cumsum(tf.ones_like(x[:, 0], tf.int32)) - 1
  return x * tf.gather(x, tf.where(number > 10, number - 1, number))


def rows_of_another_length(x):
  """Of three samples, rows of three elements each; of 29, of 29 elements."""
  sizes = tf.raw_ops.Shape(input=x)
  rows = tf.reshape(x, tf.reverse(sizes, [0]))
  return tf.reshape(tf.cumsum(rows**2, axis=1), sizes)


def shifted(x):
  """By as many samples as there may be few."""
  one = tf.constant(1)
  return x * tf.roll(x, tf.stack([one + one, one]), [0, 1])


def dilated(x):
  """The same, as an attribute of an op."""
  patches = tf.image.extract_patches(
    x[tf.newaxis, :, :, tf.newaxis],
    sizes=[1, 3, 1, 1],
    strides=[1, 1, 1, 1],
    rates=[1, 2, 1, 1],
    padding='SAME',
  )
  return x * tf.reduce_sum(patches[0], axis=-1)


@pytest.mark.parametrize(
  'fn', [other_samples, rows_of_another_length, shifted, dilated]
)
def test_samples_that_mix_in_large_batches(fn):
  with pytest.raises(SampleMixingError, match='mixes samples'):
    jacobian('eager', fn, draw(B, N))


# These do the same for any number of samples: a few are enough.
ALIKE = {
  'ones': lambda x: neighbors(x) * tf.ones_like(x),
  'sum of ones by zero': lambda x: (
    neighbors(x) * (tf.ones_like(x[:, :1]) + tf.zeros_like(x[:, :1]))
  ),
  'raw ones': lambda x: neighbors(x) / (1.0 + tf.raw_ops.OnesLike(x=x)),
  'filled': lambda x: neighbors(x) - tf.fill(tf.shape(x), np.float64(2.0)),
  'pieces': lambda x: tf.reshape(
    tf.cumsum(tf.reshape(x, [-1, 3]) ** 2, axis=1), tf.shape(x)
  ),
  'coordinates lead': lambda x: tf.transpose(
    tf.reshape(
      tf.sin(tf.reshape(tf.transpose(x), [-1])), [x.shape[1], x.shape[0]]
    )
  ),
  'matrices': lambda x: (
    tf.reshape(
      tf.linalg.band_part(tf.reshape(x, [-1, 3, 3]), 1, 0), tf.shape(x)
    )
    ** 2
  ),
  'filter': lambda x: tf.nn.conv1d(
    x[:, :, tf.newaxis], np.ones([3, 1, 1]), 1, 'SAME'
  )[:, :, 0],
  'largest': lambda x: (
    x * tf.gather(x, tf.argmax(x, 1) % 2, batch_dims=1)[:, None]
  ),
}


@pytest.mark.parametrize('name', list(ALIKE))
def test_few_samples_are_enough(name):
  fn = ALIKE[name]
  x = draw(B, N)

  def graph(shapes):
    return trace(lambda parts: fn(parts[0]), lambda y, _: [y], [x], shapes)

  found = analyze(graph(None), 1, graph)
  assert found.walked.twin is not None
  assert found.walked.num_samples < B
  assert not found.pattern.fallback_ops
  same(jacobian('eager', fn, x), jacobian_diagonal(fn, copy_of(x)))


@pytest.fixture(name='walked_samples')
def fixture_walked_samples(monkeypatch):
  """How many samples were walked, each time."""
  numbers = []
  walk_on = walk._walk_on

  def counted(graph, shapes, sample_shape, *rest, **more):
    numbers.append(sample_shape[0])
    return walk_on(graph, shapes, sample_shape, *rest, **more)

  monkeypatch.setattr(walk, '_walk_on', counted)
  return numbers


def test_few_samples_are_enough_where_equal_ops_are_merged(walked_samples):
  """A layer norm that has `x - mean` twice, and so does its gradient."""
  matrix = np.random.default_rng(0).normal(size=[N, N])

  def energy(x):
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean((x - mean) ** 2, -1, keepdims=True)
    normal = (x - mean) * tf.math.rsqrt(variance + 1e-3)
    return tf.reduce_sum(tf.nn.softplus(normal @ matrix), -1)

  x = draw(B, N)
  found = hessian('function', energy, x)
  assert len(walked_samples) > 1 and max(walked_samples) < B
  same(found, hessian_diagonal(energy, copy_of(x)))


def of_positive(x):
  return tf.where(x > 0.0, neighbors(x), tf.zeros_like(x))


def own_gradient(x):
  with tf.GradientTape() as tape:
    tape.watch(x)
    energy = tf.cos(x) * tf.roll(x, 1, axis=-1)
  return tape.gradient(energy, x)


def in_a_loop(x):
  ones = tf.ones_like(x)

  def turn(k, y):
    return k + 1, tf.sin(y) * ones + 0.1 * neighbors(y)

  return tf.while_loop(lambda k, _: k < 2, turn, [0, x])[1]


def in_a_branch(x):
  is_far = tf.reduce_sum(tf.constant([1.0, 2.0]) * 2.0) > 5.0
  return tf.cond(is_far, lambda: neighbors(x), lambda: before(x))


# TensorFlow writes small constants, and fills large ones: other ops. And loops
# and branches have other ops in a `tf.function` than in other graphs.
LARGE = [of_positive, own_gradient, in_a_loop, in_a_branch]


@pytest.mark.parametrize('fn', LARGE, ids=lambda f: f.__name__)
@pytest.mark.parametrize('way', ['function', 'plan'])
def test_few_samples_are_enough_for_large_batches(way, fn, walked_samples):
  x = draw(B, 40)
  found = jacobian(way, fn, x)
  assert walked_samples and max(walked_samples) < B
  same(found, jacobian_diagonal(fn, copy_of(x)))


def test_large_batches_have_a_plan_though_not_all_samples_can_be_walked():
  spec = tf.TensorSpec([400_000, 6], tf.float64)
  assert 400_000 * 6 > walk._MOST_ELEMENTS
  for fn in (in_a_loop, in_a_branch, own_gradient):
    plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[400_000])
    assert plan.num_passes < 6


def test_few_samples_are_enough_where_a_softmax_is_written_out(walked_samples):
  matrix = np.random.default_rng(0).normal(size=[40, 4])

  def energy(x):
    x = tf.where(x > 0.0, x**2, tf.zeros_like(x))
    losses = tf.nn.softmax_cross_entropy_with_logits(
      np.array([1.0, 2.0, 0.5, 0.0]), x @ matrix
    )
    return losses + tf.reduce_sum(neighbors(x), -1)

  x = draw(B, 40)
  found = hessian('function', energy, x)
  assert len(walked_samples) > 1 and max(walked_samples) < B
  same(found, hessian_diagonal(energy, copy_of(x)))


@pytest.mark.parametrize('kind', ['jacobian', 'hessian'])
def test_few_samples_are_enough_for_functions_that_are_called(
  kind, monkeypatch
):
  """Under tapes TensorFlow gives a call the results that its gradient needs."""
  fn = tf.function(lambda x: neighbors(x) ** 2, autograph=False)
  twins = []
  compare = walk.compare
  monkeypatch.setattr(
    walk, 'compare', lambda *pair: twins.append(compare(*pair)) or twins[-1]
  )
  x = draw(B, N)

  @tf.function(autograph=False)
  def diagonal(x):
    if kind == 'jacobian':
      return tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[B])[1][0]
    return tfp_diag.diag_hessian(lambda x: tf.reduce_sum(fn(x), -1), x)[2]

  found = diagonal(x)
  assert twins and None not in twins
  if kind == 'jacobian':
    same(found, jacobian_diagonal(fn, copy_of(x)))


@pytest.mark.parametrize('name', ['ones', 'filled', 'pieces', 'matrices'])
def test_open_batches_keep_their_structure(name):
  fn = ALIKE[name]
  spec = tf.TensorSpec([None, N], tf.float64)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[None])
  assert plan.num_passes < N
  x = draw(B, N)
  same(plan(x)[1][0], jacobian_diagonal(fn, copy_of(x)))
