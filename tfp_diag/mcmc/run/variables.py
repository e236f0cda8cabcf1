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
  """A state of a model that lists its variables as a namedtuple of them.

  Args:
    model: A `tfd.JointDistribution`, pinned or not.
    state: Structure of its variables.

  Returns:
    A namedtuple; `state` if it has names already, or one that cannot be a
    field.
  """
  if isinstance(state, collections.abc.Mapping) or hasattr(state, '_fields'):
    return state
  return _state(free_names(model), state)


def _state(names, parts):
  kind = _type_of(names)
  return parts if kind is None else kind(*parts)


@functools.lru_cache
def _type_of(names):
  """The namedtuple, the same for equal names; None if one is no identifier."""
  try:
    fields = collections.namedtuple('State', names)
  except ValueError:
    return None

  class State(fields):
    """Can be pickled, though no module has it."""

    __slots__ = ()

    def __reduce__(self):
      return _state, (names, tuple(self))

  return State
