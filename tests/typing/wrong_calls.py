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
"""Wrong calls that an editor shows: each is marked, and must be found.

A mark where nothing is wrong is an error, too: `pyright` and `mypy` are told
so in `pyproject.toml`. What is called here with wrong arguments never runs.
"""

import tensorflow as tf

import tfp_diag
from tfp_diag import mcmc


def log_prob(x: tf.Tensor) -> tf.Tensor:
  return -tf.reduce_sum(x**2, axis=-1)


def of_the_root(x: tf.Tensor, plan: tfp_diag.Plan) -> None:
  tfp_diag.diag_hessian(log_prob, x, mode='forward')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  tfp_diag.diag_jacobian(x, schedule='pforr')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  tfp_diag.diag_jacobian(x, modes='auto')  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
  tfp_diag.jacobian(log_prob, x, strict='yes')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  tfp_diag.hessian(3, x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  tfp_diag.diag_hessian(log_prob, x, plan=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  tfp_diag.unmixed_derivatives(log_prob, x, 4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  plan.mode = 'reverse'  # type: ignore[misc]
  plan.save(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def of_the_samplers(x: tf.Tensor) -> None:
  mcmc.PreconditionedMALA(log_prob, 0.1, discretization='eulre')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  mcmc.PreconditionedMALA(3, 0.1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  mcmc.DiagonalPreconditionerAdaptation(None, 10, 'best')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  mcmc.sample_posterior(log_prob, 10, kernel='nuts')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  mcmc.sample_posterior(log_prob, '10')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  mcmc.sample(None, x, 10, draw_on_disk=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
  mcmc.sample(None, x, 10, progress_bar='yes')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  mcmc.ess(x, kind='some')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  mcmc.rhat(x, chain_ndims='one')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  mcmc.summarize(x).names.append('mu')  # type: ignore[attr-defined]
  mcmc.sample_posterior(log_prob, 9).summary.nosuch()  # type: ignore[union-attr]
  mcmc.sample_posterior(log_prob, 9).warm_up.nosuch()  # type: ignore[attr-defined]
  mcmc.nosuch(x)  # type: ignore[attr-defined]
  mcmc.StopWhen(max_rhat='small')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  tfp_diag.mcmc.load_draws(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  tfp_diag.examples.targets.get(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
  tfp_diag.examples.gaussian.isotropic('three')  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
