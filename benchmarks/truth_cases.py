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
"""Targets of which the truth is known, from inference-gym.

The gym ships posterior means with their standard errors, made with Stan, and
closed forms. Here each target becomes a log density of one unconstrained vector
per chain, and what is known about functions of it.
"""

import dataclasses
import typing

import numpy as np
import tensorflow as tf

__all__ = ['CASES', 'Case', 'Truth', 'brownian_motion_moments', 'load']


@dataclasses.dataclass(frozen=True)
class Case:
  """A target, with what is known better than its package knows.

  Attributes:
    model: Python `str`, the name of the class in `inference_gym.targets`.
    jit_compile: Python `bool`, whether XLA compiles the steps.
    note: Python `str`, what to know about the figures.
    moments: Callable that returns means and standard deviations of the
      statistics, where the gym's own are not those of its density; or None.
  """

  model: str
  jit_compile: bool = True
  note: str = ''
  moments: typing.Any = None


CASES = {
  'eight_schools': Case('EightSchools'),
  'brownian_motion': Case(
    'BrownianMotionUnknownScalesMissingMiddleObservations',
    moments=lambda: brownian_motion_moments(_observed_locs()),
    note=(
      'the truth is by quadrature: the 0.101 ± 0.0006 of the gym for the mean '
      'of observation_noise_scale is not that of its own density, 0.113'
    ),
  ),
  'stochastic_volatility': Case('VectorizedStochasticVolatilitySP500Small'),
  'cox_process': Case(
    'SyntheticLogGaussianCoxProcess',
    # A Cholesky factor of 100 × 100 in every step, which XLA is slow at.
    jit_compile=False,
  ),
  'item_response': Case('SyntheticItemResponseTheory'),
  'lorenz_bridge': Case('ConvectionLorenzBridge'),
  'ill_conditioned': Case('IllConditionedGaussian'),
  'funnel': Case('NealsFunnel'),
  'banana': Case('Banana'),
}


@dataclasses.dataclass(frozen=True)
class Truth:
  """A target, and what is known of it.

  Attributes:
    num_coordinates: Python `int`, of the unconstrained vector.
    dtype: Of the vector.
    log_prob: Callable of a Tensor [chains, num_coordinates].
    statistics: Callable of the same, to a Tensor [chains, k].
    names: List of k `str`s.
    mean: float64 array [k], of the statistics.
    mean_error: float64 array [k], its standard error; zero for a closed form.
    sd: float64 array [k], of the statistics.
    sd_error: float64 array [k].
  """

  num_coordinates: int
  dtype: typing.Any
  log_prob: typing.Any
  statistics: typing.Any
  names: list
  mean: np.ndarray
  mean_error: np.ndarray
  sd: np.ndarray
  sd_error: np.ndarray


def load(case):
  """Makes the target of a case.

  Args:
    case: A `Case`.

  Returns:
    A `Truth`.

  Raises:
    ModuleNotFoundError: if inference-gym is not installed.
  """
  import inference_gym.using_tensorflow as gym

  targets = gym.targets
  model = targets.VectorModel(getattr(targets, case.model)())
  bijector = model.default_event_space_bijector
  transformation = model.sample_transformations['identity']

  def log_prob(x):
    return model.unnormalized_log_prob(
      bijector.forward(x)
    ) + bijector.forward_log_det_jacobian(x, 1)

  def statistics(x):
    parts = tf.nest.flatten(transformation.fn(bijector.forward(x)))
    return tf.concat(
      [tf.reshape(p, [tf.shape(x)[0], np.prod(p.shape[1:])]) for p in parts], -1
    )

  mean = _flat(transformation.ground_truth_mean)
  sd = _flat(transformation.ground_truth_standard_deviation)
  if case.moments is not None:
    mean, sd = case.moments()
  if case.moments or transformation.ground_truth_mean_standard_error is None:
    mean_error = np.zeros_like(mean)
  else:
    mean_error = _flat(transformation.ground_truth_mean_standard_error)
  return Truth(
    num_coordinates=bijector.inverse_event_shape(model.event_shape)[0],
    dtype=model.dtype,
    log_prob=log_prob,
    statistics=statistics,
    names=_names(transformation.ground_truth_mean),
    mean=mean,
    mean_error=mean_error,
    sd=sd,
    # The gym has none: a normal's, of as many independent draws as the error
    # of the mean stands for.
    sd_error=mean_error / np.sqrt(2.0),
  )


def brownian_motion_moments(observed, num_nodes=400):
  """Posterior moments of Brownian motion with unknown scales, by quadrature.

  log a and log b ~ N(0, 2²); locs[t] ~ N(locs[t - 1], a²), from zero; and
  observed[t] ~ N(locs[t], b²). Given the scales everything is Gaussian.

  Args:
    observed: Array [n], NaN where there is no observation.
    num_nodes: Python `int`, for each scale.

  Returns:
    mean: Array [n + 2], of a, the locs, and b.
    sd: Array [n + 2].
  """
  seen = ~np.isnan(observed)
  times = np.arange(1.0, len(observed) + 1.0)
  walk = np.minimum.outer(times, times)
  eigenvalues, basis = np.linalg.eigh(walk[np.ix_(seen, seen)])
  data = basis.T @ observed[seen].astype(np.float64)
  to_locs = walk[:, seen] @ basis
  # Beyond the ends there is less than 1e-9 of the prior.
  log_scale = np.linspace(-12.5, 12.5, num_nodes)
  a, b = np.meshgrid(np.exp(log_scale), np.exp(log_scale), indexing='ij')
  a2, b2 = (v.reshape(-1, 1) ** 2 for v in (a, b))
  variances = a2 * eigenvalues + b2
  log_weight = -0.5 * np.sum(np.log(variances) + data**2 / variances, -1)
  log_weight -= 0.125 * np.add.outer(log_scale**2, log_scale**2).ravel()
  weight = np.exp(log_weight - log_weight.max())
  weight /= weight.sum()
  locs = a2 * ((data / variances) @ to_locs.T)
  spread = a2 * times - a2**2 * ((1.0 / variances) @ (to_locs**2).T)
  first = np.column_stack([a.ravel(), locs, b.ravel()])
  second = np.column_stack([a2, locs**2 + spread, b2])
  mean = weight @ first
  return mean, np.sqrt(weight @ second - mean**2)


def _observed_locs():
  from inference_gym.internal import data

  found = data.brownian_motion_missing_middle_observations()
  return np.asarray(found['observed_locs'])


def _flat(tree):
  parts = [np.ravel(x) for x in tf.nest.flatten(tree)]
  return np.concatenate(parts).astype(np.float64)


def _names(tree):
  names = []
  for path, x in _paths(tree):
    indices = list(np.ndindex(np.shape(x)))
    names += [path + (str(list(i)) if i else '') for i in indices]
  return names


def _paths(tree):
  """Names of the leaves, in the order of `tf.nest.flatten`."""
  if not isinstance(tree, dict):
    return [('x', tree)]
  # A sorted dict is what `tf.nest` makes of one.
  return [(key, tree[key]) for key in sorted(tree)]
