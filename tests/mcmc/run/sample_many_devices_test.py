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
from tfp_diag import mcmc
from tfp_diag.mcmc.run.replicas import ReplicatedBlock

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(
  cpu, 2 * [tf.config.LogicalDeviceConfiguration()]
)
strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])

def log_prob(u, w):
  return -tf.reduce_sum(tf.cosh(u), -1) - (w - tf.reduce_sum(u, -1)) ** 2

START = [
  np.random.default_rng(0).normal(size=[6, 3]).astype(np.float32),
  np.linspace(-1.0, 1.0, 6).astype(np.float32),
]

def mala(**kwargs):
  axis = dict(experimental_chain_axis_names='chains')
  return mcmc.PreconditionedMALA(log_prob, 0.5, **{**axis, **kwargs})

def sample(kernel, num_results=12, start=START, **kwargs):
  settings = dict(
    num_burnin_steps=3, block_size=5, seed=1, jit_compile=False
  )
  return mcmc.sample(kernel, start, num_results, **{**settings, **kwargs})

def compare(one, two, check=np.testing.assert_array_equal):
  tf.nest.map_structure(check, one._asdict(), two._asdict())

def close(one, two):
  if isinstance(one, str):
    assert one == two
  else:
    np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)

def refused(words, kernel, **kwargs):
  try:
    sample(kernel, strategy=strategy, **kwargs)
  except ValueError as e:
    assert words in str(e), e
  else:
    raise AssertionError(words)
"""

_SAME_DRAWS = """
import tempfile
calls = []
make_block = ReplicatedBlock.__call__
def counted(block, *args):
  made = make_block(block, *args)
  calls.append(block.num_traces)
  return made
ReplicatedBlock.__call__ = counted

for jit_compile in (True, False):
  one = sample(mala(), jit_compile=jit_compile)
  two = sample(mala(), jit_compile=jit_compile, strategy=strategy)
  compare(one, two)
  # Once for each device.
  assert calls == 3 * [2], calls
  calls.clear()
assert one.trace['is_accepted'].shape == (12, 6)
assert 0 < np.mean(one.trace['is_accepted']) < 1

# A run moves from one device to two, and back.
with tempfile.TemporaryDirectory() as path:
  for num_results, devices in ((4, None), (8, strategy), (12, None)):
    moved = sample(
      mala(), num_results, strategy=devices, checkpoint=path, resume=True
    )
  compare(one, moved)

constrained = tfp.mcmc.TransformedTransitionKernel(
  mala(), [tfp.bijectors.Exp(), tfp.bijectors.Identity()]
)
start = [np.exp(START[0]), START[1]]
# The last bit of an exponential depends on how many of them there are.
compare(
  sample(constrained, start=start),
  sample(constrained, start=start, strategy=strategy),
  close,
)
print('agrees')
"""

_POOLED = """
pool = dict(experimental_reduce_chain_axis_names='chains')
def step_size_adapted(kernel, **kwargs):
  return tfp.mcmc.DualAveragingStepSizeAdaptation(
    kernel, 10, target_accept_prob=0.574, **kwargs
  )
gather = functools.partial(
  tfp.math.reduce_logmeanexp, experimental_allow_all_gather=True
)
pairs = [
  (
    step_size_adapted(mcmc.DiagonalPreconditionerAdaptation(mala(), 8)),
    step_size_adapted(
      mcmc.DiagonalPreconditionerAdaptation(mala(), 8, **pool),
      reduce_fn=gather,
      **pool,
    ),
  ),
  (
    mcmc.FisherAdaptiveMALA(log_prob, 0.05, 10, 3),
    mcmc.FisherAdaptiveMALA(
      log_prob, 0.05, 10, 3, experimental_chain_axis_names='chains'
    ),
  ),
]
for alone, pooled in pairs:
  one = sample(alone)
  # XLA cannot: it is left out, whatever is asked.
  two = sample(pooled, strategy=strategy, jit_compile=True)
  assert one.trace['tune'].any() and not one.trace['tune'].all()
  # The sums over all chains are rounded in another order.
  compare(one, two, close)

# A strategy of one device has types of its own.
alone = tf.distribute.MirroredStrategy(['CPU:0'])
for kernel in (mala(), pairs[1][1]):
  one = sample(kernel)
  compare(one, sample(kernel, strategy=alone))

class Elsewhere(tf.distribute.Strategy):
  def __init__(self):
    pass

  num_replicas_in_sync = 3
  experimental_local_results = strategy.experimental_local_results
  experimental_distribute_values_from_function = (
    strategy.experimental_distribute_values_from_function
  )

try:
  sample(mala(), strategy=Elsewhere())
except ValueError as e:
  assert '3 devices, but 2 of them are on this machine' in str(e), e
else:
  raise AssertionError

refused('would get the same noise', mala(experimental_chain_axis_names=None))
hmc = tfp.mcmc.HamiltonianMonteCarlo(log_prob, 0.1, 2)
refused('HamiltonianMonteCarlo would get the same noise', hmc)

class Still(tfp.mcmc.TransitionKernel):  # Without parameters.
  is_calibrated = True

  def bootstrap_results(self, init_state):
    return []

  def one_step(self, current_state, previous_kernel_results, seed=None):
    return current_state, previous_kernel_results

refused('Still would get the same noise', Still())
# Its uniform numbers are TFP's.
metropolis = tfp.mcmc.MetropolisHastings(
  mcmc.UncalibratedPreconditionedLangevin(
    log_prob, 0.5, experimental_chain_axis_names='chains'
  )
)
refused('MetropolisHastings would get the same noise', metropolis)
refused(
  'DualAveragingStepSizeAdaptation would learn',
  tfp.mcmc.DualAveragingStepSizeAdaptation(mala(), 10),
)
refused(
  'Part 0 of `current_state` has shape [5, 3]',
  mala(),
  start=[START[0][:5], START[1][:5]],
)
refused(
  "The entry 'x' of `trace_fn` has shape [3, 6] for all chains, but [3, 3]",
  mala(),
  trace_fn=lambda s, _: {'w': s[1], 'x': tf.transpose(s[0])},
)
print('agrees')
"""

_WINDOWED = """
def windowed(preconditioner, **kwargs):
  return mcmc.windowed_adaptive_mala(
    6, log_prob, init=START, num_adaptation_steps=20,
    preconditioner=preconditioner, seed=1, **kwargs
  )

for preconditioner in ('auto', 'full_fisher', None):
  one = windowed(preconditioner)
  two = windowed(preconditioner, strategy=strategy)
  tf.nest.map_structure(close, tuple(one), tuple(two))
  tf.nest.map_structure(close, one.final_state, two.final_state)
  assert two.trace['is_accepted'].shape == (6, 6)
print('agrees')
"""


@pytest.mark.parametrize('program', [_SAME_DRAWS, _POOLED, _WINDOWED])
def test_two_devices(program, tmp_path):
  program = fresh_process.start(_SETUP + program, tmp_path / 'said')
  status, said = program.end()
  assert status == 0 and 'agrees' in said, said[-4000:]
