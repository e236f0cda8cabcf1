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
"""Exact diagonals of Jacobians and Hessians in TensorFlow."""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from tfp_diag.version import __version__

if TYPE_CHECKING:
  from tfp_diag import examples, mcmc, sparsity
  from tfp_diag.diag_gauss_newton import (
    GaussNewtonDiagonal,
    diag_gauss_newton,
    plan_diag_gauss_newton,
  )
  from tfp_diag.diag_hessian import diag_hessian
  from tfp_diag.diag_hessian_over_dataset import (
    DatasetDiagonal,
    diag_hessian_over_dataset,
  )
  from tfp_diag.diag_jacobian import diag_jacobian
  from tfp_diag.diagonal.graphs import clear_cache
  from tfp_diag.hessian import hessian
  from tfp_diag.jacobian import jacobian
  from tfp_diag.lazy_hessian import LazyHessian
  from tfp_diag.lazy_jacobian import LazyJacobian
  from tfp_diag.plan import Plan, load_plan
  from tfp_diag.plan_diag_hessian import plan_diag_hessian
  from tfp_diag.plan_diag_jacobian import plan_diag_jacobian
  from tfp_diag.stochastic_diag_hessian import stochastic_diag_hessian
  from tfp_diag.stochastic_diag_jacobian import stochastic_diag_jacobian
  from tfp_diag.stochastic_diagonal import StochasticDiagonal
  from tfp_diag.trace_jacobian_exact import trace_jacobian_exact
  from tfp_diag.trace_jacobian_hutchinson import trace_jacobian_hutchinson
  from tfp_diag.unmixed_derivatives import (
    UnmixedDerivatives,
    unmixed_derivatives,
  )

__all__ = [
  'DatasetDiagonal',
  'GaussNewtonDiagonal',
  'LazyHessian',
  'LazyJacobian',
  'Plan',
  'StochasticDiagonal',
  'UnmixedDerivatives',
  '__version__',
  'clear_cache',
  'diag_gauss_newton',
  'diag_hessian',
  'diag_hessian_over_dataset',
  'diag_jacobian',
  'examples',
  'hessian',
  'jacobian',
  'load_plan',
  'mcmc',
  'plan_diag_gauss_newton',
  'plan_diag_hessian',
  'plan_diag_jacobian',
  'sparsity',
  'stochastic_diag_hessian',
  'stochastic_diag_jacobian',
  'trace_jacobian_exact',
  'trace_jacobian_hutchinson',
  'unmixed_derivatives',
]

# Imported when they are first asked for: `python -m tfp_diag --help` needs no
# TensorFlow, whose import takes seconds.
_SUBPACKAGES = ('examples', 'mcmc', 'sparsity')
# The module of each name; any other one is in the module of its own name.
_MODULES = {
  'DatasetDiagonal': 'diag_hessian_over_dataset',
  'GaussNewtonDiagonal': 'diag_gauss_newton',
  'LazyHessian': 'lazy_hessian',
  'LazyJacobian': 'lazy_jacobian',
  'Plan': 'plan',
  'StochasticDiagonal': 'stochastic_diagonal',
  'UnmixedDerivatives': 'unmixed_derivatives',
  'clear_cache': 'diagonal.graphs',
  'load_plan': 'plan',
  'plan_diag_gauss_newton': 'diag_gauss_newton',
}


class _Package(types.ModuleType):
  """A package in which a function comes before the module of its name."""

  def __setattr__(self, name: str, value: Any) -> None:
    # What the import of a submodule does last, whoever asks for it.
    if isinstance(value, types.ModuleType) and name in __all__:
      value = getattr(value, name, value)
    super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
  if name not in __all__:
    # Python adds which name may be meant.
    raise AttributeError(
      f'module {__name__!r} has no attribute {name!r}',
      name=name,
      obj=sys.modules[__name__],
    )
  module = importlib.import_module(f'{__name__}.{_MODULES.get(name, name)}')
  value = module if name in _SUBPACKAGES else getattr(module, name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted(__all__)
