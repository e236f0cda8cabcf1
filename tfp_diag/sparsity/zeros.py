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
"""Which elements of a result are zero for all inputs.

A constant mask makes zeros, `M * cos(x_i - x_j)`; linear ops pass them on, and
so do functions that are zero at zero. As a factor, what is zero has no part in
derivatives of a product, whatever else it was computed from.
"""

import contextlib

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.evaluation import run_op
from tfp_diag.sparsity.registry import CannotSay, OpFailed, facts
from tfp_diag.sparsity.structure import Arrow
from tfp_diag.sparsity.tape import Step
from tfp_diag.sparsity.value import Value


def note_zeros(step: Step) -> None:
  """Sets `zeros` of the results of an op, from what is known of its inputs.

  Args:
    step: `Step`.
  """
  arrows = step.structure.arrows
  if step.op is None or not (
    any(value.zeros is not None for value in step.inputs)
    or any(_has_gaps(step, arrow) for arrow in arrows)
  ):
    return
  groups = _groups_of_zeros(step)
  for k, output in enumerate(step.outputs):
    zeros = np.zeros(output.rows, bool)
    for group in groups:
      may_differ = np.zeros(output.rows, bool)
      for arrow in arrows:
        if arrow.output == k and group.intersection(arrow.inputs):
          sources = [_may_differ(step.inputs[i]) for i in arrow.inputs]
          flow = arrow.flow.transpose()
          may_differ |= flow.pull(np.concatenate(sources))
      zeros |= ~may_differ
    if output.depends and zeros.any():
      output.zeros = zeros


def _has_gaps(step: Step, arrow: Arrow) -> bool:
  """Whether some elements of a result are seen not to come from xs."""
  if not all(step.inputs[k].depends for k in arrow.inputs):
    return True
  for kind, data in arrow.flow.stages:
    if kind == 'gather' and data.min(initial=0) < 0:
      return True
    if kind == 'matrix' and data.counts.min(initial=1) == 0:
      return True
  return False


def _groups_of_zeros(step: Step) -> list[set]:
  """Sets of inputs; where all in a set are zero, a result is."""
  known = facts(step.op_type)
  groups = [*map(set, known.linear_in), {*known.moved(len(step.inputs))}]
  varying = {k for k, value in enumerate(step.inputs) if value.depends}
  found = [
    group
    for group in groups
    if group & varying
    and all(_is_zero(step.inputs[k]) for k in group - varying)
  ]
  is_elementwise = known.elementwise is not None
  # The number of samples may decide a value.
  with contextlib.suppress(CannotSay, OpFailed):
    if is_elementwise and step.op and _is_zero_at_zero(step.op, step.inputs):
      found.append(varying)
  return found


def _is_zero_at_zero(op: tf.Operation, inputs: tuple) -> bool:
  """Whether an elementwise op is zero where all that depends on xs is."""
  varying = [value for value in inputs if value.depends]
  # A zero with a sign may be another argument, as of `atan2`.
  signed = list(np.meshgrid(*[[0.0, -0.0]] * len(varying)))
  feeds = []
  for value in inputs:
    if value.depends:
      feeds.append(signed.pop().astype(value.dtype.as_numpy_dtype))
    elif value.is_known and value.size == 1 and not value.is_captured:
      feeds.append(np.reshape(value.value(), []))
    else:
      return False
  (result,) = run_op(op, feeds)
  return not np.any(result)


def _is_zero(value: Value) -> bool:
  """Whether a constant is zero, whatever the number of samples is."""
  if value.is_captured:
    return False
  try:
    low, high = value.ends_for_any_number()
  except (CannotSay, OpFailed):
    return False
  return not (np.any(low) or np.any(high))


def _may_differ(value: Value) -> np.ndarray:
  """Which elements may be other than zero."""
  if value.zeros is None:
    return np.full(value.rows, value.depends)
  return ~value.zeros
