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
"""The preconditioner of least Fisher divergence, from draws and gradients.

With the gradient g of the log density, it is the V with V Cov(g) V = Cov(x):
the geometric mean of Cov(x) and Cov(g)⁻¹. Both are taken in the coordinates in
which the matrix in use is the identity, so that single precision holds them.

#### References

[1]: Adrian Seyboldt, Eliot Carlson and Bob Carpenter (2026). Preconditioning
     Hamiltonian Monte Carlo by minimizing Fisher divergence. The dense
     form.
     https://doi.org/10.48550/arXiv.2603.18845
"""

import typing

import tensorflow as tf

from tfp_diag.mcmc.adapt.geometric_mean import geometric_mean

# How many draws the matrix in use counts for, against those that were made, if
# there are fewer than two per coordinate.
_PRIOR_COUNT = 10.0


class Moments(typing.NamedTuple):
  """Moments of draws and gradients, in whitened coordinates.

  Attributes:
    count: Scalar Tensor: the number of draws.
    means: Tensor of shape [2, d]: the averages of L⁻¹ x, and of Lᵀ g.
    scatters: Tensor of shape [2, d, d]: Σ of the outer products of both, about
      these averages.
  """

  count: typing.Any
  means: typing.Any
  scatters: typing.Any


def no_draws(size, dtype):
  """The `Moments` of no draws of so many coordinates."""
  return Moments(
    tf.zeros([], dtype),
    tf.zeros([2, size], dtype),
    tf.zeros([2, size, size], dtype),
  )


def whitened(factor, draws):
  """The draws in the coordinates in which the preconditioner is the identity.

  Args:
    factor: L, a lower triangular Tensor of shape [d, d].
    draws: x and g, a Tensor of shape [draws, 2, d].

  Returns:
    L⁻¹ x and Lᵀ g, a Tensor of shape [2, draws, d].
  """
  positions = tf.linalg.triangular_solve(
    factor, tf.linalg.matrix_transpose(draws[:, 0])
  )
  return tf.stack(
    [tf.linalg.matrix_transpose(positions), tf.matmul(draws[:, 1], factor)]
  )


def add_draws(before, values):
  """Adds draws to moments, but for those in which some value is not finite.

  Args:
    before: `Moments`.
    values: What `whitened` returns.

  Returns:
    `Moments`.
  """
  counts = tf.reduce_all(tf.math.is_finite(values), axis=[0, 2])
  mask = tf.cast(counts, values.dtype)[:, tf.newaxis]
  values = tf.where(counts[:, tf.newaxis], values, tf.zeros_like(values))
  added = tf.reduce_sum(mask)
  means = tf.reduce_sum(values, axis=1) / tf.maximum(added, 1.0)
  centered = mask * (values - means[:, tf.newaxis, :])
  count = before.count + added
  share = added / tf.maximum(count, 1.0)
  shift = means - before.means
  return Moments(
    count,
    before.means + share * shift,
    before.scatters
    + tf.matmul(centered, centered, transpose_a=True)
    + before.count * share * shift[:, :, tf.newaxis] * shift[:, tf.newaxis, :],
  )


def new_factor(factor, moments):
  """The factor of the matrix that the draws ask for.

  Args:
    factor: L, in whose coordinates the moments are; lower triangular.
    moments: `Moments`.

  Returns:
    A factor of the same shape, or `factor` itself where the moments have none.
  """
  identity = tf.eye(factor.shape[-1], dtype=factor.dtype)
  # The covariances of a Gaussian are right as soon as they have full rank: what
  # makes sure of that fades where there are draws enough.
  enough = 2.0 * tf.cast(factor.shape[-1], factor.dtype)
  prior = _PRIOR_COUNT * tf.minimum(
    tf.square(enough / tf.maximum(moments.count, 1.0)), 1.0
  )
  positions, gradients = tf.unstack(
    (moments.scatters + prior * identity) / (moments.count + prior)
  )
  inverse = tf.linalg.cholesky_solve(
    tf.linalg.cholesky(tf.cast(gradients, tf.float64)),
    tf.cast(identity, tf.float64),
  )
  # Relative to the matrix in use.
  change = geometric_mean(tf.cast(positions, tf.float64), inverse)
  found = tf.matmul(factor, tf.cast(tf.linalg.cholesky(change), identity.dtype))
  return tf.where(tf.reduce_all(tf.math.is_finite(found)), found, factor)
