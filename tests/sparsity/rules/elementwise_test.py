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
"""Tests the table of elementwise ops against differences."""

import functools
import inspect

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_diagonal
from tfp_diag.sparsity.detect import hessian_sparsity, jacobian_sparsity
from tfp_diag.sparsity.rules import elementwise
from tfp_diag.sparsity.rules.elementwise import TABLE

raw = tf.raw_ops

# Where the arguments may lie, for ops that are not defined, or not generic, on
# the interval from 0.3 to 0.9.
DOMAINS = {
  'Acosh': (1.2, 2.0),
  'Polygamma': (1.2, 2.0),
  'Zeta': (1.5, 2.5),
}

# Ops that take or give other numbers than doubles, as functions of doubles.
SPECIAL = {
  'Angle': lambda x: raw.Angle(input=tf.complex(x, x * 0 + 1), Tout=tf.float64),
  'Bitcast': lambda x: raw.Bitcast(input=x, type=tf.float64) * 0,
  'Cast': lambda x: raw.Cast(x=raw.Cast(x=x, DstT=tf.complex128), DstT=x.dtype),
  'Complex': lambda x, y: tf.math.real(
    raw.Complex(real=x, imag=y, Tout=tf.complex128) * (1 + 2j)
  ),
  # Only defined for whole orders.
  'Polygamma': lambda n, x: raw.Polygamma(a=tf.math.ceil(n), x=x),
  'ComplexAbs': lambda x: raw.ComplexAbs(
    x=tf.complex(x, tf.ones_like(x)), Tout=tf.float64
  ),
  'Conj': lambda x: tf.math.imag(raw.Conj(input=tf.complex(x, x))),
  'Imag': lambda x: raw.Imag(input=tf.complex(x, 2 * x), Tout=tf.float64),
  'Real': lambda x: raw.Real(input=tf.complex(x, 2 * x), Tout=tf.float64),
  'SelectV2': lambda c, t, e: raw.SelectV2(
    condition=c > tf.constant([0.0, 10.0, 0.6], tf.float64), t=t, e=e
  ),
  'ClipByValue': lambda x, low, high: raw.ClipByValue(
    t=x, clip_value_min=low, clip_value_max=high
  ),
  'EluGrad': lambda g, y: raw.EluGrad(gradients=g, outputs=-y),
  'SeluGrad': lambda g, y: raw.SeluGrad(gradients=g, outputs=-y),
  'Elu': lambda x: raw.Elu(features=-x),
  'Selu': lambda x: raw.Selu(features=-x),
}

# Where an op is defined by cases, one point sees one case: the pattern must
# contain more. Some have no derivative that differences could see.
BY_CASES = frozenset(
  [
    'Bitcast',
    'ClipByValue',
    'FloorMod',
    'Maximum',
    'Minimum',
    'Mod',
    'NextAfter',
    'SelectV2',
    'TruncateMod',
  ]
)


def function_of(op_type):
  if op_type in SPECIAL:
    return SPECIAL[op_type]
  op = getattr(raw, op_type)
  names = list(inspect.signature(op).parameters)
  return lambda *xs: op(**dict(zip(names, xs)))


# What TensorFlow defines as zero whatever the values do.
NOT_DIFFERENTIATED = frozenset(['Bitcast', 'StopGradient'])


@pytest.mark.parametrize('op_type', sorted({*TABLE} - NOT_DIFFERENTIATED))
def test_table_against_differences(op_type, check_rule):
  count = len(TABLE[op_type].split(',')[0])
  low, high = DOMAINS.get(op_type, (0.3, 0.9))
  check_rule(
    op_type,
    function_of(op_type),
    *[(3,)] * count,
    low=low,
    high=high,
    exact=op_type not in BY_CASES,
    exact_second=op_type not in BY_CASES,
  )


@pytest.mark.parametrize('op_type', sorted(NOT_DIFFERENTIATED))
def test_ops_that_are_zero_by_definition(op_type):
  function = function_of(op_type)
  assert not jacobian_sparsity(function, tf.TensorSpec([3], tf.float64)).nnz


def test_every_op_type_is_in_a_test(op_types_of):
  assert op_types_of(elementwise) == {*TABLE}


@pytest.mark.parametrize(
  'shapes',
  [
    [(2, 3), (3,)],
    [(2, 1), (1, 3)],
    [(), (4,)],
    [(1,), (1,)],
    [(0,), (1,)],
    [(0,), ()],
    [(2, 3, 1), (3, 4)],
  ],
)
def test_broadcasting(shapes, check_rule):
  check_rule('Mul', lambda x, y: raw.Mul(x=x, y=y), *shapes)


def test_constant_arguments_add_nothing(check_rule):
  c = tf.constant([0.5, 1.5, 2.5], tf.float64)
  check_rule('Mul', lambda x: raw.Mul(x=x, y=c), (3,))
  check_rule('Pow', lambda x: raw.Pow(x=c, y=x), (2, 3))
  check_rule('RealDiv', lambda x: raw.RealDiv(x=x, y=c), (3,))


def test_one_tensor_as_both_arguments(check_rule):
  check_rule('Mul', lambda x: raw.Mul(x=x, y=tf.reverse(x, [0])), (5,))
  check_rule('Mul', lambda x: raw.Mul(x=x, y=x), (3,))


def test_a_constant_condition_has_one_origin_per_element(check_rule):
  condition = tf.constant([True, False, True])
  check_rule(
    'SelectV2',
    lambda x, y: raw.SelectV2(condition=condition, t=x * x, e=y),
    (3,),
    (3,),
  )


def test_compositions(check_rule):
  def chain(x):
    return tf.exp(x[1:] * 0.5 - tf.sin(x[:-1]))

  check_rule('Exp', chain, (6,))
  check_rule(
    None, lambda x: tf.where(x > 0.6, x * x, x), (6,), exact_second=False
  )


def test_elements_that_are_cut_off_do_not_count():
  pattern = hessian_sparsity(
    lambda x: tf.reduce_sum(tf.exp(x)[1:3]), tf.TensorSpec([5])
  )
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), np.diag([False, True, True, False, False])
  )


_NEAR = np.abs(np.subtract.outer(np.arange(6), np.arange(6))) == 1


@pytest.mark.parametrize('kind', ['array', 'constant', 'outside', 'right'])
@pytest.mark.parametrize('shape', [(6,), (2, 6), (None, 6)])
def test_zeros_of_a_constant_factor(kind, shape):
  outside = tf.constant(_NEAR, tf.float32)

  def fn(x):
    pairs = tf.sin(x[..., :, tf.newaxis] * x[..., tf.newaxis, :])
    factor = {
      'array': _NEAR.astype(np.float32),
      'constant': tf.constant(_NEAR, tf.float32),
    }.get(kind, outside)
    product = pairs * factor if kind == 'right' else factor * pairs
    return tf.reduce_sum(product, axis=[-2, -1])

  pattern = hessian_sparsity(
    fn, tf.TensorSpec(shape), sample_shape=shape[:-1] or None
  )
  np.testing.assert_array_equal(
    pattern.matrix.toarray(), _NEAR | np.eye(6, dtype=bool)
  )


def test_a_factor_that_may_change_is_read_only_if_it_is_small():
  big = np.zeros([300, 300], np.float32)

  def pattern(factor):
    return jacobian_sparsity(
      lambda x: factor * (x + tf.roll(x, 1, -1)), tf.TensorSpec([300, 300])
    )

  assert pattern(big).nnz == 0
  # What is compared in each later call would take longer than it saves.
  assert pattern(tf.constant(big)).nnz == 2 * big.size


def _masked(mask, x):
  return tf.reduce_sum(mask * tf.exp(x[:, tf.newaxis] * x))


def test_a_factor_with_other_zeros_in_the_next_call():
  x = tf.constant([0.3, 0.5, 0.7, 0.9])
  tfp_diag.clear_cache()
  for seed in range(6):
    zeros = np.random.default_rng(seed).integers(0, 2, [4, 4])
    fn = functools.partial(_masked, tf.constant(zeros, x.dtype))
    _, _, diag = tfp_diag.diag_hessian(fn, x)
    expected = hessian_diagonal(fn, x)
    np.testing.assert_allclose(diag, expected, rtol=1e-5, atol=1e-6)
