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
"""`tf.autograph.experimental.do_not_convert` with the signature kept."""

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

__all__ = ['not_converted']

_Function = TypeVar('_Function', bound=Callable)


def not_converted(function: _Function) -> _Function:
  """Decorates a function that AutoGraph is not to convert.

  Args:
    function: Python callable.

  Returns:
    The decorated function. Type checkers see the arguments of `function`, which
    TensorFlow's own decorator hides from them.
  """
  return tf.autograph.experimental.do_not_convert(function)
