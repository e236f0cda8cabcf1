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
"""Adaptation of a diagonal scale: what it learns, when, and when it stops."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.examples import gaussian
from tfp_diag.mcmc import (
  DiagonalPreconditionerAdaptation,
  LocalHessianPreconditioner,
  MetropolisAdjustedLangevinTrajectories,
  PreconditionedMALA,
  UncalibratedPreconditionedLangevin,
)
from tfp_diag.mcmc.adapt import diagonal_preconditioner_adaptation
from tfp_diag.mcmc.adapt.diagonal_estimators import ESTIMATORS
from tfp_diag.mcmc.adapt.windows import adaptation_windows

tfb = tfp.bijectors

_TARGET_ACCEPTANCE = 0.574
_SDS = np.array([0.03, 1.0, 20.0])


def _log_prob(u, w):
  """N(0, diag(_SDS²)) over two parts, of event shapes [] and [2]."""
  sds = tf.constant(_SDS, u.dtype)
  return -0.5 * ((u / sds[0]) ** 2 + tf.reduce_sum((w / sds[1:]) ** 2, -1))


def _state(chains, dtype=tf.float32):
  x = np.random.default_rng(4).uniform(-2.0, 2.0, size=[*chains, 3])
  return [tf.constant(x[..., 0], dtype), tf.constant(x[..., 1:], dtype)]


def _dual_averaging(kernel, num_steps):
  return tfp.mcmc.DualAveragingStepSizeAdaptation(
    kernel, num_steps, target_accept_prob=_TARGET_ACCEPTANCE, decay_rate=0.6
  )


def _simple(kernel, num_steps):
  return tfp.mcmc.SimpleStepSizeAdaptation(
    kernel, num_steps, target_accept_prob=_TARGET_ACCEPTANCE
  )


def _core(results):
  while hasattr(results, 'inner_results'):
    results = results.inner_results
  return results


def _run(kernel, state, num_steps, jit_compile=False):
  """Draws, and what the core of the kernel did, from the first step on."""

  def trace(_, results):
    core = _core(results)
    return (
      core.log_accept_ratio,
      core.accepted_results.preconditioner,
      core.accepted_results.step_size,
    )

  @tf.function(jit_compile=jit_compile)
  def run(state):
    return tfp.mcmc.sample_chain(
      num_steps, state, kernel=kernel, trace_fn=trace, seed=(1, 2)
    )

  draws, (log_ratio, scales, step_size) = run(state)
  acceptance = np.exp(np.minimum(log_ratio, 0.0))
  return draws, acceptance, [s.numpy() for s in scales], step_size.numpy()


@pytest.mark.parametrize(
  'adapter, scale_inside',
  [(_dual_averaging, True), (_dual_averaging, False), (_simple, True)],
)
def test_with_a_step_size_adapter(adapter, scale_inside):
  """Reaches 0.574 ± 0.03 and the analytic scale, then changes nothing.

  64 chains × 300 steps: the standard error of the acceptance is below 0.01. The
  simple adapter drives the mean log, not the mean, towards its goal.
  """
  kernel = PreconditionedMALA(_log_prob, 0.1)
  wrappers = [
    lambda k: DiagonalPreconditionerAdaptation(k, 150),
    lambda k: adapter(k, 300),
  ]
  for wrap in wrappers if scale_inside else wrappers[::-1]:
    kernel = wrap(kernel)
  draws, acceptance, scales, step_size = _run(kernel, _state([64]), 600)
  tolerance = 0.03 if adapter is _dual_averaging else 0.15
  np.testing.assert_allclose(
    acceptance[300:].mean(), _TARGET_ACCEPTANCE, atol=tolerance
  )
  learned = np.concatenate([scales[0][:, np.newaxis], scales[1]], -1)
  np.testing.assert_allclose(learned[-1], _SDS, rtol=0.01)
  assert np.all(learned[149:] == learned[149]), 'frozen bit for bit'
  assert np.all(step_size[300:] == step_size[300]), 'frozen bit for bit'
  # The scale changes at the ends of the windows, and nowhere else.
  changes = 1 + np.flatnonzero(np.any(np.diff(learned, axis=0), -1))
  ends = adaptation_windows(150)
  assert set(changes + 1) <= set(ends) and ends[0] in changes + 1
  sds = np.std(
    np.concatenate([draws[0][..., np.newaxis], draws[1]], -1)[300:], (0, 1)
  )
  np.testing.assert_allclose(sds, _SDS, rtol=0.1)


def test_without_adaptation_the_step_size_alone_cannot_do_it():
  """The control: what the test above asks for is not had for nothing."""
  kernel = DiagonalPreconditionerAdaptation(
    PreconditionedMALA(_log_prob, 0.1), num_adaptation_steps=0
  )
  draws, *_ = _run(_dual_averaging(kernel, 300), _state([64]), 600)
  assert np.std(draws[1][300:, :, 1]) < 0.2 * _SDS[2]


@pytest.mark.parametrize('estimator', ESTIMATORS)
def test_learns_the_analytic_scale_of_a_correlated_normal(estimator):
  """From exact draws, 400 chains × 50 steps in the last window.

  The standard error of a scale is about 1 per cent: 7 per cent are passed by
  chance less than once in 1e9. The estimators differ by more.
  """
  target = gaussian.three_dimensional()
  covariance = target.covariance()
  precision = np.diag(np.linalg.inv(covariance))
  variance = np.diag(covariance)
  expected = {
    'variance': variance,
    'fisher': 1.0 / precision,
    'fisher_divergence': np.sqrt(variance / precision),
    'hessian': np.sqrt(variance / precision),
  }[estimator]
  cholesky = np.linalg.cholesky(covariance)
  x = np.random.default_rng(2).normal(size=[400, 3]) @ cholesky.T
  start = np.array([3.0, 0.1, 1.0], np.float32)
  kernel = DiagonalPreconditionerAdaptation(
    PreconditionedMALA(target.log_prob, 0.7, start), 75, estimator
  )
  _, _, [scales], _ = _run(kernel, tf.constant(x, tf.float32), 76)
  np.testing.assert_array_equal(scales[0], start)
  np.testing.assert_allclose(scales[-1], np.sqrt(expected), rtol=0.07)


def test_the_estimators_of_a_correlated_normal_differ():
  # So that the test above tells them apart.
  covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
  x = np.random.default_rng(2).normal(size=[400, 2])
  x = tf.constant(x @ np.linalg.cholesky(covariance).T)
  precision = tf.constant(np.linalg.inv(covariance))

  def log_prob(x):
    return -0.5 * tf.einsum('...i,ij,...j->...', x, precision, x)

  learned = {}
  for estimator in ESTIMATORS:
    kernel = DiagonalPreconditionerAdaptation(
      PreconditionedMALA(log_prob, tf.constant(0.3, tf.float64)), 20, estimator
    )
    learned[estimator] = _run(kernel, x, 20)[2][0][-1]
  ratio = np.square(learned['variance'] / learned['fisher'])
  # 1 / (1 - 0.9²)
  np.testing.assert_allclose(ratio, 5.26, rtol=0.2)
  np.testing.assert_allclose(
    np.square(learned['variance'] / learned['fisher_divergence']),
    5.26**0.5,
    rtol=0.15,
  )
  np.testing.assert_allclose(
    learned['hessian'], learned['fisher_divergence'], rtol=0.1
  )


@pytest.mark.parametrize(
  'jit_compile, dtype', [(True, tf.float32), (False, tf.float64)]
)
def test_a_frozen_scale_is_a_constant_preconditioner(jit_compile, dtype):
  step_size = tf.constant(0.05, dtype)
  kernel = DiagonalPreconditionerAdaptation(
    PreconditionedMALA(_log_prob, step_size), 8, 'variance'
  )
  step = tf.function(kernel.one_step, jit_compile=jit_compile)
  state = _state([5], dtype)
  results = kernel.bootstrap_results(state)
  for i in range(9):
    before = results
    state, results = step(state, results, seed=tf.constant([i, 0]))
    tf.nest.assert_same_structure(before, results)
  scales = results.inner_results.accepted_results.preconditioner
  assert [s.dtype for s in scales] == [dtype] * 2
  assert [s.shape for s in scales] == [[], [2]]
  assert not np.any(scales[1] == 1.0)
  plain = PreconditionedMALA(_log_prob, step_size, scales)
  expected, expected_results = plain.one_step(
    state, plain.bootstrap_results(state), seed=(20, 1)
  )
  actual, actual_results = step(state, results, seed=tf.constant([20, 1]))
  rtol = 1e-10 if dtype == tf.float64 else 1e-4
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol),
    (actual, actual_results.inner_results.log_accept_ratio),
    (expected, expected_results.log_accept_ratio),
  )


@pytest.mark.parametrize('chains', [[], [3, 2]])
@pytest.mark.parametrize('estimator', ['fisher_divergence', 'hessian'])
def test_chains_of_any_rank_are_pooled(chains, estimator):
  # The start is that of 6 chains; a single one learns from itself.
  kernel = DiagonalPreconditionerAdaptation(
    PreconditionedMALA(_log_prob, 0.02), 12, estimator
  )
  state = [
    tf.reshape(x[: int(np.prod(chains))], [*chains, *x.shape[1:]])
    if chains
    else x[0]
    for x in _state([6])
  ]
  _, _, scales, _ = _run(kernel, state, 13)
  assert [s.shape for s in scales] == [(13,), (13, 2)]
  if chains:
    flat = _run(kernel, _state([6]), 13)[2]
    assert [s.shape for s in flat] == [(13,), (13, 2)]
    for s, f in zip(scales, flat):
      np.testing.assert_allclose(s, f, rtol=1e-4)


def test_dynamic_chain_and_event_shapes():
  kernel = DiagonalPreconditionerAdaptation(
    PreconditionedMALA(
      lambda x: -0.5 * tf.reduce_sum((x / 3.0) ** 2, -1), 0.5, 2.0
    ),
    15,
  )

  @tf.function(input_signature=[tf.TensorSpec([None, None])])
  def run(x):
    return tfp.mcmc.sample_chain(
      1,
      x,
      kernel=kernel,
      num_burnin_steps=15,
      trace_fn=lambda _, r: r.inner_results.accepted_results.preconditioner,
      seed=(0, 1),
    )[1]

  [scale] = run(tf.random.stateless_normal([8, 4], (1, 2)))
  # 8 × 15 draws against 10 of the 2 that it started with.
  np.testing.assert_allclose(scale, np.full([1, 4], 3.0), rtol=0.05)


def test_eager_steps_and_no_hessian_after_the_adaptation(monkeypatch):
  calls = []

  def counted(*args):
    calls.append(1)
    return right(*args)

  right = diagonal_preconditioner_adaptation.diag_hessian
  monkeypatch.setattr(
    diagonal_preconditioner_adaptation, 'diag_hessian', counted
  )
  kernel = DiagonalPreconditionerAdaptation(
    PreconditionedMALA(_log_prob, 0.02), 3, 'hessian'
  )
  state = _state([4])
  results = kernel.bootstrap_results(state)
  assert not calls
  num_calls = []
  for i in range(5):
    state, results = kernel.one_step(state, results, seed=(i, 0))
    num_calls.append(len(calls))
  assert num_calls == [1, 2, 3, 3, 3]
  assert results.step == 5


@pytest.mark.parametrize('outside', [True, False])
def test_with_a_transformation(outside):
  # log of LogNormal(0, 0.05) is N(0, 0.05²), where the scale is learned.
  target = tfp.distributions.LogNormal(0.0, tf.constant([0.05, 2.0]))

  def log_prob(x):
    return tf.reduce_sum(target.log_prob(x), -1)

  kernel = PreconditionedMALA(log_prob, 0.05)
  wrappers = [
    lambda k: DiagonalPreconditionerAdaptation(k, 60),
    lambda k: tfp.mcmc.TransformedTransitionKernel(k, tfb.Exp()),
  ]
  for wrap in wrappers if outside else wrappers[::-1]:
    kernel = wrap(kernel)
  z = tf.random.stateless_normal([32, 2], (1, 2))
  _, _, [scale], _ = _run(kernel, tf.exp(z), 60)
  np.testing.assert_allclose(scale[-1], [0.05, 2.0], rtol=0.05)


def test_a_chain_at_a_bad_point_does_not_spoil_the_scale_of_all():
  kernel = DiagonalPreconditionerAdaptation(
    PreconditionedMALA(_log_prob, 0.01), 40
  )
  u, w = _state([16])
  u = tf.tensor_scatter_nd_update(u, [[3]], [np.nan])
  _, _, scales, _ = _run(kernel, [u, w], 40)
  learned = np.append(scales[0][-1], scales[1][-1])
  np.testing.assert_allclose(learned, _SDS, rtol=0.1)


def test_resumes_bit_for_bit_from_results_that_were_arrays():
  # In the middle of a window, and of the step size adaptation.
  kernel = _dual_averaging(
    DiagonalPreconditionerAdaptation(PreconditionedMALA(_log_prob, 0.1), 20), 30
  )
  step = tf.function(kernel.one_step)

  def run(state, results, start, stop):
    for i in range(start, stop):
      state, results = step(state, results, seed=tf.constant([i, 3]))
    return state, results

  start = _state([4])
  start = start, kernel.bootstrap_results(start)
  whole = run(*start, 0, 40)
  half = tf.nest.map_structure(lambda x: x.numpy(), run(*start, 0, 13))
  resumed = run(*tf.nest.map_structure(tf.constant, half), 13, 40)
  tf.nest.map_structure(np.testing.assert_array_equal, whole, resumed)


def test_parameters_rebuild_the_kernel():
  inner = PreconditionedMALA(_log_prob, 0.1)
  kernel = DiagonalPreconditionerAdaptation(inner, 7, 'fisher', name='scale')
  assert kernel.parameters == {
    'inner_kernel': inner,
    'num_adaptation_steps': 7,
    'estimator': 'fisher',
    'experimental_reduce_chain_axis_names': None,
    'name': 'scale',
  }
  copy = type(kernel)(**kernel.parameters)
  assert copy.parameters == kernel.parameters
  assert copy.is_calibrated
  sharded = kernel.experimental_with_shard_axes(['a', None])
  assert sharded.experimental_shard_axis_names == ['a', None]
  assert sharded.estimator == 'fisher'


@pytest.mark.parametrize(
  ('make', 'error', 'match'),
  [
    (
      lambda: DiagonalPreconditionerAdaptation(
        PreconditionedMALA(_log_prob, 0.1), 5, 'best'
      ),
      ValueError,
      "`estimator` is 'best'; it can be one of 'variance'",
    ),
    (
      lambda: DiagonalPreconditionerAdaptation(
        PreconditionedMALA(_log_prob, 0.1), -1
      ),
      ValueError,
      '`num_adaptation_steps`.*-1',
    ),
  ],
)
def test_refuses_arguments(make, error, match):
  with pytest.raises(error, match=match):
    make()


def _operator(size):
  return tf.linalg.LinearOperatorIdentity(size)


@pytest.mark.parametrize(
  ('kernel', 'error', 'match'),
  [
    (
      PreconditionedMALA(_log_prob, 0.1, [None, _operator(2)]),
      ValueError,
      'part 1.*LinearOperator',
    ),
    (
      PreconditionedMALA(_log_prob, 0.1, LocalHessianPreconditioner()),
      ValueError,
      'depends on the position',
    ),
    (
      PreconditionedMALA(
        _log_prob, 0.1, volatility_fn=lambda u, w: [1.0 + u**2, 1.0 + w**2]
      ),
      ValueError,
      'depends on the position',
    ),
    (
      PreconditionedMALA(_log_prob, 0.1, [tf.ones([4]), 1.0]),
      ValueError,
      'part 0.*shared by all chains',
    ),
    (
      tfp.mcmc.HamiltonianMonteCarlo(_log_prob, 0.1, 2),
      TypeError,
      'PreconditionedMALA.*HamiltonianMonteCarlo',
    ),
    (
      UncalibratedPreconditionedLangevin(_log_prob, 0.1),
      TypeError,
      'PreconditionedMALA',
    ),
  ],
)
def test_refuses_kernels_without_a_scale_to_adapt(kernel, error, match):
  with pytest.raises(error, match=match):
    DiagonalPreconditionerAdaptation(kernel, 5).bootstrap_results(_state([4]))


def test_refuses_a_hessian_through_a_transformation_inside():
  kernel = tfp.mcmc.TransformedTransitionKernel(
    PreconditionedMALA(_log_prob, 0.1), [tfb.Exp(), tfb.Exp()]
  )
  kernel = DiagonalPreconditionerAdaptation(kernel, 5, 'hessian')
  with pytest.raises(ValueError, match=r'TransformedTransitionKernel.*outside'):
    kernel.bootstrap_results([tf.ones([4]), tf.ones([4, 2])])


def test_trajectories_are_refused():
  kernel = MetropolisAdjustedLangevinTrajectories(
    lambda x: -tf.reduce_sum(x**2, -1), 0.1, 1.0, 0.5
  )
  with pytest.raises(TypeError, match='contain, a PreconditionedMALA, but the'):
    DiagonalPreconditionerAdaptation(kernel, 10)


def test_refuses_a_kernel_without_parameters():
  class Still(tfp.mcmc.TransitionKernel):
    is_calibrated = True

    def bootstrap_results(self, init_state):
      return []

    def one_step(self, current_state, previous_kernel_results, seed=None):
      return current_state, previous_kernel_results

  with pytest.raises(TypeError, match='the innermost kernel is a Still'):
    DiagonalPreconditionerAdaptation(Still(), 10)


@pytest.mark.parametrize(
  ('kernel', 'match'),
  [
    (
      tfp.mcmc.HamiltonianMonteCarlo(_log_prob, 0.1, 2),
      'inner_kernel. must be, or .* is a HamiltonianMonteCarlo',
    ),
    (
      PreconditionedMALA(_log_prob, 0.1, LocalHessianPreconditioner()),
      'inner_kernel. has a .preconditioner. that is a LocalHessian',
    ),
    (
      PreconditionedMALA(_log_prob, 0.1, lambda *xs: [1.0 + x**2 for x in xs]),
      'inner_kernel. has a .volatility_fn.',
    ),
  ],
  ids=['of TFP', 'local', 'function'],
)
@pytest.mark.parametrize('wraps', [False, True], ids=['itself', 'wrapped'])
def test_refuses_them_before_a_run(kernel, match, wraps):
  if wraps:
    kernel = tfp.mcmc.SimpleStepSizeAdaptation(kernel, 10)
  with pytest.raises((TypeError, ValueError), match=match):
    DiagonalPreconditionerAdaptation(kernel, 5)
