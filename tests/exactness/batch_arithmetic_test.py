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
"""The batch size is a number that a function may compute with.

What holds on two samples, or on an unknown number, need not hold on five.
"""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow_probability.python.internal import prefer_static

import tfp_diag
from tests.exactness.ways import (
  WAYS,
  check_jacobian,
  copy_of,
  draw,
  hessian,
  jacobian,
  same,
)
from tests.oracles import hessian_diagonal, jacobian_diagonal
from tfp_diag.sparsity import SampleMixingError

tfd = tfp.distributions

N = 18
B = 5


def batch_size(x):
  return tf.cast(tf.shape(x)[0], x.dtype)


def neighbors(x):
  return tf.sin(x) * tf.roll(x, 1, axis=-1)


def right_or_refused(way, diagonal, oracle, fn, x):
  """A plan for an unknown number of samples may say that it cannot be one."""
  try:
    got = diagonal(way, fn, x)
  except ValueError as e:
    assert way == 'open_plan', e
    assert re.search('plan|number of samples', str(e)), e
    return
  same(got, oracle(fn, copy_of(x)))


def all_right_or_refused(ways, diagonal, oracle, fn, x):
  """The same in several ways, of one matrix."""
  want = oracle(fn, copy_of(x))
  for way in ways:
    right_or_refused(way, diagonal, lambda *_: want, fn, x)


# Of each sample alone, with factors that are made of the batch size.


def sum_over_ones(x):
  ones = tf.ones(tf.shape(x)[:1], x.dtype)
  return x**3 * tf.reduce_sum(ones) + neighbors(x)


def weights_by_place(x):
  weights = tf.linspace(tf.constant(0.5, x.dtype), 2.0, tf.shape(x)[0])
  return tf.exp(x) * weights[:, tf.newaxis]


def static_size(x):
  size = prefer_static.cast(prefer_static.shape(x)[0], x.dtype)
  return tf.math.log1p(tf.square(x)) * size + neighbors(x)


def others_of_later_samples(x):
  number = tf.range(tf.shape(x)[0])[:, tf.newaxis]
  return tf.where(number < 2, tf.sin(x), tf.square(tf.cumsum(x, axis=1)))


def first_two_apart(x):
  later = x[2:] * tf.reduce_sum(tf.square(x[2:]), axis=1, keepdims=True)
  return tf.concat([3.0 * x[:2], later], axis=0)


def structure_by_size(x):
  """More neighbors in a larger batch."""
  places = tf.range(N)[tf.newaxis, :]
  band = tf.cast(places - tf.transpose(places) < tf.shape(x)[0] - 1, x.dtype)
  return tf.square(x @ band) + x


def number_of_elements(x):
  total = tf.cast(tf.size(x), x.dtype)
  return tf.square(x) * total / N + neighbors(x)


def last_sample_otherwise(x):
  is_last = tf.range(tf.shape(x)[0]) == tf.shape(x)[0] - 1
  return tf.where(is_last[:, tf.newaxis], neighbors(x) ** 2, tf.exp(x))


def alternating(x):
  even = tf.range(tf.shape(x)[0]) % 3 < 2
  other = x * tf.reduce_mean(x, axis=1, keepdims=True)
  return tf.where(even[:, tf.newaxis], tf.tanh(x), other)


FACTORS = (
  sum_over_ones,
  weights_by_place,
  static_size,
  others_of_later_samples,
  first_two_apart,
  structure_by_size,
  number_of_elements,
  last_sample_otherwise,
  alternating,
)


@pytest.mark.parametrize('fn', FACTORS, ids=lambda f: f.__name__)
def test_what_is_computed_from_the_batch_size(fn):
  right_or_refused('open_plan', jacobian, jacobian_diagonal, fn, draw(B, N))


@pytest.mark.parametrize(
  'way, fn',
  [
    ('eager', static_size),
    ('function', others_of_later_samples),
    ('plan', others_of_later_samples),
    ('eager', first_two_apart),
    ('xla', first_two_apart),
    ('function', structure_by_size),
    ('xla', structure_by_size),
    ('function', last_sample_otherwise),
    ('eager', alternating),
  ],
)
def test_the_same_compiled_and_planned(way, fn):
  check_jacobian(way, fn, draw(B, N, seed=1))


@pytest.mark.parametrize('fn', FACTORS[1:6], ids=lambda f: f.__name__)
def test_one_open_plan_for_several_sizes(fn):
  spec = tf.TensorSpec([None, N], tf.float64)
  try:
    plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[None])
  except ValueError as e:
    assert 'number of samples' in str(e)
    return
  for size in (2, 6):
    x = draw(size, N, seed=size)
    try:
      got = plan(x)[1][0]
    except ValueError as e:
      # A batch that has more structure than the plan.
      assert 'plan' in str(e)
      continue
    same(got, jacobian_diagonal(fn, copy_of(x)))


def over_a_batch(fn):
  """A log density of each sample."""

  def log_prob(x):
    return tf.reduce_sum(fn(x), axis=-1)

  return log_prob


def quadratic_by_size(x):
  """A quadratic form, smaller in a larger batch."""
  return tf.square(x @ BAND) / batch_size(x)


def quadratic_by_place(x):
  number = tf.cumsum(tf.ones_like(x[:, :1]), axis=0)
  return tf.square(x @ BAND) * number


def quadratic_of_later_samples(x):
  late = tf.cast(tf.range(tf.shape(x)[0]) > 3, x.dtype)[:, tf.newaxis]
  return tf.square(x @ BAND) + late * tf.square(tf.cumsum(x, axis=1))


def regression_by_size(x):
  return tf.nn.softplus(x @ BAND * tf.sqrt(batch_size(x)))


def temperature_by_size(x):
  return tf.reduce_logsumexp(x * batch_size(x), -1, keepdims=True)


BAND = tf.constant(np.random.default_rng(3).normal(size=[N, N]))
DENSITIES = (
  quadratic_by_size,
  quadratic_by_place,
  quadratic_of_later_samples,
  regression_by_size,
  temperature_by_size,
)


@pytest.mark.parametrize('fn', DENSITIES, ids=lambda f: f.__name__)
def test_hessians_with_factors_of_the_batch_size(fn):
  x, ways = draw(B, N, seed=2), ('function', 'open_plan')
  all_right_or_refused(ways, hessian, hessian_diagonal, over_a_batch(fn), x)


@pytest.mark.parametrize('fn', DENSITIES[:3], ids=lambda f: f.__name__)
def test_many_samples_of_a_quadratic_form(fn):
  """So many that a few of them might speak for all."""
  x = draw(60, 4, seed=3)

  def small(x):
    padded = tf.pad(x, [[0, 0], [0, N - 4]])
    return tf.reduce_sum(fn(padded), axis=-1)

  diag = hessian('eager', small, x)
  # No sample sees another one, so a diagonal is a sum over a few columns.
  want = np.empty(x.shape)
  for i in range(4):
    with tf.GradientTape() as outer:
      outer.watch(x)
      with tf.GradientTape() as inner:
        inner.watch(x)
        value = small(x)
      column = inner.gradient(value, x)[:, i]
    want[:, i] = outer.gradient(column, x)[:, i]
  same(diag, want)


# Python that branches on the size.


def more_than_three(x):
  return neighbors(x) if (x.shape[0] or 0) > 3 else tf.sin(x)


def loop_over_samples(x):
  y = tf.identity(x)
  for i in range(x.shape[0] or 1):
    y += tf.roll(tf.sin(x), i, axis=1)
  return y


def exactly_two(x):
  return tf.square(x) if x.shape[0] == 2 else tf.cumsum(tf.exp(x), axis=1)


def unknown_size(x):
  return tf.sin(x) if x.shape[0] is None else x @ BAND


def unstacked(x):
  """Samples one by one, each with an exponent of its own."""
  if x.shape[0] is None:
    return tf.sin(x)
  rows = [x[i] ** (i + 2) * x[i, 0] for i in range(x.shape[0])]
  return tf.stack(rows)


BRANCHES = (
  more_than_three,
  loop_over_samples,
  exactly_two,
  unknown_size,
  unstacked,
)


@pytest.mark.parametrize('fn', BRANCHES, ids=lambda f: f.__name__)
def test_python_that_branches_on_the_size(fn):
  x, ways = draw(B, N, seed=4), ('function', 'open_plan')
  all_right_or_refused(ways, jacobian, jacobian_diagonal, fn, x)


@pytest.mark.parametrize('fn', BRANCHES[:3], ids=lambda f: f.__name__)
def test_hessians_of_python_that_branches(fn):
  x = draw(B, N, seed=5)

  def log_prob(x):
    return tf.reduce_sum(fn(x) ** 2, axis=-1)

  want = hessian_diagonal(log_prob, copy_of(x))
  for way in ('plan',) if fn is loop_over_samples else ('eager', 'function'):
    same(hessian(way, log_prob, x), want)


# Of two samples it is of each sample alone, of five it is not.


def rolled_by_two(x):
  return x * tf.roll(x, 2, axis=0)


def two_rows(x):
  rows = tf.cumsum(tf.reshape(x, [2, -1]), axis=1)
  return tf.reshape(rows, tf.shape(x))


def two_apart(x):
  first = tf.concat([x[2:], x[:2]], axis=0)
  return tf.sin(x) * first


def split_in_halves(x):
  half = tf.shape(x)[0] // 2
  left = tf.reduce_sum(tf.square(x[:half]), axis=0, keepdims=True)
  right = tf.reduce_sum(tf.square(x[half:]), axis=0, keepdims=True)
  sizes = [half, tf.shape(x)[0] - half]
  return x * tf.repeat(tf.concat([left, right], 0), sizes, axis=0)


def blocks_of_two_rows(x):
  rows = tf.reshape(x, [tf.shape(x)[0] // 2, 2, N])
  return tf.reshape(rows * rows[:1], tf.shape(x))


COINCIDENCES = (
  rolled_by_two,
  two_rows,
  two_apart,
  split_in_halves,
  blocks_of_two_rows,
)


def refusal(way):
  """Where the number is not known, that may be what is refused."""
  return ValueError if way == 'open_plan' else SampleMixingError


@pytest.mark.parametrize('fn', COINCIDENCES, ids=lambda f: f.__name__)
@pytest.mark.parametrize('way', WAYS)
def test_what_only_two_samples_keep_apart_is_refused(way, fn):
  with pytest.raises(refusal(way)):
    jacobian(way, fn, draw(4, N, seed=6))


@pytest.mark.parametrize('fn', COINCIDENCES[:4], ids=lambda f: f.__name__)
def test_two_samples_are_right(fn):
  x = draw(2, N, seed=7)
  want = jacobian_diagonal(fn, copy_of(x))
  for way in ('function', 'plan'):
    same(jacobian(way, fn, x), want)


@pytest.mark.parametrize('way', ('eager', 'function', 'plan', 'open_plan'))
def test_an_event_of_two_is_not_the_batch(way):
  """`[2, -1]` is `[samples, 2]` of two samples, and mixes five."""

  def fn(x):
    return tf.reshape(tf.cumsum(tf.reshape(x, [2, -1]), axis=1), [-1, 2])

  if way != 'open_plan':
    check_jacobian(way, fn, draw(2, 2, seed=8))
  with pytest.raises(refusal(way)):
    jacobian(way, fn, draw(5, 2, seed=8))


@pytest.mark.parametrize('way', ('eager', 'function'))
def test_as_many_coordinates_as_samples(way):
  """A transposition has the right shape, and the wrong samples."""
  x = draw(N, N, seed=9)
  with pytest.raises(SampleMixingError):
    jacobian(way, lambda x: tf.transpose(x) * x, x)
  check_jacobian(way, lambda x: tf.transpose(tf.transpose(x)) ** 2, x[:6])


# What each sample is given alike: constants that are spread over the batch.

LEFT = (np.arange(N) - 1) % N
THIRD = np.arange(N) % 3 == 0


def tiled_places(x):
  places = tf.tile(tf.constant(LEFT)[tf.newaxis], [tf.shape(x)[0], 1])
  return x**3 - x * tf.gather(x, places, batch_dims=1)


def broadcast_places(x):
  places = tf.broadcast_to(tf.constant(LEFT), tf.shape(x))
  return x**3 - x * tf.gather(x, (places + 1) % N, batch_dims=1)


def tiled_condition(x):
  third = tf.tile(tf.constant(THIRD)[tf.newaxis], [tf.shape(x)[0], 1])
  return tf.where(third, x**3, x * tf.roll(x, 1, -1))


def tiled_factor(x):
  near = tf.constant(np.abs(np.subtract.outer(LEFT, LEFT)) == 1, x.dtype)
  near = tf.tile(near[tf.newaxis], [tf.shape(x)[0], 1, 1])
  products = tf.sin(x[:, :, tf.newaxis] * x[:, tf.newaxis])
  return tf.reduce_sum(near * products, axis=-1)


def vectorized(x):
  return tf.vectorized_map(lambda z: tf.sin(z) * tf.gather(z, LEFT), x)


# Each in the plans, and in one regime.
@pytest.mark.parametrize(
  'fn, regime',
  [
    (tiled_places, 'eager'),
    (broadcast_places, 'xla'),
    (tiled_condition, 'function'),
    (tiled_factor, 'xla'),
    (vectorized, 'function'),
  ],
)
def test_what_is_spread_over_the_batch_is_known_for_any(fn, regime):
  open_plan, plan = (
    tfp_diag.plan_diag_jacobian(
      fn, tf.TensorSpec([size, N], tf.float64), sample_shape=[size]
    )
    for size in (None, 3)
  )
  np.testing.assert_array_equal(
    open_plan.pattern.matrix.toarray(), plan.pattern.matrix.toarray()
  )
  assert open_plan.num_passes == plan.num_passes < N
  x = draw(B, N)
  want = jacobian_diagonal(fn, copy_of(x))
  same(jacobian(regime, fn, x), want)
  same(open_plan(x)[1][0], want)
  same(plan(x[:3])[1][0], want[:3])


# Nothing of the kind, though it looks like it on two samples, or on one.


def check_sizes(fn, sizes):
  """In one graph for all sizes, which is not probed, and some by a plan."""
  spec = tf.TensorSpec([None, N], tf.float64)

  @tf.function(autograph=False, input_signature=[spec])
  def open_function(x):
    return tfp_diag.diag_jacobian(x, fn=fn, sample_shape=[None])[1][0]

  calls = [open_function]
  if fn in IN_PLANS:
    try:
      plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[None])
      calls.append(lambda x: plan(x)[1][0])
    except ValueError as e:
      assert 'number of samples' in str(e)
  for size in sizes:
    x = draw(size, N, seed=size)
    want = jacobian_diagonal(fn, copy_of(x))
    for call in calls:
      same(call(x), want)


def places_by_the_size(x):
  size = tf.shape(x)[0]
  places = tf.tile([5 * size * tf.range(N) % 7], [size, 1])
  return x * tf.gather(x, places, batch_dims=1)


def places_that_change_places(x):
  size = tf.shape(x)[0]
  places = tf.constant([0, 1, 2])[tf.newaxis, :, tf.newaxis]
  places = tf.tile(places, [size, 1, 2 * size])
  places = tf.reshape(places, [2 * size, 3, size])[:size, :, 0]
  return tf.concat([tf.gather(x, places, batch_dims=1) ** 2, x[:, 3:]], 1)


def places_in_another_order(x):
  size = tf.shape(x)[0]
  places = tf.tile(tf.constant([0, 0, 1, 1]), [size])
  places = tf.transpose(tf.reshape(places, [4, size]))
  return tf.concat([tf.gather(x, places, batch_dims=1) ** 2, x[:, 4:]], 1)


def condition_by_the_size(x):
  condition = tf.tile([[tf.sin(batch_size(x)) > 0.0]], [tf.shape(x)[0], N])
  return tf.where(condition, x**2, x * tf.cumsum(x, axis=1))


def the_other_condition(x):
  condition = tf.tile([[tf.sin(batch_size(x)) > 0.0]], [tf.shape(x)[0], N])
  return tf.where(condition, x * tf.cumsum(x, axis=1), x**2)


@tf.function(
  autograph=False,
  input_signature=[tf.TensorSpec([None], tf.bool), tf.TensorSpec([], tf.int32)],
)
def tiled_where_sizes_are_unknown(condition, times):
  return tf.tile(condition, [times])


def samples_last(x, condition):
  """Element j of the condition is not of sample j, and not of coordinate j."""
  size = tf.shape(x)[0]

  def flat(y):
    return tf.reshape(tf.transpose(y), [-1])

  y = tf.where(condition, flat(tf.reverse(x, [1]) * x), flat(x * x))
  return tf.transpose(tf.reshape(y, [tf.shape(x)[1], size]))


def a_condition_of_unknown_size(x):
  condition = tiled_where_sizes_are_unknown(
    tf.constant([k == 3 for k in range(7)]), tf.shape(x)[0]
  )
  return tf.concat([samples_last(x[:, :7], condition), x[:, 7:]], axis=1)


def a_masked_condition(x):
  condition = tf.boolean_mask(
    [k == 3 for k in range(9)], [k < 7 for k in range(9)]
  )
  condition = tf.tile(condition, [tf.shape(x)[0]])
  return tf.concat([samples_last(x[:, :7], condition), x[:, 7:]], axis=1)


def a_condition_from_a_loop(x):
  condition = tf.while_loop(
    lambda k, _: k < 1,
    lambda k, c: (k + 1, tf.concat([c, c[:1]], 0)),
    [0, tf.constant([k == 3 for k in range(6)])],
    shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
  )[1]
  condition = tf.tile(condition, [tf.shape(x)[0]])
  return tf.concat([samples_last(x[:, :7], condition), x[:, 7:]], axis=1)


@pytest.mark.parametrize(
  'fn',
  [
    a_condition_of_unknown_size,
    a_masked_condition,
    a_condition_from_a_loop,
    places_by_the_size,
    places_that_change_places,
    places_in_another_order,
    condition_by_the_size,
    the_other_condition,
  ],
  ids=lambda f: f.__name__,
)
def test_what_only_looks_like_it(fn):
  check_sizes(fn, (2, 4))


# Something else where there is one sample only.


def where_alone(x):
  is_several = tf.shape(x)[0] > 1
  return tf.where(is_several, tf.sin(x), x * tf.roll(x, 1, -1))


def branch_where_alone(x):
  return tf.cond(
    tf.equal(tf.minimum(tf.shape(x)[0], 7), 1),
    lambda: x * tf.cumsum(x, axis=1),
    lambda: tf.tanh(x),
  )


def other_places_where_alone(x):
  few = tf.minimum(tf.shape(x)[0], 2)
  places = (tf.range(N) + few) % N
  return x**3 + x * tf.gather(x, places, axis=1)


def other_axis_where_alone(x):
  rows = tf.reshape(x, [-1, 3, N // 3])
  turned = tf.where(tf.shape(x)[0] == 1, [0, 2, 1], [0, 1, 2])
  rows = tf.reshape(tf.transpose(rows, turned), tf.shape(x))
  return tf.square(x) * rows


def from_three_on(x):
  return tf.where(tf.shape(x)[0] > 2, tf.sin(x), x * tf.roll(x, 1, -1))


def none_where_alone(x):
  """As many differences of neighbors as samples but one."""
  count = tf.shape(x[1:])[0]
  return tf.where(count == 0, x * tf.roll(x, 2, -1), tf.exp(x))


def none_in_a_range(x):
  """A size of what does not depend on x, and is zero for one sample."""
  others = tf.size(tf.range(1, tf.shape(x)[0]))
  count = tf.shape(tf.zeros([others, 2]))[0]
  return tf.where(count < 1, x * tf.roll(x, 2, -1), tf.exp(x))


ALONE = (
  where_alone,
  branch_where_alone,
  other_places_where_alone,
  other_axis_where_alone,
  from_three_on,
  none_where_alone,
  none_in_a_range,
)
IN_PLANS = (
  a_masked_condition,
  places_in_another_order,
  the_other_condition,
  where_alone,
  branch_where_alone,
  none_where_alone,
)


@pytest.mark.parametrize('fn', ALONE, ids=lambda f: f.__name__)
def test_one_sample_alone_may_be_another_function(fn):
  check_sizes(fn, (1, 2, 6))


DESIGN = np.random.default_rng(5).normal(size=[12, N])


def each_by_a_matrix(x):
  """pfor turns the axes around unless there is one sample or one column."""

  def one(x):
    return tf.reduce_sum(tf.math.log_sigmoid(tf.linalg.matvec(DESIGN, x)))

  return tf.vectorized_map(one, x)


def each_by_matrices(x):
  def one(x):
    table = tf.reshape(x, [N // 3, 3])
    logits = tf.constant(DESIGN[:, : N // 3]) @ table
    return tf.reduce_sum(tf.math.softplus(logits))

  return tf.vectorized_map(one, x)


def each_by_tensordot(x):
  def one(x):
    return tf.reduce_sum(tf.exp(0.1 * tf.tensordot(DESIGN, x, [[1], [0]])))

  return tf.vectorized_map(one, x)


def each_of_counts_with_zeros(x):
  """Some terms are known to be zero, of one sample more than of several."""
  counts = tf.constant([0.0, 2.0, 1.0, 0.0] * 3, x.dtype)

  def one(x):
    rates = tf.exp(tf.linalg.matvec(DESIGN, x) / 4.0)
    return tf.reduce_sum(counts * tf.sin(rates) - rates)

  return tf.vectorized_map(one, x)


def auto_batched_labels(x):
  """A joint distribution with observed zeros and ones."""

  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    weights = yield tfd.Sample(tfd.Normal(tf.zeros([], x.dtype), 1.0), N)
    logits = tf.linalg.matvec(DESIGN, weights)
    yield tfd.Independent(tfd.Bernoulli(logits=logits, dtype=x.dtype), 1)

  labels = tf.constant([0.0, 1.0, 1.0] * 4, x.dtype)
  return model.log_prob(x, labels)


@pytest.mark.parametrize(
  'fn, is_planned',
  [
    (each_by_a_matrix, False),
    (each_by_matrices, True),
    (each_by_tensordot, True),
    (each_of_counts_with_zeros, False),
    (auto_batched_labels, True),
  ],
)
def test_vectorized_products_keep_their_structure(
  fn, is_planned, prefers_sweeps
):
  spec = tf.TensorSpec([None, N], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  assert (plan.how, plan.num_passes) == ('squared sweeps', 1)
  in_graph = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2], input_signature=[spec]
  )
  diagonal = (lambda x: plan(x)[2]) if is_planned else in_graph
  for size in (1, 2, 5):
    x = draw(size, N, seed=size)
    same(diagonal(x), hessian_diagonal(fn, copy_of(x)))


def score_of(energy):
  """The gradient of an energy, by a tape of the function's own."""
  return lambda x: tfp.math.value_and_gradient(energy, x)[1]


_IMAGES = tf.constant(np.linspace(0.1, 0.5, 9).reshape(3, 3, 1, 1))
# What their gradients, or they themselves, compute from the shape of a batch
# is the same for each number of samples, but for that number.
FROM_SHAPES = {
  'slices': (
    score_of(lambda x: tf.reduce_sum((x[..., 1:] - x[..., :-1]) ** 4, -1)),
    2,
  ),
  'columns': (
    score_of(lambda x: tf.add_n([tf.sin(x[:, i] ** 3) for i in range(4)])),
    1,
  ),
  'new axes': (
    score_of(lambda x: tf.reduce_sum(tf.sin(x[..., tf.newaxis] ** 2), [1, 2])),
    1,
  ),
  'joined': (
    score_of(lambda x: tf.reduce_sum(tf.concat([x, x**2], -1) ** 3, -1)),
    1,
  ),
  'a slice': (lambda x: tf.slice(x, [0, 0], [tf.shape(x)[0], N]) ** 3, 1),
  'two shapes': (
    lambda x: tf.tile(x[:, :1], [1, tf.shape_n([x, _IMAGES])[0][-1]]) * x,
    1,
  ),
}


@pytest.mark.parametrize('name', FROM_SHAPES)
def test_what_is_computed_from_shapes_costs_no_structure(name):
  fn, num_passes = FROM_SHAPES[name]
  x = draw(B, N)
  plan = tfp_diag.plan_diag_jacobian(
    fn, tf.TensorSpec([None, N], tf.float64), [None]
  )
  assert plan.num_passes == num_passes
  same(plan(x)[1][0], jacobian_diagonal(fn, x))


# Along the axis of the samples a slice does not treat them alike.
@pytest.mark.parametrize(
  'rows, ways',
  [
    (np.s_[1:], ('open_plan', 'xla')),
    (np.s_[:-1], ('function', 'open_plan')),
    (np.s_[-1:], ('open_plan',)),
    (np.s_[::2], ('open_plan', 'plan')),
    (np.s_[0], WAYS),
  ],
  ids=str,
)
def test_slices_of_samples(rows, ways):
  fn = score_of(lambda x: tf.reduce_sum(x[rows] ** 4) + tf.reduce_sum(x**3))
  all_right_or_refused(ways, jacobian, jacobian_diagonal, fn, draw(B, N))


def test_a_filter_whose_size_is_computed_from_a_shape():
  def fn(x):
    [shape] = tf.shape_n([x])
    filters = tf.tile(_IMAGES, [1, 1, shape[-1], 1])
    y = tf.nn.depthwise_conv2d(x, filters, [1] * 4, 'VALID')
    return tf.reduce_sum(tf.sin(y), [1, 2, 3])

  x = draw(2, 5, 5, 1)
  plan = tfp_diag.plan_diag_hessian(fn, tf.TensorSpec([None, 5, 5, 1], x.dtype))
  assert plan.num_passes <= 9
  same(plan(x)[2], hessian_diagonal(fn, x))


# Places in all samples together are made of the number of the sample, and of
# what is computed within it. So are those in the gradients of a sort.


def ranks(x):
  return tf.argsort(x, axis=-1)


def at(x, places):
  return tf.gather(tf.reshape(x, [-1]), places)


def at_ranks(x):
  return at(x, ranks(x) + N * tf.range(tf.shape(x)[0])[:, tf.newaxis])


def test_places_of_a_known_number_of_samples():
  def energy(x):
    return tf.reduce_sum(at_ranks(x) ** 3 * np.arange(1.0, N + 1), axis=-1)

  x = draw(B, N)
  plan = tfp_diag.plan_diag_hessian(energy, tf.TensorSpec(x.shape, x.dtype))
  assert plan.num_passes == 1
  same(plan(x)[2], hessian_diagonal(energy, copy_of(x)))


def largest(x):
  return tf.argmax(x, axis=-1, output_type=tf.int32)


def starts(x):
  return tf.range(tf.shape(x)[0]) * tf.shape(x)[1]


def at_ranks_and_number(x):
  number = tf.range(tf.shape(x)[0])[:, tf.newaxis]
  number = tf.tile(number[..., tf.newaxis], [1, N, 1])
  places = tf.concat([number, ranks(x)[:, :, tf.newaxis]], -1)
  return tf.gather_nd(x, places)


def at_turned_pairs(x):
  pairs = tf.stack([tf.range(tf.shape(x)[0]), largest(x)])
  return tf.gather_nd(x, tf.transpose(pairs))[:, tf.newaxis]


def at_numbers_broadcast(x):
  start = tf.broadcast_to(starts(x)[:, tf.newaxis], tf.shape(x))
  return at(x, tf.reshape(tf.reshape(start, [-1]), tf.shape(x)) + ranks(x))


def into(x, places):
  """Adds each element up in its place of the flat batch."""
  places = tf.reshape(places, [-1])
  flat = tf.reshape(x, [-1])
  found = tf.math.unsorted_segment_sum(flat, places, tf.size(x))
  return tf.reshape(found, tf.shape(x))


def turned(x):
  return np.arange(N)[::-1].astype(np.int32) + starts(x)[:, tf.newaxis]


WITHIN_SAMPLES = {
  'sort': tf.sort,
  'sorted rows': lambda x: tf.reshape(
    tf.sort(tf.reshape(x, [-1, 2, N // 2])), tf.shape(x)
  ),
  'top_k': lambda x: tf.math.top_k(x, 2)[0],
  'gather_nd': lambda x: tf.gather_nd(
    x, ranks(x)[:, :, tf.newaxis], batch_dims=1
  ),
  'the number beside it': at_ranks_and_number,
  'turned pairs': at_turned_pairs,
  'in steps': lambda x: at(
    x,
    tf.argmax(x, 1)[:, tf.newaxis]
    + tf.range(0, tf.size(x, tf.int64), N)[:, tf.newaxis],
  ),
  'broadcast': at_numbers_broadcast,
  'given': lambda x: at(x, turned(x)),
  'segments': lambda x: into(x, turned(x)),
}
# The places are those in a gradient, of a score: a sort, pairs, and places in
# all samples that are given, and added up in.
OF_SCORES = ('sorted rows', 'turned pairs', 'given', 'segments')


@pytest.mark.parametrize('name', WITHIN_SAMPLES)
def test_places_within_each_sample_of_any_number(name):
  def energy(x):
    y = WITHIN_SAMPLES[name](x)
    return tf.reduce_sum(y**3 * np.arange(1.0, y.shape[1] + 1), axis=-1)

  spec = tf.TensorSpec([None, N], tf.float64)
  plan = tfp_diag.plan_diag_hessian(energy, spec)
  assert plan.num_passes == 1
  if is_of_score := name in OF_SCORES:
    of_score = tfp_diag.plan_diag_jacobian(score_of(energy), spec, [None])
    # Two sorted rows are of a sample each.
    assert of_score.num_passes <= (N // 2 if name == 'sorted rows' else 1)

  @tf.function(autograph=False, input_signature=[spec])
  def diagonals(x):
    return plan(x)[2], *([of_score(x)[1][0]] if is_of_score else [])

  for size in (1, 3):
    x = draw(size, N, seed=size)
    want = hessian_diagonal(energy, copy_of(x))
    for got in diagonals(x):
      same(got, want)


MAY_MIX = re.compile('mixes samples|number of samples')


def next_place(x):
  """From the last coordinate on it is the first one of the next sample."""
  return (largest(x) + 1 + starts(x)) % tf.size(x)


def place_within_fewer(x):
  return largest(x) + (N - 1) * tf.range(tf.shape(x)[0])


def place_in_the_last_first(x):
  return largest(x) + tf.reverse(starts(x), [0])


def place_by_the_size(x):
  """Beside one of the next sample where there are many."""
  many = tf.shape(x)[0] // 100
  return tf.math.floormod(largest(x) + many + starts(x), tf.size(x))


def place_far_before(x):
  """Of a few samples none is in range; some devices skip these."""
  return largest(x) + starts(x) + (-100 * N)


def place_of_eight_bits(x):
  """The starts of 15 samples and more do not fit."""
  return largest(x) + tf.cast(tf.cast(starts(x), tf.int8), tf.int32)


@pytest.mark.parametrize(
  'places',
  [
    next_place,
    place_within_fewer,
    place_in_the_last_first,
    place_by_the_size,
    place_far_before,
    place_of_eight_bits,
  ],
  ids=lambda f: f.__name__,
)
def test_places_that_may_be_in_another_sample(places):
  """Not known to be its own: the values are refused, of any number."""
  with pytest.raises(ValueError, match=MAY_MIX):
    tfp_diag.plan_diag_jacobian(
      lambda x: x * at(x, places(x))[:, tf.newaxis],
      tf.TensorSpec([None, N], tf.float64),
      [None],
    )


def next_pairs(x):
  places = tf.stack([tf.range(tf.shape(x)[0]), largest(x)], axis=-1)
  around = tf.concat([x, x[:1]], axis=0)
  return tf.gather_nd(around, places + [[1, 0]])[:, tf.newaxis]


def segments_of_the_next(x):
  return into(x, (turned(x) + N) % tf.size(x))


def sorted_samples(x):
  cubes = score_of(lambda x: tf.reduce_sum(tf.sort(x) ** 3, axis=-1))
  return tf.transpose(cubes(tf.sin(tf.transpose(x))))


@pytest.mark.parametrize(
  'fn',
  [next_pairs, segments_of_the_next, sorted_samples],
  ids=lambda f: f.__name__,
)
def test_rows_that_may_be_those_of_another_sample(fn):
  with pytest.raises(ValueError, match=MAY_MIX):
    tfp_diag.plan_diag_jacobian(
      lambda x: x * fn(x), tf.TensorSpec([None, N], tf.float64), [None]
    )
