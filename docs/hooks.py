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
  """Leaves out what a page would load from elsewhere."""
  return MATHJAX.sub('', html)
