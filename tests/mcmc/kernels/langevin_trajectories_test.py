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
"""Trajectories: MALA with one step, the laws of many, and what adapts them.

Tests of laws have fixed seeds, and a false-alarm rate of 1e-6 under others.
"""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.mcmc import (
  LocalHessianPreconditioner,
  MetropolisAdjustedLangevinTrajectories,
  PreconditionedMALA,
)
from tfp_diag.mcmc.kernels import langevin, langevin_trajectories
from tfp_diag.mcmc.kernels.uncalibrated_preconditioned_langevin import (
  UncalibratedPreconditionedLangevin,
)

_LEVEL = 1e-6
_NUM_DRAWS = 40_000
_FACTOR = np.linalg.cholesky([[1.0, 0.6], [0.6, 0.8]])


def bent(x):
  """A bent normal: x₀ and x₁ + (x₀² - 1) / 2 are standard normal."""
  second = x[..., 1] + 0.5 * (tf.square(x[..., 0]) - 1.0)
  return -0.5 * (tf.square(x[..., 0]) + tf.square(second))


def gradient_of_bent(x):
  second = x[..., 1] + 0.5 * (x[..., 0] ** 2 - 1.0)
  return np.stack([-x[..., 0] - x[..., 0] * second, -second], -1)


def operator(factor=_FACTOR, dtype=tf.float64):
  return tf.linalg.LinearOperatorLowerTriangular(tf.constant(factor, dtype))


def draw(*shape, seed=0, dtype=tf.float64):
  return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


# One step is a step of MALA.


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('kind', ['none', 'scale', 'matrix'])
def test_one_step_is_a_step_of_mala(kind, dtype):
  scale = {
    'none': None,
    'scale': tf.constant([0.5, 2.0], dtype),
    'matrix': operator(dtype=dtype),
  }[kind]
  x = draw(7, 2, dtype=dtype)
  h = tf.constant(0.75, dtype)  # Its square is exact.
  mala = PreconditionedMALA(bent, h * h, scale)
  malt = MetropolisAdjustedLangevinTrajectories(bent, h, h, 0.3, scale)
  for seed in [(1, 2), (3, 4)]:
    want, of_mala = mala.one_step(x, mala.bootstrap_results(x), seed=seed)
    got, of_malt = malt.one_step(x, malt.bootstrap_results(x), seed=seed)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(
      of_malt.log_accept_ratio, of_mala.log_accept_ratio
    )
  assert of_malt.leapfrogs_taken == 1


# Many steps, against a slow copy with every half step of its own.


def slow_trajectory(x, velocity, noises, h, damping, factor):
  """OBABO after the first half O, which a new velocity makes void.

  Returns:
    The end, the velocity before the last half O, and the energy error.
  """
  half = np.exp(-0.5 * damping * h)
  error = 0.0
  v = velocity

  def energy(x, v):
    second = x[:, 1] + 0.5 * (x[:, 0] ** 2 - 1.0)
    return 0.5 * (x[:, 0] ** 2 + second**2 + (v**2).sum(-1))

  for k in range(len(noises) + 1):
    before = energy(x, v)
    v = v + 0.5 * h * gradient_of_bent(x) @ factor
    x = x + h * v @ factor.T
    v = v + 0.5 * h * gradient_of_bent(x) @ factor
    error += energy(x, v) - before
    if k < len(noises):
      first, second = noises[k]
      v = half * v + np.sqrt(1.0 - half**2) * first
      v = half * v + np.sqrt(1.0 - half**2) * second
  return x, v, error


def follow(monkeypatch, x, noises, h, damping, num_steps):
  """What the kernel makes with noise that is given, step by step."""
  left = list(noises)
  monkeypatch.setattr(
    UncalibratedPreconditionedLangevin,
    'draw_noise',
    lambda self, parts, seed: [tf.constant(left.pop(0))],
  )
  kernel = MetropolisAdjustedLangevinTrajectories(
    bent, h, h * num_steps, damping, operator()
  )
  x = tf.constant(x)
  _, results = kernel.one_step(x, kernel.bootstrap_results(x), seed=(0, 1))
  assert not left
  return results


def halves(rng, num, h, damping, shape):
  """Pairs of half refreshments, and the whole ones that they make."""
  pairs = rng.normal(size=[num, 2, *shape])
  half = np.exp(-0.5 * damping * h)
  whole = np.sqrt(1.0 - half**2) * (half * pairs[:, 0] + pairs[:, 1])
  return pairs, whole / np.sqrt(1.0 - half**4)


def test_a_trajectory_is_that_of_a_slow_copy(monkeypatch):
  rng = np.random.default_rng(1)
  x, v = rng.normal(size=[2, 5, 2])
  h, damping = 0.3, 0.7
  pairs, whole = halves(rng, 5, h, damping, [5, 2])
  end, velocity, error = slow_trajectory(x, v, pairs, h, damping, _FACTOR)
  results = follow(monkeypatch, x, [v, *whole], h, damping, 6)
  np.testing.assert_allclose(results.proposed_state, end, rtol=1e-10)
  np.testing.assert_allclose(results.proposed_velocity[0], velocity, rtol=1e-10)
  np.testing.assert_allclose(results.log_accept_ratio, -error, atol=1e-10)


def test_detailed_balance_up_to_a_flip_of_the_velocity(monkeypatch):
  """Back from the end with the velocity flipped: the same way, minus the error.

  The noise of the way back is what leads from one flipped velocity to the one
  before; detailed balance of refreshment makes both as likely.
  """
  rng = np.random.default_rng(2)
  x, v = rng.normal(size=[2, 5, 2])
  h, damping, num = 0.3, 0.7, 4
  eta = np.exp(-damping * h)
  spread = np.sqrt(1.0 - eta**2)
  noises = rng.normal(size=[num - 1, 5, 2])
  ends, starts, state, velocity = [], [v], x, v
  for k in range(num):
    state, after, _ = slow_trajectory(state, velocity, [], h, damping, _FACTOR)
    ends.append(after)
    if k < num - 1:
      velocity = eta * after + spread * noises[k]
      starts.append(velocity)
  there = follow(monkeypatch, x, [v, *noises], h, damping, num)
  back_noises = [
    (-ends[k] + eta * starts[k + 1]) / spread for k in reversed(range(num - 1))
  ]
  back = follow(
    monkeypatch,
    there.proposed_state.numpy(),
    [-ends[-1], *back_noises],
    h,
    damping,
    num,
  )
  np.testing.assert_allclose(back.proposed_state, x, atol=1e-10)
  np.testing.assert_allclose(back.proposed_velocity[0], -v, atol=1e-10)
  np.testing.assert_allclose(
    back.log_accept_ratio, -there.log_accept_ratio, atol=1e-10
  )


def p_value(num_trajectories=3, **kwargs):
  """The smallest p-value of statistics of trajectories from exact draws."""
  z = np.random.default_rng(11).normal(size=[_NUM_DRAWS, 2])
  x = tf.constant(np.stack([z[:, 0], z[:, 1] - 0.5 * (z[:, 0] ** 2 - 1)], -1))
  kernel = MetropolisAdjustedLangevinTrajectories(
    bent, **{'step_size': 0.6, 'integration_time': 6.0, 'damping': 0.8} | kwargs
  )

  @tf.function
  def run(x):
    results = kernel.bootstrap_results(x)
    for i in tf.range(num_trajectories):
      x, results = kernel.one_step(x, results, seed=tf.stack([3, i]))
    return x, results.is_accepted

  x, is_accepted = run(x)
  assert 0.3 < is_accepted.numpy().mean() < 0.95
  x = x.numpy()
  z = np.stack([x[:, 0], x[:, 1] + 0.5 * (x[:, 0] ** 2 - 1.0)], -1)
  tests = [scipy.stats.kstest(column, 'norm') for column in z.T]
  tests.append(scipy.stats.kstest(z.sum(-1) / np.sqrt(2.0), 'norm'))
  tests.append(scipy.stats.kstest((z**2).sum(-1), scipy.stats.chi2(2).cdf))
  return min(t.pvalue for t in tests)


@pytest.mark.parametrize(
  'kwargs',
  [
    {},
    {'preconditioner': operator()},
    {'damping': 0.0},
    {'damping': np.inf, 'integration_time': 1.2},
    {'jitter': 1.0},
    {'integration_time': 1.5},
  ],
)
def test_trajectories_leave_the_target_invariant(kwargs):
  assert p_value(**kwargs) > _LEVEL


def test_catches_a_forgotten_kinetic_term(monkeypatch):
  right = langevin.ConstantScale.correction

  def wrong(self, terms, whitened, noise, root, axes):
    # What the second kick adds by itself.
    middle = noise + 0.5 * whitened[0]
    forgotten = tf.reduce_sum(whitened[1] * (middle + 0.25 * whitened[1]), axes)
    return right(self, terms, whitened, noise, root, axes) + 0.25 * forgotten

  monkeypatch.setattr(langevin.ConstantScale, 'correction', wrong)
  assert p_value() < _LEVEL


def test_catches_a_forgotten_step(monkeypatch):
  right = MetropolisAdjustedLangevinTrajectories._follow

  def wrong(self, *args):
    point, correction = right(self, *args)
    return point, correction - point.results.log_acceptance_correction

  monkeypatch.setattr(MetropolisAdjustedLangevinTrajectories, '_follow', wrong)
  assert p_value() < _LEVEL


def test_catches_a_half_refreshment_that_is_dropped(monkeypatch):
  right = langevin_trajectories.refresh

  def wrong(velocity, noise, decay):
    # The velocity decays for the whole step, the noise is that of a half.
    return decay * velocity + (
      right(velocity, noise, tf.sqrt(decay)) - tf.sqrt(decay) * velocity
    )

  monkeypatch.setattr(langevin_trajectories, 'refresh', wrong)
  assert p_value() < _LEVEL


def test_catches_a_wrong_scaling_of_the_preconditioner(monkeypatch):
  """In the energy error: with a wrong force alone a trajectory stays right."""
  whiten = langevin.ConstantScale.whiten
  monkeypatch.setattr(
    langevin.ConstantScale,
    'whiten',
    lambda self, terms, root: self.factor.matvec(whiten(self, terms, root)),
  )
  assert p_value(preconditioner=operator()) > _LEVEL
  monkeypatch.undo()
  right = langevin.ConstantScale.correction

  def wrong(self, terms, whitened, *args):
    scaled = [0.5 * (w + self.factor.matvec(w)) for w in whitened]
    return right(self, terms, scaled, *args)

  monkeypatch.setattr(langevin.ConstantScale, 'correction', wrong)
  assert p_value(preconditioner=operator()) < _LEVEL


def test_the_energy_error_falls_with_the_fourth_power():
  """Its mean over exact draws; the error of each is of the second power."""

  def mean_error(h):
    z = draw(400_000, 1, seed=5)
    kernel = MetropolisAdjustedLangevinTrajectories(
      lambda x: -0.5 * tf.reduce_sum(tf.square(x), -1), h, 2.0, 0.5
    )
    _, results = kernel.one_step(z, kernel.bootstrap_results(z), seed=(1, 2))
    return -float(tf.reduce_mean(results.log_accept_ratio))

  ratio = mean_error(0.5) / mean_error(0.25)
  assert 12.0 < ratio < 21.0


# What adapts it, and where it runs.


def test_compiled_is_eager():
  x = [draw(6, 3), draw(6, 2, seed=1)]

  def log_prob(x, y):
    return bent(y) - tf.reduce_sum(tf.cosh(x), -1) + x[:, 0] * y[:, 1]

  kernel = MetropolisAdjustedLangevinTrajectories(
    log_prob,
    [tf.constant(0.2, tf.float64), tf.constant(0.3, tf.float64)],
    1.5,
    0.5,
    [None, operator()],
    jitter=0.5,
  )

  def step(x, seed):
    return kernel.one_step(x, kernel.bootstrap_results(x), seed=seed)

  want, eager = step(x, tf.constant([4, 5]))
  for jit_compile in (None, True):
    got, compiled = tf.function(step, jit_compile=jit_compile)(
      x, tf.constant([4, 5])
    )
    for a, b in zip(got, want):
      np.testing.assert_allclose(a, b, rtol=1e-9)
    np.testing.assert_allclose(
      compiled.log_accept_ratio, eager.log_accept_ratio, atol=1e-9
    )


def test_the_number_of_steps_is_right_on_average():
  x = draw(4, 2)
  kernel = MetropolisAdjustedLangevinTrajectories(bent, 0.4, 1.0, 0.5)
  results = kernel.bootstrap_results(x)
  step = tf.function(lambda seed: kernel.one_step(x, results, seed=seed)[1])
  found = [int(step(tf.constant([1, i])).leapfrogs_taken) for i in range(200)]
  assert set(found) == {2, 3}
  # 2.5, with a standard deviation of 0.035.
  assert abs(np.mean(found) - 2.5) < 0.2


def test_a_tiny_step_size_costs_no_more_than_the_most_steps():
  x = draw(4, 2)
  kernel = MetropolisAdjustedLangevinTrajectories(
    bent, 1e-30, 1.0, 0.5, max_num_steps=7
  )
  _, results = kernel.one_step(x, kernel.bootstrap_results(x), seed=(0, 1))
  assert results.leapfrogs_taken == 7
  # The time is cut: seven steps, each of the size that it has.
  assert np.max(np.abs(results.proposed_state - x)) < 1e-25


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('most', [2**24 + 1, 2**31 - 1])
def test_a_number_of_steps_beyond_an_integer_does_not_wrap(dtype, most):
  """Neither is a number of float32."""
  kernel = MetropolisAdjustedLangevinTrajectories(
    bent, tf.constant(1e-30, dtype), 1.0, 0.5, max_num_steps=most
  )
  results = kernel.bootstrap_results(tf.cast(draw(4, 2), dtype))
  assert kernel._num_steps(results, tf.constant([0, 1])) == most


def test_tfp_adapts_the_step_size_and_transforms_the_state():
  target = tfp.distributions.Gamma(np.float64(3.0), np.float64(2.0))
  kernel = tfp.mcmc.TransformedTransitionKernel(
    tfp.mcmc.DualAveragingStepSizeAdaptation(
      MetropolisAdjustedLangevinTrajectories(
        target.log_prob, tf.constant(0.01, tf.float64), 1.5, 0.7
      ),
      num_adaptation_steps=150,
      target_accept_prob=np.float64(0.8),
    ),
    tfp.bijectors.Exp(),
  )

  @tf.function(autograph=False)
  def run():
    return tfp.mcmc.sample_chain(
      200,
      tf.ones([50], tf.float64),
      kernel=kernel,
      num_burnin_steps=150,
      trace_fn=lambda _, results: (
        results.inner_results.inner_results.accepted_results.step_size
      ),
      seed=(1, 3),
    )

  draws, step_sizes = run()
  assert 0.3 < float(step_sizes[-1]) < 5.0
  # With 10,000 draws of little correlation: MCSE 0.01.
  assert abs(float(tf.reduce_mean(draws)) - 1.5) < 0.06


def test_a_point_that_is_not_finite_is_rejected():
  def log_prob(x):
    return tf.where(x[:, 0] > 0.5, np.float64(np.nan), bent(x))

  x = tf.zeros([50, 2], tf.float64)
  kernel = MetropolisAdjustedLangevinTrajectories(log_prob, 0.5, 2.0, 0.5)
  state, results = kernel.one_step(x, kernel.bootstrap_results(x), seed=(1, 2))
  assert np.all(state[:, 0] <= 0.5)
  assert 0 < np.sum(np.isneginf(results.log_accept_ratio)) < 50


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'integration_time': 0.0}, 'integration_time. is .* must be a positive'),
    ({'damping': -1.0}, 'damping. is -1.0, but must be a number that is not'),
    ({'jitter': 2.0}, 'jitter. is 2.0, but must be a number from 0 to 1'),
    ({'max_num_steps': 0}, 'max_num_steps. is 0, .* be a positive integer'),
    (
      {'preconditioner': LocalHessianPreconditioner()},
      'depends on the position',
    ),
    (
      {'preconditioner': lambda x: 0.5 + tf.sigmoid(3.0 * x)},
      'is a function of the position, but a trajectory needs one scale; use it '
      'with `PreconditionedMALA`',
    ),
    ({'step_size': -0.1}, 'step_size. must be positive'),
  ],
)
def test_refuses_arguments(kwargs, match):
  defaults = {'step_size': 0.5, 'integration_time': 1.0, 'damping': 0.5}
  with pytest.raises(ValueError, match=match):
    MetropolisAdjustedLangevinTrajectories(
      bent, **defaults | kwargs
    ).bootstrap_results(draw(3, 2))


def test_refuses_a_jitter_that_is_not_known():
  @tf.function
  def build(jitter):
    MetropolisAdjustedLangevinTrajectories(bent, 0.5, 1.0, 0.5, jitter=jitter)

  with pytest.raises(
    ValueError, match='`jitter` is a Tensor of a graph, whose'
  ):
    build(tf.constant(0.5))


def test_a_copy_refuses_what_the_kernel_does():
  kernel = MetropolisAdjustedLangevinTrajectories(bent, 0.5, 1.0, 0.5)
  with pytest.raises(ValueError, match='a trajectory needs one scale'):
    kernel.copy(preconditioner=lambda x: 0.5 + tf.sigmoid(3.0 * x))
  with pytest.raises(ValueError, match=r'step_size. must be positive'):
    kernel.copy(step_size=-3.0)
  with pytest.raises(TypeError, match=r"step_sise. is not .* 'step_size'\?"):
    kernel.copy(step_sise=3.0)
  assert kernel.copy(step_size=0.25).step_size == 0.25


def test_a_target_may_lose_its_shape_in_a_graph():
  def log_prob(x):
    value = -0.5 * tf.reduce_sum(x**2, -1)
    if tf.executing_eagerly():
      return value
    return tf.compat.v1.placeholder_with_default(value, [None])

  kernel = MetropolisAdjustedLangevinTrajectories(log_prob, 0.3, 1.0, 1.0)
  state, seed = tf.ones([4, 2]), tf.constant([1, 2])
  results = kernel.bootstrap_results(state)
  step = tf.function(
    lambda x: kernel.one_step(x, results, seed=seed)[0], autograph=False
  )
  expected, _ = kernel.one_step(state, results, seed=seed)
  np.testing.assert_allclose(step(state), expected, rtol=1e-5)


@pytest.mark.parametrize('max_num_steps', [1, 8])
def test_a_state_that_overflows_is_refused(max_num_steps):
  """Though density and gradient are finite there."""

  def flat(x):
    return tf.reduce_sum(tf.minimum(tf.abs(x), 1.0), axis=-1)

  kernel = MetropolisAdjustedLangevinTrajectories(
    flat,
    step_size=1e19,
    integration_time=3e19,
    damping=0.0,
    preconditioner=tf.fill([2], 3e19),
    max_num_steps=max_num_steps,
  )
  state = tf.constant(np.random.default_rng(7).normal(size=[50, 2]), tf.float32)
  results = kernel.bootstrap_results(state)
  moved, results = kernel.one_step(state, results, seed=(1, 2))
  is_lost = ~np.all(np.isfinite(results.proposed_state), axis=-1)
  assert 10 < is_lost.sum()
  np.testing.assert_array_equal(results.log_accept_ratio[is_lost], -np.inf)
  assert np.all(np.isfinite(moved))
