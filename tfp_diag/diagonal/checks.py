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
"""Run-time checks of what a caller promised; all of `validate_args`.

The diagonal is recomputed with other seeds. A pass of several coordinates, or
of several samples, is exact as long as they do not meet in the Jacobian. Random
signs keep an exact result as it is and change a wrong one with probability 1/2
or more, each time they are drawn. XLA has no assertions and drops them.
"""

import contextlib
import re

import tensorflow as tf

from tfp_diag.internal import batching
from tfp_diag.internal import schedule as schedule_lib

__all__ = ['check', 'check_sample_shape', 'plain_errors', 'tolerance']

# A wrong result goes unseen with a probability of at most 2^-10.
_NUM_DRAWS = 10


@contextlib.contextmanager
def plain_errors():
  """Raises a broken promise as its sentence, without TensorFlow's trace."""
  try:
    yield
  except tf.errors.InvalidArgumentError as e:
    sentence = re.search(
      r'\[([^][]*(\(Seen in part \d+\.\)|part \d+ of `xs`\.))\]', e.message
    )
    if sentence is None:
      raise
    raise tf.errors.InvalidArgumentError(
      e.node_def, e.op, sentence.group(1)
    ) from None


def check_sample_shape(xs, sample_shape):
  """Asserts that `sample_shape` leads every part.

  Args:
    xs: List of Tensors.
    sample_shape: As in `batching.sample_sizes`.
  """
  rank = batching.sample_rank(sample_shape)
  if not rank:
    return
  if isinstance(sample_shape, (list, tuple, tf.TensorShape)):
    # A size that is None may be any, as long as the parts share it.
    first = tf.shape(xs[0])
    sample_shape = [
      first[i] if size is None else tf.cast(size, tf.int32)
      for i, size in enumerate(sample_shape)
    ]
  given = tf.reshape(tf.cast(sample_shape, tf.int32), [-1])
  for i, x in enumerate(xs):
    tf.debugging.assert_equal(
      tf.shape(x)[:rank],
      given,
      message=f'`sample_shape` does not lead the shape of part {i} of `xs`.',
    )


def check(diag, derivative, other_mode, colors, xs, rank, recipe):
  """Asserts that other seeds give the same diagonal.

  Args:
    diag: List of Tensors, the diagonal.
    derivative: The `passes.LinearMap` that it came from.
    other_mode: Callable, returns the `passes.LinearMap` of the other mode; None
      to leave the modes uncompared.
    colors: `schedule.Colors`.
    xs: List of Tensors, the parts.
    rank: Python int, the number of sample dimensions.
    recipe: `evaluate.Recipe`.
  """

  def again(linear_map, signs):
    return schedule_lib.diagonal(
      linear_map,
      colors.with_signs(signs),
      xs,
      recipe.schedule,
      recipe.chunk_size,
    )

  def coordinate_signs(draw):
    return [
      _random_signs(tf.shape(x)[rank:], x.dtype, draw, i)
      for i, x in enumerate(xs)
    ]

  def sample_signs(draw):
    """One sign per sample, the same in every part."""
    signs = []
    for x in xs:
      shape = tf.shape(x)
      sign = _random_signs(shape[:rank], x.dtype, draw, len(xs))
      ones = tf.ones([x.shape.rank - rank], tf.int32)
      signs.append(tf.reshape(sign, tf.concat([shape[:rank], ones], 0)))
    return signs

  if recipe.colors is not None:
    _assert_agreement(
      diag,
      lambda draw: again(derivative, coordinate_signs(draw)),
      'The colors of `plan` do not fit `fn`: coordinates that share a pass '
      'influence each other, so the diagonal is wrong. Was the plan made for '
      'another function, or from a pattern that lacks entries? Plan again.',
    )
  if rank:
    _assert_agreement(
      diag,
      lambda draw: again(derivative, sample_signs(draw)),
      '`sample_shape` promises independent samples, but `fn` mixes them, so '
      'the diagonal is wrong. Pass `sample_shape=None` to treat everything as '
      'event, or make `fn` work on each sample alone.',
    )
  if other_mode is not None:
    linear_map = other_mode()
    _assert_agreement(
      diag,
      lambda draw: again(linear_map, coordinate_signs(draw)),
      'Forward and reverse mode disagree: some op of `fn` has a gradient that '
      "is not linear in its cotangent. Pass `mode='reverse'`, or mend it.",
    )


def _random_signs(shape, dtype, draw, stream):
  bits = tf.random.stateless_uniform(
    shape, tf.stack([draw, stream]), 0, 2, tf.int32
  )
  return tf.cast(2 * bits - 1, dtype)


def _assert_agreement(diag, again, message):
  """Asserts that `_NUM_DRAWS` further draws give `diag`, part by part."""

  def one_draw(draw, deviations):
    return draw + 1, [
      tf.maximum(deviation, _deviation(d, other))
      for deviation, d, other in zip(deviations, diag, again(draw))
    ]

  _, deviations = tf.while_loop(
    lambda draw, _: draw < _NUM_DRAWS,
    one_draw,
    (0, [tf.zeros([], d.dtype) for d in diag]),
    maximum_iterations=_NUM_DRAWS,
  )
  for i, deviation in enumerate(deviations):
    tf.debugging.assert_less_equal(
      deviation,
      tf.constant(tolerance(deviation.dtype), deviation.dtype),
      message=f'{message} (Seen in part {i}.)',
    )


def tolerance(dtype):
  """The relative difference that rounding may make: the root of epsilon."""
  return {'float64': 2.0**-26, 'float32': 2.0**-11.5}.get(dtype.name, 2.0**-3.5)


def _deviation(diag, other):
  """The largest difference, in units of the largest entry."""
  scale = tf.reduce_max(tf.maximum(tf.abs(diag), tf.abs(other)))
  difference = tf.abs(other - diag) / tf.where(
    scale > 0, scale, tf.ones_like(scale)
  )
  # What is not finite is so for every seed, and says nothing of structure.
  finite = tf.math.is_finite(difference)
  difference = tf.where(finite, difference, tf.zeros_like(difference))
  # An empty part has no largest entry.
  return tf.reduce_max(
    tf.concat([tf.reshape(difference, [-1]), tf.zeros([1], diag.dtype)], 0)
  )
