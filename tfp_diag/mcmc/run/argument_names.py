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
"""Names of arguments that the drivers do not have, and what is meant by them.

A driver takes pins as keyword arguments, so that a misspelled argument looks
like a pin.
"""

import inspect
from collections.abc import Mapping

from tfp_diag.internal.arguments import did_you_mean
from tfp_diag.mcmc.run.sample import sample
from tfp_diag.mcmc.run.variables import free_names

# What it is called elsewhere, in TFP above all, by what it is called here.
_CALLED_ELSEWHERE = {
  'bijectors': ('bijector', 'constraining_bijector', 'constraining_bijectors'),
  'init': ('current_state', 'init_state', 'initial_state', 'initvals'),
  'init_step_size': ('initial_step_size', 'step_size'),
  'joint_dist': ('model', 'target_log_prob_fn', 'log_prob_fn'),
  'n_chains': ('chains', 'num_chains'),
  'n_draws': ('draws', 'n_samples', 'num_draws', 'num_results', 'num_samples'),
  'num_adaptation_steps': (
    'num_burnin_steps',
    'num_warmup',
    'num_warmup_steps',
    'tune',
    'warmup',
  ),
  'seed': ('random_seed', 'rng', 'rng_key'),
  'target_accept_prob': ('dual_averaging_kwargs', 'target_accept'),
}
# What only one of the drivers takes that find their settings.
_OF_DRIVER = {
  'sample_posterior': ('max_num_steps', 'use_curvature'),
  'windowed_adaptive_mala': (
    'discard_tuning',
    'init_step_size',
    'previous_kernel_results',
    'trace_fn',
  ),
}
# What is done anyway.
_NEEDLESS = {
  'init_near_unconstrained_zero': 'without `init`, chains start there anyway',
  'step_size': 'the warm-up finds it, by the acceptance rate that '
  '`target_accept_prob` says',
}
# What TFP's samplers take, without a counterpart in this package.
_OF_TFP = (
  'chain_axis_names',
  'max_energy_diff',
  'max_tree_depth',
  'num_leapfrog_steps',
  'parallel_iterations',
  'return_final_kernel_results',
  'unrolled_leapfrog_steps',
)


def check_argument_names(given, driver, model):
  """Refuses keywords that are neither variables to pin nor arguments.

  Args:
    given: Dict of the keywords that are no arguments, with their values.
    driver: Python callable, which was called.
    model: The `tfd.JointDistribution` whose variables can be pinned, or None.

  Raises:
    ValueError: if there is another keyword. Says what is meant by it here.
  """
  free = [] if model is None else list(free_names(model))
  arguments = [
    argument.name
    for argument in inspect.signature(driver).parameters.values()
    if argument.kind is not argument.VAR_KEYWORD
  ]
  of_model = next(a for a in arguments if a.startswith('joint_dist'))
  for name in free:
    if name in arguments:
      raise ValueError(
        f'`{of_model}` has a variable {name!r}, which is the name of an '
        f'argument, too: `{name}=...` would not pin it. Pin it first, by '
        f'`experimental_pin({name}=...)`, or rename it.'
      )
  for name, value in given.items():
    if name in free:
      continue
    instead = _instead(name, arguments)
    if instead is not None:
      raise ValueError(f'`{name}` is not an argument here{instead}')
    if name in getattr(model, 'pins', ()):
      raise ValueError(
        f'{name!r} is pinned already in `{of_model}`; pass the model without '
        'that pin, or leave it out here.'
      )
    meant = did_you_mean(name, [*free, *arguments])
    if isinstance(value, Mapping):
      # As in other libraries: `observed={'y': y}`.
      meant = _by_keyword(value, free)
    if model is None:
      raise ValueError(
        f'{name!r} is not an argument and cannot be pinned, since `{of_model}` '
        f'is a callable; close over what is observed.{meant}'
      )
    raise ValueError(
      f'{name!r} is neither an argument nor a variable of `{of_model}`, which '
      f'are {", ".join(map(repr, free))}.{meant}'
    )


def _by_keyword(value, free):
  """What to do with a dict of variables.

  Args:
    value: Mapping, given under a name that is no variable.
    free: List of `str`s, the variables that can be pinned, or none.

  Returns:
    Python `str`.
  """
  examples = [name for name in free if name in value] or free[-1:]
  if not examples:
    return ''
  return f' Name each variable by keyword, as in `{examples[0]}=...`.'


def _instead(name, arguments):
  """What to do about a name that is known, though not here; or None."""
  for key, names in _CALLED_ELSEWHERE.items():
    here = [a for a in arguments if a in (key, *names)]
    if here and name in (key, *names):
      return f'; use `{here[0]}` instead.'
  if name in _NEEDLESS:
    return f': {_NEEDLESS[name]}. Leave it out.'
  for other, names in _OF_DRIVER.items():
    if name in names:
      return f'; `tfp_diag.mcmc.{other}` has it.'
  if name in inspect.signature(sample).parameters:
    return '; `tfp_diag.mcmc.sample` has it, and takes a kernel of your choice.'
  if name in _OF_TFP:
    return ', and nothing corresponds to it; leave it out.'
  return None
