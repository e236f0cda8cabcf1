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
"""What the `seed` of a driver means: the same in all of them."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.internal.seeds import as_seed


def log_prob(x):
  return -0.5 * tf.reduce_sum(x**2, -1)


def sample(seed):
  kernel = tfp_diag.mcmc.PreconditionedMALA(log_prob, 0.5)
  return tfp_diag.mcmc.sample(
    kernel, tf.zeros([2, 3]), 3, seed=seed, jit_compile=False
  ).draws


def windowed_adaptive_mala(seed):
  return tfp_diag.mcmc.windowed_adaptive_mala(
    3, log_prob, init=tf.zeros([2, 3]), num_adaptation_steps=2, seed=seed
  ).draws


@pytest.mark.parametrize(
  'driver, equal, others',
  [
    (sample, (0, np.int64(0), (0, 0)), (1, -1, 2**32, (0, 1), None)),
    # Seconds for each call.
    (windowed_adaptive_mala, [0], (1, None)),
  ],
)
def test_equal_seeds_give_equal_draws_in_each_call(driver, equal, others):
  first = driver(0)
  for seed in equal:
    np.testing.assert_array_equal(first, driver(seed))
  for seed in others:
    assert np.all(driver(seed) != first)


@pytest.mark.parametrize(
  'seed, pair',
  [
    (0, [0, 0]),
    (7, [7, 0]),
    (-1, [-1, -1]),
    (2**31, [-(2**31), 0]),
    (2**32 + 5, [5, 1]),
    (2**64 + 5, [5, 0]),
    (np.uint8(3), [3, 0]),
    ((3, 4), [3, 4]),
    (np.array([3, 4]), [3, 4]),
    (tf.constant([3, 4]), [3, 4]),
    (np.array([2**32 - 1, 0], np.uint32), [-1, 0]),
  ],
)
def test_the_pair_of_a_seed(seed, pair):
  found = as_seed(seed)
  assert found.dtype == tf.int32
  np.testing.assert_array_equal(found, pair)


def test_no_seed_stays_none():
  assert as_seed(None) is None


@pytest.mark.parametrize(
  'seed',
  [
    *(1.5, 'seed', True, (1, 2, 3), tf.constant(1), np.zeros([2, 2])),
    # Of their lower 32 bits there are others.
    [2**32, 1],
  ],
)
def test_what_is_no_seed_is_refused(seed):
  with pytest.raises(ValueError, match=r'(?s)`seed` is .*a pair of integers'):
    as_seed(seed)
