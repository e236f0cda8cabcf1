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
"""What users of the samplers write, for `pyright` and `mypy`; it runs, too."""

import tempfile

import numpy as np
import tensorflow as tf

import tfp_diag
from tfp_diag.examples import gaussian, targets


def log_prob(x: tf.Tensor) -> tf.Tensor:
  return -0.5 * tf.reduce_sum(x**2, axis=-1)


def steps(x: tf.Tensor) -> tf.Tensor:
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    log_prob, 0.1, volatility_fn=lambda x: 1.0 + tf.tanh(x) ** 2
  )
  results = kernel.bootstrap_results(x)
  x, results = kernel.one_step(x, results, seed=(0, 1))
  print(results.is_accepted, results.accepted_results.volatility)
  return x


def runs(x: tf.Tensor) -> tfp_diag.mcmc.Summary:
  kernel = tfp_diag.mcmc.DiagonalPreconditionerAdaptation(
    tfp_diag.mcmc.PreconditionedMALA(log_prob, 0.1), 10, estimator='variance'
  )
  with tempfile.TemporaryDirectory() as folder:
    run = tfp_diag.mcmc.sample(
      kernel,
      x,
      20,
      checkpoint=folder + '/run',
      stop_when=tfp_diag.mcmc.StopWhen(min_ess=1e6),
      jit_compile=False,
      progress_bar=False,
    )
    found = tfp_diag.mcmc.load_draws(folder + '/run')
    print(found.draws['x'].shape, run.num_results + 1, run.stopped_by.upper())
  print(tfp_diag.mcmc.ess(run.draws, kind='tail'))
  return tfp_diag.mcmc.summarize(run.draws, run.trace, quantiles=[0.1, 0.9])


def adapted(x: tf.Tensor) -> float:
  for preconditioner in ('hessian', None, 2.0, np.ones(3, np.float32)):
    found = tfp_diag.mcmc.windowed_adaptive_mala(
      4,
      log_prob,
      init=x,
      preconditioner=preconditioner,
      num_adaptation_steps=20,
      seed=1,
    )
    print(found.draws.shape, found.stopped_by)
  return found.final_kernel_results.step_size


def posterior(found: tfp_diag.mcmc.PosteriorDraws) -> tfp_diag.mcmc.Summary:
  print(found.warm_up.step_size + 1.0, found.trace['is_accepted'].shape)
  last: tfp_diag.mcmc.Window = found.warm_up.windows[-1]
  print(last.step_size, found.summary.names[0].upper())
  return found.summary


def known() -> int:
  target = targets.get('banana')
  start = target.init(4, (0, 1))
  print(target.target_log_prob_fn(*start) if isinstance(start, list) else start)
  return gaussian.ar1(3, coefficient=0.5).num_dims


def main() -> None:
  x = tf.constant(np.ones([4, 3], np.float32))
  summary = runs(steps(x))
  print(summary, summary.columns()['r_hat'].shape, known())


if __name__ == '__main__':
  main()
