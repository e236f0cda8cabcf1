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
"""Layers that are used twice: behind themselves, gated, and added again.

A dense Jacobian may be cut at a layer only if all that comes behind it is held
as well.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import check_hessian, check_rows, draw

N = 24
SAMPLES = 48


def weights(rows, columns, seed):
  values = np.random.default_rng(seed).normal(size=[rows, columns])
  return tf.constant(values / np.sqrt(rows))


A, B, C = (weights(N, N, seed) for seed in (1, 2, 3))
NARROW, WIDE = weights(N, 3, 4), weights(3, N, 5)


def gated(x):
  s = tf.sigmoid(x @ A)
  return (s @ B) * s


def two_branches(x):
  h = tf.nn.softplus(x @ A + 0.3)
  return h @ B - 0.5 * (tf.cos(h) @ C) + 2.0 * h


def added_mean(x):
  h = tf.sin(x @ A)
  return h @ B + h * tf.reduce_mean(h, axis=-1, keepdims=True)


def stacked_residuals(x):
  first = tf.tanh(x @ A)
  second = first + tf.tanh(first @ B)
  return second @ C + second


def around_a_bottleneck(x):
  s = tf.tanh(x @ NARROW)
  return s @ WIDE + tf.exp(s @ (0.5 * WIDE)) + s[:, :1] * x


def attention(x):
  p = tf.nn.softmax(x @ A)
  return p @ B + p * x


def normalized(x):
  mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
  z = (x - mean) / tf.sqrt(variance + 0.1)
  return tf.nn.relu(z @ A) @ B + z


def squashed_sum(x):
  s = tf.atan(x @ A)
  return tf.tanh(s @ B - s)


def input_again(x):
  s = tf.tanh(x @ A)
  return (s + x) @ B + s * x


def layer_of_itself(x):
  s = tf.tanh(x @ A)
  t = s @ B
  return t @ C + t + s


def less_itself(x):
  s = tf.sigmoid(x @ A + 1.0)
  return s - 0.5 * (s @ B)


def of_a_bent_layer(x):
  s = tf.sin(x @ A)
  return tf.nn.softplus(s @ B) + tf.square(s)


def scaled_by_what_is_behind(x):
  s = tf.nn.elu(x @ A)
  return tf.exp(-s) * (s @ B + 1.0)


def doubled(x):
  """Two values of one layer are held: one leads to ys only past the other."""
  s = tf.sigmoid(x @ A)
  return (2.0 * s) * (s @ B + 1.0) + s


def of_each_other(x):
  """Both layers are held, and one is computed from the other."""
  s = tf.tanh(x @ A)
  t = tf.exp(-s)
  return t * (t @ B) + s * (s @ C)


def softmax_layer(x):
  """The normalizer is held; what the elements do through it counts there."""
  return tf.nn.softmax(x @ A) @ B


def centered_layer(x):
  """The mean is held, though the affine layer is computed from it."""
  a = x @ A
  s = tf.sin(a - tf.reduce_mean(a, axis=-1, keepdims=True))
  return (s @ B) * s * tf.exp(0.1 * tf.reduce_sum(s, axis=-1, keepdims=True))


# Cut, although their layers are used in several ways.
CUT = {
  gated: 4,
  of_a_bent_layer: 5,
  scaled_by_what_is_behind: 5,
  doubled: 6,
  of_each_other: 7,
  two_branches: 7,
  added_mean: 7,
  softmax_layer: 5,
  centered_layer: 8,
  attention: 8,
}
# Of some layer, one use lies behind another.
BEHIND = (
  less_itself,
  squashed_sum,
  layer_of_itself,
  of_each_other,
  softmax_layer,
)
FUNCTIONS = (
  less_itself,
  of_a_bent_layer,
  scaled_by_what_is_behind,
  gated,
  two_branches,
  added_mean,
  stacked_residuals,
  around_a_bottleneck,
  attention,
  normalized,
  squashed_sum,
  input_again,
  layer_of_itself,
  doubled,
  of_each_other,
  softmax_layer,
  centered_layer,
)


# Those that are cut are in a graph below.
@pytest.mark.parametrize(
  'way, fn',
  [
    *(('function', fn) for fn in FUNCTIONS if fn not in CUT),
    *(('eager', fn) for fn in (gated, of_each_other)),
  ],
)
def test_diagonal_of_a_jacobian(way, fn):
  check_rows(way, fn, draw(SAMPLES, N))


@pytest.mark.parametrize('fn', CUT, ids=lambda f: f.__name__)
def test_it_is_cut(fn):
  plan = tfp_diag.plan_diag_jacobian(fn, draw(SAMPLES, N), [SAMPLES])
  assert (plan.ways[0].name, plan.num_passes) == ('around cuts', CUT[fn])
  # Here no pass is compared that would replace wrong numbers.
  check_rows('function', fn, draw(SAMPLES, N, seed=5))


# Each function in two ways, each way with two functions or three.
@pytest.mark.parametrize(
  'way, fn',
  [
    (way, fn)
    for k, fn in enumerate(BEHIND)
    for way in (('function', 'open_plan'), ('xla', 'plan'))[k % 2]
  ],
)
def test_diagonal_of_a_jacobian_elsewhere(way, fn):
  check_rows(way, fn, draw(SAMPLES, N, seed=1))


@pytest.mark.parametrize(
  'samples, fn', [((1, 9)[k % 2], fn) for k, fn in enumerate(BEHIND)]
)
def test_fewer_samples(samples, fn):
  check_rows('eager', fn, draw(samples, N, seed=3))


@pytest.mark.parametrize(
  'way, fn',
  [
    ('function', less_itself),
    ('open_plan', less_itself),
    ('function', squashed_sum),
  ],
)
def test_a_layer_that_is_used_twice_in_a_log_density(way, fn):
  def log_prob(x):
    h = tf.tanh(x @ NARROW)
    return tf.reduce_sum(tf.square(fn(x)), -1) + tf.reduce_sum(h**2 + h, -1)

  check_hessian(way, log_prob, draw(3, N, seed=4))
