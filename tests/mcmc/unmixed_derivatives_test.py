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
"""Unmixed second and third derivatives against closed forms in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import unmixed_derivatives as module
from tfp_diag.mcmc.unmixed_derivatives import unmixed_derivatives

_RNG = np.random.default_rng(5)


def _chain(n):
  """Each row of A meets two neighbors: the Hessian is tridiagonal."""
  return np.eye(n) + np.diag(_RNG.uniform(0.3, 0.9, n - 1), 1)


def _log_prob_of(matrix):
  """-Σ_k exp(A_k x), over two parts that are put together to x."""

  def log_prob(u, w):
    x = tf.concat([u, w], -1)
    return -tf.reduce_sum(
      tf.exp(tf.linalg.matvec(tf.constant(matrix, x.dtype), x)), -1
    )

  return log_prob


def _expected(matrix, x):
  weights = np.exp(x @ matrix.T)
  return [-weights @ matrix**2, -weights @ matrix**3]


def _parts(n, sample_shape, dtype, first=2):
  x = np.random.default_rng(0).normal(size=[*sample_shape, n]) / 2.0
  return x, [tf.constant(part, dtype) for part in np.split(x, [first], -1)]


def _check(matrix, run, sample_shape, dtype, rtol):
  x, parts = _parts(len(matrix), sample_shape, dtype)
  derivatives = run(parts)
  for actual, expected in zip(derivatives, _expected(matrix, x)):
    np.testing.assert_allclose(
      np.concatenate(actual, -1), expected, rtol=rtol, atol=rtol
    )
    for a, part in zip(actual, parts):
      assert a.dtype == part.dtype
      assert a.shape == part.shape


@pytest.mark.parametrize('regime', ['eager', 'graph', 'dynamic', 'xla'])
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_structured(regime, dtype):
  matrix = _chain(7)
  log_prob = _log_prob_of(matrix)

  def run(parts):
    return unmixed_derivatives(log_prob, parts, 2, 10)

  if regime != 'eager':
    signature = None
    if regime == 'dynamic':
      signature = [[tf.TensorSpec([None, None, k], dtype) for k in (2, 5)]]
    compiled = tf.function(
      run, jit_compile=regime == 'xla', input_signature=signature
    )
  else:
    compiled = run
  rtol = 1e-10 if dtype == tf.float64 else 2e-5
  _check(matrix, compiled, [3, 2], dtype, rtol)


@pytest.mark.parametrize('chunk', [1, 4, 100])
def test_dense_runs_in_chunks_that_need_not_divide(chunk):
  matrix = _RNG.normal(size=[11, 11]) / 3.0
  log_prob = _log_prob_of(matrix)
  run = tf.function(
    lambda parts: unmixed_derivatives(log_prob, parts, 1, chunk)
  )
  _check(matrix, run, [3], tf.float64, 1e-9)


@pytest.mark.parametrize('sample_shape', [[], [1], [0]])
def test_sample_shapes(sample_shape):
  matrix = _chain(4)
  log_prob = _log_prob_of(matrix)
  rank = len(sample_shape)
  run = tf.function(lambda parts: unmixed_derivatives(log_prob, parts, rank, 1))
  _check(matrix, run, sample_shape, tf.float64, 1e-10)


def test_costs_one_sweep_per_color(monkeypatch):
  counts = []
  apply = module._Derivatives.apply

  def counted(self, members, seeds):
    counts.append(1)
    return apply(self, members, seeds)

  monkeypatch.setattr(module._Derivatives, 'apply', counted)
  # A bidiagonal A couples neighbors only: two colors, for any size.
  log_prob = _log_prob_of(_chain(40))
  _, parts = _parts(40, [2], tf.float64)
  tf.function(lambda parts: unmixed_derivatives(log_prob, parts, 1, 10))(parts)
  assert len(counts) == 2


@pytest.mark.parametrize('jit_compile', [False, True])
def test_through_a_bijector_a_gather_and_an_unused_part(jit_compile):
  # -Σ softplus(x[i])², i with repetitions; the other part is not used.
  index = [0, 2, 2, 1]

  def log_prob(x, unused):
    del unused
    y = tfp.bijectors.Softplus().forward(tf.gather(x, index, axis=-1))
    return -tf.reduce_sum(y**2, -1)

  x = np.random.default_rng(1).normal(size=[5, 3])
  run = tf.function(
    lambda parts: unmixed_derivatives(log_prob, parts, 1, 10),
    jit_compile=jit_compile,
  )
  second, third = run([tf.constant(x), tf.ones([5, 2], tf.float64)])
  y, s = np.log1p(np.exp(x)), 1.0 / (1.0 + np.exp(-x))
  count = np.bincount(index)
  ds, dds = s * (1 - s), s * (1 - s) * (1 - 2 * s)
  np.testing.assert_allclose(second[0], -2 * count * (s**2 + y * ds))
  np.testing.assert_allclose(third[0], -2 * count * (3 * s * ds + y * dds))
  assert not np.any(second[1]) and not np.any(third[1])


@pytest.mark.parametrize('chunk', [3, 100])
def test_a_linear_function_has_neither(chunk):
  # As if dense: a function that no rule knows.
  matrix = tf.constant(_RNG.normal(size=[12, 12]))

  @tf.custom_gradient
  def log_prob(x):
    y = tf.linalg.matvec(matrix, x)
    return (
      tf.reduce_sum(y, -1),
      lambda upstream: (
        upstream[..., tf.newaxis] * tf.reduce_sum(matrix, 0) + 0.0 * x
      ),
    )

  run = tf.function(lambda x: unmixed_derivatives(log_prob, [x], 1, chunk))
  [second], [third] = run(tf.ones([3, 12], tf.float64))
  assert second.shape == third.shape == [3, 12]
  assert not np.any(second) and not np.any(third)


def test_through_a_loop():
  # x ↦ sin x three times, in a while loop whose length is not known to pfor.
  def log_prob(x):
    y = tf.while_loop(
      lambda i, _: i < 3,
      lambda i, y: (i + 1, tf.sin(y)),
      (0, x),
      maximum_iterations=3,
    )[1]
    return tf.reduce_sum(y, -1) + tf.reduce_sum(x, -1) ** 3

  x = np.linspace(-1.0, 1.0, 10)
  run = tf.function(lambda x: unmixed_derivatives(log_prob, [x], 0, 3))
  with pytest.warns(RuntimeWarning, match='while_loop'):
    second, third = run(tf.constant(x))
  with tf.GradientTape() as outer:
    v = tf.constant(x)
    outer.watch(v)
    with tf.GradientTape() as middle:
      middle.watch(v)
      with tf.GradientTape() as inner:
        inner.watch(v)
        y = tf.sin(tf.sin(tf.sin(v)))
      first = inner.gradient(y, v)
    expected = middle.gradient(first, v)
  # The cube adds 6 Σx = 0 and 6.
  np.testing.assert_allclose(second[0], expected, atol=1e-12)
  np.testing.assert_allclose(
    third[0], outer.gradient(expected, v) + 6.0, rtol=1e-10
  )
