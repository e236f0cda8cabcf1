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
"""Derivatives of functions that saturate, to the last digit in any precision.

TensorFlow computes the derivative of `tanh` as `1 - tanh^2`. Where that is much
smaller than one, all digits cancel in single precision, and so they do in all
further derivatives. With both tails of the logistic function, s(x) and s(-x),
each of them is a product in which nothing cancels.
"""

import tensorflow as tf

from tfp_diag.sparsity.registry import register_facts


def _tails(x):
  """The logistic function of x and of -x."""
  small = tf.exp(-tf.abs(x))
  large = 1.0 / (1.0 + small)
  small = small * large
  is_positive = x >= 0.0
  return (
    tf.where(is_positive, large, small),
    tf.where(is_positive, small, large),
  )


def _sigmoid(x, order):
  """s' = s t with t(x) = s(-x); t' = -s t."""
  s, t = _tails(x)
  slope = s * t
  return [slope, slope * (t - s), slope * (1.0 - 6.0 * slope)][:order]


def _softplus(x, order):
  """The integral of the logistic function."""
  s, _ = _tails(x)
  return [s, *_sigmoid(x, order - 1)]


def _tanh(x, order):
  """2 s(2 x) - 1."""
  slopes = _sigmoid(2.0 * x, order)
  return [2.0 ** (k + 2) * slope for k, slope in enumerate(slopes)]


register_facts('Sigmoid', slopes=_sigmoid, orders_in_range=3)
register_facts('Softplus', slopes=_softplus, orders_in_range=3)
register_facts('Tanh', slopes=_tanh, orders_in_range=3)
