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
  MAX_DEPTH,
  Graph,
  Node,
  function_graph,
  gradient_of,
  has_own_gradient,
  nodes,
)
from tfp_diag.sparsity.op_view import MAX_INTEGERS
from tfp_diag.sparsity.registry import facts

__all__ = ['Twin', 'compare', 'few_samples']

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
  integers = {k for k in avoided if k > 1}
  _collect_integers(graph.graph, graph.ops, integers, set())
  free = [p for p in _PRIMES if all(k % p for k in integers)]
  return tuple(free[:rank]) if len(free) >= rank else None


def _collect_integers(
  graph: Any, ops: Sequence, integers: set, seen: set
) -> None:
  for op in ops:
    if facts(op.type).is_constant and op.outputs[0].dtype.is_integer:
      size = op.outputs[0].shape.num_elements()
      if size is not None and size <= MAX_INTEGERS:
        values = tf.make_ndarray(op.get_attr('value'))
        integers.update(abs(int(k)) for k in values.flat)
    for name in _distances(op.op_def):
      given = op.get_attr(name)
      listed = given if isinstance(given, (list, tuple)) else [given]
      integers.update(abs(k) for k in listed)
    for name in _called(op):
      if name not in seen:
        seen.add(name)
        body = function_graph(graph, name)
        _collect_integers(body, body.get_operations(), integers, seen)
  integers -= {0, 1}


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


def _called(op: tf.Operation) -> list[str]:
  names = []
  for attr in op.op_def.attr:
    if attr.type == 'func':
      names.append(op.get_attr(attr.name).name)
    elif attr.type == 'list(func)':
      names += [f.name for f in op.get_attr(attr.name)]
  return names


class Twin:
  """How two graphs of one function, on different numbers of samples, relate.

  Attributes:
    op_at_hand: dict: `tf.Operation` of the small graph -> that of the one at
      hand.
    varying: set of (id of graph, name): the constants of the small graph, and
      of the functions in it, that have other values in the graph at hand.
    uniform: those of them that are one number throughout, the same in both.
  """

  def __init__(self) -> None:
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
  twin = Twin()
  few = small.xs[0].shape.as_list()
  many = at_hand.xs[0].shape.as_list()
  sizes = [(a, b) for a, b in zip(few, many) if a != b]
  tokens = tuple(
    {x.name: ('x', i) for i, x in enumerate(graph.xs)}
    for graph in (small, at_hand)
  )
  graphs = (small.graph, at_hand.graph)
  outside = (_resolved, _resolved)
  if not _same(
    twin, graphs, (small.ops, at_hand.ops), tokens, outside, sizes, 0
  ):
    return None
  same = _tokens_of(tokens[0], small.ys) == _tokens_of(tokens[1], at_hand.ys)
  return twin if same else None


def _resolved(tensor: Any) -> Any:
  """A token of a captured Tensor: that of the outermost one it stands for."""
  while tf.is_symbolic_tensor(tensor):
    captures = getattr(tensor.graph, 'captures', ())
    outer = next((o for o, i in captures if i is tensor), None)
    if outer is None:
      return id(tensor.graph), tensor.name
    tensor = outer
  return id(tensor)


def _tokens_of(tokens: dict, tensors: Sequence) -> list:
  return [None if t is None else tokens.get(t.name) for t in tensors]


def _same(
  twin: Twin,
  graphs: Sequence,
  ops: Sequence,
  tokens: Sequence,
  outside: Sequence,
  sizes: Sequence,
  depth: int,
) -> bool:
  """Compares two lists of ops; fills `twin` and `tokens`."""
  pairs = itertools.zip_longest(
    *(nodes(*each) for each in zip(graphs, ops, tokens, outside))
  )
  for a, b in pairs:
    if (
      a is None
      or b is None
      or a.op.type != b.op.type
      or a.inputs != b.inputs
      or not _same_shapes(a.shapes, b.shapes, sizes)
      or not _same_attributes(twin, a, b, graphs[0])
      or len(a.functions) != len(b.functions)
    ):
      return False
    twin.op_at_hand[a.op] = b.op
    for names in zip(a.functions, b.functions):
      if not _same_functions(twin, graphs, names, sizes, depth):
        return False
    if has_own_gradient(a.op) and depth < MAX_DEPTH:
      if not _same_gradients(twin, (a.op, b.op), tokens, outside, sizes, depth):
        return False
  return True


def _same_functions(
  twin: Twin, graphs: Sequence, names: Sequence, sizes: Sequence, depth: int
) -> bool:
  bodies = [function_graph(g, name) for g, name in zip(graphs, names)]
  tokens = tuple(
    {t.name: ('in', k) for k, t in enumerate(body.inputs)} for body in bodies
  )
  ops = [body.get_operations() for body in bodies]
  outside = (_resolved, _resolved)
  return _same(twin, bodies, ops, tokens, outside, sizes, depth) and _tokens_of(
    tokens[0], bodies[0].outputs
  ) == _tokens_of(tokens[1], bodies[1].outputs)


def _same_gradients(
  twin: Twin,
  ops: Sequence,
  tokens: Sequence,
  outside: Sequence,
  sizes: Sequence,
  depth: int,
) -> bool:
  try:
    gradients = [gradient_of(op) for op in ops]
  except Exception:  # The user's code; it raises again where it is needed.
    return False

  def within(names, further):
    def outside(tensor):
      known = None
      if tf.is_symbolic_tensor(tensor):
        known = names.get(tensor.name)
      return further(tensor) if known is None else known

    return outside

  graphs = [gradient.graph for gradient in gradients]
  inner = tuple(gradient.tokens() for gradient in gradients)
  beyond = [within(*each) for each in zip(tokens, outside)]
  every = [graph.get_operations() for graph in graphs]
  return _same(
    twin, graphs, every, inner, beyond, sizes, depth + 1
  ) and _tokens_of(inner[0], gradients[0].results) == _tokens_of(
    inner[1], gradients[1].results
  )


def _same_shapes(few: Sequence, many: Sequence, sizes: Sequence) -> bool:
  return len(few) == len(many) and all(
    same_shape(a, b, sizes) for a, b in zip(few, many)
  )


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


def _same_attributes(twin: Twin, a: Node, b: Node, graph: Any) -> bool:
  if facts(a.op.type).is_constant:
    few, many = (tf.make_ndarray(n.op.get_attr('value')) for n in (a, b))
    place, dtype = (id(graph), a.op.outputs[0].name), a.op.outputs[0].dtype
    if not np.array_equal(few, many, equal_nan=dtype.is_floating):
      twin.varying.add(place)
      if (
        few.size and np.all(few == few.flat[0]) and np.all(many == few.flat[0])
      ):
        twin.uniform.add(place)
    return dtype == b.op.outputs[0].dtype
  return [kv for kv in a.attributes if kv[0] != 'shape'] == [
    kv for kv in b.attributes if kv[0] != 'shape'
  ]
