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
"""Tests reductions and scans against differences."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity.detect import jacobian_sparsity
from tfp_diag.sparsity.rules import reduction

raw = tf.raw_ops

# (op type, function, shapes, options)
BY_CASES = {'exact': False, 'exact_second': False}
SUPERSET = {'exact_second': False}
CASES = [
  ('Sum', lambda x: tf.reduce_sum(x, 1), [(2, 3)], {}),
  ('Sum', lambda x: tf.reduce_sum(x, [0, -1], keepdims=True), [(2, 3, 2)], {}),
  ('Sum', tf.reduce_sum, [(0,)], {}),
  ('Sum', lambda x: tf.reduce_sum(x, 0), [(0, 2)], {}),
  ('Sum', lambda x: tf.reduce_sum(x, 0), [(1,)], {}),
  ('Mean', lambda x: tf.reduce_mean(x, 0), [(2, 3)], {}),
  ('Max', lambda x: tf.reduce_max(x, 1), [(2, 3)], BY_CASES),
  ('Min', lambda x: tf.reduce_min(x, 1), [(2, 3)], BY_CASES),
  # The second derivatives of a product with respect to one factor vanish.
  ('Prod', lambda x: tf.reduce_prod(x, 1), [(2, 3)], SUPERSET),
  (
    'EuclideanNorm',
    lambda x: tf.math.reduce_euclidean_norm(x, 1),
    [(2, 3)],
    {},
  ),
  ('L2Loss', tf.nn.l2_loss, [(2, 3)], {}),
  ('Cumsum', lambda x: tf.cumsum(x, 1), [(2, 3)], {}),
  ('Cumsum', lambda x: tf.cumsum(x, 0, exclusive=True), [(3, 2)], {}),
  ('Cumsum', lambda x: tf.cumsum(x, 0, reverse=True), [(4,)], {}),
  (
    'Cumsum',
    lambda x: tf.cumsum(x, -1, exclusive=True, reverse=True),
    [(4,)],
    {},
  ),
  ('Cumsum', tf.cumsum, [(0,)], {}),
  ('Cumprod', lambda x: tf.math.cumprod(x, 1), [(2, 3)], SUPERSET),
  (
    'CumulativeLogsumexp',
    lambda x: tf.math.cumulative_logsumexp(x, 1),
    [(2, 3)],
    SUPERSET,
  ),
  ('TopKV2', lambda x: tf.math.top_k(x, 2).values, [(2, 3)], BY_CASES),
  ('NthElement', lambda x: raw.NthElement(input=x, n=1), [(2, 3)], BY_CASES),
  ('Softmax', tf.nn.softmax, [(2, 3)], {}),
  ('LogSoftmax', tf.nn.log_softmax, [(2, 3)], {}),
  (
    'SoftmaxCrossEntropyWithLogits',
    lambda x, p: list(raw.SoftmaxCrossEntropyWithLogits(features=x, labels=p)),
    [(2, 3), (2, 3)],
    BY_CASES,
  ),
  (
    'SparseSoftmaxCrossEntropyWithLogits',
    lambda x: list(
      raw.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=[2, 0])
    ),
    [(2, 3)],
    {},
  ),
  (
    'LinSpace',
    lambda a, b: raw.LinSpace(start=a, stop=b, num=4),
    [(), ()],
    BY_CASES,
  ),
]


@pytest.mark.parametrize(
  'op_type, fn, shapes, options', CASES, ids=[case[0] for case in CASES]
)
def test_against_differences(op_type, fn, shapes, options, check_rule):
  check_rule(op_type, fn, *shapes, **options)


def test_every_op_type_is_in_a_test(op_types_of):
  assert op_types_of(reduction) == {case[0] for case in CASES}


def test_logsumexp(check_rule):
  check_rule(None, lambda x: tf.reduce_logsumexp(x, 1), (2, 3))


def test_a_sum_of_elementwise_terms_stays_separable(check_rule):
  check_rule(
    None, lambda x: tf.reduce_sum(tf.exp(x)) + tf.reduce_mean(x**2), (2, 3)
  )


def test_long_scans_are_taken_as_dense():
  n = reduction._MAX_SCAN + 1
  pattern = jacobian_sparsity(
    lambda x: tf.cumsum(x, 1)[:, :2], tf.TensorSpec([2, n])
  )
  expected = np.zeros((4, 2 * n), bool)
  expected[:2, :n] = expected[2:, n:] = True
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)


def test_many_scans_side_by_side_are_not_listed(monkeypatch):
  """Each is dense for itself, and leaves the others alone."""
  monkeypatch.setattr(reduction, '_MAX_SCANNED', 3 * 12 - 1)
  pattern = jacobian_sparsity(lambda x: tf.cumsum(x, 1), tf.TensorSpec([4, 3]))
  expected = np.kron(np.eye(4), np.ones([3, 3])) > 0
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)
  monkeypatch.setattr(reduction, '_MAX_SCANNED', 3 * 12)
  pattern = jacobian_sparsity(lambda x: tf.cumsum(x, 1), tf.TensorSpec([4, 3]))
  expected = np.kron(np.eye(4), np.tri(3)) > 0
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)
