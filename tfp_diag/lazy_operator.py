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
"""A lazy matrix as a `tf.linalg.LinearOperator`."""

from typing import Any

import tensorflow as tf

from tfp_diag.internal import batching

__all__ = ['LazyOperator']


class LazyOperator(tf.linalg.LinearOperator):
  """A `LazyMatrix` as a linear operator: products are passes.

  A method that needs the whole matrix, such as `solve`, calls `to_dense()`.
  """

  def __init__(self, matrix: Any, is_self_adjoint: bool | None) -> None:
    self._matrix = matrix
    *_, rows, columns = matrix.shape
    super().__init__(
      dtype=matrix.dtype,
      is_self_adjoint=is_self_adjoint or None,
      is_square=rows == columns,
      name=type(matrix).__name__,
      parameters={'matrix': matrix, 'is_self_adjoint': is_self_adjoint},
    )

  def _shape(self) -> tf.TensorShape:
    return self._matrix.shape

  def _shape_tensor(self) -> tf.Tensor:
    return self._matrix.shape_tensor()

  def __getitem__(self, slices: Any) -> Any:
    kind = type(self._matrix).__name__
    raise TypeError(
      f'The operator of a {kind} has no slices. Take entries of the {kind} '
      'itself, such as `matrix[..., :2, :2]`, a Tensor of which '
      '`tf.linalg.LinearOperatorFullMatrix` makes an operator.'
    )

  def _matmul(
    self, x: tf.Tensor, adjoint: bool = False, adjoint_arg: bool = False
  ) -> tf.Tensor:
    x = tf.linalg.matrix_transpose(x) if adjoint_arg else x
    rank = self._matrix.shape.rank
    batch = self._matrix.shape[:-2]
    if (
      x.shape.rank is None
      or x.shape.rank > rank
      or not batching.broadcasts_to(x.shape[:-2], batch)
    ):
      # More in a batch than there are samples: no pass covers these.
      return tf.matmul(self._matrix.to_dense(), x, adjoint_a=adjoint)
    x = x[(tf.newaxis,) * (rank - x.shape.rank)]
    seeds = tf.transpose(x, [rank - 1, *range(rank - 1)])
    results = self._matrix.products(seeds, 'rows' if adjoint else 'columns')
    return tf.transpose(results, [*range(1, rank), 0])

  def _diag_part(self) -> tf.Tensor:
    return self._matrix.diag()

  def _trace(self) -> tf.Tensor:
    return self._matrix.trace()

  def _to_dense(self) -> tf.Tensor:
    return self._matrix.to_dense()
