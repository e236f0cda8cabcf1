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
"""Tests that rules cover what TensorFlow's gradients return.

A pass is a gradient function, and that is not always the derivative: at ties,
at duplicate indices and for symmetric matrices it is something else. Compared
with dense gradients of first and second order, at points with ties as well.
"""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity

raw = tf.raw_ops

# Two slices go to place 2, and none to place 1.
TWICE = [[2], [0], [2]]
SEGMENTS = [0, 0, 2]
UNSORTED = [2, -1, 2, 0]


def sort_both_ways(x):
  return [tf.sort(x), tf.sort(x, direction='DESCENDING')]


def scattered(op):
  return [
    (op, lambda x, u: getattr(raw, op)(tensor=x, indices=TWICE, updates=u), s)
    for s in ([(3,), (3,)], [(3, 2), (3, 2)])
  ] + [
    (
      op,
      lambda x, u: getattr(raw, op)(
        tensor=x, indices=tf.zeros([0, 1], tf.int32), updates=u
      ),
      [(3,), (0,)],
    ),
    (
      op,
      lambda x, u: getattr(raw, op)(tensor=x, indices=[[0], [0]], updates=u),
      [(1,), (2,)],
    ),
  ]


def segmented(op, ids, *more):
  function = getattr(tf.math, op)
  return [
    (op, lambda x: function(x, ids, *more), [(len(ids),)]),
    (op, lambda x: function(x, ids, *more), [(len(ids), 2)]),
    (op, lambda x: function(x, ids[:1], *more), [(1,)]),
    (op, lambda x: function(x, tf.constant(ids)[:0], *more), [(0,)]),
  ]


CASES = [
  *scattered('TensorScatterUpdate'),
  *scattered('TensorScatterAdd'),
  *scattered('TensorScatterSub'),
  *scattered('TensorScatterMin'),
  *scattered('TensorScatterMax'),
  ('ScatterNd', lambda u: tf.scatter_nd(TWICE, u, [4]), [(3,)]),
  ('ScatterNd', lambda u: tf.scatter_nd(TWICE, u, [4, 1]), [(3, 1)]),
  ('ScatterNd', lambda u: tf.scatter_nd([[0, 1], [0, 1]], u, [2, 2]), [(2,)]),
  (
    'ScatterNdNonAliasingAdd',
    lambda x, u: raw.ScatterNdNonAliasingAdd(input=x, indices=TWICE, updates=u),
    [(3,), (3,)],
  ),
  *(
    (
      f'sparse.{name}',
      lambda x, op=op: op(x, [1, 0, 1, 3], [0, 0, 1, 1]),
      [(4, 2)],
    )
    for name, op in (
      ('segment_sum', tf.sparse.segment_sum),
      ('segment_mean', tf.sparse.segment_mean),
      ('segment_sqrt_n', tf.sparse.segment_sqrt_n),
    )
  ),
  *segmented('segment_sum', SEGMENTS),
  *segmented('segment_mean', SEGMENTS),
  *segmented('segment_min', SEGMENTS),
  *segmented('segment_max', SEGMENTS),
  *segmented('segment_prod', SEGMENTS),
  *segmented('unsorted_segment_sum', UNSORTED, 4),
  *segmented('unsorted_segment_mean', UNSORTED, 4),
  *segmented('unsorted_segment_sqrt_n', UNSORTED, 4),
  *segmented('unsorted_segment_min', UNSORTED, 4),
  *segmented('unsorted_segment_max', UNSORTED, 4),
  *segmented('unsorted_segment_prod', UNSORTED, 4),
  (
    'dynamic_stitch',
    lambda x, y: tf.dynamic_stitch([[0, 2], [1, 2]], [x, y]),
    [(2,), (2,)],
  ),
  (
    'dynamic_stitch',
    lambda x, y: tf.dynamic_stitch([2, [[0, 2], [1, 0]]], [x, y]),
    [(2,), (2, 2, 2)],
  ),
  (
    'dynamic_stitch',
    lambda x: tf.dynamic_stitch([[0, 0, 1]], [x]),
    [(3, 1)],
  ),
  (
    'dynamic_stitch',
    lambda x, y: tf.dynamic_stitch([tf.zeros([0], tf.int32), [0]], [x, y]),
    [(0, 2), (1, 2)],
  ),
  (
    'ParallelDynamicStitch',
    lambda x, y: raw.ParallelDynamicStitch(
      indices=[[0, 2], [1, 2]], data=[x, y]
    ),
    [(2,), (2,)],
  ),
  (
    'dynamic_partition',
    lambda x: tf.dynamic_partition(x, [1, 0, 1], 3),
    [(3, 2)],
  ),
  ('max', lambda x: tf.reduce_max(x, 1), [(2, 3)]),
  ('max', tf.reduce_max, [(1,)]),
  ('max', lambda x: tf.reduce_max(x, [0, 2]), [(2, 3, 2)]),
  ('min', lambda x: tf.reduce_min(x, 0, keepdims=True), [(3, 2)]),
  ('norm', lambda x: tf.math.reduce_euclidean_norm(x, 1), [(2, 2)]),
  ('prod', lambda x: tf.reduce_prod(x, 1), [(2, 3)]),
  ('cumprod', lambda x: tf.math.cumprod(x, 1, reverse=True), [(2, 3)]),
  ('cumprod', lambda x: tf.math.cumprod(x, exclusive=True), [(3,)]),
  ('cumprod', tf.math.cumprod, [(0,)]),
  ('cumulative_logsumexp', tf.math.cumulative_logsumexp, [(3,)]),
  (
    'cumulative_logsumexp',
    lambda x: tf.math.cumulative_logsumexp(x, exclusive=True, reverse=True),
    [(3,)],
  ),
  ('top_k', lambda x: tf.math.top_k(x, 2).values, [(2, 3)]),
  ('top_k', lambda x: tf.math.top_k(x, 0).values, [(2, 3)]),
  ('top_k', lambda x: tf.math.top_k(x, 1).values, [(1,)]),
  ('NthElement', lambda x: raw.NthElement(input=x, n=1), [(2, 3)]),
  ('sort', sort_both_ways, [(2, 3)]),
  ('sort', sort_both_ways, [(1,)]),
  ('gather', lambda x: tf.gather(x, [1, 1, 0]), [(2, 2)]),
  ('gather', lambda x: tf.gather(x, tf.zeros([0], tf.int32)), [(2, 2)]),
  (
    'gather',
    lambda x: tf.gather(x, [[1, 1], [0, 1]], axis=1, batch_dims=1),
    [(2, 2)],
  ),
  ('gather_nd', lambda x: tf.gather_nd(x, [[0, 1], [0, 1]]), [(2, 2)]),
  ('select', lambda x, y: tf.where(x > y, x, y), [(3,), (3,)]),
  ('select', lambda x, y: tf.where(x > y, x * y, y), [(2, 1), (3,)]),
  (
    'Select',
    lambda x, y: raw.Select(condition=[True, False], x=x, y=y),
    [(2, 2), (2, 2)],
  ),
  ('maximum', lambda x, y: tf.maximum(x, y), [(2, 1), (3,)]),
  ('minimum', lambda x, y: tf.minimum(x, y), [(3,), (3,)]),
  ('clip', lambda x: tf.clip_by_value(x, 0.0, 1.0), [(4,)]),
  ('clip', lambda x, a, b: tf.clip_by_value(x, a, b), [(3,), (), (3,)]),
  ('relu', lambda x: [tf.nn.relu(x), tf.nn.relu6(x), tf.abs(x)], [(3,)]),
  ('floormod', lambda x, y: tf.math.floormod(x, y + 3), [(3,), (3,)]),
  ('set_diag', lambda x, d: tf.linalg.set_diag(x, d), [(2, 3), (2,)]),
  (
    'set_diag',
    lambda x, d: tf.linalg.set_diag(x, d, k=(-1, 1)),
    [(3, 3), (3, 3)],
  ),
  (
    'set_diag',
    lambda x, d: tf.linalg.set_diag(x, d, k=(-1, 0), align='LEFT_RIGHT'),
    [(2, 2, 3), (2, 2, 2)],
  ),
  ('set_diag', lambda x, d: tf.linalg.set_diag(x, d), [(1, 1), (1,)]),
  ('diag', lambda d: tf.linalg.diag(d, k=(-1, 1)), [(3, 3)]),
  (
    'diag_part',
    lambda x, p: tf.linalg.diag_part(x, k=(-1, 2), padding_value=p),
    [(2, 3), ()],
  ),
  ('band_part', lambda x: tf.linalg.band_part(x, 0, 1), [(3, 3)]),
  ('pad', lambda x: tf.pad(x, [[1, 1]], 'REFLECT'), [(3,)]),
  ('pad', lambda x: tf.pad(x, [[1, 1]], 'SYMMETRIC'), [(1,)]),
  ('tile', lambda x: tf.tile(x, [2, 0]), [(2, 1)]),
  ('tile', lambda x: tf.tile(x, [2, 2]), [(2, 1)]),
  ('broadcast', lambda x: tf.broadcast_to(x, [2, 3]), [(1, 3)]),
  (
    'update',
    lambda x, v: raw.TensorStridedSliceUpdate(
      input=x, begin=[1], end=[4], strides=[2], value=v
    ),
    [(5,), (2,)],
  ),
  ('max_pool', lambda x: tf.nn.max_pool1d(x, 2, 1, 'SAME'), [(1, 3, 1)]),
  # The gradient is symmetric: as if the upper triangle were read as well.
  ('Cholesky', lambda x: tf.linalg.cholesky(x + 4 * EYE), [(3, 3)]),
  ('Cholesky', lambda x: tf.linalg.cholesky(x + 4 * EYE)[:2, :2], [(3, 3)]),
  ('Cholesky', lambda x: tf.linalg.cholesky(x + 4.0), [(2, 1, 1)]),
  ('eigh', lambda x: tf.linalg.eigh(x + BASE)[0], [(3, 3)]),
  ('eigh', lambda x: tf.linalg.eigvalsh(x + BASE), [(3, 3)]),
  (
    'solve',
    lambda a, b: tf.linalg.triangular_solve(a + 4 * EYE, b),
    [(3, 3), (3, 2)],
  ),
  (
    'solve',
    lambda a, b: tf.linalg.triangular_solve(
      a + 4 * EYE, b, lower=False, adjoint=True
    ),
    [(3, 3), (2, 3, 1)],
  ),
  ('solve', lambda a, b: tf.linalg.solve(a + 4 * EYE, b), [(3, 3), (3, 1)]),
  ('inv', lambda a: tf.linalg.inv(a + 4 * EYE), [(3, 3)]),
  ('det', lambda a: tf.linalg.det(a + 4 * EYE), [(3, 3)]),
  (
    'tridiagonal',
    lambda d, b: tf.linalg.tridiagonal_solve(
      d + 4 * EYE[1], b, partial_pivoting=False
    ),
    [(3, 3), (3, 1)],
  ),
  (
    'banded',
    lambda d, b: tf.linalg.banded_triangular_solve(d + 4.0, b),
    [(2, 3), (3, 1)],
  ),
  (
    'cross_entropy',
    lambda x, p: tf.nn.softmax_cross_entropy_with_logits(p, x),
    [(2, 3), (2, 3)],
  ),
]

EYE = tf.eye(3, dtype=tf.float64)
BASE = tf.linalg.diag(tf.constant([3.0, 9.0, 27.0], tf.float64))


def points(size):
  """Two random points, and some of which many elements are equal."""
  rng = np.random.default_rng(0)
  yield rng.uniform(0.3, 0.9, size)
  yield rng.normal(size=size)
  yield rng.integers(0, 2, size).astype(float)
  yield rng.integers(-1, 2, size).astype(float)
  yield np.ones(size)


def dense(tape, y, xs):
  """The gradients of all elements of a vector, one at a time."""
  size = sum(int(np.prod(x.shape)) for x in xs)
  rows = np.zeros([int(y.shape[0]), size])
  for i in range(len(rows)):
    gradients = tape.gradient(
      y,
      xs,
      output_gradients=tf.one_hot(i, len(rows), dtype=y.dtype),
      unconnected_gradients='zero',
    )
    flat = [np.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients]
    rows[i] = np.concatenate(flat)
  # Zero times infinity: no dependency.
  return np.nan_to_num(rows, nan=0.0) != 0


@pytest.mark.parametrize(
  'fn, shapes',
  [case[1:] for case in CASES],
  ids=[f'{case[0]}-{case[2]}'.replace(' ', '') for case in CASES],
)
def test_patterns_cover_gradient_functions(fn, shapes):
  sizes = [int(np.prod(shape)) for shape in shapes]

  @tf.function(autograph=False)
  def flat(*xs):
    return tf.concat([tf.reshape(y, [-1]) for y in tf.nest.flatten(fn(*xs))], 0)

  specs = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
  first = jacobian_sparsity(flat, specs)
  assert not first.fallback_ops
  weights = tf.constant(
    np.random.default_rng(1).uniform(0.5, 1.5, first.matrix.shape[0])
  )
  second = hessian_sparsity(
    lambda *xs: tf.reduce_sum(flat(*xs) * weights), specs
  )
  for point in points(sum(sizes)):
    parts = np.split(point, np.cumsum(sizes)[:-1])
    xs = [tf.constant(p.reshape(s)) for p, s in zip(parts, shapes)]
    with tf.GradientTape(persistent=True) as outer:
      outer.watch(xs)
      with tf.GradientTape(persistent=True) as tape:
        tape.watch(xs)
        y = flat(*xs)
        value = tf.reduce_sum(y * weights)
      gradients = tape.gradient(value, xs, unconnected_gradients='zero')
      gradient = tf.concat(
        [tf.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients], 0
      )
    missed = dense(tape, y, xs) & ~first.matrix.toarray()
    assert not missed.any(), np.argwhere(missed)
    missed = dense(outer, gradient, xs) & ~second.matrix.toarray()
    assert not missed.any(), np.argwhere(missed)
