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
"""The functions that a case may use, in NumPy."""

import numpy as np
import scipy.special

__all__ = ['NumpyOps']


class NumpyOps:
  """Definitions: `x` has any number of batch axes in front."""

  exp = staticmethod(np.exp)
  log = staticmethod(np.log)
  log1p = staticmethod(np.log1p)
  tanh = staticmethod(np.tanh)
  lgamma = staticmethod(scipy.special.gammaln)
  stack = staticmethod(np.stack)

  @staticmethod
  def array(values):
    """A constant."""
    return np.asarray(values, np.float64)

  @staticmethod
  def sum(x, num_axes):
    """The sum over the last `num_axes` axes."""
    return np.sum(x, axis=tuple(range(-num_axes, 0)))

  @staticmethod
  def sum_axis(x, axis):
    return np.sum(x, axis=axis)

  @staticmethod
  def softplus(x):
    return np.logaddexp(0.0, x)

  @staticmethod
  def logsumexp(x):
    """Over the last axis."""
    largest = np.max(x, axis=-1)
    return largest + np.log(np.sum(np.exp(x - largest[..., None]), axis=-1))

  @staticmethod
  def cumsum(x):
    """Over the last axis."""
    return np.cumsum(x, axis=-1)

  @staticmethod
  def matmul(x, y):
    """Rows `x` times a matrix; the leading axes are broadcast."""
    return x @ y

  @staticmethod
  def unflatten(x, shape):
    """The last axis as axes of a shape."""
    return np.reshape(x, (*x.shape[:-1], *shape))

  @staticmethod
  def concat(parts):
    """Along the last axis."""
    return np.concatenate(parts, axis=-1)

  @staticmethod
  def take(x, indices):
    """Entries of the last axis."""
    return np.take(x, indices, axis=-1)

  @staticmethod
  def gradient(fn, x):
    """That of a log density that is analytic, by complex steps.

    It is exact up to rounding (Squire and Trapp, 1998).
    """
    flat = np.reshape(x, (*x.shape[:-2], -1))
    entries = []
    for i in range(flat.shape[-1]):
      step = 1e-30j * (np.arange(flat.shape[-1]) == i)
      moved = np.reshape(flat + step, x.shape)
      entries.append(np.imag(fn(moved)) / 1e-30)
    return np.reshape(np.stack(entries, axis=-1), x.shape)

  @staticmethod
  def roll(x, axis, shift):
    return np.roll(x, shift, axis)
