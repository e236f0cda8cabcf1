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
"""Diagonal Hessians of functions that are dense, and yet have structure."""

import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.oracles import hessian_by_copies, hessian_diagonal
from tfp_diag.diagonal import linear_map
from tfp_diag.diagonal.constant_hessian import ConstantHessian
from tfp_diag.diagonal.hessian_terms import HessianTerms
from tfp_diag.diagonal.planning import try_out
from tfp_diag.diagonal.request import Request
from tfp_diag.internal.problem import HessianProblem

pytestmark = pytest.mark.usefixtures('without_sweeps')

RNG = np.random.default_rng(7)
# More coordinates than are unrolled, so that it is worth to look for more.
N = 20
DESIGN = RNG.standard_normal((30, N))
COUNTS = RNG.integers(0, 3, 30).astype(float)
FACTOR = np.tril(RNG.standard_normal((N, N)), -1) + 3.0 * np.eye(N)
PRECISION = FACTOR @ FACTOR.T
WEIGHTS = RNG.standard_normal((N, 12)) / 3.0
TOP = RNG.standard_normal((12, 12)) / 3.0


def constant(value):
  return tf.constant(value, tf.float64)


def logistic_regression(x):
  logits = tf.matmul(x, constant(DESIGN), transpose_b=True)
  return tf.reduce_sum(-tf.math.softplus(logits), -1) - tf.reduce_sum(x**2, -1)


def poisson_regression(x):
  rates = tf.exp(0.3 * tf.linalg.matvec(constant(DESIGN), x) - 1.0)
  return tf.reduce_sum(constant(COUNTS) * tf.math.log(rates) - rates, -1)


def einsum_regression(x):
  u = tf.einsum('...n,mn->...m', x[..., ::-1], constant(DESIGN))
  return tf.reduce_sum(tf.sin(u), -1)


def quadratic_form(x):
  return -0.5 * tf.reduce_sum(x * tf.matmul(x, constant(PRECISION)), -1)


def whitened(x):
  z = tf.linalg.triangular_solve(constant(FACTOR), x[..., tf.newaxis])
  return -0.5 * tf.reduce_sum(z**2, [-1, -2])


def student_t(x):
  z = tf.matmul(x, constant(FACTOR))
  return -3.0 * tf.math.log1p(tf.reduce_sum(z**2, -1) / 5.0)


def log_normalizer(x):
  return -tf.reduce_logsumexp(x, -1)


def unit_vector(x):
  unit = x / tf.norm(x, axis=-1, keepdims=True)
  return tf.reduce_sum(unit * tf.linspace(constant(1.0), 2.0, N), -1)


def softmax_cross_entropy(x):
  scores = tf.exp(x) / tf.reduce_sum(tf.exp(x), -1, keepdims=True)
  return tf.reduce_sum(tf.math.log(scores[..., :1]), -1)


def network(x):
  hidden = tf.tanh(tf.matmul(x, constant(WEIGHTS)))
  return tf.reduce_sum(tf.math.softplus(tf.matmul(hidden, constant(TOP))), -1)


def determinant(x):
  """An op that is not elementwise."""
  matrix = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [4, 5]], 0))
  gram = tf.matmul(matrix, matrix, transpose_b=True)
  return tf.linalg.logdet(gram) - tf.reduce_sum(x, -1) ** 2


def signed_determinant(x):
  """An op of two results, of which the first has no derivative."""
  matrix = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [4, 5]], 0))
  _, log_det = tf.linalg.slogdet(tf.matmul(matrix, matrix, transpose_b=True))
  return log_det - tf.reduce_sum(x, -1) ** 2


FUNCTIONS = [
  determinant,
  einsum_regression,
  log_normalizer,
  logistic_regression,
  network,
  poisson_regression,
  quadratic_form,
  signed_determinant,
  softmax_cross_entropy,
  student_t,
  unit_vector,
  whitened,
]


def state(*sample_shape):
  return constant(RNG.uniform(0.2, 1.5, (*sample_shape, N)))


def dense(fn, x):
  """The diagonal of the whole Hessian, sample by sample."""
  return hessian_by_copies(fn, x)


def terms_of(fn, x):
  """What a plan would follow."""
  return try_out(HessianProblem(fn, x), Request()).decision.terms


@pytest.fixture(name='term_calls')
def fixture_term_calls(monkeypatch):
  """Counts the diagonals that come from terms."""
  counter = types.SimpleNamespace(count=0)
  for terms in (HessianTerms, ConstantHessian):
    diagonal = terms.diagonal

    def counted(*args, diagonal=diagonal):
      result = diagonal(*args)
      counter.count += 1
      return result

    monkeypatch.setattr(terms, 'diagonal', counted)
  return counter


@pytest.fixture(name='passes_run')
def fixture_passes_run(monkeypatch):
  """Counts passes through the function while a graph is built."""
  counter = types.SimpleNamespace(count=0)
  apply = linear_map.LinearMap.apply

  def counted(*args, **kwargs):
    counter.count += 1
    return apply(*args, **kwargs)

  monkeypatch.setattr(linear_map.LinearMap, 'apply', counted)
  return counter


@pytest.mark.parametrize('fn', FUNCTIONS)
def test_agrees_with_the_dense_hessian(fn, term_calls):
  x = state(3)
  _, _, diag = tfp_diag.diag_hessian(fn, x)
  assert term_calls.count == 1
  np.testing.assert_allclose(diag, dense(fn, x), rtol=1e-9, atol=1e-10)


# Each function with two of the shapes, each shape with one or two of them.
@pytest.mark.parametrize(
  'fn, sample_shape',
  [
    (student_t, ()),
    (student_t, (50,)),
    (logistic_regression, (1,)),
    (logistic_regression, (2, 3)),
    (network, ()),
    (network, (2, 3)),
  ],
)
def test_any_sample_shape(fn, sample_shape):
  x = state(*sample_shape)

  def of_rows(x):
    return tf.reshape(fn(tf.reshape(x, [-1, N])), tf.shape(x)[:-1])

  _, _, diag = tfp_diag.diag_hessian(of_rows, x)
  np.testing.assert_allclose(diag, dense(fn, x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize('fn', [logistic_regression, log_normalizer, network])
@pytest.mark.parametrize('jit_compile', [False, True])
def test_in_graphs(fn, jit_compile, term_calls):
  x = state(4)
  diagonal = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x)[2], jit_compile=jit_compile
  )
  np.testing.assert_allclose(diagonal(x), dense(fn, x), rtol=1e-9, atol=1e-10)
  assert term_calls.count == 1


def test_batch_of_unknown_size():
  spec = tf.TensorSpec([None, N], tf.float64)
  diagonal = tf.function(
    lambda x: tfp_diag.diag_hessian(logistic_regression, x)[2],
    input_signature=[spec],
  )
  for batch in (1, 7, 33):
    x = state(batch)
    np.testing.assert_allclose(
      diagonal(x), dense(logistic_regression, x), rtol=1e-9
    )


def scaled_by_sample(x):
  """A matrix that differs between the samples, made from their number."""
  scale = tf.linspace(constant(1.0), 2.0, tf.shape(x)[0])[:, tf.newaxis]
  return logistic_regression(scale * x)


def tilted_by_sample(x):
  scale = tf.linspace(constant(1.0), 2.0, tf.shape(x)[0])
  return scale * tf.reduce_sum(tf.exp(0.1 * tf.cumsum(x, -1)), -1)


def tempered_by_sample(x):
  scale = tf.linspace(constant(1.0), 2.0, tf.shape(x)[0])
  return scale * quadratic_form(x)


@pytest.mark.parametrize(
  'fn', [scaled_by_sample, tempered_by_sample, tilted_by_sample]
)
def test_constants_that_differ_between_samples(fn):
  x = state(5)
  _, _, diag = tfp_diag.diag_hessian(fn, x)
  np.testing.assert_allclose(diag, hessian_diagonal(fn, x), rtol=1e-9)


def by_matvec(x):
  return tf.reduce_sum(tf.sin(tf.linalg.matvec(constant(DESIGN), x)), -1)


def by_rows(x):
  return tf.reduce_sum(tf.sin(tf.matmul(x, constant(DESIGN.T))), -1)


def by_tensordot(x):
  """All sample axes are one while it multiplies."""
  return tf.reduce_sum(tf.sin(tf.tensordot(x, constant(DESIGN.T), 1)), -1)


def by_solving(x):
  z = tf.linalg.triangular_solve(constant(FACTOR), x[..., tf.newaxis])
  return tf.reduce_sum(tf.sin(z), [-1, -2])


@pytest.mark.parametrize(
  'fn, sample_shape',
  [
    (by_matvec, (3, 2, 4)),
    (by_rows, (3, 7)),
    (by_tensordot, (3, 2, 4)),
    (by_solving, (3, 7)),
  ],
)
def test_several_sample_axes(fn, sample_shape, term_calls):
  x = state(*sample_shape)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.num_passes == 1
  term_calls.count = 0
  np.testing.assert_allclose(plan(x)[2], hessian_diagonal(fn, x), rtol=1e-9)
  assert term_calls.count == 1


@pytest.mark.parametrize(
  'fn, axis',
  [(by_matvec, 0), (by_tensordot, 1), (quadratic_form, 0), (quadratic_form, 1)],
)
def test_constants_that_differ_along_one_of_two_sample_axes(fn, axis):
  def scaled(x):
    scale = tf.linspace(constant(1.0), 2.0, tf.shape(x)[axis])
    return fn(x * tf.reshape(scale, [-1, 1] if axis else [-1, 1, 1]))

  def tempered(x):
    scale = tf.linspace(constant(1.0), 2.0, tf.shape(x)[axis])
    return fn(x) * tf.reshape(scale, [-1] if axis else [-1, 1])

  x = state(2, 3)
  for differs in (scaled, tempered):
    _, _, diag = tfp_diag.diag_hessian(differs, x)
    np.testing.assert_allclose(diag, hessian_diagonal(differs, x), rtol=1e-9)


@pytest.mark.parametrize(
  'kind, in_graph',
  [(tf.constant, True), (tf.Variable, False), (tf.Variable, True)],
)
def test_what_the_function_closes_over(kind, in_graph, term_calls):
  design = kind(DESIGN)

  def fn(x):
    return tf.reduce_sum(tf.sin(tf.matmul(x, design, transpose_b=True)), -1)

  x = state(3)
  plan = tfp_diag.plan_diag_hessian(fn, x)

  def run(x):
    return tfp_diag.diag_hessian(fn, x, plan=plan)[2]

  run = tf.function(run) if in_graph else run
  term_calls.count = 0
  np.testing.assert_allclose(run(x), dense(fn, x), rtol=1e-9)
  assert term_calls.count == 1


def samples_behind(x):
  """Few elements, but the samples are not their leading axis."""
  sums = tf.reduce_sum(tf.exp(tf.stack([x, 2.0 * x])), -1)
  return tf.reduce_sum(tf.math.log(sums), 0)


def test_samples_that_do_not_lead():
  for batch in (1, 2, 5):
    x = state(batch)
    _, _, diag = tfp_diag.diag_hessian(samples_behind, x)
    expected = hessian_diagonal(samples_behind, x)
    np.testing.assert_allclose(diag, expected, rtol=1e-9)


def test_complex_numbers_take_the_passes(term_calls):
  def fn(x):
    spectrum = tf.signal.rfft(x)
    return tf.math.log(tf.reduce_sum(tf.abs(spectrum) ** 2, -1))

  x = state(3)
  _, _, diag = tfp_diag.diag_hessian(fn, x)
  np.testing.assert_allclose(diag, hessian_diagonal(fn, x), rtol=1e-9)
  assert term_calls.count == 0


def arrowhead(x):
  squares = tf.reduce_sum(x[..., 1:] ** 2, -1)
  return -0.5 * squares * tf.exp(-2.0 * x[..., 0]) - x[..., 0] ** 2


def test_a_few_passes_may_still_be_more_than_a_row(term_calls):
  """A pass adds up the squares again, the row of their sum does not."""
  x = state(4)
  plan = tfp_diag.plan_diag_hessian(arrowhead, x)
  assert len(terms_of(arrowhead, x).found.few) == 1
  assert plan.num_passes == 2
  term_calls.count = 0
  np.testing.assert_allclose(plan(x)[2], dense(arrowhead, x), rtol=1e-9)
  assert term_calls.count == 1


def cox_regression(x):
  """The rates are linear in x; those of later rows add up in a logarithm."""
  rates = tf.linalg.matvec(constant(DESIGN), x)
  sums = tf.cumsum(tf.exp(rates), -1, reverse=True)
  return tf.reduce_sum(rates - tf.math.log(sums), -1)


def base_of_a_base(x):
  """Both layers are linear; the second one also reads x itself."""
  rates = tf.linalg.matvec(constant(DESIGN), x)
  more = tf.linalg.matvec(constant(DESIGN.T / 9.0), rates) + x
  sums = tf.cumsum(tf.exp(0.1 * rates), -1) * tf.exp(0.1 * more[..., :1])
  return tf.reduce_sum(tf.math.log(sums + 1.0), -1)


def beside_a_base(x):
  """Not all that leads to the sums leads through the rates."""
  rates = tf.linalg.matvec(constant(DESIGN), x)
  sums = tf.cumsum(tf.exp(rates) * (1.0 + x[..., -1:] ** 2), -1)
  return -tf.reduce_sum(tf.math.log(sums), -1) - tf.reduce_sum(x**4, -1)


# Each function with a shape or two of the four of the samples.
@pytest.mark.parametrize(
  'fn, num_bases, sample_shape',
  [
    (cox_regression, 1, (8,)),
    (base_of_a_base, 2, (3, 2)),
    (base_of_a_base, 2, (0,)),
    (beside_a_base, 1, ()),
  ],
)
def test_tangents_start_where_a_matrix_is_fixed(
  fn, num_bases, sample_shape, term_calls
):
  x = state(*sample_shape)
  terms = terms_of(fn, state(8))
  assert terms.is_by_coordinate
  assert len(terms.found.bases) == num_bases
  diagonal = tf.function(lambda x: tfp_diag.diag_hessian(fn, x)[2])
  np.testing.assert_allclose(diagonal(x), dense(fn, x), atol=1e-11)
  assert term_calls.count


def test_what_has_a_fixed_matrix_needs_no_tangents():
  found = terms_of(cox_regression, state(8)).found
  assert len(found.fixed) == len(found.rest) == 1


def test_a_way_that_fails_is_said_to_have_failed(monkeypatch):
  def fails(self, call):
    raise RuntimeError('no such thing')

  monkeypatch.setattr(HessianTerms, 'diagonal', fails)
  with pytest.warns(RuntimeWarning, match='no such thing'):
    plan = tfp_diag.plan_diag_hessian(cox_regression, state(8))
  assert plan.ways[0].name == 'passes'
  assert any('failed when it was tried' in note for note in plan.notes)
  assert not any('differs' in note for note in plan.notes)


def reshaped_product(x):
  """The graph of an open batch does not know the shape of the product."""
  few = tf.reduce_sum(x, -1, keepdims=True)
  product = few * tf.matmul(x, constant(DESIGN[:3].T))
  flat = tf.reshape(product, [tf.shape(x)[0], -1])
  return tf.reduce_sum(tf.sin(flat), -1)


def test_a_shape_that_the_graph_does_not_know(term_calls):
  spec = tf.TensorSpec([None, N], tf.float64)
  plan = tfp_diag.plan_diag_hessian(reshaped_product, spec)
  assert plan.how == 'op by op'
  x = state(3)
  np.testing.assert_allclose(
    plan(x)[2], dense(reshaped_product, x), rtol=1e-9, atol=1e-10
  )
  assert term_calls.count


def test_several_parts():
  x = state(6)
  parts = [x[:, 0], x[:, 1:]]
  design = np.concatenate([np.ones([30, 1]), DESIGN[:, 1:]], 1)

  def of_parts(intercept, slopes):
    joined = tf.concat([intercept[:, tf.newaxis], slopes], -1)
    logits = tf.matmul(joined, constant(design), transpose_b=True)
    return -tf.reduce_sum(tf.math.softplus(logits), -1)

  _, _, diag = tfp_diag.diag_hessian(of_parts, parts)
  expected = dense(lambda x: of_parts(x[:, 0], x[:, 1:]), x)
  np.testing.assert_allclose(diag[0], expected[:, 0], rtol=1e-9)
  np.testing.assert_allclose(diag[1], expected[:, 1:], rtol=1e-9)


def test_number_of_passes(passes_run):
  x = state(N)
  plan = tfp_diag.plan_diag_hessian(logistic_regression, x)
  # The prior has one color, and so have the exponentials; the columns of the
  # design take a pass, and so does the row of the sum.
  assert plan.num_passes == 2
  assert tfp_diag.plan_diag_hessian(log_normalizer, x).num_passes == 2
  passes_run.count = 0
  tfp_diag.diag_hessian(logistic_regression, x, plan=plan)
  few = passes_run.count
  passes_run.count = 0
  tfp_diag.diag_hessian(logistic_regression, x, schedule='unrolled')
  assert few < passes_run.count / 2


def test_can_be_differentiated():
  x = state(2)
  with tf.GradientTape() as tape:
    tape.watch(x)
    _, _, diag = tfp_diag.diag_hessian(student_t, x)
  with tf.GradientTape() as plain_tape:
    plain_tape.watch(x)
    _, _, plain = tfp_diag.diag_hessian(student_t, x, schedule='while_loop')
  np.testing.assert_allclose(
    tape.gradient(diag, x), plain_tape.gradient(plain, x), rtol=1e-8
  )


def test_a_plan_is_kept_in_a_file(tmp_path, term_calls):
  x = state(4)
  plan = tfp_diag.plan_diag_hessian(unit_vector, x)
  plan.save(tmp_path / 'plan.npz')
  loaded = tfp_diag.load_plan(tmp_path / 'plan.npz', fn=unit_vector)
  assert str(loaded) == str(plan)
  assert loaded.num_passes == plan.num_passes
  term_calls.count = 0
  np.testing.assert_allclose(loaded(x)[2], dense(unit_vector, x), rtol=1e-9)
  assert term_calls.count == 1


def test_a_plan_for_another_function_finds_the_terms_of_this_one(term_calls):
  x = state(4)
  plan = tfp_diag.plan_diag_hessian(logistic_regression, x)
  term_calls.count = 0
  _, _, diag = tfp_diag.diag_hessian(student_t, x, plan=plan)
  assert term_calls.count == 1
  np.testing.assert_allclose(diag, dense(student_t, x), rtol=1e-9)


def test_a_plan_that_cannot_be_followed_says_so(term_calls):
  def spectrum(x):
    return tf.reduce_sum(tf.abs(tf.signal.rfft(x)) ** 3, -1)

  x = state(4)
  plan = tfp_diag.plan_diag_hessian(logistic_regression, x)
  term_calls.count = 0
  with pytest.warns(
    RuntimeWarning, match=r'takes 6 passes, op by op.*; 20 run instead'
  ):
    _, _, diag = tfp_diag.diag_hessian(spectrum, x, plan=plan)
  assert term_calls.count == 0
  np.testing.assert_allclose(diag, dense(spectrum, x), rtol=1e-9)


def test_a_plan_is_followed_where_others_are_cheaper(term_calls):
  """It has been made for other samples; nothing is said against it."""
  plan = tfp_diag.plan_diag_hessian(autoregression, state(2))
  term_calls.count = 0
  x = state(1)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    _, _, diag = tfp_diag.diag_hessian(autoregression, x, plan=plan)
    assert term_calls.count == 1
    # Who asks for passes gets them.
    _, _, loop = tfp_diag.diag_hessian(
      autoregression, x, plan=plan, schedule='while_loop'
    )
  assert term_calls.count == 1
  np.testing.assert_allclose(diag, loop, rtol=1e-12)


def test_validate_args_compares_with_the_passes():
  x = state(3)
  plan = tfp_diag.plan_diag_hessian(logistic_regression, x)
  _, _, diag = tfp_diag.diag_hessian(
    logistic_regression, x, plan=plan, validate_args=True
  )
  np.testing.assert_allclose(diag, dense(logistic_regression, x), rtol=1e-9)


def test_a_quadratic_form_is_known_to_be_one():
  assert terms_of(quadratic_form, state(4)).is_one_product
  assert not terms_of(student_t, state(4)).is_one_product
  small = constant(PRECISION[:3, :3])
  x = state(5)[:, :3]

  def fn(x):
    return tf.reduce_sum(x * tf.matmul(x, small), -1)

  assert terms_of(fn, x).is_one_product
  expected = np.broadcast_to(2.0 * np.diag(small), [5, 3])
  diag = tfp_diag.plan_diag_hessian(fn, x)(x)[2]
  np.testing.assert_allclose(diag, expected, rtol=1e-12)


def test_a_plan_may_be_made_with_other_constants():
  """A number becomes an op, a Tensor of the graph around does not."""

  def scaled(scale):
    return lambda x: quadratic_form(x) * scale

  x = state(3)
  plan = tfp_diag.plan_diag_hessian(scaled(1.0), x)

  @tf.function
  def diagonal(x, scale):
    return tfp_diag.diag_hessian(scaled(scale), x, plan=plan)[2]

  np.testing.assert_allclose(
    diagonal(x, constant(3.0)), 3.0 * dense(quadratic_form, x), rtol=1e-9
  )


def test_sparse_functions_keep_their_colors():
  def chain(x):
    return tf.reduce_sum(tf.exp(x[..., 1:] - x[..., :-1]), -1)

  plan = tfp_diag.plan_diag_hessian(chain, state(2))
  assert not plan.uses_terms
  assert plan.num_passes == 2


def heavy_tailed(x):
  return tf.reduce_sum(tf.math.log1p((x[..., 1:] - x[..., :-1]) ** 2), -1)


@pytest.mark.parametrize(
  'fn, shape, schedule',
  [
    # The derivative of the logarithm would be computed once for each place.
    (heavy_tailed, [1000], 'pfor'),
    (heavy_tailed, [1, 1000], 'pfor'),
    # Where samples are spread over threads, or there is nothing to spread.
    (heavy_tailed, [2, 1000], 'unrolled'),
    (heavy_tailed, [100], 'unrolled'),
    (heavy_tailed, [300_000], 'unrolled'),
    (lambda x: tf.reduce_sum((x[1:] - x[:-1]) ** 2), [1000], 'unrolled'),
    (lambda x: tf.reduce_sum(tf.exp(x)), [1000], 'unrolled'),
  ],
  ids=['one', 'batch of one', 'batch', 'small', 'large', 'quadratic', 'exp'],
)
def test_schedule_of_a_few_passes(fn, shape, schedule):
  x = tf.constant(RNG.uniform(0.5, 2.0, shape))
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.schedule == schedule
  _, _, loop = tfp_diag.diag_hessian(fn, x, schedule='while_loop')
  np.testing.assert_allclose(plan(x)[2], loop, rtol=1e-12)


def autoregression(x):
  steps = x[..., 1:] - 0.9 * x[..., :-1]
  return -0.5 * tf.reduce_sum(steps**2, -1) - 0.5 * x[..., 0] ** 2


@pytest.mark.parametrize(
  'batch, jit_compile', [(1, False), (1, True), (2, True), (7, False)]
)
def test_samples_share_the_colors_of_a_constant(batch, jit_compile, term_calls):
  x = state(batch)
  plan = tfp_diag.plan_diag_hessian(autoregression, state(2))
  assert plan.how == 'once for all samples'
  assert plan.num_passes == 1
  term_calls.count = 0
  diagonal = tf.function(
    lambda x: tfp_diag.diag_hessian(autoregression, x, plan=plan)[2],
    jit_compile=jit_compile,
  )
  expected = np.full([batch, N], -1.81)
  expected[:, -1] = -1.0
  np.testing.assert_allclose(diagonal(x), expected, rtol=1e-12)
  assert term_calls.count == 1


@pytest.mark.parametrize(
  'shape, jit_compile', [((50,), False), ((10, 5), True)]
)
def test_a_constant_needs_no_other_samples_than_those_at_hand(
  shape, jit_compile
):
  calls = []

  def fn(x):
    calls.append(x.shape[:-1])
    return autoregression(x)

  x = state(*shape)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.num_passes == 1
  run = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x, plan=plan)[2],
    jit_compile=jit_compile,
  )
  expected = np.full([*shape, N], -1.81)
  expected[..., -1] = -1.0
  calls.clear()
  np.testing.assert_allclose(run(x), expected, rtol=1e-12)
  assert calls == [shape]


def test_a_function_of_one_batch_size_keeps_all_samples():
  shift = constant(RNG.standard_normal((50, N)))
  calls = []

  def fn(x):
    calls.append(x.shape[0])
    return autoregression(x + shift)

  x = state(50)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  calls.clear()
  expected = np.full([50, N], -1.81)
  expected[:, -1] = -1.0
  np.testing.assert_allclose(plan(x)[2], expected, rtol=1e-12)
  assert set(calls) == {50}


def test_a_constant_that_differs_between_samples_has_its_own_passes():
  def tempered(x):
    return tf.linspace(constant(1.0), 2.0, tf.shape(x)[0]) * autoregression(x)

  x = state(5)
  plan = tfp_diag.plan_diag_hessian(tempered, x)
  assert not plan.uses_terms
  np.testing.assert_allclose(
    plan(x)[2], hessian_diagonal(tempered, x), rtol=1e-9
  )


@pytest.mark.parametrize('batch', [1, 3, 40])
def test_a_curved_prior_is_no_constant(batch):
  def fn(x):
    return autoregression(x) + 0.01 * tf.reduce_sum(x**3, -1)

  x = state(batch)
  np.testing.assert_allclose(
    tfp_diag.diag_hessian(fn, x)[2], hessian_diagonal(fn, x), rtol=1e-9
  )


@pytest.mark.parametrize(
  'dtype, size',
  [
    ('float16', 300.0),
    ('float16', 1e-4),
    ('float32', 1e-23),
    ('float32', 1e21),
  ],
)
def test_squares_out_of_range(dtype, size):
  """The square of a coefficient alone is inf or zero; what it is in is not."""
  matrix = np.array([[1.0, 0.5], [0.25, 1.0], [0.5, 0.5]])
  weight = 1.0 / size if dtype == 'float32' else min(1.0 / size, 100.0)
  x = np.array([0.5, 0.25]) / size
  z = matrix @ (x * size)
  want = weight * size * (np.cosh(z) @ matrix**2) * size

  def log_prob(x):
    z = tf.linalg.matvec(tf.constant(matrix * size, dtype), x)
    return tf.reduce_sum(tf.constant(weight, dtype) * tf.cosh(z))

  x = tf.constant(x, dtype)
  plan = tfp_diag.plan_diag_hessian(log_prob, x)
  # In half precision what is right may be denormal.
  rtol, atol = (1e-2, 1e-7) if dtype == 'float16' else (1e-5, 0.0)
  for jit_compile in (None, True):
    found = tf.function(
      lambda x: (
        tfp_diag.diag_hessian(log_prob, x)[2],
        tfp_diag.diag_hessian(log_prob, x, plan=plan)[2],
      ),
      jit_compile=jit_compile,
    )(x)
    for diag in found:
      np.testing.assert_allclose(diag, want, rtol=rtol, atol=atol)


def test_a_long_recursion_is_not_taken_apart_for_a_small_gain():
  """Op by op it costs a little less, and a gradient is traced for each row."""

  def recursion(x):
    state = tf.zeros_like(x[..., 0])
    for t in range(20):
      state = tf.tanh(0.5 * state + x[..., t]) + x[..., t]
    return state

  spec = tf.TensorSpec([None, 20], tf.float64)
  assert not tfp_diag.plan_diag_hessian(recursion, spec).uses_terms


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_functions_that_compute_in_two_dtypes(dtype):
  """Terms of both are added up."""
  other = tf.float32 if dtype == tf.float64 else tf.float64

  def fn(x):
    width = tf.math.reduce_std(tf.cast(x, other), -1, keepdims=True)
    return tf.reduce_sum(tf.sin(x / tf.cast(width, dtype)), -1)

  x = tf.constant(np.random.default_rng(3).standard_normal((2, 6)), dtype)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    plan = tfp_diag.plan_diag_hessian(fn, x)
    _, _, found = plan(x)
  assert 'op by op' in str(plan)
  expected = hessian_diagonal(fn, x)
  np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
