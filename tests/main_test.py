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
"""`python -m tfp_diag`, option by option."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.command_line import main_job as main_job_module
from tfp_diag.command_line import options
from tfp_diag.command_line.diagonals import compare_diagonals
from tfp_diag.command_line.judge import Judge
from tfp_diag.command_line.listed_targets import LISTED_TARGETS
from tfp_diag.command_line.main import main
from tfp_diag.command_line.report import describe_report, make_report
from tfp_diag.examples import targets
from tfp_diag.internal.warn import warn
from tfp_diag.mcmc.diagnose.convergence_warnings import (
  sampler_warnings,
  unreached,
)
from tfp_diag.mcmc.run import sample_posterior
from tfp_diag.mcmc.run.sampling_run import SamplingRun

SMALL = ['--chains', '8', '--draws', '60', '--warmup', '40', '--no-xla']

LOG_DENSITIES = """
import tensorflow as tf

def normal(x):
  return -0.5 * tf.reduce_sum((x - 3.0) ** 2, axis=-1)

def two_parts(mu, z):
  return -0.5 * mu ** 2 - 0.5 * tf.reduce_sum(z ** 2, axis=-1)

def everything_summed(x):
  return -0.5 * tf.reduce_sum(x ** 2)

def undefined(x):
  return tf.reduce_sum(tf.math.log(x), axis=-1)

def doubled(x):
  return tf.cast(-tf.reduce_sum(x ** 2, axis=-1), tf.float64)

def of_float64(x):
  return tf.reduce_sum(x * tf.constant(2.0, tf.float64), axis=-1)

def broken(x):
  return tf.linalg.matmul(x, x[:, :1])

def chain(x):
  steps = x[:, 1:] - 0.9 * x[:, :-1]
  return -0.5 * tf.reduce_sum(steps ** 2, axis=-1) - 0.5 * x[:, 0] ** 2

def centered_over_chains(x):
  x = x - tf.reduce_mean(x, axis=0)
  return -0.5 * tf.reduce_sum(x ** 2, axis=-1)

def half_line(x):
  return tf.reduce_sum(tf.math.log(x) - x, axis=-1)

number = 3
"""


@pytest.fixture(scope='module')
def user_file(tmp_path_factory):
  path = tmp_path_factory.mktemp('user') / 'densities.py'
  path.write_text(LOG_DENSITIES, encoding='utf-8')
  return path


@pytest.fixture
def no_diagonals(monkeypatch):
  """Leaves out the first step, which other tests look at."""
  monkeypatch.setattr(main_job_module, 'compare_diagonals', lambda: [])


def run_json(words, capsys):
  status = main([*SMALL, '--json', *words])
  printed = capsys.readouterr()
  assert status in (0, 3), printed.err
  found = json.loads(printed.out)
  assert found['sampling']['converged'] == (status == 0)
  return found


def check_picture(path):
  start = {'.png': b'\x89PNG', '.pdf': b'%PDF'}[path.suffix]
  assert path.read_bytes()[:4] == start
  assert path.stat().st_size > 10_000


@pytest.fixture(scope='module')
def comparisons():
  return compare_diagonals()


def test_diagonals_equal_the_closed_form(comparisons):
  precision = np.linalg.inv([[1, 0.25, 0.25], [0.25, 2, 0.25], [0.25, 0.25, 3]])
  gaussian, quartic = comparisons
  np.testing.assert_allclose(
    gaussian['closed_form'], -np.diag(precision), rtol=1e-12
  )
  for comparison in (gaussian, quartic):
    for row in comparison['rows'][:-1]:
      assert 'tfp.math' not in row['method']
      assert row['max_error'] < 1e-5, row


def test_passes_are_reported(comparisons):
  passes = [row['passes'] for row in comparisons[0]['rows']]
  # Three coordinates that all meet. The Jacobian is one of a score, which is
  # seen to have a Hessian; 15 samples share one pass. Without a sample shape
  # there are 3 x 5 x 3 of them, and the samples are found to be independent.
  assert passes == [1, 1, 1, 3]


def test_upstream_is_wrong_where_the_curvature_varies(comparisons):
  # Should this fail, upstream has been repaired, and the table has lost its
  # point.
  gaussian, quartic = (comparison['rows'][-1] for comparison in comparisons)
  assert gaussian['method'].startswith('tfp.math.diag_jacobian')
  assert gaussian['max_error'] < 1e-5
  assert quartic['max_error'] > 1.0


def test_the_main_job_prints_both_tables(capsys, comparisons, monkeypatch):
  monkeypatch.setattr(main_job_module, 'compare_diagonals', lambda: comparisons)
  status = main([*SMALL, '--target', 'gaussian_3d', '--seed', '3'])
  printed = capsys.readouterr().out
  assert status == 3
  for word in (
    'diag_hessian',
    'closed form',
    'swaps results between samples',
    'R-hat',
    'MCSE',
    'ESS',
    'exact mean',
    'acceptance rate',
    'Kernel: Langevin trajectories (malt) of',
    'Dense preconditioner',
    'NOT CONVERGED',
  ):
    assert word in printed


@pytest.mark.parametrize('name', list(targets.TARGETS))
def test_every_target_runs(name, capsys, no_diagonals):
  report = run_json(['--target', name], capsys)['sampling']
  names = [entry['name'] for entry in report['parameters']]
  assert report['target'] == name
  assert names == list(targets.get(name).parameter_names)
  assert 0.0 < report['acceptance_rate'] <= 1.0


def test_a_gaussian_is_recovered_and_called_converged(capsys, no_diagonals):
  words = ['--target', 'gaussian_3d', '--draws', '1500', '--warmup', '400']
  report = run_json(words, capsys)['sampling']
  assert report['converged'], report['complaints']
  assert abs(report['acceptance_rate'] - 0.9) < 0.06
  for entry, variance in zip(report['parameters'], [1.0, 2.0, 3.0]):
    assert entry['r_hat'] < 1.01
    # Twelve normal variates beyond 5: a false alarm in 10^6 seeds.
    assert abs(entry['mean']) < 5 * entry['mcse']
    assert abs(entry['sd'] / np.sqrt(variance) - 1) < 0.15
  for notes, said in (['One.'], 'note.'), (['One.', 'Two.'], 'notes.'):
    text = describe_report({**report, 'notes': notes})
    assert text.endswith(f'but see the {said}')


def test_non_convergence_is_said_plainly(capsys, no_diagonals):
  status = main([*SMALL, '--target', 'gaussian_ill_conditioned'])
  assert status == 3
  printed = capsys.readouterr()
  assert 'NOT CONVERGED. Do not use these numbers yet.' in printed.out
  assert 'R-hat is 1.01 or more for x' in ' '.join(printed.out.split())
  # What `sample_posterior` warns of is in the report.
  assert printed.err == ''


def test_the_advice_after_non_convergence_works(capsys, no_diagonals):
  words = ['--target', 'gaussian_3d', '--chains', '8', '--no-xla']
  assert main([*words, '--draws', '100', '--warmup', '20']) == 3
  said = re.search(
    r'Try (--\w+\s+\d+)\s+(--\w+\s+\d+)', capsys.readouterr().out
  )
  assert main([*words, *said[1].split(), *said[2].split()]) == 0


def test_without_a_number_of_draws_it_draws_until_chains_agree(
  capsys, no_diagonals, monkeypatch
):
  # Over in seconds also where it does not stop by itself.
  monkeypatch.setattr(main_job_module, 'MOST_DRAWS', 4000)
  words = ['--chains', '64', '--warmup', '100', '--no-xla', '--json']
  assert main([*words, '--target', 'gaussian_3d']) == 0
  report = json.loads(capsys.readouterr().out)['sampling']
  assert report['draws'] == options.FIRST_DRAWS
  assert not report['interrupted']


def test_kernel_and_preconditioner(capsys, no_diagonals):
  words = ['--kernel', 'mala', '--preconditioner', 'diagonal']
  report = run_json(['--target', 'gaussian_ar1', *words], capsys)['sampling']
  assert report['kernel'] == 'mala'
  assert report['preconditioner'] == 'diagonal'


def test_the_choices_are_those_of_the_function():
  assert options.KERNELS == sample_posterior._KERNELS
  assert options.PRECONDITIONERS == sample_posterior._PRECONDITIONERS


def test_xla_and_graph_agree(capsys, no_diagonals):
  words = ['--target', 'gaussian_3d', '--chains', '4', '--draws', '20']
  words += ['--warmup', '0', '--json']
  reports = []
  for extra in ([], ['--no-xla']):
    assert main([*words, *extra]) == 3
    reports.append(json.loads(capsys.readouterr().out)['sampling'])
  means = [[p['mean'] for p in r['parameters']] for r in reports]
  np.testing.assert_allclose(*means, rtol=1e-2, atol=1e-3)


def test_the_seed_decides_the_draws(tmp_path, capsys, no_diagonals):
  draws = []
  for i, seed in enumerate(['5', '5', '6']):
    path = tmp_path / f'{i}.npz'
    words = ['--target', 'gaussian_3d', '--seed', seed, '--save', str(path)]
    run_json(words, capsys)
    draws.append(np.load(path)['parameters'])
  np.testing.assert_array_equal(draws[0], draws[1])
  assert np.mean(draws[0] == draws[2]) < 0.01


def test_warmup_finds_scales(tmp_path, capsys, no_diagonals):
  path = tmp_path / 'draws.npz'
  words = ['--target', 'gaussian_ill_conditioned', '--chains', '64']
  words += ['--preconditioner', 'diagonal', '--save', str(path)]
  run_json([*words, '--warmup', '200'], capsys)
  sds = targets.get('gaussian_ill_conditioned').reference_sd
  # Standard deviations from 0.1 to 10.
  ratio = np.load(path)['scale_factor'] / sds
  assert np.max(ratio) < 1.5 * np.min(ratio), ratio


def test_save_writes_everything_without_pickle(tmp_path, capsys, no_diagonals):
  path, picture = tmp_path / 'draws.npz', tmp_path / 'picture.png'
  words = ['--save', str(path), '--plot', str(picture)]
  report = run_json(words, capsys)['sampling']
  assert {*tmp_path.iterdir()} == {path, picture}
  check_picture(picture)
  with np.load(path, allow_pickle=False) as saved:
    assert saved['parameters'].shape == (10, 60, 8)
    assert list(saved['parameter_names'])[:2] == ['mu', 'tau']
    assert saved['state_0'].shape == (60, 8)
    assert saved['state_2'].shape == (60, 8, 8)
    assert saved['scale_factor'].shape == (10, 10)
    assert saved['is_accepted'].shape == (60, 8)
    assert str(saved['target']) == 'eight_schools'
    # theta = mu + tau z.
    theta = (
      saved['state_0'] + np.exp(saved['state_1']) * saved['state_2'].T[3].T
    )
    np.testing.assert_allclose(saved['parameters'][5], theta, atol=1e-5)
    mean = np.mean(saved['parameters'][0], dtype=np.float64)
  assert report['parameters'][0]['mean'] == pytest.approx(mean)


def test_plot_writes_a_picture(tmp_path, capsys, no_diagonals):
  path = tmp_path / 'picture.pdf'
  run_json(['--target', 'banana', '--plot', str(path)], capsys)
  check_picture(path)


def test_a_function_of_the_user(user_file, capsys, no_diagonals):
  words = ['--fn', f'{user_file}:normal', '--init', '[0., 0.]']
  report = run_json([*words, '--draws', '400'], capsys)['sampling']
  assert [p['name'] for p in report['parameters']] == ['x[0]', 'x[1]']
  for entry in report['parameters']:
    assert abs(entry['mean'] - 3.0) < 0.3
    assert 'exact_mean' not in entry


@pytest.mark.parametrize(
  'init, names',
  [
    ('(0., [1., 2.])', ['mu', 'z[0]', 'z[1]']),
    ("{'z': [1., 2.], 'mu': 0.}", ['z[0]', 'z[1]', 'mu']),
    ('(0., [[1.], [2.]])', None),
  ],
)
def test_parts_of_a_state(init, names, user_file, capsys, no_diagonals):
  words = ['--fn', f'{user_file}:two_parts', '--init', init]
  if names is None:
    # z of shape [2, 1] leaves an axis of 2 beside the axis of 8 chains.
    assert main([*SMALL, *words]) == 2
    error = capsys.readouterr().err
    assert 'failed on a state of shape [8] and [8, 2, 1]' in error
    return
  report = run_json(words, capsys)['sampling']
  assert [p['name'] for p in report['parameters']] == names


def test_a_start_outside_the_support_is_moved(user_file, capsys, no_diagonals):
  # Chains start up to 1 beside 0.5, and the density needs x > 0.
  words = ['--fn', f'{user_file}:half_line', '--init', '[0.5]']
  report = run_json(words, capsys)['sampling']
  assert report['acceptance_rate'] > 0.1
  assert report['parameters'][0]['mean'] > 0.0


def bad_words(user_file):
  """What is typed, and a part of the sentence that answers."""
  fn = f'--fn {user_file}'
  return [
    ('--target nobody', "no target 'nobody'; --target must be one of eight_"),
    ('--nonsense', "no option or command '--nonsense'"),
    ('nonsense', "no option or command 'nonsense'"),
    ('--draws many', "invalid int value: 'many'"),
    ('--draws 3', '--draws is 3 and must be at least 4'),
    ('--chains 1', '--chains is 1 and must be at least 2'),
    ('--warmup -1', '--warmup is -1 and must be at least 0'),
    ('--seed -1', '--seed is -1'),
    ('--seed 2147483648', 'less than 2**31'),
    ('--chains 2147483648', 'less than 2**31'),
    ('--step-size 0.1', 'the warm-up finds the step size; leave it out'),
    ('--kernel nuts', "invalid choice: 'nuts'"),
    ('--preconditioner none', "invalid choice: 'none'"),
    ('--init [0.]', '--init goes with --fn'),
    ('--kernel malt --preconditioner local', 'use --kernel mala'),
    (f'{fn}:normal', '--fn needs a starting point'),
    (f'{fn}:normal --target banana --init [0.]', 'not allowed with'),
    ('--fn nowhere.py:f', 'there is no file nowhere.py; a function is given'),
    (f'{fn} --init [0.]', 'must have the form PATH.py:NAME'),
    (f'{fn}:nothing --init [0.]', 'has no function nothing; its functions are'),
    (f'{fn}:number --init [0.]', 'is of type int and must be a function'),
    (f'{fn}:normal --init zero', '--init zero is not a number'),
    (f'{fn}:normal --init [[1.],[2.,3.]]', 'must be equally long'),
    *(
      (f'{fn}:normal --init [{number}]', 'x is not finite in float32')
      for number in ('1e999', '-1e300', 400 * '9')
    ),
    (f'{fn}:normal --init []', 'has no coordinates'),
    (f'{fn}:everything_summed --init [0.,0.]', 'returned shape [] for a state'),
    (f'{fn}:undefined --init [-1.,1.]', 'is nan at the start'),
    (f'{fn}:doubled --init [0.]', 'returned float64 for a state of float32'),
    (f'{fn}:broken --init [0.,0.]', 'failed on a state of shape [64, 2]'),
    (
      f'{fn}:of_float64 --init [0.,0.]',
      'The state is float32, and with float64 it works: cast its constants',
    ),
    ('--save /nowhere/draws.npz', 'there is no folder'),
    (f'--save {"x" * 300}.npz', 'cannot be written: File name too long'),
    ('--save draws.txt', 'must end in .npz'),
    ('--save .', 'is a folder and must be a file'),
    ('--plot picture.docx', 'must end in one of'),
  ]


@pytest.mark.parametrize('case', range(len(bad_words(''))))
def test_bad_input_ends_with_one_sentence(case, user_file, capsys):
  words, sentence = bad_words(user_file)[case]
  assert main(words.split()) == 2
  printed = capsys.readouterr()
  assert printed.out == ''
  assert printed.err.count('\n') == 1
  assert printed.err.startswith('python -m tfp_diag: ')
  assert printed.err.endswith('.\n')
  assert sentence in printed.err


def test_a_file_that_fails_is_bad_input(tmp_path, capsys):
  path = tmp_path / 'bad.py'
  path.write_text('import no_such_package\n', encoding='utf-8')
  assert main(['--fn', f'{path}:f', '--init', '[0.]']) == 2
  assert "No module named 'no_such_package'" in capsys.readouterr().err


@pytest.mark.parametrize('said', ['', "'bye'", '0'])
def test_a_file_that_ends_the_program_is_bad_input(said, tmp_path, capsys):
  path = tmp_path / 'ends.py'
  path.write_text(f'import sys\nsys.exit({said})\n', encoding='utf-8')
  assert main(['plan', f'{path}:f', '--shape', '3']) == 2
  assert f'ended the program, with sys.exit({said}).' in capsys.readouterr().err


@pytest.mark.parametrize('words', [['--help'], ['plan', '--help']], ids=str)
def test_help_fits_into_a_terminal(words, capsys, monkeypatch):
  monkeypatch.setenv('COLUMNS', '80')
  with pytest.raises(SystemExit):
    main(words)
  assert max(map(len, capsys.readouterr().out.splitlines())) < 80


def test_help_lists_the_targets(capsys):
  with pytest.raises(SystemExit) as e:
    main(['--help'])
  assert e.value.code == 0
  printed = capsys.readouterr().out
  for name, target in targets.TARGETS.items():
    assert f'  {name} ' in printed
    assert LISTED_TARGETS[name] == target.description
  assert list(LISTED_TARGETS) == list(targets.TARGETS)
  assert '  3    the draws have not converged' in printed
  for default in (64, 400, 'auto', 0):
    assert f'default: {default}' in printed
    assert f' ({default})' not in printed


@pytest.mark.parametrize(
  'words, status',
  [
    (['--help'], 0),
    (['--version'], 0),
    (['plan', '--help'], 0),
    (['--nonsense'], 2),
    (['--plot', 'picture.docx'], 2),
    (['plan', '--nonsense'], 2),
    (['plan', 'nofile.py'], 2),
    (['plan', 'nofile.py:f', '--shape', '[3]'], 2),
    (['plan', f'{__file__}:f', '--shape', 'many'], 2),
    (['--fn', 'nofile.py:f', '--init', '[0.]'], 2),
    (['--fn', f'{__file__}:f', '--init', 'zero'], 2),
  ],
)
def test_options_are_read_before_tensorflow_is_imported(words, status):
  program = f"""
import runpy, sys
sys.argv[1:] = {words!r}
try:
  runpy.run_module('tfp_diag', run_name='__main__', alter_sys=True)
finally:
  loaded = {{'tensorflow', 'matplotlib', 'scipy'}} & set(sys.modules)
  print('loaded', sorted(loaded), file=sys.stderr)
"""
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True
  )
  assert done.returncode == status
  assert done.stderr.endswith('loaded []\n')


def test_plan_of_a_function(user_file, tmp_path, capsys):
  picture, saved = tmp_path / 'pattern.png', tmp_path / 'plan.npz'
  words = ['plan', f'{user_file}:chain', '--init', str([0.0] * 12)]
  assert main([*words, '--plot', str(picture), '--save', str(saved)]) == 0
  printed = capsys.readouterr().out
  assert 'the samples share the colors' in printed
  assert picture.read_bytes()[:4] == b'\x89PNG'
  assert tfp_diag.load_plan(saved).coloring.num_colors == 2


@pytest.mark.parametrize(
  'words, sentence',
  [
    ('', 'required: PATH.py:NAME'),
    ('nofile.py', 'nofile.py: there is no file nofile.py; a function is'),
    ('nofile.py:f --save /nowhere/p.npz', 'there is no file nofile.py'),
    ('{file}', 'must have the form PATH.py:NAME'),
    (f'{sys.executable}:f --shape [2]', 'must be a .py file'),
    ('{file}:chain', 'either --init'),
    ('{file}:chain --init [0.,0.] extra', "no option or command 'extra'"),
    ('{file}:nothing --init [0.]', 'has no function nothing'),
    ('{file}:undefined --init [-1.]', 'is nan at the start'),
    ('{file}:centered_over_chains --init [0.,0.]', 'SampleMixingError'),
    ('{file}:chain --init [0.,0.] --save /nowhere/p.npz', 'no folder'),
    ('{file}:chain --init [0.,0.] --plot p.docx', 'must end in one of'),
  ],
)
def test_bad_input_for_a_plan(words, sentence, user_file, capsys):
  assert main(['plan', *words.format(file=user_file).split()]) == 2
  printed = capsys.readouterr()
  assert printed.out == ''
  assert printed.err.count('\n') == 1
  assert sentence in printed.err


@pytest.mark.parametrize('fault', ['num_not_finite', 'num_divergences'])
def test_what_the_report_notes_is_not_said_before(fault, capsys):
  counts = {'num_not_finite': 0, 'num_divergences': 0, fault: 8}
  [text] = sampler_warnings((), 4, 1000, **counts)
  with main_job_module._brief_warnings():
    warn(text)
    # The report does not know of that.
    warn(f'{text} In the warm-up 8 chains did not move.')
  said = capsys.readouterr().err
  assert said == f'Note: {text} In the warm-up 8 chains did not move.\n'


@pytest.mark.parametrize(
  ('fault', 'value'), [('diverging', True), ('log_accept_ratio', -np.inf)]
)
@pytest.mark.parametrize(
  ('count', 'converged', 'said'),
  [
    (3, True, '\n\nConverged: every R-hat'),
    (10, True, '\n\nDoubtful: every R-hat'),
    (40, False, '\n\nNOT CONVERGED. Do not use these numbers, good as'),
  ],
)
def test_many_failed_proposals_are_no_convergence(
  fault, value, count, converged, said
):
  """R-hat does not see them, and no longer run helps."""
  target = targets.get('gaussian_3d')
  judge = Judge(target, [tf.zeros([8, 3])])
  draws = np.random.default_rng(0).normal(size=[1000, 8, 3])
  trace = {
    'is_accepted': np.ones([1000, 8], bool),
    'log_accept_ratio': np.zeros([1000, 8]),
    'diverging': np.zeros([1000, 8], bool),
    'n_steps': np.ones([1000], int),
  }
  trace[fault].ravel()[:count] = value
  parameters = judge.parameters([draws])
  warm_up = types.SimpleNamespace(
    windows=(),
    integration_time=1.0,
    damping=1.0,
    step_size=1.0,
    scale=types.SimpleNamespace(kind='dense'),
  )
  found = types.SimpleNamespace(
    trace=trace,
    warm_up=warm_up,
    stopped_by='finished',
    num_gradients=1000,
    num_gradients_warmup=0,
  )
  report = make_report(target, found, judge.verdict(parameters, trace), 1.0)
  assert report['converged'] == converged
  text = describe_report(report)
  assert said in text
  assert '--draws' not in text
  assert judge.is_enough(draws, trace)
  # A mode that no draw is near, whatever else there is.
  missing = unreached(np.full([1, 3], 99.0), draws)
  verdict = judge.verdict(parameters, trace, ['Something else.', *missing])
  report = make_report(target, found, verdict, 1.0)
  assert not report['converged']
  assert set(missing) <= set(report['complaints'])
  assert 'Something else.' not in describe_report(report)


def interrupt_after(num_blocks, cls, monkeypatch):
  """Ctrl-C in the block after so many."""
  blocks = []
  make_block = cls.make_block

  def interrupted(*args):
    blocks.append(None)
    if len(blocks) > num_blocks:
      raise KeyboardInterrupt
    return make_block(*args)

  monkeypatch.setattr(cls, 'make_block', interrupted)


# Five blocks.
LONG = [*SMALL[:2], '--draws', '500', *SMALL[4:], '--target', 'banana']


def test_ctrl_c_keeps_what_was_drawn(
  tmp_path, capsys, monkeypatch, no_diagonals
):
  interrupt_after(2, SamplingRun, monkeypatch)
  path = tmp_path / 'draws.npz'
  assert main([*LONG, '--save', str(path)]) == 130
  printed = capsys.readouterr()
  said = re.search(r'Interrupted after (\d+) of 500 draws\.', printed.out)
  assert printed.err == ''
  with np.load(path) as saved:
    # Of two blocks of 100 steps.
    assert saved['parameters'].shape == (2, int(said[1]), 8)
    assert 4 <= int(said[1]) <= 200


def interrupted(*_, **__):
  raise KeyboardInterrupt


@pytest.mark.parametrize('where', ['sample_posterior', 'judge'])
def test_ctrl_c_while_draws_are_judged_keeps_them(
  where, tmp_path, capsys, monkeypatch, no_diagonals
):
  if where == 'judge':
    monkeypatch.setattr(Judge, 'verdict', interrupted)
  else:
    module = sys.modules['tfp_diag.mcmc.run.sample_posterior']
    monkeypatch.setattr(module, 'summarize', interrupted)
  path = tmp_path / 'draws.npz'
  assert main([*LONG, '--save', str(path)]) == 130
  said = capsys.readouterr().err
  assert f'500 for each chain are in {path}' in said
  with np.load(path) as saved:
    assert saved['parameters'].shape == (2, 500, 8)


def test_ctrl_c_before_the_first_draws_leaves_no_file(
  tmp_path, capsys, monkeypatch, no_diagonals
):
  interrupt_after(0, SamplingRun, monkeypatch)
  path = tmp_path / 'draws.npz'
  assert main([*LONG, '--save', str(path)]) == 130
  assert 'Interrupted before there were results' in capsys.readouterr().err
  assert not path.exists()


def read_until(descriptor, word):
  """What a terminal shows until a word appears, within five minutes."""
  shown = ''
  deadline = time.monotonic() + 300.0
  while word not in shown:
    left = max(0.0, deadline - time.monotonic())
    ready, _, _ = select.select([descriptor], [], [], left)
    assert ready, f'{word!r} did not appear after {shown!r}'
    shown += os.read(descriptor, 4096).decode(errors='replace')
  return shown


def test_a_terminal_shows_progress_and_ctrl_c_works(tmp_path):
  path = tmp_path / 'draws.npz'
  ours, theirs = pty.openpty()
  # As `python -m tfp_diag`, but for the first step, which takes seconds.
  program = (
    'import runpy\n'
    'from tfp_diag.command_line import main_job\n'
    'main_job.compare_diagonals = lambda: []\n'
    "runpy.run_module('tfp_diag', run_name='__main__', alter_sys=True)"
  )
  command = [sys.executable, '-c', program, '--target', 'gaussian_3d']
  command += ['--draws', '1000000', '--chains', '2', '--warmup', '100']
  process = subprocess.Popen(
    [*command, '--no-xla', '--save', str(path)],
    stdout=subprocess.PIPE,
    stderr=theirs,
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
    text=True,
    # Also where the tests run in the background, which ignores it.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
  )
  os.close(theirs)
  try:
    read_until(ours, 'sampling')
    # The bar moves from block to block.
    for _ in range(2):
      read_until(ours, 'left')
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
  finally:
    process.kill()
    os.close(ours)
  assert process.returncode == 130
  assert 'Interrupted after' in out
  assert np.load(path)['parameters'].shape[0] == 3


@pytest.mark.parametrize(
  'body, sentence',
  [
    ('tf.reduce_sum(tf.round(x), -1)', 'cannot be sampled'),
    (
      '-tf.reduce_sum(x**2, -1) + 0.0 * tf.cast('
      'tf.strings.length(tf.strings.as_string(x[:, 0])), tf.float32)',
      '--no-xla',
    ),
  ],
)
def test_a_function_that_cannot_be_sampled(
  tmp_path, capsys, no_diagonals, body, sentence
):
  file = tmp_path / 'model.py'
  file.write_text(f'import tensorflow as tf\n\ndef f(x):\n  return {body}\n')
  words = ['--fn', f'{file}:f', '--init', '[0., 0.]', '--chains', '8']
  assert main([*words, '--draws', '40', '--warmup', '40']) == 2
  said = capsys.readouterr().err.splitlines()
  assert sentence in said[-1]
  assert all(line.startswith('Note: ') for line in said[:-1])
  if sentence == '--no-xla':
    # What it says works.
    words += ['--draws', '40', '--warmup', '40', '--no-xla']
    assert main(words) == 3


def test_names_of_parts_are_not_given_twice(tmp_path, no_diagonals):
  file = tmp_path / 'model.py'
  file.write_text(
    'import tensorflow as tf\n\n'
    'def f(x1, *others):\n  return -x1**2 - others[0]**2\n'
  )
  path = tmp_path / 'draws.npz'
  words = ['--fn', f'{file}:f', '--init', '(0., 0.)', '--save', str(path)]
  assert main([*SMALL, *words]) == 3
  assert list(np.load(path)['parameter_names']) == ['x1', 'x2']


def test_a_terminal_that_knows_only_ascii(monkeypatch):
  streams = [io.TextIOWrapper(io.BytesIO(), 'ascii') for _ in range(2)]
  monkeypatch.setattr(sys, 'stdout', streams[0])
  monkeypatch.setattr(sys, 'stderr', streams[1])
  with pytest.raises(SystemExit) as e:
    main(['--help'])
  assert e.value.code == 0
  assert main(['--target', 'ŷ']) == 2
  for stream, shown in zip(streams, [b'usage', b"no target '\\u0177'"]):
    stream.flush()
    assert shown in stream.buffer.getvalue()


def test_a_reader_that_goes_away():
  command = f'{sys.executable} -m tfp_diag --help | head -n 1'
  environment = dict(os.environ)
  environment.pop('TF_CPP_MIN_LOG_LEVEL', None)
  done = subprocess.run(
    command, shell=True, capture_output=True, text=True, env=environment
  )
  # TensorFlow is silent at its start, too.
  assert done.stdout.startswith('usage') and done.stderr == ''
