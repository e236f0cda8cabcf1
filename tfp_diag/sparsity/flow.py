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
"""How the elements of one tensor depend on another: one Jacobian's pattern."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from tfp_diag.internal import arguments
from tfp_diag.sparsity.dependency import Dependency
from tfp_diag.sparsity.pattern import as_matrix


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
  """The pattern of the Jacobian of one tensor with respect to another.

  A flow is a boolean matrix, outputs by inputs, stored in the cheapest form
  that fits: the outputs pick one input each (`Flow.gather`), the inputs are
  united in segments (`Flow.collect`), any matrix (`Flow.matrix`), or one flow
  after another (`first.then(second)`). `apply` finds forward what the outputs
  depend on, `pull` finds backward which inputs matter.

  Attributes:
    rows: The number of outputs.
    columns: The number of inputs.
    stages: `tuple` of (kind, data): matrices that are applied in order. For
      'gather' the data are the input of each output, -1 for none; for 'collect'
      the output of each input, -1 for none, and the number of outputs; for
      'matrix' a `Dependency` of outputs on inputs. No stage means the identity.

  Raises:
    ValueError: if `rows` or `columns` is not a number of elements. The
      constructors `gather`, `collect` and `pairs` also raise it for positions
      that are not there.

  #### Examples

  Each row of a [2, 3] matrix is summed, and the sums are swapped:

  ```python
  import numpy as np

  row_sums = Flow.collect(np.array([0, 0, 0, 1, 1, 1]), 2)
  swapped = row_sums.then(Flow.gather(np.array([1, 0]), 2))
  assert (swapped.rows, swapped.columns) == (2, 6)
  assert swapped.to_dependency().indices.tolist() == [3, 4, 5, 0, 1, 2]
  ```
  """

  rows: int
  columns: int
  stages: tuple = ()

  def __post_init__(self) -> None:
    for name in ('rows', 'columns'):
      object.__setattr__(self, name, _size(name, getattr(self, name)))

  @classmethod
  def identity(cls, size: int) -> 'Flow':
    """Every output is the input at the same place.

    Args:
      size: Python `int`, the number of outputs and of inputs.

    Returns:
      `Flow`.
    """
    size = _size('size', size)
    return cls(size, size)

  @classmethod
  def gather(cls, index: np.ndarray, columns: int) -> 'Flow':
    """Output `e` is input `index[e]`; -1 stands for none.

    Args:
      index: int array with one entry for each output.
      columns: Python `int`, the number of inputs.

    Returns:
      `Flow`.
    """
    index = _positions('index', index, _size('columns', columns))
    return cls(len(index), columns, (('gather', index),))

  @classmethod
  def collect(cls, segment: np.ndarray, rows: int) -> 'Flow':
    """Output `s` depends on all inputs `e` with `segment[e] == s`.

    Args:
      segment: int array with one entry for each input; -1 stands for none.
      rows: Python `int`, the number of outputs.

    Returns:
      `Flow`.
    """
    segment = _positions('segment', segment, _size('rows', rows))
    return cls(rows, len(segment), (('collect', (segment, rows)),))

  @classmethod
  def matrix(cls, matrix: Any) -> 'Flow':
    """From a boolean matrix of SciPy or NumPy, outputs by inputs.

    Args:
      matrix: SciPy sparse matrix or two-dimensional array.

    Returns:
      `Flow`.
    """
    matrix = as_matrix(matrix, 'matrix')
    dependency = Dependency.from_matrix(matrix)
    return cls(dependency.rows, matrix.shape[1], (('matrix', dependency),))

  @classmethod
  def pairs(
    cls, outputs: np.ndarray, inputs: np.ndarray, rows: int, columns: int
  ) -> 'Flow':
    """From int arrays: output `outputs[m]` depends on input `inputs[m]`.

    Args:
      outputs: int array, places among the outputs.
      inputs: int array of the same length, places among the inputs.
      rows: Python `int`, the number of outputs.
      columns: Python `int`, the number of inputs.

    Returns:
      `Flow`.
    """
    rows, columns = _size('rows', rows), _size('columns', columns)
    outputs = _positions('outputs', outputs, rows, least=0)
    inputs = _positions('inputs', inputs, columns, least=0)
    if len(outputs) != len(inputs):
      raise ValueError(
        f'`outputs` has {len(outputs)} entries, but `inputs` has {len(inputs)};'
        ' as pairs they must be equally long.'
      )
    matrix = scipy.sparse.coo_matrix(
      (np.ones(len(outputs), bool), (outputs, inputs)), shape=(rows, columns)
    )
    return cls.matrix(matrix.tocsr())

  @classmethod
  def dense(cls, rows: int, columns: int) -> 'Flow':
    """Every output depends on all inputs.

    Args:
      rows: Python `int`, the number of outputs.
      columns: Python `int`, the number of inputs.

    Returns:
      `Flow`.
    """
    rows, columns = _size('rows', rows), _size('columns', columns)
    everything = cls.collect(np.zeros(columns, np.int64), 1)
    return everything.then(cls.gather(np.zeros(rows, np.int64), 1))

  @classmethod
  def none(cls, rows: int, columns: int) -> 'Flow':
    """No output depends on any input.

    Args:
      rows: Python `int`, the number of outputs.
      columns: Python `int`, the number of inputs.

    Returns:
      `Flow`.
    """
    return cls.gather(np.full(_size('rows', rows), -1), columns)

  @property
  def is_selection(self) -> bool:
    """Whether each output is an input, or none."""
    return all(kind == 'gather' for kind, _ in self.stages)

  def then(self, other: 'Flow') -> 'Flow':
    """This flow followed by another one, as a single flow.

    Args:
      other: `Flow` whose inputs are the outputs of this one.

    Returns:
      `Flow` from the inputs of this one to the outputs of `other`.

    Raises:
      TypeError: if `other` is not a `Flow`.
      ValueError: if it does not have as many inputs as this one has outputs.
    """
    if not isinstance(other, Flow):
      raise TypeError(
        f'`other` is {arguments.shown(other)}; it is the `Flow` that follows, '
        'such as `Flow.dense(rows, columns)`.'
      )
    if other.columns != self.rows:
      raise ValueError(
        f'A flow of {self.rows} outputs cannot be followed by one that takes '
        f'{other.columns} inputs; the two numbers must be equal.'
      )
    return Flow(other.rows, self.columns, self.stages + other.stages)

  def transpose(self) -> 'Flow':
    """The flow from outputs to inputs."""
    stages = []
    for (kind, data), size in zip(self.stages, self._stage_columns()):
      if kind == 'gather':
        stages.append(('collect', (data, size)))
      elif kind == 'collect':
        stages.append(('gather', data[0]))
      else:
        stages.append(('matrix', data.transpose(size)))
    return Flow(self.columns, self.rows, tuple(reversed(stages)))

  def apply(
    self, dependency: Dependency, settle: Callable = lambda united: united
  ) -> Dependency:
    """The dependency of the outputs, from that of the inputs.

    Args:
      dependency: `Dependency` of `columns` rows.
      settle: Python callable from a `Dependency` to an equal one, applied after
        each stage that unites rows; see `Groups.settle`.

    Returns:
      `Dependency` of `rows` rows.
    """
    for kind, data in self.stages:
      if kind == 'gather':
        dependency = dependency.gather(data)
      elif kind == 'collect':
        dependency = settle(dependency.collect(*data))
      else:
        dependency = settle(dependency.multiply(data))
    return dependency

  def pull(self, alive: np.ndarray) -> np.ndarray:
    """Which inputs matter, given which outputs do.

    Args:
      alive: bool array with one entry for each output.

    Returns:
      bool array with one entry for each input.
    """
    sizes = self._stage_columns()
    for (kind, data), size in zip(reversed(self.stages), reversed(sizes)):
      if kind == 'collect':
        segment, _ = data
        alive = (segment >= 0) & alive[segment] if len(alive) else segment >= 0
        continue
      if kind == 'gather':
        reached = data[alive & (data >= 0)]
      else:
        reached = data.indices[np.repeat(alive, data.counts)]
      alive = np.zeros(size, bool)
      alive[reached] = True
    return alive

  def to_dependency(self) -> Dependency:
    """The flow as one explicit boolean matrix, outputs by inputs."""
    return self.apply(Dependency.identity(self.columns))

  def _stage_columns(self) -> list[int]:
    sizes = [self.columns]
    for kind, data in self.stages[:-1]:
      if kind == 'gather':
        sizes.append(len(data))
      elif kind == 'collect':
        sizes.append(data[1])
      else:
        sizes.append(data.rows)
    return sizes


def by_segments(segment: np.ndarray, index: np.ndarray, count: int) -> Flow:
  """Each output depends on all inputs of one segment.

  Args:
    segment: int array, the segment of each input; -1 for none.
    index: int array, that of each output.
    count: Python `int`, the number of segments.

  Returns:
    `Flow`.
  """
  return Flow.collect(segment, count).then(Flow.gather(index, count))


def by_blocks(count: int, columns: int, rows: int) -> Flow:
  """Each output depends on all inputs of its block, of `count` in a row."""
  return by_segments(block_of(columns, count), block_of(rows, count), count)


def to_some(flow: Flow, is_kept: np.ndarray) -> Flow:
  """The flow to some of its outputs, and none to the others.

  Args:
    flow: `Flow`.
    is_kept: Bool array with one entry for each output.

  Returns:
    `Flow`.
  """
  index = np.where(is_kept, np.arange(flow.rows), -1)
  return flow.then(Flow.gather(index, flow.rows))


def reaches_all(flow: Flow) -> bool:
  """Whether each output depends on some input."""
  every = np.ones(flow.columns, bool)
  return bool(np.all(flow.transpose().pull(every)))


def broadcast(shape: tuple, output_shape: tuple) -> Flow:
  """Element e of a result depends on the element of an argument at its place.

  Args:
    shape: Tuple of int, of the argument.
    output_shape: Tuple of int, to which the argument is broadcast.

  Returns:
    `Flow`.
  """
  if shape == output_shape:
    return Flow.identity(math.prod(shape))
  return _broadcast_differently(shape, output_shape)


@functools.lru_cache(256)
def _broadcast_differently(shape: tuple, output_shape: tuple) -> Flow:
  size = math.prod(shape)
  places = np.arange(size).reshape(shape)
  return Flow.gather(np.broadcast_to(places, output_shape), size)


def block_of(size: int, count: int) -> np.ndarray:
  """The number of the block of each of some elements; all are equally long."""
  return np.arange(size) // max(size // max(count, 1), 1)


def _size(name: str, given: Any) -> int:
  """Checks a number of elements, which may be too large for an int32."""
  if isinstance(given, np.integer):
    given = int(given)
  if type(given) is int and 0 <= given < 2**62:
    return given
  return arguments.as_count(name, given, 0, 'how many elements there are')


def _positions(name: str, given: Any, size: int, least: int = -1) -> np.ndarray:
  """Checks a vector of positions among `size` elements; -1 stands for none."""
  try:
    found = np.asarray(given)
    if found.size and found.dtype.kind not in 'iu':
      raise TypeError('no integers')
  except (TypeError, ValueError) as e:
    raise ValueError(
      f'`{name}` is {arguments.shown(given)}; it is a vector of integers, each '
      'the number of an element.'
    ) from e
  found = found.astype(np.int64).reshape(-1)
  if found.size and not least <= found.min() <= found.max() < size:
    raise ValueError(
      f'`{name}` has numbers from {found.min()} to {found.max()}, but there '
      f'are {size} elements, counted from 0.'
    )
  return found
