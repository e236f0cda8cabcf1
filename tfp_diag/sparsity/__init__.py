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
"""Patterns and colorings: which derivatives can be nonzero."""

from tfp_diag.sparsity.budget import PatternTooDenseError
from tfp_diag.sparsity.coloring import (
  Coloring,
  check_diagonal_coloring,
  color_diagonal,
)
from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.pattern import SparsityPattern
from tfp_diag.sparsity.registry import CannotSay, register_rule
from tfp_diag.sparsity.samples import SampleMixingError
from tfp_diag.sparsity.structure import Structure

__all__ = [
  'CannotSay',
  'Coloring',
  'Flow',
  'PatternTooDenseError',
  'SampleMixingError',
  'SparsityPattern',
  'Structure',
  'check_diagonal_coloring',
  'color_diagonal',
  'hessian_sparsity',
  'jacobian_sparsity',
  'register_rule',
]
