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
"""What the package has, whoever asks for it first, and when it is imported."""

import ast
import os
import pathlib
import pickle
import subprocess
import sys
import types

import pytest

import tfp_diag

SUBPACKAGES = {'examples', 'mcmc', 'sparsity'}


def run(program):
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def test_the_package_alone_imports_no_tensorflow():
  program = """
import sys, tfp_diag
assert tfp_diag.__version__ and 'diag_jacobian' in dir(tfp_diag)
print('tensorflow' in sys.modules)
"""
  assert run(program) == 'False\n'


FIRST = (
  'import tfp_diag.mcmc',
  'import tfp_diag.diag_jacobian',
  'from tfp_diag import diag_jacobian',
  'from tfp_diag.diag_jacobian import diag_jacobian',
  'from tfp_diag import *',
  "import pickle; pickle.loads(b'ctfp_diag.diag_jacobian\\ndiag_jacobian\\n.')",
)


def test_functions_are_not_hidden_by_the_modules_of_their_names():
  # In one process, which forgets the package between two imports of it.
  program = """
import sys, types
for name in [name for name in sys.modules if name.startswith('tfp_diag')]:
  del sys.modules[name]
exec({first!r}, {{}})
import tfp_diag
for name in ('diag_jacobian', 'diag_hessian', 'hessian', 'jacobian'):
  assert isinstance(getattr(tfp_diag, name), types.FunctionType), name
from tfp_diag.diag_jacobian import diag_jacobian as own
assert own is tfp_diag.diag_jacobian
"""
  run('\n'.join(program.format(first=first) for first in FIRST))


def test_every_public_name_is_there():
  assert dir(tfp_diag) == sorted(tfp_diag.__all__)
  for name in tfp_diag.__all__:
    value = getattr(tfp_diag, name)
    is_module = isinstance(value, types.ModuleType)
    assert is_module == (name in SUBPACKAGES), name
    if not is_module and name != '__version__':
      assert pickle.loads(pickle.dumps(value)) is value


def test_names_that_are_not_there():
  with pytest.raises(AttributeError, match="no attribute 'diag_jacobain'"):
    tfp_diag.diag_jacobain  # noqa: B018


def test_editors_see_where_each_name_comes_from():
  tree = ast.parse(pathlib.Path(tfp_diag.__file__).read_text(encoding='utf-8'))
  block = next(node for node in tree.body if isinstance(node, ast.If))
  assert block.test.id == 'TYPE_CHECKING'
  seen = {'__version__'}
  for node in block.body:
    for name in (alias.name for alias in node.names):
      seen.add(name)
      if name not in SUBPACKAGES:
        assert getattr(tfp_diag, name).__module__ == node.module
  assert seen == set(tfp_diag.__all__)


def test_a_program_of_another_package_keeps_its_logging(tmp_path):
  (tmp_path / 'other_package.py').write_text(
    'import os, logging, tfp_diag\n'
    'tfp_diag.diag_jacobian\n'
    "print(os.environ.get('TF_CPP_MIN_LOG_LEVEL'),"
    " logging.getLogger('tensorflow').level)\n"
  )
  environment = {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}
  environment.pop('TF_CPP_MIN_LOG_LEVEL', None)
  levels = [
    subprocess.run(
      command,
      capture_output=True,
      text=True,
      cwd=tmp_path,
      env=environment,
    ).stdout
    for command in (
      [sys.executable, '-m', 'other_package'],
      [sys.executable, 'other_package.py'],
    )
  ]
  assert levels[0].startswith('None ')
  assert levels[0] == levels[1]
