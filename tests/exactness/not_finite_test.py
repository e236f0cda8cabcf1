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
"""What is not finite stays where it is, in each mode and schedule.

Coordinates of one color share a pass: 0 · inf in one of them must not reach the
others. Wherever one row of the Jacobian after the other gives a number, so does
a pass of many.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import copy_of, draw, in_regime
from tests.oracles import hessian_diagonal, jacobian_diagonal
from tests.pairs import parametrize_pairs

N = 18
BAND = np.eye(N) + 0.5 * np.eye(N, k=1) - 0.25 * np.eye(N, k=-1)
MODES = ('forward', 'reverse', 'auto')
HESSIAN_MODES = ('forward_over_reverse', 'reverse_over_reverse', 'auto')
SCHEDULES = ('unrolled', 'pfor', 'while_loop')


def positive(*zeros, samples=2):
  """Positive numbers, but for zeros at some places of the first sample."""
  values = np.abs(draw(samples, N).numpy()) + 0.1
  values[0, list(zeros)] = 0.0
  return tf.constant(values)


def roots_times_a_band(x):
  return tf.sqrt(x) @ BAND


def roots_and_differences(x):
  root = tf.sqrt(x)
  return root - 0.5 * tf.roll(root, 1, axis=1)


def logarithms_times_a_band(x):
  return tf.math.log(x) @ BAND


def powers_convolved(x):
  kernel = tf.constant([0.5, 1.0, -0.3], x.dtype)[:, tf.newaxis, tf.newaxis]
  rows = tf.pow(x, 0.25)[..., tf.newaxis]
  return tf.nn.conv1d(rows, kernel, 1, 'SAME')[..., 0]


def inverse_times_neighbors(x):
  return tf.math.reciprocal(x) + tf.sin(x) * tf.roll(x, 2, axis=1)


FUNCTIONS = (
  roots_times_a_band,
  roots_and_differences,
  logarithms_times_a_band,
  powers_convolved,
  inverse_times_neighbors,
)


def check(got, want):
  """Equal, wherever the rows one by one are numbers, or infinite."""
  got = np.asarray(got)
  known = ~np.isnan(want)
  assert known.any() and not np.isfinite(want).all()
  np.testing.assert_allclose(got[known], want[known], rtol=1e-9)
  # The samples that have nothing to hide are as they were.
  assert np.isfinite(got[1:]).all()


@parametrize_pairs(schedule=SCHEDULES, mode=MODES, fn=FUNCTIONS)
def test_an_infinite_derivative(schedule, mode, fn):
  x = positive(7)
  _, diag = tfp_diag.diag_jacobian(
    x, sample_shape=[2], fn=fn, mode=mode, schedule=schedule
  )
  check(diag[0], jacobian_diagonal(fn, copy_of(x)))


@pytest.mark.parametrize('fn', FUNCTIONS[:2], ids=lambda f: f.__name__)
@pytest.mark.parametrize('regime', ('function', 'xla'))
def test_an_infinite_derivative_in_a_graph(regime, fn):
  x = positive(4, 11)

  def call(x):
    return tfp_diag.diag_jacobian(x, sample_shape=[2], fn=fn)[1][0]

  check(in_regime(regime, call, x), jacobian_diagonal(fn, copy_of(x)))


def test_an_infinite_derivative_with_a_plan():
  x = positive(3)
  for mode in MODES:
    plan = tfp_diag.plan_diag_jacobian(
      roots_times_a_band, x, sample_shape=[2], mode=mode
    )
    want = jacobian_diagonal(roots_times_a_band, copy_of(x))
    check(plan(x)[1][0], want)


def roots_of_a_chain(x):
  root = tf.pow(x, 1.5)
  return tf.reduce_sum(root, -1) + tf.reduce_sum(
    (x[:, 1:] - 0.5 * x[:, :-1]) ** 4, axis=-1
  )


def entropy(x):
  log = tf.where(x > 0.0, x * tf.math.log(x), tf.zeros_like(x))
  return tf.reduce_sum(log, -1) + tf.reduce_sum(
    tf.cos(x[:, 1:] * x[:, :-1]), axis=-1
  )


def barrier(x):
  return tf.reduce_sum(tf.sqrt(x) + tf.cosh(x), axis=-1) + tf.reduce_sum(
    tf.sin(tf.linalg.matvec(tf.constant(BAND), x)), axis=-1
  )


@parametrize_pairs(
  fn=(roots_of_a_chain, entropy, barrier),
  mode=HESSIAN_MODES,
  schedule=('unrolled', 'pfor'),
)
def test_an_infinite_curvature(schedule, mode, fn):
  x = positive(7)
  diag = tfp_diag.diag_hessian(fn, x, mode=mode, schedule=schedule)[2]
  check(diag, hessian_diagonal(fn, copy_of(x)))


def behind_a_selection(x):
  inside = tf.where(tf.abs(x) < 1.0, tf.atanh(x), x**2)
  return tf.reduce_sum(inside, -1)


def arc_behind_a_selection(x):
  return tf.reduce_sum(tf.where(x < 1.0, tf.acos(x), tf.exp(x)), axis=-1)


def full_entropy(x):
  return tf.reduce_sum(x * tf.math.log(x), axis=-1)


@pytest.mark.parametrize(
  'how, fn',
  [
    *((how, behind_a_selection) for how in (*HESSIAN_MODES, 'plan')),
    ('forward_over_reverse', arc_behind_a_selection),
    ('auto', arc_behind_a_selection),
    ('forward_over_reverse', full_entropy),
    ('auto', full_entropy),
    ('plan', full_entropy),
  ],
)
def test_a_hessian_is_as_finite_as_reverse_passes(how, fn):
  """TensorFlow's gradients of a cotangent of zero are zero."""
  x = tf.constant([[0.0, 1.0, 0.5, 0.25], [0.3, 0.6, 0.2, 0.7]], tf.float64)
  if how == 'plan':
    spec = tf.TensorSpec([None, 4], tf.float64)
    plan = tfp_diag.plan_diag_hessian(fn, spec, mode='forward_over_reverse')
    diag = plan(x)[2]
  else:
    diag = tfp_diag.diag_hessian(fn, x, mode=how)[2]
  want = hessian_diagonal(fn, copy_of(x))
  assert not np.isnan(want).any()
  np.testing.assert_allclose(diag, want, rtol=1e-9)


def product_and_logs(x):
  return tf.reduce_prod(x, -1) + tf.reduce_sum(tf.math.log(x), -1)


def log_det_and_logs(x):
  distances = x[:, :, tf.newaxis] - x[:, tf.newaxis]
  kernel = tf.exp(-(distances**2)) + tf.eye(4, dtype=x.dtype)
  return tf.linalg.logdet(kernel) + tf.reduce_sum(tf.math.log(x), -1)


@pytest.mark.parametrize(
  'fn, how',
  [(product_and_logs, 'op by op'), (log_det_and_logs, 'by tangents')],
)
def test_what_is_infinite_stays_where_it_is_op_by_op(fn, how):
  x = tf.constant([[0.3, 0.2, 0.0, 0.5], [0.4, 0.6, 0.7, 0.8]], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([2, 4], x.dtype))
  assert plan.how == how
  want = hessian_diagonal(fn, copy_of(x))
  assert np.isinf(want).sum() == 1 and not np.isnan(want).any()
  diagonal = functools.partial(tfp_diag.diag_hessian, fn)
  found = [plan(x), tf.function(diagonal, jit_compile=True)(x)]
  if fn is product_and_logs:
    diagonal(x + 1.0)  # The first call is compared with passes; not this one.
    found.append(diagonal(x))
  for _, _, diag in found:
    np.testing.assert_allclose(diag, want, rtol=1e-9)


@pytest.mark.parametrize(
  'mode, value',
  [
    ('forward', np.nan),
    ('forward', np.inf),
    ('reverse', np.nan),
    ('reverse', -np.inf),
    ('auto', np.nan),
  ],
)
def test_an_input_that_is_not_finite(mode, value):
  """It reaches its neighbors, and nobody else."""
  values = draw(2, N).numpy()
  values[0, 9] = value
  x = tf.constant(values)

  def fn(x):
    return tf.sin(x) * tf.roll(x, 1, axis=1) + x**2

  _, diag = tfp_diag.diag_jacobian(x, sample_shape=[2], fn=fn, mode=mode)
  far = np.ones([2, N], bool)
  far[0, 8:12] = False
  want = np.cos(values) * np.roll(values, 1, axis=1) + 2 * values
  np.testing.assert_allclose(diag[0][far], want[far], rtol=1e-12)


@pytest.mark.parametrize('schedule', ['auto', 'unrolled'])
def test_a_sample_of_nan_is_no_reason_for_a_check_to_fail(schedule):
  """What differs by rounding is compared in units of what is finite."""

  def chain(x):
    jumps = x[..., 1:] - 0.9 * x[..., :-1]
    return -1e3 * tf.reduce_sum(tf.cosh(3.0 * jumps), axis=-1)

  rng = np.random.default_rng(4)
  x = tf.constant(rng.normal(size=[4, 20]) / 2.0, tf.float32)
  want = tfp_diag.diag_hessian(chain, x)[2]
  spoiled = tf.concat([np.nan * x[:1], x[1:]], axis=0)
  found = tfp_diag.diag_hessian(
    chain, spoiled, schedule=schedule, validate_args=True
  )[2]
  assert np.all(np.isnan(found[0]))
  np.testing.assert_allclose(found[1:], want[1:], rtol=1e-4)


def wide_with_a_root(x):
  root = tf.sqrt(x[..., 1])
  return tf.stack([x[..., 0], root, x[..., 0] * x[..., 1]], axis=-1)


def wide_with_logs(x):
  return tf.concat([tf.math.log(x), x, x[..., :1] ** 2], axis=-1)


def wide_behind_a_selection(x):
  return tf.concat([x, tf.where(x > 0.0, x, tf.sqrt(-x) + x)], axis=-1)


WIDE = (wide_with_a_root, wide_with_logs, wide_behind_a_selection)


def rows_by_tapes(fn, x):
  """`[samples, outputs, inputs]`, each row by a tape of its own."""
  samples = []
  for sample in x:
    rows = []
    for i in range(fn(sample).shape[0]):
      with tf.GradientTape() as tape:
        tape.watch(sample)
        y = fn(sample)[i]
      rows.append(tape.gradient(y, sample))
    samples.append(tf.stack(rows))
  return tf.stack(samples).numpy()


# Under XLA every gradient behind what is not selected is NaN here.
@pytest.mark.parametrize(
  'mode, regime, fn',
  [('auto', regime, fn) for regime in ('eager', 'function') for fn in WIDE]
  + [('lazy', 'eager', fn) for fn in WIDE]
  + [(mode, 'eager', wide_with_a_root) for mode in ('forward', 'chunks')]
  + [(mode, 'xla', wide_with_logs) for mode in ('auto', 'chunks', 'lazy')],
)
def test_a_whole_jacobian(mode, regime, fn):
  x = tf.constant([[1.0, 0.0], [0.5, 2.0]], tf.float64)

  def call(x):
    if mode == 'lazy':
      return tfp_diag.LazyJacobian(fn, x, [2]).to_dense()
    if mode == 'chunks':
      return tfp_diag.jacobian(fn, x, [2], chunk_size=1)
    return tfp_diag.jacobian(fn, x, [2], mode=mode)

  check(in_regime(regime, call, x), rows_by_tapes(fn, x))


def test_a_column():
  x = tf.constant([1.0, 0.0], tf.float64)
  view = tfp_diag.LazyJacobian(wide_with_logs, x)
  np.testing.assert_array_equal(view[:, 0], [1.0, 0.0, 1.0, 0.0, 2.0])


def test_a_jacobian_of_open_shapes_and_many_parts():
  """No path leads from `b` to the root; `n` has no static size."""
  vector = tf.TensorSpec([None], tf.float64)

  def fn(a, b):
    return tf.sqrt(a) - a, tf.concat([a * b, tf.sqrt(b)], 0)

  @tf.function(input_signature=[vector, vector])
  def call(a, b):
    return tfp_diag.jacobian(fn, (a, b), mode='forward')

  (by_a, by_b), (of_a, of_b) = call([0.0, 1.0], [4.0, 1.0])
  np.testing.assert_array_equal(by_a, np.diag([np.inf, -0.5]))
  np.testing.assert_array_equal(by_b, np.zeros([2, 2]))
  np.testing.assert_array_equal(of_a, [[4, 0], [0, 1], [0, 0], [0, 0]])
  np.testing.assert_array_equal(of_b, [[0, 0], [0, 1], [0.25, 0], [0, 0.5]])


@pytest.mark.parametrize('regime', ('eager', 'function'))
def test_a_whole_hessian(regime):
  x = tf.constant([0.0, 1.0, 0.5], tf.float64)

  def call(x):
    mode = 'forward_over_reverse'
    return tfp_diag.hessian(full_entropy, x, mode=mode)

  want = np.diag([np.inf, 1.0, 2.0])
  np.testing.assert_array_equal(in_regime(regime, call, x), want)


@pytest.mark.parametrize('jit_compile', [False, True])
def test_a_whole_jacobian_has_derivatives_where_it_is_finite(jit_compile):
  x = tf.constant([1.0, 4.0], tf.float64)

  @tf.function(jit_compile=jit_compile)
  def call(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      total = tf.reduce_sum(tfp_diag.jacobian(wide_with_a_root, x))
    return tape.gradient(total, x)

  np.testing.assert_allclose(call(x), [1.0, 1.0 - 0.25 * 4.0**-1.5])


def test_a_whole_jacobian_has_tangents_in_a_graph():
  @tf.function
  def call(x):
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
      jacobian = tfp_diag.jacobian(wide_with_a_root, x)
    return accumulator.jvp(jacobian)

  want = [[0.0, 0.0], [0.0, -0.25], [1.0, 1.0]]
  np.testing.assert_allclose(call(tf.constant([3.0, 1.0])), want)
