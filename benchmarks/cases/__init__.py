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
"""What is differentiated: functions with a known diagonal, for every tool."""

from benchmarks.cases.case import Case
from benchmarks.cases.dense import (
  gaussian,
  gaussian_3d,
  log_normalizer,
  logistic_regression,
  network_weights,
)
from benchmarks.cases.fields import brusselator, mlp_field, softmax
from benchmarks.cases.structured import (
  arrowhead,
  chain,
  elementwise,
  hierarchical,
  item_response,
  phi4,
  state_space,
  stochastic_volatility,
)
from benchmarks.cases.targets import standard_normal

__all__ = [
  'Case',
  'arrowhead',
  'brusselator',
  'chain',
  'elementwise',
  'gaussian',
  'gaussian_3d',
  'hierarchical',
  'item_response',
  'log_normalizer',
  'logistic_regression',
  'make_case',
  'mlp_field',
  'network_weights',
  'phi4',
  'softmax',
  'standard_normal',
  'state_space',
  'stochastic_volatility',
]


def make_case(description):
  """A case from `[name, arguments]`."""
  name, arguments = description
  if name not in __all__ or name == 'make_case':
    raise ValueError(f'{name!r} is no case; there are {__all__[1:]}.')
  return globals()[name](*arguments)
