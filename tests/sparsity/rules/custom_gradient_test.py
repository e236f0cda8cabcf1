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
"""Tests functions whose gradient is the user's."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.rules import custom_gradient

SPEC = tf.TensorSpec([3], tf.float64)


@tf.custom_gradient
def softplus(x):
  def gradient(dy):
    return dy * tf.sigmoid(x)

  return tf.math.log1p(tf.exp(x)), gradient


@tf.custom_gradient
def floor_with_a_gradient(x):
  return tf.floor(x), lambda dy: dy


@tf.custom_gradient
def reversed_gradient(x):
  return 2 * x, lambda dy: tf.reverse(dy, [0])


@tf.custom_gradient
def calls_itself(x):
  """Like exp; its gradient has a custom gradient in turn."""
  return tf.exp(x), lambda dy: dy * calls_itself(x)


@tf.custom_gradient
def product(x, y):
  return x * y, lambda dz: (dz * y, dz * x)


@tf.custom_gradient
def no_gradient_for_the_second(x, y):
  return x * y, lambda dz: (dz * y, None)


def total(fn):
  return lambda *xs: tf.reduce_sum(fn(*xs))


def test_elementwise(check_rule):
  check_rule('IdentityN', softplus, (3,))
  check_rule('IdentityN', calls_itself, (3,))
  check_rule('IdentityN', product, (3,), (3,))
  check_rule('IdentityN', lambda x: softplus(x[1:] * x[:-1]), (4,))


def test_the_gradient_counts_and_not_the_function():
  assert jacobian_sparsity(tf.floor, SPEC).nnz == 0
  np.testing.assert_array_equal(
    jacobian_sparsity(floor_with_a_gradient, SPEC).matrix.toarray(), np.eye(3)
  )
  assert hessian_sparsity(total(floor_with_a_gradient), SPEC).nnz == 0
  np.testing.assert_array_equal(
    jacobian_sparsity(reversed_gradient, SPEC).matrix.toarray(),
    np.eye(3)[::-1],
  )


@tf.custom_gradient
def stops(x):
  return x * 2, lambda dy: tf.stop_gradient(dy * 2)


@tf.custom_gradient
def signs(x):
  return x * 2, lambda dy: tf.sign(dy)


@tf.custom_gradient
def compares(x):
  return x * 2, lambda dy: tf.where(dy > tf.reverse(dy, [0]), 1.0, 2.0)


@tf.custom_gradient
def branches(x):
  def gradient(dy):
    positive = tf.reduce_sum(dy) > 0
    return tf.cond(positive, lambda: tf.ones_like(x), lambda: tf.zeros_like(x))

  return x * 2, gradient


@pytest.mark.parametrize(
  'fn, expected',
  [
    (stops, np.eye(3)),
    (signs, np.eye(3)),
    (compares, np.ones([3, 3])),
    (branches, np.ones([3, 3])),
  ],
)
def test_what_a_gradient_does_with_cotangents_counts_by_value(fn, expected):
  # Whether or not it could be differentiated once more.
  pattern = jacobian_sparsity(fn, tf.TensorSpec([3]))
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)


@tf.custom_gradient
def takes_its_value(x):
  y = tf.exp(x)
  return y, lambda dy: -dy * y


@tf.custom_gradient
def chooses(x):
  return tf.exp(x), lambda dy: tf.where(x < 0, dy, dy / x)


@tf.custom_gradient
def shifted(x):
  return tf.exp(x), lambda dy: (dy + 1) * tf.exp(x)


@tf.custom_gradient
def replaced(x):
  return tf.exp(x), lambda dy: tf.where(x < 0, dy, 1.0)


@tf.custom_gradient
def clipped(x):
  return tf.exp(x), lambda dy: tf.minimum(dy, 1e9) * x


@tf.custom_gradient
def squared(x):
  return tf.exp(x), lambda dy: dy * dy * x


@tf.custom_gradient
def rounded(x):
  return 2 * x, lambda dy: tf.cast(tf.cast(dy, tf.int32), dy.dtype)


@tf.custom_gradient
def by_the_sum(x):
  return tf.exp(x), lambda dy: dy * tf.reduce_sum(x)


@tf.custom_gradient
def by_a_branch(x):
  def gradient(dy):
    return tf.cond(x[0] > 0, lambda: dy, lambda: 2 * dy)

  return 2 * x, gradient


@tf.custom_gradient
def one_for_all(x):
  return tf.reduce_sum(x), lambda dy: dy * tf.ones_like(x)


@tf.custom_gradient
def two_results(x):
  return (x, 2 * x), lambda dy, dz: dy + 2 * dz


def beside(x):
  @tf.custom_gradient
  def fn(y):
    return tf.exp(y), lambda dy: dy * tf.sin(x)

  return fn(2 * x)


ELEMENTWISE = [
  *(softplus, floor_with_a_gradient, calls_itself, takes_its_value, chooses),
  *(tf.nn.silu, lambda x: no_gradient_for_the_second(x, tf.constant(2.0))),
  *(lambda x: product(x, 2 * x), lambda x: product(tf.sin(x), 2 * x)),
  lambda x: product(x, x),
]
OTHERS = [
  *(reversed_gradient, stops, signs, compares, branches, shifted, replaced),
  *(clipped, squared, rounded, by_the_sum, by_a_branch, one_for_all),
  *(two_results, beside),
  lambda x: tf.nn.silu(x, beta=x[:1]),
]


@pytest.mark.parametrize(
  'fn, is_elementwise',
  [(fn, True) for fn in ELEMENTWISE] + [(fn, False) for fn in OTHERS],
)
def test_gradients_that_are_seen_to_be_those_of_an_elementwise_op(
  fn, is_elementwise
):
  def call(parts):
    return tf.add_n([tf.reduce_sum(y) for y in tf.nest.flatten(fn(parts[0]))])

  spec = tf.TensorSpec([3])
  walked = analyze(trace(call, lambda y, _: [y], [spec]), 0, None, True).walked
  steps = [s for s in walked.tape.steps if s.op_type == 'IdentityN']
  assert steps
  assert all((s.own_gradient is not None) == is_elementwise for s in steps)


def test_an_argument_without_gradient():
  pattern = jacobian_sparsity(no_gradient_for_the_second, [SPEC, SPEC])
  np.testing.assert_array_equal(pattern.matrix.toarray(), np.eye(3, 6))


def test_within_functions_branches_and_loops(check_rule):
  @tf.function(autograph=False)
  def called(x):
    return softplus(x) * x

  check_rule('IdentityN', called, (3,))
  check_rule(
    'IdentityN',
    lambda x: tf.cond(x[0] > 0, lambda: softplus(x), lambda: x),
    (3,),
  )
  check_rule('IdentityN', lambda x: tf.map_fn(softplus, x), (3,))


def test_what_the_gradient_needs_may_be_needed_elsewhere(check_rule):
  # The inner function is first met in the gradient of the outer one.
  def fn(x):
    inner = softplus(x * x[::-1])

    @tf.custom_gradient
    def outer(y):
      return y * inner, lambda dz: dz * inner

    return outer(x) + inner

  check_rule('IdentityN', fn, (3,), exact=False, exact_second=False)
  # As differentiated, not as computed: outer has no derivative in `inner`.
  pattern = hessian_sparsity(total(fn), SPEC)
  assert pattern.nnz >= 5


def test_a_gradient_that_cannot_be_traced_is_dense():
  @tf.custom_gradient
  def broken(x):
    def gradient(dy):
      raise RuntimeError('not today')

    return x + 0, gradient

  pattern = jacobian_sparsity(broken, SPEC)
  assert pattern.nnz == 9
  assert 'IdentityN' in pattern.fallback_ops[0]


def test_identities_of_several_tensors(check_rule):
  check_rule(
    'IdentityN',
    lambda x, y: tf.raw_ops.IdentityN(input=[x * x, y]),
    (2,),
    (3,),
  )


def test_every_op_type_is_in_a_test(op_types_of):
  assert op_types_of(custom_gradient) == {'IdentityN'}
