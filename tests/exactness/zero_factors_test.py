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
"""A factor that is zero for all inputs, in all elements but a few.

The other factor of a product has no part in derivatives there. By itself it has
derivatives nevertheless, which a way may add up before it multiplies.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import check_hessian, check_jacobian, draw, same
from tests.oracles import unmixed_diagonals

RNG = np.random.default_rng(5)
N, ROWS = 6, 12
DESIGN = tf.constant(RNG.normal(size=[ROWS, N]) / 2.0)
ONE = tf.one_hot(3, ROWS, dtype=tf.float64)
FEW = tf.constant(RNG.uniform(size=ROWS) < 0.3)

pytestmark = pytest.mark.usefixtures('prefers_sweeps')


def predictor(x):
  return tf.linalg.matvec(DESIGN, x)


def one_row(x):
  return ONE * predictor(tf.sin(x)) * predictor(x) ** 2


def one_row_of_a_matrix(x):
  matrix = ONE[:, tf.newaxis] * tf.ones([N], tf.float64)
  return tf.linalg.matvec(matrix, x) * tf.exp(predictor(x))


def one_shock(x):
  """In a time series, as large as two of the parameters say."""
  size = tf.exp(x[..., :1]) * tf.sin(x[..., 1:2])
  zeros = tf.zeros_like(predictor(x))
  shock = tf.concat([zeros[..., :5], size, zeros[..., 6:]], -1)
  return shock * predictor(x) ** 2


def padded(x):
  paddings = [[0, 0]] * (x.shape.rank - 1) + [[0, ROWS - 1]]
  return tf.pad(predictor(x)[..., :1], paddings) * tf.exp(predictor(x))


def quotient(x):
  """The second derivative by the denominator is zero where this is."""
  return ONE * predictor(x) / (2.0 + tf.exp(predictor(x)))


def squared_rest(x):
  rest = tf.where(ONE > 0, predictor(x), tf.zeros([], tf.float64))
  return rest**2 * predictor(tf.cos(x))


def a_few_rows(x):
  few = tf.cast(FEW, tf.float64) * predictor(x)
  return few * predictor(tf.sin(x)) + predictor(x) ** 3


def masked_argument(x):
  """The mask is on the way from where paths split to a curved op."""
  s = tf.tanh(tf.cumsum(x, -1))
  both = tf.stack([s * tf.sin(s), tf.cos(s)], -1)
  return tf.sin(both[..., 0]) + tf.reduce_sum(tf.sin(both * [1.0, 0.0]), -1)


def masked_pairs(x):
  first, second = x[..., :1], x[..., 1:2]
  both = tf.concat([first * second + first, second * first, x], -1)
  return tf.sin(both * np.array([1.9, 0.0, *[1.0] * N]))


FUNCTIONS = (
  masked_argument,
  masked_pairs,
  one_row,
  one_row_of_a_matrix,
  one_shock,
  padded,
  quotient,
  squared_rest,
  a_few_rows,
)


def total(fn):
  return lambda x: tf.reduce_sum(fn(x), -1)


@pytest.mark.parametrize('fn', FUNCTIONS)
def test_second_derivatives(fn):
  for way in ('function', 'open_plan'):
    check_hessian(way, total(fn), draw(3, N))
  check_hessian('xla', total(fn), draw(N))


@pytest.mark.parametrize('fn', FUNCTIONS)
def test_third_derivatives(fn):
  x = draw(3, N, seed=1)
  call = tf.function(lambda x: tfp_diag.unmixed_derivatives(total(fn), x))
  found = call(x)
  second, third = unmixed_diagonals(total(fn), x)
  same(found.second, second)
  same(found.third, third)


@pytest.mark.parametrize('fn', FUNCTIONS[1:5])
def test_scores(fn):
  def score(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = total(fn)(x)
    return tape.gradient(value, x)

  check_jacobian('function', score, draw(3, N))
