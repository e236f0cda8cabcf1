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
"""Files are there completely or not at all."""

import os
import stat

import pytest

from tfp_diag.command_line import picture
from tfp_diag.command_line.input_error import InputError
from tfp_diag.command_line.output_files import check_output_file
from tfp_diag.internal.atomic_write import atomic_write


def test_a_file_is_replaced_at_the_end(tmp_path):
  path = tmp_path / 'file.bin'
  path.write_bytes(b'old')
  with atomic_write(path) as file:
    file.write(b'new')
    file.flush()
    assert path.read_bytes() == b'old'
  assert path.read_bytes() == b'new'
  assert os.listdir(tmp_path) == ['file.bin']


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt])
def test_an_interruption_leaves_the_old_file(error, tmp_path):
  path = tmp_path / 'file.bin'
  path.write_bytes(b'old')
  with pytest.raises(error), atomic_write(path) as file:
    file.write(b'half')
    raise error
  assert path.read_bytes() == b'old'
  assert os.listdir(tmp_path) == ['file.bin']


def test_permissions_are_those_of_any_new_file(tmp_path):
  (tmp_path / 'plain').write_bytes(b'')
  with atomic_write(tmp_path / 'atomic') as file:
    file.write(b'')
  modes = [
    stat.S_IMODE((tmp_path / name).stat().st_mode)
    for name in ('plain', 'atomic')
  ]
  assert modes[0] == modes[1]


@pytest.mark.parametrize(
  'name, sentence',
  [
    ('', 'is a folder'),
    ('missing/new.npz', 'there is no folder'),
    ('new.txt', r'new.txt must end in .npz\.'),
    ('new', r'new must end in .npz\.'),
    (f'{"x" * 300}.npz', 'File name too long'),
    # Where root may write, but no file can be made.
    ('/proc/new.npz', 'cannot be written'),
  ],
)
def test_places_that_cannot_be_written_to(tmp_path, name, sentence):
  with pytest.raises(InputError, match=sentence):
    check_output_file('--save', tmp_path / name, ['npz'])


@pytest.mark.parametrize('name', ['new.npz', 'NEW.NPZ', 'old.npz'])
def test_a_place_is_tried_and_left_as_it_was(tmp_path, name):
  (tmp_path / 'old.npz').write_bytes(b'old')
  check_output_file('--save', tmp_path / name, ['npz', 'png'])
  assert os.listdir(tmp_path) == ['old.npz']
  assert (tmp_path / 'old.npz').read_bytes() == b'old'


def test_matplotlib_knows_the_endings_of_pictures(tmp_path):
  known = pytest.importorskip('matplotlib.backend_bases')
  assert set(picture.ENDINGS) <= set(known.FigureCanvasBase.filetypes)
