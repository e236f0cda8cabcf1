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
"""Files that are complete or not there."""

import contextlib
import os
import pathlib
import tempfile

__all__ = ['atomic_write', 'try_to_write']


@contextlib.contextmanager
def atomic_write(path):
  """A binary file that takes the place of `path` once it is complete.

  Who reads `path`, and who interrupts the writer, finds the old file or the
  new one and never a part.

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
    # mkstemp gives 0600; a new file should have what the umask leaves.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(name, 0o666 & ~umask)
    os.replace(name, path)
  except BaseException:
    os.unlink(name)
    raise


def try_to_write(path):
  """Raises an `OSError` where `atomic_write` would; leaves nothing behind.

  Args:
    path: Python str or path.
  """
  handle, name = _new_file_beside(pathlib.Path(path).resolve())
  os.close(handle)
  os.unlink(name)


def _new_file_beside(path):
  return tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
