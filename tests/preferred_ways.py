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

"""Ways to a diagonal that a test wants to see, though others may be cheaper."""

from tfp_diag.diagonal import proposals


def prefer_sweeps(monkeypatch):
  """Squared sweeps, whatever they cost."""
  found = proposals.by_sweeps
  monkeypatch.setattr(proposals, '_cost_of_sweep', lambda one: 0.0)
  monkeypatch.setattr(
    proposals,
    'by_sweeps',
    lambda *args: [p._replace(cost=-1.0) for p in found(*args)],
  )


def without_sweeps(monkeypatch):
  """No squared sweeps: for tests of the other ways, which they outdo."""
  monkeypatch.setattr(proposals, 'by_sweeps', lambda *args: [])
