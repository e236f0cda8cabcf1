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
"""`diag_hessian` equals closed forms, in every regime and for every state."""

import collections
import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

from tests.pairs import parametrize_pairs
from tfp_diag import clear_cache, diag_hessian, diag_jacobian
from tfp_diag.diagonal import graphs
from tfp_diag.sparsity import SampleMixingError

tfb = tfp.bijectors
tfd = tfp.distributions

REGIMES = ('eager', 'function', 'xla')
MODES = ('reverse_over_reverse', 'forward_over_reverse')
SCHEDULES = ('unrolled', 'pfor', 'while_loop')
TOLERANCE = {'float64': 1e-11, 'float32': 5e-5, 'float16': 5e-2}


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
  """`sum_i x_i^3 + sin(sum_i x_i)` over all coordinates of all parts."""

  def fn(*xs):
    def total(x):
      return tf.reduce_sum(x, axis=range(rank, x.shape.rank))

    return sum(total(x**3) for x in xs) + tf.sin(sum(total(x) for x in xs))

  return fn


def coupled_by_hand(xs, rank):
  """Value, gradient and diagonal of `coupled`, in NumPy."""
  xs = [np.asarray(x).astype(np.float64) for x in xs]

  def total(x):
    return x.sum(axis=tuple(range(rank, x.ndim)))

  def per_part(values, x):
    return np.reshape(values, x.shape[:rank] + (1,) * (x.ndim - rank))

  t = sum(total(x) for x in xs)
  value = sum(total(x**3) for x in xs) + np.sin(t)
  gradient = [3 * x**2 + per_part(np.cos(t), x) for x in xs]
  diag = [6 * x - per_part(np.sin(t), x) for x in xs]
  return value, gradient, diag


# Regime, dynamic, dtype, mode, schedule, chunk, sample shape, event shapes: all
# regimes with all modes, dtypes and schedules, open sizes with XLA and without.
CASES = [
  ('eager', False, 'float64', 0, 0, 3, (), ((4,),)),
  ('function', False, 'float64', 0, 0, 3, (), ((4,),)),
  ('function', True, 'float32', 1, 1, 2, (7,), ((2, 3), ())),
  ('xla', True, 'float32', 1, 1, 2, (7,), ((2, 3), ())),
  ('eager', False, 'float32', 1, 2, 1, (3, 5), ((), (1,))),
  ('xla', False, 'float32', 1, 2, 1, (3, 5), ((), (1,))),
  ('function', True, 'float64', 0, 1, 4, (2, 1, 3), ((2,), (3,))),
  ('eager', False, 'float64', 1, 0, 10, (0,), ((3,),)),
  ('xla', False, 'float64', 1, 0, 10, (0,), ((3,),)),
  ('function', True, 'float64', 1, 2, 3, (3, 5), ((0,), (2,))),
  ('eager', False, 'float32', 0, 1, 10, (2, 1, 3), ((1,), (2, 2))),
  ('xla', False, 'float32', 0, 1, 10, (2, 1, 3), ((1,), (2, 2))),
  ('function', True, 'float32', 0, 0, 5, (7,), ((0,),)),
  ('xla', True, 'float32', 0, 0, 5, (7,), ((0,),)),
  ('function', False, 'float64', 0, 2, 2, (1,), ((),)),
  ('eager', False, 'float64', 1, 1, 1, (), ((), (3,))),
  ('function', False, 'float64', 1, 1, 1, (), ((), (3,))),
]


@pytest.mark.parametrize('case', CASES, ids=str)
def test_shapes(case):
  regime, dynamic, dtype, mode, schedule, chunk, sample, events = case
  names_sample_shape = (mode + schedule + len(regime)) % 2
  rank = len(sample)
  xs = [draw(sample + e, dtype, seed) for seed, e in enumerate(events)]

  def fn(*xs):
    return diag_hessian(
      coupled(rank),
      list(xs),
      sample_shape=tf.shape(xs[0])[:rank] if names_sample_shape else None,
      mode=MODES[mode],
      schedule=SCHEDULES[schedule],
      parallel_iterations=chunk,
    )

  value, gradient, diag = run(regime, fn, xs, dynamic)
  wanted_value, wanted_gradient, wanted_diag = coupled_by_hand(xs, rank)
  assert value.dtype == dtype
  close = functools.partial(
    np.testing.assert_allclose, rtol=0, atol=TOLERANCE[dtype]
  )
  close(value, wanted_value)
  for x, g, d, wg, wd in zip(xs, gradient, diag, wanted_gradient, wanted_diag):
    assert x.shape == g.shape == d.shape
    close(g, wg)
    close(d, wd)


Point = collections.namedtuple('Point', ['a', 'b'])


STATES = {
  'list': (lambda a, b: [a, b], lambda fn: fn),
  'tuple': (lambda a, b: (a, b), lambda fn: fn),
  'dict': (
    lambda a, b: {'b': b, 'a': a},
    lambda fn: lambda b, a: fn(a, b),
  ),
  'namedtuple': (Point, lambda fn: lambda point: fn(point.a, point.b)),
}


@pytest.mark.parametrize(
  'regime, name',
  [
    ('eager', 'list'),
    ('function', 'tuple'),
    ('eager', 'dict'),
    *((regime, 'namedtuple') for regime in REGIMES),
  ],
)
def test_results_mirror_the_state(regime, name):
  state, call = STATES[name]
  a, b = draw([3, 2], seed=0), draw([3], seed=1)

  def fn(a, b):
    return tf.reduce_sum(a**3, axis=-1) * b**2

  def hessian(a, b):
    return diag_hessian(call(fn), state(a, b))

  _, gradient, diag = run(regime, hessian, [a, b])
  for result in (gradient, diag):
    assert type(result) is type(state(a, b))
    tf.nest.assert_same_structure(result, state(a, b))
  a, b = a.numpy(), b.numpy()[:, None]
  wanted = state(6 * a * b**2, 2 * np.sum(a**3, axis=-1))
  tf.nest.map_structure(
    lambda d, w: np.testing.assert_allclose(d, w, atol=1e-12), diag, wanted
  )


@pytest.mark.parametrize('regime', REGIMES)
def test_a_tensor_in_a_tensor_out(regime):
  x = draw([3])
  result = run(regime, lambda x: diag_hessian(lambda x: x**3, x), [x])
  for part, wanted in zip(result, (x**3, 3 * x**2, 6 * x)):
    assert tf.is_tensor(part)
    np.testing.assert_allclose(part, wanted, atol=1e-12)


def numerical_diagonal(fn, x):
  """Central differences of the gradient, one coordinate of all at a time."""
  step = 1e-5
  gradient = tf.function(
    lambda x: tfp.math.value_and_gradient(fn, x)[1], autograph=False
  )
  diag = np.zeros(x.shape)
  for i in np.ndindex(*x.shape):
    one_hot = np.zeros(x.shape)
    one_hot[i] = step
    diag[i] = (gradient(x + one_hot)[i] - gradient(x - one_hot)[i]) / (2 * step)
  return diag


INNER = tf.constant([0.3, -0.2, 0.5, 0.1], tf.float64)
HIDDEN = tf_keras.layers.Dense(5, activation='tanh', dtype='float64')
OUTPUT = tf_keras.layers.Dense(1, dtype='float64')
OUTPUT(HIDDEN(draw([1, 4])))
for i, weight in enumerate([*HIDDEN.weights, *OUTPUT.weights]):
  weight.assign(draw(weight.shape, seed=i))
BIJECTOR = tfb.Chain(
  [tfb.SinhArcsinh(INNER[0]), tfb.Softplus(), tfb.Scale(INNER[2])]
)


@tfd.JointDistributionCoroutineAutoBatched
def hierarchy():
  scale = yield tfd.LogNormal(tf.constant(0.0, tf.float64), 1.0)
  mean = yield tfd.Normal(tf.constant(0.0, tf.float64), 2.0)
  groups = yield tfd.Sample(tfd.Normal(mean, scale), 2)
  yield tfd.Normal(tf.gather(groups, [0, 1, 1], axis=-1), 1.0)


def hierarchical(x):
  """Unconstrained; its gathers have gradients of type IndexedSlices."""
  data = tf.constant([0.5, 1.0, -0.3], tf.float64)
  scale = tf.exp(x[..., 0])
  return hierarchy.log_prob(scale, x[..., 1], x[..., 2:], data) + x[..., 0]


def state_space(x):
  """A local level model, as a function of log scales; runs a `tf.scan`."""
  two = tf.math.softplus(x[..., :2])
  model = tfd.LinearGaussianStateSpaceModel(
    num_timesteps=2,
    transition_matrix=tf.linalg.LinearOperatorIdentity(1, dtype=x.dtype),
    transition_noise=tfd.MultivariateNormalDiag(scale_diag=two[..., :1]),
    observation_matrix=tf.linalg.LinearOperatorIdentity(1, dtype=x.dtype),
    observation_noise=tfd.MultivariateNormalDiag(scale_diag=two[..., 1:]),
    initial_state_prior=tfd.MultivariateNormalDiag(
      scale_diag=tf.ones([1], x.dtype)
    ),
  )
  data = tf.constant([[0.3], [0.7]], x.dtype)
  return model.log_prob(data) - tf.reduce_sum(x[..., 2:] ** 4, axis=-1)


def power_loop(x):
  return tf.while_loop(
    lambda i, _: i < 3,
    lambda i, y: (i + 1, y * tf.reduce_sum(x**2, axis=-1)),
    (0, tf.reduce_sum(x, axis=-1)),
    maximum_iterations=3,
  )[1]


def scanned(x):
  path = tf.scan(
    lambda a, e: 0.5 * a + tf.sin(e), tf.transpose(x), tf.zeros_like(x[:, 0])
  )
  return tf.reduce_sum(path**3, axis=0)


@tf.custom_gradient
def softplus_by_hand(x):
  @tf.custom_gradient
  def sigmoid_by_hand(x):
    y = tf.sigmoid(x)
    return y, lambda dy: dy * y * (1 - y)

  return tf.math.softplus(x), lambda dy: dy * sigmoid_by_hand(x)


# Of three samples of four coordinates.
FUNCTIONS = {
  'where': lambda x: tf.reduce_sum(
    tf.where(x > 0, x**3, tf.exp(x) * x[:, :1]), axis=-1
  ),
  'cond': lambda x: tf.cond(
    tf.reduce_sum(x) > 0,
    lambda: tf.reduce_prod(x, axis=-1),
    lambda: tf.reduce_sum(x**3, axis=-1) ** 2,
  ),
  'gather': lambda x: tf.reduce_sum(
    tf.gather(x, [0, 0, 2], axis=-1) ** 2 * x[:, 1:], axis=-1
  ),
  'embedding': lambda x: tf.reduce_sum(
    tf.gather(x**3, [2, 0, 1]) * [[1.0], [2.0], [3.0]]
  ),
  'custom_gradient': lambda x: tf.reduce_sum(softplus_by_hand(x), -1) ** 2,
  'stop_gradient': lambda x: tf.reduce_sum(x**2 * tf.stop_gradient(x), -1),
  'network': lambda x: OUTPUT(HIDDEN(x))[:, 0],
  'distribution': tfd.MultivariateStudentTLinearOperator(
    tf.constant(3.0, tf.float64),
    INNER,
    tf.linalg.LinearOperatorLowerTriangular(
      tf.eye(4, dtype=tf.float64) + 0.1 * tf.ones([4, 4], tf.float64)
    ),
  ).log_prob,
  'bijector': lambda x: (
    BIJECTOR.forward_log_det_jacobian(x, 1)
    + tf.reduce_prod(BIJECTOR.forward(x), axis=-1)
  ),
  'joint_distribution': hierarchical,
  'state_space_model': state_space,
  'while_loop': power_loop,
  'scan': scanned,
  'linear': lambda x: tf.reduce_sum(x * INNER, axis=-1),
}
# pfor meets an op in them that it cannot vectorize, in one mode at least.
NOT_VECTORIZED = ('cond', 'state_space_model', 'while_loop', 'scan')
# Of ops that XLA has as TensorFlow has them.
PLAIN = ('network', 'distribution', 'bijector', 'joint_distribution', 'linear')
# XLA does not compile the gradient itself of this one.
NOT_COMPILED = ('state_space_model',)


@functools.lru_cache
def wanted_diagonal(name):
  if name == 'stop_gradient':
    # The gradient is 2 x stop_gradient(x), whose derivative leaves a part out.
    return 2 * draw([3, 4])
  return numerical_diagonal(FUNCTIONS[name], draw([3, 4]))


def check_function(name, regime, mode, schedule):
  fn = FUNCTIONS[name]

  def hessian(x):
    return diag_hessian(
      fn, x, mode=mode, schedule=schedule, parallel_iterations=3
    )

  x = draw([3, 4])
  with warnings.catch_warnings():
    # What can be vectorized, is.
    action = 'ignore' if name in NOT_VECTORIZED else 'error'
    warnings.filterwarnings(action, 'pfor cannot', RuntimeWarning)
    value, gradient, diag = run(regime, hessian, [x])
  wanted_value, wanted_gradient = tfp.math.value_and_gradient(fn, x)
  np.testing.assert_allclose(value, wanted_value, atol=1e-12)
  np.testing.assert_allclose(gradient, wanted_gradient, atol=1e-11)
  # The error of the central differences.
  np.testing.assert_allclose(diag, wanted_diagonal(name), rtol=1e-6, atol=2e-7)


def schedule_for(number, name):
  # An unrolled schedule traces these large graphs once per pass.
  schedules = SCHEDULES[1:] if name in NOT_VECTORIZED else SCHEDULES
  return schedules[number % len(schedules)]


# Each in one mode here, and in the other one eagerly or under XLA.
@pytest.mark.parametrize('number, name', list(enumerate(FUNCTIONS)))
def test_function(number, name):
  mode = MODES[(number + 1) % 2]
  if name == 'state_space_model':
    # Forward over reverse takes four times as long; a scan is tried in it.
    mode = 'reverse_over_reverse'
  check_function(name, 'function', mode, schedule_for(number + 1, name))


@pytest.mark.parametrize(
  'number, name',
  [(i, n) for i, n in enumerate(FUNCTIONS) if n not in NOT_COMPILED],
)
def test_function_elsewhere(number, name):
  mode = MODES[number % 2]
  regime = 'eager' if name in PLAIN else 'xla'
  check_function(name, regime, mode, schedule_for(number + 2, name))


@pytest.mark.parametrize(
  'regime, mode',
  [('eager', MODES[0]), ('function', MODES[1]), ('xla', MODES[1])],
)
def test_part_that_is_not_used(regime, mode):
  x, z = draw([3]), draw([3, 2], seed=1)

  def hessian(x, z):
    return diag_hessian(lambda x, z: x**4, (x, z), mode=mode)

  _, gradient, diag = run(regime, hessian, [x, z])
  np.testing.assert_allclose(diag[0], 12 * x**2, atol=1e-12)
  np.testing.assert_array_equal(gradient[1], np.zeros([3, 2]))
  np.testing.assert_array_equal(diag[1], np.zeros([3, 2]))


def loss_of(model, inputs, targets):
  return lambda: tf.reduce_mean((model(inputs) - targets) ** 2)


@pytest.mark.parametrize(
  'regime, mode',
  [
    *(('eager', mode) for mode in MODES),
    ('function', MODES[0]),
    ('xla', MODES[1]),
  ],
)
def test_variables_of_a_model(regime, mode):
  layer = tf_keras.layers.Dense(2, dtype='float64')
  inputs, targets = draw([5, 3]), draw([5, 2], seed=1)
  layer(inputs)

  def hessian():
    return diag_hessian(
      loss_of(layer, inputs, targets), layer.trainable_variables, mode=mode
    )

  for step in range(2):
    # The loss is quadratic: d^2/dw_ij^2 is 2 sum_n x_ni^2 / (5 * 2).
    layer.kernel.assign(draw([3, 2], seed=step))
    value, gradient, diag = run(regime, hessian, [])
    residual = inputs @ layer.kernel + layer.bias - targets
    np.testing.assert_allclose(value, np.mean(residual**2), rtol=1e-12)
    np.testing.assert_allclose(
      gradient[0], 2 * np.transpose(inputs) @ residual / 10, atol=1e-12
    )
    wanted = np.repeat(np.sum(inputs**2, axis=0)[:, None] / 5, 2, axis=1)
    np.testing.assert_allclose(diag[0], wanted, atol=1e-12)
    np.testing.assert_allclose(diag[1], [1.0, 1.0], atol=1e-12)


def test_variables_as_arguments_of_fn():
  v = tf.Variable([1.0, 2.0])
  _, _, diag = diag_hessian(lambda x: tf.reduce_sum(x**3), v)
  np.testing.assert_allclose(diag, [6.0, 12.0])
  v.assign([3.0, 4.0])
  _, _, diag = diag_hessian(lambda x: tf.reduce_sum(x**3), v)
  np.testing.assert_allclose(diag, [18.0, 24.0])


@pytest.mark.parametrize(
  'mode, schedule',
  [(MODES[k % 2], s) for k, s in enumerate((*SCHEDULES, 'auto'))],
)
def test_an_op_without_a_second_derivative_is_named(mode, schedule):
  def fn(a):
    return tf.reduce_sum(tf.math.igamma(a, 2.0 * tf.ones_like(a)))

  with warnings.catch_warnings():
    warnings.simplefilter('error', RuntimeWarning)
    with pytest.raises(LookupError, match=r'`fn` cannot .*IgammaGradA.*Write'):
      diag_hessian(fn, tf.ones([12]), mode=mode, schedule=schedule)


@parametrize_pairs(
  regime=REGIMES,
  mode=MODES,
  schedule=['unrolled', 'pfor'],
)
def test_derivative_of_the_diagonal(regime, mode, schedule):
  x = draw([2, 3])

  def derivative(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      _, _, diag = diag_hessian(
        coupled(1), x, mode=mode, schedule=schedule, parallel_iterations=2
      )
    return tape.gradient(diag, x)

  # Of the sum over i of 6 x_i - sin(sum(x)), by x_j.
  wanted = 6 - 3 * np.cos(np.sum(x, axis=1, keepdims=True)) * np.ones([2, 3])
  np.testing.assert_allclose(run(regime, derivative, [x]), wanted, atol=1e-11)


def test_saved_and_loaded(tmp_path):
  module = tf.Module()
  module.hessian = tf.function(
    lambda x: diag_hessian(coupled(1), x),
    input_signature=[tf.TensorSpec([None, 3], tf.float64)],
    autograph=False,
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  for n in (1, 4):
    x = draw([n, 3])
    value, gradient, diag = loaded.hessian(x)
    wanted = coupled_by_hand([x], 1)
    np.testing.assert_allclose(value, wanted[0], atol=1e-12)
    np.testing.assert_allclose(gradient, wanted[1][0], atol=1e-12)
    np.testing.assert_allclose(diag, wanted[2][0], atol=1e-11)


def test_eager_calls_run_python_each_and_compile_once():
  clear_cache()
  calls = []

  def fn(x):
    calls.append(x)
    return tf.reduce_sum(x, axis=-1) ** 3

  for i in range(100):
    diag_hessian(fn, draw([2, 3], seed=i))
  assert len(calls) == 100
  assert len(graphs._cache) == 1


@pytest.mark.parametrize('mode', MODES)
def test_the_function_is_evaluated_once(mode):
  evaluations = tf.Variable(0, dtype=tf.int64)

  @tf.custom_gradient
  def counted(x):
    def count(x):
      evaluations.assign_add(1)
      return x

    y = tf.py_function(count, [x], x.dtype)
    y.set_shape(x.shape)
    return y, lambda dy: dy

  x = draw([2, 3])
  value, _, diag = diag_hessian(
    lambda x: tf.reduce_sum(counted(x), axis=-1) ** 3, x, mode=mode
  )
  total = np.sum(x, axis=-1)
  np.testing.assert_allclose(value, total**3, atol=1e-12)
  np.testing.assert_allclose(diag, np.repeat(6 * total[:, None], 3, 1))
  assert int(evaluations) == 1


@pytest.mark.parametrize('mode', MODES)
def test_validation(mode):
  def mixing(x):
    return tf.reduce_sum(x, axis=-1) * tf.reduce_sum(x) ** 2

  x = draw([3, 4])
  diag_hessian(coupled(1), x, mode=mode, validate_args=True)
  with pytest.raises(SampleMixingError, match='mixes samples: Sum'):
    diag_hessian(mixing, x, mode=mode)

  def unseen(x):
    # No static number of samples can be put in to look at it.
    assert x.shape[0] is None
    return mixing(x)

  @tf.function(
    autograph=False, input_signature=[tf.TensorSpec([None, None], x.dtype)]
  )
  def of_unknown_events(x):
    return diag_hessian(unseen, x, mode=mode, validate_args=True)

  with pytest.raises(tf.errors.InvalidArgumentError, match='mixes them'):
    of_unknown_events(x)


def test_validation_reports_a_gradient_that_is_not_linear():
  @tf.custom_gradient
  def clipped(x):
    return x**2, lambda dy: tf.clip_by_value(dy * 2 * x, -1.0, 1.0)

  def fn(x):
    return tf.reduce_sum(clipped(clipped(x)))

  with pytest.raises(tf.errors.InvalidArgumentError, match='not linear'):
    diag_hessian(
      fn,
      tf.constant([0.6, 0.7]),
      mode='forward_over_reverse',
      validate_args=True,
    )


def test_where_tapes_do_not_record_is_no_place_to_differentiate():
  def fn(x):
    return tf.reduce_sum(x**3)

  x = tf.constant([1.0, 2.0, 3.0])

  @tf.function(autograph=False)
  def lifted():
    with tf.init_scope():
      return diag_hessian(fn, x)

  with pytest.raises(RuntimeError, match='init_scope'):
    lifted()
  # Nothing of that is remembered.
  np.testing.assert_allclose(diag_hessian(fn, x)[2], [6.0, 12.0, 18.0])


def test_python_within_a_graph_has_no_second_derivative():
  def fn(x):
    y = tf.py_function(lambda x: tf.reduce_sum(x**3), [x], tf.float32)
    return tf.ensure_shape(y, [])

  with pytest.raises(LookupError, match='py_function'):
    diag_hessian(fn, tf.ones([2]))


@pytest.mark.parametrize('n', [24, 45])
def test_xla_differentiates_the_diagonal(n):
  """More coordinates than are written out, in chunks and a remainder."""
  weights = np.random.default_rng(1).standard_normal([n, n]) / np.sqrt(n)
  x = tf.constant(np.linspace(-1.0, 1.0, 2 * n).reshape([2, n]))

  def fn(x):
    hidden = tf.tanh(tf.linalg.matvec(weights, x))
    return tf.reduce_sum(tf.tanh(tf.linalg.matvec(weights, hidden)), -1)

  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      laplacian = tf.reduce_sum(diag_hessian(fn, x)[2])
    return tape.gradient(laplacian, x)

  found = tf.function(gradient, autograph=False, jit_compile=True)(x)

  def laplacian(x):
    with tf.GradientTape(persistent=True) as outer:
      outer.watch(x)
      with tf.GradientTape() as inner:
        inner.watch(x)
        value = fn(x)
      parts = tf.unstack(inner.gradient(value, x), axis=-1)
    return tf.add_n(
      [tf.reduce_sum(outer.gradient(g, x)[:, i]) for i, g in enumerate(parts)]
    )

  step, direction = 1e-5, tf.sin(x)
  change = laplacian(x + step * direction) - laplacian(x - step * direction)
  np.testing.assert_allclose(
    tf.reduce_sum(found * direction), change / (2.0 * step), rtol=1e-6
  )


BAD_ARGUMENTS = [
  (TypeError, 'cannot be called', {'fn': tf.ones([])}),
  (ValueError, 'returned None', {'fn': lambda x: None}),
  (ValueError, 'returned a tuple', {'fn': lambda x: (x[0], x[1])}),
  (TypeError, '`plan` is 3, which is not a plan', {'plan': 3}),
  (ValueError, 'one floating scalar', {'fn': lambda x: tf.constant(1)}),
  (ValueError, 'per sample: sum over', {'fn': lambda x: tf.ones([2])}),
  (ValueError, 'which does not lead', {'fn': lambda x: tf.ones([3, 4])}),
  (ValueError, 'has 1 dimensions', {'sample_shape': [3]}),
  (ValueError, 'starts with', {'sample_shape': [2]}),
  (ValueError, 'no shape', {'sample_shape': [0.5]}),
  (TypeError, 'floating', {'xs': tf.constant([1, 2])}),
  (ValueError, 'no part', {'xs': []}),
  (ValueError, "'forward_over_reverse'", {'mode': 'forward'}),
  (ValueError, "'unrolled', 'pfor'", {'schedule': 'vmap'}),
  (ValueError, 'at least 1', {'parallel_iterations': -1}),
]


@pytest.mark.parametrize(
  'error, sentence, given', BAD_ARGUMENTS, ids=[b[1] for b in BAD_ARGUMENTS]
)
def test_bad_arguments_are_refused_by_name(error, sentence, given):
  call = {'xs': tf.ones([3]), 'fn': tf.reduce_sum, **given}
  with pytest.raises(error, match=sentence):
    diag_hessian(**call)


def test_a_variable_that_is_not_read_is_named():
  w, b = tf.Variable([1.0, 2.0]), tf.Variable(3.0, name='bias')
  with pytest.warns(
    UserWarning, match=r"1 of the 2 .*number 1 \('bias:0'\)"
  ) as m:
    _, _, diag = diag_hessian(lambda: tf.reduce_sum(w**3), [w, b])
  assert len(m) == 1
  np.testing.assert_allclose(diag[0], [6.0, 12.0])
  np.testing.assert_array_equal(diag[1], 0.0)


def test_parts_that_are_not_used_need_no_warning():
  w, b = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    diag_hessian(lambda: tf.reduce_sum(w**3) * b, [w, b])
    diag_hessian(lambda w, b: tf.reduce_sum(w**3), [w, b])
    diag_hessian(lambda x, y: tf.reduce_sum(x**3), [tf.ones([2]), tf.ones([])])


def test_what_is_recomputed_has_one_derivative():
  recomputed = tf.recompute_grad(lambda x: tf.sin(x) * x)
  x = draw([3])
  _, (slope,) = diag_jacobian(x, fn=recomputed)
  np.testing.assert_allclose(slope, tf.sin(x) + x * tf.cos(x))
  with pytest.raises(
    LookupError, match=r'differentiated as often .* recompute'
  ):
    diag_hessian(lambda x: tf.reduce_sum(recomputed(x)), x)
