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
"""Log densities in which every coordinate meets every other one."""

import numpy as np

from benchmarks.cases.case import Case

__all__ = [
  'gaussian',
  'gaussian_3d',
  'log_normalizer',
  'logistic_regression',
  'network_weights',
]


def gaussian_3d(batch=1000):
  """A normal distribution of three correlated coordinates."""
  precision = np.linalg.inv(
    np.array([[1.0, 0.25, 0.25], [0.25, 2.0, 0.25], [0.25, 0.25, 3.0]])
  )
  return _gaussian(f'Gaussian d = 3, batch {batch:,}', batch, precision)


def gaussian(n=100, batch=100):
  """A normal distribution whose precision matrix is full."""
  rng = np.random.default_rng(3)
  factor = rng.standard_normal((n, n)) / np.sqrt(n)
  precision = np.eye(n) + factor @ factor.T
  return _gaussian(f'Gaussian d = {n:,}, batch {batch}', batch, precision)


def _gaussian(name, batch, precision):
  precision = precision.astype(np.float32)

  def log_prob(ops, x, scale):
    # Symmetric: no compiler need see it to be told.
    return -0.5 * ops.sum(x * ops.matmul(x, ops.array(precision) * scale), 1)

  def diagonal(x):
    return np.broadcast_to(-np.diag(precision).astype(np.float64), x.shape)

  shape = precision.shape[:1]
  return Case(name, batch, shape, log_prob, diagonal, structured=False)


def logistic_regression(n=25, batch=100, num_rows=1000):
  """A normal prior on the coefficients, and as many outcomes as rows."""
  rng = np.random.default_rng(4)
  features = rng.standard_normal((num_rows, n)).astype(np.float32)
  features /= np.sqrt(n).astype(np.float32)
  outcome = rng.integers(0, 2, num_rows).astype(np.float32)

  def log_prob(ops, x, scale):
    logits = ops.matmul(x, ops.array(features.T) * scale)
    fit = ops.array(outcome) * logits - ops.softplus(logits)
    return ops.sum(fit, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    p = 1 / (1 + np.exp(-(x @ features.T)))
    return -((p * (1 - p)) @ features**2) - 1

  name = f'logistic regression d = {n}, N = {num_rows:,}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal, structured=False)


def log_normalizer(n=500, batch=32):
  """Counts of categories given their logits."""
  rng = np.random.default_rng(5)
  counts = rng.poisson(2.0, n).astype(np.float32)
  total = float(counts.sum())

  def log_prob(ops, x, scale):
    del scale
    return ops.sum(ops.array(counts) * x, 1) - total * ops.logsumexp(x)

  def diagonal(x):
    p = _softmax(x)
    return -total * p * (1 - p)

  name = f'log-normalizer n = {n}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal, structured=False)


def network_weights(num_inputs=4, num_hidden=8, num_rows=64, batch=16):
  """The likelihood of a network of one hidden layer, as a function of weights.

  The coordinates are the weights by input and hidden unit, the biases, the
  output weights, and the output bias.
  """
  rng = np.random.default_rng(6)
  features = rng.standard_normal((num_rows, num_inputs)).astype(np.float32)
  y = rng.standard_normal(num_rows).astype(np.float32)
  # The last input is one: its weight is the bias.
  inputs = np.concatenate([features, np.ones_like(features[:, :1])], axis=1)
  h, k = num_hidden, num_inputs + 1
  n = h * k + h + 1

  def log_prob(ops, x, scale):
    del scale
    logits = sum(
      ops.array(inputs[:, j]) * x[..., j * h : (j + 1) * h, None]
      for j in range(k)
    )
    output = x[..., h * k : h * k + h, None] * ops.tanh(logits)
    residual = ops.array(y) - ops.sum_axis(output, -2) - x[..., n - 1 :]
    return -0.5 * ops.sum(residual**2, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    weights = x[..., : h * k].reshape(*x.shape[:-1], k, h)
    v, c = x[..., h * k : h * k + h], x[..., -1:]
    t = np.tanh(np.einsum('rj,...jh->...rh', inputs, weights))
    residual = y - np.einsum('...rh,...h->...r', t, v) - c
    slope = v[..., None, :] * (1 - t**2)
    curvature = -2 * t * slope
    by_weight = np.einsum(
      'rj,...rh->...jh', inputs**2, residual[..., None] * curvature - slope**2
    )
    return np.concatenate(
      [
        by_weight.reshape(*x.shape[:-1], k * h) - 1,
        -np.sum(t**2, axis=-2) - 1,
        np.full_like(c, -num_rows - 1),
      ],
      axis=-1,
    )

  name = f'weights of a network, {n}, N = {num_rows}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal, structured=False)


def _softmax(x):
  p = np.exp(x - x.max(axis=-1, keepdims=True))
  return p / p.sum(axis=-1, keepdims=True)
