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
"""What several targets are made of: starts, and the density of a normal."""

import numpy as np
import tensorflow as tf


def start(num_dims, num_chains, seed, dtype=tf.float32):
  """Uniform between -2 and 2: a Tensor of shape [chains, dimensions]."""
  return tf.random.stateless_uniform(
    [num_chains, num_dims], seed, -2.0, 2.0, dtype
  )


def start_of_parts(event_shapes, num_chains, seed, dtype=tf.float32):
  """As `start`, for a state of several parts: a list of Tensors."""
  seeds = tf.random.split(seed, num=len(event_shapes))
  return [
    tf.random.stateless_uniform(
      [num_chains, *shape], seeds[i], -2.0, 2.0, dtype
    )
    for i, shape in enumerate(event_shapes)
  ]


def normal_pdf(mean, sd, values):
  """The density of a normal distribution, as a float64 array."""
  z = (np.asarray(values, np.float64) - mean) / sd
  return np.exp(-0.5 * z**2) / (sd * np.sqrt(2.0 * np.pi))
