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
"""How the log acceptance ratio shrinks with the step size: every kind.

Moments of the draws cannot see a wrong drift, which costs acceptance and no
more; these laws can. The draws are exact, in float64, with fixed seeds; each
tolerance is more than five standard errors.
"""

import numpy as np
import pytest
import scipy.integrate
import tensorflow as tf

from tfp_diag.mcmc import LocalHessianPreconditioner, PreconditionedMALA

_STEP_SIZES = (0.002, 0.006, 0.02)


def _slope(laws, kind, log_prob=None):
  """Of log std(log a) over log τ."""
  noise = np.random.default_rng(9).normal(size=[20_000, 3])
  x = tf.constant(laws.target.exact(noise))
  deviations = []
  for step_size in _STEP_SIZES:
    made = laws.make_kernel(kind, step_size=step_size, log_prob=log_prob)
    _, results = made.kernel.one_step(x, made.start(x), seed=(1, 2))
    # Without the tails, in which the next orders count.
    ratio = np.abs(laws.core(results).log_accept_ratio)
    deviations.append(np.quantile(ratio, 0.68))
  return np.polyfit(np.log(_STEP_SIZES), np.log(deviations), 1)[0]


def test_a_constant_scale_has_errors_of_order_three_halves(laws, constant_kind):
  np.testing.assert_allclose(_slope(laws, constant_kind), 1.5, atol=0.06)


def test_a_local_scale_has_errors_of_order_one_half(laws, local_kind):
  np.testing.assert_allclose(_slope(laws, local_kind), 0.5, atol=0.06)


def test_a_wrong_gradient_has_errors_of_lower_order(laws, constant_kind):
  def log_prob(x):
    right = laws.target.log_prob(x)
    # The same value, but nine tenths of the gradient.
    return tf.stop_gradient(0.1 * right) + 0.9 * right

  assert _slope(laws, constant_kind, log_prob) < 1.0


def _curvature_scale(x, softness):
  """s of the local Hessian preconditioner for the density ∝ 1 / cosh x."""
  curvature = 1.0 / np.cosh(x) ** 2
  return (curvature / np.tanh(curvature / softness)) ** -0.5


def _mean_square_slope(softness, h=1e-5):
  """E[s'²], by quadrature."""

  def integrand(x):
    ends = [_curvature_scale(x + d, softness) for d in (-h, h)]
    return ((ends[1] - ends[0]) / (2 * h)) ** 2 / (np.pi * np.cosh(x))

  return scipy.integrate.quad(integrand, -12.0, 12.0, limit=200)[0]


@pytest.mark.parametrize(('drift_factor', 'law'), [(1, 6), (0, 10), (2, 10)])
def test_variance_with_the_scale_from_the_curvature(
  drift_factor, law, monkeypatch
):
  """Var(log a) → 6 τ E[s'²]; 10 with the drift term missing or doubled.

  For any density in one dimension: log a = √τ s' (z³ - (1 + 2k) z) to leading
  order, where k is how often the drift contains its term s s'.
  """
  softness, step_size = 0.3, 1e-4
  right = LocalHessianPreconditioner.evaluate

  def evaluate(self, *args):
    log_prob, terms = right(self, *args)
    slopes = [drift_factor * slope for slope in terms.volatility_gradient]
    return log_prob, terms._replace(volatility_gradient=slopes)

  monkeypatch.setattr(LocalHessianPreconditioner, 'evaluate', evaluate)
  u = np.random.default_rng(9).uniform(size=[200_000, 1])
  x = tf.constant(np.arcsinh(np.tan(np.pi * (u - 0.5))))
  kernel = PreconditionedMALA(
    lambda x: -tf.reduce_sum(tf.math.log(tf.cosh(x)), -1),
    tf.constant(step_size, tf.float64),
    LocalHessianPreconditioner(softness),
  )
  results = kernel.one_step(x, kernel.bootstrap_results(x), seed=(1, 2))[1]
  constant = np.var(results.log_accept_ratio) / (
    step_size * _mean_square_slope(softness)
  )
  np.testing.assert_allclose(constant, law, rtol=0.06)
