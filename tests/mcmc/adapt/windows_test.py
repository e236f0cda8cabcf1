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
"""The windows of an adaptation."""

import numpy as np
import pytest

from tfp_diag.mcmc.adapt.windows import adaptation_windows


@pytest.mark.parametrize(
  'num_steps', [1, 2, 9, 10, 29, 30, 31, 100, 450, 10**6]
)
def test_windows_double(num_steps):
  ends = adaptation_windows(num_steps)
  lengths = np.diff([0, *ends])
  assert ends[-1] == num_steps
  assert np.all(lengths >= min(num_steps, 10))
  assert lengths[0] < 30
  np.testing.assert_allclose(lengths[1:], 2 * lengths[:-1], atol=2)


def test_no_steps_have_no_windows():
  assert adaptation_windows(0) == []
