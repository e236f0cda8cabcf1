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
all of them, which then need be computed only once.
"""

import dataclasses

import numpy as np

from tfp_diag.sparsity.dependency import Dependency
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.registry import CannotSay
from tfp_diag.sparsity.samples import own_samples
from tfp_diag.sparsity.tape import Columns, Loop

__all__ = [
  'LOCAL',
  'MAX_ENTRIES',
  'MIN_DENSITY',
  'has_fixed_matrix',
  'leading_values',
  'uniform_values',
]

# A value that depends on at most so many coordinates leaves the rest sparse.
LOCAL = 4
# A fixed matrix is worth a product only if it is at least so full: in a sparse
# one the passes do not multiply with the zeros.
MIN_DENSITY = 0.25
# The most entries of all fixed matrices of one function.
MAX_ENTRIES = 4_000_000


def leading_values(walked):
  """The values of which the leading axes are the samples, each in its place.

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


def uniform_values(walked):
  """The values that are fixed affine functions of each sample of xs.

  Their leading axes are the sample shape, and what is behind them is an affine
  function of the same sample of xs, with the same matrix for all samples.

  Args:
    walked: `Walked`.

  Returns:
    set of `Value`.
  """
  uniform = set(walked.inputs)
  for step in walked.tape.steps:
    if not isinstance(step, Loop) and all(
      value in uniform for value in step.inputs if value.depends
    ) and has_fixed_matrix(step, walked):
      uniform.update(y for y in step.outputs if y.depends)
  return {v for v in uniform if _lead_rank(v, walked) == walked.sample_rank}


def has_fixed_matrix(step, walked):
  """Whether an op is linear, with the same matrix for each sample.

  Args:
    step: `tape.Step`.
    walked: `Walked`.

  Returns:
    `bool`.
  """
  if isinstance(step, Loop) or step.is_fallback or step.op is None:
    return False
  if walked.at_hand(step.op) is None:
    return False
  view = _view(step, walked)
  return view is not None and view.holds()


def _view(step, traced):
  """A `_View`, or None if an op is not linear, or moves the samples' axes."""
  if step.op_type not in _LINEAR:
    return None
  values = [v for v in (*step.inputs, *step.outputs) if v.depends]
  ranks = {_lead_rank(v, traced) for v in values}
  if None in ranks or (len(ranks) > 1 and step.op_type != 'Reshape'):
    return None
  used = [k for k, value in enumerate(step.inputs) if value.depends]
  return _View(step.op, step, used, min(ranks))


def _lead_rank(value, traced):
  """How many leading axes are the samples', or None if they do not lead.

  Several may have been made one, as `tf.tensordot` does before it multiplies.
  """
  if value.shape is None:
    return None
  for lead in (traced.sample_shape, (traced.num_samples,)):
    if value.shape[: len(lead)] == lead:
      return len(lead)
  return None


@dataclasses.dataclass(frozen=True)
class _View:
  """A linear op, as the rules below see it.

  Attributes:
    op: `tf.Operation`.
    step: `tape.Step`.
    used: list of the numbers of the inputs that depend on xs.
    rank: how many leading axes are those of the samples.
  """

  op: object
  step: object
  used: list
  rank: int

  def holds(self):
    """Whether the op does the same with each sample, in its place."""
    try:
      return _LINEAR[self.step.op_type](self)
    except CannotSay:
      return False

  def shape(self, k):
    """The shape of an input."""
    if self.step.inputs[k].shape is None:
      raise CannotSay('a shape that is not known')
    return self.step.inputs[k].shape

  @property
  def output_rank(self):
    """The rank of the first output."""
    return len(self.step.outputs[0].shape)

  def is_behind(self, axes, rank):
    """Whether no axis is one of the samples'."""
    axes = np.reshape(axes, [-1])
    return bool(np.all(np.where(axes < 0, axes + rank, axes) >= self.rank))

  def value(self, k):
    """The value of an input that is constant."""
    return self.step.inputs[k].value()

  def is_same_for_all(self, k):
    """Whether an input, as it is broadcast, is the same for all samples."""
    shape = self.shape(k)
    padded = (1,) * (self.output_rank - len(shape)) + shape
    return all(size == 1 for size in padded[: self.rank])


def _sum(view):
  return all(len(view.shape(k)) == view.output_rank for k in view.used)


def _one_of_two(view):
  (k,) = view.used
  return len(view.shape(k)) == view.output_rank and view.is_same_for_all(1 - k)


def _product(view):
  return len(view.used) == 1 and _one_of_two(view)


def _quotient(view):
  return view.used == [0] and _one_of_two(view)


def _unchanged(view):
  del view
  return True


def _matrix_product(view):
  if len(view.used) != 1:
    return False
  (k,) = view.used
  if not view.rank:
    return True
  if len(view.shape(k)) != view.output_rank:
    return False
  behind = view.output_rank - view.rank
  if behind >= 2:
    return view.is_same_for_all(1 - k)
  # The samples are the rows of a matrix.
  adjoint = 'transpose_a' if view.op.type == 'MatMul' else 'adj_x'
  return (
    k == 0
    and behind == 1
    and not view.op.get_attr(adjoint)
    and all(size == 1 for size in view.shape(1)[:-2])
  )


def _solve(view):
  if view.used != [1]:
    return False
  return len(
    view.shape(1)
  ) == view.output_rank >= view.rank + 2 and view.is_same_for_all(0)


def _einsum(view):
  if len(view.used) != 1:
    return False
  if not view.rank:
    return True
  (k,) = view.used
  left, output = view.op.get_attr('equation').decode().split('->')
  operands = left.split(',')
  own = operands[k]
  others = ''.join(o for i, o in enumerate(operands) if i != k)
  if own.startswith('...') and output.startswith('...'):
    # The ellipsis covers what no label names.
    covered = len(view.shape(k)) - (len(own) - 3)
    return '...' not in others and covered >= view.rank
  samples = own[: view.rank]
  return (
    '.' not in own + output
    and output[: view.rank] == samples
    and not set(samples) & set(others)
  )


def _transposition(view):
  permutation = view.value(1)
  return list(permutation[: view.rank]) == list(range(view.rank))


def _gather(view):
  if view.used != [0] or view.op.get_attr('batch_dims'):
    return False
  return view.is_behind(view.value(2), len(view.shape(0)))


def _along(axis_argument, data=0):
  def rule(view):
    if data not in view.used:
      return False
    rank = len(view.shape(data))
    return view.is_behind(view.value(axis_argument), rank)

  return rule


def _concatenation(view):
  axis = view.value(len(view.step.inputs) - 1)
  return view.is_behind(axis, view.output_rank)


def _pack(view):
  return view.is_behind(view.op.get_attr('axis'), view.output_rank)


def _unpack(view):
  return view.is_behind(view.op.get_attr('axis'), len(view.shape(0)))


def _tile(view):
  return all(m == 1 for m in view.value(1)[: view.rank])


def _strided_slice(view):
  if view.used != [0]:
    return False
  masks = {
    name: view.op.get_attr(f'{name}_mask')
    for name in ('begin', 'end', 'ellipsis', 'new_axis', 'shrink_axis')
  }
  strides = view.value(3)
  if masks['ellipsis'] & 1:
    after = sum(not masks['new_axis'] >> i & 1 for i in range(1, len(strides)))
    return after <= len(view.shape(0)) - view.rank
  return len(strides) >= view.rank and all(
    masks['begin'] >> i & 1
    and masks['end'] >> i & 1
    and not masks['ellipsis'] >> i & 1
    and not masks['new_axis'] >> i & 1
    and not masks['shrink_axis'] >> i & 1
    and strides[i] == 1
    for i in range(view.rank)
  )


# Ops that are linear in what depends on xs. A rule says whether the matrix is
# the same for all samples, and no sample gets another's place; that the leading
# axes of the inputs and of the output are the samples' is known already.
_LINEAR = {
  'Add': _sum,
  'AddN': _sum,
  'AddV2': _sum,
  'BatchMatMul': _matrix_product,
  'BatchMatMulV2': _matrix_product,
  'BatchMatMulV3': _matrix_product,
  'BiasAdd': _sum,
  'Cast': _unchanged,
  'ConcatV2': _concatenation,
  'Cumsum': _along(1),
  'Div': _quotient,
  'Einsum': _einsum,
  'ExpandDims': _unchanged,
  'GatherV2': _gather,
  'Identity': _unchanged,
  'MatMul': _matrix_product,
  'MatrixSolve': _solve,
  'MatrixTriangularSolve': _solve,
  'Mean': _along(1),
  'Mul': _product,
  'Neg': _unchanged,
  'Pack': _pack,
  'RealDiv': _quotient,
  'Reshape': _unchanged,
  'ReverseV2': _along(1),
  'Roll': _along(2),
  'Split': _along(0, data=1),
  'SplitV': _along(2),
  'Squeeze': _unchanged,
  'StridedSlice': _strided_slice,
  'Sub': _sum,
  'Sum': _along(1),
  'Tile': _tile,
  'Transpose': _transposition,
  'Unpack': _unpack,
}
