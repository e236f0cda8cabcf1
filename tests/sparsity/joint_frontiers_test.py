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
"""One frontier for all that is curved behind a tensor, and joined sweeps."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.oracles import hessian_by_copies, unmixed_diagonals
from tfp_diag.sparsity import frontiers
from tfp_diag.sparsity.analysis import Analysis, analyze
from tfp_diag.sparsity.graph import trace

tfd = tfp.distributions

ROWS = 9
RNG = np.random.default_rng(4)
DESIGN = tf.constant(RNG.normal(size=[ROWS, 3]) / 2.0)
OTHER = tf.constant(RNG.normal(size=[ROWS, 3]) / 2.0)
REAL = tf.constant(RNG.normal(size=ROWS))
COUNTS = tf.constant(RNG.integers(0, 5, ROWS) * 1.0)


def state(size, samples=2):
  return tf.constant(RNG.normal(size=[samples, size]) / 2.0)


def hessian(fn, x):
  return hessian_by_copies(fn, x)


def diagonal(fn, x, **kwargs):
  """In a graph, where nothing is compared with a pass."""
  return tf.function(lambda x: tfp_diag.diag_hessian(fn, x, **kwargs)[2])(x)


def predictors(x):
  one = tf.linalg.matvec(DESIGN, x[..., :3])
  return one, tf.linalg.matvec(OTHER, x[..., 3:6])


def likelihood(distribution, response):
  def log_prob(x):
    return tf.reduce_sum(
      distribution(*predictors(x)).log_prob(response), -1
    ) - tf.reduce_sum(tf.cosh(x), -1)

  return log_prob


def ordered(a, b):
  cutpoints = tf.exp(b)[..., tf.newaxis] * tf.constant([-1.0, 0.5], a.dtype)
  return tfd.OrderedLogistic(cutpoints, a)


def truncated(x):
  """A density between -4 and 4, with a wave in it: too long for its terms."""
  mean, log_scale = predictors(x)
  scale = np.sqrt(0.5) * tf.exp(-log_scale)
  z = (REAL - mean) * scale
  mass = tf.math.erf((4.0 - mean) * scale) + tf.math.erf((4.0 + mean) * scale)
  terms = z**2 + log_scale + tf.math.log(mass)
  terms += tf.sin(z) * tf.exp(-(z**2)) * tf.tanh(z * mean)
  return -tf.reduce_sum(terms, -1) - tf.reduce_sum(tf.cosh(x), -1)


LIKELIHOODS = {
  'normal': likelihood(lambda a, b: tfd.Normal(a, tf.exp(b)), REAL),
  'truncated': truncated,
  'negative binomial': likelihood(
    lambda a, b: tfd.NegativeBinomial.experimental_from_mean_dispersion(
      tf.exp(a), tf.exp(b)
    ),
    COUNTS,
  ),
  'ordered': likelihood(ordered, tf.cast(COUNTS % 3.0, tf.int32)),
}


@pytest.fixture
def joint_frontiers(monkeypatch, prefers_sweeps):
  """No others, whatever they cost."""
  both = Analysis.sweeps
  monkeypatch.setattr(Analysis, 'sweeps', lambda *args: list(both(*args))[1:])


def sweeps_of(fn, x):
  """What is found in a graph: with frontiers for terms, and with joint ones."""
  spec = tf.TensorSpec(x.shape, x.dtype)
  graph = trace(lambda parts: fn(parts[0]), lambda y, _: [y], [spec])
  return list(analyze(graph, 1, None, is_hessian=True).sweeps())


# By an open plan; the others of a known number of samples, or under XLA.
@pytest.mark.parametrize(
  'name, says',
  [
    ('truncated', 'is differentiated as a whole: 2 products with its Hessian'),
    ('normal', ''),
  ],
)
def test_a_likelihood_of_two_predictors_takes_one_sweep(name, says):
  fn, x = LIKELIHOODS[name], state(6, 3)
  spec = tf.TensorSpec([None, 6], x.dtype)
  plan = tfp_diag.plan_diag_hessian(fn, spec)
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', 1)
  assert says in str(plan)
  diag = tf.function(lambda x: plan(x)[2], input_signature=[spec])(x)
  np.testing.assert_allclose(diag, hessian(fn, x), rtol=1e-9)


@pytest.mark.parametrize(
  'name, jit_compile', [('negative binomial', False), ('ordered', True)]
)
def test_a_likelihood_of_two_predictors_in_graphs(name, jit_compile):
  fn, x = LIKELIHOODS[name], state(6, 3)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', 1)
  compiled = tf.function(
    lambda x: tfp_diag.diag_hessian(fn, x, plan=plan), jit_compile=jit_compile
  )
  np.testing.assert_allclose(compiled(x)[2], hessian(fn, x), rtol=1e-9)


def test_an_outer_tape_goes_through():
  x, fn = state(6), LIKELIHOODS['normal']

  def outer(diagonal):
    with tf.GradientTape() as tape:
      tape.watch(x)
      value = tf.reduce_sum(diagonal(x) * tf.sin(x))
    return tape.gradient(value, x)

  def dense(x):
    with tf.GradientTape(persistent=True) as second:
      second.watch(x)
      with tf.GradientTape() as first:
        first.watch(x)
        value = fn(x)
      gradient = first.gradient(value, x)
    jacobian = second.batch_jacobian(gradient, x, experimental_use_pfor=False)
    return tf.linalg.diag_part(jacobian)

  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.num_passes == 1
  np.testing.assert_allclose(
    outer(lambda x: plan(x)[2]), outer(dense), rtol=1e-9
  )


def test_what_behind_a_tensor_interacts_is_kept_apart(joint_frontiers):
  """Three classes: a product with the Hessian for each."""

  def fn(x):
    logits = tf.matmul(DESIGN, tf.reshape(x, [-1, 3, 3]))
    logits -= tf.math.log(tf.reduce_sum(tf.exp(logits), -1, keepdims=True))
    return tf.reduce_sum(tf.sin(logits) * tf.exp(logits), [-1, -2])

  x = state(9)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', 1)
  assert '3 products with its Hessian' in str(plan)
  found = diagonal(fn, x, plan=plan)
  np.testing.assert_allclose(found, hessian(fn, x), rtol=1e-9)


# Conditions that do not hold, one at a time.


def long_formula(u):
  return tf.reduce_sum(tf.sin(u) * tf.exp(u) * tf.cosh(u), -1)


def long_formula_of_one(x):
  return long_formula(tf.linalg.matvec(DESIGN, x))


def two_paths_to_an_element(x):
  """The coordinate 0 reaches each row by itself, and through the matrix."""
  return long_formula(tf.linalg.matvec(DESIGN, x) + tf.tanh(x[..., :1]))


def another_way(x):
  """The coordinate 0 reaches the formula beside the predictor."""
  u = tf.linalg.matvec(DESIGN, x)
  return long_formula(u) + tf.reduce_sum(tf.sin(u * x[..., :1]) * tf.exp(u), -1)


def elements_meet(x):
  """The rows interact, and all coordinates reach all of them."""
  u = tf.linalg.matvec(DESIGN, x)
  return long_formula(u) * tf.reduce_sum(tf.tanh(u), -1)


def formula_of_a_formula(x):
  """What has a frontier of its own lies behind the next one, too."""
  u = tf.linalg.matvec(DESIGN, x)
  return long_formula(tf.tanh(u)) + long_formula(u)


@pytest.mark.parametrize(
  'fn, covered',
  [
    (long_formula_of_one, [0, 1, 2]),
    (two_paths_to_an_element, [1, 2]),
    (another_way, [1, 2]),
    (elements_meet, []),
    (formula_of_a_formula, [0, 1, 2]),
  ],
)
def test_conditions(fn, covered, joint_frontiers):
  x = state(3)
  at_rows = [
    np.flatnonzero(one.coordinates)
    for one in sweeps_of(fn, x)[-1].sweeps
    # The others are at xs themselves.
    if any(joint.value.shape == (2, ROWS) for joint in one.joints)
  ]
  np.testing.assert_array_equal(np.concatenate([[], *at_rows]), covered)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert plan.ways[0].name == 'squared sweeps'
  found = diagonal(fn, x, plan=plan)
  np.testing.assert_allclose(found, hessian(fn, x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
  'fn, size',
  [
    (long_formula_of_one, 3),
    (two_paths_to_an_element, 3),
    (another_way, 3),
    (elements_meet, 3),
    (formula_of_a_formula, 3),
    (LIKELIHOODS['normal'], 6),
  ],
)
def test_third_derivatives(fn, size, joint_frontiers):
  x = state(size)
  found = tf.function(lambda x: tfp_diag.unmixed_derivatives(fn, x))(x)
  second, third = unmixed_diagonals(fn, x)
  for got, want in ((found.second, second), (found.third, third)):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_a_product_with_what_does_not_depend_on_it(joint_frontiers):
  """The weights that a layer is multiplied by are none of its elements."""

  def fn(x):
    hidden = tf.matmul(DESIGN, tf.reshape(x[..., :6], [-1, 3, 2]))
    logits = tf.matmul(tf.tanh(hidden), tf.reshape(x[..., 6:], [-1, 2, 3]))
    logits -= tf.math.log(tf.reduce_sum(tf.exp(logits), -1, keepdims=True))
    return tf.reduce_sum(tf.sin(logits) * tf.exp(logits), [-1, -2])

  x = state(12)
  first, second = sweeps_of(fn, x)[-1].sweeps
  np.testing.assert_array_equal(np.flatnonzero(first.coordinates), range(6))
  (joint,) = first.joints
  assert (joint.value.known_shape, joint.shape) == ((2, ROWS, 2), (2,))
  (joint,) = second.joints
  assert (joint.value.known_shape, joint.shape) == ((2, ROWS, 3), (3,))
  np.testing.assert_allclose(diagonal(fn, x), hessian(fn, x), rtol=1e-9)


def test_one_frontier_in_front_of_another(joint_frontiers):
  """What is added at the second one would flow through the first one."""

  def fn(x):
    u = tf.linalg.matvec(DESIGN, x[..., :3])
    v = u + tf.linalg.matvec(OTHER, x[..., 3:])
    return long_formula(v) + tf.reduce_sum(
      tf.exp(u) * tf.sin(v) * tf.tanh(u), -1
    )

  x = state(6)
  plan = tfp_diag.plan_diag_hessian(fn, x)
  assert (plan.ways[0].name, plan.num_passes) == ('squared sweeps', 2)
  found = diagonal(fn, x, plan=plan)
  np.testing.assert_allclose(found, hessian(fn, x), rtol=1e-9)


# Sweeps are joined where they leave each other alone.


def test_what_is_apart_takes_one_sweep():
  """A frontier for three coordinates, squares for the other ones."""

  def fn(x):
    u, v = predictors(x)
    return long_formula(u) + tf.reduce_sum(tf.exp(v), -1)

  x = state(6)
  for sweeps in sweeps_of(fn, x):
    assert len(sweeps.sweeps) == 2 and not sweeps.left_over.any()
    assert len(sweeps.joined().sweeps) == 1
  np.testing.assert_allclose(diagonal(fn, x), hessian(fn, x), rtol=1e-9)


def test_what_is_not_apart_takes_two():
  """The last layer squares the loss, for which the first has a frontier."""

  def fn(x):
    hidden = tf.tanh(tf.matmul(DESIGN, tf.reshape(x[..., :6], [-1, 3, 2])))
    hidden = tf.tanh(tf.matmul(hidden, tf.reshape(x[..., 6:10], [-1, 2, 2])))
    outputs = tf.linalg.matvec(hidden, x[..., 10:])
    return tf.reduce_sum((REAL - outputs) ** 4, -1)

  x = state(12)
  sweeps, _ = sweeps_of(fn, x)
  assert len(sweeps.sweeps) == len(sweeps.joined().sweeps) == 2
  np.testing.assert_allclose(diagonal(fn, x), hessian(fn, x), rtol=1e-9)


def test_terms_that_no_coordinate_of_a_sweep_reaches_are_not_looked_at():
  """The dispersion has a pass, and what it alone reaches is left to that."""

  def fn(x):
    dispersion = tf.exp(x[..., 3:])
    u = tf.linalg.matvec(DESIGN, x[..., :3])
    odds = tf.math.softplus(u - x[..., 3:]) * (COUNTS + dispersion)
    return tf.reduce_sum(tf.math.lgamma(dispersion + COUNTS) - odds, -1)

  x = state(4)
  sweeps = sweeps_of(fn, x)[0]
  sweeps = sweeps.only([one for one in sweeps.sweeps if not one.frontiers])
  np.testing.assert_array_equal(sweeps.left_over, [False] * 3 + [True])
  (one,) = sweeps.joined().sweeps
  assert {term.step.op_type for term in one.left_out} == {'Lgamma', 'Exp'}
  np.testing.assert_allclose(diagonal(fn, x), hessian(fn, x), rtol=1e-9)


def network(x):
  """Two hidden layers of three units on nine rows: x has 21 coordinates."""
  first = tf.reshape(x[..., :9], [-1, 3, 3])
  second = tf.reshape(x[..., 9:18], [-1, 3, 3])
  hidden = tf.tanh(tf.matmul(DESIGN[tf.newaxis], first))
  hidden = tf.tanh(tf.matmul(hidden, second))
  mean = tf.linalg.matvec(hidden, x[..., 18:])
  return -tf.reduce_sum((REAL - mean) ** 2, -1) - tf.reduce_sum(x**4, -1)


def classes(x):
  """A softmax regression on three classes."""
  logits = tf.matmul(DESIGN[tf.newaxis], tf.reshape(x, [-1, 3, 3]))
  chosen = tf.math.log_softmax(logits) * tf.one_hot(
    np.arange(9) % 3, 3, dtype=x.dtype
  )
  return tf.reduce_sum(chosen, [-1, -2]) - tf.reduce_sum(tf.cosh(x), -1)


def described(found):
  return [
    (
      sweeps.left_over.tolist(),
      sweeps.reasons,
      [
        (
          one.coordinates.tolist(),
          [(f.label, f.value.known_shape, f.shape) for f in one.joints],
          [
            [(n.value.known_shape, n.is_by_rows, n.shape) for n in f.links]
            for f in one.frontiers
          ],
        )
        for one in sweeps.sweeps
      ],
    )
    for sweeps in found
  ]


@pytest.mark.parametrize(
  'fn, size',
  [(network, 21), (classes, 9), (LIKELIHOODS['truncated'], 6)],
)
def test_a_look_at_few_elements_rules_out_nothing_else(fn, size, monkeypatch):
  """Of large values a few elements are looked at before all of them."""
  want = described(sweeps_of(fn, state(size)))
  looks, meeting = [], frontiers.Frontiers.meeting

  def counted(self, sets, united, numbers):
    found = meeting(self, sets, united, numbers)
    looks.append(found.any())
    return found

  monkeypatch.setattr(frontiers, '_SOME', 4)
  monkeypatch.setattr(frontiers, '_MANY_TIMES', 1)
  monkeypatch.setattr(frontiers.Frontiers, 'meeting', counted)
  got = described(sweeps_of(fn, state(size)))
  assert str(got) == str(want)
  assert any(looks) or fn is not network
