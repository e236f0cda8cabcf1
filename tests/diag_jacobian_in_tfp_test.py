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
"""`diag_jacobian` in the place of TFP's inside TFP's own algorithms."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

# No public name leads to the function that a module of TFP has imported.
from tensorflow_probability.python.bijectors import ffjord
from tensorflow_probability.python.mcmc import langevin

from tfp_diag import diag_jacobian

tfb = tfp.bijectors


def run(regime, fn, xs):
  """Calls `fn(*xs)` in a regime."""
  if regime == 'eager':
    return fn(*xs)
  function = tf.function(
    fn, autograph=False, jit_compile=regime == 'xla' or None
  )
  return function(*xs)


def draw(shape, dtype='float64', seed=0):
  values = np.random.default_rng(seed).uniform(-1.0, 1.0, shape)
  return tf.constant(values, dtype)


MATRIX = draw([4, 4], seed=9)


def random_walk_volatility(x):
  return 1 / (1 + x**2)


def test_inside_the_langevin_algorithm_of_tfp(monkeypatch):
  def draws():
    kernel = tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(
      lambda x: tf.reduce_sum(-(x**4), axis=-1),
      step_size=0.3,
      volatility_fn=random_walk_volatility,
    )
    run = tf.function(
      lambda: tfp.mcmc.sample_chain(
        8,
        draw([5, 2]),
        kernel=kernel,
        seed=tf.constant([1, 2]),
        trace_fn=lambda _, r: r.log_accept_ratio,
      ),
      autograph=False,
    )
    return run()

  upstream = draws()
  called = []

  def ours(*args, **kwargs):
    called.append(1)
    return diag_jacobian(*args, **kwargs)

  monkeypatch.setattr(langevin, 'diag_jacobian', ours)
  result = draws()
  assert called
  np.testing.assert_allclose(result.all_states, upstream.all_states, rtol=1e-9)
  np.testing.assert_allclose(result.trace, upstream.trace, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize('regime', ['eager', 'function'])
def test_inside_the_continuous_flow_of_tfp(monkeypatch, regime):
  def log_det(x):
    flow = tfb.FFJORD(
      lambda t, z: tf.tanh(z @ MATRIX) * (1 + tf.cast(t, z.dtype)),
      trace_augmentation_fn=ffjord.trace_jacobian_exact,
      initial_time=0.0,
      final_time=0.1,
      dtype=tf.float64,
    )
    return flow.forward_log_det_jacobian(x, event_ndims=1)

  x = draw([3, 4])
  upstream = run('function', log_det, [x])
  called = []

  def ours(*args, **kwargs):
    called.append(1)
    return diag_jacobian(*args, **kwargs)

  monkeypatch.setattr(ffjord, 'diag_jacobian', ours)
  np.testing.assert_allclose(run(regime, log_det, [x]), upstream, rtol=1e-9)
  assert called
