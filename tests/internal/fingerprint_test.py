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
"""What a function can see is part of it, in whatever it is kept."""

import array
import collections
import dataclasses
import functools
import sys
import types

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import tfp_diag
from tfp_diag.internal.fingerprint import fingerprint

SCALE = 1.0


class Config:
  """Only other functions look at it."""

  def __init__(self, scale=1.0):
    self.scale = scale


def scaled(config, x):
  return config.scale * x


class Scaled(Config):
  """Looked at in many ways."""

  def method(self, x):
    return scaled(self, x)

  def __matmul__(self, x):
    return self.scale * x

  def __getitem__(self, key):
    return self.scale

  def __float__(self):
    return self.scale

  def __iter__(self):
    return iter([self.scale])

  def __getattr__(self, name):
    if name == 'unknown':
      return self.scale
    raise AttributeError(name)

  @staticmethod
  def static(x):
    return SCALE * x

  @classmethod
  def of_class(cls, x):
    return cls.of_all * x

  of_all = 1.0


class Inherited(Scaled):
  def method(self, x):
    return super().method(x)


class Made:
  def __init__(self, x):
    self.y = SCALE * x


@dataclasses.dataclass
class Data:
  scale: float


def in_object(make, look):
  holder = make(1.0)
  return (lambda x: look(holder, x)), lambda: setattr(holder, 'scale', 3.0)


def in_container(container, key=0, look=lambda c, x: c[0] * x):
  return (lambda x: look(container, x)), lambda: container.__setitem__(key, 3.0)


def in_global(fn):
  return fn, lambda: sys.modules[__name__].__dict__.update(SCALE=3.0)


def in_class():
  return Scaled.of_class, lambda: setattr(Scaled, 'of_all', 3.0)


def in_set():
  scales = {1.0}
  return (lambda x: sum(scales) * x), lambda: scales.add(2.0)


def in_module(fn):
  sys.modules['module_of_a_test'] = module = types.ModuleType('of_a_test')
  module.scale = 1.0
  return fn, lambda: setattr(module, 'scale', 3.0)


def imported(x):
  import module_of_a_test

  return module_of_a_test.scale * x


def imported_from(x):
  from module_of_a_test import scale

  return scale * x


def in_tracked(value, key):
  module = tf.Module()
  module.items = value
  return (lambda x: module.items[key] * x), lambda: module.items.__setitem__(
    key, 3.0
  )


def in_sparse():
  matrix = scipy.sparse.csr_matrix(np.ones([1, 1]))
  return (
    (lambda x: matrix.toarray()[0, 0] * x),
    lambda: matrix.data.__setitem__(0, 3.0),
  )


def in_mask():
  values = np.ma.masked_array([1.0, 2.0], [False, True])
  return (lambda x: values.sum() * x), lambda: values.__setitem__(1, 2.0)


def in_wrapped():
  holder = Config()

  @functools.wraps(scaled)
  def wrapper(*args):
    return scaled(*args)

  fn = functools.partial(wrapper, holder)
  return fn, lambda: setattr(holder, 'scale', 3.0)


def in_proxy():
  scales = {'scale': 1.0}
  proxy = types.MappingProxyType(scales)
  return (lambda x: proxy['scale'] * x), lambda: scales.update(scale=3.0)


def in_function_of_a_library():
  holder = Config()
  fn = tf.autograph.experimental.do_not_convert(lambda x: scaled(holder, x))
  assert fn.__module__ != __name__ or fn.__closure__
  return fn, lambda: setattr(holder, 'scale', 3.0)


KINDS = {
  'a function that a library made': in_function_of_a_library,
  'another function': lambda: in_object(Config, scaled),
  'a method': lambda: in_object(Scaled, lambda o, x: o.method(x)),
  'super()': lambda: in_object(Inherited, lambda o, x: o.method(x)),
  'an operator': lambda: in_object(Scaled, lambda o, x: o @ x),
  'an item': lambda: in_object(Scaled, lambda o, x: o['scale'] * x),
  'float()': lambda: in_object(Scaled, lambda o, x: float(o) * x),
  'iteration': lambda: in_object(Scaled, lambda o, x: sum(o) * x),
  '__getattr__': lambda: in_object(Scaled, lambda o, x: o.unknown * x),
  'getattr': lambda: in_object(
    Config, lambda o, x: getattr(o, 'sc' + 'ale') * x
  ),
  'a dataclass': lambda: in_object(Data, scaled),
  'a namespace': lambda: in_object(
    lambda s: types.SimpleNamespace(scale=s), scaled
  ),
  'a bound function': lambda: in_object(
    Config, lambda o, x: types.MethodType(scaled, o)(x)
  ),
  'partial and wraps': in_wrapped,
  'a static method': lambda: in_global(Scaled.static),
  'a class method': in_class,
  'a class that is made': lambda: in_global(lambda x: Made(x).y),
  'a deque': lambda: in_container(collections.deque([1.0])),
  'an array.array': lambda: in_container(array.array('d', [1.0])),
  'an array of objects': lambda: in_container(np.array([1.0, None], object)),
  'a UserDict': lambda: in_container(
    collections.UserDict(a=1.0), 'a', lambda c, x: c['a'] * x
  ),
  'a ChainMap': lambda: in_container(
    collections.ChainMap({'a': 1.0}), 'a', lambda c, x: c['a'] * x
  ),
  'a mapping proxy': in_proxy,
  'a set': in_set,
  'a mask': in_mask,
  'a sparse matrix': in_sparse,
  'a list of a tf.Module': lambda: in_tracked([1.0], 0),
  'a dict of a tf.Module': lambda: in_tracked({'a': 1.0}, 'a'),
  'an import': lambda: in_module(imported),
  'a name that is imported': lambda: in_module(imported_from),
}


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
  monkeypatch.setattr(sys.modules[__name__], 'SCALE', 1.0, raising=False)
  monkeypatch.setattr(Scaled, 'of_all', 1.0)
  yield
  sys.modules.pop('module_of_a_test', None)


def test_this_module_is_the_one_that_is_changed(monkeypatch):
  assert sys.modules[__name__].__dict__ is globals()


@pytest.mark.parametrize('kind', KINDS)
def test_what_changes_is_seen(kind):
  fn, change = KINDS[kind]()
  x = tf.constant([2.0, 5.0], tf.float64)

  def diagonal():
    return tfp_diag.diag_jacobian(x, fn=fn)[1][0]

  np.testing.assert_array_equal(diagonal(), [1.0, 1.0])
  before = fingerprint(fn, [])
  assert fingerprint(fn, []) == before
  change()
  assert fingerprint(fn, []) != before
  np.testing.assert_array_equal(diagonal(), [3.0, 3.0])


def test_structure_is_looked_for_again_in_a_new_graph():
  holder = Config(np.eye(20))

  def rotated(config, x):
    return tf.sin(tf.linalg.matvec(config.scale, x))

  x = tf.constant(np.linspace(0.0, 1.0, 40).reshape([2, 20]))

  @tf.function
  def one(x):
    return tfp_diag.diag_jacobian(
      x, fn=lambda x: rotated(holder, x), sample_shape=[2]
    )[1][0]

  np.testing.assert_allclose(one(x), np.cos(x), rtol=1e-12)
  matrix = np.random.default_rng(0).standard_normal([20, 20])
  holder.scale = matrix
  two = tf.function(one.python_function)
  np.testing.assert_allclose(
    two(x), np.diag(matrix) * np.cos(x @ matrix.T), rtol=1e-9, atol=1e-12
  )


def test_cost_is_bounded():
  """A hundred thousand objects behind a function are not all looked into."""
  holder = Config([Config([Config() for _ in range(300)]) for _ in range(300)])
  seen = []
  fingerprint(lambda x: scaled(holder, x), seen)
  assert len(seen) < 100_000
