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
"""One run at a time in the directory of a checkpoint."""

import errno
import os
import signal
import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests import fresh_process
from tfp_diag.mcmc.run import directory_lock

fcntl = pytest.importorskip('fcntl')


class Walk(tfp.mcmc.TransitionKernel):
  """A random walk, which takes no time to trace."""

  is_calibrated = True

  def bootstrap_results(self, state):
    return ()

  def one_step(self, state, results, seed=None):
    return state + tf.random.stateless_normal(state.shape, seed), ()


def sample(num_results=8, **kwargs):
  return tfp_diag.mcmc.sample(
    Walk(),
    np.zeros([3], np.float32),
    num_results,
    block_size=4,
    seed=1,
    jit_compile=False,
    trace_fn=lambda *_: (),
    **kwargs,
  )


@pytest.fixture
def path(tmp_path):
  return str(tmp_path / 'run')


def refused(path, who=None):
  """Expects the error of a directory in use."""
  who = who or f'process {os.getpid()} on {socket.gethostname()}'
  return pytest.raises(
    ValueError,
    match=rf"^The checkpoint '{path}' is in use by another run \({who}\)\. "
    r'Wait for its end or stop it, or pass another path\.$',
  )


@pytest.mark.parametrize('resume', [False, True])
def test_two_runs_of_one_process(path, resume):
  judged = []

  def stop_when(draws, _):
    with refused(path):
      sample(checkpoint=path, resume=resume)
    judged.append(len(draws))
    return False

  found = sample(checkpoint=path, stop_when=stop_when)
  assert judged == [4]
  np.testing.assert_array_equal(found.draws, sample().draws)
  # Afterwards it is free, also with the draws at hand.
  maps = sample(checkpoint=path, resume=True, draws_on_disk=True)
  assert len(sample(12, checkpoint=path, resume=True).draws) == 12
  np.testing.assert_array_equal(maps.draws, found.draws)


PROGRAM = """
import os
import signal

os.environ['CUDA_VISIBLE_DEVICES'] = '-1'

from tests.mcmc.run import directory_lock_test

def wait(*_):
  child = os.fork()
  if child == 0:
    signal.pause()  # And lives on when this process is killed.
  with open(ready + '.part', 'w') as file:
    file.write(str(child))
  os.replace(ready + '.part', ready)
  signal.pause()

directory_lock_test.sample(checkpoint=path, stop_when=wait)
"""


def test_what_a_process_that_is_killed_leaves_is_no_lock(path, tmp_path):
  ready = tmp_path / 'ready'
  running = fresh_process.start(
    PROGRAM,
    tmp_path / 'said',
    path=path,
    ready=str(ready),
  )
  while running.process.is_alive() and not ready.exists():
    running.process.join(0.05)
  assert ready.exists(), running.end()[1][-4000:]
  who = f'process {running.process.pid} on {socket.gethostname()}'
  try:
    with refused(path, who):
      sample(checkpoint=path, resume=True)
    # Who reads is not kept out.
    first = np.load(os.path.join(path, 'draws_0.npy'), mmap_mode='r')
    assert first.shape == (4, 3)
    running.kill()
    status, said = running.end()
    assert status == -signal.SIGKILL, said[-4000:]
    found = sample(checkpoint=path, resume=True)
  finally:
    running.kill()
    os.kill(int(ready.read_text()), signal.SIGKILL)
  np.testing.assert_array_equal(found.draws, sample().draws)
  np.testing.assert_array_equal(found.draws[:4], first)


def refusal(path):
  with pytest.raises(ValueError, match=r'Pass `resume=True`') as error:
    sample(checkpoint=path)
  return error


def user_error(path):
  def stop_when(*_):
    raise OSError('user code')

  with pytest.raises(OSError, match='user code') as error:
    sample(checkpoint=path, resume=True, stop_when=stop_when)
  return error


def interruption(path):
  def stop_when(*_):
    raise KeyboardInterrupt

  with pytest.warns(UserWarning, match='was interrupted') as warning:
    sample(checkpoint=path, resume=True, stop_when=stop_when)
  return warning


@pytest.mark.parametrize('end', [refusal, user_error, interruption])
def test_a_run_that_ends_early_leaves_no_lock(path, end):
  sample(4, checkpoint=path)
  # Its traceback holds the run, as a debugger or a notebook does.
  held = end(path)
  found = sample(8, checkpoint=path, resume=True)
  assert len(found.draws) == 8 and held


@pytest.fixture
def no_locks(monkeypatch):
  def flock(*_):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', flock)


@pytest.mark.usefixtures('no_locks')
def test_a_file_system_without_locks(path):
  with pytest.warns(UserWarning, match='without locks.*No locks ava') as said:
    found = sample(checkpoint=path)
  assert said[0].filename == __file__
  np.testing.assert_array_equal(found.draws, sample().draws)


@pytest.mark.usefixtures('no_locks')
def test_an_error_inside_is_not_explained_by_missing_locks(path):
  with pytest.warns(UserWarning, match='without locks'):
    with pytest.raises(KeyError) as error:
      with directory_lock.directory_lock(path):
        raise KeyError('inside')
  assert error.value.__context__ is None
