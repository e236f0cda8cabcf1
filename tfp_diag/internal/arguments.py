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
"""Checks of arguments, one for each kind; all public functions use them."""

import difflib
import inspect
import math
import numbers
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_MOST = 2**31 - 1
_LONGEST = 80
# Of a message that is quoted, and of a word in it, as a name that is mangled.
_LONGEST_REASON, _LONGEST_WORD = 200, 60


def shown(value: Any) -> str:
  """Describes a value in one line, for error messages."""
  if isinstance(value, type):
    return f'the class {value.__name__}'
  if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
    return f'a {type(value).__name__}'
  if tf.is_tensor(value) or isinstance(value, np.ndarray):
    if getattr(value.shape, 'rank', 1) is None or len(value.shape):
      dtype = (
        tf.as_dtype(value.dtype).name
        if tf.is_tensor(value)
        else (value.dtype.name)
      )
      kind = type(value).__name__
      article = 'an' if kind[0] in 'AEIO' or kind == 'ndarray' else 'a'
      return f'{article} {kind} of shape {value.shape} and dtype {dtype}'
  text = ' '.join(repr(value).split())
  return text if len(text) <= _LONGEST else f'{text[: _LONGEST - 3]}...'


def check_callable(name: str, value: Any, what: str | None = None) -> None:
  """Raises a TypeError if `value` cannot be called.

  Args:
    name: Python str, the name of the argument.
    value: What was given.
    what: Python str, what to pass instead, for the message. Default: a function
      of the parts of `xs`.
  """
  if not callable(value):
    what = what or 'a function of the parts of `xs`, like `lambda x: x**2`'
    raise TypeError(
      f'`{name}` is {shown(value)}, which cannot be called; pass {what}.'
    )


def checked_callable(name: str, value: Any) -> Any:
  """`value`, if it can be called; raises a TypeError if not."""
  check_callable(name, value)
  return value


def check_takes(
  name: str,
  fn: Callable,
  args: Sequence = (),
  kwargs: Mapping | None = None,
  what: str = 'the parts of the state',
) -> None:
  """Raises a TypeError if a function cannot be called with some arguments.

  Args:
    name: Python str, the name of the argument.
    fn: Python callable.
    args: List of the positional arguments.
    kwargs: Dict of the keyword arguments.
    what: Python str, what these arguments are, for the message.
  """
  try:
    signature = inspect.signature(fn)
  except (TypeError, ValueError):  # A builtin may have none.
    return
  try:
    signature.bind(*args, **(kwargs or {}))
  except TypeError as e:
    by_name = f' and {", ".join(kwargs)} by name' if kwargs else ''
    count = f'{len(args)} argument{"" if len(args) == 1 else "s"}'
    raise TypeError(
      f'`{name}` takes `{signature}`, but is called with {count}{by_name}: '
      f'{what} ({e}). Pass a function of these.'
    ) from e


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
  """Raises a ValueError if `value` is not one of the strings `choices`."""
  if not isinstance(value, str) or value not in choices:
    listed = ', '.join(repr(c) for c in choices)
    raise ValueError(f'`{name}` is {shown(value)}; it can be one of {listed}.')


def check_known(name: str, known: Iterable[str], what: str) -> None:
  """Raises a TypeError if a keyword is not one of those that there are.

  Args:
    name: Python str, the keyword that was given.
    known: The keywords that there are.
    what: Python str, what it is not, for the message: 'is not a fact'.
  """
  known = list(known)
  if name not in known:
    raise TypeError(
      f'`{name}` {what}, which are {", ".join(known)}.'
      f'{did_you_mean(name, known)}'
    )


def check_known_finite(name: str, value: Any) -> None:
  """Raises a ValueError if `value` is known not to be finite.

  Args:
    name: Python str, the name of the argument.
    value: A number, an array or a Tensor; all else passes, and so does a Tensor
      of a graph, whose value is not known yet.
  """
  known = static_value(value)
  if isinstance(known, (numbers.Number, np.ndarray, np.generic)):
    array = np.asarray(known)
    if array.dtype.kind in 'fc' and not np.all(np.isfinite(array)):
      raise ValueError(_not_finite(name))


def _not_finite(name: str) -> str:
  return f'`{name}` has entries that are not finite; look where they come from.'


def did_you_mean(name: str, known: Iterable[str], count: int = 1) -> str:
  """A question that follows on a sentence about a wrong word, or nothing.

  Args:
    name: Python str, the word that was given.
    known: The words that there are.
    count: Python int, how many words the question has at most.

  Returns:
    Python str with a space in front; empty if no word is close.
  """
  close = difflib.get_close_matches(name, known, count)
  return f' Did you mean {" or ".join(map(repr, close))}?' if close else ''


def as_count(
  name: str, value: Any, least: int = 1, what: str | None = None
) -> int:
  """Converts a number of things to a Python int.

  Args:
    name: Python str, the name of the argument.
    value: What was given.
    least: Python int, the smallest valid number.
    what: Python str, what is counted, where the name does not say it.

  Returns:
    Python int.

  Raises:
    ValueError: if it is not an integer, less than `least`, or too large for an
      int32.
  """
  # Symbolic Tensors and arrays cannot be compared with `least`.
  number = static_value(value)
  is_integer = _is_a(numbers.Integral, number)
  if not is_integer or not least <= number <= _MOST:
    at_least = {0: 'a nonnegative integer', 1: 'a positive integer'}.get(
      least, f'an integer of at least {least}'
    )
    bound = ''
    if is_integer and number > _MOST:
      bound = f', at most {_MOST:,}'
    raise ValueError(
      f'`{name}` is {shown(value)}, but must be {at_least}{bound}'
      f'{"" if what is None else f": {what}"}.'
    )
  return int(number)


def _is_a(kind: type, value: Any) -> bool:
  """Whether a value is a number of some kind, and not a bool."""
  return isinstance(value, kind) and not isinstance(value, (bool, np.bool_))


def static_value(value: Any) -> Any:
  """Converts a scalar Tensor or array to a number, if its value is known.

  Another Tensor whose value is known becomes an array; all else is returned as
  it is.
  """
  if tf.is_tensor(value) and not isinstance(
    value, (tf.RaggedTensor, tf.SparseTensor)
  ):
    known = tf.get_static_value(value)
    value = value if known is None else known
  if isinstance(value, np.ndarray) and not value.ndim:
    return value[()]
  return value


def check_chunk(name: str, value: Any) -> int:
  """A number of passes as an `int`; raises a ValueError if it is not valid."""
  if not _is_a(numbers.Integral, value) or not 1 <= value <= _MOST:
    raise ValueError(
      f'`{name}` is {shown(value)}; it is how many passes run together, an '
      f'integer of at least 1, where 1 is a plain loop, and at most {_MOST:,}.'
    )
  return int(value)


def check_bytes(name: str, value: Any) -> None:
  """Raises a ValueError if `value` is neither None nor a number of bytes."""
  is_number = _is_a(numbers.Real, value)
  if value is not None and not (is_number and 0 < value < 2**63):
    raise ValueError(
      f'`{name}` is {shown(value)}; it is a positive number of bytes, or None '
      'for 64 MiB, or 1 GiB where there is a GPU.'
    )


def check_flag(name: str, value: Any, or_none: str | None = None) -> None:
  """Raises a TypeError if `value` is not True or False.

  Args:
    name: Python str, the name of the argument.
    value: What was given.
    or_none: Python str, what None means; None if it is not a valid value.
  """
  if value is None and or_none is not None:
    return
  if not isinstance(value, (bool, np.bool_)):
    none = '' if or_none is None else f', or None {or_none}'
    raise TypeError(f'`{name}` is {shown(value)}; it is True or False{none}.')


def is_positive(number: float) -> bool:
  """Whether a number is positive and finite."""
  return 0.0 < number < math.inf


def check_number(
  name: str,
  value: Any,
  what: str = 'a finite number',
  fits: Callable[[float], bool] = math.isfinite,
) -> None:
  """Raises a ValueError if `value` is not a single valid number.

  A scalar Tensor of a graph passes, since its value is not known yet.

  Args:
    name: Python str, the name of the argument.
    value: What was given.
    what: Python str, which numbers are valid, for the message.
    fits: Python callable that tells whether a number is valid.
  """
  number = static_value(value)
  if tf.is_tensor(number) and number.shape.rank in (0, None):
    return
  if not _is_a(numbers.Real, number) or not fits(number):
    raise ValueError(f'`{name}` is {shown(value)}, but must be {what}.')


def check_name(value: Any, name: str = 'name') -> None:
  """Raises a TypeError if `value` is neither a str nor None."""
  if value is not None and not isinstance(value, str):
    raise TypeError(
      f'`{name}` is {shown(value)}; it is the name of the ops in a graph, a '
      'str, or None for the usual one.'
    )


def check_word(name: str, value: Any) -> None:
  """Raises a TypeError if `value` is not a str."""
  if not isinstance(value, str):
    raise TypeError(f'`{name}` is {shown(value)}, but must be a str.')


def op_scope(name: str | None, default: str) -> Any:
  """A `tf.name_scope`; raises a TypeError if `name` is neither str nor None."""
  check_name(name)
  return tf.name_scope(name or default)


def check_path(name: str, value: Any) -> None:
  """Raises an error if `value` is not a path."""
  if not isinstance(value, (str, os.PathLike)):
    raise TypeError(
      f'`{name}` is {shown(value)}; it is the path of a file or a folder, a '
      'str or a `pathlib.Path`.'
    )
  if not os.fspath(value):
    raise ValueError(
      f'`{name}` is an empty path; pass that of a file or a folder.'
    )


def check_file(name: str, value: Any, to_write: bool = False) -> None:
  """Raises an error if `value` is not the path of a file.

  Args:
    name: Python str, the name of the argument.
    value: What was given.
    to_write: Whether the file is to be written: then its folder must exist, but
      the file need not.

  Raises:
    TypeError: if it is not a path.
    ValueError: if it is empty.
    OSError: if it is the path of a folder; if the file, or the folder to write
      it to, does not exist.
  """
  check_path(name, value)
  path = os.fspath(value)
  if os.path.isdir(path):
    raise IsADirectoryError(
      f'`{name}` is {path!r}, which is a folder; pass the path of a file.'
    )
  if not to_write and not os.path.exists(path):
    raise FileNotFoundError(
      f'`{name}` is {path!r}, but there is no such file; look at the name and '
      'at the current folder.'
    )
  if to_write and not os.path.isdir(os.path.dirname(path) or os.curdir):
    raise FileNotFoundError(
      f'`{name}` is {path!r}, but there is no such folder; '
      'make it first, or pass another path.'
    )


def as_names(name: str, value: Any) -> list[str]:
  """Converts a string, or several strings, to a list of strings.

  Args:
    name: Python str, the name of the argument.
    value: What was given.

  Returns:
    List of str.

  Raises:
    TypeError: if it is neither a string nor an iterable of strings.
  """
  if isinstance(value, str):
    return [value]
  names: Any = [None]
  if isinstance(value, Iterable):
    names = list(value)
  if not all(isinstance(n, str) for n in names):
    raise TypeError(
      f"`{name}` is {shown(value)}; it is a list of words, like ['a', 'b']."
    )
  return names


def reason(error: Exception) -> str:
  """The message of an error in a line or two, without TensorFlow's trace."""
  words = [
    word if len(word) <= _LONGEST_WORD else f'{word[:_LONGEST_WORD]}...'
    for word in _first_line(error).split()
  ]
  return textwrap.shorten(' '.join(words), _LONGEST_REASON, placeholder=' ...')


def _first_line(error: Exception) -> str:
  """What an error says first."""
  # Without the name of the kernel that raised it, and of the op.
  text = re.sub(r'^\{\{.*?\}\} | \[Op:\w+\]( name:)?', '', str(error).strip())
  lines = text.strip().splitlines() or ['']
  if not lines[0].startswith('Graph execution error'):
    return lines[0]
  # The first lines say where it was raised, the last ones list the nodes.
  said = [line for line in lines if not line.lstrip().startswith('[[')]
  return said[-1].strip()


def as_tensor(
  name: str, value: Any, dtype: Any = None, dtype_hint: Any = None
) -> tf.Tensor:
  """Converts a value to a Tensor.

  Args:
    name: Python str, what the message calls the value, such as 'A part of
      `weights`'.
    value: What was given.
    dtype: The dtype that it must have, or None.
    dtype_hint: The dtype of Python numbers, or None.

  Returns:
    Tensor.

  Raises:
    TypeError: if it cannot be converted.
  """
  if value is not None and not isinstance(
    value, (tf.RaggedTensor, tf.SparseTensor, type)
  ):
    try:
      return tf.convert_to_tensor(value, dtype, dtype_hint)
    except (TypeError, ValueError) as e:
      said = f' ({reason(e)})'
  else:
    said = ''
  if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
    way = (
      'Pass a dense one, such as `.to_tensor()`'
      if isinstance(value, tf.RaggedTensor)
      else 'Pass a dense one, by `tf.sparse.to_dense`'
    )
  else:
    way = 'Pass a Tensor, an array, or numbers in lists of equal lengths'
    if isinstance(value, type):
      way = f'It is a class; pass an instance of it, or {way[5:]}'
    elif value is None or (isinstance(value, list) and None in value):
      way += '; a shape with open sizes is a `tf.TensorSpec(shape)`'
  of = '' if dtype is None else f' of {tf.as_dtype(dtype).name}'
  raise TypeError(
    f'{name} is {shown(value)}, which cannot be converted to a Tensor{of}. '
    f'{way}.{said}'
  )


def as_array(name: str, value: Any, may_be_nan: bool = False) -> np.ndarray:
  """Converts a value to a float64 array.

  Args:
    name: Python str, the name of the argument.
    value: What was given.
    may_be_nan: Python bool, whether entries may be infinite or NaN.

  Returns:
    A new float64 array.

  Raises:
    TypeError: if it cannot be converted to an array of real numbers.
    ValueError: if an entry is not finite.
  """
  try:
    array = np.array(value)
    # Of bfloat16 NumPy knows no more than the name.
    if array.dtype.kind not in 'biuf' and array.dtype.name != 'bfloat16':
      is_text = array.dtype.kind in 'US'
      kind = 'text' if is_text else array.dtype.name
      raise TypeError(f'its entries are {kind}')
  except (TypeError, ValueError) as e:
    raise TypeError(
      f'`{name}` is {shown(value)}, which is not an array of real numbers '
      f'({e}). Pass an array, or numbers in lists of equal lengths.'
    ) from e
  if not may_be_nan and not np.all(np.isfinite(array)):
    raise ValueError(_not_finite(name))
  return array.astype(np.float64)


def as_vector(name: str, value: Any) -> np.ndarray:
  """Converts a value to a finite float64 vector, or raises; see `as_array`."""
  array = as_array(name, value)
  if array.ndim != 1:
    raise ValueError(
      f'`{name}` has shape {list(array.shape)}, but must be a vector.'
    )
  return array
