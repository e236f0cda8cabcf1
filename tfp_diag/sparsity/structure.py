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
"""What a rule says about one op: its first and second derivatives."""

import dataclasses
from typing import Any

import numpy as np

from tfp_diag.internal import arguments
from tfp_diag.sparsity.flow import Flow


@dataclasses.dataclass(frozen=True)
class Arrow:
  """One output depends on some inputs, concatenated, through a flow."""

  output: int
  inputs: tuple[int, ...]
  flow: Flow


@dataclasses.dataclass(frozen=True)
class Pair:
  """Mixed second derivatives between inputs.

  Each element in row `m` of `left` can have a second derivative with each
  element in row `m` of `right`. If `output` is given, row `m` belongs to
  element `m` of that output, and counts only if that element matters; otherwise
  it counts if any output of the op matters.
  """

  left_inputs: tuple[int, ...]
  left: Flow
  right_inputs: tuple[int, ...]
  right: Flow
  output: int | None = None

  @property
  def sides(self) -> tuple:
    """Both sides, as pairs of the numbers of inputs and the flow from them."""
    return (self.left_inputs, self.left), (self.right_inputs, self.right)


@dataclasses.dataclass(frozen=True)
class Structure:
  """Which derivatives of an op can be nonzero.

  Attributes:
    arrows: `tuple` of `Arrow`: the first derivatives. Those that are in no
      arrow are zero. Arrows to the same output are united.
    curved: `tuple` of int: outputs whose every element can have second
      derivatives between all the inputs that it depends on.
    pairs: `tuple` of `Pair`: second derivatives, where more is known than
      `curved` says. An op without either is linear.

  Raises:
    TypeError: if an attribute is not a tuple of what it holds, or if `flows` of
      `linear` or `nonlinear` is not a dict from ints to `Flow`s.
    ValueError: if their `output` is not the number of an output.

  #### Examples

  ```python
  from tfp_diag.sparsity import Flow, Structure

  # A sum of six numbers is linear; the square of each one is not.
  total = Structure.linear({0: Flow.dense(1, 6)})
  square = Structure.nonlinear({0: Flow.identity(6)})
  total.curved, square.curved  # ==> ((), (0,))
  ```
  """

  arrows: tuple[Arrow, ...] = ()
  curved: tuple[int, ...] = ()
  pairs: tuple[Pair, ...] = ()

  def __post_init__(self) -> None:
    for name, kind in (('arrows', Arrow), ('curved', int), ('pairs', Pair)):
      given = getattr(self, name)
      if not isinstance(given, (tuple, list)) or not all(
        isinstance(g, (kind, np.integer) if kind is int else kind)
        for g in given
      ):
        raise TypeError(
          f'`{name}` is {arguments.shown(given)}; it is a tuple of '
          f'{kind.__name__}. `Structure.linear` and `Structure.nonlinear` make '
          'a structure from a dict of flows.'
        )

  @classmethod
  def linear(
    cls, flows: dict[int, Flow], output: int = 0, **kwargs: Any
  ) -> 'Structure':
    """One output, linear in its inputs.

    Args:
      flows: dict from the number of an input to its `Flow`.
      output: Python int, the number of the output.
      **kwargs: Other attributes, `curved` or `pairs`.

    Returns:
      `Structure`.
    """
    if not isinstance(flows, dict) or not all(
      isinstance(i, (int, np.integer)) and isinstance(flow, Flow)
      for i, flow in flows.items()
    ):
      raise TypeError(
        f'`flows` is {arguments.shown(flows)}; it is a dict from the number of '
        'an input to a `Flow`, such as `{0: Flow.identity(3)}`.'
      )
    output = arguments.as_count('output', output, 0, 'which output it is')
    return cls(
      tuple(Arrow(output, (i,), flow) for i, flow in flows.items()), **kwargs
    )

  @classmethod
  def nonlinear(
    cls, flows: dict[int, Flow], output: int = 0, **kwargs: Any
  ) -> 'Structure':
    """One output with second derivatives between all inputs.

    Args:
      flows: As for `linear`.
      output: As for `linear`.
      **kwargs: Another attribute, `pairs`.

    Returns:
      `Structure`.
    """
    return cls.linear(flows, output, curved=(output,), **kwargs)
