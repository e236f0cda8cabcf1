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
"""Draws in any structure, as named arrays."""

import collections.abc
import typing

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments


class NamedPart(typing.NamedTuple):
  """One part of the draws.

  Attributes:
    name: Python `str`.
    values: NumPy array of shape [draws, chains, event...].
  """

  name: str
  values: np.ndarray

  @property
  def event_shape(self):
    """Tuple of Python `int`s."""
    return self.values.shape[2:]

  def parameters(self):
    """The values as an array [draws, chains, parameters]."""
    return self.values.reshape([*self.values.shape[:2], -1])

  def coordinate_names(self):
    """Tuple of `str`: the name, with an index where the part has axes."""
    if not self.event_shape:
      return (self.name,)
    return tuple(
      f'{self.name}[{", ".join(map(str, index))}]'
      for index in np.ndindex(self.event_shape)
    )


def named_draws(draws, chain_ndims, var_names):
  """The parts of draws with their names, the axes of the chains made one.

  Args:
    draws: Structure of Tensors or arrays [draw, chain..., event...].
    chain_ndims: Python `int`, how many axes belong to the chains; with none
      there is one chain.
    var_names: Sequence of `str` in the place of the structure's names, or None.

  Returns:
    parts: List of `NamedPart`s.
    chain_shape: Tuple of `int`s.

  Raises:
    ValueError: if the parts disagree on draws or chains, or the names do not
      fit.
  """
  check_not_whole(draws)
  found = list(named_leaves(draws))
  if not found:
    raise ValueError(_NO_PARTS)
  names, leaves = zip(*found)
  if var_names is not None:
    names = arguments.as_names('var_names', var_names)
    if len(names) != len(leaves):
      parts = '1 part' if len(leaves) == 1 else f'{len(leaves)} parts'
      raise ValueError(
        f'`var_names` has {len(names)} entries, {names}, but `draws` has '
        f'{parts}; give one name for each.'
      )
  if len(set(names)) < len(names):
    raise ValueError(
      f'The names of the parts, {list(names)}, are not distinct.'
    )
  values = [as_draws(leaf) for leaf in leaves]
  joined = [joined_chains(v, chain_ndims, n) for n, v in zip(names, values)]
  leads = [value.shape[: 1 + chain_ndims] for value in values]
  for name, lead in zip(names, leads):
    if lead != leads[0]:
      raise ValueError(
        f'{name} has {list(lead)} draws and chains, but {names[0]} has '
        f'{list(leads[0])}; all parts need the same.'
      )
  parts = [NamedPart(n, v) for n, v in zip(names, joined)]
  return parts, leads[0][1:]


_NO_PARTS = (
  '`draws` has no parts; pass a Tensor or an array of shape [draw, chain..., '
  'event...], or a structure of these.'
)


def as_numbers(what, given):
  """An array of real numbers or flags, or an error that says what is not one.

  Args:
    what: Python `str`, what was given, in backticks.
    given: What was given.

  Returns:
    NumPy array.

  Raises:
    TypeError: if it is something else.
  """
  is_array = not isinstance(
    given, (type, str, tf.RaggedTensor, tf.SparseTensor)
  )
  reason = ''
  if is_array:
    try:
      found = np.asarray(given)
      # Of bfloat16 NumPy knows no more than the name.
      if found.dtype.kind in 'biuf' or found.dtype.name == 'bfloat16':
        return found
      reason = f' (its dtype is {found.dtype.name})'
    except (TypeError, ValueError) as e:
      reason = f' ({arguments.reason(e)})'
  raise TypeError(
    f'{what} is {arguments.shown(given)}, which is not an array of real '
    f'numbers{reason}. Pass a Tensor or an array.'
  )


def check_not_whole(draws):
  """Refuses what a sampler returned where its draws are asked for.

  Args:
    draws: What was given as `draws`.

  Raises:
    TypeError: if it has draws and a trace.
  """
  if {'draws', 'trace'} <= set(getattr(draws, '_fields', ())):
    kind = type(draws).__name__
    raise TypeError(
      f'`draws` is a `{kind}`, all that a sampler returned; pass its `.draws` '
      '(and its `.trace` where a trace is asked for).'
    )


def as_draws(given):
  """One part of draws as an array; see `as_numbers`."""
  return as_numbers('A part of `draws`', given)


def map_draws(fn, draws, chain_ndims):
  """Applies a function to each part of draws.

  Args:
    fn: Callable of an array [draw, chains, event...].
    draws: Structure of Tensors or arrays [draw, chain..., event...].
    chain_ndims: Python `int`, how many axes belong to the chains.

  Returns:
    Structure of `draws`.

  Raises:
    TypeError: if a part is not made of real numbers.
    ValueError: if there is no part, or one has too few axes or no draws.
  """
  check_not_whole(draws)
  chain_ndims = check_chain_ndims(chain_ndims)
  if not tf.nest.flatten(draws):
    raise ValueError(_NO_PARTS)

  def of_part(part):
    values = joined_chains(as_draws(part), chain_ndims)
    if not values.shape[0] or not values.shape[1]:
      raise ValueError(
        f'`draws` has a part with {values.shape[0]} draws of {values.shape[1]} '
        'chains; there is nothing to look at.'
      )
    return fn(values)

  return tf.nest.map_structure(of_part, draws)


def joined_chains(values, chain_ndims, name='draws'):
  """Makes the axes of the chains one, row by row.

  Args:
    values: Array [draw, chain..., event...].
    chain_ndims: Python `int`, the number of chain axes.
    name: Python `str`, for the error message.

  Returns:
    Array [draw, chains, event...].

  Raises:
    ValueError: if there are not so many axes.
  """
  if values.ndim < 1 + chain_ndims:
    raise ValueError(
      f'{name} has shape {list(values.shape)}, but needs an axis for the '
      f'draws and {chain_ndims} for the chains (`chain_ndims`) in front of the '
      'event.'
    )
  chain_shape = values.shape[1 : 1 + chain_ndims]
  event_shape = values.shape[1 + chain_ndims :]
  num_chains = int(np.prod(chain_shape))
  return values.reshape([len(values), num_chains, *event_shape])


def named_leaves(structure, name=''):
  """Yields pairs of a name and a leaf; those of a dict in its order.

  A part is named by its key in a dict, its field in a namedtuple, its position
  in a list, these joined with dots where they are nested; and 'x' on its own.

  Args:
    structure: Structure of dicts, namedtuples, lists and tuples.
    name: Python `str`, what stands in front.

  Yields:
    Pairs of a `str` and a leaf.
  """
  if isinstance(structure, collections.abc.Mapping):
    items = [(str(key), value) for key, value in structure.items()]
  elif hasattr(structure, '_fields'):
    items = [(field, getattr(structure, field)) for field in structure._fields]
  elif isinstance(structure, (list, tuple)):
    # A name cannot begin with a digit.
    prefix = '' if name else 'x'
    items = [(f'{prefix}{i}', value) for i, value in enumerate(structure)]
  else:
    yield name or 'x', structure
    return
  for key, value in items:
    yield from named_leaves(value, f'{name}.{key}' if name else key)


def check_chain_ndims(chain_ndims):
  """A number of axes of chains as an `int`; raises a ValueError for all else.

  Args:
    chain_ndims: What was given.

  Returns:
    Python `int`.
  """
  return arguments.as_count(
    'chain_ndims', chain_ndims, 0, 'how many axes belong to the chains'
  )
