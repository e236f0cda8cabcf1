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
"""Sweeps through the solution of a linear system with a matrix of its own.

The first coordinates of `x` are right-hand sides, the last two make the matrix.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import hessian_by_copies, unmixed_diagonals

tfd = tfp.distributions
RNG = np.random.default_rng(29)
SAMPLES, SIZE = 3, 10
TIMES = tf.constant(np.linspace(0.0, 1.0, SIZE)[:, np.newaxis])
COUNTS = tf.constant(RNG.poisson(2.0, SIZE).astype(np.float64))
FULL = tf.constant(RNG.normal(size=[SIZE, SIZE]) / 5.0 + 2.0 * np.eye(SIZE))
COLUMNS = tf.constant([1.0, -2.0, 0.5], tf.float64)
X = tf.constant(RNG.normal(size=[SAMPLES, SIZE + 2]) / 2.0)


def total(x):
  return tf.reduce_sum(x, axis=range(1, x.shape.rank))


def kernel(x):
  """A covariance for each sample."""
  size, scale = tf.unstack(tf.exp(x[:, SIZE:]), axis=-1)
  times = tf.cast(TIMES, x.dtype)
  apart = (times - tf.transpose(times)) ** 2
  apart = apart / scale[:, tf.newaxis, tf.newaxis] ** 2
  matrix = size[:, tf.newaxis, tf.newaxis] * tf.exp(-0.5 * apart)
  return matrix + 0.1 * tf.eye(SIZE, dtype=x.dtype)


def factor(x):
  return tf.linalg.cholesky(kernel(x))


def general(x):
  """A matrix for each sample, not symmetric."""
  bent = tf.sin(x[:, SIZE:, tf.newaxis, tf.newaxis])
  return FULL + bent[:, 0] * tf.transpose(FULL) + bent[:, 1] * FULL**2


def right(x):
  return x[:, :SIZE, tf.newaxis]


def gaussian_process(x):
  prior = tfd.MultivariateNormalTriL(
    tf.zeros([SIZE], x.dtype), factor(x)
  ).log_prob(x[:, :SIZE])
  likelihood = tfd.Poisson(log_rate=x[:, :SIZE]).log_prob(COUNTS)
  return prior + total(likelihood) - total(x[:, SIZE:] ** 2)


def upper(x):
  matrix = tf.linalg.matrix_transpose(factor(x))
  z = tf.linalg.triangular_solve(matrix, tf.sinh(right(x)), lower=False)
  return total(tf.cos(z))


def adjoint(x):
  return total(
    tf.cos(tf.linalg.triangular_solve(factor(x), right(x), adjoint=True))
  )


def solved(x):
  return total(tf.cos(tf.linalg.solve(general(x), tf.sinh(right(x)))))


def adjoint_solved(x):
  return total(tf.cos(tf.linalg.solve(general(x), right(x), adjoint=True)))


def several_right_hand_sides(x):
  z = tf.linalg.triangular_solve(factor(x), tf.sinh(right(x)) * COLUMNS)
  return -total(z**4)


def both_for_several_samples(x):
  """The right-hand sides are broadcast to matrices of three orders."""
  matrices = tf.stack([factor(x), 2.0 * factor(x)])
  z = tf.linalg.triangular_solve(matrices, right(x))
  return total(tf.cos(z[0]) * tf.sin(z[1]))


MODELS = [
  gaussian_process,
  upper,
  adjoint,
  solved,
  adjoint_solved,
  several_right_hand_sides,
]


# Each solver and each side with third derivatives, too.
THIRD = [adjoint, solved, several_right_hand_sides]


def agrees(plan, fn, x, has_third=True):
  """Asserts that second derivatives are right, by a plan, and third ones."""
  diag = tf.function(lambda x: plan(x)[2])(x)
  expected = hessian_by_copies(fn, x)
  np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-10)
  if not has_third:
    return
  found = tf.function(lambda x: tfp_diag.unmixed_derivatives(fn, x))(x)
  second, third = unmixed_diagonals(fn, x)
  for got, want in ((found.second, second), (found.third, third)):
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize('fn', MODELS)
def test_the_right_hand_side_takes_a_sweep(fn):
  """A sweep, and two passes for the coordinates of the matrix, no more."""
  spec = tf.TensorSpec([None, SIZE + 2], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  assert (plan.num_passes, plan.how) == (3, 'squared sweeps'), plan
  assert plan.ways[0].cost < 3.1
  agrees(plan, fn, X, has_third=fn in THIRD)


def test_a_large_matrix():
  """Of which no product with a Hessian for each row could be had."""
  size = 70
  times = tf.range(size, dtype=tf.float64)[:, tf.newaxis] / 10.0

  def fn(x):
    scale = tf.exp(x[:, size:, tf.newaxis])
    matrix = tf.exp(-(((times - tf.transpose(times)) / scale) ** 2))
    root = tf.linalg.cholesky(matrix + 0.1 * tf.eye(size, dtype=x.dtype))
    z = tf.linalg.triangular_solve(root, x[:, :size, tf.newaxis])
    return -0.5 * total(z**2) - total(tf.exp(x))

  x = tf.constant(RNG.normal(size=[1, size + 1]) / 2.0)
  plan = tfp_diag.plan_diag_hessian(
    fn, tf.TensorSpec([None, size + 1], tf.float64)
  )
  assert (plan.num_passes, plan.how) == (2, 'squared sweeps'), plan
  np.testing.assert_allclose(
    plan(x)[2], hessian_by_copies(fn, x), rtol=1e-9, atol=1e-10
  )


def of_both_for_one_row(x):
  """One coordinate is in the matrix, and in the right-hand side."""
  y = right(x) + x[:, SIZE:, tf.newaxis][:, :1] * tf.eye(SIZE, 1, dtype=x.dtype)
  return total(tf.cos(tf.linalg.triangular_solve(factor(x), y)))


def of_a_right_hand_side(x):
  """The matrix depends on a coordinate of the right-hand side."""
  scale = tf.exp(x[:, :1, tf.newaxis] / 5.0)
  z = tf.linalg.triangular_solve(factor(x) * scale, right(x))
  return total(tf.cos(z))


def solved_twice(x):
  """The solution is the right-hand side of the same matrix."""
  matrix = factor(x)
  z = tf.sin(tf.linalg.triangular_solve(matrix, right(x)))
  return total(tf.linalg.triangular_solve(matrix, z, adjoint=True) ** 2)


def of_its_own_matrix(x):
  """The same Tensor is the matrix and the right-hand side."""
  matrix = general(x) + tf.linalg.diag(tf.sin(x[:, :SIZE]))
  z = tf.linalg.triangular_solve(matrix, matrix)
  return total(tf.cos(z)) + total(tf.exp(x))


def of_the_other_triangle(x):
  """As a right-hand side all of it counts, as the matrix a triangle."""
  above = tf.linalg.band_part(
    tf.linalg.matmul(right(x), right(x), transpose_b=True), 0, -1
  )
  above -= tf.linalg.band_part(above, 0, 0)
  matrix = general(x) + above
  return total(tf.cos(tf.linalg.triangular_solve(matrix, matrix)))


def of_another_sample_of_matrices(x):
  """Each coordinate is in one matrix, and in the right side of the other."""
  one, two = x[:, : SIZE // 2], x[:, SIZE // 2 : SIZE]
  matrices = (
    tf.linalg.diag(2.0 + tf.sin(tf.stack([one, two], 1))) + FULL[:5, :5]
  )
  sides = tf.stack([two, one], 1)[..., tf.newaxis]
  return total(tf.cos(tf.linalg.triangular_solve(matrices, sides)))


def with_a_frontier(x):
  """Paths part before the right-hand side, and meet behind the solution."""
  y = tf.sinh(tf.linalg.matvec(FULL, x[:, :SIZE]))[..., tf.newaxis]
  z = tf.linalg.triangular_solve(factor(x), y)
  return total(tf.math.log(1.0 + total(z**2)[:, tf.newaxis])) - total(y)


ADVERSARIES = [
  of_both_for_one_row,
  of_a_right_hand_side,
  solved_twice,
  of_its_own_matrix,
  of_the_other_triangle,
  of_another_sample_of_matrices,
  with_a_frontier,
  both_for_several_samples,
]


@pytest.mark.parametrize('fn', ADVERSARIES)
def test_coordinates_that_meet(fn, prefers_sweeps):
  want = hessian_by_copies(fn, X)
  found = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])(X)
  np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-10)


def triangle(x):
  """A factor with an entry for each of the last coordinates."""
  count = TRIANGLE * (TRIANGLE + 1) // 2
  entries = tfp.math.fill_triangular(x[:, -count:])
  diagonal = tf.exp(tf.linalg.diag_part(entries))
  return tf.linalg.set_diag(entries, diagonal)


def all_entries(x):
  """A matrix that is not symmetric, with an entry for each coordinate."""
  entries = tf.reshape(x[:, -TRIANGLE * TRIANGLE :], [-1, TRIANGLE, TRIANGLE])
  return 3.0 * tf.eye(TRIANGLE, dtype=x.dtype) + tf.sin(entries)


TRIANGLE, ROWS = 5, 7
NUM_ENTRIES = TRIANGLE * (TRIANGLE + 1) // 2
OBSERVED = tf.constant(RNG.normal(size=[TRIANGLE, ROWS]))


def multivariate_regression(x):
  """With locations and a factor of the covariance."""
  normal = tfd.MultivariateNormalTriL(
    x[:, tf.newaxis, :TRIANGLE], triangle(x)[:, tf.newaxis]
  )
  return tf.reduce_sum(normal.log_prob(tf.transpose(OBSERVED)), axis=-1)


def bent_solutions(solve, matrix, **options):
  def fn(x):
    entries = matrix(x)
    sides = tf.broadcast_to(OBSERVED, [tf.shape(x)[0], TRIANGLE, ROWS])
    return total(tf.cos(solve(entries, sides, **options)))

  return fn


def upper_triangle(x):
  return tf.linalg.matrix_transpose(triangle(x))


def broadcast_entries(x):
  """One matrix for several systems; the right-hand sides have coordinates."""
  sides = tf.reshape(tf.sinh(x[:, : 2 * TRIANGLE]), [-1, 2, TRIANGLE])
  z = tf.linalg.triangular_solve(
    triangle(x)[:, tf.newaxis], sides[..., tf.newaxis]
  )
  return total(tf.cos(z))


BY_ENTRIES = {
  'a triangle': (
    bent_solutions(tf.linalg.triangular_solve, triangle),
    NUM_ENTRIES,
  ),
  'its adjoint': (
    bent_solutions(tf.linalg.triangular_solve, triangle, adjoint=True),
    NUM_ENTRIES,
  ),
  'an upper one': (
    bent_solutions(tf.linalg.triangular_solve, upper_triangle, lower=False),
    NUM_ENTRIES,
  ),
  'the adjoint of an upper one': (
    bent_solutions(
      tf.linalg.triangular_solve, upper_triangle, lower=False, adjoint=True
    ),
    NUM_ENTRIES,
  ),
  'a full matrix': (
    bent_solutions(tf.linalg.solve, all_entries),
    TRIANGLE * TRIANGLE,
  ),
  'its full adjoint': (
    bent_solutions(tf.linalg.solve, all_entries, adjoint=True),
    TRIANGLE * TRIANGLE,
  ),
  'a triangle of a full matrix': (
    bent_solutions(tf.linalg.triangular_solve, all_entries),
    TRIANGLE * TRIANGLE,
  ),
  'one for several systems': (broadcast_entries, 2 * TRIANGLE + NUM_ENTRIES),
  'a regression': (multivariate_regression, TRIANGLE + NUM_ENTRIES),
}


THIRD_BY_ENTRIES = [
  'its adjoint',
  'an upper one',
  'a full matrix',
  'its full adjoint',
  'one for several systems',
]


@pytest.mark.parametrize('name', BY_ENTRIES)
def test_each_entry_of_the_matrix_takes_the_same_sweep(name):
  fn, size = BY_ENTRIES[name]
  x = tf.constant(RNG.normal(size=[SAMPLES, size]) / 2.0)
  spec = tf.TensorSpec([None, size], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  assert (plan.num_passes, plan.how) == (1, 'squared sweeps'), plan
  agrees(plan, fn, x, has_third=name in THIRD_BY_ENTRIES)


def tied_entries(x):
  """One coordinate is in several entries."""
  x = x[:, :TRIANGLE]
  entries = tf.linalg.LinearOperatorToeplitz(x, tf.zeros_like(x)).to_dense()
  z = tf.linalg.triangular_solve(
    entries + 3.0 * tf.eye(TRIANGLE, dtype=x.dtype),
    OBSERVED * x[:, -1:, tf.newaxis],
  )
  return total(tf.cos(z))


def entries_on_two_paths(x):
  entries = all_entries(x) + 0.1 * all_entries(x) ** 2
  return total(tf.cos(tf.linalg.solve(entries, entries[..., ::-1])))


def entry_and_side(x):
  """Some entries are on the right-hand side of their own system, too."""
  sides = tf.concat([OBSERVED[:4, 0] + 0.0 * x[:, :4], x[:, -1:]], -1)
  z = tf.linalg.triangular_solve(triangle(x), sides[..., tf.newaxis])
  return total(z**4)


def both_factors(x):
  """The right-hand side of the second system has the matrix in it."""
  sides = tf.broadcast_to(OBSERVED, [tf.shape(x)[0], TRIANGLE, ROWS])
  z = tf.linalg.triangular_solve(triangle(x), sides)
  z = tf.linalg.triangular_solve(triangle(x), z, adjoint=True)
  return total(tf.cos(z))


def behind_a_sum(x):
  """All solutions meet again: the sweep starts at the matrix."""
  sides = tf.broadcast_to(OBSERVED, [tf.shape(x)[0], TRIANGLE, ROWS])
  z = tf.linalg.triangular_solve(triangle(x), sides)
  return tf.reduce_sum(tf.math.log(1.0 + tf.reduce_sum(z**2, -2)), -1)


def mixture_of_normals(x):
  """Two of them, with a term of their own for each entry."""
  size = NUM_ENTRIES + TRIANGLE
  x = tf.reshape(tf.pad(x, [[0, 0], [0, 2 * size - SIZE - 2]]), [-1, size])
  centered = OBSERVED - x[:, :TRIANGLE, tf.newaxis]
  z = tf.linalg.triangular_solve(triangle(x), centered)
  entries = x[:, -NUM_ENTRIES:]
  found = tf.reduce_sum(entries**3, -1)[:, tf.newaxis] - tf.reduce_sum(z**2, 1)
  found = tf.reshape(found, [-1, 2, ROWS])
  return total(tf.reduce_logsumexp(found, 1))


@pytest.mark.parametrize(
  'fn, size',
  [
    (tied_entries, TRIANGLE),
    (entries_on_two_paths, TRIANGLE * TRIANGLE),
    (entry_and_side, NUM_ENTRIES),
    (both_factors, NUM_ENTRIES),
    (behind_a_sum, NUM_ENTRIES),
    (mixture_of_normals, SIZE + 2),
  ],
)
def test_entries_that_meet(fn, size, prefers_sweeps):
  x = tf.constant(RNG.normal(size=[SAMPLES, size]) / 3.0)
  want = hessian_by_copies(fn, x)
  found = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])(x)
  np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-10)
