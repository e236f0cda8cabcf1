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
"""Two processes draw the chains of one."""

import os
import subprocess
import sys


def test_two_workers():
  done = subprocess.run(
    [sys.executable, '-m', 'tfp_diag.examples.two_workers'],
    capture_output=True,
    text=True,
    check=False,
    timeout=400,
    # What TensorFlow says at its start is no part of the example's output.
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
  )
  assert done.returncode == 0, done.stderr[-4000:]
  plain, adapted, agreement, learned = done.stdout.splitlines()
  assert plain.endswith('(12, 3), largest difference 0.0e+00')
  assert '(12, 3)' in adapted
  assert 0.0 <= float(adapted.split()[-1]) < 1e-3
  assert agreement == 'scales of the workers differ by 0.0'
  assert learned.startswith('scale learned: [')
