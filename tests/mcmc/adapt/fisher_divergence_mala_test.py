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
"""The full matrix of least Fisher divergence."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc import FisherDivergenceMALA

_RNG = np.random.default_rng(50)
_D = 6
_Q, _ = np.linalg.qr(_RNG.normal(size=[_D, _D]))
_COVARIANCE = (_Q * np.geomspace(1e-2, 1e2, _D)) @ _Q.T
_PRECISION = np.linalg.inv(_COVARIANCE)
_MEAN = np.arange(_D) - 2.0


def _log_prob(u, w):
  x = tf.concat([u[..., tf.newaxis], w], -1)
  x -= tf.constant(_MEAN, x.dtype)
  return -0.5 * tf.reduce_sum(
    x * tf.linalg.matvec(tf.constant(_PRECISION, x.dtype), x), -1
  )


def _run(
  num_steps, num_adaptation_steps, dtype=tf.float64, xla=False, **kwargs
):
  kernel = FisherDivergenceMALA(
    _log_prob, tf.constant(1e-3, dtype), num_adaptation_steps
  )
  rng = np.random.default_rng(1)
  start = [
    tf.constant(rng.normal(size=[16]), dtype),
    tf.constant(rng.normal(size=[16, _D - 1]), dtype),
  ]

  @tf.function(jit_compile=xla, autograph=False)
  def run():
    return tfp.mcmc.sample_chain(
      num_steps,
      start,
      kernel=kernel,
      trace_fn=lambda _, results: results,
      seed=tf.constant([3, 4]),
    )

  return run()


def _covariance_of(factor):
  return factor @ np.swapaxes(factor, -1, -2)


@pytest.mark.parametrize('dtype, xla', [('float32', True), ('float64', False)])
def test_a_gaussian_is_learned_without_error(dtype, xla):
  """Far from stationary, in fewer steps than the chains need to get there."""
  _, results = _run(150, 150, tf.as_dtype(dtype), xla)
  factor = results.factor[-1].numpy()
  np.testing.assert_array_equal(factor, np.tril(factor))
  # Relative to the truth, in all directions.
  whitened = np.linalg.solve(np.linalg.cholesky(_COVARIANCE), factor)
  np.testing.assert_allclose(_covariance_of(whitened), np.eye(_D), atol=0.01)


def test_the_windows_and_the_estimate():
  """Against the formula, from the draws and the gradients of a window."""
  draws, results = _run(40, 30)
  x = np.concatenate([draws[0][..., np.newaxis], draws[1]], -1)
  [g] = results.inner_results.accepted_results.grads_target_log_prob
  factors = results.factor.numpy()
  changes = np.flatnonzero(np.any(np.diff(factors, axis=0) != 0, axis=(1, 2)))
  ends = [int(i) + 2 for i in changes]
  # A window of 10 steps, and one of 20 that is the last.
  assert ends == [10, 30]
  inside = slice(ends[0], ends[1])
  old = factors[ends[0] - 1]
  rows = [
    np.linalg.solve(old, x[inside].reshape([-1, _D]).T).T,
    g.numpy()[inside].reshape([-1, _D]) @ old,
  ]
  n = len(rows[0])
  prior = 10.0 * (2 * _D / n) ** 2
  a, b = (
    (n * np.cov(r.T, bias=True) + prior * np.eye(_D)) / (n + prior)
    for r in rows
  )
  change = np.linalg.solve(old, factors[ends[1] - 1])
  change = _covariance_of(change)
  # V Cov(g) V = Cov(x), in the coordinates of the matrix in use.
  np.testing.assert_allclose(change @ b @ change, a, rtol=1e-6, atol=1e-9)


def test_frozen_after_adaptation():
  _, results = _run(40, 20)
  factors = results.factor.numpy()
  np.testing.assert_array_equal(factors[20:], factors[19:-1])
  assert np.all(results.count[19:] == 0.0)
  assert np.any(factors[19] != factors[0])


def test_no_adaptation_is_the_identity():
  _, results = _run(3, 0)
  np.testing.assert_array_equal(results.factor, [np.eye(_D)] * 3)


def test_results_have_one_structure():
  kernel = FisherDivergenceMALA(_log_prob, 0.1, 30)
  state = [tf.zeros([4]), tf.zeros([4, _D - 1])]
  before = kernel.bootstrap_results(state)
  _, after = kernel.one_step(state, before, seed=(1, 2))
  tf.nest.assert_same_structure(before, after)
  for x, y in zip(tf.nest.flatten(before), tf.nest.flatten(after)):
    assert (x.dtype, x.shape) == (y.dtype, y.shape)


def test_exponential_steps_are_long_and_accepted():
  draws, trace = tfp_diag.mcmc.windowed_adaptive_mala(
    300,
    _log_prob,
    init=[tf.zeros([16]), tf.zeros([16, _D - 1])],
    num_adaptation_steps=200,
    preconditioner='full_fisher_divergence',
    discretization='exponential',
    seed=(5, 6),
  )
  # A Gaussian of the covariance that was learned: independent draws.
  assert np.mean(trace['accept_ratio']) > 0.95
  x = np.concatenate([draws[0][..., np.newaxis], draws[1]], -1)
  z = (x - _MEAN).reshape([-1, _D]) @ np.linalg.inv(
    np.linalg.cholesky(_COVARIANCE)
  ).T
  lagged = np.mean(x[1:] * x[:-1], (0, 1)) - np.mean(x, (0, 1)) ** 2
  assert np.max(np.abs(lagged / np.var(x, (0, 1)))) < 0.2
  # 4800 draws, nearly independent: six standard errors.
  assert np.max(np.abs(np.mean(z, 0))) < 6 / np.sqrt(4800 * 0.7)
  np.testing.assert_allclose(np.var(z, 0), 1.0, atol=6 * np.sqrt(2 / 3400))


def test_a_chain_that_is_not_finite_does_not_count():
  def log_prob(x):
    # Neither a density nor a gradient where one chain starts.
    broken = tf.where(x[..., 0] > 50.0, np.nan, 1.0)
    return -0.5 * tf.reduce_sum(x**2, -1) * broken

  kernel = FisherDivergenceMALA(log_prob, tf.constant(0.1), 10)

  @tf.function(autograph=False)
  def run():
    start = tf.concat([tf.fill([1, 2], 60.0), tf.ones([7, 2])], 0)
    return tfp.mcmc.sample_chain(
      12, start, kernel=kernel, trace_fn=lambda _, r: r.factor, seed=(1, 2)
    )

  _, factors = run()
  assert np.all(np.isfinite(factors))
  assert np.any(factors[-1] != np.eye(2))


@pytest.mark.parametrize(
  'kwargs, error, match',
  [
    ({'target_log_prob_fn': 1.0}, TypeError, 'cannot be called'),
    ({'step_size': [0.1, 0.1]}, TypeError, 'pass one step size'),
    ({'num_adaptation_steps': -1}, ValueError, 'a nonnegative integer'),
    ({'num_adaptation_steps': 1.5}, ValueError, 'a nonnegative integer'),
  ],
  ids=['target', 'step sizes', 'negative', 'fraction'],
)
def test_errors(kwargs, error, match):
  arguments = dict(
    target_log_prob_fn=_log_prob, step_size=0.1, num_adaptation_steps=5
  )
  with pytest.raises(error, match=match):
    FisherDivergenceMALA(**(arguments | kwargs))


def test_the_other_full_matrix_has_no_scale():
  with pytest.raises(ValueError, match='full_fisher_divergence'):
    tfp_diag.mcmc.windowed_adaptive_mala(
      1,
      _log_prob,
      init=[tf.zeros([2]), tf.zeros([2, _D - 1])],
      preconditioner='full_fisher',
      discretization='exponential',
    )


def test_parameters_make_the_kernel_again():
  kernel = FisherDivergenceMALA(
    _log_prob, 0.1, 5, discretization='exponential', name='mine'
  )
  again = type(kernel)(**kernel.parameters)
  assert again.parameters == kernel.parameters
  assert kernel.is_calibrated and kernel.name == 'mine'
