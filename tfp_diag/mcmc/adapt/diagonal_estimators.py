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
"""From moments of a target to a diagonal preconditioner.

With the covariance of a Gaussian diagonal, all of these are its variances. They
differ in what they do to correlations, and in how noisy they are. All are
variances s², per coordinate; g is the gradient of the log density.
"""

import inspect
import typing
from typing import Literal

import tensorflow as tf

from tfp_diag.internal import arguments

Estimator = Literal['variance', 'fisher', 'fisher_divergence', 'hessian']

# How many draws the scale in use counts for, against those that were made.
_PRIOR_COUNT = 10.0


def quantities_of(estimator):
  """The names of the quantities whose moments an estimator needs, in order."""
  arguments.check_choice('estimator', estimator, tuple(ESTIMATORS))
  return tuple(inspect.signature(ESTIMATORS[estimator]).parameters)


def estimate_variances(estimator, moments, variances_in_use):
  """The estimate, drawn towards what is in use if there were few draws.

  Args:
    estimator: Python `str`, a key of `ESTIMATORS`.
    moments: `RunningMoments` of its quantities.
    variances_in_use: List of Tensors, s² per part. What is kept where there is
      no estimate, because a coordinate never moved, say.

  Returns:
    List of positive Tensors.
  """
  quantities = [
    list(map(_Quantity, *of_parts))
    for of_parts in zip(moments.means, moments.variances())
  ]
  result = []
  for in_use, *of_part in zip(variances_in_use, *quantities):
    estimate = ESTIMATORS[estimator](*of_part)
    known = tf.math.is_finite(estimate) & (estimate > 0.0)
    known &= moments.count >= 2.0
    ratio = tf.where(known, estimate / in_use, tf.ones_like(in_use))
    # In logarithms, so that no unit of length is better than another.
    weight = moments.count / (moments.count + _PRIOR_COUNT)
    result.append(in_use * ratio**weight)
  return result


class _Quantity(typing.NamedTuple):
  """What is known of a quantity of one part."""

  mean: typing.Any
  variance: typing.Any


def _variance(state):
  return state.variance


def _fisher(gradient):
  # E[g] is zero where the chains have arrived; before, it counts as well.
  return 1.0 / (gradient.variance + tf.square(gradient.mean))


def _fisher_divergence(state, gradient):
  return tf.sqrt(state.variance / gradient.variance)


def _hessian(state, curvature):
  # Cov(x_i, g_i) = -1, so that E[-∂_ii] = E[g_i²] >= 1 / Var(x_i): an average
  # curvature below that, negative ones included, is an error of estimation.
  least = 1.0 / state.variance
  return tf.sqrt(state.variance / tf.maximum(curvature.mean, least))


# The quantities that each one looks at are its arguments.
ESTIMATORS = {
  'variance': _variance,
  'fisher': _fisher,
  'fisher_divergence': _fisher_divergence,
  'hessian': _hessian,
}
