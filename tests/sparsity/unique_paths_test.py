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
"""How many paths there are, and which coordinates need passes because of it."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import (
  hessian_by_copies,
  hessian_diagonal,
  unmixed_diagonals,
)
from tfp_diag.sparsity import budget, unique_paths
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.paths import Paths, tensors_at_hand
from tfp_diag.sparsity.unique_paths import find_sweeps

SAMPLES = 2
SIZE = 4
N = 8
RNG = np.random.default_rng(11)


def constant(*shape):
  return tf.constant(RNG.normal(size=shape) / 2.0)


WEIGHTS = constant(N, 6)
MORE = constant(N, 6)
TOP = constant(6, 5)


def walked_of(fn, *shape):
  spec = tf.TensorSpec(shape, tf.float64)
  graph = trace(lambda parts: fn(parts[0]), lambda y, _: [y], [spec])
  return analyze(graph, 1, None, is_hessian=True).walked


def multiplicities(walked):
  """How often each coordinate reaches each element of each Tensor.

  Returns:
    list of (Tensor, array of elements by coordinates of 0, 1 and 2 for many).
  """
  paths = Paths(walked)
  table = paths.sets.table
  tensors = [
    *zip(walked.inputs, walked.graph.xs),
    *tensors_at_hand(walked),
  ]
  return [
    (tensor, table[paths.numbers[value]].toarray())
    for value, tensor in tensors
    if value in paths.numbers
  ]


# Paths are counted.


def test_partial_sums_of_many_terms_are_no_multisets():
  def fn(x):
    terms = [tf.roll(x, k, 1) for k in range(5)]
    return tf.reduce_sum(tf.exp(tf.add_n(terms)), 1)

  paths = Paths(walked_of(fn, SAMPLES, 9))
  # The empty one, each coordinate, each sum of five, and that of all of these.
  assert paths.sets.table.shape[0] == 1 + SAMPLES * (9 + 9 + 1)


@dataclasses.dataclass(frozen=True)
class Made:
  """One value of a random function.

  Attributes:
    make: Of the values before, and the constants that it was drawn with.
    places: Which of the values before.
    is_elementwise: Whether an argument that is there twice counts once.
    is_exact: Whether the analysis knows each path.
  """

  make: Callable
  places: tuple
  is_elementwise: bool = False
  is_exact: bool = True


def elementwise(rng, values):
  fn = [tf.sin, tf.exp, lambda x: x * x, tf.math.softplus, tf.negative]
  return Made(fn[rng.integers(len(fn))], some(rng, values), True)


def residual(rng, values):
  """Two values of one size, or one twice; by an op that may be curved."""
  first = int(rng.integers(len(values)))
  alike = [k for k, v in enumerate(values) if v.shape == values[first].shape]
  fn = [tf.add, tf.multiply, tf.subtract, tf.math.divide]
  second = int(rng.choice(alike))
  # A value less itself has no derivative at all.
  fn = fn[:2] if first == second else fn
  return Made(fn[rng.integers(len(fn))], (first, second), True)


def broadcast(rng, values):
  columns = [k for k, v in enumerate(values) if v.shape[1] == 1]
  if not columns:
    return total(rng, values)
  (place,) = some(rng, values)
  return Made(tf.multiply, (place, int(rng.choice(columns))), True)


def product(rng, values):
  (place,) = some(rng, values)
  matrix = rng.normal(size=[values[place].shape[1], 3])
  matrix *= rng.uniform(size=matrix.shape) < rng.choice([0.4, 1.0])
  return Made(lambda x: tf.matmul(x, tf.constant(matrix)), (place,))


def product_of_two(rng, values):
  first, second = *some(rng, values), *some(rng, values)

  def make(x, y):
    return tf.einsum('bi,bj->bij', x[:, :2], y[:, :2])[:, :, 0]

  return Made(make, (first, second))


def gather(rng, values):
  (place,) = some(rng, values)
  index = rng.integers(0, values[place].shape[1], 4)
  return Made(lambda x: tf.gather(x, index, axis=1), (place,))


def total(rng, values):
  return Made(lambda x: tf.reduce_sum(x, 1, keepdims=True), some(rng, values))


def mean(rng, values):
  return Made(lambda x: tf.reduce_mean(x, 1, keepdims=True), some(rng, values))


def concat(rng, values):
  places = *some(rng, values), *some(rng, values)
  return Made(lambda x, y: tf.concat([x, y], 1)[:, ::-1], places)


def tile(rng, values):
  return Made(lambda x: tf.tile(x, [1, 2])[:, 1:4], some(rng, values))


def cumsum(rng, values):
  return Made(lambda x: tf.cumsum(x, axis=1), some(rng, values))


def segments(rng, values):
  (place,) = some(rng, values)
  index = np.sort(rng.integers(0, 2, values[place].shape[1]))
  turned = tf.transpose
  return Made(
    lambda x: turned(tf.math.unsorted_segment_sum(turned(x), index, 2)),
    (place,),
  )


def without_form(rng, values):
  """More paths than there are: the op has no squared derivatives."""
  fn = [
    lambda x: tf.reduce_prod(x, 1, keepdims=True),
    lambda x: tf.math.cumprod(x, axis=1),
    lambda x: tf.sort(x, axis=1),
  ]
  return Made(fn[rng.integers(3)], some(rng, values), is_exact=False)


def some(rng, values):
  return (int(rng.integers(len(values))),)


MAKERS = (
  *(elementwise, elementwise, residual, residual, product, without_form),
  *(broadcast, product_of_two, gather, total, mean, concat, tile, cumsum),
  segments,
)


def drawn(rng):
  """A list of `Made`, each of which computes with those before."""
  x = tf.constant(rng.uniform(0.5, 1.5, [SAMPLES, SIZE]))
  steps, values = [], [x]
  for _ in range(6):
    step = MAKERS[rng.integers(len(MAKERS))](rng, values)
    steps.append(step)
    values.append(step.make(*(values[k] for k in step.places)))
  return x, steps


def local_pattern(step, arguments, which):
  """Integer matrix: which elements of some arguments matter for a result."""
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(which)
    result = step.make(*arguments)
  matrix = tape.jacobian(result, which, experimental_use_pfor=False)
  size = result.shape.num_elements()
  return (np.reshape(matrix, [size, -1]) != 0).astype(int)


def count_paths(x, steps):
  """Of each value, by the matrices of all steps; and whether that is all."""
  size = x.shape.num_elements()
  values, counts, exact = [x], [np.eye(size, dtype=int)], [True]
  for step in steps:
    copies = {}
    for position, k in enumerate(step.places):
      key = k if step.is_elementwise else position
      copies.setdefault(key, (k, tf.identity(values[k])))
    if step.is_elementwise:
      arguments = [copies[k][1] for k in step.places]
    else:
      arguments = [copy for _, copy in copies.values()]
    count = 0
    for k, copy in copies.values():
      count = count + local_pattern(step, arguments, copy) @ counts[k]
    values.append(step.make(*arguments))
    counts.append(count)
    exact.append(step.is_exact and all(exact[k] for k in step.places))
  return counts, exact


@pytest.mark.parametrize('seed', range(40))
def test_paths_are_counted(seed):
  x, steps = drawn(np.random.default_rng(seed))
  tensors = []

  def fn(x):
    values = [x]
    for step in steps:
      values.append(step.make(*(values[k] for k in step.places)))
    tensors[:] = values
    return tf.add_n([tf.reduce_sum(tf.sin(v), 1) for v in values])

  found = multiplicities(walked_of(fn, *x.shape))
  of_tensor = {tensor.ref(): table for tensor, table in found}
  counts, exact = count_paths(x, steps)
  for tensor, count, is_exact in zip(tensors, counts, exact):
    table = of_tensor[tensor.ref()]
    assert (table >= np.minimum(count, 2)).all()
    if is_exact:
      np.testing.assert_array_equal(table, np.minimum(count, 2))


def test_a_value_that_is_there_twice_is_one_argument():
  ((_, x), *_, (_, table)) = multiplicities(
    walked_of(lambda x: tf.reduce_sum(x * x, 1), SAMPLES, SIZE)
  )
  np.testing.assert_array_equal(x, np.eye(SAMPLES * SIZE))
  np.testing.assert_array_equal(
    table, np.repeat(np.eye(SAMPLES, dtype=int), SIZE, 1)
  )


# What keeps a coordinate from a sweep that squares everything.


def diagonal(fn, x):
  """The diagonal, which is right, and what was found on the way to it."""
  plan = tfp_diag.plan_diag_hessian(fn, x)
  # In a graph, where nothing is compared with a pass.
  found = tf.function(lambda x: plan(x)[2])(x)
  dense = hessian_diagonal if fn is of_some_samples else hessian_by_copies
  np.testing.assert_allclose(found, dense(fn, x), rtol=1e-9, atol=1e-11)
  return find_sweeps(Paths(walked_of(fn, *x.shape))), plan


def squared_throughout(sweeps):
  """The coordinates of a sweep that starts nowhere else than in the terms."""
  result = np.zeros(len(sweeps.left_over), bool)
  for one in sweeps.sweeps:
    # No coordinate is in two of them, nor left over as well.
    assert not (one.coordinates & (result | sweeps.left_over)).any()
    if not one.frontiers:
      result |= one.coordinates
  everything = [one.coordinates for one in sweeps.sweeps]
  assert np.any([sweeps.left_over, *everything], axis=0).all()
  return result


def state(size=N, samples=3):
  return tf.constant(RNG.normal(size=[samples, size]) / 2.0)


def test_single_paths_take_one_sweep():
  def fn(x):
    return tf.reduce_sum(tf.exp(tf.matmul(x, WEIGHTS)) + tf.sin(x)[:, :6], 1)

  sweeps, plan = diagonal(fn, state())
  assert squared_throughout(sweeps).all()
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', 1)


def one_sum(x):
  return tf.reduce_sum(tf.exp(tf.matmul(x, WEIGHTS) + tf.sin(x[:, :1])), 1)


def residual_layer(x):
  logits = tf.matmul(x[:, 1:], WEIGHTS[1:])
  # The first coordinate comes to each logit by itself and by its sine.
  shared = tf.sin(x[:, :1]) + x[:, :1] * TOP[:1, :1]
  return tf.reduce_sum(tf.exp(logits + shared), 1)


def cumulated(x):
  total = tf.cumsum(tf.sin(tf.concat([x[:, :1], x], 1)), axis=1)
  return tf.reduce_sum(tf.exp(total), 1)


def first_meets_itself(x):
  """In a product of two numbers."""
  one, other = tf.sin(x[:, :4]), tf.concat([tf.cos(x[:, :1]), x[:, 5:]], 1)
  return tf.reduce_sum(one * other, 1)


def first_meets_itself_in_a_matrix_product(x):
  one = tf.reshape(tf.sin(x[:, :4]), [-1, 2, 2])
  other = tf.reshape(tf.concat([x[:, :1], x[:, 5:]], 1), [-1, 2, 2])
  return tf.reduce_sum(tf.matmul(one, other), [1, 2])


def averaged_in_windows(x):
  """Linear, but of no form of which squares are known; the first alone."""
  windows = tf.nn.avg_pool1d(x[:, :1, tf.newaxis] * TOP[0], 1, 1, 'VALID')
  return tf.reduce_sum(tf.exp(windows), [1, 2]) + tf.reduce_sum(tf.exp(x), 1)


def multiplied_up(x):
  """An op whose second derivatives are not element by element."""
  first = tf.concat([x[:, :1], x[:, :1] ** 2, tf.ones_like(x[:, :1])], 1)
  return tf.reduce_prod(first, 1) + tf.reduce_sum(tf.exp(x[:, 1:]), 1)


TURNS = tf.Variable(3)


def turned(x):
  """A loop of which nobody knows how often it turns."""
  _, last = tf.while_loop(
    lambda k, _: k < TURNS, lambda k, s: (k + 1, tf.sin(s)), (0, x[:, :1])
  )
  return tf.reduce_sum(tf.exp(last), 1) + tf.reduce_sum(tf.exp(x[:, 1:]), 1)


VIOLATIONS = [
  one_sum,
  residual_layer,
  cumulated,
  first_meets_itself,
  first_meets_itself_in_a_matrix_product,
  averaged_in_windows,
  multiplied_up,
  turned,
]


@pytest.mark.parametrize('fn', VIOLATIONS)
def test_the_first_coordinate_is_kept_out(fn):
  sweeps, _ = diagonal(fn, state())
  squared = squared_throughout(sweeps)
  assert not squared[0]
  assert squared[1:].all()


# Where paths part and meet again.

DATA, INPUTS, HIDDEN = 5, 3, 4
DESIGN = constant(DATA, INPUTS)
OUTER = constant(HIDDEN, 3)
FACTORS = constant(DATA, 3)
SMALL = constant(29, 6)
PAIR, TRIPLE = constant(2, 3), constant(3, 1)
FIRST = INPUTS * HIDDEN
SECOND = HIDDEN * HIDDEN


def layers(x):
  """The hidden layer of two, and the weights that follow."""
  first, second, rest = tf.split(x, [FIRST, SECOND, -1], axis=1)
  first = tf.reshape(first, [-1, INPUTS, HIDDEN])
  second = tf.reshape(second, [-1, HIDDEN, HIDDEN])
  return tf.tanh(tf.matmul(DESIGN, first)), second, rest


def one_output(hidden):
  """A curved op for each row of data."""
  return tf.reduce_sum(tf.exp(tf.linalg.matvec(hidden, OUTER[:, 0])), 1)


def deep(x):
  hidden, second, rest = layers(x)
  more = tf.reduce_sum(tf.exp(rest), 1)
  return one_output(tf.tanh(tf.matmul(hidden, second))) + more


def deep_of_reversed_data(x):
  """Rows of another order than those of the frontier."""
  hidden, second, _ = layers(x)
  return one_output(tf.tanh(tf.matmul(hidden[:, ::-1], second)))


def of_several_outputs(x):
  """An element of the frontier reaches several rows."""
  hidden, second, _ = layers(x)
  outputs = tf.matmul(tf.tanh(tf.matmul(hidden, second)), OUTER)
  return tf.reduce_sum(tf.exp(outputs), [1, 2])


def of_several_outputs_and_reversed(x):
  hidden, second, _ = layers(x)
  outputs = tf.matmul(tf.tanh(tf.matmul(hidden, second)), OUTER)
  return tf.reduce_sum(tf.exp(outputs)[:, ::-1] * FACTORS, [1, 2])


def of_pairs_of_rows(x):
  """An element of the frontier reaches its row and the next one."""
  hidden, second, _ = layers(x)
  hidden = hidden + tf.roll(hidden, 1, axis=1) ** 2
  return one_output(tf.tanh(tf.matmul(hidden, second)))


def beside(x):
  """The weight of the first layer is added further up as well."""
  hidden, second, _ = layers(x)
  hidden = tf.tanh(tf.matmul(hidden, second))
  outputs = tf.linalg.matvec(hidden, OUTER[:, 0]) + x[:, :1] ** 2
  return tf.reduce_sum(tf.exp(outputs), 1)


def tied(x):
  """Two units of the first layer have a weight in common."""
  return deep(tf.concat([x[:, :1], x[:, :1], x[:, 1:-1]], 1))


def in_both_layers(x):
  return deep(tf.concat([x[:, :FIRST], x[:, :1], x[:, FIRST:-1]], 1))


def of_some_samples(x):
  """What is a single path in one sample is none, or two, in the others."""
  hidden, second, _ = layers(x)
  mask = np.ones([x.shape[0], 1, HIDDEN])
  mask[0, :, 1:] = 0.0
  return one_output(tf.tanh(tf.matmul(hidden * mask, second)))


def product_of_networks(x):
  """A cross term, of which both arguments lie behind the frontier."""
  hidden, second, _ = layers(x)
  one = tf.linalg.matvec(tf.matmul(hidden, second), OUTER[:, 0])
  other = tf.linalg.matvec(tf.sin(hidden), OUTER[:, 1])
  return tf.reduce_sum(one * other, 1)


def scaled(x):
  """A scale for everything: by a chain."""
  scale = tf.exp(x[:, :1])
  logits = tf.matmul(scale * tf.sin(x[:, 1:]), SMALL)
  return tf.reduce_sum(tf.math.softplus(logits), 1)


def scaled_twice(x):
  scale = tf.exp(x[:, :1]) * tf.sin(x[:, 1:2])
  local = scale * tf.exp(x[:, 2:4])
  logits = tf.matmul(tf.repeat(local, 3, 1) * x[:, 4:10], WEIGHTS[:6])
  return tf.reduce_sum(tf.math.softplus(logits), 1)


def bent(x):
  """A scale on several paths, all of them curved, and further coordinates."""
  scale = tf.exp(x[:, :1]) * tf.sin(x[:, 1:2])
  logits = tf.tanh(scale * tf.matmul(x[:, 2:], SMALL[1:])) + scale**2
  return tf.reduce_sum(tf.math.softplus(logits), 1)


def scales_in_turn(x):
  """Each row depends on two of three scales, and on one of them twice."""
  scales = tf.repeat(tf.exp(x[:, :3]) * tf.sin(x[:, 3:6]), 3, 1)
  rows = tf.tanh(scales * x[:, 6:15]) + tf.sin(scales)
  rows += tf.cos(tf.roll(scales, 3, 1))
  return tf.reduce_sum(tf.math.softplus(rows), 1)


def twelve_scales(x):
  """Each row depends on all of them twice: vectorized passes, by columns."""
  rng = np.random.default_rng(9)
  scales = tf.exp(x[:, :12, tf.newaxis])
  one, other = rng.normal(size=[2, 12, 20]) / 4.0
  rows = tf.reduce_sum(tf.tanh(scales * one) + tf.sin(scales * other), 1)
  rows = tf.tanh(rows + tf.matmul(x[:, 12:], rng.normal(size=[18, 20]) / 4.0))
  return tf.reduce_sum(tf.math.softplus(rows), 1)


def mixture_with_scales(x):
  """From a normalizer by rows to the normal densities, and on by columns."""
  means, log_scales = (
    tf.reshape(part, [-1, 1, 3, 2]) for part in (x[:, :6], x[:, 6:12])
  )
  data = tf.constant(np.random.default_rng(8).normal(size=[5, 1, 2]))
  z = (data - means) * tf.exp(-log_scales)
  of_components = tf.reduce_sum(-0.5 * z**2 - log_scales, -1)
  return tf.reduce_sum(tf.reduce_logsumexp(of_components, -1), -1)


def normalized(x):
  hidden, second, _ = layers(x)
  return tf.reduce_sum(tf.reduce_logsumexp(tf.matmul(hidden, second), -1), 1)


def many_kinds(x):
  """Four pairs of coordinates, each with a frontier; and one more."""
  result = tf.reduce_sum(tf.exp(x[:, -1:]), 1)
  for k in range(4):
    pair = x[:, 2 * k : 2 * k + 2]
    mixed = tf.matmul(tf.tanh(tf.matmul(pair, PAIR)), TRIPLE)
    result += tf.reduce_sum(tf.exp(mixed + tf.sin(pair[:, :1])), 1)
  return result


# Looked at for the diagonal, and for third derivatives.
@functools.cache
def parted_paths(fn):
  x = state(FIRST + SECOND + 2, samples=2)
  return x, *diagonal(fn, x)


# What parts; the rest is in a sweep that squares everything.
PARTED = [
  (deep, range(FIRST)),
  (deep_of_reversed_data, range(FIRST)),
  (of_several_outputs, range(FIRST)),
  (of_several_outputs_and_reversed, range(FIRST)),
  (of_pairs_of_rows, range(FIRST)),
  (beside, range(FIRST)),
  (tied, range(FIRST - 1)),
  (in_both_layers, range(FIRST)),
  (of_some_samples, range(FIRST)),
  (product_of_networks, range(FIRST)),
  (scaled, range(1)),
  (scaled_twice, range(4)),
  (normalized, range(FIRST)),
]


@pytest.mark.parametrize('fn, parted', PARTED)
def test_paths_that_part_and_meet_again(fn, parted, prefers_sweeps):
  _, sweeps, plan = parted_paths(fn)
  squared = squared_throughout(sweeps)
  assert plan.ways[0].name == 'squared sweeps'
  np.testing.assert_array_equal(np.flatnonzero(~squared), parted)
  # Paths are followed for some of them at least.
  assert len(sweeps.sweeps) > 1 and sweeps.left_over.sum() < len(parted)


def behind_two_layers(x):
  """The row of the first layer has a formula, to which several paths lead."""
  hidden, second, _ = layers(x)
  hidden = tf.tanh(tf.matmul(hidden, second))
  outputs = tf.matmul(hidden, OUTER)
  return tf.reduce_sum(tf.reduce_logsumexp(outputs, -1), 1)


@pytest.mark.parametrize(
  'fn, gives',
  [
    (deep, True),
    (of_several_outputs, True),
    (normalized, True),
    (tied, False),
    (behind_two_layers, False),
    (product_of_networks, False),
    (scaled_twice, True),
    (bent, True),
    (scales_in_turn, True),
    (twelve_scales, True),
    (mixture_with_scales, True),
  ],
)
def test_third_derivatives_where_paths_part(fn, gives, prefers_sweeps):
  x, sweeps, _ = parted_paths(fn)
  frontiers = [f for one in sweeps.sweeps for f in one.frontiers]
  assert frontiers and all(map(sweeps.gives_third, frontiers)) == gives
  found = tf.function(lambda x: tfp_diag.unmixed_derivatives(fn, x))(x)
  second, third = unmixed_diagonals(fn, x)
  for got, want in ((found.second, second), (found.third, third)):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_kinds_of_which_there_are_too_many_are_left_over(
  prefers_sweeps, monkeypatch
):
  monkeypatch.setattr(unique_paths, '_MAX_SWEEPS', 2)
  sweeps, _ = diagonal(many_kinds, state(9, samples=2))
  assert [one.coordinates.sum() for one in sweeps.sweeps] == [2, 2]
  assert sweeps.left_over.sum() == 5


def masked(x):
  """By the masked values alone the products have mixed derivatives."""
  values = tf.sin(x) * [1.0, 0.0]
  products = values * tf.exp(tf.reverse(values, [1])) * [0.0, 1.0]
  return tf.reduce_sum(tf.sin(values) * tf.exp(0.1 * values) + products, 1)


def test_what_is_masked_is_no_joint_frontier():
  sweeps = find_sweeps(Paths(walked_of(masked, SAMPLES, 2)), is_joint=True)
  joints = [joint for one in sweeps.sweeps for joint in one.joints]
  assert joints and all(joint.value.zeros is None for joint in joints)


def test_without_some_sweeps_their_coordinates_are_left_over():
  size = FIRST + SECOND + 2
  sweeps = find_sweeps(Paths(walked_of(deep, 2, size)))
  plain, other = sorted(sweeps.sweeps, key=lambda one: len(one.frontiers))
  fewer = sweeps.only([plain])
  assert fewer.sweeps == (plain,)
  np.testing.assert_array_equal(fewer.left_over, other.coordinates)
  assert dict(fewer.reasons)
  assert sweeps.only(sweeps.sweeps).left_over.sum() == 0


def test_the_search_is_as_long_as_passes_are_many():
  paths = Paths(walked_of(deep, 2, FIRST + SECOND + 2))
  sweeps = find_sweeps(paths, num_passes=0)
  assert not any(one.frontiers for one in sweeps.sweeps)
  assert 'what there was no time to look at' in dict(sweeps.reasons)
  assert any(one.frontiers for one in find_sweeps(paths, num_passes=99).sweeps)


def test_without_memory_there_are_none():
  walked = walked_of(one_sum, 2, N)
  with budget.at_most(10), pytest.raises(budget.PatternTooDenseError):
    Paths(walked)
  assert find_sweeps(Paths(walked)).sweeps
