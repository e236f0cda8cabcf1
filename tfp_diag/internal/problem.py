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
"""A function, its state and its sample shape: the one door."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.internal import arguments, batching, nest

__all__ = [
  'GaussNewtonProblem',
  'HessianProblem',
  'JacobianProblem',
  'Problem',
  'ThirdOrderProblem',
]


class Problem:
  """A function with the state at which it is differentiated, checked.

  Attributes:
    fn: Python callable; None for what a graph has computed already.
    xs: The state, as the caller gave it; only its structure matters.
    parts: List of Tensors, `tf.TensorSpec`s or Variables.
    rank: Python int, the number of sample dimensions, or None: to be told from
      what the function returns.
    has_sample_shape: Python bool, whether the caller has said what a sample is.
    fn_name: Python str, the argument that `fn` was given as.
    promised: The sample shape that is to be checked at run time, or None.
    is_closure: Whether `fn` takes no arguments and reads the Variables `parts`.
  """

  # 'jacobian' or 'hessian', and how often the function is differentiated.
  kind: str = 'jacobian'
  order: int = 1
  # How many diagonals are asked for: each has the shapes of the parts.
  num_diagonals: int = 1
  needs_fn: bool = True
  fn_name: str = 'fn'

  @property
  def plan_kind(self) -> str:
    """What `Plan.kind` says: `tfp_diag.diag_{plan_kind}` follows the plan."""
    return self.kind

  def linear_ops(self, result: Any) -> list:
    """The last ops of what has no second derivative that counts.

    Args:
      result: What `call` returned.

    Returns:
      List of `tf.Operation`: with these and before there is none.
    """
    del result
    return []

  def __init__(self, fn: Callable | None, xs: Any, sample_shape: Any = None):
    if self.needs_fn or fn is not None:
      arguments.check_callable(self.fn_name, fn)
    self.fn: Any = fn
    self.promised: Any = None
    self.xs = xs
    self.parts = batching.convert_parts(nest.flatten(xs))
    self.rank: int | None = None
    self.has_sample_shape = sample_shape is not None
    if self.has_sample_shape:
      batching.check_sample_shape(self.parts, sample_shape)
      self.rank = batching.sample_rank(sample_shape)
    self.is_closure = fn is not None and nest.takes_variables(fn, self.parts)
    if self.is_closure:
      batching.check_distinct(self.parts)
    if fn is not None and not self.is_closure:
      nest.check_takes(self.fn_name, fn, xs)

  def pack(self, parts: list) -> Any:
    """Puts one entry per part into the structure of the state."""
    return nest.pack_as(self.xs, parts)

  def promise(self, sample_shape: Any) -> None:
    """Keeps a sample shape, to be asserted at run time."""
    sizes = batching.sample_sizes(sample_shape)
    is_known = None not in sizes or isinstance(sample_shape, list)
    self.promised = tuple(sizes) if is_known else sample_shape

  def call(self, parts: list) -> Any:
    """What `fn` returns for the Tensors or Variables `parts`."""
    return nest.call_traceable(
      self.fn, [] if self.is_closure else self.pack(parts)
    )

  def outputs(self, result: Any, parts: list) -> list:
    """The Tensors that are differentiated, from what `fn` returned."""
    return batching.checked_outputs(
      nest.flatten(result), parts, self.rank or 0, self.fn_name
    )

  def check_gradient(self, gradient: list) -> None:
    """Raises if a function may not have this gradient; here it may be None.

    Args:
      gradient: List with a Tensor for each part, or None without a path.
    """
    del gradient

  def rank_of(self, ys) -> int:
    """The number of sample dimensions, from what `outputs` returned."""
    del ys
    return self.rank or 0


class JacobianProblem(Problem):
  """Each output belongs to a part, and has its shape."""

  # There is none for what a graph has computed already.
  needs_fn = False

  def outputs(self, result, parts):
    """As `Problem.outputs`; each is broadcast to its part."""
    return batching.align(
      result, parts, None if self.fn is None else self.fn_name
    )


class HessianProblem(Problem):
  """One scalar per sample; the sample shape may be that of the value."""

  kind = 'hessian'
  order = 2

  def outputs(self, result, parts):
    """As `Problem.outputs`: the value alone."""
    value = batching.checked_value(result, self.fn_name)
    batching.check_value(value, parts, self.rank, self.fn_name)
    return [value]

  def rank_of(self, ys):
    """As `Problem.rank_of`."""
    return ys[0].shape.rank


class ThirdOrderProblem(HessianProblem):
  """Of which the unmixed third derivatives are asked for, too."""

  order = 3
  num_diagonals = 2


class GaussNewtonProblem(HessianProblem):
  """Residuals r; half of `w (r - c)^2`, with the constant c = r, is the value.

  Its Hessian is `J^T diag(w) J`: what the second derivatives of r are
  multiplied by is zero.
  """

  fn_name = 'residual_fn'

  def __init__(
    self, fn: Callable, xs: Any, sample_shape: Any, weights: Any = None
  ) -> None:
    super().__init__(fn, xs, sample_shape)
    self._weights = weights

  @property
  def plan_kind(self) -> str:
    """As `Problem.plan_kind`."""
    return 'gauss_newton'

  def call(self, parts: list) -> Any:
    """As `Problem.call`."""
    result = super().call(parts)
    self._is_one = not isinstance(result, (list, tuple))
    return result

  def packed_result(self, result: list) -> Any:
    """What the function returned, from the list of what it returned."""
    return result[0] if self._is_one else result

  def linear_ops(self, result: Any) -> list:
    """As `Problem.linear_ops`: those that return the residuals."""
    return [r.op for r in nest.flatten(result) if tf.is_tensor(r)]

  def outputs(self, result, parts):
    """As `Problem.outputs`: the value, one scalar per sample."""
    rank = self.rank or 0
    terms = []
    for r, w in zip(*self.weighted(result, parts)):
      square = tf.square(r - tf.stop_gradient(r))
      if w is not None:
        square *= tf.stop_gradient(w)
      terms.append(tf.reduce_sum(square, axis=list(range(rank, r.shape.rank))))
    # As many as there are parts of the residuals, and of their dtypes.
    return [tf.add_n([tf.cast(t, terms[0].dtype) for t in terms]) / 2]

  def weighted(self, result: Any, parts: list) -> tuple[list, list]:
    """The residuals and their weights, from what `call` returned.

    Args:
      result: Structure of Tensors.
      parts: List of Tensors, those of the state.

    Returns:
      residuals: List of Tensors.
      weights: List of a Tensor or None for each of them.
    """
    residuals = batching.checked_outputs(
      nest.flatten(result), parts, self.rank or 0, self.fn_name
    )
    if self._weights is None:
      return residuals, [None] * len(residuals)
    # Of one Tensor the weights may be a list of numbers.
    parts = [self._weights]
    if not self._is_one or isinstance(result, dict):
      parts = nest.flatten(self._weights)
    if len(parts) != len(residuals):
      raise ValueError(
        f'`weights` has {len(parts)} parts, but `residual_fn` returns '
        f'{len(residuals)}. Give one Tensor for each, of its shape or one that '
        'broadcasts to it.'
      )
    found = []
    for w, r in zip(parts, residuals):
      w = arguments.as_tensor('A part of `weights`', w, dtype_hint=r.dtype)
      if w.dtype != r.dtype:
        raise TypeError(
          f'`weights` has dtype {w.dtype.name}, but the residuals have dtype '
          f'{r.dtype.name}. Cast one of them.'
        )
      try:
        shape = tf.broadcast_static_shape(w.shape, r.shape)
        fits = shape.is_compatible_with(r.shape)
      except ValueError:
        fits = False
      if not fits:
        raise ValueError(
          f'`weights` has shape {w.shape}, which does not broadcast to the '
          f'shape {r.shape} of the residuals. Give a weight for each of them, '
          'or one that axes of size 1 share.'
        )
      found.append(w)
    return residuals, found

  def rank_of(self, ys):
    """As `Problem.rank_of`."""
    del ys
    return self.rank or 0
