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
"""Processes that do a job each, within limits of time and memory."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

__all__ = ['Limits', 'Process', 'Servers']

ROOT = pathlib.Path(__file__).resolve().parent.parent

# How often the memory of a process is looked at.
_LOOK_SECONDS = 0.05

_AN_ERROR = re.compile(r'[\w.]*(Error|Exception)\b:')
# How the frameworks say that there is no memory left.
_NO_MEMORY = (
  'RESOURCE_EXHAUSTED',
  'ResourceExhaustedError',
  'Out of memory',
  'out of memory',
  "DefaultCPUAllocator: can't allocate memory",
  'MemoryError',
  'bad_alloc',
)


@dataclasses.dataclass(frozen=True)
class Limits:
  """What a process may take.

  Attributes:
    seconds: Float, until it is ready, and for each answer after that.
    gib: Float, memory beyond what the framework itself takes.
  """

  seconds: float = 20.0
  gib: float = 4.0


class Servers:
  """Processes that have loaded a framework, one each, from which jobs fork."""

  def __init__(self):
    self._controls = {}
    self._processes = []

  def start(self, framework, job, arguments, limits):
    """A `Process` that does a job."""
    if framework not in self._controls:
      self._controls[framework] = self._serve(framework)
    control = self._controls[framework]
    own, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()
    message = json.dumps({'job': job, 'arguments': arguments}).encode()
    with theirs:
      socket.send_fds(control, [message], [theirs.fileno(), errors.fileno()])
    process = int(_line(control))
    return Process(process, own, errors, limits)

  def close(self):
    for control in self._controls.values():
      control.close()
    for process in self._processes:
      process.terminate()
      process.wait()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def _serve(self, framework):
    own, theirs = socket.socketpair()
    quiet = {'TF_CPP_MIN_LOG_LEVEL': '3', 'CUDA_VISIBLE_DEVICES': '-1'}
    # No pipe: nobody would read it, and a full one stops who writes.
    errors = tempfile.TemporaryFile()
    with theirs:
      process = subprocess.Popen(
        [sys.executable, '-m', 'benchmarks.worker', framework],
        cwd=ROOT,
        env={**os.environ, **quiet, 'JAX_PLATFORMS': 'cpu'},
        stdin=theirs,
        stderr=errors,
      )
    self._processes.append(process)
    if _line(own) != 'ready':
      errors.seek(0)
      said = errors.read().decode(errors='replace')
      raise RuntimeError(f'No server for {framework}: {said[-2000:]}')
    errors.close()
    return own


class Process:
  """A process that answers in lines of JSON, or is ended at a limit."""

  def __init__(self, process, connection, errors, limits):
    self._process = process
    self._connection = connection
    self._errors = errors
    self._limits = limits
    self._rest = b''
    self._first_gib = _resident_gib(process)

  def answer(self, question=None):
    """Sends a question, if there is one, and waits for the answer."""
    if question is not None:
      with contextlib.suppress(BrokenPipeError):
        self._connection.sendall(json.dumps(question).encode() + b'\n')
    end = time.monotonic() + self._limits.seconds
    self._connection.settimeout(_LOOK_SECONDS)
    while b'\n' not in self._rest:
      try:
        more = self._connection.recv(1 << 16)
      except TimeoutError:
        more = None
      except ConnectionResetError:
        more = b''
      if more == b'':
        return self._failed()
      self._rest += more or b''
      grown = _resident_gib(self._process) - self._first_gib
      if more is None and grown > self._limits.gib:
        return self._ended(
          'too much memory', f'more than {self._limits.gib:g} GiB'
        )
      if more is None and time.monotonic() > end:
        return self._ended(
          'too slow', f'no answer within {self._limits.seconds:g} s'
        )
    line, self._rest = self._rest.split(b'\n', 1)
    return json.loads(line)

  def close(self):
    with contextlib.suppress(ProcessLookupError):
      os.kill(self._process, signal.SIGKILL)
    self._connection.close()
    self._errors.close()

  def _ended(self, status, reason):
    with contextlib.suppress(ProcessLookupError):
      os.kill(self._process, signal.SIGKILL)
    return {'status': status, 'reason': reason}

  def _failed(self):
    self._errors.seek(0)
    text = self._errors.read().decode(errors='replace')
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _AN_ERROR.match(line)] or lines
    reason = named[-1][:200] if named else 'it ended without a word'
    memory = any(word in text for word in _NO_MEMORY)
    return {
      'status': 'too much memory' if memory else 'failed',
      'reason': reason,
    }


def _resident_gib(process):
  """Memory of a process now; 0 where the system does not say."""
  try:
    pages = int(pathlib.Path(f'/proc/{process}/statm').read_text().split()[1])
  except (OSError, IndexError):
    return 0.0
  return pages * os.sysconf('SC_PAGE_SIZE') / 2**30


def _line(connection):
  """One line from a server, without its end; '' if the server has ended."""
  line = b''
  while not line.endswith(b'\n'):
    letter = connection.recv(1)
    if not letter:
      return ''
    line += letter
  return line.decode().strip()
