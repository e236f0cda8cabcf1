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
"""Every case: its closed form, and its definition in NumPy and TensorFlow."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from benchmarks import cases, suite
from benchmarks.cases import models, regressions
from benchmarks.tools import tensorflow_ways
from benchmarks.tools.numpy_ops import NumpyOps
from tests.oracles import hessian_by_copies

TINY = {
  'arrowhead': [5, 2],
  'binomial_mixed': [2, 3, 7, 2],
  'brusselator': [3, 2],
  'chain': [6, 2],
  'classifier_weights': [2, 3, 5, 2, 3],
  'cox': [3, 6, 2],
  'deep_network_weights': [2, 3, 2, 4, 2],
  'elementwise': [4, 2],
  'forces': [3, 2],
  'gaussian': [4, 3],
  'gaussian_3d': [2],
  'hierarchical': [3, 8, 2],
  'horseshoe': [3, 6, 2],
  'item_response': [3, 2, 7, 2],
  'item_response_2pl': [3, 2, 7, 2],
  'latent_gp': [4, 2],
  'log_normalizer': [5, 2],
  'logistic_regression': [3, 2, 10],
  'matrix_factorization': [3, 2, 2, 5, 2],
  'mixture': [3, 5, 2],
  'mlp_field': [3, 4, 2],
  'negative_binomial': [3, 6, 2],
  'network_weights': [2, 3, 5, 2],
  'ordinal': [2, 5, 12, 2],
  'phi4': [3, 2],
  'poisson_mixed': [2, 3, 7, 2],
  'score': [3, 2],
  'softmax': [4, 2],
  'softmax_regression': [3, 4, 6, 2],
  'state_space': [3, 2, 2],
  'stochastic_volatility': [5, 2],
}

MODELS = [*models.__all__, *regressions.__all__]

SEVERAL_OUTPUTS = ['deep_network_weights', [2, 3, 2, 4, 2, 3]]


def tiny(name):
  return cases.make_case([name, TINY[name]])


class Float64Ops(tensorflow_ways.TensorFlowOps):
  @staticmethod
  def array(values):
    return tf.constant(values, tf.float64)


def dense_diagonal(case, x):
  """By tapes in float64, without the package."""
  flat = tf.reshape(tf.constant(x, tf.float64), [case.batch, -1])

  def fn(flat):
    return case.fn(Float64Ops, tf.reshape(flat, [-1, *case.event_shape]), 1.0)

  return tf.reshape(hessian_by_copies(fn, flat), x.shape)


def test_every_case_is_here():
  names = set(cases.__all__) - {'Case', 'make_case', 'standard_normal'}
  assert names == set(TINY)


def numerical_diagonal(case, x):
  """By central differences of the definition in NumPy."""
  flat = x.reshape(case.batch, -1)
  diagonal = np.empty_like(flat)
  step = 1e-4 if case.kind == 'hessian' else 1e-6
  for i in range(flat.shape[1]):
    moved = []
    for size in (step, 0.0, -step):
      y = flat.copy()
      y[:, i] += size
      value = case.fn(NumpyOps, y.reshape(x.shape), 1.0)
      moved.append(value.reshape(case.batch, -1))
    if case.kind == 'hessian':
      second = (moved[0] - 2 * moved[1] + moved[2]) / step**2
      diagonal[:, i] = second[:, 0]
    else:
      diagonal[:, i] = ((moved[0] - moved[2]) / (2 * step))[:, i]
  return diagonal.reshape(x.shape)


@pytest.mark.parametrize('name', TINY)
def test_closed_form(name):
  case = tiny(name)
  x = case.start().astype(np.float64)
  expected = case.diagonal(x)
  assert expected.shape == x.shape
  np.testing.assert_allclose(
    expected, numerical_diagonal(case, x), rtol=1e-5, atol=2e-6
  )


@pytest.mark.parametrize('name', TINY)
def test_one_definition_for_all(name):
  case = tiny(name)
  x = case.start()
  np.testing.assert_allclose(
    tensorflow_ways.function_of(case, 1.0)(tf.constant(x)),
    case.fn(NumpyOps, x.astype(np.float64), 1.0),
    rtol=2e-5,
    atol=1e-5,
  )
  # One sample without a batch, as JAX and torch call it.
  np.testing.assert_allclose(
    case.fn(NumpyOps, x[0].astype(np.float64), 1.0),
    case.fn(NumpyOps, x.astype(np.float64), 1.0)[0],
  )


@pytest.mark.parametrize('name', TINY)
def test_dense_derivatives(name):
  case = tiny(name)
  x = case.start()
  fn = tensorflow_ways.function_of(case, 1.0)
  n = case.num_coordinates
  if case.kind == 'hessian':
    dense = tfp_diag.hessian(fn, tf.constant(x), [case.batch])
  else:
    dense = tfp_diag.jacobian(fn, tf.constant(x), [case.batch])
  dense = np.reshape(dense, [case.batch, n, n])
  np.testing.assert_allclose(
    np.diagonal(dense, axis1=1, axis2=2).reshape(x.shape),
    case.diagonal(x.astype(np.float64)),
    rtol=1e-4,
    atol=1e-4,
  )


@pytest.mark.parametrize(
  'description',
  [[name, TINY[name]] for name in MODELS] + [SEVERAL_OUTPUTS],
  ids=lambda description: '-'.join(map(str, description)),
)
def test_the_diagonal_is_that_of_a_dense_hessian(description):
  case = cases.make_case(description)
  x = case.start()
  expected = dense_diagonal(case, x)
  np.testing.assert_allclose(
    case.diagonal(x.astype(np.float64)), expected, rtol=1e-9, atol=1e-9
  )
  fn = tensorflow_ways.function_of(case, 1.0)
  found = tfp_diag.diag_hessian(fn, tf.constant(x), [case.batch])[-1]
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_every_suite_can_be_made():
  quick = [*suite.QUICK_CASES, *suite.QUICK_TARGETS]
  for series in (suite.QUICK_SERIES, suite.QUICK_STRUCTURES):
    quick += [case for members in series.values() for case in members]
  for description in quick:
    case = cases.make_case(description)
    assert case.start().shape == (case.batch, *case.event_shape)
  assert {name for name, _ in suite.CASES} == set(TINY)


def test_no_two_cases_have_one_name():
  # The rows of a run are kept by name.
  described = [*suite.CASES, *itertools.chain(*suite.SERIES.values())]
  different = {str(description) for description in described}
  names = {cases.make_case(description).name for description in described}
  assert len(names) == len(different)


def test_an_unknown_case_is_named():
  with pytest.raises(ValueError, match='is no case'):
    cases.make_case(['make_case', []])
