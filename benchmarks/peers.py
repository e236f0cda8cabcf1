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
"""Contestants: each computes the diagonal Hessian of a case in its own way.

A contestant is a function `(case) -> run`, and `run(x, count)` evaluates
`count` times inside one compiled loop and returns the last result as an array.
Each evaluation starts from the result of the one before, so that none can be
left out, moved out of the loop, or computed for a part of the coordinates only.

Every framework is imported by its contestants alone: a process that runs one
does not pay for the others, and a missing one is reported as missing.
"""

import functools
import types

import numpy as np

__all__ = ['GRADIENT', 'PEERS', 'TFP_DIAG']

# What an evaluation changes of the next one's input.
STEP = 1e-6


def _tensorflow_loop(derivative, jit_compile=True):
  import tensorflow as tf

  @tf.function(jit_compile=jit_compile, autograph=False)
  def loop(x, count):
    def body(k, y, _):
      result = derivative(y)
      return k + 1, x + STEP * result, result

    return tf.while_loop(
      lambda k, *_: k < count, body, (0, x, tf.zeros_like(x))
    )[-1]

  def run(x, count):
    return loop(tf.constant(x), tf.constant(count)).numpy()

  return run


def _tensorflow_log_prob(case):
  import tensorflow as tf

  ops = types.SimpleNamespace(
    sum=lambda x, n: tf.reduce_sum(x, axis=list(range(-n, 0))),
    exp=tf.exp,
    log1p=tf.math.log1p,
    take=lambda x, i: tf.gather(x, i, axis=-1),
    roll=lambda x, axis: tf.roll(x, 1, axis),
  )
  return functools.partial(case.log_prob, ops)


def _tensorflow_gradient(case):
  import tensorflow as tf

  log_prob = _tensorflow_log_prob(case)

  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = log_prob(x)
    return tape.gradient(value, x)

  return gradient


def gradient_of_tensorflow(case):
  """One gradient: the unit in which the others are measured."""
  return _tensorflow_loop(_tensorflow_gradient(case))


def tfp_diag_plan(case):
  """The diagonal alone, with a plan made beforehand."""
  return _tfp_diag(case, lambda value, gradient, diag: diag)


def tfp_diag_all(case):
  """Value, gradient and diagonal, with a plan made beforehand."""

  def all_three(value, gradient, diag):
    import tensorflow as tf

    shape = value.shape.as_list() + [1] * len(case.event_shape)
    # All that there is of the first two, at a weight that keeps them in the
    # loop and out of the check.
    return diag + 1e-30 * (gradient + tf.reshape(value, shape))

  return _tfp_diag(case, all_three)


def tfp_diag_no_plan(case):
  """The diagonal alone, structure found while the graph is traced."""
  import tfp_diag

  log_prob = _tensorflow_log_prob(case)
  return _tensorflow_loop(lambda x: tfp_diag.diag_hessian(log_prob, x)[2])


def _tfp_diag(case, select):
  import tensorflow as tf

  import tfp_diag

  log_prob = _tensorflow_log_prob(case)
  x = tf.constant(case.start())
  plan = tfp_diag.plan_diag_hessian(log_prob, x, [case.batch])
  return _tensorflow_loop(
    lambda x: select(*tfp_diag.diag_hessian(log_prob, x, plan=plan))
  )


def tfp(case, jit_compile):
  """`tfp.math.diag_jacobian` of the gradient."""
  import tensorflow_probability as tfp

  gradient = _tensorflow_gradient(case)

  def diagonal(x):
    _, diag = tfp.math.diag_jacobian(
      xs=x, ys=gradient(x), fn=gradient, sample_shape=[case.batch]
    )
    return diag[0]

  return _tensorflow_loop(diagonal, jit_compile)


def batch_jacobian(case):
  """`tf.GradientTape.batch_jacobian` of the gradient, then its diagonal."""
  import tensorflow as tf

  gradient = _tensorflow_gradient(case)

  def diagonal(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = gradient(x)
    dense = tape.batch_jacobian(y, x)
    n = case.num_coordinates
    diag = tf.linalg.diag_part(tf.reshape(dense, [case.batch, n, n]))
    return tf.reshape(diag, x.shape)

  return _tensorflow_loop(diagonal)


def jax_hessian(case):
  """`jit(vmap(hessian))`, then its diagonal."""
  import jax
  import jax.numpy as jnp

  def diagonal(log_prob, x):
    return jnp.diagonal(jax.hessian(log_prob)(x))

  return _jax_loop(case, diagonal)


def jax_jvp(case):
  """`jit(vmap(jvp(grad)))` over the basis vectors, one entry of each."""
  import jax
  import jax.numpy as jnp

  def diagonal(log_prob, x):
    indices = jnp.arange(x.size)

    def entry(i):
      # Compared in place: XLA then need not build the identity matrix.
      seed = (indices == i).astype(x.dtype)
      return jax.jvp(jax.grad(log_prob), (x,), (seed,))[1][i]

    return jax.vmap(entry)(indices)

  return _jax_loop(case, diagonal)


def _jax_loop(case, diagonal):
  import jax
  import jax.numpy as jnp

  ops = types.SimpleNamespace(
    sum=lambda x, n: jnp.sum(x, axis=tuple(range(-n, 0))),
    exp=jnp.exp,
    log1p=jnp.log1p,
    take=lambda x, i: jnp.take(x, i, axis=-1),
    roll=lambda x, axis: jnp.roll(x, 1, axis),
  )

  def log_prob(flat):
    return case.log_prob(ops, jnp.reshape(flat, case.event_shape))

  batched = jax.vmap(functools.partial(diagonal, log_prob))

  @jax.jit
  def loop(x, count):
    def body(_, carry):
      y, _ = carry
      result = jnp.reshape(batched(jnp.reshape(y, [case.batch, -1])), x.shape)
      return x + STEP * result, result

    return jax.lax.fori_loop(0, count, body, (x, jnp.zeros_like(x)))[-1]

  def run(x, count):
    return np.asarray(loop(jnp.asarray(x), count))

  return run


GRADIENT = 'one gradient'
TFP_DIAG = 'tfp_diag'

PEERS = {
  GRADIENT: gradient_of_tensorflow,
  TFP_DIAG: tfp_diag_plan,
  'tfp_diag, value + gradient + diagonal': tfp_diag_all,
  'tfp_diag, no plan': tfp_diag_no_plan,
  'TFP diag_jacobian': functools.partial(tfp, jit_compile=False),
  'TFP diag_jacobian, XLA': functools.partial(tfp, jit_compile=True),
  'batch_jacobian, XLA': batch_jacobian,
  'JAX vmap(hessian)': jax_hessian,
  'JAX vmap(jvp(grad))': jax_jvp,
}
