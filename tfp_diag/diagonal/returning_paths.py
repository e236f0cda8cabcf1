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
"""Passes through a function on paths that return; see `sparsity.returning`.

A pass goes from the results to the ops of which some derivatives are left out,
through these with what is kept, and on to the next ones, and to xs.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import local
from tfp_diag.diagonal.linear_map import LinearMap
from tfp_diag.sparsity.returning import Argument


class ReturningPaths:
  """What is left of a transposed Jacobian; stands for a `LinearMap`."""

  def __init__(
    self,
    derivative: LinearMap,
    xs: Sequence,
    levels: Sequence,
    held: Sequence,
  ) -> None:
    """Prepares the passes.

    Args:
      derivative: `LinearMap` in reverse mode.
      xs: List of Tensors, the parts.
      levels: Tuple of tuples of `Part`, as in `Returning`.
      held: List of Tensors that count as constants.
    """
    self._derivative = derivative
    self._xs = xs
    self._levels = levels
    self._results = [part.op.outputs[0] for level in levels for part in level]
    self._held = [*held, *self._results]

  def connects(self, members: Sequence[int]) -> bool:
    """As `LinearMap.connects`."""
    return self._derivative.connects(members)

  def apply(self, members: Sequence[int], seeds: Sequence) -> list:
    """As `LinearMap.apply`."""
    xs = [self._xs[i] for i in members]
    targets = [self._derivative.targets[i] for i in members]
    total = self._back(targets, seeds, xs)
    for level in self._levels:
      at = dict(zip((y.ref() for y in self._results), total[len(xs) :]))
      ends, seeds = [], []
      for part in level:
        cotangent = at[part.op.outputs[0].ref()]
        if cotangent is None:
          continue
        for argument in part.arguments:
          seed = self._through(part.op, argument, cotangent)
          if seed is not None:
            ends.append(part.op.inputs[argument.inputs[0]])
            seeds.append(seed)
      if ends:
        total = local.add(total, self._back(ends, seeds, xs))
    return total[: len(xs)]

  def _back(self, targets: Sequence, seeds: Sequence, xs: Sequence) -> list:
    """From some Tensors to xs, and to results of ops that come before."""
    sources = [*xs, *self._results]
    linear_map = self._derivative.between(targets, sources, self._held)
    return linear_map.apply(
      list(range(len(targets))), seeds, list(range(len(sources)))
    )

  def _through(
    self, op: tf.Operation, argument: Argument, cotangent: tf.Tensor
  ) -> tf.Tensor | None:
    """The cotangent of an argument, by the derivatives that are kept."""
    x = op.inputs[argument.inputs[0]]
    cotangent = _kept(argument.of_result, cotangent)
    same = [k for k, y in enumerate(op.inputs) if y.ref() == x.ref()]
    if argument.of_factor is None and same == list(argument.inputs):
      # By this argument alone, whatever else is computed from it.
      linear = self._derivative.between(op.outputs, [x], list(op.inputs))
    else:
      groups, tensors = [argument.inputs], [x]
      if argument.of_factor is not None:
        groups.append((argument.factor,))
        factor = op.inputs[argument.factor]
        tensors.append(_kept(argument.of_factor, factor))
      linear = local.local_jacobian(op, groups, tensors)
    (found,) = linear.apply([0], [cotangent], [0])
    return None if found is None else _kept(argument.of_argument, found)


def _kept(mask: np.ndarray | None, x: tf.Tensor) -> tf.Tensor:
  """Zeros but where a mask is; not a product: what goes may be infinite."""
  if mask is None or mask.all():
    return x
  return tf.where(mask, x, tf.zeros_like(x))
