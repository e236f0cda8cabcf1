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
"""Log densities, their scores, and whether a plan takes one for a gradient."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

tfd = tfp.distributions
N = 6
RNG = np.random.default_rng(4)
DATA = RNG.standard_normal((30, N))
LABELS = RNG.integers(0, 2, 30).astype(float)
WEIGHTS = RNG.standard_normal((N, 8))
CENTERS = RNG.standard_normal((3, N))
SQUARE = RNG.standard_normal((N, N))
FIRST, SECOND = np.triu_indices(N, 1)


def constant(value, like):
  return tf.constant(value, like.dtype)


def regression(x):
  logits = tf.linalg.matvec(constant(DATA, x), x)
  fit = constant(LABELS, x) * logits - tf.nn.softplus(logits)
  return tf.reduce_sum(fit, -1) - 0.5 * tf.reduce_sum(x**2, -1)


def pairs(x):
  d = tf.gather(x, FIRST, axis=-1) - tf.gather(x, SECOND, axis=-1)
  return tf.reduce_sum(tf.exp(-(d**2)), -1)


def network(x):
  return tf.reduce_sum(tf.tanh(x @ constant(WEIGHTS, x)) ** 2, -1)


def mixture(x):
  return tfd.MixtureSameFamily(
    tfd.Categorical(logits=tf.zeros(3, x.dtype)),
    tfd.MultivariateNormalDiag(constant(CENTERS, x), tf.ones(N, x.dtype)),
  ).log_prob(x)


def layer(x):
  return tf.reduce_sum(tf.tanh(x @ constant(SQUARE, x)), -1)


def state(*shape, dtype=tf.float64):
  rng = np.random.default_rng(len(shape) + 1)
  return tf.constant(rng.standard_normal(shape), dtype)


def is_as_hessian(plan):
  return 'as a Hessian' in str(plan)
