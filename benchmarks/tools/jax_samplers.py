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
"""Steps of blackjax's and numpyro's samplers, many in one compiled loop."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.tools import NUM_STEPS, step_size
from benchmarks.tools.jax_ways import JaxOps

__all__ = ['blackjax_hmc', 'blackjax_mala', 'numpyro_barker']


def blackjax_mala(case):
  """`blackjax.mala`, its chains by `vmap`."""
  import blackjax

  # Its step size is half of the variance of the noise.
  return _vectorized(blackjax.mala(_log_prob(case), 0.5 * step_size(case)))


def blackjax_hmc(case):
  """`blackjax.hmc` with as many steps for each draw, its chains by `vmap`."""
  import blackjax

  return _vectorized(
    blackjax.hmc(
      _log_prob(case),
      step_size(case) ** 0.5,
      jnp.ones(case.num_coordinates),
      NUM_STEPS,
    )
  )


def _vectorized(kernel):
  @jax.jit
  def loop(x, count):
    def body(k, states):
      keys = jax.random.split(jax.random.fold_in(jax.random.key(0), k), len(x))
      return jax.vmap(kernel.step)(keys, states)[0]

    return jax.lax.fori_loop(0, count, body, jax.vmap(kernel.init)(x)).position

  return _run(loop)


def numpyro_barker(case):
  """`numpyro.infer.BarkerMH`, its chains by `vmap`."""
  from numpyro.infer import BarkerMH

  log_prob = _log_prob(case)
  kernel = BarkerMH(
    potential_fn=lambda x: -log_prob(x),
    step_size=step_size(case) ** 0.5,
    adapt_step_size=False,
    adapt_mass_matrix=False,
  )

  @jax.jit
  def loop(x, count):
    keys = jax.random.split(jax.random.key(0), len(x))
    states = jax.vmap(lambda key, x: kernel.init(key, 0, x, (), {}))(keys, x)

    def body(_, states):
      return jax.vmap(lambda state: kernel.sample(state, (), {}))(states)

    return jax.lax.fori_loop(0, count, body, states).z

  return _run(loop)


def _log_prob(case):
  return lambda x: case.fn(JaxOps, x, 1.0)


def _run(loop):
  def run(x, count):
    return np.asarray(loop(jnp.asarray(x), count))

  return run
