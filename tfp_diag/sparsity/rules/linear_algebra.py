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
"""Solves, factorizations and transforms of matrices, batch by batch."""

import numpy as np

from tfp_diag.sparsity.flow import Flow, by_blocks, by_segments
from tfp_diag.sparsity.registry import CannotSay, Squares, register_rule
from tfp_diag.sparsity.structure import Arrow, Pair, Structure

# The entries of a triangle with more rows than this are not listed.
_MAX_TRIANGLE = 1500

# The zeros of the inverse of a larger constant matrix are not looked for.
_MAX_CLOSURE = 400


@register_rule(
  *('LogMatrixDeterminant', 'MatrixDeterminant', 'MatrixInverse'),
  *('MatrixLogarithm', 'MatrixSquareRoot', 'Qr', 'SelfAdjointEigV2', 'Svd'),
)
def _of_matrices(op):
  """Every output depends on all elements of the matrix of its batch; curved."""
  shape = op.inputs[0].shape
  batches = int(np.prod(shape[:-2], dtype=np.int64))
  # The sign of a determinant is constant.
  first = 1 if op.type == 'LogMatrixDeterminant' else 0
  which = range(first, len(op.outputs))
  arrows = tuple(
    Arrow(k, (0,), by_blocks(batches, op.inputs[0].size, op.outputs[k].size))
    for k in which
  )
  return Structure(arrows, curved=tuple(which))


@register_rule('Cholesky')
def _cholesky(op):
  """The lower triangle depends on the matrix; zeros above.

  Only the lower triangle is read, but the gradient is symmetric. The factor of
  `[2, 2]` has the Jacobian rows `[1, 1, 1, 1]`, `[0, 0, 0, 0]`, and twice the
  first again.
  """
  lower = _lower(op.inputs[0].shape)
  return Structure.nonlinear({0: _masked(np.ones_like(lower), lower)})


@register_rule('CholeskyGrad')
def _cholesky_grad(op):
  """A symmetric matrix, from the lower triangles of factor and cotangent."""
  lower = _lower(op.inputs[0].shape)
  flow = _masked(lower, np.ones_like(lower))
  return Structure.nonlinear({0: flow, 1: flow})


def _lower(shape):
  return np.broadcast_to(np.tri(shape[-2], shape[-1], dtype=bool), shape)


def _masked(read, written):
  """Within each batch, what is written depends on what is read."""
  batches = int(np.prod(read.shape[:-2], dtype=np.int64))
  place = np.arange(batches).reshape(*read.shape[:-2], 1, 1)
  return by_segments(
    np.where(read, place, -1), np.where(written, place, -1), batches
  )


@register_rule('MatrixSolve', squares=Squares.INVERSE)
def _solve(op):
  """A solution depends on its right-hand side and on the whole matrix."""
  columns = _columns(op.inputs[1].shape, op.outputs[0].shape)
  return _solution(op, columns)


@register_rule('MatrixTriangularSolve', squares=Squares.INVERSE)
def _triangular_solve(op):
  """A solution depends on the equations that are solved before it.

  For a constant lower triangular matrix element i depends on the right-hand
  sides up to i: the Jacobian is a lower triangle.
  """
  shape, output_shape = op.inputs[1].shape, op.outputs[0].shape
  size = shape[-2]
  columns = _columns(shape, output_shape)
  if size <= _MAX_TRIANGLE and op.inputs[1].depends:
    after, before = np.nonzero(_inverse_pattern(op, size))
    # Where the right-hand side is broadcast, places repeat.
    places = np.arange(op.inputs[1].size).reshape(shape)
    places = np.broadcast_to(places, output_shape)
    targets = np.arange(op.outputs[0].size).reshape(output_shape)
    columns = Flow.pairs(
      targets[..., after, :],
      places[..., before, :],
      op.outputs[0].size,
      op.inputs[1].size,
    )
  return _solution(op, columns, triangular=True)


def _inverse_pattern(op, size):
  """Which unknown depends on which equation, for a triangular matrix."""
  triangle = np.tri(size, dtype=bool)
  if not op.attr('lower'):
    triangle = triangle.T
  try:
    matrix = op.inputs[0].value() if size <= _MAX_CLOSURE else None
  except CannotSay:
    matrix = None
  if matrix is not None:
    # The inverse of a matrix has the pattern of its transitive closure.
    reach = (matrix != 0).reshape(-1, size, size).any(0) & triangle
    reach |= np.eye(size, dtype=bool)
    for _ in range(size.bit_length()):
      reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
    triangle = reach
  return triangle.T if op.attr('adjoint') else triangle


def _solution(op, columns, triangular=False):
  """Linear in the right-hand side, curved in the matrix."""
  (output,) = op.outputs
  flows, pairs = {}, []
  if op.inputs[1].depends:
    flows[1] = columns
  if op.inputs[0].depends:
    shape = op.inputs[0].shape
    read = np.ones(shape, bool)
    if triangular:
      read = _lower(shape)
      read = read if op.attr('lower') else np.swapaxes(read, -1, -2)
    flows[0] = _masked(read, np.ones(output.shape, bool))
    pairs.append(Pair((0,), flows[0], (0,), flows[0], output=0))
    if 1 in flows:
      pairs.append(Pair((0,), flows[0], (1,), flows[1], output=0))
  return Structure.linear(flows, pairs=tuple(pairs))


def _columns(shape, output_shape):
  """Each output depends on its column of the right-hand sides."""
  count = int(np.prod([*shape[:-2], shape[-1]], dtype=np.int64))
  place = np.arange(count).reshape(*shape[:-2], 1, shape[-1])
  return by_segments(
    np.broadcast_to(place, shape), np.broadcast_to(place, output_shape), count
  )


@register_rule('TridiagonalMatMul')
def _tridiagonal_product(op):
  """Row i of the product depends on rows i - 1, i and i + 1 of the right side.

  Of a matrix of 3 rows and one column on the right the Jacobian is
  `[[1, 1, 0], [1, 1, 1], [0, 1, 1]]`. Each of the three diagonals is as long
  as the matrix: the last element above and the first one below do not count.
  """
  output, right = op.outputs[0], op.inputs[3]
  if any(x.shape[:-2] != output.shape[:-2] for x in op.inputs):
    raise CannotSay('batches that are broadcast')
  rows = np.arange(output.size).reshape(output.shape)
  size = output.shape[-2]
  flows, pairs, seen = {}, [], []
  for k, shift in enumerate((1, 0, -1)):
    here = slice(max(-shift, 0), size - max(shift, 0))
    there = slice(max(shift, 0), size - max(-shift, 0))
    diagonal = np.arange(op.inputs[k].size).reshape(op.inputs[k].shape)
    of_row = np.swapaxes(diagonal, -1, -2)[..., here, :]
    targets = rows[..., here, :]
    of_right = Flow.pairs(targets, rows[..., there, :], output.size, right.size)
    seen.append((targets, rows[..., there, :]))
    if op.inputs[k].depends:
      flows[k] = Flow.pairs(
        targets,
        np.broadcast_to(of_row, targets.shape),
        output.size,
        op.inputs[k].size,
      )
      if right.depends:
        pairs.append(Pair((k,), flows[k], (3,), of_right, output=0))
  if right.depends:
    after, before = (
      np.concatenate([x.ravel() for x in xs]) for xs in zip(*seen)
    )
    flows[3] = Flow.pairs(after, before, output.size, right.size)
  return Structure.linear(flows, pairs=tuple(pairs))


@register_rule('BandedTriangularSolve', 'TridiagonalSolve')
def _banded_solve(op):
  """Taken as dense within each batch, or column if the matrix is constant."""
  shape, output = op.inputs[1].shape, op.outputs[0]
  batches = int(np.prod(output.shape[:-2], dtype=np.int64))
  if op.inputs[0].shape[:-2] != shape[:-2]:
    raise CannotSay('batches that are broadcast')
  if not op.inputs[0].depends:
    return _solution(op, _columns(shape, output.shape))
  return Structure.nonlinear(
    {
      k: by_blocks(batches, value.size, output.size)
      for k, value in enumerate(op.inputs)
      if value.depends
    }
  )


@register_rule('Cross')
def _cross(op):
  """The cross product: bilinear in each pair of vectors."""
  size = op.outputs[0].size
  places = np.arange(size).reshape(-1, 3)
  # Each component is a difference of products of the two others.
  one, two = (np.roll(places, -k, 1).reshape(-1) for k in (1, 2))
  flow = Flow.pairs(
    np.tile(np.arange(size), 2), np.concatenate([one, two]), size, size
  )
  one, two = Flow.gather(one, size), Flow.gather(two, size)
  return Structure.linear(
    {0: flow, 1: flow},
    pairs=(
      Pair((0,), one, (1,), two, output=0),
      Pair((0,), two, (1,), one, output=0),
    ),
  )


# How many of the last axes are transformed.
_TRANSFORMS = {
  f'{kind}{axes}': number
  for kind in ('FFT', 'IFFT', 'IRFFT', 'RFFT')
  for number, axes in enumerate(('', '2D', '3D'), start=1)
}


@register_rule(*_TRANSFORMS)
def _transform(op):
  """Every output depends on all inputs of its transform; linear."""
  kept = len(op.inputs[0].shape) - _TRANSFORMS[op.type]
  batches = int(np.prod(op.inputs[0].shape[:kept], dtype=np.int64))
  flow = by_blocks(batches, op.inputs[0].size, op.outputs[0].size)
  return Structure.linear({0: flow})
