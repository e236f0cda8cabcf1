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
"""Warnings that show the line of the user's that they are about."""

import sys
import types
import warnings

# Between the user's line and what warns stand any number of frames of these.
_NOT_THE_USERS = (
  'contextlib',
  'tensorflow',
  'tensorflow_probability',
  'tfp_diag',
)
# What AutoGraph makes of the user's code is in files of such names.
_CONVERTED = '__autograph_generated'


def warn(message: str, category: type[Warning] = UserWarning) -> None:
  """Warns at the innermost line that is neither ours nor TensorFlow's.

  Args:
    message: Python str, sentences.
    category: Subclass of `Warning`.
  """
  frame, level = sys._getframe(1), 2
  while frame.f_back is not None and _is_of_a_library(frame):
    frame, level = frame.f_back, level + 1
  warnings.warn(message, category, stacklevel=level)


def _is_of_a_library(frame: types.FrameType) -> bool:
  package = frame.f_globals.get('__name__', '').partition('.')[0]
  return package in _NOT_THE_USERS or _CONVERTED in frame.f_code.co_filename
