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
"""`ys` without `fn` in a branch, a loop or a function that takes `xs` in."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import draw
from tests.oracles import jacobian_by_copies
from tests.pairs import parametrize_pairs

N = 5


def summed(x):
  return x**2 * tf.reduce_sum(x, -1, keepdims=True)


def chained(x):
  return tf.sin(x) * tf.roll(x, 1, -1)


def alone(x):
  return tf.exp(x) - x**3


def in_branch(make, x):
  return tf.cond(x[0, 0] > -9.0, make, lambda: x)


def in_loop(make, x):
  return tf.while_loop(
    lambda k, _: k < 2, lambda k, _: (k + 1, make()), (0, x)
  )[1]


def in_function(make, x):
  del x
  return tf.function(make)()


def deep(make, x):
  return in_branch(lambda: in_function(make, x), x)


PLACES = (in_branch, in_loop, in_function, deep)
OPTIONS = {
  'default': {},
  'samples': {'sample_shape': [3]},
  'forward': {'sample_shape': [3], 'mode': 'forward'},
  'pfor': {'sample_shape': [3], 'schedule': 'pfor'},
  'checked': {'sample_shape': [3], 'validate_args': True},
}


@parametrize_pairs(
  options=OPTIONS,
  fn=[summed, chained, alone],
  place=PLACES,
)
def test_xs_are_from_around(place, fn, options):
  x = draw(3, N)

  @tf.function(autograph=False)
  def diagonal(x):
    def make():
      return tfp_diag.diag_jacobian(x, ys=fn(x), **OPTIONS[options])[1][0]

    return place(make, x)

  expected = jacobian_by_copies(fn, x)
  np.testing.assert_allclose(diagonal(x), expected, rtol=1e-8)


@parametrize_pairs(
  fn=[summed, chained, alone],
  place=PLACES,
  where=['half', 'complex', 'list', 'all', 'both'],
)
def test_a_part_is_computed_around(place, fn, where):
  """From what is inside alone the structure would be too sparse."""
  x = draw(3, N)

  @tf.function(autograph=False)
  def diagonal(x):
    half, whole = tf.sin(x), fn(tf.sin(x))
    pair = tf.complex(half, half)
    parts = tf.TensorArray(x.dtype, 1, clear_after_read=False).write(0, half)

    def make():
      if where == 'half':
        ys = fn(half)
      elif where == 'complex':
        ys = fn(tf.math.real(pair))
      elif where == 'list':
        ys = fn(parts.read(0))
      elif where == 'all':
        ys = whole
      else:
        ys = fn(half) + fn(x)
      return tfp_diag.diag_jacobian(x, ys=ys, sample_shape=[3])[1][0]

    return place(make, x)

  def by_hand(x):
    return fn(tf.sin(x)) + (fn(x) if where == 'both' else 0.0)

  expected = jacobian_by_copies(by_hand, x)
  np.testing.assert_allclose(diagonal(x), expected, rtol=1e-8)


def test_parts_are_found_as_far_as_they_are_inside():
  """The structure is read where `ys` is computed from nothing else."""
  x, passes = draw(3, N), []

  @tf.custom_gradient
  def counted(x):
    def gradient(dy):
      passes.append(1)
      return dy

    return tf.identity(x), gradient

  @tf.function(autograph=False)
  def diagonal(x):
    def make():
      ys = alone(counted(x))
      return tfp_diag.diag_jacobian(
        x, ys=ys, sample_shape=[3], schedule='unrolled'
      )[1][0]

    return in_branch(make, x)

  diagonal(x)
  # One pass, and one to see what is linear.
  assert len(passes) <= 2


def test_a_plan_needs_one_graph():
  x = draw(3, N)
  plan = tfp_diag.plan_diag_jacobian(chained, x, sample_shape=[3])

  @tf.function(autograph=False)
  def diagonal(x):
    ys = chained(x)
    return in_function(
      lambda: tfp_diag.diag_jacobian(x, ys=ys, sample_shape=[3], plan=plan)[1][
        0
      ],
      x,
    )

  with pytest.raises(ValueError, match='by way of another one'):
    diagonal(x)
