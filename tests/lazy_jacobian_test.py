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
"""Lazy views equal the dense matrix, and compute no more than is looked at."""

import collections
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.diagonal import graphs

# Nothing here is beyond pfor.
pytestmark = pytest.mark.filterwarnings('error:pfor cannot vectorize')

State = collections.namedtuple('State', ['a', 'b'])
RNG = np.random.default_rng(0)
# Five outputs, in parts of 3 and 2, of four inputs, in parts of 1 and 3.
MATRIX = RNG.normal(size=(5, 4))
A = tf.constant(RNG.normal(size=[2, 3]))
B = tf.constant(RNG.normal(size=[2, 3, 1, 3]))


def fn(a, b):
  """`MATRIX` times the sines of all coordinates, cut into two outputs."""
  sample = a.shape.rank
  x = tf.concat([a[..., tf.newaxis], tf.squeeze(b, sample)], -1)
  y = tf.linalg.matvec(tf.constant(MATRIX), tf.sin(x))
  return {'u': y[..., :3], 'v': y[..., 3:]}


def closed_form(a, b):
  x = np.concatenate([a[..., np.newaxis], np.squeeze(b, a.ndim)], -1)
  return MATRIX * np.cos(x)[..., np.newaxis, :]


DENSE = closed_form(A.numpy(), B.numpy())


def jacobian(**kwargs):
  return tfp_diag.LazyJacobian(fn, [A, B], [2, 3], **kwargs)


def quartic(x):
  """Its Hessian is tridiagonal."""
  return tf.reduce_sum((x[..., 1:] - x[..., :-1]) ** 4, axis=-1)


def test_nothing_is_computed_when_made():
  calls = []

  def counted(x):
    calls.append(x)
    return x**2

  j = tfp_diag.LazyJacobian(counted, tf.ones([3]))
  assert not calls
  assert j.num_passes == 0
  assert j.shape == [3, 3]
  assert j.num_passes == 0
  # Tracing told the shape; no value was computed.
  assert not any(hasattr(x, 'numpy') for x in calls)


def test_products_with_no_vectors():
  lazy = tfp_diag.LazyJacobian(lambda x: x**2, tf.constant([1.0, 2.0, 3.0]))
  assert (lazy.as_linear_operator() @ tf.zeros([3, 0])).shape == [3, 0]


@pytest.mark.parametrize(
  'key, num_passes',
  [
    (np.s_[:, :, 2], 1),
    (np.s_[..., -1, :], 1),
    (np.s_[:, :, 1:4, :], 3),
    (np.s_[..., 0], 1),
    (np.s_[..., :, 1:3], 2),
    (np.s_[..., 1:4, 1:3], 2),
    (np.s_[0, 1, 1, 2], 1),
    (np.s_[1], 4),
    (np.s_[...], 4),
    (np.s_[..., 7:, :], 0),
    (np.s_[..., 1:1, 0], 0),
    (np.s_[:, :, 2:100], 3),
  ],
)
def test_passes_of_one_look(key, num_passes):
  j = jacobian()
  np.testing.assert_allclose(j[key], DENSE[key], rtol=1e-12)
  assert j.num_passes == num_passes
  j[key]
  assert j.num_passes == num_passes


def test_what_is_known_costs_nothing():
  j = jacobian()
  steps = [
    (np.s_[..., 1, :], 1),
    (np.s_[..., 1, 2], 1),
    (np.s_[..., 1:3, :], 2),  # Row 2 is new.
    (np.s_[..., 2:0:-1, ::2], 2),
    (np.s_[..., 3], 3),  # A column is cheaper than three rows.
    (np.s_[..., :, -1], 3),
    (np.s_[..., 4, 3], 3),  # From the column.
    (np.s_[..., :, :], 6),  # Three columns, or three rows: rows.
    (np.s_[..., 0, :], 6),
  ]
  for key, num_passes in steps:
    np.testing.assert_allclose(j[key], DENSE[key], rtol=1e-12)
    assert j.num_passes == num_passes, key
  j.clear_cache()
  j[..., 1, :]
  assert j.num_passes == 7


def test_count_is_the_number_of_passes_that_run():
  counter = types.SimpleNamespace(count=0)

  def add():
    counter.count += 1

  @tf.custom_gradient
  def probe(x):
    def gradient(dy):
      with tf.control_dependencies([tf.py_function(add, [], [])]):
        return tf.identity(dy)

    return tf.identity(x), gradient

  j = tfp_diag.LazyJacobian(
    lambda x: tf.cumsum(probe(x)) ** 2, tf.ones([5]), chunk_size=1
  )
  j[1:4]
  assert counter.count == j.num_passes == 3
  j[:4]
  assert counter.count == j.num_passes == 4
  j[3]
  assert counter.count == j.num_passes == 4
  j.rmatvec(tf.ones([5]))
  assert counter.count == j.num_passes == 5


sizes = st.integers(-7, 7)
slices = st.builds(
  slice,
  st.none() | sizes,
  st.none() | sizes,
  st.none() | st.integers(-3, 3).filter(bool),
)
indices = st.lists(
  st.one_of(sizes, slices, sizes.map(np.int64)), max_size=4
).flatmap(
  lambda k: st.one_of(
    st.just(tuple(k)),
    st.integers(0, len(k)).map(lambda i: (*k[:i], Ellipsis, *k[i:])),
  )
)
EVERY = jacobian()


@hypothesis.given(key=indices)
@hypothesis.settings(
  max_examples=150, deadline=None, derandomize=True, database=None
)
def test_indices_are_those_of_numpy(key):
  try:
    expected = DENSE[key]
  except IndexError:
    with pytest.raises(IndexError):
      EVERY[key]
    return
  actual = EVERY[key]
  assert actual.shape == expected.shape
  np.testing.assert_allclose(actual, expected, rtol=1e-12)
  assert EVERY.num_passes <= 8


@pytest.mark.parametrize(
  'key', [True, 0.5, None, 'a', [0, 1], (..., ...), (0, 0, 0, 0, 0), np.True_]
)
def test_what_is_no_index(key):
  with pytest.raises(IndexError):
    jacobian()[key]


def test_iterates_over_the_first_dimension():
  j = tfp_diag.LazyJacobian(lambda x: x**2, tf.constant([1.0, 2.0]))
  np.testing.assert_allclose(list(j), [[2, 0], [0, 4]])


def test_products():
  j = jacobian()
  v, u = RNG.normal(size=[2, 3, 4]), RNG.normal(size=[3, 5])
  np.testing.assert_allclose(
    j.matvec(v), np.einsum('abij,abj->abi', DENSE, v), rtol=1e-12
  )
  np.testing.assert_allclose(
    j.rmatvec(u), np.einsum('abij,bi->abj', DENSE, u), rtol=1e-12
  )
  assert j.num_passes == 2
  with pytest.raises(ValueError, match=r'`v` has shape \(5,\).*size 4'):
    j.matvec(np.ones([5]))
  with pytest.raises(ValueError, match='at most 3 dimensions'):
    j.rmatvec(np.ones([1, 2, 3, 5]))
  with pytest.raises(ValueError, match=r'the sample shape \(2, 3\)'):
    j.matvec(np.ones([4, 3, 4]))


def test_diag_and_trace_go_through_a_plan():
  # Square as a whole, not part by part: [2, 3] and [] to [7].
  def square(a, b):
    x = tf.concat([tf.reshape(a, [-1, 6]), b[:, tf.newaxis]], -1)
    return x**3 + tf.roll(x, 1, axis=-1)

  a = tf.constant(RNG.normal(size=[4, 2, 3]))
  b = tf.constant(RNG.normal(size=[4]))
  j = tfp_diag.LazyJacobian(square, (a, b), [4])
  x = np.concatenate([a.numpy().reshape(4, 6), b.numpy()[:, np.newaxis]], -1)
  np.testing.assert_allclose(j.diag(), 3 * x**2, rtol=1e-12)
  # What a neighbor brings does not return: one pass, not seven rows.
  assert j.num_passes == 1
  np.testing.assert_allclose(j.trace(), (3 * x**2).sum(-1), rtol=1e-12)
  assert j.num_passes == 1
  with pytest.raises(ValueError, match='5 rows and 4 columns'):
    jacobian().diag()


def test_what_needs_values_in_python_is_refused():
  def largest(x):
    return x * float(tf.reduce_max(x).numpy())

  j = tfp_diag.LazyJacobian(largest, tf.constant([1.0, 2.0, 4.0]))
  for look in (j.diag, lambda: j[1], j.to_dense):
    with pytest.raises(TypeError, match='value of a Tensor in Python'):
      look()


def test_hessian_rows_are_columns():
  x = tf.constant(RNG.normal(size=[3, 6]))
  h = tfp_diag.LazyHessian(quartic, x, [3])
  dense = tfp_diag.hessian(quartic, x, [3]).numpy()
  assert h.shape == [3, 6, 6]
  np.testing.assert_allclose(h[:, :, 2], dense[:, :, 2], rtol=1e-12)
  np.testing.assert_allclose(h[:, 2], dense[:, 2], rtol=1e-12)
  assert h.num_passes == 1
  np.testing.assert_allclose(
    h.diag(), np.diagonal(dense, axis1=1, axis2=2), rtol=1e-12
  )
  # One squared sweep.
  assert h.num_passes == 2
  v = RNG.normal(size=[6])
  np.testing.assert_allclose(h.matvec(v), dense @ v, rtol=1e-12)
  np.testing.assert_allclose(h.rmatvec(v), dense @ v, rtol=1e-12)
  np.testing.assert_allclose(h.to_dense(), dense, rtol=1e-12, atol=1e-15)
  assert h.num_passes == 4 + 5


def test_hessian_of_variables():
  w, b = tf.Variable([[1.0, 2.0]]), tf.Variable(3.0)
  h = tfp_diag.LazyHessian(lambda: tf.reduce_sum(w**3) * b, [w, b])
  np.testing.assert_allclose(h[0], [18, 0, 3])
  np.testing.assert_allclose(h.diag(), [18, 36, 0])
  np.testing.assert_allclose(
    h.to_dense(), [[18, 0, 3], [0, 36, 12], [3, 12, 0]]
  )


@pytest.mark.parametrize('jit_compile', [False, True])
def test_in_a_graph(jit_compile):
  passes_seen = []

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, 3], tf.float64),
      tf.TensorSpec([None, 3, 1, 3], tf.float64),
    ],
    jit_compile=jit_compile,
    autograph=False,
  )
  def call(a, b):
    j = tfp_diag.LazyJacobian(fn, [a, b], [None, 3])
    row, column, again = j[..., 1, :], j[1, ..., 2], j[:, 0, 1]
    passes_seen.append(j.num_passes)
    u = j.rmatvec(tf.ones([5], tf.float64))
    return row, column, again, j[-1], u

  results = call(A, B)
  keys = [np.s_[..., 1, :], np.s_[1, ..., 2], np.s_[:, 0, 1], np.s_[-1]]
  for result, key in zip(results, keys):
    np.testing.assert_allclose(result, DENSE[key], rtol=1e-12)
  np.testing.assert_allclose(results[-1], DENSE.sum(axis=-2), rtol=1e-12)
  assert passes_seen == [2]


def test_a_graph_does_not_see_what_another_one_computed():
  j = jacobian()

  @tf.function(autograph=False)
  def inside():
    return j[..., 1, :]

  np.testing.assert_allclose(inside(), DENSE[..., 1, :], rtol=1e-12)
  np.testing.assert_allclose(j[..., 1, :], DENSE[..., 1, :], rtol=1e-12)
  assert j.num_passes == 2


def test_new_views_do_not_compile_anew():
  traces = 0

  def counted(x):
    nonlocal traces
    traces += 1
    return tf.cumsum(x) ** 2

  tfp_diag.clear_cache()

  def look(x):
    j = tfp_diag.LazyJacobian(counted, x)
    return j[0], j[:, 0], j[1:3]

  look(tf.ones([4]))
  # To know the shape, for rows, for columns.
  assert len(graphs._cache) == 3
  for i in range(100):
    look(tf.fill([4], float(i)))
  assert len(graphs._cache) == 3
  # Python runs for the shape, and for each look.
  assert traces == 101 * 4


def test_an_operator_of_one_sample_times_a_batch():
  x = tf.constant(RNG.normal(size=[1, 3]))
  j = tfp_diag.LazyJacobian(lambda x: tf.cumsum(x**3, axis=-1), x, [1])
  batch = RNG.normal(size=[5, 3, 2])
  got = j.as_linear_operator().matmul(batch)
  np.testing.assert_allclose(got, j.to_dense() @ batch, rtol=1e-12)


@pytest.mark.parametrize('in_graph', [False, True])
def test_as_linear_operator(in_graph):
  def use(a, b):
    j = tfp_diag.LazyJacobian(fn, [a, b], [2, 3])
    operator = j.as_linear_operator()
    assert isinstance(operator, tf.linalg.LinearOperator)
    assert operator.shape == [2, 3, 5, 4]
    x = tf.constant(np.arange(8.0).reshape(4, 2))
    y = tf.constant(np.arange(5.0))
    products = operator.matmul(x), operator.matvec(y, adjoint=True)
    assert j.num_passes == 3
    return *products, operator.to_dense(), operator.shape_tensor()

  if in_graph:
    use = tf.function(use, autograph=False)
  right, left, dense, shape = use(A, B)
  np.testing.assert_allclose(right, DENSE @ np.arange(8.0).reshape(4, 2))
  np.testing.assert_allclose(left, np.arange(5.0) @ DENSE)
  np.testing.assert_allclose(dense, DENSE, rtol=1e-12)
  np.testing.assert_array_equal(shape, [2, 3, 5, 4])


def test_linear_operator_of_a_hessian_solves():
  x = tf.constant(RNG.normal(size=[4]))
  h = tfp_diag.LazyHessian(
    lambda x: tf.reduce_sum(tf.cosh(x)) + tf.reduce_sum(x) ** 2, x
  )
  dense = np.diag(np.cosh(x)) + 2.0
  operator = h.as_linear_operator()
  assert operator.is_self_adjoint
  assert operator.is_square
  b = RNG.normal(size=[4])
  np.testing.assert_allclose(
    operator.solvevec(b), np.linalg.solve(dense, b), rtol=1e-10
  )
  np.testing.assert_allclose(operator.diag_part(), np.diag(dense))
  np.testing.assert_allclose(operator.trace(), np.trace(dense))
  np.testing.assert_allclose(
    operator.matmul(np.ones([2, 4, 1])), np.stack([dense @ np.ones([4, 1])] * 2)
  )


@tf.custom_gradient
def straight_through(x):
  """Its gradient cannot be differentiated by its cotangent."""
  return tf.round(x), lambda dy: tf.stop_gradient(dy)


def test_rows_where_forward_mode_fails():
  x = tf.constant([1.5, 2.5])
  j = tfp_diag.LazyJacobian(lambda x: 3.0 * straight_through(x), x)
  np.testing.assert_allclose(j[:, 0], [3, 0])
  assert j.num_passes == 2
  with pytest.raises(LookupError, match='not seen to be linear'):
    j.matvec([1.0, 1.0])


def test_gradient_through_a_view_made_inside_the_tape():
  x = tf.constant([1.0, 2.0])
  with tf.GradientTape() as tape:
    tape.watch(x)
    row = tfp_diag.LazyJacobian(lambda x: x**3, x)[1]
  np.testing.assert_allclose(tape.gradient(row, x), [0, 12])


def test_chunks_and_loops():
  for chunk_size in (1, 2, 10):
    np.testing.assert_allclose(
      jacobian(chunk_size=chunk_size).to_dense(), DENSE, rtol=1e-12
    )
  with pytest.raises(ValueError, match='`chunk_size` is 0'):
    jacobian(chunk_size=0)


def test_mixed_dtypes_are_refused():
  xs = [tf.constant(1.0), tf.constant(2.0, tf.float64)]
  j = tfp_diag.LazyJacobian(lambda a, b: tf.cast(a, tf.float64) * b, xs)
  with pytest.raises(TypeError, match=r'float32.*float64'):
    j[0]


def test_jacobian_of_variables():
  w = tf.Variable([1.0, 2.0])
  j = tfp_diag.LazyJacobian(lambda: tf.stack([w[0] * w[1], w[0]]), [w])
  np.testing.assert_allclose(j[0], [2, 1])
  w.assign([3.0, 4.0])
  # What is known stays what it was.
  np.testing.assert_allclose(j[0], [2, 1])
  j.clear_cache()
  np.testing.assert_allclose(j.to_dense(), [[4, 3], [1, 0]])
  with pytest.raises(ValueError, match='function of Tensors'):
    j.diag()


def test_event_shapes_have_to_be_static():
  @tf.function(
    input_signature=[tf.TensorSpec([None], tf.float32)], autograph=False
  )
  def call(x):
    return tfp_diag.LazyJacobian(tf.sin, x)[0]

  with pytest.raises(ValueError, match=r'part of `\w+` has an event shape'):
    call(tf.ones([3]))


def test_samples_that_mix_are_refused():
  for view in (
    tfp_diag.LazyJacobian(lambda x: x - tf.reduce_mean(x, 0), A, [2]),
    tfp_diag.LazyHessian(
      lambda x: tf.reduce_sum(x - tf.reduce_mean(x, 0), 1) ** 2, A, [2]
    ),
  ):
    with pytest.raises(ValueError, match=r'mixes samples: .*Mean'):
      view[:, 0]
    with pytest.raises(ValueError, match=r'mixes samples: .*Mean'):
      view.diag()


def test_no_sample_shape():
  x = tf.reshape(tf.range(1.0, 7.0), [2, 3])
  view = tfp_diag.LazyJacobian(lambda x: x**2, x, None)
  np.testing.assert_array_equal(view[1], np.eye(6)[1] * 4.0)
  view = tfp_diag.LazyHessian(lambda x: tf.reduce_sum(x**3), x, None)
  assert view.shape == [6, 6]
  np.testing.assert_array_equal(view[1], np.eye(6)[1] * 12.0)


def test_a_plan_for_the_parts_as_they_are():
  a = tf.reshape(tf.range(1.0, 13.0), [2, 2, 3])
  b = tf.reshape(tf.range(1.0, 5.0), [2, 2])

  def fn(a, b):
    return [a**2 * b[..., tf.newaxis], b**3]

  plan = tfp_diag.plan_diag_jacobian(fn, [a, b], [2])
  view = tfp_diag.LazyJacobian(fn, [a, b], [2])
  expected = np.concatenate(
    [np.reshape(2.0 * a * b[..., tf.newaxis], [2, 6]), 3.0 * b**2], -1
  )
  np.testing.assert_allclose(view.diag(plan=plan), expected)
  assert view.num_passes == plan.num_passes == 1


def test_shows_what_it_is():
  j = jacobian()
  assert repr(j) == (
    '<LazyJacobian shape=(2, 3, 5, 4) dtype=float64 num_passes=0>'
  )


def test_the_operator_of_products():
  matrix = tfp_diag.LazyJacobian(
    lambda x: x**2 + tf.roll(x, 1, 0), tf.range(4.0)
  )
  dense, v = matrix.to_dense().numpy(), np.float32([1.0, -2.0, 0.5, 3.0])
  for given in (v, tf.constant(v), list(v)):
    np.testing.assert_allclose(matrix @ given, dense @ v, rtol=1e-6)
    np.testing.assert_allclose(given @ matrix, v @ dense, rtol=1e-6)
  of_samples = tfp_diag.LazyHessian(
    lambda x: tf.reduce_sum(x**3, -1), tf.ones([3, 4]), [3]
  )
  np.testing.assert_allclose(of_samples @ v, np.tile(6.0 * v, [3, 1]))


def test_the_operator_has_no_slices():
  operator = jacobian().as_linear_operator()
  with pytest.raises(TypeError, match=r'LazyJacobian .*`matrix\[\.\.\., '):
    operator[..., :2, :2]


@pytest.mark.parametrize(
  ('multiply', 'match'),
  [
    (lambda m: m @ tf.ones([4, 2]), r'`v` has shape \(4, 2\).*`\.matvec`'),
    (lambda m: np.ones([2, 4]) @ m, r'`v` has shape \(2, 4\).*`\.rmatvec`'),
    (lambda m: m @ tf.ones([5]), r'`v` has shape \(5,\)'),
    (lambda m: m @ 'x', "`v` is 'x'"),
    (lambda m: tf.ones([2, 4]) @ m, r'LazyHessian is no Tensor.*\.to_dense\('),
    (lambda m: tf.linalg.matvec(m, tf.ones([4])), 'LazyHessian is no Tensor'),
  ],
)
def test_products_that_it_has_not(multiply, match):
  matrix = tfp_diag.LazyHessian(lambda x: tf.reduce_sum(x**3), tf.ones([4]))
  with pytest.raises((TypeError, ValueError), match=match):
    multiply(matrix)
