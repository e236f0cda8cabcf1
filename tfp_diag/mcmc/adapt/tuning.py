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
"""What a warm-up learns from its draws: step size, times, and who is stuck.

All of it is NumPy on the host, between blocks of steps. Draws have the shape
[steps, chains, d].
"""

import typing

import numpy as np

from tfp_diag.mcmc.adapt.scales import centered, main_directions, vary
from tfp_diag.mcmc.diagnose.ess import ess

# A chain is stuck that moved in less than a tenth of the steps of the median,
_LEAST_SHARE_OF_MOVES = 0.1
# or whose log density lies so many standard deviations below the others; unless
# the log of its mass lies fewer below theirs.
_MOST_DEVIATIONS = 10.0
_MOST_DEVIATIONS_OF_MASS = 5.0
# Of so many the log of a determinant is by 0.2 for each coordinate too small.
_ROWS_PER_COORDINATE = 3
# Its log density rises by fewer of them than a chain's that still travels.
_MOST_RISE = 3.0
# No stable trajectory has such an error, where nine in ten are accepted; and
# the share of those that have.
_MOST_ENERGY_ERROR = 20.0
_MOST_UNSTABLE = 1e-4
# What a chain that accepts nothing counts for in the harmonic mean.
_LEAST_ACCEPTANCE = 0.05
# Share of the earlier blocks in the acceptance of a chain.
_MEMORY = 0.7
# Rows that are enough to see the largest eigenvalue of many coordinates.
_ROWS_FOR_EIGENVALUE = 4000
# Of so many the covariance is made.
_MOST_FOR_COVARIANCE = 512
# How many of the slowest coordinates are looked at, and in how many steps.
_MOST_COORDINATES = 64
_LEAST_STEPS = 20


class StepSizeTuner:
  """A step size that approaches an acceptance, block by block.

  A stochastic approximation on the logarithm (Robbins and Monro, 1951), whose
  result is the geometric mean over the second half of a window.

  Attributes:
    step_size: Python float, for the next block.
    target: Python float, the acceptance aimed at.
  """

  def __init__(self, step_size, target):
    """Starts.

    Args:
      step_size: Python float.
      target: Python float, the acceptance aimed at.
    """
    self.step_size = step_size
    self.target = target
    self.new_window(is_late=False)

  def new_window(self, is_late):
    """Forgets what was learned under another scale.

    Args:
      is_late: Python bool: whether the slowest chains count most. Early, those
        that are stuck must not hold up all others.
    """
    self._is_late = is_late
    # Late steps are small from the start: little changes any more.
    self._count = 3 if is_late else 0
    self._logs = []
    self._acceptance = None

  def see(self, log_accept_ratio, share=1.0):
    """Learns from a block.

    Args:
      log_accept_ratio: Array of shape [steps, chains].
      share: Python float, the length of the block in units of a usual one.
    """
    acceptance = np.exp(np.minimum(log_accept_ratio, 0.0))
    now = acceptance.mean(axis=0)
    if self._acceptance is not None:
      now = _MEMORY * self._acceptance + (1.0 - _MEMORY) * now
    self._acceptance = now
    if self._is_late:
      seen = 1.0 / np.mean(1.0 / np.maximum(now, _LEAST_ACCEPTANCE))
    else:
      seen = acceptance.mean()
    self._count += 1
    gain = 3.0 * np.sqrt(share) / (self._count + 1) ** 0.6
    self.step_size *= float(np.exp(gain * (seen - self.target)))
    self._logs.append(np.log(self.step_size))

  def end_window(self):
    """Takes the mean of the window's second half."""
    self.step_size = float(np.exp(np.mean(self._logs[len(self._logs) // 2 :])))


def is_unstable(log_accept_ratio):
  """Whether steps are too long for some places that chains come to.

  There the errors of a leapfrog step grow from step to step, and a trajectory
  ends nowhere: such places are visited too rarely, which no acceptance that is
  averaged over all places shows.

  Args:
    log_accept_ratio: Array of any shape.

  Returns:
    Python bool.
  """
  is_lost = ~(np.asarray(log_accept_ratio) > -_MOST_ENERGY_ERROR)
  return bool(is_lost.mean() > _MOST_UNSTABLE)


def find_stuck(is_accepted, log_prob, gradients):
  """The chains that take no part.

  Where the log density is lower there may be more room: a wide mode lies below
  a narrow one of the same mass. So a chain that moves about far below the
  others stays if the mass there is not much smaller. Per coordinate the width
  of that place is estimated by one over the root of the mean squared gradient,
  which for a normal density is its standard deviation, and which needs no chain
  that has been everywhere.

  Args:
    is_accepted: bool array of shape [steps, chains].
    log_prob: Array of shape [steps, chains].
    gradients: Array of shape [some of the steps, chains, d].

  Returns:
    bool array of shape [chains]. None is stuck if all would be.
  """
  half = len(log_prob) // 2
  level = log_prob[half:].mean(axis=0)
  known = np.isfinite(level)
  if not known.any():
    return np.zeros_like(known)
  spread = _spread(log_prob[half:])
  stuck = hardly_move(is_accepted)
  is_low = ~(level > np.median(level[known]) - _MOST_DEVIATIONS * spread)
  # NaN compares false: what is not finite speaks for no chain.
  with np.errstate(all='ignore'):
    rise = level - (log_prob[:half].mean(axis=0) if half else -np.inf)
    may_stay = has_mass(log_prob, gradients, is_low) & (
      rise < _MOST_RISE * spread
    )
  stuck |= is_low & ~may_stay
  return np.zeros_like(stuck) if stuck.all() else stuck


def hardly_move(is_accepted):
  """Which chains move in few of the steps of others: [steps, chains]."""
  moves = is_accepted.mean(axis=0)
  return moves < _LEAST_SHARE_OF_MOVES * np.median(moves)


class Places(typing.NamedTuple):
  """What is seen of the places that chains are in, in half a window.

  Attributes:
    log_prob: Array of shape [chains], the means.
    squares: Array of shape [chains, d], mean squared gradients.
  """

  log_prob: typing.Any
  squares: typing.Any


def places_of(log_prob, gradients):
  """The places of chains in the later half of a window.

  Args:
    log_prob: Array of shape [steps, chains].
    gradients: Array of shape [some of the steps, chains, d].

  Returns:
    `Places`, of NaN if there is no gradient.
  """
  later = gradients[len(gradients) // 2 :].astype(np.float64)
  squares = np.full(gradients.shape[1:], np.nan)
  with np.errstate(all='ignore'):
    if len(later):
      squares = np.square(later).mean(axis=0)
    return Places(log_prob[len(log_prob) // 2 :].mean(axis=0), squares)


def has_mass(log_prob, gradients, apart=None):
  """Where chains are in places that hold not much less than those of most.

  Args:
    log_prob: Array of shape [steps, chains].
    gradients: Array of shape [some of the steps, chains, d].
    apart: bool array of shape [chains]: those that are taken to be together
      somewhere else than the others. Default: what is correlated anywhere is
      not looked at.

  Returns:
    bool array of shape [chains].
  """
  with np.errstate(all='ignore'):
    mass = _log_mass(places_of(log_prob, gradients))
    if apart is not None:
      gains = [_gain_of_correlations(gradients[:, g]) for g in (apart, ~apart)]
      mass = mass + np.where(apart, *gains)
    return mass > _least_mass(mass, log_prob)


def have_mass_after_all(places, log_prob, gradients):
  """Which places hold not much less than those of most chains in the end.

  While chains still travel, their log densities are far apart, and a place far
  below all draws does not look like less.

  Args:
    places: `Places` that chains have left.
    log_prob: Array of shape [steps, chains], of the last window.
    gradients: Array of shape [some of the steps, chains, d].

  Returns:
    bool array of shape [places].
  """
  count = len(places.log_prob)
  usual = places_of(log_prob, gradients)
  with np.errstate(all='ignore'):
    mass = _log_mass(Places(*map(np.concatenate, zip(places, usual))))
    return mass[:count] > _least_mass(mass[count:], log_prob)


def _least_mass(mass, log_prob):
  """What is not much less than the mass of most chains."""
  usual = mass[np.isfinite(mass)]
  if not usual.size:
    return np.inf
  spread = _spread(log_prob[len(log_prob) // 2 :])
  return np.median(usual) - _MOST_DEVIATIONS_OF_MASS * spread


def _spread(log_prob):
  """How far log densities of shape [steps, chains] are apart."""
  known = np.isfinite(log_prob.mean(axis=0))
  level = log_prob.mean(axis=0)[known]
  quarter, other = np.percentile(level, [25.0, 75.0])
  log_prob = log_prob.astype(np.float64)  # Whose squares may be large.
  # A chain has a mean log density of its own; and all have alike ones early.
  return max((other - quarter) / 1.35, log_prob[:, known].std(axis=0).mean())


def _log_mass(places):
  """Log densities, and the logs of the widths of the places, added up.

  Args:
    places: `Places`.

  Returns:
    Array of shape [chains]; NaN where a mean square is zero, or too large: of a
    plateau nothing is known. Coordinates that are flat for all do not count.
  """
  squares = places.squares
  squares = squares[:, ~np.all(squares == 0.0, axis=0)]
  room = -0.5 * np.log(squares).sum(axis=-1)
  return places.log_prob + np.where(np.isfinite(room), room, np.nan)


def _gain_of_correlations(gradients):
  """By how much `_log_mass` is too small for chains at one place.

  Args:
    gradients: Array of shape [steps, chains, d].

  Returns:
    Float, not negative; zero where there are too few gradients to tell. Of
    chains at several places it is rather too small.
  """
  rows = gradients.reshape([-1, gradients.shape[-1]]).astype(np.float64)
  if len(rows) < _ROWS_PER_COORDINATE * rows.shape[-1]:
    return 0.0
  rows = rows[:, np.any(rows != 0.0, axis=0)]
  moments = rows.T @ rows / len(rows)
  _, log_det = np.linalg.slogdet(moments)
  gain = 0.5 * (np.log(np.diag(moments)).sum() - log_det)
  return float(gain) if np.isfinite(gain) else 0.0


def autocorrelation_time(draws):
  """How many steps an independent draw takes, of the slowest coordinate.

  Args:
    draws: Array of shape [steps, chains, d].

  Returns:
    Python float, at least one, for the coordinates and for their squares; one
    if there are too few steps to tell.
  """
  if len(draws) < _LEAST_STEPS:
    return 1.0
  values = draws.astype(np.float64) - draws.mean(axis=(0, 1))
  # How far a step goes, in standard deviations, tells the slow ones.
  jumps = np.square(np.diff(values, axis=0)).mean(axis=(0, 1))
  slowness = -jumps / np.maximum(np.square(values).mean(axis=(0, 1)), 1e-300)
  chosen = values[..., np.argsort(slowness)[-_MOST_COORDINATES:]]
  size = ess(np.concatenate([chosen, np.square(chosen)], axis=-1))
  if not np.any(np.isfinite(size)):
    return 1.0
  return float(max(draws.shape[0] * draws.shape[1] / np.nanmin(size), 1.0))


class Times(typing.NamedTuple):
  """How long trajectories are.

  Attributes:
    integration_time: Python float, T.
    damping: Python float, γ.
  """

  integration_time: float
  damping: float


def times_of(whitened):
  """The times for what is left when draws are whitened.

  With the standard deviation σ of the widest direction, T = π σ / 2, after
  which a harmonic oscillator has forgotten where it was, and γ = 1 / σ [1].

  Args:
    whitened: Array of shape [draws, d].

  Returns:
    `Times`; of NaN if the draws are all the same.

  #### References

  [1]: Lionel Riou-Durand, Pavel Sountsov, Jure Vogrinc, Charles Margossian and
       Sam Power (2023). Adaptive tuning for Metropolis Adjusted Langevin
       Trajectories. _AISTATS_, section 3: the damping.
       https://doi.org/10.48550/arXiv.2210.12200
  """
  rows, size = whitened.shape
  if size > _MOST_FOR_COVARIANCE:
    whitened = whitened[:: -(-rows // _ROWS_FOR_EIGENVALUE)]
  left = centered(whitened)
  if not vary(left):
    return Times(np.nan, np.nan)
  if size > _MOST_FOR_COVARIANCE:
    widest = left @ main_directions(left, 1)
    deviation = float(np.sqrt(np.sum(widest**2) / (len(left) - 1)))
  else:
    covariance = np.cov(whitened, rowvar=False).reshape(size, size)
    deviation = float(np.sqrt(np.linalg.eigvalsh(covariance)[-1]))
  if not deviation > 0:  # It underflows.
    return Times(np.nan, np.nan)
  return Times(0.5 * np.pi * deviation, 1.0 / deviation)
