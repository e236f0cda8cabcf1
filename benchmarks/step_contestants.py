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
"""Kernels whose steps the sampler benchmark times, each behind one function.

`make() -> run(count)` takes so many steps of 1000 chains in d = 100 inside one
compiled loop; those of a case of the diagonals are `make(case)`, with as many
chains as it has samples.
"""

import functools

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
from tfp_diag.mcmc.kernels.noise import standard_normal

__all__ = ['STEPS']

DIMENSION, NUM_CHAINS = 100, 1000


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


def trajectory_by_hand(normal=tf.random.stateless_normal):
  """The same trajectories, written for this target, chains and scale alone.

  Most of the time goes into TensorFlow's random numbers; those of this package,
  a function of shape, seed and dtype, are taken in another contestant.
  """
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
      noise = normal(x.shape, seed, dtype=x.dtype)
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
  'trajectory by hand, our noise': functools.partial(
    trajectory_by_hand, standard_normal
  ),
  'constant': constant_on,
  'local Hessian': local_hessian_on,
}
