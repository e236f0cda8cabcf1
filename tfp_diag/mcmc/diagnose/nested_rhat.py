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
"""Whether many short chains agree."""

import functools
from typing import Any

import numpy as np

from tfp_diag.internal import arguments
from tfp_diag.mcmc.diagnose.named_draws import map_draws


def nested_rhat(
  draws: Any, num_superchains: int, *, chain_ndims: int = 1
) -> Any:
  r"""Nested R-hat of every coordinate, for chains that are many and short.

  R-hat needs long chains: it compares the averages of chains, and these vary
  while each chain has few independent draws. Here the chains form groups, the
  superchains, and the averages of whole groups are compared. A single draw of
  each chain can then be enough [1]. The chains of a group should start at the
  same point, and different groups at different points. Groups that start at
  similar points agree before they have converged.

  With $M$ chains in each group and independent draws, one from each chain,
  nested R-hat is near $\sqrt{1 + 1 / M}$; it is lower for more draws.

  Args:
    draws: Structure of Tensors or arrays [draw, chain..., event...].
    num_superchains: Python `int`, at least two, a divisor of the number of
      chains. Neighbors form a group, in the order of the flattened chain axes:
      of chains of shape [K, M] each row is one for `num_superchains=K`.
    chain_ndims: Python `int`, how many axes belong to the chains.

  Returns:
    Structure of `draws` with float64 NumPy arrays [event...]. NaN where all
    draws are the same or one is not finite; infinite where nothing varies
    within the groups.

  Raises:
    ValueError: if the chains cannot be grouped so, if there is one draw of one
      chain in each group, or if a part has too few axes.

  #### Examples

  ```python
  import numpy as np
  import tfp_diag

  # Eight groups of 32 chains, ten draws of each.
  draws = np.random.default_rng(0).normal(size=[10, 8, 32])
  tfp_diag.mcmc.nested_rhat(draws, 8, chain_ndims=2) < 1.01  # ==> True
  draws += np.arange(8.0)[:, np.newaxis]  # The groups disagree.
  tfp_diag.mcmc.nested_rhat(draws, 8, chain_ndims=2) > 2.0  # ==> True
  ```

  #### References

  [1]: Charles Margossian, Matthew Hoffman, Pavel Sountsov, Lionel Riou-Durand,
       Aki Vehtari and Andrew Gelman (2024). Nested R-hat: assessing the
       convergence of Markov chain Monte Carlo when running many short chains.
       _Bayesian Analysis_, equations (4) to (8).
       https://doi.org/10.1214/24-BA1453
  """
  num_superchains = arguments.as_count(
    'num_superchains', num_superchains, 1, 'how many groups of chains'
  )
  return map_draws(
    functools.partial(_nested_rhat, num_superchains=num_superchains),
    draws,
    chain_ndims,
  )


# Not by arviz-stats: its nested R-hat is NaN for fewer than four draws, and
# its releases before 0.6 have none.
def _nested_rhat(values, num_superchains):
  num_draws, num_chains, *event_shape = values.shape
  if num_superchains < 2 or num_chains % num_superchains:
    raise ValueError(
      f'`num_superchains` is {num_superchains}, but must be at least two and '
      f'divide the number of chains, {num_chains}.'
    )
  size = num_chains // num_superchains
  if num_draws == 1 and size == 1:
    raise ValueError(
      '`num_superchains` is the number of chains, and there is one draw: '
      'nothing can vary within a group. Pass fewer.'
    )
  groups = values.astype(np.float64).reshape(
    [num_draws, num_superchains, size, *event_shape]
  )
  with np.errstate(divide='ignore', invalid='ignore'):
    # In units of their spread: NaN, where there is none.
    groups = groups - groups[:1, :1, :1]
    groups /= np.max(np.abs(groups), axis=(0, 1, 2))
    means = np.mean(groups, axis=0)
    within = _variance(means, axis=1) + np.mean(_variance(groups, axis=0), 1)
    between = _variance(np.mean(means, axis=1), axis=0)
    return np.sqrt(1.0 + between / np.mean(within, axis=0))


def _variance(values, axis):
  """The unbiased variance; zero for a single value, and for equal ones."""
  # The mean of equal values may be rounded.
  values = values - np.take(values, [0], axis)
  ddof = 1 if values.shape[axis] > 1 else 0
  return np.var(values, axis=axis, ddof=ddof)
