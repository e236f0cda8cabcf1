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
"""A banana-shaped distribution."""

import functools
import math

import numpy as np
import tensorflow as tf

from tfp_diag.examples.pieces import normal_pdf, start
from tfp_diag.examples.target import Target

__all__ = ['banana']


def banana():
  """A normal distribution bent along a parabola.

  x₀ ~ N(0, 10²), x₁ ~ N(0.03 (100 − x₀²), 1). The state is one Tensor with
  event shape [2].

  Returns:
    A `Target` with exact moments and marginal densities.
  """
  return Target(
    name='banana',
    description='A normal bent along a parabola (Haario et al. 1999): 2-D.',
    target_log_prob_fn=_log_prob,
    init=functools.partial(start, 2),
    parameter_names=('x[0]', 'x[1]'),
    to_parameters=_to_parameters,
    reference_mean=np.zeros(2),
    # Var x₁ = 1 + bend² Var(x₀²), and Var(x₀²) = 2 · scale⁴.
    reference_sd=np.array(
      [_SCALE, math.sqrt(1.0 + 2.0 * _BEND**2 * _SCALE**4)]
    ),
    marginal_pdf={
      'x[0]': functools.partial(normal_pdf, 0.0, _SCALE),
      'x[1]': _x1_pdf,
    },
    reference=(
      'Haario, Saksman and Tamminen (1999), "Adaptive proposal distribution '
      'for random walk Metropolis algorithm". Moments in closed form.'
    ),
  )


_SCALE = 10.0
_BEND = 0.03


def _log_prob(x):
  x0, x1 = x[..., 0], x[..., 1]
  straight = x1 + _BEND * (tf.square(x0) - _SCALE**2)
  return (
    -0.5 * tf.square(x0 / _SCALE)
    - 0.5 * tf.square(straight)
    - math.log(2.0 * math.pi * _SCALE)
  )


def _to_parameters(state):
  return {'x[0]': state[..., 0], 'x[1]': state[..., 1]}


def _x1_pdf(values):
  """Integrates over x₀ with the trapezoidal rule."""
  values = np.asarray(values, np.float64)
  x0, spacing = np.linspace(-9.0 * _SCALE, 9.0 * _SCALE, 8001, retstep=True)
  center = _BEND * (_SCALE**2 - x0**2)
  weights = spacing * normal_pdf(0.0, _SCALE, x0)
  return normal_pdf(center, 1.0, values[..., np.newaxis]) @ weights
