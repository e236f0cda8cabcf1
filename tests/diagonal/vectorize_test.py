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
"""What pfor gets wrong is put right while we use it, and only then."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.pairs import parametrize_pairs
from tfp_diag.diagonal import vectorize

ROWS = np.random.default_rng(5).normal(size=(4, 2, 5))


@pytest.mark.parametrize(
  'shift, axis', [(1, -1), (2, 0), (-1, 1), ([1, 2], [-1, -2]), ([1], [-2])]
)
@pytest.mark.parametrize('is_static', [True, False])
def test_rolls_what_it_is_given(shift, axis, is_static):
  @tf.function
  def run(rows, shift, axis):
    return vectorize.vectorized_map(lambda row: tf.roll(row, shift, axis), rows)

  arguments = [shift, axis]
  if not is_static:
    arguments = [tf.constant(a) for a in arguments]
  result = run(tf.constant(ROWS), *arguments)
  expected = [np.roll(row, shift, axis) for row in ROWS]
  np.testing.assert_array_equal(result, expected)


def test_shifts_that_differ():
  result = vectorize.vectorized_map(
    lambda both: tf.roll(both[0], both[1], -1),
    (tf.constant(ROWS), tf.range(4)),
  )
  expected = [np.roll(ROWS[k], k, -1) for k in range(4)]
  np.testing.assert_array_equal(result, expected)


RNG = np.random.default_rng(6)
INDICES = tf.constant([[2], [0], [2], [5]])
SPARSE = tf.sparse.from_dense(
  RNG.normal(size=[3, 4]) * (RNG.random([3, 4]) > 0.5)
)


def sparse_matmul(x, **kwargs):
  sparse = tf.sparse.transpose(SPARSE) if kwargs.get('adjoint_a') else SPARSE
  return tf.sparse.sparse_dense_matmul(sparse, x, **kwargs)


def segment_gradient(name):
  """Of four segments, of which the second and the last one are empty."""
  return lambda x: getattr(tf.raw_ops, name)(
    grad=x, indices=[4, 0, 0, 2], segment_ids=[0, 0, 0, 2], output_dim0=5
  )


OPS = {
  'CumulativeLogsumexp': (tf.math.cumulative_logsumexp, [4, 5]),
  'CumulativeLogsumexp of the last axis': (
    lambda x: tf.math.cumulative_logsumexp(x, -1, True, True),
    [4, 5],
  ),
  'MirrorPad': (lambda x: tf.pad(x, [[1, 2], [0, 1]], 'REFLECT'), [4, 5]),
  'MirrorPadGrad': (
    lambda x: tf.raw_ops.MirrorPadGrad(
      input=x, paddings=[[1, 2], [0, 1]], mode='SYMMETRIC'
    ),
    [7, 5],
  ),
  'PadV2': (
    lambda x: tf.pad(x, [[1, 2], [0, 1]], constant_values=0.3),
    [4, 5],
  ),
  'ReverseSequence': (
    lambda x: tf.reverse_sequence(x, [3, 1, 2, 5], 1, 0),
    [4, 5],
  ),
  'ScatterNd': (lambda x: tf.scatter_nd(INDICES, x, [6, 3]), [4, 3]),
  'ScatterNd of scalars': (
    lambda x: tf.scatter_nd(INDICES, x, [6]),
    [4],
  ),
  'SegmentSum': (lambda x: tf.math.segment_sum(x, [0, 0, 2, 2]), [4, 3]),
  **{
    name: (segment_gradient(name), [4, 3])
    for name in (
      'SparseSegmentMeanGrad',
      'SparseSegmentSqrtNGrad',
      'SparseSegmentSumGrad',
    )
  },
  'SparseTensorDenseMatMul': (sparse_matmul, [4, 2]),
  'SparseTensorDenseMatMul of both turned': (
    lambda x: sparse_matmul(x, adjoint_a=True, adjoint_b=True),
    [2, 4],
  ),
  'TensorScatterAdd': (
    lambda x: tf.tensor_scatter_nd_add(x, INDICES, x[:4] ** 2),
    [6, 2],
  ),
  'TensorScatterAdd of constants': (
    lambda x: tf.tensor_scatter_nd_add(x, INDICES, tf.ones([4, 2], x.dtype)),
    [6, 2],
  ),
  'TensorScatterSub': (
    lambda x: tf.tensor_scatter_nd_sub(
      tf.ones([6, 2], x.dtype), INDICES, x[:4]
    ),
    [6, 2],
  ),
  'TridiagonalMatMul': (
    lambda x: tf.linalg.tridiagonal_matmul(
      (x[0], tf.ones_like(x[0]), x[1]), x[2:], 'sequence'
    ),
    [7, 5],
  ),
  'TridiagonalSolve': (
    lambda x: tf.linalg.tridiagonal_solve(
      tf.constant(
        [[1.0, 1, 1, 1, 0], [9, 9, 9, 9, 9], [0, 2, 2, 2, 2]], x.dtype
      ),
      x,
    ),
    [5, 2],
  ),
}


@pytest.mark.parametrize('is_open', [False, True])
@pytest.mark.parametrize('name', OPS)
def test_ops_that_pfor_does_not_know(name, is_open):
  op, shape = OPS[name]
  rows = tf.constant(RNG.normal(size=[3, *shape]))
  shape = [None] * rows.shape.rank if is_open else rows.shape
  spec = tf.TensorSpec(shape, rows.dtype)

  @tf.function(input_signature=[spec], autograph=False)
  def run(rows):
    return vectorize.vectorized_map(op, rows)

  expected = np.stack([op(row) for row in rows])
  np.testing.assert_allclose(run(rows), expected, rtol=1e-12)
  ops = run.get_concrete_function().graph.get_operations()
  types = {op.type for op in ops}
  assert name.split()[0] in types and not types & {'While', 'StatelessWhile'}


@pytest.mark.parametrize('count', [3, 4, 1])
@pytest.mark.parametrize('differ', ['items', 'indices', 'both'])
def test_items_gathered_from_a_list(count, differ):
  """Also as many as there are rows, where the axes may be in any order."""
  rows = tf.constant(RNG.normal(size=[3, 5, 2]))
  picks = tf.constant(RNG.integers(0, 5, [3, count]), tf.int32)

  def gathered(both):
    row, pick = both
    row = row if differ != 'indices' else rows[0]
    pick = pick if differ != 'items' else picks[0]
    return tf.TensorArray(row.dtype, 5).unstack(row).gather(pick)

  def run(elems):
    return vectorize.vectorized_map(gathered, elems)

  expected = np.stack([gathered(both) for both in zip(rows, picks)])
  for function in (run, tf.function(run, autograph=False)):
    np.testing.assert_array_equal(function((rows, picks)), expected)


MIXING = tf.constant(RNG.normal(size=[2, 12, 12]))


def scattered(x, reads='stack'):
  """A dense function through a list, whose gradient gathers from a list."""
  columns = tf.transpose(tf.matmul(x, MIXING[0]) ** 2)
  order = np.roll(np.arange(12)[::-1], 3)
  items = tf.TensorArray(x.dtype, 12).scatter(order, columns)
  rest = (np.arange(12),) if reads == 'gather' else ()
  columns = tf.ensure_shape(getattr(items, reads)(*rest), [12, None])
  return tf.matmul(tf.transpose(columns), MIXING[1])


# As many passes in a chunk as items, or fewer.
@pytest.mark.parametrize('parallel_iterations', [12, 8])
@pytest.mark.parametrize('reads', ['stack', 'gather'])
def test_derivatives_through_scattered_lists(reads, parallel_iterations):
  x = tf.constant(np.random.default_rng(8).normal(size=(3, 12)))
  found = [
    tfp_diag.diag_jacobian(
      x,
      fn=lambda x: scattered(x, reads),
      sample_shape=[3],
      schedule=schedule,
      parallel_iterations=parallel_iterations,
    )[1][0]
    for schedule in ('pfor', 'unrolled')
  ]
  np.testing.assert_allclose(*found, rtol=1e-10)


def _refuse(row):
  raise tf.errors.UnimplementedError(None, None, 'not this one')


def test_nothing_of_tensorflow_stays_changed():
  before = vectorize._REGISTRY['Roll']
  seen = []

  def roll(row):
    # Nested, as in a derivative of a derivative.
    vectorize.vectorized_map(lambda x: tf.roll(x, 1, -1), row)
    seen.append(vectorize._REGISTRY['Roll'])
    return tf.roll(row, 1, -1)

  vectorize.vectorized_map(roll, tf.constant(ROWS))
  assert before not in seen
  with pytest.raises(tf.errors.OpError):
    vectorize.vectorized_map(_refuse, tf.constant(ROWS))
  assert vectorize._REGISTRY['Roll'] is before
  assert 'ScatterNd' not in vectorize._REGISTRY


def ring(x):
  """Every coordinate meets every other one, along two negative axes."""
  x = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [3, 4]], 0))
  around = tf.roll(x, 1, axis=-1) * tf.roll(x**2, [2, 1], axis=[-2, -1])
  total = tf.reduce_prod(1.0 + 0.1 * x, [-1, -2], keepdims=True)
  return tf.reshape(total * around, tf.concat([tf.shape(x)[:-2], [12]], 0))


def slices(x):
  """Slices, whose gradients are another op under XLA, of any place."""
  largest = tf.argmax(tf.reduce_sum(x, list(range(len(x.shape) - 1))))
  begin = [0] * (len(x.shape) - 1)
  size = [-1] * (len(x.shape) - 1)
  left = tf.slice(x, [*begin, 2], [*size, 5])
  right = tf.slice(
    x, tf.concat([tf.constant(begin, tf.int64), [largest % 6]], 0), [*size, 5]
  )
  total = tf.reduce_prod(1.0 + 0.1 * x, -1, keepdims=True)
  return total * tf.concat([left * right, tf.sin(right), x[..., :2]], -1)


@parametrize_pairs(
  fn=[ring, slices], mode=['forward', 'reverse'], jit_compile=[False, True]
)
@pytest.mark.filterwarnings('error:pfor cannot:RuntimeWarning')
def test_derivatives_of_all_passes_at_once(fn, mode, jit_compile):
  x = tf.constant(np.random.default_rng(6).normal(size=(3, 12)))

  @tf.function(jit_compile=jit_compile)
  def run(x):
    _, diag = tfp_diag.diag_jacobian(
      x, fn=fn, sample_shape=[3], mode=mode, schedule='pfor'
    )
    _, _, curvature = tfp_diag.diag_hessian(
      lambda x: tf.reduce_sum(fn(x) ** 2, -1),
      x,
      mode=f'{mode}_over_reverse',
      schedule='pfor',
    )
    dense = tfp_diag.jacobian(fn, x, sample_shape=[3], mode=mode)
    return diag[0], curvature, dense

  def numerical(f, x):
    steps = 1e-5 * np.eye(12)
    return np.stack([(f(x + h) - f(x - h)).numpy() / 2e-5 for h in steps], -1)

  diag, curvature, dense = run(x)
  expected = numerical(fn, x.numpy())
  np.testing.assert_allclose(dense, expected, atol=1e-8)
  np.testing.assert_allclose(
    diag, np.diagonal(expected, axis1=1, axis2=2), atol=1e-8
  )

  def gradient(x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = tf.reduce_sum(fn(x) ** 2)
    return tape.gradient(value, x)

  expected = np.diagonal(numerical(gradient, x.numpy()), axis1=1, axis2=2)
  np.testing.assert_allclose(curvature, expected, atol=1e-6)


@pytest.mark.parametrize(
  'fn, op_type', [(ring, 'Roll'), (scattered, 'TensorListGather')]
)
def test_another_tensorflow_takes_the_loop(monkeypatch, fn, op_type):
  monkeypatch.setattr(vectorize, '_REGISTRY', None)
  x = tf.constant(np.random.default_rng(7).normal(size=(2, 12)))
  with pytest.warns(RuntimeWarning, match=f'cannot vectorize the op {op_type}'):
    _, diag = tfp_diag.diag_jacobian(
      x, fn=fn, sample_shape=[2], schedule='pfor'
    )
  _, loop = tfp_diag.diag_jacobian(
    x, fn=fn, sample_shape=[2], schedule='while_loop'
  )
  np.testing.assert_allclose(diag[0], loop[0], rtol=1e-10)
