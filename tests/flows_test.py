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
"""Traces of flows in `tfp.bijectors.FFJORD`: exact, estimated, exchanged."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.diagonal import graphs, sweep
from tfp_diag.diagonal.jacobian_terms import JacobianTerms

tfb, tfd = tfp.bijectors, tfp.distributions


class Solution:
  def __init__(self, states):
    self.states = states


def euler(ode_fn, initial_time, initial_state, solution_times, constants=None):
  """Eight explicit steps; FFJORD asks for the state at the last time only."""
  (final,) = solution_times
  h = (final - initial_time) / 8
  state = initial_state
  for i in range(8):
    slope = ode_fn(initial_time + i * h, state, **(constants or {}))
    state = tf.nest.map_structure(lambda x, d: x + h * d, state, slope)
  return Solution(tf.nest.map_structure(lambda x: x[tf.newaxis], state))


W = tf.Variable(0.3 * np.random.default_rng(0).normal(size=(4, 4)))


def coupled(time, x, shift=0.0):
  return tf.tanh(tf.linalg.matvec(W, x) + time + shift) - 0.2 * x


def coupled_diagonal(time, x):
  return np.diag(W.numpy()) * (1 - np.tanh(x @ W.numpy().T + time) ** 2) - 0.2


@pytest.mark.parametrize('sample_shape', [(), (5,), (2, 3)])
@pytest.mark.parametrize('in_graph', [False, True])
def test_exact_is_the_diagonal(sample_shape, in_graph):
  x = np.random.default_rng(1).normal(size=(*sample_shape, 4))
  augmented = tfp_diag.trace_jacobian_exact(coupled, x.shape, tf.float64)
  if in_graph:
    augmented = tf.function(augmented, autograph=False)
  velocity, diag = augmented(
    tf.constant(0.7, tf.float64), (x, tf.zeros_like(x))
  )
  np.testing.assert_allclose(velocity, coupled(0.7, x), rtol=1e-12, atol=1e-14)
  np.testing.assert_allclose(diag, coupled_diagonal(0.7, x), rtol=1e-12)


def test_hutchinson_estimates_it():
  x = np.random.default_rng(1).normal(size=(3, 4))

  def estimates(num_probes, seed):
    augmented = tfp_diag.trace_jacobian_hutchinson(
      coupled, x.shape, tf.float64, num_probes=num_probes, seed=seed
    )
    velocity, diag = augmented(0.7, (x, tf.zeros_like(x)))
    np.testing.assert_allclose(velocity, coupled(0.7, x), rtol=1e-12)
    return diag

  # Row i of the Jacobian is (1 - tanh^2) W_i; its other entries are the error.
  w = W.numpy()
  slope = (1 - np.tanh(x @ w.T + 0.7) ** 2)[..., np.newaxis] * w
  variance = (slope**2).sum(-2) - np.diagonal(slope**2, axis1=-2, axis2=-1)
  for n in (100, 900):
    off = estimates(n, [0, 1]) - coupled_diagonal(0.7, x)
    # Twelve comparisons at 4.5 standard errors: a false alarm in 1e4.
    assert (np.abs(off) < 4.5 * np.sqrt(variance / n)).all()
    assert np.abs(off).max() > 0.1 * np.sqrt(variance.min() / n)
  one = estimates(1, [0, 1])
  np.testing.assert_array_equal(one, estimates(1, tf.constant([0, 1])))
  assert np.abs(one - estimates(1, [0, 2])).max() > 1e-3


def test_a_network_of_one_hidden_layer_is_cut(monkeypatch):
  """The field of a continuous flow, as in the paper, costs three passes."""
  rng = np.random.default_rng(3)
  inner = tf.Variable(rng.normal(size=(13, 30)) / 4.0)
  bias = tf.Variable(rng.normal(size=30))
  outer = tf.Variable(rng.normal(size=(30, 12)) / 4.0)

  def network(time, x):
    time = tf.fill([tf.shape(x)[0], 1], tf.cast(time, x.dtype))
    hidden = tf.matmul(tf.concat([time, x], -1), inner)
    return tf.matmul(tf.tanh(tf.nn.bias_add(hidden, bias)), outer)

  plans = []
  diagonal = JacobianTerms.diagonal

  def spy(terms, *args):
    plans.append(terms.num_passes)
    return diagonal(terms, *args)

  monkeypatch.setattr(JacobianTerms, 'diagonal', spy)
  x = rng.normal(size=(16, 12))
  augmented = tfp_diag.trace_jacobian_exact(network, x.shape, tf.float64)
  time = tf.constant(0.4, tf.float64)
  _, diag = tf.function(augmented)(time, (x, tf.zeros_like(x)))
  slope = 1 - np.tanh(x @ inner[1:].numpy() + 0.4 * inner[0] + bias) ** 2
  expected = slope @ (inner[1:].numpy().T * outer.numpy())
  np.testing.assert_allclose(diag, expected, rtol=1e-10, atol=1e-12)
  assert plans == [3]


def test_exact_goes_through_a_plan(monkeypatch):
  counts = []
  original = sweep.diagonal

  def spy(linear_map, colors, *args):
    counts.append(colors.num_colors)
    return original(linear_map, colors, *args)

  monkeypatch.setattr(sweep, 'diagonal', spy)
  # Diffusion on a ring of 40 sites: what the two neighbours of a site bring
  # does not return.
  augmented = tfp_diag.trace_jacobian_exact(
    lambda t, x: tf.roll(x, 1, -1) + tf.roll(x, -1, -1) - (2 + t) * x**3,
    [7, 40],
    tf.float64,
  )
  x = np.random.default_rng(0).normal(size=(7, 40))
  _, diag = augmented(0.5, (x, tf.zeros_like(x)))
  np.testing.assert_allclose(diag, -7.5 * x**2, rtol=1e-12)
  assert counts == [1]


@pytest.mark.parametrize('kind', ['exact', 'hutchinson'])
def test_an_eager_solver_compiles_once(kind):
  tfp_diag.clear_cache()
  traces = 0

  def ode_fn(time, x):
    nonlocal traces
    traces += 1
    return tf.sin(x) * time

  make = getattr(tfp_diag, f'trace_jacobian_{kind}')
  augmented = make(ode_fn, [3, 2], tf.float32)
  x = tf.ones([3, 2])
  augmented(0.0, (x, x))
  for i in range(100):
    _, diag = augmented(tf.constant(i / 100), (x, x))
    np.testing.assert_allclose(diag, np.cos(1) * i / 100 * x, rtol=1e-5)
  assert traces == 101
  assert len(graphs._cache) == 1


def model(trace_augmentation_fn, **kwargs):
  return tfd.TransformedDistribution(
    tfd.MultivariateNormalDiag(tf.zeros([4], tf.float64)),
    tfb.FFJORD(
      coupled,
      ode_solve_fn=euler,
      trace_augmentation_fn=trace_augmentation_fn,
      dtype=tf.float64,
    ),
    **kwargs,
  )


HUTCHINSON = functools.partial(
  tfp_diag.trace_jacobian_hutchinson, num_probes=200, seed=[0, 1]
)


def test_switching_on_one_trained_model():
  # TFP's own exact trace is the reference.
  y = np.random.default_rng(2).normal(size=(6, 4))
  reference = model(tfb.ffjord.trace_jacobian_exact).log_prob(y)
  exact = model(tfp_diag.trace_jacobian_exact).log_prob(y)
  np.testing.assert_allclose(exact, reference, rtol=1e-10)
  estimate = model(HUTCHINSON).log_prob(y)
  np.testing.assert_allclose(estimate, reference, atol=0.15)
  assert np.abs(estimate - reference).max() > 1e-4
  compiled = tf.function(
    model(tfp_diag.trace_jacobian_exact).log_prob, jit_compile=True
  )
  np.testing.assert_allclose(compiled(y), reference, rtol=1e-10)


def test_trains():
  y = tf.constant(np.random.default_rng(2).normal(size=(6, 4)))

  def gradient(augmentation):
    with tf.GradientTape() as tape:
      loss = -tf.reduce_mean(model(augmentation).log_prob(y))
    return tape.gradient(loss, W)

  reference = gradient(tfb.ffjord.trace_jacobian_exact)
  np.testing.assert_allclose(
    gradient(tfp_diag.trace_jacobian_exact), reference, rtol=1e-9, atol=1e-12
  )
  np.testing.assert_allclose(gradient(HUTCHINSON), reference, atol=0.1)


def test_with_the_default_solver_and_conditions():
  def ode_fn(time, x, scale=1.0):
    return scale * x**2 * time

  x = tf.constant([[0.1, 0.2], [0.3, -0.4]], tf.float64)
  # x' = t x^2 has 1/x(1) = 1/x(0) - 1/2, and dx(1)/dx(0) = (x(1) / x(0))^2.
  flow = tfb.FFJORD(
    ode_fn,
    trace_augmentation_fn=tfp_diag.trace_jacobian_exact,
    dtype=tf.float64,
  )
  end = 1 / (1 / x - 0.5)
  np.testing.assert_allclose(flow.forward(x), end, rtol=1e-4)
  np.testing.assert_allclose(
    flow.forward_log_det_jacobian(x, event_ndims=1),
    tf.reduce_sum(2 * tf.math.log(end / x), -1),
    rtol=1e-3,
  )
  augmented = tfp_diag.trace_jacobian_exact(ode_fn, x.shape, x.dtype)
  for scale in (2.0, 3.0):
    _, diag = augmented(0.5, (x, x), scale=tf.constant(scale, tf.float64))
    np.testing.assert_allclose(diag, scale * x)


def test_events_of_other_ranks():
  augment = functools.partial(tfp_diag.trace_jacobian_exact, event_ndims=2)
  x = tf.constant(np.random.default_rng(0).normal(size=(5, 2, 3)))
  augmented = augment(
    lambda t, x: x**2 * tf.reduce_sum(x, [-2, -1], keepdims=True),
    x.shape,
    x.dtype,
  )
  _, diag = augmented(0.0, (x, x))
  total = tf.reduce_sum(x, [1, 2], keepdims=True)
  np.testing.assert_allclose(diag, 2 * x * total + x**2, rtol=1e-12)
  with pytest.raises(ValueError, match='`event_ndims` is 2'):
    augmented(0.0, (tf.ones([3]), tf.ones([3])))


@pytest.mark.parametrize(
  'trace',
  [tfp_diag.trace_jacobian_exact, tfp_diag.trace_jacobian_hutchinson],
)
def test_conditions_that_are_no_tensors(trace):
  def repeated(t, x, times=1, scale=None):
    y = tf.concat([x] * times, 0)[-2:]
    return y**2 if scale is None else scale * y**2

  x = tf.constant([1.0, 2.0])
  augmented = trace(repeated, x.shape, x.dtype)
  for conditions, factor in (
    ({'times': 2}, 1.0),
    ({'times': 3, 'scale': None}, 1.0),
    ({'scale': tf.constant(5.0)}, 5.0),
    ({'scale': np.float32(7.0)}, 7.0),
  ):
    velocity, diag = augmented(0.5, (x, x), **conditions)
    np.testing.assert_allclose(velocity, factor * x**2)
    np.testing.assert_allclose(diag, 2.0 * factor * x)


@pytest.mark.parametrize('event_ndims', [-1, 1.0, None])
def test_event_ndims_that_are_none(event_ndims):
  with pytest.raises(ValueError, match='`event_ndims` is'):
    tfp_diag.trace_jacobian_exact(
      coupled, [4], tf.float64, event_ndims=event_ndims
    )


@pytest.mark.parametrize(
  'match, kwargs',
  [
    ('`num_probes` is 0', {'num_probes': 0}),
    ('a pair of', {'seed': [1, 2, 3]}),
  ],
)
def test_errors(match, kwargs):
  with pytest.raises(ValueError, match=match):
    tfp_diag.trace_jacobian_hutchinson(coupled, [4], tf.float64, **kwargs)


@pytest.mark.parametrize('shape', [[], [1], [2], [3, 4]])
def test_probes_of_another_shape_are_refused(shape):
  """What broadcasts would have one sign for all coordinates."""
  trace = tfp_diag.trace_jacobian_hutchinson(coupled, shape, tf.float64)
  x = tf.ones([4], tf.float64)
  with pytest.raises(ValueError, match='The state has shape'):
    trace(0.0, (x, x))
  with pytest.raises(ValueError, match='dtype'):
    tfp_diag.trace_jacobian_hutchinson(coupled, [4], tf.float32)(0.0, (x, x))


@pytest.mark.parametrize(
  'trace',
  [tfp_diag.trace_jacobian_exact, tfp_diag.trace_jacobian_hutchinson],
)
@pytest.mark.parametrize('dtype', ['floaty', tf.int32, None, 777])
def test_a_dtype_that_is_none_is_refused_when_it_is_made(trace, dtype):
  with pytest.raises(TypeError, match=r'`dtype` is .* the floating dtype'):
    trace(coupled, [4], dtype)


@pytest.mark.parametrize(
  ('shape', 'event_ndims', 'match'),
  [
    ([2, 3], 5, '`event_ndims` is 5'),
    ('seven', 1, '`state_shape` is'),
    (None, 1, '`state_shape` is None'),
    ([-1, 3], 1, '`state_shape` is'),
  ],
)
def test_a_shape_is_refused_when_it_is_made(shape, event_ndims, match):
  with pytest.raises(ValueError, match=match):
    tfp_diag.trace_jacobian_exact(
      coupled, shape, tf.float64, event_ndims=event_ndims
    )


@pytest.mark.parametrize('shape', [[None, 3], tf.TensorShape([None, 3])])
def test_probes_of_an_open_shape_are_refused(shape):
  with pytest.raises(ValueError, match=r'`state_shape` is .* each size'):
    tfp_diag.trace_jacobian_hutchinson(coupled, shape, tf.float64)


def test_a_shape_that_is_not_known_is_taken():
  augmented = tfp_diag.trace_jacobian_exact(
    lambda t, x: t * x**2, tf.TensorShape(None), tf.float64
  )
  x = tf.constant([[1.0, 2.0]], tf.float64)
  np.testing.assert_allclose(augmented(0.5, (x, x))[1], x)
