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
"""The prices are those of the index."""

import numpy as np

from tfp_diag.examples import sp500


def test_closing_prices():
  prices = sp500.closing_prices()
  assert prices.shape == (501,) and prices.dtype == np.float64
  # The record of 19 February 2020, and the low of 23 March, 23 trading days
  # later; the falls of 12 and 16 March.
  peak, trough = np.argmax(prices[:450]), np.argmin(prices)
  assert prices[peak] == 3386.15 and prices[trough] == 2237.40
  assert trough - peak == 23
  changes = np.diff(prices) / prices[:-1]
  np.testing.assert_allclose(changes[trough - 8], -0.0951, atol=5e-5)
  np.testing.assert_allclose(np.min(changes), -0.1198, atol=5e-5)
