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
"""Derivatives of functions that saturate, far out and in single precision."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit

import tfp_diag
from tfp_diag.diagonal import local
from tfp_diag.sparsity.graph import trace


def sigmoid(x):
  s, t = expit(x), expit(-x)
  return [s * t, s * t * (t - s), s * t * (1 - 6 * s * t)]


def softplus(x):
  return [expit(x), *sigmoid(x)[:2]]


def tanh(x):
  """In powers of the hyperbolic secant, which does not cancel."""
  square = 1 / np.cosh(x) ** 2
  return [square, -2 * np.tanh(x) * square, square * (4 - 6 * square)]


FUNCTIONS = {
  'sigmoid': (tf.sigmoid, sigmoid),
  'softplus': (tf.math.softplus, softplus),
  'tanh': (tf.tanh, tanh),
}


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('name', FUNCTIONS)
def test_all_digits(name, dtype):
  fn, closed_form = FUNCTIONS[name]
  x = np.linspace(-40.0, 40.0, 162).astype(dtype)
  spec = tf.TensorSpec(x.shape, x.dtype)
  graph = trace(lambda parts: fn(parts[0]), lambda y, _: [y], [spec])
  found = local.slopes(graph.ys[0].op, (0,), tf.constant(x), 3)
  # No root of a derivative is among the numbers.
  for got, want in zip(found, closed_form(np.float64(x)), strict=True):
    np.testing.assert_allclose(got, want, rtol=500 * np.finfo(dtype).eps)


@pytest.mark.parametrize('x', [np.nan, np.inf, -np.inf, 0.0])
@pytest.mark.parametrize('name', FUNCTIONS)
def test_as_tensorflow_beyond_all_numbers(name, x):
  fn, _ = FUNCTIONS[name]
  x = tf.constant(x)
  spec = tf.TensorSpec([], tf.float32)
  graph = trace(lambda parts: fn(parts[0]), lambda y, _: [y], [spec])
  got, _ = local.slopes(graph.ys[0].op, (0,), x, 2)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = fn(x)
  np.testing.assert_allclose(got, tape.gradient(y, x), rtol=1e-6)


@pytest.mark.usefixtures('prefers_sweeps')
def test_a_saturated_regression_in_single_precision():
  """Passes lose all digits here, for TensorFlow computes 1 - tanh^2."""
  rng = np.random.default_rng(0)
  rows = rng.uniform(0.5, 1.0, [20, 6]).astype(np.float32)

  def log_prob(x):
    return tf.reduce_sum(tf.tanh(tf.linalg.matvec(rows, x)), -1)

  x = np.full([6], 2.5, np.float32)
  plan = tfp_diag.plan_diag_hessian(log_prob, tf.TensorSpec([6]))
  assert plan.how == 'squared sweeps'
  second = tanh(np.float64(rows) @ np.float64(x))[1]
  want = second @ np.float64(rows) ** 2
  np.testing.assert_allclose(plan(x)[2], want, rtol=1e-4)
