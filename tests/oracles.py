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

import numpy as np
import tensorflow as tf

__all__ = ['hessian_diagonal', 'jacobian_diagonal', 'sample_diagonal']


def jacobian_diagonal(fn, x):
  """The diagonal of the Jacobian of a function of one Tensor.

  All entries of `x` are coordinates, those of other samples as well: what a
  function does with the number or the place of a sample is in it.

  Args:
    fn: Python callable, a Tensor to one of its shape.
    x: Tensor.

  Returns:
    Array of the shape of `x`.
  """
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  return _diagonal(tape, y, x)


def hessian_diagonal(fn, x):
  """The same of the Hessian of the sum of what `fn` returns."""
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
      inner.watch(x)
      value = fn(x)
    gradient = inner.gradient(value, x)
  return _diagonal(outer, gradient, x)


def sample_diagonal(fn, x):
  """The diagonal of a function that treats each row of `x` alone.

  A row of the Jacobian for all samples together: fast for many of them. What
  samples do to each other is not seen.
  """
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  matrix = tape.batch_jacobian(y, x, experimental_use_pfor=False)
  return tf.linalg.diag_part(matrix).numpy()


def _diagonal(tape, y, x):
  matrix = tape.jacobian(y, x, experimental_use_pfor=False)
  size = x.shape.num_elements()
  return np.reshape(np.diag(np.reshape(matrix, [size, size])), x.shape)
