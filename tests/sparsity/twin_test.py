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
"""Tests whether a graph on few samples is told from one that does other
things."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity import twin
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.twin import compare, few_samples, same_shape

FEW, MANY, SIZE = 3, 64, 6
WEIGHTS = tf.constant(np.random.default_rng(0).normal(size=[SIZE, SIZE]))
LARGE = tf.constant(np.random.default_rng(1).normal(size=[20, SIZE]))


def graph_of(fn, *shape):
  spec = tf.TensorSpec(shape, tf.float64)
  return trace(
    lambda parts: fn(parts[0]), lambda ys, _: tf.nest.flatten(ys), [spec]
  )


def twin_of(fn, few=(FEW,), many=(MANY,)):
  """The twin, and the graph on few samples."""
  small = graph_of(fn, *few, SIZE)
  return compare(small, graph_of(fn, *many, SIZE)), small


def loop(x, turns=3, step=1.0):
  return tf.while_loop(
    lambda k, _: k < turns, lambda k, y: (k + 1, tf.sin(y) + step), [0, x]
  )[1]


def custom(x, scale=2.0, op=tf.sin):
  return tf.custom_gradient(lambda x: (x**3, lambda dy: scale * op(dy)))(x)


SAME = {
  'elementwise': lambda x: tf.exp(x) * x,
  'captured constants': lambda x: tf.tanh(x @ WEIGHTS) + LARGE[0],
  'shift along the event': lambda x: tf.roll(x, 1, axis=-1),
  'slice of the event': lambda x: x[:, 1:] * x[:, :-1],
  'new shape of the event': lambda x: tf.reshape(x, [-1, 2, 3]),
  'samples in one axis': lambda x: tf.reshape(x, [-1]),
  'static shape': lambda x: tf.reshape(x, [x.shape[0], 2, 3]),
  'tensor of a shape': lambda x: x * tf.ones_like(x),
  'matrix of the samples': lambda x: tf.eye(x.shape[0], dtype=x.dtype) @ x,
  'loop': loop,
  'scan': lambda x: tf.scan(lambda a, b: a + b, tf.transpose(x)),
  'function': lambda x: tf.function(tf.sin, autograph=False)(x),
  'branch': lambda x: tf.cond(x[0, 0] > 0, lambda: x, lambda: -x),
  'custom gradient': custom,
  'custom gradient in a loop': lambda x: tf.while_loop(
    lambda k, _: k < 2, lambda k, y: (k + 1, custom(y)), [0, x]
  )[1],
  'softplus of TFP': tf.math.softplus,
  'swish': tf.nn.silu,
}


@pytest.mark.parametrize('name', SAME)
def test_the_same_but_for_the_number_of_samples(name):
  twin, small = twin_of(SAME[name])
  assert twin is not None
  for op in small.ops:
    if op in twin.op_at_hand:
      other = twin.op_at_hand[op]
      assert (op.type, op.graph is other.graph) == (other.type, False)
  assert {op for op in small.ops if op.inputs} <= set(twin.op_at_hand)


@pytest.mark.parametrize('name', ['elementwise', 'captured constants', 'loop'])
def test_several_sample_axes(name):
  fn = SAME[name]
  assert twin_of(fn, (2, 3), (64, 50))[0] is not None
  assert twin_of(fn, (2, 3), (64, 3))[0] is not None


NUMBERS = {
  'factor': lambda x: x * float(x.shape[0]),
  'filled': lambda x: x * np.full(x.shape, float(x.shape[0])),
  'array': lambda x: x * np.arange(1.0, x.shape[0] + 1)[:, np.newaxis],
  'shift': lambda x: tf.roll(x, x.shape[0] // 2, axis=0),
  'bound of a loop': lambda x: loop(x, turns=x.shape[0]),
  'number in a loop': lambda x: loop(x, step=float(x.shape[0])),
  'number in a custom gradient': lambda x: custom(x, scale=x.shape[0] * 1.0),
}


@pytest.mark.parametrize('name', NUMBERS)
def test_constants_that_differ_are_noted(name):
  twin, _ = twin_of(NUMBERS[name])
  assert twin is not None and twin.varying


@pytest.mark.parametrize(
  'name', ['elementwise', 'loop', 'custom gradient', 'tensor of a shape']
)
def test_constants_that_do_not_are_not(name):
  twin, _ = twin_of(SAME[name])
  # Of one number throughout only the shape differs.
  assert twin.varying == twin.uniform
  assert bool(twin.varying) == (name == 'tensor of a shape')


def is_large(x):
  return x.shape[0] > 10


OTHERS = {
  'op': lambda x: tf.sin(x) if is_large(x) else tf.cos(x),
  'more ops': lambda x: tf.sin(x) if is_large(x) else x,
  'order': lambda x: tf.sin(tf.cos(x)) if is_large(x) else tf.cos(tf.sin(x)),
  'one for each sample': lambda x: tf.stack(
    [tf.sin(row) for row in tf.unstack(x)]
  ),
  'attribute': lambda x: tf.matmul(x, WEIGHTS, transpose_b=is_large(x)),
  'wiring': lambda x: (lambda a, b: a - b if is_large(x) else b - a)(
    tf.sin(x), tf.sin(x)
  ),
  'result': lambda x: (lambda a, b: a if is_large(x) else b)(
    tf.sin(x), tf.sin(x)
  ),
  'dtype': lambda x: tf.cast(
    tf.cast(x, 'float16' if is_large(x) else 'float32'), 'float64'
  ),
  'size': lambda x: (
    tf.reduce_sum(tf.zeros([7 if is_large(x) else 5, SIZE], x.dtype), 0) + x
  ),
  'size squared': lambda x: (
    tf.reduce_sum(tf.zeros([x.shape[0] ** 2], x.dtype)) + x
  ),
  'captured Tensor': lambda x: x + (LARGE if is_large(x) else LARGE * 1.0)[0],
  'body of a loop': lambda x: tf.while_loop(
    lambda k, _: k < 3,
    lambda k, y: (k + 1, tf.sin(y) if is_large(x) else tf.cos(y)),
    [0, x],
  )[1],
  'branch': lambda x: tf.cond(
    x[0, 0] > 0, lambda: x, lambda: tf.sin(x) if is_large(x) else tf.cos(x)
  ),
  'custom gradient': lambda x: custom(x, op=tf.sin if is_large(x) else tf.cos),
}


@pytest.mark.parametrize('name', OTHERS)
def test_graphs_that_do_other_things(name):
  assert twin_of(OTHERS[name])[0] is None


def test_a_gradient_that_fails_is_no_twin():
  def gradient(dy):
    raise ValueError('mine')

  fn = tf.custom_gradient(lambda x: (x**3, gradient))
  assert twin_of(fn)[0] is None


@pytest.mark.parametrize(
  'few, many, sizes, is_same',
  [
    ((), (), [(3, 64)], True),
    ((5,), (5,), [(3, 64)], True),
    ((3, 5), (64, 5), [(3, 64)], True),
    ((30,), (640,), [(3, 64)], True),
    ((6,), (130,), [(3, 64)], False),
    ((4,), (65,), [(3, 64)], False),
    ((9,), (64 * 64,), [(3, 64)], False),
    ((2, 3), (64, 50), [(2, 64), (3, 50)], True),
    ((6,), (64 * 50,), [(2, 64), (3, 50)], True),
    ((6,), (64 * 3,), [(2, 64)], True),
    ((3,), (64, 1), [(3, 64)], False),
    (None, None, [(3, 64)], True),
    (None, (3,), [(3, 64)], False),
    ((None, 3), (None, 64), [(3, 64)], True),
    ((None,), (64,), [(3, 64)], False),
    ((3,), (0,), [(3, 0)], True),
  ],
)
def test_shapes(few, many, sizes, is_same):
  assert same_shape(few, many, sizes) == is_same


# How many samples are few.


@pytest.mark.parametrize(
  'fn, rank, few',
  [
    (lambda x: tf.exp(x), 1, (2,)),
    (lambda x: tf.exp(x), 2, (2, 3)),
    (lambda x: tf.roll(x, 6, 0), 1, (5,)),
    (lambda x: tf.roll(x, 6, 0), 2, (5, 7)),
    (lambda x: tf.roll(x, -30, 0), 1, (7,)),
    (lambda x: tf.reshape(x, [-1, 2]), 1, (3,)),
    (lambda x: loop(x, turns=10), 1, (3,)),
    (lambda x: tf.function(lambda x: tf.roll(x, 2, 0))(x), 1, (3,)),
    # A float is no shift, and a long list holds indices.
    (lambda x: x * 2.0, 1, (2,)),
    (lambda x: tf.gather(x, np.arange(100) % 3, axis=1), 1, (2,)),
  ],
)
def test_few_samples_share_no_integer(fn, rank, few):
  found = few_samples(graph_of(fn, *[64] * rank, SIZE), rank)
  assert found == few


def test_there_may_be_no_such_number(monkeypatch):
  monkeypatch.setattr(twin, '_PRIMES', (2, 3, 5, 7))

  def fn(x):
    return tf.roll(x, 2 * 3 * 5, 0) * tf.cast(tf.constant(7), x.dtype)

  assert few_samples(graph_of(fn, 64, SIZE), 1) is None


def test_numbers_to_avoid():
  graph = graph_of(lambda x: tf.roll(x, 2, -1), 64, SIZE)
  assert few_samples(graph, 2) == (3, 5)
  assert few_samples(graph, 2, {0, 1, 9, 14}) == (5, 11)


def rolled_by(shift):
  return lambda x: tf.reshape(
    tf.roll(tf.reshape(x, [-1]), shift * SIZE, 0), tf.shape(x)
  )


@pytest.mark.parametrize(
  'fn',
  [
    # On 2 samples each of these would leave every sample where it was.
    rolled_by(2),
    rolled_by(6),
    lambda x: tf.concat([x[2:], x[:2]], 0) + 0 * x,
    lambda x: tf.reshape(
      tf.reverse(tf.reshape(x, [2, -1, SIZE]), [0]), tf.shape(x)
    ),
    lambda x: tf.reshape(tf.reshape(x, [-1, 2 * SIZE])[:, ::-1], tf.shape(x)),
  ],
)
def test_no_shift_slice_or_shape_ends_where_a_sample_does(fn):
  at_hand = graph_of(fn, MANY, SIZE)
  (few,) = few_samples(at_hand, 1)
  assert few != 2
  x = tf.reshape(tf.range(float(few * SIZE)), [few, SIZE])
  try:
    result = fn(tf.cast(x, tf.float64))
  except tf.errors.InvalidArgumentError:
    return  # It does not work on so few: all samples are walked.
  assert not np.array_equal(result, x)
