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
"""Functions from R^n to R^n, whose Jacobian has the wanted diagonal."""

import numpy as np

from benchmarks.cases.case import Case

__all__ = ['brusselator', 'forces', 'mlp_field', 'score', 'softmax']


def brusselator(size=32, batch=4, a=1.0, b=3.0, diffusion=0.2):
  """The right-hand side of a reaction and diffusion on a periodic square."""

  def laplacian(roll, z):
    around = sum(roll(z, axis, shift) for axis in (-1, -2) for shift in (1, -1))
    return around - 4 * z

  def field(ops, x, scale):
    del scale
    u, v = x[..., 0, :, :], x[..., 1, :, :]
    uuv = u**2 * v
    du = a + uuv - (b + 1) * u + diffusion * laplacian(ops.roll, u)
    dv = b * u - uuv + 2 * diffusion * laplacian(ops.roll, v)
    return ops.stack([du, dv], -3)

  def diagonal(x):
    u, v = x[..., 0, :, :], x[..., 1, :, :]
    by_u = 2 * u * v - (b + 1) - 4 * diffusion
    by_v = -(u**2) - 8 * diffusion
    return np.stack([by_u, by_v], axis=-3)

  name = f'Brusselator 2 x {size} x {size}, batch {batch}'
  shape = (2, size, size)
  return Case(name, batch, shape, field, diagonal, kind='jacobian')


def forces(particles=40, batch=16):
  """Between all pairs of particles: the field of an equivariant flow."""

  def field(ops, x, scale):
    del scale
    d = x[..., :, None, :] - x[..., None, :, :]
    near = ops.exp(-ops.sum_axis(d**2, -1))
    return ops.sum_axis(near[..., None] * d, -2)

  def diagonal(x):
    d = x[..., :, None, :] - x[..., None, :, :]
    near = np.exp(-np.sum(d**2, axis=-1, keepdims=True))
    # That of a particle by itself is zero wherever it is.
    near *= 1.0 - np.eye(particles)[..., None]
    return np.sum(near * (1.0 - 2.0 * d**2), axis=-2)

  name = f'forces of {particles} particles, batch {batch}'
  shape = (particles, 3)
  return Case(
    name, batch, shape, field, diagonal, kind='jacobian', structured=False
  )


def mlp_field(n=64, num_hidden=64, batch=64):
  """A network of one hidden layer, the field of a continuous flow."""
  rng = np.random.default_rng(7)
  inner = rng.standard_normal((n, num_hidden)).astype(np.float32)
  outer = rng.standard_normal((num_hidden, n)).astype(np.float32)
  inner /= np.sqrt(n).astype(np.float32)
  outer /= np.sqrt(num_hidden).astype(np.float32)

  def field(ops, x, scale):
    del scale
    hidden = ops.tanh(ops.matmul(x, ops.array(inner)))
    return ops.matmul(hidden, ops.array(outer))

  def diagonal(x):
    slope = 1 - np.tanh(x @ inner) ** 2
    return slope @ (inner * outer.T).T

  name = f'tanh network {n} -> {num_hidden} -> {n}, batch {batch}'
  return Case(
    name, batch, (n,), field, diagonal, kind='jacobian', structured=False
  )


def score(particles=32, batch=16):
  """The gradient of an energy of pairs of particles."""

  def field(ops, x, scale):
    del scale

    def energy(x):
      d = x[..., :, None] - x[..., None, :]
      return 0.5 * ops.sum(ops.exp(-ops.sum_axis(d**2, -3)), 2)

    return ops.gradient(energy, x)

  def diagonal(x):
    d = x[..., :, None] - x[..., None, :]
    near = np.exp(-np.sum(d**2, axis=-3, keepdims=True))
    # That of a particle by itself is no part of the energy.
    near *= 1.0 - np.eye(particles)
    return np.sum(near * (4.0 * d**2 - 2.0), axis=-1)

  name = f'score of {particles} particles, batch {batch}'
  shape = (3, particles)
  return Case(
    name, batch, shape, field, diagonal, kind='jacobian', structured=False
  )


def softmax(n=200, batch=64):
  """Logits to probabilities."""

  def field(ops, x, scale):
    del scale
    return ops.exp(x - ops.logsumexp(x)[..., None])

  def diagonal(x):
    p = np.exp(x - x.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return p * (1 - p)

  name = f'softmax n = {n}, batch {batch}'
  return Case(
    name, batch, (n,), field, diagonal, kind='jacobian', structured=False
  )
