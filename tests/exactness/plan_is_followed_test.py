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
"""What a plan says is what runs, or there is a warning.

And `validate_args` compares what runs, whatever that is, with other seeds.
"""

import re
import warnings

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import copy_of, draw, same
from tests.oracles import (
  hessian_by_copies,
  jacobian_by_copies,
  jacobian_diagonal,
)
from tfp_diag.sparsity import Flow, Structure, register_rule

pytestmark = pytest.mark.usefixtures('without_sweeps')

N = 24
SAMPLES = 40
RNG = np.random.default_rng(0)
A, B, C = (RNG.normal(size=[N, N]) / np.sqrt(N) for _ in range(3))


def one_layer(x):
  return tf.tanh(x @ A) @ B


def two_layers(x):
  return tf.tanh(tf.tanh(x @ A) @ C) @ B


def three_layers(x):
  return tf.sin(tf.nn.softplus(tf.tanh(x @ A) @ C) @ B) @ A


def regression(x):
  return tf.reduce_sum(tf.nn.softplus(x @ A), axis=-1)


def network(x):
  return tf.reduce_sum(tf.tanh(tf.tanh(tf.sin(x @ A) @ B) @ C), axis=-1)


def quadratic(x):
  return tf.reduce_sum(tf.square(x @ A), axis=-1)


def warned_of_plans(caught):
  return [str(w.message) for w in caught if 'plan' in str(w.message)]


def test_less_structure_than_planned_needs_no_shortcut():
  """Of three samples the matrix is diagonal: a pass, and no warning."""

  def fn(x):
    return tf.tanh(x @ tf.linalg.band_part(A, tf.shape(x)[0] % 3, 0)) * x

  spec = tf.TensorSpec([None, N], tf.float64)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[None])
  assert (plan.how, plan.num_passes) == ('on returning paths', 1)
  x = draw(3, N)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    diag = plan(x)[1][0]
  same(diag, jacobian_diagonal(fn, copy_of(x)))


# Of each: what is planned, and what has the same pattern but no such shortcut.
@pytest.mark.parametrize(
  'planned, fn', [(one_layer, two_layers), (one_layer, three_layers)]
)
def test_a_cut_that_is_not_there(planned, fn):
  x = draw(SAMPLES, N)
  plan = tfp_diag.plan_diag_jacobian(planned, x, sample_shape=[SAMPLES])
  assert plan.num_passes <= 6
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    diag = tfp_diag.diag_jacobian(x, fn=fn, plan=plan)[1][0]
  same(diag[:2], jacobian_by_copies(fn, copy_of(x[:2])))
  (sentence,) = warned_of_plans(caught)
  assert str(plan.num_passes) in sentence and str(N) in sentence


@pytest.mark.parametrize(
  'planned, fn', [(regression, network), (quadratic, network)]
)
def test_curvature_that_is_not_there(planned, fn):
  x = draw(SAMPLES, N, seed=1)
  plan = tfp_diag.plan_diag_hessian(planned, x)
  assert plan.num_passes < N / 2
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    diag = tfp_diag.diag_hessian(fn, x, plan=plan)[2]
  same(diag[:2], hessian_by_copies(fn, copy_of(x[:2])))
  (sentence,) = warned_of_plans(caught)
  assert str(plan.num_passes) in sentence


@pytest.mark.parametrize(
  'fn, samples',
  [(one_layer, 40), (one_layer, None), (two_layers, 4), (tf.sin, None)],
)
def test_a_plan_that_is_followed_says_nothing(fn, samples):
  x = draw(40 if samples is None else samples, N, seed=2)
  spec = tf.TensorSpec([samples, N], tf.float64)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[samples])
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    diag = plan(x)[1][0]
    tfp_diag.diag_jacobian(x, fn=fn, plan=plan)
  same(diag[:2], jacobian_by_copies(fn, copy_of(x[:2])))
  assert not warned_of_plans(caught)


@pytest.mark.parametrize('width', (0, 1, 2, 5))
def test_the_number_of_passes_is_what_runs(width):
  """Counted by a gradient that calls Python, one pass after the other."""
  passes = []

  def count(dy):
    passes.append(None)
    return dy

  @tf.custom_gradient
  def counted(x):
    def gradient(dy):
      told = tf.numpy_function(count, [dy], dy.dtype)
      # Elementwise as far as a tracer can see: only the count is told.
      with tf.control_dependencies([told]):
        return tf.identity(dy)

    return tf.identity(x), gradient

  def fn(x):
    x = counted(x)
    return tf.add_n([tf.sin(x * tf.roll(x, k, 1)) for k in range(width + 1)])

  x = draw(3, N, seed=3)
  plan = tfp_diag.plan_diag_jacobian(
    fn, x, sample_shape=[3], mode='reverse', schedule='while_loop'
  )
  passes.clear()
  plan(x)
  first = len(passes)
  passes.clear()
  plan(x)
  assert first == len(passes) == plan.num_passes


# A rule that is wrong is the only fault that can be put in from outside.


@pytest.fixture
def cleared():
  """No derivative of another test is found again, nor one of this test."""
  tfp_diag.clear_cache()
  yield
  tfp_diag.clear_cache()


def blame(error):
  """The sentence, if the caller is not said to have done it."""
  sentence = str(error.value)
  assert '`sample_shape` promises' not in sentence
  assert not re.search('colors of `plan`', sentence)
  return sentence


def blocks(op, number):
  """Dense by each of `number` blocks of the first input."""
  rows = op.outputs[0].size // number
  columns = op.inputs[0].size // number
  return Flow.matrix(
    scipy.sparse.kron(scipy.sparse.eye(number), np.ones([rows, columns]))
  )


@pytest.mark.parametrize('shape', [(N,), (1, N), (SAMPLES, N)])
def test_a_rule_that_misses_entries(shape, cleared, no_rule_left_behind):
  @register_rule('RGBToHSV')
  def _too_small(op):
    return Structure.linear({0: Flow.identity(op.inputs[0].size)})

  def fn(x):
    pixels = tf.reshape(tf.sigmoid(x), [-1, 3])
    return tf.reshape(tf.raw_ops.RGBToHSV(images=pixels), tf.shape(x))

  x = draw(*shape, seed=4)
  with pytest.raises(tf.errors.InvalidArgumentError) as error:
    tfp_diag.diag_jacobian(
      x, sample_shape=shape[:-1], fn=fn, validate_args=True
    )
  blame(error)


@pytest.mark.parametrize('shape', [(N,), (1, N), (SAMPLES, N)])
def test_a_rule_that_calls_a_bent_op_linear(
  shape, cleared, no_rule_left_behind
):
  """So that its log density seems to be a quadratic form."""

  @register_rule('MatrixSolveLs')
  def _not_linear(op):
    return Structure.linear({0: blocks(op, op.inputs[0].size // N)})

  def log_prob(x):
    matrices = tf.reshape(x, [-1, N // 3, 3])
    right = tf.ones([tf.shape(matrices)[0], N // 3, 1], x.dtype)
    found = tf.raw_ops.MatrixSolveLs(
      matrix=matrices,
      rhs=right,
      l2_regularizer=tf.constant(0.1, tf.float64),
    )
    return tf.reshape(tf.reduce_sum(found**2, [1, 2]), tf.shape(x)[:-1])

  x = draw(*shape, seed=5)
  few = x[:2] if len(shape) > 1 else x
  want = hessian_by_copies(log_prob, copy_of(few))
  try:
    diag = tfp_diag.diag_hessian(log_prob, x, validate_args=True)[2]
  except tf.errors.InvalidArgumentError as e:
    assert '`sample_shape` promises' not in str(e)
    return
  same(diag[: len(few)], want, rtol=1e-7)


@pytest.mark.parametrize('fn', (regression, quadratic, network))
@pytest.mark.parametrize('samples', (1, SAMPLES))
def test_shortcuts_that_are_right_pass(samples, fn):
  x = draw(samples, N, seed=6)
  diag = tfp_diag.diag_hessian(fn, x, validate_args=True)[2]
  same(diag[:2], hessian_by_copies(fn, copy_of(x[:2])), rtol=1e-7)


def test_a_plan_called_with_variables_and_a_tensor_of_its_closure():
  """Among the inputs of such a graph are handles that have no name."""
  weights = tf.Variable(draw(N, seed=5))
  factors = tf.constant(draw(N, seed=6))

  def fn():
    return tf.reduce_sum(tf.sin(factors * weights) * tf.roll(weights, 1, 0))

  plan = tfp_diag.plan_diag_hessian(fn, [weights])
  assert plan.num_passes < N
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    [diag] = plan([weights])[2]
  by_weight = tf.linalg.diag_part(
    tfp_diag.hessian(
      lambda w: tf.reduce_sum(tf.sin(factors * w) * tf.roll(w, 1, 0)),
      tf.convert_to_tensor(weights),
    )
  )
  np.testing.assert_allclose(diag, by_weight, rtol=1e-10)
