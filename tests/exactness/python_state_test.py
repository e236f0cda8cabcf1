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
"""What Python code can see may change between two calls.

Each entry of the table makes a function and what changes it. The first diagonal
is that of the function as it was, the second one that of what it has become, as
in plain eager TensorFlow.
"""

import collections
import contextvars
import functools
import gc
import itertools
import os
import random
import sys
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

import tfp_diag
from tests.exactness.ways import copy_of, draw, same
from tests.oracles import hessian_by_copies, jacobian_by_copies

N = 16
SAMPLES = 2
_module_scale = 1.5

BUILDERS = []


def builder(make):
  """Registers `make(here) -> (fn, change)`."""
  BUILDERS.append(make)
  return make


def bent(x, a):
  """Of each coordinate and its neighbor; `a` scales and bends."""
  return a * tf.sin(a * x) + x * tf.roll(x, 1, axis=-1)


# Functions and what they hold.


@builder
def function_attribute(here):
  def fn(x):
    return bent(x, fn.scale)

  fn.scale = 1.5
  return fn, lambda: setattr(fn, 'scale', 2.5)


@builder
def attribute_of_another_function(here):
  def other():
    raise NotImplementedError

  other.settings = {'scale': [1.5]}

  def change():
    other.settings['scale'][0] = 2.5

  return lambda x: bent(x, other.settings['scale'][0]), change


@builder
def closure_cell(here):
  scale = 1.5

  def change():
    nonlocal scale
    scale = 2.5

  return lambda x: bent(x, scale), change


@builder
def default_argument(here):
  def fn(x, scale=1.5):
    return bent(x, scale)

  def change():
    fn.__defaults__ = (2.5,)

  return fn, change


@builder
def keyword_default(here):
  def fn(x, *, scale=(1.5,)):
    return bent(x, scale[0])

  def change():
    fn.__kwdefaults__['scale'] = (2.5,)

  return fn, change


@builder
def replaced_code(here):
  def fn(x):
    return bent(x, 1.5)

  def other(x):
    return bent(x, 2.5)

  return fn, lambda: setattr(fn, '__code__', other.__code__)


@builder
def partial_of_a_list(here):
  scales = [1.5, 0.0]

  def fn(scales, x):
    return bent(x, sum(scales))

  return functools.partial(fn, scales), lambda: scales.append(1.0)


@builder
def partial_of_a_partial(here):
  inner = functools.partial(bent, a=1.5)
  outer = functools.partial(lambda f, x: f(x), inner)
  return outer, lambda: inner.keywords.update(a=2.5)


@builder
def bound_method(here):
  class Model:
    scale = 1.5

    def __call__(self, x):
      return bent(x, self.scale)

  model = Model()
  return model.__call__, lambda: setattr(model, 'scale', 2.5)


@builder
def generator(here):
  scales = itertools.count(1)
  return lambda x: bent(x, 0.7 * (next(scales) > 1) + 1.0), lambda: None


@builder
def generator_frame(here):
  def states():
    scale = 1.5
    while True:
      scale += yield scale

  state = states()
  next(state)
  return lambda x: bent(x, state.send(0.0)), lambda: state.send(1.0)


@builder
def cached_function(here):
  scales = {'now': 1.5}

  @functools.lru_cache
  def scale():
    return scales['now']

  def change():
    scales['now'] = 2.5
    scale.cache_clear()

  return lambda x: bent(x, scale()), change


# Classes.


@builder
def class_attribute(here):
  class Model:
    scale = 1.5

    def log_prob(self, x):
      return bent(x, self.scale)

  return Model().log_prob, lambda: setattr(Model, 'scale', 2.5)


@builder
def base_class_attribute(here):
  class Base:
    scale = 1.5

  class Model(Base):
    def __call__(self, x):
      return bent(x, self.scale)

  return Model(), lambda: setattr(Base, 'scale', 2.5)


@builder
def replaced_method(here):
  class Model:
    def scale(self):
      return 1.5

    def __call__(self, x):
      return bent(x, self.scale())

  return Model(), lambda: setattr(Model, 'scale', lambda self: 2.5)


@builder
def property_of_something_else(here):
  table = {'scale': 1.5}

  class Model:
    @property
    def scale(self):
      return table['scale']

  model = Model()
  return lambda x: bent(x, model.scale), lambda: table.update(scale=2.5)


@builder
def descriptor(here):
  class Scale:
    now = 1.5

    def __get__(self, instance, owner):
      return self.now

  class Model:
    scale = Scale()

  return (
    lambda x: bent(x, Model.scale),
    lambda: setattr(Scale, 'now', 2.5),
  )


@builder
def slots(here):
  class Model:
    __slots__ = ('scale',)

  model = Model()
  model.scale = 1.5
  return lambda x: bent(x, model.scale), lambda: setattr(model, 'scale', 2.5)


@builder
def dynamic_attribute(here):
  table = {'scale': 1.5}

  class Model:
    def __getattr__(self, name):
      return table[name]

  model = Model()
  return lambda x: bent(x, model.scale), lambda: table.update(scale=2.5)


@builder
def changed_class(here):
  class Small:
    scale = 1.5

  class Large:
    scale = 2.5

  model = Small()
  return (
    lambda x: bent(x, model.scale),
    lambda: setattr(model, '__class__', Large),
  )


# Containers.


@builder
def dict_subclass(here):
  class Settings(dict):
    pass

  settings = Settings()
  settings.scale = 1.5
  return (
    lambda x: bent(x, settings.scale),
    lambda: setattr(settings, 'scale', 2.5),
  )


@builder
def list_subclass_attribute(here):
  class Scales(list):
    factor = 1.0

  scales = Scales([1.5])
  return (
    lambda x: bent(x, scales.factor * scales[0]),
    lambda: setattr(scales, 'factor', 2.0),
  )


@builder
def array_subclass(here):
  class Measured(np.ndarray):
    unit = 1.5

  data = np.linspace(0.5, 1.0, N).view(Measured)
  return (
    lambda x: bent(x, data.unit) * np.asarray(data),
    lambda: setattr(data, 'unit', 2.5),
  )


@builder
def array_in_place(here):
  scale = np.full(N, 1.5)

  def change():
    scale[3:9] = np.arange(6)

  return lambda x: bent(x, scale), change


@builder
def view_of_an_array(here):
  table = np.full([4, N], 1.5)
  row = table[1]

  def change():
    table[1, ::2] = 2.5

  return lambda x: bent(x, row), change


@builder
def array_of_objects(here):
  scales = np.array([{'scale': 1.5}, None], dtype=object)
  return (
    lambda x: bent(x, scales[0]['scale']),
    lambda: scales[0].update(scale=2.5),
  )


@builder
def long_list(here):
  scales = [1.5] * 5000

  def change():
    scales[3217] = 2.5

  return lambda x: bent(x, max(scales)), change


@builder
def large_dict(here):
  scales = {k: 1.0 + k / 10_000 for k in range(3000)}

  def change():
    scales[2718] = 2.5

  return lambda x: bent(x, scales[2718]), change


@builder
def nested_deeply(here):
  innermost = [1.5]
  nested = innermost
  for _ in range(60):
    nested = [nested]

  def fn(x):
    value = nested
    while isinstance(value, list):
      value = value[0]
    return bent(x, value)

  def change():
    innermost[0] = 2.5

  return fn, change


@builder
def deque(here):
  scales = collections.deque([1.5, 2.5], maxlen=2)
  return lambda x: bent(x, scales[0]), lambda: scales.rotate(1)


@builder
def order_of_a_dict(here):
  scales = collections.OrderedDict(small=1.5, large=2.5)
  return (
    lambda x: bent(x, next(iter(scales.values()))),
    lambda: scales.move_to_end('small'),
  )


@builder
def bytes_in_a_buffer(here):
  buffer = bytearray(np.float64(1.5).tobytes())

  def change():
    buffer[:] = np.float64(2.5).tobytes()

  return lambda x: bent(x, np.frombuffer(buffer)[0]), change


# Names and places.


@builder
def module_global_by_name(here):
  name = '_module_' + 'scale'
  module = sys.modules[__name__]

  def change():
    here.monkeypatch.setattr(module, name, 2.5)

  return lambda x: bent(x, getattr(module, name)), change


@builder
def module_of_ones_own(here):
  module = types.ModuleType('settings')
  exec('scale = 1.5', module.__dict__)
  return (
    lambda x: bent(x, vars(module)['scale']),
    lambda: exec('scale = 2.5', module.__dict__),
  )


@builder
def namespace(here):
  settings = types.SimpleNamespace(scale=types.SimpleNamespace(value=1.5))
  look_up = getattr
  return (
    lambda x: bent(x, look_up(look_up(settings, 'scale'), 'value')),
    lambda: setattr(settings.scale, 'value', 2.5),
  )


@builder
def weak_reference(here):
  class Box:
    value = 1.5

  box = Box()
  reference = weakref.ref(box)

  def change():
    box.value = 2.5

  return lambda x: bent(x, reference().value), change


@builder
def context_variable(here):
  scale = contextvars.ContextVar('scale', default=1.5)
  return lambda x: bent(x, scale.get()), lambda: scale.set(2.5)


@builder
def environment_variable(here):
  name = 'TFP_DIAG_TEST_SCALE'
  here.monkeypatch.setenv(name, '1.5')

  def change():
    here.monkeypatch.setenv(name, '2.5')

  return lambda x: bent(x, float(os.environ[name])), change


@builder
def file(here):
  path = here.folder / 'scale.txt'
  path.write_text('1.5', encoding='utf-8')

  def fn(x):
    return bent(x, float(path.read_text(encoding='utf-8')))

  return fn, lambda: path.write_text('2.5', encoding='utf-8')


@builder
def random_numbers_of_python(here):
  rng = random.Random(3)
  return lambda x: bent(x, rng.uniform(1.0, 2.0)), lambda: None


@builder
def random_numbers_of_numpy(here):
  rng = np.random.default_rng(3)
  return lambda x: bent(x, rng.uniform(1.0, 2.0, N)), lambda: None


# Tensors.


@builder
def small_minibatch(here):
  batch = {'data': draw(3, N, seed=11)}

  def fn(x):
    return bent(x, 1.0) * tf.reduce_sum(batch['data'], axis=0)

  return fn, lambda: batch.update(data=draw(3, N, seed=12))


@builder
def large_minibatch(here):
  batches = [draw(40, N, seed=11)]

  def fn(x):
    return bent(x, 1.0) * tf.reduce_mean(batches[-1], axis=0)

  return fn, lambda: batches.append(draw(40, N, seed=12))


@builder
def minibatch_with_zeros(here):
  """Zeros in the first one are no structure of the second one."""
  batch = [tf.eye(N, dtype=tf.float64)]

  def change():
    batch[0] = draw(N, N, seed=13)

  return lambda x: tf.sin(x @ batch[0]), change


@builder
def minibatch_of_another_size(here):
  batch = [draw(3, N, seed=14)]

  def change():
    batch[0] = draw(7, N, seed=15)

  return (
    lambda x: tf.tanh(x @ tf.transpose(batch[0])) @ batch[0],
    change,
  )


@builder
def indices_that_change(here):
  neighbors = [tf.constant(np.arange(N))]

  def change():
    neighbors[0] = tf.constant(np.roll(np.arange(N), 3))

  return lambda x: x * tf.sin(tf.gather(x, neighbors[0], axis=1)), change


@builder
def assigned_variable(here):
  scale = tf.Variable(1.5, dtype=tf.float64)
  return lambda x: bent(x, scale), lambda: scale.assign(2.5)


@builder
def replaced_variable(here):
  module = tf.Module()
  module.scale = tf.Variable(1.5, dtype=tf.float64)

  def change():
    module.scale = tf.Variable(2.5, dtype=tf.float64)

  return lambda x: bent(x, module.scale), change


# Libraries.


def keras_layer(units=N, **kwargs):
  return tf_keras.layers.Dense(
    units,
    dtype=tf.float64,
    kernel_initializer=tf_keras.initializers.GlorotNormal(seed=1),
    **kwargs,
  )


@builder
def keras_activation(here):
  layer = keras_layer(activation='tanh')
  return layer, lambda: setattr(layer, 'activation', tf.nn.softplus)


@builder
def keras_sequential_that_grows(here):
  model = tf_keras.Sequential([keras_layer(activation='tanh')])
  return (
    lambda x: model(x) * x,
    lambda: model.add(keras_layer(activation='sigmoid')),
  )


@builder
def keras_sequential_that_shrinks(here):
  model = tf_keras.Sequential(
    [keras_layer(activation='tanh'), keras_layer(activation='sigmoid')]
  )
  return lambda x: model(x) * x, model.pop


@builder
def keras_lambda(here):
  scales = [1.5]
  layer = tf_keras.layers.Lambda(lambda x: bent(x, scales[0]), dtype='float64')

  def change():
    scales[0] = 2.5

  return layer, change


@builder
def keras_weights(here):
  layer = keras_layer(activation='tanh')
  layer.build([None, N])

  def change():
    layer.set_weights([2.0 * w + 0.1 for w in layer.get_weights()])

  return layer, change


@builder
def bijector_subclass(here):
  class Bent(tfp.bijectors.Bijector):
    def __init__(self):
      super().__init__(forward_min_event_ndims=0)
      self.hidden = types.SimpleNamespace(scale=1.5)

    def _forward(self, x):
      return bent(x, self.hidden.scale)

  bijector = Bent()
  return bijector.forward, lambda: setattr(bijector.hidden, 'scale', 2.5)


@builder
def linear_operator_subclass(here):
  class Banded(tf.linalg.LinearOperator):
    def __init__(self):
      super().__init__(dtype=tf.float64)
      self.settings = {'shift': 1}

    def _shape(self):
      return tf.TensorShape([N, N])

    def _matmul(self, x, adjoint=False, adjoint_arg=False):
      return x + 0.5 * tf.roll(x, self.settings['shift'], axis=-2)

  operator = Banded()
  return (
    lambda x: tf.sin(x) * operator.matvec(tf.cos(x)),
    lambda: operator.settings.update(shift=0),
  )


@builder
def joint_distribution_coroutine(here):
  settings = {'scale': 1.5}

  @tfp.distributions.JointDistributionCoroutineAutoBatched
  def model():
    x = yield tfp.distributions.Sample(
      tfp.distributions.Normal(tf.zeros([], tf.float64), 1.0), N, name='x'
    )
    yield tfp.distributions.Normal(
      tf.sin(settings['scale'] * tf.reduce_sum(x**2)), 0.5, name='y'
    )

  def gradient_like(x):
    total = model.log_prob(x=x, y=tf.zeros(x.shape[:-1], x.dtype))
    return x**2 * total[..., tf.newaxis]

  return gradient_like, lambda: settings.update(scale=2.5)


@builder
def distribution_attribute(here):
  normal = tfp.distributions.Normal(tf.zeros([], tf.float64), 1.5)
  box = types.SimpleNamespace(distribution=normal)

  def change():
    box.distribution = tfp.distributions.Normal(normal.loc, 2.5)

  return lambda x: x * box.distribution.log_prob(x), change


@builder
def nested_tf_function(here):
  scale = [1.5]

  def fn(x):
    inner = tf.function(lambda x: bent(x, scale[0]), autograph=False)
    return inner(x)

  def change():
    scale[0] = 2.5

  return fn, change


# These make another function at each call: no later one is an oracle.
DRAWING = (generator, random_numbers_of_python, random_numbers_of_numpy)


@pytest.fixture
def here(tmp_path, monkeypatch):
  return types.SimpleNamespace(folder=tmp_path, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
  'make',
  [make for make in BUILDERS if make not in DRAWING],
  ids=lambda make: make.__name__,
)
def test_diagonal_of_a_jacobian(make, here):
  fn, change = make(here)
  x = draw(SAMPLES, N)
  for _ in range(2):
    ys, diag = tfp_diag.diag_jacobian(x, sample_shape=[SAMPLES], fn=fn)
    same(ys[0], fn(x))
    same(diag[0], jacobian_by_copies(fn, copy_of(x)))
    change()


@pytest.mark.parametrize('make', DRAWING, ids=lambda make: make.__name__)
def test_the_draw_that_gave_ys(make, here):
  fn, _ = make(here)
  x = draw(SAMPLES, N)
  # Here the scale that gave y is the only one that could.
  j = int(np.argmin(np.abs(x[0] - 0.5)))
  scales = np.linspace(0.9, 2.1, 120_001)
  seen = []
  for _ in range(3):
    ys, diag = tfp_diag.diag_jacobian(x, sample_shape=[SAMPLES], fn=fn)
    v, before, y = (float(a) for a in (x[0, j], x[0, j - 1], ys[0][0, j]))
    bends = scales * np.sin(scales * v) + v * before
    scale = scales[np.argmin(np.abs(bends - y))]
    want = scale**2 * np.cos(scale * v) + before
    np.testing.assert_allclose(diag[0][0, j], want, atol=1e-3)
    seen.append(scale)
  assert np.ptp(seen) > 1e-3


HESSIANS = (
  function_attribute,
  long_list,
  large_minibatch,
  minibatch_with_zeros,
  keras_sequential_that_grows,
  bijector_subclass,
)


@pytest.mark.parametrize('make', HESSIANS, ids=lambda make: make.__name__)
def test_diagonal_of_a_hessian(make, here):
  fn, change = make(here)
  x = draw(SAMPLES, N, seed=1)

  def log_prob(x):
    return tf.reduce_sum(fn(x) ** 2, axis=-1)

  for _ in range(2):
    value, _, diag = tfp_diag.diag_hessian(log_prob, x)
    same(value, log_prob(x))
    same(diag, hessian_by_copies(log_prob, copy_of(x)))
    change()


IN_GRAPHS = (
  function_attribute,
  dict_subclass,
  large_dict,
  keras_activation,
  keras_sequential_that_grows,
  keras_sequential_that_shrinks,
  linear_operator_subclass,
)


@pytest.mark.parametrize('make', IN_GRAPHS, ids=lambda make: make.__name__)
def test_in_a_new_graph(make, here):
  """What is remembered of one graph is not the structure of the next one."""
  fn, change = make(here)
  x = draw(SAMPLES, N, seed=2)
  for _ in range(2):

    @tf.function(autograph=False)
    def call(x):
      return tfp_diag.diag_jacobian(x, sample_shape=[SAMPLES], fn=fn)[1][0]

    same(call(x), jacobian_by_copies(fn, copy_of(x)))
    change()


@pytest.mark.parametrize(
  'make', (long_list, keras_activation, file), ids=lambda make: make.__name__
)
def test_new_plans(make, here):
  fn, change = make(here)
  x = draw(SAMPLES, N, seed=3)
  for _ in range(2):
    plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[SAMPLES])
    same(plan(x)[1][0], jacobian_by_copies(fn, copy_of(x)))
    change()


def test_back_and_forth():
  """What is found again is what was there before."""
  settings = {'shift': 1, 'power': 2}

  def fn(x):
    return x ** settings['power'] * tf.roll(x, settings['shift'], axis=-1)

  x = draw(SAMPLES, N, seed=4)
  for shift, power in [(1, 2), (0, 2), (1, 3), (1, 2), (0, 2), (5, 3)]:
    settings.update(shift=shift, power=power)
    diag = tfp_diag.diag_jacobian(x, sample_shape=[SAMPLES], fn=fn)[1][0]
    same(diag, jacobian_by_copies(fn, copy_of(x)))


def live_graphs():
  gc.collect()
  kind = tf.__internal__.FuncGraph
  return sum(issubclass(type(found), kind) for found in gc.get_objects())


@pytest.mark.parametrize('size', (5, 60))
def test_new_minibatches_leave_no_graphs_behind(size):
  """The same derivative, of other numbers: small Tensors and large ones."""
  x = draw(SAMPLES, N, seed=5)

  def step(seed):
    batch = draw(size, N, seed=seed)

    def log_prob(x):
      return tf.reduce_sum(tf.nn.softplus(x @ tf.transpose(batch)), axis=-1)

    same(
      tfp_diag.diag_hessian(log_prob, x)[2],
      tf.sigmoid(x @ tf.transpose(batch))
      * tf.sigmoid(-x @ tf.transpose(batch))
      @ batch**2,
    )

  for seed in (1, 2):
    step(seed)
  before = live_graphs()
  for seed in range(3, 8):
    step(seed)
  assert live_graphs() <= before + 2
