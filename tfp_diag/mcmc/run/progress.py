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
"""Shows how a run comes along."""

import os
import sys
import time

import numpy as np
import tensorflow as tf
import tqdm

from tfp_diag.mcmc.diagnose.rhat import rhat

# R-hat is a hint here: of some draws, chains and coordinates, now and then.
_SECONDS_BETWEEN_RHATS = 2.0
_MOST_DRAWS = 200
_MOST_CHAINS = 32
_MOST_COORDINATES = 100
_LEAST_DRAWS = 10
# Into a file.
_SECONDS_BETWEEN_LINES = 30.0
# Room for 20,000 steps, acceptance and R-hat beside a bar, in 80 columns.
_BAR = (
  '{desc} {percentage:3.0f}% |{bar}| {n}/{total}, {remaining} left{postfix}'
)
# Of a terminal that does not know its size, as in containers and some editors.
_COLUMNS, _LINES = 80, 24


def show_progress(progress_bar, schedule, num_steps_done, chain_ndims):
  """What shows the progress: a bar where one can be, some lines elsewhere.

  Args:
    progress_bar: Python `bool` or None: whether something is shown; None shows
      the bar on a terminal and nothing elsewhere.
    schedule: A `Schedule`.
    num_steps_done: Python `int`, how many steps an earlier run has made.
    chain_ndims: Python `int`, the number of axes of the chains.

  Returns:
    A context manager with the method `update(step, acceptance, read_draws)`.
  """
  on_terminal = sys.stderr.isatty()
  if progress_bar is None:
    progress_bar = on_terminal
  if not progress_bar:
    return _Nothing()
  # A notebook is no terminal, but draws a bar in its place, too.
  in_notebook = type(sys.stderr).__module__.startswith('ipykernel.')
  shown = _Bar if on_terminal or in_notebook else _Lines
  return shown(schedule, num_steps_done, chain_ndims)


class _Nothing:
  """Shows nothing."""

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    pass

  def update(self, step, acceptance, read_draws):
    """Takes no notice."""


class _Shown:
  """What a bar and lines have in common."""

  def __init__(self, schedule, num_steps_done, chain_ndims):
    self._schedule = schedule
    self._chain_ndims = chain_ndims
    self._start = time.perf_counter()
    self._num_rows_before = schedule.num_rows(num_steps_done)
    self._first_row_seconds = None
    self._rhat = None
    self._rhat_seconds = -np.inf
    self._last = None

  def __enter__(self):
    return self

  def __exit__(self, error, *unused):
    if error is None and self._last is not None:
      step, *more = self._last
      if step < self._schedule.num_steps:
        # What a person reads at an early end is of all draws, too.
        self._rhat_seconds = -np.inf
        self.show(step, *more)
    self.close()

  def update(self, step, acceptance, read_draws):
    """Shows how far the run has come.

    Args:
      step: Python `int`, how many steps there are.
      acceptance: Python `float`; NaN if it is not known.
      read_draws: Python callable that returns the draws so far.
    """
    self._last = step, acceptance, read_draws
    self.show(*self._last)

  def show(self, step, acceptance, read_draws):
    """Displays what `update` was told; each display has its own."""
    raise NotImplementedError

  def close(self):
    """Ends the display."""

  def phase(self, step):
    """What the run is doing."""
    is_warmup = step < self._schedule.num_burnin_steps
    return 'warm-up' if is_warmup else 'sampling'

  def facts(self, step, acceptance, read_draws):
    """Acceptance and R-hat, those that are known, in words."""
    now = time.perf_counter() - self._start
    facts = []
    if np.isfinite(acceptance):
      facts.append(f'acceptance {acceptance:.2f}')
    num_rows = self._schedule.num_rows(step)
    is_due = now - self._rhat_seconds > _SECONDS_BETWEEN_RHATS
    is_due |= step >= self._schedule.num_steps
    if is_due and num_rows >= _LEAST_DRAWS:
      self._rhat = _quick_rhat(read_draws, num_rows, self._chain_ndims)
      # Counted from the end, so that a slow one takes no more than its share.
      self._rhat_seconds = time.perf_counter() - self._start
    if self._rhat is not None:
      facts.append(f'R-hat {self._rhat:.3f}')
    return facts

  def speed(self, step):
    """Draws per second in words, in a list; empty before there are two."""
    now = time.perf_counter() - self._start
    num_rows = self._schedule.num_rows(step)
    if num_rows <= self._num_rows_before:
      return []
    if self._first_row_seconds is None:
      # The time until here was spent on compilation and warm-up.
      self._first_row_seconds = now
      self._num_rows_before = num_rows
      return []
    new = num_rows - self._num_rows_before
    speed = new / (now - self._first_row_seconds)
    return [f'{speed:,.0f} draws/s' if speed > 10 else f'{speed:.2f} draws/s']


class _Bar(_Shown):
  """A bar on a terminal."""

  def __init__(self, schedule, num_steps_done, chain_ndims):
    super().__init__(schedule, num_steps_done, chain_ndims)
    self._is_compiling = True
    num_columns, num_lines = _assumed_size(sys.stderr)
    self._bar = tqdm.tqdm(
      total=schedule.num_steps,
      initial=num_steps_done,
      desc='compiling',
      bar_format=_BAR,
      file=sys.stderr,
      ncols=num_columns,
      nrows=num_lines,
    )

  def show(self, step, acceptance, read_draws):
    """Moves the bar."""
    self._bar.set_description_str(self.phase(step - 1), refresh=False)
    facts = self.facts(step, acceptance, read_draws)
    self._bar.set_postfix_str(', '.join(facts), refresh=False)
    if self._is_compiling:
      # The first block says nothing about the time that is left.
      self._is_compiling = False
      self._bar.n = self._bar.initial = step
      self._bar.unpause()
      self._bar.refresh()
    else:
      self._bar.update(step - self._bar.n)

  def close(self):
    """Leaves the bar as it is."""
    self._bar.close()


def _assumed_size(stream):
  """The columns and lines of a terminal that says that it has none, for tqdm.

  It finds out by itself what is None, but takes a terminal of 0 columns or
  lines by its word and shows nothing.
  """
  try:
    size = os.get_terminal_size(stream.fileno())
  except (AttributeError, OSError, ValueError):
    # A notebook, or another stream that is no terminal itself.
    return None, None
  return None if size.columns else _COLUMNS, None if size.lines else _LINES


class _Lines(_Shown):
  """A line now and then, and one at the end, for a log file."""

  def __init__(self, schedule, num_steps_done, chain_ndims):
    super().__init__(schedule, num_steps_done, chain_ndims)
    self._line = None
    self._first = None
    self._next_seconds = _SECONDS_BETWEEN_LINES

  def show(self, step, acceptance, read_draws):
    """Writes a line if the last one is old enough."""
    facts = [
      f'{self.phase(step - 1)}: {step:,} of {self._schedule.num_steps:,} steps',
      *self._left(step),
      *self.facts(step, acceptance, read_draws),
      *self.speed(step),
    ]
    self._line = ', '.join(facts)
    if time.perf_counter() - self._start >= self._next_seconds:
      self._write()
      # A run ten times as long writes twice the lines, not ten times.
      self._next_seconds *= 1.5

  def _left(self, step):
    """The time that is left in words, in a list, as a bar shows it."""
    now = time.perf_counter()
    if self._first is None:
      # The first block, which is compiled, says nothing about it.
      self._first = step, now
      return []
    first_step, first_seconds = self._first
    num_left = self._schedule.num_steps - step
    if not num_left or step == first_step:
      return []
    seconds = num_left * (now - first_seconds) / (step - first_step)
    return [f'{tqdm.tqdm.format_interval(seconds)} left']

  def close(self):
    """Writes the line of the end."""
    if self._line is not None:
      self._write()

  def _write(self):
    print(self._line, file=sys.stderr, flush=True)
    self._line = None


def _quick_rhat(read_draws, num_rows, chain_ndims):
  """The largest R-hat of some coordinates; None for a single chain, say."""
  if chain_ndims == 0:
    return None
  found = []
  every = -(-num_rows // _MOST_DRAWS)
  for part in tf.nest.flatten(read_draws()):
    some = part[::every]
    if not some.size:
      continue
    some = some.reshape(
      [len(some), int(np.prod(some.shape[1 : 1 + chain_ndims])), -1]
    )[:, :_MOST_CHAINS, :_MOST_COORDINATES]
    if some.shape[1] > 1:
      found.append(np.max(rhat(some)))
  return float(np.max(found)) if found else None
