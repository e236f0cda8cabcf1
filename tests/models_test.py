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
"""Plans for models of TensorFlow Probability and Keras.

The number of colors of each is known from its graph of dependencies: the
largest clique, where the rest needs no more. Values are those of the dense
Hessian, which TensorFlow computes eagerly in float64.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

import tfp_diag
from tests.oracles import hessian_by_copies

tfb = tfp.bijectors
tfd = tfp.distributions

BATCH = 3


def draw(*shape, seed=0):
  return tf.constant(np.random.default_rng(seed).normal(size=shape))


def constant(values):
  return tf.constant(values, tf.float64)


def eight_schools():
  """Each school is coupled with the mean and the spread, and these as well."""
  effects = constant([28, 8, -3, 7, -1, 1, 18, 12])
  errors = constant([15, 10, 16, 11, 9, 11, 10, 18])

  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    mean = yield tfd.Normal(constant(0), 10, name='mean')
    log_spread = yield tfd.Normal(constant(5), 1, name='log_spread')
    schools = yield tfd.Sample(tfd.Normal(constant(0), 1), 8, name='schools')
    yield tfd.Normal(mean + tf.exp(log_spread) * schools, errors, name='y')

  def fn(mean, log_spread, schools):
    return model.log_prob(mean, log_spread, schools, effects)

  return fn, [(), (), (8,)], 3


def eight_schools_pinned():
  """The same as a pinned distribution in its unconstrained space."""
  effects = constant([28, 8, -3, 7, -1, 1, 18, 12])
  errors = constant([15, 10, 16, 11, 9, 11, 10, 18])

  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    mean = yield tfd.Normal(constant(0), 10, name='mean')
    spread = yield tfd.LogNormal(constant(5), 1, name='spread')
    schools = yield tfd.Sample(tfd.Normal(constant(0), 1), 8, name='schools')
    yield tfd.Normal(mean + spread * schools, errors, name='y')

  pinned = model.experimental_pin(y=effects)
  bijector = pinned.experimental_default_event_space_bijector()

  def fn(mean, log_spread, schools):
    state = bijector([mean, log_spread, schools])
    jacobian = bijector.forward_log_det_jacobian([mean, log_spread, schools])
    return pinned.unnormalized_log_prob(state) + jacobian

  return fn, [(), (), (8,)], 3


COUNTIES = np.random.default_rng(1).integers(0, 6, 30)
FLOORS = np.random.default_rng(2).integers(0, 2, 30).astype(float)
RADON = np.random.default_rng(3).normal(size=30)


def regression(intercepts, slope, log_noise):
  location = tf.gather(intercepts, COUNTIES, axis=-1)
  location += slope[..., tf.newaxis] * FLOORS
  noise = tf.exp(log_noise)[..., tf.newaxis]
  return tf.reduce_sum(tfd.Normal(location, noise).log_prob(RADON), axis=-1)


def centered_hierarchy():
  """Two triangles at each intercept: with its law, and with its data."""

  def fn(mean, log_spread, intercepts, slope, log_noise):
    law = tfd.Normal(mean[..., tf.newaxis], tf.exp(log_spread)[..., tf.newaxis])
    return (
      tfd.Normal(constant(0), 1).log_prob(mean)
      + tfd.Normal(constant(0), 1).log_prob(log_spread)
      + tf.reduce_sum(law.log_prob(intercepts), axis=-1)
      + regression(intercepts, slope, log_noise)
    )

  return fn, [(), (), (6,), (), ()], 3


def non_centered_hierarchy():
  """Each intercept forms a clique with the four others."""

  def fn(mean, log_spread, standard, slope, log_noise):
    spread = tf.exp(log_spread)[..., tf.newaxis]
    return tf.reduce_sum(
      tfd.Normal(constant(0), 1).log_prob(standard), axis=-1
    ) + regression(mean[..., tf.newaxis] + spread * standard, slope, log_noise)

  return fn, [(), (), (6,), (), ()], 5


def hierarchy_of_two_effects():
  """Rows and columns of a table, each with a mean of their own: a 4-cycle."""
  rows, columns = np.divmod(np.arange(12), 4)

  def fn(row_mean, column_mean, row_effects, column_effects):
    table = tf.gather(row_effects, rows, axis=-1) * tf.gather(
      column_effects, columns, axis=-1
    )
    return tf.add_n(
      [
        -tf.reduce_sum(tf.cosh(row_effects - row_mean[..., tf.newaxis]), -1),
        -tf.reduce_sum(
          tf.cosh(column_effects - column_mean[..., tf.newaxis]), -1
        ),
        tf.reduce_sum(tfd.Poisson(log_rate=table).log_prob(constant(2)), -1),
      ]
    )

  return fn, [(), (), (3,), (4,)], 2


RETURNS = np.random.default_rng(4).normal(size=8)


def volatility(log_variance):
  law = tfd.Normal(constant(0), tf.exp(log_variance / 2))
  return tf.reduce_sum(law.log_prob(RETURNS), axis=-1)


def non_centered_volatility_by_scan():
  """Each log variance is a sum of all earlier shocks: the first meets all."""

  def fn(shocks):
    path = tf.scan(
      lambda previous, shock: 0.9 * previous + 0.3 * shock,
      tf.transpose(shocks),
    )
    prior = tf.reduce_sum(tfd.Normal(constant(0), 1).log_prob(shocks), -1)
    return prior + volatility(tf.transpose(path))

  return fn, [(8,)], 8


def non_centered_volatility_by_cumsum():
  def fn(shocks):
    powers = 0.9 ** np.arange(8.0)
    path = powers * tf.cumsum(0.3 * shocks / powers, axis=-1)
    prior = tf.reduce_sum(tfd.Normal(constant(0), 1).log_prob(shocks), -1)
    return prior + volatility(path)

  return fn, [(8,)], 8


def centered_volatility():
  """A chain."""

  def fn(log_variance):
    steps = log_variance[..., 1:] - 0.9 * log_variance[..., :-1]
    prior = tf.reduce_sum(tfd.Normal(constant(0), 0.3).log_prob(steps), -1)
    return prior + volatility(log_variance)

  return fn, [(8,)], 2


def centered_volatility_with_parameters():
  """A chain, and three that meet each other and all of it."""

  def fn(mean, phi, log_sigma, log_variance):
    mean, phi, log_sigma = (
      p[..., tf.newaxis] for p in (mean, tf.tanh(phi), log_sigma)
    )
    deviation = log_variance - mean
    steps = deviation[..., 1:] - phi * deviation[..., :-1]
    prior = tfd.Normal(constant(0), tf.exp(log_sigma)).log_prob(steps)
    return tf.reduce_sum(prior, axis=-1) + volatility(log_variance)

  return fn, [(), (), (), (8,)], 5


def autoregression_by_gather():
  """A chain whose links are shuffled."""
  order = np.random.default_rng(5).permutation(15)

  def fn(x):
    before = tf.gather(x, order[:-1], axis=-1)
    after = tf.gather(x, order[1:], axis=-1)
    return tf.reduce_sum(
      tfd.StudentT(constant(4), 0.8 * before, 1).log_prob(after), axis=-1
    )

  return fn, [(15,)], 2


def markov_random_field():
  """A grid by its list of edges, and counts that are observed on it."""
  nodes = np.arange(20).reshape(4, 5)
  edges = np.concatenate(
    [
      np.stack([nodes[:, 1:].ravel(), nodes[:, :-1].ravel()]),
      np.stack([nodes[1:].ravel(), nodes[:-1].ravel()]),
    ],
    axis=1,
  )

  def fn(x):
    ends = [tf.gather(x, e, axis=-1) for e in edges]
    energy = tf.reduce_sum((ends[0] - ends[1]) ** 2, axis=-1)
    counts = tfd.Poisson(log_rate=x).log_prob(constant(np.arange(20) % 4))
    return -0.5 * energy + tf.reduce_sum(counts, axis=-1)

  return fn, [(20,)], 2


STUDENTS, QUESTIONS = np.divmod(np.arange(28), 4)
CORRECT = np.random.default_rng(6).integers(0, 2, 28).astype(float)


def item_response():
  """Students meet questions: bipartite."""

  def fn(ability, difficulty):
    logits = tf.gather(ability, STUDENTS, axis=-1) - tf.gather(
      difficulty, QUESTIONS, axis=-1
    )
    return tf.reduce_sum(tfd.Bernoulli(logits).log_prob(CORRECT), axis=-1)

  return fn, [(7,), (4,)], 2


def item_response_with_discrimination():
  """Two parameters of a question meet each other, and its students."""

  def fn(ability, difficulty, log_discrimination):
    logits = tf.gather(tf.exp(log_discrimination), QUESTIONS, axis=-1) * (
      tf.gather(ability, STUDENTS, axis=-1)
      - tf.gather(difficulty, QUESTIONS, axis=-1)
    )
    return tf.reduce_sum(tfd.Bernoulli(logits).log_prob(CORRECT), axis=-1)

  return fn, [(7,), (4,), (4,)], 3


def points_of_a_mixture():
  """Independent points, each under all components."""

  def fn(x):
    components = tfd.Normal(constant([-2, 0, 3]), constant([1, 0.5, 2]))
    log_probs = components.log_prob(x[..., tf.newaxis]) + constant(
      np.log([0.2, 0.5, 0.3])
    )
    return tf.reduce_sum(tf.reduce_logsumexp(log_probs, axis=-1), axis=-1)

  return fn, [(9,)], 1


def points_of_a_mixture_distribution():
  law = tfd.MixtureSameFamily(
    tfd.Categorical(probs=constant([0.2, 0.5, 0.3])),
    tfd.Normal(constant([-2, 0, 3]), constant([1, 0.5, 2])),
  )
  return lambda x: tf.reduce_sum(law.log_prob(x), axis=-1), [(9,)], 1


def centers_of_a_mixture():
  """Each datum couples all components."""
  data = RETURNS[:, np.newaxis]

  def fn(centers):
    log_probs = tfd.Normal(centers[..., tf.newaxis, :], constant(1)).log_prob(
      data
    )
    return tf.reduce_sum(tf.reduce_logsumexp(log_probs, axis=-1), axis=-1)

  return fn, [(4,)], 4


def state_space():
  """A series under a filtered density: the first value meets all later ones."""
  model = tfd.LinearGaussianStateSpaceModel(
    num_timesteps=3,
    transition_matrix=constant([[1, 1], [0, 0.9]]),
    transition_noise=tfd.MultivariateNormalDiag(
      scale_diag=constant([0.5, 0.2])
    ),
    observation_matrix=constant([[1, 0]]),
    observation_noise=tfd.MultivariateNormalDiag(scale_diag=constant([0.7])),
    initial_state_prior=tfd.MultivariateNormalDiag(scale_diag=constant([1, 1])),
  )
  return lambda x: model.log_prob(x + tf.sin(x)), [(3, 1)], 3


def dense_network():
  """Every input meets every other one in the first layer."""
  tf_keras.utils.set_random_seed(0)
  network = tf_keras.Sequential(
    [
      tf_keras.Input([6], dtype='float64'),
      tf_keras.layers.Dense(8, activation='tanh', dtype='float64'),
      tf_keras.layers.Dense(1, dtype='float64'),
    ]
  )
  return lambda x: network(x)[..., 0], [(6,)], 6


def convolutional_network():
  """Inputs meet under a window of three: half of a band is two wide."""
  tf_keras.utils.set_random_seed(0)
  network = tf_keras.Sequential(
    [
      tf_keras.Input([10, 1], dtype='float64'),
      tf_keras.layers.Conv1D(4, 3, activation='softplus', dtype='float64'),
      tf_keras.layers.Dense(1, dtype='float64'),
    ]
  )
  return lambda x: tf.reduce_sum(network(x), axis=[-1, -2]), [(10, 1)], 3


MODELS = (
  eight_schools,
  eight_schools_pinned,
  centered_hierarchy,
  non_centered_hierarchy,
  hierarchy_of_two_effects,
  non_centered_volatility_by_scan,
  non_centered_volatility_by_cumsum,
  centered_volatility,
  centered_volatility_with_parameters,
  autoregression_by_gather,
  markov_random_field,
  item_response,
  item_response_with_discrimination,
  points_of_a_mixture,
  points_of_a_mixture_distribution,
  centers_of_a_mixture,
  state_space,
  dense_network,
  convolutional_network,
)


def dense_diagonal(fn, xs):
  """The value, and the diagonal of the Hessian, eagerly and by tapes."""
  shapes = [x.shape[1:] for x in xs]
  sizes = [shape.num_elements() for shape in shapes]

  def of_whole(flat):
    parts = tf.split(flat, sizes, axis=1)
    return fn(*(tf.reshape(p, [-1, *s]) for p, s in zip(parts, shapes)))

  whole = tf.concat([tf.reshape(x, [BATCH, -1]) for x in xs], 1)
  diag = tf.split(hessian_by_copies(of_whole, whole), sizes, axis=1)
  return fn(*xs), [tf.reshape(d, x.shape) for d, x in zip(diag, xs)]


@pytest.mark.parametrize('model', MODELS, ids=lambda m: m.__name__)
def test_model(model):
  fn, event_shapes, num_colors = model()
  plan = tfp_diag.plan_diag_hessian(
    fn, [tf.TensorSpec([None, *s], tf.float64) for s in event_shapes]
  )
  assert plan.num_colors == num_colors, str(plan)
  assert plan.num_passes <= num_colors
  assert not plan.pattern.fallback_ops
  assert plan.sample_rank == 1
  xs = [draw(BATCH, *s, seed=i) for i, s in enumerate(event_shapes)]
  value, _, diag = plan(xs)
  want_value, want = dense_diagonal(fn, xs)
  np.testing.assert_allclose(value, want_value, rtol=1e-12)
  for got, expected in zip(diag, want):
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)


def test_a_log_density_in_samples_of_two_dimensions():
  fn, event_shapes, num_colors = centered_volatility_with_parameters()
  xs = [draw(2, BATCH, *s, seed=i) for i, s in enumerate(event_shapes)]
  plan = tfp_diag.plan_diag_hessian(fn, xs)
  assert (plan.num_colors, plan.sample_rank) == (num_colors, 2)
  diag = plan(xs)[2]
  for k in range(2):
    _, want = dense_diagonal(fn, [x[k] for x in xs])
    for got, expected in zip(diag, want):
      np.testing.assert_allclose(got[k], expected, rtol=1e-9, atol=1e-10)
