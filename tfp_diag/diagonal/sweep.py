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
"""From colors to a diagonal: which seeds are used, and in what order.

A pass is given the seeds of one color: a sign `r_j` at each coordinate `j` of
that color and zero elsewhere. At those coordinates its result is
`r_j * diag_j`, if no two coordinates of the color interact. The same seed
serves every sample.
"""

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfp_diag.diagonal import local
from tfp_diag.diagonal.linear_map import Linear, MissingGradientError
from tfp_diag.diagonal.vectorize import vectorized_map
from tfp_diag.internal import batching
from tfp_diag.internal.warn import warn

Schedule = Literal['auto', 'unrolled', 'pfor', 'while_loop']
SCHEDULES = ('auto', 'unrolled', 'pfor', 'while_loop')

# Up to this many passes are written out one by one under 'auto': with constant
# seeds XLA drops what a pass does not need, and a few copies compile fast.
MAX_UNROLLED = 8
# Up to this many vectorized chunks are written out, too: XLA does not
# differentiate what pfor makes inside a loop. More would take long to compile.
_MAX_UNROLLED_CHUNKS = 4


def num_colors(colors: np.ndarray) -> int:
  """How many colors a vector of colors has."""
  return int(colors.max(initial=-1)) + 1


def split(vector: np.ndarray, event_shapes: Sequence) -> list[np.ndarray]:
  """An array over all coordinates as one for each part, parts in order."""
  sizes = [int(np.prod(s, dtype=np.int64)) for s in event_shapes]
  return [
    piece.reshape(shape)
    for piece, shape in zip(
      np.split(vector, np.cumsum(sizes)[:-1]), event_shapes
    )
  ]


class Colors:
  """The color of each coordinate of each part.

  Attributes:
    parts: List, one entry per part: an int32 array, or Tensor where the event
      shape is dynamic, of that event shape.
    num_colors: Python int, or scalar int32 Tensor.
    signs: List of arrays or Tensors of +1 and -1 that broadcast to the parts,
      or None for ones.
  """

  def __init__(
    self, parts: list, num_colors: Any, signs: list | None = None
  ) -> None:
    self.parts = parts
    self.num_colors = num_colors
    self.signs = signs

  @classmethod
  def from_vector(cls, colors: Any, event_shapes: Sequence) -> 'Colors':
    """Splits one vector over all coordinates (parts in order) into parts.

    Where a pattern lacks an entry, two coordinates of a color disturb each
    other. Signs, the same for the same colors, give the error either sign, so
    that another draw of them shows it.

    Args:
      colors: int vector, one color per coordinate; -1 for what is not asked.
      event_shapes: List of static shapes.

    Returns:
      `Colors`.
    """
    colors = np.asarray(colors, np.int32)
    signs = None
    if num_colors(colors) < colors.size:
      rng = np.random.default_rng(colors.size)
      bits = rng.integers(0, 2, colors.size, np.int8)
      signs = split((2 * bits - 1).astype(np.int8), event_shapes)
    return cls(split(colors, event_shapes), num_colors(colors), signs)

  @classmethod
  def of(cls, colors: Any, xs: Sequence, rank: int) -> 'Colors':
    """Some colors as those of the parts of a state.

    Args:
      colors: int vector, one color per coordinate; None for one each.
      xs: List of Tensors.
      rank: Python int, the number of sample dimensions.

    Returns:
      `Colors`.
    """
    shapes = batching.event_shapes(xs, rank)
    if colors is None:
      return one_color_each(shapes, xs, rank)
    return cls.from_vector(colors, shapes)

  def with_signs(self, signs: list | None) -> 'Colors':
    """The same colors with other signs, which may differ between samples."""
    return Colors(self.parts, self.num_colors, signs)

  @property
  def is_static(self) -> bool:
    """Whether every color is known while the graph is built."""
    return all(isinstance(c, np.ndarray) for c in self.parts)

  def sign(self, part: int, dtype: tf.DType) -> tf.Tensor:
    """The signs of a part as a Tensor that broadcasts to it."""
    if self.signs is None:
      return tf.ones([], dtype)
    return tf.cast(self.signs[part], dtype)

  def groups(self) -> Iterator[tuple[list[int], Any, Any]]:
    """Runs of colors that occur in the same parts.

    Yields:
      members: List of Python int, the numbers of the parts.
      start, stop: Python ints, or scalar int32 Tensors if an event shape is
        dynamic: the colors are those of `range(start, stop)`.
    """
    if not self.is_static:
      # Each part has colors of its own here, in order.
      start = 0
      for i, c in enumerate(self.parts):
        stop = start + tf.size(c)
        yield [i], start, stop
        start = stop
      return
    members = [[] for _ in range(self.num_colors)]
    for i, c in enumerate(self.parts):
      for color in np.unique(c[c >= 0]):
        members[color].append(i)
    for key, run in itertools.groupby(
      range(self.num_colors), members.__getitem__
    ):
      run = list(run)
      yield key, run[0], run[-1] + 1


def one_color_each(event_shapes: Sequence, xs: Sequence, rank: int) -> Colors:
  """Colors without structure: each coordinate has one of its own.

  Args:
    event_shapes: List of `tf.TensorShape`s.
    xs: List of Tensors of shapes `sample_shape + event_shape`.
    rank: Python int, the number of sample dimensions.

  Returns:
    `Colors`.
  """
  if all(s.is_fully_defined() for s in event_shapes):
    n = sum(s.num_elements() for s in event_shapes)
    return Colors.from_vector(np.arange(n), event_shapes)
  start, parts = 0, []
  for x in xs:
    shape = tf.shape(x)[rank:]
    size = tf.reduce_prod(shape)
    parts.append(tf.reshape(tf.range(start, start + size), shape))
    start += size
  return Colors(parts, start)


def diagonal(
  linear_map: Linear,
  colors: Colors,
  xs: Sequence,
  schedule: Schedule,
  chunk_size: int,
  obstacle: str | None,
  num_diagonals: int = 1,
) -> list:
  """The diagonal of a linear map, by as many passes as there are colors.

  Args:
    linear_map: A `LinearMap`, or what gives several diagonals in each pass.
    colors: `Colors`.
    xs: List of Tensors or Variables, the parts; only their shapes and dtypes
      matter.
    schedule: One of `SCHEDULES`.
    chunk_size: Python int. How many passes 'pfor' runs together, and
      'while_loop' in parallel.
    obstacle: Python str or None. The type of an op that pfor would only fail
      on when it is too late to choose another schedule.
    num_diagonals: Python int, how many diagonals a pass gives.

  Returns:
    List of Tensors shaped as `xs`; of several diagonals, one after the other.
  """
  result = [tf.zeros_like(x) for x in xs] * num_diagonals
  for members, start, stop in colors.groups():
    run = _choose(schedule, start, stop, obstacle)
    if run is not _unrolled and not linear_map.connects(members):
      continue  # A constant is not worth a loop.

    def one_color(k, members=members):
      return _one_color(linear_map, colors, xs, members, k)

    places = [d * len(xs) + i for d in range(num_diagonals) for i in members]
    parts = run(one_color, [result[i] for i in places], start, stop, chunk_size)
    for i, part in zip(places, parts):
      result[i] = part
  return result


def add_up(
  one_pass: Callable,
  total: list,
  num_passes: int,
  chunk_size: int,
  obstacle: str | None,
) -> list:
  """The sum of the results of some passes.

  Args:
    one_pass: Callable, a Python int or scalar int32 Tensor to a list of Tensors
      or None, shaped as `total`.
    total: List of Tensors to start from.
    num_passes: Python int.
    chunk_size: Python int, how many of them run together if they are many.
    obstacle: As for `diagonal`.

  Returns:
    List of Tensors shaped as `total`.
  """
  # Of an open number some passes would run beyond the last one, see `_pfor`.
  assert isinstance(num_passes, int)
  run = _choose('auto', 0, num_passes, obstacle)
  return run(one_pass, total, 0, num_passes, chunk_size)


def _choose(
  schedule: Schedule, start: Any, stop: Any, obstacle: str | None
) -> Callable:
  """The function that runs the colors from `start` to `stop`."""
  is_static = isinstance(stop, int) and isinstance(start, int)
  if schedule == 'auto':
    unrolled = is_static and stop - start <= MAX_UNROLLED
    schedule = 'unrolled' if unrolled else 'pfor'
  if schedule == 'unrolled' and is_static:
    return _unrolled
  if schedule == 'while_loop':
    return _while_loop
  if obstacle is not None:
    warn_of_loop(f'the op {obstacle}')
    return _while_loop
  return _pfor


def warn_of_loop(reason: str, choice: str = "schedule='while_loop'") -> None:
  """Warns that pfor cannot do it, and names the way to choose the loop."""
  warn(
    f'pfor cannot vectorize {reason}; the derivative runs as a while_loop, one '
    f'pass at a time. Pass `{choice}` to choose that yourself.',
    RuntimeWarning,
  )


def _one_color(
  linear_map: Linear,
  colors: Colors,
  xs: Sequence,
  members: Sequence[int],
  k: Any,
) -> list:
  """One pass: the diagonal at the coordinates of color `k`, zero elsewhere.

  Args:
    linear_map: A `LinearMap`.
    colors: `Colors`.
    xs: List of Tensors, the parts.
    members: List of the part numbers in which the color occurs.
    k: Python int, or scalar int32 Tensor.

  Returns:
    List with, for each member, a Tensor of the part's shape, or None; of
    several diagonals, one after the other.
  """
  masks, seeds, signs = [], [], []
  for i in members:
    x = xs[i]
    if isinstance(k, int) and isinstance(colors.parts[i], np.ndarray):
      # A constant, so that XLA sees which of the results are asked for.
      mask = tf.constant(colors.parts[i] == k)
    else:
      mask = tf.equal(colors.parts[i], k)
    sign = colors.sign(i, x.dtype)
    seed = tf.where(mask, sign, tf.zeros([], x.dtype))
    masks.append(mask)
    signs.append(sign)
    seeds.append(tf.broadcast_to(seed, tf.shape(x)))
  results = linear_map.apply(members, seeds)
  # `where`, not a product: what other coordinates hold may be infinite.
  diag = []
  per_member = itertools.cycle(zip(members, masks, signs))
  for r, (i, mask, sign) in zip(results, per_member):
    if r is not None:
      r = tf.where(mask, sign * r, tf.zeros([], r.dtype))
      r = batching.with_shape(r, xs[i].shape)
    diag.append(r)
  return diag


def _unrolled(
  one_color: Callable, total: list, start: int, stop: int, chunk_size: int
) -> list:
  for k in range(start, stop):
    total = local.add(total, one_color(k))
  return total


def _while_loop(
  one_color: Callable, total: list, start: int, stop: Any, chunk_size: int
) -> list:
  _, total = tf.while_loop(
    lambda k, _: k < stop,
    lambda k, total: (k + 1, local.add(total, one_color(k))),
    (tf.convert_to_tensor(start), total),
    shape_invariants=(tf.TensorShape([]), [t.shape for t in total]),
    parallel_iterations=min(chunk_size, _MAX_PARALLEL),
    # XLA can differentiate a loop only if it knows how long it may run.
    maximum_iterations=stop - start if isinstance(stop, int) else None,
  )
  return total


def _pfor(
  one_color: Callable, total: list, start: int, stop: Any, chunk_size: int
) -> list:
  """Vectorized chunks, one after the other for the sake of memory."""

  def chunk(total, colors):
    def body(k):
      return [
        tf.zeros_like(t) if u is None else u
        for t, u in zip(total, one_color(k))
      ]

    if colors.shape[0] == 1:
      # `vectorized_map` takes an axis of size 1 for one to broadcast.
      return local.add(total, one_color(colors[0]))
    stacked = vectorized_map(body, colors)
    return local.add(total, [tf.reduce_sum(s, axis=0) for s in stacked])

  def loop(total, num_chunks, colors_of):
    _, total = tf.while_loop(
      lambda c, _: c < num_chunks,
      lambda c, total: (c + 1, chunk(total, colors_of(c))),
      (0, total),
      shape_invariants=(tf.TensorShape([]), [t.shape for t in total]),
      parallel_iterations=1,
      maximum_iterations=num_chunks if isinstance(num_chunks, int) else None,
    )
    return total

  def static_chunks(total):
    """The last, shorter chunk by itself."""
    num_chunks, rest = divmod(stop - start, chunk_size)

    def colors_of(c):
      return start + c * chunk_size + tf.range(chunk_size)

    if num_chunks <= _MAX_UNROLLED_CHUNKS:
      for c in range(num_chunks):
        with tf.control_dependencies(total if c else []):
          total = chunk(total, colors_of(c))
    else:
      total = loop(total, num_chunks, colors_of)
    return chunk(total, tf.range(stop - rest, stop)) if rest else total

  def open_chunks(total):
    """All chunks have one size, so that a chunk is traced once.

    The last chunk may be longer than what is left; colors after the last one
    are replaced by one that no coordinate has.
    """
    count = stop - start
    # Of sums with a large `chunk_size` there may be none in int32.
    num_chunks = (count - 1) // chunk_size + 1
    size = (count - 1) // tf.maximum(num_chunks, 1) + 1

    def colors_of(c):
      colors = start + c * size + tf.range(size)
      return tf.where(colors < stop, colors, _NO_COLOR)

    return loop(total, num_chunks, colors_of)

  is_static = isinstance(start, int) and isinstance(stop, int)
  chunks = static_chunks if is_static else open_chunks
  return vectorized_or_loop(
    lambda: chunks(total),
    lambda: _while_loop(one_color, total, start, stop, chunk_size),
  )


# No coordinate has it.
_NO_COLOR = -2

# TensorFlow holds memory for each iteration that may run beside others.
_MAX_PARALLEL = 1024


def vectorized_or_loop(
  vectorized: Callable, loop: Callable, choice: str = "schedule='while_loop'"
) -> Any:
  """What `vectorized()` returns, or `loop()` where pfor cannot do it.

  Args:
    vectorized: Python callable that uses `vectorize.vectorized_map`.
    loop: Python callable that computes the same without.
    choice: Python str, the argument by which a user chooses the loop.

  Returns:
    What the one that worked returns. A warning names what stood in the way.
  """
  result, reason = _tried(vectorized)
  if reason is None:
    return result
  warn_of_loop(reason, choice)
  return loop()


def why_not_vectorized(
  linear_map: Linear, colors: Colors, xs: Sequence
) -> str | None:
  """What keeps pfor from vectorizing passes, for a sentence; None if nothing.

  The ops that this adds to the graph never run, as nothing uses their results.

  Args:
    linear_map: A `LinearMap`.
    colors: `Colors`.
    xs: List of Tensors, the parts.

  Returns:
    Python str, or None.
  """

  def one_pass(k):
    found = _one_color(linear_map, colors, xs, range(len(xs)), k)
    return [tf.zeros_like(x) if d is None else d for x, d in zip(xs, found)]

  _, reason = _tried(lambda: vectorized_map(one_pass, tf.range(2)))
  return reason


def _tried(vectorized: Callable) -> tuple[Any, str | None]:
  """What a callable returns that uses pfor, or what stood in its way."""
  with _QuietPfor() as log:
    try:
      return vectorized(), None
    except MissingGradientError:
      raise
    except Exception as e:  # pylint: disable=broad-except
      # pfor raises many types. An error that is not of its making comes up
      # again in the loop, which differentiates the same function.
      return None, log.op_type or _culprit(e)


def _culprit(error: Exception) -> str:
  """What an error of pfor is about, of which pfor did not log the op."""
  op = re.search(
    r'vectorization defined for (\w+)|/((?:Stateless)?(?:If|Case|While))\b',
    str(error),
  )
  if op:
    return f'the op {op.group(1) or op.group(2)}'
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return f'this function ({lines[-1] if lines else type(error).__name__})'


class _QuietPfor(logging.Filter):
  """Keeps pfor from logging pages about an op, and remembers its type."""

  def __init__(self) -> None:
    super().__init__()
    self.op_type = None

  def filter(self, record: logging.LogRecord) -> bool:
    message = record.getMessage()
    found = re.search(r'^op: "(\w+)"', message, re.MULTILINE)
    if 'pfor' not in message and not found:
      return True
    if found and self.op_type is None:
      self.op_type = f'the op {found.group(1)}'
    return False

  def __enter__(self) -> '_QuietPfor':
    tf.get_logger().addFilter(self)
    return self

  def __exit__(self, *unused: Any) -> None:
    tf.get_logger().removeFilter(self)
