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

import pathlib

from tfp_diag.command_line.input_error import InputError
from tfp_diag.internal.atomic_write import try_to_write


def check_output_file(option, path, endings):
  """Raises an `InputError` when a file could not be written at the end.

  Args:
    option: Python `str`, the option that names the file.
    path: Python `str`, the file.
    endings: Collection of `str`, those that are known, without their dot.

  Raises:
    InputError: if `path` has another ending or is a folder, or if the folder
      that it is in does not exist or takes no file of that name.
  """
  path = pathlib.Path(path)
  try:
    if path.is_dir():
      raise InputError(f'{option} {path} is a folder and must be a file.')
    if path.suffix[1:].lower() not in endings:
      known = ', '.join(f'.{ending}' for ending in endings)
      must = 'must end in one of' if len(endings) > 1 else 'must end in'
      raise InputError(f'{option} {path} {must} {known}.')
    try_to_write(path)
  except OSError as e:
    folder = path.resolve().parent
    why = e.strerror or e
    if not folder.is_dir():
      why = f'there is no folder {folder}'
    raise InputError(f'{option} {path} cannot be written: {why}.') from e
