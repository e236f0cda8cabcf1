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
"""The posteriors of the zoo: those of the samplers' targets, and more.

Written as in `sampler_models`. Every scale that is positive is an exponential
of what is sampled, in TFP and elsewhere, so that all samplers see one density.
"""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from benchmarks import sampler_models
from benchmarks.sampler_models import Model, logistic_data, normal_effects

__all__ = ['ZOO', 'make_model']

tfb = tfp.bijectors
tfd = tfp.distributions
Root = tfd.JointDistributionCoroutine.Root


def make_model(name):
  """The model of that name, a key of `ZOO`."""
  return ZOO[name]()


def hierarchical_model(size=84):
  """Effects of groups, each seen in an error of its own, centered."""
  rng = np.random.default_rng(21)
  errors = np.exp(rng.uniform(-0.7, 0.7, size))
  effects = 1.0 + rng.standard_normal(size) + errors * rng.standard_normal(size)
  effects, errors = effects.astype(np.float32), errors.astype(np.float32)
  name = 'hierarchical model, centered'
  return normal_effects(name, effects, errors, 5.0, (0.0, 1.0), centered=True)


def hierarchical_logistic_regression():
  """Weights, the constant's too, of an unknown scale, centered."""
  columns, labels = logistic_data()
  size = columns.shape[1]

  @tfd.JointDistributionCoroutine
  def joint():
    scale = yield Root(tfd.HalfCauchy(0.0, 1.0, name='scale'))
    weights = yield tfd.Independent(
      tfd.Normal(0.0, scale[..., tf.newaxis] * tf.ones(size)),
      1,
      name='weights',
    )
    logits = tf.linalg.matvec(columns, weights)
    yield tfd.Independent(
      tfd.Bernoulli(logits=logits, dtype=tf.float32), 1, name='labels'
    )

  def log_prob(np, x):
    log_scale, weights = x[0], x[1:]
    logits = columns @ weights
    fit = np.where(labels, logits, 0.0) - np.logaddexp(0.0, logits)
    return (
      np.sum(fit)
      - 0.5 * np.sum(weights**2) * np.exp(-2.0 * log_scale)
      + (1 - size) * log_scale
      - np.log1p(np.exp(2.0 * log_scale))
    )

  def constrained(np, x):
    return np.concatenate([np.exp(x[:1]), x[1:]])

  pins = {'labels': labels.astype(np.float32)}
  name = 'hierarchical logistic regression'
  return Model(name, joint, pins, log_prob, 1 + size, constrained)


def sparse_logistic_regression(num_columns=25):
  """Few weights matter; the prior of inference_gym, beside a constant."""
  columns, labels = logistic_data(num_columns=num_columns, num_active=5)
  columns = columns[:, 1:]

  def gamma():
    return tfd.TransformedDistribution(tfd.ExpGamma(0.5, 0.5), tfb.Exp())

  @tfd.JointDistributionCoroutine
  def joint():
    intercept = yield Root(tfd.Normal(0.0, 1.0, name='intercept'))
    unscaled = yield Root(
      tfd.Sample(tfd.Normal(0.0, 1.0), num_columns, name='unscaled_weights')
    )
    local_scales = yield Root(
      tfd.Sample(gamma(), num_columns, name='local_scales')
    )
    global_scale = yield Root(
      tfd.TransformedDistribution(
        tfd.ExpGamma(0.5, 0.5), tfb.Exp(), name='global_scale'
      )
    )
    weights = unscaled * local_scales * global_scale[..., tf.newaxis]
    logits = intercept[..., tf.newaxis] + tf.linalg.matvec(columns, weights)
    yield tfd.Independent(
      tfd.Bernoulli(logits=logits, dtype=tf.float32), 1, name='labels'
    )

  def log_prob(np, x):
    intercept, unscaled, log_scales = x[0], x[1 : 1 + num_columns], x[-size:]
    scales = np.exp(log_scales)
    logits = intercept + columns @ (unscaled * scales[:-1] * scales[-1])
    fit = np.where(labels, logits, 0.0) - np.logaddexp(0.0, logits)
    return (
      np.sum(fit)
      - 0.5 * (intercept**2 + np.sum(unscaled**2))
      + 0.5 * np.sum(log_scales - scales)
    )

  def constrained(np, x):
    return np.concatenate([x[:-size], np.exp(x[-size:])])

  # The scales, the last one of all weights.
  size = num_columns + 1
  pins = {'labels': labels.astype(np.float32)}
  name = 'sparse logistic regression'
  return Model(name, joint, pins, log_prob, 1 + num_columns + size, constrained)


def poisson_mixed_model(num_groups=50, num_rows=400):
  """Counts with a slope and a rate of each group, which are centered."""
  rng = np.random.default_rng(22)
  group = np.sort(rng.integers(0, num_groups, num_rows))
  slope = rng.standard_normal(num_rows).astype(np.float32)
  rates = 0.5 + 0.6 * rng.standard_normal(num_groups)
  counts = rng.poisson(np.exp(rates[group] + 0.3 * slope)).astype(np.float32)

  @tfd.JointDistributionCoroutine
  def joint():
    mean = yield Root(tfd.Normal(0.0, 2.0, name='mean'))
    weight = yield Root(tfd.Normal(0.0, 1.0, name='weight'))
    scale = yield Root(tfd.LogNormal(-1.0, 1.0, name='scale'))
    rates = yield tfd.Independent(
      tfd.Normal(
        mean[..., tf.newaxis], scale[..., tf.newaxis] * tf.ones(num_groups)
      ),
      1,
      name='log_rates',
    )
    log_rates = tf.gather(rates, group, axis=-1)
    yield tfd.Independent(
      tfd.Poisson(log_rate=log_rates + weight[..., tf.newaxis] * slope),
      1,
      name='counts',
    )

  def log_prob(np, x):
    mean, weight, log_scale, rates = x[0], x[1], x[2], x[3:]
    log_rates = rates[group] + weight * slope
    scores = (rates - mean) * np.exp(-log_scale)
    prior = (mean / 2.0) ** 2 + weight**2 + (log_scale + 1.0) ** 2
    return (
      np.sum(counts * log_rates - np.exp(log_rates))
      - 0.5 * (prior + np.sum(scores**2))
      - num_groups * log_scale
    )

  def constrained(np, x):
    return np.concatenate([x[:2], np.exp(x[2:3]), x[3:]])

  pins = {'counts': counts}
  name = 'Poisson mixed model'
  return Model(name, joint, pins, log_prob, 3 + num_groups, constrained)


def cox_process(num_bins=64):
  """A log-Gaussian Cox process on a circle, of unknown scales.

  The kernel is inference_gym's, a Matérn 3/2, which on a circle is diagonal in
  Fourier's basis: what is sampled are the coefficients there, centered, and no
  matrix is factored.
  """
  rng = np.random.default_rng(23)
  wave = np.arange(1, num_bins // 2)
  angle = 2.0 * np.pi * np.outer(np.arange(num_bins), wave) / num_bins
  basis = np.c_[
    np.ones(num_bins) / np.sqrt(2.0),
    np.cos(angle),
    np.sin(angle),
    np.cos(np.pi * np.arange(num_bins)) / np.sqrt(2.0),
  ] * np.sqrt(2.0 / num_bins)
  frequency2 = np.r_[0, wave, wave, num_bins // 2] ** 2.0
  basis, frequency2 = basis.astype(np.float32), frequency2.astype(np.float32)
  mean = np.float32(1.0)
  # Of the density along the circle, of length 2 π.
  log_constant = float(np.log(4.0 * num_bins / (2.0 * np.pi)))

  log_of_sqrt_3 = float(np.log(3.0)) / 2.0

  def log_variances(np, log_amplitude, log_length):
    log_rate = log_of_sqrt_3 - log_length
    falling = np.log(np.exp(2.0 * log_rate) + frequency2)
    return log_constant + 2.0 * log_amplitude + 3.0 * log_rate - 2.0 * falling

  sd = np.exp(0.5 * log_variances(np, np.log(0.7), np.log(0.4)))
  path = basis @ (sd * rng.standard_normal(num_bins))
  counts = rng.poisson(np.exp(mean + path)).astype(np.float32)

  @tfd.JointDistributionCoroutine
  def joint():
    amplitude = yield Root(tfd.LogNormal(-1.0, 0.5, name='amplitude'))
    length = yield Root(tfd.LogNormal(-1.0, 1.0, name='length_scale'))
    variances = log_variances(
      tf.math,
      tf.math.log(amplitude)[..., tf.newaxis],
      tf.math.log(length)[..., tf.newaxis],
    )
    coefficients = yield tfd.Independent(
      tfd.Normal(0.0, tf.exp(0.5 * variances)), 1, name='coefficients'
    )
    path = tf.linalg.matvec(basis, coefficients)
    yield tfd.Independent(tfd.Poisson(log_rate=mean + path), 1, name='counts')

  def log_prob(np, x):
    variances = log_variances(np, x[0], x[1])
    path = mean + basis @ x[2:]
    prior = ((x[0] + 1.0) / 0.5) ** 2 + (x[1] + 1.0) ** 2
    return np.sum(counts * path - np.exp(path)) - 0.5 * (
      prior + np.sum(x[2:] ** 2 * np.exp(-variances) + variances)
    )

  def constrained(np, x):
    return np.concatenate([np.exp(x[:2]), x[2:]])

  pins = {'counts': counts}
  name = 'log-Gaussian Cox process'
  return Model(name, joint, pins, log_prob, 2 + num_bins, constrained)


def banana():
  """A normal whose second coordinate follows the square of the first."""

  @tfd.JointDistributionCoroutine
  def joint():
    x = yield Root(tfd.Normal(0.0, 10.0, name='x'))
    yield tfd.Normal(0.03 * (x**2 - 100.0), 1.0, name='y')

  def log_prob(np, x):
    del np
    return -0.5 * (
      (x[0] / 10.0) ** 2 + (x[1] - 0.03 * (x[0] ** 2 - 100.0)) ** 2
    )

  return Model('banana', joint, {}, log_prob, 2)


def funnel(size=9):
  """Neal's: the logarithm of a variance, and what it is the variance of."""

  @tfd.JointDistributionCoroutine
  def joint():
    v = yield Root(tfd.Normal(0.0, 3.0, name='log_variance'))
    yield tfd.Independent(
      tfd.Normal(0.0, tf.exp(0.5 * v)[..., tf.newaxis] * tf.ones(size)),
      1,
      name='x',
    )

  def log_prob(np, x):
    v, rest = x[0], x[1:]
    return -0.5 * ((v / 3.0) ** 2 + np.sum(rest**2) * np.exp(-v) + size * v)

  return Model("Neal's funnel", joint, {}, log_prob, 1 + size)


ZOO = {
  'banana': banana,
  'funnel': funnel,
  'eight_schools': sampler_models.eight_schools,
  'eight_schools_centered': functools.partial(
    sampler_models.eight_schools, centered=True
  ),
  'logistic_regression': sampler_models.logistic_regression,
  'hierarchical_logistic_regression': hierarchical_logistic_regression,
  'brownian_motion': sampler_models.brownian_motion,
  'sparse_logistic_regression': sparse_logistic_regression,
  'poisson_mixed_model': poisson_mixed_model,
  'cox_process': cox_process,
  'hierarchical_model': hierarchical_model,
  'gaussian_rotated': sampler_models.gaussian_rotated,
  'stochastic_volatility': sampler_models.stochastic_volatility,
  'item_response': functools.partial(sampler_models.item_response, 400, 100),
}
