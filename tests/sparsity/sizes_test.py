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
"""Sizes as multiples of the numbers of samples; see also `batch_sizes_test`."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity.program import Instruction
from tfp_diag.sparsity.sizes import Scaling
from tfp_diag.sparsity.value import Value


def constant(few, many):
  """A constant of a graph on few samples, and on those at hand."""
  with tf.Graph().as_default():
    op, at_hand = (tf.constant(sizes).op for sizes in (few, many))
  value = Value.constant(np.array(few, np.int32))
  value.varies = True
  value.source = Instruction(op, lambda _: at_hand), [], 0
  return value


def test_constants_that_are_the_same_multiple():
  scaling = Scaling([3, 5], [700, 20])
  sizes = scaling.sizes(constant([3, 4, 10, 15], [700, 4, 40, 14_000]))
  np.testing.assert_array_equal(sizes.factors, [1, 4, 2, 1])
  np.testing.assert_array_equal(sizes.powers, [[1, 0], [0, 0], [0, 1], [1, 1]])
  np.testing.assert_array_equal(sizes.times([2, 3]), [2, 4, 6, 6])


@pytest.mark.parametrize('many', [[700, 2], [701, 1], [20, 1], [700, 1, 1]])
def test_constants_that_are_not(many):
  assert Scaling([3, 5], [700, 20]).sizes(constant([3, 1], many)) is None
