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
"""Differences of copies: derivatives by what is copied cancel, by a copy not.

So no copy may be held, nor be where a sweep starts anew, as if those by it
canceled, too.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import check_hessian, check_jacobian, draw, same
from tests.oracles import unmixed_diagonals

RNG = np.random.default_rng(8)
N, M = 24, 7
WEIGHTS = tf.constant(RNG.normal(size=[M, N]))
FACTORS = tf.constant(np.arange(1.0, 5.0))


def bent(x):
  """Many paths lead to the first of these."""
  return tf.concat([tf.sin(x[:, :1]) + x[:, :1] ** 2, x[:, 1:4]], -1)


def product(x):
  first = tf.exp(0.3 * x[:, :1]) * tf.sin(x[:, 1:2]) * x[:, :1]
  return tf.concat([first, x[:, 1:4]], -1)


def against_the_first(x):
  v = bent(x)
  return tf.reduce_sum(tf.exp(v - v[:, :1]) * FACTORS, -1)


def products_against_the_first(x):
  v = product(x)
  return tf.reduce_sum(tf.cosh(v - v[:, :1] + 0.3) * FACTORS, -1)


def one_squared_difference(x):
  """Beside that of the first element and itself."""
  v = bent(x)[:, :2]
  squares = tf.math.squared_difference(v, v[:, :1])
  return tf.math.log(2.0 + tf.reduce_sum(squares * FACTORS[:2], -1))


def there_and_back(x):
  turned = tf.reverse(x, [1])
  back = tf.reverse(turned, [1])
  z = back + tf.sin(back) * back
  return tf.reduce_sum(tf.sin((z + x - back) * tf.cos(z)), -1)


def tree(x):
  """Roots are their own parents."""
  y = tf.gather(x, range(6), axis=1)
  steps = y - tf.gather(x, [0, 1, 1, 1, 4, 5], axis=1)
  return tf.math.log(9.0 + tf.reduce_sum(tf.exp(y) * tf.sin(y + steps), 1))


@pytest.mark.parametrize(
  'fn',
  [
    against_the_first,
    products_against_the_first,
    one_squared_difference,
    there_and_back,
    tree,
  ],
)
def test_no_sweep_starts_at_a_copy(fn, prefers_sweeps):
  for way in ('function', 'open_plan'):
    check_hessian(way, fn, draw(3, 6))


def squares_of_one_shape(x):
  v = bent(x)[:, :2]
  squares = tf.math.squared_difference(v, tf.gather(v, [0, 0], axis=1))
  return tf.reduce_sum(squares * FACTORS[:2], -1) + tf.sin(v[:, 1]) * x[:, 2]


@pytest.mark.parametrize('fn', [one_squared_difference, squares_of_one_shape])
def test_third_derivatives(fn, prefers_sweeps):
  x = draw(3, 6)
  found = tf.function(lambda x: tfp_diag.unmixed_derivatives(fn, x))(x)
  second, third = unmixed_diagonals(fn, x)
  same(found.second, second)
  same(found.third, third)


def values(x):
  found = tf.sin(x[:, tf.newaxis, :] * WEIGHTS) ** 2
  found = tf.sqrt(1.0 + tf.reduce_sum(found, -1))
  return tf.concat([found, x[:, M:]], -1)


def against_a_reference(x):
  v = values(x)
  return v - v[:, :1]


def against_the_last(x):
  v = tf.reverse(values(x), [1])
  return tf.sin(x) * (v - v[:, -1:])


def permuted(x):
  """Some keep their places."""
  v = x + tf.tanh(x @ tf.transpose(WEIGHTS)) @ WEIGHTS
  return tf.sin(tf.gather(v, [1, 0, 3, 2, *range(4, N)], axis=1) - v)


@pytest.mark.parametrize(
  'fn', [against_a_reference, against_the_last, permuted]
)
def test_a_copy_that_is_held(fn):
  check_jacobian('function', fn, draw(16, N))
