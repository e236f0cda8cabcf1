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
"""What `--help` says of the targets, before TensorFlow is imported."""

# The names and descriptions of `tfp_diag.examples.targets.TARGETS`.
LISTED_TARGETS = {
  'eight_schools': 'Eight schools (Rubin 1981), non-centered: 10 coordinates.',
  'eight_schools_centered': (
    'Eight schools, centered: the same posterior with a funnel.'
  ),
  'funnel': "Neal's funnel (2003): 10 coordinates.",
  'banana': 'A normal bent along a parabola (Haario et al. 1999): 2-D.',
  'gaussian_3d': 'The 3-D normal of variances 1, 2, 3 and covariances 1/4.',
  'gaussian_ill_conditioned': (
    'Ten independent normals with variances from 0.01 to 100.'
  ),
  'gaussian_ar1': 'A stationary AR(1) of 20 steps with coefficient 0.9.',
}
