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
"""One step from exact draws leaves the target as it is: every kind of kernel.

All seeds are fixed. The least of five p-values is compared with 1e-7, so that a
correct kernel with new seeds fails one of these tests once in some 50,000 runs.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tfp_diag.mcmc.kernels import langevin

_LEVEL = 1e-7
_NUM_DRAWS = 50_000
_CHAINS = {1: [50_000], 2: [250, 200], 3: [2, 250, 100]}


def _p_value(laws, kind, chains, dtype, spoil=lambda results: results):
  """The least p-value of the statistics after one step from exact draws."""
  target = laws.target
  # From other noise than that from which the adaptation has learned.
  noise = np.random.default_rng(11).normal(size=[_NUM_DRAWS, 3])
  state = tf.constant(target.exact(noise).reshape([*chains, 3]), dtype)
  made = laws.make_kernel(kind, dtype)
  moved, results = made.kernel.one_step(
    state, spoil(made.start(state)), seed=(3, 9)
  )
  assert np.mean(laws.core(results).is_accepted) > 0.2
  z = target.standardize(moved.numpy().astype(np.float64).reshape(-1, 3))
  # Coordinates, a direction across them, and the radius.
  tests = [scipy.stats.kstest(column, 'norm') for column in z.T]
  tests.append(scipy.stats.kstest(z.sum(-1) / np.sqrt(3.0), 'norm'))
  tests.append(scipy.stats.kstest((z**2).sum(-1), scipy.stats.chi2(3).cdf))
  return min(t.pvalue for t in tests)


@pytest.mark.parametrize(
  ('rank', 'dtype'), [(1, 'float32'), (2, 'float64'), (3, 'float32')]
)
def test_one_step_leaves_the_target_invariant(laws, kind, rank, dtype):
  assert _p_value(laws, kind, _CHAINS[rank], tf.as_dtype(dtype)) > _LEVEL


def test_catches_the_gradient_of_another_chain(laws, kind):
  """As when a cache is gathered with a wrong index."""

  def spoil(results):
    core = laws.core(results)
    before = core.accepted_results
    rolled = tf.nest.map_structure(
      lambda g: tf.roll(g, 1, axis=0), before.grads_target_log_prob
    )
    return laws.with_core(
      results,
      core._replace(
        accepted_results=before._replace(grads_target_log_prob=rolled)
      ),
    )

  assert _p_value(laws, kind, _CHAINS[1], tf.float64, spoil) < _LEVEL


def test_catches_a_wrong_term_in_the_reverse_density(laws, kind, monkeypatch):
  """The way back without its drift."""

  def spoiled(right):
    def correction(self, terms, whitened, noise, root, axes):
      whitened = whitened[0], tf.zeros_like(whitened[1])
      return right(self, terms, whitened, noise, root, axes)

    return correction

  laws.make_kernel(kind, tf.float64)  # Learns from the right law.
  for law in (
    langevin.ConstantScale,
    langevin.ExponentialScale,
    langevin.Volatility,
  ):
    monkeypatch.setattr(law, 'correction', spoiled(law.correction))
  assert _p_value(laws, kind, _CHAINS[1], tf.float64) < _LEVEL


def test_catches_a_dropped_log_scale_ratio(laws, local_kind, monkeypatch):
  right = langevin.Volatility.correction

  def wrong(self, terms, whitened, noise, root, axes):
    ratio = tf.math.log(terms[0].volatility / terms[1].volatility)
    correction = right(self, terms, whitened, noise, root, axes)
    return correction - tf.reduce_sum(ratio, axes)

  monkeypatch.setattr(langevin.Volatility, 'correction', wrong)
  assert _p_value(laws, local_kind, _CHAINS[1], tf.float64) < _LEVEL


def test_catches_an_energy_that_counts_half(laws, corrected_kind, monkeypatch):
  """The correction of a constant scale at another strength."""

  def spoiled(right):
    return lambda *args: 0.5 * right(*args)

  for law in (langevin.ConstantScale, langevin.ExponentialScale):
    monkeypatch.setattr(law, 'correction', spoiled(law.correction))
  assert _p_value(laws, corrected_kind, _CHAINS[1], tf.float64) < _LEVEL
