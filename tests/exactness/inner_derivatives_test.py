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
"""Functions that differentiate loops, branches and calls themselves.

TensorFlow adds outputs to these when it differentiates them, and each way to
differentiate adds its own.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import draw

# Passes within passes are written out: their number grows as N squared.
N = 2
MATRIX = draw(N, N)


def loop(x):
  def step(i, y):
    return i + 1, tf.sin(tf.linalg.matvec(MATRIX, y)) + x * y

  return tf.while_loop(lambda i, _: i < 3, step, [0, x])[1]


def branch(x):
  return tf.cond(
    tf.reduce_sum(x) > 0.1,
    lambda: tf.sin(x) * tf.linalg.matvec(MATRIX, x) ** 2,
    lambda: tf.exp(x) * tf.reverse(x, [-1]),
  )


def branch_in_a_loop(x):
  def step(i, y):
    y = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.sin(y) * x, lambda: y + x**2)
    return i + 1, y

  return tf.while_loop(lambda i, _: i < 3, step, [0, x])[1]


def until(x):
  """The number of steps depends on the data."""
  return tf.while_loop(
    lambda y: tf.reduce_sum(y**2) < 20.0, lambda y: [1.3 * y + tf.sin(x)], [x]
  )[0]


@tf.function(autograph=False)
def call(x):
  return loop(x)


def by_a_tape(fn, x, persistent=False):
  with tf.GradientTape(persistent=persistent) as tape:
    tape.watch(x)
    y = tf.reduce_sum(fn(x) ** 2)
  return tape.gradient(y, x) + fn(x)


INNER = {
  'a tape': by_a_tape,
  'a persistent tape': lambda fn, x: by_a_tape(fn, x, persistent=True),
  'gradients': lambda fn, x: tf.gradients(tf.reduce_sum(fn(x)), x)[0] * x,
  'a diagonal': lambda fn, x: tfp_diag.diag_jacobian(x, fn=fn)[1][0] * x,
  'twice': lambda fn, x: fn(fn(x) / (1.0 + fn(x) ** 2)),
}


def differences(fn, x, step=1e-6):
  """The diagonal of the Jacobian by central differences of values."""
  return [
    (fn(x + step * unit)[i] - fn(x - step * unit)[i]) / (2 * step)
    for i, unit in enumerate(np.eye(N))
  ]


FUNCTIONS = (loop, branch, branch_in_a_loop, until, call)


# By a tape all of them, in each other way some.
@pytest.mark.parametrize(
  ('inner', 'fn'),
  [
    *(('a tape', fn) for fn in FUNCTIONS),
    *(('a persistent tape', fn) for fn in (loop, branch_in_a_loop)),
    *(('gradients', fn) for fn in (branch, until, call)),
    *(('a diagonal', fn) for fn in (loop, branch, call)),
    *(('twice', fn) for fn in (branch_in_a_loop, until)),
  ],
)
def test_the_diagonal_of_the_jacobian(inner, fn):
  def function(x):
    return INNER[inner](fn, x)

  traced = tf.function(function, autograph=False)
  # A branch for each of these points.
  for seed in (0, 1):
    x = 0.7 * draw(N, seed=seed)
    got = tfp_diag.diag_jacobian(x, fn=function)[1][0]
    np.testing.assert_allclose(got, differences(traced, x), 1e-5, 1e-6)


@pytest.mark.parametrize(
  ('inner', 'fn'),
  [('a tape', loop), ('gradients', branch_in_a_loop), ('twice', branch)],
)
def test_the_diagonal_of_the_hessian(inner, fn):
  def value(x):
    return tf.reduce_sum(tf.sin(INNER[inner](fn, x)))

  x = 0.7 * draw(N)
  slope = tf.function(lambda x: tf.gradients(value(x), x)[0], autograph=False)
  wanted = differences(slope, x)
  np.testing.assert_allclose(tfp_diag.diag_hessian(value, x)[2], wanted, 1e-5)
