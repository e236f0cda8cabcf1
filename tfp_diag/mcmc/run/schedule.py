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
"""Which steps of a run are kept, and where its blocks end."""

import dataclasses
import math

from tfp_diag.internal.arguments import as_count

# Of the draws, from one question whether they are enough to the next.
_COUNTED = 'how many steps or states'
_GROWTH = 1.05
# What an int32 can count.
_MOST_STEPS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Schedule:
  """The steps of a run, counted from 0 at its very first.

  All that happens is a function of this count, and of nothing that happened
  before in the same process: a run that is resumed cannot tell.

  Attributes:
    num_results: How many states are kept.
    num_burnin_steps: How many steps are made before the first that is kept can
      be.
    num_steps_between_results: How many states are left out between two that
      are kept.
    block_size: Blocks end where the count is a multiple of this, and at the
      end.
  """

  num_results: int
  num_burnin_steps: int
  num_steps_between_results: int
  block_size: int

  def __post_init__(self):
    for field in dataclasses.fields(self):
      least = 1 if field.name == 'block_size' else 0
      value = as_count(field.name, getattr(self, field.name), least, _COUNTED)
      object.__setattr__(self, field.name, value)
    if self.num_steps > _MOST_STEPS:
      raise ValueError(
        f'`num_results`, `num_burnin_steps` and `num_steps_between_results` '
        f'ask for {self.num_steps:,} steps, but steps are counted to '
        f'{_MOST_STEPS:,}. Make several runs with different seeds.'
      )

  @property
  def stride(self):
    """How many steps one result takes."""
    return self.num_steps_between_results + 1

  @property
  def num_steps(self):
    """How many steps there are in all."""
    if not self.num_results:
      return self.num_burnin_steps
    return self.num_burnin_steps + 1 + (self.num_results - 1) * self.stride

  @property
  def is_one_block(self):
    """Whether there are draws, all of them of one block."""
    return 0 < self.num_steps <= self.block_size and self.num_results > 0

  @property
  def rows_per_block(self):
    """How many rows the steps of a block can write to.

    Each step writes to the row of the next result, so that the last of them
    stays. There are as many for all strides, so that one graph serves them.
    """
    # The steps of a burn-in alone write to a row as well.
    return max(1, min(self.block_size, self.num_steps, self.num_results))

  def num_rows(self, step):
    """How many results the first `step` steps make."""
    # Rounds up.
    return max(0, -((self.num_burnin_steps - step) // self.stride))

  def block_end(self, step):
    """Where the block that `step` is in ends."""
    end = (step // self.block_size + 1) * self.block_size
    return min(end, self.num_steps)

  def is_time_to_judge(self, step):
    """Whether `stop_when` is asked after `step` steps.

    At the end of full blocks only, which all runs with this schedule have in
    common, and only when the draws have become some more: a judge reads all of
    them, and doing so after each block would take longer than the run.
    """
    if step == 0 or step % self.block_size:
      return False
    now = _power(self.num_rows(step))
    return now > _power(self.num_rows(step - self.block_size))


def _power(num_rows):
  """The largest power of the growth factor below a number."""
  return math.floor(math.log(num_rows, _GROWTH)) if num_rows else -1
