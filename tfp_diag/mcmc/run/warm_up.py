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

import contextlib
import typing

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.diagonal import graphs
from tfp_diag.diagonal.linear_map import MissingGradientError
from tfp_diag.internal import arguments
from tfp_diag.internal.text_table import as_html, text_table
from tfp_diag.internal.warn import warn
from tfp_diag.mcmc.adapt.newton_starts import newton_starts
from tfp_diag.mcmc.adapt.scales import SCALES, centered
from tfp_diag.mcmc.adapt.tuning import (
  Places,
  StepSizeTuner,
  Times,
  autocorrelation_time,
  find_stuck,
  hardly_move,
  has_mass,
  have_mass_after_all,
  is_unstable,
  places_of,
  times_of,
)
from tfp_diag.mcmc.adapt.windows import (
  MOST_FOR_MATRIX,
  SHARE_FOR_SCALE,
  adaptation_windows,
)
from tfp_diag.mcmc.kernels.arguments import in_words_of_a_target
from tfp_diag.mcmc.kernels.noise import split_seed
from tfp_diag.mcmc.kernels.preconditioned_mala import PreconditionedMALA
from tfp_diag.mcmc.run.block import (
  NotCompiledError,
  as_tensors,
  explaining_xla,
  packed,
  to_tensors,
)
from tfp_diag.mcmc.run.local_warm_up import local_warm_up, varies
from tfp_diag.mcmc.run.schedule import Schedule
from tfp_diag.mcmc.run.trace import default_trace
from tfp_diag.mcmc.run.trajectory_block import (
  CarriesScale,
  TrajectoryBlock,
  num_steps_of_blocks,
  with_scale,
)
from tfp_diag.sparsity.samples import SampleMixingError

# Steps in a block, and in the first ones, whose step size is a guess.
_BLOCK = 10
_FIRST_BLOCKS = (2, 3, 5)
# Of the draws of a window, positions and gradients.
_MOST_NUMBERS = 2**26
# Steps of a trajectory, in the first windows, whose scale is a guess.
_FIRST_NUM_STEPS = 16
_FIRST_TIMES = Times(integration_time=2.0, damping=1.0)
# The acceptance of trajectories, and where some places need shorter steps; of
# single steps, which is best in high dimensions.
_TARGET = 0.9
_HIGHER_TARGET = 0.97
_TARGET_OF_ONE_STEP = 0.574
# A constant scale whose draws cost less gradients is good enough: by the local
# curvature a draw takes hundreds of steps, each of several gradients.
_DEAR = 2000.0
# By how much a constant scale may look too good there: its steps are too long
# for some places, and what the chains do not see does not count.
_OPTIMISM = 2.0
# Steps with the local curvature, for each trajectory of the other warm-up.
_LOCAL_STEPS = 5
# Towards the typical set.
_MOST_NEWTON_STEPS = 200
# Of starts, in units of a coordinate; and which are the same for all chains, as
# a share of their spread.
_LARGEST_SPREAD, _ALIKE = 1.0, 0.1
# What is printed of a window.
_OF_WINDOW = ('window', 'steps', 'step size', 'T', 'acceptance', 'rescued')


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

  #### Examples

  ```python
  import tensorflow as tf
  import tfp_diag

  found = tfp_diag.mcmc.sample_posterior(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    100,
    init=tf.zeros([64, 3]),
    num_warmup_steps=50,
    seed=1,
  )
  window = found.warm_up.windows[-1]
  window.acceptance > 0.5, window.num_rescued  # ==> (True, 0)
  ```
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
    step_size: Python float, h; of a `LocalScale`, τ of the Langevin kernel.
    integration_time: Python float, T; of a `LocalScale`, the step size.
    damping: Python float, γ.
    autocorrelation_time: Python float, of the last window: how many
      trajectories an independent draw takes.
    windows: Tuple of `Window`s.
    num_newton_steps: Python int, how many steps the starts took.
    num_gradients: Python int, per chain, a diagonal of the Hessian counted as
      two.
    gradients_per_step: Python int, of each step of a trajectory.
    abandoned: Array of shape [chains of these, d]: where chains were that did
      not move, and were moved to others, although as much of the target may be
      there; or None.

  #### Examples

  ```python
  import tensorflow as tf
  import tfp_diag

  found = tfp_diag.mcmc.sample_posterior(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
    100,
    init=tf.zeros([64, 3]),
    num_warmup_steps=50,
    seed=1,
  )
  found.warm_up.state.shape  # ==> (64, 3)
  found.warm_up.step_size > 0.0  # ==> True
  ```
  """

  state: typing.Any
  scale: typing.Any
  step_size: float
  integration_time: float
  damping: float
  autocorrelation_time: float
  windows: tuple[Window, ...]
  num_newton_steps: int
  num_gradients: int
  gradients_per_step: int = 1
  abandoned: typing.Any = None

  def __repr__(self):
    """One line; `print` adds a row for each window."""
    return (
      f'<WarmUp: step size {self.step_size:.3g}, integration time '
      f'{self.integration_time:.3g}, damping {self.damping:.3g}, '
      f'{self.scale.kind} scale, {len(self.windows)} '
      f'window{"" if len(self.windows) == 1 else "s"}, '
      f'{self.num_gradients:,} gradients per chain>'
    )

  def _repr_html_(self):
    return as_html(str(self))

  def __str__(self):
    """The line, and a table of the windows."""
    if not self.windows:
      return repr(self)
    cells = [
      [
        str(i),
        f'{w.num_steps:,}',
        f'{w.step_size:.3g}',
        f'{w.integration_time:.3g}',
        f'{w.acceptance:.3f}',
        f'{w.num_rescued:,}',
      ]
      for i, w in enumerate(self.windows)
    ]
    return f'{self!r}\n\n{text_table(_OF_WINDOW, cells)}'


def kernel_of(found, target_log_prob_fn, dtype, max_num_steps):
  """The kernel with all that a `WarmUp` has found."""
  if found.scale.kind == 'local':
    return PreconditionedMALA(
      target_log_prob_fn,
      tf.constant(found.step_size, dtype),
      found.scale.operator(dtype),
    )
  return CarriesScale(
    target_log_prob_fn,
    tf.constant(found.step_size, dtype),
    tf.constant(found.integration_time, dtype),
    tf.constant(found.damping, dtype),
    found.scale.operator(dtype),
    max_num_steps=max_num_steps,
  )


def gradients_per_draw(found):
  """What an independent draw costs each chain after a `WarmUp`."""
  num_steps = max(found.integration_time / found.step_size, 1.0)
  return found.autocorrelation_time * num_steps * found.gradients_per_step


def warm_up(
  target_log_prob_fn,
  state,
  num_steps,
  *,
  seed,
  preconditioner,
  target_accept_prob,
  max_num_steps,
  use_curvature,
  tries_local,
  jit_compile,
  log_prob_graph,
):
  """Finds all that a kernel needs, and brings the chains to the typical set.

  Steps of a diagonal Newton method lead from the start to where draws are, and
  their curvature is the first scale. Then windows of doubling length: at the
  end of each, chains that are stuck go to where a random other chain is, the
  scale is learned from all others, and from what it leaves over the times. The
  step size is learned throughout; in the last quarter the scale is kept.

  Where draws are dear then, and the curvature changes by orders of magnitude
  from chain to chain, as in a funnel, the local curvature is tried as a scale,
  and stays if its draws cost less.

  Args:
    target_log_prob_fn: Python callable of a Tensor [chains, d] that returns one
      value per chain.
    state: Tensor of shape [chains, d].
    num_steps: Python int, how many trajectories.
    seed: int32 Tensor of shape [2].
    preconditioner: A key of `SCALES`; or 'auto', and whether 'local' is tried
      is then up to `tries_local`.
    target_accept_prob: Python float, the acceptance that step sizes aim at, or
      None: it is found out.
    max_num_steps: Python int, the most steps of a trajectory; 1 for MALA.
    use_curvature: Python bool, whether to take second derivatives.
    tries_local: Python bool, whether to try a kernel with the local curvature
      where a constant scale is found to be bad.
    jit_compile: Python bool.
    log_prob_graph: `Graph` of `target_log_prob_fn`, if it has a single one.

  Returns:
    A `WarmUp`.
  """
  run_seed, rescue_seed, local_seed = split_seed(seed, 3)
  rng = np.random.default_rng(np.asarray(rescue_seed).astype(np.uint32))
  num_chains, size = state.shape
  newton, is_local = None, preconditioner == 'local'
  # Who is refused, here or by the first steps, is not warned as well.
  notes = []
  if use_curvature:
    newton = _newton(
      target_log_prob_fn,
      state,
      jit_compile,
      log_prob_graph,
      is_local,
      notes.append,
    )
  scales, num_newton_steps, num_curvatures = np.ones([size]), 0, 0
  if newton is not None:
    state, num_curvatures = _told_apart(target_log_prob_fn, state, newton, rng)
    starts = newton(state)
    num_newton_steps = int(starts.num_steps)
    num_curvatures += num_newton_steps
    state = _brought_back(target_log_prob_fn, state, starts.state, rng)
    scales = np.median(np.asarray(starts.curvature, np.float64), axis=0) ** -0.5
  if preconditioner == 'auto':
    preconditioner = 'dense' if size <= MOST_FOR_MATRIX else 'low_rank'
  elif is_local:  # No window learns a scale.
    preconditioner = 'diagonal'
  scale = SCALES[preconditioner].of_deviations(scales)
  is_single = max_num_steps == 1
  target = _TARGET_OF_ONE_STEP if is_single else _TARGET
  tuner = StepSizeTuner(0.5 * size**-0.25, target_accept_prob or target)
  blocks = _Blocks(
    target_log_prob_fn,
    state,
    scale,
    run_seed,
    jit_compile,
    max_num_steps,
    log_prob_graph,
  )

  ends = adaptation_windows(int(SHARE_FOR_SCALE * num_steps))
  ends = [*ends, num_steps] if num_steps and not is_local else []
  windows, begin, slowness = [], 0, 1.0
  abandoned, places = {}, None
  for i, end in enumerate(ends):
    is_last, is_early = end == num_steps, i < 2
    tuner.new_window(is_late=i >= len(ends) - 2)
    most = min(max_num_steps, _FIRST_NUM_STEPS) if is_early else max_num_steps
    rows = blocks.make(end - begin, tuner, most)
    while notes:
      warn(notes.pop())
    tuner.end_window()
    stuck = np.zeros([num_chains], bool)
    if not is_last:
      stuck = find_stuck(rows.is_accepted, rows.log_prob, rows.gradients)
      heavy = stuck & hardly_move(rows.is_accepted)
      if heavy.any():
        heavy &= has_mass(rows.log_prob, rows.gradients)
      # Of each chain the last.
      left = blocks.state.numpy(), *places_of(rows.log_prob, rows.gradients)
      abandoned.update((k, [x[k] for x in left]) for k in np.flatnonzero(heavy))
      blocks.move(stuck, rng)
      draws, gradients = rows.of_chains(~stuck)
      blocks.scale = blocks.scale.learned(draws, gradients)
      times = times_of(blocks.scale.whiten(centered(draws)))
      if np.all(np.isfinite(times)):
        blocks.times = times
      if (
        target_accept_prob is None
        and not (is_single or is_early)
        and is_unstable(rows.log_accept_ratio[:, ~stuck])
      ):
        tuner.target = _HIGHER_TARGET
    else:
      slowness = rows.every * autocorrelation_time(rows.draws)
      places = _with_mass(abandoned.values(), rows)
    windows.append(
      Window(
        end - begin,
        tuner.step_size,
        blocks.time(tuner.step_size, max_num_steps),
        blocks.times.damping,
        float(np.mean(np.exp(np.minimum(rows.log_accept_ratio, 0.0)))),
        int(stuck.sum()),
        rows.num_gradients,
      )
    )
    begin = end
  reached = _brought_back(target_log_prob_fn, state, blocks.state, rng)
  found = WarmUp(
    state=reached.numpy(),
    scale=blocks.scale,
    step_size=tuner.step_size,
    integration_time=blocks.time(tuner.step_size, max_num_steps),
    damping=blocks.times.damping,
    autocorrelation_time=slowness,
    windows=tuple(windows),
    num_newton_steps=num_newton_steps,
    # Of each step the gradient, and a diagonal of the Hessian.
    num_gradients=3 * num_curvatures + sum(w.num_gradients for w in windows),
    abandoned=places,
  )
  if newton is None or not num_steps:
    return found
  if not is_local and not (tries_local and gradients_per_draw(found) > _DEAR):
    return found
  curvature = np.abs(newton(reached, 1).second.numpy().astype(np.float64))
  if not is_local and not varies(curvature):
    return found
  local = None
  with _if_possible(
    'The local curvature is not tried as a scale: it needs third derivatives',
    is_local,
  ):
    local = local_warm_up(
      found,
      target_log_prob_fn,
      curvature,
      _LOCAL_STEPS * num_steps,
      local_seed,
      jit_compile,
      target_accept_prob,
    )
  if local is None:
    return found
  reached = tf.constant(local.state)
  reached = _brought_back(target_log_prob_fn, state, reached, rng)
  local = local._replace(state=reached.numpy())
  dear = _OPTIMISM * gradients_per_draw(found)
  if not windows or gradients_per_draw(local) < dear:
    return local
  return found._replace(num_gradients=local.num_gradients)


def _with_mass(left, rows):
  """The places of those left that may hold as much as where chains are now."""
  if not left:
    return None
  places, *seen = map(np.stack, zip(*left))
  is_heavy = have_mass_after_all(Places(*seen), rows.log_prob, rows.gradients)
  return places[is_heavy] if is_heavy.any() else None


def _told_apart(target_log_prob_fn, state, newton, rng):
  """The state, spread by the local curvature where all chains are the same.

  At zero for all effects of a group, the density of their scale rises towards
  zero without bound, and Newton's steps would follow it; no draw is there.

  Also at how many points the curvature was computed.
  """
  spread = np.std(state, axis=0)
  if np.all(spread >= _ALIKE * _LARGEST_SPREAD):
    return state, 0
  curvature = newton(state, 1).curvature.numpy()
  deviations = np.minimum(curvature**-0.5, _LARGEST_SPREAD)
  alike = spread < _ALIKE * np.median(deviations, axis=0)
  if not alike.any():
    return state, 1
  noise = rng.standard_normal(state.shape).astype(deviations.dtype)
  moved = state + alike * deviations * noise
  usable = np.isfinite(target_log_prob_fn(moved))
  return tf.where(usable[:, np.newaxis], moved, state), 1


def _brought_back(target_log_prob_fn, before, state, rng):
  """The state, with chains that cannot go on where random other ones are.

  XLA, which compiles the starts and the steps, rounds in another way: near the
  end of a support it may find a density finite where it is not. Where no chain
  can go on none has moved.
  """
  log_prob, gradient = tfp.math.value_and_gradient(target_log_prob_fn, state)
  if gradient is None:
    return state  # The kernel says that.
  usable = np.isfinite(log_prob) & np.all(np.isfinite(gradient), axis=-1)
  if usable.all():
    return state
  if not usable.any() or not np.all(np.isfinite(target_log_prob_fn(before))):
    return before  # If that is wrong, too, the kernel says so.
  return tf.gather(state, _sources(~usable, rng))


def _sources(lost, rng):
  """Of each chain its number, or of one that is lost that of a random other."""
  source = np.arange(lost.size)
  source[lost] = rng.choice(np.flatnonzero(~lost), lost.sum())
  return source


def _newton(
  target_log_prob_fn, state, jit_compile, log_prob_graph, is_needed, say=warn
):
  """`newton_starts`, compiled: a callable of a state and the most steps.

  Without second derivatives None, and `say` is told why; where they are needed,
  that is raised.
  """
  specs = [tf.TensorSpec(state.shape, state.dtype), tf.TensorSpec([], tf.int32)]

  def steps(state, max_num_steps):
    return newton_starts(target_log_prob_fn, state, max_num_steps)

  def newton(state, max_num_steps=_MOST_NEWTON_STEPS):
    with explaining_xla(jit_compile, 'second derivatives of the log density'):
      return run([state, tf.constant(max_num_steps)])

  with _if_possible(
    'The warm-up takes longer: the chains start without the diagonal of the '
    'Hessian',
    is_needed,
    say,
  ):
    try:
      # XLA takes seconds, once for equal calls.
      run = graphs.compiled(
        (), 'mcmc_starts', steps, specs, jit_compile, log_prob_graph
      )
      newton(state, 0)
      return newton
    except SampleMixingError:
      # The kernel refuses such a density, in words of chains.
      return None
  return None


@contextlib.contextmanager
def _if_possible(what, is_needed, say=warn):
  """Goes on with a warning where what is inside cannot be computed.

  Any error counts: what is wrong with the log density or its gradient is raised
  again by the kernel.

  Args:
    what: Python `str`, what comes before ', which cannot be computed', or
      before what XLA cannot compile.
    is_needed: Python `bool`, whether to raise what says why.
    say: Callable of the warning.

  Yields:
    None.
  """
  try:
    with in_words_of_a_target():
      yield
  except Exception as e:
    if is_needed and isinstance(e, MissingGradientError):
      raise ValueError(
        "`preconditioner` is 'local', which needs second and third derivatives "
        f"of the log density. {e} Or use another, such as 'diagonal'."
      ) from e
    if is_needed:
      raise
    # Sentences of this package are not cut.
    is_sentence = isinstance(e, (NotCompiledError, MissingGradientError))
    why = f', which cannot be computed ({arguments.reason(e)}).'
    say(what + (f'. {e}' if is_sentence else why))


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
    scale: `Scale`, for the next window.
    times: `Times`, for the next window.
  """

  def __init__(
    self,
    target_log_prob_fn,
    state,
    scale,
    seed,
    jit_compile,
    max_num_steps,
    log_prob_graph,
  ):
    self.state = state
    self.scale = scale
    self.times = _FIRST_TIMES
    self._dtype = dtype = state.dtype
    # In the place of settings, which are in the results of each block.
    one = tf.constant(1.0, dtype)
    kernel = CarriesScale(
      target_log_prob_fn,
      step_size=one,
      integration_time=one,
      damping=one,
      preconditioner=scale.operator(dtype),
      max_num_steps=max_num_steps,
    )
    self._seed = seed
    self._step = 0
    self._results = as_tensors(kernel.bootstrap_results(state))
    self._block = TrajectoryBlock(
      log_prob_graph,
      kernel,
      lambda _, results: default_trace(kernel, results),
      Schedule(2**30, 0, 0, num_steps_of_blocks(state)),
      state,
      self._results,
      jit_compile,
      'mcmc_trajectories',
    )

  def time(self, step_size, max_num_steps):
    """T, no longer than so many steps: of MALA, one step."""
    return float(
      np.clip(self.times.integration_time, step_size, max_num_steps * step_size)
    )

  def make(self, num_steps, tuner, max_num_steps):
    """Makes the steps of a window; `_Rows`."""
    scale = self.scale.operator(self._dtype)
    self._results = as_tensors(with_scale(self._results, scale))
    every = -(-2 * num_steps * self.state.shape.num_elements() // _MOST_NUMBERS)
    end, found = self._step + num_steps, []
    while self._step < end:
      length = min(self._next_length(), end - self._step)
      rows = self._make_block(
        length, tuner.step_size, self.time(tuner.step_size, max_num_steps)
      )
      kept = slice(-self._step % every, None, every)
      self._step += length
      tuner.see(rows.log_accept_ratio, length / _BLOCK)
      found.append(
        rows._replace(draws=rows.draws[kept], gradients=rows.gradients[kept])
      )
    *arrays, counts, _ = zip(*found)
    return _Rows(
      *map(np.concatenate, arrays), num_gradients=sum(counts), every=every
    )

  def move(self, stuck, rng):
    """Puts chains that are stuck where random other ones are."""
    if not stuck.any():
      return
    source = _sources(stuck, rng)
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

  def _make_block(self, length, step_size, integration_time):
    step_size, integration_time, damping = (
      tf.constant(x, self._dtype)
      for x in (step_size, integration_time, self.times.damping)
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
    self._results = packed(self._results, results)
    draws, *traced = (x[:length].numpy() for x in rows)
    traced = tf.nest.pack_sequence_as(self._block.trace_structure, traced)
    return _Rows(
      draws,
      traced['gradients'],
      traced['target_log_prob'],
      traced['is_accepted'],
      traced['log_accept_ratio'],
      num_gradients=int(traced['n_steps'].sum()),
      every=1,
    )
