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
"""A log density from a file of the user."""

import functools
import importlib.util
import inspect
import itertools
import pathlib
import sys

import numpy as np
import tensorflow as tf

from tfp_diag.command_line.function_file import function_file
from tfp_diag.command_line.input_error import InputError, one_line
from tfp_diag.command_line.literal import read_literal
from tfp_diag.examples.target import Target


def user_target(where, init=None, shape=None):
  """Makes a target from `PATH.py:NAME` and `--init VALUE` or `--shape SHAPE`.

  Args:
    where: Python `str`, `PATH.py:NAME`. The function takes a state whose parts
      have a leading axis of chains, and returns one log density per chain.
    init: Python `str`, a literal: a number or list of numbers is the only
      argument, the entries of a tuple are the positional arguments, those of a
      dict the keyword arguments.
    shape: Python `str`, in the place of `init`: the same with a list of sizes
      for each part, of which all numbers are zero.

  Returns:
    A `tfp_diag.examples.Target` whose state is a list of parts and whose
    parameters are all coordinates, named after the function's arguments.

  Raises:
    InputError: if there is no such file or function, or if `init` or `shape`
      cannot be read.
  """
  fn = _load(where)
  if shape is None:
    names, parts, by_keyword = _read_parts(fn, '--init', init, _array)
  else:
    names, parts, by_keyword = _read_parts(fn, '--shape', shape, _zeros)
  return Target(
    name=where,
    description=f'The function {where}.',
    target_log_prob_fn=functools.partial(_call, fn, names, by_keyword),
    init=functools.partial(_starting_points, parts),
    parameter_names=tuple(_coordinate_names(names, parts)),
    to_parameters=functools.partial(_to_parameters, names, parts),
  )


def _load(where):
  path, name = function_file(where)
  module = _run_file(where, pathlib.Path(path).resolve())
  if not hasattr(module, name):
    own = [
      key
      for key, value in vars(module).items()
      if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    there = f'its functions are {", ".join(own)}' if own else 'it has none'
    raise InputError(f'{where}: {path} has no function {name}; {there}.')
  fn = getattr(module, name)
  if not callable(fn):
    raise InputError(
      f'{where}: {name} is of type {type(fn).__name__} and must be a function.'
    )
  return fn


def _run_file(where, path):
  # The file may import its neighbours, as it could when run by itself.
  sys.path.insert(0, str(path.parent))
  name = f'_tfp_diag_user_{path.stem}'
  spec = importlib.util.spec_from_file_location(name, path)
  # Of a .py file there always is one.
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  try:
    spec.loader.exec_module(module)
  except SystemExit as e:
    raise InputError(
      f'{where}: running the file ended the program, with '
      f'sys.exit({"" if e.code is None else repr(e.code)}).'
    ) from e
  except Exception as e:
    raise InputError(
      f'{where}: running the file failed with {one_line(e)}'
    ) from e
  return module


def _read_parts(fn, option, text, to_part):
  """Reads the value of `--init` or `--shape`.

  Args:
    fn: Python callable, the function of the user.
    option: Python `str`, the name of the option.
    text: Python `str`, its value, a literal.
    to_part: Python callable, the value of a part to a NumPy array; a ValueError
      of it ends the sentence that the user gets.

  Returns:
    List of the names of the parts, list of their arrays, and a `bool`: whether
    they are keyword arguments.

  Raises:
    InputError: if the value cannot be read, or has no coordinates.
  """
  value = read_literal(option, text)
  if isinstance(value, dict):
    names, values = list(map(str, value)), list(value.values())
  elif isinstance(value, tuple):
    names, values = _argument_names(fn, len(value)), list(value)
  else:
    names, values = _argument_names(fn, 1), [value]
  parts = []
  for name, part in zip(names, values):
    try:
      parts.append(to_part(part))
    except ValueError as e:
      raise InputError(f'{option} {text}: {name} {e}') from e
  if sum(part.size for part in parts) == 0:
    raise InputError(f'{option} {text} has no coordinates.')
  return names, parts, isinstance(value, dict)


def _array(value):
  try:
    part = np.array(value, np.float64)
  except OverflowError:  # Of an integer beyond all floats.
    part = np.array(np.inf)
  except (ValueError, TypeError) as e:
    raise ValueError(
      'is not an array of numbers; the rows of a list must be equally long, '
      'and several parts go in a tuple.'
    ) from e
  with np.errstate(over='ignore'):
    is_finite = np.isfinite(part.astype(np.float32))
  if not np.all(is_finite):
    raise ValueError('is not finite in float32, the dtype of the state.')
  return part


def _zeros(sizes):
  sizes = [sizes] if isinstance(sizes, int) else sizes
  if not isinstance(sizes, list) or any(
    not isinstance(size, int) or isinstance(size, bool) or size < 0
    for size in sizes
  ):
    raise ValueError('is not a shape like [1000]; several parts go in a tuple.')
  try:
    return np.zeros(sizes)
  except (ValueError, MemoryError) as e:
    raise ValueError('is too large.') from e


def _argument_names(fn, count):
  """The names of the first positional arguments, or x0, x1 ..."""
  try:
    arguments = inspect.signature(fn).parameters.values()
  except (ValueError, TypeError):
    arguments = ()
  kinds = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
  )
  names = [a.name for a in arguments if a.kind in kinds][:count]
  free = (f'x{i}' for i in itertools.count(len(names)))
  free = (name for name in free if name not in names)
  return names + list(itertools.islice(free, count - len(names)))


def _call(fn, names, by_keyword, *parts):
  if by_keyword:
    return fn(**dict(zip(names, parts)))
  return fn(*parts)


def _starting_points(parts, num_chains, seed, dtype=tf.float32):
  """The first chain starts at `--init`, the others at most 1 beside it."""
  seeds = tf.random.split(seed, num=len(parts))
  points = []
  for i, part in enumerate(parts):
    shape = [num_chains, *part.shape]
    offset = tf.random.stateless_uniform(shape, seeds[i], -1.0, 1.0, dtype)
    is_first = tf.reshape(tf.range(num_chains) == 0, [-1] + [1] * part.ndim)
    center = tf.constant(part, dtype)
    points.append(center + tf.where(is_first, tf.zeros_like(offset), offset))
  return points


def _coordinate_names(names, parts):
  for name, part in zip(names, parts):
    if part.ndim == 0:
      yield name
    for index in np.ndindex(part.shape) if part.ndim else ():
      yield f'{name}[{", ".join(map(str, index))}]'


def _to_parameters(names, parts, state):
  columns = []
  for part, draws in zip(parts, state):
    lead = len(draws.shape) - part.ndim
    columns.append(tf.reshape(draws, [*draws.shape[:lead], part.size]))
  flat = tf.concat(columns, axis=-1)
  return dict(zip(_coordinate_names(names, parts), tf.unstack(flat, axis=-1)))
