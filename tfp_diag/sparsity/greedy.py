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
"""Greedy coloring of a graph, in several orders, and of rings in arcs."""

import functools
import heapq

import numpy as np

from tfp_diag.sparsity.dependency import Csr

# How many nodes are read from the graph at a time.
_BLOCK = 1 << 16


def color_greedily(
  graph: Csr,
  labels: np.ndarray,
  nodes: np.ndarray,
  floor: int,
) -> np.ndarray:
  """Colors components in several orders and keeps the best for each.

  Greedy coloring of a node looks at its neighbors only, so all components can
  go through one loop and still be colored each by itself.

  Args:
    graph: Interference graph, CSR, n x n.
    labels: int array, `[n]`: the component of each node.
    nodes: int array: the nodes to color, in natural order; whole components.
    floor: Python `int`: with this number of colors, or fewer, a component is
      good enough, since the whole graph is known to need this many.

  Returns:
    colors: int array, `[n]`, valid at `nodes` only.
  """
  colors = np.zeros(graph.shape[0], np.int32)
  best = np.full(labels.max() + 1, np.iinfo(np.int32).max)
  for color_in_order in (
    _color_in_order,
    functools.partial(_color_in_arcs, labels=labels),
    _color_largest_first,
    _color_smallest_last,
    _color_most_saturated_first,
  ):
    attempt = color_in_order(graph, nodes)
    count = np.zeros_like(best)
    np.maximum.at(count, labels[nodes], attempt[nodes] + 1)
    better = nodes[(count < best)[labels[nodes]]]
    colors[better] = attempt[better]
    best[labels[nodes]] = np.minimum(best, count)[labels[nodes]]

    # Only what is above the floor can still lower the number of colors. The
    # component with the most colors is the one that may raise the floor.
    worst = nodes[np.argmax(best[labels[nodes]])]
    members = nodes[labels[nodes] == labels[worst]]
    floor = max(floor, _clique_size(graph, members))
    nodes = nodes[best[labels[nodes]] > floor]
    if len(nodes) == 0:
      break
  return colors


def _neighbors(graph: Csr, node: int) -> np.ndarray:
  return graph.indices[graph.indptr[node] : graph.indptr[node + 1]]


def _clique_size(graph: Csr, members: np.ndarray) -> int:
  """The size of one clique: grown from the nodes of largest degree."""
  degrees = np.diff(graph.indptr)
  marked = np.zeros(graph.shape[0], bool)
  size = 0
  candidates = members
  while len(candidates):
    neighbors = _neighbors(graph, candidates[np.argmax(degrees[candidates])])
    marked[neighbors] = True
    candidates = candidates[marked[candidates]]
    marked[neighbors] = False
    size += 1
  return size


def _color_in_arcs(
  graph: Csr, nodes: np.ndarray, labels: np.ndarray
) -> np.ndarray:
  """Cuts each component, as a ring of its nodes, into arcs of about one length.

  If neighbors are at most r places apart around the ring, nodes that come at
  the same place of arcs of r + 1 nodes or more are none. A periodic stencil is
  an example: in natural order the last arc, which is not full, would share few
  colors with the first one.
  """
  _, component = np.unique(labels[nodes], return_inverse=True)
  sizes = np.bincount(component)
  place = np.zeros(graph.shape[0], np.int64)
  place[nodes] = rank_within(component, sizes)
  rows = graph[nodes]
  counts = np.diff(rows.indptr)
  apart = np.abs(place[rows.indices] - np.repeat(place[nodes], counts))
  around = np.minimum(apart, np.repeat(sizes[component], counts) - apart)
  reach = np.zeros(len(sizes), np.int64)
  np.maximum.at(reach, np.repeat(component, counts), around)
  size, arcs = sizes[component], (sizes // (reach + 1))[component]
  arc = place[nodes] * arcs // size
  colors = np.zeros(graph.shape[0], np.int32)
  colors[nodes] = place[nodes] - -(-arc * size // arcs)
  return colors


def rank_within(labels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """Counts the nodes of each component: 0, 1, ..., in natural order."""
  by_component = np.argsort(labels, kind='stable')
  first = np.cumsum(sizes) - sizes
  rank = np.empty(len(labels), np.int32)
  rank[by_component] = np.arange(len(labels)) - np.repeat(first, sizes)
  return rank


def _color_largest_first(graph: Csr, nodes: np.ndarray) -> np.ndarray:
  return _color_in_order(graph, _largest_first(graph, nodes))


def _largest_first(graph: Csr, nodes: np.ndarray) -> np.ndarray:
  """Sorts `nodes` by falling degree, and equal ones in natural order."""
  return nodes[np.argsort(-np.diff(graph.indptr)[nodes], kind='stable')]


def _color_smallest_last(graph: Csr, nodes: np.ndarray) -> np.ndarray:
  """Colors last the node of smallest degree, and so on in the other nodes."""
  degrees = np.diff(graph.indptr).tolist()
  buckets = [[] for _ in range(max(degrees) + 1)]
  for node in nodes.tolist():
    buckets[degrees[node]].append(node)
  removed = [False] * graph.shape[0]
  order = []
  smallest = 0
  while len(order) < len(nodes):
    while not buckets[smallest]:
      smallest += 1
    node = buckets[smallest].pop()
    # A node whose degree fell is in several buckets; the lowest comes first.
    if removed[node]:
      continue
    removed[node] = True
    order.append(node)
    for neighbor in _neighbors(graph, node).tolist():
      if not removed[neighbor]:
        degrees[neighbor] -= 1
        buckets[degrees[neighbor]].append(neighbor)
    smallest = max(smallest - 1, 0)
  return _color_in_order(graph, np.array(order[::-1]))


def _color_in_order(graph: Csr, order: np.ndarray) -> np.ndarray:
  """Gives each node in turn the first color that no neighbor has."""
  colors = np.full(graph.shape[0], -1, np.int32)
  for start in range(0, len(order), _BLOCK):
    block = order[start : start + _BLOCK]
    rows = graph[block]
    is_in_block = np.zeros(graph.shape[0], bool)
    is_in_block[block] = True
    inner = rows[:, is_in_block].indptr
    # Nodes that wait for no other one of the block go together.
    is_free = inner[1:] == inner[:-1]
    colors[block[is_free]] = _first_left(rows[is_free], colors)
    block, rows = block[~is_free], rows[~is_free]
    _color_one_by_one(rows, block, colors)
  return colors


def _first_left(rows: Csr, colors: np.ndarray) -> np.ndarray:
  """The first color that no neighbor has, for each of some rows."""
  size = int(colors.max(initial=-1)) + 2
  taken = colors[rows.indices]
  row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
  keys = np.unique((row * size + taken)[taken >= 0])
  row, taken = np.divmod(keys, size)
  starts = np.searchsorted(row, np.arange(rows.shape[0]))
  # Sorted, and each once: the first ones are 0, 1, 2, … up to the first gap.
  in_turn = row[taken == np.arange(len(keys)) - starts[row]]
  return np.bincount(in_turn, minlength=rows.shape[0])


def _color_one_by_one(rows: Csr, nodes: np.ndarray, colors: np.ndarray) -> None:
  """Colors nodes in turn; `colors` is changed."""
  # Element by element, lists are several times as fast as arrays.
  neighbors, stops = rows.indices.tolist(), rows.indptr.tolist()
  before = colors[rows.indices].tolist()
  new = {}
  for node, first, stop in zip(nodes.tolist(), stops, stops[1:]):
    taken = set(map(new.get, neighbors[first:stop], before[first:stop]))
    color = 0
    while color in taken:
      color += 1
    new[node] = color
  colors[nodes] = list(new.values())


def _color_most_saturated_first(graph: Csr, nodes: np.ndarray) -> np.ndarray:
  """Colors next the node with most colors around it; ties go by degree."""
  order = _largest_first(graph, nodes).tolist()
  n = len(order)
  rank = [0] * graph.shape[0]
  for position, node in enumerate(order):
    rank[node] = position
  # A heap of ints, smallest first: the place in `order`, less n for each color
  # among its neighbors. An entry is not removed when a better one is pushed;
  # by the time it comes up, its node has a color.
  heap = list(range(n))
  seen = [0] * graph.shape[0]  # Bit k: a neighbor has color k.
  colors = [-1] * graph.shape[0]
  while heap:
    node = order[heapq.heappop(heap) % n]
    if colors[node] >= 0:
      continue
    bit = ~seen[node] & (seen[node] + 1)  # The lowest bit that is not set.
    colors[node] = bit.bit_length() - 1
    for neighbor in _neighbors(graph, node).tolist():
      if colors[neighbor] < 0 and not seen[neighbor] & bit:
        seen[neighbor] |= bit
        heapq.heappush(heap, rank[neighbor] - n * seen[neighbor].bit_count())
  return np.array(colors, np.int32)
