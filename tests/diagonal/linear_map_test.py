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

from tests.pairs import parametrize_pairs
from tfp_diag.diagonal import linear_map

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


def map_of(fn, xs, mode):
  """The Jacobian of `fn(*xs)`, or its transpose."""
  return in_mode(linear_map.linearize(lambda: fn(*xs), xs), mode)


def in_mode(reverse, mode):
  return reverse.transposed() if mode == 'forward' else reverse


def maps_of(fn, xs, mode):
  """The linear map of a function, and of a graph that has computed it."""
  yield map_of(fn, xs, mode)
  if not tf.executing_eagerly():
    yield in_mode(linear_map.linear_map_of_graph(fn(*xs), xs), mode)


@parametrize_pairs(
  mode=MODES,
  graph=[False, True],
  members=[[0], [1], [0, 1]],
)
def test_products(mode, graph, members):
  x, z = draw([3], 3), draw([2], 4)
  seeds = [draw([(3, 2)[i]], 5 + i) for i in members]

  def apply(x, z):
    return [
      # The second time shows that the tape is not spent.
      [a_map.apply(members, seeds), a_map.apply(members, seeds)]
      for a_map in maps_of(two_parts, [x, z], mode)
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
  for a_map in maps_of(lambda x, z: [x**2, tf.ones([2])], [x, z], mode):
    square, constant = a_map.apply([0, 1], [tf.ones_like(x), z])
    np.testing.assert_allclose(square, 2 * x)
    assert constant is None
    assert a_map.apply([1], [z]) == [None]


def test_the_function_is_evaluated_once_for_any_number_of_seeds():
  calls = []

  def fn():
    calls.append(1)
    return [x**3]

  x = draw([2])
  reverse = linear_map.linearize(fn, [x])
  for mode in MODES:
    a_map = in_mode(reverse, mode)
    for i in range(3):
      (product,) = a_map.apply([0], [tf.constant([1.0, i], tf.float64)])
      np.testing.assert_allclose(product, 3 * x**2 * [1.0, i])
  assert len(calls) == 1


@pytest.mark.parametrize('mode', MODES)
def test_variables_are_sources(mode):
  v = tf.Variable([1.0, 2.0])
  a_map = map_of(lambda v: [v**2], [v], mode)
  np.testing.assert_allclose(
    a_map.apply([0], [tf.constant([1.0, -1.0])])[0], [2.0, -4.0]
  )


def test_transposed_twice_is_the_same():
  x, z = draw([3], 3), draw([2], 4)
  seeds = [draw([3], 5), draw([2], 6)]
  reverse = map_of(two_parts, [x, z], 'reverse')
  again = reverse.transposed().transposed()
  for p, wanted in zip(
    again.apply([0, 1], seeds), reverse.apply([0, 1], seeds)
  ):
    np.testing.assert_allclose(p, wanted, atol=1e-12)


def test_between_tensors_on_the_way_some_of_them_held():
  @tf.function(autograph=False)
  def run(x):
    a_map = linear_map.linear_map_of_graph([x], [x])
    s = tf.sin(x)
    y = s * x**2
    cotangent = [tf.ones_like(x)]
    return (
      a_map.between([y], [x]).apply([0], cotangent),
      a_map.between([y], [s]).apply([0], cotangent),
      a_map.between([y], [x], held=[s]).apply([0], cotangent),
    )

  x = draw([3])
  total, by_s, held = (r[0] for r in run(x))
  np.testing.assert_allclose(total, x**2 * tf.cos(x) + 2 * x * tf.sin(x))
  np.testing.assert_allclose(by_s, x**2)
  np.testing.assert_allclose(held, 2 * x * tf.sin(x))


def test_a_missing_gradient_is_named():
  x = tf.ones([2])
  a_map = map_of(lambda x: [tf.raw_ops.IgammaGradA(a=x, x=x)], [x], 'reverse')
  with pytest.raises(linear_map.MissingGradientError, match='IgammaGradA'):
    a_map.apply([0], [x])
  assert issubclass(linear_map.MissingGradientError, LookupError)


def test_recorded_ops():
  @tf.function(autograph=False)
  def inner(x):
    return tf.while_loop(lambda y: y < 9.0, lambda y: 2 * y, [x])[0]

  seen = {}

  @tf.function(autograph=False)
  def outer(x):
    y = tf.sinh(x)
    with linear_map.recorded_ops() as ops:
      y = tf.cosh(y)
    seen['plain'] = set(ops)
    assert [op.type for op in ops.operations] == ['Cosh']
    with linear_map.recorded_ops() as ops:
      inner(y)
    seen['call'] = set(ops)
    return y

  outer(tf.constant(1.0))
  assert 'Cosh' in seen['plain'] and 'Sinh' not in seen['plain']
  assert {'While', 'StatelessWhile'}.intersection(seen['call'])
  with linear_map.recorded_ops() as ops:
    tf.sinh(1.0)
  assert ops == set()


def evaluated(fn, xs, times, what):
  """`what` of the evaluation of `fn(parts)`, in a graph."""

  @tf.function(autograph=False)
  def run():
    return what(
      linear_map.evaluate(fn, lambda ys, _: tf.nest.flatten(ys), xs, times)
    )

  return run()


def test_a_gradient_and_a_hessian_of_one_evaluation():
  calls = []

  def fn(parts):
    calls.append(1)
    x, z = parts
    return tf.reduce_sum(tf.gather(x, [0, 0]) ** 3) + 0 * tf.reduce_sum(z)

  def what(evaluation):
    gradient, hessian = evaluation.hessian()
    ones = [tf.ones_like(x) for x in evaluation.xs]
    return evaluation.result, gradient, hessian.apply([0], ones[:1])

  x, z = draw([3]), draw([2])
  value, gradient, product = evaluated(fn, [x, z], 2, what)
  np.testing.assert_allclose(value, 2 * x[0] ** 3)
  np.testing.assert_allclose(gradient[0], [6 * x[0] ** 2, 0, 0])
  np.testing.assert_array_equal(gradient[1], [0.0, 0.0])
  np.testing.assert_allclose(product[0], [12 * x[0], 0, 0])
  assert len(calls) == 1


def test_a_part_without_a_path_has_a_gradient_of_zeros():
  x, z = draw([3]), draw([2])
  gradient = evaluated(
    lambda parts: tf.reduce_sum(parts[0] ** 2),
    [x, z],
    2,
    lambda evaluation: evaluation.hessian()[0],
  )
  np.testing.assert_allclose(gradient[0], 2 * x)
  np.testing.assert_array_equal(gradient[1], [0.0, 0.0])


def test_the_derivative_of_a_diagonal_of_the_hessian():
  x = draw([3])

  def what(evaluation):
    _, hessian = evaluation.hessian()
    ones = [tf.ones_like(x)]
    _, third = evaluation.derivative_of(lambda: hessian.apply([0], ones))
    return third.apply([0], ones)

  (third,) = evaluated(lambda parts: tf.reduce_sum(parts[0] ** 4), [x], 3, what)
  np.testing.assert_allclose(third, 24 * x)


def test_derivatives_are_partial():
  """By each part alone, though it is closed over, or given twice."""
  x = draw([3])

  def what(evaluation):
    return evaluation.jacobian().apply([0], [tf.ones_like(x)], [0, 1])

  by_first, by_second = evaluated(
    lambda parts: [parts[0] ** 2 * parts[1] * x], [x, x], 1, what
  )
  np.testing.assert_allclose(by_first, 2 * x**3)
  np.testing.assert_allclose(by_second, x**3)


def test_the_graph_holds_what_the_function_has_added():
  def what(evaluation):
    assert [op.type for op in evaluation.graph.ops][-1] == 'Sinh'
    assert 'Cosh' not in evaluation.op_types
    (y,), (x,) = evaluation.ys, evaluation.xs
    assert evaluation.graph.ops[-1].outputs[0] is y
    # Nothing but the function reads the part.
    assert {c.type for c in x.consumers()} == {'Sinh'}
    return evaluation.result

  evaluated(lambda parts: tf.sinh(parts[0]), [draw([3])], 1, what)


def test_a_gradient_that_counts_as_constant_is_refused():
  def fn(parts):
    return tf.reduce_sum(
      tf.py_function(lambda x: x**2, [parts[0]], parts[0].dtype)
    )

  with pytest.raises(linear_map.MissingGradientError, match='py_function'):
    evaluated(fn, [draw([3])], 2, lambda evaluation: evaluation.hessian()[0])


def test_where_nothing_is_recorded_is_said():
  with pytest.raises(RuntimeError, match='init_scope'), tf.init_scope():
    linear_map.evaluate(
      lambda parts: parts, lambda ys, _: ys, [tf.ones([2])], 1
    )
