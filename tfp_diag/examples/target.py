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
"""A posterior to sample from, with what is known about it."""

import collections.abc
import dataclasses
import typing

import numpy as np

from tfp_diag.internal import arguments

__all__ = ['Target']


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
  """A log density on an unconstrained state, ready to sample and to judge.

  Attributes:
    name: Python `str`, the key in `tfp_diag.examples.targets.TARGETS`.
    description: One line for a list of targets.
    target_log_prob_fn: Callable of the state parts (`fn(*state)` for a list,
      `fn(state)` for a Tensor). Any leading chain shape, float32 or float64;
      returns one value per chain.
    init: Callable `init(num_chains, seed, dtype=tf.float32)` that returns
      starting points: a Tensor, or a list of Tensors, of leading shape
      [num_chains]. `seed` is a pair of integers.
    parameter_names: Tuple of `str`: what a table of results shows.
    to_parameters: Callable from a state of any leading shape (draws and chains,
      say) to a dict from each parameter name to a Tensor of that leading shape.
    reference_mean: float64 array [number of parameters], in the order of
      `parameter_names`, or None where it is not known.
    reference_sd: The standard deviations, likewise.
    marginal_pdf: Mapping from a parameter name to its exact marginal density, a
      function from a float64 array to an array of the same shape. Names may be
      missing.
    reference: Where the model comes from and how the reference values were
      obtained.

  #### Examples

  ```python
  from tfp_diag.examples import targets

  target = targets.get('banana')
  x = target.init(num_chains=4, seed=(0, 1))
  target.target_log_prob_fn(x).shape  # ==> [4]
  target.parameter_names, target.reference_sd[0]  # ==> (('x[0]', 'x[1]'), 10.)
  ```
  """

  name: str
  description: str
  target_log_prob_fn: collections.abc.Callable
  init: collections.abc.Callable
  parameter_names: tuple[str, ...]
  to_parameters: collections.abc.Callable
  reference_mean: np.ndarray | None = None
  reference_sd: np.ndarray | None = None
  marginal_pdf: collections.abc.Mapping[str, typing.Any] = dataclasses.field(
    default_factory=dict
  )
  reference: str = ''

  def __post_init__(self):
    for name in ('name', 'description', 'reference'):
      arguments.check_word(name, getattr(self, name))
    for name in ('target_log_prob_fn', 'init', 'to_parameters'):
      arguments.check_callable(
        name, getattr(self, name), 'a function, as `Target` says'
      )
    arguments.as_names('parameter_names', self.parameter_names)
    for name in ('reference_mean', 'reference_sd'):
      value = getattr(self, name)
      if value is not None:
        value = arguments.as_vector(name, value)
        if len(value) != len(self.parameter_names):
          raise ValueError(
            f'`{name}` has {len(value)} entries, but there are '
            f'{len(self.parameter_names)} `parameter_names`; give one for each.'
          )
    if not isinstance(self.marginal_pdf, collections.abc.Mapping):
      raise TypeError(
        f'`marginal_pdf` is {arguments.shown(self.marginal_pdf)}; it is a dict '
        'from names of parameters to functions.'
      )
