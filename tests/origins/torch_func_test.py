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
"""What `torch.func` documents: `jacrev`, `jacfwd`, `hessian`, `vmap`."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag

X = tf.constant([0.1, 0.5, 0.9, 1.3, 1.7], tf.float64)


@pytest.mark.parametrize('mode', ['forward', 'reverse'])
def test_jacobian_of_sin_is_diagonal(mode):
  # jacrev(torch.sin)(x) and jacfwd(torch.sin)(x) equal diag(cos(x)).
  jac = tfp_diag.jacobian(tf.sin, X, mode=mode)
  np.testing.assert_allclose(jac, np.diag(np.cos(X)), rtol=1e-12)


def test_composed_it_is_the_hessian():
  # jacrev(jacrev(f)) of sum(sin(x)) equals diag(-sin(x)); so does jacfwd.
  def value(x):
    return tf.reduce_sum(tf.sin(x))

  expected = np.diag(-np.sin(X))
  for outer in ('forward', 'reverse'):
    for inner in ('forward', 'reverse'):
      composed = tfp_diag.jacobian(
        lambda x, inner=inner: tfp_diag.jacobian(value, x, mode=inner),
        X,
        mode=outer,
      )
      np.testing.assert_allclose(composed, expected, atol=1e-12)
  np.testing.assert_allclose(tfp_diag.hessian(value, X), expected, atol=1e-12)


def test_hessian_of_sin_sin():
  # hessian(f)(x) for f(x) = sum(sin(x)) squared has rank one more.
  hessian = tfp_diag.hessian(lambda x: tf.reduce_sum(tf.sin(x)) ** 2, X)
  s, c = np.sin(X), np.cos(X)
  expected = 2 * np.outer(c, c) - 2 * np.sum(s) * np.diag(s)
  np.testing.assert_allclose(hessian, expected, rtol=1e-10)


def test_vmap_is_a_sample_shape():
  # vmap(jacrev(f))(x) for a batch of 64 is [64, 5, 5].
  x = tf.tile(X[tf.newaxis], [64, 1]) + tf.range(64, dtype=X.dtype)[:, None]
  jac = tfp_diag.jacobian(lambda x: x * tf.sin(x), x, [64])
  assert jac.shape == [64, 5, 5]
  diagonal = np.sin(x) + x * np.cos(x)
  np.testing.assert_allclose(
    jac, np.eye(5) * diagonal[:, np.newaxis, :], atol=1e-10
  )


def test_several_arguments():
  # argnums=(0, 1) of f(x, y) = x + y^2: ones, and twice y, on the diagonal.
  jac = tfp_diag.jacobian(lambda x, y: x + y**2, (X, X + 1))
  np.testing.assert_allclose(jac[0], np.eye(5))
  np.testing.assert_allclose(jac[1], np.diag(2 * (X + 1)))
  # argnums=1 alone: close over the other one.
  by_y = tfp_diag.jacobian(lambda y: X + y**2, X + 1)
  np.testing.assert_allclose(by_y, jac[1])


def test_has_aux():
  # There a flag; here an output like any other, or left out by `stop_gradient`.
  jac = tfp_diag.jacobian(lambda x: {'y': x**2, 'aux': tf.stop_gradient(x)}, X)
  np.testing.assert_allclose(jac['y'], np.diag(2 * X))
  np.testing.assert_array_equal(jac['aux'], np.zeros([5, 5]))


@pytest.mark.parametrize('chunk_size', [None, 1, 2, 5, 7])
def test_chunk_size_changes_no_number(chunk_size):
  x = tf.constant(np.linspace(-1, 1, 11))
  jac = tfp_diag.jacobian(tf.cumsum, x, mode='reverse', chunk_size=chunk_size)
  np.testing.assert_array_equal(jac, np.tril(np.ones([11, 11])))


def test_chunk_size_is_how_many_run_together(monkeypatch):
  sizes = []
  original = tf.vectorized_map

  def spy(fn, elems, **kwargs):
    sizes.append(elems.shape[0])
    return original(fn, elems, **kwargs)

  monkeypatch.setattr(tf, 'vectorized_map', spy)
  tfp_diag.clear_cache()
  x = tf.constant(np.linspace(-1, 1, 11))
  for chunk_size, expected in ((None, [11]), (1, []), (4, [4, 3]), (11, [11])):
    sizes.clear()
    tfp_diag.jacobian(tf.math.cumprod, x, chunk_size=chunk_size)
    assert sizes == expected


@pytest.mark.parametrize('chunk_size', [0, -1])
def test_chunk_size_below_one(chunk_size):
  with pytest.raises(ValueError, match='at least 1'):
    tfp_diag.jacobian(tf.sin, X, chunk_size=chunk_size)


def test_what_torch_func_lacks():
  # A diagonal in fewer passes than coordinates, for any batch.
  plan = tfp_diag.plan_diag_hessian(
    lambda x: tf.reduce_sum(tf.sin(x[1:]) * x[:-1]), tf.zeros([1000])
  )
  assert (plan.num_colors, plan.num_passes) == (2, 1)
