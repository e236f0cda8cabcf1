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
"""What a function does with the number of its samples, but for shapes."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import hessian_diagonal, jacobian_diagonal
from tfp_diag.sparsity import tracing
from tfp_diag.sparsity.batch_size import depends_on_batch

tfd = tfp.distributions
N = 20
RNG = np.random.default_rng(5)
DENSE = RNG.standard_normal((8, N, N))
# The first two samples have another structure than those that follow.
MATRICES = np.concatenate([np.stack([np.eye(N)] * 2), DENSE[2:]])
LENGTHS = np.array([1, 1, 5, 3, 7, 9, 2, 20])


def state(*shape):
  return tf.constant(RNG.uniform(0.5, 1.5, (*shape, N)), tf.float64)


def num_samples(x):
  return tf.shape(x)[0]


def size_of_batch(x):
  return x / tf.cast(num_samples(x), tf.float64)


def size_in_python(x):
  return x * x.shape[0]


def branch_in_python(x):
  return x if x.shape[0] < 3 else tf.sin(x)


def matrices(x):
  return tf.linalg.matvec(MATRICES[: x.shape[0]], x)


def sliced_matrices(x):
  return tf.linalg.matvec(tf.constant(MATRICES)[: num_samples(x)], x)


def shifted_by_sample(x):
  index = tf.range(N) + tf.range(num_samples(x))[:, tf.newaxis]
  return x * tf.gather(x, index % N, batch_dims=1)


def masked_by_sample(x):
  mask = tf.sequence_mask(LENGTHS[: x.shape[0]], N, tf.float64)
  return x + mask * tf.reduce_sum(mask * x, -1, keepdims=True) ** 2


def in_a_branch(x):
  return tf.cond(
    tf.reduce_sum(x) > 0.0, lambda: shifted_by_sample(x), lambda: x
  )


def in_a_loop(x):
  def body(i, y):
    return i + 1, y * (1.0 + tf.cast(num_samples(x), tf.float64))

  return tf.while_loop(lambda i, y: i < 2, body, (0, x))[1]


def as_many_steps(x):
  return tf.while_loop(
    lambda i, y: i < num_samples(x), lambda i, y: (i + 1, 2.0 * y), (0, x)
  )[1]


def in_a_function(x):
  return tf.function(size_of_batch)(x)


DEPEND = [
  as_many_steps,
  branch_in_python,
  in_a_branch,
  in_a_function,
  in_a_loop,
  masked_by_sample,
  matrices,
  shifted_by_sample,
  size_in_python,
  size_of_batch,
  sliced_matrices,
]


def reshaped(x):
  ones = tf.ones([num_samples(x), 1, 1], tf.float64)
  y = tf.reshape(x, [x.shape[0], 4, 5]) + ones
  y += tf.zeros(x.shape[:1] + [4, 5], tf.float64)
  return tf.reshape(tf.tile(y[:, :1], [1, 4, 1]) * y, tf.shape(x))


def joint(x):
  model = tfd.JointDistributionCoroutineAutoBatched(_model)
  return model.log_prob(x[:, 0], x[:, 1:])


def _model():
  scale = yield tfd.LogNormal(tf.constant(0.0, tf.float64), 1.0)
  yield tfd.Sample(tfd.Normal(tf.constant(0.0, tf.float64), scale), N - 1)


def gaussian(x):
  factor = tf.constant(np.eye(N) + 0.1 * np.tril(DENSE[0]))
  loc = tf.zeros([N], tf.float64)
  return tfd.MultivariateNormalTriL(loc, factor).log_prob(x)


def scanned(x):
  steps = tf.scan(lambda a, b: 0.5 * a + b, tf.transpose(x))
  return tf.transpose(steps)


DO_NOT = [
  lambda x: tf.nn.softmax(x, -1),
  lambda x: tf.map_fn(tf.sin, tf.transpose(x)),
  lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: x, lambda: 2.0 * x),
  lambda x: tf.function(tf.sin)(x),
  gaussian,
  joint,
  reshaped,
  scanned,
]


def traced(fn, batch):
  x = tf.TensorSpec([None, N], tf.float64)
  graph, _ = tracing.trace(fn, x, [(batch, N)])
  return graph


@pytest.mark.parametrize('fn', DEPEND)
def test_it_does(fn):
  assert depends_on_batch(traced(fn, 2), traced(fn, 8))


@pytest.mark.parametrize('fn', DO_NOT)
def test_it_does_not(fn):
  assert not depends_on_batch(traced(fn, 2), traced(fn, 8))


@pytest.mark.parametrize('kind', [tf.constant, tf.Variable])
def test_what_it_closes_over_is_the_same(kind):
  matrix = kind(DENSE[0])

  def fn(x):
    return tf.matmul(x, matrix)

  assert not depends_on_batch(traced(fn, 2), traced(fn, 8))


@pytest.mark.parametrize('fn', [f for f in DEPEND if f is not as_many_steps])
def test_diagonals_look_at_all_samples(fn):
  x = state(8)
  _, diag = tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[8])
  np.testing.assert_allclose(
    diag[0], jacobian_diagonal(fn, x), rtol=1e-9, atol=1e-12
  )

  def value(x):
    return tf.reduce_sum(fn(x) ** 4, -1)

  _, _, diag = tfp_diag.diag_hessian(value, x)
  np.testing.assert_allclose(
    diag, hessian_diagonal(value, x), rtol=1e-9, atol=1e-9
  )


@pytest.mark.parametrize('fn', [matrices, shifted_by_sample])
def test_a_plan_needs_to_know_how_many_there_are(fn):
  x = tf.TensorSpec([None, N], tf.float64)
  with pytest.raises(ValueError, match='the same with every number of samples'):
    tfp_diag.plan_diag_jacobian(fn, x, [None])
  x = state(8)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [8])
  np.testing.assert_allclose(
    plan(x)[1][0], jacobian_diagonal(fn, x), rtol=1e-9, atol=1e-12
  )


@pytest.mark.parametrize(
  'factor',
  [
    lambda x: 1.0 / x.shape[0],
    lambda x: 1.0 / tf.cast(tf.size(x), tf.float64),
    lambda x: tf.reduce_max(tf.constant(LENGTHS + 0.0)[: num_samples(x)]),
    lambda x: tf.stop_gradient(tf.reduce_max(x)),
    lambda x: tf.cast(tf.argmax(x[:, 0]), tf.float64),
    lambda x: tf.cast(tf.reduce_sum(x) > 3.0 * N, tf.float64) + 1.0,
  ],
)
def test_a_quadratic_form_of_the_batch_is_computed_on_all_of_it(factor):
  def fn(x):
    return factor(x) * tf.reduce_sum((x[:, 1:] - x[:, :-1]) ** 2, -1)

  x = state(40)
  _, _, diag = tfp_diag.diag_hessian(fn, x)
  expected = np.full([40, N], 4.0)
  expected[:, [0, -1]] = 2.0
  np.testing.assert_allclose(diag, factor(x) * expected, rtol=1e-9)
