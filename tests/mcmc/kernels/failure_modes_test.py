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
"""What is wrong is said: the argument, what was given, what fits, the way out.

See `preconditioned_mala_test.py` for starts that cannot be used, and
`kernel_bad_points_test.py` for proposals.
"""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.mcmc import LocalHessianPreconditioner, PreconditionedMALA


def _normal(x):
  return -0.5 * tf.reduce_sum(x**2, -1)


def _refuses(error, log_prob=_normal, state=None, **kwargs):
  """The message of the refusal."""
  state = tf.ones([4, 3]) if state is None else state
  with pytest.raises(error) as caught:
    kernel = PreconditionedMALA(log_prob, 0.5, **kwargs)
    kernel.bootstrap_results(state)
  return str(caught.value)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
@pytest.mark.parametrize(
  'scale',
  [None, 0.5, LocalHessianPreconditioner()],
  ids=['none', 'one', 'local'],
)
def test_half_precision(dtype, scale):
  message = _refuses(
    TypeError, state=tf.ones([4, 3], dtype), preconditioner=scale
  )
  assert f'Part 0 of the state has dtype {dtype}' in message
  assert 'probability of acceptance is wrong' in message
  assert 'Keep the state in float32, and cast inside' in message


def test_half_precision_inside_of_the_target_is_a_way_out():
  kernel = PreconditionedMALA(
    lambda x: tf.cast(_normal(tf.cast(x, tf.float16)), tf.float32), 0.5
  )
  results = kernel.bootstrap_results(tf.ones([4, 3]))
  assert results.accepted_results.target_log_prob.dtype == tf.float32


_TARGETS = {
  'keepdims': (
    lambda x: _normal(x)[:, tf.newaxis],
    ValueError,
    [r'shape (4, 1)', 'part 0 of the state, (4, 3)', 'one value per chain'],
  ),
  'sum over the chains': (
    lambda x: -0.5 * tf.reduce_sum(x**2, 0),
    ValueError,
    ['shape (3,)', 'part 0 of the state, (4, 3)', 'axis=-1'],
  ),
  'list': (
    lambda x: [_normal(x)],
    TypeError,
    ['`target_log_prob_fn` returned a list', 'add up the terms'],
  ),
  'none': (
    lambda x: None,
    TypeError,
    ['`target_log_prob_fn` returned a NoneType', 'check its `return`'],
  ),
  'constant': (
    lambda x: 3.0,
    ValueError,
    ['does not depend on part 0', 'leave that part out'],
  ),
  'float64': (
    lambda x: tf.cast(_normal(x), tf.float64),
    TypeError,
    ['returned float64', 'part 0 is float32', 'Cast'],
  ),
}


@pytest.mark.parametrize('case', _TARGETS)
def test_target(case):
  log_prob, error, words = _TARGETS[case]
  message = _refuses(error, log_prob)
  for word in words:
    assert word in message, message


_VOLATILITIES = {
  'too few': (
    lambda x: tf.ones([4, 2]),
    ValueError,
    ['shape (4, 2)', 'has shape (4, 3)', 'one standard deviation per'],
  ),
  'too many axes': (
    lambda x: tf.ones([2, 4, 3]),
    ValueError,
    ['shape (2, 4, 3)', 'part 0 of the state'],
  ),
  'float64': (
    lambda x: tf.ones([4, 3], tf.float64),
    TypeError,
    ['`volatility_fn` returned float64', 'in that dtype'],
  ),
  'none': (lambda x: None, TypeError, ['`volatility_fn` returned None']),
  'zero': (
    lambda x: tf.nn.relu(x - 2.0),
    ValueError,
    ['`volatility_fn` is 0.0', '4 of 4 chains', 'positive'],
  ),
  'negative': (
    lambda x: x * [[1.0], [1.0], [-1.0], [1.0]],
    ValueError,
    ['is -1.0', '1 of 4 chains', 'index [2]', 'standard deviation'],
  ),
}


@pytest.mark.parametrize('case', _VOLATILITIES)
def test_volatility(case):
  volatility, error, words = _VOLATILITIES[case]
  message = _refuses(error, volatility_fn=volatility)
  for word in words:
    assert word in message, message


@pytest.mark.parametrize('shape', [[], [1], [3], [4, 1], [4, 3]])
def test_volatility_of_every_shape_that_fits(shape):
  kernel = PreconditionedMALA(
    _normal, 0.5, volatility_fn=lambda x: 2.0 * tf.ones(shape)
  )
  terms = kernel.bootstrap_results(
    tf.ones([4, 3])
  ).accepted_results.grads_target_log_prob
  np.testing.assert_array_equal(terms.volatility[0], 2.0 * np.ones([4, 3]))


_PRECONDITIONERS = {
  'matrix': (
    np.ones([3, 3]),
    ValueError,
    ['shape (3, 3)', 'has shape (4, 3)', 'LinearOperator'],
  ),
  'too few': (
    np.ones(2),
    ValueError,
    ['shape (2,)', 'part 0 of the state', 'one standard deviation per'],
  ),
  'operator': (
    tf.linalg.LinearOperatorDiag(np.ones(2, np.float32)),
    ValueError,
    ['shape (2, 2)', 'has shape (4, 3)', 'square and act on the last'],
  ),
  'zero': (
    np.array([1.0, 0.0, 1.0]),
    ValueError,
    ['part 0 of the state', 'not positive', 'standard deviation'],
  ),
  'name': (
    'variance',
    TypeError,
    ["is 'variance'", '`DiagonalPreconditionerAdaptation`'],
  ),
}


@pytest.mark.parametrize('case', _PRECONDITIONERS)
def test_preconditioner(case):
  preconditioner, error, words = _PRECONDITIONERS[case]
  message = _refuses(error, preconditioner=preconditioner)
  for word in words:
    assert word in message, message


def test_start_names_chain_and_part():
  def log_prob(u, w):
    # Infinitely steep where w is zero, in the second part alone.
    return -0.5 * u**2 - tf.reduce_sum(tf.sqrt(w), -1)

  kernel = PreconditionedMALA(log_prob, 0.5)
  w = np.ones([2, 3, 2], np.float32)
  w[1, 0, 1] = 0.0
  with pytest.raises(ValueError) as caught:
    kernel.bootstrap_results([tf.zeros([2, 3]), tf.constant(w)])
  message = str(caught.value)
  assert 'the gradient of the target log density is -inf' in message
  assert 'part 1 of the state in 1 of 6 chains' in message
  assert 'index [1, 0]' in message
  assert 'start elsewhere' in message


def test_a_chain_that_never_moves_can_be_told():
  """All is rejected, -inf or not: `is_accepted` says so, chain by chain."""

  def log_prob(x):
    # A needle: every proposal from its tip is far beyond it.
    return tf.where(tf.abs(x) < 1e-6, tf.zeros_like(x), -1e6 - x**2)

  kernel = PreconditionedMALA(log_prob, 1.0)
  state = tf.constant([0.0, 3.0, -2.0])
  results = kernel.bootstrap_results(state)
  accepted = np.zeros(3)
  for i in range(30):
    state, results = kernel.one_step(state, results, seed=(i, 0))
    accepted += results.is_accepted.numpy()
  assert state[0] == 0.0 and accepted[0] == 0
  assert np.all(accepted[1:] > 10)
