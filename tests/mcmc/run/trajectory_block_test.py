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
"""Steps of trajectories that are compiled once for many runs."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.diagonal import graphs
from tfp_diag.mcmc import sample_posterior
from tfp_diag.mcmc.run import trajectory_block


def log_prob_of(data):
  data = tf.constant(data, tf.float32)

  def log_prob(x):
    logits = tf.linalg.matvec(data, x)
    return tf.reduce_sum(
      0.7 * logits - tf.math.softplus(logits), -1
    ) - 0.5 * tf.reduce_sum(x**2, -1)

  return log_prob


def draw(data, seed, num_draws, preconditioner, **arguments):
  return sample_posterior(
    log_prob_of(data),
    num_draws,
    init=tf.zeros([16, data.shape[1]]),
    num_warmup_steps=40,
    jit_compile=False,
    preconditioner=preconditioner,
    seed=seed,
    **arguments,
  )


@pytest.mark.filterwarnings('ignore:.*R-hat')
@pytest.mark.parametrize(
  'preconditioner, num_data, size',
  # TensorFlow captures Tensors of up to 128 elements in another way.
  [
    ('dense', 9, 4),
    ('diagonal', 50, 4),
    ('low_rank', 50, 8),
  ],
)
def test_another_run_is_as_if_it_were_the_first(preconditioner, num_data, size):
  rng = np.random.default_rng(size)
  data = rng.normal(size=[2, num_data, size])
  data[1] *= np.geomspace(0.1, 3.0, size)

  # Starts are another program, the same for every scale.
  options = {'use_curvature': preconditioner == 'dense'}

  def second():
    return draw(
      data[1], 2, 40, preconditioner, num_steps_between_results=2, **options
    )

  tfp_diag.clear_cache()
  draw(data[0], 1, 7, preconditioner, **options)
  found = second()
  tfp_diag.clear_cache()
  expected = second()
  np.testing.assert_array_equal(found.draws, expected.draws)
  assert found.warm_up.step_size == expected.warm_up.step_size
  for name, values in expected.trace.items():
    np.testing.assert_array_equal(found.trace[name], values)


@pytest.mark.filterwarnings('ignore:.*R-hat')
def test_runs_with_other_data_seeds_and_strides_trace_one_density(monkeypatch):
  traced = []
  concrete = graphs.concrete

  def counted(fn, *args):
    traced.append(fn.__name__)
    return concrete(fn, *args)

  monkeypatch.setattr(graphs, 'concrete', counted)
  tfp_diag.clear_cache()
  rng = np.random.default_rng(0)
  arguments = [
    dict(seed=1, num_draws=5),
    dict(seed=2, num_draws=30, num_steps_between_results=3),
    dict(seed=3, num_draws=130, num_steps_between_results=0),
  ]
  for given in arguments:
    draw(rng.normal(size=[20, 4]), preconditioner='dense', **given)
  # The log density once for each run, a warm-up and its run share their block.
  assert traced.count('mcmc_trajectories') == 1
  assert traced.count('mcmc_starts') == 1
  assert len(traced) == 2 + len(arguments)


@pytest.mark.filterwarnings('ignore:.*R-hat')
def test_rows_have_no_gradients():
  data = np.eye(3)
  found = draw(data, 0, 10, 'dense')
  assert 'gradients' not in found.trace
  assert set(found.trace) == {
    *('accept_ratio', 'diverging', 'is_accepted', 'log_accept_ratio'),
    *('n_steps', 'step_size', 'target_log_prob'),
  }
  for name, column in found.trace.items():
    alone = name in ('n_steps', 'step_size')
    assert column.shape == ((10,) if alone else (10, 16)), name
  np.testing.assert_allclose(
    found.trace['target_log_prob'], log_prob_of(data)(found.draws), rtol=1e-5
  )


@pytest.mark.filterwarnings('ignore:.*R-hat')
def test_large_states_have_short_blocks_and_the_same_draws(monkeypatch):
  arguments = np.eye(4), 0, 25, 'dense'
  expected = draw(*arguments, num_steps_between_results=1)
  monkeypatch.setattr(trajectory_block, '_MANY_NUMBERS', 63)
  assert trajectory_block.num_steps_of_blocks(tf.zeros([16, 4])) == 10
  found = draw(*arguments, num_steps_between_results=1)
  np.testing.assert_array_equal(found.draws, expected.draws)
