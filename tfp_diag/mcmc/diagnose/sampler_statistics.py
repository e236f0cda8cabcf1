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
"""What a trace says about the sampler, under one set of names."""

import collections.abc

import numpy as np
import tensorflow as tf

from tfp_diag.mcmc.diagnose.named_draws import (
  as_draws,
  as_numbers,
  check_chain_ndims,
  joined_chains,
  named_draws,
)

# What fields of kernel results are called in a trace.
NAMES_OF_FIELDS = {
  'target_log_prob': 'target_log_prob',
  'is_accepted': 'is_accepted',
  'log_accept_ratio': 'log_accept_ratio',
  'step_size': 'step_size',
  'has_divergence': 'diverging',
  'leapfrogs_taken': 'n_steps',
  'reach_max_depth': 'reached_max_treedepth',
  'energy': 'energy',
}

# What is inside of kernel results.
_INSIDE = ('inner_results', 'accepted_results')

# One value per chain, so that their ranks tell how many axes the chains have.
_PER_CHAIN = (
  'is_accepted',
  'log_accept_ratio',
  'accept_ratio',
  'target_log_prob',
)


def draws_and_statistics(draws, trace, chain_ndims, var_names, names=None):
  """The parts of draws, and what the trace beside them says.

  Args:
    draws: Structure of arrays [draw, chain..., event...].
    trace: As for `sampler_statistics`.
    chain_ndims: As for `chain_ndims_of`.
    var_names: As for `named_draws`.
    names: As for `sampler_statistics`.

  Returns:
    parts: List of `NamedPart`s.
    chain_shape: Tuple of `int`s.
    statistics: As of `sampler_statistics`.
    tune: As of `is_tuning`.
  """
  chain_ndims = chain_ndims_of(trace, chain_ndims, draws)
  parts, chain_shape = named_draws(draws, chain_ndims, var_names)
  num_draws = len(parts[0].values)
  statistics = sampler_statistics(trace, num_draws, chain_shape, names)
  return parts, chain_shape, statistics, is_tuning(statistics, num_draws)


def chain_ndims_of(trace, chain_ndims, draws):
  """How many axes of the draws belong to the chains.

  Args:
    trace: A dict of statistics, kernel results, or None.
    chain_ndims: Python `int` that counts where it is given, or None.
    draws: Structure of arrays [draw, chain..., event...].

  Returns:
    Python `int`, 1 where nothing is known.
  """
  if chain_ndims is not None:
    return check_chain_ndims(chain_ndims)
  found = _statistics(trace)
  columns = [found[name] for name in _PER_CHAIN if name in found]
  for column in columns:
    if column.ndim > 1:
      return column.ndim - 1
  if not columns:
    return 1
  # One value per draw is that of a single chain, or one for all chains. Means
  # over chains are no flags, and kernel results are as they were.
  is_of_chain = not isinstance(trace, collections.abc.Mapping) or any(
    column.dtype == bool for column in columns
  )
  ranks = [as_draws(part).ndim for part in tf.nest.flatten(draws)]
  may_have_chains = ranks and min(ranks) >= 2 and max(ranks) >= 3
  return 1 if may_have_chains and not is_of_chain else 0


def sampler_statistics(trace, num_draws, chain_shape, names=None):
  """The statistics in a trace.

  Args:
    trace: A dict from names to Tensors [draw], one for all chains, or [draw,
      chain..., event...]; or the kernel results that
      `trace_fn=lambda _, results: results` records; or None.
    num_draws: Python `int`.
    chain_shape: Tuple of Python `int`s.
    names: Sequence of `str`, which statistics are used. Default: all.

  Returns:
    Dict from names to arrays [draw, chains, event...] with the axes of the
    chains made one. 'accept_ratio' is there if 'log_accept_ratio' is; a step
    size is not if it has no axis of the chains.

  Raises:
    TypeError: if the trace is neither.
    ValueError: if a leading shape does not fit.
  """
  found = _statistics(trace, names)
  if 'log_accept_ratio' in found and 'accept_ratio' not in found:
    log_ratio = np.nan_to_num(found['log_accept_ratio'], nan=-np.inf)
    found['accept_ratio'] = np.exp(np.minimum(log_ratio, 0.0))
  of_chains = (num_draws, *chain_shape)
  return {
    name: _per_chain(name, value, num_draws, chain_shape)
    for name, value in found.items()
    if (names is None or name in names)
    # A step size may be one of each coordinate, for all chains.
    and (
      not name.startswith('step_size')
      or value.ndim < 2
      or value.shape[: len(of_chains)] == of_chains
    )
  }


def is_tuning(statistics, num_draws):
  """Which draws were made while the kernel adapted.

  Args:
    statistics: What `sampler_statistics` returns; 'tune' says so.
    num_draws: Python `int`.

  Returns:
    bool array [draw].
  """
  return np.any(statistics.get('tune', np.zeros([num_draws, 1], bool)), axis=1)


def _statistics(trace, names=None):
  """Dict from names, all or these, to arrays as they were recorded."""
  if trace is None:
    return {}
  if isinstance(trace, collections.abc.Mapping):
    return {
      str(name): as_numbers(f'{str(name)!r} in `trace`', value)
      for name, value in trace.items()
      if names is None or str(name) in names
    }
  found = {}
  if hasattr(trace, '_fields'):
    _search(trace, found)
  if not found:
    raise TypeError(
      f'`trace` is a {type(trace).__name__} and must be a dict from names '
      "('is_accepted', 'log_accept_ratio', 'step_size', ...) to what was "
      'recorded, or kernel results.'
    )
  return found


def _search(results, found):
  """Adds the fields of kernel results that are known, the outermost first."""
  for field, name in NAMES_OF_FIELDS.items():
    value = getattr(results, field, None)
    if value is not None and name not in found:
      leaves = tf.nest.flatten(value)
      # A step size for each part has no name.
      if len(leaves) == 1:
        found[name] = np.asarray(leaves[0])
  for field in _INSIDE:
    if hasattr(getattr(results, field, None), '_fields'):
      _search(getattr(results, field), found)


def _per_chain(name, value, num_draws, chain_shape):
  if value.shape == (num_draws,):
    # One for all chains.
    ones = (num_draws, int(np.prod(chain_shape)))
    return np.broadcast_to(value[:, np.newaxis], ones)
  if value.shape[: 1 + len(chain_shape)] != (num_draws, *chain_shape):
    raise ValueError(
      f'{name} in `trace` has shape {list(value.shape)}, but the draws have '
      f'{num_draws} steps of chains of shape {list(chain_shape)}; its shape '
      'must begin so, or be that of the steps alone.'
    )
  return joined_chains(value, len(chain_shape))
