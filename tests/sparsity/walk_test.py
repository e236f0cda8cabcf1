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
"""Tests which graph is walked, and how much of it is certain."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import jacobian_diagonal
from tfp_diag.sparsity import SampleMixingError, jacobian_sparsity
from tfp_diag.sparsity.analysis import analyze
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.walk import walk

SIZE = 6


class Function:
  """A function of samples of `SIZE` coordinates; remembers how it is called."""

  def __init__(self, fn):
    self._fn = fn
    self.shapes = []

  def traced(self, shapes):
    return self.trace_on(tf.TensorSpec(shapes[0], tf.float64))

  def trace_on(self, spec):
    def call(parts):
      self.shapes.append(tuple(parts[0].shape))
      return self._fn(parts[0])

    return trace(call, lambda y, _: [y], [spec])

  def graph(self, *samples):
    return self.trace_on(tf.TensorSpec([*samples, SIZE], tf.float64))

  def walked(self, *samples, has_retrace=True):
    """What each way to walk finds: `Walked` or None."""
    retrace = self.traced if has_retrace else None
    ways = walk(self.graph(*samples), len(samples), retrace)
    return [way() for way in ways]

  def pattern(self, *samples):
    analysis = analyze(self.graph(*samples), len(samples), self.traced)
    return None if analysis is None else analysis.pattern.matrix.toarray()


def chain(x):
  return x * tf.roll(x, 1, axis=-1)


CHAIN = np.eye(SIZE) + np.roll(np.eye(SIZE), -1, 1)


def test_few_samples_are_walked_as_they_are():
  fn = Function(chain)
  (walked,) = fn.walked(7)
  assert fn.shapes == [(7, SIZE)]
  assert walked.sample_shape == (7,) and walked.is_certain
  assert (walked.num_samples, walked.num_coordinates) == (7, SIZE)
  (op,) = {step.op for step in walked.tape.steps if step.op_type == 'Mul'}
  assert walked.twin is None and walked.at_hand(op) is op


def test_of_many_samples_few_stand_for_all():
  fn = Function(chain)
  graph = fn.graph(1000)
  first, second = walk(graph, 1, fn.traced)
  walked = first()
  assert fn.shapes == [(1000, SIZE), (2, SIZE)]
  assert walked.sample_shape == (2,) and walked.is_certain
  assert walked.graph is not graph
  for step in walked.tape.steps:
    other = walked.at_hand(step.op)
    assert other in graph.ops and other.type == step.op_type
  # What would be tried next.
  everything = second()
  assert everything.sample_shape == (1000,) and everything.graph is graph


def test_several_sample_axes():
  walked, _ = Function(chain).walked(100, 50)
  assert walked.sample_shape == (2, 3)
  assert (walked.num_samples, walked.num_coordinates) == (6, SIZE)
  # As few as they are along one of them: not worth another call.
  few, walked = Function(chain).walked(2, 1000)
  assert few is None
  assert walked.sample_shape == (2, 1000)


def test_computed_integers_share_no_number_of_samples():
  def scan(x):
    _, total = tf.while_loop(
      lambda k, _: k < 7,
      lambda k, total: (k + 1, total + tf.roll(x, k, axis=-1) ** 2),
      (0, x),
    )
    return total

  walked, _ = Function(scan).walked(1000)
  assert walked.num_samples == 11
  few = Function(scan).walked(None)
  assert few[0].num_samples > 6


def test_without_a_way_to_call_the_function_again():
  fn = Function(chain)
  (walked,) = fn.walked(1000, has_retrace=False)
  assert walked.sample_shape == (1000,) and len(fn.shapes) == 1


def test_without_samples_the_event_is_walked():
  (walked,) = Function(chain).walked()
  assert walked.sample_shape == () and walked.num_samples == 1


@pytest.mark.parametrize('samples', [(0,), (0, 3), (5, 0)])
def test_no_sample_is_no_reason_to_see_nothing(samples):
  np.testing.assert_array_equal(Function(chain).pattern(*samples), CHAIN)


def test_more_elements_than_can_be_walked(monkeypatch):
  monkeypatch.setattr('tfp_diag.sparsity.walk._MOST_ELEMENTS', 5000)

  def by_size(x):
    return tf.sin(x) if x.shape[0] > 10 else tf.cos(x)

  assert Function(by_size).pattern(1000) is None
  np.testing.assert_array_equal(Function(by_size).pattern(800), np.eye(SIZE))


def test_data_of_a_fixed_batch():
  """Each sample has weights of its own, which few samples do not fit."""
  weights = np.zeros([1000, 1])
  weights[700:] = 1.0
  fn = Function(lambda x: x + weights * tf.roll(x, 1, -1))
  few, everything = fn.walked(1000)
  assert few is None and everything.sample_shape == (1000,)
  np.testing.assert_array_equal(fn.pattern(1000), CHAIN)


def test_python_that_knows_the_batch():
  def fn(x):
    return chain(x) if x.shape[0] > 100 else tf.sin(x)

  few, everything = Function(fn).walked(1000)
  assert few is None and everything.sample_shape == (1000,)
  np.testing.assert_array_equal(Function(fn).pattern(1000), CHAIN)
  np.testing.assert_array_equal(Function(fn).pattern(7), np.eye(SIZE))


def test_a_function_that_is_another_one_when_it_is_called_again():
  calls = []

  def fn(x):
    calls.append(x)
    return chain(x) if len(calls) == 1 else tf.sin(x)

  np.testing.assert_array_equal(Function(fn).pattern(1000), CHAIN)


def test_a_function_that_raises_on_few():
  def fn(x):
    if x.shape[0] < 1000:
      raise ValueError('too few')
    return chain(x)

  few, everything = Function(fn).walked(1000)
  assert few is None and everything.is_certain


# What is computed from the number of samples.


def number(x):
  return tf.cast(tf.shape(x)[0], x.dtype)


def later(x):
  """Only samples behind the first hundred know their neighbors."""
  late = tf.cast(tf.range(tf.shape(x)[0]) > 100, x.dtype)[:, tf.newaxis]
  return tf.sin(x) + late * tf.roll(x, 1, -1)


NUMBERS = {
  'factor': lambda x: chain(x) * number(x),
  'factor that vanishes for few': lambda x: (
    tf.sin(x) + tf.maximum(number(x) - 100.0, 0.0) * tf.roll(x, 1, -1)
  ),
  'later samples': later,
  'mean of ones': lambda x: (
    chain(x) / tf.reduce_sum(tf.ones_like(x[:, :1]), 0, keepdims=True)
  ),
  'shift of the event': lambda x: (
    x * tf.roll(x, tf.where(tf.shape(x)[0] > 100, 1, 0), axis=1)
  ),
}


@pytest.mark.parametrize('name', NUMBERS)
def test_numbers_that_are_used_as_values(name):
  """A pattern for many samples has all that there is with so many."""
  fn = NUMBERS[name]
  x = tf.constant(np.random.default_rng(0).normal(size=[400, SIZE]))
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = fn(x)
  # Not by pfor, which takes another axis for the last one.
  dense = tape.batch_jacobian(y, x, experimental_use_pfor=False)
  true = np.any(dense.numpy() != 0, axis=0)
  for samples in ([400], [None]):
    found = Function(fn).pattern(*samples)
    if found is not None:
      assert not (true & ~found).any()
  assert Function(fn).pattern(400) is not None


def test_what_few_samples_leave_open_is_looked_up_in_all():
  fn = Function(NUMBERS['shift of the event'])
  few, everything = fn.walked(1000)
  assert not few.is_certain and everything.is_certain
  np.testing.assert_array_equal(fn.pattern(1000), CHAIN)
  # For an open number any shift may be meant.
  np.testing.assert_array_equal(fn.pattern(None), np.ones([SIZE, SIZE]))


def test_zeros_of_all_samples_are_not_counted_on():
  """How many ones there are is a number of samples, and zeros can be
  counted."""

  def fn(x):
    zeros = tf.zeros_like(x[:, :1])
    many = tf.reduce_sum(tf.cast(tf.equal(zeros, 0.0), x.dtype)) > 100.0
    return tf.sin(x) + tf.where(many, zeros + 1.0, zeros) * tf.roll(x, 1, -1)

  assert Function(fn).pattern(None)[0, -1]


# An open number of samples.


def test_an_open_number_of_samples_is_filled_in():
  fn = Function(chain)
  walked, again = fn.walked(None)
  # The graph at hand is walked, once; nothing is called again.
  assert again is None
  assert fn.shapes == [(None, SIZE)]
  assert walked.sample_shape == (2,) and walked.is_certain
  assert walked.twin is None
  (walked,) = Function(chain).walked(None, 5)
  assert walked.sample_shape == (2, 5)


OPEN = {
  'chain': chain,
  'new shape': lambda x: chain(
    tf.reshape(tf.reshape(x, [-1, 2, 3]), tf.shape(x))
  ),
  'sizes of an axis': lambda x: tf.reshape(
    chain(x), tf.stack([tf.shape(x)[0], SIZE])
  ),
  'copies': lambda x: (
    chain(x) + tf.tile(tf.zeros([1, SIZE], x.dtype), [tf.shape(x)[0], 1])
  ),
  'broadcast': lambda x: (
    chain(x) + tf.broadcast_to(tf.constant(1.0, x.dtype), tf.shape(x))
  ),
  'size that is split off': lambda x: chain(
    tf.roll(x, tf.split(tf.shape(x), [1, 1])[1], axis=[1])
  ),
  'scan': lambda x: chain(
    tf.transpose(
      tf.scan(lambda a, b: b, tf.transpose(x), tf.zeros_like(x[:, 0]))
    )
  ),
}


@pytest.mark.parametrize('name', OPEN)
def test_shapes_are_no_values(name):
  fn = OPEN[name]
  np.testing.assert_array_equal(Function(fn).pattern(None), CHAIN)


def test_mixing_is_seen_in_an_open_batch():
  fn = Function(lambda x: x - tf.reduce_mean(x, 0))
  with pytest.raises(SampleMixingError, match='Mean'):
    fn.pattern(None)


def test_what_only_seems_to_mix_is_no_mistake_of_the_user():
  """An index that is computed from the number of samples may be anything."""

  def fn(x):
    last = tf.shape(x)[0] - 1
    return x * tf.gather(x, last - tf.range(tf.shape(x)[0])[::-1])

  assert Function(fn).pattern(None) is None
  x = tf.constant(np.random.default_rng(0).normal(size=[5, SIZE]))
  np.testing.assert_allclose(jacobian_diagonal(fn, x), 2 * x)
  np.testing.assert_array_equal(Function(fn).pattern(5), np.eye(SIZE))


def test_event_shapes_are_known():
  with pytest.raises(ValueError, match='must be known'):
    jacobian_sparsity(chain, tf.TensorSpec([3, None]), [3])


def test_the_op_is_named_whose_shape_is_not_known():
  def by_rows(x):
    return tf.map_fn(lambda row: row * tf.reduce_sum(row), x)

  with pytest.raises(ValueError, match=r"of TensorListStack \(op 'map/.*first"):
    jacobian_sparsity(by_rows, tf.TensorSpec([None, SIZE]), [None])


@pytest.mark.parametrize('size', (None, 300))
def test_a_shift_that_is_computed(size):
  """No constant of the graph is 30, the length of three samples."""

  def rolled(x):
    shift = tf.constant(10) + tf.constant(20)
    return x + tf.reshape(tf.roll(tf.reshape(x, [-1]), shift, 0), tf.shape(x))

  with pytest.raises(ValueError, match=r'mixes samples|number of samples'):
    jacobian_sparsity(rolled, tf.TensorSpec([size, 10]), [size])


@pytest.mark.parametrize('num_samples', [2, 3, 5])
def test_an_open_batch_is_that_of_data_in_the_function(num_samples):
  rng = np.random.default_rng(0)
  data = tf.constant(rng.normal(size=[num_samples, 6]))
  x = tf.constant(rng.normal(size=[num_samples, 6]))
  spec = tf.TensorSpec([None, 6], tf.float64)

  def chain(x):
    return tf.sin(x * data) * tf.roll(x, 1, -1)

  plan = tfp_diag.plan_diag_jacobian(chain, spec, [None])
  assert (plan.coloring.num_colors, plan.num_passes) == (2, 1)
  _, (diag,) = plan([x])
  expected = data * tf.cos(x * data) * tf.roll(x, 1, -1)
  np.testing.assert_allclose(diag, expected, rtol=1e-9)
  plan = tfp_diag.plan_diag_hessian(
    lambda x: tf.reduce_sum(tf.cos(x * data), -1), spec
  )
  assert plan.num_passes == 1
  np.testing.assert_allclose(plan(x)[2], -(data**2) * tf.cos(x * data))


@pytest.mark.parametrize(
  'fn',
  [
    tf.ones_like,
    lambda x: tf.zeros([tf.shape(x)[0], 3]),
    lambda x: 0 * tf.stop_gradient(x) + 1,
  ],
)
def test_an_open_batch_of_constants(fn):
  spec = tf.TensorSpec([None, 3])
  _, (diag,) = tfp_diag.plan_diag_jacobian(fn, spec, [None])([tf.ones([2, 3])])
  np.testing.assert_array_equal(diag, np.zeros([2, 3]))
  plan = tfp_diag.plan_diag_hessian(lambda x: tf.reduce_sum(fn(x), -1), spec)
  np.testing.assert_array_equal(plan(tf.ones([2, 3]))[2], np.zeros([2, 3]))


@pytest.mark.parametrize(
  'fn',
  [
    lambda x: tf.reshape(tf.reduce_sum(x**3), [1]),
    lambda x: tf.reduce_sum(x**3, [0, 1], keepdims=True)[0],
  ],
)
def test_a_sum_over_an_open_batch_is_no_sample(fn):
  @tf.function(input_signature=[tf.TensorSpec([None, 2])])
  def diagonal(x):
    return tfp_diag.diag_hessian(fn, x)[2]

  with pytest.raises(SampleMixingError):
    diagonal(tf.ones([3, 2]))
