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
"""`python -m tfp_diag plan` on functions of a user."""

import json
import re

import numpy as np
import pytest

import tfp_diag
from tfp_diag.command_line.main import main

FUNCTIONS = """
import tensorflow as tf

def chain(x):
  return -tf.reduce_sum((x[..., 1:] - x[..., :-1]) ** 4, axis=-1)

def school(mu, theta):
  return -mu ** 2 - tf.reduce_sum((theta - mu[..., tf.newaxis]) ** 2, axis=-1)

def ring(x):
  return x ** 3 + tf.roll(x, 1, axis=-1)

def one_state(x):
  return tf.reduce_sum(x ** 4) + x[0] * x[2]

def everything_summed(x):
  return tf.reduce_sum(x ** 4)

def logarithm(x):
  return tf.reduce_sum(tf.math.log(x), axis=-1)

def centered_over_samples(x):
  return tf.reduce_sum((x - tf.reduce_mean(x, axis=0)) ** 2, axis=-1)

def centered(x):
  return x - tf.reduce_mean(x, axis=0)

def centered_and_summed(x):
  return tf.reduce_sum(centered_over_samples(x))

def broken(x):
  raise RuntimeError('no luck')
"""


@pytest.fixture(scope='module')
def user_file(tmp_path_factory):
  path = tmp_path_factory.mktemp('user') / 'functions.py'
  path.write_text(FUNCTIONS, encoding='utf-8')
  return path


def run(user_file, words, capsys):
  """The plan that --json prints."""
  name, *options = words
  status = main(['plan', f'{user_file}:{name}', '--json', *options])
  printed = capsys.readouterr()
  assert status == 0, printed.err
  return json.loads(printed.out)


def test_prints_what_str_of_the_plan_says(user_file, tmp_path, capsys):
  saved = tmp_path / 'plan.npz'
  words = ['plan', f'{user_file}:chain', '--shape', '[50]']
  assert main([*words, '--save', str(saved)]) == 0
  assert str(tfp_diag.load_plan(saved)) in capsys.readouterr().out


@pytest.mark.parametrize(
  'words, passes, nonzeros, event_shapes',
  [
    (['chain', '--shape', '[50]'], 1, 50 + 2 * 49, [[50]]),
    (['chain', '--shape', '50', '--sample-shape', '[3, 2]'], 1, 148, [[50]]),
    # The samples share the colors of a quadratic form.
    (['school', '--shape', '([], [7])'], 1, 8 + 2 * 7, [[], [7]]),
    (['school', '--shape', '{"theta": [7], "mu": []}'], 1, 22, [[7], []]),
    (['school', '--init', '(0., [1., 2.])'], 1, 3 + 2 * 2, [[], [2]]),
    (['ring', '--jacobian', '--shape', '[8]'], 1, 16, [[8]]),
    (
      ['one_state', '--init', '[0.,0.,0.]', '--sample-shape', '[]'],
      1,
      5,
      [[3]],
    ),
    # Zero is outside of the domain, but a shape is all that a plan needs.
    (['logarithm', '--shape', '[5]'], 1, 5, [[5]]),
  ],
)
def test_plans(words, passes, nonzeros, event_shapes, user_file, capsys):
  plan = run(user_file, words, capsys)
  assert plan['num_passes'] == passes
  assert plan['nonzeros'] == nonzeros
  assert plan['event_shapes'] == event_shapes
  assert plan['num_coordinates'] == sum(
    int(np.prod(shape)) for shape in event_shapes
  )
  assert plan['kind'] == ('jacobian' if '--jacobian' in words else 'hessian')


def test_the_picture_and_the_plan_are_written(user_file, tmp_path, capsys):
  picture, saved = tmp_path / 'pattern.png', tmp_path / 'plan.npz'
  words = ['ring', '--jacobian', '--shape', '[8]', '--plot', str(picture)]
  plan = run(user_file, [*words, '--save', str(saved)], capsys)
  assert picture.read_bytes()[:4] == b'\x89PNG'
  loaded = tfp_diag.load_plan(saved)
  assert (loaded.kind, loaded.num_passes) == ('jacobian', plan['num_passes'])


def test_text_and_picture_agree(user_file, tmp_path, capsys):
  pytest.importorskip('matplotlib')
  for name, shape, colors, passes in (
    ('chain', '[50]', '2; squared sweeps instead of a pass for each', '1 pass'),
    (
      'ring --jacobian',
      '[8]',
      '2; on returning paths instead of a pass for each',
      '1 pass',
    ),
  ):
    path = tmp_path / 'pattern.svg'
    name, *more = name.split()
    words = ['plan', f'{user_file}:{name}', '--shape', shape, *more]
    assert main([*words, '--plot', str(path)]) == 0
    printed = capsys.readouterr().out
    assert f'  colors       {colors}\n' in printed
    assert f': {passes} instead of' in printed
    drawn = texts(path)
    assert any(f': {passes}, ' in text for text in drawn)
    assert any(text.endswith(', 2 colors') for text in drawn)


def texts(path):
  """What is written in an SVG picture of matplotlib."""
  return re.findall('<!-- (.*?) -->', path.read_text(encoding='utf-8'))


@pytest.mark.parametrize(
  'shape, names', [('([], [7])', ['mu', 'theta']), ('([], [70])', None)]
)
def test_the_picture_names_the_parts(shape, names, user_file, tmp_path):
  pytest.importorskip('matplotlib')
  path = tmp_path / 'pattern.svg'
  words = ['plan', f'{user_file}:school', '--shape', shape]
  assert main([*words, '--plot', str(path)]) == 0
  drawn = texts(path)
  for name in names or ['mu', 'theta', 'coordinate']:
    # Of columns and of rows.
    assert drawn.count(name) == 2


def test_names_without_room_stand_together(tmp_path):
  pytest.importorskip('matplotlib')
  (tmp_path / 'model.py').write_text(
    'import tensorflow as tf\n\ndef f(a, b, c):\n'
    '  return -a**2 - b**2 - tf.reduce_sum(c**2, -1)\n'
  )
  path = tmp_path / 'pattern.svg'
  words = ['plan', f'{tmp_path}/model.py:f', '--shape', '([], [], [60])']
  assert main([*words, '--plot', str(path)]) == 0
  assert texts(path).count('a, b') == texts(path).count('c') == 2


@pytest.mark.parametrize(
  'size, is_each', [(40, True), (900, True), (2000, False)]
)
def test_entries_have_a_pixel_where_there_is_room(
  size, is_each, user_file, tmp_path
):
  pytest.importorskip('matplotlib')
  path = tmp_path / 'pattern.svg'
  words = ['plan', f'{user_file}:chain', '--shape', f'[{size}]']
  assert main([*words, '--plot', str(path)]) == 0
  drawn = texts(path)
  assert 'coordinate of x' in drawn
  assert any('(a dot: ' in text for text in drawn) != is_each


@pytest.mark.parametrize(
  'name, way_out, advice',
  [
    (
      'centered_over_samples',
      'centered_and_summed',
      'a --shape of the batch, and the sum of the log densities.',
    ),
    ('centered --jacobian', 'centered --jacobian', 'a --shape of the batch.'),
  ],
)
def test_the_advice_for_mixed_samples_works(
  name, way_out, advice, user_file, capsys
):
  name, *options = name.split()
  words = ['plan', f'{user_file}:{name}', *options]
  assert main([*words, '--shape', '[3]']) == 2
  assert f'--sample-shape "[]" with {advice}' in capsys.readouterr().err
  words[1] = f'{user_file}:{way_out.split()[0]}'
  assert main([*words, '--shape', '[2, 3]', '--sample-shape', '[]']) == 0


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['chain'], 'either --init'),
    (['chain', '--init', '[0.]', '--shape', '[1]'], 'either --init'),
    (['chain', '--shape', '[-3]'], 'is not a shape like [1000]'),
    (['chain', '--shape', 'many'], '--shape many is not a number'),
    (['chain', '--shape', '[0]'], 'has no coordinates'),
    (['chain', '--shape', '[1000000000000000]'], 'is too large'),
    (['chain', '--shape', '[3]', '--sample-shape', '[0]'], 'positive sizes'),
    (['chain', '--shape', '[3]', '--sample-shape', 'x'], 'positive sizes'),
    (['chain', '--shape', '[3]', '--sample-shape', '{[1]}'], 'positive sizes'),
    (['chain', '--shape', '[3]', '--sample-shape', '[10**11]'], 'positive'),
    # Of fewer numbers TensorFlow waits ten seconds for the memory.
    (
      ['chain', '--shape', '[3]', '--sample-shape', '[4000000000000000000]'],
      'no plan',
    ),
    (['chain', '--shape', '[True]'], 'is not a shape like [1000]'),
    (['chain', '--init', '{[1]: 2}'], '--init'),
    (
      ['everything_summed', '--shape', '[3]'],
      'pass the right `sample_shape`',
    ),
    (['chain', '--shape', '[3]', '--jacobian'], 'does not broadcast'),
    (['centered_over_samples', '--shape', '[3]'], '--sample-shape "[]"'),
    (['broken', '--shape', '[3]'], 'no luck'),
  ],
)
def test_bad_input_is_one_sentence(words, sentence, user_file, capsys):
  name, *options = words
  assert main(['plan', f'{user_file}:{name}', *options]) == 2
  printed = capsys.readouterr()
  assert printed.out == ''
  assert printed.err.count('\n') == 1
  assert printed.err.startswith('python -m tfp_diag: ')
  assert sentence in printed.err
