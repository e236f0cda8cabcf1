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
"""Whether a few samples can stand for all: two graphs of a function compared.

A pattern is over the coordinates of one sample. So it is enough to walk a graph
of the function on a few samples, if that differs from the given graph (the one
at hand) in the number of samples only. This is checked op by op: both graphs
have the same ops, in the same order, wired in the same way, with the same
attributes and constants, and the same shapes but for the number of samples. A
constant that differs, if only in its shape, was computed from that number; it
counts as unknown wherever it is not merely a shape.

The numbers of samples are primes that divide no integer in the graph at hand:
so a roll, a slice or a new shape cannot end between two samples by accident.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_diag.sparsity.graph import (
  NO_GRADIENT,
  Graph,
  Node,
  Reader,
  all_ops,
  constant,
  is_constant,
  is_fill,
)
from tfp_diag.sparsity.op_view import MAX_INTEGERS
from tfp_diag.sparsity.registry import facts

_PRIMES = tuple(
  p for p in range(2, 1000) if all(p % k for k in range(2, math.isqrt(p) + 1))
)


def few_samples(
  graph: Graph, rank: int, avoided: Collection[int] = ()
) -> tuple | None:
  """Numbers of samples, one per dimension, that divide no integer of a graph.

  Args:
    graph: `Graph`.
    rank: how many sample dimensions there are.
    avoided: further integers that they must not divide.

  Returns:
    `tuple` of int; None if there are none.
  """
  integers = {k for k in avoided if k > 1} | (_integers(graph) - {0, 1})
  free = [p for p in _PRIMES if all(k % p for k in integers)]
  return tuple(free[:rank]) if len(free) >= rank else None


def _integers(graph: Graph) -> set[int]:
  """The integers in a graph, and in the functions that it calls."""
  integers = set()
  for op in all_ops(graph.graph, graph.ops):
    if facts(op.type).is_constant and op.outputs[0].dtype.is_integer:
      size = op.outputs[0].shape.num_elements()
      if size is not None and size <= MAX_INTEGERS:
        values = tf.make_ndarray(op.get_attr('value'))
        integers.update(abs(int(k)) for k in values.flat)
    for name in _distances(op.op_def):
      given = op.get_attr(name)
      listed = given if isinstance(given, (list, tuple)) else [given]
      integers.update(abs(k) for k in listed)
  return integers


def _distances(op_def: Any) -> list[str]:
  """The attributes that may be distances between elements: strides, say."""
  counts = {arg.number_attr for arg in (*op_def.input_arg, *op_def.output_arg)}
  return [
    attr.name
    for attr in op_def.attr
    if attr.type in ('int', 'list(int)')
    and attr.name not in counts
    and not attr.name.endswith('_mask')
  ]


class Twin:
  """How two graphs of one function, on different numbers of samples, relate.

  Attributes:
    op_at_hand: dict: `tf.Operation` of the small graph -> that of the one at
      hand.
    varying: set of (id of graph, name): the constants of the small graph, and
      of the functions in it, that have other values in the graph at hand.
    uniform: those of them that are one number throughout, the same in both.
    sizes: list of int: those of the first part in the graph at hand.
  """

  def __init__(self, sizes: Sequence[int]) -> None:
    self.sizes = sizes
    self.op_at_hand = {}
    self.varying = set()
    self.uniform = set()


def compare(small: Graph, at_hand: Graph) -> Twin | None:
  """Compares a graph on a few samples with the one at hand.

  Args:
    small: `Graph` on a few samples.
    at_hand: `Graph` of the same function.

  Returns:
    `Twin`, or None if they differ in more than the number of samples.
  """
  few = small.xs[0].shape.as_list()
  many = at_hand.xs[0].shape.as_list()
  twin = Twin(many)
  sizes = [(a, b) for a, b in zip(few, many) if a != b]
  reader = Reader(_resolved, fills=False)
  pairs = itertools.zip_longest(reader.read(small), reader.read(at_hand))
  return twin if all(_same(twin, a, b, sizes) for a, b in pairs) else None


def _resolved(tensor: Any, is_in_gradient: bool = False) -> Any:
  """A token of a captured Tensor: that of the outermost one it stands for."""
  while tf.is_symbolic_tensor(tensor):
    captures = getattr(tensor.graph, 'captures', ())
    outer = next((o for o, i in captures if i is tensor), None)
    if outer is None:
      return id(tensor.graph), tensor.name
    tensor = outer
  return id(tensor)


def _same(twin: Twin, a: Any, b: Any, sizes: Sequence) -> bool:
  """Compares what was read of two graphs; fills `twin`."""
  if not (isinstance(a, Node) and isinstance(b, Node)):
    return a == b and a[0] != NO_GRADIENT
  if (
    a.inputs != b.inputs
    or len(a.shapes) != len(b.shapes)
    or not all(same_shape(*pair, sizes) for pair in zip(a.shapes, b.shapes))
    or not (
      _same_constants(twin, a.op, b.op)
      if all(is_constant(node.op) for node in (a, b))
      else _same_attributes(a, b)
    )
  ):
    return False
  twin.op_at_hand[a.op] = b.op
  return True


def same_shape(few: tuple | None, many: tuple | None, sizes: Sequence) -> bool:
  """Whether two shapes are the same but for the numbers of samples.

  Args:
    few: `tuple` of int or None, or None.
    many: likewise.
    sizes: `list` of pairs of int: how many samples each dimension has.

  Returns:
    Whether each size is the same in both, or a multiple of some numbers of
    samples in one, and the same multiple of the other numbers in the other.
  """
  if few is None or many is None or len(few) != len(many):
    return few is None and many is None
  return all(a == b or _is_multiple(a, b, sizes) for a, b in zip(few, many))


def _is_multiple(a: int, b: int, sizes: Sequence) -> bool:
  if a is None or b is None:
    return False
  for subset in range(1, 2 ** len(sizes)):
    chosen = [s for k, s in enumerate(sizes) if subset >> k & 1]
    one = math.prod(s for s, _ in chosen)
    other = math.prod(s for _, s in chosen)
    if a % one == 0 and a // one * other == b:
      return True
  return False


def _same_constants(twin: Twin, a: tf.Operation, b: tf.Operation) -> bool:
  """Compares constants; of two fills, what they are filled from."""
  if is_fill(a):
    parts = zip(a.inputs, b.inputs)
    return a.type == b.type and all(
      _same_constants(twin, x.op, y.op) for x, y in parts
    )
  few, many = constant(a), constant(b)
  place, dtype = (id(a.graph), a.outputs[0].name), a.outputs[0].dtype
  if not np.array_equal(few, many, equal_nan=dtype.is_floating):
    twin.varying.add(place)
    if few.size and np.all(few == few.flat[0]) and np.all(many == few.flat[0]):
      twin.uniform.add(place)
  return dtype == b.outputs[0].dtype


def _same_attributes(a: Node, b: Node) -> bool:
  """Whether two ops are of one type, and told the same but for shapes."""
  few, many = (
    [kv for kv in node.attributes if kv[0] != 'shape'] for node in (a, b)
  )
  return a.op.type == b.op.type and few == many
