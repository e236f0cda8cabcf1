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
"""The notebooks run, and what is stored in them is fit to be seen.

`python tests/notebooks_test.py` runs them in full size and stores the outputs.
"""

import ast
import builtins
import concurrent.futures
import functools
import gc
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import nbclient
import nbformat
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / 'notebooks').glob('*.ipynb'))
NAMES = [path.name for path in NOTEBOOKS]

# A cell's metadata: text of it, and what stands there in tests.
SMALL = 'small'
# The tag of a hidden cell, on which nothing depends.
SETUP = 'setup'
SECONDS_PER_CELL = 300

# Where things lie on somebody's machine.
LOCAL_PATH = re.compile(
  r'(?<![\w.:/])/(?:home|root|tmp|usr|opt|var|mnt|work|private|Users)/'
  r'|\b[A-Z]:\\\w'
  r'|site-packages|ipykernel_\d'
)


@functools.cache
def matplotlib_directory():
  """A new directory for matplotlib, gone when this process ends.

  The user's settings would change the pictures. The user's list of fonts may
  lack some, if what made it was stopped, and then every cell that draws warns.
  """
  directory = tempfile.TemporaryDirectory(prefix='matplotlib-')
  # Now, not by all kernels at once: it warns where it takes long.
  subprocess.run(
    [sys.executable, '-c', 'import matplotlib.font_manager'],
    env=dict(os.environ, MPLCONFIGDIR=directory.name),
    check=True,
  )
  return directory


def execute(notebook, small):
  """Runs a notebook in place, in a kernel that finds the tested package."""
  found = importlib.util.find_spec('tfp_diag')
  # None: this file is run as a script, and the package is not installed.
  package = pathlib.Path(found.origin) if found else ROOT / 'tfp_diag'
  environment = dict(
    os.environ,
    MPLBACKEND='module://matplotlib_inline.backend_inline',
    MPLCONFIGDIR=matplotlib_directory().name,
  )
  if small:
    for cell in code_cells(notebook):
      cell.source = in_small(cell)
    # As in conftest.py.
    first = code_cells(notebook)[0]
    threshold = gc.get_threshold()
    first.source = f'import gc\ngc.set_threshold(*{threshold})\n{first.source}'
  if package.is_relative_to(ROOT):
    # The checkout: not installed, or in editable mode.
    paths = [str(ROOT), environment.get('PYTHONPATH')]
    environment['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
  client = nbclient.NotebookClient(
    notebook,
    timeout=SECONDS_PER_CELL,
    kernel_name='python3',
    record_timing=False,
    coalesce_streams=True,
  )
  client.execute(env=environment)
  return notebook


def in_small(cell):
  """The source of a cell with the small sizes of its metadata."""
  source = cell.source
  for text, other in cell.metadata.get(SMALL, {}).items():
    assert source.count(text) == 1, text
    source = source.replace(text, other)
  return source


def is_setup(cell):
  return SETUP in cell.metadata.get('tags', [])


def code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def output_text(output):
  """What a reader sees of an output, images apart."""
  texts = [output.get('text', ''), *output.get('traceback', [])]
  data = output.get('data', {})
  texts += [v for k, v in data.items() if k.startswith('text/')]
  return '\n'.join(texts)


def complaints(notebook):
  """Everything that should not have been stored, as sentences."""
  cells = code_cells(notebook)
  found = []
  if [c.execution_count for c in cells] != list(range(1, len(cells) + 1)):
    found.append('the cells were not run once each, from top to bottom')
  outputs = [output for cell in cells for output in cell.outputs]
  if not any('image/png' in output.get('data', {}) for output in outputs):
    found.append('there is no picture')
  for output in outputs:
    if output.output_type == 'error':
      found.append('there is an error')
    if output.get('name') == 'stderr':
      found.append('there are warnings')
    if path := LOCAL_PATH.search(output_text(output)):
      found.append(f'there is a local path, {path.group()}')
  for cell in notebook.cells:
    if path := LOCAL_PATH.search(cell.source):
      found.append(f'a cell has a local path, {path.group()}')
  if notebook.metadata.kernelspec.name != 'python3':
    found.append('the kernel is not python3')
  if [is_setup(c) for c in cells] != [True] + [False] * (len(cells) - 1):
    found.append('the first cell, and no other, must be hidden')
  return found


@pytest.fixture(scope='module')
def runs():
  """Starts all notebooks; a future for each."""
  matplotlib_directory()  # Once, not by both threads.
  # Two at a time: a kernel spends most of its time on one core.
  with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
    yield {
      path.name: pool.submit(execute, nbformat.read(path, 4), small=True)
      for path in NOTEBOOKS
    }


@pytest.mark.parametrize('path', NOTEBOOKS, ids=NAMES)
def test_what_is_shown_needs_nothing_that_is_hidden(path):
  cells = code_cells(nbformat.read(path, 4))
  shown = [c for c in cells if not is_setup(c)]
  tree = ast.parse('\n'.join(c.source for c in shown))
  defined = set(dir(builtins))
  loaded = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Name):
      used = isinstance(node.ctx, ast.Load)
      (loaded if used else defined).add(node.id)
    elif isinstance(node, ast.alias):
      defined.add((node.asname or node.name).split('.')[0])
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      defined.add(node.name)
    elif isinstance(node, ast.arg):
      defined.add(node.arg)
  assert not loaded - defined
  assert not any('environ' in c.source for c in shown)
  # Sizes are plain numbers; those of the tests are elsewhere.
  assert any(SMALL in c.metadata for c in cells)


def test_they_are_numbered():
  assert NAMES
  numbers = [re.match(r'(\d\d)_[a-z0-9_]+\.ipynb$', name) for name in NAMES]
  assert [int(n.group(1)) for n in numbers] == list(range(len(NAMES)))


@pytest.mark.parametrize('path', NOTEBOOKS, ids=NAMES)
def test_links_lead_to_files_and_the_last_one_to_pages(path):
  cells = nbformat.read(path, 4).cells
  for cell in cells:
    if cell.cell_type == 'markdown':
      for target in re.findall(r'\]\(([^)#:]+)\)', cell.source):
        assert (path.parent / target).exists(), target
  (line,) = re.findall(r'^More: .*(?:\n.+)*', cells[-1].source, re.MULTILINE)
  assert line.count('](../docs/pages/') > 1


@pytest.mark.parametrize('path', NOTEBOOKS, ids=NAMES)
def test_what_is_stored(path):
  notebook = nbformat.read(path, 4)
  nbformat.validate(notebook)
  assert not complaints(notebook)


@pytest.mark.parametrize('path', NOTEBOOKS, ids=NAMES)
def test_it_runs(path, runs):
  notebook = runs[path.name].result()
  assert not complaints(notebook)
  # As many pictures as are stored.
  assert num_pictures(notebook) == num_pictures(nbformat.read(path, 4))


def num_pictures(notebook):
  return sum(
    'image/png' in output.get('data', {})
    for cell in code_cells(notebook)
    for output in cell.outputs
  )


def test_a_cell_that_fails_is_noticed():
  notebook = nbformat.v4.new_notebook(
    cells=[nbformat.v4.new_code_cell('assert False')]
  )
  with pytest.raises(nbclient.exceptions.CellExecutionError):
    execute(notebook, small=True)


def drop_outputs(notebook):
  for cell in code_cells(notebook):
    cell.outputs = []


def drop_counts(notebook):
  code_cells(notebook)[0].execution_count = None


def add_output(notebook, output_type, **fields):
  output = nbformat.v4.new_output(output_type, **fields)
  code_cells(notebook)[-1].outputs.append(output)


def add_error(notebook):
  add_output(notebook, 'error', ename='E', evalue='', traceback=[])


def add_warning(notebook):
  add_output(notebook, 'stream', name='stderr', text='Careful.')


def add_path(notebook):
  add_output(notebook, 'stream', text='saved to /home/somebody/plan.npz')


def add_path_in_a_result(notebook):
  data = {'text/plain': r"'C:\Users\somebody'"}
  add_output(notebook, 'display_data', data=data)


def change_the_kernel(notebook):
  notebook.metadata.kernelspec.name = 'my-kernel'


@pytest.mark.parametrize(
  'damage, complaint',
  [
    (drop_outputs, 'there is no picture'),
    (drop_counts, 'not run once each'),
    (add_error, 'there is an error'),
    (add_warning, 'there are warnings'),
    (add_path, 'there is a local path'),
    (add_path_in_a_result, 'there is a local path'),
    (change_the_kernel, 'the kernel is not python3'),
  ],
)
def test_damage_is_noticed(damage, complaint):
  notebook = nbformat.read(NOTEBOOKS[0], 4)
  damage(notebook)
  assert len(complaints(notebook)) == 1
  assert complaint in complaints(notebook)[0]


def store():
  for path in NOTEBOOKS:
    notebook = execute(nbformat.read(path, 4), small=False)
    # The exact version of Python would change with every machine.
    notebook.metadata.language_info = {'name': 'python'}
    nbformat.write(notebook, path)


if __name__ == '__main__':
  store()
