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
"""Diagonals of Hessians beside their closed forms."""

import functools
import time
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.diag_hessian import diag_hessian
from tfp_diag.diag_jacobian import diag_jacobian
from tfp_diag.examples import gaussian
from tfp_diag.internal.text_table import text_table
from tfp_diag.plan_diag_hessian import plan_diag_hessian
from tfp_diag.plan_diag_jacobian import plan_diag_jacobian

SAMPLE_SHAPE = [3, 5]
PART_SIZES = [2, 1]

# Diagonals are timed over this many calls, after one that traces.
NUM_CALLS = 20

# An error that float32 does not explain.
TOLERANCE = 1e-4


def compare_diagonals():
  """Computes the diagonal Hessians of two 3-D densities in every way.

  The state has two parts, of shapes [3, 5, 2] and [3, 5, 1], with distinct
  values per sample. The first density is the Gaussian with covariance
  [[1, 1/4, 1/4], [1/4, 2, 1/4], [1/4, 1/4, 3]], whose curvature is the same
  everywhere; the second one has a quartic term in addition, so that results
  which land at the wrong sample show.

  Returns:
    List with one dict per density: 'density', 'closed_form' (the diagonal at
    the first sample, list of three numbers) and 'rows', a list of dicts
    'method', 'diagonal', 'max_error' (over all samples, against the closed
    form), 'passes' and 'milliseconds'.
  """
  normal = gaussian.three_dimensional()
  x = np.random.default_rng(0).normal(size=[*SAMPLE_SHAPE, 3])
  precision = np.linalg.inv(normal.covariance())
  curvature = np.broadcast_to(-np.diag(precision), x.shape)

  def log_prob(*parts):
    return normal.log_prob(tf.concat(parts, axis=-1))

  def quartic_log_prob(*parts):
    quartic = tf.reduce_sum(tf.concat(parts, axis=-1) ** 4, axis=-1)
    return log_prob(*parts) - quartic / 12.0

  parts = tf.split(tf.constant(x, tf.float32), PART_SIZES, axis=-1)
  # The same for both densities: the quartic term couples nothing.
  passes = [count(log_prob, parts) for _, _, count in METHODS]
  quartic_curvature = curvature - x**2
  return [
    _compare('Gaussian', log_prob, parts, curvature, passes),
    _compare(
      'Gaussian with -x^4/12',
      quartic_log_prob,
      parts,
      quartic_curvature,
      passes,
    ),
  ]


def _compare(name, log_prob, parts, closed_form, passes):
  rows = []
  for (method, compute, _), num_passes in zip(METHODS, passes):
    diag, milliseconds = _timed(functools.partial(compute, log_prob), parts)
    rows.append(
      {
        'method': method,
        'diagonal': diag[0, 0].tolist(),
        'max_error': float(np.max(np.abs(diag - closed_form))),
        'passes': num_passes,
        'milliseconds': milliseconds,
      }
    )
  return {
    'density': name,
    'closed_form': closed_form[0, 0].tolist(),
    'rows': rows,
  }


def _timed(compute, parts):
  """The diagonal as one array [3, 5, 3], and the time of a traced call."""
  traced = tf.function(compute, autograph=False)
  diag = np.concatenate([part.numpy() for part in traced(*parts)], axis=-1)
  began = time.perf_counter()
  for _ in range(NUM_CALLS):
    last = traced(*parts)
  last[0].numpy()
  return diag, 1e3 * (time.perf_counter() - began) / NUM_CALLS


def _gradient(log_prob):
  return lambda *parts: tfp.math.value_and_gradient(log_prob, list(parts))[1]


def _jacobian_of_gradient(log_prob, *parts, sample_shape=None):
  fn = _gradient(log_prob)
  return diag_jacobian(list(parts), fn=fn, sample_shape=sample_shape)[1]


def _hessian(log_prob, *parts):
  return diag_hessian(log_prob, list(parts))[2]


def _upstream(gradient, *parts):
  return tfp.math.diag_jacobian(
    list(parts), fn=gradient, sample_shape=SAMPLE_SHAPE
  )[1]


def _upstream_passes(log_prob, parts):
  """Counts how often upstream differentiates in eager mode."""
  num_passes = 0

  @tf.custom_gradient
  def counted(x) -> Any:  # A Tensor for the caller.
    def gradient(cotangent):
      nonlocal num_passes
      num_passes += 1
      return cotangent

    return tf.identity(x), gradient

  def gradient(*parts):
    # One Tensor, so that a pass through several parts counts once.
    joint = tf.concat(_gradient(log_prob)(*parts), axis=-1)
    return tf.split(counted(joint), PART_SIZES, axis=-1)

  _upstream(gradient, *parts)
  return num_passes


# Names, the functions of (log_prob, *parts) that compute, and those of
# (log_prob, parts) that count passes.
METHODS = (
  (
    'diag_jacobian, sample_shape=[3, 5]',
    functools.partial(_jacobian_of_gradient, sample_shape=SAMPLE_SHAPE),
    lambda log_prob, parts: (
      plan_diag_jacobian(_gradient(log_prob), parts, SAMPLE_SHAPE).num_passes
    ),
  ),
  (
    'diag_jacobian, no sample_shape',
    _jacobian_of_gradient,
    lambda log_prob, parts: (
      plan_diag_jacobian(_gradient(log_prob), parts).num_passes
    ),
  ),
  (
    'diag_hessian',
    _hessian,
    lambda log_prob, parts: plan_diag_hessian(log_prob, parts).num_passes,
  ),
  (
    'tfp.math.diag_jacobian',
    lambda log_prob, *parts: _upstream(_gradient(log_prob), *parts),
    _upstream_passes,
  ),
)


def describe_diagonals(comparisons):
  """Tables of what `compare_diagonals` returned, as text."""
  blocks = []
  for comparison in comparisons:
    header = [comparison['density'], 'h[0]', 'h[1]', 'h[2]']
    header += ['max error', 'passes', 'ms', '']
    exact = [f'{value:.5f}' for value in comparison['closed_form']]
    rows = [['closed form', *exact, '', '', '', '']]
    for row in comparison['rows']:
      rows.append(
        [
          row['method'],
          *(f'{value:.5f}' for value in row['diagonal']),
          f'{row["max_error"]:.0e}',
          str(row['passes']),
          f'{row["milliseconds"]:.2f}',
          'WRONG' if row['max_error'] > TOLERANCE else '',
        ]
      )
    blocks.append(text_table(header, rows))
    upstream = comparison['rows'][-1]
    if upstream['max_error'] > TOLERANCE:
      blocks.append(
        f'{upstream["method"]} swaps results between samples where the sample\n'
        'shape has two axes or more; equal curvatures hide it.'
      )
  return '\n\n'.join(blocks)
