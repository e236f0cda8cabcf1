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

import collections.abc


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
