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
"""Runs that end at any moment resume bit for bit."""

import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests import fresh_process
from tfp_diag.mcmc.run import checkpoint, rows


class Walk(tfp.mcmc.TransitionKernel):
  """A random walk in two parts."""

  is_calibrated = True

  def bootstrap_results(self, state):
    return {'num_steps': tf.constant(0)}

  def one_step(self, state, results, seed=None):
    noise = tf.random.stateless_normal([3], seed)
    state = [state[0] + noise, state[1] + noise[0]]
    return state, {'num_steps': results['num_steps'] + 1}


def sample(num_results=5, **kwargs):
  return tfp_diag.mcmc.sample(
    Walk(),
    [np.zeros([3], np.float32), np.float32(1.0)],
    num_results,
    num_burnin_steps=2,
    block_size=4,
    seed=1,
    jit_compile=False,
    trace_fn=lambda state, results: results,
    **kwargs,
  )


def assert_same(one, other):
  tf.nest.map_structure(
    np.testing.assert_array_equal, one._asdict(), other._asdict()
  )


@pytest.fixture
def no_graphs():
  """Saves the time of tracing: these tests are about files."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


class Killed(BaseException):
  """Nothing in the package expects this."""


class DyingFiles:
  """Counts what is done to files, and ends the process at one of these.

  A write that is the last thing done is half done.
  """

  def __init__(self, monkeypatch, death, last=None):
    self.num_operations = 0
    self._death = death
    self._last = last
    for name in ('fsync', 'replace', 'makedirs'):
      monkeypatch.setattr(os, name, self._dying(getattr(os, name)))
    for module in (checkpoint, rows):
      monkeypatch.setattr(module, 'open', self._open, raising=False)

  def _count(self):
    self.num_operations += 1
    return self.num_operations == self._last

  def _dying(self, function):
    def call(*args, **kwargs):
      if self._count():
        raise self._death
      return function(*args, **kwargs)

    return call

  def _open(self, path, mode):
    if self._count():
      raise self._death
    file = open(path, mode)
    return file if mode == 'rb' else _DyingFile(file, self._count, self._death)


class _DyingFile:
  def __init__(self, file, count, death):
    self._file, self._count, self._death = file, count, death

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self._file.close()

  def __getattr__(self, name):
    return getattr(self._file, name)

  def write(self, content):
    if self._count():
      self._file.write(memoryview(content)[: len(content) // 2])
      raise self._death
    self._file.write(content)


def num_operations(path):
  with pytest.MonkeyPatch.context() as patch:
    files = DyingFiles(patch, None)
    sample(checkpoint=path)
  return files.num_operations


@pytest.mark.usefixtures('no_graphs')
def test_death_between_and_within_all_file_operations(tmp_path):
  whole = sample(8)
  last = num_operations(tmp_path / 'whole')
  assert last > 40
  for operation in range(1, last + 1):
    path = tmp_path / str(operation)
    with pytest.MonkeyPatch.context() as patch:
      DyingFiles(patch, Killed, operation)
      with pytest.raises(Killed):
        sample(checkpoint=path)
    # Then again, while it resumes.
    with pytest.MonkeyPatch.context() as patch:
      DyingFiles(patch, Killed, 1 + operation // 2)
      with pytest.raises(Killed):
        sample(8, checkpoint=path, resume=True)
    assert_same(sample(8, checkpoint=path, resume=True), whole)
    assert np.load(path / 'draws_0.npy').shape == (8, 3)
    assert not (path / 'checkpoint.npz.part').exists()


@pytest.mark.usefixtures('no_graphs')
def test_ctrl_c_between_and_within_all_file_operations(tmp_path):
  whole = sample()
  last = num_operations(tmp_path / 'whole')
  num_returned, num_raised = set(), set()
  for operation in range(1, last + 1):
    path = tmp_path / str(operation)
    with pytest.MonkeyPatch.context() as patch:
      DyingFiles(patch, KeyboardInterrupt, operation)
      try:
        with pytest.warns(UserWarning, match='was interrupted after'):
          found = sample(checkpoint=path)
        num_returned.add(found.num_results)
      except KeyboardInterrupt as error:
        # Without them, nothing had begun.
        found = getattr(error, 'sample_results', None)
        num_raised.add(found and found.num_results)
    if found is not None:
      assert found.stopped_by == 'interrupted'
      np.testing.assert_array_equal(
        found.draws[0], whole.draws[0][: found.num_results]
      )
    assert_same(sample(checkpoint=path, resume=True), whole)
  assert (num_returned, num_raised) == ({2}, {None, 0})


@pytest.mark.usefixtures('no_graphs')
def test_an_error_leaves_the_checkpoint_as_it_was(tmp_path):
  def full_disk(*_):
    raise OSError('no space left on device')

  sample(3, checkpoint=tmp_path / 'run')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, 'replace', full_disk)
    with pytest.raises(OSError, match='no space'):
      sample(checkpoint=tmp_path / 'run', resume=True)
  assert_same(sample(checkpoint=tmp_path / 'run', resume=True), sample())


SCRIPT = """
import os

if __name__ == '__main__':
  os.environ['CUDA_VISIBLE_DEVICES'] = '-1'

import tensorflow as tf
import tfp_diag

kernel = tfp_diag.mcmc.PreconditionedMALA(
  lambda x: -tf.reduce_sum(tf.cosh(x), -1), step_size=0.5
)

def run(path, num_results):
  return tfp_diag.mcmc.sample(
    kernel, tf.zeros([4, 3]), num_results, block_size=10, seed=1,
    jit_compile=False, checkpoint=path, resume=path is not None)

if __name__ == '__main__':
  run(path, 10**6)
"""


def test_a_process_that_is_killed(tmp_path):
  path = tmp_path / 'run'
  random = np.random.default_rng(0)
  counts = [0]
  for _ in range(2):
    running = fresh_process.start(SCRIPT, tmp_path / 'said', path=path)
    while running.process.is_alive() and count(path) <= counts[-1] + 10:
      time.sleep(0.05)
    # Somewhere in the next blocks.
    time.sleep(random.uniform(0.0, 0.2))
    running.kill()
    status, said = running.end()
    assert status == -signal.SIGKILL, said[-4000:]
    counts.append(count(path))
  names = {'__name__': 'script'}
  exec(SCRIPT, names)
  num_results = counts[-1] + 25
  assert_same(names['run'](path, num_results), names['run'](None, num_results))


def count(path):
  """How many draws a checkpoint counts."""
  try:
    with np.load(path / 'checkpoint.npz') as archive:
      return int(archive['block_ends'][-1])
  except FileNotFoundError:
    return 0
