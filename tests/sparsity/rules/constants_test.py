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
"""Tests ops whose value is known from shapes."""

import tensorflow as tf

from tfp_diag.sparsity.rules import constants

raw = tf.raw_ops


def test_shapes_are_known_though_the_tensor_is_not(check_rule):
  def fn(x):
    y = x * x
    rows = raw.Shape(input=y)[0]
    sizes = raw.ShapeN(input=[y, x])
    rank = raw.Rank(input=y)
    size = raw.Size(input=y)
    y = tf.reshape(y, [raw.Mul(x=rows, y=sizes[1][1])])
    return y[: tf.minimum(size, rank + 1)]

  check_rule('Shape', fn, (2, 3))
  check_rule('ShapeN', fn, (2, 3))
  check_rule('Rank', fn, (2, 3))
  check_rule('Size', fn, (2, 3))


def test_zeros_and_ones_are_known(check_rule):
  def fn(x):
    keep = raw.ZerosLike(x=x) < raw.OnesLike(x=x)
    return tf.where(keep, x, tf.reverse(x, [0]))

  check_rule('ZerosLike', fn, (4,))
  check_rule('OnesLike', fn, (4,))


def test_every_op_type_is_in_a_test(op_types_of):
  assert op_types_of(constants) == {
    'OnesLike',
    'Rank',
    'Shape',
    'ShapeN',
    'Size',
    'ZerosLike',
  }
