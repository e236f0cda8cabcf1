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
"""Dense Jacobians whose diagonal needs few of their derivatives."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import jacobian_by_copies, jacobian_diagonal
from tfp_diag.diagonal.returning_paths import ReturningPaths

RNG = np.random.default_rng(17)
N, K = 7, 3
MASSES = RNG.uniform(0.5, 2.0, N)
RATES = RNG.standard_normal((N, N)) / 3.0
KEYS, QUERIES, VALUES = RNG.standard_normal((3, K, K)) / 2.0
INNER = RNG.standard_normal((2, 5))
OUTER = RNG.standard_normal((5, 1))
SENDERS = np.array([0, 1, 2, 2, 3, 5, 6, 4, 0])
RECEIVERS = np.array([1, 0, 0, 2, 4, 5, 2, 6, 0])


def constant(value, like):
  return tf.constant(value, like.dtype)


def differences(x):
  return x[..., :, tf.newaxis, :] - x[..., tf.newaxis, :, :]


def forces(x):
  """Of each pair of particles."""
  d = differences(x)
  return tf.reduce_sum(d * tf.exp(-tf.reduce_sum(d**2, -1, keepdims=True)), -2)


def gravity(x):
  """The distance of a particle from itself is never looked at."""
  d = differences(x)
  squared = tf.reduce_sum(d**2, -1)
  apart = tf.linalg.set_diag(squared, tf.ones_like(squared[..., 0]))
  weights = constant(MASSES, x) / apart**1.5
  return tf.einsum('...ij,...ijk->...ik', -weights, d)


def learned_forces(x):
  """Equivariant to rotations (Koehler et al. 2020)."""
  d = differences(x)
  squared = tf.reduce_sum(d**2, -1, keepdims=True)
  hidden = tf.concat([squared, tf.exp(-squared)], -1) @ constant(INNER, x)
  return x + tf.reduce_mean(d * (tf.tanh(hidden) @ constant(OUTER, x)), -2)


def messages(x):
  """Along the edges of a graph, one of which leads from a node to itself."""
  d = tf.gather(x, SENDERS, axis=-2) - 0.5 * tf.gather(x, RECEIVERS, axis=-2)
  sent = tf.tanh(tf.reduce_sum(d, -1, keepdims=True)) * d
  rank = len(x.shape) - 2
  order = [rank, *range(rank), rank + 1]
  back = [*range(1, rank + 1), 0, rank + 1]
  received = tf.math.unsorted_segment_sum(
    tf.transpose(sent, order), RECEIVERS, N
  )
  return tf.transpose(received, back)


def kernel_flow(x):
  """Stein variational gradient of a normal density."""
  d = differences(x)
  kernel = tf.exp(-0.5 * tf.reduce_sum(d**2, -1))
  repelled = tf.einsum('...ij,...ijk->...ik', kernel, d)
  return repelled - tf.linalg.matmul(kernel, x)


def attention(x):
  query, key, value = (
    tf.linalg.matmul(x, constant(w, x)) for w in (QUERIES, KEYS, VALUES)
  )
  scores = tf.linalg.matmul(query, key, transpose_b=True)
  return x + tf.linalg.matmul(tf.nn.softmax(scores), value)


def heads(x):
  """Attention as Keras writes it."""
  query, key, value = (
    tf.reshape(x @ constant(w, x), tf.concat([tf.shape(x), [1]], 0))
    for w in (QUERIES, KEYS, VALUES)
  )
  scores = tf.einsum('...ihd,...jhd->...hij', query, key)
  found = tf.einsum('...hij,...jhd->...ihd', tf.nn.softmax(scores), value)
  return tf.reshape(found, tf.shape(x))


def gram(x):
  products = tf.linalg.matmul(x, x, transpose_b=True)
  return tf.linalg.matmul(tf.sin(products), x)


def species(x):
  """Each one lives on all others (Lotka and Volterra)."""
  return x * (1.0 - tf.einsum('ij,...jk->...ik', constant(RATES, x), x))


def oscillators(x):
  """Kuramoto 1975."""
  phases = x[..., 0]
  lag = phases[..., tf.newaxis, :] - phases[..., :, tf.newaxis]
  return tf.reduce_mean(tf.sin(lag), -1)[..., tf.newaxis] * x


def gate_of_itself(x):
  return x * tf.sigmoid(tf.linalg.matmul(x, constant(KEYS, x)))


def rates_of_a_network(x):
  return tf.linalg.matmul(constant(RATES, x), tf.tanh(x)) - x


@tf.custom_gradient
def pulled(a, b):
  """Its gradient is not that of what it computes."""
  return a * tf.sin(b), lambda dy: (2.0 * dy * tf.sin(b), dy * a * tf.cos(b))


def gradients_of_its_own(x):
  shape = tf.concat([tf.shape(x)[:-1], tf.shape(x)[-2:]], 0)
  one = tf.broadcast_to(x[..., :, tf.newaxis, :], shape)
  other = tf.broadcast_to(x[..., tf.newaxis, :, :], shape)
  return tf.reduce_sum(pulled(one, other), -2) * x


def mirrored(x):
  """Zeros of the matrix stand where a path would return."""
  band = np.triu(np.tril(RATES, 1), -1)
  y = tf.linalg.matmul(constant(band, x), x)
  return y + tf.reverse(y, [-2])


def pairs_by_number(x):
  """The differences of all pairs in a list, i = j among them."""
  first, second = np.meshgrid(range(N), range(N), indexing='ij')
  left = tf.gather(x, first.ravel(), axis=-2)
  d = left - tf.gather(tf.exp(x - x) * x, second.ravel(), axis=-2)
  d = left - tf.gather(x, second.ravel(), axis=-2) + 0.0 * d
  shape = tf.concat([tf.shape(x)[:-2], [N, N, K]], 0)
  return tf.reduce_sum(tf.reshape(tf.sin(d) + d**2, shape), -2)


def normalized_forces(x):
  """The sum over all particles is held; the forces are as above."""
  return forces(x) / (1.0 + tf.reduce_sum(x**2, [-1, -2], keepdims=True))


MODELS = [
  (forces, 3),
  (gravity, 3),
  (learned_forces, 3),
  (messages, 3),
  (kernel_flow, 3),
  (attention, 3),
  (heads, 1),
  (gram, 3),
  (species, 1),
  (oscillators, 1),
  (gate_of_itself, 1),
  (gradients_of_its_own, 1),
  (rates_of_a_network, 1),
  (mirrored, 1),
  (pairs_by_number, 1),
  (normalized_forces, 5),
]
FUNCTIONS = [fn for fn, _ in MODELS]


def state(*sample_shape, dtype=tf.float64):
  return tf.constant(RNG.uniform(0.2, 1.5, (*sample_shape, N, K)), dtype)


def dense(fn, x):
  """By tapes, of a function that treats samples alone."""
  event = x.shape[-2:]

  def of_rows(rows):
    return tf.reshape(fn(tf.reshape(rows, [-1, *event])), tf.shape(rows))

  rows = tf.reshape(x, [-1, event.num_elements()])
  return tf.reshape(jacobian_by_copies(of_rows, rows), x.shape)


def diagonal(x, fn, sample_shape, **kwargs):
  _, diag = tfp_diag.diag_jacobian(
    x, fn=fn, sample_shape=sample_shape, **kwargs
  )
  return diag[0]


@pytest.fixture(name='passes')
def fixture_passes(monkeypatch):
  """The colors of the passes on paths that return, as they are traced."""
  found = []
  own = ReturningPaths.apply

  def counted(*args):
    found.append(1)
    return own(*args)

  monkeypatch.setattr(ReturningPaths, 'apply', counted)
  return found


@pytest.mark.parametrize('fn, num_passes', MODELS)
def test_passes(fn, num_passes):
  plan = tfp_diag.plan_diag_jacobian(fn, state(4), [4])
  assert plan.num_passes == num_passes
  assert f'{num_passes} pass' in str(plan)
  assert 'Only paths from a coordinate to its own result' in str(plan)


# Every other one is compiled.
@pytest.mark.parametrize(
  'fn, jit_compile', [(fn, k % 2 == 0) for k, fn in enumerate(FUNCTIONS)]
)
def test_agrees_with_the_dense_jacobian(fn, jit_compile, passes):
  x = state(3)
  run = tf.function(
    lambda x: diagonal(x, fn, [3]), autograph=False, jit_compile=jit_compile
  )
  np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9, atol=1e-11)
  assert passes


@pytest.mark.parametrize(
  'fn, sample_shape',
  [
    (learned_forces, ()),
    (messages, (2, 2)),
    (attention, (1,)),
    (species, (2, 2)),
  ],
)
def test_any_sample_shape(fn, sample_shape, passes):
  x = state(*sample_shape)
  expected = dense(fn, x)
  found = diagonal(x, fn, sample_shape, validate_args=True)
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
  assert passes


@pytest.mark.parametrize('fn', [forces, messages, attention, species])
def test_batch_of_unknown_size(fn, passes):
  run = tf.function(
    lambda x: diagonal(x, fn, [None]),
    input_signature=[tf.TensorSpec([None, N, K], tf.float64)],
  )
  for batch in (1, 2, 5):
    x = state(batch)
    np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9, atol=1e-11)
  assert passes


@pytest.mark.parametrize(
  'fn, in_graph',
  [
    (forces, True),
    (attention, False),
    (species, True),
    (normalized_forces, False),
    (normalized_forces, True),
  ],
)
def test_the_diagonal_is_differentiated(fn, in_graph, passes):
  """By all coordinates, also where its own paths do not lead."""
  x = state(2)
  weights = tf.constant(RNG.standard_normal(x.shape))

  def gradient(compute):
    def run(x):
      with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(weights * compute(x))
      return tape.gradient(total, x)

    return run

  run = gradient(lambda x: diagonal(x, fn, [2]))
  found = (tf.function(run, autograph=False) if in_graph else run)(x)
  expected = gradient(lambda x: dense(fn, x))(x)
  np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
  assert passes


def beside_a_branch(x):
  return forces(x) + tf.cond(
    tf.reduce_sum(x) > 0.0, lambda: x**3, lambda: tf.exp(x)
  )


def after_a_loop(x):
  _, y = tf.while_loop(
    lambda i, _: i < 3,
    lambda i, y: (i + 1, tf.sin(y) * y),
    (0, x),
    maximum_iterations=3,
  )
  return forces(y) + y


@pytest.mark.parametrize(
  'fn, jit_compile', [(beside_a_branch, False), (after_a_loop, True)]
)
def test_branches_and_loops(fn, jit_compile, passes):
  x = state(2)

  def with_gradient(compute, x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      found = compute(x)
      total = tf.reduce_sum(tf.sin(found))
    return found, tape.gradient(total, x)

  run = tf.function(
    lambda x: with_gradient(lambda x: diagonal(x, fn, None), x),
    autograph=False,
    jit_compile=jit_compile,
  )
  expected = with_gradient(lambda x: jacobian_diagonal(fn, x), x)
  for found, wanted in zip(run(x), expected):
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-10)
  assert passes


def test_more_passes_than_are_written_out(passes):
  """Tokens of 12 numbers: passes are vectorized."""
  weights = RNG.standard_normal((3, 12, 12)) / 6.0

  def fn(x):
    query, key, value = (x @ constant(w, x) for w in weights)
    scores = tf.linalg.matmul(query, key, transpose_b=True)
    return tf.linalg.matmul(tf.nn.softmax(scores), value)

  x = tf.constant(RNG.standard_normal((2, 5, 12)))
  assert tfp_diag.plan_diag_jacobian(fn, x, [2]).num_passes == 12
  expected = dense(fn, x)
  for jit_compile in (False, True):
    run = tf.function(
      lambda x: diagonal(x, fn, [2]), autograph=False, jit_compile=jit_compile
    )
    np.testing.assert_allclose(run(x), expected, rtol=1e-9, atol=1e-11)
  assert passes


def test_several_parts(passes):
  """Positions and velocities, with friction."""

  def fn(x, v):
    return [
      v + 0.1 * x,
      forces(x) - v * tf.reduce_mean(v**2, -2, keepdims=True),
    ]

  x, v = state(3), state(3)
  plan = tfp_diag.plan_diag_jacobian(fn, [x, v], [3])
  assert plan.num_passes < 20
  _, diag = tfp_diag.diag_jacobian([x, v], fn=fn, sample_shape=[3], plan=plan)
  _, loop = tfp_diag.diag_jacobian(
    [x, v], fn=fn, sample_shape=[3], schedule='while_loop'
  )
  for found, expected in zip(diag, loop):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_what_is_not_finite_stays_where_it_is(passes):
  """One particle at infinity, as an ordinary pass has it."""

  def fn(x):
    d = differences(x)
    return tf.reduce_sum(d / (1.0 + tf.abs(d)), -2) + tf.sqrt(x)

  x = state(2).numpy()
  x[0, 2, 1] = 0.0
  run = tf.function(lambda x: diagonal(x, fn, [2]), autograph=False)
  found = run(x).numpy()
  assert passes
  assert np.isinf(found[0, 2, 1])
  found[0, 2, 1] = 0.0
  assert np.all(np.isfinite(found))


def _term(kind, x, weights, bend):
  d = differences(x)
  if kind == 0:
    return tf.reduce_sum(bend(d) * tf.reduce_sum(d, -1, keepdims=True), -2)
  if kind == 1:
    return tf.reduce_mean(bend(x[..., tf.newaxis, :, :] + d), -3)
  if kind == 2:
    scores = tf.einsum('bik,bjk->bij', x @ weights, bend(x))
    return tf.nn.softmax(scores) @ x
  if kind == 3:
    return messages(bend(x)) * x
  if kind == 4:
    return bend(x @ weights) * tf.roll(x, 1, -2)
  if kind == 5:
    tiled = tf.tile(x[:, tf.newaxis], [1, N, 1, 1])
    repeated = tf.repeat(x[:, :, tf.newaxis], N, axis=2)
    d = bend(tiled - repeated)
    return tf.reduce_sum(d * tf.reverse(d, [1]), 1)
  scores = tf.linalg.matmul(bend(x), x, transpose_b=True)
  scores = tf.linalg.set_diag(scores, tf.zeros_like(x[..., 0]))
  return tf.linalg.matmul(scores, x)


@pytest.mark.parametrize('seed', range(12))
def test_random_interactions(seed):
  """Sums and products of interactions, against the dense Jacobian."""
  rng = np.random.default_rng(seed)
  kinds = rng.integers(0, 7, size=2)
  bends = [(tf.sin, tf.tanh, tf.square)[k] for k in rng.integers(0, 3, size=2)]
  weights = tf.constant(rng.standard_normal((K, K)))
  is_product = bool(rng.integers(0, 2))

  def fn(x):
    a, b = (_term(k, x, weights, bend) for k, bend in zip(kinds, bends))
    return a * b if is_product else a + b

  x = tf.constant(rng.standard_normal((3, N, K)))
  run = tf.function(lambda x: diagonal(x, fn, [3]), autograph=False)
  expected = dense(fn, x)
  scale = np.abs(expected).max()
  np.testing.assert_allclose(run(x), expected, rtol=1e-9, atol=1e-10 * scale)
