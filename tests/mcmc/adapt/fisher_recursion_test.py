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
"""The recursion against inverses in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.mcmc.adapt.fisher_recursion import add_signals


@pytest.mark.parametrize('num_signals', [1, 2, 7])
def test_is_a_square_root_of_the_inverse(num_signals):
  rng = np.random.default_rng(0)
  precision = 3.0 * np.eye(5)
  factor = tf.constant(np.eye(5) / np.sqrt(3.0))
  for _ in range(30):
    signals = rng.normal(size=[num_signals, 5]) * [1.0, 0.01, 100.0, 3.0, 0.0]
    factor = add_signals(factor, tf.constant(signals))
    precision += signals.T @ signals
    np.testing.assert_allclose(
      factor @ tf.transpose(factor),
      np.linalg.inv(precision),
      rtol=1e-6,
      atol=1e-12,
    )


def test_one_signal_is_the_recursion_of_the_paper():
  rng = np.random.default_rng(1)
  factor, s = rng.normal(size=[4, 4]), rng.normal(size=[4])
  phi = factor.T @ s
  r = 1.0 / (1.0 + np.sqrt(1.0 / (1.0 + phi @ phi)))
  expected = factor - r * np.outer(factor @ phi, phi) / (1.0 + phi @ phi)
  actual = add_signals(tf.constant(factor), tf.constant(s[np.newaxis]))
  np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize('num_signals', [1, 3])
def test_no_signal_changes_nothing(num_signals):
  factor = np.random.default_rng(2).normal(size=[4, 4])
  actual = add_signals(
    tf.constant(factor), tf.zeros([num_signals, 4], 'double')
  )
  np.testing.assert_array_equal(actual, factor)


def test_large_signals_in_float32():
  rng = np.random.default_rng(3)
  factor = tf.eye(3)
  for scale in (1e2, 1e4, 1e6, 1e25):
    factor = add_signals(
      factor, tf.constant(scale * rng.normal(size=[20, 3]), tf.float32)
    )
  assert np.all(np.isfinite(factor)) and np.all(np.abs(factor) < 1e-2)
