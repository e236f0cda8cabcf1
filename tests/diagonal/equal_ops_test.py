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
"""What a function computes twice counts as computed once."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfp_diag
from tests.oracles import hessian_by_copies
from tfp_diag.diagonal import decide

SAMPLES, SIZE, ROWS = 5, 24, 40
RNG = np.random.default_rng(17)
DESIGN = tf.constant(RNG.normal(size=[ROWS, SIZE]) / 5.0)
X = tf.constant(RNG.normal(size=[SAMPLES, SIZE]))
DENSE = tf_keras.layers.Dense(9, activation='tanh', dtype='float64')
DENSE.build([None, SIZE])


def predictor(x):
  return tf.linalg.matvec(DESIGN, x)


def total(x):
  return tf.reduce_sum(x, axis=-1)


def from_tanh(x):
  return predictor(tf.tanh(x) + 0.5)


@tf.function
def called(x):
  return predictor(x) / 2.0


ONE_SWEEP = {
  'a product of two': lambda x: total(
    tf.sin(predictor(x)) * tf.exp(-(predictor(x) ** 2))
  ),
  'through equal ops and constants': lambda x: total(
    tf.tanh(from_tanh(x)) * from_tanh(x)
  ),
  'a function that is called twice': lambda x: total(
    tf.sin(called(x)) * called(x) ** 2
  ),
  'a layer of Variables': lambda x: total(tf.sin(DENSE(x)) * DENSE(x)),
}


def close(found, expected):
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


OPEN = tf.TensorSpec([None, SIZE], X.dtype)


@pytest.mark.parametrize('name', ONE_SWEEP)
def test_one_sweep(name):
  fn = ONE_SWEEP[name]
  plan = tfp_diag.plan_diag_hessian(fn, OPEN)
  assert (plan.num_passes, plan.how) == (1, 'squared sweeps'), plan
  value, _, diag = tf.function(plan, input_signature=[OPEN])(X)
  close(value, fn(X))
  close(diag, hessian_by_copies(fn, X))


@pytest.mark.parametrize('jit_compile', [None, True])
@pytest.mark.parametrize(
  'name', ['a function that is called twice', 'a layer of Variables']
)
def test_without_a_plan(name, jit_compile):
  """As eager code, which asks Python again, and by XLA."""
  fn = ONE_SWEEP[name]

  def run(x):
    return tfp_diag.diag_hessian(fn, x)

  if jit_compile:
    run = tf.function(run, jit_compile=True)
  value, _, diag = run(X)
  close(value, fn(X))
  close(diag, hessian_by_copies(fn, X))


def test_differences_that_are_broadcast():
  """No two differences by an element are on the way to one component."""
  centers = tf.constant(RNG.normal(size=[4, SIZE]))
  weights = tf.constant(RNG.normal(size=[4, SIZE, SIZE]) / 9.0)

  def differences(x):
    return x[:, tf.newaxis] - centers

  def fn(x):
    products = tf.linalg.matvec(weights, differences(x))
    return tf.reduce_logsumexp(-total(products * differences(x)), axis=-1)

  plan = tfp_diag.plan_diag_hessian(fn, OPEN)
  assert (plan.num_passes, plan.how) == (2, 'squared sweeps'), plan
  diagonal = tf.function(lambda x: plan(x)[2], input_signature=[OPEN])
  close(diagonal(X), hessian_by_copies(fn, X))


def assert_apart(fn, x):
  """Two products stay two, so that more than a sweep is needed."""
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec(x.shape, x.dtype))
  assert plan.num_passes > 1, plan
  # Without a plan, which is tried before.
  diagonal = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])
  close(diagonal(x), hessian_by_copies(fn, x))


def test_other_ops_stay_apart():
  size = 6
  design, square = DESIGN[:, :size], DESIGN[:size, :size]
  moved = design + 1.0
  pairs = [
    lambda x: (tf.linalg.matvec(design, x), tf.linalg.matvec(design, x + 1.0)),
    lambda x: (tf.linalg.matvec(design, x), tf.linalg.matvec(moved, x)),
    lambda x: (
      tf.linalg.matvec(square, x),
      tf.linalg.matvec(square, x, transpose_a=True),
    ),
  ]
  for both in pairs:

    def fn(x, both=both):
      one, other = both(x)
      return total(tf.sin(one) * other)

    assert_apart(fn, X[:, :size])


@pytest.mark.parametrize('is_called', [False, True])
def test_captured_tensors_that_were_equal_in_the_first_call(is_called):
  """The graph that is remembered serves other values."""

  def model(one, other):
    one, other = tf.constant(one, X.dtype), tf.constant(other, X.dtype)

    def fn(x):
      centers = tf.stack([total((x - c) ** 2) for c in (one, other)], -1)
      scaled = (
        tf.reduce_logsumexp(one * x, -1),
        tf.reduce_logsumexp(2.0 * x, -1),
      )
      return tf.reduce_logsumexp(-centers, -1) + scaled[0] * tf.exp(-scaled[1])

    return tf.function(fn) if is_called else fn

  tfp_diag.diag_hessian(model(2.0, 2.0), X)
  for values in [(2.0, 3.0), (1.0, 2.0), (1.0, 1.0), (2.0, 2.0)]:
    fn = model(*values)
    value, _, diag = tfp_diag.diag_hessian(fn, X)
    close(value, fn(X))
    close(diag, hessian_by_copies(fn, X))


def test_a_variable_that_changes_in_between():
  weights = tf.Variable(DESIGN)

  def fn(x):
    weights.assign(DESIGN)
    first = tf.linalg.matvec(weights, x)
    weights.assign(2.0 * DESIGN[::-1])
    return total(tf.sin(first) * tf.linalg.matvec(weights, x))

  want = hessian_by_copies(
    lambda x: total(
      tf.sin(predictor(x)) * tf.linalg.matvec(2.0 * DESIGN[::-1], x)
    ),
    X,
  )
  close(tfp_diag.diag_hessian(fn, X)[2], want)
  close(tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])(X), want)


def test_two_draws_stay_two():
  """Equal ops that give something else each time: every mask is drawn."""
  generator = tf.random.Generator.from_seed(3)

  def fn(x):
    one, other = (
      tf.cast(generator.uniform([1, ROWS]) < 0.5, x.dtype) for _ in range(2)
    )
    masked = predictor(x) * one, predictor(x) * other
    return total((masked[0] - masked[1]) ** 2)

  *_, diag = tfp_diag.diag_hessian(fn, X)
  assert np.all(np.abs(diag) > 0.0)


def test_without_duplicates_nothing_is_traced_again(monkeypatch):
  """Slices and elementwise ops that occur twice are no reason to repeat ops."""

  def fn(x):
    ends = x[:, 1:] * x[:, :-1] + x[:, 1:] ** 2
    return total(tf.sin(total(tf.exp(ends))[..., None] * tf.exp(ends)))

  sizes = []
  original = decide.Reading.simplified

  def spied(reading):
    found = original(reading)
    sizes.append(found)
    return found

  monkeypatch.setattr(decide.Reading, 'simplified', spied)
  tfp_diag.plan_diag_hessian(fn, X)
  assert sizes and all(found is None for found in sizes)
