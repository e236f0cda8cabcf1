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
"""Functions of Variables: those that know them, and those that are given them.

What was wrong: a function that takes any number of arguments was called with
none, so that its derivatives were zero, or it failed.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag

tfd = tfp.distributions


def variables():
  return [tf.Variable([0.5, -2.0]), tf.Variable([[3.0]])]


def cubes(*parts):
  return tf.reduce_sum(tf.stack([tf.reduce_sum(x**3) for x in parts]))


def products(*parts):
  first, second = parts
  return tf.reduce_sum(first**2) * tf.reduce_sum(second**2)


def named(**parts):
  return products(parts['first'], parts['second'])


def hessian(regime, fn, xs):
  def diag():
    return tfp_diag.diag_hessian(fn, xs)[2]

  if regime == 'plan':
    return tfp_diag.plan_diag_hessian(fn, xs)(xs)[2]
  if regime == 'eager':
    return diag()
  return tf.function(diag, autograph=False, jit_compile=regime == 'xla')()


@pytest.mark.parametrize('regime', ['eager', 'function', 'xla', 'plan'])
def test_any_number_of_arguments(regime):
  first, second = variables()
  a, b = first.numpy(), second.numpy()
  for found in (
    hessian(regime, cubes, [first, second]),
    hessian(regime, lambda *_: cubes(first, second), [first, second]),
    hessian(regime, lambda: cubes(first, second), [first, second]),
    hessian(regime, lambda *, c=cubes: c(first, second), [first, second]),
  ):
    np.testing.assert_allclose(found[0], 6 * a)
    np.testing.assert_allclose(found[1], 6 * b)
  want = 2 * np.sum(b**2) * np.ones(2), [[2 * np.sum(a**2)]]
  for found in (
    hessian(regime, products, (first, second)),
    tf.nest.flatten(hessian(regime, named, {'first': first, 'second': second})),
  ):
    np.testing.assert_allclose(found[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], want[1], rtol=1e-6)


def test_a_jacobian():
  first, second = variables()
  ys, diag = tfp_diag.diag_jacobian(
    [first, second], fn=lambda *xs: [x**2 * xs[1][0, 0] for x in xs]
  )
  np.testing.assert_allclose(ys[0], first**2 * 3.0)
  np.testing.assert_allclose(diag[0], 2.0 * first * 3.0)
  np.testing.assert_allclose(diag[1], [[27.0]])


def test_a_joint_distribution():
  joint = tfd.JointDistributionSequential(
    [
      tfd.Normal(0.0, 1.0),
      lambda a: tfd.Normal(a, 2.0),
      lambda b, a: tfd.StudentT(3.0, b, 1.0),
    ]
  )
  xs = [tf.Variable(0.3), tf.Variable(1.0), tf.Variable(-0.5)]
  _, gradient, diag = tfp_diag.diag_hessian(joint.log_prob, xs)
  _, same_gradient, same = tfp_diag.diag_hessian(
    joint.log_prob, [tf.constant(x) for x in xs]
  )
  np.testing.assert_allclose(gradient, same_gradient)
  np.testing.assert_allclose(diag, same)
  np.testing.assert_allclose(diag[0], -1.25)


def test_arguments_with_defaults():
  xs = variables()

  def fn(first=0.0, second=1.0):
    return tf.reduce_sum(tf.sin(first)) + tf.reduce_sum(second)

  with pytest.raises(TypeError, match=r'lambda \*xs: fn\(\*xs\)'):
    tfp_diag.diag_hessian(fn, xs)
  with pytest.raises(TypeError, match='reads none of the Variables'):
    tf.function(lambda: tfp_diag.plan_diag_hessian(fn, xs))()
  _, _, diag = tfp_diag.diag_hessian(lambda *xs: fn(*xs), xs)
  np.testing.assert_allclose(diag[0], -np.sin([0.5, -2.0]), rtol=1e-6)
  # As functions are made in loops; one reads a Variable in a `tf.function`.
  factors = [2.0, tf.function(lambda: xs[1][0, 0])]
  for k in factors:
    _, _, diag = tfp_diag.diag_hessian(
      lambda k=k, of=cubes: (k() if callable(k) else k) * of(*xs), xs
    )
    np.testing.assert_allclose(
      diag[0], 6 * xs[0] * (k() if callable(k) else k), rtol=1e-6
    )


def test_a_constant_has_no_curvature():
  xs = variables()
  for fn in (lambda: tf.constant(3.0), lambda *xs: tf.constant(3.0)):
    assert not any(map(np.any, tfp_diag.diag_hessian(fn, xs)[2]))
