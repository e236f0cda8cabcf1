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
"""`diag_jacobian` of every shape, dtype, mode and schedule, in every regime.

The function has a closed form, which NumPy evaluates in float64.
"""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.pairs import parametrize_pairs
from tfp_diag import diag_jacobian

MODES = ('reverse', 'forward')
SCHEDULES = ('unrolled', 'pfor', 'while_loop')
SAMPLE_SHAPES = ((), (7,), (3, 5), (2, 1, 3), (0,))
EVENT_SHAPES = (
  ((),),
  ((1,),),
  ((4,),),
  ((2, 3),),
  ((0,),),
  ((), (4,), (2, 3)),
  ((3,), (0,), (1, 2)),
)
TOLERANCE = {'float64': 1e-12, 'float32': 2e-5, 'float16': 2e-2}
TOLERANCE['bfloat16'] = 1e-1


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


def draw_parts(sample_shape, event_shapes, dtype='float64'):
  return [
    draw(sample_shape + e, dtype, seed) for seed, e in enumerate(event_shapes)
  ]


def coupled(rank):
  """All coordinates of a sample meet, across parts; each sample is itself."""

  def total(xs):
    return sum(tf.reduce_sum(x, axis=range(rank, x.shape.rank)) for x in xs)

  def fn(*xs):
    sample = tf.shape(xs[0])[:rank]
    ys = []
    for i, x in enumerate(xs):
      ones = tf.ones([x.shape.rank - rank], tf.int32)
      t = tf.reshape(total(xs), tf.concat([sample, ones], 0))
      ys.append(x**3 + (i + 1) * tf.sin(t))
    return ys

  return fn


def coupled_diagonal(xs, rank):
  """In closed form: `3 x_i^2 + (part + 1) cos(sum(x))`."""
  xs = [np.asarray(x).astype(np.float64) for x in xs]
  total = sum(x.sum(axis=tuple(range(rank, x.ndim))) for x in xs)
  return [
    3 * x**2
    + (i + 1)
    * np.cos(np.reshape(total, x.shape[:rank] + (1,) * (x.ndim - rank)))
    for i, x in enumerate(xs)
  ]


def check(regime, dynamic, dtype, mode, schedule, chunk, sample, events):
  rank = len(sample)
  xs = draw_parts(sample, events, dtype)

  def fn(*xs):
    return diag_jacobian(
      list(xs),
      # The two ways to say it; the first is static, the second need not be.
      sample_shape=tf.shape(xs[0])[:rank] if dynamic else sample,
      fn=coupled(rank),
      mode=mode,
      schedule=schedule,
      parallel_iterations=chunk,
    )

  ys, diag = run(regime, fn, xs, dynamic)
  for x, y, d, wanted in zip(xs, ys, diag, coupled_diagonal(xs, rank)):
    assert y.shape == d.shape == x.shape
    assert y.dtype == d.dtype == x.dtype
    np.testing.assert_allclose(
      np.asarray(d).astype(np.float64), wanted, atol=TOLERANCE[dtype]
    )


ALL_FACTORS = {
  'regime': ('eager', 'function', 'xla'),
  'dynamic': (False, True),
  'dtype': ('float64', 'float32'),
  'mode': (*MODES, 'auto'),
  'schedule': (*SCHEDULES, 'auto'),
  # 1: a plain loop; 3: divides none of the sizes but 3 and 9; 10: the default.
  'chunk': (1, 3, 10),
  'sample': SAMPLE_SHAPES,
  'events': EVENT_SHAPES,
}


@parametrize_pairs(**ALL_FACTORS)
def test_all_regimes(
  regime, dynamic, dtype, mode, schedule, chunk, sample, events
):
  check(regime, dynamic, dtype, mode, schedule, chunk, sample, events)


@pytest.mark.parametrize('regime', ['function', 'xla'])
@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
@pytest.mark.parametrize('mode', MODES)
def test_half_precision(regime, dtype, mode):
  check(regime, False, dtype, mode, 'pfor', 3, (2,), ((4,),))


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('mode', MODES)
def test_dynamic_sizes_that_the_chunk_does_not_divide(schedule, mode):
  @tf.function(
    input_signature=[tf.TensorSpec([None], tf.float64)], autograph=False
  )
  def diagonal(x):
    return diag_jacobian(
      x, fn=coupled(0), mode=mode, schedule=schedule, parallel_iterations=4
    )[1][0]

  # One graph for all: a chunk of 0, of 1, none, one and two, with and without
  # a rest.
  for n in (0, 1, 3, 4, 5, 8, 9):
    x = draw([n])
    np.testing.assert_allclose(
      diagonal(x), coupled_diagonal([x], 0)[0], atol=1e-12
    )
  assert diagonal.experimental_get_tracing_count() == 1


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True)
@hypothesis.given(
  sample=st.lists(st.integers(0, 3), max_size=3).map(tuple),
  events=st.lists(
    st.lists(st.integers(0, 3), max_size=2).map(tuple), min_size=1, max_size=3
  ),
  mode=st.sampled_from((*MODES, 'auto')),
  schedule=st.sampled_from((*SCHEDULES, 'auto')),
  chunk=st.integers(1, 5),
  dynamic=st.booleans(),
)
def test_any_shape(sample, events, mode, schedule, chunk, dynamic):
  check('function', dynamic, 'float64', mode, schedule, chunk, sample, events)


@pytest.mark.parametrize('sample', SAMPLE_SHAPES)
def test_without_the_sample_shape_the_numbers_are_the_same(sample):
  xs = draw_parts(sample, ((2,), ()))
  _, diag = diag_jacobian(xs, fn=coupled(len(sample)))
  for d, wanted in zip(diag, coupled_diagonal(xs, len(sample))):
    np.testing.assert_allclose(d, wanted, atol=1e-12)


@pytest.mark.parametrize(
  'sample_shape',
  [
    3,
    [3],
    (3,),
    [None],
    np.array([3]),
    np.int64(3),
    tf.TensorShape([3]),
    tf.TensorShape([None]),
  ],
  ids=repr,
)
@pytest.mark.parametrize('validate_args', [False, True])
def test_ways_to_say_a_sample_shape(sample_shape, validate_args):
  x = draw([3, 2])
  _, diag = diag_jacobian(
    x, sample_shape=sample_shape, fn=coupled(1), validate_args=validate_args
  )
  np.testing.assert_allclose(diag[0], coupled_diagonal([x], 1)[0], atol=1e-12)


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('n', [0, 1, 13])
def test_a_chunk_of_all_numbers_there_are(schedule, n):
  @tf.function(
    input_signature=[tf.TensorSpec([None], tf.float64)], autograph=False
  )
  def diagonal(x):
    return diag_jacobian(
      x, fn=coupled(0), schedule=schedule, parallel_iterations=2**31 - 1
    )[1][0]

  x = draw([n])
  np.testing.assert_allclose(
    diagonal(x), coupled_diagonal([x], 0)[0], atol=1e-12
  )


@pytest.mark.parametrize('ways_to_say_it', [list, tuple, tf.stack])
def test_a_symbolic_size_is_checked(ways_to_say_it):
  x = draw([3, 2])

  @tf.function(autograph=False)
  def diagonal(size):
    return diag_jacobian(
      x,
      sample_shape=ways_to_say_it([size]),
      fn=coupled(1),
      validate_args=True,
    )[1][0]

  diagonal(tf.constant(3))
  with pytest.raises(tf.errors.InvalidArgumentError, match='does not lead'):
    diagonal(tf.constant(5))


def test_a_function_in_the_place_of_the_state():
  with pytest.raises(TypeError, match=r'diag_jacobian\(xs, fn=fn\)'):
    diag_jacobian(tf.sin, tf.ones([3]))
