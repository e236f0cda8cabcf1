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

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.command_line.text_table import text_table
from tfp_diag.diag_hessian import diag_hessian
from tfp_diag.diag_jacobian import diag_jacobian
from tfp_diag.examples import gaussian

__all__ = ['compare_diagonals', 'describe_diagonals']

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
  passes = [count(compute, log_prob, parts) for _, compute, count in METHODS]
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


def _jacobian_of_gradient(log_prob, *parts, watch=None, **how):
  def gradient(*parts):
    parts = tfp.math.value_and_gradient(log_prob, list(parts))[1]
    return parts if watch is None else watch(parts)

  return diag_jacobian(list(parts), fn=gradient, **how)[1]


def _upstream(log_prob, *parts, watch=None):
  def gradient(*parts):
    parts = tfp.math.value_and_gradient(log_prob, list(parts))[1]
    return parts if watch is None else watch(parts)

  return tfp.math.diag_jacobian(
    list(parts), fn=gradient, sample_shape=SAMPLE_SHAPE
  )[1]


def _hessian(log_prob, *parts, watch=None, **how):
  def watched(*parts):
    return log_prob(*(parts if watch is None else watch(parts)))

  return diag_hessian(watched, list(parts), **how)[2]


def _count_traced(compute, log_prob, parts, num_others=0, **how):
  """The passes that are traced, when each one is written out."""
  counter = _PassCounter()
  traced = functools.partial(
    compute, log_prob, watch=counter, schedule='unrolled', **how
  )
  tf.function(traced, autograph=False).get_concrete_function(*parts)
  return counter.passes - num_others


def _count_executed(compute, log_prob, parts):
  """The passes that eager mode executes."""
  counter = _PassCounter()
  compute(log_prob, *parts, watch=counter)
  return counter.passes


class _PassCounter:
  """An identity on parts that counts how often it is differentiated."""

  def __init__(self):
    self.passes = 0

  def __call__(self, parts):
    # One Tensor, so that a pass over several parts counts once.
    return tf.split(self._identity(tf.concat(parts, -1)), PART_SIZES, -1)

  @property
  def _identity(self):
    @tf.custom_gradient
    def identity(x):
      def gradient(cotangent):
        self.passes += 1
        return cotangent

      return tf.identity(x), gradient

    return identity


# Names, functions and how the passes of each are counted. The gradient that
# `diag_hessian` differentiates is no pass of its own.
METHODS = (
  (
    'diag_jacobian, sample_shape=[3, 5]',
    functools.partial(_jacobian_of_gradient, sample_shape=SAMPLE_SHAPE),
    functools.partial(_count_traced, mode='reverse'),
  ),
  (
    'diag_jacobian, no sample_shape',
    _jacobian_of_gradient,
    functools.partial(_count_traced, mode='reverse'),
  ),
  (
    'diag_hessian',
    _hessian,
    functools.partial(_count_traced, num_others=1, mode='reverse_over_reverse'),
  ),
  ('tfp.math.diag_jacobian', _upstream, _count_executed),
)


def describe_diagonals(comparisons):
  """Tables of what `compare_diagonals` returned, as text."""
  blocks = []
  for comparison in comparisons:
    header = [comparison['density'], 'h[1]', 'h[2]', 'h[3]']
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
  return '\n\n'.join(blocks)
