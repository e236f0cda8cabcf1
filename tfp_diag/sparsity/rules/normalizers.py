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
"""Ops with a normalizer, written out; means that TensorFlow holds constant."""

import tensorflow as tf

from tfp_diag.sparsity.registry import register_facts


def _exp(logits):
  """Logits minus their maximum, and the exponentials of these."""
  most = tf.reduce_max(logits, axis=-1, keepdims=True)
  shifted = logits - tf.stop_gradient(most)
  return shifted, tf.exp(shifted)


def _softmax(op, logits):
  _, exp = _exp(logits)
  return exp / tf.reduce_sum(exp, axis=-1, keepdims=True)


def _log_softmax(op, logits):
  shifted, exp = _exp(logits)
  return shifted - tf.math.log(tf.reduce_sum(exp, axis=-1, keepdims=True))


def _cross_entropy(op, logits, labels):
  """Valid only for constant labels."""
  value = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
  return _loss(value, logits, labels)


def _sparse_cross_entropy(op, logits, labels):
  value = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  mask = tf.one_hot(labels, tf.shape(logits)[-1], dtype=logits.dtype)
  return _loss(value, logits, mask)


def _loss(value, logits, labels):
  """The loss; TensorFlow's gradient takes labels to add up to one."""
  chosen = tf.reduce_sum(labels * logits, axis=-1)
  like = tf.reduce_logsumexp(logits, axis=-1) - chosen
  return like + tf.stop_gradient(value - like)


def _half_sum_of_squares(op, x):
  return tf.reduce_sum(tf.square(x)) / 2


def _batch_norm(op, x, scale, offset, mean, variance):
  """Each channel by itself; only the first result of the op has a gradient."""
  rank = x.shape.rank
  channel = 1 if op.get_attr('data_format').startswith(b'NC') else rank - 1
  rest = [axis for axis in range(rank) if axis != channel]

  def of_channels(y):
    return tf.reshape(y, [-1 if axis == channel else 1 for axis in range(rank)])

  dtype, x = x.dtype, tf.cast(x, scale.dtype)
  if op.get_attr('is_training'):
    x -= tf.reduce_mean(x, rest, keepdims=True)
    variance = tf.reduce_mean(tf.square(x), rest, keepdims=True)
  else:
    # The gradient of the op takes these as constants.
    x -= of_channels(tf.stop_gradient(mean))
    variance = of_channels(tf.stop_gradient(variance))
  x *= tf.math.rsqrt(variance + op.get_attr('epsilon'))
  return tf.cast(x * of_channels(scale) + of_channels(offset), dtype)


def _mean_of_moments(op, takes):
  """For `OpFacts.held`: the mean in the variance of `tf.nn.moments`.

  Deviations from a mean add up to zero, so the first derivative is right though
  the mean is held constant. The second derivative is not.
  """
  for x, mean in (op.inputs, tuple(op.inputs)[::-1]):
    if mean.op.type == 'StopGradient':
      (held,) = mean.op.inputs
      if held.op.type == 'Mean' and held.op.inputs[0] is x:
        return (
          'the mean in the variance of `tf.nn.moments`',
          '`tf.math.reduce_variance`',
        )
  return None


def _labels(op, takes):
  """For `OpFacts.held`: labels that are no constants, in second derivatives."""
  if takes is None or not takes[1]:
    return None
  return (
    'the labels of a cross entropy',
    '`-tf.reduce_sum(labels * tf.nn.log_softmax(logits), axis=-1)`',
  )


register_facts('SquaredDifference', held=_mean_of_moments)
register_facts('Softmax', written_out=_softmax)
register_facts('LogSoftmax', written_out=_log_softmax)
register_facts(
  'SoftmaxCrossEntropyWithLogits',
  held=_labels,
  written_out=_cross_entropy,
  written_out_but_for=(1,),
)
register_facts(
  'SparseSoftmaxCrossEntropyWithLogits', written_out=_sparse_cross_entropy
)
register_facts('L2Loss', written_out=_half_sum_of_squares)
register_facts(
  *('FusedBatchNorm', 'FusedBatchNormV2', 'FusedBatchNormV3'),
  written_out=_batch_norm,
)
