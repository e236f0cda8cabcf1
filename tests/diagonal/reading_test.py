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
"""Graphs that were seen not to mix samples, and are not read again."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.diagonal import reading
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.sparsity import SampleMixingError

INDICES = {'in place': [0, 1, 2, 3], 'of others': [1, 0, 3, 2]}


def test_known_graphs_are_asked_again_if_constants_may_mix(monkeypatch):
  """Two densities of one graph, of which one takes the chains of others."""
  asked = []
  analyze = reading.analyze

  def counted(*args):
    asked.append(args)
    return analyze(*args)

  monkeypatch.setattr(reading, 'analyze', counted)
  monkeypatch.setattr(reading, '_unmixed', collections.OrderedDict())

  def problem(log_prob):
    return HessianProblem(log_prob, [tf.ones([4, 2])])

  for _ in range(3):
    reading.refuse_mixing(problem(lambda x: -tf.reduce_sum(x**2, -1)))
  assert len(asked) == 1

  def gathered(name):
    indices = tf.constant(INDICES[name])
    return lambda x: -tf.reduce_sum(tf.gather(x, indices) ** 2, -1)

  reading.refuse_mixing(problem(gathered('in place')))
  with pytest.raises(SampleMixingError):
    reading.refuse_mixing(problem(gathered('of others')))


def _broken(*_):
  raise KeyError('a bug')


def test_a_fault_costs_whole_matrices_no_more_than_columns(monkeypatch):
  monkeypatch.setattr(reading, 'analyze', _broken)
  x = tf.constant([0.5, -1.0])
  with pytest.warns(RuntimeWarning, match="KeyError: 'a bug'.*Reverse mode"):
    found = tfp_diag.jacobian(lambda x: tf.concat([tf.nn.silu(x), x], 0), x)
  np.testing.assert_allclose(found[2:], np.eye(2))
  slope = tf.sigmoid(x) * (1 + x * (1 - tf.sigmoid(x)))
  np.testing.assert_allclose(found[:2], np.diag(slope), rtol=1e-6, atol=1e-7)


def test_a_fault_costs_kernels_no_start(monkeypatch):
  monkeypatch.setattr(reading, 'analyze', _broken)
  monkeypatch.setattr(reading, '_unmixed', collections.OrderedDict())
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    lambda x: -tf.reduce_sum(x**2, axis=-1), step_size=0.1
  )
  with pytest.warns(RuntimeWarning, match='This is a fault of tfp_diag'):
    results = kernel.bootstrap_results(tf.ones([4, 3]))
  assert results.accepted_results.target_log_prob.shape == [4]
