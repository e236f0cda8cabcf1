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
"""The Jacobian of a gradient is a Hessian, where the graph shows it."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import hessian_diagonal, jacobian_diagonal

tfd = tfp.distributions
N = 6
RNG = np.random.default_rng(4)
DATA = RNG.standard_normal((30, N))
LABELS = RNG.integers(0, 2, 30).astype(float)
WEIGHTS = RNG.standard_normal((N, 8))
CENTERS = RNG.standard_normal((3, N))
FIRST, SECOND = np.triu_indices(N, 1)


def constant(value, like):
  return tf.constant(value, like.dtype)


def regression(x):
  logits = tf.linalg.matvec(constant(DATA, x), x)
  fit = constant(LABELS, x) * logits - tf.nn.softplus(logits)
  return tf.reduce_sum(fit, -1) - 0.5 * tf.reduce_sum(x**2, -1)


def pairs(x):
  d = tf.gather(x, FIRST, axis=-1) - tf.gather(x, SECOND, axis=-1)
  return tf.reduce_sum(tf.exp(-(d**2)), -1)


def network(x):
  return tf.reduce_sum(tf.tanh(x @ constant(WEIGHTS, x)) ** 2, -1)


def mixture(x):
  return tfd.MixtureSameFamily(
    tfd.Categorical(logits=tf.zeros(3, x.dtype)),
    tfd.MultivariateNormalDiag(constant(CENTERS, x), tf.ones(N, x.dtype)),
  ).log_prob(x)


@tf.function(jit_compile=True)
def in_a_function(x):
  return pairs(x) + tf.reduce_logsumexp(x**2, -1)


def by_tape(potential):
  def score(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = potential(x)
    return tape.gradient(value, x)

  return score


def of_the_total(potential):
  return by_tape(lambda x: tf.reduce_sum(potential(x)))


def by_tfp(potential):
  return lambda x: tfp.math.value_and_gradient(potential, x)[1]


def by_graph(potential):
  return lambda x: tf.gradients(potential(x), x)[0]


def in_a_traced_score(potential):
  return tf.function(by_tape(tf.function(potential)))


def of_scaled_coordinates(potential):
  return by_tape(lambda x: potential(x / 3.0))


def times(potential):
  widths = np.linspace(0.5, 2.0, N)
  score = by_tape(potential)
  return lambda x: 1.0 - score(x) / constant(widths, x) ** 2 * 0.5


# Each way with two potentials, each potential with more than one way.
SCORES = [
  (by_tape, regression),
  (by_tape, in_a_function),
  (of_the_total, pairs),
  (of_the_total, in_a_function),
  (by_tfp, network),
  (by_tfp, mixture),
  (by_graph, regression),
  (by_graph, pairs),
  (in_a_traced_score, pairs),
  (in_a_traced_score, mixture),
  (of_scaled_coordinates, pairs),
  (of_scaled_coordinates, regression),
  (times, mixture),
  (times, network),
]


def state(*shape, dtype=tf.float64):
  rng = np.random.default_rng(len(shape) + 1)
  return tf.constant(rng.standard_normal(shape), dtype)


def is_as_hessian(plan):
  return 'as a Hessian' in str(plan)


@pytest.mark.parametrize(('way', 'potential'), SCORES)
def test_one_sweep(way, potential):
  score, x = (
    tf.autograph.experimental.do_not_convert(way(potential)),
    state(3, N),
  )
  plan = tfp_diag.plan_diag_jacobian(score, x, sample_shape=[3])
  assert is_as_hessian(plan) and plan.num_passes == 1
  expected = jacobian_diagonal(tf.function(score), x)
  _, (diag,) = plan(x)
  np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
  ('way', 'potential'),
  [
    (by_tape, regression),
    (by_tape, mixture),
    (of_the_total, pairs),
    (in_a_traced_score, pairs),
  ],
)
def test_a_batch_of_unknown_size(way, potential):
  score, x = way(potential), state(4, N)
  plan = tfp_diag.plan_diag_jacobian(
    score, tf.TensorSpec([None, N], x.dtype), sample_shape=[None]
  )
  assert is_as_hessian(plan) and plan.num_passes == 1
  _, (diag,) = plan(x)
  expected = jacobian_diagonal(score, x)
  np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
  ('dtype', 'jit_compile'), [(tf.float32, True), (tf.float64, False)]
)
def test_in_a_graph(dtype, jit_compile):
  score, x = by_tape(pairs), state(3, N, dtype=dtype)
  _, expected = tfp_diag.diag_jacobian(
    xs=x, fn=score, sample_shape=[3], mode='reverse', schedule='while_loop'
  )

  @tf.function(jit_compile=jit_compile)
  def diagonal(x):
    return tfp_diag.diag_jacobian(xs=x, fn=score, sample_shape=[3])[1]

  rtol = 1e-4 if dtype == tf.float32 else 1e-10
  np.testing.assert_allclose(diagonal(x), expected, rtol=rtol, atol=rtol)


def test_all_samples_as_one_event():
  score, x = by_tape(pairs), state(3, N)
  plan = tfp_diag.plan_diag_jacobian(score, x)
  assert is_as_hessian(plan) and plan.num_passes == 1
  expected = jacobian_diagonal(score, x)
  np.testing.assert_allclose(plan(x)[1][0], expected, rtol=1e-9, atol=1e-11)


def test_parts():
  def energy(x, y):
    d = x[..., :, tf.newaxis] - y[..., tf.newaxis, :]
    both = tf.concat([x, y], -1)
    near = tf.reduce_sum(tf.exp(-(d**2)), [-1, -2])
    return near + tf.reduce_logsumexp(both**2, -1)

  def forces(x, y):
    with tf.GradientTape() as tape:
      tape.watch([x, y])
      value = energy(x, y)
    by_x, by_y = tape.gradient(value, [x, y])
    return -by_x, 2.0 * by_y

  x, y = state(3, N), state(3, N + 2)
  plan = tfp_diag.plan_diag_jacobian(forces, [x, y], sample_shape=[3])
  assert is_as_hessian(plan)
  _, found = plan([x, y])
  expected = [
    -hessian_diagonal(lambda x: energy(x, y), x),
    2.0 * hessian_diagonal(lambda y: energy(x, y), y),
  ]
  for diag, each in zip(found, expected):
    np.testing.assert_allclose(diag, each, rtol=1e-9, atol=1e-11)


def test_the_diagonal_is_differentiated():
  score, x = by_tape(pairs), state(2, N)

  def total(x):
    _, (diag,) = tfp_diag.diag_jacobian(xs=x, fn=score, sample_shape=[2])
    return tf.reduce_sum(diag**2)

  with tf.GradientTape() as tape:
    tape.watch(x)
    value = total(x)
  found = tape.gradient(value, x)
  with tf.GradientTape() as tape:
    tape.watch(x)
    value = tf.reduce_sum(jacobian_diagonal(score, x) ** 2)
  expected = tape.gradient(value, x)
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


def test_a_plan_from_a_file(tmp_path):
  score, x = by_tape(pairs), state(3, N)
  tfp_diag.plan_diag_jacobian(score, x, sample_shape=[3]).save(
    tmp_path / 'plan.npz'
  )
  plan = tfp_diag.load_plan(tmp_path / 'plan.npz', score)
  assert is_as_hessian(plan)
  expected = jacobian_diagonal(score, x)
  np.testing.assert_allclose(plan(x)[1][0], expected, rtol=1e-9, atol=1e-11)


def with_a_constant_part(x):
  """Its value is that of a gradient; its derivatives are not."""
  gradient = by_tape(pairs)(x)
  return tf.where(gradient > 0, tf.stop_gradient(gradient), gradient)


def clipped(x):
  return tf.clip_by_value(by_tape(pairs)(x), -0.5, 0.5)


def multiplied(x):
  return x * by_tape(pairs)(x) + tf.sin(x)


def step_and_neighbors(x):
  return x + 0.1 * by_tape(regression)(x) - tf.roll(x, 1, -1) ** 2


def squashed(x):
  score = by_tape(mixture)(x)
  return score / tf.sqrt(1.0 + score**2)


def with_a_part_held(x):
  """TensorFlow holds it, too, when it differentiates the gradient."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    value = pairs(x) * tf.stop_gradient(regression(x))
  return tape.gradient(value, x)


BEHIND = [
  (with_a_constant_part, 1),
  (clipped, 1),
  (multiplied, 2),
  (step_and_neighbors, 3),
  (squashed, 1),
  (with_a_part_held, 1),
]


@pytest.mark.parametrize('shape', [[4, N], [None, N]])
@pytest.mark.parametrize(('fn', 'num_passes'), BEHIND)
def test_what_is_computed_from_a_gradient(fn, num_passes, shape):
  x = state(4, N)
  plan = tfp_diag.plan_diag_jacobian(
    fn, tf.TensorSpec(shape, x.dtype), sample_shape=shape[:1]
  )
  assert is_as_hessian(plan) and plan.num_passes == num_passes
  expected = jacobian_diagonal(fn, x)
  np.testing.assert_allclose(plan(x)[1][0], expected, rtol=1e-9, atol=1e-11)


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


def normalized(x):
  """Each result depends on all of the gradient."""
  score = by_tape(pairs)(x)
  return score / tf.norm(score, axis=-1, keepdims=True)


def turned(x):
  return tf.reverse(by_tape(pairs)(x), [-1])


SQUARE = RNG.standard_normal((N, N))


def by_hand(value, gradient):
  """What is almost the gradient of a value that it computes, too."""

  def fn(x):
    value(x)
    return gradient(x)

  return fn


def layer(x):
  return tf.reduce_sum(tf.tanh(x @ constant(SQUARE, x)), -1)


def turned_back_wrongly(x):
  hidden = tf.tanh(x @ constant(SQUARE, x))
  slopes = tf.raw_ops.TanhGrad(y=hidden, dy=tf.ones_like(hidden))
  return slopes @ constant(SQUARE, x)


def halves(x):
  one, other = tf.split(x, 2, -1)
  return tf.reduce_sum(tf.sin(one) * tf.exp(other), -1)


def exchanged(x):
  one, other = tf.split(x, 2, -1)
  by_one, by_other = tf.cos(one) * tf.exp(other), tf.sin(one) * tf.exp(other)
  return tf.concat([by_other, by_one], -1)


def one_term_twice(x):
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    one, other = pairs(x), layer(x)
  by_one, by_other = tape.gradient(one, x), tape.gradient(other, x)
  tf.identity(one + other)
  return tf.add_n([by_one, by_other, by_other])


NO_GRADIENTS = {
  'another point': of_another_point,
  'another constant': with_another_constant,
  'normalized': normalized,
  'turned': turned,
  'a matrix that is not transposed': by_hand(layer, turned_back_wrongly),
  'halves exchanged': by_hand(halves, exchanged),
  'a term twice': one_term_twice,
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


def test_one_part_without_a_potential():
  def fn(x, y):
    return by_tape(pairs)(x), y * tf.reduce_sum(y, -1, keepdims=True)

  xs = [state(3, N), state(3, N + 1)]
  plan = tfp_diag.plan_diag_jacobian(fn, xs, sample_shape=[3])
  assert not is_as_hessian(plan)
  _, found = plan(xs)
  expected = [
    jacobian_diagonal(lambda x: fn(x, xs[1])[0], xs[0]),
    jacobian_diagonal(lambda y: fn(xs[0], y)[1], xs[1]),
  ]
  for diag, each in zip(found, expected):
    np.testing.assert_allclose(diag, each, rtol=1e-9, atol=1e-11)


def test_constants_that_change_between_calls():
  """A value with one, a gradient by hand with the other."""
  x = state(3, N)

  def with_constants(one, other):
    def fn(x):
      tf.reduce_sum(tf.exp(one * x * tf.roll(x, 1, -1)), -1)
      back = tf.roll(x, 1, -1)
      outer = tf.exp(other * x * back) * other
      return outer * back + tf.roll(outer * x, -1, -1)

    return fn

  for one, other in [(1.0, 1.0), (1.0, 0.5)]:
    fn = with_constants(
      tf.constant(one, tf.float64), tf.constant(other, tf.float64)
    )
    _, (diag,) = tfp_diag.diag_jacobian(xs=x, fn=fn, sample_shape=[3])
    expected = jacobian_diagonal(fn, x)
    np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-11)


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


def test_an_infinite_derivative_that_is_multiplied_by_zero():
  x = tf.constant([[1.0, 0.0, 2.0, 3.0, 0.5]])

  def fn(x):
    score = by_tape(
      lambda x: tf.reduce_sum(tf.math.log(x), -1) + tf.reduce_logsumexp(x, -1)
    )
    return tf.math.multiply_no_nan(score(x), tf.constant([1.0, 0, 1, 1, 1]))

  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[1])
  np.testing.assert_allclose(plan(x)[1][0], jacobian_diagonal(fn, x), rtol=1e-5)


def in_a_loop(x):
  return tf.while_loop(
    lambda k, _: k < 3,
    lambda k, v: (k + 1, tf.tanh(v) + tf.reduce_sum(v, -1, keepdims=True)),
    [0, x],
  )[1][..., 0]


def test_a_loop_is_left_as_it_is():
  score, x = by_tape(in_a_loop), state(3, N)
  plan = tfp_diag.plan_diag_jacobian(score, x, sample_shape=[3])
  assert not is_as_hessian(plan)
  expected = jacobian_diagonal(tf.function(score), x)
  np.testing.assert_allclose(plan(x)[1][0], expected, rtol=1e-9, atol=1e-11)
