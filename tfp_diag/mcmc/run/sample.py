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
"""Runs any transition kernel, and loses nothing."""

import contextlib
import functools
import os
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.internal.seeds import as_seed
from tfp_diag.internal.warn import warn
from tfp_diag.mcmc.kernels.parameterized_kernel import check_kernel
from tfp_diag.mcmc.run.progress import show_progress
from tfp_diag.mcmc.run.sampling_run import SamplingRun
from tfp_diag.mcmc.run.schedule import Schedule
from tfp_diag.mcmc.run.stop_when import StopWhen
from tfp_diag.mcmc.run.trace import shown_run

StoppedBy = Literal['finished', 'stop_when', 'interrupted', 'error']


class SampleResults(typing.NamedTuple):
  """What `sample` returns.

  Attributes:
    draws: In the structure of the state: NumPy arrays of shape [number of
      results, shape of the part...], read-only `np.memmap`s with
      `draws_on_disk`.
    trace: What `trace_fn` returned, as NumPy arrays with a leading axis for the
      draws.
    final_state: The state after the last step, in the structure of the state.
    final_kernel_results: The kernel results after the last step.
    num_results: Python `int`, the number of draws there are.
    stopped_by: Python `str`: 'finished', 'stop_when', 'interrupted' or 'error'.

  #### Examples

  ```python
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1), step_size=0.5
  )
  found = tfp_diag.mcmc.sample(
    kernel, tf.zeros([8, 3]), 20, jit_compile=False, seed=1
  )
  found.draws.shape, found.num_results  # ==> ((20, 8, 3), 20)
  np.array_equal(found.final_state, found.draws[-1])  # ==> True
  ```
  """

  draws: typing.Any
  trace: typing.Any
  final_state: typing.Any
  final_kernel_results: typing.Any
  num_results: int
  stopped_by: StoppedBy

  def __repr__(self):
    """One line: how the run ended, and what there is."""
    return shown_run(self)


def sample(
  kernel: Any,
  current_state: Any,
  num_results: int,
  *,
  num_burnin_steps: int = 0,
  num_steps_between_results: int = 0,
  block_size: int = 100,
  previous_kernel_results: Any = None,
  trace_fn: Callable | None = None,
  seed: Any = None,
  progress_bar: bool | None = None,
  checkpoint: str | os.PathLike | None = None,
  resume: bool = False,
  draws_on_disk: bool = False,
  stop_when: StopWhen | Callable | None = None,
  jit_compile: bool = True,
  strategy: tf.distribute.Strategy | None = None,
  name: str | None = None,
) -> SampleResults:
  """Runs a Markov chain in blocks, with a progress bar and checkpoints.

  Works like `tfp.mcmc.sample_chain`, and has the same first arguments; takes
  any TFP transition kernel. One compiled graph makes a block of steps. After
  each block the draws are moved to memory or to disk, and what was drawn so far
  is shown, saved and judged. Use it for runs that take more than a few seconds.
  Inside a `tf.function` use `sample_chain`.

  The draws depend on `seed` and the number of the step alone: block size, the
  split into burn-in and results, interruptions and resumed runs change no bit.
  XLA may round differently. Under XLA, TFP's own kernels draw other random
  numbers; the kernels of this package draw the same ones.

  A call traces the kernel once. It is compiled once for all calls that make the
  same graph, until `tfp_diag.clear_cache()`. The starting points may differ,
  and so may data that the target closes over as Tensors.

  Args:
    kernel: A `tfp.mcmc.TransitionKernel`.
    current_state: Tensor or structure of Tensors, the parts of the state, in
      float32, float64 or any integer type.
    num_results: Python `int`, how many states to keep. With 0 the run is the
      burn-in alone.
    num_burnin_steps: Python `int`, how many steps to make before the first
      draw.
    num_steps_between_results: Python `int`, how many states to leave out
      between two that are kept.
    block_size: Python `int`, the number of steps in a block: how often the
      progress is shown, `stop_when` asked and the checkpoint written, and how
      much an interruption loses. A block should take a tenth of a second or
      more.
    previous_kernel_results: Kernel results to start with, such as the
      `final_kernel_results` of a call before. Default: what
      `kernel.bootstrap_results(current_state)` returns.
    trace_fn: Python callable `(state, kernel_results)` that returns a structure
      of Tensors to record. Called after every step, also those whose state is
      not kept. Default: a dict with those of these entries that the kernel's
      results have: 'step_size', 'target_log_prob', 'log_accept_ratio',
      'accept_ratio', 'is_accepted', 'diverging' and 'tune' (the step adapted
      something), the names of TFP's windowed samplers; of trajectories and NUTS
      also 'n_steps'; of a NUTS 'reached_max_treedepth' and 'energy'. Several
      step sizes are called 'step_size_0', 'step_size_1', ...
    seed: Python `int`, or int32 Tensor of shape [2]: equal seeds give equal
      draws. Default: a new seed in each call, or that of the checkpoint.
    progress_bar: Python `bool`, whether to show a bar with the time left,
      acceptance and R-hat (of some draws and coordinates) on a terminal or in a
      notebook, and as plain lines if stderr is neither. Default: on a terminal
      only.
    checkpoint: Path of a directory in which the run is saved after each block:
      `checkpoint.npz`, and a `.npy` file for each part of the draws and the
      trace. No other run can use the directory meanwhile; `load_draws` can read
      it. Default: the run is not saved.
    resume: Python `bool`, whether to continue a run that is in `checkpoint`.
      What was drawn is not drawn again. `current_state` and
      `previous_kernel_results` then only say which structures the state and the
      kernel results have; their values are not used. If the directory has no
      checkpoint, a new run begins.
    draws_on_disk: Python `bool`: whether the draws and the trace stay in the
      files of `checkpoint`, for runs beyond the memory. They are
      returned as read-only `np.memmap`s.
    stop_when: Python callable `(draws, trace)` of NumPy arrays that returns
      whether the run can end; None, of a function that only looks on, counts
      as False; see `StopWhen`. Asked at multiples of `block_size`, whenever the
      number of draws has grown by about a twentieth, and once at the end of a
      run of one block. Default: `num_results` are drawn.
    jit_compile: Python `bool`, whether XLA compiles the block.
    strategy: A `tf.distribute.MirroredStrategy`, over whose devices the chains,
      the first axis of each part, are spread in equal shares; the draws are
      those of one device, up to rounding. For kernels of this package made with
      `experimental_chain_axis_names='chains'`, also inside of a
      `tfp.mcmc.TransformedTransitionKernel`, or of an adapter made with
      `experimental_reduce_chain_axis_names='chains'`. Devices that learn
      together wait for each other in each step, without XLA; without adapters,
      only at the end of a block. `trace_fn` sees the chains of one device. What
      it returns must have the chains of the first axis of the state as its
      first axis, or have no chain axis; of what has none, that of the first
      device is recorded. Default: one device.
    name: Python `str`, the name of the graph. Default: 'mcmc_sample'.

  Returns:
    A `SampleResults`. After Ctrl-C, what was drawn until the last block, with a
    warning.

  Raises:
    KeyboardInterrupt: after Ctrl-C before the first draw. What there is of the
      burn-in is kept as for other errors. With `num_results=0` the state until
      the last block is returned, with a warning.
    Exception: what the target, `trace_fn` or `stop_when` raise. What was drawn
      until the last block is in the checkpoint, and a `SampleResults` the
      attribute `sample_results` of the error: its draws are read-only
      `np.memmap`s if there is a checkpoint. A note of the error says how many
      there are, and how the run goes on.
    ValueError: if an argument does not fit, if XLA cannot compile the kernel,
      if there is a checkpoint but `resume` is false, or if it is damaged or of
      another run, target, kernel, seed or version.
    RuntimeError: if called inside a `tf.function`.

  #### Examples

  ```python
  import tensorflow as tf
  import tensorflow_probability as tfp
  import tfp_diag

  scales = tf.constant([0.1, 1.0, 10.0])
  target = tfp.distributions.MultivariateNormalDiag(scale_diag=scales)
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    target.log_prob, step_size=0.9, preconditioner=scales
  )
  start = tf.zeros([8, 3])
  draws, trace, *_ = tfp_diag.mcmc.sample(
    kernel, start, 200, num_burnin_steps=50, seed=1
  )
  draws.shape  # ==> (200, 8, 3)
  trace['is_accepted'].shape  # ==> (200, 8)
  ```

  A run that can be killed at any time, and ends by itself:

  ```python
  def run(num_results):
    return tfp_diag.mcmc.sample(
      kernel,
      start,
      num_results,
      seed=1,
      block_size=50,
      checkpoint='gaussian_run',
      resume=True,
      stop_when=tfp_diag.mcmc.StopWhen(max_rhat=1.05),
    )


  first = run(50)
  first.stopped_by  # ==> 'finished'
  second = run(100_000)
  second.stopped_by  # ==> 'stop_when'
  np.array_equal(second.draws[:50], first.draws)  # ==> True
  ```
  """
  if not tf.executing_eagerly():
    raise RuntimeError(
      '`sample` runs in Python, block by block, and cannot be part of a '
      '`tf.function`; use `tfp.mcmc.sample_chain` there.'
    )
  schedule = Schedule(
    num_results, num_burnin_steps, num_steps_between_results, block_size
  )
  check_kernel('kernel', kernel)
  check_run_options(
    checkpoint, resume, draws_on_disk, stop_when, jit_compile, progress_bar
  )
  arguments.check_name(name)
  if trace_fn is not None:
    arguments.check_callable('trace_fn', trace_fn, _TRACE)
    arguments.check_takes('trace_fn', trace_fn, [None] * 2, None, _TRACE)
  if not kernel.is_calibrated:
    warn(
      f'The kernel {type(kernel).__name__} is not calibrated: what it samples '
      'depends on its step size.'
    )
  return sample_scheduled(
    kernel,
    _as_state(current_state),
    schedule,
    previous_kernel_results=previous_kernel_results,
    trace_fn=trace_fn,
    seed=as_seed(seed),
    progress_bar=progress_bar,
    checkpoint=checkpoint,
    resume=resume,
    draws_on_disk=draws_on_disk,
    stop_when=stop_when,
    jit_compile=jit_compile,
    strategy=strategy,
    name=name or 'mcmc_sample',
  )


def sample_scheduled(
  kernel,
  state,
  schedule,
  *,
  stop_when,
  progress_bar,
  strategy=None,
  draws_on_disk=False,
  **options,
):
  """What `sample` does with arguments that were checked.

  Args:
    kernel: As for `sample`.
    state: As for `sample`, of Tensors.
    schedule: A `Schedule`.
    stop_when: As for `sample`.
    progress_bar: As for `sample`.
    strategy: As for `sample`; it is checked.
    draws_on_disk: As for `sample`.
    **options: As for `SamplingRun`.

  Returns:
    A `SampleResults`.

  Raises:
    TypeError: if `strategy` is none.
  """
  if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
    raise TypeError(
      f'`strategy` is {arguments.shown(strategy)}, but must be a '
      '`tf.distribute.MirroredStrategy`, or None for one device.'
    )
  run = SamplingRun(kernel, state, schedule, strategy=strategy, **options)
  if isinstance(stop_when, StopWhen) and stop_when.chain_ndims is None:
    stop_when = stop_when._replace(chain_ndims=run.chain_ndims)
  with contextlib.closing(run):
    try:
      judge = stop_when and functools.partial(_says_enough, stop_when)
      stopped_by = _make_blocks(run, judge, progress_bar)
      return _results(run, stopped_by, in_memory=not draws_on_disk)
    except (Exception, KeyboardInterrupt) as error:
      _hand_over(error, run)
      raise


_TRACE = 'a function of the state and the kernel results'


def check_run_options(
  checkpoint, resume, draws_on_disk, stop_when, jit_compile, progress_bar
):
  """Refuses what a run cannot be made with; see `sample`.

  Args:
    checkpoint: As for `sample`.
    resume: As for `sample`.
    draws_on_disk: As for `sample`.
    stop_when: As for `sample`.
    jit_compile: As for `sample`.
    progress_bar: As for `sample`.

  Raises:
    TypeError: if one is not what it must be.
    ValueError: if there is no checkpoint, but one is needed.
  """
  arguments.check_flag('resume', resume)
  arguments.check_flag('draws_on_disk', draws_on_disk)
  arguments.check_flag('jit_compile', jit_compile)
  arguments.check_flag(
    'progress_bar', progress_bar, 'to show it on a terminal only'
  )
  if checkpoint is not None:
    arguments.check_path('checkpoint', checkpoint)
    if '://' in os.fspath(checkpoint):
      raise ValueError(
        f'`checkpoint` is {checkpoint!r}, but must be the path of a directory '
        'on this machine; copy it from there.'
      )
  if checkpoint is None and (resume or draws_on_disk):
    name = 'resume' if resume else 'draws_on_disk'
    raise ValueError(
      f'`{name}` is true, but there is no `checkpoint`; pass the path of the '
      'directory in which the run is kept.'
    )
  if stop_when is not None and (
    not callable(stop_when) or isinstance(stop_when, type)
  ):
    raise ValueError(
      f'`stop_when` is {arguments.shown(stop_when)}, but must be a callable '
      '`(draws, trace)`, such as `tfp_diag.mcmc.StopWhen(max_rhat=1.01)`.'
    )
  if isinstance(stop_when, StopWhen):
    stop_when.check()
  elif stop_when is not None:
    arguments.check_takes(
      'stop_when', stop_when, (None, None), {}, 'the draws and the trace'
    )


def _as_state(current_state):
  """The state as Tensors; refuses what a chain cannot be made of."""
  state = tf.nest.map_structure(
    lambda x: arguments.as_tensor('A part of `current_state`', x), current_state
  )
  if not tf.nest.flatten(state):
    raise ValueError(
      '`current_state` has no parts; pass a Tensor, or a structure of them.'
    )
  for i, part in enumerate(tf.nest.flatten(state)):
    if part.dtype == tf.string:
      raise TypeError(
        f'Part {i} of `current_state` has dtype {part.dtype.name}, but a chain '
        'moves numbers; pass a Tensor of numbers.'
      )
    if part.dtype in (tf.float16, tf.bfloat16):
      raise ValueError(
        f'Part {i} of `current_state` is {part.dtype.name}, in which a log '
        'density is off by more than what decides about acceptance. '
        'Pass `tf.cast(part, tf.float32)`; the target may still compute in '
        'half precision inside.'
      )
  return state


def _says_enough(stop_when, draws, trace):
  """What `stop_when` says, which is one truth value or refused."""
  # What a `trace_fn` records need not have names, but `StopWhen` asks for them.
  has_names = isinstance(trace, Mapping) or hasattr(trace, '_fields')
  if isinstance(stop_when, StopWhen) and not has_names:
    trace = None
  said = stop_when(draws, trace)
  if said is None:
    # Of a function that only looks on.
    return False
  found = arguments.static_value(said)
  if isinstance(found, np.ndarray) and found.size == 1:
    found = found.reshape(())[()]
  if not isinstance(found, (bool, np.bool_)):
    raise ValueError(
      f'`stop_when` returned {arguments.shown(said)}, but must return True or '
      'False, whether the run can end; check its `return`, and reduce several '
      'values, as by `bool(np.all(...))`.'
    )
  return bool(found)


def _make_blocks(run, stop_when, progress_bar):
  """Makes the run; returns why it stopped."""
  schedule, is_enough = run.schedule, False
  try:
    with show_progress(
      progress_bar, schedule, run.num_steps_made, run.chain_ndims or 0
    ) as display:
      while not run.is_finished and not is_enough:
        is_enough = stop_when is not None and run.is_enough(stop_when)
        if not is_enough:
          acceptance = run.make_block()
          display.update(run.num_steps_made, acceptance, run.read_draws)
      if stop_when is not None and schedule.is_one_block and run.is_finished:
        # It was not asked: what is wrong with it would show in longer runs.
        run.ask(stop_when)
  except KeyboardInterrupt:
    is_enough = False
    made = run.num_steps_made
    # Without results to make, the burn-in is what was asked for.
    kept = schedule.num_rows(made) if schedule.num_results else made
    if not (kept or run.is_finished):
      raise
    _say_what_is_left(run)
  if run.is_finished:
    return 'finished'
  return 'stop_when' if is_enough else 'interrupted'


def _results(run, stopped_by, in_memory):
  """The `SampleResults` at the end of the last block."""
  draws, trace = run.read_rows(in_memory)
  state, results = run.state_and_results()
  return SampleResults(
    draws,
    trace,
    state,
    results,
    run.schedule.num_rows(run.num_steps_made),
    stopped_by,
  )


def _say_what_is_left(run):
  """Warns who interrupted a run."""
  if run.is_finished:
    return
  schedule, made = run.schedule, run.num_steps_made
  warn(
    f'The run was interrupted after {made:,} of {schedule.num_steps:,} steps '
    f'and returns the {schedule.num_rows(made):,} of '
    f'{schedule.num_results:,} draws made until then. '
    f'{_how_to_resume(run.checkpoint)}'
  )


def _hand_over(error, run):
  """Hands what was drawn to who catches an error, and says so in a note."""
  stopped_by = 'error' if isinstance(error, Exception) else 'interrupted'
  try:
    error.sample_results = _results(run, stopped_by, in_memory=False)
    if run.num_steps_made or run.checkpoint is not None:
      _add_note(
        error,
        f'The {error.sample_results.num_results:,} of '
        f'{run.schedule.num_results:,} draws made until then are kept, as '
        f'`sample_results` of this error. {_how_to_resume(run.checkpoint)}',
      )
  except Exception:
    # Files that are gone, or an error that takes no attributes: what is raised
    # is why the run ended.
    return


def _add_note(error, note):
  """Adds a note that is printed with the error, of whatever type it is."""
  if hasattr(error, 'add_note'):
    error.add_note(note)
    return
  # Python 3.10 has no notes, but prints causes.
  before = RuntimeError(note)
  hidden = None if error.__suppress_context__ else error.__context__
  before.__cause__ = error.__cause__ or hidden
  error.__cause__ = before


def _how_to_resume(checkpoint):
  if checkpoint is None:
    return 'Pass `checkpoint` to be able to resume such a run.'
  return f'It goes on with `checkpoint={str(checkpoint)!r}, resume=True`.'
