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
"""Broken promises are reported, kept ones are not."""

import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.diagonal import checks, linear_map, sweep
from tfp_diag.diagonal.decide import Decision
from tfp_diag.diagonal.proposals import Proposal

# What is asked of an evaluation.
NO_LOOP = types.SimpleNamespace(loop_type=None, precision=tf.float64)


def draw(shape, seed=0, dtype='float64'):
  return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


def check(fn, x, colors, rank, mode='reverse', kind='unrolled'):
  """Computes a diagonal with given colors, and checks it, in a graph."""

  @tf.function(autograph=False)
  def run():
    point = tf.identity(x)
    derivative = linear_map.linear_map_of_graph([fn(point)], [point])
    given = colors if colors is None else np.asarray(colors)
    decision = Decision(NO_LOOP, given, None, mode, kind, chunk_size=2)
    diag = sweep.diagonal(
      derivative.transposed() if mode == 'forward' else derivative,
      sweep.Colors.of(given, [x], rank),
      [x],
      kind,
      decision.chunk_size,
      None,
    )
    checks.check(diag, derivative, decision, [x], rank)
    return diag

  return run()


def tridiagonal(x):
  return x**2 * tf.roll(x, 1, axis=-1) + tf.sin(x)


def test_right_colors_pass():
  # Of a cycle of even length: two colors.
  for kind in ('unrolled', 'pfor', 'while_loop'):
    check(tridiagonal, draw([3, 6]), [0, 1, 0, 1, 0, 1], 1, kind=kind)


def test_wrong_colors_are_caught_in_every_random_case():
  for seed in range(20):
    colors = np.random.default_rng(seed).integers(0, 2, size=6)
    right = np.all(colors != np.roll(colors, 1))
    if right:
      check(tridiagonal, draw([2, 6], seed), colors, 1)
    else:
      with pytest.raises(tf.errors.InvalidArgumentError, match='influence'):
        check(tridiagonal, draw([2, 6], seed), colors, 1)


def test_samples_that_mix():
  def mixing(x):
    return x * tf.reduce_mean(x, axis=0)

  check(mixing, draw([3, 2]), None, 0)
  with pytest.raises(tf.errors.InvalidArgumentError, match='mixes them'):
    check(mixing, draw([3, 2]), None, 1)


def test_samples_that_mix_with_the_next_one_only():
  x = draw([8, 2])
  with pytest.raises(tf.errors.InvalidArgumentError, match='mixes them'):
    check(lambda x: x * (1 + 1e-3 * tf.roll(x, 1, axis=0)) + 0 * x, x, None, 1)


@tf.custom_gradient
def clipped(x):
  return 3 * x, lambda dy: tf.clip_by_value(3 * dy, -1.0, 1.0)


def test_modes_that_disagree():
  check(tf.sin, draw([3]), None, 0, mode='forward')
  with pytest.raises(tf.errors.InvalidArgumentError, match=r'modes? disagree'):
    check(clipped, draw([3]), None, 0, mode='forward')


class Wrong:
  """A way that is cheaper than passes, and wrong at the last coordinate."""

  how = 'by magic'


def test_a_cheaper_way_that_is_wrong_is_not_blamed_on_the_caller():
  x = draw([4, 3])
  terms = [Proposal('by magic', 1, 1.0, Wrong())]
  decision = Decision(NO_LOOP, np.arange(3), None, 'reverse', 'auto', 2, terms)

  def check_of(diag):
    @tf.function(autograph=False)
    def run(x):
      derivative = linear_map.linear_map_of_graph([tf.sin(x)], [x])
      checks.check([diag], derivative, decision, [x], 1)

    return run(x)

  right = tf.cos(x)
  check_of(right)
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match=r'\(by magic\) disagrees .* not of yours',
  ):
    check_of(right + [0.0, 0.0, 1.0])


def test_a_deviation_is_seen_at_one_coordinate_of_each_sample():
  x = draw([64, 3])

  @tf.function(autograph=False)
  def deviation(error, precision=tf.float64):
    point = tf.identity(x)
    derivative = linear_map.linear_map_of_graph([tf.sin(point)], [point])
    given = types.SimpleNamespace(xs=[point], precision=precision)
    return checks.deviation_at_one([tf.cos(x) + error], derivative, given, 1)

  assert checks.is_small(deviation(tf.zeros([64, 3], tf.float64)))
  # Of 64 samples some draw the coordinate: unseen with odds of (2/3)^64.
  assert not checks.is_small(
    deviation(tf.one_hot([1] * 64, 3, dtype='float64'))
  )
  # What rounding of single precision makes is seen in double precision alone.
  rounding = tf.fill([64, 3], tf.constant(1e-6, tf.float64))
  assert not checks.is_small(deviation(rounding))
  assert checks.is_small(deviation(rounding, tf.float32))


def test_what_is_left_where_entries_cancel():
  """It is compared with the other entries of its row, which do not."""
  x = draw([2, 8, 3])

  @tf.function(autograph=False)
  def deviation(error):
    first, second = tf.unstack(tf.identity(x))
    derivative = linear_map.linear_map_of_graph(
      [second, first], [first, second]
    )
    given = types.SimpleNamespace(xs=[first, second], precision=tf.float64)
    diag = [tf.fill([8, 3], error), tf.zeros([8, 3], tf.float64)]
    return checks.deviation_at_one(diag, derivative, given, 1)

  def is_small(error):
    return checks.is_small(deviation(tf.constant(error, tf.float64)))

  assert is_small(0.0) and is_small(1e-15)
  assert not is_small(1e-12)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32'])
def test_a_wrong_diagonal_is_seen_in_all_precisions(dtype):
  x = draw([8, 3], dtype=dtype)

  @tf.function(autograph=False)
  def deviation(diag):
    point = tf.identity(x)
    derivative = linear_map.linear_map_of_graph([point], [point])
    given = types.SimpleNamespace(xs=[point], precision=point.dtype)
    return checks.deviation_at_one([diag], derivative, given, 1)

  assert checks.is_small(deviation(tf.ones_like(x)))
  assert not checks.is_small(deviation(1.4 * tf.ones_like(x)))


def test_parts_are_tried_at_points_of_their_own():
  spec = tf.TensorSpec([None, 4], tf.float64)
  plan = tfp_diag.plan_diag_hessian(
    lambda x, y: tf.math.log(tf.reduce_sum(x - y, -1) ** 2), [spec, spec]
  )
  assert not any('differs' in note for note in plan.notes)
  assert plan.num_passes < 8
  x = tf.constant([[0.1, 0.2, 0.3, 0.4]], tf.float64)
  np.testing.assert_allclose(
    plan([x, 2 * x])[2][0], np.full([1, 4], -2.0), rtol=1e-9
  )


def test_functions_that_compute_less_precisely_than_their_parts():
  x = draw([2, 6])

  def fn(x):
    y = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(y, [1], keepdims=True)
    return tf.cast((y - mean) / tf.sqrt(variance), tf.float64)

  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = tfp_diag.diag_gauss_newton(fn, x, sample_shape=[2])
    checked = tfp_diag.diag_gauss_newton(
      fn, x, sample_shape=[2], validate_args=True
    )
  # The projection on what is orthogonal to ones and to y, over the deviation.
  y = x.numpy() - x.numpy().mean(1, keepdims=True)
  deviation = y.std(1, keepdims=True)
  expected = (1 - 1 / 6 - y**2 / (6 * deviation**2)) / deviation**2
  np.testing.assert_allclose(found.diag, expected, rtol=1e-4)
  np.testing.assert_allclose(checked.diag, expected, rtol=1e-4)


@pytest.mark.parametrize('dtype', ['float64', 'float32', 'float16', 'bfloat16'])
def test_rounding_is_no_broken_promise(dtype):
  matrix = draw([5, 5], 1, dtype)

  def fn(x):
    # Terms of 1e3 cancel in every entry.
    return (1e3 * x) @ matrix * x - 1e3 * (x @ matrix * x) + tf.tanh(x)

  for seed in range(3):
    check(fn, draw([4, 5], seed, dtype), None, 1)


def test_what_is_not_finite_is_not_reported():
  x = tf.constant([[0.0, 1.0], [-1.0, 2.0]], tf.float64)
  check(lambda x: tf.math.log(x) * tf.reduce_sum(x, -1, True), x, None, 1)


@pytest.mark.parametrize('shape', [[0, 3], [3, 0], [0]])
def test_empty_parts(shape):
  check(tf.sin, tf.zeros(shape, tf.float64), None, 1)


@pytest.mark.parametrize(
  'sample_shape, leads',
  [
    (None, True),
    ([], True),
    (2, True),
    ([2, 3], True),
    ([None, 3], True),
    (tf.TensorShape([2, None]), True),
    (tf.constant([2, 3], tf.int64), True),
    ([3], False),
    ([None, 2], False),
    (tf.constant([2, 4]), False),
  ],
  ids=str,
)
def test_sample_shapes(sample_shape, leads):
  @tf.function(
    input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None] * 3)],
    autograph=False,
  )
  def fn(x, z):
    checks.check_sample_shape([x, z], sample_shape)
    return x

  xs = tf.ones([2, 3]), tf.ones([2, 3, 4])
  if leads:
    fn(*xs)
  else:
    with pytest.raises(tf.errors.InvalidArgumentError, match='part 0 of `xs`'):
      fn(*xs)
