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
"""Functions that are traced once, and whose ops later graphs repeat."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.diagonal import graphs
from tfp_diag.diagonal.graphs import TracedOnce

SCALE = tf.Variable(2.0)
X = tf.constant([0.3, -1.2, 0.7])
ROWS = tf.constant(np.linspace(-1.0, 1.0, 12).reshape(4, 3), tf.float32)


@tf.function(autograph=False)
def inner(x):
  return tf.sin(x) * SCALE


@tf.custom_gradient
def cube(x):
  return x**3, lambda dz: 3.0 * dz * x**2


@tf.custom_gradient
def cube_without_second(x):
  @tf.custom_gradient
  def slope(x):
    def second(dz):
      raise NotImplementedError('no second derivative')

    return 3.0 * x**2, second

  return x**3, lambda dz: dz * slope(x)


@tf.custom_gradient
def scaled(x):
  """Returns its argument, as one that clips a gradient does."""
  return x, lambda dz: 3.0 * dz


@tf.custom_gradient
def second_scaled(x, y):
  del x
  return y, lambda dz: (5.0 * dz, 3.0 * dz)


FUNCTIONS = {
  'plain': lambda x: tf.reduce_sum(tf.exp(x) * x),
  'calls a function': lambda x: tf.reduce_sum(inner(x) * inner(x + 1.0)),
  'calls one in a function': lambda x: tf.function(
    lambda y: tf.reduce_sum(inner(tf.linalg.matvec(ROWS, y)))
  )(x),
  'a gradient of its own': lambda x: tf.reduce_sum(cube(inner(x))),
  'returns its argument': lambda x: tf.reduce_sum(scaled(x) ** 3),
  'returns one of two': lambda x: tf.reduce_sum(second_scaled(x**2, x) ** 3),
  'recomputed, a first derivative alone': lambda x: tf.reduce_sum(
    tf.recompute_grad(lambda y: y**2)(tf.sin(x))
  ),
  'a first derivative alone': lambda x: tf.reduce_sum(cube_without_second(x)),
  'reads a variable': lambda x: tf.reduce_sum(tf.cos(x) * SCALE**2),
  'vectorized': lambda x: tf.reduce_sum(
    tf.vectorized_map(lambda row: tf.reduce_sum(tf.tanh(row * x)), ROWS)
  ),
  'a loop': lambda x: tf.while_loop(
    lambda i, _: i < 3,
    lambda i, y: (i + 1, tf.sin(y) * y),
    (0, x),
    maximum_iterations=3,
  )[1][0],
}


def derivatives(fn, x, order=2):
  with tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = fn(x)
    first = tape.gradient(y, x)
  second = outer.gradient(first, x) if order == 2 else first
  return y, first, second


@pytest.mark.parametrize('jit_compile', [False, True], ids=['graph', 'XLA'])
@pytest.mark.parametrize('name', FUNCTIONS)
def test_values_and_derivatives_are_those_of_the_function(name, jit_compile):
  fn = FUNCTIONS[name]
  order = 1 if 'alone' in name else 2
  once = TracedOnce(fn)
  run = tf.function(
    lambda x: derivatives(once, x, order),
    autograph=False,
    jit_compile=jit_compile,
  )
  for found, expected in zip(run(X), derivatives(fn, X, order)):
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
  np.testing.assert_allclose(once(X), fn(X), rtol=1e-6)


def test_python_runs_once_for_each_kind_of_arguments():
  calls = []

  def fn(x):
    calls.append(x.shape)
    return tf.reduce_sum(x**2)

  once = TracedOnce(fn)
  for _ in range(3):
    run = tf.function(lambda x: once(x) + once(2.0 * x), autograph=False)
    np.testing.assert_allclose(run(X), 5.0 * np.sum(np.square(X)), rtol=1e-6)
  assert calls == [X.shape]
  once(X[:2])
  once(tf.cast(X, tf.float64))
  assert len(calls) == 3


@pytest.mark.parametrize('name', ['calls one in a function', 'vectorized'])
def test_graphs_hold_no_calls(name):
  once = TracedOnce(FUNCTIONS[name])
  graph = tf.function(once, autograph=False).get_concrete_function(X).graph
  assert not [op for op in graph.get_operations() if 'Call' in op.type]


def test_variables_are_read_when_a_graph_runs():
  variable = tf.Variable(1.0)
  once = TracedOnce(lambda x: tf.reduce_sum(x) * variable)
  run = tf.function(once, autograph=False)
  first = run(X)
  variable.assign(3.0)
  np.testing.assert_allclose(run(X), 3.0 * first)


def random(x):
  return tf.reduce_sum(x * tf.random.uniform([3]))


def asserting(x):
  tf.debugging.assert_less(x, 10.0, message='too large')
  return tf.reduce_sum(x**2)


COUNT = tf.Variable(0)


def counting(x):
  COUNT.assign_add(1)
  return tf.reduce_sum(x**2)


@pytest.mark.parametrize('fn', [random, asserting, counting])
def test_what_does_more_than_return_is_called(fn):
  once = TracedOnce(tf.function(fn, autograph=False))
  run = tf.function(lambda x: once(x) + 0.0 * once(x + 1.0), autograph=False)
  graph = run.get_concrete_function(X).graph
  assert [op for op in graph.get_operations() if 'Call' in op.type]
  COUNT.assign(0)
  run(X)
  if fn is counting:
    assert COUNT == 2
  if fn is asserting:
    with pytest.raises(tf.errors.InvalidArgumentError, match='too large'):
      run(X + 10.0)
  if fn is random:
    assert run(X) != run(X)


POINTS = tf.constant(np.random.default_rng(1).normal(size=[3, 20]))
# Of three colors, and of as many as there are coordinates.
BANDED = np.triu(np.tril(np.random.default_rng(2).normal(size=[20, 20]), 1), -1)
DENSE = np.random.default_rng(3).normal(size=[20, 20])


def diagonal_by_a_known_graph(data, traces, key=()):
  """The diagonal of a Jacobian, by `compiled` with a source."""
  constant = tf.constant(data)
  once = TracedOnce(lambda x: tf.linalg.matvec(constant, tf.tanh(x)) ** 3)

  def body(x):
    traces.append(data)
    return tfp_diag.diag_jacobian(
      x, fn=once, sample_shape=[3], schedule='unrolled'
    )[1]

  [diagonal] = graphs.compiled(
    key,
    'test',
    body,
    [tf.TensorSpec(POINTS.shape, POINTS.dtype)],
    source=once.graph([POINTS]),
  )([POINTS])
  return diagonal


def closed_form(data):
  z = np.tanh(POINTS.numpy())
  return 3.0 * (z @ data.T) ** 2 * np.diag(data) * (1.0 - z**2)


def test_a_graph_that_is_known_is_not_traced_again():
  tfp_diag.clear_cache()
  traces = []
  for data in (BANDED, 0.5 * BANDED, -BANDED):
    found = diagonal_by_a_known_graph(data, traces)
    np.testing.assert_allclose(found, closed_form(data), rtol=1e-12)
  assert len(traces) == 1
  diagonal_by_a_known_graph(BANDED, traces, key='another')
  assert len(traces) == 2


@pytest.mark.parametrize('forgets', [False, True])
def test_structure_of_other_data_is_not_believed(forgets, monkeypatch):
  tfp_diag.clear_cache()
  if forgets:  # The negative control.
    monkeypatch.setattr(graphs._Condition, 'holds', lambda *_: True)
  traces = []
  diagonal_by_a_known_graph(BANDED, traces)
  found = diagonal_by_a_known_graph(DENSE, traces)
  error = np.max(np.abs(found - closed_form(DENSE)))
  assert (error > 0.1) == forgets
  assert len(traces) == 1 + (not forgets)
  tfp_diag.clear_cache()


def test_a_graph_with_constants_of_its_own_is_not_remembered():
  tfp_diag.clear_cache()
  once = TracedOnce(lambda x: tf.reduce_sum(x**2, -1))

  def found(factor):
    # Too many numbers to be a part of the graph.
    factor = tf.constant(factor, tf.float64, [200])
    return graphs.compiled(
      (),
      'test',
      lambda x: once(x) * factor[0],
      [tf.TensorSpec(POINTS.shape, POINTS.dtype)],
      source=once.graph([POINTS]),
    )([POINTS])

  np.testing.assert_allclose(found(3.0), 3.0 * found(1.0))


def test_what_does_more_than_return_has_no_graph_of_its_own():
  once = TracedOnce(tf.function(asserting, autograph=False))
  assert once.graph([X]) is None
