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
"""`sample` runs kernels of all makes, and says what it cannot run."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag

METROPOLIS = {
  'target_log_prob',
  'is_accepted',
  'log_accept_ratio',
  'accept_ratio',
  'diverging',
}


def log_prob(x):
  return -0.5 * tf.reduce_sum(x**2, -1)


def sample(kernel, num_results=6, num_chains=3, **kwargs):
  start = tf.ones([num_chains, 2])
  settings = dict(seed=1, jit_compile=False, block_size=4)
  return tfp_diag.mcmc.sample(
    kernel, start, num_results, **{**settings, **kwargs}
  )


def hmc():
  return tfp.mcmc.HamiltonianMonteCarlo(
    log_prob, step_size=0.5, num_leapfrog_steps=2
  )


def mala():
  return tfp_diag.mcmc.PreconditionedMALA(log_prob, step_size=0.5)


KERNELS = {
  'random_walk': (lambda: tfp.mcmc.RandomWalkMetropolis(log_prob), METROPOLIS),
  # Which keeps its step size to itself.
  'hmc': (hmc, METROPOLIS),
  'nuts': (
    lambda: tfp.mcmc.NoUTurnSampler(log_prob, 0.5, max_tree_depth=2),
    {*METROPOLIS, 'step_size', 'n_steps', 'reached_max_treedepth', 'energy'},
  ),
  'transformed_and_adapted': (
    lambda: tfp.mcmc.SimpleStepSizeAdaptation(
      tfp.mcmc.TransformedTransitionKernel(hmc(), tfp.bijectors.Softplus()),
      num_adaptation_steps=4,
    ),
    {*METROPOLIS, 'step_size', 'tune'},
  ),
  'scale_and_step_size': (
    lambda: tfp.mcmc.DualAveragingStepSizeAdaptation(
      tfp_diag.mcmc.DiagonalPreconditionerAdaptation(
        mala(), num_adaptation_steps=4
      ),
      num_adaptation_steps=3,
    ),
    {*METROPOLIS, 'step_size', 'tune'},
  ),
  'fisher': (
    lambda: tfp_diag.mcmc.FisherAdaptiveMALA(
      log_prob, 0.5, num_adaptation_steps=4, num_step_size_steps=2
    ),
    {*METROPOLIS, 'step_size', 'tune'},
  ),
  'replica_exchange': (
    lambda: tfp.mcmc.ReplicaExchangeMC(
      log_prob,
      tf.constant([1.0, 0.5]),
      lambda fn: tfp.mcmc.RandomWalkMetropolis(fn),
    ),
    METROPOLIS,
  ),
}


@pytest.mark.parametrize('name', list(KERNELS))
def test_kernels_run_and_record_what_they_have(name):
  make, recorded = KERNELS[name]
  found = sample(make())
  assert set(found.trace) == recorded
  assert found.draws.shape == (6, 3, 2)
  assert np.all(np.isfinite(found.draws))
  assert np.all(found.draws[0] != found.draws[-1])
  assert all(len(traced) == 6 for traced in found.trace.values())
  if name == 'replica_exchange':
    # Of the first replica, after it was exchanged.
    np.testing.assert_allclose(
      found.trace['target_log_prob'], log_prob(found.draws), rtol=1e-5
    )
  elif 'is_accepted' in recorded and name != 'nuts':
    moved = np.any(np.diff(found.draws, axis=0) != 0, axis=-1)
    np.testing.assert_array_equal(found.trace['is_accepted'][1:], moved)
  if 'tune' in recorded:
    # Of two adapters, the one that goes on for longer counts.
    assert found.trace['tune'].tolist() == [True] * 4 + [False] * 2
  if 'accept_ratio' in recorded:
    np.testing.assert_allclose(
      found.trace['accept_ratio'],
      np.exp(np.minimum(found.trace['log_accept_ratio'], 0)),
      rtol=1e-5,
    )


def test_results_of_another_state_or_target_are_refused():
  first = sample(mala())
  before = dict(
    previous_kernel_results=first.final_kernel_results, jit_compile=False
  )
  with pytest.raises(
    ValueError, match=r'`previous_kernel_results` is of another state or tar'
  ):
    sample(mala(), **before)
  with pytest.raises(ValueError, match=r'of the shape \[3\], .* have \[4\]'):
    sample(mala(), num_chains=4, **before)

  def goes_on(log_prob):
    kernel = tfp_diag.mcmc.PreconditionedMALA(log_prob, step_size=0.5)
    return tfp_diag.mcmc.sample(kernel, first.final_state, 2, **before)

  with pytest.raises(ValueError, match=r'but at the start it is 4\d\.'):
    goes_on(lambda x: log_prob(x) + 50.0)
  goes_on(log_prob)
  # Log densities that are random, as estimates are.
  goes_on(lambda x: log_prob(x) + tf.random.normal([3], 0.0, 9.0))


def test_replicas_of_another_state_are_refused():
  """They hold the states, and the one that is given would not count."""
  kernel = tfp.mcmc.ReplicaExchangeMC(
    log_prob,
    tf.constant([1.0, 0.3]),
    lambda fn: tfp_diag.mcmc.PreconditionedMALA(fn, step_size=0.3),
  )

  def go_on(state, **before):
    return tfp_diag.mcmc.sample(kernel, state, 4, jit_compile=False, **before)

  first = go_on(tf.zeros([3, 2]))
  before = dict(previous_kernel_results=first.final_kernel_results)
  assert np.all(np.isfinite(go_on(first.final_state, **before).draws))
  with pytest.raises(ValueError, match='states of the replicas, and that of'):
    go_on(tf.fill([3, 2], 50.0), **before)


def test_each_part_may_have_a_step_size():
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    lambda x, y: log_prob(x) - y**2, step_size=[0.5, 0.25]
  )
  found = tfp_diag.mcmc.sample(
    kernel, [tf.ones([3, 2]), tf.ones([3])], 4, seed=1, jit_compile=False
  )
  assert [part.shape for part in found.draws] == [(4, 3, 2), (4, 3)]
  assert found.trace['step_size_0'].tolist() == [0.5] * 4
  assert found.trace['step_size_1'].tolist() == [0.25] * 4


def test_what_is_not_a_number_is_a_divergence_and_rejected():
  # From 0 the chain never gets beyond 1, where there is no density.
  def half(x):
    return tf.where(x[..., 0] < 1.0, log_prob(x), np.nan)

  kernel = tfp_diag.mcmc.PreconditionedMALA(half, step_size=2.0)
  found = tfp_diag.mcmc.sample(
    kernel, tf.zeros([50, 2]), 20, seed=1, jit_compile=False
  )
  diverging = found.trace['diverging']
  assert 0 < diverging.mean() < 1
  assert not np.any(diverging & found.trace['is_accepted'])
  assert np.all(found.trace['accept_ratio'][diverging] == 0)
  assert np.max(found.draws[..., 0]) < 1


def test_a_single_chain_has_no_axis():
  found = tfp_diag.mcmc.sample(
    mala(), np.zeros([2], np.float32), 5, jit_compile=False, progress_bar=True
  )
  assert found.draws.shape == (5, 2)
  assert found.trace['is_accepted'].shape == (5,)


def test_the_start_check_names_the_chain():
  start = np.zeros([4, 2], np.float32)
  start[2, 1] = np.nan
  with pytest.raises(ValueError, match=r'nan in 1 of 4 chains.*index \[2\]'):
    tfp_diag.mcmc.sample(mala(), start, 5)


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16], ids=str)
def test_half_precision_is_refused(dtype):
  with pytest.raises(ValueError, match=r'Part 0 .*float16, .*tf\.cast'):
    tfp_diag.mcmc.sample(mala(), tf.zeros([3, 2], dtype), 5)


def test_a_state_without_parts_is_refused():
  with pytest.raises(ValueError, match='has no parts'):
    tfp_diag.mcmc.sample(mala(), [], 5)


def test_a_kernel_that_is_not_calibrated_is_named():
  kernel = tfp_diag.mcmc.UncalibratedPreconditionedLangevin(log_prob, 0.1)
  with pytest.warns(UserWarning, match='PreconditionedLangevin is not calib'):
    sample(kernel)


def test_graphs_are_refused():
  with pytest.raises(RuntimeError, match='cannot be part of'):
    tf.function(lambda: sample(mala()), autograph=False)()


@pytest.mark.parametrize('jit_compile', [False, True])
def test_a_tape_of_the_caller_records_no_steps(jit_compile):
  """Monte Carlo EM: the draws are constants of the loss."""
  scale = tf.Variable(2.0)

  def target(x):
    return -0.5 * scale * tf.reduce_sum(x**2, -1)

  def run():
    kernel = tfp_diag.mcmc.PreconditionedMALA(target, 0.5)
    return sample(kernel, jit_compile=jit_compile)

  with tf.GradientTape() as tape:
    found = run()
    loss = tf.reduce_mean(target(found.final_state))
  np.testing.assert_array_equal(found.draws, run().draws)
  np.testing.assert_allclose(
    tape.gradient(loss, scale), loss / scale, rtol=1e-5
  )


def test_what_xla_cannot_compile_is_named_with_the_way_out():
  def foreign(x):
    value = tf.numpy_function(lambda x: -np.sum(x**2, -1), [x], tf.float32)
    return tf.ensure_shape(value, x.shape[:-1])

  kernel = tfp.mcmc.RandomWalkMetropolis(foreign)
  with pytest.raises(ValueError, match=r'PyFunc.*Pass `jit_compile=False`'):
    sample(kernel, jit_compile=True)
  assert sample(kernel).num_results == 6


def test_what_cannot_be_recorded_is_named():
  with pytest.raises(TypeError, match='`trace_fn` returned is <object'):
    sample(mala(), trace_fn=lambda *_: object())


def test_a_trace_of_none_and_of_nothing():
  with pytest.raises(TypeError, match=r'^`trace_fn` returned None.*`\{\}` rec'):
    sample(mala(), trace_fn=lambda *_: None)
  with pytest.raises(TypeError, match=r"^`trace_fn` returned None as 'a\.b'"):
    sample(mala(), trace_fn=lambda state, _: {'a': {'b': None, 'c': state}})
  assert sample(mala(), trace_fn=lambda *_: {}).trace == {}


def test_texts_are_recorded_without_xla():
  """It has none, and the target is not to blame."""

  def trace_fn(state, _):
    return {'step': tf.constant('of MALA'), 'state': state}

  with pytest.raises(ValueError) as error:
    sample(mala(), trace_fn=trace_fn, jit_compile=True)
  said = str(error.value)
  assert said.startswith("`trace_fn` returned dtype string as 'step', ")
  assert '`jit_compile=False`' in said and 'target' not in said
  with pytest.raises(ValueError, match=r'^`trace_fn` returned dtype string, '):
    sample(mala(), trace_fn=lambda *_: 'of MALA', jit_compile=True)
  assert sample(mala(), trace_fn=trace_fn).trace['step'][-1] == b'of MALA'


def test_a_trace_without_numbers_is_refused():
  dataset = tf.data.experimental.to_variant(tf.data.Dataset.range(3))
  with pytest.raises(ValueError, match=r'^`trace_fn` returned dtype variant'):
    sample(mala(), trace_fn=lambda *_: dataset)
