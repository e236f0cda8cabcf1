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
"""The compiled part of a run: some steps, and the rows that they write."""

import contextlib
import functools

import tensorflow as tf

from tfp_diag.diagonal import graphs
from tfp_diag.diagonal.linear_map import may_be_recorded
from tfp_diag.internal import arguments
from tfp_diag.mcmc.kernels.noise import step_seed
from tfp_diag.mcmc.run.trace import acceptance, part_names


class NotCompiledError(ValueError):
  """What XLA cannot compile, and what to do."""


@contextlib.contextmanager
def explaining_xla(jit_compile, what='a step of the kernel'):
  """Says what to do when XLA cannot compile what is called inside.

  Args:
    jit_compile: Python `bool`, whether XLA is used at all.
    what: Python `str`, what that is.

  Yields:
    None.

  Raises:
    NotCompiledError: with the way out.
    ValueError: if a step records another shape than those before.
  """
  try:
    yield
  except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as e:
    if _COMPARED in str(e):
      raise ValueError(_OTHER_SHAPE) from e
    if not jit_compile or 'compil' not in str(e):
      raise
    raise NotCompiledError(
      f'XLA cannot compile {what} ({arguments.reason(e)}). '
      'Pass `jit_compile=False`, or write the target with ops that XLA knows'
      f'{_BESIDE_A_TAPE if may_be_recorded() else ""}.'
    ) from e


# The name of an op that compares the shape of what a step records.
_COMPARED = 'shape_of_what_is_traced'
_OTHER_SHAPE = (
  '`trace_fn` returned a Tensor of another shape than at the start, but what '
  'is recorded has one shape in all steps. Keep what would be left out, for '
  'example with a mask beside it, or fill it by `tf.where`.'
)
_BESIDE_A_TAPE = '; or call this outside of the `tf.GradientTape`'


def to_tensors(structure):
  """The Tensors of a structure, in order, composite ones taken apart."""
  return [
    tf.convert_to_tensor(x)
    for x in tf.nest.flatten(structure, expand_composites=True)
  ]


def packed(structure, tensors):
  """What `to_tensors` has taken apart, in its structure."""
  return tf.nest.pack_sequence_as(structure, tensors, expand_composites=True)


def as_tensors(results):
  """Kernel results, with Tensors in place of what can be converted to them.

  Args:
    results: Kernel results.

  Returns:
    The same structure.

  Raises:
    TypeError: if something in it cannot be kept from block to block.
  """

  def convert(x):
    if isinstance(x, tf.TensorArray):
      raise TypeError(
        'The kernel results have a `tf.TensorArray`, which lasts no longer '
        'than one graph, and cannot be kept from block to block. Record by '
        '`trace_fn` in the place of a reducer, or use `tfp.mcmc.sample_chain`.'
      )
    return tf.convert_to_tensor(x)

  return tf.nest.map_structure(convert, results, expand_composites=True)


class SamplingBlock:
  """Makes steps of a kernel on the device, any number of them.

  Where the block starts, how many steps it makes, and which of them are kept
  are Tensors, so that one graph serves a whole run, and other runs.

  Attributes:
    row_specs: List of `tf.TensorSpec`s of what a step writes, the parts of the
      state first.
    trace_structure: What `trace_fn` returns, with None in the place of Tensors.
    compiled: The `tf.function` that `__call__` runs.
    num_traces: How often it was traced.
  """

  # What a subclass knows of the steps before they are traced: the `Graph` of
  # the log density; and, hashable, what decides beside it which steps a kernel
  # makes that has its settings in its results.
  _log_prob_graph = None
  _key = ()

  def __init__(
    self,
    kernel,
    trace_fn,
    schedule,
    state,
    results,
    jit_compile,
    name,
  ):
    """Initializes the block; nothing is traced yet.

    Args:
      kernel: A `tfp.mcmc.TransitionKernel`.
      trace_fn: Callable of the state and the kernel results.
      schedule: A `Schedule`.
      state: The structure of the state, with Tensors.
      results: The structure of the kernel results, with Tensors.
      jit_compile: Python `bool`, whether XLA compiles the block.
      name: Python `str`, the name of the graph.
    """
    self._kernel = kernel
    self._trace_fn = trace_fn
    self._schedule = schedule
    self._state = state
    self._results = results
    self._jit_compile = jit_compile
    # Evaluated once: what does not fit is refused here, outside of the graph.
    trace = trace_fn(state, results)
    self.trace_structure = tf.nest.map_structure(lambda _: None, trace)
    self.row_specs = [
      tf.TensorSpec(x.shape, x.dtype) for x in _row_entries(state, trace)
    ]
    num_parts = len(tf.nest.flatten(state))
    _check_recorded(trace, self.row_specs[num_parts:], jit_compile)
    self._name = name
    self.num_traces = 0
    self._eager = None
    run = functools.partial(self._run)
    run.__name__ = name
    self.compiled = tf.function(
      run, autograph=False, jit_compile=jit_compile or None
    )

  def __call__(self, state, results, seed, first_step, num_steps):
    """Makes the steps.

    Args:
      state: List of Tensors.
      results: List of Tensors.
      seed: int32 Tensor of shape [2]: the seed of the run.
      first_step: Python `int`, how many steps the run has made so far.
      num_steps: Python `int`, how many to make, the block size at most.

    Returns:
      state: List of Tensors.
      results: List of Tensors.
      acceptance: float32 scalar Tensor, the mean over the steps.
      rows: List of Tensors with leading axis for the rows, those of the state
        first. Only the rows that the steps complete count; see
        `Schedule.num_rows`.
    """
    given = state, results, seed, self.counts(first_step, num_steps)
    with explaining_xla(self._jit_compile):
      if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        return self.compiled(*given)
      if self._eager is None:
        self._eager = self._remembered(given)
      return self._eager(tf.nest.flatten(given))

  def _remembered(self, given):
    """The compiled graph, that of an earlier run if it has made the same."""
    state, results, *_ = given
    return graphs.compiled(
      (len(state), len(results), self.num_rows, self._key),
      self._name,
      lambda *tensors: self._run(*tf.nest.pack_sequence_as(given, tensors)),
      [tf.TensorSpec(x.shape, x.dtype) for x in tf.nest.flatten(given)],
      self._jit_compile,
      self._log_prob_graph,
    )

  @property
  def num_rows(self):
    """How many rows the steps of a block can write to."""
    return self._schedule.rows_per_block

  def step(self, state, results, seed):
    """Makes one step.

    Args:
      state: List of Tensors.
      results: List of Tensors.
      seed: int32 Tensor of shape [2]: the seed of the step.

    Returns:
      state: List of Tensors.
      results: List of Tensors.
      acceptance: float32 scalar Tensor.
      entries: List of Tensors, what the step writes.
    """
    state, results = self._kernel.one_step(
      packed(self._state, state),
      packed(self._results, results),
      seed=seed,
    )
    entries = _row_entries(state, self._trace_fn(state, results))
    entries = list(map(_of_shape, entries, self.row_specs))
    return to_tensors(state), to_tensors(results), acceptance(results), entries

  def empty_rows(self):
    """List of `tf.TensorArray`s for the rows of a block."""
    return [
      tf.TensorArray(
        spec.dtype,
        size=self.num_rows,
        element_shape=spec.shape,
      )
      for spec in self.row_specs
    ]

  def counts(self, first_step, num_steps):
    """All numbers of steps that a graph needs to know.

    Args:
      first_step: Python `int`, as for a call.
      num_steps: Python `int`, as for a call.

    Returns:
      int32 Tensor [first step, steps, steps of the burn-in, stride].
    """
    schedule = self._schedule
    return tf.constant(
      [first_step, num_steps, schedule.num_burnin_steps, schedule.stride],
      tf.int32,
    )

  @staticmethod
  def row(step, counts):
    """In which row of its block a step writes: that of the next result."""
    first_step, _, num_burnin_steps, stride = tf.unstack(counts)
    # Of both `Schedule.num_rows`.
    row, first_row = (
      (tf.maximum(i - num_burnin_steps, 0) + stride - 1) // stride
      for i in (step, first_step)
    )
    return row - first_row

  def _run(self, state, results, seed, counts):
    self.num_traces += 1
    first_step, num_steps, *_ = tf.unstack(counts)

    def make_step(step, seed, state, results, accepted, arrays):
      before = results
      state, results, now_accepted, entries = self.step(
        state, results, step_seed(seed, step)
      )
      results = [_never_constant(step, *pair) for pair in zip(before, results)]
      seed = _never_constant(step, seed, seed)
      row = self.row(step, counts)
      arrays = [a.write(row, entry) for a, entry in zip(arrays, entries)]
      return step + 1, seed, state, results, accepted + now_accepted, arrays

    end = first_step + num_steps
    _, _, state, results, accepted, arrays = tf.while_loop(
      lambda step, *_: step < end,
      make_step,
      (first_step, seed, state, results, tf.constant(0.0), self.empty_rows()),
    )
    mean_acceptance = accepted / tf.cast(num_steps, tf.float32)
    return state, results, mean_acceptance, [a.stack() for a in arrays]


def _check_recorded(trace, specs, jit_compile):
  """Refuses what a block cannot write: texts under XLA, and handles."""
  for name, spec in zip(part_names(trace), specs):
    is_text = spec.dtype == tf.string
    if spec.dtype.is_numpy_compatible and not (is_text and jit_compile):
      continue
    where = f' as {name!r}' if tf.nest.is_nested(trace) else ''
    why = 'cannot be kept from step to step. Leave it out'
    if is_text:
      why = 'XLA does not have. Leave it out, pass `jit_compile=False`'
    raise ValueError(
      f'`trace_fn` returned dtype {spec.dtype.name}{where}, which {why}, or '
      'return numbers in its place.'
    )


def _never_constant(step, before, after):
  """What a step returned, so that XLA takes it for something that changes.

  XLA compiles anew for each value of what a loop leaves as it is, where that
  reaches an op which needs a constant; it thinks so of all arguments of the log
  density of some models, such as a `JointDistribution...AutoBatched` with a
  `tfd.Sample`, and would do so for every block.
  """
  if after is not before:
    return after
  return tf.where(step < 0, tf.zeros_like(after), after)


def _of_shape(entry, spec):
  """An entry that has the shape of its row, which may be known to run time."""
  if not spec.shape.is_compatible_with(entry.shape):
    raise ValueError(_OTHER_SHAPE)
  if entry.shape.is_fully_defined():
    return entry
  return tf.ensure_shape(entry, spec.shape, name=_COMPARED)


def _row_entries(state, trace):
  """What a step writes: the parts of the state, then those of the trace."""
  return [tf.convert_to_tensor(x) for x in tf.nest.flatten([state, trace])]
