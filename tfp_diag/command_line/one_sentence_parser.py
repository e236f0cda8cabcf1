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
"""A command line parser that complains in one sentence."""

import argparse

from tfp_diag.command_line.input_error import InputError


class OneSentenceParser(argparse.ArgumentParser):
  """Raises an `InputError` instead of printing the usage and exiting."""

  def error(self, message):
    """Called by argparse for words that do not fit."""
    raise InputError(
      f'{message[:1].upper()}{message[1:]}; see {self.prog} --help.'
    )

  def parse(self, words):
    """Parses all words.

    Args:
      words: List of `str`.

    Returns:
      The namespace of options.

    Raises:
      InputError: for a word that does not fit.
    """
    options, rest = self.parse_known_args(words)
    if rest:
      raise InputError(
        f'There is no option or command {rest[0]!r}; see {self.prog} --help.'
      )
    return options
