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
"""Entries of a table of TensorFlow's, replaced for a while."""

import threading
from collections.abc import Mapping
from typing import Any


class Replaced:
  """While it is entered, however often and by whichever thread."""

  def __init__(self, table: Any, makers: Mapping) -> None:
    """Replaces nothing yet.

    Args:
      table: Dict.
      makers: Python dict, a key of the table -> a callable, the entry, or None
        where there is none, to the one that takes its place.
    """
    self._table = table
    self._makers = makers
    self._lock = threading.Lock()
    self._depth = 0
    self._originals: dict = {}

  def __enter__(self) -> None:
    with self._lock:
      if not self._depth:
        self._originals = {k: self._table.get(k) for k in self._makers}
        for key, make in self._makers.items():
          self._table[key] = make(self._originals[key])
      self._depth += 1

  def __exit__(self, *_: Any) -> None:
    with self._lock:
      self._depth -= 1
      if not self._depth:
        for key, original in self._originals.items():
          if original is None:
            del self._table[key]
          else:
            self._table[key] = original
