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
"""The preconditioned Metropolis-adjusted Langevin algorithm."""

import functools
import typing
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.mcmc.kernels.arguments import as_parts, check_state
from tfp_diag.mcmc.kernels.langevin_kernel import Discretization, LangevinKernel
from tfp_diag.mcmc.kernels.metropolis import accept, at_start
from tfp_diag.mcmc.kernels.noise import split_seed
from tfp_diag.mcmc.kernels.parameterized_kernel import checked_seed
from tfp_diag.mcmc.kernels.uncalibrated_preconditioned_langevin import (
  UncalibratedPreconditionedLangevin,
)


class PreconditionedMALAResults(typing.NamedTuple):
  """Kernel results of `PreconditionedMALA`, with diagnostics.

  The names are those of TFP's Metropolis-Hastings kernels.

  Attributes:
    accepted_results: An `UncalibratedPreconditionedLangevinResults` for the
      state that was returned. Its `step_size` is what adapters change.
    is_accepted: bool Tensor of the chain shape.
    log_accept_ratio: Tensor of the chain shape: the log of the ratio whose
      minimum with one is the probability of acceptance; -inf where anything at
      the proposal is not finite.
    proposed_state: The proposal, in the structure of the state.
    proposed_results: An `UncalibratedPreconditionedLangevinResults` for the
      proposal.
    seed: int32 Tensor of shape [2]: the seed of this step.

  #### Examples

  ```python
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1), step_size=0.5
  )
  state = tf.zeros([4, 3])
  results = kernel.bootstrap_results(state)
  state, results = kernel.one_step(state, results, seed=(0, 1))
  results.is_accepted.shape, results.proposed_state.shape  # ==> ([4], [4, 3])
  ```
  """

  accepted_results: typing.Any
  is_accepted: typing.Any
  log_accept_ratio: typing.Any
  proposed_state: typing.Any
  proposed_results: typing.Any
  seed: typing.Any


class PreconditionedMALA(LangevinKernel[PreconditionedMALAResults]):
  """One step of the preconditioned Metropolis-adjusted Langevin algorithm.

  The proposal is a step of a Langevin diffusion. Its noise is not scaled, or
  scaled by a constant (`preconditioner`), or by a function of the position
  (`volatility_fn`, or a `LocalHessianPreconditioner`). In the last case the
  drift contains the exact derivative of the scale. See
  `UncalibratedPreconditionedLangevin` for the formulas.

  Any number of leading axes of the state belong to the chains: as many as the
  value of `target_log_prob_fn` has. A step evaluates one gradient, and with a
  volatility the diagonal of its Jacobian. A constant preconditioner is never
  differentiated.

  A proposal is rejected if the log density, its gradient or the volatility is
  not finite there, or if the volatility is not positive.

  The step size is in the kernel results, where
  `tfp.mcmc.DualAveragingStepSizeAdaptation` and
  `tfp.mcmc.SimpleStepSizeAdaptation` find it. Pass them
  `target_accept_prob=0.574`, which is optimal for MALA [2]; their default is
  that of Hamiltonian Monte Carlo. Inside `tfp.mcmc.TransformedTransitionKernel`
  the preconditioner and the volatility live in the unconstrained space.

  #### Examples

  A scale per coordinate:

  ```python
  import tensorflow as tf
  import tensorflow_probability as tfp
  import tfp_diag

  scales = tf.constant([0.1, 1.0, 10.0])
  target = tfp.distributions.MultivariateNormalDiag(scale_diag=scales)
  kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
    tfp_diag.mcmc.PreconditionedMALA(
      target.log_prob, step_size=0.5, preconditioner=scales
    ),
    num_adaptation_steps=40,
    target_accept_prob=0.574,
  )
  draws = tfp.mcmc.sample_chain(
    num_results=10,
    num_burnin_steps=50,
    current_state=tf.zeros([4, 3]),
    kernel=kernel,
    trace_fn=None,
    seed=(0, 1),
  )
  draws.shape  # ==> [10, 4, 3]
  ```

  A position-dependent volatility:

  ```python
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    target.log_prob,
    step_size=0.5,
    volatility_fn=lambda x: scales * (1.0 + 0.5 * tf.tanh(x) ** 2),
  )
  state = tf.ones([4, 3])
  results = kernel.bootstrap_results(state)
  state, results = kernel.one_step(state, results, seed=(0, 1))
  results.is_accepted.shape  # ==> [4]
  ```

  #### References

  [1]: Gareth Roberts and Richard Tweedie (1996). Exponential convergence of
       Langevin distributions and their discrete approximations. _Bernoulli_
       2(4).
       https://doi.org/10.2307/3318418

  [2]: Gareth Roberts and Jeffrey Rosenthal (1998). Optimal scaling of discrete
       approximations to Langevin diffusions. _Journal of the Royal Statistical
       Society: Series B_ 60(1).
       https://doi.org/10.1111/1467-9868.00123

  [3]: Tatiana Xifara, Chris Sherlock, Samuel Livingstone, Simon Byrne and Mark
       Girolami (2014). Langevin diffusions and the Metropolis-adjusted Langevin
       algorithm. _Statistics and Probability Letters_ 91.
       https://doi.org/10.1016/j.spl.2014.04.002

  [4]: Michalis Titsias (2023). Optimal preconditioning and Fisher adaptive
       Langevin sampling. _NeurIPS_, proposition 1.
       https://doi.org/10.48550/arXiv.2305.14442
  """

  _default_name = 'preconditioned_mala'
  _results_type = PreconditionedMALAResults
  # What the seed of a step is mixed with.
  salt = 'preconditioned_mala'

  def __init__(
    self,
    target_log_prob_fn: Callable,
    step_size: Any,
    preconditioner: Any = None,
    *,
    volatility_fn: Callable | None = None,
    discretization: Discretization = 'euler',
    parallel_iterations: int = 10,
    experimental_shard_axis_names: Any = None,
    experimental_chain_axis_names: str | None = None,
    validate_args: bool = False,
    name: str | None = None,
  ) -> None:
    r"""Initializes the kernel.

    Args:
      target_log_prob_fn: Python callable of the state (`fn(x)` for one part,
        `fn(*parts)` for a list) that returns the log density, up to a constant,
        of each chain.
      step_size: $\tau$, a positive Tensor that broadcasts to the state, or a
        list with one per part. Shape [C0, ..., 1] gives every chain its own.
      preconditioner: None; a positive Tensor that broadcasts to a part, the
        standard deviation of each coordinate's noise; a square
        `tf.linalg.LinearOperator` $L$ that acts on the last axis of a part; a
        list of these with one per part; or a `LocalHessianPreconditioner`. A
        function is taken for `volatility_fn`, which is the third argument of
        TFP's kernels. Default: None, the identity.
      volatility_fn: Python callable of the state that returns the
        position-dependent standard deviations: a positive Tensor that
        broadcasts to the state, or a list with one per part. A chain's value
        may depend on all of that chain's coordinates, not on other chains.
        Default: None.
      discretization: 'euler', the Euler-Maruyama step; or 'exponential', which
        solves exactly the part of the dynamics that is linear for a Gaussian
        whose covariance is $V = L L^\top$, and so allows larger steps where the
        target resembles one. For a constant scale only.
      parallel_iterations: Python `int`: how many coordinates of the volatility
        are differentiated together.
      experimental_shard_axis_names: None, a `str`, or a list with a `str` or
        None for each part of the state: the parts with a name are sharded, each
        replica holds a slice of them. Default: None, no part is.
      experimental_chain_axis_names: Python `str`, any nonempty name: the first
        chain axis is split into equal slices over the replicas of the
        `tf.distribute` strategy in which the kernel runs. If all replicas have
        the same seed, each one uses the slice of the noise that a single device
        would use for its chains. Default: None, each replica has all chains.
      validate_args: Python `bool`: whether a volatility that is not positive at
        a proposal is an error, rather than a rejection. Also checks the start
        inside a `tf.function`. XLA drops run-time assertions.
      name: Python `str`, the prefix of op names.

    Raises:
      TypeError: if `target_log_prob_fn` or `volatility_fn` is not callable, or
        `step_size` or `preconditioner` is of a type that is not listed above.
      ValueError: if `step_size` is known not to be positive and finite, if both
        `preconditioner` and `volatility_fn` are given, or `discretization` is
        not a valid choice or does not go with the scale, or if both the state
        and the chains are spread over the replicas.
    """
    super().__init__(locals())

  def _bootstrap_results(self, init_state):
    results = self._proposal.bootstrap_results(init_state)
    return PreconditionedMALAResults(
      **at_start(results, init_state),
      proposed_results=results,
      seed=tf.zeros([2], tf.int32),
    )

  def _one_step(self, current_state, previous, seed):
    seed = checked_seed(seed, self.salt)
    proposal_seed, acceptance_seed = split_seed(seed, 2)
    before = previous.accepted_results
    check_state(as_parts(current_state), before.gradients)
    current_state = tf.nest.map_structure(tf.convert_to_tensor, current_state)

    proposed_state, proposed_results = self._proposal.one_step(
      current_state, before, seed=proposal_seed
    )
    next_state, fields = accept(
      (current_state, before),
      (proposed_state, proposed_results),
      proposed_results.log_acceptance_correction,
      acceptance_seed,
      self.experimental_chain_axis_names,
    )
    return next_state, PreconditionedMALAResults(**fields, seed=seed)

  @functools.cached_property
  def _proposal(self):
    return UncalibratedPreconditionedLangevin(**self.parameters)
