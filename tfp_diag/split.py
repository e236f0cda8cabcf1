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
"""What cheaper ways to a diagonal than passes have in common."""

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np

from tfp_diag.internal import schedule as schedule_lib

__all__ = ['Split']


@dataclasses.dataclass(frozen=True, eq=False)
class Split(abc.ABC):
  """A derivative that is taken apart, so that its diagonal is cheap.

  Attributes:
    found: What was found in the ops of the function, of the class `Found`.
    colors: int32 array, one color per coordinate, for what is left.
    num_samples: Python int, the number of samples it was made for; any other
      will do.
  """

  found: Any
  colors: np.ndarray
  num_samples: int

  # The class of `found`, and three words for `str(plan)`.
  Found: ClassVar[type]
  how: ClassVar[str]

  @property
  def num_colors(self):
    """How many colors there are."""
    return schedule_lib.num_colors(self.colors)

  @property
  @abc.abstractmethod
  def num_passes(self):
    """What a diagonal costs, in passes through the function."""

  @property
  @abc.abstractmethod
  def note(self):
    """A sentence for `str(plan)`."""

  @abc.abstractmethod
  def diagonal(self, called, recipe):
    """The diagonal for a function that was called just now.

    Args:
      called: `evaluate.Called`, in reverse mode.
      recipe: `evaluate.Recipe`: the chunk size, and the event shapes.

    Returns:
      List of Tensors shaped as `xs`, or None if the ops are not those that the
      split was made for.
    """

  def to_meta(self):
    """What `from_meta` needs beside the colors, as values of JSON."""
    return {**dataclasses.asdict(self.found), 'num_samples': self.num_samples}

  @classmethod
  def from_meta(cls, meta, colors):
    """The split of which `to_meta` gave `meta`; raises if it is none."""
    found = cls.Found.from_meta(meta)
    return cls(found, colors, int(meta['num_samples']))
