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
"""A square root of an inverse second moment, one batch of signals at a time."""

import numpy as np
import tensorflow as tf


def add_signals(factor, signals):
  """Updates R with R Rᵀ = P⁻¹ to one of (P + Σ_c s_c s_cᵀ)⁻¹.

  With the columns φ_c = Rᵀ s_c of Φ, the inverse is R (I + Φ Φᵀ)⁻¹ Rᵀ. If L is
  the Cholesky factor of I + Φᵀ Φ, its square root is [2]

      R' = R - R Φ L⁻ᵀ (I + L)⁻¹ Φᵀ

  For a single signal this is the recursion of [1].

  Args:
    factor: Tensor of shape [d, d]: R.
    signals: Tensor of shape [c, d]: s, one per row. If the sum of the squares
      of Φ overflows, all signals of this call are left out, and R' is R.

  Returns:
    Tensor of shape [d, d]: R'. Takes O(c d²) operations, and O(c³) for c > 1.

  #### References

  [1]: Michalis Titsias (2023). Optimal preconditioning and Fisher adaptive
       Langevin sampling. _NeurIPS_, algorithm 1.
       https://doi.org/10.48550/arXiv.2305.14442

  [2]: Angus Andrews (1968). A square root formulation of the Kalman covariance
       equations. _AIAA Journal_ 6(6).
       https://doi.org/10.2514/3.4671
  """
  # Rows, one per signal: Φᵀ and (R Φ)ᵀ.
  phi = tf.matmul(signals, factor)
  trace = tf.reduce_sum(tf.square(phi))
  phi = tf.where(tf.math.is_finite(trace), phi, tf.zeros_like(phi))
  moved = tf.matmul(phi, factor, transpose_b=True)
  gram = tf.matmul(phi, phi, transpose_b=True)
  identity = tf.eye(tf.shape(signals)[0], dtype=factor.dtype)
  # More signals than coordinates leave Φᵀ Φ singular: rounding errors of large
  # ones must not make the sum indefinite.
  rounding = 10.0 * np.finfo(factor.dtype.as_numpy_dtype).eps
  root = tf.linalg.cholesky(
    gram + (1.0 + rounding * tf.linalg.trace(gram)) * identity
  )
  weighted = tf.linalg.triangular_solve(
    root, tf.linalg.triangular_solve(identity + root, phi), adjoint=True
  )
  return factor - tf.matmul(moved, weighted, transpose_a=True)
