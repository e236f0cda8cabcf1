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
"""Diagonals of whole matrices, by TensorFlow's own loops."""

import tensorflow as tf

__all__ = [
  'dense_hessian',
  'dense_jacobian',
  'hessian_by_copies',
  'hessian_diagonal',
  'in_one_graph',
  'jacobian_by_copies',
  'jacobian_diagonal',
  'sample_diagonal',
]


def in_one_graph(oracle, fn):
  """A function of Tensors; an oracle applied to `fn` while they are traced.

  TensorFlow's loop over rows is then one of a graph: ten times as fast as one
  in Python, of the same gradients.
  """
  return tf.function(lambda *xs: oracle(fn, *xs), autograph=False)


# With more rows than this, tracing a loop takes less time than one in Python.
_MANY_ROWS = 30


def _is_long(num_rows):
  return num_rows > _MANY_ROWS and tf.executing_eagerly()


def gradient_of(fn):
  """The function that returns the gradient of the sum of what `fn` returns."""

  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = fn(x)
    return tape.gradient(value, x)

  return gradient


def dense_jacobian(fn, x):
  """Of all entries of what `fn` returns by all of `x`: a matrix."""
  if _is_long(x.shape.num_elements()):
    return in_one_graph(dense_jacobian, fn)(x)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  matrix = tape.jacobian(y, x, experimental_use_pfor=False)
  return tf.reshape(matrix, [-1, x.shape.num_elements()])


def dense_hessian(fn, x):
  """Of the sum of what `fn` returns, by all entries of `x`: a matrix."""
  return dense_jacobian(gradient_of(fn), x)


def jacobian_diagonal(fn, x):
  """The diagonal of the Jacobian of a function of one Tensor.

  All entries of `x` are coordinates, those of other samples as well: what a
  function does with the number or the place of a sample is in it.

  Args:
    fn: Python callable, a Tensor to one of its shape.
    x: Tensor.

  Returns:
    Tensor of the shape of `x`.
  """
  return tf.reshape(tf.linalg.diag_part(dense_jacobian(fn, x)), x.shape)


def hessian_diagonal(fn, x):
  """The same of the Hessian of the sum of what `fn` returns."""
  return tf.reshape(tf.linalg.diag_part(dense_hessian(fn, x)), x.shape)


def sample_diagonal(fn, x):
  """The diagonal of a function that treats each row of `x` alone.

  A row of the Jacobian for all samples together: fast for many of them. What
  samples do to each other is not seen.
  """
  if _is_long(x.shape[-1]):
    return in_one_graph(sample_diagonal, fn)(x)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  matrix = tape.batch_jacobian(y, x, experimental_use_pfor=False)
  return tf.linalg.diag_part(matrix)


def _of_copies(fn, x):
  """A function of steps [samples..., n]: one to each coordinate of a copy.

  What `fn` returns for n copies of each sample, in a row for each copy.
  """

  def along(steps):
    moved = x[..., tf.newaxis, :] + tf.linalg.diag(steps)
    return fn(tf.reshape(moved, [-1, x.shape[-1]]))

  return along


def jacobian_by_copies(fn, x):
  """The diagonal of a function that treats each row of `x` alone.

  The slopes, at zero, of the coordinate that is moved in each copy. A tape is
  asked once, with the cotangents that it is given for single entries: a
  hundredth of what a loop over entries takes to be traced.
  """
  of_copies = _of_copies(fn, x)

  def moved(steps):
    y = of_copies(steps)
    return tf.linalg.diag_part(tf.reshape(y, [*x.shape, x.shape[-1]]))

  return _gradient(moved)(tf.zeros_like(x))


def hessian_by_copies(fn, x):
  """The same of the Hessian of what `fn` returns for each row of `x`."""
  return _gradient(_gradient(_of_copies(fn, x)))(tf.zeros_like(x))


def _gradient(fn):
  """As `gradient_of`; zeros of what does not depend on it."""

  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = fn(x)
    return tape.gradient(value, x, unconnected_gradients='zero')

  return gradient


def unmixed_diagonals(fn, x):
  """Second and third derivatives, each by one coordinate; by copies, too."""
  second = _gradient(_gradient(_of_copies(fn, x)))
  steps = tf.zeros_like(x)
  with tf.GradientTape() as tape:
    tape.watch(steps)
    found = second(steps)
  return found, tape.gradient(found, steps, unconnected_gradients='zero')
