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
"""What drivers check about the values that they get, one way for all.

All that is wrong gets a sentence here, before TensorFlow sees it.
"""

import collections.abc
import functools

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_diag.internal import arguments
from tfp_diag.internal.arguments import as_count
from tfp_diag.mcmc.run.variables import by_name, free_names

_AUTO_BATCHED = (
  tfp.distributions.JointDistributionCoroutineAutoBatched,
  tfp.distributions.JointDistributionNamedAutoBatched,
  tfp.distributions.JointDistributionSequentialAutoBatched,
)
# Numbers, in an error.
_FEW = 5


def as_num_draws(name, value, least, place):
  """A number of draws; a model in its place is told where it belongs.

  Args:
    name: Python `str`, the argument.
    value: What was given.
    least: Python `int`, the smallest valid number.
    place: Python `str`, which argument the model is.

  Returns:
    Python `int`.

  Raises:
    ValueError: if it is something else.
  """
  is_model = callable(value) or hasattr(value, 'event_shape')
  what = f'how many draws; the model is the {place} argument'
  return as_count(name, value, least, what if is_model else None)


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


def check_pins(model, pins, chain_shape):
  """What is observed; refuses what does not fit to its variable.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    pins: Dict from names of its variables to what is observed.
    chain_shape: List of Python `int`s: data that are the same for all chains,
      for models that are not auto-batched, may have these axes in front.

  Returns:
    Dict as `pins`: Tensors of integers in the dtype of a floating variable, and
    scalars filled to the shape of theirs.

  Raises:
    TypeError: if one is not made of numbers, or a Tensor of another dtype.
    ValueError: if the shape of one does not fit; names it and what does.
  """
  event_shapes = by_name(model, model.event_shape)
  dtypes = by_name(model, model.dtype)
  leading_shape = _leading_shape(model, chain_shape)
  checked = dict(pins)
  for name, value in pins.items():
    if value is None:
      raise ValueError(
        f'`{name}` is None, which would leave {name!r} among the unknowns; '
        'pass what was observed, or leave the argument out.'
      )
    expected = event_shapes[name]
    parts = zip(
      _parts_of_pin(name, value, expected),
      tf.nest.flatten(expected),
      tf.nest.flatten(dtypes[name]),
    )
    checked[name] = tf.nest.pack_sequence_as(
      expected,
      [
        _checked_pin(
          *given,
          shape,
          dtype,
          leading_shape,
          functools.partial(_has_no_axes, model, name, i),
        )
        for i, (given, shape, dtype) in enumerate(parts)
      ],
    )
  return checked


def check_pinned(model):
  """As `check_pins`, for what the caller has pinned: only that it is shared.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
  """
  whole = getattr(model, 'distribution', model)
  event_shapes = by_name(whole, whole.event_shape)
  dtypes = by_name(whole, whole.dtype)
  for name, value in (getattr(model, 'pins', None) or {}).items():
    expected = event_shapes.get(name)
    if value is not None and isinstance(expected, tf.TensorShape):
      _check_whole(name, value, dtypes.get(name))
      _check_same_for_chains(
        name, value, tf.TensorShape(np.shape(value)), expected
      )


def _parts_of_pin(name, value, expected):
  """What is pinned of a variable, in parts if that is a model of its own.

  Args:
    name: Python `str`, the variable.
    value: What was given for it.
    expected: `tf.TensorShape`, or a structure of these.

  Returns:
    List of names and values, in the order of `tf.nest`.

  Raises:
    ValueError: if it has other parts.
  """
  if not tf.nest.is_nested(expected):
    return [(name, value)]
  shapes, values = _entries(expected), _entries(value)
  if {*shapes} != {*values}:
    has_names = values and all(isinstance(key, str) for key in values)
    found = (
      ', '.join(map(repr, values)) if has_names else arguments.shown(value)
    )
    raise ValueError(
      f'{name!r} has the variables {", ".join(map(repr, shapes))}, but what is '
      f'pinned of it is {found}. Pin it as a whole, with a value for each.'
    )
  is_dict = isinstance(expected, collections.abc.Mapping)
  return [
    part
    for key in (sorted(shapes) if is_dict else shapes)
    for part in _parts_of_pin(f'{name}.{key}', values[key], shapes[key])
  ]


def _entries(structure):
  """Dict of the entries of a structure, from keys, fields or indices."""
  if isinstance(structure, collections.abc.Mapping):
    return dict(structure)
  if hasattr(structure, '_fields'):
    return dict(zip(structure._fields, structure))
  is_list = isinstance(structure, (list, tuple))
  return dict(enumerate(structure)) if is_list else {}


def _checked_pin(name, value, expected, dtype, leading_shape, has_no_axes):
  """What is observed of a part of a variable; refuses what does not fit."""
  if not isinstance(expected, tf.TensorShape):
    return value
  if np.ma.is_masked(value):
    raise TypeError(
      f'The value of {name!r} is a masked array, but what is masked would be '
      'taken for data. Pass the values that were observed, and build the '
      'model for these.'
    )
  given = value
  try:
    value = value if tf.is_tensor(value) else np.asarray(value)
  except ValueError as e:
    raise ValueError(
      f'The value of {name!r} is not an array ({e}), but must be one of '
      f'shape {expected}.'
    ) from e
  _check_whole(name, value, dtype)
  if tf.is_tensor(value) and dtype and tf.as_dtype(dtype).is_floating:
    if value.dtype.is_integer:
      given = tf.cast(value, dtype)
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
      f'array of numbers of shape {expected}; convert it, as by '
      '`np.asarray(..., np.float32)`.'
    )
  if not _fits(shape, expected, leading_shape):
    raise ValueError(
      f'What is pinned as {name!r} has the shape {shape}, but the variable '
      f'has {expected}; pass a value of that shape, or build the model for '
      'this one, with its axes in the event (`tfd.Sample`, '
      '`tfd.Independent`).'
    )
  _check_same_for_chains(name, value, shape, expected)
  if shape.rank == 0 and expected.rank != 0:
    # Not all distributions broadcast a value, and some count it once.
    return _filled(name, given, expected, has_no_axes)
  return given


def _check_whole(name, value, dtype):
  """Refuses what no variable of integers can be, and TFP would cut off.

  Tensors may have fractions, which TFP does not cut off.
  """
  if dtype is None or not tf.as_dtype(dtype).is_integer:
    return
  is_tensor = tf.is_tensor(value)
  array = np.asarray(tf.get_static_value(value) if is_tensor else value)
  if array.dtype.kind != 'f':
    return
  name = f'The value of {name!r}, a variable of integers,'
  if not np.all(np.isfinite(array)):
    raise ValueError(
      f'{name} is not finite in {np.sum(~np.isfinite(array))} places. If these '
      'are missing, pass the values that were observed, and build the model '
      'for these.'
    )
  parts = array[array != np.trunc(array)]
  if parts.size and not is_tensor:
    raise ValueError(
      f'{name} has entries that are none, as {parts[0]:g}, which would be cut '
      'to whole numbers. Pass integers; or a Tensor, if the log density is '
      'meant for other numbers, too.'
    )


def _check_same_for_chains(name, value, shape, event_shape):
  """Refuses data that differ from chain to chain.

  Numbers for a variable of no axes are data, even if all are the same: that so
  many observations of zeros are as many as the chains is by chance.
  """
  if None in (shape.rank, event_shape.rank) or shape.rank <= event_shape.rank:
    return
  if tf.is_tensor(value):
    value = tf.get_static_value(tf.convert_to_tensor(value))
  if value is None or not np.size(value):
    return
  leading = shape[: shape.rank - event_shape.rank]
  rows = np.reshape(value, [leading.num_elements(), -1])
  shared = np.broadcast_to(rows[:1], rows.shape)
  if event_shape.rank and np.array_equal(rows, shared, equal_nan=True):
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


def _filled(name, value, event_shape, has_no_axes):
  """A scalar as equal values for a variable; refused if their number varies."""
  if event_shape.is_fully_defined():
    fill = tf.broadcast_to if tf.is_tensor(value) else np.broadcast_to
    return fill(value, event_shape)
  if not has_no_axes():
    raise ValueError(
      f'What is pinned as {name!r} is a scalar, but the shape of the variable '
      'is not known beforehand; pass an array of that shape.'
    )
  return value


def _has_no_axes(model, name, i):
  """Whether part `i` of a variable is a scalar, of whatever shape it says."""
  shapes = tf.nest.flatten(by_name(model, model.event_shape_tensor())[name])
  return shapes[i].shape.num_elements() == 0


def check_init(model, init, of_model):
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
  names = list(free_names(model))
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
  parts = dict(zip(names, init)) if given is None else by_name(model, init)
  chain_shapes = {}
  dtypes = by_name(model, model.dtype)
  for name, event_shape in by_name(model, model.event_shape).items():
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
  given = by_name(model, init)
  for name, z in by_name(model, unconstrained).items():
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
    return by_name(model, model.log_prob_parts(state))
  parts = model.unnormalized_log_prob_parts(state)
  pinned = parts.pinned
  if not isinstance(pinned, collections.abc.Mapping):
    pinned = dict(zip(model.pins, tf.nest.flatten(pinned)))
  return {**by_name(model, parts.unpinned), **pinned}


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
  values = by_name(model, state)
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
