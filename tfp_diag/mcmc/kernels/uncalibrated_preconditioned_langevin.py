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
"""The proposal of preconditioned Langevin dynamics."""

import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.mcmc.kernels import langevin
from tfp_diag.mcmc.kernels.arguments import (
  as_parts,
  as_step_size,
  check_state,
  check_step_size,
  number_of_parts,
  step_size_roots,
  step_sizes_of_parts,
)
from tfp_diag.mcmc.kernels.langevin_kernel import Discretization, LangevinKernel
from tfp_diag.mcmc.kernels.langevin_terms import (
  LangevinTerms,
  evaluate,
  event_axes,
  is_usable,
  per_part,
)
from tfp_diag.mcmc.kernels.local_hessian_preconditioner import (
  LocalHessianPreconditioner,
)
from tfp_diag.mcmc.kernels.noise import split_seed, standard_normal
from tfp_diag.mcmc.kernels.parameterized_kernel import Argument, checked_seed
from tfp_diag.mcmc.kernels.preconditioner import as_factors, entries_of_parts
from tfp_diag.mcmc.kernels.sharding import (
  chain_shard,
  fold_in_shard,
  sum_over_shards,
)
from tfp_diag.mcmc.kernels.start_check import check_chains, check_start


class UncalibratedPreconditionedLangevinResults(typing.NamedTuple):
  r"""Kernel results of `UncalibratedPreconditionedLangevin`.

  Attributes:
    target_log_prob: Tensor of the chain shape: the target log density at the
      state that was returned.
    grads_target_log_prob: The gradient there, a list with one Tensor per part;
      with a `volatility_fn`, a `LangevinTerms` of such lists. The volatility
      lives beside the gradient, under this name, because it belongs to the same
      point: `tfp.mcmc.ReplicaExchangeMC` swaps states and refreshes
      `target_log_prob` and this field, and no other.
    log_acceptance_correction: Tensor of the chain shape: $\log q(x | x') -
      \log q(x' | x)$ of the step from $x$ to $x'$ that was taken, where $q$ is
      the density of the proposal; -inf where anything at $x'$ is not finite, or
      the volatility there is not positive.
    step_size: What the next step uses: a Tensor, or a list of Tensors, in the
      structure of the constructor's `step_size`. Adapters write it.
    preconditioner: The scale that the next step uses in the place of the
      constructor's: a list with one entry per part, a positive Tensor that
      broadcasts to the part or a `tf.linalg.LinearOperator`; or an empty list,
      for that of the constructor. `DiagonalPreconditionerAdaptation` writes it.
    seed: int32 Tensor of shape [2]: the seed of the step that was taken.

  #### Examples

  ```python
  kernel = tfp_diag.mcmc.UncalibratedPreconditionedLangevin(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1), step_size=0.5
  )
  results = kernel.bootstrap_results(tf.constant([[1.0, 2.0]]))
  results.target_log_prob  # ==> [-2.5]
  results.grads_target_log_prob  # ==> [[[-1., -2.]]]
  ```
  """

  target_log_prob: typing.Any
  grads_target_log_prob: typing.Any
  log_acceptance_correction: typing.Any
  step_size: typing.Any
  preconditioner: typing.Any
  seed: typing.Any

  @property
  def gradients(self):
    """The gradients alone, a list with one Tensor per part."""
    terms = self.grads_target_log_prob
    return terms.gradient if isinstance(terms, LangevinTerms) else terms

  # What the results of TFP's Langevin kernels have as fields.

  @property
  def volatility(self):
    """$s(x)$, a list with one Tensor per part."""
    return self._terms('volatility').volatility

  @property
  def grads_volatility(self):
    r"""$\partial_i s_i^2$, a list with one Tensor per part, as TFP has it."""
    terms = self._terms('grads_volatility')
    return [
      2.0 * s * ds for s, ds in zip(terms.volatility, terms.volatility_gradient)
    ]

  @property
  def diffusion_drift(self):
    r"""The drift of a step, a list with one Tensor per part.

    It is $\tau \left( \frac{1}{2} s_i^2 g_i + s_i \, \partial_i s_i \right)$,
    that of the Euler-Maruyama step, also if the kernel has another one.
    """
    terms = self._terms('diffusion_drift')
    sizes = step_sizes_of_parts(self.step_size, terms.volatility)
    return [
      0.5 * tf.cast(h, s.dtype) * (s * s * g + ds)
      for h, s, ds, g in zip(
        sizes, terms.volatility, self.grads_volatility, terms.gradient
      )
    ]

  def _terms(self, name):
    """A `LangevinTerms`; of a constant scale only if it is in these results."""
    terms = self.grads_target_log_prob
    if isinstance(terms, LangevinTerms):
      return terms
    if not self.preconditioner:
      raise AttributeError(
        f'`{name}` is in the results of a kernel with a scale that depends on '
        'the position, `volatility_fn`; a constant one is '
        '`kernel.preconditioner`.'
      )
    scales = [
      tf.broadcast_to(s, tf.shape(g))
      for s, g in zip(self.preconditioner, terms)
    ]
    return LangevinTerms(terms, scales, [tf.zeros_like(s) for s in scales])


class UncalibratedPreconditionedLangevin(
  LangevinKernel[UncalibratedPreconditionedLangevinResults]
):
  r"""One step of a preconditioned Langevin diffusion, which is not corrected.

  Warning: the step size biases what this kernel samples. Use
  `PreconditionedMALA`, or wrap it in `tfp.mcmc.MetropolisHastings`.

  With the step size $\tau$, the gradient $g$ of the target log density and
  standard normal $z$, a constant scale $L$ (with $V = L L^\top$) proposes

  $$ x' = x + \frac{\tau}{2} V g + \sqrt{\tau} \, L z $$

  or, with `discretization='exponential'` and $r = e^{-\tau/2}$,

  $$ x' = x + (1 - r) V g + \sqrt{1 - r^2} \, L z $$

  and a volatility $s(x)$ proposes, with the exact drift,

  $$
  x'_i = x_i + \tau \left( \frac{1}{2} s_i^2 g_i
  + s_i \frac{\partial s_i}{\partial x_i} \right) + \sqrt{\tau} \, s_i z_i .
  $$

  #### Examples

  ```python
  kernel = tfp.mcmc.MetropolisHastings(
    tfp_diag.mcmc.UncalibratedPreconditionedLangevin(
      lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1), step_size=0.5
    )
  )
  state = tf.zeros([4, 3])
  results = kernel.bootstrap_results(state)
  state, results = kernel.one_step(state, results, seed=(0, 1))
  results.is_accepted.shape  # ==> [4]
  ```

  #### References

  [1]: Tatiana Xifara, Chris Sherlock, Samuel Livingstone, Simon Byrne and Mark
       Girolami (2014). Langevin diffusions and the Metropolis-adjusted Langevin
       algorithm. _Statistics and Probability Letters_ 91.
       https://doi.org/10.1016/j.spl.2014.04.002
  """

  _default_name = 'preconditioned_langevin'
  _results_type = UncalibratedPreconditionedLangevinResults
  # What the seed of a step is mixed with.
  salt = 'preconditioned_langevin'

  def __init__(
    self,
    target_log_prob_fn: Callable,
    step_size: Any,
    preconditioner: Any = None,
    *,
    volatility_fn: Callable | None = None,
    discretization: Discretization = 'euler',
    parallel_iterations: int = 10,
    compute_acceptance: bool = True,
    experimental_shard_axis_names: Any = None,
    experimental_chain_axis_names: str | None = None,
    validate_args: bool = False,
    name: str | None = None,
  ) -> None:
    """Initializes the kernel.

    Args:
      target_log_prob_fn: As for `PreconditionedMALA`.
      step_size: As for `PreconditionedMALA`.
      preconditioner: As for `PreconditionedMALA`.
      volatility_fn: As for `PreconditionedMALA`.
      discretization: As for `PreconditionedMALA`.
      parallel_iterations: As for `PreconditionedMALA`.
      compute_acceptance: Python `bool`: whether the results have the
        `log_acceptance_correction`. If False, it is zero, which serves only if
        every proposal is accepted: `tfp.mcmc.MetropolisHastings` needs True.
      experimental_shard_axis_names: As for `PreconditionedMALA`.
      experimental_chain_axis_names: As for `PreconditionedMALA`.
      validate_args: As for `PreconditionedMALA`.
      name: Python `str`, the prefix of op names.

    Raises:
      TypeError: as `PreconditionedMALA`.
      ValueError: as `PreconditionedMALA`.
    """
    super().__init__(locals())
    arguments.check_flag('compute_acceptance', compute_acceptance)

  compute_acceptance = Argument('Whether the correction is computed.')

  @property
  def is_calibrated(self):
    """False: the step size biases the stationary distribution."""
    return False

  def _bootstrap_results(self, init_state):
    parts = as_parts(init_state)
    arguments.check_takes('target_log_prob_fn', self.target_log_prob_fn, parts)
    check_chains(self.target_log_prob_fn, parts)
    target_log_prob, terms = self._evaluate(parts)
    step_size = as_step_size(self.step_size, target_log_prob.dtype)
    check_step_size(step_size, parts)
    self._dynamics(parts, target_log_prob)  # Refuses what does not fit.
    if self.discretization == 'exponential':
      _check_one_time_for_all(
        self.preconditioner, step_size_roots(step_size, parts)
      )
    if tf.executing_eagerly():
      check_start(target_log_prob, terms, self._scale_name)
    elif self.validate_args:
      usable = [
        tf.reduce_all(is_usable(t, x, event_axes(x, target_log_prob)))
        for t, x in zip(per_part(terms), parts)
      ]
      usable.append(tf.reduce_all(tf.math.is_finite(target_log_prob)))
      target_log_prob = _asserting(
        tf.reduce_all(usable),
        'The start cannot be used: the target log density, its gradient or '
        'the volatility is not finite there, or the volatility not positive.',
        target_log_prob,
      )
    return UncalibratedPreconditionedLangevinResults(
      target_log_prob=target_log_prob,
      grads_target_log_prob=terms,
      log_acceptance_correction=tf.zeros_like(target_log_prob),
      step_size=step_size,
      preconditioner=[],
      seed=tf.zeros([2], tf.int32),
    )

  def _one_step(self, current_state, previous, seed):
    parts = as_parts(current_state)
    check_state(parts, previous.gradients)
    seed = checked_seed(seed, self.salt)
    proposal, results, _ = self.move(
      parts, previous, self.draw_noise(parts, seed)
    )
    results = results._replace(seed=seed)
    if self.compute_acceptance:
      results = results._replace(
        log_acceptance_correction=self.refused(
          proposal, results, results.log_acceptance_correction
        )
      )
    return tf.nest.pack_sequence_as(current_state, proposal), results

  def draw_noise(self, parts, seed):
    """Standard normal noise.

    Args:
      parts: List of Tensors, the state.
      seed: int32 Tensor of shape [2].

    Returns:
      List of Tensors of the shapes of the parts.
    """
    seeds = [
      fold_in_shard(s, axis)
      for s, axis in zip(split_seed(seed, len(parts)), self._shard_axes(parts))
    ]
    shard = chain_shard(self.experimental_chain_axis_names)
    return [
      standard_normal(tf.shape(x), s, x.dtype, shard)
      for x, s in zip(parts, seeds)
    ]

  def move(self, parts, before, noise, whitened=None):
    """A step with given noise.

    Args:
      parts: List of Tensors, the state.
      before: An `UncalibratedPreconditionedLangevinResults` there.
      noise: List of Tensors of the shapes of the parts.
      whitened: What `whiten` gives here, as the step that led here returned it,
        if that had the same step size. Default: computed.

    Returns:
      state: List of Tensors, where the step led. With a constant scale and
        'euler' it is √τ L (whitened / 2 + noise) away.
      results: An `UncalibratedPreconditionedLangevinResults` there, whose
        correction is that of all states; see `refused`.
      whitened: What `whiten` gives there.
    """
    roots = step_size_roots(before.step_size, parts)
    dynamics = self._dynamics(
      parts, before.target_log_prob, before.preconditioner
    )
    terms_before = per_part(before.grads_target_log_prob)
    if whitened is None:
      whitened = _whitened(dynamics, terms_before, roots)
    proposal = [
      tf.ensure_shape(d.propose(x, t, w, z, r), x.shape)
      for d, x, t, w, z, r in zip(
        dynamics, parts, terms_before, whitened, noise, roots
      )
    ]
    target_log_prob, terms = self._evaluate(proposal)
    if self.validate_args and self.volatility_fn is not None:
      target_log_prob = _assert_positive_volatility(target_log_prob, terms)
    whitened_after = _whitened(dynamics, per_part(terms), roots)
    results = before._replace(
      target_log_prob=target_log_prob,
      grads_target_log_prob=terms,
      log_acceptance_correction=tf.zeros_like(target_log_prob),
    )
    if not self.compute_acceptance:
      return proposal, results, whitened_after
    corrections = []
    for d, y, tx, ty, wx, wy, z, r, shard_axis in zip(
      dynamics,
      proposal,
      terms_before,
      per_part(terms),
      whitened,
      whitened_after,
      noise,
      roots,
      self._shard_axes(parts),
    ):
      axes = event_axes(y, target_log_prob)
      correction = d.correction((tx, ty), (wx, wy), z, r, axes)
      corrections.append(sum_over_shards(correction, shard_axis))
    results = results._replace(log_acceptance_correction=tf.add_n(corrections))
    return proposal, results, whitened_after

  def refused(self, parts, results, correction):
    """A correction, or -inf where a state must not be accepted.

    A state or a gradient that is not finite on the way makes all later states
    so: after several moves it is enough to look at the last one. The log
    density is left to `accept`.

    Args:
      parts: List of Tensors, the state that is proposed.
      results: An `UncalibratedPreconditionedLangevinResults` there.
      correction: Tensor of the chain shape.

    Returns:
      Tensor of the chain shape.
    """
    lost = []
    for x, terms, shard_axis in zip(
      parts,
      per_part(results.grads_target_log_prob),
      self._shard_axes(parts),
    ):
      usable = is_usable(terms, x, event_axes(x, correction))
      lost.append(
        sum_over_shards(tf.cast(~usable, correction.dtype), shard_axis)
      )
    minus_inf = tf.constant(-np.inf, correction.dtype)
    return tf.where(tf.add_n(lost) > 0.0, minus_inf, correction)

  def whiten(self, parts, results):
    """What `move` takes as `whitened` at a point.

    Args:
      parts: List of Tensors, the state.
      results: An `UncalibratedPreconditionedLangevinResults` there.

    Returns:
      List of Tensors of the shapes of the parts.
    """
    return _whitened(
      self._dynamics(parts, results.target_log_prob, results.preconditioner),
      per_part(results.grads_target_log_prob),
      step_size_roots(results.step_size, parts),
    )

  @property
  def _has_volatility(self):
    """Whether the scale depends on the position."""
    return self.volatility_fn is not None or isinstance(
      self.preconditioner, LocalHessianPreconditioner
    )

  @property
  def _scale_name(self):
    if self.volatility_fn is not None:
      return '`volatility_fn`'
    return 'the scale from the local Hessian'

  def _evaluate(self, parts):
    if isinstance(self.preconditioner, LocalHessianPreconditioner):
      return self.preconditioner.evaluate(
        self.target_log_prob_fn, parts, self.parallel_iterations
      )
    return evaluate(
      self.target_log_prob_fn,
      self.volatility_fn,
      parts,
      self.parallel_iterations,
    )

  def _dynamics(self, parts, target_log_prob, preconditioner=()):
    if self._has_volatility:
      return [langevin.Volatility()] * len(parts)
    event_ndims = [len(event_axes(x, target_log_prob)) for x in parts]
    # What an adapter wrote comes before what the kernel was made with.
    factors = as_factors(
      preconditioner or self.preconditioner,
      parts,
      event_ndims,
      is_adapted=bool(preconditioner),
    )
    if self.discretization == 'exponential':
      return [langevin.ExponentialScale(f) for f in factors]
    return [langevin.ConstantScale(f) for f in factors]

  def _shard_axes(self, parts):
    axes = self.experimental_shard_axis_names
    if axes is None or isinstance(axes, str):
      return [axes] * len(parts)
    if len(axes) != len(parts):
      raise ValueError(
        f'`experimental_shard_axis_names` is {arguments.shown(axes)}, but the '
        f'state has {number_of_parts(parts)}; '
        'give one name, or None, for each part.'
      )
    return list(axes)


def _whitened(dynamics, terms, roots):
  return [d.whiten(t, r) for d, t, r in zip(dynamics, terms, roots)]


def _check_one_time_for_all(preconditioner, roots):
  """What mixes coordinates needs the same time for all of them."""
  entries = entries_of_parts(preconditioner, roots)
  for i, (entry, root) in enumerate(zip(entries, roots)):
    mixes = isinstance(entry, tf.linalg.LinearOperator)
    if mixes and root.shape.rank and root.shape[-1] != 1:
      raise ValueError(
        f'`step_size` of shape {root.shape} for part {i} of the state differs '
        "along its last axis, but with `discretization='exponential'` and a "
        'LinearOperator as `preconditioner` the coordinates move together; '
        'give it the shape [C0, ..., 1], or put the ratios into the operator.'
      )


def _assert_positive_volatility(target_log_prob, terms):
  # NaN passes: it is a rejection, like a density that is NaN.
  return _asserting(
    tf.reduce_all([tf.reduce_all(~(s <= 0.0)) for s in terms.volatility]),
    '`volatility_fn` returned a value that is not positive at a proposal; it '
    'is a standard deviation.',
    target_log_prob,
  )


def _asserting(condition, message, tensor):
  with tf.control_dependencies([tf.debugging.Assert(condition, [message])]):
    return tf.identity(tensor)
