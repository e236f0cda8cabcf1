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
"""A matrix of derivatives of which only what is looked at is computed."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import blocks, evaluate
from tfp_diag.diagonal.linear_map import (
  Evaluation,
  LinearMap,
  MissingGradientError,
)
from tfp_diag.diagonal.reading import NOT_LINEAR_PRODUCT, caution_of_whole
from tfp_diag.internal import arguments, batching, indexing
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import Problem
from tfp_diag.internal.text_table import as_html
from tfp_diag.internal.warn import warn
from tfp_diag.lazy_operator import LazyOperator
from tfp_diag.plan import Plan, check_plan

__all__ = ['LazyMatrix']


class LazyMatrix:
  """What `LazyJacobian` and `LazyHessian` share.

  The matrix is `sample_shape + [num_rows, num_columns]`; rows are the
  coordinates of the outputs, columns those of the state, parts in order.
  """

  def __init__(
    self, problem: Problem, is_symmetric: bool, chunk_size: int | None
  ) -> None:
    if chunk_size is not None:
      chunk_size = arguments.check_chunk('chunk_size', chunk_size)
    self._problem = problem
    self._is_symmetric = is_symmetric
    self._chunk_size = chunk_size
    self._num_passes = 0
    self._row_sizes = None
    self._forget(None)

  def _derivative(self, evaluation: Evaluation) -> LinearMap:
    """The `LinearMap`, in reverse mode, whose matrix this is."""
    raise NotImplementedError

  def _diagonal(self, plan: Plan | None) -> tuple[tf.Tensor, int]:
    """The diagonal, `sample_shape + [n]`, and how many passes it took."""
    raise NotImplementedError

  @property
  def shape(self) -> tf.TensorShape:
    """`tf.TensorShape`: sample shape, number of rows, number of columns."""
    matrix = [self._num_rows, self._num_columns]
    return tf.TensorShape([*self._sample_shape, *matrix])

  def shape_tensor(self) -> tf.Tensor:
    """The shape as an int32 vector, for samples of unknown number."""
    sample = tf.shape(self._problem.parts[0])[: self._rank]
    return tf.concat([sample, [self._num_rows, self._num_columns]], 0)

  @property
  def dtype(self) -> tf.DType:
    """The dtype of the entries."""
    return self._problem.parts[0].dtype

  @property
  def num_passes(self) -> int:
    """Python int: how many passes were computed, each for all samples."""
    return self._num_passes

  def __getitem__(self, key: Any) -> tf.Tensor:
    """Returns a part of the matrix, and computes what is missing of it.

    Args:
      key: Integers, slices and at most one Ellipsis, as for the matrix in
        NumPy: first the sample dimensions, then row and column.

    Returns:
      Tensor of the shape that NumPy gives: an integer drops its dimension.

    Raises:
      IndexError: if `key` is of another type, is out of range, or has too many
        entries.
    """
    rank = self._rank
    *samples, row, column = indexing.normalize(key, rank + 2)
    for axis, (index, size) in enumerate(zip(samples, self._sample_shape)):
      if size is not None:
        indexing.positions(index, size, f'samples in dimension {axis}')
    rows = indexing.positions(row, self._num_rows, 'rows')
    columns = indexing.positions(column, self._num_columns, 'columns')
    result = self._submatrix(rows, columns)
    for axis, index in enumerate(samples):
      result = indexing.select(result, axis, index)
    every = [*samples, row, column]
    ints = [i for i, k in enumerate(every) if not isinstance(k, slice)]
    return tf.squeeze(result, ints) if ints else result

  @not_converted
  def to_dense(self) -> tf.Tensor:
    """The whole matrix, by rows or by columns, whichever takes fewer passes.

    Returns:
      Tensor of shape `sample_shape + [num_rows, num_columns]`.
    """
    return self[...]

  @not_converted
  def matvec(self, v: Any) -> tf.Tensor:
    """The product with a vector, by one pass. It is not remembered.

    Args:
      v: Tensor of shape `sample_shape + [num_columns]`, or one that broadcasts
        to it.

    Returns:
      Tensor of shape `sample_shape + [num_rows]`.

    Raises:
      TypeError: if `v` cannot be converted to a Tensor.
      ValueError: if `v` is not of such a shape.
    """
    return self.products(self._vector('v', v, self._num_columns), 'columns')[0]

  # NumPy's operators leave it to the ones below.
  __array_ufunc__ = None

  def __matmul__(self, v: Any) -> tf.Tensor:
    """The product with one vector, as `matvec`.

    Args:
      v: Tensor of shape `[num_columns]`, the same for all samples.

    Returns:
      Tensor of shape `sample_shape + [num_rows]`.

    Raises:
      TypeError: if it cannot be converted to a Tensor.
      ValueError: if it is not such a vector.
    """
    return self.matvec(self._one_vector(v, 'matvec'))

  def __rmatmul__(self, v: Any) -> tf.Tensor:
    """As `rmatvec`, of one vector for all samples."""
    return self.rmatvec(self._one_vector(v, 'rmatvec'))

  def _one_vector(self, v: Any, method: str) -> tf.Tensor:
    v = arguments.as_tensor('`v`', v, self.dtype)
    if v.shape.rank != 1:
      raise ValueError(
        f'`v` has shape {v.shape}, but `@` multiplies a {type(self).__name__} '
        f'by one vector, which all samples share. Use `.{method}` for a vector '
        'of each sample, or `.as_linear_operator()` for a matrix.'
      )
    return v

  @not_converted
  def rmatvec(self, u: Any) -> tf.Tensor:
    """The product of the transposed matrix with a vector, by one pass.

    Args:
      u: Tensor of shape `sample_shape + [num_rows]`, or one that broadcasts to
        it.

    Returns:
      Tensor of shape `sample_shape + [num_columns]`.

    Raises:
      TypeError: if `u` cannot be converted to a Tensor.
      ValueError: if `u` is not of such a shape.
    """
    return self.products(self._vector('u', u, self._num_rows), 'rows')[0]

  @not_converted
  def diag(self, plan: Plan | None = None) -> tf.Tensor:
    """The diagonal, in as many passes as a plan takes. It is remembered.

    Args:
      plan: A plan for the same function, or None to make one. If none can be
        made, each coordinate gets a pass. Once the diagonal is known, `plan`
        is only checked.

    Returns:
      Tensor of shape `sample_shape + [n]`.

    Raises:
      ValueError: if the matrix is not square; if `plan` was made for something
        else; for a Jacobian with respect to the `tf.Variable`s that a function
        without arguments reads.
      TypeError: if `plan` is not a plan.
    """
    if self._num_rows != self._num_columns:
      raise ValueError(
        f'A matrix of {self._num_rows} rows and {self._num_columns} columns '
        'has no diagonal; it has to be square.'
      )
    check_plan(plan, self._problem)
    self._enter_graph()
    if self._diag is None:
      self._diag, num_passes = self._diagonal(plan)
      self._num_passes += num_passes
    return self._diag

  @not_converted
  def trace(self) -> tf.Tensor:
    """The sum of the diagonal, by the passes of `diag`.

    Returns:
      Tensor of shape `sample_shape`.

    Raises:
      ValueError: if the matrix is not square.
    """
    return tf.reduce_sum(self.diag(), axis=-1)

  def clear_cache(self) -> None:
    """Forgets what was computed. `num_passes` goes on counting."""
    self._forget(self._graph)

  @not_converted
  def as_linear_operator(self) -> tf.linalg.LinearOperator:
    """The matrix as an operator, whose products are computed by passes.

    Returns:
      `tf.linalg.LinearOperator` of the shape and the dtype of the matrix.
    """
    return LazyOperator(self, self._is_symmetric)

  def __repr__(self) -> str:
    return (
      f'<{type(self).__name__} shape={self.shape} dtype={self.dtype.name} '
      f'num_passes={self._num_passes}>'
    )

  def _repr_html_(self) -> str:
    return as_html(repr(self))

  @property
  def _rank(self) -> int:
    return self._problem.rank or 0

  @property
  def _sample_shape(self) -> list:
    return self._problem.parts[0].shape[: self._rank].as_list()

  @property
  def _num_columns(self) -> int:
    return sum(self._sizes_of(self._problem.parts, 'xs'))

  @property
  def _num_rows(self) -> int:
    if self._is_symmetric:
      return self._num_columns
    if self._row_sizes is None:
      # Only constants come out, so nothing of the function is computed.
      sizes = evaluate.run(
        self._problem,
        (type(self).__name__, 'sizes'),
        lambda evaluation: tf.constant(self._sizes_of(evaluation.ys, 'ys')),
      )
      self._row_sizes = [int(size) for size in tf.get_static_value(sizes)]
    return sum(self._row_sizes)

  def _sizes_of(self, parts: Sequence, what: str) -> list[int]:
    sizes = [p.shape[self._rank :].num_elements() for p in parts]
    if None in sizes:
      raise ValueError(
        f'A part of `{what}` has an event shape that is not known while the '
        'graph is built, so its rows or columns cannot be counted. Give it one '
        'with `tf.ensure_shape`; the sample shape may stay unknown.'
      )
    dtypes = sorted({p.dtype.name for p in parts} | {self.dtype.name})
    if len(dtypes) > 1:
      raise TypeError(
        f'The parts of `{what}`, and `xs`, have the dtypes {dtypes}, but a '
        'matrix has one. Cast them, or use `tfp_diag.jacobian`, which returns '
        'blocks.'
      )
    return sizes

  def _vector(self, name: str, vector: Any, size: int) -> tf.Tensor:
    vector = arguments.as_tensor(f'`{name}`', vector, self.dtype)
    rank = self._rank
    if vector.shape.rank is None or not (
      1 <= vector.shape.rank <= rank + 1
      and vector.shape[-1:].is_compatible_with([size])
      and batching.broadcasts_to(vector.shape[:-1], self.shape[:rank])
    ):
      raise ValueError(
        f'`{name}` has shape {vector.shape}; the last of at most {rank + 1} '
        f'dimensions has to have the size {size}, and the others broadcast to '
        f'the sample shape {self.shape[:rank]}.'
      )
    # One product; dimensions of size 1 in place of the missing samples.
    missing = rank + 1 - vector.shape.rank
    return vector[(tf.newaxis,) * (missing + 1)]

  def _forget(self, graph: Any) -> None:
    self._graph = graph
    self._rows = {}
    # A column of a symmetric matrix is a row.
    self._columns = self._rows if self._is_symmetric else {}
    self._diag = None

  def _enter_graph(self) -> None:
    """Forgets what belongs to another graph: it cannot be used in this one."""
    graph = None
    if not tf.executing_eagerly():
      graph = tf.compat.v1.get_default_graph()
    if graph is not self._graph:
      self._forget(graph)

  def _submatrix(self, rows: range, columns: range) -> tf.Tensor:
    """Rows and columns, `sample_shape + [len(rows), len(columns)]`."""
    self._enter_graph()
    rank = self._rank
    if self._missing(self._columns, columns) < self._missing(self._rows, rows):
      try:
        self._compute('columns', self._columns, columns, self._num_columns)
      except MissingGradientError:
        # Forward mode differentiates once more than reverse mode.
        pass
      else:
        result = self._stack(self._columns, columns, self._num_rows, rank + 1)
        return indexing.select(result, rank, _as_slice(rows))
    self._compute('rows', self._rows, rows, self._num_rows)
    result = self._stack(self._rows, rows, self._num_columns, rank)
    return indexing.select(result, rank + 1, _as_slice(columns))

  @staticmethod
  def _missing(known: dict, wanted: Sequence[int]) -> int:
    return sum(k not in known for k in wanted)

  def _compute(
    self,
    side: Literal['rows', 'columns'],
    known: dict,
    wanted: Sequence[int],
    size: int,
  ) -> None:
    """Adds what is missing to the cache: one pass for each row or column."""
    missing = sorted(k for k in wanted if k not in known)
    if not missing:
      return
    seeds = np.zeros([len(missing), *[1] * self._rank, size])
    seeds[np.arange(len(missing)), ..., missing] = 1
    results = self.products(tf.constant(seeds, self.dtype), side, True)
    known.update(zip(missing, tf.unstack(results, len(missing))))

  def _stack(
    self, known: dict, wanted: Sequence[int], size: int, axis: int
  ) -> tf.Tensor:
    if len(wanted):
      return tf.stack([known[k] for k in wanted], axis)
    sample = tf.shape(self._problem.parts[0])[: self._rank]
    both = [size, 0] if axis > self._rank else [0, size]
    return tf.zeros(tf.concat([sample, both], 0), self.dtype)

  def products(
    self,
    seeds: tf.Tensor,
    side: Literal['rows', 'columns'],
    are_units: bool = False,
  ) -> tf.Tensor:
    """Products with `k` vectors per sample, by `k` passes. Not remembered.

    Args:
      seeds: Tensor of the dtype of the matrix and of shape
        `[k] + sample_shape + [size]`, or one of the same rank that broadcasts
        to it; `k` is static. `size` is `num_rows` for 'rows', and `num_columns`
        for 'columns'.
      side: 'rows', seeds are multiplied from the left, or 'columns', from the
        right.
      are_units: Python bool, whether each seed has a single one.

    Returns:
      Tensor of shape `[k] + sample_shape + [other size]`: `num_columns` for
      'rows', and `num_rows` for 'columns'.
    """
    problem, chunk_size = self._problem, self._chunk_size
    if self._is_symmetric:
      side = 'rows'

    def body(evaluation, seeds):
      is_linear = caution_of_whole(problem, evaluation.graph)
      if not is_linear and not are_units:
        warn(NOT_LINEAR_PRODUCT, RuntimeWarning)
      parts = evaluation.xs
      reverse = self._derivative(evaluation)
      ys = reverse.targets
      row, like_row = self._one_pass(reverse, ys, parts, 'xs')
      one_pass, like = row, like_row
      if side == 'columns':
        forward = blocks.forward_map(reverse, ys, parts, is_linear)
        one_pass, like = self._one_pass(forward, parts, ys, 'ys')
      num = seeds.shape[0]
      num = tf.shape(seeds)[0] if num is None else num
      (results,) = blocks.stacked(
        lambda k: one_pass(tf.gather(seeds, k)),
        [like],
        num,
        chunk_size,
        evaluation.loop_type,
      )
      if side == 'rows' or not are_units:
        return results

      def by_rows():
        samples = list(range(1, self._rank + 1))
        is_finite = tf.reduce_all(
          tf.math.is_finite(results), axis=[0, *samples]
        )
        (rows,) = blocks.stacked_not_finite(
          lambda k: row(tf.one_hot(k, self._num_rows, dtype=seeds.dtype)),
          [like_row],
          is_finite,
        )
        # A unit is the same for all samples.
        chosen = tf.reshape(tf.argmax(seeds, axis=-1), [-1])
        columns = tf.gather(rows, chosen, axis=-1)
        return [tf.transpose(columns, [self._rank + 1, *samples, 0])]

      return blocks.finite_where_possible([results], by_rows)[0]

    num_seeds: Any = seeds.shape[0]
    if not num_seeds:  # A pass has to run.
      one = tf.concat([[1], tf.shape(seeds)[1:]], 0)
      seeds = tf.ensure_shape(tf.zeros(one, seeds.dtype), [1, *seeds.shape[1:]])
    # One graph serves any number of seeds.
    free = [None] * (self._rank + 1)
    spec = tf.TensorSpec([*free, seeds.shape[-1]], seeds.dtype)
    results = evaluate.run(
      problem,
      (type(self).__name__, side, chunk_size, are_units),
      body,
      [seeds],
      [spec],
    )
    self._num_passes += num_seeds
    return results[:num_seeds]

  def _one_pass(
    self, linear_map: LinearMap, seeded: Sequence, others: Sequence, what: str
  ) -> tuple[Callable, tf.Tensor]:
    """A product with one vector per sample, and a Tensor shaped as its result.

    Args:
      linear_map: `LinearMap` from `seeded` to `others`.
      seeded: List of Tensors, the parts that the vector has.
      others: List of Tensors, the parts that the product has.
      what: Python str, what these are called in errors.

    Returns:
      one_pass: Callable, a Tensor that broadcasts to `sample_shape + [size]` to
        a list of one Tensor, `sample_shape + [other size]`.
      like: Tensor of that shape.
    """
    rank = self._rank
    sizes = self._sizes_of(others, what)
    sample = tf.shape(seeded[0])[:rank]
    zeros = [tf.zeros(tf.concat([sample, [n]], 0), self.dtype) for n in sizes]

    def one_pass(seed):
      results = linear_map.images(split(seed, seeded, rank))
      flat = [
        z if r is None else tf.reshape(r, tf.shape(z))
        for r, z in zip(results, zeros)
      ]
      return [tf.concat(flat, -1)]

    like = tf.concat(zeros, -1)
    static = self._problem.parts[0].shape[:rank]
    return one_pass, tf.ensure_shape(like, [*static, sum(sizes)])


def _as_tensor(
  matrix: LazyMatrix, dtype: Any = None, name: Any = None, as_ref: bool = False
) -> tf.Tensor:
  """Refuses it: TensorFlow would take it for a list, and ask its length."""
  kind = type(matrix).__name__
  raise TypeError(
    f'A {kind} is no Tensor, and becomes one by `.to_dense()` only, which '
    'computes all of it. Products are `.matvec(v)` and `.rmatvec(u)`, and '
    '`.as_linear_operator()` has more.'
  )


tf.register_tensor_conversion_function(LazyMatrix, _as_tensor)


def split(flat: tf.Tensor, likes: Sequence, rank: int) -> list:
  """Cuts `sample_shape + [n]` into parts of the shapes of `likes`."""
  sizes = [x.shape[rank:].num_elements() for x in likes]
  sample = tf.shape(likes[0])[:rank]
  flat = tf.broadcast_to(flat, tf.concat([sample, [sum(sizes)]], 0))
  return [
    tf.reshape(piece, tf.shape(x))
    for piece, x in zip(tf.split(flat, sizes, axis=-1), likes)
  ]


def _as_slice(chosen: range) -> slice:
  """The slice that selects a `range`."""
  if not chosen:
    return slice(0, 0)
  stop = chosen.stop if chosen.stop >= 0 else None
  return slice(chosen.start, stop, chosen.step)
