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
"""Constant preconditioners: one factor L per part, V = L Lᵀ."""

import dataclasses
import typing
import weakref

import numpy as np
import tensorflow as tf

from tfp_diag.internal import arguments, batching
from tfp_diag.mcmc.kernels.arguments import is_list_like, number_of_parts

# A matrix of more coordinates is judged by its determinant alone.
_MOST_FOR_SINGULAR_VALUES = 512
# An eager chain asks in every step.
_INVERTIBLE: weakref.WeakSet = weakref.WeakSet()


def as_factors(preconditioner, parts, event_ndims, is_adapted=False):
  """Turns what the user gave into one factor per part.

  Args:
    preconditioner: None, a scale, a `tf.linalg.LinearOperator`, or a list of
      these with one entry per part. A single one serves all parts.
    parts: List of Tensors, the state.
    event_ndims: List of `int`s, the event rank of each part.
    is_adapted: Python `bool`: whether an adapter wrote it, step by step, so
      that operators are not looked into.

  Returns:
    List of factors with `matvec(x, adjoint=False)`, as that of a
    `tf.linalg.LinearOperator`, from the part's shape to the part's shape.

  Raises:
    TypeError: if an operator's dtype is not that of its part.
    ValueError: if the number of entries or a shape does not fit, or a scale is
      known not to be positive and finite, or an operator not to be invertible.
  """
  entries = entries_of_parts(preconditioner, parts)
  return [
    _as_factor(entry, part, ndims, index, is_adapted)
    for index, (entry, part, ndims) in enumerate(
      zip(entries, parts, event_ndims)
    )
  ]


def entries_of_parts(preconditioner, parts):
  """One entry per part of a preconditioner, which may be one for all."""
  if not is_list_like(preconditioner):
    return [preconditioner] * len(parts)
  if len(preconditioner) != len(parts):
    raise ValueError(
      f'`preconditioner` has {len(preconditioner)} entries, but the state has '
      f'{number_of_parts(parts)}. Give one entry per part; a scale for the '
      'coordinates of a single part is a Tensor or an array, not a list.'
    )
  return list(preconditioner)


def _as_factor(entry, part, event_ndims, index, is_adapted):
  if entry is None:
    return _Identity()
  if isinstance(entry, tf.linalg.LinearOperator):
    _check_operator(entry, part, event_ndims, index)
    if not is_adapted:
      _check_invertible(entry, index)
    return entry
  scale = arguments.as_tensor('`preconditioner`', entry, part.dtype)
  _check_scale(scale, part, index)
  return _Scale(scale)


def check_entry(entry):
  """Refuses what is the scale of no state.

  Args:
    entry: A preconditioner, or what one is of a part.

  Raises:
    TypeError: if it is a word, a class or a dict.
  """
  if isinstance(entry, str):
    raise TypeError(
      f'`preconditioner` is {entry!r}, but this kernel takes the scale itself: '
      "numbers, a LinearOperator, or an object, as what is called 'local' "
      'elsewhere is `LocalHessianPreconditioner()`. What is to be learned is '
      'named in `windowed_adaptive_mala`, or as the `estimator` of a '
      '`DiagonalPreconditionerAdaptation` around this kernel.'
    )
  if isinstance(entry, type):
    raise TypeError(
      f'`preconditioner` is {arguments.shown(entry)}, but must be an instance, '
      f'such as `{entry.__name__}(...)`, or a scale.'
    )
  if isinstance(entry, dict):
    raise TypeError(
      f'`preconditioner` is {arguments.shown(entry)}, but must be a scale, a '
      'LinearOperator, or a list of these with one for each part.'
    )


def _check_operator(operator, part, event_ndims, index):
  if operator.dtype != part.dtype:
    raise TypeError(
      f'`preconditioner` has dtype {operator.dtype.name} for part {index} of '
      f'the state, which is {part.dtype.name}; build the operator in that '
      'dtype.'
    )
  if event_ndims == 0:
    raise ValueError(
      f'`preconditioner` is a LinearOperator for part {index} of the state, '
      'whose event is a scalar; an operator acts on the last event axis. Give '
      'a scale instead.'
    )
  size = part.shape[-1:]
  shape = operator.shape
  fits = shape[-1:].is_compatible_with(size) and shape[
    -2:-1
  ].is_compatible_with(size)
  if not fits:
    raise ValueError(
      f'`preconditioner` has shape {shape} for part {index} of the state, '
      f'which has shape {part.shape}; it must be square and act on the last '
      'axis.'
    )
  _check_broadcast(shape[:-2].concatenate(size), part, index)


def _check_invertible(operator, index):
  """Refuses an operator that is known to lose a direction."""
  if operator in _INVERTIBLE:
    return
  if not _is_invertible(operator):
    raise ValueError(
      f'`preconditioner` for part {index} of the state is a '
      f'{type(operator).__name__} that is singular, or not finite, so that '
      'chains would not reach every point; give an invertible matrix, such as '
      'the Cholesky factor of a covariance.'
    )
  _INVERTIBLE.add(operator)


def _is_invertible(operator):
  """Whether an operator is; True where its values are not known."""
  known = _of_known_values(operator)
  if known is None:
    return True
  with tf.init_scope():
    try:
      if isinstance(known, _TRIANGULAR):
        pivots = known.diag_part().numpy()
        is_finite = np.isfinite(known.matvec(tf.ones_like(pivots)))
        return bool(np.all(is_finite) and np.all(pivots != 0.0))
      if int(known.domain_dimension_tensor()) > _MOST_FOR_SINGULAR_VALUES:
        return bool(np.all(np.isfinite(known.log_abs_determinant())))
      matrix = known.to_dense().numpy().astype(np.float64)
    except (
      NotImplementedError,
      TypeError,
      ValueError,
      tf.errors.OpError,
    ):
      # An operator that cannot say it; the chain takes it as it is.
      return True
  if not np.all(np.isfinite(matrix)):
    return False
  # Rows of any units.
  norms = np.linalg.norm(matrix, axis=-1, keepdims=True)
  if not np.all(norms > 0.0):
    return False
  values = np.linalg.svd(matrix / norms, compute_uv=False)
  precision = np.finfo(known.dtype.as_numpy_dtype).eps
  return bool(np.all(values[..., -1] > precision * values[..., 0]))


# Whose diagonal tells whether they are invertible.
_TRIANGULAR = (
  tf.linalg.LinearOperatorDiag,
  tf.linalg.LinearOperatorLowerTriangular,
)


def _of_known_values(operator):
  """The operator of constants, or None where a value is not known."""
  try:
    components = tf.nest.flatten(operator, expand_composites=True)
    if tf.executing_eagerly():
      return operator
    values = [tf.get_static_value(x) for x in components]
    if any(value is None for value in values):
      return None
    with tf.init_scope():
      return tf.nest.pack_sequence_as(
        operator, [tf.constant(v) for v in values], expand_composites=True
      )
  except (TypeError, ValueError, AttributeError, NotImplementedError):
    return None


def _check_scale(scale, part, index):
  _check_broadcast(scale.shape, part, index)
  value = tf.get_static_value(scale)
  if value is not None and not np.all(
    (np.asarray(value, np.float64) > 0.0) & np.isfinite(value)
  ):
    raise ValueError(
      f'`preconditioner` for part {index} of the state has entries that are '
      'not positive, or not finite; it is a standard deviation per coordinate.'
    )


def _check_broadcast(shape, part, index):
  if not batching.broadcasts_to(shape, part.shape):
    raise ValueError(
      f'`preconditioner` of shape {shape} does not broadcast to part {index} '
      f'of the state, which has shape {part.shape}. Give one standard '
      'deviation per coordinate, a Tensor with the shape of the last axes; a '
      'matrix is given as a `tf.linalg.LinearOperator`.'
    )


@dataclasses.dataclass(frozen=True)
class _Identity:
  """L = I."""

  def matvec(self, x, adjoint=False):
    del adjoint
    return x


@dataclasses.dataclass(frozen=True, eq=False)
class _Scale:
  """L = diag(scale), whatever the rank of the event."""

  scale: typing.Any

  def matvec(self, x, adjoint=False):
    del adjoint
    return self.scale * x
