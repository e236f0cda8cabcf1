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
"""Preconditioners, the constant ones learned from draws and gradients.

With the gradient g of the log density, the V = L Lᵀ of least Fisher divergence
solves V Cov(g) V = Cov(x) [1]. A scale is the family in which V is sought: a
number per coordinate, those and a few directions, or a matrix. All of it is
NumPy on the host, between blocks of steps.

#### References

[1]: Adrian Seyboldt, Eliot Carlson and Bob Carpenter (2026). Preconditioning
     Hamiltonian Monte Carlo by minimizing Fisher divergence. Sections
     on the diagonal, the dense and the low-rank form.
     https://doi.org/10.48550/arXiv.2603.18845
"""

import typing

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
import tensorflow as tf

from tfp_diag.mcmc.adapt import fisher_matrix
from tfp_diag.mcmc.kernels.local_hessian_preconditioner import (
  LocalHessianPreconditioner,
)

# How many directions a low rank has, half of them seen in the draws and half in
# the gradients,
_RANK = 32
# and by which factor a variance along them must differ from one to count: what
# is between may be an error of estimation.
_LEAST_RATIO = 2.0
# Draws that are enough to see so many directions.
_ROWS_FOR_DIRECTIONS = 4000


class Scale:
  """A constant preconditioner V = L Lᵀ, and how it is learned.

  Attributes:
    kind: Python str, its name.
    factor: Array, L or a factor of it.
  """

  kind: str

  def __init__(self, factor):
    self.factor = np.asarray(factor, np.float64)

  @classmethod
  def of_deviations(cls, deviations):
    """The scale for coordinates of these standard deviations."""
    return cls(deviations)

  def learned(self, draws, gradients):
    """The scale of least Fisher divergence, from arrays of shape [n, d]."""
    return self._learned(draws, _nowhere_flat(draws, gradients))

  def arrays(self):
    """Dict of arrays, from which the class makes the scale again."""
    return {'factor': self.factor}


class LocalScale:
  """The local curvature: no constant, and nothing to learn.

  Attributes:
    softness: Python float, as for `LocalHessianPreconditioner`.
  """

  kind = 'local'

  def __init__(self, softness):
    self.softness = float(softness)

  def operator(self, dtype):
    """What kernels take as `preconditioner`."""
    del dtype
    return LocalHessianPreconditioner(self.softness)

  def arrays(self):
    """Dict of arrays, from which the class makes the scale again."""
    return {'softness': np.array(self.softness)}


class DiagonalScale(Scale):
  """A standard deviation per coordinate.

  Attributes:
    factor: Array of shape [d].
  """

  kind = 'diagonal'

  def operator(self, dtype):
    """L as kernels take it: their argument `preconditioner`."""
    return tf.constant(self.factor, dtype)

  def whiten(self, draws):
    """L⁻¹ x for draws of shape [n, d]."""
    return draws / self.factor

  def _learned(self, draws, gradients):
    # Of a coordinate that never moved, which keeps its factor.
    with np.errstate(divide='ignore', invalid='ignore'):
      among = [np.mean(centered(x) ** 2, axis=0) for x in (draws, gradients)]
      found = (among[0] / among[1]) ** 0.25
    known = np.isfinite(found) & (found > 0.0)
    return DiagonalScale(np.where(known, found, self.factor))


class LowRankScale(Scale):
  """A standard deviation per coordinate, and some directions.

  L = D (I + U diag(e) Uᵀ) with a diagonal D and orthonormal directions U, along
  which the standard deviation is 1 + e times as large. Cheap in thousands of
  coordinates: d times the number of directions, where a matrix takes d².

  Attributes:
    factor: D, an array of shape [d].
    directions: U, an array of shape [d, k]; columns that are not used are zero.
    excess: e, an array of shape [k].
  """

  kind = 'low_rank'

  def __init__(self, factor, directions, excess):
    super().__init__(factor)
    self.directions = np.asarray(directions, np.float64)
    self.excess = np.asarray(excess, np.float64)

  @classmethod
  def of_deviations(cls, deviations):
    """The scale for coordinates of these standard deviations."""
    rank = min(_RANK, len(deviations))
    return cls(deviations, np.zeros([len(deviations), rank]), np.ones(rank))

  def operator(self, dtype):
    """L as kernels take it: their argument `preconditioner`."""
    size = len(self.factor)
    return tf.linalg.LinearOperatorComposition(
      [
        tf.linalg.LinearOperatorDiag(tf.constant(self.factor, dtype)),
        tf.linalg.LinearOperatorLowRankUpdate(
          tf.linalg.LinearOperatorIdentity(size, dtype=dtype),
          tf.constant(self.directions, dtype),
          tf.constant(self.excess, dtype),
          # Says nothing about the signs of `excess`.
          is_self_adjoint=True,
        ),
      ],
      is_square=True,
    )

  def whiten(self, draws):
    """L⁻¹ x for draws of shape [n, d]."""
    scaled = draws / self.factor
    shrunk = 1.0 / (1.0 + self.excess) - 1.0
    return scaled + (scaled @ self.directions * shrunk) @ self.directions.T

  def _learned(self, draws, gradients):
    diagonal = DiagonalScale(self.factor).learned(draws, gradients)
    every = -(-len(draws) // _ROWS_FOR_DIRECTIONS)
    scaled = [
      centered(diagonal.whiten(draws[::every])),
      centered(gradients[::every]) * diagonal.factor,
    ]
    rank = len(self.excess)
    if not all(vary(x) for x in scaled):
      return self
    # Wide directions show in the draws, narrow ones in the gradients.
    shares = rank - rank // 2, rank // 2
    seen = [main_directions(x, k) for x, k in zip(scaled, shares) if k]
    basis = np.linalg.qr(np.concatenate(seen, axis=-1))[0]
    among = DenseScale(np.eye(basis.shape[-1]))
    factor = among.learned(*(x @ basis for x in scaled)).factor
    ratios, turns = np.linalg.eigh(factor @ factor.T)
    counts = np.abs(np.log(ratios)) > np.log(_LEAST_RATIO)
    # Few draws show fewer; what is compiled takes always as many.
    found = LowRankScale.of_deviations(diagonal.factor)
    found.directions[:, : len(ratios)] = np.where(counts, basis @ turns, 0.0)
    found.excess[: len(ratios)] = np.where(counts, np.sqrt(ratios) - 1.0, 1.0)
    return found

  def arrays(self):
    """Dict of arrays, from which the class makes the scale again."""
    more = {'directions': self.directions, 'excess': self.excess}
    return {**super().arrays(), **more}


class DenseScale(Scale):
  """A matrix of all coordinates.

  Attributes:
    factor: Lower triangular array of shape [d, d].
  """

  kind = 'dense'

  @classmethod
  def of_deviations(cls, deviations):
    """The scale for coordinates of these standard deviations."""
    return cls(np.diag(deviations))

  def operator(self, dtype):
    """L as kernels take it: their argument `preconditioner`."""
    return tf.linalg.LinearOperatorLowerTriangular(
      tf.constant(self.factor, dtype)
    )

  def whiten(self, draws):
    """L⁻¹ x for draws of shape [n, d]."""
    return scipy.linalg.solve_triangular(self.factor, draws.T, lower=True).T

  def _learned(self, draws, gradients):
    factor = tf.constant(self.factor)
    pairs = tf.constant(np.stack([draws, gradients], axis=1), tf.float64)
    moments = fisher_matrix.add_draws(
      fisher_matrix.no_draws(draws.shape[-1], tf.float64),
      fisher_matrix.whitened(factor, pairs),
    )
    return DenseScale(fisher_matrix.new_factor(factor, moments).numpy())


SCALES = {
  scale.kind: scale
  for scale in (DenseScale, LowRankScale, DiagonalScale, LocalScale)
}


# SciPy calls it rng since 1.15, and takes this name as well, which the checkers
# of types do not know.
_SEED: dict[str, typing.Any] = {'random_state': 0}


def centered(values):
  """Values less their means over the first axis.

  Exactly zero where all are the same: their mean may be rounded.
  """
  is_same = np.all(values == values[:1], axis=0)
  return np.where(is_same, 0.0, values - values.mean(axis=0))


def _nowhere_flat(draws, gradients):
  """Gradients, those of a Gaussian along coordinates where they never vary.

  A slope says how far a coordinate reaches that is exponential beyond an edge;
  of one that is uniform between edges the draws alone tell. Where all are so,
  a common scale is that of the steps, which finds itself.
  """
  x = centered(draws)
  deviation = np.sqrt(np.mean(x**2, axis=0))
  slope = np.abs(np.mean(gradients, axis=0))
  is_flat = ~np.any(centered(gradients), axis=0) & (deviation > 0.0)
  is_flat &= ~np.all(is_flat)
  unit = np.where(is_flat, deviation, 1.0)
  like = -x / unit * np.where(slope > 0.0, slope, 1.0 / unit)
  return np.where(is_flat, like, gradients)


def vary(values):
  """Whether centered values are finite, and tell of any direction."""
  return bool(np.all(np.isfinite(values)) and np.any(values))


def main_directions(values, number):
  """Orthonormal directions of most variance.

  Args:
    values: Array of shape [n, d], centered, that varies.
    number: Python int, how many.

  Returns:
    Array of shape [d, number], with fewer columns of fewer values.
  """
  if number < min(values.shape) // 2:
    _, _, found = scipy.sparse.linalg.svds(values, k=number, **_SEED)
    found = typing.cast(np.ndarray, found)
  else:
    found = np.linalg.svd(values, full_matrices=False)[2][:number]
  return found.T
