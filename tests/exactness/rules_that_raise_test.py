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
"""A rule with a bug: its op is taken as dense, and nothing else.

The plan names the op and the bug, a warning says it once, numbers are right.
"""

import warnings

import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import REGIMES, copy_of, draw, in_regime, same
from tests.oracles import hessian_by_copies, jacobian_by_copies
from tfp_diag.sparsity import register_rule

pytestmark = pytest.mark.usefixtures('without_sweeps')

N = 36
ERRORS = (
  ZeroDivisionError('a bug of mine'),
  IndexError('a bug of mine'),
  AttributeError('a bug of mine'),
  AssertionError('a bug of mine'),
)


@pytest.fixture
def cleared():
  """No derivative of another test is found again, nor one of this test."""
  tfp_diag.clear_cache()
  yield
  tfp_diag.clear_cache()


def break_rule(op_type, error):
  asked = []

  @register_rule(op_type)
  def _raise(op):
    asked.append(op.name)
    raise error

  return asked


def colors_of_six(x):
  """Two pixels of three colors."""
  pixels = tf.reshape(tf.sigmoid(x), [-1, 2, 3])
  return tf.reshape(tf.raw_ops.RGBToHSV(images=pixels), tf.shape(x))


def least_squares_of_six(x):
  matrices = tf.reshape(x, [-1, 3, 2])
  found = tf.raw_ops.MatrixSolveLs(
    matrix=matrices,
    rhs=tf.ones_like(matrices[:, :, :1]),
    l2_regularizer=tf.constant(0.1, tf.float64),
  )
  return tf.tile(tf.reshape(found, [-1, 2]), [1, 3]) * x


def dilation_of_six(x):
  """A column of six pixels, and the upper envelope of neighbors."""
  found = tf.raw_ops.Dilation2D(
    input=tf.reshape(x, [-1, 6, 1, 1]),
    filter=tf.zeros([3, 1, 1], tf.float64),
    strides=[1, 1, 1, 1],
    rates=[1, 1, 1, 1],
    padding='SAME',
  )
  return tf.reshape(found, [-1, 6]) * tf.sin(x)


OPS = {
  'RGBToHSV': colors_of_six,
  'MatrixSolveLs': least_squares_of_six,
  'Dilation2D': dilation_of_six,
}


def function_of(op_type):
  """A chain of thirty coordinates beside six through the op."""

  def fn(x):
    chain = tf.sin(x[:, 6:]) * tf.roll(x[:, 6:], 1, axis=1)
    return tf.concat([OPS[op_type](x[:, :6]), chain], axis=1)

  return fn


def about(op_type, caught):
  return [str(w.message) for w in caught if op_type in str(w.message)]


@pytest.mark.parametrize('op_type', OPS)
def test_only_its_own_op_is_dense(op_type, cleared, no_rule_left_behind):
  asked = break_rule(op_type, ERRORS[0])
  fn, x = function_of(op_type), draw(2, N)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[2])
  assert asked
  assert plan.num_passes == 6
  same(plan(x)[1][0], jacobian_by_copies(fn, copy_of(x)))
  notes = ' '.join(plan.notes)
  assert op_type in notes and 'ZeroDivisionError' in notes
  assert 'a bug of mine' in notes
  (sentence,) = about(op_type, caught)
  assert 'a bug of mine' in sentence


# Eagerly and in a graph in turn.
@pytest.mark.parametrize(
  'regime, error', [(REGIMES[k % 2], error) for k, error in enumerate(ERRORS)]
)
def test_whatever_it_raises(regime, error, cleared, no_rule_left_behind):
  asked = break_rule('RGBToHSV', error)
  fn, x = function_of('RGBToHSV'), draw(2, N, seed=1)

  def call(x):
    return tfp_diag.diag_jacobian(x, sample_shape=[2], fn=fn)[1][0]

  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    diag = in_regime(regime, call, x)
  same(diag, jacobian_by_copies(fn, copy_of(x)))
  assert asked
  assert len(about('RGBToHSV', caught)) == 1


def test_it_warns_once(cleared, no_rule_left_behind):
  """Of two ops of a type, and of calls that come again."""
  break_rule('RGBToHSV', ERRORS[1])
  x = draw(2, N, seed=2)

  def fn(x):
    left, right = colors_of_six(x[:, :6]), colors_of_six(x[:, 6:12])
    return tf.concat([left, right, tf.exp(x[:, 12:])], axis=1)

  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    for _ in range(3):
      diag = tfp_diag.diag_jacobian(x, sample_shape=[2], fn=fn)[1][0]
  same(diag, jacobian_by_copies(fn, copy_of(x)))
  assert len(about('RGBToHSV', caught)) == 1


def test_in_a_log_density(cleared, no_rule_left_behind):
  break_rule('MatrixSolveLs', ERRORS[2])
  x = draw(2, N, seed=3)

  def log_prob(x):
    rest = x[:, 6:]
    return tf.reduce_sum(
      least_squares_of_six(x[:, :6]) ** 2, axis=-1
    ) + tf.reduce_sum(tf.cos(rest[:, 1:] - rest[:, :-1]), axis=-1)

  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    plan = tfp_diag.plan_diag_hessian(log_prob, x)
  assert plan.num_passes == 6
  assert 'MatrixSolveLs' in ' '.join(plan.notes)
  same(plan(x)[2], hessian_by_copies(log_prob, copy_of(x)))


def test_a_pattern_names_it(cleared, no_rule_left_behind):
  break_rule('RGBToHSV', ERRORS[3])
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    pattern = tfp_diag.sparsity.jacobian_sparsity(
      function_of('RGBToHSV'), draw(2, N), sample_shape=[2]
    )
  assert pattern.fallback_ops == ("RGBToHSV (op 'RGBToHSV')",)
  found = pattern.matrix.toarray()
  assert found[:6, :6].all()
  assert found[6:, 6:].sum() == 60
  assert not found[:6, 6:].any() and not found[6:, :6].any()


def test_a_refusal_is_no_bug(cleared, no_rule_left_behind):
  """`CannotSay` is what a rule may raise."""
  break_rule('RGBToHSV', tfp_diag.sparsity.CannotSay())
  x = draw(2, N, seed=4)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    plan = tfp_diag.plan_diag_jacobian(
      function_of('RGBToHSV'), x, sample_shape=[2]
    )
  assert plan.num_passes == 6
  assert not about('RGBToHSV', caught)
