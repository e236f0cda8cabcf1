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
"""Functions that call a `tf.function` are taken apart as if they did not."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

import tfp_diag
from tests.oracles import hessian_by_copies, jacobian_by_copies
from tfp_diag.sparsity import expansion

tfd = tfp.distributions

RNG = np.random.default_rng(0)
DESIGN = tf.constant(RNG.normal(size=[12, 3]))
CLASSES = tf.constant(RNG.integers(4, size=12))
RESPONSE = tf.constant(RNG.normal(size=12))
OFFSET = tf.Variable(RNG.normal(size=12))
STATE = tf.constant(RNG.normal(size=[3, 12]) / 2.0)


@tf.custom_gradient
def exp_of_two(x, y):
  value = tf.exp(x) * y
  return value, lambda dz: (dz * value, dz * tf.exp(x))


def classes(x):
  """A softmax regression: one sweep."""
  logits = tf.matmul(DESIGN, tf.reshape(x, [-1, 3, 4]))
  labels = tf.broadcast_to(CLASSES, tf.shape(logits)[:-1])
  return -tf.reduce_sum(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), -1
  )


def network(x):
  """One hidden layer, and a Variable."""
  hidden = tf.tanh(tf.matmul(DESIGN, tf.reshape(x[..., :9], [-1, 3, 3])))
  outputs = tf.linalg.matvec(hidden, x[..., 9:])
  return -tf.reduce_sum((RESPONSE + OFFSET - outputs) ** 4, -1)


def own_gradients(x):
  """A function with a gradient of its own that takes its value."""
  one, other = tf.split(x, [6, 6], axis=-1)
  design = tf.concat([DESIGN, DESIGN**2], -1)
  rates = exp_of_two(
    tf.linalg.matvec(design, one), tf.linalg.matvec(design, other)
  )
  return tf.reduce_sum(tf.sin(rates), -1)


def beta(x):
  """`tfp.math.lbeta` is a `tf.function` with a gradient of its own."""
  design = tf.concat([DESIGN, DESIGN**2], -1)
  mean = tf.sigmoid(tf.linalg.matvec(design, x[..., :6]))
  size = tf.exp(tf.linalg.matvec(design, x[..., 6:]))
  response = tf.sigmoid(RESPONSE)
  likelihood = tfd.Beta(mean * size, (1 - mean) * size)
  return tf.reduce_sum(likelihood.log_prob(response), -1)


def called(fn, **options):
  return tf.function(fn, autograph=False, **options)


def nested(fn):
  inner = called(fn)

  @called
  def outer(x):
    half = called(lambda x: x / 2.0)(x)
    return 2.0 * inner(2.0 * half)

  return outer


MODELS = [(classes, 1), (network, 1), (own_gradients, 1), (beta, 1)]


def hessian(fn, xs):
  return hessian_by_copies(fn, xs)


@pytest.mark.parametrize(
  'fn, num_passes', MODELS, ids=[f.__name__ for f, _ in MODELS]
)
def test_as_many_passes_as_without_the_call(fn, num_passes):
  want = hessian(fn, STATE)
  # Each within a function that is called, two compiled by themselves.
  others = [(nested(fn), 2)]
  if fn in (network, own_gradients):
    others.append((called(fn, jit_compile=True), 1))
  for other, factor in others:
    plan = tfp_diag.plan_diag_hessian(other, STATE[:2])
    assert plan.num_passes == num_passes
    assert 'squared sweeps' in str(plan)
    value, gradient, diag = plan(STATE)
    np.testing.assert_allclose(diag, factor * want, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(value, factor * fn(STATE), rtol=1e-12)
    with tf.GradientTape() as tape:
      tape.watch(STATE)
      y = fn(STATE)
    np.testing.assert_allclose(
      gradient, factor * tape.gradient(y, STATE), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize('jit_compile', [False, True])
def test_in_all_regimes(jit_compile):
  fn = called(network)

  @tf.function(jit_compile=jit_compile)
  def compiled(x):
    return tfp_diag.diag_hessian(fn, x, validate_args=not jit_compile)

  open_batch = tf.TensorSpec([None, 12], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, open_batch)
  assert plan.num_passes == 1
  want = hessian(network, STATE)
  for found in (
    compiled(STATE),
    tfp_diag.diag_hessian(fn, STATE),
    plan(STATE),
  ):
    np.testing.assert_allclose(found[2], want, rtol=1e-9)
  before = OFFSET.numpy()
  try:
    # A Variable is read at each call.
    OFFSET.assign(before + 1.0)
    want = hessian(network, STATE)
    for found in (compiled(STATE), tfp_diag.diag_hessian(fn, STATE)):
      np.testing.assert_allclose(found[2], want, rtol=1e-9)
  finally:
    OFFSET.assign(before)


def test_variables_as_parts():
  """Tapes know Variables, and not what stands for them in a graph."""
  weights = tf.Variable(STATE[0, :9]), tf.Variable(STATE[0, 9:])
  table = tf.Variable(STATE[:2])

  def loss():
    whole = tf.concat(weights, 0)[None]
    rows = tf.gather(table, [1, 0, 1])
    rest = tf.gather_nd(table, [[0, 2], [1, 3]])
    return network(whole)[0] + tf.reduce_sum(rows**3) + tf.reduce_sum(rest**4)

  xs = (*weights, table)
  *_, gradient, want = tfp_diag.diag_hessian(loss, xs)
  np.testing.assert_allclose(
    tf.concat(want[:2], 0), hessian(network, STATE[:1])[0], rtol=1e-9
  )
  for fn in (called(loss), called(lambda: 2.0 * called(loss)() / 2.0)):
    assert tfp_diag.plan_diag_hessian(fn, xs).num_passes == 1
    *_, found_gradient, found = tfp_diag.diag_hessian(fn, xs)
    for part in range(3):
      np.testing.assert_allclose(found[part], want[part], rtol=1e-9)
      np.testing.assert_allclose(
        found_gradient[part], gradient[part], rtol=1e-9
      )


def test_a_part_of_a_function():
  """What lies before a call stays, what lies behind is repeated."""

  def fn(x):
    logits = tf.matmul(DESIGN, tf.reshape(x, [-1, 3, 4]))
    normalizer = called(lambda z: tf.reduce_logsumexp(z, -1))(logits)
    return tf.reduce_sum(tf.sin(normalizer), -1)

  plan = tfp_diag.plan_diag_hessian(fn, STATE)
  assert plan.num_passes <= 2
  np.testing.assert_allclose(plan(STATE)[2], hessian(fn, STATE), rtol=1e-9)


def test_the_diagonal_of_a_jacobian():
  """Passes around a normalizer: a pass and a row, not one per coordinate."""

  def fn(x):
    return tf.exp(x) / tf.reduce_sum(tf.exp(2.0 * x), -1, keepdims=True)

  bare = tfp_diag.plan_diag_jacobian(fn, STATE, sample_shape=[3])
  plan = tfp_diag.plan_diag_jacobian(called(fn), STATE, sample_shape=[3])
  assert plan.num_passes == bare.num_passes < 12
  _, (diag,) = plan(STATE)
  want = jacobian_by_copies(fn, STATE)
  np.testing.assert_allclose(diag, want, rtol=1e-9)


def test_gauss_newton():
  def residual(x):
    hidden = tf.tanh(tf.matmul(DESIGN, tf.reshape(x[..., :9], [-1, 3, 3])))
    return RESPONSE - tf.linalg.matvec(hidden, x[..., 9:])

  _, want = tfp_diag.diag_gauss_newton(residual, STATE, sample_shape=[3])
  _, found = tfp_diag.diag_gauss_newton(
    called(residual), STATE, sample_shape=[3]
  )
  np.testing.assert_allclose(found, want, rtol=1e-10)


def random_step(x):
  return x * (1.0 + 0.1 * tf.random.normal([], dtype=x.dtype) * 0.0)


def loop(x):
  return tf.while_loop(
    lambda k, _: k < 3, lambda k, y: (k + 1, tf.sin(y)), (0, x)
  )[1]


def counted(x):
  COUNTER.assign_add(1.0)
  return x * COUNTER / COUNTER


COUNTER = tf.Variable(1.0, dtype=tf.float64)


@pytest.mark.parametrize('step', [random_step, loop, counted])
def test_what_cannot_be_repeated_is_not_taken_apart(step):
  inner = called(step)

  def fn(x):
    return classes(inner(x))

  def by_hand(x):
    return classes(loop(x) if step is loop else x)

  with warnings.catch_warnings():
    warnings.simplefilter('error')
    plan = tfp_diag.plan_diag_hessian(fn, STATE)
  assert plan.ways[0].name == 'passes'
  assert 'calls a function that cannot be written out' in str(plan)
  np.testing.assert_allclose(plan(STATE)[2], hessian(by_hand, STATE), rtol=1e-9)


def test_what_xla_alone_can_run_stays_a_call():
  """Keras compiles grouped convolutions, which have no kernel on a CPU."""
  layer = tf_keras.layers.Conv1D(4, 2, groups=2, dtype='float64')
  images = tf.reshape(STATE, [-1, 3, 2])
  layer(images)

  def fn(x):
    y = tf.tanh(layer(tf.reshape(x, [-1, 3, 2])))
    return tf.reduce_sum(tf.reshape(y, [tf.shape(x)[0], -1]) ** 2, -1)

  def by_hand(x):
    x = tf.reshape(x, [-1, 3, 2])
    groups = [
      tf.nn.conv1d(one, kernel, 1, 'VALID')
      for one, kernel in zip(tf.split(x, 2, -1), tf.split(layer.kernel, 2, -1))
    ]
    y = tf.tanh(tf.concat(groups, -1) + layer.bias)
    return tf.reduce_sum(tf.reshape(y, [1, -1]) ** 2, -1)

  x = tf.reshape(STATE, [-1, 6])
  expected = hessian_by_copies(by_hand, x)
  diagonal = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = [tfp_diag.diag_hessian(fn, x)[2], diagonal(x)]
    plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 6], x.dtype))
  for diag in found:
    np.testing.assert_allclose(diag, expected, rtol=1e-9)
  assert 'may need the compiler' in str(plan)


def test_a_call_that_xs_do_not_reach_may_do_anything():
  shuffled = called(lambda: tf.random.normal([12], dtype=tf.float64) * 0.0)

  def fn(x):
    return classes(x + shuffled())

  assert tfp_diag.plan_diag_hessian(fn, STATE).num_passes == 1


def test_a_fault_of_ours_costs_passes_and_nothing_else(monkeypatch):
  def fault(*unused_args):
    raise KeyError('no such Tensor')

  monkeypatch.setattr(expansion, '_body', fault)
  fn = called(lambda x: 3.0 * classes(x))
  with pytest.warns(RuntimeWarning, match='fault of tfp_diag'):
    _, _, diag = tfp_diag.diag_hessian(fn, STATE)
  np.testing.assert_allclose(
    diag, 3.0 * hessian(classes, STATE), rtol=1e-9, atol=1e-11
  )
