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
"""The file and the name of a function of the user."""

import pathlib

from tfp_diag.command_line.input_error import InputError


def function_file(where):
  """Takes `PATH.py:NAME` apart, and looks whether there is such a file.

  Does not run the file, so the answer comes before TensorFlow is imported.

  Args:
    where: Python `str`.

  Returns:
    The path as a `str`, and the name.

  Raises:
    InputError: if there is no file, or if `where` has another form.
  """
  path, colon, name = where.rpartition(':')
  if not colon:
    path, name = where, ''
  if path and not pathlib.Path(path).is_file():
    raise InputError(
      f'{where}: there is no file {path}; a function is given as PATH.py:NAME, '
      'for example model.py:log_prob.'
    )
  if path and pathlib.Path(path).suffix != '.py':
    raise InputError(f'{where}: {pathlib.Path(path).name} must be a .py file.')
  if not path or not name:
    raise InputError(
      f'{where} must have the form PATH.py:NAME, for example '
      f'{path or "model.py"}:{name or "log_prob"}.'
    )
  return path, name
