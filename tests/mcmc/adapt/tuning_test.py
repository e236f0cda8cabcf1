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
"""What a warm-up learns from draws that are known."""

import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.mcmc.adapt.newton_starts import newton_starts
from tfp_diag.mcmc.adapt.scales import (
  SCALES,
  DenseScale,
  DiagonalScale,
  LowRankScale,
  centered,
)
from tfp_diag.mcmc.adapt.tuning import (
  Places,
  StepSizeTuner,
  autocorrelation_time,
  find_stuck,
  hardly_move,
  has_mass,
  have_mass_after_all,
  is_unstable,
  times_of,
)

_RNG = np.random.default_rng(3)
_FACTOR = np.tril(_RNG.normal(size=[4, 4])) + 3.0 * np.eye(4)


def gaussian_draws(num):
  """Draws of a Gaussian with the covariance F Fᵀ, and their gradients."""
  draws = np.random.default_rng(0).normal(size=[num, 4]) @ _FACTOR.T
  return draws, -np.linalg.solve(_FACTOR @ _FACTOR.T, draws.T).T


def test_a_matrix_is_learned_without_an_error_of_estimation():
  # From a covariance of 200 draws alone, an error of a tenth.
  scale = DenseScale(np.eye(4)).learned(*gaussian_draws(200))
  np.testing.assert_allclose(
    scale.factor @ scale.factor.T, _FACTOR @ _FACTOR.T, rtol=5e-3
  )
  np.testing.assert_allclose(
    scale.factor @ scale.whiten(np.eye(4)).T, np.eye(4), atol=1e-10
  )
  operator = scale.operator(tf.float64)
  np.testing.assert_allclose(operator.to_dense(), scale.factor)


def test_a_scale_is_learned_per_coordinate():
  sds = np.array([0.1, 1.0, 10.0])
  draws = np.random.default_rng(0).normal(size=[50, 3]) * sds
  scale = DiagonalScale(np.ones(3)).learned(draws, -draws / sds**2)
  np.testing.assert_allclose(scale.factor, sds, rtol=1e-10)
  np.testing.assert_allclose(scale.whiten(draws), draws / sds)


def test_a_coordinate_that_never_moved_keeps_its_scale():
  draws = np.random.default_rng(0).normal(size=[50, 2]) * [1.0, 0.0]
  scale = DiagonalScale([2.0, 5.0]).learned(draws, -draws)
  np.testing.assert_allclose(scale.factor, [1.0, 5.0])


@pytest.mark.parametrize('size', [3, 600])
def test_times_are_those_of_the_widest_direction(size):
  # The draws of ±σ e have exactly that variance, in every direction e.
  sds = np.linspace(0.2, 1.5, size)
  draws = np.concatenate([np.diag(sds), -np.diag(sds)])
  draws *= np.sqrt((len(draws) - 1) / 2)
  times = times_of(draws)
  np.testing.assert_allclose(times.integration_time, 1.5 * np.pi / 2, rtol=1e-6)
  np.testing.assert_allclose(times.damping, 1.0 / 1.5, rtol=1e-6)


def accept_ratios(step_size, chains):
  """Log ratios of chains, the first of which is at a hundredth of the scale."""
  scales = np.ones(chains)
  scales[0] = 0.01
  return np.tile(-0.3 * (step_size / scales) ** 2, [10, 1])


def test_a_step_size_finds_its_acceptance():
  tuner = StepSizeTuner(0.05, 0.8)
  for _ in range(100):
    tuner.see(np.full([10, 20], -tuner.step_size))
  tuner.end_window()
  np.testing.assert_allclose(np.exp(-tuner.step_size), 0.8, atol=0.02)


def test_chains_that_are_stuck_count_late_and_not_early():
  found = {}
  for is_late in (False, True):
    tuner = StepSizeTuner(0.5, 0.8)
    tuner.new_window(is_late)
    for _ in range(200):
      tuner.see(accept_ratios(tuner.step_size, 20))
    found[is_late] = tuner.step_size
  # Nineteen of twenty accept 0.8 / 0.95 each, or all of them more than most.
  np.testing.assert_allclose(np.exp(-0.3 * found[False] ** 2), 0.842, atol=0.02)
  assert found[True] < 0.5 * found[False]


def test_who_is_stuck():
  rng = np.random.default_rng(1)
  is_accepted = rng.random([40, 20]) < 0.8
  log_prob = rng.normal(size=[40, 20])
  gradients = rng.normal(size=[40, 20, 6])
  assert not find_stuck(is_accepted, log_prob, gradients).any()
  is_accepted[:, 3] = False
  np.testing.assert_array_equal(np.flatnonzero(hardly_move(is_accepted)), [3])
  log_prob[:, 7] -= 50.0
  log_prob[:, 9] = np.nan
  np.testing.assert_array_equal(
    np.flatnonzero(find_stuck(is_accepted, log_prob, gradients)), [3, 7, 9]
  )
  nowhere = np.full([40, 20], np.nan)
  assert not find_stuck(is_accepted, nowhere, gradients).any()


@pytest.mark.parametrize('dims', [2, 30])
def test_a_wide_mode_of_the_same_mass_is_not_left(dims):
  """Its log density is lower by as much as it has more room."""
  rng = np.random.default_rng(2)
  is_accepted = np.ones([40, 20], bool)
  log_prob = -0.5 * rng.chisquare(dims, size=[40, 20])
  gradients = rng.normal(size=[40, 20, dims])
  lower = 20.0 * np.sqrt(dims)
  log_prob[:, :4] -= lower
  stuck = np.arange(20) < 4
  found = find_stuck(is_accepted, log_prob, gradients)
  np.testing.assert_array_equal(found, stuck)
  gradients[:, :4] *= np.exp(-lower / dims)
  assert not find_stuck(is_accepted, log_prob, gradients).any()
  assert has_mass(log_prob, gradients).all()
  # On its way there, a chain in a wide place still counts as lost.
  climb = np.linspace(-15.0, 0.0, 40) * np.sqrt(dims / 2)
  climbing = log_prob + stuck * climb[:, np.newaxis]
  found = find_stuck(is_accepted, climbing, gradients)
  np.testing.assert_array_equal(found, stuck)


def test_a_wide_mode_of_correlated_coordinates_is_not_left():
  """A smooth path: each coordinate, given the others, has little room."""
  rng = np.random.default_rng(4)
  size = 50
  differences = np.diff(np.eye(size), 2, axis=0)
  precision = 100.0 * differences.T @ differences + np.eye(size)
  is_accepted = np.ones([40, 20], bool)
  log_prob = -0.5 * rng.chisquare(size, size=[40, 20])
  gradients = 100.0 * rng.normal(size=[40, 20, size])
  apart = np.arange(20) < 4
  gradients[:, apart] = rng.multivariate_normal(
    np.zeros(size), precision, size=[40, 4]
  )
  # Of the same mass: the log of the determinants of both precisions.
  lower = 0.5 * (size * np.log(1e4) - np.linalg.slogdet(precision)[1])
  log_prob[:, apart] -= lower
  assert not find_stuck(is_accepted, log_prob, gradients).any()
  log_prob[:, apart] -= 60.0
  found = find_stuck(is_accepted, log_prob, gradients)
  np.testing.assert_array_equal(found, apart)


def test_places_that_were_left_are_judged_when_no_chain_travels_any_more():
  rng = np.random.default_rng(5)
  log_prob = -0.5 * rng.chisquare(3, size=[40, 20])
  gradients = rng.normal(size=[40, 20, 3])
  # Of widths of one, but far below; and a hundredth as wide, whose log density
  # is as much higher as the mass is the same, or not higher at all.
  higher = 3.0 * np.log(100.0)
  places = Places(
    np.array([-300.0, -1.5, higher - 1.5, -1.5]),
    np.square([[1.0] * 3, [1.0] * 3, [100.0] * 3, [100.0] * 3]),
  )
  found = have_mass_after_all(places, log_prob, gradients)
  np.testing.assert_array_equal(found, [False, True, True, False])
  # Where chains are all over the place, nothing is ruled out.
  travelling = log_prob + rng.normal(size=20) * 200.0
  assert have_mass_after_all(places, travelling, gradients).all()


@pytest.mark.filterwarnings('error')
def test_what_is_not_known_of_a_place_keeps_no_chain_there():
  rng = np.random.default_rng(3)
  is_accepted = np.ones([40, 20], bool)
  log_prob, gradients = rng.normal(size=[40, 20]), rng.normal(size=[40, 20, 3])
  gradients[..., 2] = 0.0  # Flat for all.
  log_prob[:, :4] -= 50.0
  log_prob[3, 3] = -np.inf
  gradients[:, 0] = 0.0  # A plateau.
  gradients[:, 1] = 1e300
  gradients[:, 2] = np.nan
  found = find_stuck(is_accepted, log_prob, gradients)
  np.testing.assert_array_equal(found, np.arange(20) < 4)
  gradients[:, :4] = 1e-13 * rng.normal(size=[40, 4, 3])
  gradients[..., 2] = 0.0
  found = find_stuck(is_accepted, log_prob, gradients)
  np.testing.assert_array_equal(found, np.arange(20) == 3)
  for steps in (0, 1):
    find_stuck(is_accepted[:1], log_prob[:1], gradients[:steps])


@pytest.mark.parametrize('jit_compile', [None, True])
def test_newton_starts_reach_the_typical_set(jit_compile):
  precisions = np.geomspace(1e-2, 1e4, 20)
  start = tf.constant(np.random.default_rng(0).uniform(-2, 2, [30, 20]))

  def log_prob(x):
    return -0.5 * tf.reduce_sum(precisions * tf.square(x - 1.0), -1)

  found = tf.function(
    lambda x: newton_starts(log_prob, x, 200), jit_compile=jit_compile
  )(start)
  # Before: 10⁴. What is squared here is chi-squared with 20 degrees of freedom.
  squared = np.sum(precisions * (found.state.numpy() - 1.0) ** 2, axis=-1)
  # A step ends at 0.95 of the size of the typical set, not at the mode; a bit
  # outside where curvatures are a millionth of others.
  assert np.all(squared <= 20.0)
  assert np.all(squared > 0.95**2 * 20.0 - 1e-6)
  np.testing.assert_allclose(found.curvature[:, -1], precisions[-1], rtol=1e-6)
  assert int(found.num_steps) < 15


def test_newton_starts_leave_chains_that_have_arrived():
  start = tf.constant(np.random.default_rng(0).uniform(-0.5, 0.5, [30, 5]))
  found = newton_starts(lambda x: -tf.reduce_sum(tf.cosh(x), -1), start, 200)
  np.testing.assert_array_equal(found.state, start)


def test_newton_starts_never_go_down():
  """Curvatures that change within a step: many steps are too long."""

  def log_prob(x):
    return tf.reduce_sum(5.0 * tf.cos(3.0 * x) - 0.1 * x**4, -1)

  start = tf.constant(np.random.default_rng(1).uniform(-4, 4, [30, 6]))
  values = [log_prob(start).numpy()]
  for num_steps in range(1, 9):
    found = newton_starts(log_prob, start, num_steps)
    values.append(log_prob(found.state).numpy())
  np.testing.assert_array_equal(values[1], values[0])
  changes = np.diff(values, axis=0)
  assert np.all(changes >= 0.0) and np.any(changes > 1.0)
  # Some steps were refused.
  assert np.any((changes[1:-1] == 0.0) & (changes[2:] > 0.0))


def test_the_slowest_coordinate_counts_and_its_square():
  rng = np.random.default_rng(8)
  # Autoregressions, whose time is (1 + ρ) / (1 - ρ): 1, 9 and 19.
  rho = np.array([0.0, 0.8, 0.9])
  x = rng.standard_normal([1000, 64, 3])
  for before, now in itertools.pairwise(x):
    now *= np.sqrt(1.0 - rho**2)
    now += rho * before
  assert 15.0 < autocorrelation_time(x) < 23.0
  assert 7.5 < autocorrelation_time(x[..., :2]) < 10.5
  assert autocorrelation_time(x[..., :1]) < 1.2
  # Signs that forget at once, of a magnitude that does not.
  square = np.sign(x[..., :1]) * np.abs(x[..., 2:])
  assert autocorrelation_time(square) > 7.0
  # Many coordinates: the slow one is found.
  many = np.concatenate([rng.standard_normal([1000, 64, 100]), x], axis=-1)
  assert 15.0 < autocorrelation_time(many) < 23.0
  # Too few steps to tell.
  assert autocorrelation_time(x[:10]) == 1.0


def low_rank_gaussian(num, size=40):
  """Draws, gradients and covariance: two wide directions, a narrow one."""
  rng = np.random.default_rng(2)
  directions = np.linalg.qr(rng.normal(size=[size, 3]))[0]
  deviations = np.exp(rng.normal(size=size))
  inner = np.eye(size) + directions * [99.0, 24.0, -0.99] @ directions.T
  covariance = deviations[:, None] * inner * deviations
  draws = rng.normal(size=[num, size]) @ np.linalg.cholesky(covariance).T
  return draws, -np.linalg.solve(covariance, draws.T).T, covariance


def condition(scale, covariance):
  """Of what the scale leaves over."""
  whitened = scale.whiten(np.linalg.cholesky(covariance).T)
  return np.linalg.cond(whitened.T @ whitened)


def test_a_few_directions_are_learned():
  draws, gradients, covariance = low_rank_gaussian(2000)
  size = len(covariance)
  diagonal = DiagonalScale(np.ones(size)).learned(draws, gradients)
  assert condition(diagonal, covariance) > 1000.0
  scale = LowRankScale.of_deviations(np.ones(size)).learned(draws, gradients)
  # Each direction that is left differs by less than a factor of two.
  assert condition(scale, covariance) < 4.0
  assert np.sum(np.any(scale.directions != 0.0, axis=0)) < 10


def test_no_direction_where_coordinates_are_independent():
  draws = np.random.default_rng(4).normal(size=[1000, 40])
  scale = LowRankScale.of_deviations(np.ones(40)).learned(draws, -draws)
  assert not np.any(scale.directions)
  np.testing.assert_allclose(scale.factor, 1.0, atol=1e-12)


@pytest.mark.parametrize('kind', sorted(SCALES.keys() - {'local'}))
def test_what_kernels_get_is_what_whitens(kind):
  draws, gradients, _ = low_rank_gaussian(200)
  scale = SCALES[kind].of_deviations(np.full(40, 2.0))
  for _ in range(2):
    operator = scale.operator(tf.float64)
    if kind == 'diagonal':
      operator = tf.linalg.LinearOperatorDiag(operator)
    again = operator.matvec(scale.whiten(draws[:10]))
    np.testing.assert_allclose(again, draws[:10], rtol=1e-6, atol=1e-8)
    copy = SCALES[kind](**scale.arrays())
    np.testing.assert_array_equal(copy.whiten(draws), scale.whiten(draws))
    scale = scale.learned(draws, gradients)


def test_steps_that_are_too_long_somewhere():
  stable = np.random.default_rng(1).normal(-0.03, 0.25, size=[100, 64])
  assert not is_unstable(stable)
  # Two of 6,400 end nowhere.
  lost = stable.copy()
  lost[3, :2] = [-1e4, np.nan]
  assert is_unstable(lost)


def test_fewer_draws_than_directions():
  """One chain: no covariance of the draws can be inverted."""
  draws, gradients, _ = low_rank_gaussian(12)
  scale = LowRankScale.of_deviations(np.ones(40)).learned(draws, gradients)
  whitened = scale.whiten(draws)
  assert np.all(np.isfinite(whitened))
  # Nothing is learned that the draws do not show.
  lengths = 1.0 + scale.excess[np.any(scale.directions, axis=0)]
  assert np.all((lengths > 0.01) & (lengths < 100.0))


@pytest.mark.parametrize('num', [1, 2, 12])
def test_what_is_learned_of_few_draws_has_as_many_directions(num):
  draws, gradients, _ = low_rank_gaussian(num)
  before = LowRankScale.of_deviations(np.ones(40))
  after = before.learned(draws, gradients)
  for name, array in before.arrays().items():
    assert after.arrays()[name].shape == array.shape


@pytest.mark.parametrize('size', [40, 600])
@pytest.mark.parametrize('num', [1, 50])
@pytest.mark.parametrize('kind', sorted(SCALES.keys() - {'local'}))
def test_nothing_is_learned_of_draws_that_are_all_the_same(kind, num, size):
  # The mean of so many is another number.
  same = np.full([num, size], 0.1)
  before = SCALES[kind].of_deviations(np.full(size, 7.0))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    after = before.learned(same, -same)
    times = times_of(after.whiten(centered(same)))
  for name, array in before.arrays().items():
    np.testing.assert_allclose(after.arrays()[name], array, atol=1e-12)
  assert not np.any(np.isfinite(times))


def test_draws_whose_squares_vanish_teach_no_times():
  draws = 1e-170 * np.random.default_rng(0).normal(size=[50, 3])
  assert not np.any(np.isfinite(times_of(draws)))


def test_a_coordinate_that_never_moved_keeps_its_factor_in_silence():
  draws, gradients = (x.copy() for x in gaussian_draws(50))
  draws[:, 1] = 2.0
  gradients[:, 1] = -3.0
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = DiagonalScale(np.full(4, 7.0)).learned(draws, gradients)
  np.testing.assert_array_equal(found.factor[1], 7.0)
  assert np.all(found.factor[[0, 2, 3]] != 7.0)


@pytest.mark.parametrize('slope', [0.0, -2.0])
@pytest.mark.parametrize('kind', sorted(SCALES.keys() - {'local'}))
def test_where_the_gradient_never_varies_the_draws_tell(kind, slope):
  """A uniform or an exponential coordinate beside a Gaussian one."""
  draws = np.random.default_rng(0).normal(size=[4000, 2]) * [0.5, 2.0]
  gradients = np.stack([np.full(4000, slope), -draws[:, 1] / 4.0], axis=1)
  scale = SCALES[kind].of_deviations([30.0, 1.0])
  for _ in range(2):
    scale = scale.learned(draws, gradients)
    np.testing.assert_allclose(
      np.std(scale.whiten(draws), axis=0), 1.0, rtol=0.05
    )


def test_a_scale_is_kept_where_no_gradient_varies():
  """The step size is the scale of all, and is found by acceptance."""
  draws = np.random.default_rng(0).normal(size=[50, 2])
  scale = DiagonalScale([7.0, 7.0]).learned(draws, np.full([50, 2], -3.0))
  np.testing.assert_array_equal(scale.factor, 7.0)
