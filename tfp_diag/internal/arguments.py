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
"""Checks of arguments that several public functions share."""

import numbers

__all__ = [
  'check_bytes',
  'check_callable',
  'check_choice',
  'check_chunk',
  'checked_callable',
]


def check_callable(name, value):
  """Raises a TypeError if `value` cannot be called."""
  if not callable(value):
    raise TypeError(
      f'`{name}` is {value!r}, which cannot be called; pass a function of the '
      'parts of `xs`, like `lambda x: x**2`.'
    )


def checked_callable(name, value):
  """`value`, if it can be called; raises a TypeError if not."""
  check_callable(name, value)
  return value


def check_choice(name, value, choices):
  """Raises a ValueError if `value` is not one of `choices`."""
  if value not in choices:
    listed = ', '.join(repr(c) for c in choices)
    raise ValueError(f'`{name}` is {value!r}; it can be one of {listed}.')


def check_chunk(name, value):
  """Raises a ValueError if `value` is not a number of passes."""
  is_integer = isinstance(value, numbers.Integral) and not isinstance(
    value, bool
  )
  if not is_integer or value < 1:
    raise ValueError(
      f'`{name}` is {value!r}; it is how many passes run together, an integer '
      'of at least 1, where 1 is a plain loop.'
    )


def check_bytes(name, value):
  """Raises a ValueError if `value` is neither None nor a number of bytes."""
  if value is not None and value <= 0:
    raise ValueError(
      f'`{name}` is {value}; it is a positive number of bytes, or None for '
      '64 MiB, or 1 GiB where there is a GPU.'
    )
