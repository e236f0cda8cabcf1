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
from typing import TYPE_CHECKING, Any

from tfp_diag.internal.quiet_start import quiet_start

# Before anything imports TensorFlow, whose libraries speak while they load.
quiet_start()

# isort: split
from tfp_diag import sparsity  # noqa: E402
from tfp_diag.diag_gauss_newton import (  # noqa: E402
  GaussNewtonDiagonal,
  diag_gauss_newton,
  plan_diag_gauss_newton,
)
from tfp_diag.diag_hessian import diag_hessian  # noqa: E402
from tfp_diag.diag_hessian_over_dataset import (  # noqa: E402
  DatasetDiagonal,
  diag_hessian_over_dataset,
)
from tfp_diag.diag_jacobian import diag_jacobian  # noqa: E402
from tfp_diag.diagonal.graphs import clear_cache  # noqa: E402
from tfp_diag.hessian import hessian  # noqa: E402
from tfp_diag.jacobian import jacobian  # noqa: E402
from tfp_diag.lazy_hessian import LazyHessian  # noqa: E402
from tfp_diag.lazy_jacobian import LazyJacobian  # noqa: E402
from tfp_diag.plan import Plan, load_plan  # noqa: E402
from tfp_diag.plan_diag_hessian import plan_diag_hessian  # noqa: E402
from tfp_diag.plan_diag_jacobian import plan_diag_jacobian  # noqa: E402
from tfp_diag.stochastic_diag_hessian import stochastic_diag_hessian  # noqa: E402
from tfp_diag.stochastic_diag_jacobian import stochastic_diag_jacobian  # noqa: E402
from tfp_diag.stochastic_diagonal import StochasticDiagonal  # noqa: E402
from tfp_diag.trace_jacobian_exact import trace_jacobian_exact  # noqa: E402
from tfp_diag.trace_jacobian_hutchinson import trace_jacobian_hutchinson  # noqa: E402
from tfp_diag.unmixed_derivatives import (  # noqa: E402
  UnmixedDerivatives,
  unmixed_derivatives,
)
from tfp_diag.version import __version__  # noqa: E402

if TYPE_CHECKING:
  from tfp_diag import examples, mcmc

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

# These need TensorFlow Probability, whose import takes seconds.
_LAZY_SUBPACKAGES = ('examples', 'mcmc')


def __getattr__(name: str) -> Any:
  if name in _LAZY_SUBPACKAGES:
    return importlib.import_module(f'tfp_diag.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted(__all__)
