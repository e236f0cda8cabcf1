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
"""Tests solves, factorizations and transforms against differences."""

import pytest
import tensorflow as tf

from tfp_diag.sparsity.rules import linear_algebra

raw = tf.raw_ops
LOOSE = {'exact': False, 'exact_second': False}
FIRST = {'exact_second': False}


def spd(x):
  """Positive definite matrices with distinct eigenvalues."""
  n = x.shape[-1]
  shift = tf.linalg.diag(tf.range(1.0, n + 1.0, dtype=x.dtype) * 2)
  return x + tf.linalg.matrix_transpose(x) + shift


def complex_of(op, **kwargs):
  def call(x):
    return tf.math.real(op(tf.complex(x, 2 * x), **kwargs) * (1 + 2j))

  return call


LOWER = tf.constant([[1.0, 0, 0], [2, 1, 0], [1, 3, 1]], tf.float64)


def tridiagonal_product(kept):
  """Of what is kept as an argument; the rest is constant."""

  def fn(*given):
    batch, size = given[-1].shape[:-2], max(given[0].shape[-2:])
    operands = [tf.ones([*batch, 1, size], given[0].dtype)] * 3
    operands.append(tf.ones([*batch, size, 2], given[0].dtype))
    for k, value in zip(kept, given):
      operands[k] = value
    names = ('superdiag', 'maindiag', 'subdiag', 'rhs')
    return raw.TridiagonalMatMul(**dict(zip(names, operands)))

  return fn


CASES = [
  ('Cholesky', lambda x: tf.linalg.cholesky(spd(x)), [(2, 2, 2)], LOOSE),
  ('Cholesky', lambda x: tf.linalg.cholesky(spd(x)), [(1, 1)], {}),
  (
    'CholeskyGrad',
    lambda x, g: raw.CholeskyGrad(l=tf.linalg.band_part(x, -1, 0), grad=g),
    [(2, 2), (2, 2)],
    LOOSE,
  ),
  (
    'LogMatrixDeterminant',
    lambda x: tf.linalg.slogdet(spd(x))[1],
    [(2, 2, 2)],
    {},
  ),
  ('MatrixDeterminant', lambda x: tf.linalg.det(spd(x)), [(2, 2, 2)], LOOSE),
  ('MatrixInverse', lambda x: tf.linalg.inv(spd(x)), [(2, 2, 2)], {}),
  (
    'MatrixLogarithm',
    lambda x: tf.math.real(tf.linalg.logm(tf.cast(spd(x), tf.complex128))),
    [(2, 2)],
    LOOSE,
  ),
  (
    'MatrixSquareRoot',
    lambda x: tf.linalg.sqrtm(spd(x)),
    [(2, 2)],
    LOOSE,
  ),
  ('Qr', lambda x: list(tf.linalg.qr(x)), [(3, 2)], LOOSE),
  (
    'SelfAdjointEigV2',
    lambda x: list(tf.linalg.eigh(spd(x))),
    [(2, 2)],
    LOOSE,
  ),
  ('Svd', lambda x: tf.linalg.svd(x, compute_uv=False), [(2, 3, 2)], LOOSE),
  (
    'MatrixSolve',
    lambda a, b: tf.linalg.solve(spd(a), b),
    [(2, 2, 2), (2, 2, 2)],
    FIRST,
  ),
  ('MatrixSolve', lambda b: tf.linalg.solve(spd(LOWER), b), [(3, 2)], LOOSE),
  (
    'MatrixTriangularSolve',
    lambda a, b: tf.linalg.triangular_solve(
      a + tf.eye(2, dtype=a.dtype), b, lower=True
    ),
    [(2, 2, 2), (2, 2, 1)],
    LOOSE,
  ),
  *[
    (
      'MatrixTriangularSolve',
      lambda b, lower=lower, adjoint=adjoint: tf.linalg.triangular_solve(
        LOWER if lower else tf.transpose(LOWER), b, lower, adjoint
      ),
      [(3, 2)],
      {},
    )
    for lower in (True, False)
    for adjoint in (True, False)
  ],
  (
    'MatrixTriangularSolve',
    lambda b: raw.MatrixTriangularSolve(
      matrix=tf.stack([LOWER, LOWER]), rhs=b, lower=True
    ),
    [(3, 1)],
    {},
  ),
  *[
    ('TridiagonalMatMul', tridiagonal_product(kept), shapes, {})
    for kept, shapes in (
      ((0, 1, 2, 3), [(2, 1, 4)] * 3 + [(2, 4, 2)]),
      ((3,), [(4, 2)]),
      ((0,), [(1, 4)]),
      ((1, 3), [(1, 4), (4, 1)]),
      ((2, 3), [(1, 4), (4, 1)]),
    )
  ],
  (
    'TridiagonalSolve',
    lambda b: raw.TridiagonalSolve(
      diagonals=tf.constant([[1.0, 2, 0], [4, 5, 6], [0, 1, 2]], b.dtype), rhs=b
    ),
    [(3, 2)],
    {},
  ),
  (
    'BandedTriangularSolve',
    lambda b: raw.BandedTriangularSolve(
      matrix=tf.constant([[4.0, 5, 6], [0, 1, 2]], b.dtype), rhs=b
    ),
    [(3, 2)],
    {'exact': False},
  ),
  (
    'BandedTriangularSolve',
    lambda a, b: raw.BandedTriangularSolve(matrix=a + 1, rhs=b),
    [(2, 3), (3, 1)],
    LOOSE,
  ),
  (
    'TridiagonalSolve',
    lambda d, b: raw.TridiagonalSolve(diagonals=tf.stack([d, d + 3, d]), rhs=b),
    [(3,), (3, 1)],
    LOOSE,
  ),
  ('Cross', tf.linalg.cross, [(2, 3), (2, 3)], {}),
  ('FFT', complex_of(tf.signal.fft), [(2, 3)], LOOSE),
  ('IFFT', complex_of(tf.signal.ifft), [(2, 3)], LOOSE),
  ('FFT2D', complex_of(tf.signal.fft2d), [(2, 2, 3)], LOOSE),
  ('IFFT2D', complex_of(tf.signal.ifft2d), [(2, 2, 3)], LOOSE),
  ('FFT3D', complex_of(tf.signal.fft3d), [(2, 2, 3)], LOOSE),
  ('IFFT3D', complex_of(tf.signal.ifft3d), [(2, 2, 3)], LOOSE),
  (
    'RFFT',
    lambda x: tf.math.real(tf.signal.rfft(x, [4]) * (1 + 2j)),
    [(2, 4)],
    LOOSE,
  ),
  (
    'RFFT2D',
    lambda x: tf.math.real(tf.signal.rfft2d(x) * (1 + 2j)),
    [(2, 4)],
    LOOSE,
  ),
  (
    'RFFT3D',
    lambda x: tf.math.real(tf.signal.rfft3d(x) * (1 + 2j)),
    [(2, 2, 2)],
    LOOSE,
  ),
  (
    'IRFFT',
    lambda x: tf.signal.irfft(tf.complex(x, x), [4]),
    [(2, 3)],
    LOOSE,
  ),
  (
    'IRFFT2D',
    lambda x: tf.signal.irfft2d(tf.complex(x, x), [2, 4]),
    [(2, 3)],
    LOOSE,
  ),
  (
    'IRFFT3D',
    lambda x: tf.signal.irfft3d(tf.complex(x, x), [2, 2, 2]),
    [(2, 2, 2)],
    LOOSE,
  ),
]


@pytest.mark.parametrize(
  'op_type, fn, shapes, options', CASES, ids=[case[0] for case in CASES]
)
def test_against_differences(op_type, fn, shapes, options, check_rule):
  check_rule(op_type, fn, *shapes, **options)


def test_every_op_type_is_in_a_test(op_types_of):
  assert op_types_of(linear_algebra) == {case[0] for case in CASES}


def test_a_gaussian_with_a_parametrized_covariance(check_rule):
  def log_density(scales, x):
    chol = tf.linalg.cholesky(
      spd(tf.linalg.diag(scales)) + LOWER @ tf.transpose(LOWER)
    )
    white = tf.linalg.triangular_solve(chol, x[:, tf.newaxis])
    return -0.5 * tf.reduce_sum(white**2) - tf.reduce_sum(
      tf.math.log(tf.linalg.diag_part(chol))
    )

  check_rule('Cholesky', log_density, (3,), (3,), exact_second=False)
