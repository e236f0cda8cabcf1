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
"""Tests indices that are computed from xs, but lie in a range."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity import jacobian_sparsity
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.interpreter import Walker
from tfp_diag.sparsity.rules import bounds, data_movement
from tfp_diag.sparsity.value import Value

raw = tf.raw_ops
DOUBLES = tf.TensorSpec([6], tf.float64)


def bounds_of(fn, spec=DOUBLES):
  graph = trace(lambda parts: fn(*parts), lambda y, _: [y], [spec])
  value = Value(tuple(spec.shape), spec.dtype, depends=True)
  (result,) = Walker(graph).walk([value])
  return [
    np.broadcast_to(end, result.shape).tolist() for end in result.bounds()
  ]


def whole(x):
  return tf.cast(x[0], tf.int32)


ANYWHERE = [-np.inf, np.inf]


def truth(k):
  return tf.cast(tf.cast(k, tf.bool), tf.int32)


BOUNDED = [
  (lambda x: tf.argmax(x[:4]), [0, 3]),
  (lambda x: tf.argmin(tf.reshape(x, [2, 3]), 0)[1], [0, 1]),
  (lambda x: whole(x) % 3, [0, 2]),
  (lambda x: tf.math.mod(x[0], 3.0), [0, 3]),
  (lambda x: whole(x) % -3, ANYWHERE),
  (lambda x: raw.TruncateMod(x=whole(x), y=3), [-2, 2]),
  (lambda x: raw.TruncateMod(x=tf.abs(whole(x) % 7), y=3), [0, 2]),
  (lambda x: tf.clip_by_value(whole(x), 1, 4), [1, 4]),
  (
    lambda x: raw.ClipByValue(t=x[0], clip_value_min=1.0, clip_value_max=2.5),
    [1, 2.5],
  ),
  (
    lambda x: tf.cast(tf.floor(tf.clip_by_value(x[0], -1.5, 2.5)), tf.int32),
    [-2, 2],
  ),
  (lambda x: tf.cast(tf.clip_by_value(x[0], -1.5, 2.5), tf.int32), [-1, 2]),
  # Rounded to a float, 2.9999999999 is 3.
  (
    lambda x: tf.cast(
      tf.cast(tf.clip_by_value(x[0], 0.0, 2.9999999999), tf.float32), tf.int32
    ),
    [0, 3],
  ),
  (lambda x: tf.cast(x[0] > 0.5, tf.int32), [0, 1]),
  (lambda x: 2 - 3 * tf.cast(x[0] > 0.5, tf.int32), [-1, 2]),
  # What is not zero is true; NaN is, too.
  (lambda x: truth(whole(x) % 3 + 2), [1, 1]),
  (lambda x: truth(-1 - whole(x) % 3), [1, 1]),
  (lambda x: truth(whole(x) % 3 - 1), [0, 1]),
  (lambda x: truth(whole(x) % 1), [0, 0]),
  (lambda x: truth(tf.clip_by_value(x[0], 3.0, 4.0)), [1, 1]),
  (lambda x: truth(tf.clip_by_value(x[0], 0.0, 0.0)), [0, 1]),
  (lambda x: -tf.abs(tf.clip_by_value(whole(x), -4, 2)), [-4, 0]),
  (lambda x: tf.where(x[0] > 0, 5, whole(x) % 3), [0, 5]),
  (
    lambda x: tf.searchsorted(
      tf.constant([0.1, 0.2]), tf.cast(x[:1], 'float32')
    )[0],
    [0, 2],
  ),
  (lambda x: tf.raw_ops.Bucketize(input=x[0], boundaries=[0.1, 0.5]), [0, 2]),
  (lambda x: tf.random.uniform([], 2, 5, tf.int32), [2, 4]),
  (lambda x: tf.math.top_k(x, 1).indices[0], [0, 5]),
  (lambda x: tf.stack([1, whole(x) % 3]), [[1, 0], [1, 2]]),
  (
    lambda x: tf.range(3) + tf.reshape(tf.stack([whole(x) % 2]), [1]),
    [[0, 1, 2], [1, 2, 3]],
  ),
  (whole, ANYWHERE),
  # Whole numbers begin again beyond their range.
  (lambda x: tf.clip_by_value(whole(x), 0, 2**31 - 1) + 1, ANYWHERE),
  (lambda x: tf.cast(whole(x) % 2, tf.uint8) - 1, ANYWHERE),
  (lambda x: tf.clip_by_value(whole(x), 0, 2**20) * 2**20, ANYWHERE),
]


@pytest.mark.parametrize('fn, wanted', BOUNDED)
def test_bounds(fn, wanted):
  low, high = bounds_of(fn)
  assert [low, high] == wanted


def pick(x):
  """1 or 2, by value."""
  return 1 + tf.argmax(x[:2], output_type=tf.int32)


def rows(x):
  return tf.reshape(x, [3, 2])


def ones(*pairs, shape):
  matrix = np.zeros(shape, bool)
  for pair in pairs:
    matrix[pair] = True
  return matrix


EYE = np.eye(6, dtype=bool)
USES = [
  ('GatherV2', lambda x: tf.gather(x, pick(x)), EYE[1:2] | EYE[2:3]),
  ('GatherV2', lambda x: tf.gather(rows(x), pick(x)), EYE[2:4] | EYE[4:]),
  (
    'GatherV2',
    lambda x: tf.gather(rows(x), [pick(x) - 1], axis=1)[:, 0],
    EYE[::2] | EYE[1::2],
  ),
  (
    'GatherNd',
    lambda x: tf.gather_nd(rows(x), [[pick(x), 0]]),
    EYE[2:3] | EYE[4:5],
  ),
  (
    'GatherNd',
    lambda x: tf.gather_nd(rows(x), [[pick(x)]])[0],
    EYE[2:4] | EYE[4:],
  ),
  ('StridedSlice', lambda x: rows(x)[pick(x)], EYE[2:4] | EYE[4:]),
  ('StridedSlice', lambda x: x[pick(x) + 3], EYE[4:5] | EYE[5:6]),
  ('StridedSlice', lambda x: rows(x)[:, whole(x) % 2], EYE[::2] | EYE[1::2]),
  (
    'StridedSlice',
    lambda x: rows(x)[-pick(x), ::-1],
    EYE[[3, 2]] | EYE[[5, 4]],
  ),
  ('StridedSlice', lambda x: rows(x)[:, whole(x)], EYE[::2] | EYE[1::2]),
  ('Slice', lambda x: tf.slice(x, [pick(x)], [2]), EYE[1:3] | EYE[2:4]),
  (
    'Slice',
    lambda x: tf.slice(rows(x), [pick(x) - 1, 0], [2, 1])[:, 0],
    EYE[[0, 2]] | EYE[[2, 4]],
  ),
  (
    'Slice',
    lambda x: tf.slice(rows(x), [0, whole(x)], [3, 1])[:, 0],
    EYE[::2] | EYE[1::2],
  ),
  (
    'TensorScatterUpdate',
    lambda x: tf.tensor_scatter_nd_update(x[:4], [[pick(x)]], x[5:]),
    EYE[:4] | ones((1, 5), (2, 5), shape=[4, 6]),
  ),
  (
    'TensorScatterAdd',
    lambda x: tf.tensor_scatter_nd_add(rows(x), [[pick(x)]], rows(x)[:1]),
    EYE.reshape(3, 2, 6) | np.stack([0 * EYE[:2], EYE[:2], EYE[:2]]) > 0,
  ),
  (
    'ScatterNd',
    lambda x: tf.scatter_nd([[pick(x)]], x[5:], [4]),
    ones((1, 5), (2, 5), shape=[4, 6]),
  ),
  ('OneHot', lambda x: tf.one_hot(pick(x), 6, dtype=tf.float64) * x, EYE),
]


@pytest.mark.parametrize('op_type, fn, wanted', USES)
def test_what_is_outside_does_not_count(op_type, fn, wanted):
  graph = tf.function(fn, autograph=False).get_concrete_function(DOUBLES).graph
  assert op_type in {op.type for op in graph.get_operations()}
  pattern = jacobian_sparsity(fn, DOUBLES)
  assert not pattern.fallback_ops
  found = pattern.matrix.toarray()
  np.testing.assert_array_equal(found, wanted.reshape(-1, 6))
  for seed in range(4):
    x = tf.constant(np.random.default_rng(seed).uniform(0, 2, 6))
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(x)
      y = tf.reshape(fn(x), [-1])
    true = tape.jacobian(y, x, experimental_use_pfor=False).numpy() != 0
    assert not (true & ~found).any()


def test_samples_do_not_mix_in_a_slice_at_an_unknown_place():
  pattern = jacobian_sparsity(
    lambda x: x[:, tf.argmax(tf.range(3) % 7)] * x[:, 0],
    tf.TensorSpec([5, 3]),
    [5],
  )
  np.testing.assert_array_equal(pattern.matrix.toarray(), [[1, 0, 1]])
  place = tf.random.uniform([], 0, 2, tf.int32)
  pattern = jacobian_sparsity(
    lambda x: x[:, tf.random.uniform([], 0, 2, tf.int32) + 0 * place],
    tf.TensorSpec([5, 3]),
    [5],
  )
  np.testing.assert_array_equal(pattern.matrix.toarray(), [[1, 1, 0]])


def test_long_slices_are_not_written_down_place_by_place(monkeypatch):
  monkeypatch.setattr(data_movement, '_MAX_ENTRIES', 3)
  pattern = jacobian_sparsity(
    lambda x: tf.slice(rows(x), [pick(x) - 1, 0], [1, 2]), DOUBLES
  )
  expected = ones((0, 0), (0, 2), (1, 1), (1, 3), shape=[2, 6])
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)


@pytest.mark.parametrize(
  'name', ['Equal', 'Greater', 'GreaterEqual', 'Less', 'LessEqual', 'NotEqual']
)
def test_comparisons_hold_for_all_or_for_some(name):
  """Against all pairs of integers in the bounds."""
  compare = {
    'Equal': np.equal,
    'Greater': np.greater,
    'GreaterEqual': np.greater_equal,
    'Less': np.less,
    'LessEqual': np.less_equal,
    'NotEqual': np.not_equal,
  }[name]
  intervals = [(0, 0), (1, 1), (0, 2), (1, 3), (2, 2), (3, 4)]
  for one in intervals:
    for other in intervals:
      ends = [np.array(pair, float) for pair in (one, other)]
      low, high = bounds._COMPARED[name](*ends)
      left, right = (np.arange(a, b + 1) for a, b in (one, other))
      table = compare(left[:, np.newaxis], right)
      assert (bool(low), bool(high)) == (table.all(), table.any())
