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
"""Metropolis-adjusted Langevin trajectories: many steps, one decision."""

import functools
import typing
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.internal import arguments
from tfp_diag.mcmc.kernels.arguments import (
  as_parts,
  check_state,
  log_prob_at,
  step_sizes_of_parts,
)
from tfp_diag.mcmc.kernels.langevin_kernel import (
  ScaledKernel,
  position_dependence,
)
from tfp_diag.mcmc.kernels.metropolis import accept, at_start
from tfp_diag.mcmc.kernels.noise import split_seed, step_seed, uniform
from tfp_diag.mcmc.kernels.parameterized_kernel import Argument, checked_seed
from tfp_diag.mcmc.kernels.preconditioned_mala import PreconditionedMALA
from tfp_diag.mcmc.kernels.uncalibrated_preconditioned_langevin import (
  UncalibratedPreconditionedLangevin,
)


class MetropolisAdjustedLangevinTrajectoriesResults(typing.NamedTuple):
  r"""Kernel results of `MetropolisAdjustedLangevinTrajectories`.

  The names are those of TFP's Metropolis-Hastings kernels. What adapters may
  change are `accepted_results.step_size`, `integration_time` and `damping`.

  Attributes:
    accepted_results: An `UncalibratedPreconditionedLangevinResults` for the
      state that was returned.
    is_accepted: bool Tensor of the chain shape.
    log_accept_ratio: Tensor of the chain shape: the log of the ratio whose
      minimum with one is the probability of acceptance; -inf where anything on
      the trajectory is not finite.
    proposed_state: Where the trajectory ended, in the structure of the state.
    proposed_results: An `UncalibratedPreconditionedLangevinResults` there.
    proposed_velocity: List of Tensors, the velocity there in the coordinates in
      which it is standard normal, one per part.
    integration_time: Scalar Tensor: $T$, for the next trajectory.
    damping: Scalar Tensor: $\gamma$, for the next trajectory.
    leapfrogs_taken: int32 scalar Tensor: the steps of this trajectory, each of
      which took one gradient. Where it is the kernel's `max_num_steps`, the
      trajectory may have ended before $T$.
    seed: int32 Tensor of shape [2]: the seed of this step.

  #### Examples

  ```python
  kernel = tfp_diag.mcmc.MetropolisAdjustedLangevinTrajectories(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    step_size=0.5,
    integration_time=1.5,
    damping=1.0,
  )
  state = tf.zeros([4, 3])
  results = kernel.bootstrap_results(state)
  state, results = kernel.one_step(state, results, seed=(0, 1))
  results.is_accepted.shape  # ==> [4]
  int(results.leapfrogs_taken)  # ==> 3
  ```
  """

  accepted_results: typing.Any
  is_accepted: typing.Any
  log_accept_ratio: typing.Any
  proposed_state: typing.Any
  proposed_results: typing.Any
  proposed_velocity: typing.Any
  integration_time: typing.Any
  damping: typing.Any
  leapfrogs_taken: typing.Any
  seed: typing.Any


class MetropolisAdjustedLangevinTrajectories(
  ScaledKernel[MetropolisAdjustedLangevinTrajectoriesResults]
):
  r"""A trajectory of underdamped Langevin dynamics, accepted as a whole.

  With the gradient $g$ of the log density, the preconditioner $V = L L^\top$,
  the damping $\gamma$ and a Brownian motion $w$, a state with a standard normal
  velocity $v$ moves by

  $$
  dx = L v \, dt, \qquad
  dv = L^\top g \, dt - \gamma v \, dt + \sqrt{2 \gamma} \, dw
  $$

  for the time $T$, in steps of the length $h$: with $\eta = e^{-\gamma h}$ and
  standard normal $z$, each step is one of the leapfrog scheme and a partial
  refreshment,

  $$
  \begin{aligned}
  u &= v + \tfrac{h}{2} L^\top g(x), \quad x' = x + h L u, \quad
  v' = u + \tfrac{h}{2} L^\top g(x') \\
  v &\leftarrow \eta v' + \sqrt{1 - \eta^2} \, z
  \end{aligned}
  $$

  The sum of the errors that the leapfrog steps make in the energy $|v|^2 / 2 -
  \log p(x)$ decides whether the end is accepted. The next trajectory has a new
  velocity. Changes of the energy by refreshments do not count, so trajectories
  of many steps in one direction are accepted, as in Hamiltonian Monte Carlo.
  Because of the damping, a trajectory that is too long does no harm [1].

  A trajectory of one step is a step of `PreconditionedMALA` with $\tau = h^2$;
  with equal seeds both agree bit for bit. Without damping the trajectory is one
  of Hamiltonian Monte Carlo. With infinite damping it is several Langevin steps
  and one decision.

  The number of steps is $T / h$, rounded up or down at random so that its mean
  is $T / h$, but `max_num_steps` at most. All chains share it. With `jitter`
  the time itself varies. There is no leapfrog scheme for a scale that depends
  on the position; use `PreconditionedMALA` for such a scale.

  As soon as a preconditioner is known, this kernel is almost always better than
  `PreconditionedMALA`: the steps of a trajectory go on in one direction, while
  single steps make a random walk. `sample_posterior` finds all its settings.
  For funnels use `PreconditionedMALA` with a `LocalHessianPreconditioner`.

  #### Examples

  ```python
  import tensorflow as tf
  import tensorflow_probability as tfp
  import tfp_diag

  scales = tf.constant([0.1, 1.0, 10.0])
  target = tfp.distributions.MultivariateNormalDiag(scale_diag=scales)
  kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
    tfp_diag.mcmc.MetropolisAdjustedLangevinTrajectories(
      target.log_prob,
      step_size=0.5,
      integration_time=1.5,
      damping=0.5,
      preconditioner=scales,
    ),
    num_adaptation_steps=40,
    target_accept_prob=0.8,
  )
  draws, steps = tfp.mcmc.sample_chain(
    num_results=10,
    num_burnin_steps=50,
    current_state=tf.zeros([4, 3]),
    kernel=kernel,
    trace_fn=lambda _, results: results.inner_results.leapfrogs_taken,
    seed=(0, 1),
  )
  draws.shape  # ==> [10, 4, 3]
  steps.shape  # ==> [10]
  ```

  #### References

  [1]: Lionel Riou-Durand and Jure Vogrinc (2022). Metropolis Adjusted Langevin
       Trajectories: a robust alternative to Hamiltonian Monte Carlo. Section 3.
       https://doi.org/10.48550/arXiv.2202.13230

  [2]: Lionel Riou-Durand, Pavel Sountsov, Jure Vogrinc, Charles Margossian and
       Sam Power (2023). Adaptive tuning for Metropolis Adjusted Langevin
       Trajectories. _AISTATS_.
       https://doi.org/10.48550/arXiv.2210.12200

  [3]: Giovanni Bussi and Michele Parrinello (2007). Accurate sampling using
       Langevin dynamics. _Physical Review E_ 75: the energy error.
       https://doi.org/10.1103/PhysRevE.75.056707
  """

  _default_name = 'metropolis_adjusted_langevin_trajectories'
  _results_type = MetropolisAdjustedLangevinTrajectoriesResults

  def __init__(
    self,
    target_log_prob_fn: Callable,
    step_size: Any,
    integration_time: Any,
    damping: Any,
    preconditioner: Any = None,
    *,
    jitter: float = 0.0,
    max_num_steps: int = 1000,
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
      step_size: $h$, a positive Tensor that broadcasts to the state, or a list
        with one per part. Shape [C0, ..., 1] gives every chain its own. The
        number of steps is $T$ over the largest $h$, for all chains and
        coordinates.
      integration_time: $T$, a positive number or scalar Tensor of the state's
        dtype. A trajectory that takes more than `max_num_steps` steps ends
        earlier, after the time `max_num_steps` $h$.
      damping: $\gamma$, a number or scalar Tensor of the state's dtype, not
        negative. Infinity is allowed.
      preconditioner: None; a positive Tensor that broadcasts to a part, the
        standard deviation of each coordinate's noise; a square
        `tf.linalg.LinearOperator` $L$ that acts on the last axis of a part; or
        a list of these with one per part. Default: None, the identity.
      jitter: Python float from 0 to 1: the time of a trajectory is uniform
        between $(1 - \text{jitter}) \, T$ and $(1 + \text{jitter}) \, T$, one
        for all chains.
      max_num_steps: Python `int`, the largest number of steps of a trajectory.
        It bounds the cost if an adapter makes the step size tiny: the time $T$
        is then not reached, and `leapfrogs_taken`, the 'n_steps' of a trace, is
        this number.
      experimental_shard_axis_names: As for `PreconditionedMALA`, but in eager
        mode only: in a graph the steps are a `tf.while_loop`, in which replicas
        cannot exchange the sums over a sharded part.
      experimental_chain_axis_names: As for `PreconditionedMALA`.
      validate_args: As for `PreconditionedMALA`.
      name: Python `str`, the prefix of op names.

    Raises:
      TypeError: if `target_log_prob_fn` is not callable, or `step_size` or
        `preconditioner` is of a type that is not listed above.
      ValueError: if the preconditioner depends on the position, or a number is
        out of its range.
    """
    parameters = dict(locals())
    changing = position_dependence(preconditioner)
    if changing is not None:
      raise ValueError(
        f'`preconditioner` {changing}, but a trajectory needs one scale; use '
        'it with `PreconditionedMALA`.'
      )
    arguments.check_number(
      'integration_time',
      integration_time,
      'a positive number',
      arguments.is_positive,
    )
    arguments.check_number(
      'damping',
      damping,
      'a number that is not negative',
      lambda x: x >= 0.0,
    )
    arguments.check_number(
      'jitter', jitter, 'a number from 0 to 1', lambda x: 0.0 <= x <= 1.0
    )
    jitter = arguments.static_value(jitter)
    if tf.is_tensor(jitter):
      raise ValueError(
        '`jitter` is a Tensor of a graph, whose value is not known yet, but '
        'must be a number from 0 to 1. Pass a Python float.'
      )
    parameters['jitter'] = jitter
    parameters['max_num_steps'] = arguments.as_count(
      'max_num_steps', max_num_steps, 1, 'the most steps of a trajectory'
    )
    super().__init__(parameters)

  integration_time = Argument('The first time T.')
  damping = Argument('The first damping γ.')
  jitter = Argument('The share of T by which the time varies.')
  max_num_steps = Argument('The largest number of steps of a trajectory.')

  def _bootstrap_results(self, init_state):
    results = self._leapfrog.bootstrap_results(init_state)
    log_prob = results.target_log_prob
    return MetropolisAdjustedLangevinTrajectoriesResults(
      **at_start(results, init_state),
      proposed_results=results._replace(seed=[]),
      proposed_velocity=[tf.zeros_like(x) for x in as_parts(init_state)],
      integration_time=tf.convert_to_tensor(
        self.integration_time, log_prob.dtype
      ),
      damping=tf.convert_to_tensor(self.damping, log_prob.dtype),
      leapfrogs_taken=tf.zeros([], tf.int32),
      seed=tf.zeros([2], tf.int32),
    )

  def _one_step(self, current_state, previous, seed):
    # As a step of MALA, which a trajectory of one step is.
    seed = checked_seed(seed, PreconditionedMALA.salt)
    trajectory_seed, acceptance_seed = split_seed(seed, 2)
    before = previous.accepted_results
    check_state(as_parts(current_state), before.gradients)
    current_state = tf.nest.map_structure(tf.convert_to_tensor, current_state)
    num_steps = self._num_steps(previous, seed)

    end, correction = self._follow(
      as_parts(current_state), previous, num_steps, trajectory_seed
    )
    proposed_state = tf.nest.pack_sequence_as(current_state, end.state)
    proposed_results = end.results._replace(step_size=before.step_size, seed=[])
    next_state, fields = accept(
      (current_state, before),
      (proposed_state, proposed_results),
      correction,
      acceptance_seed,
      self.experimental_chain_axis_names,
    )
    return next_state, previous._replace(
      **fields,
      proposed_velocity=end.velocity,
      leapfrogs_taken=num_steps,
      seed=seed,
    )

  def _follow(self, parts, previous, num_steps, seed):
    """The point after so many steps, and the sum of the corrections."""
    step_size = previous.accepted_results.step_size
    # The time of a Langevin step is the square of the length of a leapfrog's.
    before = previous.accepted_results._replace(
      step_size=tf.nest.map_structure(tf.square, step_size)
    )
    decays = [
      tf.exp(-previous.damping * tf.cast(h, x.dtype))
      for h, x in zip(step_sizes_of_parts(step_size, parts), parts)
    ]
    salt = UncalibratedPreconditionedLangevin.salt
    first_seed = tfp.random.sanitize_seed(seed, salt=salt)

    def step(i, point, total):
      # One body for all steps: a graph has the target's gradient once.
      is_first = tf.equal(i, 0)
      noise = self._leapfrog.draw_noise(
        parts, tf.where(is_first, first_seed, step_seed(seed, i))
      )
      velocity = [
        refresh(v, z, tf.where(is_first, tf.zeros_like(decay), decay))
        for decay, v, z in zip(decays, point.velocity, noise)
      ]
      moved = self._step(point._replace(velocity=velocity))
      if self.max_num_steps > 1:
        # Nobody asks for the values on the way. The graph of a step computes
        # the gradient alone, the value is found once, at the end.
        moved = moved._replace(
          results=moved.results._replace(
            target_log_prob=point.results.target_log_prob
          )
        )
      total += moved.results.log_acceptance_correction
      # What the target lost of a shape would not be that of the start.
      moved = tf.nest.map_structure(_with_shape, point, moved)
      return i + 1, moved, _with_shape(before.target_log_prob, total)

    point = _Point(
      parts,
      before,
      [tf.zeros_like(x) for x in parts],
      self._leapfrog.whiten(parts, before),
    )
    _, point, total = tf.while_loop(
      lambda i, *_: i < num_steps,
      step,
      (tf.constant(0), point, tf.zeros_like(before.target_log_prob)),
    )
    results = point.results
    if self.max_num_steps > 1:
      log_prob = log_prob_at(self.target_log_prob_fn, point.state)
      results = results._replace(
        target_log_prob=_with_shape(before.target_log_prob, log_prob)
      )
    total = self._leapfrog.refused(point.state, results, total)
    return point._replace(results=results), total

  def _step(self, point):
    """A step of the leapfrog scheme, whose results have the correction."""
    state, results, whitened = self._leapfrog.move(
      point.state, point.results, point.velocity, point.whitened
    )
    velocity = [
      (v + 0.5 * p) + 0.5 * q
      for v, p, q in zip(point.velocity, point.whitened, whitened)
    ]
    return _Point(state, results, velocity, whitened)

  def _num_steps(self, previous, seed):
    """How many steps the trajectory has: an int32 scalar Tensor."""
    time = previous.integration_time
    rounding, jitter = tf.unstack(uniform([2], step_seed(seed, 0), time.dtype))
    if self.jitter:
      time *= 1.0 + self.jitter * (2.0 * tf.cast(jitter, time.dtype) - 1.0)
    step_size = tf.reduce_max(
      [
        tf.reduce_max(tf.cast(h, time.dtype))
        for h in tf.nest.flatten(previous.accepted_results.step_size)
      ]
    )
    # Rounded at random, so that the time is right on average.
    number = tf.floor(time / step_size + tf.cast(rounding, time.dtype))
    # A ratio beyond what an integer holds, or none, must not become one; nor
    # may the largest number, which float32 rounds to one beyond.
    number = tf.where(
      number < self.max_num_steps, tf.cast(number, tf.int32), self.max_num_steps
    )
    return tf.maximum(number, 1)

  @functools.cached_property
  def _leapfrog(self):
    return UncalibratedPreconditionedLangevin(
      self.target_log_prob_fn,
      self.step_size,
      self.preconditioner,
      experimental_shard_axis_names=self.experimental_shard_axis_names,
      experimental_chain_axis_names=self.experimental_chain_axis_names,
      validate_args=self.validate_args,
    )


def refresh(velocity, noise, decay):
  """A partial refreshment, which leaves the standard normal as it is."""
  return decay * velocity + tf.sqrt((1.0 - decay) * (1.0 + decay)) * noise


def _with_shape(before, after):
  """The second, of which the graph knows the shape of the first."""
  if isinstance(after, tf.Tensor):
    after.set_shape(before.shape)
  return after


class _Point(typing.NamedTuple):
  """Where a trajectory is.

  Attributes:
    state: List of Tensors.
    results: An `UncalibratedPreconditionedLangevinResults` there.
    velocity: List of Tensors, standard normal, in whitened coordinates.
    whitened: List of Tensors, h Lᵀ g.
  """

  state: typing.Any
  results: typing.Any
  velocity: typing.Any
  whitened: typing.Any
