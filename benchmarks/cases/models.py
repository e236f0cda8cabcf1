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
"""Networks and models with latent variables, as functions of all of them."""

import itertools

import numpy as np
from scipy.special import expit
from scipy.special import softmax as softmax_of

from benchmarks.cases.case import Case
from benchmarks.cases.data import rounded, sums_by_group

__all__ = [
  'classifier_weights',
  'deep_network_weights',
  'item_response_2pl',
  'latent_gp',
  'matrix_factorization',
  'mixture',
]


def classifier_weights(
  num_inputs=8, num_hidden=16, num_rows=128, batch=16, num_outputs=10
):
  """The class of each row by a network of one hidden layer: see `_network`."""
  return _network((num_inputs, num_hidden, num_outputs), num_rows, batch)


def deep_network_weights(
  num_inputs=8,
  num_hidden1=16,
  num_hidden2=16,
  num_rows=128,
  batch=16,
  num_outputs=1,
):
  """A network of two hidden layers: see `_network`."""
  sizes = (num_inputs, num_hidden1, num_hidden2, num_outputs)
  return _network(sizes, num_rows, batch)


def _network(sizes, num_rows, batch):
  """The likelihood of a network, as a function of its weights.

  The coordinates are, layer by layer, the weights by what comes in and what
  goes out, and the biases. One output is the mean of a normal variable; several
  are the logits of classes.
  """
  rng = np.random.default_rng(17)
  inputs = rounded(rng.standard_normal((num_rows, sizes[0])))
  if sizes[-1] > 1:
    target = np.eye(sizes[-1])[rng.integers(0, sizes[-1], num_rows)]
  else:
    target = rounded(rng.standard_normal((num_rows, 1)))
  n = sum((k + 1) * h for k, h in itertools.pairwise(sizes))

  def log_prob(ops, x, scale):
    del scale
    hidden = ops.array(inputs)
    *layers, (weights, biases) = _layers(x, sizes, ops.unflatten)
    for w, b in layers:
      hidden = ops.tanh(ops.matmul(hidden, w) + b)
    output = ops.matmul(hidden, weights) + biases
    if sizes[-1] > 1:
      fit = ops.sum(ops.array(target) * output, 2)
      fit = fit - ops.sum(ops.logsumexp(output), 1)
    else:
      fit = -0.5 * ops.sum((ops.array(target) - output) ** 2, 2)
    return fit - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    layers = list(
      _layers(x, sizes, lambda p, shape: p.reshape(*x.shape[:-1], *shape))
    )
    # What comes into each layer, in front of the outputs.
    values = [np.broadcast_to(inputs, (*x.shape[:-1], *inputs.shape))]
    for w, b in layers:
      values.append(np.tanh(values[-1] @ w + b))
    output = values[-2] @ w + b
    if sizes[-1] > 1:
      p = softmax_of(output, axis=-1)
      slope = target - p
      curvature = p[..., :, None] * (p[..., None, :] - np.eye(sizes[-1]))
    else:
      slope, curvature = target - output, -np.ones((*output.shape, 1))
    found = []
    # `slope` and `curvature` are the gradient and the Hessian of each row, by
    # what a layer adds up, before its tanh.
    for (w, _), value in zip(layers[::-1], values[-2::-1]):
      own = np.diagonal(curvature, axis1=-2, axis2=-1)
      by_weight = np.swapaxes(value**2, -1, -2) @ own
      found += [own.sum(axis=-2), by_weight.reshape(*x.shape[:-1], -1)]
      slope = slope @ np.swapaxes(w, -1, -2)
      w = w[..., None, :, :]
      curvature = w @ curvature @ np.swapaxes(w, -1, -2)
      change = 1 - value**2
      curvature *= change[..., :, None] * change[..., None, :]
      slope = change * slope
      bend = -2 * value * slope
      curvature += bend[..., None] * np.eye(value.shape[-1])
    return np.concatenate(found[::-1], axis=-1) - 1

  shape = ' x '.join(str(size) for size in sizes)
  name = f'weights of a network {shape}, N = {num_rows:,}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal, structured=False)


def _layers(x, sizes, unflatten):
  """Weights and biases of each layer."""
  end = 0
  for k, h in itertools.pairwise(sizes):
    begin, end = end, end + k * h
    weights = unflatten(x[..., begin:end], (k, h))
    begin, end = end, end + h
    yield weights, x[..., None, begin:end]


def mixture(num_components=5, num_rows=500, batch=16, dimension=2):
  """Rows from a mixture of normal distributions.

  The coordinates are the logits of the components, their means, and the
  logarithms of their scales, by component and dimension.
  """
  rng = np.random.default_rng(18)
  # An axis for the components.
  y = rounded(rng.standard_normal((num_rows, 1, dimension)))
  k, d = num_components, dimension
  n = k + 2 * k * d

  def log_prob(ops, x, scale):
    del scale
    logits = x[..., None, :k]
    means = ops.unflatten(x[..., None, k : k + k * d], (k, d))
    log_scales = ops.unflatten(x[..., None, k + k * d :], (k, d))
    z = (ops.array(y) - means) * ops.exp(-log_scales)
    density = logits - ops.sum(0.5 * z**2 + log_scales, 1)
    fit = ops.logsumexp(density) - ops.logsumexp(logits)
    return ops.sum(fit, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    means, log_scales = (
      part.reshape(*x.shape[:-1], 1, k, d)
      for part in (x[..., k : k + k * d], x[..., k + k * d :])
    )
    precision = np.exp(-2 * log_scales)
    squares = (y - means) ** 2 * precision
    density = x[..., None, :k] - np.sum(0.5 * squares + log_scales, axis=-1)
    share, prior = softmax_of(density, axis=-1), softmax_of(x[..., :k], axis=-1)
    by_logit = np.sum(share * (1 - share), axis=-2)
    share = share[..., None]
    doubt = share * (1 - share)
    by_mean = (doubt * squares - share) * precision
    by_log_scale = doubt * (squares - 1) ** 2 - 2 * share * squares
    return (
      np.concatenate(
        [
          by_logit - num_rows * prior * (1 - prior),
          *(
            np.sum(part, axis=-3).reshape(*x.shape[:-1], k * d)
            for part in (by_mean, by_log_scale)
          ),
        ],
        axis=-1,
      )
      - 1
    )

  name = f'mixture K = {k}, d = {d}, N = {num_rows:,}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal, structured=False)


def latent_gp(num_points=100, batch=16, length=0.2):
  """Outcomes of a Gaussian process on a line, as a function of white noise."""
  rng = np.random.default_rng(19)
  place = np.sort(rng.uniform(size=num_points))
  distance = (place[:, None] - place) / length
  covariance = np.exp(-0.5 * distance**2) + 1e-4 * np.eye(num_points)
  factor = rounded(np.linalg.cholesky(covariance))
  outcome = rounded(rng.integers(0, 2, num_points))

  def log_prob(ops, x, scale):
    logits = ops.matmul(x, ops.array(factor.T) * scale)
    fit = ops.array(outcome) * logits - ops.softplus(logits)
    return ops.sum(fit, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    p = expit(x @ factor.T)
    return -((p * (1 - p)) @ factor**2) - 1

  name = f'latent Gaussian process n = {num_points:,}, batch {batch}'
  return Case(name, batch, (num_points,), log_prob, diagonal, structured=False)


def item_response_2pl(
  num_students=400, num_items=100, num_answers=10_000, batch=8
):
  """The two-parameter model of tests, an answer for each of some pairs.

  The coordinates are the abilities of the students, the difficulties of the
  items, and the logarithms of their discriminations before they are scaled.
  """
  rng = np.random.default_rng(20)
  student = rng.integers(0, num_students, num_answers)
  item = rng.integers(0, num_items, num_answers)
  right = rounded(rng.integers(0, 2, num_answers))
  n = num_students + 2 * num_items
  spread = 0.3

  def log_prob(ops, x, scale):
    del scale
    ability = x[..., :num_students]
    difficulty = x[..., num_students : num_students + num_items]
    discrimination = ops.exp(spread * x[..., num_students + num_items :])
    distance = ops.take(ability, student) - ops.take(difficulty, item)
    logits = ops.take(discrimination, item) * distance
    fit = ops.array(right) * logits - ops.softplus(logits)
    return ops.sum(fit, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    ability = x[..., :num_students]
    difficulty = x[..., num_students : num_students + num_items]
    steepness = np.exp(spread * x[..., num_students + num_items :])[..., item]
    logits = steepness * (ability[..., student] - difficulty[..., item])
    p = expit(logits)
    weight = p * (1 - p)
    by_place = -(steepness**2) * weight
    by_log = spread**2 * ((right - p) * logits - weight * logits**2)
    return (
      np.concatenate(
        [
          sums_by_group(by_place, student, num_students),
          sums_by_group(by_place, item, num_items),
          sums_by_group(by_log, item, num_items),
        ],
        axis=-1,
      )
      - 1
    )

  name = f'2PL item response n = {n}, {num_answers:,} answers, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal)


def matrix_factorization(
  num_users=200, num_items=100, rank=4, num_ratings=5000, batch=8, noise=0.5
):
  """Ratings of some pairs: products of factors of users and items.

  The coordinates are the factors by rank and user, then by rank and item.
  """
  rng = np.random.default_rng(21)
  user = rng.integers(0, num_users, num_ratings)
  item = rng.integers(0, num_items, num_ratings)
  y = rounded(rng.standard_normal(num_ratings))
  split, n = rank * num_users, rank * (num_users + num_items)

  def log_prob(ops, x, scale):
    del scale
    of_user = ops.unflatten(x[..., :split], (rank, num_users))
    of_item = ops.unflatten(x[..., split:], (rank, num_items))
    product = ops.take(of_user, user) * ops.take(of_item, item)
    z = (ops.array(y) - ops.sum_axis(product, -2)) / noise
    return -0.5 * ops.sum(z**2, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    of_user = x[..., :split].reshape(*x.shape[:-1], rank, num_users)
    of_item = x[..., split:].reshape(*x.shape[:-1], rank, num_items)
    by_user = sums_by_group(of_item[..., item] ** 2, user, num_users)
    by_item = sums_by_group(of_user[..., user] ** 2, item, num_items)
    squares = [part.reshape(*x.shape[:-1], -1) for part in (by_user, by_item)]
    return -np.concatenate(squares, axis=-1) / noise**2 - 1

  name = (
    f'matrix factorization {num_users} x {num_items} of rank {rank}, '
    f'{num_ratings:,} ratings, batch {batch}'
  )
  return Case(name, batch, (n,), log_prob, diagonal)
