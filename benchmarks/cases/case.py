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
"""One function to differentiate, and what its diagonal must be."""

import dataclasses
from collections.abc import Callable

import numpy as np

__all__ = ['Case']


@dataclasses.dataclass(frozen=True)
class Case:
  """One function, the batch it runs on, and its diagonal in closed form.

  Attributes:
    name: Python str.
    batch: Python int, the number of samples.
    event_shape: Tuple of int.
    fn: Callable `(ops, x, scale)`, for `x` of shape `batch + event_shape` or
      `event_shape`: a log density, or for a 'jacobian' a field of the shape of
      `x`. It uses the operators of Python and the functions of `ops` (see
      `benchmarks.tools.numpy_ops`). `scale` is a scalar, one up to rounding,
      that changes from evaluation to evaluation: derivatives that do not depend
      on `x` are multiplied by it, lest a compiler move them out of the loop.
    diagonal: Callable, a float64 array of shape `[batch] + event_shape` to the
      derivatives that are wanted: the second ones of a log density, or the
      first ones of a field, by each coordinate.
    kind: 'hessian' or 'jacobian'.
    structured: Python bool, whether the diagonal costs fewer passes than there
      are coordinates.
  """

  name: str
  batch: int
  event_shape: tuple
  fn: Callable
  diagonal: Callable
  kind: str = 'hessian'
  structured: bool = True

  @property
  def num_coordinates(self):
    return int(np.prod(self.event_shape))

  def start(self):
    """The same float32 point for every tool."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((self.batch, *self.event_shape))
    return x.astype(np.float32)
