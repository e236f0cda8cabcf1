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
"""What `diag_jacobian` promises: calls, counts, derivatives, checks, errors."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pairs import parametrize_pairs
from tfp_diag import clear_cache, diag_jacobian
from tfp_diag.diagonal import graphs
from tfp_diag.sparsity import SampleMixingError

REGIMES = ('eager', 'function', 'xla')
MODES = ('reverse', 'forward')
SCHEDULES = ('unrolled', 'pfor', 'while_loop')


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


@parametrize_pairs(
  regime=['function', 'xla'],
  mode=MODES,
  schedule=SCHEDULES,
)
def test_ys_without_fn_in_a_graph(regime, mode, schedule):
  xs = draw_parts((3,), ((4,), ()))

  def diagonal(*xs):
    ys = coupled(1)(*xs)
    ys, diag = diag_jacobian(
      list(xs), ys, sample_shape=[3], mode=mode, schedule=schedule
    )
    assert ys is not xs
    return diag

  for d, wanted in zip(run(regime, diagonal, xs), coupled_diagonal(xs, 1)):
    np.testing.assert_allclose(d, wanted, atol=1e-12)


def test_ys_of_a_variable_in_a_graph():
  v = tf.Variable([1.0, 2.0])
  diagonal = tf.function(lambda: diag_jacobian(v, v**2)[1][0], autograph=False)
  np.testing.assert_allclose(diagonal(), [2.0, 4.0])


def test_ys_may_have_been_computed_in_the_graph_around_a_loop():
  def diagonal(x):
    y = x**2

    def body(i, total):
      return i + 1, total + diag_jacobian(y, fn=lambda y: y**2 * i)[1][0]

    return tf.while_loop(
      lambda i, _: i < 3.0, body, (tf.constant(0.0, x.dtype), tf.zeros_like(x))
    )[1]

  x = draw([3])
  result = run('function', diagonal, [x])
  np.testing.assert_allclose(result, 2 * x**2 * 3, atol=1e-12)


@pytest.mark.parametrize('regime', ['eager', 'function'])
def test_fn_is_differentiated_when_ys_are_given_too(regime):
  x = draw([3])

  def diagonal(x):
    return diag_jacobian(x, ys=x**3, fn=lambda x: x**2)

  ys, diag = run(regime, diagonal, [x])
  np.testing.assert_allclose(ys[0], x**2, atol=1e-12)
  np.testing.assert_allclose(diag[0], 2 * x, atol=1e-12)


@pytest.mark.parametrize('regime', REGIMES)
def test_a_single_y_is_paired_with_every_x(regime):
  xs = [draw([3], seed=s) for s in (0, 1)]

  def fn(x, z):
    return x**2 * z

  def diagonal(*xs):
    return diag_jacobian(list(xs), fn=fn, sample_shape=[3])

  ys, diag = run(regime, diagonal, xs)
  assert len(ys) == 1
  np.testing.assert_allclose(diag[0], 2 * xs[0] * xs[1], atol=1e-12)
  np.testing.assert_allclose(diag[1], xs[0] ** 2, atol=1e-12)


def test_numbers_arrays_and_variables_are_parts():
  def fn(x):
    return x**3

  for x in (2.0, np.array([1.0, 2.0]), tf.Variable([1.0, 2.0])):
    ys, diag = diag_jacobian(x, fn=fn)
    assert isinstance(ys, list) and isinstance(diag, list)
    np.testing.assert_allclose(diag[0], 3 * np.asarray(x) ** 2)


def test_parts_may_differ_in_dtype():
  xs = [
    tf.constant([1.0, 2.0], tf.float32),
    tf.constant([3.0, 4.0], tf.float64),
  ]

  def fn(x, z):
    return [x**2, z * tf.cast(x, tf.float64) * z]

  for mode in MODES:
    diag = diag_jacobian(xs, fn=fn, mode=mode)[1]
    assert [d.dtype for d in diag] == [tf.float32, tf.float64]
    np.testing.assert_allclose(diag[0], [2.0, 4.0])
    np.testing.assert_allclose(diag[1], [6.0, 16.0])


@parametrize_pairs(
  regime=REGIMES,
  mode=MODES,
  schedule=SCHEDULES,
)
def test_derivative_of_the_diagonal(regime, mode, schedule):
  x = draw([2, 3])

  def derivative(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      _, diag = diag_jacobian(
        x,
        sample_shape=[2],
        fn=coupled(1),
        mode=mode,
        schedule=schedule,
        parallel_iterations=2,
      )
      total = tf.reduce_sum(diag[0] ** 2)
    return tape.gradient(total, x)

  total = np.sum(x, axis=1, keepdims=True)
  diag = coupled_diagonal([x], 1)[0]
  wanted = 2 * diag * 6 * x - 2 * np.sum(diag, 1, keepdims=True) * np.sin(total)
  np.testing.assert_allclose(run(regime, derivative, [x]), wanted, atol=1e-11)


@pytest.mark.parametrize('schedule', SCHEDULES)
def test_saved_and_loaded(tmp_path, schedule):
  module = tf.Module()
  module.diagonal = tf.function(
    lambda x: diag_jacobian(
      x, sample_shape=tf.shape(x)[:1], fn=coupled(1), schedule=schedule
    )[1],
    input_signature=[tf.TensorSpec([None, 3], tf.float64)],
    autograph=False,
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  for n in (1, 4):
    x = draw([n, 3])
    np.testing.assert_allclose(
      loaded.diagonal(x)[0], coupled_diagonal([x], 1)[0], atol=1e-12
    )


def test_eager_calls_run_python_each_and_compile_once():
  clear_cache()
  calls = []

  def fn(x):
    calls.append(x)
    return x**2 * tf.reduce_sum(x, axis=-1, keepdims=True)

  for i in range(100):
    x = draw([2, 3], seed=i)
    diag_jacobian(x, sample_shape=[2], fn=lambda x: fn(x))
  assert len(calls) == 100
  assert len(graphs._cache) == 1
  diag_jacobian(draw([5, 3]), sample_shape=[5], fn=fn)
  assert len(graphs._cache) == 2


def count_passes(fn):
  """Makes `fn` count, while it runs, how often its gradient is evaluated."""
  counter = tf.Variable(0, dtype=tf.int64)

  def count(dy):
    def increment(dy):
      counter.assign_add(1)
      return dy

    return tf.py_function(increment, [dy], dy.dtype)

  @tf.custom_gradient
  def counted(y):
    def gradient(dy):
      counted_dy = count(dy)
      counted_dy.set_shape(dy.shape)
      return counted_dy

    return tf.identity(y), gradient

  return lambda x: counted(fn(x)), counter


@pytest.mark.parametrize('regime', ['eager', 'function'])
@pytest.mark.parametrize('schedule', ['unrolled', 'while_loop'])
def test_a_dense_function_takes_as_many_passes_as_coordinates(regime, schedule):
  fn, counter = count_passes(lambda x: x**2 * tf.reduce_sum(x, -1, True))
  x = draw([6, 5])

  def diagonal(x):
    return diag_jacobian(
      x, sample_shape=[6], fn=fn, mode='reverse', schedule=schedule
    )[1][0]

  diag = run(regime, diagonal, [x])
  assert int(counter) == 5
  total = np.sum(x, -1, keepdims=True)
  np.testing.assert_allclose(diag, 2 * x * total + x**2, atol=1e-12)


def test_what_validation_lets_pass():
  # Right input in every mode and schedule, with cancellation and large values.
  functions = [
    coupled(1),
    lambda x: (
      1e6 * (x @ draw([4, 4], seed=9)) ** 2 - tf.reduce_sum(x, -1, True) * 1e6
    ),
    lambda x: tf.where(x > 0, tf.math.log(x), x) * tf.reduce_sum(x, -1, True),
    lambda x: tf.zeros_like(x),
  ]
  for i, fn in enumerate(functions):
    dtype = 'float64' if fn is functions[1] else 'float32'
    diag_jacobian(
      draw([3, 4], dtype, seed=i),
      sample_shape=[3],
      fn=fn,
      mode=MODES[i % 2],
      schedule=SCHEDULES[1 + i % 2],
      validate_args=True,
    )


def mixing(x):
  return x**2 + tf.sin(tf.reduce_sum(x, axis=0))


@pytest.mark.parametrize('regime', ['eager', 'function'])
def test_samples_that_mix_are_refused(regime):
  def diagonal(x):
    return diag_jacobian(x, sample_shape=[3], fn=mixing)[1]

  with pytest.raises(SampleMixingError, match='mixes samples: Sum'):
    run(regime, diagonal, [draw([3, 4])])


@pytest.mark.parametrize(
  'mode, schedule',
  [
    ('reverse', 'pfor'),
    ('forward', 'pfor'),
    ('reverse', 'while_loop'),
    ('forward', 'while_loop'),
  ],
)
def test_validation_reports_mixing_that_only_shows_at_run_time(mode, schedule):
  def unseen(x):
    # No static number of samples can be put in to look at it.
    assert x.shape[0] is None
    return mixing(x)

  def diagonal(x):
    return diag_jacobian(
      x,
      sample_shape=[None],
      fn=unseen,
      mode=mode,
      schedule=schedule,
      validate_args=True,
    )[1]

  with pytest.raises(tf.errors.InvalidArgumentError, match='mixes them'):
    run('function', diagonal, [draw([3, 4])], dynamic=True)


def test_validation_reports_a_sample_shape_that_only_shows_at_run_time():
  def diagonal(x):
    return diag_jacobian(
      x, sample_shape=tf.shape(x)[:1] + 1, fn=tf.sin, validate_args=True
    )[1]

  with pytest.raises(tf.errors.InvalidArgumentError, match='does not lead'):
    run('function', diagonal, [draw([3, 4])], dynamic=True)


def test_validation_reports_parts_of_different_sample_sizes():
  def diagonal(x, z):
    return diag_jacobian(
      [x, z], sample_shape=[None], fn=lambda x, z: [x, z], validate_args=True
    )[1]

  with pytest.raises(tf.errors.InvalidArgumentError, match='part 1'):
    run('function', diagonal, [draw([3]), draw([4])], dynamic=True)


def test_validation_reports_a_gradient_that_is_not_linear():
  @tf.custom_gradient
  def clipped(x):
    # Gradient clipping, as in recurrent networks.
    return 3 * x, lambda dy: tf.clip_by_value(3 * dy, -1.0, 1.0)

  with pytest.raises(tf.errors.InvalidArgumentError, match='not linear'):
    diag_jacobian(tf.ones([3]), fn=clipped, mode='forward', validate_args=True)


BAD_ARGUMENTS = [
  (ValueError, 'Give `fn`', {'fn': None}),
  (ValueError, 'eager mode', {'fn': None, 'ys': tf.ones([3])}),
  (TypeError, 'cannot be called', {'fn': 3}),
  (ValueError, 'is None', {'fn': lambda x: None}),
  (ValueError, 'There are 2 parts of `ys` but 1', {'fn': lambda x: [x, x]}),
  (ValueError, 'There are 0 parts of `ys` but 1', {'fn': lambda x: []}),
  (ValueError, 'does not broadcast', {'fn': lambda x: tf.ones([2])}),
  (ValueError, 'does not broadcast', {'fn': lambda x: tf.ones([5, 3])}),
  (TypeError, 'floating', {'xs': tf.constant([1, 2])}),
  (TypeError, 'floating', {'xs': tf.constant([1j, 2])}),
  (ValueError, 'no part', {'xs': []}),
  (ValueError, 'starts with', {'sample_shape': [2]}),
  (ValueError, 'starts with', {'sample_shape': tf.constant([2])}),
  (ValueError, 'has 2 dimensions', {'sample_shape': [3, 1]}),
  (ValueError, 'no shape', {'sample_shape': [-1]}),
  (ValueError, 'no shape', {'sample_shape': [1.5]}),
  (ValueError, 'no shape', {'sample_shape': [[3]]}),
  (ValueError, 'no shape', {'sample_shape': 'all'}),
  (ValueError, 'number of dimensions', {'sample_shape': tf.TensorShape(None)}),
  (ValueError, "'auto', 'forward', 'reverse'", {'mode': 'backward'}),
  (ValueError, "'pfor', 'while_loop'", {'schedule': 'vmap'}),
  (ValueError, 'at least 1', {'parallel_iterations': 0}),
  (ValueError, 'at least 1', {'parallel_iterations': 2.0}),
  (ValueError, 'at least 1', {'parallel_iterations': True}),
  (TypeError, "`plan` is 'no', which is not a plan", {'plan': 'no'}),
  (TypeError, 'int32', {'fn': lambda x: tf.cast(x, tf.int32)}),
  (TypeError, 'complex64', {'fn': lambda x: tf.complex(x, x)}),
]


@pytest.mark.parametrize(
  'error, sentence, given', BAD_ARGUMENTS, ids=[b[1] for b in BAD_ARGUMENTS]
)
def test_bad_arguments_are_refused_by_name(error, sentence, given):
  call = {'xs': tf.ones([3]), 'fn': tf.sin, **given}
  with pytest.raises(error, match=sentence):
    diag_jacobian(**call)


@pytest.mark.parametrize('schedule', ('auto', *SCHEDULES))
@pytest.mark.parametrize('mode', MODES)
def test_ys_of_a_variable(schedule, mode):
  variable = tf.Variable(tf.ones([12], tf.float64))

  @tf.function(autograph=False)
  def diagonal():
    ys = variable**2 * tf.range(12, dtype=tf.float64)
    return diag_jacobian(variable, ys, schedule=schedule, mode=mode)[1]

  np.testing.assert_array_equal(diagonal()[0], 2.0 * np.arange(12))
  variable.assign(3.0 * variable)
  np.testing.assert_array_equal(diagonal()[0], 6.0 * np.arange(12))


def test_an_unknown_rank_is_refused():
  diagonal = tf.function(
    lambda x: diag_jacobian(x, fn=tf.sin),
    input_signature=[tf.TensorSpec(None)],
    autograph=False,
  )
  with pytest.raises(ValueError, match=r'Part 0 .* unknown rank.*ensure_shape'):
    diagonal.get_concrete_function()


def test_ys_of_other_tensors_are_refused():
  @tf.function(autograph=False)
  def diagonal():
    return diag_jacobian(2.0, ys=tf.ones([]))

  with pytest.raises(ValueError, match='very Tensors'):
    diagonal()
