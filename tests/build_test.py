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
"""The BUILD files name every file and every import of this repository.

The BUILD files are read here as Bazel reads them, and the imports by a walk of
their own: nothing is shared with the script that writes the files.
"""

import ast
import functools
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOP_FOLDERS = ('tfp_diag', 'tests', 'benchmarks', 'docs')


@functools.cache
def python_files():
  found = [p for top in TOP_FOLDERS for p in (ROOT / top).rglob('*.py')]
  return sorted(p.relative_to(ROOT) for p in found)


def read_targets(text, package):
  """{full label: (rule, src file names, full dep labels)} of a BUILD file."""
  targets = {}
  for statement in ast.parse(text).body:
    call = statement.value
    if call.func.id not in ('py_library', 'py_test'):
      continue
    fields = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    label = f'//{package}:{fields["name"]}'
    assert label not in targets, f'{label} is there twice.'
    deps = [absolute(dep, package) for dep in fields.get('deps', [])]
    assert len(deps) == len(set(deps)), f'{label} names a dep twice.'
    targets[label] = (call.func.id, fields['srcs'], set(deps))
  return targets


def absolute(label, package):
  if label.startswith(':'):
    return f'//{package}{label}'
  if ':' not in label:
    return f'{label}:{label.rsplit("/", 1)[-1]}'
  return label


def all_targets():
  targets = {}
  for folder in sorted({p.parent for p in python_files()}):
    build = ROOT / folder / 'BUILD'
    assert build.exists(), f'{folder} holds Python files and no BUILD file.'
    text = build.read_text(encoding='utf-8')
    targets.update(read_targets(text, folder.as_posix()))
  return targets


def own_label(path):
  name = path.parent.name if path.stem == '__init__' else path.stem
  return f'//{path.parent.as_posix()}:{name}'


@functools.cache
def imports_of(path, text):
  """The files of this repository that the text of `path` imports."""
  files = frozenset(python_files())

  def lookup(*parts):
    for candidate in (
      pathlib.Path(*parts).with_suffix('.py'),
      pathlib.Path(*parts, '__init__.py'),
    ):
      if candidate in files:
        return candidate
    return None

  found = set()
  tree = ast.parse(text)
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      found |= {lookup(*alias.name.split('.')) for alias in node.names}
    if isinstance(node, ast.ImportFrom):
      module = node.module.split('.')
      for alias in node.names:
        found.add(lookup(*module, alias.name) or lookup(*module))
  if path.name == '__init__.py':
    for node in tree.body:
      if isinstance(node, ast.Assign) and (
        ast.unparse(node.targets[0]) == '__all__'
      ):
        for name in ast.literal_eval(node.value):
          found.add(lookup(*path.parent.parts, name))
  if path.name.endswith('_test.py'):
    found |= {
      lookup(*folder.parts, 'conftest')
      for folder in path.parents
      if folder.parts
    }
  return {own_label(p) for p in found - {None, path}}


def complaints(targets, files, read):
  """Every way in which the targets do not describe the files."""
  found = []
  for path in files:
    label = own_label(path)
    if label not in targets:
      found.append(f'{label} is missing')
      continue
    rule, srcs, deps = targets[label]
    test = path.name.endswith('_test.py')
    if rule != ('py_test' if test else 'py_library'):
      found.append(f'{label} is a {rule}')
    if srcs != [path.name] + ['//tests:pytest_main.py'] * test:
      found.append(f'{label} has srcs {srcs}')
    wanted = imports_of(path, read(path))
    found += [f'{label} lacks dep {dep}' for dep in sorted(wanted - deps)]
    found += [f'{label} has unused dep {dep}' for dep in sorted(deps - wanted)]
  known = {own_label(path) for path in files}
  found += [f'{label} has no file' for label in sorted(set(targets) - known)]
  return found


def read_file(path):
  return (ROOT / path).read_text(encoding='utf-8')


def test_every_file_and_every_import_is_in_a_build_file():
  assert not complaints(all_targets(), python_files(), read_file)


def test_the_top_level_has_a_build_file():
  names = [s.value.func.id for s in ast.parse(read_file('BUILD')).body]
  assert names == ['package', 'licenses', 'exports_files']


def test_the_script_would_change_nothing():
  script = ROOT / '.ci' / 'build_files.py'
  done = subprocess.run(
    [sys.executable, str(script), '--check'], capture_output=True, text=True
  )
  assert (done.returncode, done.stdout) == (0, '')


VERSION = '//tfp_diag:version'
TOP = '//tfp_diag:tfp_diag'


def drop_a_file(targets):
  del targets[VERSION]


def drop_a_dep(targets):
  targets[TOP][2].remove(VERSION)


def add_a_dep(targets):
  targets[VERSION][2].add(TOP)


def add_a_file(targets):
  targets['//tfp_diag:nowhere'] = ('py_library', ['nowhere.py'], set())


def change_the_rule(targets):
  targets[VERSION] = ('py_test', ['version.py'], set())


@pytest.mark.parametrize(
  'damage, complaint',
  [
    (drop_a_file, f'{VERSION} is missing'),
    (drop_a_dep, f'{TOP} lacks dep {VERSION}'),
    (add_a_dep, f'{VERSION} has unused dep {TOP}'),
    (add_a_file, '//tfp_diag:nowhere has no file'),
    (change_the_rule, f'{VERSION} is a py_test'),
  ],
)
def test_damage_is_noticed(damage, complaint):
  targets = all_targets()
  damage(targets)
  assert complaint in complaints(targets, python_files(), read_file)
