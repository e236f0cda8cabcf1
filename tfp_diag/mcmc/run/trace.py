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

from tfp_diag.internal import arguments
from tfp_diag.mcmc.diagnose.named_draws import named_leaves
from tfp_diag.mcmc.diagnose.sampler_statistics import NAMES_OF_FIELDS

# Energy errors beyond this count as divergent, as in TFP's samplers.
_DIVERGENCE = 500.0
# Leaves of a structure on a line.
_MOST_SHOWN = 8


def default_trace(kernel, results):
  """The quantities that most samplers report, those that the kernel has.

  Args:
    kernel: A `tfp.mcmc.TransitionKernel`.
    results: Its kernel results after a step.

  Returns:
    Dict with, where they are found, the entries 'target_log_prob',
    'is_accepted', 'log_accept_ratio', 'accept_ratio', 'step_size' (with several
    of them 'step_size_0' and so on), 'diverging', 'tune' (the step still
    adapted something), 'n_steps' (of trajectories and NUTS), and of a NUTS
    'reached_max_treedepth' and 'energy'.
  """
  found = {
    name: innermost(results, field) for field, name in NAMES_OF_FIELDS.items()
  }
  step_sizes = tf.nest.flatten(found.pop('step_size'))
  if len(step_sizes) == 1:
    found['step_size'] = step_sizes[0]
  else:
    found.update({f'step_size_{i}': s for i, s in enumerate(step_sizes)})
  ratio = found['log_accept_ratio']
  if ratio is not None:
    found['accept_ratio'] = tf.exp(tf.minimum(ratio, 0.0))
    if found['diverging'] is None:
      # NaN compares false, and is divergent.
      found['diverging'] = ~(tf.abs(ratio) <= _DIVERGENCE)
  found['tune'] = _is_adapting(kernel, results)
  return {name: value for name, value in found.items() if value is not None}


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
  """The field `name` of the results that lie deepest, or None.

  Of replicas (`tfp.mcmc.ReplicaExchangeMC`), that of the first, the chain.

  Args:
    results: Kernel results, of Tensors, arrays or `tf.TensorSpec`s.
    name: Python `str`.

  Returns:
    What is found, or None.
  """
  found = None
  while results is not None:
    found = getattr(results, name, found)
    replicas = getattr(results, 'post_swap_replica_results', None)
    if replicas is not None:
      inside = innermost(replicas, name)
      return found if inside is None else _of_the_first(inside, results)
    results = _inner(results)
  return found


def _of_the_first(found, results):
  """What belongs to the first replica: one step size may be that of all."""
  count = results.inverse_temperatures.shape[0]

  def first(x):
    shape = tf.TensorShape(x.shape)
    if not shape.rank or shape[0] != count:
      return x
    if isinstance(x, tf.TensorSpec):
      return tf.TensorSpec(shape[1:], x.dtype)
    return x[0]

  return tf.nest.map_structure(first, found)


def _inner(results):
  """The results of the kernel inside, or of the state that was accepted."""
  inner = getattr(results, 'inner_results', None)
  if inner is None:
    inner = getattr(results, 'accepted_results', None)
  return inner


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


def as_trace(recorded):
  """What a `trace_fn` returned, as a structure of Tensors.

  Args:
    recorded: What it returned.

  Returns:
    Structure of Tensors.

  Raises:
    TypeError: if something in it is no Tensor, or keys cannot be sorted.
  """
  if recorded is None:
    raise TypeError(
      '`trace_fn` returned None, but must return what to record of a step. '
      'Check its `return`; `{}` records nothing.'
    )
  try:
    tf.nest.flatten(recorded)
  except TypeError as e:
    raise TypeError(
      '`trace_fn` returned a dict whose keys cannot be sorted, as TensorFlow '
      f'does ({arguments.reason(e)}). Take texts alone.'
    ) from e
  for name, x in zip(part_names(recorded), tf.nest.flatten(recorded)):
    if x is None:
      raise TypeError(
        f'`trace_fn` returned None as {name!r}, but must return Tensors. '
        'Leave that out.'
      )
  return tf.nest.map_structure(
    lambda x: arguments.as_tensor('What `trace_fn` returned', x), recorded
  )


def shown_run(found):
  """What a driver has returned, on one line.

  Args:
    found: Namedtuple with the fields draws and trace and the attribute
      stopped_by.

  Returns:
    Python `str`.
  """
  draws, trace = (_shown(part) for part in (found.draws, found.trace))
  ended = '' if found.stopped_by is None else f' {found.stopped_by}'
  return f'<{type(found).__name__}{ended}: draws {draws}; trace {trace}>'


def _shown(structure):
  """The names and shapes of the first leaves of a structure."""
  leaves = tf.nest.flatten(structure)
  entries = [
    f'{name} {list(x.shape)}' if hasattr(x, 'shape') else name
    for name, x in zip(part_names(structure), leaves)
  ]
  more = len(entries) - _MOST_SHOWN
  rest = [f'and {more} more'] if more > 0 else []
  return ', '.join([*entries[:_MOST_SHOWN], *rest]) or 'of nothing'


def part_names(structure):
  """Distinct names of the leaves of a structure.

  Args:
    structure: A structure.

  Returns:
    List of Python `str`s in the order of `tf.nest`.
  """
  count = len(tf.nest.flatten(structure))
  numbered = tf.nest.pack_sequence_as(structure, list(range(count)))
  named = list(named_leaves(numbered))
  found = {i: name for name, i in named if isinstance(i, int)}
  if len({*found.values()}) < count:
    # Nested keys with dots in them, or a structure that TensorFlow alone knows.
    return [f'x{i}' for i in range(count)]
  return [found[i] for i in range(count)]
