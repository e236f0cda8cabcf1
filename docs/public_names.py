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
"""Reads the sources for the reference as those who import the package see it.

`tfp_diag.diag_jacobian` is a module and, for whoever imports `tfp_diag`, the
function in it. A reader of sources sees the module first; mkdocstrings is to
document the function.

Kernels have members that no source of the package shows: those of
`tfp.mcmc.TransitionKernel`, which are read from the sources of TensorFlow
Probability, and the properties that `Argument` makes.

Results are listed as in TensorFlow Probability, where the lines of one result
are not indented. Other readers take each line for a result.
"""

import ast
import importlib.util
import pathlib
import re

import griffe

# How a kernel names its base class, and where that one stands.
KERNEL = 'tensorflow_probability.mcmc.TransitionKernel'
KERNEL_MODULE = 'tensorflow_probability.python.mcmc.kernel'


class PublicNames(griffe.Extension):
  """Puts in what a reader of the package's sources does not see.

  Functions take the places of modules that are named like them; kernels have
  what they inherit, and the properties of their arguments.
  """

  def on_package(self, *, pkg, loader, **kwargs):
    """Called once the sources of the package are read."""
    add_module(KERNEL_MODULE, loader)
    shadowed = {}
    for name, target in pkg.imports.items():
      module, _, last = target.rpartition('.')
      if module == f'{pkg.path}.{name}' and last == name:
        shadowed[name] = pkg.members[name].members[name]
    for name, target in pkg.imports.items():
      member = pkg.members.get(name)
      # While their modules can still be found.
      if isinstance(member, griffe.Alias) and target.startswith(pkg.path):
        member.resolve_target()
    for name, function in shadowed.items():
      function.parent = pkg
      pkg.members[name] = function

  def on_class(self, *, cls, loader, **kwargs):
    """Called for each class."""
    cls.bases = [
      f'{KERNEL_MODULE}.TransitionKernel'
      if isinstance(base, griffe.Expr) and base.canonical_path == KERNEL
      else base
      for base in cls.bases
    ]

  def on_attribute(self, *, attr, loader, **kwargs):
    """Called for each attribute: `name = Argument('What it is.')`."""
    call = attr.value
    if isinstance(call, griffe.ExprCall) and str(call.function) == 'Argument':
      attr.docstring = griffe.Docstring(
        ast.literal_eval(str(call.arguments[0])), parent=attr
      )
      attr.value = None
      attr.labels = {'property'}

  def on_function(self, *, func, loader, **kwargs):
    """Called for each function."""
    if func.docstring:
      func.docstring.value = indent_results(func.docstring.value)


def add_module(name, loader):
  """Reads one file of another package, without all the others.

  Args:
    name: The full name of the module.
    loader: The loader that is to know it.
  """
  package, *inner = name.split('.')
  folders = importlib.util.find_spec(package).submodule_search_locations
  path = pathlib.Path(folders[0]).joinpath(*inner).with_suffix('.py')
  parent = griffe.Module(package, modules_collection=loader.modules_collection)
  loader.modules_collection[package] = parent
  for part in inner[:-1]:
    child = griffe.Module(part, parent=parent)
    parent.set_member(part, child)
    parent = child
  module = griffe.visit(
    inner[-1],
    path,
    path.read_text(encoding='utf-8'),
    extensions=loader.extensions,
    parent=parent,
    docstring_parser=loader.docstring_parser,
    docstring_options=loader.docstring_options,
    modules_collection=loader.modules_collection,
    lines_collection=loader.lines_collection,
  )
  parent.set_member(inner[-1], module)


def indent_results(text):
  """Indents all lines of a result but its first one.

  A result begins with the first line of the section, or with a name and a
  colon.
  """
  head, section, rest = text.partition('\nReturns:\n')
  lines = rest.split('\n')
  for number, line in enumerate(lines):
    if line and not line.startswith('  '):
      break
    if number and not re.match(r'  \w+(, \w+)*: |$', line):
      lines[number] = f'  {line}'
  return head + section + '\n'.join(lines)
