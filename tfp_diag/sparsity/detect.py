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
"""Finds patterns: traces a function, walks it, folds the samples."""

import dataclasses
import functools

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfp_diag.internal import nest, passes
from tfp_diag.sparsity import (
  rules,  # noqa: F401 (registers the rules)
  tracing,
)
from tfp_diag.sparsity.batch_size import depends_on_batch
from tfp_diag.sparsity.curvature import (
  find_curved_ops,
  find_quadratic,
  has_curved_slices,
  has_curved_sums,
  without,
)
from tfp_diag.sparsity.cuts import cut_tape, find_cuts
from tfp_diag.sparsity.dependency import Dependency
from tfp_diag.sparsity.expansion import can_expand, expand
from tfp_diag.sparsity.groups import Groups
from tfp_diag.sparsity.interpreter import Walker
from tfp_diag.sparsity.pattern import SparsityPattern
from tfp_diag.sparsity.recognition import own_ops
from tfp_diag.sparsity.registry import CannotSay
from tfp_diag.sparsity.samples import SampleMixingError, check_samples
from tfp_diag.sparsity.second_order import SecondOrder
from tfp_diag.sparsity.tape import Columns
from tfp_diag.sparsity.value import Value

__all__ = [
  'Detection',
  'detect',
  'hessian_sparsity',
  'jacobian_sparsity',
  'refuse_mixing',
]


@tf.autograph.experimental.do_not_convert
def jacobian_sparsity(fn, xs, sample_shape=None):
  """Finds which entries of the Jacobian of `fn` can be nonzero.

  The function is traced, not run: the pattern holds for all inputs of these
  shapes. It is a superset: an op that nothing is known about makes its output
  depend on everything that its inputs depend on, and is named in
  `fallback_ops`.

  Args:
    fn: Python callable of the parts of `xs`. Returns a Tensor or a structure
      of Tensors, each of shape `sample_shape + event_shape`.
    xs: Tensor, array or `tf.TensorSpec`, or a structure of them, each of shape
      `sample_shape + event_shape` and of a floating dtype.
    sample_shape: Leading shape that all parts share and whose entries are
      independent: the pattern is over the coordinates of one sample. Default:
      `()`, everything is event.

  Returns:
    `SparsityPattern`: one row per coordinate of the outputs, one column per
    coordinate of `xs`, parts in order.

  Raises:
    ValueError: If a shape is not known, or does not begin with `sample_shape`;
      as `SampleMixingError` if the function mixes samples; as
      `PatternTooDenseError` if the pattern is too large to be written down.

  #### Examples

  ```python
  import tensorflow as tf

  pattern = jacobian_sparsity(lambda x: x[1:] * x[:-1], tf.TensorSpec([4]))
  assert pattern.matrix.toarray().astype(int).tolist() == [
    [1, 1, 0, 0],
    [0, 1, 1, 0],
    [0, 0, 1, 1],
  ]
  ```
  """
  rank = _sample_rank(xs, () if sample_shape is None else sample_shape)
  return detect('jacobian', fn, xs, rank)


@tf.autograph.experimental.do_not_convert
def hessian_sparsity(fn, xs, sample_shape=None):
  """Finds which entries of the Hessian of `fn` can be nonzero.

  For a log density that is its conditional-independence graph. The function
  is traced, not run; see `jacobian_sparsity`.

  Args:
    fn: Python callable of the parts of `xs`. Returns one number per sample: a
      Tensor of shape `sample_shape`.
    xs: Tensor, array or `tf.TensorSpec`, or a structure of them, each of shape
      `sample_shape + event_shape` and of a floating dtype; or `tf.Variable`s,
      and `fn` takes no arguments.
    sample_shape: Leading shape that all parts share and whose entries are
      independent. Default: the shape of what `fn` returns.

  Returns:
    `SparsityPattern`: symmetric, one row and one column per coordinate of
    `xs`, parts in order.

  Raises:
    ValueError: As `jacobian_sparsity`, and if `fn` does not return one number
      per sample.

  #### Examples

  ```python
  import tensorflow as tf

  chain = lambda x: tf.reduce_sum((x[1:] - 0.9 * x[:-1]) ** 2)
  pattern = hessian_sparsity(chain, tf.TensorSpec([3]))
  assert pattern.matrix.toarray().astype(int).tolist() == [
    [1, 1, 0],
    [1, 1, 1],
    [0, 1, 1],
  ]
  ```
  """
  rank = None if sample_shape is None else _sample_rank(xs, sample_shape)
  return detect('hessian', fn, xs, rank)


def detect(kind, fn, xs, sample_rank):
  """Finds a pattern; what the public functions call.

  Args:
    kind: 'jacobian' or 'hessian'.
    fn: Python callable.
    xs: The state; see `jacobian_sparsity`.
    sample_rank: int: how many leading dimensions of each part are the sample
      shape; None: for 'hessian' the rank of what `fn` returns, else 0.

  Returns:
    `SparsityPattern`.
  """
  return Detection(kind, fn, xs, sample_rank).pattern()


class Detection:
  """A function, walked once, of which more than one thing is asked."""

  def __init__(self, kind, fn, xs, sample_rank):
    """Walks a function; the arguments are those of `detect`."""
    self._kind, self._fn, self._xs = kind, fn, xs
    self._sample_rank = sample_rank
    self._traced, self._walker, self._outputs = _walk(kind, fn, xs, sample_rank)
    self._may_mix = check_samples(
      self._walker.tape, self._traced, self._outputs
    )

  @property
  def shares_by_vectorizing(self):
    """Whether even a few passes should be vectorized."""
    return self._kind == 'hessian' and has_curved_slices(self._walker.tape)

  @property
  def has_curved_sums(self):
    """Whether even a few passes may be more than what a split needs."""
    tape = self._walker.tape
    return self._kind == 'hessian' and has_curved_sums(tape, self._traced)

  def pattern(self):
    """The `SparsityPattern`."""
    if self._kind == 'jacobian':
      rows = self._outputs
      matrix, notes = _jacobian(self._walker.tape, self._traced, rows)
    else:
      rows = self._traced.inputs
      matrix, notes = _hessian(self._walker.tape, self._traced, self._outputs)
    return self._folded(matrix, rows, notes)

  def quadratic(self):
    """A `QuadraticForm`, the same for all samples, or None."""
    if self._kind != 'hessian' or self._traced.variables:
      return None
    return find_quadratic(self._walker.tape, self._traced)

  def curvature(self):
    """What is cheaper about a Hessian than its pattern says.

    Returns:
      curved_ops: `CurvedOps`, or None.
      pattern: `SparsityPattern` of what the `rest` of the ops add, or None.
    """
    traced = self._traced
    if self._kind != 'hessian' or traced.variables:
      return None, None
    curved_ops = find_curved_ops(self._walker.tape, traced)
    if curved_ops is None:
      return None, None
    ops = own_ops(traced.graph.get_operations())
    cheap = {ops[k].name for k, *_ in curved_ops.fixed + curved_ops.few}
    tape = without(self._walker.tape, cheap)
    matrix, notes = _hessian(tape, traced, self._outputs)
    return curved_ops, self._folded(matrix, traced.inputs, notes)

  def expanded(self):
    """The same function with its normalizers written out, or None."""
    ops = self._traced.graph.get_operations()
    if self._kind != 'jacobian' or not can_expand(ops):
      return None

    def fn(*parts):
      with passes.recorded_ops() as recorded:
        targets = nest.flatten(self._fn(*parts))
      return expand(recorded.operations, targets)

    try:
      return Detection(self._kind, fn, self._xs, self._sample_rank)
    except CannotSay:
      return None

  def cuts(self):
    """Where a Jacobian can be cut so that its diagonal is cheap.

    Yields:
      cuts: `Cuts`.
      pattern: `SparsityPattern` of what is left while the values are held.
    """
    traced = self._traced
    if self._kind != 'jacobian' or traced.variables:
      return
    ops = own_ops(traced.graph.get_operations())
    for cuts in find_cuts(self._walker.tape, traced, self._outputs):
      tape = cut_tape(self._walker.tape, {ops[k].name for k in cuts.held})
      matrix, notes = _jacobian(tape, traced, self._outputs)
      yield cuts, self._folded(matrix, self._outputs, notes)

  def _folded(self, matrix, rows, notes):
    """The pattern over the coordinates of one sample."""
    traced = self._traced
    rank = traced.sample_rank
    if self._may_mix:
      notes = [
        *notes,
        'Ops without a rule may mix samples; they were taken not to, as the '
        'sample shape promises.',
      ]
    return SparsityPattern(
      matrix=_folded(
        matrix,
        _places([v.shape for v in rows], traced),
        _places([v.shape for v in traced.inputs], traced),
      ),
      row_shapes=tuple(v.shape[rank:] for v in rows),
      column_shapes=tuple(v.shape[rank:] for v in traced.inputs),
      fallback_ops=tuple(self._walker.fallbacks),
      notes=(*self._walker.notes, *notes),
    )


def refuse_mixing(fn, xs, sample_rank):
  """Raises if `fn` is seen to make one sample depend on another.

  What cannot be traced or walked is given the benefit of the doubt: if it is
  wrong otherwise, it fails where it is differentiated.

  Args:
    fn: Python callable, Tensors of shapes `sample_shape + event_shape` out.
    xs: The state; see `jacobian_sparsity`.
    sample_rank: int, the number of sample dimensions.

  Raises:
    SampleMixingError: If samples mix; names the op where they first do.
  """
  if not sample_rank:
    return
  try:
    traced, walker, outputs = _walk('jacobian', fn, xs, sample_rank)
    check_samples(walker.tape, traced, outputs)
  except SampleMixingError:
    raise
  except Exception:
    return


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
  """A function, traced for detection.

  Attributes:
    graph: `FuncGraph`.
    inputs: list of `Value`, one per part.
    variables: dict of those parts that are captured variables; see `Walker`.
    sample_shape: `tuple` of int: on how many samples it was traced.
    is_any_batch: `bool`: whether these were others than were given, so that
      the function seems to take any number of samples.
  """

  graph: object
  inputs: list
  variables: dict
  sample_shape: tuple
  is_any_batch: bool

  @property
  def arguments(self):
    """list of Tensors: xs in the graph, without what it has captured."""
    return self.graph.inputs[: len(self.inputs)]

  @property
  def sample_rank(self):
    """The number of sample dimensions."""
    return len(self.sample_shape)

  @property
  def num_samples(self):
    """The number of samples."""
    return int(np.prod(self.sample_shape, dtype=np.int64))

  @property
  def num_coordinates(self):
    """The number of coordinates of one sample."""
    return sum(v.rows for v in self.inputs) // max(self.num_samples, 1)


def _walk(kind, fn, xs, sample_rank):
  """Walks on two samples a dimension if they stand for all, else on all."""
  parts = nest.flatten(xs)
  if not parts:
    raise ValueError(f'xs must have at least one part, got {xs!r}.')
  for part in parts:
    if not tracing.dtype_of(part).is_floating:
      raise ValueError(
        f'xs must be of a floating dtype, got {tracing.dtype_of(part).name}. '
        'Cast it, or close over what is not differentiated.'
      )
  shapes = [tuple(tracing.shape_of(part)) for part in parts]
  # Finding the rank of the value and walking may need the same graph.
  trace = functools.cache(functools.partial(tracing.trace, fn, xs))
  if sample_rank is None:
    sample_rank = 0
    if kind == 'hessian':
      sample_rank = _value_rank(trace, shapes)
  for shape in shapes:
    if (
      len(shape) < sample_rank or shape[:sample_rank] != shapes[0][:sample_rank]
    ):
      raise ValueError(
        f'All parts of xs must begin with the same sample shape of rank '
        f'{sample_rank}, got the shapes {shapes}. Give the sample_shape that '
        'they share, or sample_shape=() to treat everything as event.'
      )
  sample_shape = tuple(shapes[0][:sample_rank])
  if sample_rank and not nest.takes_variables(fn, parts):
    failure = None
    is_known = None not in sample_shape
    try:
      found = _walk_on(kind, trace, parts, shapes, (2,) * sample_rank)
      more = sample_shape if is_known else (3,) * sample_rank
      graph, _ = trace(tuple((*more, *s[sample_rank:]) for s in shapes))
      if not depends_on_batch(found[0].graph, graph) and not (
        is_known and found[1].has_failures
      ):
        return found
    except Exception as e:
      # Whatever fn does on another batch: it closes over its batch shape, or
      # does not batch at all. If it is wrong otherwise, it fails again below.
      failure = e
    if not is_known:
      raise ValueError(
        'fn does not do the same with every number of samples, so that its '
        f'pattern needs to know how many there are, got {sample_shape}. Pass '
        'xs of a static sample shape.'
        + (f' With two samples it failed: {failure}' if failure else '')
      ) from failure
  return _walk_on(kind, trace, parts, shapes, sample_shape)


def _walk_on(kind, trace, parts, shapes, sample_shape):
  traced = _traced_on(kind, trace, parts, shapes, sample_shape)
  walker = Walker(traced.variables, second_order=kind == 'hessian')
  # Variables that fn closes over are not among the arguments of the graph.
  arguments = [] if traced.variables else traced.inputs
  outputs = walker.call(traced.graph, arguments)
  # The walker knows shapes that the graph does not.
  _check_outputs(kind, [v.shape for v in outputs], sample_shape)
  return traced, walker, outputs


def _traced_on(kind, trace, parts, shapes, sample_shape):
  rank = len(sample_shape)
  shapes = tuple((*sample_shape, *shape[rank:]) for shape in shapes)
  _check_known(shapes)
  graph, variables = trace(shapes)
  static = [
    y.shape.as_list() if y.shape.is_fully_defined() else None
    for y in graph.outputs
  ]
  _check_outputs(
    kind, [shape for shape in static if shape is not None], sample_shape
  )
  values = [
    Value(shape, tracing.dtype_of(part), depends=True)
    for shape, part in zip(shapes, parts)
  ]
  handles = {}
  if variables is not None:
    handles = {id(v.handle): value for v, value in zip(variables, values)}
  given = tuple(tracing.shape_of(parts[0]))[:rank]
  return Traced(graph, values, handles, sample_shape, sample_shape != given)


def _value_rank(trace, shapes):
  known = [tuple(1 if d is None else d for d in shape) for shape in shapes]
  graph, _ = trace(tuple(known))
  rank = graph.outputs[0].shape.rank
  if len(graph.outputs) != 1 or rank is None:
    raise ValueError(
      'fn must return one Tensor of a known rank, one number per sample, got '
      f'{[str(y.shape) for y in graph.outputs]}. Pass sample_shape.'
    )
  return rank


def _check_known(shapes):
  if any(d is None for shape in shapes for d in shape):
    raise ValueError(
      f'The event shapes of xs must be known to find a pattern, got {shapes}. '
      'Pass xs with static shapes, for example as tf.TensorSpec.'
    )


def _check_outputs(kind, shapes, sample_shape):
  rank = len(sample_shape)
  for shape in shapes:
    if shape is None:
      raise ValueError(
        'fn must return Tensors whose shape is known when it is traced. Set '
        'the shape with tf.ensure_shape.'
      )
    fits = tuple(shape[:rank]) == sample_shape
    if kind == 'hessian':
      fits = fits and len(shape) == rank and len(shapes) == 1
    if not fits:
      wanted = 'sample_shape'
      if kind == 'jacobian':
        wanted = 'sample_shape + event_shape'
      raise ValueError(
        f'fn must return {"Tensors" if kind == "jacobian" else "one Tensor"} '
        f'of shape {wanted}, here with the sample shape {sample_shape}, got '
        f'{[tuple(s) for s in shapes]}. Pass the sample_shape that fn has.'
      )


def _sample_rank(xs, sample_shape):
  """The rank of a sample shape, after checking that the parts begin with it."""
  if tf.is_tensor(sample_shape):
    static = tf.get_static_value(sample_shape)
    if static is None:
      return int(sample_shape.shape[0])
    sample_shape = static
  sample_shape = tuple(tf.TensorShape(sample_shape).as_list())
  for part in nest.flatten(xs):
    shape = tuple(tracing.shape_of(part))
    begin = tf.TensorShape(shape[: len(sample_shape)])
    if len(shape) < len(sample_shape) or not begin.is_compatible_with(
      sample_shape
    ):
      raise ValueError(
        f'Each part of xs must begin with sample_shape {sample_shape}, got a '
        f'part of shape {shape}. Pass the leading shape that all parts share.'
      )
  return len(sample_shape)


def _seeds(traced):
  """Each element of each part is a column."""
  seeds, start = {}, 0
  for value in traced.inputs:
    seeds[value] = Dependency.identity(value.rows, start)
    start += value.rows
  return seeds, start


def _jacobian(tape, traced, outputs):
  seeds, size = _seeds(traced)
  columns = Columns(Groups(size))
  found = tape.run(seeds, outputs, columns)
  rows = [found[y] if y.depends else Dependency.empty(y.rows) for y in outputs]
  joined = columns.groups.expand(Dependency.concat(rows))
  return joined.to_matrix(size), []


def _hessian(tape, traced, outputs):
  seeds, size = _seeds(traced)
  columns = Columns(Groups(size))
  second_order = SecondOrder(columns.groups)
  (value,) = outputs
  if value.depends:
    alive = {value: np.ones(value.rows, bool)}
    tape.backward(alive)
    tape.run(seeds, outputs, columns, alive, second_order)
  return second_order.finish(), second_order.notes


def _places(shapes, traced):
  """The coordinate of one sample that each element of all samples is."""
  places, start = [np.zeros(0, np.int64)], 0
  for shape in shapes:
    size = int(np.prod(shape[traced.sample_rank :], dtype=np.int64))
    places.append(np.tile(np.arange(start, start + size), traced.num_samples))
    start += size
  return np.concatenate(places), start


def _folded(matrix, row_place, column_place):
  """The union of the blocks of all samples."""
  rows, num_rows = row_place
  columns, num_columns = column_place
  if matrix.shape == (num_rows, num_columns):
    return matrix
  entries = matrix.tocoo()
  return scipy.sparse.coo_matrix(
    (entries.data, (rows[entries.row], columns[entries.col])),
    shape=(num_rows, num_columns),
  ).tocsr()
