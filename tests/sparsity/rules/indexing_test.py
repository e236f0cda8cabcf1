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
"""Tests gathers, scatters and segments against differences."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity.detect import jacobian_sparsity
from tfp_diag.sparsity.rules import indexing

raw = tf.raw_ops


def unknown(indices):
  """Indices whose value nobody knows before the function runs."""
  noise = tf.random.uniform([], 0, 1, tf.int32)
  return tf.constant(indices, tf.int32) + 0 * noise


BY_CASES = {'exact': False, 'exact_second': False}
SUPERSET = {'exact_second': False}
SPARSE_SEGMENTS = {
  'Sum': tf.sparse.segment_sum,
  'Mean': tf.sparse.segment_mean,
  'SqrtN': tf.sparse.segment_sqrt_n,
}
CASES = [
  ('GatherV2', lambda x: tf.gather(x, [1, 1, 0]), [(3, 2)], {}),
  ('GatherV2', lambda x: tf.gather(x, [[2], [0]], axis=1), [(2, 3)], {}),
  (
    'GatherV2',
    lambda x: tf.gather(x, [[2, 0], [1, 1]], axis=1, batch_dims=1),
    [(2, 3, 2)],
    {},
  ),
  (
    'GatherV2',
    lambda x: tf.gather(x, unknown([1, 0]), axis=1),
    [(2, 3, 2)],
    BY_CASES,
  ),
  (
    'GatherV2',
    lambda x: tf.gather(x, unknown([[1], [0]]), axis=1, batch_dims=1),
    [(2, 3, 2)],
    BY_CASES,
  ),
  ('GatherV2', lambda x: tf.gather(x, tf.zeros([0], tf.int32)), [(3,)], {}),
  (
    'Gather',
    lambda x: raw.Gather(params=x, indices=[1, 0, 1]),
    [(3, 2)],
    {},
  ),
  ('GatherNd', lambda x: tf.gather_nd(x, [[0, 1], [1, 2]]), [(2, 3)], {}),
  (
    'GatherNd',
    lambda x: tf.gather_nd(x, unknown([[0, 1], [1, 2]])),
    [(2, 3)],
    BY_CASES,
  ),
  (
    'Select',
    lambda x, y: raw.Select(condition=[True, False], x=x, y=y),
    [(2, 3), (2, 3)],
    {},
  ),
  (
    'Select',
    lambda x, y: raw.Select(condition=x > 0.6, x=x, y=y),
    [(4,), (4,)],
    BY_CASES,
  ),
  (
    'DynamicStitch',
    lambda x, y: tf.dynamic_stitch([[0, 2], [1, 3]], [x, y]),
    [(2, 2), (2, 2)],
    {},
  ),
  (
    'ParallelDynamicStitch',
    lambda x, y: raw.ParallelDynamicStitch(
      indices=[[0, 3], [1, 2]], data=[x, y]
    ),
    [(2, 2), (2, 2)],
    {},
  ),
  (
    'TensorScatterUpdate',
    lambda x, u: tf.tensor_scatter_nd_update(x, [[2], [0]], u),
    [(4, 2), (2, 2)],
    {},
  ),
  (
    'TensorScatterAdd',
    lambda x, u: tf.tensor_scatter_nd_add(x, [[2], [2]], u),
    [(4, 2), (2, 2)],
    {},
  ),
  (
    'TensorScatterSub',
    lambda x, u: tf.tensor_scatter_nd_sub(x, [[1, 0]], u),
    [(4, 2), (1,)],
    {},
  ),
  (
    'TensorScatterMax',
    lambda x, u: tf.tensor_scatter_nd_max(x, [[1], [3]], u),
    [(4,), (2,)],
    BY_CASES,
  ),
  (
    'TensorScatterMin',
    lambda x, u: tf.tensor_scatter_nd_min(x, [[1], [3]], u),
    [(4,), (2,)],
    BY_CASES,
  ),
  (
    'ScatterNd',
    lambda u: tf.scatter_nd([[1], [3], [1]], u, [5, 2]),
    [(3, 2)],
    {},
  ),
  (
    'ScatterNdNonAliasingAdd',
    lambda x, u: raw.ScatterNdNonAliasingAdd(
      input=x, indices=[[1], [1]], updates=u
    ),
    [(3,), (2,)],
    {},
  ),
  ('SegmentSum', lambda x: tf.math.segment_sum(x, [0, 0, 2]), [(3, 2)], {}),
  ('SegmentMean', lambda x: tf.math.segment_mean(x, [0, 1, 1]), [(3, 2)], {}),
  *(
    (
      f'SparseSegment{name}',
      lambda x, op=op: op(x, [1, 0, 1, 3], [0, 0, 2, 2]),
      [(4, 2)],
      {},
    )
    for name, op in SPARSE_SEGMENTS.items()
  ),
  *(
    (
      f'SparseSegment{name}WithNumSegments',
      lambda x, op=op: op(x, [1, 0, 1, 1], [0, 0, 2, 2], num_segments=4),
      [(3, 2)],
      {},
    )
    for name, op in SPARSE_SEGMENTS.items()
  ),
  *(
    (
      f'SparseSegment{name}Grad',
      lambda x, op=op: op(
        grad=x, indices=[1, 0, 1, 3], segment_ids=[0, 0, 2, 2], output_dim0=5
      ),
      [(3, 2)],
      {},
    )
    for name, op in (
      ('Sum', raw.SparseSegmentSumGrad),
      ('Mean', raw.SparseSegmentMeanGrad),
      ('SqrtN', raw.SparseSegmentSqrtNGrad),
    )
  ),
  ('SegmentMax', lambda x: tf.math.segment_max(x, [0, 1, 1]), [(3,)], BY_CASES),
  ('SegmentMin', lambda x: tf.math.segment_min(x, [0, 1, 1]), [(3,)], BY_CASES),
  (
    'SegmentProd',
    lambda x: tf.math.segment_prod(x, [0, 1, 1]),
    [(3, 2)],
    SUPERSET,
  ),
  (
    'UnsortedSegmentSum',
    lambda x: tf.math.unsorted_segment_sum(x, [2, -1, 2, 0], 4),
    [(4, 2)],
    {},
  ),
  (
    'UnsortedSegmentMax',
    lambda x: tf.math.unsorted_segment_max(x, [1, 0, 1], 2),
    [(3,)],
    BY_CASES,
  ),
  (
    'UnsortedSegmentMin',
    lambda x: tf.math.unsorted_segment_min(x, [1, 0, 1], 2),
    [(3,)],
    BY_CASES,
  ),
  (
    'UnsortedSegmentProd',
    lambda x: tf.math.unsorted_segment_prod(x, [1, 0, 1], 2),
    [(3,)],
    SUPERSET,
  ),
  (
    'SparseTensorDenseMatMul',
    lambda x: tf.sparse.sparse_dense_matmul(
      tf.sparse.SparseTensor(
        [[0, 1], [2, 0]], tf.constant([1.0, 2.0], tf.float64), [3, 2]
      ),
      x,
    ),
    [(2, 3)],
    {},
  ),
  (
    'SparseTensorDenseMatMul',
    lambda x: tf.sparse.sparse_dense_matmul(
      tf.sparse.SparseTensor(
        [[0, 1], [2, 0]], tf.constant([1.0, 2.0], tf.float64), [3, 2]
      ),
      x,
      adjoint_a=True,
    ),
    [(3, 2)],
    {},
  ),
  *(
    (
      'SparseTensorDenseMatMul',
      lambda x, turned=turned: tf.sparse.sparse_dense_matmul(
        tf.sparse.SparseTensor(
          [[0, 1], [2, 0]], tf.constant([1.0, 2.0], tf.float64), [3, 2]
        ),
        x,
        adjoint_a=turned,
        adjoint_b=True,
      ),
      [(4, 3 if turned else 2)],
      {},
    )
    for turned in (False, True)
  ),
]


@pytest.mark.parametrize(
  'op_type, fn, shapes, options', CASES, ids=[case[0] for case in CASES]
)
def test_against_differences(op_type, fn, shapes, options, check_rule):
  check_rule(op_type, fn, *shapes, **options)


VARIABLE = tf.Variable(tf.reshape(tf.range(6.0), [3, 2]))
FROM_VARIABLES = [
  ('ResourceGather', lambda: tf.gather(VARIABLE, [2, 0])),
  ('ResourceGatherNd', lambda: VARIABLE.gather_nd([[2], [0]])),
]


@pytest.mark.parametrize('op_type, fn', FROM_VARIABLES)
def test_gathers_from_variables(op_type, fn):
  graph = tf.function(fn).get_concrete_function().graph
  assert op_type in {op.type for op in graph.get_operations()}
  pattern = jacobian_sparsity(fn, [VARIABLE])
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), np.eye(6)[[4, 5, 0, 1]]
  )


def test_every_op_type_is_in_a_test(op_types_of):
  exercised = {case[0] for case in [*CASES, *FROM_VARIABLES]}
  assert op_types_of(indexing) == exercised


def test_a_hierarchical_sum(check_rule):
  groups = tf.constant([0, 1, 1, 0])

  def log_density(mu, group, x):
    return tf.reduce_sum(
      tf.square(x - tf.gather(group, groups))
    ) + tf.reduce_sum(tf.square(group - mu))

  check_rule('GatherV2', log_density, (), (2,), (4,))
