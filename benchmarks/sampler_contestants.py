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
"""The samplers of the benchmark, each behind one function.

A sampler is `make(model, sizes, **options) -> run(seed)`, which adapts and
draws, and returns a `Drawn`. What it needs to know beforehand (the step size of
TFP's MALA, tuned by hand) is found while it is made, which costs nothing.
"""

import functools
import time
import typing

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag

__all__ = [
  'SAMPLERS',
  'Drawn',
  'constrained_by_jax',
  'joined',
  'starts_of_jax',
  'tuned_step_size',
]

# The acceptance that is optimal for MALA.
ACCEPTANCE = 0.574


class Drawn(typing.NamedTuple):
  """What a sampler did.

  Attributes:
    draws: Array [draw, chain, coordinate], after the adaptation.
    acceptance: Python float, its average.
    gradients_warmup: Number of gradients of all chains until the first draw.
    gradients: Number of gradients of all chains after that.
    seconds_warmup: Seconds until the first draw, where that is seen.
  """

  draws: typing.Any
  acceptance: float
  gradients_warmup: float
  gradients: float
  seconds_warmup: float | None = None


def windowed_adaptive_mala(model, sizes, **options):
  """`tfp_diag.mcmc.windowed_adaptive_mala`, compiled as a whole."""

  @tf.function(jit_compile=True, autograph=False)
  def run(seed):
    return tfp_diag.mcmc.windowed_adaptive_mala(
      sizes['draws'],
      model.joint,
      n_chains=sizes['chains'],
      num_adaptation_steps=sizes['adaptation'],
      seed=seed,
      **options,
      **model.pins,
    )

  def sample(seed):
    draws, trace = run(tf.constant(seed))
    return Drawn(
      joined(draws),
      float(tf.reduce_mean(trace['accept_ratio'])),
      sizes['chains'] * sizes['adaptation'],
      sizes['chains'] * sizes['draws'],
    )

  return sample


def tfp_mala(model, sizes, step_size=None):
  """TFP's MALA, its step size tuned by hand."""
  target = _target(model, sizes)
  if step_size is None:
    step_size = tuned_step_size(target, sizes)

  @tf.function(jit_compile=True, autograph=False)
  def run(seed):
    return _draw_tfp_mala(
      target,
      step_size,
      target.start,
      sizes['draws'],
      sizes['burnin'],
      seed,
      sizes['thinning'],
    )

  def sample(seed):
    draws, log_ratio = run(tf.constant(seed))
    acceptance = tf.reduce_mean(tf.exp(tf.minimum(log_ratio, 0.0)))
    return Drawn(
      joined(draws),
      float(acceptance),
      sizes['chains'] * sizes['burnin'],
      sizes['chains'] * sizes['draws'] * sizes['thinning'],
    )

  sample.step_size = step_size
  return sample


def tuned_step_size(target, sizes, rounds=14):
  """The step size at which TFP's MALA accepts 0.574, by bisection.

  Each round continues where the chains of the last one were, so that what is
  tuned for is where they end up.

  Args:
    target: An `UnconstrainedTarget`.
    sizes: Dict with 'tuning', half of the steps of a round.
    rounds: Python int.

  Returns:
    Python float.
  """

  @tf.function(jit_compile=True, autograph=False)
  def accepted(step_size, state, seed):
    draws, log_ratio = _draw_tfp_mala(
      target, step_size, state, sizes['tuning'], sizes['tuning'], seed
    )
    log_ratio = tf.where(tf.math.is_finite(log_ratio), log_ratio, -np.inf)
    return (
      tf.reduce_mean(tf.exp(tf.minimum(log_ratio, 0.0))),
      [x[-1] for x in draws],
    )

  state = target.start
  low, high = np.log(1e-8), np.log(10.0)
  for i in range(rounds):
    middle = 0.5 * (low + high)
    step_size = tf.constant(np.exp(middle), tf.float32)
    rate, state = accepted(step_size, state, tf.constant([5, i]))
    low, high = (middle, high) if rate > ACCEPTANCE else (low, middle)
  return float(np.exp(0.5 * (low + high)))


def _draw_tfp_mala(
  target, step_size, start, num_draws, num_burnin, seed, thinning=1
):
  kernel = tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(
    target.log_prob_fn, step_size
  )
  return tfp.mcmc.sample_chain(
    num_draws,
    start,
    kernel=kernel,
    num_burnin_steps=num_burnin,
    num_steps_between_results=thinning - 1,
    trace_fn=lambda _, results: results.log_accept_ratio,
    seed=seed,
  )


def tfp_windowed(model, sizes, sampler, **options):
  """TFP's adaptive NUTS or HMC, compiled as a whole."""

  @tf.function(jit_compile=True, autograph=False)
  def run(seed):
    return getattr(tfp.experimental.mcmc, sampler)(
      sizes['draws'],
      model.joint,
      n_chains=sizes['chains'],
      num_adaptation_steps=sizes['adaptation'],
      discard_tuning=False,
      seed=seed,
      **options,
      **model.pins,
    )

  def sample(seed):
    draws, trace = run(tf.constant(seed))
    num_warmup = sizes['adaptation']
    ratio = np.minimum(trace['accept_ratio'], 1.0)
    # NUTS says how many; HMC was told.
    steps = trace.get('n_steps', options.get('num_leapfrog_steps'))
    steps = np.broadcast_to(steps, ratio.shape)
    return Drawn(
      joined(draws)[num_warmup:],
      float(np.mean(ratio[num_warmup:])),
      int(np.sum(steps[:num_warmup], dtype=np.int64)),
      int(np.sum(steps[num_warmup:], dtype=np.int64)),
    )

  return sample


def numpyro_nuts(model, sizes):
  """numpyro's adaptive NUTS, its chains vectorized."""
  import jax
  import jax.numpy as jnp
  from numpyro.infer import MCMC, NUTS

  def make():
    return MCMC(
      NUTS(potential_fn=lambda x: -model.log_prob(jnp, x)),
      num_warmup=sizes['adaptation'],
      num_samples=sizes['draws'],
      num_chains=sizes['chains'],
      chain_method='vectorized',
      progress_bar=False,
    )

  # A `run` of numpyro's would be compiled again for each seed.
  @jax.jit
  def adapt(key, start):
    mcmc = make()
    mcmc.warmup(
      key,
      init_params=start,
      extra_fields=('num_steps',),
      collect_warmup=True,
    )
    steps = mcmc.get_extra_fields()['num_steps']
    return mcmc.post_warmup_state, jnp.sum(steps)

  @jax.jit
  def draw(key, state):
    mcmc = make()
    mcmc.post_warmup_state = state
    mcmc.run(
      key, init_params=state.z, extra_fields=('num_steps', 'accept_prob')
    )
    extra = mcmc.get_extra_fields()
    draws = mcmc.get_samples(group_by_chain=True)
    return draws, jnp.sum(extra['num_steps']), jnp.mean(extra['accept_prob'])

  def sample(seed):
    key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
    begin = time.perf_counter()
    state, warmup_steps = adapt(key, starts_of_jax(model, sizes, key))
    warmup_steps = int(warmup_steps)
    seconds_warmup = time.perf_counter() - begin
    draws, steps, acceptance = draw(jax.random.fold_in(key, 1), state)
    return Drawn(
      constrained_by_jax(model, draws).swapaxes(0, 1),
      float(acceptance),
      warmup_steps,
      int(steps),
      seconds_warmup,
    )

  return sample


def starts_of_jax(model, sizes, key):
  """Where chains start: uniform on (-2, 2), as ours do."""
  import jax

  shape = [sizes['chains'], model.size]
  return jax.random.uniform(key, shape, minval=-2.0, maxval=2.0)


def constrained_by_jax(model, draws):
  """Draws [..., ..., coordinate] as the joint distribution has them."""
  import jax
  import jax.numpy as jnp

  if model.constrained is not None:
    constrained = functools.partial(model.constrained, jnp)
    draws = jax.vmap(jax.vmap(constrained))(draws)
  return np.asarray(draws)


def _target(model, sizes):
  from tfp_diag.mcmc.run.unconstrained_target import target_of_model

  return target_of_model(
    model.joint, model.pins, None, [sizes['chains']], (1, 2)
  )


def joined(draws):
  """All coordinates in one array [draw, chain, coordinate]."""
  parts = [np.asarray(x) for x in tf.nest.flatten(draws)]
  return np.concatenate([x.reshape([*x.shape[:2], -1]) for x in parts], -1)


_NUTS = functools.partial(tfp_windowed, sampler='windowed_adaptive_nuts')
_HMC = functools.partial(
  tfp_windowed, sampler='windowed_adaptive_hmc', num_leapfrog_steps=16
)
SAMPLERS = {
  'tfp_diag': windowed_adaptive_mala,
  'TFP MALA': tfp_mala,
  'TFP NUTS': _NUTS,
  'TFP HMC': _HMC,
  'numpyro NUTS': numpyro_nuts,
}
