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
"""The ways to ask for one diagonal; all give the same numbers."""

import numpy as np
import tensorflow as tf

import tfp_diag
from tests.oracles import (
  hessian_diagonal,
  jacobian_by_copies,
  jacobian_diagonal,
)

__all__ = [
  'REGIMES',
  'WAYS',
  'check_hessian',
  'check_jacobian',
  'check_rows',
  'copy_of',
  'draw',
  'hessian',
  'in_regime',
  'jacobian',
  'same',
]

REGIMES = ('eager', 'function', 'xla')
# A plan for these samples, for any number of them, and one from a file.
WAYS = (*REGIMES, 'plan', 'open_plan')


def draw(*shape, seed=0):
  """Distinct values in (-1, 1), as float64."""
  values = np.random.default_rng(seed).uniform(-1.0, 1.0, shape)
  return tf.constant(values, tf.float64)


def in_regime(regime, fn, *xs):
  """Calls `fn(*xs)` eagerly, in a `tf.function`, or under XLA."""
  if regime == 'eager':
    return fn(*xs)
  jit_compile = regime == 'xla' or None
  return tf.function(fn, autograph=False, jit_compile=jit_compile)(*xs)


def jacobian(way, fn, x, rank=1):
  """The diagonal of the Jacobian of a function of one Tensor.

  Args:
    way: One of `WAYS`.
    fn: Python callable.
    x: Tensor.
    rank: Python int, the number of sample dimensions.

  Returns:
    Tensor shaped as `x`.
  """
  samples = x.shape[:rank].as_list()
  if way in REGIMES:

    def call(x):
      return tfp_diag.diag_jacobian(x, sample_shape=samples, fn=fn)[1][0]

    return in_regime(way, call, x)
  if way == 'open_plan':
    samples = [None] * rank
  spec = tf.TensorSpec([*samples, *x.shape[rank:]], x.dtype)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=samples)
  return plan(x)[1][0]


def hessian(way, fn, x):
  """The same of the Hessian; the samples are what `fn` returns."""
  if way in REGIMES:
    return in_regime(way, lambda x: tfp_diag.diag_hessian(fn, x)[2], x)
  shape = x.shape.as_list()
  if way == 'open_plan':
    shape[0] = None
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec(shape, x.dtype))
  return plan(x)[2]


def same(got, want, rtol=1e-9):
  """Asserts equality up to rounding, beside the largest number."""
  want = np.asarray(want)
  scale = np.abs(want[np.isfinite(want)]).max(initial=1e-300)
  np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale)


def check_jacobian(way, fn, x, rank=1):
  same(jacobian(way, fn, x, rank), jacobian_diagonal(fn, copy_of(x)))


def check_rows(way, fn, x):
  """The same for a function that treats many samples alone."""
  same(jacobian(way, fn, x), jacobian_by_copies(fn, copy_of(x)))


def check_hessian(way, fn, x):
  same(hessian(way, fn, x), hessian_diagonal(fn, copy_of(x)))


def copy_of(x):
  """Another Tensor of the same values: no tape takes one for the other."""
  return tf.constant(x.numpy())
