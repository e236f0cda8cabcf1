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
"""The variables of a model, by their names."""

import collections
import collections.abc
import functools


def free_names(model):
  """The names of the variables that are not pinned, in the model's order.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.

  Returns:
    Tuple of Python `str`s.
  """
  return tuple(by_name(model, model.event_shape))


def by_name(model, structure):
  """What a structure has for each variable.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    structure: Structure of its variables.

  Returns:
    Dict from their names.
  """
  if isinstance(structure, collections.abc.Mapping):
    return dict(structure)
  if hasattr(structure, '_fields'):
    return dict(zip(structure._fields, structure))
  # Only a model without names for its variables makes them up in private.
  return dict(zip(model._flat_resolve_names(), structure))


def with_names(model, state):
  """A state whose variables have names, and that can be pickled.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    state: Structure of its variables.

  Returns:
    A namedtuple in the place of a list or of a type of TFP that no module has;
    a list as it is if one of its names cannot be a field.
  """
  if not isinstance(state, collections.abc.Mapping) and not hasattr(
    state, '_fields'
  ):
    state = _state('State', free_names(model), state)
  return _of_modules(state)


def _of_modules(state):
  """The same structure in types that another process can make."""
  if isinstance(state, dict):
    return type(state)(zip(state, map(_of_modules, state.values())))
  if hasattr(state, '_fields'):
    parts = tuple(map(_of_modules, state))
    if '<locals>' not in type(state).__qualname__:
      return state._make(parts)
    # For `tf.nest`, equal names and fields are one type.
    return _state(type(state).__name__, state._fields, parts)
  if isinstance(state, (list, tuple)):
    return type(state)(map(_of_modules, state))
  return state


def _state(kind, names, parts):
  made = _type_of(kind, names)
  return parts if made is None else made(*parts)


@functools.lru_cache
def _type_of(kind, names):
  """The namedtuple, the same for equal names; None if one is no identifier."""
  try:
    fields = collections.namedtuple(kind, names)
  except ValueError:
    return None

  class State(fields):
    """Can be pickled, though no module has it."""

    __slots__ = ()

    def __reduce__(self):
      return _state, (kind, names, tuple(self))

  State.__name__ = kind
  return State
