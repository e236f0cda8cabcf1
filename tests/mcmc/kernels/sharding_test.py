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
"""A state whose members are spread over two replicas."""

from tests import fresh_process

# Logical devices must exist before TensorFlow's first op: a process of its own.
_PROGRAM = """
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(
  cpu, 2 * [tf.config.LogicalDeviceConfiguration()]
)
strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])

from tfp_diag.mcmc import PreconditionedMALA

tfd = tfp.distributions
tfed = tfp.experimental.distribute
STEP = 0.4

# z is shared by both replicas; each of them holds half of the x's.
target = tfed.JointDistributionSequential([
  tfd.Normal(tf.zeros([5]), 1.0),
  lambda z: tfed.Sharded(
    tfd.Independent(tfd.Normal(tf.sin(z)[..., tf.newaxis], tf.ones([3])), 1),
    shard_axis_name='data',
  ),
])
kernel = PreconditionedMALA(target.log_prob, STEP, [0.7, 1.3])
kernel = kernel.experimental_with_shard_axes([None, 'data'])
rng = np.random.default_rng(0)
z = rng.normal(size=[5]).astype(np.float32)
x = rng.normal(size=[5, 6]).astype(np.float32)

def step():
  replica = tf.distribute.get_replica_context().replica_id_in_sync_group
  part = tf.gather(tf.reshape(tf.constant(x), [5, 2, 3]), replica, axis=1)
  state = [tf.constant(z), part]
  results = kernel.bootstrap_results(state)
  state, results = kernel.one_step(state, results, seed=(3, 4))
  return state, results.proposed_state, results.log_accept_ratio

outputs = strategy.run(tf.function(step))
per_replica = tf.nest.map_structure(
  lambda o: [v.numpy() for v in strategy.experimental_local_results(o)], outputs
)
state, (z_new, x_new), log_ratio = per_replica

# What is shared stays the same on both, what is sharded gets its own noise.
np.testing.assert_array_equal(*z_new)
np.testing.assert_array_equal(*log_ratio)
np.testing.assert_array_equal(*state[0])
assert not np.any(x_new[0] == x_new[1])

# The same step as one unsharded model in NumPy, float64.
z, x = z.astype(np.float64), x.astype(np.float64)
y_z = z_new[0].astype(np.float64)
y_x = np.concatenate(x_new, -1).astype(np.float64)

def log_prob(z, x):
  return -0.5 * z**2 - 0.5 * np.sum((x - np.sin(z)[:, None])**2, -1)

def gradients(z, x):
  residual = x - np.sin(z)[:, None]
  return np.cos(z) * residual.sum(-1) - z, -residual

def log_q(z, x, y_z, y_x):
  g_z, g_x = gradients(z, x)
  noise_z = (y_z - z - 0.5 * STEP * 0.49 * g_z) / 0.7
  noise_x = (y_x - x - 0.5 * STEP * 1.69 * g_x) / 1.3
  return -0.5 * (noise_z**2 + np.sum(noise_x**2, -1)) / STEP

expected = (
  log_prob(y_z, y_x) - log_prob(z, x)
  + log_q(y_z, y_x, z, x) - log_q(z, x, y_z, y_x)
)
np.testing.assert_allclose(log_ratio[0], expected, rtol=1e-3, atol=1e-4)
print('sharded step agrees')
"""


def test_sharded_state(tmp_path):
  program = fresh_process.start(_PROGRAM, tmp_path / 'said')
  status, said = program.end()
  assert status == 0 and 'sharded step agrees' in said, said[-4000:]
