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
"""Constant Hessians that only the gradient shows, behind custom gradients."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import hessian_by_copies, hessian_diagonal
from tfp_diag.diagonal import reading

N, BATCH = 6, 7
RNG = np.random.default_rng(3)
MATRIX = tf.constant(RNG.normal(size=[N, N]))
POINTS = tf.constant(RNG.normal(size=[N, 2]))
RATES = tf.constant(RNG.uniform(1.0, 2.0, [BATCH]))
X = tf.constant(RNG.normal(size=[BATCH, N]))
SHARED = 'once for all samples'


def own_gradient(gradient):
  """A quadratic form whose gradient is written by hand."""

  @tf.custom_gradient
  def form(x):
    y = 0.5 * tf.reduce_sum(tf.linalg.matvec(MATRIX, x) ** 2, axis=-1)
    return y, lambda dy: dy[..., tf.newaxis] * gradient(x)

  return form


def exact(x):
  return tf.linalg.matvec(MATRIX, tf.linalg.matvec(MATRIX, x), transpose_a=True)


QUADRATIC = own_gradient(exact)


def gaussian_process(x):
  kernel = tfp.math.psd_kernels.ExponentiatedQuadratic(
    tf.constant(1.5, tf.float64), tf.constant(0.7, tf.float64)
  )
  process = tfp.distributions.GaussianProcess(
    kernel, POINTS, observation_noise_variance=tf.constant(0.1, tf.float64)
  )
  return process.log_prob(x)


CONSTANT = {
  'gaussian_process': gaussian_process,
  'exact': QUADRATIC,
  'scaled': lambda x: -3.0 * QUADRATIC(x[:, ::-1]) + tf.reduce_sum(x, -1),
  'beside others': lambda x: QUADRATIC(x) - tf.reduce_sum(x**2, axis=-1),
  # What is differentiated is the gradient, and not the function.
  'another gradient': own_gradient(lambda x: tf.cumsum(x + 1.0, axis=-1)),
}


# Every other one is compiled.
@pytest.mark.parametrize(
  'name, jit_compile', [(name, k % 2 == 0) for k, name in enumerate(CONSTANT)]
)
def test_samples_share_the_passes(name, jit_compile):
  fn = CONSTANT[name]
  plan = tfp_diag.plan_diag_hessian(fn, X)
  assert (plan.ways[0].name, plan.num_passes) == (SHARED, 1)
  run = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x, plan=plan)[2],
    jit_compile=jit_compile,
  )
  expected = hessian_by_copies(fn, X)
  np.testing.assert_allclose(run(X), expected, rtol=1e-10)
  np.testing.assert_allclose(
    tfp_diag.diag_hessian(fn, X)[2], expected, rtol=1e-10
  )


def test_more_samples_are_not_walked():
  """As many as are looked at on two samples instead."""
  x = tf.constant(RNG.normal(size=[400, N]))
  plan = tfp_diag.plan_diag_hessian(gaussian_process, x)
  assert (plan.ways[0].name, plan.num_passes) == (SHARED, 1)
  expected = hessian_diagonal(gaussian_process, X)[:1]
  np.testing.assert_allclose(
    plan(x)[2], np.broadcast_to(expected, [400, N]), rtol=1e-10
  )


VARYING = {
  'cubic': own_gradient(lambda x: tf.cumsum(x**2, axis=-1)),
  'own rates': own_gradient(lambda x: RATES[:, tf.newaxis] * exact(x)),
  'rates around': lambda x: RATES * QUADRATIC(x),
  'squared': lambda x: QUADRATIC(x) ** 2,
  'of something curved': lambda x: QUADRATIC(tf.sin(x)),
  'beside something curved': lambda x: QUADRATIC(x) + tf.reduce_sum(x**3, -1),
  'pieces': own_gradient(lambda x: exact(tf.nn.relu(x))),
}


@pytest.mark.parametrize('name', VARYING)
def test_samples_do_not_share_what_is_not_the_same(name):
  fn = VARYING[name]
  plan = tfp_diag.plan_diag_hessian(fn, X)
  assert plan.ways[0].name != SHARED
  # The comparison with a pass would hide a wrong proof.
  assert 'fault' not in ' '.join(plan.notes)
  np.testing.assert_allclose(plan(X)[2], hessian_diagonal(fn, X), rtol=1e-10)


def test_a_fault_leaves_the_other_ways(monkeypatch):
  def broken(graph):
    raise RuntimeError('broken')

  monkeypatch.setattr(reading, 'gradient_graph', broken)
  with pytest.warns(RuntimeWarning, match='broken.*fault of tfp_diag'):
    plan = tfp_diag.plan_diag_hessian(QUADRATIC, X)
  assert plan.num_passes == N
  assert 'broken' in ' '.join(plan.notes)
  np.testing.assert_allclose(plan(X)[2], hessian_diagonal(QUADRATIC, X))
