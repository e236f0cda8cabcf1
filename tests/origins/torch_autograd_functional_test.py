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
"""What `torch.autograd.functional.jacobian` and `hessian` document.

The functions are those of its documentation: `exp_reducer`, `exp_adder`,
`pow_reducer`, `pow_adder_reducer`. It draws its inputs at random; here they are
fixed and the results written in closed form.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag

X = tf.constant([[0.1, 0.9], [0.4, 0.2]])
A, B = tf.constant([0.3, 0.6]), tf.constant([0.8, 0.1])


def exp_reducer(x):
  return tf.reduce_sum(tf.exp(x), axis=1)


def exp_adder(x, y):
  return 2 * tf.exp(x) + 3 * y


def pow_reducer(x):
  return tf.reduce_sum(x**3)


def pow_adder_reducer(x, y):
  return tf.reduce_sum(2 * x**2 + 3 * y**2)


STRATEGIES = {'forward-mode': 'forward', 'reverse-mode': 'reverse'}


@pytest.mark.parametrize('mode', STRATEGIES.values())
def test_exp_reducer(mode):
  # [2, 2, 2]: output i depends on row i alone, by exp(x).
  jac = tfp_diag.jacobian(exp_reducer, X, mode=mode)
  e = np.exp(X)
  expected = [[e[0], [0, 0]], [[0, 0], e[1]]]
  assert jac.shape == [2, 2, 2]
  np.testing.assert_allclose(jac, expected, rtol=1e-6)


@pytest.mark.parametrize('mode', STRATEGIES.values())
def test_exp_adder_gives_a_tuple_for_a_tuple(mode):
  jac = tfp_diag.jacobian(exp_adder, (A, B), mode=mode)
  assert isinstance(jac, tuple)
  np.testing.assert_allclose(jac[0], np.diag(2 * np.exp(A)), rtol=1e-6)
  np.testing.assert_allclose(jac[1], np.diag([3, 3]), rtol=1e-6)


def test_tuple_of_outputs_by_tuple_of_inputs():
  jac = tfp_diag.jacobian(lambda x, y: (x * y, tf.reduce_sum(x)), (A, B))
  assert isinstance(jac, tuple)
  assert all(isinstance(row, tuple) for row in jac)
  np.testing.assert_allclose(jac[0][0], np.diag(B))
  np.testing.assert_allclose(jac[0][1], np.diag(A))
  np.testing.assert_allclose(jac[1][0], [1, 1])
  np.testing.assert_allclose(jac[1][1], [0, 0])


def test_create_graph():
  # There a flag; here every Jacobian can be differentiated.
  with tf.GradientTape() as tape:
    tape.watch(X)
    total = tf.reduce_sum(tfp_diag.jacobian(exp_reducer, X))
  np.testing.assert_allclose(tape.gradient(total, X), np.exp(X), rtol=1e-6)


def test_strict():
  def one_output_is_independent(x, y):
    return x**2, y**2

  zeros = tfp_diag.jacobian(one_output_is_independent, (A, B))[0][1]
  np.testing.assert_array_equal(zeros, np.zeros([2, 2]))
  with pytest.raises(ValueError, match=r'Output 0 .* part 1'):
    tfp_diag.jacobian(one_output_is_independent, (A, B), strict=True)


@pytest.mark.parametrize('chunk_size', [None, 1])
def test_vectorize_changes_no_number(chunk_size):
  # `vectorize=True` is all at once, `vectorize=False` a loop.
  jac = tfp_diag.jacobian(exp_adder, (A, B), chunk_size=chunk_size)
  np.testing.assert_allclose(jac[0], np.diag(2 * np.exp(A)), rtol=1e-6)


def test_hessian_of_pow_reducer():
  hessian = tfp_diag.hessian(pow_reducer, X)
  assert hessian.shape == [2, 2, 2, 2]
  expected = np.diag(6 * np.ravel(X)).reshape(2, 2, 2, 2)
  np.testing.assert_allclose(hessian, expected, rtol=1e-6)


@pytest.mark.parametrize(
  'mode', ['forward_over_reverse', 'reverse_over_reverse']
)
def test_hessian_of_pow_adder_reducer(mode):
  # Both strategies of the outer Jacobian.
  hessian = tfp_diag.hessian(pow_adder_reducer, (A, B), mode=mode)
  np.testing.assert_allclose(hessian[0][0], 4 * np.eye(2))
  np.testing.assert_allclose(hessian[0][1], np.zeros([2, 2]))
  np.testing.assert_allclose(hessian[1][0], np.zeros([2, 2]))
  np.testing.assert_allclose(hessian[1][1], 6 * np.eye(2))


def test_hessian_wants_a_scalar():
  with pytest.raises(ValueError, match='one scalar per sample'):
    tfp_diag.hessian(exp_reducer, X)


def test_products():
  # `vjp`, `jvp` and `hvp` there.
  j = tfp_diag.LazyJacobian(exp_adder, (A, B))
  v = np.array([1.0, 2.0], np.float32)
  u = np.concatenate([2 * np.exp(A) * v, 3 * v])
  np.testing.assert_allclose(j.rmatvec(v), u, rtol=1e-6)
  np.testing.assert_allclose(j.matvec(np.ones(4)), 2 * np.exp(A) + 3, rtol=1e-6)
  h = tfp_diag.LazyHessian(pow_reducer, X)
  np.testing.assert_allclose(h.matvec(np.ones(4)), 6 * np.ravel(X), rtol=1e-6)
  assert j.num_passes + h.num_passes == 3


def test_what_torch_lacks():
  # The diagonal by itself, from one pass.
  plan = tfp_diag.plan_diag_jacobian(lambda x: x**3, A)
  assert plan.num_passes == 1
  np.testing.assert_allclose(plan(A)[1][0], 3 * A**2)
