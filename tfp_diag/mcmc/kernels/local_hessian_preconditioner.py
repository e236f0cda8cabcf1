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
"""A preconditioner that follows the curvature of the log density."""

import dataclasses
import math

import numpy as np
import scipy.special
import tensorflow as tf

from tfp_diag.diagonal.evaluate import run_diagonal
from tfp_diag.diagonal.request import Request
from tfp_diag.internal import arguments
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import ThirdOrderProblem
from tfp_diag.mcmc.kernels.arguments import (
  check_gradients,
  check_target,
  in_words_of_a_target,
  log_prob_at,
)
from tfp_diag.mcmc.kernels.langevin_terms import LangevinTerms, like_parts


@dataclasses.dataclass(frozen=True)
class LocalHessianPreconditioner:
  r"""Scales each coordinate by the local curvature of the log density.

  Pass it as the `preconditioner` of `PreconditionedMALA`. At each point the
  noise of coordinate $i$ has the standard deviation $s_i(x)$, where

  $$
  \begin{aligned}
  \frac{1}{s_i(x)^2} &= \max\left(
  \operatorname{softabs}(-\partial_{ii} \log \pi(x)), \text{floor} \right) \\
  \operatorname{softabs}(\lambda) &= \lambda \coth(\lambda / \text{softness})
  \end{aligned}
  $$

  and the drift contains the exact $\partial_i s_i$, from third derivatives.
  softabs is the absolute value with its corner at zero rounded off:
  softabs(0) = softness. [1] applies it to the eigenvalues of the whole Hessian.
  Here it acts on the diagonal. Where a squared sweep can carry third
  derivatives, one gives all that is needed. Otherwise each color of
  `tfp_diag.plan_diag_hessian` costs two passes over the log density and its
  gradient.

  Use it for funnels, hierarchical models, and other targets whose scales change
  by orders of magnitude from place to place, so that no constant scale fits
  everywhere. Do not use it for a log density that is nearly Gaussian, where a
  constant scale is as good and several times cheaper; where the difficulty lies
  in correlations; or for a log density that needs many passes, since they are
  made in every step.

  Both arguments are curvatures, the inverse square of a length of the
  (unconstrained) state.

  Attributes:
    softness: Python `float` > 0, $1 / \alpha$ of [1]. Curvatures of smaller
      magnitude are treated as about this large.
    floor: Python `float` >= 0: smaller curvatures are replaced by this one.
      $s_i$ never exceeds $1 / \sqrt{\max(\text{softness}, \text{floor})}$.

  Raises:
    ValueError: if `softness` is not a positive number, or `floor` is not a
      number >= 0; both must be finite.

  #### Examples

  ```python
  import tensorflow as tf
  import tfp_diag


  def log_prob(v, x):  # Neal's funnel.
    return -(v**2) / 18.0 - 0.5 * tf.reduce_sum(
      x**2 * tf.exp(-v[..., tf.newaxis]) + v[..., tf.newaxis], axis=-1
    )


  kernel = tfp_diag.mcmc.PreconditionedMALA(
    log_prob,
    step_size=0.5,
    preconditioner=tfp_diag.mcmc.LocalHessianPreconditioner(softness=1e-4),
  )
  results = kernel.bootstrap_results([tf.constant([-2.0]), tf.ones([1, 3])])
  _, scale = results.accepted_results.grads_target_log_prob.volatility
  # The scale of the x's is exp(v / 2) = 0.37.
  tf.round(100.0 * scale[0])  # ==> [37., 37., 37.]
  ```

  #### References

  [1]: Michael Betancourt (2013). A general metric for Riemannian manifold
       Hamiltonian Monte Carlo. _Geometric Science of Information_,
       section on the SoftAbs metric.
       https://doi.org/10.1007/978-3-642-40020-9_35

  [2]: Tatiana Xifara, Chris Sherlock, Samuel Livingstone, Simon Byrne and Mark
       Girolami (2014). Langevin diffusions and the Metropolis-adjusted Langevin
       algorithm. _Statistics and Probability Letters_ 91.
       https://doi.org/10.1016/j.spl.2014.04.002
  """

  softness: float = 1e-2
  floor: float = 0.0

  def __post_init__(self):
    arguments.check_number(
      'softness',
      self.softness,
      'a positive number, the curvature below which coordinates count as flat',
      arguments.is_positive,
    )
    arguments.check_number(
      'floor',
      self.floor,
      'a number >= 0, which replaces smaller curvatures',
      lambda x: 0.0 <= x < math.inf,
    )

  @not_converted
  def evaluate(self, target_log_prob_fn, parts, parallel_iterations):
    """Evaluates the target, once, and this scale at a point.

    Args:
      target_log_prob_fn: Callable of the parts.
      parts: List of Tensors, the state.
      parallel_iterations: Python `int`: how many colors are differentiated
        together.

    Returns:
      target_log_prob: Tensor of the chain shape.
      terms: A `LangevinTerms` of lists.
    """
    with in_words_of_a_target():
      found = run_diagonal(
        _TargetProblem(target_log_prob_fn, list(parts)),
        Request(chunk_size=parallel_iterations),
      )
    (target_log_prob,) = found.result
    scales = [self._scale(-h, -dh) for h, dh in zip(found.diag, found.third)]
    return target_log_prob, LangevinTerms(
      gradient=like_parts(parts, found.gradient),
      volatility=like_parts(parts, [s for s, _ in scales]),
      volatility_gradient=like_parts(parts, [ds for _, ds in scales]),
    )

  def _scale(self, curvature, slope):
    """s and its derivative, from the curvature and its derivative."""
    softness = tf.constant(self.softness, curvature.dtype)
    floor = tf.constant(self.floor, curvature.dtype)
    value, derivative = _t_coth_t(curvature / softness)
    soft_curvature = softness * value
    is_floored = soft_curvature < floor
    scale = tf.math.rsqrt(tf.maximum(soft_curvature, floor))
    scale_slope = -0.5 * scale**3 * derivative * slope
    return scale, tf.where(is_floored, tf.zeros_like(scale), scale_slope)


class _TargetProblem(ThirdOrderProblem):
  """A target log density; what does not fit is said in the kernel's words."""

  def call(self, parts):
    """As `Problem.call`: the log density of each chain."""
    return log_prob_at(self.fn, parts)

  def outputs(self, result, parts):
    """As `Problem.outputs`."""
    check_target(result, parts)
    return [result]

  def check_gradient(self, gradient):
    """As `Problem.check_gradient`."""
    check_gradients(gradient)


# t coth t = Σ c_n t²ⁿ with c_n = 2²ⁿ B_2n / (2n)!, for |t| < π. At |t| < 0.3
# eight terms are exact in float64.
_RADIUS = 0.3
_ORDERS = 2 * np.arange(8)
_SERIES = (
  2.0**_ORDERS
  * scipy.special.bernoulli(_ORDERS[-1])[_ORDERS]
  / scipy.special.factorial(_ORDERS)
)


def _t_coth_t(t):
  """t coth t and its derivative, coth t - t / sinh² t."""
  is_small = tf.abs(t) < _RADIUS
  # Each branch is given arguments at which it is finite.
  far, near = tf.where(is_small, tf.ones_like(t), t), tf.where(is_small, t, 0.0)
  coth = 1.0 / tf.tanh(far)
  near_squared = near * near
  value = tf.where(
    is_small,
    tf.math.polyval(_as_constants(_SERIES, t.dtype), near_squared),
    far * coth,
  )
  derivative = tf.where(
    is_small,
    near
    * tf.math.polyval(
      _as_constants(_SERIES[1:] * _ORDERS[1:], t.dtype), near_squared
    ),
    # As products, so that a coth of one leaves one.
    coth - far * (coth - 1.0) * (coth + 1.0),
  )
  return value, derivative


def _as_constants(ascending, dtype):
  return [tf.constant(c, dtype) for c in ascending[::-1]]
