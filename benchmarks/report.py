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
"""Tables and pictures of a run.

    python -m benchmarks.report benchmarks/results.json

Prints the table of all cases, that of the samplers, and what falls short of the
targets; `--all` prints every cell. Pictures go to `benchmarks/pictures/`.
`--write FILE` (`docs/pages/benchmarks.md`) puts the table between the two lines
`<!-- benchmarks: begin -->` and `<!-- benchmarks: end -->` of a file.
"""

import argparse
import json
import pathlib
import re
import sys

from benchmarks import pictures, tables

__all__ = ['main', 'write_between']

BEGIN, END = '<!-- benchmarks: begin -->', '<!-- benchmarks: end -->'


def main(words=None):
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.report', description=__doc__.splitlines()[0]
  )
  parser.add_argument('file', help='what `benchmarks.run --json` has written')
  parser.add_argument('--all', action='store_true', help='print every cell')
  parser.add_argument(
    '--write', metavar='FILE', help='put the table between the comments of it'
  )
  parser.add_argument(
    '--pictures',
    metavar='FOLDER',
    default=str(pathlib.Path(__file__).resolve().parent / 'pictures'),
    help='where pictures go; empty for none',
  )
  options = parser.parse_args(words)
  data = json.loads(pathlib.Path(options.file).read_text(encoding='utf-8'))
  print(_origin(data), tables.of_cases(data), sep='\n\n')
  if data.get('samplers'):
    print('', tables.of_samplers(data), sep='\n')
  for sentence in tables.losses(data):
    print(f'\nfalls short: {sentence}', end='')
  print()
  if options.all:
    for name, row in data.get('cases', {}).items():
      print('', tables.of_row(name, row), sep='\n')
  if options.write:
    write_between(options.write, tables.of_cases(data))
  if options.pictures:
    for path in pictures.draw(data, options.pictures):
      print(f'drawn: {path}')
  return 0


def write_between(path, text):
  """Replaces what stands between the two comments of a file."""
  path = pathlib.Path(path)
  before = path.read_text(encoding='utf-8')
  pattern = re.compile(f'({re.escape(BEGIN)}\n).*?({re.escape(END)})', re.S)
  after, count = pattern.subn(lambda m: f'{m[1]}{text}\n{m[2]}', before)
  if count != 1:
    raise ValueError(
      f'{path} has {count} places between {BEGIN!r} and {END!r}; it needs one.'
    )
  path.write_text(after, encoding='utf-8')


def _origin(data):
  """One line: where and with what it was measured."""
  about = data['about']
  machine = about['machine']
  versions = ', '.join(
    f'{name} {version}'
    for name, version in about['versions'].items()
    if version is not None
  )
  return (
    f'{about["date"]}, {machine["cores"]} cores ({machine["architecture"]}), '
    f'{machine["memory_gib"]} GiB, {about.get("wall_s", 0) / 60:.0f} minutes; '
    f'Python {about["python"]}, {versions}'
  )


if __name__ == '__main__':
  sys.exit(main())
