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
"""Every way of TensorFlow is right, and every way is there."""

import ast
import pathlib

import numpy as np
import pytest

from benchmarks import tools, worker
from benchmarks.cases import make_case

OF_TENSORFLOW = [
  name for name, tool in tools.TOOLS.items() if tool.framework == 'tensorflow'
]


@pytest.mark.parametrize('name', OF_TENSORFLOW)
def test_a_hessian(name):
  job = worker.race(['chain', [4, 2]], name)
  ready = next(job)
  assert ready['status'] == 'ready', ready
  assert job.send(2)['seconds'] > 0


@pytest.mark.parametrize(
  'name', [n for n in OF_TENSORFLOW if n.endswith(('graph', 'tfp_diag'))]
)
def test_a_jacobian(name):
  ready = next(worker.race(['softmax', [3, 2]], name))
  assert ready['status'] == 'ready', ready
  assert ready['relative_error'] < 1e-5


def test_what_competes_is_what_is_named():
  # Modes and schedules differ in what they say of themselves.
  said = set()
  for mode in ('forward', 'reverse'):
    name = f'tfp_diag, {mode}, unrolled'
    ready = next(worker.race(['chain', [4, 2]], name))
    said.add((ready['mode'], ready['schedule'], ready['passes']))
  assert said == {
    ('forward_over_reverse', 'unrolled', 2),
    ('reverse_over_reverse', 'unrolled', 2),
  }


@pytest.mark.usefixtures('without_xla')
@pytest.mark.parametrize('name', [tools.OWN_SAMPLER, 'TFP MALA, volatility'])
def test_a_sampler(name):
  job = worker.race(['standard_normal', [2, 50]], name)
  ready = next(job)
  assert ready['status'] == 'ready', ready
  assert job.send(2)['seconds'] > 0


def test_a_sampler_out_of_equilibrium_is_wrong():
  x = make_case(['standard_normal', [20, 50]]).start()
  y = np.random.default_rng(1).standard_normal(x.shape)
  assert worker._not_in_equilibrium(x, y) is None
  assert 'sigma' in worker._not_in_equilibrium(x, 1.2 * y)
  assert worker._not_in_equilibrium(x, x) == 'the chains do not move'
  assert worker._not_in_equilibrium(x, np.nan * y) is not None


def test_many_passes_are_not_written_out():
  answer = next(
    worker.race(['softmax', [65, 1]], 'tfp_diag, forward, unrolled')
  )
  assert answer['status'] == 'skipped'
  assert answer['reason'] == '65 passes are not written out'


@pytest.mark.parametrize('name', list(tools.TOOLS | tools.SAMPLERS))
def test_the_way_is_there(name):
  tool = (tools.TOOLS | tools.SAMPLERS)[name]
  file, function = tool.way.split('.')
  source = pathlib.Path(tools.__file__).parent / f'{file}.py'
  tree = ast.parse(source.read_text(encoding='utf-8'))
  (found,) = [
    node
    for node in tree.body
    if isinstance(node, ast.FunctionDef) and node.name == function
  ]
  assert set(tool.arguments) <= {a.arg for a in found.args.args}


def test_what_it_holds():
  case = make_case(['chain', [10, 3]])
  holds = {
    name: tools.TOOLS[name].entries(case)
    for name in (
      'tfp_diag',
      'batch_jacobian, XLA',
      'tf.hessians or jacobian, XLA',
    )
  }
  assert list(holds.values()) == [30, 300, 900]
