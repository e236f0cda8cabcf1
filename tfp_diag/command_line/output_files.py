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
"""Files that a command writes."""

import os
import pathlib

from tfp_diag.command_line.input_error import InputError

__all__ = ['check_output_file']


def check_output_file(option, path):
  """Raises an `InputError` when a file could not be written at the end.

  Args:
    option: Python `str`, the option that names the file.
    path: Python `str`, the file.

  Raises:
    InputError: if the folder does not exist or cannot be written to, or if
      `path` is a folder.
  """
  path = pathlib.Path(path)
  folder = path.resolve().parent
  if path.is_dir():
    raise InputError(f'{option} {path} is a folder and must be a file.')
  if not folder.is_dir():
    raise InputError(
      f'{option} {path} cannot be written: there is no folder {folder}.'
    )
  if not os.access(folder, os.W_OK):
    raise InputError(
      f'{option} {path} cannot be written: no permission in {folder}.'
    )
