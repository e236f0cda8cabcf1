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
"""Tests of `sparsity.few_rows`."""

import itertools
import zlib

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_diagonal
from tfp_diag.sparsity import few_rows, unique_paths
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.few_rows import on_few_rows
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.paths import Paths

# More rows than stand for all.
ROWS = few_rows._FEW + 6
UNITS = 5
DATA = np.random.default_rng(3).normal(size=(ROWS, 4)) / 2
LABELS = np.random.default_rng(4).integers(0, UNITS, ROWS)


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
  """Few rows stand for all even where that saves no time."""
  monkeypatch.setattr(few_rows, '_MANY_ELEMENTS', 0)
  monkeypatch.setattr(few_rows, '_MANY_ROWS', few_rows._FEW + 1)


def walked_of(fn, *shapes):
  specs = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
  graph = trace(lambda parts: fn(*parts), lambda y, _: [y], specs)
  return analyze(graph, 0, None, is_hessian=True).walked


def hidden(w, b):
  return tf.tanh(DATA @ w + b)


# A layer of ROWS x UNITS to another one.
LAYERS = {
  'tanh': tf.tanh,
  'softmax': tf.nn.softmax,
  'log_softmax': tf.nn.log_softmax,
  'softplus of cumsum': lambda h: tf.math.softplus(tf.cumsum(h, axis=-1)),
  'residual': lambda h: h + tf.sin(h[:, ::-1]),
  'normalized units': lambda h: h - tf.reduce_mean(h, -1, keepdims=True),
  'normalized rows': lambda h: h / tf.exp(tf.reduce_mean(h, 0)),
  'softmax over rows': lambda h: tf.nn.softmax(h, axis=0),
  'products of units': lambda h: tf.einsum('ni,nj->ni', h, h) * h,
  'transposed': lambda h: tf.transpose(tf.exp(tf.transpose(h) * 0.1)),
  'exchanged units': lambda h: tf.gather(tf.square(h), [3, 3, 0, 1, 4], axis=1),
  'concatenated': lambda h: tf.concat([h[:, :2], tf.exp(h[:, 2:])], -1),
  'window': lambda h: tf.nn.conv1d(
    h[..., tf.newaxis], tf.ones([3, 1, 1], h.dtype), 1, 'SAME'
  )[..., 0],
  'gram': lambda h: tf.matmul(h, tf.matmul(h, h, transpose_a=True)) * 0.01,
}
# From a layer to a number.
ENDS = {
  'squares': lambda h: tf.reduce_sum(h**2),
  'row by row': lambda h: tf.reduce_sum(tf.exp(tf.reduce_sum(h, -1) * 0.3)),
  'mixture': lambda h: tf.reduce_sum(tf.reduce_logsumexp(h, -1)),
  'labels': lambda h: tf.reduce_sum(
    tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, h)
  ),
  'square of the sum': lambda h: tf.reduce_mean(h) ** 2,
}
PROGRAMS = [
  (one, other, end)
  for one, other, end in itertools.product(LAYERS, LAYERS, ENDS)
  # A few of them, always the same.
  if zlib.crc32(f'{one} {other} {end}'.encode()) % 29 == 0
]


def program(one, other, end):
  def fn(w, b):
    return ENDS[end](LAYERS[other](LAYERS[one](hidden(w, b))))

  return fn


def shown(sweeps):
  """What a search has found, without the tapes that it refers to."""
  return (
    sweeps.left_over.tolist(),
    sorted(sweeps.reasons),
    [
      (
        one.coordinates.tolist(),
        len(one.left_out),
        [
          (
            f.label,
            [(k.is_by_rows, k.shape, round(k.work, 9)) for k in f.links],
          )
          for f in one.frontiers
        ],
        [(j.label, j.shape, round(j.work, 9)) for j in one.joints],
      )
      for one in sweeps.sweeps
    ],
  )


@pytest.mark.parametrize('names', PROGRAMS, ids=' / '.join)
def test_the_same_is_found_on_few_rows(names):
  walked = walked_of(program(*names), (4, UNITS), (UNITS,))
  few = on_few_rows(walked)
  assert few.steps, 'it was not reduced'
  sizes = {n for y in few.walked.shapes for n in y}
  assert ROWS not in sizes and few_rows._FEW in sizes
  for is_joint in (False, True):
    all_rows = unique_paths.find_sweeps(Paths(walked), is_joint)
    found = unique_paths.find_sweeps(Paths(few.walked, few.wholes), is_joint)
    assert shown(found) == shown(all_rows)


# The search takes a twentieth of this: one for each end.
@pytest.mark.parametrize(
  'names',
  [
    ('tanh', 'softplus of cumsum', 'squares'),
    ('normalized rows', 'normalized units', 'row by row'),
    ('softmax', 'transposed', 'mixture'),
    ('residual', 'exchanged units', 'labels'),
    ('softplus of cumsum', 'residual', 'square of the sum'),
  ],
  ids=' / '.join,
)
def test_the_diagonal_is_that_of_all_rows(names):
  xs = [
    tf.constant(np.random.default_rng(5).normal(size=s) / 2)
    for s in ((4, UNITS), (UNITS,))
  ]
  fn = program(*names)
  flat = tf.concat([tf.reshape(x, [-1]) for x in xs], 0)
  expected = hessian_diagonal(
    lambda x: fn(tf.reshape(x[:-UNITS], [4, UNITS]), x[-UNITS:]), flat
  )
  # In a graph, where nothing is compared with a pass.
  found = tf.function(
    lambda *xs: tfp_diag.diag_hessian(fn, list(xs), sample_shape=())[2]
  )(*xs)
  diag = tf.concat([tf.reshape(d, [-1]) for d in found], 0)
  np.testing.assert_allclose(diag, expected, rtol=1e-9, atol=1e-9)


OTHERS = np.random.default_rng(6).integers(0, UNITS, ROWS)
UNLIKE = {
  'one row is another': lambda h: tf.reduce_sum(h**2) + h[7, 0] * h[8, 0],
  'neighbors': lambda h: tf.reduce_sum(tf.exp(h[1:] - h[:-1])),
  'running sum': lambda h: tf.reduce_sum(tf.exp(tf.cumsum(h, axis=0) * 0.1)),
  'reversed rows': lambda h: tf.reduce_sum(h[::-1] * h),
  'groups of rows': lambda h: tf.reduce_sum(
    tf.exp(tf.math.segment_sum(h, np.sort(OTHERS)) * 0.1)
  ),
  'a unit for each row': lambda h: tf.reduce_sum(
    tf.gather(h, OTHERS, batch_dims=1) ** 2
  ),
  'a row for each unit': lambda h: tf.reduce_sum(
    tf.exp(tf.gather(h[0], OTHERS))
  ),
  'one row for all': lambda h: tf.reduce_sum(
    h * tf.gather(h, np.zeros(ROWS, int))
  ),
  'all pairs of rows': lambda h: tf.reduce_sum(
    tf.exp(0.1 * tf.matmul(h, h, transpose_b=True))
  ),
  'halves': lambda h: tf.reduce_sum(tf.exp(tf.concat([h[:9], 2.0 * h[9:]], 0))),
}


@pytest.mark.parametrize('end', list(UNLIKE))
def test_rows_that_are_not_alike_are_looked_at_all(end):
  def fn(w, b):
    return UNLIKE[end](hidden(w, b))

  walked = walked_of(fn, (4, UNITS), (UNITS,))
  assert on_few_rows(walked).walked is walked


def test_parts_keep_their_coordinates():
  walked = walked_of(
    lambda u: tf.reduce_sum(tf.exp(u) * tf.reduce_sum(DATA, 1)), (ROWS,)
  )
  assert on_few_rows(walked).walked is walked


def test_few_rows_are_more_than_groups_can_be():
  # Else the axis of the rows could be taken for such groups.
  assert few_rows._FEW > few_rows.MAX_ROWS


def matrix_of(flow):
  return flow.to_dependency().to_matrix(flow.columns).toarray()


def moved(matrix, before, after, order):
  """The flow if the rows of the data are in another order."""

  def places(layout):
    place = np.arange(len(layout))
    place[layout.bound] = layout.bound[list(order)]
    return place

  return matrix[np.ix_(places(after), places(before))]


def layout(rng, rows):
  """Some elements: rows by classes, in any order, and shared ones."""
  kinds, shared = rng.integers(0, 3), rng.integers(0, 3)
  size = rows * kinds + shared
  place = rng.permutation(size)
  bound = place[: rows * kinds].reshape(rows, kinds)
  return few_rows._Layout(bound, size)


def a_flow(rng, before, after):
  """A flow that is often alike for all rows."""
  rows = len(before.bound)
  kind = ['gather', 'collect'][rng.integers(2)]
  start, end = (after, before) if kind == 'gather' else (before, after)
  targets = np.full(len(start), -1)
  shared = np.flatnonzero(end.row < 0)
  for element in np.flatnonzero(start.row < 0):
    if len(shared):
      targets[element] = rng.choice(shared)
  for column in start.bound.T:
    if end.bound.size and rng.random() < 0.6:
      targets[column] = end.bound[:, rng.integers(end.bound.shape[1])]
    elif len(shared):
      targets[column] = rng.choice(shared)
    elif len(end):
      targets[column] = rng.integers(len(end))
  if rng.random() < 0.5 and len(start) and len(end):
    targets[rng.integers(len(start))] = rng.integers(-1, len(end))
  assert rows
  if kind == 'gather':
    return Flow.gather(targets, len(end))
  return Flow.collect(targets, len(end))


def test_a_flow_that_is_accepted_commutes_with_all_orders(monkeypatch):
  # Against the definition: by exchanging rows. Two rows stand for four.
  rows, few = 4, 2
  monkeypatch.setattr(few_rows, '_FEW', few)
  rng = np.random.default_rng(8)
  accepted = refused = 0
  for _ in range(400):
    before, after = layout(rng, rows), layout(rng, rows)
    flow = a_flow(rng, before, after)
    matrix = matrix_of(flow)
    commutes = all(
      np.array_equal(moved(matrix, before, after, order), matrix)
      for order in itertools.permutations(range(rows))
    )
    reduction = few_rows._Reduction(None, rows)
    try:
      reduced = reduction._flow(flow, before, after)
    except few_rows._NotAlikeError:
      refused += 1
      # Each gather and collect that commutes is alike: it has one target.
      assert not commutes
      continue
    accepted += 1
    assert commutes
    kept = np.ix_(after.row < few, before.row < few)
    np.testing.assert_array_equal(matrix_of(reduced), matrix[kept])
  assert accepted > 100 and refused > 100
