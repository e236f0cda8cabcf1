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
"""Regressions: log densities of coefficients, given rows of features."""

import numpy as np
from scipy.special import digamma, expit, polygamma
from scipy.special import softmax as softmax_of

from benchmarks.cases.case import Case
from benchmarks.cases.data import features, rounded, sums_by_group

__all__ = [
  'binomial_mixed',
  'cox',
  'horseshoe',
  'negative_binomial',
  'ordinal',
  'poisson_mixed',
  'softmax_regression',
]


def softmax_regression(num_inputs=20, num_classes=10, num_rows=500, batch=16):
  """The class of each row, with coefficients by input and class."""
  rng = np.random.default_rng(10)
  rows = features(rng, num_rows, num_inputs)
  one_hot = np.eye(num_classes)[rng.integers(0, num_classes, num_rows)]

  def log_prob(ops, x, scale):
    logits = ops.matmul(ops.array(rows) * scale, x)
    fit = ops.sum(ops.array(one_hot) * logits, 2)
    return fit - ops.sum(ops.logsumexp(logits), 1) - 0.5 * ops.sum(x**2, 2)

  def diagonal(x):
    p = softmax_of(rows @ x, axis=-1)
    return -((rows**2).T @ (p * (1 - p))) - 1

  name = (
    f'softmax regression {num_inputs} x {num_classes}, N = {num_rows:,}, '
    f'batch {batch}'
  )
  shape = (num_inputs, num_classes)
  return Case(name, batch, shape, log_prob, diagonal, structured=False)


def horseshoe(num_inputs=25, num_rows=500, batch=16, typical=0.1):
  """A logistic regression whose coefficients have a horseshoe prior.

  The coordinates are the coefficients before they are scaled, the logarithms of
  their own scales, and that of the common scale. All scales are half-Cauchy,
  the common one around `typical`.
  """
  rng = np.random.default_rng(11)
  rows = features(rng, num_rows, num_inputs)
  outcome = rounded(rng.integers(0, 2, num_rows))
  p = num_inputs

  def log_prob(ops, x, scale):
    z, log_scales = x[..., :p], x[..., p:]
    coefficients = z * typical * ops.exp(log_scales[..., :p] + x[..., 2 * p :])
    logits = ops.matmul(coefficients, ops.array(rows.T) * scale)
    fit = ops.array(outcome) * logits - ops.softplus(logits)
    prior = log_scales - ops.softplus(2.0 * log_scales)
    return ops.sum(fit, 1) + ops.sum(prior, 1) - 0.5 * ops.sum(z**2, 1)

  def diagonal(x):
    z, log_scales = x[..., :p], x[..., p:]
    factor = typical * np.exp(log_scales[..., :p] + log_scales[..., p:])
    coefficients = z * factor
    logits = coefficients @ rows.T
    q = expit(logits)
    slope, weight = outcome - q, q * (1 - q)
    curvature = -(weight @ rows**2)
    by_scale = coefficients**2 * curvature + coefficients * (slope @ rows)
    common = np.sum(slope * logits - weight * logits**2, axis=-1)
    prior = expit(2 * log_scales)
    by_log_scale = np.concatenate([by_scale, common[..., None]], axis=-1)
    return np.concatenate(
      [factor**2 * curvature - 1, by_log_scale - 4 * prior * (1 - prior)],
      axis=-1,
    )

  n = 2 * p + 1
  name = f'horseshoe d = {n}, N = {num_rows:,}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal, structured=False)


def poisson_mixed(num_inputs=5, num_groups=50, num_rows=500, batch=16):
  """Counts with group effects, gathered for each row: see `_mixed`."""
  rng = np.random.default_rng(12)
  y = rounded(rng.poisson(1.0, num_rows))

  def normalizer(ops, predictor):
    return ops.exp(predictor)

  def derivatives(predictor):
    return np.exp(predictor), np.exp(predictor)

  return _mixed(
    'Poisson', (num_inputs, num_groups), batch, rng, y, normalizer, derivatives
  )


def binomial_mixed(num_inputs=5, num_groups=50, num_rows=500, batch=16):
  """Successes of some trials, with group effects: see `_mixed`."""
  rng = np.random.default_rng(13)
  trials = rng.integers(1, 20, num_rows)
  y, trials = rounded(rng.binomial(trials, 0.5)), rounded(trials)

  def normalizer(ops, predictor):
    return ops.array(trials) * ops.softplus(predictor)

  def derivatives(predictor):
    p = expit(predictor)
    return trials * p, trials * p * (1 - p)

  return _mixed(
    'binomial', (num_inputs, num_groups), batch, rng, y, normalizer, derivatives
  )


def _mixed(family, sizes, batch, rng, y, normalizer, derivatives):
  """A regression with a scaled normal effect of the group of each row.

  The coordinates are the coefficients, the log scale of the effects before it
  is moved to where it is small, and the effects before they are scaled.
  """
  num_inputs, num_groups = sizes
  num_rows = y.size
  rows = features(rng, num_rows, num_inputs)
  group = rng.integers(0, num_groups, num_rows)
  p, n = num_inputs, num_inputs + 1 + num_groups
  spread, center = 0.3, -1.0

  def log_prob(ops, x, scale):
    effect = x[..., p + 1 :] * ops.exp(spread * x[..., p : p + 1] + center)
    fixed = ops.matmul(x[..., :p], ops.array(rows.T) * scale)
    predictor = fixed + ops.take(effect, group)
    fit = ops.array(y) * predictor - normalizer(ops, predictor)
    return ops.sum(fit, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    factor = np.exp(spread * x[..., p : p + 1] + center)
    random = (x[..., p + 1 :] * factor)[..., group]
    mean, weight = derivatives(x[..., :p] @ rows.T + random)
    by_scale = np.sum((y - mean) * random - weight * random**2, axis=-1)
    return np.concatenate(
      [
        -(weight @ rows**2) - 1,
        spread**2 * by_scale[..., None] - 1,
        -(factor**2) * sums_by_group(weight, group, num_groups) - 1,
      ],
      axis=-1,
    )

  name = f'{family} mixed d = {n}, N = {num_rows:,}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal)


def negative_binomial(num_inputs=20, num_rows=500, batch=16):
  """Counts with more variance than Poisson's.

  The coordinates are the coefficients and the logarithm of the dispersion: the
  variance of a mean `m` is `m + m**2 / dispersion`.
  """
  rng = np.random.default_rng(14)
  rows = features(rng, num_rows, num_inputs)
  y = rounded(rng.negative_binomial(2.0, 0.5, num_rows))
  p, n = num_inputs, num_inputs + 1

  def log_prob(ops, x, scale):
    log_dispersion = x[..., p:]
    dispersion = ops.exp(log_dispersion)
    mean = ops.matmul(x[..., :p], ops.array(rows.T) * scale)
    odds = mean - log_dispersion
    total = ops.array(y) + dispersion
    fit = ops.array(y) * odds - total * ops.softplus(odds)
    ways = ops.lgamma(total) - ops.lgamma(dispersion)
    return ops.sum(fit + ways, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    log_dispersion = x[..., p:]
    r = np.exp(log_dispersion)
    odds = x[..., :p] @ rows.T - log_dispersion
    q = expit(odds)
    weight = (y + r) * q * (1 - q)
    by_log_dispersion = (
      r * (digamma(y + r) - digamma(r))
      + r**2 * (polygamma(1, y + r) - polygamma(1, r))
      + r * (2 * q - np.logaddexp(0, odds))
      - weight
    )
    return np.concatenate(
      [
        -(weight @ rows**2) - 1,
        by_log_dispersion.sum(axis=-1, keepdims=True) - 1,
      ],
      axis=-1,
    )

  name = f'negative binomial d = {n}, N = {num_rows:,}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal, structured=False)


def ordinal(num_inputs=20, num_levels=6, num_rows=500, batch=16):
  """The level of each row: a logistic variable between two cutpoints.

  The coordinates are the coefficients, the first cutpoint, and the logarithms
  of the gaps to the next ones.
  """
  rng = np.random.default_rng(15)
  rows = features(rng, num_rows, num_inputs)
  level = rng.integers(0, num_levels, num_rows)
  p, n = num_inputs, num_inputs + num_levels - 1
  # The outer levels have one cutpoint.
  has_upper = rounded(level < num_levels - 1)
  has_lower = rounded(level > 0)
  upper, lower = np.minimum(level, num_levels - 2), np.maximum(level - 1, 0)
  inner = rounded(np.bincount(level, minlength=num_levels)[1:-1])

  def by_cutpoint(values, index):
    return sums_by_group(values, index, num_levels - 1)

  def log_prob(ops, x, scale):
    first, gaps = x[..., p : p + 1], ops.exp(x[..., p + 1 :])
    cutpoints = ops.concat([first, first + ops.cumsum(gaps)])
    predictor = ops.matmul(x[..., :p], ops.array(rows.T) * scale)
    above = ops.softplus(predictor - ops.take(cutpoints, upper))
    below = ops.softplus(ops.take(cutpoints, lower) - predictor)
    outside = ops.array(has_upper) * above + ops.array(has_lower) * below
    between = ops.array(inner) * ops.log1p(-ops.exp(-gaps))
    return ops.sum(between, 1) - ops.sum(outside, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    first, gaps = x[..., p : p + 1], np.exp(x[..., p + 1 :])
    cutpoints = np.concatenate([first, first + np.cumsum(gaps, -1)], axis=-1)
    predictor = x[..., :p] @ rows.T
    above = expit(predictor - cutpoints[..., upper])
    below = expit(cutpoints[..., lower] - predictor)
    above, below = has_upper * above, has_lower * below
    above_weight, below_weight = above * (1 - above), below * (1 - below)
    slope = by_cutpoint(above, upper) - by_cutpoint(below, lower)
    weight = by_cutpoint(above_weight, upper) + by_cutpoint(below_weight, lower)
    # A gap moves all cutpoints beyond it.
    slope, weight = (
      np.cumsum(s[..., ::-1], axis=-1)[..., ::-1] for s in (slope, weight)
    )
    grown = np.expm1(gaps)
    between = inner * gaps * (grown - gaps * np.exp(gaps)) / grown**2
    return np.concatenate(
      [
        -((above_weight + below_weight) @ rows**2) - 1,
        -weight[..., :1] - 1,
        slope[..., 1:] * gaps - weight[..., 1:] * gaps**2 + between - 1,
      ],
      axis=-1,
    )

  name = f'ordinal d = {n}, N = {num_rows:,}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal, structured=False)


def cox(num_inputs=20, num_rows=500, batch=16):
  """The partial likelihood of proportional hazards.

  The rows are sorted by time, the last one first: at an event, all rows before
  it are at risk.
  """
  rng = np.random.default_rng(16)
  rows = features(rng, num_rows, num_inputs)
  event = rounded(rng.integers(0, 2, num_rows))

  def log_prob(ops, x, scale):
    predictor = ops.matmul(x, ops.array(rows.T) * scale)
    at_risk = ops.log(ops.cumsum(ops.exp(predictor)))
    fit = ops.array(event) * (predictor - at_risk)
    return ops.sum(fit, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    hazard = np.exp(x @ rows.T)[..., None]
    at_risk = np.cumsum(hazard, axis=-2)
    mean = np.cumsum(hazard * rows, axis=-2) / at_risk
    square = np.cumsum(hazard * rows**2, axis=-2) / at_risk
    return -np.einsum('r,...rj->...j', event, square - mean**2) - 1

  name = f'Cox d = {num_inputs}, N = {num_rows:,}, batch {batch}'
  return Case(name, batch, (num_inputs,), log_prob, diagonal, structured=False)
