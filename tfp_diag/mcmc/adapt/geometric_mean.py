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
"""The matrix between two covariances."""

import tensorflow as tf

# Far apart the ratio of two eigenvalues falls to a quarter in each round, close
# together it converges quadratically: enough for ratios of up to about 1e30.
_MAX_ROUNDS = 60


def geometric_mean(a, b):
  """The geometric mean A # B: the V with V A⁻¹ V = B.

  Arithmetic and harmonic means of two matrices, taken in turns, meet there [1].

  Args:
    a: Symmetric positive definite Tensor of shape [d, d].
    b: As `a`.

  Returns:
    Tensor of that shape and the dtype of `a`, computed in float64.

  #### References

  [1]: Rajendra Bhatia (2007). _Positive Definite Matrices_, section 4.1.
       https://doi.org/10.1515/9781400827787
  """
  dtype = a.dtype
  a, b = (tf.cast(x, tf.float64) for x in (a, b))

  def differ(i, a, b):
    # Where all diagonals agree, so do the matrices: a - b is semidefinite.
    gap = tf.reduce_max(
      tf.abs(tf.linalg.diag_part(a) / tf.linalg.diag_part(b) - 1.0)
    )
    return (i < _MAX_ROUNDS) & (gap > 1e-10)

  def nearer(i, a, b):
    total = a + b
    # The harmonic mean 2 (a⁻¹ + b⁻¹)⁻¹, by one factorization.
    harmonic = 2.0 * tf.matmul(
      a, tf.linalg.cholesky_solve(tf.linalg.cholesky(total), b)
    )
    return i + 1, 0.5 * total, _symmetric(harmonic)

  # First once without a look: only then is a - b semidefinite.
  _, a, b = tf.while_loop(differ, nearer, nearer(0, a, b))
  return tf.cast(_symmetric(0.5 * (a + b)), dtype)


def _symmetric(x):
  return 0.5 * (x + tf.linalg.matrix_transpose(x))
