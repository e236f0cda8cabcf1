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
"""Whole Jacobians: one pass per coordinate of one side, results side by side.

A pass is seeded with one at one coordinate of the event of one part, in all
samples at once. The results of the passes of a part are stacked, vectorized in
chunks, and become one block of the Jacobian for each part of the other side.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import sweep
from tfp_diag.diagonal.linear_map import (
  Evaluation,
  LinearMap,
  MissingGradientError,
)
from tfp_diag.diagonal.request import Mode
from tfp_diag.diagonal.vectorize import vectorized_map
from tfp_diag.internal import batching


def jacobian_blocks(
  reverse: LinearMap,
  evaluation: Evaluation,
  rank: int,
  mode: Mode,
  chunk_size: int | None,
  is_linear: bool = True,
) -> list[list]:
  """The blocks of a Jacobian.

  Args:
    reverse: `LinearMap` in reverse mode, from its outputs to the parts.
    evaluation: `Evaluation` of which it is a derivative.
    rank: Python int, the number of sample dimensions.
    mode: 'forward', 'reverse' or 'auto'.
    chunk_size: Python int, how many passes run together, or None: all of one
      part.
    is_linear: As in `forward_map`.

  Returns:
    List, one entry per output, of lists, one entry per input: a Tensor of shape
    `sample_shape + event_shape of y + event_shape of x`, or None where no path
    leads from `x` to `y`.
  """
  xs, ys = evaluation.xs, reverse.targets
  paths = _paths(reverse, ys, xs)
  linear_map, by_columns = reverse, False
  if mode == 'forward' or (mode == 'auto' and _is_wide(ys, xs, rank)):
    try:
      linear_map, by_columns = forward_map(reverse, ys, xs, is_linear), True
    except MissingGradientError:
      if mode == 'forward':
        raise
  # Forward mode is the gradient of a gradient.
  obstacle = evaluation.loop_type if by_columns else evaluation.obstacle()
  passes = functools.partial(
    _stacked_seeds, linear_map, rank, chunk_size, obstacle
  )
  found = _by_passes(passes, paths, ys, xs, rank, by_columns)
  places = [(i, j) for i, path in enumerate(paths) for j in path]
  if not by_columns or not places:
    return found
  rows = functools.partial(_rows_not_finite, reverse, rank, found)

  def by_rows():
    blocks = _by_passes(rows, paths, ys, xs, rank, by_columns=False)
    return [blocks[i][j] for i, j in places]

  merged = finite_where_possible([found[i][j] for i, j in places], by_rows)
  for (i, j), block in zip(places, merged):
    found[i][j] = block
  return found


def finite_where_possible(
  results: Sequence, other: Callable, is_constant: bool = True
) -> list:
  """Results; where one is not finite, what another way gives.

  A row adds up the tangents of all inputs, those of other seeds times zero,
  which is not zero where a derivative is infinite. Cotangents of a row go to
  each input alone, and TensorFlow's gradients of cotangents of zero are zero,
  as behind what `tf.where` does not select. A branch, so that this costs
  nothing where all is finite.

  Args:
    results: List of Tensors.
    other: Callable without arguments, returns the same by cotangents.
    is_constant: Whether nobody differentiates the branch, as XLA could not
      where it has a loop. Where it steps in, derivatives of the results are
      then NaN.

  Returns:
    List of Tensors.
  """
  finite = [tf.math.is_finite(r) for r in results]
  others = tf.cond(
    tf.reduce_all([tf.reduce_all(is_finite) for is_finite in finite]),
    lambda: [tf.zeros_like(r) for r in results],
    other,
  )
  if is_constant:
    others = list(map(tf.stop_gradient, others))
  return [
    tf.where(is_finite, r, o)
    for is_finite, r, o in zip(finite, results, others)
  ]


def stacked_not_finite(
  one_pass: Callable, likes: Sequence, is_finite: tf.Tensor
) -> list:
  """As `stacked`, a loop over rows that are not finite; zeros for the others.

  Args:
    one_pass: As for `stacked`, as is `likes`.
    likes: List of Tensors.
    is_finite: bool Tensor, a vector: whether a row is known to be finite.

  Returns:
    List of Tensors.
  """
  num_finite = tf.reduce_sum(tf.cast(is_finite, tf.int32))
  num_passes = tf.size(is_finite) - num_finite
  # Those that are not finite come first.
  order = tf.argsort(tf.cast(is_finite, tf.int32))

  def step(i, *stacks):
    is_row = tf.range(tf.size(is_finite)) == order[i]
    added = []
    for stack, row in zip(stacks, one_pass(order[i])):
      there = tf.reshape(is_row, [-1, *[1] * (stack.shape.rank - 1)])
      stacked = tf.where(there, row, stack)
      added.append(batching.with_shape(stacked, stack.shape))
    return [i + 1, *added]

  size = tf.shape(is_finite)
  zeros = [tf.zeros(tf.concat([size, tf.shape(x)], 0), x.dtype) for x in likes]
  zeros = [
    batching.with_shape(z, is_finite.shape.concatenate(x.shape))
    for z, x in zip(zeros, likes)
  ]
  _, *stacks = tf.while_loop(
    lambda i, *_: i < num_passes, step, [0, *zeros], parallel_iterations=1
  )
  return stacks


def stacked(
  one_pass: Callable,
  likes: Sequence,
  num: Any,
  chunk_size: int | None,
  obstacle: str | None = None,
) -> list:
  """The results of `num` passes, stacked.

  Args:
    one_pass: Python callable, number of the pass (Python int or scalar int32
      Tensor) to a list of Tensors.
    likes: List of Tensors of the shapes and dtypes of these.
    num: Python int or scalar int32 Tensor.
    chunk_size: Python int, how many passes run together; None: all.
    obstacle: Python str or None. The type of an op that pfor would only fail
      on when it is too late to choose something else.

  Returns:
    List of Tensors of shapes `[num] + shape`.
  """

  def checked(k):
    return [batching.with_shape(r, x.shape) for r, x in zip(one_pass(k), likes)]

  def loop():
    return _mapped(checked, num, likes)

  is_static = isinstance(num, int)
  if is_static and num == 0:
    return [tf.zeros(tf.concat([[0], tf.shape(x)], 0), x.dtype) for x in likes]
  if is_static and (
    num == 1 or (chunk_size is None and num <= sweep.MAX_UNROLLED)
  ):
    return [tf.stack(r) for r in zip(*(checked(k) for k in range(num)))]
  if chunk_size == 1:
    return loop()
  choice = 'chunk_size=1'
  if obstacle is not None:
    sweep.warn_of_loop(f'the op {obstacle}', choice)
    return loop()
  return sweep.vectorized_or_loop(
    lambda: _in_chunks(checked, likes, num, chunk_size), loop, choice
  )


def _in_chunks(
  one_pass: Callable, likes: Sequence, num: Any, chunk_size: int | None
) -> list:
  """Vectorized chunks in a loop; the last, shorter chunk by itself."""
  if not isinstance(num, int):
    return _in_open_chunks(one_pass, likes, num, chunk_size)

  def chunk(first, size):
    if size == 1:
      # `vectorized_map` takes an axis of size 1 for one to broadcast.
      return [r[tf.newaxis] for r in one_pass(first)]
    return vectorized_map(one_pass, first + tf.range(size))

  if chunk_size is None or num <= chunk_size:
    return chunk(0, num)
  num_chunks, remainder = divmod(num, chunk_size)
  full = _mapped(
    lambda c: chunk(c * chunk_size, chunk_size), num_chunks, likes, [chunk_size]
  )
  full = _unchunked(full, likes, num - remainder)
  if not remainder:
    return full
  last = chunk(num - remainder, remainder)
  return [tf.concat([f, r], 0) for f, r in zip(full, last)]


def _in_open_chunks(
  one_pass: Callable, likes: Sequence, num: Any, chunk_size: int | None
) -> list:
  """Chunks of one size, of a number of passes that is known at run time.

  Without passes pfor loses shapes, so that there is at least one. What the
  chunks have too much repeats the last pass, and is cut off.
  """
  last = tf.maximum(num - 1, 0)
  if chunk_size is None:
    return [r[:num] for r in vectorized_map(one_pass, tf.range(last + 1))]
  num_chunks = last // chunk_size + 1
  size = last // num_chunks + 1
  chunks = _mapped(
    lambda c: vectorized_map(
      one_pass, tf.minimum(c * size + tf.range(size), last)
    ),
    num_chunks,
    likes,
    [None],
  )
  return [r[:num] for r in _unchunked(chunks, likes, num_chunks * size)]


def _unchunked(chunks: Sequence, likes: Sequence, num: Any) -> list:
  """`[num_chunks, size] + shape` to `[num] + shape`."""
  return [
    tf.reshape(c, tf.concat([[num], tf.shape(x)], 0))
    for c, x in zip(chunks, likes)
  ]


def _mapped(
  fn: Callable, num: Any, likes: Sequence, chunk: Sequence[int | None] = ()
) -> list:
  """`tf.map_fn` over `range(num)`, one call at a time to save memory.

  Args:
    fn: Python callable, scalar int32 Tensor to a list of Tensors of shapes
      `chunk + shape`.
    num: Python int or scalar int32 Tensor.
    likes: List of Tensors of these shapes and of the dtypes of the results.
    chunk: List of Python int or None, leading dimensions of each result.

  Returns:
    List of Tensors of shapes `[num] + chunk + shape`.
  """
  specs = [tf.TensorSpec([*chunk, *x.shape], x.dtype) for x in likes]
  # If `num` is open, `fn` is called once even where `num` is 0: a dynamic shape
  # of the results is known only from a first one. It is cut off below.
  at_least = num if isinstance(num, int) else tf.maximum(num, 1)
  results = tf.map_fn(
    fn, tf.range(at_least), fn_output_signature=specs, parallel_iterations=1
  )
  return results if isinstance(num, int) else [r[:num] for r in results]


def _connected(
  linear_map: LinearMap, member: int, like: tf.Tensor, others: Sequence[int]
) -> list[int]:
  """Which of the other side's parts a path connects with a part.

  The ops that this adds to the graph never run, as nothing uses their results.

  Args:
    linear_map: `LinearMap`.
    member: Python int, the number of the part.
    like: Tensor of the shape and dtype of that part.
    others: List of Python int, the numbers of parts on the other side.

  Returns:
    List of those of `others` to which a path leads.
  """
  others = list(others)
  results = linear_map.apply([member], [tf.zeros_like(like)], others)
  return [o for o, r in zip(others, results) if r is not None]


def _is_wide(ys: Sequence, xs: Sequence, rank: int) -> bool:
  """Whether there are fewer inputs than outputs, as far as is known."""
  sizes = [[z.shape[rank:].num_elements() for z in side] for side in (xs, ys)]
  if any(size is None for side in sizes for size in side):
    return False
  return sum(sizes[0]) < sum(sizes[1])


def forward_map(
  reverse: LinearMap, ys: Sequence, xs: Sequence, is_linear: bool
) -> LinearMap:
  """Transposes a map, and checks that both modes find the same paths.

  If reverse mode finds a path that forward mode does not find, some gradient
  cannot be differentiated by its cotangent. The check needs no values.

  Args:
    reverse: `LinearMap` in reverse mode.
    ys: List of Tensors, its outputs.
    xs: List of Tensors or Variables, its inputs.
    is_linear: Python bool, whether its gradients are linear in cotangents.

  Returns:
    `LinearMap` in forward mode.

  Raises:
    MissingGradientError: if forward mode lacks a path, or is another map.
  """
  if not is_linear:
    raise MissingGradientError(
      'A `tf.custom_gradient` in `fn` is not seen to be linear in its '
      'cotangent, so that forward mode would give other numbers. Use reverse '
      "mode (`mode='reverse'`, or rows in place of columns)."
    )
  forward = reverse.transposed()
  paths = _paths(reverse, ys, xs)
  for j, x in enumerate(xs):
    outputs = [i for i, path in enumerate(paths) if j in path]
    if outputs and _connected(forward, j, x, outputs) != outputs:
      raise MissingGradientError(
        'Forward mode finds no path from an input to an output where reverse '
        'mode finds one: a gradient in `fn` cannot be differentiated with '
        'respect to the derivative that it is multiplied with. Use reverse '
        "mode (`mode='reverse'`, or rows in place of columns)."
      )
  return forward


def _paths(reverse: LinearMap, ys: Sequence, xs: Sequence) -> list[list[int]]:
  """For each output, the inputs that it depends on."""
  return [_connected(reverse, i, y, range(len(xs))) for i, y in enumerate(ys)]


def _by_passes(
  passes: Callable,
  paths: list,
  ys: Sequence,
  xs: Sequence,
  rank: int,
  by_columns: bool,
) -> list[list]:
  """The blocks, by passes that are seeded at `ys`, or at `xs` for columns.

  Args:
    passes: Callable, `_stacked_seeds` of a part and the results to ask for.
    paths: As `_paths` returns them.
    ys: List of Tensors.
    xs: List of Tensors.
    rank: Python int, the number of sample dimensions.
    by_columns: Whether the seeded side is `xs`.
  """
  blocks: list = [[None] * len(xs) for _ in ys]
  for k, seeded in enumerate(xs if by_columns else ys):
    if by_columns:
      places = [(i, k) for i, path in enumerate(paths) if k in path]
      results = {i: ys[i] for i, _ in places}
    else:
      places = [(k, j) for j in paths[k]]
      results = {j: xs[j] for _, j in places}
    for (i, j), stack in zip(places, passes(k, seeded, results)):
      axis = ys[i].shape.rank if by_columns else rank
      blocks[i][j] = _block(stack, ys[i], xs[j], rank, axis)
  return blocks


def _stacked_seeds(
  linear_map: LinearMap,
  rank: int,
  chunk_size: int | None,
  obstacle: str | None,
  member: int,
  like: tf.Tensor,
  results: dict,
) -> list:
  """One pass per coordinate of a part, stacked: `[size] + shape` per result.

  The results are a dict: number of the part on the other side -> the part.
  """
  if not results:
    return []
  one_pass, size = _seeded(linear_map, rank, member, like, list(results))
  return stacked(one_pass, list(results.values()), size, chunk_size, obstacle)


def _rows_not_finite(
  reverse: LinearMap,
  rank: int,
  blocks: list,
  member: int,
  like: tf.Tensor,
  results: dict,
) -> list:
  """As `_stacked_seeds`, for the rows in which a block is not finite."""
  if not results:
    return []
  one_pass, _ = _seeded(reverse, rank, member, like, list(results))
  y_rank = like.shape.rank
  is_finite = tf.reduce_all(
    [
      tf.reduce_all(
        tf.math.is_finite(blocks[member][j]),
        [*range(rank), *range(y_rank, blocks[member][j].shape.rank)],
      )
      for j in results
    ],
    axis=0,
  )
  likes = list(results.values())
  return stacked_not_finite(one_pass, likes, tf.reshape(is_finite, [-1]))


def _seeded(
  linear_map: LinearMap,
  rank: int,
  member: int,
  like: tf.Tensor,
  results: Sequence[int],
) -> tuple[Callable, Any]:
  """The pass of each coordinate of a part, and their number."""
  event = like.shape[rank:]
  if event.is_fully_defined():
    size = event.num_elements()
  else:
    size = tf.reduce_prod(tf.shape(like)[rank:])

  def one_pass(k):
    if isinstance(k, int) and isinstance(size, int):
      # A constant, so that XLA sees which of the results are asked for.
      seed = tf.constant(np.eye(1, size, k), like.dtype)
    else:
      seed = tf.cast(tf.equal(tf.range(size), k), like.dtype)
    seed = tf.reshape(seed, tf.shape(like)[rank:])
    seed = tf.broadcast_to(seed, tf.shape(like))
    return linear_map.apply([member], [seed], results)

  return one_pass, size


def _block(
  stack: tf.Tensor, y: tf.Tensor, x: tf.Tensor, rank: int, axis: int
) -> tf.Tensor:
  """Moves the stacked dimension to `axis`, and gives the block its shape."""
  order = [*range(1, axis + 1), 0, *range(axis + 1, stack.shape.rank)]
  moved = tf.transpose(stack, order)
  block = tf.reshape(moved, tf.concat([tf.shape(y), tf.shape(x)[rank:]], 0))
  return batching.with_shape(block, y.shape.concatenate(x.shape[rank:]))
