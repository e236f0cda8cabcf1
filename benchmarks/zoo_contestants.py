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
"""The samplers of the zoo, each behind one function, none tuned by hand.

As in `sampler_contestants`, `make(model, sizes) -> run(seed)`, which adapts,
draws, and returns a `Drawn`. Those of TFP and ours move many chains at once.
The NUTS of other frameworks have the few chains they are usually run with,
vectorized where they can be.
"""

import functools
import time

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from benchmarks import sampler_contestants
from benchmarks.sampler_contestants import (
  Drawn,
  constrained_by_jax,
  joined,
  starts_of_jax,
)

__all__ = ['SAMPLERS', 'SIZES']

# Each adapts for as long as is its default, or that of its documentation.
SIZES = {
  'ours auto': {'chains': 64, 'draws': 1000},
  'ours MALA': {'chains': 64, 'draws': 2000, 'adaptation': 1000},
  'TFP NUTS': {'chains': 64, 'draws': 300, 'adaptation': 500},
  'TFP SNAPER HMC': {'chains': 64, 'draws': 500, 'adaptation': 1000},
  'numpyro NUTS': {'chains': 4, 'draws': 1000, 'adaptation': 1000},
  'blackjax NUTS': {'chains': 4, 'draws': 1000, 'adaptation': 1000},
  'nutpie NUTS': {'chains': 4, 'draws': 1000, 'adaptation': 1000},
}


def ours_auto(model, sizes):
  """`tfp_diag.mcmc.sample_posterior`, which chooses everything."""
  sample_posterior = getattr(tfp_diag.mcmc, 'sample_posterior', None)
  if sample_posterior is None:
    raise ImportError('this version has no tfp_diag.mcmc.sample_posterior')

  def sample(seed):
    result = sample_posterior(
      model.joint,
      sizes['draws'],
      num_chains=sizes['chains'],
      seed=seed,
      **model.pins,
    )
    return Drawn(
      joined(result.draws),
      float('nan'),
      # Of each chain, or of all chains alike.
      sizes['chains'] * float(np.mean(result.num_gradients_warmup)),
      sizes['chains'] * float(np.mean(result.num_gradients)),
    )

  return sample


def tfp_snaper(model, sizes):
  """TFP's SNAPER HMC, whose trajectories adapt, compiled as a whole."""
  pinned = model.joint
  if model.pins:
    pinned = pinned.experimental_pin(**model.pins)

  @tf.function(jit_compile=True, autograph=False)
  def run(seed):
    return tfp.experimental.mcmc.sample_snaper_hmc(
      pinned,
      sizes['draws'],
      num_burnin_steps=sizes['adaptation'],
      num_chains=sizes['chains'],
      discard_burnin_steps=False,
      seed=seed,
    ).trace

  def sample(seed):
    draws, trace = run(tf.constant(seed))
    num_warmup = sizes['adaptation']
    # All chains take the same number of steps.
    steps = trace['n_steps'].numpy().astype(np.int64) * sizes['chains']
    return Drawn(
      joined(draws)[num_warmup:],
      float(np.mean(trace['accept_ratio'][num_warmup:])),
      int(np.sum(steps[:num_warmup])),
      int(np.sum(steps[num_warmup:])),
    )

  return sample


def blackjax_nuts(model, sizes):
  """blackjax's NUTS after its window adaptation, its chains vectorized."""
  import blackjax
  import jax
  import jax.numpy as jnp

  log_prob = functools.partial(model.log_prob, jnp)
  warmup = blackjax.window_adaptation(blackjax.nuts, log_prob)

  @jax.jit
  @jax.vmap
  def adapt(key, start):
    found, info = warmup.run(key, start, num_steps=sizes['adaptation'])
    return found.state, found.parameters, info.info.num_integration_steps

  @jax.jit
  @jax.vmap
  def draw(key, state, parameters):
    kernel = blackjax.nuts(log_prob, **parameters)

    def step(state, key):
      state, info = kernel.step(key, state)
      kept = info.num_integration_steps, info.acceptance_rate
      return state, (state.position, *kept)

    keys = jax.random.split(key, sizes['draws'])
    return jax.lax.scan(step, state, keys)[1]

  def sample(seed):
    key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
    keys = jax.random.split(key, [3, sizes['chains']])
    begin = time.perf_counter()
    start = starts_of_jax(model, sizes, keys[0, 0])
    state, parameters, warmup_steps = adapt(keys[1], start)
    warmup_steps = int(jnp.sum(warmup_steps))
    seconds_warmup = time.perf_counter() - begin
    draws, steps, rates = draw(keys[2], state, parameters)
    return Drawn(
      constrained_by_jax(model, draws).swapaxes(0, 1),
      float(jnp.mean(rates)),
      warmup_steps,
      int(jnp.sum(steps)),
      seconds_warmup,
    )

  return sample


def nutpie_nuts(model, sizes):
  """nutpie's NUTS of a density of JAX, one call of Python per gradient."""
  import jax
  import jax.numpy as jnp
  import nutpie

  log_prob = functools.partial(model.log_prob, jnp)
  value_and_grad = jax.jit(jax.value_and_grad(log_prob))

  def make_log_prob():
    def value_and_gradient(x):
      value, gradient = value_and_grad(np.asarray(x, np.float32))
      return float(value), np.asarray(gradient, np.float64)

    return value_and_gradient

  compiled = nutpie.compiled_pyfunc.from_pyfunc(
    model.size,
    make_log_prob,
    lambda *_: lambda x: {'x': np.asarray(x)},
    [np.dtype('float64')],
    [(model.size,)],
    ['x'],
  )

  def sample(seed):
    found = nutpie.sample(
      compiled,
      draws=sizes['draws'],
      tune=sizes['adaptation'],
      chains=sizes['chains'],
      seed=1000 * seed[0] + seed[1],
      progress_bar=False,
    )
    steps = found.sample_stats['n_steps'].values
    warmup_steps = found.warmup_sample_stats['n_steps'].values
    draws = jnp.asarray(found.posterior['x'].values)
    return Drawn(
      constrained_by_jax(model, draws).swapaxes(0, 1),
      float(found.sample_stats['mean_tree_accept'].mean()),
      int(np.sum(warmup_steps)),
      int(np.sum(steps)),
    )

  return sample


SAMPLERS = {
  'ours auto': ours_auto,
  'ours MALA': sampler_contestants.windowed_adaptive_mala,
  'TFP NUTS': sampler_contestants.SAMPLERS['TFP NUTS'],
  'TFP SNAPER HMC': tfp_snaper,
  'numpyro NUTS': sampler_contestants.numpyro_nuts,
  'blackjax NUTS': blackjax_nuts,
  'nutpie NUTS': nutpie_nuts,
}
