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
"""Which cases are measured, with which tools, at which sizes."""

from benchmarks.tools import GRADIENT, TFP_DIAG, TOOLS

__all__ = [
  'CASES',
  'QUICK_CASES',
  'QUICK_SERIES',
  'QUICK_STRUCTURES',
  'QUICK_TARGETS',
  'SERIES',
  'SERIES_TOOLS',
  'STRUCTURED',
  'STRUCTURES',
  'TARGETS',
]

# Families of tools that need no pass per coordinate.
STRUCTURED = ('unit', 'own', 'choice', 'asdex')

# Every one of these meets every tool.
CASES = [
  ['gaussian_3d', [1000]],
  ['gaussian_3d', [100_000]],
  ['gaussian', [100, 100]],
  ['gaussian', [1000, 100]],
  ['logistic_regression', [25, 100, 1000]],
  ['log_normalizer', [500, 32]],
  ['softmax', [200, 64]],
  ['mlp_field', [64, 64, 64]],
  ['network_weights', [4, 8, 64, 16]],
  ['deep_network_weights', [8, 16, 16, 128, 16]],
  ['deep_network_weights', [8, 16, 16, 128, 4, 10]],
  ['classifier_weights', [8, 16, 128, 16]],
  ['softmax_regression', [20, 10, 500, 16]],
  ['horseshoe', [25, 500, 16]],
  ['negative_binomial', [20, 500, 16]],
  ['ordinal', [20, 6, 500, 16]],
  ['cox', [20, 500, 16]],
  ['mixture', [5, 500, 16]],
  ['latent_gp', [100, 16]],
  ['elementwise', [1_000_000]],
  ['chain', [100_000]],
  ['arrowhead', [1000, 16]],
  ['stochastic_volatility', [5000, 4]],
  ['state_space', [200, 4, 8]],
  ['hierarchical', [200, 1000, 32]],
  ['poisson_mixed', [5, 50, 500, 16]],
  ['binomial_mixed', [5, 50, 500, 16]],
  ['item_response', [400, 100, 10_000, 8]],
  ['item_response_2pl', [100, 50, 2000, 8]],
  ['matrix_factorization', [60, 40, 3, 1000, 8]],
  ['phi4', [64, 4]],
  ['brusselator', [32, 4]],
  ['forces', [40, 16]],
  ['score', [32, 16]],
]

QUICK_CASES = [
  ['gaussian_3d', [100]],
  ['chain', [1000]],
  ['hierarchical', [20, 100, 4]],
  ['classifier_weights', [2, 4, 16, 4, 3]],
]

# What grows, and the cases as it does.
SERIES = {
  'chain': [['chain', [10**k]] for k in range(1, 7)],
  'lattice': [['phi4', [size, 1]] for size in (4, 10, 32, 100, 316, 1000)],
  'hierarchical': [
    ['hierarchical', [10**k, 5 * 10**k, 1]] for k in range(1, 7)
  ],
  'dense': [
    ['logistic_regression', [n, 1, 1000]] for n in (10, 32, 100, 316, 1000)
  ],
  'batch': [['gaussian_3d', [10**k]] for k in range(6)],
  'network_rows': [
    ['classifier_weights', [8, 16, rows, 1]] for rows in (10, 100, 1000, 10_000)
  ],
  'network_width': [
    ['classifier_weights', [8, hidden, 128, 1]] for hidden in (4, 16, 64, 256)
  ],
  'network_batch': [
    ['classifier_weights', [4, 8, 64, 10**k]] for k in range(4)
  ],
}

QUICK_SERIES = {
  'chain': [['chain', [n]] for n in (10, 100, 1000)],
  'dense': [['logistic_regression', [n, 1, 100]] for n in (10, 30)],
}

# Detection and coloring, tfp_diag's and asdex's.
STRUCTURES = {
  'chain': SERIES['chain'],
  'lattice': SERIES['lattice'],
  'hierarchical': SERIES['hierarchical'],
}

QUICK_STRUCTURES = {'chain': QUICK_SERIES['chain']}

TARGETS = [['standard_normal', [d, 64]] for d in (1, 10, 100, 1000, 10_000)] + [
  ['standard_normal', [100, chains]] for chains in (1, 8, 512, 4096)
]

QUICK_TARGETS = [['standard_normal', [d, 8]] for d in (3, 30)]

SERIES_TOOLS = [
  GRADIENT,
  TFP_DIAG,
  # It reads the structure once: of a million coordinates it is ready sooner.
  'tfp_diag, no plan',
  'TFP diag_jacobian, XLA',
  'batch_jacobian, XLA',
  'JAX vmap(hessian)',
  'JAX map(jvp(grad))',
  'asdex',
  'torch vmap(hessian)',
]

assert set(SERIES_TOOLS) <= set(TOOLS)
