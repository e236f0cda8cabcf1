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
"""Linear maps: Jacobians and their transposes, applied to seeds."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.internal import passes

MODES = ('reverse', 'forward')


def draw(shape, seed=0):
  return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float64)


A, B = draw([3, 3], 1), draw([2, 3], 2)


def two_parts(x, z):
  """Jacobian blocks: [[A, B^T diag(2 z)], [B diag(cos x), 0]]."""
  return [
    tf.linalg.matvec(A, x) + tf.linalg.matvec(B, z**2, transpose_a=True),
    tf.linalg.matvec(B, tf.sin(x)),
  ]


def blocks(x, z):
  return [
    [A.numpy(), B.numpy().T * 2 * z.numpy()],
    [B.numpy() * np.cos(x.numpy()), np.zeros([2, 2])],
  ]


def maps_of(fn, xs, mode):
  """The linear map of a function, and of a graph that has computed it."""
  yield passes.linearize(lambda: (None, fn(*xs)), xs, mode)[1]
  if not tf.executing_eagerly():
    yield passes.linear_map_of_graph(fn(*xs), xs, mode)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('graph', [False, True])
@pytest.mark.parametrize('members', [[0], [1], [0, 1]])
def test_products(mode, graph, members):
  x, z = draw([3], 3), draw([2], 4)
  seeds = [draw([(3, 2)[i]], 5 + i) for i in members]

  def apply(x, z):
    return [
      # The second time shows that the tape is not spent.
      [linear_map.apply(members, seeds), linear_map.apply(members, seeds)]
      for linear_map in maps_of(two_parts, [x, z], mode)
    ]

  results = (tf.function(apply, autograph=False) if graph else apply)(x, z)
  matrix = blocks(x, z)
  for products in results:
    for product in products:
      for i, p in zip(members, product):
        wanted = sum(
          (matrix[i][j] if mode == 'forward' else matrix[j][i].T) @ s.numpy()
          for j, s in zip(members, seeds)
        )
        if p is None:
          p = np.zeros_like(wanted)
        np.testing.assert_allclose(p, wanted, atol=1e-12)


@pytest.mark.parametrize('mode', MODES)
def test_what_is_not_connected_is_none(mode):
  x, z = draw([3]), draw([2])
  for linear_map in maps_of(lambda x, z: [x**2, tf.ones([2])], [x, z], mode):
    square, constant = linear_map.apply([0, 1], [tf.ones_like(x), z])
    np.testing.assert_allclose(square, 2 * x)
    assert constant is None
    assert linear_map.apply([1], [z]) == [None]


def test_the_function_is_evaluated_once_for_any_number_of_seeds():
  calls = []

  def fn():
    calls.append(1)
    return 'aux', [x**3]

  x = draw([2])
  for mode in MODES:
    aux, linear_map = passes.linearize(fn, [x], mode)
    assert aux == 'aux'
    for i in range(3):
      (product,) = linear_map.apply([0], [tf.constant([1.0, i], tf.float64)])
      np.testing.assert_allclose(product, 3 * x**2 * [1.0, i])
  assert len(calls) == len(MODES)


@pytest.mark.parametrize('mode', MODES)
def test_variables_are_sources(mode):
  v = tf.Variable([1.0, 2.0])
  _, linear_map = passes.linearize(lambda: (None, [v**2]), [v], mode)
  np.testing.assert_allclose(
    linear_map.apply([0], [tf.constant([1.0, -1.0])])[0], [2.0, -4.0]
  )


def test_transposed():
  x, z = draw([3], 3), draw([2], 4)
  seeds = [draw([3], 5), draw([2], 6)]
  products = {}
  for mode in MODES:
    _, linear_map = passes.linearize(
      lambda: (None, two_parts(x, z)), [x, z], mode
    )
    products[mode] = linear_map.apply([0, 1], seeds)
    if mode == 'reverse':
      products['transposed'] = linear_map.transposed().apply([0, 1], seeds)
  for p, wanted in zip(products['transposed'], products['forward']):
    np.testing.assert_allclose(p, wanted, atol=1e-12)


def test_value_and_gradient():
  x, z = draw([3]), draw([2])
  value, gradient = passes.value_and_gradient(
    lambda: tf.reduce_sum(tf.gather(x, [0, 0]) ** 2), [x, z]
  )
  np.testing.assert_allclose(value, 2 * x[0] ** 2)
  np.testing.assert_allclose(gradient[0], [4 * x[0], 0, 0])
  np.testing.assert_array_equal(gradient[1], [0.0, 0.0])


def test_a_missing_gradient_is_named():
  x = tf.ones([2])
  _, linear_map = passes.linearize(
    lambda: (None, [tf.raw_ops.IgammaGradA(a=x, x=x)]), [x], 'reverse'
  )
  with pytest.raises(passes.MissingGradientError, match='IgammaGradA'):
    linear_map.apply([0], [x])
  assert issubclass(passes.MissingGradientError, LookupError)


def test_recorded_ops():
  @tf.function(autograph=False)
  def inner(x):
    return tf.while_loop(lambda y: y < 9.0, lambda y: 2 * y, [x])[0]

  seen = {}

  @tf.function(autograph=False)
  def outer(x):
    y = tf.sinh(x)
    with passes.recorded_ops() as ops:
      y = tf.cosh(y)
    seen['plain'] = set(ops)
    with passes.recorded_ops() as ops:
      inner(y)
    seen['call'] = set(ops)
    return y

  outer(tf.constant(1.0))
  assert 'Cosh' in seen['plain'] and 'Sinh' not in seen['plain']
  assert {'While', 'StatelessWhile'}.intersection(seen['call'])
  with passes.recorded_ops() as ops:
    tf.sinh(1.0)
  assert ops == set()
