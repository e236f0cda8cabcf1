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
"""What a caller asks for."""

from typing import Any, Literal, NamedTuple

from tfp_diag.diagonal import sweep
from tfp_diag.internal import arguments
from tfp_diag.sparsity.pattern import SparsityPattern

Mode = Literal['auto', 'forward', 'reverse']
Schedule = sweep.Schedule


class Request(NamedTuple):
  """What a caller asks for.

  Attributes:
    mode: `Mode`.
    schedule: `Schedule`.
    chunk_size: Python int, how many passes run together; None: as many as fit
      into `memory_limit`.
    memory_limit: Number of bytes, or None.
    plan: `Plan` to follow, or None.
    validate: Python bool, whether to check at run time.
    pattern: `SparsityPattern` that the caller knows to hold, or None.
    is_asked: Whether the caller asked for the structure itself, and is to be
      told what stands in its way.
    only_passes: Whether the derivative may not be taken apart.
    is_dense: Whether a pass runs for each coordinate, whatever can be seen.
  """

  mode: Mode = 'auto'
  schedule: Schedule = 'auto'
  chunk_size: int | None = 10
  memory_limit: int | None = None
  plan: Any = None
  validate: bool = False
  pattern: SparsityPattern | None = None
  is_asked: bool = False
  only_passes: bool = False
  is_dense: bool = False

  @classmethod
  def of_call(
    cls,
    mode: Mode,
    schedule: Schedule,
    parallel_iterations: Any,
    validate_args: Any,
    plan: Any,
  ) -> 'Request':
    """What a call for a diagonal asks for, after checks of its arguments."""
    arguments.check_choice('schedule', schedule, sweep.SCHEDULES)
    chunk_size = arguments.check_chunk(
      'parallel_iterations', parallel_iterations
    )
    arguments.check_flag('validate_args', validate_args)
    return cls(mode, schedule, chunk_size, None, plan, bool(validate_args))
