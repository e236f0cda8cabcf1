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
"""Whether chains agree."""

import functools
from typing import Any

from tfp_diag.mcmc.diagnose.convergence import of_events
from tfp_diag.mcmc.diagnose.named_draws import map_draws


def rhat(draws: Any, *, chain_ndims: int = 1) -> Any:
  """Rank-normalized split R-hat of every coordinate.

  The larger one of two: of the draws, which sees that chains are at different
  places, and of their distances from the median, which sees that they have
  different widths [1]. Chains that agree have R-hat below 1.01. The numbers are
  those of arviz-stats.

  Args:
    draws: Structure of Tensors or arrays [draw, chain..., event...], at least
      four draws of at least two chains.
    chain_ndims: Python `int`, how many axes belong to the chains.

  Returns:
    Structure of `draws` with float64 NumPy arrays [event...]. Infinite where no
    chain moved, but they are at different places; NaN where all draws are the
    same, one is not finite, or there are too few.

  Raises:
    ValueError: if a part has too few axes.

  #### Examples

  ```python
  import numpy as np
  import tfp_diag

  draws = np.random.default_rng(0).normal(size=[1000, 4, 2])
  draws[:, 0, 1] += (
    3.0  # The first chain is elsewhere in the second coordinate.
  )
  tfp_diag.mcmc.rhat(draws) < 1.01  # ==> [True, False]
  ```

  #### References

  [1]: Aki Vehtari, Andrew Gelman, Daniel Simpson, Bob Carpenter and
       Paul-Christian Bürkner (2021). Rank-normalization, folding, and
       localization: an improved R-hat for assessing convergence of MCMC.
       _Bayesian Analysis_ 16(2), equations (4) and (14).
       https://doi.org/10.1214/20-BA1221
  """
  return map_draws(
    functools.partial(of_events, kind='r_hat'), draws, chain_ndims
  )
