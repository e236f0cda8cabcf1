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
"""A point that cannot be used is a rejection, for every kind of kernel.

Never a stuck chain, never a poisoned one; nor does what adapts learn from it.
"""

import numpy as np
import pytest
import tensorflow as tf

_WALL = 0.8


def _inside(noise):
  """Where everything is as it should be."""
  return -np.abs(noise)


def _normal(x):
  return -0.5 * tf.reduce_sum(x**2, -1)


def _walled(value):
  def log_prob(x):
    bad = tf.constant(value, x.dtype)
    return tf.where(x[..., 0] > _WALL, bad, _normal(x))

  return log_prob


def _bad_gradient(value):
  @tf.custom_gradient
  def log_prob(x):
    def gradient(upstream):
      bad = tf.where(x[..., :1] > _WALL, tf.constant(value, x.dtype), -x)
      return upstream[..., tf.newaxis] * bad

    return _normal(x), gradient

  return log_prob


_BAD = {
  'density_nan': _walled(np.nan),
  'density_inf': _walled(np.inf),
  'density_minus_inf': _walled(-np.inf),
  'gradient_nan': _bad_gradient(np.nan),
  'gradient_inf': _bad_gradient(np.inf),
}


@pytest.mark.parametrize('bad', _BAD)
def test_is_a_rejection_and_poisons_nothing(laws, kind, bad):
  made = laws.make_kernel(kind, log_prob=_BAD[bad], draw=_inside)
  noise = np.random.default_rng(3).normal(size=[40, 3])
  state = tf.constant(_inside(noise))
  results = made.start(state)
  num_bad = 0
  late_moves = np.zeros(40, bool)
  for i in range(20):
    before = state
    state, results = made.kernel.one_step(state, results, seed=(i, 5))
    core = laws.core(results)
    is_bad = core.proposed_state.numpy()[:, 0] > _WALL
    num_bad += np.sum(is_bad)
    # A rejection, which can be counted.
    assert not np.any(core.is_accepted.numpy()[is_bad])
    np.testing.assert_array_equal(
      core.log_accept_ratio.numpy() == -np.inf, is_bad
    )
    np.testing.assert_array_equal(state.numpy()[is_bad], before.numpy()[is_bad])
    cached = core.accepted_results
    for x in tf.nest.flatten(
      [state, cached.target_log_prob, cached.grads_target_log_prob]
    ):
      assert np.all(np.isfinite(x))
    assert not np.any(np.isnan(core.log_accept_ratio))
    if i >= 10:
      late_moves |= core.is_accepted.numpy()
  assert num_bad > 20
  assert np.all(late_moves), 'a chain is stuck'


def test_what_adapts_does_not_learn_from_it(laws, adapted_kind):
  """What is learned is finite, and of the order of the target."""
  made = laws.make_kernel(
    adapted_kind, log_prob=_BAD['density_nan'], draw=_inside
  )
  assert np.all(np.isfinite(made.matrix))
  assert np.all(np.abs(np.diag(made.matrix)) > 0.05)
  assert np.all(np.abs(made.matrix) < 20.0)
