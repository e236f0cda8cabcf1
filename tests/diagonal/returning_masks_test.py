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
"""What is left out of the ops of a function, and how passes go around it."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.diagonal.returning_paths_test import (
  KEYS,
  RATES,
  K,
  N,
  constant,
  diagonal,
  differences,
  fixture_passes,
  forces,
  state,
)
from tests.oracles import jacobian_diagonal

__all__ = ['fixture_passes']

RNG = np.random.default_rng(19)


def _of_each_sample(x):
  """A factor that is computed from a sample, and has no derivative."""
  near = tf.reduce_sum(differences(x) ** 2, -1) < 0.5
  return tf.linalg.matmul(tf.cast(near, x.dtype), tf.sin(x)) * x


def _of_the_batch(x):
  """A factor that is computed from the size of the batch."""
  weights = tf.eye(N, batch_shape=tf.shape(x)[:1], dtype=x.dtype) + 0.1
  return tf.linalg.matmul(weights, tf.sin(x)) * x


def _of_a_stopped_gradient(x):
  scores = tf.linalg.matmul(x, x, transpose_b=True)
  weights = tf.stop_gradient(tf.nn.softmax(scores))
  return tf.linalg.matmul(weights, tf.sin(x)) * x


@pytest.mark.parametrize(
  'fn', [_of_each_sample, _of_the_batch, _of_a_stopped_gradient]
)
def test_factors_with_samples_serve_any_number_of_them(fn, passes):
  """What is left out of a factor is so in each sample, not in those walked."""
  spec = tf.TensorSpec([None, N, K], tf.float64)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, [None])
  run = tf.function(
    lambda x: diagonal(x, fn, [None]),
    input_signature=[spec],
    autograph=False,
  )
  planned = tf.function(
    lambda x: diagonal(x, fn, [None], plan=plan), autograph=False
  )
  for batch in (1, 2, 5):
    x = state(batch)
    expected = jacobian_diagonal(fn, x)
    for call in (run, planned):
      np.testing.assert_allclose(call(x), expected, rtol=1e-9, atol=1e-11)
  many = state(200)  # Two samples stand for all.
  known = tf.function(lambda x: diagonal(x, fn, [200]), autograph=False)(many)
  few = tf.function(lambda x: diagonal(x, fn, [3]), autograph=False)(many[:3])
  np.testing.assert_allclose(known[:3], few, rtol=1e-9, atol=1e-11)
  assert passes


def test_elements_of_an_argument_are_left_out(passes):
  """One result takes a sum over all of them."""

  def fn(x):
    first = tf.one_hot(0, N, dtype=x.dtype)[:, tf.newaxis]
    return x**2 + first * tf.reduce_sum(x**3, -2, keepdims=True)

  x = state(3)
  run = tf.function(lambda x: diagonal(x, fn, [3]), autograph=False)
  np.testing.assert_allclose(run(x), jacobian_diagonal(fn, x), rtol=1e-9)
  assert tfp_diag.plan_diag_jacobian(fn, x, [3]).num_passes == 1
  assert passes


def test_interactions_one_after_the_other(passes):
  """What lies before all of them is differentiated once."""

  def fn(x):
    h = tf.tanh(x @ constant(KEYS, x))
    z = x
    for _ in range(3):
      d = z[..., :, tf.newaxis, :] - h[..., tf.newaxis, :, :]
      z = z + tf.reduce_mean(tf.sin(d), -2)
    return z

  x = state(3)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [3])
  run = tf.function(lambda x: diagonal(x, fn, [3], plan=plan), autograph=False)
  np.testing.assert_allclose(run(x), jacobian_diagonal(fn, x), rtol=1e-9)
  ops = run.get_concrete_function(x).graph.get_operations()
  grads = [op for op in ops if op.type == 'TanhGrad']
  assert passes and len(grads) == plan.num_passes


def test_a_constant_beside_forces(passes):
  def fn(x, y):
    return [forces(x), tf.zeros_like(y)]

  x = state(3)
  plan = tfp_diag.plan_diag_jacobian(fn, [x, x[:, :1]], [3])
  assert plan.num_passes == 3
  diag = plan([x, x[:, :1]])[1]
  np.testing.assert_allclose(diag[0], jacobian_diagonal(forces, x), rtol=1e-9)
  np.testing.assert_array_equal(diag[1], np.zeros([3, 1, K]))
  assert passes


def test_what_is_left_out_may_be_infinite(passes):
  """The slope of one pair is: of a result, and of another's coordinate."""

  def fn(x):
    d = x[..., :, tf.newaxis, :] - 2.0 * x[..., tf.newaxis, :, :]
    return tf.reduce_sum(tf.sqrt(tf.abs(d)), -2)

  x = state(2).numpy()
  x[0, 3, 1] = 2.0 * x[0, 5, 1]
  run = tf.function(lambda x: diagonal(x, fn, [2]), autograph=False)
  found = run(x).numpy()
  assert passes
  assert not np.isfinite(found[0, 3, 1])
  expected = jacobian_diagonal(fn, tf.constant(x)).numpy()
  found[0, 3, 1] = expected[0, 3, 1] = 0.0
  assert np.all(np.isfinite(found))
  finite = np.isfinite(expected)
  np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-9)


def test_each_needed_derivative_is_kept():
  """A weight of the diagonal alone: nothing else of the matrix is needed."""
  own = np.diag(RATES).copy()
  x = state(2)
  changed = RATES + RNG.standard_normal((N, N)) * (1 - np.eye(N))

  def of(rates):
    return lambda x: tf.einsum('ij,...jk->...ik', constant(rates, x), x)

  expected = np.broadcast_to(own[:, np.newaxis], x.shape)
  for rates in (RATES, changed):
    np.testing.assert_allclose(diagonal(x, of(rates), [2]), expected)


def agrees(fn, x, sample_shape):
  run = tf.function(lambda x: diagonal(x, fn, sample_shape), autograph=False)
  found, expected = run(x), jacobian_diagonal(fn, x)
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_tensors_that_several_ops_take(passes):
  """What one op is derived by is an argument of another that is held."""

  def fn(x):
    shape = tf.concat([tf.shape(x)[:-1], tf.shape(x)[-2:]], 0)
    one = tf.broadcast_to(x[..., :, tf.newaxis, :], shape)
    other = tf.broadcast_to(tf.sin(x)[..., tf.newaxis, :, :], shape)
    third = tf.broadcast_to(tf.cos(x)[..., tf.newaxis, :, :], shape)
    fourth = tf.broadcast_to(tf.exp(x)[..., :, tf.newaxis, :], shape)
    found = tf.sin(one * other) + tf.cos(third * one) + tf.atan2(other, fourth)
    return tf.reduce_sum(found * one, -2)

  agrees(fn, state(3), [3])
  assert passes


def test_samples_that_do_not_lead():
  """As many samples as particles: shapes do not tell them apart."""

  def fn(x):
    y = tf.transpose(x, [1, 0, 2])
    d = y[:, tf.newaxis] - 2.0 * y[tf.newaxis]
    moved = tf.transpose(tf.reduce_sum(tf.sin(d), 1), [1, 0, 2])
    return moved + tf.roll(x, 1, -2)

  agrees(fn, state(N), [N])


def test_samples_of_another_structure(passes):
  """What one of them needs is not left out of it."""
  chosen = RNG.uniform(size=(3, N, N, 1)) < 0.5
  assert len({tuple(np.diagonal(one[..., 0])) for one in chosen}) == 3

  def fn(x):
    d = x[..., :, tf.newaxis, :] - 2.0 * x[..., tf.newaxis, :, :]
    return tf.reduce_sum(tf.where(chosen, tf.sin(d), tf.zeros_like(d)), -2)

  agrees(fn, state(3), [3])
  assert passes
