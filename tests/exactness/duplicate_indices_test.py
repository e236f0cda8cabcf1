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
"""Indices that occur twice: what is differentiated is TensorFlow's gradient.

Where an op writes one place twice, its gradient need not be the derivative of
what it wrote. The pattern covers the gradient, and the diagonal is that of
TensorFlow's own tape.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import copy_of, draw, in_regime, same
from tests.oracles import jacobian_diagonal

N = 18


def places(*indices):
  return tf.constant(indices)[:, tf.newaxis]


def update_twice(x):
  new = tf.sin(x[:6]) * x[6:12]
  return tf.tensor_scatter_nd_update(x**2, places(3, 3, 5, 5, 3, 7), new)


def update_all_at_one_place(x):
  return tf.tensor_scatter_nd_update(x, places(*[4] * N), tf.exp(x)) * x


def update_by_scattered_neighbors(x):
  new = tf.roll(x, 1, axis=0) ** 2
  index = places(*(k // 2 for k in range(N)))
  return tf.tensor_scatter_nd_update(tf.sin(x), index, new)


def add_twice(x):
  return tf.tensor_scatter_nd_add(
    x, places(*(5 * k % 7 for k in range(N))), tf.sin(x)
  )


def subtract_twice(x):
  index = places(*(k * k % 5 for k in range(N)))
  return tf.tensor_scatter_nd_sub(x**3, index, x * tf.roll(x, 2, axis=0))


def largest_of_some(x):
  index = places(*(k % 4 for k in range(N)))
  return tf.tensor_scatter_nd_max(x, index, tf.roll(x, 1, axis=0))


def smallest_of_ties(x):
  index = places(*(k % 4 for k in range(N)))
  return tf.tensor_scatter_nd_min(
    x, index, tf.gather(x, [k % 4 for k in range(N)])
  )


def scatter(x):
  index = places(*(k % 5 for k in range(N)))
  return tf.scatter_nd(index, tf.cos(x), [N]) * x


def stitched_twice(x):
  pieces = [x[:9] ** 2, tf.sin(x[9:]), x[:9] * x[9:]]
  indices = [list(range(9)), list(range(9, 18)), list(range(4, 13))]
  return tf.dynamic_stitch(indices, pieces)


def stitched_in_parallel(x):
  pieces = [x**2, tf.sin(tf.roll(x, 1, axis=0))]
  indices = [list(range(N)), [k // 3 for k in range(N)]]
  return tf.raw_ops.ParallelDynamicStitch(indices=indices, data=pieces)


def gather_twice(x):
  found = tf.gather(x, [k // 2 for k in range(N)])
  return tf.sin(found) * x


def gathered_rows(x):
  rows = tf.reshape(x, [6, 3])
  found = tf.gather_nd(rows, [[0], [0], [5], [5], [5], [1]])
  return tf.reshape(found**2 * rows, [-1])


def largest_of_segments(x):
  ids = [k % 5 for k in range(N)]
  top = tf.math.unsorted_segment_max(tf.round(2.0 * x) + 0.0 * x, ids, 5)
  return tf.gather(top, ids) * x


def largest_with_ties(x):
  twice = tf.reshape(tf.concat([x, x], 0), [2, N])
  return tf.reduce_max(twice, axis=0) * tf.roll(x, 1, axis=0)


def embedded_twice(x):
  rows = tf.nn.embedding_lookup(tf.reshape(x, [9, 2]), [3, 3, 0, 8, 8, 8, 1])
  return tf.concat([tf.reshape(tf.sin(rows), [-1]), x[:4] ** 2], axis=0)


def sums_of_sparse_rows(x):
  ids = [0, 0, 0, 2, 2, 4]
  index = [1, 1, 3, 3, 0, 5]
  found = tf.sparse.segment_sum(tf.reshape(x, [6, 3]), index, ids)
  # A graph cannot tell how many rows there are.
  found = tf.ensure_shape(found, [5, 3])
  return tf.pad(tf.reshape(found**2, [-1]), [[0, 3]])


FUNCTIONS = (
  update_twice,
  update_all_at_one_place,
  update_by_scattered_neighbors,
  add_twice,
  subtract_twice,
  largest_of_some,
  smallest_of_ties,
  scatter,
  stitched_twice,
  stitched_in_parallel,
  gather_twice,
  gathered_rows,
  largest_of_segments,
  largest_with_ties,
  embedded_twice,
  sums_of_sparse_rows,
)


def jacobian_of(fn, x):
  """Row by row, by TensorFlow's tape."""
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  return tape.jacobian(y, x, experimental_use_pfor=False).numpy()


@pytest.mark.parametrize('fn', FUNCTIONS, ids=lambda f: f.__name__)
def test_the_pattern_covers_the_gradient(fn):
  x = draw(N)
  pattern = tfp_diag.sparsity.jacobian_sparsity(fn, x)
  dense = jacobian_of(fn, copy_of(x))
  missing = np.argwhere((dense != 0) & ~pattern.matrix.toarray())
  assert not missing.size


@pytest.mark.parametrize(
  'mode, fn',
  [('auto', fn) for fn in FUNCTIONS]
  + [('reverse', fn) for fn in FUNCTIONS[:3]],
)
def test_the_diagonal_is_that_of_the_gradient(mode, fn):
  x = draw(N, seed=1)
  diag = tfp_diag.diag_jacobian(x, fn=fn, mode=mode)[1][0]
  same(diag, jacobian_diagonal(fn, copy_of(x)))


@pytest.mark.parametrize('fn', FUNCTIONS[:3], ids=lambda f: f.__name__)
def test_in_a_graph_and_with_a_plan(fn):
  x = draw(N, seed=2)
  want = jacobian_diagonal(fn, copy_of(x))

  def call(x):
    return tfp_diag.diag_jacobian(x, fn=fn)[1][0]

  same(in_regime('function', call, x), want)
  same(tfp_diag.plan_diag_jacobian(fn, x)(x)[1][0], want)


@pytest.mark.parametrize('fn', FUNCTIONS[:3], ids=lambda f: f.__name__)
def test_of_each_sample(fn):
  """Samples lie along the last axis of what is scattered."""
  x = draw(4, N, seed=3)

  def of_all(x):
    return tf.map_fn(fn, x)

  diag = tfp_diag.diag_jacobian(x, sample_shape=[4], fn=of_all)[1][0]
  same(diag, jacobian_diagonal(of_all, copy_of(x)))


def test_updated_columns_of_all_samples():
  x = draw(4, N, seed=4)

  def fn(x):
    columns = tf.transpose(x)
    new = tf.sin(columns[:6]) * columns[6:12]
    columns = tf.tensor_scatter_nd_update(
      columns**2, places(3, 3, 5, 5, 3, 7), new
    )
    return tf.transpose(columns)

  diag = tfp_diag.diag_jacobian(x, sample_shape=[4], fn=fn)[1][0]
  same(diag, jacobian_diagonal(fn, copy_of(x)))
