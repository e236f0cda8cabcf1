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
"""Neal's funnel."""

import functools
import math

import numpy as np
import tensorflow as tf

from tfp_diag.examples.pieces import normal_pdf, start_of_parts
from tfp_diag.examples.target import Target
from tfp_diag.internal import arguments

__all__ = ['funnel']


def funnel(num_leaves=9):
  """A log variance and variables that it scales.

  v ~ N(0, 3²), x_i ~ N(0, e^v): e^v is the variance of x_i. The state is [v, x]
  with event shapes [] and [num_leaves]. Its curvature varies by orders of
  magnitude: no constant preconditioner serves it, and a sampler that reports
  otherwise deserves distrust.

  Args:
    num_leaves: Python `int`, the number of x's.

  Returns:
    A `Target` with exact moments and marginal densities.
  """
  num_leaves = arguments.as_count(
    'num_leaves', num_leaves, 1, "the number of x's"
  )
  names = ('v', *(f'x[{i}]' for i in range(num_leaves)))
  leaf_sd = math.exp(0.25 * _SCALE**2)
  v_pdf = functools.partial(normal_pdf, 0.0, _SCALE)
  marginals = {'v': v_pdf, **dict.fromkeys(names[1:], _x_pdf)}
  return Target(
    name='funnel',
    description=f"Neal's funnel (2003): {num_leaves + 1} coordinates.",
    target_log_prob_fn=_log_prob,
    init=functools.partial(start_of_parts, [[], [num_leaves]]),
    parameter_names=names,
    to_parameters=functools.partial(_to_parameters, names),
    reference_mean=np.zeros(num_leaves + 1),
    reference_sd=np.array([_SCALE] + num_leaves * [leaf_sd]),
    marginal_pdf=marginals,
    reference=(
      'Neal (2003), "Slice sampling", section 8. sd(v) = 3 and '
      'var(x) = E[e^v] = e^4.5 in closed form.'
    ),
  )


_SCALE = 3.0


def _log_prob(v, x):
  v_column = v[..., tf.newaxis]
  log_prob_x = -0.5 * (
    tf.square(x) * tf.exp(-v_column) + v_column + math.log(2.0 * math.pi)
  )
  log_prob_v = (
    -0.5 * tf.square(v / _SCALE)
    - math.log(_SCALE)
    - 0.5 * math.log(2.0 * math.pi)
  )
  return log_prob_v + tf.reduce_sum(log_prob_x, axis=-1)


def _to_parameters(names, state):
  v, x = state
  return dict(zip(names, [v, *tf.unstack(x, axis=-1)]))


def _x_pdf(values):
  """Integrates over v with the trapezoidal rule; e^(9/8) / √(2π) at zero."""
  values = np.asarray(values, np.float64)
  v, spacing = np.linspace(-13.0 * _SCALE, 13.0 * _SCALE, 4001, retstep=True)
  weights = spacing * normal_pdf(0.0, _SCALE, v)
  density = np.exp(
    -0.5 * (values[..., np.newaxis] ** 2 * np.exp(-v) + v)
  ) / math.sqrt(2.0 * math.pi)
  return density @ weights
