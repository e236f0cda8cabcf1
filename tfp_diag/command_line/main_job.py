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
"""The main job: diagonals beside closed forms, then a posterior sampled."""

import contextlib
import json
import sys
import time
import warnings

from tfp_diag.command_line.diagonals import (
  compare_diagonals,
  describe_diagonals,
)
from tfp_diag.command_line.input_error import InputError, one_line
from tfp_diag.command_line.judge import Judge
from tfp_diag.command_line.options import (
  FIRST_DRAWS,
  LEAST_DRAWS,
  MOST_DRAWS,
)
from tfp_diag.command_line.picture import draw_picture
from tfp_diag.command_line.report import describe_report, make_report
from tfp_diag.command_line.save_draws import save_draws
from tfp_diag.command_line.starting_points import starting_points
from tfp_diag.command_line.user_target import user_target
from tfp_diag.examples import targets
from tfp_diag.mcmc import sample_posterior
from tfp_diag.mcmc.diagnose.convergence_warnings import (
  ENDS_OF_FAULTS,
  IS_UNREACHED,
)

# What `sample_posterior` warns of, and the report says.
_SAID_IN_THE_REPORT = (
  '.* [Dd]raw more, (or )?warm up',
  # Proposals, and nothing else.
  rf'.* ({"|".join(ENDS_OF_FAULTS)})\.$',
  f'.*{IS_UNREACHED}',
  'The run was interrupted',
)


def main_job(options):
  """Runs the main job.

  Args:
    options: What `parse_options` returned.

  Returns:
    The exit status: 0, 3 if the draws have not converged or too many proposals
    failed, or 130 if Ctrl-C ended the drawing early.

  Raises:
    InputError: if a file or a function does not fit; before anything is
      computed, where that can be seen.
  """
  target = _target(options)
  start = starting_points(target, options.chains, (options.seed, 0))
  judge = Judge(target, start)

  def say(text):
    if not options.json:
      print(text, flush=True)

  # Who has a function asks about that.
  comparisons = compare_diagonals() if options.fn is None else []
  number = ''
  if comparisons:
    say(f'1. Diagonals of Hessians\n\n{describe_diagonals(comparisons)}\n')
    number = '2. '
  say(f'{number}Draws from {target.name}: {target.description}\n')
  began = time.perf_counter()
  with _explaining(options), _brief_warnings():
    _say_what_takes_long(options)
    found = sample_posterior(
      target.target_log_prob_fn,
      options.draws or MOST_DRAWS,
      init=start,
      kernel=options.kernel,
      preconditioner=options.preconditioner,
      num_warmup_steps=options.warmup,
      stop_when=None if options.draws else judge.is_enough,
      jit_compile=options.xla,
      seed=options.seed,
    )
  seconds = time.perf_counter() - began
  parameters = judge.parameters(found.draws)
  # First of all: what was drawn is not lost to whatever comes after.
  if options.save is not None:
    save_draws(options.save, target, parameters, found)
  try:
    if found.summary is None:
      raise KeyboardInterrupt
    verdict = None
    if len(found.trace['is_accepted']) >= LEAST_DRAWS:
      verdict = judge.verdict(parameters, found.trace, found.summary.warnings)
    report = make_report(target, found, verdict, seconds)
    say(describe_report(report))
    if options.plot is not None and verdict is not None:
      draw_picture(
        options.plot,
        _title(target, report),
        parameters,
        target.marginal_pdf,
        verdict.summary,
      )
      say(f'\nPicture: {options.plot}')
  except KeyboardInterrupt:
    num_draws = len(found.trace['is_accepted'])
    where = f' are in {options.save}' if options.save else ' were not saved'
    print(
      f'\nInterrupted while draws were judged; {num_draws:,} for each '
      f'chain{where}.',
      file=sys.stderr,
    )
    return 130
  if options.save is not None:
    say(f'\nDraws: {options.save}')
  if options.json:
    print(json.dumps({'diagonals': comparisons, 'sampling': report}, indent=2))
  if report['interrupted']:
    most = options.draws or MOST_DRAWS
    num_draws = len(found.trace['is_accepted'])
    say(f'\nInterrupted after {num_draws:,} of {most:,} draws.')
    return 130
  return 0 if report['converged'] else 3


def _target(options):
  if options.fn is None:
    return targets.get(options.target)
  return user_target(options.fn, options.init)


def _say_what_takes_long(options):
  """Where the progress bar will be, which begins with the first draw."""
  if sys.stderr.isatty():
    most = f'{options.draws:,}' if options.draws else f'{FIRST_DRAWS:,} or more'
    print(
      f'Compiles, warms up {options.chains} chains by {options.warmup:,} '
      f'trajectories, then makes {most} draws.',
      file=sys.stderr,
    )


@contextlib.contextmanager
def _explaining(options):
  """Says in a sentence why a function of the user's cannot be sampled."""
  try:
    yield
  except Exception as e:
    if options.fn is None:
      raise
    way_out = ''
    if options.xla and 'compil' in str(e):
      way_out = ' XLA does not know all ops: try --no-xla.'
    raise InputError(
      f'{options.fn} cannot be sampled: {one_line(e)}{way_out}'
    ) from e


@contextlib.contextmanager
def _brief_warnings():
  """A line for each warning that the report does not give."""
  with warnings.catch_warnings():
    warnings.simplefilter('always', UserWarning)
    for text in _SAID_IN_THE_REPORT:
      warnings.filterwarnings('ignore', f'(?s){text}', UserWarning)
    warnings.showwarning = lambda message, *_, **unused: print(
      f'Note: {message}', file=sys.stderr
    )
    yield


def _title(target, report):
  title = f'{target.name}: {report["chains"]} chains of {report["draws"]} draws'
  return title if report['converged'] else f'{title} (NOT CONVERGED)'
