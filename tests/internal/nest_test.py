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
"""States and how functions are called with them."""

import collections
import functools

import pytest
import tensorflow as tf

from tfp_diag.internal import nest

Point = collections.namedtuple('Point', ['a', 'b'])


def arguments(*args, **kwargs):
  return args, kwargs


def test_how_a_function_is_called():
  point = Point(1, 2)
  assert nest.call_fn(arguments, 1) == ((1,), {})
  assert nest.call_fn(arguments, [1, 2]) == ((1, 2), {})
  assert nest.call_fn(arguments, (1, 2)) == ((1, 2), {})
  assert nest.call_fn(arguments, {'a': 1}) == ((), {'a': 1})
  assert nest.call_fn(arguments, collections.OrderedDict(b=2)) == ((), {'b': 2})
  assert nest.call_fn(arguments, point) == ((point,), {})
  assert nest.call_fn(arguments, []) == ((), {})


@pytest.mark.parametrize(
  'state',
  [1.0, [1.0], (1.0, 2.0), {'b': 1.0, 'a': 2.0}, Point(1.0, 2.0), [[1.0], 2.0]],
  ids=str,
)
def test_flatten_and_pack(state):
  assert nest.pack_as(state, nest.flatten(state)) == state


def test_structures_are_told_apart_and_parts_are_not():
  states = [1, [1], (1,), [1, 2], (1, 2), {'a': 1}, {'b': 1}, Point(1, 2)]
  keys = [nest.structure(state) for state in states]
  assert len(set(keys)) == len(states)
  assert nest.structure([1, 2]) == nest.structure([tf.ones([3]), None])


def branching(x):
  if x > 0:
    return x**2
  return x**3


def by_another_function(x):
  return branching(x)


class Branching:
  def __call__(self, x):
    return branching(x)

  def method(self, x):
    while x < 10:
      x = 2 * x
    return x


@pytest.mark.parametrize(
  'fn, wanted',
  [
    (branching, 9.0),
    (by_another_function, 9.0),
    (Branching(), 9.0),
    (functools.partial(branching), 9.0),
    (tf.function(branching), 9.0),
    (Branching().method, 12.0),
  ],
)
def test_python_control_flow_in_a_graph(fn, wanted):
  @tf.function(autograph=False)
  def call(x):
    return nest.call_traceable(fn, [x])

  assert float(call(tf.constant(3.0))) == wanted


def test_other_errors_are_not_hidden():
  calls = []

  def fails(x):
    calls.append(x)
    raise KeyError('mine')

  with pytest.raises(KeyError, match='mine'):
    nest.call_traceable(fails, [1.0])
  assert len(calls) == 1


def test_variables_are_taken_where_no_arguments_are():
  v = tf.Variable(1.0)
  assert nest.takes_variables(lambda: v, [v])
  assert not nest.takes_variables(lambda x: x, [v])
  assert not nest.takes_variables(lambda: v, [v, tf.ones([])])
