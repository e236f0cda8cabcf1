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
"""A run in a directory, from which it can be resumed bit for bit.

The directory holds `checkpoint.npz`, which is replaced as a whole after each
block, and one `.npy` file for each part of the draws and of the trace, which
grows. What a block wrote is on disk before the checkpoint counts it, so that
the process can end at any moment: what the last checkpoint does not count is
written again. `index.json` is for who reads the draws meanwhile: it is replaced
as a whole, too, and counts the draws that all files have.
"""

import contextlib
import hashlib
import io
import json
import os
import typing
import zipfile

import numpy as np

from tfp_diag.mcmc.run.directory_lock import LOCK_NAME, directory_lock
from tfp_diag.mcmc.run.probe import same_log_prob
from tfp_diag.mcmc.run.rows import FileRows, as_bytes

INDEX_NAME = 'index.json'

_FORMAT = 'tfp_diag.mcmc.sample'
_VERSION = 2
# What a driver has found before the run.
WARM_UP_NAME = 'warm_up.npz'
_NAME = 'checkpoint.npz'
# Behind the name of a file that is written: one name each, so that a process
# that was killed leaves one file at most.
_PART = '.part'
# Of a `Progress`.
_LISTS = ('state', 'results', 'probe_state', 'probe_results', 'probe_trace')
# What NumPy's files hold: bfloat16 is bytes there, and a text a pickle.
_NUMBERS = '?' + np.typecodes['AllInteger'] + np.typecodes['AllFloat']
# Characters, in an error.
_EXCERPT = 160


class Progress(typing.NamedTuple):
  """How far a run has come, and all that its next block depends on.

  Attributes:
    step: Python `int`, how many steps were made.
    state: List of Tensors.
    results: List of Tensors: the kernel results.
    probe_state: List of Tensors, a state of this run.
    probe_log_prob: The target log density there, as the kernel's bootstrap
      gives it in eager mode: by this the target is known again. None for a
      kernel that does not tell.
    probe_results: List of arrays, of what that bootstrap gives: by this the
      functions and objects of the kernel are known again.
    probe_trace: List of arrays, of what is traced there.
  """

  step: int
  state: list
  results: list
  probe_state: list
  probe_log_prob: typing.Any
  probe_results: list
  probe_trace: list


class CheckpointDirectory:
  """The files of one run.

  Attributes:
    path: Python `str`.
    seed: int32 array of shape [2].
  """

  def __init__(
    self,
    path,
    settings,
    seed,
    row_specs,
    draw_names,
    trace_names,
    unconstrained=None,
  ):
    """Names the files; nothing is read or written yet.

    Args:
      path: Python `str` or path.
      settings: Dict of what must stay the same through a run: from words that
        end the sentence "... cannot be resumed with another ..." to something
        that JSON can hold.
      seed: int32 array of shape [2], or None for that of the checkpoint.
      row_specs: List of `tf.TensorSpec`s of one row, the parts of the state
        first.
      draw_names: List of Python `str`s, what the index calls those.
      trace_names: List of Python `str`s, what it calls the others.
      unconstrained: Dict from some draw names to what their vectors hold: from
        names of unconstrained parts to event shapes, in their order.
    """
    self.path = os.fspath(path)
    self._settings = settings
    self.seed = seed
    self._draw_files = {n: f'draws_{i}.npy' for i, n in enumerate(draw_names)}
    self._trace_files = {n: f'trace_{i}.npy' for i, n in enumerate(trace_names)}
    self._unconstrained = unconstrained
    files = [*self._draw_files.values(), *self._trace_files.values()]
    self._rows = FileRows([self._file(name) for name in files], row_specs)
    # Rows are hashed block by block, each block together with the hash of those
    # before, so that nothing is read twice during a run.
    self._block_ends = [0]
    self._rows_digest = ''

  def create(self, progress):
    """Writes the checkpoint of a run without rows.

    Args:
      progress: A `Progress`.
    """
    self._write(progress)
    self._rows.create()
    self._write_index()

  def append(self, rows, num_rows, progress):
    """Adds the rows of a block, and takes note of the progress.

    Args:
      rows: List of arrays, one per column.
      num_rows: Python `int`, how many rows there are with these.
      progress: A `Progress`.
    """
    if num_rows > self._block_ends[-1]:
      self._rows.write(self._block_ends[-1], rows)
      self._rows_digest = _hash_rows(self._rows_digest, rows)
      self._block_ends.append(num_rows)
    self._write(progress)
    self._rows.announce(num_rows)
    self._write_index()

  def load(self):
    """Reads the checkpoint and checks all of it, the rows as well.

    Returns:
      A `Progress` of arrays.

    Raises:
      ValueError: if it is damaged, of another version, or of another run.
    """
    try:
      arrays, meta = self._read()
    except Exception as e:
      # A damaged archive raises errors of many types in several libraries.
      raise unreadable(self.path, str(e) or type(e).__name__) from e
    begun = meta['settings']
    for name, given in self._settings.items():
      # Another driver has other arguments; all have made a kernel of them.
      if begun.get(name, given) != given:
        raise another_run(self.path, name, begun[name], given)
    self._settings = begun
    # Last: drivers derive different seeds from what they are given.
    if self.seed is None:
      self.seed = arrays['seed']
    elif not np.array_equal(self.seed, arrays['seed']):
      found, given = arrays['seed'].tolist(), self.seed.tolist()
      raise another_run(self.path, '`seed`', found, given)
    self._block_ends = arrays['block_ends'].tolist()
    self._rows_digest = meta['rows_digest']
    if self._block_ends[-1] == 0:
      self._rows.create()  # The last process may have ended before it did.
    try:
      self._check_rows()
    except (OSError, ValueError) as e:
      raise unreadable(self.path, str(e)) from e
    self._rows.announce(self._block_ends[-1])
    self._write_index()
    return Progress(
      step=meta['step'],
      probe_log_prob=arrays.get('probe_log_prob'),
      **{name: _listed(arrays, name) for name in _LISTS},
    )

  def read(self, num_rows):
    """The first rows of all columns, as read-only `np.memmap`s."""
    return self._rows.read(num_rows)

  def _file(self, name):
    return os.path.join(self.path, name)

  def _write(self, progress):
    meta = {
      'format': _FORMAT,
      'version': _VERSION,
      'step': progress.step,
      'settings': self._settings,
      'rows_digest': self._rows_digest,
    }
    arrays = {
      'meta': np.array(json.dumps(meta)),
      'seed': self.seed,
      'block_ends': np.array(self._block_ends, np.int64),
    }
    for name in _LISTS:
      for i, x in enumerate(getattr(progress, name)):
        arrays[f'{name}_{i}'] = np.asarray(x)
    if progress.probe_log_prob is not None:
      arrays['probe_log_prob'] = np.asarray(progress.probe_log_prob)
    content = io.BytesIO()
    np.savez(content, digest=np.array(_hash_arrays(arrays)), **arrays)
    with replacing(self._file(_NAME)) as file:
      file.write(content.getbuffer())
    _sync_directory(self.path)

  def _write_index(self):
    """After all else: what it counts is there, in all of the files.

    Nothing is made from it again, so that a power failure may take it.
    """
    index = {
      'format': _FORMAT,
      'version': _VERSION,
      'num_draws': self._block_ends[-1],
      'draws': self._draw_files,
      'trace': self._trace_files,
    }
    if self._unconstrained:
      index['unconstrained'] = self._unconstrained
    path = self._file(INDEX_NAME)
    with open(path + _PART, 'wb') as file:
      file.write(json.dumps(index, indent=2).encode())
    # Windows replaces no file that somebody reads; the next block tries again.
    with contextlib.suppress(PermissionError):
      os.replace(path + _PART, path)

  def _read(self):
    with open(self._file(_NAME), 'rb') as file:
      if not zipfile.is_zipfile(file):
        raise ValueError('it is truncated, or not an .npz file')
      file.seek(0)
      with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    meta = json.loads(str(arrays['meta'][()]))
    if meta.get('format') != _FORMAT:
      raise ValueError('it was written by something else')
    if meta.get('version') != _VERSION:
      raise ValueError(
        f'it is of format version {meta.get("version")}, and this version of '
        f'tfp_diag reads version {_VERSION}'
      )
    if str(arrays.pop('digest')[()]) != _hash_arrays(arrays):
      raise ValueError('its contents were changed after it was written')
    return arrays, meta

  def _check_rows(self):
    columns = self._rows.read(self._block_ends[-1])
    digest = ''
    for start, end in zip(self._block_ends, self._block_ends[1:]):
      digest = _hash_rows(digest, [column[start:end] for column in columns])
    if digest != self._rows_digest:
      raise ValueError(
        'its draws or their trace were changed after they were written'
      )


@contextlib.contextmanager
def replacing(path):
  """Opens a file that takes the place of another one, through to the disk.

  Args:
    path: Python `str`, of the file that is written as a whole or not at all.

  Yields:
    An open binary file.
  """
  with open(path + _PART, 'wb') as file:
    yield file
    file.flush()
    os.fsync(file.fileno())
  os.replace(path + _PART, path)


def is_begun(path):
  """Whether a directory has the checkpoint of a run."""
  return os.path.exists(os.path.join(path, _NAME))


def locked_directory(path):
  """Keeps other runs out of a directory.

  Args:
    path: Python `str` or path.

  Returns:
    A context manager: the files are for its holder alone to write. It makes the
    directory.

  Raises:
    ValueError: if the path is taken by something else, or (the context manager)
      by another run.
  """
  path = os.fspath(path)
  if os.path.isdir(path):
    own = {name + _PART for name in (_NAME, INDEX_NAME, WARM_UP_NAME)}
    others = {*os.listdir(path)} - own - {LOCK_NAME, WARM_UP_NAME}
  else:
    others = {'it is a file'} if os.path.exists(path) else set()
  if others and _NAME not in others:
    raise ValueError(
      f'`checkpoint` is {path!r}, where something else is '
      f'({", ".join(sorted(others)[:3])}). Pass the path of a directory that '
      'does not exist yet.'
    )
  return directory_lock(path)


def check_dtypes(what, tensors):
  """Refuses numbers that NumPy's files do not give back as they were.

  Args:
    what: Python `str`, the beginning of a sentence: what has them.
    tensors: Iterable of Tensors, or of `tf.TensorSpec`s.

  Raises:
    ValueError: if any is of a dtype that is not NumPy's own.
  """
  for x in tensors:
    if np.dtype(x.dtype.as_numpy_dtype).char not in _NUMBERS:
      raise ValueError(
        f'{what} {x.dtype.name}, which the files of a `checkpoint` do not '
        'hold. Use `tf.cast(..., tf.float32)` there, or leave it out.'
      )


def check_may_resume(path, resume):
  """Raises a ValueError if there is a run, but `resume` is false."""
  if is_begun(path) and not resume:
    raise refusal(
      path, 'exists. Pass `resume=True` to go on with it, or another path'
    )


def check_target(path, now, before):
  """Refuses to go on with another target.

  Args:
    path: Python `str` or path.
    now: Array, the log density at a state of the run.
    before: Array, what it was.

  Raises:
    ValueError: if they differ by more than by rounding.
  """
  same = same_log_prob(now, before)
  if not np.all(same):
    first = tuple(np.argwhere(~same)[0])
    raise refusal(
      path,
      'was written for another target: at a state of it the log density was '
      f'{before[first]}, and is now {now[first]}. Pass the target and the '
      'data of that run, or another path',
    )


def unreadable(path, why):
  """The error of a checkpoint that is damaged."""
  return refusal(
    path,
    f'cannot be resumed: {why}. Pass another path, or delete this one to start '
    'again',
  )


def another_run(path, name, found, given):
  """The error of a checkpoint that was begun with something else."""
  found, given = _excerpt(found, given), _excerpt(given, found)
  other = 'other' if name.startswith('settings') else 'another'
  return refusal(
    path,
    f'cannot be resumed with {other} {name}: it has {found}, but this call '
    f'has {given}. Pass what the run began with, or another path',
  )


def refusal(path, why):
  """The error of a checkpoint that a call has no use for."""
  return ValueError(f'The checkpoint {os.fspath(path)!r} {why}.')


def _excerpt(this, other):
  """What is different in `this`, as text: kernel results may fill a page."""
  this, other = str(this), str(other)
  if len(this) <= _EXCERPT:
    return this
  same = [a == b for a, b in zip(this, other)] + [False]
  start = max(0, same.index(False) - _EXCERPT // 4)
  return f'...{this[start : start + _EXCERPT]}...'


def _listed(arrays, name):
  count = sum(key.rpartition('_')[0] == name for key in arrays)
  return [arrays[f'{name}_{i}'] for i in range(count)]


def _hash_arrays(arrays):
  digest = hashlib.sha256()
  for name in sorted(arrays):
    array = arrays[name]
    digest.update(f'{name} {array.dtype.str} {array.shape}'.encode())
    digest.update(as_bytes(array))
  return digest.hexdigest()


def _hash_rows(previous, rows):
  digest = hashlib.sha256(previous.encode())
  for row in rows:
    digest.update(as_bytes(row))
  return digest.hexdigest()


def _sync_directory(path):
  """Makes a renamed file last through a power failure, where that is needed."""
  if os.name != 'posix':
    return
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
