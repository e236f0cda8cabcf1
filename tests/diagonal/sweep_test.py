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
"""Seeds and their order: passes are counted, colors and signs are used."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.diagonal import sweep

SCHEDULES = ('unrolled', 'pfor', 'while_loop', 'auto')


class Matrix:
  """A linear map that counts how often it is applied, and remembers seeds."""

  def __init__(self, matrix):
    self.matrix = tf.constant(matrix)
    self.applied = []

  def connects(self, members):
    del members
    return True

  def apply(self, members, seeds):
    self.applied.append(list(members))
    # Parts lie side by side; a part that is not a member counts as zero.
    rows = [self.slices[i] for i in members]
    flat = tf.concat([tf.reshape(s, [-1]) for s in seeds], 0)
    block = tf.concat(
      [tf.concat([self.matrix[r, c] for c in rows], 1) for r in rows], 0
    )
    pieces = tf.split(
      tf.linalg.matvec(block, flat), [r.stop - r.start for r in rows]
    )
    return [tf.reshape(p, s.shape) for p, s in zip(pieces, seeds)]

  def split(self, shapes):
    ends = np.cumsum([int(np.prod(s)) for s in shapes])
    self.slices = [
      slice(int(e - np.prod(s)), int(e)) for s, e in zip(shapes, ends)
    ]
    return self


class Counted(Matrix):
  """Counts how often it is executed, too, which pfor cannot vectorize."""

  def __init__(self, matrix):
    super().__init__(matrix)
    self.executed = tf.Variable(0, dtype=tf.int64)

  def apply(self, members, seeds):
    with tf.control_dependencies([self.executed.assign_add(1)]):
      seeds = [tf.identity(s) for s in seeds]
    return super().apply(members, seeds)


def diagonal(matrix, colors, shapes, kind, chunk_size, regime='function'):
  xs = [tf.zeros(s, matrix.matrix.dtype) for s in shapes]

  def fn():
    return sweep.diagonal(
      matrix.split(shapes), colors, xs, kind, chunk_size, None
    )

  if regime == 'eager':
    return fn()
  return tf.function(fn, autograph=False)()


def draw(n, seed=0):
  return np.random.default_rng(seed).normal(size=[n, n])


def static(colors, shapes):
  return sweep.Colors.from_vector(
    np.asarray(colors), [tf.TensorShape(s) for s in shapes]
  )


def parts_of(vector, shapes):
  ends = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
  return [v.reshape(s) for v, s in zip(np.split(vector, ends), shapes)]


SHAPES = [[2, 2], [], [3]]


@pytest.mark.parametrize('kind', ['unrolled', 'while_loop'])
@pytest.mark.parametrize('regime', ['eager', 'function'])
def test_one_executed_pass_per_color(kind, regime):
  # Block-diagonal within each color: two colors suffice for eight coordinates.
  matrix = Counted(np.diag(np.arange(1.0, 9.0)))
  colors = static([0, 1, 0, 1, 0, 1, 0, 1], SHAPES)
  result = diagonal(matrix, colors, SHAPES, kind, 3, regime)
  for r, wanted in zip(result, parts_of(np.arange(1.0, 9.0), SHAPES)):
    np.testing.assert_allclose(r, wanted)
  # The middle part holds one color; both runs together are two passes.
  assert int(matrix.executed) == 2


@pytest.mark.parametrize('kind', SCHEDULES)
@pytest.mark.parametrize('chunk_size', [1, 3, 8, 10])
def test_dense_matrices(kind, chunk_size):
  dense = draw(8)
  colors = static(np.random.default_rng(1).permutation(8), SHAPES)
  result = diagonal(Matrix(dense), colors, SHAPES, kind, chunk_size)
  for r, wanted in zip(result, parts_of(np.diag(dense), SHAPES)):
    np.testing.assert_allclose(r, wanted, atol=1e-12)


def test_auto_unrolls_a_few_passes_only():
  for n, traced in [
    (sweep.MAX_UNROLLED, sweep.MAX_UNROLLED),
    # Nine in two chunks of four, and one by itself.
    (sweep.MAX_UNROLLED + 1, 3),
  ]:
    matrix = Matrix(draw(n))
    diagonal(matrix, static(np.arange(n), [[n]]), [[n]], 'auto', 4)
    assert len(matrix.applied) == traced


@pytest.mark.parametrize(
  'n, chunk_size, traced',
  # Up to four chunks are written out, more are in a loop; then comes the rest.
  [
    (8, 4, 2),
    (4, 4, 1),
    (3, 4, 1),
    (9, 4, 3),
    (11, 4, 3),
    (16, 4, 4),
    (20, 4, 1),
    (23, 4, 2),
    (1, 4, 1),
    (0, 4, 0),
  ],
)
def test_traced_passes_of_pfor(n, chunk_size, traced):
  dense = draw(n)
  matrix = Matrix(dense)
  (result,) = diagonal(
    matrix, static(np.arange(n), [[n]]), [[n]], 'pfor', chunk_size
  )
  np.testing.assert_allclose(result, np.diag(dense), atol=1e-12)
  assert len(matrix.applied) == traced


def test_only_parts_with_the_color_take_part():
  matrix = Matrix(draw(8))
  # The first color is in all parts, the next in the last, then in the first.
  colors = static([0, 2, 3, 4, 0, 0, 1, 1], SHAPES)
  diagonal(matrix, colors, SHAPES, 'unrolled', 3)
  assert matrix.applied == [[0, 1, 2], [2], [0], [0], [0]]


def test_signs_cancel_and_reach_the_seeds():
  dense = np.diag(np.arange(1.0, 9.0))
  dense[0, 1] = 10.0
  signs = np.array([1, -1, 1, -1, 1, -1, 1, -1])
  results = []
  for s in (None, parts_of(signs, SHAPES), parts_of(np.ones(8), SHAPES)):
    colors = static(np.zeros(8), SHAPES).with_signs(s)
    results.append(diagonal(Matrix(dense), colors, SHAPES, 'unrolled', 1))
  # Right wherever coordinates do not meet; where they do, signs show it.
  for i in (1, 2):
    for result in results:
      wanted = parts_of(np.arange(1.0, 9.0), SHAPES)[i]
      np.testing.assert_allclose(result[i], wanted)
  assert results[0][0][0, 0] == results[2][0][0, 0] == 11.0
  assert results[1][0][0, 0] == -9.0


def test_infinities_of_other_coordinates_stay_where_they_are():
  dense = np.diag([1.0, np.inf, 3.0])
  colors = static(np.arange(3), [[3]])
  # A product with zero seeds makes the others NaN, and must not spread.
  for kind in SCHEDULES:
    (result,) = diagonal(Hadamard(dense), colors, [[3]], kind, 2)
    np.testing.assert_array_equal(result, [1.0, np.inf, 3.0])


class Hadamard(Matrix):
  def apply(self, members, seeds):
    del members
    return [tf.linalg.diag_part(self.matrix) * s for s in seeds]


def test_none_counts_as_zero():
  class Unconnected(Matrix):
    def apply(self, members, seeds):
      return [None] * len(seeds)

  for kind in SCHEDULES:
    colors = static(np.arange(8), SHAPES)
    for part in diagonal(Unconnected(draw(8)), colors, SHAPES, kind, 3):
      assert not np.any(part)


@pytest.mark.parametrize('kind', ['pfor', 'while_loop'])
def test_what_is_not_connected_takes_no_loop(kind):
  class Constant(Matrix):
    def connects(self, members):
      return members != [1]

  matrix = Constant(np.diag(np.arange(1.0, 9.0)))
  result = diagonal(matrix, static(np.arange(8), SHAPES), SHAPES, kind, 10)
  wanted = [[[1.0, 2.0], [3.0, 4.0]], 0.0, [6.0, 7.0, 8.0]]
  for r, w in zip(result, wanted):
    np.testing.assert_allclose(r, w)
  assert [1] not in matrix.applied


def test_one_color_each():
  shapes = [tf.TensorShape([2, 2]), tf.TensorShape([]), tf.TensorShape([0])]
  xs = [tf.zeros([3, *s]) for s in shapes]
  colors = sweep.one_color_each(shapes, xs, 1)
  assert colors.is_static and colors.num_colors == 5
  np.testing.assert_array_equal(colors.parts[0], [[0, 1], [2, 3]])
  assert colors.parts[1] == 4 and colors.parts[2].size == 0


def test_one_color_each_of_dynamic_shapes():
  @tf.function(
    input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None])],
    autograph=False,
  )
  def parts(x, z):
    colors = sweep.one_color_each([x.shape[1:], z.shape[1:]], [x, z], 1)
    assert not colors.is_static
    return colors.parts, colors.num_colors

  (first, second), number = parts(tf.ones([2, 3]), tf.ones([2]))
  np.testing.assert_array_equal(first, [0, 1, 2])
  assert (int(second), int(number)) == (3, 4)


def test_an_obstacle_is_named_and_leads_to_the_loop():
  matrix = Counted(draw(3))
  xs = [tf.zeros([3], tf.float64)]
  colors = static(np.arange(3), [[3]])

  @tf.function(autograph=False)
  def fn():
    return sweep.diagonal(
      matrix.split([[3]]), colors, xs, 'pfor', 2, obstacle='While'
    )

  with pytest.warns(
    RuntimeWarning, match=r'the op While; .*while_loop'
  ) as seen:
    fn()
  assert len(seen) == 1
  assert int(matrix.executed) == 3


def test_where_pfor_fails_the_loop_takes_over_with_one_warning():
  dense = draw(5)

  class Stitched(Matrix):
    def apply(self, members, seeds):
      (result,) = super().apply(members, seeds)
      # Nothing is known of how this op is vectorized.
      return [tf.dynamic_stitch([tf.range(5)], [result])]

  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter('always')
    (result,) = diagonal(
      Stitched(dense), static(np.arange(5), [[5]]), [[5]], 'pfor', 2
    )
  np.testing.assert_allclose(result, np.diag(dense), atol=1e-12)
  assert ['DynamicStitch' in str(w.message) for w in seen] == [True]


def test_what_is_run_instead_of_pfor():
  def raises():
    raise ValueError('first line\nthe reason')

  with pytest.warns(RuntimeWarning, match=r'\(the reason\).*`strategy=1`'):
    assert sweep.vectorized_or_loop(raises, lambda: 3, 'strategy=1') == 3
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert sweep.vectorized_or_loop(lambda: 2, raises) == 2
