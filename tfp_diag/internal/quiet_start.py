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
"""Imports TensorFlow without its start-up messages."""

import contextlib
import os
import sys
import tempfile


def quiet_start():
  """Imports TensorFlow silently, unless it is imported already.

  For a command line, which is the whole process: TensorFlow's libraries write
  to the file descriptor of stderr while they are loaded, before any log level
  takes effect. If the import fails, what was written is shown after all. If
  TensorFlow is imported already, its logging is not changed.
  """
  if 'tensorflow' in sys.modules:
    return
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  with _stderr_held_back():
    import tensorflow as tf
  tf.get_logger().setLevel('ERROR')


@contextlib.contextmanager
def _stderr_held_back():
  """Holds back what is written to file descriptor 2; shows it on an error."""
  sys.stderr.flush()
  with tempfile.TemporaryFile() as held_back:
    terminal = os.dup(2)
    os.dup2(held_back.fileno(), 2)
    try:
      yield
    except Exception:
      held_back.seek(0)
      os.write(terminal, held_back.read())
      raise
    finally:
      os.dup2(terminal, 2)
      os.close(terminal)
