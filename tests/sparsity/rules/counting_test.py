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
"""Tests indices that count the samples, and indices that only look like it."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import jacobian_diagonal
from tfp_diag.sparsity import SampleMixingError, jacobian_sparsity
from tfp_diag.sparsity.budget import NoStructureError


def each(x):
  """A function of one sample: a cumulative sum of two neighbors."""
  return x * tf.roll(x, 1, 0) + tf.sin(x)


CHAIN = np.eye(6) + np.roll(np.eye(6), -1, 1)


def number(x):
  return tf.shape(x)[0]


COUNTING = {
  'gather': lambda x: tf.gather(x, tf.range(number(x))),
  'gather of a slice': lambda x: tf.gather(x[:, 1:], tf.range(number(x))),
  'gather of unknown size': lambda x: tf.gather(
    x, tf.where(number(x) > 1, tf.range(number(x)), 0)
  ),
}


@pytest.mark.parametrize('name', COUNTING)
@pytest.mark.parametrize('size', [None, 1, 3, 2000])
def test_samples_where_they_were(name, size):
  pattern = jacobian_sparsity(
    lambda x: (
      tf.reduce_sum(COUNTING[name](x), -1, keepdims=True)
      * COUNTING['gather'](x)
    ),
    tf.TensorSpec([size, 6]),
    [size],
  )
  wanted = np.ones([6, 6])
  if name == 'gather of a slice':
    wanted[1:, 0] = 0
  np.testing.assert_array_equal(pattern.matrix.toarray(), wanted)
  assert not pattern.fallback_ops


@pytest.mark.parametrize('size', [None, 3, 2000])
def test_vectorized_map(size):
  pattern = jacobian_sparsity(
    lambda x: tf.vectorized_map(each, x), tf.TensorSpec([size, 6]), [size]
  )
  np.testing.assert_array_equal(pattern.matrix.toarray(), CHAIN)


def test_a_plan_of_vectorized_map_serves_any_number_of_samples():
  plan = tfp_diag.plan_diag_jacobian(
    lambda x: tf.vectorized_map(each, x),
    tf.TensorSpec([None, 6], tf.float64),
    [None],
  )
  assert plan.coloring.num_colors == 2
  for size in (0, 1, 2, 50):
    x = tf.constant(np.random.default_rng(size).normal(size=[size, 6]))
    _, (diag,) = plan(x)
    wanted = [jacobian_diagonal(each, row) for row in x]
    np.testing.assert_allclose(diag, np.reshape(wanted, [size, 6]))


# As 0, 1, 2, ... for a few samples, but not for more, or not at all. Three
# samples show the latter.
NOT_COUNTING = {
  'backwards': lambda n: tf.range(n)[::-1],
  'from one': lambda n: tf.range(1, n + 1) % n,
  'moved where there are many': lambda n: (tf.range(n) + n // 64) % n,
  'the first where there are few': lambda n: tf.where(n > 60, tf.range(n), 0),
  'the first where there are many': lambda n: tf.where(n < 60, tf.range(n), 0),
  'the second': lambda n: tf.where(n > 1, tf.range(n), 1),
  'another number': lambda n: tf.where(n - 60 > 1, tf.range(n), 0),
  'as far as 60': lambda n: tf.minimum(tf.range(n), 60),
}


@pytest.mark.parametrize('name', NOT_COUNTING)
def test_samples_elsewhere(name):
  def fn(x):
    index = NOT_COUNTING[name](number(x))
    return x * tf.gather(x, index)

  seen = name in (
    'backwards',
    'from one',
    'the first where there are few',
    'another number',
  )
  with pytest.raises(SampleMixingError if seen else NoStructureError):
    jacobian_sparsity(fn, tf.TensorSpec([None, 6]), [None])


def test_a_branch_for_a_single_sample_is_no_index():
  """What is known for more samples is not known for one."""

  def fn(x):
    return tf.where(number(x) > 1, x, tf.reverse(x, [1]))

  pattern = jacobian_sparsity(fn, tf.TensorSpec([None, 6]), [None])
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), np.eye(6) + np.eye(6)[::-1]
  )


def beside(column):
  """The number of the sample beside something else, in three ways."""
  rows = tf.range(tf.size(column))
  return (
    tf.stack([rows, column], axis=1),
    tf.concat([rows[:, tf.newaxis], tf.reshape(column, [-1, 1])], 1),
    tf.cast(tf.stack([rows, column], -1), tf.int64),
  )


def largest(x):
  return tf.argmax(x, 1, output_type=tf.int32)


TABLE = tf.constant(np.random.default_rng(5).integers(0, 6, 500), tf.int32)
# Which coordinate of each sample, and between which ones it is, for any number.
PICKED = {
  'the same': (lambda x: tf.fill([number(x)], 4), (4, 4)),
  'a bounded one': (lambda x: tf.minimum(largest(x), 2), (0, 2)),
  'any': (largest, (0, 5)),
  'the number of the sample': (lambda x: tf.range(number(x)) % 6, (0, 5)),
  'as far as the last': (lambda x: tf.minimum(tf.range(number(x)), 5), (0, 5)),
  'by the number of samples': (
    lambda x: tf.fill([number(x)], tf.minimum(number(x), 6) - 1),
    (0, 5),
  ),
  'of a table': (lambda x: TABLE[: number(x)], (0, 5)),
}


@pytest.mark.parametrize('name', PICKED)
def test_places_of_each_sample(name):
  column, (first, last) = PICKED[name]
  wanted = np.zeros([6, 6])
  wanted[:, first : last + 1] = 1
  wanted = np.minimum(wanted @ CHAIN.T, 1)

  def picked(x):
    chain, found = tf.sin(x * tf.roll(x, -1, 1)), 0.0
    for k, index in enumerate(beside(column(x))):
      found += (k + 1) * tf.gather_nd(chain, index)
    return found[:, tf.newaxis] * tf.ones([1, 6], x.dtype)

  pattern = jacobian_sparsity(picked, tf.TensorSpec([None, 6]), [None])
  np.testing.assert_array_equal(pattern.matrix.toarray(), wanted)


SCATTERED = {
  'update': lambda x, i, y: tf.tensor_scatter_nd_update(x, i, y),
  'maximum': lambda x, i, y: tf.tensor_scatter_nd_max(x, i, y),
  'sum': lambda x, i, y: x**2 + tf.scatter_nd(i, y, tf.shape(x, i.dtype)),
}


@pytest.mark.parametrize('name', SCATTERED)
def test_updates_of_each_sample(name):
  def fn(x):
    y = tf.reduce_sum(x[:, 4:] ** 2, -1)
    for index in beside(tf.fill([number(x)], 1)):
      x = SCATTERED[name](x, index, y + 3.0)
    return x

  plan = tfp_diag.plan_diag_jacobian(
    fn, tf.TensorSpec([None, 6], tf.float64), [None]
  )
  wanted = np.eye(6)
  wanted[1, 4:] = 1
  np.testing.assert_array_equal(plan.pattern.matrix.toarray(), wanted)
  for size in (1, 2, 7):
    x = tf.constant(np.random.default_rng(size).normal(size=[size, 6]))
    _, (diag,) = plan(x)
    rows = [
      jacobian_diagonal(lambda row: fn(row[tf.newaxis])[0], row) for row in x
    ]
    np.testing.assert_allclose(diag, rows)


@pytest.mark.parametrize(
  'rows',
  [
    lambda n: tf.range(n)[::-1],
    lambda n: tf.roll(tf.range(n), 2, 0),
    lambda n: tf.minimum(tf.range(n), 3),
    lambda n: tf.cast(tf.cast(tf.range(n), tf.float32) * 1.5, tf.int32) % n,
  ],
)
def test_places_of_other_samples(rows):
  def fn(x):
    index = rows(number(x))
    return x * tf.gather_nd(x, tf.stack([index, index * 0], 1))[:, tf.newaxis]

  with pytest.raises((SampleMixingError, NoStructureError)):
    jacobian_sparsity(fn, tf.TensorSpec([None, 6]), [None])


def test_a_column_that_is_turned_round():
  def fn(x):
    rows = tf.range(number(x))[::-1, tf.newaxis]
    labels = tf.argmax(x, 1, output_type=tf.int32)[:, tf.newaxis]
    picked = tf.gather_nd(x, tf.concat([rows, labels], 1))
    return x * picked[:, tf.newaxis]

  with pytest.raises(SampleMixingError):
    jacobian_sparsity(fn, tf.TensorSpec([None, 6]), [None])


def test_places_along_another_axis_than_the_samples():
  """Row k of the indices is not sample k where the samples are columns."""

  def fn(x):
    rows = tf.range(number(x))
    picked = tf.gather_nd(tf.transpose(x), tf.stack([rows % 6, rows], 1))
    return x * picked[:, tf.newaxis]

  with pytest.raises((SampleMixingError, NoStructureError)):
    jacobian_sparsity(fn, tf.TensorSpec([None, 6]), [None])
