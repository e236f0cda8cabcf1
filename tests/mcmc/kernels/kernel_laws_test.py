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
"""What every kind of kernel obeys to rounding error: balance, equivalences.

Float64, against densities of NumPy and SciPy that share no code with the
kernels. See `conftest.py` for the kinds.
"""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf

from tfp_diag.mcmc import PreconditionedMALA


def _exact(laws, shape, seed=1):
  noise = np.random.default_rng(seed).normal(size=[*shape, 3])
  return laws.target.exact(noise)


def test_the_oracle_is_the_target(laws):
  x = _exact(laws, [5])
  target = laws.target
  tensor = tf.constant(x)
  np.testing.assert_allclose(
    target.log_prob(tensor), target.np_log_prob(x), rtol=1e-12
  )
  for v in x:
    numeric = scipy.optimize.approx_fprime(v, target.np_log_prob, 1e-7)
    np.testing.assert_allclose(numeric, target.np_gradient(v), rtol=1e-4)
  # Both signs of curvature.
  curvature = 1.0 + target.standardize(x)[:, 1] + x[:, 0] ** 2
  assert np.min(curvature) < 0.5 * np.max(curvature)


# Law 1: detailed balance as algebra.


def _step(laws, kind):
  """Where steps of the kernel start, end, and their log ratios."""
  made = laws.make_kernel(kind)
  start = _exact(laws, [30])
  state = tf.constant(start)
  _, results = made.kernel.one_step(state, made.start(state), seed=(3, 4))
  core = laws.core(results)
  ratio = core.log_accept_ratio.numpy()
  assert np.all(np.isfinite(ratio))
  return made, start, core.proposed_state.numpy(), ratio


def _log_flow(laws, made, start, end, matrix_factor=1.0, drift_factor=1.0):
  """log π(x) q(x, y)."""
  target = laws.target
  pull, spread = made.times(target.step_size)
  scale, half_divergence = made.scale(start)
  covariance = matrix_factor * scale @ scale.T
  drift = pull * covariance @ target.np_gradient(start)
  mean = start + drift + drift_factor * target.step_size * half_divergence
  return target.np_log_prob(start) + scipy.stats.multivariate_normal.logpdf(
    end, mean, spread * covariance
  )


def test_detailed_balance(laws, kind):
  made, start, end, ratio = _step(laws, kind)
  for x, y, actual in zip(start, end, ratio):
    there, back = _log_flow(laws, made, x, y), _log_flow(laws, made, y, x)
    np.testing.assert_allclose(actual, back - there, rtol=1e-10, atol=1e-10)
    # π(x) q(x, y) a(x, y) = π(y) q(y, x) a(y, x), the other a from the oracle.
    np.testing.assert_allclose(
      there + min(0.0, actual), back + min(0.0, there - back), rtol=1e-10
    )
  # It sees another scale.
  wrong = [
    _log_flow(laws, made, y, x, matrix_factor=1.001)
    - _log_flow(laws, made, x, y, matrix_factor=1.001)
    for x, y in zip(start, end)
  ]
  # Where nothing but the gradient's share differs.
  assert np.max(np.abs(wrong - ratio)) > 1e-6


@pytest.mark.parametrize('drift_factor', [0.0, 2.0])
def test_detailed_balance_sees_a_wrong_drift(laws, local_kind, drift_factor):
  made, start, end, ratio = _step(laws, local_kind)
  wrong = [
    _log_flow(laws, made, y, x, drift_factor=drift_factor)
    - _log_flow(laws, made, x, y, drift_factor=drift_factor)
    for x, y in zip(start, end)
  ]
  assert np.min(np.abs(wrong - ratio)) > 1e-5


def test_detailed_balance_sees_a_transposed_factor(laws):
  made, start, end, ratio = _step(laws, 'cholesky')
  transposed = laws.make_kernel('cholesky')
  object.__setattr__(
    transposed, 'scale', lambda x: (made.matrix.T, np.zeros(3))
  )
  wrong = [
    _log_flow(laws, transposed, y, x) - _log_flow(laws, transposed, x, y)
    for x, y in zip(start, end)
  ]
  assert np.min(np.abs(wrong - ratio)) > 1e-5


# Law 2: what is the same kernel in other words.


def test_a_constant_scale_is_the_rescaled_target(laws, constant_kind):
  """x = L z, with the same noise; L = I is TFP's MALA and a leapfrog step."""
  made = laws.make_kernel(constant_kind)
  matrix = tf.constant(made.matrix)
  is_exponential = made.times(1.0)[1] < 1.0
  rescaled = PreconditionedMALA(
    lambda z: laws.target.log_prob(tf.linalg.matvec(matrix, z)),
    tf.constant(laws.target.step_size, tf.float64),
    discretization='exponential' if is_exponential else 'euler',
  )
  x = _exact(laws, [8])
  z = tf.constant(np.linalg.solve(made.matrix, x.T).T)
  x = tf.constant(x)
  results, rescaled_results = made.start(x), rescaled.bootstrap_results(z)
  moves = 0
  for i in range(4):
    x, results = made.kernel.one_step(x, results, seed=(i, 0))
    z, rescaled_results = rescaled.one_step(z, rescaled_results, seed=(i, 0))
    np.testing.assert_allclose(
      x, tf.linalg.matvec(matrix, z), rtol=1e-8, atol=1e-10
    )
    np.testing.assert_allclose(
      laws.core(results).log_accept_ratio,
      rescaled_results.log_accept_ratio,
      rtol=1e-7,
      atol=1e-10,
    )
    moves += np.sum(rescaled_results.is_accepted)
  assert moves > 0


def test_chains_of_any_rank_are_the_same_chains(laws, kind):
  made = laws.make_kernel(kind)
  flat = tf.constant(_exact(laws, [12]))
  expected, expected_results = made.kernel.one_step(
    flat, made.start(flat), seed=(3, 9)
  )
  ratio = laws.core(expected_results).log_accept_ratio
  for chains in ([3, 4], [2, 3, 2]):
    state = tf.reshape(flat, [*chains, 3])
    actual, results = made.kernel.one_step(
      state, made.start(state), seed=(3, 9)
    )
    np.testing.assert_allclose(
      tf.reshape(actual, [12, 3]), expected, rtol=1e-10
    )
    np.testing.assert_allclose(
      np.ravel(laws.core(results).log_accept_ratio),
      ratio,
      rtol=1e-9,
      atol=1e-11,
    )


def test_compiled_is_eager(laws, compiled_kind):
  made = laws.make_kernel(compiled_kind)
  state = tf.constant(_exact(laws, [6]))
  results = made.start(state)
  expected, expected_results = made.kernel.one_step(state, results, seed=(5, 6))
  compiled = tf.function(made.kernel.one_step, jit_compile=True)
  actual, actual_results = compiled(state, results, seed=tf.constant([5, 6]))
  np.testing.assert_allclose(actual, expected, rtol=1e-9)
  np.testing.assert_allclose(
    laws.core(actual_results).log_accept_ratio,
    laws.core(expected_results).log_accept_ratio,
    rtol=1e-7,
    atol=1e-10,
  )
