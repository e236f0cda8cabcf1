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
"""Keeps a second run out of the directory of a first one.

By a lock of the operating system, which ends with the process that holds it,
however that ends. The file that is locked stays, and means nothing by itself.
"""

import contextlib
import os
import socket

try:
  import fcntl
except ImportError:  # Windows.
  fcntl = None
  import msvcrt

from tfp_diag.internal.warn import warn

LOCK_NAME = '.lock'
# Windows locks bytes, and lets nobody else read them: one far behind the text.
_LOCKED_BYTE = 2**30
# What a lock that somebody holds raises, there and on NFS the second.
_IS_HELD = (BlockingIOError, PermissionError)
# Open files, the locks of this process.
_held = set()


@contextlib.contextmanager
def directory_lock(path):
  """Holds the lock of a directory, which is made if it does not exist.

  Of processes, also of other machines where the file system can do that, and of
  runs in one process, one holds it at a time; who only reads does not ask. A
  file system without locks gives a warning, and nothing is kept out.

  Args:
    path: Python `str`.

  Yields:
    None.

  Raises:
    ValueError: if another run holds it. Says which, and the ways out.
  """
  os.makedirs(path, exist_ok=True)
  # For appending, which does not empty the file before the lock is held.
  with open(os.path.join(path, LOCK_NAME), 'a+') as file:
    try:
      _lock(file)
    except _IS_HELD as e:
      raise ValueError(
        f'The checkpoint {path!r} is in use by another run ({_holder(file)}). '
        'Wait for its end or stop it, or pass another path.'
      ) from e
    except OSError as e:
      warn(
        f'The checkpoint {path!r} is on a file system without locks ({e}): see '
        'to it that no other run writes there at the same time.'
      )
    else:
      _held.add(file)
    try:
      file.truncate(0)
      file.write(f'process {os.getpid()} on {socket.gethostname()}')
      file.flush()
      yield
    finally:
      _unlock(file)


def _leave_to_the_parent():
  """Closes in a forked process, which may live longer, what it inherited."""
  for file in _held:
    file.close()
  _held.clear()


if hasattr(os, 'register_at_fork'):
  os.register_at_fork(after_in_child=_leave_to_the_parent)


def _lock(file):
  """Locks an open file; raises one of `_IS_HELD` if it is locked."""
  if fcntl is not None:
    # Of the open file: two runs of one process keep each other out as well.
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  else:
    file.seek(_LOCKED_BYTE)
    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)


def _unlock(file):
  """Unlocks a file if it is locked; the text stays for who is curious."""
  if file not in _held:
    return
  _held.remove(file)
  if fcntl is not None:
    fcntl.flock(file, fcntl.LOCK_UN)
  else:
    file.seek(_LOCKED_BYTE)
    msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)


def _holder(file):
  """Who holds the lock, as far as it has written that."""
  file.seek(0)
  return file.read(200) or 'it has just begun'
