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
"""AutoGraph converts the functions of users, and none of this library's.

A call in a `tf.function` of one's own would else be converted with all that it
calls: the same graph, seconds later.
"""

import functools
import traceback

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.pairs import parametrize_pairs
from tfp_diag.mcmc.run.unconstrained_target import target_of_log_prob

X = tf.constant([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]])
SEED = tf.constant([1, 2])


def log_prob(x):
  return -tf.reduce_sum(tf.cosh(x), -1)


def step(kernel):
  return lambda x: kernel.one_step(x, kernel.bootstrap_results(x), seed=SEED)[0]


def calls(fn):
  """Each public way to a graph, as a function of the state."""
  mcmc = tfp_diag.mcmc
  mala = mcmc.PreconditionedMALA(fn, 0.1)
  augmented = tfp_diag.trace_jacobian_exact(
    lambda t, x: x * fn(x)[:, tf.newaxis], X.shape, X.dtype
  )
  estimated = tfp_diag.trace_jacobian_hutchinson(
    lambda t, x: x * fn(x)[:, tf.newaxis], X.shape, X.dtype
  )

  def lazy(use):
    return lambda x: use(tfp_diag.LazyHessian(fn, x, sample_shape=[2]), x)

  return {
    'diag_jacobian': lambda x: tfp_diag.diag_jacobian(
      x, fn=lambda x: x * fn(x)[:, tf.newaxis], sample_shape=[2]
    )[1],
    'diag_hessian': lambda x: tfp_diag.diag_hessian(fn, x, sample_shape=[2])[1],
    'stochastic_diag_hessian': lambda x: tfp_diag.stochastic_diag_hessian(
      fn, x, sample_shape=[2], seed=SEED, num_probes=2
    ),
    'trace_jacobian_exact': lambda x: augmented(0.0, [x, tf.zeros(2)]),
    'trace_jacobian_hutchinson': lambda x: estimated(0.0, [x, tf.zeros(2)]),
    'diag_gauss_newton': lambda x: tfp_diag.diag_gauss_newton(
      lambda x: fn(x)[..., tf.newaxis], x, sample_shape=[2]
    ),
    'jacobian': lambda x: tfp_diag.jacobian(fn, x, [2]),
    'matvec': lazy(lambda matrix, x: matrix.matvec(x)),
    'rmatvec': lazy(lambda matrix, x: matrix.rmatvec(x)),
    'diag': lazy(lambda matrix, x: matrix.diag()),
    'trace': lazy(lambda matrix, x: matrix.trace()),
    'to_dense': lazy(lambda matrix, x: matrix.to_dense()),
    'as_linear_operator': lazy(
      lambda matrix, x: matrix.as_linear_operator().matvec(x)
    ),
    'unmixed_derivatives': lambda x: tfp_diag.unmixed_derivatives(
      fn, x, sample_shape=[2]
    ),
    'hessian': lambda x: tfp_diag.hessian(fn, x, [2]),
    'MALA': step(mala),
    'MALA, uncalibrated': step(
      mcmc.UncalibratedPreconditionedLangevin(fn, 0.1)
    ),
    'MALA, local': step(
      mcmc.PreconditionedMALA(fn, 0.1, mcmc.LocalHessianPreconditioner())
    ),
    'MALT': step(
      mcmc.MetropolisAdjustedLangevinTrajectories(fn, 0.1, 0.5, 1.0)
    ),
    'adaptation': step(
      mcmc.DiagonalPreconditionerAdaptation(mala, num_adaptation_steps=10)
    ),
    'Fisher, recursion': step(mcmc.FisherAdaptiveMALA(fn, 0.1, 200)),
    'Fisher, divergence': step(mcmc.FisherDivergenceMALA(fn, 0.1, 200)),
    'windowed_adaptive_mala': lambda x: (
      mcmc.windowed_adaptive_mala(
        1, fn, init=x, num_adaptation_steps=4, seed=SEED
      ).draws
    ),
  }


NAMES = list(calls(log_prob))


@pytest.mark.parametrize('name', NAMES)
def test_nothing_of_the_library_is_converted(name):
  seen = []

  def watched(x):
    seen.extend(
      frame.name
      for frame in traceback.extract_stack()
      if '__autograph_generated_file' in frame.filename
    )
    return log_prob(x)

  watched = tf.autograph.experimental.do_not_convert(watched)
  call = calls(watched)[name]
  tf.function(call).get_concrete_function(X)

  # The lambdas of this file are, and what calls `fn`.
  assert '<lambda>' in seen
  assert {s for s in seen if s.startswith('tf__')} <= {'tf__call_fn'}


def branches(x):
  if tf.reduce_sum(x) > 100.0:
    return tf.reduce_sum(x, -1)
  return log_prob(x)


def counts(x):
  total = tf.zeros_like(x[:, 0])
  for i in range(tf.shape(x)[-1]):
    total -= tf.cosh(x[:, i])
  return total


def measures(x):
  coordinates = tf.transpose(x)
  total = tf.zeros_like(x[:, 0])
  for i in tf.range(len(coordinates)):
    total -= tf.cosh(coordinates[i])
  return total


def iterates(x):
  total = tf.zeros_like(x[:, 0])
  for coordinate in tf.transpose(x):
    total -= tf.cosh(coordinate)
  return total


@parametrize_pairs(
  name=['diag_hessian', 'MALA', 'MALT', 'Fisher, recursion'],
  fn=[branches, counts, measures, iterates],
  how=['graph', 'xla', 'autograph'],
)
def test_python_on_tensors_as_in_a_function_of_ones_own(name, fn, how):
  expected = calls(log_prob)[name](X)

  found = tf.function(
    calls(fn)[name], autograph=how == 'autograph', jit_compile=how == 'xla'
  )(X)

  tf.nest.map_structure(
    functools.partial(np.testing.assert_allclose, rtol=1e-4), found, expected
  )


@pytest.mark.parametrize('name', ['MALA', 'MALA, local', 'Fisher, recursion'])
def test_what_comes_before_a_branch_is_done_once(name):
  count = tf.Variable(0)

  def counted(x):
    count.assign_add(1)
    return log_prob(x)

  def branching(x):
    count.assign_add(1)
    return branches(x)

  numbers = []
  for fn in (counted, branching):
    count.assign(0)
    tf.function(calls(fn)[name])(X)
    numbers.append(int(count))
  assert numbers[0] == numbers[1]


def test_numbers_of_tensors_as_in_a_function_of_ones_own():
  def casts(x):
    return log_prob(x) / float(tf.shape(x)[-1]) * 3.0

  expected = calls(log_prob)['MALA'](X)

  found = tf.function(calls(casts)['MALA'])(X)

  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_method_that_tensors_do_not_have():
  call = calls(lambda x: -(x**2).sum(-1))['MALA']

  with pytest.raises(AttributeError, match='sum'):
    tf.function(call, autograph=False)(X)


def test_a_log_density_that_needs_values():
  call = calls(lambda x: tf.constant(np.sum(x, -1)))['MALA']

  with pytest.raises(TypeError, match='`target_log_prob_fn` needs the value'):
    tf.function(call, autograph=False)(X)


@pytest.mark.parametrize('fn', [branches, counts, measures, iterates])
def test_log_densities_of_drivers(fn):
  """Those of `sample_posterior` and `windowed_adaptive_mala`."""
  target = target_of_log_prob(fn, tf.abs(X), tfp.bijectors.Exp())

  found = tf.function(target.log_prob_fn, autograph=False)(*target.start)

  expected = log_prob(tf.abs(X)) + tf.reduce_sum(tf.math.log(tf.abs(X)), -1)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
