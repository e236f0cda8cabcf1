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
"""What draws say about each parameter, and how far to trust it."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = ['Summary', 'summarize']

# Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), sections 2 and 3:
# thresholds for the split R-hat and for the effective sample size.
R_HAT_LIMIT = 1.01
ESS_LIMIT = 400.0

# Bounds the memory of the Fourier transforms in the effective sample size.
PARAMETERS_AT_A_TIME = 4


class Summary(
  collections.namedtuple('Summary', ['mean', 'sd', 'mcse', 'ess', 'r_hat'])
):
  """One float64 array [number of parameters] per statistic.

  Attributes:
    mean: Averages over draws and chains.
    sd: Standard deviations over draws and chains.
    mcse: Monte Carlo standard errors of the means, sd / sqrt(ess).
    ess: Effective sample sizes over all chains; NaN if nothing moved.
    r_hat: Split potential scale reductions; NaN if nothing moved.
  """

  def complaints(self, names):
    """Sentences that say which parameters have not converged, and how badly.

    Args:
      names: Sequence of `str`, the parameters.

    Returns:
      List of `str`; empty if all is well.
    """
    found = []
    stuck = ~(np.isfinite(self.r_hat) & np.isfinite(self.ess))
    if np.any(stuck):
      found.append(
        f'{_listed(names, stuck)} never moved or became infinite: the step '
        'size or the starting points do not fit.'
      )
    r_hat = np.where(stuck, 0.0, self.r_hat)
    if np.any(r_hat >= R_HAT_LIMIT):
      worst = int(np.argmax(r_hat))
      found.append(
        f'R-hat is {R_HAT_LIMIT} or more for '
        f'{_listed(names, r_hat >= R_HAT_LIMIT)}, at worst {r_hat[worst]:.3f} '
        f'for {names[worst]}: the chains do not agree yet.'
      )
    ess = np.where(stuck, np.inf, self.ess)
    if np.any(ess < ESS_LIMIT):
      worst = int(np.argmin(ess))
      found.append(
        f'The effective sample size is less than {ESS_LIMIT:.0f} for '
        f'{_listed(names, ess < ESS_LIMIT)}, at worst {ess[worst]:.0f} for '
        f'{names[worst]}: R-hat and MCSE are themselves uncertain.'
      )
    return found


def summarize(parameters):
  """Means, standard deviations, Monte Carlo errors, ESS and R-hat.

  Args:
    parameters: Mapping from names to arrays [draws, chains], at least four
      draws of two chains.

  Returns:
    A `Summary`, in the order of the mapping.
  """
  columns = list(parameters.values())
  groups = [
    _summarize_group(np.stack(columns[i : i + PARAMETERS_AT_A_TIME], axis=-1))
    for i in range(0, len(columns), PARAMETERS_AT_A_TIME)
  ]
  return Summary(*(np.concatenate(field) for field in zip(*groups)))


def _summarize_group(draws):
  """The fields of a `Summary` for draws [draws, chains, parameters]."""
  draws = draws.astype(np.float64)
  mean = np.mean(draws, axis=(0, 1))
  sd = np.std(draws, axis=(0, 1), ddof=1)
  ess = tfp.mcmc.effective_sample_size(
    tf.constant(draws), filter_beyond_positive_pairs=True, cross_chain_dims=1
  ).numpy()
  # What TFP returns is a ratio of variances. R-hat, for which the threshold is
  # meant, is its square root: Vehtari et al. (2021), equation (4).
  variance_ratio = tfp.mcmc.potential_scale_reduction(
    tf.constant(draws), independent_chain_ndims=1, split_chains=True
  ).numpy()
  with np.errstate(invalid='ignore', divide='ignore'):
    return mean, sd, sd / np.sqrt(ess), ess, np.sqrt(variance_ratio)


def _listed(names, chosen):
  """The chosen names, the first five of them if there are more."""
  picked = [name for name, yes in zip(names, chosen) if yes]
  more = f' and {len(picked) - 5} more' if len(picked) > 5 else ''
  return ', '.join(picked[:5]) + more
