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
"""What AutoGraph is not to convert, and what it is to convert nonetheless.

A `tf.function` converts what it calls, with all that this calls. Of the library
nothing needs that, and it takes seconds; but a user's function should be what
it is in that `tf.function`.
"""

import contextvars
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_Function = TypeVar('_Function', bound=Callable)

# How AutoGraph is set where the library was called, if it converts there.
_CALLER: contextvars.ContextVar = contextvars.ContextVar('caller', default=None)

# There is no public way to ask for it. Keras does it in this one.
_AUTOGRAPH: Any = getattr(getattr(tf, '__internal__', None), 'autograph', None)


def not_converted(function: _Function) -> _Function:
  """Decorates a function that AutoGraph is not to convert.

  Args:
    function: Python callable.

  Returns:
    The decorated function. Type checkers see the arguments of `function`, which
    `tf.autograph.experimental.do_not_convert` hides from them.
  """
  inner = tf.autograph.experimental.do_not_convert(function)
  if _AUTOGRAPH is None:
    return inner

  @functools.wraps(function)
  def wrapper(*args, **kwargs):
    setting = _AUTOGRAPH.control_status_ctx()
    status = setting.status.name
    if status == 'DISABLED':  # By a call further out, or by the user.
      return inner(*args, **kwargs)
    token = _CALLER.set(setting if status == 'ENABLED' else None)
    try:
      return inner(*args, **kwargs)
    finally:
      _CALLER.reset(token)

  marked: Any = wrapper
  # What `do_not_convert` marks its results with.
  marked.autograph_info__ = None
  return marked


def converted_for_caller(function: Callable) -> Callable | None:
  """A function as a `tf.function` would convert it that calls the library.

  Args:
    function: Python function, no method nor other callable. What it calls is
      converted as well.

  Returns:
    Python callable; None if nothing is converted there.
  """
  setting = _CALLER.get()
  return None if setting is None else _AUTOGRAPH.tf_convert(function, setting)
