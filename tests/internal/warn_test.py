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
"""Warnings show the line of the caller's."""

import warnings

import pytest
import tensorflow as tf

import tfp_diag


def _variance(x):
  return tf.nn.moments(x**2, [-1])[1]


def _eager(x):
  tfp_diag.diag_hessian(_variance, x)


def _in_a_graph(x):
  tf.function(_eager, autograph=False)(x)


def _in_a_converted_graph(x):
  tf.function(_eager)(x)


def _when_planned(x):
  tfp_diag.plan_diag_hessian(_variance, x)


def _of_a_whole_matrix(x):
  tfp_diag.LazyHessian(_variance, x, [2]).diag()


@pytest.mark.parametrize(
  'call',
  [
    _eager,
    _in_a_graph,
    _in_a_converted_graph,
    _when_planned,
    _of_a_whole_matrix,
  ],
)
def test_a_warning_is_at_a_line_of_this_file(call):
  tfp_diag.clear_cache()
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter('always')
    call(tf.constant([[1.0, 2.0, 4.0], [0.5, 0.1, 2.0]]))
  told = [w for w in seen if 'tf.nn.moments' in str(w.message)]
  assert told and {w.filename for w in told} == {__file__}
