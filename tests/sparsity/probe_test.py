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
"""The probe of single ops, compared with what is known of them."""

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_diagonal
from tfp_diag.sparsity import Flow, Structure, probe, register_rule
from tfp_diag.sparsity.graph import trace
from tfp_diag.sparsity.interpreter import Walker
from tfp_diag.sparsity.value import Value

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((4, 4))
TRIANGLE = np.tril(MATRIX) + 4 * np.eye(4)
EACH = RNG.standard_normal((3, 4))  # Another one for each sample.
MATRICES = RNG.standard_normal((3, 4, 4))
ROW = RNG.standard_normal(4)
SINGLE = tf.Variable(1.5, dtype=tf.float64)
WEIGHTS = tf.Variable(MATRIX)
EACH_WEIGHT = tf.Variable(EACH)
EACH_FLAG = tf.Variable([[True], [False], [True]])
EACH_INDEX = tf.Variable([[1, 0], [0, 1], [1, 1]])
INDEX = tf.Variable([1, 0, 1])
AXIS = tf.Variable([1])
TIMES = tf.Variable([1, 2])


def steps_of(fn, *shapes, dtype=tf.float64):
  """The ops of a function that depend on its arguments."""
  specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
  graph = trace(
    lambda parts: fn(*parts), lambda ys, _: tf.nest.flatten(ys), specs
  )
  walker = Walker(graph)
  walker.walk([Value(s, dtype, depends=True) for s in shapes])
  return walker.tape.steps


# What is asked about one of the ops of a function of 3 samples.
FIXED = {
  'negative': ('Neg', lambda x: -x),
  'sum with a number': ('AddV2', lambda x: x + 1.0),
  'sum with a row': ('AddV2', lambda x: x + ROW),
  'sum with another row for each sample': ('AddV2', lambda x: x + EACH),
  'sum with what is not known': ('AddV2', lambda x: x + EACH_WEIGHT),
  'sum with infinities': ('Sub', lambda x: x - [0.0, np.inf, 1.0, 0.0]),
  'sum of both': ('AddV2', lambda x: x + 2.0 * x),
  'sum of three': ('AddN', lambda x: tf.add_n([x, 2.0 * x, 3.0 * x])),
  'difference': ('Sub', lambda x: ROW - x),
  'product with a number': ('Mul', lambda x: 3.0 * x),
  'product with a row': ('Mul', lambda x: x * ROW),
  'product with a Variable': ('Mul', lambda x: x * SINGLE),
  'product with nearly nothing': ('Mul', lambda x: x * 1e-200),
  'quotient': ('RealDiv', lambda x: x / ROW),
  'matrix': ('MatMul', lambda x: x @ MATRIX),
  'transposed matrix': (
    'MatMul',
    lambda x: tf.matmul(x, MATRIX, transpose_b=True),
  ),
  'matrix of a Variable': ('MatMul', lambda x: x @ WEIGHTS),
  'ill scaled matrix': ('MatMul', lambda x: x @ np.diag(10.0 ** np.arange(4))),
  'matrix of each row': (
    'BatchMatMulV2',
    lambda x: tf.linalg.matvec(MATRIX, x),
  ),
  'einsum': ('Einsum', lambda x: tf.einsum('bi,ij->bj', x, MATRIX)),
  'einsum with dots': (
    'Einsum',
    lambda x: tf.einsum('...i,ij->...j', x, MATRIX),
  ),
  'triangular solve': (
    'MatrixTriangularSolve',
    lambda x: tf.linalg.triangular_solve(TRIANGLE, x[..., tf.newaxis]),
  ),
  'triangular solve with a Variable': (
    'MatrixTriangularSolve',
    lambda x: tf.linalg.triangular_solve(WEIGHTS, x[..., tf.newaxis]),
  ),
  'solve': (
    'MatrixSolve',
    lambda x: tf.linalg.solve(np.stack([MATRIX] * 3), x[..., tf.newaxis]),
  ),
  'convolution': (
    'Conv2D',
    lambda x: tf.nn.conv1d(x[..., tf.newaxis], np.ones((2, 1, 3)), 1, 'SAME'),
  ),
  'sum over the event': ('Sum', lambda x: tf.reduce_sum(x, -1)),
  'mean over the event': ('Mean', lambda x: tf.reduce_mean(x, 1)),
  'scan of the event': ('Cumsum', lambda x: tf.cumsum(x, -1)),
  'transposition of the event': (
    'Transpose',
    lambda x: tf.transpose(tf.reshape(x, [3, 2, 2]), [0, 2, 1]),
  ),
  'reversal of the event': ('ReverseV2', lambda x: tf.reverse(x, [1])),
  'roll of the event': ('Roll', lambda x: tf.roll(x, 1, 1)),
  'gather': ('GatherV2', lambda x: tf.gather(x, [2, 0], axis=1)),
  'gather of unknown places': (
    'GatherV2',
    lambda x: tf.gather(x, INDEX, axis=1),
  ),
  'slice': ('StridedSlice', lambda x: x[:, 1:]),
  'slice behind dots': ('StridedSlice', lambda x: x[..., ::2]),
  'slice of all samples': ('StridedSlice', lambda x: x[0:3, 1:]),
  'Slice': ('Slice', lambda x: tf.slice(x, [0, 1], [-1, 2])),
  'padding': ('Pad', lambda x: tf.pad(x, [[0, 0], [1, 1]])),
  'concatenation': ('ConcatV2', lambda x: tf.concat([x, EACH], 1)),
  'stack': ('Pack', lambda x: tf.stack([x, EACH, 2.0 * x], 1)),
  'pieces': ('Split', lambda x: tf.split(x, 2, axis=1)),
  'pieces of all sizes': ('SplitV', lambda x: tf.split(x, [1, 3], axis=1)),
  'unpacking': ('Unpack', lambda x: tf.unstack(x, axis=1)),
  'copies': ('Tile', lambda x: tf.tile(x, [1, 2])),
  'new shape': ('Reshape', lambda x: tf.reshape(x, [3, 2, 2])),
  'new axis': ('ExpandDims', lambda x: tf.expand_dims(x, 1)),
  'choice': ('SelectV2', lambda x: tf.where(ROW > 0, x, EACH)),
  'diagonal matrix': ('MatrixDiagV3', tf.linalg.diag),
  'cast': ('Cast', lambda x: tf.cast(x, tf.float32)),
  'cast to a short dtype': ('Cast', lambda x: tf.cast(x, tf.bfloat16)),
}
NOT_FIXED = {
  'product with another row for each sample': ('Mul', lambda x: x * EACH),
  'product with one sample left out': (
    'Mul',
    lambda x: x * np.array([[1.0], [1.0], [0.0]]),
  ),
  'product with nearly the same': (
    'Mul',
    lambda x: x * (1 + np.array([[1e-10], [0.0], [0.0]])),
  ),
  'product with what differs where it is small': (
    'Mul',
    lambda x: x * np.array([[1e12, 1, 1, 1]] * 2 + [[1e12, 1 + 1e-9, 1, 1]]),
  ),
  'product with a Variable for each sample': (
    'Mul',
    lambda x: x * EACH_WEIGHT,
  ),
  'product of both': ('Mul', lambda x: x * x),
  'quotient by each': ('RealDiv', lambda x: x / EACH),
  'reciprocal': ('RealDiv', lambda x: 1.0 / x),
  'matrices': (
    'BatchMatMulV2',
    lambda x: tf.linalg.matvec(MATRICES, x),
  ),
  'einsum with matrices': (
    'Einsum',
    lambda x: tf.einsum('bi,bij->bj', x, MATRICES),
  ),
  'einsum over samples': (
    'Einsum',
    lambda x: tf.einsum('bi,bc->ci', x, MATRIX[:3, :3]),
  ),
  'matrix from the left': ('MatMul', lambda x: MATRIX[:3, :3] @ x),
  'sum over samples': (
    'Sum',
    lambda x: tf.reduce_sum(tf.reshape(x[:, :3], [3, 3, 1]), 0),
  ),
  'scan of samples': ('Cumsum', tf.cumsum),
  'transposition of samples': ('Transpose', lambda x: tf.transpose(x[:, :3])),
  'reversal of samples': ('ReverseV2', lambda x: tf.reverse(x, [0])),
  'reversal along an unknown axis': (
    'ReverseV2',
    lambda x: tf.reverse(x, AXIS),
  ),
  'roll of samples': ('Roll', lambda x: tf.roll(x, 1, 0)),
  'gather of samples': ('GatherV2', lambda x: tf.gather(x, [0, 2, 1])),
  'gather of one sample': ('GatherV2', lambda x: tf.gather(x, [0, 0, 0])),
  'gather of each': (
    'GatherV2',
    lambda x: tf.gather(x, EACH_INDEX, axis=1, batch_dims=1),
  ),
  'slice of samples': ('StridedSlice', lambda x: x[::-1]),
  'choice for each': ('SelectV2', lambda x: tf.where(EACH > 0, x, 0.0)),
  'choice by unknown flags': (
    'SelectV2',
    lambda x: tf.where(EACH_FLAG, x, 0.0),
  ),
  'choice by what is positive': ('SelectV2', lambda x: tf.where(x > 0, x, 0.0)),
  'copies as many as are not known': (
    'Tile',
    lambda x: tf.ensure_shape(tf.tile(x, TIMES), [3, 8]),
  ),
  'absolute value': ('Abs', tf.abs),
  'relu': ('Relu', tf.nn.relu),
  'leaky relu': ('LeakyRelu', tf.nn.leaky_relu),
  'a bound': ('Maximum', lambda x: tf.maximum(x, -1e6)),
  'far bounds': (
    'ClipByValue',
    lambda x: tf.raw_ops.ClipByValue(
      t=x, clip_value_min=-1e9, clip_value_max=1e9
    ),
  ),
  'bounds beyond all probes': ('Minimum', lambda x: tf.minimum(x, 1e200)),
  'maximum': ('Max', lambda x: tf.reduce_max(x, -1, keepdims=True)),
  'order': ('TopKV2', lambda x: tf.math.top_k(x, 4).values),
  'remainder': ('FloorMod', lambda x: tf.math.floormod(x, 1e6)),
  'exponential': ('Exp', tf.exp),
  'square': ('Square', tf.square),
  'power': ('Pow', lambda x: x**3.0),
  'products': ('Prod', lambda x: tf.reduce_prod(x, -1)),
  'random factor': (
    'Mul',
    lambda x: x * tf.random.normal([3, 1], dtype=x.dtype),
  ),
}


def one_step(fn, op_type, *shapes, **keywords):
  found = [s for s in steps_of(fn, *shapes, **keywords) if s.op_type == op_type]
  assert found, op_type
  return found[-1]


@pytest.mark.parametrize('case', FIXED)
def test_fixed_matrices(case):
  op_type, fn = FIXED[case]
  assert probe.has_fixed_matrix(one_step(fn, op_type, (3, 4)), 3)


@pytest.mark.parametrize('case', NOT_FIXED)
def test_not_fixed_matrices(case):
  op_type, fn = NOT_FIXED[case]
  assert not probe.has_fixed_matrix(one_step(fn, op_type, (3, 4)), 3)


@pytest.mark.parametrize('num_samples', [1, 2, 5, 8])
def test_any_number_of_samples(num_samples):
  shape = num_samples, 4
  mixed = [
    lambda x: tf.roll(x, 1, 0),
    lambda x: x[::-1],
    lambda x: x * np.arange(1.0, num_samples + 1)[:, np.newaxis],
  ]
  (fixed,) = steps_of(lambda x: x @ MATRIX, shape)
  assert probe.has_fixed_matrix(fixed, num_samples)
  for fn in mixed:
    (step,) = steps_of(fn, shape)
    assert probe.has_fixed_matrix(step, num_samples) == (num_samples == 1)


def test_several_sample_axes():
  shape = 2, 3, 4
  for step in steps_of(lambda x: tf.linalg.matvec(MATRIX, x), shape):
    assert probe.has_fixed_matrix(step, 6)
  (turned,) = steps_of(lambda x: tf.reverse(x, [1]), shape)
  assert not probe.has_fixed_matrix(turned, 6)


def test_samples_in_one_axis():
  steps = steps_of(lambda x: tf.tensordot(x, MATRIX, [[2], [0]]), (2, 3, 4))
  assert {'Reshape', 'MatMul'} <= {step.op_type for step in steps}
  assert all(probe.has_fixed_matrix(step, 6) for step in steps)


def test_some_inputs_do_not_lead():
  step = one_step(lambda x, y: x + y, 'AddV2', (3, 4), (3, 4))
  assert probe.has_fixed_matrix(step, 3)
  step = one_step(lambda x, y: x * y, 'Mul', (3, 4), (3, 4))
  assert not probe.has_fixed_matrix(step, 3)


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16, tf.float32])
def test_other_dtypes(dtype):
  weights = tf.cast(MATRIX, dtype)
  for fn in (lambda x: x @ weights, lambda x: tf.cast(x, tf.float32)):
    for step in steps_of(fn, (3, 4), dtype=dtype):
      assert probe.has_fixed_matrix(step, 3)
  (step,) = steps_of(tf.nn.relu, (3, 4), dtype=dtype)
  assert not probe.has_fixed_matrix(step, 3)


def test_single_numbers_of_bfloat16():
  weights = tf.constant(np.arange(16.0).reshape(4, 4) / 8.0, tf.bfloat16)
  tfp_diag.plan_diag_jacobian(
    lambda x: tf.cos(tf.linalg.matvec(weights, x) * tf.cast(1e-5, x.dtype)),
    tf.zeros([3, 4], tf.bfloat16),
    sample_shape=[3],
  )


def test_an_op_with_a_rule_of_the_user(no_rule_left_behind):
  @register_rule('ScaleAndTranslate')
  def rule(op):
    (result,) = op.outputs
    return Structure.linear({0: Flow.dense(result.size, op.inputs[0].size)})

  def fn(x):
    # Linear in each picture.
    return tf.raw_ops.ScaleAndTranslate(
      images=tf.reshape(x, [3, 2, 2, 1]),
      size=[3, 3],
      scale=[1.5, 1.5],
      translation=[0.0, 0.0],
      kernel_type='box',  # Its weights are exact.
      antialias=False,
    )

  step = one_step(fn, 'ScaleAndTranslate', (3, 4), dtype=tf.float32)
  assert probe.has_fixed_matrix(step, 3)


def test_what_cannot_be_run_is_not_fixed():
  steps = steps_of(
    lambda x: tf.map_fn(lambda row: 2.0 * row, x, parallel_iterations=1),
    (3, 4),
  )
  assert any(s.op is None for s in steps)
  assert not any(probe.has_fixed_matrix(s, 3) for s in steps if s.op is None)


QUADRATIC = {
  'Square': tf.square,
  'SquaredDifference': lambda x: tf.math.squared_difference(x, EACH),
  'Pow': lambda x: x**2.0,
  'Mul': lambda x: x * x,
  'BatchMatMulV2': lambda x: tf.linalg.matvec(x[:, tf.newaxis], x),
}
NOT_QUADRATIC = {
  'Pow': lambda x: x**3.0,
  'Exp': tf.exp,
  'Xlogy': lambda x: tf.math.xlogy(x, x),
  'RealDiv': lambda x: x * x / (1e6 + x),
  'Softplus': tf.nn.softplus,
  'EuclideanNorm': lambda x: tf.math.reduce_euclidean_norm(x, -1),
  'Prod': lambda x: tf.reduce_prod(x, -1),
}
# TensorFlow's derivatives of these are others where an argument is zero.
AFFINE_IN_VALUE = {
  'Xlogy': lambda x: tf.math.xlogy(x, ROW**2),
  'Xlog1py': lambda x: tf.math.xlog1py(x, ROW**2),
  'Xdivy': lambda x: tf.math.xdivy(x, ROW),
}
QUADRATIC_IN_VALUE = {
  'Prod': lambda x: tf.reduce_prod(x, -1),
  'Cumprod': lambda x: tf.math.cumprod(x, -1),
  'Pow': lambda x: tf.pow(x, [1.0, 2.0]),
}


@pytest.mark.parametrize('op_type', AFFINE_IN_VALUE)
def test_gradients_that_look_at_values_are_not_fixed(op_type):
  step = one_step(AFFINE_IN_VALUE[op_type], op_type, (3, 4))
  assert not probe.has_fixed_matrix(step, 3)


@pytest.mark.parametrize('op_type', QUADRATIC_IN_VALUE)
def test_second_derivatives_that_look_at_values_are_not_fixed(op_type):
  step = one_step(QUADRATIC_IN_VALUE[op_type], op_type, (3, 2))
  assert not probe.has_fixed_curvature(step, 3)


@pytest.mark.parametrize('op_type', QUADRATIC)
def test_constant_second_derivatives(op_type):
  step = one_step(QUADRATIC[op_type], op_type, (3, 4))
  assert probe.has_fixed_curvature(step)
  assert probe.has_fixed_curvature(step, 3)


@pytest.mark.parametrize('op_type', NOT_QUADRATIC)
def test_second_derivatives_that_vary(op_type):
  step = one_step(NOT_QUADRATIC[op_type], op_type, (3, 4))
  assert not probe.has_fixed_curvature(step)


def test_curvature_of_each_sample():
  # Constant, but the samples meet.
  step = one_step(tf.nn.l2_loss, 'L2Loss', (3, 4))
  assert probe.has_fixed_curvature(step)
  assert not probe.has_fixed_curvature(step, 3)
  step = one_step(
    lambda x: tf.einsum('bi,bj->bij', x, x[::-1]), 'Einsum', (3, 4)
  )
  assert probe.has_fixed_curvature(step, 3)


def test_a_quadratic_form_by_products_of_matrices():
  def fn(x):
    image = tf.linalg.matvec(MATRIX, x)
    return tf.matmul(x[:, tf.newaxis], image[..., tf.newaxis])[:, 0, 0]

  x = tf.constant(RNG.standard_normal((3, 4)))
  plan = tfp_diag.plan_diag_hessian(fn, x)
  _, _, diag = plan(x)
  np.testing.assert_allclose(diag, hessian_diagonal(fn, x), rtol=1e-12)
  # Both maps are fixed. A pass for their columns carries one for each sample.
  assert plan.num_passes == 2
