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
"""Tables of plain text, also for notebooks."""

import html


def text_table(header, rows):
  """Formats a table: the first column left-aligned, the others right-aligned.

  Args:
    header: List of `str`.
    rows: List of lists of `str`, as long as `header`.

  Returns:
    Python `str` without a line break at the end.

  #### Examples

  ```python
  from tfp_diag.internal.text_table import text_table

  print(text_table(['', 'mean'], [['mu', '4.41'], ['theta[1]', '6.2']]))
  ```
  """
  widths = [max(map(len, column)) for column in zip(header, *rows)]
  lines = [_line(header, widths), '-' * (sum(widths) + 2 * len(widths) - 2)]
  lines += [_line(row, widths) for row in rows]
  return '\n'.join(lines)


def _line(cells, widths):
  first = cells[0].ljust(widths[0])
  others = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])]
  return '  '.join([first, *others]).rstrip()


def as_html(text):
  """Converts plain text to the HTML that `_repr_html_` returns.

  Args:
    text: Python `str`.

  Returns:
    Python `str`.
  """
  return f'<pre>{html.escape(text)}</pre>'
