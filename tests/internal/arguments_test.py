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
"""Errors of arguments that several functions share name what fits."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.internal import arguments


def test_choices():
  arguments.check_choice('mode', 'a', ('a', 'b'))
  for value in ('c', None, ['a'], 1):
    with pytest.raises(ValueError, match=r"`mode` is .* one of 'a', 'b'"):
      arguments.check_choice('mode', value, ('a', 'b'))


@pytest.mark.parametrize('value', [1, 7, np.int64(3)])
def test_chunks(value):
  arguments.check_chunk('chunk_size', value)


@pytest.mark.parametrize('value', [0, -1, 1.0, '1', None, True, np.float32(2)])
def test_what_is_no_chunk(value):
  with pytest.raises(ValueError, match=r'`chunk_size` is .* at least 1'):
    arguments.check_chunk('chunk_size', value)


def test_counts():
  with pytest.raises(ValueError) as error:
    arguments.as_count('num_draws', 0)
  assert str(error.value) == '`num_draws` is 0, but must be a positive integer.'
  with pytest.raises(ValueError, match=r'a nonnegative .*: how many axes\.$'):
    arguments.as_count('chain_ndims', -1, 0, 'how many axes')


def test_callables():
  arguments.check_callable('fn', len)
  with pytest.raises(TypeError, match='`fn` is 3, which cannot be called'):
    arguments.check_callable('fn', 3)


def test_arrays_are_shown_by_shape_and_dtype():
  shown = arguments.shown(np.array([1.0, None]))
  assert shown == 'an ndarray of shape (2,) and dtype object'


def test_numbers_of_bfloat16_are_real_and_text_is_not():
  given = tf.constant([0.5, 2.0], tf.bfloat16)
  assert arguments.as_array('x', given).tolist() == [0.5, 2.0]
  for given in ('a', ['a', 'bcd'], b'a'):
    with pytest.raises(TypeError, match=r'\(its entries are text\)'):
      arguments.as_array('x', given)


def test_a_reason_takes_a_line_or_two():
  body = '__inference_' + 40 * 'while_body_' + '123'
  error = ValueError(f'Propagate: cannot find {body}.\nAt: {body}')
  reason = arguments.reason(error)
  assert reason.startswith('Propagate: cannot find __inference_while_body_')
  assert len(reason) < 100
  assert len(arguments.reason(ValueError(200 * 'words '))) <= 200
  assert arguments.reason(ValueError('All of it.')) == 'All of it.'
