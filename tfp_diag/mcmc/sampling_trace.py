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
"""What is recorded of a step by default, whatever the kernel."""

import numpy as np
import tensorflow as tf

__all__ = ['acceptance', 'default_trace', 'innermost']

# Energy errors beyond this count as divergent, as in TFP's samplers.
_DIVERGENCE = 500.0


def default_trace(kernel, results):
  """The quantities that most samplers report, those that the kernel has.

  Args:
    kernel: A `tfp.mcmc.TransitionKernel`.
    results: Its kernel results after a step.

  Returns:
    Dict with, where they are found, the entries 'step_size', 'target_log_prob',
    'accept_ratio', 'is_accepted', 'diverging' and 'tune' (the step still
    adapted something).
  """
  trace = {}
  step_size = innermost(results, 'step_size')
  if isinstance(step_size, (list, tuple)) and len(step_size) == 1:
    step_size = step_size[0]
  _record(trace, 'step_size', step_size)
  _record(trace, 'target_log_prob', innermost(results, 'target_log_prob'))
  log_accept_ratio = innermost(results, 'log_accept_ratio')
  if log_accept_ratio is not None:
    trace['accept_ratio'] = tf.exp(tf.minimum(log_accept_ratio, 0.0))
  _record(trace, 'is_accepted', innermost(results, 'is_accepted'))
  diverging = innermost(results, 'has_divergence')
  if diverging is None and log_accept_ratio is not None:
    # NaN compares false, and is divergent.
    diverging = ~(tf.abs(log_accept_ratio) <= _DIVERGENCE)
  _record(trace, 'diverging', diverging)
  _record(trace, 'tune', _is_adapting(kernel, results))
  return trace


def acceptance(results):
  """The mean acceptance of a step over the chains: a float32 scalar, or NaN."""
  ratio = innermost(results, 'log_accept_ratio')
  if ratio is not None:
    return tf.reduce_mean(tf.cast(tf.exp(tf.minimum(ratio, 0.0)), tf.float32))
  is_accepted = innermost(results, 'is_accepted')
  if is_accepted is not None:
    return tf.reduce_mean(tf.cast(is_accepted, tf.float32))
  return tf.constant(np.nan, tf.float32)


def innermost(results, name):
  """The field `name` of the results that lie deepest, or None."""
  found = None
  while results is not None:
    found = getattr(results, name, found)
    results = _inner(results)
  return found


def _inner(results):
  """The results of the kernel inside, or of the state that was accepted."""
  inner = getattr(results, 'inner_results', None)
  if inner is None:
    inner = getattr(results, 'accepted_results', None)
  return inner


def _record(trace, name, value):
  if value is not None:
    trace[name] = value


def _is_adapting(kernel, results):
  """Whether the step just made was one that some adapter learned from."""
  adapting = []
  while kernel is not None and results is not None:
    # In the results of some adapters, an argument of the others.
    num_steps = getattr(
      results,
      'num_adaptation_steps',
      getattr(kernel, 'num_adaptation_steps', None),
    )
    step = getattr(results, 'step', None)
    if num_steps is not None and step is not None:
      adapting.append(step <= tf.cast(num_steps, step.dtype))
    kernel = getattr(kernel, 'inner_kernel', None)
    results = getattr(results, 'inner_results', None)
  return tf.reduce_any(adapting) if adapting else None
