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
"""Log densities in which few coordinates meet."""

import numpy as np

from benchmarks.cases.case import Case

__all__ = [
  'arrowhead',
  'chain',
  'elementwise',
  'hierarchical',
  'item_response',
  'phi4',
  'state_space',
  'stochastic_volatility',
]


def elementwise(n=1_000_000, batch=1):
  """Independent coordinates of a heavy tail: diagonal."""

  def log_prob(ops, x, scale):
    del scale
    return -ops.sum(ops.log1p(x**2), 1)

  def diagonal(x):
    return -2 * (1 - x**2) / (1 + x**2) ** 2

  name = f'elementwise n = {n:,}' + (f', batch {batch}' if batch > 1 else '')
  return Case(name, batch, (n,), log_prob, diagonal)


def arrowhead(n=1000, batch=16):
  """A funnel: the first coordinate is the log scale of all others."""

  def log_prob(ops, x, scale):
    del scale
    log_scale = x[..., 0]
    squares = ops.sum(x[..., 1:] ** 2, 1)
    prior = (n - 1) * log_scale + log_scale**2 / 18
    return -0.5 * squares * ops.exp(-2 * log_scale) - prior

  def diagonal(x):
    diag = np.empty_like(x)
    diag[..., 1:] = -np.exp(-2 * x[..., :1])
    squares = np.sum(x[..., 1:] ** 2, axis=-1)
    diag[..., 0] = -2 * squares * np.exp(-2 * x[..., 0]) - 1 / 9
    return diag

  name = f'arrowhead n = {n:,}, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal)


def chain(n=100_000, batch=1):
  """A random walk with steps of a heavy tail: tridiagonal."""

  def log_prob(ops, x, scale):
    del scale
    step = x[..., 1:] - 0.9 * x[..., :-1]
    return -ops.sum(ops.log1p(step**2), 1) - 0.5 * x[..., 0] ** 2

  def diagonal(x):
    step = x[..., 1:] - 0.9 * x[..., :-1]
    curvature = -2 * (1 - step**2) / (1 + step**2) ** 2
    diag = np.zeros_like(x)
    diag[..., 0] = -1
    diag[..., 1:] += curvature
    diag[..., :-1] += 0.9**2 * curvature
    return diag

  name = f'chain n = {n:,}' + (f', batch {batch}' if batch > 1 else '')
  return Case(name, batch, (n,), log_prob, diagonal)


def hierarchical(num_groups=200, num_observations=1000, batch=32):
  """A normal model with group effects, gathered for each observation.

  The coordinates are the mean and the log scale of the effects, the log scale
  of the noise, and the effects.
  """
  rng = np.random.default_rng(1)
  group = rng.integers(0, num_groups, num_observations)
  y = rng.standard_normal(num_observations).astype(np.float32)

  def log_prob(ops, x, scale):
    del scale
    mean, log_scale, log_noise = (x[..., i : i + 1] for i in range(3))
    effect = x[..., 3:]
    z = (effect - mean) * ops.exp(-log_scale)
    residual = (ops.array(y) - ops.take(effect, group)) * ops.exp(-log_noise)
    return (
      -0.5 * ops.sum(z**2, 1)
      - 0.5 * ops.sum(residual**2, 1)
      - num_groups * x[..., 1]
      - num_observations * x[..., 2]
      - 0.5 * ops.sum(x[..., :3] ** 2, 1)
    )

  def diagonal(x):
    mean, log_scale, log_noise = (x[..., i : i + 1] for i in range(3))
    effect = x[..., 3:]
    precision, weight = np.exp(-2 * log_scale), np.exp(-2 * log_noise)
    count = np.bincount(group, minlength=num_groups)
    diag = np.empty_like(x)
    diag[..., :1] = -num_groups * precision - 1
    diag[..., 1] = -2 * np.sum((effect - mean) ** 2 * precision, axis=-1) - 1
    squares = (y - effect[..., group]) ** 2 * weight
    diag[..., 2] = -2 * np.sum(squares, axis=-1) - 1
    diag[..., 3:] = -precision - count * weight
    return diag

  name = f'hierarchical d = {num_groups + 3}, batch {batch}'
  return Case(name, batch, (num_groups + 3,), log_prob, diagonal)


def phi4(size=64, batch=4, mass_squared=-0.5, coupling=0.3):
  """The scalar field on a periodic square lattice."""

  def log_prob(ops, x, scale):
    del scale
    kinetic = sum((ops.roll(x, axis, 1) - x) ** 2 for axis in (-1, -2))
    potential = 0.5 * mass_squared * x**2 + coupling * x**4
    return -ops.sum(0.5 * kinetic + potential, 2)

  def diagonal(x):
    return -(4 + mass_squared + 12 * coupling * x**2)

  name = f'phi^4 {size} x {size}, batch {batch}'
  return Case(name, batch, (size, size), log_prob, diagonal)


def stochastic_volatility(num_steps=5000, batch=4, phi=0.95, sigma=0.3):
  """Log variances that follow an AR(1), and returns of that variance."""
  rng = np.random.default_rng(2)
  squares = (rng.standard_normal(num_steps) ** 2).astype(np.float32)

  def log_prob(ops, x, scale):
    del scale
    step = (x[..., 1:] - phi * x[..., :-1]) / sigma
    return (
      -0.5 * ops.sum(x + ops.array(squares) * ops.exp(-x), 1)
      - 0.5 * ops.sum(step**2, 1)
      - 0.5 * (1 - phi**2) / sigma**2 * x[..., 0] ** 2
    )

  def diagonal(x):
    diag = -0.5 * squares * np.exp(-x)
    diag[..., 0] -= (1 - phi**2) / sigma**2
    diag[..., 1:] -= 1 / sigma**2
    diag[..., :-1] -= phi**2 / sigma**2
    return diag

  name = f'stochastic volatility T = {num_steps:,}, batch {batch}'
  return Case(name, batch, (num_steps,), log_prob, diagonal)


def state_space(num_steps=200, dimension=4, batch=8):
  """The states of a linear Gaussian model, given noisy sums of them."""
  rng = np.random.default_rng(8)
  d = dimension
  angle = rng.standard_normal((d, d))
  transition = 0.9 * np.linalg.qr(angle)[0]
  observation = rng.standard_normal((d, 2)) / np.sqrt(d)
  transition, observation = (
    m.astype(np.float32) for m in (transition, observation)
  )
  y = rng.standard_normal((num_steps, 2)).astype(np.float32)

  def log_prob(ops, x, scale):
    moved = ops.matmul(x, ops.array(transition) * scale)
    step = x[..., 1:, :] - moved[..., :-1, :]
    residual = ops.array(y) - ops.matmul(x, ops.array(observation) * scale)
    return (
      -0.5 * ops.sum(step**2, 2)
      - 0.5 * ops.sum(residual**2, 2)
      - 0.5 * ops.sum(x[..., 0, :] ** 2, 1)
    )

  def diagonal(x):
    diag = np.full(x.shape, -1.0)
    diag[..., :-1, :] -= np.sum(transition.astype(np.float64) ** 2, axis=1)
    diag -= np.sum(observation.astype(np.float64) ** 2, axis=1)
    return diag

  name = f'state space T = {num_steps}, d = {d}, batch {batch}'
  return Case(name, batch, (num_steps, d), log_prob, diagonal)


def item_response(num_students=400, num_items=100, num_answers=10_000, batch=8):
  """The one-parameter model of tests, an answer for each of some pairs.

  The coordinates are the mean ability, the abilities of the students, and the
  difficulties of the items.
  """
  rng = np.random.default_rng(9)
  student = rng.integers(0, num_students, num_answers)
  item = rng.integers(0, num_items, num_answers)
  right = rng.integers(0, 2, num_answers).astype(np.float32)
  n = 1 + num_students + num_items

  def log_prob(ops, x, scale):
    del scale
    ability = x[..., 1 : 1 + num_students]
    difficulty = x[..., 1 + num_students :]
    logits = (
      x[..., :1] + ops.take(ability, student) - ops.take(difficulty, item)
    )
    fit = ops.array(right) * logits - ops.softplus(logits)
    return ops.sum(fit, 1) - 0.5 * ops.sum(x**2, 1)

  def diagonal(x):
    ability, difficulty = x[..., 1 : 1 + num_students], x[..., -num_items:]
    logits = x[..., :1] + ability[..., student] - difficulty[..., item]
    p = 1 / (1 + np.exp(-logits))
    weight = p * (1 - p)
    diag = np.empty_like(x)
    diag[..., 0] = -weight.sum(axis=-1)
    for sample in np.ndindex(x.shape[:-1]):
      w = weight[sample]
      diag[(*sample, slice(1, 1 + num_students))] = -np.bincount(
        student, w, num_students
      )
      diag[(*sample, slice(1 + num_students, n))] = -np.bincount(
        item, w, num_items
      )
    return diag - 1

  name = f'item response n = {n}, {num_answers:,} answers, batch {batch}'
  return Case(name, batch, (n,), log_prob, diagonal)
