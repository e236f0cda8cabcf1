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
"""A function that draws anew at each call: value and diagonal of one draw."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import REGIMES, draw, in_regime, same

N = 18
SAMPLES = 3


def both(regime, fn, x):
  """ys and diagonal."""

  def call(x):
    ys, diag = tfp_diag.diag_jacobian(x, sample_shape=[SAMPLES], fn=fn)
    return ys[0], diag[0]

  return in_regime(regime, call, x)


def of_one_draw(ys, diag, draws, value, derivative):
  """The draw of `ys`, after `diag` is seen to be of the same one."""
  distances = [np.abs(ys - value(d)).max() for d in draws]
  which = int(np.argmin(distances))
  assert distances[which] < 1e-10
  same(diag, derivative(draws[which]))
  return which


@pytest.mark.parametrize('regime', REGIMES)
def test_a_permutation(regime):
  rng, draws = np.random.default_rng(0), []

  def fn(x):
    draws.append(rng.permutation(N))
    return tf.sin(x) * tf.gather(x, draws[-1], axis=1)

  x = draw(SAMPLES, N)
  v = x.numpy()

  def derivative(p):
    return np.cos(v) * v[:, p] + np.sin(v) * (p == np.arange(N))

  for _ in range(2):
    ys, diag = both(regime, fn, x)
    of_one_draw(ys, diag, draws, lambda p: np.sin(v) * v[:, p], derivative)


@pytest.mark.parametrize('regime', REGIMES)
def test_a_mask(regime):
  """Another half of the coordinates is coupled to the sum each time."""
  rng, draws = np.random.default_rng(1), []

  def fn(x):
    draws.append(rng.uniform(size=N) < 0.5)
    total = tf.reduce_sum(tf.where(draws[-1], x, 0.0), axis=1, keepdims=True)
    return x**2 * total

  x = draw(SAMPLES, N, seed=1)
  v = x.numpy()

  def value(m):
    return v**2 * (v * m).sum(1, keepdims=True)

  def derivative(m):
    return 2 * v * (v * m).sum(1, keepdims=True) + v**2 * m

  for _ in range(2):
    ys, diag = both(regime, fn, x)
    of_one_draw(ys, diag, draws, value, derivative)


@pytest.mark.parametrize('regime', REGIMES)
def test_a_minibatch_of_an_iterator(regime):
  rng, draws = np.random.default_rng(2), []
  batches = (rng.normal(size=[4, N]) for _ in itertools.count())

  def fn(x):
    draws.append(next(batches))
    return tf.tanh(x @ tf.constant(draws[-1].T)) @ tf.constant(draws[-1])

  x = draw(SAMPLES, N, seed=3)
  v = x.numpy()

  def value(w):
    return np.tanh(v @ w.T) @ w

  def derivative(w):
    return (1 / np.cosh(v @ w.T) ** 2) @ w**2

  for _ in range(2):
    ys, diag = both(regime, fn, x)
    of_one_draw(ys, diag, draws, value, derivative)


@pytest.mark.parametrize('regime', REGIMES)
def test_a_subset_in_a_log_density(regime):
  rng, draws = np.random.default_rng(4), []
  data = rng.normal(size=[50, N])

  def log_prob(x):
    draws.append(data[rng.choice(50, 6, replace=False)])
    return tf.reduce_sum(tf.cos(x @ tf.constant(draws[-1].T)), axis=-1)

  x = draw(SAMPLES, N, seed=4)
  v = x.numpy()

  def call(x):
    value, _, diag = tfp_diag.diag_hessian(log_prob, x)
    return value, diag

  for _ in range(2):
    value, diag = in_regime(regime, call, x)
    of_one_draw(
      value,
      diag,
      draws,
      lambda w: np.cos(v @ w.T).sum(1),
      lambda w: -np.cos(v @ w.T) @ w**2,
    )


def test_an_eager_call_calls_once():
  calls = []

  def fn(x):
    calls.append(None)
    return x**3 * tf.roll(x, 1, axis=1)

  x = draw(SAMPLES, N)
  for number in (1, 2, 3):
    both('eager', fn, x)
    assert len(calls) == number
  calls.clear()
  for number in (1, 2):
    tfp_diag.diag_hessian(lambda x: tf.reduce_sum(fn(x), axis=-1), x)
    assert len(calls) == number


@pytest.mark.parametrize('regime', REGIMES[:2])
def test_each_eager_call_draws_anew(regime):
  rng = np.random.default_rng(5)

  def fn(x):
    return x * rng.normal()

  x = draw(SAMPLES, N)
  factors = []
  for _ in range(3):
    ys, diag = both(regime, fn, x)
    same(ys, x * diag)
    factors.append(float(diag[0, 0]))
  assert len(set(factors)) == 3


@pytest.mark.parametrize('regime', REGIMES[:2])
def test_random_numbers_of_tensorflow(regime):
  """One draw for the value, the gradient and the curvature."""

  def log_prob(x):
    noise = tf.random.normal(tf.shape(x), dtype=x.dtype)
    return tf.reduce_sum(noise * x**3, axis=-1)

  def call(x):
    return tfp_diag.diag_hessian(log_prob, x)

  x = draw(SAMPLES, N, seed=6)
  run = call if regime == 'eager' else tf.function(call, autograph=False)
  seen = []
  for _ in range(3):
    value, gradient, diag = run(x)
    same(value, tf.reduce_sum(gradient * x, axis=-1) / 3)
    same(diag, 2 * gradient / x)
    seen.append(float(value[0]))
  assert len(set(seen)) == 3


def test_a_stateful_generator():
  rng = tf.random.Generator.from_seed(7)

  def fn(x):
    return x**2 * rng.uniform([N], dtype=x.dtype) + tf.roll(x, 1, axis=1)

  x = draw(SAMPLES, N, seed=7)
  seen = []
  for _ in range(2):
    ys, diag = both('eager', fn, x)
    same(diag, 2 * (ys - tf.roll(x, 1, axis=1)) / x)
    seen.append(float(diag[0, 0]))
  assert seen[0] != seen[1]


def test_what_a_plan_drew_is_one_draw():
  rng, draws = np.random.default_rng(8), []

  def fn(x):
    draws.append(rng.permutation(N))
    return x * tf.gather(tf.sin(x), draws[-1], axis=1)

  x = draw(SAMPLES, N, seed=8)
  v = x.numpy()

  def derivative(p):
    return np.sin(v)[:, p] + v * np.cos(v) * (p == np.arange(N))

  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[SAMPLES])
  for _ in range(2):
    try:
      ys, diag = plan(x)
    except ValueError as e:
      # Another draw than that of the plan has another pattern.
      assert 'plan' in str(e)
      continue
    of_one_draw(
      ys[0], diag[0], draws, lambda p: v * np.sin(v)[:, p], derivative
    )
