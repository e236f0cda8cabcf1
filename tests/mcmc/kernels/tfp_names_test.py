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
"""What code for TFP's Langevin kernels expects is there."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import (
  MetropolisAdjustedLangevinTrajectories,
  PreconditionedMALA,
  UncalibratedPreconditionedLangevin,
)


def log_prob(x):
  return -tf.reduce_sum(tf.cosh(x), axis=-1)


def volatility(x):
  return 1.0 + 0.5 * tf.tanh(x) ** 2


def _state():
  return tf.constant([[0.5, -1.0], [2.0, 0.3]], tf.float64)


@pytest.mark.parametrize(
  ('ours', 'theirs'),
  [
    (PreconditionedMALA, tfp.mcmc.MetropolisAdjustedLangevinAlgorithm),
    (UncalibratedPreconditionedLangevin, tfp.mcmc.UncalibratedLangevin),
  ],
)
def test_results_have_what_those_of_tfp_have(ours, theirs):
  found, expected = (
    kernel(
      log_prob, tf.constant(0.3, tf.float64), volatility
    ).bootstrap_results(_state())
    for kernel in (ours, theirs)
  )
  found = getattr(found, 'accepted_results', found)
  expected = getattr(expected, 'accepted_results', expected)
  for name in ('volatility', 'grads_volatility', 'diffusion_drift'):
    [mine] = getattr(found, name)
    [its] = tf.nest.flatten(getattr(expected, name))
    np.testing.assert_allclose(mine, its, rtol=1e-12, err_msg=name)


def test_a_constant_scale_has_no_volatility_in_the_results():
  results = PreconditionedMALA(log_prob, 0.1).bootstrap_results(_state())
  assert not hasattr(results.accepted_results, 'volatility')
  with pytest.raises(AttributeError, match=r'kernel\.preconditioner'):
    _ = results.accepted_results.diffusion_drift


def test_the_third_argument_may_be_a_volatility():
  by_place = PreconditionedMALA(log_prob, 0.1, volatility)
  assert by_place.volatility_fn is volatility
  assert by_place.preconditioner is None
  by_name = PreconditionedMALA(log_prob, 0.1, volatility_fn=volatility)
  one, other = (
    kernel.one_step(_state(), kernel.bootstrap_results(_state()), seed=(1, 2))
    for kernel in (by_place, by_name)
  )
  np.testing.assert_array_equal(one[0], other[0])


def test_without_acceptance_there_is_no_correction():
  states = []
  for compute in (True, False):
    kernel = UncalibratedPreconditionedLangevin(
      log_prob, 0.1, volatility, compute_acceptance=compute
    )
    assert kernel.copy().compute_acceptance is compute
    state, results = kernel.one_step(
      _state(), kernel.bootstrap_results(_state()), seed=(1, 2)
    )
    states.append(state)
    assert np.all(results.log_acceptance_correction == 0.0) != compute
  np.testing.assert_array_equal(*states)


@pytest.mark.parametrize(
  'kernel',
  [
    PreconditionedMALA(log_prob, 0.1, volatility),
    UncalibratedPreconditionedLangevin(log_prob, 0.1),
    MetropolisAdjustedLangevinTrajectories(log_prob, 0.1, 0.3, 1.0),
  ],
  ids=lambda kernel: type(kernel).__name__,
)
def test_results_may_go_through_numpy(kernel):
  results = kernel.bootstrap_results(_state())
  as_arrays = tf.nest.map_structure(lambda x: x.numpy(), results)
  state, after = kernel.one_step(_state(), results, seed=(1, 2))
  again, after_again = kernel.one_step(_state().numpy(), as_arrays, seed=(1, 2))
  np.testing.assert_array_equal(state, again)
  tf.nest.map_structure(np.testing.assert_array_equal, after, after_again)


def test_kernels_show_themselves_in_a_line():
  kernel = PreconditionedMALA(
    log_prob, tf.constant(0.25), tf.linalg.LinearOperatorDiag([1.0, 2.0])
  )
  assert repr(kernel) == (
    'PreconditionedMALA(target_log_prob_fn=log_prob, step_size=0.25, '
    "preconditioner=<LinearOperatorDiag (2, 2)>, discretization='euler', "
    'parallel_iterations=10, validate_args=False)'
  )
  assert kernel._repr_html_().startswith('<pre>PreconditionedMALA(')
