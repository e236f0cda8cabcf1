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
"""`jacobian` equals closed forms over structures, regimes, modes and chunks."""

import collections
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.pairs import parametrize_pairs
from tfp_diag.diagonal import blocks, graphs

State = collections.namedtuple('State', ['left', 'right'])


class Mixture:
  """Outputs that are matrices times the sines of all parts; Jacobian known."""

  def __init__(self, ys, xs, rank, seed=0):
    # `ys` and `xs` are structures of event shapes, given as `Shape`s.
    self.ys, self.rank = ys, rank
    rng = np.random.default_rng(seed)
    self.matrices = [
      [rng.normal(size=(y.size, x.size)) for x in tf.nest.flatten(xs)]
      for y in tf.nest.flatten(ys)
    ]

  def __call__(self, *args, **kwargs):
    parts = tf.nest.flatten((args, kwargs))
    sample = tf.shape(parts[0])[: self.rank]
    outputs = []
    for shape, row in zip(tf.nest.flatten(self.ys), self.matrices):
      total = 0.0
      for matrix, x in zip(row, parts):
        flat = tf.reshape(x, tf.concat([sample, [matrix.shape[1]]], 0))
        total += tf.linalg.matvec(tf.constant(matrix, x.dtype), tf.sin(flat))
      total = tf.reshape(total, tf.concat([sample, shape.dims], 0))
      static = parts[0].shape[: self.rank]
      outputs.append(tf.ensure_shape(total, static.concatenate(shape.dims)))
    return tf.nest.pack_sequence_as(self.ys, outputs)

  def closed_form(self, xs):
    parts = [np.asarray(x, np.float64) for x in tf.nest.flatten(xs)]
    sample = parts[0].shape[: self.rank]
    rows = []
    for shape, row in zip(tf.nest.flatten(self.ys), self.matrices):
      blocks = []
      for matrix, x in zip(row, parts):
        event = x.shape[self.rank :]
        cosines = np.cos(x).reshape((*sample, 1, matrix.shape[1]))
        blocks.append(
          (matrix * cosines).reshape((*sample, *shape.dims, *event))
        )
      rows.append(tf.nest.pack_sequence_as(xs, blocks))
    return tf.nest.pack_sequence_as(self.ys, rows)


class Shape:
  """A shape that `tf.nest` takes for a leaf."""

  def __init__(self, *dims):
    self.dims = list(dims)
    self.size = math.prod(dims)


def draw(sample_shape, shapes, dtype='float64', seed=1):
  rng = np.random.default_rng(seed)
  return tf.nest.map_structure(
    lambda s: tf.constant(rng.uniform(-1, 1, [*sample_shape, *s.dims]), dtype),
    shapes,
  )


def assert_same(actual, expected, tolerance=1e-12):
  tf.nest.assert_same_structure(actual, expected)
  for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
    assert a.shape == e.shape
    np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def run(regime, fn, xs):
  if regime == 'eager':
    return fn(xs)

  def spec(x):
    shape = [None] * x.shape.rank if regime == 'dynamic' else x.shape
    return tf.TensorSpec(shape, x.dtype)

  function = tf.function(
    fn, [tf.nest.map_structure(spec, xs)], jit_compile=regime == 'xla' or None
  )
  return function(xs)


@parametrize_pairs(
  chunk_size=[None, 1, 5, 100],
  mode=['forward', 'reverse'],
  regime=['eager', 'dynamic'],
)
def test_regimes_modes_and_chunks(regime, mode, chunk_size):
  # 13 inputs and 11 outputs: neither is a multiple of a chunk.
  xs_shapes, ys_shapes = [Shape(3, 4), Shape()], [Shape(11)]
  fn = Mixture(ys_shapes, xs_shapes, 2)
  xs = draw([2, 3], xs_shapes)
  actual = run(
    regime,
    lambda xs: tfp_diag.jacobian(
      fn, xs, [None, None], mode=mode, chunk_size=chunk_size
    ),
    xs,
  )
  assert_same(actual, fn.closed_form(xs))


@pytest.mark.parametrize(
  'mode, chunk_size',
  [('forward', None), ('reverse', None), ('forward', 1), ('reverse', 5)],
)
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_xla(mode, chunk_size, dtype):
  xs_shapes, ys_shapes = [Shape(12), Shape()], [Shape(11)]
  fn = Mixture(ys_shapes, xs_shapes, 1)
  xs = draw([2], xs_shapes, dtype)
  actual = run(
    'xla',
    lambda xs: tfp_diag.jacobian(fn, xs, [2], mode=mode, chunk_size=chunk_size),
    xs,
  )
  assert_same(actual, fn.closed_form(xs), 1e-12 if dtype == 'float64' else 1e-5)


leaves = st.builds(
  lambda dims: Shape(*dims), st.lists(st.integers(0, 3), max_size=2)
)
structures = st.one_of(
  leaves,
  st.lists(leaves, min_size=1, max_size=2),
  st.tuples(leaves, leaves),
  st.fixed_dictionaries({'a': leaves, 'b': st.lists(leaves, min_size=1)}),
  st.builds(State, leaves, leaves),
)


@hypothesis.given(
  xs=structures,
  ys=structures,
  sample_shape=st.lists(st.integers(0, 2), max_size=2),
  mode=st.sampled_from(['auto', 'forward', 'reverse']),
  chunk_size=st.sampled_from([None, 1, 2]),
)
@hypothesis.settings(
  max_examples=20, deadline=None, derandomize=True, database=None
)
def test_any_structure_by_any_structure(xs, ys, sample_shape, mode, chunk_size):
  fn = Mixture(ys, xs, len(sample_shape))
  state = draw(sample_shape, xs)
  actual = tfp_diag.jacobian(
    fn, state, sample_shape, mode=mode, chunk_size=chunk_size
  )
  assert_same(actual, fn.closed_form(state))


@pytest.mark.parametrize('mode', ['forward', 'reverse'])
@pytest.mark.parametrize('chunk_size', [None, 1, 4])
def test_is_differentiable(mode, chunk_size):
  fn = Mixture(Shape(11), Shape(12), 1)
  x = draw([3], Shape(12))

  def total(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      jac = tfp_diag.jacobian(fn, x, [3], mode=mode, chunk_size=chunk_size)
      total = tf.reduce_sum(jac**2)
    return tape.gradient(total, x)

  # The derivative of sum_ij (k_ij cos(x_j))^2 by x_j.
  squares = (fn.matrices[0][0] ** 2).sum(axis=0)
  expected = -2 * squares * np.cos(x) * np.sin(x)
  np.testing.assert_allclose(total(x), expected, rtol=1e-10)
  np.testing.assert_allclose(tf.function(total)(x), expected, rtol=1e-10)


def test_shapes_without_samples_are_those_of_the_tape():
  # Then a batch is part of both events.
  x = draw([], Shape(2, 3))

  def fn(x):
    return tf.reduce_prod(x, axis=-1, keepdims=True)

  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  np.testing.assert_allclose(
    tfp_diag.jacobian(fn, x), tape.jacobian(y, x, experimental_use_pfor=False)
  )
  np.testing.assert_allclose(
    tfp_diag.jacobian(fn, x, [2]),
    tape.batch_jacobian(y, x, experimental_use_pfor=False),
  )


def seed_counts(monkeypatch, call):
  """How many passes each part was given."""
  counts = []
  original = blocks.stacked

  def spy(one_pass, likes, num, *args):
    counts.append(num)
    return original(one_pass, likes, num, *args)

  monkeypatch.setattr(blocks, 'stacked', spy)
  call()
  return counts


@pytest.mark.parametrize(
  'mode, num_inputs, num_outputs, expected',
  [
    ('auto', 3, 7, 3),
    ('auto', 7, 3, 3),
    ('auto', 4, 4, 4),
    ('forward', 7, 3, 7),
    ('reverse', 3, 7, 7),
  ],
)
def test_number_of_passes(monkeypatch, mode, num_inputs, num_outputs, expected):
  fn = Mixture(Shape(num_outputs), Shape(num_inputs), 1)
  x = draw([5], Shape(num_inputs))
  counts = seed_counts(
    monkeypatch, lambda: tfp_diag.jacobian(fn, x, [5], mode=mode)
  )
  assert counts == [expected]


@pytest.mark.parametrize('chunk_size', [None, 2, 4, 9])
@pytest.mark.parametrize('num_outputs', [0, 1, 4])
def test_numbers_of_passes_known_at_run_time(num_outputs, chunk_size):
  x = np.arange(6.0) - num_outputs + 0.5

  def fn(x):
    # The slice has a gradient that pfor needs a pass for.
    chosen = tf.gather(x, tf.where(x < 0)[:, 0])[:, tf.newaxis]
    return (chosen**2)[:, 0]

  np.testing.assert_array_equal(
    tfp_diag.jacobian(fn, tf.constant(x), chunk_size=chunk_size),
    np.diag(2 * x)[:num_outputs],
  )


def test_unconnected_parts_cost_no_pass(monkeypatch):
  a, b = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0, 5.0])
  result = []
  counts = seed_counts(
    monkeypatch,
    lambda: result.append(
      tfp_diag.jacobian(lambda a, b: [a**2, tf.ones([4])], [a, b])
    ),
  )
  assert counts == [2]
  [[(by_a, by_b), (zero_a, zero_b)]] = result
  np.testing.assert_array_equal(by_a, [[2, 0], [0, 4]])
  for zero, shape in ((by_b, [2, 3]), (zero_a, [4, 2]), (zero_b, [4, 3])):
    np.testing.assert_array_equal(zero, np.zeros(shape))


def test_a_constant_by_columns():
  found = tfp_diag.jacobian(lambda x: tf.ones([3]), tf.constant([1.0, 2.0]))
  np.testing.assert_array_equal(found, np.zeros([3, 2]))


def test_strict_names_output_and_input():
  xs = [tf.constant(1.0), tf.constant(2.0)]

  def fn(a, b):
    return a * b, 2.0 * a

  tfp_diag.jacobian(fn, xs)
  for mode in ('forward', 'reverse'):
    with pytest.raises(ValueError, match=r'Output 1 .* part 1 of `xs`'):
      tfp_diag.jacobian(fn, xs, strict=True, mode=mode)
  result = tfp_diag.jacobian(lambda a, b: (a * b, a - b), xs, strict=True)
  assert [[float(b) for b in row] for row in result] == [[2, 1], [1, -1]]


def test_a_hundred_calls_compile_once():
  tfp_diag.clear_cache()
  traces = []

  def fn(x):
    traces.append(x)
    return tf.tensordot(tf.sin(x), x, 0)

  def call(x):
    return tfp_diag.jacobian(fn, x)

  for i in range(100):
    call(tf.fill([9], float(i)))
  assert len(traces) == 100
  assert len(graphs._cache) == 1


def test_variables():
  w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
  b = tf.Variable([0.5, 0.25])
  x = tf.constant([1.0, -1.0])
  jac = tfp_diag.jacobian(lambda: tf.linalg.matvec(w, x) * b, [w, b])
  expected_w = np.zeros([2, 2, 2])
  expected_w[0, 0] = [0.5, -0.5]
  expected_w[1, 1] = [0.25, -0.25]
  np.testing.assert_allclose(jac[0], expected_w)
  np.testing.assert_allclose(jac[1], np.diag([-1.0, -1.0]))
  w.assign(2 * w)
  jac = tfp_diag.jacobian(lambda: tf.linalg.matvec(w, x) * b, [w, b])
  np.testing.assert_allclose(jac[1], np.diag([-2.0, -2.0]))


@tf.custom_gradient
def swish(x):
  s = tf.sigmoid(x)
  return x * s, lambda dy: dy * (s + x * s * (1 - s))


@tf.custom_gradient
def straight_through(x):
  """Its gradient cannot be differentiated by its cotangent."""
  return tf.round(x), lambda dy: tf.stop_gradient(dy)


def looped(x):
  return tf.while_loop(
    lambda i, _: i < 3, lambda i, z: (i + 1, tf.sin(z)), (0, x)
  )[1]


@pytest.mark.parametrize('mode', ['forward', 'reverse'])
@pytest.mark.parametrize(
  'fn, diagonal',
  [
    (lambda x: tf.gather(x, [2, 0, 1, 0])[:3] ** 2, None),
    (lambda x: tf.where(x > 0, x**2, -x), lambda x: np.where(x > 0, 2 * x, -1)),
    (
      lambda x: tf.cond(x[0] > 0, lambda: x**2, lambda: x**3),
      lambda x: 2 * x,
    ),
    (swish, lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    (
      looped,
      lambda x: np.cos(np.sin(np.sin(x))) * np.cos(np.sin(x)) * np.cos(x),
    ),
  ],
  ids=['gather', 'where', 'cond', 'custom_gradient', 'while_loop'],
)
@pytest.mark.filterwarnings('ignore:pfor cannot vectorize')
def test_ops_of_all_kinds(fn, diagonal, mode):
  x = tf.constant([0.5, -0.25, 1.5], tf.float64)
  jac = tfp_diag.jacobian(fn, x, mode=mode)
  if diagonal is None:
    expected = np.zeros([3, 3])
    expected[[0, 1, 2], [2, 0, 1]] = [3.0, 1.0, -0.5]
  else:
    expected = np.diag(diagonal(x.numpy()))
  np.testing.assert_allclose(jac, expected, rtol=1e-12)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def test_a_loop_runs_where_pfor_cannot():
  x = tf.constant(np.linspace(0.1, 1, 10))
  with pytest.warns(RuntimeWarning, match='While.*chunk_size=1'):
    tf.function(lambda x: tfp_diag.jacobian(looped, x))(x)


def test_auto_does_not_trust_a_forward_mode_that_fails():
  x = tf.constant(1.5, tf.float64)

  def rounded(x):
    return straight_through(x * [1.0, 2.0])

  np.testing.assert_allclose(tfp_diag.jacobian(rounded, x), [1, 2])
  with pytest.raises(LookupError, match="mode='reverse'"):
    tfp_diag.jacobian(rounded, x, mode='forward')


def test_no_mode_needs_a_second_derivative():
  # igamma has none by its second argument.
  x = tf.constant(1.5, tf.float64)

  def wide(x):
    return tf.math.igamma(tf.constant(2.0, tf.float64), x * [1.0, 2.0])

  expected = [x * np.exp(-x), 4 * x * np.exp(-2 * x)]
  for mode in ('forward', 'reverse'):
    np.testing.assert_allclose(tfp_diag.jacobian(wide, x, mode=mode), expected)


def test_samples_that_mix_are_refused_by_name():
  x = tf.random.normal([6, 3])

  def batch_norm(x):
    mean, variance = tf.nn.moments(x, axes=[0])
    return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)

  with pytest.raises(ValueError, match=r'mixes samples: .*Mean'):
    tfp_diag.jacobian(batch_norm, x, [6])
  with pytest.raises(ValueError, match=r'mixes samples: .*Mean'):
    tf.function(
      lambda x: tfp_diag.jacobian(batch_norm, x, [6]), autograph=False
    )(x)
  assert tfp_diag.jacobian(batch_norm, x).shape == [6, 3, 6, 3]


def test_what_batch_jacobian_returns_when_samples_mix():
  # The numbers of the docstring.
  x = tf.constant([[1.0], [2.0], [4.0]])
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = x - tf.reduce_mean(x, 0)
  np.testing.assert_allclose(
    tape.batch_jacobian(y, x), np.zeros([3, 1, 1]), atol=1e-6
  )


@pytest.mark.parametrize(
  'error, match, fn, xs, kwargs',
  [
    (ValueError, 'at least 1', tf.sin, [1.0], {'chunk_size': 0}),
    (ValueError, 'at least 1', tf.sin, [1.0], {'chunk_size': -3}),
    (ValueError, 'at least 1', tf.sin, [1.0], {'chunk_size': True}),
    (ValueError, "`mode` is 'fwd'", tf.sin, [1.0], {'mode': 'fwd'}),
    (TypeError, 'cannot be called', 3, [1.0], {}),
    (TypeError, 'Part 0', tf.sin, tf.constant([1]), {}),
    (TypeError, 'Output 0.*int32', lambda x: tf.cast(x, tf.int32), [1.0], {}),
    (ValueError, 'Does it return', lambda x: None, [1.0], {}),
    (ValueError, 'Does it return', lambda x: [], [1.0], {}),
    (
      ValueError,
      r'Output 0 .*shape \(\).*sample shape',
      tf.reduce_sum,
      tf.ones([4]),
      {'sample_shape': [4]},
    ),
    (
      ValueError,
      'part 0',
      tf.sin,
      tf.ones([4]),
      {'sample_shape': [3]},
    ),
  ],
)
def test_errors(error, match, fn, xs, kwargs):
  xs = xs if tf.is_tensor(xs) else tf.constant(xs)
  with pytest.raises(error, match=match):
    tfp_diag.jacobian(fn, xs, **kwargs)
