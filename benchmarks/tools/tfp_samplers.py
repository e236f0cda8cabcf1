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
"""Steps of TFP's samplers and of tfp_diag's, many in one compiled loop."""

import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from benchmarks.tools import NUM_STEPS, step_size
from benchmarks.tools.tensorflow_ways import function_of

__all__ = ['own_mala', 'own_malt', 'tfp_hmc', 'tfp_mala']


def own_mala(case, with_volatility=False):
  """`tfp_diag.mcmc.PreconditionedMALA`."""
  return _loop(
    tfp_diag.mcmc.PreconditionedMALA(
      function_of(case, 1.0),
      step_size=step_size(case) if not with_volatility else _small_step(case),
      volatility_fn=_volatility if with_volatility else None,
    )
  )


def tfp_mala(case, with_volatility=False):
  """`tfp.mcmc.MetropolisAdjustedLangevinAlgorithm`."""
  return _loop(
    tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(
      function_of(case, 1.0),
      step_size=step_size(case) if not with_volatility else _small_step(case),
      volatility_fn=_volatility if with_volatility else None,
    )
  )


def own_malt(case):
  """`tfp_diag.mcmc.MetropolisAdjustedLangevinTrajectories`, without jitter."""
  length = step_size(case) ** 0.5
  return _loop(
    tfp_diag.mcmc.MetropolisAdjustedLangevinTrajectories(
      function_of(case, 1.0),
      step_size=length,
      integration_time=NUM_STEPS * length,
      damping=1.0,
    )
  )


def tfp_hmc(case, num_steps=1):
  """`tfp.mcmc.HamiltonianMonteCarlo`."""
  return _loop(
    tfp.mcmc.HamiltonianMonteCarlo(
      function_of(case, 1.0),
      step_size=step_size(case) ** 0.5,
      num_leapfrog_steps=num_steps,
    )
  )


def _small_step(case):
  """With a volatility the error of a step grows with the dimension."""
  return step_size(case) / max(1.0, case.num_coordinates / 100)


def _volatility(x):
  return 1.0 + 0.5 * tf.tanh(x) ** 2


def _loop(kernel):
  """`run(x, count)`: so many steps, and the state after them."""

  @tf.function(jit_compile=True, autograph=False)
  def loop(x, count):
    def body(k, seed, x, results):
      seed, of_step = tf.unstack(tfp.random.split_seed(seed, n=2))
      return k + 1, seed, *kernel.one_step(x, results, seed=of_step)

    seed = tf.constant([0, 1], tf.int32)
    start = 0, seed, x, kernel.bootstrap_results(x)
    return tf.while_loop(lambda k, *_: k < count, body, start)[2]

  def run(x, count):
    return loop(tf.constant(x), tf.constant(count)).numpy()

  run.loop = loop
  return run
