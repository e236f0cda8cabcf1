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
"""What is no gradient is not taken for one."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.diagonal.scores import (
  SQUARE,
  N,
  constant,
  is_as_hessian,
  layer,
  pairs,
  state,
)
from tests.oracles import gradient_of, jacobian_diagonal
from tfp_diag.diagonal.potential import _Tokens
from tfp_diag.sparsity.graph import trace


def of_another_point(x):
  """The gradient is taken where the value on the way is not."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    moved = x + 0.1 * tf.sin(x)
    value = pairs(moved)
  return tape.gradient(value, moved)


def with_another_constant(x):
  value = tf.reduce_sum(tf.exp(-0.5 * (x**2)), -1)
  y = -tf.exp(-0.25 * (x**2)) * x + 0.0 * value[..., tf.newaxis]
  return y + tf.reduce_sum(x, -1, keepdims=True) ** 2


def as_probabilities(x):
  """Each result depends on all of the gradient."""
  return tf.nn.softmax(gradient_of(pairs)(x))


def turned(x):
  return tf.reverse(gradient_of(pairs)(x), [-1])


def by_hand(value, gradient):
  """What is almost the gradient of a value that it computes, too."""

  def fn(x):
    value(x)
    return gradient(x)

  return fn


def turned_back_wrongly(x):
  hidden = tf.tanh(x @ constant(SQUARE, x))
  slopes = tf.raw_ops.TanhGrad(y=hidden, dy=tf.ones_like(hidden))
  return slopes @ constant(SQUARE, x)


NO_GRADIENTS = {
  'another point': of_another_point,
  'another constant': with_another_constant,
  'probabilities': as_probabilities,
  'turned': turned,
  'a matrix that is not transposed': by_hand(layer, turned_back_wrongly),
}


@pytest.mark.parametrize('fn', NO_GRADIENTS.values(), ids=NO_GRADIENTS)
def test_what_is_no_gradient(fn):
  """In a graph, where nothing is compared with passes."""
  x = state(3, N)
  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[3])
  assert not is_as_hessian(plan)
  diagonal = tf.function(
    lambda x: tfp_diag.diag_jacobian(xs=x, fn=fn, sample_shape=[3])[1][0]
  )
  expected = jacobian_diagonal(fn, x)
  np.testing.assert_allclose(diagonal(x), expected, rtol=1e-9, atol=1e-11)


def test_a_total_that_is_not_linear_in_its_terms():
  """In a graph, with one sample, which cannot mix with others."""
  score = gradient_of(lambda x: tf.square(tf.reduce_sum(pairs(x))))
  x = state(1, N)
  diagonal = tf.function(
    lambda x: tfp_diag.diag_jacobian(xs=x, fn=score, sample_shape=[1])[1][0]
  )
  expected = jacobian_diagonal(score, x)
  np.testing.assert_allclose(diagonal(x), expected, rtol=1e-9, atol=1e-11)


def test_values_of_unknown_rank():
  """One of a squeezed axis may be one of the samples."""
  score = gradient_of(lambda x: tf.reduce_sum(tf.squeeze(layer(x))))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    plan = tfp_diag.plan_diag_jacobian(
      score, tf.TensorSpec([None, N], tf.float64), sample_shape=[None]
    )
  x = state(4, N)
  expected = jacobian_diagonal(score, x)
  np.testing.assert_allclose(plan(x)[1][0], expected, rtol=1e-9, atol=1e-11)


def test_a_mean_over_an_unknown_number_of_samples():
  """In a graph: a factor that is missing is not seen there."""
  score, x = gradient_of(lambda x: tf.reduce_mean(pairs(x))), state(4, N)
  diagonal = tf.function(
    lambda x: tfp_diag.diag_jacobian(xs=x, fn=score, sample_shape=[4])[1][0],
    input_signature=[tf.TensorSpec([None, N], x.dtype)],
  )
  expected = jacobian_diagonal(score, x)
  np.testing.assert_allclose(diagonal(x), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('between', [tf.bool, tf.float64])
def test_casts_on_the_way(between):
  """In a graph; a cast through bool has no derivative."""

  def fn(x, y):
    with tf.GradientTape() as tape:
      tape.watch([x, y])
      value = tf.reduce_logsumexp(x**2, -1) + pairs(y)
    by_x, by_y = tape.gradient(value, [x, y])
    return tf.cast(
      2 * tf.cast(tf.cast(by_x, between), by_x.dtype), x.dtype
    ), by_y

  xs = [state(3, N, dtype=tf.float32), state(3, N + 1, dtype=tf.float32)]

  @tf.function
  def diagonal(x, y):
    return tfp_diag.diag_jacobian(xs=[x, y], fn=fn, sample_shape=[3])[1]

  expected = 0.0
  if between != tf.bool:
    expected = jacobian_diagonal(lambda x: fn(x, xs[1])[0], xs[0])
  np.testing.assert_allclose(diagonal(*xs)[0], expected, rtol=1e-4, atol=1e-5)


def test_custom_gradients_of_values_do_not_run():
  calls = tf.Variable(0)

  @tf.custom_gradient
  def watched(value):
    def gradient(dy):
      calls.assign_add(1)
      return dy

    return tf.identity(value), gradient

  def fn(x):
    watched(tf.reduce_sum(x**2, -1))
    return x * tf.reduce_sum(tf.sin(x), -1, keepdims=True)

  tfp_diag.diag_jacobian(xs=state(3, N), fn=fn, sample_shape=[3])
  assert calls == 0


def in_a_loop(x):
  return tf.while_loop(
    lambda k, _: k < 3,
    lambda k, v: (k + 1, tf.tanh(v) + tf.reduce_sum(v, -1, keepdims=True)),
    [0, x],
  )[1][..., 0]


def test_a_loop_is_left_as_it_is():
  score, x = gradient_of(in_a_loop), state(3, N)
  plan = tfp_diag.plan_diag_jacobian(score, x, sample_shape=[3])
  assert not is_as_hessian(plan)
  expected = jacobian_diagonal(tf.function(score), x)
  np.testing.assert_allclose(plan(x)[1][0], expected, rtol=1e-9, atol=1e-11)


EQUAL_NOW = [tf.constant(2.0, tf.float64) for _ in range(2)]
COLUMN = np.arange(1.0, N + 1.0)[:, np.newaxis]
PAIRS_OF_TENSORS = {
  'two results of an op': lambda x: tf.split(x, 2, -1),
  'constants that may change': lambda x: [x * c for c in EQUAL_NOW],
  'another attribute': lambda x: [
    tf.linalg.matmul(x, SQUARE, transpose_b=turned) for turned in (True, False)
  ],
  'another shape of a constant': lambda x: [
    x[..., :1] * COLUMN[:, 0],
    x[..., :1] * COLUMN,
  ],
  'another number of terms': lambda x: [
    tf.add_n([x, tf.sin(x)]),
    tf.add_n([x, tf.sin(x), tf.sin(x)]),
  ],
  'a sum of what is not linear': lambda x: [
    tf.sin(tf.add_n([x, tf.cos(x)])),
    tf.add_n([tf.sin(x), tf.sin(tf.cos(x))]),
  ],
  'no derivative': lambda x: [x, tf.stop_gradient(x)],
  'random numbers': lambda x: [
    x * tf.random.normal(x.shape, seed=1, dtype=x.dtype) for _ in range(2)
  ],
}


def tokens_of(fn):
  spec = tf.TensorSpec([N, N], tf.float64)
  graph = trace(lambda xs: fn(xs[0]), lambda ys, _: ys, [spec])
  return [_Tokens(graph).of(y) for y in graph.ys]


@pytest.mark.parametrize('fn', PAIRS_OF_TENSORS.values(), ids=PAIRS_OF_TENSORS)
def test_other_tensors(fn):
  one, other = tokens_of(fn)
  assert one != other


def test_equal_tensors():
  terms = [lambda x: x, tf.sin, tf.cos]

  def fn(x):
    one, two, three = (term(x) for term in terms)
    yield tf.add_n([one, two, three])
    yield tf.identity(tf.add_n([tf.add_n([tf.cos(x), tf.sin(x)]), x]))
    yield tf.reshape(tf.add_n([three, one, two]), [3 * 2, -1])

  assert len(set(tokens_of(lambda x: list(fn(x))))) == 1
