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
"""Tests patterns of whole functions: samples, parts, models, errors."""

import numpy as np
import pytest
import tensorflow as tf

from tfp_diag.sparsity import (
  PatternTooDenseError,
  SampleMixingError,
  color_diagonal,
  hessian_sparsity,
  jacobian_sparsity,
)


def chain(x):
  return tf.reduce_sum((x[..., 1:] - 0.9 * x[..., :-1]) ** 2, -1)


def tridiagonal(n):
  return np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= 1


@pytest.mark.parametrize('batch', [(), (7,), (3, 5), (2, 1, 3), (0,), (1,)])
@pytest.mark.parametrize('given', [True, False])
def test_samples_share_a_pattern(batch, given):
  pattern = hessian_sparsity(
    chain, tf.TensorSpec([*batch, 6]), batch if given else None
  )
  np.testing.assert_array_equal(pattern.matrix.toarray(), tridiagonal(6))
  assert pattern.row_shapes == pattern.column_shapes == ((6,),)
  jacobian = jacobian_sparsity(
    lambda x: x[..., 1:] * x[..., :-1], tf.TensorSpec([*batch, 6]), batch
  )
  np.testing.assert_array_equal(
    jacobian.matrix.toarray(), np.eye(5, 6) + np.eye(5, 6, 1)
  )
  assert jacobian.row_shapes == ((5,),)


def test_detection_does_not_grow_with_the_batch():
  shapes = []

  def fn(x):
    shapes.append(tuple(x.shape))
    return tf.exp(x)

  jacobian_sparsity(fn, tf.TensorSpec([100, 50, 3]), [100, 50])
  # What is asked about, and what is walked: few samples, of which no number
  # divides another that the function uses.
  assert shapes == [(100, 50, 3), (2, 3, 3)]
  # Also where the size of the batch is not known.
  assert jacobian_sparsity(fn, tf.TensorSpec([None, 3]), [None]).nnz == 3


def test_functions_that_close_over_their_batch_shape():
  weights = tf.constant(np.arange(1.0, 8.0)[:, None], tf.float32)
  pattern = jacobian_sparsity(lambda x: x * weights, tf.TensorSpec([7, 3]), [7])
  np.testing.assert_array_equal(pattern.matrix.toarray(), np.eye(3))
  # Samples of different structure are united.
  index = tf.constant([[0, 1], [1, 2], [0, 1]])
  pattern = jacobian_sparsity(
    lambda x: tf.gather(x, index, batch_dims=1), tf.TensorSpec([3, 3]), [3]
  )
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), [[1, 1, 0], [0, 1, 1]]
  )


def test_parts_of_different_shapes():
  def fn(mu, x, w):
    return (
      tf.reduce_sum((x - mu[:, None]) ** 2, -1)
      + tf.reduce_sum(w**2, [-1, -2])
      + w[:, 0, 0] * mu
    )

  specs = [tf.TensorSpec(s) for s in ([5], [5, 2], [5, 1, 2])]
  expected = np.eye(5)
  expected[0, :4] = expected[:4, 0] = 1
  pattern = hessian_sparsity(fn, specs)
  np.testing.assert_array_equal(pattern.matrix.toarray(), expected)
  assert pattern.column_shapes == ((), (2,), (1, 2))
  as_dict = dict(zip(['mu', 'x', 'w'], specs))
  by_name = hessian_sparsity(fn, as_dict)
  assert by_name.nnz == pattern.nnz


def test_outputs_in_a_structure():
  pattern = jacobian_sparsity(
    lambda x: {'a': x[:1], 'b': (x[1:], tf.reduce_sum(x))}, tf.TensorSpec([3])
  )
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]
  )
  assert pattern.row_shapes == ((1,), (2,), ())


@pytest.mark.parametrize(
  'fn, op',
  [
    (lambda x: x - tf.reduce_mean(x, 0), 'Mean'),
    (lambda x: tf.cumsum(tf.exp(x)), 'Cumsum'),
    (lambda x: tf.reverse(x, [0]) * 2, 'ReverseV2'),
    (lambda x: tf.transpose(x) @ x @ tf.transpose(x), 'MatMul'),
  ],
)
def test_functions_that_mix_samples_are_refused_by_name(fn, op):
  spec = tf.TensorSpec([4, 3])
  if op == 'MatMul':
    wrapped = lambda x: tf.transpose(fn(x))  # noqa: E731
  else:
    wrapped = fn
  with pytest.raises(SampleMixingError, match=r'sample_shape=\(\)') as error:
    jacobian_sparsity(wrapped, spec, [4])
  if op != 'ReverseV2':
    assert f'{op} (op' in str(error.value)
  assert jacobian_sparsity(wrapped, spec).shape == (12, 12)


@pytest.mark.parametrize('axis', [0, 1, 2])
@pytest.mark.parametrize(
  'mix',
  [
    lambda x, axis: x - tf.reduce_mean(x, axis, keepdims=True),
    lambda x, axis: tf.cumsum(tf.exp(x), axis),
    lambda x, axis: tf.roll(x, 1, axis) * 2.0,
  ],
)
def test_each_of_several_sample_axes_is_looked_at(mix, axis):
  spec = tf.TensorSpec([4, 5, 3, 6])
  with pytest.raises(SampleMixingError, match='mixes samples'):
    jacobian_sparsity(lambda x: mix(x, axis), spec, [4, 5, 3])
  pattern = jacobian_sparsity(lambda x: mix(x, 3), spec, [4, 5, 3])
  assert pattern.shape == (6, 6)


def test_ops_without_a_rule_get_the_benefit_of_the_doubt():
  def fn(x):
    image = x[:, None, :, None]
    boxes = tf.zeros([x.shape[0], 1, 4])
    return tf.image.draw_bounding_boxes(image, boxes, [[1.0]])

  pattern = jacobian_sparsity(fn, tf.TensorSpec([4, 3]), [4])
  assert pattern.nnz == 9
  assert pattern.fallback_ops
  assert any('mix samples' in note for note in pattern.notes)
  # But not what is mixed without them.
  with pytest.raises(SampleMixingError, match='Sum'):
    jacobian_sparsity(
      lambda x: fn(x) + tf.reduce_sum(x), tf.TensorSpec([4, 3]), [4]
    )


def test_python_control_flow_is_converted():
  def fn(x):
    if x[0] > 0:
      return x * 2
    return x[::-1]

  np.testing.assert_array_equal(
    jacobian_sparsity(fn, tf.TensorSpec([2])).matrix.toarray(), np.ones([2, 2])
  )


def test_arrays_and_tensors_are_taken_for_their_shapes():
  for x in (np.ones([2, 3]), tf.ones([2, 3]), tf.Variable(tf.ones([2, 3]))):
    assert hessian_sparsity(lambda x: tf.reduce_sum(x**2), x).nnz == 6


def test_gathered_gradients():
  # The gradient of a gather comes as IndexedSlices.
  def gradient(x):
    y = tf.gather(x, [0, 0, 2]) ** 2 * x[1]
    return tf.gradients(y, x)[0]

  np.testing.assert_array_equal(
    jacobian_sparsity(gradient, tf.TensorSpec([3])).matrix.toarray(),
    [[1, 1, 0], [1, 0, 1], [0, 1, 1]],
  )


def test_sums_with_constants_of_a_batch_of_unknown_size():
  """One term is the same for all x, and as large as the batch."""

  def score(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = 3.0 * x - tf.exp(x)
    return tape.gradient(y, x)

  pattern = jacobian_sparsity(
    score, tf.TensorSpec([None, 5]), sample_shape=[None]
  )
  assert pattern.nnz == 5 and not pattern.fallback_ops


def test_hessian_and_jacobian_of_the_gradient_agree():
  rng = np.random.default_rng(3)
  matrix = tf.constant(rng.normal(size=[4, 5]) * (rng.random([4, 5]) < 0.4))

  def value(x):
    y = tf.linalg.matvec(matrix, x)
    return tf.reduce_sum(tf.exp(y)) + tf.reduce_sum(x[:2] * x[2:4])

  spec = tf.TensorSpec([5], tf.float64)
  np.testing.assert_array_equal(
    hessian_sparsity(value, spec).matrix.toarray(),
    jacobian_sparsity(
      lambda x: tf.gradients(value(x), x)[0], spec
    ).matrix.toarray(),
  )


def test_models_have_the_colors_that_they_should():
  rng = np.random.default_rng(0)
  group = rng.integers(0, 20, 100)

  def hierarchical(mu, log_tau, theta):
    theta_of = tf.gather(theta, group, axis=-1)
    return (
      -(mu**2)
      - tf.reduce_sum((theta - mu[:, None]) ** 2, -1) * tf.exp(-2 * log_tau)
      - tf.reduce_sum((theta_of - 1.0) ** 2, -1)
    )

  specs = [tf.TensorSpec(s) for s in ([8], [8], [8, 20])]
  pattern = hessian_sparsity(hierarchical, specs)
  assert pattern.shape == (22, 22)
  assert color_diagonal(pattern).num_colors == 3

  def lattice(x):
    return tf.reduce_sum(
      x**4 + (x - tf.roll(x, 1, -1)) ** 2 + (x - tf.roll(x, 1, -2)) ** 2,
      [-1, -2],
    )

  pattern = hessian_sparsity(lattice, tf.TensorSpec([4, 8, 8]))
  assert pattern.nnz == 5 * 64
  assert color_diagonal(pattern).num_colors == 2


def test_long_chains():
  pattern = hessian_sparsity(chain, tf.TensorSpec([100_000]))
  assert pattern.nnz == 3 * 100_000 - 2


def test_dense_functions_of_many_coordinates_are_told_at_once():
  with pytest.raises(PatternTooDenseError, match='without a pattern'):
    hessian_sparsity(lambda x: tf.reduce_logsumexp(x), tf.TensorSpec([100_000]))


def test_nested_prefixes_are_one_clique():
  n = 300
  pattern = hessian_sparsity(
    lambda x: tf.reduce_sum(tf.exp(tf.cumsum(x))), tf.TensorSpec([n])
  )
  assert pattern.nnz == n * n


@pytest.mark.parametrize(
  'kwargs, message',
  [
    (
      dict(xs=tf.TensorSpec([3, 2]), sample_shape=[4]),
      r'`sample_shape` is \(4,\), but part 0',
    ),
    (dict(xs=tf.TensorSpec([None])), 'must be known'),
    (dict(xs=[]), 'at least one Tensor'),
    (
      dict(xs=[tf.TensorSpec([3, 2]), tf.TensorSpec([4, 2])], sample_shape=[3]),
      r'part 1 of `xs` has shape \(4, 2\)',
    ),
  ],
)
def test_wrong_arguments_are_refused(kwargs, message):
  with pytest.raises(ValueError, match=message):
    jacobian_sparsity(lambda *xs: xs[0], **kwargs)


def test_wrong_dtypes_are_refused():
  with pytest.raises(TypeError, match='floating'):
    jacobian_sparsity(lambda x: x, tf.TensorSpec([3], tf.int32))


def test_wrong_values_are_refused():
  with pytest.raises(ValueError, match='one scalar per sample'):
    hessian_sparsity(lambda x: x, tf.TensorSpec([3, 2]), [3])
  with pytest.raises(ValueError, match='a structure of Tensors is needed'):
    jacobian_sparsity(lambda x: [x, None], tf.TensorSpec([3]))
