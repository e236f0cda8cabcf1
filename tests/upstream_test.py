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
"""`tfp.math.diag_jacobian` beside ours: where they agree, where it is wrong.

Each defect is shown by running the upstream function, too. The day one of these
tests fails because upstream is right, the defect is gone: delete that
half of the test, and its line in docs/pages/how_to/from_tfp.md.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag import diag_jacobian

FIXED = (
  'tfp.math.diag_jacobian no longer has this defect: delete this check, and '
  'the line of docs/pages/how_to/from_tfp.md that names the defect'
)
REGIMES = ('eager', 'function')


def run(regime, fn, *xs):
  if regime == 'function':
    fn = tf.function(fn, autograph=False)
  return fn(*xs)


def draw(shape, seed=0):
  return tf.constant(
    np.random.default_rng(seed).uniform(-1.0, 1.0, shape), tf.float64
  )


def coupled(x):
  """The diagonal is `3 x^2 + 1`: no two entries are alike."""
  return x**3 + tf.reduce_sum(x, axis=-1, keepdims=True)


@pytest.mark.parametrize('regime', REGIMES)
@pytest.mark.parametrize('shape, sample_shape', [([7, 3], [7]), ([4], None)])
def test_agreement_up_to_rank_one(regime, shape, sample_shape):
  xs = [draw(shape), draw(shape[:-1] + [2], seed=1)]

  def fn(x, z):
    total = tf.reduce_sum(z, axis=-1, keepdims=True)
    return [coupled(x) * total, tf.sin(z) * total]

  def both(x, z):
    return [
      function(xs=[x, z], fn=fn, sample_shape=sample_shape)
      for function in (diag_jacobian, tfp.math.diag_jacobian)
    ]

  (ys, diag), (upstream_ys, upstream_diag) = run(regime, both, *xs)
  for result, upstream in zip([*ys, *diag], [*upstream_ys, *upstream_diag]):
    np.testing.assert_allclose(result, upstream, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('regime', REGIMES)
def test_sample_shape_of_rank_two_is_silently_wrong_upstream(regime):
  x = 3 * draw([3, 5, 2])

  def both(x):
    return [
      function(xs=x, fn=coupled, sample_shape=[3, 5])[1][0]
      for function in (diag_jacobian, tfp.math.diag_jacobian)
    ]

  ours, upstream = run(regime, both, x)
  wanted = 3 * x**2 + 1
  np.testing.assert_allclose(ours, wanted, rtol=1e-12)
  assert np.max(np.abs(upstream - wanted)) > 10.0, FIXED


def test_drift_of_a_chain_depends_on_other_chains_upstream():
  def volatility(x):
    return 1 / (1 + x**2)

  def drift_of_one_chain(others):
    kernel = tfp.mcmc.UncalibratedLangevin(
      lambda x: -0.5 * tf.reduce_sum(x**2, axis=-1),
      0.1,
      volatility_fn=volatility,
    )
    # Two chain axes of different sizes; the others' states differ.
    x = tf.tensor_scatter_nd_update(others, [[0, 1]], [[0.3, -0.4]])
    return kernel.bootstrap_results(x).diffusion_drift[0][0, 1]

  one, other = (drift_of_one_chain(draw([2, 3, 2], seed)) for seed in (0, 1))
  assert np.max(np.abs(one - other)) > 1e-3, FIXED

  def ours(others):
    x = tf.tensor_scatter_nd_update(others, [[0, 1]], [[0.3, -0.4]])
    return diag_jacobian(x, fn=volatility, sample_shape=[2, 3])[1][0][0, 1]

  one, other = (ours(draw([2, 3, 2], seed)) for seed in (0, 1))
  wanted = [-2 * x / (1 + x**2) ** 2 for x in (0.3, -0.4)]
  np.testing.assert_allclose([one, other], [wanted, wanted], rtol=1e-12)


def test_ys_that_broadcast_fail_in_a_graph_upstream():
  x = draw([5, 3])

  def diagonal(function):
    def fn(x):
      ys = tf.reduce_sum(x**2, axis=-1, keepdims=True)
      return function(xs=x, ys=ys, sample_shape=[5])[1][0]

    return run('function', fn, x)

  np.testing.assert_allclose(diagonal(diag_jacobian), 2 * x, rtol=1e-12)
  try:
    diagonal(tfp.math.diag_jacobian)
  except (tf.errors.InvalidArgumentError, ValueError):
    return
  pytest.fail(FIXED)


@pytest.mark.parametrize('num_ys', [1, 3])
def test_wrong_number_of_ys_is_accepted_in_eager_mode_upstream(num_ys):
  xs = [draw([2]), draw([2], seed=1)]

  def fn(x, z):
    return [x, z, x][:num_ys]

  try:
    tfp.math.diag_jacobian(xs=xs, fn=fn)
  except ValueError:
    pytest.fail(FIXED)
  if num_ys == 3:
    for regime in REGIMES:
      with pytest.raises(ValueError, match='There are 3 parts of `ys` but 2'):
        run(regime, lambda *xs: diag_jacobian(list(xs), fn=fn), *xs)


def test_eager_and_graph_differentiate_different_things_upstream():
  x = draw([3])

  def both(x):
    return [
      function(xs=x, ys=x**3, fn=lambda x: x**2)[1][0]
      for function in (diag_jacobian, tfp.math.diag_jacobian)
    ]

  ours, upstream = zip(*(run(regime, both, x) for regime in REGIMES))
  for diag in ours:
    np.testing.assert_allclose(diag, 2 * x, rtol=1e-12)
  np.testing.assert_allclose(upstream[0], 2 * x, rtol=1e-12)
  assert np.max(np.abs(upstream[1] - 2 * x)) > 1e-3, FIXED


def test_every_coordinate_evaluates_fn_anew_in_eager_mode_upstream():
  def evaluations(function):
    calls = []

    def fn(x):
      calls.append(x)
      return x * tf.reduce_sum(x)

    function(xs=draw([6]), fn=fn)
    return len(calls)

  assert evaluations(diag_jacobian) == 1
  assert evaluations(tfp.math.diag_jacobian) > 6, FIXED
