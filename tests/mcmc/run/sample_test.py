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
"""`sample` against a plain loop over the steps of a kernel."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc.run.sampling_run import SamplingRun
from tfp_diag.mcmc.run.schedule import Schedule

SCALES = np.array([0.5, 1.0, 2.0], np.float32)


def log_prob(x):
  return -0.5 * tf.reduce_sum(
    (x / SCALES.astype(x.dtype.as_numpy_dtype)) ** 2, -1
  )


def mala(**kwargs):
  return tfp_diag.mcmc.PreconditionedMALA(log_prob, step_size=0.8, **kwargs)


def start(num_chains=4, dtype=np.float32):
  return np.linspace(-1.0, 1.0, 3 * num_chains).reshape(-1, 3).astype(dtype)


def loop(kernel, state, num_steps, seed):
  """All states, by eager steps with the seeds that `sample` documents."""
  results = kernel.bootstrap_results(state)
  states = []
  for step in range(num_steps):
    step_seed = tf.random.fold_in(seed, step, alg='philox')
    state, results = kernel.one_step(state, results, seed=step_seed)
    states.append(state.numpy())
  return np.stack(states), results


class Walk(tfp.mcmc.TransitionKernel):
  """A random walk, which takes no time to trace."""

  is_calibrated = True

  def bootstrap_results(self, state):
    return {'num_steps': tf.constant(0)}

  def one_step(self, state, results, seed=None):
    noise = tf.random.stateless_normal(state.shape, seed)
    return state + noise, {'num_steps': results['num_steps'] + 1}


def adapted():
  return tfp.mcmc.DualAveragingStepSizeAdaptation(
    mala(), num_adaptation_steps=12, target_accept_prob=0.574
  )


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_draws_are_those_of_a_loop(dtype):
  found = tfp_diag.mcmc.sample(
    adapted(), start(dtype=dtype), 25, seed=(3, 4), jit_compile=False
  )
  states, results = loop(adapted(), tf.constant(start(dtype=dtype)), 25, (3, 4))
  assert found.draws.dtype == dtype
  np.testing.assert_allclose(found.draws, states, rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(found.final_state, found.draws[-1])
  np.testing.assert_allclose(
    found.final_kernel_results.new_step_size, results.new_step_size, rtol=1e-4
  )
  assert found.num_results == 25
  assert found.stopped_by == 'finished'


def test_no_bit_depends_on_blocks_burnin_or_thinning():
  all_steps = tfp_diag.mcmc.sample(
    adapted(), start(), 40, seed=5, jit_compile=False
  )
  for block_size in (1, 7, 1000):
    some = tfp_diag.mcmc.sample(
      adapted(),
      start(),
      10,
      num_burnin_steps=11,
      num_steps_between_results=2,
      block_size=block_size,
      seed=5,
      jit_compile=False,
    )
    np.testing.assert_array_equal(some.draws, all_steps.draws[11:40:3])
    assert set(some.trace) == set(all_steps.trace)
    for name, traced in some.trace.items():
      np.testing.assert_array_equal(traced, all_steps.trace[name][11:40:3])
    np.testing.assert_array_equal(some.final_state, all_steps.draws[38])


def test_xla_has_the_same_draws_whatever_the_block_size():
  plain = tfp_diag.mcmc.sample(mala(), start(), 12, seed=5, jit_compile=False)
  compiled = tfp_diag.mcmc.sample(mala(), start(), 12, seed=5)
  in_blocks = tfp_diag.mcmc.sample(mala(), start(), 12, seed=5, block_size=5)
  np.testing.assert_array_equal(compiled.draws, in_blocks.draws)
  np.testing.assert_allclose(compiled.draws, plain.draws, rtol=1e-4, atol=1e-5)


def test_other_seeds_have_other_draws():
  def draws(seed):
    return tfp_diag.mcmc.sample(
      Walk(), start(), 3, seed=seed, jit_compile=False
    ).draws

  np.testing.assert_array_equal(draws(7), draws(7))
  np.testing.assert_array_equal(draws(7), draws((7, 0)))
  assert np.all(draws(7)[-1] != draws(7 + 2**32)[-1])
  assert np.all(draws(-1)[-1] != draws(1)[-1])
  assert np.all(draws(None)[-1] != draws(None)[-1])


def make_run(kernel, num_results, block_size, jit_compile):
  return SamplingRun(
    kernel,
    tf.constant(start()),
    Schedule(num_results, 5, 1, block_size),
    previous_kernel_results=None,
    trace_fn=None,
    seed=tf.constant([0, 1]),
    checkpoint=None,
    resume=False,
    jit_compile=jit_compile,
    strategy=None,
    name='mcmc_sample',
  )


@pytest.mark.parametrize('jit_compile', [False, True])
def test_one_trace_serves_burnin_blocks_and_the_short_last_one(jit_compile):
  run = make_run(mala(), 10, block_size=4, jit_compile=jit_compile)
  num_blocks = 0
  while not run.is_finished:
    run.make_block()
    num_blocks += 1
  assert (num_blocks, run.num_traces) == (6, 1)


def test_moments_of_the_target():
  draws = tfp_diag.mcmc.sample(
    mala(), np.zeros([200, 3]), 300, num_burnin_steps=30, seed=1
  ).draws
  # 200 chains are independent: their averages give the errors. Six standard
  # errors are exceeded once in 10⁸ runs.
  for power, moment in ((1, np.zeros(3)), (2, SCALES**2)):
    chains = np.mean(draws**power, axis=0)
    error = np.std(chains, axis=0) / np.sqrt(200)
    assert np.all(np.abs(np.mean(chains, axis=0) - moment) < 6 * error)
    # A target that is off by two tenths would be noticed.
    assert np.all(error[power - 1 :] < 0.2 * SCALES[power - 1 :] ** power / 6)


def test_structures_come_back():
  Point = collections.namedtuple('Point', ['a', 'b'])

  class Drift(tfp.mcmc.TransitionKernel):
    """Counts, in a state of any structure."""

    is_calibrated = True

    def bootstrap_results(self, state):
      return {'n': tf.constant(0)}

    def one_step(self, state, results, seed=None):
      return (
        Point(state.a + 1, {'c': state.b['c'] * 2.0}),
        {'n': results['n'] + 1},
      )

  found = tfp_diag.mcmc.sample(
    Drift(),
    Point(3, {'c': np.float32([1.0, 0.5])}),
    3,
    jit_compile=False,
    trace_fn=lambda state, results: (state.a - 3, [results['n']]),
  )
  np.testing.assert_array_equal(found.draws.a, [4, 5, 6])
  np.testing.assert_array_equal(found.draws.b['c'], [[2, 1], [4, 2], [8, 4]])
  np.testing.assert_array_equal(found.trace[0], [1, 2, 3])
  np.testing.assert_array_equal(found.trace[1][0], [1, 2, 3])
  assert found.final_state.a == 6
  assert found.final_kernel_results['n'] == 3


def test_a_second_call_continues_with_the_results_of_the_first():
  first = tfp_diag.mcmc.sample(adapted(), start(), 5, seed=1, jit_compile=False)
  second = tfp_diag.mcmc.sample(
    adapted(),
    first.final_state,
    9,
    previous_kernel_results=first.final_kernel_results,
    seed=2,
    jit_compile=False,
  )
  # Adaptation ends after 12 steps, 5 of them of the first call.
  assert second.trace['tune'].tolist() == [True] * 7 + [False] * 2
  assert second.final_kernel_results.step == 14


def test_no_results_make_the_burnin_alone():
  found = tfp_diag.mcmc.sample(
    mala(), start(), 0, num_burnin_steps=6, seed=1, jit_compile=False
  )
  six = tfp_diag.mcmc.sample(mala(), start(), 6, seed=1, jit_compile=False)
  assert found.draws.shape == (0, 4, 3)
  assert found.trace['is_accepted'].shape == (0, 4)
  assert (found.num_results, found.stopped_by) == (0, 'finished')
  np.testing.assert_array_equal(found.final_state, six.final_state)


def test_nothing_at_all():
  found = tfp_diag.mcmc.sample(mala(), start(), 0, jit_compile=False)
  np.testing.assert_array_equal(found.final_state, start())


def test_a_block_leaves_nothing_as_it_is(monkeypatch):
  """XLA may take what a loop leaves alone for a constant of its compilation."""
  left_alone = []
  while_loop = tf.while_loop

  def spy(test, body, loop_vars, **kwargs):
    def watched(*before):
      after = body(*before)
      pairs = zip(tf.nest.flatten(before), tf.nest.flatten(after))
      left_alone.append([b is a for b, a in pairs])
      return after

    return while_loop(test, watched, loop_vars, **kwargs)

  monkeypatch.setattr(tf, 'while_loop', spy)
  # Its step size goes through every step as it is.
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    lambda x: -0.5 * tf.reduce_sum(tf.square(x), -1), step_size=0.7
  )
  found = tfp_diag.mcmc.sample(kernel, tf.zeros([4, 2]), 20, seed=1)
  assert len(left_alone) == 1
  assert not any(left_alone[0])
  np.testing.assert_allclose(found.trace['step_size'], 0.7)
