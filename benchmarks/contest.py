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
"""Contestants in processes of their own, timed in turn."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading

__all__ = ['contest', 'one_answer']

ROOT = pathlib.Path(__file__).resolve().parent.parent

# How long one timing should take, so that starting it does not count.
TIMED_SECONDS = 0.3
# A contestant that takes longer than this is timed only once.
SLOW_SECONDS = 5.0


def contest(case, peers, limit, rounds):
  """Checks every contestant, then times them in turn.

  Args:
    case: `[name, arguments]`, a case.
    peers: List of names of `peers.PEERS`.
    limit: Seconds that each may take to be ready.
    rounds: Python int, how often each is timed.

  Returns:
    Dict from names to dicts with 'median_s', the seconds of one evaluation, or
    with 'status' and 'reason'.
  """
  results, workers, counts = {}, {}, {}
  try:
    for peer in peers:
      worker = _Worker('race', {'case': case, 'peer': peer}, limit)
      results[peer] = worker.answer()
      if results[peer].get('status') == 'ready':
        workers[peer] = worker
      else:
        worker.close()
        results[peer].setdefault(
          'reason', f'relative error {results[peer].get("relative_error")}'
        )
    for peer, worker in list(workers.items()):
      counts[peer], first = _calibrate(worker)
      if counts[peer] is None:
        results[peer] |= {'status': 'too slow', 'reason': first}
        workers.pop(peer).close()
      else:
        results[peer]['seconds'] = [first] if first > SLOW_SECONDS else []
    for _ in range(rounds):
      for peer, worker in workers.items():
        if results[peer]['seconds'][:1] > [SLOW_SECONDS]:
          continue
        seconds = worker.answer(counts[peer]).get('seconds')
        if seconds is not None:
          results[peer]['seconds'].append(seconds / counts[peer])
  finally:
    for worker in workers.values():
      worker.close()
  for result in results.values():
    if result.get('seconds'):
      result['median_s'] = statistics.median(result['seconds'])
  return results


def one_answer(job, arguments, limit):
  """The first answer of a process: a dict, of 'status' and 'reason' if none."""
  worker = _Worker(job, arguments, limit)
  try:
    return worker.answer()
  finally:
    worker.close()


def _calibrate(worker):
  """How many evaluations take `TIMED_SECONDS`, and the seconds of the last."""
  count = 1
  while True:
    answer = worker.answer(count)
    if 'seconds' not in answer:
      return None, answer['reason']
    seconds = answer['seconds']
    if seconds >= TIMED_SECONDS / 2:
      return count, seconds / count
    count *= 2 if seconds > TIMED_SECONDS / 8 else 4


class _Worker:
  """A process that answers in lines of JSON, or is ended after a time."""

  def __init__(self, job, arguments, limit):
    self._limit = limit
    quiet = {'TF_CPP_MIN_LOG_LEVEL': '3', 'CUDA_VISIBLE_DEVICES': '-1'}
    self._process = subprocess.Popen(
      [sys.executable, '-m', 'benchmarks.worker', job, json.dumps(arguments)],
      cwd=ROOT,
      env={**os.environ, **quiet, 'JAX_PLATFORMS': 'cpu'},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    self._errors = []
    # Read all along: a full pipe would stop the process.
    threading.Thread(target=self._read_errors, daemon=True).start()

  def answer(self, question=None):
    """Sends a question, if there is one, and waits for the answer."""
    if question is not None:
      self._process.stdin.write(json.dumps(question) + '\n')
      self._process.stdin.flush()
    late = threading.Event()

    def end():
      late.set()
      self._process.kill()

    timer = threading.Timer(self._limit, end)
    timer.start()
    line = self._process.stdout.readline()
    timer.cancel()
    if line:
      return json.loads(line)
    if late.is_set():
      return {
        'status': 'too slow',
        'reason': f'no answer within {self._limit:g} s',
      }
    self._process.wait()
    return {'status': 'failed', 'reason': self._last_error()}

  def close(self):
    self._process.kill()
    self._process.wait()
    self._process.stdin.close()
    self._process.stdout.close()

  def _read_errors(self):
    with self._process.stderr as stream:
      for line in stream:
        self._errors = [*self._errors[-200:], line.strip()]

  def _last_error(self):
    lines = [line for line in self._errors if 'Error' in line] or self._errors
    code = self._process.returncode
    return lines[-1][:300] if lines else f'exit status {code}'
