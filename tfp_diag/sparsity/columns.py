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
"""Matrices of indices, column by column.

The place of a number for each sample is often made of the number of the sample
and of something else: `tf.stack([tf.range(size), labels], axis=1)`. Where the
number of samples is open, such a matrix is not known, but its columns are.
"""

import numpy as np

from tfp_diag.sparsity.registry import facts
from tfp_diag.sparsity.value import Value


def columns_of(value: Value) -> list[Value] | None:
  """The columns that a matrix is put together of, for any number of rows.

  Args:
    value: `Value`.

  Returns:
    List of `Value`s, vectors or matrices of one column; None if not seen.
  """
  if value.source is None or value.shape is None or len(value.shape) != 2:
    return None
  instruction, inputs, _ = value.source
  find = facts(instruction.type).columns
  return None if find is None else find(instruction, inputs, value.shape)


def ends_for_any_number(value: Value) -> tuple[np.ndarray, np.ndarray]:
  """As `Value.bounds`, also for one number throughout, however often."""
  if value.varies is not None and value.is_uniform and value.size:
    number = value.value(even_varying=True).flat[0]
    return np.array(number, np.float64), np.array(number, np.float64)
  return value.bounds()
