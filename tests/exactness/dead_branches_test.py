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
"""What `tf.where` does not select may be infinite, and changes no derivative.

TensorFlow's gradients of some ops select a cotangent where others multiply it:
zero times infinity is NaN, and a zero that is selected is zero.
"""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_by_copies
from tfp_diag.diagonal import proposals
from tfp_diag.sparsity.registry import facts

RNG = np.random.default_rng(0)
DATA = tf.constant(RNG.uniform(0.2, 1.0, size=(20, 6)))
MASK = tf.constant(RNG.uniform(size=20) < 0.6)
INF = tf.constant(np.inf, tf.float64)
ZERO = tf.zeros([], tf.float64)
FACTORS = tf.constant([1.0, 2.0], tf.float64)
# Both signs of predictors, in each of two samples.
X = tf.constant([[1.0, -1, 2, -2, 1, -1.5], [0.3, -1, -2, 0.2, 1, 1.5]])
X = tf.cast(X, tf.float64)


def of_infinite(fn):
  return lambda t: fn(tf.where(MASK, t, INF))


FUNCTIONS = {
  'sqrt': lambda t: tf.where(t > 0, tf.sqrt(tf.where(t > 0, t, ZERO)), ZERO),
  'log': lambda t: tf.where(
    MASK, tf.math.log(tf.where(MASK, tf.exp(t) + 1, ZERO)), ZERO
  ),
  'quotient': lambda t: tf.where(
    MASK, 1 / tf.where(MASK, 2 + tf.tanh(t), ZERO), ZERO
  ),
  'power': lambda t: tf.where(t > 0, tf.where(t > 0, t, ZERO) ** 1.5, ZERO),
  'maximum': lambda t: tf.where(t > 0, tf.sqrt(tf.maximum(t, ZERO)), ZERO),
  'clip': lambda t: tf.where(
    t > 0, tf.math.log(tf.clip_by_value(t, ZERO, 10.0)), ZERO
  ),
  'linear': lambda t: tf.where(
    MASK, tf.sqrt(tf.where(MASK, t + 9.0, ZERO)), ZERO
  ),
  'no_nan': lambda t: tf.math.multiply_no_nan(
    tf.math.log(tf.where(MASK, t + 9.0, ZERO)), tf.cast(MASK, t.dtype)
  ),
  'erfc': of_infinite(lambda t: tf.math.log(tf.math.erfc(-t))),
  'joint': of_infinite(
    lambda t: tf.math.log(
      tf.sigmoid(t) * tf.tanh(t) * tf.sigmoid(t - 1)
      + 2.0
      + tf.exp(-t) * tf.tanh(t) * tf.sigmoid(2 * t)
    )
  ),
}


# The ways of each function, eagerly; one of them, in turns, in a graph, and of
# two after the other one under XLA.
@pytest.mark.parametrize('way', ['sweeps', 'terms'])
@pytest.mark.parametrize('name', list(FUNCTIONS))
def test_dead_branches_add_nothing(name, way, monkeypatch):
  if way == 'terms':
    monkeypatch.setattr(proposals, 'by_sweeps', lambda *_: [])

  def fn(w):
    return tf.reduce_sum(FUNCTIONS[name](tf.linalg.matvec(DATA, w)), axis=-1)

  expected = hessian_by_copies(fn, X)
  assert np.isfinite(expected).all()
  found = []
  with warnings.catch_warnings():
    # The passes would be right, too: nothing is to be refused.
    warnings.simplefilter('error')
    if way == 'sweeps':
      found.append(tfp_diag.diag_hessian(fn, X)[2])
    else:
      plan = tfp_diag.plan_diag_hessian(fn, tf.ones_like(X))
      assert plan.uses_terms
      found.append(plan(X)[2])
  number = list(FUNCTIONS).index(name)
  if number % 2 == (way == 'sweeps'):
    in_graph = tf.function(
      lambda x: tfp_diag.diag_hessian(fn, x)[2],
      autograph=False,
      jit_compile=number % 4 < 2,
    )
    found.append(in_graph(X))
  for diag in found:
    np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-12)


def test_an_infinite_predictor_beside_a_finite_one():
  # Both are elements of one joint frontier, with a product for each.
  is_open = np.stack([np.ones(20, bool), MASK.numpy()], axis=1)

  def fn(w):
    t = tf.einsum('ni,sij->snj', DATA, tf.reshape(w, [-1, 6, 2]))
    t = tf.where(is_open, t, INF)
    up = tf.reduce_sum(tf.sigmoid(t) * FACTORS, axis=-1)
    down = tf.reduce_sum(tf.exp(-t) / FACTORS, axis=-1)
    rates = up * down * tf.tanh(up - down) + up / (1.0 + down) + 2.0
    return tf.reduce_sum(tf.math.log(rates), axis=-1)

  x = tf.constant(RNG.normal(size=(2, 12)))
  expected = hessian_by_copies(fn, x)
  assert np.isfinite(expected).all()
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert 'differentiated as a whole: 2 products' in str(plan)
  found = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])(x)
  np.testing.assert_allclose(found, expected, rtol=1e-9)


RAW = tf.raw_ops
TWO = tf.constant([-1.0, 0.0, 0.5, 7.0], tf.float64)
GATE = tf.constant([0.0, 0.0, 1.0, 2.0], tf.float64)
OPS = {
  ('Maximum', 0): lambda x: RAW.Maximum(x=x, y=GATE),
  ('Maximum', 1): lambda x: RAW.Maximum(x=GATE, y=x),
  ('Minimum', 0): lambda x: RAW.Minimum(x=x, y=GATE),
  ('Minimum', 1): lambda x: RAW.Minimum(x=GATE, y=x),
  ('ClipByValue', 0): lambda x: RAW.ClipByValue(
    t=x, clip_value_min=ZERO, clip_value_max=ZERO + 1
  ),
  ('SelectV2', 1): lambda x: RAW.SelectV2(condition=GATE > 0, t=x, e=GATE),
  ('SelectV2', 2): lambda x: RAW.SelectV2(condition=GATE > 0, t=GATE, e=x),
  ('MulNoNan', 0): lambda x: RAW.MulNoNan(x=x, y=GATE),
  ('MulNoNan', 1): lambda x: RAW.MulNoNan(x=GATE, y=x),
  ('DivNoNan', 0): lambda x: RAW.DivNoNan(x=x, y=GATE),
  ('Mul', 0): lambda x: RAW.Mul(x=x, y=GATE),
  ('Xlogy', 1): lambda x: RAW.Xlogy(x=GATE, y=x + 3),
  ('Square', 0): lambda x: RAW.Square(x=x),
}


@pytest.mark.parametrize(('op_type', 'number'), list(OPS))
def test_which_gradients_select_is_what_tensorflow_does(op_type, number):
  def gradient(cotangent):
    with tf.GradientTape() as tape:
      tape.watch(TWO)
      y = OPS[op_type, number](TWO)
    return tape.gradient(y, TWO, output_gradients=cotangent).numpy()

  is_zero = gradient(tf.ones_like(TWO)) == 0
  assert is_zero.any()
  of_nan = gradient(tf.fill([4], tf.constant(np.nan, tf.float64)))[is_zero]
  selects = number in facts(op_type).selects
  assert np.all(of_nan == 0) if selects else np.all(np.isnan(of_nan))


def test_a_power_that_is_too_large_for_a_number_is_not_computed():
  # The derivative of the exponential is 1e194, its square is no number.
  def fn(w):
    return tf.reduce_sum(tf.sqrt(1.0 + tf.exp(tf.linalg.matvec(DATA, w))), -1)

  x = tf.fill([2, 6], tf.constant(90.0, tf.float64))
  expected = hessian_by_copies(fn, x)
  assert np.isfinite(expected).all()
  assert tfp_diag.plan_diag_hessian(fn, x).how == 'squared sweeps'
  found = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])(x)
  np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_complex_numbers_are_no_frontier():
  x = tf.constant(RNG.normal(size=(3, 5)))

  def fn(x):
    return tf.reduce_sum(tf.signal.dct(x, type=2, norm='ortho') ** 3, axis=-1)

  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = tfp_diag.diag_hessian(fn, x)[2]
  np.testing.assert_allclose(found, hessian_by_copies(fn, x), rtol=1e-9)
