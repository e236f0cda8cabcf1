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
from benchmarks.cases.fields import (
  brusselator,
  forces,
  mlp_field,
  score,
  softmax,
)
from benchmarks.cases.models import (
  classifier_weights,
  deep_network_weights,
  item_response_2pl,
  latent_gp,
  matrix_factorization,
  mixture,
)
from benchmarks.cases.regressions import (
  binomial_mixed,
  cox,
  horseshoe,
  negative_binomial,
  ordinal,
  poisson_mixed,
  softmax_regression,
)
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
  'binomial_mixed',
  'brusselator',
  'chain',
  'classifier_weights',
  'cox',
  'deep_network_weights',
  'elementwise',
  'forces',
  'gaussian',
  'gaussian_3d',
  'hierarchical',
  'horseshoe',
  'item_response',
  'item_response_2pl',
  'latent_gp',
  'log_normalizer',
  'logistic_regression',
  'make_case',
  'matrix_factorization',
  'mixture',
  'mlp_field',
  'negative_binomial',
  'network_weights',
  'ordinal',
  'phi4',
  'poisson_mixed',
  'score',
  'softmax',
  'softmax_regression',
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
