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
"""Plans from a pattern that the caller knows."""

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import tfp_diag

pytestmark = pytest.mark.usefixtures('without_sweeps')

N = 12


def chain(x):
  return tf.reduce_sum(tf.sin(x[..., 1:] * x[..., :-1]), axis=-1)


def tridiagonal():
  return scipy.sparse.diags([np.ones(N)] * 3, [-1, 0, 1], (N, N))


@pytest.mark.parametrize('sample_shape', [None, [4]])
def test_a_right_pattern_is_used_as_it_is(sample_shape):
  x = tf.constant(np.random.default_rng(0).normal(size=[4, N]))
  plan = tfp_diag.plan_diag_hessian(
    chain, x, sample_shape, pattern=tridiagonal()
  )
  assert plan.num_passes == 2
  assert plan.sample_rank == 1
  assert plan.event_shapes == ((N,),)
  assert plan.coloring.num_colors == 2
  np.testing.assert_allclose(
    plan(x)[2], tfp_diag.diag_hessian(chain, x)[2], rtol=1e-12
  )


def test_a_wrong_pattern_is_caught():
  x = tf.constant(np.random.default_rng(0).normal(size=[4, N]))
  plan = tfp_diag.plan_diag_hessian(chain, x, pattern=np.eye(N))
  assert plan.num_passes == 1
  with pytest.raises(tf.errors.InvalidArgumentError, match='do not fit'):
    tfp_diag.diag_hessian(chain, x, plan=plan, validate_args=True)


def test_parts_share_one_pattern():
  xs = [tf.zeros([3, 2]), tf.zeros([3, 2, 2])]

  def fn(x, y):
    return [x**2, y * x[..., tf.newaxis]]

  block = np.kron([[1, 0, 0], [1, 1, 1], [1, 1, 1]], np.eye(2)) != 0
  plan = tfp_diag.plan_diag_jacobian(fn, xs, [3], pattern=block)
  assert plan.event_shapes == ((2,), (2, 2))


def test_a_pattern_of_another_size_is_refused():
  with pytest.raises(ValueError, match=r'`pattern` has shape \(5, 5\)'):
    tfp_diag.plan_diag_hessian(chain, tf.zeros([4, N]), pattern=np.eye(5))


def test_variables_of_keras_3_can_be_planned():
  variable = keras.Variable(np.linspace(-1.0, 1.0, N).astype('float32'))
  plan = tfp_diag.plan_diag_hessian(lambda: chain(variable.value), [variable])
  assert plan.num_passes == 2
