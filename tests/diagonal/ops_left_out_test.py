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
"""Sweeps that leave out some ops, which have passes of their own."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_by_copies, unmixed_diagonals
from tfp_diag.sparsity import PatternTooDenseError
from tfp_diag.sparsity.analysis import Analysis

RNG = np.random.default_rng(5)
N = 24
DATA = RNG.standard_normal((2 * N, N)) / 5.0
LABELS = RNG.integers(0, 2, 2 * N).astype(float)
PRECISION = RNG.standard_normal((N, N)) / 5.0
KERNEL = RNG.standard_normal((5, 5, 1, 1)) / 5.0
SIDE = 12


def constant(value, like):
  return tf.constant(value, like.dtype)


def regression(x):
  logits = tf.linalg.matvec(constant(DATA, x), x)
  return tf.reduce_sum(
    constant(LABELS, x) * logits - tf.nn.softplus(logits), -1
  )


def process(x):
  """A Gaussian prior of a curved function."""
  z = tf.linalg.matvec(constant(PRECISION, x), tf.sinh(x))
  return -0.5 * tf.reduce_sum(z**2, -1)


def steps(x):
  """Each coordinate reaches each curved op on two paths."""
  before, after = x[..., :-1], x[..., 1:]
  d = after * tf.sin(before) - before * after
  return -tf.reduce_sum(tf.math.log1p(d**2), -1)


def products(x):
  half = N // 2
  return tf.reduce_sum(
    x[..., :half] * x[..., half:] * tf.tanh(x[..., :half]), -1
  )


def normalizer(x):
  """Every coordinate reaches the logarithm on two paths."""
  return -tf.math.log(1.0 + tf.reduce_sum(x * tf.exp(x), -1))


def blurred(x):
  image = tf.nn.conv2d(x[..., tf.newaxis], constant(KERNEL, x), 1, 'SAME')
  return tf.reduce_sum(tf.exp(0.1 * image), [-1, -2, -3])


def total_variation(x):
  corner = x[..., :-1, :-1]
  right, down = x[..., :-1, 1:] - corner, x[..., 1:, :-1] - corner
  return -tf.reduce_sum(tf.sqrt(right**2 + down**2 + 0.01), [-1, -2])


def summed(*terms):
  return lambda x: tf.add_n([term(x) for term in terms])


VECTOR, IMAGE = (N,), (SIDE, SIDE)
# A sweep, and the colors of the ops that are left out.
MODELS = {
  'blurred, total variation': (summed(blurred, total_variation), IMAGE, 1 + 3),
  'regression, steps': (summed(regression, steps), VECTOR, 1 + 2),
  'process, steps': (summed(process, steps), VECTOR, 1 + 2),
  'process, products': (summed(process, products), VECTOR, 1 + 2),
  'regression, process, steps, products': (
    summed(regression, process, steps, products),
    VECTOR,
    None,
  ),
  'process, steps, normalizer': (
    summed(process, steps, normalizer),
    VECTOR,
    None,
  ),
  'a product of both': (
    lambda x: -tf.math.softplus(0.1 * regression(x)) + 0.1 * steps(x),
    VECTOR,
    None,
  ),
}


def state(name, *sample_shape):
  _, event_shape, _ = MODELS[name]
  return tf.constant(RNG.uniform(-1.0, 1.0, (*sample_shape, *event_shape)))


def dense(fn, x):
  """The diagonal of the Hessian of each sample."""
  flat = tf.reshape(x, [x.shape[0], -1])
  event_shape = x.shape[1:]
  diag = hessian_by_copies(
    lambda copies: fn(tf.reshape(copies, [-1, *event_shape])), flat
  )
  return tf.reshape(diag, x.shape)


@pytest.mark.parametrize('name', MODELS)
def test_agrees_with_the_dense_hessian(name):
  fn, _, _ = MODELS[name]
  x = state(name, 3)
  # Without a plan, which is tried before.
  run = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2], autograph=False)
  np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('name', [k for k, m in MODELS.items() if m[2]])
def test_passes(name):
  fn, _, num_passes = MODELS[name]
  plan = tfp_diag.plan_diag_hessian(fn, state(name, 3))
  assert plan.num_passes == num_passes
  assert 'Many paths lead to' in str(plan)
  assert '1 sweep with squared derivatives' in str(plan)
  if name == 'process, steps':
    # By frontiers the steps take as many as there are coordinates.
    assert 'added up to where they split' not in str(plan)


@pytest.mark.parametrize(
  'name',
  [
    'blurred, total variation',
    'regression, process, steps, products',
    'a product of both',
  ],
)
def test_is_compiled(name):
  fn, _, _ = MODELS[name]
  x = state(name, 3)
  run = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2],
    autograph=False,
    jit_compile=True,
  )
  np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9, atol=1e-11)


def test_a_batch_of_unknown_size():
  fn, event_shape, num_passes = MODELS['process, steps']
  spec = tf.TensorSpec([None, *event_shape], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  assert plan.num_passes == num_passes
  run = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x, plan=plan)[2],
    autograph=False,
    input_signature=[spec],
  )
  for batch in (1, 2, 5):
    x = state('process, steps', batch)
    np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9, atol=1e-11)


def test_many_rows_of_data():
  """Paths are looked for on a few of them; the ops are those of all."""
  data = tf.constant(RNG.standard_normal((6000, N)))

  def fn(x):
    logits = tf.linalg.matvec(data, x)
    return steps(x) - tf.reduce_sum(tf.nn.softplus(logits), -1) / 6000.0

  x = state('regression, steps', 2)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.num_passes == 1 + 2
  run = tf.function(lambda x: plan(x)[2], autograph=False)
  np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9, atol=1e-11)


def test_too_dense_to_be_left_out(monkeypatch):
  """Then other ways remain, and nothing is called a fault."""

  own = Analysis.curvature_of

  def too_dense(self, steps):
    if steps is not None:
      raise PatternTooDenseError('too many')
    return own(self, steps)

  monkeypatch.setattr(Analysis, 'curvature_of', too_dense)
  fn, x = MODELS['process, steps'][0], state('process, steps', 2)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    plan = tfp_diag.plan_diag_hessian(fn, x)
  assert any(way.name == 'squared sweeps' for way in plan.ways)


def test_third_derivatives():
  """They have no such way, and are the same."""
  fn, x = MODELS['regression, steps'][0], state('regression, steps', 2)
  found = tfp_diag.unmixed_derivatives(fn, x)
  second, third = unmixed_diagonals(fn, x)
  np.testing.assert_allclose(found.second, second, rtol=1e-9, atol=1e-11)
  np.testing.assert_allclose(found.third, third, rtol=1e-8, atol=1e-10)


def test_what_is_not_finite_stays_where_it_is():
  def fn(x):
    return process(x) + steps(x) + tf.reduce_sum(x**1.5, -1)

  x = np.abs(state('process, steps', 2).numpy()) + 0.1
  x[1, 5] = 0.0
  run = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2], autograph=False)
  found = run(tf.constant(x)).numpy()
  assert not np.isfinite(found[1, 5])
  found[1, 5] = 0.0
  assert np.all(np.isfinite(found))
