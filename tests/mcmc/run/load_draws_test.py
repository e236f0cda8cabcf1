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
"""The draws of a run are read by others while it goes on."""

import collections
import json
import os

import arviz as az
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests import fresh_process
from tfp_diag.mcmc import load_draws

Point = collections.namedtuple('Point', ['b', 'a'])


class Walk(tfp.mcmc.TransitionKernel):
  """A random walk in two parts, which takes no time to trace."""

  is_calibrated = True

  def bootstrap_results(self, state):
    return ()

  def one_step(self, state, results, seed=None):
    noise = tf.random.stateless_normal([4, 3], seed)
    return Point(state.b + noise, {'z': state.a['z'] + noise[:, 0]}), ()


START = Point(np.zeros([4, 3], np.float32), {'z': np.ones([4], np.float32)})


def trace_fn(state, _):
  return {'target_log_prob': -(state.a['z'] ** 2), 'level': state.b[0, 0]}


def sample(num_results, start=START, kernel=None, **kwargs):
  settings = dict(trace_fn=trace_fn, block_size=5, seed=1, jit_compile=False)
  return tfp_diag.mcmc.sample(
    kernel or Walk(), start, num_results, **{**settings, **kwargs}
  )


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / 'run')


def assert_read(path, num_draws, whole):
  draws, trace = load_draws(path)
  assert list(draws) == ['b', 'a.z']
  assert sorted(trace) == ['level', 'target_log_prob']
  expected = {'b': whole.draws.b, 'a.z': whole.draws.a['z'], **whole.trace}
  for name, values in {**draws, **trace}.items():
    assert isinstance(values, np.memmap) and not values.flags.writeable
    assert len(values) == num_draws
    np.testing.assert_array_equal(values, expected[name][:num_draws])
  return draws, trace


@pytest.mark.parametrize('draws_on_disk', [False, True])
def test_what_is_complete_can_be_read_during_the_run(path, draws_on_disk):
  whole = sample(23)
  seen = []

  def stop_when(draws, _):
    num_draws = len(draws.b)
    seen.append(num_draws)
    draws, trace = assert_read(path, num_draws, whole)
    # By whom knows of NumPy alone.
    for i, part in enumerate([whole.draws.b, whole.draws.a['z']]):
      found = np.load(f'{path}/draws_{i}.npy', mmap_mode='r')
      np.testing.assert_array_equal(found, part[:num_draws])
    # And by arviz.
    data = tfp_diag.mcmc.to_arviz(draws, trace)
    assert data['posterior']['b'].shape == (4, num_draws, 3)
    assert az.ess(data)['a.z'].shape == ()

  sample(23, checkpoint=path, stop_when=stop_when, draws_on_disk=draws_on_disk)
  assert seen == [5, 10, 15, 20]
  assert_read(path, 23, whole)


def test_the_index_is_what_other_programs_read(path):
  sample(7, checkpoint=path)
  with open(os.path.join(path, 'index.json')) as file:
    index = json.load(file)
  assert index == {
    'format': 'tfp_diag.mcmc.sample',
    'version': 2,
    'num_draws': 7,
    'draws': {'b': 'draws_0.npy', 'a.z': 'draws_1.npy'},
    'trace': {'level': 'trace_0.npy', 'target_log_prob': 'trace_1.npy'},
  }


def test_no_draws_yet(path):
  found = sample(0, num_burnin_steps=3, checkpoint=path)
  draws, trace = load_draws(path)
  assert draws['b'].shape == (0, 4, 3)
  assert trace['level'].shape == (0,)
  assert found.num_results == 0


def test_a_run_that_is_resumed(path):
  whole = sample(12)
  sample(4, checkpoint=path)
  # Of a version that had none.
  os.unlink(os.path.join(path, 'index.json'))
  with pytest.raises(FileNotFoundError, match=r'no run is .*Pass the'):
    load_draws(path)
  with pytest.raises(FileNotFoundError, match=r'no run is .*Pass the'):
    load_draws(os.path.join(path, 'checkpoint.npz'))
  seen = []

  def stop_when(draws, _):
    seen.append(len(draws.b))
    assert_read(path, len(draws.b), whole)

  sample(12, checkpoint=path, resume=True, stop_when=stop_when)
  assert seen == [5, 10]
  assert_read(path, 12, whole)


def test_names_that_are_not_distinct_are_numbered(path):
  def ambiguous(state, _):
    return {'a': {'b': state.b}, 'a.b': state.b + 1.0}

  found = sample(3, checkpoint=path, trace_fn=ambiguous)
  trace = load_draws(path)[1]
  np.testing.assert_array_equal(trace['x0'], found.trace['a']['b'])
  np.testing.assert_array_equal(trace['x1'], found.trace['a.b'])


READER = """
import numpy as np
from tfp_diag.mcmc import load_draws

counts = [0]
while len(set(counts)) < 20:
  try:
    draws, trace = load_draws(path)
    lengths = [len(np.load(f'{path}/{name}.npy', 'r')) for name in names]
  except FileNotFoundError:
    continue
  lasts = [column[-1:] for column in (*draws.values(), *trace.values())]
  count = len(draws['b'])
  assert all(len(column) == count for column in draws.values())
  assert all(len(column) == count for column in trace.values())
  # No row is announced before it is there: a walk is at no time at zero.
  assert all(np.all(last != 0.0) for last in lasts)
  assert min(lengths) >= count >= counts[-1], (lengths, count, counts[-1])
  counts.append(count)
"""


def test_another_process_reads_all_the_time(path, tmp_path):
  reader = fresh_process.start(
    'import os; os.environ["CUDA_VISIBLE_DEVICES"] = "-1"' + READER,
    tmp_path / 'said',
    path=path,
    names=['draws_0', 'draws_1', 'trace_0', 'trace_1'],
  )
  found = sample(
    20_000,
    checkpoint=path,
    block_size=2,
    stop_when=lambda *_: not reader.process.is_alive(),
  )
  status, said = reader.end(1)
  assert status == 0, said[-4000:]
  assert found.stopped_by == 'stop_when'
