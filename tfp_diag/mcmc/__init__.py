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
"""Markov chain Monte Carlo with preconditioned Langevin dynamics."""

from tfp_diag.mcmc.adapt.diagonal_preconditioner_adaptation import (
  DiagonalPreconditionerAdaptation,
  DiagonalPreconditionerAdaptationResults,
)
from tfp_diag.mcmc.adapt.fisher_adaptive_mala import (
  FisherAdaptiveMALA,
  FisherAdaptiveMALAResults,
)
from tfp_diag.mcmc.adapt.fisher_divergence_mala import (
  FisherDivergenceMALA,
  FisherDivergenceMALAResults,
)
from tfp_diag.mcmc.diagnose.ess import ess
from tfp_diag.mcmc.diagnose.nested_rhat import nested_rhat
from tfp_diag.mcmc.diagnose.rhat import rhat
from tfp_diag.mcmc.diagnose.summarize import summarize
from tfp_diag.mcmc.diagnose.summary import Summary
from tfp_diag.mcmc.diagnose.to_arviz import to_arviz
from tfp_diag.mcmc.kernels.langevin_terms import LangevinTerms
from tfp_diag.mcmc.kernels.langevin_trajectories import (
  MetropolisAdjustedLangevinTrajectories,
  MetropolisAdjustedLangevinTrajectoriesResults,
)
from tfp_diag.mcmc.kernels.local_hessian_preconditioner import (
  LocalHessianPreconditioner,
)
from tfp_diag.mcmc.kernels.preconditioned_mala import (
  PreconditionedMALA,
  PreconditionedMALAResults,
)
from tfp_diag.mcmc.kernels.uncalibrated_preconditioned_langevin import (
  UncalibratedPreconditionedLangevin,
  UncalibratedPreconditionedLangevinResults,
)
from tfp_diag.mcmc.run.load_draws import LoadedDraws, load_draws
from tfp_diag.mcmc.run.sample import SampleResults, sample
from tfp_diag.mcmc.run.sample_posterior import (
  PosteriorDraws,
  sample_posterior,
)
from tfp_diag.mcmc.run.stop_when import StopWhen
from tfp_diag.mcmc.run.warm_up import WarmUp, Window
from tfp_diag.mcmc.run.windowed_adaptive_mala import (
  DrawsAndTrace,
  windowed_adaptive_mala,
)

__all__ = [
  'DiagonalPreconditionerAdaptation',
  'DiagonalPreconditionerAdaptationResults',
  'DrawsAndTrace',
  'FisherAdaptiveMALA',
  'FisherAdaptiveMALAResults',
  'FisherDivergenceMALA',
  'FisherDivergenceMALAResults',
  'LangevinTerms',
  'LoadedDraws',
  'LocalHessianPreconditioner',
  'MetropolisAdjustedLangevinTrajectories',
  'MetropolisAdjustedLangevinTrajectoriesResults',
  'PosteriorDraws',
  'PreconditionedMALA',
  'PreconditionedMALAResults',
  'SampleResults',
  'StopWhen',
  'Summary',
  'UncalibratedPreconditionedLangevin',
  'UncalibratedPreconditionedLangevinResults',
  'WarmUp',
  'Window',
  'ess',
  'load_draws',
  'nested_rhat',
  'rhat',
  'sample',
  'sample_posterior',
  'summarize',
  'to_arviz',
  'windowed_adaptive_mala',
]
