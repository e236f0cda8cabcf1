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
"""What does not fit is named, with what fits, before TensorFlow sees it."""

import collections
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import (
  PreconditionedMALA,
  sample_posterior,
  windowed_adaptive_mala,
)
from tfp_diag.mcmc.run import latent_variables, model_arguments
from tfp_diag.mcmc.run.unconstrained_target import (
  target_of_log_prob,
  target_of_model,
)

tfd = tfp.distributions
Root = tfd.JointDistributionCoroutine.Root

_COUNTS = np.array([3.0, 0.0, 1.0, 2.0, 4.0], np.float32)


@tfd.JointDistributionCoroutineAutoBatched
def _model():
  rate = yield tfd.Gamma(2.0, 1.0, name='rate')
  yield tfd.Sample(tfd.Normal(0.0, 1.0), 2, name='shift')
  yield tfd.Sample(tfd.Poisson(rate), 5, name='counts')


@tfd.JointDistributionCoroutine
def _by_hand():
  rate = yield Root(tfd.Gamma(2.0, 1.0, name='rate'))
  yield tfd.Sample(tfd.Poisson(rate), 5, name='counts')


@tfd.JointDistributionCoroutineAutoBatched
def _discrete():
  share = yield tfd.Beta(1.0, 1.0, name='share')
  yield tfd.Bernoulli(probs=share, name='side')
  # In floating point, by default.
  yield tfd.Sample(tfd.Poisson(3.0), 2, name='number')
  mixed = tfd.Categorical(logits=[0.0, 0.0])
  yield tfd.MixtureSameFamily(mixed, tfd.Normal([0.0, 1.0], 1.0), name='mixed')


def _of(distribution):
  return tfd.JointDistributionNamed({'z': distribution})


def _like_tfps(cls):
  """A class of a user's own, with a bijector as TFP has it."""

  class Like(cls):
    def _default_event_space_bijector(self):
      return super()._default_event_space_bijector()

  return Like


class _Wishart(tfd.WishartTriL):
  """With a bijector that reaches all matrices."""

  def _default_event_space_bijector(self):
    return tfp.bijectors.Chain(
      [tfp.bijectors.CholeskyOuterProduct(), tfp.bijectors.FillScaleTriL()]
    )


@tfd.JointDistributionCoroutineAutoBatched
def _not_a_number():
  x = yield tfd.Normal(0.0, 1.0, name='x')
  yield tfd.Normal(tf.math.log(-1.0 - x**2), 1.0, name='y')


_SEQUENTIAL = tfd.JointDistributionSequential(
  [tfd.Gamma(2.0, 2.0), lambda g: tfd.Poisson(g)]
)
_NAMED = tfd.JointDistributionNamed(
  {'a': tfd.Gamma(2.0, 2.0), 'b': lambda a: tfd.Poisson(a)}
)


def _log_prob(x):
  return -0.5 * tf.reduce_sum(x**2, -1)


_DATA = {'counts': _COUNTS}
_INIT = {'rate': np.ones([4], 'f'), 'shift': np.ones([4, 2], 'f')}
_NEITHER = (
  "is neither an argument nor a variable of .*'rate', 'shift', 'counts'"
)


def run(model, n_draws=3, **kwargs):
  kwargs = {'n_chains': 2, 'num_adaptation_steps': 4, 'seed': 0, **kwargs}
  return windowed_adaptive_mala(n_draws, model, **kwargs)


@pytest.mark.parametrize(
  'model, arguments, match',
  [
    # Numbers.
    (_model, {'n_draws': -1}, r'`n_draws` is -1, but must be a nonneg'),
    (_model, {'n_draws': 2.0}, r'`n_draws` is 2\.0'),
    (_model, {'n_draws': True}, r'`n_draws` is True'),
    (_model, {'num_adaptation_steps': -1}, r'`num_adaptation_steps` is -1'),
    (_model, {'num_adaptation_steps': 1e3}, r'`num_adaptation_steps` is 1000'),
    (_model, {'n_chains': 2.0}, r'`n_chains` is 2\.0, but .* a positive int'),
    (_model, {'n_chains': 0}, r'`n_chains` is 0'),
    (_model, {'n_chains': [2, -3]}, r'`n_chains` is -3'),
    (_model, {'n_chains': '4'}, r"`n_chains` is '4'"),
    (_model, {'init_step_size': -0.1}, r'`init_step_size` is -0\.1, .* posit'),
    (_model, {'init_step_size': 'small'}, r"`init_step_size` is 'small'"),
    (_model, {'target_accept_prob': '0.6'}, r"`target_accept_prob` is '0\.6'"),
    (_model, {'target_accept_prob': np.nan}, r'`target_accept_prob` is nan'),
    (_model, {'target_accept_prob': 57.4}, r'`target_accept_prob` is 57\.4'),
    # Names.
    (
      _model,
      {'current_state': 0.0},
      r'not an argument here; use `init` instead',
    ),
    (
      _model,
      {'num_results': 9},
      r'not an argument here; use `n_draws` instead',
    ),
    (
      _model,
      {'num_chains': 9},
      r'not an argument here; use `n_chains` instead',
    ),
    (_model, {'num_burnin_steps': 9}, r'use `num_adaptation_steps` instead'),
    (
      _model,
      {'dual_averaging_kwargs': {}},
      r'use `target_accept_prob` instead',
    ),
    (
      _log_prob,
      {'current_state': 0.0},
      r'not an argument here; use `init` instead',
    ),
    (_model, {'block_size': 9}, r'`tfp_diag\.mcmc\.sample` has it'),
    (_model, {'max_tree_depth': 9}, r'nothing corresponds to it'),
    (
      _model,
      {'count': _COUNTS},
      rf"'count' {_NEITHER}.* Did you mean 'counts'\?",
    ),
    (
      _model,
      {'n_chain': 4},
      rf"'n_chain' {_NEITHER}.* Did you mean 'n_chains'\?",
    ),
    (_model, {'zzz': 4}, rf"'zzz' {_NEITHER}\.$"),
    # Of a dict of variables; 'seed' is not meant.
    (
      _model,
      {'observed': _DATA},
      rf"'observed' {_NEITHER}\. Name each .*, as in `counts=\.\.\.`\.$",
    ),
    (
      _model,
      {'pins': {}},
      r'Name each variable by keyword, as in `counts=\.\.',
    ),
    (_log_prob, {'observed': _DATA}, r'close over what is observed\.$'),
    (
      _model.experimental_pin(counts=_COUNTS),
      {'counts': _COUNTS},
      r"'counts' is pinned already in `joint_dist`",
    ),
    (_SEQUENTIAL, {'y': 3.0}, r"'y' is neither .* are 'g', 'x'"),
    # Pins.
    (_model, {'counts': _COUNTS[:4]}, r"'counts' has the shape \(4,\).*\(5,\)"),
    (_model, {'counts': [_COUNTS] * 2}, r"'counts' has the shape \(2, 5\)"),
    (_model, {'rate': [1.0, 2.0]}, r"'rate' has the shape \(2,\).* has \(\)"),
    (_model, {'counts': [[1.0], [2.0, 3.0]]}, r"'counts' is not an array"),
    (_by_hand, {'counts': [_COUNTS] * 3}, r"'counts' has the shape \(3, 5\)"),
    (_NAMED, {'b': tf.ones([3])}, r"'b' has the shape \(3,\), .* has \(\)"),
    (
      _model,
      {**_DATA, 'rate': 1.0, 'shift': np.zeros(2, 'f')},
      'Every variable of `joint_dist` is pinned, .* nothing is left to sample',
    ),
    # Variables.
    (_discrete, {}, r"The variable 'side' .* is a Bernoulli, .*`side=\.\.\.`"),
    (_discrete, {'side': 1}, r"The variable 'number' .* a Sample of Poisson,"),
    (
      _discrete,
      {'side': 1, 'number': [1.0, 2.0]},
      r"The variable 'mixed' .* is a MixtureSameFamily, .* mixtures have none",
    ),
    (_SEQUENTIAL, {}, r"The variable 'x' of `joint_dist` is a Poisson"),
    (_NAMED, {}, r"The variable 'b' of `joint_dist` is a Poisson"),
    (_of(tfd.LKJ(3, 2.0)), {}, "'z' .* is a LKJ, .* wrong log-determinant"),
    (
      _of(tfd.WishartTriL(3.0, np.eye(2), input_output_cholesky=True)),
      {},
      "'z' .* is a WishartTriL with `input_output_cholesky=True`",
    ),
    (
      _of(tfd.Sample(tfd.LKJ(3, 2.0), 2)),
      {},
      "'z' .* is a Sample of LKJ, .*`tfd.CholeskyLKJ`",
    ),
    (
      _of(tfd.SphericalUniform(3)),
      {},
      "'z' .* is a SphericalUniform, .* does not reach all of its values",
    ),
    (
      _of(tfd.VonMisesFisher([1.0, 0.0], 1e3)),
      {},
      "'z' .* is a VonMisesFisher, .* does not reach all of its values",
    ),
    (
      _of(tfd.Sample(tfd.WishartTriL(30.0, tf.eye(2)), 2)),
      {},
      "'z' .* is a Sample of WishartTriL, .* does not reach all of its values",
    ),
    # Found by draws: one of about forty is not reached.
    (
      _of(_like_tfps(tfd.WishartTriL)(5.0, tf.eye(2))),
      {},
      "'z' .* is a Like, .* does not reach all of its values",
    ),
    (
      _of(_like_tfps(tfd.PowerSpherical)([1.0, 0.0], 20.0)),
      {},
      "'z' .* is a Like, .* does not reach all of its values",
    ),
    (
      _of(tfd.Blockwise([tfd.Normal(0.0, 1.0), tfd.Gamma(2.0, 1.0)])),
      {},
      "'z' .* is a Blockwise, and the bijector .* fails \\(If shallow",
    ),
    (
      _of(tfd.TruncatedNormal(0.0, 1.0, 0.0, np.inf)),
      {},
      "'z' .* is a TruncatedNormal, .* all of its values. Give it two finite",
    ),
    (
      _of(
        tfd.TransformedDistribution(
          tfd.Normal(0.0, 1.0), tfp.bijectors.AbsoluteValue()
        )
      ),
      {},
      "'z' .* is a TransformedDistribution of Normal, .* does not reach all",
    ),
    (
      _of(
        tfd.Independent(
          tfd.BatchConcat([tfd.Gamma([1.0], 1.0), tfd.Gamma([2.0], 1.0)], 0), 1
        )
      ),
      {},
      "'z' .* is a Independent of BatchConcat, which has no bijector",
    ),
    # Starts.
    (
      _model,
      {**_DATA, 'init': tf.ones([4])},
      r"`init` is one Tensor.*'rate', 'sh",
    ),
    (_model, {**_DATA, 'init': [tf.ones([4])]}, r'`init` has 1 Tensor\(s\)'),
    (
      _model,
      {**_DATA, 'init': {'rate': 1.0}},
      r"has the variables 'rate', but",
    ),
    (
      _model,
      {**_DATA, 'init': {**_INIT, 'shift': np.ones([4, 3], 'f')}},
      r"`init` of 'shift' has the shape \(4, 3\), but the variable has \(2,\)",
    ),
    (
      _model,
      {**_DATA, 'init': {**_INIT, 'shift': np.ones([3, 2], 'f')}},
      r"`init` of 'shift' is for chains of shape \(3,\), .*'rate' for \(4,\)",
    ),
    (
      _model,
      {**_DATA, 'init': {**_INIT, 'shift': [[0, 0], [0, np.inf]] * 2}},
      r"`init` of 'shift' is not inside of the support in all chains",
    ),
    (
      _model,
      {**_DATA, 'init': {**_INIT, 'rate': [1.0, -1.0, 1.0, 1.0]}},
      r"`init` of 'rate' \(\[ 1\. -1\.  1\.  1\.\]\) is not inside",
    ),
    (
      _model,
      {**_DATA, 'init': {**_INIT, 'rate': [1.0, 0.0, 1.0, 1.0]}},
      "`init` of 'rate' .* is not inside",
    ),
    (
      _not_a_number,
      {'y': 1.0, 'init': {'x': tf.zeros([3])}},
      r"The log density of 'y', which is pinned, is nan .* in 3 of 3 chains",
    ),
    # All starts that are tried.
    (_not_a_number, {}, r"The log density of 'y' is nan at the start"),
  ],
)
def test_what_does_not_fit_is_named(model, arguments, match):
  with pytest.raises(ValueError, match=match):
    run(model, **arguments)


@pytest.mark.parametrize(
  'distribution',
  [
    tfd.Dirichlet([0.3, 1.0, 2.0]),
    tfd.CholeskyLKJ(3, 2.0),
    _Wishart(4, tf.eye(3)),
    # Of these some draws are rounded to the end of the support.
    tfd.CholeskyLKJ(5, 0.5),
    tfd.CholeskyLKJ(10, 0.1),
    tfd.Dirichlet([0.01] * 10),
    tfd.Dirichlet([0.05] * 50),
    tfd.RelaxedOneHotCategorical(0.05, logits=[0.0, 1.0, 2.0]),
    tfd.Gamma(0.001, 1.0),
    tfd.Sample(tfd.Uniform(-1.0, 1e6), 3),
    tfd.RelaxedOneHotCategorical(0.5, logits=[0.0, 1.0, 2.0]),
    tfd.TransformedDistribution(
      tfd.Sample(tfd.Normal(0.0, 2.0), 3), tfp.bijectors.Ascending()
    ),
    *(tfd.HalfCauchy(0.0, 1.0), tfd.Cauchy(0.0, 1e3), tfd.Pareto(0.5)),
    *(tfd.Gamma(0.05, 1.0), tfd.Beta(0.1, 0.1), tfd.Kumaraswamy(0.2, 5.0)),
    *(
      tfd.Uniform(-1.0, 1.0),
      tfd.LogitNormal(0.0, 9.0),
      tfd.VonMises(0.0, 1.0),
    ),
  ],
  ids=lambda d: d.name,
)
def test_bijectors_that_reach_all_values(distribution):
  latent_variables.check_latent_variables(_of(distribution))


def test_a_variable_with_the_name_of_an_argument():
  model = tfd.JointDistributionNamed(
    {'x': tfd.Normal(0.0, 1.0), 'seed': lambda x: tfd.Normal(x, 1.0)}
  )
  with pytest.raises(ValueError, match="'seed', which is the name of"):
    sample_posterior(model, 100, seed=2)
  target = target_of_model(
    model.experimental_pin(seed=2.0), {}, None, [2], (0, 1)
  )
  assert target.log_prob_fn(*target.start).shape == [2]


def test_a_start_that_a_bijector_does_not_lead_to():
  with pytest.raises(ValueError, match=r"Part 1 of `init` .* 'softplus' leads"):
    sample_posterior(
      lambda x, s: -(x**2) - s,
      100,
      init=[tf.zeros([2]), tf.constant([1.0, -1.0])],
      bijectors=[None, tfp.bijectors.Softplus()],
    )


@pytest.mark.parametrize(
  'bijector, init, match',
  [
    (tfp.bijectors.Sigmoid(0.0, 5.0), np.ones([8]), 'With float32 it works'),
    (
      tfp.bijectors.Scale(tf.constant(2.0, tf.float64)),
      tf.ones([8]),
      'With float64 it works: pass `init` in that dtype',
    ),
    (tfp.bijectors.Ascending(), tf.ones([8]), 'it takes events of rank 1'),
    (
      tfp.bijectors.CorrelationCholesky(),
      tf.ones([3, 3]),
      r'shape \(3,\) \(it takes events of rank 2',
    ),
    (tfp.bijectors.AbsoluteValue(), tf.ones([8]), 'for non-injective'),
    (
      tfp.bijectors.Inline(forward_fn=tf.exp, forward_min_event_ndims=0),
      tf.ones([8]),
      r"'inline' for part 1 .* \(inverse not implemented\)\. Pass one that",
    ),
  ],
  ids=lambda x: getattr(x, 'name', None),
)
def test_bijectors_that_do_not_fit_to_a_part(bijector, init, match):
  def target():
    return target_of_log_prob(
      lambda x, y: sum(tf.reshape(p, [len(p), -1])[:, 0] for p in (x, y)),
      [init, init],
      [None, bijector],
    )

  for make in target, tf.function(target, autograph=False):
    with pytest.raises(ValueError, match=r'`bijectors` .* part 1 of') as e:
      make()
    assert re.search(match, str(e.value))


def test_a_log_density_whose_graph_does_not_say_its_shape():
  def log_prob(x):
    return tf.py_function(lambda x: -tf.reduce_sum(x**2, -1), [x], tf.float32)

  x = tf.reshape(tf.range(1.0, 7.0), [3, 2])
  target = target_of_log_prob(log_prob, x, tfp.bijectors.Exp())

  @tf.function(autograph=False)
  def value_and_gradient(z):
    value = target.log_prob_fn(z)
    assert value.shape == [3]
    return value, tf.gradients(value, z)[0]

  found = value_and_gradient(x)
  expected = tf.reduce_sum(x - tf.exp(2.0 * x), -1), 1.0 - 2.0 * tf.exp(2.0 * x)
  for one, other in zip(found, expected):
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_bijectors_are_looked_at_in_a_graph():
  @tf.function
  def sample():
    return run(_of(tfd.SphericalUniform(3)))

  with pytest.raises(ValueError, match='does not reach all of its values'):
    sample()


@pytest.mark.parametrize(
  'model, pins, init, num_chains',
  [
    (_model, _DATA, None, 2),
    (_model, {'counts': tf.constant(_COUNTS)}, None, 3),
    (_model, {'counts': 2.0}, None, 2),
    (_by_hand, {'counts': [_COUNTS] * 2}, None, 2),
    (_by_hand, {'counts': [_COUNTS]}, None, 2),
    (_model.experimental_pin(counts=_COUNTS), {}, None, 2),
    (_model, _DATA, _INIT, 4),
    (_model, _DATA, list(_INIT.values()), 4),
    (_discrete, {'side': 1, 'number': [1.0, 2.0], 'mixed': 0.5}, None, 2),
  ],
)
def test_what_fits_is_not_refused(model, pins, init, num_chains):
  target = target_of_model(model, pins, init, [num_chains], (0, 1))
  log_prob = target.log_prob_fn(*target.start)
  target.check_start(log_prob)
  assert log_prob.shape == [num_chains]


@pytest.mark.parametrize(
  'distribution',
  [
    lambda x: tfd.Multinomial(8.0, logits=x[..., None] * tf.range(4.0)),
    lambda x: tfd.TransformedDistribution(
      tfd.Sample(tfd.Normal(x, 1.0), 4), tfp.bijectors.Exp()
    ),
    lambda x: tfd.Sample(tfd.LogNormal(x, 1.0), [2, 3]),
  ],
  ids=['multinomial', 'transformed', 'sample'],
)
@pytest.mark.parametrize('kind', [float, tf.constant])
def test_a_scalar_stands_for_equal_observations(distribution, kind):
  model = tfd.JointDistributionNamedAutoBatched(
    {'x': tfd.Normal(0.0, 1.0), 'y': distribution}
  )
  shape = distribution(tf.zeros([])).event_shape
  of_number, of_array = (
    target_of_model(model, {'y': y}, {'x': np.arange(3.0)}, [3], (0, 1))
    for y in (kind(2.0), np.full(shape, 2.0, np.float32))
  )
  np.testing.assert_array_equal(
    of_number.log_prob_fn(*of_number.start),
    of_array.log_prob_fn(*of_array.start),
  )


@pytest.mark.parametrize('of_pinned', [True, False])
def test_a_scalar_for_a_number_of_observations_that_varies(of_pinned):
  @tfd.JointDistributionCoroutine
  def model():
    x = yield Root(tfd.Normal(0.0, 1.0, name='x'))
    yield tfd.Autoregressive(
      lambda y: tfd.Independent(tfd.Normal(x[..., None] + 0.0 * y, 1.0), 1),
      tf.zeros([5]),
      name='y',
    )
    yield Root(tfd.Normal(0.0, 1.0, name='z'))

  given = model.experimental_pin(z=0.0) if of_pinned else model
  with pytest.raises(ValueError, match=r"'y' is a scalar.* an array of that"):
    run(given, y=2.0)


@tfd.JointDistributionCoroutine
def _inner():
  a = yield Root(tfd.Gamma(2.0, 1.0, name='a'))
  yield tfd.Sample(tfd.Normal(a, 1.0), 2, name='b')


_NESTED = tfd.JointDistributionNamed(
  {'p': _inner, 'y': lambda p: tfd.Normal(p.b[..., 0], p.a)}
)


@pytest.mark.parametrize(
  'value',
  [
    {'b': 0.5, 'a': 2},
    {'a': np.float64(2.0), 'b': [0.5, 0.5]},
    _inner.dtype._make([2.0, tf.constant([0.5, 0.5])]),
  ],
  ids=['numbers', 'a_dict', 'as_drawn'],
)
def test_a_variable_that_is_a_model_is_pinned_as_a_whole(value):
  target = target_of_model(_NESTED, {'p': value}, {'y': np.arange(3.0)}, [3], 0)
  expected = (
    tfd.Gamma(2.0, 1.0).log_prob(2.0)
    + 2.0 * tfd.Normal(2.0, 1.0).log_prob(0.5)
    + tfd.Normal(0.5, 2.0).log_prob(tf.range(3.0))
  )
  np.testing.assert_allclose(target.log_prob_fn(*target.start), expected, 1e-6)


@pytest.mark.parametrize(
  'value, match',
  [
    ({'b': 0.5}, "'p' has the variables 'a', 'b', but .* of it is 'b'. Pin it"),
    (0.5, r'is 0\.5\. Pin it as a whole'),
    ([1.0, 0.5], r'is \[1\.0, 0\.5\]\. Pin it as a whole'),
    ({'a': 1.0, 'b': [0.5] * 3}, r"'p\.b' has the shape \(3,\)"),
    ({'a': None, 'b': 0.5}, r"'p\.a' is .*None"),
    (tf.zeros([3]), 'is an EagerTensor of shape'),
  ],
  ids=['a_part', 'a_number', 'no_names', 'shape', 'none', 'tensor'],
)
def test_a_variable_that_is_a_model_is_not_pinned_in_part(value, match):
  with pytest.raises((TypeError, ValueError), match=match):
    model_arguments.check_pins(_NESTED, {'p': value}, [3])


def test_several_axes_of_chains():
  chains = model_arguments.as_chain_shape([np.int64(2), 3])
  target = target_of_model(_model, _DATA, None, chains, (0, 1))
  assert [part.shape for part in target.start] == [[2, 3], [2, 3, 2]]


def test_each_log_density_has_the_name_of_its_variable():
  names = model_arguments.named_log_prob_parts
  rate = np.array([0.5, 2.0], np.float32)
  expected = {
    'rate': tfd.Gamma(2.0, 1.0).log_prob(rate),
    'counts': tf.reduce_sum(
      tfd.Poisson(rate[:, np.newaxis]).log_prob(_COUNTS), -1
    ),
  }
  for model, state in (
    (_by_hand.experimental_pin(counts=_COUNTS), [rate]),
    (_by_hand, [rate, np.stack([_COUNTS] * 2)]),
  ):
    found = names(model, state)
    assert {*found} == {*expected}
    for name, part in expected.items():
      np.testing.assert_allclose(found[name], part, rtol=1e-5)
  found = names(_SEQUENTIAL.experimental_pin(None, 3.0), [rate])
  np.testing.assert_allclose(found['x'], tfd.Poisson(rate).log_prob(3.0), 1e-5)


def test_a_start_has_the_dtypes_of_the_model():
  target = target_of_model(
    _model,
    {'counts': _COUNTS},
    {'rate': np.ones([4]), 'shift': [[1, 2]] * 4},
    [4],
    seed=(0, 0),
  )
  assert [x.dtype for x in target.start] == [tf.float32] * 2
  np.testing.assert_array_equal(target.constrain(target.start).shift[0], [1, 2])
  init = {'rate': tf.ones([4], tf.float64), 'shift': np.zeros([4, 2])}
  with pytest.raises(TypeError, match=r"'rate' is a Tensor of dtype float64, "):
    run(_model, init=init, **_DATA)


def test_all_parts_of_a_start_have_one_dtype():
  with pytest.raises(TypeError, match='has parts of float32, float64, but all'):
    run(
      lambda x, y: -(x**2) - tf.cast(tf.reduce_sum(y**2, -1), tf.float32),
      init=[tf.zeros([4]), tf.zeros([4, 2], tf.float64)],
    )


def test_the_dtype_of_a_log_density_of_integers_is_named():
  with pytest.raises(ValueError, match='of dtype int32; one floating scalar'):
    sample_posterior(
      lambda x: tf.zeros([8], tf.int32), 5, init=tf.zeros([8, 2])
    )


@pytest.mark.parametrize(
  ('call', 'match'),
  [
    (lambda m: sample_posterior(5, m), 'model is the first argument'),
    (lambda m: windowed_adaptive_mala(m, 5), 'model is the second argument'),
  ],
)
@pytest.mark.parametrize('model', [tf.square, tfd.Normal(0.0, 1.0)])
def test_a_model_in_the_place_of_a_number(call, match, model):
  with pytest.raises(ValueError, match=match):
    call(model)


def test_a_log_density_has_the_dtype_of_the_start():
  def log_prob(x):
    return -0.5 * tf.reduce_sum(tf.cast(x, tf.float64) ** 2, -1)

  init = tf.zeros([4, 2])
  kernel = PreconditionedMALA(log_prob, 0.5)
  for name, call in (
    ('joint_dist', lambda: run(log_prob, init=init)),
    (
      'joint_dist_or_log_prob',
      lambda: sample_posterior(log_prob, 5, init=init),
    ),
    ('target_log_prob_fn', lambda: kernel.bootstrap_results(init)),
  ):
    match = f'`{name}` returned float64 for a state whose part 0 is float32'
    with pytest.raises(TypeError, match=match):
      call()


def test_chains_that_mix_are_refused_in_the_words_of_the_caller():
  def log_prob(x):
    return -0.5 * tf.reduce_sum((x - tf.reduce_mean(x, 0)) ** 2, -1)

  init = tf.random.stateless_normal([2, 3], (0, 1))
  kernel = PreconditionedMALA(log_prob, 0.5)
  for name, call in (
    ('joint_dist', lambda: run(log_prob, init=init)),
    (
      'joint_dist',
      tf.function(lambda: run(log_prob, init=init), autograph=False),
    ),
    (
      'joint_dist_or_log_prob',
      lambda: sample_posterior(log_prob, 5, init=init),
    ),
    ('target_log_prob_fn', lambda: kernel.bootstrap_results(init)),
  ):
    with pytest.raises(ValueError, match=f'^`{name}` mixes chains at Mean'):
      call()


def test_variables_of_two_dtypes():
  model = tfd.JointDistributionNamed(
    {'a': tfd.Normal(np.float64(0.0), 1.0), 'b': tfd.Normal(0.0, 1.0)}
  )
  with pytest.raises(TypeError, match=r"'a' of float64.*one dtype"):
    sample_posterior(model, 5)


@pytest.mark.filterwarnings('error::RuntimeWarning')
def test_draws_that_overflow_are_no_fault_of_a_bijector():
  latent_variables.check_latent_variables(_of(tfd.InverseGamma(1e-3, 1e-3)))


_LISTED = tfd.JointDistributionSequentialAutoBatched(
  [tfd.Normal(0.0, 10.0, name='mu'), tfd.Exponential(1.0, name='rate')]
)
_NAMED = tfd.JointDistributionNamedAutoBatched(
  {'rate': tfd.Exponential(1.0), 'mu': lambda rate: tfd.Normal(0.0, rate)}
)
_PAIR = collections.namedtuple('Pair', 'rate mu')


@pytest.mark.parametrize(
  'model, names', [(_LISTED, ('mu', 'rate')), (_NAMED, ('rate', 'mu'))]
)
@pytest.mark.parametrize('structure', ['dict', 'namedtuple', 'list'])
def test_a_start_is_known_by_its_names(model, names, structure):
  init = {'rate': tf.fill([2], 2.0), 'mu': tf.fill([2], -3.0)}
  if structure == 'namedtuple':
    init = _PAIR(**init)
  elif structure == 'list':
    init = [init[name] for name in names]
  target = target_of_model(model, {}, init, [2], (0, 1))
  start = target.constrain(target.start)
  parts = start if isinstance(start, dict) else dict(zip(names, start))
  np.testing.assert_allclose(parts['mu'], [-3.0] * 2, rtol=1e-5)
  np.testing.assert_allclose(parts['rate'], [2.0] * 2, rtol=1e-5)


def test_an_observation_of_another_dtype_or_of_none():
  data = tf.ones([2, 3, 2], tf.float64)
  with pytest.raises(TypeError, match="'shift' is a Tensor of dtype float64"):
    run(_model, counts=_COUNTS, shift=data[0, 0])
  with pytest.raises(ValueError, match='`counts` is None'):
    run(_model, counts=None)


def test_integers_are_taken_as_the_numbers_of_a_floating_variable():
  counts = tf.constant(_COUNTS, tf.int32)
  targets = [
    target_of_model(_model, {'counts': given}, _INIT, [4], (0, 1))
    for given in (counts, _COUNTS)
  ]
  one, other = (t.log_prob_fn(*t.start) for t in targets)
  np.testing.assert_array_equal(one, other)


def test_what_is_no_integer_would_be_cut_off():
  """As a share of successes, or what pandas makes of a gap."""
  init = {'p': tf.constant([[0.2], [0.4]])}

  def target(y):
    return target_of_model(_successes, {'y': y}, init, [2], (0, 1))

  shares = np.array([0.9, 0.0, 1.0])
  with pytest.raises(ValueError, match=r"'y'.*as 0\.9.*cut"):
    target(shares)
  with pytest.raises(ValueError, match=r"'y'.*not finite in 1 places"):
    target([1.0, np.nan, 0.0])
  # Tensors are passed on as they are.
  known = target(tf.constant(shares, tf.float32))
  p = tf.sigmoid(known.start[0])
  prior = tf.math.log(p) + tf.math.log1p(-p)
  wanted = 1.9 * tf.math.log(p) + 1.1 * tf.math.log1p(-p) + prior
  np.testing.assert_allclose(
    known.log_prob_fn(*known.start), tf.reshape(wanted, [-1]), rtol=1e-5
  )
  np.testing.assert_array_equal(
    target(np.array([1.0, 0.0, 1.0])).log_prob_fn(*known.start),
    target([1, 0, 1]).log_prob_fn(*known.start),
  )


@tfd.JointDistributionCoroutineAutoBatched
def _successes():
  p = yield tfd.Sample(tfd.Beta(1.0, 1.0), 1, name='p')
  yield tfd.Sample(tfd.Bernoulli(probs=p[0]), 3, name='y')


@tfd.JointDistributionCoroutine
def _without_axes():
  rate = yield Root(tfd.Gamma(2.0, 1.0, name='rate'))
  yield tfd.Poisson(rate, name='counts')


@tfd.JointDistributionCoroutine
def _in_batches():
  rate = yield Root(tfd.Gamma(2.0, 1.0, name='rate'))
  yield tfd.Poisson(rate * tf.ones([5]), name='counts')


def test_data_of_one_chain_each_are_refused():
  """As many observations as chains are none the less one data set."""
  for model in (_without_axes, _in_batches):
    with pytest.raises(ValueError, match=r'the 5 chains would have .*tfd.Sam'):
      run(model, n_chains=5, counts=_COUNTS)
  for data in (tf.Variable(_COUNTS), tf.constant(_COUNTS)):
    with pytest.raises(ValueError, match='the 5 chains would have'):
      run(_without_axes, n_chains=5, counts=data)
  with pytest.raises(ValueError, match='the 5 chains would have'):
    run(_without_axes.experimental_pin(counts=_COUNTS), n_chains=5)
  # Five observations of zero are not one.
  with pytest.raises(ValueError, match='the 5 chains would have'):
    run(_without_axes, n_chains=5, counts=[0.0] * 5)
  run(_without_axes, n_chains=5, counts=2.0)


def test_objects_are_no_numbers():
  with pytest.raises(TypeError, match=r"'counts' is an ndarray .*; convert it"):
    run(_model, counts=_COUNTS.astype(object))


def test_a_mask_would_be_lost():
  counts = np.ma.masked_array(_COUNTS, [True] + [False] * 4)
  with pytest.raises(TypeError, match="value of 'counts' is a masked array"):
    run(_model, counts=counts)


def test_a_log_density_that_differs_from_chain_to_chain():
  """It does not sum over as many observations as there are chains."""
  counts = tf.constant(_COUNTS, tf.float32)

  def forgets_to_sum(x):
    return tfd.Normal(x, 3.0).log_prob(counts)

  def sums(x):
    return tf.reduce_sum(
      tfd.Normal(x[..., tf.newaxis], 3.0).log_prob(counts), -1
    )

  def noisy(x):
    return sums(x) + tf.random.normal(tf.shape(x))

  start = tf.linspace(0.0, 1.0, 5)
  options = dict(init=start, num_warmup_steps=0, jit_compile=False)
  for log_prob in (forgets_to_sum, noisy):
    with pytest.warns(UserWarning, match='is another one in another chain'):
      sample_posterior(log_prob, 2, **options)
    with pytest.warns(UserWarning, match='is another one in another chain'):
      windowed_adaptive_mala(
        2, log_prob, init=start, num_adaptation_steps=0, jit_compile=False
      )
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    warnings.filterwarnings('ignore', 'Too few draws')
    sample_posterior(sums, 2, **options)


def test_a_batch_of_what_is_pinned_is_one():
  with pytest.raises(
    ValueError, match=r'(?s)batch shape .*counts.*Independent'
  ):
    run(_in_batches, counts=2.0)


def test_a_batch_beside_the_chains():
  @tfd.JointDistributionCoroutine
  def model():
    rate = yield Root(tfd.Gamma(2.0, 1.0, name='rate'))
    yield tfd.Sample(tfd.Poisson(rate[..., tf.newaxis]), 5, name='counts')

  for driver in (windowed_adaptive_mala, sample_posterior):
    args = (3, model) if driver is windowed_adaptive_mala else (model, 3)
    with pytest.raises(
      ValueError, match='batch of distributions beside the ch'
    ):
      driver(*args, counts=_COUNTS, seed=0)
