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
"""Draws in arviz: axes, names, groups; the same tests for arviz 0.x and 1."""

import collections
import sys

import arviz as az
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc import (
  PreconditionedMALA,
  sample,
  summarize,
  to_arviz,
  windowed_adaptive_mala,
)

tfd = tfp.distributions


def group_names(data):
  """Their names: arviz 0.x lists them, arviz 1 has the paths of a tree."""
  names = data.groups() if callable(data.groups) else data.groups
  return {name.strip('/') for name in names} - {''}


def same(actual, expected):
  np.testing.assert_array_equal(np.asarray(actual), expected)


@tfd.JointDistributionCoroutineAutoBatched
def model():
  rate = yield tfd.Gamma(2.0, 1.0, name='rate')
  yield tfd.Sample(tfd.Poisson(rate), 3, name='counts')
  yield tfd.Sample(tfd.Normal(0.0, 1.0), 2, name='noise')


def run(n_chains, **kwargs):
  return windowed_adaptive_mala(
    20,
    model,
    n_chains=n_chains,
    num_adaptation_steps=10,
    seed=(0, 1),
    counts=[3.0, 0.0, 1.0],
    **kwargs,
  )


def test_windowed_adaptive_mala():
  draws, trace = run(4)
  data = to_arviz(draws, trace)
  assert group_names(data) == {'posterior', 'sample_stats'}
  assert set(data['posterior'].data_vars) == {'rate', 'noise'}
  same(data['posterior']['rate'], np.swapaxes(draws.rate, 0, 1))
  same(data['posterior']['noise'], np.swapaxes(draws.noise, 0, 1))
  assert data['posterior']['noise'].dims[:2] == ('chain', 'draw')
  statistics = data['sample_stats']
  for name, field in {
    'lp': 'target_log_prob',
    'acceptance_rate': 'accept_ratio',
    'diverging': 'diverging',
    'is_accepted': 'is_accepted',
    'log_accept_ratio': 'log_accept_ratio',
  }.items():
    same(statistics[name], np.swapaxes(trace[field], 0, 1))
  # One for all chains.
  same(statistics['step_size'], np.tile(trace['step_size'], [4, 1]))
  assert not np.any(statistics['tune'])
  # What arviz makes of it is what `summarize` says.
  summary = summarize(draws, trace)
  np.testing.assert_allclose(
    az.rhat(data)['noise'], summary.r_hat[1:], rtol=1e-6
  )
  assert len(az.summary(data)) == 3


@pytest.fixture(scope='module')
def run_with_tuning():
  return run(4, discard_tuning=False)


@pytest.mark.parametrize('save_warmup', [False, True])
def test_warmup(save_warmup, run_with_tuning):
  draws, trace = run_with_tuning
  assert draws.rate.shape == [30, 4]
  data = to_arviz(draws, trace, save_warmup=save_warmup)
  same(data['posterior']['rate'], np.swapaxes(draws.rate[10:], 0, 1))
  lp = np.swapaxes(trace['target_log_prob'], 0, 1)
  same(data['sample_stats']['lp'], lp[:, 10:])
  warmup = {'warmup_posterior', 'warmup_sample_stats'}
  found = group_names(data) - {'posterior', 'sample_stats'}
  assert found == (warmup if save_warmup else set())
  if save_warmup:
    noise = np.swapaxes(draws.noise[:10], 0, 1)
    same(data['warmup_posterior']['noise'], noise)
    same(data['warmup_sample_stats']['lp'], lp[:, :10])


def test_axes_of_chains_are_one_after_the_other():
  draws, trace = run([2, 3])
  data = to_arviz(draws, trace)
  noise = np.reshape(draws.noise, [20, 6, 2])
  same(data['posterior']['noise'], np.swapaxes(noise, 0, 1))
  same(data['posterior']['chain'], np.arange(6))
  is_accepted = np.reshape(trace['is_accepted'], [20, 6])
  same(data['sample_stats']['is_accepted'], is_accepted.T)


@pytest.mark.parametrize('driver', ['sample', 'sample_chain'])
def test_other_drivers(driver):
  kernel = PreconditionedMALA(
    lambda x, y: -0.5 * (x**2 + tf.reduce_sum(y**2, -1)), 0.5
  )
  state = [tf.zeros([4]), tf.ones([4, 2])]
  if driver == 'sample':
    draws, trace, *_ = sample(
      kernel, state, 5, progress_bar=False, jit_compile=False, seed=(0, 1)
    )
    lp = trace['target_log_prob']
  else:
    draws, trace = tfp.mcmc.sample_chain(
      5,
      state,
      kernel=kernel,
      trace_fn=lambda _, results: results,
      seed=(0, 1),
    )
    lp = trace.accepted_results.target_log_prob
  data = to_arviz(draws, trace, var_names=['mu', 'theta'])
  assert set(data['posterior'].data_vars) == {'mu', 'theta'}
  same(data['posterior']['theta'], np.swapaxes(draws[1], 0, 1))
  same(data['sample_stats']['lp'], np.swapaxes(lp, 0, 1))
  # The densities are those of the draws.
  np.testing.assert_allclose(
    lp, kernel.target_log_prob_fn(*draws), rtol=1e-5, atol=1e-5
  )
  statistics = set(data['sample_stats'].data_vars)
  assert {'acceptance_rate', 'step_size', 'is_accepted'} <= statistics


def test_nuts():
  draws, results = tfp.mcmc.sample_chain(
    5,
    tf.zeros([3]),
    kernel=tfp.mcmc.NoUTurnSampler(lambda x: -0.5 * x**2, 0.5),
    trace_fn=lambda _, results: results,
    seed=(0, 1),
  )
  statistics = to_arviz(draws, results)['sample_stats']
  same(statistics['diverging'], np.swapaxes(results.has_divergence, 0, 1))
  same(statistics['n_steps'], np.swapaxes(results.leapfrogs_taken, 0, 1))
  same(statistics['energy'], np.swapaxes(results.energy, 0, 1))
  same(statistics['step_size'], np.full([3, 5], 0.5, np.float32))


def test_dimensions_and_coordinates():
  x = np.random.default_rng(0).normal(size=[10, 4, 3])
  data = to_arviz(
    {'x': x, 'n': np.arange(40).reshape([10, 4])},
    dims={'x': ['school']},
    coords={'school': ['A', 'B', 'C']},
  )
  assert group_names(data) == {'posterior'}
  assert data['posterior']['x'].dims == ('chain', 'draw', 'school')
  same(data['posterior']['x'].sel(school='B'), x[..., 1].T)
  same(data['posterior']['n'], np.arange(40).reshape([10, 4]).T)


def test_names_and_one_chain():
  State = collections.namedtuple('State', ['a', 'b'])
  x = np.random.default_rng(1).normal(size=[10])
  data = to_arviz(State(x, {'c': x}), chain_ndims=0)
  assert set(data['posterior'].data_vars) == {'a', 'b.c'}
  same(data['posterior']['a'], x[np.newaxis])
  data = to_arviz([x, x], chain_ndims=0)
  assert set(data['posterior'].data_vars) == {'x0', 'x1'}


def test_other_statistics_are_kept():
  x = np.zeros([5, 2])
  extra = np.arange(40.0).reshape([5, 2, 4])
  data = to_arviz(x, {'extra': extra})
  same(data['sample_stats']['extra'], np.swapaxes(extra, 0, 1))


def test_who_made_it():
  attributes = to_arviz(np.zeros([5, 2]))['posterior'].attrs
  assert attributes['inference_library'] == 'tfp_diag'
  assert attributes['inference_library_version'] == tfp_diag.__version__


def test_without_arviz(monkeypatch):
  monkeypatch.setitem(sys.modules, 'arviz', None)
  match = r"needs arviz.*pip install 'tfp-diag\[arviz\]'"
  with pytest.raises(ImportError, match=match):
    to_arviz(np.zeros([5, 2]))


def test_errors():
  with pytest.raises(ValueError, match=r'lp in `trace` has shape \[4, 2\]'):
    to_arviz(np.zeros([5, 2]), {'lp': np.zeros([4, 2])})
  with pytest.raises(TypeError, match='list and must be a dict'):
    to_arviz(np.zeros([5, 2]), [np.zeros([5, 2])])


@pytest.mark.parametrize(
  'labels, sentence',
  [
    ({'dims': {'y': ['a']}}, "`dims` has the name 'y', but .* the parts 'x'"),
    ({'dims': {'x': ['a', 'b']}}, "2 names for 'x', .* its event has 1 axes"),
    (
      {'dims': {'x': ['a']}, 'coords': {'a': [1, 2]}},
      "2 labels for 'a', but that axis of 'x' has the size 3",
    ),
  ],
)
def test_labels_that_do_not_fit_are_named(labels, sentence):
  with pytest.raises(ValueError, match=sentence):
    to_arviz(np.zeros([5, 2, 3]), **labels)


def test_statistics_may_have_labels():
  extra = np.zeros([5, 2, 4])
  data = to_arviz(np.zeros([5, 2]), {'extra': extra}, dims={'extra': ['k']})
  assert data['sample_stats']['extra'].dims == ('chain', 'draw', 'k')
