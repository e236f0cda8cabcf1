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
"""Which second derivatives of a function come at less than a pass each.

The Hessian of a function that a graph computes is a sum over its curved ops
(Griewank and Walther 2008, _Evaluating Derivatives_, section 7): an op
`v = phi(a, b, ...)` adds

    sum over pairs of arguments (a, b):  J_a^T diag(w_ab) J_b

with `J_a` the Jacobian of an argument with respect to xs, and `w_ab` the second
derivative of `phi`, times the derivative of the result with respect to `v`. Two
kinds of ops make a Hessian dense, and yet their diagonals are cheap:

* an argument that is a fixed linear map A of xs, the same for all samples, as
  the linear predictor of a regression. Then the diagonal of `A^T diag(w) A` is
  one product with the squared matrix;
* an argument with few elements per sample, as the sum in a normalizer. Then
  the rows of `J_b` are a few reverse passes.

What is left may have few colors. If it has not, the curvature along each
coordinate, `sum of w_ab (J_a e_i) (J_b e_i)`, still takes only the tangents of
the arguments, and not a whole product with the Hessian.
"""

import collections
import dataclasses

import numpy as np

from tfp_diag.sparsity.dependency import Dependency
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.registry import CannotSay
from tfp_diag.sparsity.rules.elementwise import TABLE
from tfp_diag.sparsity.samples import own_samples
from tfp_diag.sparsity.structure import Structure
from tfp_diag.sparsity.tape import Columns, Loop, Tape

__all__ = [
  'CurvedOps',
  'elementwise_pairs',
  'find_curved_ops',
  'find_quadratic',
  'has_curved_slices',
  'own_ops',
  'signature',
  'without',
]

# An argument of at most so many elements per sample is 'few'.
_MAX_ROWS = 4
# The entries of all fixed matrices of one function.
_MAX_ENTRIES = 4_000_000
# A result that depends on at most so many coordinates leaves the rest sparse.
_LOCAL = 4
# An argument is 'fixed' only if it is a matrix that is at least so full: in a
# sparse one the passes do not multiply with the zeros.
_MIN_DENSITY = 0.25
_NOT_FOR_PFOR = ('ConcatV2', 'Slice', 'Split', 'SplitV')


@dataclasses.dataclass(frozen=True)
class CurvedOps:
  """How each curved op of a function is treated.

  Attributes:
    signature: `tuple` of `str`: the ops of the function, in the order in which
      they are made; see `signature`.
    fixed: `tuple` of (op, left, right, same): numbers in that order, and of two
      arguments of the op that are fixed linear maps of xs; and 1 if the weight
      is the same for all samples, as in a quadratic form, else 0.
    few: `tuple` of (op, left, right), likewise, where `right` has few elements.
    rest: `tuple` of (op, arguments) for all other curved ops: which of their
      arguments depend on xs.
    num_rows: `int`: how many elements the `right` arguments of `few` have.
    samples_lead: `bool`: whether the leading axes of all arguments are those of
      the samples.
    is_quadratic: `bool`: whether the Hessian is a constant, the same for all
      samples; then no op is named.
  """

  signature: tuple
  fixed: tuple
  few: tuple
  rest: tuple
  num_rows: int
  samples_lead: bool
  is_quadratic: bool

  def all_as_rest(self):
    """Nothing is `fixed`, and nothing `few`."""
    used = {}
    for k, *pair in (term[:3] for term in self.fixed + self.few):
      used.setdefault(k, set()).update(pair)
    more = tuple((k, tuple(sorted(which))) for k, which in used.items())
    return dataclasses.replace(
      self, fixed=(), few=(), rest=self.rest + more, num_rows=0
    )


def find_curved_ops(tape, traced):
  """Sorts the curved ops of a function.

  Args:
    tape: `Tape` of the function, with second derivatives.
    traced: `detect.Traced`.

  Returns:
    `CurvedOps`, or None if an op stands in the way.
  """
  numbered = _numbered_ops(tape, traced)
  if numbered is None:
    return None
  ops, number = numbered
  names = [step.op_name for step in tape.steps]
  uniform, _ = _uniform(tape, traced, ops, number)
  same = _same_weights(tape, traced, ops, number)
  counts = _dependencies(tape, traced)
  fixed, few, rest = [], [], []
  num_rows = entries = 0
  for step in tape.steps:
    if not step.structure.curved and not step.structure.pairs:
      continue
    k = number[step.op_name]
    used = tuple(i for i, value in enumerate(step.inputs) if value.depends)
    pairs = elementwise_pairs(step.op_type, used)
    size = step.outputs[0].size // traced.num_samples
    n = _num_coordinates(traced)
    if counts[step.outputs[0]].max(initial=0) <= min(_LOCAL, n - 1):
      rest.append((k, used))
    elif pairs is None:
      rest.append((k, used))
    elif all(
      {*pair} <= uniform.get(step.op_name, frozenset()) for pair in pairs
    ) and (
      entries + size * n <= _MAX_ENTRIES
      and any(_is_full(step, i, counts, n) for i in {*sum(pairs, ())})
    ):
      fixed += [(k, *pair, int(same[step.op_name])) for pair in pairs]
      entries += size * n
    else:
      turned = [_fewer_last(step, pair, traced) for pair in pairs]
      rows = [step.inputs[b].size // traced.num_samples for _, b in turned]
      if max(rows) > _MAX_ROWS:
        rest.append((k, used))
      else:
        few += [(k, *pair) for pair in turned]
        num_rows += sum(rows)
  if not fixed and not few and not rest:
    return None
  # What follows the last of them may differ from call to call.
  last = max(number[name] for name in names)
  return CurvedOps(
    signature=signature(ops[: last + 1], traced.graph.inputs),
    fixed=tuple(fixed),
    few=tuple(few),
    rest=tuple(rest),
    num_rows=num_rows,
    samples_lead=_samples_lead(tape, traced),
    is_quadratic=False,
  )


def find_quadratic(tape, traced):
  """Of a quadratic form, the `CurvedOps` without any op; else None."""
  numbered = _numbered_ops(tape, traced)
  if numbered is None:
    return None
  ops, number = numbered
  if not all(_same_weights(tape, traced, ops, number).values()):
    return None
  _, is_affine = _uniform(tape, traced, ops, number)
  if not is_affine:
    return None
  last = max([number[step.op_name] for step in tape.steps], default=-1)
  return CurvedOps(
    signature=signature(ops[: last + 1], traced.graph.inputs),
    fixed=(),
    few=(),
    rest=(),
    num_rows=0,
    samples_lead=False,
    is_quadratic=True,
  )


def _numbered_ops(tape, traced):
  """The ops of a function and their numbers by name, or None.

  None if an op is not known, or is not one of the function's own graph.
  """
  if any(isinstance(step, Loop) or step.is_fallback for step in tape.steps):
    return None
  ops = own_ops(traced.graph.get_operations())
  if any(map(_is_call, ops)):
    return None
  number = {op.name: k for k, op in enumerate(ops)}
  # The same op twice, or an op that a rule has made up.
  names = [step.op_name for step in tape.steps]
  if len(set(names)) < len(names) or not number.keys() >= set(names):
    return None
  return ops, number


def has_curved_slices(tape):
  """Whether pieces that overlap go into ops whose curvature is no constant.

  As the steps of a chain, `x[1:] - x[:-1]`, do. The passes put the curvature
  back into its two places, and XLA computes it anew for each pass and place if
  passes are written out one by one; vectorized they share it.
  """
  # pfor does not know what the gradients of some ops are under XLA.
  if any(
    isinstance(step, Loop) or step.is_fallback or step.op_type in _NOT_FOR_PFOR
    for step in tape.steps
  ):
    return False
  sources = collections.Counter(
    step.inputs[0] for step in tape.steps if _is_large_piece(step)
  )
  pieces = set()
  for step in tape.steps:
    if not (_is_large_piece(step) and sources[step.inputs[0]] > 1):
      if pieces.isdisjoint(step.inputs):
        continue
      is_curved = step.structure.curved or step.structure.pairs
      if is_curved and not _is_quadratic(step):
        return True
    pieces.update(step.outputs)
  return False


def _is_large_piece(step):
  """Whether an op cuts off less than half."""
  if step.op_type != 'StridedSlice':
    return False
  before, after = step.inputs[0].rows, step.outputs[0].rows
  return before / 2 < after < before


def own_ops(ops):
  """Without constants: what is captured depends on where one traces."""
  return [op for op in ops if op.type not in ('Const', 'NoOp', 'Placeholder')]


def signature(ops, xs):
  """By which a function is recognized when it is traced again.

  Args:
    ops: list of `tf.Operation`, as `own_ops` returns them.
    xs: list of Tensors, what the function takes.

  Returns:
    `tuple` of `str`, one per op: its type, and where its inputs come from.
  """
  names = {x.name: f'x{i}' for i, x in enumerate(xs)}
  result = []
  for k, op in enumerate(ops):
    inputs = ' '.join(names.get(t.name, '-') for t in op.inputs)
    result.append(f'{op.type}({inputs})')
    names.update({t.name: f'{k}:{i}' for i, t in enumerate(op.outputs)})
  return tuple(result)


def without(tape, op_names):
  """The tape as if some ops were linear."""
  result = Tape()
  result.steps = [
    dataclasses.replace(step, structure=Structure(step.structure.arrows))
    if step.op_name in op_names
    else step
    for step in tape.steps
  ]
  return result


def _is_call(op):
  """Whether an op runs a function, or has a gradient that is not its type's."""
  if op.type in ('IdentityN',):
    return True
  return any(a.type in ('func', 'list(func)') for a in op.op_def.attr)


def elementwise_pairs(op_type, used):
  """The pairs of arguments of an op that meet in its second derivative.

  Args:
    op_type: `str`.
    used: the numbers of the arguments that are not constant.

  Returns:
    list of pairs of numbers, or None if the op is not elementwise.
  """
  if op_type not in TABLE:
    return None
  classes, *crosses = TABLE[op_type].split(',')
  pairs = [(k, k) for k, letter in enumerate(classes) if letter == 'c']
  pairs += [tuple(map(int, cross)) for cross in crosses]
  return [(a, b) for a, b in pairs if a in used and b in used]


def _num_coordinates(traced):
  return sum(v.size for v in traced.inputs) // traced.num_samples


def _dependencies(tape, traced):
  """dict: value -> on how many coordinates each of its elements depends."""
  seeds, start = {}, 0
  for value in traced.inputs:
    seeds[value] = Dependency.identity(value.rows, start)
    start += value.rows
  groups = Groups(start)
  tape.forward(seeds, Columns(groups))
  counts = {}
  for value, dependency in seeds.items():
    used = np.unique(dependency.indices)
    sizes = np.zeros(int(used.max(initial=-1)) + 1, np.int64)
    sizes[used] = groups.members(used).counts
    total = np.concatenate([[0], np.cumsum(sizes[dependency.indices])])
    counts[value] = np.diff(total[dependency.indptr])
  return counts


def _samples_lead(tape, traced):
  """Whether the samples are the leading axis of all that curved ops take."""
  if traced.sample_rank > 1:
    return False
  columns = Columns(Groups(traced.num_samples))
  sample_of = {
    value: Dependency.from_columns(own_samples(value.rows, traced.num_samples))
    for value in traced.inputs
  }
  tape.forward(sample_of, columns)
  for step in tape.steps:
    if step.structure.curved or step.structure.pairs:
      for value in step.inputs:
        if value.depends:
          if value.shape[: traced.sample_rank] != traced.sample_shape:
            return False
          rows = columns.groups.expand(sample_of[value])
          own = own_samples(value.rows, traced.num_samples)
          if np.any(rows.indices != own[rows.row_of_entry]):
            return False
  return True


def _is_full(step, argument, counts, n):
  return counts[step.inputs[argument]].mean() >= _MIN_DENSITY * n


def _fewer_last(step, pair, traced):
  a, b = pair
  return (b, a) if step.inputs[a].size < step.inputs[b].size else (a, b)


def _same_weights(tape, traced, ops, number):
  """Of which curved ops the weights are the same for all samples.

  Returns:
    dict: op name -> bool: the op has constant second derivatives, and what
    follows it up to the result is linear, and the same for all samples.
  """
  varies, found = set(), {}
  for step in reversed(tape.steps):
    is_curved = bool(step.structure.curved or step.structure.pairs)
    own = traced.sample_rank < 2 and not any(y in varies for y in step.outputs)
    if is_curved:
      found[step.op_name] = own and _is_quadratic(step)
      own = False
    elif own:
      view = _view(step, traced, ops, number)
      own = view is not None and view.holds()
    if not own:
      varies.update(value for value in step.inputs if value.depends)
  return found


def _is_quadratic(step):
  """Whether the second derivatives of an op are constants."""
  if step.op_type == 'Pow':
    try:
      return not step.inputs[1].depends and bool(
        np.all(step.inputs[1].value() == 2)
      )
    except CannotSay:
      return False
  return step.op_type in ('Mul', 'Square', 'SquaredDifference')


def _uniform(tape, traced, ops, number):
  """Which arguments of curved ops are fixed linear maps of each sample.

  A value is uniform if its leading axes are the sample shape, and what is
  behind them is an affine function of the same sample of xs, with the same
  matrix for all samples.

  Returns:
    found: dict: op name -> `frozenset` of the numbers of the arguments that
      are, and have the shape of the result.
    is_affine: `bool`: whether all arguments of curved ops are.
  """
  # Several sample dimensions were traced as one: what differs along the others
  # would not be seen.
  uniform = set(traced.inputs) if traced.sample_rank < 2 else set()
  found, is_affine = {}, True
  for step in tape.steps:
    if step.structure.curved or step.structure.pairs:
      is_affine &= all(v in uniform for v in step.inputs if v.depends)
      found[step.op_name] = frozenset(
        k
        for k, value in enumerate(step.inputs)
        if value in uniform and value.shape == step.outputs[0].shape
      )
      continue
    view = _view(step, traced, ops, number)
    if (
      view is not None
      and all(step.inputs[k] in uniform for k in view.used)
      and view.holds()
    ):
      uniform.update(y for y in step.outputs if y.depends)
  return found, is_affine


def _view(step, traced, ops, number):
  """A `_View`, or None if an op is not linear, or moves the samples' axes."""
  lead = traced.sample_shape
  values = [v for v in (*step.inputs, *step.outputs) if v.depends]
  if step.op_type not in _LINEAR or any(
    v.shape is None or v.shape[: len(lead)] != lead for v in values
  ):
    return None
  used = [k for k, value in enumerate(step.inputs) if value.depends]
  return _View(ops[number[step.op_name]], step, used, len(lead))


@dataclasses.dataclass(frozen=True)
class _View:
  """A linear op, as the rules below see it.

  Attributes:
    op: `tf.Operation`.
    step: `tape.Step`.
    used: list of the numbers of the inputs that depend on xs.
    rank: the number of sample dimensions.
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
