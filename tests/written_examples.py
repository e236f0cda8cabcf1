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
"""Examples that are written in prose: Markdown files and docstrings.

A result stands behind `# ==>`, on the line of an expression or on the next. It
is a Python literal, compared as an array, or else what `str` shows. What a
`print` on a line of its own prints stands in the comments right below it.

Behind a line `<!-- not run: why -->` a block of Markdown is not executed.
"""

import ast
import contextlib
import io
import re
import textwrap

import numpy as np

NOT_RUN = '<!-- not run: '


def blocks(text, language):
  """The fenced blocks of a language in Markdown, but for those not to run."""
  fence = re.compile(
    rf'(?P<before>[^\n]*\n)\n?^ *```{language}[^\n]*\n(?P<code>.*?)^ *```$',
    re.DOTALL | re.MULTILINE,
  )
  return [
    textwrap.dedent(found['code'])
    for found in fence.finditer('\n' + text)
    if not found['before'].startswith(NOT_RUN)
  ]


def run(blocks, names):
  """Runs the blocks one after the other; returns how many results they had."""
  num_results = 0
  for block in blocks:
    for statement, result, printed in results_in(textwrap.dedent(block)):
      num_results += (result is not None) + (printed is not None)
      if result is not None:
        code = compile(ast.Expression(statement.value), '<example>', 'eval')
        compare(eval(code, names), result)
        continue
      out = io.StringIO()
      with contextlib.redirect_stdout(out):
        exec(compile(ast.Module([statement], []), '<example>', 'exec'), names)
      if printed is not None:
        assert [s.rstrip() for s in out.getvalue().splitlines()] == printed
  return num_results


def results_in(block):
  """The statements of a block, with a result or printed lines, or None."""
  lines = block.splitlines()
  statements = ast.parse(block).body
  starts = [s.lineno - 1 for s in statements[1:]] + [len(lines)]
  for statement, next_start in zip(statements, starts):
    after = '\n'.join(lines[statement.end_lineno - 1 : next_start])
    found = re.search(r'# ==> (.*(?:\n *# .*)*)', after)
    result = re.sub(r'\n *# ', '\n', found.group(1)) if found else None
    printed = None
    if result is None and is_print(statement):
      below = re.match(r'.*\n((?:#.*\n?)+)', after)
      if below:
        printed = [
          line.removeprefix('#').removeprefix(' ').rstrip()
          for line in below.group(1).splitlines()
        ]
    yield statement, result, printed


def is_print(statement):
  """Whether a statement is a call of `print`, with nothing around it."""
  call = getattr(statement, 'value', None)
  return (
    isinstance(statement, ast.Expr)
    and isinstance(call, ast.Call)
    and getattr(call.func, 'id', None) == 'print'
  )


def compare(actual, result):
  """Raises an AssertionError if a value is not what is written."""
  try:
    wanted = ast.literal_eval(result)
  except (SyntaxError, ValueError):
    assert str(actual).strip() == result.strip()
    return
  if not isinstance(wanted, tuple):
    actual, wanted = [actual], [wanted]
  assert len(actual) == len(wanted)
  for a, w in zip(actual, wanted):
    if not holds_numbers(w) or isinstance(w, bool):
      assert a == w
    else:
      np.testing.assert_allclose(a, w, rtol=1e-5, atol=1e-6)


def holds_numbers(value):
  """Whether a literal is a number, or lists of equal lengths of numbers."""
  try:
    return np.asarray(value).dtype.kind in 'biufc'
  except ValueError:  # Lists of different lengths.
    return False
