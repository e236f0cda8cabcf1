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
"""Draws from a target with an adapted, preconditioned MALA."""

import collections
import functools
import shutil
import time

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

from tfp_diag.mcmc import PreconditionedMALA

__all__ = ['Draws', 'draw_chains']

# The acceptance rate at which MALA is most efficient in high dimensions:
# Roberts and Rosenthal (1998), theorem 2.
TARGET_ACCEPT_PROB = 0.574

# Warm-up: each window begins with the scales of the one before it and has
# twice its length.
NUM_WINDOWS = 5

# The progress bar moves after each block of steps.
MOST_STEPS_PER_BLOCK = 50


class Draws(
  collections.namedtuple(
    'Draws',
    [
      'state',
      'is_accepted',
      'step_size',
      'scale',
      'num_requested',
      'warmup_seconds',
      'seconds',
    ],
  )
):
  """Draws of all chains.

  Attributes:
    state: List of float32 arrays [draws, chains, ...event], one per part.
    is_accepted: bool array [draws, chains].
    step_size: Python `float`, what warm-up arrived at.
    scale: List of float32 arrays [...event]: the preconditioner.
    num_requested: Python `int`, the number of draws that was asked for; more
      than there are after an interruption.
    warmup_seconds: Python `float`, with the compilation.
    seconds: Python `float`, the time the draws took.
  """


def draw_chains(
  target_log_prob_fn,
  start,
  num_draws,
  num_warmup,
  step_size,
  seed,
  use_xla=True,
  show_progress=True,
):
  """Adapts step size and scales, then draws; shows its progress.

  Warm-up consists of windows that double in length. In each one dual averaging
  brings the acceptance rate to 0.574; the standard deviations of its second
  half, pooled over the chains, become the scales of the next one. The last
  window leaves the scales alone, and after it nothing is adapted any more.

  Ctrl-C during warm-up raises KeyboardInterrupt; later it ends the drawing, and
  what there is until then is returned.

  Args:
    target_log_prob_fn: Callable of the parts, returns one value per chain.
    start: List of Tensors of leading shape [chains].
    num_draws: Python `int`, per chain.
    num_warmup: Python `int`, steps whose states are not kept.
    step_size: Python `float`, where the adaptation starts; it stays there
      without warm-up.
    seed: Python `int`.
    use_xla: Python `bool`, whether XLA compiles the steps.
    show_progress: Python `bool`; without a terminal no bar is shown anyway.

  Returns:
    A `Draws`.
  """
  total = num_draws + num_warmup
  block_size = min(MOST_STEPS_PER_BLOCK, max(1, total // 100))
  chains = _Chains(target_log_prob_fn, start, block_size, seed, use_xla)
  terminal = shutil.get_terminal_size()
  with tqdm.tqdm(
    total=total,
    desc='compiling',
    unit='step',
    # None shows the bar where stderr is a terminal.
    disable=None if show_progress else True,
    # Falls back on 80 x 24 for a terminal that does not know its size, in
    # which the bar would be invisible.
    ncols=terminal.columns,
    nrows=terminal.lines,
  ) as bar:
    began = time.perf_counter()
    scale = [tf.ones(part.shape[1:], part.dtype) for part in start]
    windows = _windows(num_warmup)
    for i, length in enumerate(windows):
      chains.restart_adaptation(scale, step_size, length)
      blocks = list(chains.blocks(length, bar, 'warm-up'))
      step_size = chains.step_size()
      if i + 1 < len(windows):
        scale = _pooled_standard_deviations(_join(blocks)[0], scale)
    warmup_seconds = time.perf_counter() - began

    began = time.perf_counter()
    blocks = []
    try:
      for block in chains.blocks(num_draws, bar, 'drawing'):
        blocks.append(block)
    except KeyboardInterrupt:
      if not blocks:
        raise
    seconds = time.perf_counter() - began
  state, is_accepted = _join(blocks)
  return Draws(
    state=state,
    is_accepted=is_accepted,
    step_size=step_size,
    scale=[part.numpy() for part in scale],
    num_requested=num_draws,
    warmup_seconds=warmup_seconds,
    seconds=seconds,
  )


class _Chains:
  """The chains between two blocks of steps, and the compiled block."""

  def __init__(self, target_log_prob_fn, start, block_size, seed, use_xla):
    self._fn = target_log_prob_fn
    self._state = start
    self._block_size = block_size
    self._seed = seed
    self._num_blocks = 0
    self._scale = None
    self._results = None
    self._run = tf.function(
      functools.partial(_block, target_log_prob_fn, block_size),
      jit_compile=use_xla,
      autograph=False,
    )

  def restart_adaptation(self, scale, step_size, num_steps):
    """Continues from the same states with a new scale."""
    kernel = _kernel(self._fn, scale, step_size, num_steps)
    self._scale = scale
    self._results = kernel.bootstrap_results(self._state)

  def step_size(self):
    """What the adaptation has arrived at."""
    return float(self._results.new_step_size)

  def blocks(self, num_steps, bar, description):
    """Yields pairs (states, is_accepted), NumPy arrays of leading [steps]."""
    done = 0
    while done < num_steps:
      count = min(self._block_size, num_steps - done)
      self._num_blocks += 1
      self._state, self._results, states, is_accepted = self._run(
        self._state,
        self._results,
        self._scale,
        tf.constant(count),
        tf.constant([self._seed, self._num_blocks]),
      )
      block = [part[:count].numpy() for part in states]
      done += count
      bar.set_description(description, refresh=False)
      bar.update(count)
      yield block, is_accepted[:count].numpy()


def _kernel(target_log_prob_fn, scale, step_size, num_adaptation_steps):
  return tfp.mcmc.DualAveragingStepSizeAdaptation(
    PreconditionedMALA(
      target_log_prob_fn, step_size=step_size, preconditioner=scale
    ),
    num_adaptation_steps=num_adaptation_steps,
    target_accept_prob=TARGET_ACCEPT_PROB,
  )


def _block(fn, block_size, state, results, scale, num_steps, seed):
  """Makes `num_steps` steps; the arrays it fills have `block_size` entries.

  The number of steps is a Tensor, so that one compilation serves all windows.
  The step size and the end of its adaptation are in `results`.
  """
  kernel = _kernel(fn, scale, step_size=1.0, num_adaptation_steps=0)
  arrays = [
    tf.TensorArray(part.dtype, size=block_size, element_shape=part.shape)
    for part in state
  ]
  is_accepted = results.inner_results.is_accepted
  arrays.append(
    tf.TensorArray(tf.bool, size=block_size, element_shape=is_accepted.shape)
  )

  def step(i, state, results, arrays):
    state, results = kernel.one_step(
      state,
      results,
      seed=tf.random.fold_in(seed, i),
    )
    entries = [*state, results.inner_results.is_accepted]
    arrays = [array.write(i, entry) for array, entry in zip(arrays, entries)]
    return i + 1, state, results, arrays

  _, state, results, arrays = tf.while_loop(
    lambda i, *_: i < num_steps,
    step,
    (tf.constant(0), state, results, arrays),
  )
  *states, is_accepted = [array.stack() for array in arrays]
  return state, results, states, is_accepted


def _windows(num_steps):
  """Lengths that double and add up to `num_steps`; [0] for no steps."""
  shares = 2**NUM_WINDOWS - 1
  lengths = [num_steps * 2**i // shares for i in range(NUM_WINDOWS - 1)]
  lengths.append(num_steps - sum(lengths))
  return [length for length in lengths if length] or [0]


def _pooled_standard_deviations(states, fallback):
  """One scale per coordinate, from the second half of a window.

  Args:
    states: List of arrays [steps, chains, ...event].
    fallback: List of Tensors [...event]: the scale of a coordinate that has
      not moved.

  Returns:
    List of Tensors [...event].
  """
  scale = []
  for part, previous in zip(states, fallback):
    late = part[len(part) // 2 :].astype(np.float64)
    deviations = np.std(late, axis=(0, 1))
    usable = (deviations > 0.0) & np.isfinite(deviations)
    kept = np.where(usable, deviations, previous.numpy())
    scale.append(tf.constant(kept, previous.dtype))
  return scale


def _join(blocks):
  """Concatenates blocks along the steps."""
  states, is_accepted = zip(*blocks)
  return [np.concatenate(part) for part in zip(*states)], np.concatenate(
    is_accepted
  )
