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
"""Ways to a diagonal that are cheaper than passes: what they have in common."""

from typing import NamedTuple, Protocol

from tfp_diag.diagonal.linear_map import Evaluation, LinearMap


class Call(NamedTuple):
  """A function that was called just now, and is to be differentiated.

  Attributes:
    evaluation: `Evaluation`.
    derivative: `LinearMap` in reverse mode, whose diagonal is asked for.
    xs: List of Tensors, the parts.
    rank: Python int, the number of sample dimensions.
    chunk_size: Python int, how many passes run together.
    order: Python int, how often the function is differentiated: 3 where the
      unmixed third derivatives are asked for, too.
  """

  evaluation: Evaluation
  derivative: LinearMap
  xs: list
  rank: int
  chunk_size: int
  order: int


class Terms(Protocol):
  """A derivative taken apart into terms, so that its diagonal is cheap."""

  @property
  def how(self) -> str:
    """A few words for `str(plan)`, such as 'op by op'."""
    ...

  @property
  def max_order(self) -> int:
    """The highest order of derivatives that `diagonal` can compute.

    1 for a Jacobian, 2 for a Hessian, 3 for unmixed third derivatives, too. A
    higher `call.order` is never passed.
    """
    ...

  @property
  def may_leak(self) -> bool:
    """Whether what is not finite may reach coordinates that have no part in it.

    Where a derivative is infinite, a sum over the ops has zero times it.
    """
    ...

  @property
  def num_passes(self) -> int:
    """How many passes through the function run for a diagonal."""
    ...

  @property
  def note(self) -> str:
    """A sentence for `str(plan)`."""
    ...

  def diagonal(self, call: Call) -> list:
    """The diagonal: list of Tensors shaped as `call.xs`.

    Where `call.order` is 3, the third derivatives follow, shaped as `call.xs`.
    """
    ...
