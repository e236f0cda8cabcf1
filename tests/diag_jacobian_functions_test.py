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
"""`diag_jacobian` of functions of many kinds, against the dense Jacobian.

TensorFlow computes the whole Jacobian, eagerly and in float64.
"""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

from tests.pairs import parametrize_pairs
from tfp_diag import diag_jacobian
from tfp_diag.sparsity import SampleMixingError

tfb = tfp.bijectors
tfd = tfp.distributions

MODES = ('reverse', 'forward')
SCHEDULES = ('unrolled', 'pfor', 'while_loop')


def run(regime, fn, xs):
  """Calls `fn(*xs)` in a regime."""
  if regime == 'eager':
    return fn(*xs)
  function = tf.function(
    fn, autograph=False, jit_compile=regime == 'xla' or None
  )
  return function(*xs)


def draw(shape, dtype='float64', seed=0):
  values = np.random.default_rng(seed).uniform(-1.0, 1.0, shape)
  return tf.constant(values, dtype)


def dense_diagonal(fn, xs):
  """The diagonal of the whole Jacobian, all samples and parts in one."""
  sizes = [x.shape.num_elements() for x in xs]
  flat = tf.concat([tf.reshape(x, [-1]) for x in xs], 0)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(flat)
    parts = tf.split(flat, sizes)
    parts = [tf.reshape(p, x.shape) for p, x in zip(parts, xs)]
    ys = fn(*parts)
    ys = list(ys) if isinstance(ys, (list, tuple)) else [ys] * len(xs)
    ys = [tf.broadcast_to(y, x.shape) for y, x in zip(ys, xs)]
    ys = tf.concat([tf.reshape(y, [-1]) for y in ys], 0)
  matrix = tape.jacobian(ys, flat, experimental_use_pfor=False)
  if matrix is None:
    return [np.zeros(x.shape) for x in xs]
  diagonal = np.split(np.diag(matrix), np.cumsum(sizes)[:-1])
  return [d.reshape(x.shape) for d, x in zip(diagonal, xs)]


@tf.custom_gradient
def cubed_by_hand(x):
  def gradient(dy):
    return dy * 3 * x**2

  return x**3, gradient


def loop(x):
  """Three steps that couple neighbors."""
  return tf.while_loop(
    lambda i, _: i < 3,
    lambda i, y: (i + 1, y * x + tf.roll(y, 1, axis=-1)),
    (0, x),
    maximum_iterations=3,
  )[1]


def scan(x):
  """An AR(1) path along the event axis, then its square."""
  path = tf.scan(
    lambda a, e: 0.5 * a + tf.sin(e), tf.transpose(x), tf.zeros_like(x[:, 0])
  )
  return tf.transpose(path) ** 2


DENSE = tf_keras.layers.Dense(
  4,
  activation='tanh',
  dtype='float64',
  kernel_initializer=tf_keras.initializers.RandomNormal(seed=1),
)
BATCH_NORM = tf_keras.layers.BatchNormalization(dtype='float64')
MATRIX = draw([4, 4], seed=9)


def score(x):
  """The score of a mixture."""
  mixture = tfd.MixtureSameFamily(
    tfd.Categorical(logits=tf.constant([0.0, 0.5], x.dtype)),
    tfd.MultivariateNormalDiag(
      tf.constant([[0.0] * 4, [1.0] * 4], x.dtype), 0.5 * tf.ones([4], x.dtype)
    ),
  )
  return tfp.math.value_and_gradient(mixture.log_prob, x)[1]


FLOW = tfb.Chain(
  [
    tfb.ScaleMatvecTriL(
      tf.eye(4, dtype=tf.float64) + tf.linalg.band_part(MATRIX, -1, 0)
    ),
    tfb.SinhArcsinh(tf.constant(0.3, tf.float64)),
    tfb.Softplus(),
    tfb.Scale(tf.constant(2.0, tf.float64)),
  ]
)

# Of samples [3] and events [4], or of two such parts.
FUNCTIONS = {
  'elementwise': lambda x: x * tf.exp(-x) + tf.math.lgamma(2 + x),
  'dense': lambda x: tf.tanh(x @ MATRIX) * x,
  'where': lambda x: tf.where(x > 0.2, x**2, tf.exp(tf.roll(x, 1, -1)) * x),
  'cond': lambda x: tf.cond(
    tf.reduce_sum(x) > 0, lambda: x**3, lambda: tf.sin(x) * tf.roll(x, 1, -1)
  ),
  'while_loop': loop,
  'scan': scan,
  'gather': lambda x: tf.gather(x, [1, 1, 3, 0], axis=-1) * x,
  'gather_nd': lambda x: x * tf.gather_nd(x, [[[0, 1]], [[1, 0]], [[2, 3]]]),
  'custom_gradient': lambda x: cubed_by_hand(x) * tf.reduce_sum(x, -1, True),
  'stop_gradient': lambda x: x * tf.stop_gradient(x) + tf.sin(x),
  'keras_layer': lambda x: DENSE(x) * x,
  'distribution': score,
  'bijector': FLOW.forward,
  'bijector_log_det': lambda x: (
    x * FLOW.forward_log_det_jacobian(x, 1)[:, None]
  ),
  'broadcast': lambda x: tf.reduce_sum(x**3, axis=-1, keepdims=True),
  'scalar': lambda x: tf.constant(2.0, x.dtype),
  'constant': lambda x: tf.ones_like(x),
  'sort': lambda x: tf.sort(x, axis=-1) * x,
  'one_y_for_two': lambda x, z: tf.sin(x * z) + tf.reduce_sum(x * z, -1, True),
  'unconnected': lambda x, z: [x**2 * tf.reduce_sum(z), x],
  'swapped': lambda x, z: [z * x, x**2],
}
TWO_PARTS = ('one_y_for_two', 'unconnected', 'swapped')
# pfor meets an op in them that it cannot vectorize, in one mode at least.
NOT_VECTORIZED = ('while_loop', 'scan', 'cond')
# Its parts meet in a sum over samples.
MIXING = ('unconnected',)


@functools.lru_cache
def parts_and_diagonal(name):
  xs = [draw([3, 4], seed=s) for s in range(2 if name in TWO_PARTS else 1)]
  return xs, dense_diagonal(FUNCTIONS[name], xs)


def check_function(name, regime, mode, schedule):
  fn = FUNCTIONS[name]
  xs, wanted_diag = parts_and_diagonal(name)
  sample_shape = None if name in MIXING else [3]

  def diagonal(*xs):
    return diag_jacobian(
      list(xs),
      sample_shape=sample_shape,
      fn=fn,
      mode=mode,
      schedule=schedule,
      parallel_iterations=3,
    )[1]

  with warnings.catch_warnings():
    # What can be vectorized, is.
    action = 'ignore' if name in NOT_VECTORIZED else 'error'
    warnings.filterwarnings(action, 'pfor cannot', RuntimeWarning)
    diag = run(regime, diagonal, xs)
  for d, wanted in zip(diag, wanted_diag):
    np.testing.assert_allclose(d, wanted, rtol=1e-9, atol=1e-11)


@parametrize_pairs(
  name=FUNCTIONS,
  regime=('eager', 'function', 'xla'),
  mode=MODES,
  schedule=SCHEDULES,
)
def test_function(name, regime, mode, schedule):
  check_function(name, regime, mode, schedule)


def test_python_branches_on_tensors_are_converted():
  class Piecewise:
    def __call__(self, x):
      if tf.reduce_sum(x) > 0:
        return x**2
      return x**3

    def method(self, x):
      return self(x)

  piecewise = Piecewise()
  x = tf.constant([1.0, 2.0])
  for fn in (piecewise, piecewise.method, lambda x: piecewise(x)):
    for sign, wanted in ((1, [2.0, 4.0]), (-1, [3.0, 12.0])):
      diag = diag_jacobian(sign * x, fn=fn)[1][0]
      np.testing.assert_allclose(diag, wanted)
    diag = run('function', lambda x: diag_jacobian(x, fn=fn)[1][0], [-x])  # noqa: B023 - called at once.
    np.testing.assert_allclose(diag, wanted)


def test_batch_normalization_in_training_mixes_samples():
  x = draw([5, 2])

  def fn(x):
    return BATCH_NORM(x, training=True)

  fn(x)
  # Samples are coordinates, too: right for every function.
  diag = diag_jacobian(x, fn=fn)[1][0]
  np.testing.assert_allclose(diag, dense_diagonal(fn, [x])[0], atol=1e-10)
  with pytest.raises(SampleMixingError, match='mixes samples: Mean'):
    diag_jacobian(x, fn=fn, sample_shape=[5])
