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
"""Learns a constant scale per coordinate while a chain warms up."""

import typing
from typing import Any

import tensorflow as tf

from tfp_diag.diag_hessian import diag_hessian
from tfp_diag.mcmc.adapt.diagonal_estimators import (
  Estimator,
  estimate_variances,
  quantities_of,
)
from tfp_diag.mcmc.adapt.running_moments import (
  merge_moments,
  moments_of,
  no_moments,
  pool_moments,
)
from tfp_diag.mcmc.adapt.windows import adaptation_windows
from tfp_diag.mcmc.kernels.arguments import as_parts
from tfp_diag.mcmc.kernels.langevin_kernel import (
  LangevinKernel,
  position_dependence,
)
from tfp_diag.mcmc.kernels.parameterized_kernel import (
  Argument,
  ParameterizedKernel,
  check_axis_name,
  check_kernel,
)
from tfp_diag.mcmc.kernels.preconditioner import entries_of_parts


class DiagonalPreconditionerAdaptationResults(typing.NamedTuple):
  """Kernel results of `DiagonalPreconditionerAdaptation`.

  Attributes:
    inner_results: Results of the inner kernel. The scale in use is in them, in
      the `accepted_results.preconditioner` of the innermost: a list with one
      Tensor per part, of the part's event shape.
    step: int32 scalar Tensor: how many steps were taken.
    moments: A `RunningMoments` of the window that is under way: what the
      estimator needs of the states, gradients or curvatures.

  #### Examples

  ```python
  kernel = tfp_diag.mcmc.DiagonalPreconditionerAdaptation(
    tfp_diag.mcmc.PreconditionedMALA(
      lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1), step_size=0.5
    ),
    num_adaptation_steps=20,
  )
  state = tf.zeros([4, 3])
  results = kernel.bootstrap_results(state)
  state, results = kernel.one_step(state, results, seed=(0, 1))
  int(results.step)  # ==> 1
  ```
  """

  inner_results: typing.Any
  step: typing.Any
  moments: typing.Any


class DiagonalPreconditionerAdaptation(
  ParameterizedKernel[DiagonalPreconditionerAdaptationResults]
):
  r"""Adapts the diagonal preconditioner of an inner `PreconditionedMALA`.

  The scale $s$ of each coordinate is estimated from all chains together, in
  windows of doubling length. At the end of each window the estimate replaces
  the scale, and the next window starts empty. After `num_adaptation_steps` the
  scale is frozen, bit for bit, and a step costs what a step of the inner kernel
  does. Discard the draws until then.

  The estimators, all of which give the standard deviations of a Gaussian of
  diagonal covariance ($g$ is the gradient of the log density $\log \pi$):

  * 'variance': $s^2 = \operatorname{Var} x$.
  * 'fisher': $s^2 = 1 / \mathbb{E}[g^2]$.
  * 'fisher_divergence': $s^2 = \sqrt{\operatorname{Var} x / \operatorname{Var}
    g}$, which minimizes a Fisher divergence between target and $N(0, s^2)$ [1].
    On a Gaussian of diagonal covariance it is exact from any few distinct
    draws, wherever they are: it converges long before the chain does. The best
    first choice.
  * 'hessian': $s^2 = \sqrt{\operatorname{Var} x / \mathbb{E}[-\partial_{ii}
    \log \pi]}$, the same with the curvature in the place of the gradient's
    variance, to which it is equal on average but less noisy. It
    costs a diagonal of the Hessian in each adaptation step.

  The weight of an estimate is its number of draws; that of the scale in use is
  10.

  It composes with TFP's step size adapters, inside or outside, and may be
  wrapped by `tfp.mcmc.TransformedTransitionKernel`. Let the step size adapt for
  longer than the scale, since each new scale needs another step size.

  #### Examples

  ```python
  import tensorflow as tf
  import tensorflow_probability as tfp
  import tfp_diag

  scales = tf.constant([0.01, 1.0, 100.0])
  target = tfp.distributions.MultivariateNormalDiag(scale_diag=scales)
  kernel = tfp_diag.mcmc.PreconditionedMALA(target.log_prob, step_size=0.1)
  kernel = tfp_diag.mcmc.DiagonalPreconditionerAdaptation(
    kernel, num_adaptation_steps=150
  )
  kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
    kernel, num_adaptation_steps=200, target_accept_prob=0.574
  )


  @tf.function
  def run():
    return tfp.mcmc.sample_chain(
      num_results=1,
      num_burnin_steps=200,
      current_state=tf.random.stateless_normal([16, 3], seed=(0, 1)),
      kernel=kernel,
      trace_fn=lambda _, results: (
        results.inner_results.inner_results.accepted_results.preconditioner
      ),
      seed=(0, 1),
    )


  _, [learned] = run()
  tf.round(learned[0] / scales)  # ==> [1.0, 1.0, 1.0]
  ```

  #### References

  [1]: Adrian Seyboldt, Eliot Carlson and Bob Carpenter (2026). Preconditioning
       Hamiltonian Monte Carlo by minimizing Fisher divergence.
       The diagonal form.
       https://doi.org/10.48550/arXiv.2603.18845

  [2]: Gareth Roberts and Jeffrey Rosenthal (1998). Optimal scaling of discrete
       approximations to Langevin diffusions. _Journal of the Royal Statistical
       Society: Series B_ 60(1).
       https://doi.org/10.1111/1467-9868.00123
  """

  _default_name = 'diagonal_preconditioner_adaptation'
  _results_type = DiagonalPreconditionerAdaptationResults

  def __init__(
    self,
    inner_kernel: Any,
    num_adaptation_steps: int,
    estimator: Estimator = 'fisher_divergence',
    *,
    experimental_reduce_chain_axis_names: str | None = None,
    name: str | None = None,
  ) -> None:
    """Initializes the kernel.

    Args:
      inner_kernel: A `PreconditionedMALA` whose preconditioner is None or a
        scale per coordinate, which the chain starts with; or kernels around
        one, such as `tfp.mcmc.DualAveragingStepSizeAdaptation`.
      num_adaptation_steps: Python `int`: for how many steps the scale changes.
      estimator: 'variance', 'fisher', 'fisher_divergence' or 'hessian'.
      experimental_reduce_chain_axis_names: `str`, any name that is not empty:
        the kernel runs in each replica of a `tf.distribute` strategy with some
        of the chains, and learns from all of them. Replicas then exchange two
        numbers per coordinate and quantity at each step, also when the scale is
        frozen: sample with `inner_kernel`, from the `inner_results`, where that
        is too slow. Default: None, each replica learns from its own chains.
      name: Python `str`, the prefix of op names.

    Raises:
      TypeError: if there is no `PreconditionedMALA` inside.
      ValueError: if its scale depends on the position, `estimator` is not a
        valid choice, or `num_adaptation_steps` is negative or not known in
        Python.
    """
    check_kernel('inner_kernel', inner_kernel)
    _check_innermost(inner_kernel)
    quantities_of(estimator)  # Refuses an unknown one.
    check_axis_name(
      'experimental_reduce_chain_axis_names',
      experimental_reduce_chain_axis_names,
    )
    self._window_ends = adaptation_windows(num_adaptation_steps)
    super().__init__(locals())

  inner_kernel = Argument('The kernel whose preconditioner is adapted.')
  num_adaptation_steps = Argument('For how many steps the scale changes.')
  estimator = Argument('How the scale is estimated.')
  experimental_reduce_chain_axis_names = Argument(
    'Over which axis the chains that are pooled are spread.',
  )

  @property
  def is_calibrated(self):
    """That of the inner kernel, after `num_adaptation_steps`."""
    return self.inner_kernel.is_calibrated

  @property
  def experimental_shard_axis_names(self):
    """How the members of the state are sharded."""
    return self.inner_kernel.experimental_shard_axis_names

  def experimental_with_shard_axes(self, shard_axis_names):
    """A copy of this kernel for a state that is sharded in this way."""
    return self.copy(
      inner_kernel=self.inner_kernel.experimental_with_shard_axes(
        shard_axis_names
      )
    )

  def _bootstrap_results(self, init_state):
    inner_results = self.inner_kernel.bootstrap_results(init_state)
    state, results = _innermost(init_state, inner_results)
    if self.estimator == 'hessian' and state is not init_state:
      raise ValueError(
        "The estimator 'hessian' needs the log density of the innermost "
        'kernel, but a TransformedTransitionKernel inside keeps that to '
        'itself; put it outside of this adaptation.'
      )
    kernel = _innermost_kernel(self.inner_kernel)
    parts = as_parts(state)
    chain_ndims = results.accepted_results.target_log_prob.shape.rank
    scales = _start_scales(kernel, parts, chain_ndims)
    # The structure of what is observed, without the cost of a Hessian.
    shapes = [parts for _ in quantities_of(self.estimator)]
    return DiagonalPreconditionerAdaptationResults(
      inner_results=_with_scales(inner_results, scales),
      step=tf.zeros([], tf.int32),
      moments=no_moments(shapes, chain_ndims),
    )

  def _one_step(self, current_state, previous, seed):
    next_state, inner_results = self.inner_kernel.one_step(
      current_state, previous.inner_results, seed=seed
    )
    step = previous.step + 1
    if not self._window_ends:
      return next_state, previous._replace(
        inner_results=inner_results, step=step
      )
    state, results = _innermost(next_state, inner_results)
    scales = list(results.accepted_results.preconditioner)
    is_learning = step <= self._window_ends[-1]

    def observed():
      chain_ndims = results.accepted_results.target_log_prob.shape.rank
      return moments_of(self._observe(as_parts(state), results), chain_ndims)

    is_pooled = bool(self.experimental_reduce_chain_axis_names)
    if is_pooled:
      # Not in the branch below: replicas cannot wait for each other there.
      own = tf.cond(
        is_learning,
        observed,
        lambda: tf.nest.map_structure(tf.zeros_like, previous.moments),
      )
      pooled = pool_moments(own)
    # A branch, so that a frozen scale costs nothing.
    scales, moments = tf.cond(
      is_learning,
      lambda: self._learn(
        step,
        scales,
        merge_moments(previous.moments, pooled if is_pooled else observed()),
      ),
      lambda: (scales, previous.moments),
    )
    return next_state, previous._replace(
      inner_results=_with_scales(inner_results, scales),
      step=step,
      moments=moments,
    )

  def _learn(self, step, scales, moments):
    """The scales, and the moments to go on with, after a step of adaptation."""
    estimates = [
      tf.ensure_shape(tf.sqrt(v), s.shape)
      for v, s in zip(
        estimate_variances(
          self.estimator, moments, [tf.square(s) for s in scales]
        ),
        scales,
      )
    ]
    is_end = tf.reduce_any(tf.equal(step, self._window_ends))
    return (
      [tf.where(is_end, new, old) for new, old in zip(estimates, scales)],
      tf.nest.map_structure(
        lambda m: tf.where(is_end, tf.zeros_like(m), m), moments
      ),
    )

  def _observe(self, parts, results):
    """What the estimator needs at the current state, per quantity and part."""
    observed = []
    for quantity in quantities_of(self.estimator):
      if quantity == 'state':
        observed.append(parts)
      elif quantity == 'gradient':
        observed.append(list(results.accepted_results.grads_target_log_prob))
      else:
        log_prob_fn = _innermost_kernel(self.inner_kernel).target_log_prob_fn
        observed.append([-d for d in diag_hessian(log_prob_fn, parts)[2]])
    return observed


def _check_innermost(kernel):
  """Refuses kernels around one that has no constant scale."""
  kernel = _innermost_kernel(kernel)
  if not isinstance(kernel, LangevinKernel):
    raise TypeError(
      '`inner_kernel` must be, or contain, a PreconditionedMALA, but the '
      f'innermost kernel is a {type(kernel).__name__}.'
    )
  changing = position_dependence(kernel.preconditioner)
  if changing is not None or kernel.volatility_fn is not None:
    changing = (
      'has a `volatility_fn`, a scale that depends on the position'
      if changing is None
      else f'has a `preconditioner` that {changing}'
    )
    raise ValueError(
      f'`inner_kernel` {changing}; a constant one cannot be adapted in its '
      'place. Leave out that scale, or this adaptation.'
    )


def _innermost_kernel(kernel):
  # Kernels of users may have no parameters.
  while 'inner_kernel' in getattr(kernel, 'parameters', ()):
    kernel = kernel.parameters['inner_kernel']
  return kernel


def _innermost(state, results):
  """The Metropolis-Hastings results at the core, and the state they are of."""
  while not hasattr(results, 'accepted_results'):
    if hasattr(results, 'transformed_state'):
      state = results.transformed_state
    if not hasattr(results, 'inner_results'):
      raise TypeError(
        '`inner_kernel` must be, or contain, a PreconditionedMALA, but has '
        f'results of type {type(results).__name__}.'
      )
    results = results.inner_results
  return state, results


def _with_scales(results, scales):
  """The same results, but for the scale that the next step uses."""
  if not hasattr(results, 'accepted_results'):
    inner = _with_scales(results.inner_results, scales)
    return results._replace(inner_results=inner)
  # That of the last proposal follows, to keep one structure.
  return results._replace(
    accepted_results=results.accepted_results._replace(preconditioner=scales),
    proposed_results=results.proposed_results._replace(preconditioner=scales),
  )


def _start_scales(kernel, parts, chain_ndims):
  """What the innermost kernel was made with, one number per coordinate."""
  entries = entries_of_parts(kernel.preconditioner, parts)
  scales = []
  for i, (entry, x) in enumerate(zip(entries, parts)):
    if isinstance(entry, tf.linalg.LinearOperator):
      raise ValueError(
        f'`preconditioner` of part {i} of the state is a LinearOperator, but '
        'only a scale per coordinate is adapted. Start with None or a scale.'
      )
    scale = tf.convert_to_tensor(1.0 if entry is None else entry, x.dtype)
    event_shape = x.shape[chain_ndims:]
    if scale.shape.rank > event_shape.rank:
      raise ValueError(
        f'`preconditioner` of shape {scale.shape} for part {i} of the state '
        f'has more dimensions than its event shape {event_shape}, but the '
        'scale that is adapted is shared by all chains.'
      )
    scale = tf.broadcast_to(scale, tf.shape(x)[chain_ndims:])
    scales.append(tf.ensure_shape(scale, event_shape))
  return scales
