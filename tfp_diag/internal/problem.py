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
"""A function, its state and its sample shape, checked once for all callers."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from tfp_diag.internal import arguments, batching, nest
from tfp_diag.internal.warn import warn

PlanKind = Literal['jacobian', 'hessian', 'gauss_newton']

# How many Variables a warning names.
_MOST = 5


class Problem:
  """A function and the state at which it is differentiated, after checks.

  Attributes:
    fn: Python callable; None if the outputs have been computed already.
    xs: The state, as the caller gave it; only its structure matters.
    parts: List of Tensors, `tf.TensorSpec`s or Variables.
    rank: Python int, the number of sample dimensions; None without a sample
      shape from the caller, see `rank_of`.
    has_sample_shape: Python bool, whether the caller gave a sample shape.
    fn_name: Python str, the name of the argument that `fn` is.
    promised: The sample shape that is to be checked at run time, or None.
    is_closure: Whether `fn` needs no arguments and reads the Variables `parts`.
    may_read_nothing: Whether `fn`, called without arguments, has some with
      default values; see `check_read`.
  """

  # 'jacobian' or 'hessian', and how often the function is differentiated.
  kind: Literal['jacobian', 'hessian'] = 'jacobian'
  order: int = 1
  needs_fn: bool = True
  fn_name: str = 'fn'

  @property
  def plan_kind(self) -> PlanKind:
    """The value of `Plan.kind`; `tfp_diag.diag_{plan_kind}` takes the plan."""
    return self.kind

  def linear_ops(self, result: Any) -> list:
    """The last ops whose second derivatives do not contribute.

    Args:
      result: What `call` returned.

    Returns:
      List of `tf.Operation`: second derivatives of these ops, and of all ops
      that they depend on, do not contribute.
    """
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
    # `lambda *xs: ...` and `joint_distribution.log_prob` read the Variables
    # that they are called with; `lambda: ...` knows them.
    self._is_called_with_parts = fn is not None
    if self.is_closure:
      batching.check_distinct(self.parts)
      self._is_called_with_parts = nest.takes_any_number(fn, xs)
    self.may_read_nothing = False
    if self._is_called_with_parts:
      nest.check_takes(self.fn_name, fn, xs)
    elif fn is not None:
      self.may_read_nothing = nest.may_take(fn, xs)

  def pack(self, parts: list) -> Any:
    """Puts one entry per part into the structure of the state."""
    return nest.pack_as(self.xs, parts)

  def check_values(self) -> None:
    """Raises a TypeError if a part has no values, as a `tf.TensorSpec`."""
    for k, part in enumerate(self.parts):
      if isinstance(part, tf.TensorSpec):
        raise TypeError(
          f'Part {k} of `xs` is a {part}, which has no values. Pass a Tensor; '
          'plans and patterns are made from specifications.'
        )

  def check_shapes_are_meant(self) -> None:
    """Raises a TypeError if sizes are given where shapes alone matter."""
    for k, part in enumerate(nest.flatten(self.xs)):
      if isinstance(part, int) and not isinstance(part, bool):
        raise TypeError(
          f'Part {k} of `xs` is {part}, a number, of which only the shape [] '
          f'would matter here. If it is a size, pass `tf.TensorSpec([{part}])`.'
        )

  def promise(self, sample_shape: Any) -> None:
    """Stores a sample shape that is to be checked at run time."""
    sizes = batching.sample_sizes(sample_shape)
    self.promised = tuple(sizes) if None not in sizes else sample_shape
    if isinstance(sample_shape, list):
      self.promised = tuple(
        given if known is None else known
        for given, known in zip(sample_shape, sizes)
      )

  def call(self, parts: list) -> Any:
    """What `fn` returns for the Tensors or Variables `parts`."""
    given = self.pack(parts) if self._is_called_with_parts else []
    return nest.call_traceable(self.fn, given, self.fn_name)

  def check_read(self, variables: Sequence) -> None:
    """Raises if `fn`, called as `fn()`, should have been called with the parts.

    Of a function that takes nothing at all there is nothing to check.

    Args:
      variables: The `tf.Variable`s that it has read.
    """
    if not any(v is p for v in variables for p in self.parts):
      raise TypeError(
        f'`{self.fn_name}` was called without arguments and reads none of the '
        'Variables of `xs`; its arguments have default values. If it computes '
        'from its arguments, pass `lambda *xs: fn(*xs)`.'
      )

  def outputs(self, result: Any, parts: list) -> list:
    """The Tensors that are differentiated, from what `fn` returned."""
    return batching.checked_outputs(
      nest.flatten(result), parts, self.rank or 0, self.fn_name
    )

  def check_gradient(self, gradient: list) -> None:
    """Raises if the gradient is not valid, or warns of what it shows.

    Of `tf.Variable`s that the function reads itself it warns: nothing in the
    call says that the function is one of these.

    Args:
      gradient: List with a Tensor for each part, or None if the function does
        not depend on the part.
    """
    unused = [k for k, g in enumerate(gradient) if g is None]
    if not self.is_closure or not unused:
      return
    named = [f'number {k} ({self.parts[k].name!r})' for k in unused[:_MOST]]
    rest = len(unused) - len(named)
    warn(
      f'`{self.fn_name}` does not use {len(unused)} of the {len(self.parts)} '
      f'`tf.Variable`s that it was given with, whose derivatives are zero: '
      f'{", ".join(named)}{f" and {rest} more" if rest else ""}. Leave them '
      'out, or look whether they are read, by TensorFlow ops that have a '
      'gradient.',
      UserWarning,
    )

  def rank_of(self, ys) -> int:
    """The number of sample dimensions, from what `outputs` returned."""
    return self.rank or 0


class JacobianProblem(Problem):
  """A function with one output per part, of the shape of the part."""

  # `fn` is None if the outputs have been computed already.
  needs_fn = False

  def outputs(self, result, parts):
    """As `Problem.outputs`; each is broadcast to its part."""
    return batching.align(
      result, parts, None if self.fn is None else self.fn_name
    )


class HessianProblem(Problem):
  """A function with one scalar per sample.

  The sample shape defaults to the shape of the value.
  """

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
  """As `HessianProblem`, with the unmixed third derivatives, too."""

  order = 3


class GaussNewtonProblem(HessianProblem):
  """A function that returns residuals r, for the matrix `J^T diag(w) J`.

  That is the Hessian of half the sum of `w (r - c)^2`, with the constant c = r:
  the second derivatives of r are multiplied by `w (r - c) = 0`.
  """

  fn_name = 'residual_fn'

  def __init__(
    self, fn: Callable, xs: Any, sample_shape: Any, weights: Any = None
  ) -> None:
    super().__init__(fn, xs, sample_shape)
    for part in nest.flatten(weights):
      arguments.check_known_finite('weights', part)
    self._weights = weights

  @property
  def plan_kind(self) -> PlanKind:
    """As `Problem.plan_kind`."""
    return 'gauss_newton'

  def call(self, parts: list) -> Any:
    """As `Problem.call`."""
    result = super().call(parts)
    self._is_one = not isinstance(result, (list, tuple))
    self._structure = nest.pack_as(result, [0] * len(nest.flatten(result)))
    return result

  def packed_result(self, result: list) -> Any:
    """The residuals in the structure in which the function returned them."""
    return nest.pack_as(self._structure, nest.flatten(result))

  def linear_ops(self, result: Any) -> list:
    """As `Problem.linear_ops`: the ops that compute the residuals."""
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
    # There is a term for each part of the residuals; their dtypes may differ.
    return [tf.add_n([tf.cast(t, terms[0].dtype) for t in terms]) / 2]

  def weighted(self, result: Any, parts: list) -> tuple[list, list]:
    """The residuals and their weights, from what `call` returned.

    Args:
      result: Structure of Tensors.
      parts: List of Tensors, those of the state.

    Returns:
      residuals: List of Tensors.
      weights: List with a Tensor or None for each of them.
    """
    residuals = batching.checked_outputs(
      nest.flatten(result), parts, self.rank or 0, self.fn_name
    )
    if self._weights is None:
      return residuals, [None] * len(residuals)
    # If the residuals are one Tensor, the weights may be a list of numbers.
    parts = [self._weights]
    is_nested = not self._is_one or isinstance(result, dict)
    if is_nested:
      parts = nest.flatten(self._weights)
    if len(parts) != len(residuals):
      raise ValueError(
        f'`weights` has {len(parts)} parts, but `residual_fn` returns '
        f'{len(residuals)}. Give one Tensor for each, of its shape or one that '
        'broadcasts to it.'
      )
    # Parts of other names, or in another order, would be paired by accident.
    if is_nested and self._names(result) != self._names(self._weights):
      raise ValueError(
        f'`weights` has the structure {nest.structure(self._weights)}, but '
        f'`residual_fn` returns {nest.structure(result)}. Give the weights in '
        'the structure of the residuals, with the same names.'
      )
    found = []
    for w, r in zip(parts, residuals):
      w = arguments.as_tensor('A part of `weights`', w, dtype_hint=r.dtype)
      if w.dtype != r.dtype:
        raise TypeError(
          f'`weights` has dtype {w.dtype.name}, but the residuals have dtype '
          f'{r.dtype.name}. Cast one of them.'
        )
      if not batching.broadcasts_to(w.shape, r.shape):
        raise ValueError(
          f'`weights` has shape {w.shape}, which does not broadcast to the '
          f'shape {r.shape} of the residuals. Give a weight for each of them, '
          'or one that axes of size 1 share.'
        )
      found.append(w)
    return residuals, found

  def _names(self, value: Any) -> Any:
    """A value that is equal for equal names; a list is as good as a tuple."""
    if isinstance(value, dict):
      return {key: self._names(v) for key, v in value.items()}
    if not isinstance(value, (list, tuple)):
      return None
    fields = getattr(value, '_fields', None)
    return [fields, *(self._names(v) for v in value)]

  rank_of = Problem.rank_of
