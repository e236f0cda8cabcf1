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
"""What drivers check about a model and what is said of it, one way for all.

A driver takes pins as keyword arguments, so that a misspelled argument looks
like a pin: all that is wrong gets a sentence here, before TensorFlow sees it.
"""

import collections.abc
import inspect

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.internal import arguments
from tfp_diag.internal.arguments import as_count, did_you_mean

# What it is called elsewhere, in TFP above all, by what it is called here.
_CALLED_ELSEWHERE = {
  'bijectors': ('bijector', 'constraining_bijector', 'constraining_bijectors'),
  'init': ('current_state', 'init_state', 'initial_state', 'initvals'),
  'init_step_size': ('initial_step_size', 'step_size'),
  'joint_dist': ('model', 'target_log_prob_fn', 'log_prob_fn'),
  'n_chains': ('chains', 'num_chains'),
  'n_draws': ('draws', 'n_samples', 'num_draws', 'num_results', 'num_samples'),
  'num_adaptation_steps': (
    'num_burnin_steps',
    'num_warmup',
    'num_warmup_steps',
    'tune',
    'warmup',
  ),
  'seed': ('random_seed', 'rng', 'rng_key'),
  'target_accept_prob': ('dual_averaging_kwargs', 'target_accept'),
}
# What `mcmc.sample` takes.
_OF_SAMPLE = (
  'block_size',
  'checkpoint',
  'draws_on_disk',
  'kernel',
  'num_steps_between_results',
  'previous_kernel_results',
  'progress_bar',
  'resume',
  'stop_when',
  'strategy',
)
# What only one of the drivers takes that find their settings.
_OF_DRIVER = {
  'sample_posterior': ('max_num_steps', 'use_curvature'),
  'windowed_adaptive_mala': (
    'discard_tuning',
    'init_step_size',
    'previous_kernel_results',
    'trace_fn',
  ),
}
# What is done anyway.
_NEEDLESS = {
  'init_near_unconstrained_zero': 'without `init`, chains start there anyway',
  'step_size': 'the warm-up finds it, by the acceptance rate that '
  '`target_accept_prob` says',
}
# What TFP's samplers take, without a counterpart in this package.
_OF_TFP = (
  'chain_axis_names',
  'max_energy_diff',
  'max_tree_depth',
  'num_leapfrog_steps',
  'parallel_iterations',
  'return_final_kernel_results',
  'unrolled_leapfrog_steps',
)
_AUTO_BATCHED = (
  tfp.distributions.JointDistributionCoroutineAutoBatched,
  tfp.distributions.JointDistributionNamedAutoBatched,
  tfp.distributions.JointDistributionSequentialAutoBatched,
)
# Numbers, in an error.
_FEW = 5
# Classes of TFP (0.25) of which the bijector misses values, whatever the
# parameters are: Cholesky factors with a diagonal below log 2, and directions
# with a negative coordinate.
_PARTLY_REACHED = (
  'PowerSpherical',
  'SphericalUniform',
  'VonMisesFisher',
  'WishartLinearOperator',
)
# Draws that are looked at, and the numbers in all of them.
_MOST_DRAWS = 2048
_MOST_NUMBERS = 2**17
# Sigmoids and the like of less than that are not rounded to their limits.
_MODERATE = 6.0


def as_chain_shape(n_chains):
  """The shape of the chains as a list of `int`s.

  Args:
    n_chains: Python `int` or list of `int`s, as a driver was given it.

  Returns:
    List of Python `int`s.

  Raises:
    ValueError: if one of these is no positive integer.
  """
  what = 'how many chains are started, or a list of these'
  is_list = (
    n_chains.rank is not None
    if isinstance(n_chains, tf.TensorShape)
    else isinstance(n_chains, (list, tuple, np.ndarray))
    and np.ndim(n_chains) == 1
  )
  if is_list:
    return [as_count('n_chains', n, 1, what) for n in list(n_chains)]
  return [as_count('n_chains', n_chains, 1, what)]


def check_positive(name, value):
  """Refuses a number that is not positive and finite; passes Tensors and None.

  Args:
    name: Python `str`, the argument.
    value: What was given.

  Raises:
    ValueError: if it is another number, or none.
  """
  if value is None:
    return
  if tf.is_tensor(value) or isinstance(value, np.ndarray):
    if not isinstance(value, tf.RaggedTensor) and value.shape:
      return
  arguments.check_number(
    name, value, 'a positive, finite number', arguments.is_positive
  )


def check_acceptance(name, value):
  """Refuses what is no probability of acceptance to aim at.

  Args:
    name: Python `str`, the argument.
    value: What was given.

  Raises:
    ValueError: if it is not between 0 and 1.
  """
  arguments.check_number(
    name,
    value,
    'between 0 and 1; in high dimensions 0.574 is best for single steps of '
    'MALA, and more for trajectories',
    lambda x: 0.0 < x < 1.0,
  )


def check_argument_names(given, driver, model=None):
  """Refuses keywords that are neither variables to pin nor arguments.

  Args:
    given: Iterable of Python `str`s, the keywords that are no arguments.
    driver: Python callable, which was called.
    model: The `tfd.JointDistribution` whose variables can be pinned, or None.

  Raises:
    ValueError: if there is another keyword. Says what is meant by it here.
  """
  free = [] if model is None else list(_names(model))
  arguments = [
    argument.name
    for argument in inspect.signature(driver).parameters.values()
    if argument.kind is not argument.VAR_KEYWORD
  ]
  of_model = next(a for a in arguments if a.startswith('joint_dist'))
  for name in free:
    if name in arguments:
      raise ValueError(
        f'`{of_model}` has a variable {name!r}, which is the name of an '
        f'argument, too: `{name}=...` would not pin it. Pin it first, by '
        f'`experimental_pin({name}=...)`, or rename it.'
      )
  for name in given:
    if name in free:
      continue
    instead = _instead(name, arguments)
    if instead is not None:
      raise ValueError(f'`{name}` is not an argument here{instead}')
    if name in getattr(model, 'pins', ()):
      raise ValueError(
        f'{name!r} is pinned already in `{of_model}`; pass the model without '
        'that pin, or leave it out here.'
      )
    meant = did_you_mean(name, [*free, *arguments])
    if model is None:
      raise ValueError(
        f'{name!r} is not an argument and cannot be pinned, since `{of_model}` '
        f'is a callable; close over what is observed.{meant}'
      )
    raise ValueError(
      f'{name!r} is neither an argument nor a variable of `{of_model}`, which '
      f'are {", ".join(map(repr, free))}.{meant}'
    )


def _instead(name, arguments):
  """What to do about a name that is known, though not here; or None."""
  for key, names in _CALLED_ELSEWHERE.items():
    here = [a for a in arguments if a in (key, *names)]
    if here and name in (key, *names):
      return f'; use `{here[0]}` instead.'
  if name in _NEEDLESS:
    return f': {_NEEDLESS[name]}. Leave it out.'
  for other, names in _OF_DRIVER.items():
    if name in names:
      return f'; `tfp_diag.mcmc.{other}` has it.'
  if name in _OF_SAMPLE:
    return '; `tfp_diag.mcmc.sample` has it, and takes a kernel of your choice.'
  if name in _OF_TFP:
    return ', and nothing corresponds to it; leave it out.'
  return None


def check_pins(model, pins, chain_shape):
  """What is observed; refuses what does not fit to its variable.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    pins: Dict from names of its variables to what is observed.
    chain_shape: List of Python `int`s: data that are the same for all chains,
      for models that are not auto-batched, may have these axes in front.

  Returns:
    Dict as `pins`: Tensors of integers in the dtype of a floating variable.

  Raises:
    TypeError: if one is not made of numbers, or a Tensor of another dtype.
    ValueError: if the shape of one does not fit; names it and what does.
  """
  event_shapes = _by_name(model, model.event_shape)
  dtypes = _by_name(model, model.dtype)
  checked = dict(pins)
  for name, value in pins.items():
    expected = event_shapes.get(name)
    if value is None:
      raise ValueError(
        f'`{name}` is None, which would leave {name!r} among the unknowns; '
        'pass what was observed, or leave the argument out.'
      )
    if not isinstance(expected, tf.TensorShape):
      continue
    try:
      value = value if tf.is_tensor(value) else np.asarray(value)
    except ValueError as e:
      raise ValueError(
        f'The value of {name!r} is not an array ({e}), but must be one of '
        f'shape {expected}.'
      ) from e
    dtype = dtypes.get(name)
    if tf.is_tensor(value) and dtype and tf.as_dtype(dtype).is_floating:
      if value.dtype.is_integer:
        checked[name] = tf.cast(value, dtype)
      elif value.dtype.is_floating and value.dtype != dtype:
        raise TypeError(
          f'What is pinned as {name!r} is a Tensor of dtype '
          f'{value.dtype.name}, but the variable has '
          f'{tf.as_dtype(dtype).name}; cast it by `tf.cast`.'
        )
    shape = tf.TensorShape(value.shape)
    if getattr(value.dtype, 'name', None) == 'string' or (
      getattr(value.dtype, 'kind', None) in tuple('OSU')
    ):
      raise TypeError(
        f'The value of {name!r} is {arguments.shown(value)}, but must be an '
        f'array of numbers of shape {expected}.'
      )
    if not _fits(shape, expected, _leading_shape(model, chain_shape)):
      raise ValueError(
        f'What is pinned as {name!r} has the shape {shape}, but the variable '
        f'has {expected}; pass a value of that shape, or build the model for '
        'this one, with its axes in the event (`tfd.Sample`, '
        '`tfd.Independent`).'
      )
    _check_same_for_chains(name, value, shape, expected)
  return checked


def check_pinned(model):
  """As `check_pins`, for what the caller has pinned: only that it is shared.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
  """
  whole = getattr(model, 'distribution', model)
  event_shapes = _by_name(whole, whole.event_shape)
  for name, value in (getattr(model, 'pins', None) or {}).items():
    expected = event_shapes.get(name)
    if value is not None and isinstance(expected, tf.TensorShape):
      _check_same_for_chains(
        name, value, tf.TensorShape(np.shape(value)), expected
      )


def _check_same_for_chains(name, value, shape, event_shape):
  """Refuses data that differ from chain to chain."""
  if None in (shape.rank, event_shape.rank) or shape.rank <= event_shape.rank:
    return
  if tf.is_tensor(value):
    value = tf.get_static_value(tf.convert_to_tensor(value))
  if value is None or not np.size(value):
    return
  leading = shape[: shape.rank - event_shape.rank]
  rows = np.reshape(value, [leading.num_elements(), -1])
  shared = np.broadcast_to(rows[:1], rows.shape)
  if np.array_equal(rows, shared, equal_nan=True):
    return
  raise ValueError(
    f'What is pinned as {name!r} has the shape {shape}, but the variable has '
    f'{event_shape}: each of the {len(rows)} chains would have '
    'data, and a posterior, of its own, while all share what is adapted, and '
    'are judged together. If these are observations of one posterior, say so '
    'in the model: `tfd.Sample` or `tfd.Independent` make their axes part of '
    'the event.'
  )


def _leading_shape(model, chain_shape):
  """What may stand in front of the shape of a variable."""
  model = getattr(model, 'distribution', model)
  return [] if isinstance(model, _AUTO_BATCHED) else chain_shape


def _fits(shape, event_shape, leading_shape):
  if shape.rank in (None, 0) or event_shape.rank is None:
    return True  # A scalar stands for equal values.
  num_leading = shape.rank - event_shape.rank
  if num_leading < 0 or not event_shape.is_compatible_with(shape[num_leading:]):
    return False
  allowed = list(leading_shape)[len(leading_shape) - num_leading :]
  return num_leading <= len(leading_shape) and all(
    n in (None, 1, m) for n, m in zip(shape[:num_leading].as_list(), allowed)
  )


def check_variables_left(model, of_model='joint_dist'):
  """Refuses a model of which every variable is pinned.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    of_model: Python `str`, the argument that the model was given as.

  Raises:
    ValueError: if there is no other.
  """
  if not tf.nest.flatten(model.event_shape):
    raise ValueError(
      f'Every variable of `{of_model}` is pinned, so that nothing is left to '
      'sample; leave out the pin of what is not observed.'
    )


def check_latent_variables(model, of_model='joint_dist'):
  """Refuses a model with a variable that no gradient can move.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    of_model: Python `str`, the argument that the model was given as.

  Raises:
    TypeError: if those that are not pinned are of several dtypes.
    ValueError: if a variable that is not pinned is discrete, or TFP has no
      bijector from all of Rⁿ to all of its values for it, or a wrong one; names
      it.
  """
  whole = getattr(model, 'distribution', model)
  free = _names(model)
  drawn = _drawn_distributions(whole)
  for name, distribution in _by_name(whole, drawn).items():
    if name not in free:
      continue
    kind = _kind(distribution)
    what = f'The variable {name!r} of `{of_model}` is a {kind}'
    if _is_immovable(distribution):
      raise ValueError(
        f'{what}, which has no bijector from all of Rⁿ in TFP, as discrete '
        f'variables and mixtures have none. Pin it (`{name}=...`), sum it out, '
        'or, if it has a density on Rⁿ, pass the log density as a callable, '
        'with `init` and `bijectors`.'
      )
    if 'LKJ' in kind.split(' of '):
      raise ValueError(
        f'{what}, for which TFP has a bijector with a wrong log-determinant: '
        'the draws would have another distribution. Write it as a '
        '`tfd.CholeskyLKJ`, whose draws times their transposes are distributed '
        'as a `tfd.LKJ`.'
      )
    if _is_of_other_values(distribution):
      raise ValueError(
        f'{what} with `input_output_cholesky=True`: its draws are Cholesky '
        'factors, but its density is that of the matrices, so that the draws '
        'would have another distribution. Leave that out, and take '
        '`tf.linalg.cholesky` of it where the factor is needed.'
      )
    if _is_partly_reached(distribution):
      raise ValueError(
        f'{what}, and the bijector that TFP has for it does not reach all of '
        f'its values. {_way_out(kind)}pass a log density as a callable, with '
        '`bijectors`.'
      )
    fault = _fault_of_bijector(distribution)
    if fault is not None:
      raise ValueError(
        f'{what}, and the bijector that TFP has for it fails '
        f'({arguments.reason(fault)}). Pass a log density as a callable, with '
        '`init` and `bijectors`.'
      ) from fault
  dtypes = {
    name: dtype.name
    for name, dtype in _by_name(model, model.dtype).items()
    if isinstance(dtype, tf.DType)
  }
  if len({*dtypes.values()}) > 1:
    shown = ', '.join(f'{name!r} of {dtypes[name]}' for name in dtypes)
    raise TypeError(
      f'`{of_model}` has the variables {shown}, but all that are not pinned '
      'must have one dtype: build the model in float32 or in float64.'
    )


def _drawn_distributions(model):
  """The distributions of the variables: where there are values, if it can."""
  seed = np.zeros([2], np.int32)
  try:
    with tf.init_scope():
      return model.sample_distributions(seed=seed)[0]
  except Exception:
    # A model that is made of Tensors of a graph.
    return model.sample_distributions(seed=seed)[0]


def _is_immovable(distribution):
  dtypes = tf.nest.flatten(distribution.dtype)
  if not all(tf.as_dtype(dtype).is_floating for dtype in dtypes):
    return True
  try:
    return distribution.experimental_default_event_space_bijector() is None
  except NotImplementedError:
    return True
  except Exception:
    # Not known; sampling will tell.
    return False


def _is_of_other_values(distribution):
  """Whether the density is not with respect to what is drawn."""
  while distribution is not None:
    known = getattr(distribution, 'parameters', {})
    if known.get('input_output_cholesky'):
      return True
    distribution = known.get('distribution')
  return False


def _is_partly_reached(distribution):
  """Whether the bijector of a distribution misses some of its values.

  Known of some distributions of TFP, and else looked for among draws: one that
  does not come back, although nothing on the way was large enough to overflow
  or to be rounded away, is not reached. Draws of a distribution that is nearly
  always reached cannot tell.
  """
  if any(
    _owner_of_bijector(d) in _PARTLY_REACHED for d in _inward(distribution)
  ):
    return True
  try:
    draws, free, back = _there_and_back(distribution)
  except NotImplementedError:
    return True  # There is no inverse, as of absolute values.
  except Exception:
    return False
  # Those of a wrong parameter are NaN, and say nothing.
  known = np.all(np.isfinite(draws), axis=1)
  if not np.any(known):
    return False
  draws, free, back = draws[known], free[known], back[known]
  sizes = np.abs(draws).max(axis=1, initial=0.0)
  with np.errstate(invalid='ignore'):
    errors = np.abs(draws - back)
    close = 0.01 * np.maximum(sizes, np.median(sizes))[:, np.newaxis]
    is_moderate = np.abs(free).max(axis=1, initial=0.0) < _MODERATE
    # What is zero, or nearly, has been rounded to the end of the support.
    is_inside = np.abs(draws).min(axis=1, initial=np.inf) > 1e-6 * sizes
    is_off = ~np.all(errors <= close, axis=1)
    is_far = ~np.all(errors <= 0.01 * sizes.max(), axis=1)
  is_nan = np.any(np.isnan(free), axis=1)
  is_lost = is_off & is_inside & (is_moderate | is_nan)
  return bool(np.any(is_lost)) or np.mean(is_far & ~is_nan) > 0.5


def _way_out(kind):
  if 'Wishart' in kind:
    return (
      'Make a class of it whose `_default_event_space_bijector` returns '
      '`tfb.Chain([tfb.CholeskyOuterProduct(), tfb.FillScaleTriL()])`, or '
    )
  return (
    'Write it with another distribution (a direction, say, as a `tfd.Sample` '
    'of a `tfd.Normal`, divided by its norm), or '
  )


def _fault_of_bijector(distribution):
  """What the bijector of a distribution raises, or None."""
  if not tf.executing_eagerly():
    return None  # It may be made of Tensors of a graph.
  try:
    bijector = distribution.experimental_default_event_space_bijector()
    draw = distribution.sample(seed=tf.zeros([2], tf.int32))
    free = tf.nest.map_structure(tf.identity, bijector.inverse(draw))
    bijector.forward_log_det_jacobian(free)
  except Exception as e:
    return e
  return None


def _there_and_back(distribution):
  """Draws, what the bijector makes of them, and what leads back, as rows."""
  with tf.init_scope():
    bijector = distribution.experimental_default_event_space_bijector()
    sizes = [
      shape.num_elements()
      for shape in tf.nest.flatten(distribution.event_shape)
    ]
    num = int(np.clip(_MOST_NUMBERS // max(1, sum(sizes)), 16, _MOST_DRAWS))
    draws = distribution.sample(num, seed=tf.zeros([2], tf.int32))
    # Copies: a bijector remembers by identity what it computed elsewhere.
    free = tf.nest.map_structure(tf.identity, bijector.inverse(draws))
    back = bijector.forward(free)
    return [
      np.concatenate(
        [np.reshape(part, [num, -1]) for part in tf.nest.flatten(state)], axis=1
      )
      for state in (draws, free, back)
    ]


def _owner_of_bijector(distribution):
  """The name of the class that has written the bijector of a distribution."""
  for cls in type(distribution).__mro__:
    if '_default_event_space_bijector' in vars(cls):
      return cls.__name__
  return None


def _inward(distribution):
  """A distribution and those that it is made of, from the outermost inward."""
  while isinstance(distribution, tfp.distributions.Distribution):
    yield distribution
    distribution = getattr(distribution, 'parameters', {}).get('distribution')


def _kind(distribution):
  """The classes, from the outermost inward."""
  return ' of '.join(type(d).__name__ for d in _inward(distribution))


def check_init(model, init, of_model='joint_dist'):
  """A start in the dtypes of the model; refuses what does not fit to it.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    init: Structure of Tensors, as a driver was given it.
    of_model: Python `str`, the argument that the model was given as.

  Returns:
    The parts in the structure of the model, arrays and numbers as Tensors of
    their variable's dtype.

  Raises:
    TypeError: if a part is made of neither floats nor integers, or is a Tensor
      of another dtype.
    ValueError: if it does not fit; names the variable.
  """
  names = list(_names(model))
  given = init._fields if hasattr(init, '_fields') else None
  given = list(init) if isinstance(init, collections.abc.Mapping) else given
  if given is not None and {*given} != {*names}:
    raise ValueError(
      f'`init` has the variables {", ".join(map(repr, given))}, but those of '
      f'`{of_model}` that are not pinned are {", ".join(map(repr, names))}.'
    )
  if not tf.nest.is_nested(init) or len(init) != len(names):
    what = (
      f'has {len(init)} Tensor(s)'
      if tf.nest.is_nested(init)
      else 'is one Tensor'
    )
    raise ValueError(
      f'`init` {what}, but must be a dict or a list with one Tensor for each '
      f'variable that is not pinned: {", ".join(map(repr, names))}.'
    )
  parts = dict(zip(names, init)) if given is None else _by_name(model, init)
  chain_shapes = {}
  dtypes = _by_name(model, model.dtype)
  for name, event_shape in _by_name(model, model.event_shape).items():
    if not isinstance(event_shape, tf.TensorShape) or event_shape.rank is None:
      continue
    part = arguments.as_tensor(f'`init` of {name!r}', parts[name])
    if part.dtype not in (tf.float32, tf.float64) and not part.dtype.is_integer:
      raise TypeError(
        f'`init` of {name!r} has dtype {part.dtype.name}, but chains move in '
        'float32 or float64; cast it.'
      )
    parts[name] = _of_dtype(name, parts[name], part, dtypes[name])
    shape = part.shape
    if shape.rank is None:
      continue
    num_leading = shape.rank - event_shape.rank
    if num_leading < 0 or not event_shape.is_compatible_with(
      shape[num_leading:]
    ):
      raise ValueError(
        f'`init` of {name!r} has the shape {shape}, but the variable has '
        f'{event_shape}; its shape must be that of the chains, then this one.'
      )
    chain_shapes[name] = shape[:num_leading]
  for name, shape in chain_shapes.items():
    first, expected = next(iter(chain_shapes.items()))
    if not shape.is_compatible_with(expected):
      raise ValueError(
        f'`init` of {name!r} is for chains of shape {shape}, but that of '
        f'{first!r} for {expected}; all variables need the same.'
      )
  # Whatever it was given in: from here on parts are known by their positions.
  structure = model.event_shape
  if isinstance(structure, collections.abc.Mapping):
    kind = (
      collections.OrderedDict if hasattr(structure, 'move_to_end') else dict
    )
    return kind((name, parts[name]) for name in structure)
  if hasattr(structure, '_fields'):
    return structure._replace(**parts)
  return type(structure)(parts[name] for name in names)


def check_inside(model, init, unconstrained):
  """Refuses, in eager mode, a start that is not inside of the supports.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    init: Structure of Tensors, in the structure of the model.
    unconstrained: What the inverse of the model's bijector makes of it.

  Raises:
    ValueError: if it is not finite; names the variable.
  """
  if not tf.executing_eagerly():
    return
  given = _by_name(model, init)
  for name, z in _by_name(model, unconstrained).items():
    for x, part in zip(tf.nest.flatten(given[name]), tf.nest.flatten(z)):
      if np.all(np.isfinite(part)):
        continue
      x = np.asarray(x)
      shown = f' ({x})' if x.size <= _FEW else ''
      raise ValueError(
        f'`init` of {name!r}{shown} is not inside of the support in all '
        'chains: a chain would not leave such a point. Pass another.'
      )


def check_reached(bijectors, parts, unconstrained):
  """Refuses, in eager mode, a start that a bijector does not lead to.

  Args:
    bijectors: List of `tfb.Bijector`s, one for each part.
    parts: List of Tensors, the parts of `init`.
    unconstrained: List of Tensors, what the inverses make of them.

  Raises:
    ValueError: if one is not finite where the part is; names the part.
  """
  if not tf.executing_eagerly():
    return
  for i, (b, x, z) in enumerate(zip(bijectors, parts, unconstrained)):
    if np.all(np.isfinite(x)) and not np.all(np.isfinite(z)):
      raise ValueError(
        f'Part {i} of `init` is not in all chains a value that its bijector '
        f'{b.name!r} leads to from a finite one. Pass another start, or '
        'another bijector.'
      )


def _of_dtype(name, given, part, dtype):
  """A part of a start, given and as a Tensor, in the dtype of a variable."""
  if dtype is None or part.dtype == dtype:
    return part
  if tf.is_tensor(given):
    raise TypeError(
      f'`init` of {name!r} is a Tensor of dtype {part.dtype.name}, but the '
      f'variable has {tf.as_dtype(dtype).name}; cast it by `tf.cast`.'
    )
  return tf.cast(tf.convert_to_tensor(given, dtype_hint=dtype), dtype)


def named_log_prob_parts(model, state):
  """The log densities of a model, variable by variable.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    state: Structure of the variables that are not pinned.

  Returns:
    Dict from names to Tensors.
  """
  if not hasattr(model, 'pins'):
    return _by_name(model, model.log_prob_parts(state))
  parts = model.unnormalized_log_prob_parts(state)
  pinned = parts.pinned
  if not isinstance(pinned, collections.abc.Mapping):
    pinned = dict(zip(model.pins, tf.nest.flatten(pinned)))
  return {**_by_name(model, parts.unpinned), **pinned}


def check_start(model, state):
  """Refuses a start at which the log density of a variable is not finite.

  Eager only: it looks at values.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    state: Structure of the variables that are not pinned, with leading chain
      shape, in the space of the model.

  Raises:
    ValueError: if there is one. Names it, how many chains, the index of the
      first and the value there.
  """
  values = _by_name(model, state)
  for name, part in named_log_prob_parts(model, state).items():
    part = np.asarray(part)
    bad = ~np.isfinite(part)
    if not np.any(bad):
      continue
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    chains = ''
    if part.ndim:
      chains = (
        f' in {np.sum(bad)} of {part.size} chains, the first of them at index '
        f'{list(index)}'
      )
    shown = repr(name)
    if name in values:
      here = np.asarray(values[name])
      here = here[index] if here.shape[: part.ndim] == part.shape else here
      where = f', where {name!r} is {here}' if here.size <= _FEW else ''
      way = 'Pass an `init` that is in the support of every variable'
      if np.isnan(part[index]):
        way = (
          'If that is in its support, look at its parameters in the model; '
          'or pass another `init`'
        )
    else:
      where, shown = '', f'{name!r}, which is pinned,'
      way = 'Look at the data, or pass another `init`'
    raise ValueError(
      f'The log density of {shown} is {part[index]} at the start{chains}'
      f'{where}. {way}; a chain cannot leave such a point.'
    )


def _names(model):
  """The names of the variables that are not pinned, in the model's order."""
  return tuple(_by_name(model, model.event_shape))


def _by_name(model, structure):
  """Dict from names of variables to what a structure has for them."""
  if isinstance(structure, collections.abc.Mapping):
    return dict(structure)
  if hasattr(structure, '_fields'):
    return dict(zip(structure._fields, structure))
  # Only a model without names for its variables makes them up in private.
  return dict(zip(model._flat_resolve_names(), structure))
