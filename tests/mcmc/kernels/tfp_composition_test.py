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
"""The kernels inside TFP's drivers, adapters and wrappers, unmodified."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.examples import gaussian, targets
from tfp_diag.mcmc import (
  PreconditionedMALA,
  UncalibratedPreconditionedLangevin,
)

tfd = tfp.distributions
tfb = tfp.bijectors

_TARGET = gaussian.three_dimensional()
_SDS = np.sqrt([1.0, 2.0, 3.0])
_ACCEPTANCE = 0.574


def _volatility(x):
  return tf.constant(_SDS, x.dtype) * (0.8 + 0.3 * tf.tanh(x) ** 2)


_KINDS = {
  'scale': {'preconditioner': _SDS.astype(np.float32)},
  'volatility': {'volatility_fn': _volatility},
}
_ADAPTERS = {
  'dual averaging': tfp.mcmc.DualAveragingStepSizeAdaptation,
  'simple': tfp.mcmc.SimpleStepSizeAdaptation,
}


def _exact_start(num_chains):
  cholesky = np.linalg.cholesky(_TARGET.covariance())
  noise = np.random.default_rng(2).normal(size=[num_chains, 3])
  return tf.constant(noise @ cholesky.T, tf.float32)


# What an adapter reads and sets is the same for both kinds.
@pytest.mark.parametrize(
  'kind, adapter', [('scale', 'dual averaging'), ('volatility', 'simple')]
)
def test_adapters_reach_the_acceptance_they_are_asked_for(kind, adapter):
  # 64 chains × 300 steps: the standard error of the mean is below 0.01.
  kernel = _ADAPTERS[adapter](
    PreconditionedMALA(_TARGET.log_prob, 0.2, **_KINDS[kind]),
    num_adaptation_steps=300,
    target_accept_prob=_ACCEPTANCE,
  )

  @tf.function(jit_compile=kind == 'scale')
  def run(state):
    return tfp.mcmc.sample_chain(
      300,
      state,
      kernel=kernel,
      num_burnin_steps=300,
      trace_fn=lambda _, r: (
        r.inner_results.log_accept_ratio,
        r.inner_results.accepted_results.step_size,
      ),
      seed=(1, 2),
    )

  draws, (log_ratio, step_size) = run(_exact_start(64))
  acceptance = np.exp(np.minimum(log_ratio, 0.0)).mean()
  # The simple adapter drives the mean log, not the mean, towards its goal.
  tolerance = 0.03 if adapter == 'dual averaging' else 0.1
  np.testing.assert_allclose(acceptance, _ACCEPTANCE, atol=tolerance)
  assert np.all(step_size == step_size[0]), 'frozen after adaptation'
  assert step_size[0] > 0.3
  np.testing.assert_allclose(np.std(draws, (0, 1)), _SDS, rtol=0.1)


def test_adapts_one_step_size_per_chain_and_per_part():
  # Chain 1 needs a hundredth of the step size of chain 0.
  widths = tf.constant([[1.0], [0.1]])

  def log_prob(x, w):
    return -0.5 * tf.reduce_sum((x / widths) ** 2, -1) - 0.5 * w**2

  kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
    PreconditionedMALA(log_prob, [tf.fill([2, 1], 0.1), tf.fill([2], 0.1)]),
    num_adaptation_steps=300,
    target_accept_prob=_ACCEPTANCE,
  )

  @tf.function
  def run():
    return tfp.mcmc.sample_chain(
      1,
      [tf.zeros([2, 4]), tf.zeros([2])],
      kernel=kernel,
      num_burnin_steps=300,
      trace_fn=lambda _, r: r.inner_results.accepted_results.step_size,
      seed=(1, 2),
    )[1]

  per_chain, per_chain_of_scalar = run()
  assert per_chain.shape == [1, 2, 1]
  assert per_chain_of_scalar.shape == [1, 2]
  ratio = per_chain[0, 0, 0] / per_chain[0, 1, 0]
  assert 30.0 < ratio < 300.0


def test_transformed_kernel_samples_a_constrained_target():
  # Gamma(3, 2) through exp, from exact draws: 4,000 chains, each moved by 20
  # steps. False alarms: 1e-6.
  gamma = tfd.Gamma(tf.constant(3.0), 2.0)
  inner = PreconditionedMALA(
    gamma.log_prob,
    0.8,
    volatility_fn=lambda z: 0.6 + 0.2 * tf.tanh(z),
  )
  kernel = tfp.mcmc.TransformedTransitionKernel(inner, tfb.Exp())
  start = np.random.default_rng(0).gamma(3.0, 0.5, size=[4000])

  @tf.function
  def run(state):
    return tfp.mcmc.sample_chain(
      1,
      state,
      kernel=kernel,
      num_burnin_steps=20,
      trace_fn=lambda _, r: r.inner_results.is_accepted,
      seed=(1, 2),
    )

  draws, is_accepted = run(tf.constant(start, tf.float32))
  assert 0.3 < np.mean(is_accepted) < 0.95
  test = scipy.stats.kstest(draws[0], scipy.stats.gamma(3.0, scale=0.5).cdf)
  assert test.pvalue > 1e-6


@pytest.mark.parametrize('wrap_first', [True, False])
def test_adapter_and_transformation_in_both_orders(wrap_first):
  gamma = tfd.Gamma(tf.constant(3.0), 2.0)
  kernel = PreconditionedMALA(gamma.log_prob, 0.1)
  wrappers = [
    lambda k: tfp.mcmc.TransformedTransitionKernel(k, tfb.Exp()),
    lambda k: tfp.mcmc.DualAveragingStepSizeAdaptation(
      k, 20, target_accept_prob=_ACCEPTANCE
    ),
  ]
  for wrap in wrappers if wrap_first else wrappers[::-1]:
    kernel = wrap(kernel)
  draws = tf.function(
    lambda: tfp.mcmc.sample_chain(
      5, tf.ones([4]), kernel=kernel, num_burnin_steps=20, trace_fn=None, seed=1
    )
  )()
  assert np.all(draws > 0.0)


@pytest.mark.parametrize('kind', _KINDS)
def test_replica_exchange_keeps_cache_and_state_together(kind):
  """After a swap, what is cached must be that of the state that moved in."""
  step_sizes = np.array([0.5, 1.0, 2.0], np.float32).reshape(3, 1, 1)

  def make_kernel(log_prob):
    return PreconditionedMALA(log_prob, step_sizes, **_KINDS[kind])

  kernel = tfp.mcmc.ReplicaExchangeMC(
    _TARGET.log_prob,
    inverse_temperatures=tf.constant([1.0, 0.5, 0.2]),
    make_kernel_fn=make_kernel,
  )

  @tf.function
  def run(state):
    results = kernel.bootstrap_results(state)
    num_swaps = 0
    for i in tf.range(200):
      state, results = kernel.one_step(state, results, seed=tf.stack([i, 1]))
      num_swaps += tf.reduce_sum(
        tf.cast(results.is_swap_accepted_adjacent, tf.int32)
      )
    replicas = results.post_swap_replica_states

    def tempered(x):
      return _TARGET.log_prob(x) * tf.constant([[1.0], [0.5], [0.2]])

    fresh = make_kernel(tempered).bootstrap_results(replicas)
    cached = results.post_swap_replica_results.accepted_results
    return (
      state,
      num_swaps,
      [
        (r.target_log_prob, r.grads_target_log_prob)
        for r in (cached, fresh.accepted_results)
      ],
    )

  # 1000 chains: the standard error of a variance is below 5 per cent.
  draws, num_swaps, (cached, fresh) = run(_exact_start(1000))
  assert num_swaps > 1000
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    cached,
    fresh,
  )
  np.testing.assert_allclose(
    np.cov(draws, rowvar=False), _TARGET.covariance(), atol=0.6
  )


@pytest.mark.parametrize('kind', _KINDS)
def test_experimental_sample_chain(kind):
  kernel = PreconditionedMALA(_TARGET.log_prob, 0.8, **_KINDS[kind])

  @tf.function
  def run(state):
    return tfp.experimental.mcmc.sample_chain(
      kernel=kernel,
      num_results=20,
      current_state=state,
      trace_fn=lambda state, results: (state, results.is_accepted),
      seed=(1, 2),
    ).trace

  draws, is_accepted = run(_exact_start(16))
  assert draws.shape == [20, 16, 3]
  assert 0.2 < np.mean(is_accepted) < 0.98


def test_proposal_inside_tfps_metropolis_hastings():
  # The same transition law by another accept step: 20 steps from exact draws.
  kernel = tfp.mcmc.MetropolisHastings(
    UncalibratedPreconditionedLangevin(
      _TARGET.log_prob, 1.0, volatility_fn=_volatility
    )
  )
  draws, is_accepted = tf.function(
    lambda state: tfp.mcmc.sample_chain(
      20,
      state,
      kernel=kernel,
      trace_fn=lambda _, r: r.is_accepted,
      seed=(1, 2),
    )
  )(_exact_start(4000))
  assert 0.2 < np.mean(is_accepted) < 0.9
  for column, sd in zip(np.transpose(draws[-1]), _SDS):
    assert scipy.stats.kstest(column / sd, 'norm').pvalue > 1e-6


def test_eager_sample_chain_of_several_parts():
  target = targets.get('eight_schools')
  kernel = PreconditionedMALA(
    target.target_log_prob_fn, 0.2, [tf.constant(3.0), None, tf.ones([8])]
  )
  draws = tfp.mcmc.sample_chain(
    3, target.init(4, (0, 1)), kernel=kernel, trace_fn=None, seed=1
  )
  assert [x.shape for x in draws] == [[3, 4], [3, 4], [3, 4, 8]]


def test_target_through_a_joint_distribution():
  joint = tfd.JointDistributionSequentialAutoBatched(
    [tfd.Normal(0.0, 1.0), lambda x: tfd.Normal(x, tf.ones([3]))]
  )
  kernel = PreconditionedMALA(
    joint.log_prob, [0.3, 0.5], volatility_fn=lambda x, w: [1.0, 1.0 + w**2]
  )
  draws = tf.function(
    lambda: tfp.mcmc.sample_chain(
      3, list(joint.sample(4, seed=1)), kernel=kernel, trace_fn=None, seed=1
    )
  )()
  assert [x.shape for x in draws] == [[3, 4], [3, 4, 3]]
