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
"""Ops on integers and bools, computed by NumPy, which is faster.

They are mostly the counters of loops. The dtypes of the results are those of
the ops.
"""

import numpy as np

from tfp_diag.sparsity.registry import register_facts

_FUNCTIONS = {
  'Add': np.add,
  'AddV2': np.add,
  'Equal': np.equal,
  'Greater': np.greater,
  'GreaterEqual': np.greater_equal,
  'Less': np.less,
  'LessEqual': np.less_equal,
  'LogicalAnd': np.logical_and,
  'LogicalNot': np.logical_not,
  'LogicalOr': np.logical_or,
  'Maximum': np.maximum,
  'Minimum': np.minimum,
  'Mul': np.multiply,
  'NotEqual': np.not_equal,
  'Sub': np.subtract,
}

for _op_type, _function in _FUNCTIONS.items():
  register_facts(_op_type, on_integers=_function)
