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
"""Checks that the samples of a batch do not mix."""

import dataclasses

import numpy as np

from tfp_diag.sparsity.dependency import Csr, Dependency
from tfp_diag.sparsity.flow import Flow, block_of
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.registry import facts
from tfp_diag.sparsity.second_order import SecondOrder
from tfp_diag.sparsity.tape import (
  Step,
  Tape,
  all_steps,
  without_fallbacks,
)
from tfp_diag.sparsity.value import Value
from tfp_diag.sparsity.walk import Walked


class SampleMixingError(ValueError):
  """The result of one sample depends on another one.

  Raised if a function mixes samples, although the sample shape says that they
  are independent. The message names the op where they mix first.

  Attributes:
    op: Python `str`, that op; or None.

  #### Examples

  ```python
  try:
    tfp_diag.diag_jacobian(
      tf.ones([4, 3]), fn=lambda x: x - tf.reduce_mean(x, 0), sample_shape=[4]
    )
  except tfp_diag.sparsity.SampleMixingError as error:
    op = error.op
  op  # ==> "Mean (op 'Mean')"
  ```
  """

  op: str | None = None
  # AutoGraph keeps the type of an error only if it has this constructor.
  __init__ = Exception.__init__


def check_samples(walked: Walked) -> bool:
  """Raises if an output of one sample depends on another sample.

  Args:
    walked: `Walked`.

  Returns:
    Whether samples are independent only if ops without a rule do not mix them.

  Raises:
    SampleMixingError: If samples mix; names the op where they first do.
  """
  if walked.num_samples < 2:
    return False
  tape = walked.tape
  # One column per sample instead of one per coordinate, which is cheap.
  groups = Groups(walked.num_samples, apart=True)
  wrong = _strangers(tape, walked, groups)
  if wrong and not _certainly_mixes(walked):
    return True
  if wrong:
    raise _mixing(
      _first_mixing_op(walked, wrong), 'makes the result of one sample'
    )
  op = _mixing_gradient(walked)
  if op is not None and tape.has_fallback:
    known = dataclasses.replace(walked, tape=without_fallbacks(tape))
    op = _mixing_gradient(known)
    if op is None:
      return True
  if op is not None:
    raise _mixing(op, 'has a gradient of its own that makes that of one sample')
  if not tape.has_fallback:
    return False
  strict = Groups(walked.num_samples)
  return bool(_strangers(tape, walked, strict))


def are_in_place(walked: Walked) -> bool:
  """Whether samples, and nothing else, lie along axes that have their number.

  If not, an op that follows may do something else with another number of
  samples. Two samples of 8 elements, reshaped to `[8, 2]`, have two elements of
  one sample in each row; 300 samples, reshaped to `[8, 300]`, elements of 38
  samples. The first elements of `tf.repeat(x, number_of_samples, axis=1)` are
  copies of fewer coordinates, the more samples there are.

  Args:
    walked: `Walked`, on other numbers of samples than those at hand.

  Returns:
    `bool`.
  """
  rank, leading = walked.sample_rank, walked.sample_shape
  unusual = {
    value: varies
    for value, varies in walked.varying_sizes.items()
    if value.depends
    and (value.known_shape[:rank] != leading or np.any(varies[rank:]))
  }
  if not unusual:
    return True
  groups = Groups(walked.num_samples)
  dependencies = on_samples(walked, groups)
  return all(
    _is_in_place(groups.expand(dependencies[value]), value, varies)
    for value, varies in unusual.items()
    if value in dependencies
  )


def _is_in_place(samples: Dependency, value: Value, varies: np.ndarray) -> bool:
  """Whether the samples of elements change along these axes, and no others.

  Args:
    samples: `Dependency` of the elements on samples.
    value: `Value`.
    varies: bool array, for each of its axes.

  Returns:
    `bool`. What depends on several samples, or on none, is not looked at.
  """
  single = samples.counts == 1
  if not single.any():
    return True
  beyond = np.iinfo(np.int64).max
  least = np.full(len(single), beyond)
  most = np.full(len(single), -1)
  least[single] = most[single] = samples.indices[single[samples.row_of_entry]]
  least, most = (array.reshape(value.known_shape) for array in (least, most))
  is_same = [
    np.all(
      most.max(axis=axis, initial=-1) <= least.min(axis=axis, initial=beyond)
    )
    for axis in range(len(varies))
  ]
  return all(a != b for a, b in zip(is_same, varies))


def are_alone(walked: Walked, single: Walked) -> bool:
  """Whether each of several samples is treated as one that is alone.

  Args:
    walked: `Walked`, of several samples.
    single: `Walked`, of the same graph on one sample.

  Returns:
    `bool`: whether the ops are the same, and what is seen of the single sample
    is seen of the first of several. Of that more may depend on xs: a constant
    may be known for the single sample alone.
  """
  groups = Groups(walked.num_samples)
  dependencies = on_samples(walked, groups)
  places = {}

  def place(value, alone):
    """Where the elements of the first sample are in a value."""
    if value not in places:
      places[value] = np.arange(value.rows)
      if value.depends:
        found = groups.expand(dependencies[value])
        is_first = found.counts == 1
        of_entry = is_first[found.row_of_entry]
        is_first[is_first] = found.indices[of_entry] == 0
        places[value] = np.flatnonzero(is_first)
        if len(places[value]) < alone.rows:
          # Behind a factor of zero some depend on no sample.
          places[value] = first_block(value, alone, found.counts, is_first)
    if len(places[value]) != alone.rows:
      raise _NotAloneError
    return places[value]

  def first_block(value, alone, counts, is_first):
    """The elements at the first place along the axis of samples."""
    shape, event = value.known_shape, _without_ones(alone.known_shape)
    axes = [
      axis
      for axis, size in enumerate(shape)
      if size == walked.num_samples
      and _without_ones(shape[:axis] + shape[axis + 1 :]) == event
    ]
    if len(axes) != 1:
      raise _NotAloneError
    block = np.arange(value.rows).reshape(shape).take(0, *axes).ravel()
    is_elsewhere = is_first.copy()
    is_elsewhere[block] = False
    if not (is_first | (counts == 0))[block].all() or is_elsewhere.any():
      raise _NotAloneError
    return block

  def joined(step, other, numbers):
    """The same in some inputs, one after the other."""
    found, start = [], 0
    for k in numbers:
      found.append(start + place(step.inputs[k], other.inputs[k]))
      start += step.inputs[k].rows
    return np.concatenate(found)

  def compare(flow, other, rows, inputs):
    matrix, alone = _matrix_of(flow)[:, inputs], _matrix_of(other)
    if rows is None:
      matrix, alone = map(_without_empty_rows, (matrix, alone))
    else:
      matrix = matrix[rows]
    if matrix.shape != alone.shape or (alone > matrix).nnz:
      raise _NotAloneError

  def compare_steps(step, other):
    one, two = step.structure, other.structure
    arrows, pairs = zip(one.arrows, two.arrows), zip(one.pairs, two.pairs)
    is_same = (
      (step.op_type, step.op) == (other.op_type, other.op)
      and [(a.output, a.inputs) for a in one.arrows]
      == [(a.output, a.inputs) for a in two.arrows]
      and one.curved == two.curved
      and [(p.output, p.left_inputs, p.right_inputs) for p in one.pairs]
      == [(p.output, p.left_inputs, p.right_inputs) for p in two.pairs]
    )
    if not is_same:
      raise _NotAloneError
    for a, b in arrows:
      rows = place(step.outputs[a.output], other.outputs[b.output])
      compare(a.flow, b.flow, rows, joined(step, other, a.inputs))
    for p, q in pairs:
      rows = None
      if p.output is not None:
        rows = place(step.outputs[p.output], other.outputs[q.output])
      compare(p.left, q.left, rows, joined(step, other, p.left_inputs))
      compare(p.right, q.right, rows, joined(step, other, p.right_inputs))

  steps, others = walked.tape.steps, single.tape.steps
  if len(steps) != len(others):
    return False
  try:
    for step, other in zip(steps, others):
      if not (isinstance(step, Step) and isinstance(other, Step)):
        return False
      compare_steps(step, other)
    for y, other in zip(walked.outputs, single.outputs):
      place(y, other)
  except _NotAloneError:
    return False
  return True


class _NotAloneError(Exception):
  """Several samples are not treated as one by itself."""


def _without_ones(shape: tuple) -> list:
  return [size for size in shape if size != 1]


def _matrix_of(flow: Flow) -> Csr:
  return flow.to_dependency().to_matrix(flow.columns)


def _without_empty_rows(matrix: Csr) -> Csr:
  return matrix[np.diff(matrix.indptr) > 0]


def _mixing(op: str, does: str) -> SampleMixingError:
  error = SampleMixingError(
    f'`fn` mixes samples: {op} {does} depend on another. Pass sample_shape=() '
    'to treat everything as event, or make `fn` work on each sample alone.'
  )
  error.op = op
  return error


def _mixing_gradient(walked: Walked) -> str | None:
  """An op whose own gradient mixes samples, though its results do not."""
  tape = walked.tape
  steps = [
    step
    for step in all_steps(tape)
    if facts(step.op_type).ends_custom_gradient and step.structure.pairs
  ]
  if not steps:
    return None
  groups = Groups(walked.num_samples, apart=True)
  dependencies = on_samples(walked, groups)
  alive = tape.alive(walked.outputs)
  for step in steps:
    second_order = SecondOrder(groups)
    step.interact(dependencies, alive, second_order)
    samples = second_order.finish().tocoo()
    if np.any(samples.row != samples.col):
      return step.label
  return None


def _certainly_mixes(walked: Walked) -> bool:
  """Whether samples mix even if ops without a rule return constants."""
  if not walked.tape.has_fallback:
    return True
  groups = Groups(walked.num_samples)
  return bool(_strangers(without_fallbacks(walked.tape), walked, groups))


def _seeds(walked: Walked) -> dict:
  return {
    value: Dependency.from_columns(block_of(value.rows, walked.num_samples))
    for value in walked.inputs
  }


def on_samples(walked: Walked, groups: Groups) -> dict:
  """On which samples each value of the tape depends."""
  dependencies = _seeds(walked)
  walked.tape.forward(dependencies, groups)
  return dependencies


def _strangers(tape: Tape, walked: Walked, groups: Groups) -> dict:
  """dict: output -> bool array, the elements that depend on other samples."""
  found = tape.run(_seeds(walked), walked.outputs, groups)
  wrong = {}
  for value in walked.outputs:
    if value.depends and value in found:
      rows = groups.expand(found[value])
      own = np.repeat(block_of(value.rows, walked.num_samples), rows.counts)
      stranger = np.zeros(value.rows, bool)
      stranger[rows.row_of_entry[rows.indices != own]] = True
      if stranger.any():
        wrong[value] = stranger
  return wrong


def _first_mixing_op(walked: Walked, wrong: dict) -> str:
  """The first op before a wrong output with an element of several samples."""
  groups = Groups(walked.num_samples, apart=True)
  dependencies = on_samples(walked, groups)
  alive = dict(wrong)
  walked.tape.backward(alive)
  last = None
  for step in all_steps(walked.tape):
    for value in step.outputs:
      mask = alive.get(value)
      if not value.depends or mask is None or not mask.any():
        continue
      rows = groups.expand(dependencies[value].where(mask))
      if (rows.counts > 1).any():
        return step.label
      last = step
  # No element depends on two samples: samples have changed places.
  return 'the function' if last is None else last.label
