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
"""Random numbers: their law, and the same in every regime."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.pairs import parametrize_pairs
from tfp_diag.mcmc.kernels import noise

_DTYPES = [tf.float32, tf.float64]


@pytest.mark.parametrize('dtype', _DTYPES)
@pytest.mark.parametrize(
  ('draw', 'law'),
  [(noise.standard_normal, 'norm'), (noise.uniform, 'uniform')],
)
def test_law(dtype, draw, law):
  # False alarms: 1e-6 per p-value.
  x = draw([1_000_000], tf.constant([3, 4]), dtype).numpy().astype(np.float64)
  assert scipy.stats.kstest(x, law).pvalue > 1e-6
  # No correlation along the sequence, in sign or in size.
  for y in (x, np.abs(x - np.median(x))):
    y = (y - y.mean()) / y.std()
    for lag in (1, 2, 3, 4):
      z = np.mean(y[lag:] * y[:-lag]) * np.sqrt(y.size - lag)
      assert abs(z) < 4.9


@pytest.mark.parametrize('dtype', _DTYPES)
def test_normal_tails(dtype):
  x = noise.standard_normal([4_000_000], tf.constant([5, 6]), dtype).numpy()
  for edge in (3.0, 4.0):
    expected = x.size * scipy.stats.norm.sf(edge)
    for tail in (x, -x):
      # Five standard deviations of a Poisson count.
      count = np.sum(tail > edge)
      assert abs(count - expected) < 5.0 * np.sqrt(expected)


@parametrize_pairs(
  dtype=_DTYPES,
  draw=[noise.standard_normal, noise.uniform],
  shape=[[], [0], [1], [5, 3]],
)
def test_one_seed_is_one_draw_in_every_regime(dtype, draw, shape):
  def fn(seed):
    return draw(shape, seed, dtype)

  seed = tf.constant([7, 8])
  eager = fn(seed)
  assert eager.dtype == dtype
  assert eager.shape == shape
  # The quantile function of XLA is another implementation.
  tolerance = 1e-4 if dtype == tf.float32 else 1e-9
  for jit_compile in (False, True):
    other = tf.function(fn, jit_compile=jit_compile)(seed)
    np.testing.assert_allclose(other, eager, rtol=tolerance)


@pytest.mark.parametrize('jit_compile', [False, True])
def test_ends_are_finite(jit_compile, monkeypatch):
  # The integers at the ends of their range, and those around zero.
  ends = tf.constant([-(2**31), -1, 0, 2**31 - 1] * 4, tf.int32)
  monkeypatch.setattr(
    tf.raw_ops, 'StatelessRandomUniformFullIntV2', lambda **_: tf.identity(ends)
  )

  @tf.function(jit_compile=jit_compile)
  def draw():
    seed = tf.constant([1, 2])
    return (
      noise.standard_normal([4], seed, tf.float32),
      noise.uniform([4], seed, tf.float32),
    )

  normal, uniform = draw()
  largest = scipy.stats.norm.isf(2.0**-25)
  np.testing.assert_allclose(normal[-1], largest, rtol=1e-5)
  np.testing.assert_allclose(normal, -normal[::-1], rtol=1e-6)
  assert np.all((uniform > 0.0) & (uniform < 1.0))


@parametrize_pairs(
  dtype=_DTYPES,
  draw=[noise.standard_normal, noise.uniform],
  jit_compile=[None, False, True],
  shape=[[1], [3], [7, 5], [2, 3, 3], [1667, 3]],
)
def test_a_shard_draws_its_slice(dtype, draw, jit_compile, shape):
  """Bit for bit, whatever block and vector the slice starts and ends in."""

  def fn(seed, shard):
    return draw(shape, seed, dtype, shard)

  def whole_fn(seed):
    return draw([3 * shape[0], *shape[1:]], seed, dtype)

  if jit_compile is not None:
    fn = tf.function(fn, jit_compile=jit_compile)
    whole_fn = tf.function(whole_fn, jit_compile=jit_compile)
  # What scalar instructions round differently is rare: several draws.
  for i in range(30):
    seed = tf.constant([-i, 2**31 - 1])
    whole = whole_fn(seed).numpy()
    for shard in range(3):
      actual = fn(seed, tf.constant(shard))
      assert actual.shape == shape
      expected = whole[shard * shape[0] : (shard + 1) * shape[0]]
      np.testing.assert_array_equal(actual, expected)


def test_seeds_that_differ_in_any_bit_are_independent():
  # False alarms: 1e-6 for all pairs together, by a union bound.
  seeds = [[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [0, 2**30]]
  draws = np.stack(
    [noise.standard_normal([20_000], tf.constant(s), tf.float32) for s in seeds]
  )
  correlation = np.corrcoef(draws)[np.triu_indices(len(seeds), 1)]
  assert np.all(np.abs(correlation) * np.sqrt(20_000) < 5.4)


def test_dynamic_shapes():
  @tf.function(
    input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([2], tf.int32)]
  )
  def draw(x, seed):
    return noise.standard_normal(tf.shape(x), seed, x.dtype)

  seed = tf.constant([1, 2])
  np.testing.assert_array_equal(
    draw(tf.zeros([5, 3]), seed),
    noise.standard_normal([5, 3], seed, tf.float32),
  )


def test_half_precision():
  x = noise.standard_normal([1000], tf.constant([1, 2]), tf.float16)
  assert x.dtype == tf.float16
  assert 0.8 < np.std(x.numpy().astype(np.float64)) < 1.2


def test_split_seeds_differ():
  seeds = noise.split_seed(tf.constant([1, 2]), 3)
  assert len({tuple(s.numpy()) for s in seeds}) == 3
