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
"""Tables line up."""

from tfp_diag.internal.text_table import text_table


def test_columns_line_up():
  table = text_table(
    ['parameter', 'mean', ''], [['mu', '4.4', ''], ['theta[10]', '-16.25', '!']]
  )
  assert table.split('\n') == [
    'parameter    mean',
    '--------------------',
    'mu            4.4',
    'theta[10]  -16.25  !',
  ]


def test_a_table_without_rows():
  assert text_table(['a', 'b'], []) == 'a  b\n----'
