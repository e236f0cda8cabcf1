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

import tensorflow as tf

from tfp_diag.command_line.diagonals import (
  compare_diagonals,
  describe_diagonals,
)
from tfp_diag.command_line.draw_chains import draw_chains
from tfp_diag.command_line.input_error import InputError, one_line
from tfp_diag.command_line.options import LEAST_DRAWS, parse_options
from tfp_diag.command_line.output_files import check_output_file
from tfp_diag.command_line.picture import check_picture, draw_picture
from tfp_diag.command_line.report import describe_report, make_report
from tfp_diag.command_line.save_draws import save_draws
from tfp_diag.command_line.starting_points import starting_points
from tfp_diag.command_line.user_target import user_target
from tfp_diag.examples import targets
from tfp_diag.mcmc import summarize

__all__ = ['main_job']


def main_job(words):
  """Runs the main job.

  Args:
    words: List of `str`, its options.

  Returns:
    The exit status: 0, or 130 if Ctrl-C ended the drawing early.

  Raises:
    InputError: if an option, a file or a function does not fit; before
      anything is computed, where that can be seen.
  """
  options = parse_options(words)
  target, start = _check_everything(options)

  def say(text):
    if not options.json:
      print(text, flush=True)

  comparisons = compare_diagonals()
  say(f'1. Diagonals of Hessians\n\n{describe_diagonals(comparisons)}\n')
  say(f'2. Draws from {target.name}: {target.description}\n')
  with _explaining(options):
    draws = draw_chains(
      target.target_log_prob_fn,
      start,
      num_draws=options.draws,
      num_warmup=options.warmup,
      step_size=options.step_size,
      seed=options.seed,
      use_xla=options.xla,
    )
  parameters = _named_parameters(target, draws.state)
  # First of all: what was drawn is not lost to whatever comes after.
  if options.save is not None:
    save_draws(options.save, target, parameters, draws)
  enough = len(draws.is_accepted) >= LEAST_DRAWS
  # The same numbers whether arviz is installed or not, and no time to load it.
  summary = summarize(parameters, backend='tfp') if enough else None
  report = make_report(target, draws, summary)
  say(describe_report(report))
  if options.plot is not None and enough:
    draw_picture(
      options.plot,
      _title(target, report),
      parameters,
      target.marginal_pdf,
      summary,
    )
    say(f'\nPicture: {options.plot}')
  if options.save is not None:
    say(f'\nDraws: {options.save}')
  if options.json:
    print(json.dumps({'diagonals': comparisons, 'sampling': report}, indent=2))
  if report['interrupted']:
    say(f'\nInterrupted after {report["draws"]} of {options.draws} draws.')
    return 130
  return 0


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


def _check_everything(options):
  """Raises an `InputError` now rather than after minutes of sampling."""
  if options.save is not None:
    check_output_file('--save', options.save)
  if options.plot is not None:
    check_picture(options.plot)
  if options.fn is None:
    target = targets.get(options.target)
  else:
    target = user_target(options.fn, options.init)
  return target, starting_points(target, options.chains, (options.seed, 0))


def _named_parameters(target, state):
  """NumPy arrays [draws, chains] by the names of the parameters."""
  structure = target.init(1, (0, 0))
  packed = tf.nest.pack_sequence_as(structure, [tf.constant(p) for p in state])
  return {
    name: values.numpy()
    for name, values in target.to_parameters(packed).items()
  }


def _title(target, report):
  title = f'{target.name}: {report["chains"]} chains of {report["draws"]} draws'
  return title if report['converged'] else f'{title} (NOT CONVERGED)'
