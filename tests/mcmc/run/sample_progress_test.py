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
"""What a run shows, and what an interruption leaves."""

import collections
import io
import os
import re
import select
import struct
import traceback
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tfp_diag.mcmc.run import progress

Results = collections.namedtuple(
  'Results', ['target_log_prob', 'log_accept_ratio']
)


class Autoregression(tfp.mcmc.TransitionKernel):
  """x' = 0.5 x + noise, which takes no time to trace."""

  is_calibrated = True

  def bootstrap_results(self, state):
    return Results(*2 * [tf.zeros(state.shape[:-1])])

  def one_step(self, state, results, seed=None):
    noise = tf.random.stateless_normal(state.shape, seed)
    ratio = tf.fill(state.shape[:-1], np.float32(np.log(0.25)))
    return 0.5 * state + noise, results._replace(log_accept_ratio=ratio)


def sample(num_results=100, start=None, **kwargs):
  settings = dict(block_size=10, seed=1, jit_compile=False)
  return tfp_diag.mcmc.sample(
    Autoregression(),
    np.zeros([4, 2], np.float32) if start is None else start,
    num_results,
    **{**settings, **kwargs},
  )


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.fixture
def terminal(monkeypatch):
  stream = Terminal()
  # Not `sys.stderr` itself, which pytest sets for each phase of a test.
  monkeypatch.setattr(progress, 'sys', types.SimpleNamespace(stderr=stream))
  # All bars are drawn, however soon after the last one.
  bar = progress.tqdm.tqdm
  monkeypatch.setattr(bar, '__init__', _without_delay(bar.__init__))
  return stream


def _without_delay(init):
  def drawn_at_once(*args, **kwargs):
    init(*args, mininterval=0, miniters=1, **kwargs)

  return drawn_at_once


def test_a_bar_shows_phase_time_left_acceptance_and_rhat(terminal, monkeypatch):
  monkeypatch.setattr(progress, '_SECONDS_BETWEEN_RHATS', 0.0)
  sample(num_burnin_steps=50)
  lines = terminal.getvalue().split('\r')
  assert lines[1].startswith('compiling   0%')
  warmup = [line for line in lines if line.startswith('warm-up')]
  sampling = [line for line in lines if line.startswith('sampling')]
  assert 'acceptance 0.25' in warmup[-1]
  assert 'R-hat' not in warmup[-1]
  assert '150/150' in sampling[-1]
  for fact in ('100%', '00:00 left', 'acceptance 0.25', 'R-hat 1.'):
    assert fact in sampling[-1]


def read_until(text, descriptor):
  """What a terminal was written, which may arrive in pieces."""
  written = ''
  while text not in written:
    ready, _, _ = select.select([descriptor], [], [], 10.0)
    if not ready:
      break
    written += os.read(descriptor, 2**16).decode(errors='replace')
  return written


@pytest.mark.parametrize('rows, columns', [(0, 0), (0, 50), (20, 0), (20, 50)])
def test_a_terminal_of_any_size_has_a_bar(monkeypatch, rows, columns):
  pty, termios = map(pytest.importorskip, ('pty', 'termios'))
  fcntl = pytest.importorskip('fcntl')
  ours, its_own = pty.openpty()
  size = struct.pack('4H', rows, columns, 0, 0)
  fcntl.ioctl(its_own, termios.TIOCSWINSZ, size)
  with open(its_own, 'w') as stream:
    monkeypatch.setattr(progress, 'sys', types.SimpleNamespace(stderr=stream))
    # tqdm asks the size of nothing else.
    monkeypatch.setattr(progress.tqdm.std.sys, 'stderr', stream)
    sample(20)
    written = read_until('20/20', ours)
  os.close(ours)
  lines = [line for line in written.split('\r') if line.strip()]
  assert '20/20' in lines[-1]
  assert max(map(len, lines)) <= (columns or 80)


def test_80_columns_have_room_for_all_of_a_long_run(monkeypatch):
  monkeypatch.setattr(progress, '_SECONDS_BETWEEN_RHATS', 0.0)
  pty, termios = map(pytest.importorskip, ('pty', 'termios'))
  fcntl = pytest.importorskip('fcntl')
  ours, its_own = pty.openpty()
  size = struct.pack('4H', 24, 80, 0, 0)
  fcntl.ioctl(its_own, termios.TIOCSWINSZ, size)
  with open(its_own, 'w') as stream:
    monkeypatch.setattr(progress, 'sys', types.SimpleNamespace(stderr=stream))
    monkeypatch.setattr(progress.tqdm.std.sys, 'stderr', stream)
    sample(20_000, block_size=4000)
    written = ''
    # Both may be in what is read at once: then nothing else comes.
    while 'R-hat' not in written.partition('20000/20000')[2]:
      read = read_until('R-hat', ours)
      assert read, written
      written += read
  os.close(ours)
  line = [line for line in written.split('\r') if line.strip()][-1].rstrip()
  bar = re.fullmatch(
    r'sampling 100% \|(█+)\| 20000/20000, 00:00 left, acceptance 0.25, '
    r'R-hat \d\.\d{3}',
    line,
  )
  assert len(line) <= 80 and len(bar[1]) >= 8


def test_the_first_block_says_nothing_about_the_time_left(terminal):
  sample(20)
  lines = [line for line in terminal.getvalue().split('\r') if line.strip()]
  assert '10/20, ? left' in lines[1]
  assert '20/20, 00:00 left' in lines[-1]


def test_the_bar_of_a_resumed_run_begins_where_it_was(terminal, tmp_path):
  sample(50, checkpoint=tmp_path / 'run', progress_bar=False)
  assert terminal.getvalue() == ''
  sample(100, checkpoint=tmp_path / 'run', resume=True)
  assert '50/100' in terminal.getvalue().split('\r')[1]


def test_a_single_chain_has_no_rhat(terminal, monkeypatch):
  monkeypatch.setattr(progress, '_SECONDS_BETWEEN_RHATS', 0.0)
  sample(start=np.zeros([2], np.float32))
  assert '100/100' in terminal.getvalue()
  assert 'R-hat' not in terminal.getvalue()


def test_a_notebook_has_a_bar_where_it_is_asked_for(terminal):
  del terminal  # Has set the delay of bars to none.
  stream = type('OutStream', (io.StringIO,), {'__module__': 'ipykernel.io'})()
  progress.sys.stderr = stream
  sample()
  assert stream.getvalue() == ''
  sample(progress_bar=True)
  assert '100/100' in stream.getvalue()


def test_into_a_file_goes_a_line_at_the_end(capsys):
  sample(progress_bar=True)
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('sampling: 100 of 100 steps, acceptance 0.25')


def test_the_r_hat_of_the_end_is_of_all_draws(capsys, monkeypatch):
  seen = []

  def quick_rhat(read_draws, *_):
    seen.append(len(read_draws()))
    return 1.5

  monkeypatch.setattr(progress, '_quick_rhat', quick_rhat)
  sample(progress_bar=True)
  (line,) = capsys.readouterr().err.splitlines()
  assert 'R-hat 1.500' in line
  # Once when there are enough, and at the end.
  assert len(seen) == 2 and seen[0] < seen[1] == 100


def test_the_r_hat_of_an_early_end_is_of_all_draws(capsys, monkeypatch):
  seen = []
  monkeypatch.setattr(
    progress,
    '_quick_rhat',
    lambda read_draws, *_: seen.append(len(read_draws())) or 1.5,
  )
  found = sample(progress_bar=True, stop_when=lambda draws, _: len(draws) >= 50)
  assert seen[-1] == found.num_results < 100
  assert len(capsys.readouterr().err.splitlines()) == 1


def test_lines_say_how_much_time_is_left(capsys, monkeypatch):
  seconds = iter(np.arange(0.0, 1e5, 5.0))
  monkeypatch.setattr(progress.time, 'perf_counter', lambda: next(seconds))
  monkeypatch.setattr(progress, '_SECONDS_BETWEEN_LINES', 0.0)
  monkeypatch.setattr(progress, '_SECONDS_BETWEEN_RHATS', np.inf)
  sample(50, progress_bar=True)
  lines = capsys.readouterr().err.splitlines()
  left = [re.search(r'steps, (\d\d:\d\d) left', line) for line in lines]
  # Nothing is known in the first block, and nothing is left in the last one.
  assert left[0] is None and left[-1] is None
  # A block looks at the clock four times.
  expected = [4 * 5.0 * num_blocks for num_blocks in (3, 2, 1)]
  minutes = [found[1].split(':') for found in left[1:-1]]
  np.testing.assert_allclose(
    [60 * int(m) + int(s) for m, s in minutes], expected
  )


def test_lines_become_rarer(capsys, monkeypatch):
  seconds = iter(np.arange(0.0, 1e5, 5.0))
  monkeypatch.setattr(progress.time, 'perf_counter', lambda: next(seconds))
  sample(1000, progress_bar=True, start=np.zeros([2], np.float32))
  lines = capsys.readouterr().err.splitlines()
  # 100 blocks of at least fifteen seconds.
  steps = [int(line.split()[1].replace(',', '')) for line in lines]
  assert 5 < len(lines) < 14
  assert steps[-1] == 1000
  assert np.all(np.diff(np.diff(steps[:-1])) >= 0)


@pytest.mark.parametrize('progress_bar', [None, False])
def test_nothing_is_shown_unasked(capsys, progress_bar):
  sample(progress_bar=progress_bar)
  assert capsys.readouterr() == ('', '')


def interrupt(*_, **unused):
  raise KeyboardInterrupt


def assert_interrupted(found, num_results):
  whole = sample()
  assert (found.num_results, found.stopped_by) == (num_results, 'interrupted')
  np.testing.assert_array_equal(found.draws, whole.draws[:num_results])
  for name, traced in found.trace.items():
    np.testing.assert_array_equal(traced, whole.trace[name][:num_results])
  if num_results:
    np.testing.assert_array_equal(found.final_state, found.draws[-1])


def test_ctrl_c_while_the_progress_is_shown(terminal, monkeypatch):
  del terminal
  with monkeypatch.context() as patch:
    patch.setattr(progress, '_SECONDS_BETWEEN_RHATS', 0.0)
    # Of a few draws there is no R-hat.
    patch.setattr(progress, '_LEAST_DRAWS', 30)
    patch.setattr(progress, 'rhat', interrupt)
    with pytest.warns(UserWarning, match='30 of 100 steps .* 30 of 100 draws'):
      found = sample()
  assert_interrupted(found, 30)


def test_ctrl_c_while_stop_when_thinks():
  def stop_when(draws, _):
    return len(draws) == 40 and interrupt()

  with pytest.warns(UserWarning, match='Pass `checkpoint` to be able'):
    found = sample(stop_when=stop_when)
  assert_interrupted(found, 40)


def interrupt_block(patch, number):
  """Ctrl-C at the end of that block, counted from 0."""
  blocks = []
  run = tfp_diag.mcmc.run.block.SamplingBlock.__call__

  def interrupted(*args):
    result = run(*args)
    blocks.append(None)
    if len(blocks) == number + 1:
      interrupt()
    return result

  patch.setattr(tfp_diag.mcmc.run.block.SamplingBlock, '__call__', interrupted)


def test_ctrl_c_during_a_block(monkeypatch, tmp_path):
  with monkeypatch.context() as patch:
    interrupt_block(patch, 2)
    with pytest.warns(UserWarning, match="It goes on with `checkpoint='.*run'"):
      found = sample(checkpoint=tmp_path / 'run')
  assert_interrupted(found, 20)
  np.testing.assert_array_equal(
    sample(checkpoint=tmp_path / 'run', resume=True).draws, sample().draws
  )


@pytest.mark.parametrize('with_checkpoint', [False, True])
@pytest.mark.parametrize('num_blocks', [0, 2])
def test_ctrl_c_before_the_first_draw(
  monkeypatch, tmp_path, num_blocks, with_checkpoint
):
  """A script would go on, and fail at the first draw."""
  options = dict(num_burnin_steps=25)
  if with_checkpoint:
    options['checkpoint'] = tmp_path / 'run'
  with monkeypatch.context() as patch:
    interrupt_block(patch, num_blocks)
    with pytest.raises(KeyboardInterrupt) as error:
      sample(**options)
  # The burn-in until then is not lost.
  kept = error.value.sample_results
  assert (kept.num_results, kept.stopped_by) == (0, 'interrupted')
  np.testing.assert_array_equal(
    kept.final_state, sample(0, num_burnin_steps=10 * num_blocks).final_state
  )
  said = ''.join(traceback.format_exception(error.value))
  if with_checkpoint:
    assert f"It goes on with `checkpoint='{tmp_path / 'run'}', res" in said
    np.testing.assert_array_equal(
      sample(**options, resume=True).draws, sample(num_burnin_steps=25).draws
    )
  else:
    assert ('Pass `checkpoint` to be able' in said) == bool(num_blocks)


def test_ctrl_c_in_a_burn_in_alone_returns_its_state(monkeypatch):
  with monkeypatch.context() as patch:
    interrupt_block(patch, 2)
    with pytest.warns(UserWarning, match='interrupted after 20 of 50 steps'):
      found = sample(0, num_burnin_steps=50)
  assert (found.num_results, found.stopped_by) == (0, 'interrupted')
  np.testing.assert_array_equal(
    found.final_state, sample(0, num_burnin_steps=20).final_state
  )


def test_ctrl_c_after_the_last_block_is_no_interruption(monkeypatch):
  class Closing(progress._Lines):
    def close(self):
      interrupt()

  monkeypatch.setattr(progress, '_Lines', Closing)
  found = sample(progress_bar=True)
  assert (found.num_results, found.stopped_by) == (100, 'finished')
