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
"""`diag_jacobian` equals the diagonal of the dense Jacobian, in every regime.

The functions with a closed form are checked against it in NumPy; the others
against the whole Jacobian, which TensorFlow computes eagerly in float64.
"""

import functools
import itertools
import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

# No public name leads to the function that a module of TFP has imported.
from tensorflow_probability.python.bijectors import ffjord
from tensorflow_probability.python.mcmc import langevin

from tfp_diag import diag_jacobian

tfb = tfp.bijectors
tfd = tfp.distributions

REGIMES = ('eager', 'function', 'xla')
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
  'dynamic': (False, True),
  'dtype': ('float64', 'float32'),
  'mode': (*MODES, 'auto'),
  'schedule': (*SCHEDULES, 'auto'),
  # 1: a plain loop; 3: divides none of the sizes but 3 and 9; 10: the default.
  'chunk': (1, 3, 10),
  'sample': SAMPLE_SHAPES,
  'events': EVENT_SHAPES,
}


def covering_array(factors):
  """Few cases in which each two values of two factors meet at least once."""
  names = list(factors)
  missing = {
    (a, u, b, v)
    for a, b in itertools.combinations(names, 2)
    for u in factors[a]
    for v in factors[b]
  }

  def new_pairs(case):
    return missing.intersection(
      (a, case[a], b, case[b]) for a, b in itertools.combinations(names, 2)
    )

  rng = np.random.default_rng(0)
  cases = []
  while missing:
    candidates = []
    # Each candidate holds one pair that is missing.
    for a, u, b, v in sorted(missing, key=repr)[:20]:
      case = {n: factors[n][rng.integers(len(factors[n]))] for n in names}
      candidates.append({**case, a: u, b: v})
    best = max(candidates, key=lambda case: len(new_pairs(case)))
    missing -= new_pairs(best)
    cases.append(tuple(best.values()))
  return cases


GRAPH_CASES = [
  (
    (i // 2) % 2 == 1,
    ('float64', 'float32')[i % 2],
    mode,
    schedule,
    chunk,
    s,
    e,
  )
  for i, (s, e, schedule) in enumerate(
    itertools.product(SAMPLE_SHAPES, EVENT_SHAPES, SCHEDULES)
  )
  for mode, chunk in [(MODES[i % 2], (1, 2, 3, 10)[i % 4])]
]


@pytest.mark.parametrize('case', GRAPH_CASES, ids=str)
def test_graph(case):
  check('function', *case)


@pytest.mark.parametrize('case', covering_array(ALL_FACTORS), ids=str)
@pytest.mark.parametrize('regime', ['eager', 'xla'])
def test_eager_and_xla(regime, case):
  check(regime, *case)


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


def dense_diagonal(fn, xs):
  """The diagonal of the whole Jacobian, all samples and parts in one."""
  sizes = [x.shape.num_elements() for x in xs]
  flat = tf.concat([tf.reshape(x, [-1]) for x in xs], 0)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(flat)
    parts = tf.split(flat, sizes)
    parts = [tf.reshape(p, x.shape) for p, x in zip(parts, xs)]
    ys = fn(*parts)
    ys = list(ys) if isinstance(ys, (list, tuple)) else [ys] * len(xs)
    ys = [tf.broadcast_to(y, x.shape) for y, x in zip(ys, xs)]
    ys = tf.concat([tf.reshape(y, [-1]) for y in ys], 0)
  matrix = tape.jacobian(ys, flat, experimental_use_pfor=False)
  if matrix is None:
    return [np.zeros(x.shape) for x in xs]
  diagonal = np.split(np.diag(matrix), np.cumsum(sizes)[:-1])
  return [d.reshape(x.shape) for d, x in zip(diagonal, xs)]


@tf.custom_gradient
def cubed_by_hand(x):
  def gradient(dy):
    return dy * 3 * x**2

  return x**3, gradient


def loop(x):
  """Three steps that couple neighbors."""
  return tf.while_loop(
    lambda i, _: i < 3,
    lambda i, y: (i + 1, y * x + tf.roll(y, 1, axis=-1)),
    (0, x),
    maximum_iterations=3,
  )[1]


def scan(x):
  """An AR(1) path along the event axis, then its square."""
  path = tf.scan(
    lambda a, e: 0.5 * a + tf.sin(e), tf.transpose(x), tf.zeros_like(x[:, 0])
  )
  return tf.transpose(path) ** 2


DENSE = tf_keras.layers.Dense(
  4,
  activation='tanh',
  dtype='float64',
  kernel_initializer=tf_keras.initializers.RandomNormal(seed=1),
)
BATCH_NORM = tf_keras.layers.BatchNormalization(dtype='float64')
MATRIX = draw([4, 4], seed=9)


def score(x):
  """The score of a mixture."""
  mixture = tfd.MixtureSameFamily(
    tfd.Categorical(logits=tf.constant([0.0, 0.5], x.dtype)),
    tfd.MultivariateNormalDiag(
      tf.constant([[0.0] * 4, [1.0] * 4], x.dtype), 0.5 * tf.ones([4], x.dtype)
    ),
  )
  return tfp.math.value_and_gradient(mixture.log_prob, x)[1]


FLOW = tfb.Chain(
  [
    tfb.ScaleMatvecTriL(
      tf.eye(4, dtype=tf.float64) + tf.linalg.band_part(MATRIX, -1, 0)
    ),
    tfb.SinhArcsinh(tf.constant(0.3, tf.float64)),
    tfb.Softplus(),
    tfb.Scale(tf.constant(2.0, tf.float64)),
  ]
)

# Of samples [3] and events [4], or of two such parts.
FUNCTIONS = {
  'elementwise': lambda x: x * tf.exp(-x) + tf.math.lgamma(2 + x),
  'dense': lambda x: tf.tanh(x @ MATRIX) * x,
  'where': lambda x: tf.where(x > 0.2, x**2, tf.exp(tf.roll(x, 1, -1)) * x),
  'cond': lambda x: tf.cond(
    tf.reduce_sum(x) > 0, lambda: x**3, lambda: tf.sin(x) * tf.roll(x, 1, -1)
  ),
  'while_loop': loop,
  'scan': scan,
  'gather': lambda x: tf.gather(x, [1, 1, 3, 0], axis=-1) * x,
  'gather_nd': lambda x: x * tf.gather_nd(x, [[[0, 1]], [[1, 0]], [[2, 3]]]),
  'custom_gradient': lambda x: cubed_by_hand(x) * tf.reduce_sum(x, -1, True),
  'stop_gradient': lambda x: x * tf.stop_gradient(x) + tf.sin(x),
  'keras_layer': lambda x: DENSE(x) * x,
  'distribution': score,
  'bijector': FLOW.forward,
  'bijector_log_det': lambda x: (
    x * FLOW.forward_log_det_jacobian(x, 1)[:, None]
  ),
  'broadcast': lambda x: tf.reduce_sum(x**3, axis=-1, keepdims=True),
  'scalar': lambda x: tf.constant(2.0, x.dtype),
  'constant': lambda x: tf.ones_like(x),
  'sort': lambda x: tf.sort(x, axis=-1) * x,
  'one_y_for_two': lambda x, z: tf.sin(x * z) + tf.reduce_sum(x * z, -1, True),
  'unconnected': lambda x, z: [x**2 * tf.reduce_sum(z), x],
  'swapped': lambda x, z: [z * x, x**2],
}
TWO_PARTS = ('one_y_for_two', 'unconnected', 'swapped')
# pfor meets an op in them that it cannot vectorize, in one mode at least.
NOT_VECTORIZED = ('while_loop', 'scan', 'cond', 'gather_nd', 'sort')
# Its parts meet in a sum over samples.
MIXING = ('unconnected',)


@functools.lru_cache
def parts_and_diagonal(name):
  xs = [draw([3, 4], seed=s) for s in range(2 if name in TWO_PARTS else 1)]
  return xs, dense_diagonal(FUNCTIONS[name], xs)


def check_function(name, regime, mode, schedule):
  fn = FUNCTIONS[name]
  xs, wanted_diag = parts_and_diagonal(name)
  sample_shape = None if name in MIXING else [3]

  def diagonal(*xs):
    return diag_jacobian(
      list(xs),
      sample_shape=sample_shape,
      fn=fn,
      mode=mode,
      schedule=schedule,
      parallel_iterations=3,
    )[1]

  with warnings.catch_warnings():
    # What can be vectorized, is.
    action = 'ignore' if name in NOT_VECTORIZED else 'error'
    warnings.filterwarnings(action, 'pfor cannot', RuntimeWarning)
    diag = run(regime, diagonal, xs)
  for d, wanted in zip(diag, wanted_diag):
    np.testing.assert_allclose(d, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('schedule', SCHEDULES)
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('name', FUNCTIONS)
def test_function(name, mode, schedule):
  check_function(name, 'function', mode, schedule)


@pytest.mark.parametrize('number, name', list(enumerate(FUNCTIONS)))
@pytest.mark.parametrize('regime', ['eager', 'xla'])
def test_function_eagerly_and_under_xla(regime, number, name):
  check_function(name, regime, MODES[number % 2], SCHEDULES[number % 3])


def test_python_branches_on_tensors_are_converted():
  class Piecewise:
    def __call__(self, x):
      if tf.reduce_sum(x) > 0:
        return x**2
      return x**3

    def method(self, x):
      return self(x)

  piecewise = Piecewise()
  x = tf.constant([1.0, 2.0])
  for fn in (piecewise, piecewise.method, lambda x: piecewise(x)):
    for sign, wanted in ((1, [2.0, 4.0]), (-1, [3.0, 12.0])):
      diag = diag_jacobian(sign * x, fn=fn)[1][0]
      np.testing.assert_allclose(diag, wanted)
    diag = run('function', lambda x: diag_jacobian(x, fn=fn)[1][0], [-x])  # noqa: B023 - called at once.
    np.testing.assert_allclose(diag, wanted)


def test_batch_normalization_in_training_mixes_samples():
  x = draw([5, 2])

  def fn(x):
    return BATCH_NORM(x, training=True)

  fn(x)
  # Samples are coordinates, too: right for every function.
  diag = diag_jacobian(x, fn=fn)[1][0]
  np.testing.assert_allclose(diag, dense_diagonal(fn, [x])[0], atol=1e-10)
  with pytest.raises(tf.errors.InvalidArgumentError, match='mixes them'):
    diag_jacobian(x, fn=fn, sample_shape=[5], validate_args=True)


@pytest.mark.parametrize('regime', ['function', 'xla'])
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('schedule', SCHEDULES)
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


@pytest.mark.parametrize('regime', REGIMES)
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('schedule', SCHEDULES)
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


def test_equal_eager_calls_trace_once():
  calls = []

  def fn(x):
    calls.append(x)
    return x**2 * tf.reduce_sum(x)

  for i in range(100):
    x = draw([2, 3], seed=i)
    diag_jacobian(x, sample_shape=[2], fn=lambda x: fn(x))
  assert len(calls) == 1
  diag_jacobian(draw([5, 3]), sample_shape=[5], fn=fn)
  assert len(calls) == 2


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
    lambda x: 1e6 * (x @ MATRIX) ** 2 - tf.reduce_sum(x, -1, True) * 1e6,
    lambda x: tf.where(x > 0, tf.math.log(x), x) * tf.reduce_sum(x, -1, True),
    lambda x: tf.zeros_like(x),
  ]
  for i, (fn, mode) in enumerate(itertools.product(functions, MODES)):
    dtype = 'float64' if fn is functions[1] else 'float32'
    diag_jacobian(
      draw([3, 4], dtype, seed=i),
      sample_shape=[3],
      fn=fn,
      mode=mode,
      schedule=SCHEDULES[1 + i % 2],
      validate_args=True,
    )


@pytest.mark.parametrize(
  'regime, mode, schedule',
  [
    ('eager', 'reverse', 'pfor'),
    ('eager', 'forward', 'unrolled'),
    ('function', 'reverse', 'while_loop'),
    ('function', 'forward', 'pfor'),
  ],
)
def test_validation_reports_samples_that_mix(regime, mode, schedule):
  def diagonal(x):
    return diag_jacobian(
      x,
      sample_shape=[3],
      fn=lambda x: x**2 + tf.sin(tf.reduce_sum(x, axis=0)),
      mode=mode,
      schedule=schedule,
      validate_args=True,
    )[1]

  with pytest.raises(tf.errors.InvalidArgumentError, match='mixes them'):
    run(regime, diagonal, [draw([3, 4])])


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
]


@pytest.mark.parametrize('error, sentence, given', BAD_ARGUMENTS, ids=str)
def test_bad_arguments_are_refused_by_name(error, sentence, given):
  call = {'xs': tf.ones([3]), 'fn': tf.sin, **given}
  with pytest.raises(error, match=sentence):
    diag_jacobian(**call)


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


def random_walk_volatility(x):
  return 1 / (1 + x**2)


def test_inside_the_langevin_algorithm_of_tfp(monkeypatch):
  def draws():
    kernel = tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(
      lambda x: tf.reduce_sum(-(x**4), axis=-1),
      step_size=0.3,
      volatility_fn=random_walk_volatility,
    )
    run = tf.function(
      lambda: tfp.mcmc.sample_chain(
        8,
        draw([5, 2]),
        kernel=kernel,
        seed=tf.constant([1, 2]),
        trace_fn=lambda _, r: r.log_accept_ratio,
      ),
      autograph=False,
    )
    return run()

  upstream = draws()
  called = []

  def ours(*args, **kwargs):
    called.append(1)
    return diag_jacobian(*args, **kwargs)

  monkeypatch.setattr(langevin, 'diag_jacobian', ours)
  result = draws()
  assert called
  np.testing.assert_allclose(result.all_states, upstream.all_states, rtol=1e-9)
  np.testing.assert_allclose(result.trace, upstream.trace, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize('regime', ['eager', 'function'])
def test_inside_the_continuous_flow_of_tfp(monkeypatch, regime):
  def log_det(x):
    flow = tfb.FFJORD(
      lambda t, z: tf.tanh(z @ MATRIX) * (1 + tf.cast(t, z.dtype)),
      trace_augmentation_fn=ffjord.trace_jacobian_exact,
      initial_time=0.0,
      final_time=0.1,
      dtype=tf.float64,
    )
    return flow.forward_log_det_jacobian(x, event_ndims=1)

  x = draw([3, 4])
  upstream = run('function', log_det, [x])
  called = []

  def ours(*args, **kwargs):
    called.append(1)
    return diag_jacobian(*args, **kwargs)

  monkeypatch.setattr(ffjord, 'diag_jacobian', ours)
  np.testing.assert_allclose(run(regime, log_det, [x]), upstream, rtol=1e-9)
  assert called
