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
"""Log densities with a known diagonal, for TensorFlow and JAX alike."""

import dataclasses
from collections.abc import Callable

import numpy as np

__all__ = ['Case', 'chain', 'hierarchical', 'phi4', 'stochastic_volatility']


@dataclasses.dataclass(frozen=True)
class Case:
  """One log density, the batch it runs on, and its diagonal in closed form.

  Attributes:
    name: Python str.
    batch: Python int, the number of samples.
    event_shape: Tuple of int.
    log_prob: Callable `(ops, x)`: the log density of `x`, of shape
      `batch + event_shape` or `event_shape`, by the functions of `ops`:
      `sum(x, num_axes)` over the last axes, `exp`, `log1p`, `take` and `roll`
      along one of the last axes.
    diagonal: Callable, a float64 array of shape `[batch] + event_shape` to the
      second derivatives by each coordinate.
  """

  name: str
  batch: int
  event_shape: tuple
  log_prob: Callable
  diagonal: Callable

  @property
  def num_coordinates(self):
    return int(np.prod(self.event_shape))

  def start(self):
    """The same float32 point for every contestant."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((self.batch, *self.event_shape))
    return x.astype(np.float32)


def chain(n):
  """A random walk with steps of a heavy tail: tridiagonal."""

  def log_prob(ops, x):
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

  return Case(f'chain n = {n:,}', 1, (n,), log_prob, diagonal)


def hierarchical(num_groups=200, num_observations=1000, batch=32):
  """A normal model with group effects, gathered for each observation.

  The coordinates are the mean and the log scale of the effects, the log scale
  of the noise, and the effects.
  """
  rng = np.random.default_rng(1)
  group = rng.integers(0, num_groups, num_observations)
  y = rng.standard_normal(num_observations).astype(np.float32)

  def log_prob(ops, x):
    mean, log_scale, log_noise = (x[..., i : i + 1] for i in range(3))
    effect = x[..., 3:]
    z = (effect - mean) * ops.exp(-log_scale)
    residual = (y - ops.take(effect, group)) * ops.exp(-log_noise)
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

  def log_prob(ops, x):
    kinetic = sum((ops.roll(x, axis) - x) ** 2 for axis in (-1, -2))
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

  def log_prob(ops, x):
    step = (x[..., 1:] - phi * x[..., :-1]) / sigma
    return (
      -0.5 * ops.sum(x + squares * ops.exp(-x), 1)
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
