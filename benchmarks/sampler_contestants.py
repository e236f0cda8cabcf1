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
"""Contestants of the sampler benchmark, each behind one function.

A step contestant is `make() -> run(count)`, which takes so many steps of 1000
chains in d = 100 inside one compiled loop; those of a case of the diagonals are
`make(case)`, with as many chains as it has samples. A sampler is
`make(model, sizes, **options) -> run(seed)`, which adapts and draws, and
returns a `Drawn`. What a sampler needs to know beforehand (the step size of
TFP's MALA, tuned by hand) is found while it is made, which costs nothing.
"""

import functools
import time
import typing

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from benchmarks.cases import make_case
from benchmarks.tools.tensorflow_ways import function_of
from tfp_diag.mcmc import (
  MetropolisAdjustedLangevinTrajectories,
  PreconditionedMALA,
)

__all__ = [
  'SAMPLERS',
  'STEPS',
  'Drawn',
  'constrained_by_jax',
  'joined',
  'starts_of_jax',
  'tuned_step_size',
]

DIMENSION, NUM_CHAINS = 100, 1000
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


def _scales():
  return np.linspace(0.5, 2.0, DIMENSION).astype(np.float32)


def _log_prob(x):
  return -0.5 * tf.reduce_sum(tf.square(x / _scales()), axis=-1)


def _volatility(x):
  return _scales() * (1.0 + 0.5 * tf.square(tf.tanh(x)))


def ours_constant(jit_compile=True):
  """`PreconditionedMALA` with a scale per coordinate."""
  kernel = PreconditionedMALA(_log_prob, 0.3, _scales())
  return _steps(kernel, jit_compile)


def ours_elementwise(jit_compile=True):
  """`PreconditionedMALA` with an elementwise `volatility_fn`."""
  kernel = PreconditionedMALA(_log_prob, 0.2, volatility_fn=_volatility)
  return _steps(kernel, jit_compile)


def tfp_constant(jit_compile=True):
  """TFP's MALA, whose constant volatility is a number."""
  kernel = tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(_log_prob, 0.3)
  return _steps(kernel, jit_compile)


def tfp_elementwise(jit_compile=True):
  """TFP's MALA with the same elementwise `volatility_fn`."""
  kernel = tfp.mcmc.MetropolisAdjustedLangevinAlgorithm(
    _log_prob, 0.2, volatility_fn=_volatility
  )
  return _steps(kernel, jit_compile)


# Of trajectories: exact binary fractions, so that all have as many steps.
_LENGTH, _NUM_STEPS, _DAMPING = 0.25, 16, 1.0


def ours_trajectory():
  """`MetropolisAdjustedLangevinTrajectories` with a scale per coordinate."""
  kernel = MetropolisAdjustedLangevinTrajectories(
    _log_prob, _LENGTH, _LENGTH * _NUM_STEPS, _DAMPING, _scales()
  )
  return _steps(kernel, True)


def trajectory_by_hand():
  """The same trajectories, written for this target, chains and scale alone."""
  scales = _scales()
  decay = np.exp(-_DAMPING * _LENGTH)

  def value_and_gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = _log_prob(x)
    return value, tape.gradient(value, x)

  def energy(log_prob, velocity):
    return 0.5 * tf.reduce_sum(tf.square(velocity), -1) - log_prob

  def trajectory(i, x, log_prob, gradient):
    seeds = tf.random.split(tf.random.fold_in(tf.constant([3, 4]), i), 2)

    def leap(k, x, log_prob, gradient, velocity, error):
      seed = tf.random.fold_in(seeds[0], k)
      noise = tf.random.stateless_normal(x.shape, seed)
      kept = tf.where(k == 0, 0.0, decay)
      velocity = kept * velocity + tf.sqrt(1.0 - kept**2) * noise
      before = energy(log_prob, velocity)
      velocity += 0.5 * _LENGTH * scales * gradient
      x += _LENGTH * scales * velocity
      log_prob, gradient = value_and_gradient(x)
      velocity += 0.5 * _LENGTH * scales * gradient
      error += energy(log_prob, velocity) - before
      return k + 1, x, log_prob, gradient, velocity, error

    zeros = tf.zeros_like(x), tf.zeros_like(log_prob)
    _, y, log_prob_y, gradient_y, _, error = tf.while_loop(
      lambda k, *_: k < _NUM_STEPS, leap, (0, x, log_prob, gradient, *zeros)
    )
    draw = tf.random.stateless_uniform(error.shape, seeds[1])
    is_accepted = tf.math.log(draw) < -error
    rows = is_accepted[:, tf.newaxis]
    return (
      i + 1,
      tf.where(rows, y, x),
      tf.where(is_accepted, log_prob_y, log_prob),
      tf.where(rows, gradient_y, gradient),
    )

  start = tf.random.stateless_normal([NUM_CHAINS, DIMENSION], (0, 1))

  @tf.function(jit_compile=True, autograph=False)
  def loop(x, count):
    _, x, *_ = tf.while_loop(
      lambda i, *_: i < count, trajectory, (0, x, *value_and_gradient(x))
    )
    return tf.reduce_sum(x)

  return lambda count: float(loop(start, tf.constant(count)))


def constant_on(case):
  """`PreconditionedMALA` on a case of the diagonals, with a number as scale."""
  return _steps_on(case, None)


def local_hessian_on(case):
  """The same with `LocalHessianPreconditioner`.

  Its drift takes third derivatives at each step.
  """
  local = tfp_diag.mcmc.LocalHessianPreconditioner(softness=1e-2)
  return _steps_on(case, local)


def _steps_on(case, preconditioner):
  case = make_case(case)
  log_prob = function_of(case, tf.constant(1.0))
  kernel = PreconditionedMALA(log_prob, 1e-3, preconditioner)
  return _steps(kernel, jit_compile=True, start=tf.constant(case.start()))


def _steps(kernel, jit_compile, start=None):
  if start is None:
    start = tf.random.stateless_normal([NUM_CHAINS, DIMENSION], (0, 1))
  results = kernel.bootstrap_results(start)

  @tf.function(jit_compile=jit_compile, autograph=False)
  def loop(state, results, count):
    def body(i, state, results):
      seed = tf.random.fold_in(tf.constant([3, 4]), i)
      return i + 1, *kernel.one_step(state, results, seed=seed)

    _, state, _ = tf.while_loop(
      lambda i, *_: i < count, body, (0, state, results), parallel_iterations=1
    )
    return tf.reduce_sum(state)

  return lambda count: float(loop(start, results, tf.constant(count)))


def blackjax_constant():
  """blackjax's MALA, `vmap`ped over the chains."""
  import blackjax
  import jax
  import jax.numpy as jnp

  scales = jnp.asarray(_scales())
  kernel = blackjax.mala(
    lambda x: -0.5 * jnp.sum(jnp.square(x / scales)), step_size=0.15
  )
  start = jax.random.normal(jax.random.key(0), [NUM_CHAINS, DIMENSION])
  states = jax.vmap(kernel.init)(start)

  @jax.jit
  def loop(states, count):
    def body(i, states):
      key = jax.random.fold_in(jax.random.key(1), i)
      keys = jax.random.split(key, NUM_CHAINS)
      return jax.vmap(kernel.step)(keys, states)[0]

    return jnp.sum(jax.lax.fori_loop(0, count, body, states).position)

  return lambda count: float(loop(states, count))


STEPS = {
  'tfp_diag constant': ours_constant,
  'TFP constant': tfp_constant,
  'blackjax constant': blackjax_constant,
  'tfp_diag elementwise': ours_elementwise,
  'TFP elementwise': tfp_elementwise,
  'tfp_diag elementwise, graph': functools.partial(ours_elementwise, False),
  'TFP elementwise, graph': functools.partial(tfp_elementwise, False),
  'tfp_diag trajectory': ours_trajectory,
  'trajectory by hand': trajectory_by_hand,
  'constant': constant_on,
  'local Hessian': local_hessian_on,
}


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
