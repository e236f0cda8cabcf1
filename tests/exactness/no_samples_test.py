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
"""No samples at all.

What was wrong: TensorFlow divides by zero while it optimizes such a graph, and
the process ends without a word (TensorFlow 2.21).
"""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_by_copies, jacobian_diagonal

NONE = tf.zeros([0, 3])


def squares(x):
  return x**2 * tf.reduce_sum(x, axis=-1, keepdims=True)


def value(x):
  return tf.reduce_sum(squares(x) ** 2, axis=-1)


@pytest.mark.parametrize(
  'compute',
  [
    lambda: tfp_diag.diag_gauss_newton(squares, NONE, None, [0]).diag,
    lambda: tfp_diag.diag_jacobian(
      NONE, fn=squares, sample_shape=[0], mode='forward'
    )[1][0],
    lambda: tfp_diag.diag_hessian(value, NONE)[2],
    lambda: tfp_diag.unmixed_derivatives(value, NONE, 3, [0]).third,
    lambda: (
      tfp_diag.stochastic_diag_hessian(value, NONE, 3, [0, 1], [0]).estimate
    ),
  ],
)
def test_no_samples_have_no_diagonal(compute):
  assert compute().shape == [0, 3]


def layer(x):
  weights = np.random.default_rng(0).normal(size=[3, 6])
  return tf.tanh(x @ tf.constant(weights)) @ weights.T


@pytest.mark.parametrize(
  ('diagonal', 'size'),
  [
    (
      lambda x: tfp_diag.diag_jacobian(
        x, fn=layer, sample_shape=tf.shape(x)[:1]
      )[1][0],
      3,
    ),
    (
      lambda x: tfp_diag.diag_hessian(lambda x: value(layer(x)), x)[2],
      None,
    ),
  ],
)
def test_no_samples_of_an_open_batch(diagonal, size):
  """pfor takes products of matrices without rows to have one column."""
  spec = tf.TensorSpec([None, size], tf.float64)
  compute = tf.function(diagonal, input_signature=[spec], autograph=False)
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Whether `fn` mixes samples')
    assert compute(tf.zeros([0, 3], tf.float64)).shape == [0, 3]
    assert compute(tf.ones([2, 3], tf.float64)).shape == [2, 3]


def test_no_samples_have_no_estimate_by_all_probes_together():
  found = tfp_diag.stochastic_diag_jacobian(
    squares, tf.zeros([0, 20]), 3, [0, 1], [0], method='xdiag'
  )
  assert found.estimate.shape == [0, 20]


def test_curved_ops_without_elements_are_no_fault():
  def fn(x):
    nothing = tf.reduce_sum(tf.sin(x[..., 4:]), -1)
    return tf.nn.softplus(tf.reduce_sum(x, -1)) + nothing

  x = tf.constant(np.random.default_rng(0).normal(size=[2, 4]))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = tfp_diag.diag_hessian(fn, x)[-1]
  np.testing.assert_allclose(found, hessian_by_copies(fn, x), rtol=1e-10)


def layer_norm(x):
  """Has `x - mean` twice, which is merged."""
  mean = tf.reduce_mean(x, -1, keepdims=True)
  variance = tf.reduce_mean((x - mean) ** 2, -1, keepdims=True)
  return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def truncated_score(x):
  """A potential, and a norm that is held."""
  with tf.GradientTape() as tape:
    tape.watch(x)
    directions = np.random.default_rng(0).normal(size=[16, 8])
    potential = tf.reduce_logsumexp(x @ directions, -1)
  return tf.clip_by_norm(tape.gradient(potential, x), 0.5, axes=-1)


@pytest.mark.parametrize('fn', [layer_norm, truncated_score])
def test_plans_of_open_batches_take_no_samples_in_silence(fn):
  spec = tf.TensorSpec([None, 16], tf.float64)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[None])
  assert plan.uses_terms
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    _, (diag,) = plan(tf.zeros([0, 16], tf.float64))
  assert diag.shape == [0, 16]


def test_a_part_without_elements_beside_a_layer():
  rng = np.random.default_rng(0)
  matrix, other = (rng.normal(size=size) for size in ((9, 9), (0, 9)))

  def fn(x, y):
    layer = tf.tanh(tf.sin(x) @ matrix + tf.sin(y) @ other) @ matrix
    return [x + layer, y + 0.0 * tf.reduce_sum(x, -1, keepdims=True)]

  x = tf.constant(rng.normal(size=[20, 9]))
  parts = [x, tf.zeros([20, 0], tf.float64)]
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    _, diag = tfp_diag.diag_jacobian(parts, fn=fn, sample_shape=[20])
  expected = jacobian_diagonal(lambda x: fn(x, parts[1])[0], x)
  np.testing.assert_allclose(diag[0], expected, rtol=1e-9)
  assert diag[1].shape == [20, 0]
