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
from tfp_diag.sparsity.dependency import Dependency
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.samples import own_samples
from tfp_diag.sparsity.tape import Columns, Loop, Step
from tfp_diag.sparsity.value import Value
from tfp_diag.sparsity.walk import Walked

__all__ = [
  'LOCAL',
  'MAX_ENTRIES',
  'MIN_DENSITY',
  'Facts',
  'FixedMatrices',
  'acts_by_element',
  'has_fixed_curvature',
  'has_fixed_matrix',
  'leading_values',
]

# A value that depends on at most this many coordinates keeps a pattern sparse.
LOCAL = 4
# A product with a fixed matrix is worthwhile only if at least this fraction of
# its entries are nonzero: passes do not multiply with the zeros.
MIN_DENSITY = 0.25
# The most entries of all fixed matrices of one function.
MAX_ENTRIES = 4_000_000


def leading_values(walked: Walked) -> set[Value]:
  """The values whose leading axes are the samples, each in its place.

  Args:
    walked: `Walked`.

  Returns:
    set of `Value`.
  """
  columns = Columns(Groups(walked.num_samples))
  sample_of = {
    value: Dependency.from_columns(own_samples(value.rows, walked.num_samples))
    for value in walked.inputs
  }
  walked.tape.forward(sample_of, columns)
  found = set()
  for value, dependency in sample_of.items():
    if (
      value.shape is None
      or value.shape[: walked.sample_rank] != walked.sample_shape
    ):
      continue
    rows = columns.groups.expand(dependency)
    own = own_samples(value.rows, walked.num_samples)
    if np.array_equal(rows.indices, own[rows.row_of_entry]):
      found.add(value)
  return found


class Facts:
  """What holds for the values of a function.

  Attributes:
    maker: `dict`: value -> the step that makes it.
  """

  def __init__(self, walked: Walked, count: Callable) -> None:
    self._walked = walked
    self._uniform = {}
    self._count = count
    self.maker = {y: step for step in walked.tape.steps for y in step.outputs}

  @functools.cached_property
  def counts(self) -> dict:
    """Value -> on how many coordinates each element depends."""
    return self._count()

  @functools.cached_property
  def leading(self) -> set[Value]:
    """The values whose leading axes are the samples, each in its place."""
    return leading_values(self._walked)

  @property
  def num_samples(self) -> int:
    """How many samples were walked."""
    return self._walked.num_samples

  def width(self, value: Value) -> int:
    """The number of elements of a value per sample."""
    return value.rows // self._walked.num_samples

  def is_uniform(self, value: Value) -> bool:
    """Whether a value is a fixed affine function of each sample of xs.

    Its leading axes are the sample shape, and each of its samples is an affine
    function of the same sample of xs, with the same matrix for all samples.

    For that ops are run, which takes long for large ones: test this last.

    Args:
      value: `Value`.

    Returns:
      `bool`.
    """
    walked = self._walked
    if _lead_rank(value, walked) != walked.sample_rank:
      return False
    # Not by recursion, whose depth would be that of the function.
    waiting = [value]
    while waiting:
      last = waiting[-1]
      step = self.maker.get(last)
      if last in self._uniform or step is None or isinstance(step, Loop):
        self._uniform.setdefault(last, last in walked.inputs)
        waiting.pop()
        continue
      inputs = [v for v in step.inputs if v.depends]
      if any(self._uniform.get(v) is False for v in inputs):
        self._uniform[last] = False
      elif missing := [v for v in inputs if v not in self._uniform]:
        waiting.append(missing[0])
      else:
        self._uniform[last] = has_fixed_matrix(step, walked)
    return self._uniform[value]


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

  def is_fixed(self, value: Value) -> bool:
    """See `Facts.is_uniform`."""
    return self.facts.is_uniform(self.wholes.get(value, value))

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
    product = self._entries(value, part) * self.facts.num_samples / 4
    return product / total + of_map * self.num_passes(part) / 2

  def _entries(self, value: Value, part: Value) -> int:
    width = self.facts.width
    return width(self.wholes.get(value, value)) * width(part)


def acts_by_element(step: Step) -> bool:
  """Whether element i of the result depends on elements i of inputs alone.

  So it is where an op moves elements into a shape that they have already.
  """
  known = registry.facts(step.op_type)
  if known.elementwise or step.own_gradient is not None:
    return True
  return bool(known.shape_inputs and known.moved_inputs) and (
    step.inputs[0].shape == step.outputs[0].shape
  )


def has_fixed_matrix(step: Step, walked: Walked) -> bool:
  """Whether an op is affine, with the same matrix for each sample.

  Args:
    step: `tape.Step`.
    walked: `Walked`.

  Returns:
    `bool`.
  """
  return _samples_lead(step, walked) and probe.has_fixed_matrix(
    step, walked.num_samples
  )


def has_fixed_curvature(step: Step, walked: Walked) -> bool:
  """Whether an op has constant second derivatives, the same for each sample.

  Args:
    step: `tape.Step`.
    walked: `Walked`.

  Returns:
    `bool`.
  """
  return _samples_lead(step, walked) and probe.has_fixed_curvature(
    step, walked.num_samples
  )


def _samples_lead(step: Step, walked: Walked) -> bool:
  """Whether the leading axes of what depends on xs may be the samples."""
  if isinstance(step, Loop) or walked.at_hand(step.op) is None:
    return False
  values = [v for v in (*step.inputs, *step.outputs) if v.depends]
  return all(_lead_rank(value, walked) is not None for value in values)


def _lead_rank(value: Value, traced: Walked) -> int | None:
  """How many leading axes are the samples, or None if samples do not lead.

  Several sample dimensions may have been merged into one axis, as
  `tf.tensordot` does before it multiplies.
  """
  if value.shape is None:
    return None
  for lead in (traced.sample_shape, (traced.num_samples,)):
    if value.shape[: len(lead)] == lead:
      return len(lead)
  return None
