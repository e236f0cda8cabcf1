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
"""A way that is cheaper than passes is tried before it is believed."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_diagonal, jacobian_diagonal
from tfp_diag.diagonal.hessian_terms import HessianTerms
from tfp_diag.diagonal.jacobian_terms import JacobianTerms

A = tf.constant(np.random.default_rng(0).normal(size=[24, 12]))


def regression(x):
  return tf.reduce_sum(tf.nn.softplus(x @ A), axis=-1)


def network(x):
  return tf.tanh(x @ A) @ tf.transpose(A)


def draw(seed):
  return tf.constant(np.random.default_rng(seed).normal(size=[5, 24]))


@pytest.fixture
def fresh_cache():
  tfp_diag.clear_cache()
  yield
  tfp_diag.clear_cache()


def broken(monkeypatch, terms, kind):
  """Makes the terms wrong at every coordinate, or raise."""
  right = terms.diagonal

  def diagonal(self, call):
    if kind == 'raises':
      raise KeyError('no such op')
    return [1.25 * d for d in right(self, call)]

  monkeypatch.setattr(terms, 'diagonal', diagonal)


@pytest.mark.parametrize('kind', ('raises', 'is_wrong'))
@pytest.mark.parametrize('how', ('eager', 'plan'))
@pytest.mark.usefixtures('fresh_cache', 'without_sweeps')
def test_passes_take_over_for_a_hessian(monkeypatch, how, kind):
  x = draw(1)
  wanted = hessian_diagonal(regression, x)
  broken(monkeypatch, HessianTerms, kind)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    if how == 'eager':
      diag = tfp_diag.diag_hessian(regression, x)[2]
    else:
      plan = tfp_diag.plan_diag_hessian(regression, x)
      assert plan.num_passes == 24
      diag = plan(x)[2]
  np.testing.assert_allclose(diag, wanted, rtol=1e-10)
  if how == 'eager' or kind == 'raises':
    assert any('passes run instead' in str(w.message) for w in caught)


@pytest.mark.parametrize('kind', ('raises', 'is_wrong'))
@pytest.mark.usefixtures('fresh_cache')
def test_passes_take_over_for_a_jacobian(monkeypatch, kind):
  x = draw(2)
  broken(monkeypatch, JacobianTerms, kind)
  with pytest.warns(RuntimeWarning, match='passes run instead'):
    _, diag = tfp_diag.diag_jacobian(x, sample_shape=[5], fn=network)
  np.testing.assert_allclose(diag[0], jacobian_diagonal(network, x), rtol=1e-10)


@pytest.mark.usefixtures('fresh_cache')
def test_what_is_right_is_believed():
  x = draw(3)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    for _ in range(2):
      diag = tfp_diag.diag_hessian(regression, x)[2]
      np.testing.assert_allclose(diag, hessian_diagonal(regression, x))
      _, diag = tfp_diag.diag_jacobian(x, sample_shape=[5], fn=network)
      np.testing.assert_allclose(
        diag[0], jacobian_diagonal(network, x), rtol=1e-10
      )
