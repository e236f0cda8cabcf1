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
"""Sweeps that start anew behind a fixed linear map with many paths."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import (
  hessian_by_copies,
  hessian_diagonal,
  unmixed_diagonals,
)

tfd = tfp.distributions
RNG = np.random.default_rng(11)
SAMPLES, SIZE, ROWS = 4, 24, 60
DESIGN = tf.constant(RNG.normal(size=[ROWS, SIZE]))
RESPONSE = tf.constant(RNG.normal(size=[ROWS]))
FIRST = RNG.integers(0, SIZE, ROWS)
SECOND = (FIRST + RNG.integers(1, SIZE, ROWS)) % SIZE
X = tf.constant(RNG.normal(size=[SAMPLES, SIZE]))


def centered(x):
  return x - tf.reduce_mean(x, axis=-1, keepdims=True)


def predictor(x):
  return tf.linalg.matvec(DESIGN, centered(x))


def differences(x):
  x = centered(x)
  return tf.gather(x, FIRST, axis=-1) - tf.gather(x, SECOND, axis=-1)


def twice_summed(x):
  return tf.cumsum(tf.cumsum(x, axis=-1), axis=-1)


def smoothed(x):
  x = tf.pad(x, [[0, 0], [3, 3]])
  for _ in range(3):
    x = (x[:, :-2] + 2.0 * x[:, 1:-1] + x[:, 2:]) / 4.0
  return tf.linalg.matvec(DESIGN, x)


def cauchy(z):
  return -tf.math.log1p(z**2 / 3.0)


def comparison(z):
  return tf.math.log_sigmoid(z) - tf.sqrt(1.0 + z**2)


def long_formula(z):
  return tf.exp(-(tf.tanh(z) ** 2)) * tf.sin(z)


def total(x):
  return tf.reduce_sum(x, axis=-1)


# Each takes one sweep, and one matrix.
ONE_MATRIX = {
  'robust regression': lambda x: total(cauchy(RESPONSE - predictor(x))),
  'pairwise comparisons': lambda x: total(comparison(differences(x))),
  'a random walk': lambda x: total(cauchy(twice_summed(x))) - total(x**4),
  'smoothed': lambda x: total(tf.sqrt(0.1 + smoothed(x) ** 2)),
  'a long formula': lambda x: total(long_formula(predictor(x))),
}


def distribution(x):
  """The same, of any number of samples."""
  noise = tfd.StudentT(tf.constant(4.0, x.dtype), predictor(x), 2.0)
  return total(noise.log_prob(RESPONSE)) - total(x**2)


OPEN = tf.TensorSpec([None, SIZE], X.dtype)


def close(found, expected, rtol=1e-9):
  np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-10)


# A matrix, differences, and a formula of more than one op.
THIRD = ['pairwise comparisons', 'a long formula']


@pytest.mark.parametrize('name', ONE_MATRIX)
def test_one_sweep_and_one_matrix(name):
  fn = ONE_MATRIX[name]
  plan = tfp_diag.plan_diag_hessian(fn, X)
  assert plan.how == 'squared sweeps', plan
  assert plan.num_passes == 1 + SIZE // SAMPLES
  assert 'through a fixed linear map' in str(plan)
  second, third = unmixed_diagonals(fn, X)
  close(tf.function(lambda x: plan(x)[2])(X), second)
  if name in THIRD:
    found = tf.function(lambda x: tfp_diag.unmixed_derivatives(fn, x))(X)
    close(found.second, second)
    close(found.third, third)


@pytest.mark.parametrize('is_compiled', [False, True])
def test_of_any_number_of_samples(is_compiled):
  fn = distribution
  plan = tfp_diag.plan_diag_hessian(fn, OPEN)
  assert plan.how == 'squared sweeps', plan

  @tf.function(jit_compile=is_compiled, input_signature=[OPEN])
  def diagonal(x):
    return tfp_diag.diag_hessian(fn, x, plan=plan)[-1]

  for num in (1, SAMPLES):
    close(diagonal(X[:num]), hessian_by_copies(fn, X[:num]))


def of_neighbors(x):
  # A curved op that sees two elements of the map.
  z = predictor(x)
  return total(cauchy(z[:, 1:] * z[:, :-1]))


def beside_the_map(x):
  return total(cauchy(predictor(x) * x[:, :1]))


def weighted_by_sample(x):
  # The last coordinate scales the map: no fixed matrix.
  return total(cauchy(predictor(x) * tf.exp(x[:, -1:])))


def of_two_maps(x):
  return total(tf.sin(predictor(x)) * tf.exp(0.1 * twice_summed(x)[:, :1]))


def of_permuted_rows(x):
  z = predictor(x)
  return total(cauchy(z + tf.gather(z, np.arange(ROWS)[::-1], axis=-1)))


def of_pooled_rows(x):
  z = tf.reshape(predictor(x), [-1, ROWS // 4, 4])
  return total(cauchy(tf.reduce_sum(tf.exp(0.3 * z), -1)))


def after_a_curved_op(x):
  return total(cauchy(predictor(tf.sin(x)) ** 2))


ADVERSARIES = [
  of_neighbors,
  beside_the_map,
  weighted_by_sample,
  of_two_maps,
  of_permuted_rows,
  of_pooled_rows,
  after_a_curved_op,
]


@pytest.mark.parametrize('fn', ADVERSARIES)
def test_adversaries(fn):
  """In a graph, where nothing is compared with a pass."""
  diagonal = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[-1])
  close(diagonal(X), hessian_by_copies(fn, X))


def test_parts_with_matrices_of_their_own():
  offsets = RNG.integers(0, 6, ROWS)

  def fn(slopes, groups, scale):
    z = predictor(slopes) + tf.gather(centered(groups), offsets, axis=-1)
    return total(cauchy((RESPONSE - z) * tf.exp(-scale))) - total(groups**2)

  parts = [X, tf.constant(RNG.normal(size=[SAMPLES, 6])), X[:, :1] * 0.1]
  plan = tfp_diag.plan_diag_hessian(fn, parts)
  assert plan.how == 'squared sweeps'
  # Those of both parts, the sweep, and the scale by itself.
  assert plan.num_passes == SIZE // SAMPLES + 2 + 1 + 1
  found = tfp_diag.diag_hessian(fn, parts)[-1]
  sizes = [SIZE, 6, 1]
  joined = hessian_by_copies(
    lambda x: fn(*tf.split(x, sizes, axis=-1)), tf.concat(parts, axis=-1)
  )
  for part, expected in zip(found, tf.split(joined, sizes, axis=-1)):
    close(part, expected)


def test_what_is_not_finite_stays_where_it_is():
  design = np.eye(SIZE) - np.eye(SIZE, k=1)
  design[-1, -1] = 0.0
  design = tf.constant(np.linalg.matrix_power(design, 2))

  def fn(x):
    z = tf.linalg.matvec(design, tf.linalg.matvec(design, x))
    return total(tf.sqrt(tf.sqrt(1.0 + z**2) - 1.0))

  x = X.numpy()
  x[1, :] = 0.0
  x[1, 0] = 1.0
  found = tfp_diag.diag_hessian(fn, tf.constant(x))[-1]
  expected = hessian_diagonal(fn, tf.constant(x))
  np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
  finite = np.isfinite(expected)
  close(found.numpy()[finite], expected.numpy()[finite])


@pytest.mark.parametrize('size', [1e-25, 1e15])
def test_coefficients_whose_squares_are_out_of_range(size):
  x = tf.cast(X, tf.float32)
  design = tf.cast(size * DESIGN, tf.float32)

  def fn(x):
    z = tf.linalg.matvec(design, centered(x))
    return total(tf.math.log1p((z / size) ** 2)) * min(1.0, size)

  wide = tf.cast(design, tf.float64)

  def exact(x):
    z = tf.linalg.matvec(wide, centered(x)) / size
    return total(tf.math.log1p(z**2)) * min(1.0, size)

  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.how == 'squared sweeps'
  expected = hessian_by_copies(exact, X)
  np.testing.assert_allclose(
    tfp_diag.diag_hessian(fn, x)[-1],
    expected,
    rtol=2e-3,
    atol=1e-4 * min(1, size),
  )


MATRIX = tf.constant(RNG.normal(size=[SIZE, SIZE]))
# Sums over samples that come last, or in the middle; products of two maps.
LAYOUTS = {
  'a form by einsum': lambda x: tf.einsum('bi,ij,bj->b', x, MATRIX, x),
  'a form by einsum, and more': lambda x: (
    tf.einsum('bi,ij,bj->b', x, MATRIX, x) - total(tf.exp(x))
  ),
  'a product of rows': lambda x: (
    tf.einsum('bi,bi->b', x, tf.linalg.matvec(MATRIX, x)) - total(x**4)
  ),
  'a product of matrices': lambda x: (
    tf.squeeze(tf.matmul(x[:, tf.newaxis] @ MATRIX, x[..., tf.newaxis]), [1, 2])
    - total(tf.cosh(x))
  ),
  'products of pieces': lambda x: total(
    tf.tanh(
      tf.einsum(
        'bik,bjk->bij',
        tf.reshape(tf.linalg.matvec(MATRIX, x), [-1, 3, 8]),
        tf.reshape(centered(x), [-1, 3, 8]),
      )[:, 0]
    )
  ),
  'samples last': lambda x: tf.reduce_sum(
    tf.math.softplus(tf.matmul(DESIGN, centered(x), transpose_b=True)), axis=0
  ),
  'samples last, behind two ops': lambda x: tf.reduce_sum(
    cauchy(tf.matmul(DESIGN, centered(x), transpose_b=True)), axis=0
  ),
  'samples in the middle': lambda x: tf.reduce_sum(
    cauchy(
      tf.einsum('cik,bk->cbi', tf.stack([DESIGN, -(DESIGN**2)]), centered(x))
    ),
    axis=[0, 2],
  ),
}


# With as many samples as coordinates shapes do not tell the axes apart: each
# layout is tried with that many or with fewer, a product of pieces with both.
@pytest.mark.parametrize(
  'name, num',
  [
    ('a form by einsum', SIZE),
    ('a form by einsum, and more', SAMPLES),
    ('a product of rows', SIZE),
    ('a product of matrices', SAMPLES),
    ('products of pieces', SAMPLES),
    ('products of pieces', SIZE),
    ('samples last', SIZE),
    ('samples last, behind two ops', SAMPLES),
    ('samples in the middle', SIZE),
  ],
)
def test_where_the_samples_are(name, num):
  fn, rng = LAYOUTS[name], np.random.default_rng(1)
  x = tf.constant(rng.normal(size=[num, SIZE]))
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.num_passes < SIZE, plan
  close(tfp_diag.diag_hessian(fn, x, plan=plan)[-1], hessian_by_copies(fn, x))


def test_two_sample_dimensions_in_the_middle():
  x = tf.reshape(X, [2, 2, SIZE])

  def fn(x):
    z = tf.einsum('ik,abk->iab', DESIGN, centered(x))
    return tf.reduce_sum(cauchy(z) - tf.math.softplus(z), axis=0)

  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.how == 'squared sweeps'
  found = tfp_diag.diag_hessian(fn, x, plan=plan)[-1]
  close(found, hessian_diagonal(fn, x))


def of_transposed_samples(x):
  # Element i of sample b goes to element b of sample i, and back.
  z = tf.linalg.matvec(MATRIX, x)
  return total(tf.transpose(tf.math.softplus(tf.transpose(z))))


def scaled_by_sample(x):
  # The map is another one for each sample.
  z = tf.matmul(DESIGN, centered(x), transpose_b=True)
  scale = tf.range(1.0, tf.cast(tf.shape(x)[0], x.dtype) + 1.0, dtype=x.dtype)
  return tf.reduce_sum(cauchy(z * scale), axis=0)


def product_scaled_by_sample(x):
  scale = tf.range(1.0, tf.cast(tf.shape(x)[0], x.dtype) + 1.0, dtype=x.dtype)
  z = tf.linalg.matvec(MATRIX, x) * scale[:, tf.newaxis]
  return tf.einsum('bi,bi->b', x, z) - total(tf.exp(x))


@pytest.mark.parametrize(
  'fn', [of_transposed_samples, scaled_by_sample, product_scaled_by_sample]
)
def test_other_matrices_for_other_samples(fn):
  x = tf.constant(np.random.default_rng(2).normal(size=[SIZE, SIZE]))
  close(tfp_diag.diag_hessian(fn, x)[-1], hessian_diagonal(fn, x))


@pytest.mark.parametrize(
  ('num', 'how'), [(None, 'squared sweeps'), (32, 'op by op')]
)
def test_an_open_batch_may_have_few_samples(num, how):
  """Which would not share the columns of a matrix."""
  rng = np.random.default_rng(0)
  design = tf.constant(rng.normal(size=[60, 20]))

  def fn(x):
    return -tf.reduce_sum(tf.nn.softplus(tf.linalg.matvec(design, x)), -1)

  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([num, 20], tf.float64))
  assert plan.how == how
