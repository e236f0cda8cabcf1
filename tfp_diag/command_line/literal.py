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
"""Values of options that are written as in Python."""

import ast

from tfp_diag.command_line.input_error import InputError


def read_literal(option, text):
  """Reads the value of `--init`, `--shape` or `--sample-shape`.

  Args:
    option: Python `str`, the name of the option.
    text: Python `str`, a literal.

  Returns:
    What the literal stands for.

  Raises:
    InputError: if `text` is not a literal.
  """
  try:
    return ast.literal_eval(text.strip())
  except (
    ValueError,
    TypeError,
    SyntaxError,
    MemoryError,
    RecursionError,
  ) as e:
    raise InputError(
      f'{option} {text} is not a number, list, tuple or dict of numbers.'
    ) from e
