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
"""What users write is typed: right calls pass, wrong ones are found.

Each wrong call in `tests/typing/wrong_calls.py` is marked; both checkers are
told to count a mark that is not needed as an error.
"""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

from tests.typing import sampler_script, user_script

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_COMMANDS = {
  'mypy': ['mypy', '--python-executable', sys.executable],
  'pyright': ['pyright', '--pythonpath', sys.executable],
}


@pytest.mark.parametrize('script', [user_script, sampler_script])
def test_what_users_write_runs(script):
  script.main()


@pytest.mark.parametrize('checker', list(_COMMANDS))
def test_what_users_write_is_typed(checker):
  if importlib.util.find_spec(checker) is None:
    pytest.skip(f'{checker} is not installed; .ci/run has it')
  done = subprocess.run(
    [sys.executable, '-m', *_COMMANDS[checker]],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout
