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
"""Keeps draws in a file."""

import numpy as np

from tfp_diag.internal.atomic_write import atomic_write

__all__ = ['save_draws']


def save_draws(path, target, parameters, draws):
  """Writes draws to an .npz archive, all of them or nothing.

  The archive holds `parameters` [parameter, draw, chain], `parameter_names`,
  `state_0`, `state_1` ... [draw, chain, ...event], `is_accepted` [draw, chain],
  `scale_0` ... [...event], `step_size`, `num_requested` and `target`. It needs
  no pickle: `numpy.load(path)` reads it.

  Args:
    path: Python `str`.
    target: A `tfp_diag.examples.Target`.
    parameters: Mapping from names to arrays [draw, chain].
    draws: A `Draws`.
  """
  arrays = {
    'parameters': np.stack(list(parameters.values())),
    'parameter_names': np.array(list(parameters)),
    'is_accepted': draws.is_accepted,
    'step_size': np.array(draws.step_size),
    'num_requested': np.array(draws.num_requested),
    'target': np.array(target.name),
    **{f'state_{i}': part for i, part in enumerate(draws.state)},
    **{f'scale_{i}': part for i, part in enumerate(draws.scale)},
  }
  with atomic_write(path) as file:
    np.savez(file, **arrays)
