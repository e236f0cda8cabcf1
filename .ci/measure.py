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
"""Counts what the house is held to: lines, circles, arguments, names of ops.

    python .ci/measure.py

prints lines of code (without comments, docstrings and blank lines), circles of
imports between modules, functions of more than seven arguments, modules outside
of the rules that name TensorFlow ops, and, for a first eager diagonal of a
chain, the files of the package on its way, calls of the function and walks over
the tape.
"""

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / 'tfp_diag'
CORE = ('', 'diagonal', 'internal', 'sparsity', 'sparsity/rules')
MOST_ARGUMENTS = 7

sys.path.insert(0, str(ROOT))


def modules(folders=None):
  """The files of some folders of the package, or of all."""
  if folders is None:
    return sorted(PACKAGE.rglob('*.py'))
  return sorted(p for f in folders for p in (PACKAGE / f).glob('*.py'))


def lines_of_code(path):
  """The number of lines that hold code."""
  tree = ast.parse(path.read_text(encoding='utf-8'))
  docstrings = set()
  for node in ast.walk(tree):
    if isinstance(
      node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    ):
      first = node.body[0] if node.body else None
      if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        if isinstance(first.value.value, str):
          docstrings.update(range(first.lineno, first.end_lineno + 1))
  return sum(
    1
    for number, line in enumerate(
      path.read_text(encoding='utf-8').splitlines(), 1
    )
    if line.strip()
    and not line.lstrip().startswith('#')
    and number not in docstrings
  )


def name_of(path):
  """The dotted name of a module."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imports(path, known):
  """The modules of the package that a module imports when it is loaded."""
  found = set()
  for node in ast.parse(path.read_text(encoding='utf-8')).body:
    if isinstance(node, ast.ImportFrom) and node.module:
      for alias in node.names:
        whole = f'{node.module}.{alias.name}'
        found.add(whole if whole in known else node.module)
    elif isinstance(node, ast.Import):
      found.update(alias.name for alias in node.names)
  return found & known


def circles():
  """Sets of modules that import each other."""
  known = {name_of(p): p for p in modules()}
  graph = {
    name: imports(path, known.keys()) - {name} for name, path in known.items()
  }
  reached = {name: set(graph[name]) for name in graph}
  changed = True
  while changed:
    changed = False
    for targets in reached.values():
      more = set().union(*(reached[t] for t in targets)) - targets
      if more:
        targets |= more
        changed = True
  found = {
    frozenset(b for b in reached[a] if a in reached[b])
    for a in graph
    if a in reached[a]
  }
  return [sorted(circle) for circle in found if circle]


def long_functions():
  """Functions that take more arguments than a reader keeps in mind."""
  found = []
  for path in modules(CORE):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      if isinstance(node, ast.FunctionDef):
        every = node.args
        count = len(every.posonlyargs + every.args + every.kwonlyargs)
        own = bool(every.args) and every.args[0].arg in ('self', 'cls')
        if count - own > MOST_ARGUMENTS:
          found.append(f'{name_of(path)}.{node.name} ({count - own})')
  return found


def naming_ops():
  """Modules outside of the rules that name op types."""
  import tensorflow as tf

  # `tf.raw_ops` leaves out the ops of XLA.
  names = {n for n in dir(tf.raw_ops) if n[:1].isupper()}
  names.add('XlaDynamicUpdateSlice')
  found = {}
  for path in modules(('', 'diagonal', 'internal', 'sparsity')):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      if isinstance(node, ast.Constant) and node.value in names:
        found.setdefault(name_of(path), set()).add(node.value)
  return found


def first_call():
  """What a first eager diagonal of a chain does."""
  import tensorflow as tf

  import tfp_diag
  from tfp_diag.sparsity import tape

  calls, files, walks = [0], set(), []

  def chain(x):
    calls[0] += 1
    return tf.reduce_sum(tf.exp(x[..., 1:] - 0.9 * x[..., :-1]), axis=-1)

  before = {}
  for method in ('forward', 'backward', 'run'):
    before[method] = getattr(tape.Tape, method)

    def counted(self, *args, _method=method, **kwargs):
      walks.append(_method)
      return before[_method](self, *args, **kwargs)

    setattr(tape.Tape, method, counted)

  def watch(frame, event, argument):
    del event, argument
    path = frame.f_code.co_filename
    if path.startswith(str(PACKAGE)):
      files.add(path)

  sys.setprofile(watch)
  try:
    tfp_diag.diag_hessian(chain, tf.random.normal([64, 100]))
  finally:
    sys.setprofile(None)
  return len(files), calls[0], walks


def main():
  """Prints the figures."""
  for folder in CORE:
    total = sum(map(lines_of_code, modules((folder,))))
    print(f'{total:6,} lines of code in tfp_diag/{folder}')
  total = sum(map(lines_of_code, modules(CORE)))
  print(f'{total:6,} lines of code in these together')
  print(f'{len(circles()):6} circles of imports', *circles())
  found = long_functions()
  print(f'{len(found):6} functions of more than {MOST_ARGUMENTS} arguments')
  for name in found:
    print(' ' * 9 + name)
  ops = naming_ops()
  print(f'{len(ops):6} modules outside of the rules that name ops')
  for name, types in sorted(ops.items()):
    print(' ' * 9 + f'{name}: {", ".join(sorted(types))}')
  files, calls, walks = first_call()
  print(f'{files:6} files on the way of a first eager chain')
  print(f'{calls:6} calls of the function')
  print(f'{len(walks):6} walks over the tape: {", ".join(walks)}')


if __name__ == '__main__':
  main()
