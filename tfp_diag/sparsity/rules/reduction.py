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
"""Reductions: one output for many inputs."""

import numpy as np

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.registry import register_rule
from tfp_diag.sparsity.structure import Structure


@register_rule('Sum', 'Mean', 'Max', 'Min')
def _linear_reduction(op):
  """Each output depends on the inputs of its slice; no second derivatives.

  The maximum of `[2, 3]` over its last axis is linear almost everywhere; the
  Jacobian has the form of a sum's, `[[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]]`.
  """
  return Structure.linear({0: _slices(op)})


@register_rule('Prod', 'EuclideanNorm')
def _nonlinear_reduction(op):
  """Each output is a curved function of the inputs of its slice."""
  return Structure.nonlinear({0: _slices(op)})


def _slices(op):
  shape = op.inputs[0].shape
  axes = [int(axis) for axis in np.atleast_1d(op.inputs[1].value())]
  kept = list(shape)
  for axis in axes:
    kept[axis] = 1
  rows = int(np.prod(kept, dtype=np.int64))
  segment = np.broadcast_to(np.arange(rows).reshape(kept), shape)
  return Flow.collect(segment, rows)
