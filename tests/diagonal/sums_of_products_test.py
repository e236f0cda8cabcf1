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
"""Inner products as one op: coordinates that meet in them have sweeps, too."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_by_copies, unmixed_diagonals
from tfp_diag.sparsity import registry

RNG = np.random.default_rng(31)
SIZE, SAMPLES, KINDS = 8, 3, 4


def constant(*shape):
  return tf.constant(RNG.normal(size=shape) / 2.0)


LINKS = constant(SIZE, SIZE)
CENTERS = constant(KINDS, SIZE)
SCALES = constant(KINDS, SIZE, SIZE) + 2.0 * tf.eye(SIZE, dtype=tf.float64)
DATA = constant(20, SIZE)
X = constant(SAMPLES, SIZE + 2)


def precision(x):
  """A matrix of two coordinates, for each sample."""
  strength = tf.tanh(x[:, SIZE])[:, tf.newaxis, tf.newaxis]
  scale = tf.exp(x[:, SIZE + 1])[:, tf.newaxis, tf.newaxis]
  return scale * (5.0 * tf.eye(SIZE, dtype=x.dtype) - strength * LINKS)


def by_element(x, weights):
  product = tf.linalg.matvec(weights, x)
  return tf.reduce_sum(x * product, axis=-1)


def by_einsum(x, weights):
  return tf.einsum('...i,...i->...', x, tf.linalg.matvec(weights, x))


def by_one_einsum(x, weights):
  return tf.einsum('...i,...ij,...j->...', x, weights, x)


def by_rows_and_columns(x, weights):
  product = tf.linalg.matvec(weights, x)
  return tf.matmul(x[:, tf.newaxis], product[..., tf.newaxis])[:, 0, 0]


def by_products(x, weights):
  x = x[..., tf.newaxis]
  return tf.matmul(x, tf.matmul(weights, x), transpose_a=True)[:, 0, 0]


def by_the_other_factor(x, weights):
  product = tf.linalg.matvec(weights, x)[:, tf.newaxis]
  return tf.matmul(product, x[:, tf.newaxis], transpose_b=True)[:, 0, 0]


FORMS = [
  by_element,
  by_einsum,
  by_one_einsum,
  by_rows_and_columns,
  by_products,
  by_the_other_factor,
]


def graph_diagonal(fn, x, **kwargs):
  """In a graph: there no plan is given up because a probe differs."""
  compiled = tf.function(lambda x: tfp_diag.diag_hessian(fn, x, **kwargs)[2])
  return compiled(x)


def planned(plan, *signature):
  """The same by a plan."""
  return tf.function(lambda x: plan(x)[2], input_signature=signature or None)


def check(fn, x, num_passes, how='squared sweeps'):
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert (plan.num_passes, plan.how) == (num_passes, how), plan
  want = hessian_by_copies(fn, x)
  found = planned(plan)(x)
  np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize('form', FORMS)
def test_a_quadratic_form_with_a_matrix_of_its_own(form):
  """As in a model of regions with a learned dependence."""

  def fn(x):
    inner = form(x[:, :SIZE], precision(x))
    return -0.5 * inner - tf.reduce_sum(tf.exp(x), axis=-1)

  check(fn, X, 2)


# Each op that is written out with an open batch and with few samples; all forms
# with a known number are above.
@pytest.mark.parametrize(
  'form, size',
  [
    (by_element, None),
    (by_one_einsum, None),
    (by_the_other_factor, None),
    (by_one_einsum, 1),
    (by_rows_and_columns, 1),
    (by_einsum, 2),
    (by_products, 2),
  ],
)
def test_sizes_that_are_not_known(form, size):
  def fn(x):
    inner = form(x[:, :SIZE], precision(x))
    return -0.5 * inner - tf.reduce_sum(tf.exp(x), axis=-1)

  spec = tf.TensorSpec([size, SIZE + 2], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  assert plan.num_passes == 2
  diagonal = planned(plan, spec)
  for samples in [1, 2, 3] if size is None else [size]:
    x = X[:samples]
    want = hessian_by_copies(fn, x)
    np.testing.assert_allclose(diagonal(x), want, rtol=1e-11, atol=1e-12)


def mixture(x):
  d = x[:, tf.newaxis] - CENTERS
  energies = tf.einsum('...ki,kij,...kj->...k', d, SCALES, d)
  return tf.reduce_logsumexp(-energies, axis=-1)


def forms_of_each(x):
  x = tf.reshape(x, [-1, KINDS, SIZE])
  energies = tf.einsum('...ki,kij,...kj->...k', x, SCALES, x)
  return tf.reduce_logsumexp(-energies, axis=-1)


def residuals(x):
  return tf.linalg.matvec(DATA, x[:, :SIZE]) - 1.0


def noise(x):
  """Residuals that are both factors, and a coordinate that scales them."""
  r = residuals(x)
  inner = tf.einsum('...i,...i->...', r, r)
  return -inner * tf.exp(-x[:, SIZE]) - x[:, SIZE + 1] ** 2


def noise_by_matmul(x):
  r = residuals(x)[..., tf.newaxis]
  inner = tf.matmul(r, r, transpose_a=True)[:, 0, 0]
  return -inner * tf.exp(-x[:, SIZE]) - x[:, SIZE + 1] ** 2


def of_a_diagonal(x):
  """An index that an operand has twice."""
  weights = precision(x)
  inner = tf.einsum('bii,bi->b', weights, tf.sin(weights[:, :, 0]))
  return inner - tf.reduce_sum(tf.exp(x), axis=-1)


def with_more_sums(x):
  """An index that is added up, and that one operand lacks."""
  y = x[:, :SIZE]
  outer = tf.tanh(y[..., tf.newaxis] * y[:, tf.newaxis])
  return tf.einsum('bij,bi->b', outer, tf.sin(y))


@pytest.mark.parametrize(
  'fn, size, num_passes',
  [
    (mixture, SIZE, 2),
    (forms_of_each, KINDS * SIZE, 2),
    (noise, SIZE + 2, 1),
    (noise_by_matmul, SIZE + 2, 1),
  ],
)
def test_models_of_any_number_of_samples(fn, size, num_passes):
  spec = tf.TensorSpec([None, size], tf.float64)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  assert (plan.num_passes, plan.how) == (num_passes, 'squared sweeps'), plan
  x = constant(SAMPLES, size)
  np.testing.assert_allclose(
    plan(x)[2], hessian_by_copies(fn, x), rtol=1e-11, atol=1e-12
  )


@pytest.mark.parametrize(
  'fn, size, num_passes',
  [(of_a_diagonal, SIZE + 2, 1), (with_more_sums, SIZE, 1)],
)
def test_forms_of_sums(fn, size, num_passes, prefers_sweeps):
  check(fn, constant(SAMPLES, size), num_passes)


def test_a_fixed_matrix_for_one_sample():
  """The axis of the sample is seen where its size is one, too."""
  counts = tf.range(24, dtype=tf.float64)
  weights = constant(24, 24)

  def form(inner):
    return lambda x: tf.reduce_sum(counts * x - tf.exp(x), -1) - inner(x)

  spec = tf.TensorSpec([1, 24], tf.float64)
  ways = [
    tfp_diag.plan_diag_hessian(form(lambda x, f=f: f(x, weights)), spec).ways[0]
    for f in (by_element, by_one_einsum, by_einsum)
  ]
  assert {way.name for way in ways} == {'squared sweeps'}
  assert max(way.cost for way in ways) < 1.1 * ways[0].cost


def tied(x):
  """The same weights in two layers: a product of matrices is left as it is."""
  weights = tf.reshape(x, [-1, SIZE, SIZE])
  return tf.reduce_sum(tf.tanh(tf.tanh(DATA @ weights) @ weights), [1, 2])


def user_times_item(x):
  """Nothing meets itself."""
  users, items = tf.split(tf.reshape(x, [-1, 2 * KINDS, SIZE]), 2, axis=1)
  return tf.reduce_sum(tf.tanh(tf.einsum('...ui,...ui->...u', users, items)), 1)


def times_data(x):
  return tf.reduce_sum(tf.einsum('ij,...j->...i', DATA, tf.exp(x)) ** 2, -1)


@pytest.mark.parametrize(
  'fn, size',
  [
    (tied, SIZE * SIZE),
    (user_times_item, 2 * KINDS * SIZE),
    (times_data, SIZE),
  ],
)
def test_other_products_stay_as_they_are(fn, size, monkeypatch):
  def is_written_out(*_):
    raise AssertionError

  for kind in ('Einsum', 'MatMul', 'BatchMatMulV2'):
    known = dataclasses.replace(
      registry.facts(kind), written_out=is_written_out
    )
    monkeypatch.setitem(registry._FACTS, kind, known)
  x = constant(SAMPLES, size)
  found = graph_diagonal(fn, x)
  want = hessian_by_copies(fn, x)
  np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-12)


def test_before_an_op_that_cannot_be_repeated(prefers_sweeps):
  """Then the normalizer after that op is written out, as it was."""

  def fn(x):
    y = tf.linalg.matvec(DATA, x)
    inner = tf.einsum('...i,...i->...', tf.sin(y), y)
    held = tf.while_loop(
      lambda i, _: i < 2, lambda i, s: (i + 1, 0.5 * s), (0, inner)
    )
    return held[1] + tf.reduce_sum(tf.nn.softmax(x)[:, :2], -1)

  x = constant(SAMPLES, SIZE)
  found = graph_diagonal(fn, x)
  want = hessian_by_copies(fn, x)
  np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-12)


# One of the einsums, and one of the products of matrices.
@pytest.mark.parametrize('form', [by_one_einsum, by_products])
def test_third_derivatives(form):
  def fn(x):
    inner = form(tf.sin(x[:, :SIZE]), precision(x))
    return -0.5 * inner - tf.reduce_sum(tf.exp(x), axis=-1)

  found = tf.function(lambda x: tfp_diag.unmixed_derivatives(fn, x))(X)
  second, third = unmixed_diagonals(fn, X)
  for got, want in ((found.second, second), (found.third, third)):
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
