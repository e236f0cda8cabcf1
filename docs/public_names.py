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

Results are listed as in TensorFlow Probability, where the lines of one result
are not indented. Other readers take each line for a result.
"""

import re

import griffe


class PublicNames(griffe.Extension):
  """Puts functions in the places of modules that are named like them."""

  def on_package(self, *, pkg, loader, **kwargs):
    """Called once the sources of the package are read."""
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

  def on_function(self, *, func, loader, **kwargs):
    """Called for each function."""
    if func.docstring:
      func.docstring.value = indent_results(func.docstring.value)


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
