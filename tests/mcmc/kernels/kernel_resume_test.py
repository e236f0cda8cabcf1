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
"""What adapts goes on where it was: resume(k) + resume(n - k) = run(n)."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import (
  DiagonalPreconditionerAdaptation,
  FisherAdaptiveMALA,
  FisherDivergenceMALA,
  PreconditionedMALA,
  sample,
)

_NUM_ADAPTATION_STEPS = 8
_NUM_STEPS = 12


def _kernel(laws, adapted_kind):
  """While it adapts, within a step size adapter."""
  step_size = tf.constant(0.3, tf.float64)
  if adapted_kind == 'adapted_full_fisher':
    kernel = FisherAdaptiveMALA(
      laws.target.log_prob, step_size, _NUM_ADAPTATION_STEPS, 3
    )
  elif adapted_kind == 'adapted_full_fisher_divergence':
    kernel = FisherDivergenceMALA(
      laws.target.log_prob, step_size, _NUM_ADAPTATION_STEPS
    )
  else:
    kernel = DiagonalPreconditionerAdaptation(
      PreconditionedMALA(laws.target.log_prob, step_size),
      _NUM_ADAPTATION_STEPS,
      adapted_kind.removeprefix('adapted_'),
    )
  return tfp.mcmc.DualAveragingStepSizeAdaptation(
    kernel,
    _NUM_ADAPTATION_STEPS + 2,
    target_accept_prob=tf.constant(0.574, tf.float64),
  )


def _run(laws, adapted_kind, num_results, seed=(6, 7), **kwargs):
  noise = np.random.default_rng(2).normal(size=[5, 3])
  return sample(
    _kernel(laws, adapted_kind),
    tf.constant(laws.target.exact(noise)),
    num_results,
    block_size=4,
    seed=seed,
    jit_compile=False,
    progress_bar=False,
    **kwargs,
  )


def _check_pieces(laws, adapted_kind, path):
  """In three pieces, which end before and after the adaptation does."""
  whole = _run(laws, adapted_kind, _NUM_STEPS)
  _run(laws, adapted_kind, 5, checkpoint=path)
  for num_results in (11, _NUM_STEPS):
    pieces = _run(
      laws,
      adapted_kind,
      num_results,
      seed=None,
      checkpoint=path,
      resume=True,
    )
  np.testing.assert_array_equal(pieces.draws, whole.draws)
  tf.nest.map_structure(
    np.testing.assert_array_equal,
    tf.nest.flatten((pieces.final_state, pieces.final_kernel_results)),
    tf.nest.flatten((whole.final_state, whole.final_kernel_results)),
  )
  return whole


@pytest.fixture
def no_graphs():
  """Saves the time of tracing, which is most of it in so short a run."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures('no_graphs')
def test_in_pieces_is_in_one(laws, adapted_kind, tmp_path):
  """Bit for bit, whether the adaptation was over or not."""
  whole = _check_pieces(laws, adapted_kind, tmp_path / 'run')
  # Other seeds would have shown.
  other = _run(laws, adapted_kind, 4, seed=(6, 8))
  assert not np.any(other.draws[-1] == whole.draws[3])


@pytest.mark.parametrize(
  'graph_kind', ['adapted_hessian', 'adapted_full_fisher_divergence']
)
def test_in_pieces_is_in_one_in_a_graph(laws, graph_kind, tmp_path):
  _check_pieces(laws, graph_kind, tmp_path / 'run')
