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
"""The steps of `sample` as a part of a graph."""

import dataclasses

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc.run.block import SamplingBlock, packed, to_tensors
from tfp_diag.mcmc.run.sample import SampleResults
from tfp_diag.mcmc.run.sampling_run import first_results, what_records

# All steps are one block.
_NO_END = 2**31 - 1


def sample_in_graph(
  kernel,
  current_state,
  schedule,
  *,
  previous_kernel_results,
  trace_fn,
  seed,
  jit_compile,
):
  """Makes the steps of `sample` in the graph that is being built.

  The same steps with the same random numbers, so that the draws differ by
  rounding alone. Nothing looks at them meanwhile: there is no progress bar, no
  checkpoint, and no end before the last step.

  Args:
    kernel: As for `sample`.
    current_state: Structure of Tensors.
    schedule: A `Schedule`, of whatever blocks.
    previous_kernel_results: As for `sample`.
    trace_fn: As for `sample`.
    seed: int32 Tensor of shape [2], or None.
    jit_compile: As for `sample`.

  Returns:
    A `SampleResults` of Tensors.
  """
  schedule = dataclasses.replace(schedule, block_size=_NO_END)
  results = first_results(
    kernel.bootstrap_results(current_state), previous_kernel_results
  )
  block = SamplingBlock(
    kernel,
    what_records(kernel, trace_fn),
    schedule,
    current_state,
    results,
    jit_compile,
    'mcmc_sample',
  )
  final_state, final_results, _, rows = block(
    to_tensors(current_state),
    to_tensors(results),
    tfp.random.sanitize_seed(seed),
    0,
    schedule.num_steps,
  )
  # A burn-in alone has a row, too.
  rows = [row[: schedule.num_results] for row in rows]
  num_parts = len(tf.nest.flatten(current_state))
  return SampleResults(
    draws=tf.nest.pack_sequence_as(current_state, rows[:num_parts]),
    trace=tf.nest.pack_sequence_as(block.trace_structure, rows[num_parts:]),
    final_state=tf.nest.pack_sequence_as(current_state, final_state),
    final_kernel_results=packed(results, final_results),
    num_results=schedule.num_results,
    stopped_by='finished',
  )
