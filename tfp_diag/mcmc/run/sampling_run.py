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
"""A run between two blocks: where it stands, and what it has kept."""

import contextlib
import dataclasses
import functools
import hashlib
import numbers
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.internal import arguments
from tfp_diag.mcmc.run.block import (
  SamplingBlock,
  as_tensors,
  packed,
  to_tensors,
)
from tfp_diag.mcmc.run.checkpoint import (
  CheckpointDirectory,
  Progress,
  another_run,
  check_dtypes,
  check_may_resume,
  check_target,
  is_begun,
  locked_directory,
  refusal,
)
from tfp_diag.mcmc.run.probe import (
  check_previous_results,
  first_difference,
  kept_values,
)
from tfp_diag.mcmc.run.replicas import ReplicatedBlock
from tfp_diag.mcmc.run.rows import MemoryRows
from tfp_diag.mcmc.run.trace import (
  as_trace,
  default_trace,
  innermost,
  part_names,
)


class SamplingRun:
  """The host's side of `sample`.

  Its progress is replaced as a whole, after all that a block made is kept: who
  interrupts it finds the end of the last block.

  Attributes:
    schedule: Its `Schedule`.
    checkpoint: Path, or None.
    num_traces: How often the block was traced.
  """

  def __init__(
    self,
    kernel,
    state,
    schedule,
    *,
    previous_kernel_results,
    trace_fn,
    seed,
    checkpoint,
    resume,
    jit_compile,
    strategy,
    name,
    unconstrained=None,
    given=None,
    make_block: Callable = SamplingBlock,
  ):
    """Begins a run, or takes it up where its checkpoint is, which it locks.

    Args:
      kernel: A `tfp.mcmc.TransitionKernel`.
      state: Structure of Tensors.
      schedule: A `Schedule`.
      previous_kernel_results: Kernel results, or None.
      trace_fn: As `sample` takes it.
      seed: int32 Tensor of shape [2], or None.
      checkpoint: Path, or None.
      resume: Python `bool`.
      jit_compile: Python `bool`.
      strategy: A `tf.distribute.Strategy`, or None.
      name: Python `str`.
      unconstrained: As `CheckpointDirectory` takes it.
      given: Dict from the arguments of a driver, which a checkpoint may not
        differ in, to what they are: numbers, texts or lists. They are compared
        before what was made of them.
      make_block: What makes the block if there is no `strategy`, a callable of
        what `SamplingBlock` takes.
    """
    # In eager mode, where a kernel sees values and can say what is wrong.
    bootstrapped = kernel.bootstrap_results(state)
    results = first_results(bootstrapped, previous_kernel_results)
    self._kernel = kernel
    self._trace_fn = what_records(kernel, trace_fn)
    self._structures = state, results
    self.schedule = schedule
    self.checkpoint = checkpoint
    self._given = given or {}
    if strategy is not None:
      make_block = functools.partial(ReplicatedBlock, strategy)
    self._block = make_block(
      kernel,
      self._trace_fn,
      schedule,
      state,
      results,
      jit_compile,
      name,
    )
    self._progress = Progress(
      step=0,
      state=to_tensors(state),
      results=to_tensors(results),
      probe_state=to_tensors(state),
      probe_log_prob=innermost(bootstrapped, 'target_log_prob'),
      probe_results=[],
      probe_trace=[],
    )
    seed = None if seed is None else seed.numpy()
    self._directory: CheckpointDirectory | None = None
    if checkpoint is None:
      self._kept = MemoryRows(self._block.row_specs, schedule.num_results)
    else:
      traced = self._block.row_specs[len(self._progress.state) :]
      check_dtypes('`trace_fn` returned', traced)
      check_dtypes('The kernel results have', self._progress.results)
      self._directory = self._kept = CheckpointDirectory(
        checkpoint,
        self._settings(),
        seed,
        self._block.row_specs,
        part_names(state),
        part_names(self._block.trace_structure),
        unconstrained,
      )
    has_begun = False
    with contextlib.ExitStack() as held:
      if self._directory is not None:
        held.enter_context(locked_directory(checkpoint))
        check_may_resume(checkpoint, resume)
        has_begun = is_begun(checkpoint)
        if has_begun:
          self._resume(self._directory)
          seed = self._directory.seed
      if previous_kernel_results is not None and not has_begun:
        check_previous_results(kernel, state, bootstrapped, results)
      if seed is None:
        seed = tfp.random.sanitize_seed(None).numpy()
      if self._directory is not None and not has_begun:
        self._directory.seed = seed
        self._progress = self._probed(self._progress, self._progress.state)
        self._directory.create(self._progress)
      # Until `close`, from here on.
      self._held = held.pop_all()
    self._seed = tf.constant(seed, tf.int32)

  def close(self):
    """Lets other runs have the checkpoint; what was drawn can still be read."""
    self._held.close()

  @property
  def num_traces(self):
    """How often the block was traced."""
    return self._block.num_traces

  @property
  def num_steps_made(self):
    """How many steps were made, by earlier processes as well."""
    return self._progress.step

  @property
  def is_finished(self):
    """Whether all steps were made."""
    return self._progress.step == self.schedule.num_steps

  @property
  def chain_ndims(self):
    """How many leading axes of the state are chains; None if not known."""
    log_prob = innermost(self._structures[1], 'target_log_prob')
    return None if log_prob is None else log_prob.shape.rank

  def make_block(self):
    """Makes steps to the end of the block, and keeps what they made.

    Returns:
      Python `float`, the mean acceptance.
    """
    step = self._progress.step
    end = self.schedule.block_end(step)
    state, results, acceptance, rows = self._block(
      self._progress.state, self._progress.results, self._seed, step, end - step
    )
    num_rows = self.schedule.num_rows(end)
    num_new = num_rows - self.schedule.num_rows(step)
    progress = self._progress._replace(step=end, state=state, results=results)
    if step == 0 and self._directory is not None:
      # The start may be a point at which all targets agree, such as zero.
      # Where a chain has left the finite numbers that start remains.
      with contextlib.suppress(ValueError):
        progress = self._probed(progress, state)
    # In what follows are steps on the way to the next result.
    rows = [row.numpy()[:num_new] for row in rows] if num_new else []
    self._kept.append(rows, num_rows, progress)
    self._progress = progress
    return float(acceptance)

  def is_enough(self, stop_when):
    """Asks `stop_when`, when it is time to."""
    if not self.schedule.is_time_to_judge(self._progress.step):
      return False
    return self.ask(stop_when)

  def ask(self, stop_when):
    """Asks `stop_when` whether the draws so far are enough."""
    # What it does to them must not be done to the draws.
    return bool(
      stop_when(
        *tf.nest.map_structure(_read_only, self.read_rows(in_memory=False))
      )
    )

  def read_draws(self):
    """The draws so far, in the structure of the state."""
    return self.read_rows(in_memory=False)[0]

  def read_rows(self, in_memory):
    """The draws and the trace so far, each in its structure."""
    columns = self._kept.read(self.schedule.num_rows(self._progress.step))
    if in_memory and self._directory is not None:
      columns = [np.array(column) for column in columns]
    num_parts = len(self._progress.state)
    return (
      tf.nest.pack_sequence_as(self._structures[0], columns[:num_parts]),
      tf.nest.pack_sequence_as(
        self._block.trace_structure, columns[num_parts:]
      ),
    )

  def state_and_results(self):
    """The state and the kernel results, each in its structure."""
    state, results = self._structures
    return (
      tf.nest.pack_sequence_as(state, self._progress.state),
      packed(results, self._progress.results),
    )

  def _settings(self):
    """What a checkpoint may not differ in."""
    state, results = self._structures
    return {
      **self._given,
      '`num_burnin_steps`': self.schedule.num_burnin_steps,
      '`num_steps_between_results`': self.schedule.num_steps_between_results,
      '`current_state`': _describe(state),
      'kernel': _describe(results),
      'settings of the kernel': _parameters(self._kernel),
      '`trace_fn`': [
        f'{spec.dtype.name}{spec.shape}'
        for spec in self._block.row_specs[len(self._progress.state) :]
      ]
      + [repr(self._block.trace_structure)],
    }

  def _resume(self, directory):
    progress = directory.load()
    if progress.step > self.schedule.num_steps:
      raise refusal(
        directory.path,
        f'has made {progress.step:,} steps, but this call asks for '
        f'{self.schedule.num_steps:,}. Ask for as many draws or more, or read '
        f'what is there by `tfp_diag.mcmc.load_draws({str(directory.path)!r})`',
      )
    self._progress = progress._replace(
      state=[tf.constant(x) for x in progress.state],
      results=[tf.constant(x) for x in progress.results],
    )
    self._check_target(directory)
    self._check_functions(directory)

  def _check_target(self, directory):
    """Refuses to go on with another target."""
    before = self._progress.probe_log_prob
    if before is None:
      return
    _, results = self._bootstrapped(self._progress.probe_state)
    now = np.asarray(innermost(results, 'target_log_prob'))
    check_target(directory.path, now, before)

  def _check_functions(self, directory):
    """Refuses to go on with a kernel or a trace that gives something else."""
    progress = self._progress
    for name, compute, structure, before in (
      ('kernel', self._results_at, self._structures[1], progress.probe_results),
      (
        '`trace_fn`',
        self._trace_at,
        self._block.trace_structure,
        progress.probe_trace,
      ),
    ):
      difference = first_difference(
        functools.partial(compute, progress.probe_state), before
      )
      if difference is not None:
        i, found, given = difference
        names = part_names(structure)
        # A composite Tensor has several entries, but one name.
        entry = names[i] if len(names) == len(before) else i
        entry = f'as {entry!r} at one state'
        raise another_run(directory.path, name, f'{found} {entry}', given)

  def _probed(self, progress, parts):
    """The progress with what is found at a state, to be known again."""
    _, results = self._bootstrapped(parts)
    return progress._replace(
      probe_state=parts,
      probe_log_prob=innermost(results, 'target_log_prob'),
      probe_results=kept_values(to_tensors(results)),
      probe_trace=kept_values(self._trace_at(parts)),
    )

  def _results_at(self, parts):
    return to_tensors(self._bootstrapped(parts)[1])

  def _trace_at(self, parts):
    return tf.nest.flatten(self._trace_fn(*self._bootstrapped(parts)))

  def _bootstrapped(self, parts):
    """A state, and the kernel results that the kernel begins with there."""
    parts = [tf.constant(x) for x in parts]
    state = tf.nest.pack_sequence_as(self._structures[0], parts)
    return state, as_tensors(self._kernel.bootstrap_results(state))


def first_results(bootstrapped, previous_kernel_results):
  """The kernel results that a run starts with.

  Args:
    bootstrapped: What the kernel's `bootstrap_results` has returned.
    previous_kernel_results: What was given in its place, or None.

  Returns:
    Kernel results of Tensors.

  Raises:
    TypeError: if what was given has another structure.
  """
  results = bootstrapped
  if previous_kernel_results is not None:
    results = previous_kernel_results
    try:
      tf.nest.assert_same_structure(
        bootstrapped, results, expand_composites=True
      )
    except (TypeError, ValueError) as e:
      raise TypeError(
        f'`previous_kernel_results` is {arguments.shown(results)}, but must '
        'have the structure of what this kernel returns, a '
        f'{type(bootstrapped).__name__}: the `final_kernel_results` of a call '
        'before.'
      ) from e
  return as_tensors(results)


def what_records(kernel, trace_fn):
  """What records a step, from what a user passes for it.

  Args:
    kernel: A `tfp.mcmc.TransitionKernel`.
    trace_fn: Callable of the state and the kernel results, or None.

  Returns:
    Callable of the state and the kernel results to a structure of Tensors.
  """

  def trace(state, results):
    if trace_fn is None:
      return default_trace(kernel, results)
    return as_trace(trace_fn(state, results))

  return trace


def _parameters(kernel):
  """The classes of a kernel and its inner ones, and their plain parameters.

  A function cannot be compared from process to process; what it gives at one
  state is, by `_check_functions`.
  """

  def describe_parts(kind, whole, parts):
    found = {name: describe(part) for name, part in parts}
    found = {name: text for name, text in found.items() if text is not None}
    return {kind: type(whole).__name__, **found}

  def describe(value):
    if isinstance(value, tfp.mcmc.TransitionKernel):
      # Kernels of users may have none.
      given = getattr(value, 'parameters', None) or {}
      return describe_parts('kernel', value, sorted(given.items()))
    if isinstance(value, tf.linalg.LinearOperator):
      given = {k: v for k, v in value.parameters.items() if k != 'name'}
      return describe_parts('operator', value, sorted(given.items()))
    # One that is called is a function.
    if dataclasses.is_dataclass(value) and not callable(value):
      fields = [
        (f.name, getattr(value, f.name)) for f in dataclasses.fields(value)
      ]
      return describe_parts('dataclass', value, fields)
    if isinstance(value, (list, tuple)):
      return [describe(v) for v in value]
    if isinstance(value, (bool, numbers.Number, str)):
      return repr(value)
    if isinstance(value, np.ndarray) or isinstance(value, tf.Tensor):
      array = np.asarray(value)
      content = hashlib.sha256(array.tobytes()).hexdigest()
      return f'{array.dtype.name}{list(array.shape)} {content[:16]}'
    return None

  return describe(kernel)


def _describe(structure):
  """Shapes and dtypes of a structure, with its names, as a text."""

  def describe(x):
    if not isinstance(x, tf.Tensor):  # A composite one.
      return [type(x).__name__, *map(describe, to_tensors(x))]
    return f'{x.dtype.name}{x.shape}'

  return repr(tf.nest.map_structure(describe, structure))


def _read_only(array):
  view = array.view()
  view.flags.writeable = False
  return view
