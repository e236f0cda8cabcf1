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
"""Writes files so that nobody finds one that is incomplete."""

import contextlib
import os
import pathlib
import tempfile


@contextlib.contextmanager
def atomic_write(path):
  """Opens a binary file that replaces `path` once it is complete.

  At any time, also if the writer is interrupted, `path` is the old file or the
  complete new one.

  Args:
    path: Python str or path.

  Yields:
    A file open for writing.
  """
  path = pathlib.Path(path).resolve()
  handle, name = _new_file_beside(path)
  try:
    with os.fdopen(handle, 'wb') as file:
      yield file
    # mkstemp sets the mode 0600; the umask says what a new file should have.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(name, 0o666 & ~umask)
    os.replace(name, path)
  except BaseException:
    os.unlink(name)
    raise


def try_to_write(path):
  """Raises an `OSError` where `atomic_write` would; leaves no file.

  Args:
    path: Python str or path.
  """
  handle, name = _new_file_beside(pathlib.Path(path).resolve())
  os.close(handle)
  os.unlink(name)


def _new_file_beside(path):
  return tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
