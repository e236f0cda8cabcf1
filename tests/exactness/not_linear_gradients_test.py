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
"""Custom gradients that are not linear in their cotangents.

A tape calls them with unit cotangents, row by row. What other seeds give, a
sign turned round or a tangent, is another number.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import dense_jacobian, hessian_by_copies, jacobian_by_copies

GRADIENTS = {
  'guided': lambda x, dy: tf.nn.relu(dy) * tf.cast(x > 0, x.dtype),
  'offset': lambda x, dy: dy * tf.cos(x) + 0.5 * x,
  'clipped': lambda x, dy: tf.clip_by_value(dy, -0.1, 0.8) * tf.cos(x),
  'leaky': lambda x, dy: tf.where(dy > 0, dy, 0.1 * dy) * tf.cos(x),
  'without cotangent': lambda x, dy: tf.cos(x),
  'partly constant': lambda x, dy: tf.where(x > 0.8, dy, 1.0),
  'padded': lambda x, dy: tf.pad(
    dy[..., 1:], [[0, 0]] * (len(x.shape) - 1) + [[1, 0]], constant_values=0.3
  ),
  'joined': lambda x, dy: tf.concat([dy[..., :1], x[..., 1:]], -1),
}
LINEAR = {
  'slope': lambda x, dy: dy * tf.cos(x),
  'selected': lambda x, dy: tf.where(x > 0.8, dy, 0.0),
  'zeros joined': lambda x, dy: tf.concat([dy[..., :1], 0.0 * dy[..., 1:]], -1),
  'constant zero': lambda x, dy: tf.zeros_like(x),
}


def with_gradient(gradient):
  @tf.custom_gradient
  def sine(x):
    return tf.sin(x), lambda dy: gradient(x, dy)

  return sine


FUNCTIONS = {
  'alone': lambda f: f,
  'scaled': lambda f: lambda x: 3 * f(2 * x),
  'beside others': lambda f: lambda x: f(x) * tf.roll(x, 1, -1),
  'layers': lambda f: lambda x: tf.tanh(f(x)) + f(tf.roll(x, 1, -1) ** 2),
}


def draw(*shape):
  return tf.constant(np.random.default_rng(3).uniform(0.3, 1.4, shape))


def value_of(fn):
  return lambda x: tf.reduce_sum(fn(x) ** 2, -1)


SPEC = tf.TensorSpec([None, 5], tf.float64)
JACOBIANS = {
  'eager': lambda fn, x: tfp_diag.diag_jacobian(x, sample_shape=[3], fn=fn)[1],
  'graph': lambda fn, x: tf.function(
    lambda x: JACOBIANS['eager'](fn, x), autograph=False
  )(x),
  'XLA': lambda fn, x: tf.function(
    lambda x: JACOBIANS['eager'](fn, x), autograph=False, jit_compile=True
  )(x),
  'plan': lambda fn, x: tfp_diag.plan_diag_jacobian(fn, SPEC, [None])(x)[1],
  'validated': lambda fn, x: tfp_diag.diag_jacobian(
    x, sample_shape=[3], fn=fn, validate_args=True
  )[1],
}
HESSIANS = {
  'eager': lambda fn, x: tfp_diag.diag_hessian(fn, x)[2],
  'graph': lambda fn, x: tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2], autograph=False
  )(x),
  'plan': lambda fn, x: tfp_diag.plan_diag_hessian(fn, SPEC)(x)[2],
  'validated': lambda fn, x: tfp_diag.diag_hessian(fn, x, validate_args=True)[
    2
  ],
  'unmixed': lambda fn, x: tfp_diag.unmixed_derivatives(fn, x)[2],
}


ALL = {**GRADIENTS, **LINEAR}


def in_turns(*turns):
  """Cases of a gradient each, of functions and of ways to ask for them."""
  return [
    (gradient, function, ways)
    for i, gradient in enumerate(sorted(ALL))
    for function, ways in turns[i % len(turns)].items()
  ]


# Each gradient is tried in graphs, of the last function, and in other ways.
@pytest.mark.parametrize(
  'gradient, function, ways',
  in_turns(
    {'alone': ['XLA'], 'beside others': ['validated'], 'layers': ['graph']},
    {'scaled': ['plan'], 'beside others': ['eager'], 'layers': ['graph']},
    {'beside others': ['eager'], 'layers': ['XLA', 'plan']},
  ),
)
def test_diagonals_of_jacobians(gradient, function, ways):
  fn, x = FUNCTIONS[function](with_gradient(ALL[gradient])), draw(3, 5)
  expected = jacobian_by_copies(fn, x)
  for name in ways:
    found = np.reshape(JACOBIANS[name](fn, x), [3, 5])
    np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize(
  'gradient, function, ways',
  in_turns(
    {'beside others': ['eager', 'plan'], 'layers': ['graph']},
    {'beside others': ['validated'], 'layers': ['graph']},
    {'layers': ['graph', 'unmixed']},
  ),
)
def test_diagonals_of_hessians(gradient, function, ways):
  fn = value_of(FUNCTIONS[function](with_gradient(ALL[gradient])))
  x = draw(3, 5)
  expected = hessian_by_copies(fn, x)
  for name in ways:
    np.testing.assert_allclose(
      HESSIANS[name](fn, x), expected, rtol=1e-8, atol=1e-12, err_msg=name
    )


@pytest.mark.parametrize('name', [*GRADIENTS, 'slope'])
def test_whole_matrices_and_gauss_newton(name):
  sine = with_gradient(ALL[name])

  def fn(x):  # More results than coordinates: columns would be cheaper.
    return tf.concat([sine(x), 3 * sine(x), x * sine(x)], -1)

  x = draw(1, 4)
  expected = dense_jacobian(fn, x).numpy()
  found = tfp_diag.jacobian(fn, x, sample_shape=[1])
  np.testing.assert_allclose(found[0], expected, rtol=1e-9)
  lazy = tfp_diag.LazyJacobian(fn, x, sample_shape=[1])
  np.testing.assert_allclose(lazy[:][0], expected, rtol=1e-9)
  weights = np.arange(1.0, 13.0)
  _, diag = tfp_diag.diag_gauss_newton(fn, x, weights, sample_shape=[1])
  np.testing.assert_allclose(diag[0], weights @ expected**2, rtol=1e-9)


@pytest.mark.parametrize('name', GRADIENTS)
def test_what_has_no_meaning_is_refused_or_warned_of(name):
  fn, x = with_gradient(GRADIENTS[name]), draw(4)
  with pytest.raises(LookupError, match='not seen to be linear'):
    tfp_diag.jacobian(fn, x, mode='forward')
  with pytest.warns(RuntimeWarning, match='not seen to be linear'):
    tfp_diag.LazyJacobian(fn, x).rmatvec(x)
  with pytest.warns(RuntimeWarning, match='not seen to be linear'):
    tfp_diag.stochastic_diag_jacobian(fn, x, 2, 1)


@pytest.mark.parametrize('name', [n for n in LINEAR if 'zero' not in n])
def test_what_is_linear_is_seen_to_be(name):
  fn, x = with_gradient(LINEAR[name]), draw(4)
  plan = tfp_diag.plan_diag_jacobian(lambda x: fn(x) * x[::-1], x)
  assert 'linear' not in str(plan)
  found = tfp_diag.jacobian(fn, x, mode='forward')
  np.testing.assert_allclose(found, dense_jacobian(fn, x))


def test_open_event_shapes_are_not_taken_for_linear():
  clipped = with_gradient(GRADIENTS['clipped'])

  @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float64)])
  def diagonal(x):
    with pytest.warns(RuntimeWarning, match='not linear'):
      return tfp_diag.diag_jacobian(
        x,
        sample_shape=tf.shape(x)[:1],
        fn=lambda x: 3 * clipped(x),
        mode='forward',
      )[1][0]

  x = draw(2, 3)
  np.testing.assert_allclose(diagonal(x), 0.8 * tf.cos(x), rtol=1e-9)


# What does not use its cotangent is the same for all seeds.
@pytest.mark.parametrize('name', ['guided', 'offset', 'leaky', 'joined'])
def test_a_wrong_pattern_is_found_without_signs(name):
  """What is compared is where seeds of one are left out."""
  sine = with_gradient(GRADIENTS[name])
  fn = FUNCTIONS['layers'](sine)
  x = draw(3, 5)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [3], pattern=np.eye(5))
  with pytest.raises(tf.errors.InvalidArgumentError, match='do not fit'):
    tfp_diag.diag_jacobian(
      x, sample_shape=[3], fn=fn, plan=plan, validate_args=True
    )
