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
"""Tools on one case, timed in turn."""

import statistics

from benchmarks.tools import SAMPLERS, TOOLS

__all__ = ['contest', 'one_answer']

# How long one timing should take, so that starting it does not count.
TIMED_SECONDS = 0.08
# How long all timings of a tool may take: a slow one is timed less often.
SPENT_SECONDS = 1.0


def contest(
  servers, case, tools, limits, rounds, seen=lambda tool, result: None
):
  """Checks every tool, then times them in turn.

  Args:
    servers: `processes.Servers`.
    case: `[name, arguments]`, a case.
    tools: List of names of `tools.TOOLS` or `tools.SAMPLERS`.
    limits: `processes.Limits` of each.
    rounds: Python int, how often each is timed.
    seen: Callable `(name, result)`, called with the last result of each tool as
      soon as there is one.

  Returns:
    Dict from names to dicts with 'median_s', the seconds of one evaluation, or
    with 'status' and 'reason'.
  """
  results, processes, counts = {}, {}, {}
  try:
    for name in tools:
      arguments = {'case': case, 'tool': name}
      framework = (TOOLS | SAMPLERS)[name].framework
      process = servers.start(framework, 'race', arguments, limits)
      processes[name] = process
      result = results[name] = process.answer()
      result['seconds'] = []
      if result['status'] == 'ready':
        counts[name], first = _calibrate(process, result)
        result['seconds'] += [first] if first > SPENT_SECONDS else []
      if result['status'] != 'ready' or result['seconds']:
        processes.pop(name).close()
        seen(name, _finished(result))
    for _ in range(rounds):
      for name, process in list(processes.items()):
        timed = results[name]['seconds']
        if timed and len(timed) * timed[0] > SPENT_SECONDS:
          continue
        seconds = _seconds(process, results[name], counts[name])
        if seconds is None:
          processes.pop(name).close()
          seen(name, results[name])
        else:
          timed.append(seconds / counts[name])
    for name in processes:
      seen(name, _finished(results[name]))
  finally:
    for process in processes.values():
      process.close()
  return results


def one_answer(servers, job, arguments, limits, framework='tensorflow'):
  """The first answer of a process: a dict, of 'status' and 'reason' if none."""
  process = servers.start(framework, job, arguments, limits)
  try:
    return process.answer()
  finally:
    process.close()


def _calibrate(process, result):
  """How many evaluations take `TIMED_SECONDS`, and the seconds of one."""
  count = 1
  while True:
    seconds = _seconds(process, result, count)
    if seconds is None or seconds >= TIMED_SECONDS / 2:
      return count, (seconds or 0.0) / count
    count *= 2 if seconds > TIMED_SECONDS / 8 else 8


def _seconds(process, result, count):
  """Seconds of so many evaluations, or None, which `result` then explains."""
  answer = process.answer(count)
  if 'seconds' not in answer:
    result |= answer
    return None
  result['memory_gib'] = answer['memory_gib']
  return answer['seconds']


def _finished(result):
  if result.get('seconds'):
    result['median_s'] = statistics.median(result['seconds'])
  return result
