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
"""The warm-up of many chains: starts, windows, rescue, and what they learn."""

import dataclasses
import typing
import warnings

import numpy as np
import tensorflow as tf

from tfp_diag.mcmc.adapt.newton_starts import NewtonStarts, newton_starts
from tfp_diag.mcmc.adapt.scales import SCALES
from tfp_diag.mcmc.adapt.tuning import (
  StepSizeTuner,
  Times,
  autocorrelation_time,
  find_stuck,
  times_of,
)
from tfp_diag.mcmc.adapt.windows import adaptation_windows
from tfp_diag.mcmc.kernels.langevin_trajectories import (
  MetropolisAdjustedLangevinTrajectories,
)
from tfp_diag.mcmc.kernels.noise import split_seed
from tfp_diag.mcmc.run.block import SamplingBlock, to_tensors
from tfp_diag.mcmc.run.schedule import Schedule

__all__ = ['WarmUp', 'Window', 'warm_up']

# Steps in a block, and in the first ones, whose step size is a guess.
_BLOCK = 10
_FIRST_BLOCKS = (2, 3, 5)
# The rest is for the step size of the last scale.
_SHARE_FOR_SCALE = 0.75
# Beyond, a matrix costs more than the gradients of most models.
_MOST_FOR_MATRIX = 512
# Of the draws of a window, positions and gradients.
_MOST_NUMBERS = 2**26
# Steps of a trajectory, in the first windows, whose scale is a guess.
_FIRST_NUM_STEPS = 16
_FIRST_TIMES = Times(integration_time=2.0, damping=1.0)


class Window(typing.NamedTuple):
  """What a window of the warm-up has learned.

  Attributes:
    num_steps: Python int, how many trajectories it had.
    step_size: Python float, h at its end.
    integration_time: Python float, T from its draws.
    damping: Python float, γ from its draws.
    acceptance: Python float, the mean.
    num_rescued: Python int, how many chains were moved to others.
    num_gradients: Python int, per chain.
  """

  num_steps: int
  step_size: float
  integration_time: float
  damping: float
  acceptance: float
  num_rescued: int
  num_gradients: int


class WarmUp(typing.NamedTuple):
  """What a warm-up has found.

  Attributes:
    state: Array of shape [chains, d]: where the chains are.
    scale: `Scale`, the preconditioner.
    step_size: Python float, h.
    integration_time: Python float, T.
    damping: Python float, γ.
    autocorrelation_time: Python float, of the last window: how many
      trajectories an independent draw takes.
    windows: Tuple of `Window`s.
    num_newton_steps: Python int, how many steps the starts took.
    num_gradients: Python int, per chain, a diagonal of the Hessian counted as
      two.
  """

  state: typing.Any
  scale: typing.Any
  step_size: float
  integration_time: float
  damping: float
  autocorrelation_time: float
  windows: tuple
  num_newton_steps: int
  num_gradients: int

  def kernel(self, target_log_prob_fn, dtype, max_num_steps):
    """The kernel with all that was found."""
    return MetropolisAdjustedLangevinTrajectories(
      target_log_prob_fn,
      tf.constant(self.step_size, dtype),
      tf.constant(self.integration_time, dtype),
      tf.constant(self.damping, dtype),
      self.scale.operator(dtype),
      max_num_steps=max_num_steps,
    )


@dataclasses.dataclass
class _Settings:
  """What changes from block to block."""

  scale: typing.Any
  times: Times

  def time(self, step_size, is_single, max_num_steps):
    """T, no longer than so many steps; one step for MALA."""
    if is_single:
      return step_size
    return float(
      np.clip(self.times.integration_time, step_size, max_num_steps * step_size)
    )


def warm_up(
  target_log_prob_fn,
  state,
  num_steps,
  *,
  seed,
  preconditioner,
  is_single,
  target_accept_prob,
  max_num_steps,
  use_curvature,
  jit_compile,
):
  """Finds all that a kernel needs, and brings the chains to the typical set.

  Steps of a diagonal Newton method lead from the start to where draws are, and
  their curvature is the first scale. Then windows of doubling length: at the
  end of each, chains that are stuck go to where a random other chain is, the
  scale is learned from all others, and from what it leaves over the times. The
  step size is learned throughout; in the last quarter the scale is kept.

  Args:
    target_log_prob_fn: Python callable of a Tensor [chains, d] that returns one
      value per chain.
    state: Tensor of shape [chains, d].
    num_steps: Python int, how many trajectories.
    seed: int32 Tensor of shape [2].
    preconditioner: A key of `SCALES`, or 'auto'.
    is_single: Python bool: whether trajectories have one step.
    target_accept_prob: Python float.
    max_num_steps: Python int, the most steps of a trajectory.
    use_curvature: Python bool, whether to take second derivatives.
    jit_compile: Python bool.

  Returns:
    A `WarmUp`.
  """
  run_seed, rescue_seed = split_seed(seed, 2)
  rng = np.random.default_rng(np.asarray(rescue_seed).astype(np.uint32))
  num_chains, size = state.shape
  if use_curvature:
    starts = _starts(target_log_prob_fn, state, jit_compile)
  else:
    starts = _as_they_are(state)
  state = starts.state
  scales = np.median(np.asarray(starts.curvature, np.float64), axis=0) ** -0.5
  if preconditioner == 'auto':
    preconditioner = 'dense' if size <= _MOST_FOR_MATRIX else 'low_rank'
  scale = SCALES[preconditioner].of_deviations(scales)
  settings = _Settings(scale, _FIRST_TIMES)
  tuner = StepSizeTuner(0.5 * size**-0.25, target_accept_prob)
  block = _Blocks(target_log_prob_fn, state, settings, run_seed, jit_compile)

  ends = adaptation_windows(int(_SHARE_FOR_SCALE * num_steps))
  ends = [*ends, num_steps] if num_steps else []
  windows, begin, slowness = [], 0, 1.0
  for i, end in enumerate(ends):
    is_last, is_early = end == num_steps, i < 2
    tuner.new_window(is_late=i >= len(ends) - 2)
    most = min(max_num_steps, _FIRST_NUM_STEPS) if is_early else max_num_steps
    rows = block.make(end - begin, settings, tuner, is_single, most)
    tuner.end_window()
    stuck = np.zeros([num_chains], bool)
    if not is_last:
      stuck = find_stuck(rows.is_accepted, rows.log_prob)
      block.move(stuck, rng)
      draws, gradients = rows.of_chains(~stuck)
      settings.scale = settings.scale.learned(draws, gradients)
      times = times_of(settings.scale.whiten(draws))
      if np.all(np.isfinite(times)):
        settings.times = times
    else:
      slowness = rows.every * autocorrelation_time(rows.draws)
    windows.append(
      Window(
        end - begin,
        tuner.step_size,
        settings.time(tuner.step_size, is_single, max_num_steps),
        settings.times.damping,
        float(np.mean(np.exp(np.minimum(rows.log_accept_ratio, 0.0)))),
        int(stuck.sum()),
        rows.num_gradients,
      )
    )
    begin = end
  num_newton_steps = int(starts.num_steps)
  return WarmUp(
    state=block.state.numpy(),
    scale=settings.scale,
    step_size=tuner.step_size,
    integration_time=settings.time(tuner.step_size, is_single, max_num_steps),
    damping=settings.times.damping,
    autocorrelation_time=slowness,
    windows=tuple(windows),
    num_newton_steps=num_newton_steps,
    num_gradients=4 * num_newton_steps + sum(w.num_gradients for w in windows),
  )


def _starts(target_log_prob_fn, state, jit_compile):
  """`NewtonStarts`, or the start itself where there are no derivatives."""

  @tf.function(autograph=False, jit_compile=jit_compile or None)
  def run(state):
    return newton_starts(target_log_prob_fn, state)

  try:
    # Not by `run`, of which each call of the driver makes another one, which
    # TensorFlow would warn of.
    return run.get_concrete_function(state)(state)
  except (ValueError, TypeError, tf.errors.OpError) as e:
    warnings.warn(
      'The chains start without the diagonal of the Hessian, which cannot be '
      f'had ({str(e).splitlines()[0]}); the warm-up takes longer.',
      stacklevel=4,
    )
    return _as_they_are(state)


def _as_they_are(state):
  return NewtonStarts(state, tf.ones_like(state), tf.constant(0))


class _Rows(typing.NamedTuple):
  """What the steps of a window have written.

  Draws and gradients are those of one in `every` steps.
  """

  draws: typing.Any
  gradients: typing.Any
  log_prob: typing.Any
  is_accepted: typing.Any
  log_accept_ratio: typing.Any
  num_gradients: int
  every: int

  def of_chains(self, chosen):
    """Draws and gradients of some chains, of shape [n, d], in float64."""
    size = self.draws.shape[-1]
    return tuple(
      x[:, chosen].reshape(-1, size).astype(np.float64)
      for x in (self.draws, self.gradients)
    )


class _Blocks:
  """Chains, and a compiled block of steps that they make.

  Attributes:
    state: Tensor of shape [chains, d].
  """

  def __init__(self, target_log_prob_fn, state, settings, seed, jit_compile):
    dtype = state.dtype
    kernel = WarmUp(
      state, settings.scale, 1.0, *settings.times, 1.0, (), 0, 0
    ).kernel(target_log_prob_fn, dtype, 1000)
    self.state = state
    self._dtype = dtype
    self._seed = seed
    self._step = 0
    self._results = self._with_scale(
      kernel.bootstrap_results(state), settings.scale
    )
    self._block = SamplingBlock(
      kernel,
      _trace,
      Schedule(2**30, 0, 0, _BLOCK),
      state,
      self._results,
      jit_compile,
      'mcmc_warm_up',
    )

  def make(self, num_steps, settings, tuner, is_single, max_num_steps):
    """Makes steps with these settings; `_Rows`."""
    self._results = self._with_scale(self._results, settings.scale)
    every = -(-2 * num_steps * self.state.shape.num_elements() // _MOST_NUMBERS)
    end, found = self._step + num_steps, []
    while self._step < end:
      length = min(self._next_length(), end - self._step)
      rows = self._make_block(
        length,
        tuner.step_size,
        settings.time(tuner.step_size, is_single, max_num_steps),
        settings.times.damping,
      )
      kept = slice(-self._step % every, None, every)
      self._step += length
      tuner.see(rows.log_accept_ratio, length / _BLOCK)
      found.append(
        rows._replace(draws=rows.draws[kept], gradients=rows.gradients[kept])
      )
    *arrays, counts, _ = zip(*found)
    return _Rows(*map(np.concatenate, arrays), sum(counts), every)

  def move(self, stuck, rng):
    """Puts chains that are stuck where random other ones are."""
    if not stuck.any():
      return
    source = np.arange(stuck.size)
    source[stuck] = rng.choice(np.flatnonzero(~stuck), stuck.sum())
    accepted = self._results.accepted_results
    moved = tf.nest.map_structure(
      lambda x: tf.gather(x, source),
      (
        self.state,
        accepted.target_log_prob,
        accepted.grads_target_log_prob,
      ),
    )
    self.state, log_prob, gradients = moved
    self._results = self._results._replace(
      accepted_results=accepted._replace(
        target_log_prob=log_prob, grads_target_log_prob=gradients
      )
    )

  def _next_length(self):
    for length, end in zip(_FIRST_BLOCKS, np.cumsum(_FIRST_BLOCKS)):
      if self._step < end:
        return length
    return _BLOCK

  def _make_block(self, length, step_size, integration_time, damping):
    step_size, integration_time, damping = (
      tf.constant(x, self._dtype)
      for x in (step_size, integration_time, damping)
    )
    results = self._results._replace(
      integration_time=integration_time,
      damping=damping,
      accepted_results=self._results.accepted_results._replace(
        step_size=step_size
      ),
    )
    state, results, _, rows = self._block(
      to_tensors(self.state),
      to_tensors(results),
      self._seed,
      self._step,
      length,
    )
    [self.state] = state
    self._results = tf.nest.pack_sequence_as(
      self._results, results, expand_composites=True
    )
    draws, *traced = (x.numpy()[:length] for x in rows)
    traced = tf.nest.pack_sequence_as(self._block.trace_structure, traced)
    num_gradients = int(traced.pop('num_gradients').sum())
    return _Rows(draws, **traced, num_gradients=num_gradients, every=1)

  def _with_scale(self, results, scale):
    accepted = results.accepted_results._replace(
      preconditioner=[scale.operator(self._dtype)]
    )
    results = results._replace(
      accepted_results=accepted,
      proposed_results=results.proposed_results._replace(
        preconditioner=accepted.preconditioner
      ),
    )
    return tf.nest.map_structure(
      tf.convert_to_tensor, results, expand_composites=True
    )


def _trace(state, results):
  del state  # In the rows anyway.
  accepted = results.accepted_results
  return {
    'gradients': accepted.grads_target_log_prob[0],
    'log_prob': accepted.target_log_prob,
    'is_accepted': results.is_accepted,
    'log_accept_ratio': results.log_accept_ratio,
    'num_gradients': results.leapfrogs_taken,
  }
