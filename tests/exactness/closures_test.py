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
"""Partial derivatives in every regime: all but the arguments is held."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import REGIMES, copy_of, draw, in_regime, same
from tests.oracles import sample_diagonal

N = 17
SAMPLES = 3
PLANNED = (*REGIMES, 'plan')


def jacobian(way, make_fn, x):
  """The diagonal of `make_fn(x)` by x, in a regime, or with a plan in it."""

  def call(x):
    fn = make_fn(x)
    plan = None
    if way == 'plan':
      plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[SAMPLES])
    return tfp_diag.diag_jacobian(x, sample_shape=[SAMPLES], fn=fn, plan=plan)[
      1
    ][0]

  return in_regime('function' if way == 'plan' else way, call, x)


def itself(x):
  return lambda z: tf.sin(z) * x


def its_neighbors(x):
  return lambda z: z**2 * tf.roll(x, 1, axis=1) + x**3


def what_was_made_of_it(x):
  hidden = tf.exp(x) + tf.reverse(x, [1])
  return lambda z: tf.tanh(z * hidden)


def its_sum(x):
  total = tf.reduce_sum(x, axis=1, keepdims=True)
  return lambda z: z**3 / (2.0 + total**2)


def its_matrix(x):
  gram = tf.matmul(x, x, transpose_a=True)
  return lambda z: tf.sin(z) * tf.linalg.diag_part(gram) + z @ gram


CLOSURES = (
  itself,
  its_neighbors,
  what_was_made_of_it,
  its_sum,
  its_matrix,
)


@pytest.mark.parametrize('make_fn', CLOSURES, ids=lambda f: f.__name__)
@pytest.mark.parametrize('way', PLANNED)
def test_a_closure_over_the_argument(way, make_fn):
  x = draw(SAMPLES, N)
  want = sample_diagonal(make_fn(copy_of(x)), copy_of(x))
  same(jacobian(way, make_fn, x), want)


@pytest.mark.parametrize('regime', REGIMES)
def test_a_closure_in_a_log_density(regime):
  x = draw(SAMPLES, N, seed=1)

  def call(x):
    held = tf.roll(tf.cos(x), 2, axis=1)
    return tfp_diag.diag_hessian(
      lambda z: tf.reduce_sum(z**3 * x + tf.exp(z) * held, axis=-1), x
    )

  v = x.numpy()
  held = np.roll(np.cos(v), 2, axis=1)
  _, gradient, diag = in_regime(regime, call, x)
  same(gradient, 3 * v**3 + np.exp(v) * held)
  same(diag, 6 * v**2 + np.exp(v) * held)


@pytest.mark.parametrize('regime', REGIMES)
def test_a_normalizer_over_the_argument(regime):
  """Dense, so that it is taken op by op."""
  x = draw(SAMPLES, N, seed=2)

  def call(x):
    return tfp_diag.diag_hessian(
      lambda z: tf.reduce_logsumexp(z * x, axis=-1), x
    )[2]

  v = x.numpy()
  p = np.exp(v**2) / np.exp(v**2).sum(1, keepdims=True)
  same(in_regime(regime, call, x), v**2 * p * (1 - p))


# One Tensor as two parts.


@pytest.mark.parametrize('regime', (*REGIMES, 'plan'))
def test_one_tensor_as_two_parts(regime):
  def fn(a, b):
    return [tf.sin(a) * b, a**2 + b**3 * tf.roll(a, 1, axis=1)]

  def call(x):
    plan = None
    if regime == 'plan':
      plan = tfp_diag.plan_diag_jacobian(fn, [x, x], sample_shape=[SAMPLES])
    return tfp_diag.diag_jacobian(
      [x, x], sample_shape=[SAMPLES], fn=fn, plan=plan
    )[1]

  x = draw(SAMPLES, N, seed=3)
  v = x.numpy()
  first, second = in_regime('function' if regime == 'plan' else regime, call, x)
  same(first, np.cos(v) * v)
  same(second, 3 * v**2 * np.roll(v, 1, axis=1))


@pytest.mark.parametrize('regime', REGIMES)
def test_one_tensor_as_three_parts_of_a_dict(regime):
  def log_prob(a, b, c):
    return tf.reduce_sum(a**2 * b * c**3 + tf.sin(b), axis=-1)

  def call(x):
    return tfp_diag.diag_hessian(log_prob, {'a': x, 'b': x, 'c': x})

  x = draw(SAMPLES, N, seed=4)
  v = x.numpy()
  _, gradient, diag = in_regime(regime, call, x)
  same(gradient['a'], 2 * v**5)
  same(gradient['b'], v**5 + np.cos(v))
  same(gradient['c'], 3 * v**5)
  same(diag['a'], 2 * v**4)
  same(diag['b'], -np.sin(v))
  same(diag['c'], 6 * v**4)


@pytest.mark.parametrize('regime', REGIMES)
def test_a_part_made_of_the_other(regime):
  """The second part comes from the first; both are held apart."""

  def call(x):
    y = tf.tanh(x)
    return tfp_diag.diag_jacobian(
      [x, y],
      sample_shape=[SAMPLES],
      fn=lambda a, b: [a * b**2, tf.exp(a) * b**3],
    )[1]

  x = draw(SAMPLES, N, seed=5)
  v, t = x.numpy(), np.tanh(x)
  first, second = in_regime(regime, call, x)
  same(first, t**2)
  same(second, 3 * np.exp(v) * t**2)


@pytest.mark.parametrize('regime', REGIMES)
def test_an_identity_is_another_tensor(regime):
  def call(x):
    alias = tf.identity(x)
    return tfp_diag.diag_jacobian(
      alias, sample_shape=[SAMPLES], fn=lambda z: z * x * alias
    )[1][0]

  x = draw(SAMPLES, N, seed=6)
  same(in_regime(regime, call, x), x.numpy() ** 2)


@pytest.mark.parametrize('regime', REGIMES[:2])
def test_a_variable_in_the_closure(regime):
  variable = tf.Variable(draw(SAMPLES, N, seed=7))

  def call():
    return tfp_diag.diag_jacobian(
      variable, sample_shape=[SAMPLES], fn=lambda z: z**2 * variable
    )[1][0]

  same(in_regime(regime, call), 2 * variable.numpy() ** 2)


@pytest.mark.parametrize('regime', REGIMES)
def test_a_tape_around_follows_both(regime):
  """∂z (z² x) = 2 z x, whose derivative by x = z is 4 x."""

  def call(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      diag = tfp_diag.diag_jacobian(
        x, sample_shape=[SAMPLES], fn=lambda z: z**2 * x
      )[1][0]
    return diag, tape.gradient(diag, x)

  x = draw(SAMPLES, N, seed=8)
  diag, again = in_regime(regime, call, x)
  same(diag, 2 * x.numpy() ** 2)
  same(again, 4 * x.numpy())
