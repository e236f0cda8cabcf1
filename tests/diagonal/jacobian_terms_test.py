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
"""Diagonal Jacobians of functions that are dense, and yet have structure."""

import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import jacobian_by_copies, jacobian_diagonal
from tfp_diag.diagonal import proposals
from tfp_diag.diagonal.jacobian_terms import JacobianTerms

RNG = np.random.default_rng(11)
N = 20
INNER = RNG.standard_normal((N, 28)) / 4.0
GATE = RNG.standard_normal((N, 28)) / 4.0
OUTER = RNG.standard_normal((28, N)) / 4.0
SQUARE = RNG.standard_normal((N, N)) / 4.0
NARROW = RNG.standard_normal((N, 3)) / 4.0
WIDE_MEANS = RNG.standard_normal((N // 2, N))
WIDE = RNG.standard_normal((3, N)) / 4.0
RATES = RNG.standard_normal((N, N))


def constant(value):
  return tf.constant(value, tf.float64)


def softmax(x):
  return tf.exp(x - tf.reduce_logsumexp(x, -1, keepdims=True))


def softmax_op(x):
  return tf.nn.softmax(x) * x


def log_softmax_op(x):
  return tf.sin(tf.nn.log_softmax(2.0 * x))


def two_softmax_ops(x):
  return tf.nn.softmax(tf.nn.softmax(x) * x + x)


def attention(x):
  return (
    x + tf.nn.softmax(x) * tf.reduce_sum(tf.nn.softmax(-x) * x, -1)[:, None]
  )


def normalized(x):
  center = x - tf.reduce_mean(x, -1, keepdims=True)
  variance = tf.reduce_mean(center**2, -1, keepdims=True)
  return center * tf.math.rsqrt(variance + 1e-3)


def mean_field(x):
  return tf.sin(x * tf.reduce_mean(x**2, -1, keepdims=True))


def between_extremes(x):
  least = tf.reduce_min(x, -1, keepdims=True)
  return (x - least) / (tf.reduce_max(x, -1, keepdims=True) - least) + x**2


def two_means(x):
  """A value of two elements."""
  halves = tf.reshape(x**2, tf.concat([tf.shape(x)[:-1], [2, N // 2]], 0))
  means = tf.reduce_mean(halves, -1)
  return tf.sin(means[..., :1] * x) + tf.cos(means[..., 1:] * x)


def hidden_layer(x):
  return tf.matmul(tf.tanh(tf.matmul(x, constant(INNER)) - 0.3), OUTER)


def transposed_layer(x):
  hidden = tf.linalg.matvec(constant(INNER), x, transpose_a=True)
  return tf.linalg.matvec(constant(OUTER), tf.exp(-(hidden**2)), True)


def residual(x):
  return x + tf.sin(x) * 0.1 + hidden_layer(x)


def gelu_layer(x):
  return tf.matmul(tf.nn.gelu(tf.matmul(x, constant(INNER))), constant(OUTER))


def gated_layer(x):
  gate = tf.sigmoid(tf.matmul(x, constant(GATE)))
  return tf.matmul(gate * tf.tanh(tf.matmul(x, constant(INNER))), OUTER)


def split_gate(x):
  """The bases are two results of one op."""
  both = tf.matmul(x, tf.concat([constant(GATE), constant(INNER)], -1))
  gate, hidden = tf.split(both, 2, -1)
  return tf.matmul(tf.sigmoid(gate) * hidden, constant(OUTER))


def scale_and_shift(x):
  """And so are the values from which the results are computed."""
  both = tf.concat([constant(OUTER), constant(OUTER[::-1])], -1)
  hidden = tf.tanh(tf.matmul(x, constant(INNER)))
  scale, shift = tf.split(tf.matmul(hidden, both), 2, -1)
  return x * tf.exp(scale) + shift


def scale_and_mixed_shift(x):
  """Of one of these all results are computed."""
  both = tf.concat([constant(OUTER), constant(OUTER[::-1])], -1)
  hidden = tf.tanh(tf.matmul(x, constant(INNER)))
  scale, shift = tf.split(tf.matmul(hidden, both), 2, -1)
  return x * tf.exp(scale) + tf.tanh(tf.matmul(shift, constant(SQUARE)))


def affine_and_hidden(x):
  """Of two results of an op only one can be held."""
  both = tf.concat([constant(SQUARE), constant(SQUARE + 0.1)], -1)
  affine, hidden = tf.split(tf.matmul(x, both), 2, -1)
  mean = tf.reduce_mean(tf.sin(hidden), -1, keepdims=True)
  inner = tf.matmul(tf.sin(hidden), constant(SQUARE))
  return tf.exp(affine) * mean + tf.sin(inner)


def activated(x):
  return tf.tanh(hidden_layer(x) + 0.2 * x) * x


def added_up(x):
  """A tape adds gradients up by one op, too, wherever there are several."""
  hidden = tf.matmul(x, constant(INNER))
  hidden = tf.add_n([tf.tanh(hidden), 0.5 * tf.sin(hidden)])
  return tf.add_n([tf.matmul(tf.exp(hidden), constant(OUTER)), x, tf.cos(x)])


def two_layers_of_one(x):
  """Two hidden values of one base, and two that ys follow from."""
  base = tf.matmul(x, constant(INNER))
  left = tf.matmul(tf.tanh(base), constant(OUTER))
  right = tf.matmul(tf.exp(0.1 * base), constant(OUTER))
  return tf.tanh(left) * tf.sin(right)


def chained_outputs(x):
  """One of the values that ys follow from depends on another one."""
  hidden = tf.tanh(tf.matmul(x, constant(INNER)))
  first = tf.matmul(hidden, constant(OUTER))
  z = tf.reverse(tf.matmul(hidden, constant(OUTER)), [-1])
  return tf.sin(first) * (z + first) + tf.roll(z, 1, -1)


def held_layer(x):
  """A residual connection around the second matrix."""
  hidden = tf.tanh(tf.matmul(x, constant(SQUARE)))
  return tf.matmul(hidden, constant(SQUARE)) + hidden


def activated_held_layer(x):
  return tf.tanh(held_layer(x))


def shrunk_layer(x):
  """A hidden layer of fewer elements than there are coordinates."""
  hidden = tf.tanh(tf.matmul(x, constant(NARROW)))
  return tf.matmul(hidden, constant(WIDE)) + x


def rates_of_a_network(x):
  """The matrix is the last thing that happens."""
  weights = tf.cast(RATES, x.dtype)
  return -x + tf.linalg.matvec(weights, tf.tanh(x))


def cumulative_exponentials(x):
  return tf.cumsum(tf.exp(x), axis=-1)


def gate_of_itself(x):
  return x * tf.sigmoid(tf.matmul(x, constant(SQUARE)))


def normalized_layer(x):
  return normalized(hidden_layer(x))


def planar_flow(x):
  step = tf.tanh(tf.reduce_sum(constant(NARROW[:, 0]) * x, -1, keepdims=True))
  return x + step * constant(WIDE[0])


def layer_by_matvec(x):
  hidden = tf.tanh(x @ constant(NARROW))
  return tf.linalg.matvec(constant(WIDE), hidden, transpose_a=True)


def silu_layer(x):
  return tf.nn.silu(x @ constant(INNER)) @ constant(OUTER)


def silu_gate(x):
  gate = tf.nn.silu(x @ constant(INNER))
  return x + (gate * (x @ constant(GATE))) @ constant(OUTER)


def second_half(x):
  twice = tf.concat([constant(OUTER), constant(OUTER[::-1])], -1)
  return tf.split(tf.tanh(x @ constant(INNER)) @ twice, 2, -1)[1]


FUNCTIONS = [
  activated,
  activated_held_layer,
  added_up,
  affine_and_hidden,
  between_extremes,
  chained_outputs,
  gate_of_itself,
  gated_layer,
  gelu_layer,
  held_layer,
  hidden_layer,
  layer_by_matvec,
  mean_field,
  normalized,
  normalized_layer,
  planar_flow,
  residual,
  scale_and_mixed_shift,
  scale_and_shift,
  second_half,
  shrunk_layer,
  silu_gate,
  silu_layer,
  split_gate,
  attention,
  log_softmax_op,
  softmax,
  softmax_op,
  two_softmax_ops,
  transposed_layer,
  two_layers_of_one,
  two_means,
]


def state(*sample_shape, dtype=tf.float64):
  return tf.constant(RNG.uniform(0.2, 1.5, (*sample_shape, N)), dtype)


def dense(fn, x):
  """The diagonal of the whole Jacobian, sample by sample."""
  return jacobian_by_copies(fn, x)


def diagonal(x, fn, sample_shape=None, **kwargs):
  sample_shape = x.shape[:-1] if sample_shape is None else sample_shape
  _, diag = tfp_diag.diag_jacobian(
    x, fn=fn, sample_shape=sample_shape, **kwargs
  )
  return diag[0]


@pytest.fixture(name='term_calls')
def fixture_term_calls(monkeypatch):
  """Counts the diagonals that come from terms."""
  counter = types.SimpleNamespace(count=0)
  own = JacobianTerms.diagonal

  def counted(*args):
    result = own(*args)
    counter.count += 1
    return result

  monkeypatch.setattr(JacobianTerms, 'diagonal', counted)
  return counter


# Every third one: all of them run in graphs, where nothing is probed.
@pytest.mark.parametrize('fn', FUNCTIONS[::3])
def test_agrees_with_the_dense_jacobian(fn, term_calls):
  x = state(24)
  np.testing.assert_allclose(
    diagonal(x, fn), dense(fn, x), rtol=1e-9, atol=1e-12
  )
  assert term_calls.count == 1


# Every other one is compiled.
@pytest.mark.parametrize(
  'fn, jit_compile', [(fn, k % 2 == 0) for k, fn in enumerate(FUNCTIONS)]
)
def test_in_graphs(fn, jit_compile, term_calls):
  x = state(24, dtype=tf.float32)
  run = tf.function(lambda x: diagonal(x, single(fn)), jit_compile=jit_compile)
  expected = dense(fn, tf.cast(x, tf.float64))
  np.testing.assert_allclose(run(x), expected, rtol=2e-4, atol=2e-5)
  assert term_calls.count == 1


def single(fn):
  """The function in float64, of a state in float32."""
  return lambda x: tf.cast(fn(tf.cast(x, tf.float64)), tf.float32)


@pytest.mark.parametrize(
  'fn, num_passes',
  [
    # One color is left; a row and a column for each element that is held.
    (softmax, 3),
    (softmax_op, 3),
    (two_softmax_ops, 5),
    (normalized, 5),
    (two_means, 5),
    # Both matrices take one pass, as there are samples enough.
    (hidden_layer, 3),
    (added_up, 3),
    (gated_layer, 4),
    (split_gate, 4),
    (scale_and_shift, 4),
    (scale_and_mixed_shift, 4),
    (affine_and_hidden, 7),
    (layer_by_matvec, 3),
    (normalized_layer, 7),
    (second_half, 3),
    (cumulative_exponentials, 3),
  ],
)
def test_number_of_passes(fn, num_passes):
  x = state(32)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [32])
  assert plan.num_passes == num_passes
  assert f'{num_passes} passes instead of 20' in str(plan)
  assert 'The Jacobian is cut' in str(plan)


@pytest.mark.parametrize(
  'fn, sample_shape',
  [
    (softmax, ()),
    (two_means, (1,)),
    (two_means, (2, 3)),
    (transposed_layer, ()),
    (transposed_layer, (2, 3)),
    (planar_flow, (50,)),
  ],
)
def test_any_sample_shape(fn, sample_shape):
  x = state(*sample_shape)
  np.testing.assert_allclose(
    diagonal(x, fn), dense(fn, x), rtol=1e-9, atol=1e-12
  )


def reshaped_normalizer(x):
  """The graph of an open batch does not know the shape of the sum."""
  total = tf.reduce_sum(tf.exp(x), -1, keepdims=True)
  return tf.exp(x) / tf.reshape(total, [tf.shape(x)[0], -1])


@pytest.mark.parametrize(
  'fn',
  [
    activated,
    hidden_layer,
    normalized,
    reshaped_normalizer,
    second_half,
    shrunk_layer,
    silu_gate,
  ],
)
def test_batch_of_unknown_size(fn, term_calls):
  run = tf.function(
    lambda x: diagonal(x, fn, [None]),
    input_signature=[tf.TensorSpec([None, N], tf.float64)],
  )
  for batch in (1, 7, 33):
    x = state(batch)
    np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9, atol=1e-12)
  assert term_calls.count == 1


@pytest.mark.parametrize('fn', [normalized, hidden_layer])
def test_of_no_sample(fn):
  plan = tfp_diag.plan_diag_jacobian(fn, state(24), [24])
  assert diagonal(state(0), fn, plan=plan).shape == [0, N]


@pytest.mark.parametrize(
  'kind, in_graph',
  [(tf.constant, True), (tf.Variable, False), (tf.Variable, True)],
)
def test_what_the_function_closes_over(kind, in_graph, term_calls):
  inner, outer = kind(INNER), kind(OUTER)

  def fn(x):
    return tf.matmul(tf.tanh(tf.matmul(x, inner)), outer)

  x = state(24)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [24])

  def run(x):
    return diagonal(x, fn, plan=plan)

  run = tf.function(run) if in_graph else run
  term_calls.count = 0
  np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9)
  assert term_calls.count == 1


def test_several_parts():
  """What is held depends on both parts, and both depend on it."""

  def of_parts(a, b):
    total = tf.reduce_sum(tf.exp(a), -1) + tf.reduce_sum(b**2, [-1, -2])
    return [
      a / total[:, tf.newaxis],
      tf.sin(b * total[:, tf.newaxis, tf.newaxis]),
    ]

  a, b = state(4), tf.reshape(state(4), [4, 4, 5])
  plan = tfp_diag.plan_diag_jacobian(of_parts, [a, b], [4])
  assert plan.num_passes == 3
  _, diag = tfp_diag.diag_jacobian(
    [a, b], fn=of_parts, sample_shape=[4], plan=plan
  )
  _, loop = tfp_diag.diag_jacobian(
    [a, b], fn=of_parts, sample_shape=[4], schedule='while_loop'
  )
  for found, expected in zip(diag, loop):
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def layer_of(a, b):
  return hidden_layer(tf.concat([a, b], -1))


def halves_of_a_layer(a, b):
  return tf.split(layer_of(a, b), 2, -1)


def halves_the_other_way_round(a, b):
  y = layer_of(a, b)
  return [y[:, 10:] * b, tf.sin(y[:, :10]) + a]


def one_value_for_both(a, b):
  u = layer_of(a, b)[:, :10]
  return [u + a, u * b]


def by_element_and_by_matrix(a, b):
  u = layer_of(a, b)[:, :10]
  return [u * a, tf.sin(u @ constant(SQUARE[:10, :10])) * b]


def layer_of_one_part(a, b):
  hidden = tf.tanh(a @ constant(INNER[:10])) @ constant(OUTER)
  return [hidden[:, :10], b**2]


def gate_by_the_other_part(a, b):
  hidden = tf.tanh(a @ constant(INNER[:10])) * (b @ constant(INNER[10:]))
  return [
    hidden @ constant(OUTER[:, :10]),
    b + hidden @ constant(OUTER[:, 10:]),
  ]


def one_part_through_the_other(a, b):
  y = layer_of(a, b)[:, :10] + a
  return [y, tf.sin(y @ constant(SQUARE[:10, :10])) * b]


def twice_the_same(a, b):
  y = layer_of(a, b)[:, :10]
  return [y, y]


def with_a_constant_column(x):
  """The time of a flow, beside the state."""
  time = tf.fill([tf.shape(x)[0], 1], constant(0.3))
  weights = tf.concat([constant(INNER), constant(INNER[:1])], 0)
  return tf.tanh(tf.concat([x, time], -1) @ weights) @ constant(OUTER)


def layer_behind_elements(x):
  return x + hidden_layer(tf.sin(x) * x)


def layer_behind_a_root_mean_square(x):
  scale = tf.math.rsqrt(tf.reduce_mean(x**2, -1, keepdims=True) + 0.1)
  return x + hidden_layer(x * scale)


def layer_behind_a_layer_norm(x):
  return x + hidden_layer(1.5 * normalized(x) + 0.1)


def layer_behind_a_softmax(x):
  return x * hidden_layer(softmax_op(x))


def layer_of_two_starts(x):
  weights = tf.concat([constant(INNER), constant(GATE)], 0)
  return tf.tanh(tf.concat([x, x**2], -1) @ weights) @ constant(OUTER)


def two_layers_of_other_starts(x):
  first = tf.tanh(tf.sin(x) @ constant(INNER)) @ constant(OUTER)
  return first + tf.exp(tf.cos(x) @ constant(GATE)) @ constant(OUTER) * x


def layer_of_a_start_itself(x):
  """One base is what the other one starts from, and x is a third."""
  start = x * tf.math.rsqrt(0.1 + tf.reduce_sum(x**2, -1, keepdims=True))
  return (tf.tanh(start @ SQUARE) * start * x) @ SQUARE


def scaled_around_the_layer(x):
  """By another number for each sample."""
  scale = tf.exp(tf.stop_gradient(x[:, :1]))
  return scale * x + hidden_layer(scale * x) / scale


@pytest.mark.parametrize(
  'fn, num_passes',
  [
    (with_a_constant_column, 3),
    (layer_behind_elements, 3),
    (layer_behind_a_root_mean_square, 5),
    (layer_behind_a_layer_norm, 7),
    (layer_behind_a_softmax, 5),
    (layer_of_two_starts, 4),
    (two_layers_of_other_starts, 5),
    (layer_of_a_start_itself, 10),
    (scaled_around_the_layer, 3),
  ],
)
def test_layers_that_do_not_start_at_the_state(fn, num_passes, term_calls):
  spec = tf.TensorSpec([None, N], tf.float64)
  plan = tfp_diag.plan_diag_jacobian(fn, spec, [None])
  assert plan.num_passes == num_passes
  run = tf.function(
    lambda x: plan(x)[1][0], autograph=False, input_signature=[spec]
  )
  term_calls.count = 0
  for batch in (1, 24):
    x = state(batch)
    np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9, atol=1e-12)
  assert term_calls.count > 0


def test_layers_of_parts_that_do_not_start_at_these():
  def fn(a, b):
    y = hidden_layer(tf.concat([tf.sin(a), b**2], -1))
    return [y[:, :10] + b, y[:, 10:] * b]

  x = state(32)
  parts = [x[:, :10], x[:, 10:]]
  plan = tfp_diag.plan_diag_jacobian(fn, parts, [32])
  assert plan.num_passes == 5
  diag = tf.function(lambda *parts: plan(list(parts))[1])(*parts)
  whole = dense(lambda x: tf.concat(fn(x[:, :10], x[:, 10:]), -1), x)
  np.testing.assert_allclose(tf.concat(diag, -1), whole, rtol=1e-9, atol=1e-12)


# Open batches and known ones in turn.
@pytest.mark.parametrize(
  'fn, batch, num_passes',
  [
    (halves_of_a_layer, 32, 4),
    (halves_the_other_way_round, None, 4),
    (one_value_for_both, 32, 3),
    (by_element_and_by_matrix, None, 4),
    (layer_of_one_part, 32, 3),
    (gate_by_the_other_part, None, 5),
    # Where a result is used on the way, or twice, only what makes it another
    # Tensor, as for an open batch, shows where it goes.
    (one_part_through_the_other, 32, 20),
    (one_part_through_the_other, None, 4),
    (twice_the_same, 32, 20),
    (twice_the_same, None, 4),
  ],
)
def test_layers_between_several_parts(fn, batch, num_passes):
  x = state(32)
  parts = [x[:, :10], x[:, 10:]]
  specs = [tf.TensorSpec([batch, 10], tf.float64)] * 2
  plan = tfp_diag.plan_diag_jacobian(fn, specs, [batch])
  assert plan.num_passes == num_passes

  @tf.function(input_signature=specs)
  def diagonals(*parts):
    return tfp_diag.diag_jacobian(
      list(parts), fn=fn, sample_shape=[batch], plan=plan, validate_args=True
    )[1]

  diag = diagonals(*parts)
  whole = dense(lambda x: tf.concat(fn(x[:, :10], x[:, 10:]), -1), x)
  np.testing.assert_allclose(tf.concat(diag, -1), whole, rtol=1e-9, atol=1e-12)


def scaled_by_sample(x):
  """A matrix that differs between the samples, made from their number."""
  scale = tf.linspace(constant(1.0), 2.0, tf.shape(x)[0])[:, tf.newaxis]
  return hidden_layer(scale * x)


def mixed_by_sample(x):
  scale = tf.linspace(constant(1.0), 2.0, tf.shape(x)[0])[:, tf.newaxis]
  return tf.matmul(scale * tf.tanh(tf.matmul(x, constant(INNER))), OUTER)


def samples_last(x):
  """A value of two elements behind which the samples are."""
  both = tf.reduce_mean(tf.stack([x, x**2]), -1)
  return tf.sin(x * tf.reduce_sum(both, 0)[:, tf.newaxis] + both[0, :, None])


@pytest.mark.parametrize(
  'fn', [scaled_by_sample, mixed_by_sample, samples_last]
)
@pytest.mark.parametrize('batch', [2, 24])
def test_samples_that_differ_in_more_than_their_state(fn, batch):
  x = state(batch)
  np.testing.assert_allclose(
    diagonal(x, fn), jacobian_diagonal(fn, x), rtol=1e-9, atol=1e-12
  )


def layer_beside_a_sum(x):
  """What a hidden layer goes to is added to what follows from it."""
  hidden = tf.tanh(tf.matmul(x, constant(INNER)))
  return tf.tanh(tf.matmul(hidden, OUTER)) + tf.matmul(hidden, OUTER[:, :1])


def layer_into_itself(x):
  hidden = tf.tanh(tf.matmul(x, constant(INNER)))
  outer = tf.tanh(tf.matmul(hidden, OUTER))
  return tf.tanh(outer + tf.matmul(hidden, OUTER[:, :1]))


def mean_of_a_layer(x):
  hidden = tf.tanh(tf.matmul(x, constant(INNER)))
  mean = tf.reduce_mean(hidden, -1, keepdims=True)
  return tf.tanh(tf.matmul(hidden, OUTER)) + mean


@pytest.mark.parametrize(
  'fn', [layer_beside_a_sum, layer_into_itself, mean_of_a_layer]
)
def test_a_layer_that_reaches_the_result_in_two_ways(fn):
  x = state(24)
  np.testing.assert_allclose(
    diagonal(x, fn), dense(fn, x), rtol=1e-9, atol=1e-12
  )


@pytest.mark.parametrize(
  'fn',
  [
    lambda x: tf.matmul(x, constant(SQUARE)),
    lambda x: tf.linalg.matvec(constant(SQUARE), 2.0 * x),
  ],
)
def test_an_affine_result_is_not_held(fn):
  x = state(24)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [24])
  np.testing.assert_allclose(
    diagonal(x, fn, plan=plan), dense(fn, x), rtol=1e-9, atol=1e-12
  )


def tensordot_layer(x):
  """All sample axes are one while it multiplies."""
  hidden = tf.tanh(tf.tensordot(x, constant(INNER), 1))
  return tf.tensordot(hidden, constant(OUTER), 1)


@pytest.mark.parametrize('fn, axis', [(hidden_layer, 0), (tensordot_layer, 1)])
def test_several_sample_axes(fn, axis, term_calls):
  def scaled(x):
    scale = tf.linspace(constant(1.0), 2.0, tf.shape(x)[axis])
    return fn(x * tf.reshape(scale, [-1, 1] if axis else [-1, 1, 1]))

  x = state(8, 4)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [8, 4])
  assert plan.num_passes == 3
  term_calls.count = 0
  np.testing.assert_allclose(
    diagonal(x, fn, [8, 4], plan=plan),
    jacobian_diagonal(fn, x),
    rtol=1e-9,
    atol=1e-12,
  )
  assert term_calls.count == 1
  # The factor is that of where the layer starts, and not of the matrix.
  np.testing.assert_allclose(
    diagonal(x, scaled, [8, 4]),
    jacobian_diagonal(scaled, x),
    rtol=1e-9,
    atol=1e-12,
  )
  assert term_calls.count == 2


def deep(x):
  for _ in range(3):
    x = tf.tanh(tf.matmul(x, constant(SQUARE)))
  return x


def two_at_a_time(x):
  """Too many elements would have to be held."""
  means = tf.reduce_mean(tf.reshape(x**2, [-1, N // 2, 2]), -1)
  hidden = tf.tanh(tf.matmul(tf.sin(tf.matmul(means, WIDE_MEANS)), SQUARE))
  return tf.sin(tf.matmul(hidden, SQUARE))


@pytest.mark.parametrize('fn', [deep, two_at_a_time])
def test_takes_the_passes_where_no_cut_pays(fn, term_calls):
  x = state(5)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [5])
  assert not plan.uses_terms and plan.num_passes == N
  np.testing.assert_allclose(diagonal(x, fn), dense(fn, x), rtol=1e-9)
  assert term_calls.count == 0


def test_sparse_functions_are_not_cut():
  plan = tfp_diag.plan_diag_jacobian(
    lambda x: x + tf.roll(x, 1, -1) * tf.roll(x, -1, -1), state(4), [4]
  )
  assert (plan.how, plan.num_passes) == ('on returning paths', 1)


def test_can_be_differentiated():
  x = state(24)
  gradients = []
  for schedule in ('auto', 'while_loop'):
    with tf.GradientTape() as tape:
      tape.watch(x)
      trace = tf.reduce_sum(diagonal(x, activated, schedule=schedule) ** 2)
    gradients.append(tape.gradient(trace, x))
  np.testing.assert_allclose(*gradients, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize('fn', [normalized, gated_layer, softmax_op])
def test_a_plan_is_kept_in_a_file(fn, tmp_path, term_calls):
  x = state(24)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [24])
  plan.save(tmp_path / 'plan.npz')
  loaded = tfp_diag.load_plan(tmp_path / 'plan.npz', fn=fn)
  assert str(loaded) == str(plan)
  term_calls.count = 0
  np.testing.assert_allclose(loaded(x)[1][0], dense(fn, x), rtol=1e-9)
  assert term_calls.count == 1


def test_a_plan_for_another_function(term_calls):
  x = state(24)
  plan = tfp_diag.plan_diag_jacobian(softmax, x, [24])
  term_calls.count = 0
  diagonal(x, hidden_layer, plan=plan, schedule='pfor')
  assert term_calls.count == 0
  # The terms are those of the function at hand.
  diag = diagonal(x, hidden_layer, plan=plan)
  assert term_calls.count == 1
  np.testing.assert_allclose(diag, dense(hidden_layer, x), rtol=1e-9)
  with pytest.warns(
    RuntimeWarning, match='3 passes, around cuts.*; 20 run instead'
  ):
    diag = diagonal(x, deep, plan=plan)
  assert term_calls.count == 1
  np.testing.assert_allclose(diag, dense(deep, x), rtol=1e-9)


def test_a_plan_is_followed_where_passes_are_cheaper(term_calls, monkeypatch):
  plan = tfp_diag.plan_diag_jacobian(hidden_layer, state(24), [24])
  x = state(2)
  monkeypatch.setattr(proposals, '_SIDE', 100.0)
  assert not tfp_diag.plan_diag_jacobian(hidden_layer, x, [2]).uses_terms
  term_calls.count = 0
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    diag = diagonal(x, hidden_layer, plan=plan)
  assert term_calls.count == 1
  np.testing.assert_allclose(diag, dense(hidden_layer, x), rtol=1e-9)


@pytest.mark.parametrize('fn', [softmax, hidden_layer])
def test_validate_args_compares_with_the_passes(fn, term_calls):
  x = state(24)
  diag = diagonal(x, fn, validate_args=True)
  np.testing.assert_allclose(diag, dense(fn, x), rtol=1e-9)
  assert term_calls.count == 1


def test_a_cut_is_made_where_it_fits_the_function_at_hand(term_calls):
  """The same ops, but the first matrix differs between samples."""
  x = state(24)

  def scaled(scale):
    matrices = constant(INNER) * constant(scale)

    def fn(x):
      hidden = tf.tanh(tf.matmul(x[:, tf.newaxis], matrices)[:, 0])
      return tf.matmul(hidden, OUTER)

    return fn

  plan = tfp_diag.plan_diag_jacobian(scaled(np.ones([1, 1, 1])), x, [24])
  other = scaled(np.linspace(1.0, 2.0, 24)[:, np.newaxis, np.newaxis])
  term_calls.count = 0
  with pytest.warns(RuntimeWarning, match='around cuts, which cannot be done'):
    diag = diagonal(x, other, plan=plan, validate_args=True)
  assert term_calls.count == 0
  np.testing.assert_allclose(diag, jacobian_diagonal(other, x), rtol=1e-9)


def test_an_op_that_transposes_to_itself(term_calls):
  @tf.custom_gradient
  def rounded(x):
    return tf.round(x), lambda g: g * x

  def fn(x):
    return x * tf.reduce_mean(rounded(3.0 * x), -1, keepdims=True)

  x = state(4)
  np.testing.assert_allclose(diagonal(x, fn), dense(fn, x), rtol=1e-9)
  assert term_calls.count == 1


def test_a_gradient_that_cannot_be_transposed_takes_the_passes(term_calls):
  @tf.custom_gradient
  def rounded(x):
    return tf.round(x), lambda g: tf.stop_gradient(g) * x

  def fn(x):
    mean = tf.reduce_mean(x, -1, keepdims=True)
    return rounded(3.0 * x * mean)

  x = state(4)
  plan = tfp_diag.plan_diag_jacobian(fn, x, [4])
  assert 'not seen to be linear' in str(plan)
  np.testing.assert_allclose(diagonal(x, fn), dense(fn, x), rtol=1e-9)
  assert not term_calls.count


def test_an_op_that_cannot_be_repeated():
  """Behind a softmax that would have to be written out."""
  calls = []

  def fn(x):
    def once(p):
      calls.append(p)
      return p

    weight = tf.py_function(once, [tf.nn.softmax(x)], tf.float64)
    return x * tf.stop_gradient(tf.ensure_shape(weight, x.shape))

  x = state(4)
  plan = tfp_diag.plan_diag_jacobian(softmax_op, x, [4])
  calls.clear()
  diag = diagonal(x, fn, plan=plan)
  np.testing.assert_allclose(diag, tf.nn.softmax(x), rtol=1e-12)
  assert len(calls) == 1


def layers(seed):
  """A network of two layers, some of whose matrices are dense, some banded."""
  rng = np.random.default_rng(seed)
  distance = np.abs(np.subtract.outer(np.arange(24), np.arange(24)))

  def matrix():
    entries = rng.normal(size=distance.shape) / 3.0
    return tf.constant(entries * (distance <= rng.choice([0, 1, 24, 24])))

  def activation():
    return [tf.tanh, tf.sin, tf.exp, tf.sigmoid, tf.square][rng.integers(5)]

  matrices = [matrix() for _ in range(5)]
  activations = [activation() for _ in range(3)]
  first, second, last, more = rng.integers(6, size=4)

  def times(k, x):
    return tf.linalg.matvec(matrices[k], x)

  def fn(x):
    a = activations[0](x if first < 2 else times(0, x))
    b = activations[1]([x, times(1, x), times(1, x), a, a, a][second])
    b = b * a if second % 2 else b
    y = times(2, a) + times(3, b)
    if last < 4:
      y = y * activations[2](x) if last < 2 else activations[2](y)
    return y + times(4, a * b) - x if more < 2 else y - x

  return fn


# In some of these, what is dropped as sparse leads past what stays.
@pytest.mark.parametrize('seed', range(16))
def test_layers_that_are_dense_and_banded(seed):
  """In a graph, where nothing is compared with a pass."""
  fn = layers(seed)
  x = constant(np.random.default_rng(seed).normal(size=[32, 24]) / 2.0)
  found = tf.function(
    lambda x: tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[32])[1][0]
  )(x)
  expected = jacobian_by_copies(fn, x)
  np.testing.assert_allclose(
    found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max()
  )


@pytest.mark.parametrize('batch', [1, 2, 4])
def test_matrices_are_cheaper_than_passes_for_few_samples_too(batch):
  rng = np.random.default_rng(5)
  weights = rng.normal(size=[N, 2 * N]), rng.normal(size=[2 * N, N])

  def fn(x):
    return tf.tanh(x @ weights[0]) @ weights[1]

  x = tf.constant(rng.normal(size=[batch, N]))
  plan = tfp_diag.plan_diag_jacobian(fn, x, [batch])
  assert [way.name for way in plan.ways] == ['around cuts', 'passes']
  np.testing.assert_allclose(plan(x)[1][0], jacobian_diagonal(fn, x), 1e-10)


def of_each_sample(x):
  """A layer as `tf.vectorized_map` writes it: samples are a second axis."""

  def of_one(x):
    hidden = tf.linalg.matvec(constant(INNER), x, transpose_a=True)
    return tf.linalg.matvec(constant(OUTER), tf.tanh(hidden), transpose_a=True)

  return tf.vectorized_map(of_one, x)


def scores_of_each_sample(x):
  """Samples are a second axis, and of some counts nothing depends on them."""
  design, counts = constant(INNER), constant([0.0, 2.0, 1.0, 0.0] * 7)

  def score(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      rates = 0.1 * tf.linalg.matvec(design, x, transpose_a=True)
      value = tf.reduce_sum(counts * (rates + tf.sin(rates)))
    return tape.gradient(value, x)

  return tf.vectorized_map(score, x)


def of_numbered_rows(x):
  """What counts the samples chooses other factors for each of them."""
  factors = tf.gather(constant(SQUARE), tf.range(tf.shape(x)[0]))
  return tf.tanh(x * factors @ constant(INNER)) @ constant(OUTER)


def of_numbered_columns(x):
  """And another coordinate."""
  places = tf.stack([tf.range(tf.shape(x)[0])] * 2, axis=1)
  own = tf.gather_nd(x, places)[:, tf.newaxis]
  return tf.tanh(x * own @ constant(INNER)) @ constant(OUTER)


@pytest.mark.parametrize(
  ('fn', 'most'),
  [
    (of_each_sample, 3),
    (scores_of_each_sample, 3),
    (of_numbered_rows, 3),
    (of_numbered_columns, N),
  ],
)
def test_ops_that_count_samples(fn, most):
  spec = tf.TensorSpec([None, N], tf.float64)

  @tf.function(input_signature=[spec])
  def in_a_graph(x):
    samples = tf.shape(x)[:1]
    return tfp_diag.diag_jacobian(x, fn=fn, sample_shape=samples)[1][0]

  if most < N:
    plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[None])
    assert plan.num_passes == most
  for number in (1, 6):
    x = tf.constant(RNG.standard_normal([number, N]))
    expected = jacobian_diagonal(fn, x)
    np.testing.assert_allclose(in_a_graph(x), expected, rtol=1e-9, atol=1e-12)


def test_rows_and_columns_in_a_loop():
  """The products of many rows and columns keep the shape that it knows."""
  inner, outer = RNG.normal(size=(64, 10)) / 8.0, RNG.normal(size=(10, 64))

  def fn(x):
    rates = tf.exp(
      tf.matmul(x[:, tf.newaxis], tf.broadcast_to(inner, [64, 10]))
    )
    held = tf.nn.silu(rates[:, 0])
    held /= 1.0 + tf.reduce_sum(held, -1, keepdims=True)
    sums = tf.matmul(held[:, tf.newaxis], tf.broadcast_to(outer, [10, 64]))
    return x * tf.sin(sums[:, 0] * x)

  @tf.function
  def in_a_graph(x):
    return diagonal(x, fn, [16], parallel_iterations=1)

  x = tf.constant(RNG.standard_normal([16, 64]))
  np.testing.assert_allclose(in_a_graph(x), jacobian_diagonal(fn, x), 1e-9)
