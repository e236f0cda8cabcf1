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
"""A model, or a log density, as a log density on all of Rⁿ with a start."""

import inspect
import typing

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.diagonal import graphs
from tfp_diag.internal import arguments, batching, nest
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.warn import warn
from tfp_diag.mcmc.kernels.arguments import check_dtype, named
from tfp_diag.mcmc.run.argument_names import check_argument_names
from tfp_diag.mcmc.run.latent_variables import (
  check_latent_variables,
  check_variables_left,
)
from tfp_diag.mcmc.run.model_arguments import (
  check_init,
  check_inside,
  check_pinned,
  check_pins,
  check_reached,
  check_start,
)
from tfp_diag.mcmc.run.variables import with_names

_MODELS = (
  tfp.distributions.JointDistribution,
  tfp.experimental.distributions.JointDistributionPinned,
)


# The value of `init` for draws from the prior of a model.
_PRIOR = 'prior'
# What rounding may make of a log density.
_ROUNDED = 1e-3
# Of `num_chains` in all drivers.
DEFAULT_NUM_CHAINS = 64
# Draws of a start of finite log density.
_MOST_TRIES = 50


class UnconstrainedTarget(typing.NamedTuple):
  """What a sampler of unconstrained parts needs.

  Attributes:
    log_prob_fn: Callable of the parts: the log density of the unconstrained
      state, with the log-determinant of the transformation.
    start: List of Tensors, the parts where the chains start.
    constrain: Callable, list of parts of any leading shape to a state in the
      structure and the space of the model.
    model: The `tfd.JointDistribution`, pinned, or None.
    traced: `TracedOnce` of `log_prob_fn`, or None in a graph.
  """

  log_prob_fn: typing.Any
  start: typing.Any
  constrain: typing.Any
  model: typing.Any = None
  traced: graphs.TracedOnce | None = None

  @property
  def graph(self):
    """`Graph` of the log density at the start, if it has a single one."""
    return self.traced and self.traced.graph(self.start)

  def check_start(self, log_prob):
    """Refuses a start at which the log density is not finite.

    Warns, in eager mode, of a log density without a model that is another one
    for another chain.

    Args:
      log_prob: Tensor of the chain shape, what `log_prob_fn` gives there.

    Raises:
      ValueError: if it is not, in eager mode. Names the variable of the model;
        a kernel says so for a log density without one. Also if the model has
        more axes than its chains.
    """
    if self.model is None:
      if tf.executing_eagerly():
        self._warn_if_chains_differ(log_prob)
      return
    rank = log_prob.shape.rank
    for x in self.start:
      if rank is not None and not log_prob.shape.is_compatible_with(
        x.shape[:rank]
      ):
        raise ValueError(
          f'The log density of the model has the shape {log_prob.shape} where '
          f'a variable has {x.shape}: what is pinned has a batch of '
          'distributions beside the chains. Make it a single one by '
          '`tfd.Independent`, or the model a JointDistribution...AutoBatched.'
        )
    if not tf.executing_eagerly():
      return
    if not np.all(np.isfinite(log_prob)):
      check_start(self.model, self.constrain(self.start))

  def _warn_if_chains_differ(self, log_prob):
    """Warns if a state has another log density where another chain was."""
    if not log_prob.shape.rank or log_prob.shape[0] < 2:
      return
    moved = self.log_prob_fn(*(tf.roll(x, 1, axis=0) for x in self.start))
    expected = np.roll(log_prob, 1, axis=0)
    with np.errstate(invalid='ignore'):
      is_off = np.abs(moved - expected) > _ROUNDED * (1.0 + np.abs(expected))
    if np.any(is_off):
      warn(
        'The log density of a state is another one in another chain: it is '
        'random, or data have an axis as long as that of the chains, each of '
        'which then has a target of its own. Sum over the data, or give them '
        'axes that are none of the chains.'
      )


def as_target(given, chain_shape, init, bijectors, pins, seed, driver):
  """The `UnconstrainedTarget` of a model or a log density.

  Args:
    given: A `tfd.JointDistribution`, pinned or not, or a callable.
    chain_shape: List of `int`s, for a model without `init`.
    init: Structure of Tensors with leading chain shape; for a model None, or
      'prior'.
    bijectors: For a callable; see `target_of_log_prob`.
    pins: Dict of what is observed, for a model.
    seed: PRNG seed.
    driver: The callable that was given all this, whose first argument of the
      kind is named in errors.

  Returns:
    An `UnconstrainedTarget`.

  Raises:
    TypeError: if it is neither a model nor callable.
    ValueError: if an argument does not fit to it.
  """
  is_model = isinstance(given, _MODELS)
  [name] = [
    name
    for name in inspect.signature(driver).parameters
    if name.startswith('joint_dist')
  ]
  if not is_model and (not callable(given) or isinstance(given, type)):
    raise TypeError(
      f'`{name}` must be a tfd.JointDistribution or a callable log density, '
      f'but is {arguments.shown(given)}.{_way_out(given)}'
    )
  check_argument_names(pins, driver, given if is_model else None)
  if isinstance(init, str) and (init != _PRIOR or not is_model):
    fits = f"structure of Tensors, None or '{_PRIOR}'"
    if not is_model:
      fits = 'structure of Tensors: a callable has no prior to draw from'
    raise ValueError(f'`init` is {init!r}, but must be a {fits}.')
  if is_model:
    if bijectors is not None:
      raise ValueError(
        '`bijectors` is for a callable; a JointDistribution has its own, from '
        f'`{name}.experimental_default_event_space_bijector()`.'
      )
    return target_of_model(given, pins, init, chain_shape, seed, name)
  if init is None:
    raise ValueError(
      f'`{name}` is a callable, whose state is not known; pass `init`, a '
      'structure of Tensors with leading chain shape.'
    )
  return target_of_log_prob(given, init, bijectors, name)


def target_of_model(model, pins, init, chain_shape, seed, name='joint_dist'):
  """A `tfd.JointDistribution` in the coordinates of its default bijector.

  Args:
    model: A `tfd.JointDistribution` of scalar batch shape.
    pins: Dict of what is observed, for `model.experimental_pin`.
    init: Structure of the unpinned parts with leading chain shape, or None:
      uniform on (-2, 2) in the unconstrained space, as TFP's windowed samplers
      do; or 'prior': drawn from the model as if nothing were observed. Both are
      drawn again where the log density is not finite, and are those of random
      other chains where that does not help.
    chain_shape: List of Python `int`s, for None and 'prior'.
    seed: PRNG seed.
    name: Python `str`, the argument that the model was given as.

  Returns:
    An `UnconstrainedTarget`.

  Raises:
    ValueError: if the model has a batch shape or a discrete variable, a pin or
      `init` does not fit, or no chain has a start.
  """
  pins = check_pins(model, pins, chain_shape)
  check_pinned(model)
  pinned = model.experimental_pin(**pins) if pins else model
  # A pinned model does not say that of what is pinned, where a scale may be an
  # array of one element.
  batch_shape = getattr(model, 'distribution', model).batch_shape
  if any(
    tf.TensorShape(s).rank not in (None, 0)
    for s in tf.nest.flatten(pinned.batch_shape)
  ) or any(
    tf.TensorShape(s).num_elements() not in (None, 1)
    for s in tf.nest.flatten(batch_shape)
  ):
    raise ValueError(
      f'`{name}` has the batch shape {batch_shape}, but the step '
      'size and the scale would be shared by its different distributions. '
      'Make it a single distribution, with a JointDistribution...AutoBatched '
      'or `tfd.Independent`, and let the number of chains add them.'
    )
  check_variables_left(pinned, name)
  check_latent_variables(pinned, name)
  bijector = pinned.experimental_default_event_space_bijector()
  near_zero = None
  if init is None:
    near_zero = tfp.experimental.mcmc.init_near_unconstrained_zero(pinned)
    structure = near_zero.distribution.dtype
  else:
    if isinstance(init, str):
      init = _from_prior(pinned, chain_shape, seed)
    else:
      init = check_init(pinned, init, name)
    structure = unconstrained = _traced(lambda: bijector.inverse(init))
    check_inside(pinned, init, unconstrained)

  def pack(parts):
    # Copies: a bijector remembers by identity what it computed elsewhere.
    return tf.nest.pack_sequence_as(structure, [tf.identity(x) for x in parts])

  @not_converted
  def log_prob_of(*parts):
    z = pack(parts)
    log_det = bijector.forward_log_det_jacobian(z)
    return pinned.unnormalized_log_prob(bijector.forward(z)) + log_det

  def constrain(parts):
    parts = [tf.convert_to_tensor(x) for x in parts]
    state = _traced(lambda *parts: bijector.forward(pack(parts)), *parts)
    return with_names(pinned, state)

  log_prob_fn, traced = _once(named(log_prob_of, name), is_model=True)
  if near_zero is not None:
    unconstrained = _finite(
      near_zero.distribution.sample,
      lambda z: log_prob_fn(*tf.nest.flatten(z)),
      chain_shape,
      seed,
      lambda z: check_start(pinned, bijector.forward(z)),
      # Eager: each try is a call of the graph that later ones repeat.
      lambda draw: draw(),
    )
  return UnconstrainedTarget(
    log_prob_fn=log_prob_fn,
    start=[tf.identity(x) for x in tf.nest.flatten(unconstrained)],
    constrain=constrain,
    model=pinned,
    traced=traced,
  )


def _way_out(given):
  """What to pass instead of something that is neither model nor callable."""
  if isinstance(given, tfp.distributions.Distribution):
    return ' Pass its `log_prob`, with `init`.'
  return ''


def _traced(fn, *parts):
  """What a function of a model returns, which eager code traces first.

  Some models vectorize themselves by a `tf.function` that they make anew in
  each eager call, which TensorFlow warns of; a concrete one is not counted.
  """
  if not tf.executing_eagerly():
    return fn(*parts)
  function = tf.function(fn, autograph=False)
  return function.get_concrete_function(*parts)(*parts)


def _once(log_prob_fn, is_model):
  """The same, traced once for all graphs of a run that begins in eager code.

  Also its `TracedOnce`, or None.
  """
  if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
    return log_prob_fn, None  # In a graph it may close over Tensors of that.
  traced = graphs.TracedOnce(log_prob_fn)

  def once(*parts):
    # Eager calls of what a user wrote find what cuts its gradients.
    is_run = tf.executing_eagerly() and not is_model
    return (log_prob_fn if is_run else traced)(*parts)

  return named(once, log_prob_fn.given_as), traced


def _from_prior(pinned, chain_shape, seed):
  """Draws of a model as if nothing were observed, of finite log density."""
  is_pinned = hasattr(pinned, 'sample_unpinned')
  sample = pinned.sample_unpinned if is_pinned else pinned.sample
  return _finite(
    sample,
    pinned.unnormalized_log_prob,
    chain_shape,
    seed,
    lambda state: check_start(pinned, state),
    _traced,
  )


def _finite(sample, log_prob_fn, chain_shape, seed, refuse, run):
  """Draws, again where the log density is not finite, or refuses the draws.

  A chain that has no start in the end gets that of a random other one.
  """

  def trial(seed):
    state = sample(chain_shape, seed=seed)
    has_start = tf.math.is_finite(log_prob_fn(state))
    # Other axes than those of the chains are refused elsewhere.
    others = range(len(chain_shape), has_start.shape.rank)
    has_start = tf.reduce_all(has_start, axis=list(others))
    return state, tf.broadcast_to(has_start, chain_shape)

  def again(num_tries, state, has_start, seed):
    trial_seed, seed = tfp.random.split_seed(seed)
    other, is_start = trial(trial_seed)

    def pick(new, old):
      ones = tf.ones([tf.rank(old) - len(chain_shape)], tf.int32)
      mask = tf.reshape(is_start, tf.concat([chain_shape, ones], 0))
      return tf.ensure_shape(tf.where(mask, new, old), old.shape)

    state = tf.nest.map_structure(pick, other, state)
    return num_tries + 1, state, has_start | is_start, seed

  def draw():
    first_seed, next_seed = tfp.random.split_seed(seed)
    _, state, has_start, last_seed = tf.while_loop(
      lambda num_tries, state, has_start, seed: (
        (num_tries < _MOST_TRIES) & ~tf.reduce_all(has_start)
      ),
      again,
      (tf.constant(1), *trial(first_seed), next_seed),
    )
    return _of_others(state, has_start, last_seed), tf.reduce_any(has_start)

  state, has_any = run(draw)
  refusal = (
    f'No start of finite log density was found in {_MOST_TRIES} tries for any '
    f'of {int(np.prod(chain_shape))} chains.'
  )
  if not tf.executing_eagerly():
    with tf.control_dependencies([tf.debugging.Assert(has_any, [refusal])]):
      return tf.nest.map_structure(tf.identity, state)
  if not has_any:
    try:
      refuse(state)
    except ValueError as e:
      raise ValueError(f'{refusal} {e}') from e
    raise ValueError(f'{refusal} Pass an `init`.')
  return state


def _of_others(state, has_start, seed):
  """Starts, of random other chains where a chain has none."""
  has_start, ndims = tf.reshape(has_start, [-1]), has_start.shape.rank
  number: typing.Any = has_start.shape[0]
  known = tf.argsort(-tf.cast(has_start, tf.int32), stable=True)
  count = tf.reduce_sum(tf.cast(has_start, tf.int32))
  chosen = tf.random.stateless_uniform(
    [number], seed, 0, tf.maximum(count, 1), tf.int32
  )
  chain = tf.where(has_start, tf.range(number), tf.gather(known, chosen))

  def take(part):
    shape = tf.shape(part)
    rows = tf.reshape(part, tf.concat([[number], shape[ndims:]], 0))
    taken = tf.reshape(tf.gather(rows, chain), shape)
    return tf.ensure_shape(taken, part.shape)

  return tf.nest.map_structure(take, state)


def check_number_of_chains(name, chain_shape, log_prob):
  """Raises a ValueError if `init` has other chains than were asked for.

  Args:
    name: Python `str`, the name of the argument.
    chain_shape: List of Python `int`s that it stands for. The default counts as
      not given.
    log_prob: Tensor of the shape of the chains of `init`.
  """
  shape = log_prob.shape.as_list()
  if chain_shape not in ([DEFAULT_NUM_CHAINS], shape) and None not in shape:
    raise ValueError(
      f'`{name}` is {_brief(chain_shape)}, but `init` has {_brief(shape)} '
      f'chains. Leave `{name}` out: the leading axes of `init` count.'
    )


def _brief(shape):
  return str(shape[0] if len(shape) == 1 else shape)


def dtype_that_works(target_log_prob_fn, init):
  """The other floating dtype, if a function that fails takes that.

  Args:
    target_log_prob_fn: Callable of the state.
    init: Structure of Tensors, where it fails.

  Returns:
    `tf.DType`, or None.
  """
  dtypes = {x.dtype for x in tf.nest.flatten(init)}
  for dtype, other in (tf.float64, tf.float32), (tf.float32, tf.float64):
    if dtypes == {dtype}:
      cast = tf.nest.map_structure(lambda x, to=other: tf.cast(x, to), init)
      try:
        nest.call_fn(target_log_prob_fn, cast)
      except Exception:  # The user's code; what it raised before is told.
        return None
      return other
  return None


def target_of_log_prob(
  target_log_prob_fn, init, bijectors, name='target_log_prob_fn'
):
  """A log density in the coordinates of given bijectors.

  Args:
    target_log_prob_fn: Callable of the state (`fn(x)` for a Tensor, `fn(*xs)`
      for a list, `fn(**xs)` for a dict), one value per chain.
    init: The state where the chains start.
    bijectors: Structure of `init` with a `tfb.Bijector` or None for each part,
      whose `forward` goes from all of Rⁿ to where the part lives; or None.
    name: Python `str`, the argument that the callable was given as.

  Returns:
    An `UnconstrainedTarget`.

  Raises:
    TypeError: if it returns another dtype than that of the parts.
    ValueError: if the structures differ.
  """
  init = as_start(init)
  parts = tf.nest.flatten(init)
  if bijectors is None:
    bijectors = [None] * len(parts)
  else:
    bijectors = _bijectors_of_parts(bijectors, init)
  bijectors = [tfp.bijectors.Identity() if b is None else b for b in bijectors]
  nest.check_takes(name, target_log_prob_fn, init, 'the parts of `init`')
  try:
    value = nest.call_as_caller(target_log_prob_fn, init, name)
  except (tf.errors.InvalidArgumentError, TypeError, ValueError) as e:
    other = dtype_that_works(target_log_prob_fn, init)
    if other is not None:
      raise ValueError(
        f'`{name}` fails at `init`, which has dtype {parts[0].dtype.name}, and '
        f'not at an `init` of dtype {other.name}. Pass it in that dtype '
        f'({arguments.reason(e)}).'
      ) from e
    if all(x.shape.rank != 0 for x in parts):
      raise
    raise ValueError(
      f'`init` has a part of shape [], a number without an axis of chains, and '
      f'`{name}` fails there ({arguments.reason(e)}). Pass an `init` whose '
      'first axes are the chains, such as `tf.zeros([64, 3])`.'
    ) from e
  log_prob = batching.checked_value(value, name)
  _check_chains(log_prob, parts, name)
  batching.check_value(log_prob, parts, None, name)
  check_dtype(log_prob, parts, name)
  chain_ndims = log_prob.shape.rank
  start = [
    _inverse(i, bijector, part, chain_ndims)
    for i, (bijector, part) in enumerate(zip(bijectors, parts))
  ]
  check_reached(bijectors, parts, start)

  def constrain(parts):
    return tf.nest.pack_sequence_as(
      init, [b.forward(tf.identity(x)) for b, x in zip(bijectors, parts)]
    )

  @not_converted
  def log_prob_fn(*parts):
    # Copies: a bijector remembers by identity what it computed elsewhere.
    parts = [tf.identity(x) for x in parts]
    log_det = [
      b.forward_log_det_jacobian(x, event_ndims=x.shape.rank - chain_ndims)
      for b, x in zip(bijectors, parts)
    ]
    state = constrain(parts)
    value = nest.call_as_caller(target_log_prob_fn, state, name) + sum(log_det)
    if value.shape.rank is None:
      # As of a `tf.py_function`. At the start it is one value for each chain.
      value = tf.ensure_shape(value, parts[0].shape[:chain_ndims])
    return value

  log_prob_fn, traced = _once(named(log_prob_fn, name), is_model=False)
  return UnconstrainedTarget(
    log_prob_fn=log_prob_fn,
    start=start,
    constrain=constrain,
    traced=traced,
  )


def _inverse(i, bijector, part, chain_ndims):
  """Part `i` of a start in Rⁿ; refuses a bijector that does not fit to it."""

  def there_and_back(x):
    event_ndims = x.shape.rank - chain_ndims
    least = bijector.inverse_min_event_ndims
    if event_ndims < least:
      raise ValueError(f'it takes events of rank {least} or more')
    z = tf.identity(bijector.inverse(x))
    # Another copy than that whose inverse is known.
    bijector.forward(tf.identity(z))
    bijector.forward_log_det_jacobian(
      tf.identity(z), event_ndims=z.shape.rank - chain_ndims
    )
    return z

  try:
    return there_and_back(part)
  except Exception as e:  # Of TensorFlow, or of what the user wrote.
    other = dtype_that_works(there_and_back, part)
    way_out = (
      'Pass one that has an inverse and a log-determinant there, or None.'
    )
    if other is not None:
      way_out = f'With {other.name} it works: pass `init` in that dtype.'
    raise ValueError(
      f'`bijectors` has {bijector.name!r} for part {i} of `init`, and fails '
      f'there, with {part.dtype.name} and events of shape '
      f'{part.shape[chain_ndims:]} ({arguments.reason(e)}). {way_out}'
    ) from e


def _check_chains(log_prob, parts, name):
  """Refuses a log density whose shape does not lead that of each part."""
  rank = log_prob.shape.rank
  for x in parts:
    if rank is None or x.shape.rank is None:
      continue
    if not log_prob.shape.is_compatible_with(x.shape[:rank]):
      raise ValueError(
        f'`{name}` returned a log density of shape {log_prob.shape} for an '
        f'`init` with a part of shape {x.shape}, but must return one value for '
        'each chain, and the chains are the first axes of `init`. Reduce over '
        'the last axes, as `tf.reduce_sum(..., axis=-1)` does.'
      )


def as_start(init):
  """The start of chains as Tensors; refuses what chains cannot start from.

  Args:
    init: Structure of Tensors, as a driver was given it.

  Returns:
    Structure of Tensors.

  Raises:
    TypeError: if a part is no Tensor of float32 or float64, or two differ.
    ValueError: if there is no part, or no chain.
  """
  init = tf.nest.map_structure(
    lambda x: arguments.as_tensor('A part of `init`', x), init
  )
  parts = tf.nest.flatten(init)
  if not parts:
    raise ValueError(
      '`init` has no parts; pass Tensors with leading chain shape.'
    )
  for x in parts:
    if x.dtype not in (tf.float32, tf.float64):
      raise TypeError(
        f'A part of `init` has dtype {x.dtype.name}, but chains move in '
        'float32 or float64; cast it.'
      )
    if x.shape.rank and x.shape[0] == 0:
      raise ValueError(
        f'A part of `init` has shape {x.shape}, which is no chain at all; its '
        'first axis is that of the chains.'
      )
  if len({x.dtype for x in parts}) > 1:
    dtypes = ', '.join(x.dtype.name for x in parts)
    raise TypeError(
      f'`init` has parts of {dtypes}, but all must have one dtype; cast them, '
      'as by `tf.cast(x, tf.float64)`.'
    )
  return init


def _bijectors_of_parts(bijectors, init):
  flat = tf.nest.flatten(bijectors)
  for b in flat:
    if b is not None and not isinstance(b, tfp.bijectors.Bijector):
      raise TypeError(
        f'`bijectors` has {arguments.shown(b)} in it, but must be a '
        '`tfp.bijectors.Bijector`, or None, for each part of `init`.'
      )
  try:
    tf.nest.assert_same_structure(
      tf.nest.map_structure(lambda _: 0, bijectors),
      tf.nest.map_structure(lambda _: 0, init),
    )
  except (TypeError, ValueError) as e:
    raise ValueError(
      f'`bijectors` has the structure {nest.structure(bijectors)}, but `init` '
      f'has {nest.structure(init)}; give one bijector, or None, for each part.'
    ) from e
  return flat
