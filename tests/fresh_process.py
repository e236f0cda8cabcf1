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
"""Processes in which TensorFlow is imported and has done nothing yet.

To import it takes seconds, which one process spends once: each fresh process
is a fork of that one.
"""

import dataclasses
import gc
import multiprocessing
import os
import pathlib
import sys

_FORKS = multiprocessing.get_context('forkserver')
_FORKS.set_forkserver_preload(['tensorflow', 'tensorflow_probability'])


@dataclasses.dataclass(frozen=True)
class FreshProcess:
  """A program that runs by itself.

  Attributes:
    process: A `multiprocessing.Process`.
    said: `pathlib.Path` of a file with all that it writes.
  """

  process: multiprocessing.Process
  said: pathlib.Path

  def end(self, seconds=300):
    """Waits for the end; returns the exit status and what was written."""
    self.process.join(seconds)
    if self.process.is_alive():
      self.kill()
    return self.process.exitcode, self.said.read_text(errors='replace')

  def kill(self):
    self.process.kill()
    self.process.join()


def start(program, said, **names):
  """Starts a program.

  Args:
    program: Python `str`, its source.
    said: Path of a file for what it writes to stdout and stderr.
    **names: What the program finds under these names.

  Returns:
    A `FreshProcess`.
  """
  process = _FORKS.Process(
    target=_run, args=(program, said, names, gc.get_threshold())
  )
  process.start()
  return FreshProcess(process, pathlib.Path(said))


def _run(program, said, names, gc_threshold):
  gc.set_threshold(*gc_threshold)
  with open(said, 'wb') as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  # What the forked process had here may be no file any more.
  sys.stdout, sys.stderr = (
    open(descriptor, 'w', buffering=1, closefd=False) for descriptor in (1, 2)
  )
  exec(compile(program, '<program>', 'exec'), {'__name__': '__main__', **names})
