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
"""What holds for the values of a function.

On how many coordinates a value depends, whether its leading axes are the
samples, and whether it is an affine function of each sample with one matrix for
all of them, which then has to be computed only once.
"""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from tfp_diag.sparsity import probe, registry
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.samples import on_samples
from tfp_diag.sparsity.tape import Loop, Step
from tfp_diag.sparsity.value import Value
from tfp_diag.sparsity.walk import Walked

# A value that depends on at most this many coordinates keeps a pattern sparse.
LOCAL = 4
# A product with a fixed matrix is worthwhile only if at least this fraction of
# its entries are nonzero: passes do not multiply with the zeros.
MIN_DENSITY = 0.25
# A column of a fixed matrix costs less than a pass, as if there were so many
# samples at least that share one.
SAMPLES_AT_LEAST = 4
# The most entries of all fixed matrices of one function.
MAX_ENTRIES = 4_000_000


class Facts:
  """What holds for the values of a function.

  Attributes:
    walked: `Walked`.
    maker: `dict`: value -> the step that makes it.
  """

  def __init__(self, walked: Walked, count: Callable) -> None:
    self.walked = walked
    self._groups = Groups(walked.num_samples)
    self._uniform = {}
    self._count = count
    self.maker = {y: step for step in walked.tape.steps for y in step.outputs}

  @functools.cached_property
  def counts(self) -> dict:
    """Value -> on how many coordinates each element depends."""
    return self._count()

  @functools.cached_property
  def used(self) -> set[Value]:
    """The values that a step takes, and the outputs."""
    taken = {v for step in self.walked.tape.steps for v in step.inputs}
    return taken.union(self.walked.outputs)

  @functools.cached_property
  def leading(self) -> set[Value]:
    """The values whose leading axes are the samples, each in its place."""
    values = (*self.walked.inputs, *self.walked.values)
    return {value for value in values if self._has_samples_at(value, 0)}

  def sample_axis(self, value: Value) -> int | None:
    """Where the axes of the samples begin, or None.

    Where the shape leaves no choice, that is not looked at: an op is run on
    samples to see what it does with them.

    Args:
      value: `Value`.

    Returns:
      `int`, the number of the first of these axes. Several sample dimensions
      may have been merged into one axis, the first, as `tf.tensordot` does
      before it multiplies.
    """
    shape, samples = value.shape, self.walked.sample_shape
    if shape is None:
      return None
    places = [
      axis
      for axis in range(len(shape) - len(samples) + 1)
      if shape[axis : axis + len(samples)] == samples
    ]
    is_merged = shape[:1] == (self.walked.num_samples,)
    found = 0 if is_merged or 0 in places else None
    if not samples or places in ([], [0]):
      return found
    for axis in places:
      if self._has_samples_at(value, axis):
        return axis
    return found

  def _has_samples_at(self, value: Value, axis: int) -> bool:
    """Whether some axes are the samples, each element in its own."""
    dependency = self._sample_of.get(value)
    shape, samples = value.shape, self.walked.sample_shape
    end = axis + len(samples)
    if dependency is None or shape is None or shape[axis:end] != samples:
      return False
    rows = self._groups.expand(dependency)
    own = np.arange(self.walked.num_samples).reshape(
      samples + (1,) * (len(shape) - end)
    )
    own = np.broadcast_to(own, shape).ravel()
    return np.array_equal(rows.indices, own[rows.row_of_entry])

  @functools.cached_property
  def _sample_of(self) -> dict:
    """Value -> `Dependency` of its elements on samples."""
    return on_samples(self.walked, self._groups)

  def has_fixed_matrix(self, step: Step) -> bool:
    """Whether an op is affine, with the same matrix for each sample."""
    return self._holds(probe.has_fixed_matrix, step)

  def has_fixed_curvature(self, step: Step) -> bool:
    """Whether an op has the same constant second derivatives for each one."""
    return self._holds(probe.has_fixed_curvature, step)

  def _holds(self, test: Callable, step: Step) -> bool:
    walked = self.walked
    if isinstance(step, Loop) or walked.at_hand(step.op) is None:
      return False
    orders = {}
    for value in (*step.inputs, *step.outputs):
      axis = self.sample_axis(value) if value.depends else 0
      if axis is None:
        return False
      if axis:
        orders[value] = samples_first(
          axis, walked.sample_rank, len(value.known_shape)
        )
    return test(step, walked.num_samples, orders)

  def width(self, value: Value) -> int:
    """The number of elements of a value per sample."""
    return value.rows // self.walked.num_samples

  def is_uniform(self, value: Value, known: dict | None = None) -> bool:
    """As `uniform_axis`, where the axes of the samples are the first."""
    shape, samples = value.shape, self.walked.sample_shape
    if shape is None or shape[: len(samples)] != samples:
      return False
    return self.uniform_axis(value, known) == 0

  def uniform_axis(self, value: Value, known: dict | None = None) -> int | None:
    """The sample axis of a value that is a fixed affine function of xs.

    Each of its samples is an affine function of the same sample of xs, with the
    same matrix for all samples.

    For that ops are run, which takes long for large ones: test this last.

    Args:
      value: `Value`.
      known: dict from values to whether they are such functions, which is added
        to: those that start with True count as parts of xs. Default: none does.

    Returns:
      As `sample_axis`; None if it is no such function, or not known to be, or
      if several sample dimensions are one axis.
    """
    walked = self.walked
    axis, rank = self.sample_axis(value), walked.sample_rank
    if axis is None:
      return None
    if value.known_shape[axis : axis + rank] != walked.sample_shape:
      return None
    known = self._uniform if known is None else known
    # Not by recursion, whose depth would be that of the function.
    waiting = [value]
    while waiting:
      last = waiting[-1]
      step = self.maker.get(last)
      if last in known or step is None or isinstance(step, Loop):
        known.setdefault(last, last in walked.inputs)
        waiting.pop()
        continue
      inputs = [v for v in step.inputs if v.depends]
      if any(known.get(v) is False for v in inputs):
        known[last] = False
      elif missing := [v for v in inputs if v not in known]:
        waiting.append(missing[0])
      else:
        known[last] = self.has_fixed_matrix(step)
    return axis if known[value] else None


def samples_first(axis: int, rank: int, ndims: int) -> tuple:
  """The order of axes in which those of the samples come first.

  Args:
    axis: `int`, the first of these.
    rank: `int`, how many there are.
    ndims: `int`, how many axes there are.

  Returns:
    `tuple` of `int`.
  """
  end = axis + rank
  return (*range(axis, end), *range(axis), *range(end, ndims))


class FixedMatrices(NamedTuple):
  """Which values are fixed affine functions of xs, and what that costs.

  Attributes:
    facts: `Facts` of the values of the whole function.
    wholes: from each `Value` to that of the whole function, where it is another
      one.
    num_samples: `int`: of a call.
  """

  facts: Facts
  wholes: Mapping
  num_samples: int

  def axis(self, value: Value) -> int | None:
    """See `Facts.uniform_axis`."""
    return self.facts.uniform_axis(self.wholes.get(value, value))

  def is_fixed(self, value: Value) -> bool:
    """Whether it has such an axis."""
    return self.axis(value) is not None

  def fits(self, value: Value, part: Value) -> bool:
    """Whether the matrix of a value by a part has not too many entries."""
    return self._entries(value, part) <= MAX_ENTRIES

  def num_passes(self, part: Value) -> int:
    """How many passes give the columns: one carries one for each sample."""
    return -(-self.facts.width(part) // self.num_samples)

  def work(
    self, value: Value, part: Value, total: float, of_map: float
  ) -> float:
    """The work of a product with the squared matrix, and of having it.

    Args:
      value: `Value`, the result of the map.
      part: `Value`, its argument.
      total: the work of the function, in elements of a result.
      of_map: which fraction of it the map takes.

    Returns:
      `float`, in units of the function's.
    """
    # As a product of matrices among the ops of the function.
    product = self._entries(value, part) * self.facts.walked.num_samples / 4
    passes = self.facts.width(part) / max(self.num_samples, SAMPLES_AT_LEAST)
    return product / total + of_map * passes / 2

  def _entries(self, value: Value, part: Value) -> int:
    width = self.facts.width
    return width(self.wholes.get(value, value)) * width(part)


def acts_by_element(step: Step) -> bool:
  """Whether element i of the result depends on elements i of inputs alone.

  So it is where an op moves elements into a shape that they have already.
  """
  known = registry.facts(step.op_type)
  if known.elementwise or known.adds_up or step.own_gradient is not None:
    return True
  return bool(known.shape_inputs and known.moved_inputs) and (
    step.inputs[0].shape == step.outputs[0].shape
  )
