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
"""Diagonal Hessians of models by sweeps with squared derivatives."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import gradient_of, hessian_by_copies, unmixed_diagonals
from tfp_diag.diagonal import proposals, squared_sweeps
from tfp_diag.diagonal.third_order import ThirdOrder
from tfp_diag.sparsity import analysis, frontiers

RNG = np.random.default_rng(3)
DATA, INPUTS, HIDDEN, CLASSES = 9, 3, 4, 3


def constant(*shape):
  return tf.constant(RNG.normal(size=shape))


DESIGN, RESPONSE = constant(DATA, INPUTS), constant(DATA)
LABELS = tf.constant(RNG.integers(0, CLASSES, DATA))
PERSON = tf.constant(np.arange(DATA) % 4)
ITEM = tf.constant(np.arange(DATA) % 3)


def split(x, *shapes):
  """The parts of a vector, as Tensors of some shapes."""
  sizes = [int(np.prod(shape)) for shape in shapes]
  parts = tf.split(x, [*sizes, x.shape[-1] - sum(sizes)], axis=-1)
  samples = tf.shape(x)[:-1]
  return [
    tf.reshape(part, tf.concat([samples, shape], 0))
    for part, shape in zip(parts, shapes)
  ]


def layer(x, weights, bias, activation=tf.tanh):
  return activation(tf.matmul(x, weights) + bias)


def squares(outputs):
  return -tf.reduce_sum((outputs[..., 0] - RESPONSE) ** 2, -1)


def one_layer(x, activation=tf.tanh, outputs=1):
  w, b, v, c = split(
    x, (INPUTS, HIDDEN), (1, HIDDEN), (HIDDEN, outputs), (1, outputs)
  )
  return tf.matmul(layer(DESIGN, w, b, activation), v) + c


def size_of_one_layer(outputs=1):
  return (INPUTS + 1) * HIDDEN + (HIDDEN + 1) * outputs


def two_layers(x, outputs=1, is_residual=False, is_tied=False):
  w, b, u, d, v, c = split(
    x,
    (INPUTS, HIDDEN),
    (1, HIDDEN),
    (HIDDEN, HIDDEN),
    (1, HIDDEN),
    (HIDDEN, outputs),
    (1, outputs),
  )
  hidden = layer(DESIGN, w, b)
  more = layer(hidden, u, d)
  if is_tied:
    more = layer(more, u, d)
  return tf.matmul(hidden + more if is_residual else more, v) + c


def size_of_two_layers(outputs=1):
  return size_of_one_layer(outputs) + (HIDDEN + 1) * HIDDEN


def network(x):
  return squares(one_layer(x))


def network_of_several_outputs(x):
  outputs = one_layer(x, outputs=CLASSES)
  return -tf.reduce_sum(tf.sin(outputs), [-1, -2])


def silu_network(x):
  return squares(one_layer(x, lambda u: u * tf.sigmoid(u)))


def gelu_network(x):
  return squares(one_layer(x, tf.nn.gelu))


def relu_network(x):
  return squares(one_layer(x, tf.nn.relu))


def network_of_silu(x):
  """With a gradient of its own."""
  return squares(one_layer(x, tf.nn.silu))


def deep_network_of_silu(x):
  w, u, v = split(x, (INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1))
  hidden = tf.nn.silu(tf.matmul(tf.nn.silu(tf.matmul(DESIGN, w)), u))
  return squares(tf.matmul(hidden, v))


@tf.custom_gradient
def exp_by_its_value(x):
  """The gradient takes what was computed on the way."""
  y = tf.exp(x)
  return y, lambda dy: y * dy / 2.0


@tf.custom_gradient
def exp_by_itself(x):
  """The gradient has a gradient of its own."""
  return tf.exp(x), lambda dy: tf.where(x < 0, -dy, 3 * dy) * exp_by_itself(x)


def regression_of_own_gradients(x):
  (w,) = split(x, (INPUTS, 2))
  one, other = tf.unstack(tf.matmul(DESIGN, w), axis=-1)
  rates = exp_by_its_value(one) * exp_by_itself(other)
  return -tf.reduce_sum(tf.math.log1p(rates), -1)


@tf.custom_gradient
def of_two(x, y):
  """The mixed derivatives, 2 y and y, are not symmetric."""
  return x * y**2, lambda dz: (dz * y**2, dz * x * y)


def regression_of_two(x):
  """One argument is computed from the other; both from all coordinates."""
  (w,) = split(x, (INPUTS, 2))
  one, other = tf.unstack(tf.matmul(DESIGN, w), axis=-1)
  rates = tf.exp(0.3 * one)
  return tf.reduce_sum(tf.sin(of_two(rates, tf.sin(rates) + other)), -1)


def deep_network(x):
  return squares(two_layers(x))


def deep_network_of_several_outputs(x):
  outputs = two_layers(x, outputs=CLASSES)
  return -tf.reduce_sum(tf.sin(outputs), [-1, -2])


def residual_network(x):
  return squares(two_layers(x, is_residual=True))


def tied_network(x):
  return squares(two_layers(x, is_tied=True))


def classifier_in_full(x):
  logits = one_layer(x, outputs=CLASSES)
  chosen = tf.reduce_sum(
    logits * tf.one_hot(LABELS, CLASSES, dtype=x.dtype), -1
  )
  return tf.reduce_sum(chosen - tf.reduce_logsumexp(logits, -1), -1)


def classifier_by_softmax(x):
  shares = tf.nn.softmax(one_layer(x, outputs=CLASSES))
  return tf.reduce_sum(
    tf.math.log(shares) * tf.one_hot(LABELS, CLASSES, dtype=x.dtype), [-1, -2]
  )


def classifier_by_log_softmax(x):
  logs = tf.nn.log_softmax(one_layer(x, outputs=CLASSES))
  return tf.reduce_sum(
    logs * tf.one_hot(LABELS, CLASSES, dtype=x.dtype), [-1, -2]
  )


def classifier_by_cross_entropy(x):
  logits = one_layer(x, outputs=CLASSES)
  labels = tf.one_hot(LABELS, CLASSES, dtype=x.dtype)
  labels = tf.broadcast_to(labels, tf.shape(logits))
  losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
  return -tf.reduce_sum(losses, -1)


def classifier_by_sparse_cross_entropy(x):
  logits = one_layer(x, outputs=CLASSES)
  labels = tf.broadcast_to(LABELS, tf.shape(logits)[:-1])
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  return -tf.reduce_sum(losses, -1)


def layer_norm(x):
  w, scale, shift, v = split(
    x, (INPUTS, HIDDEN), (1, HIDDEN), (1, HIDDEN), (HIDDEN, 1)
  )
  hidden = tf.matmul(DESIGN, w)
  centered = hidden - tf.reduce_mean(hidden, -1, keepdims=True)
  variance = tf.reduce_mean(centered**2, -1, keepdims=True)
  hidden = centered * tf.math.rsqrt(variance + 0.1) * scale + shift
  return squares(tf.matmul(tf.tanh(hidden), v))


def softmax_regression(x):
  (w,) = split(x, (INPUTS, CLASSES))
  logits = tf.matmul(DESIGN, w)
  chosen = tf.reduce_sum(
    logits * tf.one_hot(LABELS, CLASSES, dtype=x.dtype), -1
  )
  return tf.reduce_sum(chosen - tf.reduce_logsumexp(logits, -1), -1)


def horseshoe(x):
  slopes, local, overall = split(x, (INPUTS,), (INPUTS,), (1,))
  logits = tf.linalg.matvec(DESIGN, slopes * tf.exp(local) * tf.exp(overall))
  prior = tf.reduce_sum(slopes**2 + tf.math.softplus(2 * local) - local, -1)
  prior += tf.math.softplus(2 * overall[..., 0])
  return -tf.reduce_sum(tf.math.softplus(logits), -1) - prior


def poisson_mixed(x):
  slopes, person, item, scales = split(x, (INPUTS,), (4,), (3,), (2,))
  rate = tf.linalg.matvec(DESIGN, slopes)
  rate += tf.gather(person, PERSON, axis=-1) + tf.gather(item, ITEM, axis=-1)
  prior = tf.reduce_sum((person * tf.exp(-scales[..., :1])) ** 2, -1)
  prior += tf.reduce_sum((item * tf.exp(-scales[..., 1:])) ** 2, -1)
  return tf.reduce_sum(rate - tf.exp(rate), -1) - prior


def ordinal(x):
  slopes, cuts = split(x, (INPUTS,), (2,))
  cuts = tf.concat([cuts[..., :1], cuts[..., :1] + tf.exp(cuts[..., 1:])], -1)
  z = tf.linalg.matvec(DESIGN, slopes)[..., tf.newaxis]
  below = tf.sigmoid(cuts[..., tf.newaxis, :] - z)
  ones = tf.ones_like(z)
  shares = tf.concat([below, ones], -1) - tf.concat([0 * ones, below], -1)
  chosen = tf.reduce_sum(shares * tf.one_hot(LABELS, 3, dtype=x.dtype), -1)
  return tf.reduce_sum(tf.math.log(chosen), -1)


def factors(x):
  people, items = split(x, (4, 2), (3, 2))
  picked = tf.gather(people, PERSON, axis=-2) * tf.gather(items, ITEM, axis=-2)
  misses = tf.reduce_sum(picked, -1) - RESPONSE
  return -tf.reduce_sum(misses**2, -1) - tf.reduce_sum(x**2, -1)


def item_response(x):
  ability, slope, difficulty = split(x, (4,), (3,), (3,))
  logits = tf.exp(tf.gather(slope, ITEM, axis=-1)) * (
    tf.gather(ability, PERSON, axis=-1) - tf.gather(difficulty, ITEM, axis=-1)
  )
  return -tf.reduce_sum(tf.math.softplus(logits), -1) - tf.reduce_sum(x**2, -1)


def mixture(x):
  weights, means, scales = split(x, (3,), (3,), (3,))
  z = (RESPONSE[:, tf.newaxis] - means[..., tf.newaxis, :]) * tf.exp(
    -scales[..., tf.newaxis, :]
  )
  logs = tf.nn.log_softmax(weights) - scales
  joint = logs[..., tf.newaxis, :] - 0.5 * z**2
  return tf.reduce_sum(tf.reduce_logsumexp(joint, -1), -1)


def dense(fn, x):
  """By tapes, all coordinates of all samples at once."""
  return hessian_by_copies(fn, x)


ONE, MORE = size_of_one_layer(), size_of_one_layer(CLASSES)
# Function, number of coordinates, and of passes at most.
MODELS = [
  (network, ONE, 1),
  (network_of_several_outputs, MORE, 1),
  (silu_network, ONE, 2),
  (network_of_silu, ONE, 1),
  (deep_network_of_silu, HIDDEN * (INPUTS + HIDDEN + 1), 2),
  (regression_of_own_gradients, 2 * INPUTS, 1),
  (regression_of_two, 2 * INPUTS, 2),
  (gelu_network, ONE, 2),
  (relu_network, ONE, 1),
  (deep_network, size_of_two_layers(), 2),
  (deep_network_of_several_outputs, size_of_two_layers(CLASSES), 2),
  (residual_network, size_of_two_layers(), 2),
  (tied_network, size_of_two_layers(), 22),
  (classifier_in_full, MORE, 2),
  (classifier_by_softmax, MORE, 2),
  (classifier_by_log_softmax, MORE, 2),
  (classifier_by_cross_entropy, MORE, 2),
  (classifier_by_sparse_cross_entropy, MORE, 2),
  (layer_norm, INPUTS * HIDDEN + 3 * HIDDEN, 2),
  (softmax_regression, INPUTS * CLASSES, 1),
  (horseshoe, 2 * INPUTS + 1, 2),
  (poisson_mixed, INPUTS + 9, 1),
  (ordinal, INPUTS + 2, 3),
  (factors, 14, 1),
  (item_response, 10, 1),
  (mixture, 9, 7),
]


def state(size, *samples, seed=0):
  rng = np.random.default_rng(seed)
  return tf.constant(rng.normal(size=[*samples, size]) / 2.0)


def assert_equal(got, want, **kwargs):
  np.testing.assert_allclose(
    got, want, **{'rtol': 1e-9, 'atol': 1e-10} | kwargs
  )


@pytest.mark.parametrize(
  'fn, size, most', MODELS, ids=[fn.__name__ for fn, *_ in MODELS]
)
def test_models(fn, size, most):
  x = state(size, 2)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.ways[0].name == 'squared sweeps'
  assert plan.num_passes <= most
  # In a graph, where nothing is compared with a pass.
  diag = tf.function(lambda x: plan(x)[2])(x)
  assert_equal(diag, dense(fn, x))


# Gradients of which it cannot be seen that they are elementwise and linear.

OTHER, MANY = constant(DATA, 1), constant(DATA, 12)


@tf.custom_gradient
def of_another_element(x):
  return tf.exp(x), lambda dy: tf.reverse(dy, [-1]) * tf.exp(x)


@tf.custom_gradient
def by_the_sum(x):
  slope = tf.reduce_sum(x, -1, keepdims=True)
  return tf.exp(x), lambda dy: dy * slope


@tf.custom_gradient
def clipped(x):
  return tf.exp(x), lambda dy: tf.clip_by_value(dy, -0.1, 0.1) * tf.exp(x)


@tf.custom_gradient
def stopped(x):
  return tf.exp(x), lambda dy: tf.stop_gradient(dy) * tf.exp(x)


@tf.custom_gradient
def by_its_neighbor(x, y):
  return x * y, lambda dz: (dz * tf.roll(y, 1, -1), dz * x)


def beside(x):
  """The slope has coordinates that do not come through the argument."""
  slope = tf.sin(x[..., :1, :1])

  @tf.custom_gradient
  def fn(u):
    return tf.exp(u), lambda du: du * slope * tf.exp(u)

  return fn(tf.matmul(DESIGN, x))


def on_the_linear_predictor(activation):
  return lambda w: activation(tf.matmul(DESIGN, w))


NO_SQUARES = {
  'of another element': on_the_linear_predictor(of_another_element),
  'by the sum': on_the_linear_predictor(by_the_sum),
  'of two': on_the_linear_predictor(lambda u: by_its_neighbor(u, tf.sin(u))),
  'beside': beside,
}


def with_activation(activation):
  def fn(x):
    w, rest = split(x, (INPUTS, 2), (12,))
    outputs = tf.sin(activation(w) + OTHER)
    logits = tf.linalg.matvec(MANY, rest)
    return tf.reduce_sum(outputs, [-1, -2]) + tf.reduce_sum(tf.exp(logits), -1)

  return fn


@pytest.mark.parametrize('activation', NO_SQUARES.values(), ids=NO_SQUARES)
def test_other_gradients_are_no_squares(activation):
  fn = with_activation(activation)
  x = state(2 * INPUTS + 12, 2)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.ways[0].name == 'squared sweeps'
  assert "What follows BatchMatMulV2 (op 'MatMul') is differ" in str(plan)
  assert_equal(plan(x)[2], dense(fn, x))


@pytest.mark.parametrize('activation', [clipped, stopped])
def test_gradients_that_are_no_matrices_are_not_taken_apart(activation):
  fn = with_activation(on_the_linear_predictor(activation))
  x = state(2 * INPUTS + 12, 2)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert [way.name for way in plan.ways] == ['passes']
  assert 'not seen to be linear' in str(plan)
  assert_equal(plan(x)[2], dense(fn, x))


# Of batch norms, which know single precision alone.


def with_batch_norm(x, norm):
  """`norm` takes the hidden layer, a factor and a shift for each unit."""
  w, scale, shift, v = split(
    x, (INPUTS, HIDDEN), (HIDDEN,), (HIDDEN,), (HIDDEN, 1)
  )
  hidden = norm(tf.matmul(tf.cast(DESIGN, x.dtype), w), scale, shift)
  outputs = tf.matmul(tf.tanh(hidden), v)[..., 0]
  return -tf.reduce_sum((outputs - tf.cast(RESPONSE, x.dtype)) ** 2, -1)


def fused(hidden, scale, shift, **kwargs):
  """One result, as Keras calls it."""
  empty = tf.zeros([0], hidden.dtype)
  known = {'mean': empty, 'variance': empty, 'epsilon': 0.1} | kwargs
  return tf.raw_ops.FusedBatchNormV3(
    x=hidden, scale=scale, offset=shift, **known
  ).y


def of_layers(hidden, scale, shift):
  """A channel for each datum of each sample, as in `LayerNormalization`."""
  rows = tf.reshape(hidden, [1, -1, HIDDEN, 1])
  ones = tf.ones_like(rows[0, :, 0, 0])
  rows = fused(rows, ones, 0 * ones, data_format='NCHW')
  rows = tf.reshape(rows, tf.shape(hidden))
  return rows * scale[..., tf.newaxis, :] + shift[..., tf.newaxis, :]


def of_layers_in_full(hidden, scale, shift):
  centered = hidden - tf.reduce_mean(hidden, -1, keepdims=True)
  variance = tf.reduce_mean(centered**2, -1, keepdims=True)
  rows = centered * tf.math.rsqrt(variance + 0.1)
  return rows * scale[..., tf.newaxis, :] + shift[..., tf.newaxis, :]


def of_batches(hidden, scale, shift):
  """A channel for each unit of each sample: its data are the batch."""
  data = tf.shape(hidden)[-2]
  columns = tf.reshape(tf.linalg.matrix_transpose(hidden), [-1, data])
  columns = fused(
    tf.transpose(columns)[:, tf.newaxis, tf.newaxis],
    tf.reshape(scale, [-1]),
    tf.reshape(shift, [-1]),
  )
  columns = tf.reshape(tf.transpose(columns[:, 0, 0]), [-1, HIDDEN, data])
  return tf.linalg.matrix_transpose(columns)


def of_batches_in_full(hidden, scale, shift):
  centered = hidden - tf.reduce_mean(hidden, -2, keepdims=True)
  variance = tf.reduce_mean(centered**2, -2, keepdims=True)
  columns = centered * tf.math.rsqrt(variance + 0.1)
  return columns * scale[..., tf.newaxis, :] + shift[..., tf.newaxis, :]


def of_moments(hidden, scale, shift):
  """Not in training, with moments that are given."""
  moments = tf.fill([tf.size(scale)], 0.7)
  shape = tf.shape(hidden)
  columns = tf.reshape(tf.transpose(hidden, [1, 0, 2]), [1, 1, DATA, -1])
  columns = fused(
    columns,
    tf.reshape(scale, [-1]),
    tf.reshape(shift, [-1]),
    mean=moments,
    variance=moments,
    is_training=False,
  )
  columns = tf.reshape(columns, [DATA, shape[0], HIDDEN])
  return tf.transpose(columns, [1, 0, 2])


def of_moments_in_full(hidden, scale, shift):
  columns = (hidden - 0.7) / np.sqrt(0.7 + 0.1)
  return columns * scale[..., tf.newaxis, :] + shift[..., tf.newaxis, :]


@pytest.mark.parametrize(
  'norm, in_full, passes',
  [
    (of_layers, of_layers_in_full, 2),
    # A weight reaches all data through each of them.
    (of_batches, of_batches_in_full, 1 + INPUTS * HIDDEN),
    (of_moments, of_moments_in_full, 1),
  ],
)
def test_batch_norms(norm, in_full, passes):
  x = state(INPUTS * HIDDEN + 3 * HIDDEN, 2)
  single = tf.cast(x, tf.float32)
  plan = tfp_diag.plan_diag_hessian(lambda x: with_batch_norm(x, norm), single)
  want = dense(lambda x: with_batch_norm(x, in_full), x)
  assert_equal(plan(single)[2], want, rtol=2e-3, atol=2e-4)
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', passes)


# What follows an op that is written out is repeated, with its own gradients.


@tf.custom_gradient
def twice_its_slope(x):
  return tf.exp(x), lambda dy: 2.0 * dy * tf.exp(x)


@tf.custom_gradient
def of_a_loop(x):
  def gradient(dy):
    _, slope = tf.while_loop(
      lambda k, _: k < TURNS, lambda k, y: (k + 1, 0.5 * y), (0, dy)
    )
    return slope

  return tf.exp(x), gradient


TURNS = tf.Variable(3)
BEHIND_A_SOFTMAX = {
  'silu': (tf.nn.silu, True),
  'twice its slope': (twice_its_slope, True),
  'by itself': (exp_by_itself, True),
  'by its value': (exp_by_its_value, True),
  'a loop': (of_a_loop, False),
}


@pytest.mark.parametrize(
  'activation, is_swept', BEHIND_A_SOFTMAX.values(), ids=BEHIND_A_SOFTMAX
)
def test_own_gradients_behind_what_is_written_out(activation, is_swept):
  def fn(x):
    shares = tf.nn.softmax(tf.matmul(DESIGN, split(x, (INPUTS, CLASSES))[0]))
    return tf.reduce_sum(tf.sin(activation(shares)), [-1, -2])

  x = state(INPUTS * CLASSES, 2)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  want = dense(fn, x)
  assert (plan.ways[0].name == 'squared sweeps') == is_swept
  assert_equal(tf.function(lambda x: plan(x)[2])(x), want)


# However it is asked for.


DEEP = size_of_two_layers()


@pytest.mark.parametrize(
  'fn, size, jit_compile',
  [(deep_network, DEEP, True), (network_of_silu, ONE, None)],
)
def test_in_a_graph(fn, size, jit_compile):
  x = state(size, 2)

  @tf.function(jit_compile=jit_compile)
  def diagonal(x):
    return tfp_diag.diag_hessian(fn, x)

  value, gradient, diag = diagonal(x)
  assert_equal(value, fn(x))
  assert_equal(gradient, gradient_of(fn)(x))
  assert_equal(diag, dense(fn, x))


@pytest.mark.parametrize('samples', [(2,), (2, 2), ()])
def test_eagerly_with_any_number_of_sample_axes(samples):
  x = state(DEEP, *samples)
  diag = tfp_diag.diag_hessian(deep_network, x)[2]
  assert_equal(diag, dense(deep_network, x))


@pytest.mark.parametrize(
  'fn, size, passes', [(deep_network, DEEP, 2), (network_of_silu, ONE, 1)]
)
def test_with_an_open_batch(fn, size, passes):
  spec = tf.TensorSpec([None, size], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', passes)
  # Of 200 a smaller graph is looked at.
  for samples in (1, 3, 200):
    x = state(size, samples, seed=samples)
    assert_equal(plan(x)[2], dense(fn, x))


def test_a_plan_is_followed_elsewhere_and_kept(tmp_path):
  plan = tfp_diag.plan_diag_hessian(deep_network, state(DEEP, 2))
  path = tmp_path / 'plan.npz'
  plan.save(path)
  loaded = tfp_diag.load_plan(path)
  x = state(DEEP, 5)
  for one in (plan, loaded):
    diag = tfp_diag.diag_hessian(deep_network, x, plan=one)[2]
    assert_equal(diag, dense(deep_network, x))


def test_checked_at_run_time():
  x = state(DEEP, 2)
  diag = tfp_diag.diag_hessian(deep_network, x, validate_args=True)[2]
  assert_equal(diag, dense(deep_network, x))


def test_in_single_precision():
  def fn(x):
    w, b, v = split(x, (INPUTS, HIDDEN), (1, HIDDEN), (HIDDEN, 1))
    design = tf.cast(DESIGN, x.dtype)
    outputs = tf.matmul(tf.tanh(tf.matmul(design, w) + b), v)
    return tf.reduce_sum(tf.nn.softplus(outputs), [-1, -2])

  x = state(20, 2)
  single = tf.cast(x, tf.float32)
  plan = tfp_diag.plan_diag_hessian(fn, single)
  assert plan.ways[0].name == 'squared sweeps'
  diag = plan(single)[2]
  assert diag.dtype == tf.float32
  assert_equal(diag, dense(fn, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('kind', [list, dict])
def test_of_several_parts(kind):
  sizes = {'a': 12, 'b': 4, 'c': 5}
  whole = state(sum(sizes.values()), 2)
  parts = dict(zip(sizes, tf.split(whole, list(sizes.values()), 1)))
  # The first part has two event axes.
  parts['a'] = tf.reshape(parts['a'], [-1, INPUTS, HIDDEN])

  def joined(a, b, c):
    flat = tf.reshape(a, [-1, INPUTS * HIDDEN])
    return network(tf.concat([flat, b, c], 1))

  xs = list(parts.values()) if kind is list else parts
  plan = tfp_diag.plan_diag_hessian(joined, xs)
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', 1)
  diag = tf.nest.flatten(plan(xs)[2])
  assert [d.shape for d in diag] == [x.shape for x in parts.values()]
  flat = tf.concat([tf.reshape(d, [2, -1]) for d in diag], 1)
  assert_equal(flat, dense(network, whole))


def test_of_variables():
  weights = tf.Variable(state(INPUTS * HIDDEN)[tf.newaxis])
  more = tf.Variable(state(HIDDEN + 5, seed=1)[tf.newaxis])

  def closure():
    hidden = tf.tanh(tf.matmul(DESIGN, tf.reshape(weights, [INPUTS, HIDDEN])))
    picked = tf.gather(more, [0, 2, 1, 3], axis=1)
    outputs = tf.linalg.matvec(hidden, picked[0])
    effects = tf.gather(more[0, HIDDEN:], np.arange(DATA) % 5)
    return tf.reduce_sum(tf.exp(outputs) * 0.1 - outputs * effects)[tf.newaxis]

  plan = tfp_diag.plan_diag_hessian(closure, [weights, more])
  diag = plan([weights, more])[2]
  with tf.GradientTape(persistent=True) as outer:
    with tf.GradientTape() as inner:
      value = closure()
    gradient = [
      tf.convert_to_tensor(g) for g in inner.gradient(value, [weights, more])
    ]
  for got, g, x in zip(diag, gradient, [weights, more]):
    size = x.shape.num_elements()
    matrix = outer.jacobian(g, x, experimental_use_pfor=False)
    assert_equal(got[0], np.diag(np.reshape(matrix, [size, size])))


def test_differentiated_once_more():
  x = state(ONE, 2)
  direction = state(ONE, 2, seed=1)
  with tf.GradientTape() as tape:
    tape.watch(x)
    diag = tfp_diag.diag_hessian(network, x)[2]
    value = tf.reduce_sum(diag * direction)
  step = 1e-4 * state(ONE, 2, seed=2)
  ends = [
    tf.reduce_sum(dense(network, x + sign * step) * direction)
    for sign in (1.0, -1.0)
  ]
  expected = (ends[0] - ends[1]) / 2.0
  got = tf.reduce_sum(tape.gradient(value, x) * step)
  assert_equal(got, expected, rtol=1e-5, atol=1e-9)


PLANE = tf.constant(np.random.default_rng(8).normal(size=[DATA, 2]))


def mixture_of_planes(x):
  """Each scale reaches its density on two paths, of each of two axes."""
  means, scales = split(x, (3, 2), (3, 2))
  z = (PLANE[:, tf.newaxis] - means[..., tf.newaxis, :, :]) * tf.exp(
    -scales[..., tf.newaxis, :, :]
  )
  logs = -tf.reduce_sum(0.5 * z**2 + scales[..., tf.newaxis, :, :], -1)
  return tf.reduce_sum(tf.reduce_logsumexp(logs, -1), -1)


def mixture_on_a_line(x):
  means, scales = split(x, (1, 3), (1, 3))
  z = (RESPONSE[:, tf.newaxis] - means) * tf.exp(-scales)
  return tf.reduce_sum(tf.reduce_logsumexp(-0.5 * z**2 - scales, -1), -1)


@pytest.mark.parametrize('how', ['graph', 'xla'])
@pytest.mark.parametrize(
  'fn, size, most', [(mixture_of_planes, 12, 4), (mixture_on_a_line, 6, 2)]
)
def test_terms_share_the_way_to_their_frontier(
  fn, size, most, how, monkeypatch
):
  """Of the sum in a logarithm, and of the exponentials in the sum."""
  ways, linked = [], squared_sweeps._Walk._linked

  def counting(self, link, *args):
    ways.append((link.value, link.num_passes))
    return linked(self, link, *args)

  monkeypatch.setattr(squared_sweeps._Walk, '_linked', counting)
  x = state(size, 2)
  run = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2], jit_compile=how == 'xla'
  )
  assert_equal(run(x), dense(fn, x))
  last = ways[-1][0]
  # Once to the frontier at the scales, one pass for each tensor on the way.
  assert [value for value, _ in ways].count(last) == 1
  assert all(num_passes == 1 for _, num_passes in ways)
  assert 0 < len(ways) <= most


# What is not finite stays where it is.

MIXED = constant(4, 2)


@pytest.mark.parametrize('bad', [0.0, np.inf, np.nan])
def test_what_is_not_finite_touches_nothing_else(bad):
  def fn(x):
    y = tf.math.log(x)
    groups = tf.reshape(tf.roll(y, 3, 1), [-1, 5, 4])
    return tf.reduce_sum(tf.exp(-tf.matmul(groups, MIXED)), [1, 2])

  x = np.random.default_rng(0).uniform(0.5, 1.5, [3, 20])
  x[1, 7] = bad
  x = tf.constant(x)
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec(x.shape, x.dtype))
  assert plan.ways[0].name == 'squared sweeps'
  want = dense(fn, x).numpy()
  assert not np.isfinite(want[1, 7])
  finite = np.isfinite(want)
  got = plan(x)[2].numpy()
  assert finite[[0, 2]].all() and finite[1].sum() >= 16
  np.testing.assert_allclose(got[finite], want[finite], rtol=1e-9)


# Each way with two functions, the two that take longest under XLA.
@pytest.mark.parametrize(
  'fn, how',
  [
    (softmax_regression, 'eager'),
    (network, 'eager'),
    (horseshoe, 'graph'),
    (network, 'graph'),
    (horseshoe, 'xla'),
    (classifier_in_full, 'xla'),
  ],
)
def test_third_derivatives(fn, how):
  size = next(size for model, size, _ in MODELS if model is fn)
  x = state(size, 2)

  def third(x):
    return tfp_diag.unmixed_derivatives(fn, x)

  if how != 'eager':
    third = tf.function(third, jit_compile=how == 'xla')
  check_third_derivatives(third, fn, x)


@pytest.mark.parametrize(
  'fn',
  [
    network_of_silu,
    deep_network_of_silu,
    gelu_network,
    deep_network_of_several_outputs,
    residual_network,
    classifier_by_softmax,
    classifier_by_cross_entropy,
    layer_norm,
  ],
)
def test_third_derivatives_of_networks_take_no_pass(fn, monkeypatch):
  """Frontiers by rows, and joint ones for what follows a layer, give them."""
  size = next(size for model, size, _ in MODELS if model is fn)
  passes, apply = [], ThirdOrder.apply

  def counting(self, *args):
    passes.append(args)
    return apply(self, *args)

  monkeypatch.setattr(ThirdOrder, 'apply', counting)
  third = tf.function(lambda x: tfp_diag.unmixed_derivatives(fn, x))
  check_third_derivatives(third, fn, state(size, 2))
  # One coordinate at most, a bias at the end, is cheaper by itself.
  assert len(passes) <= 1


def check_third_derivatives(third, fn, x):
  found, (second, want) = third(x), unmixed_diagonals(fn, x)
  assert_equal(found.second, second)
  assert_equal(found.third, want)


@pytest.mark.parametrize('jit_compile', [None, True])
def test_passes_through_a_loop_beside_a_sweep(jit_compile):
  """Lists of Tensors, on which vectorized passes fail under XLA alone."""
  recurrent = tf.Variable(constant(3, 3))
  weights = tf.Variable(constant(INPUTS))
  first = constant(2, 3)

  def loss():
    _, last = tf.while_loop(
      lambda k, _: k < 3,
      lambda k, state: (k + 1, tf.tanh(tf.matmul(state, recurrent))),
      (0, first),
      maximum_iterations=3,
    )
    return tf.reduce_sum(last**2) + tf.reduce_sum(
      tf.exp(tf.linalg.matvec(DESIGN, weights))
    )

  @tf.function(jit_compile=jit_compile)
  def derivatives():
    return tfp_diag.diag_hessian(loss, [recurrent, weights], ())[2]

  with pytest.warns(RuntimeWarning, match='pfor cannot vectorize the op While'):
    found = derivatives()
  hessian = tfp_diag.hessian(loss, [recurrent, weights])
  for k, diag in enumerate(found):
    size = diag.shape.num_elements()
    block = tf.reshape(hessian[k][k], [size, size])
    assert_equal(tf.reshape(diag, [-1]), tf.linalg.diag_part(block))


def test_a_call_of_a_plan_looks_for_what_the_plan_says(monkeypatch):
  rng = np.random.default_rng(5)
  data, more = rng.normal(size=(2, 20, 30))
  seen = []

  def counted(owner, name):
    original = getattr(owner, name)

    def wrapper(*args, **kwargs):
      seen.append(name)
      return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapper)

  def fn(x):
    logits = tf.linalg.matvec(data, x)
    return tf.reduce_sum(tf.math.softplus(logits), axis=-1)

  x = tf.constant(rng.normal(size=30))
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.how == 'squared sweeps'
  counted(proposals, 'taken_apart')
  counted(analysis.Analysis, '_pattern_of')
  logits = data @ x.numpy()
  slopes = 1 / (1 + np.exp(-logits))
  expected = (data**2 * (slopes * (1 - slopes))[:, np.newaxis]).sum(0)
  np.testing.assert_allclose(plan(x)[2], expected, rtol=1e-12)
  assert seen == []

  # Of another function it looks at all.
  def other(x):
    return fn(x) + tf.reduce_sum(tf.sin(more @ x[..., tf.newaxis]))

  tfp_diag.diag_hessian(other, x, plan=plan)
  assert '_pattern_of' in seen


def test_a_link_is_looked_at_once_for_the_same_coordinates(monkeypatch):
  looked_at, kept = [], []
  link = frontiers.Frontiers._link

  def counted(self, value, tensor, rows, asked, inside):
    kept.append(rows)  # Alive, it has its number for itself.
    looked_at.append((value, id(rows), asked.tobytes()))
    return link(self, value, tensor, rows, asked, inside)

  monkeypatch.setattr(frontiers.Frontiers, '_link', counted)
  x = state(INPUTS + 2, 2)
  tfp_diag.plan_diag_hessian(ordinal, x, sample_shape=[2])
  assert len(looked_at) == len(set(looked_at))
  # And again for others.
  assert len({value for value, *_ in looked_at}) < len(looked_at)


def test_sweeps_are_followed_for_one_sample():
  """A single sample has passes that cost less; the plan says sweeps."""
  scale = tf.constant(np.linalg.cholesky(np.eye(4) + 0.5))
  log_prob = tfp.distributions.MultivariateStudentTLinearOperator(
    tf.constant(3.0, tf.float64),
    tf.zeros([4], tf.float64),
    tf.linalg.LinearOperatorLowerTriangular(scale),
  ).log_prob
  plan = tfp_diag.plan_diag_hessian(
    log_prob, tf.TensorSpec([None, 4], tf.float64)
  )
  assert plan.how == 'squared sweeps'
  x = tf.constant(np.random.default_rng(0).normal(size=[3, 4]))
  with warnings.catch_warnings():
    warnings.simplefilter('error', RuntimeWarning)
    one, all_samples = (
      tf.nest.flatten(plan(state))[-1] for state in (x[:1], x)
    )
  np.testing.assert_allclose(one, all_samples[:1], rtol=1e-12)


def test_str_of_few_sweeps_with_much_beside_them():
  def fn(x):
    products = x[..., :, tf.newaxis] * x[..., tf.newaxis, :]
    return tf.reduce_sum(tf.exp(0.3 * products), axis=[-2, -1])

  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 40]))
  assert plan.num_passes == 1 and plan.ways[0].cost > 10
  price = f', which cost as much as {plan.ways[0].cost:.0f}'
  assert str(plan).splitlines()[0].endswith(f'1 pass instead of 40{price}')


@tf.custom_gradient
def sine_of_a_neighbor(x):
  return tf.sin(x), lambda dy: tf.roll(dy * tf.cos(x), 1, -1)


@pytest.mark.parametrize('outer', (tf.reduce_sum, tf.reduce_logsumexp))
def test_the_result_of_a_gradient_that_moves_elements(outer):
  """A square of it has the op's input, which no step of the walk stands for."""

  def fn(x):
    return outer(sine_of_a_neighbor(x) ** 2, -1)

  x = state(6, 3)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', 1)
  assert_equal(plan(x)[2], dense(fn, x))
