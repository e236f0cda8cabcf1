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
"""How many independent draws the draws are worth."""

import functools
from typing import Any

from tfp_diag.internal import arguments
from tfp_diag.mcmc.diagnose.convergence import ESS_KINDS, EssKind, of_events
from tfp_diag.mcmc.diagnose.named_draws import map_draws


def ess(
  draws: Any,
  *,
  kind: EssKind = 'bulk',
  chain_ndims: int = 1,
) -> Any:
  """Effective sample size of every coordinate, over all chains.

  The numbers are those of arviz-stats.

  Args:
    draws: Structure of Tensors or arrays [draw, chain..., event...], at least
      four draws.
    kind: Python `str`, for what: 'bulk', of the ranks, which also serves where
      there is no variance; 'tail', the smaller one of the 5 and the 95 per cent
      quantile; 'mean'; 'sd'.
    chain_ndims: Python `int`, how many axes belong to the chains.

  Returns:
    Structure of `draws` with float64 NumPy arrays [event...]. NaN where no
    chain moved, a draw is not finite, or there are too few.

  Raises:
    ValueError: if a part has too few axes, or there is no such `kind`.

  #### Examples

  ```python
  import numpy as np
  import tfp_diag

  noise = np.random.default_rng(0).normal(size=[4000, 4])
  abs(tfp_diag.mcmc.ess(noise) / 16000.0 - 1.0) < 0.1  # ==> True
  twice = np.repeat(noise, 2, axis=0)
  abs(tfp_diag.mcmc.ess(twice) / 16000.0 - 1.0) < 0.1  # ==> True
  ```

  #### References

  [1]: Aki Vehtari, Andrew Gelman, Daniel Simpson, Bob Carpenter and
       Paul-Christian Bürkner (2021). Rank-normalization, folding, and
       localization: an improved R-hat for assessing convergence of MCMC.
       _Bayesian Analysis_ 16(2).
       https://doi.org/10.1214/20-BA1221
  """
  arguments.check_choice('kind', kind, ESS_KINDS)
  return map_draws(functools.partial(of_events, kind=kind), draws, chain_ndims)
