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
"""Diagonals from random probes: averages over a few passes, with their errors.

For a matrix `A` and a vector `z` of independent signs, the expectation of
`z * (A z)` is the diagonal of `A`: entry `i` is `A_ii`, plus `z_i z_j A_ij` for
every other `j`, which has mean zero. Restricted to the coordinates of one color
at a time, only the `A_ij` of that color are left of the error.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import blocks
from tfp_diag.diagonal.linear_map import LinearMap
from tfp_diag.internal import batching

# As `seeds.as_seed` takes it; None is a new one, or none at all.
Seed = tf.Tensor | np.ndarray | Sequence[int] | int | None

# The standard error of fewer probes says too little to stop by.
MIN_PROBES = 10


class Probes(NamedTuple):
  """Which probes are drawn.

  Attributes:
    count: Python int, how many there are at most.
    seed: int Tensor of shape [2].
    tolerance: Python float or None. Stop when in each sample the standard
      errors are, in 2-norm, at most this times the estimate.
  """

  count: int
  seed: Any
  tolerance: float | None


class Estimate(NamedTuple):
  """What probes say of a diagonal.

  Attributes:
    estimate: List of Tensors shaped as the parts.
    standard_error: Likewise.
    num_passes: Scalar int32 Tensor.
  """

  estimate: list
  standard_error: list
  num_passes: Any


def average(
  linear_map: LinearMap,
  xs: Sequence,
  rank: int,
  colors: list | None,
  drawn: Probes,
  chunk_size: int,
  obstacle: str | None,
) -> Estimate:
  """The mean of `z * (A z)` over probes `z`, and its standard error.

  Bekas, Kokiopoulou and Saad (2007), equation 3, with signs. In reverse mode
  `A` is the transposed Jacobian, of the same diagonal.

  Args:
    linear_map: A `LinearMap`, square in the parts `xs`.
    xs: List of Tensors or Variables.
    rank: Python int, the number of sample dimensions.
    colors: List of int arrays of the event shapes, or None: one color.
    drawn: `Probes`.
    chunk_size: Python int, how many passes run together.
    obstacle: As in `blocks.stacked`.

  Returns:
    estimate: List of Tensors shaped as `xs`.
    standard_error: List of Tensors shaped as `xs`.
    num_passes: Scalar int32 Tensor.
  """
  num_probes, seed, tolerance = drawn
  num_colors = 1 + max((int(c.max(initial=0)) for c in colors or ()), default=0)
  probes_at_once = min(num_probes, max(1, chunk_size // num_colors))
  members = list(range(len(xs)))

  def estimates(first, size):
    """What `size` probes say, from number `first` on: `[size] + shape` each."""
    probes = signs(seed, first, size, xs)

    def one_pass(p):
      z = [tf.gather(probe, p // num_colors) for probe in probes]
      masks = [True] * len(xs)
      if colors is not None and num_colors > 1:
        masks = [tf.equal(c, p % num_colors) for c in colors]
      seeds = [tf.where(m, s, tf.zeros([], s.dtype)) for m, s in zip(masks, z)]
      results = linear_map.apply(members, seeds)
      return [
        tf.zeros_like(s) if r is None else tf.where(m, s * r, tf.zeros_like(s))
        for m, s, r in zip(masks, z, results)
      ]

    stacks = blocks.stacked(
      one_pass, xs, size * num_colors, chunk_size, obstacle
    )
    return [
      tf.reduce_sum(
        tf.reshape(s, tf.concat([[size, num_colors], tf.shape(s)[1:]], 0)), 1
      )
      for s in stacks
    ]

  def update(state, size):
    """Adds `size` probes to means and sums of squared deviations."""
    count, means, squares = state
    new_means, new_squares = [], []
    total = count + size
    for mean, square, e in zip(means, squares, estimates(count, size)):
      e = tf.cast(e, tf.float64)
      n, k, m = (tf.cast(c, e.dtype) for c in (count, size, total))
      e_mean = tf.reduce_mean(e, 0)
      shift = e_mean - mean
      new_means.append(mean + shift * (k / m))
      new_squares.append(
        square + tf.reduce_sum((e - e_mean) ** 2, 0) + shift**2 * (n * k / m)
      )
    return total, new_means, new_squares

  def is_done(state):
    count, means, squares = state
    if tolerance is None:
      return tf.constant(False)
    errors = _standard_errors(count, squares)
    small = _norm(errors, rank) <= tolerance * _norm(means, rank)
    return tf.logical_and(count >= MIN_PROBES, tf.reduce_all(small))

  # Squares of small entries would underflow in the dtype of the parts.
  zeros = [tf.zeros_like(x, tf.float64) for x in xs]
  state = (tf.constant(0), zeros, zeros)
  shapes = [x.shape for x in xs]
  num_chunks, remainder = divmod(num_probes, probes_at_once)
  state = tf.while_loop(
    lambda *state: tf.logical_and(
      state[0] < num_chunks * probes_at_once,
      tf.logical_not(is_done(state)),
    ),
    lambda *state: update(state, probes_at_once),
    state,
    shape_invariants=(tf.TensorShape([]), shapes, shapes),
    parallel_iterations=1,
    maximum_iterations=num_chunks,
  )
  if remainder and tolerance is None:
    state = update(state, remainder)
  elif remainder:
    state = tf.cond(
      is_done(state), lambda: state, lambda: update(state, remainder)
    )
  count, means, squares = state
  errors = _standard_errors(count, squares)
  means, errors = (
    [tf.cast(v, x.dtype) for v, x in zip(vs, xs)] for vs in (means, errors)
  )
  return Estimate(means, errors, count * num_colors)


def exchangeable(
  reverse: LinearMap,
  forward: LinearMap,
  xs: Sequence,
  rank: int,
  num_probes: int,
  seed: tf.Tensor,
  obstacle: str | None,
) -> Estimate:
  """The XDiag estimate: low rank part exactly, the rest by probes.

  Each probe is left out in turn: the others span a space on which the diagonal
  is exact, the one left out estimates what lies outside.

  Epperly, Tropp and Webber (2024), section 2.3, for `A` = the transposed
  Jacobian, whose diagonal is the same.

  Args:
    reverse: `LinearMap` in reverse mode, square in the parts `xs`.
    forward: The same in forward mode.
    xs: List of Tensors or Variables, all of one dtype.
    rank: Python int, the number of sample dimensions.
    num_probes: Python int, at most half the number of coordinates.
    seed: int Tensor of shape [2].
    obstacle: As in `blocks.stacked`.

  Returns:
    As `average`. The standard error treats what each probe says as independent,
    which holds approximately.
  """
  members = list(range(len(xs)))
  # Triangular matrices in half precision have no kernels.
  dtype = xs[0].dtype
  wide = tf.float32 if dtype.size < 4 else dtype

  def products(linear_map, columns):
    """`sample_shape + [n, k]` times the map, column by column."""
    order = [rank + 1, *range(rank + 1)]
    stack = flat_parts(tf.cast(tf.transpose(columns, order), dtype), xs, rank)

    def one_pass(k):
      results = linear_map.apply(members, [tf.gather(s, k) for s in stack])
      return [tf.zeros_like(x) if r is None else r for x, r in zip(xs, results)]

    results = blocks.stacked(one_pass, xs, num_probes, None, obstacle)
    return as_columns(results)

  def as_columns(stack):
    order = [*range(1, rank + 2), 0]
    return tf.cast(tf.transpose(batching.joined(stack, rank + 1), order), wide)

  omega = as_columns(signs(seed, 0, num_probes, xs))
  q, r = tf.linalg.qr(products(reverse, omega))
  z = products(forward, q)
  # Where the rank of the matrix is less than the number of probes, `r` is
  # singular. Any small number in place of a zero serves: what it scales lies
  # outside the range, where the matrix is zero.
  diag = tf.linalg.diag_part(r)
  limits = np.finfo(r.dtype.as_numpy_dtype)
  scale = tf.reduce_max(tf.abs(diag), axis=-1, keepdims=True)
  least = tf.where(
    scale > 0, num_probes * limits.eps * scale, float(limits.tiny) ** 0.25
  )
  diag = tf.where(tf.abs(diag) < least, least * tf.ones_like(diag), diag)
  r = tf.linalg.set_diag(r, diag)
  eye = tf.eye(num_probes, batch_shape=tf.shape(r)[:-2], dtype=r.dtype)
  # Column i of `s` is the direction that only probe i adds to the range.
  s = tf.linalg.triangular_solve(r, eye, lower=False, adjoint=True)
  length = tf.norm(s, axis=-2, keepdims=True)
  s = s / length
  left_out = tf.matmul(q, s)
  estimates = (
    tf.reduce_sum(q * z, -1, keepdims=True)
    - left_out * tf.matmul(z, s)
    + omega * left_out / length
  )
  mean, variance = tf.nn.moments(estimates, axes=[-1])
  error = tf.sqrt(variance / tf.cast(num_probes - 1, variance.dtype))
  mean, error = tf.cast(mean, dtype), tf.cast(error, dtype)
  return Estimate(
    flat_parts(mean, xs, rank),
    flat_parts(error, xs, rank),
    tf.constant(2 * num_probes),
  )


def signs(seed: tf.Tensor, first: Any, size: int, xs: Sequence) -> list:
  """Random signs for the probes from number `first` on.

  A probe is the same however many are drawn together.

  Args:
    seed: int Tensor of shape [2].
    first: Python int or scalar int32 Tensor.
    size: Python int, how many.
    xs: List of Tensors or Variables.

  Returns:
    List of Tensors of shapes `[size] + shape`.
  """
  sizes = tf.stack([tf.size(x) for x in xs])
  shape: Any = [tf.reduce_sum(sizes)]
  bits = tf.stack(
    [
      tf.random.stateless_uniform(
        shape,
        tf.random.experimental.stateless_fold_in(seed, first + k, alg='philox'),
        minval=0,
        maxval=2,
        dtype=tf.int32,
        # By default XLA takes another one, and other probes.
        alg='philox',
      )
      for k in range(size)
    ]
  )
  pieces = tf.split(2 * bits - 1, sizes, axis=1, num=len(xs))
  return [
    batching.with_shape(
      tf.reshape(tf.cast(p, x.dtype), tf.concat([[size], tf.shape(x)], 0)),
      tf.TensorShape([size]).concatenate(x.shape),
    )
    for p, x in zip(pieces, xs)
  ]


def flat_parts(flat: tf.Tensor, xs: Sequence, rank: int) -> list:
  """Cuts `[...] + sample_shape + [n]` into parts of the shapes of `xs`."""
  sizes = tf.stack([tf.reduce_prod(tf.shape(x)[rank:]) for x in xs])
  leading = tf.shape(flat)[: flat.shape.rank - 1 - rank]
  return [
    batching.with_shape(
      tf.reshape(piece, tf.concat([leading, tf.shape(x)], 0)),
      flat.shape[: flat.shape.rank - 1 - rank].concatenate(x.shape),
    )
    for piece, x in zip(tf.split(flat, sizes, axis=-1, num=len(xs)), xs)
  ]


def _standard_errors(count: tf.Tensor, squares: Sequence) -> list:
  """Not a number after a single probe: nothing is known of its error."""
  errors = []
  for square in squares:
    n = tf.cast(count, square.dtype)
    errors.append(tf.sqrt(square / ((n - 1) * n)))
  return errors


def _norm(parts: Sequence, rank: int) -> tf.Tensor:
  """The 2-norm over all coordinates, for each sample."""
  total = 0.0
  for p in parts:
    squares = tf.reduce_sum(p**2, axis=list(range(rank, p.shape.rank)))
    total += tf.cast(squares, parts[0].dtype)
  return tf.sqrt(total)
