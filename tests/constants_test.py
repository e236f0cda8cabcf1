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
"""What does not depend on its argument is not differentiated in a loop."""

import tensorflow as tf

import tfp_diag
from tests.pairs import parametrize_pairs

CONSTANTS = {
  'ones': lambda x: 2 * tf.ones_like(x),
  'stopped': lambda x: tf.stop_gradient(x) ** 2,
  'rounded': lambda x: tf.round(x),
}


def op_types(fn, spec):
  graph = tf.function(fn, autograph=False).get_concrete_function(spec).graph
  return {op.type for op in graph.get_operations()}


@parametrize_pairs(
  schedule=['auto', 'pfor', 'while_loop'],
  name=CONSTANTS,
  shape=[[None, None], [5, 60]],
)
def test_a_constant_takes_no_loop(name, shape, schedule):
  def diag(x):
    return tfp_diag.diag_jacobian(
      x,
      ys=CONSTANTS[name](x),
      sample_shape=[None],
      schedule=schedule,
    )[1][0]

  spec = tf.TensorSpec(shape)
  assert 'StatelessWhile' not in op_types(diag, spec)
  result = tf.function(diag, input_signature=[spec])(tf.ones([5, 60]))
  assert not result.numpy().any()


def test_what_depends_takes_one():
  def diag(x):
    ys = tf.cumsum(x, axis=-1) ** 2
    return tfp_diag.diag_jacobian(x, ys=ys, sample_shape=[5], schedule='pfor')[
      1
    ][0]

  assert 'StatelessWhile' in op_types(diag, tf.TensorSpec([5, 60]))
