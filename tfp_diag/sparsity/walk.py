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
"""Which graph is walked: that of the function, on as few samples as stand for
all.

A pattern is over the coordinates of one sample. So that looking for it does not
grow with the batch, the function is called once more, on a few samples, and
that graph is walked if it is seen to be the given one but for its size
(`twin`). Where the number of samples is open, the given graph itself is walked
with a number put in; what is computed from it counts as unknown. Else all
samples are walked.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity import rules  # noqa: F401 (registers the rules)
from tfp_diag.sparsity.budget import UnknownShapeError
from tfp_diag.sparsity.graph import Graph
from tfp_diag.sparsity.interpreter import Walker
from tfp_diag.sparsity.tape import Tape
from tfp_diag.sparsity.twin import Twin, compare, few_samples, same_shape
from tfp_diag.sparsity.value import Value

__all__ = ['Walked', 'walk']

# Fewer elements than this are walked as they are: to call the function once
# more takes longer.
_FEW_ELEMENTS = 2_000
# More are not walked sample by sample, even if nothing else would do.
_MOST_ELEMENTS = 2_000_000
# How often numbers of samples are tried that share no integer of the function.
_MOST_TRIES = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Walked:
  """A function whose ops have been written to a tape.

  Attributes:
    tape: `Tape`.
    graph: `Graph` that was walked.
    inputs: list of `Value`, one per part.
    outputs: list of `Value`.
    sample_shape: `tuple` of int: the samples in it.
    fallbacks: `tuple` of the ops that were taken as dense.
    notes: `tuple` of sentences for the user.
    is_certain: `bool`: whether nothing was unknown for being computed from the
      number of samples.
    twin: `Twin`, or None if the graph is the one at hand.
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
  def shapes(self) -> list:
    """The shapes of what depends on xs, in the order of the tape."""
    return [y.shape for step in self.tape.steps for y in step.outputs]

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
  """Writes the ops of a function down, on as few samples as will do.

  Args:
    graph: `Graph` at hand.
    rank: The number of sample dimensions.
    retrace: Callable, shapes of the parts to the `Graph` of the same function
      on parts of these; None if there is no way to have it.
    second_order: Whether second derivatives are wanted.

  Returns:
    Callables without arguments, each of which walks and returns `Walked`: the
    first is cheap, the others are to be tried if that is not certain.

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
  sample_shape = shapes[0][:rank]
  if None in sample_shape:
    return [lambda: _walk_open(graph, shapes, sample_shape, second_order)]
  elements = sum(int(np.prod(s, dtype=np.int64)) for s in shapes)

  def all_samples():
    return _walk_on(graph, shapes, sample_shape, second_order)

  ways = []
  # Of no sample there is nothing to see.
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


def _walk_twin(
  graph: Graph,
  shapes: Sequence,
  sample_shape: Sequence,
  retrace: Callable,
  second_order: bool,
) -> Walked | None:
  """On a few samples; None if that is not the same function."""
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
    return walked

  return _with_few(graph, rank, walk_on)


def _walk_open(
  graph: Graph, shapes: Sequence, sample_shape: Sequence, second_order: bool
) -> Walked | None:
  """With numbers of samples put in; None if the shapes depend on which."""
  rank = len(sample_shape)

  def walk_on(numbers):
    sizes = tuple(
      n if size is None else size for n, size in zip(numbers, sample_shape)
    )
    filled = [(*sizes, *s[rank:]) for s in shapes]
    put_in = [n for n, size in zip(sizes, sample_shape) if size is None]
    return _walk_on(graph, filled, sizes, second_order, put_in=put_in)

  def walk_twice(found):
    return walk_on(found[:rank]), walk_on(found[rank:])

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
  return one if same else None


class _SharedIntegersError(Exception):
  """Integers that a function computes are multiples of a number of samples."""

  def __init__(self, integers: set) -> None:
    super().__init__()
    self.integers = integers


def _with_few(graph: Graph, count: int, walk_on: Callable) -> Any:
  """Walks with numbers of samples that divide no integer, or None."""
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
) -> Walked:
  """With some numbers of samples `put_in`, which no integer may share."""
  values = [
    Value(shape, x.dtype, depends=True) for shape, x in zip(shapes, graph.xs)
  ]
  variables = {
    id(x.handle): value
    for x, value in zip(graph.xs, values)
    if isinstance(x, tf.Variable)
  }
  walker = Walker(graph, variables, second_order, twin)
  outputs = walker.walk(values)
  _check_known(outputs, is_open=bool(put_in))
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
  )


def _check_known(outputs: Sequence, is_open: bool) -> None:
  if any(value.shape is None for value in outputs):
    way_out = 'Set the shape with tf.ensure_shape'
    if is_open:
      way_out += (
        ', or plan for a given number of samples: how often a loop over '
        'samples, as in tf.map_fn, runs is not known else'
      )
    raise UnknownShapeError(
      'fn must return Tensors whose shape is known when it is traced. '
      f'{way_out}.'
    )
