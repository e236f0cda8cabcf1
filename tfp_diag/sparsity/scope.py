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
"""One call of a graph: what the walker knows of its tensors."""

from typing import Any

from tfp_diag.sparsity.program import Program
from tfp_diag.sparsity.value import ListSummary, Optional, TensorList, Value


class Scope:
  """One call of a graph: the values of its tensors by name."""

  def __init__(self, program: Program, values: dict, caller: Any) -> None:
    self.program = program
    self.values = values
    self.caller = caller

  def copy(self) -> 'Scope':
    """A copy in which more can be walked without a change of this scope."""
    return Scope(self.program, dict(self.values), self.caller)

  def without_dependence(self) -> 'Scope':
    """A copy in which nothing depends on xs; constants stay constants."""
    return Scope(
      self.program,
      {name: _independent_copy(value) for name, value in self.values.items()},
      self.caller and self.caller.without_dependence(),
    )


def _independent_copy(value: Any) -> Any:
  if isinstance(value, ListSummary):
    item = value.item and _independent_copy(value.item)
    return ListSummary(value.length, item)
  if isinstance(value, Optional):
    return Optional(map(_independent_copy, value.items))
  if isinstance(value, TensorList):
    return TensorList(
      (_independent_copy(item[0]), item[1])
      if isinstance(item, tuple)
      else item and _independent_copy(item)
      for item in value.items
    )
  return Value(value.shape, value.dtype) if value.depends else value
