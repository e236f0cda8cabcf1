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
"""A plan and a function that is no longer the one it was made for.

The graph at hand must fit into the pattern of the plan. Then its numbers are
right, whatever else has changed; otherwise the plan is refused.
"""

import types

import numpy as np
import pytest
import tensorflow as tf

import tfp_diag
from tests.exactness.ways import (
  REGIMES,
  copy_of,
  draw,
  in_regime,
  same,
)
from tests.oracles import hessian_by_copies, jacobian_by_copies

N = 20
SAMPLES = 3
RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=[N, N]) / np.sqrt(N)
DATA = RNG.normal(size=[40, N])


def band(width):
  places = np.arange(N)
  near = np.abs(places - places[:, np.newaxis]) <= width
  return tf.constant(np.where(near, DENSE + 1.0, 0.0))


def jacobian_with(plan, regime, fn, x):
  def call(x):
    return tfp_diag.diag_jacobian(x, fn=fn, plan=plan)[1][0]

  return in_regime(regime, call, x)


def hessian_with(plan, regime, fn, x):
  def call(x):
    return tfp_diag.diag_hessian(fn, x, plan=plan)[2]

  return in_regime(regime, call, x)


def plan_of(kind, fn, tmp_path=None):
  spec = tf.TensorSpec([SAMPLES, N], tf.float64)
  if kind == 'jacobian':
    plan = tfp_diag.plan_diag_jacobian(fn, spec, sample_shape=[SAMPLES])
  else:
    plan = tfp_diag.plan_diag_hessian(fn, spec)
  if tmp_path is not None:
    plan.save(tmp_path / 'plan.npz')
    plan = tfp_diag.load_plan(tmp_path / 'plan.npz')
  return plan


# Of each: the function that is planned, and the one that is differentiated.
# The pattern stays the same or becomes smaller.
JACOBIANS = {
  'exponent': (
    lambda x: x**2 * tf.roll(x, 1, axis=1),
    lambda x: x**5 * tf.roll(x, 1, axis=1) ** 2,
  ),
  'scale': (
    lambda x: 2.0 * tf.sin(x @ band(2)),
    lambda x: 5.0 * tf.sin(x @ band(2)),
  ),
  'weights of a layer': (
    lambda x: tf.tanh(x @ DENSE) @ DENSE.T,
    lambda x: tf.tanh(x @ DENSE.T) @ (DENSE + 0.5),
  ),
  'activation of a layer': (
    lambda x: tf.tanh(x @ DENSE) @ DENSE.T,
    lambda x: tf.nn.softplus(x @ DENSE) @ DENSE.T,
  ),
  'a residual more': (
    lambda x: tf.tanh(x @ DENSE) @ DENSE.T,
    lambda x: tf.tanh(x @ DENSE) @ DENSE.T + tf.tanh(x @ DENSE),
  ),
  'a layer more': (
    lambda x: tf.tanh(x @ DENSE) @ DENSE.T,
    lambda x: tf.tanh(tf.tanh(x @ DENSE) @ DENSE) @ DENSE.T,
  ),
  'another normalizer': (
    lambda x: tf.nn.softmax(x),
    lambda x: x / tf.norm(x, axis=-1, keepdims=True),
  ),
  'fewer neighbors': (
    lambda x: tf.square(x @ band(2)),
    lambda x: tf.square(x @ band(1)),
  ),
}
HESSIANS = {
  'exponent': (
    lambda x: tf.reduce_sum((x[:, 1:] - x[:, :-1]) ** 2, axis=-1),
    lambda x: tf.reduce_sum((x[:, 1:] - x[:, :-1]) ** 4, axis=-1),
  ),
  'scale of a quadratic form': (
    lambda x: tf.reduce_sum(tf.square(x @ DENSE), axis=-1),
    lambda x: 7.0 * tf.reduce_sum(tf.square(x @ DENSE), axis=-1),
  ),
  'no quadratic form': (
    lambda x: tf.reduce_sum(tf.square(x @ DENSE), axis=-1),
    lambda x: tf.reduce_sum(tf.math.cosh(x @ DENSE), axis=-1),
  ),
  'link of a regression': (
    lambda x: tf.reduce_sum(tf.nn.softplus(x @ DATA.T), axis=-1),
    lambda x: tf.reduce_sum(tf.exp(0.3 * x @ DATA.T), axis=-1),
  ),
  'data of a regression': (
    lambda x: tf.reduce_sum(tf.nn.softplus(x @ DATA.T), axis=-1),
    lambda x: tf.reduce_sum(tf.nn.softplus(x @ DATA[::-2].T + 1.0), axis=-1),
  ),
  'temperature of a normalizer': (
    lambda x: tf.reduce_logsumexp(x, axis=-1),
    lambda x: tf.reduce_logsumexp(3.0 * x**2, axis=-1),
  ),
  'an axis': (
    lambda x: (
      tf.reduce_sum(tf.reduce_logsumexp(tf.reshape(x, [-1, 4, 5]), 2), axis=-1)
      + tf.reduce_logsumexp(x, axis=-1)
    ),
    lambda x: (
      tf.reduce_sum(tf.reduce_logsumexp(tf.reshape(x, [-1, 4, 5]), 1), axis=-1)
      + tf.reduce_logsumexp(x, axis=-1)
    ),
  ),
}


@pytest.mark.parametrize(
  'name, regime',
  [(name, 'eager') for name in JACOBIANS]
  + [('weights of a layer', 'function'), ('a layer more', 'xla')],
)
def test_a_changed_jacobian_that_fits(name, regime):
  planned, fn = JACOBIANS[name]
  x = draw(SAMPLES, N)
  diag = jacobian_with(plan_of('jacobian', planned), regime, fn, x)
  same(diag, jacobian_by_copies(fn, copy_of(x)))


@pytest.mark.parametrize(
  'name, regime',
  [(name, 'eager') for name in HESSIANS]
  + [('no quadratic form', 'function'), ('exponent', 'xla')],
)
def test_a_changed_hessian_that_fits(name, regime):
  planned, fn = HESSIANS[name]
  x = draw(SAMPLES, N, seed=1)
  diag = hessian_with(plan_of('hessian', planned), regime, fn, x)
  same(diag, hessian_by_copies(fn, copy_of(x)))


@pytest.mark.parametrize(
  'name', ('scale of a quadratic form', 'data of a regression')
)
def test_a_changed_hessian_from_a_file(name, tmp_path):
  planned, fn = HESSIANS[name]
  x = draw(SAMPLES, N, seed=2)
  diag = hessian_with(plan_of('hessian', planned, tmp_path), 'xla', fn, x)
  same(diag, hessian_by_copies(fn, copy_of(x)))


# The pattern grows.
LARGER_JACOBIANS = {
  'more neighbors': (
    lambda x: tf.square(x @ band(1)),
    lambda x: tf.square(x @ band(2)),
  ),
  'other neighbors': (
    lambda x: tf.sin(x) * tf.roll(x, 1, axis=1),
    lambda x: tf.sin(x) * tf.roll(x, 2, axis=1),
  ),
  'a sum more': (
    lambda x: tf.exp(x),
    lambda x: tf.exp(x) * tf.reduce_sum(x, axis=1, keepdims=True),
  ),
  'other indices': (
    lambda x: x * tf.gather(x, np.arange(N)[::-1].copy(), axis=1),
    lambda x: x * tf.gather(x, (np.arange(N) * 3) % N, axis=1),
  ),
}
LARGER_HESSIANS = {
  'more neighbors': (
    lambda x: tf.reduce_sum(tf.cos(x[:, 1:] - x[:, :-1]), axis=-1),
    lambda x: tf.reduce_sum(tf.cos(x[:, 2:] - x[:, :-2]), axis=-1),
  ),
  'a bent sum': (
    lambda x: tf.reduce_sum(tf.exp(x), -1) + tf.reduce_sum(x, -1),
    lambda x: tf.reduce_sum(tf.exp(x), -1) + tf.reduce_sum(x, -1) ** 2,
  ),
  'a normalizer': (
    lambda x: tf.reduce_sum(x**4, axis=-1),
    lambda x: tf.reduce_sum(x**4, axis=-1) - tf.reduce_logsumexp(x, axis=-1),
  ),
}


def in_turns(names):
  first, *others = names
  return [(first, regime) for regime in REGIMES] + [
    (name, REGIMES[k % 3]) for k, name in enumerate(others, 1)
  ]


# The first one in each regime, the others in one.
@pytest.mark.parametrize('name, regime', in_turns(LARGER_JACOBIANS))
def test_a_jacobian_that_exceeds_its_plan_is_refused(name, regime):
  planned, fn = LARGER_JACOBIANS[name]
  plan = plan_of('jacobian', planned)
  with pytest.raises(ValueError, match=r'`plan`.*[Pp]lan again'):
    jacobian_with(plan, regime, fn, draw(SAMPLES, N))


@pytest.mark.parametrize('name, regime', in_turns(LARGER_HESSIANS))
def test_a_hessian_that_exceeds_its_plan_is_refused(name, regime, tmp_path):
  planned, fn = LARGER_HESSIANS[name]
  plan = plan_of('hessian', planned, tmp_path)
  with pytest.raises(ValueError, match=r'`plan`.*[Pp]lan again'):
    hessian_with(plan, regime, fn, draw(SAMPLES, N))


def test_a_loaded_plan_with_another_function_is_refused(tmp_path):
  plan_of('jacobian', tf.sin, None).save(tmp_path / 'plan.npz')
  plan = tfp_diag.load_plan(
    tmp_path / 'plan.npz', fn=lambda x: tf.sin(x) * tf.cumsum(x, axis=1)
  )
  with pytest.raises(ValueError, match=r'`plan`.*[Pp]lan again'):
    plan(draw(SAMPLES, N))


# One function, whose state changes behind the plan.


def array_in_place():
  array = np.linspace(0.5, 1.0, N)

  def change():
    array[:] = np.linspace(3.0, 1.0, N)

  return lambda x: array * x**2 * tf.roll(x, 1, axis=1), change


def exponent():
  box = types.SimpleNamespace(power=2)

  def change():
    box.power = 4

  return lambda x: x**box.power + tf.sin(tf.cumsum(x, axis=1)), change


def rows_of_a_table():
  table = {'rows': DATA[:10]}

  def change():
    table['rows'] = 2.0 * DATA[10:20] + 1.0

  return (
    lambda x: tf.tanh(x @ table['rows'].T) @ table['rows'],
    change,
  )


def variable():
  scale = tf.Variable(0.5, dtype=tf.float64)
  return lambda x: tf.nn.softmax(scale * x), lambda: scale.assign(3.0)


STATES = (array_in_place, exponent, rows_of_a_table, variable)


@pytest.mark.parametrize(
  'kind, make',
  [
    *(('jacobian', make) for make in STATES),
    ('hessian', array_in_place),
    ('hessian', variable),
  ],
)
def test_state_that_changes_behind_a_plan(kind, make):
  body, change = make()
  x = draw(SAMPLES, N, seed=3)
  if kind == 'jacobian':
    fn, run, oracle = body, jacobian_with, jacobian_by_copies
  else:
    run, oracle = hessian_with, hessian_by_copies

    def fn(x):
      return tf.reduce_sum(body(x), axis=-1)

  plan = plan_of(kind, fn)
  for _ in range(2):
    same(run(plan, 'eager', fn, x), oracle(fn, copy_of(x)))
    change()


@pytest.mark.parametrize('make', STATES[:3], ids=lambda make: make.__name__)
def test_a_called_plan_is_of_one_state(make):
  """It is traced once: value and diagonal are both before, or both after."""
  fn, change = make()
  x = draw(SAMPLES, N, seed=4)
  plan = plan_of('jacobian', fn)
  states = [(fn(x), jacobian_by_copies(fn, copy_of(x)))]
  change()
  states.append((fn(x), jacobian_by_copies(fn, copy_of(x))))
  for _ in range(2):
    (ys,), (diag,) = plan(x)
    distances = [np.abs(ys - y).max() for y, _ in states]
    y, want = states[int(np.argmin(distances))]
    same(ys, y)
    same(diag, want)


def test_an_array_that_gets_more_entries_behind_a_plan():
  matrix = np.eye(N)
  plan = plan_of('jacobian', lambda x: tf.sin(x @ matrix))
  matrix[3, 4] = matrix[4, 3] = 2.0
  with pytest.raises(ValueError, match=r'`plan`.*[Pp]lan again'):
    jacobian_with(plan, 'eager', lambda x: tf.sin(x @ matrix), draw(SAMPLES, N))
