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
"""The diagonal of the Hessian of a quadratic form, once for all samples."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.linear_map import LinearMap
from tfp_diag.diagonal.terms import Call
from tfp_diag.internal import batching


@dataclasses.dataclass(frozen=True, eq=False)
class ConstantHessian:
  """A Hessian that is the same for all samples.

  So a pass can seed each sample with another color. The results of all samples
  together are the diagonal, which is copied to each sample.

  Attributes:
    colors: int32 array, one color per coordinate.
    num_samples: Python int, the number of samples.
  """

  colors: np.ndarray
  num_samples: int

  how = 'shared by the samples'
  max_order = 3
  may_leak = False

  @property
  def num_passes(self) -> int:
    """As `Terms.num_passes`."""
    return math.ceil(sweep.num_colors(self.colors) / self.num_samples)

  @property
  def note(self) -> str:
    """As `Terms.note`."""
    return 'The Hessian is a constant: the samples share the colors.'

  def diagonal(self, call: Call) -> list:
    """As `Terms.diagonal`."""
    xs, rank = call.xs, call.rank
    colors = sweep.Colors.of(self.colors, xs, rank)
    diag = _over_samples(colors, self.num_samples, rank, call.derivative, xs)
    zeros = [tf.zeros_like(x) for x in xs]
    diag = [
      zero
      if d is None
      else batching.with_shape(tf.broadcast_to(d, tf.shape(x)), x.shape)
      for d, x, zero in zip(diag, xs, zeros)
    ]
    return diag + zeros if call.order == 3 else diag


def _over_samples(
  colors: sweep.Colors,
  num_samples: int,
  rank: int,
  derivative: LinearMap,
  xs: Sequence,
) -> list:
  """The diagonal of one sample.

  Args:
    colors: `sweep.Colors`.
    num_samples: Python int.
    rank: Python int, the number of sample dimensions.
    derivative: A `LinearMap` in reverse mode.
    xs: List of Tensors, the parts.

  Returns:
    List of Tensors shaped as one sample of `xs`, with sample dimensions of one;
    None for a part that has no curvature.
  """
  parts = list(range(len(xs)))
  sample = tf.reshape(tf.range(num_samples), tf.shape(xs[0])[:rank])
  axes = list(range(rank))
  total: list = [None] * len(xs)
  for first in range(0, colors.num_colors, num_samples):
    masks, seeds = [], []
    for i, x in enumerate(xs):
      here = first + batching.with_axes(sample, x.shape.rank - rank)
      masks.append(tf.equal(colors.parts[i], here))
      seed = tf.where(masks[i], colors.sign(i, x.dtype), tf.zeros([], x.dtype))
      seeds.append(seed)
    results = derivative.apply(parts, seeds)
    for i, result in enumerate(results):
      if result is not None:
        found = tf.where(
          masks[i], seeds[i] * result, tf.zeros([], result.dtype)
        )
        found = tf.reduce_sum(found, axes, keepdims=True)
        total[i] = found if total[i] is None else total[i] + found
  return total
