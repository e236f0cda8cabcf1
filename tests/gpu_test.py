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
"""The same numbers on a GPU; skipped where there is none."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag

GPUS = tf.config.list_physical_devices('GPU')
DEVICE = '/GPU:0' if GPUS else '/CPU:0'

pytestmark = [
  pytest.mark.gpu,
  pytest.mark.skipif(not GPUS, reason='needs a GPU'),
]


def log_prob(x):
  """A chain and a hub: structure, gathers and a dense remainder."""
  steps = x[..., 1:] - 0.9 * tf.gather(x, tf.range(11), axis=-1)
  return -tf.reduce_sum(tf.cosh(steps), -1) - tf.reduce_logsumexp(
    x[..., :4], axis=-1
  )


def dense_diagonal(x):
  """The diagonal of a dense float64 Hessian on the CPU."""
  with tf.device('/CPU:0'):
    x = tf.cast(x, tf.float64)
    matrix = tfp_diag.hessian(log_prob, x, sample_shape=x.shape[:-1])
    return tf.linalg.diag_part(matrix).numpy()


@pytest.mark.parametrize('jit_compile', [False, True])
@pytest.mark.parametrize('schedule', ['unrolled', 'pfor', 'while_loop'])
@pytest.mark.parametrize(
  'mode', ['forward_over_reverse', 'reverse_over_reverse']
)
def test_diag_hessian(mode, schedule, jit_compile):
  x = tf.random.stateless_normal([2, 3, 12], [0, 1])

  @tf.function(jit_compile=jit_compile)
  def diag(x):
    return tfp_diag.diag_hessian(log_prob, x, mode=mode, schedule=schedule)[2]

  with tf.device(DEVICE):
    result = diag(tf.identity(x))
  assert DEVICE[1:] in result.device
  np.testing.assert_allclose(result, dense_diagonal(x), rtol=1e-4, atol=1e-4)


def test_preconditioned_mala():
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(x**2, -1),
    step_size=0.5,
    volatility_fn=lambda x: 1.0 + 0.1 * tf.tanh(x),
  )

  @tf.function(jit_compile=True)
  def draw():
    return tfp.mcmc.sample_chain(
      20, tf.zeros([8, 2, 3]), kernel=kernel, trace_fn=None, seed=(0, 1)
    )

  with tf.device('/CPU:0'):
    expected = draw()
  with tf.device(DEVICE):
    result = draw()
  np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
