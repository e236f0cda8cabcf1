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
"""What the user typed does not work."""

import re


class InputError(Exception):
  """Ends a command with exit status 2; its text is the one sentence to show."""


def one_line(error):
  """An exception's type and text, as the end of a sentence.

  Args:
    error: An exception, of the user's code for example.

  Returns:
    Python `str` without line breaks and without the node names that TensorFlow
    adds, at most some 300 characters long, with a full stop.
  """
  text = re.sub(r'{{.*?}}|\[Op:\w+\].*', '', str(error), flags=re.DOTALL)
  text = ' '.join(text.split()).rstrip('.')
  shortened = text if len(text) <= 300 else text[:300] + ' ..'
  stop = '' if shortened.endswith(('?', '!')) else '.'
  return f'{type(error).__name__}: {shortened}{stop}'
