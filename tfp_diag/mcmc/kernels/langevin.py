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
"""The mathematics of one Langevin proposal, for one part of a state.

Pure functions of Tensors. With the step size τ, the gradient g of the log
density and standard normal noise z:

* `ConstantScale`: the factor L, V = L Lᵀ. The gradient is whitened to
  p = Lᵀ(√τ g), and

      y = x + √τ L(p / 2 + z)

* `ExponentialScale`: the same factor, but the pull of a Gaussian with the
  covariance V is integrated exactly. With r = exp(-τ / 2), p = Lᵀ g,

      y = x + L((1 - r) p + √(1 - r²) z)

* `Volatility`: the state-dependent scale s(x). The drift, which is
  b_i = τ (½ s_i² g_i + s_i ∂_i s_i), is whitened to u = b / (√τ s), and

      y = x + √τ s (u + z)

All offer the same three methods, in which `root` is √τ, a Tensor that
broadcasts to the part, and `terms` is what was evaluated at a point. What a
step has to be corrected for is a function of its noise and of what is whitened
at both ends: the states themselves are not read again, which for many chains
takes as long as the arithmetic.

#### References

[1]: Gareth Roberts and Richard Tweedie (1996). Exponential convergence of
     Langevin distributions and their discrete approximations. _Bernoulli_ 2(4).
     https://doi.org/10.2307/3318418

[2]: Tatiana Xifara, Chris Sherlock, Samuel Livingstone, Simon Byrne and Mark
     Girolami (2014). Langevin diffusions and the Metropolis-adjusted Langevin
     algorithm. _Statistics and Probability Letters_ 91: the drift of a
     diffusion whose volatility depends on the position.
     https://doi.org/10.1016/j.spl.2014.04.002

[3]: Michalis Titsias (2023). Optimal preconditioning and Fisher adaptive
     Langevin sampling. _NeurIPS_, proposition 1: the correction for a constant
     scale.
     https://doi.org/10.48550/arXiv.2305.14442

[4]: Simon Cotter, Gareth Roberts, Andrew Stuart and David White (2013). MCMC
     methods for functions: modifying old algorithms to make them faster.
     _Statistical Science_ 28(3), section 4: Langevin proposals that leave a
     Gaussian invariant.
     https://doi.org/10.1214/13-STS421
"""

import dataclasses
import typing

import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class ConstantScale:
  """Langevin dynamics with V = L Lᵀ everywhere; `terms` is the gradient.

  Attributes:
    factor: L, with `matvec` as of a `tf.linalg.LinearOperator`.
  """

  factor: typing.Any

  def whiten(self, terms, root):
    """The gradient in the coordinates in which the noise is white.

    Args:
      terms: Tensor of the part's shape: g.
      root: √τ.

    Returns:
      p, of the part's shape.
    """
    return self.factor.matvec(root * terms, adjoint=True)

  def propose(self, x, terms, whitened, noise, root):
    """Draws y.

    Args:
      x: Tensor, the part.
      terms: g(x).
      whitened: p(x).
      noise: Standard normal Tensor of the part's shape.
      root: √τ.

    Returns:
      y, of the part's shape.
    """
    del terms  # `whitened` holds all that is needed of it.
    return x + root * self.factor.matvec(noise + 0.5 * whitened)

  def correction(self, terms, whitened, noise, root, axes):
    """log q(x | y) - log q(y | x), without log-determinants or divisions.

    Args:
      terms: Pair of Tensors (g(x), g(y)).
      whitened: Pair of Tensors (p(x), p(y)).
      noise: That of `propose`.
      root: √τ.
      axes: The event axes, summed over.

    Returns:
      Tensor of the chain shape.
    """
    del terms, root  # `whitened` holds them.
    # What two kicks add to the kinetic energy of a velocity, which is the noise
    # before them. Each ends before the other begins: what is whitened at x is
    # not needed any more where that of y is computed. Both are seen from the
    # velocity between them, which moves x: XLA would make the noise a second
    # time for what reads it beside that.
    middle = noise + 0.5 * whitened[0]
    kicks = [
      whitened[0] * (middle - 0.25 * whitened[0]),
      whitened[1] * (middle + 0.25 * whitened[1]),
    ]
    return -0.5 * tf.add_n([tf.reduce_sum(k, axis=axes) for k in kicks])


@dataclasses.dataclass(frozen=True, eq=False)
class ExponentialScale:
  """V = L Lᵀ everywhere, integrated exactly where g = -V⁻¹ (x - mean).

  With that gradient y is where the Ornstein-Uhlenbeck process is after the time
  τ, and is always accepted. To first order in τ this is `ConstantScale`.

  Attributes:
    factor: L, with `matvec` as of a `tf.linalg.LinearOperator`.
  """

  factor: typing.Any

  def whiten(self, terms, root):
    """The gradient in the coordinates in which the noise is white.

    Args:
      terms: Tensor of the part's shape: g.
      root: √τ.

    Returns:
      p, of the part's shape.
    """
    del root
    return self.factor.matvec(terms, adjoint=True)

  def propose(self, x, terms, whitened, noise, root):
    """Draws y.

    Args:
      x: Tensor, the part.
      terms: g(x).
      whitened: p(x).
      noise: Standard normal Tensor of the part's shape.
      root: √τ.

    Returns:
      y, of the part's shape.
    """
    del terms  # `whitened` holds all that is needed of it.
    time = tf.square(root)
    pull, spread = -tf.math.expm1(-0.5 * time), -tf.math.expm1(-time)
    return x + self.factor.matvec(pull * whitened + tf.sqrt(spread) * noise)

  def correction(self, terms, whitened, noise, root, axes):
    """log q(x | y) - log q(y | x), without log-determinants.

    Args:
      terms: Pair of Tensors (g(x), g(y)).
      whitened: Pair of Tensors (p(x), p(y)).
      noise: That of `propose`.
      root: √τ, equal for all coordinates that L mixes.
      axes: The event axes, summed over.

    Returns:
      Tensor of the chain shape.
    """
    del terms  # `whitened` holds all that is needed of it.
    time = tf.square(root)
    pull, spread = -tf.math.expm1(-0.5 * time), -tf.math.expm1(-time)
    total = whitened[0] + whitened[1]
    work = total * (0.5 * pull * total + tf.sqrt(spread) * noise)
    return -tf.reduce_sum(work / (1.0 + tf.exp(-0.5 * time)), axis=axes)


@dataclasses.dataclass(frozen=True)
class Volatility:
  """Langevin dynamics with a scale s(x); `terms` is a `LangevinTerms`."""

  def whiten(self, terms, root):
    """The drift in units of the noise.

    Args:
      terms: `LangevinTerms`: g, s and ∂_i s_i.
      root: √τ.

    Returns:
      u = √τ (½ s g + ∂s), of the part's shape.
    """
    scaled_gradient = 0.5 * terms.volatility * terms.gradient
    return root * (scaled_gradient + terms.volatility_gradient)

  def propose(self, x, terms, whitened, noise, root):
    """Draws y.

    Args:
      x: Tensor, the part.
      terms: `LangevinTerms` at x.
      whitened: u(x).
      noise: Standard normal Tensor of the part's shape.
      root: √τ.

    Returns:
      y, of the part's shape.
    """
    return x + root * terms.volatility * (whitened + noise)

  def correction(self, terms, whitened, noise, root, axes):
    """log q(x | y) - log q(y | x).

    Args:
      terms: Pair of `LangevinTerms`, at x and at y.
      whitened: Pair of Tensors (u(x), u(y)).
      noise: That of `propose`.
      root: √τ.
      axes: The event axes, summed over.

    Returns:
      Tensor of the chain shape.
    """
    del root  # `whitened` holds it.
    ratio = terms[0].volatility / terms[1].volatility
    # The noise of the step back, but for its sign.
    back = ratio * (whitened[0] + noise) + whitened[1]
    # ½ (noise² - back²) as a product, exact where the two are close.
    quadratic = 0.5 * (noise - back) * (noise + back)
    return tf.reduce_sum(quadratic + tf.math.log(ratio), axis=axes)
