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
"""When a scale is estimated anew while a chain adapts."""

import math

import numpy as np

from tfp_diag.internal import arguments

# Beyond so many coordinates a matrix costs more than the gradients of most
# models.
MOST_FOR_MATRIX = 512
# Of the steps that adapt; the rest is for the step size of the last scale.
SHARE_FOR_SCALE = 0.75
_SHORTEST = 10


def adaptation_windows(num_adaptation_steps):
  """Windows that double, so that the last one is half of all steps or more.

  Each window forgets what the one before it saw: the early draws are those of
  chains that have not arrived, under a scale that was wrong.

  Args:
    num_adaptation_steps: Python `int`, as a kernel was given it.

  Returns:
    List of Python `int`s: the steps after which a window ends. The first is
    about 10 or more, where there are as many; the last is
    `num_adaptation_steps`.

  Raises:
    ValueError: if it is negative or not known in Python.
  """
  num_steps = arguments.as_count(
    'num_adaptation_steps',
    num_adaptation_steps,
    0,
    'for how many steps there is adaptation, known when the kernel is made',
  )
  if not num_steps:
    return []
  num_windows = max(1, int(math.log2(num_steps / _SHORTEST + 1)))
  fractions = (2.0 ** np.arange(1, num_windows + 1) - 1) / (2**num_windows - 1)
  return [round(num_steps * f) for f in fractions]
