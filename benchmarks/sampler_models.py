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
"""Posteriors and densities that samplers are compared on, in plain TFP.

The models are those of inference_gym, under its names and with its priors, but
for sizes and data, which are drawn here from fixed seeds. Each is written
twice: as a joint distribution of TFP, and, for samplers of other frameworks, as
a log density of one unconstrained vector in terms of NumPy, or of what has its
names.
"""

import dataclasses
import typing

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = ['MODELS', 'Model', 'make_model']

tfb = tfp.bijectors
tfd = tfp.distributions
Root = tfd.JointDistributionCoroutine.Root

# Of the 30 steps of the walk.
BROWNIAN_MOTION_SEEN = np.r_[0:10, 20:30]


@dataclasses.dataclass(frozen=True)
class Model:
  """A model whose unpinned variables are sampled.

  Attributes:
    name: Python str, for people.
    joint: A `tfd.JointDistribution`.
    pins: Dict, what is observed.
    log_prob: Callable, a module such as NumPy and a vector of all variables,
      in order and without constraints, to their log density up to a constant.
    size: Python int, the length of that vector.
    constrained: Callable, the same arguments to the variables as the joint
      distribution has them, in one vector; or None if they have no constraints.
    axes: Array whose columns are the principal axes, where these are other ones
      than the coordinates, or None.
    arguments: Dict, what the function that made it was given, or None.
  """

  name: str
  joint: typing.Any
  pins: dict
  log_prob: typing.Callable
  size: int
  constrained: typing.Callable | None = None
  axes: typing.Any = None
  arguments: dict | None = None


def make_model(name):
  """The model of that name, a key of `MODELS`."""
  return MODELS[name]()


def eight_schools(centered=False):
  """Effects of coaching in eight schools."""
  effects = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
  errors = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)
  name = 'eight schools' + (', centered' if centered else '')
  return normal_effects(name, effects, errors, 10.0, (5.0, 1.0), centered)


def normal_effects(
  name, effects, errors, mean_scale, log_sd_prior, centered=False
):
  """Effects of unknown mean and spread, each seen once, with a known error.

  Args:
    name: Python str, for people.
    effects: Array [n], what was seen.
    errors: Array [n], standard deviations of the errors.
    mean_scale: Positive float: the mean is N(0, mean_scale^2).
    log_sd_prior: Pair of floats, mean and standard deviation of the logarithm
      of the spread.
    centered: Python bool, whether the effects themselves are sampled, or what
      they are before they are scaled and shifted.

  Returns:
    A `Model`.
  """
  size = len(effects)

  @tfd.JointDistributionCoroutine
  def joint():
    mean = yield Root(tfd.Normal(0.0, mean_scale, name='avg_effect'))
    log_sd = yield Root(tfd.Normal(*log_sd_prior, name='log_stddev'))
    center, sd = mean[..., tf.newaxis], tf.exp(log_sd)[..., tf.newaxis]
    if centered:
      location = yield tfd.Independent(
        tfd.Normal(center, sd * tf.ones(size)), 1, name='school_effects'
      )
    else:
      standard = yield Root(
        tfd.Sample(tfd.Normal(0.0, 1.0), size, name='school_effects')
      )
      location = center + sd * standard
    yield tfd.Independent(
      tfd.Normal(location, errors), 1, name='treatment_effects'
    )

  def log_prob(np, x):
    mean, log_sd, values = x[0], x[1], x[2:]
    if centered:
      standard, location = (values - mean) * np.exp(-log_sd), values
    else:
      standard, location = values, mean + np.exp(log_sd) * values
    residuals = (effects - location) / errors
    log_sd_score = (log_sd - log_sd_prior[0]) / log_sd_prior[1]
    prior = (mean / mean_scale) ** 2 + log_sd_score**2 + np.sum(standard**2)
    log_det = size * log_sd if centered else 0.0
    return -0.5 * (prior + np.sum(residuals**2)) - log_det

  pins = {'treatment_effects': effects}
  arguments = {
    'effects': effects,
    'errors': errors,
    'mean_scale': mean_scale,
    'log_sd_prior': log_sd_prior,
    'centered': centered,
  }
  return Model(name, joint, pins, log_prob, 2 + size, arguments=arguments)


def brownian_motion():
  """A random walk seen in noise, its middle missing, both scales unknown."""
  rng = np.random.default_rng(4)
  steps = 30
  path = np.cumsum(0.1 * rng.standard_normal(steps))
  seen = BROWNIAN_MOTION_SEEN
  observed = path[seen] + 0.15 * rng.standard_normal(seen.size)

  @tfd.JointDistributionCoroutine
  def joint():
    innovation = yield Root(
      tfd.LogNormal(0.0, 2.0, name='innovation_noise_scale')
    )
    noise = yield Root(tfd.LogNormal(0.0, 2.0, name='observation_noise_scale'))
    walk = yield tfd.MarkovChain(
      initial_state_prior=tfd.Normal(0.0, innovation),
      # Here the steps come before the chains.
      transition_fn=lambda _, x: tfd.Normal(x, innovation),
      num_steps=steps,
      name='locs',
    )
    yield tfd.Independent(
      tfd.Normal(tf.gather(walk, seen, axis=-1), noise[..., tf.newaxis]),
      1,
      name='observed_locs',
    )

  def log_prob(np, x):
    log_scales, walk = x[:2], x[2:]
    innovation, noise = np.exp(-log_scales)
    moves = np.sum(((walk[1:] - walk[:-1]) * innovation) ** 2)
    residuals = (observed - walk[seen]) * noise
    return (
      -0.5 * np.sum((log_scales / 2.0) ** 2)
      - 0.5 * (moves + (walk[0] * innovation) ** 2)
      - steps * log_scales[0]
      - 0.5 * np.sum(residuals**2)
      - len(seen) * log_scales[1]
    )

  def constrained(np, x):
    return np.concatenate([np.exp(x[:2]), x[2:]])

  pins = {'observed_locs': observed.astype(np.float32)}
  name = 'Brownian motion, unknown scales'
  return Model(name, joint, pins, log_prob, 2 + steps, constrained)


def stochastic_volatility():
  """Log variances of daily returns that follow an AR(1), centered."""
  rng = np.random.default_rng(5)
  steps, persistence, shock, mean = 100, 0.95, 0.25, -0.5
  log_volatility = np.empty(steps)
  x = mean + shock / np.sqrt(1 - persistence**2) * rng.standard_normal()
  for t in range(steps):
    log_volatility[t] = x
    x = mean + persistence * (x - mean) + shock * rng.standard_normal()
  returns = np.exp(log_volatility / 2) * rng.standard_normal(steps)

  @tfd.JointDistributionCoroutine
  def joint():
    persistence = yield Root(
      tfd.TransformedDistribution(
        tfd.Beta(20.0, 1.5),
        tfb.Shift(-1.0)(tfb.Scale(2.0)),
        name='persistence_of_volatility',
      )
    )
    mean = yield Root(tfd.Cauchy(0.0, 5.0, name='mean_log_volatility'))
    shock = yield Root(tfd.HalfCauchy(0.0, 2.0, name='white_noise_shock_scale'))
    log_volatility = yield tfd.MarkovChain(
      initial_state_prior=tfd.Normal(
        mean, shock / tf.sqrt(1.0 - persistence**2)
      ),
      transition_fn=lambda _, x: tfd.Normal(
        mean + persistence * (x - mean), shock
      ),
      num_steps=steps,
      name='log_volatility',
    )
    yield tfd.Independent(
      tfd.Normal(0.0, tf.exp(log_volatility / 2.0)), 1, name='centered_returns'
    )

  def log_prob(np, x):
    logit, mean, log_shock, path = x[0], x[1], x[2], x[3:]
    persistence = np.tanh(0.5 * logit)
    shock = np.exp(log_shock)
    moves = path[1:] - mean - persistence * (path[:-1] - mean)
    # 1 - persistence^2, which may be tiny.
    rest = np.exp(-np.logaddexp(0.0, logit) - np.logaddexp(0.0, -logit)) * 4.0
    first = (path[0] - mean) ** 2 * rest
    return (
      -20.0 * np.logaddexp(0.0, -logit)
      - 1.5 * np.logaddexp(0.0, logit)
      - np.log1p((mean / 5.0) ** 2)
      - np.log1p((shock / 2.0) ** 2)
      + log_shock
      - 0.5 * (first + np.sum(moves**2)) / shock**2
      + 0.5 * np.log(rest)
      - steps * log_shock
      - 0.5 * np.sum(returns**2 * np.exp(-path) + path)
    )

  def constrained(np, x):
    logit, mean, log_shock = x[:1], x[1:2], x[2:3]
    scales = [np.tanh(0.5 * logit), mean, np.exp(log_shock)]
    return np.concatenate([*scales, x[3:]])

  pins = {'centered_returns': returns.astype(np.float32)}
  name = 'stochastic volatility, T = 100'
  return Model(name, joint, pins, log_prob, 3 + steps, constrained)


def item_response(num_students=100, num_questions=30):
  """Which student answers which question: the Rasch model."""
  rng = np.random.default_rng(6)
  ability = 0.75 + rng.standard_normal(num_students)
  difficulty = rng.standard_normal(num_questions)
  logits = ability[:, np.newaxis] - difficulty
  correct = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))

  @tfd.JointDistributionCoroutine
  def joint():
    mean = yield Root(tfd.Normal(0.75, 1.0, name='mean_student_ability'))
    ability = yield Root(
      tfd.Sample(
        tfd.Normal(0.0, 1.0), num_students, name='centered_student_ability'
      )
    )
    difficulty = yield Root(
      tfd.Sample(
        tfd.Normal(0.0, 1.0), num_questions, name='question_difficulty'
      )
    )
    logits = (mean[..., tf.newaxis] + ability)[..., tf.newaxis] - difficulty[
      ..., tf.newaxis, :
    ]
    yield tfd.Independent(
      tfd.Bernoulli(logits=logits, dtype=tf.float32), 2, name='correct'
    )

  def log_prob(np, x):
    mean, ability, difficulty = (
      x[0],
      x[1 : 1 + num_students],
      x[-num_questions:],
    )
    logits = (mean + ability)[:, None] - difficulty
    prior = (mean - 0.75) ** 2 + np.sum(x[1:] ** 2)
    fit = np.where(correct, logits, 0.0) - np.logaddexp(0.0, logits)
    return np.sum(fit) - 0.5 * prior

  pins = {'correct': correct.astype(np.float32)}
  size = 1 + num_students + num_questions
  return Model('item response theory', joint, pins, log_prob, size)


def logistic_data(num_rows=1000, num_columns=24, num_active=None):
  """Correlated columns, the first one constant, and labels.

  Args:
    num_rows: Python int.
    num_columns: Python int, without the constant.
    num_active: Python int, how many columns matter, or None for all.

  Returns:
    columns: float32 array [num_rows, 1 + num_columns].
    labels: bool array [num_rows].
  """
  rng = np.random.default_rng(7)
  mixing = rng.standard_normal((num_columns, num_columns)) / 3
  columns = rng.standard_normal((num_rows, num_columns)) @ (
    np.eye(num_columns) + mixing
  )
  columns /= np.std(columns, axis=0)
  columns = np.c_[np.ones(num_rows), columns].astype(np.float32)
  weights = rng.standard_normal(num_columns + 1) / 2
  if num_active is not None:
    weights[1 + num_active :] = 0.0
  labels = rng.random(num_rows) < 1 / (1 + np.exp(-columns @ weights))
  return columns, labels


def logistic_regression(num_rows=1000, num_columns=24):
  """Correlated columns and a constant, weights standard normal."""
  columns, labels = logistic_data(num_rows, num_columns)

  @tfd.JointDistributionCoroutine
  def joint():
    weights = yield Root(
      tfd.Sample(tfd.Normal(0.0, 1.0), num_columns + 1, name='weights')
    )
    logits = tf.linalg.matvec(columns, weights)
    yield tfd.Independent(
      tfd.Bernoulli(logits=logits, dtype=tf.float32), 1, name='labels'
    )

  def log_prob(np, x):
    logits = columns @ x
    fit = np.where(labels, logits, 0.0) - np.logaddexp(0.0, logits)
    return np.sum(fit) - 0.5 * np.sum(x**2)

  pins = {'labels': labels.astype(np.float32)}
  size = num_columns + 1
  return Model('logistic regression', joint, pins, log_prob, size)


def gaussian_rotated(d=100):
  """Variances from an inverse gamma distribution, along random directions."""
  variances, rng = gaussian_variances(d)
  q, _ = np.linalg.qr(rng.standard_normal((d, d)))
  model = _gaussian('rotated', (q / variances) @ q.T)
  return dataclasses.replace(model, axes=q.astype(np.float32))


def gaussian_aligned(d=100):
  """The same variances along the axes."""
  variances, _ = gaussian_variances(d)
  return _gaussian('axis-aligned', np.diag(1.0 / variances))


def gaussian_variances(d):
  rng = np.random.default_rng(10)
  return 1.0 / np.sort(rng.gamma(0.5, size=d)), rng


class _Dense(tf.linalg.LinearOperatorLowerTriangular):
  """A triangle that takes all chains in one product of matrices.

  TensorFlow's operator repeats itself for every chain, which costs all samplers
  that use it ten times as much.
  """

  def _matvec(self, x, adjoint=False):
    axis = 0 if adjoint else 1
    return tf.tensordot(x, self.to_dense(), [[-1], [axis]])


class _Normal(
  tfp.experimental.distributions.MultivariateNormalPrecisionFactorLinearOperator
):
  """Is sampled as it is.

  TFP's own default is to sample what becomes the normal by its factor: then all
  samplers would see a standard normal.
  """

  def _default_event_space_bijector(self):
    return tfb.Identity()


def _gaussian(kind, precision):
  # A product with the precision: the cheapest form, the same for all samplers.
  factor = np.linalg.cholesky(precision).astype(np.float32)
  operator = _Dense(factor)
  if kind == 'axis-aligned':
    operator = tf.linalg.LinearOperatorDiag(np.diag(factor))

  @tfd.JointDistributionCoroutine
  def joint():
    yield Root(_Normal(precision_factor=operator, name='x'))

  def log_prob(np, x):
    if kind == 'axis-aligned':
      return -0.5 * np.sum((factor.diagonal() * x) ** 2)
    return -0.5 * np.sum((x @ factor) ** 2)

  name = f'ill-conditioned Gaussian, {kind}'
  return Model(name, joint, {}, log_prob, len(factor))


MODELS = {
  f.__name__: f
  for f in (
    eight_schools,
    brownian_motion,
    stochastic_volatility,
    item_response,
    gaussian_rotated,
    gaussian_aligned,
    logistic_regression,
  )
}
