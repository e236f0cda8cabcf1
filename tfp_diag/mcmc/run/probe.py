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
"""What kernels and traces give at one state: by this a run is known again.

Functions cannot be compared from process to process, but their values can.
"""

import numpy as np
import tensorflow as tf

from tfp_diag.mcmc.run.trace import innermost

# By how much the same log density may differ, on another machine or device: in
# shares, and near zero.
_SAME_LOG_PROB = {'float32': (3e-6, 1e-4), 'float64': (1e-12, 1e-8)}
# The same, of a graph and of eager mode; what is less changes no acceptance.
_SAME_AT_START = {'float32': (1e-5, 1e-2), 'float64': (1e-10, 1e-6)}
# The same for what else a kernel has computed, derivatives above all, in shares
# of the largest number; and where that is zero but for rounding.
_SAME = {'float32': (1e-2, 1e-6), 'float64': (1e-6, 1e-12)}
# Of each Tensor that many numbers, for there may be matrices.
_MOST_NUMBERS = 4096


def same_log_prob(now, before, tolerances=_SAME_LOG_PROB):
  """Where two log densities of the same shape are the same up to rounding.

  Args:
    now: Array.
    before: Array.
    tolerances: Dict from dtypes to a relative and an absolute tolerance.

  Returns:
    bool array.
  """
  relative, absolute = tolerances.get(before.dtype.name, (1e-2, 1e-2))
  return np.isclose(now, before, relative, absolute, equal_nan=True)


def check_previous_results(kernel, state, bootstrapped, results):
  """Refuses kernel results of another state or target, where they tell.

  Args:
    kernel: A `tfp.mcmc.TransitionKernel`.
    state: The state that a run starts with.
    bootstrapped: What the kernel's `bootstrap_results` has returned for it.
    results: What was given in the place of that.

  Raises:
    ValueError: if these have another log density, or states of replicas that
      begin elsewhere.
  """
  _check_replicas(bootstrapped, results)
  here = innermost(bootstrapped, 'target_log_prob')
  found = innermost(results, 'target_log_prob')
  if here is None or found is None:
    return
  here, found = np.asarray(here), np.asarray(found)
  if here.shape != found.shape:
    raise ValueError(
      '`previous_kernel_results` has log densities of the shape '
      f'{list(found.shape)}, but at the start they have {list(here.shape)}. '
      f'{_START_THERE}'
    )
  same = same_log_prob(found, here, _SAME_AT_START)
  if np.all(same):
    return
  again = innermost(kernel.bootstrap_results(state), 'target_log_prob')
  if np.asarray(again).tobytes() != here.tobytes():
    return  # It is random: nothing can be said.
  first = tuple(map(int, np.argwhere(~same)[0]))
  raise ValueError(
    '`previous_kernel_results` is of another state or target: its log density '
    f'is {found[first]}, but at the start it is {here[first]} (chain '
    f'{", ".join(map(str, first)) or "0"}). {_START_THERE}'
  )


def _check_replicas(bootstrapped, results):
  """Refuses replicas of another state: they are what a step starts from."""
  here, found = (
    tf.nest.flatten(innermost(x, 'post_swap_replica_states'))
    for x in (bootstrapped, results)
  )
  if here[0] is None or len(here) != len(found):
    return
  # The first replica is the chain.
  pairs = [(np.asarray(a)[0], np.asarray(b)[0]) for a, b in zip(here, found)]
  if not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs):
    raise ValueError(
      '`previous_kernel_results` is of another state: it holds the states of '
      'the replicas, and that of the first is not the one at the start. '
      f'{_START_THERE}'
    )


_START_THERE = (
  'Start at the `final_state` of the call that returned them, with the target '
  'and the data of that call; or pass None, with which the kernel begins anew.'
)


def kept_values(tensors):
  """Some numbers of each Tensor, to be compared with those of a later call.

  Args:
    tensors: List of Tensors.

  Returns:
    List of arrays of rank 1.
  """
  found = []
  for x in tensors:
    values = np.asarray(x).ravel()
    found.append(values[:: max(1, -(-values.size // _MOST_NUMBERS))])
  return found


def first_difference(compute, before):
  """Where a later call gives something else.

  What is random, or tells the time, is no difference: it is not the same in two
  calls in a row either.

  Args:
    compute: Callable without arguments that returns a list of Tensors.
    before: What `kept_values` has found in what it has returned once.

  Returns:
    None, or Python `int`s and numbers: which Tensor, what it had first, and
    what it has now.
  """
  now = kept_values(compute())
  if all(map(_same, now, before)):
    return None
  again = kept_values(compute())
  for i, (x, y, old) in enumerate(zip(now, again, before)):
    if _same(x, old) or x.tobytes() != y.tobytes():
      continue
    at = np.argmax(~_close(x, old))
    return i, old[at], x[at]
  return None


def _same(now, before):
  return np.all(_close(now, before))


def _close(now, before):
  """Where arrays of one shape are the same, up to rounding."""
  if not np.issubdtype(now.dtype, np.floating):
    return now == before
  relative, absolute = _SAME.get(now.dtype.name, (0.1, 1e-2))
  largest = np.max(np.abs(before[np.isfinite(before)]), initial=0.0)
  most = relative * largest + absolute
  return np.isclose(now, before, 0.0, most, equal_nan=True)
