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
"""Writes the page of the command line from what `--help` prints.

python docs/command_line_reference.py           # writes
python docs/command_line_reference.py --check   # status 1 if out of date
"""

import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / 'docs' / 'pages' / 'reference' / 'command_line.md'

# The words behind `python -m tfp_diag`, and what a section begins with.
COMMANDS = {
  (): 'Samples a log density, of an example or of your own.',
  ('plan',): 'Shows the structure of a log density.',
}

HEAD = """# Command line

`python -m tfp_diag` needs no code but a log density in a file. Errors are one
sentence, and the exit status is 0 if all went well.

```sh
python -m tfp_diag --plot eight_schools.png
python -m tfp_diag --fn model.py:log_prob --init "[0., 0.]" --plot draws.png
python -m tfp_diag plan model.py:log_prob --init "[0., 0.]" --plot pattern.png
```

<!-- Below is the output of docs/command_line_reference.py. -->
"""


def main(argv=None):
  """Writes or checks the page; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--check', action='store_true')
  check = parser.parse_args(argv).check
  text = page()
  if not check:
    PAGE.write_text(text, encoding='utf-8')
    return 0
  is_current = same_words(text, PAGE.read_text(encoding='utf-8'))
  if not is_current:
    print(f'{PAGE} is out of date: run python docs/command_line_reference.py')
  return 0 if is_current else 1


def page():
  """The whole page."""
  sections = [HEAD]
  for words, about in COMMANDS.items():
    command = ' '.join(['python -m tfp_diag', *words])
    sections.append(
      f'## `{command}`\n\n{about}\n\n```text\n{help_of(words)}```\n'
    )
  return '\n'.join(sections)


def help_of(words):
  """What a command prints for `--help`, 80 columns wide."""
  done = subprocess.run(
    [sys.executable, '-m', 'tfp_diag', *words, '--help'],
    cwd=ROOT,
    env={**os.environ, 'COLUMNS': '80', 'NO_COLOR': '1'},
    capture_output=True,
    text=True,
    check=True,
  )
  return '\n'.join(line.rstrip() for line in done.stdout.splitlines()) + '\n'


def same_words(text, other):
  """Whether two texts differ in nothing but spaces and breaks of lines.

  Versions of Python break the lines of a usage at other places.
  """
  return ''.join(text.split()) == ''.join(other.split())


if __name__ == '__main__':
  sys.exit(main())
