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
"""Chains that start from draws of the prior."""

import inspect

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc.run import unconstrained_target
from tfp_diag.mcmc.run.unconstrained_target import target_of_model

tfd = tfp.distributions


@tfd.JointDistributionCoroutineAutoBatched
def widths():
  scale = yield tfd.HalfNormal(1.0, name='scale')
  yield tfd.Normal(100.0, 2.0, name='mean')
  yield tfd.Uniform(0.0, scale, name='y')


NAMED = tfd.JointDistributionNamed(
  {
    'mean': tfd.Sample(tfd.Normal(100.0, 2.0), 3),
    'y': lambda mean: tfd.Independent(tfd.Normal(mean, 1.0), 1),
  }
)


def starts(model, chains, seed=0, **pins):
  """Where the chains start, in the space of the model."""
  target = target_of_model(model, pins, 'prior', [chains], [seed, 1])
  return target.constrain(target.start)


def test_starts_have_the_law_of_the_prior():
  """p < 1e-4 fails: one false alarm in ten thousand seeds."""
  found = starts(NAMED, 500, y=[99.0, 100.0, 101.0])
  assert set(found) == {'mean'}
  mean = found['mean'].numpy()
  assert mean.shape == (500, 3)
  law = scipy.stats.norm(100.0, 2.0)
  assert scipy.stats.kstest(mean.ravel(), law.cdf).pvalue > 1e-4
  # The test sees a start of the usual kind, and one of half the width.
  assert scipy.stats.kstest(mean.ravel() - 100.0, law.cdf).pvalue < 1e-4
  half = 100.0 + (mean.ravel() - 100.0) / 2.0
  assert scipy.stats.kstest(half, law.cdf).pvalue < 1e-4


def test_draws_without_density_are_drawn_again():
  scale = starts(widths, 64, y=1.2).scale.numpy()
  assert np.all(scale > 1.2)
  assert len(np.unique(scale)) == 64


def test_seeds_and_models_without_data():
  one, same, other = (starts(widths, 4, seed) for seed in (0, 0, 1))
  np.testing.assert_array_equal(one.y, same.y)
  assert not np.any(np.isclose(one.y, other.y))
  assert np.all((one.y > 0) & (one.y < one.scale))


@pytest.mark.filterwarnings('ignore::UserWarning')
@pytest.mark.parametrize('in_graph', [False, True])
def test_drivers_start_there(in_graph):
  def run():
    return tfp_diag.mcmc.windowed_adaptive_mala(
      5,
      NAMED,
      n_chains=4,
      num_adaptation_steps=20,
      init='prior',
      seed=1,
      y=[99.0, 100.0, 101.0],
    ).draws['mean']

  if in_graph:
    run = tf.function(run, autograph=False)
  draws = run()
  # From (-2, 2) no chain gets there in 25 steps.
  assert np.all(np.abs(draws - 100.0) < 15.0)


@pytest.mark.filterwarnings('ignore::UserWarning')
def test_sample_posterior_starts_there():
  found = tfp_diag.mcmc.sample_posterior(
    NAMED,
    5,
    num_chains=4,
    num_warmup_steps=30,
    num_steps_between_results=0,
    init='prior',
    use_curvature=False,
    jit_compile=False,
    seed=1,
    y=[99.0, 100.0, 101.0],
  )
  assert np.all(np.abs(found.draws['mean'] - 100.0) < 15.0)


def test_what_has_no_prior_is_refused():
  with pytest.raises(ValueError, match=r"'priors', but must be .* or 'prior'"):
    tfp_diag.mcmc.sample_posterior(NAMED, 5, init='priors', y=tf.zeros([3]))
  with pytest.raises(ValueError, match='callable has no prior'):
    tfp_diag.mcmc.windowed_adaptive_mala(5, lambda x: -(x**2), init='prior')


@pytest.mark.parametrize('name', ['sample_posterior', 'windowed_adaptive_mala'])
def test_a_number_of_chains_beside_other_starts_is_refused(name):
  driver = getattr(tfp_diag.mcmc, name)
  count = {'sample_posterior': 'num_chains'}.get(name, 'n_chains')
  default = inspect.signature(driver).parameters[count].default
  # It counts as not given.
  assert default == unconstrained_target.DEFAULT_NUM_CHAINS
  with pytest.raises(ValueError, match=f'`{count}` is 4, but `init` has 8'):
    driver(
      *([10] if name == 'windowed_adaptive_mala' else []),
      lambda x: -tf.reduce_sum(x**2, axis=-1),
      *([10] if name == 'sample_posterior' else []),
      init=tf.ones([8, 2]),
      seed=1,
      **{count: 4},
    )


@tfd.JointDistributionCoroutineAutoBatched
def bounded():
  bound = yield tfd.Pareto(1.5, 1.0, name='bound')
  yield tfd.Sample(tfd.Uniform(0.0, bound), 2, name='y')


@pytest.mark.parametrize('init', [None, 'prior'])
@pytest.mark.parametrize('in_graph', [False, True])
def test_chains_without_a_start_get_that_of_another(init, in_graph):
  """One in 130 starts, and one in 300 draws of the prior, has a density."""

  def run():
    pins = {'y': [3.1 if init is None else 45.0, 1.0]}
    target = target_of_model(bounded, pins, init, [8, 8], [0, 1])
    return target.constrain(target.start).bound

  if in_graph:
    run = tf.function(run, autograph=False)
  found = run().numpy()
  assert found.shape == (8, 8)
  assert np.all(found > (3.1 if init is None else 45.0))
  assert 1 < len(np.unique(found)) < 64
  np.testing.assert_array_equal(run(), found)


@pytest.mark.parametrize('init', [None, 'prior'])
def test_without_any_start_the_count_is_that_of_all(init):
  with pytest.raises(
    ValueError,
    match=r'in 50 tries for any of 16 chains\. .*-inf .* in 16 of 16 chains',
  ):
    target_of_model(bounded, {'y': [1.0, -1.0]}, init, [16], [0, 1])
