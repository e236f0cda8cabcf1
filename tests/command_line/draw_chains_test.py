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
"""The warm-up and the blocks of steps."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.command_line.draw_chains import draw_chains

SDS = np.array([0.1, 1.0, 10.0], np.float32)


def log_prob(x, y):
  z = tf.concat([x, y], axis=-1) / SDS
  return -0.5 * tf.reduce_sum(z**2, axis=-1)


def start(num_chains):
  rng = np.random.default_rng(0)
  return [
    tf.constant(rng.normal(size=[num_chains, n]), tf.float32) for n in (1, 2)
  ]


def draw(num_draws, num_warmup, **how):
  options = {'step_size': 0.1, 'seed': 0, 'use_xla': False, **how}
  return draw_chains(
    log_prob,
    start(32),
    num_draws,
    num_warmup,
    show_progress=False,
    **options,
  )


def test_warmup_finds_scales_and_step_size():
  draws = draw(500, 800)
  scale = np.concatenate(draws.scale)
  np.testing.assert_allclose(scale, SDS, rtol=0.25)
  # 500 x 32 proposals: their acceptance rate varies by less than 0.01, the
  # adapted step size adds to that.
  assert np.mean(draws.is_accepted) == pytest.approx(0.574, abs=0.06)


@pytest.mark.parametrize(
  'num_draws, num_warmup', [(1, 0), (7, 1), (50, 5), (103, 33), (6, 205)]
)
def test_numbers_of_steps_are_exact(num_draws, num_warmup):
  draws = draw(num_draws, num_warmup)
  assert draws.is_accepted.shape == (num_draws, 32)
  assert [part.shape for part in draws.state] == [
    (num_draws, 32, 1),
    (num_draws, 32, 2),
  ]
  assert draws.num_requested == num_draws


def test_without_warmup_nothing_is_adapted():
  draws = draw(20, 0, step_size=0.01)
  assert draws.step_size == pytest.approx(0.01)
  np.testing.assert_array_equal(np.concatenate(draws.scale), 1.0)


def test_the_state_moves_exactly_where_a_proposal_was_accepted():
  draws = draw(200, 0, step_size=0.005)
  state = np.concatenate(draws.state, axis=-1)
  moved = np.any(state[1:] != state[:-1], axis=-1)
  np.testing.assert_array_equal(moved, draws.is_accepted[1:])
  assert 0.1 < np.mean(moved) < 1.0


def test_the_log_density_is_traced_a_fixed_number_of_times():
  calls = []

  def counted(x, y):
    calls.append(1)
    return log_prob(x, y)

  counts = []
  for num_draws in (50, 500):
    calls.clear()
    draw_chains(counted, start(4), num_draws, 50, 0.1, 0, False, False)
    counts.append(len(calls))
  # Once per window to start it, and once in the one compiled block.
  assert counts[0] == counts[1]


def test_no_two_steps_share_their_random_numbers():
  # 500 draws, in blocks of five steps. The density is nearly flat over steps
  # of 0.001: every step is the noise of all chains.
  draws = draw(500, 0, step_size=1e-6)
  steps = np.diff(draws.state[1][..., 0], axis=0)
  assert len(np.unique(steps, axis=0)) == len(steps)
