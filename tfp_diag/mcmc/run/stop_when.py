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
"""When a run has drawn enough."""

import contextlib
import math
import typing

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments
from tfp_diag.mcmc.diagnose.ess import ess
from tfp_diag.mcmc.diagnose.named_draws import as_draws, check_chain_ndims
from tfp_diag.mcmc.diagnose.rhat import rhat
from tfp_diag.mcmc.diagnose.sampler_statistics import (
  chain_ndims_of,
  is_tuning,
  sampler_statistics,
)


class _Conditions(typing.NamedTuple):
  """The fields of a `StopWhen`; a `NamedTuple` itself cannot check them."""

  max_rhat: float | None = None
  min_ess: float | None = None
  min_draws: int = 50
  chain_ndims: int | None = None


class StopWhen(_Conditions):
  """Ends a run of `sample` once its chains agree and carry enough information.

  Draws for which 'tune' in the trace is true are left out, as `summarize` does:
  a run does not end while its kernel adapts.

  `stop_when` may also be any other callable `(draws, trace)` that returns
  whether to stop.

  Attributes:
    max_rhat: Python `float` or None: the rank-normalized split R-hat that no
      coordinate may exceed; for two chains or more. Default: None, R-hat does
      not matter.
    min_ess: Python `float` or None: the bulk effective sample size, of all
      chains together, that each coordinate must reach. Default: None.
    min_draws: Python `int`, the number of draws of each chain before which
      nothing is judged: short runs look better than they are. Default: 50.
    chain_ndims: Python `int`, how many axes of the draws, after the first, are
      chains. Default: None, as many as the kernel of the run has, or as the
      trace shows; 1 if neither is known. Pass it with a kernel without
      'target_log_prob' in its results: of a single chain without a chain axis,
      1 would take coordinates for chains.

  Raises:
    ValueError: if nothing is asked for, or a field is not what it can be.

  #### Examples

  ```python
  import numpy as np
  import tfp_diag

  stop_when = tfp_diag.mcmc.StopWhen(max_rhat=1.05, min_ess=200)
  draws = np.random.default_rng(0).normal(size=[100, 8, 3])
  stop_when(draws)  # ==> True
  stop_when(draws[:20])  # ==> False
  differing_means = np.arange(8.0)[:, np.newaxis]
  stop_when(draws + differing_means)  # ==> False
  ```

  #### References

  [1]: Aki Vehtari, Andrew Gelman, Daniel Simpson, Bob Carpenter and
       Paul-Christian Bürkner (2021). Rank-normalization, folding, and
       localization: an improved R-hat for assessing convergence of MCMC.
       _Bayesian Analysis_ 16(2).
       https://doi.org/10.1214/20-BA1221
  """

  __slots__ = ()

  def __new__(
    cls,
    max_rhat: float | None = None,
    min_ess: float | None = None,
    min_draws: int = 50,
    chain_ndims: int | None = None,
  ) -> 'StopWhen':
    """Makes one that can be asked, or raises; see the class."""
    self = super().__new__(cls, max_rhat, min_ess, min_draws, chain_ndims)
    self.check()
    return self

  def check(self):
    """Raises a ValueError if a field is not what it can be."""
    if self.max_rhat is None and self.min_ess is None:
      raise ValueError(
        f'{self} asks for nothing; pass `max_rhat`, such as 1.01, or '
        '`min_ess`, or both.'
      )
    if self.max_rhat is not None:
      arguments.check_number(
        'max_rhat',
        self.max_rhat,
        'a finite number of at least 1, such as 1.01, or None: R-hat goes to 1 '
        'as chains converge',
        lambda x: 1.0 <= x < math.inf,
      )
    if self.min_ess is not None:
      arguments.check_number(
        'min_ess',
        self.min_ess,
        'a positive number or None',
        arguments.is_positive,
      )
    arguments.as_count(
      'min_draws', self.min_draws, 0, 'before how many draws nothing is judged'
    )
    if self.chain_ndims is not None:
      check_chain_ndims(self.chain_ndims)

  def __call__(self, draws: typing.Any, trace: typing.Any = None) -> bool:
    """Whether the draws are enough.

    Args:
      draws: Structure of arrays [draws, chains..., event...].
      trace: Dict of what was recorded beside them, or kernel results, or None.
        Draws for which its 'tune' is true do not count. Where `chain_ndims` is
        None, its per-chain statistics (such as 'is_accepted') say how many axes
        are chains; without them it is one.

    Returns:
      Python `bool`. A coordinate that never moved, whose R-hat and effective
      sample size are not numbers, is not enough.

    Raises:
      ValueError: if a part has too few axes, R-hat is asked of a single chain,
        or 'tune' is not one value for each draw.
      TypeError: if `chain_ndims` is None and `trace` is something else.
    """
    self.check()
    parts = [as_draws(part) for part in tf.nest.flatten(draws)]
    if not parts:
      raise ValueError('`draws` has no parts; pass an array [draw, chain...].')
    chain_ndims = chain_ndims_of(trace, self.chain_ndims, parts)
    chain_shape = parts[0].shape[1 : 1 + chain_ndims]
    if self.max_rhat is not None and np.prod(chain_shape) < 2:
      raise ValueError(
        f'{self} asks for an R-hat, which compares chains, but there is one. '
        'Start several, or pass `min_ess` alone.'
      )
    statistics = {}
    # What a `trace_fn` records need not have these names.
    with contextlib.suppress(TypeError):
      statistics = sampler_statistics(
        trace, len(parts[0]), chain_shape, ['tune']
      )
    kept = ~is_tuning(statistics, len(parts[0]))
    if not np.all(kept):
      parts = [part[kept] for part in parts]
    if len(parts[0]) < max(self.min_draws, 1):
      return False
    # Written so that NaN is not enough.
    if self.max_rhat is not None and not all(
      np.all(found <= self.max_rhat)
      for found in rhat(parts, chain_ndims=chain_ndims)
    ):
      return False
    return self.min_ess is None or all(
      bool(np.all(found >= self.min_ess))
      for found in ess(parts, chain_ndims=chain_ndims)
    )
