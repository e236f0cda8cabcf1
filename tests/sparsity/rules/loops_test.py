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
"""Tests loops, and the lists that they fill, against differences."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity
from tfp_diag.sparsity.rules import loops, tensor_lists

raw = tf.raw_ops
BY_CASES = {'exact': False, 'exact_second': False}


def scanned(x):
  return tf.scan(lambda a, b: 0.5 * a + tf.sin(b), x)


def mapped(x):
  return tf.map_fn(lambda row: tf.cumsum(row) * row, x)


def swapped(x, y):
  _, x, y = tf.while_loop(
    lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a * a), [0, x, y]
  )
  return [x, y]


def until_large(x):
  (y,) = tf.while_loop(
    lambda y: tf.reduce_sum(y) < 3.0,
    lambda y: [y + y * tf.roll(y, 1, 0)],
    [x],
  )
  return y


def nested(x):
  def outer(total, row):
    return total + tf.scan(lambda a, b: a + b * b, row)[-1]

  return tf.scan(outer, x, initializer=tf.zeros([], x.dtype))


def gradient_of_scan(x):
  return tf.gradients(tf.reduce_sum(scanned(x) ** 2), x)[0]


def gradient_of_map(x):
  return tf.gradients(tf.reduce_sum(mapped(x) ** 2), x)[0]


CASES = [
  (scanned, [(4,)], {}),
  (scanned, [(3, 2)], {}),
  (scanned, [(1,)], {}),
  (mapped, [(2, 3)], {}),
  (swapped, [(2,), (2,)], {}),
  (until_large, [(3,)], BY_CASES),
  (nested, [(2, 2)], {}),
  (gradient_of_scan, [(4,)], {'exact_second': False}),
  (gradient_of_map, [(2, 2)], {'exact_second': False}),
]


@pytest.mark.parametrize('fn, shapes, options', CASES)
def test_unrolled(fn, shapes, options, check_rule):
  check_rule('StatelessWhile', fn, *shapes, **options)


@pytest.mark.parametrize('fn, shapes, options', CASES)
def test_all_turns_in_one(fn, shapes, options, check_rule, monkeypatch):
  # Negative, so that no loop is short enough.
  monkeypatch.setattr(loops, '_MAX_UNROLLED_STEPS', -1)
  del options
  check_rule('StatelessWhile', fn, *shapes, **BY_CASES, fallback=None)


def test_a_loop_that_draws_random_numbers():
  def fn(x):
    _, y = tf.while_loop(
      lambda i, y: i < 3,
      lambda i, y: (i + 1, y * tf.random.uniform([])),
      [0, x],
    )
    return y

  pattern = jacobian_sparsity(fn, tf.TensorSpec([3]))
  np.testing.assert_array_equal(pattern.matrix.toarray(), np.eye(3))
  assert any('RandomUniform' in note for note in pattern.notes)


def test_long_loops_are_not_unrolled(monkeypatch):
  monkeypatch.setattr(loops, '_MAX_UNROLLED_STEPS', 50)
  # Elements of a row stay apart, though the turns are joined.
  pattern = jacobian_sparsity(
    lambda x: tf.scan(lambda a, b: 0.5 * a + b, x)[-1], tf.TensorSpec([100, 2])
  )
  expected = np.tile(np.eye(2), [1, 100])
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)


def test_a_chain_longer_than_the_turns_that_are_walked():
  n = 100

  def fn(x):
    keep_on = tf.random.uniform([]) > 0.5
    (y,) = tf.while_loop(
      lambda y: keep_on, lambda y: [y + tf.concat([y[1:], y[-1:]], 0)], [x]
    )
    return y

  pattern = jacobian_sparsity(fn, tf.TensorSpec([n]))
  assert not (np.triu(np.ones([n, n])) > pattern.matrix.toarray()).any()


def test_a_state_space_model_by_scan():
  def log_density(z):
    path = tf.scan(lambda a, e: 0.9 * a + e, z)
    return -tf.reduce_sum(tf.exp(path[2:3]))

  pattern = hessian_sparsity(log_density, tf.TensorSpec([5]))
  expected = np.zeros([5, 5])
  expected[:3, :3] = 1
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)


# The value of a variable is not looked at.
INDEX = tf.Variable(1)


def listed(op):
  """A function of the list of the rows of x."""

  def call(x):
    rows = raw.TensorListFromTensor(tensor=x, element_shape=list(x.shape[1:]))
    return op(rows, x)

  return call


def get(rows, i, shape):
  return raw.TensorListGetItem(
    input_handle=rows, index=i, element_shape=shape, element_dtype=tf.float64
  )


def stack(rows, shape):
  return raw.TensorListStack(
    input_handle=rows, element_shape=shape, element_dtype=tf.float64
  )


def reserve(n):
  return raw.TensorListReserve(
    element_shape=[2], num_elements=n, element_dtype=tf.float64
  )


def pushed(x):
  empty = raw.EmptyTensorList(
    element_shape=[2], max_num_elements=-1, element_dtype=tf.float64
  )
  one = raw.TensorListPushBack(input_handle=empty, tensor=x[0])
  two = raw.TensorListPushBack(input_handle=one, tensor=x[1] * x[2])
  rest, last = raw.TensorListPopBack(
    input_handle=two, element_shape=[2], element_dtype=tf.float64
  )
  length = tf.cast(raw.TensorListLength(input_handle=rest), tf.float64)
  return last * length


def gathered(rows, indices):
  chosen = raw.TensorListGather(
    input_handle=rows,
    indices=indices,
    element_shape=[2],
    element_dtype=tf.float64,
  )
  return tf.ensure_shape(chosen, [len(indices), 2])


def scattered(x, indices, size=4):
  rows = raw.TensorListScatterIntoExistingList(
    input_handle=reserve(size), tensor=x, indices=indices
  )
  return tf.ensure_shape(stack(rows, [2]), [4, 2])


def set_at(x, i):
  rows = raw.TensorListSetItem(input_handle=reserve(3), index=i, item=x[0])
  return tf.ensure_shape(stack(rows, [2]), [3, 2])


LISTS = [
  ('TensorListFromTensor', listed(lambda rows, x: get(rows, 1, [2])), {}),
  ('TensorListGetItem', listed(lambda rows, x: get(rows, 2, [2]) ** 2), {}),
  (
    'TensorListGetItem',
    listed(lambda rows, x: get(rows, tf.identity(INDEX), [2])),
    BY_CASES,
  ),
  ('TensorListStack', listed(lambda rows, x: stack(rows, [2])), {}),
  ('TensorListGather', listed(lambda rows, x: gathered(rows, [2, 0])), {}),
  (
    'TensorListScatterIntoExistingList',
    lambda x: scattered(x**2, [3, 0, 2]),
    {},
  ),
  (
    'TensorListScatterIntoExistingList',
    # The list grows.
    lambda x: scattered(x, [3, 0, 2], size=2),
    {},
  ),
  ('TensorListReserve', lambda x: set_at(x, 1), {}),
  ('TensorListSetItem', lambda x: set_at(x, 2), {}),
  ('EmptyTensorList', pushed, {}),
  ('TensorListPushBack', pushed, {}),
  ('TensorListPopBack', pushed, {}),
  ('TensorListLength', pushed, {}),
  (
    'TensorListConcatV2',
    lambda x: (
      raw.TensorListConcatV2(
        input_handle=raw.TensorListFromTensor(
          tensor=tf.reshape(x, [3, 2, 1]), element_shape=[2, 1]
        ),
        element_shape=[2, 1],
        leading_dims=tf.zeros([0], tf.int64),
        element_dtype=tf.float64,
      ).tensor
    ),
    {},
  ),
  (
    'TensorListResize',
    listed(
      lambda rows, x: tf.ensure_shape(
        stack(raw.TensorListResize(input_handle=rows, size=2), [2]), [2, 2]
      )
    ),
    {},
  ),
  (
    'TensorListElementShape',
    listed(
      lambda rows, x: tf.reshape(
        x,
        [
          -1,
          raw.TensorListElementShape(input_handle=rows, shape_type=tf.int32)[0],
        ],
      )[:, 0]
    ),
    {'fallback': None},
  ),
  ('AddN', lambda x: raw.AddN(inputs=[x, x * x, tf.ones_like(x)]), {}),
  (
    'AddN',
    listed(
      lambda rows, x: stack(
        raw.AddN(
          inputs=[
            rows,
            raw.TensorListSetItem(
              input_handle=reserve(3), index=1, item=x[0] ** 2
            ),
          ]
        ),
        [2],
      )
    ),
    {},
  ),
]


@pytest.mark.parametrize(
  'op_type, fn, options', LISTS, ids=[case[0] for case in LISTS]
)
def test_lists_against_differences(op_type, fn, options, check_rule):
  check_rule(op_type, fn, (3, 2), **options)


def test_every_op_type_is_in_a_test(op_types_of):
  assert op_types_of(tensor_lists) == {case[0] for case in LISTS}
  assert op_types_of(loops) == {'StatelessWhile', 'While'}


@pytest.mark.parametrize(
  'fn',
  [
    listed(lambda rows, x: gathered(rows, [0, 2, 0, 1])),
    lambda x: scattered(x, [3, 0, 3]),
    listed(lambda rows, x: gathered(rows, [0, tf.identity(INDEX)])),
  ],
  ids=['read twice', 'overwritten', 'unknown'],
)
def test_items_that_may_be_the_same_are_dense(fn):
  # TensorFlow gives the derivative of one of the two.
  pattern = jacobian_sparsity(fn, tf.TensorSpec([3, 2], tf.float64))
  assert pattern.nnz == np.prod(pattern.shape)
  assert 'TensorList' in pattern.fallback_ops[0]


def test_unknown_ops_on_lists_are_dense():
  def fn(x):
    rows = raw.TensorListFromTensor(tensor=x, element_shape=[2])
    both = raw.TensorListConcatLists(
      input_a=rows, input_b=rows, element_dtype=tf.float64
    )
    return tf.ensure_shape(stack(both, [2]), [6, 2])

  pattern = jacobian_sparsity(fn, tf.TensorSpec([3, 2], tf.float64))
  assert pattern.nnz == 72
  assert 'TensorListConcatLists' in pattern.fallback_ops[0]
