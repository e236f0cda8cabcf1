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
"""Tests calls, branches and variables against differences."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity
from tfp_diag.sparsity.rules import control_flow

raw = tf.raw_ops
BY_CASES = {'exact': False, 'exact_second': False}


@tf.function(autograph=False)
def shifted_product(x):
  return x[1:] * x[:-1]


@tf.function(autograph=False)
def shifted_with_a_print(x):
  # A stateful op makes the call a stateful one.
  return x[1:] * x[:-1] + 0 * tf.random.uniform([], dtype=x.dtype)


# The value of a variable is not looked at.
FLAG = tf.Variable(True)


def unknown_flag():
  return tf.identity(FLAG)


CASES = [
  ('PartitionedCall', lambda x: shifted_product(x) ** 2, [(4,)], {}),
  ('StatefulPartitionedCall', shifted_with_a_print, [(4,)], {}),
  (
    'StatelessIf',
    lambda x: tf.cond(
      tf.reduce_sum(x) > 0.0, lambda: x[1:] ** 2, lambda: x[:-1]
    ),
    [(4,)],
    BY_CASES,
  ),
  (
    'If',
    lambda x: tf.cond(
      unknown_flag(), lambda: shifted_with_a_print(x), lambda: x[:-1]
    ),
    [(4,)],
    BY_CASES,
  ),
  # The branch that is taken is known: nothing is joined.
  (
    'StatelessIf',
    lambda x: tf.cond(
      tf.reduce_sum(tf.ones_like(x)) > 0.0, lambda: x[1:] ** 2, lambda: x[:-1]
    ),
    [(4,)],
    {},
  ),
  (
    'StatelessCase',
    lambda x: tf.switch_case(
      tf.cast(tf.reduce_sum(x) > 0.0, tf.int32), [lambda: x, lambda: tf.sin(x)]
    ),
    [(3,)],
    {},
  ),
  (
    'StatelessCase',
    lambda x: tf.switch_case(7 * tf.size(x), [lambda: x, lambda: tf.sin(x)]),
    [(3,)],
    {},
  ),
  (
    'Case',
    lambda x: tf.switch_case(
      tf.cast(unknown_flag(), tf.int32),
      [lambda: shifted_with_a_print(x), lambda: x[:-1]],
    ),
    [(3,)],
    BY_CASES,
  ),
  ('Identity', lambda x: tf.identity(x) * x, [(3,)], {}),
  ('PreventGradient', lambda x: raw.PreventGradient(input=x) * 2, [(3,)], {}),
  ('Snapshot', lambda x: raw.Snapshot(input=x) ** 2, [(3,)], {}),
  (
    'PlaceholderWithDefault',
    lambda x: tf.compat.v1.placeholder_with_default(x, [3]) ** 2,
    [(3,)],
    {},
  ),
  ('EnsureShape', lambda x: tf.ensure_shape(x, [3]), [(3,)], {}),
  ('CheckNumerics', lambda x: tf.debugging.check_numerics(x, ''), [(3,)], {}),
]


@pytest.mark.parametrize(
  'op_type, fn, shapes, options', CASES, ids=[case[0] for case in CASES]
)
def test_against_differences(op_type, fn, shapes, options, check_rule):
  check_rule(op_type, fn, *shapes, **options)


def test_every_op_type_is_in_a_test(op_types_of):
  exercised = {case[0] for case in CASES} | {'ReadVariableOp'} | OPTIONALS
  assert op_types_of(control_flow) == exercised


OPTIONALS = {'OptionalFromValue', 'OptionalGetValue', 'OptionalNone'}


@pytest.mark.parametrize('op_type', sorted(OPTIONALS))
def test_the_gradient_of_a_branch(op_type, check_rule):
  def fn(x):
    y = tf.cond(x[0] > 0, lambda: tf.exp(x[1:] * x[:-1]), lambda: x[1:] ** 2)
    return tf.gradients(tf.reduce_sum(y), x)[0]

  check_rule(op_type, fn, (4,), exact_second=False)


def test_branches_are_joined():
  def fn(x):
    return tf.cond(x[0] > 0, lambda: x[1:] ** 2, lambda: x[:-1])

  spec = tf.TensorSpec([3])
  np.testing.assert_array_equal(
    jacobian_sparsity(fn, spec).matrix.toarray(), [[1, 1, 0], [0, 1, 1]]
  )
  np.testing.assert_array_equal(
    hessian_sparsity(lambda x: tf.reduce_sum(fn(x)), spec).matrix.toarray(),
    np.diag([0, 1, 1]),
  )


def test_a_variable_is_a_constant_unless_it_is_part_of_xs():
  v = tf.Variable([1.0, 2.0, 3.0])
  w = tf.Variable([3.0, 2.0, 1.0])

  def loss():
    return tf.reduce_sum(v[1:] * v[:-1] * w[1:])

  assert (
    hessian_sparsity(lambda x: tf.reduce_sum(x * v), tf.TensorSpec([3])).nnz
    == 0
  )
  np.testing.assert_array_equal(
    hessian_sparsity(loss, [v]).matrix.toarray(),
    [[0, 1, 0], [1, 0, 1], [0, 1, 0]],
  )
  assert hessian_sparsity(loss, [v, w]).shape == (6, 6)


def test_branches_with_outputs_of_different_shapes(check_rule):
  def fn(x):
    y = tf.cond(unknown_flag(), lambda: x, lambda: x[:2])
    return tf.reduce_sum(y**2)

  check_rule('StatelessIf', fn, (3,), **BY_CASES, fallback=None)


def test_branches_within_a_loop():
  """Lists of what branches hand over to their gradients are made on the way."""

  def by_row(x):
    return tf.map_fn(
      lambda r: tf.cond(tf.reduce_sum(r) > 0, lambda: r**2, lambda: r**3), x
    )

  x = tf.constant([[0.5, 0.7, 0.1], [-0.3, -0.8, 0.2]], tf.float64)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    plan = tfp_diag.plan_diag_jacobian(by_row, x, sample_shape=[2])
  assert plan.num_passes == 1
  np.testing.assert_allclose(plan(x)[1][0], [2 * x[0], 3 * x[1] ** 2])
