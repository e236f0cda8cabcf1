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
"""The eager cache: one graph for each function, never a stale one."""

import collections
import contextlib
import functools
import gc
import threading
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.python.eager import context as eager_context

import tfp_diag
from tests.oracles import gradient_of
from tests.pairs import parametrize_pairs
from tfp_diag.diagonal import graphs, linear_map
from tfp_diag.diagonal.reading import refuse_mixing
from tfp_diag.internal.problem import HessianProblem

SCALE = 1.0


class Calls:
  """Values and gradients by `graphs.call`; counts the graphs that it makes."""

  def __init__(self):
    self.made = 0

  def __call__(self, fn, x=1.0, key='key', jit_compile=False, accept=None):
    x = tf.convert_to_tensor(x)

    def evaluate(x, *_):
      return linear_map.evaluate(
        lambda parts: fn(parts[0]), lambda y, _: [y], [x], 1
      )

    def body(evaluation, x, *is_first):
      del x
      self.made += 1
      derivative = evaluation.jacobian().of_ones()[0]
      return evaluation.result, derivative, *is_first

    return graphs.call(
      (id(self), key),
      evaluate,
      body,
      [x],
      jit_compile=jit_compile,
      accept=accept,
    )


@pytest.fixture
def calls():
  graphs.clear_cache()
  yield Calls()
  graphs.clear_cache()


def num_entries():
  return sum(map(len, graphs._cache.values()))


def slope(calls, fn, x=1.0, **kwargs):
  return np.sum(calls(fn, x, **kwargs)[1])


def slopes(calls, fns, x=1.0):
  return [slope(calls, fn, x) for fn in fns]


def test_python_runs_in_each_call_but_one_graph_is_made(calls):
  runs = []

  def fn(x):
    runs.append(x)
    return x**2

  for i in range(10):
    value, derivative = calls(fn, float(i))
    assert (float(value), float(derivative)) == (i**2, 2 * i)
  assert (len(runs), calls.made, num_entries()) == (10, 1, 1)


def test_a_lambda_written_anew_has_the_same_graph(calls):
  assert [slope(calls, lambda x: 2 * x) for _ in range(5)] == [2.0] * 5
  assert calls.made == 1


def test_names_are_no_part_of_a_function(calls):
  def named(name):
    return lambda x: tf.multiply(x, 2.0, name=name)

  def with_an_inner_function(x):
    return tf.function(lambda x: 3 * tf.sin(x), autograph=False)(x)

  @tf.custom_gradient
  def custom(x):
    return tf.exp(x), lambda dy: 5.0 * dy

  assert slopes(calls, [named('a'), named('b')]) == [2.0, 2.0]
  assert calls.made == 1
  # TensorFlow numbers these anew in each trace.
  for fn, made in ((with_an_inner_function, 2), (custom, 3)):
    slopes(calls, [fn] * 3)
    assert calls.made == made


def test_the_order_in_which_tensorflow_lists_control_inputs_does_not_count(
  calls,
):
  variables = [tf.Variable(k + 1.0) for k in range(4)]

  def fn(x):
    a, b, c, d = variables
    return tf.cond(
      x > 0.0, lambda: a * x + b * x + c * d, lambda: x * a - d * x
    )

  # Of 30 traces of this function about ten differ in that order.
  assert slopes(calls, [fn] * 30) == [3.0] * 30
  assert calls.made == 1


def test_shapes_dtypes_and_keys_have_graphs_of_their_own(calls):
  for _ in range(2):
    slope(calls, lambda x: 2 * x, [1.0])
    slope(calls, lambda x: 2 * x, [1.0, 2.0])
    slope(calls, lambda x: 2 * x, tf.ones([1], tf.float64))
    slope(calls, lambda x: 2 * x, [1.0], key='other')
    slope(calls, lambda x: 2 * x, [1.0], jit_compile=True)
  assert calls.made == 5


def closure_over(scale):
  return lambda x: scale * x


def default(scale):
  return lambda x, scale=scale: scale * x


def in_a_dict(scale):
  settings = {'inner': [0, {'scale': scale}]}
  return lambda x: settings['inner'][1]['scale'] * x


def in_an_array(scale):
  array = np.full([100_000], scale)
  return lambda x: tf.reduce_mean(tf.cast(array, tf.float32)) * x


def by_an_inner_function(scale):
  inner = closure_over(scale)
  return lambda x: inner(inner(x)) / scale


def by_a_partial(scale):
  return functools.partial(lambda a, x, b: a * b * x, scale, b=1.0)


def by_a_tf_function(scale):
  return tf.function(closure_over(scale), autograph=False)


def by_a_method(scale):
  return types.SimpleNamespace(scale=scale, times=closure_over(scale)).times


def wiring(scale):
  # The same ops, but for what is wired to what.
  def fn(x):
    a, b = 2.0 * x, 3.0 * x
    first, second = (a, b) if scale == 2.0 else (b, a)
    return first + 0.0 * second

  return fn


def body_of_a_loop(scale):
  return lambda x: tf.while_loop(
    lambda k, y: k < 1, lambda k, y: (k + 1, scale * y), [0, x]
  )[1]


def branch_of_a_condition(scale):
  return lambda x: tf.cond(x > 0, lambda: scale * x, lambda: -x)


def custom_gradient(scale):
  # Its value is the same.
  return tf.custom_gradient(lambda x: (x**3, lambda dy: scale * dy))


def gradient_of_a_custom_gradient(scale):
  @tf.custom_gradient
  def inner(x):
    return tf.identity(x), lambda dy: scale * dy

  return tf.custom_gradient(lambda x: (x**3, lambda dy: inner(dy) + scale - 1))


@pytest.mark.parametrize(
  'make',
  [
    closure_over,
    default,
    in_a_dict,
    in_an_array,
    by_an_inner_function,
    by_a_partial,
    by_a_tf_function,
    by_a_method,
    wiring,
    body_of_a_loop,
    branch_of_a_condition,
    custom_gradient,
    gradient_of_a_custom_gradient,
  ],
)
def test_what_a_function_does_tells_it_from_others(calls, make):
  two, three = make(2.0), make(3.0)
  np.testing.assert_allclose(
    slopes(calls, [two, three, two, three]), [2.0, 3.0, 2.0, 3.0], rtol=1e-6
  )
  assert calls.made == 2


def test_what_is_returned_tells_functions_apart():
  x = tf.constant([1.0, 2.0])
  found = tfp_diag.jacobian(lambda x: {'a': x**2, 'b': x**3}, x)
  assert list(found) == ['a', 'b']
  found = tfp_diag.jacobian(lambda x: {'c': x**2, 'd': x**3}, x)
  assert list(found) == ['c', 'd']
  assert type(tfp_diag.jacobian(lambda x: (x**2, x**3), x)) is tuple
  assert tfp_diag.jacobian(tf.sin, x).shape == [2, 2]
  assert type(tfp_diag.jacobian(lambda x: [tf.sin(x)], x)) is list
  # A class that is defined again, as by a cell of a notebook.
  for _ in range(2):
    Pair = collections.namedtuple('Pair', ['left', 'right'])
    found = tfp_diag.hessian(
      lambda pair: tf.reduce_sum(pair.left**2 * pair.right), Pair(x, x)
    )
    assert type(found) is Pair


def test_which_tensors_are_returned_tells_functions_apart():
  x = tf.constant([1.0, 2.0])

  def total(x):
    return tf.reduce_sum(x**2)

  def copied(x):
    return tf.broadcast_to(total(x), tf.shape(x))

  for fn, shape in ((total, []), (copied, [2])):
    assert tfp_diag.diag_jacobian(x, fn=fn)[0][0].shape == shape

  def twice(x, y):
    product = x * y
    return [product, product]

  for fn, count in ((tf.multiply, 1), (twice, 2)):
    assert len(tfp_diag.diag_jacobian([x, x], fn=fn)[0]) == count


def test_arrays_that_are_returned():
  graphs.clear_cache()
  x = tf.constant([1.0, 2.0])
  for value in (3.0, 3.0, 5.0):
    array = np.full([2], value, np.float32)
    ys, _ = tfp_diag.diag_jacobian([x, x], fn=lambda a, b: [a, array])  # noqa: B023
    np.testing.assert_array_equal(ys[1], array)
  assert num_entries() == 2


@pytest.mark.parametrize('make', [tf.constant, tf.Variable])
def test_what_is_closed_over_and_returned(make):
  graphs.clear_cache()
  x = tf.constant([1.0, 2.0])
  for value in ([3.0, 4.0], [5.0, 6.0]):
    closed_over = make(value)
    ys, _ = tfp_diag.diag_jacobian([x, x], fn=lambda a, b: [a, closed_over])  # noqa: B023
    np.testing.assert_array_equal(ys[1], value)
  assert num_entries() == 1


def test_an_attribute_of_an_op_tells_functions_apart(calls):
  matrix = tf.constant([[0.0, 2.0], [3.0, 0.0]])

  def product(is_transposed):
    return lambda x: tf.matmul(matrix, [[x], [0.0]], is_transposed)[1, 0]

  fns = [product(True), product(False)]
  assert slopes(calls, fns * 2) == [2.0, 3.0] * 2
  assert calls.made == 2


def test_a_global_that_changes(calls, monkeypatch):
  def fn(x):
    return SCALE * x

  assert slope(calls, fn) == 1.0
  monkeypatch.setitem(fn.__globals__, 'SCALE', 2.0)
  assert slope(calls, fn) == 2.0


def test_attributes_that_change_back(calls):
  model = types.SimpleNamespace(scale=1.0)
  result = []
  for scale in (1.0, 2.0, 1.0):
    model.scale = scale
    result.append(slope(calls, lambda x: model.scale * x))
  assert result == [1.0, 2.0, 1.0]
  assert calls.made == 2


# What a function closes over is bound at each call.


@pytest.mark.parametrize('size', [1, 100, 1000, 100_000])
@pytest.mark.parametrize('jit_compile', [False, True])
def test_tensors_that_are_closed_over_are_inputs(calls, size, jit_compile):
  for k in range(5):
    batch = tf.fill([size], k + 1.0)
    value, derivative = calls(
      lambda x, batch=batch: tf.reduce_mean(batch * x),
      2.0,
      jit_compile=jit_compile,
    )
    np.testing.assert_allclose(
      [value, derivative], [2 * k + 2.0, k + 1.0], rtol=1e-5
    )
  assert (calls.made, num_entries()) == (1, 1)


def test_which_of_two_tensors_is_which(calls):
  a, b = tf.constant(2.0), tf.constant(3.0)

  def fn(first, second):
    return lambda x: first * x + 0.0 * second * x

  assert slopes(calls, [fn(a, b), fn(b, a)]) == [2.0, 3.0]
  assert calls.made == 1
  # One Tensor twice is another function, which takes one Tensor only.
  assert slopes(calls, [fn(a, a), fn(b, a), fn(b, b)]) == [2.0, 3.0, 3.0]
  assert calls.made == 2


def inside(kind, scale):
  """A function whose slope is `scale`, which it uses within another one."""
  if kind == 'loop':
    return lambda x: tf.while_loop(
      lambda k, y: k < 1, lambda k, y: (k + 1, scale * y), [0, x]
    )[1]
  if kind == 'branch':
    return lambda x: tf.cond(
      tf.reduce_all(x > 0), lambda: scale * x, lambda: -x
    )
  if kind == 'function':
    return tf.function(lambda x: scale * x, autograph=False)
  return tf.custom_gradient(lambda x: (x**3, lambda dy: scale * dy))


@parametrize_pairs(
  kind=['loop', 'branch', 'function', 'gradient'],
  size=[1, 200],
  wrap=[tf.constant, tf.Variable],
)
def test_what_inner_functions_close_over(calls, kind, size, wrap):
  for scale in (2.0, 3.0, 4.0):
    fn = inside(kind, wrap(tf.fill([size], scale)))
    assert slope(calls, fn, tf.ones([size])) == size * scale
  if kind != 'gradient':
    assert calls.made == 1


@parametrize_pairs(
  kind=['loop', 'branch', 'function', 'gradient'],
  size=[1, 200],
  wrap=[tf.constant, tf.Variable],
)
def test_a_tape_around_inner_functions(calls, kind, size, wrap):
  """TensorFlow calls the code of a custom gradient once more for it."""
  x = tf.ones([size])
  for scale in (2.0, 3.0, 2.0):
    fn = inside(kind, wrap(tf.fill([size], scale)))
    with tf.GradientTape() as tape:
      tape.watch(x)
      value, _ = calls(fn, x)
    np.testing.assert_allclose(tape.gradient(value, x), np.full(size, scale))


def test_custom_gradients_of_ever_new_tensors_do_not_pile_up(calls):
  for k in range(10):
    fn = inside('gradient', tf.constant(float(k)))
    assert slopes(calls, [fn, fn]) == [k, k]
  assert calls.made == 10
  assert num_entries() <= graphs._MAX_VARIANTS + 1


def test_variables_are_bound_too(calls):
  one, other = tf.Variable(2.0), tf.Variable(3.0)
  assert slopes(calls, [closure_over(one), closure_over(other)]) == [2.0, 3.0]
  one.assign(5.0)
  assert slopes(calls, [closure_over(one), closure_over(other)]) == [5.0, 3.0]
  assert calls.made == 1


def test_a_variable_that_is_closed_over_is_not_kept(calls):
  variable = tf.Variable(tf.ones([1000]))
  gone = weakref.ref(variable)
  slope(calls, lambda x, v=variable: tf.reduce_sum(v * x))
  del variable
  gc.collect()
  assert gone() is None
  # The graph goes on with another one.
  with tf.GradientTape() as tape:
    variable = tf.Variable(tf.fill([1000], 2.0))
    derivative = calls(lambda x, v=variable: tf.reduce_sum(v * x))[1]
  np.testing.assert_allclose(tape.gradient(derivative, variable), np.ones(1000))
  assert (float(derivative), calls.made) == (2000.0, 1)


def test_a_keras_model_whose_weights_and_attributes_change(calls):
  class Model(tf_keras.Model):
    def __init__(self):
      super().__init__()
      self.layer = tf_keras.layers.Dense(1, kernel_initializer='ones')
      self.factor = 1.0

    def call(self, x):
      return self.factor * self.layer(x)

  model = Model()
  model(tf.zeros([1, 2]))
  results = []
  for factor, kernel in ((1.0, 1.0), (1.0, 4.0), (2.0, 4.0), (2.0, 1.0)):
    model.factor = factor
    model.layer.kernel.assign(tf.fill([2, 1], kernel))
    results.append(slope(calls, model, [[1.0, 2.0]]))
  assert results == [2.0, 8.0, 16.0, 4.0]
  assert calls.made == 2


# Of a constant that is closed over the value may have had a say in structure.


def diagonals(mask, x, n=12):
  return tfp_diag.diag_jacobian(
    x,
    fn=lambda x: tf.sin(x) + mask * tf.roll(x, 1, -1) * x,
    sample_shape=x.shape[:1],
  )[1][0]


def test_structure_that_was_read_from_a_constant_is_not_taken_for_another():
  graphs.clear_cache()
  x = tf.constant(np.random.default_rng(0).normal(size=[3, 12]))
  for seed in range(12):
    mask = np.random.default_rng(seed).integers(0, 2, 12) * (1.0 + seed)
    if seed % 3 == 0:
      mask[:] = 0.0
    found = diagonals(tf.constant(mask), x)
    wanted = np.cos(x) + mask * np.roll(x, 1, -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
  # New values for ever do not mean new graphs for ever.
  assert num_entries() <= graphs._MAX_VARIANTS + 1


def gathered(order, x):
  return x * tf.gather(x, order, axis=1)


def test_indices_that_are_closed_over():
  graphs.clear_cache()
  rng = np.random.default_rng(0)
  x = tf.constant(rng.normal(size=[2, 6]))
  for _ in range(8):
    order = rng.permutation(6)
    (found,) = tfp_diag.diag_jacobian(
      x,
      fn=functools.partial(gathered, tf.constant(order)),
      sample_shape=[2],
    )[1]
    wanted = x.numpy()[:, order] + np.where(order == np.arange(6), x, 0)
    np.testing.assert_allclose(found, wanted)
  assert num_entries() <= graphs._MAX_VARIANTS + 1


@pytest.mark.parametrize(
  'turn, turns', [(lambda i: i + 1, 500), (lambda i: (i + i) % 7, 50)]
)
def test_indices_that_come_a_long_way(turn, turns):
  """A long chain, and one in which each link is used twice."""
  x = tf.constant(np.random.default_rng(0).normal(size=[2, 6]))
  for first in (0, 1):
    start = first + np.arange(6)

    def fn(x, index=tf.constant(start)):  # noqa: B008 (one for each call)
      for _ in range(turns):
        index = turn(index)
      return x * tf.gather(x, index % 6, axis=1)

    order = start
    for _ in range(turns):
      order = turn(order)
    order %= 6
    (found,) = tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[2])[1]
    wanted = x.numpy()[:, order] + np.where(order == np.arange(6), x, 0)
    np.testing.assert_allclose(found, wanted)


# The memory.


def test_bytes_are_bounded(calls, monkeypatch):
  slope(calls, closure_over(0.0))
  (entry,) = next(iter(graphs._cache.values()))
  monkeypatch.setattr(graphs, 'MAX_BYTES', 2 * entry.num_bytes)
  fns = [closure_over(float(k)) for k in range(3)]
  slopes(calls, fns)
  assert len(graphs._cache) == 2 and calls.made == 3
  # The last two are still there.
  slopes(calls, fns[1:])
  assert calls.made == 3
  # The first is made anew, and the least recently used is dropped.
  slope(calls, fns[0])
  slope(calls, fns[2])
  assert calls.made == 4
  slope(calls, fns[1])
  assert calls.made == 5


def test_a_hit_counts_as_use(calls, monkeypatch):
  slope(calls, closure_over(0.0))
  (entry,) = next(iter(graphs._cache.values()))
  monkeypatch.setattr(graphs, 'MAX_BYTES', 2 * entry.num_bytes)
  first, second, third = (closure_over(float(k)) for k in range(3))
  slopes(calls, [second, first, third])
  made = calls.made
  slope(calls, first)
  assert calls.made == made


def test_large_constants_count(calls):
  array = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
  slope(calls, lambda x: tf.reduce_sum(array * x))
  (entry,) = next(iter(graphs._cache.values()))
  assert entry.num_bytes > array.nbytes


def test_what_is_larger_than_all_memory_is_kept_while_it_is_alone(
  calls, monkeypatch
):
  monkeypatch.setattr(graphs, 'MAX_BYTES', 0)
  slopes(calls, [closure_over(2.0)] * 3)
  assert (calls.made, num_entries()) == (1, 1)
  slope(calls, closure_over(3.0))
  assert num_entries() == 1


def test_clear_cache(calls):
  slope(calls, closure_over(2.0))
  tfp_diag.clear_cache()
  assert num_entries() == 0
  assert slope(calls, closure_over(2.0)) == 2.0
  assert calls.made == 2


def test_what_is_not_accepted_is_not_remembered(calls):
  asked = []

  def accept(result):
    asked.append(bool(result[2]))
    return len(asked) > 1

  assert calls(closure_over(2.0), accept=accept) is None
  assert num_entries() == 0
  assert float(calls(closure_over(2.0), accept=accept)[1]) == 2.0
  # Then it is not asked again.
  assert not calls(closure_over(2.0), accept=accept)[2]
  assert asked == [True, True] and num_entries() == 1


# Who calls.


def test_threads(calls):
  """Eight threads, three functions, each with constants of its own."""
  x = tf.constant(np.random.default_rng(0).normal(size=[4]), tf.float32)
  functions = [
    lambda x, c: c * tf.sin(x),
    lambda x, c: tf.exp(c * x),
    lambda x, c: c * x * tf.reduce_sum(x),
  ]
  derivatives = [
    lambda x, c: c * np.cos(x),
    lambda x, c: c * np.exp(c * x),
    lambda x, c: c * (np.sum(x) + x),
  ]
  errors = []
  start = threading.Barrier(8)

  def work(thread):
    try:
      start.wait()
      for k in range(12):
        which, c = (k + thread) % 3, 1.0 + thread / 8
        scale = tf.constant(c)
        (found,) = tfp_diag.diag_jacobian(
          x, fn=lambda x, f=functions[which], c=scale: f(x, c)
        )[1]
        wanted = derivatives[which](x.numpy(), c)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    except Exception as e:  # pylint: disable=broad-except
      errors.append(e)

  threads = [threading.Thread(target=work, args=[k]) for k in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not errors, errors
  assert len(graphs._cache) == 3


def hessians(*args, **kwargs):
  return tfp_diag.diag_hessian(*args, **kwargs)[2]


@pytest.mark.parametrize('is_known', [False, True])
def test_a_tape_around_a_call(calls, is_known):
  """Also with respect to what the function closes over."""
  x = tf.constant([1.0, 2.0])
  variable, small = tf.Variable([3.0, 4.0]), tf.constant([5.0, 6.0])
  large = tf.constant(np.arange(1.0, 201.0), tf.float32)

  def fn(x):
    return tf.reduce_sum(variable * small * x**4) * tf.reduce_mean(large) ** 2

  if is_known:
    hessians(fn, x)
    # Another Variable, which the graph has not been made with.
    variable = tf.Variable([3.0, 4.0])
  with tf.GradientTape() as tape:
    tape.watch([x, small, large])
    diag = hessians(fn, x)
  assert num_entries() == 1
  mean = 100.5
  wanted = 12 * variable * small * x**2 * mean**2
  np.testing.assert_allclose(diag, wanted, rtol=1e-5)
  by_x, by_variable, by_small, by_large = tape.gradient(
    diag, [x, variable, small, large]
  )
  np.testing.assert_allclose(by_x, 2 * wanted / x, rtol=1e-5)
  np.testing.assert_allclose(by_variable, wanted / variable, rtol=1e-5)
  np.testing.assert_allclose(by_small, wanted / small, rtol=1e-5)
  np.testing.assert_allclose(
    by_large, np.full(200, 2 * np.sum(wanted) / mean / 200), rtol=1e-5
  )


def test_a_tape_around_a_variable_that_is_a_part(calls):
  del calls
  variable = tf.Variable([1.0, 2.0])
  for _ in range(2):
    with tf.GradientTape() as tape:
      diag = hessians(lambda: tf.reduce_sum(variable**4), variable)
    np.testing.assert_allclose(tape.gradient(diag, variable), 24 * variable)


def test_xla(calls):
  for k in range(3):
    scale = tf.constant(k + 1.0)
    derivative = slope(
      calls, lambda x, scale=scale: scale * x**2, 3.0, jit_compile=True
    )
    assert derivative == 6.0 * (k + 1)
  assert calls.made == 1
  (entry,) = next(iter(graphs._cache.values()))
  assert entry._graph.function_def.attr['_XlaMustCompile'].b


# What cannot be a graph.


@pytest.mark.parametrize(
  'fn',
  [
    lambda x: x * float(x.numpy()),
    lambda x: x * float(x),
    lambda x: tf.constant(np.square(x.numpy())),
    lambda x: tf.constant(np.sin(x) * 0.0) + x * x,
    lambda x: x * sum(1.0 for _ in range(int(x))),
  ],
)
def test_functions_that_need_values_in_python_are_refused(fn):
  tfp_diag.clear_cache()
  for x in (2.0, 3.0):
    with pytest.raises(TypeError, match='needs the value of a Tensor'):
      tfp_diag.diag_jacobian(tf.constant(x), fn=fn)
  assert num_entries() == 0


def test_a_branch_in_python_on_a_tensor_is_refused(calls):
  with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
    calls(lambda x: x * x if x > 0 else x * 0)


def test_errors_of_the_function_are_its_own(calls):
  def fn(x):
    raise ZeroDivisionError('mine')

  for _ in range(2):
    with pytest.raises(ZeroDivisionError, match='mine'):
      calls(fn)


def test_functions_can_be_made_to_run_eagerly(calls):
  tf.config.run_functions_eagerly(True)
  try:
    for scale in (1.0, 2.0, 1.0):
      assert slope(calls, closure_over(scale)) == scale
  finally:
    tf.config.run_functions_eagerly(False)


def test_what_is_not_optimized_leaves_other_runs_as_they_were():
  context = eager_context.context()
  before = context.function_call_options
  with pytest.raises(ZeroDivisionError), graphs.unoptimized():
    config = tf.compat.v1.ConfigProto()
    config.ParseFromString(
      context.function_call_options.config_proto_serialized
    )
    assert config.graph_options.rewrite_options.disable_meta_optimizer
    found = tf.function(lambda x: 2.0 * x)(tf.constant(3.0))
    assert float(found) == 6.0
    raise ZeroDivisionError
  assert context.function_call_options is before


def test_a_plan_is_tried_without_an_optimizer(monkeypatch):
  entered = []

  @contextlib.contextmanager
  def unoptimized():
    entered.append(True)
    yield

  monkeypatch.setattr(graphs, 'unoptimized', unoptimized)
  tfp_diag.plan_diag_hessian(
    lambda x: tf.reduce_sum(tf.exp(x[1:] * x[:-1])), tf.ones([3])
  )
  assert entered == [True]


_CALLED = tf.function(lambda x: tf.sin(x) * x**2, autograph=False)


def by_a_call(x):
  return _CALLED(x) * tf.exp(x)


def by_a_loop(x):
  return tf.while_loop(
    lambda k, _: k < 3, lambda k, y: (k + 1, tf.sin(y) * x), [0, x]
  )[1]


def by_a_branch(x):
  return tf.cond(x[0] > 0, lambda: tf.sin(x) * x**2, lambda: x)


@pytest.mark.parametrize('is_hessian', [False, True])
def test_an_eager_trace_makes_no_gradients_of_branches(is_hessian):
  """Which TensorFlow does at once where it puts them into a call for a tape."""
  made = []

  def fn(x):
    y = tf.cond(tf.reduce_sum(x) > 0, lambda: 2.0, lambda: tf.reduce_prod(x))
    graph = tf.compat.v1.get_default_graph()
    made.append({op.type for op in graph.get_operations()})
    return tf.reduce_sum(y * x**2) if is_hessian else y * x**2

  x = tf.constant([1.0, 2.0])
  for _ in range(3):
    if is_hessian:
      np.testing.assert_allclose(tfp_diag.diag_hessian(fn, x)[2], [4.0, 4.0])
    else:
      np.testing.assert_allclose(
        tfp_diag.diag_jacobian(x, fn=fn)[1][0], [4.0, 8.0]
      )
  assert len(made) == 3
  for op_types in made:
    assert {'If', 'StatelessIf'} & op_types
    assert not any('Call' in op_type for op_type in op_types)


@pytest.mark.parametrize('persistent', [False, True])
@pytest.mark.parametrize('fn', [by_a_call, by_a_loop, by_a_branch])
def test_a_tape_in_the_graph_that_is_being_built(fn, persistent):
  """It has recorded ops to which a gradient by the graph would add outputs."""
  x = tf.constant([0.3, -0.7, 1.1], tf.float64)

  def slope(x):
    return tfp_diag.diag_jacobian(x, fn=fn)[1][0]

  def curvature(x):
    return tfp_diag.diag_hessian(lambda x: tf.reduce_sum(fn(x)), x)[2]

  @tf.function(autograph=False)
  def gradients(x):
    with tf.GradientTape(persistent=persistent) as first:
      first.watch(x)
      a = slope(x)
    with tf.GradientTape(persistent=persistent) as second:
      second.watch(x)
      b = curvature(x)
    return first.gradient(a, x), second.gradient(b, x)

  for found, of in zip(gradients(x), (slope, curvature)):
    for i, unit in enumerate(np.eye(3)):
      h = 1e-5
      change = tf.reduce_sum(of(x + h * unit) - of(x - h * unit)) / (2 * h)
      np.testing.assert_allclose(found[i], change, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize('is_variable', [False, True])
def test_forward_mode_of_the_caller(is_variable):
  """Also of what the function closes over, and after a persistent tape."""
  matrix = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
  weights = tf.Variable(matrix) if is_variable else tf.constant(matrix)
  x = tf.constant([0.1, 0.2], tf.float64)

  def diagonal(x):
    def log_prob(x):
      return tf.reduce_sum(tf.exp(tf.linalg.matvec(weights, x)))

    return tfp_diag.diag_hessian(log_prob, x)[2]

  rates = np.exp(matrix @ x.numpy())
  watched, want = x, (matrix**2).T @ (rates * matrix.sum(-1))
  if is_variable:
    watched = weights
    slopes = 2 * matrix + matrix**2 * np.sum(x.numpy())
    want = slopes.T @ rates
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(watched)
    diag = diagonal(x)
  assert tape.gradient(diag, watched) is not None
  for _ in range(2):
    with tf.autodiff.ForwardAccumulator(watched, tf.ones_like(watched)) as acc:
      diag = diagonal(x)
    np.testing.assert_allclose(acc.jvp(diag), want, rtol=1e-10)
    tfp_diag.clear_cache()


@tf.RegisterGradient('TfpDiagTestFlipped')
def _flipped(op, dy):
  del op
  return -dy


def test_an_op_whose_gradient_is_another_one_is_another_op():
  """What is remembered of it is not taken for the op."""

  def fn(x, is_flipped=False):
    names = {'Identity': 'TfpDiagTestFlipped'} if is_flipped else {}
    with tf.compat.v1.get_default_graph().gradient_override_map(names):
      y = tf.identity(x)
    return tf.exp(y)

  x = tf.constant([0.0, 1.0])
  for order in ((False, True), (True, False)):
    tfp_diag.clear_cache()
    for is_flipped in order:
      _, diag = tfp_diag.diag_jacobian(
        x, fn=functools.partial(fn, is_flipped=is_flipped)
      )
      sign = -1.0 if is_flipped else 1.0
      np.testing.assert_allclose(diag[0], sign * np.exp(x), rtol=1e-6)


def endless(levels, level=0):
  """A sine whose gradient has a gradient of its own, and so on."""

  @tf.custom_gradient
  def sine(x):
    levels.add(level)
    factor = endless(levels, level + 1)
    return tf.sin(x), lambda dy: dy * factor(x + 0.5 * np.pi)

  return sine


def test_gradients_are_traced_as_often_as_they_are_taken():
  """Each order of them takes longer: that of an ODE twice as long as the last.

  A step of a sampler has taken the gradient, and nothing differentiates it.
  """
  levels = set()
  score = gradient_of(lambda x: tf.reduce_sum(endless(levels)(x), -1))
  step = graphs.compiled(
    ('endless',), 'step', score, [tf.TensorSpec([2, 3], tf.float64)]
  )
  assert levels == {0, 1}
  x = np.linspace(0.0, 1.0, 6).reshape([2, 3])
  np.testing.assert_allclose(step([tf.constant(x)]), np.cos(x), rtol=1e-12)
  # Whether chains mix is seen from second derivatives.
  levels.clear()
  problem = HessianProblem(
    lambda x: tf.reduce_sum(endless(levels)(x), -1), tf.constant(x)
  )
  refuse_mixing(problem)
  assert max(levels) <= 3
