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
import json
import math
import os
import zipfile
from typing import Any

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfp_diag.hessian_split import HessianSplit
from tfp_diag.internal import evaluate
from tfp_diag.internal import schedule as schedule_lib
from tfp_diag.internal.atomic_write import atomic_write
from tfp_diag.jacobian_split import JacobianSplit
from tfp_diag.quadratic_split import QuadraticSplit
from tfp_diag.sparsity.coloring import Coloring
from tfp_diag.sparsity.pattern import SparsityPattern

__all__ = ['Plan', 'load_plan']

# Raised when the meaning of what is saved changes.
_FORMAT = 1
_LISTS_OF_STR = ('notes', 'fallback_ops', 'pattern_notes')
_SPLITS = {
  cls.__name__: cls for cls in (HessianSplit, JacobianSplit, QuadraticSplit)
}
_MODE_NAMES = {
  'jacobian': {'forward': 'forward', 'reverse': 'reverse', 'auto': 'auto'},
  'hessian': {
    'forward': 'forward_over_reverse',
    'reverse': 'reverse_over_reverse',
    'auto': 'auto',
  },
}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Plan:
  """How the diagonal of one function is computed, and why so.

  Made by `tfp_diag.plan_diag_jacobian`, `tfp_diag.plan_diag_hessian` and
  `tfp_diag.load_plan`. It holds for every batch of samples whose parts have the
  event shapes it was made for.

  Attributes:
    kind: 'jacobian' or 'hessian'.
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
    split: None, or how a derivative is taken apart, so that it needs fewer
      passes than there are colors: a Hessian op by op, or once for all samples
      if it is a constant; a Jacobian where it can be cut.
  """

  kind: str
  colors: np.ndarray
  pattern: SparsityPattern
  mode: str
  schedule: str
  chunk_size: int
  sample_rank: int
  event_shapes: tuple
  notes: tuple = ()
  fn: Any = None
  jit_compile: bool = False
  split: Any = None

  def __post_init__(self):
    colors = np.array(self.colors, np.int32)
    colors.flags.writeable = False
    object.__setattr__(self, 'colors', colors)

  @property
  def num_coordinates(self):
    """How many coordinates one sample has."""
    return self.colors.size

  @property
  def coloring(self):
    """The colors as a `tfp_diag.sparsity.Coloring`, for `pattern.spy`."""
    return Coloring(self.colors)

  @property
  def num_passes(self):
    """How many passes a diagonal costs, for all samples together.

    Where samples share passes, as with a `split`, for as many samples as the
    plan was made for; for 32 if that was not known.
    """
    if self.split is not None:
      return self.split.num_passes
    return schedule_lib.num_colors(self.colors)

  @tf.autograph.experimental.do_not_convert
  def __call__(self, xs):
    """Runs the plan, compiled once per shape.

    Args:
      xs: The state, as for the function that made the plan.

    Returns:
      `(ys, diag)` or `(value, gradient, diag)`, as `tfp_diag.diag_jacobian` or
      `tfp_diag.diag_hessian` return them.

    Raises:
      ValueError: if `xs` do not fit, or the plan was loaded without `fn`.
    """
    if self.fn is None:
      raise ValueError(
        'This plan was loaded without its function. Pass it to '
        f'`tfp_diag.diag_{self.kind}(..., plan=plan)`, or load it with '
        '`tfp_diag.load_plan(path, fn=fn)`.'
      )
    # These make plans themselves.
    if self.kind == 'jacobian':
      from tfp_diag.diag_jacobian import diag_jacobian

      return diag_jacobian(xs, fn=self.fn, plan=self)
    from tfp_diag.diag_hessian import diag_hessian

    return diag_hessian(self.fn, xs, plan=self)

  def __str__(self):
    n, k, nnz = self.num_coordinates, self.num_passes, self.pattern.nnz
    cost = f'{k:,} {"pass" if k == 1 else "passes"}'
    if k < n:
      cost += f' instead of {n:,}'
    shapes = ', '.join(str(list(s)) for s in self.event_shapes)
    samples = {
      0: 'everything is event',
      1: 'for samples of shape [B]',
    }.get(self.sample_rank, f'{self.sample_rank} sample dimensions')
    how = {
      'unrolled': 'written out one after the other',
      'pfor': f'vectorized, {self.chunk_size} at a time',
      'while_loop': 'one after the other in a loop',
    }.get(self.schedule, self.schedule)
    if self.split is not None:
      how = self.split.how
    lines = [
      f'Plan for a diagonal {self.kind.capitalize()}: {cost}',
      f'  coordinates  {n:,}, of event shape {shapes}; {samples}',
      f'  pattern      {nnz:,} nonzeros, {nnz / max(n, 1):.1f} per coordinate',
      f'  passes       {self.mode}, {how}',
    ]
    lines += [f'  note         {note}' for note in self.notes]
    return '\n'.join(lines)

  def __repr__(self):
    return (
      f'<Plan kind={self.kind!r} num_passes={self.num_passes} '
      f'num_coordinates={self.num_coordinates} mode={self.mode!r} '
      f'schedule={self.schedule!r}>'
    )

  def check(self, kind, xs, sample_rank):
    """Raises a ValueError if the plan is for something else.

    Args:
      kind: 'jacobian' or 'hessian', what is being computed.
      xs: List of Tensors, the parts.
      sample_rank: Python int, the number of sample dimensions, or None: any.
    """
    if kind != self.kind:
      raise ValueError(
        f'`plan` is for a diagonal {self.kind.capitalize()}, not for a '
        f'diagonal {kind.capitalize()}. Make one with '
        f'`tfp_diag.plan_diag_{kind}`.'
      )
    if sample_rank is not None and sample_rank != self.sample_rank:
      raise ValueError(
        f'`plan` was made for {self.sample_rank} sample dimensions, but '
        f'`sample_shape` has {sample_rank}. Plan again with this one.'
      )
    shapes = [x.shape[self.sample_rank :] for x in xs]
    planned = [list(s) for s in self.event_shapes]
    fits = len(shapes) == len(planned) and all(
      s.is_compatible_with(p) for s, p in zip(shapes, planned)
    )
    if not fits:
      raise ValueError(
        f'`plan` was made for parts of event shapes {planned}, but `xs` have '
        f'the shapes {[str(x.shape) for x in xs]}, which are event shapes '
        f'{[str(s) for s in shapes]} behind {self.sample_rank} sample '
        'dimensions. Plan again for these.'
      )

  def choose_mode(self, mode):
    """The mode that a caller asks for, or, for 'auto', the plan's."""
    own = {v: k for k, v in _MODE_NAMES[self.kind].items()}[self.mode]
    return own if mode == 'auto' else mode

  def recipe(self, schedule):
    """What `evaluate` is told.

    Args:
      schedule: A schedule, or 'auto': the plan's.

    Returns:
      `evaluate.Recipe`.
    """
    return evaluate.Recipe(
      colors=self.colors,
      schedule=self.schedule if schedule == 'auto' else schedule,
      chunk_size=self.chunk_size,
      event_shapes=self.event_shapes,
      split=self.split if schedule == 'auto' else None,
    )

  def save(self, path):
    """Writes the plan, without its function, to an `.npz` file.

    The file is complete or not there: it is written beside `path` and moved.

    Args:
      path: Python str or path of the file.
    """
    meta = {
      'format': _FORMAT,
      'kind': self.kind,
      'mode': self.mode,
      'schedule': self.schedule,
      'chunk_size': self.chunk_size,
      'jit_compile': self.jit_compile,
      'sample_rank': self.sample_rank,
      'event_shapes': [list(s) for s in self.event_shapes],
      'notes': list(self.notes),
      'fallback_ops': list(self.pattern.fallback_ops),
      'pattern_notes': list(self.pattern.notes),
      'split': self.split and self.split.to_meta(),
      'split_type': self.split and type(self.split).__name__,
    }
    arrays = {'colors': self.colors}
    if self.split is not None:
      arrays['split_colors'] = self.split.colors
    with atomic_write(path) as f:
      np.savez_compressed(
        f,
        meta=np.array(json.dumps(meta)),
        **arrays,
        indptr=self.pattern.matrix.indptr,
        indices=self.pattern.matrix.indices,
      )


def load_plan(path, fn=None):
  """Reads a plan that `plan.save(path)` has written.

  Args:
    path: Python str or path of the file.
    fn: Python callable, the function that the plan was made for. Only needed
      for `plan(xs)`; it is not checked to be the same.

  Returns:
    `Plan`.

  Raises:
    ValueError: if the file is not a plan, is damaged, or is of another version.
    OSError: if it cannot be opened.

  #### Examples

  ```python
  plan = plan_diag_hessian(lambda x: tf.reduce_sum(x**4), tf.zeros([100]))
  plan.save('/tmp/elementwise.npz')
  load_plan('/tmp/elementwise.npz').num_passes
  # ==> 1
  ```
  """
  with open(path, 'rb') as file:
    try:
      return _read(file, fn)
    except Exception as e:
      # A damaged archive raises errors of many types in several libraries.
      raise ValueError(
        f'{os.fspath(path)!r} cannot be read as a plan '
        f'({str(e) or type(e).__name__}). Save it again '
        'with `plan.save(path)`.'
      ) from e


def _read(file, fn):
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
    split = meta.get('split')
    if split is not None:
      split_colors = arrays['split_colors']
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
  entries = pattern.matrix.tocoo()
  shared = colors[entries.row] == colors[entries.col]
  if np.any(shared & (entries.row != entries.col)):
    raise ValueError('coordinates that meet in `indices` share a color')
  if split is not None:
    if split_colors.shape != (n,) or split_colors.dtype.kind != 'i':
      raise ValueError('`split_colors` does not fit the rest')
    split = _SPLITS[meta['split_type']].from_meta(split, split_colors)
  return Plan(
    kind=meta['kind'],
    colors=colors,
    pattern=pattern,
    mode=meta['mode'],
    schedule=meta['schedule'],
    chunk_size=meta['chunk_size'],
    sample_rank=meta['sample_rank'],
    event_shapes=shapes,
    notes=tuple(meta['notes']),
    fn=fn,
    jit_compile=meta['jit_compile'],
    split=split,
  )


def _check_fields(meta, colors, indices, indptr, n):
  """Raises a ValueError if the pieces of a file do not fit together."""
  modes = [v for k, v in _MODE_NAMES[meta['kind']].items() if k != 'auto']
  checks = {
    'mode': meta['mode'] in modes,
    'schedule': meta['schedule'] in ('unrolled', 'pfor', 'while_loop'),
    'chunk_size': type(meta['chunk_size']) is int and meta['chunk_size'] > 0,
    'sample_rank': type(meta['sample_rank']) is int
    and meta['sample_rank'] >= 0,
    'jit_compile': type(meta['jit_compile']) is bool,
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


def _is_list_of_str(value):
  return isinstance(value, list) and all(isinstance(v, str) for v in value)


def mode_name(kind, mode):
  """The public name of 'forward', 'reverse' or 'auto' for a kind."""
  return _MODE_NAMES[kind][mode]
