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
"""Tests products of tensors against differences."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity import registry
from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity
from tfp_diag.sparsity.rules import contraction

raw = tf.raw_ops
MATRIX = tf.constant(np.arange(1.0, 7.0).reshape(2, 3))
BIDIAGONAL = tf.constant([[1.0, 0, 0], [2, 1, 0], [0, 3, 1]], tf.float64)

CASES = [
  ('MatMul', lambda x, y: x @ y, [(2, 3), (3, 4)]),
  ('MatMul', lambda x, y: tf.matmul(x, y, transpose_a=True), [(3, 2), (3, 1)]),
  ('MatMul', lambda x, y: tf.matmul(x, y, transpose_b=True), [(2, 3), (4, 3)]),
  ('MatMul', lambda x, y: x @ y, [(2, 0), (0, 3)]),
  ('MatMul', lambda x, y: x @ y, [(1, 1), (1, 2)]),
  ('MatMul', lambda x: MATRIX @ x, [(3, 2)]),
  ('MatMul', lambda x: BIDIAGONAL @ x, [(3, 2)]),
  ('MatMul', lambda x: tf.matmul(x, BIDIAGONAL, transpose_b=True), [(2, 3)]),
  ('MatMul', lambda x: x @ x, [(3, 3)]),
  (
    'SparseMatMul',
    lambda x: tf.cast(
      raw.SparseMatMul(
        a=tf.cast(tf.cast(x, tf.float32) * 4, tf.float32),
        b=tf.cast(BIDIAGONAL, tf.float32),
      ),
      tf.float64,
    ),
    [(2, 3)],
  ),
  (
    'BatchMatMul',
    lambda x, y: raw.BatchMatMul(x=x, y=y, adj_x=True),
    [(2, 3, 1), (2, 3, 2)],
  ),
  ('BatchMatMulV2', lambda x, y: x @ y, [(2, 1, 3), (3, 2)]),
  ('BatchMatMulV2', lambda x, y: x @ y, [(2, 1, 1, 2), (3, 2, 1)]),
  ('BatchMatMulV2', lambda x: BIDIAGONAL @ x, [(2, 3, 1)]),
  (
    'BatchMatMulV3',
    lambda x, y: raw.BatchMatMulV3(x=x, y=y, Tout=tf.float64, adj_y=True),
    [(2, 1, 3), (2, 2, 3)],
  ),
  ('Einsum', lambda x, y: tf.einsum('ij,jk->ki', x, y), [(2, 3), (3, 2)]),
  ('Einsum', lambda x, y: tf.einsum('bi,bi->b', x, y), [(2, 3), (2, 3)]),
  ('Einsum', lambda x: tf.einsum('ij,bj->bi', BIDIAGONAL, x), [(2, 3)]),
  ('Einsum', lambda x, y: tf.einsum('i,j->ij', x, y), [(2,), (3,)]),
  ('Einsum', lambda x: tf.einsum('iij->j', x), [(2, 2, 3)]),
  (
    'Einsum',
    lambda x, y: raw.Einsum(inputs=[x, y], equation='...ij,...j->...i'),
    [(2, 2, 3), (3,)],
  ),
  (
    'Einsum',
    lambda x: raw.Einsum(inputs=[x, BIDIAGONAL], equation='...i,ij->...j'),
    [(2, 3)],
  ),
]
# A float32 op: differences of doubles are too rough.
ROUGH = frozenset(['SparseMatMul'])


@pytest.mark.parametrize(
  'op_type, fn, shapes',
  [case for case in CASES if case[0] not in ROUGH],
)
def test_against_differences(op_type, fn, shapes, check_rule):
  check_rule(op_type, fn, *shapes)


def test_sparse_matmul_has_the_zeros_of_its_constant():
  def product(x):
    return raw.SparseMatMul(a=x, b=tf.cast(BIDIAGONAL, tf.float32))

  pattern = jacobian_sparsity(product, tf.TensorSpec([1, 3]))
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), BIDIAGONAL.numpy().T != 0
  )


def test_every_op_type_is_in_a_test(op_types_of):
  assert op_types_of(contraction) == {case[0] for case in CASES}


def test_a_quadratic_form_has_the_pattern_of_its_matrix(check_rule):
  def form(x):
    return tf.einsum('i,ij,j->', x, BIDIAGONAL, x)

  check_rule('Einsum', form, (3,))
  check_rule(
    'MatMul',
    lambda x: tf.reduce_sum(x * tf.linalg.matvec(BIDIAGONAL, x)),
    (3,),
  )


def test_a_generalized_linear_model_is_one_clique():
  rng = np.random.default_rng(1)
  design = tf.constant(rng.normal(size=[50, 4]))

  def log_density(beta):
    return -tf.reduce_sum(tf.nn.softplus(tf.linalg.matvec(design, beta)))

  pattern = hessian_sparsity(log_density, tf.TensorSpec([4], tf.float64))
  assert pattern.nnz == 16


def test_variables_are_not_read():
  # Zeros of a variable do not last.
  kernel = tf.Variable(tf.zeros([3, 2], tf.float64))
  pattern = jacobian_sparsity(
    lambda x: x @ kernel, tf.TensorSpec([1, 3], tf.float64)
  )
  assert pattern.nnz == 6


# Beside those above: orders of axes, diagonals, sums of one operand alone.
EQUATIONS = [
  ('ik,kjl->jli', [(2, 3), (3, 4, 2)]),
  ('...i,j...->...ji', [(2, 5, 3), (4, 2, 5)]),
  ('iik,ki->k', [(3, 3, 2), (2, 3)]),
  ('ij,kk->i', [(3, 2), (2, 2)]),
  ('ki,kj->ij', [(4, 1), (4, 1)]),
  ('a...b,b...->...a', [(1, 1, 3, 2), (2, 5, 3)]),
]


@pytest.mark.parametrize('has_sizes', [True, False])
@pytest.mark.parametrize(
  'fn, shapes',
  [
    (fn, shapes)
    for op_type, fn, shapes in CASES
    if op_type not in ROUGH and len(shapes) == 2
  ]
  + [
    (
      lambda x, y, equation=equation: raw.Einsum(
        inputs=[x, y], equation=equation
      ),
      shapes,
    )
    for equation, shapes in EQUATIONS
  ],
)
def test_written_out(fn, shapes, has_sizes):
  """The same values, also where sizes are not known while a graph is built."""
  rng = np.random.default_rng(4)
  factors = [tf.constant(rng.normal(size=shape)) for shape in shapes]
  specs = [
    tf.TensorSpec(shape if has_sizes else [None] * len(shape), tf.float64)
    for shape in shapes
  ]

  @tf.function(input_signature=specs, autograph=False)
  def both(*factors):
    result = fn(*factors)
    ops = tf.compat.v1.get_default_graph().get_operations()
    (op,) = [op for op in ops if registry.facts(op.type).products]
    written_out = registry.facts(op.type).written_out
    return tf.reshape(written_out(op, *op.inputs), tf.shape(result)), result

  np.testing.assert_allclose(*both(*factors), rtol=1e-13)
