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
"""`tf.vectorized_map`, with some ops that it gets wrong or does not know.

Where TensorFlow (2.21 and before) vectorizes `tf.roll`, it adds one to the axis
for the new axis in front, also to a negative one: -1 becomes 0, and it is the
passes that are rolled. The gradient of `tf.roll(x, 1, axis=-1)` is such an op,
and the result is wrong without an error. Items that are gathered from a list
come with their first two axes in the wrong order; the gradient of
`tf.TensorArray.scatter` gathers them. Where the last segments of
`tf.sparse.segment_sum` are empty, its gradient reads those of other passes.

It does not know how to vectorize some ops in which derivatives of common
functions consist, such as `ScatterNd`, the gradient of `tf.gather_nd`, and
`XlaDynamicUpdateSlice`, that of `tf.slice` under XLA. They are here.

There is no public way to say how an op is vectorized, nor to replace the
gradient of one on a tape. So while `vectorized_map` runs, the table of
TensorFlow holds functions of this module. Where TensorFlow keeps the table
elsewhere, what it may get wrong is refused, and what it does not know is not
vectorized.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_diag.sparsity.replaced import Replaced

try:
  from tensorflow.python.ops.parallel_for.pfor import (
    _pfor_converter_registry,
    wrap,
  )

  _REGISTRY: Any = _pfor_converter_registry
except ImportError:  # Another version of TensorFlow.
  _REGISTRY = None

try:
  from tensorflow.compiler.tf2xla.ops import gen_xla_ops

  _XLA_OPS: Any = gen_xla_ops
except ImportError:  # Then the one that is used here is not vectorized.
  _XLA_OPS = None


def vectorized_map(fn: Callable, elems: Any) -> Any:
  """As `tf.vectorized_map`, without a loop to fall back on.

  Args:
    fn: Python callable of an element.
    elems: Tensor or structure of Tensors, unpacked along the first axis.

  Returns:
    What `tf.vectorized_map` returns.

  Raises:
    NotImplementedError: if `fn` rolls along an axis that may be negative, or
      gathers from a list, and this version of TensorFlow cannot be told how.
  """
  if _REGISTRY is None or not _CORRECTED.keys() <= _REGISTRY.keys():
    return tf.vectorized_map(
      _without_wrong_ops(fn), elems, fallback_to_while_loop=False
    )
  with _OWN_FUNCTIONS:
    return tf.vectorized_map(fn, elems, fallback_to_while_loop=False)


def _cumulative_logsumexp(given: Any) -> tf.Tensor:
  axis = given.unstacked_input(1)
  return tf.raw_ops.CumulativeLogsumexp(
    x=given.stacked_input(0),
    axis=axis + tf.cast(axis >= 0, axis.dtype),
    exclusive=given.get_attr('exclusive'),
    reverse=given.get_attr('reverse'),
  )


def _scatter_nd(given: Any) -> tf.Tensor:
  shape = given.unstacked_input(2)
  updates = given.stacked_input(1)
  length = tf.shape(updates, shape.dtype)[:1]
  return _to_first(
    tf.scatter_nd(
      given.unstacked_input(0),
      _to_last(updates),
      tf.concat([shape, length], 0),
    )
  )


def _tensor_scatter(op: Callable) -> Callable:
  def convert(given):
    given.stack_inputs([0, 2])
    return _to_first(
      op(
        _to_last(given.stacked_input(0)),
        given.unstacked_input(1),
        _to_last(given.stacked_input(2)),
      )
    )

  return convert


def _segment_sum(given: Any) -> tf.Tensor:
  data = _to_last(given.stacked_input(0))
  return _to_first(tf.math.segment_sum(data, given.unstacked_input(1)))


def _mirror_pad(op: Callable) -> Callable:
  def convert(given):
    paddings = given.unstacked_input(1)
    paddings = tf.concat([tf.zeros([1, 2], paddings.dtype), paddings], 0)
    mode = given.get_attr('mode').decode()
    return op(input=given.stacked_input(0), paddings=paddings, mode=mode)

  return convert


def _pad(given: Any) -> tf.Tensor:
  paddings = given.unstacked_input(1)
  return tf.raw_ops.PadV2(
    input=given.stacked_input(0),
    paddings=tf.concat([tf.zeros([1, 2], paddings.dtype), paddings], 0),
    constant_values=given.unstacked_input(2),
  )


def _reverse_sequence(given: Any) -> tf.Tensor:
  return tf.raw_ops.ReverseSequence(
    input=given.stacked_input(0),
    seq_lengths=given.unstacked_input(1),
    seq_dim=given.get_attr('seq_dim') + 1,
    batch_dim=given.get_attr('batch_dim') + 1,
  )


def _sparse_matmul(given: Any) -> tf.Tensor:
  """The columns of all passes are those of one matrix."""
  dense = given.stacked_input(3)
  if given.get_attr('adjoint_b'):
    dense = tf.linalg.adjoint(dense)
  shape = tf.shape(dense)
  product = tf.raw_ops.SparseTensorDenseMatMul(
    a_indices=given.unstacked_input(0),
    a_values=given.unstacked_input(1),
    a_shape=given.unstacked_input(2),
    b=tf.reshape(tf.transpose(dense, [1, 0, 2]), [shape[1], -1]),
    adjoint_a=given.get_attr('adjoint_a'),
  )
  rows = tf.shape(product)[:1]
  product = tf.reshape(product, tf.concat([rows, shape[:1], shape[2:]], 0))
  return tf.transpose(product, [1, 0, 2])


def _in_batches(op: Callable, *names: str) -> Callable:
  """Of an op whose inputs may all have any axes in front."""

  def convert(given):
    given.stack_inputs()
    inputs = [given.stacked_input(i) for i in range(given.num_inputs)]
    known = {name: given.get_attr(name) for name in names}
    return op(*inputs, **known)

  return convert


def _update_slice(given: Any) -> tf.Tensor:
  given.stack_inputs([0, 1])
  begin = given.unstacked_input(2)
  return _XLA_OPS.xla_dynamic_update_slice(
    given.stacked_input(0),
    given.stacked_input(1),
    tf.concat([tf.zeros_like(begin[:1]), begin], 0),
  )


def _to_last(x: tf.Tensor) -> tf.Tensor:
  rank = tf.rank(x) if x.shape.rank is None else x.shape.rank
  return tf.transpose(x, tf.roll(tf.range(rank), -1, 0))


def _to_first(x: tf.Tensor) -> tf.Tensor:
  rank = tf.rank(x) if x.shape.rank is None else x.shape.rank
  return tf.transpose(x, tf.roll(tf.range(rank), 1, 0))


# Of what pfor knows of an op, one of whose inputs differs between the elements,
# the result, with a new axis in front.
_CONVERTERS = {
  'CumulativeLogsumexp': _cumulative_logsumexp,
  'MirrorPad': _mirror_pad(tf.raw_ops.MirrorPad),
  'MirrorPadGrad': _mirror_pad(tf.raw_ops.MirrorPadGrad),
  'ReverseSequence': _reverse_sequence,
  'ScatterNd': _scatter_nd,
  'SegmentSum': _segment_sum,
  'SparseTensorDenseMatMul': _sparse_matmul,
  'TensorScatterAdd': _tensor_scatter(tf.tensor_scatter_nd_add),
  'TensorScatterSub': _tensor_scatter(tf.tensor_scatter_nd_sub),
  'TridiagonalMatMul': _in_batches(
    lambda *given: tf.raw_ops.TridiagonalMatMul(
      superdiag=given[0], maindiag=given[1], subdiag=given[2], rhs=given[3]
    )
  ),
  'TridiagonalSolve': _in_batches(
    lambda diagonals, rhs, **known: tf.raw_ops.TridiagonalSolve(
      diagonals=diagonals, rhs=rhs, **known
    ),
    'partial_pivoting',
    'perturb_singular',
  ),
}
if _XLA_OPS is not None:
  _CONVERTERS['XlaDynamicUpdateSlice'] = _update_slice


def _missing(op_type: str) -> Callable:
  """An entry where there is none; later versions of TensorFlow may have one."""
  own = _CONVERTERS[op_type]
  return lambda convert: convert or (lambda given: wrap(own(given), True))


class _CountedAxis:
  """What pfor knows of a `Roll`, with axes counted from the front."""

  def __init__(self, pfor_input: Any) -> None:
    self._pfor_input = pfor_input

  def unstacked_input(self, index: int) -> Any:
    """An input that is the same for all elements; here only the axis is."""
    axis = self._pfor_input.unstacked_input(index)
    rolled = self._pfor_input.op.inputs[0]
    rank = tf.cast(tf.rank(self._pfor_input.stacked_input(0)) - 1, axis.dtype)
    if rolled.shape.rank is not None:
      rank = tf.constant(rolled.shape.rank, axis.dtype)
    return tf.where(axis < 0, axis + rank, axis)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._pfor_input, name)


def _matmul(convert: Callable) -> Callable:
  """A product of matrices, some of which may have no rows.

  pfor leaves the number of columns to a reshape, which cannot tell it then.
  """

  def converted(given):
    result = convert(given)
    if result.t.shape.is_fully_defined():
      return result
    (a, is_stacked, _), (b, _, _) = given.input(0), given.input(1)
    rows = tf.shape(a)[-1 if given.get_attr('transpose_a') else -2]
    columns = tf.shape(b)[-2 if given.get_attr('transpose_b') else -1]
    count = tf.shape(a if is_stacked else b)[0]
    return wrap(tf.reshape(result.t, [count, rows, columns]), True)

  return converted


def _gathered_items(convert: Callable) -> Callable:
  """Items of a list whose content differs between the elements of a loop.

  pfor has their first two axes in the wrong order: wrong numbers, if there are
  as many items as elements. Of all items stacked, it has them in the right one.
  """

  def converted(given):
    _, handle_stacked, _ = given.input(0)
    indices, indices_stacked, _ = given.input(1)
    if not handle_stacked:
      return convert(given)
    items = _REGISTRY['TensorListStack'](_WholeList(given)).t
    batch_dims = 1 if indices_stacked else 0
    return wrap(tf.gather(items, indices, axis=1, batch_dims=batch_dims), True)

  return converted


class _WholeList:
  """What pfor would know of a `TensorListStack` of the same list."""

  def __init__(self, pfor_input: Any) -> None:
    self._pfor_input = pfor_input

  def unstacked_input(self, index: int) -> Any:
    """The shape of an item, where a gather has its indices."""
    return self._pfor_input.unstacked_input(index + 1)

  def get_attr(self, name: str) -> Any:
    """An attribute; the number of items is not known."""
    return -1 if name == 'num_elements' else self._pfor_input.get_attr(name)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._pfor_input, name)


def _sparse_segment_grad(name: str) -> Callable:
  """pfor leaves out empty segments behind the last one that has rows."""
  op = getattr(tf.raw_ops, name)

  def convert(given):
    result = op(
      grad=_to_last(given.stacked_input(0)),
      indices=given.unstacked_input(1),
      segment_ids=given.unstacked_input(2),
      output_dim0=given.unstacked_input(3),
    )
    return wrap(_to_first(result), True)

  return lambda _: convert


# Entries for ops that TensorFlow gets wrong, made of those that it has.
_CORRECTED: dict[str, Callable] = {
  # pfor pads with zeros, whatever the constant is.
  'PadV2': lambda convert: lambda given: wrap(_pad(given), True),
  'Roll': lambda convert: lambda given: convert(_CountedAxis(given)),
  'TensorListGather': _gathered_items,
  **{
    name: _sparse_segment_grad(name)
    for name in (
      'SparseSegmentMeanGrad',
      'SparseSegmentSqrtNGrad',
      'SparseSegmentSumGrad',
    )
  },
}
# Entries for ops that it gets right, but for Tensors without elements.
_COMPLETED = {'MatMul': _matmul}
# While it is entered, all are in the table of TensorFlow.
_OWN_FUNCTIONS = Replaced(
  _REGISTRY,
  {**{t: _missing(t) for t in _CONVERTERS}, **_CORRECTED, **_COMPLETED},
)


def _without_wrong_ops(fn: Callable) -> Callable:
  """The same function, but it raises where TensorFlow may be wrong."""

  def checked(element):
    result = fn(element)
    for op in tf.compat.v1.get_default_graph().get_operations():
      if op.type in _CORRECTED and not _rolls_counted_axis(op):
        raise NotImplementedError(f'No vectorization defined for {op.type}')
    return result

  return checked


def _rolls_counted_axis(op: tf.Operation) -> bool:
  axis = tf.get_static_value(op.inputs[2]) if op.type == 'Roll' else None
  return axis is not None and bool((axis >= 0).all())
