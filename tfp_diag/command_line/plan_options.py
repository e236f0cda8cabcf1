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
"""The options of `python -m tfp_diag plan`."""

from tfp_diag.command_line.function_file import function_file
from tfp_diag.command_line.input_error import InputError
from tfp_diag.command_line.literal import read_literal
from tfp_diag.command_line.one_sentence_parser import OneSentenceParser
from tfp_diag.command_line.picture import check_outputs

# Two, so that a function which mixes samples is seen.
SAMPLE_SHAPE = [2]


def parse_plan_options(words):
  """Reads the command line of `plan`, without TensorFlow.

  Args:
    words: List of `str`, what follows `plan`.

  Returns:
    A namespace with the attributes fn, init, shape, sample_shape (a list of
    `int`), jacobian, plot, save and json.

  Raises:
    InputError: if there is no such file; if an option is unknown, has a value
      that does not fit, or does not go with the others; or if a result could
      not be written.
  """
  options = _parser().parse(words)
  function_file(options.fn)
  if (options.init is None) == (options.shape is None):
    raise InputError(
      'Say what a state looks like with either --init "[0., 0.]" or '
      '--shape "[1000]".'
    )
  if options.init is not None:
    read_literal('--init', options.init)
  else:
    read_literal('--shape', options.shape)
  options.sample_shape = _sample_shape(options.sample_shape)
  check_outputs(options)
  return options


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
    help='a state of one chain: a number, a list "[0., 0.]", a tuple of parts '
    '"(0., [1., 1.])" or a dict of keyword arguments',
  )
  parser.add_argument(
    '--shape',
    metavar='SHAPE',
    help='in the place of --init, only its shape: "[1000]", or for several '
    'parts "([], [1000])"',
  )
  parser.add_argument(
    '--sample-shape',
    metavar='SHAPE',
    default=str(SAMPLE_SHAPE),
    help='the axes of samples that lead the state (default: %(default)s); "[]" '
    'for a function of a single state',
  )
  parser.add_argument(
    '--jacobian',
    action='store_true',
    help='the function returns a value for each coordinate, not a log density, '
    'and the plan is for the diagonal of its Jacobian',
  )
  out = parser.add_argument_group('results')
  out.add_argument(
    '--plot', metavar='FILE', help='draw the pattern (.png, .pdf ...)'
  )
  out.add_argument(
    '--save', metavar='FILE.npz', help='keep the plan for tfp_diag.load_plan'
  )
  out.add_argument('--json', action='store_true', help='print the plan as JSON')
  return parser


def _sample_shape(text):
  try:
    sizes = read_literal('--sample-shape', text)
  except InputError:
    sizes = None
  sizes = [sizes] if isinstance(sizes, int) else sizes
  if not isinstance(sizes, (list, tuple)) or any(
    not isinstance(size, int) or isinstance(size, bool) or size < 1
    for size in sizes
  ):
    raise InputError(
      f'--sample-shape {text} must be a list of positive sizes, like [2] or [].'
    )
  return list(sizes)
