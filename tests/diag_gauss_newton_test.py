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
"""Tests the diagonal of a Gauss-Newton matrix."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag import diag_gauss_newton, plan_diag_gauss_newton

RNG = np.random.default_rng(3)
DATA = tf.constant(RNG.standard_normal((7, 3)))
WEIGHTS = tf.constant(RNG.uniform(0.5, 2.0, (7, 2)))
INPUTS, HIDDEN, OUTPUTS = 3, 4, 2
SIZE = INPUTS * HIDDEN + HIDDEN * OUTPUTS


def network(x):
  first, second = tf.split(x, [INPUTS * HIDDEN, HIDDEN * OUTPUTS], axis=-1)
  batch = tf.shape(x)[:-1]
  first = tf.reshape(first, tf.concat([batch, [INPUTS, HIDDEN]], 0))
  second = tf.reshape(second, tf.concat([batch, [HIDDEN, OUTPUTS]], 0))
  return tf.matmul(tf.tanh(tf.matmul(DATA, first)), second)


def chain(x):
  return tf.sin(x[..., 1:]) * x[..., :-1]


def many_paths(x):
  hidden = tf.tanh(tf.linalg.matvec(DATA, x[..., :3]))
  total = tf.reduce_sum(hidden, axis=-1, keepdims=True)
  return tf.sin(tf.cumsum(tf.sin(hidden) * total, axis=-1))


def state(n=SIZE, samples=2):
  draws = np.random.default_rng(n).standard_normal((samples, n))
  return tf.constant(0.5 * draws)


def dense(fn, x, weights=1.0):
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  jacobian = tape.batch_jacobian(y, x, experimental_use_pfor=False).numpy()
  weights = np.broadcast_to(weights, y.shape)[..., np.newaxis]
  terms = weights * jacobian**2
  return terms.reshape(x.shape[0], -1, x.shape[-1]).sum(1)


def wrapped(how):
  if how == 'eager':
    return lambda fn: fn
  return tf.function(jit_compile=how == 'xla')


@pytest.mark.parametrize('how', ['eager', 'graph', 'xla'])
@pytest.mark.parametrize('fn', [network, chain])
def test_is_that_of_the_dense_matrix(fn, how):
  x = state()
  found = wrapped(how)(lambda x: diag_gauss_newton(fn, x, sample_shape=[2]))(x)
  np.testing.assert_allclose(found.diag, dense(fn, x), rtol=1e-10)
  np.testing.assert_allclose(found.residuals, fn(x), rtol=1e-12)


def test_weights():
  x = state()
  found = diag_gauss_newton(network, x, WEIGHTS, [2])
  np.testing.assert_allclose(found.diag, dense(network, x, WEIGHTS), rtol=1e-10)
  # One that is shared, and negative.
  found = diag_gauss_newton(network, x, -0.5 * tf.ones([], x.dtype), [2])
  np.testing.assert_allclose(found.diag, dense(network, x, -0.5), rtol=1e-10)


def test_weights_are_held():
  x = state()
  found = diag_gauss_newton(network, x, network(x) ** 2, [2])
  want = dense(network, x, network(x).numpy() ** 2)
  np.testing.assert_allclose(found.diag, want, rtol=1e-10)


def test_curvature_of_the_residuals_does_not_count():
  x = state(5, 1)[0]
  plan = plan_diag_gauss_newton(lambda x: tf.exp(x) * x, x)
  assert plan.pattern.nnz == 5
  plan = plan_diag_gauss_newton(lambda x: x[:3] * tf.reduce_sum(x[3:]), x)
  assert plan.pattern.matrix[0, 1] == 0
  assert plan.pattern.matrix[0, 4] == 1


def test_one_sweep_for_a_network_with_one_hidden_layer():
  x = state()
  plan = plan_diag_gauss_newton(network, x, WEIGHTS, [2])
  assert plan.num_passes == 1
  assert plan.ways[0].name == 'squared sweeps'
  assert str(plan).startswith('Plan for a diagonal Gauss-Newton matrix: 1 pass')
  found = diag_gauss_newton(network, x, WEIGHTS, [2], plan=plan)
  np.testing.assert_allclose(found.diag, dense(network, x, WEIGHTS), rtol=1e-10)


def test_what_no_sweep_can():
  x = state(6)
  found = diag_gauss_newton(many_paths, x, sample_shape=[2])
  np.testing.assert_allclose(found.diag, dense(many_paths, x), rtol=1e-9)


def test_several_residuals_and_parts():
  x = {'a': state(3), 'b': state(4)}

  def residuals(a, b):
    return [tf.sin(a), a[:, :2] * b[:, 2:]]

  found = diag_gauss_newton(
    residuals,
    x,
    [tf.constant(2.0, tf.float64), tf.ones([2, 2], tf.float64)],
    [2],
  )
  a, b = x['a'].numpy(), x['b'].numpy()
  want = 2 * np.cos(a) ** 2
  want[:, :2] += b[:, 2:] ** 2
  np.testing.assert_allclose(found.diag['a'], want, rtol=1e-12)
  np.testing.assert_allclose(found.diag['b'][:, 2:], a[:, :2] ** 2, rtol=1e-12)
  assert not np.any(found.diag['b'][:, :2])
  np.testing.assert_allclose(found.residuals[0], np.sin(a), rtol=1e-12)


def test_variables():
  weights = tf.Variable(state(SIZE, 1)[0])
  found = diag_gauss_newton(lambda: network(weights[tf.newaxis]), [weights])
  want = dense(network, tf.convert_to_tensor(weights)[tf.newaxis])
  np.testing.assert_allclose(found.diag[0], want[0], rtol=1e-10)


@pytest.mark.parametrize('fn', [network, chain, many_paths])
def test_an_outer_tape(fn):
  x = state()
  with tf.GradientTape() as tape:
    tape.watch(x)
    diag = diag_gauss_newton(fn, x, sample_shape=[2]).diag
  found = tape.gradient(diag, x)
  with tf.GradientTape() as tape:
    tape.watch(x)
    with tf.GradientTape(persistent=True) as inner:
      inner.watch(x)
      y = fn(x)
    squares = inner.batch_jacobian(y, x, experimental_use_pfor=False) ** 2
  np.testing.assert_allclose(found, tape.gradient(squares, x), rtol=1e-9)


Two = collections.namedtuple('Two', ['b', 'a'])


@pytest.mark.parametrize('make', [Two, lambda b, a: {'b': b, 'a': a}])
def test_weights_are_those_of_the_same_name(make):
  x = state(3)

  def fn(x):
    return make(b=tf.sin(x), a=10.0 * x)

  ones, zeros = tf.ones([2, 3], x.dtype), tf.zeros([2, 3], x.dtype)
  found = diag_gauss_newton(fn, x, make(b=ones, a=zeros), [2])
  np.testing.assert_allclose(found.diag, np.cos(x) ** 2)
  assert type(found.residuals) is type(fn(x))
  tf.nest.map_structure(np.testing.assert_allclose, found.residuals, fn(x))
  other = [ones, zeros], {'foo': ones, 'bar': zeros}
  for weights in other:
    with pytest.raises(ValueError, match='in the structure of the residuals'):
      diag_gauss_newton(fn, x, weights, [2])


def test_a_list_is_as_good_as_a_tuple():
  x = state(3)
  weights = tf.ones([2, 3], x.dtype), tf.zeros([2, 3], x.dtype)
  found = diag_gauss_newton(lambda x: [tf.sin(x), x], x, weights, [2])
  np.testing.assert_allclose(found.diag, np.cos(x) ** 2)
  found = diag_gauss_newton(lambda x: (tf.sin(x), x), x, [*weights], [2])
  np.testing.assert_allclose(found.diag, np.cos(x) ** 2)
  assert isinstance(found.residuals, tuple)


def test_what_does_not_fit():
  x = state(3)
  with pytest.raises(ValueError, match=r'`weights` has shape .4,..*broadcast'):
    diag_gauss_newton(tf.sin, x, tf.ones([4], x.dtype), [2])
  with pytest.raises(TypeError, match='`weights` has dtype float32'):
    diag_gauss_newton(tf.sin, x, tf.ones([3], tf.float32), [2])
  with pytest.raises(ValueError, match=r'`weights` has 2 parts.*returns 1'):
    diag_gauss_newton(lambda x: [tf.sin(x)], x, [x, x], [2])
  plan = plan_diag_gauss_newton(tf.sin, x, sample_shape=[2])
  with pytest.raises(ValueError, match='Gauss-Newton matrix, not for a'):
    tfp_diag.diag_hessian(lambda x: tf.reduce_sum(x, -1), x, plan=plan)
  with pytest.raises(ValueError, match='does not hold the weights'):
    plan(x)
  with pytest.raises(tfp_diag.sparsity.SampleMixingError):
    diag_gauss_newton(lambda x: x - tf.reduce_mean(x, 0), x, sample_shape=[2])


def test_a_saved_plan(tmp_path):
  x = state()
  plan = plan_diag_gauss_newton(network, x, sample_shape=[2])
  plan.save(tmp_path / 'plan.npz')
  plan = tfp_diag.load_plan(tmp_path / 'plan.npz')
  found = diag_gauss_newton(network, x, sample_shape=[2], plan=plan)
  np.testing.assert_allclose(found.diag, dense(network, x), rtol=1e-10)


def test_negative_weights_are_right():
  weights = np.array([[1.0, -2.0], [-3.0, 0.5]])
  x = tf.constant([[0.5, 1.0], [2.0, -1.0]], tf.float64)
  _, diag = diag_gauss_newton(lambda x: x**3, x, weights)
  np.testing.assert_allclose(diag, weights * (3 * x.numpy() ** 2) ** 2)


@pytest.mark.parametrize(
  'weights',
  [
    float('nan'),
    [1.0, np.inf, 1.0],
    np.array([np.nan, 1.0, 1.0], np.float32),
    tf.constant([1.0, -np.inf, 1.0]),
  ],
  ids=['number', 'list', 'array', 'tensor'],
)
@pytest.mark.parametrize('call', [diag_gauss_newton, plan_diag_gauss_newton])
def test_weights_that_are_not_finite_are_refused(call, weights):
  with pytest.raises(
    ValueError, match='`weights` has entries that are not fin'
  ):
    call(lambda x: x**3, tf.ones([3]), weights)
