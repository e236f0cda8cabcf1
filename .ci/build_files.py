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
"""Writes the Bazel BUILD files from the imports of the Python files.

One `py_library` per file, one `py_test` per test; the labels of the files of
this repository that a file imports become its deps, packages from elsewhere
become comments, as in TensorFlow Probability.

    python .ci/build_files.py           # writes
    python .ci/build_files.py --check   # exit status 1 when one would change
"""

import argparse
import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOP_FOLDERS = ('tfp_diag', 'tests', 'benchmarks', 'docs')
TEST_MAIN = 'tests/pytest_main.py'


def main(argv=None):
  """Writes or checks every BUILD file; returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--check', action='store_true')
  check = parser.parse_args(argv).check
  stale = []
  for folder in package_folders():
    path = folder / 'BUILD'
    text = build_text(folder)
    if path.exists() and path.read_text(encoding='utf-8') == text:
      continue
    stale.append(path.relative_to(ROOT).as_posix())
    if not check:
      path.write_text(text, encoding='utf-8')
  verb = 'out of date' if check else 'written'
  for path in stale:
    print(f'{path}: {verb}')
  return 1 if check and stale else 0


def package_folders():
  """The top level, and every folder below that holds Python files."""
  folders = {
    path.parent for top in TOP_FOLDERS for path in (ROOT / top).rglob('*.py')
  }
  return [ROOT, *sorted(folders)]


def build_text(folder):
  """The text of the BUILD file of one folder."""
  if folder == ROOT:
    return TOP_LEVEL
  files = sorted(folder.glob('*.py'), key=target_name)
  rules = sorted({rule_kind(path) for path in files})
  loads = ', '.join(f'"{rule}"' for rule in rules)
  blocks = [
    LICENCE.rstrip(),
    f'load("@rules_python//python:defs.bzl", {loads})',
    'package(default_visibility = ["//:__subpackages__"])',
    'licenses(["notice"])',
  ]
  if folder == (ROOT / TEST_MAIN).parent:
    blocks.append(f'exports_files(["{pathlib.Path(TEST_MAIN).name}"])')
  blocks += [target_text(path) for path in files]
  return '\n\n'.join(blocks) + '\n'


def rule_kind(path):
  """The Bazel rule for one file."""
  return 'py_test' if path.name.endswith('_test.py') else 'py_library'


def target_name(path):
  """A file's target: its stem; the folder's name for `__init__.py`."""
  return path.parent.name if path.name == '__init__.py' else path.stem


def target_text(path):
  """One py_library or py_test."""
  kind = rule_kind(path)
  labels, elsewhere = dependencies(path)
  srcs = [path.name]
  lines = []
  if kind == 'py_test':
    label = f'//{TEST_MAIN.replace("/", ":")}'
    srcs.append(label)
    lines.append(f'    args = ["$(rootpath {path.name})"],')
    lines.append(f'    main = "{label}",')
    elsewhere = elsewhere | {'pytest'}
    labels = labels | conftest_labels(path)
  relative = [relative_label(label, path) for label in labels]
  deps = [f'        # {name} dep,' for name in sorted(elsewhere)]
  deps += [f'        "{label}",' for label in sorted(relative, key=label_key)]
  text = [f'{kind}(', f'    name = "{target_name(path)}",']
  if len(srcs) == 1:
    text.append(f'    srcs = ["{srcs[0]}"],')
  else:
    text += ['    srcs = [', *(f'        "{src}",' for src in srcs), '    ],']
  text += lines
  if deps:
    text += ['    deps = [', *deps, '    ],']
  return '\n'.join([*text, ')'])


def label_key(label):
  """Labels of the same package first, then by name."""
  return (not label.startswith(':'), label)


def relative_label(label, path):
  """Shortens a full label: `:name` in the own package, `//a/b` for //a/b:b."""
  package, name = label.removeprefix('//').split(':')
  if package == path.parent.relative_to(ROOT).as_posix():
    return f':{name}'
  return f'//{package}' if pathlib.Path(package).name == name else label


def full_label(path):
  """The label of a file of this repository."""
  package = path.parent.relative_to(ROOT).as_posix()
  return f'//{package}:{target_name(path)}'


def conftest_labels(path):
  """pytest reads the conftest.py files of all folders above a test."""
  above = [folder for folder in path.parents if folder.is_relative_to(ROOT)]
  files = [folder / 'conftest.py' for folder in above]
  return {full_label(file) for file in files if file.exists()}


def dependencies(path):
  """What a file imports: labels of this repository, and other packages."""
  labels, elsewhere = set(), set()
  for name in imported_names(path):
    file = source_of(name)
    if file is not None:
      labels.add(full_label(file))
    elif name.split('.')[0] not in sys.stdlib_module_names:
      elsewhere.add(name.split('.')[0])
  labels.discard(full_label(path))
  return labels, elsewhere


def imported_names(path):
  """Dotted names of the modules that a file imports, and maybe attributes.

  A package that loads its subpackages on first use names them in `__all__`
  only: those names count for an `__init__.py`.
  """
  tree = ast.parse(path.read_text(encoding='utf-8'))
  names = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: write imports in full.'
      names |= {f'{node.module}.{alias.name}' for alias in node.names}
    elif path.name == '__init__.py' and isinstance(node, ast.Assign):
      targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
      if targets == ['__all__']:
        package = '.'.join(path.parent.relative_to(ROOT).parts)
        listed = [f'{package}.{name}' for name in ast.literal_eval(node.value)]
        names |= {name for name in listed if module_file(name)}
  return names


def source_of(name):
  """The file of module `name`, or of the module whose attribute it is."""
  file = module_file(name)
  if file is None and '.' in name:
    file = module_file(name.rpartition('.')[0])
  return file


def module_file(name):
  """The file of a module of this repository, or None."""
  base = ROOT.joinpath(*name.split('.'))
  if name.split('.')[0] not in TOP_FOLDERS:
    return None
  for file in (base.with_suffix('.py'), base / '__init__.py'):
    if file.exists():
      return file
  return None


LICENCE = ''.join(
  line + '\n'
  for line in pathlib.Path(__file__).read_text(encoding='utf-8').splitlines()
  if line.startswith('#')
)

TOP_LEVEL = f"""{LICENCE.rstrip()}

package(default_visibility = ["//:__subpackages__"])

licenses(["notice"])

exports_files([
    "LICENSE",
    "README.md",
])
"""


if __name__ == '__main__':
  sys.exit(main())
