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
"""Sentences about what a run of a sampler should not be like."""

import numpy as np
import tensorflow as tf

from tfp_diag.mcmc.diagnose.convergence import LEAST_DRAWS

# The recommendation of Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021).
R_HAT_LIMIT = 1.01

# What a longer run does not help.
IS_ROUNDED = 'rounding decides which proposals are accepted'

IS_UNREACHED = 'no draw is there'

IS_ONE_CHAIN = 'There is one chain'

ARE_TOO_FEW = 'Too few draws to judge'

DO_NOT_AGREE = 'the chains do not agree'

ARE_UNCERTAIN = 'R-hat and MCSE are themselves uncertain'

IS_CONSTANT = 'never moved: all draws are the same'

IS_NOT_FINITE = 'was not finite there'

IS_DIVERGENT = 'recorded proposals diverged'

# How sentences about proposals end.
_STAY_INSIDE = 'keep chains inside of it'
_NO_MORE_DRAWS = 'drawing more does not help at all'
_HELP_THEN = 'will help'
ENDS_OF_FAULTS = (_STAY_INSIDE, _NO_MORE_DRAWS, _HELP_THEN)

# More proposals than so many, and than this share of all, that diverged or were
# not finite are a fault of the run; of fewer no share is known.
_FEW_FAULTS, _MOST_FAULTS = 3, 1e-4
# Of a larger share no number is to be used.
TOO_MANY_FAULTS = 2e-3

# A place is beside the draws by so much of their range. Of few chains, fewer
# than so many or than this share, it is also so many standard deviations away:
# in the neck of a funnel, where chains get stuck, they are fewer.
_MARGIN, _FEWEST, _LEAST_SHARE, _FAR = 0.1, 3, 0.05, 5.0

# Chains that have so many effective draws each agree, and are only too short
# for the limit of R-hat.
_MANY_OF_A_CHAIN = 20

# In a sentence.
_MOST_NAMES = 5
# So far apart may the numbers be near a log density, which decides by its
# differences.
_MOST_SPACING = 0.25


def parameter_warnings(
  names,
  part_sizes,
  columns,
  num_draws,
  num_chains,
  group_size,
  min_ess,
):
  """What is wrong with parameters.

  Args:
    names: Sequence of `str`.
    part_sizes: Sequence of Python `int`s, how many parameters each part has.
      One that is the same in all draws is no fault where others of its part
      move, as the zeros of a triangular matrix.
    columns: Dict of arrays [parameter]: 'mean', 'sd', 'r_hat', 'ess_bulk',
      'ess_tail'; 'lasting' and 'lasting_at_least', how large R-hat at most and
      at least stays in longer chains; 'spacing', how far numbers near the mean
      are apart; and 'nested_r_hat', which is judged in the place of 'r_hat'
      where there is one.
    num_draws: Python `int`, of each chain.
    num_chains: Python `int`.
    group_size: Python `int`, the number of chains of a superchain.
    min_ess: Python `float`.

  Returns:
    List of `str`.
  """
  if num_draws < LEAST_DRAWS and 'nested_r_hat' not in columns:
    return [f'{ARE_TOO_FEW}: ESS and R-hat need {LEAST_DRAWS}.']
  found = []
  is_finite = np.isfinite(columns['mean'])
  if not np.all(is_finite):
    found.append(f'{_listed(names, ~is_finite)} became NaN or infinite.')
  is_constant = is_finite & (columns['sd'] == 0.0)
  never_moved = is_constant & ~_of_parts(is_finite & ~is_constant, part_sizes)
  if np.any(never_moved):
    found.append(
      f'{_listed(names, never_moved)} {IS_CONSTANT}, which is right for '
      'constants, as of a `tfd.Deterministic`; R-hat and ESS are not defined.'
    )
  usable = is_finite & ~is_constant
  found += _rounded(names, columns, usable)
  r_hat, limit, what = columns['r_hat'], R_HAT_LIMIT, 'R-hat'
  if 'nested_r_hat' in columns:
    # What one independent draw of each chain would come to.
    limit = max(limit, np.sqrt(1.0 + 1.0 / group_size))
    r_hat, what = columns['nested_r_hat'], 'Nested R-hat'
  elif num_chains < 2:
    found.append(f'{IS_ONE_CHAIN}, and R-hat compares chains: run several.')
  bad = usable & (r_hat >= limit)
  if np.any(bad):
    worst = int(np.argmax(np.where(bad, r_hat, 0.0)))
    why = f'{DO_NOT_AGREE} yet.'
    size = columns['ess_bulk'][worst]
    if what == 'R-hat':
      # About sqrt(1 + 2 C / ESS), for the halves of C chains.
      needed = 2.0 * num_chains / (limit**2 - 1.0)
      are_long = size >= _MANY_OF_A_CHAIN * num_chains
      if size < needed and (
        are_long or _are_short(columns, worst, num_draws, limit)
      ):
        why = (
          f'with {num_chains:,} chains that takes an effective sample size of '
          f'{needed:,.0f}, and there are {size:,.0f}.'
        )
      elif are_long:
        why = f'{DO_NOT_AGREE}, on where it is or on how wide.'
    found.append(
      f'{what} is {limit:.4g} or more for {_listed(names, bad)}, at worst '
      f'{r_hat[worst]:.3f} for {names[worst]}: {why}'
    )
  ess = np.minimum(columns['ess_bulk'], columns['ess_tail'])
  bad = usable & (ess < min_ess)
  if np.any(bad):
    worst = int(np.argmin(np.where(bad, ess, np.inf)))
    found.append(
      f'The effective sample size is less than {min_ess:g} for '
      f'{_listed(names, bad)}, at worst {ess[worst]:.0f} for {names[worst]}: '
      f'{ARE_UNCERTAIN}.'
    )
  return found


def _are_short(columns, i, num_draws, limit):
  """Whether chains differ for their length rather than for where they are.

  The effective sample size does not tell: it is small where chains do not
  agree, too. So less than half of what their halves differ by may last, and
  nothing that is seen to be as much as the limit.
  """
  # For equal chains R-hat falls below one, the more the shorter they are.
  between = columns['r_hat'][i] ** 2 - 1.0 + 1.0 / (num_draws // 2)
  may_last = max(0.5 * between, limit**2 - 1.0)
  return (
    columns['lasting'][i] ** 2 - 1.0 < may_last
    and columns['lasting_at_least'][i] < limit
  )


def _rounded(names, columns, usable):
  """Whether numbers are too far apart for parameters that vary so little."""
  spacing = columns['spacing']
  bad = usable & (spacing > _MOST_SPACING * columns['sd'])
  if not np.any(bad):
    return []
  worst = int(np.argmax(np.where(bad, spacing, 0.0)))
  return [
    f'{_listed(names, bad)} vary by little more than their numbers are apart '
    f'({spacing[worst]:.2g} near {columns["mean"][worst]:.6g}): {IS_ROUNDED}. '
    'Subtract an offset in the model, or sample in float64.'
  ]


def _of_parts(flags, sizes):
  """Whether any parameter of the same part has the flag."""
  parts = np.split(flags, np.cumsum(sizes)[:-1])
  return np.concatenate([np.full(len(part), np.any(part)) for part in parts])


def are_many_faults(count, num_steps, share=_MOST_FAULTS):
  """Whether divergences, or proposals that are not finite, are a real share.

  A few may happen to any run: a single one of 8,000 steps is more than one in
  10,000. So there must be several, too.

  Args:
    count: Python `int`, how many there are, or None.
    num_steps: Python `int`, of all chains together.
    share: Python `float`, of which share on they are many.

  Returns:
    Python `bool`.
  """
  return (count or 0) > max(_FEW_FAULTS, share * num_steps)


def sampler_warnings(
  stuck_chains,
  num_chains,
  num_steps,
  num_not_finite,
  num_divergences,
  log_prob=None,
):
  """What is wrong with chains and proposals.

  Args:
    stuck_chains: Tuple of the indices of chains that never moved.
    num_chains: Python `int`.
    num_steps: Python `int`, of all chains together.
    num_not_finite: Python `int`, how many proposals were not finite, or None.
    num_divergences: Python `int`, how many others diverged, or None.
    log_prob: Array of log densities of draws, or None.

  Returns:
    List of `str`.
  """
  found = []
  level, spacing = _resolution(log_prob)
  if log_prob is not None and spacing > _MOST_SPACING:
    found.append(
      f'The log density is about {level:.2g} in size, where numbers of '
      f'{log_prob.dtype.name} are {spacing:g} apart: {IS_ROUNDED}, and steps '
      'get short for nothing. Leave out its constants, or sample in float64.'
    )
  if stuck_chains:
    number = f'{len(stuck_chains)} of {num_chains} chains'
    shown = _listed(map(str, stuck_chains), [True] * len(stuck_chains))
    found.append(
      f'{number} never moved, at index {shown}: the step size is too large for '
      'where they are, or their start is far out.'
    )
  if num_not_finite:
    found.append(_not_finite(num_not_finite, num_steps))
  if num_divergences:
    found.append(_diverged(num_divergences, num_steps))
  return found


def _not_finite(count, num_steps):
  were = 'proposal was' if count == 1 else 'proposals were'
  return (
    f'{count:,} {were} rejected ({_percent(count / num_steps)}) since the log '
    f'density, its gradient or the scale {IS_NOT_FINITE}: what lies behind is '
    'missing. A model rounds its variables, in float32 soon to the edge of '
    'their support: build it in float64. A log density of your own that ends '
    f'at an edge needs bijectors, which {_STAY_INSIDE}.'
  )


def _diverged(count, num_steps):
  text = (
    f'{count:,} of {num_steps:,} {IS_DIVERGENT} ({_percent(count / num_steps)})'
  )
  if are_many_faults(count, num_steps):
    return (
      f'{text}: parts of the target where the curvature is strong are visited '
      'too rarely, which R-hat cannot see. Write the model without centering. '
      'Smaller steps, by a higher `target_accept_prob` (0.99), help less, and '
      f'{_NO_MORE_DRAWS}.'
    )
  return (
    f'{text}, which is no more than may happen. If there are many in a longer '
    'run, parts of the target where the curvature is strong may be missing: '
    'a model without centering, or smaller steps by a higher '
    f'`target_accept_prob`, {_HELP_THEN}.'
  )


def unreached(places, draws):
  """What is wrong where chains were moved away from places before the draws.

  Args:
    places: Array of shape [places, d], or None.
    draws: Array of shape [draws, chains, d].

  Returns:
    List of `str`.
  """
  if places is None or not len(places):
    return []
  num_chains = draws.shape[1]
  low, high = np.min(draws, axis=(0, 1)), np.max(draws, axis=(0, 1))
  margin = _MARGIN * (high - low)
  beside = (places < low - margin) | (places > high + margin)
  if np.any(beside, axis=1).sum() < max(_FEWEST, _LEAST_SHARE * num_chains):
    some = draws.astype(np.float64)
    away = np.abs(places - np.mean(some, axis=(0, 1)))
    beside &= away > _FAR * np.std(some, axis=(0, 1))
  count = int(np.any(beside, axis=1).sum())
  if not count:
    return []
  chains = '1 chain' if count == 1 else f'{count} chains'
  return [
    f'In the warm-up {chains} did not move in places that may hold as much of '
    f'the target, went to where others are, and {IS_UNREACHED} '
    '(`warm_up.abandoned`): a narrow mode may be missing, which R-hat cannot '
    'see.'
  ]


def _resolution(log_prob):
  """How large a log density is, and how far apart the numbers there are."""
  if log_prob is None:
    return 0.0, 0.0
  sizes = np.abs(log_prob.astype(np.float64))
  sizes = sizes[np.isfinite(sizes)]
  dtype = tf.as_dtype(log_prob.dtype)
  if not sizes.size or not dtype.is_floating:
    return 0.0, 0.0
  level = float(np.median(sizes))
  # Between one and two. NumPy does not know that of bfloat16.
  is_known = dtype != tf.bfloat16
  spacing = float(np.finfo(dtype.name).eps) if is_known else 2.0**-7
  return level, spacing * 2.0 ** np.floor(np.log2(max(level, 1.0)))


def _percent(share):
  """A share as text, of one digit where it is small."""
  number = 100.0 * share
  digits = 1 if number < 1.0 else 3
  number = float(f'{number:.{digits}g}')
  return f'{np.format_float_positional(number, trim="-")} %'


def _listed(names, chosen):
  """The chosen names, the first five of them if there are more."""
  picked = [name for name, yes in zip(names, chosen) if yes]
  more = len(picked) - _MOST_NAMES
  return ', '.join(picked[:_MOST_NAMES]) + (
    f' and {more} more' if more > 0 else ''
  )
