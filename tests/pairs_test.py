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
"""Each two values of two factors are in one case, and there are few cases."""

import itertools

from tests.pairs import covering_array


def test_each_two_values_meet():
  factors = {'a': range(3), 'b': 'xy', 'c': (None, 1.5, 'z'), 'd': range(4)}
  cases = covering_array(**factors)
  for (i, first), (j, second) in itertools.combinations(
    enumerate(factors.values()), 2
  ):
    met = {(case[i], case[j]) for case in cases}
    assert met == {*itertools.product(first, second)}
  # All combinations are 72, and those of the two largest factors 12.
  assert 12 <= len(cases) <= 16
  assert cases == covering_array(**factors)
