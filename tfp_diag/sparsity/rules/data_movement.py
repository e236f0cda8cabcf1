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
"""Ops that move elements without changing them."""

import numpy as np

from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.registry import CannotSay, register_rule
from tfp_diag.sparsity.structure import Arrow, Structure

# Which inputs hold the elements that are moved; the others say where to.
_DATA_INPUTS = {
  'BroadcastTo': [0],
  'ConcatV2': slice(0, -1),
  'ExpandDims': [0],
  'GatherNd': [0],
  'GatherV2': [0],
  'Pack': slice(None),
  'Pad': [0],
  'Reshape': [0],
  'Reverse': [0],
  'ReverseV2': [0],
  'Roll': [0],
  'Slice': [0],
  'Split': [1],
  'SplitV': [0],
  'Squeeze': [0],
  'StridedSlice': [0],
  'Tile': [0],
  'Transpose': [0],
  'Unpack': [0],
}


@register_rule(*_DATA_INPUTS)
def _movement(op):
  """Runs the op on the numbers of the places, and reads off what came where.

  `Transpose` of `[2, 3]` sends the places 1 to 6 to 1, 4, 2, 5, 3, 6; zero
  stands for an element that comes from nowhere, as in padding.
  """
  data = (
    range(len(op.inputs))[_DATA_INPUTS[op.type]]
    if isinstance(_DATA_INPUTS[op.type], slice)
    else _DATA_INPUTS[op.type]
  )
  feeds = [None] * len(op.inputs)
  start = 1
  for k, value in enumerate(op.inputs):
    if k in data:
      places = np.arange(start, start + value.size, dtype=np.int64)
      feeds[k] = places.reshape(value.shape)
      start += value.size
    elif value.depends:
      raise CannotSay('where the elements go depends on xs')
    else:
      feeds[k] = value.value()
  data = tuple(data)
  arrows = tuple(
    Arrow(k, data, Flow.gather(moved.reshape(-1) - 1, start - 1))
    for k, moved in enumerate(op.run(feeds))
  )
  return Structure(arrows)
