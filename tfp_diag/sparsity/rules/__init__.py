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
"""One rule per op type, by family. Importing this package registers them."""

from tfp_diag.sparsity.rules import (  # noqa: F401 (registered on import)
  bounds,
  constants,
  contraction,
  control_flow,
  convolution,
  counting,
  custom_gradient,
  data_movement,
  elementwise,
  indexing,
  linear_algebra,
  loops,
  normalizers,
  reduction,
  saturation,
  stateful,
  tensor_lists,
)
