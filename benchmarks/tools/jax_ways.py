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
"""Diagonals by JAX, and by what is built on it: asdex and folx."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tools import STEP, Skipped

__all__ = [
  'compressed',
  'dense',
  'flat_function',
  'gradient',
  'jet',
  'jvp',
  'jvp_one_by_one',
  'laplacian',
  'reverse',
]


class JaxOps:
  """See `numpy_ops.NumpyOps`."""

  exp = staticmethod(jnp.exp)
  log = staticmethod(jnp.log)
  log1p = staticmethod(jnp.log1p)
  tanh = staticmethod(jnp.tanh)
  softplus = staticmethod(jax.nn.softplus)
  lgamma = staticmethod(jax.scipy.special.gammaln)
  stack = staticmethod(jnp.stack)
  matmul = staticmethod(jnp.matmul)
  sum_axis = staticmethod(jnp.sum)

  @staticmethod
  def array(values):
    return jnp.asarray(values, jnp.float32)

  @staticmethod
  def sum(x, num_axes):
    return jnp.sum(x, axis=tuple(range(-num_axes, 0)))

  @staticmethod
  def logsumexp(x):
    return jax.nn.logsumexp(x, axis=-1)

  @staticmethod
  def cumsum(x):
    return jnp.cumsum(x, axis=-1)

  @staticmethod
  def unflatten(x, shape):
    return jnp.reshape(x, (*x.shape[:-1], *shape))

  @staticmethod
  def concat(parts):
    return jnp.concatenate(parts, axis=-1)

  @staticmethod
  def take(x, indices):
    return jnp.take(x, indices, axis=-1)

  @staticmethod
  def gradient(fn, x):
    return jax.grad(lambda x: jnp.sum(fn(x)))(x)

  @staticmethod
  def roll(x, axis, shift):
    return jnp.roll(x, shift, axis)


def gradient(case):
  """One gradient, or one product with the Jacobian of a field."""

  def derivative(fn, x):
    if case.kind == 'hessian':
      return jax.grad(fn)(x)
    return jax.vjp(fn, x)[1](x)[0]

  return _loop(case, derivative)


def dense(case):
  """`hessian`, or `jacfwd`, of one sample; its diagonal; `vmap` of that."""
  make = jax.hessian if case.kind == 'hessian' else jax.jacfwd
  return _loop(case, lambda fn, x: jnp.diagonal(make(fn)(x)))


def reverse(case):
  """`jacrev`, of the gradient or of the field."""
  return _loop(
    case, lambda fn, x: jnp.diagonal(jax.jacrev(_field(case, fn))(x))
  )


def jvp(case):
  """`vmap(jvp)` over the basis vectors, one entry of each."""
  return _loop(
    case,
    lambda fn, x: jax.vmap(_entry(_field(case, fn), x))(jnp.arange(x.size)),
  )


def jvp_one_by_one(case):
  """`lax.map(jvp)` over the basis vectors, one entry of each."""
  return _loop(
    case,
    lambda fn, x: jax.lax.map(_entry(_field(case, fn), x), jnp.arange(x.size)),
  )


def jet(case):
  """Second-order Taylor mode along each basis vector."""
  if case.kind == 'jacobian':
    raise Skipped('first derivatives need no Taylor mode')
  from jax.experimental.jet import jet as taylor

  def derivative(fn, x):
    def entry(seed):
      return taylor(fn, (x,), ((seed, jnp.zeros_like(seed)),))[1][1]

    return jax.vmap(entry)(jnp.eye(x.size, dtype=x.dtype))

  return _loop(case, derivative)


def compressed(case):
  """asdex: a Hessian or Jacobian from its colors, then its diagonal."""
  import asdex

  color, make = {
    'hessian': (asdex.hessian_coloring, asdex.hessian_from_coloring),
    'jacobian': (asdex.jacobian_coloring, asdex.jacobian_from_coloring),
  }[case.kind]
  n = case.num_coordinates
  coloring = color(flat_function(case, 1.0), jnp.zeros([n]))
  rows, columns = (
    np.asarray(a) for a in (coloring.sparsity.rows, coloring.sparsity.cols)
  )
  (entries,) = np.nonzero(rows == columns)

  def derivative(fn, x):
    data = make(fn, coloring)(x).data[entries]
    if entries.size == n:
      return data
    return jnp.zeros([n]).at[rows[entries]].set(data)

  run = _loop(case, derivative)
  run.about = {'passes': int(coloring.num_colors), 'mode': coloring.mode}
  return run


def laplacian(case):
  """folx: the trace of the Hessian alone."""
  if case.kind == 'jacobian':
    raise Skipped('it has the Laplacian only')
  import folx

  return _loop(case, lambda fn, x: folx.forward_laplacian(fn)(x).laplacian)


def _field(case, fn):
  return jax.grad(fn) if case.kind == 'hessian' else fn


def _entry(field, x):
  indices = jnp.arange(x.size)

  def entry(i):
    # Compared in place: XLA then need not build the identity matrix.
    seed = (indices == i).astype(x.dtype)
    return jax.jvp(field, (x,), (seed,))[1][i]

  return entry


def flat_function(case, scale):
  """The function of a case on one sample, laid flat."""

  def fn(flat):
    y = case.fn(JaxOps, jnp.reshape(flat, case.event_shape), scale)
    return jnp.reshape(y, [-1]) if case.kind == 'jacobian' else y

  return fn


def _loop(case, derivative):
  """`run(x, count)` for a derivative of one sample, laid flat."""

  def diagonal(x, scale):
    return derivative(flat_function(case, scale), x)

  batched = jax.vmap(diagonal, (0, None))

  @jax.jit
  def loop(x, count):
    def body(_, carry):
      y, _ = carry
      flat = jnp.reshape(y, [case.batch, -1])
      result = batched(flat, 1.0 + STEP * flat[0, 0])
      # A trace is of one number per sample.
      per_sample = jnp.reshape(result, [case.batch, -1])
      change = jnp.broadcast_to(per_sample, flat.shape)
      return x + STEP * jnp.reshape(change, x.shape), per_sample

    shape = jax.eval_shape(batched, jnp.reshape(x, [case.batch, -1]), 1.0).shape
    start = jnp.zeros([case.batch, int(np.prod(shape[1:]))], x.dtype)
    return jax.lax.fori_loop(0, count, body, (x, start))[-1]

  def run(x, count):
    result = np.asarray(loop(jnp.asarray(x), count))
    return result.reshape(x.shape) if result.size == x.size else result[:, 0]

  return run
