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

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.diagonal.scores import (
  CENTERS,
  DATA,
  LABELS,
  SQUARE,
  WEIGHTS,
  N,
  constant,
  is_as_hessian,
  mixture,
  network,
  pairs,
  regression,
  state,
)
from tests.oracles import (
  gradient_of,
  hessian_diagonal,
  in_one_graph,
  jacobian_by_copies,
  jacobian_diagonal,
)


@tf.function(jit_compile=True)
def in_a_function(x):
  return pairs(x) + tf.reduce_logsumexp(x**2, -1)


def of_the_total(potential):
  return gradient_of(lambda x: tf.reduce_sum(potential(x)))


def of_a_loss(potential):
  """What is minimized: a mean over samples, and totals."""

  def loss(x):
    values = potential(x)
    penalty = tf.reduce_sum(tf.math.log1p(x**2))
    penalty += tf.reduce_sum(tf.sin(values))
    return 0.1 * penalty - 2.0 * tf.reduce_mean(values)

  return gradient_of(loss)


def by_tfp(potential):
  return lambda x: tfp.math.value_and_gradient(potential, x)[1]


def by_vectorized_map(potential):
  return gradient_of(lambda x: tf.vectorized_map(of_one(potential), x))


def of_one(potential):
  return lambda x: potential(x[tf.newaxis])[0]


def by_graph(potential):
  return lambda x: tf.gradients(potential(x), x)[0]


def in_a_traced_score(potential):
  return tf.function(gradient_of(tf.function(potential)))


def of_scaled_coordinates(potential):
  return gradient_of(lambda x: potential(x / 3.0))


def times(potential):
  widths = np.linspace(0.5, 2.0, N)
  score = gradient_of(potential)
  return lambda x: 1.0 - score(x) / constant(widths, x) ** 2 * 0.5


# A potential with more than one way; a way with two of them where more than
# its last op is its own.
SCORES = [
  (gradient_of, in_a_function),
  (of_the_total, pairs),
  (of_a_loss, regression),
  (by_tfp, network),
  (by_tfp, mixture),
  (by_graph, regression),
  (in_a_traced_score, pairs),
  (in_a_traced_score, network),
  (of_scaled_coordinates, regression),
  (times, network),
]


@pytest.mark.parametrize(('way', 'potential'), SCORES)
def test_one_sweep(way, potential):
  score, x = (
    tf.autograph.experimental.do_not_convert(way(potential)),
    state(3, N),
  )
  plan = tfp_diag.plan_diag_jacobian(score, x, sample_shape=[3])
  assert is_as_hessian(plan) and plan.num_passes == 1
  oracle = in_one_graph(jacobian_by_copies, score)
  if way is of_a_loss:  # A mean over samples, which copies would change.
    oracle = in_one_graph(jacobian_diagonal, score)
  expected = oracle(x)
  _, (diag,) = plan(x)
  np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
  ('way', 'potential'),
  [
    (gradient_of, regression),
    (of_the_total, pairs),
    (in_a_traced_score, network),
    (by_vectorized_map, network),
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


@pytest.mark.parametrize('power', [1, 2])
@pytest.mark.parametrize('is_inside', [False, True])
def test_how_often_a_gradient_is_added_counts(power, is_inside):
  """The total has the same terms, before and behind a product."""

  def fn(x):
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(x)
      hidden = x @ constant(WEIGHTS, x)
      first = tf.reduce_sum(tf.tanh(hidden) ** 2, -1)
      second = tf.reduce_sum(tf.exp(0.3 * hidden), -1)
      _ = first + second  # One more value, of which nothing is computed.
    at = hidden if is_inside else x
    a, b = tape.gradient(first, at), tape.gradient(second, at)
    total = tf.add_n([a] * power + [b])
    return tape.gradient(hidden, x, total) if is_inside else total

  @tf.function
  def in_a_graph(x):
    return tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[4])[1][0]

  x = state(4, N)
  expected = jacobian_diagonal(fn, x)
  np.testing.assert_allclose(in_a_graph(x), expected, rtol=1e-9, atol=1e-11)


def centered_regression(x):
  return regression(x - tf.reduce_mean(x, -1, keepdims=True))


def by_triangular_solves(x):
  scale = tf.linalg.band_part(constant(SQUARE, x), -1, 0)
  scale = tf.linalg.set_diag(scale, tf.fill([N], constant(3.0, x)))
  means = constant(CENTERS, x)
  components = tfp.distributions.MultivariateNormalTriL(means, scale)
  return tf.reduce_logsumexp(components.log_prob(x[:, tf.newaxis]), -1)


def with_an_intercept(x):
  ones = tf.ones([tf.shape(x)[0], 1], x.dtype)
  weights = constant(np.tile(WEIGHTS, [2, 1])[: N + 1], x)
  return tf.reduce_sum(tf.nn.softplus(tf.concat([x, ones], -1) @ weights), -1)


def logits_twice(x):
  def logits():
    return tf.linalg.matvec(constant(DATA, x), x)

  fit = tf.reduce_sum(constant(LABELS, x) * logits(), -1)
  return fit - tf.reduce_sum(tf.nn.softplus(logits()), -1)


@pytest.mark.parametrize('shape', [[4, N], [None, N]])
def test_a_gradient_of_what_is_computed_twice(shape):
  """Merged, there is one gradient of it where the function adds two."""
  fn, x = gradient_of(logits_twice), state(4, N)
  spec = tf.TensorSpec(shape, x.dtype)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=shape[:1])
  assert is_as_hessian(plan) and plan.num_passes <= 2
  _, (diag,) = plan(x)
  expected = jacobian_diagonal(fn, x)
  np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
  'potential', [centered_regression, by_triangular_solves, with_an_intercept]
)
def test_a_body_for_any_number_of_samples_is_called_for_a_given_one(potential):
  """Its gradient broadcasts to what the shapes say when it runs."""
  fn = gradient_of(tf.function(potential, autograph=False))
  x = state(4, N)
  expected = jacobian_diagonal(fn, x)
  of_any = tf.TensorSpec([None, N], x.dtype)
  for spec in (of_any, tf.TensorSpec(x.shape, x.dtype)):
    plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=spec.shape[:1])
    assert is_as_hessian(plan), spec
    _, (diag,) = plan(x)  # Warnings are errors.
    np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
  ('dtype', 'jit_compile'), [(tf.float32, True), (tf.float64, False)]
)
def test_in_a_graph(dtype, jit_compile):
  score, x = gradient_of(pairs), state(3, N, dtype=dtype)
  _, expected = tfp_diag.diag_jacobian(
    xs=x, fn=score, sample_shape=[3], mode='reverse', schedule='while_loop'
  )

  @tf.function(jit_compile=jit_compile)
  def diagonal(x):
    return tfp_diag.diag_jacobian(xs=x, fn=score, sample_shape=[3])[1]

  rtol = 1e-4 if dtype == tf.float32 else 1e-10
  np.testing.assert_allclose(diagonal(x), expected, rtol=rtol, atol=rtol)


def test_all_samples_as_one_event():
  score, x = gradient_of(pairs), state(3, N)
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


def scores(potential, *xs):
  with tf.GradientTape() as tape:
    tape.watch(xs)
    value = potential(*xs)
  return tape.gradient(value, xs)


def step_and_friction(q, p):
  return q + 0.1 * scores(network, q)[0], -0.5 * p


def one_for_each(q, p):
  return *scores(network, q), 2.0 * scores(regression, p)[0]


def one_with_the_other_held(q, p):
  """The other result has no potential, but depends on one number."""
  (by_q,) = scores(lambda q: network(q * p) + pairs(p), q)
  return by_q, p * tf.reduce_sum(p, -1, keepdims=True)


def one_tensor_by_two_parts(q, p):
  by_q, by_p = scores(lambda q, p: network(q + p), q, p)
  return by_q, 3.0 * by_p


def one_with_the_other_stopped(q, p):
  """By the other part the potential has no gradient."""
  by_q, by_p = scores(lambda q, p: network(q + tf.stop_gradient(p)), q, p)
  return by_q, -(p**2) if by_p is None else by_p


@pytest.mark.parametrize(
  ('fn', 'num_passes', 'shape'),
  [
    (step_and_friction, 2, [3, N]),
    (one_for_each, 2, [None, N]),
    (one_with_the_other_held, 4, [3, N]),
    (one_tensor_by_two_parts, 1, [3, N]),
    (one_with_the_other_stopped, 2, [None, N]),
  ],
)
def test_some_of_the_parts(fn, num_passes, shape):
  specs = [tf.TensorSpec(shape, tf.float64)] * 2
  plan = tfp_diag.plan_diag_jacobian(fn, specs, sample_shape=shape[:1])
  assert is_as_hessian(plan) and plan.num_passes == num_passes
  q, p = state(3, N), state(3, N)[:, ::-1]
  _, (by_q, by_p) = plan([q, p])
  expected = jacobian_diagonal(lambda q: fn(q, p)[0], q)
  np.testing.assert_allclose(by_q, expected, rtol=1e-9, atol=1e-11)
  expected = jacobian_diagonal(lambda p: fn(q, p)[1], p)
  np.testing.assert_allclose(by_p, expected, rtol=1e-9, atol=1e-11)


def test_coordinates_that_are_left_over_are_those_of_the_own_parts():
  """In a graph. The first part has no potential, and more coordinates."""
  rng, n = np.random.default_rng(0), 30
  wide, square = rng.standard_normal((n, 50)) / 8, rng.standard_normal((n, n))

  def potential(a, b):
    for _ in range(3):
      b = tf.tanh(b @ square / 5)
    return tf.reduce_sum(tf.tanh(a @ wide) ** 2, -1) + tf.reduce_sum(b**3, -1)

  def fn(q, a, b):
    return -(q**2), *scores(potential, a, b)

  q, a, b = (tf.constant(rng.standard_normal((3, k * n))) for k in (2, 1, 1))
  diagonal = tf.function(
    lambda *xs: tfp_diag.diag_jacobian(xs=list(xs), fn=fn, sample_shape=[3])[1]
  )
  expected = jacobian_diagonal(lambda b: fn(q, a, b)[2], b)
  np.testing.assert_allclose(diagonal(q, a, b)[2], expected, atol=1e-10)


def test_the_diagonal_is_differentiated():
  score, x = gradient_of(pairs), state(2, N)

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
  score, x = gradient_of(pairs), state(3, N)
  tfp_diag.plan_diag_jacobian(score, x, sample_shape=[3]).save(
    tmp_path / 'plan.npz'
  )
  plan = tfp_diag.load_plan(tmp_path / 'plan.npz', score)
  assert is_as_hessian(plan)
  expected = jacobian_diagonal(score, x)
  np.testing.assert_allclose(plan(x)[1][0], expected, rtol=1e-9, atol=1e-11)


def with_a_constant_part(x):
  """Its value is that of a gradient; its derivatives are not."""
  gradient = gradient_of(network)(x)
  return tf.where(gradient > 0, tf.stop_gradient(gradient), gradient)


def clipped(x):
  return tf.clip_by_value(gradient_of(pairs)(x), -0.5, 0.5)


def multiplied(x):
  return x * gradient_of(network)(x) + tf.sin(x)


def step_and_neighbors(x):
  return x + 0.1 * gradient_of(regression)(x) - tf.roll(x, 1, -1) ** 2


def squashed(x):
  score = gradient_of(network)(x)
  return score / tf.sqrt(1.0 + score**2)


def with_a_part_held(x):
  """TensorFlow holds it, too, when it differentiates the gradient."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    value = network(x) * tf.stop_gradient(regression(x))
  return tape.gradient(value, x)


def guided(x):
  """A step of a diffusion that a classifier guides."""
  scale = 1.0 + x**2
  return x + 0.1 * gradient_of(regression)(x) - scale * gradient_of(network)(x)


def of_three_potentials(x):
  """One of them does not count in the end."""
  scores = [gradient_of(fn)(x) for fn in (pairs, regression, network)]
  return scores[0] - scores[2] ** 3 + tf.zeros_like(scores[1])


def one_term_twice(x):
  """The gradient of a sum, and of a term of it."""
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    one = regression(x)
    total = one + network(x)
  return tape.gradient(total, x) + tape.gradient(one, x)


def guarded(x):
  """What else is computed from the value has no derivative."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    value = network(x)
  score = tape.gradient(value, x)
  tf.debugging.check_numerics(value, 'the log density')
  weight = tf.stop_gradient(tf.nn.sigmoid(value))[:, tf.newaxis]
  is_finite = tf.math.is_finite(tf.exp(value))[:, tf.newaxis]
  return tf.where(is_finite, weight * score, tf.zeros_like(score))


def truncated(x):
  """The drift of the truncated Langevin algorithm."""
  return x + 0.1 * tf.clip_by_norm(gradient_of(regression)(x), 0.5, axes=-1)


def centered(x):
  score = gradient_of(mixture)(x)
  return score - tf.reduce_mean(score, -1, keepdims=True)


def normalized_by_another(x):
  """The norm of one score is no number of the other one's potential."""
  norm = tf.norm(gradient_of(network)(x), axis=-1, keepdims=True)
  return gradient_of(regression)(x) / norm


# Half of them for a batch of any size. The traced functions below are more of
# these.
BEHIND = [
  (with_a_constant_part, 1, [4, N]),
  (clipped, 1, [None, N]),
  (multiplied, 2, [4, N]),
  (step_and_neighbors, 3, [None, N]),
  (squashed, 1, [None, N]),
  (with_a_part_held, 1, [4, N]),
  (guided, 3, [4, N]),
  (of_three_potentials, 2, [4, N]),
  (one_term_twice, 2, [None, N]),
  (guarded, 1, [None, N]),
  (centered, 3, [None, N]),
  (normalized_by_another, 3, [4, N]),
]


def in_a_graph(plan):
  """Where nothing is probed: what is wrong gives wrong numbers."""
  return tf.function(lambda x: plan(x)[1][0], autograph=False)


@pytest.mark.parametrize(('fn', 'num_passes', 'shape'), BEHIND)
def test_what_is_computed_from_a_gradient(fn, num_passes, shape):
  x = state(4, N)
  plan = tfp_diag.plan_diag_jacobian(
    fn, tf.TensorSpec(shape, x.dtype), sample_shape=shape[:1]
  )
  assert is_as_hessian(plan) and plan.num_passes == num_passes
  expected = jacobian_by_copies(fn, x)
  np.testing.assert_allclose(
    in_a_graph(plan)(x), expected, rtol=1e-9, atol=1e-11
  )


traced_score = tf.function(gradient_of(regression), autograph=False)


def truncated_traced_score(x):
  return x + 0.1 * tf.clip_by_norm(traced_score(x), 0.5, axes=-1)


def normalized_by_itself(x):
  """Computed twice."""
  score = gradient_of(regression)
  return score(x) / tf.norm(score(x), axis=-1, keepdims=True)


def times_the_value(x):
  """The gradient of half the square of the value."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    value = regression(x)
  return tape.gradient(value, x) * value[:, tf.newaxis]


def tamed(x):
  """The drift of a tamed scheme, by a norm of the state."""
  norm = tf.norm(x, axis=-1, keepdims=True)
  return gradient_of(regression)(x) / (1.0 + 0.1 * norm)


@pytest.mark.parametrize(
  ('fn', 'num_passes'),
  [
    (truncated_traced_score, 4),
    (tf.function(truncated, autograph=False), 4),
    (normalized_by_itself, 3),
    (times_the_value, 3),
    (tamed, 3),
  ],
)
def test_numbers_that_are_held(fn, num_passes):
  x = state(4, N)
  spec = tf.TensorSpec([None, N], x.dtype)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[None])
  assert is_as_hessian(plan) and plan.num_passes == num_passes
  expected = jacobian_by_copies(fn, x)
  np.testing.assert_allclose(
    in_a_graph(plan)(x), expected, rtol=1e-9, atol=1e-11
  )


def test_a_norm_that_another_potential_reads():
  """In a graph. Paths through the other gradient are its Hessian's."""
  matrix = np.random.default_rng(0).standard_normal((30, 30)) / 5.0

  def fn(x):
    with tf.GradientTape() as outer:
      outer.watch(x)
      score = gradient_of(lambda x: tf.reduce_sum(tf.sin(x) ** 2, -1))(x)
      squared_norm = tf.reduce_sum(score**2, -1)
      value = tf.reduce_sum(tf.tanh(x @ matrix) ** 2, -1) + squared_norm**2
    return outer.gradient(value, x) + score / squared_norm[:, tf.newaxis]

  x = state(3, 30)
  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[3])
  assert is_as_hessian(plan)
  diagonal = tf.function(
    lambda x: tfp_diag.diag_jacobian(xs=x, fn=fn, sample_shape=[3])[1][0]
  )
  expected = jacobian_diagonal(fn, x)
  np.testing.assert_allclose(diagonal(x), expected, rtol=1e-9, atol=1e-10)


def test_an_infinite_derivative_that_is_multiplied_by_zero():
  x = tf.constant([[1.0, 0.0, 2.0, 3.0, 0.5]])

  def fn(x):
    score = gradient_of(
      lambda x: tf.reduce_sum(tf.math.log(x), -1) + tf.reduce_logsumexp(x, -1)
    )
    return tf.math.multiply_no_nan(score(x), tf.constant([1.0, 0, 1, 1, 1]))

  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[1])
  np.testing.assert_allclose(plan(x)[1][0], jacobian_diagonal(fn, x), rtol=1e-5)


def test_a_plan_op_by_op_is_followed():
  """Also for so few samples that a sweep would cost less."""
  directions = tf.constant(np.random.default_rng(3).normal(size=[5, 4]))
  score = gradient_of(lambda x: tf.reduce_logsumexp(x @ directions, -1))
  plan = tfp_diag.plan_diag_jacobian(
    score, tf.TensorSpec([32, 5], tf.float64), sample_shape=[32]
  )
  assert plan.how == 'op by op, as a Hessian'
  for size in (1, 5):
    x = state(size, 5)
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      _, (diag,) = plan(x)
    expected = jacobian_diagonal(score, x)
    np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-11)
