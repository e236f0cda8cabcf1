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
"""Says what is wrong with the point at which a chain starts."""

import numpy as np

from tfp_diag.diagonal.reading import refuse_mixing
from tfp_diag.internal.problem import HessianProblem
from tfp_diag.mcmc.kernels.arguments import given_as
from tfp_diag.mcmc.kernels.langevin_terms import LangevinTerms, per_part
from tfp_diag.sparsity.samples import SampleMixingError


def check_chains(target_log_prob_fn, parts):
  """Refuses a target whose chains are not independent.

  Args:
    target_log_prob_fn: Python callable of the parts.
    parts: List of Tensors, the parts of the state.

  Raises:
    tfp_diag.sparsity.SampleMixingError: If the log density of one chain depends
      on the state of another. It names the op.
  """
  try:
    refuse_mixing(HessianProblem(target_log_prob_fn, list(parts)))
  except SampleMixingError as e:
    # For a kernel, which has no sample shape to choose.
    error = SampleMixingError(
      f'`{given_as(target_log_prob_fn)}` mixes chains at '
      f'{e.op or "some op"}: the log density of one chain depends on the state '
      'of another. Reduce over the last axes of the state; the first ones are '
      'those of the chains.'
    )
    error.op = e.op
    raise error from None
  except Exception:
    # It is evaluated next, and says there what it lacks.
    return


def check_start(target_log_prob, terms, scale_name):
  """Refuses a start from which a Langevin step cannot be taken.

  A chain whose density or gradient is not finite would reject every proposal
  and never move, without a word. Eager only: it looks at values.

  Args:
    target_log_prob: Tensor of the chain shape.
    terms: What was evaluated there: a list of gradients, or a `LangevinTerms`.
    scale_name: Python `str`, where a position-dependent scale comes from.

  Raises:
    ValueError: if a value cannot be used. It names what, how many chains, the
      index of the first chain and the value.
  """
  log_prob = target_log_prob.numpy()
  chain_ndims = log_prob.ndim

  def check_finite(what, values, part=None):
    _refuse(what, 'finite', values, ~np.isfinite(values), part, chain_ndims)

  check_finite('the target log density', log_prob)
  for i, part_terms in enumerate(per_part(terms)):
    volatility_is_given = isinstance(part_terms, LangevinTerms)
    gradient = part_terms.gradient if volatility_is_given else part_terms
    check_finite('the gradient of the target log density', gradient.numpy(), i)
    if volatility_is_given:
      volatility = part_terms.volatility.numpy()
      check_finite(scale_name, volatility, i)
      check_finite(
        f'the derivative of {scale_name}',
        part_terms.volatility_gradient.numpy(),
        i,
      )
      _refuse(
        scale_name,
        'positive (it is a standard deviation)',
        volatility,
        ~(volatility > 0.0),
        i,
        chain_ndims,
      )


def _refuse(what, requirement, values, bad, part, chain_ndims):
  if not np.any(bad):
    return
  first = tuple(int(i) for i in np.argwhere(bad)[0])
  where = '' if part is None else f' for part {part} of the state'
  if chain_ndims:
    chains = bad.reshape(*bad.shape[:chain_ndims], -1).any(-1)
    where += (
      f' in {int(chains.sum())} of {chains.size} chains, the first of them '
      f'at index {list(first[:chain_ndims])}'
    )
  raise ValueError(
    f'The start cannot be used: {what} is {values[first]}{where}, but must be '
    f'{requirement}. A chain cannot leave such a point; start elsewhere.'
  )
