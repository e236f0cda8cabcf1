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
"""Differences of an element and itself, which depend on nothing.

Among all differences of pairs, `x[:, None] - x[None, :]`, there are those of
each element and itself. Both of their derivatives are one, and cancel. But they
are two paths, where one must do if derivatives are squared on the way.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from tfp_diag.sparsity import registry
from tfp_diag.sparsity.flow import Flow
from tfp_diag.sparsity.tape import Step, Tape
from tfp_diag.sparsity.value import Value


def cancel(tape: Tape, sample_shape: tuple) -> None:
  """Leaves out what cancels, if it is the same for all samples.

  Args:
    tape: `Tape`; changed.
    sample_shape: `tuple` of int: what leads in the shapes of its values.
  """
  copies = {}
  for place, step in enumerate(tape.steps):
    if not isinstance(step, Step) or step.is_fallback or step.own_gradient:
      continue
    known = registry.facts(step.op_type)
    moved = known.moved(len(step.inputs))
    if moved:
      for output, value in enumerate(step.outputs):
        arrows = [a for a in step.structure.arrows if a.output == output]
        if len(arrows) == 1 and arrows[0].flow.is_selection:
          k, *more = arrows[0].inputs
          if k in moved and not more:
            copies[value] = step.inputs[k], arrows[0].flow
    elif known.is_difference and len(step.structure.arrows) == 2:
      sides = [
        _copied(step.inputs[arrow.inputs[0]], copies)
        for arrow in step.structure.arrows
      ]
      same = _same_elements(step, sides)
      if same is None or not same.any():
        continue
      shape = step.outputs[0].known_shape
      if shape[: len(sample_shape)] != sample_shape:
        continue
      event_shape = shape[len(sample_shape) :]
      of_sample = same.reshape(math.prod(sample_shape), *event_shape)
      if np.all(of_sample == of_sample[:1]):
        between = frozenset(v for _, _, passed in sides for v in passed)
        tape.steps[place] = _without(step, same, of_sample[0], between)


def _same_elements(step: Step, sides: Sequence) -> np.ndarray | None:
  """Which elements of a difference are of an element and itself.

  Args:
    step: `Step`.
    sides: what `_copied` says of both sides.

  Returns:
    bool array; None if the two sides are not copies of one value.
  """
  arrows = step.structure.arrows
  if len({source for source, _, _ in sides}) > 1:
    return None
  if not all(arrow.flow.is_selection for arrow in arrows):
    return None
  left, right = (
    functools.reduce(_taken, [*flows, arrow.flow], np.arange(source.rows))
    for arrow, (source, flows, _) in zip(arrows, sides)
  )
  return (left == right) & (left >= 0)


def _copied(value: Value, copies: dict) -> tuple[Value, list, list]:
  """What a value is a copy of, the flows from there, and what is behind it."""
  flows, passed = [], []
  while value in copies:
    passed.append(value)
    value, flow = copies[value]
    flows.append(flow)
  return value, flows[::-1], passed


def _taken(values: np.ndarray, flow: Flow) -> np.ndarray:
  """What a selection takes of some values; -1 where it takes none."""
  for _, index in flow.stages:
    values = np.where(index >= 0, values[index], -1)
  return values


def _without(
  step: Step, same: np.ndarray, of_sample: np.ndarray, between: frozenset
) -> Step:
  """The step, of whose results some depend on nothing."""

  def others(flow):
    index = _taken(np.arange(flow.columns), flow)
    return Flow.gather(np.where(same, -1, index), flow.columns)

  arrows = tuple(
    dataclasses.replace(arrow, flow=others(arrow.flow))
    for arrow in step.structure.arrows
  )
  structure = dataclasses.replace(step.structure, arrows=arrows)
  return dataclasses.replace(
    step,
    structure=structure,
    cancelled=of_sample,
    uncancelled=step.structure,
    copies=between,
  )
