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
"""A pass of third order gives two diagonals, each times its seed."""

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import linear_map, sweep
from tfp_diag.diagonal.third_order import ThirdOrder

X = np.random.default_rng(0).normal(size=[3, 4])


def evaluated(fn, xs, what):
  """`what` of the passes of `fn`, in a graph."""

  @tf.function(autograph=False)
  def run(*xs):
    evaluation = linear_map.evaluate(
      lambda parts: fn(*parts), lambda result, _: [result], xs, 3
    )
    _, hessian = evaluation.hessian()
    return what(ThirdOrder(evaluation, hessian), evaluation.xs)

  return run(*map(tf.constant, xs))


def test_along_a_seed():
  """Of xᵀA x + Σ x³: the seed times 6 x ∘ seed, whatever A is."""
  a = np.random.default_rng(1).normal(size=[4, 4])
  seed = np.random.default_rng(2).normal(size=[3, 4])
  second, third = evaluated(
    lambda x: tf.reduce_sum(x * tf.linalg.matvec(a, x) + x**3, -1),
    [X],
    lambda passes, xs: passes.apply([0], [tf.constant(seed)]),
  )
  np.testing.assert_allclose(second, seed @ (a + a.T) + 6 * X * seed)
  np.testing.assert_allclose(third, 6 * seed**3, atol=1e-12)


def test_parts_without_a_path_give_none():
  def what(passes, xs):
    assert passes.connects([0, 1]) and not passes.connects([1])
    seeds = [tf.ones_like(x) for x in xs]
    assert passes.apply([1], seeds[1:]) == [None, None]
    first, none, third, also_none = passes.apply([0, 1], seeds)
    assert none is None and also_none is None
    return first, third

  second, third = evaluated(
    lambda u, w: tf.reduce_sum(u**4, -1) + tf.reduce_sum(w, -1), [X, X], what
  )
  np.testing.assert_allclose(second, 12 * X**2)
  np.testing.assert_allclose(third, 24 * X)


def test_a_sweep_fills_both_diagonals_of_each_part():
  """Signs, members and colors that run in loops do not mix them up."""
  for schedule in ('unrolled', 'pfor', 'while_loop'):

    def what(passes, xs, schedule=schedule):
      colors = sweep.Colors.from_vector([0, 1, 0, 1, 1, 2, 1, 2], [[4], [4]])
      return sweep.diagonal(
        passes, colors, xs, schedule, 3, None, num_diagonals=2
      )

    found = evaluated(
      lambda u, w: tf.reduce_sum(u**4, -1) + tf.reduce_sum(tf.sin(w), -1),
      [X, X],
      what,
    )
    wanted = [12 * X**2, -np.sin(X), 24 * X, -np.cos(X)]
    for actual, expected in zip(found, wanted, strict=True):
      np.testing.assert_allclose(actual, expected, rtol=1e-10)
