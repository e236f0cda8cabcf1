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
"""TensorFlow's start-up messages are held back where it is imported first."""

import os
import subprocess
import sys

import pytest

# In a process of its own: with a stand-in for TensorFlow that writes to the
# file descriptor of stderr while it is imported, and maybe fails.
PROGRAM = """
import os, sys, types

class Finder:
  def find_spec(self, name, path=None, target=None):
    if name == 'tensorflow':
      os.write(2, b'chatter ')
      if {fails}:
        raise RuntimeError('no such library')
      module = types.ModuleType('tensorflow')
      module.get_logger = lambda: types.SimpleNamespace(setLevel=print)
      sys.modules['tensorflow'] = module
      import importlib.machinery
      return importlib.machinery.ModuleSpec(name, Loader(module))

class Loader:
  def __init__(self, module):
    self.module = module
  def create_module(self, spec):
    return self.module
  def exec_module(self, module):
    pass

import importlib.util
spec = importlib.util.spec_from_file_location('quiet_start', {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.meta_path.insert(0, Finder())
if {is_there}:
  import tensorflow
module.quiet_start()
import tensorflow
os.write(2, b'after')
"""


@pytest.mark.parametrize(
  'is_there, fails, shown, said',
  [
    (False, False, 'after', 'ERROR\n'),
    (True, False, 'chatter after', ''),
    (False, True, 'chatter Traceback', ''),
  ],
)
def test_what_is_shown(is_there, fails, shown, said):
  here = os.path.dirname(os.path.abspath(__file__))
  path = os.path.join(
    here, '..', '..', 'tfp_diag', 'internal', 'quiet_start.py'
  )
  program = PROGRAM.format(path=path, is_there=is_there, fails=fails)
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.stderr.startswith(shown)
  # The level of its logger.
  assert done.stdout == said
  assert (done.returncode == 1) == fails
