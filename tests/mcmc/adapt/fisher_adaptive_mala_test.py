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
"""The Fisher adaptive kernel: what it learns, and that it stops."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import (
  FisherAdaptiveMALA,
  FisherDivergenceMALA,
  PreconditionedMALA,
)

# A rotated normal in 4 coordinates, of standard deviations 0.05 to 2.
_ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=[4, 4]))[0]
_COVARIANCE = _ROTATION @ np.diag([0.05, 0.3, 1.0, 2.0]) ** 2 @ _ROTATION.T
_PRECISION = np.linalg.inv(_COVARIANCE)


def _log_prob(u, w):
  """Over parts of event shapes [] and [3]."""
  x = tf.concat([u[..., tf.newaxis], w], -1)
  precision = tf.constant(_PRECISION, x.dtype)
  return -0.5 * tf.einsum('...i,ij,...j->...', x, precision, x)


def _state(chains, dtype=tf.float64):
  x = np.random.default_rng(4).normal(size=[*chains, 4])
  return [tf.constant(x[..., 0], dtype), tf.constant(x[..., 1:], dtype)]


def _exact(num_chains):
  x = np.random.default_rng(5).normal(size=[num_chains, 4])
  x = x @ np.linalg.cholesky(_COVARIANCE).T
  return [tf.constant(x[..., 0]), tf.constant(x[..., 1:])]


def _steps(kernel, state, num_steps, jit_compile=False):
  step = tf.function(kernel.one_step, jit_compile=jit_compile)
  results = kernel.bootstrap_results(state)
  for i in range(num_steps):
    before = results
    state, results = step(state, results, seed=tf.constant([i, 5]))
    yield before, state, results


@pytest.mark.parametrize(
  ('chains', 'jit_compile'),
  [([], False), ([3], False), ([2, 3], False), ([2, 3], True)],
)
def test_matrix_is_the_inverse_of_the_moment_of_the_signals(
  chains, jit_compile
):
  kernel = FisherAdaptiveMALA(
    _log_prob, tf.constant(0.01, tf.float64), 12, 4, damping=2.0
  )
  precision = 2.0 * np.eye(4)
  factors = []
  previous = None
  for t, (before, state, results) in enumerate(
    _steps(kernel, _state(chains), 15, jit_compile)
  ):
    tf.nest.assert_same_structure(before, results)
    assert [x.shape for x in state] == [chains, [*chains, 3]]
    if 4 <= t < 12:
      # With gradients from NumPy.
      x = np.reshape(previous, [-1, 4])
      y = np.reshape(results.inner_results.proposed_state, [-1, 4])
      ratio = np.reshape(results.inner_results.log_accept_ratio, [-1, 1])
      signals = np.sqrt(np.minimum(np.exp(ratio), 1.0)) * (x - y) @ _PRECISION
      precision += signals.T @ signals
    previous = np.concatenate([state[0][..., np.newaxis], state[1]], -1)
    factors.append(results.factor.numpy())
    np.testing.assert_allclose(
      factors[-1] @ factors[-1].T, np.linalg.inv(precision), rtol=1e-7
    )
  assert np.all(factors[11] != factors[3])
  for frozen in factors[12:]:
    np.testing.assert_array_equal(frozen, factors[11])


def test_a_frozen_matrix_is_a_constant_preconditioner():
  kernel = FisherAdaptiveMALA(_log_prob, tf.constant(0.01, tf.float64), 10, 0)
  *_, (_, state, results) = _steps(kernel, _state([5]), 11)
  actual, actual_results = kernel.one_step(state, results, seed=(7, 8))
  factor = results.factor.numpy()
  factor /= np.sqrt(np.trace(factor @ factor.T) / 4)
  plain = PreconditionedMALA(
    lambda x: _log_prob(x[..., 0], x[..., 1:]),
    tf.constant(0.01, tf.float64),
    tf.linalg.LinearOperatorFullMatrix(factor),
  )
  x = tf.concat([state[0][:, tf.newaxis], state[1]], -1)
  expected, expected_results = plain.one_step(
    x, plain.bootstrap_results(x), seed=(7, 8)
  )
  np.testing.assert_allclose(
    np.column_stack(actual), expected, rtol=1e-9, atol=1e-12
  )
  np.testing.assert_allclose(
    actual_results.inner_results.log_accept_ratio,
    expected_results.log_accept_ratio,
    rtol=1e-7,
    atol=1e-9,
  )


def _run(kernel, jit_compile=False):
  kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
    kernel,
    num_adaptation_steps=600,
    target_accept_prob=tf.constant(0.574, tf.float64),
    decay_rate=tf.constant(0.6, tf.float64),
  )

  def trace(_, results):
    inner = results.inner_results
    if hasattr(inner, 'factor'):
      return inner.factor, inner.inner_results.log_accept_ratio
    return tf.zeros([]), inner.log_accept_ratio

  @tf.function(jit_compile=jit_compile)
  def run():
    return tfp.mcmc.sample_chain(
      400,
      _exact(16),
      kernel=kernel,
      num_burnin_steps=600,
      trace_fn=trace,
      seed=(1, 2),
    )

  draws, (factor, log_ratio) = run()
  x = np.concatenate([draws[0][..., np.newaxis], draws[1]], -1)
  # Along the axes of the normal, in its standard deviations.
  z = x @ _ROTATION / [0.05, 0.3, 1.0, 2.0]
  autocorrelation = np.mean(z[10:] * z[:-10], (0, 1))
  acceptance = np.exp(np.minimum(log_ratio, 0.0)).mean()
  return z, factor, acceptance, autocorrelation


def test_learns_a_rotated_normal():
  """False alarms: 1e-6. The control cannot move in the long directions."""
  step_size = tf.constant(0.001, tf.float64)
  z, factor, acceptance, autocorrelation = _run(
    FisherAdaptiveMALA(_log_prob, step_size, 500, 100)
  )
  np.testing.assert_allclose(acceptance, 0.574, atol=0.03)
  learned = factor[-1].numpy() @ factor[-1].numpy().T
  ratio = np.diag(_ROTATION.T @ learned @ _ROTATION) / np.square(
    [0.05, 0.3, 1.0, 2.0]
  )
  # All directions count alike, within 40 per cent in variance.
  assert np.max(ratio) < 1.4 * np.min(ratio), ratio
  assert np.all(factor == factor[0])
  # Independent draws after ten steps, nearly.
  assert np.max(autocorrelation) < 0.3
  for column in z[::10].reshape(-1, 4).T:
    assert scipy.stats.kstest(column, 'norm').pvalue > 1e-8
  _, _, _, control = _run(PreconditionedMALA(_log_prob, [step_size, step_size]))
  assert np.max(control) > 0.8


def test_a_bad_proposal_is_no_signal():
  def log_prob(x):
    return tf.where(x[..., 0] > 0.0, -tf.reduce_sum(x**2, -1), np.nan)

  kernel = FisherAdaptiveMALA(log_prob, 1.0, 50, 0)
  rejected = 0
  for _, _, results in _steps(kernel, tf.ones([4, 2]), 50):
    ratio = results.inner_results.log_accept_ratio.numpy()
    rejected += np.sum(np.isneginf(ratio))
  assert rejected > 10
  assert np.all(np.isfinite(results.factor))


def test_protocol():
  kernel = FisherAdaptiveMALA(_log_prob, 0.1, 107, name='fisher')
  assert kernel.parameters == {
    'target_log_prob_fn': _log_prob,
    'step_size': 0.1,
    'num_adaptation_steps': 107,
    'num_step_size_steps': 100,
    'damping': 10.0,
    'experimental_chain_axis_names': None,
    'name': 'fisher',
  }
  assert type(kernel)(**kernel.parameters).parameters == kernel.parameters
  assert kernel.is_calibrated


@pytest.mark.parametrize(
  ('kwargs', 'error', 'match'),
  [
    ({'damping': 0.0}, ValueError, '`damping`'),
    # It would never change the matrix.
    ({'num_adaptation_steps': 80}, ValueError, '80, but .* after .*, 100 st'),
    ({'step_size': [0.1, 0.2]}, TypeError, '`step_size` is a list'),
    ({'target_log_prob_fn': 3}, TypeError, '`target_log_prob_fn`'),
  ],
)
def test_refuses_arguments(kwargs, error, match):
  arguments = {
    'target_log_prob_fn': _log_prob,
    'step_size': 0.1,
    'num_adaptation_steps': 105,
  }
  with pytest.raises(error, match=match):
    FisherAdaptiveMALA(**dict(arguments, **kwargs))


def test_refuses_a_dynamic_event_shape():
  kernel = FisherAdaptiveMALA(lambda x: -tf.reduce_sum(x**2, -1), 0.1, 105)

  @tf.function(input_signature=[tf.TensorSpec([None, None])])
  def start(x):
    return kernel.bootstrap_results(x).step

  with pytest.raises(ValueError, match=r'Part 0.*event shape'):
    start(tf.ones([2, 3]))


@pytest.mark.parametrize('made', [FisherAdaptiveMALA, FisherDivergenceMALA])
def test_a_sharded_state_is_refused(made):
  kernel = made(_log_prob, 0.01, 110)
  assert kernel.experimental_with_shard_axes([None, None]) is kernel
  with pytest.raises(
    ValueError, match=f'{made.__name__} learns a matrix over all'
  ):
    kernel.experimental_with_shard_axes([None, 'data'])
