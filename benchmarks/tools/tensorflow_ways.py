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
"""Diagonals by what TensorFlow and TensorFlow Probability have."""

import tensorflow as tf

from benchmarks.tools import STEP

__all__ = [
  'batch_jacobian',
  'compiled_loop',
  'full_jacobian',
  'function_of',
  'gradient',
  'tfp_diag_jacobian',
]


class TensorFlowOps:
  """See `numpy_ops.NumpyOps`."""

  exp = staticmethod(tf.exp)
  log = staticmethod(tf.math.log)
  log1p = staticmethod(tf.math.log1p)
  tanh = staticmethod(tf.tanh)
  softplus = staticmethod(tf.nn.softplus)
  lgamma = staticmethod(tf.math.lgamma)
  stack = staticmethod(tf.stack)
  matmul = staticmethod(tf.matmul)
  sum_axis = staticmethod(tf.reduce_sum)

  @staticmethod
  def array(values):
    return tf.constant(values, tf.float32)

  @staticmethod
  def sum(x, num_axes):
    return tf.reduce_sum(x, axis=list(range(-num_axes, 0)))

  @staticmethod
  def logsumexp(x):
    return tf.reduce_logsumexp(x, axis=-1)

  @staticmethod
  def cumsum(x):
    return tf.cumsum(x, axis=-1)

  @staticmethod
  def unflatten(x, shape):
    return tf.reshape(x, [*x.shape[:-1], *shape])

  @staticmethod
  def concat(parts):
    return tf.concat(parts, axis=-1)

  @staticmethod
  def take(x, indices):
    return tf.gather(x, indices, axis=-1)

  @staticmethod
  def gradient(fn, x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = fn(x)
    return tape.gradient(value, x)

  @staticmethod
  def roll(x, axis, shift):
    return tf.roll(x, shift, axis)


def function_of(case, scale):
  """The function of a case of one argument."""
  return lambda x: case.fn(TensorFlowOps, x, scale)


def compiled_loop(derivative, jit_compile=True):
  """Evaluates many times inside one compiled loop.

  Args:
    derivative: Callable `(x, scale)`: a Tensor of the shape of `x`.
    jit_compile: Python bool, XLA or not.

  Returns:
    `run(x, count)`, see `benchmarks.tools`.
  """

  @tf.function(jit_compile=jit_compile, autograph=False)
  def loop(x, count):
    def body(k, y, _):
      # No part of the function: `tf.gradients` would differentiate it, too.
      scale = tf.stop_gradient(1.0 + STEP * tf.reshape(y, [-1])[0])
      result = derivative(y, scale)
      return k + 1, x + STEP * result, result

    return tf.while_loop(
      lambda k, *_: k < count, body, (0, x, tf.zeros_like(x))
    )[-1]

  def run(x, count):
    return loop(tf.constant(x), tf.constant(count)).numpy()

  run.loop = loop
  return run


def _differentiated(case, scale):
  """Whose Jacobian has the wanted diagonal: the gradient, or the field."""
  fn = function_of(case, scale)
  if case.kind == 'jacobian':
    return fn

  def gradient_of(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = fn(x)
    return tape.gradient(value, x)

  return gradient_of


def gradient(case):
  """One gradient, or one product with the Jacobian of a field: the unit."""

  def derivative(x, scale):
    fn = function_of(case, scale)
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = fn(x)
    # Seeds of one would be constants, of which a compiler makes less.
    seeds = x if case.kind == 'jacobian' else None
    return tape.gradient(value, x, output_gradients=seeds)

  return compiled_loop(derivative)


def tfp_diag_jacobian(case, jit_compile):
  """`tfp.math.diag_jacobian`."""
  import tensorflow_probability as tfp

  def derivative(x, scale):
    field = _differentiated(case, scale)
    _, diag = tfp.math.diag_jacobian(
      xs=x, ys=field(x), fn=field, sample_shape=[case.batch]
    )
    return diag[0]

  return compiled_loop(derivative, jit_compile)


def batch_jacobian(case, jit_compile):
  """`tf.GradientTape.batch_jacobian`, then its diagonal."""

  def derivative(x, scale):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = _differentiated(case, scale)(x)
    dense = tape.batch_jacobian(y, x)
    n = case.num_coordinates
    diag = tf.linalg.diag_part(tf.reshape(dense, [case.batch, n, n]))
    return tf.reshape(diag, x.shape)

  return compiled_loop(derivative, jit_compile)


def full_jacobian(case, jit_compile):
  """`tf.hessians`, or `tf.GradientTape.jacobian`, over all samples at once."""

  def derivative(x, scale):
    if case.kind == 'hessian':
      dense = tf.hessians(tf.reduce_sum(function_of(case, scale)(x)), x)[0]
    else:
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = function_of(case, scale)(x)
      dense = tape.jacobian(y, x)
    size = case.batch * case.num_coordinates
    diag = tf.linalg.diag_part(tf.reshape(dense, [size, size]))
    return tf.reshape(diag, x.shape)

  return compiled_loop(derivative, jit_compile)
