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
"""What pfor gets wrong is put right while we use it, and only then."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.diagonal import vectorize

ROWS = np.random.default_rng(5).normal(size=(4, 2, 5))


@pytest.mark.parametrize(
  'shift, axis', [(1, -1), (2, 0), (-1, 1), ([1, 2], [-1, -2]), ([1], [-2])]
)
@pytest.mark.parametrize('is_static', [True, False])
def test_rolls_what_it_is_given(shift, axis, is_static):
  @tf.function
  def run(rows, shift, axis):
    return vectorize.vectorized_map(lambda row: tf.roll(row, shift, axis), rows)

  arguments = [shift, axis]
  if not is_static:
    arguments = [tf.constant(a) for a in arguments]
  result = run(tf.constant(ROWS), *arguments)
  expected = [np.roll(row, shift, axis) for row in ROWS]
  np.testing.assert_array_equal(result, expected)


def test_shifts_that_differ():
  result = vectorize.vectorized_map(
    lambda both: tf.roll(both[0], both[1], -1),
    (tf.constant(ROWS), tf.range(4)),
  )
  expected = [np.roll(ROWS[k], k, -1) for k in range(4)]
  np.testing.assert_array_equal(result, expected)


def _refuse(row):
  raise tf.errors.UnimplementedError(None, None, 'not this one')


def test_nothing_of_tensorflow_stays_changed():
  before = vectorize._REGISTRY['Roll']
  seen = []

  def roll(row):
    # Nested, as in a derivative of a derivative.
    vectorize.vectorized_map(lambda x: tf.roll(x, 1, -1), row)
    seen.append(vectorize._REGISTRY['Roll'])
    return tf.roll(row, 1, -1)

  vectorize.vectorized_map(roll, tf.constant(ROWS))
  assert before not in seen
  with pytest.raises(tf.errors.OpError):
    vectorize.vectorized_map(_refuse, tf.constant(ROWS))
  assert vectorize._REGISTRY['Roll'] is before


def ring(x):
  """Every coordinate meets every other one, along two negative axes."""
  x = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [3, 4]], 0))
  around = tf.roll(x, 1, axis=-1) * tf.roll(x**2, [2, 1], axis=[-2, -1])
  total = tf.reduce_prod(1.0 + 0.1 * x, [-1, -2], keepdims=True)
  return tf.reshape(total * around, tf.concat([tf.shape(x)[:-2], [12]], 0))


@pytest.mark.parametrize('mode', ['forward', 'reverse'])
@pytest.mark.parametrize('jit_compile', [False, True])
def test_derivatives_through_rolls(mode, jit_compile):
  x = tf.constant(np.random.default_rng(6).normal(size=(3, 12)))

  @tf.function(jit_compile=jit_compile)
  def run(x):
    _, diag = tfp_diag.diag_jacobian(
      x, fn=ring, sample_shape=[3], mode=mode, schedule='pfor'
    )
    _, _, curvature = tfp_diag.diag_hessian(
      lambda x: tf.reduce_sum(ring(x) ** 2, -1),
      x,
      mode=f'{mode}_over_reverse',
      schedule='pfor',
    )
    dense = tfp_diag.jacobian(ring, x, sample_shape=[3], mode=mode)
    return diag[0], curvature, dense

  def numerical(fn, x):
    steps = 1e-5 * np.eye(12)
    return np.stack([(fn(x + h) - fn(x - h)).numpy() / 2e-5 for h in steps], -1)

  diag, curvature, dense = run(x)
  expected = numerical(ring, x.numpy())
  np.testing.assert_allclose(dense, expected, atol=1e-8)
  np.testing.assert_allclose(
    diag, np.diagonal(expected, axis1=1, axis2=2), atol=1e-8
  )

  def gradient(x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = tf.reduce_sum(ring(x) ** 2)
    return tape.gradient(value, x)

  expected = np.diagonal(numerical(gradient, x.numpy()), axis1=1, axis2=2)
  np.testing.assert_allclose(curvature, expected, atol=1e-6)


def test_another_tensorflow_takes_the_loop(monkeypatch):
  monkeypatch.setattr(vectorize, '_REGISTRY', None)
  x = tf.constant(np.random.default_rng(7).normal(size=(2, 12)))
  with pytest.warns(RuntimeWarning, match='cannot vectorize the op Roll'):
    _, diag = tfp_diag.diag_jacobian(
      x, fn=ring, sample_shape=[2], schedule='pfor'
    )
  _, loop = tfp_diag.diag_jacobian(
    x, fn=ring, sample_shape=[2], schedule='while_loop'
  )
  np.testing.assert_allclose(diag[0], loop[0], rtol=1e-10)
