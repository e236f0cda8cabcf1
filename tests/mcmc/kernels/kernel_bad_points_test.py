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
import tensorflow as tf

_WALL = 0.8
# What is beyond the wall, from sector to sector of the second coordinate.
_BAD = [
  'density nan',
  'density inf',
  'density -inf',
  'gradient nan',
  'gradient inf',
]
_EDGES = [-0.8, -0.25, 0.25, 0.8]


def _inside(noise):
  """Where everything is as it should be."""
  return -np.abs(noise)


def _is_bad(x, bad):
  """Whether a point is beyond the wall, in the sector of that name."""
  lower, upper = [-np.inf, *_EDGES], [*_EDGES, np.inf]
  i = _BAD.index(bad)
  y = x[..., 1]
  return (x[..., 0] > _WALL) & (y > lower[i]) & (y <= upper[i])


def _put(what, x, values):
  """Replaces values of a density, or of a gradient, by what is bad there."""
  for bad in _BAD:
    name, value = bad.split()
    if name == what:
      at = _is_bad(x, bad)
      if values.shape.rank > at.shape.rank:
        at = at[..., tf.newaxis]
      values = tf.where(at, tf.constant(float(value), x.dtype), values)
  return values


@tf.custom_gradient
def _bad_gradient(x):
  def gradient(upstream):
    return upstream[..., tf.newaxis] * _put('gradient', x, -x)

  return -0.5 * tf.reduce_sum(x**2, -1), gradient


def _log_prob(x):
  """A normal with all that is bad."""
  return _put('density', x, _bad_gradient(x))


def test_the_target_is_as_bad_as_it_should_be():
  y = [-1.0, -0.5, 0.0, 0.5, 1.0]
  x = tf.constant([[2.0 * _WALL, v, 0.1] for v in y])
  with tf.GradientTape() as tape:
    tape.watch(x)
    log_prob = _log_prob(x)
  gradient = tape.gradient(log_prob, x)
  np.testing.assert_array_equal(log_prob[:3], [np.nan, np.inf, -np.inf])
  assert np.all(np.isfinite(log_prob[3:]))
  assert np.all(np.isfinite(gradient[:3]))
  assert np.all(np.isnan(gradient[3])) and np.all(np.isinf(gradient[4]))


def test_is_a_rejection_and_poisons_nothing(laws, kind):
  made = laws.make_kernel(kind, log_prob=_log_prob, draw=_inside)
  noise = np.random.default_rng(3).normal(size=[200, 3])
  state = tf.constant(_inside(noise))
  results = made.start(state)
  num_bad = np.zeros(len(_BAD))
  late_moves = np.zeros(200, bool)
  for i in range(20):
    before = state
    state, results = made.kernel.one_step(state, results, seed=(i, 5))
    core = laws.core(results)
    proposed = core.proposed_state.numpy()
    num_bad += [np.sum(_is_bad(proposed, bad)) for bad in _BAD]
    is_bad = proposed[:, 0] > _WALL
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
  assert np.all(num_bad > 20), num_bad
  assert np.all(late_moves), 'a chain is stuck'


def test_what_adapts_does_not_learn_from_it(laws, adapted_kind):
  """What is learned is finite, and of the order of the target."""
  made = laws.make_kernel(adapted_kind, log_prob=_log_prob, draw=_inside)
  assert np.all(np.isfinite(made.matrix))
  assert np.all(np.abs(np.diag(made.matrix)) > 0.05)
  assert np.all(np.abs(made.matrix) < 20.0)
