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


def test_places_that_cannot_be_written_to(tmp_path):
  check_output_file('--save', tmp_path / 'new.npz')
  with pytest.raises(InputError, match='is a folder'):
    check_output_file('--save', tmp_path)
  with pytest.raises(InputError, match='there is no folder'):
    check_output_file('--save', tmp_path / 'missing' / 'new.npz')
