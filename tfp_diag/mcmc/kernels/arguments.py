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
"""The arguments of the Langevin kernels, checked and in one form."""

import contextlib
import typing

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal.linear_map import MissingGradientError
from tfp_diag.internal import arguments, batching, nest


def is_list_like(state):
  """Whether a state is a list or tuple of parts, in the manner of `tfp.mcmc`.

  Args:
    state: Tensor, or list or tuple of Tensors.

  Returns:
    Python `bool`.
  """
  return isinstance(state, (list, tuple))


def as_parts(state):
  """The parts of a state.

  Args:
    state: Tensor, or list or tuple of Tensors.

  Returns:
    List of floating point Tensors of known rank.

  Raises:
    TypeError: if the state has another structure or a part another dtype.
    ValueError: if the rank of a part is not known.
  """
  if tf.nest.is_nested(state) and not is_list_like(state):
    raise TypeError(
      f'The state is a {type(state).__name__}, but transition kernels take a '
      'Tensor or a list of Tensors; pass a list of its values.'
    )
  parts = list(state) if is_list_like(state) else [state]
  if not parts:
    raise ValueError(
      'The state has no parts; pass a Tensor, or a list of one or more.'
    )
  for i, x in enumerate(parts):
    # Numbers in lists are an array.
    if any(
      tf.is_tensor(y) or isinstance(y, np.ndarray)
      for y in (tf.nest.flatten(x) if tf.nest.is_nested(x) else [])
    ):
      raise TypeError(
        f'Part {i} of the state is a {type(x).__name__}, but transition '
        'kernels take a Tensor or a flat list of Tensors; pass '
        '`tf.nest.flatten(state)`.'
      )
  parts = [
    arguments.as_tensor(f'Part {i} of the state', x)
    for i, x in enumerate(parts)
  ]
  for i, x in enumerate(parts):
    if not x.dtype.is_floating:
      raise TypeError(
        f'Part {i} of the state has dtype {x.dtype.name}, but Langevin '
        'dynamics moves real numbers; pass a floating point Tensor.'
      )
    if x.dtype.size < 4:
      raise TypeError(
        f'Part {i} of the state has dtype {x.dtype.name}, in which a log '
        'density keeps three digits or fewer and the probability of acceptance '
        'is wrong. Keep the state in float32, and cast inside '
        '`target_log_prob_fn` what is to run in half precision.'
      )
    if x.shape.rank is None:
      raise ValueError(
        f'Part {i} of the state has unknown rank; give it a static rank with '
        '`tf.ensure_shape`.'
      )
  return parts


def check_state(parts, gradients):
  """Refuses a state that is not the one that kernel results belong to.

  Args:
    parts: List of Tensors, the state.
    gradients: List of Tensors of the shapes that it had before.

  Raises:
    ValueError: if the number of parts or a shape differs.
  """
  now, before = [x.shape for x in parts], [g.shape for g in gradients]
  if len(now) != len(before) or not all(
    a.is_compatible_with(b) for a, b in zip(now, before)
  ):
    raise ValueError(
      f'The state has parts of shapes {[str(s) for s in now]}, but '
      f'`previous_kernel_results` are of {[str(s) for s in before]}; pass the '
      'state that was returned with them, or call `bootstrap_results`.'
    )


def named(log_prob_fn: typing.Any, name):
  """A log density that kernels know by the argument of a driver.

  Args:
    log_prob_fn: Python callable, not the user's own: it is marked.
    name: Python `str`, the argument that it was given as.

  Returns:
    The callable.
  """
  log_prob_fn.given_as = name
  return log_prob_fn


def given_as(target_log_prob_fn):
  """The argument that a log density was given as, for messages."""
  return getattr(target_log_prob_fn, 'given_as', 'target_log_prob_fn')


def as_log_prob(value):
  """What a target log density returned, as a Tensor.

  Args:
    value: What it returned.

  Returns:
    Tensor.

  Raises:
    TypeError: if it is None, a structure, or not a number.
  """
  if value is None or tf.nest.is_nested(value):
    raise TypeError(
      f'`target_log_prob_fn` returned a {type(value).__name__}, but must '
      'return one Tensor with the log density of each chain; check its '
      '`return`, and add up the terms.'
    )
  return arguments.as_tensor('What `target_log_prob_fn` returned', value)


def log_prob_at(target_log_prob_fn, parts):
  """The target log density at a point.

  Args:
    target_log_prob_fn: Callable of the parts. May branch in Python on the value
      of a Tensor, as in a `tf.function`.
    parts: Sequence of Tensors, the state.

  Returns:
    Tensor.

  Raises:
    TypeError: if what it returns is no log density, see `as_log_prob`, or it
      needs the value of a Tensor.
  """
  return as_log_prob(
    nest.call_as_caller(
      target_log_prob_fn, list(parts), given_as(target_log_prob_fn)
    )
  )


def check_target(target_log_prob, parts):
  """Refuses what a target log density may not return.

  Args:
    target_log_prob: Tensor, what it returned.
    parts: List of Tensors, the state.

  Raises:
    TypeError: if its dtype is not that of the state.
    ValueError: if its shape is not the leading shape of every part.
  """
  if target_log_prob.shape.rank is None:
    raise ValueError(
      '`target_log_prob_fn` returned a Tensor of unknown rank, so that chain '
      'and event axes cannot be told apart; use `tf.ensure_shape` in it.'
    )
  check_dtype(target_log_prob, parts)
  for i, x in enumerate(parts):
    chain_shape = x.shape[: target_log_prob.shape.rank]
    if not chain_shape.is_compatible_with(target_log_prob.shape):
      raise ValueError(
        '`target_log_prob_fn` returned a Tensor of shape '
        f'{target_log_prob.shape}, which is not a leading shape of part {i} of '
        f'the state, {x.shape}. It must return one value per chain: the chains '
        'are the first axes of the state, and what it adds up over are the '
        'last ones, as `tf.reduce_sum(..., axis=-1)` does.'
      )


def check_dtype(target_log_prob, parts, name='target_log_prob_fn'):
  """Refuses a target log density in another dtype than that of the state.

  Args:
    target_log_prob: Tensor, what it returned.
    parts: List of Tensors, the state.
    name: Python `str`, the argument that the callable was given as.

  Raises:
    TypeError: if a part has another one; names it.
  """
  for i, x in enumerate(parts):
    if x.dtype != target_log_prob.dtype:
      raise TypeError(
        f'`{name}` returned {target_log_prob.dtype.name} for a state whose '
        f'part {i} is {x.dtype.name}; all must have one dtype. Cast the state '
        'or the constants in it.'
      )


def check_gradients(gradients):
  """Refuses a target log density that does not depend on a part.

  Args:
    gradients: List of its gradients with respect to the parts, or Nones.

  Raises:
    ValueError: if there is a None.
  """
  for i, g in enumerate(gradients):
    if g is None:
      raise ValueError(
        f'The log density does not depend on part {i} of the state, or is not '
        'differentiable there. NumPy and `.numpy()` inside of it cut '
        'gradients: use TensorFlow ops, or leave that part out of the state.'
      )


def as_step_size(step_size, dtype):
  """A step size, or a list of them, as Tensors.

  Args:
    step_size: What was given: a number, a Tensor, or a list of them.
    dtype: The dtype of the state.

  Returns:
    Tensor or list of Tensors.

  Raises:
    TypeError: if it is something else.
  """
  return tf.nest.map_structure(
    lambda s: arguments.as_tensor('`step_size`', s, dtype), step_size
  )


def check_known_step_size(step_size):
  """Refuses what is no step size of any state.

  Args:
    step_size: What was given. Symbolic Tensors, and what becomes a Tensor only
      later, have no value yet, and pass.

  Raises:
    TypeError: if it is not a number, a Tensor, or a list of these.
    ValueError: if it is known not to be positive and finite.
  """
  if isinstance(step_size, (bool, dict)) or (
    is_list_like(step_size) and not step_size
  ):
    raise TypeError(
      f'`step_size` is {arguments.shown(step_size)}, but must be a positive '
      'number, a Tensor, or a list of these with one for each part.'
    )
  for entry in tf.nest.flatten(step_size):
    if isinstance(entry, (tf.RaggedTensor, tf.SparseTensor)):
      arguments.as_tensor('`step_size`', entry)  # Refuses it.
    value = entry
    if hasattr(entry, 'dtype') and not isinstance(
      entry, (np.ndarray, np.generic)
    ):
      # That of a Variable may change before the first step.
      value = tf.get_static_value(entry) if tf.is_tensor(entry) else None
      if value is None:
        continue
    _check_positive(arguments.as_array('step_size', value, may_be_nan=True))


def check_step_size(step_size, parts):
  """Refuses a step size that does not fit to the state.

  Args:
    step_size: Tensor or list of Tensors.
    parts: List of Tensors, the state.

  Raises:
    ValueError: if it does not broadcast, or is known not to be positive.
  """
  for i, (s, x) in enumerate(zip(step_sizes_of_parts(step_size, parts), parts)):
    if not batching.broadcasts_to(s.shape, x.shape):
      raise ValueError(
        f'`step_size` of shape {s.shape} does not broadcast to part {i} of the '
        f'state, which has shape {x.shape}. One per chain has the shape '
        '[C0, ..., 1].'
      )
    value = tf.get_static_value(s)
    if value is not None:
      # Once more: in the dtype of the state, a small number may be zero.
      _check_positive(np.asarray(value, np.float64))


def _check_positive(value):
  if not np.all((value > 0.0) & np.isfinite(value)):
    raise ValueError(
      '`step_size` must be positive and finite, but is '
      f'{np.array2string(value, precision=6)}; pass a small one, '
      'such as 0.1, which an adaptation can change.'
    )


def step_size_roots(step_size, parts):
  """The square roots of the step sizes.

  Args:
    step_size: Tensor or list of Tensors.
    parts: List of Tensors, the state.

  Returns:
    List of Tensors that broadcast to the parts.
  """
  return [
    tf.sqrt(tf.cast(s, x.dtype))
    for s, x in zip(step_sizes_of_parts(step_size, parts), parts)
  ]


def step_sizes_of_parts(step_size, parts):
  """One entry per part of a step size, which may be one for all."""
  sizes = list(step_size) if is_list_like(step_size) else [step_size]
  if len(sizes) == 1:
    sizes *= len(parts)
  if len(sizes) != len(parts):
    raise ValueError(
      f'`step_size` has {len(sizes)} entries, but the state has '
      f'{number_of_parts(parts)}; give one for all or one per part.'
    )
  return sizes


def number_of_parts(parts):
  """How many parts there are, in words."""
  return '1 part' if len(parts) == 1 else f'{len(parts)} parts'


@contextlib.contextmanager
def in_words_of_a_target():
  """Calls a function that lacks a derivative what it is: a log density.

  Yields:
    None.

  Raises:
    MissingGradientError: with the text of the one that was raised inside.
  """
  try:
    yield
  except MissingGradientError as e:
    text = str(e).replace('`fn`', 'the log density')
    raise MissingGradientError(text[:1].upper() + text[1:]) from e
