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
"""Walks the graph of a function, on a few samples if these can stand for all.

A pattern is over the coordinates of one sample. To find it in a time that does
not grow with the batch, the function is called once more, on a few samples.
That graph is walked if it differs from the given one in the number of samples
only (see `twin`). If the number of samples is not known, the given graph is
walked with a number put in; what is computed from it counts as unknown.
Otherwise all samples are walked.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity import rules  # noqa: F401 (registers the rules)
from tfp_diag.sparsity.budget import UnknownShapeError
from tfp_diag.sparsity.cancellation import cancel
from tfp_diag.sparsity.graph import Graph
from tfp_diag.sparsity.interpreter import Walker
from tfp_diag.sparsity.sizes import Scaling
from tfp_diag.sparsity.tape import Tape, all_steps
from tfp_diag.sparsity.twin import Twin, compare, few_samples, same_shape
from tfp_diag.sparsity.value import Value

# Fewer elements than this are walked as they are: to call the function once
# more takes longer.
_FEW_ELEMENTS = 2_000
# With more elements not all samples are walked, even if there is no other way.
_MOST_ELEMENTS = 2_000_000
# How many numbers of samples are tried; see `_with_few`.
_MOST_TRIES = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Walked:
  """A function whose ops have been written to a tape.

  Attributes:
    tape: `Tape`.
    graph: `Graph` that was walked: the given one (the graph at hand), or that
      of the same function on a few samples.
    inputs: list of `Value`, one per part.
    outputs: list of `Value`.
    sample_shape: `tuple` of int: the samples in it.
    fallbacks: `tuple` of the ops that were taken as dense.
    notes: `tuple` of sentences for the user.
    is_certain: `bool`: whether no op failed when it was executed, and no rule
      asked for a value that is computed from the number of samples.
    twin: `Twin`, or None if the graph is the one at hand.
    varying_sizes: `dict` from `Value` to a bool array: which of its sizes
      change with the number of samples. Only if other numbers of samples are
      stood for, and for values for which it is known.
    is_settled: `bool`: whether values that an open number of samples decides
      are known from a least number on.
    single: `Walked` on one sample, if that is less than the least number.
    scaling: `Scaling`: what sizes are for other numbers of samples.
  """

  tape: Tape
  graph: Graph
  inputs: list
  outputs: list
  sample_shape: tuple
  fallbacks: tuple
  notes: tuple
  is_certain: bool
  twin: Twin | None = None
  varying_sizes: dict = dataclasses.field(default_factory=dict)
  is_settled: bool = False
  single: 'Walked | None' = None
  scaling: Scaling = dataclasses.field(default_factory=lambda: Scaling(()))

  @property
  def sample_rank(self) -> int:
    """The number of sample dimensions."""
    return len(self.sample_shape)

  @property
  def num_samples(self) -> int:
    """The number of samples that were walked."""
    return int(np.prod(self.sample_shape, dtype=np.int64))

  @property
  def num_coordinates(self) -> int:
    """The number of coordinates of one sample."""
    return sum(v.rows for v in self.inputs) // max(self.num_samples, 1)

  @property
  def outputs_have_samples(self) -> bool:
    """Whether the outputs have as many samples as xs."""
    rank = self.sample_rank
    return all(y.shape[:rank] == self.sample_shape for y in self.outputs)

  @property
  def values(self) -> list:
    """What the steps of the tape compute, in order."""
    return [y for step in self.tape.steps for y in step.outputs]

  @property
  def shapes(self) -> list:
    """The shapes of `values`."""
    return [value.shape for value in self.values]

  def at_hand(self, op: tf.Operation | None) -> tf.Operation | None:
    """The op of the graph at hand that an op of this one stands for, or None.

    None also for an op within a function that the graph calls.
    """
    if op is None or op.graph is not self.graph.graph:
      return None
    return op if self.twin is None else self.twin.op_at_hand.get(op)


def walk(
  graph: Graph,
  rank: int,
  retrace: Callable[[list], Graph] | None = None,
  second_order: bool = False,
) -> list:
  """The ways to walk a function, the cheapest first.

  Args:
    graph: `Graph` at hand.
    rank: The number of sample dimensions.
    retrace: Callable that takes the shapes of the parts, and returns the
      `Graph` of the same function on parts of these shapes; None if there is no
      such callable.
    second_order: Whether second derivatives are needed.

  Returns:
    List of callables without arguments. Each walks and returns `Walked`, or
    None if that is not possible. If there is none, or it is not certain, the
    next callable is to be tried.

  Raises:
    ValueError: If an event shape is not known.
  """
  shapes = [tuple(x.shape.as_list()) for x in graph.xs]
  for shape in shapes:
    if None in shape[rank:]:
      raise UnknownShapeError(
        'The event shapes of xs must be known to find a pattern; they are '
        f'{[s[rank:] for s in shapes]}. Pass xs with static shapes, for '
        'example as tf.TensorSpec; or, if an open dimension counts samples, '
        '`sample_shape`, such as `sample_shape=[None]`.'
      )
  sample_shape = known_sample_shape(graph, shapes[0][:rank])
  shapes = [(*sample_shape, *shape[rank:]) for shape in shapes]
  if None in sample_shape:
    open_to = functools.partial(
      _walk_open, graph, shapes, sample_shape, second_order
    )
    if sample_shape != (None,):
      return [lambda: open_to(1)]
    return _of_several_or_any(open_to)
  elements = sum(int(np.prod(s, dtype=np.int64)) for s in shapes)

  def all_samples():
    return _walk_on(graph, shapes, sample_shape, second_order)

  ways = []
  # A graph without samples shows nothing, so few samples are used there, too.
  if rank and (elements > _FEW_ELEMENTS or 0 in sample_shape):
    if retrace is not None and not graph.has_variables:
      ways.append(
        functools.partial(
          _walk_twin, graph, shapes, sample_shape, retrace, second_order
        )
      )
  if elements <= _MOST_ELEMENTS or not rank:
    ways.append(all_samples)
  return ways


def _of_several_or_any(open_to: Callable) -> list:
  """Ways that know there are two samples at least, and that do not."""
  is_settled = []

  def of_several():
    walked = open_to(2)
    if walked is not None and walked.single is not None:
      is_settled.append(True)
    return walked

  return [of_several, lambda: open_to(1) if is_settled else None]


def known_sample_shape(graph: Graph, open_shape: Sequence) -> tuple:
  """The sample shape; a size that is open is that of data in the function.

  Args:
    graph: `Graph`.
    open_shape: The leading sizes of its inputs, of which some may be None.

  Returns:
    Tuple of int or None. A size of 1 is not taken: that of a sum over samples.
  """
  sizes = list(open_shape)
  for axis, size in enumerate(sizes):
    found = {
      y.shape[axis]
      for y in graph.ys
      if y.shape.rank is not None and y.shape.rank > axis
    } - {None, 1}
    if size is None and len(found) == 1:
      sizes[axis] = found.pop()
  return tuple(sizes)


def _walk_twin(
  graph: Graph,
  shapes: Sequence,
  sample_shape: Sequence,
  retrace: Callable,
  second_order: bool,
) -> Walked | None:
  """Walks on a few samples; None if the graph differs in more than these."""
  rank = len(sample_shape)

  def walk_on(few):
    if 0 not in sample_shape and any(a >= b for a, b in zip(few, sample_shape)):
      return None
    smaller = [(*few, *s[rank:]) for s in shapes]
    try:
      small = retrace(smaller)
    except Exception:  # The user's code: it may know its batch, or count calls.
      return None
    twin = compare(small, graph)
    if twin is None:
      return None
    small.reads.is_allowed = graph.reads.is_allowed
    walked = _walk_on(small, smaller, few, second_order, twin, few)
    graph.reads.update(small.reads)
    return dataclasses.replace(walked, varying_sizes=_sizes_of_twin(walked))

  return _with_few(graph, rank, walk_on)


def _walk_open(
  graph: Graph,
  shapes: Sequence,
  sample_shape: Sequence,
  second_order: bool,
  least: int,
) -> Walked | None:
  """Walks with numbers of samples put in; None if two give other shapes."""
  rank = len(sample_shape)

  def walk_on(numbers):
    sizes = tuple(
      n if size is None else size for n, size in zip(numbers, sample_shape)
    )
    filled = [(*sizes, *s[rank:]) for s in shapes]
    put_in = [n for n, size in zip(sizes, sample_shape) if size is None]
    if sizes == (1,):
      put_in = []
    return _walk_on(
      graph, filled, sizes, second_order, put_in=put_in, least_samples=least
    )

  known = _known_sizes(graph)

  def walk_twice(found):
    # A size that is not of samples may be taken for a multiple of their number.
    shares = any(size % n == 0 for size in known for n in found)
    try:
      one, other = walk_on(found[:rank]), walk_on(found[rank:])
    except UnknownShapeError:
      if not shares:
        raise
      raise _SharedIntegersError(known) from None
    if shares and not (one.is_certain and other.is_certain):
      raise _SharedIntegersError(known)
    if one.scaling.found != other.scaling.found:
      # A size of an event was taken for one of samples.
      raise _SharedIntegersError(one.scaling.integers & other.scaling.integers)
    return one, other

  walks = _with_few(graph, 2 * rank, walk_twice)
  if walks is None:
    return None
  one, other = walks
  sizes = [
    pair
    for pair in zip(one.sample_shape, other.sample_shape)
    if len(set(pair)) > 1
  ]
  same = len(one.shapes) == len(other.shapes) and all(
    same_shape(a, b, sizes) for a, b in zip(one.shapes, other.shapes)
  )
  if not same:
    return None
  varying = {
    value: np.not_equal(value.shape, other_value.shape)
    for value, other_value in zip(
      [*one.inputs, *one.values], [*other.inputs, *other.values]
    )
    if value.shape is not None
  }
  single = walk_on((1,)) if least > 1 and one.is_settled else None
  return dataclasses.replace(one, varying_sizes=varying, single=single)


def _sizes_of_twin(walked: Walked) -> dict:
  """The `varying_sizes` of a function that was walked on few samples."""
  assert walked.twin is not None
  found = {
    value: np.arange(len(value.shape)) < walked.sample_rank
    for value in walked.inputs
  }
  # Ops of loops and functions have many steps.
  known = {}
  for step in all_steps(walked.tape):
    if step.op not in known:
      op = None if step.op is None else walked.twin.op_at_hand.get(step.op)
      known[step.op] = [] if op is None else [y.shape for y in op.outputs]
    if len(known[step.op]) != len(step.outputs):
      continue
    for value, shape in zip(step.outputs, known[step.op]):
      if value.shape is not None and len(value.shape) == shape.rank:
        found[value] = np.not_equal(value.shape, shape.as_list())
  return found


def _known_sizes(graph: Graph) -> set:
  """The sizes of Tensors that a graph tells, which are not those of samples."""
  shapes = [x.shape for x in graph.xs]
  shapes += [y.shape for op in graph.ops for y in op.outputs]
  sizes = {n for shape in shapes if shape.rank for n in shape if n}
  return sizes - {1}


class _SharedIntegersError(Exception):
  """Integers that a function computes are multiples of a number of samples."""

  def __init__(self, integers: set) -> None:
    super().__init__()
    self.integers = integers


def _with_few(graph: Graph, count: int, walk_on: Callable) -> Any:
  """Calls `walk_on` with numbers of samples that divide no integer, or None."""
  avoided = set()
  for _ in range(_MOST_TRIES):
    few = few_samples(graph, count, avoided)
    if few is None:
      return None
    try:
      return walk_on(few)
    except _SharedIntegersError as e:
      avoided |= e.integers
  return None


def _walk_on(
  graph: Graph,
  shapes: Sequence,
  sample_shape: Sequence,
  second_order: bool,
  twin: Twin | None = None,
  put_in: Sequence = (),
  least_samples: int = 1,
) -> Walked:
  """Walks a graph on some shapes; `put_in` must divide none of its integers."""
  values = [
    Value(shape, x.dtype, depends=True) for shape, x in zip(shapes, graph.xs)
  ]
  walker = Walker(graph, second_order, twin, put_in, least_samples)
  outputs = [
    _with_shape(value, y, sample_shape)
    for value, y in zip(walker.walk(values), graph.ys)
  ]
  _check_known(outputs, bool(put_in), walker.shapeless)
  cancel(walker.tape, tuple(sample_shape))
  if any(k > 1 and k % n == 0 for k in walker.integers for n in put_in):
    raise _SharedIntegersError(walker.integers)
  return Walked(
    tape=walker.tape,
    graph=graph,
    inputs=values,
    outputs=outputs,
    sample_shape=tuple(sample_shape),
    fallbacks=tuple(walker.fallbacks),
    notes=tuple(walker.notes),
    is_certain=not walker.has_failures and not walker.has_varying,
    twin=twin,
    is_settled=walker.is_settled,
    scaling=walker.scaling,
  )


def _with_shape(value: Value, y: tf.Tensor, sample_shape: Sequence) -> Value:
  """An output; of a constant, the number of samples may not be known."""
  if value.shape is not None or value.depends:
    return value
  event = y.shape[len(sample_shape) :]
  if not event.is_fully_defined():
    return value
  return Value((*sample_shape, *event.as_list()), value.dtype)


def _check_known(
  outputs: Sequence, is_open: bool, shapeless: str | None
) -> None:
  if any(value.shape is None for value in outputs):
    way_out = 'Set the shape with tf.ensure_shape'
    if is_open:
      way_out = (
        'Plan for a given number of samples: otherwise it is not known how '
        'often a loop over samples runs, as in tf.map_fn, or what is computed '
        'from their number'
      )
    since = f', that of {shapeless} first' if shapeless else ''
    raise UnknownShapeError(
      'fn must return Tensors whose shape can be told from the graph; here it '
      f'cannot be{since}. {way_out}.'
    )
