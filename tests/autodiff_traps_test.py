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
"""The traps of TensorFlow's automatic differentiation, one test each.

Where TensorFlow itself is wrong or fails, the test shows that, too, with the
number of the issue. A test that fails there says that TensorFlow has been
mended: then delete that half.
"""

import functools
import logging
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.pairs import parametrize_pairs
from tfp_diag import clear_cache, diag_hessian, diag_jacobian
from tfp_diag.diagonal import graphs
from tfp_diag.sparsity import SampleMixingError

REGIMES = ('eager', 'function', 'xla')
MODES = ('reverse', 'forward')
SCHEDULES = ('unrolled', 'pfor', 'while_loop')
MENDED = 'TensorFlow has mended this: delete this check'


def run(regime, fn, *xs):
  if regime == 'eager':
    return fn(*xs)
  function = tf.function(
    fn, autograph=False, jit_compile=regime == 'xla' or None
  )
  return function(*xs)


def hessian_mode(mode):
  return {'reverse': 'reverse_over_reverse', 'forward': 'forward_over_reverse'}[
    mode
  ]


def draw(shape, seed=0):
  return tf.constant(
    np.random.default_rng(seed).uniform(-1.0, 1.0, shape), tf.float64
  )


def test_nested_accumulators_are_wrong_in_eager_mode_tf_127753():
  x, one = tf.constant(0.7, tf.float64), tf.constant(1.0, tf.float64)

  def cube(x):
    m = tf.identity(x)
    return (m * m) * m

  with tf.autodiff.ForwardAccumulator(x, one) as outer:
    with tf.autodiff.ForwardAccumulator(x, one) as inner:
      y = cube(x)
    nested = outer.jvp(inner.jvp(y))
  assert abs(nested - 4.2) > 1.0, MENDED
  for regime in REGIMES:
    for mode in MODES:
      fn = functools.partial(diag_hessian, cube, mode=hessian_mode(mode))
      _, _, diag = run(regime, fn, x)
      np.testing.assert_allclose(diag, 4.2, rtol=1e-12)


def test_what_came_before_the_accumulator_has_no_jvp_tf_60164():
  x = tf.constant([1.0, 2.0])

  @tf.function(autograph=False)
  def upstream(x):
    y = x**3
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
      pass
    return accumulator.jvp(y) is None

  @tf.function(autograph=False)
  def ours(x):
    y = x**3
    return diag_jacobian(x, ys=y, mode='forward')[1][0]

  assert upstream(x), MENDED
  np.testing.assert_allclose(ours(x), [3.0, 12.0])


@pytest.mark.parametrize('regime', ['eager', 'function'])
@pytest.mark.parametrize('mode', MODES)
def test_forward_over_reverse_of_loops(regime, mode):
  def loop(x):
    return tf.while_loop(
      lambda i, _: i < 3, lambda i, y: (i + 1, y * x), (0, tf.ones_like(x))
    )[1]

  def scan(x):
    return tf.scan(lambda a, _: a * x, tf.range(3), tf.ones_like(x))[-1]

  x = tf.constant([0.5, 1.5], tf.float64)
  for fn in (loop, scan):
    hessian = functools.partial(
      diag_hessian, fn, mode=hessian_mode(mode), schedule='while_loop'
    )
    _, _, diag = run(regime, hessian, x)
    np.testing.assert_allclose(diag, 6 * x, rtol=1e-12)


def test_forward_over_reverse_of_a_loop_with_its_own_gradient():
  """As Bessel functions of TFP have."""

  @tf.custom_gradient
  def cube(x):
    y = tf.while_loop(
      lambda i, _: i < 3,
      lambda i, y: (i + 1, y * x),
      (0, tf.ones_like(x)),
      maximum_iterations=3,
    )[1]
    return y, lambda upstream: 3 * upstream * (cube(x) / x)

  x = tf.constant([0.5, 1.5], tf.float64)

  hessian = functools.partial(diag_hessian, cube, mode='forward_over_reverse')
  _, _, diag = run('function', hessian, x)
  np.testing.assert_allclose(diag, 6 * x, rtol=1e-12)


@pytest.mark.parametrize('regime', REGIMES)
@pytest.mark.parametrize('mode', MODES)
def test_gathers_have_sparse_gradients(regime, mode):
  def fn(x):
    # Two nested gathers along the first axis, whose gradients are sparse.
    return tf.reduce_sum(tf.gather(tf.gather(x, [0, 2, 2]) ** 3, [1, 2]))

  hessian = functools.partial(diag_hessian, fn, mode=hessian_mode(mode))
  x = draw([4])
  _, gradient, diag = run(regime, hessian, x)
  np.testing.assert_allclose(gradient, [0, 0, 6 * x[2] ** 2, 0], rtol=1e-12)
  np.testing.assert_allclose(diag, [0, 0, 12 * x[2], 0], rtol=1e-12)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('chunk', [1, 2, 3, 4, 5, 6, 7, 8])
def test_chunks_do_not_spend_the_tape_tf_47785(mode, chunk):
  # 7 passes: 7 chunks of 1; 3 of 2 and a rest; ...; one that is too large.
  x = draw([7])
  _, diag = diag_jacobian(
    x,
    fn=lambda x: x**2 * tf.reduce_sum(x),
    mode=mode,
    schedule='pfor',
    parallel_iterations=chunk,
  )
  np.testing.assert_allclose(diag[0], 2 * x * np.sum(x) + x**2, rtol=1e-12)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('regime', ['eager', 'function'])
def test_hessians_through_branches_tf_108936(regime, mode):
  def autograph_if(x):
    if tf.reduce_sum(x) > 0:
      return tf.reduce_sum(x**3)
    return tf.reduce_sum(x**4)

  def cond(x):
    return tf.cond(
      tf.reduce_sum(x) > 0,
      lambda: tf.reduce_sum(x**3),
      lambda: tf.reduce_sum(x**4),
    )

  for fn in (autograph_if, cond):
    hessian = functools.partial(
      diag_hessian, fn, mode=hessian_mode(mode), schedule='pfor'
    )
    if regime == 'function':
      # One graph, which has both branches.
      hessian = tf.function(hessian, autograph=False)
    for x, wanted in (([1.0, 2.0], [6.0, 12.0]), ([-1.0, 0.5], [12.0, 3.0])):
      with warnings.catch_warnings():
        warnings.simplefilter('ignore', RuntimeWarning)
        _, _, diag = hessian(tf.constant(x))
      np.testing.assert_allclose(diag, wanted, rtol=1e-6)


class Records(logging.Handler):
  def __init__(self):
    super().__init__()
    self.records = []

  def emit(self, record):
    self.records.append(record.getMessage())


@pytest.mark.parametrize(
  'op, mode, fn',
  [
    (
      'StatelessWhile',
      'forward',
      lambda x: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, y * x), (0, x)
      )[1],
    ),
    (
      'DynamicStitch',
      'reverse',
      lambda x: x * tf.concat(tf.dynamic_partition(x, [0, 1, 0], 2), 0),
    ),
  ],
)
def test_what_cannot_be_vectorized_is_named_once(op, mode, fn):
  x = tf.constant([3.0, 1.0, 2.0])
  options = dict(mode=mode, schedule='pfor', parallel_iterations=2)
  handler = Records()
  tf.get_logger().addHandler(handler)
  try:
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter('always')
      _, diag = diag_jacobian(x, fn=fn, **options)
      # The graph is there already: nothing more to say.
      diag_jacobian(x, fn=fn, **options)
  finally:
    tf.get_logger().removeHandler(handler)
  assert [(w.category, op in str(w.message)) for w in caught] == [
    (RuntimeWarning, True)
  ]
  assert "schedule='while_loop'" in str(caught[0].message)
  # pfor's own report of a page or two is held back.
  assert handler.records == []
  wanted = 3 * x**2 if op == 'StatelessWhile' else [1.0, 2.0, 3.0]
  if op == 'DynamicStitch':
    wanted = [6.0, 2.0, 1.0]
  np.testing.assert_allclose(diag[0], wanted)


@pytest.mark.parametrize('fn', [diag_jacobian, diag_hessian])
def test_eager_calls_do_not_compile_anew_tf_42835(fn):
  clear_cache()
  calls = []

  def square(x):
    calls.append(x)
    return x**2

  for i in range(100):
    x = tf.constant([float(i)])
    fn(x, fn=square) if fn is diag_jacobian else fn(square, x)
  assert len(calls) == 100
  assert len(graphs._cache) == 1


@parametrize_pairs(
  regime=REGIMES,
  mode=MODES,
  schedule=SCHEDULES,
  shape=[[1], [1, 1], [2, 1], [1, 3]],
)
def test_axes_of_size_one_tfp_1071(regime, mode, schedule, shape):
  fn = functools.partial(
    diag_jacobian,
    fn=lambda x: x * tf.reduce_sum(x**2, axis=-1, keepdims=True),
    sample_shape=shape[:-1],
    mode=mode,
    schedule=schedule,
    parallel_iterations=1 if shape[0] == 1 else 2,
  )
  x = draw(shape)
  wanted = np.sum(x**2, axis=-1, keepdims=True) + 2 * x**2
  np.testing.assert_allclose(run(regime, fn, x)[1][0], wanted, rtol=1e-12)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('schedule', SCHEDULES)
def test_a_second_derivative_outside_the_tape_is_not_zero_tf_45234(
  mode, schedule
):
  def fn(x):
    return x**3 * tf.reduce_sum(x, axis=-1, keepdims=True)

  def diagonal(x):
    return diag_jacobian(
      x, fn=fn, sample_shape=[2], mode=mode, schedule=schedule
    )[1][0]

  x = draw([2, 2])
  # The diagonal of the Jacobian of the diagonal, by our own function.
  _, second = diag_jacobian(
    x, fn=diagonal, sample_shape=[2], mode=mode, schedule=schedule
  )
  total = np.sum(x, axis=-1, keepdims=True)
  # d/dx_i (3 x_i^2 total + x_i^3).
  np.testing.assert_allclose(second[0], 6 * x * total + 6 * x**2, rtol=1e-11)


def test_a_gradient_of_a_gradient_is_a_row_sum():
  def fn(x):
    return tf.reduce_prod(x, axis=-1) + tf.reduce_sum(x**3, axis=-1)

  x = tf.constant([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])
  with tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
      inner.watch(x)
      value = fn(x)
    gradient = inner.gradient(value, x)
  row_sums = outer.gradient(gradient, x)
  # The numbers of the docstring of `diag_hessian`.
  np.testing.assert_allclose(row_sums, [[6.0, 8.5, 13.5], [8.0, 8.0, 8.0]])
  np.testing.assert_allclose(
    diag_hessian(fn, x)[2], [[3.0, 6.0, 12.0], [6.0, 6.0, 6.0]]
  )


def test_batch_normalization_gives_batch_jacobian_no_meaning():
  layer = tf_keras.layers.BatchNormalization(dtype='float64')

  def fn(x):
    return layer(x, training=True)

  x = draw([4, 2])
  fn(x)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  full = tape.jacobian(y, x, experimental_use_pfor=False)
  wanted = np.einsum('sisi->si', full)
  meaningless = np.einsum('sii->si', tape.batch_jacobian(y, x))
  assert np.max(np.abs(meaningless - wanted)) > 0.1
  np.testing.assert_allclose(diag_jacobian(x, fn=fn)[1][0], wanted, atol=1e-10)
  with pytest.raises(SampleMixingError, match='mixes samples: Mean'):
    diag_jacobian(x, fn=fn, sample_shape=[4])


@pytest.mark.parametrize('mode', MODES)
def test_random_numbers_inside_are_drawn_once(mode):
  # tfp#1448: drawing in a vectorized body falls back to a loop, or draws anew.
  def fn(x):
    noise = tf.random.uniform(tf.shape(x), 1.0, 2.0, dtype=x.dtype)
    return noise * x * tf.reduce_sum(x)

  x = draw([3]) + 2.0
  with warnings.catch_warnings():
    warnings.simplefilter('error', RuntimeWarning)
    ys, diag = diag_jacobian(x, fn=fn, mode=mode, schedule='pfor')
  noise = ys[0] / (x * np.sum(x))
  np.testing.assert_allclose(diag[0], noise * (np.sum(x) + x), rtol=1e-12)


def test_slices_under_xla():
  """Whose gradient is an op of XLA that has no gradient in TensorFlow."""

  def fn(x):
    return tf.reduce_sum(tf.slice(x, [1], [3]) ** 4) + tf.reduce_prod(x)

  def joined(x):
    return tf.reduce_sum(tf.sin(tf.concat([x[:2] * x[2:4], x], 0)))

  x = tf.constant([0.5, 1.0, 2.0, -1.5, 3.0], tf.float64)
  for f in (fn, joined):

    def third(x, f=f):
      with tf.GradientTape() as tape:
        tape.watch(x)
        _, _, diag = diag_hessian(f, x)
      return diag, tape.gradient(diag, x)

    for plain, compiled in zip(
      third(x), tf.function(third, jit_compile=True)(x)
    ):
      np.testing.assert_allclose(compiled, plain, rtol=1e-10)


@pytest.mark.parametrize('regime', REGIMES)
@pytest.mark.parametrize('kind', ['passes', 'sweep'])
def test_an_accumulator_around_a_diagonal(regime, kind):
  """In a graph it cannot pass through `tf.ensure_shape`: a raw TypeError."""
  x, direction = draw([3, 4], 1), draw([3, 4], 2)
  matrix = draw([7, 4], 3)

  def fn(x):
    if kind == 'passes':
      return tf.reduce_sum(x[:, 1:] ** 3 * tf.sin(x[:, :-1]), axis=1)
    return tf.reduce_sum(tf.exp(tf.linalg.matvec(matrix, x)), axis=1)

  def along(x, direction):
    with tf.autodiff.ForwardAccumulator(x, direction) as accumulator:
      diag = diag_hessian(fn, x, sample_shape=[3])[2]
    return accumulator.jvp(diag)

  if kind == 'sweep':
    curvature = tf.exp(x @ tf.transpose(matrix)) * (
      direction @ tf.transpose(matrix)
    )
    expected = curvature @ matrix**2
  else:
    # x1^3 sin(x0) + x2^3 sin(x1) + x3^3 sin(x2), by hand.
    low, high = x[:, :-1], x[:, 1:]
    a, b = direction[:, :-1], direction[:, 1:]
    from_high = 6 * (tf.sin(low) * b + high * tf.cos(low) * a)
    from_low = -3 * high**2 * b * tf.sin(low) - high**3 * tf.cos(low) * a
    expected = tf.pad(from_high, [[0, 0], [1, 0]]) + tf.pad(
      from_low, [[0, 0], [0, 1]]
    )
  np.testing.assert_allclose(
    run(regime, along, x, direction), expected, rtol=1e-12
  )
