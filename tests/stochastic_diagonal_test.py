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
"""The stochastic estimators: unbiased, honest about their error, reproducible.

Seeds are fixed. Bounds on statistics are at least 4.5 standard deviations wide
for each of a dozen comparisons: a false alarm under a new seed has a
probability below 1e-4. Controls with a wrong scale or a sum must be caught.
"""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import tfp_diag

RNG = np.random.default_rng(5)
MATRIX = RNG.normal(size=(6, 6))
NUM_PROBES = 64
NUM_REPETITIONS = 2000


def linear(x):
  return tf.linalg.matvec(tf.constant(MATRIX, x.dtype), x)


@pytest.fixture(scope='module')
def repetitions():
  """Every sample has its own probes: one call repeats the experiment."""
  x = tf.zeros([NUM_REPETITIONS, 6], tf.float64)
  return tfp_diag.stochastic_diag_jacobian(
    linear, x, NUM_PROBES, [1, 2], [NUM_REPETITIONS]
  )


def z_scores(estimates, truth):
  error = estimates.std(0, ddof=1) / np.sqrt(len(estimates))
  return (estimates.mean(0) - truth) / error


def coverage(result, scale=1.0):
  quantile = scipy.stats.t.ppf(0.975, NUM_PROBES - 1)
  off = np.abs(result.estimate - np.diag(MATRIX))
  return np.mean(off <= scale * quantile * result.standard_error, axis=0)


def test_is_unbiased_and_averages(repetitions):
  estimates = repetitions.estimate.numpy()
  assert estimates.shape == (NUM_REPETITIONS, 6)
  assert np.abs(z_scores(estimates, np.diag(MATRIX))).max() < 4.5
  # Control: a sum over probes, or the diagonal of something else, is seen.
  assert np.abs(z_scores(estimates * NUM_PROBES, np.diag(MATRIX))).min() > 10
  other = np.diag(MATRIX) + 0.05
  assert np.abs(z_scores(estimates, other)).min() > 4.5


def test_intervals_cover(repetitions):
  covered = coverage(repetitions)
  assert ((covered > 0.92) & (covered < 0.98)).all(), covered
  # Control: errors that are too small by a quarter, or too large, are seen.
  assert (coverage(repetitions, 0.75) < 0.92).all()
  assert (coverage(repetitions, 1.35) > 0.98).all()


def test_standard_error_has_its_closed_form(repetitions):
  # Reverse mode: Var(z_i z_j A_ji summed over j) is the sum of A_ji^2 over j
  # other than i.
  off_diagonal = MATRIX - np.diag(np.diag(MATRIX))
  expected = (off_diagonal**2).sum(0) / NUM_PROBES
  mean = np.mean(repetitions.standard_error**2, axis=0)
  np.testing.assert_allclose(mean, expected, rtol=0.05)


def test_chunks_change_nothing():
  x = tf.zeros([6], tf.float64)
  results = [
    tfp_diag.stochastic_diag_jacobian(linear, x, 7, [1, 2], chunk_size=c)
    for c in (1, 3, 7)
  ]
  for result in results:
    assert result.num_passes == 7
    for a, b in zip(result[:2], results[0][:2]):
      np.testing.assert_allclose(a, b, rtol=1e-12)
  other = tfp_diag.stochastic_diag_jacobian(linear, x, 7, [1, 3])
  assert np.abs(other.estimate - results[0].estimate).min() > 1e-6


@pytest.mark.parametrize('method', ['hutchinson', 'xdiag'])
def test_regimes_agree(method):
  x = tf.constant(RNG.normal(size=[4, 18]))
  matrix = RNG.normal(size=(18, 18))

  def call(x, seed):
    return tfp_diag.stochastic_diag_jacobian(
      lambda x: tf.linalg.matvec(matrix, tf.sin(x)),
      x,
      5,
      seed,
      [None],
      method=method,
    )

  seed = tf.constant([3, 4])
  eager = call(x, seed)
  specs = [tf.TensorSpec([None, None], x.dtype), tf.TensorSpec([2], tf.int32)]
  for jit_compile in (None, True):
    graph = tf.function(call, specs, jit_compile=jit_compile, autograph=False)
    for a, b in zip(graph(x, seed), eager):
      np.testing.assert_allclose(a, b, rtol=1e-9)


def chain(x):
  """Its Hessian is tridiagonal."""
  return tf.reduce_sum(x**4, -1) + tf.reduce_sum(x[..., 1:] * x[..., :-1], -1)


@pytest.mark.usefixtures('without_sweeps')
def test_a_proper_coloring_is_exact():
  x = tf.constant(RNG.normal(size=[3, 8]))
  plan = tfp_diag.plan_diag_hessian(chain, x, [3])
  assert plan.num_passes == 2
  result = tfp_diag.stochastic_diag_hessian(chain, x, 3, [0, 1], plan=plan)
  np.testing.assert_allclose(result.estimate, 12 * x**2, rtol=1e-12)
  np.testing.assert_allclose(result.standard_error, 0, atol=1e-12)
  assert result.num_passes == 6


def test_the_error_comes_from_the_same_color():
  # Two colors, of which one joins the neighbours 0 and 1 only.
  x = tf.constant(RNG.normal(size=[8]))
  plan = tfp_diag.plan_diag_hessian(chain, x)
  improper = dataclasses.replace(
    plan, colors=np.array([0, 0, 1, 0, 1, 0, 1, 0], np.int32)
  )
  result = tfp_diag.stochastic_diag_hessian(chain, x, 40, [0, 1], plan=improper)
  deviation = np.abs(result.estimate - 12 * x**2)
  np.testing.assert_allclose(deviation[2:], 0, atol=1e-12)
  assert (deviation[:2] > 0).all()
  np.testing.assert_allclose(result.standard_error[2:], 0, atol=1e-12)
  # Their coupling is 1, so each probe is off by one up or down.
  n = 40
  bias = result.estimate[0] - 12 * x[0] ** 2
  expected = np.sqrt((1 - bias**2) / (n - 1))
  np.testing.assert_allclose(result.standard_error[:2], expected, rtol=1e-9)
  assert result.num_passes == 80


def decaying(n, rank=None):
  q, _ = np.linalg.qr(RNG.normal(size=(n, n)))
  values = 2.0 ** -np.arange(n)
  if rank is not None:
    values[rank:] = 0
  return q @ np.diag(values) @ q.T


def test_xdiag_is_better_where_the_spectrum_decays():
  matrix = decaying(30)
  x = tf.zeros([20, 30], tf.float64)

  def error(method, num_probes):
    result = tfp_diag.stochastic_diag_jacobian(
      lambda x: tf.linalg.matvec(tf.constant(matrix), x),
      x,
      num_probes,
      [0, 1],
      [20],
      method=method,
    )
    assert result.num_passes == (2 if method == 'xdiag' else 1) * num_probes
    off = np.asarray(result.estimate - np.diag(matrix))
    # The error and what it is said to be, over repetitions.
    return np.sqrt(np.mean(off**2)), np.sqrt(np.mean(result.standard_error**2))

  hutchinson, _ = error('hutchinson', 20)
  xdiag, said = error('xdiag', 10)
  assert xdiag < hutchinson / 20
  assert 1 / 3 < said / xdiag < 3


def test_xdiag_is_unbiased():
  # A matrix that is not symmetric, and whose spectrum does not decay.
  matrix = RNG.normal(size=(20, 20))
  x = tf.zeros([NUM_REPETITIONS, 20], tf.float64)
  result = tfp_diag.stochastic_diag_jacobian(
    lambda x: tf.linalg.matvec(matrix, x),
    x,
    4,
    [1, 2],
    [NUM_REPETITIONS],
    method='xdiag',
  )
  z = z_scores(result.estimate.numpy(), np.diag(matrix))
  assert np.abs(z).max() < 4.5


@pytest.mark.parametrize('rank', [0, 1, 3])
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_xdiag_is_exact_for_low_rank(rank, dtype):
  matrix = decaying(16, rank)
  w = tf.zeros([16], dtype)
  result = tfp_diag.stochastic_diag_hessian(
    lambda w: (
      tf.reduce_sum(w * tf.linalg.matvec(tf.constant(matrix, dtype), w)) / 2
    ),
    w,
    5,
    [0, 1],
    method='xdiag',
  )
  tolerance = 1e-12 if dtype == 'float64' else 2e-6
  np.testing.assert_allclose(result.estimate, np.diag(matrix), atol=tolerance)
  np.testing.assert_allclose(result.standard_error, 0, atol=tolerance)


def test_stops_at_the_tolerance():
  x = tf.constant(RNG.normal(size=[50]))

  def fn(x):
    return tf.reduce_sum(x**4) + 0.1 * tf.reduce_sum(x) ** 2

  loose, tight = (
    tfp_diag.stochastic_diag_hessian(fn, x, 103, [0, 1], tolerance=t)
    for t in (0.05, 0.0)
  )
  assert tight.num_passes == 103
  assert 10 <= loose.num_passes < 103
  assert loose.num_passes % 10 == 0
  relative = tf.norm(loose.standard_error) / tf.norm(loose.estimate)
  assert relative <= 0.05
  off = tf.norm(loose.estimate - tfp_diag.diag_hessian(fn, x)[2])
  assert off / tf.norm(loose.estimate) < 0.15
  # The remainder of a budget that the chunk does not divide.
  part = tfp_diag.stochastic_diag_hessian(fn, x, 13, [0, 1], tolerance=0.0)
  assert part.num_passes == 13


def test_weights_of_a_network():
  w1 = tf.Variable(RNG.normal(size=[3, 5]))
  w2 = tf.Variable(RNG.normal(size=[5]))
  unused = tf.Variable([1.0, 2.0])
  x, y = RNG.normal(size=[20, 3]), RNG.normal(size=[20])

  def loss():
    hidden = tf.tanh(tf.linalg.matmul(x, w1))
    return tf.reduce_mean((tf.linalg.matvec(hidden, w2) - y) ** 2)

  variables = [w1, w2, unused]
  _, _, exact = tfp_diag.diag_hessian(loss, variables)
  result = tfp_diag.stochastic_diag_hessian(loss, variables, 400, [0, 1])
  for e, s, d in zip(result.estimate[:2], result.standard_error, exact):
    assert e.shape == d.shape
    assert tf.reduce_all(tf.abs(e - d) < 4.5 * s)
  np.testing.assert_array_equal(result.estimate[2], [0, 0])


def test_structure_and_differentiability():
  xs = {'a': tf.constant(2.0), 'b': tf.constant([1.0, 3.0])}
  with tf.GradientTape() as tape:
    tape.watch(xs)
    result = tfp_diag.stochastic_diag_hessian(
      lambda a, b: a**3 + tf.reduce_sum(b**4), xs, 4, [0, 1]
    )
  np.testing.assert_allclose(result.estimate['a'], 12)
  np.testing.assert_allclose(result.estimate['b'], [12, 108])
  gradient = tape.gradient(result.estimate, xs)
  np.testing.assert_allclose(gradient['a'], 6)
  np.testing.assert_allclose(gradient['b'], [24, 72])


def test_one_probe_knows_no_error():
  result = tfp_diag.stochastic_diag_jacobian(
    linear, tf.zeros([6], tf.float64), 1, [0, 1]
  )
  assert np.isnan(result.standard_error).all()
  assert np.isfinite(result.estimate).all()


@pytest.mark.parametrize(
  'error, match, kwargs',
  [
    (ValueError, '`num_probes` is 0', {'num_probes': 0}),
    (ValueError, '`num_probes` is 2.5', {'num_probes': 2.5}),
    (ValueError, 'a pair of integers', {'seed': [1, 2, 3]}),
    (ValueError, 'a pair of integers', {'seed': [1.0, 2.0]}),
    (ValueError, "`method` is 'exact'", {'method': 'exact'}),
    (ValueError, '`tolerance` is -1', {'tolerance': -1}),
    (ValueError, 'leave out', {'tolerance': 0.1, 'method': 'xdiag'}),
    (ValueError, 'at least 16', {'num_probes': 3, 'method': 'xdiag'}),
    (ValueError, '`chunk_size` is 0', {'chunk_size': 0}),
    (ValueError, 'Hessian, not for a', {'plan': 'other'}),
  ],
)
def test_errors(error, match, kwargs):
  x = tf.zeros([6], tf.float64)
  if 'plan' in kwargs:
    kwargs = {'plan': tfp_diag.plan_diag_hessian(chain, x)}
  with pytest.raises(error, match=match):
    tfp_diag.stochastic_diag_jacobian(
      linear, x, **{'num_probes': 2, 'seed': [0, 1], **kwargs}
    )


def test_samples_that_mix_are_refused():
  with pytest.raises(ValueError, match=r'mixes samples: .*Mean'):
    tfp_diag.stochastic_diag_jacobian(
      lambda x: x - tf.reduce_mean(x, 0), tf.ones([4, 2]), 2, [0, 1], [4]
    )


def test_small_entries_have_errors():
  """Their squares are less than any number of float32."""
  symmetric = RNG.normal(size=[20, 20])
  symmetric += symmetric.T
  found = [
    tfp_diag.stochastic_diag_jacobian(
      lambda x, scale=scale: tf.linalg.matvec(
        tf.constant(scale * symmetric, x.dtype), x
      ),
      tf.ones([20]),
      40,
      [0, 1],
      tolerance=0.05,
    )
    for scale in (1.0, 1e-24)
  ]
  assert found[0].num_passes == found[1].num_passes == 40
  np.testing.assert_allclose(
    found[1].standard_error * 1e24, found[0].standard_error, rtol=1e-4
  )


def test_numbers_of_numpy_and_tensors():
  def fn(x):
    return x**2 * tf.reduce_sum(x)

  x = tf.ones([13])
  want = tfp_diag.stochastic_diag_jacobian(fn, x, 20, [0, 1], tolerance=0.1)
  for kwargs in (
    {'tolerance': tf.constant(0.1), 'chunk_size': np.int64(10)},
    {'tolerance': np.array(0.1), 'chunk_size': np.int32(10)},
  ):
    found = tfp_diag.stochastic_diag_jacobian(fn, x, 20, [0, 1], **kwargs)
    np.testing.assert_allclose(found.estimate, want.estimate)
    assert found.num_passes == want.num_passes


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_xdiag_in_half_precision(dtype):
  """Of rank one, so that the estimate is exact but for rounding."""
  vector = tf.cast(tf.linspace(1.0, 2.0, 20), dtype)
  found = tfp_diag.stochastic_diag_jacobian(
    lambda x: vector * tf.reduce_sum(vector * x),
    tf.ones([20], dtype),
    4,
    [0, 1],
    method='xdiag',
  )
  assert found.estimate.dtype == dtype
  got = tf.cast(found.estimate, tf.float32)
  np.testing.assert_allclose(got, np.linspace(1, 2, 20) ** 2, rtol=0.05)
