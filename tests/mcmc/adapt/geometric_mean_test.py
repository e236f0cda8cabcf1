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
"""The geometric mean of two covariances, against its closed form."""

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from tfp_diag.mcmc.adapt.geometric_mean import geometric_mean


def _covariance(rng, d, condition):
  q, _ = np.linalg.qr(rng.normal(size=[d, d]))
  return (q * np.geomspace(1.0, condition, d)) @ q.T


@pytest.mark.parametrize('condition', [1.0, 1e2, 1e4])
@pytest.mark.parametrize('d', [1, 2, 7])
def test_closed_form(d, condition):
  rng = np.random.default_rng(d)
  a, b = (_covariance(rng, d, condition) for _ in range(2))
  root = np.real(scipy.linalg.sqrtm(a))
  inverse = np.linalg.inv(root)
  expected = root @ np.real(scipy.linalg.sqrtm(inverse @ b @ inverse)) @ root
  actual = geometric_mean(tf.constant(a), tf.constant(b)).numpy()
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
  np.testing.assert_array_equal(actual, actual.T)


def test_it_solves_its_equation_and_is_equivariant():
  rng = np.random.default_rng(3)
  a, b = (_covariance(rng, 4, 50.0) for _ in range(2))
  mean = geometric_mean(tf.constant(a), tf.constant(b)).numpy()
  np.testing.assert_allclose(mean @ np.linalg.inv(a) @ mean, b, rtol=1e-8)
  m = rng.normal(size=[4, 4])
  moved = geometric_mean(tf.constant(m @ a @ m.T), tf.constant(m @ b @ m.T))
  np.testing.assert_allclose(moved, m @ mean @ m.T, rtol=1e-7, atol=1e-9)


def test_equal_diagonals_do_not_end_it():
  a = np.array([[1.0, 0.9], [0.9, 1.0]])
  b = np.array([[1.0, -0.9], [-0.9, 1.0]])
  mean = geometric_mean(tf.constant(a), tf.constant(b)).numpy()
  np.testing.assert_allclose(mean @ np.linalg.inv(a) @ mean, b, atol=1e-10)


def test_compiled_single_precision():
  rng = np.random.default_rng(4)
  a, b = (_covariance(rng, 5, 1e4).astype(np.float32) for _ in range(2))
  mean = tf.function(geometric_mean, jit_compile=True)(a, b)
  assert mean.dtype == tf.float32
  wide = geometric_mean(*(tf.constant(x, tf.float64) for x in (a, b)))
  np.testing.assert_allclose(mean, wide, rtol=1e-5, atol=1e-5)
