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
from tests.oracles import hessian_by_copies
from tests.preferred_ways import without_sweeps
from tfp_diag.diagonal import proposals

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


@pytest.mark.parametrize(
  'fn, jit_compile',
  [(volatility, False), (volatility, True), (normalizer, False), (waves, True)],
)
def test_as_in_double_precision(fn, jit_compile):
  x = state()
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.ways[0].name == 'squared sweeps'
  run = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x, plan=plan)[2],
    jit_compile=jit_compile,
  )
  expected = hessian_by_copies(fn, tf.cast(x, tf.float64))
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


SCALES = np.array([1.0, 2.0, 3.0, 10.0, 4.0], np.float32)
CENTERS = 60.0 * np.random.default_rng(0).normal(size=[5, SIZE])
MIXED = np.random.default_rng(1).normal(size=[SIZE, SIZE]) / 3


def mixture(x):
  steps = (x[..., tf.newaxis, :] - CENTERS.astype(np.float32)) / SCALES[:, None]
  return tf.reduce_logsumexp(-0.5 * tf.reduce_sum(steps**2, -1), -1)


def mixture_of_columns(x):
  """Each component is a function of its own."""
  near = -0.5 * tf.reduce_sum(x**2, -1)
  far = -0.5 * tf.reduce_sum(((x - 60.0) / 10.0) ** 2, -1)
  return tf.reduce_logsumexp(tf.stack([near, far], -1), -1)


def mixture_behind_a_map(x):
  return mixture(x @ MIXED.astype(np.float32))


@pytest.mark.parametrize(
  ('fn', 'way'),
  [
    (mixture, 'squared sweeps'),
    (mixture, 'by tangents'),
    (mixture_of_columns, 'squared sweeps'),
    (mixture_of_columns, 'op by op'),
    (mixture_behind_a_map, 'squared sweeps'),
    (mixture_behind_a_map, 'by tangents'),
  ],
)
def test_far_away_the_widest_component_is_left(fn, way, monkeypatch):
  """Squares of gradients of 6,000 cancel, and leave a hundredth."""
  monkeypatch.setattr(proposals, '_TRACE', 0.0)
  if way != 'squared sweeps':
    without_sweeps(monkeypatch)
  found = proposals.taken_apart
  monkeypatch.setattr(
    proposals,
    'taken_apart',
    lambda reading, colors, least: [
      p._replace(cost=-1.0)
      for p in found(reading, colors, np.inf)
      if p.name == way
    ],
  )
  x = 6e5 * (1.0 + 0.01 * state())
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, SIZE], x.dtype))
  assert plan.how == way
  curvature = np.full(SIZE, 0.01)
  if fn is mixture_behind_a_map:
    curvature = 0.01 * np.sum(np.float32(MIXED) ** 2, axis=1)
  diag = tf.function(lambda x: plan(x)[2])(x)
  np.testing.assert_allclose(diag, [-curvature] * 3, rtol=2e-5)


def mean_distances(x):
  """Slopes of means are parts, and those of extremes as well at ties."""
  centers = CENTERS.astype(np.float32) / 60.0
  squares = (x[..., tf.newaxis, :] - centers) ** 2
  return tf.reduce_logsumexp(-tf.reduce_mean(squares, axis=-1), axis=-1)


def standardized(x):
  mean, variance = tf.nn.moments(x, [-1], keepdims=True)
  return tf.reduce_sum(tf.sin((x - mean) / tf.sqrt(variance)), axis=-1)


def means_of_groups(x):
  groups = tf.reduce_mean(tf.reshape(x, [-1, 4, 2]) ** 2, axis=-1)
  return tf.math.log(tf.reduce_sum(groups * tf.sin(groups), axis=-1))


def solved(x):
  matrix = tf.constant(
    np.tril(CENTERS.T @ CENTERS / 3e3) + np.eye(SIZE), x.dtype
  )
  right = (x**2)[..., tf.newaxis]
  found = tf.linalg.triangular_solve(matrix, right)[..., 0]
  return tf.reduce_logsumexp(found, axis=-1)


def products(x):
  """Whose slopes are not those of an op by itself: by TensorFlow."""
  pairs = tf.reduce_prod(tf.reshape(tf.exp(x) + 1.0, [-1, 4, 2]), axis=-1)
  return tf.math.log(tf.reduce_sum(pairs, -1) + tf.reduce_sum(x, -1))


@pytest.mark.parametrize(
  'fn, jit_compile',
  [
    (mean_distances, False),
    (standardized, False),
    (standardized, True),
    (means_of_groups, False),
    (solved, False),
    (products, False),
    (products, True),
  ],
)
def test_products_op_by_op(fn, jit_compile, prefers_sweeps):
  """Of ops whose squares are not those of sums; an eager call is probed."""
  x = state()
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.how == 'squared sweeps'
  run = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x, plan=plan)[2],
    jit_compile=jit_compile,
  )
  exact = hessian_by_copies(fn, tf.cast(x, tf.float64))
  np.testing.assert_allclose(run(x), exact, rtol=1e-4, atol=1e-5)
