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
"""Eager graphs: one per function, and never a stale one."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tfp_diag.internal import compiled
from tfp_diag.internal.fingerprint import fingerprint

SCALE = 1.0


class Counted:
  """Calls a function through `compiled.call` and counts its Python runs."""

  def __init__(self):
    self.runs = 0

  def __call__(self, fn, x=1.0, key='key'):
    x = tf.convert_to_tensor(x)

    def body(x):
      self.runs += 1
      return fn(x)

    return compiled.call((id(self), key), [fn], body, [x])


@pytest.fixture
def counted():
  return Counted()


def values(call, fns, x=1.0):
  return [float(call(fn, x)) for fn in fns]


def test_a_hundred_calls_trace_once(counted):
  def fn(x):
    return 2 * x

  for i in range(100):
    assert float(counted(fn, float(i))) == 2 * i
  assert counted.runs == 1


def test_a_lambda_written_anew_traces_once(counted):
  assert [float(counted(lambda x: 2 * x)) for _ in range(5)] == [2.0] * 5
  assert counted.runs == 1


def test_shapes_dtypes_and_keys_have_graphs_of_their_own(counted):
  def fn(x):
    return 2 * x

  for _ in range(2):
    counted(fn, [1.0])
    counted(fn, [1.0, 2.0])
    counted(fn, tf.ones([1], tf.float64))
    counted(fn, [1.0], key='other')
  assert counted.runs == 4


def closure_over(scale):
  return lambda x: scale * x


def default(scale):
  return lambda x, scale=scale: scale * x


def keyword_default(scale):
  return lambda x, *, scale=scale: scale * x


def in_a_list(scale):
  scales = [0, [scale]]
  return lambda x: scales[1][0] * x


def in_a_dict(scale):
  settings = {'inner': {'scale': scale}}
  return lambda x: settings['inner']['scale'] * x


def in_an_array(scale):
  array = np.full([100_000], scale)
  return lambda x: tf.cast(array[-1], tf.float32) * x


def in_a_tensor(scale):
  tensor = tf.constant(scale)
  return lambda x: tensor * x


def by_an_inner_function(scale):
  inner = closure_over(scale)
  return lambda x: inner(inner(x)) / scale


def by_a_partial(scale):
  return functools.partial(lambda a, x, b: a * b * x, scale, b=1.0)


def by_a_tf_function(scale):
  return tf.function(closure_over(scale), autograph=False)


def power(scale):
  # The same code and constants but for one operator.
  return (lambda x: x + x) if scale == 2.0 else (lambda x: x + x + x)


@pytest.mark.parametrize(
  'make',
  [
    closure_over,
    default,
    keyword_default,
    in_a_list,
    in_a_dict,
    in_an_array,
    in_a_tensor,
    by_an_inner_function,
    by_a_partial,
    by_a_tf_function,
    power,
  ],
)
def test_what_a_function_sees_is_part_of_it(counted, make):
  two, three = make(2.0), make(3.0)
  result = values(counted, [two, three, two, three])
  np.testing.assert_allclose(result, [2.0, 3.0, 2.0, 3.0])
  assert counted.runs == 2


def test_a_global_that_changes(counted, monkeypatch):
  def fn(x):
    return SCALE * x

  assert float(counted(fn)) == 1.0
  monkeypatch.setitem(fn.__globals__, 'SCALE', 2.0)
  assert float(counted(fn)) == 2.0


class Model:
  """Its attributes change; they are read in many ways."""

  class_scale = 1.0

  def __init__(self):
    self.scale = 1.0
    self.scales = {'a': [1.0]}
    self.array = np.ones([3], np.float32)
    self.unread = 0

  @property
  def doubled(self):
    return 2 * self.scale

  def method(self, x):
    return self.scale * x

  def by_another_method(self, x):
    return self.method(x)

  def by_a_property(self, x):
    return self.doubled * x / 2

  def by_a_container(self, x):
    return self.scales['a'][0] * x

  def by_an_array(self, x):
    return self.array[1] * x

  def __call__(self, x):
    return self.scale * x


def change(model, scale):
  model.scale = scale
  model.scales['a'][0] = scale
  model.array[:] = scale


class Slots:
  __slots__ = ('scale',)


def methods(model):
  nested = [{'model': model}]
  return {
    'method': model.method,
    'another method': model.by_another_method,
    'property': model.by_a_property,
    'container': model.by_a_container,
    'array': model.by_an_array,
    'callable': model,
    'attribute': lambda x: model.scale * x,
    'call in a lambda': lambda x: model(x),
    'method in a lambda': lambda x: model.by_another_method(x),
    'in containers': lambda x: nested[0]['model'].scale * x,
  }


@pytest.mark.parametrize('name', list(methods(Model())))
def test_attributes_that_change(counted, name):
  model = Model()
  fn = methods(model)[name]
  result = []
  for scale in (1.0, 2.0, 1.0):
    change(model, scale)
    result.append(float(counted(fn)))
  assert result == [1.0, 2.0, 1.0]
  assert counted.runs == 2
  # What the code does not name is not part of it.
  model.unread = 5
  counted(fn)
  assert counted.runs == 2


def test_attributes_of_classes_and_slots(counted, monkeypatch):
  slots = Slots()
  slots.scale = 1.0
  fns = [lambda x: Model.class_scale * x, lambda x: slots.scale * x]
  assert values(counted, fns) == [1.0, 1.0]
  monkeypatch.setattr(Model, 'class_scale', 2.0)
  slots.scale = 3.0
  assert values(counted, fns) == [2.0, 3.0]


@pytest.mark.parametrize('name', ['settings', 'numpy_settings'])
def test_attributes_of_modules(counted, name):
  module = types.ModuleType(name)
  for scale in (1.0, 2.0):
    module.scale = scale
    assert float(counted(lambda x: module.scale * x)) == scale


def test_variables_are_read_at_each_call(counted):
  variable = tf.Variable(1.0)
  fn = closure_over(variable)
  assert values(counted, [fn]) == [1.0]
  variable.assign(2.0)
  assert values(counted, [fn]) == [2.0]
  assert counted.runs == 1


def test_a_keras_layer(counted):
  layer = tf_keras.layers.Dense(
    1, kernel_initializer='ones', bias_initializer='zeros'
  )
  x = [[1.0, 2.0]]
  layer(tf.constant(x))
  assert float(counted(layer, x)[0, 0]) == 3.0
  layer.kernel.assign([[2.0], [2.0]])
  assert float(counted(layer, x)[0, 0]) == 6.0
  assert counted.runs == 1


class Subclassed(tf_keras.Model):
  def __init__(self):
    super().__init__()
    self.factor = 1.0

  def call(self, x):
    return self.factor * x


def test_an_attribute_of_a_keras_model(counted):
  model = Subclassed()
  for factor in (1.0, 2.0, 2.0):
    model.factor = factor
    assert float(counted(lambda x: model(x))) == factor
  assert counted.runs == 2


def test_a_tf_function_is_traced_once(counted):
  function = tf.function(lambda x: 2 * x, autograph=False)
  assert values(counted, [function] * 3) == [2.0] * 3
  assert counted.runs == 1


def test_a_list_of_calls_is_no_input(counted):
  calls, cache, number = [], {}, 0

  def fn(x):
    nonlocal number
    number += 1
    calls.append(x)
    cache[number] = x
    return 2 * x

  for _ in range(5):
    counted(fn)
  assert counted.runs == len(calls) == len(cache) == number == 1


@pytest.mark.parametrize(
  'fn',
  [
    lambda x: x * float(x.numpy()),
    lambda x: x * float(x),
    lambda x: tf.constant(np.square(x.numpy())),
    lambda x: tf.constant(np.sin(x) * 0.0) + x * x,
    lambda x: x * sum(1.0 for _ in range(int(x))),
    lambda x: x * x if x > 0 else x * 0,
  ],
)
def test_functions_that_need_values_run_eagerly(counted, fn):
  assert [float(counted(fn, x)) for x in (2.0, 3.0)] == [4.0, 9.0]


def test_errors_of_the_function_are_its_own(counted):
  def fn(x):
    raise ZeroDivisionError('mine')

  for _ in range(2):
    with pytest.raises(ZeroDivisionError, match='mine'):
      counted(fn)


def test_functions_can_be_made_to_run_eagerly(counted):
  tf.config.run_functions_eagerly(True)
  try:
    values(counted, [closure_over(1.0)] * 3)
  finally:
    tf.config.run_functions_eagerly(False)
  assert counted.runs == 3


def test_the_memory_is_bounded(counted, monkeypatch):
  monkeypatch.setattr(compiled, '_MAX_FUNCTIONS', 2)
  fns = [closure_over(float(i)) for i in range(3)]
  values(counted, fns)
  assert len(compiled._cache) == 2
  # The last two are still there; the first is traced anew.
  values(counted, fns[1:])
  assert counted.runs == 3
  values(counted, fns[:1])
  assert counted.runs == 4


def test_a_tape_around_a_call(counted):
  x = tf.constant(3.0)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = counted(lambda x: x**2, x)
  assert float(tape.gradient(y, x)) == 6.0


def test_recursion_ends():
  def even(n):
    return n == 0 or odd(n - 1)

  def odd(n):
    return n != 0 and even(n - 1)

  itself = []
  itself.append(itself)
  for fn in (even, lambda: itself):
    assert fingerprint(fn, []) == fingerprint(fn, [])
