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
"""The targets by name."""

import functools
import types

import tensorflow as tf

from tfp_diag.examples import gaussian
from tfp_diag.examples.banana import banana
from tfp_diag.examples.eight_schools import (
  eight_schools,
  eight_schools_centered,
)
from tfp_diag.examples.funnel import funnel
from tfp_diag.examples.pieces import normal_pdf, start
from tfp_diag.examples.target import Target
from tfp_diag.internal import arguments

__all__ = ['TARGETS', 'get']


def get(name: str) -> Target:
  """The target of that name.

  Args:
    name: Python `str`, a key of `TARGETS`.

  Returns:
    A `tfp_diag.examples.Target`.

  Raises:
    ValueError: if there is no such target.

  #### Examples

  ```python
  from tfp_diag.examples import targets

  target = targets.get('eight_schools')
  state = target.init(num_chains=4, seed=(0, 1))
  target.target_log_prob_fn(*state).shape  # ==> [4]
  ```
  """
  if not isinstance(name, str) or name not in TARGETS:
    raise ValueError(
      f'There is no target named {arguments.shown(name)}; `name` must be one '
      f'of {", ".join(TARGETS)}.'
    )
  return TARGETS[name]


def _from_gaussian(name, description, distribution):
  """A `Target` whose state is one Tensor of event shape [n]."""
  names = tuple(f'x[{i}]' for i in range(distribution.num_dims))
  sds = distribution.standard_deviations()
  return Target(
    name=name,
    description=description,
    target_log_prob_fn=distribution.log_prob,
    init=functools.partial(start, distribution.num_dims),
    parameter_names=names,
    to_parameters=functools.partial(_to_parameters, names),
    reference_mean=distribution.mean.copy(),
    reference_sd=sds,
    marginal_pdf={
      n: functools.partial(normal_pdf, m, s)
      for n, m, s in zip(names, distribution.mean, sds)
    },
    reference='In closed form.',
  )


def _to_parameters(names, state):
  return dict(zip(names, tf.unstack(state, axis=-1)))


TARGETS = types.MappingProxyType(
  {
    target.name: target
    for target in (
      eight_schools(),
      eight_schools_centered(),
      funnel(),
      banana(),
      _from_gaussian(
        'gaussian_3d',
        'The 3-D normal of variances 1, 2, 3 and covariances 1/4.',
        gaussian.three_dimensional(),
      ),
      _from_gaussian(
        'gaussian_ill_conditioned',
        'Ten independent normals with variances from 0.01 to 100.',
        gaussian.axis_aligned(10, condition_number=1e4),
      ),
      _from_gaussian(
        'gaussian_ar1',
        'A stationary AR(1) of 20 steps with coefficient 0.9.',
        gaussian.ar1(20, coefficient=0.9),
      ),
    )
  }
)
