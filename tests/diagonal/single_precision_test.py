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
"""Squared sweeps over numbers of single precision."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag

SIZE = 8


def volatility(h):
  """A chain, behind a row of exponentials."""
  steps = h[..., 1:] - 0.9 * h[..., :-1]
  return -0.5 * tf.reduce_sum(tf.exp(-h), -1) - tf.reduce_sum(steps**2, -1)


def normalizer(h):
  return -tf.math.log(tf.reduce_sum(tf.exp(h), -1)) - tf.reduce_sum(h**2, -1)


def waves(h):
  steps = h[..., 1:] - h[..., :-1]
  return tf.reduce_sum(tf.sin(h[..., 1:]) + tf.cosh(steps), -1)


FUNCTIONS = [volatility, normalizer, waves]


def state():
  x = np.random.default_rng(5).uniform(1.0, 2.0, [3, SIZE])
  return tf.constant(x, tf.float32)


@pytest.mark.parametrize('jit_compile', [False, True])
@pytest.mark.parametrize('fn', FUNCTIONS)
def test_as_in_double_precision(fn, jit_compile):
  x = state()
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.ways[0].name == 'squared sweeps'
  run = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x, plan=plan)[2],
    jit_compile=jit_compile,
  )
  double = tf.cast(x, tf.float64)
  expected = tfp_diag.diag_hessian(fn, double, schedule='while_loop')[2]
  np.testing.assert_allclose(run(x), expected, rtol=2e-5)


def test_squares_out_of_range():
  """Of exponentials of 1e25, in a unit that is as large."""
  h = state() + 56.0
  plan = tfp_diag.plan_diag_hessian(
    lambda h: -tf.reduce_sum(tf.cumsum(1e-25 * tf.exp(h), -1) ** 2, -1), h
  )
  y = 1e-25 * np.exp(np.float64(h))
  sums = y[:, None, :] + np.cumsum(y, -1)[:, :, None]
  after = np.tri(SIZE)
  expected = -2.0 * y * np.sum(after * sums, axis=1)
  np.testing.assert_allclose(plan(h)[2], expected, rtol=5e-5)
  # The comparison with a pass would hide a wrong sweep.
  assert plan.ways[0].name == 'squared sweeps'
  assert 'fault' not in ' '.join(plan.notes)


@pytest.mark.parametrize('fn', FUNCTIONS)
def test_exponentials_are_those_of_the_function(fn):
  """In double precision they took longer than all the rest."""
  x = state()
  graph = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2], autograph=False
  ).get_concrete_function(x)
  for op in graph.graph.get_operations():
    if op.type in ('Cos', 'Cosh', 'Exp', 'Sin', 'Sinh'):
      assert op.outputs[0].dtype == tf.float32, op
