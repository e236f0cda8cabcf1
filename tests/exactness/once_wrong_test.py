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
"""Functions that once had a wrong diagonal, and nothing was said of it."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import (
  hessian_by_copies,
  hessian_diagonal,
  jacobian_by_copies,
  jacobian_diagonal,
)
from tfp_diag.sparsity import registry

N = 5
MATRIX = np.random.default_rng(0).normal(size=[N, N])


def state(samples=2):
  return tf.constant(np.random.default_rng(1).normal(size=[samples, N]))


def dense_diagonal(fn, x):
  """By TensorFlow alone, one sample after the other."""
  return hessian_by_copies(fn, x)


def assert_right(fn, x, **kwargs):
  found = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x, **kwargs)[2], autograph=False
  )(x)
  np.testing.assert_allclose(found, dense_diagonal(fn, x), rtol=1e-8)


def test_both_branches_of_where_are_one_tensor():
  mask = np.array([True, True, False, False, True])

  def fn(x):
    y = tf.where(mask, x, x)
    return tf.reduce_sum(tf.exp(y[..., 1:] * y[..., :-1]), axis=-1)

  assert_right(fn, state())
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, N], tf.float64))
  assert plan.pattern.nnz == 3 * N - 2


@pytest.mark.parametrize('is_saved', [False, True])
def test_a_plan_whose_captured_zeros_have_changed(is_saved, tmp_path):
  def fn_of(matrix):
    captured = tf.constant(matrix)
    return lambda x: tf.reduce_sum(
      tf.exp(tf.linalg.matvec(captured, x)), axis=-1
    )

  plan = tfp_diag.plan_diag_hessian(fn_of(np.eye(N)), state())
  if is_saved:
    plan.save(tmp_path / 'plan.npz')
    plan = tfp_diag.load_plan(tmp_path / 'plan.npz')
  assert_right(fn_of(3 * np.eye(N)), state(), plan=plan)
  with pytest.raises(ValueError, match='made for another function'):
    tfp_diag.diag_hessian(fn_of(MATRIX), state(), plan=plan)


def clipped(x):
  @tf.custom_gradient
  def identity(x):
    return tf.identity(x), lambda dy: tf.clip_by_value(dy, -0.1, 0.1)

  return identity(x)


def clipped_layer(x):
  hidden = clipped(tf.tanh(tf.linalg.matvec(MATRIX, x)))
  return tf.reduce_sum(tf.tanh(tf.linalg.matvec(MATRIX, hidden)), axis=-1)


def clipped_exponents(x):
  return tf.reduce_sum(tf.exp(clipped(tf.linalg.matvec(MATRIX, x))), axis=-1)


def clipped_chain(x):
  steps = clipped(x[..., 1:] - 0.9 * x[..., :-1])
  return tf.reduce_sum(tf.cosh(steps), axis=-1)


@pytest.mark.parametrize(
  'fn', [clipped_layer, clipped_exponents, clipped_chain]
)
def test_a_gradient_that_is_not_linear_in_its_cotangent(fn):
  assert_right(fn, state())
  # Where nothing is clipped there is nothing to be seen by trying.
  plan = tfp_diag.plan_diag_hessian(fn, 1e-9 * state())
  assert plan.how != 'squared sweeps'
  assert_right(fn, state(), plan=plan)


def test_forward_mode_of_such_a_gradient_is_reverse_mode_and_says_so():
  def fn(x):
    return tf.linalg.matvec(MATRIX, clipped(tf.linalg.matvec(MATRIX, x)))

  (reverse,) = tfp_diag.diag_jacobian(state()[0], fn=fn)[1]
  with pytest.warns(RuntimeWarning, match='not seen to be linear'):
    (forward,) = tfp_diag.diag_jacobian(state()[0], fn=fn, mode='forward')[1]
  np.testing.assert_array_equal(forward, reverse)


def test_a_missing_gradient_is_a_lookup_error_out_of_a_function_too():
  @tf.function
  def diagonal(x):
    return tfp_diag.diag_hessian(
      lambda x: tf.reduce_sum(tf.math.igamma(x, 1.0)), x
    )[2]

  with pytest.raises(LookupError, match='cannot be differentiated as often'):
    diagonal(tf.ones([3]))


@pytest.mark.parametrize('second', [tf.sin, lambda a: a])
def test_ys_of_a_part_that_is_computed_from_another(second):
  @tf.function(autograph=False)
  def diagonal(a):
    b = second(a)
    y = a * b * tf.reduce_sum(b)
    own = tfp_diag.diag_jacobian([a, b], ys=[y, y])[1]
    return own, tfp.math.diag_jacobian([a, b], ys=[y, y])[1]

  own, upstream = diagonal(tf.constant([0.5, 1.0, 2.0]))
  for one, other in zip(own, upstream):
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_squares_that_overflow_are_seen_where_a_plan_is_made():
  x = tf.constant(np.random.default_rng(1).normal(size=[N]), tf.float32)
  matrix = tf.constant(np.abs(MATRIX) + 0.1, tf.float32)

  def fn(x):
    rates = tf.linalg.matvec(matrix, tf.exp(x + 42.0))
    return tf.reduce_sum(tf.math.log(rates))

  with pytest.warns(RuntimeWarning, match='differs from them'):
    _, _, found = tfp_diag.diag_hessian(fn, x)
  _, _, passes = tfp_diag.diag_hessian(fn, x, schedule='pfor')
  assert np.isfinite(found).all()
  np.testing.assert_allclose(found, passes, rtol=1e-5)
  with pytest.raises(tf.errors.InvalidArgumentError, match='disagrees'):
    tf.function(
      lambda x: tfp_diag.diag_hessian(fn, x, validate_args=True)[2],
      autograph=False,
    )(x)


def _in_small_units(scale):
  """Weights and what they are divided by are far from one, not the value."""
  matrix = tf.constant(np.random.default_rng(5).normal(size=[5, 5]) * scale)

  def fn(x):
    inner = tf.linalg.matvec(tf.cast(matrix, x.dtype), tf.tanh(x))
    return tf.reduce_sum(tf.tanh(tf.cast(1.0 / scale, x.dtype) * inner), -1)

  return fn


def _in_large_numbers(x):
  matrix = np.abs(np.random.default_rng(6).normal(size=[5, 5]))
  inner = tf.linalg.matvec(tf.constant(matrix, x.dtype), tf.exp(x + 42.0))
  return tf.reduce_sum(tf.math.log(inner), -1)


@pytest.mark.parametrize(
  'fn',
  [_in_small_units(1e-24), _in_small_units(1e22), _in_large_numbers],
  ids=['small', 'large', 'exponentials'],
)
@pytest.mark.parametrize('jit_compile', [False, True])
def test_squares_have_room_where_numbers_have(fn, jit_compile):
  x = tf.constant(np.random.default_rng(7).normal(size=5), tf.float32)
  assert tfp_diag.plan_diag_hessian(fn, x).num_passes == 1

  @tf.function(jit_compile=jit_compile, autograph=False)
  def third_and_second(x):
    found = tfp_diag.unmixed_derivatives(fn, x, order=3)
    return found.third, tfp_diag.diag_hessian(fn, x)[2]

  exact = tfp_diag.unmixed_derivatives(fn, tf.cast(x, tf.float64), order=3)
  wanted = hessian_diagonal(fn, tf.cast(x, tf.float64))
  third, second = third_and_second(x)
  np.testing.assert_allclose(second, wanted, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(third, exact.third, rtol=1e-4, atol=1e-4)


def test_rows_that_a_map_picks_by_number():
  """An eager Tensor within a graph made the rule of a slice fail."""
  x = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

  def fn(x):
    def one(i):
      return tf.reduce_sum(x[i] ** 2 * x[(i + 1) % 3])

    return tf.map_fn(one, tf.range(3), fn_output_signature=tf.float32)

  for call in (
    lambda: tfp_diag.diag_hessian(fn, x),
    lambda: tfp_diag.diag_hessian(fn, x, sample_shape=[3]),
    lambda: tfp_diag.plan_diag_hessian(fn, x),
  ):
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      with pytest.raises(tfp_diag.sparsity.SampleMixingError, match='Mul'):
        call()


def test_what_may_mix_samples_is_said():
  """A shift that is computed hides which sample goes where."""
  x = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

  def rolled(x):
    shift = tf.cast(x[0, 0] * 0.0 + 1.0, tf.int32)
    return tf.reduce_sum(x**2 * tf.roll(x, shift, 0), -1)

  with pytest.warns(RuntimeWarning, match='mixes samples cannot be seen'):
    tfp_diag.diag_hessian(rolled, x)
  with pytest.raises(tf.errors.InvalidArgumentError, match='mixes them'):
    tfp_diag.diag_hessian(rolled, x, validate_args=True)
  with warnings.catch_warnings():
    # The caller has said so.
    warnings.simplefilter('error')
    tfp_diag.diag_hessian(rolled, x, sample_shape=[3])


def test_loops_of_tensorflow_1():
  """Those of `tf.nn.ctc_loss` have no graph that was traced."""
  labels, lengths = tf.constant([[1, 2]]), tf.constant([2])

  def loss(x):
    logits = tf.reshape(x, [5, 1, 3])
    return tf.nn.ctc_loss(
      labels, logits, lengths, [5], logits_time_major=True, blank_index=0
    )

  x = tf.random.stateless_normal([15], [1, 2])
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = loss(x)
  want = tape.gradient(y, x)
  np.testing.assert_allclose(
    tf.reshape(tfp_diag.jacobian(loss, x), [-1]), want, rtol=1e-5
  )


@pytest.mark.parametrize('is_called', [False, True])
def test_a_placeholder_with_a_default_is_its_default(is_called):
  """It was taken for something from outside, on which xs have no influence."""

  def fn(x):
    y = tf.compat.v1.placeholder_with_default(2.0 * x, [3])
    return tf.reduce_sum(y**3 * tf.reduce_sum(y))

  x = tf.constant([1.0, 2.0, 3.0], tf.float64)
  tried = tf.function(fn) if is_called else fn
  _, _, diag = tf.function(
    lambda x: tfp_diag.diag_hessian(tried, x, sample_shape=[])
  )(x)
  np.testing.assert_allclose(diag, 96.0 * x * (6.0 + x), rtol=1e-12)


def two_sums(state):
  """Paths that a transposed map has to follow."""
  return tf.sin(state) + 0.3 * state**2


@pytest.mark.parametrize(
  'op, jit_compile',
  [
    (lambda x: tf.math.cumulative_logsumexp(x, -1), None),
    (lambda x: tf.math.cumulative_logsumexp(x, -1, reverse=True), True),
    (lambda x: tf.math.reduce_euclidean_norm(x, -1, keepdims=True), None),
  ],
)
def test_gradients_that_divide_by_the_cotangent(op, jit_compile):
  """They have no slope at zero, where maps were transposed."""
  x = tf.constant([[0.3, -0.5, 0.8, 0.1], [0.2, 0.9, -0.7, 0.4]], tf.float64)

  def fn(x):
    return tf.reduce_sum(two_sums(op(x)), -1)

  def field(x):
    return x * op(x)[..., :1]

  compiled = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2], jit_compile=jit_compile
  )
  want = hessian_by_copies(fn, x)
  np.testing.assert_allclose(compiled(x), want, rtol=1e-9)
  _, (forward,) = tfp_diag.diag_jacobian(
    x, fn=field, sample_shape=[2], mode='forward'
  )
  want = jacobian_by_copies(field, x)
  np.testing.assert_allclose(forward, want, rtol=1e-9)


@tf.custom_gradient
def square_as_a_column(x):
  """As many elements in another shape, as some solvers return them."""
  return x[..., tf.newaxis] ** 2, lambda dy: 2.0 * x * dy[..., 0]


@pytest.mark.parametrize('samples', [[], [2]])
def test_elementwise_gradients_of_another_shape(samples):
  """Their slopes were broadcast against the derivatives of the result."""
  x = tf.random.stateless_normal([*samples, 3], [1, 2], dtype=tf.float64)

  def fn(x):
    return tf.reduce_sum(tf.sin(square_as_a_column(x)), [-1, -2])

  compiled = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, tf.exp(x), samples)[2]
  )
  y = tf.exp(x)
  want = 2.0 * tf.cos(y**2) - 4.0 * y**2 * tf.sin(y**2)
  np.testing.assert_allclose(compiled(x), want, rtol=1e-9)
  dense = tf.reshape(x, [-1, 3])
  design = tf.random.stateless_normal([3, 3], [3, 4], dtype=tf.float64)

  def mixed(x):
    return fn(tf.linalg.matvec(design, x))

  plan = tfp_diag.plan_diag_hessian(mixed, dense)
  assert 'fault of tfp_diag' not in str(plan)
  np.testing.assert_allclose(
    tf.function(lambda x: tfp_diag.diag_hessian(mixed, x)[2])(dense),
    hessian_by_copies(mixed, dense),
    rtol=1e-9,
  )


def test_a_variable_that_is_two_parts():
  """A function of no arguments reads it for both."""
  v = tf.Variable([1.0, 2.0, 0.5])

  def fn():
    return tf.reduce_sum(tf.sin(v) * tf.roll(v, 1, 0))

  for call in (
    lambda: tfp_diag.diag_hessian(fn, [v, v], ()),
    tf.function(lambda: tfp_diag.diag_hessian(fn, [v, v], ())),
    lambda: tfp_diag.plan_diag_hessian(fn, {'a': v, 'b': v}),
    lambda: tfp_diag.unmixed_derivatives(fn, [v, v]),
    lambda: tfp_diag.diag_gauss_newton(lambda: tf.sin(v), [v, v]),
    lambda: tfp_diag.hessian(fn, [v, v]),
  ):
    with pytest.raises(ValueError, match='are the same'):
      call()


def test_closures_that_mix_samples_are_refused_by_all():
  v = tf.Variable([[1.0], [2.0], [4.0]], dtype=tf.float64)

  def centered():
    return v - tf.reduce_mean(v, 0)

  def product():
    return tf.reduce_sum(v**2, -1) * tf.reduce_sum(tf.sin(v))

  for call in (
    lambda: tfp_diag.jacobian(centered, v, [3]),
    lambda: tfp_diag.hessian(product, v, [3]),
    lambda: tfp_diag.LazyJacobian(centered, v, [3])[...],
    lambda: tfp_diag.LazyHessian(product, v, [3])[...],
    lambda: tfp_diag.stochastic_diag_hessian(product, v, 4, [1, 2]),
  ):
    with pytest.raises(tfp_diag.sparsity.SampleMixingError, match='mixes'):
      call()


@tf.custom_gradient
def scaled_by_all(x):
  """The gradient of a sample has the size of the batch in it."""
  return x**2, lambda dy: dy * 2.0 * x / (1.0 + tf.reduce_sum(x**2))


def test_gradients_that_mix_samples():
  def fn(x):
    return tf.reduce_sum(tf.sin(scaled_by_all(x)), -1)

  x = tf.constant([[0.1, 0.5], [0.7, -0.3], [0.2, 0.9]], tf.float64)
  for call in (
    lambda: tfp_diag.diag_hessian(fn, x),
    lambda: tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 2])),
    tf.function(lambda: tfp_diag.diag_hessian(fn, x)),
  ):
    with pytest.raises(tfp_diag.sparsity.SampleMixingError, match='own'):
      call()
  # The first derivative knows the others as numbers.
  _, (diag,) = tfp_diag.diag_jacobian(x, fn=scaled_by_all, sample_shape=[3])
  np.testing.assert_allclose(diag, 2.0 * x / (1.0 + tf.reduce_sum(x**2)))
  # One event: all of it is differentiated.
  _, _, diag = tfp_diag.diag_hessian(lambda x: tf.reduce_sum(fn(x)), x, ())
  assert np.isfinite(diag).all()


def test_a_broadcast_of_too_many_axes():
  """pfor gave a product of `sqrtm` six axes, which no kernel has."""

  def fn(x):
    a = tf.reshape(x, [-1, 3, 3])
    gram = a @ tf.linalg.matrix_transpose(a)
    root = tf.linalg.sqrtm(gram + 1.5 * tf.eye(3, dtype=x.dtype))
    return tf.reduce_sum(tf.sin(root), [1, 2])

  x = tf.constant(np.random.default_rng(0).normal(size=[3, 9]))
  expected = hessian_by_copies(fn, x)
  with pytest.warns(RuntimeWarning, match=r'Broadcast between .* one pass at'):
    diag = tfp_diag.diag_hessian(fn, x)[2]
  np.testing.assert_allclose(diag, expected, rtol=1e-9)
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 9], tf.float64))
  assert plan.schedule == 'while_loop'
  assert 'Broadcast between' in str(plan)
  np.testing.assert_allclose(plan(x)[2], expected, rtol=1e-9)


def scaled_by_a_range(x):
  scale = tf.range(0.5, 0.5 + N, dtype=x.dtype)
  return tf.reduce_sum(scale * tf.exp(x * tf.roll(x, 1, axis=-1)), axis=-1)


def scaled_by_a_tiny_slope(x):
  slope = tf.nn.leaky_relu(tf.constant([0.0, 1e-60, 1.0, -1e-60, 2.0], x.dtype))
  return tf.reduce_sum(slope * tf.cosh(x) * x, axis=-1) * 1e50


def stepped_by_a_range(x):
  rate = tf.range(0.5, 0.5 + N, dtype=x.dtype)
  for _ in range(2):
    x += 0.1 * rate * (tf.roll(x, 1, axis=-1) - x)
  return tf.reduce_sum(tf.exp(x), axis=-1)


def sorted_along_the_last_axis(x):
  x = tf.reshape(x, [-1, N])
  least = tf.gather(x, tf.argsort(x, axis=-1), axis=1, batch_dims=-1)
  return tf.reduce_sum((least * x[:, ::-1]) ** 2, axis=-1)


@pytest.mark.parametrize(
  'fn',
  [
    scaled_by_a_range,
    scaled_by_a_tiny_slope,
    stepped_by_a_range,
    sorted_along_the_last_axis,
  ],
)
def test_ops_that_ran_aside_on_other_dtypes(fn):
  assert_right(fn, state(3))
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, N], tf.float64))
  assert_right(fn, state(3), plan=plan)


def test_a_range_of_floats_whose_elements_are_not_one_number():
  def fn(x):
    scale = tf.sin(tf.range(float(N), dtype=x.dtype))
    return x * tf.broadcast_to(scale, tf.shape(x))

  plan = tfp_diag.plan_diag_jacobian(
    fn, tf.TensorSpec([None, N], tf.float64), [None]
  )
  assert plan.num_passes == 1
  np.testing.assert_allclose(
    plan(state())[1][0], tf.broadcast_to(np.sin(np.arange(N)), [2, N])
  )


def test_batches_of_indices_are_counted_from_the_last_axis():
  def fn(x):
    first = tf.gather(x, tf.argsort(x)[:, :3], axis=1, batch_dims=-1)
    return tf.concat([first * x[:, :3], x[:, 3:] ** 2], axis=1)

  # As many samples as indices: a wrong place among the axes fits, too.
  x = tf.concat([state(3), state(3)[:, :1] + 0.1], axis=1)
  # An eager call of so few coordinates would not look for structure.
  plan = tfp_diag.plan_diag_jacobian(fn, x, [3])
  np.testing.assert_allclose(plan(x)[1][0], jacobian_diagonal(fn, x))


_PAIR = tf.constant(np.random.default_rng(2).normal(size=[N, 2]))
_SQUARE = tf.constant(np.random.default_rng(3).normal(size=[N, N]))
# In value these are affine or quadratic, but TensorFlow's derivatives differ
# where an argument is zero.
SPECIAL_AT_ZERO = {
  'product of two': lambda x: tf.reduce_prod(x @ _PAIR, -1),
  'cumulative': lambda x: tf.reduce_sum(tf.math.cumprod(x @ _PAIR, -1), -1),
  'powers': lambda x: tf.reduce_sum((x @ _PAIR) ** [1.0, 2.0], -1),
  'xlogy': lambda x: tf.reduce_sum(
    tf.nn.softplus(tf.math.xlogy(x, 2.0 + tf.cos(_SQUARE[0])) @ _SQUARE), -1
  ),
  'xdivy': lambda x: tf.reduce_sum(
    (tf.math.xdivy(x, 2.0 + tf.cos(_SQUARE[1])) @ _SQUARE) ** 4, -1
  ),
}


@pytest.mark.parametrize('name', SPECIAL_AT_ZERO)
def test_one_special_sample_changes_no_other(name):
  fn, usual = SPECIAL_AT_ZERO[name], state(3)
  want = dense_diagonal(fn, usual)
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, N], tf.float64))
  # Its graph is remembered.
  tfp_diag.diag_hessian(fn, tf.concat([state(2), usual], 0) + 1.0)
  in_graph = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2], autograph=False
  )
  for first in (0.0, np.nan):
    special = tf.fill([2, N], tf.constant(first, tf.float64))
    x = tf.concat([special, usual], 0)
    for call in (
      in_graph,
      lambda x: tfp_diag.diag_hessian(fn, x)[2],
      lambda x: plan(x)[2],
    ):
      np.testing.assert_allclose(call(x)[2:], want, rtol=1e-8)


@pytest.mark.parametrize('name', ['xlogy', 'xdivy'])
def test_one_special_sample_changes_no_other_jacobian(name):
  op = getattr(tf.math, name)

  def fn(x):
    return tf.tanh(op(x, 2.0 + tf.cos(_SQUARE[0])) @ _SQUARE) @ _SQUARE

  x = tf.concat([tf.zeros([2, N], tf.float64), state(3)], 0)
  plan = tfp_diag.plan_diag_jacobian(
    fn, tf.TensorSpec([None, N], tf.float64), [None]
  )
  in_graph = tf.function(
    lambda x: tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[5])[1][0],
    autograph=False,
  )
  want = jacobian_by_copies(fn, x[2:])
  for got in (plan(x)[1][0], in_graph(x)):
    np.testing.assert_allclose(got[2:], want, rtol=1e-8)


def copies(x):
  """Each a Tensor of its own with the same elements."""
  return {
    'identity': tf.identity(x),
    'checked': tf.debugging.check_numerics(x, ''),
    'of a branch': tf.cond(tf.constant(True), lambda: x, lambda: x + 1.0),
    'of a list': tf.TensorArray(x.dtype, 1).write(0, x).read(0),
  }


@pytest.mark.parametrize('name', copies(tf.zeros([])))
def test_a_product_with_a_copy(name):
  matrix = np.random.default_rng(0).normal(size=[6, 6])
  matrix[[0, 2, 3], [0, 2, 3]] = 0.0

  def fn(x):
    hidden = x @ tf.constant(matrix)
    return hidden * copies(hidden)[name]

  x = tf.constant(np.random.default_rng(1).normal(size=[2, 6]))
  plan = tfp_diag.plan_diag_jacobian(fn, x, sample_shape=[2])
  assert 'on returning paths' in str(plan)
  found = tf.function(
    lambda x: tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[2])[1][0],
    autograph=False,
  )(x)
  np.testing.assert_allclose(found, jacobian_by_copies(fn, x), rtol=1e-9)


@pytest.mark.parametrize(
  'draw',
  [
    lambda: tf.random.stateless_uniform([N, N], [1, 2]) < 0.3,
    lambda: tf.random.stateless_normal([N, N], [1, 2]) < -0.5,
    lambda: tf.random.stateless_truncated_normal([N, N], [1, 2]) < -0.5,
  ],
)
def test_random_numbers_of_one_seed_are_others_under_xla(draw):
  def fn(x):
    pairs = tf.sin(x[..., :, tf.newaxis] * x[..., tf.newaxis, :])
    return tf.reduce_sum(tf.where(draw(), pairs, 0.0), [-1, -2])

  x = state()
  found, expected = (
    tf.function(derivative, autograph=False, jit_compile=True)(x)
    for derivative in (
      lambda x: tfp_diag.diag_hessian(fn, x)[2],
      lambda x: hessian_by_copies(fn, x),
    )
  )
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def scaled_by_the_first(x):
  """The graph does not know that it is one."""
  first = tf.gather(x, tf.where(np.arange(N) == 0)[:, 0], axis=1)
  return tf.reduce_sum(tf.cosh(x[:, 1:] * tf.exp(first)), -1)


def shifted_by_a_row(x):
  rows = tf.reshape(x[:, :2], [tf.shape(x)[0], -1, 2])
  return tf.reduce_sum(tf.exp(rows - tf.reshape(x[:, 1:], [-1, 2, 2])), [1, 2])


@pytest.mark.parametrize('fn', [scaled_by_the_first, shifted_by_a_row])
@pytest.mark.parametrize('samples', [2, None])
def test_an_unknown_size_of_one_is_broadcast(fn, samples):
  found = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2],
    input_signature=[tf.TensorSpec([samples, N], tf.float64)],
    autograph=False,
  )(state())
  expected = hessian_diagonal(fn, state())
  np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_gradient_of_a_branch_is_no_constant():
  """It takes what the other branch would need from an empty optional."""

  def log_prob(x):
    return tf.cond(
      tf.reduce_sum(x) > -100.0,
      lambda: tf.reduce_sum(tf.sin(x @ tf.constant(MATRIX)) ** 2, -1),
      lambda: tf.reduce_sum(x, -1),
    )

  def score(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = log_prob(x)
    return tape.gradient(value, x)

  registry._REPORTED.clear()
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    diag = tf.function(
      lambda x: tfp_diag.diag_jacobian(x, fn=score, sample_shape=[2])[1][0],
      autograph=False,
    )(state())
  expected = hessian_by_copies(log_prob, state())
  np.testing.assert_allclose(diag, expected, rtol=1e-9)
