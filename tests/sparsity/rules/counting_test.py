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
  assert plan.num_passes == 2
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
