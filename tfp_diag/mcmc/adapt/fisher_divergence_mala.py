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
"""MALA that learns a full matrix from draws and gradients, in windows."""

import typing
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.mcmc.adapt.fisher_matrix import (
  Moments,
  add_draws,
  new_factor,
  no_draws,
  whitened,
)
from tfp_diag.mcmc.adapt.full_matrix_kernel import FullMatrixKernel
from tfp_diag.mcmc.adapt.windows import adaptation_windows
from tfp_diag.mcmc.kernels.langevin_kernel import (
  DISCRETIZATIONS,
  Discretization,
)
from tfp_diag.mcmc.kernels.parameterized_kernel import Argument


class FisherDivergenceMALAResults(typing.NamedTuple):
  r"""Kernel results of `FisherDivergenceMALA`.

  Attributes:
    inner_results: The `PreconditionedMALAResults` of the step, for the state as
      one vector of d coordinates, parts in order.
    factor: Tensor of shape [d, d], lower triangular: $L$, with the
      preconditioner $V = L L^\top$. The noise is scaled by $L$.
    step: int32 scalar Tensor: how many steps were taken.
    count: Scalar Tensor: the number of draws of the window that is under way.
    means: Tensor of shape [2, d]: their averages of $L^{-1} x$, and of
      $L^\top g$.
    scatters: Tensor of shape [2, d, d]: the sums of the outer products of both,
      about these averages.

  #### Examples

  ```python
  kernel = tfp_diag.mcmc.FisherDivergenceMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    step_size=0.5,
    num_adaptation_steps=20,
  )
  results = kernel.bootstrap_results(tf.zeros([4, 3]))
  results.factor  # ==> [[1., 0., 0.], [0., 1., 0.], [0., 0., 1.]]
  ```
  """

  inner_results: typing.Any
  factor: typing.Any
  step: typing.Any
  count: typing.Any
  means: typing.Any
  scatters: typing.Any


class FisherDivergenceMALA(FullMatrixKernel[FisherDivergenceMALAResults]):
  r"""MALA whose preconditioner is the full matrix of least Fisher divergence.

  With the gradient $g$ of the log density, the matrix is the $V$ with

  $$ V \operatorname{Cov}(g) \, V = \operatorname{Cov}(x) , $$

  the geometric mean of $\operatorname{Cov}(x)$ and
  $\operatorname{Cov}(g)^{-1}$: among all affine maps, its root makes the target
  most like a standard normal in terms of Fisher divergence [1]. On a Gaussian,
  samples that have full rank give the covariance itself, wherever the chains
  are at that time. The matrix in use is mixed in with the weight of 10 draws or
  fewer; this share fades once a window has many more than two draws per
  coordinate. The matrix is estimated from all chains together, in windows of
  doubling length. At the end of each window the estimate replaces the matrix.
  After `num_adaptation_steps` the matrix is frozen, bit for bit. Discard the
  draws until then.

  Use it for up to some hundreds of coordinates that are correlated or have
  different scales, and with more draws than coordinates. If there are too many
  coordinates for a $d \times d$ matrix, use `DiagonalPreconditionerAdaptation`.
  `FisherAdaptiveMALA` learns a full matrix step by step, without a
  factorization; it takes longer, and finds $V$ only up to a factor.

  Since $V$ has the scale of the covariance, it can be used with
  `discretization='exponential'`. Where the target is nearly Gaussian, a step
  size $\tau$ of one or more is then still accepted. Let the step size adapt for
  longer than the matrix, in `tfp.mcmc.DualAveragingStepSizeAdaptation` with
  `target_accept_prob=0.574`.

  #### Examples

  ```python
  import numpy as np
  import tensorflow as tf
  import tensorflow_probability as tfp
  import tfp_diag

  # Standard deviations of 1 and 0.02 along the diagonals of a square.
  rotation = np.array([[1.0, 1.0], [-1.0, 1.0]]) / np.sqrt(2.0)
  covariance = rotation @ np.diag([1.0, 0.02**2]) @ rotation.T
  target = tfp.distributions.MultivariateNormalTriL(
    scale_tril=tf.constant(np.linalg.cholesky(covariance), tf.float32)
  )
  kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
    tfp_diag.mcmc.FisherDivergenceMALA(
      target.log_prob, step_size=0.001, num_adaptation_steps=50
    ),
    num_adaptation_steps=100,
    target_accept_prob=0.574,
  )


  @tf.function
  def run():
    return tfp.mcmc.sample_chain(
      1,
      tf.zeros([8, 2]),
      kernel=kernel,
      num_burnin_steps=100,
      trace_fn=lambda _, results: results.inner_results.factor,
      seed=(1, 2),
    )


  _, [factor] = run()
  learned = factor @ tf.transpose(factor)
  np.allclose(learned, covariance, atol=0.01)  # ==> True
  ```

  #### References

  [1]: Adrian Seyboldt, Eliot Carlson and Bob Carpenter (2026). Preconditioning
       Hamiltonian Monte Carlo by minimizing Fisher divergence.
       The dense form.
       https://doi.org/10.48550/arXiv.2603.18845
  """

  _default_name = 'fisher_divergence_mala'
  _results_type = FisherDivergenceMALAResults

  def __init__(
    self,
    target_log_prob_fn: Callable,
    step_size: Any,
    num_adaptation_steps: int,
    *,
    discretization: Discretization = 'euler',
    experimental_chain_axis_names: str | None = None,
    name: str | None = None,
  ) -> None:
    r"""Initializes the kernel.

    Args:
      target_log_prob_fn: Python callable of the state (`fn(x)` for one part,
        `fn(*parts)` for a list) that returns the log density, up to a constant,
        of each chain.
      step_size: $\tau$, a positive Tensor that broadcasts to the chain shape
        followed by a 1: all coordinates share it.
      num_adaptation_steps: Python `int`: for how many steps the matrix changes.
      discretization: 'euler' or 'exponential', as for `PreconditionedMALA`.
      experimental_chain_axis_names: Python `str`, any nonempty name: the first
        chain axis is split into equal slices over the replicas of a
        `tf.distribute` strategy, as for `PreconditionedMALA`. The draws of all
        replicas are pooled, for which they exchange 2 d numbers per chain at
        each step. Default: None, each replica has all chains.
      name: Python `str`, the prefix of op names.

    Raises:
      TypeError: if `target_log_prob_fn` is not callable, or `step_size` a list.
      ValueError: if `num_adaptation_steps` is negative or not known in Python.
    """
    self._window_ends = adaptation_windows(num_adaptation_steps)
    arguments.check_choice('discretization', discretization, DISCRETIZATIONS)
    super().__init__(locals())

  discretization = Argument('How the diffusion is discretized.')

  def _bootstrap_results(self, init_state):
    inner_results, factor = self._start(init_state)
    return FisherDivergenceMALAResults(
      inner_results=inner_results,
      factor=factor,
      step=tf.zeros([], tf.int32),
      **no_draws(factor.shape[0], factor.dtype)._asdict(),
    )

  def _one_step(self, current_state, previous, seed):
    next_state, vector, inner_results = self._step(
      current_state, previous.inner_results, previous.factor, seed
    )
    step = previous.step + 1
    after = previous._replace(inner_results=inner_results, step=step)
    if self._window_ends:
      draws = self._pooling(lambda: _draws(vector, inner_results))
      moments = Moments(previous.count, previous.means, previous.scatters)
      # A branch, so that a frozen matrix costs nothing.
      factor, moments = tf.cond(
        step <= self._window_ends[-1],
        lambda: self._learn(step, previous.factor, moments, draws()),
        lambda: (previous.factor, moments),
      )
      after = after._replace(factor=factor, **moments._asdict())
    return next_state, after

  def _learn(self, step, factor, moments, draws):
    """The factor, and the moments to go on with, after a step of adaptation."""
    moments = add_draws(moments, whitened(factor, draws))
    return tf.cond(
      tf.reduce_any(tf.equal(step, self._window_ends)),
      lambda: (
        new_factor(factor, moments),
        tf.nest.map_structure(tf.zeros_like, moments),
      ),
      lambda: (factor, moments),
    )


def _draws(vector, inner_results):
  """x and g, of shape [chains, 2, d]."""
  [gradient] = inner_results.accepted_results.grads_target_log_prob
  size = vector.shape[-1]
  return tf.stack(
    [tf.reshape(x, [-1, size]) for x in (vector, gradient)], axis=1
  )
