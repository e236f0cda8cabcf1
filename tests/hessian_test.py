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
"""`hessian` equals closed forms, block by block."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tfp_diag.diagonal import graphs

Pair = collections.namedtuple('Pair', ['loc', 'scale'])
RNG = np.random.default_rng(3)
MATRIX = RNG.normal(size=(7, 7))


def log_density(a, b):
  """Of a sample: a quartic of all seven coordinates, through one matrix."""
  samples = tf.shape(a)[:-1]
  x = tf.concat([a, tf.reshape(b, tf.concat([samples, [4]], 0))], -1)
  z = tf.linalg.matvec(tf.constant(MATRIX, x.dtype), x)
  return tf.reduce_sum(z**4, axis=-1)


def closed_form(a, b):
  x = np.concatenate([a, np.reshape(b, (*a.shape[:-1], 4))], -1)
  z = x @ MATRIX.T
  return np.einsum('ki,...k,kj->...ij', MATRIX, 12 * z**2, MATRIX)


def state(sample_shape, dtype='float64'):
  a = np.random.default_rng(1).uniform(-1, 1, (*sample_shape, 3))
  b = np.random.default_rng(2).uniform(-1, 1, (*sample_shape, 2, 2))
  return tf.constant(a, dtype), tf.constant(b, dtype)


def assert_blocks(actual, a, b, tolerance=1e-12):
  full = closed_form(np.asarray(a, np.float64), np.asarray(b, np.float64))
  s = a.shape[:-1].as_list()
  expected = [
    [full[..., :3, :3], full[..., :3, 3:].reshape(*s, 3, 2, 2)],
    [
      full[..., 3:, :3].reshape(*s, 2, 2, 3),
      full[..., 3:, 3:].reshape(*s, 2, 2, 2, 2),
    ],
  ]
  scale = np.abs(full).max()
  for actual_row, expected_row in zip(actual, expected):
    for block, e in zip(actual_row, expected_row):
      assert block.shape == e.shape
      np.testing.assert_allclose(block, e, atol=tolerance * scale)


@pytest.mark.parametrize(
  'sample_shape, mode, chunk_size',
  [
    ((), 'auto', None),
    ((), 'forward_over_reverse', 1),
    ((2,), 'auto', 1),
    ((2,), 'reverse_over_reverse', None),
    ((2,), 'reverse_over_reverse', 2),
    ((2,), 'forward_over_reverse', 2),
    ((2, 1, 3), 'auto', 2),
    ((2, 1, 3), 'forward_over_reverse', None),
  ],
)
def test_blocks(sample_shape, mode, chunk_size):
  a, b = state(sample_shape)
  blocks = tfp_diag.hessian(
    log_density, (a, b), sample_shape, mode=mode, chunk_size=chunk_size
  )
  assert isinstance(blocks, tuple)
  assert_blocks(blocks, a, b)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('regime', ['dynamic', 'xla'])
def test_regimes(regime, dtype):
  a, b = state([5], dtype)
  shapes = [None] if regime == 'dynamic' else [5]
  events = [[3], [2, 2]] if regime == 'xla' else [[None], [None, None]]
  function = tf.function(
    lambda a, b: tfp_diag.hessian(log_density, [a, b], shapes),
    [tf.TensorSpec(shapes + e, dtype) for e in events],
    jit_compile=regime == 'xla' or None,
    autograph=False,
  )
  assert_blocks(function(a, b), a, b, 1e-12 if dtype == 'float64' else 1e-5)


def test_is_symmetric_to_rounding():
  x = tf.random.stateless_normal([4, 9], [0, 1], dtype=tf.float32)
  h = tfp_diag.hessian(
    lambda x: tf.reduce_logsumexp(x**2, axis=-1), x, [4]
  ).numpy()
  np.testing.assert_allclose(h, np.swapaxes(h, 1, 2), atol=1e-6)


def test_structure_goes_in_and_comes_out_twice():
  xs = Pair(tf.constant([1.0, 2.0]), tf.constant(3.0))
  h = tfp_diag.hessian(lambda p: tf.reduce_sum(p.loc**2) * p.scale, xs)
  np.testing.assert_allclose(h.loc.loc, [[6, 0], [0, 6]])
  np.testing.assert_allclose(h.loc.scale, [2, 4])
  np.testing.assert_allclose(h.scale.loc, [2, 4])
  np.testing.assert_allclose(h.scale.scale, 0)
  h = tfp_diag.hessian(lambda a, b: a * a * b, {'a': xs.scale, 'b': xs.scale})
  assert {k: {m: float(v) for m, v in r.items()} for k, r in h.items()} == {
    'a': {'a': 6.0, 'b': 6.0},
    'b': {'a': 6.0, 'b': 0.0},
  }


def test_is_differentiable():
  x = tf.constant([0.5, -1.0, 2.0], tf.float64)
  for mode in ('forward_over_reverse', 'reverse_over_reverse'):
    with tf.GradientTape() as tape:
      tape.watch(x)
      h = tfp_diag.hessian(lambda x: tf.reduce_sum(x**4), x, mode=mode)
    np.testing.assert_allclose(tape.gradient(h, x), 24 * x, rtol=1e-12)


def test_strict():
  xs = [tf.constant(1.0), tf.constant(2.0)]
  with pytest.raises(ValueError, match='part 1 of `xs`'):
    tfp_diag.hessian(lambda a, b: a**2 + b, xs, strict=True)
  h = tfp_diag.hessian(lambda a, b: a**2 + b**2, xs, strict=True)
  assert [[float(v) for v in row] for row in h] == [[2, 0], [0, 2]]


def test_a_hundred_calls_compile_once():
  tfp_diag.clear_cache()
  traces = []

  def fn(x):
    traces.append(x)
    return tf.reduce_sum(tf.sin(x)) ** 2

  for i in range(100):
    tfp_diag.hessian(fn, tf.fill([3], float(i)))
  assert len(traces) == 100
  assert len(graphs._cache) == 1


@pytest.mark.parametrize(
  'error, match, fn, kwargs',
  [
    (ValueError, 'one scalar per sample', tf.sin, {}),
    (ValueError, 'does not lead', lambda x: tf.ones([5]), {'sample_shape': 2}),
    (ValueError, 'one floating scalar', lambda x: None, {}),
    (ValueError, "`mode` is 'forward'", tf.reduce_sum, {'mode': 'forward'}),
    (ValueError, '`chunk_size` is 0', tf.reduce_sum, {'chunk_size': 0}),
    (TypeError, 'cannot be called', None, {}),
  ],
)
def test_errors(error, match, fn, kwargs):
  if 'sample_shape' in kwargs:
    kwargs = {'sample_shape': [2]}
  with pytest.raises(error, match=match):
    tfp_diag.hessian(fn, tf.ones([2, 2]), **kwargs)


def test_samples_that_mix_are_refused():
  with pytest.raises(ValueError, match='mixes samples'):
    tfp_diag.hessian(
      lambda x: tf.reduce_sum(x**2, -1) * tf.reduce_sum(x), tf.ones([4, 2]), [4]
    )
