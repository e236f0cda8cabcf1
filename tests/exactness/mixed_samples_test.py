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
"""A function that mixes samples is refused, in one sentence, everywhere."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import (
  WAYS,
  check_hessian,
  check_jacobian,
  draw,
  hessian,
  jacobian,
)
from tests.pairs import parametrize_pairs
from tfp_diag.sparsity import SampleMixingError

B = 6


def standardized(x):
  mean, variance = tf.nn.moments(x, axes=[0])
  return (x - mean) / tf.sqrt(variance + 0.1)


def next_sample(x):
  return tf.sin(x) * tf.reverse(x, [0])


def over_the_samples(x):
  return tf.nn.softmax(x, axis=0)


def gram(x):
  return tf.matmul(x, x, transpose_b=True) @ x


def running_total(x):
  return x**2 + tf.cumsum(x, axis=0)


def sum_of_everything(x):
  return x * tf.reduce_sum(x)


def first_sample(x):
  return x + tf.sin(x[:1])


def changed_places(x):
  return tf.gather(x**2, [*range(1, B), 0])


FUNCTIONS = (
  standardized,
  next_sample,
  over_the_samples,
  gram,
  running_total,
  sum_of_everything,
  first_sample,
  changed_places,
)


def sentence(error):
  """What is said, but for the names of ops."""
  text = str(error.value)
  assert 'mixes samples' in text and 'sample_shape' in text
  return re.sub(
    r'fn mixes samples: .*? makes', 'fn mixes samples: OP makes', text
  )


@parametrize_pairs(
  fn=FUNCTIONS,
  way=('eager', 'function'),
  n=(3, 20),
)
def test_a_jacobian_is_refused(n, way, fn):
  with pytest.raises(SampleMixingError) as error:
    jacobian(way, fn, draw(B, n))
  sentence(error)


@parametrize_pairs(
  fn=FUNCTIONS[:5],
  way=('eager', 'function'),
  n=(3, 20),
)
def test_a_hessian_is_refused(n, way, fn):
  with pytest.raises(SampleMixingError) as error:
    hessian(way, lambda x: tf.reduce_sum(fn(x) ** 2, axis=-1), draw(B, n))
  sentence(error)


@pytest.mark.parametrize(
  'kind, fn',
  [
    ('jacobian', standardized),
    ('hessian', next_sample),
    ('hessian', over_the_samples),
  ],
)
def test_it_is_the_same_sentence_everywhere(kind, fn):
  x = draw(B, 5)
  said = set()
  for way in WAYS:
    with pytest.raises(SampleMixingError) as error:
      if kind == 'jacobian':
        jacobian(way, fn, x)
      else:
        hessian(way, lambda x: tf.reduce_sum(fn(x) ** 3, axis=-1), x)
    said.add(sentence(error))
  assert len(said) == 1


@pytest.mark.parametrize('fn', FUNCTIONS[:3], ids=lambda f: f.__name__)
def test_an_unknown_number_of_samples(fn):
  @tf.function(
    autograph=False, input_signature=[tf.TensorSpec([None, 4], tf.float64)]
  )
  def call(x):
    samples = tf.shape(x)[:1]
    return tfp_diag.diag_jacobian(x, sample_shape=samples, fn=fn)[1]

  with pytest.raises(SampleMixingError):
    call(draw(B, 4))


# What they do cannot be followed while the number of samples is open.
UNSEEN = {
  'padded': lambda x: (tf.pad(x, [[1, 0], [0, 0]])[:-1] + x) ** 2 * x,
  'scanned': lambda x: tf.scan(lambda total, row: total + row**3, x),
  'mapped': lambda x: tf.map_fn(
    lambda i: x[i] ** 2 * x[(i + 1) % tf.shape(x)[0]],
    tf.range(tf.shape(x)[0]),
    fn_output_signature=tf.float64,
  ),
  'joined': lambda x: tf.concat([x[1:], x[:1]], 0) * x**2,
  'indexed': lambda x: x**2 * x[tf.shape(x)[0] // 2],
}


@pytest.mark.parametrize(
  'kind, name',
  [
    *(('jacobian', name) for name in UNSEEN),
    ('hessian', 'padded'),
    ('hessian', 'scanned'),
  ],
)
def test_an_unknown_number_of_samples_of_which_few_mix(kind, name):
  fn = UNSEEN[name]

  def call(x):
    if kind == 'jacobian':
      return tfp_diag.diag_jacobian(x, sample_shape=tf.shape(x)[:1], fn=fn)[1]
    return tfp_diag.diag_hessian(lambda x: tf.reduce_sum(fn(x), -1), x)[2]

  function = tf.function(call, autograph=False)
  with pytest.raises(SampleMixingError) as error:
    function.get_concrete_function(tf.TensorSpec([None, 4], tf.float64))
  sentence(error)


@pytest.mark.parametrize('shape', ([None, None], [3, None]))
@pytest.mark.parametrize(
  'derivative',
  (
    lambda x: tfp_diag.diag_hessian(
      lambda x: tf.reduce_sum(standardized(x) ** 2, -1), x
    ),
    lambda x: tfp_diag.diag_jacobian(
      x, sample_shape=tf.shape(x)[:1], fn=standardized
    ),
    lambda x: tfp_diag.diag_gauss_newton(standardized, x, sample_shape=3),
    lambda x: tfp_diag.jacobian(standardized, x, sample_shape=3),
  ),
  ids=('hessian', 'jacobian', 'gauss_newton', 'whole'),
)
def test_events_of_an_unknown_size(derivative, shape):
  function = tf.function(derivative, autograph=False)
  with pytest.raises(SampleMixingError) as error:
    function.get_concrete_function(tf.TensorSpec(shape, tf.float64))
  sentence(error)


def test_an_unknown_number_of_samples_that_are_not_seen_to_mix():
  def fn(x):
    return tf.map_fn(lambda row: tf.reduce_sum(row[1:] ** 2 * row[:-1]), x)

  x = draw(3, 4)
  function = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2],
    autograph=False,
    input_signature=[tf.TensorSpec([None, 4], tf.float64)],
  )
  with pytest.warns(RuntimeWarning, match='`fn` mixes samples cannot be seen'):
    diag = function(x)
  expected = np.zeros([3, 4])
  expected[:, 1:] = 2 * x[:, :-1]
  np.testing.assert_allclose(diag, expected, rtol=1e-12)


@pytest.mark.parametrize('validate_args', (False, True))
def test_with_and_without_validation(validate_args):
  with pytest.raises(SampleMixingError):
    tfp_diag.diag_jacobian(
      draw(B, 4),
      sample_shape=[B],
      fn=running_total,
      validate_args=validate_args,
    )


@pytest.mark.parametrize(
  'schedule, mode', [('unrolled', 'reverse'), ('while_loop', 'forward')]
)
def test_in_each_mode_and_schedule(schedule, mode):
  with pytest.raises(SampleMixingError):
    tfp_diag.diag_jacobian(
      draw(B, 4), sample_shape=[B], fn=gram, mode=mode, schedule=schedule
    )


def test_with_a_plan_of_a_function_that_does_not():
  x = draw(B, 4)
  plan = tfp_diag.plan_diag_jacobian(
    lambda x: tf.cumsum(x, axis=1) ** 2, x, sample_shape=[B]
  )
  with pytest.raises(SampleMixingError):
    tfp_diag.diag_jacobian(x, fn=running_total, plan=plan)


def test_two_sample_dimensions():
  """Only the second one is mixed."""
  x = draw(2, 3, 4)

  def fn(x):
    return x * tf.reduce_max(x, axis=1, keepdims=True)

  with pytest.raises(SampleMixingError):
    jacobian('eager', fn, x, rank=2)
  check_jacobian('eager', fn, x, rank=1)


@pytest.mark.parametrize('fn', FUNCTIONS, ids=lambda f: f.__name__)
def test_without_samples_nothing_is_mixed(fn):
  check_jacobian('eager', fn, draw(B, 3), rank=0)


# Kernels.


def log_prob(x):
  return -0.5 * tf.reduce_sum(x**2, axis=-1)


def mixed_log_prob(x):
  centered = x - tf.reduce_mean(x, axis=0)
  return -0.5 * tf.reduce_sum(centered**2, -1) - tf.reduce_sum(x**4, -1)


def volatility(x):
  return 1.0 + tf.sigmoid(x) * tf.sigmoid(tf.reverse(x, [-1]))


def mixed_volatility(x):
  return 1.0 + tf.nn.softmax(x, axis=0)


def kernels():
  mcmc = tfp_diag.mcmc
  return {
    'target of a constant scale': mcmc.PreconditionedMALA(
      mixed_log_prob, step_size=0.1
    ),
    'target beside a volatility': mcmc.PreconditionedMALA(
      mixed_log_prob, step_size=0.1, volatility_fn=volatility
    ),
    'volatility': mcmc.PreconditionedMALA(
      log_prob, step_size=0.1, volatility_fn=mixed_volatility
    ),
    'proposal alone': mcmc.UncalibratedPreconditionedLangevin(
      log_prob, step_size=0.1, volatility_fn=mixed_volatility
    ),
    'local scale': mcmc.PreconditionedMALA(
      mixed_log_prob,
      step_size=0.1,
      preconditioner=mcmc.LocalHessianPreconditioner(),
    ),
    'adaptation': mcmc.DiagonalPreconditionerAdaptation(
      mcmc.PreconditionedMALA(mixed_log_prob, step_size=0.1),
      num_adaptation_steps=10,
    ),
  }


@pytest.mark.parametrize(
  'in_graph, name',
  [
    *((k % 2 == 1, name) for k, name in enumerate(kernels())),
    (True, 'target of a constant scale'),
  ],
)
def test_a_kernel_refuses_at_the_start(in_graph, name):
  kernel = kernels()[name]
  start = kernel.bootstrap_results
  if in_graph:
    start = tf.function(start, autograph=False)
  with pytest.raises(SampleMixingError, match=r'mixes (samples|chains)'):
    start(draw(B, 3))


def test_kernels_of_separate_chains_start():
  kernel = tfp_diag.mcmc.PreconditionedMALA(
    log_prob, step_size=0.1, volatility_fn=volatility
  )
  kernel.bootstrap_results(draw(B, 3))


# What only looks as if it mixed samples.

MASK = np.arange(8) % 3 > 0


def masked_normalizer(x):
  return tf.reduce_logsumexp(tf.boolean_mask(x, MASK, axis=1), -1)


def masked_variance(x):
  kept = tf.boolean_mask(x**2, ~MASK, axis=1)
  return tf.math.reduce_variance(kept, axis=-1) + tf.reduce_sum(x, -1)


def sorted_masked(x):
  kept = tf.sort(tf.boolean_mask(x, MASK, axis=1), axis=-1)
  return tf.reduce_sum(kept * kept[:, ::-1] ** 2, axis=-1)


def places_found(x):
  found = tf.where(tf.constant(MASK))[:, 0]
  return tf.reduce_logsumexp(tf.gather(x, found, axis=1) * 2.0, axis=-1)


def partitioned(x):
  even, odd = tf.dynamic_partition(
    tf.transpose(x), tf.constant(np.arange(8) % 2, tf.int32), 2
  )
  return tf.reduce_sum(tf.transpose(tf.sin(even) * odd), axis=-1)


def distinct_places(x):
  places, _ = tf.unique(tf.constant([0, 3, 3, 5, 0, 7]))
  return tf.reduce_prod(tf.gather(x, places, axis=1), axis=-1)


SEPARATE = (
  masked_normalizer,
  masked_variance,
  sorted_masked,
  places_found,
  partitioned,
  distinct_places,
)


# Eagerly and by an open plan in turn; the first one, which is hard, in both.
@pytest.mark.parametrize(
  'way, fn',
  [
    ('open_plan', masked_normalizer),
    *((('eager', 'open_plan')[k % 2], fn) for k, fn in enumerate(SEPARATE)),
  ],
)
def test_samples_that_do_not_mix_are_not_accused(way, fn):
  check_hessian(way, fn, draw(3, 8))


def picked_slice(x):
  place = tf.argmax(x[:, :3], -1)[:, tf.newaxis]
  return tf.gather_nd(tf.reshape(x, [-1, 4, 2]), place, batch_dims=1) ** 3


def put_at_a_place(x):
  place = tf.argmax(x[:, :4], -1, output_type=tf.int32)
  places = tf.stack([tf.range(tf.shape(x)[0]), place], -1)
  return tf.tensor_scatter_nd_add(x**2, places, tf.sin(x[:, 5])) ** 2


@pytest.mark.parametrize('fn', (picked_slice, put_at_a_place))
def test_samples_with_a_column_of_their_own_are_not_accused(fn):
  check_hessian('eager', lambda x: tf.reduce_sum(fn(x), -1), draw(3, 8))


def alignments(x):
  """An op in its own gradient hides what it depends on, and its shape."""
  return -tf.nn.ctc_loss(
    labels=tf.constant([[1, 2], [2, 1], [1, 1]]),
    logits=tf.reshape(x, [3, 4, 3]),
    label_length=[2] * 3,
    logit_length=[4] * 3,
    logits_time_major=False,
    blank_index=0,
  )


@tf.custom_gradient
def normalized_slopes(x):
  return tf.sin(x), lambda dy: dy * tf.nn.softmax(x, axis=0)


def test_own_gradients_are_accused_of_what_is_seen():
  x = tf.cast(draw(3, 12), tf.float32)
  plan = tfp_diag.plan_diag_hessian(alignments, x)
  assert plan.num_passes == 12
  with pytest.raises(SampleMixingError, match='has a gradient of its own'):
    tfp_diag.plan_diag_hessian(
      lambda x: tf.reduce_sum(normalized_slopes(x), -1) + alignments(x), x
    )
