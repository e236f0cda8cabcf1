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
"""Functions with gradients of their own keep their structure.

In each trace such a gradient has another name; it is the same function.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.exactness.ways import (
  REGIMES,
  copy_of,
  draw,
  in_regime,
  same,
)
from tests.oracles import hessian_by_copies, jacobian_by_copies

pytestmark = pytest.mark.usefixtures('without_sweeps')

tfb = tfp.bijectors
tfd = tfp.distributions
N = 16
OPEN = tf.TensorSpec([None, N], tf.float64)


@tf.custom_gradient
def smooth_step(x):
  y = tf.sigmoid(3.0 * x)
  return y, lambda dy: dy * 3.0 * y * (1.0 - y)


@tf.custom_gradient
def clipped(x):
  """Its gradient is not that of what it computes."""
  return x**3, lambda dy: dy * tf.clip_by_value(3.0 * x**2, 0.1, 1.0)


@tf.custom_gradient
def scaled_difference(x, y):
  z = tf.sin(x - y)
  slope = tf.cos(x - y)
  return z, lambda dz: (dz * slope, -dz * slope)


def neighbors(x):
  return x[..., 1:], x[..., :-1]


def chain_of(fn):
  def log_prob(x):
    later, earlier = neighbors(x)
    return tf.reduce_sum(fn(later - 0.5 * earlier), axis=-1)

  return log_prob


HESSIANS = {
  'softplus bijector': (chain_of(tfb.Softplus().forward), 2),
  'its logarithm of a volume': (
    chain_of(lambda x: tfb.Softplus().forward_log_det_jacobian(x, 0)),
    2,
  ),
  'silu': (chain_of(tf.nn.silu), 2),
  'swish': (chain_of(lambda x: x * tf.nn.swish(x)), 2),
  'own': (chain_of(smooth_step), 2),
  'own, one by one': (
    lambda x: tf.reduce_sum(smooth_step(x) * x, axis=-1),
    1,
  ),
  'logarithm of 1 - exp': (
    chain_of(lambda x: tfp.math.log1mexp(tf.exp(x))),
    2,
  ),
  'normal of a softplus scale': (
    lambda x: tf.reduce_sum(
      tfd.Normal(x[..., 1:], tfb.Softplus().forward(x[..., :-1])).log_prob(0.3),
      axis=-1,
    ),
    2,
  ),
  'transformed distribution': (
    lambda x: tf.reduce_sum(
      tfd.TransformedDistribution(
        tfd.Normal(tf.constant(0.0, tf.float64), 1.0),
        tfb.Invert(tfb.Softplus()),
      ).log_prob(x),
      axis=-1,
    ),
    1,
  ),
  'logarithm of a sum': (
    chain_of(lambda x: tfp.math.log_add_exp(x, 2.0 * x)),
    2,
  ),
}
JACOBIANS = {
  'of two arguments': (
    lambda x: scaled_difference(x, tf.roll(x, 1, axis=-1)),
    2,
  ),
  'clipped': (lambda x: clipped(x) + 0.5 * tf.reverse(x, [-1]), 2),
  'silu of a neighbor': (
    lambda x: x * tf.nn.silu(tf.concat([x[..., :1], x[..., :-1]], -1)),
    2,
  ),
  'own within a product': (
    lambda x: smooth_step(x) * tf.concat([x[..., 2:], x[..., :2]], -1),
    2,
  ),
}


@pytest.mark.parametrize('name', HESSIANS)
def test_an_open_plan_for_a_hessian(name):
  fn, num_passes = HESSIANS[name]
  plan = tfp_diag.plan_diag_hessian(fn, OPEN)
  assert plan.num_passes == num_passes
  x = draw(3, N)
  same(plan(x)[2], hessian_by_copies(fn, copy_of(x)))


@pytest.mark.parametrize('name', JACOBIANS)
def test_an_open_plan_for_a_jacobian(name):
  fn, num_passes = JACOBIANS[name]
  plan = tfp_diag.plan_diag_jacobian(fn, OPEN, sample_shape=[None])
  assert plan.coloring.num_colors == num_passes
  x = draw(4, N)
  same(plan(x)[1][0], jacobian_by_copies(fn, copy_of(x)))


@pytest.mark.parametrize(
  'name, samples',
  [('own', 1), ('own', 500), ('silu', 3), ('softplus bijector', 500)],
)
def test_a_plan_for_a_known_number_is_the_same(name, samples):
  """However many samples there are."""
  fn, num_passes = HESSIANS[name]
  spec = tf.TensorSpec([samples, N], tf.float64)
  assert tfp_diag.plan_diag_hessian(fn, spec).num_passes == num_passes


@pytest.mark.parametrize(
  'name, regime',
  [
    *(('own', regime) for regime in REGIMES),
    ('swish', 'xla'),
    ('normal of a softplus scale', 'function'),
  ],
)
def test_without_a_plan(name, regime):
  fn, _ = HESSIANS[name]
  x = draw(3, N, seed=5)

  def call(x):
    return tfp_diag.diag_hessian(fn, x)[2]

  same(in_regime(regime, call, x), hessian_by_copies(fn, copy_of(x)))


def test_each_call_makes_its_gradient_anew():
  """As functions that are decorated where they are used."""

  def fn(x):
    @tf.custom_gradient
    def bent(x):
      return tf.sin(x), lambda dy: dy * tf.cos(x)

    return bent(x) * tf.roll(x, 1, axis=-1)

  plan = tfp_diag.plan_diag_jacobian(fn, OPEN, sample_shape=[None])
  assert plan.coloring.num_colors == 2
  x = draw(5, N)
  want = jacobian_by_copies(fn, copy_of(x))
  same(plan(x)[1][0], want)
  same(tfp_diag.diag_jacobian(x, fn=fn, plan=plan)[1][0], want)


def test_gradients_that_differ_are_told_apart():
  """The same op, and another gradient: another function."""

  def make(scale):
    @tf.custom_gradient
    def scaled(x):
      return tf.identity(x), lambda dy: scale * dy

    return lambda x: scaled(x) * tf.roll(x, 1, axis=-1)

  x = draw(3, N, seed=6)
  for scale in (1.0, 0.5, 3.0):
    fn = make(scale)
    diag = tfp_diag.diag_jacobian(x, sample_shape=[3], fn=fn)[1][0]
    same(diag, scale * np.roll(x, 1, axis=-1))


def test_a_gradient_that_reads_what_changes():
  factor = [2.0]

  @tf.custom_gradient
  def scaled(x):
    return tf.sin(x), lambda dy: factor[0] * dy

  x = draw(3, N, seed=7)
  for value in (2.0, 5.0, 2.0):
    factor[0] = value
    diag = tfp_diag.diag_jacobian(x, sample_shape=[3], fn=scaled)[1][0]
    same(diag, np.full([3, N], value))


@tf.custom_gradient
def _times(x, scale):
  # By the scale it is not summed to its shape, which nobody asks for.
  return tf.sin(x) * scale, lambda dy: (
    dy * scale * tf.cos(x),
    dy * tf.sin(x),
  )


def test_a_gradient_of_another_shape_that_is_not_asked_for():
  x, two = (
    tf.constant([0.5, 0.7, 0.9], tf.float64),
    tf.constant(2.0, tf.float64),
  )

  def fn(x):
    return _times(x, two)

  want = 2 * np.cos(x)
  plan = tfp_diag.plan_diag_jacobian(fn, x)
  for call in (
    lambda: tfp_diag.diag_jacobian(x, fn=fn),
    lambda: tfp_diag.diag_jacobian(x, fn=fn),
    tf.function(lambda: tfp_diag.diag_jacobian(x, fn=fn), autograph=False),
    lambda: plan(x),
  ):
    np.testing.assert_allclose(call()[1][0], want)
  hessian = tfp_diag.diag_hessian(lambda x: tf.reduce_sum(fn(x)), x)[2]
  np.testing.assert_allclose(hessian, -2 * np.sin(x))
