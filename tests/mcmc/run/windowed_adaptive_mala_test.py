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
"""From a model to draws: exact posteriors, structures, errors."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc import LocalHessianPreconditioner, windowed_adaptive_mala

tfb = tfp.bijectors
tfd = tfp.distributions

_COUNTS = [3.0, 0.0, 1.0, 2.0, 4.0]
_Y = [[1.5, -3.0]]
_TRACE = {
  'step_size',
  'tune',
  'target_log_prob',
  'diverging',
  'accept_ratio',
  'log_accept_ratio',
  'is_accepted',
}
# Few steps, where only shapes and structures matter.
_TINY = {'n_chains': 2, 'num_adaptation_steps': 4, 'seed': (1, 2)}


@tfd.JointDistributionCoroutineAutoBatched
def _model():
  rate = yield tfd.Gamma(2.0, 1.0, name='rate')
  yield tfd.Sample(tfd.Poisson(rate), 5, name='counts')
  mean = yield tfd.Sample(tfd.Normal(0.0, 100.0), 2, name='mean')
  yield tfd.Sample(
    tfd.Independent(tfd.Normal(mean, [0.01, 1.0]), 1), 1, name='y'
  )


_PINS = {'counts': _COUNTS, 'y': _Y}


def _z_scores(draws, num_counts=5):
  """Against the posterior, from the averages of the chains (independent)."""
  shape, scale = 2.0 + sum(_COUNTS), 1.0 / (1.0 + num_counts)
  log_rate = scipy.special.digamma(shape) + np.log(scale)
  variance = 1.0 / (1e-4 + np.array([1e4, 1.0]))
  mean = variance * [1e4, 1.0] * np.array(_Y[0])
  values = [draws.rate, np.log(draws.rate), *np.moveaxis(draws.mean, -1, 0)]
  scores = []
  for x, expected in zip(values, [shape * scale, log_rate, *mean]):
    averages = np.mean(x, 0, dtype=np.float64)
    error = np.std(averages, ddof=1) / np.sqrt(averages.size)
    scores.append((averages.mean() - expected) / error)
  # The spread, to 5 per cent.
  np.testing.assert_allclose(
    np.std(values[2:], (1, 2)), variance**0.5, rtol=0.05
  )
  return np.abs(scores)


@pytest.mark.parametrize('preconditioner', ['fisher_divergence', 'hessian'])
def test_posterior_in_closed_form(preconditioner):
  """Scales of 0.01, 0.3 and 1, a positive variable. False alarms: 2e-5."""
  draws, trace = windowed_adaptive_mala(
    400, _model, preconditioner=preconditioner, seed=(1, 2), **_PINS
  )
  assert draws.rate.shape == [400, 64]
  assert draws.mean.shape == [400, 64, 2]
  assert np.max(_z_scores(draws)) < 5.0
  # The control: one count less is another posterior.
  assert np.min(_z_scores(draws, 4)[:2]) > 10.0
  assert set(trace) == _TRACE
  np.testing.assert_allclose(np.mean(trace['accept_ratio']), 0.574, atol=0.03)
  np.testing.assert_allclose(np.mean(trace['is_accepted']), 0.574, atol=0.03)
  assert not np.any(trace['tune'])
  assert np.all(trace['step_size'] == trace['step_size'][0])


def test_local_hessian():
  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    log_scale = yield tfd.Normal(0.0, 1.5, name='log_scale')
    yield tfd.Sample(tfd.Normal(0.0, tf.exp(log_scale)), 3, name='x')

  draws, trace = windowed_adaptive_mala(
    600,
    model,
    preconditioner=LocalHessianPreconditioner(1e-4),
    num_adaptation_steps=200,
    seed=(1, 2),
  )
  averages = np.mean(draws.log_scale, 0)
  assert abs(averages.mean()) < 5 * averages.std(ddof=1) / 8
  np.testing.assert_allclose(np.std(draws.log_scale), 1.5, rtol=0.15)
  np.testing.assert_allclose(np.mean(trace['accept_ratio']), 0.574, atol=0.03)


_NAMED = tfd.JointDistributionNamed(
  {
    'b': lambda a: tfd.Independent(
      tfd.Uniform(a[..., tf.newaxis] - 1.0, a[..., tf.newaxis] + tf.ones([3])),
      1,
    ),
    'a': tfd.Normal(0.0, 1.0),
  }
)
_SEQUENTIAL = tfd.JointDistributionSequential(
  [
    tfd.Gamma(2.0, 2.0),
    lambda g: tfd.Normal(0.0, g),
  ]
)
_VECTOR = tfd.JointDistributionSequentialAutoBatched(
  [
    tfd.MultivariateNormalDiag(tf.zeros([3])),
    lambda x: tfd.Poisson(tf.exp(x)),
  ]
)


@pytest.mark.parametrize(
  ('model', 'container', 'shapes'),
  [
    (_NAMED, dict, {'a': [], 'b': [3]}),
    (_SEQUENTIAL, ('g', 'x'), [[], []]),
    (_VECTOR.experimental_pin(None, tf.ones([3])), ('x',), [[3]]),
  ],
)
def test_structures(model, container, shapes):
  n_chains = [2, 3] if container is dict else 2
  kwargs = dict(_TINY, n_chains=n_chains)
  draws, trace = windowed_adaptive_mala(3, model, **kwargs)
  assert isinstance(draws, dict) or draws._fields == container
  leading = [3, *np.atleast_1d(n_chains)]
  if container is dict:
    assert {k: list(v.shape) for k, v in draws.items()} == {
      k: leading + s for k, s in shapes.items()
    }
    assert np.all(np.abs(draws['b'] - draws['a'][..., tf.newaxis]) < 1.0)
  else:
    assert [list(x.shape) for x in draws] == [leading + s for s in shapes]
  assert trace['is_accepted'].shape == leading


def _log_prob(rate, mean):
  return (
    tfd.Gamma(2.0, 1.0).log_prob(rate)
    + tf.reduce_sum(tfd.Poisson(rate[..., tf.newaxis]).log_prob(_COUNTS), -1)
    + tf.reduce_sum(tfd.Normal(0.0, 100.0).log_prob(mean), -1)
    + tf.reduce_sum(tfd.Normal(mean, [0.01, 1.0]).log_prob(_Y[0]), -1)
  )


def _init():
  rng = np.random.default_rng(0)
  return [
    tf.constant(rng.uniform(0.5, 3.0, size=[4]), tf.float32),
    tf.constant(rng.uniform(-2.0, 2.0, size=[4, 2]), tf.float32),
  ]


_SHORT = {'num_adaptation_steps': 30, 'seed': (3, 4)}


@pytest.fixture(scope='module')
def short_run():
  return windowed_adaptive_mala(5, _model, init=_init(), **_SHORT, **_PINS)


@pytest.mark.parametrize('container', [list, dict])
def test_a_log_density_with_bijectors_is_the_model(container, short_run):
  init = _init()
  expected, expected_trace = short_run
  bijectors = [
    tfd.Gamma(2.0, 1.0).experimental_default_event_space_bijector(),
    None,
  ]
  if container is dict:
    # The parts of a dict are in the order of its keys.
    init, bijectors = (dict(zip('ab', v)) for v in (init, bijectors))

  def log_prob(a, b):
    return _log_prob(a, b)

  draws, trace = windowed_adaptive_mala(
    5, log_prob, init=init, bijectors=bijectors, **_SHORT
  )
  assert isinstance(draws, container)
  # The same numbers in another order of additions, amplified by the steps.
  for x, e in zip(tf.nest.flatten(draws), expected):
    np.testing.assert_allclose(x, e, rtol=1e-2)
  np.testing.assert_array_equal(
    trace['is_accepted'], expected_trace['is_accepted']
  )


def test_a_single_tensor_in_float64():
  sds = np.array([0.01, 1.0, 100.0])
  x = np.random.default_rng(0).uniform(-2.0, 2.0, size=[32, 3])
  draws, trace = windowed_adaptive_mala(
    200,
    lambda x: -0.5 * tf.reduce_sum((x / sds) ** 2, -1),
    init=tf.constant(x),
    num_adaptation_steps=200,
    seed=(1, 2),
  )
  assert draws.dtype == tf.float64 and trace['step_size'].dtype == tf.float64
  assert draws.shape == [200, 32, 3]
  np.testing.assert_allclose(np.std(draws, (0, 1)), sds, rtol=0.1)


def test_full_matrix_for_strong_correlations():
  # A correlation of 0.999, and a positive variable beside it.
  noise = 0.0447

  @tfd.JointDistributionCoroutineAutoBatched
  def model():
    x = yield tfd.Normal(0.0, 1.0, name='x')
    yield tfd.Normal(x, noise, name='y')
    yield tfd.Gamma(3.0, 1.0, name='z')

  def autocorrelation(preconditioner):
    draws, trace = windowed_adaptive_mala(
      200,
      model,
      n_chains=16,
      preconditioner=preconditioner,
      num_adaptation_steps=400,
      seed=(1, 2),
    )
    np.testing.assert_allclose(np.mean(trace['accept_ratio']), 0.574, atol=0.05)
    x = draws.x.numpy() - np.mean(draws.x)
    np.testing.assert_allclose(np.std(draws.y - draws.x), noise, rtol=0.15)
    return np.mean(x[10:] * x[:-10]) / np.var(x)

  assert autocorrelation('full_fisher') < 0.3
  # The control: no diagonal scale can do that.
  assert autocorrelation('fisher_divergence') > 0.7


def test_own_trace_and_tuning_draws():
  draws, (traced, is_adapting, is_accepted) = windowed_adaptive_mala(
    3,
    _model,
    trace_fn=lambda draw, is_adapting, results: (
      draw,
      is_adapting,
      results.is_accepted,
    ),
    discard_tuning=False,
    **_TINY,
    **_PINS,
  )
  assert draws.rate.shape == [7, 2]
  # In another graph, with other rounding errors.
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), draws, traced
  )
  np.testing.assert_array_equal(is_adapting, 4 * [True] + 3 * [False])
  assert is_accepted.shape == [7, 2]


@pytest.mark.parametrize('discard_tuning', [True, False])
def test_warnings_go_by_the_trace_after_the_adaptation(discard_tuning):
  def log_prob(x):
    return 1e8 - 0.5 * tf.reduce_sum(x**2, -1)

  with pytest.warns(UserWarning, match='float32 are 8 apart') as seen:
    draws, trace = windowed_adaptive_mala(
      60,
      log_prob,
      init=tf.random.stateless_normal([32, 2], (1, 2)),
      num_adaptation_steps=40,
      discard_tuning=discard_tuning,
      seed=1,
    )
  [text] = [str(w.message) for w in seen if 'float32' in str(w.message)]
  said = ' '.join(tfp_diag.mcmc.summarize(draws, trace).warnings)
  assert text == f'{said} Until then a longer run gains nothing.'


def test_seeds_and_functions():
  model = _SEQUENTIAL.experimental_pin(tf.constant(2.0), None)

  def run(seed):
    kwargs = dict(_TINY, seed=seed)
    return windowed_adaptive_mala(3, model, **kwargs).draws[0]

  first = run((1, 2))
  np.testing.assert_array_equal(first, run((1, 2)))
  assert not np.any(first == run((1, 3)))
  np.testing.assert_allclose(
    first, tf.function(lambda: run((1, 2)))(), rtol=1e-3
  )


def test_a_preconditioner_that_is_not_adapted():
  def log_prob(u, w):
    return -0.5 * (u**2 + tf.reduce_sum(w**2, -1))

  draws, trace = windowed_adaptive_mala(
    3,
    log_prob,
    preconditioner=[tf.constant(0.3), tf.constant([2.0, 3.0])],
    init=[tf.ones([2]), tf.ones([2, 2])],
    jit_compile=True,
    num_adaptation_steps=0,
    init_step_size=0.25,
    seed=(1, 2),
  )
  assert [x.shape for x in draws] == [[3, 2], [3, 2, 2]]
  np.testing.assert_array_equal(trace['step_size'], 3 * [0.25])


@pytest.mark.parametrize(
  ('model', 'kwargs', 'error', 'match'),
  [
    (_model, {'preconditioner': 'best'}, ValueError, r"'best'.*'variance'"),
    (_model, {'bijectors': tfb.Exp()}, ValueError, 'has its own'),
    (_log_prob, {}, ValueError, 'pass `init`'),
    (
      _log_prob,
      {'y': 3.0, 'init': [1.0, 2.0]},
      ValueError,
      'is not an argument',
    ),
    (3.0, {}, TypeError, '`joint_dist`.*but is 3'),
    (
      _log_prob,
      {'init': [tf.ones([4]), tf.ones([4, 2])], 'bijectors': [None]},
      ValueError,
      '`bijectors` has the structure',
    ),
    (
      _log_prob,
      {'init': [tf.constant([1.0, np.nan]), tf.ones([2, 2])]},
      ValueError,
      r'target log density.*index \[1\]',
    ),
    (
      tfd.JointDistributionSequential([tfd.Normal(tf.zeros([3]), 1.0)]),
      {},
      ValueError,
      'batch shape',
    ),
  ],
)
def test_errors(model, kwargs, error, match):
  with pytest.raises(error, match=match):
    windowed_adaptive_mala(3, model, **kwargs)


def test_the_start_is_judged_with_the_preconditioner_of_the_run():
  """The third derivative of `|x|**2.5` is not a number at 0."""
  arguments = {
    'joint_dist': lambda x: -0.5 * tf.reduce_sum(tf.abs(x) ** 2.5, -1),
    'init': tf.zeros([4, 2]),
    'num_adaptation_steps': 10,
    'seed': (1, 2),
  }
  with pytest.raises(ValueError, match='start'):
    windowed_adaptive_mala(
      5,
      preconditioner=LocalHessianPreconditioner(),
      **arguments,
    )
  with pytest.raises(ValueError, match='`target_accept_prob` is 57'):
    windowed_adaptive_mala(5, target_accept_prob=57.4, **arguments)
