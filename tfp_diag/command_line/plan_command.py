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
"""`python -m tfp_diag plan`: the structure of a log density of the user."""

import pathlib

from tfp_diag.command_line.input_error import InputError, one_line
from tfp_diag.command_line.one_sentence_parser import OneSentenceParser
from tfp_diag.command_line.output_files import atomic_write, check_output_file
from tfp_diag.command_line.picture import check_picture
from tfp_diag.command_line.starting_points import starting_points
from tfp_diag.command_line.user_target import user_target
from tfp_diag.plan_diag_hessian import plan_diag_hessian
from tfp_diag.sparsity import color_diagonal

__all__ = ['plan_command']

# So that a density which mixes samples is seen.
NUM_SAMPLES = 2


def plan_command(words):
  """Prints the plan of a diagonal Hessian, and draws its pattern.

  Args:
    words: List of `str`, what follows `plan`.

  Returns:
    The exit status 0.

  Raises:
    InputError: if an option, a file or a function does not fit, or if the
      function mixes samples.
  """
  options = _parser().parse(words)
  if options.save is not None:
    check_output_file('--save', options.save)
  if options.plot is not None:
    check_picture(options.plot)
  target = user_target(options.fn, options.init)
  start = starting_points(target, NUM_SAMPLES, (0, 0))
  try:
    plan = plan_diag_hessian(target.target_log_prob_fn, start)
  except ValueError as e:
    raise InputError(f'{options.fn} has no plan: {one_line(e)}') from e
  print(plan)
  if options.save is not None:
    plan.save(options.save)
    print(f'\nPlan: {options.save}')
  if options.plot is not None:
    _draw(options.plot, plan.pattern)
    print(f'\nPicture: {options.plot}')
  return 0


def _parser():
  parser = OneSentenceParser(
    prog='python -m tfp_diag plan',
    description=(
      'Says how many passes the diagonal Hessian of a log density takes, and '
      'why; draws its conditional-independence pattern.'
    ),
    allow_abbrev=False,
  )
  parser.add_argument(
    'fn',
    metavar='PATH.py:NAME',
    help='a function of a state with a leading axis of chains that returns '
    'one value per chain',
  )
  parser.add_argument(
    '--init',
    metavar='VALUE',
    required=True,
    help='a state of one chain: a number, a list "[0., 0.]", a tuple of parts '
    '"(0., [1., 1.])" or a dict of keyword arguments',
  )
  parser.add_argument(
    '--plot', metavar='FILE', help='draw the pattern (.png, .pdf ...)'
  )
  parser.add_argument(
    '--save',
    metavar='FILE.npz',
    help='keep the plan for tfp_diag.load_plan',
  )
  return parser


def _draw(path, pattern):
  from matplotlib.backends import backend_agg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(6.4, 5.2), layout='constrained')
  backend_agg.FigureCanvasAgg(figure)
  pattern.spy(figure.subplots(), coloring=color_diagonal(pattern))
  suffix = pathlib.Path(path).suffix[1:].lower()
  with atomic_write(path) as file:
    figure.savefig(file, format=suffix, dpi=200, bbox_inches='tight')
