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
"""Each wrong argument of each public name gets a sentence."""

import collections

import pytest

from tests import errors_table


def test_every_public_name_and_argument_has_a_row():
  assert list(errors_table.missing()) == []


def test_what_is_right_is_taken():
  for name, row in errors_table.rows().items():
    if name not in _NOT_CALLED:
      try:
        row.call(**row.good())
      except Exception as error:
        raise AssertionError(name) from error


# Records, and what would sample, or draw a picture.
_NOT_CALLED = {
  *(name for name, row in errors_table.rows().items() if not row.good()),
  'load_draws',
  'register_rule',
  'sample_posterior',
  'sample_posterior by single steps',
  'windowed_adaptive_mala',
}


@pytest.fixture(scope='module')
def found():
  return [errors_table.check(*case) for case in errors_table.cases()]


def test_nothing_wrong_is_taken(found):
  assert [f for f in found if f.verdict == 'silent'] == []


def test_every_sentence_is_clear(found):
  counts = collections.Counter(f.verdict for f in found)
  print(f'{len(found)} wrong arguments: {dict(counts)}')
  assert len(found) > 3000
  assert [f for f in found if f.verdict == 'raw'] == []


def test_the_table_sees_what_is_silent_and_what_is_raw():
  def careless(count):
    return range(10)[count]

  row = errors_table.Row(careless, dict, {'count': 'count'})
  verdicts = {
    given: errors_table.check('careless', row, 'count', given, value).verdict
    for given, value in {'negative': -1, 'text': 'seven'}.items()
  }
  assert verdicts == {'negative': 'silent', 'text': 'raw'}
