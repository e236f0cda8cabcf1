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
"""What a run of the sampler is reported as."""

import math
import textwrap

import numpy as np

from tfp_diag.internal.text_table import text_table

MOST_ROWS = 30


def make_report(target, found, verdict, seconds):
  """Collects the results of a run in one dict that JSON can hold.

  Args:
    target: A `tfp_diag.examples.Target`.
    found: The `PosteriorDraws`.
    verdict: The `Verdict` on them, or None for too few draws.
    seconds: Python `float`, what they took.

  Returns:
    dict. What is not a finite number is None.
  """
  num_draws, num_chains = found.trace['is_accepted'].shape
  warm_up = found.warm_up
  num_steps = int(np.sum(found.trace['n_steps']))
  complaints, faults, is_doubtful = (
    ['There are too few draws to judge.'],
    [],
    False,
  )
  if verdict is not None:
    _, complaints, faults, _, is_doubtful = verdict
  return {
    'target': target.name,
    'description': target.description,
    'chains': num_chains,
    'draws': num_draws,
    'interrupted': found.stopped_by == 'interrupted',
    'acceptance_rate': float(np.mean(found.trace['is_accepted'])),
    'kernel': 'malt'
    if warm_up.integration_time > warm_up.step_size
    else 'mala',
    'preconditioner': warm_up.scale.kind,
    'step_size': warm_up.step_size,
    'integration_time': warm_up.integration_time,
    'damping': warm_up.damping,
    'steps_per_trajectory': num_steps / num_draws,
    'trajectories_per_draw': round(found.num_gradients / max(num_steps, 1)),
    'warmup': sum(window.num_steps for window in warm_up.windows),
    'gradients': found.num_gradients,
    'warmup_gradients': found.num_gradients_warmup,
    'seconds': seconds,
    'converged': not complaints and not faults,
    'complaints': [*faults, *complaints],
    'longer_runs_help': bool(complaints),
    'doubtful': is_doubtful,
    'notes': [] if verdict is None else verdict.notes,
    'parameters': []
    if verdict is None
    else _parameters(target, verdict.summary),
  }


def _parameters(target, summary):
  """One dict per parameter."""
  columns = {
    'mean': summary.mean,
    'sd': summary.sd,
    'mcse': summary.mcse_mean,
    'ess': summary.ess_bulk,
    'ess_tail': summary.ess_tail,
    'r_hat': summary.r_hat,
  }
  if target.reference_mean is not None:
    columns['exact_mean'] = target.reference_mean
    columns['z'] = (summary.mean - target.reference_mean) / summary.mcse_mean
  if target.reference_sd is not None:
    columns['exact_sd'] = target.reference_sd
  return [
    {
      'name': name,
      **{key: _number(values[i]) for key, values in columns.items()},
    }
    for i, name in enumerate(target.parameter_names)
  ]


def _number(value):
  return float(value) if math.isfinite(value) else None


# Keys of a parameter's dict, column titles and formats.
_COLUMNS = (
  ('mean', 'mean', '.3f'),
  ('sd', 'sd', '.3f'),
  ('mcse', 'MCSE', '.3f'),
  ('ess', 'ESS', '.0f'),
  ('ess_tail', 'tail ESS', '.0f'),
  ('r_hat', 'R-hat', '.4f'),
  ('exact_mean', 'exact mean', '.3f'),
  ('z', 'z', '.1f'),
  ('exact_sd', 'exact sd', '.3f'),
)


def describe_report(report):
  """The text for the terminal.

  Args:
    report: What `make_report` returned.

  Returns:
    Python `str`.
  """
  blocks = []
  if report['parameters']:
    blocks.append(_table(report['parameters']))
  blocks.append(
    f'{report["chains"]} chains of {report["draws"]:,} draws, acceptance rate '
    f'{report["acceptance_rate"]:.3f}.\n'
    f'Kernel: {_kernel(report)}.\n'
    f'{report["preconditioner"].capitalize()} preconditioner; warm-up of '
    f'{report["warmup"]:,} trajectories.\n'
    f'{report["seconds"]:.1f} s with compilation; gradients for each chain: '
    f'{report["gradients"]:,}, and {report["warmup_gradients"]:,} in the '
    'warm-up.'
  )
  blocks += [_wrapped(f'Note: {text}') for text in report['notes']]
  if report['converged']:
    but = 'but see the note' if report['notes'] else ''
    but += 's' if len(report['notes']) > 1 else ''
    good = 'every R-hat is below 1.01, every ESS above 400'
    if report['doubtful']:
      blocks.append(
        _wrapped(
          f'Doubtful: {good}; {but}: R-hat and ESS do not see what is missing.'
        )
      )
    else:
      blocks.append(f'Converged: {good}{but and "; "}{but}.')
  else:
    title = 'NOT CONVERGED. Do not use these numbers yet.'
    sentences = [*report['complaints']]
    if report['longer_runs_help']:
      sentences.append(_way_out(report))
    else:
      title = (
        'NOT CONVERGED. Do not use these numbers, good as R-hat and ESS are.'
      )
    blocks.append(
      '\n'.join([title, *(_wrapped(text, '  ') for text in sentences)])
    )
  return '\n\n'.join(blocks)


def _wrapped(text, indent=''):
  return textwrap.fill(
    text,
    initial_indent=indent,
    subsequent_indent=indent,
    break_long_words=False,
    break_on_hyphens=False,
  )


def _kernel(report):
  name, steps = 'steps (mala)', ''
  if report['kernel'] == 'malt':
    name = 'trajectories (malt)'
    steps = f'about {report["steps_per_trajectory"]:.3g} steps of '
  each = report['trajectories_per_draw']
  one = 'trajectories' if report['kernel'] == 'malt' else 'steps'
  between = f'; {each} {one} for each draw' if each > 1 else ''
  return f'Langevin {name} of {steps}size {report["step_size"]:.3g}{between}'


def _way_out(report):
  return (
    f'Try --draws {10 * report["draws"]} --warmup '
    f'{max(400, 2 * report["warmup"])}; if that does not help, another '
    'parametrization may. If modes are far apart, or the density cannot be '
    'integrated, nothing of this helps.'
  )


def _table(parameters):
  """All parameters, or those with the largest R-hat of very many."""
  columns = [column for column in _COLUMNS if column[0] in parameters[0]]
  shown = parameters
  title = 'parameter'
  if len(parameters) > MOST_ROWS:
    shown = sorted(parameters, key=_r_hat, reverse=True)[:MOST_ROWS]
    title = f'the {MOST_ROWS} largest R-hat of {len(parameters)} parameters'
  rows = [
    [entry['name'], *(_cell(entry[key], form) for key, _, form in columns)]
    for entry in shown
  ]
  return text_table([title, *(text for _, text, _ in columns)], rows)


def _r_hat(entry):
  return math.inf if entry['r_hat'] is None else entry['r_hat']


def _cell(value, form):
  return '-' if value is None else format(value, form)
