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
"""What makes draws of a target enough."""

import math
import typing

import tensorflow as tf

from tfp_diag.command_line.options import FIRST_DRAWS
from tfp_diag.mcmc import StopWhen, summarize
from tfp_diag.mcmc.diagnose.convergence_warnings import (
  IS_UNREACHED,
  R_HAT_LIMIT,
  TOO_MANY_FAULTS,
  are_many_faults,
  sampler_warnings,
)
from tfp_diag.mcmc.kernels.vector_layout import VectorLayout

_LEAST_ESS = 400.0


class Verdict(typing.NamedTuple):
  """Whether draws are enough, and why not.

  Attributes:
    summary: `tfp_diag.mcmc.Summary` of the parameters.
    complaints: List of `str`: why the draws have not converged.
    faults: List of `str`: which proposals diverged or were not finite, where
      their share is too large, and which modes no draw is near; longer chains
      do not help.
    notes: List of `str`: what else happened while it sampled, and which errors
      cannot be trusted.
    is_doubtful: Python `bool`, whether notes are of such a share that parts of
      the target may be missing.
  """

  summary: typing.Any
  complaints: list
  faults: list
  notes: list
  is_doubtful: bool


class Judge:
  """Judges draws by the parameters that the report shows."""

  def __init__(self, target, start):
    """Keeps what it takes to get from a state to parameters.

    Args:
      target: A `tfp_diag.examples.Target`.
      start: List of Tensors [chains, ...event], the parts of the state.
    """
    self._target = target
    self._structure = target.init(1, (0, 0))
    self._layout = VectorLayout(start, 1)
    self._first_look = StopWhen(
      max_rhat=R_HAT_LIMIT, min_ess=_LEAST_ESS, min_draws=FIRST_DRAWS
    )

  def parameters(self, parts):
    """Computes the parameters of draws.

    Args:
      parts: List of arrays [draws, chains, ...event], the parts of the state.

    Returns:
      Dict from the names of the parameters to NumPy arrays [draws, chains].
    """
    packed = tf.nest.pack_sequence_as(
      self._structure, [tf.convert_to_tensor(part) for part in parts]
    )
    return {
      name: values.numpy()
      for name, values in self._target.to_parameters(packed).items()
    }

  def is_enough(self, draws, trace):
    """Whether more draws would not help; for `sample_posterior`.

    Args:
      draws: Array [draws, chains, coordinates].
      trace: Dict of arrays [draws, chains], what is recorded beside them, such
        as 'is_accepted'.

    Returns:
      Python `bool`.
    """
    if len(draws) < FIRST_DRAWS:
      return False
    parameters = self.parameters(self._layout.split(draws))
    # Most often the answer is no, and found sooner.
    return self._first_look(parameters, trace) and not (
      self.verdict(parameters, trace).complaints
    )

  def verdict(self, parameters, trace, warnings=()):
    """Judges draws.

    Args:
      parameters: Mapping from names to arrays [draws, chains].
      trace: As for `is_enough`.
      warnings: Sequence of `str`, those of `sample_posterior`, which knows what
        happened before the draws.

    Returns:
      A `Verdict`.
    """
    summary = summarize(parameters, trace, min_ess=_LEAST_ESS)
    num_steps = summary.num_draws * math.prod(summary.chain_shape)
    faults = [text for text in warnings if IS_UNREACHED in text]
    notes, is_doubtful = [], False
    counts = summary.num_not_finite or 0, summary.num_divergences or 0
    for one in ((counts[0], 0), (0, counts[1])):
      is_fault = are_many_faults(sum(one), num_steps, TOO_MANY_FAULTS)
      is_doubtful |= are_many_faults(sum(one), num_steps)
      (faults if is_fault else notes).extend(
        sampler_warnings((), 0, num_steps, *one)
      )
    notes += summary.notes
    others = {*faults, *notes}
    complaints = [text for text in summary.warnings if text not in others]
    return Verdict(summary, complaints, faults, notes, is_doubtful)
