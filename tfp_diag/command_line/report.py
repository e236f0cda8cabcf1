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

import numpy as np

from tfp_diag.internal.text_table import text_table

__all__ = ['describe_report', 'make_report']

MOST_ROWS = 30


def make_report(target, draws, summary):
  """Collects the results of a run in one dict that JSON can hold.

  Args:
    target: A `tfp_diag.examples.Target`.
    draws: The `Draws`.
    summary: Their `tfp_diag.mcmc.Summary`, or None for too few draws.

  Returns:
    dict. What is not a finite number is None.
  """
  num_draws, num_chains = draws.is_accepted.shape
  complaints = (
    ['There are too few draws to judge.']
    if summary is None
    else list(summary.warnings)
  )
  return {
    'target': target.name,
    'description': target.description,
    'chains': num_chains,
    'draws': num_draws,
    'interrupted': num_draws < draws.num_requested,
    'acceptance_rate': float(np.mean(draws.is_accepted)),
    'step_size': draws.step_size,
    'warmup_seconds': draws.warmup_seconds,
    'seconds': draws.seconds,
    'draws_per_second': num_draws * num_chains / draws.seconds,
    'converged': not complaints,
    'complaints': complaints,
    'parameters': [] if summary is None else _parameters(target, summary),
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
    f'{report["chains"]} chains of {report["draws"]} draws, acceptance rate '
    f'{report["acceptance_rate"]:.3f}, step size {report["step_size"]:.3g}.\n'
    f'{report["draws_per_second"]:,.0f} draws per second '
    f'({report["seconds"]:.1f} s after {report["warmup_seconds"]:.1f} s of '
    'compilation and warm-up).'
  )
  if report['converged']:
    blocks.append('Converged: every R-hat is below 1.01, every ESS above 400.')
  else:
    complaints = '\n'.join(f'  {text}' for text in report['complaints'])
    blocks.append(
      f'NOT CONVERGED. Do not use these numbers yet.\n{complaints}\n'
      '  More --warmup and --draws may help; if not, another parametrization.'
    )
  return '\n\n'.join(blocks)


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
