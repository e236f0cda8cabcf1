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

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import local
from tfp_diag.diagonal.linear_map import LinearMap
from tfp_diag.sparsity.returning import Argument, Part


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
    self._levels = [_rounds(level) for level in levels]
    self._results = [[part.op.outputs[0] for part in level] for level in levels]
    self._held = [*held, *itertools.chain(*self._results)]
    # Which Tensors lead to the results of a level, and not by way of others.
    self._leading = [
      _leading_to(results, self._held) for results in self._results
    ]

  def connects(self, members: Sequence[int]) -> bool:
    """As `LinearMap.connects`."""
    return self._derivative.connects(members)

  def apply(self, members: Sequence[int], seeds: Sequence) -> list:
    """As `LinearMap.apply`."""
    xs = [self._xs[i] for i in members]
    targets = [self._derivative.targets[i] for i in members]
    waiting, total = list(zip(targets, seeds)), {}
    for k, level in enumerate(self._levels):
      # What does not lead there waits: ends may share much that comes before.
      now = [each for each in waiting if each[0].ref() in self._leading[k]]
      waiting = [
        each for each in waiting if each[0].ref() not in self._leading[k]
      ]
      self._back(now, [*xs, *itertools.chain(*self._results[k:])], total)
      waiting += [each for jobs in level for each in self._through(jobs, total)]
    self._back(waiting, xs, total)
    return [total.get(x.ref()) for x in xs]

  def _back(self, ends: Sequence, sources: Sequence, total: dict) -> None:
    """Adds up the cotangents of some sources, by references to them."""
    if not ends:
      return
    targets, seeds = [x for x, _ in ends], [seed for _, seed in ends]
    linear_map = self._derivative.between(targets, sources, self._held)
    for x, cotangent in zip(sources, linear_map.images(seeds)):
      [total[x.ref()]] = local.add([total.get(x.ref())], [cotangent])

  def _through(self, jobs: Sequence, at: dict) -> list[tuple]:
    """The cotangents of arguments, by the derivatives that are kept.

    Args:
      jobs: List of `_Job` that can share a pass, or one that has a factor.
      at: From a reference to each result to its cotangent, or None.

    Returns:
      List of pairs of a Tensor, an argument, and its cotangent.
    """
    jobs = [job for job in jobs if at.get(job.result.ref()) is not None]
    if not jobs:
      return []
    seeds = [
      _where(job.argument.of_result, at[job.result.ref()]) for job in jobs
    ]
    if jobs[0].is_alone:
      (job,) = jobs
      groups, tensors = [job.argument.inputs], [job.x]
      if job.argument.of_factor is not None:
        groups.append((job.argument.factor,))
        factor = job.op.inputs[job.argument.factor]
        tensors.append(_where(job.argument.of_factor, factor))
      linear = local.local_jacobian(job.op, groups, tensors)
    else:
      # By these arguments alone, whatever else is computed from them.
      results, held = [], []
      for job in jobs:
        results.append(job.result)
        held += job.op.inputs
      linear = self._derivative.between(results, [j.x for j in jobs], held)
    found = linear.apply(list(range(len(jobs))), seeds, list(range(len(jobs))))
    return [
      (job.x, _where(job.argument.of_argument, cotangent))
      for job, cotangent in zip(jobs, found)
      if cotangent is not None
    ]


class _Job(NamedTuple):
  """An op and one of its arguments."""

  op: tf.Operation
  argument: Argument

  @property
  def result(self) -> tf.Tensor:
    """What the op returns."""
    return self.op.outputs[0]

  @property
  def x(self) -> tf.Tensor:
    """The argument."""
    return self.op.inputs[self.argument.inputs[0]]

  @property
  def others(self) -> set:
    """References to the inputs of the op that are not the argument."""
    return {
      y.ref()
      for k, y in enumerate(self.op.inputs)
      if k not in self.argument.inputs
    }

  @property
  def is_alone(self) -> bool:
    """Whether the op is made again for it: its derivative by it is another.

    One argument may be several Tensors, of which one is a copy.
    """
    same = {self.op.inputs[k].ref() for k in self.argument.inputs}
    return (
      self.argument.of_factor is not None
      or len(same) > 1
      or self.x.ref() in self.others
    )


def _rounds(level: Sequence[Part]) -> list[list[_Job]]:
  """The arguments of some ops, in lists that share a pass.

  In one pass each Tensor is an argument of one op, or is held.
  """
  rounds, wanted, held = [], [], []
  for part in level:
    for argument in part.arguments:
      job = _Job(part.op, argument)
      x, others = job.x.ref(), job.others
      for k, jobs in enumerate(rounds):
        is_free = x not in wanted[k] | held[k] and not others & wanted[k]
        if is_free and not job.is_alone and not jobs[0].is_alone:
          break
      else:
        k = len(rounds)
        rounds.append([])
        wanted.append(set())
        held.append(set())
      rounds[k].append(job)
      wanted[k].add(x)
      held[k] |= others
  return rounds


def _leading_to(sources: Sequence, held: Sequence) -> set:
  """References to the Tensors that depend on some by a way beside the others.

  Args:
    sources: List of Tensors of one graph.
    held: List of Tensors that lead on to nothing, if they are no sources.

  Returns:
    Set of references.
  """
  found = {x.ref() for x in sources}
  stops = {x.ref() for x in held} - found
  for op in sources[0].graph.get_operations():
    if any(x.ref() in found and x.ref() not in stops for x in op.inputs):
      found.update(y.ref() for y in op.outputs)
  return found


def _where(mask: np.ndarray | None, x: tf.Tensor) -> tf.Tensor:
  """Zeros but where a mask is; not a product: what goes may be infinite."""
  if mask is None or mask.all():
    return x
  return tf.where(mask, x, tf.zeros_like(x))
