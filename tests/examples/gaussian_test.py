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
"""Gaussians against SciPy and against their own Hessians."""

import pickle

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.pairs import parametrize_pairs
from tfp_diag.examples import gaussian

_COVARIANCE = np.array([[2.0, 0.3, -0.4], [0.3, 1.0, 0.2], [-0.4, 0.2, 0.5]])
_CASES = {
  'isotropic': gaussian.isotropic(4, scale=1.5),
  'axis_aligned': gaussian.axis_aligned(5, condition_number=1e4),
  'three_dimensional': gaussian.three_dimensional(),
  'ar1': gaussian.ar1(6, coefficient=-0.8, scale=0.7),
  'ar1 of one step': gaussian.ar1(1),
  'arrowhead': gaussian.arrowhead(5, slope=0.6, hub_scale=2.0, scale=0.5),
  'from_covariance': gaussian.from_covariance(_COVARIANCE, [1.0, -2.0, 0.5]),
}
_SHAPES = [[], [4], [2, 3], [0]]


def _draws(target, shape, dtype):
  noise = np.random.default_rng(1).normal(size=[*shape, target.num_dims])
  return tf.constant(1.5 * noise, dtype)


@parametrize_pairs(
  case=_CASES,
  shape=_SHAPES,
  dtype=[tf.float32, tf.float64],
)
def test_log_prob_is_scipys(case, shape, dtype):
  target = _CASES[case]
  x = _draws(target, shape, dtype)
  actual = target.log_prob(x)
  assert actual.dtype == dtype
  assert actual.shape == shape
  oracle = scipy.stats.multivariate_normal(target.mean, target.covariance())
  points = x.numpy().astype(np.float64).reshape(-1, target.num_dims)
  expected = np.array([oracle.logpdf(p) for p in points]).reshape(shape)
  rtol = 2e-5 if dtype == tf.float32 else 1e-11
  np.testing.assert_allclose(actual, expected, rtol=rtol)


@parametrize_pairs(
  case=_CASES,
  shape=_SHAPES,
  dtype=[tf.float32, tf.float64],
)
def test_diag_hessian_is_that_of_the_precision(case, shape, dtype):
  target = _CASES[case]
  actual = target.diag_hessian(_draws(target, shape, dtype))
  assert actual.dtype == dtype
  expected = -np.diag(np.linalg.inv(target.covariance()))
  rtol = 1e-6 if dtype == tf.float32 else 1e-10
  np.testing.assert_allclose(
    actual, np.broadcast_to(expected, [*shape, target.num_dims]), rtol=rtol
  )


@pytest.mark.parametrize('case', _CASES)
def test_moments(case):
  target = _CASES[case]
  np.testing.assert_allclose(
    target.standard_deviations() ** 2, np.diag(target.covariance()), rtol=1e-12
  )
  assert target.mean.shape == (target.num_dims,)


def test_the_named_covariances():
  np.testing.assert_array_equal(
    _CASES['three_dimensional'].covariance(),
    [[1.0, 0.25, 0.25], [0.25, 2.0, 0.25], [0.25, 0.25, 3.0]],
  )
  variance = np.diag(_CASES['axis_aligned'].covariance())
  np.testing.assert_allclose(variance.max() / variance.min(), 1e4)
  # Precisions: tridiagonal, and an arrow that points at the hub.
  chain = np.linalg.inv(_CASES['ar1'].covariance())
  np.testing.assert_allclose(np.triu(chain, 2), 0.0, atol=1e-12)
  assert np.all(np.abs(np.diag(chain, 1)) > 0.1)
  arrow = np.linalg.inv(_CASES['arrowhead'].covariance())
  leaves = arrow[1:, 1:]
  np.testing.assert_allclose(leaves, np.diag(np.diag(leaves)), atol=1e-12)
  assert np.all(np.abs(arrow[0, 1:]) > 0.1)


@pytest.mark.parametrize('case', ['ar1', 'arrowhead', 'isotropic'])
def test_no_dense_product_in_a_sparse_graph(case):
  target = _CASES[case]
  graph = (
    tf.function(target.log_prob)
    .get_concrete_function(tf.TensorSpec([7, target.num_dims]))
    .graph
  )
  types = {op.type for op in graph.get_operations()}
  assert not types & {'MatMul', 'BatchMatMulV2', 'Einsum'}, types


@pytest.mark.parametrize('case', _CASES)
def test_compiles_with_a_dynamic_batch(case):
  target = _CASES[case]
  x = _draws(target, [5], tf.float32)
  compiled = tf.function(
    lambda x: (target.log_prob(x), target.diag_hessian(x)),
    input_signature=[tf.TensorSpec([None, target.num_dims])],
    jit_compile=True,
  )
  log_prob, diag = compiled(x)
  np.testing.assert_allclose(log_prob, target.log_prob(x), rtol=1e-5)
  np.testing.assert_allclose(diag, target.diag_hessian(x), rtol=1e-6)


@pytest.mark.parametrize('case', _CASES)
def test_pickles(case):
  target = _CASES[case]
  again = pickle.loads(pickle.dumps(target))
  x = _draws(target, [3], tf.float64)
  np.testing.assert_array_equal(again.log_prob(x), target.log_prob(x))


@pytest.mark.parametrize(
  ('args', 'match'),
  [
    ([np.ones([2, 3])], r'shape \[2, 3\], but a square'),
    ([np.array([[1.0, 0.5], [0.0, 1.0]])], 'not symmetric'),
    ([np.array([[1e-10, 9e-11], [0.0, 1e-10]])], 'not symmetric'),
    ([np.array([[1.0, 2.0], [2.0, 1.0]])], 'not positive definite.* -1'),
    ([np.eye(2), np.zeros(3)], r'`mean` has shape \[3\]'),
  ],
)
def test_refuses_what_is_no_covariance(args, match):
  with pytest.raises(ValueError, match=match):
    gaussian.from_covariance(*args)


def test_refuses_an_explosive_chain():
  with pytest.raises(ValueError, match=r'`coefficient` is 1\.0'):
    gaussian.ar1(3, coefficient=1.0)


def test_one_coordinate_is_in_the_middle_of_the_scales():
  assert gaussian.axis_aligned(1).standard_deviations() == [1.0]
