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
"""Indices that count the samples: 0, 1, 2, ..., for any number of samples.

Other values that are computed from the number of samples count as unknown. Of
these indices only the number is needed, and sizes count as known.
"""

import numpy as np

from tfp_diag.sparsity.registry import CannotSay, register_facts


def _range(inputs):
  """`range(n)`."""
  start, _, step = inputs
  return _is(start, 0) and _is(step, 1)


def _chosen(inputs):
  """`where(n > 1, range(n), 0)`: how `tf.vectorized_map` picks its elements."""
  flag, count, zero = inputs
  if not count.is_count or not _is(zero, 0):
    return False
  if flag.source is None or flag.source[0].type != 'Greater':
    return False
  number, one = flag.source[1]
  if not _is(one, 1) or not number.is_known or not count.is_known:
    return False
  size = count.value(even_varying=True).size
  return np.array_equal(number.value(even_varying=True), size)


def _is(value, number):
  """Whether a value is this number."""
  try:
    return np.array_equal(value.value(), number)
  except CannotSay:
    return False


register_facts('Range', counts=_range)
register_facts('SelectV2', counts=_chosen)
