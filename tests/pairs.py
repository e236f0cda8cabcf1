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
"""Few cases in which each two values of two arguments meet.

Most faults need no more than two things at once (Kuhn, Wallace and Gallo 2004,
Software fault interactions); all combinations take many times as long.
"""

import itertools

import numpy as np
import pytest

__all__ = ['covering_array', 'parametrize_pairs']

# Of cases that hold a pair that is missing, as many are compared.
_NUM_CANDIDATES = 20


def covering_array(**factors):
  """Tuples of a value for each factor: each two of two factors are in one."""
  sizes = [len(values) for values in factors.values()]
  missing = {
    (a, u, b, v)
    for a, b in itertools.combinations(range(len(sizes)), 2)
    for u in range(sizes[a])
    for v in range(sizes[b])
  }

  def met(case):
    return missing.intersection(
      (a, case[a], b, case[b])
      for a, b in itertools.combinations(range(len(sizes)), 2)
    )

  rng = np.random.default_rng(0)
  cases = []
  while missing:
    candidates = []
    for a, u, b, v in sorted(missing)[:_NUM_CANDIDATES]:
      case = [int(rng.integers(size)) for size in sizes]
      case[a], case[b] = u, v
      candidates.append(case)
    best = max(candidates, key=lambda case: len(met(case)))
    missing -= met(best)
    cases.append(best)
  values = [list(v) for v in factors.values()]
  return [tuple(v[i] for v, i in zip(values, case)) for case in sorted(cases)]


def parametrize_pairs(**factors):
  """As `pytest.mark.parametrize` for each factor, but for pairs alone."""
  return pytest.mark.parametrize(list(factors), covering_array(**factors))
