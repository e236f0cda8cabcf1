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
"""MALA that learns a full preconditioning matrix as it goes."""

import typing
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.mcmc.adapt.fisher_recursion import add_signals
from tfp_diag.mcmc.adapt.full_matrix_kernel import FullMatrixKernel
from tfp_diag.mcmc.kernels.parameterized_kernel import Argument


class FisherAdaptiveMALAResults(typing.NamedTuple):
  r"""Kernel results of `FisherAdaptiveMALA`.

  Attributes:
    inner_results: The `PreconditionedMALAResults` of the step, for the state as
      one vector of d coordinates, parts in order.
    factor: Tensor of shape [d, d]: $R$ with $R R^\top = (\text{damping} \, I +
      \sum s s^\top)^{-1}$ over the signals $s$ so far. The noise is scaled by
      $R$, normalized so that the average of the diagonal of $R R^\top$ is one.
    step: int32 scalar Tensor: how many steps were taken.

  #### Examples

  ```python
  kernel = tfp_diag.mcmc.FisherAdaptiveMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    step_size=0.5,
    num_adaptation_steps=200,
  )
  state = tf.zeros([4, 3])
  results = kernel.bootstrap_results(state)
  state, results = kernel.one_step(state, results, seed=(0, 1))
  int(results.step), results.factor.shape  # ==> (1, [3, 3])
  ```
  """

  inner_results: typing.Any
  factor: typing.Any
  step: typing.Any


class FisherAdaptiveMALA(FullMatrixKernel[FisherAdaptiveMALAResults]):
  r"""MALA whose preconditioner learns the inverse Fisher matrix of the target.

  The best constant preconditioner of MALA, by expected squared jump distance,
  is $A = \mathbb{E}[g g^\top]^{-1}$ for the gradient $g$ of the log density
  [1]. $A$ is learned by recursive updates of its square root. With the state
  $x$, the proposal $x'$ and its probability of acceptance $\alpha$, each chain
  contributes the Rao-Blackwellized signal

  $$ s = \sqrt{\alpha} \, (g(x') - g(x)) . $$

  An update takes $O(d^2)$ operations for each chain and step, and no
  factorization of a matrix; the signals of all chains are pooled. After
  `num_adaptation_steps` the matrix is frozen, bit for bit. Discard the draws
  until then.

  Use it for strongly correlated coordinates, up to some hundreds of them. If
  correlations are weak, or if there are too many coordinates for a $d \times d$
  matrix, `DiagonalPreconditionerAdaptation` is cheaper and learns faster.

  Wrap it in `tfp.mcmc.DualAveragingStepSizeAdaptation` with
  `target_accept_prob=0.574`. The matrix begins to change only after
  `num_step_size_steps`, when the step size has found its order of magnitude.
  Since $A$ is normalized, the step size keeps it.

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
    tfp_diag.mcmc.FisherAdaptiveMALA(
      target.log_prob,
      step_size=0.001,
      num_adaptation_steps=300,
      num_step_size_steps=50,
    ),
    num_adaptation_steps=400,
    target_accept_prob=0.574,
  )


  @tf.function
  def run():
    return tfp.mcmc.sample_chain(
      200,
      tf.zeros([8, 2]),
      kernel=kernel,
      num_burnin_steps=400,
      trace_fn=None,
      seed=(1, 2),
    )


  draws = run()
  correlation = np.corrcoef(np.reshape(draws, [-1, 2]), rowvar=False)[0, 1]
  bool(abs(correlation) > 0.99)  # ==> True
  ```

  #### References

  [1]: Michalis Titsias (2023). Optimal preconditioning and Fisher adaptive
       Langevin sampling. _NeurIPS_, algorithm 1.
       https://doi.org/10.48550/arXiv.2305.14442
  """

  _default_name = 'fisher_adaptive_mala'
  _results_type = FisherAdaptiveMALAResults

  def __init__(
    self,
    target_log_prob_fn: Callable,
    step_size: Any,
    num_adaptation_steps: Any,
    num_step_size_steps: Any = 100,
    damping: float = 10.0,
    *,
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
      num_adaptation_steps: Python `int` or int32 Tensor: the last step that
        changes the matrix. With 0 the matrix stays the identity.
      num_step_size_steps: Python `int` or int32 Tensor: how many steps are made
        before the first one that changes the matrix.
      damping: Python `float` > 0, in units of a squared gradient: the weight of
        the identity, with which the matrix starts, beside the signals.
      experimental_chain_axis_names: Python `str`, any nonempty name: the first
        chain axis is split into equal slices over the replicas of a
        `tf.distribute` strategy, as for `PreconditionedMALA`. The signals of
        all replicas are pooled, for which they exchange d numbers per chain at
        each step. Default: None, each replica has all chains.
      name: Python `str`, the prefix of op names.

    Raises:
      TypeError: if `target_log_prob_fn` is not callable, or `step_size` a list.
      ValueError: if `damping` is not positive, or `num_adaptation_steps` is
        positive but not greater than `num_step_size_steps`.
    """
    parameters = dict(locals())
    last = _static_count('num_adaptation_steps', num_adaptation_steps)
    first = _static_count('num_step_size_steps', num_step_size_steps)
    if last is not None and first is not None and 0 < last <= first:
      raise ValueError(
        f'`num_adaptation_steps` is {last}, but the matrix starts to '
        f'change only after `num_step_size_steps`, {first} steps. Adapt '
        'for longer, or pass a smaller `num_step_size_steps`.'
      )
    arguments.check_number(
      'damping', damping, 'a positive number', arguments.is_positive
    )
    super().__init__(parameters)

  num_step_size_steps = Argument(
    'The step at which the matrix starts changing.'
  )
  damping = Argument(
    'The weight of the identity, with which the matrix starts.'
  )

  def _bootstrap_results(self, init_state):
    inner_results, factor = self._start(init_state)
    return FisherAdaptiveMALAResults(
      inner_results=inner_results,
      factor=factor * self.damping**-0.5,
      step=tf.zeros([], tf.int32),
    )

  def _one_step(self, current_state, previous, seed):
    next_state, _, inner_results = self._step(
      current_state, previous.inner_results, _normalized(previous.factor), seed
    )
    step = previous.step + 1
    signals = self._pooling(
      lambda: _signals(previous.inner_results, inner_results)
    )
    # A branch, so that a frozen matrix costs nothing.
    factor = tf.cond(
      (step > self.num_step_size_steps) & (step <= self.num_adaptation_steps),
      lambda: tf.ensure_shape(
        add_signals(previous.factor, signals()),
        previous.factor.shape,
      ),
      lambda: previous.factor,
    )
    return next_state, FisherAdaptiveMALAResults(
      inner_results=inner_results, factor=factor, step=step
    )


def _static_count(name, value):
  """A number of steps, or None if it is a Tensor of a graph."""
  known = arguments.static_value(value)
  if tf.is_tensor(known) and not isinstance(known, tf.RaggedTensor):
    return None
  return arguments.as_count(name, known, 0, 'until which step')


def _normalized(factor):
  """R, such that the average of the diagonal of R Rᵀ is one."""
  size = tf.cast(tf.shape(factor)[0], factor.dtype)
  return factor * tf.math.rsqrt(tf.reduce_sum(tf.square(factor)) / size)


def _signals(before, after):
  """√α (g(proposal) - g(state)), one row per chain; zero where α is zero."""
  [gradient] = before.accepted_results.grads_target_log_prob
  [proposed_gradient] = after.proposed_results.grads_target_log_prob
  log_ratio = after.log_accept_ratio[..., tf.newaxis]
  signals = tf.where(
    tf.math.is_finite(log_ratio),
    tf.exp(0.5 * tf.minimum(log_ratio, 0.0)) * (proposed_gradient - gradient),
    tf.zeros_like(gradient),
  )
  rows = signals.shape[:-1].num_elements()
  return tf.reshape(signals, [rows or -1, signals.shape[-1]])
