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
"""The decision how to compute one diagonal, as a value."""

import dataclasses
import functools
import json
import math
import os
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfp_diag.diagonal import evaluate, sweep
from tfp_diag.diagonal.decide import Decision
from tfp_diag.diagonal.linear_map import (
  again_with_tapes,
  may_be_recorded,
  without_xla,
)
from tfp_diag.diagonal.planning import try_out
from tfp_diag.diagonal.request import Mode, Request
from tfp_diag.internal import arguments, batching, nest
from tfp_diag.internal.atomic_write import atomic_write
from tfp_diag.internal.not_converted import not_converted
from tfp_diag.internal.problem import (
  HessianProblem,
  JacobianProblem,
  PlanKind,
  Problem,
)
from tfp_diag.internal.text_table import as_html
from tfp_diag.sparsity.budget import NoStructureError
from tfp_diag.sparsity.coloring import Coloring
from tfp_diag.sparsity.graph import Graph
from tfp_diag.sparsity.pattern import SparsityPattern, as_pattern
from tfp_diag.sparsity.registry import has_rule

__all__ = [
  'Plan',
  'Way',
  'check_plan',
  'check_request',
  'load_plan',
  'make_plan',
  'run_request',
]

# Raised when the meaning of what is saved changes.
_FORMAT = 3
# The fields that are saved as they are.
_SAVED = (
  *('kind', 'mode', 'schedule', 'chunk_size', 'jit_compile', 'sample_rank'),
  *('num_samples', 'is_given'),
)
_LISTS_OF_STR = ('notes', 'fallback_ops', 'pattern_notes')
PlanMode = Mode | Literal['forward_over_reverse', 'reverse_over_reverse']
_MODE_NAMES: dict[PlanKind, dict[Mode, PlanMode]] = {
  'jacobian': {'forward': 'forward', 'reverse': 'reverse', 'auto': 'auto'},
  'hessian': {
    'forward': 'forward_over_reverse',
    'reverse': 'reverse_over_reverse',
    'auto': 'auto',
  },
}
_MODE_NAMES['gauss_newton'] = _MODE_NAMES['hessian']
_NAMES = {
  'jacobian': 'Jacobian',
  'hessian': 'Hessian',
  'gauss_newton': 'Gauss-Newton matrix',
}
_PASSES = 'passes'
# From here on the price of passes, in passes, is said beside their number.
_MUCH_MORE = 2.5


class Way(NamedTuple):
  """One way to a diagonal, as it was proposed.

  Attributes:
    name: Python str.
    num_passes: Python int.
    cost: Python float: the estimate, in passes.
  """

  name: str
  num_passes: int
  cost: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
  """How the diagonal of one function is computed, and why.

  Made by `tfp_diag.plan_diag_jacobian`, `tfp_diag.plan_diag_hessian`,
  `tfp_diag.plan_diag_gauss_newton` and `tfp_diag.load_plan`. It is valid for
  every batch of samples whose parts have the event shapes that it was made for.
  `print(plan)` shows it, with the cost of each way that is possible.

  A plan is compared with the function wherever it is used. A function is
  refused if its derivative can be nonzero where `pattern` has a zero. A
  RuntimeWarning says what runs instead if `ways[0]` cannot be followed. A
  pattern that the caller gave is not checked.

  Attributes:
    kind: 'jacobian', 'hessian' or 'gauss_newton'.
    colors: int32 array, the color of each coordinate, parts in order.
      Coordinates of one color share a pass.
    pattern: `tfp_diag.sparsity.SparsityPattern`, which derivatives can be
      nonzero.
    mode: Python str, a `mode` of `diag_jacobian` or `diag_hessian`.
    schedule: Python str, a `schedule` of these.
    chunk_size: Python int, how many passes run together where the schedule is
      'pfor'.
    sample_rank: Python int, the number of sample dimensions.
    event_shapes: Tuple of tuples of int, one per part.
    notes: Tuple of sentences: what blocked a cheaper plan, and what to do.
    fn: The function, or None in a plan that was loaded without one.
    jit_compile: Python bool, whether `plan(xs)` is compiled with XLA.
    ways: Tuple of the possible ways, the cheapest first, which is the one that
      runs. Each has a `name`, `num_passes`, and a `cost` in passes.
    digest: `bytes` that identify the function at the shapes of the plan; empty
      if its structure depends on values that it closes over.
    num_samples: Python int, the number of samples for which `num_passes` holds.
    is_given: Python bool, whether the caller gave the pattern, which is then
      not checked.

  #### Examples

  ```python
  plan = tfp_diag.plan_diag_hessian(
    lambda x: -tf.reduce_sum(x**4, axis=-1), tf.TensorSpec([None, 100])
  )
  plan.num_coordinates, plan.num_passes  # ==> (100, 1)
  value, gradient, diag = plan(tf.ones([2, 100]))
  diag[:, 0]  # ==> [-12., -12.]
  ```
  """

  kind: PlanKind
  colors: np.ndarray
  pattern: SparsityPattern
  mode: PlanMode
  schedule: sweep.Schedule
  chunk_size: int
  sample_rank: int
  event_shapes: tuple
  notes: tuple = ()
  fn: Any = None
  jit_compile: bool = False
  ways: tuple = ()
  digest: bytes = b''
  num_samples: int = 1
  is_given: bool = False

  def __post_init__(self) -> None:
    colors = np.array(Coloring(self.colors).colors)
    colors.flags.writeable = False
    object.__setattr__(self, 'colors', colors)
    self._check()
    # One for `plan(xs)`, so that a hundred calls trace once.
    object.__setattr__(self, '_functions', {})
    object.__setattr__(self, '_clash', None)

  def _check(self) -> None:
    """Raises if a field is not what it can be."""
    arguments.check_choice('kind', self.kind, tuple(_MODE_NAMES))
    modes = tuple(v for k, v in _MODE_NAMES[self.kind].items() if k != 'auto')
    arguments.check_choice('mode', self.mode, modes)
    arguments.check_choice(
      'schedule', self.schedule, ('unrolled', 'pfor', 'while_loop')
    )
    for name, least in (('chunk_size', 1), ('sample_rank', 0)):
      arguments.as_count(name, getattr(self, name), least)
    arguments.as_count('num_samples', self.num_samples)
    arguments.check_flag('jit_compile', self.jit_compile)
    arguments.check_flag('is_given', self.is_given)
    arguments.as_names('notes', self.notes)
    if self.fn is not None:
      arguments.check_callable('fn', self.fn)
    n = self.colors.size
    if not isinstance(self.pattern, SparsityPattern) or (
      self.pattern.shape != (n, n)
    ):
      raise ValueError(
        f'`pattern` is {arguments.shown(self.pattern)}; it is a '
        f'`SparsityPattern` of {n} x {n} coordinates, one for each of `colors`.'
      )
    try:
      sizes = [math.prod(shape) for shape in self.event_shapes]
      total = sum(sizes)
    except TypeError:
      total = -1
    if total != n:
      raise ValueError(
        f'`event_shapes` is {arguments.shown(self.event_shapes)}; it lists the '
        f'event shape of each part, {n} coordinates in all, as ((3,), (2, 4)).'
      )

  def __getstate__(self) -> dict:
    """What is copied and pickled: compiled functions are made again."""
    return {**self.__dict__, '_functions': {}}

  @property
  def num_coordinates(self) -> int:
    """How many coordinates one sample has."""
    return self.colors.size

  @property
  def coloring(self) -> Coloring:
    """The colors as a `tfp_diag.sparsity.Coloring`, for `pattern.spy`."""
    return Coloring(self.colors)

  @property
  def num_passes(self) -> int:
    """How many passes run for a diagonal, for all samples together.

    What they cost, with all that is computed beside them, is the `cost` of
    `ways[0]`, in passes.

    If the number depends on the number of samples, it is that for
    `num_samples`: 32 if the number of samples was open.
    """
    return self.ways[0].num_passes if self.ways else self.num_colors

  @property
  def num_colors(self) -> int:
    """How many colors there are."""
    return sweep.num_colors(self.colors)

  @property
  def uses_terms(self) -> bool:
    """Whether a way that is cheaper than a pass for each color runs."""
    return bool(self.ways) and self.ways[0].name != _PASSES

  @property
  def how(self) -> str:
    """What runs, in a few words."""
    if self.uses_terms:
      return self.ways[0].name
    return {
      'unrolled': 'written out one after the other',
      'pfor': f'vectorized, {self.chunk_size} at a time',
      'while_loop': 'one after the other in a loop',
    }.get(self.schedule, self.schedule)

  @not_converted
  @again_with_tapes
  def __call__(self, xs: Any) -> tuple:
    """Runs the plan, as one `tf.function` that traces once per shape.

    Changes of Python state after that have no effect. `tf.Variable`s are read
    in each call.

    Args:
      xs: The state, as for the function that made the plan.

    Returns:
      `(ys, diag)` or `(value, gradient, diag)`, as `tfp_diag.diag_jacobian` or
      `tfp_diag.diag_hessian` return them.

    Raises:
      ValueError: if `xs` do not fit; if the plan was loaded without `fn`; if
        the derivative of `fn` can be nonzero where the plan has a zero.
    """
    if self.fn is None:
      raise ValueError(
        'This plan was loaded without its function. Pass it to '
        f'`tfp_diag.diag_{self.kind}(..., plan=plan)`, or load it with '
        '`tfp_diag.load_plan(path, fn=fn)`.'
      )
    if self.kind == 'gauss_newton':
      raise ValueError(
        'This plan does not hold the weights of the residuals. Pass it to '
        '`tfp_diag.diag_gauss_newton(residual_fn, xs, weights, plan=plan)`.'
      )
    # XLA may compile the graph that calls it, and with it what is called.
    is_own = tf.executing_eagerly() and not (
      self.jit_compile or (self.schedule == 'pfor' and may_be_recorded())
    )
    function = self._functions.get(is_own)
    if function is None:
      function = tf.function(
        # TensorFlow counts how often bound methods are traced for all objects
        # together, and warns.
        functools.partial(self._run, is_own),
        autograph=False,
        jit_compile=self.jit_compile or None,
      )
      self._functions[is_own] = function
    # As Tensors, and checked: a graph for open shapes takes what does not fit.
    problem = self._problem(xs)
    problem.check_values()
    return function(problem.pack(problem.parts))

  def _problem(self, xs: Any) -> Problem:
    self.check_colors()
    # Before the function, to which too few parts would be too few arguments.
    self.check(self.kind, batching.convert_parts(nest.flatten(xs)), None)
    if self.kind == 'hessian':
      return self.fitted(HessianProblem(self.fn, xs))
    if not isinstance(xs, (list, tuple)):
      xs = [xs]
    return self.fitted(JacobianProblem(self.fn, xs))

  def _run(self, is_own: bool, xs: Any) -> tuple:
    problem = self._problem(xs)
    with without_xla(is_own):
      found = evaluate.run_diagonal(problem, Request(plan=self))
    if self.kind == 'jacobian':
      return found.result, found.diag
    return (
      found.result[0],
      problem.pack(found.gradient),
      problem.pack(found.diag),
    )

  def check_colors(self) -> None:
    """Raises a ValueError if passes with these colors are not exact."""
    if self._clash is None:
      clash = _clash(self.colors, self.pattern.matrix)
      object.__setattr__(self, '_clash', clash)
    if self._clash:
      i, j = self._clash
      raise ValueError(
        f'`plan` has one color for coordinates {i} and {j}, which interact: '
        'the diagonal would not be exact. Make a plan with '
        f'`tfp_diag.plan_diag_{self.kind}`; only the estimates, '
        '`tfp_diag.stochastic_diag_jacobian` and '
        '`tfp_diag.stochastic_diag_hessian`, take such colors.'
      )

  def fitted(self, problem: Problem) -> Problem:
    """Sets the shapes of a problem to those that the plan knows.

    Args:
      problem: `Problem`. It is changed: `rank` becomes that of the plan, and
        parts of open event shapes get the static ones.

    Returns:
      The same `Problem`.

    Raises:
      ValueError: If the plan was made for something else.
    """
    self.check(problem.plan_kind, problem.parts, problem.rank)
    problem.rank = self.sample_rank
    problem.parts = [
      p
      if p.shape[self.sample_rank :].is_fully_defined() or not tf.is_tensor(p)
      else tf.ensure_shape(
        p, p.shape[: self.sample_rank].concatenate(list(event))
      )
      for p, event in zip(problem.parts, self.event_shapes)
    ]
    return problem

  def __str__(self) -> str:
    n, k, nnz = self.num_coordinates, self.num_passes, self.pattern.nnz
    cost = f'{k:,} {"pass" if k == 1 else "passes"}'
    if k < n:
      cost += f' instead of {n:,}'
    if self.ways and (
      # What goes along with few sweeps may be much, and small pieces little.
      self.ways[0].cost > _MUCH_MORE * k
      or (k >= n and round(self.ways[0].cost) < k)
    ):
      cost += f', which cost as much as {self.ways[0].cost:,.0f}'
    shapes = ', '.join(str(list(s)) for s in self.event_shapes)
    samples = {
      0: 'everything is event',
      1: 'for samples of shape [B]',
    }.get(self.sample_rank, f'{self.sample_rank} sample dimensions')
    lines = [
      f'Plan for a diagonal {_NAMES[self.kind]}: {cost}',
      f'  coordinates  {n:,}, of event shape {shapes}; {samples}',
      f'  pattern      {nnz:,} nonzeros, {nnz / max(n, 1):.1f} per coordinate',
      f'  passes       {self.mode}, {self.how}',
    ]
    if len(self.ways) > 1:
      others = ', '.join(f'{w.name} {w.cost:,.3g}' for w in self.ways)
      lines.append(f'  cost         in passes: {others}')
    lines += [f'  note         {note}' for note in self.notes]
    return '\n'.join(lines)

  def _repr_html_(self) -> str:
    return as_html(str(self))

  def __repr__(self) -> str:
    return (
      f'<Plan kind={self.kind!r} num_passes={self.num_passes} '
      f'num_coordinates={self.num_coordinates} mode={self.mode!r} '
      f'schedule={self.schedule!r}>'
    )

  def check(self, kind: str, xs: Sequence, sample_rank: int | None) -> None:
    """Raises a ValueError if the plan is for something else.

    Args:
      kind: Python str, what is computed, as `Plan.kind`.
      xs: List of Tensors, the parts, of shapes `sample_shape + event_shape_i`.
      sample_rank: Python int, the number of sample dimensions, or None: any.
    """
    if kind != self.kind:
      raise ValueError(
        f'`plan` is for a diagonal {_NAMES[self.kind]}, not for a '
        f'diagonal {_NAMES[kind]}. Make one with '
        f'`tfp_diag.plan_diag_{kind}`.'
      )
    if sample_rank is not None and sample_rank != self.sample_rank:
      raise ValueError(
        f'`plan` was made for {self.sample_rank} sample dimensions, but '
        f'`sample_shape` has {sample_rank}. Plan again with this one.'
      )
    shapes = [x.shape[self.sample_rank :] for x in xs]
    planned = [tf.TensorShape(s) for s in self.event_shapes]
    fits = len(shapes) == len(planned) and all(
      s.is_compatible_with(p) for s, p in zip(shapes, planned)
    )
    if not fits:
      given = [x.shape for x in xs]
      rank = self.sample_rank
      raise ValueError(
        '`plan` was made for parts of event shapes '
        f'{", ".join(map(str, planned))}, but `xs` have the shapes '
        f'{", ".join(map(str, given))}, whose event shapes, after {rank} '
        f'sample dimension{"" if rank == 1 else "s"}, are '
        f'{", ".join(map(str, shapes))}. Plan again for these.'
      )

  def choose_mode(self, mode: Mode) -> Mode:
    """The mode that a caller asks for, or, for 'auto', the plan's."""
    if mode != 'auto':
      return mode
    return next(k for k, v in _MODE_NAMES[self.kind].items() if v == self.mode)

  def needs_analysis(self, graph: Graph) -> bool:
    """Whether a graph has to be analyzed before the plan can be followed.

    This is not necessary if the caller gave the pattern, or if the graph has
    the digest of the plan and only passes run. Terms are found by an analysis.

    Args:
      graph: `Graph` of the function.

    Returns:
      Python bool.
    """
    return not self.is_given and (self.uses_terms or not self.is_of(graph))

  def is_of(self, graph: Graph) -> bool:
    """Whether a graph is known to be the one that the plan was made of."""
    return graph.digest.key == self.digest

  def check_pattern(self, found: SparsityPattern) -> None:
    """Raises a ValueError if a function has entries that the plan lacks.

    Nothing is checked if the caller gave the pattern of the plan.

    Args:
      found: `SparsityPattern` of the function, of the shape of `pattern`.
    """
    if self.is_given:
      return
    known = self.pattern.matrix.astype(np.int8)
    extra = (found.matrix.astype(np.int8) - known) > 0
    if extra.nnz:
      row, column = (int(k[0]) for k in extra.nonzero())
      raise ValueError(
        '`plan` was made for another function: here the derivative can be '
        f'nonzero at {extra.nnz:,} places where the plan has none, the first '
        f'at row {row} and column {column}. `fn`, or something that it closes '
        'over, has changed since. Plan again.'
      )

  def save(self, path: str | os.PathLike) -> None:
    """Writes the plan, without its function, to an `.npz` file.

    No op is named in it: what is cheaper than passes is found again in the
    graph of `fn`. The file is complete or not there: it is written beside
    `path` and moved.

    Args:
      path: Python str or path of the file.

    Raises:
      OSError: if the file cannot be written.
    """
    arguments.check_file('path', path, to_write=True)
    meta = {
      'format': _FORMAT,
      **{name: getattr(self, name) for name in _SAVED},
      'event_shapes': [list(s) for s in self.event_shapes],
      'notes': list(self.notes),
      'fallback_ops': list(self.pattern.fallback_ops),
      'pattern_notes': list(self.pattern.notes),
      'ways': [list(way) for way in self.ways],
      'digest': self.digest.hex(),
    }
    with atomic_write(path) as f:
      np.savez_compressed(
        f,
        meta=np.array(json.dumps(meta)),
        colors=self.colors,
        indptr=self.pattern.matrix.indptr,
        indices=self.pattern.matrix.indices,
      )


def check_plan(
  plan: Plan | None, problem: Problem, is_exact: bool = True
) -> None:
  """Raises if a plan is not one, or was made for something else.

  Args:
    plan: What a caller passed, or None.
    problem: `Problem`, which gets the shapes that the plan knows.
    is_exact: Whether the diagonal is to be exact, which not all colors give.

  Raises:
    TypeError: if `plan` is neither a `Plan` nor None.
    ValueError: if it was made for another kind of diagonal or other shapes.
  """
  if plan is None:
    return
  if not isinstance(plan, Plan):
    raise TypeError(
      f'`plan` is {plan!r}, which is not a plan. Pass what '
      f'`tfp_diag.plan_diag_{problem.plan_kind}` or `tfp_diag.load_plan` '
      'returned, or None.'
    )
  if is_exact:
    plan.check_colors()
  plan.fitted(problem)


def check_request(
  problem: Problem, request: Request, sample_shape: Any
) -> None:
  """Raises if a plan does not fit; stores what is to be checked at run time."""
  check_plan(request.plan, problem)
  if request.validate:
    problem.promise(sample_shape)


def run_request(
  problem: Problem, request: Request, sample_shape: Any
) -> evaluate.Diagonal:
  """The diagonal that a call asks for.

  Args:
    problem: `Problem`.
    request: `Request`.
    sample_shape: As the caller gave it.

  Returns:
    `Diagonal`.
  """
  check_request(problem, request, sample_shape)
  plan = request.plan
  return evaluate.run_diagonal(
    problem, request, plan is not None and plan.jit_compile
  )


def load_plan(path: str | os.PathLike, fn: Callable | None = None) -> Plan:
  """Reads a plan that `plan.save(path)` has written.

  Args:
    path: Python str or path of the file.
    fn: Python callable, the function that the plan was made for. Only needed
      for `plan(xs)`. A function whose derivative can be nonzero where the plan
      has a zero is refused when the plan is used.

  Returns:
    `Plan`.

  Raises:
    ValueError: if the file is not a plan, is damaged, or is of another version.
    OSError: if it cannot be opened.

  #### Examples

  ```python
  plan = plan_diag_hessian(lambda x: tf.reduce_sum(x**4), tf.zeros([100]))
  plan.save('elementwise.npz')
  load_plan('elementwise.npz').num_passes
  # ==> 1
  ```
  """
  arguments.check_file('path', path)
  if fn is not None:
    arguments.check_callable('fn', fn)
  with open(path, 'rb') as file:
    try:
      return _read(file, fn)
    except Exception as e:
      # A damaged archive raises errors of many types in several libraries.
      raise ValueError(
        f'`path` is {os.fspath(path)!r}, which cannot be read as a plan '
        f'({str(e) or type(e).__name__}). Save it again '
        'with `plan.save(path)`.'
      ) from e


def _read(file: BinaryIO, fn: Callable | None) -> Plan:
  """A `Plan` from an open file; raises something if that is not one."""
  if not zipfile.is_zipfile(file):
    raise ValueError('it is not an .npz file')
  file.seek(0)
  with np.load(file, allow_pickle=False) as arrays:
    meta = json.loads(str(arrays['meta'][()]))
    if not isinstance(meta, dict) or meta.get('format') != _FORMAT:
      raise ValueError(f'its format is not {_FORMAT}')
    colors, indices, indptr = (
      arrays[name] for name in ('colors', 'indices', 'indptr')
    )
  shapes = tuple(tuple(s) for s in meta['event_shapes'])
  n = sum(math.prod(s) for s in shapes)
  _check_fields(meta, colors, indices, indptr, n)
  pattern = SparsityPattern(
    scipy.sparse.csr_matrix(
      (np.ones(len(indices), bool), indices, indptr), shape=(n, n)
    ),
    row_shapes=shapes,
    column_shapes=shapes,
    fallback_ops=tuple(meta['fallback_ops']),
    notes=tuple(meta['pattern_notes']),
  )
  if _clash(colors, pattern.matrix):
    raise ValueError(
      'coordinates that interact through `indices` share a color'
    )
  return Plan(
    colors=colors,
    pattern=pattern,
    event_shapes=shapes,
    notes=tuple(meta['notes']),
    fn=fn,
    ways=tuple(
      Way(str(name), int(passes), float(cost))
      for name, passes, cost in meta['ways']
    ),
    digest=bytes.fromhex(meta['digest']),
    **{name: meta[name] for name in _SAVED},
  )


def _clash(colors: np.ndarray, matrix: Any) -> tuple:
  """Two coordinates that interact and share a color; empty if there are none.

  Args:
    colors: int array, one color per coordinate.
    matrix: Sparse bool matrix over coordinates.

  Returns:
    Tuple of two Python ints, or of none.
  """
  entries = matrix.tocoo()
  shared = colors[entries.row] == colors[entries.col]
  places = np.flatnonzero(shared & (entries.row != entries.col))
  if not places.size:
    return ()
  return int(entries.row[places[0]]), int(entries.col[places[0]])


def _check_fields(
  meta: dict,
  colors: np.ndarray,
  indices: np.ndarray,
  indptr: np.ndarray,
  n: int,
) -> None:
  """Raises a ValueError if the pieces of a file do not fit together."""
  modes = [v for k, v in _MODE_NAMES[meta['kind']].items() if k != 'auto']
  checks = {
    'mode': meta['mode'] in modes,
    'schedule': meta['schedule'] in ('unrolled', 'pfor', 'while_loop'),
    'chunk_size': type(meta['chunk_size']) is int and meta['chunk_size'] > 0,
    'sample_rank': type(meta['sample_rank']) is int
    and meta['sample_rank'] >= 0,
    'jit_compile': type(meta['jit_compile']) is bool,
    'is_given': type(meta['is_given']) is bool,
    'num_samples': type(meta['num_samples']) is int,
    **{name: _is_list_of_str(meta[name]) for name in _LISTS_OF_STR},
    'colors': colors.shape == (n,)
    and colors.dtype.kind == 'i'
    and np.array_equal(
      np.unique(colors), np.arange(colors.max(initial=-1) + 1)
    ),
    'indices': indices.ndim == 1 and indices.dtype.kind == 'i',
    'indptr': indptr.shape == (n + 1,)
    and indptr.dtype.kind == 'i'
    and indptr[-1] == len(indices),
  }
  for name, holds in checks.items():
    if not holds:
      raise ValueError(f'`{name}` does not fit the rest')


def _is_list_of_str(value: Any) -> bool:
  return isinstance(value, list) and all(isinstance(v, str) for v in value)


def mode_name(kind: PlanKind, mode: Mode) -> PlanMode:
  """The public name of 'forward', 'reverse' or 'auto' for a kind."""
  return _MODE_NAMES[kind][mode]


def make_plan(
  problem: Problem,
  request: Request,
  jit_compile: bool = False,
  pattern: Any = None,
) -> Plan:
  """Plans a diagonal.

  Args:
    problem: `Problem`.
    request: `Request`: mode, schedule, memory limit.
    jit_compile: Python bool.
    pattern: `SparsityPattern` or square matrix, or None to find it.

  Returns:
    `Plan`.

  Raises:
    ValueError: if an argument is not valid, or if the structure cannot be read.
    TypeError: if `jit_compile` is not True or False.
  """
  arguments.check_bytes('memory_limit', request.memory_limit)
  arguments.check_flag('jit_compile', jit_compile)
  if pattern is not None:
    request = request._replace(
      pattern=_given_pattern(pattern, problem.parts, problem.rank)
    )
  request = request._replace(is_asked=True, chunk_size=None)
  trial = try_out(problem, request, not jit_compile)
  decision = trial.decision
  graph = trial.evaluation.graph
  used, colors = decision.pattern, decision.colors
  if used is None or colors is None:
    raise NoStructureError('Nothing is known of the structure of `fn`.')
  notes = list(dict.fromkeys([*trial.notes, *_structure_notes(used, decision)]))
  return Plan(
    kind=problem.plan_kind,
    colors=colors,
    pattern=used,
    mode=mode_name(problem.kind, decision.mode),
    schedule='pfor' if decision.schedule == 'auto' else decision.schedule,
    chunk_size=decision.chunk_size,
    sample_rank=trial.rank,
    event_shapes=tuple(
      tuple(p.shape.as_list()[trial.rank :]) for p in problem.parts
    ),
    notes=tuple(notes),
    fn=problem.fn,
    jit_compile=jit_compile,
    # Cuts at other values may be alike in all that is said of them.
    ways=tuple(
      dict.fromkeys(
        Way(p.name, p.num_passes, p.cost) for p in decision.proposals
      )
    ),
    # The digest knows what the function closes over by shape, not by value.
    digest=b'' if graph.reads.seen else graph.digest.key,
    num_samples=decision.num_samples,
    is_given=pattern is not None,
  )


def _given_pattern(
  pattern: Any, parts: Sequence, sample_rank: int | None
) -> SparsityPattern:
  """A caller's pattern, with the event shapes of the parts.

  Args:
    pattern: `SparsityPattern` or matrix.
    parts: List of Tensors or specs.
    sample_rank: Python int, or None: the fewest sample dimensions that fit.

  Returns:
    `SparsityPattern`.
  """
  pattern = as_pattern(pattern)
  ranks = [sample_rank]
  if sample_rank is None:
    ranks = range(min(p.shape.rank for p in parts) + 1)
  for rank in ranks:
    shapes = batching.event_shapes(parts, rank)
    if all(s.is_fully_defined() for s in shapes):
      n = sum(s.num_elements() for s in shapes)
      if pattern.shape == (n, n):
        shapes = tuple(tuple(s) for s in shapes)
        return dataclasses.replace(
          pattern, row_shapes=shapes, column_shapes=shapes
        )
  raise ValueError(
    f'`pattern` has shape {pattern.shape}, but `xs` have the shapes '
    f'{[str(p.shape) for p in parts]}. A pattern has a row and a column for '
    'each coordinate of one sample; name the `sample_shape`.'
  )


def _note_of_fallbacks(ops: Sequence[str]) -> str:
  """A sentence about the ops that were taken as dense."""
  without = [op for op in ops if not has_rule(op.partition(' ')[0])]
  if not without:
    # Those that come after the first one may be dense because of it.
    return (
      f'What {ops[0]} depends on cannot be told from the graph, as where an '
      'index or a size in it is computed, so everything was assumed. Write '
      'that part with other ops.'
    )
  more = len(without) - 5
  named = ', '.join(without[:5]) + (f' and {more} more' if more > 0 else '')
  return (
    f'No rule says what {named} depends on, so everything was assumed. Write '
    'that part with other ops, or add a rule with '
    '`tfp_diag.sparsity.register_rule`.'
  )


def _structure_notes(pattern: SparsityPattern, decision: Decision) -> list[str]:
  """What blocked a cheaper plan."""
  best = decision.proposals[0]
  if best.note is not None:
    return [best.note]
  notes = list(pattern.notes)
  n = pattern.num_coordinates
  if best.num_passes > 1 and pattern.fallback_ops:
    notes.append(_note_of_fallbacks(pattern.fallback_ops))
  elif n > 1 and best.num_passes == n:
    notes.append(
      'Every coordinate interacts with every other one, so each needs a pass '
      'of its own.'
    )
  return notes
