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
"""Passes through loops: vectorized where XLA cannot be what compiles them."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import jacobian_by_copies, jacobian_diagonal

B, N = 3, 21


def draw(seed):
  rng = np.random.default_rng(seed)
  return tf.constant(rng.normal(size=[B, N]))


def two_states(x):
  """Outputs that are gathered from lists."""

  def step(state, u):
    a, b = state
    return tf.tanh(0.5 * a + u) + 0.1 * b, 0.3 * b + tf.sin(u) * a

  zeros = tf.zeros([tf.shape(x)[0]], x.dtype)
  a, b = tf.scan(step, tf.transpose(x), initializer=(zeros, zeros + 1.0))
  return tf.transpose(a * b)


def euler(x):
  """Steps of a system with neighbors."""

  def step(i, x):
    slope = (tf.roll(x, -1, -1) - tf.roll(x, 2, -1)) * tf.roll(x, 1, -1)
    return i + 1, x + 0.01 * (slope - x + 8.0)

  return tf.while_loop(lambda i, x: i < 10, step, [0, x])[1]


def own_places(x):
  """An array that is written and read at computed places, and gathered."""

  def step(i, s, array):
    s = tf.tanh(0.5 * s + x[:, (3 * i + 1) % N])
    return i + 1, s, array.write((5 * i) % N, s * x[:, i])

  array = tf.TensorArray(x.dtype, N, element_shape=[None])
  start = tf.zeros_like(x[:, 0])
  _, _, array = tf.while_loop(
    lambda i, s, array: i < N, step, [0, start, array]
  )
  return tf.transpose(array.gather(tf.range(N)[::-1]))


def nested(x):
  """A loop within a loop, whose length the outer one decides."""

  def outer(i, y):
    def inner(j, z):
      return j + 1, tf.sin(z) + 0.1 * tf.cumsum(z, axis=1)

    _, y = tf.while_loop(lambda j, z: j < i, inner, [0, y])
    return i + 1, y * x

  return tf.while_loop(lambda i, y: i < 4, outer, [0, x])[1]


def until_it_is_small(x):
  """How many steps there are depends on the values."""

  def step(y):
    return 0.5 * y + 0.05 * tf.sin(tf.reverse(y, [1]))

  def is_large(y):
    return tf.reduce_max(tf.abs(y)) > 0.2

  return tf.while_loop(is_large, lambda y: (step(y),), [x])[0]


def folded(x):
  total = tf.foldl(lambda s, u: s * tf.cos(u) + u, tf.transpose(x))
  return tf.exp(0.1 * x) * total[:, tf.newaxis] + tf.map_fn(tf.cumsum, x)


def recurrent(x):
  """A layer of Keras that steps in a loop."""
  weights = np.random.default_rng(1)
  w = tf.constant(weights.normal(size=[1, 12]) / 2)
  u = tf.constant(weights.normal(size=[4, 12]) / 2)

  def step(h, now):
    z, r, c = tf.split(now[:, tf.newaxis] @ w + h @ u, 3, axis=1)
    z, c = tf.sigmoid(z), tf.tanh(c * tf.sigmoid(r))
    return z * h + (1.0 - z) * c

  start = tf.zeros([tf.shape(x)[0], 4], x.dtype)
  states = tf.scan(step, tf.transpose(x), initializer=start)
  return tf.transpose(tf.reduce_sum(states, -1)) * x


FUNCTIONS = (
  two_states,
  euler,
  own_places,
  nested,
  until_it_is_small,
  folded,
  recurrent,
)


def diagonal(fn, x, **options):
  [diag] = tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[B], **options)[1]
  return diag


@pytest.mark.parametrize('fn', FUNCTIONS, ids=lambda f: f.__name__)
def test_loops_are_vectorized_where_xla_is_out_of_the_way(fn):
  x = draw(0)
  want = jacobian_by_copies(fn, x)
  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[B])
  assert plan.schedule != 'while_loop'
  calls = [lambda x: plan(x)[1][0]]
  # To vectorize them takes seconds: a list, a number of steps, an array in a
  # graph, a loop in a loop and one that ends by its values eagerly.
  if fn in (two_states, euler, own_places):
    calls.append(tf.function(lambda x: diagonal(fn, x, schedule='pfor')))
  elif fn in (nested, until_it_is_small):
    calls.append(lambda x: diagonal(fn, x))
  with warnings.catch_warnings():
    warnings.filterwarnings('error', 'pfor cannot vectorize')
    for call in calls:
      np.testing.assert_allclose(call(x), want, rtol=1e-10, atol=1e-12)


def test_loops_stay_loops_where_xla_compiles():
  """Also where it compiles later what was traced before."""
  x = draw(1)
  want = jacobian_by_copies(two_states, x)
  plan = tfp_diag.plan_diag_jacobian(two_states, x, sample_shape=[B])
  plan(x)
  in_graph = tf.function(lambda x: diagonal(two_states, x))
  with pytest.warns(
    RuntimeWarning, match=r'where XLA may compile.*a tape.*pfor'
  ):
    in_graph(x)
  asked = tf.function(
    lambda x: diagonal(two_states, x, schedule='pfor'), jit_compile=True
  )
  with pytest.warns(RuntimeWarning, match='pfor cannot vectorize the op'):
    np.testing.assert_allclose(asked(x), want, rtol=1e-10, atol=1e-12)
  for call in (in_graph, lambda x: plan(x)[1][0]):
    found = tf.function(call, jit_compile=True)(x)
    np.testing.assert_allclose(found, want, rtol=1e-10, atol=1e-12)


def test_a_compiled_plan_says_that_its_loop_stays_one():
  x = draw(2)
  plan = tfp_diag.plan_diag_jacobian(
    two_states, x, sample_shape=[B], jit_compile=True
  )
  assert plan.schedule == 'while_loop'
  assert any('cannot vectorize the op' in note for note in plan.notes)
  np.testing.assert_allclose(
    plan(x)[1][0], jacobian_by_copies(two_states, x), rtol=1e-10, atol=1e-12
  )


def test_a_loop_of_a_hessian_is_one_whatever_is_asked_for():
  def log_prob(x):
    return tf.reduce_sum(two_states(x) ** 2, -1)

  plan = tfp_diag.plan_diag_hessian(log_prob, draw(3), schedule='pfor')
  assert plan.schedule == 'while_loop'
  assert 'one after the other in a loop' in str(plan)


@pytest.mark.parametrize('fn', [own_places, nested], ids=lambda f: f.__name__)
def test_whole_jacobians_of_loops_are_vectorized(fn):
  x = draw(4)
  with warnings.catch_warnings():
    warnings.filterwarnings('error', 'pfor cannot vectorize')
    whole = tfp_diag.jacobian(fn, x, sample_shape=[B])
  np.testing.assert_allclose(
    tf.linalg.diag_part(whole),
    jacobian_by_copies(fn, x),
    rtol=1e-10,
    atol=1e-12,
  )


def branching(x):
  """A branch that the passes have in common."""

  def step(i, y):
    large = tf.reduce_sum(y) > 0
    y = tf.cond(large, lambda: tf.cumsum(tf.sin(y)), lambda: y * x + 0.1)
    return i + 1, y

  return tf.while_loop(lambda i, y: i < 6, step, [0, x])[1]


def dilated(x):
  """pfor does not know the gradient of a dilation."""

  def step(i, y):
    image = tf.reshape(y, [1, -1, 1, 1])
    filters = tf.zeros([2, 1, 1], x.dtype)
    ones = [1, 1, 1, 1]
    image = tf.nn.dilation2d(image, filters, ones, 'SAME', 'NHWC', ones)
    return i + 1, tf.reshape(image, [-1]) * x

  return tf.while_loop(lambda i, y: i < 3, step, [0, x])[1]


@pytest.mark.parametrize(
  ('fn', 'schedule'), [(branching, 'pfor'), (dilated, 'while_loop')]
)
def test_a_plan_knows_which_loops_pfor_cannot_vectorize(fn, schedule):
  x = draw(5)[0]
  plan = tfp_diag.plan_diag_jacobian(fn, x)
  assert plan.schedule == schedule
  is_noted = any('pfor cannot vectorize the op' in note for note in plan.notes)
  assert is_noted == (schedule == 'while_loop')
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = plan(x)[1][0]
  np.testing.assert_allclose(
    found, jacobian_diagonal(fn, x), rtol=1e-10, atol=1e-12
  )


def test_a_diagonal_of_a_loop_can_be_differentiated():
  """TensorFlow does not differentiate what pfor makes of a loop."""
  x = draw(6)
  plan = tfp_diag.plan_diag_jacobian(two_states, x, sample_shape=[B])
  calls = [
    lambda x: diagonal(two_states, x),
    lambda x: plan(x)[1][0],
    tf.function(lambda x: diagonal(two_states, x)),
  ]
  results = []
  for call in calls:
    for _ in range(2):
      call(x)  # Without a tape first: that graph is remembered.
      with tf.GradientTape() as tape:
        tape.watch(x)
        diag = call(x)
      results.append(tape.gradient(diag, x))
  step = 1e-5
  direction = draw(7)
  ends = [
    tf.reduce_sum(jacobian_by_copies(two_states, x + s * step * direction))
    for s in (1, -1)
  ]
  want = (ends[0] - ends[1]) / (2 * step)
  for found in results:
    slope = tf.reduce_sum(found * direction)
    np.testing.assert_allclose(slope, want, rtol=1e-6)
