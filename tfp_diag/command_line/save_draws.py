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


def save_draws(path, target, parameters, found):
  """Writes draws to an .npz archive, all of them or nothing.

  The archive holds `parameters` [parameter, draw, chain], `parameter_names`,
  `state_0`, `state_1` ... [draw, chain, ...event], `is_accepted` [draw, chain],
  `scale_factor` (of the preconditioner, over all coordinates of the state:
  standard deviations [n] or a matrix [n, n]; for one of low rank, with
  `scale_directions` and `scale_excess`), `step_size`, `integration_time`,
  `damping` and `target`. It needs no pickle: `numpy.load(path)` reads it.

  Args:
    path: Python `str`.
    target: A `tfp_diag.examples.Target`.
    parameters: Mapping from names to arrays [draw, chain].
    found: The `PosteriorDraws`.
  """
  arrays = {
    'parameters': np.stack(list(parameters.values())),
    'parameter_names': np.array(list(parameters)),
    'is_accepted': found.trace['is_accepted'],
    'step_size': np.array(found.warm_up.step_size),
    'integration_time': np.array(found.warm_up.integration_time),
    'damping': np.array(found.warm_up.damping),
    'target': np.array(target.name),
    **{f'scale_{k}': v for k, v in found.warm_up.scale.arrays().items()},
    **{f'state_{i}': np.asarray(part) for i, part in enumerate(found.draws)},
  }
  with atomic_write(path) as file:
    np.savez(file, **arrays)
