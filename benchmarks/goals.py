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
"""What a figure has to be, and whether it is."""

__all__ = ['at_least', 'at_most', 'print_table', 'sentence']


def at_most(what, value, bound):
  """A goal, as a dict that JSON takes; NaN misses it."""
  return _goal(what, value, 'at most', bound, value <= bound)


def at_least(what, value, bound):
  """A goal, as a dict that JSON takes; NaN misses it."""
  return _goal(what, value, 'at least', bound, value >= bound)


def sentence(goal):
  """Whether a goal is reached, in a line."""
  return (
    f'{_verdict(goal)}  {goal["what"]}: {goal["value"]:.3g}, '
    f'{goal["relation"]} {goal["bound"]:g} wanted'
  )


def print_table(goals):
  """Prints all of them below each other."""
  width = max([len(g['what']) for g in goals], default=0)
  print(f'\n{"target":{width}s}  {"wanted":>14s}  {"seen":>8s}')
  for g in goals:
    wanted = f'{g["relation"]} {g["bound"]:g}'
    print(
      f'{g["what"]:{width}s}  {wanted:>14s}  {g["value"]:8.3g}  {_verdict(g)}'
    )


def _goal(what, value, relation, bound, holds):
  return {
    'what': what,
    'value': value,
    'bound': bound,
    'relation': relation,
    'holds': bool(holds),
  }


def _verdict(goal):
  return 'holds' if goal['holds'] else 'FAILS'
