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
"""`unmixed_derivatives` equals closed forms and nested tapes everywhere."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.oracles import gradient_of, unmixed_diagonals
from tests.pairs import parametrize_pairs
from tfp_diag import (
  clear_cache,
  diag_hessian,
  plan_diag_hessian,
  plan_diag_jacobian,
  unmixed_derivatives,
)
from tfp_diag.diagonal import graphs
from tfp_diag.diagonal.linear_map import LinearMap
from tfp_diag.diagonal.third_order import ThirdOrder
from tfp_diag.mcmc import LocalHessianPreconditioner
from tfp_diag.sparsity import SampleMixingError

# Sweeps are tried in `diagonal/squared_sweeps_test.py`.
pytestmark = pytest.mark.usefixtures('without_sweeps')

REGIMES = ('eager', 'function', 'xla')
SCHEDULES = ('unrolled', 'pfor', 'while_loop')
TOLERANCE = {'float64': 1e-11, 'float32': 1e-4}


def run(regime, fn, xs, dynamic=False):
  """Calls `fn(*xs)` in a regime; `dynamic`: all sizes unknown in the graph."""
  if regime == 'eager':
    return fn(*xs)
  specs = [
    tf.TensorSpec([None] * x.shape.rank if dynamic else x.shape, x.dtype)
    for x in xs
  ]
  function = tf.function(
    fn, specs, autograph=False, jit_compile=regime == 'xla' or None
  )
  return function(*xs)


def draw(shape, dtype='float64', seed=0):
  values = np.random.default_rng(seed).uniform(-1.0, 1.0, shape)
  return tf.constant(values, dtype)


def coupled(rank):
  """`sum_i x_i^4 + sin(sum_i x_i)` over all coordinates of all parts."""

  def fn(*xs):
    def total(x):
      return tf.reduce_sum(x, axis=range(rank, x.shape.rank))

    return sum(total(x**4) for x in xs) + tf.sin(sum(total(x) for x in xs))

  return fn


def coupled_by_hand(xs, rank):
  """Value and derivatives of `coupled`, in NumPy."""
  xs = [np.asarray(x).astype(np.float64) for x in xs]

  def total(x):
    return x.sum(axis=tuple(range(rank, x.ndim)))

  def per_part(values, x):
    return np.reshape(values, x.shape[:rank] + (1,) * (x.ndim - rank))

  t = sum(total(x) for x in xs)
  return (
    sum(total(x**4) for x in xs) + np.sin(t),
    [4 * x**3 + per_part(np.cos(t), x) for x in xs],
    [12 * x**2 - per_part(np.sin(t), x) for x in xs],
    [24 * x - per_part(np.cos(t), x) for x in xs],
  )


def by_nested_tapes(fn, x):
  """Value and derivatives, each by one coordinate alone."""
  flat = tf.constant(np.reshape(x, [-1, x.shape[-1]]), tf.float64)
  found = gradient_of(fn)(flat), *unmixed_diagonals(fn, flat)
  return fn(x), *(np.reshape(d, x.shape) for d in found)


def assert_close(actual, wanted, tolerance=1e-11):
  tf.nest.assert_same_structure(actual, wanted)
  for a, w in zip(tf.nest.flatten(actual), tf.nest.flatten(wanted)):
    assert a.shape == w.shape
    np.testing.assert_allclose(a, w, rtol=tolerance, atol=tolerance)


# Regime, dynamic, dtype, schedule, chunk, sample shape, event shapes. Each
# regime with each dtype and schedule; open sizes under XLA and without it.
CASES = [
  ('eager', False, 'float64', 0, 3, (), ((4,),)),
  ('function', False, 'float64', 0, 3, (), ((4,),)),
  ('xla', True, 'float32', 1, 2, (7,), ((2, 3), ())),
  ('eager', False, 'float32', 2, 1, (3, 5), ((), (1,))),
  ('xla', False, 'float32', 2, 1, (3, 5), ((), (1,))),
  ('function', True, 'float64', 1, 4, (2, 1, 3), ((2,), (3,))),
  ('eager', False, 'float64', 0, 10, (0,), ((3,),)),
  ('xla', False, 'float64', 0, 10, (0,), ((3,),)),
  ('function', True, 'float64', 2, 3, (3, 5), ((0,), (2,))),
  ('xla', True, 'float64', 2, 3, (3, 5), ((0,), (2,))),
  ('eager', False, 'float32', 1, 10, (2, 1, 3), ((1,), (2, 2))),
  ('function', False, 'float32', 1, 10, (2, 1, 3), ((1,), (2, 2))),
  ('function', False, 'float64', 2, 2, (1,), ((),)),
]


@pytest.mark.parametrize('case', CASES, ids=str)
def test_shapes(case):
  regime, dynamic, dtype, schedule, chunk, sample, events = case
  names_sample_shape = (schedule + len(regime)) % 2
  rank = len(sample)
  xs = [draw(sample + e, dtype, seed) for seed, e in enumerate(events)]

  def fn(*xs):
    return unmixed_derivatives(
      coupled(rank),
      list(xs),
      sample_shape=tf.shape(xs[0])[:rank] if names_sample_shape else None,
      schedule=SCHEDULES[schedule],
      parallel_iterations=chunk,
    )

  found = run(regime, fn, xs, dynamic)
  assert all(t.dtype == dtype for t in tf.nest.flatten(found))
  assert_close(tuple(found), coupled_by_hand(xs, rank), TOLERANCE[dtype])


def chain(x):
  """Neighbors meet, with third derivatives between them."""
  steps = x[..., 1:] * tf.exp(0.5 * x[..., :-1])
  return tf.reduce_sum(tf.sin(steps), -1) - tf.reduce_sum(x**3, -1)


def arrowhead(x):
  """All meet the first one."""
  scale = tf.exp(-x[..., :1])
  return -0.5 * tf.reduce_sum(x[..., 1:] ** 2 * scale + x[..., :1], -1)


def grid(x):
  """A 3 x 4 lattice of neighbors."""
  field = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [3, 4]], 0))
  down = tf.cos(field[..., 1:, :] * field[..., :-1, :])
  right = tf.exp(field[..., 1:] * field[..., :-1])
  return tf.reduce_sum(down, [-2, -1]) + tf.reduce_sum(right, [-2, -1])


def regression(x):
  """All coordinates meet in each of five terms."""
  design = tf.constant(np.random.default_rng(1).normal(size=[12, 5]), x.dtype)
  logits = tf.linalg.matmul(x[..., tf.newaxis, :], design)[..., 0, :]
  return -tf.reduce_sum(tf.nn.softplus(logits), -1)


def blocks(x):
  """Two blocks of six: a normalizer, and a product."""
  return tf.reduce_logsumexp(x[..., :6], -1) + tf.reduce_prod(x[..., 6:], -1)


FUNCTIONS = (chain, arrowhead, grid, regression, blocks)


# Each function under XLA, and in one way without it.
@pytest.mark.parametrize(
  'fn, regime',
  [
    *((fn, 'xla') for fn in FUNCTIONS),
    *((fn, 'eager') for fn in (chain, grid, blocks)),
    *((fn, 'function') for fn in (arrowhead, regression)),
  ],
)
def test_equals_dense_matrices(fn, regime):
  x = draw([2, 3, 12])  # Six samples, all of them different.
  found = run(regime, lambda x: unmixed_derivatives(fn, x), [x])
  assert_close(tuple(found), by_nested_tapes(fn, x))
  assert np.ptp(np.reshape(found.third, [6, 12]), axis=0).max() > 1e-3


@pytest.mark.parametrize(
  'fn, regime',
  [
    (chain, 'eager'),
    (arrowhead, 'eager'),
    (grid, 'function'),
    (regression, 'xla'),
    (blocks, 'xla'),
  ],
)
def test_order_2_equals_dense_matrices(fn, regime):
  x = draw([2, 3, 12])
  second = run(regime, lambda x: unmixed_derivatives(fn, x, 2), [x])
  assert second.third is None
  assert_close(tuple(second[:3]), by_nested_tapes(fn, x)[:3])


# Each schedule in two regimes, under XLA all of them.
@pytest.mark.parametrize(
  'regime, schedule',
  [
    ('eager', 'pfor'),
    ('eager', 'while_loop'),
    ('function', 'unrolled'),
    *(('xla', schedule) for schedule in SCHEDULES),
  ],
)
def test_all_schedules_give_the_same(regime, schedule):
  x = draw([4, 12])
  found = run(
    regime,
    lambda x: unmixed_derivatives(
      grid, x, schedule=schedule, parallel_iterations=5
    ),
    [x],
  )
  assert_close(tuple(found), by_nested_tapes(grid, x))


@pytest.mark.parametrize(
  'regime, chunk',
  [('eager', 5), ('function', 1), ('function', 100), ('xla', 5)],
)
def test_chunks_that_need_not_divide(regime, chunk):
  x = draw([3, 12])
  found = run(
    regime,
    lambda x: unmixed_derivatives(regression, x, parallel_iterations=chunk),
    [x],
  )
  assert_close(tuple(found), by_nested_tapes(regression, x))


@pytest.mark.parametrize(
  'regime, dtype', [('function', 'float64'), ('xla', 'float32')]
)
def test_open_shapes(regime, dtype):
  """Open events have no structure, and two parts have colors of their own."""
  xs = [draw([5, 3], dtype), draw([5, 2], dtype, 1)]
  found = run(
    regime,
    lambda *xs: unmixed_derivatives(coupled(1), list(xs)),
    xs,
    dynamic=True,
  )
  assert_close(tuple(found), coupled_by_hand(xs, 1), TOLERANCE[dtype])


def test_an_open_number_of_samples_has_structure(passes):
  function = tf.function(
    lambda x: unmixed_derivatives(chain, x),
    [tf.TensorSpec([None, 12], 'float64')],
    autograph=False,
  )
  for size in (1, 4):
    x = draw([size, 12])
    assert_close(tuple(function(x)), by_nested_tapes(chain, x))
  assert passes == [ThirdOrder] * 2


Pair = collections.namedtuple('Pair', ['u', 'w'])


@pytest.mark.parametrize(
  'kind, regime',
  [
    ('tensor', 'function'),
    ('list', 'eager'),
    ('tuple', 'function'),
    ('dict', 'eager'),
    ('named', 'eager'),
    ('named', 'function'),
  ],
)
def test_structures(kind, regime):
  u, w = draw([3, 2]), draw([3, 4], seed=1)
  xs, fn = {
    'tensor': (u, coupled(1)),
    'list': ([u, w], coupled(1)),
    'tuple': ((u, w), coupled(1)),
    'dict': ({'u': u, 'w': w}, lambda u, w: coupled(1)(u, w)),
    'named': (Pair(u, w), lambda pair: coupled(1)(*pair)),
  }[kind]

  def call(xs):
    return unmixed_derivatives(fn, xs)

  found = tf.function(call)(xs) if regime == 'function' else call(xs)
  value, *wanted = coupled_by_hand(tf.nest.flatten(xs), 1)
  np.testing.assert_allclose(found.value, value, rtol=1e-11)
  for actual, parts in zip(found[1:], wanted):
    assert type(actual) is type(xs) or kind == 'tensor'
    tf.nest.assert_same_structure(actual, xs)
    assert_close(tf.nest.flatten(actual), parts)


@pytest.mark.parametrize('schedule', ['unrolled', 'while_loop', 'pfor'])
def test_a_variable_in_passes_that_take_it_in_by_themselves(schedule):
  x = tf.constant(np.linspace(0.2, 0.9, 12))
  variable = tf.Variable(x)

  def fn(x):
    return tf.reduce_sum(tf.sin(tf.cumsum(x) * tf.reduce_sum(x)))

  found = unmixed_derivatives(
    lambda: fn(variable), [variable], schedule=schedule
  )
  # A sum of products sin(c_i s): by x_j the arguments have the derivatives
  # a = c_i + [i >= j] s and 2 [i >= j].
  c, s, tail = np.cumsum(x), np.sum(x), np.tri(12)
  first = c[:, np.newaxis] + tail * s
  wanted = -np.cos(c * s) @ first**3 - np.sin(c * s) @ (6.0 * first * tail)
  np.testing.assert_allclose(found.third[0], wanted, rtol=1e-10)


def test_variables():
  weights = [tf.Variable(draw([2, 3])), tf.Variable(draw([4], seed=1))]
  found = unmixed_derivatives(
    lambda: coupled(0)(*(w + 0.0 for w in weights)), weights
  )
  assert_close(tuple(found), coupled_by_hand([w.numpy() for w in weights], 0))


def test_parts_of_two_dtypes():
  xs = [draw([3, 2], 'float32'), draw([3, 4], seed=1)]

  def fn(u, w):
    return coupled(1)(tf.cast(u, 'float64'), w)

  found = unmixed_derivatives(fn, xs)
  assert [t.dtype for t in found.third] == ['float32', 'float64']
  wanted = coupled_by_hand(xs, 1)
  for actual, parts in zip(found[1:], wanted[1:]):
    np.testing.assert_allclose(actual[0], parts[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(actual[1], parts[1], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize('regime', REGIMES)
def test_through_a_bijector_a_gather_and_an_unused_part(regime):
  # -Σ softplus(x[i])², i with repetitions; the other part is not used.
  index = [0, 2, 2, 1]

  def log_prob(x, unused):
    del unused
    y = tfp.bijectors.Softplus().forward(tf.gather(x, index, axis=-1))
    return -tf.reduce_sum(y**2, -1)

  x = draw([5, 3]).numpy()
  found = run(
    regime,
    lambda *xs: unmixed_derivatives(log_prob, list(xs)),
    [tf.constant(x), tf.ones([5, 2], tf.float64)],
  )
  y, s = np.log1p(np.exp(x)), 1.0 / (1.0 + np.exp(-x))
  count = np.bincount(index)
  ds, dds = s * (1 - s), s * (1 - s) * (1 - 2 * s)
  np.testing.assert_allclose(found.second[0], -2 * count * (s**2 + y * ds))
  np.testing.assert_allclose(
    found.third[0], -2 * count * (3 * s * ds + y * dds)
  )
  assert not np.any(found.second[1]) and not np.any(found.third[1])
  assert found.third[1].shape == [5, 2]


@pytest.mark.parametrize('chunk', (3, 100))
def test_a_linear_function_has_neither(chunk):
  # As if dense: a function that no rule knows.
  matrix = draw([12, 12])

  @tf.custom_gradient
  def fn(x):
    y = tf.linalg.matvec(matrix, x)
    return (
      tf.reduce_sum(y, -1),
      lambda upstream: (
        upstream[..., tf.newaxis] * tf.reduce_sum(matrix, 0) + 0.0 * x
      ),
    )

  found = unmixed_derivatives(
    fn, tf.ones([3, 12], tf.float64), parallel_iterations=chunk
  )
  assert found.second.shape == found.third.shape == [3, 12]
  assert not np.any(found.second) and not np.any(found.third)


def test_through_a_loop():
  # sin sin sin x and the cube of the sum, in a loop unknown to pfor.
  def fn(x):
    y = tf.while_loop(
      lambda i, _: i < 3,
      lambda i, y: (i + 1, tf.sin(y)),
      (0, x),
      maximum_iterations=3,
    )[1]
    return tf.reduce_sum(y, -1) + tf.reduce_sum(x, -1) ** 3

  def written_out(x):
    y = tf.sin(tf.sin(tf.sin(x)))
    return tf.reduce_sum(y, -1) + tf.reduce_sum(x, -1) ** 3

  x = tf.linspace(tf.constant(-1.0, tf.float64), 1.0, 10)
  with pytest.warns(RuntimeWarning, match='while_loop'):
    found = unmixed_derivatives(fn, x, parallel_iterations=3)
  assert_close(tuple(found), by_nested_tapes(written_out, x), 1e-10)


@pytest.mark.parametrize('regime', REGIMES)
def test_can_be_differentiated(regime):
  x = draw([2, 3])

  def fourth(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      third = unmixed_derivatives(
        lambda x: tf.reduce_sum(tf.sin(x), -1) + tf.reduce_prod(x, -1), x
      ).third
    return tape.gradient(third, x)

  assert_close(run(regime, fourth, [x]), np.sin(x), 1e-10)


def test_is_partial():
  """A closure over the point, and a point given twice, are held."""
  x = draw([3, 2])
  found = unmixed_derivatives(lambda v: tf.reduce_sum(v**3 * x, -1), x)
  assert_close(found.third, 6.0 * x)
  found = unmixed_derivatives(lambda u, w: tf.reduce_sum(u**3 * w, -1), [x, x])
  assert_close(found.third, [6.0 * x, tf.zeros_like(x)])


# Counts.


@pytest.fixture
def passes(monkeypatch):
  """Types of the maps that were applied to a color."""
  counted = []
  for which in (ThirdOrder, LinearMap):
    apply = which.apply

    def counting(self, *args, apply=apply, which=which, **kwargs):
      # One pass of third order is two of the maps that it is made of.
      outer = counted and counted[-1] == 'inside'
      if outer:
        return apply(self, *args, **kwargs)
      counted.append('inside')
      result = apply(self, *args, **kwargs)
      counted[-1] = which
      return result

    monkeypatch.setattr(which, 'apply', counting)
  return counted


@pytest.mark.parametrize(
  ('fn', 'count'), [(chain, 2), (arrowhead, 2), (grid, 2), (regression, 12)]
)
def test_a_color_takes_one_pass(fn, count, passes):
  x = draw([3, 12])
  trace = tf.function(
    lambda x: unmixed_derivatives(fn, x, schedule='unrolled'), autograph=False
  )
  trace.get_concrete_function(x)
  assert passes == [ThirdOrder] * count


def test_a_quadratic_form_has_no_third_ones(passes):
  """Samples share the colors of a constant Hessian, and nothing else runs."""
  matrix = draw([6, 6])

  def fn(x):
    return tf.reduce_sum(x * tf.linalg.matvec(matrix, x), -1)

  x = draw([8, 6])
  found = tf.function(lambda x: unmixed_derivatives(fn, x))(x)
  assert passes == [LinearMap]
  assert_close(found.second, np.tile(2 * np.diag(matrix), [8, 1]))
  assert not np.any(found.third)


def test_order_2_is_diag_hessian(passes):
  """The same ways, cheaper than passes where there are some."""
  x = draw([3, 12])
  counts = []
  for function in (
    lambda x: diag_hessian(regression, x),
    lambda x: unmixed_derivatives(regression, x, 2)[:3],
  ):
    passes.clear()
    counts.append((tf.function(function)(x), len(passes)))
  assert_close(*(results for results, _ in counts))
  assert counts[0][1] == counts[1][1] < 12
  assert ThirdOrder not in passes


@pytest.mark.parametrize(
  'schedule, fn',
  [
    ('auto', chain),
    ('auto', regression),
    ('unrolled', chain),
    ('pfor', regression),
    ('while_loop', regression),
  ],
)
def test_the_function_is_called_once_per_trace(schedule, fn):
  calls = []

  def counted(x):
    calls.append(x)
    return fn(x)

  trace = tf.function(
    lambda x: unmixed_derivatives(counted, x, schedule=schedule),
    autograph=False,
  )
  for _ in range(3):
    trace(draw([50, 12]))
  assert len(calls) == 1
  # Nor do the passes run it again.
  graph = trace.get_concrete_function(draw([50, 12])).graph
  ops = [op.name for op in graph.get_operations() if op.type == 'Softplus']
  assert len(ops) == (fn is regression)


def test_eager_calls_run_python_each_and_compile_once():
  clear_cache()
  calls = []

  def fn(x):
    calls.append(x)
    return tf.reduce_sum(x, axis=-1) ** 3

  for i in range(20):
    unmixed_derivatives(fn, draw([2, 3], seed=i))
  assert len(calls) == 20
  assert len(graphs._cache) == 1
  # Second and third order are remembered apart.
  assert unmixed_derivatives(fn, draw([2, 3]), 2).third is None
  assert unmixed_derivatives(fn, draw([2, 3]), 3).third is not None
  assert len(graphs._cache) == 2


def test_a_kernel_calls_its_target_once_per_evaluation():
  calls = []

  def log_prob(x):
    calls.append(x)
    return chain(x)

  LocalHessianPreconditioner().evaluate(log_prob, [draw([5, 12])], 10)
  assert len(calls) == 1
  graph = tf.function(
    functools.partial(LocalHessianPreconditioner().evaluate, log_prob),
    autograph=False,
  ).get_concrete_function([draw([5, 12])], 10)
  assert len(calls) == 2
  ops = [op.type for op in graph.graph.get_operations()]
  assert ops.count('Exp') == 1


def test_a_kernel_with_an_open_event_has_its_drift():
  """Its slope of the scale is that of the curvature, not zero."""
  scale = LocalHessianPreconditioner(softness=1e-3)
  xs = [draw([3, 2]), draw([3, 4], seed=1)]

  def evaluate(*parts):
    return scale.evaluate(lambda u, w: -coupled(1)(u, w), list(parts), 10)[1]

  terms = run('function', evaluate, xs, dynamic=True)
  for static, dynamic in zip(evaluate(*xs), terms):
    assert_close(dynamic, static, 1e-9)
  assert all(np.all(slope) for slope in terms.volatility_gradient)


# Plans and bad input.


@parametrize_pairs(
  mode=('forward_over_reverse', 'auto'),
  fn=(chain, regression),
  regime=REGIMES,
)
def test_a_plan_is_followed(regime, fn, mode, recwarn):
  x = draw([4, 12])
  plan = plan_diag_hessian(fn, tf.TensorSpec([None, 12], x.dtype), mode=mode)
  # This one gives no third derivatives; its colors do.
  assert plan.uses_terms == (fn is regression and mode == 'auto')
  found = run(regime, lambda x: unmixed_derivatives(fn, x, plan=plan), [x])
  assert_close(tuple(found), by_nested_tapes(fn, x))
  assert not [w for w in recwarn if 'plan' in str(w.message)]


def test_a_compiled_plan():
  x = draw([4, 12])
  plan = plan_diag_hessian(chain, x, jit_compile=True)
  found = unmixed_derivatives(chain, x, plan=plan)
  assert_close(tuple(found), by_nested_tapes(chain, x))


@pytest.mark.parametrize(
  'fn, schedule',
  [
    (grid, 'unrolled'),
    (grid, 'while_loop'),
    (blocks, 'while_loop'),
    (blocks, 'pfor'),
  ],
)
def test_kept_promises_pass_the_checks(fn, schedule):
  x = draw([3, 12])
  found = unmixed_derivatives(
    fn, x, sample_shape=[3], schedule=schedule, validate_args=True
  )
  assert_close(tuple(found), by_nested_tapes(fn, x))


def meeting_in_the_third_order_only(x):
  """Where x is zero, so is its Hessian; ∂_001 f is not."""
  return tf.reduce_sum(tf.square(x[..., :-1]) * x[..., 1:], -1)


@pytest.mark.parametrize(
  ('fn', 'x'),
  [(chain, draw([2, 4])), (meeting_in_the_third_order_only, tf.zeros([2, 4]))],
)
def test_a_wrong_pattern_is_found(fn, x):
  plan = plan_diag_hessian(fn, x, pattern=np.eye(4))
  wrong = unmixed_derivatives(fn, x, plan=plan).third
  assert np.max(np.abs(wrong - by_nested_tapes(fn, x)[3])) > 0.1
  with pytest.raises(tf.errors.InvalidArgumentError, match='Plan again'):
    unmixed_derivatives(fn, x, plan=plan, validate_args=True)


def test_a_sample_shape_that_does_not_lead_is_found():
  x = draw([3, 2])

  @tf.function
  def checked(size):
    return unmixed_derivatives(
      chain, x, sample_shape=size[tf.newaxis], validate_args=True
    )

  checked(tf.constant(3))
  with pytest.raises(tf.errors.InvalidArgumentError, match='does not lead'):
    checked(tf.constant(4))


@pytest.mark.parametrize('order', (1, 4, 0, 2.5, 3.0, True, '3', None))
def test_other_orders_are_refused(order):
  with pytest.raises(ValueError, match=r'`order` is .* it can be 2, .* or 3'):
    unmixed_derivatives(chain, draw([2, 3]), order)


@pytest.mark.parametrize('order', (2, 3))
def test_bad_input_is_refused(order):
  x = draw([4, 3])
  call = functools.partial(unmixed_derivatives, order=order)
  of_jacobian = plan_diag_jacobian(tf.sin, x)
  with pytest.raises(ValueError, match='is for a diagonal Jacobian, not for a'):
    call(chain, x, plan=of_jacobian)
  with pytest.raises(ValueError, match='was made for parts of event shapes'):
    call(chain, x, plan=plan_diag_hessian(chain, draw([4, 5])))
  with pytest.raises(ValueError, match='was made for another function'):
    call(
      regression, draw([4, 12]), plan=plan_diag_hessian(chain, draw([4, 12]))
    )
  with pytest.raises(TypeError, match='which is not a plan'):
    call(chain, x, plan='auto')
  with pytest.raises(ValueError, match="`schedule` is 'fast'; it can be"):
    call(chain, x, schedule='fast')
  with pytest.raises(ValueError, match='`parallel_iterations` is 0'):
    call(chain, x, parallel_iterations=0)
  with pytest.raises(TypeError, match='cannot be called'):
    call(None, x)
  with pytest.raises(TypeError, match='Part 0 of `xs` has dtype int32'):
    call(chain, tf.constant([[1, 2]]))
  with pytest.raises(ValueError, match='one scalar per sample'):
    call(lambda x: x[:, :2] ** 3, x)
  with pytest.raises(ValueError, match='`fn` returned None'):
    call(lambda x: None, x)
  with pytest.raises(SampleMixingError, match='mixes samples'):
    call(lambda x: tf.reduce_sum(tf.nn.softmax(x, axis=0) ** 3, -1), x)


def test_an_op_without_a_third_derivative_is_named():
  @tf.custom_gradient
  def fn(x):
    def gradient(upstream):
      return upstream[..., tf.newaxis] * tf.math.igamma(x, tf.ones_like(x))

    return tf.reduce_sum(x, -1), gradient

  x = 1.0 + draw([2, 3]) ** 2
  step = 1e-5  # The second derivative is that of the gradient.
  upper, lower = (tf.math.igamma(x + h, 1.0) for h in (step, -step))
  second = unmixed_derivatives(fn, x, 2).second
  np.testing.assert_allclose(second, (upper - lower) / (2 * step), rtol=1e-6)
  with pytest.raises(LookupError, match='cannot be differentiated as often'):
    unmixed_derivatives(fn, x)


@pytest.mark.parametrize('num_ops, is_loop', [(20, False), (700, True)])
def test_few_passes_over_a_long_function_are_a_loop(num_ops, is_loop):
  """Written out, XLA would compile them for a minute."""

  def fn(x):
    z = x
    for _ in range(num_ops):
      z = z + 1.0 / num_ops
    return tf.reduce_sum(tf.sin(z[..., 1:] * z[..., :-1]), -1)

  x = draw([4, 6])
  run_in_graph = tf.function(
    lambda x: unmixed_derivatives(fn, x), autograph=False
  )
  found = run_in_graph(x)
  z = x.numpy() + 1.0
  products, third = z[:, 1:] * z[:, :-1], np.zeros(z.shape)
  third[:, 1:] -= z[:, :-1] ** 3 * np.cos(products)
  third[:, :-1] -= z[:, 1:] ** 3 * np.cos(products)
  np.testing.assert_allclose(found.third, third, rtol=1e-9, atol=1e-9)
  graph = run_in_graph.get_concrete_function(x).graph
  assert any('While' in op.type for op in graph.get_operations()) == is_loop
