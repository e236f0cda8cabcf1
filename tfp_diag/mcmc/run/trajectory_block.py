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
"""Steps with the settings that a warm-up finds, and their compiled graph."""

import functools

from tfp_diag.mcmc.kernels.langevin_trajectories import (
  MetropolisAdjustedLangevinTrajectories,
)
from tfp_diag.mcmc.run.block import SamplingBlock

_GRADIENTS = 'gradients'
# Steps of a block, and of one with states so large that rows count.
_BLOCK_SIZE, _SMALL_BLOCK_SIZE = 100, 10
_MANY_NUMBERS = 2**18


class CarriesScale(MetropolisAdjustedLangevinTrajectories):
  """Trajectories that find their scale in their results, as all else.

  A graph of a step has then no settings in it, and serves all runs.
  """

  def bootstrap_results(self, init_state):
    """Those of the trajectories, and the scale."""
    return with_scale(
      super().bootstrap_results(init_state), self.preconditioner
    )


def with_scale(results, operator):
  """Kernel results of trajectories of one part with another scale."""
  accepted, proposed = (
    r._replace(preconditioner=[operator])
    for r in (results.accepted_results, results.proposed_results)
  )
  return results._replace(accepted_results=accepted, proposed_results=proposed)


def num_steps_of_blocks(state):
  """How many steps the blocks of a run with such a state have."""
  is_large = state.shape.num_elements() > _MANY_NUMBERS
  return _SMALL_BLOCK_SIZE if is_large else _BLOCK_SIZE


class TrajectoryBlock(SamplingBlock):
  """A block that a warm-up and the run after it share, and later runs.

  Its steps write their gradients, too, from which a scale is learned.
  """

  def __init__(self, log_prob_graph, kernel, trace_fn, *others):
    """Initializes the block; nothing is traced yet.

    Args:
      log_prob_graph: `Graph` of the log density, or None if it has no single
        one: then steps are traced before it is seen that they are known.
      kernel: A `CarriesScale`.
      trace_fn: Callable of the state and the kernel results, that of the
        default.
      *others: What else a `SamplingBlock` takes.
    """
    self._log_prob_graph = log_prob_graph
    self._key = type(kernel.preconditioner).__name__, kernel.max_num_steps
    super().__init__(
      kernel, functools.partial(_with_gradients, trace_fn), *others
    )

  @property
  def num_rows(self):
    """The same for short runs and for long ones."""
    return self._schedule.block_size


def _with_gradients(trace_fn, state, results):
  [gradients] = results.accepted_results.grads_target_log_prob
  return {**trace_fn(state, results), _GRADIENTS: gradients}


class WithoutGradients:
  """A `TrajectoryBlock` whose gradients nobody keeps.

  Attributes:
    row_specs: As those of the block, without the gradients.
    trace_structure: As that of the block, without them.
  """

  def __init__(self, *args):
    """Initializes it with what a `TrajectoryBlock` takes."""
    self._block = TrajectoryBlock(*args)
    names = [*self._block.trace_structure]
    self.trace_structure = dict.fromkeys(n for n in names if n != _GRADIENTS)
    # After the only part of the state, in the order of `tf.nest`.
    self._place = 1 + sorted(names).index(_GRADIENTS)
    self.row_specs = self._kept(self._block.row_specs)

  def __call__(self, state, results, seed, first_step, num_steps):
    """Makes the steps; see `SamplingBlock`."""
    *found, rows = self._block(state, results, seed, first_step, num_steps)
    return (*found, self._kept(rows))

  def _kept(self, rows):
    return rows[: self._place] + rows[self._place + 1 :]
