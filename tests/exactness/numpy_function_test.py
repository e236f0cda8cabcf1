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
"""A path through `tf.numpy_function` is refused, and no other use of it.

TensorFlow takes the result for a constant: x + numpy_function(x²) would have
the derivative 1.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag

X = tf.constant([[0.5, -1.0], [2.0, 3.0]], tf.float64)
MATCH = 'tf.numpy_function.*no derivative leads'


def squared(x):
  y = tf.numpy_function(np.square, [x], x.dtype)
  y.set_shape(x.shape)
  return y


@tf.custom_gradient
def with_gradient(x):
  return squared(x), lambda upstream: 2.0 * upstream * x


@tf.custom_gradient
def with_numpy_in_its_gradient(x):
  return tf.square(x), lambda upstream: upstream * squared(x)


NO_PATHS = [
  lambda x: tf.square(x) + 0.0 * squared(tf.stop_gradient(x)),
  lambda x: tf.square(x) + 0.0 * tf.stop_gradient(squared(x)),
  lambda x: tf.where(squared(x) > -1.0, tf.square(x), x),
  with_gradient,
]


def total(fn):
  return lambda x: tf.reduce_sum(fn(x), -1)


def in_a_function(fn):
  return tf.function(fn, autograph=False)


def in_a_loop(fn):
  def looped(x):
    return tf.while_loop(
      lambda i, y: i < 2, lambda i, y: (i + 1, y + fn(x)), [0, tf.zeros_like(x)]
    )[1]

  return looped


def in_a_branch(fn):
  # A value that is not known while the graph is made.
  return lambda x: tf.cond(
    tf.reduce_sum(tf.stop_gradient(x)) > -100.0,
    lambda: fn(x),
    lambda: tf.zeros_like(x),
  )


def in_a_map(fn):
  return lambda x: tf.map_fn(fn, x)


def in_a_loop_in_a_function(fn):
  return in_a_function(in_a_loop(fn))


WITHIN = [
  in_a_function,
  in_a_loop,
  in_a_branch,
  in_a_map,
  in_a_loop_in_a_function,
]


CALLS = {
  'diag_jacobian': lambda fn: tfp_diag.diag_jacobian(
    X, fn=fn, sample_shape=[2]
  )[1][0],
  'jacobian': lambda fn: tfp_diag.jacobian(fn, X, [2]),
  'diag_hessian': lambda fn: tfp_diag.diag_hessian(total(fn), X)[2],
  'in a function': lambda fn: tf.function(
    lambda x: tfp_diag.diag_hessian(total(fn), x)[2], autograph=False
  )(X),
  'unmixed': lambda fn: tfp_diag.unmixed_derivatives(total(fn), X).second,
  'plan': lambda fn: tfp_diag.plan_diag_hessian(
    total(fn), tf.TensorSpec([2, 2], tf.float64)
  )(X)[2],
}


@pytest.mark.parametrize('call', CALLS)
def test_a_path_is_refused(call):
  with pytest.raises(LookupError, match=MATCH):
    CALLS[call](lambda x: x**2 + squared(tf.sin(x)))


@pytest.mark.parametrize('within', WITHIN)
@pytest.mark.parametrize('call', ['diag_jacobian', 'diag_hessian'])
def test_a_path_within_functions_is_refused(call, within):
  fn = within(lambda x: x**2 + squared(tf.sin(x)))
  with pytest.raises(LookupError, match=MATCH):
    CALLS[call](fn)


@pytest.mark.parametrize(
  'fn, within',
  [
    (fn, within)
    for fn in NO_PATHS
    for within in WITHIN
    # TensorFlow itself cannot differentiate that.
    if (fn, within) != (with_gradient, in_a_branch)
  ],
)
def test_no_path_within_functions_is_no_matter(fn, within):
  found = CALLS['diag_hessian'](within(fn))
  times = 2.0 if 'loop' in within.__name__ else 1.0
  np.testing.assert_allclose(found, np.full([2, 2], 2.0 * times))


def test_a_path_of_a_gradient_is_refused():
  with pytest.raises(LookupError, match=MATCH):
    CALLS['diag_hessian'](with_numpy_in_its_gradient)
  # Its first derivatives are as they are told.
  diag = CALLS['diag_jacobian'](with_numpy_in_its_gradient)
  np.testing.assert_allclose(diag, X**2)


@pytest.mark.parametrize('fn', NO_PATHS)
@pytest.mark.parametrize('call', CALLS)
def test_no_path_is_no_matter(call, fn):
  found = CALLS[call](fn)
  is_first = 'jacobian' in call
  expected = 2.0 * X if is_first else np.full([2, 2], 2.0)
  if call == 'jacobian':
    expected = tf.linalg.diag(expected)
  np.testing.assert_allclose(tf.convert_to_tensor(found), expected)


def test_a_gradient_that_can_be_computed_once():
  def fn(x):
    y = tf.py_function(lambda a: a**2, [x], tf.float64)
    return tf.ensure_shape(y, x.shape)

  def diagonal(x):
    return tfp_diag.diag_jacobian(x, fn=fn)[1][0]

  x = tf.constant([0.5, 2.0], tf.float64)
  for call in (
    lambda: diagonal(x),
    lambda: tf.function(diagonal, autograph=False)(x),
    lambda: tfp_diag.jacobian(fn, x),
    lambda: tfp_diag.plan_diag_jacobian(fn, x)(x),
  ):
    with pytest.raises(LookupError, match='more than one pass'):
      call()
  np.testing.assert_allclose(diagonal(x[:1]), [1.0])


def test_another_gradient_may_be_computed_often():
  @tf.custom_gradient
  def cubed(x):
    y = tf.py_function(lambda a: a**3, [x], tf.float64)
    return tf.ensure_shape(y, x.shape), lambda dy: 3 * x**2 * dy

  def fn(x):
    return cubed(x) * tf.reduce_sum(x)

  x = tf.constant([0.5, 2.0], tf.float64)
  expected = 3 * x**2 * tf.reduce_sum(x) + x**3
  _, (diag,) = tfp_diag.diag_jacobian(x, fn=fn)
  np.testing.assert_allclose(diag, expected)
  matrix = tfp_diag.jacobian(fn, x)
  np.testing.assert_allclose(tf.linalg.diag_part(matrix), expected)
