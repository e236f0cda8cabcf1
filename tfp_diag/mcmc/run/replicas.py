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
"""Chains that are spread over the devices of a strategy."""

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc.adapt.diagonal_preconditioner_adaptation import (
  DiagonalPreconditionerAdaptation,
)
from tfp_diag.mcmc.kernels.noise import step_seed
from tfp_diag.mcmc.run.block import (
  SamplingBlock,
  as_tensors,
  explaining_xla,
  to_tensors,
)
from tfp_diag.mcmc.run.trace import part_names

# Their inner kernel draws all random numbers.
_WITHOUT_NOISE = (
  DiagonalPreconditionerAdaptation,
  tfp.mcmc.DualAveragingStepSizeAdaptation,
  tfp.mcmc.SimpleStepSizeAdaptation,
  tfp.mcmc.TransformedTransitionKernel,
)


class ReplicatedBlock:
  """A `SamplingBlock` on each device, of its share of the chains.

  From outside it is a block of all chains: it takes them apart and puts them
  together again, so that all else, the checkpoint above all, knows nothing of
  devices.

  Attributes:
    row_specs: As those of a `SamplingBlock` of all chains.
    trace_structure: The same.
    num_traces: How often the graphs were traced, summed over the devices.
  """

  def __init__(
    self,
    strategy,
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
      strategy: A `tf.distribute.Strategy` whose devices are all local.
      kernel: A `tfp.mcmc.TransitionKernel` that knows of the chain axis.
      trace_fn: Callable of the state and the kernel results.
      schedule: A `Schedule`.
      state: Structure of Tensors, all chains.
      results: Structure of Tensors, the kernel results of all chains.
      jit_compile: Python `bool`, whether XLA compiles the block, where nothing
        is pooled.
      name: Python `str`, the name of the graph.

    Raises:
      ValueError: if the chains, the kernel or the trace cannot be spread.
    """
    self._strategy = strategy
    self._num_replicas = strategy.num_replicas_in_sync
    self._check_chains(state)
    self._is_pooled = _check_kernel(kernel)
    # Devices that wait for each other inside of a loop do so in no graph that
    # `strategy.run` is given as a whole, and in none that XLA compiles.
    self._jit_compile = jit_compile and not self._is_pooled
    share = tf.nest.map_structure(
      lambda x: tf.split(x, self._num_replicas)[0], state
    )
    share_results = as_tensors(kernel.bootstrap_results(share))
    all_chains = SamplingBlock(
      kernel, trace_fn, schedule, state, results, jit_compile, name
    )
    self._block = SamplingBlock(
      kernel, trace_fn, schedule, share, share_results, self._jit_compile, name
    )
    self.row_specs = all_chains.row_specs
    self.trace_structure = all_chains.trace_structure
    # What has another shape for a share of the chains has a chain axis.
    self._results_are_spread = _differ(
      to_tensors(results), to_tensors(share_results)
    )
    self._rows_are_spread = _differ(self.row_specs, self._block.row_specs)
    self._check_trace()
    self._run_pooled = tf.function(self._pooled_steps, autograph=False)

  @property
  def num_traces(self):
    """How often the graphs were traced, summed over the devices."""
    return self._block.num_traces

  def __call__(self, state, results, seed, first_step, num_steps):
    """Makes the steps; see `SamplingBlock`."""
    state = [self._spread(x, True) for x in state]
    results = [
      self._spread(x, is_spread)
      for x, is_spread in zip(results, self._results_are_spread)
    ]
    counts = self._block.counts(first_step, num_steps)
    with explaining_xla(self._jit_compile):
      if self._is_pooled:
        made = self._run_pooled(state, results, seed, counts)
      else:
        made = self._strategy.run(
          self._block.compiled, (state, results, seed, counts)
        )
    state, results, acceptance, rows = made
    return (
      [self._join(x, True, 0) for x in state],
      [
        self._join(x, is_spread, 0)
        for x, is_spread in zip(results, self._results_are_spread)
      ],
      tf.reduce_mean(tf.stack(self._on_devices(acceptance))),
      [
        self._join(x, is_spread, 1)
        for x, is_spread in zip(rows, self._rows_are_spread)
      ],
    )

  def _pooled_steps(self, state, results, seed, counts):
    """The loop of a `SamplingBlock`, with the devices inside of each step."""
    first_step, num_steps, *_ = tf.unstack(counts)

    def make_step(i, state, results, accepted, arrays):
      step = first_step + i
      state, results, now_accepted, entries = self._strategy.run(
        self._block.step, (state, results, step_seed(seed, step))
      )
      row = self._block.row(step, counts)
      entries = zip(*(self._on_devices(entry) for entry in entries))
      arrays = [
        [a.write(row, entry) for a, entry in zip(device_arrays, device_entries)]
        for device_arrays, device_entries in zip(arrays, entries)
      ]
      accepted += tf.reduce_mean(tf.stack(self._on_devices(now_accepted)))
      return i + 1, state, results, accepted, arrays

    _, state, results, accepted, arrays = tf.while_loop(
      lambda i, *_: i < num_steps,
      make_step,
      (
        tf.constant(0),
        state,
        results,
        tf.constant(0.0),
        [self._block.empty_rows() for _ in range(self._num_replicas)],
      ),
    )
    rows = [tuple(a.stack() for a in column) for column in zip(*arrays)]
    return state, results, accepted / tf.cast(num_steps, tf.float32), rows

  def _spread(self, x, is_spread):
    shares = tf.split(x, self._num_replicas) if is_spread else None

    def on_replica(context):
      if shares is None:
        return x
      return shares[context.replica_id_in_sync_group]

    values = self._strategy.experimental_distribute_values_from_function(
      on_replica
    )
    # A single device has a type of its own, which loops do not take.
    return values if self._num_replicas > 1 else self._on_devices(values)[0]

  def _join(self, values, is_spread, axis):
    values = self._on_devices(values)
    return tf.concat(values, axis) if is_spread else values[0]

  def _on_devices(self, values):
    if isinstance(values, tuple):
      return values
    return self._strategy.experimental_local_results(values)

  def _check_trace(self):
    """Refuses a trace whose chains are not along its first axis."""
    names = part_names(self.trace_structure)
    first = len(self.row_specs) - len(names)
    for name, spec, share in zip(
      names, self.row_specs[first:], self._block.row_specs[first:]
    ):
      shape, of_share = spec.shape.as_list(), share.shape.as_list()
      joined = [n * self._num_replicas for n in of_share[:1]] + of_share[1:]
      if shape not in (of_share, joined):
        raise ValueError(
          f'The entry {name!r} of `trace_fn` has shape {shape} for all chains, '
          f'but {of_share} for those of one device of `strategy`. Its first '
          'axis must be that of the chains: move them there, as by '
          '`tf.transpose`, or leave the entry out.'
        )

  def _check_chains(self, state):
    num_local = len(
      self._strategy.experimental_local_results(
        self._strategy.experimental_distribute_values_from_function(
          lambda context: tf.constant(0)
        )
      )
    )
    if num_local != self._num_replicas:
      raise ValueError(
        f'`strategy` has {self._num_replicas} devices, but {num_local} of them '
        'are on this machine. `sample` keeps the draws of one machine: pass a '
        '`tf.distribute.MirroredStrategy`, or run one `sample` on each.'
      )
    for i, part in enumerate(tf.nest.flatten(state)):
      if part.shape.rank == 0 or part.shape[0] % self._num_replicas:
        raise ValueError(
          f'Part {i} of `current_state` has shape {list(part.shape)}, but the '
          f'{self._num_replicas} devices of `strategy` share the chains of the '
          'first axis equally. Pass a number of chains that this divides.'
        )


def _check_kernel(kernel):
  """Refuses kernels whose chains depend on where they are.

  Args:
    kernel: A `tfp.mcmc.TransitionKernel`.

  Returns:
    Python `bool`: whether it pools something over all chains.
  """
  outer = []
  while isinstance(kernel, _WITHOUT_NOISE):
    outer.append(kernel)
    kernel = kernel.inner_kernel
  # Kernels of users may have no parameters.
  parameters = getattr(kernel, 'parameters', {})
  if not parameters.get('experimental_chain_axis_names'):
    raise ValueError(
      f'The chains of {type(kernel).__name__} would get the same noise on each '
      'device of `strategy`. Use a kernel of this package, made with '
      "`experimental_chain_axis_names='chains'`."
    )
  learning = [k for k in outer if 'num_adaptation_steps' in k.parameters]
  for adapter in learning:
    if not adapter.parameters.get('experimental_reduce_chain_axis_names'):
      raise ValueError(
        f'{type(adapter).__name__} would learn from the chains of each device '
        'on its own, but all share what is learned. Make it with '
        "`experimental_reduce_chain_axis_names='chains'`."
      )
  return bool(learning) or 'num_adaptation_steps' in parameters


def _differ(all_chains, share):
  return [a.shape != b.shape for a, b in zip(all_chains, share)]
