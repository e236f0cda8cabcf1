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
"""All pairs of particles, among them each one and itself."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import (
  hessian_by_copies,
  hessian_diagonal,
  unmixed_diagonals,
)

B, N, D = 3, 6, 2


def draw(seed, *shape):
  rng = np.random.default_rng(seed)
  return tf.constant(rng.normal(size=shape or (B, N, D)))


def hessian(fn, x):
  """The diagonal of the Hessian of each sample."""
  flat = tf.reshape(x, [-1, N * D])
  particles = [-1, *x.shape[-2:]]
  diag = hessian_by_copies(lambda x: fn(tf.reshape(x, particles)), flat)
  return tf.reshape(diag, x.shape)


def pairs(x):
  return x[..., :, tf.newaxis, :] - x[..., tf.newaxis, :, :]


def kernel(x):
  squares = tf.reduce_sum(pairs(x) ** 2, -1)
  return tf.reduce_sum(tf.exp(-squares), [-1, -2])


def squared_differences(x):
  """With a potential of each particle alone, and weights."""
  rows, columns = x[..., :, tf.newaxis, :], x[..., tf.newaxis, :, :]
  squares = tf.reduce_sum(tf.math.squared_difference(rows, columns), -1)
  weights = tf.reshape(tf.range(N * N, dtype=x.dtype), [N, N])
  energy = weights / (1.0 + squares)
  return tf.reduce_sum(energy, [-1, -2]) + tf.reduce_sum(x**4, [-1, -2])


def gathered(x):
  """Pairs in lists, some of them of one particle."""
  i, j = [0, 1, 2, 3, 3, 5, 0], [1, 1, 0, 3, 4, 5, 5]
  d = tf.gather(x, i, axis=-2) - tf.gather(x, j, axis=-2)
  return tf.reduce_sum(tf.math.log_sigmoid(tf.reduce_sum(d * d, -1)), -1)


def distances(x):
  """Each particle's distance from itself is made one, and not counted."""
  eye = tf.eye(N, dtype=x.dtype)
  distance = tf.sqrt(tf.reduce_sum(pairs(x) ** 2, -1) + eye)
  return tf.reduce_sum((1.0 - eye) / distance, [-1, -2])


def turned(x):
  """Differences of a matrix and its transpose: zeros on the diagonal."""
  square = x[..., :, :1] * tf.ones([N], x.dtype) + x[..., :, 1:]
  d = square - tf.linalg.matrix_transpose(square)
  return tf.reduce_sum(tf.exp(0.1 * d) + d**3, [-1, -2])


def twice(x):
  """What is the same on the one way, and another element on the other."""
  flat = tf.reshape(x, tf.concat([tf.shape(x)[:-2], [N * D]], 0))
  d = flat[..., :, tf.newaxis] - flat[..., tf.newaxis, :]
  other = flat - tf.reverse(flat, [-1])
  return tf.reduce_sum(tf.sin(d) ** 2, [-1, -2]) + tf.reduce_sum(other**4, -1)


def grouped(x):
  """Effects of particles and of their groups: several ways to each pair."""
  flat = tf.reshape(x, tf.concat([tf.shape(x)[:-2], [N * D]], 0))
  z = flat[..., 3:] + tf.gather(flat[..., :3], np.arange(9) % 3, axis=-1)
  rows, columns = z[..., :, tf.newaxis], z[..., tf.newaxis, :]
  squares = tf.math.squared_difference(rows, columns)
  weights = tf.reshape(tf.range(81, dtype=x.dtype), [9, 9])
  total = tf.reduce_sum(weights * tf.exp(-squares), [-1, -2])
  return tf.math.log(2.0 + total)


def of_open_batches(fn, x):
  spec = tf.TensorSpec([None, *x.shape[1:]], x.dtype)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  return tf.function(lambda x: plan(x)[2], input_signature=[spec])(x)


def in_a_graph(fn, x):
  return tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])(x)


def compiled(fn, x):
  diagonal = lambda x: tfp_diag.diag_hessian(fn, x)[2]  # noqa: E731
  return tf.function(diagonal, jit_compile=True)(x)


def eager(fn, x):
  return tfp_diag.diag_hessian(fn, x, validate_args=True)[2]


def of_one_sample(fn, x):
  return tf.stack([tfp_diag.diag_hessian(fn, one)[2] for one in tf.unstack(x)])


# One function in each way; the others in a graph, where nothing is probed, and
# some in one more way. A plan is tried before.
@pytest.mark.parametrize(
  'fn, ways',
  [
    (kernel, [of_open_batches, in_a_graph, compiled, eager, of_one_sample]),
    (squared_differences, [in_a_graph, compiled]),
    (gathered, [in_a_graph, eager]),
    (distances, [in_a_graph]),
    (turned, [in_a_graph, of_one_sample]),
    (twice, [in_a_graph, of_open_batches]),
    (grouped, [in_a_graph, compiled]),
  ],
  ids=lambda f: getattr(f, '__name__', ''),
)
def test_pairs(fn, ways):
  x = draw(0)
  want = hessian(fn, x)
  for way in ways:
    np.testing.assert_allclose(way(fn, x), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
  'fn', [squared_differences, twice, grouped], ids=lambda f: f.__name__
)
def test_pairs_by_sweeps(fn, prefers_sweeps):
  x = draw(4)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.how == 'squared sweeps'
  found = tf.function(lambda x: tfp_diag.diag_hessian(fn, x, plan=plan)[2])(x)
  np.testing.assert_allclose(found, hessian(fn, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
  'fn, shape',
  [
    (kernel, [None, N, D]),
    (kernel, [B, N, D]),
    (kernel, [N, D]),
    (squared_differences, [None, N, D]),
    (gathered, [B, N, D]),
    (distances, [N, D]),
  ],
)
def test_one_sweep_for_all_pairs(fn, shape, prefers_sweeps):
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec(shape, tf.float64))
  assert (plan.how, plan.num_passes) == ('squared sweeps', 1)


def test_third_derivatives_of_pairs(prefers_sweeps):
  x = draw(1, N, D)
  found = tfp_diag.unmixed_derivatives(kernel, x, 3)

  def same(flat):
    """By another op: of powers at zero TensorFlow's third ones are NaN."""
    squares = tf.square(pairs(tf.reshape(flat, [-1, N, D])))
    return tf.reduce_sum(tf.exp(-tf.reduce_sum(squares, -1)), [-1, -2])

  second, third = unmixed_diagonals(same, tf.reshape(x, [1, N * D]))
  for got, want in ((found.second, second), (found.third, third)):
    np.testing.assert_allclose(
      np.ravel(got), np.ravel(want), rtol=1e-10, atol=1e-10
    )


def test_what_is_not_a_number_is_seen(prefers_sweeps):
  """A particle's energy with itself is infinite, as its derivatives are."""

  def coulomb(x):
    return tf.reduce_sum(1.0 / tf.reduce_sum(pairs(x) ** 2, -1), [-1, -2])

  x = draw(2)
  for way in (eager, in_a_graph):
    assert np.all(np.isnan(way(coulomb, x)))


@tf.custom_gradient
def doubled(x):
  return tf.identity(x), lambda dy: 2.0 * dy


def with_a_gradient_of_its_own(x):
  return x - doubled(x)


def held(x):
  return x - tf.stop_gradient(x)


def of_a_neighbor(x):
  return x - tf.roll(x, 1, -1)


def of_its_sine(x):
  return tf.sin(x) - x


def at_places_of_each_sample(x):
  """In the first sample the two sides are the same."""
  places = (np.arange(N) + np.arange(B)[:, np.newaxis]) % N
  return x - tf.gather(x, places, batch_dims=1)


def of_one_sample_only(x):
  """In the second sample the two sides are the same."""
  if x.shape[0] is None or x.shape[0] < 2:
    return x - tf.roll(x, 1, -1)
  return tf.stack([x[0] - tf.roll(x[0], 1, -1), *tf.unstack(x - x)[1:]])


@pytest.mark.parametrize(
  'difference',
  [
    with_a_gradient_of_its_own,
    held,
    of_a_neighbor,
    of_its_sine,
    at_places_of_each_sample,
    of_one_sample_only,
  ],
  ids=lambda f: f.__name__,
)
def test_differences_that_do_not_cancel(difference, prefers_sweeps):
  matrix = np.random.default_rng(0).normal(size=[N, N])

  def log_prob(x):
    d = difference(x)
    return tf.reduce_sum(tf.exp(d @ matrix) + 0.5 * d * x, -1)

  x = draw(3, B, N)
  want = hessian_diagonal(log_prob, x)
  found = in_a_graph(log_prob, x)
  np.testing.assert_allclose(found, want, rtol=1e-10, atol=1e-12)
