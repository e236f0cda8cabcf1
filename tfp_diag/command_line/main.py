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
"""The commands of `python -m tfp_diag`."""

import io
import os
import sys

from tfp_diag.command_line.input_error import InputError, one_line
from tfp_diag.command_line.options import parse_options
from tfp_diag.command_line.plan_options import parse_plan_options
from tfp_diag.internal.quiet_start import quiet_start


def main(words=None):
  """Runs a command.

  Args:
    words: List of `str`; default: those of the command line.

  Returns:
    The exit status: 0, 1 if what is printed cannot be written, 2 for input that
    does not fit, 3 for draws that have not converged, or 130 after Ctrl-C.

  Raises:
    SystemExit: for `--help` and `--version`, with status 0.
  """
  words = sys.argv[1:] if words is None else list(words)
  for stream in (sys.stdout, sys.stderr):
    # A terminal without some letter gets its number.
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors='backslashreplace')
  try:
    return _plan(words[1:]) if words[:1] == ['plan'] else _main_job(words)
  except InputError as e:
    print(f'python -m tfp_diag: {e}', file=sys.stderr)
    return 2
  except OSError as e:
    # What is printed cannot be written, to a full disk say; or nobody reads on,
    # as behind `head`. Python would say so once more at exit.
    if not isinstance(e, BrokenPipeError):
      print(f'python -m tfp_diag: {one_line(e)}', file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except KeyboardInterrupt:
    print('\nInterrupted before there were results.', file=sys.stderr)
    return 130


# What TensorFlow takes seconds to be imported for comes after the options,
# which answer at once.


def _main_job(words):
  options = parse_options(words)
  quiet_start()
  from tfp_diag.command_line.main_job import main_job

  return main_job(options)


def _plan(words):
  options = parse_plan_options(words)
  quiet_start()
  from tfp_diag.command_line.plan_command import plan_command

  return plan_command(options)
