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
"""What the site shows of files that stand elsewhere in the repository.

Notebooks are pages, and the pictures of the benchmarks are files of the site,
at the path that they have in the repository. Loaded by mkdocs, see
`mkdocs.yml`.
"""

import pathlib
import re

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
FROM_ELSEWHERE = ('notebooks/*.ipynb', 'benchmarks/**/*.png')
# The template of notebooks loads it from a server; KaTeX shows formulas here.
MATHJAX = re.compile(r'<script[^>]*MathJax.*?</script>', re.DOTALL)
# mkdocstrings writes it behind the type of a result, also where there is none.
DASH = re.compile(r'(<li class="doc-section-item field-body">)\s*–')
# And spaces within the parentheses around types.
OPENED = re.compile(r'\(\s+(?=<code>)')
CLOSED = re.compile(r'(?<=</code>)\s+\)')
# Of pictures in notebooks.
NO_ALT = 'No description has been provided for this image'
# Tables that notebooks print.
TABLE = re.compile(r'<pre>(?=[^<]*\n-{40,}\n)')
# Names in headings and in tables, and where lines may end.
CELL = re.compile(r'<(t[dh]|h\d)\b.*?</\1>', re.DOTALL)
CODE = re.compile(r'(<code>)([^<]*)')
NAME = re.compile(r'(<span class="doc doc-object-name [^>]*>)([^<]*)')
# Links of notebooks, which mkdocs-jupyter leaves as they are.
TO_PAGE = re.compile(r'href="\.\./docs/pages/([\w/]+)\.md(?=["#])')
TO_NOTEBOOK = re.compile(r'href="(\w+)\.ipynb(?=["#])')
PLACE = re.compile(r'(?<=[a-z][._/])(?!py\b|yml)(?=\w)|(?<=[a-z])(?=[A-Z])')


# Before mkdocs-jupyter, which makes pages of notebooks.
@event_priority(100)
def on_files(files, config):
  """Adds files from outside of the folder of pages."""
  for pattern in FROM_ELSEWHERE:
    for path in sorted(ROOT.glob(pattern)):
      uri = path.relative_to(ROOT).as_posix()
      files.append(
        File(uri, str(ROOT), config.site_dir, config.use_directory_urls)
      )
  return files


def on_page_markdown(markdown, page, config, files):
  """Lets links to files outside of the folder of pages lead to the site."""
  up = '../' * page.file.src_uri.count('/')
  return markdown.replace(f'](../../{up}', f']({up}')


def on_page_content(html, page, config, files):
  """Leaves out what a page would load from elsewhere, and lone dashes.

  Lets links of notebooks lead to the pages of the site.
  Lets long names go on in the next line, but not the rows of a table.
  """
  html = DASH.sub(r'\1', MATHJAX.sub('', html))
  html = CLOSED.sub(')', OPENED.sub('(', html))
  html = html.replace(NO_ALT, 'The picture that the code above draws')
  if page.file.src_uri.endswith('.ipynb'):
    html = TO_PAGE.sub(r'href="../\1.html', html)
    html = TO_NOTEBOOK.sub(r'href="\1.html', html)
  html = TABLE.sub('<pre class="table">', html)
  html = CELL.sub(lambda cell: CODE.sub(breakable, cell[0]), html)
  return NAME.sub(breakable, html)


def breakable(match):
  """A tag and the name behind it, with the places where a line may end."""
  return match[1] + PLACE.sub('<wbr>', match[2])
