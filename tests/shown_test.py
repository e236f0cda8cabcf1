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
"""Values show themselves in a line, and in a notebook as `print` does."""

import html

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag import mcmc, sparsity


def _values():
  x = tf.ones([2, 3])
  return {
    'Plan': tfp_diag.plan_diag_jacobian(tf.sin, x, [2]),
    'SparsityPattern': sparsity.SparsityPattern(np.eye(400)),
    'Coloring': sparsity.Coloring(np.zeros([4000], int)),
    'Summary': mcmc.summarize(
      np.random.default_rng(0).normal(size=[20, 4, 30])
    ),
  }


@pytest.mark.parametrize('name', list(_values()))
def test_a_line_and_a_page(name):
  value = _values()[name]
  assert repr(value).startswith(f'<{name} ')
  assert '\n' not in repr(value) and len(repr(value)) < 120
  assert value._repr_html_() == f'<pre>{html.escape(str(value))}</pre>'


def test_one_warning_is_one():
  found = mcmc.summarize(np.random.default_rng(0).normal(size=[500, 1]))
  assert repr(found).endswith(' 1 warning>')
  assert repr(_values()['Summary']).endswith(' warnings>')


def test_lazy_matrices():
  matrix = tfp_diag.LazyJacobian(tf.sin, tf.ones([3]))
  assert matrix._repr_html_() == f'<pre>{html.escape(repr(matrix))}</pre>'


def test_a_data_frame():
  pytest.importorskip('pandas')
  summary = _values()['Summary']
  table = summary.to_dataframe()
  assert list(table.index) == list(summary.names)
  for title, column in summary.columns().items():
    np.testing.assert_array_equal(table[title], column)


def test_no_pandas(monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 'pandas', None)
  with pytest.raises(ImportError, match='`to_dataframe` needs pandas'):
    _values()['Summary'].to_dataframe()


@pytest.mark.parametrize('seed', [3, np.int64(3), (3, 0), tf.constant([3, 0])])
def test_one_convention_for_seeds(seed):
  x = tf.constant([[1.0, 2.0], [0.5, 3.0]])

  def fn(x):
    return x * tf.reduce_sum(x, -1, keepdims=True)

  found = tfp_diag.stochastic_diag_jacobian(fn, x, 2, seed, [2]).estimate
  again = tfp_diag.stochastic_diag_jacobian(fn, x, 2, (3, 0), [2]).estimate
  np.testing.assert_array_equal(found, again)

  def trace(**kwargs):
    augmented = tfp_diag.trace_jacobian_hutchinson(
      lambda _, x: fn(x), [2, 2], tf.float32, **kwargs
    )
    return augmented(0.0, (x, tf.zeros_like(x)))[1]

  np.testing.assert_array_equal(
    trace(num_samples=3, seed=seed), trace(num_probes=3, seed=(3, 0))
  )
  assert np.all(np.isfinite(trace(seed=None)))
  with pytest.raises(ValueError, match='mean the same'):
    trace(num_samples=3, num_probes=2)
