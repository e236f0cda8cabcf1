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
"""The diagonal over a data set is that of the full batch, however it is cut."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfp_diag
from tfp_diag.diagonal import graphs

RNG = np.random.default_rng(7)
X = RNG.normal(size=[23, 3])
Y = RNG.normal(size=[23])
W = tf.Variable(RNG.normal(size=[3]))
B = tf.Variable(0.5, dtype=tf.float64)
UNUSED = tf.Variable([1.0, 2.0])
VARIABLES = {'w': W, 'b': [B, UNUSED]}


def losses(x, y):
  return tf.cosh(tf.linalg.matvec(x, W) + B - y)


def mean_loss(x, y):
  return tf.reduce_mean(losses(x, y))


def sum_loss(x, y):
  return tf.reduce_sum(losses(x, y))


def closed_form():
  curvature = np.cosh(X @ W.numpy() + B.numpy() - Y)
  return np.mean(curvature[:, np.newaxis] * X**2, 0), np.mean(curvature)


def dataset(batch_size):
  return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


@pytest.mark.parametrize('batch_size', [1, 5, 8, 23, 100])
@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_is_that_of_the_full_batch(batch_size, reduction):
  result = tfp_diag.diag_hessian_over_dataset(
    mean_loss if reduction == 'mean' else sum_loss,
    VARIABLES,
    dataset(batch_size),
    reduction=reduction,
    progress_bar=False,
  )
  w, b = closed_form()
  factor = 1 if reduction == 'mean' else 23
  np.testing.assert_allclose(result.diag['w'], factor * w, rtol=1e-12)
  np.testing.assert_allclose(result.diag['b'][0], factor * b, rtol=1e-12)
  np.testing.assert_array_equal(result.diag['b'][1], [0, 0])
  np.testing.assert_array_equal(result.standard_error['w'], [0, 0, 0])
  assert result.num_examples == 23
  # One sweep for all weights of a batch.
  assert result.num_passes == -(-23 // batch_size)


def test_counts_the_passes_that_run():
  # All pairs of weights interact on two paths: a pass for each.
  def loss(x):
    return tf.reduce_mean(
      tf.exp(x @ W[:, tf.newaxis]) * tf.exp(tf.reduce_sum(tf.sin(W)))
    )

  result = tfp_diag.diag_hessian_over_dataset(
    loss, W, tf.data.Dataset.from_tensor_slices(X).batch(8), progress_bar=False
  )
  assert result.num_passes == 3 * 3


@pytest.mark.parametrize('sizes', [(8, 7), (7, 8), (1, 8)])
def test_components_of_different_lengths_are_refused(sizes):
  batch = (tf.constant(X[: sizes[0]]), tf.constant(Y[: sizes[1]]))
  with pytest.raises(
    ValueError, match=f'{list(sizes)}.*must be the same'.replace('[', r'\[')
  ):
    tfp_diag.diag_hessian_over_dataset(
      mean_loss, VARIABLES, [batch], progress_bar=False
    )


def test_a_scalar_beside_the_data_counts_no_examples():
  result = tfp_diag.diag_hessian_over_dataset(
    lambda scale, x, y: scale * mean_loss(x, y),
    VARIABLES,
    [(tf.constant(2.0, tf.float64), tf.constant(X), tf.constant(Y))],
    progress_bar=False,
  )
  np.testing.assert_allclose(result.diag['w'], 2 * closed_form()[0], rtol=1e-12)
  assert result.num_examples == 23


def test_an_unweighted_mean_over_batches_would_be_seen():
  # The control of the test above: 23 = 8 + 8 + 7.
  batches = [
    tfp_diag.diag_hessian(lambda x=x, y=y: mean_loss(x, y), [W])[2][0]
    for x, y in dataset(8)
  ]
  assert not np.allclose(np.mean(batches, 0), closed_form()[0], rtol=1e-4)


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_stochastic(reduction):
  result = tfp_diag.diag_hessian_over_dataset(
    mean_loss if reduction == 'mean' else sum_loss,
    VARIABLES,
    dataset(8),
    reduction=reduction,
    method='stochastic',
    num_probes=200,
    seed=[0, 1],
    progress_bar=False,
  )
  w, _ = closed_form()
  factor = 1 if reduction == 'mean' else 23
  error = result.standard_error['w'].numpy()
  assert (np.abs(result.diag['w'] - factor * w) < 4.5 * error).all()
  # The error of a mean of 600 probes, whose single one is off by the couplings.
  curvature = np.cosh(X @ W.numpy() + B.numpy() - Y)
  design = np.concatenate([X, np.ones([23, 1])], 1)
  variance = 0
  for start in (0, 8, 16):
    rows = slice(start, start + 8)
    h = np.einsum('n,ni,nj->ij', curvature[rows], design[rows], design[rows])
    variance += ((h - np.diag(np.diag(h))) ** 2).sum(1)[:3] / 200
  expected = np.sqrt(variance) * factor / 23
  np.testing.assert_allclose(error, expected, rtol=0.3)
  assert result.num_passes == 600


def test_probes_differ_between_batches_and_repeat_with_the_seed():
  same = tf.data.Dataset.from_tensors((X, Y))

  def run(data, seed):
    return tfp_diag.diag_hessian_over_dataset(
      mean_loss,
      VARIABLES,
      data,
      method='stochastic',
      num_probes=3,
      seed=seed,
      progress_bar=False,
    ).diag['w']

  one, two = run(same, [0, 1]), run(same.repeat(2), [0, 1])
  assert np.abs(one - two).max() > 1e-3
  np.testing.assert_array_equal(one, run(same, tf.constant([0, 1])))
  assert np.abs(one - run(same, [0, 2])).max() > 1e-3
  # None: another seed each time.
  assert np.abs(run(same, None) - run(same, None)).max() > 1e-3


def test_one_graph_for_each_size_of_a_batch():
  tfp_diag.clear_cache()
  traces = 0

  def loss(x, y):
    nonlocal traces
    traces += 1
    return mean_loss(x, y)

  for _ in range(2):
    tfp_diag.diag_hessian_over_dataset(
      loss, [W], dataset(5), progress_bar=False
    )
  # Twice five batches, of which the last is smaller.
  assert traces == 10
  assert len(graphs._cache) == 2


@pytest.mark.parametrize('library', [keras, tf_keras])
def test_a_keras_model(library):
  library.utils.set_random_seed(0)
  model = library.Sequential(
    [library.layers.Dense(4, activation='tanh'), library.layers.Dense(1)]
  )
  x, y = tf.constant(X, tf.float32), tf.constant(Y, tf.float32)
  model(x)

  def loss(x, y):
    return tf.reduce_mean((model(x)[:, 0] - y) ** 2)

  result = tfp_diag.diag_hessian_over_dataset(
    loss,
    model.trainable_variables,
    tf.data.Dataset.from_tensor_slices((x, y)).batch(10),
    progress_bar=False,
    chunk_size=3,
  )
  shapes = [[3, 4], [4], [4, 1], [1]]
  assert [d.shape for d in result.diag] == shapes
  # The whole Hessian, of the whole batch.
  variables = model.trainable_variables
  blocks = tfp_diag.hessian(lambda: loss(x, y), variables)
  for i, (d, shape) in enumerate(zip(result.diag, shapes)):
    size = int(np.prod(shape))
    full = np.reshape(blocks[i][i], [size, size])
    np.testing.assert_allclose(np.ravel(d), np.diag(full), atol=2e-5)
  _, _, at_once = tfp_diag.diag_hessian(lambda: loss(x, y), variables)
  for a, d in zip(at_once, result.diag):
    np.testing.assert_allclose(a, d, atol=2e-5)


def test_any_iterable_and_a_progress_bar(capsys):
  batches = [{'x': X[:20], 'y': Y[:20]}, {'x': X[20:], 'y': Y[20:]}]
  result = tfp_diag.diag_hessian_over_dataset(
    mean_loss, W, batches, progress_bar=True
  )
  np.testing.assert_allclose(result.diag, closed_form()[0], rtol=1e-12)
  assert '2/2' in capsys.readouterr().err


@pytest.mark.parametrize(
  'error, match, kwargs',
  [
    (ValueError, 'no examples', {'dataset': []}),
    (TypeError, '`dataset` is an ndarray', {'dataset': np.ones([6, 2, 2])}),
    (ValueError, 'Batch the data', {'dataset': [(1.0, 2.0)]}),
    (ValueError, 'a scalar is needed', {'loss_fn': losses}),
    (ValueError, '`reduction` is', {'reduction': 'median'}),
    (ValueError, '`method` is', {'method': 'guess'}),
    (ValueError, r'`seed` is \[0, 1\], but .* has no probes', {'seed': [0, 1]}),
    (ValueError, '`seed` is 1, but .* has no probes', {'seed': 1}),
    (
      ValueError,
      '`num_probes` is 10, but .* has no probes',
      {'num_probes': 10},
    ),
    (TypeError, 'not a `tf.Variable`', {'variables': [tf.constant(1.0)]}),
    (ValueError, '`chunk_size` is 0', {'chunk_size': 0}),
  ],
)
def test_errors(error, match, kwargs):
  arguments = {
    'loss_fn': mean_loss,
    'variables': W,
    'dataset': [(X, Y)],
    'progress_bar': False,
    **kwargs,
  }
  with pytest.raises(error, match=match):
    tfp_diag.diag_hessian_over_dataset(**arguments)


def test_half_precision_adds_up_in_double():
  # In steps of two, bfloat16 gets no further than 512.
  w = tf.Variable(tf.ones([2], tf.bfloat16))

  def loss(x):
    return tf.reduce_sum(tf.cast(x, w.dtype) * tf.reduce_sum(w**2))

  result = tfp_diag.diag_hessian_over_dataset(
    loss, w, [tf.ones([1])] * 300, reduction='sum', progress_bar=False
  )
  assert result.diag.dtype == w.dtype
  np.testing.assert_array_equal(tf.cast(result.diag, tf.float32), 600.0)


def test_a_data_set_in_a_graph_is_refused():
  with pytest.raises(ValueError, match=r'outside of `tf\.function`'):
    tf.function(
      lambda: tfp_diag.diag_hessian_over_dataset(mean_loss, W, dataset(8)).diag,
      autograph=False,
    )()


@pytest.mark.parametrize(
  'options', [{}, {'method': 'stochastic', 'seed': 1}], ids=['exact', 'probes']
)
def test_a_variable_that_is_not_used_is_named_once(options):
  used, unused = tf.Variable([1.0, 2.0]), tf.Variable(3.0, name='forgotten')
  with pytest.warns(UserWarning, match=r"`loss_fn` .*1 \('forgotten:0'\)") as w:
    found = tfp_diag.diag_hessian_over_dataset(
      lambda x: tf.reduce_mean(tf.linalg.matvec(x, used) ** 2),
      [used, unused],
      [tf.ones([3, 2])] * 2,
      progress_bar=False,
      **options,
    )
  assert len(w) == 1
  np.testing.assert_array_equal(found.diag[1], 0.0)
