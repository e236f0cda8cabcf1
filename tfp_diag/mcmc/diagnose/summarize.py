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
"""Means, errors and verdicts in one table."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfp_diag.internal import arguments
from tfp_diag.internal.warn import warn
from tfp_diag.mcmc.diagnose.convergence import (
  ESS_KINDS,
  LEAST_DRAWS,
  OF_SEVERAL,
  convergence,
  in_groups,
)
from tfp_diag.mcmc.diagnose.convergence_warnings import (
  ARE_TOO_FEW,
  ARE_UNCERTAIN,
  DO_NOT_AGREE,
  IS_CONSTANT,
  IS_DIVERGENT,
  IS_NOT_FINITE,
  IS_ONE_CHAIN,
  IS_ROUNDED,
  IS_UNREACHED,
  are_many_faults,
  parameter_warnings,
  sampler_warnings,
)
from tfp_diag.mcmc.diagnose.nested_rhat import nested_rhat
from tfp_diag.mcmc.diagnose.sampler_statistics import draws_and_statistics
from tfp_diag.mcmc.diagnose.summary import Summary
from tfp_diag.mcmc.diagnose.tails import Tails, heavy_tails, heavy_tails_notes

# What is read of a trace; other columns may have any shape.
_STATISTICS = (
  'is_accepted',
  'log_accept_ratio',
  'accept_ratio',
  'diverging',
  'reached_max_treedepth',
  'target_log_prob',
  'tune',
)


# Warnings with a way out of their own.
_SAY_IT = (
  ARE_TOO_FEW,
  IS_CONSTANT,
  IS_DIVERGENT,
  IS_NOT_FINITE,
  IS_ONE_CHAIN,
)

# Chains of so many draws, with so large an R-hat and no fewer acceptances, may
# each keep to a mode.
_R_HAT_OF_MODES, _DRAWS_OF_MODES, _MOVES = 1.2, 100, 0.2


def summarize(
  draws: Any,
  trace: Any = None,
  *,
  chain_ndims: int | None = None,
  quantiles: Sequence[float] = (0.05, 0.5, 0.95),
  num_superchains: int | None = None,
  min_ess: float = 400.0,
  var_names: Sequence[str] | None = None,
) -> Summary:
  """Summarizes draws, and says how far to trust them.

  For each coordinate: mean and standard deviation with Monte Carlo standard
  errors, quantiles, bulk and tail effective sample size, and rank-normalized
  split R-hat [1]; for many short chains nested R-hat [2] in addition. For the
  sampler, from its trace: acceptance, proposals that were not finite, and
  divergences; from the draws, which chains never moved.

  Args:
    draws: Structure of Tensors or arrays [draw, chain..., event...].
    trace: What was recorded at each draw: a dict with some of 'is_accepted',
      'log_accept_ratio', 'accept_ratio', 'diverging' and 'tune', as
      `windowed_adaptive_mala` returns it; or the kernel results themselves.
      Draws for which 'tune' is true are left out. Default: None.
    chain_ndims: Python `int`, how many axes belong to the chains. Default: that
      of the trace, or 1.
    quantiles: Sequence of `float`s in [0, 1].
    num_superchains: Python `int`, for nested R-hat; see `nested_rhat`. Warnings
      then go by nested R-hat, since R-hat is large for short chains anyway.
    min_ess: Python `float`, below which effective sample sizes there are
      warnings. Default: 400, a hundred for each of four chains [1]; more chains
      do not need more.
    var_names: Sequence of `str`, names of the parts. Default: the keys of a
      dict, the fields of a namedtuple, else x, or x0, x1, ...

  Returns:
    A `Summary`.

  Raises:
    ValueError: if shapes, names or arguments do not fit.
    TypeError: if `trace` is neither a dict nor kernel results.

  #### Examples

  ```python
  import numpy as np
  import tfp_diag

  rng = np.random.default_rng(0)
  draws = {'mu': rng.normal(size=[500, 8]), 'x': rng.normal(size=[500, 8, 2])}
  draws['x'][:, 3, 1] += 2.0  # The fourth chain is somewhere else.
  summary = tfp_diag.mcmc.summarize(draws)
  summary.names  # ==> ('mu', 'x[0]', 'x[1]')
  summary.r_hat > 1.01  # ==> [False, False, True]
  summary.warnings[0][:34]  # ==> 'R-hat is 1.01 or more for x[1], at'
  print(summary)  # A table, and the warnings.
  ```

  #### References

  [1]: Aki Vehtari, Andrew Gelman, Daniel Simpson, Bob Carpenter and
       Paul-Christian Bürkner (2021). Rank-normalization, folding, and
       localization: an improved R-hat for assessing convergence of MCMC.
       _Bayesian Analysis_ 16(2).
       https://doi.org/10.1214/20-BA1221

  [2]: Charles Margossian, Matthew Hoffman, Pavel Sountsov, Lionel Riou-Durand,
       Aki Vehtari and Andrew Gelman (2024). Nested R-hat: assessing the
       convergence of Markov chain Monte Carlo when running many short chains.
       _Bayesian Analysis_.
       https://doi.org/10.1214/24-BA1453
  """
  probs = tuple(arguments.as_vector('quantiles', quantiles).tolist())
  if not all(0.0 <= prob <= 1.0 for prob in probs):
    raise ValueError(f'`quantiles` is {probs} and must be between 0 and 1.')
  arguments.check_number(
    'min_ess',
    min_ess,
    'a number that is not negative, an effective sample size',
    lambda x: x >= 0.0,
  )
  if num_superchains is not None:
    num_superchains = arguments.as_count(
      'num_superchains', num_superchains, 1, 'how many groups of chains'
    )
  parts, chain_shape, statistics, tune = draws_and_statistics(
    draws, trace, chain_ndims, var_names, _STATISTICS
  )
  if np.any(tune):
    parts = [part._replace(values=part.values[~tune]) for part in parts]
    statistics = {name: value[~tune] for name, value in statistics.items()}
  num_draws, num_chains = parts[0].values.shape[:2]
  if num_draws == 0 or num_chains == 0:
    raise ValueError(
      f'`draws` has {num_draws} draws of {num_chains} chains; there is nothing '
      'to summarize. Draws for which `trace` says tune are left out.'
    )
  columns = _joined(
    _columns(some, part.values.dtype, probs, num_superchains)
    for part in parts
    for some in in_groups(part.parameters())
  )
  names = tuple(name for part in parts for name in part.coordinate_names())
  stuck_chains = _stuck_chains(parts, chain_shape)
  num_not_finite, num_divergences = _faults(statistics)
  warnings = [
    *sampler_warnings(
      stuck_chains,
      num_chains,
      num_draws * num_chains,
      num_not_finite,
      num_divergences,
      statistics.get('target_log_prob'),
    ),
    *parameter_warnings(
      names,
      [len(part.coordinate_names()) for part in parts],
      columns,
      num_draws,
      num_chains,
      num_chains // (num_superchains or 1),
      min_ess,
    ),
  ]
  nested_r_hat = columns.pop('nested_r_hat', None)
  del columns['spacing'], columns['lasting'], columns['lasting_at_least']
  tails = Tails(*(columns.pop(field) for field in Tails._fields))
  return Summary(
    names=names,
    probs=probs,
    num_draws=num_draws,
    chain_shape=chain_shape,
    acceptance_rate=_acceptance_rate(statistics, chain_shape),
    num_not_finite=num_not_finite,
    num_divergences=num_divergences,
    stuck_chains=stuck_chains,
    warnings=tuple(warnings),
    notes=tuple(heavy_tails_notes(names, tails)),
    nested_r_hat=nested_r_hat,
    **columns,
  )


def warn_if_not_converged(summary, way_out):
  """Warns of all that a summary warns of, at the line of a driver's caller.

  Args:
    summary: `Summary`.
    way_out: Python `str`, a sentence: what to try. Of one chain, of few draws,
      of constants, of rounding and of proposals, the warning says that itself.
      Where chains may keep to modes, a sentence on that follows.
  """
  if not summary.warnings:
    return
  sentences = list(summary.warnings)
  if any(IS_ROUNDED in text for text in sentences):
    way_out = 'Until then a longer run gains nothing.'
  elif _may_keep_to_modes(summary):
    way_out += (
      ' If modes are far apart, that does not help: order labels that can be '
      'exchanged, or temper (`tfp.mcmc.ReplicaExchangeMC`).'
    )
  say_it = _SAY_IT
  if any(IS_ONE_CHAIN in text for text in sentences):
    # More chains are more draws, too.
    say_it += (ARE_UNCERTAIN,)
  if not all(any(what in text for what in say_it) for text in sentences):
    sentences.append(way_out)
  warn(' '.join(sentences))


def _may_keep_to_modes(summary):
  """Whether chains move well, and are at different places all the same."""
  num_steps = summary.num_draws * int(np.prod(summary.chain_shape))
  rate, r_hat = summary.acceptance_rate, summary.r_hat
  return (
    any(DO_NOT_AGREE in text for text in summary.warnings)
    and not any(IS_UNREACHED in text for text in summary.warnings)
    and np.max(r_hat, initial=0.0, where=np.isfinite(r_hat)) > _R_HAT_OF_MODES
    and summary.num_draws >= _DRAWS_OF_MODES
    and not summary.stuck_chains
    and (rate is None or np.mean(rate) > _MOVES)
    and not are_many_faults(summary.num_not_finite, num_steps)
    and not are_many_faults(summary.num_divergences, num_steps)
  )


def _columns(draws, dtype, probs, num_superchains) -> dict[str, np.ndarray]:
  """Dict of arrays [parameter] for draws [draw, chain, parameter].

  They are in float64 here, and were in `dtype`.
  """
  size = draws.shape[0] * draws.shape[1]
  found = convergence(draws, (*OF_SEVERAL, *ESS_KINDS))
  with np.errstate(invalid='ignore', divide='ignore', over='ignore'):
    mean = np.mean(draws, axis=(0, 1))
    # What never moved has no spread, whatever its mean is rounded to.
    is_same = np.ptp(draws, axis=(0, 1)) == 0
    left = np.where(is_same, 0, draws - mean)
    # In units whose squares are numbers, however small or large draws are.
    unit = np.where(is_same, 1, np.max(np.abs(left), axis=(0, 1)))
    squares = (left / unit) ** 2
    variance = np.mean(squares, axis=(0, 1))
    sd = unit * np.sqrt(variance * size / max(1, size - 1))
    kurtosis = np.mean(squares**2, axis=(0, 1)) / variance**2
    # The delta method, from the error of the variance.
    error = np.sqrt(np.var(squares, axis=(0, 1)) / found['sd'])
    columns = {
      'mean': mean,
      'sd': sd,
      'quantiles': np.quantile(np.concatenate(draws), probs, axis=0).T,
      'mcse_mean': sd / np.sqrt(found['mean']),
      'mcse_sd': unit * error / (2.0 * np.sqrt(variance)),
      'ess_bulk': found['bulk'],
      'ess_tail': found['tail'],
      **{kind: found[kind] for kind in OF_SEVERAL},
      'spacing': _spacing(mean, dtype),
    }
  columns |= heavy_tails(draws, kurtosis, found['tail'])._asdict()
  if num_superchains is not None:
    columns['nested_r_hat'] = nested_rhat(draws, num_superchains)
  return columns


def _spacing(mean, dtype):
  """How far numbers of a dtype near some means are apart."""
  if dtype.kind != 'f':
    return np.zeros(mean.shape)
  return np.spacing(np.abs(mean).astype(dtype)).astype(np.float64)


def _joined(groups):
  """Concatenates the columns of groups of parameters."""
  groups = list(groups)
  return {
    title: np.concatenate([group[title] for group in groups])
    for title in groups[0]
  }


def _stuck_chains(parts, chain_shape):
  """Indices of the chains of which no draw differs from the first."""
  if len(parts[0].values) < LEAST_DRAWS:
    return ()
  stuck = np.logical_and.reduce([_same(part.parameters()) for part in parts])
  found = np.argwhere(stuck.reshape(chain_shape or (1,))).tolist()
  return tuple(i[0] if len(i) == 1 else tuple(i) for i in found)


def _same(draws):
  """bool array [chain]: whether all draws [draw, chain, parameter] are one."""
  # NaN differs from itself, and is the same all the same.
  both_nan = (draws != draws) & (draws[:1] != draws[:1])
  return np.all((draws == draws[:1]) | both_nan, axis=(0, 2))


def _acceptance_rate(statistics, chain_shape):
  for name in ('is_accepted', 'accept_ratio'):
    if name in statistics:
      rate = np.mean(statistics[name], axis=0, dtype=np.float64)
      return rate.reshape(chain_shape)
  return None


def _faults(statistics):
  """How many proposals were not finite, and how many others diverged.

  Args:
    statistics: Dict of arrays, as of `sampler_statistics`.

  Returns:
    Two Python `int`s, or None for what is not recorded.
  """
  ratio = statistics.get('log_accept_ratio', 0.0)
  # That of a NUTS is the logarithm of a mean, which underflows where all is
  # finite.
  is_mean = 'reached_max_treedepth' in statistics
  not_finite = np.isnan(ratio) if is_mean else ~np.isfinite(ratio)
  diverging = np.not_equal(statistics.get('diverging', False), False)
  faults = {
    'log_accept_ratio': not_finite,
    # What is not finite diverges, too.
    'diverging': diverging & ~not_finite,
  }
  return [
    int(np.sum(fault)) if name in statistics else None
    for name, fault in faults.items()
  ]
