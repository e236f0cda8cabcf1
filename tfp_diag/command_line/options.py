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
"""The options of the main job."""

import argparse
import textwrap

from tfp_diag.command_line.function_file import function_file
from tfp_diag.command_line.input_error import InputError
from tfp_diag.command_line.listed_targets import LISTED_TARGETS
from tfp_diag.command_line.literal import read_literal
from tfp_diag.command_line.one_sentence_parser import OneSentenceParser
from tfp_diag.command_line.picture import check_outputs
from tfp_diag.version import __version__

# R-hat compares chains, and splits each of them into two halves of two draws.
LEAST_DRAWS = 4
# Without --draws: as many at least, and no more.
FIRST_DRAWS, MOST_DRAWS = 1000, 20_000
# Those of `sample_posterior`, which needs TensorFlow.
KERNELS = ('auto', 'malt', 'mala')
PRECONDITIONERS = ('auto', 'dense', 'low_rank', 'diagonal', 'local')


def parse_options(words):
  """Reads the command line of the main job, without TensorFlow.

  Args:
    words: List of `str`, what follows `python -m tfp_diag`.

  Returns:
    A namespace with the attributes target, fn, init, chains, draws, warmup,
    kernel, preconditioner, seed, xla, save, json and plot.

  Raises:
    InputError: if an option is unknown, has a value that does not fit, or does
      not go with the others; if there is no file for `--fn`; or if a result
      could not be written.
  """
  options = _parser().parse(words)
  if options.step_size is not None:
    raise InputError(
      '--step-size is gone: the warm-up finds the step size; leave it out, and '
      'see --kernel, --preconditioner and --warmup.'
    )
  _check_numbers(options)
  if options.fn is None:
    if options.init is not None:
      raise InputError(
        '--init goes with --fn PATH.py:NAME; a target has its own start.'
      )
    if options.target not in LISTED_TARGETS:
      raise InputError(
        f'There is no target {options.target!r}; --target must be one of '
        f'{", ".join(LISTED_TARGETS)}.'
      )
  else:
    function_file(options.fn)
    if options.init is None:
      raise InputError(
        '--fn needs a starting point of the right shape, for example '
        '--init "[0., 0.]".'
      )
    read_literal('--init', options.init)
  if (options.kernel, options.preconditioner) == ('malt', 'local'):
    raise InputError(
      '--preconditioner local changes from point to point, but --kernel malt '
      'takes a constant one; use --kernel mala.'
    )
  check_outputs(options)
  return options


# Of what `--help` shows.
_WIDTH = 79


def _parser():
  parser = OneSentenceParser(
    prog='python -m tfp_diag',
    description=textwrap.fill(
      'Compares diagonals of Hessians with their closed form (not with --fn), '
      'then draws from a posterior with tfp_diag.mcmc.sample_posterior and '
      'judges the draws. Another command, python -m tfp_diag plan, shows the '
      'structure of a log density.',
      _WIDTH,
    ),
    epilog=f'{_list_of_targets()}\n\n{_EXIT_STATUS}',
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    '--version', action='version', version=f'tfp_diag {__version__}'
  )
  what = parser.add_argument_group(
    'what to sample'
  ).add_mutually_exclusive_group()
  what.add_argument(
    '--target',
    metavar='NAME',
    default='eight_schools',
    help='one of the targets below (default: %(default)s)',
  )
  what.add_argument(
    '--fn',
    metavar='PATH.py:NAME',
    help='a log density of your own: a function of a state with a leading '
    'axis of chains that returns one value per chain',
  )
  parser.add_argument(
    '--init',
    metavar='VALUE',
    help='where --fn starts: a number, a list "[0., 0.]", a tuple of parts '
    '"(0., [1., 1.])" or a dict of keyword arguments "{\'mu\': 0.}"; the '
    'chains start near it',
  )
  how = parser.add_argument_group('how')
  how.add_argument(
    '--chains', type=int, default=64, help='default: %(default)s'
  )
  how.add_argument(
    '--draws',
    type=int,
    help=f'per chain (default: {FIRST_DRAWS:,}, and on until the chains '
    f'agree, at most {MOST_DRAWS:,})',
  )
  how.add_argument(
    '--warmup',
    type=int,
    default=400,
    help='trajectories that find all settings, and are not kept (default: '
    '%(default)s)',
  )
  how.add_argument(
    '--kernel',
    choices=KERNELS,
    default='auto',
    help='Langevin trajectories of many steps (malt) or of one (mala); auto '
    'chooses, and the report says which (default: %(default)s)',
  )
  how.add_argument(
    '--preconditioner',
    choices=PRECONDITIONERS,
    metavar='KIND',
    default='auto',
    help='dense: a matrix of all coordinates; low_rank: a scale for each of '
    'them, and some directions; diagonal: the scales alone; local: the '
    'curvature at each point, for mala; auto chooses (default: %(default)s)',
  )
  how.add_argument('--step-size', help=argparse.SUPPRESS)
  how.add_argument('--seed', type=int, default=0, help='default: %(default)s')
  how.add_argument(
    '--no-xla',
    dest='xla',
    action='store_false',
    help='run in a TensorFlow graph that XLA does not compile',
  )
  out = parser.add_argument_group('results')
  out.add_argument(
    '--save',
    metavar='FILE.npz',
    help='keep the draws in a NumPy archive, also after Ctrl-C',
  )
  out.add_argument(
    '--json',
    action='store_true',
    help='print the results as JSON instead of tables',
  )
  out.add_argument(
    '--plot', metavar='FILE', help='draw marginals and traces (.png, .pdf ...)'
  )
  return parser


_EXIT_STATUS = """exit status:
  0    the draws have converged
  1    what is printed cannot be written
  2    an option, a file or a function does not fit
  3    the draws have not converged, or more than 0.2 % of the proposals
       diverged or were not finite (from 0.01 % on the report doubts the draws)
  130  Ctrl-C; what was drawn until then is reported and saved"""


def _list_of_targets():
  width = max(map(len, LISTED_TARGETS))
  lines = [
    textwrap.fill(
      f'  {name.ljust(width)}  {description}',
      _WIDTH,
      subsequent_indent=' ' * (width + 4),
    )
    for name, description in LISTED_TARGETS.items()
  ]
  return '\n'.join(['targets:', *lines])


_LEAST = {'chains': 2, 'draws': LEAST_DRAWS, 'warmup': 0, 'seed': 0}


def _check_numbers(options):
  for name, least in _LEAST.items():
    value = getattr(options, name)
    if value is not None and value < least:
      raise InputError(f'--{name} is {value} and must be at least {least}.')
    if value is not None and value >= 2**31:
      raise InputError(f'--{name} is {value} and must be less than 2**31.')
