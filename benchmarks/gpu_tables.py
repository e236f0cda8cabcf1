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
"""The tables of what `xla_runner` has measured.

    python -m benchmarks.gpu_tables benchmarks/gpu.json

In Markdown, as `docs/pages/benchmarks.md` has them.
"""

import json
import pathlib
import sys

from benchmarks.cases import make_case
from benchmarks.tables import number_of, table_of, time_of, times_of
from benchmarks.tools import GRADIENT, TFP_DIAG

__all__ = ['of_diagonals', 'of_posteriors', 'of_steps']

_JAX = ('JAX vmap(hessian)', 'JAX vmap(jvp(grad))', 'JAX map(jvp(grad))')
_STEPS = (
  ('MALA', 'tfp_diag MALA', ('TFP MALA', 'blackjax MALA')),
  ('MALA, volatility', 'tfp_diag MALA, volatility', ('TFP MALA, volatility',)),
  ('16 steps', 'tfp_diag MALT', ('TFP HMC', 'blackjax HMC')),
)


def of_diagonals(data):
  """Times of diagonals, and those of others in these."""
  rows = []
  for case, tools in _by_case(data, 'diagonal'):
    own = tools[TFP_DIAG]
    jax = [tools[t]['seconds'] for t in _JAX if 'seconds' in tools[t]]
    rows.append(
      [
        make_case(case).name,
        str(own['passes']),
        time_of(own['seconds']),
        number_of(own['seconds'] / tools[GRADIENT]['seconds']),
        times_of(min(jax) / own['seconds']),
        _times(tools['asdex'], own),
      ]
    )
  head = ['case', 'passes', 'tfp_diag', 'gradients', 'JAX', 'asdex']
  return table_of(head, rows)


def of_steps(data):
  """Steps of all chains in a second, and how others compare."""
  rows = []
  for case, tools in _by_case(data, 'steps'):
    for name, own, others in _STEPS:
      beside = [_times(tools[t], tools[own]) for t in others]
      rows.append(
        [
          f'{make_case(case).batch:,}',
          name,
          number_of(make_case(case).batch / tools[own]['seconds'] / 1e6),
          *beside,
          *[''] * (2 - len(beside)),
        ]
      )
  head = ['chains', 'kernel', 'million draws per second', 'TFP', 'blackjax']
  return table_of(head, rows)


def of_posteriors(data):
  """Effective draws, after the warm-up."""
  rows = []
  for case, tools in _by_case(data, 'posterior'):
    own, other = tools['tfp_diag'], tools['numpyro NUTS']
    name = 'seconds_per_effective_draw'
    rows.append(
      [
        make_case(case).name.rsplit(', batch', 1)[0],
        f'{make_case(case).batch:,}',
        time_of(own[name]),
        time_of(other[name]),
        times_of(other[name] / own[name]),
      ]
    )
  head = ['posterior', 'chains', 'MALT', 'numpyro NUTS', '']
  return table_of(head, rows)


def _by_case(data, kind):
  found = {}
  for row in data['rows']:
    if row['kind'] == kind:
      found.setdefault(json.dumps(row['case']), {})[row['tool']] = row
  return [(json.loads(case), tools) for case, tools in found.items()]


def _times(other, own):
  if 'seconds' not in other:
    return 'failed'
  return times_of(other['seconds'] / own['seconds'])


if __name__ == '__main__':
  measured = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding='utf-8'))
  for table in (of_diagonals, of_steps, of_posteriors):
    print(table(measured), end='\n\n')
