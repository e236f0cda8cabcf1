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
"""Chains over two devices are the chains of one device."""

import pytest

from tests import fresh_process

# Logical devices must exist before TensorFlow's first op: a process of its own.
_SETUP = """
import functools
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(
  cpu, 2 * [tf.config.LogicalDeviceConfiguration()]
)
strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])

from tfp_diag import mcmc

AXIS = dict(experimental_chain_axis_names='chains')
POOL = dict(experimental_reduce_chain_axis_names='chains')

def log_prob(u, w):
  center = tf.reduce_sum(tf.sin(u), -1)
  return -tf.reduce_sum(tf.cosh(u / [0.3, 1.0, 4.0]), -1) - (w - center) ** 2

def start(dtype=np.float32):
  rng = np.random.default_rng(0)
  u, w = rng.normal(size=[10, 3, 3]), rng.normal(size=[10, 3])
  return [u.astype(dtype), w.astype(dtype)]

def spread(state):
  def on_replica(context):
    k = context.replica_id_in_sync_group
    return [tf.constant(np.split(x, 2)[k]) for x in state]
  return strategy.experimental_distribute_values_from_function(on_replica)

def local(values):
  return [
    tf.nest.map_structure(
      lambda v: strategy.experimental_local_results(v)[k].numpy(), values
    )
    for k in range(2)
  ]

def joined(values):
  return tf.nest.map_structure(
    lambda *x: np.concatenate(x), *local(values)
  )

def steps(kernel, num, state, seed):
  results = kernel.bootstrap_results(state)
  def body(i, state, results):
    step_seed = tf.random.fold_in(seed, i, alg='philox')
    return i + 1, *kernel.one_step(state, results, seed=step_seed)
  return tf.while_loop(lambda i, *_: i < num, body, (0, state, results))[1:]
"""

_NOTHING_POOLED = """
def volatility(u, w):
  return [0.5 + 0.2 * tf.tanh(u), 1.0]

SEED = tf.constant([3, -4])
for dtype, jit_compile, scale in (
  (np.float32, True, dict(preconditioner=[[0.3, 1.0, 4.0], 0.5])),
  (np.float64, False, dict(volatility_fn=volatility)),
):
  state = start(dtype)
  def make(**kwargs):
    kernel = mcmc.PreconditionedMALA(log_prob, 0.5, **scale, **kwargs)
    return tf.function(
      functools.partial(steps, kernel, 12), jit_compile=jit_compile
    )
  one, results = make()(state, SEED)
  two = joined(strategy.run(make(**AXIS), (spread(state), SEED))[0])
  tf.nest.map_structure(np.testing.assert_array_equal, one, two)
  assert 0.0 < np.mean([np.mean(a != b) for a, b in zip(state, two)])
# The control: without the axis, both replicas use the noise of the first.
two = joined(strategy.run(make(), (spread(state), SEED))[0])
np.testing.assert_array_equal(two[0][:5], one[0][:5])
assert np.any(two[0][5:] != one[0][5:])
print('agrees')
"""

_POOLED = """
def adapting(**kwargs):
  axis, pool = (AXIS, POOL) if kwargs else ({}, {})
  if pool:
    # TFP needs to be told that it may gather.
    pool_step_size = dict(
      POOL,
      reduce_fn=functools.partial(
        tfp.math.reduce_logmeanexp, experimental_allow_all_gather=True
      ),
    )
  else:
    pool_step_size = {}
  diagonal = mcmc.DiagonalPreconditionerAdaptation(
    mcmc.PreconditionedMALA(log_prob, 0.2, **axis), 15, **pool
  )
  return [
    tfp.mcmc.DualAveragingStepSizeAdaptation(
      diagonal, 20, target_accept_prob=0.574, **pool_step_size
    ),
    mcmc.FisherAdaptiveMALA(log_prob, 0.05, 15, 3, **axis),
    mcmc.FisherDivergenceMALA(log_prob, 0.05, 15, **axis),
  ]

SEED = tf.constant([3, -4])
for kernel, spread_kernel in zip(adapting(), adapting(spread=True)):
  one, one_results = tf.function(functools.partial(steps, kernel, 20))(
    start(), SEED
  )
  # Replicas cannot wait for each other inside of a loop: the loop is outside.
  @tf.function
  def run(state, seed):
    results = strategy.run(spread_kernel.bootstrap_results, (state,))
    def body(i, state, results):
      step_seed = tf.random.fold_in(seed, i, alg='philox')
      return i + 1, *strategy.run(
        spread_kernel.one_step, (state, results), dict(seed=step_seed)
      )
    return tf.while_loop(lambda i, *_: i < 20, body, (0, state, results))[1:]
  two, results = run(spread(start()), SEED)
  for a, b in zip(one, joined(two)):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)

  def learned(results):
    if hasattr(results, 'factor'):
      return [results.factor]
    inner = results.inner_results.inner_results
    return [results.new_step_size, *inner.accepted_results.preconditioner]
  first, second = local(learned(results))
  tf.nest.map_structure(np.testing.assert_array_equal, first, second)
  for a, b in zip(learned(one_results), first):
    np.testing.assert_allclose(a, b, rtol=1e-4)
print('agrees')
"""


@pytest.mark.parametrize('program', [_NOTHING_POOLED, _POOLED])
def test_two_devices(program, tmp_path):
  program = fresh_process.start(_SETUP + program, tmp_path / 'said')
  status, said = program.end()
  assert status == 0 and 'agrees' in said, said[-4000:]
